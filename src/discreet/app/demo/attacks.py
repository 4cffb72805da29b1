"""Shows what leaks without differential privacy: a table without names, counts with small errors, and noise
in floating point."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ... import auditing, mechanisms, sampling
from ..._errors import MissingExtra
from ...auditing.anonymity import Reconstruction
from ...tables import rand_hie
from .stage import ACCENT, INK, Stage

TITLE = "What leaks without differential privacy: attacks, and what resists them"

# The people of the reconstruction attack, and the epsilon of all counts about them together.
PEOPLE, EPSILON = 150, 1
# the columns that a neighbor knows of somebody in the table
QUASI_IDENTIFIERS = ("age", "sex", "site", "education")
# the color of what an attack finds
ALARM = "#c0392b"


def run(stage: Stage) -> None:
    """Show uniqueness, reconstruction from exact, slightly wrong and private counts, and the attack on the
    last bits of floating-point noise."""
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
    """Say how many people are unique without their names, and what 5-anonymity still gives away."""
    risk = auditing.risk(table, QUASI_IDENTIFIERS)
    anonymous = auditing.mondrian(table, QUASI_IDENTIFIERS, 5)
    homogeneous = auditing.homogeneity(anonymous, QUASI_IDENTIFIERS, "health")
    stage.say(
        f"No names are in the table. But of {risk.rows:,} people, {risk.unique:.0%} are the only "
        f"ones of their exact age, sex, site and "
        f"schooling: whoever knows these of a neighbor finds the row, and reads how ill they are. "
        f"Generalized until everybody shares theirs with at least four others ([bold]5-anonymity[/]), "
        f"the classes still give away the health of {homogeneous.found:,} people, "
        f"because everybody in their class has the same.\n"
    )


def _askers(secret: Any) -> dict[str, Callable[[Any], float]]:
    """Return three functions that count the ill people of a group: exactly, with a random error of up to 2,
    and privately, with EPSILON for all questions together."""
    rng = np.random.default_rng()
    # the attack asks four questions per person (the default of `auditing.reconstruct`)
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


def _reconstruction(stage: Stage, secret: Any, reconstructions: dict[str, Reconstruction]) -> None:
    """Print how many people the attack guesses right from each kind of counts."""
    stage.say(
        f"So publish counts only? An attacker asks how many people in random groups are in fair or "
        f"poor health, {4 * PEOPLE} questions about "
        f"{PEOPLE} people, and solves the equations ([bold]reconstruction[/], Dinur & Nissim 2003):\n"
    )
    one_guess = max(secret.mean(), 1 - secret.mean())
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
        [*rows, ["guessing “healthy” for all", f"{one_guess:.0%}", "0%"]],
    )
    stage.say("")


def _share_of_ill_identified(reconstruction: Reconstruction, secret: Any) -> float:
    """Return the share of the ill people whom the attack guesses to be ill."""
    return float(reconstruction.bits[secret].mean())


def _last_bits(stage: Stage) -> None:
    """Attack Laplace noise in floating point and on the integers by the set of possible outputs."""
    rng, entropy = np.random.default_rng(), sampling.Entropy()
    integer_noise = mechanisms.IntegerLaplace.for_epsilon(1)
    floats = auditing.floating_point_attack(
        lambda x: x + rng.laplace(), 1.0, 0.0, scale=1, claim=1.0, confidence=1 - 1e-9
    )
    exact = auditing.floating_point_attack(
        lambda x: int(integer_noise(np.array([int(x)]), entropy=entropy)[0]),
        1,
        0,
        scale=1,
        claim=1.0,
        confidence=1 - 1e-9,
    )
    stage.say(
        "Noise of the right distribution can still be wrong in its last bits. Both noises below claim "
        "epsilon 1. The attack of Mironov (2012) looks at which floating-point numbers can come out at all. "
        "It shows, with confidence 1 - 1e-9, that epsilon is at least:\n"
    )
    stage.table(
        ["noise", "epsilon at least", "claim of 1"],
        [
            ["numpy's Laplace, floats", f"{floats.epsilon:.2f}", "refuted" if floats.refuted else "stands"],
            [
                "discreet's Laplace, exact integers",
                f"{exact.epsilon:.2f}",
                "refuted" if exact.refuted else "stands",
            ],
        ],
    )
    stage.say("")


def _picture(stage: Stage, secret: Any, reconstructions: dict[str, Reconstruction]) -> None:
    """Save a picture with one dot per person, 15 in a row, colored by whether the guess is right."""
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
    stage.saved(stage.out / "attacks.png")
