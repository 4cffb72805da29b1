"""Constraints that are public facts: nobody's age is below the years of their education.

A constraint compares two numeric columns. Cells in which it can never hold have no place in the model, and
numbers drawn within bins are drawn again until it holds. Being public, it costs nothing; declared wrongly it
spoils the copy, and tells nobody anything.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .. import _require
from .._errors import InvalidInput
from .._public import Bounds, Dates, Public
from .._registry import described
from .domain import Domain, comparable_ends, values_of_numbers
from .junction import Clique
from .model import NEVER, Floats
from .orders import ColumnOrder, draw_in_order

if TYPE_CHECKING:
    from .synthesizer import Fitted

_OPERATORS = {"<=": operator.le, ">=": operator.ge, "<": operator.lt, ">": operator.gt}
_TRIES = 50


@described("synthetic.Constraint")
@dataclass(frozen=True, slots=True, kw_only=True)
class Constraint:
    """`left` compared with `right`: two columns of numbers, or of dates. Rows in which one is missing are
    free.

    >>> str(Constraint.parse("age >= education_num"))
    'age >= education_num'
    """

    left: str
    comparison: str
    right: str

    def __post_init__(self) -> None:
        _require.one_of(tuple(_OPERATORS), comparison=self.comparison)
        for side in ("left", "right"):
            if not isinstance(getattr(self, side), str) or not getattr(self, side):
                raise _require.fail(side, getattr(self, side), "the name of a column")
        if self.left == self.right:
            raise InvalidInput(
                f"a constraint compares two columns, got {self.left!r} twice. Nothing was charged."
            )

    @classmethod
    def parse(cls, text: str | Constraint) -> Constraint:
        """Return the constraint that a text such as "age >= education_num" states."""
        if isinstance(text, Constraint):
            return text
        parts = re.fullmatch(r"\s*(.+?)\s*(<=|>=|<|>)\s*(.+?)\s*", text) if isinstance(text, str) else None
        if parts is None:
            raise _require.fail("a constraint", text, "two columns compared, such as 'age >= education_num'")
        return cls(left=parts[1], comparison=parts[2], right=parts[3])

    def __str__(self) -> str:
        return f"{self.left} {self.comparison} {self.right}"

    def check(self, public: Public, domain: Domain) -> None:
        """Refuse columns that are not in the copy, or are not numbers both, or dates both."""
        for name in (self.left, self.right):
            if name not in domain.names:
                raise InvalidInput(
                    f"the constraint '{self}' names {name!r}, which is no column of the copy."
                    f"{_require.did_you_mean(name, domain.names)} Nothing was charged."
                )
        kinds = [type(public.fact(name)) for name in (self.left, self.right)]
        if kinds not in ([Bounds, Bounds], [Dates, Dates]):
            raise InvalidInput(
                f"the constraint '{self}' must compare two numbers, or two dates. Nothing was charged."
            )

    def logs(self, public: Public, domain: Domain) -> tuple[Clique, Floats]:
        """Return the pair of attributes in ascending order, and 0 for cells where it can hold, `NEVER` for
        the
        others."""
        codings = {c.column: c for c in domain.codings(public)}
        sides = [codings[self.left], codings[self.right]]
        (low, high), (first, last) = (comparable_ends(side) for side in sides)
        compare = _OPERATORS[self.comparison]
        best, worst = (high, first) if self.comparison in (">", ">=") else (low, last)
        table = np.zeros((sides[0].size, sides[1].size))
        cells = compare(best[:, None], worst[None, :])
        table[: len(best), : len(worst)] = np.where(cells, 0.0, NEVER)
        places = (domain.names.index(self.left), domain.names.index(self.right))
        if places[0] < places[1]:
            return places, table
        return (places[1], places[0]), np.ascontiguousarray(table.T)


def facts_of(fitted: Fitted) -> dict[Clique, Floats]:
    """Return the log-potentials of all constraints, by pair of attributes, in the codes of the model."""
    facts: dict[Clique, Floats] = {}
    for constraint in fitted.constraints:
        pair, logs = constraint.logs(fitted.public, fitted.domain)
        for axis, a in enumerate(pair):
            group = np.array(fitted.groups[a] if fitted.groups else ())
            if group.size:
                # A group is possible with what any of its codes is possible with.
                merged = np.full(
                    [int(group.max()) + 1 if k == axis else n for k, n in enumerate(logs.shape)], NEVER
                )
                moved, source = np.moveaxis(merged, axis, 0), np.moveaxis(logs, axis, 0)
                np.maximum.at(moved, group, source)
                logs = merged
        facts[pair] = np.minimum(facts[pair], logs) if pair in facts else logs
    return facts


def repaired(table: pa.Table, fitted: Fitted, codes: Sequence[Any], random: np.random.Generator) -> pa.Table:
    """Draw numbers within bins again where they break a constraint, until all constraints hold in every row.

    First all columns concerned, some times, which leaves the draw uniform; then lower columns first. Rows
    whose bins allow no such numbers (each pair does, but not all together) become copies of others.
    """
    if not fitted.constraints:
        return table
    order = ColumnOrder(fitted.constraints)
    own = {n: np.asarray(codes[fitted.domain.names.index(n)]) for n in order.columns}
    for _ in range(_TRIES):
        bad = _broken(table, fitted.constraints)
        if not bad.any():
            return table
        for name in order.columns:
            drawn = fitted.domain.decode_one(fitted.public, name, own[name], random)
            table = _with(table, name, bad, drawn)
    codings = {c.column: c for c in fitted.domain.codings(fitted.public) if c.column in own}
    numbers, possible = draw_in_order(order, codings, own, random)
    for name in order.columns:
        drawn = values_of_numbers(codings[name], numbers[name], np.isnan(numbers[name]))
        table = _with(table, name, bad, drawn)
    bad = _broken(table, fitted.constraints) | (bad & ~possible)
    good = np.flatnonzero(~bad)
    if not bad.any():
        return table
    if not len(good):
        raise InvalidInput(
            "no row under these conditions satisfies the constraints. The copy itself is as it was: ask for "
            "other conditions, or for more rows."
        )
    places = np.arange(len(bad))
    places[bad] = random.choice(good, int(bad.sum()))
    return table.take(pa.array(places))


def _with(table: pa.Table, name: str, bad: Any, drawn: pa.Array) -> pa.Table:
    """Return the table with another column of this name in the bad rows."""
    kept = pc.if_else(pa.array(bad), drawn, table.column(name).combine_chunks())
    return table.set_column(table.column_names.index(name), name, kept)


def _broken(table: pa.Table, constraints: Sequence[Constraint]) -> Any:
    """Return which rows break a constraint; a missing value breaks none."""
    bad = np.zeros(table.num_rows, bool)
    names = {"<=": "less_equal", ">=": "greater_equal", "<": "less", ">": "greater"}
    for one in constraints:
        left, right = (table.column(n).combine_chunks() for n in (one.left, one.right))
        holds = getattr(pc, names[one.comparison])(left, right)
        bad |= ~np.asarray(pc.fill_null(holds, True))
    return bad
