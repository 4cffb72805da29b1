"""Private vision on a CPU: linear models on features that cost nothing, privately whitened in part.

    python -m benchmarks vision
    python -m benchmarks.vision --sets mnist --epsilons 1.2 2.0 2.93 --seeds 5 --parts table
    python -m benchmarks.vision --validate --seeds 1        # no test image is read

`ScatteringRows`, and for photographs `PatchRows` beside them, give a row of features for each image, at no
cost.
Procedural images give a few hundred directions in which such rows vary; their second moments there are
released by `PrivateWhitening` for a share of the budget, and a linear model is trained by DP-SGD with Poisson
batches of about 8,192 images. Both prices are composed. How SETTINGS were chosen is in docs/images.md.
`--validate` trains on the first five sixths of the *training* images and measures on the others, which is
how settings are compared. `--data` (or DISCREET_DATA) is the folder with mnist.npz, fashion_mnist.npz and
cifar10_jpeg.npz; features are kept in `--cache`, by default the folder for temporary files.
"""

from __future__ import annotations

import argparse
import io
import itertools
import os
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

try:
    import torch
except ImportError:
    torch = None  # type: ignore[assignment]

DELTA = 1e-5
# what was published with small compute (Tramer & Boneh 2021, arXiv:2011.11660), and what is wanted
BARS = {
    "mnist": {1.2: (0.981, 0.984), 2.0: (0.985, 0.988), 2.93: (0.987, 0.990)},
    "fashion_mnist": {2.7: (0.895, 0.900), 3.0: (0.897, 0.903)},
    "cifar10_jpeg": {3.0: (0.693, 0.710)},
}
SHAPES = {"mnist": (1, 28, 28), "fashion_mnist": (1, 28, 28), "cifar10_jpeg": (3, 32, 32)}
PROCEDURAL = 1500


class Settings(NamedTuple):
    """The share of rho for whitening (0: none), its directions, the steps, and those of the optimizer."""

    share: float = 0.1
    directions: int = 300
    steps: int = 300
    batch: int = 8192
    clip: float = 0.1
    rate: float = 20.0
    # 0: scattering rows; otherwise the number of filters of patch rows
    filters: int = 0
    # the weight of scattering rows beside patch rows, which have 1; 0: none
    beside: float = 0.0
    # of patch rows: pixels of a patch's side, threshold, parts of an image's side, parts of equal length
    size: int = 6
    threshold: float = 0.6
    grid: int = 3
    per_part: bool = True


# Chosen by `benchmarks.vision_choice` on public images that are not the set's own (docs/images.md), with 256
# filters; CIFAR-10 has as many as memory and time allow.
SETTINGS = {
    "mnist": Settings(filters=256, beside=0.5, per_part=False, rate=10.0),
    "fashion_mnist": Settings(filters=256, beside=0.5, per_part=False, rate=10.0),
    "cifar10_jpeg": Settings(filters=1024, beside=0.25, per_part=False),
}


class Data(NamedTuple):
    """Features and labels to learn from and to measure on, and public directions."""

    x: Any
    y: Any
    x_test: Any
    y_test: Any
    directions: Any
    classes: int = 10
    # the number of images for which noise is drawn; None: as many as there are to learn from
    people: int | None = None


def say(name: str, text: str, ok: bool | None = None) -> bool:
    print(f"vision.{name:<28} {text}   {'' if ok is None else 'ok' if ok else 'MISSED'}", flush=True)
    return ok is not False


def pixels(folder: Path, name: str, part: str) -> Any:
    """Return images as bytes (n, channels, height, width); JPEG copies are decoded by pillow."""
    with np.load(folder / f"{name}.npz") as arrays:
        if f"x_{part}" in arrays:
            return arrays[f"x_{part}"][:, None]
        from PIL import Image

        raw, ends = arrays[f"jpeg_{part}"].tobytes(), [0, *arrays[f"end_{part}"].tolist()]
    decoded = [
        np.asarray(Image.open(io.BytesIO(raw[start:end])).convert("RGB"))
        for start, end in itertools.pairwise(ends)
    ]
    return np.stack(decoded).transpose(0, 3, 1, 2)


def maker(name: str, settings: Settings) -> Any:
    """Return what makes the features of a set."""
    from discreet.learning.features import JoinedRows, PatchRows, ScatteringRows

    shape = SHAPES[name]
    if not settings.filters:
        return ScatteringRows(shape)
    # photographs look either way; digits and clothes do not
    mirror = shape[0] == 3
    patches = PatchRows(
        shape, filters=settings.filters, size=settings.size, threshold=settings.threshold,
        grid=settings.grid, mirror=mirror, per_part=settings.per_part,
    )  # fmt: skip
    if not settings.beside:
        return patches
    return JoinedRows([patches, ScatteringRows(shape, mirror=mirror)], weights=(1.0, settings.beside))


def rows(folder: Path, cache: Path, name: str, part: str, make: Any, settings: Settings) -> Any:
    """Return the features of a part, computed once for each kind."""
    if hasattr(make, "kinds"):
        return make.joined([rows(folder, cache, name, part, kind, settings) for kind in make.kinds])
    kind = f"{type(make).__name__}-{make.size}"
    if hasattr(make, "per_part"):
        kind += f"-{settings.size}-{settings.threshold:g}{'-parts' if make.per_part else ''}"
    path = cache / f"discreet-{kind}-{name}-{part}.npy"
    if not path.exists():
        start = time.process_time()
        np.save(path, make.features(pixels(folder, name, part), dtype=torch.float16).numpy())
        say(name, f"features of the {part} images: {time.process_time() - start:.0f} CPU-s")
    return torch.from_numpy(np.load(path))


def mapped(function: Callable[[Any], Any], rows: Any) -> Any:
    """Return a function of rows, part by part: rows are kept in half precision, the result is not."""
    parts = torch.split(rows, 4096)
    out = torch.empty(len(rows), function(parts[0][:1].float()).shape[1])
    for start, part in zip(range(0, len(rows), 4096), parts, strict=True):
        out[start : start + len(part)] = function(part.float())
    return out


def prepared(
    name: str, folder: Path, cache: Path, *, validate: bool, settings: Settings | None = None
) -> Data:
    """Return the data of a set. Where settings are compared the test part is not read."""
    from discreet.learning.features import Directions, ProceduralClasses

    settings = SETTINGS[name] if settings is None else settings
    make = maker(name, settings)
    generator = torch.Generator().manual_seed(7)
    images, _ = ProceduralClasses(shape=SHAPES[name]).images(PROCEDURAL, generator)
    directions = Directions.fit(make.features(images), count=settings.directions)
    with np.load(folder / f"{name}.npz") as arrays:
        labels = {part: torch.from_numpy(arrays[f"y_{part}"].astype(np.int64)) for part in ("train", "test")}
    train = rows(folder, cache, name, "train", make, settings)
    if validate:
        cut = len(train) * 5 // 6
        y = labels["train"]
        return Data(train[:cut], y[:cut], train[cut:], y[cut:], directions)
    test = rows(folder, cache, name, "test", make, settings)
    return Data(train, labels["train"], test, labels["test"], directions)


def whitened(data: Data, epsilon: float, settings: Settings) -> tuple[Callable[[Any], Any], list[Any]]:
    """Return the map of rows, and the events that it cost."""
    from discreet import Public, learning
    from discreet import accounting as acc
    from discreet.learning.features import PrivateWhitening
    from discreet.sampling import Entropy

    if not settings.share:
        return (lambda rows: rows), []
    public = Public(table="images", size=len(data.x))
    whole = acc.calibrate(lambda s: acc.Gaussian(noise_multiplier=s), epsilon=epsilon, delta=DELTA)
    rho = round(settings.share / (2 * whole**2), 6)
    priced = PrivateWhitening(public=public, width=len(data.directions.matrix), rho=rho)
    # where fewer images than `people` stand for all of them, noise is smaller in the same proportion
    scale = (data.people or len(data.x)) / len(data.x)
    mechanism = replace(priced, rho=rho * scale**2)
    private = learning.Examples(mapped(data.directions, data.x), data.y, public)
    paid = mechanism(private, entropy=Entropy()).value
    return data.directions.whitened(paid), [priced.event]


def dp_sgd(model: Any, data: Data, epsilon: float, events: list[Any], settings: Settings, public: Any) -> Any:
    """Return the trainer whose steps cost what `events` have left of epsilon; `public` says who a unit is."""
    from discreet import accounting as acc
    from discreet import learning

    people = data.people or len(data.x)
    batch = settings.batch * len(data.x) // people
    rate = Fraction(batch, len(data.x))
    noise = acc.calibrate(
        lambda s: acc.compose(
            [*events, acc.Gaussian(noise_multiplier=s).sampled(rate=rate).repeated(settings.steps)]
        ),
        epsilon=epsilon, delta=DELTA,
    )  # fmt: skip
    return learning.Trainer(
        model, torch.nn.CrossEntropyLoss(), public=public, noise_multiplier=noise * len(data.x) / people,
        clip=settings.clip, rate=rate, batch=batch, steps=settings.steps, average=0.97,
        # parts of a batch below 32 MB: the memory of larger ones is given back and taken anew each time
        microbatch=min(512, (1 << 23) // data.x.shape[1]),
        # the rate is that of gradients of length 1, of which the clip is the unit
        optimizer=learning.SGD(lr=settings.rate / settings.clip, momentum=0.9),
    )  # fmt: skip


def trained(data: Data, epsilon: float, settings: Settings, seed: int, head: Any = None) -> tuple[Any, float]:
    """Return a function from features to classes, and the epsilon that whitening and training cost."""
    from discreet import Public, learning
    from discreet import accounting as acc
    from discreet.sampling import Entropy

    public = Public(table="images", size=len(data.x))
    whiten, events = whitened(data, epsilon, settings)
    torch.manual_seed(seed)
    model = zeros(data.x.shape[1], data.classes) if head is None else head(data.x.shape[1])
    trainer = dp_sgd(model, data, epsilon, events, settings, public)
    released = trainer(learning.Examples(mapped(whiten, data.x), data.y, public), entropy=Entropy()).value
    spent = acc.epsilon(acc.compose([*events, trainer.event]), delta=DELTA)

    @torch.no_grad()
    def classify(rows: Any) -> Any:
        return mapped(lambda part: released(whiten(part)), rows).argmax(1)

    return classify, spent


def zeros(width: int, classes: int = 10) -> Any:
    """Return a linear model that starts at zero, without a bias: rows have length 1, and no mean."""
    model = torch.nn.Linear(width, classes, bias=False)
    torch.nn.init.zeros_(model.weight)
    return model


def accuracy(
    data: Data, epsilon: float, settings: Settings, seed: int, head: Any = None
) -> tuple[float, float, float]:
    """Return the share of test images that are right, the epsilon spent and the CPU-seconds."""
    start = time.process_time()
    classify, spent = trained(data, epsilon, settings, seed, head)
    right = float((classify(data.x_test) == data.y_test).float().mean())
    return right, spent, time.process_time() - start


def table(name: str, data: Data, epsilons: list[float], seeds: int) -> bool:
    ok = True
    for epsilon in epsilons or list(BARS[name]):
        runs = []
        for seed in range(seeds):
            runs.append(accuracy(data, epsilon, SETTINGS[name], seed))
            say(f"{name}, run {seed}", f"epsilon {epsilon}: {runs[-1][0]:.2%}; {runs[-1][2]:.0f} CPU-s")
        scores = np.array([run[0] for run in runs])
        published, wanted = BARS[name].get(epsilon, (float("nan"), 0.0))
        deviation = f" +- {scores.std(ddof=1):.2%}" if seeds > 1 else ""
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        ok &= say(
            name,
            f"{scores.mean():.2%}{deviation} at ({max(run[1] for run in runs):.4f}, {DELTA:g}), {seeds} "
            f"seeds; published {published:.1%}; {np.mean([run[2] for run in runs]):.0f} CPU-s a run, "
            f"{peak:.1f} GB; target >= {wanted:.1%}",
            # shares of 10,000 images: what is equal to the target has reached it
            bool(round(scores.mean(), 6) >= wanted),
        )
    return ok


def widths(name: str, data: Data, epsilon: float) -> None:
    """One, two and four times as many features, at one price: a random part of all, and all."""
    order = torch.randperm(data.x.shape[1], generator=torch.Generator().manual_seed(0))
    for factor in (1, 2, 4):
        kept = order[: data.x.shape[1] * factor // 4].sort().values
        part = narrowed(data, kept)
        right, _, cpu = accuracy(part, epsilon, SETTINGS[name], 0)
        say(f"{name}, width x {factor}", f"{len(kept)} features: {right:.2%}; {cpu:.0f} CPU-s")


def narrowed(data: Data, kept: Any) -> Data:
    """Return the data with these features alone, in rows of length 1 again."""
    from discreet.learning.features import Directions

    def part(rows: Any) -> Any:
        chosen = rows[:, kept].float()
        return (chosen / chosen.norm(dim=1, keepdim=True).clamp(1e-12)).half()

    matrix = torch.linalg.qr(data.directions.matrix[:, kept].T)[0].T.contiguous()
    return data._replace(x=part(data.x), x_test=part(data.x_test), directions=Directions(matrix))


def norms(name: str, data: Data, epsilon: float) -> None:
    """Normalization that pays against per-example normalization alone."""
    for share, what in ((SETTINGS[name].share, "partial whitening"), (0.0, "GroupNorm alone")):
        right, _, cpu = accuracy(data, epsilon, SETTINGS[name]._replace(share=share), 0)
        say(f"{name}, norm", f"{what}: {right:.2%}; {cpu:.0f} CPU-s")


def activations(name: str, data: Data, epsilon: float) -> None:
    """Tanh against ReLU in one hidden layer on the features (Papernot et al. 2021, arXiv:2007.14191)."""
    settings = SETTINGS[name]._replace(clip=1.0, rate=6.0)
    for activation in (torch.nn.Tanh, torch.nn.ReLU):

        def head(width: int, activation: Any = activation) -> Any:
            return torch.nn.Sequential(torch.nn.Linear(width, 32), activation(), torch.nn.Linear(32, 10))

        right, _, cpu = accuracy(data, epsilon, settings, 0, head)
        say(f"{name}, hidden layer", f"{activation.__name__}: {right:.2%}; {cpu:.0f} CPU-s")


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--data", default=os.environ.get("DISCREET_DATA", "../shared/data"), type=Path)
    parser.add_argument("--cache", default=Path(tempfile.gettempdir()), type=Path)
    parser.add_argument("--sets", nargs="+", choices=list(BARS), default=list(BARS))
    parser.add_argument("--epsilons", nargs="+", type=float, default=[])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--validate", action="store_true", help="measure on training images kept aside")
    parts = ["table", "widths", "norms", "activations"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    return parser.parse_args()


def main() -> int:
    chosen = options()
    present = [name for name in chosen.sets if (chosen.data / f"{name}.npz").exists()]
    if torch is None or not present:
        print("vision: PyTorch or the data are missing (--data is their folder); nothing was measured")
        return 0
    torch.set_num_threads(1)
    ok = True
    for name in present:
        data = prepared(name, chosen.data, chosen.cache, validate=chosen.validate)
        if "table" in chosen.parts:
            ok &= table(name, data, chosen.epsilons, chosen.seeds)
        for part, measure in (("widths", widths), ("norms", norms), ("activations", activations)):
            if part in chosen.parts:
                measure(name, data, (chosen.epsilons or list(BARS[name]))[-1])
    return 0 if ok else 1


if __name__ == "__main__":
    sys.exit(main())
