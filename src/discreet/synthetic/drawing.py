"""Draws pictures of a report as SVG text, without a plotting library: a heat map of pairs of columns, and a
small bar chart for each column."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from .._public import Boolean, Categories, Dates
from ..tables.cells import Coding
from .arguments import check_writable

_TEXT_COLOR, _COPY_COLOR, _REFERENCE_COLOR, _GRID_COLOR = "#1f2933", "#0b6e99", "#d9a441", "#e4e7eb"
_CELL_SIZE, _CHART_WIDTH, _CHART_HEIGHT, _CHARTS_PER_LINE = 22, 250, 110, 3


@dataclass(frozen=True, slots=True)
class MarginalShares:
    """Holds the shares of one column's codes, in the copy and in the counts that the copy is compared with
    (`other`); `labels` are the texts of the codes."""

    column: str
    labels: tuple[str, ...]
    other: tuple[float, ...]
    copy: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Drawing:
    """Draws a picture that a notebook shows; `save` writes an .svg file.

    `pairs` has the values of the heat map, by the names of two columns. `marginals` has the bar charts: the
    bars of the copy stand beside those of `MarginalShares.other`, which the legend calls `other_label`.
    """

    title: str
    columns: tuple[str, ...]
    pairs: Mapping[tuple[str, str], float]
    marginals: tuple[MarginalShares, ...]
    other_label: str

    def svg(self) -> str:
        """Return the picture as one <svg> element without any reference to another file."""
        return _svg(self)

    def _repr_svg_(self) -> str:
        return self.svg()

    def save(self, path: str | Path) -> Path:
        """Write the picture to an .svg file, which replaces an existing one, and return its path."""
        target = check_writable(path, overwrite=True)
        target.write_text(self.svg(), encoding="utf-8")
        return target


def code_labels(coding: Coding) -> tuple[str, ...]:
    """Return a text for each code of a column; of dates, the days of a bin after the column's lower bound."""
    if isinstance(coding.fact, Categories):
        labels = [str(value) for value in coding.fact.values]
    elif isinstance(coding.fact, Boolean):
        labels = ["false", "true"]
    else:
        unit = " days" if isinstance(coding.fact, Dates) else ""
        ends = zip(coding.edges, coding.edges[1:], strict=False)
        labels = [f"{low:g} to {high:g}{unit}" for low, high in ends]
    return (*labels, "NULL") if coding.missing else tuple(labels)


def marginal(coding: Coding, other: Any, codes: Any) -> MarginalShares:
    """Return the shares of a column's codes in a copy, whose rows have these `codes`, and in the counts
    `other`, of which negative ones are taken as 0."""
    counts = np.maximum(np.asarray(other, dtype=np.float64), 0.0)
    in_copy = np.bincount(np.asarray(codes), minlength=coding.size) / max(1, len(codes))
    shares = counts / counts.sum() if counts.sum() > 0 else counts
    return MarginalShares(coding.column, code_labels(coding), tuple(shares.tolist()), tuple(in_copy.tolist()))


def _svg(drawing: Drawing) -> str:
    """Return the whole picture: a title, the heat map, a legend, and lines of bar charts. All sizes are in
    pixels."""
    names, margin = drawing.columns, 130
    side = margin + _CELL_SIZE * len(names)
    chart_lines = -(-len(drawing.marginals) // _CHARTS_PER_LINE)
    width = max(side + 120, 20 + _CHARTS_PER_LINE * (_CHART_WIDTH + 20))
    top = 80 + _CELL_SIZE * len(names)
    height = top + 40 + chart_lines * (_CHART_HEIGHT + 40)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{escape(drawing.title)}" '
        f'font-family="system-ui, sans-serif" font-size="11" fill="{_TEXT_COLOR}">',
        _text(10, 20, drawing.title, "start", bold=True),
        *_heat_map(drawing, margin),
    ]
    legend = ((_COPY_COLOR, "copy"), (_REFERENCE_COLOR, drawing.other_label))
    for k, (color, name) in enumerate(legend):
        parts.append(f'<rect x="{10 + 90 * k}" y="{top}" width="10" height="10" fill="{color}"/>')
        parts.append(_text(25 + 90 * k, top + 9, name, "start"))
    for k, chart in enumerate(drawing.marginals):
        line, column = divmod(k, _CHARTS_PER_LINE)
        parts += _bar_chart(chart, 10 + column * (_CHART_WIDTH + 20), top + 40 + line * (_CHART_HEIGHT + 40))
    return "\n".join([*parts, "</svg>"])


def _heat_map(drawing: Drawing, margin: int) -> list[str]:
    """Return the elements of the heat map, the lower triangle of all pairs; names stand left of `margin`."""
    names = drawing.columns
    largest = max(drawing.pairs.values(), default=0.0) or 1.0
    parts = [_text(10, 40, f"darker means a larger value, up to {largest:.4f}; empty: not known", "start")]
    for i, name in enumerate(names):
        y = 60 + i * _CELL_SIZE
        parts.append(_text(margin - 6, y + 15, name, "end"))
        for j, earlier in enumerate(names[:i]):
            value = drawing.pairs.get((earlier, name), drawing.pairs.get((name, earlier)))
            fill = 'fill="none"'
            if value is not None:
                fill = f'fill="{_COPY_COLOR}" fill-opacity="{value / largest:.3f}"'
            label = f"{earlier}, {name}: " + ("not known" if value is None else f"{value:.4f}")
            parts.append(
                f'<rect x="{margin + j * _CELL_SIZE}" y="{y}" width="{_CELL_SIZE}" '
                f'height="{_CELL_SIZE}" {fill} '
                f'stroke="{_GRID_COLOR}"><title>{escape(label)}</title></rect>'
            )
        x = margin + i * _CELL_SIZE + 14
        parts.append(
            f'<text x="{x}" y="{y + 16}" transform="rotate(-30 {x} {y + 16})">{escape(name)}</text>'
            if i < len(names) - 1
            else ""
        )
    return parts


def _bar_chart(chart: MarginalShares, x: float, y: float) -> list[str]:
    """Return the elements of one column's bar chart, whose upper left corner is at x and y."""
    largest = max([*chart.other, *chart.copy, 1e-9])
    step, base = _CHART_WIDTH / max(1, len(chart.labels)), y + _CHART_HEIGHT
    parts = [
        _text(x, y - 4, chart.column, "start", bold=True),
        f'<line x1="{x}" y1="{base}" x2="{x + _CHART_WIDTH}" y2="{base}" stroke="{_TEXT_COLOR}"/>',
    ]
    for k, label in enumerate(chart.labels):
        for shift, color, share in (
            (0.05, _COPY_COLOR, chart.copy[k]),
            (0.5, _REFERENCE_COLOR, chart.other[k]),
        ):
            height, left = _CHART_HEIGHT * share / largest, x + (k + shift) * step
            parts.append(
                f'<rect x="{left:.1f}" y="{base - height:.1f}" width="{step * 0.42:.1f}" '
                f'height="{height:.1f}" fill="{color}"><title>{escape(label)}: {share:.4f}</title></rect>'
            )
    return parts


def _text(x: float, y: float, text: str, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="bold"' if bold else ""
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}"{weight}>{escape(text)}</text>'


def pair_values(
    columns: Sequence[str], values: Mapping[tuple[str, ...], float]
) -> dict[tuple[str, str], float]:
    """Return the values whose key is a pair of columns, with each pair in the order of `columns`; where a
    pair has several values, the least of them."""
    order = {name: i for i, name in enumerate(columns)}
    out: dict[tuple[str, str], float] = {}
    for names, value in values.items():
        if len(names) == 2:
            first, second = sorted(names, key=order.__getitem__)
            out[first, second] = min(value, out.get((first, second), value))
    return out
