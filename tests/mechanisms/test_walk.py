"""What somebody with only the docs in hand ran into: wrong kinds of data, numbers without bins, medians in
steps."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pandas as pd
import pytest

import discreet.mechanisms as mech
from discreet import Bounds, Categories, Public
from discreet._errors import InvalidInput
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

PUBLIC = Public(schema={"age": Bounds(0, 100), "city": Categories(["bern", "rome"])})
ROWS = {"age": [50.0] * 300, "city": ["bern"] * 300}


@pytest.mark.parametrize(
    "data", [ROWS, pd.DataFrame(ROWS), [1, 2], None, Memory], ids=lambda d: type(d).__name__
)
def test_data_that_are_no_source_are_refused_with_the_way_to_make_one(data: Any) -> None:
    with pytest.raises(InvalidInput, match=r"tables\.Memory\(data, public\)") as refusal:
        mech.noisy_count(PUBLIC, epsilon=1)(data, entropy=SeededEntropy(1))
    assert "50" not in str(refusal.value)


def test_a_histogram_of_numbers_asks_for_its_edges() -> None:
    with pytest.raises(InvalidInput, match="edges="):
        mech.noisy_histogram(PUBLIC, "age", epsilon=1)
    with pytest.raises(InvalidInput, match="declared as categories"):
        mech.noisy_histogram(PUBLIC, "city", epsilon=1, edges=(0, 1))


@pytest.mark.parametrize("step", [10, Fraction(1, 2)])
def test_a_stable_median_is_released_in_the_columns_own_unit_whatever_the_grid(step: Any) -> None:
    people, entropy = Memory(ROWS, PUBLIC), SeededEntropy(2)
    median = mech.StableMedian(column="age", step=step)
    assert mech.DistanceToInstability(public=PUBLIC, function=median, epsilon=1, delta=1e-6)(
        people, entropy=entropy
    ).value == pytest.approx(50)
    many = mech.StableSparseVector(public=PUBLIC, epsilon=1, delta=1e-6, failures=1, questions=2)
    _, answer = many.answer(many.start(people, entropy=entropy), people, median, entropy=entropy)
    assert answer.value == pytest.approx(50)
