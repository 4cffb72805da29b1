"""Draws charts as SVG on the server: no script, and text that a screen reader reads.

Writes numbers, times and prices for pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

from ... import _registry


def figure(value: float, error: float | None = None) -> str:
    """Return a number as people write it: with as many decimals as its error allows (two significant digits
    of the error; without one, four of the number; at most six decimals).

    Whole numbers have no decimals. Floats from 1e15 on and below 1e-4 have three digits and an exponent.

    >>> figure(12345678), figure(2.86123, 0.0213), figure(-123.0, 599.0), figure(0.3333333), figure(1234567.8)
    ('12,345,678', '2.861', '-123', '0.3333', '1,234,568')
    >>> figure(-0.3, 599.0), figure(2**60 + 1)
    ('0', '1,152,921,504,606,846,977')
    """
    if isinstance(value, int):
        return f"{value:,}"
    # "z" writes a negative number that rounds to zero without its sign.
    if math.isfinite(value) and value == round(value) and abs(value) < 1e15:
        return f"{value:z,.0f}"
    if not math.isfinite(value):
        return "∞" if value > 0 else "-∞" if value < 0 else "not a number"
    if abs(value) >= 1e15 or abs(value) < 1e-4:
        return f"{value:.3g}"
    usable_error = error if error and math.isfinite(error) else None
    # The power of ten of the first significant digit.
    exponent = math.floor(math.log10(abs(value if usable_error is None else usable_error)))
    decimals = (3 if usable_error is None else 1) - exponent
    return f"{value:z,.{min(max(decimals, 0), 6)}f}"


def amount(value: float | None) -> str:
    """Return an amount of budget or of seconds: four significant digits; from 1,000 on, a whole number.

    >>> amount(1.029), amount(12345.6), amount(1e-07), amount(None)
    ('1.029', '12,346', '1e-07', '')
    """
    if value is None:
        return ""
    return f"{value:,.0f}" if math.isfinite(value) and abs(value) >= 1000 else f"{value:.4g}"


def exact(value: Any) -> str:
    """Return a number of a budget as the text of a form field, from which the same float is read back.

    >>> exact(3.0), exact(1e-06), exact(0.30000000000000004), exact({"fraction": "1/3"})
    ('3', '1e-06', '0.30000000000000004', '0.3333333333333333')
    """
    number = float(_registry.from_json(value))
    short = f"{number:g}"
    return short if float(short) == number else repr(number)


def minute(text: str) -> str:
    """Return the time of an entry, cut off after the minute.

    >>> minute("2026-11-17T04:26Z"), minute("2026-11-17T04:26:31.123+00:00")
    ('2026-11-17 04:26', '2026-11-17 04:26')
    """
    return text[:16].replace("T", " ")


def moment(seconds: float) -> str:
    """Return a time in seconds since 1970 as date and minute, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC"


def day(seconds: float) -> str:
    """Return a time in seconds since 1970 as a date, in UTC."""
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%d}"


def brief(price: str) -> str:
    """Return the part of a price before the noise: epsilon, and delta if there is one; all of another price.

    >>> brief("epsilon 0.1: DiscreteLaplace(scale 200)"), brief("Gaussian(s 3)")
    ('epsilon 0.1', 'Gaussian(s 3)')
    """
    return price.split(": ", 1)[0] if price.startswith("epsilon ") else price


def noise(price: str) -> str:
    """Return the part of a price that names the noise, which `brief` leaves out.

    >>> noise("epsilon 0.1: DiscreteLaplace(scale 200)"), noise("Gaussian(s 3)")
    ('DiscreteLaplace(scale 200)', '')
    """
    return price.split(": ", 1)[1] if price.startswith("epsilon ") and ": " in price else ""


def harmless(text: str) -> str:
    """Return a text that no spreadsheet runs as a formula.

    >>> harmless("=1+1"), harmless("a=b"), harmless("")
    ("'=1+1", 'a=b', '')
    """
    return "'" + text if text[:1] in ("=", "+", "-", "@", "\t", "\r", "\n") else text


# The functions as filters of the templates, by name.
FILTERS: dict[str, Any] = {
    "figure": figure, "amount": amount, "minute": minute, "moment": moment, "day": day, "brief": brief,
    "noise": noise, "exact": exact,
}  # fmt: skip


# In units of the SVG's viewBox, like all positions below: the width of a chart, which is narrow enough for a
# phone, the height of a row, and the width of a letter. All are chosen by eye, and change the look only.
_WIDTH, _ROW_HEIGHT, _LETTER = 440.0, 26.0, 7.4
# The most bars of a chart, and the most characters of a label; more would not fit the page.
_MAX_BARS, _LONGEST_LABEL = 40, 18


def _number(value: float, error: float | None = None) -> str:
    """Return a number with the decimals that its error allows; without an error, with three significant
    digits (whole numbers in full)."""
    return figure(value, error if error else abs(value) / 10 or None)


def _margins(labels: Sequence[str], captions: Sequence[str]) -> tuple[float, float, float]:
    """Return the x at which bars begin, the width of the longest bar, and the x at which captions end.

    Labels stand to the left of the bars, captions (numbers) to their right; the bars get the remaining width,
    and at least 60.
    """
    left_margin = 14 + _LETTER * max(min(len(label), _LONGEST_LABEL) for label in labels)
    right_margin = 14 + _LETTER * max(map(len, captions))
    return left_margin, max(60.0, _WIDTH - left_margin - right_margin), _WIDTH - 4


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    """Return the SVG of a chart from its elements; screen readers read the title."""
    name = escape(title, quote=True)
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {height:g}" role="img" aria-label="{name}">'
        f"<title>{name}</title>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, content: str, kind: str = "", end: bool = True) -> str:
    """Return a text that ends at x, or begins there if not `end`; `kind` is its CSS class.

    A long text is cut off, except one of the class "value".
    """
    fits = len(content) <= _LONGEST_LABEL or kind == "value"
    short = content if fits else content[: _LONGEST_LABEL - 1] + "…"
    anchor = ' text-anchor="end"' if end else ""
    mark = f' class="{kind}"' if kind else ""
    return f'<text{mark} x="{x:g}" y="{y:.1f}"{anchor}>{escape(short)}</text>'


def _whisker(start: float, end: float, middle: float) -> str:
    """Return an error bar from x = start to x = end at y = middle."""
    ends = f"M{start:.1f} {middle - 5:.1f}v10M{end:.1f} {middle - 5:.1f}v10"
    return f'<path class="whisker" d="M{start:.1f} {middle:.1f}H{end:.1f}{ends}"/>'


# The two ends of an interval; None where a value has none.
Ends = tuple[float, float] | None


def bars(labels: Sequence[str], heights: Sequence[float | None], ends: Sequence[Ends], title: str) -> str:
    """Return horizontal bars with error bars, one bar for each label, length (in `heights`) and interval;
    only the first `_MAX_BARS` are drawn.

    A label alone is drawn where the length is None, or the length or the interval is not finite.
    """
    rows = list(zip(labels, heights, ends, strict=True))[:_MAX_BARS]
    spans = [(h, h) if e is None else e for _, h, e in rows if h is not None]
    spans = [span for span in spans if math.isfinite(span[1] - span[0])]
    if not spans:
        return ""
    low, high = min(0.0, *(start for start, _ in spans)), max(0.0, *(end for _, end in spans))
    captions = ["" if h is None else _caption(h, e) for _, h, e in rows]
    left_margin, bar_width, edge = _margins([label for label, _, _ in rows], captions)
    scale = bar_width / ((high - low) or 1.0)
    parts = []
    for i, (label, height, interval) in enumerate(rows):
        top = 8 + i * _ROW_HEIGHT
        middle = top + _ROW_HEIGHT / 2 - 4
        parts.append(_text(left_margin - 8, middle + 4, label))
        if height is None or ((height, height) if interval is None else interval) not in spans:
            continue
        start, end = sorted((left_margin + scale * (0.0 - low), left_margin + scale * (height - low)))
        length, thickness = max(end - start, 0.5), _ROW_HEIGHT - 8
        parts.append(
            f'<rect class="bar" x="{start:.1f}" y="{top:.1f}" width="{length:.1f}" height="{thickness:.1f}"/>'
        )
        if interval is not None:
            start, end = (left_margin + scale * (bound - low) for bound in interval)
            parts.append(_whisker(start, end, middle))
        parts.append(_text(edge, middle + 4, captions[i], "value"))
    return _svg(title, 16 + len(rows) * _ROW_HEIGHT, parts)


def _caption(height: float, interval: Ends) -> str:
    """Return a number with its error, or with the ends of an interval that is longer on one side."""
    if interval is None:
        return _number(height)
    below, above = height - interval[0], interval[1] - height
    if abs(below - above) <= 1e-6 * max(abs(below), abs(above)):
        return f"{_number(height, above)} ± {_number(above)}"
    return f"{_number(height, above)} ({_number(interval[0], above)} to {_number(interval[1], above)})"


def expected(names: Sequence[str], errors: Sequence[float | None], confidence: float) -> str:
    """Return a chart of the error bars that an answer will have, around a value that is not known yet.

    `names` are the columns of the answer; a column whose error is None or infinite is left out.
    """
    pairs = [(n, e) for n, e in zip(names, errors, strict=True) if e is not None and math.isfinite(e)]
    if not pairs:
        return ""
    widest = max(error for _, error in pairs) or 1.0
    left_margin, bar_width, edge = _margins(
        [name for name, _ in pairs], [f"± {_number(error)}" for _, error in pairs]
    )
    center = left_margin + bar_width / 2
    parts = []
    for i, (name, error) in enumerate(pairs):
        middle = 20 + i * _ROW_HEIGHT
        half_length = bar_width / 2 * error / widest
        parts += [
            _text(left_margin - 8, middle + 4, name),
            f'<circle class="center" cx="{center:g}" cy="{middle:g}" r="4"/>',
            _whisker(center - half_length, center + half_length, middle),
            _text(edge, middle + 4, f"± {_number(error)}", "value"),
        ]
    description = "; ".join(f"{name} plus or minus {_number(error)}" for name, error in pairs)
    return _svg(
        f"Expected error with {confidence:.0%} confidence: {description}",
        16 + len(pairs) * _ROW_HEIGHT,
        parts,
    )


def steps(points: Sequence[tuple[datetime, float]], until: datetime, limit: float | None, title: str) -> str:
    """Return a chart of prices, added up over time, as a step line with its limit.

    Each of `points` is the time of a charge and its price; the earliest comes first. `until` is the right end
    of the chart. `limit` is in the unit of the prices; with None no limit is drawn.
    """
    if not points:
        return ""
    total, height = 0.0, 160.0
    first, highest = points[0][0], max(limit or 0.0, sum(price for _, price in points)) or 1.0
    span = max((until - first).total_seconds(), 1.0)
    line = f"M40 {height - 24:g}"
    for moment, price in points:
        total += price
        y = height - 24 - (height - 40) * total / highest
        x = 40 + (_WIDTH - 60) * min(1.0, max(0.0, (moment - first).total_seconds()) / span)
        line += f"H{x:.1f}V{y:.1f}"
    line += f"H{_WIDTH - 20:g}"
    parts = []
    if limit is not None:
        limit_y = height - 24 - (height - 40) * limit / highest
        parts += [
            f'<path class="limit" d="M40 {limit_y:.1f}H{_WIDTH - 20:g}"/>',
            _text(36, limit_y + 4, f"{limit:,.6g}"),
        ]
    parts += [
        f'<path class="line" d="{line}"/>',
        f'<path class="axis" d="M40 {height - 24:g}H{_WIDTH - 20:g}"/>',
        _text(40, height - 6, f"{first:%Y-%m-%d %H:%M}", end=False),
        _text(_WIDTH - 20, height - 6, f"now, {len(points):,} charges", "value"),
    ]
    return _svg(title, height, parts)
