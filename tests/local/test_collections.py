"""Several items, attributes and coordinates; huge domains; shuffling; consistency."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from discreet import accounting, local
from discreet._errors import InvalidInput
from discreet.accounting import NonPrivate, Shuffled
from discreet.local import consistency
from discreet.local.vectors import _codebook
from discreet.sampling import Entropy, SeededEntropy


def test_sets_are_counted_without_bias() -> None:
    random = np.random.default_rng(1)
    people: list[Any] = [
        set(np.flatnonzero(random.random(4) < [0.5, 0.3, 0.1, 0.0]).tolist()) for _ in range(3000)
    ]
    shares = np.mean([[i in one for i in range(4)] for one in people], axis=0)
    randomizer, entropy = local.SetResponse(epsilon=2, domain=4, largest=3), SeededEntropy(2)
    releases = [randomizer.estimate(randomizer.respond(people, entropy=entropy)) for _ in range(4)]
    assert np.abs(np.mean([r.value for r in releases], axis=0) - shares).max() < 0.04
    assert all(np.abs(r.value - shares).max() <= r.error(0.999) for r in releases)


def test_people_with_more_items_than_places_are_counted_for_less_and_not_refused() -> None:
    randomizer = local.SetResponse(epsilon=8, domain=4, largest=2)
    release = randomizer.estimate(randomizer.respond([{0, 1, 2, 3}] * 4000, entropy=SeededEntropy(3)))
    assert np.allclose(release.value, 0.5, atol=0.06)


def test_key_values_give_shares_and_means() -> None:
    people: list[Any] = ([{0: 7.0, 1: 2.0}] * 3 + [{2: 9.0}, {}]) * 2000
    randomizer = local.KeyValueResponse(epsilon=3, keys=4, low=0, high=10, largest=2)
    release = randomizer.estimate(randomizer.respond(people, entropy=SeededEntropy(4)))
    shares, means = release.value
    assert np.allclose(shares, [0.6, 0.6, 0.2, 0.0], atol=0.06)
    assert np.allclose(means[:3], [7, 2, 9], atol=1.0)
    share_error, mean_errors = release.error(0.95)
    assert (np.abs(shares - [0.6, 0.6, 0.2, 0.0]) <= share_error).all()
    assert (np.abs(means[:3] - [7, 2, 9]) <= mean_errors[:3]).all()


def test_marginals_are_estimated_and_made_to_agree() -> None:
    random = np.random.default_rng(5)
    a, c = random.integers(0, 2, 30_000), random.integers(0, 4, 30_000)
    b = np.where(random.random(30_000) < 0.8, a, 2)
    randomizer = local.MarginalResponse(epsilon=2, sizes=(2, 3, 4))
    release = randomizer.estimate(randomizer.respond(np.stack([a, b, c], axis=1), entropy=SeededEntropy(6)))
    true = np.zeros((2, 3))
    np.add.at(true, (a, b), 1 / 30_000)
    assert np.abs(release.value[0, 1] - true).max() <= release.error(0.999)[0, 1]
    agreed = randomizer.consistent(release, 30_000)
    assert np.allclose(agreed[0, 1].sum(axis=1), agreed[0, 2].sum(axis=1))
    assert np.allclose([table.sum() for table in agreed.values()], 1)
    assert np.abs(agreed[0, 1] - true).max() < 0.05


def test_vectors_are_estimated_without_bias() -> None:
    randomizer = local.PrivUnit(epsilon=4, dimension=3, norm=2, directions=128)
    values = np.tile([1.0, -0.5, 0.0], (3000, 1))
    release = randomizer.estimate(randomizer.respond(values, entropy=SeededEntropy(7)))
    deviation = math.sqrt(randomizer.mean_squared_error(3000))
    assert np.linalg.norm(release.value - values[0]) <= 3 * deviation
    assert deviation < 0.1


def test_the_scale_of_vectors_is_the_mean_inner_product() -> None:
    randomizer, entropy = local.PrivUnit(epsilon=2, dimension=2, directions=16, cap=4), SeededEntropy(8)
    vector = np.array([1.0, 0.0])
    rows = randomizer.respond(np.tile(vector, (3000, 1)), entropy=entropy).data
    inner = np.array([_codebook(seed, 3, number, 1)[0][0] for seed, number in rows.tolist()])
    assert abs(inner.mean() - randomizer.scale) <= 5 * inner.std() / math.sqrt(len(inner))


def test_a_longer_vector_is_shortened_and_more_directions_help() -> None:
    randomizer = local.PrivUnit(epsilon=1, dimension=2, directions=8)
    lifted = randomizer._values(np.array([[3e200, 4e200], [0.0, 0.0], [0.3, 0.4]]))
    assert np.allclose(lifted, [[0.6, 0.8, 0], [0, 0, 1], [0.3, 0.4, math.sqrt(0.75)]])
    few, many = (
        local.PrivUnit(epsilon=6, dimension=20, directions=n).mean_squared_error(1) for n in (16, 1024)
    )
    assert many < few


def test_locations_are_estimated_and_nearby_places_are_likelier() -> None:
    randomizer = local.DistanceResponse(epsilon=3, places=local.grid_places(3))
    matrix = randomizer.matrix()
    assert matrix[0].argmax() == 0
    assert matrix[0, 1] > matrix[0, 2] > matrix[0, 8]
    textbook = 3 / (2 * 2 * math.sqrt(2))
    assert randomizer.rate > 1.5 * textbook
    values = np.array([0] * 6000 + [4] * 3000 + [8] * 1000)
    reports = randomizer.respond(values, entropy=SeededEntropy(9))
    release = randomizer.estimate(reports)
    shares = np.bincount(values, minlength=9) / 10_000
    assert np.abs(release.value - shares).max() <= release.error(0.999)
    likely = local.expectation_maximization(randomizer, reports)
    assert np.abs(likely - shares).sum() < np.abs(release.value - shares).sum()


@pytest.mark.parametrize("name", [*local.ORACLES])
def test_the_most_likely_shares_are_shares_and_near_the_truth(name: str) -> None:
    oracle = local.ORACLES[name](epsilon=1.5, domain=6)
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
        with pytest.raises(InvalidInput):
            local.consistent(bad)


def test_heavy_hitters_of_48_bits_are_found() -> None:
    """Recall of the 16 most common of 2**48 values, Zipf-like, 60,000 people, epsilon 4."""
    random = np.random.default_rng(3)
    common = random.integers(0, 1 << 48, 200)
    weights = 1 / np.arange(1, 201) ** 1.3
    values = random.choice(common, 60_000, p=weights / weights.sum())
    randomizer = local.HeavyHitters(epsilon=4, length=48, keep=16)
    release = randomizer.estimate(randomizer.respond(values, entropy=SeededEntropy(11)))
    top = [int(v) for v in common[:8]]
    assert len(set(top) & set(release.value)) >= 7
    share = float((values == common[0]).mean())
    assert abs(release.value[int(common[0])] - share) <= release.error(0.999)


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
    with pytest.raises(InvalidInput):
        local.blend([0.3, 0.7], 0.01, [0.4], 0.02)
    with pytest.raises(InvalidInput, match="the same quantities"):
        local.blend([0.3, 0.7], 0.01, [0.4, 0.5, 0.1], [0.02] * 3)


@pytest.mark.parametrize(("epsilon", "first"), [(8, 8), (1, 1), (4, 4)])
def test_reports_of_all_levels_have_one_length(epsilon: int, first: int) -> None:
    """Short prefixes would take fewer buckets than long ones; then some reports did not fit beside the
    others."""
    hitters = local.HeavyHitters(epsilon=epsilon, length=16, first=first, step=4, keep=8)
    values = np.repeat([60_001, 7], [3000, 2000])
    release = hitters.estimate(hitters.respond(values, entropy=SeededEntropy(3)))
    assert release.value[60_001] == pytest.approx(0.6, abs=release.error(1 - 1e-9))
    for level in range(len(hitters.levels)):
        assert hitters._oracle(level).ratio == hitters.ratio
