"""Writes the engine's query of a workload: the number of rows for each combination of classes of marks, with
at most a given number of rows per unit.

A mark is a group key or an atom of a condition; its classes are its few possible results, numbered from 0. A
family is one count of a query, in all its groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import date
from typing import Annotated, Any

import numpy as np
from sqlglot import exp

from .. import _require
from .._public import ADD_REMOVE, Bounds, Fact, Public
from .._require import at_least, at_most
from ..mechanisms.protocols import Sensitivity
from ..tables import Engine, semantics
from ..tables.dialect import Dialect
from ..tables.semantics import SelectNode, aliased, name, select
from .domain import Kind
from .errors import Node
from .exact import PLACEHOLDER, integers
from .form import check_values, checked
from .measures import MAX_ROWS
from .nodes import Call, Column, Expr, literal, sql
from .operators import if_
from .scan import Kinds, Reader, binary, coalesced, convert, integer_literal
from .sources import From, columns_of

# The classes of a condition, in the three-valued logic of SQL.
TRUE, FALSE, MISSING = 1, 0, 2


@dataclass(frozen=True, slots=True)
class Mark:
    """Holds a group key with its public `values`, or a condition (`values` is None).

    The classes of a key are the positions of its values, and one more for all other values and NULL; those of
    a condition are TRUE, FALSE and MISSING.
    """

    expression: Expr
    values: tuple[object, ...] | None

    @property
    def size(self) -> int:
        """How many classes there are."""
        return 3 if self.values is None else len(self.values) + 1

    def classes(self, results: Any) -> Any:
        """Return the class of each result of the expression."""
        if self.values is None:
            truths = np.asarray(results, dtype=float)
            return np.where(np.isnan(truths), MISSING, np.where(truths == 1.0, TRUE, FALSE)).astype(np.int64)
        index_of = {_plain(v): i for i, v in enumerate(self.values)}
        return np.array(
            [index_of.get(_plain(r), len(self.values)) for r in np.ravel(results).tolist()], np.int64
        )


@dataclass(frozen=True, slots=True)
class Family:
    """Describes a family of counts, which is one count of a query in all groups: for each combination of
    values of `keys` (positions in the list of marks), the number of rows for which `condition` is true. It is
    measure number `measure` of plan number `plan`."""

    plan: int
    measure: int
    keys: tuple[int, ...]
    condition: Expr | None


def _plain(v: Any) -> Any:
    """Return a form of a value that Python compares as SQL does: numbers and booleans as float, dates as
    text."""
    if isinstance(v, bool | int | float | np.number):
        return float(v)
    return v.isoformat() if isinstance(v, date) else v


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class RowCounts:
    """Describes the counting of rows by the classes of their marks; of one unit at most `max_rows` rows
    count, in all combinations of classes together.

    Guarantee: between any two neighbors the numbers of rows in all combinations change within `sensitivity`.
    Proof:     a row is in one combination, as each mark has one class. A unit has at most `max_rows` rows,
    and
               which of them count depends on its own rows and the key of the hash alone (`counts_sql`). A
               unit that is replaced takes its rows out of some combinations, and puts as many into others.
    """

    public: Public
    source: From
    marks: tuple[Mark, ...]
    families: tuple[Family, ...]
    max_rows: Annotated[int, at_least(1), at_most(MAX_ROWS)]
    many: bool = field(init=False, compare=False, repr=False)
    # a cache of the engine's query
    written: dict[Any, str] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        whose = checked(self.source, self.public, tuple(m.expression for m in self.marks))
        for mark in self.marks:
            check_values(mark.expression, (False,) if mark.values is None else mark.values)
        object.__setattr__(self, "many", not whose.single)

    @property
    def sensitivity(self) -> Sensitivity:
        """How much one unit can change the number of rows in all combinations of classes."""
        rows = self.max_rows if self.public.neighbors is ADD_REMOVE else 2 * self.max_rows
        return Sensitivity(linf=self.max_rows, l0=rows, l1=rows)

    @property
    def exchanges(self) -> bool:
        """Whether neighbors differ by one row in another cell, for which some strategies have a tighter bound
        than for any two changes: where a unit is a row that is replaced."""
        return not self.many and self.public.neighbors is not ADD_REMOVE

    def statement(self, kinds: Kinds, dialect: Dialect) -> str:
        """Return the engine's query, with a placeholder for the key of the hash that chooses which rows of a
        unit count; it is written once per dialect and kinds of columns."""
        tables = sorted((table, *sorted(columns.items())) for table, columns in kinds.items())
        written_for = (tuple(tables), dialect.name)
        if written_for not in self.written:
            self.written[written_for] = counts_sql(self, kinds, self.max_rows, PLACEHOLDER, dialect)
        return self.written[written_for]

    def measure(self, engine: Engine, key: int) -> tuple[list[Any], Any]:
        """Return the exact numbers of rows: the class of each mark in the combinations that occur, and the
        number of rows in each of them. They are private."""
        statement = self.statement(engine.id_kinds, engine.dialect)
        table = engine.answer(statement.replace(str(PLACEHOLDER), str(key)))
        n = np.asarray(integers(table.column("n")), dtype=np.int64)
        return [integers(table.column(f"c{i}")) for i in range(len(self.marks))], n


def counts_sql(counts: RowCounts, kinds: Kinds, max_rows: int, key: int, dialect: Dialect) -> str:
    """Return SQL whose result has one row for each combination of classes that occurs: the classes c0, c1,
    ... of the marks, and n, the number of rows.

    Where a unit may have several rows, at most `max_rows` of each count: its combinations are taken in the
    order of a hash with the secret `key`, each with as many rows as are left of `max_rows`. Which rows of a
    unit count depends on its own rows and the key alone, so that one unit changes the counts by at most
    `max_rows` in all.

    Columns of the query: u the unit, w how many rows of the table a row stands for
    (`sources.Carried.multiplicity`), r the rows of a unit in one combination, h their hash, t the running
    total of r in the order of h.
    """
    reader = Reader(counts.source, columns_of(*(m.expression for m in counts.marks)), kinds, counts.public)
    marks = [aliased(_index(m, _value(m, reader.raw)), f"c{i}") for i, m in enumerate(counts.marks)]
    source = reader.sql().subquery("s")
    codes = [name(f"c{i}") for i in range(len(marks))]
    if reader.carried.single:
        rows = select(*(marks or [aliased(integer_literal(1), "x")])).from_(source)
        query = select(*codes, aliased(exp.Count(this=exp.Star()), "n")).from_("rows")
        return dialect.write(_group_by(query.with_("rows", as_=rows), codes))
    multiplicity = reader.carried.multiplicity
    weights = [] if multiplicity is None else ["w"]
    weight_columns = [aliased(name(str(multiplicity)), w) for w in weights]
    rows = select(aliased(name(reader.carried.unit), "u"), *weight_columns, *marks).from_(source)
    query = select().with_("rows", as_=rows)
    pairs = select(
        name("u"),
        *(aliased(exp.Max(this=name(w)), w) for w in weights),
        *codes,
        aliased(exp.Count(this=exp.Star()), "r"),
    ).from_("rows")
    pairs = pairs.where(_counts_row(counts))
    query = query.with_("pairs", as_=pairs.group_by(name("u"), *(c.copy() for c in codes)))
    rank = semantics.KeyedHash(key=key, expressions=[name("u"), *(c.copy() for c in codes)])
    kept = [*(name(w) for w in weights), *(c.copy() for c in codes), name("r")]
    ranked = select(name("u"), *kept, aliased(rank, "h")).from_("pairs")
    query = query.with_("ranked", as_=ranked)
    order = [name(n) for n in ("h", *(f"c{i}" for i in range(len(marks))))]
    running_total = semantics.WindowSum(this=name("r"), by=[name("u")], order=order)
    running = select(*(column.copy() for column in kept), aliased(running_total, "t")).from_("ranked")
    query = query.with_("running", as_=running)
    # The combinations before this one have t - r rows; of its own r rows as many count as are left of
    # `max_rows`.
    remaining = binary(exp.Sub, integer_literal(max_rows), binary(exp.Sub, name("t"), name("r")))
    kept_rows: Node = semantics.Greatest(
        expressions=[semantics.Least(expressions=[name("r"), remaining]), integer_literal(0)]
    )
    if weights:
        kept_rows = binary(exp.Mul, kept_rows, name("w"))
    # without marks there is one combination, also of no rows, whose sum is NULL
    total = coalesced(convert(semantics.WideSum(this=kept_rows), "bigint"), integer_literal(0))
    query = query.select(*(c.copy() for c in codes), aliased(total, "n")).from_("running")
    return dialect.write(_group_by(query, codes))


def _counts_row(counts: RowCounts) -> Node:
    """Return the SQL condition that some query counts a row. Rows that no query counts are left out before
    the limit, so that they do not use up a unit's `max_rows`."""
    return exp.or_(*(exp.and_(*_conditions(counts, family)) for family in counts.families))


def _conditions(counts: RowCounts, family: Family) -> list[Node]:
    """Return the SQL conditions under which a family counts a row: its keys have public values (the last
    class of a key is that of all others), and its condition is true."""
    has_public_keys: list[Node] = [
        exp.LT(this=name(f"c{k}"), expression=integer_literal(counts.marks[k].size - 1))
        for k in dict.fromkeys(family.keys)
    ]
    is_true = [] if family.condition is None else [_holds(counts, family.condition, TRUE)]
    return [*has_public_keys, *is_true] or [exp.Boolean(this=True)]


def _holds(counts: RowCounts, condition: Expr, wanted: int) -> Node:
    """Return the SQL condition that `condition` has the class `wanted`, TRUE or FALSE, from the classes of
    its atoms. In three-valued logic AND is true where all arguments are, and false where one argument is; OR
    is the reverse."""
    if isinstance(condition, Call) and condition.op == "not":
        return _holds(counts, condition.args[0], FALSE if wanted == TRUE else TRUE)
    if isinstance(condition, Call) and condition.op in ("and", "or"):
        parts = [_holds(counts, arg, wanted) for arg in condition.args]
        return exp.paren(exp.and_(*parts) if (condition.op == "and") == (wanted == TRUE) else exp.or_(*parts))
    index = counts.marks.index(Mark(condition, None))
    return exp.EQ(this=name(f"c{index}"), expression=integer_literal(wanted))


def _group_by(query: SelectNode, codes: list[Node]) -> SelectNode:
    return query.group_by(*(c.copy() for c in codes)) if codes else query


def _value(mark: Mark, raw: dict[str, tuple[Fact, str]]) -> Node:
    """Return the SQL of a mark's expression: a key that is a stored column declared as categories as it is,
    without a conversion to DOUBLE (`raw`, from `scan.Reader`), and any other expression as computed."""
    x = mark.expression
    if mark.values is not None and isinstance(x, Column) and x.name in raw:
        fact, _ = raw[x.name]
        return sql(x) if isinstance(fact, Bounds) else name(f"{x.name}r")
    return sql(x)


def _index(mark: Mark, x: Node) -> Node:
    """Return the class of a row as SQL, from the mark's expression `x`. It must agree with `Mark.classes`."""
    if mark.values is None:
        return _truth(x, FALSE, TRUE, MISSING)
    values = mark.values
    if mark.expression.domain.kind is Kind.BOOLEAN and values == (False, True):
        return _truth(x, 0, 1, 2)
    first = values[0]
    if isinstance(first, int) and values == tuple(range(first, first + len(values))):
        inside = exp.Between(
            this=x, low=integer_literal(first), high=integer_literal(first + len(values) - 1)
        )
        whole = exp.EQ(this=x.copy(), expression=semantics.Floor(this=x.copy()))
        both = exp.and_(inside, whole)
        return if_(
            both,
            convert(binary(exp.Sub, x.copy(), integer_literal(first)), "bigint"),
            integer_literal(len(values)),
        )
    cases = [exp.If(this=literal(v), true=integer_literal(i)) for i, v in enumerate(values)]
    return exp.Case(this=x, ifs=cases, default=integer_literal(len(values)))


def _truth(x: Node, false: int, true: int, missing: int) -> Node:
    """Return one of three numbers for a condition that is false, true or NULL."""
    ifs = [
        exp.If(this=x, true=integer_literal(true)),
        exp.If(this=exp.Not(this=exp.Paren(this=x.copy())), true=integer_literal(false)),
    ]
    return exp.Case(ifs=ifs, default=integer_literal(missing))
