"""Truncated Poisson batches: never above the limit, what is dropped is drawn at random, and the price is what
the truncation can change."""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import mpmath
import numpy as np
import pytest
import torch
from torch import nn

from discreet import InvalidInput, Public, PublicMismatch, WrongRelation
from discreet import accounting as acc
from discreet._registry import from_json, to_json
from discreet.accounting.normal import overflow
from discreet.learning import SGD, Examples, Trainer, TruncatedPoisson, smallest_limit
from discreet.sampling import Entropy, SeededEntropy

SIZE = 200
PUBLIC = Public(size=SIZE, neighbors="zero_out")


def trainer(**changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "public": PUBLIC,
        "noise_multiplier": 1.0,
        "batch": 20,
        "steps": 50,
        "sampling": "truncated_poisson",
        "optimizer": SGD(lr=0.1),
    }
    return Trainer(nn.Linear(5, 2), nn.CrossEntropyLoss(), **(settings | changes))


def test_batches_are_never_above_the_limit_and_follow_the_coins_below_it() -> None:
    plan = TruncatedPoisson(rate=Fraction(1, 10), size=SIZE, limit=22, steps=400)
    sizes = [len(b) for b in plan.batches(SIZE, SeededEntropy(1))]
    assert len(sizes) == 400
    assert max(sizes) == 22
    free = [
        len(b)
        for b in TruncatedPoisson(rate=Fraction(1, 10), size=SIZE, limit=SIZE, steps=400).batches(
            SIZE, SeededEntropy(1)
        )
    ]
    assert max(free) > 22
    expected = float(
        sum(
            mpmath.binomial(SIZE, k) * mpmath.mpf("0.1") ** k * mpmath.mpf("0.9") ** (SIZE - k)
            for k in range(22, SIZE + 1)
        )
    )
    assert abs(sizes.count(22) / 400 - expected) <= math.sqrt(
        math.log(2e9) / 800
    )  # Hoeffding, false alarm 1e-9


def test_who_is_dropped_is_drawn_at_random() -> None:
    """Everybody wants in and five of ten may: each is in half of the batches.

    Hoeffding, false alarm 1e-9 for all ten; "keep the first" fails.
    """
    plan = TruncatedPoisson(rate=Fraction(1), size=10, limit=5, steps=2000)
    batches = list(plan.batches(10, SeededEntropy(2)))
    assert all(len(set(b.tolist())) == 5 for b in batches)
    seen = np.bincount(np.concatenate(batches), minlength=10) / 2000

    def uniform(found: Any) -> bool:
        return bool(np.abs(found - 0.5).max() <= math.sqrt(math.log(20e9) / 4000))

    assert uniform(seen)
    assert not uniform(np.array([1.0] * 5 + [0.0] * 5))


def test_the_price_is_that_of_poisson_and_the_chance_that_it_mattered() -> None:
    """delta' = delta + (1 + e^epsilon) steps P[Binomial > limit] (Chua et al. 2024, arXiv:2411.04205),
    against mpmath."""
    made, limit = trainer(limit=50), 50
    plain = acc.Gaussian(noise_multiplier=1.0, neighbors="zero_out").sampled(Fraction(1, 10)).repeated(50)
    tail = sum(
        mpmath.binomial(SIZE, k) * mpmath.mpf("0.1") ** k * mpmath.mpf("0.9") ** (SIZE - k)
        for k in range(limit + 1, SIZE + 1)
    )
    assert overflow(SIZE, Fraction(1, 10), limit) >= tail
    for epsilon in (0.5, 2.0):
        extra = float((1 + mpmath.exp(epsilon)) * 50 * tail)
        wanted = acc.delta(plain, epsilon=epsilon) + extra
        assert wanted * (1 - 1e-9) <= acc.delta(made.event, epsilon=epsilon) <= wanted * (1 + 1e-3)
    assert acc.epsilon(trainer(limit=22).event, delta=1e-5) == math.inf, (
        "a limit that bites all the time costs all of delta"
    )
    assert acc.epsilon(trainer(limit=SIZE).event, delta=1e-5) == pytest.approx(
        acc.epsilon(plain, delta=1e-5), rel=1e-9
    )


def test_a_wanted_epsilon_is_met_with_the_smallest_limit_that_costs_a_hundredth_of_delta() -> None:
    made = trainer(noise_multiplier=None, epsilon=2.0, delta=1e-5, steps=4)
    plan = made.schedule
    assert isinstance(plan, TruncatedPoisson)
    assert 2.0 * 0.995 <= acc.epsilon(made.event, delta=1e-5) <= 2.0
    cost = [
        (1 + math.exp(2.0)) * 4 * overflow(SIZE, plan.rate, limit) for limit in (plan.limit - 1, plan.limit)
    ]
    assert cost[1] <= 1e-7 < cost[0]
    poisson = trainer(noise_multiplier=made.noise_multiplier * 0.99, sampling="poisson", steps=4)
    assert acc.epsilon(poisson.event, delta=1e-5) > 2.0, "truncation costs less than a hundredth of the noise"
    assert smallest_limit(size=5, rate=1, steps=1, epsilon=1, delta=1e-5) == 5


def test_training_runs_and_the_size_must_be_true() -> None:
    x = torch.randn(SIZE, 5)
    data = Examples(x, (x.sum(1) > 0).long(), PUBLIC)
    made = trainer(limit=21, steps=20)
    taken, plain = [], data.take
    data.take = lambda rows: taken.append(len(rows)) or plain(rows)  # type: ignore[func-returns-value,method-assign]
    assert made(data, entropy=Entropy()).private
    assert max(taken) <= 21
    with pytest.raises(PublicMismatch, match="the size is public and"):
        trainer(limit=21)(Examples(x[1:], (x[1:].sum(1) > 0).long(), PUBLIC), entropy=Entropy())


def test_other_relations_and_missing_limits_are_refused() -> None:
    for neighbors in ("add_remove", "replace"):
        with pytest.raises(WrongRelation, match="truncated Poisson sampling is proved"):
            trainer(public=Public(size=SIZE, neighbors=neighbors), limit=30)
    with pytest.raises(InvalidInput, match="needs limit="):
        trainer()
    with pytest.raises(InvalidInput, match="is for sampling='truncated_poisson'"):
        trainer(sampling="poisson", limit=30)
    plan = trainer(limit=30).schedule
    assert from_json(to_json(plan)) == plan
    assert plan.divisor == 20.0


@pytest.mark.parametrize(
    ("kind", "neighbors", "options"),
    [("truncated_poisson", "zero_out", {"limit": 30}), ("without_replacement", "replace", {})],
)
def test_a_rate_that_contradicts_the_batch_is_refused(kind: str, neighbors: str, options: Any) -> None:
    """The batch, or the rate, was ignored without a word."""
    public = Public(size=SIZE, neighbors=neighbors)
    with pytest.raises(InvalidInput, match=f"batch=20 says otherwise.*For {kind} sampling"):
        trainer(public=public, sampling=kind, rate=0.05, **options)
    agreeing = trainer(public=public, sampling=kind, rate=Fraction(1, 10), **options)
    assert agreeing.schedule == trainer(public=public, sampling=kind, **options).schedule
