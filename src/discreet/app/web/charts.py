"""Charts as SVG, drawn on the server: no script, and text that a screen reader reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from html import escape

_WIDTH, _BAR, _LEFT, _RIGHT = 640.0, 26.0, 150.0, 100.0
_MOST = 40
_ROOM = _WIDTH - _LEFT - _RIGHT


def _number(value: float) -> str:
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else "∞"
    if abs(value) >= 10 and value == round(value):
        return f"{value:,.0f}"
    digits = max(0, 2 - math.floor(math.log10(abs(value)))) if abs(value) < 1e15 else 0
    return f"{value:,.{min(digits, 6)}f}"


def _svg(title: str, tall: float, parts: Sequence[str]) -> str:
    name = escape(title, quote=True)
    return (
        f'<svg class="chart" viewBox="0 0 {_WIDTH:g} {tall:g}" role="img" aria-label="{name}">'
        f"<title>{name}</title>{''.join(parts)}</svg>"
    )


def _text(x: float, y: float, said: str, kind: str = "", end: bool = True) -> str:
    short = said if len(said) <= 22 or kind == "value" else said[:21] + "…"
    anchor = ' text-anchor="end"' if end else ""
    mark = f' class="{kind}"' if kind else ""
    return f'<text{mark} x="{x:g}" y="{y:.1f}"{anchor}>{escape(short)}</text>'


def _whisker(start: float, end: float, middle: float) -> str:
    ends = f"M{start:.1f} {middle - 5:.1f}v10M{end:.1f} {middle - 5:.1f}v10"
    return f'<path class="whisker" d="M{start:.1f} {middle:.1f}H{end:.1f}{ends}"/>'


def bars(
    labels: Sequence[str], heights: Sequence[float | None], errors: Sequence[float | None], title: str
) -> str:
    """Return horizontal bars with error bars; nothing is drawn for a height that is None."""
    rows = list(zip(labels, heights, errors, strict=True))[:_MOST]
    spans = [(h, e or 0.0) for _, h, e in rows if h is not None and math.isfinite(h + (e or 0.0))]
    if not spans:
        return ""
    low, high = min(0.0, *(h - e for h, e in spans)), max(0.0, *(h + e for h, e in spans))
    scale = _ROOM / ((high - low) or 1.0)
    parts = []
    for i, (label, height, error) in enumerate(rows):
        top = 8 + i * _BAR
        middle = top + _BAR / 2 - 4
        parts.append(_text(_LEFT - 8, middle + 4, label))
        if height is None or (height, error or 0.0) not in spans:
            continue
        start, end = sorted((_LEFT + scale * (0.0 - low), _LEFT + scale * (height - low)))
        wide, thick = max(end - start, 0.5), _BAR - 8
        parts.append(
            f'<rect class="bar" x="{start:.1f}" y="{top:.1f}" width="{wide:.1f}" height="{thick:.1f}"/>'
        )
        if error:
            ends = [_LEFT + scale * (height + sign * error - low) for sign in (-1, 1)]
            parts.append(_whisker(ends[0], ends[1], middle))
        said = _number(height) + (f" ± {_number(error)}" if error else "")
        parts.append(_text(_WIDTH - 4, middle + 4, said, "value"))
    return _svg(title, 16 + len(rows) * _BAR, parts)


def expected(names: Sequence[str], errors: Sequence[float | None], confidence: float) -> str:
    """Return the error bars that an answer will have, before it is bought: around a value not yet known."""
    pairs = [(n, e) for n, e in zip(names, errors, strict=True) if e is not None and math.isfinite(e)]
    if not pairs:
        return ""
    widest = max(error for _, error in pairs) or 1.0
    center = _LEFT + _ROOM / 2
    parts = []
    for i, (name, error) in enumerate(pairs):
        middle = 20 + i * _BAR
        half = _ROOM / 2 * error / widest
        parts += [
            _text(_LEFT - 8, middle + 4, name),
            f'<circle class="center" cx="{center:g}" cy="{middle:g}" r="4"/>',
            _whisker(center - half, center + half, middle),
            _text(_WIDTH - 4, middle + 4, f"± {_number(error)}", "value"),
        ]
    said = "; ".join(f"{name} plus or minus {_number(error)}" for name, error in pairs)
    return _svg(f"Expected error with {confidence:.0%} confidence: {said}", 16 + len(pairs) * _BAR, parts)


def steps(points: Sequence[tuple[datetime, float]], until: datetime, limit: float, title: str) -> str:
    """Return what was charged, added up over time until now, as a step line below its limit."""
    if not points:
        return ""
    total, tall = 0.0, 160.0
    first, top = points[0][0], max(limit, sum(price for _, price in points)) or 1.0
    span = max((until - first).total_seconds(), 1.0)
    line = f"M40 {tall - 24:g}"
    for moment, price in points:
        total += price
        height = tall - 24 - (tall - 40) * total / top
        place = 40 + (_WIDTH - 60) * min(1.0, max(0.0, (moment - first).total_seconds()) / span)
        line += f"H{place:.1f}V{height:.1f}"
    line += f"H{_WIDTH - 20:g}"
    edge = tall - 24 - (tall - 40) * limit / top
    parts = [
        f'<path class="limit" d="M40 {edge:.1f}H{_WIDTH - 20:g}"/>',
        _text(36, edge + 4, _number(limit)),
        f'<path class="line" d="{line}"/>',
        f'<path class="axis" d="M40 {tall - 24:g}H{_WIDTH - 20:g}"/>',
        _text(40, tall - 6, f"{first:%Y-%m-%d %H:%M}", end=False),
        _text(_WIDTH - 20, tall - 6, f"now, {len(points):,} charges", "value"),
    ]
    return _svg(title, tall, parts)
