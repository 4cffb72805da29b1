"""Exact values, and the most that one row can move them: never exceeded, and attained by some pair of
tables."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from discreet._errors import InvalidInput, PrivateFact, Unsupported
from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Categories, Neighbors, Public, Unit
from discreet._registry import from_json, to_json
from discreet.mechanisms import (
    Count,
    CountNonNull,
    CountsBelow,
    Histogram,
    Sensitivity,
    Stack,
    Sum,
    SumOfSquares,
    Trusted,
    noisy_histogram,
)
from discreet.mechanisms.matrix import Attribute, Cells
from discreet.mechanisms.statistics import PowerSum, implied_sensitivity
from discreet.synthetic import Domain
from discreet.synthetic.table_domain import DomainColumn
from discreet.tables import Memory

from ..loops import for_each

Row = tuple[Any, Any]
CITIES = ("bern", "rome")
STATISTICS: dict[str, Any] = {
    "count": Count(),
    "present": CountNonNull(column="x"),
    "sum": Sum("x", Fraction(1, 4)),
    "coarse sum": Sum("x", 3),
    "squares": SumOfSquares("x", Fraction(1, 2), 1),
    "squares about a far center": SumOfSquares("x", 1, 100),
    "cubes": PowerSum(column="x", power=3),
    "cities": Histogram(column="city"),
    "bins": Histogram(column="x", edges=(-3, 0, 2, 7)),
    "one bin": Histogram(column="x", edges=(-3, 3)),
    "below": CountsBelow(column="x", thresholds=(-1, 0.5, 3)),
    "stack": Stack(parts=(Count(), Histogram(column="city"), Sum("x"))),
}

numbers = st.one_of(
    st.none(),
    st.floats(allow_nan=True, allow_infinity=True, width=64),
    st.sampled_from([-2.5, 6.5, 0.0, 0.125, -0.125, 1e300, -1e300, math.nan, math.inf]),
    st.integers(-10, 10).map(float),
)
rows = st.tuples(numbers, st.sampled_from([None, "elsewhere", *CITIES]))


def public_of(neighbors: Neighbors, nullable: bool, size: int | None = None) -> Public:
    schema = {"x": Bounds(-2.5, 6.5, nullable), "city": Categories(CITIES)}
    return Public(schema=schema, neighbors=neighbors, size=size)


def table(data: list[Row], public: Public, batch_rows: int = 2) -> Memory:
    columns = {
        "x": pa.array([x for x, _ in data], pa.float64()),
        "city": pa.array([c for _, c in data], pa.string()),
    }
    return Memory(pa.table(columns), public, batch_rows=batch_rows)


def neighbor_of(data: list[Row], neighbors: Neighbors, where: int, other: Row) -> list[Row]:
    if neighbors is ADD_REMOVE:
        return data[:where] + data[where + 1 :]
    changed = other if neighbors is REPLACE else (None, None)
    return [*data[:where], changed, *data[where + 1 :]]


def moved(statistic: Any, data: list[Row], other: list[Row], public: Public) -> list[int]:
    return far(values_of(statistic, data, public), values_of(statistic, other, public))


def values_of(statistic: Any, data: list[Row], public: Public) -> list[int]:
    return [int(value) for value in np.ravel(statistic(table(data, public)))]


def far(first: list[int], second: list[int]) -> list[int]:
    return [abs(a - b) for a, b in zip(first, second, strict=True)]


def within(moves: list[int], bound: Sensitivity) -> bool:
    assert bound.l1 is not None
    assert bound.l2_squared is not None
    return (
        sum(m > 0 for m in moves) <= bound.l0
        and max(moves) <= bound.linf
        and sum(moves) <= bound.l1
        and sum(m * m for m in moves) <= bound.l2_squared
    )


@pytest.mark.parametrize("name", STATISTICS)
@settings(max_examples=60, deadline=None)
@given(
    data=st.lists(rows, min_size=1, max_size=8),
    other=rows,
    where=st.integers(0, 7),
    neighbors=st.sampled_from(list(Neighbors)),
    nullable=st.booleans(),
)
def test_one_row_moves_it_by_at_most_its_sensitivity(
    name: str, data: list[Row], other: Row, where: int, neighbors: Neighbors, nullable: bool
) -> None:
    public, statistic = public_of(neighbors, nullable), STATISTICS[name]
    changed = neighbor_of(data, neighbors, where % len(data), other)
    assert within(moved(statistic, data, changed, public), statistic.sensitivity(public))


EXTREMES: list[Row] = [
    (x, c) for x in (-1e9, 1e9, 1.0, None, 0.5, -3.0, 3.0, -0.5) for c in ("bern", "rome", None)
]


def largest(statistic: Any, neighbors: Neighbors, public: Public) -> int:
    pairs = ((a, b) for a in EXTREMES for b in (EXTREMES if neighbors is REPLACE else EXTREMES[:1]))
    # a table of one row is in many pairs, and read once
    read = cache(lambda *rows: values_of(statistic, list(rows), public))
    return max(sum(far(read(a), read(*neighbor_of([a], neighbors, 0, b)))) for a, b in pairs)


@for_each("nullable", [True, False])
@for_each("neighbors", list(Neighbors))
@for_each("name", [n for n in STATISTICS if n != "stack"])
def test_some_pair_of_tables_attains_the_sensitivity(name: str, neighbors: Neighbors, nullable: bool) -> None:
    statistic, public = STATISTICS[name], public_of(neighbors, nullable)
    claimed = statistic.sensitivity(public).l1
    found = largest(statistic, neighbors, public)
    if neighbors is ZERO_OUT and (name == "count" or not nullable):
        assert found <= claimed  # both readings of a blank are covered; a table holds one of them
    elif name == "present" and neighbors is REPLACE and not nullable:
        assert found == claimed == 1
    else:
        assert found == claimed


def test_the_sensitivity_of_another_relation_or_half_of_it_fails_the_same_check() -> None:
    public, statistic = public_of(REPLACE, nullable=True), Sum("x")
    far = moved(statistic, [(1e9, None)], [(-1e9, None)], public)
    right = statistic.sensitivity(public)
    assert within(far, right)
    assert not within(far, Sensitivity(linf=right.linf // 2))
    assert not within(far, statistic.sensitivity(public_of(ADD_REMOVE, nullable=True)))


def test_a_nullable_sum_moves_further_under_replace_than_one_where_everybody_counts() -> None:
    schema = {n: Bounds(2, 5, n == "nullable") for n in ("nullable", "full")}
    public = Public(schema=schema, neighbors=REPLACE)
    assert Sum("nullable").sensitivity(public).linf == 5
    assert Sum("full").sensitivity(public).linf == 3
    assert implied_sensitivity("sum", REPLACE, lower=2, upper=5, nullable=False) == 3


def test_the_lectures_rule_max_of_absolute_bounds_is_for_add_remove() -> None:
    assert [implied_sensitivity("sum", n, lower=-7, upper=4) for n in Neighbors] == [7, 11, 7]
    assert [implied_sensitivity("count", n) for n in Neighbors] == [1, 0, 1]
    with pytest.raises(InvalidInput, match="kind must be"):
        implied_sensitivity("median", ADD_REMOVE)


@given(data=st.lists(rows, max_size=12), batch_rows=st.integers(1, 13))
@settings(max_examples=60, deadline=None)
def test_how_a_table_is_cut_into_batches_changes_nothing(data: list[Row], batch_rows: int) -> None:
    public = public_of(ADD_REMOVE, nullable=True)
    for statistic in STATISTICS.values():
        whole, cut = statistic(table(data, public, 100)), statistic(table(data, public, batch_rows))
        assert np.array_equal(whole, cut)


@given(
    st.lists(st.floats(-1000, 1000), max_size=20), st.sampled_from([Fraction(1, 8), Fraction(2), Fraction(1)])
)
@example([0.0625, -0.0625, 0.1875], Fraction(1, 8))
def test_each_value_is_clipped_and_rounded_halves_up_before_it_is_added(
    values: list[float], step: Fraction
) -> None:
    public = Public(schema={"x": Bounds(-100, 100)})
    exact = sum(
        (min(max(Fraction(v), Fraction(-100)), Fraction(100)) / step + Fraction(1, 2)).__floor__()
        for v in values
    )
    assert Sum("x", step)(Memory({"x": np.array(values, float)}, public)) == exact


@given(
    st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=10),
    st.fractions(Fraction(1, 1000), 1000),
)
def test_rounding_in_floats_never_leaves_the_grid_of_the_bounds(values: list[float], step: Fraction) -> None:
    public = Public(schema={"x": Bounds(-7.7, 13.1, nullable=False)}, neighbors=REPLACE)
    low, high = Sum("x", step).range(public)
    total = int(Sum("x", step)(Memory({"x": np.array(values, float)}, public)))
    assert low * len(values) <= total <= high * len(values)


def test_bins_that_all_lie_outside_of_the_declared_bounds_are_refused_before_the_charge() -> None:
    """Values are clipped to their bounds, so that no row was ever in one: noise was paid for."""
    public = Public(schema={"x": Bounds(0, 1)})
    for outside in ((5, 6), (-2, -0.5)):
        for build in (
            lambda edges: noisy_histogram(public, "x", epsilon=1, edges=edges),
            lambda edges: Cells.of(Attribute(column="x", edges=edges)).domain(public),
            lambda edges: Domain(columns=(DomainColumn(column="x", edges=edges),)).codings(public),
        ):
            with pytest.raises(InvalidInput, match="at least one overlaps the declared bounds of 'x'"):
                build(outside)
    for touching in ((-1, 0), (1, 2), (0.5, 7, 8)):
        assert Histogram(column="x", edges=touching).length(public) == len(touching) - 1


def test_what_is_missing_adds_nothing_or_counts_as_the_lower_bound() -> None:
    data = {"x": [None, math.nan, math.inf, -math.inf, 4.0]}
    assert Sum("x")(Memory(data, Public(schema={"x": Bounds(3, 9)}))) == 4
    assert Sum("x")(Memory(data, Public(schema={"x": Bounds(3, 9, nullable=False)}))) == 4 + 4 * 3
    assert CountNonNull(column="x")(Memory(data, Public())) == 1


def test_sums_beyond_64_bits_are_exact() -> None:
    public = Public(schema={"x": Bounds(-(2**61), 2**61)})
    values = [2**61] * 100 + [2**61 - 12345] * 7
    total = Sum("x")(Memory({"x": np.array(values)}, public, batch_rows=1000))
    assert total.dtype == object
    assert int(total) == sum(values)
    assert int(Sum("x")(Memory({"x": -np.array(values)}, public))) == -sum(values)


@pytest.mark.parametrize(
    ("column", "expected"),
    [
        (pa.array([1, 2, None], pa.int8()), 3),
        (pa.array([2**64 - 1, 3], pa.uint64()), 13),
        (pa.array([True, False, None, True]), 2),
        (pa.array([Decimal("1.50"), Decimal("2.50")]), 5),
        (pa.array([1.5, 2.5], pa.float32()), 5),
        (pa.array([None, None]), 0),
        (pa.array([3, 4, 4]).dictionary_encode(), 11),
    ],
)
def test_every_kind_of_number_is_read(column: Any, expected: int) -> None:
    public = Public(schema={"x": Bounds(0, 10)})
    assert Sum("x")(Memory(pa.table({"x": column}), public)) == expected


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_histogram_counts_declared_categories_in_their_order(kind: Any) -> None:
    public = Public(schema={"c": Categories(["b", "a", "never"])})
    column = pa.array(["a", "a", "b", "other", None], pa.string()).cast(kind)
    assert Histogram(column="c")(Memory(pa.table({"c": column}), public)).tolist() == [1, 2, 0]


@pytest.mark.parametrize("kind", [pa.uint8(), pa.int64(), pa.float64()])
def test_a_histogram_of_integers(kind: Any) -> None:
    public = Public(schema={"c": Categories([3, 300, -1])})
    column = pa.array([3, 3, 200, None], kind)
    assert Histogram(column="c")(Memory(pa.table({"c": column}), public)).tolist() == [2, 0, 0]


def test_bins_are_closed_on_the_left_and_the_last_one_on_both_sides() -> None:
    public = Public(schema={"x": Bounds(0, 10)})
    data = Memory({"x": [0, 1, 2, 2.9, 3, 9, None]}, public)
    assert Histogram(column="x", edges=(0, 1, 3))(data).tolist() == [1, 4]
    assert CountsBelow(column="x", thresholds=(1, 3, 100))(data).tolist() == [1, 4, 6]


@for_each("statistic", STATISTICS.values(), ids=STATISTICS)
def test_descriptions_rebuild_statistics(statistic: Any) -> None:
    assert from_json(to_json(statistic)) == statistic


def test_many_rows_a_person_are_refused_before_anything_is_read() -> None:
    public = Public(schema={"x": Bounds(0, 1), "city": Categories(CITIES)}, unit=Unit("person"))
    for statistic in STATISTICS.values():
        with pytest.raises(Unsupported, match=r"discreet\.query"):
            statistic.sensitivity(public)


def test_what_is_not_declared_is_not_guessed() -> None:
    with pytest.raises(PrivateFact, match="nothing is declared of column"):
        Sum("x").sensitivity(Public())
    with pytest.raises(InvalidInput, match="give the ends of its bins"):
        Histogram(column="x").sensitivity(Public(schema={"x": Bounds(0, 1)}))


@for_each(
    ("build", "fact"),
    [
        (lambda: Sum("x", 0), "step must be above zero"),
        (lambda: Sum("x", math.nan), "step must be a number"),
        (lambda: Sum("x", -1), "step must be above zero"),
        (
            lambda: Histogram(column="x", edges=(1,)),
            "edges must be at least 2 numbers in increasing order that",
        ),
        (
            lambda: Histogram(column="x", edges=(1, 1)),
            "edges must be at least 2 numbers in increasing order that",
        ),
        (lambda: Histogram(column="x", edges=(0, math.inf)), r"edges\[1\] must be finite"),
        (
            lambda: CountsBelow(column="x", thresholds=(2, 1)),
            "thresholds must be at least 1 numbers in increasing order that",
        ),
        (lambda: PowerSum(column="x", power=0), "power must be an integer of at least 1"),
        (lambda: Stack(parts=()), "parts must not be empty"),
        (
            lambda: Stack(parts=(Count(), Bounds(0, 1))),
            r"parts\[1\] must be a statistic, such as Count\(\) or",
        ),
        (lambda: Stack(parts=(Count(), Sum("x", 2))), "the stacked statistics are on different grids"),
        (
            lambda: Sum("x", Fraction(1, 10**30)).sensitivity(Public(schema={"x": Bounds(0, 1)})),
            "reach further than",
        ),
        (
            lambda: PowerSum(column="x", power=9).sensitivity(Public(schema={"x": Bounds(0, 1000)})),
            "may exceed",
        ),
    ],
)
def test_bad_parameters_are_refused(build: Any, fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        build()


def test_text_under_bounds_is_read_as_numbers_and_what_is_none_is_missing() -> None:
    data = Memory({"x": ["secret", "1", " 0.6", ""]}, Public(schema={"x": Bounds(0, 1)}))
    assert Sum("x", step=Fraction(1, 10))(data) == 16


def test_a_column_of_the_wrong_type_is_refused_without_showing_a_value() -> None:
    with pytest.raises(InvalidInput, match="list") as failure:
        Memory({"x": pa.array([[1], [2]])}, Public(schema={"x": Bounds(0, 1)}))
    assert "[1]" not in str(failure.value)
    numbers = Memory({"x": ["secret", "1"]}, Public(schema={"x": Categories([1, 2])}))
    assert Histogram(column="x")(numbers).tolist() == [1, 0]  # text that is no number is missing


def test_trusted_code_must_return_integers() -> None:
    bad = Trusted(function=lambda source: 0.5, claimed=Sensitivity(linf=1))
    with pytest.raises(InvalidInput, match="grid"):
        bad(Memory({"x": [1]}, Public()))


@given(
    st.lists(st.integers(-(2**63), 2**63 - 1), max_size=8),
    st.sampled_from([Fraction(1), Fraction(7), Fraction(1, 7), Fraction(3, 2)]),
)
def test_integers_are_rounded_exactly(values: list[int], step: Fraction) -> None:
    public = Public(schema={"x": Bounds(-(2**40), 2**50)})
    exact = sum((Fraction(min(max(v, -(2**40)), 2**50)) / step + Fraction(1, 2)).__floor__() for v in values)
    assert int(Sum("x", step)(Memory({"x": np.array(values, np.int64)}, public))) == exact


def test_the_two_zeros_are_one_category() -> None:
    public = Public(schema={"c": Categories([0, 1])})
    for kind in (pa.float64(), pa.float32(), pa.float16()):
        column = pa.array(np.array([-0.0, 0.0, 1.0], dtype=kind.to_pandas_dtype()))
        assert Histogram(column="c")(Memory({"c": column}, public)).tolist() == [2, 1]
