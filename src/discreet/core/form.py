"""Describes what is measured of a relation: its groups, the integers and choices wanted of each group, and
how much of one unit of privacy (a person, or a row) counts.

Whoever builds a form names no unit and states no sensitivity. It follows from the tree and the public facts
whose rows they are (`sources.carried`), and from the limits how far one unit can move each number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .._public import ADD_REMOVE, Public
from ..mechanisms.protocols import Sensitivity
from .domain import constant, exactly_one, is_plain
from .errors import QueryError
from .measures import Bounding, Choice, GroupKey, Measure
from .nodes import Expr
from .sources import Carried, From, Scan, carried, check_expression, scope_of

# the sensitivity of what is public
NONE = Sensitivity(linf=0, l0=0)


class Grouped:
    """Base of what has group keys over rows that carry a unit."""

    __slots__ = ()
    if TYPE_CHECKING:

        @property
        def keys(self) -> tuple[GroupKey, ...]: ...

        @property
        def carried(self) -> Carried: ...

    @property
    def many(self) -> bool:
        """Whether one unit may have several rows."""
        return not self.carried.single

    @property
    def known_keys(self) -> bool:
        """Whether all groups are public."""
        return all(k.values is not None for k in self.keys)

    @property
    def groups(self) -> int | None:
        """How many groups there are, if that is public."""
        total = 1
        for k in self.keys:
            if k.values is None:
                return None
            total *= len(k.values)
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(Grouped):
    """Describes what is measured, without its price.

    `public`: the facts of the tables that `source` reads, which together say how rows carry their unit.
    `bounding`: how many rows and groups of one unit count. `gathered`: where the groups are private, those
    that are not shown are added up into one.

    Guarantee: between any two neighbors the vector of measure i, over all groups, changes within
               `sensitivities[i]`; the numbers of the choices, of the private groups, and all else that is
               measured change in at most `changed_groups` groups.
    Proof:     the rows of a unit depend on no other unit (`sources`); what it adds to a group is limited
               (`compile`), so that `Measure.sensitivity` bounds the change. Groups that are added up change
               by at most the l1 norm of what changes in all of them. The number of all rows of the main table
               is public where neighbors have the same size and it is declared (`public_rows`).
    """

    public: Public
    source: From
    keys: tuple[GroupKey, ...] = ()
    measures: tuple[Measure, ...] = ()
    choices: tuple[Choice, ...] = ()
    bounding: Bounding
    gathered: bool = False
    carried: Carried = field(init=False, compare=False, repr=False)
    # a cache of the engine's queries (`exact.statements`)
    written: dict[Any, Any] = field(init=False, compare=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        whose = checked(self.source, self.public, self.expressions)
        for k in self.keys:
            # 0, 0.0 and -0.0 are one value to engines, as they are to a set.
            if k.values is not None and not 0 < len(set(map(_comparable, k.values))) == len(k.values):
                raise QueryError(
                    f"a public value of {k.written or 'a key'} is listed twice, or there is none."
                )
            check_values(k.expression, k.values or ())
        for c in self.choices:
            check_values(c.expression, c.values)
        if self.gathered and (self.known_keys or self.choices):
            raise QueryError("groups are added up where they are private, and of sums and counts only.")
        object.__setattr__(self, "carried", whose)

    @property
    def expressions(self) -> tuple[Expr, ...]:
        """What is computed of each row."""
        measured = [m.expression for m in self.measures if m.expression is not None]
        return (*(k.expression for k in self.keys), *measured, *(c.expression for c in self.choices))

    @property
    def public_rows(self) -> int | None:
        """How many rows are counted in the one group, if that is public; else None.

        It is where the steward declares the size and neighbors have the same one, where a row is the unit,
        and where every row of the main table counts: no condition, no join, no GROUP BY. Which rows a
        condition leaves, or how many values are missing, is private. Sources check a declared size when they
        are opened.
        """
        return self.public.size if counts_every_row(self.source, self.keys, self.public) else None

    @property
    def sensitivities(self) -> tuple[Sensitivity, ...]:
        """How much one unit can change each measure."""
        return tuple(map(self._sensitivity, self.measures))

    def _sensitivity(self, m: Measure) -> Sensitivity:
        if m.kind == "rows" and self.public_rows is not None:
            return NONE
        s = m.sensitivity(self.bounding, self.public.neighbors, self.groups)
        if not self.gathered:
            return s
        # all groups of a unit may be among those that are added up
        return Sensitivity(linf=norm(s.l1), l0=s.l0, l1=s.l1, l2_squared=norm(s.l1) ** 2)

    @property
    def changed_groups(self) -> int:
        """In how many groups two neighbors differ at most: a unit that is replaced leaves some and enters
        others."""
        changed = self.bounding.groups if self.public.neighbors is ADD_REMOVE else 2 * self.bounding.groups
        return changed if self.groups is None else min(changed, self.groups)

    def score_sensitivity(self, choice: Choice) -> int:
        """Return how far one unit moves the score of each candidate of a choice in one group.

        Quantile q = a/b: of n rows, `below` are below a candidate and `at` equal it; its score is
        -max(b below - a n, a n - b (below + at), 0), an integer (`choosing.scores`). A row that is added or
        removed moves it by at most max(a, b - a); a row that is replaced does both. Most common values: the
        score is the count of a candidate, which moves by at most 1 per row; under add_remove all counts move
        in the same direction.
        """
        if choice.kind != "quantile":
            return self.bounding.rows
        a, b = choice.parameter.numerator, choice.parameter.denominator
        return self.bounding.rows * max(a, b - a) * (1 if self.public.neighbors is ADD_REMOVE else 2)


def checked(source: From, public: Public, expressions: tuple[Expr, ...]) -> Carried:
    """Return how a source carries the unit of privacy; refuse one that is public, and expressions over its
    rows that name what is not theirs to name."""
    try:
        whose, scope = carried(source, public), scope_of(source)
        for expression in expressions:
            check_expression(expression, scope)
    except RecursionError:
        raise QueryError("the query nests too deep.") from None
    if whose is None:
        raise QueryError("only public tables are read, and no privacy is needed for these.")
    return whose


def counts_every_row(source: From, keys: tuple[GroupKey, ...], public: Public) -> bool:
    """Return whether all rows of a table, each of them a unit, are counted in one group, and neighbors have
    as many."""
    is_whole = isinstance(source, Scan) and source.table == public.table and not keys
    return is_whole and public.neighbors is not ADD_REMOVE and public.unit.column is None


def _comparable(value: Any) -> Any:
    """Return a value as the engine compares it: numbers are DOUBLE."""
    return float(value) if type(value) in (int, float) and exactly_one(value) else repr(value)


def check_values(expression: Expr, values: tuple[object, ...]) -> None:
    """Refuse public values that are not of the expression's kind, as comparing the two could fail on a row,
    and numbers that the engine does not tell apart from others: a row could count for two of them."""
    if any(not is_plain(v) or constant(v).kind is not expression.domain.kind for v in values):
        raise QueryError(f"public values of a {expression.domain.kind} are of another kind.")
    if not all(map(exactly_one, values)):
        raise QueryError(f"public values of a {expression.domain.kind} are too large to be told apart.")


def norm(value: int | None) -> int:
    """Return a norm of a sensitivity, which is always there once it was made."""
    assert value is not None
    return value
