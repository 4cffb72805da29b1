"""Draws charts as SVG on the server: no script, and text that a screen reader reads.

Writes numbers, times and prices for pages.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from ... import _registry
from ..._drawing import Markup, PixelScale, element, rect, svg, text, whisker


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


def _label(x: float, y: float, content: str) -> Markup:
    """Return a text that ends at x; a long one is cut off."""
    short = content if len(content) <= _LONGEST_LABEL else content[: _LONGEST_LABEL - 1] + "…"
    return text(x, y, short, "end")


def _value(x: float, y: float, content: str) -> Markup:
    """Return a text of any length that ends at x, in a paler color."""
    return text(x, y, content, "end", class_="value")


def _chart(title: str, height: float, parts: Sequence[Markup]) -> Markup:
    return svg(_WIDTH, height, title, element("title", title), *parts, sheet="chart")


# The two ends of an interval; None where a value has none.
Ends = tuple[float, float] | None


def bars(
    labels: Sequence[str],
    heights: Sequence[float | None],
    ends: Sequence[Ends],
    title: str,
    captions: Sequence[str] | None = None,
) -> Markup:
    """Return horizontal bars with error bars, one bar for each label, length (in `heights`) and interval, and
    a caption, by default the length and its error; only the first `_MAX_BARS` are drawn.

    A label alone is drawn where the length is None, or the length or the interval is not finite.
    """
    rows = list(zip(labels, heights, ends, strict=True))[:_MAX_BARS]
    spans = [(h, h) if e is None else e for _, h, e in rows if h is not None]
    spans = [span for span in spans if math.isfinite(span[1] - span[0])]
    if not spans:
        return Markup()
    low, high = min(0.0, *(start for start, _ in spans)), max(0.0, *(end for _, end in spans))
    captions = captions or ["" if h is None else _caption(h, e) for _, h, e in rows]
    left_margin, bar_width, edge = _margins([label for label, _, _ in rows], captions)
    scale = PixelScale(low, high if high > low else low + 1.0, left_margin, left_margin + bar_width)
    parts = []
    for i, (label, height, interval) in enumerate(rows):
        top = 8 + i * _ROW_HEIGHT
        middle = top + _ROW_HEIGHT / 2 - 4
        parts.append(_label(left_margin - 8, middle + 4, label))
        if height is None or ((height, height) if interval is None else interval) not in spans:
            continue
        start, end = sorted((scale(0.0), scale(height)))
        parts.append(rect(start, top, max(end - start, 0.5), _ROW_HEIGHT - 8, class_="bar"))
        if interval is not None:
            parts.append(whisker(scale(interval[0]), scale(interval[1]), middle))
        parts.append(_value(edge, middle + 4, captions[i]))
    return _chart(title, 16 + len(rows) * _ROW_HEIGHT, parts)


def _caption(height: float, interval: Ends) -> str:
    """Return a number with its error, or with the ends of an interval that is longer on one side."""
    if interval is None:
        return _number(height)
    below, above = height - interval[0], interval[1] - height
    if abs(below - above) <= 1e-6 * max(abs(below), abs(above)):
        return f"{_number(height, above)} ± {_number(above)}"
    return f"{_number(height, above)} ({_number(interval[0], above)} to {_number(interval[1], above)})"


def expected(names: Sequence[str], errors: Sequence[float | None], confidence: float) -> Markup:
    """Return a chart of the error bars that an answer will have, around a value that is not known yet.

    `names` are the columns of the answer; a column whose error is None or infinite is left out.
    """
    pairs = [(n, e) for n, e in zip(names, errors, strict=True) if e is not None and math.isfinite(e)]
    names, captions = [n for n, _ in pairs], [f"± {_number(e)}" for _, e in pairs]
    description = "; ".join(f"{name} plus or minus {_number(error)}" for name, error in pairs)
    title = f"Expected error with {confidence:.0%} confidence: {description}"
    return bars(names, [0.0] * len(pairs), [(-e, e) for _, e in pairs], title, captions)


def steps(
    points: Sequence[tuple[datetime, float]], until: datetime, limit: float | None, title: str
) -> Markup:
    """Return a chart of prices, added up over time, as a step line with its limit.

    Each of `points` is the time of a charge and its price; the earliest comes first. `until` is the right end
    of the chart. `limit` is in the unit of the prices; with None no limit is drawn.
    """
    if not points:
        return Markup()
    total, height, first, right = 0.0, 160.0, points[0][0], _WIDTH - 20
    highest = max(limit or 0.0, sum(price for _, price in points)) or 1.0
    up = PixelScale(0.0, highest, height - 24, 16)
    along = PixelScale(0.0, max((until - first).total_seconds(), 1.0), 40, right)
    path = f"M40 {up(0.0):g}"
    for moment, price in points:
        total += price
        path += f"H{along((moment - first).total_seconds()):.1f}V{up(total):.1f}"
    parts = []
    if limit is not None:
        parts = [
            element("path", class_="limit", d=f"M40 {up(limit):.1f}H{right:g}"),
            _label(36, up(limit) + 4, f"{limit:,.6g}"),
        ]
    parts += [
        element("path", class_="line", d=f"{path}H{right:g}"),
        element("path", class_="axis", d=f"M40 {up(0.0):g}H{right:g}"),
        text(40, height - 6, f"{first:%Y-%m-%d %H:%M}", "start"),
        _value(right, height - 6, f"now, {len(points):,} charges"),
    ]
    return _chart(title, height, parts)
