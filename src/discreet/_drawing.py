"""Draws pictures and pages as text, SVG and HTML, without a package, for notebooks, files and the console.

Text becomes markup in one place, `markup`, which escapes it: the names of columns, questions and categories
come from others. What is drawn has no script, and loads nothing from elsewhere.
"""

from __future__ import annotations

import math
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import repeat
from pathlib import Path

from ._text import visible

INK, ACCENT, WARN, SOFT, PALE, PAPER = "#1f2933", "#0b6e99", "#c0392b", "#52606d", "#e4e7eb", "#ffffff"
COLORS = (ACCENT, "#b3541e", "#5b7553", "#7a5195", "#a8871a", SOFT, INK, WARN, PALE)
# What each color becomes on a dark page.
_DARK = {
    INK: "#e4e7eb", ACCENT: "#4fb3d9", WARN: "#f0867a", SOFT: "#9aa5b1", PALE: "#323f4b", PAPER: "#14181d",
    "#b3541e": "#e08a5b", "#5b7553": "#9dbb93", "#7a5195": "#b794d0", "#a8871a": "#d4b84a",
}  # fmt: skip
_TURNED = "".join(f'[fill="{a}"]{{fill:{b}}}[stroke="{a}"]{{stroke:{b}}}' for a, b in _DARK.items())
# The style of a page, light and dark as its reader's system is.
STYLE = f"""
:root {{ --ink: {INK}; --soft: {SOFT}; --line: {PALE}; --accent: {ACCENT}; --warn: {WARN}; --page: {PAPER}; }}
@media screen and (prefers-color-scheme: dark) {{ {_TURNED}
:root {{ --ink: {_DARK[INK]}; --soft: {_DARK[SOFT]}; --line: {_DARK[PALE]}; --accent: {_DARK[ACCENT]};
--warn: {_DARK[WARN]}; --page: {_DARK[PAPER]}; }} }}
body {{ font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--page); max-width: 46rem;
margin: 2rem auto; padding: 0 1rem; }}
h1 {{ font-size: 1.6rem; line-height: 1.25; }} h2 {{ font-size: 1.1rem; margin: 1.4rem 0 .3rem; }}
table {{ border-collapse: collapse; font-size: .9rem; margin: 1rem 0; }} td, th {{ text-align: left;
padding: .25rem 1.5rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }}
td {{ font-variant-numeric: tabular-nums; }} svg {{ max-width: 100%; height: auto; }}
p {{ margin: .35rem 0; }}
"""
_DASH = "5 4"


class Markup(str):
    """Holds text that is markup already. Any other text is escaped where it enters an element."""

    __slots__ = ()

    def __html__(self) -> str:
        """Return the markup: templates of Jinja, which escape all else, take it unchanged."""
        return self


def markup(*content: object) -> Markup:
    """Return contents one after the other. What is no markup yet is escaped, and characters that would hide
    or reorder what stands beside them are written out."""
    texts = (c if isinstance(c, Markup) else escape(visible(str(c), keep="\n")) for c in content)
    return Markup("".join(texts))


def element(name: str, *content: object, **attributes: object) -> Markup:
    """Return an element. In the name of an attribute `_` stands for `-`, and at its end for nothing
    (`class_`); one that is None is left out. A float is rounded to a tenth.

    >>> element("text", "a < b", x=1.04, font_size=9, style=None)
    '<text x="1" font-size="9">a &lt; b</text>'
    """
    written = [
        markup(Markup(f' {key.rstrip("_").replace("_", "-")}="'), _attribute(value), Markup('"'))
        for key, value in attributes.items()
        if value is not None
    ]
    return Markup(f"<{name}{''.join(written)}>{markup(*content)}</{name}>")


def _attribute(value: object) -> object:
    return f"{round(value, 1):.12g}" if isinstance(value, float) else value


def text(x: float, y: float, content: str, anchor: str = "middle", **attributes: object) -> Markup:
    """Return a text of a picture."""
    return element("text", content, x=x, y=y, text_anchor=anchor, **attributes)


def line(x1: float, y1: float, x2: float, y2: float, **attributes: object) -> Markup:
    """Return a straight line of a picture."""
    return element("line", x1=x1, x2=x2, y1=y1, y2=y2, **attributes)


def rect(
    x: float, y: float, width: float, height: float, title: str | None = None, **attributes: object
) -> Markup:
    """Return a rectangle of a picture; a browser shows its title when the pointer is over it."""
    name = () if title is None else (element("title", title),)
    return element("rect", *name, x=x, y=y, width=width, height=max(0.0, height), **attributes)


def whisker(start: float, end: float, middle: float) -> Markup:
    """Return an error bar from x = start to x = end at y = middle."""
    ends = f"M{start:.1f} {middle - 5:.1f}v10M{end:.1f} {middle - 5:.1f}v10"
    return element("path", class_="whisker", d=f"M{start:.1f} {middle:.1f}H{end:.1f}{ends}")


def svg(width: float, height: float, title: str, *content: Markup, sheet: str | None = None) -> Markup:
    """Return a picture as one <svg> element without any reference to another file; screen readers read its
    title. `sheet` is its class where its page has a style sheet for it; without one it has a font and a size
    of its own."""
    own = {
        "width": width,
        "height": height,
        "font_family": "system-ui, sans-serif",
        "font_size": 11,
        "fill": INK,
    }
    return element(
        "svg",
        *content,
        xmlns="http://www.w3.org/2000/svg",
        viewBox=f"0 0 {width:g} {height:g}",
        role="img",
        aria_label=title,
        **(own if sheet is None else {"class_": sheet}),
    )


def table(
    columns: Sequence[object], rows: Iterable[Sequence[object]], styles: Sequence[str] | None = None
) -> Markup:
    """Return a table; `styles` has the style of the cells of each column."""
    styled = repeat(None) if styles is None else styles

    def row(tag: str, cells: Sequence[object]) -> Markup:
        pairs = zip(cells, styled, strict=False)
        return element("tr", *(element(tag, cell, style=style) for cell, style in pairs))

    head = (element("thead", row("th", columns)),) if columns else ()
    return element("table", *head, element("tbody", *(row("td", cells) for cells in rows)))


def page(title: str, *body: Markup, style: str = STYLE) -> Markup:
    """Return a complete HTML page."""
    meta = Markup(
        '<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
    )
    head = element("head", meta, element("title", title), element("style", Markup(style)))
    return markup(
        Markup("<!doctype html>\n"), element("html", head, element("body", *body), lang="en"), Markup("\n")
    )


class Drawn(ABC):
    """Is the base of what draws itself: a notebook shows it, and `save` writes an .svg file."""

    __slots__ = ()

    @abstractmethod
    def svg(self) -> Markup:
        """Return the picture as one <svg> element without any reference to another file."""

    def _repr_svg_(self) -> str:
        return self.svg()

    def save(self, path: str | Path) -> Path:
        """Write the picture to an .svg file, which replaces an existing one, and return its path."""
        target = Path(path)
        target.write_text(self.svg(), encoding="utf-8")
        return target


@dataclass(frozen=True, slots=True)
class PixelScale:
    """Maps values from [low, high] to pixels from `start` to `end`, linearly or by logarithms.

    Values outside are drawn at the nearer end; infinite ones and NaN at `high`.
    """

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def of(
        cls,
        values: Iterable[float],
        start: float,
        end: float,
        *,
        log: bool = False,
        bottom: float | None = None,
        top: float | None = None,
    ) -> PixelScale:
        """Return the scale that shows all values, or from `bottom` to `top` where these are given."""
        shown = [v for v in values if math.isfinite(v) and (v > 0 or not log)] or [0.1, 1.0]
        low, high = (min(shown) if bottom is None else bottom), (max(shown) if top is None else top)
        if high <= low:
            high = low * 10 if log else low + 1.0
        return cls(low, high, start, end, log)

    def __call__(self, value: float) -> float:
        value = min(max(value, self.low), self.high) if math.isfinite(value) else self.high
        if self.log:
            least = math.log(self.low)
            share = (math.log(value) - least) / (math.log(self.high) - least)
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
        step = 10.0 ** math.floor(math.log10(rough)) if rough else 0.0
        if not step:
            # the power of ten of a subnormal number is zero
            return [self.low, self.high]
        step *= next(m for m in (1, 2, 5, 10) if m * step >= rough * 0.999)
        first = math.ceil(self.low / step)
        return [k * step for k in range(first, math.floor(self.high / step + 1e-9) + 1)]


@dataclass(frozen=True, slots=True)
class Series:
    """Describes one line of a picture, or one set of bars. `kind` is "line", "area" (from the line down to
    the axis) or "points", which have their values beside them. `color` is an index into `COLORS`, by default
    the number of the series in its picture; a series with an empty name is left out of the legend.
    """

    name: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    dashed: bool = False
    color: int | None = None
    kind: str = "line"

    def stroke(self, number: int) -> str:
        """Return the color of the series with this number in its picture."""
        return COLORS[(number if self.color is None else self.color) % len(COLORS)]


# The layout of a picture in pixels: the margins around the axes, and the height of a row of the legend.
# Chosen by eye.
_LEFT, _BOTTOM, _TOP, _RIGHT, _ROW = 62, 48, 30, 16, 14


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture(Drawn):
    """Draws lines over numbers, or bars where `labels` are given, one label for each group of bars.

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
    width: int = 560
    height: int = 300

    def svg(self) -> Markup:
        middle = (_LEFT + self.width - _RIGHT) / 2, (_TOP + self.height - _BOTTOM) / 2
        named = [(number, series) for number, series in enumerate(self.series) if series.name]
        # the legend of several series stands above the axes, where no line crosses it
        legend = _legend(named) if len(named) > 1 else ()
        moved = _ROW * len(legend) + 6 if legend else 0
        content = element(
            "g",
            *self._axes(),
            *(self._bars() if self.labels else self._lines()),
            text(middle[0], self.height - 8, self.x_label),
            text(14, middle[1], self.y_label, transform=f"rotate(-90 14 {middle[1]:g})"),
            transform=f"translate(0 {moved})",
        )
        return svg(
            self.width,
            self.height + moved,
            self.title,
            rect(0, 0, self.width, self.height + moved, fill=PAPER),
            text(_LEFT, 16, self.title, "start", font_size=13, font_weight=600),
            *legend,
            content,
        )

    @property
    def _base(self) -> int:
        """The y of the x axis."""
        return self.height - _BOTTOM

    def _x_scale(self) -> PixelScale:
        xs = [x for series in self.series for x in series.x]
        return PixelScale.of(xs, _LEFT, self.width - _RIGHT, log=self.log_x)

    def _y_scale(self) -> PixelScale:
        """Return the scale of the y axis: from zero, unless it is logarithmic or `y_bottom` is set.

        On a logarithmic axis bars begin at 0.6 times the least value, so that its bar is visible.
        """
        ys = [y for series in self.series for y in series.y]
        bottom = self.y_bottom
        if bottom is None and self.log_y and self.labels:
            bottom = 0.6 * min((y for y in ys if y > 0), default=1.0)
        if bottom is None and not self.log_y:
            bottom = 0.0
        return PixelScale.of(ys, self._base, _TOP, log=self.log_y, bottom=bottom, top=self.y_top)

    def _axes(self) -> Iterable[Markup]:
        """Yield grid lines, the labels of ticks and the base line."""
        y_scale, right, base = self._y_scale(), self.width - _RIGHT, self._base
        for tick in y_scale.ticks():
            y = y_scale(tick)
            yield line(_LEFT, y, right, y, stroke=PALE)
            yield text(_LEFT - 6, y + 4, _short(tick), "end", font_size=10)
        if not self.labels:
            x_scale = self._x_scale()
            for tick in x_scale.ticks():
                yield text(x_scale(tick), base + 14, _short(tick), font_size=10)
        yield line(_LEFT, base, right, base, stroke=SOFT)

    def _lines(self) -> Iterable[Markup]:
        """Yield one polyline, polygon or set of points for each series."""
        x_scale, y_scale = self._x_scale(), self._y_scale()
        for number, series in enumerate(self.series):
            color = series.stroke(number)
            places = [(x_scale(x), y_scale(y)) for x, y in zip(series.x, series.y, strict=True)]
            if series.kind == "points":
                for (x, y), value in zip(places, series.y, strict=True):
                    yield element("circle", element("title", series.name), cx=x, cy=y, r=4, fill=color)
                    yield text(x - 6, y - 8, _short(value), "end", font_weight=600)
                continue
            if series.kind == "area":
                around = [(places[0][0], self._base), *places, (places[-1][0], self._base)]
                yield element("polygon", points=_points(around), fill=color)
                continue
            dash = _DASH if series.dashed else None
            yield element(
                "polyline",
                points=_points(places),
                fill="none",
                stroke=color,
                stroke_width=2,
                stroke_dasharray=dash,
            )

    def _bars(self) -> Iterable[Markup]:
        """Yield the bars of all series, with their values and labels."""
        y_scale = self._y_scale()
        slot = (self.width - _RIGHT - _LEFT) / len(self.labels)
        width = 0.7 * slot / max(len(self.series), 1)
        for number, series in enumerate(self.series):
            for i, y in enumerate(series.y):
                left, top = _LEFT + i * slot + 0.15 * slot + number * width, y_scale(y)
                yield rect(left, top, width, self._base - top, fill=series.stroke(number))
                yield text(left + width / 2, top - 4, _short(y), font_size=10)
        for i, label in enumerate(self.labels):
            # up to three lines; a character of this size is taken to be 5.2 pixels wide
            for row, part in enumerate(textwrap.wrap(label, max(6, int(slot / 5.2)))[:3]):
                yield text(_LEFT + (i + 0.5) * slot, self._base + 12 + 11 * row, part, font_size=9)


def _legend(named: Sequence[tuple[int, Series]]) -> list[Markup]:
    """Return one row for each named series, given with its number."""
    rows = []
    for i, (number, series) in enumerate(named):
        y, dash = _TOP + 2 + i * _ROW, _DASH if series.dashed else None
        swatch = line(
            _LEFT,
            y - 4,
            _LEFT + 16,
            y - 4,
            stroke=series.stroke(number),
            stroke_width=8 if series.kind == "area" else 3,
            stroke_dasharray=dash,
        )
        rows.append(markup(swatch, text(_LEFT + 22, y, series.name, "start", font_size=10)))
    return rows


def _points(places: Iterable[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in places)


def _short(value: float) -> str:
    """Return a value as the text of a tick, a point or a bar."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Holds one heading with its sentences (`lines`), and optionally a table (`columns` names its columns)
    and a picture."""

    heading: str
    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    picture: Picture | None = None

    def html(self, tag: str = "h2") -> Markup:
        """Return the section as HTML, its heading in this tag."""
        parts = [element(tag, self.heading), *(element("p", sentence) for sentence in self.lines)]
        if self.rows:
            parts.append(table(self.columns, self.rows))
        if self.picture is not None:
            parts.append(self.picture.svg())
        return markup(*parts)
