"""Shares that are consistent or most likely; huge domains; shuffling."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from discreet import accounting, local
from discreet._errors import InvalidInput
from discreet.accounting import NonPrivate, Shuffled
from discreet.local import shares as consistency
from discreet.local.hashing import ORACLES
from discreet.mechanisms import Channel
from discreet.sampling import Entropy, SeededEntropy


def test_the_most_likely_shares_of_a_channel_are_nearer_than_the_unbiased_ones() -> None:
    """Places on a line, of which the nearer are the likelier reports."""
    weights = [[Fraction(2, 3) ** abs(i - j) for j in range(7)] for i in range(7)]
    rows = tuple(tuple(weight / sum(row) for weight in row) for row in weights)
    randomizer = local.DesignResponse(design=Channel(rows=rows))
    values = np.array([0] * 1200 + [3] * 600 + [6] * 200)
    shares, entropy, distances = np.bincount(values, minlength=7) / 2000, SeededEntropy(9), []
    for _ in range(20):
        reports = randomizer.respond(values, entropy=entropy)
        release = randomizer.estimate(reports)
        assert np.abs(release.value - shares).max() <= release.error(1 - 1e-9)
        likely = local.expectation_maximization(randomizer, reports)
        assert likely.sum() == pytest.approx(1)
        distances.append([np.abs(likely - shares).sum(), np.abs(release.value - shares).sum()])
    assert np.mean(distances, axis=0)[0] < 0.8 * np.mean(distances, axis=0)[1], distances


@pytest.mark.parametrize("name", [*ORACLES])
def test_the_most_likely_shares_are_shares_and_near_the_truth(name: str) -> None:
    oracle = ORACLES[name](epsilon=1.5, domain=6)
    values = np.random.default_rng(1).choice(6, 3000, p=[0.5, 0.3, 0.2, 0, 0, 0])
    reports = oracle.respond(values, entropy=SeededEntropy(10))
    likely, shares = local.expectation_maximization(oracle, reports), np.bincount(values, minlength=6) / 3000
    assert likely.sum() == pytest.approx(1)
    assert (likely >= 0).all()
    assert np.abs(likely - shares).max() < 0.12

    def log_likelihood(f: Any) -> float:
        matrix, weights = consistency._likelihood(oracle, reports)
        return float(weights @ np.log(matrix @ f))

    for other in (shares, local.consistent(oracle.estimate(reports).value), np.full(6, 1 / 6)):
        assert log_likelihood(likely) >= log_likelihood(other) - 1e-7


def test_consistency_never_moves_shares_away_from_the_truth() -> None:
    random = np.random.default_rng(2)
    for _ in range(50):
        truth = random.dirichlet(np.ones(20) / 5)
        noisy = truth + random.normal(0, 0.1, 20)
        fixed = local.consistent(noisy)
        assert fixed.min() >= 0
        assert fixed.sum() == pytest.approx(1)
        assert ((fixed - truth) ** 2).sum() <= ((noisy - truth) ** 2).sum() + 1e-12
    assert local.consistent([-1.0, -2.0], "norm_mul").tolist() == [0.5, 0.5]
    assert local.consistent([-1.0, 2.0], "clip").tolist() == [0.0, 2.0]
    for bad in ([], [float("nan")], [[1.0]]):
        with pytest.raises(InvalidInput, match="shares must be a list of finite numbers"):
            local.consistent(bad)


def test_a_domain_too_large_to_be_looked_at_whole_is_refused_with_the_way_out() -> None:
    oracle = local.LocalHashing(epsilon=1, domain=1 << 40)
    reports = oracle.respond(np.array([5] * 600 + [9] * 400), entropy=SeededEntropy(12))
    with pytest.raises(InvalidInput, match="candidates"):
        oracle.estimate(reports)
    assert np.allclose(oracle.shares_of(reports, [5, 9, 77]), [0.6, 0.4, 0], atol=0.3)


def test_a_shuffler_lets_out_the_same_reports_in_another_order_at_the_price_of_the_accounting_room() -> None:
    oracle = local.KaryResponse(epsilon=2, domain=4)
    shuffler = local.Shuffler(oracle, least=1000)
    reports = oracle.respond(np.arange(1000) % 4, entropy=Entropy())
    shuffler.add(reports[:600])
    with pytest.raises(InvalidInput, match="600 reports are collected, and the price assumes at least 1000"):
        shuffler.flush(entropy=Entropy())
    shuffler.add(list(reports)[600:])
    out = shuffler.flush(entropy=Entropy())
    assert sorted(out) == sorted(reports)
    assert list(out) != list(reports)
    assert len(shuffler) == 0
    assert out.event == Shuffled(epsilon=2, reports=1000)
    assert oracle.estimate(out).event == out.event
    assert accounting.epsilon(out.event, delta=1e-6) < 0.7
    assert np.array_equal(oracle.estimate(out).value, oracle.estimate(reports).value)


def test_a_shuffler_is_priced_for_the_least_and_not_for_what_happened_to_come() -> None:
    oracle = local.KaryResponse(epsilon=1, domain=4)
    shuffler = local.Shuffler(oracle, least=100)
    shuffler.add(oracle.respond(np.zeros(500, int), entropy=Entropy()))
    assert shuffler.flush(entropy=Entropy()).event == Shuffled(epsilon=1, reports=100)


@pytest.mark.parametrize("seeded", ["reports", "order"])
def test_seeded_reports_or_a_seeded_order_are_not_private(seeded: str) -> None:
    oracle = local.KaryResponse(epsilon=1, domain=4)
    shuffler = local.Shuffler(oracle, least=10)
    shuffler.add(
        oracle.respond(np.zeros(10, int), entropy=SeededEntropy(1) if seeded == "reports" else Entropy())
    )
    out = shuffler.flush(entropy=SeededEntropy(1) if seeded == "order" else Entropy())
    assert isinstance(out.event, NonPrivate)
    assert not oracle.estimate(out).private


def test_a_few_who_trust_the_curator_improve_what_many_report_locally() -> None:
    both = local.blend([0.30, 0.70], 0.01, [0.40, 0.60], [0.01, 0.01])
    assert both.values.tolist() == pytest.approx([0.35, 0.65])
    assert both.variances.tolist() == pytest.approx([0.005, 0.005])
    parts = local.blend([0.3], 0.01, [0.4], 0.02, trusting=0.25)
    assert parts.values.tolist() == pytest.approx([0.325])
    assert parts.variances.tolist() == pytest.approx([0.75**2 * 0.01 + 0.25**2 * 0.02])
    with pytest.raises(InvalidInput, match="both groups must estimate the same quantities"):
        local.blend([0.3, 0.7], 0.01, [0.4], 0.02)
    with pytest.raises(InvalidInput, match="the same quantities"):
        local.blend([0.3, 0.7], 0.01, [0.4, 0.5, 0.1], [0.02] * 3)
