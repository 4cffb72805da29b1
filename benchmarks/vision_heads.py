"""Other heads and more views of each image, and networks from pixels, for the table of private vision.

    python -m benchmarks.vision_heads --sets mnist fashion_mnist
    python -m benchmarks.vision_heads --sets cifar10_jpeg --parts network --runs 3
    python -m benchmarks.vision_heads --sets cifar10_jpeg --parts pixels --epsilons 3 6.78 7.53 8 --runs 3

`network`: a small convolutional network on scattering maps, as Tramer & Boneh 2021 (arXiv:2011.11660) train
it, with tanh, or with `--relu`. `views`: augmentation multiplicity for the linear model. The rows of an image
and of the same image moved by a pixel are rows of one unit, whose mean gradient is clipped, so that the price
is what it was (De et al. 2022, arXiv:2204.13650). `pixels`: a small convolutional network that is trained
from pixels, with tanh; `--paper` takes the large network of Papernot et al. 2021 (arXiv:2007.14191) for
photographs.
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
from .vision_choice import LEARN, MEASURE

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

# Round numbers. The learning rates were chosen by `--choose`, on training images of look-alikes
# (docs/images.md).
PIXELS = Settings(share=0.0, directions=1, steps=100, batch=2048, clip=0.1, rate=1.6)
NETWORK = PIXELS._replace(rate=3.2)
RATES = (0.2, 0.4, 0.8, 1.6, 3.2, 6.4)
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


class Pixels(torch.nn.Module if torch is not None else object):  # type: ignore[misc]
    """Classifies rows of pixels between 0 and 1: for grey images the network of Papernot et al. 2021
    (arXiv:2007.14191), for photographs one of the same size, or (`paper`) theirs, with eight convolutions."""

    def __init__(self, shape: tuple[int, int, int], paper: bool = False) -> None:
        super().__init__()
        # round numbers, not measured
        self.middle, self.spread = (0.1, 0.3) if shape[0] == 1 else (0.5, 0.25)
        layers = _grey() if shape[0] == 1 else _paper() if paper else _photograph()
        self.layers = torch.nn.Sequential(torch.nn.Unflatten(1, shape), *layers)

    def forward(self, rows: Any) -> Any:
        return self.layers((rows - self.middle) / self.spread)


def _grey() -> list[Any]:
    from .mnist import network

    return list(network())


def _photograph() -> list[Any]:
    nn = torch.nn
    return [
        nn.Conv2d(3, 32, 5, 2, padding=2), nn.Tanh(), nn.AvgPool2d(2),
        nn.Conv2d(32, 64, 3, padding=1), nn.Tanh(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(1024, 10),
    ]  # fmt: skip


def _paper() -> list[Any]:
    nn, layers, before = torch.nn, [], 3
    for channels in (32, 64, 128):
        for inward in (before, channels):
            layers += [nn.Conv2d(inward, channels, 3, padding=1), nn.Tanh()]
        layers.append(nn.AvgPool2d(2))
        before = channels
    layers += [nn.Conv2d(128, 256, 3, padding=1), nn.Tanh(), nn.Conv2d(256, 10, 3, padding=1)]
    return [*layers, nn.AvgPool2d(4), nn.Flatten()]


def measured(what: str, data: Data, epsilons: list[float], settings: Settings, runs: int, head: Any) -> None:
    """Print mean and deviation of the accuracy of several runs at each epsilon."""
    for epsilon in epsilons:
        done = [vision.accuracy(data, epsilon, settings, seed, head) for seed in range(runs)]
        right = np.array([run[0] for run in done])
        deviation = f" +- {right.std(ddof=1):.2%}" if runs > 1 else ""
        each = ", ".join(f"{one:.2%}" for one in right)
        cpu = np.mean([run[2] for run in done])
        say(what, f"{right.mean():.2%}{deviation} at {epsilon} ({each}); {cpu:.0f} CPU-s a run")


def pixels_of(folder: Path, name: str) -> Data:
    (x, y), (x_test, y_test) = (_rows_of_pixels(folder, name, part) for part in ("train", "test"))
    return Data(x, y, x_test, y_test, directions=None)


def _rows_of_pixels(folder: Path, name: str, part: str) -> tuple[Any, Any]:
    images = torch.from_numpy(vision.pixels(folder, name, part)).flatten(1)
    with np.load(folder / f"{name}.npz") as arrays:
        labels = torch.from_numpy(arrays[f"y_{part}"].astype(np.int64))
    return (images / 255).half(), labels


def head_of(name: str, activation: Any) -> Any:
    return lambda width: Maps(width, SHAPES[name], activation)


def pixel_head(name: str, paper: bool = False) -> Any:
    return lambda _: Pixels(SHAPES[name], paper)


def choose(part: str, folder: Path, cache: Path) -> None:
    """Compare learning rates of the networks of a part on training images that stand for all."""
    of_pixels = part == "pixels"
    settings = PIXELS if of_pixels else NETWORK
    for name in ("mnist", "fashion_mnist"):
        if of_pixels:
            (x, y), head = _rows_of_pixels(folder, name, "train"), pixel_head(name)
        else:
            prepared = vision.prepared(name, folder, cache, validate=True, settings=NETWORK)
            x, y, head = prepared.x, prepared.y, head_of(name, torch.nn.Tanh)
        kept = slice(LEARN, LEARN + MEASURE)
        data = Data(x[:LEARN], y[:LEARN], x[kept], y[kept], directions=None, people=60_000)
        for rate in RATES:
            measured(f"{name}, {part}, rate {rate:g}", data, [2.93], settings._replace(rate=rate), 1, head)


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


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", default=os.environ.get("DISCREET_DATA", "../shared/data"), type=Path)
    parser.add_argument("--cache", default=Path(tempfile.gettempdir()), type=Path)
    parser.add_argument("--sets", nargs="+", choices=list(BARS), default=["mnist", "fashion_mnist"])
    parts = ["network", "views", "pixels"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts[:2])
    parser.add_argument(
        "--epsilons", nargs="+", type=float, default=[], help="of networks; the last by default"
    )
    parser.add_argument("--runs", type=int, default=1, help="how many networks for each epsilon")
    parser.add_argument("--relu", action="store_true", help="ReLU in the network on scattering maps")
    parser.add_argument("--paper", action="store_true", help="the large network for photographs, from pixels")
    parser.add_argument("--choose", action="store_true", help="compare learning rates of networks instead")
    return parser.parse_args()


def main() -> int:
    chosen = options()
    needed = ["mnist", "fashion_mnist"] if chosen.choose else chosen.sets
    if torch is None or not all((chosen.data / f"{name}.npz").exists() for name in needed):
        print("vision_heads: PyTorch or the data are missing (--data is their folder); nothing was measured")
        return 0
    torch.set_num_threads(1)
    if chosen.choose:
        for part in set(chosen.parts) - {"views"}:
            choose(part, chosen.data, chosen.cache)
        return 0
    activation = torch.nn.ReLU if chosen.relu else torch.nn.Tanh
    for name in chosen.sets:
        epsilons = chosen.epsilons or list(BARS[name])[-1:]
        if "network" in chosen.parts:
            data = vision.prepared(name, chosen.data, chosen.cache, validate=False, settings=NETWORK)
            head = head_of(name, activation)
            measured(f"{name}, {activation.__name__}", data, epsilons, NETWORK, chosen.runs, head)
        if "pixels" in chosen.parts:
            data = pixels_of(chosen.data, name)
            head = pixel_head(name, chosen.paper)
            measured(f"{name}, pixels", data, epsilons, PIXELS, chosen.runs, head)
        if "views" in chosen.parts:
            # fewer filters: several views of all features are more than the memory holds
            few = SETTINGS[name]._replace(filters=min(SETTINGS[name].filters, 128))
            views(name, chosen.data, chosen.cache, epsilons[-1], few)
    return 0


if __name__ == "__main__":
    sys.exit(main())
