"""Estimating a graphical model from noisy tables, by mirror descent on the squared distance to what was
measured
(McKenna, Sheldon & Miklau 2019, arXiv:1901.09136, Algorithm 1): post-processing, which costs no privacy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .junction import Clique, JunctionTree
from .model import Floats, GraphicalModel, beliefs, summed, uniform


@dataclass(frozen=True, slots=True, eq=False)
class NoisyTable:
    """Noisy counts by the attributes of a clique, each with noise of this variance."""

    clique: Clique
    values: Floats
    variance: float


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
    precision = [1 / (table.variance * table.values.size) for table in tables]
    sums = [float(table.values.sum()) for table in tables]
    return min(MOST_ROWS, max(1.0, float(np.dot(precision, sums) / sum(precision))))


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


@dataclass(frozen=True, slots=True, eq=False)
class Estimate:
    """A fitted model, and the potentials by measured clique that the next fit may begin with."""

    model: GraphicalModel
    parts: Parts


def mirror_descent(fit: Fit, *, begin: Parts | None = None, passes: int = 1000) -> Estimate:
    """Minimize the weighted squared distance to what was measured, by entropic mirror descent with Armijo's
    rule."""
    parts = [
        begin[t.clique] if begin is not None and t.clique in begin else np.zeros(t.values.shape)
        for t in fit.tables
    ]
    step = 2 * max(t.variance for t in fit.tables) / fit.total
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


def _loss(fit: Fit, own: Sequence[Floats]) -> float:
    return sum(
        float(((mu - t.values) ** 2).sum()) / (2 * t.variance) for mu, t in zip(own, fit.tables, strict=True)
    )
