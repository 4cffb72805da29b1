"""Compiles a form to the engine's SQL, built as a syntax tree from the form's own nodes.

The engine returns aggregates only: integers, to each of which a unit adds a limited amount. Sums are counted
in steps of a grid (`measures.grid`).

For a unit with many rows, rows are added up by (unit, group), the amounts are clipped, and of each unit's
groups only the `Bounding.groups` ones with the smallest keyed hash of (unit, group) count. The key of the
hash is fresh for every run.

Guarantee: for every key of the hash, two tables that differ in one unit give amounts that differ in that
           unit's contribution only.
Proof:     a row belongs to one unit, and depends on rows of that unit and on public tables only
           (`sources.carried`). The hash reads which unit and which group it is, by names that do not change
           when other rows are added or removed: a person's id, or for a single row its content, and the
           group's own keys. So every other unit makes the same choice in both tables. Rows with equal content
           make one choice, and count as often as there are such rows (the column w): each adds one and the
           same limited amount.
Assumes:   nothing about the hash. That the choice is uniform and independent between units, so that answers
           favor no group, is a property of `semantics.KeyedHash`; tests/query/test_choice.py measures both.
A sum is written as its argument in whole steps of the grid, the sum over the rows of a group, and the limited
amount that one unit adds to it.

Equal hashes are ordered by the group's keys.
"""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from sqlglot import exp

from .._public import Bounds
from ..tables import semantics
from ..tables.dialect import Dialect
from ..tables.semantics import SelectNode, aliased, name, select
from .domain import Kind
from .errors import Node
from .form import Form
from .measures import Bounding, Choice, GroupKey, Measure, grid
from .nodes import Column, Expr, Literal, literal, make, sql
from .operators import double, if_
from .scan import (
    Kinds,
    Reader,
    all_of,
    binary,
    canonical,
    clean,
    coalesced,
    convert,
    integer_literal,
    not_null,
)
from .sources import columns_of


class Argument(NamedTuple):
    """Holds the argument of an aggregate as SQL: `node` times `times` is its value in steps of the grid.

    `ends`: the least and the largest value in steps to which it is clipped as it is written; None where that
    is not known.
    """

    node: Node
    times: int = 1
    ends: tuple[int, int] | None = None

    @property
    def largest(self) -> int | None:
        """A bound on the absolute value of `node`; None where none is known."""
        return None if self.ends is None else max(map(abs, self.ends)) // self.times


def limited(x: Argument, low: int, high: int) -> Argument:
    """Return an argument clipped to [`low`, `high`] steps, unchanged where it is so already; NULL stays
    NULL."""
    if x.ends is not None and low <= x.ends[0] and x.ends[1] <= high:
        return x
    least_of, most = (integer_literal(end) for end in (-(-low // x.times), high // x.times))
    cases = [
        (exp.LT(this=x.node.copy(), expression=least_of), least_of.copy()),
        (exp.GT(this=x.node.copy(), expression=most), most.copy()),
    ]
    node = exp.Case(ifs=[exp.If(this=c, true=v) for c, v in cases], default=x.node)
    return Argument(node, x.times, (low, high))


def aggregate_of(m: Measure, x: Argument | None) -> Node:
    """Return the SQL aggregate of a measure with argument `x`: over the rows of a group, or over one unit's
    rows in a group where units have many rows.

    `m.center` is subtracted once per row that has a value.
    """
    if m.kind in ("rows", "units") and x is None:
        return exp.Count(this=exp.Star())
    assert x is not None
    if m.kind in ("present", "units"):
        return exp.Count(this=x.node.copy())
    if m.kind == "square":
        steps = x.node.copy() if x.times == 1 else binary(exp.Mul, x.node.copy(), integer_literal(x.times))
        centered = binary(exp.Sub, steps, integer_literal(m.center)) if m.center else steps
        largest = None if x.largest is None else (x.largest * x.times + abs(m.center)) ** 2
        return coalesced(wide_sum(binary(exp.Mul, centered, centered.copy()), largest), integer_literal(0))
    total = coalesced(wide_sum(x.node.copy(), x.largest), integer_literal(0))
    if x.times > 1:
        total = binary(exp.Mul, total, integer_literal(x.times))
    if not m.center:
        return total
    return binary(exp.Sub, total, binary(exp.Mul, exp.Count(this=x.node.copy()), integer_literal(m.center)))


def in_steps(x: Node, step: Fraction) -> Node:
    """Divide a number by the step of its grid, exactly: `step` is a power of two."""
    return x if step == 1 else semantics.Times(this=x, expression=double(float(1 / step)))


def column_in_steps(x: Node, fact: Bounds, step: Fraction) -> Node:
    """Return a stored column in whole steps, clipped to its declared bounds.

    The result is that of `scan.cleaned` and `in_steps`, in one CASE: almost all rows are inside the
    bounds, and pass its first test.
    """
    low, high = bounds_in_steps(fact, step)
    number = convert(x, "double")
    # It rounds halves to even, as `bounds_in_steps` does: a value at a bound must not fall outside.
    steps = semantics.SafeNearestWhole(this=in_steps(number, step))
    beyond = if_(
        exp.GT(this=number.copy(), expression=double(float(fact.upper))),
        integer_literal(high),
        integer_literal(low),
    )
    cases = [
        (exp.Between(this=steps, low=integer_literal(low), high=integer_literal(high)), steps.copy()),
        (semantics.IsFinite(this=number.copy()), beyond),
    ]
    missing = exp.Null() if fact.nullable else integer_literal(low)
    return exp.Case(ifs=[exp.If(this=c, true=v) for c, v in cases], default=missing)


def bounds_in_steps(fact: Bounds, step: Fraction) -> tuple[int, int]:
    """Return the ends of a declared range in whole steps, halves rounded to even."""
    low, high = (round(Fraction(float(end)) / step) for end in (fact.lower, fact.upper))
    return low, high


def clipped_integer(x: Node, fact: Bounds) -> Node:
    """Return an integer column clipped to its declared bounds, as BIGINT."""
    low, high = integer_literal(int(fact.lower)), integer_literal(int(fact.upper))
    # Where the column is declared not to be NULL, a NULL counts as the lower bound.
    inside = convert(least(greatest(x.copy(), low), high), "bigint")
    return if_(exp.Not(this=exp.Is(this=x, expression=exp.Null())), inside) if fact.nullable else inside


def largest_amount(m: Measure, bounding: Bounding) -> int:
    """Return a bound on the absolute value of `amount_of_unit`."""
    return 1 if m.kind == "units" else max(map(abs, m.limits(bounding)))


def amount_of_unit(m: Measure, total: Node, x: Argument | None, bounding: Bounding) -> Node:
    """Return the amount that one unit adds to one group, within `m.limits(bounding)` whatever its rows hold.

    `total` is the unit's `aggregate_of` in the group. A scaled measure of a unit with more than
    `bounding.rows` rows is multiplied by rows / count, rounded towards zero, before it is clipped.
    """
    if m.kind == "units":
        return (
            integer_literal(1)
            if x is None
            else if_(
                exp.GT(this=total, expression=integer_literal(0)), integer_literal(1), integer_literal(0)
            )
        )
    low, high = m.limits(bounding)
    if m.scaled:
        assert x is not None
        rows, count = integer_literal(bounding.rows), exp.Count(this=x.node.copy())
        times_rows = binary(
            exp.Mul, convert(total.copy(), "wide"), integer_literal(bounding.rows * m.parts_per_step)
        )
        scaled_down = semantics.TruncatingDivide(this=times_rows, expression=count.copy())
        unscaled = (
            total
            if m.parts_per_step == 1
            else binary(exp.Mul, convert(total, "wide"), integer_literal(m.parts_per_step))
        )
        total = if_(exp.GT(this=count, expression=rows), scaled_down, unscaled)
    clipped = least(total if low == 0 else greatest(total, integer_literal(low)), integer_literal(high))
    return convert(clipped, "bigint" if max(-low, high) < 1 << 62 else "wide")


def wide_sum(node: Node, largest: int | None = None) -> Node:
    """Return the exact sum of whole numbers, none of which is further from zero than `largest`."""
    return semantics.WideSum(this=node, largest=largest)


def least(a: Node, b: Node) -> Node:
    """Return the smaller of two numbers."""
    return semantics.Least(expressions=[a, b])


def greatest(a: Node, b: Node) -> Node:
    """Return the larger of two numbers."""
    return semantics.Greatest(expressions=[a, b])


class Compiler:
    """Builds the engine's queries of one form, and has the engine's `Dialect` write them as text. The public
    methods return such a text; their docstrings say which rows the query has.

    `key` is the secret key of the hash in this run. Names of columns in these queries: u the unit, w how many
    rows of the table a row stands for (`Carried.multiplicity`), j the index of the group, k0, k1, ... the
    group keys, x0, x1, ... the arguments of aggregates, a0, a1, ... the amounts of one unit, m0, m1, ... the
    measures, h the rank by which groups are chosen, vk and vi a public value and its index. A stored column
    t0c1 is t0c1r before it is clipped.
    """

    def __init__(self, form: Form, kinds: Kinds, key: int, dialect: Dialect) -> None:
        self.form, self.key, self.dialect = form, key, dialect
        self.reader = Reader(form.source, columns_of(*form.expressions), kinds, form.public)
        # columns of tables as they are stored, before clipping: (declared fact, kind) by name
        self.raw = self.reader.raw
        self.many = form.many
        # whether a unit may be in more groups than may count, so that some are chosen
        self.chooses = (
            self.many and bool(form.keys) and (form.groups is None or form.groups > form.bounding.groups)
        )
        # the columns of the unit, and of multiplicities, where they are needed
        self.units = ["u"] if self.many else []
        self.weights = [] if self.reader.carried.multiplicity is None else ["w"]

    def additive(self, measures: list[Measure]) -> str:
        """Return one row per group: its index, the measures in order, and then, where groups are not public,
        its keys."""
        columns, arguments = self._arguments(measures)
        sums = [aggregate_of(m, self._limited(m, arguments[i])) for i, m in enumerate(measures)]
        if not self.many and self.form.known_keys:
            return self._grouped_first(columns, sums)
        query = self._keyed(columns)
        if not self.many:
            totals = [aliased(total, f"m{i}") for i, total in enumerate(sums)]
            return self._finish(query, "keyed", totals)
        amounts = [
            aliased(amount_of_unit(m, total, arguments[i], self.form.bounding), f"a{i}")
            for i, (m, total) in enumerate(zip(measures, sums, strict=True))
        ]
        totals = [
            aliased(self._sum_of_units(name(f"a{i}"), largest_amount(m, self.form.bounding)), f"m{i}")
            for i, m in enumerate(measures)
        ]
        amounts += [aliased(exp.Max(this=name(w)), w) for w in self.weights]
        if self.chooses:
            return self._finish(self._with_chosen_totals(query, amounts), "chosen", totals)
        pairs = select(name("u"), name("j"), *amounts).from_("keyed")
        pairs = pairs.group_by(name("u"), name("j"), *self._private_keys())
        return self._finish(query.with_("pairs", as_=pairs, materialized=False), "pairs", totals)

    def _with_chosen_totals(self, query: SelectNode, amounts: list[Node]) -> SelectNode:
        """Add WITH chosen AS the amounts of each unit in the groups that were chosen for it."""
        chosen = semantics.ChosenTotals(
            alias="chosen",
            source="keyed",
            columns=self._hash_columns(),
            amounts=amounts,
            rank=self._rank(),
            n=self.form.bounding.groups,
        )
        query.args["with_"].append("expressions", chosen)
        return query

    def distinct(self, expression: Expr) -> str:
        """Return the number of different values in each group, where each unit contributes at most
        `Bounding.rows` of them."""
        query = self._keyed([("x0", sql(clean(expression)))])
        query = self._with_choice(query, [*self._hash_columns(), "x0"])
        if self.many:
            hashed = [name(n) for n in self._hash_columns()]
            mine = select(name("u"), name("j"), *hashed, name("x0")).distinct().from_("chosen")
            # "mine" are the different values of each unit in each of its groups
            query = query.with_("mine", as_=mine.where(not_null("x0")))
            order = self._hash(name("u"), *self._group(), name("x0"))
            picked = semantics.SmallestValues(
                alias="picked", source="mine", order=order, n=self.form.bounding.rows
            )
            query.args["with_"].append("expressions", picked)
            return self._finish(query, "picked", [aliased(_count_distinct("x0"), "m0")])
        return self._finish(query, "chosen", [aliased(_count_distinct("x0"), "m0")])

    def histogram(self, choice: Choice) -> str:
        """Return, for each group and each candidate of a quantile, the number of rows whose value is nearest
        to it: (group, index of the candidate, number of rows)."""
        x = clean(choice.expression)
        scaled = make("/", make("-", x, Literal(float(choice.first))), Literal(float(choice.step)))
        nearest = semantics.NearestWhole(this=semantics.RoundHalfAway(this=sql(scaled)))
        bounded = least(greatest(nearest, integer_literal(0)), integer_literal(choice.points - 1))
        present = if_(exp.Not(this=exp.Is(this=sql(x), expression=exp.Null())), bounded)
        query = self._keyed([("x0", present)])
        query = self._with_choice(query, [*self._hash_columns(), "x0"])
        query = query.with_("present", as_=select("*").from_("chosen").where(not_null("x0")))
        if self.many:
            query = self._some_rows(query)
            counted = wide_sum(name("w")) if self.weights else exp.Count(this=exp.Star())
            return self._finish(query, "picked", [aliased(counted, "m0")], "x0")
        return self._finish(query, "present", [aliased(exp.Count(this=exp.Star()), "m0")], "x0")

    def _some_rows(self, query: SelectNode) -> SelectNode:
        """Add WITH picked AS at most `Bounding.rows` rows of each unit in each group, every such set of rows
        being equally likely.

        `SmallestRows` numbers equal values of one unit (o), so that each of its rows has a hash of its own.
        """
        order = self._hash(name("u"), *self._group(), name("x0"), name("o"))
        picked = semantics.SmallestRows(
            alias="picked",
            source="present",
            columns=self._hash_columns(),
            order=order,
            n=self.form.bounding.rows,
        )
        query.args["with_"].append("expressions", picked)
        return query

    def frequencies(self, choice: Choice) -> str:
        """Return how often each public value occurs in each group: (group, index of the value, number). A
        unit counts at most `Bounding.rows` times for each value."""
        query = self._keyed([("k", sql(choice.expression))])
        query = self._with_choice(query, [*self.weights, "k"])
        indexed = select("*").from_("chosen").join(_values(choice.values, "v"), on=_equal("k", "vk"))
        query = query.with_("indexed", as_=indexed)
        source, total = "indexed", exp.Count(this=exp.Star())
        if self.many:
            limited = least(exp.Count(this=exp.Star()), integer_literal(self.form.bounding.rows))
            if self.weights:
                limited = binary(exp.Mul, limited, exp.Max(this=name("w")))
            # "mine" are the limited counts of each unit, group and value
            mine = select(name("j"), name("vi"), aliased(limited, "n")).from_("indexed")
            query = query.with_("mine", as_=mine.group_by(name("u"), name("j"), name("vi")))
            source, total = "mine", wide_sum(name("n"))
        return self._finish(query, source, [aliased(total, "m0")], "vi")

    def _grouped_first(self, columns: list[tuple[str, Node]], sums: list[Node]) -> str:
        """Return one row per group, where the unit is a row: rows are added up by their stored keys first,
        and only these sums are matched with the public keys, which is faster."""
        keys = [f"k{i}" for i in range(len(self.form.keys))]
        totals = [aliased(total, f"m{i}") for i, total in enumerate(sums)]
        grouped = select(*(name(k) for k in keys), *totals).from_("rows")
        query = select().with_("rows", as_=self._rows(columns))
        query = query.with_("read", as_=grouped.group_by(*(name(k) for k in keys)) if keys else grouped)
        names = [f"m{i}" for i in range(len(sums))]
        query = query.with_("keyed", as_=self._indexed(self.form.keys, names))
        return self._finish(query, "keyed", [aliased(wide_sum(name(m)), m) for m in names])

    def _arguments(self, measures: list[Measure]) -> tuple[list[tuple[str, Node]], list[Argument | None]]:
        """Return the columns (name, SQL) of the different arguments, and for each measure its argument by
        that name. Arguments of sums and squares are in whole steps of their grid, others as they are."""
        summed = {m.expression for m in measures if m.kind in ("sum", "square")}
        unique = list(dict.fromkeys(m.expression for m in measures if m.expression is not None))
        summands = [self._steps(e) if e in summed else Argument(sql(clean(e))) for e in unique]
        columns = [(f"x{i}", summand.node) for i, summand in enumerate(summands)]
        arguments = [summand._replace(node=name(f"x{i}")) for i, summand in enumerate(summands)]
        return columns, [
            None if m.expression is None else arguments[unique.index(m.expression)] for m in measures
        ]

    def _limited(self, m: Measure, x: Argument | None) -> Argument | None:
        """Return the argument of a sum within the range of its measure, in every row: where the unit is a
        row, nothing else limits what it adds."""
        if self.many or x is None or m.expression is None or m.kind not in ("sum", "square"):
            return x
        _, low, high = grid(m.expression.domain)
        return limited(x, low, high)

    def _steps(self, x: Expr) -> Argument:
        """Return a number in steps of its grid, as BIGINT: clipped to its range, NULL where it is not
        finite."""
        step, _, _ = grid(x.domain)
        fact, kind = self.raw.get(x.name, (None, "")) if isinstance(x, Column) else (None, "")
        if isinstance(fact, Bounds) and isinstance(x, Column):
            raw = name(f"{x.name}r")
            whole_ends = float(fact.lower).is_integer() and float(fact.upper).is_integer()
            # whole numbers are added up as they are, and their sum is multiplied by 1 / step
            if kind == "integer" and whole_ends and step <= 1:
                ends = int(fact.lower / step), int(fact.upper / step)
                return Argument(clipped_integer(raw, fact), int(1 / step), ends)
            return Argument(column_in_steps(raw, fact, step), ends=bounds_in_steps(fact, step))
        return Argument(semantics.NearestWhole(this=in_steps(sql(clean(x)), step)))

    def _sum_of_units(self, amount: Node, largest: int) -> Node:
        """Return the sum of an amount over all units, each of which counts as often as its multiplicity."""
        if not self.weights:
            return wide_sum(amount, largest)
        return wide_sum(binary(exp.Mul, convert(amount, "wide"), name("w")))

    def _keyed(self, columns: list[tuple[str, Node]]) -> SelectNode:
        """Add WITH keyed AS (unit u, group index j, arguments): every row of a group, before units' groups or
        rows are chosen."""
        keys = self.form.keys
        query = select().with_("read", as_=self._rows(columns))
        names = [*self.units, *self.weights, *(alias for alias, _ in columns)]
        if self.form.known_keys:
            return query.with_("keyed", as_=self._indexed(keys, names))
        return self._with_occurring_groups(query, keys, names)

    def _rows(self, columns: list[tuple[str, Node]]) -> SelectNode:
        """Return SELECT of the unit, the keys and the arguments of every row."""
        keys = [aliased(self._key_value(k), f"k{i}") for i, k in enumerate(self.form.keys)]
        projections = [aliased(node, alias) for alias, node in columns]
        carried = self.reader.carried
        units = [aliased(name(carried.unit), u) for u in self.units]
        weights = [aliased(name(str(carried.multiplicity)), w) for w in self.weights]
        # a SELECT needs a column, even if none is used
        columns_read = [*units, *weights, *keys, *projections] or [aliased(integer_literal(1), "x")]
        rows = select(*columns_read)
        return rows.from_(self.reader.sql().subquery("s"))

    def _group(self) -> list[Node]:
        """Return the columns that name a group independently of other rows: its index where all groups are
        public, else its keys, because the index then depends on which other groups occur."""
        return [name("j")] if self.form.known_keys else self._private_keys()

    def _hash_columns(self) -> list[str]:
        """Return the columns that the hash of one unit's rows in one group needs beside u and j."""
        if not self.many:
            return []
        keys = [] if self.form.known_keys else [f"k{i}" for i in range(len(self.form.keys))]
        return [*self.weights, *keys]

    def _key_value(self, key: GroupKey) -> Node:
        """Return a key for comparison: a stored column that is declared as categories as it is, without a
        conversion to DOUBLE, and any other expression as computed; a number whose values are not public in
        its canonical form, as the hash would tell 0.0 from -0.0, and which of them stands for a group follows
        the order of rows."""
        x = key.expression
        if isinstance(x, Column) and x.name in self.raw and not isinstance(self.raw[x.name][0], Bounds):
            return name(f"{x.name}r")
        return canonical(x, sql(x)) if key.values is None else sql(x)

    def _indexed(self, keys: tuple[GroupKey, ...], names: list[str]) -> SelectNode:
        """Return SELECT of rows with the index of their group among all combinations of public keys, in the
        order of `exact.public_keys`."""
        keyed = select().from_("read")
        index: Node = integer_literal(0)
        for i, k in enumerate(keys):
            keyed, position = _position(keyed, k, i)
            size = len(k.values or ())
            index = (
                position
                if i == 0
                else binary(exp.Add, binary(exp.Mul, index, integer_literal(size)), position)
            )
        return keyed.select(*(name(n) for n in names), aliased(convert(index, "bigint"), "j"))

    def _with_occurring_groups(
        self, query: SelectNode, keys: tuple[GroupKey, ...], names: list[str]
    ) -> SelectNode:
        """Add WITH keyed AS the rows with the index of their group, where groups are not public: the groups
        that occur are numbered in the order of their keys, so that the order of two groups depends on no
        other."""
        keyed = select(*(name(n) for n in names)).from_("read")
        for i, k in enumerate(keys):
            if k.values is None:
                keyed = keyed.select(name(f"k{i}")).where(not_null(f"k{i}"))
            else:
                keyed, position = _position(keyed, k, i)
                keyed = keyed.select(aliased(convert(position, "bigint"), f"k{i}"))
        query = query.with_("named", as_=keyed)
        columns = [name(f"k{i}") for i in range(len(keys))]
        seen = select(*columns).distinct().from_("named")
        number = exp.Window(
            this=exp.RowNumber(), order=exp.Order(expressions=[exp.Ordered(this=c.copy()) for c in columns])
        )
        numbered = select(*(c.copy() for c in columns), aliased(number, "j")).from_(seen.subquery("d"))
        query = query.with_("dictionary", as_=numbered, materialized=True)
        with_index = select(
            *(_qualified("named", n) for n in [*names, *(f"k{i}" for i in range(len(keys)))]),
            _qualified("dictionary", "j"),
        )
        on = all_of(
            [
                exp.EQ(this=_qualified("named", f"k{i}"), expression=_qualified("dictionary", f"k{i}"))
                for i in range(len(keys))
            ]
        )
        return query.with_("keyed", as_=with_index.from_("named").join("dictionary", on=on))

    def _private_keys(self) -> list[Node]:
        """Return the columns of the group keys, where groups are not public."""
        return [] if self.form.known_keys else [name(f"k{i}") for i in range(len(self.form.keys))]

    def _rank(self) -> Node:
        """Return the number by which a unit's groups are chosen: a keyed hash in the high bits, and the index
        of the group, which is in the order of its keys, in the low bits, so that no two groups of a unit have
        the same number."""
        groups = self.form.groups
        bits = 32 if groups is None else max(1, (groups - 1).bit_length())
        return semantics.Rank(this=self._hash(name("u"), *self._group()), low=name("j"), bits=bits)

    def _hash(self, *parts: Node) -> Node:
        """Return a keyed hash of some columns: over random keys, the order of the hashes of one unit is
        uniform, and independent of other units."""
        return semantics.KeyedHash(key=self.key, expressions=list(parts))

    def _with_choice(self, query: SelectNode, names: list[str]) -> SelectNode:
        """Add WITH chosen AS the rows that count, with the columns `names`: of each unit the rows in its
        groups with the smallest ranks. Sums use `_with_chosen_totals` instead."""
        if not self.chooses:
            chosen = select(*(name(n) for n in (*self.units, "j", *names))).from_("keyed")
            return query.with_("chosen", as_=chosen)
        rank = aliased(self._rank(), "h")
        ranked = select(name("u"), name("j"), *(name(n) for n in names), rank).from_("keyed")
        query = query.with_("ranked", as_=ranked, materialized=True)
        query = query.with_("pairs", as_=select(name("u"), name("h")).distinct().from_("ranked"))
        choice = semantics.SmallestRanks(
            alias="chosen", source="ranked", pairs="pairs", n=self.form.bounding.groups, columns=names
        )
        query.args["with_"].append("expressions", choice)
        return query

    def _finish(self, query: SelectNode, source: str, totals: list[Node], *beside: str) -> str:
        """Return the text of the query for the aggregates `totals` of `source`, by group and by the columns
        `beside`; where groups are not public, with their keys."""
        query = query.select(name("j"), *(name(b) for b in beside), *totals).from_(source)
        query = query.group_by(name("j"), *(name(b) for b in beside))
        if not self.form.known_keys:
            keys = [_qualified("dictionary", f"k{i}") for i in range(len(self.form.keys))]
            argument = "with_" if "with_" in query.args else "with"
            clause = query.args.pop(argument, None)
            outer = select(exp.Column(this=exp.Star(), table=exp.to_identifier("r")), *keys).from_(
                query.subquery("r")
            )
            same_group = exp.EQ(this=_qualified("r", "j"), expression=_qualified("dictionary", "j"))
            outer = outer.join("dictionary", on=same_group)
            outer.set(argument, clause)
            query = outer
        return self.dialect.write(query)


def _position(keyed: SelectNode, k: GroupKey, i: int) -> tuple[SelectNode, Node]:
    """Return the query without rows whose key number `i` is not one of its public values, and the index of
    the key's value among them."""
    values, column = k.values or (), name(f"k{i}")
    if k.expression.domain.kind is Kind.BOOLEAN and values == (False, True):
        return keyed.where(not_null(f"k{i}")), if_(column, integer_literal(1), integer_literal(0))
    first = values[0]
    if isinstance(first, int) and values == tuple(range(first, first + len(values))):
        last = first + len(values) - 1
        is_public = exp.Between(this=column, low=integer_literal(first), high=integer_literal(last))
        return keyed.where(is_public), convert(
            binary(exp.Sub, column.copy(), integer_literal(first)), "integer"
        )
    alias = f"v{i}"
    return keyed.join(_values(values, alias), on=_equal(f"k{i}", f"{alias}k")), name(f"{alias}i")


def _values(values: tuple[object, ...], alias: str) -> Node:
    """Return a table of public values (column "<alias>k") and their indices ("<alias>i")."""
    rows = [exp.Tuple(expressions=[literal(v), integer_literal(i)]) for i, v in enumerate(values)]
    columns = [exp.to_identifier(f"{alias}k", quoted=True), exp.to_identifier(f"{alias}i", quoted=True)]
    return exp.Values(expressions=rows, alias=exp.TableAlias(this=exp.to_identifier(alias), columns=columns))


def _equal(a: str, b: str) -> Node:
    return exp.EQ(this=name(a), expression=name(b))


def _qualified(table: str, column: str) -> Node:
    return exp.Column(this=exp.Identifier(this=column, quoted=True), table=exp.to_identifier(table))


def _count_distinct(column: str) -> Node:
    return exp.Count(this=exp.Distinct(expressions=[name(column)]))
