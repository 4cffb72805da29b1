"""One case of the contract of client randomizers, and the exact law of a report: every draw is branched on,
so all of `respond` is enumerated.

The three draws of `discreet.local._base` are replaced by choices whose probabilities are fractions;
`respond` is run once for every combination of choices. What comes out is the law of the code itself, at full
precision, and not of a formula beside it. Only what is drawn from more than `SEEDS` numbers alike (a public
seed, which does not depend on the value) is held fixed.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

from discreet import local
from discreet.auditing.outputs import lower_limit, upper_limit
from discreet.local import _base
from discreet.mechanisms import Channel
from discreet.sampling import Entropy, SeededEntropy, exp_neg

SEEDS = 1 << 16
Law = dict[Hashable, Fraction]
# The bits after the point of exp(-epsilon).
BITS = 160


def within(ratio: Fraction, epsilon: Any) -> bool:
    """Return True only if ratio <= exp(epsilon); False also where 160 bits cannot decide it."""
    exact = Fraction(epsilon)
    whole = int(exact)
    # ratio < 2**whole < exp(whole): decided without powers, which for epsilon = 100,000 would take seconds
    if whole >= ratio.numerator.bit_length():
        return True
    # Upper bounds on exp(-1) and on exp(-(epsilon - whole)), in units of 2**-160. Their powers keep their
    # bits for a large epsilon, where exp(-epsilon) itself would have few.
    exp_neg_one, exp_neg_rest = (
        exp_neg(Fraction(1), BITS)[1] if whole else 1 << BITS,
        exp_neg(exact - whole, BITS)[1],
    )
    return ratio * Fraction(exp_neg_one, 1 << BITS) ** whole * Fraction(exp_neg_rest, 1 << BITS) <= 1


@dataclass(frozen=True, kw_only=True)
class RandomizerCase:
    name: str
    randomizer: Any
    values: Sequence[Any]  # all of them, or enough to attain the ratio
    wrong: Sequence[
        Any
    ]  # no values of this randomizer: of one person they count as `outside`, of many they are refused
    outside: Any  # the fixed public value
    exact: bool = True  # False: the law has no end; its event is checked instead
    tight: bool = True  # whether `ratio` is attained by these values
    batch: Any = None  # a value for each of several people, if it is not an array of `values`


class Tape:
    """The choices of one run: repeated up to the last, which moves on."""

    def __init__(self, path: list[list[int]]) -> None:
        self.path, self.at, self.chance = path, 0, Fraction(1)

    def pick(self, weights: Sequence[int]) -> int:
        open_ = [i for i, w in enumerate(weights) if w > 0]
        if self.at == len(self.path):
            self.path.append([0, len(open_)])
        index = open_[self.path[self.at][0]]
        self.at += 1
        self.chance *= Fraction(int(weights[index]), int(sum(weights)))
        return index


@contextmanager
def branching(tape: Tape) -> Iterator[None]:
    def below(bound: int, n: int, entropy: Entropy) -> Any:
        if bound > SEEDS:
            return np.full(n, 12345 % bound, np.int64)
        return np.array([tape.pick([1] * bound) for _ in range(n)], dtype=np.int64)

    def below_each(bounds: Sequence[int], entropy: Entropy) -> list[int]:
        return [int(below(bound, 1, entropy)[0]) for bound in bounds]

    def coin(numerators: Any, denominator: int, n: int, entropy: Entropy) -> Any:
        each = np.broadcast_to(np.asarray(numerators, dtype=object), (n,))
        return np.array([not tape.pick([int(a), denominator - int(a)]) for a in each], dtype=bool)

    def coins(thresholds: Any, entropy: Entropy) -> Any:
        flat = [not tape.pick([int(t), _base.COIN - int(t)]) for t in np.ravel(thresholds)]
        return np.array(flat, dtype=bool).reshape(np.shape(thresholds))

    def choose(ends: Sequence[int], n: int, entropy: Entropy) -> Any:
        weights = np.diff(np.array([0, *ends], dtype=object)).tolist()
        return np.array([tape.pick(weights) for _ in range(n)], dtype=np.int64)

    replaced = {"below": below, "below_each": below_each, "coin": coin, "coins": coins, "choose": choose}
    kept = {name: getattr(_base, name) for name in replaced}
    try:
        for name, function in replaced.items():
            setattr(_base, name, function)
        yield
    finally:
        for name, function in kept.items():
            setattr(_base, name, function)


def frozen(report: Any) -> Hashable:
    return tuple(frozen(item) for item in report) if isinstance(report, list | tuple) else report


def law(run: Any) -> Law:
    """The exact law of run(entropy), which must draw through `_draws` only."""
    found: Law = {}
    path: list[list[int]] = []
    entropy = SeededEntropy(0)
    while True:
        tape = Tape(path)
        with branching(tape):
            report = frozen(run(entropy))
        found[report] = found.get(report, Fraction(0)) + tape.chance
        while path and path[-1][0] + 1 == path[-1][1]:
            path.pop()
        if not path:
            return found
        path[-1][0] += 1


def laws(case: RandomizerCase) -> list[Law]:
    """The laws of what is paid for: of the permanent answer where there is one, else of the report."""
    run = getattr(case.randomizer, "start", case.randomizer.respond)
    return [law(lambda entropy, value=value: run(value, entropy=entropy)) for value in case.values]


def largest_ratio(found: Sequence[Law]) -> Fraction:
    """The largest ratio of two laws at one report; a report that one of them lacks has none."""
    reports = set().union(*found)
    assert all(set(one) == reports for one in found), (
        "a report is possible for some values and impossible for others"
    )
    return max(max(one[r] for one in found) / min(one[r] for one in found) for r in reports)


def assert_exactly_private(found: Sequence[Law], epsilon: Any) -> Fraction:
    """The one check that every randomizer passes and every mutant must fail."""
    assert all(sum(one.values()) == 1 for one in found)
    ratio = largest_ratio(found)
    assert within(ratio, epsilon), f"ratio {float(ratio)!r} is above exp({epsilon})"
    return ratio


def assert_statistically_private(randomizer: Any, runs: int, level: float) -> None:
    """The check of means whose reports have no end, which Laplace noise passes and its mutants must fail.

    The values are both ends of the range, the events the reports at or beyond an end: there the ratio of
    Laplace noise is exp(epsilon) itself.

    False alarms: an honest randomizer fails with probability at most `level`: two events, named before
    anything is drawn, each with two Clopper-Pearson limits of level / 4.
    """
    entropy = SeededEntropy(11)
    below, above = (
        randomizer.respond(np.full(runs, float(end)), entropy=entropy).data
        for end in (randomizer.low, randomizer.high)
    )
    for here, there in (
        ((below <= 0).sum(), (above <= 0).sum()),
        ((above >= randomizer.steps).sum(), (below >= randomizer.steps).sum()),
    ):
        limits = lower_limit(int(here), runs, level / 4), upper_limit(int(there), runs, level / 4)
        shown = float(np.log(limits[0] / limits[1]))
        assert shown <= randomizer.epsilon, (
            f"epsilon is {shown:.4f} at least, above the claimed {randomizer.epsilon}"
        )


THIRD = Fraction(1, 3)
DESIGN = Channel(
    rows=(
        (Fraction(1, 2), THIRD, Fraction(1, 6)),
        (Fraction(1, 4), Fraction(1, 2), Fraction(1, 4)),
        (THIRD, THIRD, THIRD),
    )
)
CODES = [-1, 3, 10**30, 1.5, math.nan, "1", None, True, [[0]], [0], b"", {}]
NUMBERS = ["1", None, math.nan, Decimal("sNaN"), [[0.0]], [1.0], True, 1j, {}]
SMALL: dict[str, Any] = {"epsilon": 1, "low": -1, "high": 1, "steps": 4}
POINTS = (-1, -0.5, 0.1, 1, 7)

CASES = [
    RandomizerCase(
        name="kary",
        randomizer=local.KaryResponse(epsilon=1, domain=3),
        values=range(3),
        wrong=CODES,
        outside=0,
    ),
    RandomizerCase(
        name="kary, two values",
        randomizer=local.KaryResponse(epsilon=THIRD, domain=2),
        values=range(2),
        wrong=CODES,
        outside=0,
    ),
    RandomizerCase(
        name="symmetric unary",
        randomizer=local.SymmetricUnary(epsilon=1, domain=3),
        values=range(3),
        wrong=CODES,
        outside=0,
    ),
    RandomizerCase(
        name="optimal unary",
        randomizer=local.OptimalUnary(epsilon=2, domain=3),
        values=range(3),
        wrong=CODES,
        outside=0,
    ),
    RandomizerCase(
        name="subset",
        randomizer=local.SubsetSelection(epsilon=1, domain=3, size=2),
        values=range(3),
        wrong=CODES,
        outside=0,
    ),
    RandomizerCase(
        name="hashing",
        randomizer=local.LocalHashing(epsilon=1, domain=3),
        values=range(3),
        wrong=CODES,
        outside=0,
    ),
    RandomizerCase(
        name="hadamard, one block",
        randomizer=local.HadamardResponse(epsilon=1, domain=3, blocks=1),
        values=range(3),
        wrong=CODES,
        outside=0,
    ),
    RandomizerCase(
        name="hadamard, two blocks",
        randomizer=local.HadamardResponse(epsilon=2, domain=3, blocks=2),
        values=range(3),
        wrong=CODES,
        outside=0,
    ),
    RandomizerCase(
        name="design", randomizer=local.DesignResponse(design=DESIGN), values=range(3), wrong=CODES, outside=0
    ),
    RandomizerCase(
        name="long term",
        randomizer=local.LongTermResponse(epsilon=2, first_epsilon=1, domain=3),
        values=range(3),
        wrong=CODES,
        outside=0,
    ),
    RandomizerCase(
        name="duchi", randomizer=local.DuchiMean(**SMALL), values=POINTS, wrong=NUMBERS, outside=-1
    ),
    RandomizerCase(
        name="piecewise", randomizer=local.PiecewiseMean(**SMALL), values=POINTS, wrong=NUMBERS, outside=-1
    ),
    RandomizerCase(
        name="hybrid", randomizer=local.HybridMean(**SMALL), values=POINTS, wrong=NUMBERS, outside=-1
    ),
    RandomizerCase(
        name="laplace",
        randomizer=local.LaplaceMean(**SMALL),
        values=POINTS,
        wrong=NUMBERS,
        outside=-1,
        exact=False,
    ),
]
