"""Attacks on bits, sums and clocks: they break what is usually written, and not what we ship."""

from __future__ import annotations

import itertools
import math
import random
import time
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

import discreet as dp
from discreet import Public, auditing, mechanisms, sampling, tables
from discreet._errors import InvalidInput
from discreet.sampling import _noise

from . import summation
from .timing import attack, clock, timing

SURE = 1 - 1e-9
KINDS = ("overflow", "rounding", "repeated rounding")


def numpy_laplace(scale, seed=0):
    rng = np.random.default_rng(seed)
    return lambda x: x + rng.laplace(scale=scale)


def ours(scale, step=Fraction(1, 64), seed=1):
    noise = mechanisms.GridLaplace(step=step, scale=Fraction(scale), sensitivity=Fraction(1))
    entropy = sampling.SeededEntropy(seed)
    return lambda x: noise(x, entropy=entropy)


def test_the_attack_recognizes_what_numpy_can_and_cannot_draw():
    rng = np.random.default_rng(7)
    draws = (3.0 + rng.laplace(scale=2.0, size=300)).tolist()
    assert all(auditing.explained(y, 3.0, 2.0) for y in draws)
    other = [auditing.explained(y, 0.0, 2.0) for y in draws]
    assert np.mean(other) < 0.75
    assert not any(auditing.explained(y, 3.0, 2.0) for y in (math.nan, math.inf, -math.inf))


@pytest.mark.parametrize("scale", [1, 10])
def test_mironovs_attack_breaks_numpys_laplace_noise(scale):
    found = auditing.floating_point_attack(
        numpy_laplace(scale), 1.0, 0.0, scale=scale, claim=1 / scale, runs=1500, confidence=SURE
    )
    assert found.refuted
    assert found.epsilon > 1.5 / scale


@pytest.mark.parametrize("scale", [1, 10])
def test_mironovs_attack_fails_against_our_noise(scale):
    found = auditing.floating_point_attack(
        ours(scale), 1.0, 0.0, scale=scale, claim=1 / scale, runs=1500, confidence=SURE
    )
    assert not found.refuted


def test_the_precision_attack_breaks_float_noise_of_any_law():
    """Laplace and logistic noise of scale 1 would both be 1-DP in real numbers."""
    rng = np.random.default_rng(2)
    for draw in (rng.laplace, rng.logistic):
        found = auditing.precision_attack(
            lambda x, draw=draw: x + draw(), 1.0, 0.0, claim=1.0, runs=2000, confidence=SURE
        )
        assert found.refuted


def test_the_precision_attack_fails_against_our_noise():
    found = auditing.precision_attack(ours(1), 1.0, 0.0, claim=1.0, runs=1500, confidence=SURE)
    assert not found.refuted
    outputs = [float(ours(1, seed=s)(0.5)) for s in range(50)]
    assert auditing.lowest_bit(outputs).min() >= -6  # nothing finer than the step leaves


def test_the_lowest_bit_is_that_of_the_binary_expansion():
    rng = np.random.default_rng(3)
    values = [*rng.normal(size=200).tolist(), 1.0, -0.375, 5e-324, 1.5 * 2.0**300]
    for value, bit in zip(values, auditing.lowest_bit(values).tolist(), strict=True):
        numerator, denominator = value.as_integer_ratio()
        assert (abs(numerator) & -abs(numerator)) / denominator == 2.0**bit
    assert auditing.lowest_bit([0.0, math.nan, math.inf]).tolist() == [1024] * 3


def in_order(values):
    """As a loop adds: one value after the other, in the column's own type."""
    return np.cumsum(values, dtype=values.dtype)[-1]


@pytest.mark.parametrize(
    ("kind", "at_least"), [("overflow", 30), ("rounding", 200), ("repeated rounding", 7)]
)
def test_a_sum_in_machine_numbers_moves_further_than_claimed(kind, at_least):
    found = summation.attempt(kind, in_order)
    assert found.succeeded
    assert found.factor > at_least


def test_repeated_rounding_grows_with_the_rows():
    few, many = (summation.repeated_rounding(n) for n in (1 << 10, 1 << 14))
    moved = [abs(float(in_order(p.first)) - float(in_order(p.second))) for p in (few, many)]
    assert moved[1] > 15 * moved[0]


@pytest.mark.parametrize("kind", KINDS)
def test_our_sum_moves_no_further_than_it_is_priced_for(kind):
    found = summation.attempt_on_ours(kind)
    assert not found.succeeded
    assert found.claimed > 0


@pytest.mark.parametrize("kind", KINDS)
def test_the_pairs_are_neighbors_within_their_bounds(kind):
    pair = summation.KINDS[kind]()
    assert (pair.first != pair.second).sum() == 1
    for column in (pair.first, pair.second):
        exact = [Fraction(v) for v in np.unique(column).tolist()]
        assert pair.lower <= min(exact)
        assert max(exact) <= pair.upper
    true = abs(
        sum(map(Fraction, pair.first.tolist()[:2000])) - sum(map(Fraction, pair.second.tolist()[:2000]))
    )
    assert true <= pair.claimed


def by_coin_flips(scale, seed=5):
    """The textbook's discrete Laplace noise: flip coins until one falls tails. Each flip takes its time."""
    rng, heads = random.Random(seed), math.exp(-1 / scale)

    def draw():
        while True:
            size = 0
            while rng.random() < heads:
                size += 1
            minus = rng.random() < 0.5
            if size or not minus:
                return -size if minus else size

    return draw


@pytest.mark.parametrize("scale", [3, 10, 100])
def test_the_clock_gives_away_noise_made_by_flipping_coins(scale):
    found = timing(by_coin_flips(scale), draws=2000)
    assert found.p_value < 1e-9
    assert found.correlation > 0.3
    assert found.explained > 0.2


@pytest.mark.parametrize(
    "scale",
    [1, 10**4, Fraction(33.3) / 3, 10**20, *(pytest.param(s, marks=pytest.mark.slow) for s in (10, 10**9))],
)
def test_the_clock_does_not_tell_the_size_of_our_laplace_noise(scale):
    """A false alarm in a billion, however busy the machine: see `timing`.
    tests/sampling/test_same_steps.py shows why."""
    entropy = sampling.Entropy()
    assert timing(lambda: sampling.discrete_laplace(scale, 1, entropy), draws=4000).p_value > 1e-9


@pytest.mark.parametrize("variance", [1, Fraction(3.3) ** 2, 10**18])
def test_the_clock_does_not_tell_the_size_of_our_gaussian_noise(variance):
    entropy = sampling.Entropy()
    found = timing(
        lambda: sampling.discrete_gaussian(sigma_squared=variance, n=1, entropy=entropy), draws=4000
    )
    assert found.p_value > 1e-9


def largest(draws) -> float:
    return float(np.abs(draws).max())


@pytest.mark.parametrize(("scale", "n"), [(10, 64), (10, 512), (10**4, 5)])
def test_the_clock_does_not_tell_the_largest_of_many_draws(scale, n):
    entropy = sampling.Entropy()
    found = timing(lambda: sampling.discrete_laplace(scale, n, entropy), draws=4000, magnitude=largest)
    assert found.p_value > 1e-9


def test_the_clock_tells_a_second_look_that_only_some_draws_take():
    """A mutant: those that 16 bits leave open are looked at again, and no others.

    They lie in the tails more often than not.
    """
    sampler = _noise._Narrow(_noise._Shape(Fraction(0), Fraction(1, 10), signed=True))
    entropy = sampling.Entropy()

    def draw():
        bins = entropy.shorts(64)
        found = sampler.values.take(bins).astype(np.int64)
        open_ = np.flatnonzero(found == _noise._UNDECIDED)
        if len(open_):
            prefixes = bins[open_].astype(np.uint64) << np.uint64(48) | entropy.words(
                len(open_)
            ) >> np.uint64(16)
            found[open_] = sampler._value(sampler.table.resolve(prefixes, entropy))
        return found

    assert timing(draw, draws=4000, magnitude=largest).p_value < 1e-9


def drifting(rng, n):
    """Times of a machine with other things to do: a slow drift, bursts that last, coarse ticks."""
    return (
        1000
        + np.floor(np.cumsum(rng.normal(size=n))) * 5
        + (rng.random(n // 20 + 1) < 0.3).repeat(20)[:n] * 4000
    )


def test_a_busy_machine_raises_no_more_false_alarms_than_stated():
    """p <= 0.05 in at most a twentieth of 400 attempts; 55 or more of them have probability below 1e-9."""
    rng = np.random.default_rng(8)
    found = [attack(np.rint(rng.laplace(0, 3, 200)), drifting(rng, 200))[1] for _ in range(400)]
    assert stats.binom.sf(54, 400, 0.05) < 1e-9
    assert sum(p <= 0.05 for p in found) < 55


@pytest.mark.parametrize(
    ("told", "question"),
    [
        (lambda v: 40 * np.abs(v), "large"),
        (lambda v: 400 * (np.abs(v) > 8), "very large"),
        (lambda v: 400 * (v == 0), "zero"),
        (lambda v: -400 * (v > 0), "positive"),
    ],
)
def test_the_attack_finds_what_the_times_tell(told, question):
    rng = np.random.default_rng(9)
    values = np.rint(rng.laplace(0, 3, 4000))
    best, p_value = attack(values, drifting(rng, 4000) + told(values))
    assert best == question
    assert p_value < 1e-9


def test_one_value_tells_nothing():
    same = timing(lambda: 3, draws=40)
    assert (same.correlation, same.explained, same.p_value) == (0, 0, 1)
    with pytest.raises(InvalidInput, match="draws must be an integer of at least 20"):
        timing(lambda: 1, draws=3)


USUAL, ODD = [float(i % 90) for i in range(400)], [float("nan"), 1e308]


def asking(values, sql, sessions=6):
    """The query on tables that were opened several times, in turns: neither is by chance the better placed
    one in memory."""
    opened = [
        dp.open(
            {"x": values, "g": ["a"] * len(values)},
            table="people",
            schema={"x": dp.Bounds(0, 100), "g": dp.Categories(["a", "b"])},
            unit=dp.rows(),
            budget=dp.Budget(epsilon=1000),
            ledger=":memory:",
            large_epsilon=True,
        )
        for _ in range(sessions)
    ]
    turns = itertools.cycle(opened)
    return lambda: next(turns).sql(sql, epsilon=1, fresh=True)


@pytest.mark.slow
@pytest.mark.parametrize("odd", ODD)
def test_the_time_of_a_query_does_not_tell_whether_an_odd_row_is_there(odd):
    """The same 400 people, and one more whose value is missing or huge.

    A false alarm in a billion; the test below shows the clock's teeth.
    """
    sql = "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM people GROUP BY g"
    found = clock(asking(USUAL, sql), asking([*USUAL, odd], sql), runs=120, confidence=SURE)
    assert found.advantage == 0
    assert found.first_ns > 0


def test_the_clock_tells_a_query_that_treats_one_row_by_itself():
    def slow_path(values):
        return sum(time.sleep(0.002) or 0.0 if v > 1e6 else v for v in values)

    found = clock(lambda: slow_path(USUAL), lambda: slow_path([*USUAL, 1e308]), runs=400, confidence=SURE)
    assert found.advantage > 0.3
    with pytest.raises(InvalidInput, match="runs must be an integer of at least 20"):
        clock(lambda: 1, lambda: 2, runs=3)


def test_unknown_kinds_and_bad_numbers_are_refused():
    with pytest.raises(InvalidInput, match="overflow, rounding"):
        summation.attempt("wrapping", in_order)
    with pytest.raises(InvalidInput, match="scale must be above zero"):
        auditing.floating_point_attack(lambda x: x, 1.0, 0.0, scale=0, claim=1)


def test_a_count_through_a_mechanism_resists_too():
    public = Public()
    one, none = (tables.Memory({"x": np.zeros(n)}, public) for n in (1, 0))
    count, entropy = mechanisms.noisy_count(public, epsilon=1), sampling.SeededEntropy(4)
    found = auditing.floating_point_attack(
        lambda source: count(source, entropy=entropy),
        one,
        none,
        scale=1,
        values=(1, 0),
        claim=1.0,
        runs=600,
        confidence=SURE,
    )
    assert not found.refuted
