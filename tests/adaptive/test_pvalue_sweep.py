"""P(p <= alpha) <= alpha where p-values are hardest: few rows, ties, rare cells, groups of very different
sizes, little noise.

Slack: each rate is of `RUNS` independent tables; it may exceed its level by the one-sided binomial bound of a
false alarm of 1e-6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from scipy import stats

from discreet import Boolean, Bounds, Categories, Public
from discreet.adaptive import significance
from discreet.adaptive.significance import (
    FAILURE_PROBABILITY,
    GoodnessOfFitTest,
    IndependenceTest,
    ProportionTest,
    TwoSampleMeanTest,
    simulated,
)
from discreet.mechanisms.noise import laplace_sum_error
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

SCHEMA = {
    "x": Bounds(0, 10),
    "y": Bounds(0, 10),
    "arm": Categories(["a", "b"]),
    "site": Categories(["p", "q", "r"]),
    "ill": Boolean(),
}
PUBLIC = Public(schema=SCHEMA)
RUNS, FALSE_ALARM = 150, 1e-6
LEVELS = (0.01, 0.05, 0.1, 0.25)
Draw = Callable[[np.random.Generator, int], Any]
LAWS: dict[str, Draw] = {
    "normal": lambda r, n: np.clip(r.normal(5, 2, n), 0, 10),
    "rare": lambda r, n: 10.0 * (r.random(n) < 0.02),
    "ties": lambda r, n: 10.0 * (r.random(n) < 0.5),
}


def rates(test: Any, make: Callable[[np.random.Generator], dict[str, Any]], seed: int = 0) -> list[int]:
    """How often the p-value is at most each level, for tables of a true null."""
    random, entropy = np.random.default_rng(seed), SeededEntropy(seed)
    pvalues = [test(Memory(make(random), PUBLIC), entropy=entropy).value.pvalue for _ in range(RUNS)]
    return [int(np.count_nonzero(np.array(pvalues) <= level)) for level in LEVELS]


def assert_valid(counts: list[int], runs: int = RUNS) -> None:
    for count, level in zip(counts, LEVELS, strict=True):
        assert count <= stats.binom.ppf(1 - FALSE_ALARM, runs, level), (counts, LEVELS)


def _rows(
    random: np.random.Generator, n1: int, n2: int, law: str, shares: tuple[float, ...] = (0.4, 0.3, 0.3)
) -> Any:
    n = n1 + n2
    return {
        "x": LAWS[law](random, n),
        "y": LAWS[law](random, n),
        "arm": ["a"] * n1 + ["b"] * n2,
        "site": random.choice(["p", "q", "r"], n, p=shares),
        "ill": random.random(n) < 0.02,
    }


RARE = [
    ((0.999, 0.0005, 0.0005), 1000, 10),
    ((0.98, 0.01, 0.01), 60, 8),
    ((0.9, 0.05, 0.05), 10, 20),
    ((0.4, 0.3, 0.3), 3, 2),
]


def fit_rates(epsilon: float, n: int, shares: tuple[float, ...], runs: int = 300) -> list[int]:
    """The same for noisy counts that are drawn directly: 300 tables in a second."""
    test = GoodnessOfFitTest(public=PUBLIC, column="site", shares=shares, epsilon=epsilon, runs=199)
    random, scale = np.random.default_rng(0), float(test.noise.scale)
    slack, pvalues = laplace_sum_error(test.noise.scale, 3, FAILURE_PROBABILITY), []
    for _ in range(runs):
        counts = random.multinomial(n, shares) + simulated(random, scale, (3,))
        people = int(counts.sum())
        pvalues.append(
            test._statistic_and_pvalue(counts, (max(0, people - slack), people + slack), scale, random)[1]
            + FAILURE_PROBABILITY
        )
    return [int(np.count_nonzero(np.array(pvalues) <= level)) for level in LEVELS]


@pytest.mark.parametrize(("shares", "n", "epsilon"), RARE)
def test_goodness_of_fit_with_rare_cells(shares: tuple[float, ...], n: int, epsilon: float) -> None:
    assert_valid(fit_rates(epsilon, n, shares), 300)


def test_one_size_alone_fails_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault that was mended: the null simulated at the largest possible number of people only."""
    monkeypatch.setattr(significance, "_MAX_DRAWS", 0)
    monkeypatch.setattr(significance, "_EXPECTED", 0.0)
    with pytest.raises(AssertionError):
        assert_valid(fit_rates(10, 1000, RARE[0][0]), 300)


@pytest.mark.slow
@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(("n1", "n2"), [(6, 200), (40, 300)])
@pytest.mark.parametrize("alternative", ["two-sided", "less"])
def test_means_of_few_and_of_rare_values(law: str, n1: int, n2: int, alternative: str) -> None:
    ours: dict[str, Any] = {
        "public": PUBLIC,
        "epsilon": 100,
        "step": 1,
        "runs": 199,
        "alternative": alternative,
    }
    test = TwoSampleMeanTest(**ours, column="x", group="arm")
    assert_valid(rates(test, lambda random: _rows(random, n1, n2, law)))


def mean_rates(n1: int, n2: int, rare: float, runs: int = 300) -> list[int]:
    """For values of 0 or 10 (steps from the middle: -5, 5) and hardly any noise: sums are drawn directly."""
    test = TwoSampleMeanTest(public=PUBLIC, epsilon=200, step=1, runs=199, column="x", group="arm")
    random, pvalues, sizes = np.random.default_rng(0), [], np.array([n1, n2], dtype=np.float64)
    for _ in range(runs):
        sums = 10.0 * random.binomial([n1, n2], rare) - 5 * sizes
        seen = significance._Measured(
            counts=sizes, sums=sums, squares=25 * sizes, noise_errors=(0, 0, 0), half_range=5
        )
        pvalues.append(test._pvalue(seen, random) + FAILURE_PROBABILITY)
    return [int(np.count_nonzero(np.array(pvalues) <= level)) for level in LEVELS]


@pytest.mark.parametrize(("n1", "n2"), [(6, 200), (31, 31), (40, 400), (100, 3000)])
@pytest.mark.parametrize("rare", [0.005, 0.02, 0.1, 0.5])
def test_means_of_rare_values_without_noise(n1: int, n2: int, rare: float) -> None:
    assert_valid(mean_rates(n1, n2, rare), 300)


def test_a_low_cut_off_and_no_unseen_rows_fail_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(significance, "_FEWEST", 5)
    monkeypatch.setattr(significance, "_UNSEEN", 0)
    with pytest.raises(AssertionError):
        assert_valid(mean_rates(6, 200, 0.1), 300)


@pytest.mark.slow
@pytest.mark.parametrize("n", [4, 60])
@pytest.mark.parametrize("shares", [(0.98, 0.01, 0.01), (0.4, 0.3, 0.3)])
def test_tables_and_proportions_with_rare_cells(n: int, shares: tuple[float, ...]) -> None:
    for test in (
        IndependenceTest(public=PUBLIC, first="arm", second="site", epsilon=20, runs=199),
        ProportionTest(public=PUBLIC, column="ill", chance=0.02, epsilon=20),
        ProportionTest(public=PUBLIC, column="ill", chance=0.02, epsilon=20, trials=n),
    ):
        assert_valid(rates(test, lambda random: _rows(random, n // 2, n - n // 2, "ties", shares)))
