"""Writes the results page of a training run: one HTML file that needs no network.

It shows public facts only: the settings, epsilon against steps, and, where a public data set was given, the
loss of the released models on that set.
"""

from __future__ import annotations

import html
import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from .._text import visible

Point = tuple[float, float]

# the picture and its margins, in SVG units
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 270, 64, 16, 26, 40

_STYLE = """
:root { --ink: #1f2933; --soft: #52606d; --line: #e4e7eb; --accent: #0b6e99; --page: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ink: #e4e7eb; --soft: #9aa5b1; --line: #323f4b; --accent: #4fb3d9; --page: #14181d; } }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 44rem; margin: 3rem auto; padding: 0 1rem; }
h1 { font-size: 1.5rem; margin-bottom: .25rem; } h2 { font-size: 1.05rem; margin: 2rem 0 .5rem; }
p { color: var(--soft); margin: .25rem 0 1rem; } table { border-collapse: collapse; width: 100%; }
th { text-align: left; font-weight: 400; color: var(--soft); } th, td { padding: .3rem .5rem .3rem 0; border-bottom: 1px solid var(--line); }
th { white-space: nowrap; padding-right: 1.5rem; }
td { font-variant-numeric: tabular-nums; } svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: var(--soft); }
.grid { stroke: var(--line); } .curve { stroke: var(--accent); stroke-width: 2.2; fill: none; stroke-linejoin: round; }
.end { fill: var(--accent); } svg text.value { fill: var(--ink); font-weight: 600; }
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingCurve:
    """Describes one curve: `points` are (step, value); values are written with `digits` significant digits."""

    title: str
    note: str
    points: Sequence[Point]
    digits: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """Describes the page: a summary, a table of facts, and curves."""

    title: str
    summary: str
    facts: Sequence[tuple[str, str]]
    curves: Sequence[TrainingCurve] = field(default=())

    def html(self) -> str:
        """Return the page as one HTML document; every text is escaped."""
        rows = "\n".join(
            f"<tr><th>{_text(name)}</th><td>{_text(value)}</td></tr>" for name, value in self.facts
        )
        curves = "\n".join(_draw(curve) for curve in self.curves if len(curve.points) > 1)
        return (
            f'<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n<meta name="viewport" '
            f'content="width=device-width, initial-scale=1">\n'
            f"<title>{_text(self.title)}</title>\n<style>{_STYLE}</style>\n"
            f"<h1>{_text(self.title)}</h1>\n<p>{_text(self.summary)}</p>\n"
            f"<table>\n{rows}\n</table>\n{curves}\n</html>\n"
        )


def _draw(curve: TrainingCurve) -> str:
    """Return the HTML of one curve. Values that are infinite, NaN or of size 1e300 or more, where the axis
    would overflow, are not drawn; a sentence names the first such step."""
    finite = [point for point in curve.points if abs(point[1]) < 1e300]
    note = curve.note
    if len(finite) < len(curve.points):
        first = next(step for step, value in curve.points if not abs(value) < 1e300)
        note += f" From step {first:,.0f} on it is not a finite number: a smaller learning rate may help."
    picture = _svg(curve, finite) if len(finite) > 1 else ""
    return f"<h2>{_text(curve.title)}</h2>\n<p>{_text(note)}</p>\n{picture}"


def _svg(curve: TrainingCurve, points: Sequence[Point]) -> str:
    """Return the picture of finite points as SVG, with a grid of five values and five steps."""
    xs, ys = zip(*points, strict=True)
    last_step, top = max(xs), _round_up(max(ys))
    bottom = min(0.0, min(ys))

    def position(x: float, y: float) -> Point:
        """Return where a point is in the picture, in SVG units from its left and from its top."""
        across = _LEFT + (_WIDTH - _LEFT - _RIGHT) * x / (last_step or 1)
        down = _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - (y - bottom) / ((top - bottom) or 1))
        return round(across, 1), round(down, 1)

    parts = []
    for i in range(5):
        value = bottom + (top - bottom) * i / 4
        _, y = position(0, value)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{value:.{curve.digits}g}</text>')
    for i in range(5):
        x, _ = position(last_step * i / 4, bottom)
        parts.append(f'<text x="{x}" y="{_HEIGHT - 18}" text-anchor="middle">{last_step * i / 4:,.0f}</text>')
    parts.append(f'<text x="{_LEFT}" y="{_HEIGHT - 2}">steps</text>')
    line = " ".join(f"{x},{y}" for x, y in (position(*point) for point in points))
    end_x, end_y = position(xs[-1], ys[-1])
    parts.append(
        f'<polyline class="curve" points="{line}"/><circle class="end" cx="{end_x}" cy="{end_y}" r="4"/>'
    )
    parts.append(
        f'<text class="value" x="{end_x - 8}" y="{end_y - 10}" '
        f'text-anchor="end">{ys[-1]:.{curve.digits}g}</text>'
    )
    content = "\n".join(parts)
    return (
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{_text(curve.title)}">\n{content}\n</svg>'
    )


def _round_up(value: float) -> float:
    """Return the least round number that is not below `value`: where the axis ends."""
    if value <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    # For a subnormal value the power of ten may underflow to zero; then the axis ends at the value itself.
    ends = (step * power for step in (1, 1.2, 1.6, 2, 3, 4, 6, 8, 10))
    return next((end for end in ends if end >= value), value)


def _text(value: str) -> str:
    """Return a text for HTML: escaped, with control characters written out."""
    return html.escape(visible(value))
