"""Consistent tables: four noisy tables of the same people disagree; least squares makes them agree, and more
accurate, at no cost in privacy."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np

from ... import inference, mechanisms, sampling
from ..._public import Categories, Fact, Public, rows
from ...inference.estimate import width
from ...tables import Memory, rand_hie
from ...tables.bundled import HEALTH
from .stage import ACCENT, INK, PALE, Bar, Stage

TITLE = "Numbers that add up"

SITES = (1, 2, 3, 4, 5, 6)
# the epsilon of each of the four tables; that it is the same for all is used below
EPSILON = Fraction(1, 8)
# the number of values of each attribute
SIZES: dict[Any, int] = {"site": len(SITES), "health": len(HEALTH.values)}
KINDS = ("as released", "consistent", "whole numbers")
# the attributes of the four tables, and their names
NAMES: dict[tuple[Any, ...], str] = {
    ("site", "health"): "site by health",
    ("site",): "site",
    ("health",): "health",
    (): "everybody",
}


def run(stage: Stage) -> None:
    """Release four overlapping tables, show that they disagree, make them agree, and compare both with the
    true tables."""
    people = _crossed_table()
    noise = mechanisms.IntegerLaplace.for_epsilon(EPSILON)
    raw = [_ask(people, attributes, noise) for attributes in NAMES]
    truth = [_exact(people, attributes) for attributes in NAMES]
    fitted = inference.consistent_marginals(raw)
    rounded = _round_cells(raw)

    stage.say(
        f"Six cities, four states of health: an office publishes the cross table, both margins and "
        f"the total, each with fresh noise at "
        f"epsilon {float(EPSILON):g}, {4 * float(EPSILON):g} in all. Readers who add the numbers up find "
        f"four different totals:\n"
    )
    stage.table(["how many people?", *KINDS], _totals(raw, fitted, rounded))
    stage.say(
        "\nIt is known that margins are sums of cells, and how much noise each number has. "
        "[bold]Least squares[/] moves the "
        "numbers as little as possible, in units of their noise, until all agree. It uses released "
        "numbers only, so it costs no privacy, and the "
        "standard deviations shrink, by amounts known beforehand:\n"
    )
    actual_errors = [
        _errors(released, fit, integers, true)
        for released, fit, integers, true in zip(raw, fitted, rounded, truth, strict=True)
    ]
    expected = [[math.sqrt(r.variance), math.sqrt(f.variance)] for r, f in zip(raw, fitted, strict=True)]
    stage.table(
        ["table", "noise", "noise, consistent", "error", "error, consistent", "error, whole numbers"],
        [
            [name, *(f"± {e:.1f}" for e in deviations), *(f"{e:.1f}" for e in errors)]
            for name, deviations, errors in zip(NAMES.values(), expected, actual_errors, strict=True)
        ],
    )
    before, after = (_squares(tables, truth) for tables in (raw, fitted))
    stage.say(
        f"\nThe sum of all squared errors: {before:,.0f} as released, {after:,.0f} consistent. A single "
        f"number may become worse; the sum never does, whatever the noise, because the projection on the set "
        f"of consistent tables, in which the truth lies, cannot lead away from the truth."
    )
    _smallest_group(stage, raw[0], fitted[0], rounded[0], truth[0])
    _picture(stage, actual_errors, expected)


def _crossed_table() -> Memory:
    """Return the first study year with a column for the pair of site and health, which is a public function
    of two declared columns, so that its categories are public too."""
    batches = list(rand_hie(year=1).batches(["site", "health"]))
    columns = {
        name: [v for b in batches for v in b.column(i).to_pylist()]
        for i, name in enumerate(("site", "health"))
    }
    cells = [f"{site} {health}" for site, health in zip(columns["site"], columns["health"], strict=True)]
    schema: dict[str, Fact] = {
        "site": Categories(SITES),
        "health": HEALTH,
        "site by health": Categories([f"{site} {health}" for site in SITES for health in HEALTH.values]),
    }
    return Memory(
        {**columns, "site by health": cells},
        Public(schema=tuple(schema.items()), unit=rows(), table="rand_hie crossed"),
    )


def _statistic(attributes: tuple[str, ...]) -> mechanisms.Statistic:
    """Return the histogram over the attributes, or the count of everybody where there are none."""
    return mechanisms.Histogram(column=NAMES[attributes]) if attributes else mechanisms.Count()


def _exact(people: Memory, attributes: tuple[str, ...]) -> Any:
    """Return the true table, with one axis for each attribute."""
    return np.asarray(_statistic(attributes)(people)).reshape([SIZES[a] for a in attributes])


def _ask(people: Memory, attributes: tuple[str, ...], noise: mechanisms.IntegerLaplace) -> inference.Marginal:
    """Return one released table with the variance of its noise, which is public."""
    mechanism = mechanisms.AddNoise(public=people.public, statistic=_statistic(attributes), noise=noise)
    values = np.asarray(mechanism(people, entropy=sampling.Entropy()).value, dtype=float)
    # the variance of continuous Laplace noise, a little above that of the discrete noise: see
    # `inference.estimate.width`
    variance = 2 * float(noise.scale) ** 2
    return inference.Marginal(
        attributes=attributes, values=values.reshape([SIZES[a] for a in attributes]), variance=variance
    )


def _round_cells(raw: list[inference.Marginal]) -> list[Any]:
    """Return all four tables as sums of the same non-negative cells: those nearest to the released numbers,
    rounded to integers. `raw` and the result are in the order of `NAMES`."""
    matrix = np.vstack([inference.marginal_matrix(SIZES, m.attributes).toarray() for m in raw])
    answers = np.concatenate([m.values.ravel() for m in raw])
    # all four tables have the variance of the first
    cells = inference.non_negative_measured(matrix, answers, raw[0].variance)
    table = inference.round_table(cells.reshape(len(SITES), -1))
    return [table, table.sum(axis=1), table.sum(axis=0), table.sum()]


def _totals(raw: Any, fitted: Any, rounded: Any) -> list[list[str]]:
    """Return the number of people according to each table: as released, consistent, and in whole numbers."""
    return [
        [f"adding up: {NAMES[r.attributes]}", *(f"{float(np.sum(x)):,.0f}" for x in (r.values, f.values, w))]
        for r, f, w in zip(raw, fitted, rounded, strict=True)
    ]


def _squares(tables: Any, truth: list[Any]) -> float:
    """Return the sum of squared errors over all cells of all tables.

    Least squares cannot increase it: as all tables have noise of the same variance, the fit is a projection
    in this very norm.
    """
    return float(sum(((table.values - true) ** 2).sum() for table, true in zip(tables, truth, strict=True)))


def _errors(raw: inference.Marginal, fitted: inference.Marginal, rounded: Any, truth: Any) -> list[float]:
    """Return the root mean square errors of one table as released, consistent, and in whole numbers. They can
    be shown only because the true table is public."""
    return [math.sqrt(np.mean((x - truth) ** 2)) for x in (raw.values, fitted.values, rounded)]


def _smallest_group(
    stage: Stage, raw: inference.Marginal, fitted: inference.Marginal, rounded: Any, truth: Any
) -> None:
    """Show the counts of people in poor health, the smallest group, where a noisy count may be negative."""
    column = HEALTH.values.index("poor")
    half_width = width(0.95) * math.sqrt(fitted.variance)
    columns = [x[:, column] for x in (raw.values, fitted.values, rounded, truth)]
    stage.say(
        f"\n[bold]In poor health, by site:[/] consistent, within ± {half_width:.0f} in about "
        f"95 of 100 cases\n"
    )
    bars = [
        Bar(f"site {s}", float(c), half_width, float(t))
        for s, c, t in zip(SITES, columns[1], columns[3], strict=True)
    ]
    stage.bars(bars)
    stage.say("")
    stage.table(
        ["in poor health", *KINDS, "truth"],
        [[f"site {s}", *(f"{v:,.0f}" for v in row)] for s, *row in zip(SITES, *columns, strict=True)],
    )
    stage.say(
        "\nConsistent numbers are right on average (unbiased) and may be negative. Whole numbers look like "
        "counts and add up, but small ones are "
        "too large on average: publish whole numbers for reading, and compute with the consistent ones.\n"
    )


def _picture(stage: Stage, actual: list[list[float]], expected: list[list[float]]) -> None:
    """Draw the actual errors of each table, as released, consistent and in whole numbers, with the standard
    deviations of the first two, which are known beforehand."""
    try:
        import matplotlib
    except ImportError:
        stage.aside("no picture: matplotlib is missing. Install it with: pip install 'discreet[plots]'")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    positions, colors = np.arange(len(actual)), ("#7b8794", ACCENT, PALE)
    for shift, color, label, column in zip(
        (-0.27, 0.0, 0.27), colors, KINDS, zip(*actual, strict=True), strict=True
    ):
        axes.bar(positions + shift, column, 0.24, color=color, label=label, zorder=2)
    for shift, column in zip((-0.27, 0.0), zip(*expected, strict=True), strict=True):
        # one entry in the legend for both rows of marks
        text = "standard deviation, known beforehand" if shift else None
        axes.hlines(
            column,
            positions + shift - 0.12,
            positions + shift + 0.12,
            color=INK,
            linewidth=2,
            label=text,
            zorder=3,
        )
    axes.set_xticks(positions, list(NAMES.values()))
    axes.set_title(
        "Error of noisy counts, as released and made consistent",
        loc="left",
        fontsize=13,
        color=INK,
        weight="bold",
    )
    caption = (
        f"Root mean square error. RAND Health Insurance Experiment, year 1; four tables at epsilon "
        f"{float(EPSILON):g} each."
    )
    axes.set_xlabel(caption, loc="left", fontsize=9, color="#52606d", labelpad=10)
    axes.yaxis.grid(visible=True, color="#e4e7eb", zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    axes.set_ylim(0, 1.35 * max(max(row) for row in actual + expected))
    axes.legend(frameon=False, loc="upper center", ncols=4, fontsize=9)
    stage.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(stage.out / "consistency.png", dpi=150)
    pyplot.close(figure)
    stage.saved(stage.out / "consistency.png")
