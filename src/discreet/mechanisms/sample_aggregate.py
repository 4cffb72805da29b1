"""Sample and aggregate: any function of a table is made private by running it on many small parts, of which
one person can change only few.

`SampleAndAggregate` cuts the table into disjoint random parts and takes a private mean or median of their
answers. `SubsampleAggregateStable` (M_samp) runs the function on many overlapping subsamples and releases the
answer that most of them agree on, exactly, if the majority is clear; otherwise None. The function is
the steward's, who is trusted with the data; it sees only its part, and needs no bound on its sensitivity.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .. import _require, sampling
from .._errors import InvalidInput
from .._public import REPLACE, Bounds, Public
from .._registry import described
from .._require import Real
from ..accounting import ApproximateDP, DiscreteLaplace, Event, PureDP
from ..sampling import Entropy
from ..tables import Source
from . import _order, arrow_columns, certified
from .noise import draw
from .protocols import Release, check_source, release, require_columns
from .smooth import SmoothNoise, noisy_median, smooth_noise
from .stability import check_budget

Ints = NDArray[np.int64]


@described("mechanisms.PartMean")
@dataclass(frozen=True, slots=True, kw_only=True)
class PartMean:
    """Computes the mean of a column in one part; None where it has no value.

    A function with a description, for `SampleAndAggregate`.
    """

    column: str

    def __call__(self, part: Any) -> float | None:
        # slow to load
        import pyarrow.compute as pc

        mean = pc.mean(part.column(self.column)).as_py()
        return None if mean is None else float(mean)


@described("mechanisms.PartMode")
@dataclass(frozen=True, slots=True, kw_only=True)
class PartMode:
    """Computes the most frequent value of a column in one part; of several, the smallest.

    For `SubsampleAggregateStable`.
    """

    column: str

    def __call__(self, part: Any) -> Hashable:
        # slow to load
        import pyarrow.compute as pc

        counts = pc.value_counts(pc.drop_null(part.column(self.column))).to_pylist()
        return (
            min(counts, key=lambda entry: (-entry["counts"], entry["values"]))["values"] if counts else None
        )


@described("mechanisms.SampleAndAggregate")
@dataclass(frozen=True, slots=True, kw_only=True)
class SampleAndAggregate:
    """Releases a private mean or median of what `function` returns for each of `parts` disjoint random parts:
    sample and aggregate.

    Answers are clipped to `bounds` and put on a grid of `step`; a part whose answer is missing, not finite,
    not hashable (such as a NumPy array) or an exception counts as the middle of the bounds, and so does a
    part without rows, for which `function` is not called.
    `aggregate` is "mean" (discrete Laplace noise) or "median" (`SmoothNoise`, pure, or approximate with
    `delta`).

    Guarantee: the event of the noise: epsilon-DP, or (epsilon, delta)-DP with `delta`, under every relation
               and for every unit.
    Proof:     each unit goes to a part chosen for it alone, whatever the others are: independently and
               uniformly for rows (a draw for each position: positions move when a row leaves, but draws that
               are independent and alike are so for the rows in any order), by a keyed hash of its name for
               units of many rows. Rows come to the function in an order drawn at random, so that nothing of
               where a row was stored, or when the engine came to it, reaches a part that it is not in. Given
               these choices, two neighbors differ in one part, so in one of the `parts` answers, which the
               bounds confine: their sum moves by at most the width of the grid, and their median is that of a
               table of public size in which one value was replaced (`_order`). Nissim, Raskhodnikova & Smith
               2007, Section 4. (An empty table's columns have no type; its parts are not shown to the
               function, and neither are the empty ones of a table of one row.)
    Assumes:   `function` looks at nothing but its part. What it costs in time, and whether it ends, is not
               hidden.
    """

    public: Public
    columns: tuple[str, ...]
    function: Callable[[Any], Any]
    parts: int
    bounds: Bounds
    epsilon: Real
    delta: float | None = None
    step: Real = 1
    aggregate: str = "mean"

    def __post_init__(self) -> None:
        arrow_columns.require_public(self.public)
        object.__setattr__(self, "columns", check_columns(self.columns))
        object.__setattr__(self, "step", arrow_columns.as_step(self.step))
        check_function(self.function, self.columns)
        _require.integer(parts=self.parts, at_least=1)
        _require.positive(epsilon=self.epsilon)
        _require.one_of(("mean", "median"), aggregate=self.aggregate)
        if self.aggregate == "mean" and self.delta is not None:
            raise _require.fail(
                "delta", self.delta, "None: the mean has Laplace noise and is purely epsilon-DP"
            )
        if self._grid.low == self._grid.high:
            raise _require.fail("step", self.step, "small enough that the bounds are a step apart")
        self._noise  # noqa: B018 - checks epsilon and delta

    def rehearse(self, source: Source) -> None:
        """Refuse columns that are not there: none need be declared."""
        require_columns(source, *self.columns)

    @property
    def _grid(self) -> arrow_columns.ColumnGrid:
        return arrow_columns.ColumnGrid(self.bounds, arrow_columns.as_step(self.step), "of answers")

    @property
    def _noise(self) -> SmoothNoise | Fraction:
        """The noise of a median, or the scale of the discrete Laplace noise on the sum of a mean."""
        if self.aggregate == "median":
            # 3 is the power of the polynomial noise without delta; see `smooth`
            return smooth_noise(self.epsilon, self.delta, 3)
        return (self._grid.high - self._grid.low) / _require.exact(self.epsilon, "epsilon")

    @property
    def event(self) -> Event:
        noise, relation = self._noise, self.public.neighbors
        if isinstance(noise, Fraction):
            return DiscreteLaplace(
                scale=noise, sensitivity=self._grid.high - self._grid.low, neighbors=relation
            )
        if self.delta is None:
            return PureDP(epsilon=self.epsilon, neighbors=relation)
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=relation)

    def error(self, confidence: float = 0.95) -> float:
        """Return how far the release may be from the mean or median of the parts' answers, with probability
        `confidence` (not from the function of the whole table, which nobody computes).

        For a median it is a bound for all tables, since the true error depends on the data.
        """
        _require.open_probability(confidence=confidence)
        noise, step = self._noise, arrow_columns.as_step(self.step)
        if not isinstance(noise, Fraction):
            return float(noise.error(self._grid.high - self._grid.low, confidence) * step)
        reached = certified.laplace_quantile(noise, (1 - _require.exact(confidence, "confidence")) / 2) - 1
        return _require.float_or_inf(reached * step / self.parts)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        table, units, names = read_units(source, self.columns)
        chosen = self._assign(len(units), names, entropy)
        part_of = chosen[units] if names is not None else chosen
        order = sampling.permutation(len(units), entropy)
        table, part_of = table.take(pa.array(order)), part_of[order]
        answers = self._on_grid([self._answer(table, part_of == part) for part in range(self.parts)])
        step, noise = arrow_columns.as_step(self.step), self._noise
        if isinstance(noise, Fraction):
            noisy = arrow_columns.exact_sum(answers) + draw(noise, entropy)
            value = min(max(noisy * step / self.parts, self._grid.low * step), self._grid.high * step)
            return release(float(value), event=self.event, entropy=entropy, error=self.error)
        code = noisy_median(_order.Ordered(np.sort(answers), self._grid.low, self._grid.high), noise, entropy)
        return release(float(code * step), event=self.event, entropy=entropy, error=self.error)

    def _assign(self, rows: int, names: list[Any] | None, entropy: Entropy) -> Ints:
        """Return the part of each row, or of each named unit."""
        if names is None:
            return np.asarray(sampling.uniform_below(self.parts, rows, entropy), dtype=np.int64)
        key = entropy.bytes(32)
        digests = (hashlib.blake2b(repr(name).encode(), key=key, digest_size=16).digest() for name in names)
        return np.array([int.from_bytes(digest, "little") % self.parts for digest in digests], np.int64)

    def _answer(self, table: Any, members: NDArray[np.bool_]) -> float:
        """Return the function's answer on some rows as a float; NaN where it fails or is no number."""
        answer = quietly(self.function, table.take(pa.array(np.flatnonzero(members))))
        try:
            return float(answer)
        # whatever `__float__` raises depends on the part
        except Exception:
            return math.nan

    def _on_grid(self, answers: list[float]) -> Ints:
        values = np.array(answers, np.float64)
        middle = (self._grid.low + self._grid.high) // 2
        finite = np.isfinite(values)
        return np.where(finite, self._grid(np.where(finite, values, 0.0)), middle)


@described("mechanisms.SubsampleAggregateStable")
@dataclass(frozen=True, slots=True, kw_only=True)
class SubsampleAggregateStable:
    """Releases the answer most subsamples agree on, exactly, if the majority is clear; else None: subsample
    and aggregate (M_samp).

    Each of n_T = `subsamples` subsamples keeps every unit with probability g = `rate`; one that keeps no row
    answers None, and `function` is not called. By default g = epsilon
    / (32 ln(1/delta)) and n_T = ln(n/delta) / g^2 with the declared size n, the constants of the lecture
    notes: then, if `function` gives its answer on three quarters of the subsamples, that answer is released
    with probability at least 1 - 3 delta (Smith & Thakurta 2013; Dwork & Roth 2014, Section 7.3). That
    is a great many subsamples; `enough_subsamples` says how few will do.

    Guarantee: (epsilon, delta)-DP, whatever n, `rate` and `subsamples` are.
    Proof:     a unit may be in at most C = floor(2 g n_T) subsamples; if one is in more, None is released.
               Let G be the difference of the two largest counts of equal answers, and K = 2C. Released is the
               commonest answer if G - K + noise reaches m, with discrete Laplace noise of scale K/epsilon; m
               is the smallest integer that noise alone reaches with probability at most d2. This is the test
               (G / 4 g n_T) - 1 + Lap(1/epsilon) > ln(1/delta)/epsilon of the papers in whole counts. Let x
               be the unit in which neighbors differ; let all others be in the same subsamples for both. If
               one of them is in more than C, both say None. Suppose x is in at most C. Then at most C answers
               differ, each of the two largest counts differs by at most C, and G by at most K. If the
               commonest answer is the same, the output is post-processing of G plus noise: epsilon. If not, G
               <= K on both, and both say None except with probability d2. Under replace, x is in the same
               subsamples on both sides, and if in too many both say None. Under add_remove and zero_out, x is
               in more than C with probability at most d1 = min(exp(-2 g^2 n_T), (e/4)^(g n_T)) (Hoeffding;
               Chernoff), independently of all others. So delta = d1 + d2 suffices; only one unit's chance
               enters, not n of them: the size matters for success, not for privacy.
    Assumes:   `function` depends on nothing but its subsample. What it costs in time, and whether it ends, is
               not hidden.
    """

    public: Public
    columns: tuple[str, ...]
    function: Callable[[Any], Hashable]
    epsilon: Real
    delta: float
    rate: Real | None = None
    subsamples: int | None = None

    def __post_init__(self) -> None:
        arrow_columns.require_public(self.public)
        object.__setattr__(self, "columns", check_columns(self.columns))
        check_function(self.function, self.columns)
        check_budget(self.epsilon, self.delta)
        if self.rate is not None:
            _require.open_probability(rate=self.rate)
        if self.subsamples is not None:
            _require.integer(subsamples=self.subsamples, at_least=1)
        self.reach  # noqa: B018 - computes everything else, and refuses what cannot work

    def rehearse(self, source: Source) -> None:
        """Refuse columns that are not there: none need be declared."""
        require_columns(source, *self.columns)

    @property
    def exact_rate(self) -> Fraction:
        if self.rate is not None:
            return _require.exact(self.rate, "rate")
        default = float(self.epsilon) / (32 * math.log(1 / self.delta))
        if not default < 1:
            raise _require.fail("epsilon", self.epsilon, "below 32 ln(1/delta), or give a rate")
        rate = Fraction(default).limit_denominator(10**9)
        if not 0 < rate < 1:
            raise _require.fail(
                "epsilon", self.epsilon, "such that the default rate is not 0 or 1; give a rate"
            )
        return rate

    @property
    def count(self) -> int:
        """n_T, the number of subsamples."""
        if self.subsamples is not None:
            return int(self.subsamples)
        size = self.public.declared_size("the default number of subsamples")
        return math.ceil(math.log(size / self.delta) / float(self.exact_rate) ** 2)

    @property
    def max_load(self) -> int:
        """C: a unit in more subsamples than this makes the release None."""
        return math.floor(2 * self.exact_rate * self.count)

    @property
    def overload(self) -> Fraction:
        """d1: a bound on the chance that the one unit in which neighbors differ is in too many subsamples."""
        if self.public.neighbors is REPLACE:
            return Fraction(0)
        rate, count = self.exact_rate, self.count
        # 2 ln 2 - 1 = 0.38629436111...
        chernoff = rate * count * Fraction(386_294_361, 10**9)
        return 1 / certified.exp_bounds(min(max(2 * rate**2 * count, chernoff), Fraction(10_000)))[0]

    @property
    def reach(self) -> int:
        """m, the least value of G - K + noise at which the answer is released."""
        delta_left = _require.exact(self.delta, "delta") - self.overload
        if self.max_load < 1 or delta_left <= 0:
            raise InvalidInput(
                f"{self.count} subsamples at rate {float(self.exact_rate):.4g} are too few: a unit "
                f"is in too many of them with "
                f"probability up to {float(self.overload):.3g}, of delta={float(self.delta):g}. "
                f"Nothing was read. Take more (`enough_subsamples`)."
            )
        return certified.laplace_quantile(self._scale, delta_left)

    @property
    def _scale(self) -> Fraction:
        return 2 * self.max_load / _require.exact(self.epsilon, "epsilon")

    @property
    def event(self) -> Event:
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=self.public.neighbors)

    def error(self, confidence: float = 0.95) -> int:
        """Return a lead, in subsamples: if the commonest answer leads by so many, and no unit is in too many,
        it is released with `confidence`."""
        _require.open_probability(confidence=confidence)
        noise_bound = (
            certified.laplace_quantile(self._scale, 1 - _require.exact(confidence, "confidence")) - 1
        )
        return 2 * self.max_load + self.reach + noise_bound

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        table, units, names = read_units(source, self.columns)
        number = len(units) if names is None else len(names)
        order = sampling.permutation(len(units), entropy)
        table, units = table.take(pa.array(order)), units[order]
        seen = np.zeros(number, np.int64)
        counts: dict[CanonicalAnswer, int] = {canonical_answer(None): 0}
        rate = self.exact_rate
        for _ in range(self.count):
            kept = sampling.poisson_subset(number, rate, entropy)
            seen[kept] += 1
            answer = canonical_answer(
                quietly(self.function, _rows_of(table, units, kept, number, names is None))
            )
            counts[answer] = counts.get(answer, 0) + 1
        ranked = sorted(counts.values(), reverse=True)
        lead = ranked[0] - (ranked[1] if len(ranked) > 1 else 0)
        passed = lead - 2 * self.max_load + draw(self._scale, entropy) >= self.reach
        # Only units that have rows: the unit of rows without a name is in subsamples even where no row is so.
        overloaded = bool((seen[units] > self.max_load).any())
        winner = max(counts, key=lambda answer: counts[answer])
        value = winner[0] if passed and not overloaded else None
        return release(value, event=self.event, entropy=entropy)


def enough_subsamples(size: int, rate: Real, delta: float) -> int:
    """Return a number of subsamples with which the chance that any of `size` units is in more than twice its
    share of them is at most delta.

    It is ln(size/delta) / (rate (2 ln 2 - 1)), by Chernoff's bound. The default of
    `SubsampleAggregateStable`, ln(size/delta) / rate^2, follows from Hoeffding's bound and is larger.
    """
    _require.integer(size=size, at_least=1)
    _require.open_probability(rate=rate, delta=delta)
    return math.ceil(math.log(size / delta) / (float(rate) * 0.386294361) * (1 + 1e-12)) + 1


def read_units(source: Source, columns: tuple[str, ...]) -> tuple[Any, Ints, list[Any] | None]:
    """Return the table of `columns`, for each row the number of its unit, and the names of units (None where
    a row is a unit)."""
    unit = source.public.unit.column
    wanted = list(columns) if unit is None or unit in columns else [*columns, unit]
    batches = list(source.batches(wanted))
    table = pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in wanted})
    if unit is None:
        return table.select(list(columns)), np.arange(table.num_rows, dtype=np.int64), None
    names, units = _units_of(table.column(unit))
    return table.select(list(columns)), units, names


def _units_of(column: Any) -> tuple[list[Any], Ints]:
    """Return the names of units, and the position of each row's unit among them."""
    # slow to load
    import pyarrow.compute as pc

    encoded = arrow_columns.one_name_each(column.combine_chunks()).dictionary_encode()
    # rows without a name are one unit
    names = [*encoded.dictionary.to_pylist(), None]
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), len(names) - 1).to_numpy(zero_copy_only=False)
    return names, codes.astype(np.int64)


def _rows_of(table: Any, units: Ints, kept: Ints, number: int, by_rows: bool) -> Any:
    """Return the rows of the units that a subsample keeps."""
    if by_rows:
        return table.take(pa.array(kept))
    chosen = np.zeros(number, bool)
    chosen[kept] = True
    return table.take(pa.array(np.flatnonzero(chosen[units])))


def quietly(function: Callable[[Any], Any], part: Any) -> Any:
    """Return the function's answer, or None where it raises, its answer is not hashable, or the part has no
    rows.

    An exception that got out would be a release that depends on one part. A part without rows looks different
    in an empty table, whose columns have no type: every part would tell that there is no row anywhere.
    """
    if part.num_rows == 0:
        return None
    try:
        answer = function(part)
        hash(answer)
    except Exception:
        return None
    return answer


CanonicalAnswer = tuple[Any, str]


def canonical_answer(answer: Any) -> CanonicalAnswer:
    """Return an answer with its repr, so that only answers that are written alike are counted as one.

    0.0 and -0.0 are equal, and so are 1 and True: counted as one, which of the two is released would depend
    on a single subsample.
    """
    try:
        return answer, repr(answer)
    except Exception:
        return None, "None"


def check_columns(columns: Any) -> tuple[str, ...]:
    if not all(isinstance(name, str) for name in _require.listed(columns=columns)):
        raise _require.fail("columns", columns, "a list of column names")
    _require.non_empty(columns=columns)
    return tuple(columns)


def check_function(function: Any, columns: tuple[str, ...]) -> None:
    """Refuse what is no function of a part, or a described one of a column that its part does not have."""
    if not callable(function):
        raise _require.fail("function", function, "callable on an Arrow table, such as PartMean(column=...)")
    if isinstance(function, PartMean | PartMode) and function.column not in columns:
        raise _require.fail("function", function, f"of a column that its parts have: {', '.join(columns)}")
