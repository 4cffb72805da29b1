"""Describes what a plan reads, as a tree: scans of tables, filters, joins, computed columns, and sub-queries
with one row per unit of privacy (a person, or a row).

No node names the unit: `carried` computes from the tree and the public facts alone whether its rows are
private, in which column they carry their unit, and whether a unit may have several of them. `scan` writes the
tree as SQL by the same rules, and lists what columns are called there (t0c1). Whoever builds a tree can ask a
useless question, but none in which one unit's rows decide about another's.

Guarantee: the rows of a private source that carry a unit x depend on the rows of x and on public tables only,
           and every row carries one unit.
Proof:     by induction over the nodes, as `scan` writes them. A scan carries the unit of each row; of a
           table that refers to another one, it has a copy of each row for every unit that has a row there:
           a row of two people counts as one row of each, and to take it away from the table changes both.
           Filters, computed columns and marks by public rows look at one row and at public tables. A join of
           two private sources, and a mark by a private source, match rows of one unit only, as the writer
           adds that condition. Aggregates are grouped by the unit. The rows of a union that carry x are those
           of its parts that do; the writer refuses parts whose units are not stored alike, as one person
           could be two units there. All other combinations are refused here: a public row that is kept,
           marked, or put among private ones, and two private sources where the unit is a row, which no two
           rows share.
Assumes:   the engine computes each node as `tables.semantics` says, and what the steward declared is true: a
           declared key of a public table is unique.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any

from .._public import Fact, Public, Reference, Related
from .domain import Kind, ValueDomain, boolean, constant, declared, is_plain, number, text
from .errors import QueryError, Refusal
from .nodes import Call, Column, Expr, Literal, OutputReference, is_made, key, make, walk


@dataclass(frozen=True, slots=True)
class Scan:
    """Reads a table; `prefix` (t0, t1, ...) tells its columns from those of other tables.

    `schema`: the declared columns, with what is declared of each; `private`: whether its rows are protected;
    `unit`: the column that says which unit a row belongs to, None where a row is the unit, or where a
    `reference` to another table says it.
    """

    table: str
    prefix: str
    schema: tuple[tuple[str, Fact], ...]
    private: bool
    unit: str | None
    reference: Reference | None = None

    def alias(self, column: str) -> str:
        """Return what a column of the table is called in the SQL."""
        if column == self.unit:
            return f"{self.prefix}w"
        return f"{self.prefix}c{[name for name, _ in self.schema].index(column)}"


def scan_of(public: Public, table: str, prefix: str) -> Scan:
    """Return the scan of a table, with what is declared of it."""
    if table == public.table:
        return Scan(table, prefix, public.schema, True, public.unit.column)
    for other in public.tables:
        if other.name == table:
            schema, private, unit, reference = facts_of(other)
            return Scan(table, prefix, schema, private, unit, reference)
    raise QueryError(f"no table {table!r} is declared.")


@dataclass(frozen=True, slots=True)
class Filtered:
    """Keeps the rows for which `condition` is true."""

    child: From
    condition: Expr


@dataclass(frozen=True, slots=True)
class Joined:
    """Joins two sources; `kind`: "inner" or "left"; rows match where all conditions of `on` are true, and of
    two private sources only rows of the same unit."""

    left: From
    right: From
    kind: str
    on: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class UnitAggregate:
    """Aggregates the rows of each unit (and each combination of `keys`) to one row, exactly and without
    noise.

    `aggregates`: pairs of a function (count, distinct, sum, avg, min or max) and its argument, None for
    COUNT(*).
    """

    child: From
    prefix: str
    keys: tuple[Expr, ...]
    aggregates: tuple[tuple[str, Expr | None], ...]


@dataclass(frozen=True, slots=True)
class Projected:
    """Adds computed columns to the right side of a LEFT JOIN, before the join: after it they would be
    computed from NULLs where a row has no partner."""

    child: From
    prefix: str
    columns: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Marked:
    """Marks each row of `child` that has a match in `right`, for EXISTS and IN with a sub-query.

    A row of `right` matches if own = inner for all `pairs` (own, inner) of an expression over `child` and one
    over `right`, if all of `on` are true, which are over both, and of a private `right` only if it belongs to
    the same unit. A mark adds no rows. Column
    `{prefix}m` is true where there is a match, else NULL; without `pairs`, and with a public `right`, it is
    true or false. With `counted`, `{prefix}n` is the number of rows of `right`, and `{prefix}c` the number of
    those in which the inner expression of the first pair is not NULL.
    """

    child: From
    prefix: str
    right: From
    pairs: tuple[tuple[Expr, Expr], ...]
    counted: bool = False
    on: tuple[Expr, ...] = ()


@dataclass(frozen=True, slots=True)
class United:
    """Has the rows of all its parts (UNION ALL): column number i, `{prefix}p{i}`, is that of each part.
    Either all parts are private, or none is."""

    parts: tuple[Projected, ...]
    prefix: str


From = Scan | Filtered | Joined | UnitAggregate | Projected | Marked | United


@dataclass(frozen=True, slots=True)
class Carried:
    """Says how a private source carries the unit of privacy: in the column `unit`.

    `single`: whether each unit has at most one row. `of_rows`: whether the unit is a row of the main table.
    """

    unit: str
    single: bool
    of_rows: bool = False

    @property
    def multiplicity(self) -> str | None:
        """The column that says how many rows of the main table a row stands for, where a row is the unit and
        a join may repeat it; None elsewhere, where a row stands for itself.

        The main table is then read as its different contents, each with the number of rows that have it, and
        the unit is the content: equal rows are told apart by nothing, and no row by its position.
        """
        return f"{self.unit.removesuffix('u')}m" if self.of_rows and not self.single else None


# The most copies of a source in one statement; one of ten levels took 1.5 seconds to write.
MAX_COPIES = 32
# The form of a prefix.
_PREFIX = re.compile(r"[a-z]+[0-9]+", re.ASCII)
# What is known of a number of rows; a table of more than 10**15 rows does not exist.
COUNTED = number(0, 1e15, integral=True, nullable=False)


# The columns that expressions above a source may name, each with what is known of its values.
Scope = Mapping[str, ValueDomain]


def scope_of(node: From) -> Scope:
    """Return the columns that expressions above a source may name; refuse a source with an expression that
    names another one.

    The writer's own columns are in no scope: the unit, how many rows a row stands for, and what marks and
    joins compare. So no answer depends on them but as the writer uses them.
    """
    prefixes = list(_prefixes(node))
    if len(set(prefixes)) < len(prefixes):
        raise QueryError(f"two parts of this query have one prefix: {', '.join(prefixes)}.")
    # Small letters, as engines take "T0c1" and "t0c1" for one column; then a number, so that the name of a
    # column says whose it is: no prefix with what a part adds to it is another prefix with what that adds.
    if odd := [prefix for prefix in prefixes if not _PREFIX.fullmatch(prefix)]:
        raise QueryError(f"a prefix has small letters and a number, such as t0, and {odd[0][:20]!r} has not.")
    return _scope(node)


def _scope(node: From) -> Scope:
    if isinstance(node, Scan):
        unit = {f"{node.prefix}w": text()} if node.unit or node.reference else {}
        return {node.alias(c): declared(fact) for c, fact in node.schema} | unit
    if isinstance(node, Joined):
        right = _scope(node.right)
        _naming(both := {**_scope(node.left), **right}, *node.on, kind=Kind.BOOLEAN)
        optional = right if node.kind == "left" else {}
        return {**both, **{name: replace(domain, nullable=True) for name, domain in optional.items()}}
    if isinstance(node, United):
        for part in node.parts:
            _scope(part)
        own = {f"{node.prefix}p{i}": domain for i, domain in enumerate(union_domains(node))}
        return own if unit_scan(node) is None else own | {f"{node.prefix}w": text()}
    child = _scope(node.child)
    if isinstance(node, Filtered):
        return _naming(child, node.condition, kind=Kind.BOOLEAN)
    if isinstance(node, Projected):
        _naming(child, *node.columns)
        return {**child, **{f"{node.prefix}p{i}": c.domain for i, c in enumerate(node.columns)}}
    if isinstance(node, Marked):
        return {**child, **_marked(node, child)}
    _naming(child, *node.keys, *(argument for _, argument in node.aggregates))
    own = {f"{node.prefix}k{i}": key.domain for i, key in enumerate(node.keys)}
    try:
        for i, aggregate in enumerate(node.aggregates):
            own[f"{node.prefix}a{i}"] = fold_domain(*aggregate)
    except Refusal as error:
        raise QueryError(f"{error}.") from None
    return {**own, f"{node.prefix}w": text()}


def _marked(node: Marked, child: Scope) -> Scope:
    """Return the columns that a mark adds to its child's."""
    right = _naming(_scope(node.right), *(inner for _, inner in node.pairs))
    _naming(child, *(own for own, _ in node.pairs))
    _naming({**child, **right}, *node.on, kind=Kind.BOOLEAN)
    if any(own.domain.kind is not inner.domain.kind for own, inner in node.pairs):
        raise QueryError("a mark compares values of two kinds.")
    if node.counted and not node.pairs:
        raise QueryError("a mark counts the values of its first pair, and has none.")
    if _copies(node) > MAX_COPIES:
        raise QueryError("NOT IN nests too deep: each level reads what is inside it twice.")
    counts = {f"{node.prefix}{end}": COUNTED for end in "nc" if node.counted}
    return {f"{node.prefix}m": boolean(nullable=True), **counts}


def _copies(node: From) -> int:
    """Return how often the writer reads the innermost part of a source: a mark that counts reads its right
    side twice."""
    inner = max(map(_copies, children(node)), default=1)
    return 2 * _copies(node.right) if isinstance(node, Marked) and node.counted else inner


def fold_domain(function: str, argument: Expr | None) -> ValueDomain:
    """Return what is known of an aggregate of the rows of one unit.

    Counts and sums have no upper bound, as the number of a unit's rows is not declared: a SUM or AVG over
    them in the outer query needs CLAMP.
    """
    if function in ("count", "distinct"):
        return replace(number(0, math.inf, integral=True, nullable=False), integer=True)
    domain = constant(None) if argument is None else argument.domain
    if domain.kind is Kind.DATE and function in ("min", "max"):
        return replace(domain, values=None)
    if function not in ("sum", "avg", "min", "max"):
        raise Refusal(f"{function!r} is no aggregate of the rows of one unit")
    domain.need(Kind.NUMBER, function.upper())
    if argument is None or not domain.bounded:
        raise Refusal(f"{function.upper()} needs a number with a known range")
    if function == "sum":
        low, high = (0.0 if domain.low >= 0 else -math.inf), (0.0 if domain.high <= 0 else math.inf)
        total = number(low, high, integral=domain.integral, nullable=domain.nullable)
        return replace(total, integer=domain.integer)
    return replace(
        domain,
        values=None,
        integral=domain.integral and function != "avg",
        integer=domain.integer and function != "avg",
    )


def union_domains(node: United) -> list[ValueDomain]:
    """Return what is known of each column of a union: a value of one part or of another is that of a CASE."""
    if len({len(part.columns) for part in node.parts}) != 1:
        raise QueryError("the parts of a union have as many columns.")
    columns = zip(*(part.columns for part in node.parts), strict=True)
    try:
        return [reduce(lambda a, b: make("case", Literal(True), a, b), column).domain for column in columns]
    except Refusal:
        raise QueryError("each column of a union has values of one kind.") from None


def _naming(scope: Scope, *exprs: Expr | None, kind: Kind | None = None) -> Scope:
    """Return the scope; refuse expressions that name another column, or are of another `kind`."""
    for expression in exprs:
        if expression is not None:
            check_expression(expression, scope, kind)
    return scope


def check_expression(expression: Expr, scope: Scope, kind: Kind | None = None) -> None:
    """Refuse an expression over rows that names a column outside `scope`, is not of this `kind`, or was not
    made by the rules of its operators (`nodes.make`): it could fail on a row."""
    if kind is not None and expression.domain.kind is not kind and not expression.domain.null:
        raise QueryError(f"this must be a {kind}, and is a {expression.domain.kind}.")
    if not isinstance(expression, Column | Literal | Call | OutputReference):
        raise QueryError(f"{type(expression).__name__} is no expression.")
    for part in walk(expression):
        if isinstance(part, Literal) and not is_plain(part.content):
            raise QueryError("a constant is a text, a day, a truth value, a finite number, or NULL.")
        if isinstance(part, Column):
            known = scope.get(part.name)
            if known is None or known.kind is not part.domain.kind:
                raise QueryError(f"{part.name!r} is no {part.domain.kind} that an expression may name here.")
            # the SQL of operators, and what is clipped, rest on it
            if not part.domain.covers(known):
                raise QueryError(f"{part.name!r} may have other values than are stated of it.")
        if isinstance(part, OutputReference):
            raise QueryError("an expression over rows names what is released after it.")
    if not is_made(expression):
        raise QueryError("an expression is not typed by the rules of its operators.")


def carried(node: From, public: Public) -> Carried | None:
    """Return how a source carries the unit of privacy, None if it reads public tables only; refuse a source
    in which one unit's rows would decide about another's."""
    if isinstance(node, Scan):
        return _scanned(node, public)
    if isinstance(node, Joined):
        return _joined(node, public)
    if isinstance(node, United):
        return _united(node, public)
    own = carried(node.child, public)
    if isinstance(node, UnitAggregate):
        if own is None or own.of_rows:
            raise QueryError("rows are aggregated by the unit of privacy, and these carry none.")
        return Carried(f"{node.prefix}u", single=not node.keys)
    by_private = isinstance(node, Marked) and carried(node.right, public) is not None
    if isinstance(node, Marked) and by_private and (own is None or own.of_rows or node.counted):
        raise QueryError("a row may only be matched with private rows of the same unit.")
    return own


def _scanned(scan: Scan, public: Public) -> Carried | None:
    """Return how the rows of one table carry their unit; what a scan says of its table must be what is
    declared of it."""
    facts = [facts_of(t) for t in public.tables if t.name == scan.table]
    if scan.table == public.table:
        facts = [(public.schema, True, public.unit.column, None)]
    if facts != [(scan.schema, scan.private, scan.unit, scan.reference)]:
        raise QueryError(f"table {scan.table!r} is read in another way than it is declared.")
    if not scan.private:
        return None
    if scan.table != public.table and public.unit.column is None:
        raise QueryError(
            f"table {scan.table!r} is private, and the unit of privacy is a row of {public.table!r}: which "
            "rows belong to one unit is not declared. Declare the column of the unit in both tables."
        )
    of_rows = scan.table == public.table and scan.unit is None
    return Carried(f"{scan.prefix}u", single=of_rows, of_rows=of_rows)


def facts_of(table: Related) -> tuple[Any, bool, str | None, Reference | None]:
    """Return what a scan says of a related table."""
    if not table.private:
        return table.schema, False, None, None
    return table.schema, True, table.unit_column, table.reference


def _joined(node: Joined, public: Public) -> Carried | None:
    left, right = (carried(side, public) for side in (node.left, node.right))
    if node.kind not in ("inner", "left"):
        raise QueryError(f"a join is inner or left, got {node.kind!r}.")
    if left is None and right is not None:
        if node.kind != "inner":
            raise QueryError("an outer join would keep public rows because no private row belongs to them.")
        return replace(right, single=right.single and adds_no_rows(node.left, node.on, public))
    if left is None or right is None:
        return left and replace(left, single=left.single and adds_no_rows(node.right, node.on, public))
    if left.of_rows or right.of_rows:
        raise QueryError("two private sources are joined on the unit of privacy, which here is a single row.")
    return Carried(left.unit, single=left.single and right.single)


def _united(node: United, public: Public) -> Carried | None:
    parts = [carried(part, public) for part in node.parts]
    if all(part is None for part in parts):
        return None
    if any(part is None or part.of_rows for part in parts):
        raise QueryError("a union has private rows of people in each of its parts, or in none.")
    return Carried(f"{node.prefix}u", single=False)


def adds_no_rows(node: From, on: tuple[Expr, ...], public: Public) -> bool:
    """Return whether a join with a public source adds at most one row to each row: it is a table, and each
    column of its declared key is compared by = with an expression over the other tables alone. Compared with
    another column of the same table, several of its rows may match.

    Keys of text only: a number is clipped to its bounds before it is compared, so that two keys may become
    equal.
    """
    if not isinstance(node, Scan):
        return False
    key_columns = next((t.key for t in public.tables if t.name == node.table), ())
    # Columns are identified by the names that the scan gives them (t0c1): a sub-query may rename any other
    # column to the name of the key.
    facts = dict(node.schema)
    if not key_columns or any(declared(facts[name]).kind is not Kind.TEXT for name in key_columns):
        return False
    own = {node.alias(name) for name in facts}
    fixed = {
        side.name
        for c in on
        if isinstance(c, Call) and c.op == "="
        for side, other in (c.args, c.args[::-1])
        if isinstance(side, Column) and not columns_of(other) & own
    }
    return all(node.alias(name) in fixed for name in key_columns)


def _prefixes(node: From) -> Iterator[str]:
    """Yield the prefix of every part of a source that has columns of its own."""
    if not isinstance(node, Filtered | Joined):
        yield node.prefix
    for child in children(node):
        yield from _prefixes(child)


def children(node: From) -> tuple[From, ...]:
    """Return the sources that a source reads."""
    if isinstance(node, Scan):
        return ()
    if isinstance(node, Joined):
        return node.left, node.right
    if isinstance(node, United):
        return node.parts
    return (node.child, node.right) if isinstance(node, Marked) else (node.child,)


def unit_scan(node: From) -> Scan | None:
    """Return the scan whose units the rows of a source carry; None if they are public."""
    if isinstance(node, Scan):
        return node if node.private else None
    if isinstance(node, Joined):
        return unit_scan(node.left) or unit_scan(node.right)
    return unit_scan(node.parts[0] if isinstance(node, United) else node.child)


def is_within_range(column: Column) -> bool:
    """Return whether the numbers of a column are sure to lie in the range of its domain.

    A column of a table ("t0c1", see `Scan.alias`) is clipped to its declared bounds when it is read, and a
    count of `Marked` ("t0c") has no rounding error. Names of other computed columns end otherwise, whatever
    their prefix; their numbers may be outside by a rounding error.
    """
    return column.name.rstrip("0123456789").endswith("c")


def scans(node: From) -> Iterator[Scan]:
    """Yield the scans of all tables that a source reads."""
    if isinstance(node, Scan):
        yield node
    for child in children(node):
        yield from scans(child)


def own_expressions(node: From) -> tuple[Expr | None, ...]:
    """Return the conditions, keys and computed columns of a source itself, without those that it reads."""
    if isinstance(node, Filtered):
        return (node.condition,)
    if isinstance(node, Joined):
        return node.on
    if isinstance(node, Projected):
        return node.columns
    if isinstance(node, Marked):
        return (*(side for pair in node.pairs for side in pair), *node.on)
    return (*node.keys, *(a for _, a in node.aggregates)) if isinstance(node, UnitAggregate) else ()


def expressions_of(node: From) -> Iterator[Expr | None]:
    """Yield the conditions, keys and computed columns of a source and of all that it reads."""
    yield from own_expressions(node)
    for child in children(node):
        yield from expressions_of(child)


def columns_of(*exprs: Expr | None) -> set[str]:
    """Return the names of all columns in some expressions."""
    return {node.name for e in exprs if e is not None for node in walk(e) if isinstance(node, Column)}


def source_key(node: From) -> str:
    """Return a stable text of what is read. It is part of `Plan.key`, by which stored answers are found, so
    that its form must not change."""
    if isinstance(node, Scan):
        return f"scan({node.table!r} as {node.prefix})"
    if isinstance(node, Filtered):
        return f"filter({source_key(node.child)}; {key(node.condition)})"
    if isinstance(node, Joined):
        on = ", ".join(key(c) for c in node.on)
        return f"{node.kind} join({source_key(node.left)}; {source_key(node.right)}; {on})"
    if isinstance(node, Projected):
        return (
            f"project({source_key(node.child)} as {node.prefix}; {', '.join(key(c) for c in node.columns)})"
        )
    if isinstance(node, Marked):
        pairs = ", ".join(f"{key(own)} = {key(inner)}" for own, inner in node.pairs)
        further = "".join(f"; {key(condition)}" for condition in node.on)
        return (
            f"mark({source_key(node.child)} as {node.prefix}; {source_key(node.right)}; {pairs}; "
            f"{node.counted}{further})"
        )
    if isinstance(node, United):
        return f"union({'; '.join(map(source_key, node.parts))} as {node.prefix})"
    assert isinstance(node, UnitAggregate)
    aggregates = ", ".join(f"{f}({'*' if a is None else key(a)})" for f, a in node.aggregates)
    return (
        f"per unit({source_key(node.child)} as {node.prefix}; {', '.join(key(k) for k in node.keys)}; "
        f"{aggregates})"
    )
