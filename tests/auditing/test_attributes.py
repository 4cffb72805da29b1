"""Attribute inference, inversion and exposure: on laws whose answer is known, and on small real models."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import numpy as np
import pytest

from discreet import auditing, mechanisms
from discreet._errors import InvalidInput
from discreet.sampling import SeededEntropy

from .digits import Overfitted, digits


def test_the_guess_is_the_value_with_the_largest_posterior():
    losses = np.array([[1.0, 0.5, 3.0], [0.0, 2.0, 2.0]])
    assert auditing.guess_attributes(losses).tolist() == [1, 0]
    assert auditing.guess_attributes(losses, prior=[0.9, 0.05, 0.05]).tolist() == [0, 0]
    assert auditing.guess_attributes(losses, prior=[0, 0, 1]).tolist() == [2, 2]
    for wrong in (np.zeros((3, 1)), np.zeros(3), np.full((2, 2), np.nan)):
        with pytest.raises(InvalidInput, match=r"losses must be .examples, values."):
            auditing.guess_attributes(wrong)
    with pytest.raises(InvalidInput, match="prior"):
        auditing.guess_attributes(losses, prior=[1, -1, 1])


def test_statistics_about_everybody_are_no_leak_and_what_only_members_lose_is():
    everybody = auditing.membership.Attributes(right=800, members=1000, right_of_others=800, others=1000)
    assert everybody.advantage == 0
    low, high = everybody.limits()
    assert low < 0 < high
    leak = auditing.membership.Attributes(right=900, members=1000, right_of_others=500, others=1000)
    assert leak.limits(0.999)[0] > 0.3
    assert leak.guesses.epsilon(confidence=0.999) > 0.5


def test_an_overfitted_network_gives_away_a_hidden_pixel_of_its_members_and_less_of_others():
    """A coin is added to every record, which says nothing about anybody else's; only a model that knows its
    members by heart can tell it."""
    x, y = digits(300)
    coin = np.random.default_rng(1).integers(0, 2, 300)
    full = np.hstack([x, 4.0 * coin[:, None]])
    inside = np.arange(300) < 150
    model = Overfitted(full[inside], y[inside])

    def losses(value):
        asked = np.hstack([x, np.full((300, 1), 4.0 * value)])
        return -model.log_probabilities(asked)[np.arange(300), y]

    found = auditing.attribute_inference(np.stack([losses(0), losses(1)], axis=1), coin, inside)
    assert found.members == found.others == 150
    assert found.advantage > 0.1
    with pytest.raises(InvalidInput, match="whether it was in the training data"):
        auditing.attribute_inference(np.zeros((3, 2)), [0, 1, 0], [True, True, True])


def test_inversion_draws_the_only_person_of_a_class():
    """A class with one picture in it: descending the loss finds that picture's pixels, with the gradient and
    without."""
    from sklearn.linear_model import LogisticRegression

    x, y = digits(300, mislabelled=0.0)
    person = x[y == 3][0]
    model = LogisticRegression(C=1.0, max_iter=300).fit(
        np.vstack([x[y != 3], person]), np.append(y[y != 3], 3)
    )
    place = list(model.classes_).index(3)

    def objective(picture, gradient=True):
        chances = model.predict_proba(picture[None])[0]
        slope = -(model.coef_[place] - chances @ model.coef_)
        return -math.log(chances[place]), slope if gradient else None

    seen = auditing.invert(objective, np.full(64, 0.5), steps=200)
    blind = auditing.invert(lambda p: objective(p, gradient=False), np.full(64, 0.5), steps=60)
    likeness = [
        float(np.corrcoef(seen, other)[0, 1])
        for other in [person, *(x[y == k].mean(axis=0) for k in (0, 1, 4, 7))]
    ]
    assert likeness[0] > 0.5
    assert likeness[0] == max(likeness)
    assert float(np.corrcoef(blind, person)[0, 1]) > 0.4
    assert seen.min() >= 0
    assert seen.max() <= 1


def test_inversion_keeps_the_best_and_stops_when_nothing_is_gained():
    asked = []

    def flat(x):
        asked.append(x)
        return 1.0, np.zeros(2)

    assert auditing.invert(flat, [0.2, 0.9], patience=5).tolist() == [0.2, 0.9]
    assert len(asked) == 6
    smooth = auditing.invert(lambda x: (float((x**2).sum()), 2 * x), [1.0, 1.0], smooth=lambda x: x * 0.5)
    assert np.abs(smooth).max() < 1e-3


def test_exposure_is_log2_of_all_candidates_over_the_rank():
    others = np.arange(1, 1024, dtype=float)
    assert auditing.exposure(0.0, others).bits == 10
    assert auditing.exposure(0.0, others).extracted
    assert auditing.exposure(3.0, others).rank == 4
    assert auditing.exposure(3.0, others).bits == pytest.approx(8)
    assert auditing.exposure(5000.0, others).bits == 0
    assert auditing.exposure(1.0, np.ones(7)).bits == 0  # ties count against it
    with pytest.raises(InvalidInput, match="exposure needs the surprises of other candidates, and"):
        auditing.exposure(1.0, [])


def test_exposure_of_what_was_never_planted_is_small():
    """P[exposure >= b] = 2^-b for a random candidate: the mean over all of them is below 1.45 bits."""
    values = np.random.default_rng(2).normal(size=4096)
    bits = [auditing.exposure(values[i], np.delete(values, i)).bits for i in range(4096)]
    exact = 12 - np.log2(np.arange(1, 4097)).mean()
    assert np.mean(bits) == pytest.approx(exact)
    assert [sum(one >= b for one in bits) for b in (1, 5, 12)] == [4096 // 2, 4096 // 32, 1]
    assert exact == pytest.approx(1 / math.log(2), abs=0.01)


def test_log_perplexity_is_minus_log2_of_the_probability_of_the_whole_text():
    tokens = [Fraction(1, 2), Fraction(1, 8), Fraction(3, 4)]
    assert auditing.log_perplexity([float(p) for p in tokens]) == pytest.approx(
        -math.log2(math.prod(tokens, start=Fraction(1)))
    )
    assert auditing.log_perplexity(np.full((5, 7), 0.25)).tolist() == [14.0] * 5
    assert auditing.log_perplexity([0.5, 0.0]) == math.inf
    for bad in (0.5, [1.5], [-0.1], [math.nan]):
        with pytest.raises(InvalidInput, match="between 0 and 1"):
            auditing.log_perplexity(bad)


def letters(texts, noise):
    """A model of the next letter from the last one: counts of pairs, in which each text takes part once, with
    this noise; as the probabilities of the letters of a text."""
    counts = np.zeros((10, 10), np.int64)
    for text in texts:
        for pair in {(int(a), int(b)) for a, b in itertools.pairwise(text)}:
            counts[pair] += 1
    weights = np.maximum(noise(counts.ravel()).reshape(10, 10), 0) + 0.1
    chances = weights / weights.sum(axis=1, keepdims=True)
    return lambda text: [0.1, *(chances[int(a), int(b)] for a, b in itertools.pairwise(text))]


def test_a_canary_is_the_first_of_all_without_privacy_and_nothing_special_with_it():
    """A small language model and real noise: each text changes at most 5 counts by 1, at epsilon 1."""
    rng, canary = np.random.default_rng(4), "975310"
    texts = ["".join(str(d) for d in sorted(rng.integers(0, 10, 6))) for _ in range(300)] + [canary] * 3
    falling = ["".join(six) for six in itertools.combinations("9876543210", 6)]
    private, entropy = mechanisms.IntegerLaplace.for_epsilon(1, sensitivity=5), SeededEntropy(5)

    def exposed(noise):
        model = letters(texts, noise)
        surprise = {text: auditing.log_perplexity(model(text)) for text in falling}
        return auditing.exposure(surprise.pop(canary), list(surprise.values()))

    assert exposed(lambda counts: counts).extracted
    bits = [exposed(lambda counts: private(counts, entropy=entropy)).bits for _ in range(5)]
    assert np.mean(bits) < 3 < math.log2(210)
