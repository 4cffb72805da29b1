"""`python -m docs.pictures [name ...]`: measures the course's pictures again and writes them as SVG into
docs/course/pictures.

About two minutes; random numbers are seeded, so that the files change only when the code does. (DP-SGD beside
PATE draws from the system's entropy where a labeller is started: that one changes with each run.) Two of them
train with torch (`pip install '.[learn]'`): without it the others are measured, and the exit code is 1.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import numpy as np

import discreet as dp
from discreet import accounting as acc
from discreet import auditing, local, sampling
from discreet import mechanisms as mech
from discreet._drawing import Picture, Series
from discreet.sampling import SeededEntropy

from . import accuracy_pictures, measured_pictures, more_pictures

FOLDER = Path(__file__).parent / "course" / "pictures"


def reconstruction() -> Picture:
    rng = np.random.default_rng(0)
    secret = rng.integers(0, 2, 100)
    deviations = (0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
    shares = []
    for deviation in deviations:

        def ask(chosen: object, deviation: float = deviation) -> float:
            return float(secret[np.asarray(chosen, bool)].sum() + rng.normal(scale=deviation))

        bits = auditing.reconstruct(ask, people=100, questions=400).bits
        shares.append(100 * float((bits == secret).mean()))
    series = (
        Series("right", deviations, tuple(shares)),
        Series("luck", (0.5, 32.0), (50.0, 50.0), dashed=True),
    )
    return Picture(
        title="Reconstruction from 400 noisy sums over 100 people",
        x_label="deviation of each answer's noise",
        y_label="bits that are right (%)",
        log_x=True,
        y_top=100.0,
        series=series,
    )


def beliefs() -> Picture:
    return dp.explain(1.0).plot()


def randomized_response() -> Picture:
    sizes, repeats, entropy = (100, 300, 1000, 3000, 10_000), 300, SeededEntropy(3)
    oracle = local.KaryResponse(epsilon=1, domain=2)
    noise = mech.IntegerLaplace.for_epsilon(1)
    coins, laplace = [], []
    for n in sizes:
        values = (np.arange(n) < n // 5).astype(int)
        errors = [
            float(oracle.estimate(oracle.respond(values, entropy=entropy)).value[1]) * n - n // 5
            for _ in range(repeats)
        ]
        coins.append(math.sqrt(float(np.mean(np.square(errors)))))
        drawn = np.asarray(noise(np.zeros(repeats, np.int64), entropy=entropy), float)
        laplace.append(math.sqrt(float(np.mean(drawn**2))))
    x = tuple(map(float, sizes))
    series = (Series("randomized response", x, tuple(coins)), Series("Laplace noise", x, tuple(laplace)))
    return Picture(
        title="Error of a count at epsilon 1",
        x_label="people",
        y_label="root mean squared error",
        log_x=True,
        log_y=True,
        series=series,
    )


def dimensions() -> Picture:
    entropy, sizes = SeededEntropy(4), (1, 2, 4, 8, 16, 32, 64, 128)
    deviations: dict[str, list[float]] = {"Laplace": [], "Gaussian": []}
    for d in sizes:
        laplace = mech.IntegerLaplace.for_epsilon(1, sensitivity=d)
        gaussian = mech.IntegerGaussian.for_privacy(
            epsilon=1, delta=1e-6, sensitivity=mech.Sensitivity(linf=1, l0=d)
        )
        for name, noise in (("Laplace", laplace), ("Gaussian", gaussian)):
            drawn = np.asarray(noise(np.zeros(4000, np.int64), entropy=entropy), float)
            deviations[name].append(float(np.sqrt(np.mean(drawn**2))))
    series = tuple(Series(name, tuple(map(float, sizes)), tuple(y)) for name, y in deviations.items())
    return Picture(
        title="Noise of one coordinate at epsilon 1, delta 1e-6",
        x_label="dimension",
        y_label="root mean squared error",
        log_x=True,
        log_y=True,
        series=series,
    )


def choosers() -> Picture:
    entropy, prices = SeededEntropy(5), (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2))
    scores = np.arange(16, dtype=np.int64) * 4
    kinds: dict[str, Callable[..., mech.ExponentialMechanism | mech.ReportNoisyMax | mech.PermuteAndFlip]] = {
        "exponential mechanism": mech.ExponentialMechanism,
        "noisy max": mech.ReportNoisyMax,
        "permute and flip": mech.PermuteAndFlip,
    }
    x = tuple(float(price) for price in prices)
    series = []
    for name, kind in kinds.items():
        shortfalls = []
        for price in prices:
            chosen = [int(kind(epsilon=price).pick(scores, entropy)) for _ in range(2000)]
            shortfalls.append(float(np.mean(60 - scores[chosen])))
        series.append(Series(name, x, tuple(shortfalls)))
    bound = tuple(2 / price * (math.log(16) + math.log(2)) for price in x)
    series.append(Series("theorem, half of all", x, bound, dashed=True))
    return Picture(
        title="Mean shortfall among 16 candidates",
        x_label="epsilon",
        y_label="below the best score",
        log_x=True,
        log_y=True,
        series=tuple(series),
    )


def sparse_vector() -> Picture:
    """How often all of k questions are answered rightly: k - 1 counts of 0, one of 200, threshold 100."""
    counts, repeats, entropy = (1, 3, 10, 30, 100, 300, 1000), 200, SeededEntropy(8)
    rows: dict[str, list[float]] = {"epsilons add up": [], "composed at delta 1e-6": [], "sparse vector": []}
    for k in counts:
        truth = np.append(np.zeros(k - 1, np.int64), 200)
        scales = {"epsilons add up": Fraction(k), "composed at delta 1e-6": Fraction(1 / _each(k))}
        for name, scale in scales.items():
            drawn = sampling.discrete_laplace(scale, repeats * k, entropy).reshape(repeats, k)
            rows[name].append(100 * float(((truth + drawn > 100) == (truth > 100)).all(axis=1).mean()))
        # AboveThreshold: Lap(2/epsilon) on the threshold, Lap(4/epsilon) on every question
        drawn = sampling.discrete_laplace(Fraction(4), repeats * k, entropy).reshape(repeats, k)
        limits = 100 + sampling.discrete_laplace(Fraction(2), repeats, entropy)
        said = truth + drawn > limits[:, None]
        rows["sparse vector"].append(100 * float((said == (truth > 100)).all(axis=1).mean()))
    x = tuple(map(float, counts))
    return Picture(
        title="Which of k counts is above 100? A total of epsilon 1",
        x_label="questions",
        y_label="all answered rightly (%)",
        log_x=True,
        y_top=100.0,
        series=tuple(Series(name, x, tuple(y)) for name, y in rows.items()),
    )


def _each(k: int) -> float:
    """The epsilon of each of k pure releases that add up to 1 at delta 1e-6, or by plain sums."""
    low, high = 1 / k, 1.0
    for _ in range(12):
        middle = math.sqrt(low * high)
        fits = acc.epsilon(acc.PureDP(epsilon=middle).repeated(k), delta=1e-6, accountant="pld") <= 1
        low, high = (middle, high) if fits else (low, middle)
    return low


def stability() -> Picture:
    entropy, distances = SeededEntropy(6), tuple(range(0, 31, 2))
    noise, limit = mech.IntegerLaplace.for_epsilon(1), math.log(1e6)
    shares = []
    for distance in distances:
        drawn = np.asarray(noise(np.full(2000, distance, np.int64), entropy=entropy))
        shares.append(100 * float((drawn > limit).mean()))
    enough = math.log(1e6) + math.log(1 / 0.05)
    series = (
        Series("answered", tuple(map(float, distances)), tuple(shares)),
        Series("enough for 95%, by the theorem", (enough, enough), (0.0, 100.0), dashed=True),
    )
    return Picture(
        title="How often M_stab answers at epsilon 1, delta 1e-6",
        x_label="distance to instability",
        y_label="answered (%)",
        y_top=100.0,
        series=series,
    )


def local_and_central() -> Picture:
    sizes, repeats, entropy = (100, 1000, 10_000, 100_000), 100, SeededEntropy(7)
    x = tuple(map(float, sizes))
    laplace, own, central = mech.IntegerLaplace.for_epsilon(1), [], []
    for n in sizes:
        oracle, values = local.best(epsilon=1, domain=2, people=n), (np.arange(n) < n // 5).astype(int)
        reports = (oracle.respond(values, entropy=entropy) for _ in range(repeats))
        off = [float(oracle.estimate(some).value[1]) - (n // 5) / n for some in reports]
        own.append(math.sqrt(float(np.mean(np.square(off)))))
        drawn = np.asarray(laplace(np.zeros(repeats, np.int64), entropy=entropy), float) / n
        central.append(math.sqrt(float(np.mean(drawn**2))))
    return Picture(
        title="Error of a share at epsilon 1",
        x_label="people",
        y_label="root mean squared error",
        log_x=True,
        log_y=True,
        series=(Series("local", x, tuple(own)), Series("central", x, tuple(central))),
    )


PICTURES: dict[str, Callable[[], Picture]] = (
    {
        "reconstruction": reconstruction,
        "beliefs": beliefs,
        "randomized-response": randomized_response,
        "dimensions": dimensions,
        "choosers": choosers,
        "sparse-vector": sparse_vector,
        "stability": stability,
        "local": local_and_central,
    }
    | more_pictures.PICTURES
    | measured_pictures.PICTURES
    | accuracy_pictures.PICTURES
)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m docs.pictures", description="Measures the course's pictures again."
    )
    parser.add_argument("names", nargs="*", metavar="name", help=f"all by default: {', '.join(PICTURES)}")
    names = parser.parse_args(arguments).names
    unknown = [name for name in names if name not in PICTURES]
    if unknown:
        parser.error(f"there is no picture {unknown[0]!r}; there are {', '.join(PICTURES)}")
    FOLDER.mkdir(parents=True, exist_ok=True)
    missing = 0
    for name in names or PICTURES:
        try:
            PICTURES[name]().save(FOLDER / f"{name}.svg")
        except ModuleNotFoundError as error:
            missing += 1
            print(f"{name}: needs {error.name}; pip install '.[learn]' and try again", file=sys.stderr)
        else:
            print(f"course/pictures/{name}.svg")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
