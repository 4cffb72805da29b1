"""Defines the public facts of a table: its schema, the unit of privacy, and the neighbor relation.

The price of a mechanism, its privacy cost, is computed for one `Public`, and the mechanism is refused on data
with another one. Nothing in a `Public` is ever read from the data: the steward, who is responsible for the
data, declares it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from enum import StrEnum
from fractions import Fraction
from typing import Annotated, Any

from . import _require
from ._errors import InvalidInput, PrivateFact, WrongRelation
from ._registry import OPTIONAL, described
from ._require import TEXT, at_least, at_most, instance_of, plain
from ._text import is_text, visible

# The largest absolute bound of a column: the width of the bounds, up to twice this, must be a finite float.
_LARGEST = 2**1022
# From here on different integers may be equal as floats.
_EXACT = 2**53
# The `version` of a table whose steward declares none. Answers about it are repeated within one opening only
# (`Door._question`).
UNVERSIONED = "not declared"
# The largest declared number of units: a convention, more than there are in any table.
_MAX_UNITS = 10**18


class Neighbors(StrEnum):
    """The neighbor relation: which two tables must be hard to tell apart.

    `ADD_REMOVE`: one unit more or less; the size is private. `REPLACE`: one unit's data replaced by any
    other; the size is public. `ZERO_OUT`: one unit's data replaced by a blank that contributes nothing; the
    size is public. Under the latter two the number of units does not change. In particular, where a column
    identifies units, the blank keeps an identifier of its own; it does not join the rows without an
    identifier, which together are one unit.
    """

    ADD_REMOVE = "add_remove"
    REPLACE = "replace"
    ZERO_OUT = "zero_out"


ADD_REMOVE, REPLACE, ZERO_OUT = Neighbors.ADD_REMOVE, Neighbors.REPLACE, Neighbors.ZERO_OUT


def as_neighbors(value: Any) -> Neighbors:
    """Return the relation that a string or a `Neighbors` names."""
    try:
        return Neighbors(value)
    except ValueError:
        raise InvalidInput(f"neighbors must be one of {', '.join(Neighbors)}, got {value!r}.") from None


# The limit of fields and parameters that name a column.
COLUMN = instance_of(str, "the name of a column")


@described("public.Unit")
@dataclass(frozen=True, slots=True)
class Unit:
    """Who is protected: one row (`column=None`), or all rows that share one value of `column`.

    `rows`: at most this many rows of one unit count in one group of an answer; `groups`: one unit counts in
    at most this many groups. Queries enforce both limits and are priced for them; nothing is assumed about
    the data. Both are defaults: a query may set its own limits. A query that needs a limit on rows is refused
    if neither sets one; without a limit on groups, that on rows takes its place.
    """

    column: str | None = None
    rows: Annotated[int, at_least(1)] | None = None
    groups: Annotated[int, at_least(1)] | None = None

    def __post_init__(self) -> None:
        if self.column is not None:
            COLUMN("column", self.column)
        _require.must(
            self.column != "", "column", self.column, "the name of a column, or None where a row is the unit"
        )

    def __repr__(self) -> str:
        limits = (("rows", self.rows), ("groups", self.groups))
        shown = "".join(f", {name}={limit}" for name, limit in limits if limit is not None)
        return f"Unit(column={self.column!r}{shown})"


def _set_missing(fact: Any, missing: Any, nullable: bool = True) -> None:
    """Check the codes of missing values that a fact is declared with, and set them as a tuple."""
    codes = tuple(plain(code) for code in _require.listed(missing=missing))
    for code in codes:
        is_number = isinstance(code, int | float) and not isinstance(code, bool) and math.isfinite(code)
        if not is_number and not (isinstance(code, str) and is_text(code)):
            raise _require.fail("missing", code, "made of numbers and texts, such as [98, 99, 'n/a']")
    _require.that(
        not codes or nullable,
        "a column with codes of missing values can be missing: leave nullable=False out, or missing=.",
    )
    object.__setattr__(fact, "missing", codes)


def rows() -> Unit:
    """Return the unit of privacy that is a single row: right only if nobody has two rows."""
    return Unit()


@described("public.Bounds")
@dataclass(frozen=True, slots=True)
class Bounds:
    """Declares a column of numbers between `lower` and `upper`; numbers outside are clipped.

    With `nullable`, a missing value contributes nothing.

    Without it, a missing value counts as `lower`: then everyone contributes a value in [lower, upper], and a
    sum has a smaller sensitivity under `replace`.

    `missing`: codes that stand for a missing value, such as 98 and 99; they are taken out before clipping.
    """

    lower: int | float | Fraction
    upper: int | float | Fraction
    nullable: bool = True
    missing: tuple[str | int | float, ...] = ()

    def __post_init__(self) -> None:
        _require.ordered(lower=self.lower, upper=self.upper)
        _set_missing(self, self.missing, self.nullable)
        _require.that(
            self.lower >= -_LARGEST and self.upper <= _LARGEST,
            f"bounds must lie within 2**1022 of zero, got {self.lower!r} and {self.upper!r}.",
        )


@described("public.Categories")
@dataclass(frozen=True, slots=True)
class Categories:
    """Declares a column with a public list of values; anything else, and a missing value, is in no category.
    `missing` lists codes of missing values, for the record: they are in no category anyway."""

    values: tuple[str | int, ...]
    missing: tuple[str | int | float, ...] = ()

    def __init__(self, values: Sequence[str | int], missing: Sequence[str | int | float] = ()) -> None:
        values = tuple(plain(value) for value in _require.listed(values=values))
        _require.non_empty(values=values)
        for value in values:
            if isinstance(value, bool) or not isinstance(value, str | int):
                raise _require.fail("a category", value, "a string or an integer")
            if isinstance(value, int) and abs(value) >= _EXACT:
                raise _require.fail("a category", value, "within 2**53 of zero, or a string")
            # Some engines end a text at NUL or refuse half a surrogate pair; a query would then fail after
            # its charge.
            if isinstance(value, str) and not is_text(value):
                raise _require.fail(
                    "a category", value, "a text without NUL and without half a surrogate pair"
                )
        as_read = values if all(isinstance(value, int) for value in values) else tuple(map(str, values))
        # In a column of text, 1 and "1" are the same value: a row would be in both categories.
        if len(set(as_read)) < len(values):
            raise InvalidInput(f"categories must differ from each other, got {list(values)!r}.")
        object.__setattr__(self, "values", values)
        _set_missing(self, missing)
        if both := sorted({str(code) for code in self.missing} & set(map(str, values))):
            raise InvalidInput(f"{both[0]!r} is declared as a category and as a code of a missing value.")


@described("public.Boolean")
@dataclass(frozen=True, slots=True)
class Boolean:
    """Declares a column of true and false. With `nullable`, a missing value is neither; without, it counts as
    false. `missing` is as in `Bounds`."""

    nullable: bool = True
    missing: tuple[str | int | float, ...] = ()

    def __post_init__(self) -> None:
        _set_missing(self, self.missing, self.nullable)


@described("public.Dates")
@dataclass(frozen=True, slots=True)
class Dates:
    """Declares a column of days between `lower` and `upper` (ISO: "2020-01-31"); days outside are clipped.
    `nullable` and `missing` (days such as "9999-12-31") are as in `Bounds`."""

    lower: str
    upper: str
    nullable: bool = True
    missing: tuple[str | int | float, ...] = ()

    def __post_init__(self) -> None:
        for name, value in (("lower", self.lower), ("upper", self.upper)):
            try:
                # A datetime is a date too: its time of day is cut off.
                day = (
                    value.isoformat()[:10]
                    if isinstance(value, date)
                    else date.fromisoformat(value).isoformat()
                )
            except (TypeError, ValueError):
                raise _require.fail(name, value, "a day such as '2020-01-31'") from None
            object.__setattr__(self, name, day)
        _set_missing(self, self.missing, self.nullable)
        if not self.lower < self.upper:
            raise InvalidInput(f"lower must be before upper, got {self.lower!r} and {self.upper!r}.")


@described("public.Text")
@dataclass(frozen=True, slots=True)
class Text:
    """Declares a column of any text, or any column whose possible values are not public. It can be compared,
    counted and joined on.

    As a grouping key it needs private partition selection, because which keys exist is private. `missing` is
    as in `Bounds`.
    """

    missing: tuple[str | int | float, ...] = ()

    def __post_init__(self) -> None:
        _set_missing(self, self.missing)


Fact = Bounds | Categories | Boolean | Dates | Text
FACTS = (Bounds, Categories, Boolean, Dates, Text)


# how many categories `Public.__str__` names
_NAMED = 10


def _columns_in_words(schema: Sequence[tuple[str, Fact]]) -> list[str]:
    """Return one line for each column: its name, and its declared range or values."""
    names = [visible(name) for name, _ in schema]
    width = max(map(len, names), default=0)
    return [f"  {name:{width}}  {_in_words(fact)}" for name, (_, fact) in zip(names, schema, strict=True)]


def _in_words(fact: Fact) -> str:
    """Return what is declared of a column: the range, or the first values."""
    if isinstance(fact, Categories):
        more = f", ... ({len(fact.values)} values)" if len(fact.values) > _NAMED else ""
        return ", ".join(visible(repr(value)) for value in fact.values[:_NAMED]) + more
    if isinstance(fact, Bounds | Dates):
        return f"from {fact.lower} to {fact.upper}" + (", or missing" if fact.nullable else "")
    if isinstance(fact, Boolean):
        return "true or false" + (", or missing" if fact.nullable else "")
    return "text"


@described("public.Reference")
class Reference:
    """Says whose the rows of a table are by another table, `of`: a row belongs to every unit that has a row
    there whose column `key` equals the row's own `column`.

    A row of an order belongs to the customer of the order. One that refers to the rows of two people is a row
    of each of them, as if each had a copy: a guarantee for one person then hides that person's part in it,
    and one for two people (twice the epsilon) the row itself. One that refers to nobody's is left out.
    """

    of: Annotated[str, TEXT]
    column: Annotated[str, TEXT]
    key: Annotated[str, TEXT]


@described("public.Related")
class Related:
    """Declares another table that queries may join.

    `private`: its rows belong to the units of the main table; its column `unit` says to which, or `unit` is a
    `Reference` to the rows of another private table.

    Without `private` its contents are public: everybody may know every row. `key` names columns whose values
    together are unique in it, so that joining on them adds no rows.
    """

    name: Annotated[str, TEXT]
    schema: tuple[tuple[str, Fact], ...] = ()
    private: bool = False
    unit: str | Reference | None = None
    key: tuple[str, ...] = ()

    @property
    def unit_column(self) -> str | None:
        """The column that says to which unit a row belongs; None where there is none, or it is a
        `reference`."""
        return self.unit if isinstance(self.unit, str) else None

    @property
    def reference(self) -> Reference | None:
        """What says to which units a row belongs, where no column does."""
        return self.unit if isinstance(self.unit, Reference) else None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", _freeze(self.schema))
        key = (self.key,) if isinstance(self.key, str) else _require.listed(key=self.key)
        object.__setattr__(self, "key", key)
        if self.unit is not None and not isinstance(self.unit, Reference):
            TEXT("unit", self.unit)
        _require.that(
            self.private or self.reference is None,
            f"table {self.name!r} is public: its rows belong to nobody, and need no reference. Leave it out, "
            "or declare private=True.",
        )
        _require.that(
            not self.private or self.unit is not None,
            f"table {self.name!r} is private: name the column that identifies the unit of a row, unit=...",
        )
        _require.that(
            not self.private or not self.key,
            f"table {self.name!r} is private and cannot have a key: whether its values are unique would "
            f"be a private fact.",
        )
        _require.that(
            not (unknown := [column for column in self.key if column not in dict(self.schema)]),
            f"the key of table {self.name!r} names {unknown}, which its schema does not declare.",
        )


@described("public.Public")
class Public:
    """The public facts of one version of one table.

    `size` is the number of units as the steward declares it. Under `replace` and `zero_out` it must be the
    true size; under `add_remove` the true size is private, and a declared one is only a public guess, which
    mechanisms may divide by.

    `version` names the state of the rows. The steward changes it when rows have changed, on a schedule that
    does not depend on them: whether a question is answered from the ledger, for nothing, depends on it.

    `min_people`: no answer in SQL shows a group of fewer people than this (docs/sql.md says how surely).
    """

    schema: tuple[tuple[str, Fact], ...] = ()
    unit: Annotated[Unit, instance_of(Unit, "rows() or Unit('the column that tells people apart')")] = Unit()
    neighbors: Neighbors = ADD_REMOVE
    size: Annotated[int, at_least(1), at_most(_MAX_UNITS)] | None = None
    table: Annotated[str, TEXT] = "data"
    version: Annotated[str, TEXT] = UNVERSIONED
    tables: tuple[Annotated[Related, instance_of(Related, "Related(...)")], ...] = ()
    min_people: Annotated[int, at_least(1), at_most(_MAX_UNITS)] | None = field(
        default=None, metadata=OPTIONAL
    )

    def __post_init__(self) -> None:
        object.__setattr__(self, "schema", _freeze(self.schema))
        _require.must(self.table, "table", self.table, "the name that queries have after FROM")
        units = [
            (self.unit.column, self.schema),
            *((other.unit_column, other.schema) for other in self.tables),
        ]
        for unit, schema in units:
            _require.that(
                (fact := dict(schema).get(unit or "")) is None or not fact.missing,
                f"column {unit!r} tells people apart and has codes of missing values. Declare missing= "
                "for other columns only: rows without an id are left out.",
            )
        names = [self.table, *(other.name for other in self.tables)]
        if len({name.lower() for name in names}) < len(names):
            raise InvalidInput(f"two tables have the same name: {names}.")
        for other in self.tables:
            if other.reference is not None:
                self._check_reference(other.name, other.reference)

    def _check_reference(self, name: str, reference: Reference) -> None:
        """Refuse a reference that leads to no unit, or by columns that are not declared as texts."""
        private = {t.name: t for t in self.tables if t.private}
        of, seen = reference.of, {name}
        while of != self.table and of not in seen and of in private and private[of].reference is not None:
            seen.add(of)
            of = private[of].reference.of  # type: ignore[union-attr]
        leads = of == self.table or (of in private and private[of].unit_column is not None)
        _require.that(
            self.unit.column is not None and leads,
            f"table {name!r} refers to {reference.of!r}, which does not lead to a column of the unit. Refer "
            "to the main table or to a private one that has it, and not in a circle."
            f"{_require.did_you_mean(reference.of, [self.table, *private])}",
        )
        schemas = {self.table: self.schema, **{t.name: t.schema for t in self.tables}}
        for table, column in ((name, reference.column), (reference.of, reference.key)):
            fact = dict(schemas[table]).get(column)
            _require.that(
                isinstance(fact, Text) and not fact.missing,
                f"table {name!r} refers to {reference.of!r} by column {column!r} of table {table!r}: declare "
                'it there, type = "text" and without missing=.',
            )

    def __str__(self) -> str:
        """Return the tables, each with its columns and what is declared of them, and who is protected."""
        unit = f"all rows of one {visible(self.unit.column)}" if self.unit.column else "one row"
        limit = f", of which {self.unit.rows} count" if self.unit.column and self.unit.rows else ""
        lines = [f"table {visible(self.table)}: protects {unit}{limit}, under {self.neighbors}"]
        lines += _columns_in_words(self.schema)
        for other in self.tables:
            r = other.reference
            whose = "" if r is None else f", by {visible(r.column)} of {visible(r.of)}.{visible(r.key)}"
            lines.append(f"{'private' if other.private else 'public'} table {visible(other.name)}{whose}")
            lines += _columns_in_words(other.schema)
        return "\n".join(lines)

    def fact(self, column: str) -> Fact:
        """Return what is declared of a column."""
        COLUMN("column", column)
        for name, fact in self.schema:
            if name == column:
                return fact
        raise PrivateFact(
            f"nothing is declared of column {column!r}.{_require.did_you_mean(column, dict(self.schema))} "
            f"Declared: {', '.join(name for name, _ in self.schema) or 'no column'}. Bounds and categories "
            f"are never read off the data: declare them in the schema, or buy them with a private mechanism."
        )

    def bounds(self, column: str) -> Bounds:
        fact = self.fact(column)
        if not isinstance(fact, Bounds):
            raise InvalidInput(
                f"column {column!r} is declared as {_WORDS[type(fact)]}; this needs Bounds(lower, upper)."
            )
        return fact

    def categories(self, column: str) -> Categories:
        fact = self.fact(column)
        if not isinstance(fact, Categories):
            raise InvalidInput(
                f"column {column!r} is declared as {_WORDS[type(fact)]}; this needs Categories([...])."
            )
        return fact

    def declared_size(self, purpose: str) -> int:
        """Return the size as declared; never `len(data)`."""
        if self.size is None:
            raise PrivateFact(
                f"{purpose} needs the number of units, and none is declared. It is never read off the data: "
                f"declare Public(size=...), or buy a noisy count."
            )
        return self.size


# The limit of fields and parameters that hold the public facts of a table.
PUBLIC = instance_of(Public, "the public facts of a table, Public(...)")

_WORDS: dict[type, str] = {
    Bounds: "a number",
    Categories: "categories",
    Boolean: "true or false",
    Dates: "dates",
    Text: "text",
}


def require_relation(neighbors: Neighbors, *allowed: Neighbors, what: str) -> None:
    """Raise WrongRelation unless `what`, a guarantee, is proved for this neighbor relation."""
    if neighbors not in allowed:
        raise WrongRelation(f"{what} is proved for {' and '.join(allowed)}, not for {neighbors}.")


def _freeze(schema: Any) -> tuple[tuple[str, Fact], ...]:
    """Return a schema, given as a mapping or as pairs, as a tuple of (column, fact); refuse anything else."""
    pairs = tuple(
        schema.items()
        if isinstance(schema, Mapping)
        else (_require.listed(a_column=pair) for pair in _require.listed(schema=schema))
    )
    if any(len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
        raise _require.fail(
            "schema", schema, "public facts by the name of a column, such as {'age': Bounds(0, 120)}"
        )
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        raise InvalidInput(f"a column is declared twice in the schema: {names}.")
    for name, fact in pairs:
        _require.must(
            isinstance(fact, FACTS),
            f"the schema of column {name!r}",
            fact,
            "Bounds(lower, upper), Categories([...]), Dates, Boolean or Text",
        )
    return pairs
