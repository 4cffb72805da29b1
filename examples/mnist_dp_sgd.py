"""Digits by DP-SGD: a network of tanh units, trained so that little can be told of any one image.

Run: python examples/mnist_dp_sgd.py [folder with mnist.npz]. Without a folder it takes scikit-learn's 1,797
small digits, which come with that package: few images, so that privacy costs more there.
"""

import os
import sys
from pathlib import Path

import numpy as np
import torch
from torch import nn

import discreet as dp
from discreet import learning

torch.manual_seed(0)
torch.set_num_threads(1)


def images(folder: str | None) -> tuple[torch.Tensor, ...]:
    """Training and test images in [0, 1], each with its digit."""
    if folder:
        data = np.load(Path(folder) / "mnist.npz")
        x, y, fresh, truth = (data[name] for name in ("x_train", "y_train", "x_test", "y_test"))
        x, fresh = x / 255, fresh / 255
    else:
        from sklearn.datasets import load_digits

        digits = load_digits()
        order = np.random.default_rng(0).permutation(len(digits.target))
        pixels, labels = digits.images[order] / 16, digits.target[order]
        x, y, fresh, truth = pixels[:1500], labels[:1500], pixels[1500:], labels[1500:]
    as_images = [torch.tensor(part, dtype=torch.float32).unsqueeze(1) for part in (x, fresh)]
    as_labels = [torch.tensor(part, dtype=torch.int64) for part in (y, truth)]
    return as_images[0], as_labels[0], as_images[1], as_labels[1]


def network(width: int) -> nn.Module:
    """The small network of Papernot et al. 2021 for 28 pixels, one hidden layer for 8."""
    if width == 28:
        return nn.Sequential(
            nn.Conv2d(1, 16, 8, 2, padding=3), nn.Tanh(), nn.MaxPool2d(2, 1),
            nn.Conv2d(16, 32, 4, 2), nn.Tanh(), nn.MaxPool2d(2, 1),
            nn.Flatten(), nn.Linear(512, 32), nn.Tanh(), nn.Linear(32, 10),
        )  # fmt: skip
    return nn.Sequential(nn.Flatten(), nn.Linear(width * width, 32), nn.Tanh(), nn.Linear(32, 10))


folder = (
    sys.argv[1] if len(sys.argv) > 1 and "ipykernel" not in sys.modules else os.environ.get("DISCREET_DATA")
)
x, y, fresh, truth = images(folder)
people = dp.open(
    learning.Examples(x, y, dp.Public(table="digits", size=len(x))),  # how many there are is public here
    budget=dp.Budget(epsilon=8, delta=1e-5),
    ledger=":memory:",
)
large = len(x) > 10_000
settings = {"batch": 1024, "epochs": 5} if large else {"batch": 300, "epochs": 40}
print(f"{len(x):,} images of {x.shape[-1]} x {x.shape[-1]} pixels")


def right(model: nn.Module) -> float:
    with torch.no_grad():
        return float((model(fresh).argmax(1) == truth).float().mean())


for epsilon in (1, 3):
    trainer = learning.Trainer(
        network(x.shape[-1]), "cross_entropy", public=people.public, epsilon=epsilon, delta=1e-6, clip=0.5,
        optimizer=learning.SGD(lr=1.0 if large else 2.0, momentum=0.9 if large else 0.0), **settings,
    )  # fmt: skip
    model = people.train(trainer).value
    print(f"epsilon {epsilon}: {right(model):.1%} of unseen digits right, {trainer.length} steps with noise "
          f"of {trainer.noise_multiplier:.2f} clips")  # fmt: skip
print(f"both models together have cost epsilon {people.spent:.3g} of 8")
