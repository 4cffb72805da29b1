"""The course's pictures of accuracy and robustness: four ways of empirical risk minimization, the theorem
about excess risk, and what poisoned rows can do.

`python -m docs.pictures` measures them with the others.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import optimize

import discreet as dp
from discreet import accounting as acc
from discreet import mechanisms as mech
from discreet import tabular
from discreet._drawing import Picture, Series
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import Memory
from discreet.tabular.perturbation import METHODS

DELTA, REPEATS = 1e-6, 10


class Study:
    """Labels that a line of length 1 explains, up to logistic noise; `excess` is the mean logistic loss of a
    model above that of the best, over the bound on the norm of a row."""

    def __init__(self, rows: int, width: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.x = rng.uniform(-1, 1, (rows, width))
        line = np.ones(width) / math.sqrt(width)
        self.signs = np.where(rng.random(rows) < 1 / (1 + np.exp(-4 * self.x @ line)), 1, -1)
        names = [f"x{i}" for i in range(width)]
        facts: dict[str, Any] = {name: dp.Bounds(-1, 1) for name in names}
        self.public = dp.Public(
            schema=facts | {"y": dp.Categories(["a", "b"])}, neighbors=dp.REPLACE, size=rows
        )
        columns = dict(zip(names, self.x.T, strict=True))
        self.table = Memory(columns | {"y": np.where(self.signs > 0, "b", "a")}, self.public)
        self.design = tabular.Design(features=tuple(names), target="y", intercept=False, clip="never")
        self.least = float(optimize.minimize(self.loss, np.zeros(width)).fun)

    def loss(self, w: Any) -> float:
        return float(np.logaddexp(0, -self.signs * (self.x @ w)).mean())

    def excess(self, method: str, epsilon: float, entropy: Entropy) -> float:
        delta: dict[str, Any] = {} if method == "objective" else {"delta": DELTA}
        learner = METHODS[method](public=self.public, design=self.design, epsilon=epsilon, **delta)
        weights = [learner(self.table, entropy=entropy).value for _ in range(REPEATS)]
        losses = [self.loss(np.array(model.weights[0])) for model in weights]  # type: ignore[union-attr]
        return (float(np.mean(losses)) - self.least) / math.sqrt(self.x.shape[1])


def four_ways() -> Picture:
    sizes, entropy = (250, 500, 1000, 2000, 4000), SeededEntropy(21)
    studies = [Study(size, 4, seed=size) for size in sizes]
    x = tuple(map(float, sizes))
    series = tuple(
        Series(method, x, tuple(study.excess(method, 1.0, entropy) for study in studies))
        for method in ("input", "output", "objective", "gradient")
    )
    return Picture(
        title="Excess risk of private logistic regression, epsilon 1, four weights",
        x_label="people",
        y_label="mean loss above the least",
        log_x=True,
        log_y=True,
        series=series,
    )


# people, weights, epsilon: one of them varies
RUNS = {
    "people": [(size, 4, 1.0) for size in (500, 1000, 2000, 4000, 8000)],
    "weights": [(2000, width, 1.0) for width in (2, 4, 8, 16, 32)],
    "epsilon": [(2000, 4, epsilon) for epsilon in (0.25, 0.5, 1.0, 2.0, 4.0)],
}


def excess_risk() -> Picture:
    entropy = SeededEntropy(22)
    series, rates, bounds = [], [], []
    for name, runs in RUNS.items():
        points = []
        for rows, width, epsilon in runs:
            rate = math.sqrt(width * math.log(1 / DELTA)) / (epsilon * rows)
            excess = Study(rows, width, seed=rows + width).excess("gradient", epsilon, entropy)
            points.append((rate, excess))
            rates.append(rate)
            facts: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "neighbors": dp.REPLACE}
            bounds.append(tabular.excess_risk(rows, width, diameter=2, **facts))
        points.sort()
        series.append(Series(f"{name} vary", tuple(p[0] for p in points), tuple(p[1] for p in points)))
    order = np.argsort(rates)
    line = Series("theorem", tuple(rates[i] for i in order), tuple(bounds[i] for i in order), dashed=True)
    return Picture(
        title="Excess risk of gradient perturbation",
        x_label="sqrt(d ln(1/delta)) / (epsilon n)",
        y_label="mean loss above the least, over Lipschitz constant",
        log_x=True,
        log_y=True,
        series=(*series, line),
    )


def poisoning() -> Picture:
    """Two answers with 130 and 70 votes, of which a poisoner replaces some: how often the first is named."""
    rows, poisoned, repeats, entropy = 200, tuple(range(0, 41, 5)), 2000, SeededEntropy(23)
    public = dp.Public(schema={"vote": dp.Categories(["a", "b"])}, neighbors=dp.REPLACE, size=rows)
    chooser = mech.ExponentialMechanism(epsilon=0.1, neighbors=dp.REPLACE)
    vote = mech.Select(
        public=public, scores=mech.Histogram(column="vote"), candidates=("a", "b"), chooser=chooser
    )
    measured, exact, certified = [], [], []
    for k in poisoned:
        table = Memory({"vote": ["a"] * (130 - k) + ["b"] * (70 + k)}, public)
        named = [vote(table, entropy=entropy).value == "a" for _ in range(repeats)]
        measured.append(100 * float(np.mean(named)))
        exact.append(100.0 * (130 - k > 70 + k))
        clean = 1 / (1 + math.exp(-0.05 * 60))
        group = acc.Group(event=vote.event, size=k) if k else acc.NoOp(neighbors=dp.REPLACE)
        certified.append(100 * acc.tradeoff(group, alpha=1 - clean))
    x = tuple(map(float, poisoned))
    return Picture(
        title="Votes of which some are poisoned, epsilon 0.1",
        x_label="poisoned rows of 200",
        y_label="the answer of the clean table (%)",
        y_top=100.0,
        series=(
            Series("private", x, tuple(measured)),
            Series("exact", x, tuple(exact)),
            Series("certificate", x, tuple(certified), dashed=True),
        ),
    )


PICTURES = {"four-ways": four_ways, "excess-risk": excess_risk, "poisoning": poisoning}
