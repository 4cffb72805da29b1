"""Renders answers, previews and budgets as small pieces of HTML, for notebooks.

All text that comes from a query, a table or a user is HTML-escaped.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

from .._public import Public
from .answer import Answer, shown_cell
from .preview import Preview

# the alignment of the cell goes into the braces
_CELL = 'style="text-align:{};padding:2px 10px"'
# opacity makes text paler on light and on dark pages
_DIM = 'style="opacity:.7;font-size:90%"'
# The most rows of an answer that a notebook shows; pandas' default is 60, too.
_MAX_ROWS = 60


def answer_html(answer: Answer, confidence: float = 0.95) -> str:
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
    return _table(answer.columns, rows, numeric) + _lines(foot)


def preview_html(preview: Preview, before: float, after: float, limit: float, state: str) -> str:
    """Return price, errors and plan of a query, and what it would leave of the budget.

    `before` and `after`: what is spent of the budget without and with this query, in the unit of `limit`.
    `state`: the same in words, and how many such queries the remaining budget pays for.
    """
    head = f"<b>price: {escape(preview.price)}</b>; {escape(state)}"
    return (
        head
        + bar(before, limit, after)
        + _table(("column", f"with {preview.confidence:.0%} confidence"), preview.measured, (False, True))
        + _lines(preview.plan)
        + _lines(f"Note: {note}." for note in preview.notes)
    )


def session_html(
    public: Public, accounts: Iterable[tuple[str, float, float, str]], analyst: str | None
) -> str:
    """Return the name of the table, what is protected, who asks, and how much of each budget is spent.

    `accounts`: for each budget its name, what is spent, its limit, and the unit of both ("epsilon").
    """
    protected = "a row" if public.unit.column is None else f"all rows of one {public.unit.column}"
    head = (
        f"<b>{escape(public.table)}</b>{'' if analyst is None else ' as ' + escape(analyst)}: protects "
        f"{escape(protected)}"
    )
    rows = "".join(
        f"<div>{escape(account)}: {escape(unit)} {used:.4g} of {limit:.4g} used{bar(used, limit)}</div>"
        for account, used, limit, unit in accounts
    )
    return head + rows


def bar(used: float, limit: float, after: float | None = None) -> str:
    """Return a bar that shows which share of a budget is spent (`used` of `limit`), and in a paler color what
    a query would add to it (`after`: the total spent after the query)."""
    parts = [(used, "#0b6e99")] + ([] if after is None else [(after, "#8fc1d6")])
    inner, start = "", 0.0
    for value, color in parts:
        share = _share(value, limit)
        width = 100 * max(0.0, share - start)
        inner += f'<div style="float:left;height:8px;width:{width:.1f}%;background:{color}"></div>'
        start = max(start, share)
    return f'<div style="width:240px;height:8px;background:rgba(128,128,128,.25);margin:3px 0">{inner}</div>'


def _share(value: float, limit: float) -> float:
    """Return `value / limit` between 0 and 1; 1 where it is no finite number."""
    return min(1.0, max(0.0, value / limit)) if math.isfinite(value) and limit > 0 else 1.0


def _table(titles: Sequence[str], rows: Sequence[Sequence[Any]], numeric: Sequence[bool]) -> str:
    """Return an HTML table; numbers are aligned to the right."""
    sides = ["right" if is_number else "left" for is_number in numeric]
    head = "".join(
        f"<th {_CELL.format(side)}>{escape(str(t))}</th>" for t, side in zip(titles, sides, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(
            f"<td {_CELL.format(side)}>{escape(str(c))}</td>" for c, side in zip(row, sides, strict=True)
        )
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _lines(lines: Iterable[str]) -> str:
    """Return one paragraph in small print per line."""
    return "".join(f"<div {_DIM}>{escape(line)}</div>" for line in lines)
