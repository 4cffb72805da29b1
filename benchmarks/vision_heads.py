"""Other heads and more views of each image, for the table of private vision: one run each.

    python -m benchmarks.vision_heads --sets mnist fashion_mnist
    python -m benchmarks.vision_heads --sets cifar10_jpeg --parts network

`network`: a small convolutional network on scattering maps, as Tramer & Boneh 2021 (arXiv:2011.11660) train
it, with tanh and with ReLU. `views`: augmentation multiplicity for the linear model. The rows of an image and
of the same image moved by a pixel are rows of one unit, whose mean gradient is clipped, so that the price is
what it was (De et al. 2022, arXiv:2204.13650).
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from discreet import Public, Unit
from discreet import accounting as acc
from discreet.sampling import Entropy

from . import vision
from .vision import BARS, DELTA, SETTINGS, SHAPES, Data, Settings, say
from .vision_choice import Choice

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

# Chosen on Kuzushiji-MNIST by `--choose` (docs/images.md).
NETWORK = Settings(share=0.0, directions=1, clip=0.1, rate=2.0)
RATES = (0.25, 0.5, 1.0, 2.0)
# Pixels down and to the right by which the views of an image are moved.
MOVES = [(0, 0), (1, 1), (-1, -1)]


class Maps(torch.nn.Module if torch is not None else object):  # type: ignore[misc]
    """Classifies rows of scattering coefficients by two convolutions over their maps."""

    def __init__(self, width: int, shape: tuple[int, int, int], activation: Any) -> None:
        super().__init__()
        side = shape[1] // 4
        channels = width // side**2
        self.maps = torch.nn.Unflatten(1, (channels, side, side))
        self.first = torch.nn.Conv2d(channels, 32, 3, padding=1)
        self.second = torch.nn.Conv2d(32, 32, 3, padding=1)
        self.last = torch.nn.Linear(32 * (side // 2) ** 2, 10)
        self.activation, self.pool = activation(), torch.nn.AvgPool2d(2)
        # rows have length 1: this makes their values about 1
        self.scale = width**0.5

    def forward(self, rows: Any) -> Any:
        hidden = self.activation(self.first(self.maps(rows * self.scale)))
        return self.last(self.activation(self.second(self.pool(hidden))).flatten(1))


def network(name: str, folder: Path, cache: Path, epsilon: float) -> None:
    """Measure the network on the test images of a set."""
    data = vision.prepared(name, folder, cache, validate=False, settings=NETWORK)
    for activation in (torch.nn.Tanh, torch.nn.ReLU):
        right, spent, cpu = vision.accuracy(data, epsilon, NETWORK, 0, head_of(name, activation))
        say(f"{name}, network", f"{activation.__name__}: {right:.2%} at {spent:.4f}; {cpu:.0f} CPU-s")


def head_of(name: str, activation: Any) -> Any:
    return lambda width: Maps(width, SHAPES[name], activation)


def choose(folder: Path) -> None:
    """Compare learning rates of the network on Kuzushiji-MNIST, with the noise for 60,000 images."""
    data = Choice(folder, seeds=1).data("kmnist", NETWORK)._replace(people=60_000)
    for rate in RATES:
        right, _, cpu = vision.accuracy(
            data, 2.93, NETWORK._replace(rate=rate), 0, head_of("kmnist", torch.nn.Tanh)
        )
        say("kmnist, network", f"rate {rate:g}, Tanh: {right:.2%}; {cpu:.0f} CPU-s")


def moved(images: Any, down: int, right: int) -> Any:
    """Return images (n, channels, height, width) moved by whole pixels; edges are repeated."""
    padded = np.pad(images, [(0, 0), (0, 0), (1, 1), (1, 1)], mode="edge")
    height, width = images.shape[2:]
    return padded[:, :, 1 - down : 1 - down + height, 1 - right : 1 - right + width]


def views(name: str, folder: Path, cache: Path, epsilon: float, settings: Settings) -> None:
    """Measure the linear model on one and on several views of each image."""
    data = vision.prepared(name, folder, cache, validate=False, settings=settings)
    make = vision.maker(name, settings)
    pixels = vision.pixels(folder, name, "train")
    others = [make.features(moved(pixels, *move), dtype=torch.float16) for move in MOVES[1:]]
    rows = torch.stack([data.x, *others], 1).flatten(0, 1)
    for count in (1, len(MOVES)):
        right, spent, cpu = with_views(data, rows, count, epsilon, settings)
        say(f"{name}, {count} views", f"{right:.2%} at {spent:.4f}; {cpu:.0f} CPU-s")


def with_views(
    data: Data, rows: Any, count: int, epsilon: float, settings: Settings
) -> tuple[float, float, float]:
    """Return accuracy, epsilon and CPU-seconds where the first `count` of the views of an image are rows of
    one unit."""
    from discreet import learning

    start = time.process_time()
    n = len(data.x)
    whiten, events = vision.whitened(data, epsilon, settings)
    public = Public(table="images", size=n, unit=Unit("image", rows=count))
    kept = vision.mapped(whiten, rows.view(n, len(MOVES), -1)[:, :count].flatten(0, 1))
    images = torch.arange(n).repeat_interleave(count)
    examples = learning.Examples(kept, data.y.repeat_interleave(count), public, people=images.numpy())
    model = vision.zeros(kept.shape[1], data.classes)
    trainer = vision.dp_sgd(model, data, epsilon, events, settings, public)
    released = trainer(examples, entropy=Entropy()).value
    with torch.no_grad():
        classes = vision.mapped(lambda part: released(whiten(part)), data.x_test).argmax(1)
    right = float((classes == data.y_test).float().mean())
    spent = acc.epsilon(acc.compose([*events, trainer.event]), delta=DELTA)
    return right, spent, time.process_time() - start


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", default=os.environ.get("DISCREET_DATA", "../shared/data"), type=Path)
    parser.add_argument("--cache", default=Path(tempfile.gettempdir()), type=Path)
    parser.add_argument("--sets", nargs="+", choices=list(BARS), default=["mnist", "fashion_mnist"])
    parser.add_argument("--parts", nargs="+", choices=["network", "views"], default=["network", "views"])
    parser.add_argument("--choose", action="store_true", help="compare rates of the network on kmnist.npz")
    chosen = parser.parse_args()
    needed = ["kmnist"] if chosen.choose else chosen.sets
    if torch is None or not all((chosen.data / f"{name}.npz").exists() for name in needed):
        print("vision_heads: PyTorch or the data are missing (--data is their folder); nothing was measured")
        return 0
    torch.set_num_threads(1)
    if chosen.choose:
        choose(chosen.data)
        return 0
    for name in chosen.sets:
        epsilon = list(BARS[name])[-1]
        if "network" in chosen.parts:
            network(name, chosen.data, chosen.cache, epsilon)
        if "views" in chosen.parts:
            # fewer filters: several views of all features are more than the memory holds
            few = min(SETTINGS[name].filters, 128)
            views(name, chosen.data, chosen.cache, epsilon, SETTINGS[name]._replace(filters=few))
    return 0


if __name__ == "__main__":
    sys.exit(main())
