"""Constants that no unread paper stands behind: prices found anew by looking at every case of small tables.

The shaky ladder is driven through all values of its noise, with their exact chances, and the law of what it
shows is compared between all neighboring tables.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from discreet import Halted, Public
from discreet import accounting as acc
from discreet._public import REPLACE, Categories
from discreet.adaptive import (
    AlphaInvesting,
    GeneralizedAlphaInvesting,
    Listed,
    Lord3,
    LordPlusPlus,
    ShakyLadder,
    Submission,
    leaderboard,
)
from discreet.adaptive.leaderboard import losses
from discreet.mechanisms import sparse_vector
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

REACH = 9  # of the noise: what lies beyond is counted against the check
ENTROPY = SeededEntropy(0)


def masses(scale: float) -> dict[int, float]:
    """The discrete Laplace law, cut off."""
    q = math.exp(-1 / scale)
    return {m: (1 - q) / (1 + q) * q ** abs(m) for m in range(-REACH, REACH + 1)}


@dataclass
class Enumerated:
    """A board whose noise is what we say: its own code, one value of the noise after another."""

    board: ShakyLadder
    monkeypatch: Any
    known: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.script: list[int] = []
        self.monkeypatch.setattr(sparse_vector, "draw", lambda scale, entropy: self.script.pop(0))
        # Who is wrong is computed once for each table and submission, not for each of thousands of noises.
        self.monkeypatch.setattr(leaderboard, "losses", functools.cache(losses))
        rounds = self.board.rounds
        assert rounds.value is not None
        self.threshold, self.query, self.value = (
            masses(float(s)) for s in (rounds.threshold, rounds.query, rounds.value)
        )

    def told(self, state: Any, source: Memory, submission: Submission, *noise: int) -> Any:
        self.script = list(noise)
        after, release = self.board.answer(state, source, submission, entropy=ENTROPY)
        return after, (release.value.score, release.value.improved, release.value.left)

    def one(
        self, state: Any, source: Memory, submission: Submission, wrong: int
    ) -> list[tuple[Any, Any, float]]:
        """State without noise of its own, what is shown, and its chance; the fresh noise of a new threshold
        comes later."""
        key = (tuple(sorted(state.items())), wrong)
        if key not in self.known:
            found: dict[Any, float] = {}
            above = 0.0
            for noise, chance in self.query.items():
                after, shown = self.told(state, source, submission, noise, 0, 0)
                if shown[1]:
                    above += chance
                else:
                    here = (tuple(sorted(after.items())), shown)
                    found[here] = found.get(here, 0.0) + chance
            for noise, chance in self.value.items() if above else ():
                after, shown = self.told(state, source, submission, REACH, 0, noise)
                here = (tuple(sorted(after.items())), shown)
                found[here] = found.get(here, 0.0) + above * chance
            self.known[key] = [(dict(after), shown, chance) for (after, shown), chance in found.items()]
        return self.known[key]

    def law(self, source: Memory, labels: tuple[int, ...], submissions: Any) -> dict[Any, float]:
        """The chance of every sequence of things shown."""
        self.script = [0]
        start = self.board.start(source, entropy=ENTROPY)
        now = {((), tuple(sorted({**start, "noise": z}.items()))): p for z, p in self.threshold.items()}
        for predictions in submissions:
            asked = Submission.of("a", dict(enumerate(predictions)))
            wrong = sum(a != b for a, b in zip(predictions, labels, strict=True))
            later: dict[Any, float] = {}
            for (history, state), chance in now.items():
                try:
                    outcomes = self.one(dict(state), source, asked, wrong)
                except Halted:
                    later[history, state] = later.get((history, state), 0.0) + chance
                    continue
                for after, shown, p in outcomes:
                    for z, q in self.threshold.items() if shown[1] else ((after["noise"], 1.0),):
                        key = ((*history, shown), tuple(sorted({**after, "noise": z}.items())))
                        later[key] = later.get(key, 0.0) + chance * p * q
            now = later
        law: dict[Any, float] = {}
        for (history, _), chance in now.items():
            law[history] = law.get(history, 0.0) + chance
        return law


def ladder(
    relation: Any, monkeypatch: Any, scale: Fraction = Fraction(1)
) -> tuple[Enumerated, dict[tuple[int, ...], Memory]]:
    """A board on two rows; `scale` shrinks the noise on the told score: a mutant."""
    public = Public(schema={"y": Categories([0, 1])}, neighbors=relation, size=2)
    board = ShakyLadder(public=public, target="y", id="id", epsilon=40, delta=0.05, step=0.4, budget=2)
    rounds = replace(board.rounds, value=board.rounds.value * scale)
    monkeypatch.setattr(ShakyLadder, "rounds", property(lambda self: rounds))
    tables = {
        labels: Memory({"id": np.arange(2), "y": np.array(labels)}, public)
        for labels in itertools.product((0, 1), repeat=2)
    }
    return Enumerated(board, monkeypatch), tables


def worst(found: Enumerated, tables: Any, sequences: Any, epsilon: float) -> tuple[float, float]:
    """The largest log ratio of likely outcomes, and the largest delta at `epsilon`, over all tables whose one
    row differs."""
    loss = delta = 0.0
    for submissions in sequences:
        laws = {labels: found.law(source, labels, submissions) for labels, source in tables.items()}
        for first, second in itertools.permutations(laws, 2):
            if sum(a != b for a, b in zip(first, second, strict=True)) != 1:
                continue
            p, q = laws[first], laws[second]
            loss = max(loss, *(math.log(p[o] / q[o]) for o in p if p[o] > 1e-4 and q.get(o, 0) > 0))
            delta = max(delta, sum(max(0.0, p[o] - math.exp(epsilon) * q.get(o, 0.0)) for o in p))
    return loss, delta


SEQUENCES = [((0, 0), (1, 0)), ((1, 1), (0, 1))]


def beyond(found: Enumerated) -> float:
    """The chance that any of the noise in two answers lies beyond REACH."""
    return 3 * (3 - sum(sum(law.values()) for law in (found.threshold, found.query, found.value)))


def test_the_shaky_ladder_costs_no_more_than_charged_over_all_values_of_its_noise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Every transcript of the board's own code, on every pair of neighboring tables of two rows: the price
    needs nobody's scales."""
    found, tables = ladder(REPLACE, monkeypatch)
    each = float(found.board.rounds.price(1, 1))
    loss, delta = worst(found, tables, SEQUENCES[:1], 40.0)
    assert beyond(found) < 0.01
    assert 0.5 * 2 * each < loss <= 2 * each + 0.01
    assert delta <= 0.05 + beyond(found)
    assert acc.epsilon(found.board.event, delta=0.05) <= 40


def test_the_enumeration_has_teeth_a_told_score_with_a_third_of_the_noise_costs_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, tables = ladder(REPLACE, monkeypatch, Fraction(1, 3))
    loss, _ = worst(found, tables, SEQUENCES[1:], 40.0)
    assert loss > acc.basic(found.board.event).value


# ------------------------------------------------------------------------------------------------ false discoveries


@pytest.mark.parametrize(
    "procedure",
    [
        AlphaInvesting(alpha=0.2, wealth=0.2, spending=Listed(terms=(0.25,) * 4)),
        LordPlusPlus(alpha=0.2, wealth=0.2, spending=Listed(terms=(0.25,) * 4)),
        Lord3(alpha=0.2, wealth=0.15, spending=Listed(terms=(0.5, 0.5))),
        GeneralizedAlphaInvesting(alpha=0.2, fraction=0.3),
        GeneralizedAlphaInvesting(alpha=0.2, fraction=0.3, power=0.6),
    ],
    ids=lambda p: f"{type(p).__name__}-{p.alpha}",
)
def test_false_discoveries_are_at_most_alpha_of_all_for_every_pattern_of_signals(procedure: Any) -> None:
    """Exactly, over all decisions: nulls are rejected with their level, signals with any chance up to the
    declared power.

    E[false] <= alpha E[max(all, 1)] (with all + 1 - alpha for generalized alpha-investing), and a mutant with
    twice the levels breaks it.
    """
    general = isinstance(procedure, GeneralizedAlphaInvesting)
    largest = procedure.power if general else 1.0
    for factor, holds in ((1.0, True), (2.0, False)):
        excess = []
        for pattern in itertools.product((0, 1), repeat=5):
            for power in (0.0, largest / 2, largest):
                false = every_one = 0.0
                for decisions in itertools.product((False, True), repeat=5):
                    stream, chance = procedure.start(), 1.0
                    for null, rejected in zip(pattern, decisions, strict=True):
                        p = min(1.0, factor * stream.level) if null else power
                        chance *= p if rejected else 1 - p
                        stream.record(rejected)
                    false += chance * sum(n and r for n, r in zip(pattern, decisions, strict=True))
                    every_one += chance * (
                        sum(decisions) + 1 - procedure.alpha if general else max(1, sum(decisions))
                    )
                excess.append(false - procedure.alpha * every_one)
        assert (max(excess) <= 1e-12) == holds
