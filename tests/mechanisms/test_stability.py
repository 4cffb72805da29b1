"""Stability: the median's windows and the mode's distance by brute force, exact failure probabilities, exact
laws; mutants must fail."""

from __future__ import annotations

import dataclasses
import itertools
import json
import math
from collections.abc import Iterator
from fractions import Fraction as F
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from scipy import stats

from discreet._errors import DescriptionError, DiscreetError, Halted, InvalidInput, PrivateFact, Unsupported
from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Categories, Neighbors, Public, Text, Unit
from discreet._registry import from_json, to_json
from discreet.accounting import ApproximateDP, DiscreteLaplace, PureDP
from discreet.mechanisms import (
    DistanceToInstability,
    PartMean,
    ProposeTestRelease,
    SampleAndAggregate,
    SmoothSensitivityMedian,
    StableMedian,
    StableMode,
    StableSparseVector,
    SubsampleAggregateStable,
    TrustedStable,
    enough_subsamples,
)
from discreet.mechanisms.arrow_columns import Ordered
from discreet.mechanisms.noise import exp_bounds, laplace_quantile, laplace_tail, log_above
from discreet.mechanisms.sample_aggregate import PartMode, read_units
from discreet.mechanisms.stability import SmoothNoise, polynomial_noise, smooth_noise
from discreet.sampling import SeededEntropy
from discreet.tables import Memory
from tests.contracts.audit import CountingEntropy, Untouchable

from ..loops import for_each
from .laws import assert_law, assert_rarely
from .sparse_enumeration import at_least, pmf

TOP = 3
TABLES = [t for n in range(6) for t in itertools.combinations_with_replacement(range(TOP + 1), n)]


def ordered(values: tuple[int, ...], top: int = TOP) -> Ordered:
    return Ordered(np.array(sorted(values), np.int64), 0, top)


def changes(values: tuple[int, ...], top: int = TOP) -> Iterator[tuple[int, ...]]:
    """All tables one addition, removal or replacement away."""
    for v in range(top + 1):
        yield tuple(sorted((*values, v)))
    for i in range(len(values)):
        rest = values[:i] + values[i + 1 :]
        yield rest
        for v in range(top + 1):
            yield tuple(sorted((*rest, v)))


# certified numbers


@for_each("scale", [F(1, 50), F(1), F(7, 3), F(1000), F(10**12)])
@for_each("p", [F(1, 3), F(1, 100), F(1, 10**9), F(1, 10**40)])
def test_quantiles_of_noise_are_the_smallest_that_their_tail_proves(scale: F, p: F) -> None:
    m = laplace_quantile(scale, p)
    assert laplace_tail(scale, m) <= p
    assert m == 1 or laplace_tail(scale, m - 1) > p
    assert float(laplace_tail(F(7, 3), 5)) == pytest.approx(
        math.exp(-15 / 7) / (1 + math.exp(-3 / 7)), rel=1e-14
    )


def test_exponentials_and_logarithms_are_enclosed() -> None:
    for x in (F(0), F(1, 10**9), F(1), F(0.1), F(700), F(20_000)):
        low, high = exp_bounds(x)
        assert low <= high < low * (1 + F(1, 2**100))
        assert float(x) > 700 or float(low) == pytest.approx(math.exp(x), rel=1e-14)
    for x in (F(1), F(3), F(10**300), F(10**9 + 1, 10**9)):
        assert exp_bounds(F(log_above(x)))[0] >= x
        assert log_above(x) <= math.log(x) * (1 + 1e-12) + 1e-15


# the windows around a median


def test_one_change_moves_a_median_by_at_most_the_first_window_under_every_relation() -> None:
    for table in TABLES:
        here = ordered(table)
        assert all(abs(ordered(near).median - here.median) <= here.widest(0) for near in changes(table))


def test_windows_grow_by_one_step_between_neighbors() -> None:
    for table in TABLES:
        here = ordered(table)
        for near in changes(table):
            assert all(here.widest(k) <= ordered(near).widest(k + 1) for k in range(len(table) + 1))


def test_windows_are_exact_for_odd_tables_under_replace() -> None:
    """Nissim, Raskhodnikova & Smith 2007: the largest local sensitivity within k replacements."""
    tables = [t for t in TABLES if len(t) == 5]

    def local(t: tuple[int, ...]) -> int:
        return max(abs(ordered(u).median - ordered(t).median) for u in changes(t) if len(u) == len(t))

    def apart(a: tuple[int, ...], b: tuple[int, ...]) -> int:
        return len(a) - sum(min(a.count(v), b.count(v)) for v in set(a))

    sensitivities = {t: local(t) for t in tables}
    for table in tables[::3]:
        for k in range(3):
            assert ordered(table).widest(k) == max(
                s for t, s in sensitivities.items() if apart(table, t) <= k
            )


def test_a_window_that_is_too_short_is_caught() -> None:
    """Mutant: the sensitivity of the median itself, with the next window forgotten."""
    assert any(ordered(t).widest(0) > ordered(u).widest(0) for t in TABLES for u in changes(t))


def test_distance_and_smooth_sensitivity_by_their_definitions() -> None:
    rng = np.random.default_rng(1)
    for n, top in itertools.product((0, 1, 2, 7, 40, 90), (60, 3, 10**12)):
        here = Ordered(np.sort(rng.integers(0, max(top * 5 // 6, 1), n)), 0, top)
        naive = [
            max(here.at(j) - here.at(j - k - 1) for j in range(here.rank, here.rank + k + 2))
            for k in range(n + 3)
        ]
        assert [here.widest(k) for k in range(n + 3)] == naive
        for bound in (0, top // 20, top - 1):
            assert here.distance(bound) == next(k for k, a in enumerate(naive) if a > bound)
        for beta in (0.002, 0.05, 0.7, 9.0):
            exact = max(2**-10, max(math.exp(-beta * k) * a for k, a in enumerate(naive)))
            assert here.smooth(beta, 2**-10) == pytest.approx(exact, rel=1e-12)


def test_smooth_sensitivity_of_constant_and_two_sided_tables() -> None:
    for values in ([5] * 101, [0] * 50 + [60] * 51, [0] * 30, [60] * 30, list(range(61))):
        here = Ordered(np.array(values, np.int64), 0, 60)
        exact = max(2**-10, max(math.exp(-0.05 * k) * here.widest(k) for k in range(len(values) + 1)))
        assert here.smooth(0.05, 2**-10) == pytest.approx(exact, rel=1e-12)


# the mode


def counts_to_table(counts: tuple[int, ...], public: Public) -> Memory:
    return Memory({"c": [v for v, n in zip("abc", counts, strict=True) for _ in range(n)]}, public)


def mode_public(neighbors: Neighbors) -> Public:
    return Public(schema={"c": Categories(["a", "b", "c"])}, neighbors=neighbors)


@pytest.mark.parametrize("neighbors", [ADD_REMOVE, REPLACE])
def test_the_distance_of_a_mode_is_exact(neighbors: Neighbors) -> None:
    def near(c: tuple[int, ...]) -> set[tuple[int, ...]]:
        up = {tuple(c[j] + (j == i) for j in range(3)) for i in range(3)}
        down = {tuple(c[j] - (j == i) for j in range(3)) for i in range(3) if c[i] > 0}
        if neighbors is ADD_REMOVE:
            return up | down
        return {tuple(d[j] + (j == i) for j in range(3)) for d in down for i in range(3)}

    for counts in itertools.product((0, 1, 2, 5), (0, 2, 3), (0, 1, 4)):
        if sum(counts) == 0:
            continue
        start, ball, radius = int(np.argmax(counts)), {counts}, 0
        while all(int(np.argmax(c)) == start for c in ball):
            ball, radius = ball | {d for c in ball for d in near(c)}, radius + 1
        source = counts_to_table(counts, mode_public(neighbors))
        assert StableMode(column="c").distance(source, 0) == radius - 1
        assert StableMode(column="c").value(source) == "abc"[start]


# M_stab and propose-test-release


def reaches(scale: float, distance: int, needed: int) -> float:
    return float(at_least(scale, np.array([needed - distance], float))[0])


def stab_is_private(epsilon: float, delta: float, needed: int) -> None:
    """Both outcomes, for all neighboring distances: equal values cost epsilon; different values have distance
    0, and delta."""
    scale = 1 / epsilon
    assert reaches(scale, 0, needed) <= delta
    for d in range(needed + 20):
        passed = reaches(scale, d + 1, needed) / reaches(scale, d, needed)
        failed = reaches(scale, needed - d, 1) / reaches(
            scale, needed - d - 1, 1
        )  # by symmetry, without cancellation
        assert max(passed, failed) <= math.exp(epsilon) * (1 + 1e-9)


@pytest.mark.parametrize(("epsilon", "delta"), [(1, 1e-6), (0.1, 1e-3), (3, 0.2)])
def test_release_by_distance_is_private_and_its_threshold_cannot_be_lower(
    epsilon: float, delta: float
) -> None:
    mechanism = DistanceToInstability(
        public=mode_public(ADD_REMOVE), function=StableMode(column="c"), epsilon=epsilon, delta=delta
    )
    stab_is_private(epsilon, delta, mechanism.reach)
    with pytest.raises(AssertionError):
        stab_is_private(epsilon, delta, mechanism.reach - 1)
    assert mechanism.reach <= math.log(1 / delta) / epsilon + 1  # the threshold of the lectures
    assert mechanism.event == ApproximateDP(epsilon=epsilon, delta=delta)


def test_a_clear_mode_is_released_exactly_and_a_close_one_is_not() -> None:
    public = mode_public(ADD_REMOVE)
    mechanism = DistanceToInstability(public=public, function=StableMode(column="c"), epsilon=1, delta=1e-6)
    clear, close = counts_to_table((90, 20, 3), public), counts_to_table((20, 20, 3), public)
    entropy = SeededEntropy(1)
    assert {mechanism(clear, entropy=entropy).value for _ in range(20)} == {"a"}
    told = mechanism(close, entropy=entropy)
    assert told.value is None
    with pytest.raises(InvalidInput, match="no error bound is known for this kind"):
        told.error(0.9)
    assert mechanism(clear, entropy=entropy).error(0.9) == 0


def test_at_the_stated_distance_it_is_released_as_often_as_stated() -> None:
    public, confidence, runs = mode_public(ADD_REMOVE), 0.9, 400
    mechanism = DistanceToInstability(public=public, function=StableMode(column="c"), epsilon=1, delta=0.01)
    needed = mechanism.error(confidence)
    source = counts_to_table((needed + 5, 5, 0), public)  # distance: gap + 1 - 1
    assert StableMode(column="c").distance(source, 0) == needed
    entropy = SeededEntropy(2)
    failures = sum(mechanism(source, entropy=entropy).value is None for _ in range(runs))
    assert_rarely(failures, runs, 1 - confidence)
    assert reaches(1, needed - 3, mechanism.reach) < confidence  # not far too careful


def test_propose_test_release_tells_a_stable_median_closely() -> None:
    public = Public(schema={"x": Bounds(0, 1000)})
    mechanism = ProposeTestRelease(
        public=public, function=StableMedian(column="x"), bound=2, epsilon=2, delta=1e-6
    )
    assert mechanism.scales == (1, 2)
    stab_is_private(1, 1e-6, mechanism.reach)
    dense = Memory({"x": np.arange(400, 600).repeat(20)}, public)
    told = [mechanism(dense, entropy=SeededEntropy(i)) for i in range(40)]
    assert all(abs(t.value - 499) <= t.error(1 - 1e-9 / 40) for t in told if t.value is not None)
    assert any(t.value is not None for t in told)
    split = Memory({"x": [0] * 50 + [1000] * 50}, public)
    assert mechanism(split, entropy=SeededEntropy(1)).value is None


def test_the_bound_of_a_proposal_is_in_steps_and_the_value_in_units() -> None:
    public = Public(schema={"x": Bounds(0, 10)})
    mechanism = ProposeTestRelease(
        public=public, function=StableMedian(column="x", step=F(1, 4)), bound=1, epsilon=20, delta=1e-3
    )
    value = mechanism(Memory({"x": [5.25] * 300}, public), entropy=SeededEntropy(1)).value
    assert isinstance(value, float)
    assert abs(value - 5.25) <= mechanism.error(1 - 1e-9)
    assert (4 * value).is_integer()


class Panic(BaseException):
    """Stands for the PanicException of polars, which is no Exception."""


class Odd:
    """Fails when it is turned into a number."""

    def __float__(self) -> float:
        raise Panic("a secret")


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, Panic])
def test_the_stewards_own_function_cannot_let_an_exception_out(error: type[BaseException]) -> None:
    public = mode_public(ADD_REMOVE)

    def broken(source: Any, bound: int = 0) -> int:
        raise error("a secret")

    mechanism = DistanceToInstability(
        public=public, function=TrustedStable(function=broken, how_far=broken), epsilon=1, delta=1e-9
    )
    assert mechanism(counts_to_table((9, 0, 0), public), entropy=SeededEntropy(1)).value is None
    with pytest.raises(DescriptionError, match="has no JSON description"):
        to_json(mechanism)


@pytest.mark.parametrize("error", [SystemExit, Panic, None])
def test_what_is_no_exception_does_not_tell_of_a_part_either(error: type[BaseException] | None) -> None:
    public = Public(schema={"x": Bounds(0, 10)})

    def broken(part: Any) -> Any:
        if error is not None:
            raise error("a secret")
        return Odd()

    mechanism = SampleAndAggregate(
        public=public, columns=("x",), function=broken, parts=3, bounds=Bounds(0, 10), epsilon=1
    )
    mechanism(Memory({"x": [1.0] * 9}, public), entropy=SeededEntropy(1))


def test_a_stop_by_the_user_passes_through_the_stewards_function() -> None:
    public = Public(schema={"x": Bounds(0, 10)})

    def stopped(part: Any) -> Any:
        raise KeyboardInterrupt

    mechanism = SampleAndAggregate(
        public=public, columns=("x",), function=stopped, parts=3, bounds=Bounds(0, 10), epsilon=1
    )
    with pytest.raises(KeyboardInterrupt):
        mechanism(Memory({"x": [1.0] * 9}, public), entropy=SeededEntropy(1))


# smooth sensitivity


@pytest.mark.parametrize("power", [1, 2, 3])
@pytest.mark.parametrize("scale", [F(1, 3), F(5, 2)])
def test_polynomial_noise_has_exactly_its_law(power: int, scale: F) -> None:
    def weight(x: int) -> F:
        return 1 / math.prod((abs(x) + scale + i for i in range(power + 1)), start=F(1))

    normal = power * math.prod((scale + i for i in range(power + 1)), start=F(1)) / (2 * scale + power)
    law: dict[Any, float] = {x: float(normal * weight(x)) for x in range(-6, 7)}
    law["far"] = 1 - sum(law.values())
    entropy = SeededEntropy(3)

    def draw() -> Any:
        x = polynomial_noise(scale, power, entropy)
        return x if abs(x) <= 6 else "far"

    assert_law(draw, law, 3000)
    wrong = {x: float(normal * weight(x) * (F(5, 4) if x > 0 else 1)) for x in range(-6, 7)}
    with pytest.raises(AssertionError):
        assert_law(draw, {**wrong, "far": 1 - sum(wrong.values())}, 3000)


def test_polynomial_noise_draws_more_bits_where_the_first_do_not_decide() -> None:
    class Zeros(SeededEntropy):
        given = 0

        def integer(self, bits: int) -> int:
            self.given += bits
            return 0 if self.given <= 64 else super().integer(bits)

    entropy = Zeros(1)
    assert abs(polynomial_noise(F(1), 1, entropy)) > 10**15  # U began with 64 zeros
    assert entropy.given >= 129


def log_p(scale: float, power: int, x: np.ndarray[Any, Any]) -> Any:
    top = sum(np.log(scale + i) for i in range(power + 1)) + math.log(power) - math.log(2 * scale + power)
    return top - sum(np.log(np.abs(x) + scale + i) for i in range(power + 1))


@pytest.mark.parametrize("power", [1, 2, 3, 4])
def test_the_costs_of_shifting_and_rescaling_polynomial_noise(power: int) -> None:
    x = np.concatenate([np.arange(-300, 301), 10.0 ** np.arange(3, 12)])
    for scale, factor in itertools.product((0.05, 0.8, 3.0, 40.0), (1.01, 1.5, 6.0)):
        rescaled = np.max(np.abs(log_p(scale, power, x) - log_p(scale * factor, power, x)))
        assert rescaled <= power * math.log(factor) * (1 + 1e-9)
        for shift in (1, 5):
            moved = np.max(np.abs(log_p(scale, power, x) - log_p(scale, power, x + shift)))
            assert moved <= (power + 1) * math.log(1 + shift / scale) * (1 + 1e-9)
    assert np.max(np.abs(log_p(1e4, power, x * 1e4) - log_p(6e4, power, x * 1e4))) > 0.8 * power * math.log(
        6
    )  # needed


def median_loss(epsilon: float, noise: SmoothNoise, smooth: Any) -> float:
    """The largest log-ratio of a noisy median over all neighbors among small tables, exactly, without the
    clamping."""
    x = np.concatenate([np.arange(-60, 61), np.array([-1.0, 1.0]) * 1e7])
    spread = float(exp_bounds(F(epsilon) / (2 * (noise.power + 1)))[0])
    laws = {t: log_p(smooth(ordered(t)) / (spread - 1), noise.power, x - ordered(t).median) for t in TABLES}
    pairs = ((t, u) for t in TABLES if len(t) < 5 for u in changes(t))
    return max(float(np.max(np.abs(laws[t] - laws[u]))) for t, u in pairs)


@pytest.mark.parametrize("epsilon", [0.5, 3])
def test_a_smooth_median_is_epsilon_private_on_all_small_tables(epsilon: float) -> None:
    noise = smooth_noise(epsilon, None, 3)
    assert 0.3 * epsilon <= median_loss(epsilon, noise, lambda t: t.smooth(noise.beta, 2**-10)) <= epsilon
    # mutants: noise in proportion to the local sensitivity, or smoothed too little
    assert median_loss(epsilon, noise, lambda t: max(t.widest(0), 2**-10)) > epsilon
    assert median_loss(epsilon, noise, lambda t: t.smooth(6 * noise.beta, 2**-10)) > epsilon


def laplace_excess(b: float, other: float, shift: int, epsilon: float) -> float:
    x = np.arange(-math.ceil(60 * max(b, other)), math.ceil(60 * max(b, other)) + 1, dtype=float)
    return float(np.sum(np.maximum(0, pmf(b, x) - math.exp(epsilon) * pmf(other, x - shift))))


@pytest.mark.parametrize("smooth", [0.01, 1.0, 7.5, 90.0])
def test_smooth_laplace_noise_is_epsilon_delta_private(smooth: float) -> None:
    epsilon, delta = 1.0, 1e-3
    noise = smooth_noise(epsilon, delta, 3)
    for change in (-noise.beta, 0, noise.beta):
        other = smooth * math.exp(change)
        shift = math.floor(min(smooth, other))
        assert laplace_excess(2 * smooth / epsilon, 2 * other / epsilon, shift, epsilon) <= delta


def test_less_smoothness_is_caught() -> None:
    epsilon, delta = 1.0, 1e-3
    beta = 6 * smooth_noise(epsilon, delta, 3).beta
    assert laplace_excess(2 * 90, 2 * 90 * math.exp(-beta), 50, epsilon) > delta


def test_a_smooth_median_is_near_on_calm_data_and_hides_its_error() -> None:
    public = Public(schema={"x": Bounds(0, 1000)})
    calm = Memory({"x": np.arange(1001) // 2 + 250}, public)
    for mechanism in (
        SmoothSensitivityMedian(public=public, column="x", epsilon=2),
        SmoothSensitivityMedian(public=public, column="x", epsilon=2, delta=1e-6),
    ):
        entropy = SeededEntropy(4)
        off = sorted(abs(mechanism(calm, entropy=entropy).value - 500) for _ in range(60))
        assert off[30] <= 40  # noise for the worst case would be hundreds
        assert mechanism.error(0.95) >= 900  # for all data: says nothing about these
        assert from_json(to_json(mechanism)) == mechanism
    assert SmoothSensitivityMedian(public=public, column="x", epsilon=2).event == PureDP(epsilon=2)


# sparse vector over stability


@pytest.mark.parametrize("constants", [None, "zcdp", "dwork-roth"])
def test_unstable_values_ever_leave_with_probability_at_most_delta(constants: str | None) -> None:
    public, delta, m = mode_public(ADD_REMOVE), 0.01, 30
    mechanism = StableSparseVector(
        public=public, epsilon=1, delta=delta, failures=3, questions=m, constants=constants
    )
    rho, nu = map(float, mechanism.scales)
    z = np.arange(-math.ceil(60 * rho), math.ceil(60 * rho) + 1, dtype=float)

    def ever(threshold: int) -> float:
        return float(np.sum(pmf(rho, z) * at_least(nu, threshold + z))) * m

    allowed = delta if constants is None else delta / 2
    assert ever(mechanism.threshold) <= allowed
    assert ever(mechanism.threshold - math.ceil(nu)) > allowed
    if constants == "dwork-roth":  # the threshold of the lectures, at their lambda and our half of delta
        assert mechanism.threshold <= 2 * rho * math.log(2 * m / allowed) + 1


def test_stable_questions_are_answered_exactly_until_too_many_fail() -> None:
    public = mode_public(ADD_REMOVE)
    source, question = counts_to_table((900, 100, 0), public), StableMode(column="c")
    mechanism = StableSparseVector(public=public, epsilon=1, delta=1e-6, failures=2, questions=8)
    entropy = SeededEntropy(5)
    state = mechanism.start(source, entropy=entropy)
    for _ in range(5):
        state, answer = mechanism.answer(json.loads(json.dumps(state)), source, question, entropy=entropy)
        assert answer.value == "a"
    close = counts_to_table((9, 9, 0), public)
    for _ in range(2):
        state, answer = mechanism.answer(state, close, question, entropy=entropy)
        assert answer.value is None
    with pytest.raises(
        Halted, match="failures were given, so this has halted for"
    ):  # at the second failure, not after a third
        mechanism.answer(state, source, question, entropy=entropy)
    assert StableMode(column="c").distance(source, 0) >= mechanism.error(0.9)


# sample and aggregate


PERSONS = Public(schema={"x": Bounds(0, 100)}, unit=Unit("who"))


def recorder(seen: list[Any]) -> Any:
    def function(part: Any) -> float:
        seen.append(sorted(part.column("x").to_pylist()))
        return float(len(seen[-1]))

    return function


@pytest.mark.parametrize("by_person", [True, False])
def test_one_unit_is_in_one_part_and_moves_no_other(by_person: bool) -> None:
    """With the same randomness for the others, the parts of two neighbors differ in one part only."""
    public = PERSONS if by_person else Public(schema={"x": Bounds(0, 100)})
    who, x = [i // 3 for i in range(60)], list(range(60))
    kept = [i for i in range(60) if who[i] != 19]  # the last person, or the last three rows
    outputs = []
    for rows in (range(60), kept):
        seen: list[Any] = []
        mechanism = SampleAndAggregate(
            public=public, columns=("x",), function=recorder(seen), parts=7, bounds=Bounds(0, 10), epsilon=1
        )
        mechanism(
            Memory({"x": [x[i] for i in rows], "who": [who[i] for i in rows]}, public),
            entropy=SeededEntropy(6),
        )
        outputs.append(seen)
    assert sorted(v for part in outputs[0] for v in part) == x
    differing = sum(a != b for a, b in zip(*outputs, strict=True))
    assert differing == 1 if by_person else differing <= 3
    if by_person:
        assert all(
            {3 * (v // 3), 3 * (v // 3) + 1, 3 * (v // 3) + 2} <= set(part)
            for part in outputs[0]
            for v in part
        )


def test_rows_are_spread_uniformly_over_the_parts() -> None:
    public, sizes, entropy = Public(schema={"x": Bounds(0, 1)}), [], SeededEntropy(7)
    mechanism = SampleAndAggregate(
        public=public,
        columns=("x",),
        function=lambda part: sizes.append(part.num_rows),
        parts=5,
        bounds=Bounds(0, 1),
        epsilon=1,
    )
    mechanism(Memory({"x": np.zeros(5000)}, public), entropy=entropy)
    low, high = stats.binom.ppf([1e-10, 1 - 1e-10], 5000, 0.2)
    assert all(low <= size <= high for size in sizes)


def test_a_private_mean_and_median_of_the_parts() -> None:
    public = Public(schema={"x": Bounds(0, 100)})
    source = Memory({"x": np.arange(20_000) % 101}, public)
    common: dict[str, Any] = {
        "public": public,
        "columns": ("x",),
        "function": PartMean(column="x"),
        "bounds": Bounds(0, 100),
    }
    mean = SampleAndAggregate(**common, parts=50, epsilon=1, step=F(1, 100))
    told = mean(source, entropy=SeededEntropy(8))
    assert mean.event == DiscreteLaplace(scale=F(10_000), sensitivity=10_000)
    assert abs(told.value - 50) <= told.error(1 - 1e-9) + 3
    median = SampleAndAggregate(**common, parts=400, epsilon=2, step=F(1, 100), aggregate="median")
    assert median.event == PureDP(epsilon=2)
    assert abs(median(source, entropy=SeededEntropy(9)).value - 50) <= 15
    assert from_json(to_json(median)) == median


class Unconvertible:
    """An answer that raises what no number raises when it is converted."""

    def __float__(self) -> float:
        raise RuntimeError("not a number")


def test_answers_outside_missing_or_raised_stay_inside_the_bounds() -> None:
    public = Public(schema={"x": Bounds(0, 100)})
    source = Memory({"x": np.arange(100)}, public)
    for wild in (
        lambda part: 1e300,
        lambda part: None,
        lambda part: 1 / 0,
        lambda part: math.nan,
        lambda part: "text",
        lambda part: [1],
        lambda part: Unconvertible(),
    ):
        mechanism = SampleAndAggregate(
            public=public,
            columns=("x",),
            function=wild,
            parts=3,
            bounds=Bounds(2, 4),
            epsilon=1000,
            step=F(1, 10),
        )
        assert 2 <= mechanism(source, entropy=SeededEntropy(1)).value <= 4


# subsample and aggregate with stability


def voters(neighbors: Neighbors = ADD_REMOVE, size: int = 50) -> Public:
    return Public(schema={"c": Categories(["a", "b"])}, neighbors=neighbors, size=size)


def test_the_constants_of_the_lectures() -> None:
    epsilon, delta, size = 8, 0.1, 50
    mechanism = SubsampleAggregateStable(
        public=voters(), columns=("c",), function=PartMode(column="c"), epsilon=epsilon, delta=delta
    )
    rate = epsilon / (32 * math.log(1 / delta))
    assert float(mechanism.exact_rate) == pytest.approx(rate)
    assert mechanism.count == math.ceil(math.log(size / delta) / float(mechanism.exact_rate) ** 2)
    assert mechanism.max_load == math.floor(2 * mechanism.exact_rate * mechanism.count)
    # Hoeffding, as in the lectures, gives (delta/n)^2 for one unit: less than the delta/n that their union
    # needs
    assert math.exp(-2 * rate**2 * mechanism.count) <= (delta / size) ** 2 * 1.0001
    assert mechanism.overload <= F(delta) ** 2 / size**2
    # the threshold of the lectures, in whole counts: G - 4 g n_T + Lap(4 g n_T / epsilon) > 4 g n_T
    # ln(1/delta) / epsilon
    assert mechanism.reach <= 4 * rate * mechanism.count * math.log(1 / delta) / epsilon + 1
    with pytest.raises(PrivateFact, match="the default number of subsamples needs the number"):
        SubsampleAggregateStable(
            public=Public(), columns=("c",), function=PartMode(column="c"), epsilon=1, delta=1e-6
        )


@pytest.mark.parametrize(("rate", "count"), [(0.01, 3000), (0.1, 200), (0.4, 60)])
def test_a_unit_is_in_too_many_subsamples_as_rarely_as_charged(rate: float, count: int) -> None:
    mechanism = SubsampleAggregateStable(
        public=voters(),
        columns=("c",),
        function=PartMode(column="c"),
        epsilon=1,
        delta=0.3,
        rate=F(rate),
        subsamples=count,
    )
    assert stats.binom.sf(mechanism.max_load, count, rate) <= float(mechanism.overload) < 0.3
    assert laplace_tail(mechanism._scale, mechanism.reach) + mechanism.overload <= F(0.3)
    replaced = SubsampleAggregateStable(
        public=voters(REPLACE),
        columns=("c",),
        function=PartMode(column="c"),
        epsilon=1,
        delta=0.3,
        rate=F(rate),
        subsamples=count,
    )
    assert replaced.overload == 0
    assert replaced.reach <= mechanism.reach


def test_enough_subsamples_are_far_fewer_than_those_of_the_lectures() -> None:
    size, rate, delta = 1000, 0.01, 1e-6
    enough = enough_subsamples(size, rate, delta)
    assert size * stats.binom.sf(math.floor(2 * rate * enough), enough, rate) <= delta
    assert enough < math.log(size / delta) / rate**2 / 30
    assert enough == math.ceil(math.log(size / delta) / (rate * (2 * math.log(2) - 1))) + 1


def test_the_lead_moves_by_at_most_twice_the_answers_that_one_unit_can_change() -> None:
    rng, most = np.random.default_rng(5), 3
    for _ in range(3000):
        first = rng.integers(0, 3, 12)
        second = first.copy()
        second[rng.choice(12, most, replace=False)] = rng.integers(0, 3, most)
        leads, winners = [], []
        for answers in (first, second):
            counts = np.bincount(answers, minlength=3)
            leads.append(np.sort(counts)[-1] - np.sort(counts)[-2])
            winners.append(int(np.argmax(counts)))
        assert abs(leads[0] - leads[1]) <= 2 * most
        assert winners[0] == winners[1] or max(leads) <= 2 * most


def test_a_clear_majority_is_released_as_often_as_the_theorem_says_and_a_tie_is_not() -> None:
    epsilon, delta, runs = 8, 0.1, 12
    mechanism = SubsampleAggregateStable(
        public=voters(), columns=("c",), function=PartMode(column="c"), epsilon=epsilon, delta=delta
    )
    clear = Memory({"c": ["b"] * 48 + ["a"] * 2}, voters())
    entropy = SeededEntropy(3)
    failures = sum(mechanism(clear, entropy=entropy).value != "b" for _ in range(runs))
    assert_rarely(failures, runs, 3 * delta)
    assert mechanism.error(0.9) < mechanism.count
    never = SubsampleAggregateStable(
        public=voters(), columns=("c",), function=lambda part: 1 / 0, epsilon=epsilon, delta=delta
    )
    assert never(clear, entropy=entropy).value is None


def test_a_unit_without_rows_cannot_stop_a_release(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under replace nothing is charged for units in too many subsamples, since the number of units stays. The
    unit of rows without a name is drawn for even where there are none: it must not count then."""
    from discreet.mechanisms import sample_aggregate

    public = Public(schema={"x": Bounds(0, 100)}, unit=Unit("who"), neighbors=REPLACE, size=101)
    mechanism = SubsampleAggregateStable(
        public=public,
        columns=("x",),
        function=lambda part: "same",
        epsilon=100,
        delta=1e-3,
        rate=0.02,
        subsamples=100,
    )
    # Every subsample keeps one of a hundred named units, each in turn, and the last unit, which is the one
    # without a name.
    turns = itertools.count()
    monkeypatch.setattr(
        sample_aggregate.sampling,
        "poisson_subset",
        lambda n, rate, entropy: np.array([next(turns) % 100, n - 1]),
    )
    named = [f"p{i}" for i in range(100)]
    for last, value in (("p0", "same"), (None, None)):
        source = Memory(pa.table({"x": [1] * 101, "who": pa.array([*named, last], pa.string())}), public)
        assert mechanism(source, entropy=SeededEntropy(1)).value == value


@pytest.mark.parametrize("rows", [[], ["abc"]])
def test_no_part_tells_an_empty_table_from_one_of_a_single_row(rows: list[str]) -> None:
    """An engine gives no batch of an empty table, so that its columns have no type: a function of text fails on
    every part, where of a table of one row it is 0 on all parts but one."""
    public = Public(schema={"x": Text()}, size=100)
    source = Memory(pa.table({"x": pa.array(rows, pa.string())}), public)

    def letters(part: Any) -> float:
        return float(pc.sum(pc.utf8_length(part.column("x"))).as_py() or 0)

    mean = SampleAndAggregate(
        public=public, columns=("x",), function=letters, parts=50, bounds=Bounds(0, 100), epsilon=1000
    )
    # One part of fifty may move the mean by two; all of them moved it from 50 to 0.
    assert mean(source, entropy=SeededEntropy(1)).value == pytest.approx(50, abs=3)
    mode = SubsampleAggregateStable(
        public=public, columns=("x",), function=letters, epsilon=2, delta=1e-3, rate=0.1, subsamples=200
    )
    assert mode(source, entropy=SeededEntropy(1)).value is None


def test_the_ends_of_what_epsilon_may_be_are_allowed_as_they_are_written() -> None:
    assert smooth_noise(1e-6, None, 3).epsilon == F(1e-6)
    assert (
        DistanceToInstability(public=X, function=StableMode(column="c"), epsilon=1e-12, delta=0.1).reach > 0
    )
    with pytest.raises(InvalidInput, match="give a rate"):
        SubsampleAggregateStable(
            public=X, columns=("c",), function=PartMode(column="c"), epsilon=1e-12, delta=0.1
        )


def test_a_stable_sparse_vector_whose_threshold_is_beyond_all_bounds_is_refused_before_it_is_paid() -> None:
    with pytest.raises(InvalidInput, match="the exponent must be between 0 and 20000"):
        StableSparseVector(public=X, epsilon=1e5, delta=0.1, failures=1, questions=2)


def test_subsamples_keep_all_rows_of_a_person_together() -> None:
    public = Public(schema={"x": Bounds(0, 100)}, unit=Unit("who"), size=20)
    table, units, names = read_units(
        Memory({"x": list(range(6)), "who": ["a", "b", None, "a", "b", None]}, public), ("x",)
    )
    assert table.column_names == ["x"]
    assert names == ["a", "b", None]
    assert units.tolist() == [0, 1, 2, 0, 1, 2]
    seen: list[Any] = []
    mechanism = SubsampleAggregateStable(
        public=public,
        columns=("x",),
        function=recorder(seen),
        epsilon=1,
        delta=0.5,
        rate=F(1, 2),
        subsamples=40,
    )
    mechanism(
        Memory({"x": list(range(60)), "who": [i // 3 for i in range(60)]}, public), entropy=SeededEntropy(4)
    )
    assert all({3 * (v // 3), 3 * (v // 3) + 1, 3 * (v // 3) + 2} <= set(part) for part in seen for v in part)


def test_units_are_the_same_however_the_table_is_cut_into_batches() -> None:
    public = Public(schema={"x": Bounds(0, 100)}, unit=Unit("who"))
    data = {"x": list(range(6)), "who": pa.array(["a", "b", None, "a", "b", None]).dictionary_encode()}
    for rows in (1, 2, 6):
        _, units, names = read_units(Memory(pa.table(data), public, batch_rows=rows), ("x",))
        assert names is not None
        assert [names[i] for i in units] == ["a", "b", None, "a", "b", None]


# refusals


X = Public(schema={"x": Bounds(0, 9), "c": Categories(["a", "b"])}, size=9)
SAMPLED: dict[str, Any] = {"public": X, "columns": ("x",), "function": PartMean(column="x"), "epsilon": 1}


@for_each(
    ("build", "fact"),
    [
        (
            lambda: DistanceToInstability(public=X, function=StableMode(column="c"), epsilon=0, delta=0.1),
            r"epsilon must be between 1e-12 and 1e\+06",
        ),
        (
            lambda: DistanceToInstability(
                public=X, function=StableMode(column="c"), epsilon=math.inf, delta=0.1
            ),
            "epsilon must be finite",
        ),
        (
            lambda: DistanceToInstability(public=X, function=StableMode(column="c"), epsilon=1, delta=0),
            "delta must be strictly between 0 and 1",
        ),
        (
            lambda: DistanceToInstability(
                public=X, function=StableMode(column="c"), epsilon=1, delta=math.nan
            ),
            "delta must be a number",
        ),
        (
            lambda: DistanceToInstability(public=X, function=StableMode(column="x"), epsilon=1, delta=0.1),
            "is declared as a number",
        ),
        (
            lambda: DistanceToInstability(public=X, function=len, epsilon=1, delta=0.1),
            r"function must be a stable function, such as StableMode\(column=",
        ),
        (
            lambda: ProposeTestRelease(
                public=X, function=StableMode(column="c"), bound=1, epsilon=1, delta=0.1
            ),
            "a category does not move by an amount",
        ),
        (
            lambda: ProposeTestRelease(
                public=X, function=StableMedian(column="x"), bound=0, epsilon=1, delta=0.1
            ),
            "bound must be an integer of at least 1",
        ),
        (
            lambda: ProposeTestRelease(
                public=X, function=StableMedian(column="x"), bound=9, epsilon=1, delta=0.1
            ),
            "steps is no less than the whole range",
        ),
        (
            lambda: ProposeTestRelease(
                public=X, function=StableMedian(column="x"), bound=1, epsilon=1, delta=0.1, share=1
            ),
            "share must be strictly between 0 and 1",
        ),
        (lambda: StableMedian(column="x", step=0), "step must be above zero"),
        (
            lambda: SmoothSensitivityMedian(public=X, column="x", epsilon=-1),
            "epsilon must be between 1e-06 and 1000",
        ),
        (
            lambda: SmoothSensitivityMedian(public=X, column="x", epsilon=1, delta=0.9),
            "delta must be between 0 and 0",
        ),
        (
            lambda: SmoothSensitivityMedian(public=X, column="x", epsilon=1, step=100),
            "step must be small enough that the bounds of column",
        ),
        (lambda: SmoothSensitivityMedian(public=X, column="c", epsilon=1), "is declared as categories"),
        (
            lambda: SmoothSensitivityMedian(public=X, column="x", epsilon=1, power=0),
            "power must be an integer of at least 1",
        ),
        (
            lambda: StableSparseVector(public=X, epsilon=1, delta=0.1, failures=0, questions=1),
            "failures must be an integer of at least 1",
        ),
        (
            lambda: StableSparseVector(
                public=X, epsilon=1, delta=0.1, failures=1, questions=1, constants="mine"
            ),
            "constants must be",
        ),
        (
            lambda: SampleAndAggregate(**SAMPLED, parts=0, bounds=Bounds(0, 1)),
            "parts must be an integer of at least 1",
        ),
        (
            lambda: SampleAndAggregate(**SAMPLED, parts=2, bounds=Bounds(0, 1), delta=0.1),
            "delta must be None: the mean has Laplace noise and is purely",
        ),
        (
            lambda: SampleAndAggregate(**SAMPLED, parts=2, bounds=Bounds(0, 1), aggregate="mode"),
            "aggregate must be",
        ),
        (
            lambda: SampleAndAggregate(**{**SAMPLED, "columns": "x"}, parts=2, bounds=Bounds(0, 1)),
            "columns must be a list",
        ),
        (
            lambda: SampleAndAggregate(**{**SAMPLED, "columns": ()}, parts=2, bounds=Bounds(0, 1)),
            "columns must not be empty",
        ),
        (
            lambda: SampleAndAggregate(**{**SAMPLED, "function": 3}, parts=2, bounds=Bounds(0, 1)),
            "function must be callable on an Arrow table, such as",
        ),
        (
            lambda: SubsampleAggregateStable(**SAMPLED, delta=0.1, rate=F(1, 10), subsamples=5),
            "A unit must be in half a subsample",
        ),
        (
            lambda: SubsampleAggregateStable(**SAMPLED, delta=0.1, rate=0),
            "rate must be strictly between 0 and 1",
        ),
        (lambda: SubsampleAggregateStable(**SAMPLED, delta=2), "delta must be strictly between 0 and 1"),
        (lambda: enough_subsamples(0, 0.1, 0.1), "size must be an integer of at least 1"),
    ],
)
def test_bad_input_is_refused(build: Any, fact: str) -> None:
    with pytest.raises(DiscreetError, match=fact):
        build()


def test_units_of_many_rows_are_refused_where_one_row_is_assumed() -> None:
    public = Public(schema={"x": Bounds(0, 9), "c": Categories(["a", "b"])}, unit=Unit("who"))
    for function in (StableMode(column="c"), StableMedian(column="x")):
        with pytest.raises(Unsupported, match="the unit of privacy is all rows of"):
            DistanceToInstability(public=public, function=function, epsilon=1, delta=0.1)
    with pytest.raises(Unsupported, match="the unit of privacy is all rows of"):
        SmoothSensitivityMedian(public=public, column="x", epsilon=1)


def test_a_bad_stable_question_draws_and_reads_nothing() -> None:
    mechanism, entropy = (
        StableSparseVector(public=X, epsilon=1, delta=0.1, failures=1, questions=2),
        CountingEntropy(),
    )
    good = {"threshold": 3, "failures": 0, "asked": 0}
    for state, question in (({}, StableMode(column="c")), (good, "mode?"), (good, StableMode(column="x"))):
        with pytest.raises(DiscreetError, match=r"is not one that|must be|declared"):
            mechanism.answer(state, Untouchable(X), question, entropy=entropy)  # type: ignore[arg-type]
    assert entropy.drawn == 0


def test_zero_out_blanks_are_no_row_of_the_mode_or_median() -> None:
    public = Public(schema={"x": Bounds(0, 9), "c": Categories(["a", "b"])}, neighbors=ZERO_OUT)
    source = Memory({"x": [5, None, 7], "c": ["b", None, "b"]}, public)
    assert StableMode(column="c").value(source) == "b"
    assert StableMode(column="c").distance(source, 0) == 1
    assert StableMedian(column="x").value(source) == 5


def test_of_equal_answers_with_different_spellings_only_a_clear_majority_leaves() -> None:
    """0.0 == -0.0 and 1 == True: counted as one answer, which of them leaves would be the word of a single
    subsample."""
    public = Public(schema={"c": Bounds(0, 1)})
    source = Memory({"c": [1.0] * 50}, public)
    turns = itertools.cycle((0.0, -0.0))
    mechanism = SubsampleAggregateStable(
        public=public,
        columns=("c",),
        function=lambda part: next(turns),
        epsilon=10,
        delta=1e-3,
        rate=0.1,
        subsamples=2000,
    )
    assert mechanism(source, entropy=SeededEntropy(1)).value is None
    steady = dataclasses.replace(mechanism, function=lambda part: -0.0)
    assert math.copysign(1, steady(source, entropy=SeededEntropy(1)).value) == -1


def test_a_lead_counts_only_beyond_twice_what_one_unit_can_move() -> None:
    """All 1000 subsamples agree, 800 of which may be two units' worth: 200 are left, below the 431 that
    pass."""
    public = Public(schema={"c": Bounds(0, 1)})
    source = Memory({"c": [1.0] * 20}, public)
    mechanism = SubsampleAggregateStable(
        public=public,
        columns=("c",),
        function=lambda part: "same",
        epsilon=20,
        delta=1e-5,
        rate=F(1, 5),
        subsamples=1000,
    )
    assert (mechanism.max_load, mechanism.error(0.5) - 800 > 400) == (400, True)
    told = [mechanism(source, entropy=SeededEntropy(seed)).value for seed in range(8)]
    assert (
        sum(value is not None for value in told) <= 2
    )  # each with probability below 0.003; three of eight: 2e-6


@pytest.mark.parametrize("stable", [True, False])
def test_the_order_of_rows_reaches_no_function(stable: bool) -> None:
    """The first row that a function sees is drawn at random: in 40 runs over 50 rows it is not the same one
    (chance below 1e-60)."""
    public, first = Public(schema={"x": Bounds(0, 100)}, size=50), []

    def function(part: Any) -> float:
        first.append(part.column("x").to_pylist()[:1])
        return 0.0

    terms: dict[str, Any] = {"public": public, "columns": ("x",), "function": function, "epsilon": 1}
    mechanism: Any = (
        SubsampleAggregateStable(**terms, delta=1e-3, rate=0.9, subsamples=40)
        if stable
        else SampleAndAggregate(**terms, parts=1, bounds=Bounds(0, 1))
    )
    for seed in range(1 if stable else 40):
        mechanism(Memory({"x": list(range(50))}, public), entropy=SeededEntropy(seed))
    seen = {x for rows in first for x in rows}
    assert len(seen) > (1 if stable else 10)
    assert seen != {0}


def test_a_dictionary_that_lists_a_name_twice_has_one_unit() -> None:
    from discreet.mechanisms.sample_aggregate import units_of

    column = pa.chunked_array([pa.DictionaryArray.from_arrays([0, 1, 2], ["ann", "ann", "bob"])])
    names, units = units_of(column)
    assert names == ["ann", "bob", None]
    assert units.tolist() == [0, 0, 1]
    names, units = units_of(pa.chunked_array([[0.0, -0.0]]))
    assert len(set(units.tolist())) == 1


def test_a_logarithm_near_zero_is_found_at_once_and_to_a_few_ulps() -> None:
    for exponent in (3, 7, 10, 15, 17):
        x = 1 + F(3, 7 * 10**exponent)
        bound = log_above(x)
        assert exp_bounds(F(bound))[0] >= x
        assert exp_bounds(F(bound * (1 - 1e-14)))[0] < x
    assert 3e-40 < log_above(1 + F(3, 10**40)) < 1e-30


def test_a_huge_beta_keeps_the_width_of_the_shortest_window() -> None:
    assert Ordered(np.array([5], dtype=np.int64), 0, 100).smooth(800.0, 1e-9) == 95.0
