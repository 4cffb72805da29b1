"""Sparse vector: privacy by exact enumeration, the published mistakes as mutants of the same check, and the
running code against the oracle."""

from __future__ import annotations

import json
import math
from collections import Counter
from fractions import Fraction as F
from typing import Any

import numpy as np
import pytest
from scipy import stats

from discreet import accounting as acc
from discreet._errors import DiscreetError, Halted, InvalidInput, Unsupported, WrongRelation
from discreet._public import ADD_REMOVE, REPLACE, ZERO_OUT, Bounds, Categories, Public
from discreet._registry import from_json, to_json
from discreet.accounting import PureDP, basic
from discreet.mechanisms import (
    AboveThreshold,
    Component,
    Count,
    CountsBelow,
    Histogram,
    RedrawnSparseVector,
    Sensitivity,
    SparseVector,
    Sum,
    SumOfSquares,
    Trusted,
)
from discreet.mechanisms.sparse_vector import (
    CONSTANTS,
    ThresholdAnswer,
    dwork_roth_epsilon,
    moves_up,
    optimal_epsilon,
    pure_epsilon,
    round_epsilon,
    zcdp_epsilon,
)
from discreet.sampling import SeededEntropy
from discreet.tables import Memory
from tests.contracts.audit import CountingEntropy, Untouchable

from ..loops import for_each
from .sparse_enumeration import Rule, neighbors, probability, transcripts, worst_loss

ALPHA = 1e-9
PUBLIC = Public(schema={"age": Bounds(0, 9), "city": Categories(["bern", "rome"])})
PEOPLE = Memory({"age": [1, 5, 9], "city": ["bern", "rome", "bern"]}, PUBLIC)


def rule_of(mechanism: Any, **changed: Any) -> Rule:
    threshold, query, _ = mechanism.scales
    says = "gap" if mechanism.gap else "bit"
    return Rule(float(threshold), float(query), mechanism.positives, says, **changed)


def constant(value: int, sensitivity: int = 1) -> Trusted:
    return Trusted(function=lambda source: np.array(value), claimed=Sensitivity(linf=sensitivity))


VARIANTS = [
    {"positives": 1},
    {"positives": 2},
    {"positives": 1, "gap": True},
    {"positives": 2, "gap": True},
    {"positives": 2, "monotone": True},
    {"positives": 1, "monotone": True, "gap": True},
    {"positives": 1, "sensitivity": 3},
    {"positives": 2, "split": (5, 1)},
    pytest.param({"positives": 2, "split": (1, 1)}, marks=pytest.mark.slow),
]


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
@pytest.mark.parametrize("epsilon", [pytest.param(F(1, 2), marks=pytest.mark.slow), 2])
def test_sparse_vector_is_epsilon_private_by_exact_enumeration(variant: dict[str, Any], epsilon: F) -> None:
    mechanism = SparseVector(public=PUBLIC, threshold=0, epsilon=epsilon, **variant)
    length = 3 if mechanism.gap or mechanism.sensitivity > 1 else 4
    base = (-2, 1) if length == 4 else (-3, 1)
    pairs = neighbors(length, mechanism.sensitivity, mechanism.monotone, base)
    loss = worst_loss(rule_of(mechanism), pairs if mechanism.monotone else pairs + EXTREME)
    assert loss <= float(epsilon) * (1 + 1e-9)
    assert loss >= 0.25 * float(epsilon)  # the check is not far from what it bounds


def mutant(epsilon: float, positives: int, **changed: Any) -> Rule:
    mechanism = SparseVector(public=PUBLIC, threshold=0, epsilon=epsilon, positives=positives, split=(1, 1))
    rule = rule_of(mechanism)
    return Rule(**{**rule.__dict__, **changed})


EXTREME = [
    ((0,) * 6, (1, 1, 1, -1, -1, -1)),
    ((0,) * 6, (1,) * 6),
    ((0, 0, 0, -12, -12, -12), (1, 1, 1, -13, -13, -13)),
    ((0,) * 40, (1,) * 40),
    ((-30,) * 30 + (-40,) * 4, (-29,) * 30 + (-41,) * 4),
    ((9,) * 30 + (-9,) * 4, (10,) * 30 + (-10,) * 4),
]


@pytest.mark.parametrize(
    "wrong",
    [
        # The broken variants of Lyu, Su & Li 2017, Figure 1, at epsilon = 1 and sensitivity 1
        pytest.param(
            Rule(2.0, 2 * 2.0, 2, says="value"), id="algorithm 3: tells the noisy value that was compared"
        ),
        pytest.param(Rule(4.0, 4 / 3, 3), id="algorithm 4: noise on values does not grow with the positives"),
        pytest.param(Rule(2.0, None, None), id="algorithm 5: no noise on values"),
        pytest.param(Rule(2.0, 2.0, None), id="algorithm 6: never halts"),
        # ours, damaged
        pytest.param(mutant(1, 2, threshold_scale=None), id="no noise on the threshold"),
        pytest.param(mutant(1, 2, query_scale=2.0), id="noise on values for one positive, two given"),
        pytest.param(mutant(1, 1, query_scale=1.0, threshold_scale=1.0), id="noise halved or less"),
    ],
)
def test_every_published_mistake_is_caught(wrong: Rule) -> None:
    assert worst_loss(wrong, EXTREME) > 1.01


def test_one_positive_too_many_is_caught() -> None:
    """Noise for one positive, two given."""
    right = mutant(1, 1)
    wrong = Rule(right.threshold_scale, right.query_scale, 4)
    assert worst_loss(right, EXTREME) <= 1 < worst_loss(wrong, EXTREME)


def test_claiming_monotone_for_questions_that_are_not_is_caught() -> None:
    mechanism = SparseVector(public=PUBLIC, threshold=0, epsilon=1, positives=3, monotone=True)
    assert worst_loss(rule_of(mechanism), EXTREME) > 1.01


def run(mechanism: Any, values: tuple[int, ...], entropy: Any) -> tuple[Any, ...]:
    state, said = mechanism.start(PEOPLE, entropy=entropy), []
    for value in values:
        try:
            state, answer = mechanism.answer(
                state, PEOPLE, constant(value, mechanism.sensitivity), entropy=entropy
            )
        except Halted:
            break
        told = answer.value
        said.append(told.gap if told.gap is not None else "above" if told.above else "below")
    return tuple(said)


def follows(mechanism: Any, rule: Rule, values: tuple[int, ...], runs: int = 2000) -> None:
    """Every transcript as often as the oracle says, by exact binomial limits."""
    entropy = SeededEntropy(11)
    seen = Counter(run(mechanism, values, entropy) for _ in range(runs))
    expected = {
        said: probability(rule, values, said) for said in set(transcripts(rule, len(values), range(40)))
    }
    assert set(seen) <= set(expected)
    for said, p in expected.items():
        low, high = stats.binom.ppf([ALPHA / 2000, 1 - ALPHA / 2000], runs, min(p, 1.0))
        assert low <= seen[said] <= high, said


@pytest.mark.parametrize(
    "mechanism",
    [
        SparseVector(public=PUBLIC, threshold=2, epsilon=2, positives=2),
        SparseVector(public=PUBLIC, threshold=2, epsilon=2, monotone=True, split=(1, 2)),
        SparseVector(public=PUBLIC, threshold=2, epsilon=3, gap=True),
    ],
)
def test_the_code_says_what_the_enumerated_rule_says(mechanism: Any) -> None:
    if mechanism.monotone:
        mechanism = SparseVector(public=PUBLIC, threshold=2, epsilon=2, split=(1, 4))
    follows(mechanism, rule_of(mechanism, threshold=2), (1, 2, 3) if not mechanism.gap else (2, 3))


def test_the_comparison_with_the_oracle_has_teeth() -> None:
    mechanism = SparseVector(public=PUBLIC, threshold=2, epsilon=2, positives=2)
    with pytest.raises(AssertionError):
        follows(
            mechanism,
            Rule(float(mechanism.scales[0]), float(mechanism.scales[1]) / 2, 2, threshold=2),
            (-6, -6, 2),
        )
    with pytest.raises(AssertionError):
        follows(
            mechanism,
            Rule(float(mechanism.scales[0]) / 3, float(mechanism.scales[1]), 2, threshold=2),
            (-2, -2, -2),
        )
    sharp = SparseVector(public=PUBLIC, threshold=2, epsilon=6)
    with pytest.raises(AssertionError):  # > instead of >=
        follows(sharp, rule_of(sharp, threshold=3), (2, 2))


def test_noise_and_shares_are_those_of_the_papers() -> None:
    for c in (1, 5, 50):
        for monotone in (False, True):
            mechanism = SparseVector(
                public=PUBLIC, threshold=0, epsilon=F(1, 2), positives=c, sensitivity=3, monotone=monotone
            )
            first, second = mechanism.shares
            assert first + second == F(1, 2)
            factor = c if monotone else 2 * c
            assert abs(float(second / first) - factor ** (2 / 3)) < 1e-3
            assert mechanism.scales[:2] == (3 / first, factor * 3 / second)
    numeric = SparseVector(public=PUBLIC, threshold=0, epsilon=1, positives=4, numeric=True)
    assert sum(numeric.shares) == 1
    assert numeric.scales[2] == 4 / numeric.shares[2]
    textbook = AboveThreshold(public=PUBLIC, threshold=0, epsilon=F(1, 4))
    assert textbook._vector.scales[:2] == (8, 16)  # 2/epsilon and 4/epsilon


def test_the_optimal_split_beats_its_surroundings() -> None:
    """The variance of the comparison is the sum of two variances; the default minimizes it."""

    def variance(split: tuple[float, float] | None) -> float:
        mechanism = SparseVector(public=PUBLIC, threshold=0, epsilon=0.1, positives=10, split=split)
        return sum(
            1 / (2 * math.sinh(1 / (2 * float(s))) ** 2) for s in mechanism.scales[:2] if s is not None
        )

    best = variance(None)
    assert all(best < variance((1, 20 ** (2 / 3) * factor)) for factor in (0.5, 0.8, 1.25, 2))
    assert best < variance((1, 1)) / 1.5


def test_it_halts_for_good_at_the_last_positive_and_not_before() -> None:
    for c in (1, 3):
        mechanism = SparseVector(public=PUBLIC, threshold=-(10**6), epsilon=1, positives=c)
        assert run(mechanism, (0,) * 10, SeededEntropy(1)) == ("above",) * c
        redrawn = RedrawnSparseVector(public=PUBLIC, threshold=-(10**6), epsilon=1, delta=1e-6, positives=c)
        assert run(redrawn, (0,) * 10, SeededEntropy(1)) == ("above",) * c
    below = SparseVector(public=PUBLIC, threshold=10**6, epsilon=1, questions=7)
    assert run(below, (0,) * 10, SeededEntropy(1)) == ("below",) * 7


def test_an_answer_is_no_number_and_has_no_interval() -> None:
    mechanism = SparseVector(public=PUBLIC, threshold=1, epsilon=1, numeric=True)
    state = mechanism.start(PEOPLE, entropy=SeededEntropy(1))
    _, answer = mechanism.answer(state, PEOPLE, Count(), entropy=SeededEntropy(2))
    with pytest.raises(InvalidInput, match="not made of plain numbers"):
        answer.interval()


def test_state_is_plain_json_and_replays() -> None:
    mechanism = SparseVector(public=PUBLIC, threshold=1, epsilon=1, positives=4, numeric=True, gap=True)
    first, second = SeededEntropy(9), SeededEntropy(9)
    state, stored = (
        mechanism.start(PEOPLE, entropy=first),
        json.dumps(mechanism.start(PEOPLE, entropy=second)),
    )
    for value in (0, 5, 1, -3):
        state, one = mechanism.answer(state, PEOPLE, constant(value), entropy=first)
        rebuilt = from_json(json.loads(json.dumps(to_json(mechanism))))
        after, two = rebuilt.answer(json.loads(stored), PEOPLE, constant(value), entropy=second)
        stored = json.dumps(after)
        assert one.value == two.value
        assert json.loads(stored) == state
        assert from_json(to_json(one.value)) == one.value


def test_the_threshold_is_drawn_once_or_after_every_positive() -> None:
    """Questions so far above or below that the noise, of a scale of a million and more, decides no answer: a
    new threshold is another number but once in a million draws."""
    entropy, far = SeededEntropy(2), 10**15
    keeps = SparseVector(public=PUBLIC, threshold=0, epsilon=F(1, 10**6), positives=9)
    draws = RedrawnSparseVector(public=PUBLIC, threshold=0, epsilon=F(1, 10**6), delta=1e-9, positives=9)
    for mechanism, redrawn in ((keeps, False), (draws, True)):
        state = mechanism.start(PEOPLE, entropy=entropy)
        for value in (-far, far, -far, -far, far, far):
            after, answer = mechanism.answer(state, PEOPLE, constant(value), entropy=entropy)
            assert answer.value.above == (value > 0)
            assert (after["threshold"] != state["threshold"]) == (redrawn and value > 0)
            state = after


def test_numeric_values_have_fresh_noise_of_their_own_scale() -> None:
    mechanism = SparseVector(public=PUBLIC, threshold=-(10**5), epsilon=2, positives=1, numeric=True)
    entropy, scale, n = SeededEntropy(3), float(mechanism.scales[2] or 0), 1500
    noise = []
    for _ in range(n):
        state = mechanism.start(PEOPLE, entropy=entropy)
        _, answer = mechanism.answer(state, PEOPLE, constant(7), entropy=entropy)
        noise.append(answer.value.value - 7)
    q = math.exp(-1 / scale)
    grid = np.arange(-30, 31)
    exact = np.where(grid < 0, q ** np.abs(grid) / (1 + q), 1 - q ** (np.abs(grid) + 1) / (1 + q))
    seen = np.searchsorted(np.sort(noise), grid, side="right") / n
    assert np.max(np.abs(seen - exact)) <= math.sqrt(
        math.log(2 / ALPHA) / (2 * n)
    )  # Dvoretzky-Kiefer-Wolfowitz-Massart
    assert answer.error(0.95) == math.ceil(scale * math.log(2 / (0.05 * (1 + q)))) - 1


@pytest.mark.parametrize("textbook", [False, True])
def test_answers_are_as_accurate_as_the_theorem_says(textbook: bool) -> None:
    k, runs, confidence, threshold = 8, 600, 0.8, 50
    mechanism: Any = (
        AboveThreshold(public=PUBLIC, threshold=threshold, epsilon=1, questions=k)
        if textbook
        else SparseVector(public=PUBLIC, threshold=threshold, epsilon=1, positives=2, questions=k)
    )
    alpha, entropy, wrong = mechanism.error(confidence), SeededEntropy(4), 0
    values = tuple(threshold + s * alpha for s in (-1, 1, -1, 1, -1, -1, 1, 1))
    sensitive = mechanism._vector if textbook else mechanism
    for _ in range(runs):
        said = run(sensitive, values, entropy)
        wrong += any(
            (told == "above") != (value > threshold) for told, value in zip(said, values, strict=False)
        )
    assert stats.binom.sf(wrong - 1, runs, 1 - confidence) > ALPHA
    if textbook:  # Dwork & Roth 2014, Theorem 3.24
        assert alpha <= 8 * (math.log(k) + math.log(2 / (1 - confidence))) + 1


@for_each("epsilon", [0.01, 1, 30])
@for_each("confidence", [0.01, 0.5, 0.99])
def test_the_textbooks_accuracy_is_an_upper_bound_of_ours(epsilon: float, confidence: float) -> None:
    for k in (1, 10, 1000):
        mechanism = AboveThreshold(public=PUBLIC, threshold=0, epsilon=epsilon, sensitivity=3, questions=k)
        assert (
            mechanism.error(confidence)
            <= 8 * 3 * (math.log(k) + math.log(2 / (1 - confidence))) / epsilon + 1
        )


def test_redrawn_rounds_can_tell_values_and_gaps_too() -> None:
    mechanism = RedrawnSparseVector(
        public=PUBLIC,
        threshold=-(10**5),
        epsilon=1,
        delta=1e-6,
        positives=3,
        numeric=True,
        gap=True,
        split=(1, 2, 3),
    )
    shares = mechanism.round.shares
    assert shares[1] == 2 * shares[0]
    assert sum(shares) == mechanism.round_epsilon
    entropy = SeededEntropy(8)
    state = mechanism.start(PEOPLE, entropy=entropy)
    state, answer = mechanism.answer(state, PEOPLE, constant(7), entropy=entropy)
    assert abs(answer.value.value - 7) <= answer.error(1 - ALPHA)
    assert abs(answer.value.gap - 10**5) < 10**4


@for_each("epsilon", [0.1, 1, 5])
@for_each("rounds", [1, 10, 500])
def test_composed_rounds_stay_within_epsilon_and_delta(epsilon: float, rounds: int) -> None:
    delta = 1e-6
    zcdp, textbook = zcdp_epsilon(epsilon, delta, rounds), dwork_roth_epsilon(epsilon, delta, rounds)
    for each in (zcdp, textbook):
        rho = rounds * float(each) ** 2 / 2
        assert rho + 2 * math.sqrt(rho * math.log(1 / delta)) <= epsilon
    assert float(textbook) == pytest.approx(epsilon / math.sqrt(8 * rounds * math.log(1 / delta)))
    assert 1.8 < float(zcdp / textbook) < 2
    # optimal composition of binary randomized responses (Kairouz, Oh & Viswanath 2015) is the truth for c
    # pure mechanisms
    e0 = float(zcdp)
    wins = np.arange(rounds + 1)
    p = stats.binom.pmf(wins, rounds, 1 / (1 + math.exp(-e0)))
    spent = np.maximum(0, 1 - np.exp(epsilon - (2 * wins - rounds) * e0))
    assert float(np.sum(p * spent)) <= delta


def _true_delta(each: F, rounds: int, epsilon: float) -> float:
    """Of binary randomized responses, in 50 digits (Kairouz, Oh & Viswanath 2015): the truth for pure
    mechanisms in sequence."""
    from mpmath import mp, mpf

    with mp.workdps(50):
        e0 = mpf(each.numerator) / each.denominator
        p, total = 1 / (1 + mp.exp(-e0)), mpf(0)
        for wins in range(rounds + 1):
            loss = (2 * wins - rounds) * e0
            if loss > epsilon:
                total += (
                    mp.binomial(rounds, wins)
                    * p**wins
                    * (1 - p) ** (rounds - wins)
                    * (1 - mp.exp(epsilon - loss))
                )
        return float(total)


@for_each("constants", CONSTANTS)
@for_each(("epsilon", "delta"), [(1, 1e-6), (0.1, 1e-9), (5, 1e-2), (0.3, 1e-12)])
@for_each("rounds", [1, 2, 5, 20, 37, 300])
def test_every_price_of_a_round_composes_to_what_was_asked(
    constants: str, epsilon: float, delta: float, rounds: int
) -> None:
    each = CONSTANTS[constants](epsilon, delta, rounds)
    assert _true_delta(each, rounds, epsilon) <= delta
    if constants == "optimal" and rounds > 1:
        assert _true_delta(each * F(1001, 1000), rounds, epsilon) > delta


@pytest.mark.parametrize(("rounds", "least"), [(1, 1.0), (5, 0.2), (20, 0.05)])
def test_few_rounds_get_the_pure_split_and_more(rounds: int, least: float) -> None:
    mechanism = RedrawnSparseVector(public=PUBLIC, threshold=0, epsilon=1, delta=1e-6, positives=rounds)
    assert mechanism.round_epsilon >= least
    assert acc.epsilon(mechanism.event, delta=1e-6) <= 1
    budget = acc.Filter(epsilon=1, delta=1e-6)
    assert budget.admits(budget.start(), mechanism.event)


@pytest.mark.parametrize("epsilon", [0.01, 0.5, 1, 4])
@pytest.mark.parametrize("rounds", [1, 3, 11, 28, 90, 1000, 10**9])
def test_the_best_round_is_never_below_the_simple_ones_and_fits_a_fresh_budget(
    epsilon: float, rounds: int
) -> None:
    delta = 1e-7
    best = round_epsilon(epsilon, delta, rounds)
    assert best >= max(pure_epsilon(epsilon, delta, rounds), zcdp_epsilon(epsilon, delta, rounds))
    assert best <= optimal_epsilon(epsilon, delta, rounds)
    event = PureDP(epsilon=best).repeated(rounds)
    budget = acc.Filter(epsilon=epsilon, delta=delta)
    assert budget.admits(budget.start(), event)
    if rounds <= 1000:
        assert acc.epsilon(event, delta=delta) <= epsilon


def test_the_textbook_noise_of_the_lecture() -> None:
    c, delta, epsilon = 7, 1e-5, 1
    mechanism = RedrawnSparseVector(
        public=PUBLIC, threshold=0, epsilon=epsilon, delta=delta, positives=c, constants="dwork-roth"
    )
    lam = math.sqrt(32 * c * math.log(1 / delta)) / epsilon
    assert float(mechanism.scales[0]) == pytest.approx(lam)
    assert float(mechanism.scales[1]) == pytest.approx(2 * lam)
    assert mechanism.event == PureDP(epsilon=mechanism.round_epsilon).repeated(c)


def test_the_price_of_the_pure_ones_is_epsilon() -> None:
    for mechanism in (
        SparseVector(public=PUBLIC, threshold=0, epsilon=F(1, 3), positives=20, numeric=True, gap=True),
        AboveThreshold(public=PUBLIC, threshold=0, epsilon=F(1, 3)),
    ):
        assert mechanism.event == PureDP(epsilon=F(1, 3))
        assert basic(mechanism.event).delta == 0


def test_real_statistics_as_questions() -> None:
    mechanism = SparseVector(
        public=PUBLIC, threshold=-(10**4), epsilon=1, positives=9, sensitivity=9, monotone=True
    )
    state = mechanism.start(PEOPLE, entropy=SeededEntropy(1))
    for question in (
        Count(),
        Sum("age"),
        Component(statistic=Histogram(column="city"), index=1),
        CountsBelow(column="age", thresholds=(4,)),
    ):
        state, answer = mechanism.answer(state, PEOPLE, question, entropy=SeededEntropy(2))
        assert answer.value == ThresholdAnswer(above=True)


def test_an_entry_is_one_number_of_a_vector() -> None:
    entry = Component(statistic=Histogram(column="city"), index=0)
    assert int(entry(PEOPLE)) == 2
    assert entry.sensitivity(PUBLIC) == Sensitivity(linf=1)
    assert from_json(to_json(entry)) == entry


def test_which_statistics_are_monotone() -> None:
    blank_counts = Public(schema={"age": Bounds(0, 9, nullable=False)}, neighbors=ZERO_OUT)
    signed = Public(schema={"age": Bounds(-1, 9)})
    assert moves_up(Count(), PUBLIC)
    assert moves_up(Sum("age"), PUBLIC)
    assert moves_up(SumOfSquares("age"), signed)
    assert not moves_up(Sum("age"), signed)
    assert not moves_up(SumOfSquares("age", center=9), blank_counts)
    assert not moves_up(CountsBelow(column="age", thresholds=(4,)), blank_counts)
    assert not moves_up(constant(1), PUBLIC)


@pytest.mark.parametrize(
    ("question", "error"),
    [
        (Sum("age"), InvalidInput),  # sensitivity 9
        (Histogram(column="city"), InvalidInput),  # two numbers
        (Component(statistic=Histogram(column="city"), index=2), InvalidInput),
        (constant(1), Unsupported),  # not known to be monotone
        ("how many?", InvalidInput),
    ],
)
def test_bad_questions_are_refused_before_anything_is_read_or_drawn(
    question: Any, error: type[Exception]
) -> None:
    mechanism = SparseVector(public=PUBLIC, threshold=0, epsilon=1, monotone=True)
    entropy, nothing = CountingEntropy(), Untouchable(PUBLIC)
    state: Any = {"threshold": 0, "positives": 0, "asked": 0}
    with pytest.raises(
        error, match=r"sensitivity is 9|single number|no entry|not known to be monotone|must be a statistic"
    ):
        mechanism.answer(state, nothing, question, entropy=entropy)  # type: ignore[arg-type]
    for bad in (
        None,
        {},
        {"threshold": 0.5, "positives": 0, "asked": 0},
        {"threshold": 0, "positives": True, "asked": 0},
    ):
        with pytest.raises(InvalidInput, match="the state is not one that start"):
            mechanism.answer(bad, nothing, Count(), entropy=entropy)  # type: ignore[arg-type]
    assert entropy.drawn == 0


@for_each(
    "changed",
    [
        {"epsilon": 0},
        {"epsilon": math.inf},
        {"epsilon": math.nan},
        {"epsilon": -1},
        {"threshold": 0.5},
        {"positives": 0},
        {"sensitivity": 0},
        {"sensitivity": -1},
        {"split": (1,)},
        {"split": (1, 0)},
        {"split": (1, 1), "numeric": True},
        {"questions": 0},
    ],
)
def test_bad_parameters_are_refused(changed: dict[str, Any]) -> None:
    good = {"public": PUBLIC, "threshold": 0, "epsilon": 1}
    SparseVector(**good)
    with pytest.raises(DiscreetError, match=r"must be"):
        SparseVector(**{**good, **changed})
    if changed.keys() != {"positives"}:
        with pytest.raises(DiscreetError, match=r"must be|has no monotone"):
            RedrawnSparseVector(**{**good, "delta": 1e-6, **changed})


def test_more_refusals() -> None:
    good: dict[str, Any] = {"public": PUBLIC, "threshold": 0, "epsilon": 1}
    for neighbors_ in (ADD_REMOVE, ZERO_OUT):
        SparseVector(**{**good, "public": Public(neighbors=neighbors_), "monotone": True})
    with pytest.raises(WrongRelation, match="that all questions move one way"):
        SparseVector(**{**good, "public": Public(neighbors=REPLACE), "monotone": True})
    for delta in (0, 1, -1, math.nan):
        with pytest.raises(InvalidInput, match="delta must be"):
            RedrawnSparseVector(**good, delta=delta)
    with pytest.raises(InvalidInput, match="constants must be"):
        RedrawnSparseVector(**good, delta=1e-6, constants="mine")
    with pytest.raises(InvalidInput, match="has no monotone, numeric or split variant"):
        RedrawnSparseVector(**good, delta=1e-6, constants="dwork-roth", numeric=True)
    with pytest.raises(InvalidInput, match="questions"):
        SparseVector(**good).error(0.9)


@pytest.mark.parametrize("epsilon", [1e-6, 1e-8, 4e-12])
def test_zcdp_rounds_of_a_tiny_epsilon_are_the_largest_within_1e_9(epsilon: float) -> None:
    """sqrt(L + epsilon) - sqrt(L) cancels: at 4e-12 the search from there took minutes, in ever longer numbers."""
    from mpmath import mp, mpf, sqrt

    rounds = 10
    e0 = zcdp_epsilon(epsilon, 1e-6, rounds)
    with mp.workdps(50):
        log_term = -mp.log(mpf(1e-6))
        best = sqrt(mpf(2) / rounds) * (sqrt(log_term + mpf(epsilon)) - sqrt(log_term))
        assert 0 <= 1 - mpf(e0.numerator) / e0.denominator / best < 1e-9
