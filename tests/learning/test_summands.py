"""Clips that follow a quantile, several variants of an example: what they add is what is priced."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from discreet import InvalidInput, Public, Unit, Unsupported
from discreet import accounting as acc
from discreet._registry import from_json, to_json
from discreet.learning import SGD, Adam, Adaptive, Augment, Examples, FlipAndShift, Trainer
from discreet.learning.training.clipped_sums import Summands
from discreet.sampling import Entropy, SeededEntropy

from .test_people import moved
from .test_trainer import assert_normal
from .zoo import naive

SIZE = 40
PUBLIC = Public(size=SIZE)


def examples(public: Public = PUBLIC, rows: int = SIZE, **more: Any) -> Examples:
    generator = torch.Generator().manual_seed(7)
    x = torch.randn(SIZE, 5, generator=generator) * torch.logspace(-2, 1, SIZE).unsqueeze(1)
    return Examples(x[:rows], (x.sum(1) > 0).long()[:rows], public, **more)


def trainer(model: nn.Module | None = None, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "public": PUBLIC,
        "noise_multiplier": 1.0,
        "clip": 0.5,
        "batch": SIZE,
        "steps": 1,
        "optimizer": SGD(lr=SIZE),
    }
    return Trainer(model or nn.Linear(5, 2), nn.CrossEntropyLoss(), **(settings | changes))


# adaptive clipping


def test_the_price_of_an_adaptive_clip_is_that_of_a_fixed_one_and_the_split_adds_up() -> None:
    """1 / z² = 1 / z_sum² + 1 / (2 sigma_b)²: Andrew et al. 2021, Theorem 1."""
    made = trainer(clip=Adaptive(count_noise=2.0), noise_multiplier=1.1)
    assert made.event == trainer(noise_multiplier=1.1).event
    left = made.clip.split(1.1, SIZE)  # type: ignore[union-attr]
    assert left >= 1.1
    assert left**-2 + (2 * 2.0) ** -2 == pytest.approx(1.1**-2, rel=1e-9)
    assert left**-2 + (2 * 2.0) ** -2 <= 1.1**-2
    joint = acc.compose([acc.Gaussian(noise_multiplier=left), acc.Gaussian(noise_multiplier=4.0)])
    assert acc.epsilon(joint, delta=1e-5) <= acc.epsilon(acc.Gaussian(noise_multiplier=1.1), delta=1e-5) * (
        1 + 1e-6
    )


def test_published_constants_are_the_defaults() -> None:
    """Quantile 1/2, rate 0.2, noise on the count a twentieth of the expected batch, first clip 0.1 (Andrew et
    al. 2021, Section 3)."""
    rule = Adaptive()
    assert (rule.clip, rule.quantile, rule.rate) == (0.1, 0.5, 0.2)
    assert rule.deviation(1000.0) == 50.0
    assert rule.next_clip(0.1, 0.0, 100.0) == pytest.approx(0.1)  # half are short: nothing changes
    assert rule.next_clip(0.1, 50.0, 100.0) == pytest.approx(0.1 * math.exp(-0.2 * 0.5))  # all are short
    assert rule.next_clip(0.1, -50.0, 100.0) == pytest.approx(0.1 * math.exp(0.2 * 0.5))
    assert from_json(to_json(rule)) == rule


def test_too_little_noise_on_the_count_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"count_noise= above 0\.5"):
        trainer(clip=Adaptive(count_noise=0.5))
    with pytest.raises(InvalidInput, match="larger batches"):
        trainer(clip=Adaptive(), batch=10, n=SIZE)


@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": "cyclic", "epochs": 1, "steps": None},
        {"noise": "discrete"},
        {"optimizer": Adam(noise_aware=True)},
    ],
)
def test_what_has_no_proof_with_an_adaptive_clip_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(Unsupported, match=r"Adam subtracts one variance of|an adaptive clip changes from"):
        trainer(clip=Adaptive(), **changes)


def test_the_clip_finds_the_quantile() -> None:
    """Gradients of fixed norms 1 to 40: after 80 steps the clip is near their median, from far below and from
    far above."""
    for start in (0.01, 1000.0):
        model = nn.Linear(1, 1, bias=False)
        x = torch.arange(1.0, 41.0).unsqueeze(1)
        made = Trainer(
            model,
            lambda out, y: out[:, 0],
            public=PUBLIC,
            noise_multiplier=0.01,
            clip=Adaptive(clip=start, rate=0.5, count_noise=0.1),
            batch=SIZE,
            steps=80,
            optimizer=SGD(lr=1e-9),
        )
        run = made.start(Examples(x, torch.zeros(SIZE), PUBLIC), entropy=SeededEntropy(1))
        while not run.done:
            run.step()
        assert 15 < run.summands.rule.clip < 27


def counts(model: nn.Module, rows: int, seed: int, runs: int) -> np.ndarray[Any, Any]:
    """The noisy count, many times, read back from how the clip moved."""
    rule = Adaptive(clip=1.0, rate=1.0, count_noise=4.0)
    made = trainer(model, clip=rule, steps=runs)
    data = examples(rows=rows)
    run = made.start(data, entropy=SeededEntropy(seed))
    found = []
    with run:
        for members in made.schedule.batches(rows, SeededEntropy(1)):
            run.summands.rule = type(run.summands.rule)(clip=1.0)
            run.summands.noise(run._gradient)
            run.summands.add(members, run._sums)
            run.summands.close(run._gradient)
            found.append((0.5 - math.log(run.summands.rule.clip) - 0.5) * SIZE)
    return np.array(found)


def test_the_count_has_the_noise_that_is_priced_and_one_example_moves_it_by_a_half() -> None:
    """Everybody in every batch, so that what varies is the noise alone: standard normal over 4, false alarm
    1e-9."""
    model = nn.Linear(5, 2)
    everyone, fewer = counts(model, SIZE, 1, 800), counts(model, SIZE - 1, 1, 800)
    shift = np.unique(np.round(everyone - fewer, 6))
    assert len(shift) == 1
    assert abs(abs(shift[0]) - 0.5) < 1e-6, "one example adds 1/2 or -1/2, never more"
    centre = round(float(everyone.mean()) * 2) / 2
    assert_normal((everyone - centre) / 4.0)
    with pytest.raises(AssertionError):
        assert_normal((everyone - centre) / 2.0)  # a mutant with twice the noise that is claimed


def test_the_noise_on_the_sum_follows_the_clip() -> None:
    model = nn.Linear(400, 25)
    none = Examples(torch.zeros(0, 400), torch.zeros(0, dtype=torch.long), PUBLIC)
    made = trainer(model, clip=Adaptive(clip=0.5, count_noise=3.0))
    run = made.start(none, entropy=SeededEntropy(3))
    run.summands.rule = type(run.summands.rule)(clip=2.0)
    run.step()
    got = (torch.cat([p.detach().flatten() for p in model.parameters()]) - run.values).double().numpy()
    assert_normal(got / (2.0 * made.clip.split(1.0, SIZE)))  # type: ignore[union-attr]


def test_a_gradient_that_is_not_finite_counts_as_long() -> None:
    data, runs = examples(), trainer(clip=Adaptive(count_noise=3.0))
    data._data[0][:] = float("nan")
    run = runs.start(data, entropy=SeededEntropy(1))
    with run:
        run.summands.add(np.arange(SIZE), run._sums)
    assert run.summands._count == -SIZE / 2
    run.step()
    assert run.values.isfinite().all()


# augmentation


def doubled(x: Tensor) -> Tensor:
    return x * (2.0 if torch.rand(()) < 0.5 else 1.0)


def test_variants_are_averaged_before_the_clip() -> None:
    """A function that alternates between two variants: the term is the clipped average of both gradients."""
    model, data, turn = nn.Linear(5, 2), examples(), [0]

    def alternate(x: Tensor) -> Tensor:
        turn[0] += 1
        return x if turn[0] % 2 else -x

    x, y = data.take(np.arange(SIZE))
    each = [naive(model, sign * x, y, torch.nn.functional.cross_entropy) for sign in (1, -1)]
    mean = (each[0] + each[1]) / 2
    wanted = (mean * (0.5 / mean.norm(dim=1)).clamp(max=1).unsqueeze(1)).sum(0)
    made = trainer(model, noise_multiplier=1e-9, augment=Augment(function=alternate, times=2))
    got = moved(made, data)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-4)
    assert made.event == trainer(noise_multiplier=1e-9).event, "the price is unchanged"
    clipped_first = sum((g * (0.5 / g.norm(dim=1)).clamp(max=1).unsqueeze(1)).sum(0) / 2 for g in each)
    assert (got - clipped_first).norm() > 0.1, "the test would notice clipping before averaging"


@pytest.mark.parametrize("microbatch", [1, 7, None])
def test_one_example_with_many_variants_moves_the_sum_by_at_most_the_clip(microbatch: int | None) -> None:
    made = trainer(noise_multiplier=1e-9, augment=Augment(function=doubled, times=8), microbatch=microbatch)
    run = made.start(examples(), entropy=SeededEntropy(2))
    with run:
        for i in (0, 20, 39):
            total = run.engine.buffer()
            run.summands.add(np.array([i]), run.engine.sums(total))
            assert 0 < total.double().norm() <= 0.5 * (1 + 1e-6)


def test_people_and_variants_together_are_one_term() -> None:
    public = Public(size=8, unit=Unit("who"))
    data = examples(public, people=np.repeat(np.arange(8), 5))
    for pooling in ("mean", "sum"):
        made = trainer(
            public=public,
            batch=8,
            noise_multiplier=1e-9,
            augment=Augment(function=doubled, times=3),
            pooling=pooling,
        )
        run = made.start(data, entropy=SeededEntropy(2))
        with run:
            total = run.engine.buffer()
            run.summands.add(np.array([7]), run.engine.sums(total))
            assert 0.4 < total.double().norm() <= 0.5 * (1 + 1e-6)


def test_images_are_flipped_and_shifted_each_by_itself() -> None:
    images = torch.arange(3 * 2 * 6 * 6, dtype=torch.float32).reshape(3, 2, 6, 6)
    augment = Augment(function=FlipAndShift(shift=2), times=50)
    out = augment(images, SeededEntropy(1))
    assert out.shape == (150, 2, 6, 6)
    for i in range(3):
        own = set(images[i].flatten().tolist())
        assert all(set(variant.flatten().tolist()) <= own for variant in out[50 * i : 50 * (i + 1)])
    assert len({tuple(v.flatten().tolist()) for v in out[:50]}) > 10
    other = images.clone()
    other[1] = -1
    changed = augment(other, SeededEntropy(1))
    assert torch.equal(changed[:50], out[:50])
    assert torch.equal(changed[100:], out[100:])
    still = FlipAndShift(shift=0, flip=False).batch(images, torch.Generator())
    assert torch.equal(still, images)
    mirrored = list(FlipAndShift(shift=0).batch(images.repeat(9, 1, 1, 1), torch.Generator().manual_seed(1)))
    assert any(torch.equal(v, images[i % 3].flip(-1)) for i, v in enumerate(mirrored))


def test_augmentation_leaves_torchs_generator_alone_and_works_on_nobody() -> None:
    before = torch.random.get_rng_state()
    assert Augment(function=doubled, times=2)(torch.zeros(0, 3), Entropy()).shape == (0, 3)
    Augment(function=doubled, times=2)(torch.ones(4, 3), Entropy())
    assert torch.equal(before, torch.random.get_rng_state())
    with pytest.raises(InvalidInput, match="times must be an integer"):
        Augment(function=doubled, times=0)
    with pytest.raises(InvalidInput, match="function must be FlipAndShift"):
        Augment(function=3, times=2)  # type: ignore[arg-type]


def test_the_plain_way_is_the_general_way() -> None:
    """One variant that changes nothing: the same weights as without, up to rounding."""
    model = nn.Linear(5, 2)
    plain = trainer(model, steps=3, batch=20)(examples(), entropy=SeededEntropy(5)).value
    run = trainer(model, steps=3, batch=20).start(examples(), entropy=SeededEntropy(5))
    assert isinstance(run.summands, Summands)
    run.summands._one_row_each = False
    while not run.done:
        run.step()
    torch.testing.assert_close(run.model.weight, plain.weight, rtol=1e-4, atol=1e-5)
