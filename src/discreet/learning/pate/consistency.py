"""Trains a student of PATE for images, which also learns from unlabelled ones, by consistency: FixMatch (Sohn
et al. 2020, arXiv:2001.07685).

Where the network is sure of the class of a slightly moved image, it is trained to predict the same class for
a strongly distorted copy. All inputs are public, and all labels were released by the teachers' aggregate, so
this is post-processing, and free.
"""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import _require
from ..._errors import InvalidInput


def small_network(classes: int, channels: int = 1, width: int = 32) -> nn.Module:
    """Return a network of three convolutions with group normalization, an average over 3 x 3 parts of the
    image, and a linear layer. `width`, a multiple of 8, is the number of channels of the first
    convolution."""

    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(8, outputs), nn.ReLU()]

    return nn.Sequential(
        *block(channels, width), nn.MaxPool2d(2), *block(width, 2 * width), nn.MaxPool2d(2),
        *block(2 * width, 2 * width), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Linear(18 * width, classes),
    )  # fmt: skip


class FixMatchStudent:
    """Learns images from few labels and many unlabelled inputs, by consistency under distortions.

    If the network gives the class of a slightly moved image a probability of `sure` or more, that class is
    the label of the image's distorted copy. Predictions are made with an exponential moving average of the
    weights, whose decay is `average`. Distortions are rotations up to `degrees`, changes of size, shears,
    moves and an erased square; no mirror images, because a mirrored digit is no digit.

    Each of `steps` steps takes `labelled` images that have labels, and `unlabelled` of all images, whose
    labels, if they have any, are not used; `progress(step, steps)` is called after it. `lr` is the learning
    rate of Adam.
    """

    def __init__(
        self,
        classes: int,
        model: nn.Module | None = None,
        *,
        steps: int = 1000,
        labelled: int = 64,
        unlabelled: int = 192,
        sure: float = 0.95,
        lr: float = 2e-3,
        average: float = 0.995,
        degrees: float = 20.0,
        seed: int = 0,
        progress: Any = None,
    ) -> None:
        _require.integer(classes=classes, at_least=2)
        _require.integer(steps=steps, labelled=labelled, unlabelled=unlabelled, at_least=1)
        _require.open_probability(sure=sure, average=average)
        _require.positive(lr=lr)
        self.classes, self.model, self.steps = classes, model, steps
        self.labelled, self.unlabelled, self.sure = labelled, unlabelled, sure
        self.lr, self.average, self.degrees, self.seed = lr, average, degrees, seed
        self.progress = progress

    def fit(self, images: Any, labels: Any) -> FixMatchStudent:
        """Fit to public images (n, channels, height, width); `labels` has a class number for each image, or
        -1 (or None) for an image without a label."""
        x = _images(images)
        targets = torch.tensor([-1 if label is None else int(label) for label in labels])
        if len(targets) != len(x) or bool(((targets >= self.classes) | (targets < -1)).any()):
            raise InvalidInput("labels must have a class number, or -1, for each image. Nothing was trained.")
        labelled = torch.nonzero(targets >= 0).flatten()
        if len(torch.unique(targets[labelled])) < 2:
            raise InvalidInput(
                "a student needs labels of at least two classes. Nothing was trained. Buy more answers."
            )
        generator = torch.Generator().manual_seed(self.seed)
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self.seed)
            model = (
                small_network(self.classes, x.shape[1]) if self.model is None else copy.deepcopy(self.model)
            )
            self.network_ = self._train(model, x, targets, labelled, generator)
        return self

    def _train(
        self, model: nn.Module, x: Tensor, targets: Tensor, labelled: Tensor, generator: torch.Generator
    ) -> nn.Module:
        """Train `model` by FixMatch, and return a copy of it that has the moving average of the weights, and
        the last buffers (such as statistics of batch normalization). `labelled` has the positions of images
        with labels."""
        mean = copy.deepcopy(model).eval()
        model.train()
        optimizer = torch.optim.Adam(model.parameters(), lr=self.lr)
        for step in range(self.steps):
            # The learning rate's schedule of FixMatch: cos(7 pi k / (16 K)) in step k of K.
            optimizer.param_groups[0]["lr"] = self.lr * math.cos(7 * math.pi * step / (16 * self.steps))
            labelled_batch = labelled[torch.randint(len(labelled), (self.labelled,), generator=generator)]
            unlabelled_batch = torch.randint(len(x), (self.unlabelled,), generator=generator)
            with torch.no_grad():
                probabilities = model(distort(x[unlabelled_batch], generator, weak=True)).softmax(1)
                confidence, pseudo_labels = probabilities.max(1)
            weak, strong = (
                distort(x[labelled_batch], generator, weak=True),
                distort(x[unlabelled_batch], generator, degrees=self.degrees),
            )
            scores = model(torch.cat([weak, strong]))
            loss = nn.functional.cross_entropy(scores[: len(labelled_batch)], targets[labelled_batch])
            consistency_loss = nn.functional.cross_entropy(
                scores[len(labelled_batch) :], pseudo_labels, reduction="none"
            )
            optimizer.zero_grad()
            torch.autograd.backward(loss + (consistency_loss * (confidence >= self.sure)).mean())
            optimizer.step()
            with torch.no_grad():
                # Smaller in the first steps, so that the initial weights are soon forgotten.
                decay = min(self.average, (1 + step) / (10 + step))
                for mean_weights, weights in zip(mean.parameters(), model.parameters(), strict=True):
                    mean_weights.lerp_(weights, 1 - decay)
            if self.progress is not None:
                self.progress(step + 1, self.steps)
        for mean_buffer, buffer in zip(mean.buffers(), model.buffers(), strict=True):
            mean_buffer.copy_(buffer)
        return mean

    @torch.no_grad()
    def probabilities(self, images: Any) -> Any:
        """Return the probabilities of each class."""
        batches = [self.network_(batch).softmax(1) for batch in torch.split(_images(images), 256)]
        return torch.cat(batches).numpy()

    def predict(self, images: Any) -> Any:
        """Return the class numbers of new images."""
        return self.probabilities(images).argmax(1)

    def score(self, images: Any, y: Any) -> float:
        """Return the accuracy on new images."""
        return float(np.mean(self.predict(images) == np.asarray(y)))


def distort(
    images: Tensor, generator: torch.Generator, *, weak: bool = False, degrees: float = 20.0
) -> Tensor:
    """Return distorted copies of images: with `weak` moved by up to 2 pixels in each direction; otherwise
    rotated by up to `degrees`, resized and sheared by up to 20%, moved by up to 3 pixels, and with an erased
    square, a quarter as high as the image."""
    n, _, height, width = images.shape

    def uniform(bound: float) -> Tensor:
        return (torch.rand(n, generator=generator) * 2 - 1) * bound

    pixels = 2 if weak else 3
    angle = uniform(0.0 if weak else math.radians(degrees))
    scale, shear = 1 + uniform(0.0 if weak else 0.2), uniform(0.0 if weak else 0.2)
    cos, sin = torch.cos(angle), torch.sin(angle)
    # The grid's coordinates reach from -1 to 1, so that a pixel is 2 / width wide.
    x_row = torch.stack([cos * scale, (shear * cos - sin) * scale, uniform(2 * pixels / width)], 1)
    y_row = torch.stack([sin * scale, (shear * sin + cos) * scale, uniform(2 * pixels / height)], 1)
    grid = nn.functional.affine_grid(torch.stack([x_row, y_row], 1), list(images.shape), align_corners=False)
    out = nn.functional.grid_sample(images, grid, align_corners=False)
    if weak:
        return out
    side = max(height // 4, 1)
    tops = torch.randint(height - side + 1, (n, 1, 1, 1), generator=generator)
    lefts = torch.randint(width - side + 1, (n, 1, 1, 1), generator=generator)
    rows, columns = torch.arange(height).view(1, 1, -1, 1), torch.arange(width).view(1, 1, 1, -1)
    is_erased = (rows >= tops) & (rows < tops + side) & (columns >= lefts) & (columns < lefts + side)
    return out.masked_fill(is_erased, 0.0)


def _images(images: Any) -> Tensor:
    """Return images as a tensor of floats, refused unless they are finite and have four dimensions."""
    x = torch.as_tensor(np.asarray(images), dtype=torch.float32)
    if x.dim() != 4 or not len(x) or not torch.isfinite(x).all():
        raise InvalidInput(
            f"images must be finite numbers of the shape (number, channels, height, width), not "
            f"{tuple(x.shape)}. Nothing was computed."
        )
    return x
