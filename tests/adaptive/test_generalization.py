"""What privacy says about the population: closed forms, conditions, and that the bounds hold where they can
be watched."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from discreet import ADD_REMOVE, REPLACE, InvalidInput
from discreet import accounting as acc
from discreet.adaptive import generalization as gen
from discreet.sampling import SeededEntropy, discrete_laplace

from ..loops import for_each


def exact(beta: float) -> float:
    return 0.0


def test_posterior_is_the_formula_of_jung_and_others() -> None:
    """alpha + c + (e^epsilon - 1) + 2d at failure beta / c + delta / d, for the best c and d of a grid: never
    below the optimum."""
    alpha, epsilon, delta, failure = 0.01, 0.05, 1e-9, 0.05

    def sample_error(beta: float) -> float:
        return alpha if beta >= 1e-6 else math.inf

    got = gen.posterior(epsilon=epsilon, delta=delta, sample_error=sample_error, failure=failure)
    by_hand = min(
        alpha + 1e-6 / (failure - share) + math.expm1(epsilon) + 2 * delta / share
        for share in np.linspace(1e-4, failure - 1e-4, 2000)
    )
    assert by_hand <= got < by_hand + 1e-3


def test_without_delta_and_without_sample_error_the_price_alone_remains() -> None:
    got = gen.posterior(epsilon=0.1, delta=0.0, sample_error=exact, failure=1e-9)
    assert math.expm1(0.1) <= got < math.expm1(0.1) + 1e-6
    assert gen.posterior(epsilon=3, delta=0.0, sample_error=exact, failure=0.1) == 1.0


def test_max_information_of_nothing_is_hoeffding() -> None:
    n, failure = 10_000, 0.05
    got = gen.max_information(epsilon=0.0, n=n, sample_error=exact, failure=failure)
    assert (
        gen.fresh(n=n, answers=1, failure=failure) <= got < gen.fresh(n=n, answers=1, failure=failure / 2.1)
    )
    small, large = (
        gen.max_information(epsilon=e, n=n, sample_error=exact, failure=failure) for e in (1e-3, 0.1)
    )
    assert got < small < large < 0.2


def test_max_information_is_no_looser_than_the_papers_closed_form() -> None:
    """epsilon² n / 2 + epsilon sqrt(n ln(2/b) / 2), as in arXiv:1506.02629."""
    for n, epsilon, b in [(100, 0.01, 0.01), (10_000, 0.02, 1e-6), (1000, 0.5, 0.1)]:
        v = n * epsilon**2 / 4
        ours = v + math.sqrt(v * v + 2 * v * math.log(1 / b))
        assert ours <= epsilon**2 * n / 2 + epsilon * math.sqrt(n * math.log(2 / b) / 2)


def test_the_tilted_tail_of_the_proof_holds_for_a_sum_of_independent_shifts() -> None:
    """Worst case of the lemma, computed exactly: f moves by +-epsilon/2 a person, so X is a binomial; its
    tilted tail is below e^(t - t²/2v)."""
    n, epsilon = 60, 0.4
    v = n * epsilon**2 / 4
    k = np.arange(n + 1)
    weight = np.array([math.comb(n, int(i)) for i in k], dtype=float) / 2.0**n
    x = epsilon * (k - n / 2)
    for t in (v, v + 0.5, v + 1, v + 2, v + 4):
        assert (weight * np.exp(x))[x >= t].sum() / (weight * np.exp(x)).sum() <= math.exp(
            t - t * t / (2 * v)
        ) + 1e-12


def test_mutual_information_solves_its_inequality() -> None:
    n, rho, failure = 10_000, 1e-4, 0.05
    got = gen.mutual_information(rho=rho, n=n, sample_error=exact, failure=failure)
    p, q = failure * 0.99, 2 * math.exp(-2 * n * got**2)
    divergence = p * math.log(p / q) + (1 - p) * math.log((1 - p) / (1 - q))
    assert divergence >= n * rho * (1 - 1e-9)


def test_the_monitors_bound_is_below_eight_epsilon_where_the_first_transfer_theorem_says_eighteen() -> None:
    """Bassily et al. 2016, known with 18 epsilon: epsilon < 1/3, delta < epsilon / 4, n >= ln(4 epsilon /
    delta) / epsilon², chance delta / epsilon."""
    worst = 0.0
    for epsilon in (0.3333, *(10 ** (-k / 3) for k in range(2, 15))):
        for delta in (epsilon * 0.2499 * 10 ** (-j / 2) for j in range(16)):
            n = math.ceil(math.log(4 * epsilon / delta) / epsilon**2)
            worst = max(worst, gen._monitor(epsilon, delta, n, delta / epsilon) / epsilon)
    assert 1 < worst < 8


@pytest.mark.parametrize("failure", [0.3, 0.05, 1e-4])
def test_the_monitors_bound_follows_from_its_inequality_for_every_choice(failure: float) -> None:
    """Written out again: the least of the right-hand sides on a fine grid is no larger than what is claimed,
    and not much smaller."""
    epsilon, delta, n = 0.05, 1e-7, 30_000
    grid = [
        (math.exp(epsilon + e) - 1 + times * delta + 2 * math.log(2 * times) / (e * n))
        / (1 - (1 - failure) ** times)
        for e in np.geomspace(1e-4, 1, 200).tolist()
        for times in np.unique(np.geomspace(1, 100 / failure, 200).astype(int)).tolist()
    ]
    assert min(grid) <= gen._monitor(epsilon, delta, n, failure) * (1 + 1e-3) <= min(1.0, 1.05 * min(grid))


def gain_of_the_monitor(keep: float, extra: float, n: int = 3, times: int = 2) -> float:
    """How much more the query that the monitor points to has in its sample than in the population, on
    average, exactly.

    A person is a fair bit. Each sample of n is told with every bit kept with chance `keep`; the query is to
    equal the majority of what was told. The monitor sees `times` samples and points to one and its query at
    the price `extra`.
    """
    outcomes: dict[float, float] = {}  # chance of each deviation of one sample
    for bits in itertools.product((0, 1), repeat=n):
        for told in itertools.product((0, 1), repeat=n):
            chance = math.prod(keep if b == t else 1 - keep for b, t in zip(bits, told, strict=True)) / 2**n
            off = sum(b == (2 * sum(told) > n) for b in bits) / n - 0.5
            outcomes[off] = outcomes.get(off, 0.0) + chance
    gain = 0.0
    for found in itertools.product(outcomes.items(), repeat=times):
        scores = [off for off, _ in found]
        weights = [math.exp(extra * n * score / 2) for score in scores]
        mean = sum(w * s for w, s in zip(weights, scores, strict=True)) / sum(weights)
        gain += math.prod(chance for _, chance in found) * mean
    return gain


@pytest.mark.parametrize("epsilon", [0.01, 0.05, 0.1])
def test_a_monitor_cannot_point_far_from_the_population_unless_answers_are_exact(epsilon: float) -> None:
    """The step that carries the proof: at most e^(epsilon + extra) - 1 times the population mean, which is
    one half here."""
    keep = 1 / (1 + math.exp(-epsilon))  # randomized response, epsilon-DP when a person is replaced
    bound = math.expm1(2 * epsilon) / 2
    assert 0 < gain_of_the_monitor(keep, epsilon) <= bound
    assert gain_of_the_monitor(1.0, epsilon) > bound


def test_the_ladders_theorem_counts_histories() -> None:
    """As many functions as participants can choose, counted one by one; and no looser than the published
    exponent."""
    for levels, submissions in ((1, 1), (2, 3), (3, 4)):
        nodes = 0
        for t in range(submissions):
            nodes += sum(math.comb(levels, j) * math.comb(t, j) for j in range(levels + 1))
        assert nodes == math.comb(levels + submissions, levels + 1)
    for n, k, step in ((100_000, 1000, 0.05), (10**6, 10**4, 0.01), (5000, 10, 0.3)):
        got = gen.ladder_error(n=n, submissions=k, step=step, failure=0.05)
        m = math.floor(1 / step + 0.5) + 1
        assert 2 * math.comb(m + k, m + 1) * math.exp(-2 * n * (got - step) ** 2) == pytest.approx(
            0.05, rel=1e-4
        )
        published = math.sqrt(((1 / step + 2) * math.log(4 * k / step) + 1 + math.log(20)) / (2 * n)) + step
        assert got <= published


def test_best_is_the_least_of_all_and_never_above_one() -> None:
    cheap = acc.PureDP(epsilon=0.001, neighbors=REPLACE)
    found = gen.best(cheap, n=100_000, sample_error=exact)
    assert found.theorem == "Jung et al. 2020"
    assert found.radius == pytest.approx(0.001, rel=0.01)
    assert gen.best(acc.PureDP(epsilon=0.02, neighbors=REPLACE), n=5000, sample_error=exact).radius < 0.03
    assert gen.best(acc.PureDP(epsilon=9.0), n=10, sample_error=exact).radius == 1.0
    assert gen.best(acc.NonPrivate(), n=10**6, sample_error=exact).radius == 1.0
    gauss = acc.ZCDP(rho=1e-6, neighbors=REPLACE)
    assert gen.best(gauss, n=10**6, sample_error=exact).radius < 0.02


def test_adding_and_removing_is_charged_twice_for_replacing() -> None:
    one, two = (
        gen.best(acc.PureDP(epsilon=e, neighbors=n), n=10**5, sample_error=exact).radius
        for e, n in ((0.2, ADD_REMOVE), (0.4, REPLACE))
    )
    assert one == two


@for_each("bad", [-1, 0, 1, 1.5, math.nan, math.inf, None, "x", True])
def test_nonsense_is_refused(bad: Any) -> None:
    for function in (gen.max_information, gen.mutual_information):
        price = "epsilon" if function is gen.max_information else "rho"
        with pytest.raises(InvalidInput, match="failure must be"):
            function(**{price: 0.1, "n": 10, "sample_error": exact, "failure": bad})
    with pytest.raises(InvalidInput, match="confidence must be"):
        gen.best(acc.PureDP(epsilon=1), n=10, sample_error=exact, confidence=bad)
    with pytest.raises(InvalidInput, match="step must be"):
        gen.ladder_error(n=10, submissions=10, step=bad, failure=0.1)


def test_the_bound_holds_against_an_analyst_who_overfits_and_exact_answers_break_it() -> None:
    """Labels are coins; the analyst asks for the correlation of d attributes with them, and then for that of
    their signed sum.

    Noisy answers of a private mechanism stay within the bound in all of 100 runs; the sample itself does not.
    """
    n, d, epsilon, entropy, random = 400, 100, 0.25, SeededEntropy(3), np.random.default_rng(3)
    each = epsilon / (d + 1)

    def sample_error(beta: float) -> float:
        return math.log((d + 1) / beta) / (each * n)

    exact_off, private_off = [], []
    for _ in range(100):
        table = random.integers(0, 2, (n, d))
        sums = table.sum(axis=0)
        for noise, off in ((np.zeros(d), exact_off), (discrete_laplace(1 / each, d, entropy), private_off)):
            chosen = np.where(sums + noise > n / 2, 1, -1)
            vote = (table * 2 - 1) @ chosen > 0
            told = (
                vote.mean()
                if not noise.any()
                else vote.mean() + discrete_laplace(1 / each, 1, entropy)[0] / n
            )
            off.append(abs(min(max(told, 0.0), 1.0) - _truth(d)))
    bound = gen.best(acc.PureDP(epsilon=epsilon, neighbors=REPLACE), n=n, sample_error=exact).radius
    assert bound < 0.3
    assert np.mean(exact_off) > bound - 0.02 or np.mean(exact_off) > 0.18  # plain answers are far off
    limit = gen.best(acc.PureDP(epsilon=epsilon, neighbors=REPLACE), n=n, sample_error=sample_error).radius
    assert max(private_off) <= limit


def _truth(d: int) -> float:
    """The chance that a signed sum of d fair coins is above 0."""
    return (1 - math.comb(d, d // 2) / 2.0**d) / 2 if d % 2 == 0 else 0.5
