"""Measured errors are the formulas': every oracle, over a grid, and the figures that were promised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from discreet import local
from discreet.local.hashing import ORACLES
from discreet.sampling import SeededEntropy

from ..loops import for_each

PEOPLE, DOMAIN, RUNS = 20_000, 128, 200
PROMISED = {
    "oue": (local.OptimalUnary(epsilon=1, domain=DOMAIN), 1.845e-4),
    "olh": (local.LocalHashing(epsilon=1, domain=DOMAIN, buckets=4), 1.851e-4),
    "hadamard": (local.HadamardResponse(epsilon=1, domain=DOMAIN, blocks=1), 2.34e-4),
    "subset": (local.SubsetSelection(epsilon=1, domain=DOMAIN), 1.809e-4),
}


def truth(people: int, domain: int, seed: int = 7) -> tuple[Any, Any]:
    """Values of a skewed population, and their true shares."""
    random = np.random.default_rng(seed)
    values = random.choice(domain, people, p=(w := 1 / np.arange(1, domain + 1)) / w.sum())
    return values, np.bincount(values, minlength=domain) / people


def errors(oracle: Any, values: Any, shares: Any, runs: int, seed: int = 1) -> Any:
    """The mean squared error of each of several runs."""
    entropy = SeededEntropy(seed)
    return np.array(
        [
            ((oracle.estimate(oracle.respond(values, entropy=entropy)).value - shares) ** 2).mean()
            for _ in range(runs)
        ]
    )


def assert_mean(found: Any, expected: float, deviations: float) -> None:
    assert abs(found.mean() - expected) <= deviations * found.std(ddof=1) / math.sqrt(len(found))


@pytest.mark.parametrize("name", PROMISED)
def test_the_formula_is_the_promised_figure(name: str) -> None:
    oracle, promised = PROMISED[name]
    assert oracle.mean_squared_error(PEOPLE) == pytest.approx(promised, rel=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("name", PROMISED)
def test_two_hundred_runs_are_within_three_standard_errors_of_the_formula(name: str) -> None:
    oracle, _ = PROMISED[name]
    values, shares = truth(PEOPLE, DOMAIN)
    found = errors(oracle, values, shares, RUNS)
    assert_mean(found, oracle.mean_squared_error(PEOPLE, shares), 3)


@pytest.mark.slow
def test_the_best_oracle_has_an_error_of_at_most_182_millionths() -> None:
    """Its expectation is 1.809e-4; the mean of 200 runs has a deviation of 0.016e-4, so one seed in four
    would be above."""
    oracle = local.best(epsilon=1, domain=DOMAIN, people=PEOPLE)
    assert oracle.mean_squared_error(PEOPLE) <= 1.82e-4
    values, shares = truth(PEOPLE, DOMAIN)
    assert errors(oracle, values, shares, RUNS, seed=2).mean() <= 1.82e-4


GRID = [(0.5, 10, 2000), (1, 16, 3000), (2, 40, 2000), (4, 9, 1500)]


@pytest.mark.parametrize(("epsilon", "domain", "people"), GRID)
@pytest.mark.parametrize("name", [*ORACLES, "long term"])
def test_the_error_is_the_formulas_over_a_grid(name: str, epsilon: float, domain: int, people: int) -> None:
    if name == "long term":
        oracle: Any = local.LongTermResponse(epsilon=2 * epsilon, first_epsilon=epsilon, domain=domain)
    else:
        oracle = ORACLES[name](epsilon=epsilon, domain=domain)
    values, shares = truth(people, domain)
    # 44 cases at 5.5 deviations of a mean of 60: a false alarm of the whole grid about once in 10**4 seeds,
    # and the seed is fixed
    assert_mean(errors(oracle, values, shares, 60), oracle.mean_squared_error(people, shares), 5.5)


def test_the_comparison_with_the_formula_has_teeth() -> None:
    """An oracle that claims the variance of an epsilon a tenth larger is caught."""
    oracle = local.HadamardResponse(epsilon=1, domain=16)
    values, shares = truth(3000, 16)
    with pytest.raises(AssertionError):
        assert_mean(
            errors(oracle, values, shares, 400),
            local.HadamardResponse(epsilon=1.2, domain=16).mean_squared_error(3000, shares),
            5.5,
        )


@for_each("domain", [2, 3, 5, 16, 100, 1000])
@for_each("epsilon", [0.1, 0.5, 1, 2, 4, 8])
def test_the_automatic_choice_is_never_worse_than_a_single_oracle(epsilon: float, domain: int) -> None:
    chosen = local.best(epsilon=epsilon, domain=domain, people=1000)
    for build in ORACLES.values():
        single = build(epsilon=epsilon, domain=domain)
        assert chosen.mean_squared_error(1000) <= single.mean_squared_error(1000) * (1 + 1e-9)


def test_the_automatic_choice_keeps_to_the_length_of_a_report() -> None:
    for bits in (8, 20, 64, 1000):
        chosen = local.best(epsilon=1, domain=100, people=1000, bits=bits)
        assert chosen.bits <= bits
        assert all(chosen.mean_squared_error(9) <= p.mean_squared_error * (1 + 1e-9) or p.bits > bits
                   for p in local.predictions(epsilon=1, domain=100, people=9))  # fmt: skip
    with pytest.raises(ValueError, match="Allow more bits"):
        local.best(epsilon=1, domain=100, people=1000, bits=3)


@pytest.mark.parametrize("name", ORACLES)
def test_estimates_are_unbiased_and_within_their_error(name: str) -> None:
    oracle = ORACLES[name](epsilon=1, domain=7)
    values, shares = truth(400, 7)
    entropy = SeededEntropy(3)
    releases = [oracle.estimate(oracle.respond(values, entropy=entropy)) for _ in range(300)]
    mean = np.mean([r.value for r in releases], axis=0)
    assert (np.abs(mean - shares) <= 5.5 * np.sqrt(oracle.variance(400, shares) / 300)).all()
    misses = sum(bool((np.abs(r.value - shares) > r.error(0.95)).any()) for r in releases)
    assert misses <= 15 + 5.5 * math.sqrt(15)
    low, high = releases[0].interval(0.95)
    assert (low < high).all()


@pytest.mark.parametrize("name", ORACLES)
def test_counting_by_transform_is_counting_one_by_one(name: str) -> None:
    oracle = ORACLES[name](epsilon=1.5, domain=21)
    reports = oracle.respond(truth(500, 21)[0], entropy=SeededEntropy(4))
    if name == "hadamard":
        signs = 2 * oracle.supported(reports).astype(int) - (
            reports.data[:, None] // oracle._block == np.arange(21) // (oracle._block - 1)
        )
        assert np.array_equal(signs.sum(axis=0), oracle.counts(reports))
    else:
        assert np.array_equal(oracle.supported(reports).sum(axis=0), oracle.counts(reports))
    if name == "hashing":
        assert np.array_equal(oracle.counts_of(reports, np.arange(21)), oracle.counts(reports))


def test_two_values_collide_under_exactly_one_in_as_many_hashes_as_there_are_buckets() -> None:
    oracle = local.LocalHashing(epsilon=1, domain=4)
    grid = np.array(np.meshgrid(np.arange(4), np.arange(4))).reshape(2, -1).T
    buckets = oracle.hash(grid[:, None, :], np.arange(4)[None, :])
    for x in range(4):
        for y in range(x):
            assert (buckets[:, x] == buckets[:, y]).mean() == 1 / 4


@pytest.mark.parametrize("build", [local.DuchiMean, local.PiecewiseMean, local.HybridMean, local.LaplaceMean])
@pytest.mark.parametrize("epsilon", [0.5, 1, 4])
def test_means_are_unbiased_with_the_variance_they_say(build: Any, epsilon: float) -> None:
    randomizer, entropy = build(epsilon=epsilon, low=-2, high=6, steps=64), SeededEntropy(5)
    for value in (-2, 1.3, 6):
        found = np.array(
            [
                randomizer.estimate(randomizer.respond(np.full(200, value), entropy=entropy)).value
                for _ in range(150)
            ]
        )
        spread = randomizer.variance(200, value)
        rounding = (8 / 64) ** 2 / 4 / 200
        assert abs(found.mean() - value) <= 5.5 * math.sqrt((spread + rounding) / 150)
        assert spread * 0.5 <= found.var(ddof=1) <= (spread + rounding) * 1.7
        assert (np.abs(found - value) <= randomizer.error(200, 1 - 1e-9)).all()


def test_variances_of_means_are_those_of_the_papers() -> None:
    """Wang et al. 2019, arXiv:1907.00782: Duchi's ((e+1)/(e-1))² at zero, the piecewise mechanism's equation
    for its worst case."""
    e, fine = math.e, {"epsilon": 1, "low": -1, "high": 1, "steps": 1 << 14}
    assert local.DuchiMean(**fine).variance(1) == pytest.approx(((e + 1) / (e - 1)) ** 2, rel=1e-6)
    root = math.exp(0.5)
    worst = 1 / (root - 1) + (root + 3) / (3 * (root - 1) ** 2)
    assert local.PiecewiseMean(**fine).variance(1) == pytest.approx(worst, rel=1e-3)
    assert local.HybridMean(**fine).variance(1) < min(
        local.DuchiMean(**fine).variance(1), local.PiecewiseMean(**fine).variance(1)
    )


@pytest.mark.parametrize("build", [local.PiecewiseMean, local.HybridMean, local.LaplaceMean, local.DuchiMean])
def test_the_variance_of_a_mean_counts_the_rounding_to_the_grid(build: Any) -> None:
    """At a large epsilon rounding is nearly all of it, and it was left out by the piecewise mechanism."""
    randomizer = build(epsilon=30, low=0, high=4, steps=4)
    for value in (0.5, 1.25, 2.0, 3.9):
        summands = randomizer._unbiased(
            randomizer.respond(np.full(20_000, value), entropy=SeededEntropy(3)).data
        )
        assert float(np.var(summands)) == pytest.approx(randomizer.variance(1, value), rel=0.06, abs=1e-3)
        assert randomizer.variance(1, value) <= randomizer.variance(1) * (1 + 1e-12)


def test_the_error_of_laplace_noise_counts_the_rounding_to_the_grid() -> None:
    """One step and little noise: a value in the middle is rounded up or down, deviation 1/2."""
    randomizer = local.LaplaceMean(epsilon=10, low=0, high=1, steps=1)
    assert randomizer.variance(1, 0.5) == pytest.approx(0.25, abs=1e-3)
    assert randomizer.error(100, 0.95) >= math.sqrt(0.25 / 100 / 0.05)
    # a noise so wide that 1 - exp(-1 / scale) has two digits left
    wide = local.LaplaceMean(epsilon=1e-9, low=0, high=1, steps=1 << 16)
    assert wide.variance(1) == pytest.approx(2e18, rel=1e-9)
