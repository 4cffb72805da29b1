"""From a plan to the engine's SQL, built as a syntax tree from our own nodes. What comes back is aggregated, bounded and on the grid.

For a unit with many rows: rows are added up by (unit, group), amounts are limited, and of each unit's groups only those with the
smallest keyed hash count. The key is fresh for every run. Whatever it is, one unit's choice depends on that unit's rows alone,
so the sensitivity holds for every key; the hash only has to be fair. Ties are broken by the group's own order.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Any

from sqlglot import exp

from .._public import Boolean, Bounds, Categories, Dates, Fact
from .domain import Kind
from .errors import Node
from .measures import Bounding, Choice, Measure, grid
from .nodes import Column, Expr, Literal, literal, make, sql
from .operators import call, cast, double, if_
from .plan import Key, Plan
from .relation import Filtered, From, Joined, Projected, Scan, columns_of

ROW = "__discreet_row"
Kinds = Mapping[str, Mapping[str, str]]


def name(text: str) -> Node:
    return exp.column(exp.to_identifier(text, quoted=True))


def aliased(node: Node, alias: str) -> Node:
    return exp.alias_(node, exp.to_identifier(alias, quoted=True))


def whole(value: int) -> Node:
    return exp.Literal.number(value) if value >= 0 else exp.Neg(this=exp.Literal.number(-value))


def _binary(cls: type[exp.Binary], a: Node, b: Node) -> Node:
    return exp.Paren(this=cls(this=a, expression=b))


def _all(conditions: list[Node]) -> Node:
    return exp.and_(*conditions)


class Compiler:
    """Writes the engine queries of one plan. `key` is the secret of this run."""

    def __init__(self, plan: Plan, bounding: Bounding, kinds: Kinds, key: int) -> None:
        self.plan, self.bounding, self.kinds, self.key = plan, bounding, kinds, key
        self.chooses = plan.many and bool(plan.keys) and (plan.groups is None or plan.groups > bounding.groups)

    def additive(self, measures: list[Measure]) -> str:
        """One row a group: its index (and its keys, where unknown), then the measures in order."""
        columns, arguments = self._arguments([m.expression for m in measures])
        query = self._keyed(columns)
        sums = [_per_row(m, arguments[i]) for i, m in enumerate(measures)]
        if not self.plan.many:
            totals = [aliased(total, f"m{i}") for i, total in enumerate(sums)]
            return self._finish(query, "keyed", totals)
        amounts = [
            aliased(_limited(m, total, arguments[i], self.bounding), f"a{i}")
            for i, (m, total) in enumerate(zip(measures, sums, strict=True))
        ]
        pairs = (
            exp.select(name("u"), name("j"), *amounts, *self._rank())
            .from_("keyed")
            .group_by(name("u"), name("j"), *self._raw_keys())
        )
        query = query.with_("pairs", as_=pairs, materialized=self.chooses)
        totals = [aliased(call("SUM", name(f"a{i}")), f"m{i}") for i in range(len(measures))]
        source = "pairs"
        if self.chooses:
            query = self._chosen(query, "pairs", [f"a{i}" for i in range(len(measures))])
            source = "chosen"
        return self._finish(query, source, totals)

    def distinct(self, expression: Expr) -> str:
        """How many values there are in each group, when each unit counts for at most `rows` of them."""
        query = self._keyed([("x0", sql(_clean(expression)))])
        query = self._with_choice(query, ["x0"])
        if self.plan.many:
            mine = exp.select(name("u"), name("j"), name("x0")).distinct().from_("chosen").where(_not_null("x0"))
            query = query.with_("mine", as_=mine)
            pair = exp.Struct(
                expressions=[_slice("h", self._hash(name("u"), name("j"), name("x0"))), _slice("x", name("x0"))]
            )
            taken = exp.select(name("j"), aliased(call("UNNEST", call("MIN", pair, whole(self.bounding.rows))), "t"))
            query = query.with_("taken", as_=taken.from_("mine").group_by(name("u"), name("j")))
            value = exp.Dot(this=name("t"), expression=exp.to_identifier("x", quoted=True))
            query = query.with_("picked", as_=exp.select(name("j"), aliased(value, "x0")).from_("taken"))
            return self._finish(query, "picked", [aliased(_count_distinct("x0"), "m0")])
        return self._finish(query, "chosen", [aliased(_count_distinct("x0"), "m0")])

    def histogram(self, choice: Choice) -> str:
        """How many rows lie nearest to each candidate of a quantile, in each group: (group, candidate, rows)."""
        x = _clean(choice.expression)
        scaled = make("/", make("-", x, Literal(float(choice.first))), Literal(float(choice.step)))
        nearest = cast(call("ROUND", sql(scaled)), "BIGINT")
        bounded = call("LEAST", call("GREATEST", nearest, whole(0)), whole(choice.points - 1))
        present = if_(exp.Not(this=exp.Is(this=sql(x), expression=exp.Null())), bounded)
        query = self._keyed([("x0", present)])
        query = self._with_choice(query, ["x0"])
        query = query.with_("present", as_=exp.select("*").from_("chosen").where(_not_null("x0")))
        if self.plan.many:
            ordered = _packed(self._hash(name("u"), name("j"), name("x0")), name("x0"), 32)
            taken = exp.select(name("j"), aliased(call("UNNEST", call("MIN", ordered, whole(self.bounding.rows))), "t"))
            taken = taken.from_("present").group_by(name("u"), name("j"))
            query = query.with_("taken", as_=taken)
            unpacked = cast(exp.BitwiseAnd(this=name("t"), expression=_unsigned((1 << 32) - 1)), "BIGINT")
            query = query.with_("picked", as_=exp.select(name("j"), aliased(unpacked, "x0")).from_("taken"))
            return self._finish(query, "picked", [aliased(exp.Count(this=exp.Star()), "m0")], "x0")
        return self._finish(query, "present", [aliased(exp.Count(this=exp.Star()), "m0")], "x0")

    def frequencies(self, choice: Choice) -> str:
        """How often each value occurs, in each group: (group, value's index, times); a unit counts at most `rows` times for each."""
        query = self._keyed([("k", sql(choice.expression))])
        query = self._with_choice(query, ["k"])
        indexed = exp.select("*").from_("chosen").join(_values(choice.values, "v"), on=_equal("k", "vk"))
        query = query.with_("indexed", as_=indexed)
        source, total = "indexed", exp.Count(this=exp.Star())
        if self.plan.many:
            limited = call("LEAST", exp.Count(this=exp.Star()), whole(self.bounding.rows))
            mine = exp.select(name("j"), name("vi"), aliased(limited, "n")).from_("indexed")
            query = query.with_("mine", as_=mine.group_by(name("u"), name("j"), name("vi")))
            source, total = "mine", call("SUM", name("n"))
        return self._finish(query, source, [aliased(total, "m0")], "vi")

    def _arguments(self, expressions: list[Expr | None]) -> tuple[list[tuple[str, Node]], list[Node | None]]:
        """Each argument computed once, under a name of its own."""
        unique = list(dict.fromkeys(e for e in expressions if e is not None))
        columns = [(f"x{i}", sql(_clean(e))) for i, e in enumerate(unique)]
        return columns, [None if e is None else name(f"x{unique.index(e)}") for e in expressions]

    def _keyed(self, columns: list[tuple[str, Node]]) -> exp.Select:
        """WITH keyed AS (unit u, group index j, arguments): every row that counts, and nothing chosen yet."""
        keys = self.plan.keys
        rows = exp.select(aliased(name(self.plan.unit), "u"))
        for i, k in enumerate(keys):
            rows = rows.select(aliased(_key_value(k), f"k{i}"))
        for alias, node in columns:
            rows = rows.select(aliased(node, alias))
        rows = rows.from_(self._source().subquery("s"))
        query = exp.select().with_("read", as_=rows)
        names = ["u", *(alias for alias, _ in columns)]
        if self.plan.known_keys:
            return query.with_("keyed", as_=self._indexed(keys, names))
        return self._unknown(query, keys, names)

    def _indexed(self, keys: tuple[Key, ...], names: list[str]) -> exp.Select:
        keyed = exp.select().from_("read")
        index: Node = whole(0)
        for i, k in enumerate(keys):
            keyed, position = _position(keyed, k, i)
            size = len(k.values or ())
            index = position if i == 0 else _binary(exp.Add, _binary(exp.Mul, index, whole(size)), position)
        return keyed.select(*(name(n) for n in names), aliased(cast(index, "BIGINT"), "j"))

    def _unknown(self, query: exp.Select, keys: tuple[Key, ...], names: list[str]) -> exp.Select:
        """Groups are numbered in the order of their keys, so that the order of two keys depends on nobody else."""
        keyed = exp.select(*(name(n) for n in names)).from_("read")
        for i, k in enumerate(keys):
            if k.values is None:
                keyed = keyed.select(name(f"k{i}")).where(_not_null(f"k{i}"))
            else:
                keyed, position = _position(keyed, k, i)
                keyed = keyed.select(aliased(cast(position, "BIGINT"), f"k{i}"), append=True)
        query = query.with_("named", as_=keyed)
        columns = [name(f"k{i}") for i in range(len(keys))]
        seen = exp.select(*columns).distinct().from_("named")
        number = exp.Window(
            this=exp.RowNumber(), order=exp.Order(expressions=[exp.Ordered(this=c.copy()) for c in columns])
        )
        numbered = exp.select(*(c.copy() for c in columns), aliased(number, "j")).from_(seen.subquery("d"))
        query = query.with_("dictionary", as_=numbered, materialized=True)
        both = exp.select(
            *(_of("named", n) for n in [*names, *(f"k{i}" for i in range(len(keys)))]), _of("dictionary", "j")
        )
        on = _all([exp.EQ(this=_of("named", f"k{i}"), expression=_of("dictionary", f"k{i}")) for i in range(len(keys))])
        return query.with_("keyed", as_=both.from_("named").join("dictionary", on=on))

    def _raw_keys(self) -> list[Node]:
        return [] if self.plan.known_keys else [name(f"k{i}") for i in range(len(self.plan.keys))]

    def _rank(self) -> list[Node]:
        """The number by which a unit's groups are chosen: a keyed hash in the high bits, the group in the low ones."""
        if not self.chooses:
            return []
        groups = self.plan.groups
        bits = 32 if groups is None else max(1, (groups - 1).bit_length())
        of = [name("j")] if groups is not None else self._raw_keys()
        return [aliased(_packed(self._hash(name("u"), *of), name("j"), bits), "h")]

    def _hash(self, *parts: Node) -> Node:
        return call("hash", *parts, _unsigned(self.key))

    def _chosen(self, query: exp.Select, source: str, names: list[str], pairs: str | None = None) -> exp.Select:
        """Of each unit the groups with the smallest rank: those up to the rank of its last one. `pairs` has each group once a unit."""
        last = call("LIST_MAX", call("MIN", name("h"), whole(self.bounding.groups)))
        kept = exp.select(aliased(name("u"), "ku"), aliased(last, "last")).from_(pairs or source).group_by(name("u"))
        on = _all([_equal("u", "ku"), exp.LTE(this=name("h"), expression=name("last"))])
        chosen = exp.select(name("u"), name("j"), *(name(n) for n in names)).from_(source).join("kept", on=on)
        return query.with_("kept", as_=kept).with_("chosen", as_=chosen)

    def _with_choice(self, query: exp.Select, names: list[str]) -> exp.Select:
        """WITH chosen AS the rows that count, for queries that are not sums."""
        if not self.chooses:
            chosen = exp.select(name("u"), name("j"), *(name(n) for n in names)).from_("keyed")
            return query.with_("chosen", as_=chosen)
        ranked = exp.select(name("u"), name("j"), *(name(n) for n in names), *self._rank()).from_("keyed")
        query = query.with_("ranked", as_=ranked, materialized=True)
        query = query.with_("pairs", as_=exp.select(name("u"), name("h")).distinct().from_("ranked"))
        return self._chosen(query, "ranked", names, "pairs")

    def _finish(self, query: exp.Select, source: str, totals: list[Node], *beside: str) -> str:
        query = query.select(name("j"), *(name(b) for b in beside), *totals).from_(source)
        query = query.group_by(name("j"), *(name(b) for b in beside))
        if not self.plan.known_keys:
            keys = [_of("dictionary", f"k{i}") for i in range(len(self.plan.keys))]
            inner = query.copy()
            clause = inner.args.pop("with_", None) or inner.args.pop("with", None)
            outer = exp.select(exp.Column(this=exp.Star(), table=exp.to_identifier("r")), *keys).from_(
                inner.subquery("r")
            )
            outer = outer.join("dictionary", on=exp.EQ(this=_of("r", "j"), expression=_of("dictionary", "j")))
            outer.set("with_" if "with_" in query.args else "with", clause)
            query = outer
        return query.sql(dialect="duckdb")

    def _source(self) -> exp.Select:
        used = columns_of(*(k.expression for k in self.plan.keys), *(a.argument for a in self.plan.aggregates)) | _used(
            self.plan.source
        )
        return source_sql(self.plan.source, used, self.kinds)


def _per_row(m: Measure, x: Node | None) -> Node:
    """The aggregate over rows that a measure is made of; for a unit with many rows, its total in one group."""
    if m.kind in ("rows", "units"):
        return exp.Count(this=exp.Star())
    assert x is not None
    if m.kind == "present":
        return exp.Count(this=x.copy())
    return call("COALESCE", call("SUM", _on_grid(m, x)), whole(0))


def _on_grid(m: Measure, x: Node) -> Node:
    steps: Node = x.copy() if m.step == 1 else _binary(exp.Mul, x.copy(), double(float(1 / m.step)))
    fits = max(abs(m.low + m.center), abs(m.high + m.center)) < 1 << 31 and m.kind == "sum"
    on_grid: Node = cast(steps, "INTEGER" if fits and m.center == 0 else "BIGINT")
    if m.center:
        on_grid = _binary(exp.Sub, on_grid, whole(m.center))
    return _binary(exp.Mul, on_grid, on_grid.copy()) if m.kind == "square" else on_grid


def _limited(m: Measure, total: Node, x: Node | None, bounding: Bounding) -> Node:
    """What one unit adds to one group."""
    if m.kind == "units":
        return whole(1)
    low, high = m.limits(bounding)
    if m.scaled:
        assert x is not None
        rows, count = whole(bounding.rows), exp.Count(this=x.copy())
        share = call("divide", _binary(exp.Mul, cast(total.copy(), "HUGEINT"), rows), count.copy())
        total = if_(exp.GT(this=count, expression=rows.copy()), share, total)
    clipped = (
        call("LEAST", total, whole(high))
        if low == 0
        else call("LEAST", call("GREATEST", total, whole(low)), whole(high))
    )
    return cast(clipped, "BIGINT")


def _clean(x: Expr) -> Expr:
    """A number inside its public range, or missing. Columns are so already."""
    domain = x.domain
    if isinstance(x, Column) or domain.kind is not Kind.NUMBER or not domain.bounded or domain.low == domain.high:
        return x
    return make("clamp", x, Literal(domain.low), Literal(domain.high))


def _key_value(k: Key) -> Node:
    return sql(k.expression)


def _position(keyed: exp.Select, k: Key, i: int) -> tuple[exp.Select, Node]:
    """The index of a key's value among its public values; rows with another value are left out."""
    values, column = k.values or (), name(f"k{i}")
    if k.expression.domain.kind is Kind.BOOLEAN and values == (False, True):
        return keyed.where(_not_null(f"k{i}")), if_(column, whole(1), whole(0))
    first, last = values[0], values[-1]
    if isinstance(first, int) and values == tuple(range(first, first + len(values))):
        inside = exp.Between(this=column, low=double(first), high=double(float(last)))  # type: ignore[arg-type]
        return keyed.where(inside), cast(_binary(exp.Sub, column.copy(), double(first)), "INTEGER")
    alias = f"v{i}"
    return keyed.join(_values(values, alias), on=_equal(f"k{i}", f"{alias}k")), name(f"{alias}i")


def _values(values: tuple[object, ...], alias: str) -> Node:
    rows = [exp.Tuple(expressions=[literal(v), whole(i)]) for i, v in enumerate(values)]
    columns = [exp.to_identifier(f"{alias}k", quoted=True), exp.to_identifier(f"{alias}i", quoted=True)]
    return exp.Values(expressions=rows, alias=exp.TableAlias(this=exp.to_identifier(alias), columns=columns))


def _equal(a: str, b: str) -> Node:
    return exp.EQ(this=name(a), expression=name(b))


def _of(table: str, column: str) -> Node:
    return exp.column(exp.to_identifier(column, quoted=True), table=table)


def _not_null(column: str) -> Node:
    return exp.Not(this=exp.Is(this=name(column), expression=exp.Null()))


def _count_distinct(column: str) -> Node:
    return exp.Count(this=exp.Distinct(expressions=[name(column)]))


def _slice(field: str, value: Node) -> Node:
    return exp.PropertyEQ(this=exp.to_identifier(field, quoted=True), expression=value)


def _unsigned(value: int) -> Node:
    return cast(exp.Literal.number(value), "UBIGINT")


def _packed(high: Node, low: Node, bits: int) -> Node:
    """`high` without its last bits, which hold `low`."""
    mask = _unsigned((1 << 64) - (1 << bits))
    top = _binary(exp.BitwiseAnd, high, mask)
    return _binary(exp.BitwiseOr, top, cast(low, "UBIGINT"))


def _used(node: From) -> set[str]:
    if isinstance(node, Scan):
        return set()
    if isinstance(node, Filtered):
        return columns_of(node.condition) | _used(node.child)
    if isinstance(node, Joined):
        return columns_of(*node.on) | _used(node.left) | _used(node.right)
    if isinstance(node, Projected):
        return columns_of(*node.columns) | _used(node.child)
    return columns_of(*node.keys, *(a for _, a in node.aggregates)) | _used(node.child)


def source_sql(node: From, used: set[str], kinds: Kinds) -> exp.Select:
    """What a query reads, as a sub-select whose columns have our own names."""
    if isinstance(node, Scan):
        return _scan_sql(node, used, kinds)
    if isinstance(node, Filtered):
        return exp.select("*").from_(source_sql(node.child, used, kinds).subquery("f")).where(sql(node.condition))
    if isinstance(node, Joined):
        left, right = (source_sql(side, used, kinds) for side in (node.left, node.right))
        joined = exp.select("*").from_(left.subquery("l"))
        if not node.on:
            return joined.join(right.subquery("r"), join_type="cross")
        return joined.join(right.subquery("r"), on=_all([sql(c) for c in node.on]), join_type=node.kind)
    child = source_sql(node.child, used, kinds).subquery("p")
    if isinstance(node, Projected):
        made = [aliased(sql(c), f"{node.prefix}p{i}") for i, c in enumerate(node.columns)]
        return exp.select("*", *made).from_(child)
    unit = name(node.unit)
    query = exp.select(aliased(unit, f"{node.prefix}u"), aliased(cast(unit.copy(), "VARCHAR"), f"{node.prefix}w"))
    keys = [sql(k) for k in node.keys]
    query = query.select(*(aliased(k, f"{node.prefix}k{i}") for i, k in enumerate(keys)))
    query = query.select(*(aliased(_per_unit(f, a), f"{node.prefix}a{i}") for i, (f, a) in enumerate(node.aggregates)))
    return query.from_(child).group_by(unit.copy(), *(k.copy() for k in keys))


def _per_unit(function: str, argument: Expr | None) -> Node:
    """An aggregate of one unit's own rows, exact, so that it depends on nothing but these."""
    if function == "count":
        return cast(exp.Count(this=exp.Star() if argument is None else sql(argument)), "DOUBLE")
    assert argument is not None
    if function == "distinct":
        return cast(exp.Count(this=exp.Distinct(expressions=[sql(argument)])), "DOUBLE")
    x = sql(_clean(argument))
    if function in ("min", "max"):
        return call(function.upper(), x)
    step, _, _ = grid(argument.domain)
    steps = x if step == 1 else _binary(exp.Mul, x, double(float(1 / step)))
    total = cast(call("SUM", cast(steps, "BIGINT")), "DOUBLE")
    summed: Node = total if step == 1 else _binary(exp.Mul, total, double(float(step)))
    if function == "sum":
        return summed
    return exp.Paren(
        this=exp.Div(
            this=summed, expression=call("NULLIF", exp.Count(this=x.copy()), whole(0)), typed=False, safe=False
        )
    )


def _scan_sql(scan: Scan, used: set[str], kinds: Kinds) -> exp.Select:
    query = exp.select()
    own = kinds.get(scan.table, {})
    if scan.private:
        query = query.select(aliased(name(scan.unit or ROW), f"{scan.prefix}u"))
    if f"{scan.prefix}w" in used and scan.unit is not None:
        query = query.select(aliased(cast(name(scan.unit), "VARCHAR"), f"{scan.prefix}w"))
    for column, fact in scan.schema:
        alias = scan.alias(column)
        if alias in used and column != scan.unit:
            query = query.select(aliased(cleaned(name(column), fact, own.get(column, "text")), alias))
    if not query.expressions:
        query = query.select(aliased(whole(1), f"{scan.prefix}n"))
    query = query.from_(exp.Table(this=exp.to_identifier(scan.table, quoted=True)))
    return query.where(_not_null(scan.unit)) if scan.private and scan.unit is not None else query


def cleaned(column: Node, fact: Fact, kind: str) -> Node:
    """A column as declared: converted where it can be, clipped, and missing (or the least value) otherwise."""
    if isinstance(fact, Bounds):
        low, high = double(float(fact.lower)), double(float(fact.upper))
        clipped = _clipped(_as("DOUBLE", column, kind in ("integer", "number", "boolean")), low, high, kind)
        return clipped if fact.nullable else call("COALESCE", clipped, low.copy())
    if isinstance(fact, Dates):
        low, high = (literal(date.fromisoformat(end)) for end in (fact.lower, fact.upper))
        clipped = _clipped(_as("DATE", column, kind == "date"), low, high, "integer")
        return clipped if fact.nullable else call("COALESCE", clipped, low.copy())
    if isinstance(fact, Boolean):
        truth = _as("BOOLEAN", column, kind in ("boolean", "integer"))
        return truth if fact.nullable else call("COALESCE", truth, exp.Boolean(this=False))
    if isinstance(fact, Categories) and all(isinstance(v, int) for v in fact.values):
        number = _as("DOUBLE", column, kind in ("integer", "number"))
        return (
            number
            if kind == "integer"
            else if_(exp.EQ(this=number, expression=call("FLOOR", number.copy())), number.copy())
        )
    return column if kind == "text" else cast(column, "VARCHAR")


def _as(to: str, column: Node, safe: bool) -> Node:
    """A conversion that cannot fail."""
    return cast(column, to) if safe else exp.TryCast(this=column, to=exp.DataType.build(to, dialect="duckdb"))


def _clipped(x: Node, low: Node, high: Node, kind: str) -> Node:
    """In DuckDB NaN is above infinity, and infinity above all numbers: neither passes the comparisons."""
    inside = exp.Between(this=x.copy(), low=low.copy(), high=high.copy())
    above: Node = exp.GT(this=x.copy(), expression=high.copy())
    below: Node = exp.LT(this=x.copy(), expression=low.copy())
    if kind != "integer":
        infinite = cast(exp.Literal.string("inf"), "DOUBLE")
        above = exp.And(this=above, expression=exp.LT(this=x.copy(), expression=infinite))
        below = exp.And(
            this=below, expression=exp.GT(this=x.copy(), expression=cast(exp.Literal.string("-inf"), "DOUBLE"))
        )
    pairs: list[tuple[Any, Any]] = [(inside, x), (above, high), (below, low)]
    return exp.Case(ifs=[exp.If(this=c, true=v) for c, v in pairs])
