"""Writes the SQL that reads the tables of a plan: every column gets a name of ours, is converted to its
declared type and clipped to its declared bounds, by operations that cannot fail on any row (an error would
reveal something about that row).

The writer alone carries the unit of privacy (`sources.carried`): it keeps each row's unit beside it, adds to
a join or mark of two private sources that the units are equal, aggregates by unit, and puts no units together
that are stored in two ways.

Names of columns: the table with prefix t0 has t0u, the unit of privacy in its canonical form
(`semantics.Canonical`); t0w, the text of that form; t0c0, t0c1, ..., the declared columns, cleaned
(`cleaned`); t0c0r, ..., the same columns raw, as the table has them, for sums that themselves round a number
to its grid (`amounts`), and for group keys; t0m, how many rows of the table a row stands for
(`sources.Carried.multiplicity`). Computed columns are t0p0, ... (`Projected`), t0k0, ... and t0a0, ... (keys
and aggregates per unit), and t0m, t0n, t0c (`Marked`). Stored answers are found by a text with these names:
they must not change.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from functools import cached_property

from sqlglot import exp

from .._public import Boolean, Bounds, Categories, Dates, Fact, Public, Reference
from ..tables import semantics
from ..tables.columns import coarse, codes_as_days, codes_as_texts
from ..tables.semantics import SelectNode, aliased, name, select
from .domain import Kind, declared
from .errors import Node, QueryError
from .measures import decimal_places, grid
from .nodes import Call, Column, Expr, Literal, literal, make, sql, walk
from .operators import clipped, double, if_
from .sources import (
    Carried,
    Filtered,
    From,
    Joined,
    Marked,
    Projected,
    Scan,
    UnitAggregate,
    United,
    carried,
    children,
    columns_of,
    is_within_range,
    own_expressions,
    scope_of,
    unit_scan,
)

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


def _is_never_null(fact: Fact) -> bool:
    """Return whether a column is declared as never NULL: then a NULL in the table counts as its lower
    bound."""
    return isinstance(fact, Bounds) and not fact.nullable


def _is_raw(fact: Fact, kind: str) -> bool:
    """Return whether a column of this declared fact and engine's kind may be read raw (`Reader.raw`)."""
    if isinstance(fact, Bounds):
        return coarse(kind) in ("integer", "number")
    return isinstance(fact, Categories) and kind == "integer" and all(isinstance(v, int) for v in fact.values)


class Reader:
    """Writes the SELECT of one private source, with the names of columns that the module's docstring lists.

    `columns`: the names of those that the query uses beside the source itself. `kinds`: of the engine's
    columns. `carried`: how the source carries its unit.
    """

    def __init__(self, source: From, columns: set[str], kinds: Kinds, public: Public) -> None:
        whose = carried(source, public)
        if whose is None:
            raise QueryError("only public tables are read, and no privacy is needed for these.")
        self.source, self.kinds, self.public, self.carried = source, kinds, public, whose
        self.used = columns | self._used(source)

    def sql(self) -> SelectNode:
        """Return the SELECT of the source."""
        return self._written(self.source)

    @cached_property
    def raw(self) -> dict[str, tuple[Fact, str]]:
        """The cleaned columns that may be read raw instead (name + "r"), each with its declared fact and the
        engine's kind: numbers with declared bounds, and integers that are declared as categories."""
        return self._raw(self.source)

    def _raw(self, node: From) -> dict[str, tuple[Fact, str]]:
        if isinstance(node, Scan):
            own = self._kinds_of(node)
            return {
                node.alias(c): (fact, coarse(own.get(c, "text")))
                for c, fact in node.schema
                if c != node.unit and self._reads_raw(node, fact, own.get(c, "text"))
            }
        if isinstance(node, Filtered | Marked):
            return self._raw(node.child)
        if isinstance(node, Joined):
            right = self._raw(node.right)
            # In a row without a partner the raw column is NULL, too. For a column that is declared as never
            # NULL it would then count as the lower bound, as any NULL of it does; so that column is not read
            # raw.
            if node.kind == "left":
                right = {alias: (fact, k) for alias, (fact, k) in right.items() if not _is_never_null(fact)}
            return {**self._raw(node.left), **right}
        return {}

    def _reads_raw(self, scan: Scan, fact: Fact, kind: str) -> bool:
        """Return whether a column is read raw, too: not from a table that is read by its contents, as numbers
        that are clipped to one value are one content."""
        return _is_raw(fact, kind) and not self._by_content(scan)

    def _by_content(self, scan: Scan) -> bool:
        """Return whether a table is read as its different contents: the one whose rows are the units, where a
        join may repeat a row."""
        return self.carried.multiplicity is not None and f"{scan.prefix}u" == self.carried.unit

    def _kinds_of(self, scan: Scan) -> Mapping[str, str]:
        return self.kinds.get(scan.table, {})

    def _used(self, node: From) -> set[str]:
        """Return the names of the columns that the conditions, keys and computed columns of a source use."""
        if isinstance(node, Joined):
            own = columns_of(*self._conditions(node))
        elif isinstance(node, Marked):
            own = columns_of(*node.on, *(side for pair in self._pairs(node) for side in pair))
        else:
            own = columns_of(*own_expressions(node))
        return own.union(*(self._used(child) for child in children(node)))

    def _written(self, node: From) -> SelectNode:
        """Return the SELECT of a source; of the columns of tables only those in `used` are read."""
        if isinstance(node, Scan):
            return self._scan(node)
        if isinstance(node, Filtered):
            return select("*").from_(self._written(node.child).subquery("f")).where(sql(node.condition))
        if isinstance(node, Joined):
            return self._joined(node)
        if isinstance(node, Marked):
            return self._marked(node)
        if isinstance(node, United):
            return self._united(node)
        rows = self._written(node.child).subquery("p")
        if isinstance(node, Projected):
            projections = [aliased(sql(c), f"{node.prefix}p{i}") for i, c in enumerate(node.columns)]
            return select("*", *projections).from_(rows)
        return self._aggregated(node, rows)

    def _whose(self, node: From) -> Carried | None:
        return carried(node, self.public)

    def _units(self, left: From, right: From) -> tuple[str, str] | None:
        """Return the columns of the units of two sources; None unless both are private."""
        own, other = self._whose(left), self._whose(right)
        return None if own is None or other is None else (own.unit, other.unit)

    def _same_unit(self, left: From, right: From, inner: str) -> Node:
        """Return the condition that rows of two private sources belong to one unit; `inner` is the name of
        the column of the unit on the right. Units of different kinds are compared by their texts."""
        own = self._whose(left)
        assert own is not None
        sides = name(own.unit), name(inner)
        if self._unit_kind(left) != self._unit_kind(right):
            sides = convert(sides[0], "text"), convert(sides[1], "text")
        return exp.EQ(this=sides[0], expression=sides[1])

    def _unit_kind(self, node: From) -> str:
        scan = unit_scan(node)
        assert scan is not None
        tables = {t.name: t for t in self.public.tables}
        table, unit, reference = scan.table, scan.unit, scan.reference
        while reference is not None:
            table = reference.of
            parent = tables.get(table)
            unit = self.public.unit.column if parent is None else parent.unit_column
            reference = None if parent is None else parent.reference
        assert unit is not None
        return self._kind(table, unit)

    def _conditions(self, node: Joined) -> tuple[Expr, ...]:
        """Return the conditions of a join without the one that the units are equal, which the writer adds."""
        units = self._units(node.left, node.right)
        return node.on if units is None else tuple(c for c in node.on if not _compares(c, *units))

    def _pairs(self, node: Marked) -> tuple[tuple[Expr, Expr], ...]:
        """Return the pairs of a mark without that of the units, which the writer adds."""
        units = self._units(node.child, node.right)
        if units is None:
            return node.pairs
        return tuple((a, b) for a, b in node.pairs if not (_is_unit(a, units[0]) and _is_unit(b, units[1])))

    def _joined(self, node: Joined) -> SelectNode:
        left, right = self._written(node.left), self._written(node.right)
        joined = select("*").from_(left.subquery("l"))
        on = [sql(c) for c in self._conditions(node)]
        if (units := self._units(node.left, node.right)) is not None:
            on.insert(0, self._same_unit(node.left, node.right, units[1]))
        if not on and node.kind == "inner":
            return joined.join(right.subquery("r"), kind="CROSS")
        matches = all_of(on) if on else exp.Boolean(this=True)
        if node.kind == "left":
            return joined.join(right.subquery("r"), on=matches, side="LEFT")
        # An inner join is written as a left join and a filter: the engine may not move filters (see
        # `tables.engines.duckdb_reading`), and plans this form well all the same.
        found = f"found{_joins(node)}"
        right = right.select(aliased(exp.Boolean(this=True), found))
        return joined.join(right.subquery("r"), on=matches, side="LEFT").where(not_null(found))

    def _marked(self, node: Marked) -> SelectNode:
        """Write a mark (`sources.Marked`) as a left join with the DISTINCT inner values, which adds no rows.

        The engine's own EXISTS would compare each row with all rows of `right`, as the engine may not move
        filters (see `tables.engines.duckdb_reading`).
        """
        prefix, right = node.prefix, self._written(node.right)
        pairs, units = self._pairs(node), self._units(node.child, node.right)
        if not pairs and units is None and not node.on:
            rows = select("*").from_(self._written(node.child).subquery("p"))
            any_row = exp.GT(this=exp.Count(this=exp.Star()), expression=integer_literal(0))
            totals = select(aliased(any_row, f"{prefix}m")).from_(right.subquery("i"))
            return rows.join(totals.subquery("x"), kind="CROSS")
        rows = self._marked_on(node, right.copy()) if node.on else self._marked_equal(node, right.copy())
        if not node.counted:
            return rows
        counts = [
            aliased(convert(exp.Count(this=exp.Star()), "double"), f"{prefix}n"),
            aliased(convert(exp.Count(this=sql(node.pairs[0][1])), "double"), f"{prefix}c"),
        ]
        return rows.join(select(*counts).from_(right.subquery("i")).subquery("y"), kind="CROSS")

    def _marked_equal(self, node: Marked, right: SelectNode) -> SelectNode:
        prefix, pairs, units = node.prefix, self._pairs(node), self._units(node.child, node.right)
        rows = select("*").from_(self._written(node.child).subquery("p"))
        inner = [aliased(sql(expression), f"{prefix}k{i}") for i, (_, expression) in enumerate(pairs)]
        on = [exp.EQ(this=sql(own), expression=name(f"{prefix}k{i}")) for i, (own, _) in enumerate(pairs)]
        if units is not None:
            inner.insert(0, aliased(name(units[1]), f"{prefix}u"))
            on.insert(0, self._same_unit(node.child, node.right, f"{prefix}u"))
        listed = select(*inner).distinct().from_(right.subquery("i"))
        marked = select("*", aliased(exp.Boolean(this=True), f"{prefix}m")).from_(listed.subquery("d"))
        return rows.join(marked.subquery("x"), on=all_of(on), side="LEFT")

    def _marked_on(self, node: Marked, right: SelectNode) -> SelectNode:
        """Write a mark with further conditions: the different values of the child's columns in them are
        joined with those of the right side, and the rows of the child with the values that have a match.

        Numbers are in their canonical form, as which of two equal ones stands for both would depend on other
        rows. Of two private sources, both joins are by the unit, too.
        """
        prefix, pairs, units = node.prefix, self._pairs(node), self._units(node.child, node.right)
        on = [exp.EQ(this=sql(a), expression=sql(b)) for a, b in pairs] + [sql(c) for c in node.on]
        found, rows = "found0", self._unlike_tables(f"marked{_marks(node)}")
        compared = [side for pair in pairs for side in pair] + list(node.on)
        columns = {c.name: c for e in compared for c in walk(e) if isinstance(c, Column)}
        outside = scope_of(node.child).keys()
        own, inner = ([c for n, c in columns.items() if (n in outside) is side] for side in (True, False))
        values, matches = ([aliased(canonical(c, sql(c)), c.name) for c in side] for side in (own, inner))
        kept = [aliased(name(c.name), f"{prefix}k{i}") for i, c in enumerate(own)]
        same = [
            (semantics.Same if c.domain.nullable else exp.EQ)(this=sql(c), expression=name(f"{prefix}k{i}"))
            for i, c in enumerate(own)
        ]
        if units is not None:
            on.insert(0, self._same_unit(node.child, node.right, units[1]))
            values.insert(0, aliased(name(units[0]), units[0]))
            matches.insert(0, aliased(name(units[1]), units[1]))
            kept.insert(0, aliased(name(units[0]), f"{prefix}u"))
            same.insert(0, exp.EQ(this=name(units[0]), expression=name(f"{prefix}u")))
        # a SELECT needs a column, even if none is compared
        listed = select(*(values or [aliased(integer_literal(1), f"{prefix}k")])).distinct().from_(rows)
        inside = select(*matches, aliased(exp.Boolean(this=True), found)).distinct()
        matched = select(*kept, aliased(exp.Boolean(this=True), f"{prefix}m")).distinct()
        matched = matched.from_(listed.subquery("d"))
        matched = matched.join(inside.from_(right.subquery("i")).subquery("r"), on=all_of(on), side="LEFT")
        matched = matched.where(not_null(found))
        on = same or [exp.Boolean(this=True)]
        marked = select("*").from_(rows).join(matched.subquery("x"), on=all_of(on), side="LEFT")
        return marked.with_(rows, as_=self._written(node.child))

    def _unlike_tables(self, relation: str) -> str:
        """Return a name of a relation that no table has: it would be read instead of that table."""
        tables = {self.public.table.lower(), *(t.name.lower() for t in self.public.tables)}
        while relation in tables:
            relation += "x"
        return relation

    def _united(self, node: United) -> SelectNode:
        """Write a union. The columns of a kind have one type, as whole numbers are numbers.

        Units of two kinds are refused: a person could be the number 1 here and the text "1.0" there, and
        would count as two.
        """
        whose = self._whose(node)
        if whose is not None and len({self._unit_kind(part) for part in node.parts}) > 1:
            raise QueryError(
                "the parts of a union tell people apart by columns of different types. Store the unit "
                "of their tables with one type."
            )
        kinds, united = scope_of(node), list[Node]()
        for part in node.parts:
            columns = [
                aliased(
                    _of_one_type(name(f"{part.prefix}p{i}"), kinds[f"{node.prefix}p{i}"].kind),
                    f"{node.prefix}p{i}",
                )
                for i in range(len(part.columns))
            ]
            unit = self._whose(part)
            if unit is not None:
                columns.append(aliased(name(unit.unit), f"{node.prefix}u"))
                columns.append(aliased(convert(name(unit.unit), "text"), f"{node.prefix}w"))
            rows = select(*columns).from_(self._written(part).subquery("p"))
            united = [exp.Union(this=united[0], expression=rows, distinct=False) if united else rows]
        return select("*").from_(
            exp.Subquery(this=united[0], alias=exp.TableAlias(this=exp.to_identifier("a")))
        )

    def _aggregated(self, node: UnitAggregate, rows: exp.Subquery) -> SelectNode:
        """Write the aggregates of each unit. Which of two equal keys stands for a group must not depend on
        the order of rows: 0.0 and -0.0 are one key, and so is every NaN."""
        whose = self._whose(node.child)
        assert whose is not None
        unit = name(whose.unit)
        keys = [canonical(k, sql(k)) for k in node.keys]
        query = select(
            aliased(unit, f"{node.prefix}u"),
            aliased(convert(unit.copy(), "text"), f"{node.prefix}w"),
            *(aliased(k, f"{node.prefix}k{i}") for i, k in enumerate(keys)),
            *(aliased(_per_unit(f, a), f"{node.prefix}a{i}") for i, (f, a) in enumerate(node.aggregates)),
        )
        return query.from_(rows).group_by(unit.copy(), *(k.copy() for k in keys))

    def _scan(self, scan: Scan) -> SelectNode:
        """Return the SELECT of the used columns of one table, cleaned, under our names. Rows whose unit is
        NULL are left out, as they belong to nobody."""
        columns: list[Node] = []
        own = self._kinds_of(scan)
        if scan.unit is not None:
            kind = own.get(scan.unit, "text")
            columns.append(aliased(semantics.Canonical(this=name(scan.unit), kind=kind), f"{scan.prefix}u"))
            if f"{scan.prefix}w" in self.used:
                columns.append(aliased(semantics.canonical_text(name(scan.unit), kind), f"{scan.prefix}w"))
        for column, fact in scan.schema:
            alias = scan.alias(column)
            if alias in self.used and column != scan.unit:
                columns.append(aliased(cleaned(name(column), fact, own.get(column, "text")), alias))
                if self._reads_raw(scan, fact, own.get(column, "text")):
                    columns.append(
                        aliased(semantics.without_numbers(name(column), fact.missing), f"{alias}r")
                    )
        # a SELECT needs a column, even if none is used
        columns = columns or [aliased(integer_literal(1), f"{scan.prefix}n")]
        table = exp.Table(this=exp.to_identifier(scan.table, quoted=True))
        if self._by_content(scan):
            return self._contents(scan, columns, table)
        if scan.reference is not None:
            return self._referring(scan, scan.reference, select(*columns), table)
        query = select(*columns).from_(table)
        return query.where(not_null(scan.unit)) if scan.unit is not None else query

    def _referring(self, scan: Scan, reference: Reference, query: SelectNode, table: Node) -> SelectNode:
        """Return the rows of a table that refers to another one: each once for every unit that it reaches
        there. One that reaches none belongs to nobody, and is left out."""
        p = scan.prefix
        key = semantics.canonical_text(name(reference.column), self._kind(scan.table, reference.column))
        rows = query.select(aliased(key, f"{p}q")).from_(table)
        found = all_of([exp.EQ(this=name(f"{p}q"), expression=name("reached_key"))])
        unit: list[Node] = [aliased(name("reached_unit"), f"{p}u")]
        if f"{p}w" in self.used:
            unit.append(aliased(convert(name("reached_unit"), "text"), f"{p}w"))
        joined = select("*", *unit).from_(rows.subquery("l"))
        joined = joined.join(self._reached(reference).subquery("r"), on=found, side="LEFT")
        return joined.where(not_null("reached_unit"))

    def _reached(self, reference: Reference) -> SelectNode:
        """Return the different pairs of a key that rows may refer to, and a unit that has a row with it."""
        of = reference.of
        parents = [t for t in self.public.tables if t.name == of]
        column = parents[0].unit_column if parents else self.public.unit.column
        key = semantics.canonical_text(name(reference.key), self._kind(of, reference.key))
        table = exp.Table(this=exp.to_identifier(of, quoted=True))
        if column is not None:
            unit = semantics.Canonical(this=name(column), kind=self._kind(of, column))
            pairs = select(aliased(key, "reached_key"), aliased(unit, "reached_unit")).from_(table)
            return pairs.where(not_null(column)).distinct()
        further = parents[0].reference
        assert further is not None
        refers = semantics.canonical_text(name(further.column), self._kind(of, further.column))
        rows = select(aliased(key, "own_key"), aliased(refers, "own_reference")).from_(table)
        same = all_of([exp.EQ(this=name("own_reference"), expression=name("reached_key"))])
        reached = self._reached(further).subquery("r")
        pairs = select(name("own_key"), name("reached_unit")).from_(rows.subquery("l"))
        pairs = pairs.join(reached, on=same, side="LEFT").where(not_null("reached_unit")).distinct()
        return select(aliased(name("own_key"), "reached_key"), name("reached_unit")).from_(
            pairs.subquery("p")
        )

    def _kind(self, table: str, column: str) -> str:
        return self.kinds.get(table, {}).get(column, "text")

    def _contents(self, scan: Scan, columns: list[Node], table: Node) -> SelectNode:
        """Return the different contents of a table, the values that the query reads of a row; each with the
        number of rows that have it, and as the unit.

        Guarantee: when one row is removed, the number of one content falls by one, and a content without a
                   row is missing; nothing else changes.
        Proof:     numbers are in their canonical form (0.0 and -0.0, which the engine calls equal, are one),
                   so that all rows of one content have the same values, whichever of them the engine keeps,
                   and contents are equal exactly if all their values are (`semantics.Content`).
        """
        numbers = {scan.alias(c) for c, fact in scan.schema if declared(fact).kind is Kind.NUMBER}
        values = [
            aliased(_one_zero(column.this), column.alias) if column.alias in numbers else column
            for column in columns
        ]
        names = [name(column.alias) for column in values]
        counted = select(*names, aliased(exp.Count(this=exp.Star()), f"{scan.prefix}m"))
        counted = counted.from_(select(*values).from_(table).subquery("v"))
        counted = counted.group_by(*(n.copy() for n in names))
        content = semantics.Content(expressions=[n.copy() for n in names])
        return select("*", aliased(content, f"{scan.prefix}u")).from_(counted.subquery("c"))


def _compares(condition: Expr, left: str, right: str) -> bool:
    """Return whether a condition compares the units of two sources, which have these columns."""
    if not isinstance(condition, Call) or condition.op != "=":
        return False
    a, b = condition.args
    return (_is_unit(a, left) and _is_unit(b, right)) or (_is_unit(a, right) and _is_unit(b, left))


def _is_unit(x: Expr, unit: str) -> bool:
    """Return whether an expression is the text of the unit that a source carries in the column `unit`."""
    return isinstance(x, Column) and x.name == f"{unit.removesuffix('u')}w"


def _one_zero(x: Node) -> Node:
    return semantics.Canonical(this=x, kind="number")


def canonical(x: Expr, node: Node) -> Node:
    """Return the SQL of an expression, a number in its canonical form."""
    return _one_zero(node) if x.domain.kind is Kind.NUMBER else node


def _joins(node: From) -> int:
    """Return the number of joins in a source, by which the columns found1, found2, ... of nested joins get
    different names."""
    if isinstance(node, Joined):
        return 1 + _joins(node.left) + _joins(node.right)
    return 0 if isinstance(node, Scan | United) else _joins(node.child)


def _of_one_type(x: Node, kind: Kind) -> Node:
    """Return a value of a kind in the one type that the kind has in each part of a union."""
    return (
        convert(x, {Kind.NUMBER: "double", Kind.DATE: "date"}[kind])
        if kind in (Kind.NUMBER, Kind.DATE)
        else x
    )


def _marks(node: From) -> int:
    """Return the number of marks in a source, by which the relations of nested marks get different names."""
    return isinstance(node, Marked) + sum(map(_marks, children(node)))


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
        return canonical(argument, exp.Min(this=x) if function == "min" else exp.Max(this=x))
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
