"""Quantiles, heavy hitters and distinct people over streams."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import discreet as dp
from discreet import InvalidInput, Public
from discreet._public import Unit
from discreet.mechanisms import Histogram
from discreet.sampling import SeededEntropy
from discreet.streaming import (
    ContinualCounter,
    DyadicCounts,
    HashedBits,
    LinearLoss,
    PerUnit,
    Presence,
    counter,
)
from discreet.streaming.losses import ClippedGradients
from discreet.tables import Memory

PUBLIC = Public(schema={"age": dp.Bounds(0, 100), "city": dp.Text()}, table="visits")


def final(mechanism: ContinualCounter, batches: list[Memory]) -> Any:
    entropy = SeededEntropy(5)
    state = mechanism.start(batches[0], entropy=entropy)
    for batch in batches:
        state, released = mechanism.feed(state, batch, entropy=entropy)
    return released.value


def batches(ages: Any, cities: Any, parts: int = 4) -> list[Memory]:
    return [
        Memory({"age": a, "city": c.tolist()}, PUBLIC)
        for a, c in zip(np.array_split(ages, parts), np.array_split(cities, parts), strict=True)
    ]


def test_quantiles_are_read_off_released_counts() -> None:
    rng = np.random.default_rng(1)
    ages = np.clip(rng.normal(45, 15, 8000), 0, 100)
    statistic = DyadicCounts(column="age", edges=tuple(range(0, 101, 2)))
    mechanism = counter(PUBLIC, statistic, rho=0.5, horizon=16, strategy="blt")
    released = final(mechanism, batches(ages, np.full(8000, "x")))
    low, median, high = statistic.quantile(released, 0.25, 0.5, 0.75)
    for estimate, share in ((low, 0.25), (median, 0.5), (high, 0.75)):
        assert abs(estimate - np.quantile(ages, share)) <= 3


def test_one_row_moves_one_interval_of_each_level() -> None:
    statistic = DyadicCounts(column="age", edges=(0, 10, 20, 30, 40, 50))
    a = Memory({"age": [5.0, 33.0], "city": ["x", "y"]}, PUBLIC)
    b = Memory({"age": [5.0], "city": ["x"]}, PUBLIC)
    change = statistic(a) - statistic(b)
    sensitivity = statistic.sensitivity(PUBLIC)
    assert np.abs(change).sum() == sensitivity.l1 == statistic.levels
    assert statistic.length(PUBLIC) == len(change) == 5 + 3 + 2 + 1
    assert statistic.cumulative(statistic(a)).tolist() == [1, 1, 1, 2, 2]


def test_heavy_hitters_are_found_by_name_and_rare_ones_are_not() -> None:
    rng = np.random.default_rng(2)
    cities = rng.permutation(
        np.array(["geneva"] * 3000 + ["lausanne"] * 2000 + [f"v{i}" for i in range(1000)], dtype=object)
    )
    statistic = HashedBits(column="city")
    mechanism = counter(PUBLIC, statistic, rho=1, horizon=8, strategy="blt")
    hitters = statistic.heavy_hitters(final(mechanism, batches(np.zeros(6000), cities, 2)), above=800)
    assert list(hitters) == ["geneva", "lausanne"]
    assert abs(hitters["geneva"] - 3000) < 500


def test_a_row_moves_a_sketch_by_no_more_than_is_priced() -> None:
    statistic = HashedBits(column="city", buckets=4, repetitions=2, characters=3)
    a = Memory({"age": [1, 1], "city": ["\U0001f600\U0001f600", "x"]}, PUBLIC)
    b = Memory({"age": [1], "city": ["x"]}, PUBLIC)
    change = np.abs(statistic(a) - statistic(b))
    sensitivity = statistic.sensitivity(PUBLIC)
    assert change.max() <= sensitivity.linf
    assert (change > 0).sum() <= sensitivity.l0
    nulls = Memory({"age": [1, 1], "city": ["x", None]}, PUBLIC)
    assert (statistic(nulls) == statistic(b)).all()


def test_distinct_people_are_counted_once_however_often_they_come(tmp_path: Path) -> None:
    rng = np.random.default_rng(3)
    days = [rng.integers(0, 500, 300) for _ in range(5)]
    public = Public(schema={"age": dp.Bounds(0, 100)}, unit=Unit("who"), table="visits")
    people = dp.open(
        {"who": [0], "age": [1]}, schema=public, budget=dp.Budget(epsilon=9), ledger=tmp_path / "l"
    )
    mechanism = counter(public, Presence(), epsilon=8, horizon=5)
    number = people.start(mechanism).number
    for i, day in enumerate(days):
        rows = {"who": day, "age": np.ones(300)}
        session = dp.open(rows, schema=replace(public, version=f"day {i}"), ledger=tmp_path / "l")
        released = session.feed(mechanism, number=number).release
        truth = len(set(np.concatenate(days[: i + 1]).tolist()))
        assert released is not None
        assert abs(float(released.value) - truth) < mechanism.error(1 - 1e-9)


def test_histograms_of_declared_values_give_the_most_common() -> None:
    public = Public(schema={"city": dp.Categories(["bern", "rome", "oslo"])})
    mechanism = counter(public, Histogram(column="city"), rho=1, horizon=4)
    truth = Counter(["rome"] * 90 + ["oslo"] * 40)
    source = Memory({"city": list(truth.elements())}, public)
    state = mechanism.start(source, entropy=SeededEntropy(1))
    _, released = mechanism.feed(state, source, entropy=SeededEntropy(2))
    assert int(np.argmax(released.value)) == 1


def test_quantiles_and_heavy_hitters_at_user_level_bound_every_unit() -> None:
    public = replace(PUBLIC, unit=Unit("who"))
    others = {"who": list(range(40)), "age": list(range(40)), "city": ["rome"] * 40}
    loud: dict[str, list[Any]] = {"who": ["ann"] * 500, "age": [99.0] * 499 + [None], "city": ["bern"] * 500}
    for inside in (
        DyadicCounts(column="age", edges=tuple(range(0, 101, 10))),
        HashedBits(column="city", buckets=8),
    ):
        for rows in (1, 3):
            statistic = PerUnit(statistic=inside, rows=rows)
            limit = statistic.sensitivity(public)
            without = statistic(Memory({**others, "who": [str(w) for w in others["who"]]}, public))
            rows_of = {n: [*(map(str, others[n]) if n == "who" else others[n]), *loud[n]] for n in others}
            change = np.abs(statistic(Memory(rows_of, public)) - without)
            assert 0 < change.max() <= limit.linf == rows
            assert change.sum() <= (limit.l1 or 0)
            assert np.square(change).sum() <= (limit.l2_squared or 0)
    mechanism = counter(
        public, PerUnit(statistic=DyadicCounts(column="age", edges=tuple(range(0, 101, 10)))), epsilon=50, horizon=2,
        participations=1,
    )  # fmt: skip
    assert mechanism.level == "user"


def test_which_rows_of_a_unit_count_does_not_depend_on_the_order_of_rows() -> None:
    """The order is the engine's, and may go with the rows of others (1,000,000 rows of one person between two
    row groups of a Parquet file made DuckDB give the second of everybody else first)."""
    public = replace(PUBLIC, unit=Unit("who"))
    random = np.random.default_rng(4)
    who = np.repeat(np.arange(30.0), 4)
    who[:2] = -0.0
    rows = {
        "who": who,
        "age": random.integers(0, 6, 120) * 15.0,
        "city": random.choice(["oslo", "bern", "ulm"], 120),
    }
    table = pa.table(rows)
    for inside in (
        DyadicCounts(column="age", edges=tuple(range(0, 101, 10))),
        HashedBits(column="city", buckets=8),
    ):
        for most in (1, 2):
            statistic = PerUnit(statistic=inside, rows=most)
            orders = [np.arange(120), np.arange(120)[::-1], *(random.permutation(120) for _ in range(5))]
            counts = [statistic(Memory(table.take(pa.array(order)), public)) for order in orders]
            assert all(np.array_equal(counts[0], other) for other in counts)
    # By a hash, and not always the smallest or the largest.
    ages = Memory(
        {"who": np.repeat(np.arange(300), 2), "age": [5.0, 95.0] * 300, "city": ["x"] * 600}, public
    )
    ends = PerUnit(statistic=Histogram(column="age", edges=(0, 50, 100)))(ages)
    assert ends.sum() == 300
    assert ends.min() > 100


def test_ids_that_are_no_id_are_nobody_also_when_asked_directly() -> None:
    public = replace(PUBLIC, unit=Unit("who"))
    strange = [float("nan"), None, float("inf"), -float("inf")] * 50
    source = Memory(
        {"who": pa.array([1.0, 2.0, 2.0, *strange]), "age": [5.0] * 203, "city": ["x"] * 203}, public
    )
    assert int(Presence()(source)) == 2
    assert int(PerUnit(statistic=Histogram(column="age", edges=(0, 10)))(source).sum()) == 2
    gradients = ClippedGradients(loss=LinearLoss(columns=("age",)), clip=1.0)(source)
    assert abs(int(gradients[0])) <= 2 << 16


def test_shares_of_quantiles_lie_between_0_and_1() -> None:
    with pytest.raises(InvalidInput, match="share"):
        DyadicCounts(column="age", edges=(0, 1, 2)).quantile([1.0, 2.0, 3.0], 1.5)


@pytest.mark.parametrize(
    ("ids", "people"),
    [
        (pa.array([0.0, -0.0, 1.5, 0.1, 5e-324, -0.0, 0.0, 1.5]), 4),
        (pa.array(["1.5", "1.50", "-7", "0", "-0", "7", "100"]).cast(pa.decimal128(38, 4)), 5),
        (pa.array(["a", "A", "a ", "\u00e1", "a\u0301", "", "a", "ss", "\u00df"]), 8),
        (pa.array([2**53, 2**53 + 1, 2**63 - 1, 0, 0, -1, 2**53]), 5),
    ],
    ids=["floats", "decimals", "texts", "wholes"],
)
def test_ids_in_memory_mean_the_people_that_sql_means(ids: pa.Array, people: int) -> None:
    """In any order of rows: which of two equal ids comes first decides nothing."""
    public = Public(schema={"age": dp.Bounds(0, 100)}, unit=Unit("who", rows=1), table="visits")
    ages, answers = pa.array(range(len(ids))), set()
    for seed in range(4):
        order = pa.array(np.random.default_rng(seed).permutation(len(ids)))
        source = Memory(pa.table({"who": ids.take(order), "age": ages.take(order)}), public)
        query = dp.query.Query(sql="SELECT COUNT(DISTINCT who) FROM visits", public=public, epsilon=1)
        counts = PerUnit(statistic=Histogram(column="age", edges=(0, 2, 4, 6, 9)))(source)
        gradients = ClippedGradients(loss=LinearLoss(columns=("age",)), clip=1.0)(source)
        assert int(Presence()(source)) == query._without_noise(source, 3)[0][0] == people
        assert counts.sum() == people
        answers.add((*counts.tolist(), *gradients.tolist()))
    assert len(answers) == 1
