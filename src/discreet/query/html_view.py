"""Renders answers, previews and budgets as small pieces of HTML, for notebooks."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from .._drawing import ACCENT, Markup, element, markup, table
from .._public import Public
from .answer import Answer, shown_cell
from .preview import Preview

# opacity makes text paler on light and on dark pages
_DIM = "opacity:.7;font-size:90%"
# The most rows of an answer that a notebook shows; pandas' default is 60, too.
_MAX_ROWS = 60


def answer_html(answer: Answer, confidence: float = 0.95) -> Markup:
    """Return the table of an answer, every number with its error beside it; below the table the price, and
    the notes on what the errors do not cover."""
    errors = answer.error(confidence)
    rows = []
    for i, row in enumerate(answer.rows[:_MAX_ROWS]):
        pairs = zip(answer.columns, row, strict=True)
        rows.append(
            [
                shown_cell(v, errors[name][i] if name in errors else None, exact=answer._is_exact(name))
                for name, v in pairs
            ]
        )
    numeric = [name in errors for name in answer.columns]
    foot = [
        f"{confidence:.0%} of errors are within ±; {answer.price}" if errors else answer.price,
        *answer.notes,
    ]
    if len(answer.rows) > _MAX_ROWS:
        foot.insert(0, f"... {len(answer.rows) - _MAX_ROWS:,} more rows: answer.rows or answer.to_pandas()")
    return markup(_table(answer.columns, rows, numeric), _lines(foot))


def preview_html(preview: Preview, before: float, after: float, limit: float, state: str) -> Markup:
    """Return price, errors and plan of a query, and what it would leave of the budget.

    `before` and `after`: what is spent of the budget without and with this query, in the unit of `limit`.
    `state`: the same in words, and how many such queries the remaining budget pays for.
    """
    titles = ("column", f"with {preview.confidence:.0%} confidence")
    return markup(
        element("b", f"price: {preview.price}"),
        f"; {state}",
        bar(before, limit, after),
        _table(titles, preview.measured, (False, True)),
        _lines(preview.plan),
        _lines(f"Note: {note}." for note in preview.notes),
    )


def session_html(
    public: Public, accounts: Iterable[tuple[str, float, float, str]], analyst: str | None
) -> Markup:
    """Return the name of the table, what is protected, who asks, and how much of each budget is spent.

    `accounts`: for each budget its name, what is spent, its limit, and the unit of both ("epsilon").
    """
    protected = "a row" if public.unit.column is None else f"all rows of one {public.unit.column}"
    rows = (
        element("div", f"{account}: {unit} {used:.4g} of {limit:.4g} used", bar(used, limit))
        for account, used, limit, unit in accounts
    )
    asker = "" if analyst is None else f" as {analyst}"
    return markup(element("b", public.table), f"{asker}: protects {protected}", *rows)


def bar(used: float, limit: float, after: float | None = None) -> Markup:
    """Return a bar that shows which share of a budget is spent (`used` of `limit`), and in a paler color what
    a query would add to it (`after`: the total spent after the query)."""
    parts, start = [], 0.0
    for value, color in ((used, ACCENT), (after, "#8fc1d6")):
        share = start if value is None else _share(value, limit)
        style = f"float:left;height:8px;width:{100 * max(0.0, share - start):.1f}%;background:{color}"
        parts.append(element("div", style=style))
        start = max(start, share)
    return element(
        "div", *parts, style="width:240px;height:8px;background:rgba(128,128,128,.25);margin:3px 0"
    )


def _share(value: float, limit: float) -> float:
    """Return `value / limit` between 0 and 1; 1 where it is no finite number."""
    return min(1.0, max(0.0, value / limit)) if math.isfinite(value) and limit > 0 else 1.0


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]], numeric: Sequence[bool]) -> Markup:
    """Return a table; numbers are aligned to the right."""
    sides = ("right" if is_number else "left" for is_number in numeric)
    return table(titles, rows, [f"text-align:{side};padding:2px 10px" for side in sides])


def _lines(lines: Iterable[str]) -> Markup:
    """Return one paragraph in small print per line."""
    return markup(*(element("div", line, style=_DIM) for line in lines))
