"""Defines the base of all methods of synthesis, which select tables, measure them and generate rows, in steps
that can be interrupted.

A method decides which tables of counts are measured. Each table is measured with exact discrete Gaussian
noise, and each choice is made by the exponential mechanism on integer scores; generating rows is
post-processing. Between steps a run keeps released values only, so a checkpoint holds no private data.
"""

from __future__ import annotations

import hashlib
import json
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Self

import numpy as np

from .. import _require
from .._errors import Halted
from .._public import PUBLIC, Public
from .._registry import described, to_json
from .._require import POSITIVE, PROBABILITY, Limit, Real, at_least
from ..accounting import Event, calibrate
from ..mechanisms import ExponentialMechanism, IntegerGaussian
from ..mechanisms.noise import failure_per_draw, gaussian_error, sqrt_down
from ..mechanisms.protocols import Release, Sensitivity, Stepped, check_source, release
from ..sampling import Entropy
from ..tables import Source
from .constraints import Constraint, refuse_contradictions
from .counting import (
    Integers,
    OccurringCells,
    count_domain_cells,
    count_sensitivity,
    plan_domain_cells,
    rows_per_unit,
)
from .estimation import NoisyTable
from .graphical_model import Clique, Groups, grouped_sizes
from .table_domain import DOMAIN, Domain, Epsilon

# A model's expected counts are rounded to multiples of 1 / GRID of a row before they are compared with
# counts. Distances and scores are then integers, in units of 1 / GRID of a row, and so exact. GRID multiplies
# scores and their sensitivity alike, so a larger one costs no privacy. Chosen by hand, not tuned.
GRID = 16
# The largest distance, in units of 1 / GRID of a row. Times the weight of a candidate of AIM (below 2^14 for
# triples of 100 columns) it fits into 64 bits. With fewer than 2^43 rows, distances come near it only where
# the model is nothing but noise.
_MAX_DISTANCE = 1 << 48
# The range in which rho is calibrated: wide enough for every `Epsilon`.
RHO_BRACKET = (1e-30, 1e15)


@described("synthetic.MeasuredTable")
class MeasuredTable:
    """Holds a released table of noisy counts: `values` in row-major order, by the columns whose positions are
    in `clique`, and the `variance` of their noise."""

    clique: Clique
    values: tuple[int, ...]
    variance: Fraction

    def noisy(self, sizes: Sequence[int]) -> NoisyTable:
        """Return the table as an array, for columns with this many codes."""
        shape = tuple(sizes[a] for a in self.clique)
        return NoisyTable(
            self.clique, np.array(self.values, dtype=np.float64).reshape(shape), float(self.variance)
        )

    def by_all_codes(self, groups: Sequence[Groups]) -> bool:
        """Return whether this is a one-way table of a grouped column, measured before it was grouped."""
        group = groups[self.clique[0]] if groups and len(self.clique) == 1 else ()
        return bool(group) and len(self.values) == len(group)

    def noisy_by_group(self, sizes: Sequence[int], groups: Sequence[Groups]) -> NoisyTable:
        """Return the table in the codes of the model, which are groups where a column is grouped: a one-way
        table that was measured by all codes is summed to groups, others were measured by groups already."""
        if not self.by_all_codes(groups):
            return self.noisy(grouped_sizes(groups, sizes))
        group = groups[self.clique[0]]
        return NoisyTable(
            self.clique,
            np.bincount(group, weights=np.array(self.values, dtype=np.float64)).astype(np.float64),
            float(self.variance) * np.bincount(group),
        )


@described("synthetic.Fitted")
class Fitted:
    """Holds all that a synthesis released: which tables were measured, and their noisy counts.

    `groups`: for each column the number of the group of each code, empty where codes are not grouped; the
    whole is empty where no column is grouped. `choices`: the tables that the method selected, in order.
    """

    public: Public
    domain: Domain
    method: str
    tables: tuple[MeasuredTable, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    choices: tuple[tuple[int, ...], ...] = ()
    constraints: tuple[Constraint, ...] = ()

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of codes of each column, after grouping."""
        return grouped_sizes(self.groups, self.domain.sizes(self.public))


@dataclass(slots=True)
class State:
    """Holds what a run has released so far, and `facts` that follow from it, such as the number of finished
    steps. `cache` holds what can be computed again, and is not saved. The keys of `dump` and of `facts` stand
    in checkpoints: they must not change."""

    tables: list[MeasuredTable] = field(default_factory=list)
    groups: list[tuple[int, ...]] = field(default_factory=list)
    choices: list[Clique] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=dict)
    cache: dict[str, Any] = field(default_factory=dict)

    def dump(self) -> bytes:
        """Return the state as JSON: what a checkpoint holds."""
        tables = [[t.clique, t.values, str(t.variance)] for t in self.tables]
        body = {"tables": tables, "groups": self.groups, "choices": self.choices, "facts": self.facts}
        return json.dumps(body).encode()

    @classmethod
    def load(cls, raw: bytes) -> State:
        """Return the state that `dump` wrote."""
        body = json.loads(raw)
        tables = [
            MeasuredTable(clique=tuple(clique), values=tuple(counts), variance=Fraction(variance))
            for clique, counts, variance in body["tables"]
        ]
        groups, choices = ([tuple(item) for item in body[name]] for name in ("groups", "choices"))
        return cls(tables, groups, choices, body["facts"])


def _as_constraint(**named: Any) -> Constraint:
    """Return a constraint, which may be given as a text."""
    ((name, constraint),) = named.items()
    return Constraint.parse(constraint, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesizer(Stepped):
    """Selects and measures tables of counts: the base of all methods. Runs at once (as a `Mechanism` of
    `mechanisms.protocols`), or in steps (`Stepped`).

    `rho` is the price of the run in zCDP, of which each choice and each table gets a fixed or adaptive share;
    `for_privacy` finds the largest rho for an epsilon and delta, and keeps these two. `rows_per_unit`: how
    many rows of one unit count, where a column names the unit of a row.
    """

    method: ClassVar[str]
    # The error of the release is that of its noisy counts, because a model has no single error of its own.
    error_in_scores: ClassVar[bool] = True
    public: Annotated[Public, PUBLIC]
    domain: Annotated[Domain, DOMAIN]
    rho: Annotated[Real, POSITIVE]
    rows_per_unit: Annotated[int, at_least(1)] = 1
    constraints: tuple[Annotated[Constraint, Limit(_as_constraint)], ...] = ()
    epsilon: Annotated[Real, POSITIVE] | None = None
    delta: Annotated[float, PROBABILITY] = 0.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows_per_unit", rows_per_unit(self.public, self.rows_per_unit))
        self.domain.codings(self.public)
        for constraint in self.constraints:
            constraint.check(self.public, self.domain)
        refuse_contradictions(self.public, self.domain, self.constraints)

    @classmethod
    @_require.check_options
    def for_privacy(
        cls, public: Public, domain: Domain, *, epsilon: Epsilon, delta: float, **options: Any
    ) -> Self:
        """Return the method with the largest rho for which its event is (epsilon, delta)-DP."""
        _require.that(
            0 < delta < 1,
            f"delta must be between 0 and 1, got {delta!r}: the tables carry Gaussian noise. Give "
            "delta=1e-9, or open the table with a budget that has a delta.",
        )
        target = float(epsilon)

        def event(rho: float) -> Event:
            return cls(public=public, domain=domain, rho=rho, **options).event

        rho = calibrate(event, epsilon=target, delta=delta, bracket=RHO_BRACKET, tolerance=1e-3)
        return cls(public=public, domain=domain, rho=rho, epsilon=epsilon, delta=delta, **options)

    @property
    def asked(self) -> tuple[Real, float] | None:
        """The epsilon and delta that `for_privacy` was called with; None where rho was given."""
        return None if self.epsilon is None else (self.epsilon, self.delta)

    @property
    @abstractmethod
    def event(self) -> Event:
        """The price of a complete run, whatever it releases on the way."""

    @property
    @abstractmethod
    def length(self) -> int:
        """The number of steps."""

    @property
    def period(self) -> int:
        """The number of steps between two points at which a run can be stopped and resumed."""
        return 1

    @abstractmethod
    def advance(self, state: State, cells: OccurringCells, step: int, entropy: Entropy) -> None:
        """Take step number `step`, from 0 on: read the exact `cells`, and add what is released to `state`."""

    @property
    def sizes(self) -> tuple[int, ...]:
        """The number of codes of each column, before grouping."""
        return self.domain.sizes(self.public)

    @property
    def count_sensitivity(self) -> Sensitivity:
        """The sensitivity of a table of counts by any columns."""
        return count_sensitivity(self.public, self.rows_per_unit)

    @property
    def _count_l1(self) -> int:
        """The l1 sensitivity of a table of counts by any columns."""
        l1 = self.count_sensitivity.l1
        # `Sensitivity` computes it where it is not given.
        assert l1 is not None
        return l1

    @property
    def exact_rho(self) -> Fraction:
        """The rho as a fraction, without rounding."""
        return _require.exact(self.rho, "rho")

    def noise(self, rho: Fraction) -> IntegerGaussian:
        """Return the noise with which measuring one table costs rho."""
        return IntegerGaussian.for_rho(
            rho, sensitivity=self.count_sensitivity, neighbors=self.public.neighbors
        )

    def exponential_mechanism(self, rho: Fraction, sensitivity: int) -> ExponentialMechanism:
        """Return the exponential mechanism that costs rho: a choice of bounded range epsilon is
        (epsilon^2 / 8)-zCDP (Cesar & Rogers 2021, arXiv:2004.07223, Lemma 3.4)."""
        # Rounded down, so that the price is at most rho.
        epsilon = sqrt_down(8 * rho)
        return ExponentialMechanism(epsilon=epsilon, sensitivity=sensitivity, neighbors=self.public.neighbors)

    def measure(
        self, state: State, cells: OccurringCells, clique: Clique, noise: IntegerGaussian, entropy: Entropy
    ) -> MeasuredTable:
        """Measure the table by the columns of a clique with noise, and add it to the state."""
        values = noise(cells.table(clique).ravel(), entropy=entropy)
        table = MeasuredTable(
            clique=tuple(clique), values=tuple(int(v) for v in values), variance=noise.variance
        )
        state.tables.append(table)
        return table

    def distance(self, counts: Integers, expected: Any) -> int:
        """Return the l1 distance of exact counts from a model's, an exact integer in units of 1 / GRID of a
        row.

        Guarantee: one unit moves it by at most GRID times the l1 sensitivity of the counts.
        Proof:     `grid_distance`.
        """
        return grid_distance(counts, np.asarray(expected) * GRID)

    def rehearse(self, source: Source) -> None:
        """Let the engine plan the query that counts the cells, before anything is charged."""
        plan_domain_cells(source, self.domain, self.rows_per_unit)

    def start(self, source: Source, *, entropy: Entropy) -> SynthesisRun:
        """Return a run at its first step."""
        check_source(self.public, source)
        return SynthesisRun(self, source, State(facts={"of": self._fingerprint()}), 0, entropy)

    def restore(self, source: Source, raw: bytes, steps_taken: int, *, entropy: Entropy) -> SynthesisRun:
        """Return a run that goes on from a checkpoint.

        `steps_taken` is the number of steps that were begun. Those that the checkpoint does not hold are
        lost: they count as run, and are not run again.
        """
        check_source(self.public, source)
        state = State.load(raw)
        _require.that(
            state.facts.get("of") == self._fingerprint(),
            "the checkpoint is of a synthesis with other options. Give those that it was started with.",
        )
        lost = count_lost_steps(int(state.facts.get("steps", 0)), steps_taken)
        self.forfeit(state, lost)
        return SynthesisRun(self, source, state, steps_taken, entropy)

    def _fingerprint(self) -> str:
        """Return a hash of the method and its options, all public."""
        return hashlib.sha256(json.dumps(to_json(self), sort_keys=True).encode()).hexdigest()

    def forfeit(self, state: State, steps: int) -> None:
        """Count the next `steps` as run: they were begun before a crash, and what they released is lost.

        Where each step has a fixed price, which does not depend on the steps before it, nothing is to do.
        """

    def fitted(self, state: State) -> Fitted:
        """Return what a finished run releases."""
        return Fitted(
            public=self.public,
            domain=self.domain,
            method=self.method,
            tables=tuple(state.tables),
            groups=tuple(state.groups),
            choices=tuple(state.choices),
            constraints=self.constraints,
        )


def grid_distance(counts: Integers, expected: Any) -> int:
    """Return the l1 distance of exact counts from expected ones, an exact integer in units of 1 / GRID of a
    row, and at most `_MAX_DISTANCE`.

    `counts` are in rows, and `expected` is in units of 1 / GRID of a row already.

    Guarantee: one unit moves it by at most GRID times the l1 sensitivity of the counts.
    Proof:     the triangle inequality: `expected` is computed from released values, so it is the same for
               neighbors, and the minimum of a number and a constant moves no further than the number. Under a
               tiny budget expected counts can exceed 64 bits; they are clipped to a limit at which no
               difference, and no sum of all differences, overflows.
    """
    limit = float((1 << 62) // max(1, counts.size))
    rounded = np.rint(np.clip(np.nan_to_num(expected), -limit, limit)).astype(np.int64)
    return min(_MAX_DISTANCE, int(np.abs(counts * GRID - rounded).sum()))


def count_lost_steps(steps_saved: int, steps_taken: int) -> int:
    """Return how many steps were begun, but are not in the checkpoint.

    Refused where the checkpoint holds more steps than were begun: steps that it holds would be run again.
    """
    _require.that(
        steps_taken >= steps_saved,
        f"the checkpoint holds {steps_saved:,} steps, but steps_taken is {steps_taken:,}. Give the "
        "number of steps that were begun.",
    )
    return steps_taken - steps_saved


def refuse_further_steps(steps_taken: int, length: int) -> None:
    """Refuse a step beyond the last one: only `length` steps are paid for."""
    if steps_taken >= length:
        raise Halted(f"all {length:,} steps are taken.")


class SynthesisRun:
    """Runs a synthesis step by step. The cells are counted once, when the first step begins.

    A step counts as taken when it begins: one that fails, or is interrupted, may have released something
    already, and is not run again.
    """

    def __init__(
        self, method: Synthesizer, source: Source, state: State, steps_taken: int, entropy: Entropy
    ) -> None:
        self.method, self.source, self.state = method, source, state
        self.steps_taken, self.entropy = steps_taken, entropy
        self._cells: OccurringCells | None = None

    @property
    def progress(self) -> dict[str, int]:
        """Public facts: steps taken, steps in all, and tables released so far."""
        return {"step": self.steps_taken, "steps": self.method.length, "tables": len(self.state.tables)}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        return None

    def step(self) -> None:
        """Take the next step; refused when all are taken."""
        refuse_further_steps(self.steps_taken, self.method.length)
        step = self.steps_taken
        self.steps_taken += 1
        if self._cells is None:
            rows = self.method.rows_per_unit
            self._cells = count_domain_cells(self.source, self.method.domain, rows, self.entropy)
        self.method.advance(self.state, self._cells, step, self.entropy)
        self.state.facts["steps"] = self.steps_taken

    def dump(self) -> bytes:
        """Return the checkpoint."""
        return self.state.dump()

    def release(self) -> Release:
        """Return what was released, with its event and its error."""
        return release(
            self.method.fitted(self.state),
            event=self.method.event,
            entropy=self.entropy,
            error=self._error,
            error_in_scores=True,
        )

    def _error(self, confidence: float) -> int:
        """Return a bound that all released counts keep together: with probability `confidence` none is
        further from the true count. It depends on released values only."""
        counts = sum(len(table.values) for table in self.state.tables)
        if not counts:
            return 0
        failure = failure_per_draw(confidence, counts)
        return max(gaussian_error(v, failure) for v in {t.variance for t in self.state.tables})
