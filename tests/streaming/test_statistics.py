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
from discreet import Public
from discreet._public import Unit
from discreet.mechanisms import Histogram
from discreet.sampling import SeededEntropy
from discreet.streaming import (
    ContinualCounter,
    LinearLoss,
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


def test_ids_that_are_no_id_are_nobody_also_when_asked_directly() -> None:
    public = replace(PUBLIC, unit=Unit("who"))
    strange = [float("nan"), None, float("inf"), -float("inf")] * 50
    source = Memory(
        {"who": pa.array([1.0, 2.0, 2.0, *strange]), "age": [5.0] * 203, "city": ["x"] * 203}, public
    )
    assert int(Presence()(source)) == 2
    gradients = ClippedGradients(loss=LinearLoss(columns=("age",)), clip=1.0)(source)
    assert abs(int(gradients[0])) <= 2 << 16


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
        gradients = ClippedGradients(loss=LinearLoss(columns=("age",)), clip=1.0)(source)
        assert int(Presence()(source)) == query._without_noise(source, 3)[0][0] == people
        answers.add(tuple(gradients.tolist()))
    assert len(answers) == 1
