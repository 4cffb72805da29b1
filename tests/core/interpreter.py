"""What a question means, in plain Python: a small interpreter of SQL over lists of rows, in which every row knows
whose it is, and the integers that each unit adds to each group.

It reads the SQL text by itself (sqlglot parses; nothing of `discreet.query` is called), joins by nested loops, and
takes sub-queries as they are written. Where more of a unit than its limits could count, `choices` says which
outcomes are possible: which of them it is, the keyed hash decides.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import sqlglot
from sqlglot import exp

from discreet import Bounds, Categories, Public

Value = Any
# the columns of a joined row, by alias and name
Env = dict[str, dict[str, Value]]
# a row and the unit that it belongs to; None where all its parts are public
Owned = tuple[Env, Any]
Rows = list[dict[str, Value]]
Database = dict[str, Rows]

STEPS = 1 << 30


class Interpreter:
    """Evaluates a SELECT over a database; `public` says what is declared."""

    def __init__(self, public: Public, database: Database) -> None:
        self.public, self.database = public, database

    # Tables.

    def scan(self, name: str) -> list[tuple[dict[str, Value], Any]]:
        """The rows of a table as declared, each with its owner; private rows of nobody are left out."""
        if name == self.public.table:
            schema, private, unit = dict(self.public.schema), True, self.public.unit.column
        else:
            (other,) = [t for t in self.public.tables if t.name == name]
            schema, private, unit = dict(other.schema), other.private, other.unit
        rows: list[tuple[dict[str, Value], Any]] = []
        for number, row in enumerate(self.database[name]):
            if private and unit is not None and row[unit] is None:
                continue
            cleaned = {column: _declared(row[column], fact) for column, fact in schema.items()}
            owner = None
            if private:
                owner = number if unit is None else _unit_text(row[unit])
                if unit is not None:
                    cleaned[unit] = owner
            rows.append((cleaned, owner))
        return rows

    def _item(self, node: exp.Expr) -> tuple[str, list[tuple[dict[str, Value], Any]]]:
        if isinstance(node, exp.Subquery):
            return node.alias, self.select(node.this)
        return node.alias or node.name, self.scan(node.name)

    def rows(self, select: exp.Select, outer: Env | None = None) -> list[Owned]:
        """The rows of FROM that WHERE keeps; `outer`: the row of the outer query, for EXISTS."""
        source = select.args.get("from_") or select.args["from"]
        alias, first = self._item(source.this)
        joined: list[Owned] = [({alias: row}, owner) for row, owner in first]
        for join in select.args.get("joins") or []:
            joined = self._joined(join, joined)
        where = select.args.get("where")
        if where is None:
            return joined
        return [(env, who) for env, who in joined if self.value(where.this, {**(outer or {}), **env}) is True]

    def _joined(self, join: exp.Join, left: list[Owned]) -> list[Owned]:
        alias, right = self._item(join.this)
        on, is_left = join.args.get("on"), str(join.args.get("side") or "").upper() == "LEFT"
        names = [name for row, _ in right[:1] for name in row] or self._names(join.this)
        result: list[Owned] = []
        for env, owner in left:
            matches = [
                ({**env, alias: row}, _same_owner(owner, other))
                for row, other in right
                if on is None or self.value(on, {**env, alias: row}) is True
            ]
            if is_left and not matches:
                matches = [({**env, alias: dict.fromkeys(names)}, owner)]
            result += matches
        return result

    def _names(self, node: exp.Expr) -> list[str]:
        """The columns of an item of FROM that has no rows."""
        if isinstance(node, exp.Subquery):
            return [item.alias_or_name for item in node.this.selects]
        main = node.name == self.public.table
        if main:
            schema, unit = self.public.schema, self.public.unit.column
        else:
            (other,) = [t for t in self.public.tables if t.name == node.name]
            schema, unit = other.schema, other.unit
        return [*(name for name, _ in schema), *([unit] if unit else [])]

    def select(self, select: exp.Query) -> list[tuple[dict[str, Value], Any]]:
        """The rows of a sub-query, each with its owner: a group of its GROUP BY has rows of one owner only."""
        if isinstance(select, exp.Union):
            names = [item.alias_or_name for item in select.selects]
            both = [*self.select(select.this), *self.select(select.expression)]
            return [(dict(zip(names, row.values(), strict=True)), owner) for row, owner in both]
        rows = self.rows(select)
        group, distinct = select.args.get("group"), select.args.get("distinct")
        items = {item.alias_or_name: item.unalias() for item in select.expressions}
        if group is None and distinct is None:
            return [({n: self.value(e, env) for n, e in items.items()}, owner) for env, owner in rows]
        keys = list(items.values()) if group is None else group.expressions
        groups: dict[Any, list[Owned]] = {}
        for env, owner in rows:
            groups.setdefault(tuple(self.value(k, env) for k in keys), []).append((env, owner))
        result = []
        for members in groups.values():
            (owner,) = {who for _, who in members}
            envs = [env for env, _ in members]
            result.append(({n: self._aggregated(e, envs) for n, e in items.items()}, owner))
        return result

    def _aggregated(self, node: exp.Expr, envs: list[Env]) -> Value:
        """An item of a sub-query with GROUP BY: an aggregate of some rows, or a key."""
        if isinstance(node, exp.Count) and isinstance(node.this, exp.Star):
            return float(len(envs))
        if not isinstance(node, exp.AggFunc):
            return self.value(node, envs[0])
        values = [v for env in envs if (v := self.value(node.this, env)) is not None]
        if isinstance(node, exp.Count):
            return float(len(values))
        functions: dict[type, Callable[[list[float]], float]] = {
            exp.Sum: math.fsum,
            exp.Min: min,
            exp.Max: max,
        }
        return functions[type(node)](values) if values else None

    # Expressions; None is NULL.

    def value(self, node: exp.Expr, env: Env) -> Value:
        rule = getattr(self, f"_{type(node).__name__.lower()}", None)
        if rule is not None:
            return rule(node, env)
        if type(node) in _STRICT:
            parts = [
                self.value(part, env) for part in (node.this, node.args.get("expression")) if part is not None
            ]
            return None if any(part is None for part in parts) else _STRICT[type(node)](*parts)
        raise NotImplementedError(type(node).__name__)

    def _column(self, node: exp.Column, env: Env) -> Value:
        tables = [env[node.table]] if node.table else list(env.values())
        # in EXISTS the inner tables come last, and hide those outside
        return next(row[node.name] for row in reversed(tables) if node.name in row)

    def _literal(self, node: exp.Literal, env: Env) -> Value:
        return node.name if node.is_string else float(node.name)

    def _null(self, node: exp.Null, env: Env) -> Value:
        return None

    def _paren(self, node: exp.Paren, env: Env) -> Value:
        return self.value(node.this, env)

    def _and(self, node: exp.And, env: Env) -> Value:
        parts = [self.value(part, env) for part in (node.this, node.expression)]
        return False if False in parts else None if None in parts else True

    def _or(self, node: exp.Or, env: Env) -> Value:
        parts = [self.value(part, env) for part in (node.this, node.expression)]
        return True if True in parts else None if None in parts else False

    def _is(self, node: exp.Is, env: Env) -> Value:
        return self.value(node.this, env) is None

    def _case(self, node: exp.Case, env: Env) -> Value:
        for part in node.args["ifs"]:
            if self.value(part.this, env) is True:
                return self.value(part.args["true"], env)
        default = node.args.get("default")
        return None if default is None else self.value(default, env)

    def _anonymous(self, node: exp.Anonymous, env: Env) -> Value:
        assert node.name.upper() == "CLAMP"
        x, low, high = (self.value(part, env) for part in node.expressions)
        return None if x is None else min(max(x, low), high)

    def _exists(self, node: exp.Exists, env: Env) -> Value:
        return bool(self.rows(node.this, env))

    def _in(self, node: exp.In, env: Env) -> Value:
        x = self.value(node.this, env)
        inner = [next(iter(row.values())) for row, _ in self.select(node.args["query"].this)]
        if x is not None and x in inner:
            return True
        return None if inner and (x is None or None in inner) else False


def _round(x: float) -> float:
    """Halves away from zero."""
    return math.copysign(math.floor(abs(x) + 0.5), x)


_STRICT: dict[type, Callable[..., Value]] = {
    exp.EQ: lambda a, b: a == b,
    exp.NEQ: lambda a, b: a != b,
    exp.LT: lambda a, b: a < b,
    exp.LTE: lambda a, b: a <= b,
    exp.GT: lambda a, b: a > b,
    exp.GTE: lambda a, b: a >= b,
    exp.Add: lambda a, b: a + b,
    exp.Sub: lambda a, b: a - b,
    exp.Mul: lambda a, b: a * b,
    exp.Div: lambda a, b: a / b,
    exp.Neg: lambda a: -a,
    exp.Not: lambda a: not a,
    exp.Round: _round,
    exp.Floor: lambda a: float(math.floor(a)),
}


def _declared(value: Value, fact: Any) -> Value:
    """A stored value as it is declared: clipped, or NULL where it is none of the declared values."""
    if isinstance(fact, Bounds):
        missing = value is None or not math.isfinite(value)
        if missing:
            return None if fact.nullable else float(fact.lower)
        return min(max(value, float(fact.lower)), float(fact.upper))
    if isinstance(fact, Categories):
        return value if value in fact.values else None
    return value


def _unit_text(value: Value) -> str:
    return str(value + 0.0) if isinstance(value, float) else str(value)


def _same_owner(one: Any, other: Any) -> Any:
    assert one is None or other is None or one == other, "a row of two owners"
    return other if one is None else one


# What is released: per unit and group.


@dataclass(frozen=True)
class Grid:
    step: Fraction
    low: int
    high: int

    @staticmethod
    def of(low: float, high: float, *, whole: bool) -> Grid:
        """The grid of a range: steps of a power of two, about 2**30 of them to the end that is further from zero
        or, in a narrow range far from it, from end to end; 1 for whole numbers."""
        largest = math.frexp(max(abs(low), abs(high)))[1]
        exponent = min(largest, max(math.frexp(high - low)[1], largest - 10)) - 30
        step = Fraction(1) if whole else Fraction(2) ** exponent
        return Grid(step, math.floor(Fraction(low) / step), math.ceil(Fraction(high) / step))


@dataclass(frozen=True)
class Part:
    """One number of a release: kind (rows, present, units, distinct, sum, square, quantile or mode) of an expression.

    `centered`: the middle of the range is subtracted from each value, and a unit with too many rows counts each of
    them less.
    """

    kind: str
    node: exp.Expr | None = None
    centered: bool = False


class Question:
    """One SELECT: whose rows count in which groups, and the parts that are released."""

    def __init__(self, sql: str, public: Public, *, rows: int, groups: int) -> None:
        self.public, self.max_rows, self.max_groups = public, rows, groups
        select = sqlglot.parse_one(sql, dialect="duckdb")
        assert isinstance(select, exp.Select)
        self.tree = select
        self.items = [item.unalias() for item in select.expressions]
        group = select.args.get("group")
        nodes = [] if group is None else group.expressions
        self.keys = [self.items[int(n.name) - 1] if isinstance(n, exp.Literal) else n for n in nodes]
        self.many = public.unit.column is not None
        self.parts = list(dict.fromkeys(part for item in self.items for part in self._parts(item)))

    def _parts(self, item: exp.Expr) -> Iterator[Part]:
        for node in item.find_all(exp.AggFunc):
            yield from self._of_aggregate(node)

    def _of_aggregate(self, node: exp.Expr) -> Iterator[Part]:
        if isinstance(node, exp.Count):
            if isinstance(node.this, exp.Star):
                yield Part("rows")
            elif isinstance(node.this, exp.Distinct):
                (inner,) = node.this.expressions
                yield Part("units" if inner.name in ("id", "who", "i") else "distinct", inner)
            else:
                yield Part("present", node.this)
        elif isinstance(node, exp.Sum):
            yield Part("sum", node.this)
        elif isinstance(node, exp.Avg | exp.Stddev):
            yield Part("present", node.this)
            yield Part("sum", node.this, centered=True)
            if isinstance(node, exp.Stddev):
                yield Part("square", node.this, centered=True)
        elif isinstance(node, exp.Median | exp.Min | exp.Max):
            yield Part("quantile", node.this)
        elif isinstance(node, exp.Mode | exp.ApproxTopK):
            yield Part("mode", node.this)
        else:
            raise NotImplementedError(type(node).__name__)

    def of_units(self, database: Database) -> dict[Any, dict[Any, list[Rows]]]:
        """For each unit, each group (a tuple of keys): its rows there, as the values of the parts' expressions."""
        reader = Interpreter(self.public, database)
        units: dict[Any, dict[Any, list[Any]]] = {}
        for env, owner in reader.rows(self.tree):
            key = tuple(reader.value(k, env) for k in self.keys)
            if None not in key:
                values = [None if p.node is None else reader.value(p.node, env) for p in self.parts]
                units.setdefault(owner, {}).setdefault(key, []).append(values)
        return units

    def amount(self, index: int, rows: list[Any]) -> Any:
        """What the rows of one unit in one group add to part number `index`: an integer; or for distinct, mode and
        quantile how often each value is there."""
        part, values = self.parts[index], [row[index] for row in rows]
        present = [v for v in values if v is not None]
        if part.kind == "rows":
            return min(len(values), self.max_rows)
        if part.kind == "units":
            return int(bool(present))
        if part.kind == "present":
            return min(len(present), self.max_rows)
        if part.kind == "mode":
            return Counter({v: min(n, self.max_rows) for v, n in Counter(present).items()})
        if part.kind in ("distinct", "quantile"):
            return Counter(v + 0.0 if isinstance(v, float) else v for v in present)
        return self._summed(part, present)

    def _summed(self, part: Part, present: list[float]) -> int:
        assert part.node is not None
        low, high, whole = self.range_of(part.node)
        grid = Grid.of(low, high, whole=whole)
        center = (grid.low + grid.high) // 2 if part.centered else 0
        least, most = grid.low - center, grid.high - center
        amounts = [round(Fraction(min(max(v, low), high)) / grid.step) - center for v in present]
        if part.kind == "square":
            least, most = 0, max(least**2, most**2)
            amounts = [a * a for a in amounts]
        scaled = part.centered and self.many
        finer = 1 << max(0, (STEPS // max(-least, most, 1)).bit_length() - 1) if scaled else 1
        total = sum(amounts) * finer
        if scaled and len(amounts) > self.max_rows:
            # cut off towards zero
            total = int(Fraction(sum(amounts) * self.max_rows * finer, len(amounts)))
        return min(max(total, self.max_rows * finer * min(least, 0)), self.max_rows * finer * max(most, 0))

    def range_of(self, node: exp.Expr) -> tuple[float, float, bool]:
        """The public range of an expression, and whether all its values are whole numbers."""
        if isinstance(node, exp.Column):
            schemas = [self.public.schema, *(t.schema for t in self.public.tables)]
            for fact in (dict(schema).get(node.name) for schema in schemas):
                if isinstance(fact, Bounds):
                    return float(fact.lower), float(fact.upper), False
            for union in self.tree.find_all(exp.Union):
                if node.name in union.named_selects and node.name not in ("n", "k"):
                    i = union.named_selects.index(node.name)
                    sides = [
                        self.range_of(part.selects[i].unalias()) for part in (union.this, union.expression)
                    ]
                    return min(low for low, _, _ in sides), max(high for _, high, _ in sides), False
            return -math.inf, math.inf, node.name in ("n", "k")
        if isinstance(node, exp.Anonymous):
            _, _, whole = self.range_of(node.expressions[0])
            low, high = (float(end.sql()) for end in node.expressions[1:])
            return low, high, whole and low.is_integer() and high.is_integer()
        if isinstance(node, exp.Mul):
            (a, b, _), (c, d, _) = self.range_of(node.this), self.range_of(node.expression)
            ends = [x * y for x in (a, b) for y in (c, d)]
            return min(ends), max(ends), False
        raise NotImplementedError(node.sql())

    def possible(self, groups: dict[Any, list[Any]]) -> Iterator[tuple[Any, ...]]:
        """The sets of groups of one unit that may count."""
        if not self.keys or len(groups) <= self.max_groups:
            yield tuple(groups)
        else:
            yield from itertools.combinations(groups, self.max_groups)
