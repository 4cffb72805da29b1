from __future__ import annotations

import itertools
import json
import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import accounting
from discreet._errors import InvalidInput, PrivateFact, Unsupported
from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Neighbors, Public, Unit
from discreet._registry import from_json, to_json
from discreet.mechanisms.bounds import HistogramBounds
from discreet.mechanisms.means import (
    Mean,
    MeanWithFoundBounds,
    Scale,
    Variance,
    _cells,
    _sums,
    mean_span,
    variance_span,
    with_bounds,
)
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

from ..loops import for_each
from .laws import assert_rarely


def facts(neighbors=ADD_REMOVE, *, nullable=True, lower=0, upper=10, **more):
    return Public(schema={"v": Bounds(lower, upper, nullable)}, neighbors=neighbors, **more)


def column(rows, public):
    return Memory({"v": rows}, public)


def sums(mechanism, rows, public):
    return _sums(column(rows, public), "v", public.bounds("v").nullable, mechanism._scale(), squares=True)


RELATIONS = [(n, nullable) for n in (ADD_REMOVE, REPLACE, ZERO_OUT) for nullable in (True, False)]
cells = st.one_of(st.none(), st.floats(-20, 20))


@pytest.mark.parametrize(("neighbors", "nullable"), RELATIONS)
@given(rows=st.lists(cells, max_size=4), old=cells, new=cells)
@settings(max_examples=60, deadline=None)
def test_one_row_moves_each_sum_within_what_its_noise_is_priced_for(neighbors, nullable, rows, old, new):
    public = facts(neighbors, nullable=nullable, lower=-3, upper=10)
    mechanism = Variance(public=public, column="v", epsilon=1, step=Fraction(1, 4))
    other = {ADD_REMOVE: [], REPLACE: [new], ZERO_OUT: [None]}[neighbors]
    one, two = (sums(mechanism, np.array(r, dtype=float), public) for r in ([*rows, old], [*rows, *other]))
    for before, after, noise in zip(one, two, mechanism._noises(), strict=True):
        assert abs(before - after) <= noise.sensitivity


def test_the_sensitivities_are_attained_and_halved_by_the_middle():
    public = facts()
    mechanism = Variance(public=public, column="v", epsilon=1, step=1)
    empty = sums(mechanism, np.array([], dtype=float), public)
    moves = [
        max(abs(a - b) for a, b in zip(column_, itertools.repeat(base), strict=False))
        for column_, base in zip(
            zip(*(sums(mechanism, np.array([v], dtype=float), public) for v in range(11)), strict=True),
            empty,
            strict=True,
        )
    ]
    assert moves == [noise.sensitivity for noise in mechanism._noises()] == [1, 5, 13]  # not 10 and 100


def test_the_price_is_epsilon_whatever_is_public():
    for neighbors, nullable in RELATIONS:
        public = facts(neighbors, nullable=nullable, size=None if neighbors is ADD_REMOVE else 5)
        for cls in (Mean, Variance):
            mechanism = cls(public=public, column="v", epsilon=Fraction(3, 2), step=1)
            assert accounting.basic(mechanism.event).value == pytest.approx(1.5)
            assert mechanism.event.neighbors is neighbors
    known = Mean(public=facts(REPLACE, nullable=False, size=5), column="v", epsilon=1, step=1)
    assert known.event == accounting.DiscreteLaplace(scale=Fraction(10), sensitivity=10, neighbors=REPLACE)


def test_a_declared_size_is_never_believed_under_add_remove():
    guess = facts(size=5, nullable=False)
    assert len(accounting.events.leaves(Mean(public=guess, column="v", epsilon=1, step=1).event)) == 2


@given(
    rows=st.lists(st.integers(0, 40), min_size=1, max_size=30), spread=st.tuples(*[st.integers(0, 50)] * 3)
)
@settings(deadline=None)
def test_spans_contain_the_truth_whenever_the_noise_is_inside_its_bounds(rows, spread):
    scale = Scale(Fraction(-5), Fraction(1, 4), 40)
    apart = [r - scale.middle for r in rows]
    exact = (len(rows), sum(apart), sum(a * a - scale.largest_square // 2 for a in apart))
    parts = [(Fraction(v - w), Fraction(v + w)) for v, w in zip(exact, spread, strict=True)]
    values = np.array([float(scale.lower + scale.step * r) for r in rows])
    low, high = mean_span(parts[0], parts[1], None, scale)
    assert low - Fraction(1, 10**9) <= Fraction(float(values.mean())) <= high + Fraction(1, 10**9)
    low, high = variance_span(*parts, scale)
    assert low - Fraction(1, 10**9) <= Fraction(float(values.var())) <= high + Fraction(1, 10**9)


def test_without_noise_the_span_is_the_answer():
    scale, rows = Scale(Fraction(0), Fraction(1), 10), [1, 4, 9, 9]
    apart = [r - 5 for r in rows]
    exact = [len(rows), sum(apart), sum(a * a - 12 for a in apart)]
    parts = [(Fraction(v), Fraction(v)) for v in exact]
    assert scale.largest_square // 2 == 12
    assert mean_span(parts[0], parts[1], None, scale) == (Fraction(23, 4),) * 2
    assert variance_span(*parts, scale) == (Fraction(float(np.var(rows))),) * 2


@pytest.mark.parametrize(("cls", "truth"), [(Mean, np.mean), (Variance, np.var)])
@pytest.mark.parametrize("size", [3, pytest.param(60, marks=pytest.mark.slow), 2000])
@pytest.mark.parametrize("relation", [ADD_REMOVE, REPLACE])
def test_the_error_holds_at_every_size_and_is_not_idle(cls, truth, size, relation):
    rows = np.random.default_rng(3).integers(0, 11, size).astype(float)
    public = facts(relation, nullable=relation is ADD_REMOVE, size=None if relation is ADD_REMOVE else size)
    mechanism, source = cls(public=public, column="v", epsilon=1, step=1), column(rows, public)
    entropy, n, failures, used = SeededEntropy(size), 300, 0, 0.0
    for _ in range(n):
        release = mechanism(source, entropy=entropy)
        off, limit = abs(release.value - truth(rows)), release.error(0.9)
        failures += off > limit
        used = max(used, off / limit if off <= limit else 1)
        assert 0 <= release.value <= (10 if cls is Mean else 25)
    assert_rarely(failures, n, 0.1)
    assert used > 0.3
    if size == 2000:
        assert limit < (0.2 if cls is Mean else 0.8)


@given(
    st.lists(st.integers(0, 40), min_size=1, max_size=8),
    st.lists(st.integers(-900, 900), min_size=3, max_size=3),
    st.lists(st.integers(0, 30), min_size=3, max_size=3),
)
@settings(deadline=None, max_examples=60)
def test_spans_around_any_noisy_sums_contain_the_truth_and_grow(rows, noise, more):
    """A span beyond the bounds became all of them, and a longer one, which reached the bounds, a short one: errors
    shrank with growing confidence."""
    scale = Scale(Fraction(-5), Fraction(1, 4), 40)
    apart = [r - scale.middle for r in rows]
    exact = (len(rows), sum(apart), sum(a * a - scale.largest_square // 2 for a in apart))
    noisy = [v + z for v, z in zip(exact, noise, strict=True)]

    def spans(wider):
        widths = [abs(z) + w if wider else w for z, w in zip(noise, more, strict=True)]
        parts = [(Fraction(v - w), Fraction(v + w)) for v, w in zip(noisy, widths, strict=True)]
        return mean_span(parts[0], parts[1], None, scale), variance_span(*parts, scale)

    values = [scale.lower + scale.step * r for r in rows]
    mean = sum(values) / len(values)
    truths = mean, sum((v - mean) ** 2 for v in values) / len(values)
    for (low, high), (least, most), truth in zip(spans(False), spans(True), truths, strict=True):
        assert least <= low <= high <= most
        assert least <= truth <= most


@pytest.mark.parametrize("cls", [Mean, Variance])
def test_errors_grow_with_the_confidence_with_four_rows(cls):
    public, entropy = facts(size=4), SeededEntropy(2)
    for _ in range(20):
        release = cls(public=public, column="v", epsilon=0.3, step=1)(
            column([0, 1, 9, 10], public), entropy=entropy
        )
        errors = [release.error(c) for c in (0.01, 0.1, 0.3, 0.5, 0.8, 0.9, 0.95, 0.99, 0.9999)]
        assert errors == sorted(errors)


def test_sums_that_contradict_the_bounds_keep_the_length_of_their_span():
    scale = Scale(Fraction(0), Fraction(1), 10)
    beyond = (Fraction(90), Fraction(95))  # of four values that are at most 5 from the middle
    assert mean_span((Fraction(4), Fraction(4)), beyond, None, scale) == (10 - Fraction(5, 8), 10)
    assert mean_span((Fraction(4), Fraction(4)), (Fraction(90), Fraction(90)), None, scale) == (10, 10)


def test_an_error_that_forgets_the_count_would_be_refuted():
    """With few rows far from the middle the count's noise matters; its span at zero width fails too often."""
    public, rows = facts(), np.full(12, 10.0)
    mechanism = Mean(public=public, column="v", epsilon=1, step=1, shares=(1, 30))
    scale, noises, entropy, wrong = mechanism._scale(), mechanism._noises(), SeededEntropy(4), 0
    exact, width = sums(mechanism, rows, public), noises[1].error(0.9)
    for _ in range(200):
        count, total = (int(z([v], entropy=entropy)[0]) for z, v in zip(noises, exact, strict=False))
        span = mean_span(
            (Fraction(count),) * 2, (Fraction(total - width), Fraction(total + width)), None, scale
        )
        wrong += not span[0] <= 10 <= span[1]
    with pytest.raises(AssertionError):
        assert_rarely(wrong, 200, 0.1)


def test_huge_values_and_many_rows_neither_wrap_nor_warn():
    public = facts(lower=-1e300, upper=1e300)
    rows = np.array([1.7e308, -1.7e308, 1e300, math.inf, math.nan])
    mechanism = Variance(public=public, column="v", epsilon=1, step=1e300 / 2**28)
    count, total, squares = sums(mechanism, rows, public)
    scale = mechanism._scale()
    assert scale.cells == 2**29
    assert (count, total) == (3, scale.cells // 2)
    assert squares == 3 * (scale.largest_square - scale.largest_square // 2)
    for seed in range(20):  # the variance itself is beyond floats, whatever the noise
        found = mechanism(column(rows, public), entropy=SeededEntropy(seed))
        assert math.isfinite(found.value)
        assert found.error(0.9) > 0


def test_missing_values_are_left_out_or_count_as_the_lower_bound():
    rows = [4.0] * 3000 + [None] * 1000
    for nullable, expected in ((True, 4.0), (False, 3.0)):
        public = facts(nullable=nullable)
        answer = Mean(public=public, column="v", epsilon=10, step=1)(
            column(rows, public), entropy=SeededEntropy(2)
        )
        assert answer.value == pytest.approx(expected, abs=0.05)


def test_an_empty_table_gives_an_answer_inside_the_bounds():
    public = facts(lower=2)
    answer = Mean(public=public, column="v", epsilon=1, step=1)(
        column(np.array([], dtype=float), public), entropy=SeededEntropy(2)
    )
    assert 2 <= answer.value <= 10


# --- bounds that were bought --------------------------------------------------------------------------------


def finder(public, epsilon=2):
    return HistogramBounds(public=public, column="v", epsilon=epsilon, smallest=1, levels=20)


def test_a_mean_inside_found_bounds_costs_both():
    public = Public()
    mechanism = MeanWithFoundBounds(public=public, column="v", finder=finder(public), epsilon=1)
    assert accounting.basic(mechanism.event).value == pytest.approx(3)
    assert from_json(json.loads(json.dumps(to_json(mechanism)))) == mechanism
    rows = np.random.default_rng(1).normal(700, 50, 5000)
    answer = mechanism(column(rows, public), entropy=SeededEntropy(9))
    assert abs(answer.value - rows.mean()) <= answer.error(0.999) < 5
    assert mechanism(column(np.array([], dtype=float), public), entropy=SeededEntropy(9)).value is None


@pytest.mark.parametrize("value", [0.0, 5e-324])
def test_a_mean_inside_the_smallest_bounds_is_told(value: float):
    # Found between 0 and the least float: the step within has no inverse, which must not fail after the charge.
    public = Public()
    smallest = HistogramBounds(public=public, column="v", epsilon=5, smallest=5e-324, levels=300)
    mechanism = MeanWithFoundBounds(public=public, column="v", finder=smallest, epsilon=1)
    answer = mechanism(column(np.full(2000, value), public), entropy=SeededEntropy(3))
    assert abs(answer.value - value) <= answer.error(0.99)


@pytest.mark.parametrize("upper", [5e-324, 1e-308, Fraction(1, 10**400), 1e300])
def test_cells_lie_in_the_range_whatever_the_bounds(upper):
    scale = Scale(Fraction(0), Fraction(upper) / 8, 8)
    values = np.array([-1e308, -0.0, 0.0, 5e-324, 1e-309, 1.0, 1e308])
    cells = _cells(values, scale)
    assert cells.dtype == np.int64
    assert ((cells >= 0) & (cells <= 8)).all()
    assert cells[0] == cells[1] == cells[2] == 0
    assert cells[-1] == (8 if float(upper) else 0)


def test_found_bounds_can_be_declared_for_later():
    found = finder(Public())(column(np.full(500, 3.0), Public()), entropy=SeededEntropy(5)).value
    public = with_bounds(Public(), "v", found)
    assert public.bounds("v") == found == Bounds(2.0, 4.0)
    assert with_bounds(public, "v", Bounds(0, 1)).bounds("v") == Bounds(0, 1)


def test_a_finder_for_something_else_is_refused():
    with pytest.raises(InvalidInput, match="finder"):
        MeanWithFoundBounds(public=Public(), column="w", finder=finder(Public()), epsilon=1)


# --- bad input ----------------------------------------------------------------------------------------------


@for_each("cls", [Mean, Variance])
@for_each(
    "bad",
    [
        {"epsilon": 0},
        {"epsilon": math.inf},
        {"epsilon": math.nan},
        {"step": 0},
        {"step": -1},
        {"step": 100},
        {"step": 2.0**-40},
        {"shares": (1,)},
        {"shares": (0, 1, 1)},
        {"shares": (0, 1)},
    ],
)
def test_bad_parameters_are_refused(cls, bad):
    with pytest.raises(InvalidInput, match=r"must be|steps wide"):
        cls(**({"public": facts(), "column": "v", "epsilon": 1, "step": 1} | bad))


def test_undeclared_bounds_and_units_of_many_rows_are_refused():
    with pytest.raises(PrivateFact, match="nothing is declared of column"):
        Mean(public=Public(), column="v", epsilon=1, step=1)
    with pytest.raises(Unsupported, match="the unit of privacy is all rows of"):
        Mean(public=facts(unit=Unit("person")), column="v", epsilon=1, step=1)


@pytest.mark.parametrize("neighbors", [REPLACE, ZERO_OUT])
def test_where_values_may_be_missing_a_public_size_is_not_their_number(neighbors: Neighbors) -> None:
    public = Public(schema={"x": Bounds(0, 100)}, neighbors=neighbors, size=2000)
    source = Memory({"x": [90.0, None] * 1000}, public)
    made = Mean(public=public, column="x", epsilon=1, step=1)(source, entropy=SeededEntropy(1))
    assert abs(made.value - 90) <= made.error(1 - 1e-9) < 20


def test_the_error_is_about_the_float_that_is_released() -> None:
    public = facts(REPLACE, nullable=False, lower=10**18, upper=10**18 + 1024, size=2)
    mechanism = Mean(public=public, column="v", epsilon=10**6, step=128)
    source = Memory({"v": [1e18 + 128, 1e18 + 256]}, public)
    answer = mechanism(source, entropy=SeededEntropy(1))
    assert abs(Fraction(answer.value) - (10**18 + 192)) == 64 <= answer.error(0.95)


def test_a_confidence_next_to_one_is_split_and_shares_may_be_a_generator() -> None:
    public = facts()
    mechanism = Mean(public=public, column="v", epsilon=1, step=1, shares=(share for share in (1, 3)))
    assert mechanism.shares == (1, 3)
    answer = mechanism(Memory({"v": [1.0, 2.0]}, public), entropy=SeededEntropy(1))
    assert answer.error(math.nextafter(1, 0)) <= 10


def test_a_value_at_the_end_of_floats_makes_no_warning() -> None:
    scale = Scale(Fraction(-(2**1022)), Fraction(2**1024), 1)
    assert _cells(np.array([1.7e308, -1.7e308]), scale).tolist() == [1, 0]
