"""The sentences of an explanation, for three kinds of reader: the public, policy makers, engineers.

What the studies found goes into them. Odds, as whole numbers of outcomes with and without a person, are
understood better than descriptions that leave epsilon out (Nanayakkara et al. 2023, arXiv:2303.00738); people
care about who could learn what, and descriptions set expectations that must be right (Cummings, Kaptchuk &
Redmiles 2021, arXiv:2110.06452); labels that state the consequences set the expectations right (Smart et al.
2024, arXiv:2408.08475); a cost in money makes the bound felt (Wood et al. 2018). So every text says what a
person risks by taking part, beside what they risk anyway, and no text says "anonymous" or "safe".
"""

from __future__ import annotations

import math
import re

from .._public import ADD_REMOVE, REPLACE, Unit
from .._text import visible
from .deployments import beside
from .risk import EXTRA_EPSILON, Risk, changed

AUDIENCES = ("public", "policy", "engineer")

DISCLAIMERS = (
    (
        "encryption",
        "Encryption hides data from whoever lacks the key. Here the results are for everybody to read.",
    ),
    (
        "secure computation",
        "Secure computation hides the inputs from those who compute, and gives the exact result, which may "
        "tell on somebody. Here the result itself is what protects.",
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


# Endings of a column's name that say that it is an identifier, not whose: patient_id is of a patient.
_IDENTIFIER = re.compile(r"(?:[_\s-]+(?i:id|ids|key|no|nr|num|number|code)|(?<=[a-z])(?:Id|ID))$")


def unit_noun(unit: Unit) -> str:
    """Return what one protected unit is called: a row, or what the declared column identifies.

    >>> [unit_noun(Unit(column=name)) for name in ("patient_id", "householdID", "person", "id", None)]
    ['patient', 'household', 'person', 'unit', 'row']
    """
    if unit.column is None:
        return "row"
    noun = _IDENTIFIER.sub("", unit.column).replace("_", " ").strip()
    return "unit" if not noun or noun.lower() in ("id", "key") else visible(noun)


def protected(risk: Risk, unit: str = "unit") -> str:
    """Return which change the event hides."""
    return {
        "add_remove": f"one {unit}, whether it is in the data at all",
        "replace": f"one {unit}'s data, whatever it says (how many there are is public)",
        "zero_out": f"one {unit}'s data against a blank",
    }[risk.neighbors.value]


def out_of(chance: float, per: int = 100) -> str:
    """Return a chance as a natural frequency, so many in a hundred, rounded up; in a thousand or more where
    rounding would make it impossible or certain.

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
    """Return a bound, rounded up to three digits."""
    if not math.isfinite(value):
        return "without limit"
    if value == 0:
        return "0"
    step = 10.0 ** (math.floor(math.log10(abs(value))) - 2)
    shown = math.ceil(value / step - 1e-9) * step
    return f"{shown:,.0f}" if 1000 <= abs(shown) < 1e15 else f"{shown:.4g}"


def percent(chance: float) -> str:
    """Return a chance in per cent, rounded up to three digits, or to more where three would make it certain.

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
    """Return the next integer up; a float's own error of 1e-9 does not count, but nothing positive becomes
    zero."""
    return max(math.ceil(value - 1e-9), 1 if value > 0 else 0)


def price(risk: Risk) -> str:
    """Return epsilon and delta as text."""
    if not risk.bounded:
        return "no finite epsilon" + (f" at delta {risk.delta:g}" if risk.delta else "")
    return f"epsilon {number(risk.epsilon)}" + (f", delta {risk.delta:g}" if risk.delta else "")


def nothing_promised(risk: Risk) -> tuple[str, ...]:
    """Return what to say where no bound holds."""
    return (
        f"There is no bound: {price(risk)}. Whoever sees the result may learn as much as from the data "
        f"itself.",
        "That is so for values made with seeded randomness (for tests), for methods without a guarantee, "
        "and for a delta below that of the release.",
    )


def odds(risk: Risk, audience: str, unit: str = "unit") -> tuple[str, ...]:
    """Explain the odds before and after; `unit` names what is protected, where the public is not addressed as
    "you"."""
    secret = changed(risk.neighbors)
    if audience == "public":
        lines = [
            f"Suppose somebody wants to find out {secret}, and thinks before any result is out that the "
            f"chance is 50 in 100. After all of these results it is at most {out_of(risk.after(0.5))}; it "
            "would stay at 50 in 100 if your data played no part.",
            f"If they thought it was 1 in 100, it is at most {out_of(risk.after(0.01))} afterwards.",
        ]
        if risk.odds_fail:
            lines.append(
                f"There is a chance of at most {out_of(risk.odds_fail)} that this bound does not hold."
            )
        return tuple(lines)
    beliefs = "; ".join(f"{p:.0%} becomes at most {percent(risk.after(p))}" for p in (0.01, 0.1, 0.5))
    fails = f", except with probability {number(risk.odds_fail)}" if risk.odds_fail else ""
    lines = [
        f"The odds that anybody gives to {_of_unit(secret, unit)} move by at most a factor of "
        f"{number(risk.odds_factor)}, up or down{fails}.",
        f"A belief of {beliefs}.",
    ]
    if audience == "engineer" and risk.delta > 0 and risk.odds_fail:
        lines.append(
            f"The factor is e^(epsilon + {EXTRA_EPSILON}), and its chance to fail "
            f"delta / (1 - e^-{EXTRA_EPSILON}): "
            "(epsilon, delta) alone does not keep the odds below e^epsilon with probability 1 - delta."
        )
    if audience == "engineer" and risk.neighbors is ADD_REMOVE:
        inner = risk.of_a_value
        lines.append(
            "Under add_remove the odds between two contents of the same record are two steps apart: "
            + (
                f"a factor of {number(inner.odds_factor)}{_exception_words(inner)}."
                if _has_bounded_odds(inner)
                else "no bound at this delta."
            )
        )
    return tuple(lines)


def attack(risk: Risk, audience: str) -> tuple[str, ...]:
    """Explain the best attack there can be."""
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
    """Explain the risk against a baseline, in money."""
    base, worst = 1_000.0, 100_000.0
    expected = risk.cost(base, worst=worst)
    if audience == "engineer":
        return (
            f"Any cost in [0, {worst:,.0f}] that is derived from the release has an expectation of at most "
            f"e^epsilon times that without the {unit}, plus delta times {worst:,.0f}: {base:,.0f} becomes at "
            f"most {number(expected)}.",
        )
    return (
        f"Say an insurer would charge you {base:,.0f} a year on average for a policy of {worst:,.0f} if you "
        f"had not taken part. Because you do, whatever it reads from these results, that is at most "
        f"{number(expected)}.",
        "What you would pay anyway, because of what is known about people like you, is not part of this "
        "promise.",
    )


def leaving(risk: Risk, audience: str, unit: str = "unit") -> tuple[str, ...]:
    """Return what changes if one person leaves."""
    who = "you" if audience == "public" else f"one {unit}"
    if risk.neighbors is REPLACE:
        return (
            f"If {who} had said something else, every possible result would have come out with almost the "
            f"same chance: within a factor of {number(math.exp(min(risk.epsilon, 700)))}"
            f"{f', and a remainder of {risk.delta:g}' if risk.delta else ''}.{_odds_note(risk)} How many "
            "people there are is public.",
        )
    lines = [
        f"If {who} had stayed away, every possible result would have come out with almost the same chance: "
        f"within a factor of {number(math.exp(min(risk.epsilon, 700)))}"
        + (f", and a remainder of {risk.delta:g}" if risk.delta else "")
        + "."
        + _odds_note(risk)
    ]
    if audience != "public":
        lines.append(
            "Leaving later takes nothing back: what was released stays released, and stays within the bound; "
            "deleting a record protects it from future questions only."
        )
    return tuple(lines)


def _of_unit(secret: str, unit: str) -> str:
    """Return a sentence about "you" as one about a unit."""
    return secret.replace("you are", f"one {unit} is").replace("your", "its")


def _odds_note(risk: Risk) -> str:
    """Say why the factor of odds is not that of chances, where they differ: with a delta, odds can move
    further than e^epsilon, and are bounded a little above it."""
    if not risk.odds_fail:
        return ""
    return (
        f" (That is e^epsilon, a bound on chances. The odds above are bounded by a little more, "
        f"{number(risk.odds_factor)}, because delta is not 0: e^(epsilon + {EXTRA_EPSILON}).)"
    )


def _has_bounded_odds(risk: Risk) -> bool:
    """Return whether odds are bounded at all, with some chance."""
    return risk.bounded and risk.odds_factor < math.inf


def _exception_words(risk: Risk) -> str:
    """Return with what chance the odds may move further, where they may."""
    return f" (except with probability {risk.odds_fail:.1g})" if risk.odds_fail else ""


def groups(risk: Risk) -> tuple[str, ...]:
    """Explain what holds for groups of units, such as a family (group privacy)."""
    rows = []
    for size in (2, 4):
        group = risk.of_group(size)
        rows.append(
            f"{size} units together: {price(group)}"
            + (
                f", odds by at most {number(group.odds_factor)}{_exception_words(group)}"
                if _has_bounded_odds(group)
                else ""
            )
        )
    return tuple(f"{row}." for row in rows)


def scale(risk: Risk) -> tuple[str, ...]:
    """Explain where this stands among what others have published."""
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
    """Return what differential privacy is not, a sentence for each confusion."""
    return tuple(f"Not {name}. {why}" for name, why in DISCLAIMERS)
