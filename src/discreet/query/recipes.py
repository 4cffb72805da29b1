"""Says how each aggregate of a query is computed from a few measures and choices, and how many rows and
groups of one unit count.

Aggregates share the measures that they have in common, so that `COUNT(x)` and `AVG(x)` pay for one count.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .._errors import InvalidInput
from ..core.domain import HUGE
from ..core.form import Form
from ..core.measures import Bounding, Choice, Measure
from ..core.nodes import Expr, Literal, key, make
from .aggregates import Aggregate
from .plan import Plan

# aggregates with two arguments
PAIRED = ("covar_pop", "covar_samp", "corr")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Describes how an aggregate is computed: as `function` of some measures (positions in
    `Recipes.measures`), or as the result of a choice (position in `Recipes.choices`)."""

    function: str
    measures: tuple[int, ...] = ()
    choice: int | None = None


class Recipes:
    """Collects the measures and choices that a plan's aggregates need, each once; `recipes` has one entry per
    aggregate of the plan. `people` has the positions of the measures that count the people with a value
    in each aggregate: by their rows where one of each counts, by `people_by` = "units" else."""

    def __init__(self, plan: Plan, *, people_by: str | None = None) -> None:
        self.plan = plan
        self.measures: list[Measure] = []
        self.choices: list[Choice] = []
        # Stable texts that identify the measures and the choices, in order: what has one text is measured
        # once. Stored answers are found by them, so that their form must not change.
        self.measure_keys: list[str] = []
        self.choice_keys: list[str] = []
        self.recipes = [self._recipe(aggregate) for aggregate in plan.aggregates]
        self.people = () if people_by is None else self._count_people(people_by)

    def form(self, bounding: Bounding, *, other: bool = False) -> Form:
        """Return what is measured, with these limits on one unit; `other` adds up what is not shown."""
        return Form(
            public=self.plan.public,
            source=self.plan.source,
            keys=self.plan.keys,
            measures=tuple(self.measures),
            choices=tuple(self.choices),
            bounding=bounding,
            gathered=other,
        )

    def _recipe(self, aggregate: Aggregate) -> Recipe:
        """Return how an aggregate is computed, and add the measures that it needs."""
        function, x = aggregate.function, aggregate.argument
        if function == "count":
            return Recipe(function="count", measures=(self._count(x),))
        if function in ("units", "distinct"):
            return Recipe(function="count", measures=(self._add(Measure(kind=function, expression=x)),))
        assert x is not None
        if function == "sum":
            return Recipe(function="sum", measures=(self._add(self._sum(x, centered=False)),))
        if function in ("quantile", "mode", "top"):
            return Recipe(function=function, choice=self._choice(aggregate, x))
        if function in PAIRED:
            return self._pair_measures(function, x, aggregate.second)
        # An average beside SUM(x) shares the measure of that sum, which is not centered. Where units may have
        # several rows (`many`) it cannot: the average needs a scaled measure, and the sum a clipped one.
        if function == "avg" and not self.plan.many and Aggregate("sum", x) in self.plan.aggregates:
            return Recipe(function="avg", measures=(self._count(x), self._add(self._sum(x, centered=False))))
        moments = [self._count(x), self._add(self._sum(x, centered=True))]
        if function != "avg":
            moments.append(self._add(self._square(x)))
        return Recipe(function=function, measures=tuple(moments))

    def _count_people(self, by: str) -> tuple[int, ...]:
        """Add the numbers of people with a value in each aggregate, and return their positions."""
        arguments = (a.argument for a in self.plan.aggregates)
        some = dict.fromkeys(x for x in arguments if x is not None and not x.domain.never_missing)
        # all people of the group, where nobody's value can be missing
        counted: Iterable[Expr | None] = some or (None,)
        if by == "rows":
            return tuple(map(self._count, counted))
        return tuple(self._add(Measure(kind="units", expression=x)) for x in counted)

    def _pair_measures(self, function: str, x: Expr, y: Expr | None) -> Recipe:
        """Return the recipe of a covariance: the count, both sums and the sum of products, with the middles
        of both ranges subtracted from the values; a correlation needs both sums of squares too."""
        assert y is not None
        first, second = self._sum(x, centered=True), self._sum(y, centered=True)
        centered = [make("-", e, Literal(float(m.center * m.step))) for e, m in ((x, first), (y, second))]
        both = make("*", *centered)
        if not both.domain.bounded:
            raise InvalidInput(
                "the declared ranges of the two numbers of a covariance are so wide that their product may "
                f"be beyond {HUGE:g}. Declare narrower bounds, or write CLAMP(x, low, high)."
            )
        product = self._sum(both, centered=True)
        parts = [self._count(x), self._add(first), self._add(second), self._add(product)]
        if function == "corr":
            parts += [self._add(self._square(x)), self._add(self._square(y))]
        return Recipe(function=function, measures=tuple(parts))

    def _count(self, x: Expr | None) -> int:
        """Add the count of rows where `x` is not NULL, and return its position."""
        if x is None or x.domain.never_missing:
            return self._add(Measure(kind="rows"))
        return self._add(Measure(kind="present", expression=x))

    def _sum(self, x: Expr, *, centered: bool) -> Measure:
        """Return the measure of a sum."""
        return Measure(kind="sum", expression=x, centered=centered, scaled=centered and self.plan.many)

    def _square(self, x: Expr) -> Measure:
        """Return the measure of a sum of squares of what is left of the values less the middle of their
        range."""
        return Measure(kind="square", expression=x, centered=True, scaled=self.plan.many)

    def _choice(self, aggregate: Aggregate, x: Expr) -> int:
        """Add the choice of a quantile, mode or top, and return its position."""
        assert aggregate.parameter is not None
        choice = Choice(kind=aggregate.function, expression=x, parameter=aggregate.parameter)
        return _position(
            choice, f"{choice.kind}({key(x)}, {choice.parameter})", self.choices, self.choice_keys
        )

    def _add(self, m: Measure) -> int:
        """Add a measure if it is new, and return its position."""
        argument = "" if m.expression is None else key(m.expression)
        text = f"{m.kind}({argument}){'c' * m.centered}{'s' * m.scaled}"
        return _position(m, text, self.measures, self.measure_keys)


def _position(part: Any, text: str, parts: list[Any], texts: list[str]) -> int:
    """Return the position of a part of this text in a list, to which it is added if it is new."""
    if text not in texts:
        parts.append(part)
        texts.append(text)
    return texts.index(text)


def bounding_of(plan: Plan, unit_rows: int | None, unit_groups: int | None) -> Bounding:
    """Return the limits for one unit in this plan. `unit_rows`, `unit_groups`: what the analyst asked for, or
    else what the steward of the data declared; None without either. A query that needs a limit on rows is
    refused without one; the limit on groups is that on rows by default."""
    if not plan.many:
        return Bounding(rows=1, groups=1)
    # "units" counts a unit once in a group; mode and top count up to `unit_rows` of its rows, by default one
    once_by_default = all(a.function in ("units", "mode", "top") for a in plan.aggregates)
    if unit_rows is None and not once_by_default:
        raise InvalidInput(
            "one person may have several rows here, and it is not declared how many of them may count. Ask "
            "with rows=... (most rows of one person that count in one group), have the steward declare it, "
            "or count people with COUNT(DISTINCT ...)."
        )
    rows = 1 if unit_rows is None else unit_rows
    if not plan.keys:
        return Bounding(rows=rows, groups=1)
    public_groups = plan.groups
    groups = rows if unit_groups is None else unit_groups
    return Bounding(rows=rows, groups=groups if public_groups is None else min(groups, public_groups))
