"""Whitening that is paid for: exact sensitivity, noise that is there, and features that are alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import discreet as dp
from discreet import DiscreetError, accounting, learning
from discreet._public import REPLACE
from discreet.learning.features import PrivateWhitening
from discreet.learning.features.whitening import CELLS, _cells
from discreet.sampling import SeededEntropy

PUBLIC = dp.Public(table="t", size=3000)


def examples(x: Any, public: dp.Public = PUBLIC) -> learning.Examples:
    return learning.Examples(np.asarray(x, np.float32), np.zeros(len(x), np.int64), public)


def hostile() -> Any:
    rng = np.random.default_rng(1)
    rows = [
        rng.normal(size=(50, 4)), np.full((1, 4), np.nan), np.full((1, 4), np.inf), np.full((1, 4), 1e30),
        np.full((1, 4), 3e38), np.full((1, 4), 0.5), np.eye(4), -np.eye(4), np.full((1, 4), 0.5 + 1e-7),
        np.full((1, 4), 1e-38),
    ]  # fmt: skip
    return np.concatenate(rows).astype(np.float32)


def test_no_row_moves_the_moments_by_more_than_is_paid_for() -> None:
    """In integers, under add_remove and for all pairs under replace."""
    cells = _cells(hostile()).astype(object)
    upper = np.triu_indices(4)
    triangles = [np.outer(q, q)[upper] for q in cells]
    plain, replaced = (
        PrivateWhitening(public=dp.Public(size=9, neighbors=relation), width=4, rho=1).sensitivity
        for relation in (dp.ADD_REMOVE, REPLACE)
    )
    for one in triangles:
        assert int((one**2).sum()) <= plain.l2_squared
        for other in triangles:
            assert int(((one - other) ** 2).sum()) <= replaced.l2_squared
            assert int(abs(one - other).max()) <= replaced.linf
    assert max(int((one**2).sum()) for one in triangles) == plain.l2_squared == CELLS**4


def test_the_price_is_that_of_its_rho_and_the_noise_is_there() -> None:
    """Of zero rows, all that is released is noise: its variance, of 5,050 entries, within 6 deviations."""
    mechanism = PrivateWhitening(public=PUBLIC, width=100, rho=0.1)
    assert mechanism.deviation == pytest.approx(1 / np.sqrt(0.2), rel=1e-3)
    alike = accounting.Gaussian(noise_multiplier=mechanism.deviation)
    for delta in (1e-5, 1e-3):
        price = accounting.epsilon(mechanism.event, delta=delta)
        assert 1 <= price / accounting.epsilon(alike, delta=delta) < 1.15
    drawn = mechanism.noise(np.zeros(5050, np.int64), entropy=SeededEntropy(3))
    ratio = np.var(np.array([int(v) for v in drawn], float)) / (mechanism.deviation * CELLS**2) ** 2
    assert abs(ratio - 1) < 6 * np.sqrt(2 / 5050)


def test_features_are_alike_afterwards_and_no_row_is_longer_than_one() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(3000, 6)) * np.array([1, 0.5, 0.3, 0.2, 0.15, 0.1])
    x = (x / np.linalg.norm(x, axis=1, keepdims=True)).astype(np.float32)
    value = PrivateWhitening(public=PUBLIC, width=6, rho=5)(examples(x), entropy=SeededEntropy(1)).value
    before, after = (np.linalg.eigvalsh(np.cov(rows.T)) for rows in (x, value(x).numpy()))
    assert before[-1] / before[0] > 20
    assert after[-1] / after[0] < 3
    assert float(value(x).norm(dim=1).max()) <= 1 + 1e-6
    odd = value(hostile()[50:, [0, 1, 2, 3, 0, 1]])
    assert torch.isfinite(odd).all()


def test_a_session_charges_it() -> None:
    people = dp.open(
        examples(np.eye(4)[np.arange(3000) % 4]), budget=dp.Budget(epsilon=3, delta=1e-5), ledger=":memory:"
    )
    value = people.ask(PrivateWhitening(public=people.public, width=4, rho=0.05)).value
    assert 0.5 < people.spent < 3
    assert value(np.eye(4)).shape == (4, 4)
    spent = people.spent
    with pytest.raises(DiscreetError, match="whitening takes examples whose inputs"):
        people.ask(PrivateWhitening(public=people.public, width=5, rho=0.01))
    assert people.spent == spent


@pytest.mark.parametrize(
    "build",
    [
        lambda: PrivateWhitening(public=PUBLIC, width=0, rho=1),
        lambda: PrivateWhitening(public=PUBLIC, width=10**6, rho=1),
        lambda: PrivateWhitening(public=PUBLIC, width=4, rho=0),
        lambda: PrivateWhitening(public=PUBLIC, width=4, rho=1e-300),
        lambda: PrivateWhitening(public=PUBLIC, width=4, rho=1, penalty=-1),
        lambda: PrivateWhitening(public=dp.Public(), width=4, rho=1),
        lambda: PrivateWhitening(public=dp.Public(size=9, unit=dp.Unit("who")), width=4, rho=1),
    ],
)
def test_terms_that_cannot_be_are_refused(build: Any) -> None:
    with pytest.raises(DiscreetError, match=r"must be|needs the|unit of"):
        build()


def test_an_empty_table_is_noise_alone() -> None:
    public = dp.Public(table="t", size=10)
    release = PrivateWhitening(public=public, width=3, rho=1)(
        examples(np.zeros((0, 3)), public), entropy=SeededEntropy(1)
    )
    assert torch.isfinite(release.value(np.ones((2, 3)))).all()


def test_what_is_released_has_the_noise_that_is_paid_for() -> None:
    """Of one feature the map is sqrt(size / moment), so that the noisy moment can be read off: 200 draws, whose
    variance is within 6 deviations (0.4 to 1.6 of its own). Without noise it would be 0, with half 0.25."""
    mechanism, source = PrivateWhitening(public=PUBLIC, width=1, rho=0.005), examples(np.ones((3000, 1)))
    entropy = SeededEntropy(5)
    moments = [3000 / float(mechanism(source, entropy=entropy).value.matrix[0, 0]) ** 2 for _ in range(200)]
    assert mechanism.deviation == pytest.approx(10, rel=1e-3)
    assert 40 < np.var(moments) < 160
    assert abs(np.mean(moments) - 3000) < 6 * 10 / np.sqrt(200)
