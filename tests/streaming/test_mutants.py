"""Audits of continual counters that honest ones pass and liars fail: half the noise, another neighbor
relation, participations that nobody counts, noise that is drawn twice.

Many runs at once: `Copies` counts the same rows again and again, and says the sensitivity of one count, so
that each entry of its vector is a run of its own. The level of every bound is that of the contracts, a false
alarm in 4e11.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet import Public
from discreet._public import ADD_REMOVE, REPLACE, Unit
from discreet.mechanisms import Count, Histogram, IntegerGaussian, IntegerLaplace, Sensitivity
from discreet.mechanisms.noise_scales import zcdp_delta
from discreet.sampling import SeededEntropy
from discreet.streaming import ContinualCounter, counter
from discreet.tables import Memory

from ..contracts.audit import epsilon_lower_bound

# The module, whose name in the package is that of a function.
counters = sys.modules["discreet.streaming.continual"]
PUBLIC = Public(schema={"city": dp.Categories(["bern", "rome"])}, table="visits")
BY_UNIT = Public(schema={"age": dp.Bounds(0, 9)}, unit=Unit("who"), table="visits")
RUNS = 12_000
COUNT = Count()


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """`inside`, over and over; its sensitivity is that of a single copy, under `relation` if it lies."""

    inside: Any = COUNT
    relation: Any = None

    def length(self, public: Public) -> int:
        return RUNS * self._each(public)

    def _each(self, public: Public) -> int:
        return int(self.inside.length(public)) if isinstance(self.inside, Histogram) else 1

    def sensitivity(self, public: Public) -> Sensitivity:
        if public.unit.column is not None:
            return Sensitivity(linf=1)
        facts = public if self.relation is None else replace(public, neighbors=self.relation, size=None)
        return self.inside.sensitivity(facts)

    def __call__(self, source: Any) -> Any:
        if source.public.unit.column is not None:
            return np.full(RUNS, sum(batch.num_rows for batch in source.batches([])))
        return np.tile(np.atleast_1d(self.inside(source)), RUNS)


class Shelf(dict[str, bytes]):
    def put(self, name: str, data: bytes) -> None:
        self[name] = data

    def get(self, name: str) -> bytes:  # type: ignore[override]
        return self[name]


def cities(*names: str, public: Public = PUBLIC) -> Memory:
    return Memory({"city": list(names)}, public)


def people(*names: str) -> Memory:
    return Memory({"who": list(names), "age": [1] * len(names)}, BY_UNIT)


def releases(mechanism: ContinualCounter, batches: list[Memory], seed: int) -> Any:
    """[runs, ticks]: the entries of one stream are so many runs."""
    entropy = SeededEntropy(seed)
    given = {} if mechanism.blob_size is None else {"drawer": Shelf()}
    state = mechanism.start(batches[0], entropy=entropy, **given)
    columns = []
    for batch in batches:
        state, released = mechanism.feed(state, batch, entropy=entropy, **given)
        columns.append(np.asarray(released.value))
    return np.stack(columns, axis=-1)


def shown(mechanism: ContinualCounter, pair: Any, label: Any, delta: float = 0.0) -> float:
    """The larger lower bound on epsilon of the two directions."""
    rows = [label(releases(mechanism, batches, seed)) for seed, batches in enumerate(pair)]
    # One number for each different row: a tuple for each run would take ten times as long to look into.
    codes = np.unique(np.concatenate(rows), axis=0, return_inverse=True)[1].ravel().tolist()
    both = [codes[: len(rows[0])], codes[len(rows[0]) :]]
    return max(epsilon_lower_bound(*both, delta), epsilon_lower_bound(*both[::-1], delta))


FIRST_TICK = ([cities("bern"), cities()], [cities(), cities()])


def halved(asked: ContinualCounter, steps: int) -> Any:
    noise = honest_noise(asked, steps)
    if isinstance(noise, IntegerLaplace):
        return replace(noise, scale=noise.scale / 2)
    assert isinstance(noise, IntegerGaussian)
    return replace(noise, variance=noise.variance / 4)


honest_noise = counters.noise_of  # type: ignore[attr-defined]


@pytest.mark.parametrize("strategy", ["tree", pytest.param("fresh", marks=pytest.mark.slow), "item"])
def test_laplace_noise_too_small_by_half_is_caught(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mechanism = counter(PUBLIC, Copies(), epsilon=1, horizon=2, strategy=strategy)
    assert shown(mechanism, FIRST_TICK, lambda v: v >= 1) <= 1
    monkeypatch.setattr(counters, "noise_of", halved)
    assert shown(mechanism, FIRST_TICK, lambda v: v >= 1) > 1


@pytest.mark.parametrize(
    "strategy",
    ["square_root", *(pytest.param(s, marks=pytest.mark.slow) for s in ("blt", "optimal")), "honaker"],
)
def test_gaussian_noise_too_small_by_half_is_caught(strategy: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rho, delta = 0.5, 0.05
    claim = next(e / 50 for e in range(1000) if zcdp_delta(rho, e / 50) <= delta)
    mechanism = counter(PUBLIC, Copies(), rho=rho, horizon=2, strategy=strategy)

    def label(values: Any) -> Any:
        return np.clip(np.round(values.mean(axis=1, keepdims=True) * 3), -3, 6)

    assert shown(mechanism, FIRST_TICK, label, delta) <= claim
    monkeypatch.setattr(counters, "noise_of", halved)
    assert shown(mechanism, FIRST_TICK, label, delta) > claim


def test_the_sensitivity_of_another_relation_is_caught() -> None:
    """Under replace a row leaves one city for the other: two entries move."""
    public = replace(PUBLIC, neighbors=REPLACE, size=1)
    pair = ([cities("bern", public=public)], [cities("rome", public=public)])

    def label(values: Any) -> Any:
        return values.reshape(RUNS, 2) >= 1

    for relation, lies in ((None, False), (ADD_REMOVE, True)):
        statistic = Copies(inside=Histogram(column="city"), relation=relation)
        mechanism = counter(public, statistic, epsilon=1, horizon=1, strategy="tree")
        assert (shown(mechanism, pair, label) > 1) == lies


def loud_unit(mechanism: ContinualCounter) -> float:
    """A unit in every batch, against nobody."""
    pair = ([people("ann")] * 3, [people()] * 3)
    return shown(mechanism, pair, lambda v: np.diff(v, axis=1, prepend=0) >= 1)


def test_a_unit_in_every_batch_shows_no_more_than_it_paid_for(monkeypatch: pytest.MonkeyPatch) -> None:
    terms: dict[str, Any] = {"epsilon": 1, "horizon": 3, "strategy": "item"}
    once = counter(BY_UNIT, Copies(), participations=1, **terms)
    always = counter(BY_UNIT, Copies(), participations=3, **terms)
    assert loud_unit(once) <= 1
    assert loud_unit(always) <= 1
    with monkeypatch.context() as patch:
        # Three participations for the price of one.
        patch.setattr(counters, "noise_of", lambda asked, steps: honest_noise(once, steps))
        assert loud_unit(always) > 1
    # Nobody counts how often a unit took part.
    monkeypatch.setattr(
        "discreet.streaming.stream_statistics.UnitRecord.admit",
        lambda self, units, step, **rule: np.ones(len(units), dtype=bool),
    )
    assert loud_unit(once) > 1


def test_noise_drawn_twice_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The noise of the first tick again in the second: their difference has none."""
    mechanism = counter(PUBLIC, Copies(), epsilon=1, horizon=2, strategy="item")
    pair = ([cities(), cities("bern")], [cities(), cities()])

    def label(values: Any) -> Any:
        return values[:, 1:] - 2 * values[:, :1] >= 1

    assert shown(mechanism, pair, label) <= 1

    class Repeated(IntegerLaplace):
        def __call__(self, values: Any, /, *, entropy: Any) -> Any:
            return np.asarray(values) + IntegerLaplace.__call__(
                self, np.zeros(RUNS, int), entropy=SeededEntropy(9)
            )

    honest = mechanism.noise()
    assert isinstance(honest, IntegerLaplace)
    repeated = Repeated(scale=honest.scale, sensitivity=honest.sensitivity, neighbors=honest.neighbors)
    monkeypatch.setattr(counters, "noise_of", lambda asked, steps: repeated)
    assert shown(mechanism, pair, label) > 1
