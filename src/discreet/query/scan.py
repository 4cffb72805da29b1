"""Writes the SQL that reads the tables of a plan: every column gets a name of ours, is converted to its
declared type and clipped to its declared bounds, by operations that cannot fail on any row (an error would
reveal something about that row).

Names of columns: the table with prefix t0 has t0u, the unit of privacy in its canonical form
(`semantics.Canonical`); t0w, the text of that form; t0c0, t0c1, ..., the declared columns, cleaned
(`cleaned`); t0c0r, ..., the same columns raw, as the table has them, for sums that themselves round a number
to its grid (`amounts`), and for group keys; t0i, the identity of a row where a row is the unit. Computed
columns are t0p0, ... (`Projected`), t0k0, ... and t0a0, ... (keys and aggregates per unit), and t0m, t0n, t0c
(`Marked`). Stored answers are found by a text with these names: they must not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date

from sqlglot import exp

from .._errors import Unsupported
from .._public import Boolean, Bounds, Categories, Dates, Fact
from ..tables import semantics
from ..tables.columns import coarse, codes_as_days, codes_as_texts
from ..tables.dialect import Dialect
from ..tables.semantics import SelectNode, aliased, name, select
from ..tables.source import ROW
from .domain import Kind
from .errors import Node
from .measures import decimal_places, grid
from .nodes import Column, Expr, Literal, literal, make, sql
from .operators import clipped, double, if_
from .sources import Filtered, From, Joined, Marked, Projected, Scan, columns_of, is_within_range

# by table and column, the kind of values that the engine has there (`Engine.id_kinds`)
Kinds = Mapping[str, Mapping[str, str]]


def integer_literal(value: int) -> Node:
    return exp.Literal.number(value) if value >= 0 else exp.Neg(this=exp.Literal.number(-value))


def convert(node: Node, to: str) -> Node:
    return semantics.Convert(this=node, to=to)


def coalesced(node: Node, other: Node) -> Node:
    return exp.Coalesce(this=node, expressions=[other])


def binary(cls: type, a: Node, b: Node) -> Node:
    return exp.Paren(this=cls(this=a, expression=b))


def all_of(conditions: list[Node]) -> Node:
    return exp.and_(*conditions, copy=False)


def not_null(column: str) -> Node:
    return exp.Not(this=exp.Is(this=name(column), expression=exp.Null()))


def clean(x: Expr) -> Expr:
    """Return an expression's number clipped to its public range, and NULL where it is not finite.

    Columns of tables are clipped already; computed numbers may leave their range by a rounding error
    (`is_within_range`).
    """
    domain = x.domain
    is_clipped = isinstance(x, Column) and is_within_range(x)
    if is_clipped or domain.kind is not Kind.NUMBER:
        return x
    if not domain.bounded:
        return x if domain.finite else make("finite", x)
    # CLAMP refuses equal bounds. A number with one value only is off by a rounding error at most, which sums
    # remove by rounding to the grid, so that a wider range will do.
    high = domain.high if domain.high > domain.low else domain.low + max(1.0, abs(domain.low))
    return make("clamp", x, Literal(domain.low), Literal(high))


def raw_columns(node: From, kinds: Kinds) -> dict[str, tuple[Fact, str]]:
    """Return the cleaned columns that may be read raw instead (name + "r"), each with its declared fact and
    the engine's kind: numbers with declared bounds, and integers that are declared as categories."""
    if isinstance(node, Scan):
        own = kinds.get(node.table, {})
        return {
            node.alias(c): (fact, coarse(own.get(c, "text")))
            for c, fact in node.schema
            if c != node.unit and _is_raw(fact, own.get(c, "text"))
        }
    if isinstance(node, Filtered | Marked):
        return raw_columns(node.child, kinds)
    if isinstance(node, Joined):
        right = raw_columns(node.right, kinds)
        # In a row without a partner the raw column is NULL, too. For a column that is declared as never NULL
        # it would then count as the lower bound, as any NULL of it does; so that column is not read raw.
        if node.kind == "left":
            right = {alias: (fact, kind) for alias, (fact, kind) in right.items() if not _is_never_null(fact)}
        return {**raw_columns(node.left, kinds), **right}
    return {}


def _is_never_null(fact: Fact) -> bool:
    """Return whether a column is declared as never NULL: then a NULL in the table counts as its lower
    bound."""
    return isinstance(fact, Bounds) and not fact.nullable


def _is_raw(fact: Fact, kind: str) -> bool:
    """Return whether `raw_columns` lists a column of this declared fact and engine's kind."""
    if isinstance(fact, Bounds):
        return coarse(kind) in ("integer", "number")
    return isinstance(fact, Categories) and kind == "integer" and all(isinstance(v, int) for v in fact.values)


def used_columns(node: From) -> set[str]:
    """Return the names of the columns that the conditions, keys and computed columns of a source use."""
    if isinstance(node, Scan):
        return set()
    if isinstance(node, Filtered):
        return columns_of(node.condition) | used_columns(node.child)
    if isinstance(node, Joined):
        return columns_of(*node.on) | used_columns(node.left) | used_columns(node.right)
    if isinstance(node, Projected):
        return columns_of(*node.columns) | used_columns(node.child)
    if isinstance(node, Marked):
        compared = columns_of(*(side for pair in node.pairs for side in pair))
        return compared | used_columns(node.child) | used_columns(node.right)
    # only `UnitAggregate` is left
    return columns_of(*node.keys, *(a for _, a in node.aggregates)) | used_columns(node.child)


def _joins(node: From) -> int:
    """Return the number of joins in a source, by which the columns found1, found2, ... of nested joins get
    different names."""
    if isinstance(node, Joined):
        return 1 + _joins(node.left) + _joins(node.right)
    return 0 if isinstance(node, Scan) else _joins(node.child)


def source_sql(node: From, used: set[str], kinds: Kinds) -> SelectNode:
    """Return the SELECT of what a query reads, with the names of columns that the module's docstring lists;
    only columns of tables in `used` are read."""
    if isinstance(node, Scan):
        return _scan_sql(node, used, kinds)
    if isinstance(node, Filtered):
        child = source_sql(node.child, used, kinds).subquery("f")
        return select("*").from_(child).where(sql(node.condition))
    if isinstance(node, Joined):
        left, right = (source_sql(side, used, kinds) for side in (node.left, node.right))
        joined = select("*").from_(left.subquery("l"))
        if not node.on:
            return joined.join(right.subquery("r"), kind="CROSS")
        on = all_of([sql(c) for c in node.on])
        if node.kind == "left":
            return joined.join(right.subquery("r"), on=on, side="LEFT")
        # An inner join is written as a left join and a filter: the engine may not move filters (see
        # `tables.engines.duckdb_reading`), and plans this form well all the same.
        found = f"found{_joins(node)}"
        right = right.select(aliased(exp.Boolean(this=True), found))
        return joined.join(right.subquery("r"), on=on, side="LEFT").where(not_null(found))
    child = source_sql(node.child, used, kinds).subquery("p")
    if isinstance(node, Marked):
        return _marked_sql(node, select("*").from_(child), source_sql(node.right, used, kinds))
    if isinstance(node, Projected):
        projections = [aliased(sql(c), f"{node.prefix}p{i}") for i, c in enumerate(node.columns)]
        return select("*", *projections).from_(child)
    # only `UnitAggregate` is left
    unit = name(node.unit)
    query = select(aliased(unit, f"{node.prefix}u"), aliased(convert(unit.copy(), "text"), f"{node.prefix}w"))
    keys = [sql(k) for k in node.keys]
    query = query.select(*(aliased(k, f"{node.prefix}k{i}") for i, k in enumerate(keys)))
    query = query.select(
        *(aliased(_per_unit(f, a), f"{node.prefix}a{i}") for i, (f, a) in enumerate(node.aggregates))
    )
    return query.from_(child).group_by(unit.copy(), *(k.copy() for k in keys))


def _marked_sql(node: Marked, rows: SelectNode, right: SelectNode) -> SelectNode:
    """Add the columns of a mark (`sources.Marked`) to `rows`, by a left join with the DISTINCT inner values,
    which adds no rows.

    The engine's own EXISTS would compare each row with all rows of `right`, as the engine may not move
    filters (see `tables.engines.duckdb_reading`).
    """
    prefix = node.prefix
    if not node.pairs:
        any_row = exp.GT(this=exp.Count(this=exp.Star()), expression=integer_literal(0))
        totals = select(aliased(any_row, f"{prefix}m")).from_(right.subquery("i"))
        return rows.join(totals.subquery("x"), kind="CROSS")
    inner = [aliased(sql(expression), f"{prefix}k{i}") for i, (_, expression) in enumerate(node.pairs)]
    listed = select(*inner).distinct().from_(right.subquery("i"))
    marked = select("*", aliased(exp.Boolean(this=True), f"{prefix}m")).from_(listed.subquery("d"))
    on = all_of(
        [exp.EQ(this=sql(own), expression=name(f"{prefix}k{i}")) for i, (own, _) in enumerate(node.pairs)]
    )
    rows = rows.join(marked.subquery("x"), on=on, side="LEFT")
    if not node.counted:
        return rows
    counts = [
        aliased(convert(exp.Count(this=exp.Star()), "double"), f"{prefix}n"),
        aliased(convert(exp.Count(this=sql(node.pairs[0][1])), "double"), f"{prefix}c"),
    ]
    return rows.join(select(*counts).from_(right.copy().subquery("i")).subquery("y"), kind="CROSS")


def _per_unit(function: str, argument: Expr | None) -> Node:
    """Return an aggregate of one unit's rows. Sums are exact: values are rounded to decimals
    (`measures.decimal_places`) or to the grid, and added as integers, so that the result does not depend on
    the order of rows, nor on other units."""
    if function == "count":
        return convert(exp.Count(this=exp.Star() if argument is None else sql(argument)), "double")
    assert argument is not None
    if function == "distinct":
        return convert(exp.Count(this=exp.Distinct(expressions=[sql(argument)])), "double")
    x = sql(clean(argument))
    if function in ("min", "max"):
        return exp.Min(this=x) if function == "min" else exp.Max(this=x)
    places, (step, _, _) = decimal_places(argument.domain), grid(argument.domain)
    # how many integers there are to 1; a step of the grid may also be a multiple of 1
    per_one = double(float(1 / step) if places is None else 10.0**places)
    steps = semantics.NearestWhole(this=semantics.Times(this=x, expression=per_one))
    total = convert(semantics.WideSum(this=steps), "double")
    # One division, which rounds once: the average of 0.1, 0.2 and 0.3 is 6 / 30, and not 0.6 / 3.
    if function == "avg":
        count = convert(exp.Count(this=x.copy()), "double")
        per_one = semantics.Times(this=count, expression=per_one.copy())
    return semantics.Divide(this=total, expression=per_one.copy())


def _scan_sql(scan: Scan, used: set[str], kinds: Kinds) -> SelectNode:
    """Return the SELECT of the used columns of one table, cleaned, under our names. Rows whose unit is NULL
    are left out, as they belong to nobody."""
    columns: list[Node] = []
    own = kinds.get(scan.table, {})
    if scan.private and scan.unit is None:
        columns.append(aliased(name(ROW), f"{scan.prefix}u"))
    elif scan.unit is not None:
        kind = own.get(scan.unit, "text")
        columns.append(aliased(semantics.Canonical(this=name(scan.unit), kind=kind), f"{scan.prefix}u"))
        if f"{scan.prefix}w" in used:
            columns.append(aliased(semantics.canonical_text(name(scan.unit), kind), f"{scan.prefix}w"))
    for column, fact in scan.schema:
        alias = scan.alias(column)
        if alias in used and column != scan.unit:
            columns.append(aliased(cleaned(name(column), fact, own.get(column, "text")), alias))
            if _is_raw(fact, own.get(column, "text")):
                columns.append(aliased(semantics.without_numbers(name(column), fact.missing), f"{alias}r"))
    # a SELECT needs a column, even if none is used
    query = select(*(columns or [aliased(integer_literal(1), f"{scan.prefix}n")])).from_(
        exp.Table(this=exp.to_identifier(scan.table, quoted=True))
    )
    if _row_id(scan) in used and scan.private and scan.unit is None:
        return _with_identity(query, scan)
    return query.where(not_null(scan.unit)) if scan.private and scan.unit is not None else query


def identity(node: From, unit: str) -> str | None:
    """Return the name of the column with the identity of a row, if a row is the unit, for the argument `used`
    of `source_sql`; None where a column of the table is the unit."""
    if isinstance(node, Scan):
        own = node.private and node.unit is None and f"{node.prefix}u" == unit
        return _row_id(node) if own else None
    if isinstance(node, Joined):
        return identity(node.left, unit) or identity(node.right, unit)
    return identity(node.child, unit)


def refuse_without_row_numbers(row_id: str | None, dialect: Dialect) -> str | None:
    """Return the result of `identity` unchanged; refuse it for an engine that cannot number rows, as a join
    may repeat a row, and all copies must be known to be one row."""
    if row_id is not None and not dialect.numbers_rows:
        raise Unsupported(
            f"here a row is the unit, and this query may use a row several times: {dialect.name} has no "
            "number that tells rows apart for good. Declare a column that is different in every row: as the "
            "unit, unit='visit_id', or with Spark as key='visit_id'; or ask without the join."
        )
    return row_id


def _row_id(scan: Scan) -> str:
    return f"{scan.prefix}i"


def _with_identity(query: SelectNode, scan: Scan) -> SelectNode:
    """Add the identity of a row: a hash of its content, the values that the query reads of it, and of its
    number among the rows with the same content.

    Where a join repeats a row, this identity decides which of the copies count, and never the row's position
    in the table, which changes when another row is removed.

    Guarantee: when one row is removed, the identities of all others stay the same, up to exchanges among rows
               of equal content.
    Proof:     rows are numbered among those of equal content, so that rows of another content keep their
               numbers; if one of n rows of equal content is removed, the others have the numbers 1 to n - 1.
               Which of them has which number changes nothing, because the query reads equal values of them.

    NULLs are equal here, and so is every NaN; the sign of a zero belongs to the content, as the engine calls
    the two zeros equal and prints them differently.
    """
    # The first column is the row's position, which is no content.
    content = [name(column.alias) for column in query.selects[1:]]
    numbers = {scan.alias(column) for column, fact in scan.schema if isinstance(fact, Bounds)}
    signs = [
        semantics.SignBit(this=convert(c.copy(), "double"))
        for c in content
        if c.name.removesuffix("r") in numbers
    ]
    # The order only decides which of equal rows gets which number. It is by position, so that computing it
    # again gives the same numbers.
    order = exp.Order(expressions=[exp.Ordered(this=name(query.selects[0].alias))])
    ordinal = exp.Window(this=exp.RowNumber(), partition_by=[*content, *signs], order=order)
    parts = [*(column.copy() for column in (*content, *signs)), ordinal]
    return select("*", aliased(semantics.ContentHash(expressions=parts), _row_id(scan))).from_(
        query.subquery("c")
    )


def cleaned(column: Node, fact: Fact, id_kind: str) -> Node:
    """Return a column as declared: converted to the declared type and clipped to the bounds; a text is that
    of the canonical form. A value that cannot be converted, or is not among the declared categories, is NULL;
    a NULL becomes the lower bound, or false, where the column is declared as never NULL."""
    kind = coarse(id_kind)
    if isinstance(fact, Bounds):
        low, high = double(float(fact.lower)), double(float(fact.upper))
        stored = _as("double", column, kind in ("integer", "number", "boolean"))
        number = semantics.without_numbers(stored, fact.missing)
        inside = clipped(number, low, high, may_be_nan=kind != "integer")
        return inside if fact.nullable else coalesced(inside, low.copy())
    if isinstance(fact, Dates):
        low, high = (literal(date.fromisoformat(end)) for end in (fact.lower, fact.upper))
        days = codes_as_days(fact.missing)
        day = semantics.without_codes(_as("date", column, kind == "date"), [literal(code) for code in days])
        inside_days = _clipped_day(day, low, high)
        return inside_days if fact.nullable else coalesced(inside_days, low.copy())
    if isinstance(fact, Boolean):
        stored = semantics.without_numbers(column, fact.missing) if kind == "integer" else column
        truth = _as("boolean", stored, kind in ("boolean", "integer"))
        return truth if fact.nullable else coalesced(truth, exp.Boolean(this=False))
    if isinstance(fact, Categories) and all(isinstance(v, int) for v in fact.values):
        return _listed_only(_as("double", column, kind in ("integer", "number")), fact)
    text = semantics.canonical_text(column, id_kind)
    if isinstance(fact, Categories):
        words: list[Node] = [exp.Literal.string(str(value)) for value in fact.values]
        return if_(exp.In(this=text.copy(), expressions=words), text)
    return semantics.without_codes(text, [literal(code) for code in codes_as_texts(fact.missing)])


def _listed_only(x: Node, fact: Categories) -> Node:
    """Return a number, or NULL if it is not among the declared categories: the sensitivity of sums is
    computed from the declared ones."""
    listed = exp.In(this=x.copy(), expressions=[double(float(value)) for value in fact.values])
    return if_(exp.And(this=semantics.IsFinite(this=x.copy()), expression=listed), x)


def _as(to: str, column: Node, safe: bool) -> Node:
    """Return a conversion that cannot fail; `safe`: no value of this kind can fail it, so that the plain one
    will do."""
    return convert(column, to) if safe else semantics.SafeCast(this=column, to=to)


def _clipped_day(day: Node, low: Node, high: Node) -> Node:
    """Clip a day to its declared bounds; NULL stays NULL."""
    cases = [
        (exp.LT(this=day.copy(), expression=low), low.copy()),
        (exp.GT(this=day.copy(), expression=high), high.copy()),
    ]
    return exp.Case(ifs=[exp.If(this=c, true=v) for c, v in cases], default=day)
