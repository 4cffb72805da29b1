"""A copy held against the data, in every way at once: NOT private, for the steward's eyes or for public data.

Nothing here passes the curator, and nothing of it may be shown to anybody who may not see the data. What may
be shown is paid for: `quality.CopyDistance`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from .. import _require
from .._errors import InvalidInput
from ..sampling import Entropy
from ..tables import Source
from .arguments import instance
from .copy import SyntheticCopy
from .counting import Cells, count
from .drawing import Drawing, Marginal, marginal
from .junction import Clique

# Rows that are compared one with another, at most: a sample of each.
_NEAREST = 1000
_TRIPLES = 200


@dataclass(frozen=True, slots=True)
class Comparison:
    """How a copy compares with its data. Not private: computed from the rows, without noise.

    `pairs`, `triples`: mean and largest total variation of tables by two and three columns. `direct`: the
    mean total variation that pairs would have if each were measured by itself with Gaussian noise of the same
    rho (None where the price has no rho). `propensity`: the mean squared distance from 1/2 of a logistic
    regression's probability that a row is made up: 0 if it cannot tell, 1/4 if it always can. `accuracy`: of
    a logistic regression for `target`, trained on the copy and on half of the data, both on the other half.
    `nearest`: the median number of columns in which a made-up row differs from the nearest real one, and the
    share that equals one; that is no evidence of privacy, in either direction.
    """

    pairs: tuple[float, float]
    triples: tuple[float, float] | None
    direct: float | None
    propensity: float
    accuracy: tuple[float, float] | None
    nearest: tuple[float, float]
    private: bool = False
    by_pair: Mapping[tuple[str, str], float] = field(default_factory=dict)
    marginals: tuple[Marginal, ...] = ()

    def plot(self) -> Drawing:
        """Draw the total variation of every pair, and every column of the copy beside the data's. Not
        private."""
        columns = tuple(dict.fromkeys(name for pair in self.by_pair for name in pair))
        title = "NOT PRIVATE: total variation of pairs, computed from the data without noise"
        return Drawing(title, columns, self.by_pair, self.marginals, "data (not private)")

    def __str__(self) -> str:
        lines = ["NOT PRIVATE: computed from the data without noise"]
        lines.append(f"total variation of pairs     {self.pairs[0]:.4f} mean, {self.pairs[1]:.4f} largest")
        if self.triples is not None:
            lines.append(
                f"total variation of triples   {self.triples[0]:.4f} mean, {self.triples[1]:.4f} largest"
            )
        if self.direct is not None:
            lines.append(f"pairs measured one by one    {self.direct:.4f} mean, for the same price")
        lines.append(f"propensity                   {self.propensity:.4f} (0: nobody can tell, 0.25: always)")
        if self.accuracy is not None:
            lines.append(
                f"trained on copy, on data     {self.accuracy[0]:.4f}, {self.accuracy[1]:.4f} accuracy on "
                f"data"
            )
        lines.append(
            f"nearest real row             {self.nearest[0]:.0f} columns differ (median), "
            f"{self.nearest[1]:.1%} "
            f"equal one: no evidence of privacy"
        )
        return "\n".join(lines)


def compared(
    copy: SyntheticCopy, source: Source, *, target: str | None = None, rho: float | None = None, seed: int = 0
) -> Comparison:
    """Compare a copy with the data it was made from, or with other rows of the same schema. Not private."""
    instance(SyntheticCopy, copy=copy)
    if not isinstance(source, Source):
        raise _require.fail("source", type(source).__name__, "a table, such as people.curator.source")
    if source.public.schema != copy.public.schema:
        raise InvalidInput("the table has another schema than the copy: there is nothing to compare.")
    if rho is not None:
        _require.positive(rho=rho)
        if not 1e-300 < rho < 1e300:
            raise _require.fail("rho", rho, "a price that some release had")
    _require.integer(seed=seed, at_least=0)
    if len(copy.columns) < 2:
        raise InvalidInput("a copy with one column has no pairs to compare.")
    if target is not None and (not isinstance(target, str) or target not in copy.columns):
        raise InvalidInput(
            f"{target!r} is no column of the copy.{_require.did_you_mean(target, copy.columns)}"
        )
    random = np.random.default_rng(int(seed))
    domain = copy.fitted.domain
    cells = count(source, domain, source.public.unit.rows or 1, Entropy())
    made = Cells(cells.sizes, tuple(copy.codes), np.ones(copy.rows, np.int64))
    rows = [np.repeat(code, cells.counts) for code in cells.codes]
    if not len(rows[0]):
        raise InvalidInput("the table is empty: there is nothing to compare with.")
    columns = range(len(cells.sizes))
    triples = list(itertools.combinations(columns, 3))
    if len(triples) > _TRIPLES:
        triples = [triples[i] for i in random.choice(len(triples), _TRIPLES, replace=False)]
    pairs = list(itertools.combinations(columns, 2))
    codings = domain.codings(copy.public)
    return Comparison(
        pairs=_apart(cells, made, pairs),
        by_pair={(copy.columns[a], copy.columns[b]): _apart(cells, made, [(a, b)])[0] for a, b in pairs},
        marginals=tuple(marginal(c, cells.table([a]), copy.codes[a]) for a, c in enumerate(codings)),
        triples=_apart(cells, made, triples) if triples else None,
        direct=None if rho is None else _direct(cells, float(rho)),
        propensity=_propensity(rows, copy.codes, cells.sizes, random),
        accuracy=None
        if target is None
        else _accuracy(rows, copy.codes, cells.sizes, copy.columns.index(target), random),
        nearest=_nearest(rows, copy.codes, random),
    )


def _apart(data: Cells, copy: Cells, cliques: Sequence[Clique]) -> tuple[float, float]:
    distances = [
        0.5 * float(np.abs(data.table(c) / data.counts.sum() - copy.table(c) / copy.counts.sum()).sum())
        for c in cliques
    ]
    return float(np.mean(distances)), float(np.max(distances))


def _direct(data: Cells, rho: float) -> float:
    """Return the expected total variation of tables that share rho, each with its own Gaussian noise."""
    pairs = list(itertools.combinations(range(len(data.sizes)), 2))
    deviation = math.sqrt(len(pairs) / (2 * rho))
    each = [
        0.5 * math.prod(data.sizes[a] for a in p) * deviation * math.sqrt(2 / math.pi) / data.counts.sum()
        for p in pairs
    ]
    return float(np.mean(np.minimum(each, 1.0)))


def _one_hot(rows: Sequence[Any], sizes: Sequence[int], skip: int | None = None) -> NDArray[np.float64]:
    blocks = [np.eye(n)[np.asarray(c)] for a, (c, n) in enumerate(zip(rows, sizes, strict=True)) if a != skip]
    return np.hstack([*blocks, np.ones((len(rows[0]), 1))])


def _logistic(x: NDArray[np.float64], y: NDArray[Any]) -> NDArray[np.float64]:
    """Weights of a logistic regression with a small ridge."""

    def loss(w: Any) -> tuple[float, Any]:
        z = x @ w
        value = float(np.logaddexp(0, z).sum() - y @ z + w @ w / 2)
        return value, x.T @ (1 / (1 + np.exp(-np.clip(z, -500, 500))) - y) + w

    return np.asarray(minimize(loss, np.zeros(x.shape[1]), jac=True, method="L-BFGS-B").x)


def _sampled(rows: Sequence[Any], count_: int, random: np.random.Generator) -> list[Any]:
    chosen = random.permutation(len(rows[0]))[:count_]
    return [np.asarray(column)[chosen] for column in rows]


def _propensity(
    data: Sequence[Any], copy: Sequence[Any], sizes: Sequence[int], random: np.random.Generator
) -> float:
    size = min(len(data[0]), len(copy[0]), 10 * _NEAREST)
    real, made = _sampled(data, size, random), _sampled(copy, size, random)
    x = np.vstack([_one_hot(real, sizes), _one_hot(made, sizes)])
    y = np.repeat([0.0, 1.0], size)
    chance = 1 / (1 + np.exp(-(x @ _logistic(x, y))))
    return float(np.mean((chance - 0.5) ** 2))


def _accuracy(
    data: Sequence[Any], copy: Sequence[Any], sizes: Sequence[int], target: int, random: np.random.Generator
) -> tuple[float, float]:
    """Return one against the rest, trained on each and tested on the half of the data that neither saw as
    rows."""
    mixed = _sampled(data, len(data[0]), random)
    half = len(mixed[0]) // 2
    halves = [[c[:half] for c in mixed], [c[half:] for c in mixed]]
    unseen = _one_hot(halves[1], sizes, target)
    scores = []
    for rows in (copy, halves[0]):
        x = _one_hot(rows, sizes, target)
        margins = [
            unseen @ _logistic(x, (np.asarray(rows[target]) == value).astype(np.float64))
            for value in range(sizes[target])
        ]
        scores.append(float(np.mean(np.argmax(margins, axis=0) == halves[1][target])))
    return scores[0], scores[1]


def _nearest(data: Sequence[Any], copy: Sequence[Any], random: np.random.Generator) -> tuple[float, float]:
    made = np.stack(_sampled(copy, min(_NEAREST, len(copy[0])), random), axis=1)
    real = np.unique(np.stack([np.asarray(c) for c in data], axis=1), axis=0)
    least = np.array([(real != row).sum(axis=1).min() for row in made])
    return float(np.median(least)), float(np.mean(least == 0))
