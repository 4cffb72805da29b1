"""The domain of a table: for every column a public list of codes, from the schema and never from the data.

Categories and booleans are their declared values, numbers and dates are cut at public edges, and NULL is a
code of its own where a column can be missing. Rows are coded by the engine (`tables.cells`), and codes of a
copy become values again by a uniform draw within their bin.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from numbers import Integral
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import Boolean, Bounds, Categories, Dates, Fact, Public, Text
from .._registry import described
from .._require import Real
from ..mechanisms.arrow_columns import require_public
from ..tables.cells import Coding
from .arguments import mapping

# A whole number, or a day, of up to so many values has one code for each; others get so many bins of equal
# width: a round number, not tuned. `bins=` says another.
DEFAULT_BINS = 20
MOST_CODES = 4096


@described("synthetic.DomainColumn")
@dataclass(frozen=True, slots=True, kw_only=True)
class DomainColumn:
    """A column of the domain. `edges` cut a number, or the days after a date's lower bound, into bins;
    `missing`
    says whether NULL has a code."""

    column: str
    edges: tuple[Real, ...] = ()
    missing: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.column, str):
            raise _require.fail("column", self.column, "the name of a column")
        _require.flag(missing=self.missing)
        edges = _require.listed(edges=self.edges)
        object.__setattr__(self, "edges", edges)
        for edge in edges:
            _require.finite(an_edge=edge)
        floats = [float(edge) for edge in edges]
        if len(floats) == 1 or any(b <= a for a, b in itertools.pairwise(floats)):
            raise _require.fail(f"the edges of {self.column!r}", edges, "two or more numbers that grow")


@described("synthetic.Domain")
@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """The columns of a synthetic copy, in order, with their public codes."""

    columns: tuple[DomainColumn, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "columns", _require.listed(columns=self.columns))
        _require.non_empty(columns=self.columns)
        for one in self.columns:
            if not isinstance(one, DomainColumn):
                raise _require.fail("a column of the domain", type(one).__name__, "DomainColumn(column=...)")
        if len({one.column for one in self.columns}) < len(self.columns):
            raise InvalidInput(
                f"a column is named twice: {[c.column for c in self.columns]}. Nothing was read."
            )

    @classmethod
    def of(
        cls,
        public: Public,
        columns: Sequence[str] | None = None,
        *,
        bins: Mapping[str, int | Sequence[Any]] | None = None,
        missing: Mapping[str, bool] | None = None,
    ) -> Domain:
        """Return the domain of a table: all columns with a finite set of values, or those named.

        `bins`: of a number or date how many bins of equal width, or their edges. `missing`: whether a column
        has a code for NULL, where the schema's word is not meant.
        """
        require_public(public)
        bins, missing = mapping(bins=bins), mapping(missing=missing)
        unit = public.unit.column
        usable = [n for n, fact in public.schema if not isinstance(fact, Text) and n != unit]
        wanted = usable if columns is None else list(_require.listed(columns=columns))
        for name in [*bins, *missing]:
            if name not in wanted:
                raise InvalidInput(
                    f"bins or missing names {name!r}, which is no column of the copy."
                    f"{_require.did_you_mean(name, wanted)} Nothing was charged."
                )
        if not wanted:
            raise InvalidInput(
                "no column has declared values or bounds, so there is nothing to copy. Nothing was charged. "
                "Declare categories, bounds or dates in the schema."
            )
        columns_of_copy = tuple(_column(public, name, bins.get(name), missing.get(name)) for name in wanted)
        domain = cls(columns=columns_of_copy)
        domain.codings(public)
        return domain

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(one.column for one in self.columns)

    def codings(self, public: Public) -> list[Coding]:
        """Return how the engine codes each column."""
        codings = [_coding(public, one) for one in self.columns]
        for coding in codings:
            if coding.size > MOST_CODES:
                raise InvalidInput(
                    f"column {coding.column!r} would have {coding.size:,} codes, more than {MOST_CODES:,}. "
                    f"Nothing "
                    f"was charged. Give it fewer bins, or leave it out."
                )
        return codings

    def sizes(self, public: Public) -> tuple[int, ...]:
        return tuple(coding.size for coding in self.codings(public))

    def decode(
        self, public: Public, codes: Sequence[NDArray[np.int64]], random: np.random.Generator
    ) -> pa.Table:
        """Return the rows that these codes stand for, as an Arrow table."""
        arrays = {
            coding.column: _values(coding, np.asarray(column), random)
            for coding, column in zip(self.codings(public), codes, strict=True)
        }
        return pa.table(arrays)

    def decode_one(
        self, public: Public, name: str, codes: NDArray[np.int64], random: np.random.Generator
    ) -> pa.Array:
        """Return the values of one column, drawn within their bins."""
        coding = self.codings(public)[self.names.index(name)]
        return _values(coding, codes, random)


def _column(public: Public, name: str, bins: Any, missing: bool | None) -> DomainColumn:
    fact = public.fact(name)
    if name == public.unit.column:
        raise InvalidInput(
            f"column {name!r} says who is who, and a copy has no such people. Nothing was charged. Leave "
            f"it out."
        )
    if isinstance(fact, Text):
        raise InvalidInput(
            f"column {name!r} is text whose values are not public. Nothing was charged. Declare its "
            f"categories, or "
            f"leave it out."
        )
    nullable = bool(getattr(fact, "nullable", True)) if missing is None else missing
    _require.flag(missing=nullable)
    if isinstance(fact, Bounds | Dates):
        return DomainColumn(column=name, edges=_edges(name, fact, bins), missing=nullable)
    if bins is not None:
        raise InvalidInput(f"column {name!r} has values, not bounds: it takes no bins. Nothing was charged.")
    return DomainColumn(column=name, missing=nullable)


def _edges(name: str, fact: Bounds | Dates, bins: Any) -> tuple[Real, ...]:
    low, high, whole = _range(fact)
    if bins is not None and not isinstance(bins, Integral):
        edges = tuple(_edge(fact, e) for e in _require.listed(bins=bins))
        if len(edges) < 2 or any(b <= a for a, b in itertools.pairwise(edges)):
            raise _require.fail(
                f"the bins of {name!r}", bins, "two or more edges that grow, or a number of bins"
            )
        return edges
    if bins is not None:
        _require.integer(bins=bins, at_least=1)
    count = DEFAULT_BINS if bins is None else int(bins)
    if count > MOST_CODES:
        raise InvalidInput(
            f"column {name!r} would have {count:,} bins, more than {MOST_CODES:,}. Nothing was charged. Give "
            f"it fewer bins, or leave it out."
        )
    if whole and high - low + 1 <= count:
        return tuple(range(int(low), int(high) + 2))
    if whole:
        # Bins of whole numbers, the last one shorter where it does not divide.
        step = math.ceil((int(high) - int(low) + 1) / count)
        inner = range(int(low), int(high) + 1, step)
        return (*inner, int(high) + 1)
    return tuple(float(e) for e in np.linspace(float(low), float(high), count + 1))


def _edge(fact: Bounds | Dates, edge: Any, name: str = "an edge") -> Real:
    if isinstance(fact, Dates):
        day = edge if isinstance(edge, date) else None
        if day is None:
            try:
                day = date.fromisoformat(edge)
            except (TypeError, ValueError):
                raise _require.fail(name, edge, "a day such as '2020-01-31'") from None
        return (day - date.fromisoformat(fact.lower)).days
    _require.finite(an_edge=edge)
    value: Real = edge
    return value


def number_of(fact: Fact, value: Any, name: str = "value") -> float:
    """Return the number that the edges of a column cut: a number itself, or the days after a date's lower
    bound."""
    if not isinstance(fact, Bounds | Dates):
        raise _require.fail(name, value, "of a column of numbers or dates")
    if isinstance(fact, Bounds):
        _require.finite(**{name: value})
    return _require.float_or_inf(_edge(fact, value, name))


def ends_of_bins(coding: Coding) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the largest number that each bin can give."""
    assert isinstance(coding.fact, Bounds | Dates)
    low, high, _ = _range(coding.fact)
    edges = np.array(coding.edges)
    last_step = 1 if is_whole(coding) else 0
    first = np.clip(edges[:-1], float(low), float(high))
    last = np.clip(edges[1:] - last_step, float(low), float(high))
    first[0], last[-1] = float(low), float(high)
    return first, np.maximum(first, last)


def comparable_ends(coding: Coding) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of bins on a scale that columns share: days since 1970 for dates."""
    first, last = ends_of_bins(coding)
    return first + _origin(coding.fact), last + _origin(coding.fact)


def is_whole(coding: Coding) -> bool:
    """Return whether a column has whole numbers, or days, and bins that end at such."""
    assert isinstance(coding.fact, Bounds | Dates)
    return _range(coding.fact)[2] and all(float(e).is_integer() for e in coding.edges)


def _origin(fact: Fact) -> int:
    if not isinstance(fact, Dates):
        return 0
    return (date.fromisoformat(fact.lower) - date(1970, 1, 1)) // timedelta(days=1)


def _range(fact: Bounds | Dates) -> tuple[Any, Any, bool]:
    if isinstance(fact, Dates):
        return 0, (date.fromisoformat(fact.upper) - date.fromisoformat(fact.lower)).days, True
    return fact.lower, fact.upper, isinstance(fact.lower, int) and isinstance(fact.upper, int)


def _coding(public: Public, column: DomainColumn) -> Coding:
    fact = public.fact(column.column)
    binned = isinstance(fact, Bounds | Dates)
    if binned != bool(column.edges) or isinstance(fact, Text):
        raise InvalidInput(
            f"column {column.column!r} is declared otherwise than the domain takes it. Nothing was "
            f"charged. Build the "
            f"domain with Domain.of(public, ...)."
        )
    edges = tuple(float(e) for e in column.edges)
    return Coding(column.column, fact, edges, column.missing)


def _values(coding: Coding, codes: NDArray[np.int64], random: np.random.Generator) -> pa.Array:
    fact: Fact = coding.fact
    absent = codes == coding.size - 1 if coding.missing else np.zeros(len(codes), bool)
    if isinstance(fact, Categories):
        whole = all(isinstance(v, int) for v in fact.values)
        values = [v if whole else str(v) for v in fact.values]
        kind = pa.int64() if whole else pa.string()
        return pa.array(values, kind).take(pa.array(np.where(absent, 0, codes), mask=absent))
    if isinstance(fact, Boolean):
        return pa.array(codes == 1, pa.bool_(), mask=absent)
    assert isinstance(fact, Bounds | Dates)
    numbers = within_bins(coding, np.where(absent, 0, codes), random)
    return values_of_numbers(coding, numbers + _origin(fact), absent)


def values_of_numbers(coding: Coding, numbers: NDArray[Any], absent: NDArray[np.bool_]) -> pa.Array:
    """Return numbers on the scale of `comparable_ends` as the values of a column."""
    if isinstance(coding.fact, Dates):
        days = np.where(absent, 0, numbers).astype(np.int32)
        return pa.array(days, pa.int32(), mask=absent).cast(pa.date32())
    if is_whole(coding):
        return pa.array(np.where(absent, 0, numbers).astype(np.int64), pa.int64(), mask=absent)
    return pa.array(numbers.astype(np.float64), pa.float64(), mask=absent)


def within_bins(coding: Coding, codes: NDArray[np.int64], random: np.random.Generator) -> NDArray[Any]:
    """Return a number drawn uniformly from the bin of each code, whole where the bounds are, and within
    them."""
    assert isinstance(coding.fact, Bounds | Dates)
    first, last = ends_of_bins(coding)
    if is_whole(coding):
        return random.integers(first.astype(np.int64)[codes], last.astype(np.int64)[codes] + 1)
    return first[codes] + (last - first)[codes] * random.random(len(codes))
