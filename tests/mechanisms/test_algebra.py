"""The price of the whole from the prices of the parts."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from discreet import accounting
from discreet._errors import (
    DescriptionError,
    InvalidInput,
    PrivateFact,
    PublicMismatch,
    Unsupported,
    WrongRelation,
)
from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Categories, Neighbors, Public, Unit
from discreet._registry import to_json
from discreet.accounting import ApproximateDP, DiscreteLaplace, PureDP
from discreet.mechanisms import (
    Clamp,
    Count,
    CountNonNull,
    Fold,
    GroupPrivate,
    Histogram,
    InputPerturbation,
    Mean,
    Median,
    Parallel,
    PostProcessed,
    Round,
    Sequential,
    Sum,
    Truncate,
    gaussian,
    laplace,
    noisy_count,
    noisy_histogram,
    noisy_sum,
    part_public,
)
from discreet.mechanisms.algebra import SourcePart, split
from discreet.mechanisms.protocols import Mechanism, rehearse
from discreet.query import Query
from discreet.sampling import SeededEntropy
from discreet.tables import Memory
from tests.contracts.audit import CountingEntropy

from ..loops import for_each

SCHEMA = {"x": Bounds(0, 10, nullable=False), "c": Categories(["a", "b", "z"])}


def facts(neighbors: Neighbors = ADD_REMOVE) -> Public:
    return Public(schema=SCHEMA, neighbors=neighbors, size=None if neighbors is ADD_REMOVE else 4)


def people(public: Public) -> Memory:
    return Memory({"x": [1, 2, 3, 4], "c": ["a", "a", "b", None]}, public)


# --- post-processing ----------------------------------------------------------------------------------------


@given(st.floats(-1e6, 1e6), st.floats(-100, 100), st.floats(0.5, 50), st.floats(0, 1))
def test_clamping_and_folding_never_take_a_value_further_from_a_truth_inside(
    value: float, lower: float, width: float, where: float
) -> None:
    upper = lower + width
    truth = lower + where * width
    for function in (Clamp(lower=lower, upper=upper), Fold(lower=lower, upper=upper)):
        after = function(value)
        assert lower - 1e-6 <= after <= upper + 1e-6
        assert abs(after - truth) <= abs(value - truth) + 1e-6


@given(st.floats(-1e6, 1e6), st.fractions(Fraction(1, 100), 10))
def test_rounding_adds_at_most_the_error_it_says(value: float, step: Fraction) -> None:
    for function in (Round(step=step), Truncate(step=step)):
        assert abs(Fraction(function(value)) - Fraction(value)) <= function.added_error + Fraction(1, 10**6)
    assert abs(Truncate(step=step)(value)) <= abs(value) + 1e-6


def test_functions_act_on_every_entry() -> None:
    assert Clamp(lower=0)(np.array([-1, 5])).tolist() == [0, 5]
    assert Round(step=Fraction(1, 2))(np.array([0.3, 1.1])).tolist() == [0.5, 1.0]
    assert Clamp(upper=7)(9) == 7
    assert Fold(lower=0, upper=10)(np.array([-3, 25])).tolist() == [3, 5]


class Place(NamedTuple):
    name: str
    rank: int


@for_each("function", [Clamp(lower=0), Fold(lower=0, upper=10), Round(step=2), Truncate()])
@for_each(
    "value", [None, "rome", Bounds(0, 1), ("rome", "bern"), Place("rome", 3), {"a": 1}, [[1], [2, 3]], True]
)
def test_what_is_not_made_of_numbers_stays_as_it_is(function: Any, value: Any) -> None:
    # It was paid for: an error after the charge would lose it.
    assert function(value) == value


def test_a_table_that_a_function_leaves_as_it_is_keeps_its_errors() -> None:
    public = facts()
    query = Query(sql="SELECT COUNT(*) AS n FROM data", public=public, epsilon=1)
    rounded = PostProcessed(mechanism=query, function=Round(step=10))
    answer = rounded(people(public), entropy=SeededEntropy(1))
    assert answer.error(0.9) == answer.value.error(0.9)
    assert answer.value.columns == ("n",)


def test_post_processing_is_free_and_keeps_an_honest_error() -> None:
    public = facts()
    inside = noisy_count(public, epsilon=1)
    clamped = PostProcessed(mechanism=inside, function=Clamp(lower=0))
    rounded = PostProcessed(mechanism=inside, function=Round(step=10))
    assert clamped.event == rounded.event == inside.event
    assert clamped.error(0.9) == inside.error(0.9)
    assert rounded.error(0.9) == inside.error(0.9) + 5
    trusted = PostProcessed(mechanism=inside, function=lambda value: value // 2)
    released = trusted(people(public), entropy=SeededEntropy(1))
    assert released.value == inside(people(public), entropy=SeededEntropy(1)).value // 2
    with pytest.raises(InvalidInput, match="Python function"):
        released.error(0.9)
    with pytest.raises(DescriptionError, match="trusted"):
        to_json(trusted)


@for_each(
    ("build", "fact"),
    [
        (lambda: Clamp(), "clamping needs lower, upper, or both"),
        (lambda: Clamp(lower=2, upper=1), "lower must be below upper"),
        (lambda: Clamp(lower=math.nan), "lower must be a number"),
        (lambda: Fold(lower=0, upper=0), "lower must be below upper"),
        (lambda: Round(step=0), "step must be above zero"),
        (lambda: Truncate(step=-1), "step must be above zero"),
        (
            lambda: PostProcessed(mechanism=Count(), function=Clamp(lower=0)),
            "mechanism must be a mechanism: something with public, event and",
        ),
        (
            lambda: PostProcessed(mechanism=noisy_count(facts(), epsilon=1), function=7),
            "function must be a function of the released value",
        ),
        (
            lambda: PostProcessed(mechanism=noisy_count(facts(), epsilon=1), function=Count()),
            "function must be a function of the released value",
        ),
        (lambda: Sequential(mechanisms=()), "mechanisms must not be empty"),
        (
            lambda: Sequential(mechanisms=(Count(),)),
            r"mechanisms\[0\] must be a mechanism: something with public, event",
        ),
        (
            lambda: GroupPrivate(mechanism=noisy_count(facts(), epsilon=1), size=0),
            "size must be an integer of at least 1",
        ),
        (lambda: Parallel(public=facts(), column="c", parts=()), "parts must not be empty"),
        (lambda: part_public(facts(), "c", "unknown"), "is not among the declared categories of column"),
        (lambda: part_public(facts(), "x", "a"), "is declared as a number"),
    ],
)
def test_bad_parameters_are_refused(build: Any, fact: str) -> None:
    with pytest.raises(InvalidInput, match=fact):
        build()


# --- one after the other, and groups ------------------------------------------------------------------------


def test_a_sequence_costs_the_sum() -> None:
    public = facts()
    both = Sequential(
        mechanisms=(noisy_count(public, epsilon=1), noisy_histogram(public, "c", epsilon=Fraction(1, 2)))
    )
    assert accounting.basic(both.event).value == 1.5
    twice = Sequential(mechanisms=(noisy_count(public, epsilon=1),) * 2)
    assert twice.event == noisy_count(public, epsilon=1).event.repeated(2)
    values = twice(people(public), entropy=SeededEntropy(3)).value
    draws = {twice(people(public), entropy=SeededEntropy(seed)).value for seed in range(40)}
    assert any(a != b for a, b in draws)  # each part has its own noise
    assert len(values) == 2


def test_a_sequence_on_different_public_facts_is_refused() -> None:
    parts = (noisy_sum(facts(), "x", epsilon=1), noisy_sum(facts(REPLACE), "x", epsilon=1))
    with pytest.raises(PublicMismatch, match="the mechanisms were priced for different public facts,"):
        Sequential(mechanisms=parts)


@given(st.floats(0.01, 0.99), st.integers(1, 1000))
def test_split_confidences_hold_together(confidence: float, parts: int) -> None:
    failures = parts * (1 - Fraction(split(confidence, parts)))
    assert failures <= 1 - Fraction(confidence)


@given(st.fractions(Fraction(1, 100), 2), st.floats(1e-12, 1e-3), st.integers(1, 12))
@settings(max_examples=50)
def test_group_privacy_has_the_right_factor_on_delta(epsilon: Fraction, delta: float, size: int) -> None:
    price = accounting.basic(accounting.Group(event=ApproximateDP(epsilon=epsilon, delta=delta), size=size))
    assert price.value == pytest.approx(size * float(epsilon))
    exact = (
        sum(math.exp(i * float(epsilon)) for i in range(size)) * delta
    )  # hopping from neighbor to neighbor
    textbook = size * math.exp((size - 1) * float(epsilon)) * delta
    assert min(1.0, exact) <= price.delta * (1 + 1e-9)
    assert price.delta <= min(1.0, textbook) * (1 + 1e-9)
    if size > 1 and textbook < 1:
        assert price.delta > size * delta  # the lectures' k delta is too small


def test_group_privacy_of_pure_and_concentrated_prices() -> None:
    public = facts()
    pure = GroupPrivate(mechanism=noisy_count(public, epsilon=Fraction(1, 4)), size=4)
    assert accounting.basic(pure.event).value == 1
    concentrated = GroupPrivate(mechanism=gaussian(public, Count(), rho=Fraction(1, 100)), size=5)
    assert accounting.zcdp(concentrated.event).value == pytest.approx(0.25)
    assert (
        GroupPrivate(mechanism=noisy_count(public, epsilon=1), size=1).event
        == noisy_count(public, epsilon=1).event
    )


def test_group_privacy_is_about_pairs_that_differ_in_so_many_rows() -> None:
    """The exact log-ratio of discrete Laplace noise at distance k is k epsilon: attained, so no smaller price
    would do."""
    epsilon, k = 0.25, 4
    mass = np.exp(-np.abs(np.arange(-60, 61)) * epsilon)
    ratio = np.max(np.log(mass[k:] / mass[:-k]))
    assert ratio == pytest.approx(k * epsilon)


# --- disjoint parts -----------------------------------------------------------------------------------------


def parallel(neighbors: Neighbors, *epsilons: Any, statistic: Any = None) -> Parallel:
    public = facts(neighbors)
    parts = tuple(
        (c, laplace(part_public(public, "c", c), statistic or Sum("x"), epsilon=e))
        for c, e in zip("abz", epsilons, strict=False)
    )
    return Parallel(public=public, column="c", parts=parts)


@pytest.mark.parametrize("neighbors", list(Neighbors))
def test_equal_parts_cost_one_part_and_two_where_a_row_may_move(neighbors: Neighbors) -> None:
    one = DiscreteLaplace(scale=Fraction(10), sensitivity=10, neighbors=neighbors)
    assert parallel(neighbors, 1, 1, 1).event == one.repeated(2 if neighbors is REPLACE else 1)
    assert parallel(neighbors, 1).event == one


@pytest.mark.parametrize(("neighbors", "price"), [(ADD_REMOVE, 3), (ZERO_OUT, 3), (REPLACE, 5)])
def test_unequal_pure_parts_cost_the_dearest_one_or_two(neighbors: Neighbors, price: int) -> None:
    assert parallel(neighbors, 1, 3, 2).event == PureDP(epsilon=Fraction(price), neighbors=neighbors)


def test_unequal_parts_that_are_not_pure_are_refused() -> None:
    public = facts()
    parts = tuple(
        (c, gaussian(part_public(public, "c", c), CountNonNull(column="x"), rho=rho))
        for c, rho in (("a", 1), ("b", 2))
    )
    with pytest.raises(Unsupported, match="same price"):
        Parallel(public=public, column="c", parts=parts)
    equal = tuple((c, gaussian(part_public(public, "c", c), CountNonNull(column="x"), rho=1)) for c in "ab")
    assert accounting.zcdp(Parallel(public=public, column="c", parts=equal).event).value == 1


@pytest.mark.parametrize("neighbors", list(Neighbors))
def test_each_part_sees_its_own_rows(neighbors: Neighbors) -> None:
    source = people(facts(neighbors))
    loud = parallel(neighbors, 10**4, 10**4, 10**4)
    assert loud(source, entropy=SeededEntropy(1)).value == {"a": 3, "b": 3, "z": 0}
    counted = parallel(neighbors, 10**4, 10**4, statistic=CountNonNull(column="x"))
    assert counted(source, entropy=SeededEntropy(1)).value == {"a": 2, "b": 1}


@given(
    st.lists(
        st.tuples(st.integers(0, 10), st.sampled_from(["a", "b", "z", "other", None])), min_size=1, max_size=7
    ),
    st.integers(0, 6),
    st.tuples(st.integers(0, 10), st.sampled_from(["a", "b", "z", None])),
    st.sampled_from(list(Neighbors)),
)
@settings(max_examples=80, deadline=None)
def test_neighbors_differ_in_one_part_or_two_and_there_by_one_row(
    rows: list[Any], where: int, other: Any, neighbors: Neighbors
) -> None:
    """The proof of parallel composition, as a test: what changes in which part."""
    where %= len(rows)
    if neighbors is ADD_REMOVE:
        changed = rows[:where] + rows[where + 1 :]
    else:
        changed = [*rows[:where], other if neighbors is REPLACE else (None, None), *rows[where + 1 :]]
    public = Public(schema=SCHEMA, neighbors=neighbors)
    affected = 0
    for category in "abz":
        before, after = (seen_by_part(data, public, category) for data in (rows, changed))
        if neighbors is ADD_REMOVE:
            assert abs(len(before) - len(after)) <= 1
            differing = len(before) != len(after)
        else:
            assert len(before) == len(after) == len(rows)
            assert sum(a != b for a, b in zip(before, after, strict=True)) <= 1
            differing = before != after
        affected += differing
    assert affected <= (2 if neighbors is REPLACE else 1)


def seen_by_part(rows: list[Any], public: Public, category: str) -> list[Any]:
    columns = {
        "x": pa.array([x for x, _ in rows], pa.int64()),
        "c": pa.array([c for _, c in rows], pa.string()),
    }
    part = SourcePart(Memory(pa.table(columns), public, batch_rows=3), "c", category)
    return [tuple(row.values()) for batch in part.batches(["x", "c"]) for row in batch.to_pylist()]


def test_a_blanked_row_counts_as_missing_even_where_the_column_is_declared_full() -> None:
    part = part_public(facts(REPLACE), "c", "a")
    assert part.bounds("x").nullable
    assert Sum("x").sensitivity(part).linf == 10
    assert part.size == 4
    assert part_public(facts(), "c", "a").size is None


def test_a_part_priced_for_the_whole_table_is_refused() -> None:
    public = facts()
    with pytest.raises(PublicMismatch, match="part_public"):
        Parallel(public=public, column="c", parts=(("a", noisy_count(public, epsilon=1)),))


def test_two_mechanisms_for_one_category_are_refused() -> None:
    public = facts()
    inside = noisy_count(part_public(public, "c", "a"), epsilon=1)
    with pytest.raises(InvalidInput, match="disjoint"):
        Parallel(public=public, column="c", parts=(("a", inside), ("a", inside)))


def test_people_with_many_rows_may_be_in_many_parts_so_they_are_refused() -> None:
    public = Public(schema=SCHEMA, unit=Unit("person"))
    with pytest.raises(Unsupported, match="the unit of privacy is all rows of"):
        Parallel(public=public, column="c", parts=(("a", noisy_count(facts(), epsilon=1)),))


# --- input perturbation -------------------------------------------------------------------------------------


def test_noise_on_every_record_costs_the_same_and_errs_far_more() -> None:
    n = 400
    public = Public(schema={"x": Bounds(0, 10, nullable=False)}, neighbors=REPLACE, size=n)
    source = Memory({"x": np.arange(n) % 11}, public)
    each, once = (
        InputPerturbation.for_epsilon(1, public=public, column="x"),
        noisy_sum(public, "x", epsilon=1),
    )
    assert each.event == once.event
    assert each.error(0.9) > 0.5 * math.sqrt(n) * once.error(0.9)
    runs, truth, entropy = 400, int(Sum("x")(source)), SeededEntropy(2)
    errors = np.array([each(source, entropy=entropy).value - truth for _ in range(runs)])
    covered = int((np.abs(errors) <= each.error(0.9)).sum())
    assert stats.binom.cdf(covered, runs, 0.9) > 1e-10
    deviation = math.sqrt(n * 2) * 10
    assert (
        0.7 * deviation < errors.std() < 1.3 * deviation
    )  # 400 runs: the chance of leaving this range is below 1e-9


def test_the_mean_of_perturbed_records_is_their_sum_over_the_public_size() -> None:
    public = Public(schema={"x": Bounds(0, 10, nullable=False)}, neighbors=REPLACE, size=4)
    source = Memory({"x": [1, 2, 3, 4]}, public)
    for kind in ("sum", "mean"):
        quiet = InputPerturbation.for_epsilon(
            10**5, public=public, column="x", step=Fraction(1, 2), release_as=kind
        )  # type: ignore[arg-type]
        assert quiet(source, entropy=SeededEntropy(1)).value == (10 if kind == "sum" else 2.5)


def test_input_perturbation_needs_a_public_size() -> None:
    with pytest.raises(WrongRelation, match="input perturbation"):
        InputPerturbation.for_epsilon(1, public=facts(), column="x")
    with pytest.raises(PrivateFact, match="input perturbation needs the number of units, and"):
        InputPerturbation.for_epsilon(1, public=Public(schema=SCHEMA, neighbors=REPLACE), column="x")
    with pytest.raises(InvalidInput, match="release_as must be"):
        InputPerturbation(public=facts(REPLACE), column="x", scale=Fraction(1), release_as="median")  # type: ignore[arg-type]


def test_every_unit_gets_one_draw() -> None:
    drawn = []
    for n in (1000, 2000):
        public = Public(schema={"x": Bounds(0, 1)}, neighbors=ZERO_OUT, size=n)
        entropy = CountingEntropy()
        mechanism = InputPerturbation.for_epsilon(1, public=public, column="x")
        mechanism(Memory({"x": np.zeros(n)}, public), entropy=entropy)
        drawn.append(entropy.drawn)
    assert 1.5 < drawn[1] / drawn[0] < 2.5


def test_histograms_of_parts_and_of_the_whole_agree() -> None:
    public = facts()
    assert Histogram(column="c")(people(public)).tolist() == [
        int(Count()(SourcePart(people(public), "c", category))) for category in "abz"
    ]


def test_errors_in_ranks_are_not_mistaken_for_errors_of_a_changed_or_grouped_value() -> None:
    public = Public(schema={"x": Bounds(0, 1000)})
    source = Memory({"x": list(range(1000))}, public)
    median = Median(public=public, column="x", epsilon=1, step=1)
    grouped = GroupPrivate(mechanism=median, size=2)(source, entropy=SeededEntropy(1))
    assert grouped.error(0.9) == median.error(0.9)
    rounded = PostProcessed(mechanism=median, function=Round(step=50))
    for release in (grouped, rounded(source, entropy=SeededEntropy(1))):
        with pytest.raises(InvalidInput, match="in scores or ranks"):
            release.interval()
    with pytest.raises(InvalidInput, match="nothing is known of it"):
        rounded(source, entropy=SeededEntropy(1)).error()
    with pytest.raises(InvalidInput, match="nothing is known of it"):
        rounded.error()


def test_an_error_that_only_a_release_knows_is_said_to_be_so() -> None:
    public = Public(schema={"x": Bounds(0, 1000)})
    mean = Mean(public=public, column="x", epsilon=1, step=1)
    for joined in (
        Sequential(mechanisms=(mean,)),
        GroupPrivate(mechanism=mean, size=2),
        PostProcessed(mechanism=mean, function=Clamp(lower=0)),
    ):
        with pytest.raises(InvalidInput, match="ask the release"):
            joined.error(0.9)


def test_a_part_that_is_no_dataclass_is_rehearsed_too() -> None:
    class Refusing(Mechanism):
        public, event = facts(), PureDP(epsilon=1)

        def __call__(self, source: Any, /, *, entropy: Any) -> Any:
            raise AssertionError

        def rehearse(self, source: Any) -> None:
            raise InvalidInput("refused before the charge")

    with pytest.raises(InvalidInput, match="before the charge"):
        rehearse(Sequential(mechanisms=(Refusing(),)), Memory({"x": [1], "c": ["a"]}, facts()))


def test_a_category_that_cannot_be_hashed_is_refused() -> None:
    part = noisy_count(part_public(facts(), "c", "a"), epsilon=1)
    with pytest.raises(InvalidInput, match="not among the declared"):
        Parallel(public=facts(), column="c", parts=((["a"], part),))


def test_released_numbers_of_any_kind_can_be_rounded_and_folded() -> None:
    assert Round(step=5)(np.array(13)) == Round(step=5)(np.float32(13)) == 15
    for function in (Round(step=5), Truncate(step=5), Fold(lower=0, upper=10)):
        assert function(math.inf) == math.inf
        assert np.isnan(function(np.array([1.0, math.nan]))[1])
    assert Clamp(upper=3)(math.inf) == 3
    assert Fold(lower=0.3, upper=0.9)(0.9) <= 0.9
    assert Fold(lower=-1e308, upper=1e308)(1.5e308) == pytest.approx(5e307)
    assert Fold(lower=0.5, upper=1.5)(10**400) == 1.0
