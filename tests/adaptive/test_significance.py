"""p-values of private tests: super-uniform where the null is true, small where it is clearly false, and they
count their own noise."""

from __future__ import annotations

import functools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from scipy import stats

from discreet import REPLACE, ZERO_OUT, Boolean, Bounds, Budget, Categories, Public, Unit
from discreet import accounting as acc
from discreet import open as open_session
from discreet._errors import DiscreetError, InvalidInput, PrivateFact, Unsupported
from discreet._registry import from_json, to_json
from discreet.adaptive import significance
from discreet.adaptive.significance import (
    CrossCounts,
    GoodnessOfFitTest,
    GroupSums,
    IndependenceTest,
    ProportionTest,
    TestResult,
    TwoSampleMeanTest,
    YesNo,
)
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

from ..loops import for_each

FALSE_ALARM = 1e-9
SCHEMA = {
    "x": Bounds(0, 10),
    "y": Bounds(0, 10),
    "arm": Categories(["a", "b"]),
    "site": Categories(["p", "q", "r"]),
    "ill": Boolean(),
}
FREE = Public(schema=SCHEMA)
N, RUNS = 200, 300


def table(random: np.random.Generator, public: Public = FREE, effect: float = 0.0, n: int = N) -> Memory:
    """All columns independent of each other; with an effect, everything depends on the arm."""
    arm = random.integers(0, 2, n)
    x = np.clip(random.normal(5 + effect * (arm - 0.5), 2, n), 0, 10)
    return Memory(
        {
            "x": x,
            "y": np.clip(random.normal(5, 2, n) + effect * (x - 5), 0, 10),
            "arm": np.array(["a", "b"])[arm],
            "site": np.array(["p", "q", "r"])[
                np.where(random.random(n) < effect / 4, arm, random.choice(3, n, p=[0.5, 0.3, 0.2]))
            ],
            "ill": random.random(n) < 0.3 + 0.2 * min(effect, 1),
        },
        public,
    )


def kinds(public: Public, epsilon: float) -> dict[str, object]:
    ours = {"public": public, "epsilon": epsilon}
    return {
        "proportion": ProportionTest(**ours, column="ill", chance=0.3),
        "proportion, greater, trials known": ProportionTest(
            **ours, column="ill", chance=0.3, alternative="greater", trials=N
        ),
        "proportion, two-sided, trials known": ProportionTest(**ours, column="ill", chance=0.3, trials=N),
        "goodness of fit": GoodnessOfFitTest(**ours, column="site", shares=(0.5, 0.3, 0.2), runs=199),
        "independence": IndependenceTest(**ours, first="arm", second="site", runs=199),
        "two-sample mean": TwoSampleMeanTest(**ours, column="x", group="arm", step=Fraction(1, 4), runs=199),
    }


def pvalues(test, seed: int, effect: float = 0.0, runs: int = RUNS, n: int = N) -> np.ndarray:
    entropy = SeededEntropy(seed)
    return np.array(
        [test(source, entropy=entropy).value.pvalue for source in tables(seed, test.public, effect, runs, n)]
    )


@functools.lru_cache(maxsize=4)
def tables(seed: int, public: Public, effect: float, runs: int, n: int) -> list[Memory]:
    """The same tables for each kind of test, whose p-values are looked at one kind at a time."""
    random = np.random.default_rng(seed)
    return [table(random, public, effect, n) for _ in range(runs)]


def assert_super_uniform(found: np.ndarray) -> None:
    """No level is undercut more often than it says, beyond luck (one-sided Dvoretzky-Kiefer-Wolfowitz,
    Massart 1990)."""
    slack = math.sqrt(math.log(1 / FALSE_ALARM) / (2 * len(found)))
    ordered = np.sort(found)
    assert float((np.arange(1, len(found) + 1) / len(found) - ordered).max()) <= slack


NAMES = list(kinds(FREE, 1))


# Goodness of fit simulates its p-values as independence does, and takes a third of the time of all.
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "goodness of fit")) for n in NAMES]
)
def test_pvalues_of_true_nulls_are_super_uniform(name):
    assert_super_uniform(pvalues(kinds(FREE, 0.5)[name], 1))


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_pvalues_of_true_nulls_are_super_uniform_where_the_size_is_public(name):
    public = replace(FREE, neighbors=REPLACE, size=N)
    assert_super_uniform(pvalues(kinds(public, 1)[name], 2, runs=250))


def plain_binomial(count, n, chance, scale):
    return float(stats.binom.sf(count, n, chance)), float(stats.binom.pmf(count, n, chance))


def plain_tail(excess, low, high, chance, scale):
    return float(stats.norm.sf(excess / math.sqrt(max(1, (low + high) / 2) * chance * (1 - chance))))


IGNORANT = {  # the p-value as if there were no noise, the epsilon, and the number of rows
    "proportion, greater, trials known": ([(significance, "_binomial_tails", plain_binomial)], 0.05, N),
    "proportion": ([(significance, "_largest_tail", plain_tail)], 0.05, N),
    "goodness of fit": ([], 0.01, N),
    "independence": ([], 0.05, 1500),
    "two-sample mean": (
        [
            (significance, "FAILURE_PROBABILITY", 0.9),
            (significance, "conservative_pvalue", lambda p, allowance=0.0: p),
        ],
        0.05,
        6000,
    ),
}


# One count and one mean here; the others in `make test-all`.
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.slow] * (n not in ("proportion", "two-sample mean")))
        for n in IGNORANT
    ],
)
def test_the_check_has_teeth_pvalues_that_ignore_the_noise_fail_it(name, monkeypatch):
    changes, epsilon, n = IGNORANT[name]
    monkeypatch.setattr(significance, "simulated", lambda random, scale, shape: np.zeros(shape))
    for change in changes:
        monkeypatch.setattr(*change)
    with pytest.raises(AssertionError):
        assert_super_uniform(pvalues(kinds(FREE, epsilon)[name], 3, runs=150, n=n))


@pytest.mark.parametrize("name", NAMES)
def test_a_clear_effect_is_found(name):
    test = kinds(FREE, 3)[name]
    if name.endswith("known"):
        test = replace(test, trials=1500)
    found = pvalues(test, 4, effect=2, runs=10, n=1500)
    assert np.max(found) < 0.02


def test_with_the_trials_known_the_pvalue_is_exactly_uniform_at_every_size():
    """The law of the released pair, summed exactly: P(p <= a) = a up to the grid of the uniform part."""
    n, chance, scale = 5, 0.3, 1.5
    x, noise = np.arange(n + 1), np.arange(-60, 61)
    noise_masses = np.tanh(1 / (2 * scale)) * np.exp(-np.abs(noise) / scale)
    law = np.convolve(stats.binom.pmf(x, n, chance), noise_masses)
    for at, mass in zip(range(-60, 60 + n + 1), law, strict=True):
        above, here = significance._binomial_tails(at, n, chance, scale)
        assert here == pytest.approx(mass, rel=1e-9, abs=1e-15)
        assert above == pytest.approx(float(law[at + 60 + 1 :].sum()), rel=1e-7, abs=1e-12)


def test_the_tail_over_all_sizes_is_never_below_the_exact_one_and_not_far_above():
    chance, scale, n = 0.3, 2.0, 40
    noise = np.arange(-70, 71)
    masses = np.tanh(1 / (2 * scale)) * np.exp(-np.abs(noise) / scale)
    combined = (1 - chance) * noise[:, None] - chance * noise[None, :]
    weights = masses[:, None] * masses[None, :]
    for excess in (-3.0, 0.0, 2.5, 6.0, 12.0):
        exact = sum(
            float(stats.binom.pmf(x, n, chance))
            * float(weights[combined >= excess - (x - chance * n) - 1e-9].sum())
            for x in range(n + 1)
        )
        ours = significance._largest_tail(excess, n, n, chance, scale)
        assert exact <= ours * (1 + 1e-9)
        assert ours <= exact * 1.1
    wide = significance._largest_tail(6.0, 100, 160, chance, 40.0)
    fine = max(significance._largest_tail(6.0, k, k, chance, 40.0) for k in range(100, 161, 7))
    assert fine <= wide * 1.2


def test_prices_are_what_was_asked_for():
    for public in (FREE, replace(FREE, neighbors=REPLACE, size=N), replace(FREE, neighbors=ZERO_OUT, size=N)):
        for name, test in kinds(public, 0.5).items():
            spent = acc.basic(test.event)
            assert float(spent.value if hasattr(spent, "value") else spent) <= 0.5 + 1e-12, name
            assert from_json(to_json(test)) == test


def test_statistics_are_exact_and_skip_what_is_missing():
    public = Public(schema=SCHEMA)
    source = Memory(
        {
            "x": [1.0, None, 12.0, 4.0],
            "y": [1, 2, 3, 4],
            "arm": ["a", "a", "b", None],
            "site": ["p", "q", None, "r"],
            "ill": [True, None, False, True],
        },
        public,
    )
    assert YesNo(column="ill")(source).tolist() == [2, 1]
    assert YesNo(column="x", success=4)(source).tolist() == [2, 1]
    assert YesNo(column="arm", success="b")(source).tolist() == [1, 2]
    assert CrossCounts(first="arm", second="site")(source).tolist() == [1, 1, 0, 0, 0, 0]
    assert GroupSums(column="x", group="arm", groups=("b", "a"), power=2, center=5)(source).tolist() == [
        25,
        16,
    ]
    assert CrossCounts(first="arm", second="site").sensitivity(public).l1 == 1


def test_a_result_has_a_description():
    told = TestResult(statistic=1.5, pvalue=0.25, people=7)
    assert from_json(to_json(told)) == told


def test_what_cannot_be_told_is_one():
    """Next to no rows: no p-value pretends to know."""
    random = np.random.default_rng(7)
    for name in ("independence", "two-sample mean"):
        told = kinds(FREE, 0.5)[name](table(random, n=3), entropy=SeededEntropy(8)).value
        assert told.pvalue == 1


@for_each(
    ("make", "fact"),
    [
        (
            lambda: ProportionTest(public=FREE, column="ill", chance=0, epsilon=1),
            "chance must be strictly between 0 and 1",
        ),
        (
            lambda: ProportionTest(public=FREE, column="ill", chance=0.5, epsilon=0),
            "epsilon must be above zero",
        ),
        (
            lambda: ProportionTest(public=FREE, column="ill", success="yes", chance=0.5, epsilon=1),
            "success must be None: the column is true or false",
        ),
        (
            lambda: ProportionTest(public=FREE, column="arm", chance=0.5, epsilon=1),
            "success must be a declared category of column",
        ),
        (
            lambda: ProportionTest(public=FREE, column="x", chance=0.5, epsilon=1),
            "success must be the smallest number that counts as a success",
        ),
        # charged, and then the noise was too large for a float
        (
            lambda: ProportionTest(public=FREE, column="ill", chance=0.5, epsilon=1e-306),
            r"epsilon must be between 1e-100 and 1e\+100",
        ),
        (
            lambda: ProportionTest(public=FREE, column="ill", chance=0.5, epsilon=1, alternative="both"),
            "alternative must be",
        ),
        (
            lambda: ProportionTest(public=FREE, column="unknown", chance=0.5, epsilon=1),
            "x, y, arm, site, ill",
        ),
        (
            lambda: ProportionTest(
                public=Public(schema=SCHEMA, unit=Unit("who")), column="ill", chance=0.5, epsilon=1
            ),
            "the unit of privacy is all rows of",
        ),
        (
            lambda: GoodnessOfFitTest(public=FREE, column="site", shares=(0.5, 0.5), epsilon=1),
            "declared categories, and there are",
        ),
        (
            lambda: GoodnessOfFitTest(public=FREE, column="site", shares=(0.5, 0.5, 0.5), epsilon=1),
            "the shares add up to",
        ),
        (
            lambda: GoodnessOfFitTest(public=FREE, column="site", shares=(0.5, 0.5, 0), epsilon=1),
            r"shares\[2\] must be above zero",
        ),
        (
            lambda: IndependenceTest(public=FREE, first="arm", second="arm", epsilon=1),
            "first and second are the same column",
        ),
        (
            lambda: IndependenceTest(public=FREE, first="arm", second="x", epsilon=1),
            "is declared as a number",
        ),
        (
            lambda: IndependenceTest(public=FREE, first="arm", second="site", epsilon=1, runs=5),
            "runs must be an integer of at least 99",
        ),
        (
            lambda: TwoSampleMeanTest(public=FREE, column="x", group="site", epsilon=1, step=1),
            "groups must be 2 different categories",
        ),
        (
            lambda: TwoSampleMeanTest(public=FREE, column="x", group="arm", epsilon=1, step=100),
            "step must be such that the bounds are 1 to 1073741824 steps",
        ),
        (
            lambda: TwoSampleMeanTest(
                public=FREE, column="x", group="site", groups=("p", "z"), epsilon=1, step=1
            ),
            "groups must be declared categories of column",
        ),
    ],
)
def test_wrong_input_is_named(make, fact):
    with pytest.raises((InvalidInput, PrivateFact, Unsupported), match=fact) as caught:
        make()
    assert isinstance(caught.value, DiscreetError)


def test_a_test_asked_again_is_the_stored_release_and_free():
    session = open_session(
        table(np.random.default_rng(9)), budget=Budget(epsilon=3, delta=1e-6), ledger=":memory:"
    )
    test = TwoSampleMeanTest(public=session.public, column="x", group="arm", epsilon=1, step=1)
    told = session.ask(test).value
    spent = session.spent
    assert session.ask(test).value == told
    assert isinstance(told, TestResult)
    assert session.spent == spent > 0


@pytest.mark.parametrize("scale", [2.0**49, 2.0**51, 1e30, 1e300])
def test_simulated_noise_has_its_scale_where_64_bits_do_not_hold_it(scale):
    """numpy's geometric variables end at 2**63 - 1, so that simulated noise was 0 and p-values were small."""
    noise = significance.simulated(np.random.default_rng(0), scale, (2000,))
    # the median of |noise| is scale ln 2; each side fails with probability below 1e-9 (Hoeffding)
    for factor, low, high in ((0.8, 0.42, 1.0), (0.6, 0.0, 0.58)):
        share = float(np.mean(np.abs(noise) <= factor * scale))
        assert low <= share <= high


def test_the_common_mean_is_as_far_out_as_noise_on_sums_and_counts_allows(monkeypatch):
    """The noise on the counts was left out: 1000 over 200 rows may be 1000 over 100."""
    simulated = []
    monkeypatch.setattr(
        significance, "simulated", lambda random, scale, shape: np.broadcast_to([10.0, 0.0], shape)
    )
    monkeypatch.setattr(significance, "monte_carlo", lambda observed, null: simulated.append(null) or 1.0)
    measured = significance._Measured(np.full(2, 100.0), np.full(2, 500.0), np.zeros(2), (50, 0, 0), 10)
    test = TwoSampleMeanTest(public=FREE, column="x", group="arm", epsilon=1, step=1, runs=2000)
    test._pvalue(measured, np.random.default_rng(0))
    # (10 * 50 + 10) / (50 + 10) - 10 at a common mean of 10, -0.67 at one of 5; 2000 runs are off by 0.1
    assert np.median(simulated[0]) == pytest.approx(-1.5, abs=0.3)


@pytest.mark.parametrize("lower", [0, 3, 17, 100])
def test_goodness_of_fit_tries_numbers_of_people_that_no_noisy_count_decides(
    monkeypatch: pytest.MonkeyPatch, lower: int
) -> None:
    """The proof needs that which number stands for the true one is fixed: multiples of the stride, near each
    number that the noise allows. (They began where the noisy sum began.)"""
    tried: list[int] = []

    def record(self: object, counts: object, shares: object, people: int, *rest: object) -> float:
        tried.append(people)
        return 0.25

    monkeypatch.setattr(GoodnessOfFitTest, "_simulate", record)
    test = GoodnessOfFitTest(public=FREE, column="site", shares=(0.5, 0.3, 0.2), epsilon=0.05, runs=99)
    # at scale 40 every tenth number is tried, and a p-value stands for numbers 5 away
    _, pvalue = test._statistic_and_pvalue(np.ones(3), (lower, lower + 25), 40.0, np.random.default_rng(0))
    assert pvalue == pytest.approx(0.25 * math.exp(5 / 40))
    assert all(people % 10 == 0 for people in tried)
    assert all(min(abs(n - people) for people in tried) <= 5 for n in range(lower, lower + 26))


@pytest.mark.parametrize("alternative", ["less", "greater", "two-sided"])
def test_means_of_rare_values_give_valid_pvalues_at_every_level(alternative):
    """One row in a hundred has the value: a group of 40 has none in two of three tables. The noise is next to
    none, so that the p-value is a function of that number, whose distribution is known."""
    public = Public(schema={"x": Bounds(0, 1), "arm": Categories(["a", "b"])}, table="t")
    test = TwoSampleMeanTest(
        public=public, column="x", group="arm", epsilon=1000, step=1, alternative=alternative, runs=999
    )
    small, large, rare = 40, 4000, 40
    pvalues = []
    for count in range(7):
        rows = [1] * count + [0] * (small - count) + [1] * rare + [0] * (large - rare)
        source = Memory({"x": rows, "arm": ["a"] * small + ["b"] * large}, public)
        pvalues.append(test(source, entropy=SeededEntropy(count)).value.pvalue)
    chances = [math.comb(small, k) * 0.01**k * 0.99 ** (small - k) for k in range(7)]
    for level in (0.01, 0.05, 0.1, 0.25, 0.3, 0.4, 0.45, 0.5, 0.75, 0.9, 0.99):
        below = sum(chance for chance, p in zip(chances, pvalues, strict=True) if p <= level)
        # the other group is random, too, which is left out here
        assert below <= level + 0.02, level
