"""The three draws are exactly uniform, their odds never exceed exp(epsilon), and the package needs neither
duckdb nor torch."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from discreet import local
from discreet._errors import InvalidInput
from discreet.local import _base
from discreet.local.hashing import ORACLES
from discreet.sampling import SeededEntropy
from tests.contracts.randomizers import within

from ..loops import for_each
from ..mechanisms.laws import assert_law
from .test_javascript import FedEntropy


def test_the_room_is_imported_without_duckdb_or_torch() -> None:
    code = (
        "import sys\nfor name in ('duckdb', 'torch', 'sklearn', 'sqlglot', 'pandas', 'matplotlib'): "
        "sys.modules[name] = None\n"
        "from discreet import local, sampling\n"
        "oracle = local.best(epsilon=1, domain=8, people=10)\n"
        "print(len(oracle.estimate(oracle.respond([1, 2], entropy=sampling.Entropy())).value))"
    )
    assert (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        == "8\n"
    )


@pytest.mark.parametrize("bound", [2, 3, 5, 200])
def test_every_first_byte_gives_each_number_alike_or_is_refused(bound: int) -> None:
    """All 256 first bytes of a word, the rest zero: a number below the bound comes from as many of them as
    any other."""
    counts: Counter[int] = Counter()
    for byte in range(256):
        entropy = FedEntropy(bytes(7) + bytes([byte]) + bytes(8))
        value = int(_base.below(bound, 1, entropy)[0])
        if entropy.used == 8:
            counts[value] += 1
        else:
            assert byte >> (8 - (bound - 1).bit_length()) >= bound
    assert set(counts) == set(range(bound))
    assert len(set(counts.values())) == 1


@pytest.mark.parametrize("bound", [1, 7, 1000, (1 << 40) + 3, 1 << 52])
def test_numbers_are_below_their_bound(bound: int) -> None:
    values = _base.below(bound, 2000, SeededEntropy(1))
    assert values.min() >= 0
    assert values.max() < bound
    assert bound == 1 or abs(values.mean() / (bound - 1) - 0.5) < 0.06  # eight deviations


def test_draws_follow_their_laws() -> None:
    entropy = SeededEntropy(2)
    n = 4000
    fair = iter(_base.below(3, n, entropy).tolist())
    assert_law(lambda: next(fair), {0: 1 / 3, 1: 1 / 3, 2: 1 / 3}, n)
    biased = iter(_base.coin(2, 7, n, entropy).tolist())
    assert_law(lambda: next(biased), {True: 2 / 7, False: 5 / 7}, n)
    short = iter(_base.coins(np.full(n, 1 << 30), entropy).tolist())
    assert_law(lambda: next(short), {True: 1 / 4, False: 3 / 4}, n)
    row = iter(_base.choose([1, 1, 4], n, entropy).tolist())
    assert_law(lambda: next(row), {0: 1 / 4, 2: 3 / 4}, n)


def test_a_coin_that_is_off_is_caught() -> None:
    biased = iter(_base.coin(3, 7, 4000, SeededEntropy(3)).tolist())
    with pytest.raises(AssertionError):
        assert_law(lambda: next(biased), {True: 2 / 7, False: 5 / 7}, 4000)


@given(st.floats(1e-6, 40), st.integers(1, 1 << 20), st.integers(1, 1 << 20))
def test_odds_never_exceed_exp_epsilon_and_miss_it_by_little(epsilon: float, truth: int, other: int) -> None:
    a, b = _base.odds(epsilon, truth, other)
    assert a > b >= 1
    assert truth * a + other * b <= 1 << 52
    with mpmath.workdps(60):
        goal = mpmath.exp(mpmath.mpf(epsilon))
        assert mpmath.mpf(a) / b <= goal
        assert (mpmath.mpf(a) / b >= goal * (1 - mpmath.mpf(2) ** -28)) or truth * a + other * b > 1 << 50
    assert within(Fraction(a, b), epsilon)
    assert not within(Fraction(a, b) * Fraction(11, 10), epsilon) or truth * a + other * b > 1 << 50


@given(st.floats(1e-6, 60))
def test_small_shares_never_exceed_exp_epsilon(epsilon: float) -> None:
    q = _base.small_share(epsilon)
    with mpmath.workdps(60):
        assert mpmath.mpf(_base.COIN - q) / q <= mpmath.exp(mpmath.mpf(epsilon))
        assert q == 1 or mpmath.mpf(_base.COIN - q + 1) / (q - 1) > mpmath.exp(mpmath.mpf(epsilon))


@for_each("epsilon", [0, -1, float("inf"), float("nan"), "1", None, True, 1e-300])
@for_each("name", ORACLES)
def test_an_epsilon_that_cannot_be_had_is_refused(name: str, epsilon: object) -> None:
    with pytest.raises(InvalidInput, match="epsilon must be"):
        ORACLES[name](epsilon=epsilon, domain=5)


@for_each("domain", [1, 0, -3, 2.0, "5", None, (1 << 52) + 1])
@for_each("name", ORACLES)
def test_a_domain_that_is_none_is_refused(name: str, domain: object) -> None:
    with pytest.raises(InvalidInput, match="domain must be"):
        ORACLES[name](epsilon=1, domain=domain)


@for_each("epsilon", [1e-4, 50, 700, Fraction(1, 3), np.float32(0.5)])
@for_each("name", ORACLES)
def test_extreme_but_honest_parameters_work_and_stay_within_their_claim(name: str, epsilon: object) -> None:
    oracle = ORACLES[name](epsilon=epsilon, domain=6)
    assert within(oracle.ratio, oracle.epsilon)
    release = oracle.estimate(oracle.respond([0, 1, 5], entropy=SeededEntropy(1)))
    assert np.isfinite(release.value).all()
    assert np.isfinite(oracle.error(3))


@for_each("seed", range(20))
def test_numbers_below_several_bounds_are_those_drawn_one_by_one(seed):
    bounds = [1, 3, 100, 1, 2, 5, (1 << 40) + 1, 1]
    together, apart = SeededEntropy(seed), SeededEntropy(seed)
    assert _base.below_each(bounds, together) == [int(_base.below(b, 1, apart)[0]) for b in bounds]
    assert together.words(1) == apart.words(1)


@for_each("seed", range(20))
def test_a_single_subset_is_the_shuffle_of_many(seed):
    oracle = local.SubsetSelection(epsilon=1, domain=12)
    inside = np.array([seed % 2 == 0])
    alone = oracle._subsets(np.array([7]), inside, SeededEntropy(seed))[0]
    urn, entropy = list(range(11)), SeededEntropy(seed)
    for step in range(oracle.size - int(inside[0])):
        swapped = step + int(_base.below(11 - step, 1, entropy)[0])
        urn[step], urn[swapped] = urn[swapped], urn[step]
    others = [v + (v >= 7) for v in urn[: oracle.size - int(inside[0])]]
    assert alone.tolist() == others + [7] * int(inside[0])
