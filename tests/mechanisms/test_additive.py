"""A statistic plus noise: refused where the price would be wrong, right where it is released."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from discreet._errors import DiscreetError, InvalidInput, PrivateFact, PublicMismatch, WrongRelation
from discreet._public import ADD_REMOVE, REPLACE, Bounds, Categories, Public, Related
from discreet._registry import from_json, to_json
from discreet.accounting import DiscreteLaplace
from discreet.mechanisms import (
    AddNoise,
    Component,
    Count,
    CountsBelow,
    ExponentialMechanism,
    Histogram,
    IntegerGaussian,
    IntegerLaplace,
    Select,
    Stack,
    Sum,
    gaussian,
    laplace,
    noisy_count,
    noisy_histogram,
    noisy_sum,
)
from discreet.query import SqlStatistic, SqlVector
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import Memory
from tests.contracts.audit import CountingEntropy, Untouchable

SCHEMA = {"x": Bounds(0, 10), "c": Categories(["a", "b"])}
PUBLIC = Public(schema=SCHEMA)
SOURCE = Memory({"x": [1.0, 2.0, 30.0], "c": ["a", "a", "b"]}, PUBLIC)


@pytest.mark.parametrize("statistic", [Histogram(column="c"), Count()])
def test_an_entry_that_a_statistic_does_not_have_is_refused_before_anything_is_read(statistic: Any) -> None:
    with pytest.raises(InvalidInput, match="there is no entry 2"):
        laplace(PUBLIC, Component(statistic=statistic, index=2), epsilon=1)


@pytest.mark.parametrize("other", [IntegerLaplace(scale=1), ExponentialMechanism(epsilon=1), 3])
def test_noise_and_selectors_are_no_statistics(other: Any) -> None:
    for build in (
        lambda: AddNoise(public=PUBLIC, statistic=other, noise=IntegerLaplace(scale=1)),
        lambda: Stack(parts=(other,)),
        lambda: Component(statistic=other, index=0),
        lambda: Select(public=PUBLIC, scores=other, candidates=(1,), chooser=ExponentialMechanism(epsilon=1)),
    ):
        with pytest.raises(InvalidInput, match="a statistic, such as"):
            build()


def test_a_sum_in_sql_is_released_in_its_own_unit() -> None:
    # The steps of its grid follow from the declared bounds: 2**-16 here.
    total = SqlStatistic(sql="SELECT SUM(x) AS total FROM data")
    vector = SqlVector(sql="SELECT c, SUM(x) AS total FROM data GROUP BY c")
    noisy = laplace(PUBLIC, total, epsilon=10**6)
    assert noisy(SOURCE, entropy=SeededEntropy(1)).value == pytest.approx(13, abs=0.01)
    assert noisy.error(0.99) < 0.001
    entry = laplace(PUBLIC, Component(statistic=vector, index=0), epsilon=10**6)
    assert entry(SOURCE, entropy=SeededEntropy(1)).value == pytest.approx(3, abs=0.01)
    both = laplace(PUBLIC, Stack(parts=(total, vector)), epsilon=10**6)
    assert both(SOURCE, entropy=SeededEntropy(1)).value == pytest.approx([13, 3, 10], abs=0.01)
    with pytest.raises(InvalidInput, match="different grids"):
        laplace(PUBLIC, Stack(parts=(total, Count())), epsilon=1)


def test_a_release_carries_its_price_and_its_error() -> None:
    release = noisy_sum(PUBLIC, "x", epsilon=1)(SOURCE, entropy=Entropy())
    assert release.private
    assert release.event == DiscreteLaplace(scale=Fraction(10), sensitivity=10)
    low, high = release.interval(0.95)
    assert high - low == 2 * release.error(0.95) > 0
    assert isinstance(release.value, int)


@pytest.mark.parametrize(
    "mechanism",
    [
        noisy_count(PUBLIC, epsilon=0.7),
        noisy_sum(PUBLIC, "x", epsilon=1, step=Fraction(1, 8)),
        noisy_histogram(PUBLIC, "c", epsilon=0.5),
        gaussian(PUBLIC, CountsBelow(column="x", thresholds=(1, 2, 5)), epsilon=1, delta=1e-6),
    ],
    ids=lambda m: type(m.statistic).__name__,
)
def test_the_error_holds_as_often_as_it_says(mechanism: AddNoise) -> None:
    runs, entropy, confidence = 1500, SeededEntropy(1), 0.8
    truth = np.asarray(mechanism.statistic(SOURCE)).astype(float) * float(
        getattr(mechanism.statistic, "step", 1)
    )
    width = mechanism.error(confidence)
    worst = [np.max(np.abs(mechanism(SOURCE, entropy=entropy).value - truth)) for _ in range(runs)]
    covered = sum(w <= width for w in worst)
    assert stats.binom.cdf(covered, runs, confidence) > 1e-10
    fewer = sum(w < width - 1.01 for w in worst)
    assert stats.binom.sf(fewer, runs, confidence) > 1e-10
    assert mechanism(SOURCE, entropy=entropy).error(confidence) == width


def test_a_value_is_in_the_statistics_own_unit() -> None:
    """With a huge epsilon the noise is almost surely nothing: what is left is the exact answer."""
    quiet = SeededEntropy(2)
    assert noisy_sum(PUBLIC, "x", epsilon=10**4, step=Fraction(1, 4))(SOURCE, entropy=quiet).value == 13.0
    assert noisy_sum(PUBLIC, "x", epsilon=10**4, step=2)(SOURCE, entropy=quiet).value == 2 * (1 + 1 + 5)
    assert noisy_histogram(PUBLIC, "c", epsilon=10**4)(SOURCE, entropy=quiet).value.tolist() == [2, 1]
    assert noisy_count(PUBLIC, epsilon=10**4)(SOURCE, entropy=quiet).value == 3


def test_noise_for_less_than_the_statistic_moves_is_refused() -> None:
    for noise in (
        IntegerLaplace(scale=Fraction(3), sensitivity=9),
        IntegerGaussian(variance=Fraction(3), linf=9),
    ):
        with pytest.raises(InvalidInput, match="more than the noise is priced for"):
            AddNoise(public=PUBLIC, statistic=Sum("x"), noise=noise)
    cumulative = CountsBelow(column="x", thresholds=(1, 2))
    with pytest.raises(InvalidInput, match="more than the noise is priced for"):
        AddNoise(
            public=PUBLIC, statistic=cumulative, noise=IntegerGaussian(variance=Fraction(3), linf=2, l0=1)
        )


def test_noise_for_another_relation_is_refused() -> None:
    with pytest.raises(WrongRelation, match="replace"):
        AddNoise(public=PUBLIC, statistic=Count(), noise=IntegerLaplace(scale=Fraction(1), neighbors=REPLACE))


def test_the_relation_sets_the_price() -> None:
    replaced = Public(schema=SCHEMA, neighbors=REPLACE, size=3)
    assert noisy_histogram(PUBLIC, "c", epsilon=1).noise.scale == 1
    assert noisy_histogram(replaced, "c", epsilon=1).noise.scale == 2
    assert gaussian(replaced, Histogram(column="c"), rho=1).noise.variance == 1


def test_a_public_count_has_no_price_to_pay() -> None:
    with pytest.raises(InvalidInput, match="needs no noise"):
        noisy_count(Public(neighbors=REPLACE, size=3), epsilon=1)


def test_the_size_is_never_read_off_the_data_under_add_remove() -> None:
    assert "3" not in repr(SOURCE)
    with pytest.raises(PrivateFact, match="a mean needs the number of units, and"):
        PUBLIC.declared_size("a mean")


@pytest.mark.parametrize(
    "change", [{"version": "2"}, {"neighbors": REPLACE}, {"size": 9}, {"table": "other"}]
)
def test_other_public_facts_are_refused_before_anything_is_read_or_drawn(change: dict[str, Any]) -> None:
    entropy = CountingEntropy()
    other = Untouchable(Public(schema=SCHEMA, **change))
    with pytest.raises(PublicMismatch, match=next(iter(change))):
        noisy_count(PUBLIC, epsilon=1)(other, entropy=entropy)  # type: ignore[arg-type]
    assert entropy.drawn == 0


@pytest.mark.parametrize("epsilon", [0, -1, math.inf, math.nan, "1", None, True])
def test_an_impossible_epsilon_is_refused(epsilon: Any) -> None:
    for build in (noisy_count, lambda p, epsilon: noisy_sum(p, "x", epsilon=epsilon)):
        with pytest.raises(InvalidInput, match="epsilon must be"):
            build(PUBLIC, epsilon=epsilon)


def test_a_gaussian_needs_one_kind_of_target() -> None:
    for targets in ({}, {"rho": 1, "epsilon": 1}, {"epsilon": 1}, {"delta": 0.1}):
        with pytest.raises(InvalidInput, match="either rho"):
            gaussian(PUBLIC, Count(), **targets)  # type: ignore[arg-type]


def test_a_description_cannot_smuggle_in_something_else() -> None:
    good = to_json(noisy_count(PUBLIC, epsilon=1))
    assert from_json(good) == noisy_count(PUBLIC, epsilon=1)
    for field, bad in (
        ("noise", to_json(Count())),
        ("statistic", to_json(IntegerLaplace(scale=1))),
        ("statistic", to_json(Bounds(0, 1))),
        ("noise", "none"),
        ("public", "none"),
        ("noise", {**good["noise"], "sensitivity": 0}),
    ):
        with pytest.raises(DiscreetError, match=r"must be|one unit can move"):
            from_json({**good, field: bad})


def test_a_bigger_noise_than_needed_is_allowed_and_charged_as_priced() -> None:
    generous = AddNoise(
        public=PUBLIC, statistic=Count(), noise=IntegerLaplace(scale=Fraction(5), sensitivity=5)
    )
    assert generous.event.neighbors is ADD_REMOVE
    assert laplace(PUBLIC, Count(), epsilon=1).event != generous.event


@pytest.mark.parametrize(
    "build", [lambda s: laplace(PUBLIC, s, epsilon=1), lambda s: gaussian(PUBLIC, s, rho=1)]
)
def test_what_is_no_statistic_is_refused_by_the_short_forms(build: Any) -> None:
    with pytest.raises(InvalidInput, match="statistic must be a statistic"):
        build("x")


def test_a_source_that_differs_in_its_other_tables_alone_is_refused_by_their_name() -> None:
    public = Public(schema=SCHEMA, tables=(Related(name="other"),))
    with pytest.raises(PublicMismatch, match="has: tables differ"):
        noisy_count(public, epsilon=1)(SOURCE, entropy=SeededEntropy(1))
