"""Sample and aggregate: any function of a table is made private by running it on many small parts, of which
one person can change only a few.

`SampleAndAggregate` cuts the table into disjoint random parts and takes a private mean or median of their
answers. `SubsampleAggregateStable` (M_samp) runs the function on many overlapping subsamples and releases the
answer that most of them agree on, exactly, if the majority is clear; otherwise None. The function is written
by the steward, who is trusted with the data. It sees one part or subsample only, and no bound on its
sensitivity is needed.

Defines parts of a table that consist of whole units, and the functions that sample-and-aggregate runs on
them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Hashable
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .. import _require, sampling
from .._errors import result_or
from .._public import COLUMN, PUBLIC, REPLACE, Bounds, Public
from .._registry import described
from .._require import EXACT, NON_EMPTY, OPEN_PROBABILITY, POSITIVE, Real, among, at_least, such_that
from ..accounting import ApproximateDP, DiscreteLaplace, Event, PureDP
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns
from .noise import draw, exp_bounds, laplace_quantile
from .protocols import Mechanism, Release, check_source, release, require_columns
from .stability import EPSILON, SmoothNoise, failure_of, noisy_median, require_a_step, smooth_noise

Ints = NDArray[np.int64]


@described("mechanisms.PartMean")
class PartMean:
    """Computes the mean of a column in one part; None where the part has no value.

    A function for `SampleAndAggregate`. Unlike a Python callable it has a JSON description (`described`), so
    that a release made with it can be stored and served again.
    """

    column: str

    def __call__(self, part: Any) -> float | None:
        # slow to load
        import pyarrow.compute as pc

        mean = pc.mean(part.column(self.column)).as_py()
        return None if mean is None else float(mean)


@described("mechanisms.PartMode")
class PartMode:
    """Computes the most frequent value of a column in one part; the smallest of several equally frequent
    ones.

    A function with a JSON description, as `PartMean`, for `SubsampleAggregateStable`.
    """

    column: str

    def __call__(self, part: Any) -> Hashable:
        # slow to load
        import pyarrow.compute as pc

        counts = pc.value_counts(pc.drop_null(part.column(self.column))).to_pylist()
        return (
            min(counts, key=lambda entry: (-entry["counts"], entry["values"]))["values"] if counts else None
        )


def read_units(source: Source, columns: tuple[str, ...]) -> tuple[Any, Ints, list[Any] | None]:
    """Return the table of `columns`, for each row the number of its unit, and the names of the units: the
    values of the unit's column (None where each row is a unit)."""
    unit = source.public.unit.column
    wanted = list(columns) if unit is None or unit in columns else [*columns, unit]
    batches = list(source.batches(wanted))
    table = pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in wanted})
    if unit is None:
        return table.select(list(columns)), np.arange(table.num_rows, dtype=np.int64), None
    names, units = units_of(table.column(unit))
    return table.select(list(columns)), units, names


def units_of(column: Any) -> tuple[list[Any], Ints]:
    """Return the names of units, and the position of each row's unit among them."""
    # slow to load
    import pyarrow.compute as pc

    encoded = arrow_columns.one_name_each(column.combine_chunks()).dictionary_encode()
    # Rows without a name are one unit. It is listed even where there are no such rows.
    names = [*encoded.dictionary.to_pylist(), None]
    codes = pc.fill_null(encoded.indices.cast(pa.int64()), len(names) - 1).to_numpy(zero_copy_only=False)
    return names, codes.astype(np.int64)


def rows_of(table: Any, units: Ints, kept: Ints, number: int, by_rows: bool) -> Any:
    """Return the rows of the units that a subsample keeps.

    `units` is the unit of each row, `kept` are the numbers of the kept units out of `number`; `by_rows` is
    True where each row is a unit of its own.
    """
    if by_rows:
        return table.take(pa.array(kept))
    chosen = np.zeros(number, bool)
    chosen[kept] = True
    return table.take(pa.array(np.flatnonzero(chosen[units])))


def quietly(function: Callable[[Any], Any], part: Any) -> Any:
    """Return the function's answer, or None where it raises, its answer is not hashable, or the part has no
    rows.

    An exception that reached the caller would be a release of its own, which depends on one part. A part
    without rows is not shown to the function: in an empty table its columns have no type, so that every part
    would show that the whole table is empty.
    """
    if part.num_rows == 0:
        return None

    def answer() -> Any:
        value = function(part)
        hash(value)
        return value

    return result_or(None, answer)


CanonicalAnswer = tuple[Any, str]


def canonical_answer(answer: Any) -> CanonicalAnswer:
    """Return an answer with its repr, so that only answers that are written alike are counted as one.

    0.0 and -0.0 are equal, and so are 1 and True. If they were counted as one answer, a single subsample
    could decide which of the two is released.
    """
    return result_or((None, "None"), lambda: (answer, repr(answer)))


Columns = Annotated[tuple[Annotated[str, COLUMN], ...], NON_EMPTY]
CALLABLE = such_that(callable, "callable on an Arrow table, such as PartMean(column=...)")


def check_function(function: Any, columns: tuple[str, ...]) -> None:
    """Refuse a `PartMean` or `PartMode` of a column not in `columns`."""
    there = not isinstance(function, PartMean | PartMode) or function.column in columns
    _require.must(there, "function", function, f"of a column that its parts have: {', '.join(columns)}")


@described("mechanisms.SampleAndAggregate")
class SampleAndAggregate(Mechanism):
    """Releases a private mean or median of what `function` returns for each of `parts` disjoint random parts:
    sample and aggregate.

    Answers are clipped to `bounds` and put on a grid of `step`; a part for which the function raises, or
    whose answer is None, not finite or not hashable (such as a NumPy array), counts as the middle of the
    bounds. So does a part without rows, for which `function` is not called. `aggregate` is "mean" (discrete
    Laplace noise) or "median" (`SmoothNoise`, pure, or approximate with `delta`).

    Guarantee: the event of the noise: epsilon-DP, or (epsilon, delta)-DP with `delta`, under every relation
               and for every unit.
    Proof:     each unit goes to a part chosen for it alone, whatever the others are: independently and
               uniformly for rows (one draw per position: the rows after one that leaves get other draws, but
               as the draws are independent and identically distributed, so are the parts of the rows), by a
               keyed hash of its name for units of many rows. Rows come to the function in an order drawn at
               random, so that neither where a row was stored nor when the engine read it reaches a part that
               the row is not in. Given these choices, two neighbors differ in one part, so in one of the
               `parts` answers, which the bounds confine: their sum moves by at most the width of the grid,
               and their median is that of a table of public size with one value replaced
               (`mechanisms.arrow_columns`). Nissim, Raskhodnikova & Smith 2007, Section 4. (The columns of an
               empty table have no type, which would show in every part that no row exists. So empty parts are
               shown to the function in no table.)
    Assumes:   `function` looks at nothing but its part. Its running time, and whether it ends, are not
               hidden.
    """

    public: Annotated[Public, PUBLIC]
    columns: Columns
    function: Annotated[Callable[[Any], Any], CALLABLE]
    parts: Annotated[int, at_least(1)]
    bounds: Bounds
    epsilon: Annotated[Real, POSITIVE]
    delta: float | None = None
    step: Annotated[Fraction, EXACT, POSITIVE] = Fraction(1)
    aggregate: Annotated[str, among(("mean", "median"))] = "mean"

    def __post_init__(self) -> None:
        check_function(self.function, self.columns)
        pure = self.aggregate == "median" or self.delta is None
        _require.must(pure, "delta", self.delta, "None: the mean has Laplace noise and is purely epsilon-DP")
        require_a_step(self._grid, "the bounds")
        self._noise  # noqa: B018 - checks epsilon and delta

    def rehearse(self, source: Source) -> None:
        """Refuse columns that the table does not have. The schema cannot tell: it need not declare them."""
        require_columns(source, *self.columns)

    @property
    def _grid(self) -> arrow_columns.ColumnGrid:
        return arrow_columns.ColumnGrid(self.bounds, self.step, "of answers")

    @property
    def _noise(self) -> SmoothNoise | Fraction:
        """The noise of a median, or the scale of the discrete Laplace noise on the sum of a mean."""
        if self.aggregate == "median":
            # Without delta, P(|noise| > x) falls like x**-3 (`mechanisms.stability`): 3 is the least whole
            # power with a finite variance.
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
        failure, noise, step = failure_of(confidence), self._noise, self.step
        if not isinstance(noise, Fraction):
            return float(noise.error(self._grid.high - self._grid.low, confidence) * step)
        noise_bound = laplace_quantile(noise, failure / 2) - 1
        return _require.float_or_inf(noise_bound * step / self.parts)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        table, units, names = read_units(source, self.columns)
        chosen = self._assign(len(units), names, entropy)
        part_of = chosen[units] if names is not None else chosen
        order = sampling.permutation(len(units), entropy)
        table, part_of = table.take(pa.array(order)), part_of[order]
        answers = self._on_grid([self._answer(table, part_of == part) for part in range(self.parts)])
        step, noise = self.step, self._noise
        if isinstance(noise, Fraction):
            noisy = arrow_columns.exact_sum(answers) + draw(noise, entropy)
            value = min(max(noisy * step / self.parts, self._grid.low * step), self._grid.high * step)
            return release(float(value), event=self.event, entropy=entropy, error=self.error)
        code = noisy_median(
            arrow_columns.Ordered(np.sort(answers), self._grid.low, self._grid.high), noise, entropy
        )
        return release(float(code * step), event=self.event, entropy=entropy, error=self.error)

    def _assign(self, rows: int, names: list[Any] | None, entropy: Entropy) -> Ints:
        """Return the part of each row (`names` is None), or of each unit in `names`."""
        if names is None:
            return np.asarray(sampling.uniform_below(self.parts, rows, entropy), dtype=np.int64)
        key = entropy.bytes(32)
        digests = (hashlib.blake2b(repr(name).encode(), key=key, digest_size=16).digest() for name in names)
        return np.array([int.from_bytes(digest, "little") % self.parts for digest in digests], np.int64)

    def _answer(self, table: Any, members: NDArray[np.bool_]) -> float:
        """Return the function's answer on some rows as a float; NaN where it fails or is no number."""
        answer = quietly(self.function, table.take(pa.array(np.flatnonzero(members))))
        return result_or(math.nan, lambda: float(answer))

    def _on_grid(self, answers: list[float]) -> Ints:
        values = np.array(answers, np.float64)
        middle = (self._grid.low + self._grid.high) // 2
        finite = np.isfinite(values)
        return np.where(finite, self._grid(np.where(finite, values, 0.0)), middle)


@described("mechanisms.SubsampleAggregateStable")
class SubsampleAggregateStable(Mechanism):
    """Releases the answer most subsamples agree on, exactly, if the majority is clear; else None: subsample
    and aggregate (M_samp).

    Each of n_T = `subsamples` subsamples keeps every unit with probability g = `rate`; for a subsample
    without rows the answer is None, and `function` is not called. By default g = epsilon / (32 ln(1/delta))
    and n_T = ln(n/delta) / g^2 with the declared size n, the constants usual in lectures: with them, if
    `function` gives the same answer on three quarters of the subsamples, that answer is released with
    probability at least 1 - 3 delta (Smith & Thakurta 2013; Dwork & Roth 2014, Section 7.3). That is a great
    many subsamples. `enough_subsamples` gives fewer, by Chernoff's bound, with which no unit is in too many:
    give it as `subsamples`.

    Guarantee: (epsilon, delta)-DP, whatever n, `rate` and `subsamples` are.
    Proof:     a unit may be in at most C = floor(2 g n_T) subsamples; if one is in more, None is released.
               Let G be the difference of the two largest counts of equal answers, and K = 2C. The commonest
               answer is released if G - K + noise reaches m, with discrete Laplace noise of scale K/epsilon;
               m is the smallest integer that noise alone reaches with probability at most d2 = delta -
               d1, with d1 as below. This is the papers' test G / (4 g n_T) - 1 + Lap(1/epsilon) >
               ln(1/delta)/epsilon, multiplied by K to be about integers. Let x be the unit in which neighbors
               differ; let all other units be in the same subsamples for both. If one of the others is in more
               than C subsamples, both release None. Suppose x is in at most C. Then at most C answers differ,
               each of the two largest counts differs by at most C, and G by at most K. If the commonest
               answer is the same, the output is post-processing of G plus noise, which costs epsilon. If not,
               G <= K on both, and both release None except with probability d2. Under replace (d1 = 0), x is
               in the same subsamples on both sides, and if in more than C, both release None. Under
               add_remove and zero_out, x is in more than C with probability at most d1 = min(exp(-2 g^2 n_T),
               (e/4)^(g n_T)) (Hoeffding; Chernoff), independently of all others. So delta = d1 + d2 is
               enough. Only x matters here, so d1 is not multiplied by n: the size matters for the probability
               that an answer is released, not for privacy.
    Assumes:   `function` depends on nothing but its subsample. Its running time, and whether it ends, are not
               hidden.
    """

    public: Annotated[Public, PUBLIC]
    columns: Columns
    function: Annotated[Callable[[Any], Hashable], CALLABLE]
    epsilon: Annotated[Real, EPSILON]
    delta: Annotated[float, OPEN_PROBABILITY]
    rate: Annotated[Real, OPEN_PROBABILITY] | None = None
    subsamples: Annotated[int, at_least(1)] | None = None

    def __post_init__(self) -> None:
        check_function(self.function, self.columns)
        self.reach  # noqa: B018 - computes all the rest, and refuses parameters that leave no delta

    def rehearse(self, source: Source) -> None:
        """Refuse columns that the table does not have. The schema cannot tell: it need not declare them."""
        require_columns(source, *self.columns)

    @property
    def exact_rate(self) -> Fraction:
        """g, the probability that a subsample keeps a unit."""
        if self.rate is not None:
            return _require.exact(self.rate, "rate")
        default = float(self.epsilon) / (32 * math.log(1 / self.delta))
        _require.must(default < 1, "epsilon", self.epsilon, "below 32 ln(1/delta), or give a rate")
        # a short fraction, for which exact sampling is quick; 10**9 was not tuned
        rate = Fraction(default).limit_denominator(10**9)
        _require.must(
            0 < rate < 1, "epsilon", self.epsilon, "such that the default rate is not 0 or 1; give a rate"
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
        """d1: an upper bound on the probability that the unit in which neighbors differ is in more than C
        subsamples."""
        if self.public.neighbors is REPLACE:
            return Fraction(0)
        rate, count = self.exact_rate, self.count
        # (e/4)^(g n_T) = exp(-(2 ln 2 - 1) g n_T), and 2 ln 2 - 1 = 0.38629436111...; rounding it down can
        # only raise d1
        chernoff = rate * count * Fraction(386_294_361, 10**9)
        # the cap keeps the exponent within what `exp_bounds` takes; it, too, can only raise d1
        return 1 / exp_bounds(min(max(2 * rate**2 * count, chernoff), Fraction(10_000)))[0]

    @property
    def reach(self) -> int:
        """m, the least value of G - K + noise at which the answer is released."""
        delta_left = _require.exact(self.delta, "delta") - self.overload
        _require.that(
            self.max_load >= 1 and delta_left > 0,
            f"{self.count} subsamples at rate {float(self.exact_rate):.4g} are too few. A unit must be "
            "in half a subsample or more on average, and in more than twice the average with a "
            f"probability (here up to {float(self.overload):.3g}) below delta={float(self.delta):g}. "
            "Take more (`enough_subsamples`).",
        )
        return laplace_quantile(self._scale, delta_left)

    @property
    def _scale(self) -> Fraction:
        """K / epsilon, the scale of the noise."""
        return 2 * self.max_load / _require.exact(self.epsilon, "epsilon")

    @property
    def event(self) -> Event:
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=self.public.neighbors)

    def error(self, confidence: float = 0.95) -> int:
        """Return a lead, in subsamples: if the commonest answer leads the second by so many, and no unit is
        in more than `max_load` subsamples, it is released with probability `confidence`."""
        return 2 * self.max_load + self.reach + laplace_quantile(self._scale, failure_of(confidence)) - 1

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        table, units, names = read_units(source, self.columns)
        unit_count = len(units) if names is None else len(names)
        order = sampling.permutation(len(units), entropy)
        table, units = table.take(pa.array(order)), units[order]
        load = np.zeros(unit_count, np.int64)
        counts: dict[CanonicalAnswer, int] = {canonical_answer(None): 0}
        rate = self.exact_rate
        for _ in range(self.count):
            kept = sampling.poisson_subset(unit_count, rate, entropy)
            load[kept] += 1
            answer = canonical_answer(
                quietly(self.function, rows_of(table, units, kept, unit_count, names is None))
            )
            counts[answer] = counts.get(answer, 0) + 1
        ranked = sorted(counts.values(), reverse=True)
        lead = ranked[0] - (ranked[1] if len(ranked) > 1 else 0)
        passed = lead - 2 * self.max_load + draw(self._scale, entropy) >= self.reach
        # Only units with rows count: the unit of rows without a name is drawn into subsamples even where
        # there is no such row.
        overloaded = bool((load[units] > self.max_load).any())
        winner = max(counts, key=lambda answer: counts[answer])
        value = winner[0] if passed and not overloaded else None
        return release(value, event=self.event, entropy=entropy)


@_require.check_options
def enough_subsamples(
    size: Annotated[int, at_least(1)],
    rate: Annotated[Real, OPEN_PROBABILITY],
    delta: Annotated[float, OPEN_PROBABILITY],
) -> int:
    """Return a number of subsamples with which, except with probability `delta`, none of `size` units is in
    more than twice the expected number of subsamples.

    It is ln(size/delta) / (rate (2 ln 2 - 1)), by Chernoff's bound, rounded up, and one more against rounding
    errors. The default of `SubsampleAggregateStable` is ln(size/delta) / rate^2, which follows from
    Hoeffding's bound and is larger.

    >>> enough_subsamples(10_000, 0.05, 1e-6), math.ceil(math.log(10_000 / 1e-6) / 0.05**2)
    (1194, 9211)
    """
    return math.ceil(math.log(size / delta) / (float(rate) * 0.386294361) * (1 + 1e-12)) + 1
