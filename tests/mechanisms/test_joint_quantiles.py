from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet._errors import InvalidInput
from discreet._public import ADD_REMOVE, REPLACE, Bounds, Public
from discreet.accounting import ExponentialMechanism as BoundedRange
from discreet.mechanisms import joint_quantiles
from discreet.mechanisms.joint_quantiles import JointQuantiles, draw_jointly
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

from ..loops import for_each
from .laws import assert_law, assert_rarely


def build(neighbors=ADD_REMOVE, *, top=3, qs=(Fraction(1, 4), Fraction(2, 3)), epsilon=1, step=1):
    public = Public(schema={"v": Bounds(0, top)}, neighbors=neighbors)
    return JointQuantiles(public=public, column="v", qs=qs, epsilon=epsilon, step=step)


def misfit(rows, answers, qs):
    """From the definition: rows in (o_{j-1}, o_j] against (q_j - q_{j-1}) n."""
    ends, aims = [-math.inf, *answers, math.inf], [Fraction(0), *map(Fraction, qs), Fraction(1)]
    return sum(
        abs(sum(a < v <= b for v in rows) - (q - p) * len(rows))
        for (a, b), (p, q) in zip(itertools.pairwise(ends), itertools.pairwise(aims), strict=True)
    )


def law(rows, mechanism, top, rate=None):
    unit = mechanism._widths()[0]
    rate = mechanism._exponential_mechanism().rate * unit if rate is None else rate
    terms = {}
    for answers in itertools.combinations_with_replacement(range(top + 1), len(mechanism.qs)):
        x = rate * misfit(rows, answers, mechanism.qs)
        terms[answers] = mp.exp(-mp.mpf(x.numerator) / x.denominator)
    total = mp.fsum(terms.values())
    return {answers: term / total for answers, term in terms.items()}


@pytest.mark.parametrize("rows", [[], [0, 1, 1, 3, 3, 3], [2] * 9])
@pytest.mark.parametrize("bits", [96, 2])  # at two bits a try, nearly every draw has to be refined
def test_joint_quantiles_follow_the_law_of_their_definition(rows, bits, monkeypatch):
    monkeypatch.setattr(joint_quantiles, "_BITS", bits)
    mechanism, entropy = build(epsilon=3), SeededEntropy(3)
    source = Memory({"v": np.array(rows, dtype=float)}, mechanism.public)
    assert_law(
        lambda: mechanism(source, entropy=entropy).value, law(rows, mechanism, 3), 1500 if bits > 2 else 500
    )


def test_the_law_check_has_teeth():
    rows, entropy = [0, 1, 1, 3, 3, 3], SeededEntropy(4)
    source = Memory({"v": np.array(rows, dtype=float)}, build().public)
    with pytest.raises(AssertionError):
        assert_law(
            lambda: build(epsilon=6)(source, entropy=entropy).value, law(rows, build(epsilon=3), 3), 1500
        )


@pytest.mark.parametrize("qs", [(Fraction(1, 2),), (Fraction(1, 4), Fraction(2, 3)), (0.1, 0.5, 0.9)])
@pytest.mark.parametrize("neighbors", [ADD_REMOVE, REPLACE])
@given(rows=st.lists(st.integers(0, 3), max_size=6), old=st.integers(0, 3), new=st.integers(0, 3))
@settings(max_examples=20, deadline=None)
def test_joint_quantiles_are_epsilon_dp_and_of_bounded_range_epsilon(qs, neighbors, rows, old, new):
    mechanism = build(neighbors, qs=qs)
    one, two = (law(r, mechanism, 3) for r in ([*rows, old], [*rows, new] if neighbors is REPLACE else rows))
    ratios = [mp.log(one[answers] / two[answers]) for answers in one]
    assert max(map(abs, ratios)) <= 1 + 1e-12
    assert max(ratios) - min(ratios) <= 1 + 1e-12
    assert mechanism.event == BoundedRange(epsilon=1, neighbors=neighbors)


def test_half_the_sensitivity_would_be_refuted():
    """Two answers in a wide gap hold the weight; a row beyond the gap draws them, and repels those that miss
    it."""
    mechanism = build(qs=(Fraction(1, 2),))
    double = 2 * mechanism._exponential_mechanism().rate * mechanism._widths()[0]
    one, two = (law(rows, mechanism, 400, double) for rows in ([1, 1], [1, 1, 400]))
    assert max(abs(mp.log(one[a] / two[a])) for a in one) > 1.5


def test_sensitivities_are_those_of_the_paper():
    deciles = tuple(Fraction(i, 10) for i in range(1, 10))
    assert Fraction(build(qs=deciles)._exponential_mechanism().sensitivity, 10) == Fraction(
        9, 5
    )  # 2 (1 - 1/10)
    assert Fraction(build(REPLACE, qs=deciles)._exponential_mechanism().sensitivity, 10) == 2


def test_the_misfit_stays_within_the_error_and_ranks_within_half_of_it():
    rows, qs = np.repeat(np.arange(1, 101), 2), (0.25, 0.5, 0.75)
    mechanism, entropy, n = build(top=100, qs=qs, epsilon=1), SeededEntropy(6), 60
    source, limit, failures, largest = (
        Memory({"v": rows.astype(float)}, mechanism.public),
        mechanism.error(0.9),
        0,
        0.0,
    )
    assert limit < 150
    for _ in range(n):
        answers = mechanism(source, entropy=entropy).value
        off = float(misfit(rows.tolist(), answers, [Fraction(str(q)) for q in qs]))
        assert (
            max(abs((rows <= a).sum() - q * 200) for a, q in zip(answers, qs, strict=True)) <= off / 2 + 1e-9
        )
        failures += off > limit  # the best possible misfit is 0 here
        largest = max(largest, off)
    assert_rarely(failures, n, 0.1)
    assert largest > limit / 20


def test_far_misfits_do_not_underflow():
    """All rows tie, so that every sequence misfits by thousands; the best are still told apart."""
    found = draw_jointly([0, 5000, 5000, 5000], 10, [1, 8, 1], Fraction(1), SeededEntropy(1))
    assert found[0] in (0, 1)
    assert found[1] >= 1


@for_each(
    "bad",
    [
        {"qs": ()},
        {"qs": (0.5, 0.2)},
        {"qs": (0, 0.5)},
        {"qs": (0.5, 1)},
        {"epsilon": 0},
        {"epsilon": math.inf},
        {"step": 0},
        {"top": 10**6},
    ],
)
def test_bad_parameters_are_refused(bad):
    with pytest.raises(InvalidInput):
        build(**bad)


def test_too_many_quantiles_are_refused_by_their_number() -> None:
    with pytest.raises(InvalidInput, match="at most 244 on a grid of 512 points, got '300 quantiles'"):
        build(top=511, qs=[Fraction(i, 301) for i in range(1, 301)])
