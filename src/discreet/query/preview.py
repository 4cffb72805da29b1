"""Says what a query will cost and how good its answer will be, before anything is read.

Words of this module: a measure is an exact integer per group that gets noise; a choice is a value that the
exponential mechanism picks from candidates (a quantile, the most common values); both are in `measures`. A
unit is who is protected: all rows of one person, or a row. `other` says that groups that are not shown are
added up in one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from .. import _require
from .._public import ADD_REMOVE, Bounds, Categories, Dates, Fact, Public
from ..accounting import Event
from ..core.choosing import Selector, units_always_shown
from ..core.form import Form, counts_every_row
from ..core.measures import Choice
from ..core.nodes import Call, Column, Expr, OutputReference, walk
from ..core.question import PublicSize, Question
from ..core.sources import Filtered, Joined, Scan, United, columns_of, expressions_of, scans
from ..mechanisms.noise import IntegerLaplace
from .aggregates import EXTREME
from .plan import Plan
from .price import confidence_of_each
from .recipes import Recipes
from .release import direct

# the confidence of the errors in the sentences below
PROMISED = 0.95
# A chosen value whose rank or count may be off by 1 / USELESS of all rows, or more, is called useless. This
# is a convention.
USELESS = 10
# how notes on limits per unit end
_BEYOND = "anything beyond that is missing, and ± does not cover it"
# what the count of each of the k chosen values is compared with
_BEST_OF_RANK = "the count of the true value of its rank"


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview(_require.NearestNames):
    """Holds the price of a query and its errors, as they are known before anything is read.

    The price is `epsilon` with `delta`, or `rho` (zCDP). `errors`: for each column how far a value may be off
    with `confidence`; None where that depends on the data, or for `keys`. `groups`: their number, None if it
    is private. `plan`, `notes`: sentences from `words` and `notes`. `chosen`: columns of chosen values
    (quantiles, modes), which never have a ±: the notes say how far off they are, in rows. `exact`: columns of
    public numbers, which have no noise.
    """

    columns: tuple[str, ...]
    event: Event
    epsilon: float | None
    delta: float
    rho: float | None
    confidence: float
    errors: tuple[float | None, ...]
    groups: int | None
    plan: tuple[str, ...]
    notes: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()
    chosen: tuple[str, ...] = ()
    exact: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[tuple[str, str], ...]:
        """Each column that is no key, with what is known of its error beforehand, in words."""
        pairs = [(n, e) for n, e in zip(self.columns, self.errors, strict=True) if n not in self.keys]
        without = dict.fromkeys(self.chosen, "has no ±: see the note") | dict.fromkeys(self.exact, "exact")
        return tuple(
            (n, without.get(n, "its ± comes with the answer" if e is None else f"within {e:,.4g}"))
            for n, e in pairs
        )

    @property
    def price(self) -> str:
        """The price in words."""
        if 0.0 in (self.epsilon, self.rho):
            return "free"
        price = f"rho {self.rho:.4g}" if self.rho is not None else f"epsilon {self.epsilon:.4g}"
        return price + (f", delta {self.delta:g}" if self.delta else "")

    def __str__(self) -> str:
        lines = [f"price: {self.price}"]
        for name, error in self.measured:
            confidence = f" with {self.confidence:.0%} confidence" if error.startswith("within") else ""
            lines.append(f"{name}: {error}{confidence}")
        return "\n".join([*lines, *self.plan, *(f"Note: {note}." for note in self.notes)])


def keys(plan: Plan) -> tuple[str, ...]:
    """Return the output columns that no aggregate is part of: they name a group, and have no error."""
    return tuple(name for name, expression in plan.outputs if not aggregated(expression))


def chosen(recipes: Recipes) -> tuple[str, ...]:
    """Return the output columns that are computed from a chosen value: their error, in the unit of the
    column, depends on the data."""
    return tuple(name for name, e in recipes.plan.outputs if any(_choices_in(e, recipes)))


def public_columns(recipes: Recipes, question: Question) -> tuple[str, ...]:
    """Return the output columns that are a public number."""
    shown = [(name, direct(recipes, i)) for i, (name, _) in enumerate(recipes.plan.outputs)]
    return tuple(n for n, m in shown if m is not None and isinstance(question.noises[m], PublicSize))


def _choices_in(expression: Expr, recipes: Recipes) -> list[Choice]:
    """Return the choices that an expression is computed from."""
    indices = [
        recipes.recipes[node.index].choice
        for node in walk(expression)
        if isinstance(node, OutputReference) and node.kind == "aggregate"
    ]
    return [recipes.choices[index] for index in indices if index is not None]


def aggregated(expression: Expr) -> bool:
    """Return whether a released aggregate is part of an output column."""
    if isinstance(expression, Call):
        return any(map(aggregated, expression.args))
    return isinstance(expression, OutputReference) and expression.kind == "aggregate"


def predicted(recipes: Recipes, question: Question, confidence: float) -> tuple[float | None, ...]:
    """Return, for each output column, the error that its value stays within with `confidence`; None where it
    is not known beforehand. It is exact for counts and sums, and an approximation for averages over all rows
    of a table whose size is declared.

    An average's error is, to first order, the error of its sum plus the largest value times the error of its
    count, both divided by the declared size, the number of units: each is taken to have a row. How many rows
    remain after a WHERE, an inner join or an
    expression that may be NULL is private, so that such an average has no error beforehand. Missing values
    (NULL) of a declared column are taken to be few.
    """
    return tuple(_error(recipes, question, confidence, i) for i in range(len(recipes.plan.outputs)))


def _error(recipes: Recipes, question: Question, confidence: float, i: int) -> float | None:
    """Return the error of output column `i` as `predicted` says."""
    measure = direct(recipes, i)
    if measure is not None:
        return float(question.noises[measure].error(confidence) * recipes.measures[measure].resolution)
    public, expression = question.form.public, recipes.plan.outputs[i][1]
    if not (
        isinstance(expression, OutputReference)
        and expression.kind == "aggregate"
        and public.size
        and not recipes.plan.keys
    ):
        return None
    recipe = recipes.recipes[expression.index]
    argument = recipes.plan.aggregates[expression.index].argument
    if recipe.function != "avg" or not _of_everybody(public, recipes.plan, argument):
        return None
    count, total = recipe.measures
    # the largest absolute value of a summand, which may be a value less the middle of its range
    largest = max(abs(recipes.measures[total].low), abs(recipes.measures[total].high)) * float(
        recipes.measures[total].step
    )
    noises = question.noises[count], question.noises[total]
    count_error, sum_error = (noise.error(confidence_of_each(confidence, noises)) for noise in noises)
    return float(sum_error * recipes.measures[total].resolution + largest * count_error) / public.size


def _of_everybody(public: Public, plan: Plan, argument: Expr | None) -> bool:
    """Return whether an aggregate is over every row of the main table, whose size is declared: no filter or
    inner join drops rows, and its argument is never NULL, or is a plain column, whose NULLs are taken to be
    few. In another private table any number of units may have no row."""
    node = plan.source
    while not isinstance(node, Scan):
        if isinstance(node, Filtered | United) or (isinstance(node, Joined) and node.kind != "left"):
            return False
        node = node.left if isinstance(node, Joined) else node.child
    if node.table != public.table or argument is None:
        return False
    return isinstance(argument, Column) or not argument.domain.nullable


def protects(public: Public) -> str:
    """Say who is protected."""
    unit = f"all rows of one {public.unit.column}" if public.unit.column else "one row"
    neighbors = f"{public.neighbors}" + (" (one more or less)" if public.neighbors == ADD_REMOVE else "")
    return f"Protects {unit}, under {neighbors}."


def words(recipes: Recipes, question: Question) -> tuple[str, ...]:
    """Return the plan in words, one sentence per step."""
    public, bounding = question.form.public, question.form.bounding
    lines = [protects(public)]
    if recipes.plan.many:
        lines.append(
            (
                f"Of one {public.unit.column or 'row'} at most {many(bounding.rows, 'row')} "
                f"{'counts' if bounding.rows == 1 else 'count'} in a group"
            )
            + _in_groups(question.form)
            + "."
        )
    lines.append(_grouping(question))
    for m, noise in zip(recipes.measures, question.noises, strict=True):
        if isinstance(noise, PublicSize):
            lines.append(
                f"The number of rows, {noise.value:,}, is public under {public.neighbors}: no noise."
            )
            continue
        distribution = "Laplace" if isinstance(noise, IntegerLaplace) else "Gaussian"
        counted = {"rows": "rows", "present": "values", "units": "units", "distinct": "different values"}.get(
            m.kind
        )
        name = (
            f"a count of {counted}"
            if counted
            else f"a {'sum of squares' if m.kind == 'square' else 'sum'} in steps of {float(m.step):g}"
        )
        deviation = noise.standard_deviation * float(m.resolution)
        lines.append(
            f"Measures {name} in each group, with {distribution} noise of standard deviation {deviation:.4g}."
        )
    lines += [_choosing(c, selector) for c, selector in zip(recipes.choices, question.selectors, strict=True)]
    return tuple(lines)


def notes(recipes: Recipes, question: Question) -> tuple[str, ...]:
    """Say what the errors beside the numbers do not cover: which rows are missing from the answer because of
    limits per unit and of bounds, what MIN and MAX stand for, and how far off chosen values are."""
    public, bounding = question.form.public, question.form.bounding
    whom, lines = public.unit.column or "row", not_whole(recipes.plan)
    if public_names := public_columns(recipes, question):
        lines.append(
            f"{', '.join(public_names)}: exact and free, as the size is public under {public.neighbors}"
        )
    # a unit counts once per group, however many rows it has
    once = all(m.kind == "units" for m in recipes.measures) and not recipes.choices
    # a unit may have rows in more groups than it counts in
    limits_groups = bool(recipes.plan.keys) and (recipes.plan.groups or math.inf) > bounding.groups
    if recipes.plan.many and once and limits_groups:
        limit = many(bounding.groups, "group")
        lines.append(f"counts one {whom} in at most {limit}; {_BEYOND}")
    if recipes.plan.many and not once:
        groups = f" in each of at most {many(bounding.groups, 'group')}" if limits_groups else ""
        lines.append(f"counts at most {many(bounding.rows, 'row')} of one {whom}{groups}; {_BEYOND}")
    if any(
        a.function == "quantile" and a.parameter in (EXTREME, 1 - EXTREME) for a in recipes.plan.aggregates
    ):
        lines.append("MIN and MAX are the 1% and 99% quantiles")
    if any(k.expression.domain.nullable for k in recipes.plan.keys) and not question.form.gathered:
        lines.append("rows whose GROUP BY value is missing or not declared are in no group")
    if categories := _categories_used(recipes.plan):
        lines.append(f"values of {', '.join(categories)} that are not declared are missing values")
    lines += _beyond_bounds(
        [recipes.plan], any(m.kind in ("sum", "square") for m in recipes.measures) or bool(recipes.choices)
    )
    for choice, selector in zip(recipes.choices, question.selectors, strict=True):
        names = [name for name, e in recipes.plan.outputs if choice in _choices_in(e, recipes)]
        if names:
            lines.append(f"{', '.join(names)}: {_off(public, recipes.plan, choice, selector)}")
    if question.selection is not None:
        lines.append(f"the groups were not declared: {_shown_from(question)}")
    return tuple(dict.fromkeys((*lines, *_without_unit(public))))


def workload_notes(public: Public, plans: Sequence[Plan], max_rows: int) -> tuple[str, ...]:
    """Say what `notes` says, of one statement of a workload, whose parts have these `plans`. The limit per
    unit, `max_rows`, holds for all groups and statements of the workload together."""
    lines = [line for plan in plans for line in not_whole(plan)]
    if plans[0].many:
        whom = public.unit.column or "row"
        lines.append(
            f"counts at most {many(max_rows, 'row')} of one {whom}, over all groups and questions that are "
            f"answered together; {_BEYOND}"
        )
    if any(k.expression.domain.nullable for plan in plans for k in plan.keys):
        totals = "; totals count them, so that groups need not add up to their total" if plans[1:] else ""
        lines.append(f"rows whose GROUP BY value is missing or not declared are in no group{totals}")
    if categories := dict.fromkeys(name for plan in plans for name in _categories_used(plan)):
        lines.append(f"values of {', '.join(categories)} that are not declared are missing values")
    lines += _beyond_bounds(plans, False)
    return tuple(dict.fromkeys((*lines, *_without_unit(public))))


def _beyond_bounds(plans: Sequence[Plan], numbers: bool) -> list[str]:
    """Say that numbers, and days of keys, count as their bound: where `numbers` are added up or chosen, and
    where keys are made of columns with bounds."""
    kinds = {type(fact) for plan in plans for _, fact in _used(plan, *(k.expression for k in plan.keys))}
    words = ["numbers"] * (numbers or Bounds in kinds) + ["days"] * (Dates in kinds)
    return [f"{' and '.join(words)} beyond their declared bounds count as the bound"] if words else []


def _without_unit(public: Public) -> list[str]:
    """Say that rows that belong to nobody are left out."""
    column = public.unit.column
    return [] if column is None else [f"rows without {column} are in no answer"]


def _used(plan: Plan, *expressions: Expr | None) -> list[tuple[str, Fact]]:
    """Return the columns that expressions read, but for those of the unit, and what is declared of them."""
    used = columns_of(*expressions)
    return [
        (column, fact)
        for scan in scans(plan.source)
        for column, fact in scan.schema
        if column != scan.unit and scan.alias(column) in used
    ]


def _categories_used(plan: Plan) -> list[str]:
    """Return the columns with declared categories that conditions or aggregates read; a key says itself that
    rows of other values are in no group."""
    arguments = [part for a in plan.aggregates for part in (a.argument, a.second)]
    used = _used(plan, *arguments, *expressions_of(plan.source))
    return list(dict.fromkeys(column for column, fact in used if isinstance(fact, Categories)))


def not_whole(plan: Plan) -> list[str]:
    """Say, for each key of GROUP BY that is made whole (by the operator "exactly whole"), that rows with
    decimals are in none of its groups. It is always said, because whether there are such rows is private."""
    keys = [k for k in plan.keys if isinstance(k.expression, Call) and k.expression.op == "exactly whole"]
    return [
        f"rows whose {k.written} is not a whole number are in no group: where it can have decimals, write "
        f"FLOOR({k.written})"
        for k in keys
    ]


def _off(public: Public, plan: Plan, choice: Choice, selector: Selector) -> str:
    """Say how far off a chosen value is, in rows: how far off it is in its own unit depends on the data.

    `_choosing` says how the number of rows follows from the shortfall, how far the score of the chosen value
    is below the best.
    """
    shortfall = selector.error(choice.width, PROMISED)
    if choice.kind != "quantile":
        best = "the largest" if choice.kind == "mode" else _BEST_OF_RANK
        rows = shortfall
        fact = (
            f"the count of the chosen value is at most {rows:,} below {best}, with {PROMISED:.0%} confidence"
        )
    else:
        rows = math.ceil(Fraction(shortfall, choice.parameter.denominator))
        fact = (
            f"the rank of the chosen value is within {many(rows, 'row')} of the rank asked for, with "
            f"{PROMISED:.0%} confidence; how much that is in its own units depends on the data"
        )
    least = USELESS * rows
    # the size is the number of units, and that of rows only where each unit has one
    if public.size is not None and not plan.many and public.size < least:
        return f"{fact}. Of the {public.size:,} declared rows this is useless: ask with more epsilon"
    return f"{fact}. Of fewer than {least:,} rows{' in a group' if plan.keys else ''} it is useless"


def hints(recipes: Recipes, question: Question) -> tuple[str, ...]:
    """Say what would make the answer better, for a preview."""
    public, bounding, lines = question.form.public, question.form.bounding, []
    counts = not recipes.choices and all(m.kind in ("rows", "present") for m in recipes.measures)
    groups = min(bounding.groups, recipes.plan.groups or 1)
    if counts and recipes.plan.many and recipes.plan.known_keys and min(bounding.rows, groups) > 1:
        lines.append(
            f"Hint: one {public.unit.column or 'row'} counts with up to {many(bounding.rows, 'row')} in each "
            f"of {many(groups, 'group')}. session.workload([...]) counts at most as many rows over all "
            "groups, with less noise."
        )
    if any(m.kind == "present" for m in recipes.measures):
        lines.append(
            "Hint: part of the price goes into counting the values that are not NULL. If none can be NULL, "
            "the steward may declare nullable = false."
        )
    counts_rows = any(m.kind == "rows" for m in recipes.measures)
    if (
        public.size is None
        and counts_rows
        and counts_every_row(recipes.plan.source, recipes.plan.keys, public)
    ):
        lines.append(
            f"Hint: the number of rows is public under {public.neighbors}. Where the steward declares it, "
            f"size = ..., counting them is exact and free."
        )
    return tuple(lines)


def _choosing(choice: Choice, selector: Selector) -> str:
    """Say how a value is chosen, and how far off the choice may be: its error is in ranks or counts, not in
    the value's own unit.

    `selector.error` bounds the shortfall: how far the score of the chosen candidate is below the best score.
    For the quantile a / b a score is minus b times the distance to the wanted rank (`mechanism.scores`). Some
    candidate has that rank, so that the best score is 0, and a shortfall of s means s / b rows. For the most
    common values a score is a count.
    """
    size = choice.points if choice.kind == "quantile" else len(choice.values)
    by = (
        f"from {many(size, 'candidate')} by the exponential mechanism, epsilon "
        f"{float(selector.epsilon):.4g} per group"
    )
    shortfall = selector.error(size, PROMISED)
    if choice.kind == "quantile":
        rank = many(math.ceil(Fraction(shortfall, choice.parameter.denominator)), "row")
        return (
            f"Chooses the quantile {float(choice.parameter):g} {by}: the rank of the chosen value is "
            f"within {rank} of the rank asked for, "
            f"with {PROMISED:.0%} confidence."
        )
    below = f"count is at most {shortfall:,} below"
    if choice.kind == "mode":
        return f"Chooses the most common value {by}: its {below} the largest, with {PROMISED:.0%} confidence."
    values = many(int(choice.parameter), "most common value")
    return f"Chooses the {values} {by}: each one's {below} {_BEST_OF_RANK}, with {PROMISED:.0%} confidence."


def many(n: int, noun: str) -> str:
    """Return a number with its noun, such as "1 row" or "2 rows"."""
    return f"{n:,} {noun}" if n == 1 else f"{n:,} {noun}s"


def _in_groups(form: Form) -> str:
    """Say in how many groups one unit counts."""
    if not form.keys:
        return ""
    if form.groups is not None and form.bounding.groups >= form.groups:
        return ", in any of the groups"
    return f", and in at most {many(form.bounding.groups, 'group')}, chosen at random"


def _grouping(question: Question) -> str:
    """Say which groups there are, and whether they are public."""
    if not question.form.keys:
        return "One group: everything."
    if question.form.known_keys:
        assert question.form.groups is not None
        return f"{many(question.form.groups, 'group')}, all of them public; empty ones appear with noise."
    added_up = " The others are added up in one row." if question.form.gathered else ""
    return f"Groups are private: {_shown_from(question)}.{added_up}"


def _shown_from(question: Question) -> str:
    """Say how many units a private group needs in order to be shown."""
    assert question.selection is not None
    units = many(units_always_shown(*question.selection), "unit")
    return f"a group is always shown from {units} on, a smaller one with some probability"


def none_shown(question: Question) -> str:
    """Say why an answer has no group where groups are private. That none is shown is released."""
    column = question.form.public.unit.column
    return f"no group is shown (a unit is one {'row' if column is None else column})"
