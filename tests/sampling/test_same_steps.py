"""The time of a draw must not go with its size: the same steps on integers of the same lengths, whatever the
bits are.

No clock is read here: an integer that writes down what is done with it shows the steps themselves
(tests/auditing reads the clock). Python's time for an operation on integers goes with how many digits of 30
bits they have.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet.sampling import Entropy, SeededEntropy, _noise, discrete_gaussian, discrete_laplace
from discreet.sampling._noise import _Narrow, _Shape, _Wide

from ..loops import for_each
from .checks import Scripted

MARGIN = _noise.MARGIN
BITS = 90


@settings(max_examples=150, deadline=None)
@given(st.sampled_from([30, 60, 90, 120, 300, 900]), st.data())
def test_the_logarithm_encloses(bits, data):
    length = bits - MARGIN
    some = st.integers(1, (1 << length) - 1)
    near = st.builds(
        lambda k, d: min(max((1 << k) + d, 1), (1 << length) - 1), st.integers(0, length), st.integers(-2, 2)
    )
    assert_encloses(_noise.logarithm(bits), data.draw(some | near))


def assert_encloses(log, prefix):
    low, high = log.enclose(prefix)
    with mpmath.workprec(2 * log.bits + 100):
        unit, length = mpmath.mpf(2) ** log.bits, log.bits - MARGIN
        ends = [
            -mpmath.log(mpmath.mpf(u) / mpmath.mpf(2) ** length) * unit + log.lift
            for u in (prefix + 1, prefix)
        ]
        assert low <= ends[0] <= ends[1] <= high
        assert high - low <= 3 * log.turns + 10 + 4 * (
            ends[1] - ends[0]
        )  # narrow enough to decide nearly all draws


def test_a_logarithm_that_is_a_little_off_does_not_enclose():
    """Mutants: the claims of the docstring are not to spare, the test sees a series too short and a constant
    that is off."""
    log = _noise.logarithm(BITS)
    short = dataclasses.replace(log, coefficients=log.coefficients[6:])
    shifted = dataclasses.replace(log, top=log.top - 4 * log.turns)
    for mutant, prefix in ((short, (1 << BITS - MARGIN) - 5), (shifted, (1 << BITS - MARGIN) // 3)):
        assert_encloses(log, prefix)
        with pytest.raises(AssertionError):
            assert_encloses(mutant, prefix)


# What is done with the bits of U, written down.


class Traced(int):
    """An integer that notes each operation with the number of digits of its arguments and of its result."""

    notes: list  # one for the class: what was done since it was emptied

    def __hash__(self):
        return int.__hash__(self)


def _digits(value) -> int:
    return -(-abs(int(value)).bit_length() // _noise.DIGIT)


def _traced(name):
    plain = getattr(int, name)

    @functools.wraps(plain)
    def method(self, other):
        result = plain(self, other)
        compared = isinstance(result, bool)
        lengths = [None if "shift" in name else _digits(other), None if compared else _digits(result)]
        Traced.notes.append((name, _digits(self), *lengths))
        return result if compared else Traced(result)

    return method


for _name in (
    "add",
    "sub",
    "mul",
    "floordiv",
    "lshift",
    "rshift",
    "radd",
    "rsub",
    "rmul",
    "eq",
    "ge",
    "le",
    "gt",
    "lt",
):
    setattr(Traced, f"__{_name}__", _traced(f"__{_name}__"))


class Given(SeededEntropy):
    """Hands out the given integers."""

    def __init__(self, *values):
        super().__init__(0)
        self.values = list(values)

    def integer(self, bits):
        return self.values.pop(0)


def uniforms(bits: int, n: int = 150) -> list[int]:
    """Prefixes from everywhere: U near 1, where the draw is 0, down to 2**-28, at -ln(U) = 19; and next to
    powers of two."""
    bits -= MARGIN
    sizes = np.random.default_rng(3).uniform(0, 19, n)
    spread = [int(mpmath.mpf(2) ** bits * mpmath.exp(-size)) for size in sizes.tolist()]
    edges = [(1 << bits - k) + d for k in range(1, 28) for d in (-1, 0, 1)]
    return [*spread, *edges, (1 << bits) - (1 << 40)]


def steps_of(draw, *values) -> tuple[int, tuple]:
    Traced.notes = []
    found = draw(Given(*(Traced(v) for v in values)))
    return int(found), tuple(Traced.notes)


RATES = [
    Fraction(1),
    Fraction(1, 10),
    Fraction(1, 10**4),
    Fraction(1, 10**9),
    Fraction(7, 2),
    Fraction(0.1) / 3,
    1 / (Fraction(1.1) * Fraction(10**6)),
    Fraction(10**30, 10**41 + 7),
    Fraction(1, 2**50 - 1),
    Fraction(1, 10**30),
]


def whole(rate):
    return rate.denominator // rate.numerator


@pytest.mark.parametrize("rate", RATES)
@pytest.mark.parametrize("minus", [0, 1])
def test_a_laplace_draw_takes_the_same_steps_whatever_it_is(rate, minus):
    lift = _noise.lift_one(whole(rate))
    values, steps = set(), set()
    for u in uniforms(_noise.working_bits(rate)):
        size, taken = steps_of(lambda entropy: _noise.geometric_one(rate, entropy, lift), u)
        if minus and size == lift:
            continue  # refused; the next attempt is another draw
        found, taken = steps_of(lambda entropy: _noise.laplace(rate, entropy, lift), u, minus)
        assert found - lift == (1 - 2 * minus) * (size - lift)
        values.add(found)
        steps.add(taken)
    assert len(values) >= 5
    assert len(steps) == 1
    assert len(next(iter(steps))) > 60


@pytest.mark.parametrize(
    "variance", [Fraction(1), Fraction(100), Fraction(3.3) ** 2, Fraction(1e9) ** 2, Fraction(1, 7)]
)
def test_an_attempt_at_a_gaussian_takes_the_same_steps_whatever_is_drawn(variance):
    """Accepted or not, large or small: the attempts look alike."""
    scale = math.isqrt(int(variance)) + 1
    lift, sizes, steps, kept = _noise.lift_one(scale), set(), set(), set()
    coins = uniforms(_noise.round_up(66), 40)[::6]
    for size in {int(x * scale) for x in np.linspace(0, 15, 24)}:
        for coin in coins:
            Traced.notes = []
            kept.add(_noise._accept(Traced(size + lift), scale, variance, Given(Traced(coin)), lift))
            steps.add(tuple(Traced.notes))
            sizes.add(size)
    assert kept == {False, True}
    assert len(sizes) >= 15
    assert len(steps) == 1


@pytest.mark.parametrize("rate", [Fraction(1), Fraction(1, 10**9), Fraction(1, 10**4)])
def test_without_the_lift_the_steps_tell_the_size(rate):
    """A mutant, and the reason for the lift."""
    prefixes = uniforms(_noise.working_bits(rate))
    assert len({steps_of(lambda entropy: _noise.geometric_one(rate, entropy, 0), u)[1] for u in prefixes}) > 1


def test_a_series_around_one_would_show_draws_near_zero():
    log = _noise.logarithm(BITS)
    one = dataclasses.replace(log, center=1 << BITS - MARGIN, top=3 * log.turns)
    notes = []
    for u in ((1 << BITS) // 13, (1 << BITS - MARGIN - 1) + (1 << 45)):
        Traced.notes = []
        one.enclose(Traced(u))
        notes.append(tuple(Traced.notes))
    assert notes[0] != notes[1]


# Many at once: the number of second looks does not tell how many were needed.


@for_each("chance", [0.0, 0.002, 0.05, 1.0])
@for_each("n", [0, 1, 5, 64, 3000])
def test_second_looks_are_as_many_whatever_is_open(n, chance):
    rng, found = np.random.default_rng(1), set()
    for share in (0, chance / 2, chance, min(1, 1.5 * chance)):
        open_ = rng.random(n) < share
        looks = _noise._second_look(open_, chance)
        assert len(set(looks.tolist())) == len(looks)
        assert set(np.flatnonzero(open_).tolist()) <= set(looks.tolist())
        found.add(len(looks))
    assert len(found) == 1
    assert found.pop() <= n


def test_more_open_draws_than_second_looks_are_all_looked_at():
    assert sorted(_noise._second_look(np.ones(5000, bool), 0.01).tolist()) == list(range(5000))


@pytest.mark.parametrize(
    "sampler",
    [
        _Narrow(_Shape(Fraction(0), Fraction(1, 10), signed=True)),
        _Narrow(_Shape(Fraction(1, 2), Fraction(0), signed=True)),
        _Wide(_Shape(Fraction(0), Fraction(1, 10**4), signed=True)),
    ],
)
def test_draws_in_the_tails_cost_no_more_bits(sampler):
    """Vectors of 200, the longest way for some of them: the bits asked for do not tell how many were in the
    tails."""
    asked = set()
    for seed in range(100):
        entropy = Scripted(seed=seed)
        sampler._fill(np.empty(200, np.int64), entropy)
        asked.add(entropy.drawn)
    assert len(asked) == 1


@pytest.mark.parametrize("draw", [discrete_laplace, discrete_gaussian])
@pytest.mark.parametrize("scale", [3, 1e5])
def test_looking_twice_changes_no_draw_that_was_settled(draw, scale, monkeypatch):
    """With only the needed second looks, the draws that were settled at once are the same; the others use
    other bits."""
    looked = []
    padded = _noise._second_look

    def watched(open_, chance):
        looked.append(open_.copy())
        return padded(open_, chance)

    monkeypatch.setattr(_noise, "_second_look", watched)
    with_padding = draw(scale, 3000, SeededEntropy(4))
    settled = ~looked[0]
    monkeypatch.setattr(_noise, "_second_look", lambda open_, chance: np.flatnonzero(open_))
    without = draw(scale, 3000, SeededEntropy(4))
    assert settled.sum() > 2000
    assert (with_padding[settled] == without[settled]).all()


@pytest.mark.parametrize("scale", [0.01, 1, 31, 5000])
def test_bisection_finds_what_a_search_finds(scale):
    shape = _Shape(Fraction(0), 1 / Fraction(scale), signed=True)
    table = (_Wide(shape) if shape.shift >= 0 else _Narrow(shape)).table
    drawn = np.concatenate(
        [Entropy().words(2000), table.lows[:-1] - np.uint64(1), table.highs[:-1] + np.uint64(1)]
    )
    drawn = np.append(drawn[np.isin(drawn, np.append(table.lows, table.highs), invert=True)], np.uint64(0))
    assert (table.resolve(drawn, Entropy()) == np.searchsorted(table.lows, drawn, side="right")).all()
