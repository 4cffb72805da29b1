"""Charts as SVG, drawn on the server: no script, and text that a screen reader reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from html import escape

from .formats import figure

# narrow enough to be read on a phone without scrolling
_WIDTH, _BAR, _LETTER = 440.0, 26.0, 7.4
# Bars of a chart, and characters of a label, beyond which it would not fit the page.
_MAX_BARS, _LONGEST = 40, 18


def _number(value: float, error: float | None = None) -> str:
    """Return a number with the decimals that its error allows; by itself, with two or three digits."""
    return figure(value, error if error else abs(value) / 10 or None)


def _margins(labels: Sequence[str], captions: Sequence[str]) -> tuple[float, float, float]:
    """Return where bars begin, how much room they have, and where the numbers end: as the texts need it."""
    left_margin = 14 + _LETTER * max(min(len(label), _LONGEST) for label in labels)
    right = 14 + _LETTER * max(map(len, captions))
    return left_margin, max(60.0, _WIDTH - left_margin - right), _WIDTH - 4


def _svg(title: str, tall: float, parts: Sequence[str]) -> str:
    name = escape(title, quote=True)
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {tall:g}" role="img" aria-label="{name}">'
        f"<title>{name}</title>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, content: str, kind: str = "", end: bool = True) -> str:
    short = content if len(content) <= _LONGEST or kind == "value" else content[: _LONGEST - 1] + "…"
    anchor = ' text-anchor="end"' if end else ""
    mark = f' class="{kind}"' if kind else ""
    return f'<text{mark} x="{x:g}" y="{y:.1f}"{anchor}>{escape(short)}</text>'


def _whisker(start: float, end: float, middle: float) -> str:
    ends = f"M{start:.1f} {middle - 5:.1f}v10M{end:.1f} {middle - 5:.1f}v10"
    return f'<path class="whisker" d="M{start:.1f} {middle:.1f}H{end:.1f}{ends}"/>'


Ends = tuple[float, float] | None


def bars(labels: Sequence[str], heights: Sequence[float | None], ends: Sequence[Ends], title: str) -> str:
    """Return horizontal bars with the ends of their intervals; nothing is drawn for a height that is None."""
    rows = list(zip(labels, heights, ends, strict=True))[:_MAX_BARS]
    spans = [(h, h) if e is None else e for _, h, e in rows if h is not None]
    spans = [span for span in spans if math.isfinite(span[1] - span[0])]
    if not spans:
        return ""
    low, high = min(0.0, *(start for start, _ in spans)), max(0.0, *(end for _, end in spans))
    captions = ["" if h is None else _caption(h, e) for _, h, e in rows]
    left_margin, room, edge = _margins([label for label, _, _ in rows], captions)
    scale = room / ((high - low) or 1.0)
    parts = []
    for i, (label, height, interval) in enumerate(rows):
        top = 8 + i * _BAR
        middle = top + _BAR / 2 - 4
        parts.append(_text(left_margin - 8, middle + 4, label))
        if height is None or ((height, height) if interval is None else interval) not in spans:
            continue
        start, end = sorted((left_margin + scale * (0.0 - low), left_margin + scale * (height - low)))
        wide, thick = max(end - start, 0.5), _BAR - 8
        parts.append(
            f'<rect class="bar" x="{start:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{thick:.1f}"/>'
        )
        if interval is not None:
            start, end = (left_margin + scale * (bound - low) for bound in interval)
            parts.append(_whisker(start, end, middle))
        parts.append(_text(edge, middle + 4, captions[i], "value"))
    return _svg(title, 16 + len(rows) * _BAR, parts)


def _caption(height: float, interval: Ends) -> str:
    """Return a number with its error, or with the ends of an interval that is longer on one side."""
    if interval is None:
        return _number(height)
    below, above = height - interval[0], interval[1] - height
    if abs(below - above) <= 1e-6 * max(abs(below), abs(above)):
        return f"{_number(height, above)} ± {_number(above)}"
    return f"{_number(height, above)} ({_number(interval[0], above)} to {_number(interval[1], above)})"


def expected(names: Sequence[str], errors: Sequence[float | None], confidence: float) -> str:
    """Return the error bars that an answer will have, before it is bought: around a value not yet known."""
    pairs = [(n, e) for n, e in zip(names, errors, strict=True) if e is not None and math.isfinite(e)]
    if not pairs:
        return ""
    widest = max(error for _, error in pairs) or 1.0
    left_margin, room, edge = _margins(
        [name for name, _ in pairs], [f"± {_number(error)}" for _, error in pairs]
    )
    center = left_margin + room / 2
    parts = []
    for i, (name, error) in enumerate(pairs):
        middle = 20 + i * _BAR
        half = room / 2 * error / widest
        parts += [
            _text(left_margin - 8, middle + 4, name),
            f'<circle class="center" cx="{center:g}" cy="{middle:g}" r="4"/>',
            _whisker(center - half, center + half, middle),
            _text(edge, middle + 4, f"± {_number(error)}", "value"),
        ]
    description = "; ".join(f"{name} plus or minus {_number(error)}" for name, error in pairs)
    return _svg(
        f"Expected error with {confidence:.0%} confidence: {description}", 16 + len(pairs) * _BAR, parts
    )


def steps(points: Sequence[tuple[datetime, float]], until: datetime, limit: float | None, title: str) -> str:
    """Return a chart of prices, added up over time, as a step line with its limit.

    Each of `points` is the time of a charge and its price; the earliest comes first. `until` is the right end
    of the chart. `limit` is in the unit of the prices; None draws none.
    """
    if not points:
        return ""
    total, tall = 0.0, 160.0
    first, top = points[0][0], max(limit or 0.0, sum(price for _, price in points)) or 1.0
    span = max((until - first).total_seconds(), 1.0)
    line = f"M40 {tall - 24:g}"
    for moment, price in points:
        total += price
        height = tall - 24 - (tall - 40) * total / top
        x = 40 + (_WIDTH - 60) * min(1.0, max(0.0, (moment - first).total_seconds()) / span)
        line += f"H{x:.1f}V{height:.1f}"
    line += f"H{_WIDTH - 20:g}"
    parts = []
    if limit is not None:
        edge = tall - 24 - (tall - 40) * limit / top
        parts += [
            f'<path class="limit" d="M40 {edge:.1f}H{_WIDTH - 20:g}"/>',
            _text(36, edge + 4, f"{limit:,.6g}"),
        ]
    parts += [
        f'<path class="line" d="{line}"/>',
        f'<path class="axis" d="M40 {tall - 24:g}H{_WIDTH - 20:g}"/>',
        _text(40, tall - 6, f"{first:%Y-%m-%d %H:%M}", end=False),
        _text(_WIDTH - 20, tall - 6, f"now, {len(points):,} charges", "value"),
    ]
    return _svg(title, tall, parts)
