"""Combines mechanisms, one after the other or side by side on disjoint parts of a table, and prices one for a
group of units.

The price of a combination follows from the prices of its parts, before any data is read. A combination that
no theorem covers is refused.

Post-processing: any function of a released value that looks at nothing else costs nothing.

The functions defined here have a JSON description; any Python callable works too, as trusted code.
`added_error` says what a function does to an error bound: clamping to a range that contains the truth never
enlarges it.

>>> Clamp(lower=0)(-3), Round(step=5)(13), Truncate(step=5)(-13), Fold(lower=0, upper=10)(12)
(0, 15, -10, 8)
"""

from __future__ import annotations

import heapq
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, is_dataclass, replace
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from .. import _require
from .._errors import InvalidInput, PublicMismatch, Unsupported
from .._public import ADD_REMOVE, REPLACE, Boolean, Bounds, Dates, Public
from .._registry import described
from .._require import FINITE, LISTED, NON_EMPTY, POSITIVE, Real, at_least, such_that
from ..accounting import Event, Group, PureDP, basic, compose
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns
from .arrow_columns import as_step, nearest
from .protocols import MECHANISM, Mechanism, Release, check_source, error_of, release
from .statistics import ROWS


class PostFunction(ABC):
    """Base of the functions with a JSON description: how they act on one number, and how much error they
    add."""

    __slots__ = ()

    def __call__(self, value: Any) -> Any:
        """Return the function of every number. A value that is not made of numbers (a category, None, bounds)
        is returned unchanged: it has been paid for, so it is not refused."""
        if not _is_numeric(value):
            return value
        if np.ndim(value) == 0:
            return self.one(value.item() if isinstance(value, np.generic | np.ndarray) else value)
        array = np.asarray(value)
        flat = [self.one(v) for v in array.ravel().tolist()]
        return np.array(flat, dtype=array.dtype if array.dtype == object else None).reshape(array.shape)

    @abstractmethod
    def one(self, value: Any) -> Any:
        """Return the function of one number."""

    @property
    def added_error(self) -> Fraction:
        """The largest amount by which the distance to the truth may grow."""
        return Fraction(0)


def _is_numeric(value: Any) -> bool:
    """Return whether a released value is a number, or an array, list or plain tuple of numbers."""
    kinds = (int, float, Fraction, np.number, np.ndarray, list)
    if not isinstance(value, kinds) and type(value) is not tuple:
        return False
    try:
        array = np.asarray(value)
    except ValueError:
        # rows of different lengths
        return False
    if array.dtype == object:
        return all(isinstance(v, int | float | Fraction) for v in array.flat)
    return array.dtype.kind in "iuf"


@described("mechanisms.Clamp")
class Clamp(PostFunction):
    """Clamps to the nearest point of [lower, upper]; an end may be left open. If the truth lies inside, no
    error grows.

    Proof: projection on an interval leaves its points alone and brings no two points further apart.
    """

    lower: Annotated[Real, FINITE] | None = None
    upper: Annotated[Real, FINITE] | None = None

    def __post_init__(self) -> None:
        _require.that(
            self.lower is not None or self.upper is not None, "clamping needs lower, upper, or both."
        )
        if self.lower is not None and self.upper is not None:
            _require.ordered(lower=self.lower, upper=self.upper)

    def one(self, value: Any) -> Any:
        if self.lower is not None and value < self.lower:
            return self.lower
        return self.upper if self.upper is not None and value > self.upper else value


@described("mechanisms.Fold")
class Fold(PostFunction):
    """Reflects at `lower` and `upper` until inside: unlike clamping it gives the ends no extra probability.

    If the truth lies inside, no error grows.
    """

    lower: Real
    upper: Real

    def __post_init__(self) -> None:
        _require.ordered(lower=self.lower, upper=self.upper)

    def one(self, value: Any) -> Any:
        if not _is_finite(value):
            return value
        # in exact numbers, as floats may overflow
        lower, upper = _require.exact(self.lower, "lower"), _require.exact(self.upper, "upper")
        offset = (Fraction(value) - lower) % (2 * (upper - lower))
        folded = lower + min(offset, 2 * (upper - lower) - offset)
        if any(isinstance(number, float) for number in (value, self.lower, self.upper)):
            return float(folded)
        return int(folded) if folded.denominator == 1 else folded


@dataclass(frozen=True, slots=True, kw_only=True)
class _ToMultiples(PostFunction):
    """Moves numbers to multiples of `step`; a subclass says to which."""

    step: Annotated[Real, POSITIVE] = 1

    def one(self, value: Any) -> Any:
        if not _is_finite(value):
            return value
        return _multiple(self.whole(Fraction(value) / as_step(self.step)), self.step)

    @abstractmethod
    def whole(self, steps: Fraction) -> int:
        """Return the whole number of steps in place of `steps`."""


@described("mechanisms.Round")
class Round(_ToMultiples):
    """Rounds to the nearest multiple of `step`, halves up: adds at most half a step of error."""

    def whole(self, steps: Fraction) -> int:
        return nearest(steps)

    @property
    def added_error(self) -> Fraction:
        return as_step(self.step) / 2


@described("mechanisms.Truncate")
class Truncate(_ToMultiples):
    """Truncates to the next multiple of `step` towards zero: adds less than a step of error."""

    def whole(self, steps: Fraction) -> int:
        return int(steps)

    @property
    def added_error(self) -> Fraction:
        return as_step(self.step)


def _is_function(value: Any) -> bool:
    """Return whether a value is a function of released values: a mechanism, say, is callable, too."""
    return isinstance(value, PostFunction) or (callable(value) and not is_dataclass(value))


@described("mechanisms.PostProcessed")
class PostProcessed(Mechanism):
    """Passes a mechanism's released value through `function` before anybody sees it.

    Guarantee: the mechanism's own event.
    Proof:     post-processing (Dwork & Roth 2014, Prop. 2.1): the function sees the released value and
               nothing of the data.
    Assumes:   a Python callable given as `function` looks at nothing but its argument; the mechanism then has
               no JSON description. Bounds and steps of the functions here are public, not read off the data.
    """

    mechanism: Annotated[Mechanism, MECHANISM]
    function: Annotated[
        PostFunction | Callable[[Any], Any], such_that(_is_function, "a function of the released value")
    ]

    @property
    def public(self) -> Public:
        return self.mechanism.public

    @property
    def event(self) -> Event:
        return self.mechanism.event

    def error(self, confidence: float = 0.95) -> Any:
        """Return the error of the mechanism plus `added_error` of the function; for clamping and folding it
        holds if the truth lies inside."""
        return self._widen_error(lambda: error_of(self.mechanism, confidence), self.error_in_scores)

    @property
    def error_in_scores(self) -> bool:
        return self.mechanism.error_in_scores

    def _widen_error(self, mechanism_error: Callable[[], Any], error_in_scores: bool) -> Any:
        """Return `mechanism_error()` plus the error that the function adds; refuse where that is not
        known."""
        if not isinstance(self.function, PostFunction):
            raise InvalidInput("nothing is known about the error of a value changed by a Python function.")
        _require.that(
            not error_in_scores,
            "the error before was in scores, ranks or people, and nothing is known of it once "
            "the value was changed.",
        )
        width = mechanism_error()
        added = self.function.added_error
        # An error that is no number belongs to a table, which the function returns unchanged.
        return width if added == 0 or not _is_numeric(width) else np.add(width, float(added))

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source, examples=True)
        unchanged = self.mechanism(source, entropy=entropy)
        return release(
            self.function(unchanged.value),
            event=self.event,
            entropy=entropy,
            error=lambda confidence: self._widen_error(
                lambda: unchanged.error(confidence), unchanged.error_in_scores
            ),
            error_in_scores=unchanged.error_in_scores,
        )


def _is_finite(value: Any) -> bool:
    """Return whether a released number is finite; the functions return any other unchanged, as it was paid
    for."""
    return not isinstance(value, float) or math.isfinite(value)


def _multiple(count: int, step: Real) -> Any:
    """Return `count` times `step`, as an integer where it is one."""
    exact = count * as_step(step)
    return int(exact) if exact.denominator == 1 else float(exact)


@described("mechanisms.Sequential")
class Sequential(Mechanism):
    """Runs several mechanisms on the same table: sequential composition. The value is the tuple of their
    values.

    Guarantee: the composition of their events.
    Proof:     fresh randomness for each; composition of the accountant that reads the event (Dwork & Roth
               2014, Theorem 3.16 for the basic one). Prices are fixed in advance, so no filter is needed.
    """

    mechanisms: Annotated[tuple[Annotated[Mechanism, MECHANISM], ...], NON_EMPTY]

    def __post_init__(self) -> None:
        if any(mechanism.public != self.mechanisms[0].public for mechanism in self.mechanisms):
            raise PublicMismatch(
                "the mechanisms were priced for different public facts, so their prices do not add up. Build "
                "all of them with the same `public`."
            )

    @property
    def public(self) -> Public:
        return self.mechanisms[0].public

    @property
    def event(self) -> Event:
        return compose(mechanism.event for mechanism in self.mechanisms)

    def error(self, confidence: float = 0.95) -> tuple[Any, ...]:
        """Return one bound for each part, all of which hold together: failures are split evenly (union
        bound)."""
        each = split(confidence, len(self.mechanisms))
        return tuple(error_of(mechanism, each) for mechanism in self.mechanisms)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        # A source of examples is let through: each mechanism refuses it itself if it reads columns.
        check_source(self.public, source, examples=True)
        parts = [mechanism(source, entropy=entropy) for mechanism in self.mechanisms]

        def error(confidence: float) -> tuple[Any, ...]:
            return tuple(part.error(split(confidence, len(parts))) for part in parts)

        return release(tuple(part.value for part in parts), event=self.event, entropy=entropy, error=error)


@described("mechanisms.GroupPrivate")
class GroupPrivate(Mechanism):
    """Prices a release for `size` units that change together: a household, or a person with up to `size`
    rows.

    Guarantee: with k = `size`, epsilon-DP becomes (k epsilon)-DP; (epsilon, delta)-DP becomes (k epsilon, k
               e^((k-1) epsilon) delta) or better; rho-zCDP becomes k² rho. The event is `Group`; accountants
               know these rules.
    Proof:     Dwork & Roth 2014, Theorem 2.2; Vadhan 2017 (delta); Bun & Steinke 2016, arXiv:1605.02065,
               Prop. 5.3 (zCDP).
    """

    mechanism: Annotated[Mechanism, MECHANISM]
    size: Annotated[int, at_least(1)]

    @property
    def public(self) -> Public:
        return self.mechanism.public

    @property
    def event(self) -> Event:
        inner = self.mechanism.event
        return inner if self.size == 1 else Group(event=inner, size=self.size)

    def error(self, confidence: float = 0.95) -> Any:
        return error_of(self.mechanism, confidence)

    @property
    def error_in_scores(self) -> bool:
        return self.mechanism.error_in_scores

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        # A source of examples is let through: the mechanism refuses it itself if it reads columns.
        check_source(self.public, source, examples=True)
        inner = self.mechanism(source, entropy=entropy)
        in_scores = inner.error_in_scores
        return release(
            inner.value, event=self.event, entropy=entropy, error=inner.error, error_in_scores=in_scores
        )


@described("mechanisms.Parallel")
class Parallel(Mechanism):
    """Runs one mechanism for each of some categories of `column`, each on the rows of its category only.

    `parts` pairs a declared category with a mechanism built for `part_public(public, column, category)`.
    Under add_remove a part holds the rows of its category. Under replace and zero_out, where the number of
    rows is public, it holds all rows, those of other categories blanked out (NULL in every column): so each
    part is protected under the same relation as the whole.

    Guarantee: add_remove, zero_out: the price of the most expensive part. replace: that of the two most
               expensive parts together (of the only part, if there is one). If all parts have the same event,
               the price is that event (twice, under replace). If all are pure, it is the largest epsilon (the
               sum of the two largest, under replace). Other parts are refused.
    Proof:     a row belongs to at most one category. Adding or removing it, or blanking it, changes one part,
               into a neighbor of itself; the other parts' releases have the same distribution and are
               independent of it (McSherry 2009, parallel composition). Replacing a row by one of another
               category blanks it in one part and fills a blank in another: each sees a replace-neighbor, so
               the two compose; within one category only one part changes.
    """

    public: Annotated[Public, ROWS]
    column: str
    parts: Annotated[tuple[Annotated[tuple[str | int, Mechanism], LISTED], ...], NON_EMPTY]

    def __post_init__(self) -> None:
        pairs = all(len(pair) == 2 for pair in self.parts)
        _require.must(pairs, "parts", self.parts, "pairs of a category and a mechanism")
        for category, mechanism in self.parts:
            MECHANISM(f"the mechanism of {category!r}", mechanism)
            if mechanism.public != part_public(self.public, self.column, category):
                raise PublicMismatch(
                    f"the mechanism of category {category!r} was not priced for that part. Build it with "
                    f"part_public(public, {self.column!r}, {category!r})."
                )
        distinct = len({category for category, _ in self.parts}) == len(self.parts)
        _require.that(distinct, "a category has two mechanisms, so parts would not be disjoint.")
        self.event  # noqa: B018 - refuses a price that no theorem gives, before data is read

    @property
    def event(self) -> Event:
        events = [mechanism.event for _, mechanism in self.parts]
        # The number of parts that one change can touch.
        touched = min(2 if self.public.neighbors is REPLACE else 1, len(events))
        if all(event == events[0] for event in events):
            return events[0].repeated(touched)
        epsilons = [_pure_epsilon(event) for event in events]
        return PureDP(epsilon=sum(heapq.nlargest(touched, epsilons)), neighbors=self.public.neighbors)

    def error(self, confidence: float = 0.95) -> dict[str | int, Any]:
        """Return one bound for each part, all of which hold together (union bound)."""
        each = split(confidence, len(self.parts))
        return {category: error_of(mechanism, each) for category, mechanism in self.parts}

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        releases = {
            category: mechanism(SourcePart(source, self.column, category), entropy=entropy)
            for category, mechanism in self.parts
        }

        def error(confidence: float) -> dict[str | int, Any]:
            return {
                category: part.error(split(confidence, len(releases))) for category, part in releases.items()
            }

        values = {category: part.value for category, part in releases.items()}
        return release(values, event=self.event, entropy=entropy, error=error)


def part_public(public: Public, column: str, category: str | int) -> Public:
    """Return the public facts of the part of a table where `column` is `category`.

    Rows of other parts may be blank in it, so every column with bounds is declared nullable. Its size is
    private under add_remove; otherwise it is the whole table's, blank rows included.
    """
    declared = category in public.categories(column).values
    _require.that(declared, f"{category!r} is not among the declared categories of column {column!r}.")
    schema = tuple((name, _nullable(fact)) for name, fact in public.schema)
    size = None if public.neighbors is ADD_REMOVE else public.size
    return replace(public, schema=schema, size=size, table=f"{public.table}[{column}={category!r}]")


def _nullable(fact: Any) -> Any:
    may_be_missing = not isinstance(fact, Bounds | Boolean | Dates) or fact.nullable
    return fact if may_be_missing else replace(fact, nullable=True)


class SourcePart:
    """Shows a source as one part of `Parallel` sees it: rows of other categories are left out, or blanked
    where the size is public."""

    def __init__(self, source: Source, column: str, category: str | int) -> None:
        self._source, self._column, self._category = source, column, category
        self._public = part_public(source.public, column, category)

    @property
    def public(self) -> Public:
        return self._public

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        """Yield the named columns, a batch at a time."""
        names = list(dict.fromkeys(columns))
        values = self._source.public.categories(self._column).values
        wanted = values.index(self._category)
        for batch in self._source.batches([*names, *({self._column} - set(names))]):
            key = arrow_columns.unpacked(batch.column(batch.schema.get_field_index(self._column)))
            in_category = pa.array(arrow_columns.categories(key, values, self._column) == wanted)
            yield self._cut(batch.select(names), in_category)

    def _cut(self, batch: pa.RecordBatch, in_category: Any) -> pa.RecordBatch:
        """Leave rows of other categories out, or blank them where the size is public."""
        # imported here because it is slow to load
        import pyarrow.compute as pc

        if self._public.neighbors is ADD_REMOVE:
            return batch.filter(in_category)
        blank = [pc.if_else(in_category, column, pa.scalar(None, column.type)) for column in batch.columns]
        # A batch without columns stays as it is: `from_arrays` would lose its number of rows.
        return pa.RecordBatch.from_arrays(blank, schema=batch.schema) if blank else batch

    def __repr__(self) -> str:
        return f"Part(table={self._public.table!r})"


def split(confidence: float, parts: int) -> float:
    """Return the confidence each of `parts` bounds needs so that all hold together, by the union bound;
    rounded up, to the largest float below 1 at most."""
    _require.open_probability(confidence=confidence)
    each = 1 - (1 - Fraction(confidence)) / parts
    return min(float(np.nextafter(float(each), 1.0)), math.nextafter(1.0, 0.0))


def _pure_epsilon(event: Event) -> Fraction:
    """Return the epsilon of an event that is pure; refuse any other."""
    try:
        price = basic(event)
    except Unsupported:
        price = None
    if price is None or price.delta > 0 or not math.isfinite(price.value):
        raise Unsupported(
            "parts with different prices are joined only where each is pure epsilon-DP: no theorem here "
            "orders other events. Give all parts the same price, or use pure mechanisms."
        )
    return Fraction(price.value)
