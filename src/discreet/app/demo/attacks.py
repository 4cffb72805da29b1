"""What leaks without it: a table that looks anonymous, counts that are only a little wrong, noise that is
only almost right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ... import auditing, mechanisms, sampling
from ..._errors import MissingExtra
from ...tables import rand_hie
from .stage import ACCENT, INK, Stage

TITLE = "What leaks without it: attacks, and what resists them"

PEOPLE, EPSILON = 150, 1
# what a neighbor knows
QUASI_IDENTIFIERS = ("age", "sex", "site", "education")
ALARM = "#c0392b"


def run(stage: Stage) -> None:
    """Tell uniqueness, reconstruction from exact, rounded and private counts, and the last bits of noise."""
    table = pa.Table.from_batches(rand_hie(year=1).batches([*QUASI_IDENTIFIERS, "health"]))
    _uniqueness(stage, table)
    secret = np.isin(np.array(table["health"].to_pylist()[:PEOPLE], dtype=object), ["fair", "poor"])
    reconstructions = {
        name: auditing.reconstruct(ask, PEOPLE, seed=1) for name, ask in _askers(secret).items()
    }
    _reconstruction(stage, secret, reconstructions)
    _last_bits(stage)
    _picture(stage, secret, reconstructions)


def _uniqueness(stage: Stage, table: pa.Table) -> None:
    before = auditing.risk(table, QUASI_IDENTIFIERS)
    after = auditing.mondrian(table, QUASI_IDENTIFIERS, 5)
    same = auditing.homogeneity(after, QUASI_IDENTIFIERS, "health")
    stage.say(
        f"No names are in the table. But of {before.rows:,} people, {before.unique:.0%} are the only "
        f"ones of their exact age, sex, site and "
        f"schooling: who knows these about a neighbor finds the row, and reads how ill they are. "
        f"Blurred until everybody shares theirs with four "
        f"others ([bold]5-anonymity[/]), the classes still give away the health of {same.found:,} people, "
        f"because everybody in their class has the same.\n"
    )


def _askers(secret: Any) -> dict[str, Callable[[Any], float]]:
    """Return exact counts, counts with a random error of up to 2, and private ones: epsilon 1 for all the
    questions together."""
    rng = np.random.default_rng()
    noise = mechanisms.IntegerLaplace.for_epsilon(EPSILON / (4 * PEOPLE))
    entropy = sampling.Entropy()

    def exact(group: Any) -> int:
        return int((group & secret).sum())

    return {
        "exact counts": exact,
        "off by up to 2": lambda group: exact(group) + int(rng.integers(-2, 3)),
        f"private, epsilon {EPSILON} in all": lambda group: int(
            noise(np.array([exact(group)]), entropy=entropy)[0]
        ),
    }


def _reconstruction(stage: Stage, secret: Any, reconstructions: dict[str, auditing.Reconstruction]) -> None:
    stage.say(
        f"Then publish only counts? An attacker asks how many people in random groups are in fair or "
        f"poor health, {4 * PEOPLE} questions about "
        f"{PEOPLE} people, and solves the equations ([bold]reconstruction[/], Dinur & Nissim 2003):\n"
    )
    blind = max(secret.mean(), 1 - secret.mean())
    rows = [
        [
            name,
            f"{reconstruction.accuracy(secret):.0%}",
            f"{_share_of_ill_identified(reconstruction, secret):.0%}",
        ]
        for name, reconstruction in reconstructions.items()
    ]
    stage.table(
        ["answers", "people guessed right", "of the ill found"],
        [*rows, ["guessing “healthy” for all", f"{blind:.0%}", "0%"]],
    )
    stage.say("")


def _share_of_ill_identified(reconstruction: auditing.Reconstruction, secret: Any) -> float:
    return float(reconstruction.bits[secret].mean())


def _last_bits(stage: Stage) -> None:
    rng, entropy = np.random.default_rng(), sampling.Entropy()
    ours = mechanisms.IntegerLaplace.for_epsilon(1)
    floats = auditing.floating_point_attack(
        lambda x: x + rng.laplace(), 1.0, 0.0, scale=1, claim=1.0, confidence=1 - 1e-9
    )
    exact = auditing.floating_point_attack(
        lambda x: int(ours(np.array([int(x)]), entropy=entropy)[0]),
        1,
        0,
        scale=1,
        claim=1.0,
        confidence=1 - 1e-9,
    )
    stage.say(
        "And noise is not noise. Both of these claim epsilon 1; the attack of Mironov (2012) looks "
        "at which floating-point numbers can come out at "
        "all, and measures, with confidence 1 - 1e-9, at least:\n"
    )
    stage.table(
        ["noise", "epsilon shown", "claim of 1"],
        [
            ["numpy's Laplace, floats", f"{floats.epsilon:.2f}", "refuted" if floats.refuted else "stands"],
            ["ours, exact integers", f"{exact.epsilon:.2f}", "refuted" if exact.refuted else "stands"],
        ],
    )
    stage.say("")


def _picture(stage: Stage, secret: Any, reconstructions: dict[str, auditing.Reconstruction]) -> None:
    try:
        import matplotlib
    except ImportError:
        stage.aside(str(MissingExtra.of("plots", "no picture: matplotlib is missing")))
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, len(reconstructions), figsize=(10, 4.6), layout="constrained")
    for axis, (name, reconstruction) in zip(axes, reconstructions.items(), strict=True):
        x, y = np.arange(PEOPLE) % 15, np.arange(PEOPLE) // 15
        right = reconstruction.bits == secret
        for mask, color, label in ((right, ALARM, "guessed right"), (~right, ACCENT, "guessed wrong")):
            axis.scatter(x[mask], -y[mask], s=70, color=color, marker="o", label=label, linewidths=0)
        axis.set_title(f"{name}\n{right.mean():.0%} guessed right", fontsize=11, color=INK)
        axis.set_axis_off()
    handles, labels = axes[-1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False)
    figure.suptitle(
        f"{PEOPLE} people, {4 * PEOPLE} counts: whose health can be computed",
        fontsize=13,
        color=INK,
        weight="bold",
    )
    stage.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(stage.out / "attacks.png", dpi=150)
    pyplot.close(figure)
    stage.say(f"[dim]picture saved as[/] {stage.out / 'attacks.png'}")
