"""Defines the entry points of explanations: `explain` anything that has a price.

Computes the accuracy of a planned answer, in the units of its columns, and the price at which its error is
halved.

All of it is known before any data is read, because it follows from the price, the declared facts and the
plan.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real as Number
from typing import Any

from .. import _require
from .._drawing import Picture, Section, Series
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Neighbors, Public, Unit, as_neighbors
from ..accounting import ZCDP, ApproximateDP, Event, PureDP
from ..query import Answer
from ..query.preview import Preview
from . import words
from .explanation import Explanation, attack_picture, belief_picture
from .risk import Risk
from .words import DEPLOYMENTS

# The multiples of the price at which the curve of errors is evaluated. Chosen for the picture.
_FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnAccuracy:
    """Holds the accuracy of one column of a planned answer at the price `epsilon`.

    With probability `confidence` the answer is within `error` of the exact one. `curve` has pairs (epsilon,
    error); `halved_at` is a price at which the error is at most half, None if no price up to 64 times
    `epsilon` is enough. `size` is the declared number of rows, None if none is declared.
    """

    name: str
    epsilon: float
    error: float
    confidence: float
    curve: tuple[tuple[float, float], ...]
    halved_at: float | None
    size: int | None

    @property
    def share(self) -> float | None:
        """Return the error as a share of the declared number of rows, which means something for counts
        only."""
        return None if not self.size else self.error / self.size


def columns(
    question: Callable[[float], Preview], epsilon: float, *, size: int | None = None
) -> tuple[ColumnAccuracy, ...]:
    """Return the accuracy of each column of a planned question whose error is known beforehand.

    `question(price)` returns the preview of the same question at another price. `size` is the declared number
    of rows.
    """
    _require.positive(epsilon=epsilon)
    preview = question(float(epsilon))
    known = [
        i
        for i, error in enumerate(preview.errors)
        if error is not None and preview.columns[i] not in preview.keys
    ]
    previews = {factor: question(float(epsilon) * factor) for factor in _FACTORS}
    return tuple(_column(question, preview, previews, i, float(epsilon), size) for i in known)


def _column(
    question: Callable[[float], Preview],
    preview: Preview,
    previews: dict[float, Preview],
    i: int,
    epsilon: float,
    size: int | None,
) -> ColumnAccuracy:
    """Return the accuracy of column number `i`; `preview` is at the price `epsilon`, and `previews` has those
    at the multiples of it in `_FACTORS`."""
    error = preview.errors[i]
    assert error is not None
    points = [(epsilon * factor, scaled.errors[i]) for factor, scaled in previews.items()]
    return ColumnAccuracy(
        name=preview.columns[i],
        epsilon=epsilon,
        error=error,
        confidence=preview.confidence,
        curve=tuple((x, y) for x, y in points if y is not None),
        halved_at=_price_of_half_error(lambda price: question(price).errors[i], epsilon, error),
        size=size,
    )


def _price_of_half_error(
    error_at: Callable[[float], float | None], epsilon: float, error: float
) -> float | None:
    """Return a price at which the error is at most half, and at most one per cent above the least such
    price; None if 64 times the price `epsilon` is not enough, as where the error is not noise alone.

    The error is taken to fall as the price grows. The price is doubled until it is enough; then `high`, which
    is enough, and `low`, which is not, are bisected on a logarithmic scale. 64 is chosen by hand: a larger
    price would not be paid.
    """
    target = error / 2
    low, high = epsilon, epsilon
    while high <= 64 * epsilon and not _is_within(error_at, high, target):
        low, high = high, 2 * high
    if high > 64 * epsilon:
        return None
    while high > 1.01 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if _is_within(error_at, middle, target) else (middle, high)
    return high


def _is_within(error_at: Callable[[float], float | None], price: float, target: float) -> bool:
    """Return whether the question can be asked at this price, and its error is then at most `target`."""
    try:
        error = error_at(price)
    except InvalidInput:
        return False
    return error is not None and error <= target


# The delta of an explanation where neither the caller nor the subject has one and delta 0 gives no finite
# epsilon. A convention; the explanation states the delta that it uses.
USUAL_DELTA = 1e-6


@dataclass(frozen=True, slots=True)
class Spending:
    """Holds what a ledger says was spent on one account.

    `of` names the account. `used` and `limit` are in `unit`, "epsilon" or "rho"; the limit is infinite where
    there is none. `delta` is that of the account's budget. `steps` has a pair (label, running total after it)
    for each charge, and is empty where charges are not listed. `pure` is the sum of the charges' own
    epsilons, which with `own_delta`, the sum of their own deltas, is a guarantee of its own; infinite where
    some charge has none. `marks` says how many charges rest on what (`Release.mark`).
    """

    of: str
    unit: str
    used: float
    limit: float
    delta: float
    steps: tuple[tuple[str, float], ...] = ()
    neighbors: Neighbors = ADD_REMOVE
    pure: float = math.inf
    own_delta: float = 0.0
    marks: tuple[tuple[str, int], ...] = ()

    def risk(self, delta: float | None = None) -> Risk:
        """Return the risk of what was spent, at `delta` or at the delta that was spent.

        Both the sum of the charges and the total of the budget's filter bound it: the one with the lesser
        odds is taken. So the delta of the budget counts only where it buys a smaller epsilon: a single answer
        without a delta has the odds of that answer.
        """
        filtered = Risk(self._event(self.used), self._delta(delta))
        if not math.isfinite(self.pure):
            return filtered
        summed = _stated_guarantee(self.pure, self.own_delta, self.neighbors)
        plain = Risk(summed, self.own_delta if delta is None else delta)
        return plain if plain.odds_factor <= filtered.odds_factor else filtered

    def final_risk(self, delta: float | None = None) -> Risk | None:
        """Return the risk once all of the limit is spent; None where there is no limit."""
        return Risk(self._event(self.limit), self._delta(delta)) if math.isfinite(self.limit) else None

    def _delta(self, delta: float | None) -> float:
        if delta is not None:
            return delta
        return USUAL_DELTA if self.unit == "rho" and not self.delta else self.delta

    def _event(self, amount: float) -> Event:
        """Return the event of having spent `amount` of this budget."""
        if self.unit == "rho":
            return ZCDP(rho=amount, neighbors=self.neighbors)
        return _stated_guarantee(amount, self.delta, self.neighbors)


@_require.check_options
def explain(
    subject: Any,
    *,
    delta: float | None = None,
    audience: str = "public",
    neighbors: str | Neighbors = ADD_REMOVE,
) -> Explanation:
    """Explain what an epsilon, an event, an answer, a model, a budget or a session means for one person.

    `subject` is a number (an epsilon), or whatever has a price: an accounting event, an answer, a release, a
    fitted model, a mechanism, a stream or watch that was started, a preview, a budget, a session (then also
    what its ledger adds up to).
    `audience` is "public", "policy" or "engineer". `delta` is by default the subject's own; where it has
    none, 0 if the epsilon at delta 0 is finite, else 1e-6. `neighbors` is the neighbor relation of an epsilon
    given as a number, or of a budget; everything else has its own.

    >>> explanation = explain(1.0)
    >>> round(explanation.risk.after(0.5), 3)
    0.731
    """
    _require.one_of(words.AUDIENCES, audience=audience)
    if delta is not None:
        _require.probability(delta=delta)
        delta = float(delta)
    own = None if isinstance(subject, type) else _held(subject, "explain", Callable)
    if own is not None:
        explanation: Explanation = own(audience=audience, **({} if delta is None else {"delta": delta}))
        return explanation
    if isinstance(subject, Number) and not isinstance(subject, bool):
        _require.non_negative(epsilon=subject)
        _require.a_float(epsilon=subject)
        event = _stated_guarantee(float(subject), delta or 0.0, as_neighbors(neighbors))
        return explain_event(
            event, delta=delta or 0.0, audience=audience, title=f"What {_price_words(event)} means"
        )
    event, own_delta, title, facts = _price_facts(subject, as_neighbors(neighbors))
    chosen = _delta(event, own_delta) if delta is None else float(delta)
    public = _held(_started(subject) or subject, "public", Public)
    return explain_event(
        event,
        delta=chosen,
        audience=audience,
        title=title,
        facts=facts,
        unit=None if public is None else public.unit,
    )


def explain_event(
    event: Event,
    *,
    delta: float,
    audience: str = "public",
    title: str = "What this price means",
    facts: Sequence[tuple[str, str]] = (),
    more: Sequence[Section] = (),
    unit: Unit | None = None,
) -> Explanation:
    """Explain an event at a delta.

    `facts` are pairs (name, text) for the head of the page; `more` are sections that come after those about
    the risk; `unit` is the declared unit of privacy, which gives the noun for what is protected.
    """
    risk = Risk(event, float(delta))
    noun = "unit" if unit is None else words.unit_noun(unit)
    sections = [*_risk_sections(risk, audience, noun), *more]
    if risk.bounded and audience != "public":
        sections.append(_beside(risk))
    sections.append(Section(heading="What this is not", lines=words.disclaimers()))
    full = (*facts, ("Protected", words.protected(risk, noun)))
    return Explanation(title=title, audience=audience, risk=risk, sections=tuple(sections), facts=full)


def explain_spending(
    accounts: Sequence[Spending],
    *,
    audience: str = "public",
    title: str,
    facts: Sequence[tuple[str, str]] = (),
    delta: float | None = None,
    unit: Unit | None = None,
    overall: Spending | None = None,
) -> Explanation:
    """Explain what a ledger adds up to: the risk of one account, then each account with its limit.

    `overall` is the account of everything that was released about one unit. It must be given where several
    accounts together are about one unit: a person with rows in several periods has a charge in each, and
    the risk of one period would be too small. Where it is not given, each unit must belong to one account
    alone, and the risk shown is the largest of all accounts.
    """
    _require.non_empty(accounts=accounts)
    shown = overall or max(accounts, key=lambda account: account.risk(delta).odds_factor)
    risk = shown.risk(delta)
    more = [_adds_up(shown, risk, audience), _limits(accounts, delta)]
    spent = ("Spent so far", _used_of_limit(shown))
    return explain_event(
        risk.event,
        delta=risk.delta,
        audience=audience,
        title=title,
        facts=(*facts, spent),
        more=more,
        unit=unit,
    )


def explain_question(
    question: Callable[[float], Preview],
    epsilon: float,
    *,
    audience: str = "engineer",
    title: str,
    size: int | None = None,
    facts: Sequence[tuple[str, str]] = (),
    unit: Unit | None = None,
) -> Explanation:
    """Explain a planned question: the error of each column in its own units, and the price that halves it.

    `question(price)` returns the preview of the same question at another epsilon. `size` is the declared
    number of rows. Reads no data.
    """
    preview = question(float(epsilon))
    planned = columns(question, float(epsilon), size=size)
    sections = [_accuracy(column) for column in planned]
    lines = _lines_without_error(preview)
    if lines:
        sections.append(Section(heading="Known with the answer only", lines=lines))
    return explain_event(
        preview.event,
        delta=_delta(preview.event, preview.delta or None),
        audience=audience,
        title=title,
        facts=facts,
        more=sections,
        unit=unit,
    )


def _lines_without_error(preview: Preview) -> tuple[str, ...]:
    """Return lines that say when, or how, the error of columns without one in the preview becomes known."""
    without = [
        n for n, e in zip(preview.columns, preview.errors, strict=True) if e is None and n not in preview.keys
    ]
    later = [name for name in without if name not in preview.chosen]
    lines = []
    if later:
        lines.append(
            f"The error of {', '.join(later)} depends on how many rows there are, which is private: it comes "
            "with the answer. Declare the size of the table, where it is public, to know it beforehand."
        )
    if preview.chosen:
        # The error of a quantile or a mode is a number of rows, whatever size is declared.
        notes = "; ".join(preview.notes)
        lines.append(f"{', '.join(preview.chosen)}: chosen values, which have no ± of their own. {notes}.")
    return tuple(lines)


def _stated_guarantee(epsilon: float, delta: float, neighbors: Neighbors) -> Event:
    """Return the event of an (epsilon, delta) that is known by its numbers alone."""
    if delta == 0:
        return PureDP(epsilon=epsilon, neighbors=neighbors)
    return ApproximateDP(epsilon=epsilon, delta=delta, neighbors=neighbors)


def _price_words(event: Event) -> str:
    """Return the price of a stated guarantee as a phrase, with the numbers as they were given."""
    delta_words = f" with delta {event.delta:g}" if isinstance(event, ApproximateDP) else ""
    return f"an epsilon of {float(event.epsilon):g}{delta_words}"  # type: ignore[attr-defined]


def _delta(event: Event, own: float | None) -> float:
    """Return the delta to explain at: the subject's `own` if it is above 0; else 0 where that gives a finite
    epsilon, and `USUAL_DELTA` where it does not."""
    if own:
        return float(own)
    return 0.0 if math.isfinite(Risk(event, 0.0).epsilon) else USUAL_DELTA


def _price_facts(
    subject: Any, neighbors: Neighbors
) -> tuple[Event, float | None, str, tuple[tuple[str, str], ...]]:
    """Return the subject's event, its own delta or None, a title, and facts for the head of the page.

    Subjects are recognized by what they hold: `query` (a preview), `event_` (a fitted model), `event` (a
    release or a mechanism), a mechanism that was started (a stream or a watch), or `rho`, `epsilon` and
    `delta` (a budget).
    """
    facts: tuple[tuple[str, str], ...]
    subject = None if isinstance(subject, type) else subject
    if isinstance(subject, Event):
        return subject, _held(subject, "delta", Number), f"What {type(subject).__name__} means", ()
    if isinstance(subject, Answer):
        facts = (
            ("Released", f"{len(subject.rows):,} rows of {', '.join(subject.columns)}"),
            ("Asked", subject.sql),
        )
        return subject.event, subject.delta, "What this answer means for one person", facts
    query = _held(subject, "query", object)
    query_event = _held(query, "event", Event)
    if query_event is not None:
        title = "What this question would mean for one person"
        return query_event, _held(query, "delta", Number), title, ()
    fitted_event = _held(subject, "event_", Event)
    if fitted_event is not None:
        facts = (("Released", f"a model, {type(subject).__name__}"),)
        return (
            fitted_event,
            _own_delta(subject),
            "What this model means for one person in its training data",
            facts,
        )
    event = _held(subject, "event", Event)
    if event is not None:
        value = _held(subject, "value", object)
        name = type(subject if value is None else value).__name__
        return (
            event,
            _own_delta(subject),
            f"What this {type(subject).__name__} means for one person",
            (("Released", name),),
        )
    started = _started(subject)
    if started is not None:
        # A stream was asked for at (epsilon, delta); one with Laplace noise spends no delta.
        asked = (_held(started, "asked", tuple) or (None, None))[1]
        pure = math.isfinite(Risk(started.event, 0.0).epsilon)
        return (
            started.event,
            None if pure else _own_delta(started) or asked,
            f"What this {type(subject).__name__} means for one person",
            (("Released", f"all answers of a {type(started).__name__}, paid for when it was started"),),
        )
    if all(hasattr(subject, name) for name in ("rho", "epsilon", "delta")):
        priced = (
            ZCDP(rho=subject.rho, neighbors=neighbors)
            if subject.epsilon is None
            else _stated_guarantee(float(subject.epsilon), float(subject.delta), neighbors)
        )
        return priced, subject.delta or None, "What this budget means once it is all spent", ()
    raise _require.fail(
        "subject",
        type(subject).__name__,
        "an epsilon, an event, an answer, a release, a fitted model, a mechanism, a stream, a watch, a "
        "preview, a budget or a session",
    )


def _started(subject: Any) -> Any:
    """Return the mechanism of a stream (`counter`), of a watch (`live`) or of a handle (`mechanism`); None
    for everything else."""
    handle = _held(subject, "live", object) or subject
    for name in ("counter", "mechanism"):
        mechanism = _held(handle, name, object)
        if _held(mechanism, "event", Event) is not None:
            return mechanism
    return None


def _held(holder: Any, name: str, kind: Any) -> Any:
    """Return what `holder` has under a name, if that is of this kind; else None. Subjects are of packages
    that this one does not know, and are recognized by what they hold."""
    value = getattr(holder, name, None)
    return value if isinstance(value, kind) else None


def _own_delta(subject: Any) -> float | None:
    """Return the delta that a fitted model, its trainer or its mechanism was priced for."""
    for holder in (subject, _held(subject, "trainer_", object), _held(subject, "mechanism_", object)):
        delta = _held(holder, "delta", Number)
        if delta is not None and 0 < float(delta) < 1:
            return float(delta)
    return None


def _risk_sections(risk: Risk, audience: str, unit: str) -> list[Section]:
    """Return the sections about the risk, for one audience."""
    _require.one_of(words.AUDIENCES, audience=audience)
    head = {
        "public": "What it means for you",
        "policy": "What one person risks",
        "engineer": "The guarantee",
    }[audience]
    if not risk.bounded:
        return [Section(heading=head, lines=words.nothing_promised(risk))]
    first = f"Price: {words.price(risk)}, protecting {words.protected(risk, unit)}."
    lead = () if audience == "public" else (first,)
    sections = [
        Section(heading=head, lines=(*lead, *words.odds(risk, audience, unit)), picture=belief_picture(risk)),
        Section(heading="The best attack", lines=words.attack(risk, audience), picture=attack_picture(risk)),
        Section(heading="In money, against what you risk anyway", lines=words.cost(risk, audience, unit)),
        Section(heading="If one person leaves", lines=words.leaving(risk, audience, unit)),
    ]
    if audience == "public":
        sections.append(Section(heading="For those who want the number", lines=(first,)))
    else:
        sections.append(Section(heading="Families and other groups", lines=words.groups(risk)))
    return sections


def _beside(risk: Risk) -> Section:
    """Return the section that sets an epsilon beside published deployments."""
    rows = [
        (
            deployment.epsilon,
            deployment.who,
            deployment.what,
            deployment.price,
            deployment.unit,
            deployment.source,
        )
        for deployment in DEPLOYMENTS
    ]
    rows.append((risk.epsilon, "this", "", words.price(risk), "", ""))
    ordered = tuple(tuple(row[1:]) for row in sorted(rows, key=lambda row: row[0]))
    return Section(
        heading="Beside published deployments",
        lines=words.scale(risk),
        columns=("who", "what", "price", "for", "source"),
        rows=ordered,
    )


def _adds_up(account: Spending, risk: Risk, audience: str) -> Section:
    """Return the section that shows how the charges of an account add up to the `risk` of the page."""
    heading = "How it adds up"
    if not account.steps:
        spent = f"The charges so far ({account.of}) add up to {_used_of_limit(account)}."
        return Section(heading=heading, lines=(spent if account.used else "Nothing was asked yet.",))
    steps = account.steps
    lines = [
        f"Charges so far: {len(steps):,}. They add up to {_used_of_limit(account)}. Each answer has its "
        f"price, which is charged before anything is answered, and at the limit the answers stop."
    ]
    if account.marks:
        counted = ", ".join(f"{count:,} {mark}" for mark, count in account.marks)
        lines.append(
            f"Their prices are kept {counted}. The total is as strong as the weakest of them."
            if account.marks[1:]
            else f"Their prices are kept {account.marks[0][0]}."
        )
    if risk.delta > account.own_delta:
        lines.append(
            f"The delta above, {risk.delta:g}, is more than the charges' own deltas, which add up to "
            f"{account.own_delta:g}: with it, many charges add up to less epsilon."
        )
    if audience == "engineer":
        lines.append(
            "The sum is that of the budget's privacy filter, which also holds where questions were chosen "
            "after seeing earlier answers."
        )
    picture = Picture(
        title=f"{account.unit} spent, charge by charge",
        x_label="charge",
        y_label=account.unit,
        series=(
            Series("spent", tuple(range(len(steps) + 1)), (0.0, *(total for _, total in steps))),
            *(
                [Series("limit", (0.0, float(len(steps))), (account.limit, account.limit), dashed=True)]
                if math.isfinite(account.limit)
                else []
            ),
        ),
    )
    # The table has the last ten charges, with labels that fit a line; the picture has all.
    labels = [text if len(text) <= 60 else text[:59] + "…" for text, _ in steps]
    shown = tuple((text, f"{total:.4g}") for text, (_, total) in zip(labels, steps, strict=True))[-10:]
    return Section(
        heading=heading, lines=tuple(lines), columns=("charge", "total"), rows=shown, picture=picture
    )


def _limits(accounts: Sequence[Spending], delta: float | None) -> Section:
    """Return the section that shows, for each account, what a belief of 50% can become: by what is spent
    today, and once all is spent."""
    rows = []
    for account in accounts:
        now, final = account.risk(delta), account.final_risk(delta)
        limit = "" if final is None else f"of {account.limit:.4g} "
        at_the_end = "there is no limit" if final is None else words.out_of(final.after(0.5))
        spent = f"{account.used:.4g} {limit}{account.unit}"
        rows.append((account.of, spent, words.out_of(now.after(0.5)), at_the_end))
    columns = ("account", "spent", "50 in 100 becomes, today", "and when all is spent")
    return Section(heading="Today, and when the budget is gone", columns=columns, rows=tuple(rows))


def _used_of_limit(account: Spending) -> str:
    """Return what is spent of how much, in words."""
    limit = f"of {account.limit:.4g}" if math.isfinite(account.limit) else "(there is no limit)"
    return f"{account.unit} {account.used:.4g} {limit}"


def _accuracy(column: ColumnAccuracy) -> Section:
    """Return the section about the accuracy of one column of a planned answer."""
    lines = [
        f"{column.name}: with {column.confidence:.0%} confidence the answer is within "
        f"{words.number(column.error)} of the exact one, at epsilon {column.epsilon:.4g}. That follows from "
        "the price and the plan; no data was read."
    ]
    if column.share is not None:
        share = words.percent(column.share)
        lines.append(f"If {column.name} is a count, that is {share} of the declared size, {column.size:,}.")
    lines.append(
        f"Half of that error costs epsilon {words.number(column.halved_at)}."
        if column.halved_at is not None
        else "No price up to 64 times this one halves it: the error is not noise alone."
    )
    lines.append(
        "Or collect data from twice as many people at the same price: relative to a count, and in an "
        "average, the noise is then half as large. To halve the error of sampling takes four times as many."
    )
    picture = Picture(
        title=f"Error of {column.name} against its price",
        x_label="epsilon",
        y_label=f"error, {column.confidence:.0%}",
        log_x=True,
        log_y=True,
        series=(Series(column.name, tuple(x for x, _ in column.curve), tuple(y for _, y in column.curve)),),
    )
    return Section(heading=f"How good {column.name} will be", lines=tuple(lines), picture=picture)
