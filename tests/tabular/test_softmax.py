"""A softmax of several classes: its constants hold on every row, and are needed."""

from __future__ import annotations

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from discreet import Bounds, Categories, Public, tabular
from discreet.sampling import SeededEntropy
from discreet.tabular import LogisticRegression
from discreet.tabular.losses import SoftmaxProblem, minimize

K = 4
PUBLIC = Public(
    schema={"a": Bounds(-1, 1), "b": Bounds(-1, 1), "y": Categories([f"c{i}" for i in range(K)])}, size=500
)
DESIGN = tabular.Design(features=("a", "b"), target="y", clip="never")
LOSS = tabular.losses.Softmax()


def learner(kind: type = tabular.ObjectivePerturbation, **more: object) -> tabular.LinearERM:
    return kind(**{"public": PUBLIC, "design": DESIGN, "epsilon": 1.0, "loss": LOSS, **more})


def problem(rows: int, strength: float = 3.0, seed: int = 0) -> SoftmaxProblem:
    rng = np.random.default_rng(seed)
    x = np.concatenate([rng.uniform(-1, 1, (rows, 2)), np.ones((rows, 1))], axis=1).astype(np.float32)
    y = rng.integers(0, K, rows).astype(np.float64)
    facts = learner().facts
    return SoftmaxProblem(
        x=x, y=y, weights=None, loss=LOSS, linear=rng.normal(size=3 * K), strength=strength,
        row_norm=facts.row_l2, lipschitz=facts.lipschitz, classes=K,
    )  # fmt: skip


def test_gradients_of_a_row_have_the_norms_that_are_claimed() -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(size=(4000, K)) * rng.choice([0.1, 3, 40], (4000, 1))
    slopes = LOSS.slope(scores, rng.integers(0, K, 4000).astype(np.float64))
    facts = learner().facts
    assert np.linalg.norm(slopes, axis=1).max() <= LOSS.lipschitz + 1e-12
    assert np.abs(slopes).sum(axis=1).max() <= 2 + 1e-12
    assert np.linalg.norm(slopes, axis=1).max() > 0.99 * LOSS.lipschitz
    assert facts.gradient_l1 == pytest.approx(2 * facts.row_l1)
    assert facts.gradient_l2 == pytest.approx(math.sqrt(2) * facts.row_l2)
    assert (facts.models, facts.width, facts.sides) == (1, 3 * K, K - 1)


def test_the_determinant_changes_by_at_most_what_is_charged_and_by_more_than_rank_one_would_allow() -> None:
    """log det(H + lambda + A (x) xx') - log det(H + lambda), at every point, for the added row and for the
    empty table."""
    rng, facts = np.random.default_rng(2), learner().facts
    largest = 0.0
    for strength in (0.05, 0.5, 5.0):
        for _ in range(400):
            x = rng.uniform(-1, 1, 3)
            x *= facts.row_l2 / np.linalg.norm(x)
            p = rng.dirichlet(np.full(K, rng.choice([0.2, 1, 30])))
            row = np.kron(np.diag(p) - np.outer(p, p), np.outer(x, x))
            base = strength * np.eye(3 * K)
            change = np.linalg.slogdet(base + row)[1] - np.linalg.slogdet(base)[1]
            assert change <= facts.log_determinant(strength) + 1e-9
            largest = max(largest, change / facts.log_determinant(strength))
            # a mutant: the largest eigenvalue once, as of one model of two classes
    assert largest > 0.98, "the bound is reached where all classes are equally likely"
    assert facts.log_determinant(0.05) > math.log1p(facts.curvature / 0.05), (
        "rank one would charge too little"
    )


def test_the_solver_certifies_what_an_exact_gradient_confirms() -> None:
    task = problem(40)
    point, certified = minimize(task, 1e-9)
    assert certified
    with mpmath.workdps(40):
        exact = [
            task.strength * mpmath.mpf(w) + mpmath.mpf(b) for w, b in zip(point, task.linear, strict=True)
        ]
        for row, label in zip(task.x.tolist(), task.y.tolist(), strict=True):
            powers = [mpmath.exp(mpmath.fdot(row, point[3 * c : 3 * c + 3].tolist())) for c in range(K)]
            for c in range(K):
                slope = powers[c] / mpmath.fsum(powers) - (c == label)
                for j in range(3):
                    exact[3 * c + j] += slope * row[j]
        true = np.array([float(value) for value in exact])
    assert np.linalg.norm(true) <= 1e-9
    assert np.linalg.norm(true - task.gradient(point)[0]) <= task.rounding(point)
    large = problem(40_000, 30.0)
    assert large.stride == 1
    assert minimize(large, 1e-6)[1]
    np.testing.assert_allclose(
        task.hessian(task.gradient(point)[1]),
        np.array(
            [(task.gradient(point + h)[0] - task.gradient(point - h)[0]) / 2e-6 for h in np.eye(12) * 1e-6]
        ),
        atol=1e-6,
    )


def test_integer_gradients_and_minimizers_stay_within_their_sensitivities() -> None:
    gradient = learner(tabular.GradientPerturbation, delta=1e-5)
    task = problem(1)
    far = gradient._integer_gradient(task, np.concatenate([np.full(3, 60.0), np.full(3 * K - 3, -60.0)]))
    assert int(far @ far) <= gradient.sensitivity.l2_squared
    output = learner(tabular.OutputPerturbation, regularization=2.0)
    whole = replace(problem(30, 2.0), linear=np.zeros(3 * K))
    without = replace(whole, x=whole.x[1:], y=whole.y[1:])
    moved = minimize(whole, 1e-9)[0] - minimize(without, 1e-9)[0]
    assert np.linalg.norm(moved) <= output._distance(2.0)


def test_a_softmax_needs_less_than_one_model_for_each_class() -> None:
    rng = np.random.default_rng(0)
    X = rng.uniform(-1, 1, (3000, 2))
    y = np.digitize(X[:, 0] + 0.2 * rng.normal(size=3000), [-0.5, 0.0, 0.5])
    facts = {"classes": [0, 1, 2, 3], "n": 3000, "lower": -1, "upper": 1, "epsilon": 4.0}
    joint = LogisticRegression(**facts).fit(X, y)
    assert joint.model_.joint
    assert joint.coef_.shape == (4, 2)
    np.testing.assert_allclose(joint.predict_proba(X).sum(axis=1), 1)
    assert joint.score(X, y) > 0.4
    apart = LogisticRegression(multi_class="ovr", **facts).fit(X, y)
    assert not apart.model_.joint
    assert apart.mechanism_.noise_distribution[1] > joint.mechanism_.noise_distribution[1]
    weighted = learner(class_weights=(1, 1, 1, 5))
    assert weighted.facts.log_determinant(1.0) > learner().facts.log_determinant(1.0)
    x, targets = np.zeros((0, 3), dtype=np.float32), np.zeros(0)
    assert len(weighted.fit_rows(x, targets, SeededEntropy(1)).weights) == K
