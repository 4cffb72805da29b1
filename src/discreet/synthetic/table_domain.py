"""Defines the domain of a table: for every column a public list of codes, from the schema and never from the
data.

A code is a number from 0 on. Categories and booleans have one code for each declared value; numbers and dates
are cut into bins at public edges, with one code for each bin; where a column can be NULL, the last code
stands for NULL and for values that are not declared. Rows are coded by the engine (`tables.cells`). For a
copy, the code of a bin becomes a value that is drawn uniformly from the bin.

Checks arguments for the modules of this package. Each refusal is a `DiscreetError`, raised before anything
is charged.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Collection, Mapping, Sequence
from datetime import date, timedelta
from numbers import Integral
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import COLUMN, PUBLIC, Boolean, Bounds, Categories, Dates, Fact, Public, Text
from .._registry import described
from .._require import FINITE, NON_EMPTY, Real, at_least, at_most, between, instance_of
from ..tables.cells import Coding

# The most rows that can be asked for: 8 GB for each column.
MAX_DRAWN_ROWS = 10**9
# The most rows of a copy where the caller gives no number. The default is the noisy number of rows, which is
# mostly noise where epsilon is small, and must not fill the memory.
MAX_DEFAULT_ROWS = 10**7

# Arguments of `Session.synthesize` that determine the mechanism; its other arguments, such as `seed`, are
# refused as unknown options of the method.
_SYNTHESIZE_ARGUMENTS = {
    *("epsilon", "delta", "method", "columns", "bins", "missing"),
    *("rows_per_unit", "constraints", "options"),
}
# Arguments that the session itself passes to the class of a method, so that they are no options.
_RESERVED_ARGUMENTS = {"public", "domain", "name", "rho"}


def check_mapping(**named: Any) -> dict[str, Any]:
    """Return the one named argument as a dictionary whose keys are strings; None becomes an empty one."""
    ((name, value),) = named.items()
    if value is None:
        return {}
    fits = isinstance(value, Mapping) and all(isinstance(key, str) for key in value)
    _require.must(fits, name, value, "a mapping from names, such as {'age': ...}")
    return dict(value)


def check_method_options(options: Any) -> dict[str, Any]:
    """Return the options of the chosen method, checked: arguments of `Session.synthesize` or of the session
    are refused."""
    checked = check_mapping(options=options)
    if misplaced := sorted(_SYNTHESIZE_ARGUMENTS & set(checked)):
        raise InvalidInput(
            f"{misplaced[0]} is an option of synthesize itself: synthesize({misplaced[0]}=...)."
        )
    if reserved := sorted(_RESERVED_ARGUMENTS & set(checked)):
        raise InvalidInput(f"no method has the option {reserved[0]!r}.")
    return checked


def check_instance(kind: type, **named: Any) -> None:
    """Refuse values that are not instances of a class."""
    for name, value in named.items():
        _require.must(isinstance(value, kind), name, type(value).__name__, f"a {kind.__name__}")


# An epsilon for which a price can be computed.
Epsilon = Annotated[Real, between(1e-9, 1e6)]
# A number of rows that can be drawn, and the seed of a drawing.
Rows = Annotated[int, at_least(1), at_most(MAX_DRAWN_ROWS)]
Seed = Annotated[int, at_least(0)]


@_require.check_options
def check_rows_and_seed(rows: Rows | None, seed: Seed | None) -> None:
    """Refuse a number of rows that cannot be drawn, and a seed that is no whole number from 0 on; either may
    be None."""


def require_column(name: str, names: Collection[str], what: str) -> None:
    """Refuse a name that is not among those of the columns of `what`, and suggest the nearest."""
    if name not in names:
        raise InvalidInput(f"{name!r} is no column of {what}.{_require.did_you_mean(name, names)}")


def check_writable(path: Any, *, overwrite: bool) -> Path:
    """Return the path of a file to write.

    It is refused where its folder is missing, where it is a folder itself, and, without `overwrite`, where
    the file exists: a copy is often saved under the name of the table that it was made from, and must not
    replace the file of that table by accident.
    """
    _require.flag(overwrite=overwrite)
    fits = isinstance(path, str | os.PathLike) and str(path) and "\0" not in str(path)
    _require.must(fits, "path", path, "the name of a file")
    target = Path(path)
    _require.that(
        not target.is_dir() and target.parent.is_dir(),
        f"{str(path)!r} cannot be written: "
        + ("it is a folder." if target.is_dir() else "its folder does not exist.")
        + " Nothing was written.",
    )
    _require.that(
        overwrite or (not target.exists() and not target.is_symlink()),
        f"{str(path)!r} exists already. Nothing was written. Give another name, or overwrite=True.",
    )
    return target


# A column of whole numbers, or days, with up to this many values has one code for each; other columns of
# numbers and dates get this many bins of equal width, unless `bins=` gives another number. A round number,
# not tuned.
DEFAULT_BINS = 20
# The most codes of one column: the table by two such columns (16.8 million cells) still fits into memory.
MAX_CODES = 4096
_INT64 = np.iinfo(np.int64)
_LARGEST_FLOAT_BELOW_2_63 = float(np.nextafter(2.0**63, 0))


@described("synthetic.DomainColumn")
class DomainColumn:
    """Describes a column of the domain.

    `edges` cut numbers or dates into bins; for dates, an edge is a number of days after the column's lower
    bound. They are empty for categories and booleans. `missing` says whether NULL has a code.
    """

    column: Annotated[str, COLUMN]
    edges: tuple[Annotated[Real, FINITE], ...] = ()
    missing: bool = True

    def __post_init__(self) -> None:
        floats = [float(edge) for edge in self.edges]
        _require.must(
            len(floats) != 1 and all(b > a for a, b in itertools.pairwise(floats)),
            f"the edges of {self.column!r}",
            self.edges,
            "two or more ascending numbers that differ as floats",
        )


@described("synthetic.Domain")
class Domain:
    """Lists the columns of a synthetic copy, in order. Their codes follow from the schema (`codings`)."""

    columns: Annotated[
        tuple[Annotated[DomainColumn, instance_of(DomainColumn, "DomainColumn(column=...)")], ...], NON_EMPTY
    ]

    def __post_init__(self) -> None:
        names = [column.column for column in self.columns]
        _require.that(len(set(names)) == len(names), f"a column is named twice: {names}.")

    @classmethod
    def of(
        cls,
        public: Public,
        columns: Sequence[str] | None = None,
        *,
        bins: Mapping[str, int | Sequence[Any]] | None = None,
        missing: Mapping[str, bool] | None = None,
    ) -> Domain:
        """Return the domain of a table: the named columns, or all but the unit's key and text without
        declared values.

        `bins`: for a column of numbers or dates the number of bins of equal width, or their edges. `missing`:
        whether a column has a code for NULL, where that is to differ from the schema; in a column without
        such a code, a NULL counts as the first code.
        """
        PUBLIC("public", public)
        bins, missing = check_mapping(bins=bins), check_mapping(missing=missing)
        unit = public.unit.column
        usable = [n for n, fact in public.schema if not isinstance(fact, Text) and n != unit]
        names = usable if columns is None else list(_require.listed(columns=columns))
        for name in [*bins, *missing]:
            require_column(name, names, "the copy, and bins or missing name it")
        _require.that(
            names,
            "no column has declared values or bounds, so there is nothing to copy. Declare categories, "
            "bounds or dates in the schema.",
        )
        domain = cls(
            columns=tuple(_build_column(public, name, bins.get(name), missing.get(name)) for name in names)
        )
        # Refuses columns of too many codes.
        domain.codings(public)
        return domain

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.column for column in self.columns)

    def codings(self, public: Public) -> list[Coding]:
        """Return how the engine codes each column."""
        codings = [_build_coding(public, column) for column in self.columns]
        for coding in codings:
            _require.that(
                coding.size <= MAX_CODES,
                f"column {coding.column!r} would have {coding.size:,} codes, more than {MAX_CODES:,}. "
                "Give it fewer bins, or leave it out.",
            )
        return codings

    def sizes(self, public: Public) -> tuple[int, ...]:
        return tuple(coding.size for coding in self.codings(public))

    def decode(
        self, public: Public, codes: Sequence[NDArray[np.int64]], random: np.random.Generator
    ) -> pa.Table:
        """Return the rows that these codes stand for, as an Arrow table."""
        arrays = {
            coding.column: _decode_column(coding, np.asarray(column), random)
            for coding, column in zip(self.codings(public), codes, strict=True)
        }
        return pa.table(arrays)

    def decode_one(
        self, public: Public, name: str, codes: NDArray[np.int64], random: np.random.Generator
    ) -> pa.Array:
        """Return the values of one column, drawn within their bins."""
        coding = self.codings(public)[self.names.index(name)]
        return _decode_column(coding, codes, random)


DOMAIN = instance_of(Domain, "Domain.of(public, ...)")


def _build_column(public: Public, name: str, bins: Any, missing: bool | None) -> DomainColumn:
    """Return the description of a column for the domain: its bins, and whether NULL has a code."""
    fact = public.fact(name)
    _require.that(
        name != public.unit.column,
        f"column {name!r} names the unit that a row belongs to, and the rows of a copy belong to nobody. "
        "Leave it out.",
    )
    _require.that(
        not isinstance(fact, Text),
        f"column {name!r} is text whose values are not public. Declare its categories, or leave it out.",
    )
    may_be_missing = fact.nullable if isinstance(fact, Bounds | Dates | Boolean) else True
    nullable = may_be_missing if missing is None else missing
    _require.flag(missing=nullable)
    if isinstance(fact, Bounds | Dates):
        return DomainColumn(column=name, edges=_bin_edges(name, fact, bins), missing=nullable)
    _require.that(bins is None, f"column {name!r} has declared values, not bounds: it takes no bins.")
    return DomainColumn(column=name, missing=nullable)


def _bin_edges(name: str, fact: Bounds | Dates, bins: Any) -> tuple[Real, ...]:
    """Return the edges of a column's bins. `bins` is a list of edges, or a number of bins of equal width, or
    None for the default number."""
    low, high, integral = _range(fact)
    if bins is not None and not isinstance(bins, Integral):
        edges = tuple(_edge_number(fact, edge) for edge in _require.listed(bins=bins))
        fits = len(edges) >= 2 and all(a < b for a, b in itertools.pairwise(edges))
        _require.must(fits, f"the bins of {name!r}", bins, "two or more ascending edges, or a number of bins")
        _require_overlap(name, fact, edges, bins)
        return edges
    if bins is not None:
        _require.integer(bins=bins, at_least=1)
    count = DEFAULT_BINS if bins is None else int(bins)
    _require.that(
        count <= MAX_CODES,
        f"column {name!r} would have {count:,} bins, more than {MAX_CODES:,}. Give it fewer bins, or "
        "leave it out.",
    )
    if integral and high - low + 1 <= count:
        return tuple(range(int(low), int(high) + 2))
    if integral:
        # Each bin has the same number of values; the last one fewer, where the range is no multiple of it.
        step = math.ceil((int(high) - int(low) + 1) / count)
        return (*range(int(low), int(high) + 1, step), int(high) + 1)
    # Where the bounds are only a few floats apart, edges coincide, and there are fewer bins.
    return tuple(float(edge) for edge in np.unique(np.linspace(float(low), float(high), count + 1)))


def _require_overlap(name: str, fact: Bounds | Dates, edges: Sequence[Real], bins: Any) -> None:
    """Refuse edges whose bins all lie outside of a column's declared bounds; `bins` is what was given."""
    low, high, _ = _range(fact)
    _require.must(
        edges[-1] > low and edges[0] <= high,
        f"the bins of {name!r}",
        bins,
        f"bins of which at least one overlaps the declared bounds of {name!r}",
    )


def _edge_number(fact: Bounds | Dates, edge: Any, name: str = "an edge") -> Real:
    """Return an edge as a number: itself, or the days after a date's lower bound."""
    if isinstance(fact, Dates):
        day = edge if isinstance(edge, date) else None
        if day is None:
            with _require.refusing(_require.fail(name, edge, "a day such as '2020-01-31'")):
                day = date.fromisoformat(edge)
        return (day - date.fromisoformat(fact.lower)).days
    _require.finite(an_edge=edge)
    value: Real = edge
    return value


def to_number(fact: Fact, value: Any, name: str = "value") -> float:
    """Return a value on the scale of a column's edges: a number itself, or the days after a date's lower
    bound."""
    if not isinstance(fact, Bounds | Dates):
        raise _require.fail(name, value, "of a column of numbers or dates")
    if isinstance(fact, Bounds):
        _require.finite(**{name: value})
    return _require.float_or_inf(_edge_number(fact, value, name))


def bin_ends(coding: Coding) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the least and the largest number of each bin within the declared bounds, on the scale of edges
    (for dates, days after the lower bound); unless numbers are whole, the upper edge is taken as the largest.

    The first bin begins at the lower bound and the last ends at the upper one, because the engine counts
    values outside of all edges to these two bins.
    """
    assert isinstance(coding.fact, Bounds | Dates)
    low, high, _ = _range(coding.fact)
    edges = np.array(coding.edges)
    # A bin does not contain its upper edge, so its largest whole number is one less.
    gap = 1 if is_integral(coding) else 0
    first = np.clip(edges[:-1], float(low), float(high))
    last = np.clip(edges[1:] - gap, float(low), float(high))
    first[0], last[-1] = float(low), float(high)
    return first, np.maximum(first, last)


def comparable_bin_ends(coding: Coding) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the ends of bins on a scale on which columns can be compared: for dates, days since 1970."""
    first, last = bin_ends(coding)
    return first + _origin(coding.fact), last + _origin(coding.fact)


def is_integral(coding: Coding) -> bool:
    """Return whether a column has whole numbers, or days, and all of its edges are whole numbers."""
    assert isinstance(coding.fact, Bounds | Dates)
    return _range(coding.fact)[2] and all(float(edge).is_integer() for edge in coding.edges)


def _origin(fact: Fact) -> int:
    """Return the zero of the scale of edges: 0, or for dates the days from 1970 to the lower bound."""
    if not isinstance(fact, Dates):
        return 0
    return (date.fromisoformat(fact.lower) - date(1970, 1, 1)) // timedelta(days=1)


def _range(fact: Bounds | Dates) -> tuple[Any, Any, bool]:
    """Return the lower and the upper bound on the scale of edges, and whether values are whole numbers or
    days."""
    if isinstance(fact, Dates):
        return 0, (date.fromisoformat(fact.upper) - date.fromisoformat(fact.lower)).days, True
    integral = isinstance(fact.lower, int) and isinstance(fact.upper, int)
    # Whole numbers that a column of 64 bits cannot hold are copied as floats.
    return fact.lower, fact.upper, integral and _INT64.min <= fact.lower and fact.upper <= _INT64.max


def _build_coding(public: Public, column: DomainColumn) -> Coding:
    """Return how the engine codes a column of the domain; refused where the schema declares another kind of
    column."""
    fact = public.fact(column.column)
    binned = isinstance(fact, Bounds | Dates)
    _require.that(
        binned == bool(column.edges) and not isinstance(fact, Text),
        f"column {column.column!r} is declared as {type(fact).__name__}, which does not suit its column "
        "of the domain. Build the domain with Domain.of(public, ...).",
    )
    if isinstance(fact, Bounds | Dates):
        _require_overlap(column.column, fact, column.edges, column.edges)
    edges = tuple(float(edge) for edge in column.edges)
    return Coding(column.column, fact, edges, column.missing)


def _decode_column(coding: Coding, codes: NDArray[np.int64], random: np.random.Generator) -> pa.Array:
    """Return the values of codes: categories, booleans, or numbers and dates drawn within their bins."""
    fact: Fact = coding.fact
    absent = codes == coding.size - 1 if coding.missing else np.zeros(len(codes), bool)
    if isinstance(fact, Categories):
        integral = all(isinstance(v, int) for v in fact.values)
        values = [v if integral else str(v) for v in fact.values]
        kind = pa.int64() if integral else pa.string()
        return pa.array(values, kind).take(pa.array(np.where(absent, 0, codes), mask=absent))
    if isinstance(fact, Boolean):
        return pa.array(codes == 1, pa.bool_(), mask=absent)
    assert isinstance(fact, Bounds | Dates)
    numbers = draw_within_bins(coding, np.where(absent, 0, codes), random)
    return to_values(coding, numbers + _origin(fact), absent)


def to_values(coding: Coding, numbers: NDArray[Any], absent: NDArray[np.bool_]) -> pa.Array:
    """Return numbers on the scale of `comparable_bin_ends` as values of a column, NULL where `absent`."""
    if isinstance(coding.fact, Dates):
        days = np.where(absent, 0, numbers).astype(np.int32)
        return pa.array(days, pa.int32(), mask=absent).cast(pa.date32())
    if is_integral(coding):
        return pa.array(_to_integers(coding, np.where(absent, 0, numbers)), pa.int64(), mask=absent)
    return pa.array(numbers.astype(np.float64), pa.float64(), mask=absent)


def _to_integers(coding: Coding, numbers: NDArray[Any]) -> NDArray[np.int64]:
    """Return numbers on the scale of edges as 64-bit integers, clipped to the bounds: floats near 2**63 are
    rounded, and may lie outside."""
    assert isinstance(coding.fact, Bounds | Dates)
    low, high, _ = _range(coding.fact)
    if numbers.dtype != np.int64:
        numbers = np.clip(numbers, float(_INT64.min), _LARGEST_FLOAT_BELOW_2_63).astype(np.int64)
    integers: NDArray[np.int64] = np.clip(numbers, int(low), int(high))
    return integers


def draw_within_bins(coding: Coding, codes: NDArray[np.int64], random: np.random.Generator) -> NDArray[Any]:
    """Return a number drawn uniformly from the bin of each code, within the bounds, on the scale of edges: a
    whole number where the column `is_integral`."""
    assert isinstance(coding.fact, Bounds | Dates)
    first, last = bin_ends(coding)
    if is_integral(coding):
        least, largest = _to_integers(coding, first), _to_integers(coding, last)
        return random.integers(least[codes], largest[codes], endpoint=True)
    return first[codes] + (last - first)[codes] * random.random(len(codes))
