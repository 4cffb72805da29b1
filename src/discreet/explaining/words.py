"""Writes the sentences of an explanation, for three kinds of reader: the public, policy makers, engineers.

The sentences follow what studies with readers found. Odds, as whole numbers of outcomes with and without a
person, are understood better than descriptions that leave epsilon out (Nanayakkara et al. 2023,
arXiv:2303.00738); people care about who could learn what, and descriptions set expectations that must be
right (Cummings, Kaptchuk & Redmiles 2021, arXiv:2110.06452); labels that state the consequences set the
expectations right (Smart et al. 2024, arXiv:2408.08475); a cost in money makes the bound concrete (Wood et
al. 2018). So every text says what a person risks by taking part, beside what they risk anyway, and no text
says "anonymous" or "safe". Numbers that bound a harm are rounded up, never to the nearest.

Lists published deployments of differential privacy, to compare an epsilon with. Each figure has its
source.

Epsilons of different units and periods do not compare number by number: one per user and day adds up over the
days, one for a whole release does not.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from typing import Any

from .._public import ADD_REMOVE, REPLACE, Unit
from .._text import visible
from .risk import EXTRA_EPSILON, Risk, changed


@dataclass(frozen=True, slots=True)
class Deployment:
    """Holds one published guarantee. `unit` is the unit of privacy of the epsilon; `delta` is None where the
    source states none; `local` marks local differential privacy, where no curator is trusted.

    `source` names the publication of the figure. `checked` names the second place where the figure was
    compared when this list was last reviewed (18 November 2026).
    """

    who: str
    what: str
    epsilon: float
    delta: float | None
    unit: str
    source: str
    url: str
    checked: str
    local: bool = False

    @property
    def price(self) -> str:
        delta_words = "" if self.delta is None else f", delta {self.delta:g}"
        return f"epsilon {self.epsilon:g}{delta_words}"


def _deployments() -> tuple[Deployment, ...]:
    """Return the deployments of data/deployments.csv."""
    lines = (
        resources.files("discreet").joinpath("data/deployments.csv").read_text(encoding="utf-8").splitlines()
    )
    rows: Iterable[dict[str, Any]] = csv.DictReader(lines)
    return tuple(
        Deployment(
            **row
            | {
                "epsilon": float(row["epsilon"]),
                "delta": float(row["delta"]) if row["delta"] else None,
                "local": row["local"] == "local",
            }
        )
        for row in rows
    )


DEPLOYMENTS = _deployments()


def beside(epsilon: float) -> tuple[tuple[Deployment, ...], tuple[Deployment, ...]]:
    """Return the published deployments with a smaller epsilon, and those with this epsilon or a larger one;
    both by rising epsilon."""
    ordered = sorted(DEPLOYMENTS, key=lambda deployment: deployment.epsilon)
    return (
        tuple(deployment for deployment in ordered if deployment.epsilon < epsilon),
        tuple(deployment for deployment in ordered if deployment.epsilon >= epsilon),
    )


AUDIENCES = ("public", "policy", "engineer")

DISCLAIMERS = (
    (
        "encryption",
        "Encryption hides data from whoever lacks the key. Here the results are for everybody to read.",
    ),
    (
        "secure computation",
        "Secure computation hides the inputs from those who compute, and gives the exact result, which may "
        "give somebody's data away. Here the result itself is made so that it protects people.",
    ),
    (
        "access control",
        "Access control says who may see records. Here nobody who asks sees records, and whoever sees the "
        "answers is assumed to be clever and to know everything else.",
    ),
    (
        "removing names",
        "Taking names away leaves the rest of a record, which often fits one person only. Here it does not "
        "matter what else an onlooker knows.",
    ),
    (
        "a promise that nothing is learned about you",
        "What is true of many people is learned, and may be true of you, whether or not you take part.",
    ),
)


# Endings that mark a column's name as an identifier. What stands before the ending names the unit: the column
# patient_id identifies a patient.
_IDENTIFIER = re.compile(r"(?:[_\s-]+(?i:id|ids|key|no|nr|num|number|code)|(?<=[a-z])(?:Id|ID))$")


def unit_noun(unit: Unit) -> str:
    """Return the noun for one protected unit: "row", or the thing that the declared column identifies.

    >>> [unit_noun(Unit(column=name)) for name in ("patient_id", "householdID", "person", "id", None)]
    ['patient', 'household', 'person', 'unit', 'row']
    """
    if unit.column is None:
        return "row"
    noun = _IDENTIFIER.sub("", unit.column).replace("_", " ").strip()
    return "unit" if not noun or noun.lower() in ("id", "key") else visible(noun)


def protected(risk: Risk, unit: str = "unit") -> str:
    """Return the change that the event hides, by its neighbor relation."""
    # A noun from the name of a column is that of people: a patient, a household.
    are = "it is" if unit in ("unit", "row") else "they are"
    return {
        "add_remove": f"one {unit}, whether {are} in the data at all",
        "replace": f"one {unit}'s data, whatever it says (how many there are is public)",
        "zero_out": f"one {unit}'s data against a blank",
    }[risk.neighbors.value]


def out_of(chance: float, per: int = 100) -> str:
    """Return a probability as a natural frequency ("74 in 100"), rounded up. The denominator `per` is raised
    to a thousand or more where the numerator would be below one, or rounded up to `per`.

    >>> out_of(0.7310585), out_of(0.0271828)
    ('74 in 100', '3 in 100')
    >>> out_of(0.00271828), out_of(0.9933071), out_of(1e-30), out_of(1 - 1e-12)
    ('3 in 1,000', '994 in 1,000', '1 in 1,000,000,000', 'just under 1,000,000,000 in 1,000,000,000')
    """
    while 0 < chance < 1 and per < 10**9 and (chance * per < 1 or _rounded_up(chance * per) >= per):
        per *= 10
    count = min(per, _rounded_up(chance * per))
    under = "just under " if chance < 1 and count == per else ""
    return f"{under}{count:,} in {per:,}"


def number(value: float) -> str:
    """Return an upper bound, rounded up to three digits.

    >>> number(2.71828), number(12_340.1), number(5e-324)
    ('2.72', '12,400', '1e-300')
    """
    if not math.isfinite(value):
        return "without limit"
    if value == 0:
        return "0"
    if 0 < value < 1e-300:
        # still an upper bound; for the smallest floats `step` would underflow to zero
        value = 1e-300
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    # 1e-9: a rounding error, as in `_rounded_up`
    shown = math.ceil(value / step - 1e-9) * step
    return f"{shown:,.0f}" if 1000 <= abs(shown) < 1e15 else f"{shown:.4g}"


def percent(chance: float) -> str:
    """Return a probability in per cent, rounded up to three digits, or to more digits where three would make
    it certain.

    >>> percent(0.5), percent(0.99996), percent(1 - 1e-12), percent(1.0)
    ('50%', '99.996%', 'just under 100%', '100%')
    """
    share = 100 * chance
    if not 99 < share < 100:
        return f"{number(min(100.0, share))}%"
    for digits in range(1, 10):
        shown = _rounded_up(share * 10**digits)
        if shown < 100 * 10**digits:
            return f"{shown / 10**digits:.{digits}f}%"
    return "just under 100%"


def _rounded_up(value: float) -> int:
    """Return the next integer up. An excess of up to 1e-9 over an integer is taken for a float's rounding
    error, but nothing positive becomes zero."""
    return max(math.ceil(value - 1e-9), 1 if value > 0 else 0)


def factor(exponent: float) -> str:
    """Return e^exponent, rounded up; as a power of e where no float holds the number.

    >>> factor(1.0), factor(1000.0)
    ('2.72', 'e^1,000')
    """
    return number(math.exp(exponent)) if exponent < 700 else f"e^{number(exponent)}"


def price(risk: Risk) -> str:
    """Return epsilon and delta as text."""
    if not risk.bounded:
        return "nothing is promised" + (f" at delta {number(risk.delta)}" if risk.delta else "")
    return f"epsilon {number(risk.epsilon)}" + (f", delta {number(risk.delta)}" if risk.delta else "")


def nothing_promised(risk: Risk) -> tuple[str, ...]:
    """Return the sentences for a risk without a bound."""
    return (
        f"There is no bound: {price(risk)}. Whoever sees the result may learn as much as from the data "
        f"itself.",
        "That is so for values made with seeded randomness (for tests), for methods without a guarantee, "
        "and for a delta below that of the release.",
    )


def odds(risk: Risk, audience: str, unit: str = "unit") -> tuple[str, ...]:
    """Explain the odds before and after the release.

    `unit` is the noun for what is protected. It is not used for the public, who are addressed as "you".
    """
    secret = changed(risk.neighbors)
    if not has_bounded_odds(risk):
        about = secret if audience == "public" else _of_unit(secret, unit)
        return (f"At this price there is no useful bound on how sure somebody can become about {about}.",)
    if audience == "public":
        lines = [
            # The bound needs somebody who knows the other records. Anybody else also learns about you from
            # what the results say about people like you, which no epsilon bounds.
            f"Suppose somebody knows everybody else's data, wants to find out {secret}, and thinks before "
            "any result is out that the chance is 50 in 100. After all of these results it is at most "
            f"{out_of(risk.after(0.5))}; it would stay at 50 in 100 if your data played no part.",
            f"If they thought it was 1 in 100, it is at most {out_of(risk.after(0.01))} afterwards.",
        ]
        if risk.odds_fail:
            lines.append(
                f"There is a chance of at most {out_of(risk.odds_fail)} that this bound does not hold."
            )
        return tuple(lines)
    beliefs = "; ".join(f"{p:.0%} becomes at most {percent(risk.after(p))}" for p in (0.01, 0.1, 0.5))
    fails = f", except with probability {number(risk.odds_fail)} in each direction" if risk.odds_fail else ""
    lines = [
        f"The odds on {_of_unit(secret, unit)}, for anybody who knows all other records, move by at most a "
        f"factor of {number(risk.odds_factor)}, up or down{fails}.",
        f"A belief of {beliefs}.",
    ]
    if audience == "engineer" and risk.delta > 0 and risk.odds_fail:
        lines.append(
            f"The factor is e^(epsilon + {EXTRA_EPSILON}), and it fails with probability at most "
            f"delta / (1 - e^-{EXTRA_EPSILON}): "
            "(epsilon, delta) alone does not keep the odds below e^epsilon with probability 1 - delta."
        )
    if audience == "engineer" and risk.neighbors is ADD_REMOVE:
        two_steps = risk.of_a_value
        lines.append(
            "Under add_remove the odds between two contents of the same record are two steps apart: "
            + (
                f"a factor of {number(two_steps.odds_factor)}{_exception_words(two_steps)}."
                if has_bounded_odds(two_steps)
                else "no bound at this delta."
            )
        )
    return tuple(lines)


def attack(risk: Risk, audience: str) -> tuple[str, ...]:
    """Explain the best possible membership test, at false-positive rates of 5% and 1%."""
    at_5_percent, at_1_percent = risk.true_positives(0.05), risk.true_positives(0.01)
    if audience == "public":
        return (
            "The cleverest possible detective, who wrongly points at 5 of 100 people outside the data, "
            f"points at no more than {out_of(at_5_percent)} of those inside it.",
        )
    lines = [
        "An attacker who tests membership with a false-positive rate of 5% has a true-positive rate of at "
        f"most {percent(at_5_percent)}; at 1%, at most {percent(at_1_percent)}.",
        "Where one of 100 suspects is in the data, an accusation at a false-positive rate of 1% is right "
        f"in at most {percent(risk.accusation(0.01, 0.01))} of cases.",
    ]
    if audience == "engineer":
        lines.append(
            f"Largest advantage (true minus false positives): {percent(risk.advantage)}. The bounds are the "
            f"trade-off of the event itself where accounting knows it, not of (epsilon, delta) alone."
        )
    return tuple(lines)


def cost(risk: Risk, audience: str, unit: str = "unit") -> tuple[str, ...]:
    """Explain the risk in money: the expected cost with a person's data against the cost without it."""
    # An example to read, not a measurement: an average premium, and the largest cost there can be.
    base, worst = 1_000.0, 100_000.0
    expected = risk.cost(base, worst=worst)
    if audience == "engineer":
        return (
            f"Any cost in [0, {worst:,.0f}] that is derived from the release has an expectation of at most "
            f"e^epsilon times its expectation {_otherwise(risk, f'the {unit}')[1]}, plus delta times "
            f"{worst:,.0f}: {base:,.0f} becomes at most {number(expected)}.",
        )
    return (
        f"Say an insurer would charge you {base:,.0f} a year on average for a policy of {worst:,.0f} if "
        f"{_otherwise(risk, 'you')[0]}. With your data as it is, whatever the insurer reads from these "
        f"results, the charge is at most {number(expected)} on average.",
        "What you would pay anyway, because of what is known about people like you, is not part of this "
        "promise.",
    )


def leaving(risk: Risk, audience: str, unit: str = "unit") -> tuple[str, ...]:
    """Say how far the probabilities of the results would differ without one person's data."""
    who = "you" if audience == "public" else f"one {unit}"
    remainder = f", and a remainder of {number(risk.delta)}" if risk.delta else ""
    lines = [
        f"If {_otherwise(risk, who)[0]}, the chance of every possible result would differ by at most a "
        f"factor of {factor(risk.epsilon)}{remainder}.{_odds_note(risk)}"
    ]
    if risk.neighbors is REPLACE:
        return (f"{lines[0]} How many people there are is public.",)
    if audience != "public":
        lines.append(
            "Leaving later takes nothing back: what was released stays released, and stays within the bound; "
            "deleting a record protects it from future questions only."
        )
    return tuple(lines)


def _of_unit(secret: str, unit: str) -> str:
    """Return the words of `changed`, which address "you", for one unit instead."""
    return secret.replace("you are", f"one {unit} is").replace("your", f"one {unit}'s")


def _otherwise(risk: Risk, who: str) -> tuple[str, str]:
    """Return the neighboring case in words, as a condition ("if ...") and as a qualifier. The bounds compare
    with this case and no other: under `replace` nobody can be left out, because the size is public."""
    of_whom = "your" if who == "you" else f"{who}'s"
    if risk.neighbors is ADD_REMOVE:
        return f"{who} had stayed away", f"without {who}"
    if risk.neighbors is REPLACE:
        return f"{of_whom} record had said anything else", f"with any other record in place of {of_whom}"
    return f"{of_whom} record had been a blank", f"with a blank in place of {of_whom} record"


def _odds_note(risk: Risk) -> str:
    """Say why the bound on odds is larger than the bound on probabilities; nothing where the two are equal or
    odds have no bound."""
    if not risk.odds_fail or not has_bounded_odds(risk):
        return ""
    return (
        f" (This factor, e^epsilon, is for chances. The odds above have the larger bound "
        f"{number(risk.odds_factor)}, because delta is not 0: e^(epsilon + {EXTRA_EPSILON}).)"
    )


def has_bounded_odds(risk: Risk) -> bool:
    """Return whether the odds have a finite bound that holds with a probability above zero."""
    return risk.bounded and risk.odds_factor < math.inf


def _exception_words(risk: Risk) -> str:
    """Return the probability that the odds move further than their bound, in words; nothing if it is 0."""
    return f" (except with probability {number(risk.odds_fail)} in each direction)" if risk.odds_fail else ""


def groups(risk: Risk) -> tuple[str, ...]:
    """Explain what holds for groups of units, such as a family (group privacy)."""
    rows = []
    for size in (2, 4):
        group = risk.of_group(size)
        rows.append(
            f"{size} units together: {price(group)}"
            + (
                f", odds by at most {number(group.odds_factor)}{_exception_words(group)}"
                if has_bounded_odds(group)
                else ""
            )
        )
    return tuple(f"{row}." for row in rows)


def scale(risk: Risk) -> tuple[str, ...]:
    """Say how many published deployments have a smaller epsilon, and name the next ones below and above."""
    below, above = beside(risk.epsilon)
    lines = [
        f"{len(below)} of {len(below) + len(above)} published figures in our list have a smaller epsilon, "
        f"{len(above)} this or a larger one. They are for different units and periods: a figure per day adds "
        "up over the days."
    ]
    if below:
        lines.append(f"Next below: {below[-1].who}, {below[-1].what}: {below[-1].price} ({below[-1].unit}).")
    if above:
        lines.append(f"Next above: {above[0].who}, {above[0].what}: {above[0].price} ({above[0].unit}).")
    lines.append(
        "There is no law for epsilon. Of trained models Google's engineers wrote in 2024 that 1 counts as "
        "strong and 10 as reasonable, at a small delta (the source of the Gboard figures)."
    )
    return tuple(lines)


def disclaimers() -> tuple[str, ...]:
    """Return what differential privacy is not, one entry for each thing that it is taken for."""
    return tuple(f"Not {name}. {why}" for name, why in DISCLAIMERS)
