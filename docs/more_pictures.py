"""The course's pictures of whole algorithms: special cases, sample and aggregate, generalization, DP-SGD
beside PATE, tuning.

`python -m docs.pictures` measures them with the others.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

import discreet as dp
from discreet import accounting as acc
from discreet import auditing, sampling
from discreet import mechanisms as mech
from discreet._drawing import Picture, Series
from discreet.sampling import SeededEntropy
from discreet.tables import Memory, rand_hie


def uniqueness() -> Picture:
    """Share of people who are alone with what is known of them, in the table that comes with discreet."""
    known = ["sex", "age", "site", "education", "coinsurance", "income"]
    table = rand_hie(year=1)
    counts = tuple(range(1, len(known) + 1))
    risks = [auditing.risk(table, known[:n]) for n in counts]
    series = (
        Series("alone in their class", tuple(map(float, counts)), tuple(100 * r.unique for r in risks)),
        Series("found by guessing", tuple(map(float, counts)), tuple(100 * r.average for r in risks)),
    )
    return Picture(
        title="People without names, over what is known of them",
        x_label="known: sex, + age, + site, + years of school, + plan, + income",
        y_label="people (%)",
        y_top=100.0,
        series=series,
    )


def special_cases() -> Picture:
    """The exponential mechanism with a distance score, against the law of discrete Laplace noise."""
    entropy, epsilon, draws = SeededEntropy(11), Fraction(1), 20_000
    values = np.arange(-12, 13)
    chooser = mech.ExponentialMechanism(epsilon=epsilon)
    chosen = [int(chooser.pick(-np.abs(values), entropy)) for _ in range(draws)]
    shares = np.bincount(chosen, minlength=len(values)) / draws
    # two sensitivities over epsilon: the scale of the theorem
    law = np.exp(-np.abs(values) / 2.0)
    coin = [int(chooser.pick(np.array([1, 0]), entropy)) for _ in range(draws)]
    x = tuple(map(float, values))
    return Picture(
        title=f"Exponential mechanism at epsilon 1 (of a bit it lies in {100 * np.mean(coin):.1f}%)",
        x_label="output, where the truth is 0",
        y_label="share of 20,000 choices",
        series=(
            Series("score -|output - truth|, measured", x, tuple(shares.tolist())),
            Series("Laplace law of scale 2", x, tuple((law / law.sum()).tolist()), dashed=True),
        ),
    )


def sample_and_aggregate() -> Picture:
    """The error of a correlation by sample and aggregate: few parts: much noise, many: little data."""
    rng, entropy, people = np.random.default_rng(12), SeededEntropy(12), 4000
    x = rng.normal(size=people).clip(-3, 3)
    y = (0.6 * x + 0.8 * rng.normal(size=people)).clip(-3, 3)
    public = dp.Public(schema={"x": dp.Bounds(-3, 3), "y": dp.Bounds(-3, 3)}, table="t")
    table, truth = Memory({"x": x, "y": y}, public), float(np.corrcoef(x, y)[0, 1])

    def correlation(part: Any) -> float:
        return float(np.corrcoef(part["x"].to_numpy(), part["y"].to_numpy())[0, 1])

    counts, errors = (4, 8, 16, 32, 64, 128, 256), []
    for parts in counts:
        asked = mech.SampleAndAggregate(
            public=public, columns=("x", "y"), function=correlation, parts=parts, bounds=dp.Bounds(-1, 1),
            epsilon=1, step=Fraction(1, 1000),
        )  # fmt: skip
        off = [float(asked(table, entropy=entropy).value) - truth for _ in range(40)]
        errors.append(math.sqrt(float(np.mean(np.square(off)))))
    noise = tuple(math.sqrt(2) * 2 / parts for parts in counts)
    return Picture(
        title="A correlation by sample and aggregate, 4,000 people, epsilon 1",
        x_label="parts",
        y_label="root mean squared error",
        log_x=True,
        log_y=True,
        series=(
            Series("measured", tuple(map(float, counts)), tuple(errors)),
            Series("noise alone: 2 sqrt 2 / parts", tuple(map(float, counts)), noise, dashed=True),
        ),
    )


def generalization() -> Picture:
    """An analyst who keeps what looks good: what the sample says, and what is true."""
    rng, entropy, n, repeats = np.random.default_rng(13), SeededEntropy(13), 1000, 20
    counts = (10, 30, 100, 300, 1000)
    plain, private = [], []
    for k in counts:
        said: dict[str, list[float]] = {"plain": [], "private": []}
        for _ in range(repeats):
            columns, label = rng.integers(0, 2, (n, k)), rng.integers(0, 2, n)
            right = (columns == label[:, None]).sum(axis=0)
            noise = mech.IntegerGaussian.for_privacy(
                epsilon=1, delta=1e-6, sensitivity=mech.Sensitivity(linf=1, l0=k)
            )
            told = {"plain": right, "private": np.asarray(noise(right.astype(np.int64), entropy=entropy))}
            for name, counted in told.items():
                votes = np.where(counted > n / 2, 1, -1) * (2 * columns - 1)
                said[name].append(float(((votes.sum(axis=1) > 0) == label).mean()))
        plain.append(float(np.mean(said["plain"])))
        private.append(float(np.mean(said["private"])))
    x = tuple(map(float, counts))
    return Picture(
        title="Accuracy of a vote of coins on the sample it was chosen by",
        x_label="questions asked before the vote",
        y_label="accuracy on the sample",
        log_x=True,
        y_top=0.8,
        y_bottom=0.4,
        series=(
            Series("exact answers", x, tuple(plain)),
            Series("answers of epsilon 1 in all, delta 1e-6", x, tuple(private)),
            Series("on fresh people", (x[0], x[-1]), (0.5, 0.5), dashed=True),
        ),
    )


def reusable_holdout() -> Picture:
    """The figure of Dwork et al. (Science 2015), without a signal: what each holdout tells of the vote."""
    from benchmarks._holdout_experiment import science

    plain, reusable = (science(reusable=kind, runs=20, seed=3) for kind in (False, True))
    x = tuple(map(float, plain.sizes))
    curves = {
        "training part": plain.training,
        "plain holdout": plain.holdout,
        "reusable holdout (Thresholdout)": reusable.holdout,
    }
    return Picture(
        title="Choosing and judging by one holdout",
        x_label="attributes in the vote",
        y_label="accuracy (%)",
        y_bottom=45.0,
        series=(
            *(Series(name, x, tuple(100 * shares.mean(axis=0))) for name, shares in curves.items()),
            Series("fresh people", x, tuple(100 * plain.fresh.mean(axis=0)), dashed=True),
        ),
    )


def perfect_generalization() -> Picture:
    """How well one draw tells a neighbor from a sample, and a sample from a fresh one, over the noise."""
    entropy, n, draws = SeededEntropy(14), 10_000, 4000
    scales = (Fraction(1), Fraction(4), Fraction(16), Fraction(64), Fraction(256), Fraction(1024))
    deviation = round(math.sqrt(n) / 2)
    advantages: dict[int, list[float]] = {1: [], deviation: []}
    for scale in scales:
        for gap, advantage in advantages.items():
            drawn = np.asarray(sampling.discrete_laplace(scale, 2 * draws, entropy))
            # the best test between two counts that are this far apart: a threshold in the middle
            middle = (gap + 1) // 2
            advantage.append(float((gap + drawn[:draws] >= middle).mean() - (drawn[draws:] >= middle).mean()))
    x = tuple(float(scale) for scale in scales)
    return Picture(
        title="What one noisy count of 10,000 coins gives away",
        x_label="scale of the noise",
        y_label="true minus false positives",
        log_x=True,
        y_top=1.0,
        series=(
            Series("one person more or less (privacy)", x, tuple(advantages[1])),
            Series("this sample or a fresh one (perfect generalization)", x, tuple(advantages[deviation])),
        ),
    )


def best_of_trials() -> Picture:
    """How good the best of a random number of trials is: its rank among all settings."""
    from discreet.tabular.trials import gamma_of, number_of_trials

    rng, entropy, draws, means = np.random.default_rng(16), SeededEntropy(16), 100, (2, 5, 10, 20)
    series = []
    for name, shape in (("geometric", 1.0), ("logarithmic", 0.0)):
        ranks = []
        for mean in means:
            law = acc.NegativeBinomialTrials(shape=shape, gamma=gamma_of(shape, mean))
            best = [rng.random(number_of_trials(law, entropy)).max() for _ in range(draws)]
            ranks.append(100 * float(np.mean(best)))
        series.append(Series(f"random number, {name}", tuple(map(float, means)), tuple(ranks)))
    fixed = tuple(100 * mean / (mean + 1) for mean in means)
    series.append(Series("always so many", tuple(map(float, means)), fixed, dashed=True))
    return Picture(
        title="Tuning: how good the best of a random number of trials is",
        x_label="mean number of trials",
        y_label="settings it beats (%)",
        log_x=True,
        y_top=100.0,
        series=tuple(series),
    )


def dp_sgd_and_pate() -> Picture:
    """Accuracy on scikit-learn's digits over epsilon: DP-SGD, PATE, and without privacy."""
    import torch
    from sklearn.datasets import load_digits
    from sklearn.linear_model import LogisticRegression
    from torch import nn

    from discreet import learning
    from discreet.learning.pate import Student, typical_examples

    torch.manual_seed(0)
    digits, order = load_digits(), np.random.default_rng(0).permutation(1797)
    x, y = (digits.data[order] / 16).astype(np.float32), digits.target[order].astype(np.int64)
    (private, labels), (public, test, truth) = (x[:1200], y[:1200]), (x[1200:1500], x[1500:], y[1500:])
    prices, rows = (1, 2, 4, 8), {"DP-SGD": [], "PATE": []}  # type: tuple[int, ...], dict[str, list[float]]
    for epsilon in prices:
        known = dp.Public(table="digits", size=len(private))
        trainer = learning.Trainer(
            nn.Linear(64, 10), "cross_entropy", public=known, epsilon=epsilon, delta=1e-5, clip=0.5,
            batch=200, epochs=30, optimizer=learning.SGD(lr=2.0),
        )  # fmt: skip
        model = trainer(learning.Examples(private, labels, known), entropy=SeededEntropy(epsilon)).value
        with torch.no_grad():
            guesses = model(torch.tensor(test)).argmax(1).numpy()
        rows["DP-SGD"].append(100 * float((guesses == truth).mean()))
        people = dp.open(
            learning.Examples(private, labels, dp.Public(table="digits")),
            budget=dp.Budget(epsilon=epsilon, delta=2e-5), ledger=":memory:",
        )  # fmt: skip
        labeller = people.teach(
            LogisticRegression(), teachers=40, classes=10, epsilon=epsilon, delta=1e-5, queries=30, workers=1
        )
        asked, told = typical_examples(public, 30), np.full(len(public), -1)
        told[asked] = labeller.label(public[asked])
        rows["PATE"].append(
            100 * float(Student(10, semi=True, reduce=None).fit(public, told).score(test, truth))
        )
    plain = 100 * float(LogisticRegression(max_iter=500).fit(private, labels).score(test, truth))
    axis = tuple(map(float, prices))
    return Picture(
        title="1,200 small digits: accuracy on 297 others, one run each",
        x_label="epsilon, delta 1e-5",
        y_label="right (%)",
        log_x=True,
        y_top=100.0,
        series=(
            *(Series(name, axis, tuple(shares)) for name, shares in rows.items()),
            Series("without privacy", (axis[0], axis[-1]), (plain, plain), dashed=True),
        ),
    )


PICTURES = {
    "uniqueness": uniqueness,
    "special-cases": special_cases,
    "sample-and-aggregate": sample_and_aggregate,
    "generalization": generalization,
    "reusable-holdout": reusable_holdout,
    "perfect-generalization": perfect_generalization,
    "best-of-trials": best_of_trials,
    "dp-sgd-and-pate": dp_sgd_and_pate,
}
