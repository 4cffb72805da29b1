from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace
from fractions import Fraction

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import sampling
from discreet._errors import DiscreetError, InvalidInput, WrongRelation
from discreet._public import ADD_REMOVE, REPLACE, Boolean, Bounds, Categories, Public
from discreet._registry import from_json, to_json
from discreet.accounting import ExponentialMechanism as BoundedRange
from discreet.accounting import NonPrivate, PureDP
from discreet.mechanisms.protocols import Sensitivity
from discreet.mechanisms.selection import CellCounts, CellDistances, Mistakes, RealScores, Select, enough_rows
from discreet.mechanisms.selectors import ExponentialMechanism, PermuteAndFlip, ReportNoisyMax, TopK
from discreet.mechanisms.statistics import Count, CountsBelow, Histogram, Trusted
from discreet.sampling import Entropy, SeededEntropy
from discreet.sampling._select import _by_floats, _by_integers, weighted_softmax
from discreet.tables import Memory

from ..loops import for_each
from .laws import assert_law, assert_rarely

CHOOSERS = [
    ExponentialMechanism(epsilon=1),
    PermuteAndFlip(epsilon=1),
    ReportNoisyMax(epsilon=1, noise="laplace"),
    ReportNoisyMax(epsilon=1, noise="exponential"),
    ReportNoisyMax(epsilon=1, noise="gumbel"),
    TopK(epsilon=1, k=2),
    TopK(epsilon=1, k=2, one_shot=False),
]


class NoDraws(Entropy):
    def _take(self, size):
        raise AssertionError("bits were drawn")


# --- the laws, in closed form -------------------------------------------------------------------------------


def softmax(scores, rate):
    terms = [mp.exp(mp.mpf(rate.numerator) / rate.denominator * s) for s in scores]
    return [t / mp.fsum(terms) for t in terms]


def permute_and_flip(scores, rate):
    """P(i) = sum over sets S of the others of (-1)^|S| / (|S| + 1) exp(x_i + sum of x over S), x = rate
    (score - best)."""
    x = [mp.mpf(rate.numerator) / rate.denominator * (s - max(scores)) for s in scores]
    law = []
    for i in range(len(x)):
        others = [x[j] for j in range(len(x)) if j != i]
        subsets = itertools.chain.from_iterable(itertools.combinations(others, r) for r in range(len(x)))
        law.append(
            mp.exp(x[i]) * mp.fsum((-1) ** len(s) * mp.exp(mp.fsum(s)) / (len(s) + 1) for s in subsets)
        )
    return law


def laplace_argmax(scores, rate):
    """The integral of density times distribution functions, between the kinks."""
    centers = [mp.mpf(rate.numerator) / rate.denominator * s for s in scores]
    kinks = [-mp.inf, *sorted(set(centers)), mp.inf]

    def cdf(t):
        return mp.exp(t) / 2 if t < 0 else 1 - mp.exp(-t) / 2

    def density(t, i):
        rest = mp.fprod(cdf(t - c) for j, c in enumerate(centers) if j != i)
        return mp.exp(-abs(t - centers[i])) / 2 * rest

    return [mp.quad(lambda t, i=i: density(t, i), kinks) for i in range(len(centers))]


LAWS = {
    "exponential mechanism": (ExponentialMechanism, {}, softmax),
    "permute and flip": (PermuteAndFlip, {}, permute_and_flip),
    "noisy max, laplace": (ReportNoisyMax, {"noise": "laplace"}, laplace_argmax),
    "noisy max, exponential": (ReportNoisyMax, {"noise": "exponential"}, permute_and_flip),
    "noisy max, gumbel": (ReportNoisyMax, {"noise": "gumbel"}, softmax),
}


# The monotone factor is one line of each class: of the three noises of ReportNoisyMax one shows it.
@pytest.mark.parametrize(
    ("name", "monotone"),
    [
        *((name, False) for name in LAWS),
        *((name, True) for name in list(LAWS)[:3]),
        *(pytest.param(name, True, marks=pytest.mark.slow) for name in list(LAWS)[3:]),
    ],
)
def test_a_chooser_follows_its_law(name, monotone):
    cls, extra, law = LAWS[name]
    chooser, scores, entropy = (
        cls(epsilon=1, sensitivity=2, monotone=monotone, **extra),
        [3, 0, 5, 4],
        SeededEntropy(11),
    )
    rate = Fraction(1, 2) if monotone else Fraction(1, 4)
    expected = dict(enumerate(law(scores, rate)))
    assert_law(lambda: chooser(scores, entropy=entropy), expected, 2000)
    # mutants: the monotone factor forgotten, the sensitivity halved; each is missed with a chance below 2e-3
    # by so many draws, which the seed settles
    wrong = cls(epsilon=1, sensitivity=2 if monotone else 1, **extra)
    with pytest.raises(AssertionError):
        assert_law(lambda: wrong(scores, entropy=entropy), expected, 2000)


@pytest.mark.parametrize("one_shot", [True, False])
def test_top_k_peels_without_replacement(one_shot):
    scores, chooser, entropy = [2, 0, 3, 1], TopK(epsilon=4, k=2, one_shot=one_shot), SeededEntropy(5)
    first, law = softmax(scores, Fraction(1)), {}  # epsilon / k = 2 a choice, over 2
    for i, j in itertools.permutations(range(4), 2):
        law[i, j] = first[i] * first[j] / (1 - first[i])
    assert_law(lambda: chooser(scores, entropy=entropy), law, 1500)
    wrong = TopK(epsilon=2, k=2, one_shot=one_shot)
    with pytest.raises(AssertionError):
        assert_law(lambda: wrong(scores, entropy=entropy), law, 1500)


# --- privacy, computed and not sampled ----------------------------------------------------------------------


def law_of(chooser, scores):
    """The law of a choice, by the sampler that the chooser calls and by what it passes to it. That the
    samplers have these laws is tested above, by draws, and in tests/sampling."""
    laws, drawn = {"gumbel": softmax, "exponential": permute_and_flip, "laplace": laplace_argmax}, []

    def record(scores, rate, law):
        drawn.append(law([int(s) for s in scores], rate))
        return 0

    with pytest.MonkeyPatch.context() as patch:
        for noise, law in laws.items():
            patch.setattr(sampling, f"argmax_{noise}", lambda s, rate, _, law=law: record(s, rate, law))
        chooser(scores, entropy=NoDraws())
    (law,) = drawn
    return law


def log_ratios(chooser, before, after):
    return [mp.log(a / b) for a, b in zip(law_of(chooser, after), law_of(chooser, before), strict=True)]


@st.composite
def neighbors(draw, monotone, size=4, sensitivity=2):
    before = draw(st.lists(st.integers(-6, 6), min_size=2, max_size=size))
    low = 0 if monotone else -sensitivity
    moves = draw(st.lists(st.integers(low, sensitivity), min_size=len(before), max_size=len(before)))
    return before, [b + m for b, m in zip(before, moves, strict=True)]


@pytest.mark.parametrize("monotone", [False, True])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_exponential_mechanism_is_epsilon_dp_and_of_bounded_range_epsilon(monotone, data):
    before, after = data.draw(neighbors(monotone))
    chooser = ExponentialMechanism(epsilon=1, sensitivity=2, monotone=monotone)
    ratios = log_ratios(chooser, before, after)
    assert max(map(abs, ratios)) <= 1 + 1e-12
    assert max(ratios) - min(ratios) <= 1 + 1e-12


@pytest.mark.parametrize("monotone", [False, True])
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_permute_and_flip_is_epsilon_dp(monotone, data):
    before, after = data.draw(neighbors(monotone))
    chooser = PermuteAndFlip(epsilon=1, sensitivity=2, monotone=monotone)
    assert max(map(abs, log_ratios(chooser, before, after))) <= 1 + 1e-12


@pytest.mark.parametrize("monotone", [False, True])
@pytest.mark.parametrize(
    "moves",
    [(-1, 1, 1), *(pytest.param(m, marks=pytest.mark.slow) for m in [(1, -1, -1), (1, 0, 1), (-1, 1, -1)])],
)
def test_noisy_max_with_laplace_noise_is_epsilon_dp(monotone, moves):
    moves = [abs(m) for m in moves] if monotone else moves
    chooser = ReportNoisyMax(epsilon=1, monotone=monotone)
    for before in ([0, 0, 0], [0, 3, 1], [4, 0, 0]):
        after = [b + m for b, m in zip(before, moves, strict=True)]
        assert max(map(abs, log_ratios(chooser, before, after))) <= 1 + 1e-9


def test_the_privacy_checks_have_teeth():
    before, after = [0, 0, 4, 4], [1, -1, 5, 5]
    # priced for epsilon 1, a chooser that takes these scores for monotone has twice the rate
    for cls in (ExponentialMechanism, PermuteAndFlip, ReportNoisyMax):
        assert max(map(abs, log_ratios(cls(epsilon=1), before, after))) <= 1 + 1e-9
        assert max(map(abs, log_ratios(cls(epsilon=1, monotone=True), before, after))) > 1.05


def test_permute_and_flip_is_not_of_bounded_range_epsilon():
    ratios = log_ratios(PermuteAndFlip(epsilon=1), [0, 0], [1, -1])
    assert max(ratios) - min(ratios) == pytest.approx(1 + math.log(2 - math.exp(-1)))
    assert PermuteAndFlip(epsilon=1).event == PureDP(epsilon=1)


# --- error --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "chooser", CHOOSERS, ids=lambda c: f"{type(c).__name__}-{getattr(c, 'noise', getattr(c, 'k', ''))}"
)
def test_the_shortfall_stays_within_error_and_error_is_not_idle(chooser):
    entropy, n, confidence = SeededEntropy(21), 1500, 0.9
    limit = chooser.error(20, confidence)
    best = max(1, limit)
    k = getattr(chooser, "k", 1)
    for fall in (limit + 1, limit // 2):  # all others just beyond the bound: the worst case; and half as far
        scores = np.array([best] * k + [best - fall] * (20 - k))
        failures = 0
        for _ in range(n):
            picked = chooser(scores, entropy=entropy)
            failures += any(i >= k for i in (picked if isinstance(picked, tuple) else (picked,)))
        if fall > limit:
            assert_rarely(failures, n, 1 - confidence)
        else:
            assert failures / n > 1 - confidence


@pytest.mark.parametrize("chooser", CHOOSERS, ids=repr)
def test_errors_are_finite_for_extreme_prices(chooser):
    for epsilon in (1e-320, 1e-9, 1e9, 1e308):
        assert replace(chooser, epsilon=epsilon).error(10, 0.999) >= 0


def test_the_utility_theorem_of_the_lecture():
    """OPT - 6.8 / epsilon for four nationalities and exp(-3) (Waterloo CS848): ours is not above it."""
    chooser = ExponentialMechanism(epsilon=Fraction(1, 100))
    assert chooser.error(4, 1 - math.exp(-3)) <= 2 * (math.log(4) + 3) * 100 < 880
    assert PermuteAndFlip(epsilon=Fraction(1, 100)).error(4) <= chooser.error(4)
    assert chooser.error(1) == 0


# --- the mechanism ------------------------------------------------------------------------------------------

COLORS = Public(schema={"color": Categories(["red", "green", "blue"])})
PLACES = {"x": Bounds(0, 4), "y": Bounds(0, 4)}


def colors(counts, public=COLORS):
    return Memory(
        {"color": [c for c, n in zip(("red", "green", "blue"), counts, strict=True) for _ in range(n)]},
        public,
    )


def select(chooser, public=COLORS):
    return Select(
        public=public, scores=Histogram(column="color"), candidates=("red", "green", "blue"), chooser=chooser
    )


@pytest.mark.parametrize("monotone", [False, True])
@given(ties=st.integers(1, 5), below=st.lists(st.integers(1, 60), max_size=8), failure=st.floats(0.01, 0.9))
@settings(max_examples=60, deadline=None)
def test_utility_with_ties_bounds_the_exact_law(monotone, ties, below, failure):
    """Waterloo CS848: Pr[score <= OPT - (2 Delta/epsilon)(ln(outputs/best outputs) + t)] <= e^-t."""
    chooser = ExponentialMechanism(epsilon=1, sensitivity=3, monotone=monotone)
    scores = [50] * ties + [50 - gap for gap in below]
    allowed = chooser.utility(len(scores), best=ties, failure=failure)
    stated = (3 if monotone else 6) * (math.log(len(scores) / ties) - math.log(failure))
    assert stated <= allowed <= stated * (1 + 1e-12)
    law = softmax(scores, Fraction(1, 3) if monotone else Fraction(1, 6))
    assert mp.fsum(p for p, score in zip(law, scores, strict=True) if score <= 50 - allowed) <= failure


def test_utility_for_more_ties_than_there_are_is_too_small():
    chooser, others = ExponentialMechanism(epsilon=Fraction(1, 1000)), 999
    for best, holds in ((1, True), (2, False)):
        shortfall = math.ceil(chooser.utility(1 + others, best=best, failure=0.05))
        weight = others * mp.exp(-mp.mpf(shortfall) / 2000)
        assert (weight / (1 + weight) <= 0.05) == holds
    assert chooser.utility(4, failure=math.exp(-3)) == pytest.approx(8.77 * 1000, rel=1e-3)
    with pytest.raises(InvalidInput, match="best must be at most 4"):
        chooser.utility(4, best=5, failure=0.1)


@pytest.mark.parametrize("name", ["exponential mechanism", "permute and flip", "noisy max, laplace"])
@pytest.mark.parametrize("moves", [(-1, 1, 1), (1, 0, -1)])
def test_every_private_mechanism_is_an_exponential_mechanism(name, moves):
    """Its score is ln Pr[M(D) = o], which one person moves by at most epsilon; its price is 2 epsilon."""
    cls, extra, _ = LAWS[name]
    private, grid = cls(epsilon=1, **extra), 1 << 40
    sensitivity = grid + 1  # epsilon, which is 1, in steps of the grid, and 1 for rounding
    chooser = ExponentialMechanism(epsilon=Fraction(2 * sensitivity, grid), sensitivity=sensitivity)
    tables = [[2, 0, 3], [2 + moves[0], moves[1], 3 + moves[2]]]
    laws = [law_of(private, scores) for scores in tables]
    scores = [[int(mp.nint(grid * mp.log(p))) for p in law] for law in laws]
    assert max(abs(a - b) for a, b in zip(*scores, strict=True)) <= sensitivity
    for law, logarithms in zip(laws, scores, strict=True):
        assert law_of(chooser, logarithms) == pytest.approx([float(p) for p in law], abs=1e-11)


def test_select_names_the_most_common_category():
    release = select(ExponentialMechanism(epsilon=2, monotone=True))(colors([3, 90, 5]), entropy=Entropy())
    assert release.value == "green"
    assert release.event == BoundedRange(epsilon=2)
    assert release.error(0.95) == 1  # (1 / rate) ln(2 * 19) = 1.8
    with pytest.raises(InvalidInput, match="scores or ranks"):
        release.interval()


def test_what_seeded_entropy_chose_is_not_private():
    release = select(PermuteAndFlip(epsilon=1))(colors([3, 90, 5]), entropy=SeededEntropy(1))
    assert not release.private
    assert isinstance(release.event, NonPrivate)


@for_each("chooser", CHOOSERS, ids=repr)
def test_every_chooser_round_trips_inside_select(chooser):
    mechanism = select(chooser)
    assert from_json(json.loads(json.dumps(to_json(mechanism)))) == mechanism


def test_monotone_is_refused_where_nothing_proves_it():
    swapped = Public(schema=COLORS.schema, neighbors=REPLACE)
    with pytest.raises(InvalidInput, match="same way"):
        select(ExponentialMechanism(epsilon=1, monotone=True, neighbors=REPLACE), swapped)
    assert select(ExponentialMechanism(epsilon=1, neighbors=REPLACE), swapped).event.neighbors is REPLACE


@given(st.lists(st.integers(0, 9), max_size=8), st.integers(0, 9), st.integers(0, 9))
@settings(deadline=None)
def test_counts_below_move_one_way_under_replace_too(rows, old, new):
    public = Public(schema={"v": Bounds(0, 9)}, neighbors=REPLACE)
    statistic = CountsBelow(column="v", thresholds=(2, 4, 6))
    moves = statistic(Memory({"v": [*rows, new]}, public)) - statistic(Memory({"v": [*rows, old]}, public))
    assert (moves >= 0).all() or (moves <= 0).all()


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=6),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
)
@settings(deadline=None, max_examples=40)
def test_cell_scores_move_within_their_sensitivity_and_one_way(rows, new):
    public = Public(schema=PLACES)

    def table(points):
        return Memory(
            {"x": np.array([p[0] + 0.5 for p in points]), "y": np.array([p[1] + 0.5 for p in points])}, public
        )

    for scores in (CellCounts(x="x", y="y", cells=4), CellDistances(x="x", y="y", cells=4)):
        moves = scores(table([*rows, new])) - scores(table(rows))
        assert np.abs(moves).max() <= scores.sensitivity(public).linf
        assert scores.moves_one_way(public)
        assert (moves >= 0).all() or (moves <= 0).all()


def test_one_persons_cell_is_randomized_response_at_half_epsilon():
    """Lecture 003: the uniform score gives p = e^(eps/2) q over the k x k cells, the distance score near
    cells."""
    public, entropy = Public(schema=PLACES, neighbors=REPLACE, size=1), SeededEntropy(9)
    person, eps = Memory({"x": [1.5], "y": [2.5]}, public), 4
    chooser = ExponentialMechanism(epsilon=eps, neighbors=REPLACE)
    uniform = CellCounts(x="x", y="y", cells=4)
    mechanism = Select(public=public, scores=uniform, candidates=uniform.candidates(), chooser=chooser)
    odds = math.exp(eps / 2)
    law = {cell: (odds if cell == (1, 2) else 1) / (odds + 15) for cell in uniform.candidates()}
    assert_law(lambda: mechanism(person, entropy=entropy).value, law, 3000)
    distances = CellDistances(x="x", y="y", cells=4)(person)
    assert distances.reshape(4, 4).tolist() == [
        [-(abs(i - 1) + abs(j - 2)) for j in range(4)] for i in range(4)
    ]
    assert from_json(to_json(mechanism)) == mechanism


@given(st.floats(-1e6, 1e6), st.floats(-2.5, 2.5), st.sampled_from([0.3, 1.0, 0.125, 2.5]))
def test_real_scores_round_within_their_sensitivity(score, move, step):
    moved = score + move
    claimed = abs(Fraction(moved) - Fraction(score)) or Fraction(1)
    before, after = (
        RealScores(function=lambda _, s=s: [s], claimed=claimed, step=step) for s in (score, moved)
    )
    bound = before.sensitivity(Public()).linf
    assert abs(int(after(None)[0]) - int(before(None)[0])) <= bound == math.ceil(claimed / Fraction(step))


def test_trusted_scores_run_but_have_no_description():
    scores = Trusted(function=lambda source: [1, 50, 2], claimed=Sensitivity(linf=1, l0=3))
    mechanism = Select(
        public=Public(), scores=scores, candidates=("a", "b", "c"), chooser=PermuteAndFlip(epsilon=2)
    )
    assert mechanism(Memory({"z": [1]}, Public()), entropy=Entropy()).value == "b"
    with pytest.raises(DiscreetError, match="trusted code"):
        to_json(mechanism)


# --- bad input draws nothing --------------------------------------------------------------------------------


@for_each("chooser", CHOOSERS, ids=repr)
@for_each("scores", [[], [[1, 2]], [0.5, 1.0], [float("nan"), 1.0], ["a"], [True, False]])
def test_bad_scores_are_refused_before_anything_is_drawn(chooser, scores):
    with pytest.raises(DiscreetError, match=r"must be|cannot"):
        chooser(scores, entropy=NoDraws())


@for_each("cls", [ExponentialMechanism, PermuteAndFlip, ReportNoisyMax, TopK])
@for_each(
    "bad",
    [{"epsilon": 0}, {"epsilon": math.inf}, {"epsilon": math.nan}, {"epsilon": -1}, {"epsilon": "1"}]
    + [{"epsilon": 1, "sensitivity": s} for s in (0, -1, 0.5)]
    + [{"epsilon": 1, "monotone": 1}, {"epsilon": 1, "neighbors": "next"}],
)
def test_bad_parameters_are_refused(cls, bad):
    with pytest.raises(InvalidInput, match=r"must be"):
        cls(**bad)


def test_a_selection_that_does_not_fit_is_refused():
    with pytest.raises(InvalidInput, match="candidates must not be empty"):
        Select(
            public=COLORS, scores=Histogram(column="color"), candidates=(), chooser=PermuteAndFlip(epsilon=1)
        )
    with pytest.raises(InvalidInput, match="differ"):
        Select(
            public=COLORS,
            scores=Histogram(column="color"),
            candidates=("a", "a"),
            chooser=PermuteAndFlip(epsilon=1),
        )
    with pytest.raises(WrongRelation, match="this PermuteAndFlip is proved for replace, not for"):
        select(PermuteAndFlip(epsilon=1, neighbors=REPLACE))
    cells, places = CellDistances(x="x", y="y", cells=3), Public(schema=PLACES)
    with pytest.raises(InvalidInput, match="priced for 1"):
        Select(public=places, scores=cells, candidates=cells.candidates(), chooser=PermuteAndFlip(epsilon=1))
    with pytest.raises(InvalidInput, match="at most the number of candidates, 3"):
        select(TopK(epsilon=1, k=4))
    three = Trusted(function=lambda source: np.array([1, 2, 3]), claimed=Sensitivity(linf=1, l0=3))
    short = Select(public=COLORS, scores=three, candidates=("red",), chooser=PermuteAndFlip(epsilon=1))
    with pytest.raises(InvalidInput, match="one score for each"):
        short(colors([1, 1, 1]), entropy=NoDraws())
    assert select(PermuteAndFlip(epsilon=1)).public.neighbors is ADD_REMOVE


# --- the weighted draw behind quantiles ---------------------------------------------------------------------


def weighted(costs, weights, rate):
    terms = [
        w * mp.exp(-mp.mpf(rate.numerator) / rate.denominator * c)
        for c, w in zip(costs, weights, strict=True)
    ]
    return {i: t / mp.fsum(terms) for i, t in enumerate(terms)}


def test_the_weighted_draw_follows_its_law_by_floats_and_by_integers():
    costs, weights, rate = np.array([5, 0, 2, 9]), np.array([40, 1, 3, 10**4]), Fraction(1, 3)
    entropy = SeededEntropy(2)
    law = weighted(costs, weights, rate)
    assert_law(lambda: weighted_softmax(costs, weights, rate, entropy), law, 6000)
    assert_law(lambda: _by_integers(costs, 0, weights, rate, entropy.integer(53), entropy), law, 1500)
    with pytest.raises(AssertionError):
        assert_law(lambda: weighted_softmax(costs, weights, rate * 2, entropy), law, 6000)


@given(
    st.lists(st.tuples(st.integers(0, 10**6), st.integers(1, 2**60)), min_size=1, max_size=8),
    st.integers(0, 2**53 - 1),
)
@settings(deadline=None, max_examples=80)
def test_where_floats_decide_exact_arithmetic_agrees(terms, prefix):
    costs, weights = np.array([t[0] for t in terms]), np.array([t[1] for t in terms])
    best, rate = int(costs.min()), Fraction(1, 97)
    by_floats = _by_floats((costs - best).astype(float), weights.astype(float), float(rate), prefix)
    if by_floats is not None:
        assert by_floats == _by_integers(costs, best, weights, rate, prefix, SeededEntropy(prefix))


def test_a_draw_on_the_edge_is_left_to_exact_arithmetic():
    even = np.array([1.0, 1.0])
    assert _by_floats(np.zeros(2), even, 1.0, 1 << 52) is None  # U = 1/2, where the two stretches meet
    assert weighted_softmax(np.array([7]), np.array([3]), Fraction(1), SeededEntropy(1)) == 0


@pytest.mark.parametrize("candidates", [("a",), ("a", "b", "c")])
def test_scores_that_are_not_one_for_each_candidate_are_refused_before_anything_is_read(candidates):
    public = Public(schema={"c": Categories(["a", "b"])})
    chooser = ExponentialMechanism(epsilon=1)
    with pytest.raises(InvalidInput, match="gives 2 scores"):
        Select(public=public, scores=Histogram(column="c"), candidates=candidates, chooser=chooser)
    with pytest.raises(InvalidInput, match="a single number"):
        Select(public=public, scores=Count(), candidates=candidates, chooser=chooser)


def test_cells_of_bounds_that_are_one_float_are_one_cell_and_tell_nothing() -> None:
    """2**53 and 2**53 + 1 are one float: 0 / 0 was a warning, and a cell that no row was in."""
    public = Public(schema={"x": Bounds(2**53, 2**53 + 1), "y": Bounds(0, 1)})
    counts = CellCounts(x="x", y="y", cells=2)(Memory({"x": [2**53] * 3, "y": [0.1, 0.2, 0.9]}, public))
    assert counts.tolist() == [2, 1, 0, 0]


def test_candidates_that_cannot_be_compared_are_refused() -> None:
    public = Public(schema={"c": Categories(["a", "b"])})
    with pytest.raises(InvalidInput, match="tuples"):
        Select(
            public=public,
            scores=Histogram(column="c"),
            candidates=([0], [1]),
            chooser=ExponentialMechanism(epsilon=1),
        )


# --- private PAC learning -----------------------------------------------------------------------------------

AGES = Public(schema={"age": Bounds(0, 9), "ill": Boolean()}, neighbors=REPLACE, size=400)


def above(limit):
    return lambda age: age > limit


def over_zero(age):
    return 1 / age > 0.5


CLASS = Mistakes(columns=("age",), target="ill", hypotheses=(*map(above, range(9)), over_zero))


def table(ages, ill, public=AGES):
    return Memory({"age": np.asarray(ages, np.int64), "ill": np.asarray(ill, bool)}, public)


def test_mistakes_are_counted_row_by_row_and_a_hypothesis_that_raises_is_wrong():
    rng = np.random.default_rng(1)
    ages, ill = rng.integers(0, 10, 400), rng.integers(0, 2, 400).astype(bool)
    errors = [int(((ages > limit) != ill).sum()) for limit in range(9)]
    with np.errstate(divide="ignore"):
        errors.append(int((((1 / ages) > 0.5) != ill)[ages > 0].sum() + (ages == 0).sum()))
    assert CLASS(table(ages, ill)).tolist() == [-wrong for wrong in errors]


@for_each("neighbors", [ADD_REMOVE, REPLACE])
def test_one_row_moves_mistakes_by_at_most_one_and_one_way_where_that_is_claimed(neighbors):
    public = replace(AGES, neighbors=neighbors, size=2)
    rows = list(itertools.product((0, 1, 5), (False, True)))
    assert CLASS.sensitivity(public).linf == 1
    for first, second in itertools.product(rows, rows):
        before = CLASS(table(*zip(rows[3], first, strict=True), public))
        changed = [rows[3]] if neighbors is ADD_REMOVE else [rows[3], second]
        moved = CLASS(table(*zip(*changed, strict=True), public)) - before
        assert abs(moved).max() <= 1
        assert not CLASS.moves_one_way(public) or moved.min() >= 0


def test_a_learner_of_a_finite_class_is_as_good_as_its_sample_bound_says():
    """A tenth of labels is flipped: the best hypothesis is wrong on 0.1, the choice on at most 0.1 more."""
    size = enough_rows(10, epsilon=0.5, accuracy=0.1, failure=0.1)
    public = replace(AGES, size=size)
    learner = Select(
        public=public, scores=CLASS, candidates=tuple(range(10)), chooser=ExponentialMechanism(
            epsilon=0.5, neighbors=REPLACE
        ),
    )  # fmt: skip
    rng, entropy, failures = np.random.default_rng(2), SeededEntropy(2), 0
    for _ in range(100):
        ages = rng.integers(0, 10, size)
        ill = (ages > 4) ^ (rng.random(size) < 0.1)
        limit = learner(table(ages, ill, public), entropy=entropy).value
        wrong = 1.0 if limit == 9 else 0.1 + 0.8 * abs(limit - 4) / 10
        failures += wrong > 0.2
    assert_rarely(failures, 100, 0.1)
    assert failures < 100
    with pytest.raises(InvalidInput, match="nothing proves"):
        Select(
            public=public, scores=CLASS, candidates=tuple(range(10)), chooser=ExponentialMechanism(
                epsilon=1, neighbors=REPLACE, monotone=True
            ),
        )  # fmt: skip


@given(st.integers(1, 10**6), st.floats(0.01, 10), st.floats(0.01, 0.9), st.floats(1e-6, 0.9))
@settings(max_examples=60)
def test_the_sample_bound_is_the_least_number_that_its_proof_allows(k, epsilon, accuracy, failure):
    def proved(n):
        chosen = 2 / (mp.mpf(epsilon) * n) * mp.log(2 * k / mp.mpf(failure))
        return chosen + 2 * mp.sqrt(mp.log(4 * k / mp.mpf(failure)) / (2 * n)) <= accuracy

    rows = enough_rows(k, epsilon=epsilon, accuracy=accuracy, failure=failure)
    assert proved(rows)
    assert not proved(rows - max(1, rows // 10**9) - 1)
