"""Measures how good a copy is, in three ways that differ in what they cost.

`bound_errors` is free, because it reads released values only. `CopyDistance` is a mechanism: it compares the
copy with the data, for a price. `comparison.compare` compares in many ways and is not private: it is for the
steward, who holds the data, or for data that are public.

Draws pictures of a report as SVG text, without a plotting library: a heat map of pairs of columns, and a
small bar chart for each column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from .. import _require
from .._drawing import ACCENT, INK, PALE, Drawn, Markup, line, rect, svg, text
from .._public import PUBLIC, Boolean, Categories, Dates, Public
from .._registry import described
from .._require import Real, at_least, instance_of
from ..accounting import Event
from ..mechanisms import IntegerLaplace, Sensitivity
from ..mechanisms.additive import laplace_noise
from ..mechanisms.protocols import Mechanism, Release, check_source, release
from ..sampling import Entropy
from ..tables import Source
from ..tables.cells import Coding
from .counting import OccurringCells, count_domain_cells, count_sensitivity, plan_domain_cells, rows_per_unit
from .estimation import combine_measurements, estimate_total
from .generation import fit_model, noisy_tables, sample_rows
from .graphical_model import Clique, GraphicalModel, group_arrays
from .marginal_trees import all_pairs
from .synthesizer import GRID, Fitted, grid_distance
from .table_domain import Epsilon, Rows, Seed, check_writable

_REFERENCE_COLOR = "#d9a441"
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
class Drawing(Drawn):
    """Draws the quality of a copy.

    `pairs` has the values of the heat map, by the names of two columns. `marginals` has the bar charts: the
    bars of the copy stand beside those of `MarginalShares.other`, which the legend calls `other_label`.
    """

    title: str
    columns: tuple[str, ...]
    pairs: Mapping[tuple[str, str], float]
    marginals: tuple[MarginalShares, ...]
    other_label: str

    def svg(self) -> Markup:
        names, margin = self.columns, 130
        side = margin + _CELL_SIZE * len(names)
        chart_lines = -(-len(self.marginals) // _CHARTS_PER_LINE)
        width = max(side + 120, 20 + _CHARTS_PER_LINE * (_CHART_WIDTH + 20))
        top = 80 + _CELL_SIZE * len(names)
        height = top + 40 + chart_lines * (_CHART_HEIGHT + 40)
        parts = [text(10, 20, self.title, "start", font_weight="bold"), *_heat_map(self, margin)]
        for k, (color, name) in enumerate(((ACCENT, "copy"), (_REFERENCE_COLOR, self.other_label))):
            parts.append(rect(10 + 90 * k, top, 10, 10, fill=color))
            parts.append(text(25 + 90 * k, top + 9, name, "start"))
        for k, chart in enumerate(self.marginals):
            row, column = divmod(k, _CHARTS_PER_LINE)
            left, upper = 10 + column * (_CHART_WIDTH + 20), top + 40 + row * (_CHART_HEIGHT + 40)
            parts += _bar_chart(chart, left, upper)
        return svg(width, height, self.title, *parts)

    def save(self, path: str | Path) -> Path:
        return super(Drawing, self).save(check_writable(path, overwrite=True))


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


def _heat_map(drawing: Drawing, margin: int) -> list[Markup]:
    """Return the elements of the heat map, the lower triangle of all pairs; names stand left of `margin`."""
    names = drawing.columns
    largest = max(drawing.pairs.values(), default=0.0) or 1.0
    parts = [text(10, 40, f"darker means a larger value, up to {largest:.4f}; empty: not known", "start")]
    for i, name in enumerate(names):
        y = 60 + i * _CELL_SIZE
        parts.append(text(margin - 6, y + 15, name, "end"))
        for j, earlier in enumerate(names[:i]):
            value = drawing.pairs.get((earlier, name), drawing.pairs.get((name, earlier)))
            title = f"{earlier}, {name}: " + ("not known" if value is None else f"{value:.4f}")
            fill, opacity = ("none", None) if value is None else (ACCENT, f"{value / largest:.3f}")
            x, size = margin + j * _CELL_SIZE, _CELL_SIZE
            parts.append(rect(x, y, size, size, title, fill=fill, fill_opacity=opacity, stroke=PALE))
        x = margin + i * _CELL_SIZE + 14
        if i < len(names) - 1:
            parts.append(text(x, y + 16, name, "start", transform=f"rotate(-30 {x} {y + 16})"))
    return parts


def _bar_chart(chart: MarginalShares, x: float, y: float) -> list[Markup]:
    """Return the elements of one column's bar chart, whose upper left corner is at x and y."""
    largest = max([*chart.other, *chart.copy, 1e-9])
    step, base = _CHART_WIDTH / max(1, len(chart.labels)), y + _CHART_HEIGHT
    parts = [
        text(x, y - 4, chart.column, "start", font_weight="bold"),
        line(x, base, x + _CHART_WIDTH, base, stroke=INK),
    ]
    for k, label in enumerate(chart.labels):
        pair = (0.05, ACCENT, chart.copy[k]), (0.5, _REFERENCE_COLOR, chart.other[k])
        for shift, color, share in pair:
            height, left, title = (
                _CHART_HEIGHT * share / largest,
                x + (k + shift) * step,
                f"{label}: {share:.4f}",
            )
            parts.append(rect(left, base - height, step * 0.42, height, title, fill=color))
    return parts


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


@dataclass(frozen=True, slots=True)
class TableQuality:
    """Says how good one measured table is, as total variation: `noise` is the expected total variation that
    the noise of the measurement causes, and `bound` a bound on that between copy and data, which holds with
    the report's confidence.

    Of the columns `grouped` the table counts groups of values, as AIM has measured them: of the values of one
    group nothing is promised.
    """

    columns: tuple[str, ...]
    cells: int
    noise: float
    bound: float
    grouped: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class QualityReport:
    """Says what follows from the released values about the quality of the copy, as total variation, a share
    of all rows.

    It is free. It says nothing about tables that were not measured. `columns` are the names of all columns,
    and `marginals` has the data of the bar charts.
    """

    confidence: float
    tables: tuple[TableQuality, ...]
    columns: tuple[str, ...] = ()
    marginals: tuple[MarginalShares, ...] = ()

    def plot(self) -> Drawing:
        """Draw the bounds of measured pairs as a heat map, and every column of the copy beside its noisy
        counts: released values only, free. Pairs with a grouped column are left out."""
        bounds = pair_values(
            self.columns, {table.columns: table.bound for table in self.tables if not table.grouped}
        )
        title = f"Bound on the total variation of measured pairs, each at {self.confidence:.0%}"
        return Drawing(title, self.columns, bounds, self.marginals, "released, with noise")

    def __str__(self) -> str:
        head = (
            f"total variation from the truth of each measured table, each at {self.confidence:.0%} "
            f"(released values only: free)"
        )
        lines = [f"{'at most':>8}  {'noise':>7}  {'cells':>7}  table"]
        for table in sorted(self.tables, key=lambda t: -t.bound):
            names = ", ".join(f"{n} (in groups)" if n in table.grouped else n for n in table.columns)
            lines.append(f"{table.bound:8.4f}  {table.noise:7.4f}  {table.cells:7,}  {names}")
        return "\n".join([head, *lines])


def bound_errors(
    fitted: Fitted, model: GraphicalModel, codes: Sequence[Any], confidence: float = 0.95
) -> QualityReport:
    """Bound how far each measured table of the copy is from the true table, from released values only.

    `codes` are the rows of the copy, one array for each column.

    Guarantee: half the l1 distance between the copy's counts, scaled to the noisy total, and the true counts
               is at most `bound` times that total, for each table by itself with probability `confidence`;
               counts are by groups of values in the columns `grouped`. A bound of 1 says nothing.
    Proof:     |copy - truth| <= |copy - measured| + |noise| in l1. Over n cells, the sum of |noise| is above
               t with probability at most 2^n exp(-t^2 / (2 v)), where v is the sum of the cells' variance
               parameters: discrete Gaussian noise is sub-Gaussian with its own variance parameter (Canonne,
               Kamath & Steinke 2020, arXiv:2004.00010, Corollary 17), a sum of draws (a group of codes) with
               the sum of theirs, an average of several measurements with that of the average, and
               exp(s|x|) <= exp(sx) + exp(-sx).
    Assumes:   how often a table is measured does not depend on its noise. This is not strictly true for AIM
               and MWEM, which may choose a table again after they have seen its noisy counts.
    """
    _require.open_probability(confidence=confidence)
    rows, total = len(codes[0]), model.total
    domain_cells = OccurringCells(fitted.domain.sizes(fitted.public), tuple(codes), np.ones(rows, np.int64))
    cells = domain_cells.regroup(group_arrays(fitted.groups, len(codes)))
    complete = [t for t in fitted.tables if t.by_all_codes(fitted.groups)]
    by_code = {t.clique: t for t in combine_measurements([t.noisy(domain_cells.sizes) for t in complete])}
    qualities = []
    for by_group in combine_measurements(noisy_tables(fitted)):
        # a one-way table that was measured before its codes were grouped promises something of each code
        table = by_code.get(by_group.clique, by_group)
        counts, groups = (domain_cells, ()) if table.clique in by_code else (cells, fitted.groups)
        # ln(2^n / (1 - confidence)), which makes the probability of the proof equal to 1 - confidence.
        log_tail = table.values.size * math.log(2) - math.log(1 - confidence)
        noise_bound = math.sqrt(2 * table.total_variance * log_tail)
        distance = float(np.abs(counts.table(table.clique) * (total / max(1, rows)) - table.values).sum())
        deviations = np.sqrt(np.broadcast_to(table.variance, table.values.shape))
        mean_noise = math.sqrt(2 / math.pi) * float(deviations.sum())
        qualities.append(
            TableQuality(
                columns=tuple(fitted.domain.names[a] for a in table.clique),
                cells=table.values.size,
                noise=min(1.0, mean_noise / (2 * total)),
                bound=min(1.0, (distance + noise_bound) / (2 * total)),
                grouped=tuple(fitted.domain.names[a] for a in table.clique if groups and groups[a]),
            )
        )
    return QualityReport(confidence, tuple(qualities), fitted.domain.names, _marginals(fitted, codes))


def _marginals(fitted: Fitted, codes: Sequence[Any]) -> tuple[MarginalShares, ...]:
    """Return the shares of every column in the copy and in the released counts: those of its one-way table,
    or of the smallest table with this column. Columns without such a table are left out."""
    marginals = []
    for a, coding in enumerate(fitted.domain.codings(fitted.public)):
        # Where codes were grouped, only one-way tables can have all codes, and only those that were measured
        # before codes were grouped.
        holding = [
            t
            for t in fitted.tables
            if a in t.clique and (not fitted.groups or (t.clique == (a,) and len(t.values) == coding.size))
        ]
        if holding:
            smallest = min(holding, key=lambda t: (len(t.clique), len(t.values)))
            table = smallest.noisy(fitted.domain.sizes(fitted.public)).values
            axes = tuple(axis for axis, b in enumerate(smallest.clique) if b != a)
            marginals.append(marginal(coding, table.sum(axis=axes), codes[a]))
    return tuple(marginals)


@described("synthetic.CopyDistance")
class CopyDistance(Mechanism):
    """Measures how far a copy's tables by two columns are from those of the data: the mean over all pairs of
    half the l1 distance, as a share of the copy's noisy total.

    Only the mean over all pairs is released, so that its noise is that of a single count. `rows` and `seed`
    are those of the copy, whose rows are drawn again from the model; rows that `constraints.repair_rows`
    would replace, because their bins allow no numbers that satisfy the constraints, are compared as drawn.

    Guarantee: epsilon-DP.
    Proof:     the sum over pairs of the l1 distances, an integer in units of 1 / `_units_per_row` of a row,
               moves by at most (number of pairs) * `_units_per_row` * (l1 sensitivity of a table,
               `counting.count_sensitivity`), whatever the copy is. It gets discrete Laplace noise whose scale
               is that sensitivity divided by epsilon. The units, and what the sum is divided by, follow from
               released values.
    """

    public: Annotated[Public, PUBLIC]
    fitted: Annotated[Fitted, instance_of(Fitted, "what a synthesis released")]
    epsilon: Epsilon
    rows: Rows
    seed: Seed
    rows_per_unit: Annotated[int, at_least(1)] = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "rows_per_unit", rows_per_unit(self.public, self.rows_per_unit))
        _require.that(self.fitted.public == self.public, "the copy was made from another table, or version.")
        _require.that(len(self.fitted.domain.names) >= 2, "a copy with one column has no pairs.")

    @property
    def asked(self) -> tuple[Real, float]:
        return self.epsilon, 0.0

    @property
    def sensitivity(self) -> Sensitivity:
        l1 = count_sensitivity(self.public, self.rows_per_unit).l1
        assert l1 is not None
        return Sensitivity(linf=len(self._pairs) * self._units_per_row * l1)

    @property
    def _pairs(self) -> list[Clique]:
        return all_pairs(len(self.fitted.domain.names))

    @property
    def _noise(self) -> IntegerLaplace:
        return laplace_noise(self.public, self.epsilon, self.sensitivity)

    @property
    def event(self) -> Event:
        return self._noise.event

    @property
    def _total(self) -> float:
        """The noisy number of rows of the data, to which the copy's counts are scaled."""
        return estimate_total(noisy_tables(self.fitted))

    @property
    def _units_per_row(self) -> int:
        """The number of units of the integer distances for one row: GRID times a power of two.

        It is so large that one row of the copy, which stands for total / rows rows of the data, has 1024
        units or more (rounding to units then hardly matters), unless the power would exceed the limit 2^20,
        which keeps counts within 64 bits.
        """
        power = math.frexp(1024 / GRID * self.rows / self._total)[1]
        return GRID << min(20, max(0, power))

    def _share_per_unit(self) -> float:
        """Return the factor from the integer sum over pairs to the value."""
        return 1 / (2 * self._units_per_row * len(self._pairs) * self._total)

    def _rounding_error(self) -> float:
        """Bound how far the sum over pairs is changed by rounding the copy's scaled counts to units.

        Of a table at most min(cells, rows) cells are not empty in the copy. Each of them moves by at most
        half a unit. A cell of c rows also moves by no more than its distance from the integer c *
        `_units_per_row`, which adds up to `_units_per_row` * |total - rows| over all cells.
        """
        sizes = self.fitted.domain.sizes(self.public)
        scaled = self._units_per_row * abs(self._total - self.rows)
        return sum(min(scaled, min(sizes[a] * sizes[b], self.rows) / 2) for a, b in self._pairs)

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on the error of the value: of its noise with probability `confidence`, and of
        rounding."""
        return (self._noise.error(confidence) + self._rounding_error()) * self._share_per_unit()

    def rehearse(self, source: Source) -> None:
        """Let the engine plan the query that counts the cells, before anything is charged."""
        plan_domain_cells(source, self.fitted.domain, self.rows_per_unit)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        # The same draws as in `copy.SyntheticCopy`: the same rows and seed give the same codes.
        model = fit_model(self.fitted)
        codes = sample_rows(self.fitted, model, self.rows, np.random.default_rng(self.seed))
        sizes = self.fitted.domain.sizes(self.public)
        copy = OccurringCells(sizes, tuple(codes), np.ones(self.rows, np.int64))
        data = count_domain_cells(source, self.fitted.domain, self.rows_per_unit, entropy)
        # `grid_distance` has GRID units per row: with counts times `finer` it has `_units_per_row`.
        finer = self._units_per_row // GRID
        scale = model.total / self.rows * self._units_per_row
        distance = 0
        for pair in self._pairs:
            distance += grid_distance(data.table(pair) * finer, copy.table(pair) * scale)
        noisy = int(self._noise([distance], entropy=entropy)[0])
        return release(noisy * self._share_per_unit(), event=self.event, entropy=entropy, error=self.error)
