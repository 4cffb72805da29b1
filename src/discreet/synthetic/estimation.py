"""Estimating a graphical model from noisy tables, by mirror descent on the squared distance to what was
measured
(McKenna, Sheldon & Miklau 2019, arXiv:1901.09136, Algorithm 1): post-processing, which costs no privacy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .junction import Clique, JunctionTree
from .model import Floats, GraphicalModel, beliefs, summed, uniform


@dataclass(frozen=True, slots=True, eq=False)
class NoisyTable:
    """Noisy counts by the attributes of a clique, and the variance of their noise: one for all, or one for
    each."""

    clique: Clique
    values: Floats
    variance: Any

    @property
    def variance_of_sum(self) -> float:
        """The variance of the sum of all counts."""
        return float(np.broadcast_to(self.variance, self.values.shape).sum())


def merged(tables: Sequence[NoisyTable]) -> list[NoisyTable]:
    """Return one table for each clique: the averages of what was measured several times, weighted by
    precision."""
    by_clique: dict[Clique, list[NoisyTable]] = {}
    for table in tables:
        by_clique.setdefault(table.clique, []).append(table)
    out = []
    for clique, same in by_clique.items():
        precision = sum(1 / one.variance for one in same)
        values = sum(one.values / one.variance for one in same) / precision
        out.append(NoisyTable(clique, np.asarray(values), 1 / precision))
    return out


# More rows than any table has. Scores are sums of parts of rows in 64 bits, and must not wrap, whatever the
# noise.
MOST_ROWS = float(1 << 36)


def noisy_total(tables: Sequence[NoisyTable]) -> float:
    """Return the estimate of the number of rows with the least variance, from 1 to `MOST_ROWS`."""
    precision = [1 / table.variance_of_sum for table in tables]
    sums = [float(table.values.sum()) for table in tables]
    return min(MOST_ROWS, max(1.0, float(np.dot(precision, sums) / sum(precision))))


def projected(values: Floats, total: float) -> Floats:
    """Return the nearest counts that are not negative and add up to `total` (projection on a simplex)."""
    descending = np.sort(values)[::-1]
    excess = (np.cumsum(descending) - total) / np.arange(1, len(values) + 1)
    last = int(np.flatnonzero(descending >= excess)[-1])
    return np.asarray(np.maximum(values - excess[last], 0.0))


class Fit:
    """A junction tree with what was measured on it: goes from potentials of cliques to expected tables."""

    def __init__(
        self,
        sizes: Sequence[int],
        tables: Sequence[NoisyTable],
        total: float,
        facts: Mapping[Clique, Floats] | None = None,
    ) -> None:
        self.tables, self.total = merged(tables), total
        facts = {} if facts is None else facts
        self.tree = JunctionTree.of(sizes, [*(t.clique for t in self.tables), *facts])
        self.hosts = [self._host(t.clique) for t in self.tables]
        self.start = uniform(self.tree)
        for clique, logs in facts.items():
            host = self._host(clique)
            self.start[host] = self.start[host] + self.spread(logs, clique, host)

    def _host(self, clique: Clique) -> int:
        host = self.tree.host(clique)
        assert host is not None  # the tree was triangulated for it
        return host

    def spread(self, values: Floats, clique: Clique, host: int) -> Floats:
        """Give a table the shape in which it acts on the table of its host."""
        shape = tuple(self.tree.sizes[a] if a in clique else 1 for a in self.tree.cliques[host])
        return values.reshape(shape)

    def potentials(self, parts: Sequence[Floats]) -> list[Floats]:
        """Return the potentials of the tree that has these for the measured cliques."""
        out = [one.copy() for one in self.start]
        for part, table, host in zip(parts, self.tables, self.hosts, strict=True):
            out[host] += self.spread(part, table.clique, host)
        return out

    def expected(self, parts: Sequence[Floats]) -> tuple[list[Floats], list[Floats], float]:
        """Return the tables of the tree, those of the measured cliques, and ln Z."""
        whole, log = beliefs(self.tree, self.potentials(parts), self.total)
        own = [
            summed(whole[host], self.tree.cliques[host], table.clique)
            for table, host in zip(self.tables, self.hosts, strict=True)
        ]
        return whole, own, log

    def model(self, parts: Sequence[Floats]) -> GraphicalModel:
        whole, _, _ = self.expected(parts)
        return GraphicalModel(self.tree, tuple(whole), self.total)


Parts = dict[Clique, Floats]
# What a code without a row begins with, as a part of an equal share: descent can still find it.
_LEAST_SHARE = 1e-3


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A fitted model, and the potentials by measured clique that the next fit may begin with."""

    model: GraphicalModel
    parts: Parts


def mirror_descent(fit: Fit, *, begin: Parts | None = None, passes: int = 1000) -> Estimate:
    """Minimize the weighted squared distance to what was measured, by entropic mirror descent with Armijo's
    rule."""
    first = begin or {}
    parts = [first[t.clique] if t.clique in first else _first_guess(t, fit.total) for t in fit.tables]
    step = 2 * max(float(np.max(t.variance)) for t in fit.tables) / fit.total
    _, own, _ = fit.expected(parts)
    loss = _loss(fit, own)
    for _ in range(passes):
        slopes = [(mu - t.values) / t.variance for mu, t in zip(own, fit.tables, strict=True)]
        trial = [p - step * g for p, g in zip(parts, slopes, strict=True)]
        _, moved, _ = fit.expected(trial)
        gain = sum(float(np.vdot(g, mu - nu)) for g, mu, nu in zip(slopes, own, moved, strict=True))
        now = _loss(fit, moved)
        if loss - now >= 0.5 * gain:
            parts, own, loss, step = trial, moved, now, step * 1.5
        else:
            step *= 0.5
    by_clique = {t.clique: p for t, p in zip(fit.tables, parts, strict=True)}
    return Estimate(fit.model(parts), by_clique)


def _first_guess(table: NoisyTable, total: float) -> Floats:
    """Return the potential to begin with: for a table by one attribute that of the nearest possible counts
    (together: independent columns), so that descent need not find rare codes by itself; otherwise none."""
    if table.values.ndim != 1:
        return np.zeros(table.values.shape)
    shares = projected(table.values, total) / total
    return np.log(np.maximum(shares, _LEAST_SHARE / len(shares)))


def _loss(fit: Fit, own: Sequence[Floats]) -> float:
    return sum(
        float((((mu - t.values) ** 2) / (2 * t.variance)).sum())
        for mu, t in zip(own, fit.tables, strict=True)
    )
