"""The private Benjamini-Hochberg procedure: its price, its rate of false discoveries, and what it finds."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from discreet import Categories, Public
from discreet import accounting as acc
from discreet._errors import InvalidInput
from discreet._registry import from_json, to_json
from discreet.adaptive import Binomial, Hypothesis
from discreet.adaptive.private_bh import PrivateBenjaminiHochberg, strict_level
from discreet.mechanisms import Component, Histogram
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

from ..loops import for_each

M, N, SIGNALS = 25, 1000, 5
PUBLIC = Public(schema={f"c{i}": Categories([1, 0]) for i in range(M)})
NULL = Binomial(trials=N, chance=0.5)
ASKED = tuple(
    Hypothesis(statistic=Component(statistic=Histogram(column=f"c{i}"), index=0), null=NULL) for i in range(M)
)


def procedure(**more) -> PrivateBenjaminiHochberg:
    terms = {
        "public": PUBLIC,
        "hypotheses": ASKED,
        "alpha": 0.1,
        "epsilon": 2,
        "delta": 1e-6,
        "candidates": 6,
    }
    return PrivateBenjaminiHochberg(**(terms | more))


def table(random: np.random.Generator, share: float) -> Memory:
    """The first columns have this share of ones, all others one half."""
    return Memory(
        {f"c{i}": (random.random(N) < (share if i < SIGNALS else 0.5)).astype(int) for i in range(M)}, PUBLIC
    )


def runs(test: PrivateBenjaminiHochberg, share: float, count: int, seed: int) -> tuple[float, float]:
    """The mean share of false discoveries, and of signals found."""
    random, entropy = np.random.default_rng(seed), SeededEntropy(seed)
    false, found = [], []
    for _ in range(count):
        rejected = test(table(random, share), entropy=entropy).value.rejected
        signals = SIGNALS if share != 0.5 else 0
        false.append(sum(i >= signals for i in rejected) / max(1, len(rejected)))
        found.append(sum(i < signals for i in rejected) / SIGNALS)
    return float(np.mean(false)), float(np.mean(found))


RUNS = 60
LUCK = math.sqrt(math.log(1e9) / (2 * RUNS))  # Hoeffding, one false alarm in a billion


def test_with_signals_the_false_discovery_rate_holds_and_signals_are_found():
    false, found = runs(procedure(), 0.75, RUNS, 1)
    assert false <= 0.1 + LUCK
    assert found >= 0.8


def test_under_the_global_null_hardly_anything_is_rejected():
    assert runs(procedure(), 0.5, RUNS, 2)[0] <= 0.1 + LUCK


def test_the_check_has_teeth_pvalues_that_ignore_the_noise_fail_it(monkeypatch):
    scores, _, masses = procedure()._table(ASKED[0])
    plain = lambda self, hypothesis, told: float(masses[scores >= told].sum())  # noqa: E731
    monkeypatch.setattr(PrivateBenjaminiHochberg, "_pvalue", plain)
    assert runs(procedure(epsilon=0.5), 0.5, RUNS, 3)[0] > 0.1 + LUCK


def test_pvalues_of_what_was_told_are_exact():
    """P(q <= a) <= a for the law of evidence plus noise, summed exactly over a small law."""
    one = procedure(hypotheses=ASKED[:1], candidates=1, epsilon=4, delta=None)
    scores, _, masses = one._table(ASKED[0])
    scale = float(one.noise.scale)
    noise = np.arange(-int(40 * scale), int(40 * scale) + 1)
    weights = np.tanh(1 / (2 * scale)) * np.exp(-np.abs(noise) / scale)
    for told in (-2000, 0, 1500, 4000):
        tail = sum(
            mass * weights[noise >= told - s].sum()
            for s, mass in zip(scores, masses, strict=True)
            if mass > 1e-18
        )
        assert one._pvalue(ASKED[0], told) == pytest.approx(tail, rel=1e-6, abs=1e-12)


def test_one_person_moves_no_evidence_by_more_than_is_paid_for():
    for score in ("z", "log p"):
        test = procedure(score=score)
        scores, _, _ = test._table(ASKED[0])
        assert int(np.max(np.diff(scores))) == test.grid_sensitivity


def test_the_price_is_what_was_asked_for():
    pure = procedure(delta=None)
    assert acc.epsilon(pure.event, delta=0, accountant="basic") <= 2 + 1e-12
    assert acc.epsilon(procedure().event, delta=1e-6, accountant="zcdp") <= 2
    assert acc.epsilon(procedure().event, delta=1e-6) <= 2


def test_the_strict_level_solves_its_equation():
    for alpha in (0.01, 0.05, 0.2, 0.9):
        level = strict_level(alpha)
        assert level * (1 - math.log(level)) == pytest.approx(alpha, rel=1e-9)
        assert level * (1 - math.log(level)) <= alpha
    assert procedure(strict=False).level == 0.1


def test_the_papers_shift_finds_no_more_than_noise_in_the_pvalue_does():
    theirs = runs(procedure(paper=True, score="log p", floor=1e-30, epsilon=10), 0.75, 8, 4)[1]
    ours = runs(procedure(epsilon=10), 0.75, 8, 4)[1]
    assert theirs <= ours
    assert ours == 1


@for_each(
    ("more", "fact"),
    [
        ({"hypotheses": ()}, "hypotheses must not be empty"),
        ({"hypotheses": ("x",)}, r"hypotheses\[0\] must be a Hypothesis\(statistic="),
        ({"candidates": 0}, "candidates must be an integer of at least 1"),
        ({"candidates": M + 1}, "candidates must be at most the 25 hypotheses"),
        ({"alpha": 0}, "alpha must be strictly between 0 and 1"),
        ({"epsilon": 0}, "epsilon must be above zero"),
        ({"delta": 0.0}, "delta must be strictly between 0 and 1"),
        ({"score": "p"}, "score must be"),
        ({"paper": True}, "the paper.s thresholds are for score"),
        ({"floor": 0}, "floor must be strictly between 0 and 1"),
        (
            {"hypotheses": (Hypothesis(statistic=Histogram(column="c0"), null=NULL),), "candidates": 1},
            "the statistic has several values",
        ),
    ],
)
def test_wrong_input_is_named(more, fact):
    with pytest.raises(InvalidInput, match=fact):
        procedure(**more)


def test_it_has_a_description():
    test = procedure()
    assert from_json(to_json(test)) == test
    assert replace(test, alpha=0.2) != test
