"""Why hiding names is not enough: four ways in which tables and counts that look anonymous give people
away."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

from ... import auditing, mechanisms, sampling
from ..._errors import MissingExtra
from ...tables import rand_hie
from .stage import ACCENT, INK, PALE, Stage

TITLE = "Looks anonymous: one value for all, two releases, two counts, a few films"

# what a neighbor knows
QUASI_IDENTIFIERS = ("age", "sex", "site", "education")
SIZES = (2, 5, 10, 20)
PEOPLE, EPSILON, FILMS = 200, 1, (2, 4, 6, 8)
ALARM = "#c0392b"


def run(stage: Stage) -> None:
    """Tell homogeneity and background knowledge, composition of two releases, differencing, linkage; and draw
    one picture of all four."""
    table = pa.Table.from_batches(rand_hie(year=1).batches(["person", *QUASI_IDENTIFIERS, "health"]))
    blurred = {k: auditing.mondrian(table, QUASI_IDENTIFIERS, k) for k in SIZES}
    classes = _classes(stage, blurred)
    together = _two_releases(stage, table)
    counts = _two_counts(stage, np.array(table["health"].to_pylist()[:PEOPLE], dtype=object))
    films = _films(stage)
    _picture(stage, classes, together, counts, films)


def _classes(stage: Stage, blurred: dict[int, Any]) -> list[tuple[int, float, float]]:
    """Return the shares given away by the class alone, and to someone who knows that the target is not in
    excellent health."""
    lines = []
    for k, table in blurred.items():
        alone = auditing.homogeneity(table, QUASI_IDENTIFIERS, "health").share
        more = auditing.background_knowledge(
            table, QUASI_IDENTIFIERS, "health", ruled_out=["excellent"]
        ).share
        lines.append((k, alone, more))
    stage.say(
        "Ages, sites and schooling are blurred until everybody shares theirs with k - 1 others "
        "([bold]k-anonymity[/]). Whose health still follows, "
        "because all in their class have the same; and for a neighbor who has seen that they are not "
        "in excellent health?\n"
    )
    rows = [[f"k = {k}", f"{alone:.1%}", f"{more:.1%}"] for k, alone, more in lines]
    stage.table(["", "class alone", "with what the neighbor saw"], rows)
    stage.say("")
    return lines


def _two_releases(stage: Stage, table: pa.Table) -> list[tuple[str, float]]:
    """Let two hospitals publish about the same people, each 5-anonymous, blurred in different columns
    first."""
    first, second = (
        auditing.mondrian(table, QUASI_IDENTIFIERS[:2], 5),
        auditing.mondrian(table, QUASI_IDENTIFIERS[2:] + QUASI_IDENTIFIERS[:1], 5),
    )
    alone = [
        auditing.homogeneity(first, QUASI_IDENTIFIERS[:2], "health").share,
        auditing.homogeneity(second, QUASI_IDENTIFIERS[2:] + QUASI_IDENTIFIERS[:1], "health").share,
    ]
    both = auditing.intersection(
        first,
        second,
        person="person",
        first_class=QUASI_IDENTIFIERS[:2],
        second_class=QUASI_IDENTIFIERS[2:] + QUASI_IDENTIFIERS[:1],
        sensitive="health",
    )
    shares = [("first alone", alone[0]), ("second alone", alone[1]), ("both", both.share)]
    stage.say(
        "Two releases about the same people, both 5-anonymous, and an attacker who lays them side by "
        "side ([bold]composition[/]):\n"
    )
    stage.table(["release", "health given away"], [[name, f"{share:.1%}"] for name, share in shares])
    stage.say("")
    return shares


def _two_counts(stage: Stage, health: Any) -> tuple[list[tuple[str, float]], float]:
    """Run differencing: how many are ill, and how many without you? Also what guessing the same for everybody
    gets right."""
    secret = np.isin(health, ["fair", "poor"])
    rng, entropy = np.random.default_rng(), sampling.Entropy()
    noise = mechanisms.IntegerLaplace.for_epsilon(EPSILON / (2 * PEOPLE))

    def exact(group: Any) -> int:
        return int((group & secret).sum())

    askers: dict[str, Callable[[Any], float]] = {
        "exact": exact,
        "off by up to 1": lambda group: exact(group) + int(rng.integers(-1, 2)),
        f"private, epsilon {EPSILON}": lambda group: int(noise(np.array([exact(group)]), entropy=entropy)[0]),
    }
    shares = [
        (name, float((auditing.differencing(ask, PEOPLE) == secret).mean())) for name, ask in askers.items()
    ]
    always = float(max(secret.mean(), 1 - secret.mean()))
    stage.say(
        f"Only counts, then: how many of {PEOPLE} people are in fair or poor health, and how many "
        f"without this one ([bold]differencing[/], two questions per "
        f"person)? Guessing “healthy” for all is right for {always:.0%}.\n"
    )
    stage.table(["counts", "people guessed right"], [[name, f"{share:.0%}"] for name, share in shares])
    stage.say("")
    return shares, always


def _films(stage: Stage) -> list[tuple[int, float, float]]:
    """Run linkage, after Narayanan & Shmatikov: ratings under numbers instead of names, and a few that
    somebody mentioned elsewhere."""
    ratings = auditing.made_up_ratings(seed=3)
    users = range(0, 400, 4)
    matches = [(films, *auditing.linked(ratings, ratings, users, items=films)) for films in FILMS]
    stage.say(
        f"{ratings.users:,} people's film ratings under numbers instead of names (made up, with the "
        f"long tail of real ones). Who knows a few of somebody's "
        f"ratings, give or take a star and a fortnight ([bold]linkage[/]), finds all the others of theirs:\n"
    )
    rows = [[str(films), f"{right:.0%}", f"{wrong:.0%}"] for films, right, wrong in matches]
    stage.table(["films known", "found", "found wrongly"], rows)
    stage.say("")
    return matches


def _picture(stage: Stage, classes: Any, together: Any, counts: Any, films: Any) -> None:
    try:
        import matplotlib
    except ImportError:
        stage.aside(str(MissingExtra.of("plots", "no picture: matplotlib is missing")))
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, ((a, b), (c, d)) = pyplot.subplots(2, 2, figsize=(10, 7), layout="constrained")
    positions = np.arange(len(classes))
    a.bar(positions - 0.2, [x[1] for x in classes], 0.38, color=PALE, label="class alone")
    a.bar(positions + 0.2, [x[2] for x in classes], 0.38, color=ALARM, label="and one thing known")
    a.set_xticks(positions, [f"k = {x[0]}" for x in classes])
    a.set_title("k-anonymity: health given away", loc="left", color=INK)
    a.legend(frameon=False)
    for axis, bars, title in (
        (b, together, "two releases"),
        (c, counts[0], "two counts per person: guessed right"),
    ):
        colors = [ALARM if i == (len(bars) - 1 if axis is b else 0) else PALE for i in range(len(bars))]
        if axis is c:
            colors[-1] = ACCENT
        axis.bar(range(len(bars)), [share for _, share in bars], 0.6, color=colors)
        axis.set_xticks(range(len(bars)), [name for name, _ in bars])
        axis.set_title(title, loc="left", color=INK)
    c.axhline(counts[1], color=INK, linestyle="--", linewidth=1)
    c.annotate(
        "“healthy” for all",
        (2.4, counts[1]),
        xytext=(0, -14),
        textcoords="offset points",
        ha="right",
        color=INK,
    )
    d.plot([x[0] for x in films], [x[1] for x in films], "o-", color=ALARM, label="found")
    d.plot(
        [x[0] for x in films], [x[2] for x in films], "o-", color=PALE, label="found wrongly", clip_on=False
    )
    d.set_xticks([x[0] for x in films])
    d.set_xlabel("films known of somebody")
    d.set_title("film ratings without names", loc="left", color=INK)
    d.legend(frameon=False)
    for axis in (a, b, c, d):
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_ylim(0, None if axis in (a, b) else 1.05)
        axis.yaxis.set_major_formatter(lambda share, _: f"{share:.0%}")
    figure.suptitle("What looks anonymous", fontsize=13, color=INK, weight="bold")
    stage.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(stage.out / "anonymity.png", dpi=150)
    pyplot.close(figure)
    stage.say(f"[dim]picture saved as[/] {stage.out / 'anonymity.png'}")
