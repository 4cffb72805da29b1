"""Students: what is learned from few labels and many inputs without one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from benchmarks.pate import epsilon_of_queries

from discreet import DiscreetError
from discreet.learning.pate import FixMatchStudent, Student, small_network, spread_labels, typical_examples
from discreet.learning.pate.student import distort

RNG = np.random.default_rng(0)
KINDS = RNG.integers(0, 3, 300)
X = (np.array([[0, 0], [8, 0], [0, 8]])[KINDS] + RNG.normal(size=(300, 2))).astype(np.float32)


def few() -> Any:
    labels = np.full(300, -1)
    for kind in range(3):
        labels[np.flatnonzero(kind == KINDS)[:2]] = kind
    return labels


def test_typical_examples_are_spread_over_the_clusters_without_a_label() -> None:
    chosen = typical_examples(X, 3)
    assert len(set(chosen.tolist())) == 3
    assert set(KINDS[chosen]) == {0, 1, 2}


def test_labels_spread_to_their_neighbors() -> None:
    scores = spread_labels(X, few(), 3)
    assert scores.shape == (300, 3)
    np.testing.assert_allclose(scores.sum(1), 1)
    assert np.mean(scores.argmax(1) == KINDS) > 0.97


@pytest.mark.parametrize("semi", [False, True])
def test_a_student_learns_from_six_labels(semi: bool) -> None:
    student = Student(3, semi=semi, reduce=None).fit(X, few())
    assert student.score(X, KINDS) > 0.9


def test_refused_answers_are_no_labels() -> None:
    labels: list[Any] = [None if label < 0 else int(label) for label in few()]
    assert Student(3, reduce=None).fit(X, labels).score(X, KINDS) > 0.9


def images(kinds: Any) -> Any:
    """A bar across, or one upright."""
    x = np.zeros((len(kinds), 1, 12, 12), np.float32)
    for i, kind in enumerate(kinds):
        x[i, 0, 4:7] = 1 - kind
        x[i, 0, :, 4:7] += kind
    return np.clip(x + RNG.normal(scale=0.1, size=x.shape), 0, 1).astype(np.float32)


def test_a_network_learns_from_a_few_labels_by_consistency() -> None:
    kinds = RNG.integers(0, 2, 60)
    labels = np.where(np.arange(60) < 6, kinds, -1)
    labels[:2], kinds[:2] = (0, 1), (0, 1)
    student = FixMatchStudent(2, small_network(2, 1, 8), steps=40, labelled=8, unlabelled=16)
    x = images(kinds)
    before = torch.random.get_rng_state()
    assert student.fit(x, labels).score(x, kinds) > 0.9
    assert torch.equal(torch.random.get_rng_state(), before)


def test_statistics_of_batch_normalization_follow_the_network_that_was_trained() -> None:
    model = torch.nn.Sequential(torch.nn.BatchNorm2d(1), torch.nn.Flatten(), torch.nn.Linear(144, 2)).eval()
    x = images([0, 1, 0, 1])
    network = FixMatchStudent(2, model, steps=3, labelled=4, unlabelled=4).fit(x, [0, 1, -1, None]).network_
    assert network[0].num_batches_tracked > 0
    assert float(network[0].running_mean) != 0
    assert not network.training


def test_distorted_images_keep_their_shape_and_differ() -> None:
    x = torch.rand(4, 1, 12, 12)
    strong = distort(x, torch.Generator().manual_seed(1))
    assert strong.shape == x.shape
    assert not torch.equal(strong, x)


@pytest.mark.parametrize(
    "run",
    [
        lambda: typical_examples(X, 301),
        lambda: spread_labels(X, [0, 1], 3),
        lambda: spread_labels(X, np.full(300, 5), 3),
        lambda: Student(3).fit(X, np.full(300, -1)),
        lambda: Student(3).fit(np.full((3, 2), np.nan), [0, 1, 2]),
        lambda: FixMatchStudent(2).fit(np.zeros((3, 4)), [0, 1, -1]),
        lambda: FixMatchStudent(2).fit(np.zeros((3, 1, 8, 8)), [0, 0, -1]),
        lambda: FixMatchStudent(2).fit(np.zeros((3, 1, 8, 8)), [0, 2, -1]),
        lambda: FixMatchStudent(2).fit(np.zeros((3, 1, 8, 8)), [0, 1, -1, 0]),
        lambda: Student(3, semi=False).fit(X, [0, 1]),
        lambda: FixMatchStudent(1),
    ],
)
def test_what_cannot_be_learned_is_refused(run: Any) -> None:
    with pytest.raises(DiscreetError, match=r"must be|must have|student needs"):
        run()


def test_stable_questions_hardly_cost() -> None:
    plain, confident, sparse, dependent = epsilon_of_queries((100, 1000))
    assert plain.epsilons[1] > 3 * plain.epsilons[0]
    assert confident.epsilons[1] < plain.epsilons[1]
    assert sparse.epsilons[1] < 1.3 * sparse.epsilons[0]
    assert dependent.epsilons == pytest.approx((0.4513, 0.8614), abs=1e-4)
