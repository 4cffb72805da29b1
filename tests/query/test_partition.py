"""Partition selection: exactly private, exactly optimal, exactly drawn."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import InvalidInput, Public, Text, Unit
from discreet.core import choosing as partition
from discreet.query import Query
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import connect

prices = st.tuples(
    st.fractions(min_value=Fraction(1, 20), max_value=4, max_denominator=1000),
    st.integers(2, 40).map(lambda k: Fraction(1, 2**k)),
)


@settings(deadline=None, derandomize=True, max_examples=60, database=None)
@given(price=prices)
def test_showing_a_group_is_private_between_neighbors(price):
    """All four inequalities of (epsilon, delta)-indistinguishability, for every pair of sizes that differ by
    one, in rationals."""
    epsilon, delta = price
    table = partition.show_probabilities(epsilon=epsilon, delta=delta)
    with mpmath.workdps(60):
        low = mpmath.exp(mpmath.mpf(epsilon.numerator) / epsilon.denominator) * (1 - mpmath.mpf(10) ** -50)
        growth = Fraction(int(low * 2**150), 2**150)  # at most e^epsilon
    assert table[0] == 0
    assert table[-1] == 1
    for p, q in itertools.pairwise(table):
        assert q <= growth * p + delta
        assert p <= growth * q + delta
        assert 1 - q <= growth * (1 - p) + delta
        assert 1 - p <= growth * (1 - q) + delta


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 1e-5), (0.1, 1e-6), (2.5, 0.01), (0.5, 1e-9)])
def test_no_group_could_be_shown_more_often(epsilon, delta):
    """The closed form of Desfontaines, Voss & Gipson 2022, Theorem 1, to 30 digits."""
    table = partition.show_probabilities(epsilon=Fraction(epsilon), delta=Fraction(delta))
    with mpmath.workdps(60):
        e, d = mpmath.mpf(epsilon), mpmath.mpf(delta)
        cross = 1 + int(mpmath.floor(mpmath.log((mpmath.exp(e) + 2 * d - 1) / (d * (mpmath.exp(e) + 1))) / e))
        at_cross = (mpmath.exp(cross * e) - 1) / (mpmath.exp(e) - 1) * d
        for n, p in enumerate(table):
            if n <= cross:
                best = (mpmath.exp(n * e) - 1) / (mpmath.exp(e) - 1) * d
            else:
                m = n - cross
                best = (1 - mpmath.exp(-m * e)) * (1 + d / (mpmath.exp(e) - 1)) + mpmath.exp(
                    -m * e
                ) * at_cross
            best = min(best, mpmath.mpf(1))
            got = mpmath.mpf(p.numerator) / p.denominator
            assert got <= best * (1 + mpmath.mpf(10) ** -40)
            assert abs(got - best) <= mpmath.mpf(10) ** -25 * (1 + n)


def test_the_check_has_teeth():
    """A threshold one unit too low is not private."""
    epsilon, delta = Fraction(1), Fraction(1, 1000)
    table = partition.show_probabilities(epsilon=epsilon, delta=delta)[1:]
    assert any(
        q > Fraction(271828182846, 10**11) * p + delta
        for p, q in zip((Fraction(0), *table), table[1:], strict=False)
    )


def test_coins_follow_the_table():
    """Each size's share of shown groups within a Hoeffding bound at 1e-10."""
    epsilon, delta, n = Fraction(1, 2), Fraction(1, 50), 4000
    table = partition.show_probabilities(epsilon=epsilon, delta=delta)
    sizes = np.repeat(np.arange(len(table) + 3), n)
    shown = partition.select(sizes, epsilon=epsilon, delta=delta, entropy=SeededEntropy(3))
    slack = math.sqrt(math.log(2 / 1e-10) / (2 * n))
    for size in range(len(table) + 3):
        expected = float(table[min(size, len(table) - 1)])
        assert abs(shown[sizes == size].mean() - expected) <= slack
    assert not shown[sizes == 0].any()
    assert shown[sizes >= len(table) - 1].all()


def test_a_price_of_nothing_is_refused():
    with pytest.raises(InvalidInput, match="an epsilon and a delta above zero"):
        partition.show_probabilities(epsilon=Fraction(1), delta=Fraction(0))
    with pytest.raises(InvalidInput, match="more than"):
        partition.show_probabilities(epsilon=Fraction(1, 10**9), delta=Fraction(1, 10**12))


def test_a_huge_epsilon_takes_no_longer_than_a_large_one():
    """e to the 10^8 has 144 million bits; the chances are those of e to the 90."""
    huge = partition.show_probabilities(epsilon=Fraction(10**12), delta=Fraction(1, 10**6))
    assert huge == partition.show_probabilities(epsilon=Fraction(90), delta=Fraction(1, 10**6))
    assert huge[-3:] == (huge[1], 1 - Fraction(1, 2**128), 1)


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(37, 5)])
def test_the_bound_on_exp_is_below_and_close(x):
    with mpmath.workdps(80):
        exact = mpmath.exp(mpmath.mpf(x.numerator) / x.denominator)
        found = partition.exp_below(x)
        got = mpmath.mpf(found.numerator) / found.denominator
        assert got <= exact
        assert exact - got <= exact * mpmath.mpf(2) ** -100


def test_an_answer_without_any_private_group_says_from_how_many_units_on_one_is_shown():
    """False alarms: a group of one is shown with probability delta, 1e-6, or less."""
    public = Public(schema={"town": Text()}, table="t", unit=Unit("who", rows=1))
    source = connect({"who": [1], "town": ["a"]}, public)
    query = Query(sql="SELECT town, COUNT(*) AS n FROM t GROUP BY town", public=public, epsilon=1, delta=1e-6)
    answer = query(source, entropy=Entropy()).value
    needed = partition.units_always_shown(*query.question.selection)
    assert len(answer) == 0
    said = f"the groups were not declared: a group is always shown from {needed} units on, a smaller one with some"
    assert answer.notes[0] == "no group is shown (a unit is one who)"
    assert said in str(answer)
    assert not any("no group is shown" in note for note in query.preview().notes)
    many = query(connect({"who": range(99), "town": ["a"] * 99}, public), entropy=Entropy()).value
    assert len(many) == 1
    assert said in str(many)
    assert not any("no group is shown" in note for note in many.notes)
