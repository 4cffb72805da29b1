"""Loads the handwritten digits of scikit-learn, and builds a small tanh network that classifies them, for the
demo and for experiments."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from .._public import Public
from ..sampling import Entropy
from .data import Examples
from .optimizers import SGD
from .trainer import Trainer

# The number of training digits: four fifths of the 1,797.
SIZE = 1437


class Digits:
    """Holds 1,437 training digits, each of which counts as one person's, and 360 test digits.

    The options are those of `Trainer`, for `trainer` and `private`.
    """

    def __init__(self, *, delta: float = 1e-5, batch: int = 256, epochs: int = 20, clip: float = 1.0) -> None:
        # Here, so that importing this module does not import scikit-learn.
        from sklearn.datasets import load_digits

        self.delta, self.batch, self.epochs, self.clip = delta, batch, epochs, clip
        digits = load_digits()
        # Pixels are from 0 to 16; scaled to [-1, 1].
        x = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 8 - 1
        y = torch.tensor(digits.target)
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))
        self.train, self.test = (x[order[:SIZE]], y[order[:SIZE]]), (x[order[SIZE:]], y[order[SIZE:]])
        self.public = Public(table="digits", size=SIZE)

    @property
    def examples(self) -> Examples:
        """Return the training digits as private examples."""
        return Examples(*self.train, self.public)

    def network(self) -> nn.Module:
        """Return the untrained network, with the same initial weights at every call."""
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(1)
            return nn.Sequential(
                nn.Conv2d(1, 16, 3, padding=1),
                nn.Tanh(),
                nn.MaxPool2d(2),
                nn.Conv2d(16, 32, 3, padding=1),
                nn.Tanh(),
                nn.MaxPool2d(2),
                nn.Flatten(),
                nn.Linear(128, 10),
            )

    def trainer(self, epsilon: float) -> Trainer:
        """Return the DP-SGD trainer of the network for this epsilon."""
        return Trainer(
            self.network(),
            nn.CrossEntropyLoss(),
            public=self.public,
            epsilon=epsilon,
            delta=self.delta,
            clip=self.clip,
            batch=self.batch,
            epochs=self.epochs,
            optimizer=SGD(lr=1.0),
            average=0.9,
        )

    def private(self, epsilon: float) -> tuple[float, float]:
        """Train with DP-SGD, and return the noise multiplier and the accuracy on the test digits."""
        trainer = self.trainer(epsilon)
        model = trainer(self.examples, entropy=Entropy()).value
        return trainer.noise_multiplier, self.accuracy(model)

    def plain(self) -> float:
        """Train without privacy, and return the accuracy on the test digits.

        The batch of 64 and the learning rate of 0.3 were chosen by hand.
        """
        model = self.network()
        weights, (x, y) = list(model.parameters()), self.train
        for _ in range(self.epochs):
            for batch in torch.split(torch.randperm(len(x)), 64):
                loss = F.cross_entropy(model(x[batch]), y[batch])
                for weight, gradient in zip(weights, torch.autograd.grad(loss, weights), strict=True):
                    weight.data.sub_(gradient, alpha=0.3)
        return self.accuracy(model)

    def accuracy(self, model: nn.Module) -> float:
        """Return the fraction of test digits that the model classifies correctly."""
        x, y = self.test
        with torch.no_grad():
            return float((model(x).argmax(1) == y).float().mean())
