"""Shows why removing names is not enough: four attacks on tables and counts that look anonymous."""

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

# the columns that a neighbor knows of somebody in the table
QUASI_IDENTIFIERS = ("age", "sex", "site", "education")
# the k of k-anonymity
SIZES = (2, 5, 10, 20)
# the people of the differencing attack, the epsilon of all their counts together, and the numbers of ratings
# that the linkage attack knows
PEOPLE, EPSILON, FILMS = 200, 1, (2, 4, 6, 8)
# the color of what an attack finds
ALARM = "#c0392b"


def run(stage: Stage) -> None:
    """Show homogeneity and background knowledge, two releases together, differencing and linkage; draw one
    picture of all four."""
    table = pa.Table.from_batches(rand_hie(year=1).batches(["person", *QUASI_IDENTIFIERS, "health"]))
    anonymous = {k: auditing.mondrian(table, QUASI_IDENTIFIERS, k) for k in SIZES}
    classes = _classes(stage, anonymous)
    releases = _two_releases(stage, table)
    counts = _two_counts(stage, np.array(table["health"].to_pylist()[:PEOPLE], dtype=object))
    films = _films(stage)
    _picture(stage, classes, releases, counts, films)


def _classes(stage: Stage, anonymous: dict[int, Any]) -> list[tuple[int, float, float]]:
    """Return for each k the share of people whose health follows from their class (the people with the same
    quasi-identifiers) alone, and the share for an attacker who knows that they are not in excellent health.

    `anonymous` has the k-anonymous tables by k, which the algorithm Mondrian made.
    """
    lines = []
    for k, table in anonymous.items():
        alone = auditing.homogeneity(table, QUASI_IDENTIFIERS, "health").share
        with_knowledge = auditing.background_knowledge(
            table, QUASI_IDENTIFIERS, "health", ruled_out=["excellent"]
        ).share
        lines.append((k, alone, with_knowledge))
    stage.say(
        "Ages, sites and schooling are generalized until everybody shares theirs with at least k - 1 others "
        "([bold]k-anonymity[/]): together they are a class. For how many people does the health still "
        "follow, because everybody in their class has the same? And for how many does it follow for a "
        "neighbor who knows that they are not in excellent health?\n"
    )
    rows = [[f"k = {k}", f"{alone:.1%}", f"{informed:.1%}"] for k, alone, informed in lines]
    stage.table(["", "class alone", "with what the neighbor knows"], rows)
    stage.say("")
    return lines


def _two_releases(stage: Stage, table: pa.Table) -> list[tuple[str, float]]:
    """Publish two 5-anonymous tables about the same people, with different quasi-identifiers, and return the
    shares of people whose health follows from the first, the second, and both."""
    first_columns, second_columns = ("age", "sex"), ("site", "education", "age")
    first, second = (auditing.mondrian(table, columns, 5) for columns in (first_columns, second_columns))
    alone = [
        auditing.homogeneity(first, first_columns, "health").share,
        auditing.homogeneity(second, second_columns, "health").share,
    ]
    both = auditing.intersection(
        first,
        second,
        person="person",
        first_class=first_columns,
        second_class=second_columns,
        sensitive="health",
    )
    shares = [("first alone", alone[0]), ("second alone", alone[1]), ("both", both.share)]
    stage.say(
        "Two releases about the same people, both 5-anonymous, and an attacker who intersects their classes "
        "([bold]composition[/]):\n"
    )
    stage.table(["release", "health given away"], [[name, f"{share:.1%}"] for name, share in shares])
    stage.say("")
    return shares


def _two_counts(stage: Stage, health: Any) -> tuple[list[tuple[str, float]], float]:
    """Run the differencing attack on exact, slightly wrong and private counts: how many are ill, and how many
    without this person? Return the shares guessed right, and the share that one guess for all gets right."""
    secret = np.isin(health, ["fair", "poor"])
    rng, entropy = np.random.default_rng(), sampling.Entropy()
    # EPSILON for all questions together: the attack asks two for each person
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
    one_guess = float(max(secret.mean(), 1 - secret.mean()))
    stage.say(
        f"So publish counts only? How many of {PEOPLE} people are in fair or poor health, and how many "
        f"without this one ([bold]differencing[/], two questions per "
        f"person)? Guessing “healthy” for all is right for {one_guess:.0%}.\n"
    )
    stage.table(["counts", "people guessed right"], [[name, f"{share:.0%}"] for name, share in shares])
    stage.say("")
    return shares, one_guess


def _films(stage: Stage) -> list[tuple[int, float, float]]:
    """Run the linkage attack of Narayanan & Shmatikov: match a few known ratings with ratings under numbers
    instead of names. Return, by the number of films known, the shares matched rightly and wrongly."""
    ratings = auditing.made_up_ratings(seed=3)
    # a hundred people who are attacked
    users = range(0, 400, 4)
    # The attacker knows ratings of the same table, with errors that `linked` adds.
    matches = [(films, *auditing.linked(ratings, ratings, users, items=films)) for films in FILMS]
    stage.say(
        f"{ratings.users:,} people's film ratings under numbers instead of names (made up, with the "
        f"long tail of real ones). An attacker who knows a few of somebody's "
        f"ratings, give or take a star and a fortnight, finds their number and so all their other ratings "
        f"([bold]linkage[/]):\n"
    )
    rows = [[str(films), f"{right:.0%}", f"{wrong:.0%}"] for films, right, wrong in matches]
    stage.table(["films known", "person found", "wrong person found"], rows)
    stage.say("")
    return matches


def _picture(stage: Stage, classes: Any, releases: Any, counts: Any, films: Any) -> None:
    """Save one picture with the results of all four attacks, as their functions return them."""
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
    a.bar(positions + 0.2, [x[2] for x in classes], 0.38, color=ALARM, label="with what the neighbor knows")
    a.set_xticks(positions, [f"k = {x[0]}" for x in classes])
    a.set_title("k-anonymity: health given away", loc="left", color=INK)
    a.legend(frameon=False)
    for axis, bars, title in (
        (b, releases, "two releases: health given away"),
        (c, counts[0], "two counts per person: guessed right"),
    ):
        # the attack that succeeds stands out: both releases together, and exact counts
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
    d.plot([x[0] for x in films], [x[1] for x in films], "o-", color=ALARM, label="person found")
    d.plot(
        [x[0] for x in films],
        [x[2] for x in films],
        "o-",
        color=PALE,
        label="wrong person found",
        clip_on=False,
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
    stage.saved(stage.out / "anonymity.png")
