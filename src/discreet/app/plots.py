"""Plots an event's privacy: epsilon against steps, Rényi budget curve, trade-off curve, privacy profile.

An event (`accounting.events`) describes what was released, and so its privacy loss.

Every function that draws saves one PNG and returns its path. Lines are labelled where they end. Drawing needs
matplotlib (`discreet[plots]`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import accounting as acc
from .._errors import DiscreetError, InvalidInput, MissingExtra
from ..accounting import rdp
from ..accounting.conversion import rdp_to_epsilon
from ..accounting.normal import normal
from ..accounting.pricing import ACCOUNTANTS
from .demo.stage import ACCENT, INK, PALE

GRAY = "#52606d"
COLORS = {
    "pld": ACCENT,
    "rdp": "#d1495b",
    "zcdp": "#e29c27",
    "gdp": "#7a5195",
    "optimal": "#3c8d53",
    "advanced": "#8d6e4f",
    "basic": "#9aa5b1",
}
Axes = Any
# one line of a plot: label, color, x values, y values
Line = tuple[str, str, Sequence[float], Sequence[float]]


def load_pyplot() -> Any:
    """Import matplotlib with a backend that needs no display. Where matplotlib is missing, the error names
    the extra to install."""
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra.of("plots", "no picture: matplotlib is missing") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_figure(figure: Any, path: Path) -> Path:
    """Write a figure as PNG."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    load_pyplot().close(figure)
    return path


def one_picture(draw: Callable[[Axes], None], path: Path, size: tuple[float, float] = (8, 4.8)) -> Path:
    """Make a figure with one pair of axes, let `draw` draw on it, and save it; `size` is in inches."""
    figure, axes = load_pyplot().subplots(figsize=size, layout="constrained")
    draw(axes)
    return save_figure(figure, path)


def style_axes(axes: Axes, title: str, x: str, y: str) -> None:
    """Set the title, the labels of the axes, and the colors that all pictures share."""
    axes.set_title(title, loc="left", fontsize=12, color=INK, fontweight="bold")
    axes.set_xlabel(x, color=GRAY, fontsize=10)
    axes.set_ylabel(y, color=GRAY, fontsize=10)
    axes.grid(visible=True, color="#e4e7eb", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(PALE)
    axes.tick_params(colors=GRAY, which="both", labelsize=9)


def label_ends(axes: Axes, lines: Iterable[Line]) -> None:
    """Put each label beside the end of its line, moved apart where they would overlap."""
    ends = sorted((_height(axes, y[-1]), label, color) for label, color, _, y in lines if len(y))
    # the least distance of two labels, as a share of the height of the axes; chosen by hand
    gap = 0.06
    heights = [height for height, _, _ in ends]
    # upwards: push each label above the one below it; then downwards: pull all below the top of the axes
    for k in range(1, len(heights)):
        heights[k] = max(heights[k], heights[k - 1] + gap)
    ceiling = 1.0 + gap
    for k in reversed(range(len(heights))):
        heights[k] = ceiling = min(heights[k], ceiling - gap)
    for label_height, (_, label, color) in zip(heights, ends, strict=True):
        axes.annotate(
            label,
            (1.015, label_height),
            xycoords="axes fraction",
            color=color,
            fontsize=9,
            va="center",
            annotation_clip=False,
        )


def plain_ticks(axis: Any, low: float, high: float) -> None:
    """Set ticks such as 1, 2, 5, 10, 20 on a logarithmic axis from `low` to `high`, if it has at most three
    decades, where powers of ten alone would say too little; a longer axis stays as it is."""
    from matplotlib.ticker import NullLocator

    if high / low > 1e3:
        return
    multiples = (1, 2, 5) if high / low > 5 else (1, 1.5, 2, 3, 4, 5, 6, 8)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**k for k in decades for m in multiples if low <= m * 10.0**k <= high]
    axis.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_minor_locator(NullLocator())


def _height(axes: Axes, value: float) -> float:
    """Return the height of a y value on the axes, from the bottom (0) to the top (1)."""
    return float(
        axes.transAxes.inverted().transform(axes.transData.transform((axes.get_xlim()[1], value)))[1]
    )


# --- epsilon against steps


def _price_curve(name: str, event: acc.Event, counts: Sequence[int], delta: float) -> Line | None:
    """Return the line of epsilon against the number of repetitions, by one accountant; None where the
    accountant has no theorem for the event, or every epsilon is infinite."""
    xs, ys = [], []
    for count in counts:
        try:
            value = acc.epsilon(event.repeated(count), delta=delta, accountant=name)
        except DiscreetError:
            return None
        if math.isfinite(value):
            xs.append(float(count))
            ys.append(value)
    return (name, COLORS[name], xs, ys) if xs else None


def _counts(largest: int, points: int = 24) -> list[int]:
    """Return at most `points` integers from 1 to `largest`, evenly spaced on a logarithmic scale."""
    return sorted({max(1, round(largest ** (k / (points - 1)))) for k in range(points)})


def _repeated_step(event: acc.Event) -> tuple[acc.Event, int]:
    """Return the step that is repeated, and how often; an event that is not a repetition is repeated up to a
    hundred times."""
    return (event.event, event.times) if isinstance(event, acc.Repeated) else (event, 100)


def draw_steps(
    axes: Axes, event: acc.Event, delta: float, accountants: Sequence[str] = tuple(ACCOUNTANTS)
) -> None:
    """Draw epsilon at `delta` against the number of steps, one line per accountant that has a theorem."""
    step_event, largest = _repeated_step(event)
    curves = [_price_curve(name, step_event, _counts(largest), delta) for name in accountants]
    lines = [line for line in curves if line is not None]
    for label, color, x, y in lines:
        axes.plot(
            x, y, color=color, linewidth=2.4 if label == "pld" else 1.5, zorder=4 if label == "pld" else 3
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.margins(x=0)
    style_axes(axes, "What composition costs", "number of releases or steps", f"epsilon at delta = {delta:g}")
    plain_ticks(axes.xaxis, *axes.get_xlim())
    plain_ticks(axes.yaxis, *axes.get_ylim())
    label_ends(axes, lines)


def steps(event: acc.Event, *, delta: float, path: Path) -> Path:
    """Draw epsilon against the number of steps, by every accountant that has a theorem for the event."""
    return one_picture(lambda axes: draw_steps(axes, event, delta), path)


# --- Rényi budget curve


def draw_orders(axes: Axes, event: acc.Event, delta: float) -> None:
    """Draw, against the order, the Rényi divergence and the epsilon at `delta` that this order proves; the
    order with the least epsilon is marked."""
    form = normal(event)
    # The event may have a delta of its own; only the rest of `delta` is left for the conversion from Rényi
    # divergence. The rest is taken at epsilon 0, where it is largest. For an event that is priced as another
    # one at a distance in total variation (`accounting.normal`), which costs more delta at larger epsilons,
    # the line is therefore a little too low.
    remaining_delta = form.remaining_delta(delta, 0.0)
    best = rdp.best(event, delta)
    # 41 orders, evenly spaced in log(order - 1) around the best order; for pure privacy, whose best order is
    # infinite, around 32
    middle = best.order if math.isfinite(best.order) else 32.0
    excess = [(middle - 1) * 10 ** (k / 16) for k in range(-20, 21)]
    orders = [1 + x for x in excess]
    divergence = rdp.curve(form.event, orders)
    epsilons = [
        rdp_to_epsilon(a, r, remaining_delta) if remaining_delta > 0 else math.inf
        for a, r in zip(orders, divergence, strict=True)
    ]
    # (order, divergence, epsilon) where the divergence is finite
    finite = [row for row in zip(orders, divergence, epsilons, strict=True) if math.isfinite(row[1])]
    if not any(math.isfinite(epsilon) for *_, epsilon in finite):
        raise InvalidInput(
            f"at delta {delta:g} no Rényi order proves an epsilon, so that there is nothing to draw. Give a "
            f"larger --delta."
        )
    # the divergences are the lower line, the epsilons the upper one; only epsilons up to `high` are shown
    x, lower, upper = (list(column) for column in zip(*finite, strict=True))
    low, high = max(min(v for v in lower if v > 0) * 0.8, best.value * 1e-2), best.value * 12
    shown = [a for a, epsilon in zip(x, upper, strict=True) if epsilon <= high]
    axes.plot(x, lower, color=COLORS["rdp"], linewidth=1.8)
    axes.fill_between(x, lower, upper, color=PALE, alpha=0.35, linewidth=0)
    axes.plot(x, upper, color=ACCENT, linewidth=2.2)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(shown[0], shown[-1] * 1.05)
    axes.set_ylim(low, high)
    style_axes(axes, "Rényi budget curve", "order", "epsilon")
    plain_ticks(axes.xaxis, *axes.get_xlim())
    plain_ticks(axes.yaxis, low, high)
    first = x.index(shown[0])
    quarter = first + len(shown) // 4
    axes.annotate("Rényi divergence", (x[quarter], lower[quarter]), (10, -14), textcoords="offset points",
                  fontsize=9, color=COLORS["rdp"])  # fmt: skip
    axes.annotate(f"with the price of delta = {delta:g}", (x[first + 3], upper[first + 3]), (8, 4),
                  textcoords="offset points", fontsize=9, color=ACCENT)  # fmt: skip
    if math.isfinite(best.order):
        axes.plot([best.order], [best.value], "o", color=INK, markersize=6, zorder=5)
    where = f"order {best.order:.3g}" if math.isfinite(best.order) else "pure"
    text = f"best {where}: epsilon {best.value:.4g}"
    axes.text(0.98, 0.94, text, ha="right", fontsize=9, color=INK, transform=axes.transAxes)


def renyi(event: acc.Event, *, delta: float, path: Path) -> Path:
    """Draw the Rényi budget curve of an event, with the epsilon at `delta` that each order proves and the
    best order marked."""
    return one_picture(lambda axes: draw_orders(axes, event, delta), path)


# --- trade-off curve and privacy profile


def reach(event: acc.Event, alphas: Sequence[float], points: int = 48) -> list[float]:
    """Return an upper bound on the true-positive rate (TPR) of any attacker, at each false-positive rate
    (FPR) in `alphas`.

    Every (epsilon, delta) that holds gives TPR <= min(delta + exp(epsilon) FPR, 1 - exp(-epsilon) (1 - delta
    - FPR)) (Dong, Roth & Su 2022, arXiv:1905.02383, equation 5). The least of these bounds over a grid of
    `points` epsilons is taken: any grid gives a valid bound, a finer one a tighter bound. In the code e, d
    and a are epsilon, delta and FPR.
    """
    # The power 1.5 makes the grid denser near zero. Its value, and the limits 1e-4 and 40, are chosen by
    # hand, not tuned; the bound is valid with any.
    top = min(acc.epsilon(event, delta=1e-4), 40.0)
    epsilons = [top * (k / (points - 1)) ** 1.5 for k in range(points)]
    pairs = [(e, _delta(event, e, exact=e >= top / 10)) for e in epsilons]
    return [
        min(1.0, *(min(d + math.exp(e) * a, 1 - math.exp(-e) * (1 - d - a)) for e, d in pairs))
        for a in alphas
    ]


def _delta(event: acc.Event, epsilon: float, *, exact: bool) -> float:
    """Return the least delta at this epsilon that one of the accountants rdp, zcdp and gdp proves. With
    `exact` the privacy loss distribution (pld), which takes long at small epsilons, is tried too. Where none
    of them has a theorem, delta is 1."""
    deltas = [1.0]
    for name in ("rdp", "zcdp", "gdp", *(["pld"] if exact else [])):
        try:
            deltas.append(acc.delta(event, epsilon=epsilon, accountant=name))
        except DiscreetError:
            continue
    return min(deltas)


def draw_tradeoff(axes: Axes, event: acc.Event) -> None:
    """Draw an upper bound (`reach`) on an attacker's true-positive rate at each false-positive rate, and mark
    the largest difference of the two, the advantage.

    In the code the false-positive rates are `alphas`, the true-positive rates `powers`, as in hypothesis
    testing.
    """
    alphas = [0.0, *(10 ** (k / 12) for k in range(-60, -8)), *(k / 50 for k in range(9, 50)), 1.0]
    powers = reach(event, alphas)
    axes.fill_between(alphas, powers, 1, color=PALE, alpha=0.35, linewidth=0)
    axes.plot(alphas, powers, color=ACCENT, linewidth=2.2)
    axes.plot([0, 1], [0, 1], color=COLORS["basic"], linewidth=1.2, linestyle=(0, (4, 3)))
    axes.text(0.72, 0.69, "guessing", color=GRAY, fontsize=9, va="top")
    axes.text(0.03, 0.965, "impossible", color=GRAY, fontsize=9, va="top")
    gains = [power - alpha for alpha, power in zip(alphas, powers, strict=True)]
    where = max(range(len(gains)), key=gains.__getitem__)
    axes.plot([alphas[where]] * 2, [alphas[where], powers[where]], color=INK, linewidth=1.2)
    left = alphas[where] > 0.33
    axes.annotate(
        f"largest advantage {gains[where]:.3g}",
        (alphas[where], powers[where]),
        (-8, 8) if left else (8, -16),
        textcoords="offset points",
        ha="right" if left else "left",
        fontsize=9,
        color=INK,
    )
    axes.set_xlim(0, 1)
    axes.set_ylim(0, 1.005)
    style_axes(axes, "What an attacker can reach", "false-positive rate", "true-positive rate")


def tradeoff(event: acc.Event, *, path: Path) -> Path:
    """Draw the trade-off curve of an event, as an attacker's receiver operating characteristic."""
    return one_picture(lambda axes: draw_tradeoff(axes, event), path, (6, 5))


def draw_profile(
    axes: Axes, event: acc.Event, delta: float, accountants: Sequence[str] = ("pld", "rdp", "zcdp", "gdp")
) -> None:
    """Draw delta against epsilon, one curve per accountant: the pairs (epsilon, delta) that it proves for the
    event. An accountant without a theorem for the event has no curve.

    The deltas range from a thousandth of `delta` to 0.1, evenly spaced on a logarithmic scale.
    """
    least = delta / 1e3
    deltas = [least * (0.1 / least) ** (k / 24) for k in range(25)]
    lines: list[Line] = []
    for name in accountants:
        try:
            epsilons = [acc.epsilon(event, delta=d, accountant=name) for d in deltas]
        except DiscreetError:
            continue
        kept = [(e, d) for e, d in zip(epsilons, deltas, strict=True) if 0 < e < math.inf]
        if kept:
            lines.append((name, COLORS[name], [e for e, _ in kept], [d for _, d in kept]))
    top = max((max(x) for _, _, x, _ in lines), default=1.0)
    for label, color, x, y in lines:
        axes.plot(
            x, y, color=color, linewidth=2.4 if label == "pld" else 1.5, zorder=4 if label == "pld" else 3
        )
    axes.set_yscale("log")
    axes.set_xlim(0, top)
    axes.set_ylim(least, 0.2)
    axes.axhline(delta, color=INK, linewidth=0.8, linestyle=(0, (2, 3)))
    axes.annotate(
        f"delta = {delta:g}", (0.0, delta), (4, 4), textcoords="offset points", fontsize=9, color=INK
    )
    style_axes(axes, "Privacy profile", "epsilon", "delta")
    for k, (label, color, _, _) in enumerate(lines):
        axes.text(
            0.985, 0.95 - 0.065 * k, label, color=color, fontsize=10, ha="right", transform=axes.transAxes
        )


def profile(event: acc.Event, *, delta: float, path: Path) -> Path:
    """Draw the privacy profile of an event around a delta."""
    return one_picture(lambda axes: draw_profile(axes, event, delta), path)


def overview(event: acc.Event, *, delta: float, path: Path) -> Path:
    """Draw four plots in one figure: epsilon over steps, Rényi budget curve, trade-off curve, privacy
    profile."""
    if not 0 < acc.epsilon(event, delta=delta) < math.inf:
        raise InvalidInput(
            f"there is nothing to draw: at delta = {delta:g} epsilon is zero or infinite. Give another delta."
        )
    figure, axes = load_pyplot().subplots(2, 2, figsize=(13, 9), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.12, h_pad=0.12)
    draw_steps(axes[0, 0], event, delta)
    draw_orders(axes[0, 1], event, delta)
    draw_tradeoff(axes[1, 0], event)
    draw_profile(axes[1, 1], event, delta)
    return save_figure(figure, path)
