"""Estimates a graphical model from noisy tables: post-processing, which costs no privacy.

Mirror descent on the squared distance to the measured tables, weighted by their precision (McKenna, Sheldon &
Miklau 2019, arXiv:1901.09136, Algorithm 1), with momentum: on a release from the Adult dataset, 200
iterations with momentum came nearer to the tables than 1,000 without.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .graphical_model import (
    Clique,
    Floats,
    GraphicalModel,
    JunctionTree,
    marginalize,
    propagate_beliefs,
    zero_potentials,
)

# The largest estimate of the number of rows, more than any table has. Scores of tables are computed in 64-bit
# integers and must not overflow, however large the noise is.
MAX_ROWS = float(1 << 36)
# The least share of a code in the initial model, relative to 1 / (number of codes): above 0, so that descent
# can still raise it. Chosen by hand, not tuned.
_LEAST_INITIAL_SHARE = 1e-3
# If the loss rises within this many iterations after momentum was restarted, the step is too long and is
# halved; if it rises later, momentum went too far and only restarts. On a release from Adult 10 and 25 made
# no difference.
_RESTART_PATIENCE = 10
# Until the loss rises for the first time, each step is this much longer than the one before: the initial step
# is too short where a table has many cells of about equal counts. Chosen by hand, not tuned.
_STEP_GROWTH = 1.5
# The largest absolute log-potential of a measured table. It is far beyond the range of exp, and far smaller
# than |`LOG_ZERO`|: where the data break a constraint, even a precise table cannot outweigh the constraint.
_MAX_POTENTIAL = 1e5


@dataclass(frozen=True, slots=True, eq=False)
class NoisyTable:
    """Holds noisy counts by the attributes of a clique, and the variance of their noise: one number for all
    cells, or an array with one for each cell."""

    clique: Clique
    values: Floats
    variance: Any

    @property
    def total_variance(self) -> float:
        """The variance of the sum of all counts."""
        return float(np.broadcast_to(self.variance, self.values.shape).sum())


def combine_measurements(tables: Sequence[NoisyTable]) -> list[NoisyTable]:
    """Return one table for each clique: the average of its measurements, weighted by 1 / variance."""
    by_clique: dict[Clique, list[NoisyTable]] = {}
    for table in tables:
        by_clique.setdefault(table.clique, []).append(table)
    combined = []
    for clique, measurements in by_clique.items():
        precision = sum(1 / table.variance for table in measurements)
        values = sum(table.values / table.variance for table in measurements) / precision
        combined.append(NoisyTable(clique, np.asarray(values), 1 / precision))
    return combined


def estimate_total(tables: Sequence[NoisyTable]) -> float:
    """Return the estimate of the number of rows with the least variance: the average of the sums of all
    tables, weighted by 1 / variance. It is at least 1, also where nothing was measured, and at most
    `MAX_ROWS`."""
    if not tables:
        return 1.0
    precision = [1 / table.total_variance for table in tables]
    sums = [float(table.values.sum()) for table in tables]
    return min(MAX_ROWS, max(1.0, float(np.dot(precision, sums) / sum(precision))))


def project_to_simplex(values: Floats, total: float) -> Floats:
    """Return the counts nearest to `values` in l2 that are not negative and add up to `total`."""
    descending = np.sort(values)[::-1]
    # excess[k - 1], subtracted from each of the k largest values, makes these add up to `total`. The largest
    # k is taken for which none of them becomes negative; all other counts are 0.
    excess = (np.cumsum(descending) - total) / np.arange(1, len(values) + 1)
    last = int(np.flatnonzero(descending >= excess)[-1])
    return np.asarray(np.maximum(values - excess[last], 0.0))


class MeasuredTree:
    """Holds a junction tree with the tables that were measured on it, and computes the tables that a model
    with given log-potentials expects.

    `total` is the number of rows of the model. `constraints` are log-potentials by clique that stay fixed:
    public facts. `hosts` has, for each measured table, the number of the tree's clique that contains it, and
    `fixed` the log-potentials of constraints by clique of the tree.
    """

    def __init__(
        self,
        sizes: Sequence[int],
        tables: Sequence[NoisyTable],
        total: float,
        constraints: Mapping[Clique, Floats] | None = None,
    ) -> None:
        self.tables, self.total = combine_measurements(tables), total
        constraints = {} if constraints is None else constraints
        self.tree = JunctionTree.of(sizes, [*(t.clique for t in self.tables), *constraints])
        self.hosts = [self._host(t.clique) for t in self.tables]
        self.fixed = zero_potentials(self.tree)
        for clique, logs in constraints.items():
            host = self._host(clique)
            self.fixed[host] = self.fixed[host] + self._reshape(logs, clique, host)

    def _host(self, clique: Clique) -> int:
        """Return the number of the tree's clique that contains this one."""
        host = self.tree.host(clique)
        # The tree was built so that each measured table and each constraint is within one of its cliques.
        assert host is not None
        return host

    def _reshape(self, table: Floats, clique: Clique, host: int) -> Floats:
        """Return a table in the shape in which it broadcasts over the table of its host."""
        shape = tuple(self.tree.sizes[a] if a in clique else 1 for a in self.tree.cliques[host])
        return table.reshape(shape)

    def tree_potentials(self, potentials: Sequence[Floats]) -> list[Floats]:
        """Return the log-potentials of the tree's cliques: the sum of those of constraints and of
        `potentials`, one for each measured table."""
        logs = [fixed.copy() for fixed in self.fixed]
        for potential, table, host in zip(potentials, self.tables, self.hosts, strict=True):
            logs[host] += self._reshape(potential, table.clique, host)
        return logs

    def expected_tables(self, potentials: Sequence[Floats]) -> list[Floats]:
        """Return the counts that the model expects, one table for each measured table."""
        tables = propagate_beliefs(self.tree, self.tree_potentials(potentials), self.total)[0]
        return [
            marginalize(tables[host], self.tree.cliques[host], table.clique)
            for table, host in zip(self.tables, self.hosts, strict=True)
        ]

    def model(self, potentials: Sequence[Floats]) -> GraphicalModel:
        tables = propagate_beliefs(self.tree, self.tree_potentials(potentials), self.total)[0]
        return GraphicalModel(self.tree, tuple(tables), self.total)


@dataclass(frozen=True, slots=True, eq=False)
class FittedModel:
    """Holds a fitted model, and where a later fit may begin: log-potentials by measured clique, and the
    length of a step (None where nothing was measured)."""

    model: GraphicalModel
    potentials: dict[Clique, Floats]
    step: float | None = None


def mirror_descent(
    fit: MeasuredTree, *, initial: FittedModel | None = None, iterations: int = 300
) -> FittedModel:
    """Minimize the squared distance to the measured tables, weighted by 1 / variance, by entropic mirror
    descent with Nesterov's momentum on the log-potentials.

    `initial` is the result of an earlier fit. Whenever the loss would rise, the step is not taken and
    momentum restarts (O'Donoghue & Candes 2015, arXiv:1204.3982). The step grows until the first restart, and
    is halved if a restart follows the last one within `_RESTART_PATIENCE` iterations. Where nothing was
    measured the model is uniform.
    """
    if not fit.tables:
        return FittedModel(fit.model([]), {})
    # `previous_stepped` is `stepped` of the iteration before, from which momentum extrapolates.
    current = previous_stepped = _initial_potentials(fit, initial)
    expected = fit.expected_tables(current)
    loss, momentum, since_restart, growing = _loss(fit, expected), 1.0, 0, True
    step = _initial_step(fit, initial)
    for _ in range(iterations):
        gradients = [(mu - t.values) / t.variance for mu, t in zip(expected, fit.tables, strict=True)]
        stepped = [
            np.clip(p - step * g, -_MAX_POTENTIAL, _MAX_POTENTIAL)
            for p, g in zip(current, gradients, strict=True)
        ]
        next_momentum = (1 + math.sqrt(1 + 4 * momentum**2)) / 2
        extrapolation = (momentum - 1) / next_momentum
        trial = [p + extrapolation * (p - q) for p, q in zip(stepped, previous_stepped, strict=True)]
        trial_expected = fit.expected_tables(trial)
        trial_loss = _loss(fit, trial_expected)
        if trial_loss <= loss:
            step *= _STEP_GROWTH if growing and trial_loss < loss else 1
            current, previous_stepped, momentum = trial, stepped, next_momentum
            expected, loss, since_restart = trial_expected, trial_loss, since_restart + 1
        else:
            step *= 0.5 if since_restart < _RESTART_PATIENCE else 1
            previous_stepped, momentum, since_restart, growing = current, 1.0, 0, False
    by_clique = {t.clique: p for t, p in zip(fit.tables, current, strict=True)}
    return FittedModel(fit.model(current), by_clique, step)


def _initial_potentials(fit: MeasuredTree, initial: FittedModel | None) -> list[Floats]:
    """Return the log-potentials of an earlier fit where it has them, and new ones for the other tables."""
    earlier = {} if initial is None else initial.potentials
    return [
        earlier[t.clique] if t.clique in earlier else _initial_potential(t, fit.total) for t in fit.tables
    ]


def _initial_step(fit: MeasuredTree, initial: FittedModel | None) -> float:
    """Return twice the last step of an earlier fit, or 2 * (largest variance) / total, which is too long for
    most tables: descent halves it."""
    if initial is not None and initial.step is not None:
        return 2 * initial.step
    return 2 * max(float(np.max(t.variance)) for t in fit.tables) / fit.total


def _initial_potential(table: NoisyTable, total: float) -> Floats:
    """Return the log-potential to begin with: for a one-way table the logarithm of its shares after
    projection to possible counts, otherwise zero. So descent begins with independent columns, and need not
    find by itself which codes are rare."""
    if table.values.ndim != 1:
        return np.zeros(table.values.shape)
    shares = project_to_simplex(table.values, total) / total
    return np.log(np.maximum(shares, _LEAST_INITIAL_SHARE / len(shares)))


def _loss(fit: MeasuredTree, expected: Sequence[Floats]) -> float:
    """Return half the squared distance of expected tables from the measured ones, weighted by 1 /
    variance."""
    return sum(
        float((((mu - t.values) ** 2) / (2 * t.variance)).sum())
        for mu, t in zip(expected, fit.tables, strict=True)
    )
