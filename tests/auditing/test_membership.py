"""Attacks on membership: against laws whose answer is known, and against a real overfitted network, with and
without privacy."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from scipy import special, stats

from discreet import accounting, auditing, learning
from discreet._errors import InvalidInput

from .digits import CLASSES, Overfitted, digits

MODELS, EXAMPLES = 24, 400
EPSILON, DELTA = 2.0, 1e-5


@pytest.fixture(scope="module")
def overfitted():
    """Shadow models of an overfitted network: logit-scaled confidences, and who was in; and the losses of the
    first model."""
    x, y = digits(EXAMPLES)
    losses = []

    def train(members):
        logs = Overfitted(x[members], y[members]).log_probabilities(x)
        losses.append(-logs[np.arange(EXAMPLES), y])
        return lambda: auditing.margins(logs, y)

    shadows = auditing.train_shadows(train, EXAMPLES, models=MODELS, seed=1)
    return shadows, losses[0]


def test_the_roc_of_two_normal_laws_has_the_known_area_and_rates():
    rng = np.random.default_rng(0)
    roc = auditing.Roc.of(rng.normal(1, 1, 20_000), rng.normal(0, 1, 20_000))
    assert roc.auc == pytest.approx(stats.norm.cdf(1 / math.sqrt(2)), abs=0.02)
    assert roc.tpr_at(0.1) == pytest.approx(stats.norm.sf(stats.norm.isf(0.1) - 1), abs=0.03)
    assert roc.advantage == pytest.approx(2 * stats.norm.cdf(0.5) - 1, abs=0.03)
    fpr, tpr = roc.curve()
    assert (fpr[0], tpr[0], fpr[-1], tpr[-1]) == (0, 0, 1, 1)
    assert (np.diff(fpr) >= 0).all()
    assert (np.diff(tpr) >= 0).all()


def test_the_band_holds_the_truth_at_every_threshold_fixed_before():
    """200 curves, one fixed threshold, at 95%: 40 or more misses have chance below 1e-9."""
    rng = np.random.default_rng(1)
    missed = 0
    for _ in range(200):
        members, others = rng.normal(1, 1, 100), rng.normal(0, 1, 100)
        roc = auditing.Roc.of(np.append(members, 0.5), others)  # 0.5 is a threshold of the curve
        _, low, high = roc.band(0.95)
        place = int((roc.curve()[1] <= (members >= 0.5).mean()).sum()) - 1
        missed += not low[place] <= stats.norm.sf(-0.5) <= high[place]
    assert stats.binom.sf(39, 200, 0.06) < 1e-9
    assert missed < 40


def test_limits_at_a_chosen_false_positive_rate_hold_though_it_was_chosen():
    """Equal laws: TPR = FPR at any threshold. 300 curves at 90%: 70 contradictions or more have chance below
    1e-9."""
    rng = np.random.default_rng(2)
    wrong = 0
    for _ in range(300):
        found = auditing.Roc.of(rng.normal(size=300), rng.normal(size=300)).at(0.05, confidence=0.9)
        wrong += found.above(0.0)
    assert stats.binom.sf(69, 300, 0.1) < 1e-9
    assert wrong < 70
    told = auditing.Roc.of(rng.normal(3, 1, 300), rng.normal(size=300)).at(0.05, confidence=0.999)
    assert told.above(0.5)
    assert told.guesses.epsilon(confidence=0.999) > 0.5


@pytest.mark.parametrize("arranged", [np.asarray, np.sort], ids=["as drawn", "sorted"])
def test_the_limits_of_the_false_positive_rate_hold_for_this_number_of_scores(arranged):
    """Uniform scores: the FPR of a threshold is 1 - threshold. 300 curves of 132 non-members at 90%; all four
    limits fail with chance at most 10%, the two of the FPR with at most 5%: 45 failures have chance below 1e-9.
    A fixed split of sorted scores has the same count of false positives each time, and failed 18% here."""
    rng = np.random.default_rng()
    points = [
        auditing.Roc.of(rng.uniform(size=20), arranged(rng.uniform(size=132))).at(0.05, confidence=0.9)
        for _ in range(300)
    ]
    wrong = sum(not point.fpr[0] <= 1 - min(point.threshold, 1.0) <= point.fpr[1] for point in points)
    assert stats.binom.sf(44, 300, 0.05) < 1e-9
    assert wrong < 45
    assert len({point.guesses.false_hits for point in points}) > 1


def test_ties_count_half_and_bad_scores_are_refused():
    assert auditing.Roc.of([1.0, 1.0], [1.0, 0.0]).auc == 0.75
    assert auditing.Roc.from_labels([1.0, 2.0, 0.0], [True, True, False]).tpr_at(0.0) == 1
    for scores in (([], [1.0]), ([math.nan], [1.0])):
        with pytest.raises(InvalidInput, match="a ROC curve needs scores of members and"):
            auditing.Roc.of(*scores)
    with pytest.raises(InvalidInput, match="3 scores for 2"):
        auditing.Roc.from_labels([1.0, 2.0, 3.0], [True, False])
    with pytest.raises(InvalidInput, match="two non-members"):
        auditing.Roc.of([1.0], [0.0]).at(0.1)
    assert not auditing.Roc.of([1.0, 2.0], [1.0, 2.0]).at(0.1).above(1e4)


def test_margins_are_the_logit_of_the_confidence_where_that_does_not_saturate():
    rng = np.random.default_rng(3)
    logits, labels = rng.normal(size=(50, 5)), rng.integers(0, 5, 50)
    confidence = special.softmax(logits, axis=1)[np.arange(50), labels]
    assert auditing.margins(logits, labels) == pytest.approx(auditing.logit_scaled(confidence))
    assert auditing.margins([[900.0, 0.0]], [0])[0] == 900  # the confidence is 1 to all digits
    with pytest.raises(InvalidInput, match="logits must have a row for each example,"):
        auditing.margins([[1.0, 2.0]], [0, 1])


def test_halves_put_every_example_into_half_of_the_models():
    included = auditing.halves(9, 100, seed=1)
    assert (included.sum(axis=0) == 4).all()
    assert not (included == included[0]).all()


@pytest.mark.parametrize("online", [True, False])
@pytest.mark.parametrize("fixed", [True, False])
def test_lira_is_the_optimal_test_where_confidences_are_normal(online, fixed):
    """Every example has its own difficulty; knowing it, TPR is that of N(2, 1) against N(0, 1)."""
    rng = np.random.default_rng(4)
    included = auditing.halves(200, 300, seed=2)
    scores = rng.normal(size=(200, 300)) + 2 * included + rng.normal(scale=20, size=300)
    roc = auditing.lira_roc(auditing.Shadows(scores, included), online=online, fixed_variance=fixed)
    best = stats.norm.sf(stats.norm.isf(0.01) - 2)
    assert best * 0.85 < roc.tpr_at(0.01) < best + 0.03
    alone = auditing.Roc.from_labels(
        scores[0], included[0]
    )  # one threshold for everybody sees the difficulty, nothing else
    assert alone.tpr_at(0.01) < 0.1


def test_several_queries_tell_more_than_one():
    rng = np.random.default_rng(5)
    included = auditing.halves(64, 300, seed=3)
    scores = rng.normal(size=(64, 300, 4)) + included[:, :, None]
    four = auditing.lira_roc(auditing.Shadows(scores, included), fixed_variance=True)
    one = auditing.lira_roc(auditing.Shadows(scores[:, :, 0], included), fixed_variance=True)
    assert four.auc == pytest.approx(stats.norm.cdf(2 / math.sqrt(2)), abs=0.03)
    assert one.auc == pytest.approx(stats.norm.cdf(1 / math.sqrt(2)), abs=0.03)


def test_lira_refuses_what_it_cannot_fit():
    # one model per side of every example: there is nothing to pool a variance from
    pair = auditing.Shadows(np.zeros((2, 3)), np.array([[True] * 3, [False] * 3]))
    with pytest.raises(InvalidInput, match="too few shadow models"):
        auditing.lira(np.zeros(3), pair, fixed_variance=True)
    with pytest.raises(InvalidInput, match="too few shadow models"):
        auditing.lira([0.0, 0.0], auditing.Shadows(np.zeros((2, 2)), np.array([[True, False], [True, True]])))
    with pytest.raises(InvalidInput, match="shape"):
        auditing.lira([0.0], auditing.Shadows(np.zeros((4, 2)), auditing.halves(4, 2)))
    with pytest.raises(InvalidInput, match="finite"):
        auditing.Shadows(np.full((4, 2), np.inf), auditing.halves(4, 2))
    with pytest.raises(InvalidInput, match="two"):
        auditing.Shadows(np.zeros((1, 2)), np.zeros((1, 2)))


def test_lira_on_an_overfitted_network_has_a_true_positive_rate_above_ten_times_one_percent(overfitted):
    """Each measurement draws its own halves. Of 1,000, 11 showed an FPR above 1% and 2 allowed this epsilon: that 16
    of 31 do has chance below 1e-20."""
    shadows, _ = overfitted
    online = auditing.lira_roc(shadows, fixed_variance=True)
    offline = auditing.lira_roc(shadows, online=False, fixed_variance=True)
    measured = [online.at(0.01, confidence=0.999) for _ in range(31)]
    assert sum(point.tpr[0] > 10 * 0.01 for point in measured) > 15
    assert sum(point.fpr[0] < 0.01 for point in measured) > 15
    assert online.tpr_at(0.01) > offline.tpr_at(0.01) > 0.05
    # no training at this epsilon would allow it
    assert sum(point.above(EPSILON, DELTA) for point in measured) > 15


def test_the_loss_finds_members_too_but_hardly_any_where_false_alarms_are_rare(overfitted):
    shadows, losses = overfitted
    inside, margin = shadows.included[0], shadows.scores[0, :, 0]
    loss = auditing.by_loss(losses[inside], losses[~inside])
    best = auditing.Roc.from_labels(auditing.lira(margin, shadows.without(0), fixed_variance=True), inside)
    assert loss.auc > 0.6
    assert loss.tpr_at(0.01) < best.tpr_at(0.01)


def test_with_privacy_lira_stays_below_e_to_the_epsilon_times_the_false_positive_rate():
    """Eight logistic models of epsilon 2, each the target once.

    And the one-run bound, which needs no independence, is at most epsilon.
    """
    x, y = digits(EXAMPLES)
    trained = []

    told = {
        "classes": list(range(CLASSES)),
        "n": EXAMPLES // 2,
        "lower": 0,
        "upper": 1,
        "batch": 50,
        "epochs": 10,
    }
    noise = accounting.calibrate(
        lambda s: accounting.Gaussian(noise_multiplier=s).sampled(Fraction(1, 4)).repeated(40),
        epsilon=EPSILON,
        delta=DELTA,
    )

    def train(members):
        model = learning.DPClassifier(noise_multiplier=noise, **told)
        trained.append(model.fit(x[members], y[members]))
        return lambda: auditing.margins(np.log(model.predict_proba(x) + 1e-12), y)

    shadows = auditing.train_shadows(train, EXAMPLES, models=8, seed=2)
    roc = auditing.lira_roc(shadows, fixed_variance=True)
    for rate in (0.01, 0.05):
        found = roc.at(rate, confidence=1 - 1e-9)
        assert not found.above(EPSILON, DELTA)
    scores = auditing.lira(shadows.scores[0], shadows.without(0), fixed_variance=True)
    assert auditing.audit_one_run(scores, shadows.included[0], delta=DELTA, confidence=1 - 1e-9) <= EPSILON
    assert accounting.epsilon(trained[0].event_, delta=DELTA) <= EPSILON * (1 + 1e-9)
    assert (
        np.mean([model.score(x, y) for model in trained]) > 0.2
    )  # it learned something all the same: ten classes
