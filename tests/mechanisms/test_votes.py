"""Aggregators of votes: their law, their price, their quota."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from discreet import ADD_REMOVE, REPLACE, DiscreetError, accounting, sampling
from discreet._errors import Halted, UnknownOption
from discreet._registry import from_json, to_json
from discreet.accounting import pate
from discreet.mechanisms.votes import (
    Aggregator,
    ConfidentGNMax,
    GNMax,
    InteractiveGNMax,
    LNMax,
    Recorded,
    SampledVotes,
    SanitizedCost,
    SparseVotes,
    StableVotes,
    answer_votes,
    best_order,
    check_votes,
    distance,
    parse_record,
    record,
    record_text,
)

from ..loops import for_each

EVERY: list[Any] = [
    GNMax(variance=100, queries=3),
    LNMax(scale=10, queries=3),
    ConfidentGNMax(threshold=60, check_variance=400, variance=100, queries=3, answers=2),
    InteractiveGNMax(threshold=30, check_variance=400, variance=100, queries=3, answers=2, teachers=100),
    StableVotes(scale=2, failure=1e-4, queries=3),
    SparseVotes(epsilon=1, delta=1e-4, failures=2, queries=3),
]
COUNTS = np.array([5, 80, 15])
GUESS = np.array([0.2, 0.3, 0.5])


def entropy(seed: int = 1) -> Any:
    return sampling.SeededEntropy(seed)


@pytest.mark.parametrize("aggregator", EVERY, ids=lambda a: type(a).__name__)
def test_an_aggregator_is_described_and_refuses_beyond_its_quota(aggregator: Any) -> None:
    assert isinstance(aggregator, Aggregator)
    assert from_json(to_json(aggregator)) == aggregator
    assert aggregator.event(REPLACE).neighbors is REPLACE
    assert aggregator.lead(0.99, 3) > aggregator.lead(0.9, 3) >= 1
    assert aggregator.lead(np.nextafter(1, 0), 9) > aggregator.lead(0.99, 9)
    with pytest.raises(DiscreetError, match="confidence"):
        aggregator.lead(1.5, 3)
    state, source = aggregator.start(entropy()), entropy(2)
    for _ in range(4):
        try:
            state, _ = aggregator.label(state, COUNTS, entropy=source, prediction=GUESS)
        except Halted:
            break
    else:
        raise AssertionError("it did not halt")
    assert state["asked"] <= aggregator.queries


@pytest.mark.parametrize("aggregator", EVERY, ids=lambda a: type(a).__name__)
def test_the_length_of_a_state_depends_on_the_number_of_questions_alone(aggregator: Any) -> None:
    lengths = set()
    for seed, counts in itertools.product(range(20), ([0, 1000, 0], [1, 2, 0])):
        state = aggregator.start(entropy(seed))
        lengths.add(len(str(state)))
        after, _ = aggregator.label(state, np.array(counts), entropy=entropy(seed), prediction=GUESS)
        lengths.add(len(str(after)))
    assert len(lengths) == 1


def winners(aggregator: Any, counts: Any, runs: int, seed: int) -> Any:
    source = entropy(seed)
    state = {"asked": 0, "answered": 0}
    return np.array([aggregator.label(state, counts, entropy=source)[1].label for _ in range(runs)])


def test_gnmax_follows_the_law_of_its_variance() -> None:
    """The share of wrong winners, within Hoeffding's bound at a false-alarm rate of 1e-9; the noise of a
    standard deviation taken as a variance fails."""
    counts, runs = np.array([10, 0]), 4000
    wrong = (winners(GNMax(variance=25, queries=1), counts, runs, 3) == 1).mean()
    weights = {k: math.exp(-k * k / 50) for k in range(-60, 61)}
    total = sum(weights.values())
    exact = sum(weights[a] * weights[b] for a in weights for b in weights if b - a > 10) / total**2
    slack = math.sqrt(math.log(2e9) / (2 * runs))
    assert abs(wrong - exact) < slack
    assert abs((winners(GNMax(variance=625, queries=1), counts, runs, 3) == 1).mean() - exact) > slack


def test_lnmax_follows_the_law_of_its_scale() -> None:
    counts, runs = np.array([10, 0]), 4000
    wrong = (winners(LNMax(scale=5, queries=1), counts, runs, 4) == 1).mean()
    q = math.exp(-1 / 5)
    weights = {k: q ** abs(k) for k in range(-200, 201)}
    total = sum(weights.values())
    exact = sum(weights[a] * weights[b] for a in weights for b in weights if b - a > 10) / total**2
    assert abs(wrong - exact) < math.sqrt(math.log(2e9) / (2 * runs))


@pytest.mark.parametrize(("sigma", "queries", "epsilon"), [(40, 195, 1.9652), (60, 440, 1.9683)])
def test_gnmax_costs_what_the_issue_says(sigma: int, queries: int, epsilon: float) -> None:
    ours = accounting.epsilon(GNMax(variance=sigma**2, queries=queries).event(), delta=1e-5)
    published = accounting.epsilon(accounting.GNMax(sigma=sigma).repeated(queries), delta=1e-5)
    assert ours == pytest.approx(epsilon, abs=1e-4)
    assert ours == pytest.approx(published, rel=1e-4)


def test_lnmax_pays_for_two_counts() -> None:
    """Lap(1/epsilon) on votes is 2 epsilon-DP: one count would be half of the price."""
    assert accounting.epsilon(LNMax(scale=10, queries=1).event(), delta=0) == pytest.approx(0.2)


def test_noise_for_one_count_instead_of_two_is_refuted_by_the_exact_law() -> None:
    """Two neighbors, (1, 0) and (0, 1), under discrete Laplace noise of scale 1: the ratio of the chances
    that class 0 wins is above e^1, what one count would cost, and below e^2."""
    q = math.exp(-1)
    weights = {k: q ** abs(k) for k in range(-60, 61)}

    def first_wins(lead: int) -> float:
        return sum(weights[a] * weights[b] for a in weights for b in weights if lead + a - b >= 0)

    ratio = math.log(
        (1 - first_wins(-1) / sum(weights.values()) ** 2) / (1 - first_wins(1) / sum(weights.values()) ** 2)
    )
    assert 0 < ratio <= 2
    # the noisy counts themselves, which are what is paid for, attain it
    assert math.log(weights[0] ** 2 / (weights[1] * weights[-1])) == pytest.approx(2)


def test_confident_checks_are_paid_for() -> None:
    few = ConfidentGNMax(threshold=60, check_variance=400, variance=100, queries=10, answers=10)
    many = ConfidentGNMax(threshold=60, check_variance=400, variance=100, queries=1000, answers=10)
    plain = GNMax(variance=100, queries=10)
    epsilons = [accounting.epsilon(a.event(), delta=1e-5) for a in (plain, few, many)]
    assert epsilons[0] < epsilons[1] < epsilons[2]


@pytest.mark.parametrize(
    "built",
    [
        GNMax.for_privacy(1, 1e-5, 100),
        LNMax.for_privacy(1, 1e-5, 100),
        ConfidentGNMax.for_privacy(1, 1e-5, 100, answers=50, threshold=200),
        InteractiveGNMax.for_privacy(1, 1e-5, 100, answers=50, threshold=75, teachers=250),
        StableVotes.for_privacy(1, 1e-5, 100),
        SparseVotes.for_privacy(1, 1e-5, 100, failures=3),
    ],
    ids=lambda a: type(a).__name__,
)
def test_noise_for_an_epsilon_is_within_it_and_wastes_less_than_a_hundredth(built: Any) -> None:
    assert 0.99 < accounting.epsilon(built.event(), delta=1e-5) <= 1


def test_a_forgotten_number_of_teachers_is_refused() -> None:
    """With a default, the student's expected counts would be wrong, and answers silently poor."""
    terms: dict[str, Any] = {"answers": 50, "threshold": 75}
    with pytest.raises(UnknownOption, match="for_privacy needs teachers"):
        InteractiveGNMax.for_privacy(1, 1e-5, 100, **terms)


def test_confident_refuses_where_teachers_disagree_and_answers_where_they_agree() -> None:
    aggregator = ConfidentGNMax(threshold=60, check_variance=4, variance=4, queries=10, answers=2)
    state = aggregator.start(entropy())
    for counts, label in (([40, 35, 25], None), ([5, 90, 5], 1), ([34, 33, 33], None), ([90, 5, 5], 0)):
        state, vote = aggregator.label(state, np.array(counts), entropy=entropy(5))
        assert vote.label == label
    with pytest.raises(Halted, match="what was paid for is used up"):
        aggregator.label(state, COUNTS, entropy=entropy())


def test_interactive_reinforces_a_student_that_agrees_and_corrects_one_that_does_not() -> None:
    aggregator = InteractiveGNMax(
        threshold=50, check_variance=4, variance=4, queries=10, answers=5, teachers=100, confident=0.8
    )
    state, counts = aggregator.start(entropy()), np.array([5, 90, 5])
    state, right = aggregator.label(state, counts, entropy=entropy(), prediction=[0.05, 0.9, 0.05])
    state, wrong = aggregator.label(state, counts, entropy=entropy(), prediction=[0.9, 0.05, 0.05])
    state, unsure = aggregator.label(state, counts, entropy=entropy(), prediction=[0.25, 0.5, 0.25])
    assert right == (1, None, True)
    assert wrong.label == 1
    assert not wrong.reinforced
    assert unsure.label is None
    assert state["answered"] == 1
    with pytest.raises(DiscreetError, match="prediction must be 3 probabilities of the student"):
        aggregator.label(state, counts, entropy=entropy(), prediction=[0.5, math.nan, 0.5])


def moved(counts: Any) -> Any:
    """All vectors with one vote moved."""
    for source, target in itertools.permutations(range(len(counts)), 2):
        if counts[source]:
            other = np.array(counts)
            other[source] -= 1
            other[target] += 1
            yield other


ALL = [np.array(c) for c in itertools.product(range(8), repeat=3) if sum(c) == 7]


def test_distance_moves_by_at_most_one_and_is_zero_on_both_sides_of_a_change() -> None:
    for counts in ALL:
        for other in moved(counts):
            assert abs(distance(counts) - distance(other)) <= 1
            if counts.argmax() != other.argmax():
                assert distance(counts) == distance(other) == 0


def test_stable_votes_are_exact_where_teachers_agree_and_refused_where_not() -> None:
    aggregator = StableVotes(scale=1, failure=1e-6, queries=200)
    state, source = aggregator.start(entropy()), entropy(7)
    lead = aggregator.lead(1 - 1e-10, 3)
    for _ in range(90):
        state, vote = aggregator.label(state, np.array([0, lead, 0]), entropy=source)
        assert vote.label == 1
        state, vote = aggregator.label(state, np.array([10, 10, 10]), entropy=source)
        assert vote.label is None


def test_with_samples_that_overlap_the_quotient_of_distances_moves_by_at_most_one() -> None:
    """All pairs that differ by up to two moved votes: what M_samp's proof asks of floor(distance / 2)."""
    for counts in ALL:
        once = list(moved(counts))
        for other in [*once, *(twice for one in once for twice in moved(one))]:
            before, after = distance(counts) // 2, distance(other) // 2
            assert abs(before - after) <= 1
            if counts.argmax() != other.argmax():
                assert before == after == 0


def test_samples_that_overlap_need_a_lead_as_many_times_larger() -> None:
    aggregator = SampledVotes.for_privacy(2, 1e-5, 20, overlap=5)
    plain = StableVotes.for_privacy(2, 1e-5, 20)
    assert aggregator.event() == plain.event()
    lead = aggregator.lead(1 - 1e-10, 2)
    assert lead > 4 * plain.lead(1 - 1e-10, 2)
    state, source = aggregator.start(entropy()), entropy(7)
    for counts, label in (([0, lead], 1), ([lead, 0], 0), ([lead // 10, 0], None), ([5, 5], None)):
        state, vote = aggregator.label(state, np.array(counts), entropy=source)
        assert vote.label == label


def test_thousands_of_stable_questions_cost_no_failure_and_unstable_ones_end_it() -> None:
    aggregator = SparseVotes(epsilon=1, delta=1e-5, failures=2, queries=5000)
    state, source = aggregator.start(entropy()), entropy(8)
    agreed = np.array([0, aggregator.lead(1 - 1e-9, 3), 0])
    for _ in range(2000):
        state, vote = aggregator.label(state, agreed, entropy=source)
        assert vote.label == 1
    for _ in range(2):
        state, vote = aggregator.label(state, np.array([5, 5, 5]), entropy=source)
        assert vote.label is None
    with pytest.raises(Halted, match="what was paid for is used up"):
        aggregator.label(state, agreed, entropy=source)


# --- what the votes made of the price ---


def test_the_golden_costs_of_230_of_250_votes() -> None:
    """PEERS.md: GNMax at sigma 40, delta 1e-5, with continuous noise; ours, with discrete noise, is no
    smaller."""
    votes = (230, 20, *[0] * 8)
    for queries, golden in ((100, 0.4513), (286, 0.5838), (1000, 0.8614)):
        plain = pate.vote_cost([votes] * queries, 40).epsilon_for_steward(1e-5, classic=True)
        ours = pate.vote_cost([answer_votes(votes)] * queries, 40).epsilon_for_steward(1e-5, classic=True)
        assert plain == pytest.approx(golden, abs=2e-4)
        assert plain <= ours <= 1.05 * golden


def test_discrete_noise_overturns_a_lead_no_more_often_than_is_costed() -> None:
    sigma = 8.0
    weights = {k: math.exp(-k * k / (2 * sigma**2)) for k in range(-120, 121)}
    total = sum(weights.values())
    for lead in (3, 10, 30):
        exact = sum(weights[a] * weights[b] for a in weights for b in weights if b - a >= lead) / total**2
        assert exact <= pate.other_answer(answer_votes((lead, 0)), sigma)
        # the continuous bound itself would be broken: this test has teeth
        assert exact > pate.other_answer((lead, 0), sigma)
    for margin in (1, 10, 30):
        exact = sum(weights[k] for k in weights if k >= margin) / total
        bound = pate.other_answer(check_votes(-margin, 0), sigma * math.sqrt(2))
        assert exact <= bound


def test_the_smooth_sensitivity_bounds_every_moved_vote() -> None:
    aggregator = ConfidentGNMax(threshold=20, check_variance=100, variance=64, queries=6, answers=6)
    sanitize = SanitizedCost(epsilon=1, order=4)
    beta = sanitize._noise.beta
    for counts in ([25, 5, 0], [21, 9, 0], [12, 10, 8], [30, 0, 0]):
        here = [record(aggregator, np.array(counts), True)] * 3
        cost, smooth = sanitize.exact(aggregator, here)
        for other in moved(counts):
            beside = [record(aggregator, other, True)] * 3
            cost2, smooth2 = sanitize.exact(aggregator, beside)
            assert abs(cost - cost2) <= smooth * (1 + 1e-9)
            assert abs(math.log(smooth / smooth2)) <= beta * (1 + 1e-9)


def test_a_sanitized_cost_is_near_the_true_one_where_teachers_agree() -> None:
    aggregator = GNMax(variance=1600, queries=286)
    order = best_order(aggregator, 250, 10, 1e-5)
    sanitize = SanitizedCost(epsilon=1, order=order)
    history = [Recorded(None, (245, 5, *[0] * 8))] * 286
    cost, _ = sanitize.exact(aggregator, history)
    figures = [sanitize(aggregator, history, delta=1e-5, entropy=entropy(i)) for i in range(9)]
    assert abs(float(np.median([f.rdp for f in figures])) - cost) < 0.2
    assert all(0 <= f.rdp <= sanitize.worst(aggregator) and f.epsilon >= 1 for f in figures)
    assert cost < sanitize.worst(aggregator) / 20


def test_records_come_back_and_have_one_length() -> None:
    texts = [
        record_text(Recorded(-7, (1, 2, 3)), 3),
        record_text(Recorded(None, (250, 0, 0)), 3),
        record_text(Recorded(9, None), 3),
    ]
    assert [parse_record(t) for t in texts] == [
        Recorded(-7, (1, 2, 3)),
        Recorded(None, (250, 0, 0)),
        Recorded(9, None),
    ]
    assert len({len(t) for t in texts}) == 1


@for_each(
    ("build", "fact"),
    [
        (lambda: GNMax(variance=0, queries=1), "variance must be above zero"),
        (lambda: GNMax(variance=1, queries=0), "queries must be an integer of at least 1"),
        (lambda: LNMax(scale=-1, queries=1), "scale must be above zero"),
        (
            lambda: ConfidentGNMax(threshold=1, check_variance=1, variance=1, queries=2, answers=3),
            "answers must be at most queries=2",
        ),
        (
            lambda: InteractiveGNMax(
                threshold=1, check_variance=1, variance=1, queries=2, answers=1, confident=2.0
            ),
            "confident must be between 0 and 1",
        ),
        (lambda: StableVotes(scale=1, failure=0, queries=1), "failure must be strictly between 0 and 1"),
        (
            lambda: SparseVotes(epsilon=1, delta=0, failures=1, queries=1),
            "delta must be strictly between 0 and 1",
        ),
        (lambda: SanitizedCost(epsilon=1, order=1), "order must be above 1"),
        (
            lambda: SanitizedCost(epsilon=1, order=4).check(LNMax(scale=1, queries=1)),
            "the data-dependent cost of LNMax is not known",
        ),
        (
            lambda: SanitizedCost(epsilon=1, order=4).check(GNMax(variance=4, queries=1)),
            "variance must be at least 64 for a sanitized cost",
        ),
    ],
)
def test_bad_settings_are_refused(build: Any, fact: str) -> None:
    with pytest.raises(DiscreetError, match=fact):
        build()


def test_prices_are_of_the_relation_they_are_asked_for() -> None:
    assert GNMax(variance=4, queries=2).event().neighbors is ADD_REMOVE


def gaussian_tail(variance: int, least: int) -> float:
    weights = {k: math.exp(-k * k / (2 * variance)) for k in range(-200, 201)}
    return sum(w for k, w in weights.items() if k >= least) / sum(weights.values())


def laplace_tail(scale: float, least: int) -> float:
    q = math.exp(-1 / scale)
    return q**least / (1 + q)


def passes(aggregator: Any, counts: Any, state: Any, prediction: Any = None, runs: int = 3000) -> float:
    """The share of questions that are answered, each from the same state."""
    source = entropy(11)
    asked = (
        aggregator.label(state, np.array(counts), entropy=source, prediction=prediction) for _ in range(runs)
    )
    return float(np.mean([vote.label is not None and not vote.reinforced for _, vote in asked]))


OPEN = {"asked": 0, "answered": 0}
# Hoeffding's bound at a false-alarm rate of 1e-9, for 3,000 questions.
SLACK = math.sqrt(math.log(2e9) / 6000)


def test_checks_have_the_noise_that_is_paid_for_and_half_of_it_is_noticed() -> None:
    """The largest count is 10 below the threshold; sigma 10 passes with chance 0.17, sigma 5 with 0.03."""
    terms: dict[str, Any] = {"threshold": 90, "variance": 4, "queries": 10, "answers": 10}
    confident = ConfidentGNMax(check_variance=100, **terms)
    share = passes(confident, [80, 20], OPEN)
    assert abs(share - gaussian_tail(100, 10)) < SLACK
    assert (
        abs(passes(ConfidentGNMax(check_variance=25, **terms), [80, 20], OPEN) - gaussian_tail(100, 10))
        > SLACK
    )
    interactive = InteractiveGNMax(check_variance=100, teachers=100, **{**terms, "threshold": 40})
    share = passes(interactive, [80, 20], OPEN, prediction=[0.5, 0.5])
    assert abs(share - gaussian_tail(100, 10)) < SLACK


def test_stability_tests_have_the_noise_that_is_paid_for() -> None:
    stable = StableVotes(scale=4, failure=0.01, queries=10)
    counts = [2 * (stable.reach - 3) + 1, 0]
    assert distance(np.array(counts)) == stable.reach - 3
    assert abs(passes(stable, counts, OPEN) - laplace_tail(4, 3)) < SLACK
    # with nothing to tell apart, noise alone passes with at most the failure that was paid for
    assert passes(stable, [5, 5], OPEN) < 0.01 + SLACK


def test_the_sparse_vector_keeps_its_threshold_and_draws_noise_for_each_question() -> None:
    sparse = SparseVotes(epsilon=1, delta=0.01, failures=2, queries=10)
    scale = float(sparse._vector.scales[1])
    state = {**OPEN, "secret": "+" + "20".zfill(23)}
    counts = [2 * 16 + 1, 0]
    assert distance(np.array(counts)) == 16
    assert abs(passes(sparse, counts, state) - laplace_tail(scale, 4)) < SLACK
