"""Draws pictures as SVG, written by hand: curves and bars that a page, a notebook or a printer shows without
any package."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

INK, ACCENT, PALE, GRID = "#1f2933", "#0b6e99", "#9aa5b1", "#e4e7eb"
_COLORS = (ACCENT, "#b3541e", "#5b7553", "#7a5195", "#a8871a", "#52606d")
# The attribute of a dashed line, and the height of a row of the legend in pixels.
_DASH, _ROW = ' stroke-dasharray="5 4"', 14
# The layout of a picture in pixels: its size, and the margins around the axes. Chosen by eye.
_WIDTH, _HEIGHT, _LEFT, _BOTTOM, _TOP, _RIGHT = 560, 300, 62, 48, 30, 16


@dataclass(frozen=True, slots=True)
class Series:
    """Describes one line of a picture, or one set of bars. `color` is an index into the palette, by default
    the number of the series in its picture; a series with an empty name is left out of the legend.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dashed: bool = False
    color: int | None = None

    def stroke(self, number: int) -> str:
        """Return the color of the series with this number in its picture."""
        return _COLORS[(number if self.color is None else self.color) % len(_COLORS)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """Draws lines over numbers, or bars where `labels` are given, one label for each group of bars. A
    notebook shows it; `save` writes an .svg file.

    `log_x` and `log_y` make an axis logarithmic; `y_bottom` and `y_top` fix the ends of the y axis.
    The names of the fields are a wire format: app/web/planning.py sends them as JSON and builds the picture
    from them again.
    """

    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    labels: tuple[str, ...] = ()
    log_x: bool = False
    log_y: bool = False
    y_top: float | None = None
    y_bottom: float | None = None

    def svg(self) -> str:
        """Return the picture as one <svg> element without any reference to another file."""
        return _svg(self)

    def _repr_svg_(self) -> str:
        return self.svg()

    def save(self, path: str | Path) -> Path:
        """Write the picture to an .svg file, and return its path."""
        target = Path(path)
        target.write_text(self.svg(), encoding="utf-8")
        return target


def _svg(picture: Picture) -> str:
    """Return the picture as SVG."""
    body = _bars(picture) if picture.labels else _lines(picture)
    middle_x, middle_y = (_LEFT + _WIDTH - _RIGHT) / 2, (_TOP + _HEIGHT - _BOTTOM) / 2
    # the legend of several series stands above the axes, where no line crosses it
    legend_rows = sum(bool(series.name) for series in picture.series)
    legend_height = _ROW * legend_rows + 6 if legend_rows > 1 else 0
    height = _HEIGHT + legend_height
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" '
        f'height="{height}" role="img" aria-label="{escape(picture.title)}" '
        f'font-family="system-ui, sans-serif" font-size="11">'
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
        + _text(_LEFT, 16, picture.title, anchor="start", size=13, weight="600")
        + (_legend(picture) if legend_height else "")
        + f'<g transform="translate(0 {legend_height})">'
        + body
        + _text(middle_x, _HEIGHT - 8, picture.x_label)
        + _text(14, middle_y, picture.y_label, rotated=True)
        + "</g></svg>"
    )


def _y_scale(picture: Picture) -> _Scale:
    """Return the scale of the y axis: from zero, unless it is logarithmic or `y_bottom` is set.

    On a logarithmic axis bars begin at 0.6 times the least value, so that its bar is visible.
    """
    ys = [y for series in picture.series for y in series.y]
    bottom = picture.y_bottom
    if bottom is None and picture.log_y and picture.labels:
        bottom = 0.6 * min((y for y in ys if y > 0), default=1.0)
    if bottom is None and not picture.log_y:
        bottom = 0.0
    return _Scale.of(ys, _HEIGHT - _BOTTOM, _TOP, log=picture.log_y, bottom=bottom, top=picture.y_top)


def _lines(picture: Picture) -> str:
    """Return the axes and one polyline per series."""
    xs = [x for series in picture.series for x in series.x]
    x_scale = _Scale.of(xs, _LEFT, _WIDTH - _RIGHT, log=picture.log_x)
    y_scale = _y_scale(picture)
    parts = [_axes(x_scale, y_scale)]
    for number, series in enumerate(picture.series):
        points = " ".join(
            f"{x_scale(x):.1f},{y_scale(y):.1f}" for x, y in zip(series.x, series.y, strict=True)
        )
        dash = _DASH if series.dashed else ""
        parts.append(
            f'<polyline points="{points}" fill="none" stroke="{series.stroke(number)}" '
            f'stroke-width="2"{dash}/>'
        )
    return "".join(parts)


def _bars(picture: Picture) -> str:
    """Return the axes and the bars of all series, with their values and labels."""
    count, sets = len(picture.labels), len(picture.series)
    y_scale = _y_scale(picture)
    slot = (_WIDTH - _RIGHT - _LEFT) / max(count, 1)
    width = 0.7 * slot / max(sets, 1)
    parts = [_axes(None, y_scale)]
    base = y_scale(y_scale.low)
    for s, series in enumerate(picture.series):
        for i, y in enumerate(series.y):
            left, top = _LEFT + i * slot + 0.15 * slot + s * width, y_scale(y)
            parts.append(
                f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{max(0.0, base - top):.1f}" '
                f'fill="{series.stroke(s)}"/>'
            )
            parts.append(_text(left + width / 2, top - 4, _short(y), size=10))
    for i, label in enumerate(picture.labels):
        # up to three lines; a character of this size is taken to be 5.2 pixels wide
        for row, line in enumerate(textwrap.wrap(label, max(6, int(slot / 5.2)))[:3]):
            parts.append(_text(_LEFT + (i + 0.5) * slot, _HEIGHT - _BOTTOM + 12 + 11 * row, line, size=9))
    return "".join(parts)


@dataclass(frozen=True, slots=True)
class _Scale:
    """Maps values from [low, high] to pixels from `start` to `end`, linearly or by logarithms.

    Values outside are drawn at the nearer end; infinite ones and NaN at `high`.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool

    @classmethod
    def of(
        cls,
        values: Sequence[float],
        start: float,
        end: float,
        *,
        log: bool = False,
        bottom: float | None = None,
        top: float | None = None,
    ) -> _Scale:
        """Return the scale that shows all values, or from `bottom` to `top` where these are given."""
        shown = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [0.1, 1.0]
        low, high = (min(shown) if bottom is None else bottom), (max(shown) if top is None else top)
        if high <= low:
            high = low * 10 if log else low + 1.0
        return cls(low, high, start, end, log)

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high) if math.isfinite(value) else self.high
        if self.log:
            share = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Return about five round values in the range: multiples of 1, 2 or 5 times a power of ten. A
        logarithmic axis with more than seven of these has the powers of ten alone."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            marks = [m * 10.0**p for p in powers for m in (1, 2, 5)]
            in_range = [m for m in marks if self.low <= m <= self.high]
            return in_range if len(in_range) <= 7 else [m for m in in_range if f"{m:.0e}".startswith("1")]
        rough = (self.high - self.low) / 5
        step = 10.0 ** math.floor(math.log10(rough))
        step *= next(m for m in (1, 2, 5, 10) if m * step >= rough * 0.999)
        first = math.ceil(self.low / step)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


def _axes(x_scale: _Scale | None, y_scale: _Scale) -> str:
    """Return grid lines, tick labels and the base line."""
    parts = []
    for tick in y_scale.ticks():
        y = y_scale(tick)
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="{GRID}"/>'
            + _text(_LEFT - 6, y + 4, _short(tick), anchor="end", size=10)
        )
    for tick in x_scale.ticks() if x_scale is not None else ():
        parts.append(_text(x_scale(tick), _HEIGHT - _BOTTOM + 14, _short(tick), size=10))  # type: ignore[misc]
    base = _HEIGHT - _BOTTOM
    return "".join(parts) + (
        f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{base}" y2="{base}" stroke="{PALE}"/>'
    )


def _legend(picture: Picture) -> str:
    """Return one row per named series."""
    parts, y = [], _TOP + 2
    for number, series in enumerate(picture.series):
        if not series.name:
            continue
        parts.append(
            f'<line x1="{_LEFT}" x2="{_LEFT + 16}" y1="{y - 4}" y2="{y - 4}" '
            f'stroke="{series.stroke(number)}" '
            f'stroke-width="3"{_DASH if series.dashed else ""}/>'
            + _text(_LEFT + 22, y, series.name, anchor="start", size=10)
        )
        y += _ROW
    return "".join(parts)


def _text(
    x: float,
    y: float,
    text: str,
    *,
    anchor: str = "middle",
    size: int = 11,
    weight: str = "",
    rotated: bool = False,
) -> str:
    """Return a text element."""
    bold = f' font-weight="{weight}"' if weight else ""
    rotation = f' transform="rotate(-90 {x:.1f} {y:.1f})"' if rotated else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{INK}"'
        f"{bold}{rotation}>{escape(text)}</text>"
    )


def _short(value: float) -> str:
    """Return a value as the text of a tick or a bar."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
