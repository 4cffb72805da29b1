"""The audit that every mechanism passes must refute mechanisms that lie: these do, and are caught by the same
function."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from scipy import stats

from discreet._public import ADD_REMOVE, REPLACE
from discreet.accounting import DiscreteLaplace, Event
from discreet.mechanisms import AddNoise, Count, IntegerLaplace, Sensitivity
from discreet.mechanisms.protocols import Mechanism, Release, release
from discreet.mechanisms.statistics import PowerSum

from .audit import LEVEL, assert_private, audit, claim_of, epsilon_lower_bound
from .case import Case
from .cases_additive import CASES, _parallel, at_least, parallel_case

BY_NAME = {case.name: case for case in CASES}


@dataclass(frozen=True)
class Lying(Mechanism):
    """Runs `inside` and claims `event` for it."""

    inside: Any
    event: Event

    @property
    def public(self) -> Any:
        return self.inside.public

    def __call__(self, source: Any, /, *, entropy: Any) -> Release:
        return release(self.inside(source, entropy=entropy).value, event=self.event, entropy=entropy)


def lying(name: str, inside: Any) -> Case:
    """The honest case with another mechanism inside and the honest price."""
    honest = BY_NAME[name]
    return replace(honest, mechanism=Lying(inside, honest.mechanism.event), runs=1340)


def caught(case: Case) -> None:
    with pytest.raises(AssertionError, match="claimed"):
        assert_private(case)


def test_half_the_noise_is_caught() -> None:
    honest = BY_NAME["count"].mechanism
    halved = IntegerLaplace(scale=Fraction(1, 2), sensitivity=1)
    assert isinstance(honest.event, DiscreteLaplace)
    assert honest.event.scale == 1
    caught(lying("count", AddNoise(public=honest.public, statistic=Count(), noise=halved)))


@dataclass(frozen=True, slots=True, kw_only=True)
class HalfSensitivity(PowerSum):
    """A sum that moves twice as far as it says."""

    def sensitivity(self, public: Any) -> Sensitivity:
        true = super(HalfSensitivity, self).sensitivity(public)
        return Sensitivity(linf=true.linf // 2)


def test_half_the_sensitivity_is_caught() -> None:
    public = BY_NAME["sum, add_remove"].mechanism.public
    statistic = HalfSensitivity(column="age")
    noise = IntegerLaplace.for_epsilon(1, sensitivity=statistic.sensitivity(public))
    mutant = AddNoise(public=public, statistic=statistic, noise=noise)
    caught(replace(BY_NAME["sum, add_remove"], mechanism=mutant, outcome=at_least(19), runs=1340))


@dataclass(frozen=True, slots=True, kw_only=True)
class WrongRelation:
    """A statistic that always gives its sensitivity under add_remove."""

    statistic: Any

    def sensitivity(self, public: Any) -> Sensitivity:
        return self.statistic.sensitivity(replace(public, neighbors=ADD_REMOVE))

    def __call__(self, source: Any) -> Any:
        return self.statistic(source)


@pytest.mark.parametrize("name", ["histogram, replace", "sum, both signs"])
def test_the_sensitivity_of_another_relation_is_caught(name: str) -> None:
    honest = BY_NAME[name].mechanism
    statistic = WrongRelation(statistic=honest.statistic)
    noise = IntegerLaplace.for_epsilon(1, sensitivity=statistic.sensitivity(honest.public), neighbors=REPLACE)
    case = replace(BY_NAME[name], mechanism=AddNoise(public=honest.public, statistic=statistic, noise=noise))
    if name == "sum, both signs":  # 8 against -8: as far apart as replace allows
        low = type(case.source)({"age": [-8, 0, 3, 5, 1, 2], "city": ["rome"] * 6}, honest.public)
        case = replace(case, neighbor=low, outcome=lambda r: (r.value >= 19) + (r.value >= 3))
        assert_private(replace(case, mechanism=honest))
    caught(replace(case, runs=1600))


@dataclass(frozen=True, slots=True, kw_only=True)
class Broadcast(IntegerLaplace):
    """One draw for all entries."""

    def __call__(self, values: Any, /, *, entropy: Any) -> Any:
        exact = np.asarray(values)
        return exact + super(Broadcast, self).__call__(np.zeros(1, np.int64), entropy=entropy)[0]


def test_one_draw_for_all_entries_is_caught() -> None:
    honest = BY_NAME["histogram, add_remove"]
    noise = Broadcast(scale=honest.mechanism.noise.scale, sensitivity=1)
    mutant = replace(honest.mechanism, noise=noise)
    by_difference = replace(honest, outcome=lambda r: int(np.sign(r.value[0] - r.value[2])))
    assert_private(by_difference)
    caught(replace(by_difference, mechanism=mutant))


def test_the_price_of_one_part_where_two_may_change_is_caught() -> None:
    honest = _parallel(REPLACE, (Fraction(3, 2), Fraction(3, 2)))
    mutant = parallel_case("mutant", Lying(honest, honest.parts[0][1].event), runs=3000)
    # what runs is the same, so that one audit tells of both prices
    assert claim_of(mutant)[0] < audit(mutant) <= claim_of(parallel_case("honest", honest))[0]


def test_the_bound_is_rarely_above_the_truth() -> None:
    """Randomized response at epsilon 1: exceeding it 123 times out of 700 at level 0.1 has probability below
    1e-9."""
    rng = np.random.default_rng(0)
    keep = math.exp(1) / (1 + math.exp(1))
    above = 0
    for _ in range(700):
        first = rng.random(200) < keep
        second = rng.random(200) < 1 - keep
        above += epsilon_lower_bound(first.tolist(), second.tolist(), 0.0, level=0.1) > 1
    assert stats.binom.sf(122, 700, 0.1) < 1e-9
    assert above < 123


def test_the_bound_comes_close_to_the_truth() -> None:
    rng = np.random.default_rng(1)
    keep = math.exp(1) / (1 + math.exp(1))
    first, second = rng.random(40_000) < keep, rng.random(40_000) < 1 - keep
    assert 0.85 < epsilon_lower_bound(first.tolist(), second.tolist(), 0.0, level=LEVEL) <= 1
