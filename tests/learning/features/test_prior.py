"""The procedural prior: deterministic, a function of each image by itself, equal to slow references."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discreet import DiscreetError
from discreet.learning import files
from discreet.learning.features import (
    ProceduralClasses,
    ProceduralNetwork,
    ProceduralPrior,
    Scattering,
    Whitening,
)

SMALL: dict[str, Any] = {"width": 2, "classes": 8, "steps": 2}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (1, 8, 12)])
def test_procedural_images_are_a_function_of_seeds_alone(shape: tuple[int, int, int]) -> None:
    images, labels = ProceduralClasses(6, shape, seed=3).images(40, generator(5))
    again, same = ProceduralClasses(6, shape, seed=3).images(40, generator(5))
    other, _ = ProceduralClasses(6, shape, seed=4).images(40, generator(5))
    assert images.shape == (40, *shape)
    assert torch.equal(images, again)
    assert torch.equal(labels, same)
    assert not torch.equal(images, other)
    assert 0 <= float(images.min()) <= float(images.max()) <= 1
    assert float(images.std()) > 0.05


def test_images_of_one_class_are_nearer_to_each_other_than_to_other_classes() -> None:
    images, labels = ProceduralClasses(20, seed=1).images(400, generator())
    rows = torch.nn.functional.avg_pool2d(images, 4).flatten(1)
    distances = torch.cdist(rows, rows) + torch.eye(len(rows)) * 1e9
    assert float((labels[distances.argmin(1)] == labels).float().mean()) > 0.4


def test_a_character_is_as_dark_as_its_nearest_curve_point_says() -> None:
    """The slow reference: pixel by pixel, the distance to the nearest of the curves' points."""
    classes = ProceduralClasses(2, (1, 6, 6), seed=2)
    drawn = classes._characters(torch.tensor([0]), generator(9))
    source = generator(9)
    control = classes._facts["control"][0] + 0.07 * torch.randn(1, 3, 4, 2, generator=source)[0]
    grid = classes._grid(1, source)[0]
    pen = float(0.06 + 0.12 * torch.rand(1, 1, generator=source))
    points = [
        sum(
            w * control[s, k]
            for k, w in enumerate(((1 - t) ** 3, 3 * t * (1 - t) ** 2, 3 * t * t * (1 - t), t**3))
        )
        for s in range(3)
        if classes._facts["strokes"][0, s]
        for t in np.linspace(0, 1, 22)
    ]
    for i in range(6):
        for j in range(6):
            nearest = min(float((grid[i, j] - p).norm()) for p in points)
            assert float(drawn[0, 0, i, j]) == pytest.approx(
                1 / (1 + np.exp(-25 * (pen - nearest))), abs=1e-4
            )


def test_a_network_is_the_same_again_and_from_its_file(tmp_path: Path) -> None:
    steps: list[tuple[int, int]] = []
    first = ProceduralNetwork.trained(
        cache=tmp_path / "n", progress=lambda done, of: steps.append((done, of)), **SMALL
    )
    read = ProceduralNetwork.trained(cache=tmp_path / "n", **SMALL)
    second = ProceduralNetwork.trained(**SMALL)
    images = torch.rand(3, 1, 28, 28, generator=generator())
    assert first(images).shape == (3, first.size)
    assert torch.equal(first(images), read(images))
    assert torch.equal(first(images), second(images))
    assert steps == [(1, 2), (2, 2)]
    # its batch normalization stays frozen in a model that is put into training mode
    inside = torch.nn.Sequential(first).train()
    assert torch.equal(inside(images), second(images))
    torch.testing.assert_close(inside(images[:1]), second(images)[:1])
    with pytest.raises(DiscreetError, match="other arguments"):
        ProceduralNetwork.trained(cache=tmp_path / "n", **{**SMALL, "seed": 1})


def test_a_process_that_is_stopped_leaves_no_half_of_a_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(path: Path, raw: bytes) -> None:
        with path.open("wb") as file:
            file.write(raw[:100])
        raise KeyboardInterrupt

    monkeypatch.setattr(ProceduralNetwork, "_train", lambda *_: None)
    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_bytes", stopped)
        with pytest.raises(KeyboardInterrupt):
            ProceduralNetwork.trained(cache=tmp_path / "n", **SMALL)
    assert not (tmp_path / "n").exists()
    ProceduralNetwork.trained(cache=tmp_path / "n", **SMALL)
    assert (tmp_path / "n").exists()


def test_a_file_that_is_none_and_a_folder_that_is_not_there_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DiscreetError, match="folder"):
        ProceduralNetwork.trained(cache=tmp_path / "none" / "n", **SMALL)
    facts = {"shape": [1, 28, 28], "width": 2, "classes": 8, "steps": 2, "seed": 0}
    for raw in (b"", b"junk" * 9, files.dump({}, {}), files.dump({}, {"features": json.dumps(facts)})):
        (tmp_path / "n").write_bytes(raw)
        with pytest.raises(DiscreetError):
            ProceduralNetwork.trained(cache=tmp_path / "n", **SMALL)


def test_training_leaves_the_global_generator_alone() -> None:
    before = torch.get_rng_state()
    ProceduralNetwork.trained(**SMALL)
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.slow
def test_a_network_learns_classes_that_chance_does_not() -> None:
    network = ProceduralNetwork.trained(width=4, classes=16, steps=60)
    images, labels = network.procedural.images(200, generator(77))
    with torch.no_grad():
        guessed = network.scores(network.embedding(network.maps(images))).argmax(1)
    assert float((guessed == labels).float().mean()) > 0.5


def test_whitening_is_that_of_principal_components() -> None:
    """Against a slow reference, the eigenvectors of the covariance, up to signs; both ways to compute it."""
    rows = torch.randn(60, 8, generator=generator()) @ torch.diag(torch.arange(1.0, 9.0))
    for given in (rows, rows[:7]):
        fitted = Whitening.fit(given, components=4, power=0.5)
        centered = (given - given.mean(0)).double().numpy()
        values, vectors = np.linalg.eigh(centered.T @ centered / len(given))
        slow = centered @ vectors[:, ::-1][:, :4] / values[::-1][:4] ** 0.25
        slow /= np.linalg.norm(slow, axis=1, keepdims=True)
        np.testing.assert_allclose(np.abs(fitted(given).numpy()), np.abs(slow), atol=2e-3)


def test_rows_have_length_one_whatever_they_hold() -> None:
    fitted = Whitening.fit(torch.randn(30, 5, generator=generator()), components=3)
    odd = torch.tensor([[1e30] * 5, [float("nan")] * 5, [float("inf")] * 5, [1e-30] * 5])
    out = fitted(odd)
    assert torch.isfinite(out).all()
    assert (out.norm(dim=1) <= 1 + 1e-6).all()
    assert (out[1:3] == 0).all()


def test_the_prior_is_its_parts_put_together(tmp_path: Path) -> None:
    prior = ProceduralPrior(components=20, width=2, steps=1, procedural=40, cache=tmp_path)
    images = torch.rand(5, 28, 28, generator=generator())
    rows = prior.features(images)
    maps = Scattering()(images)
    centered = maps - maps.mean((2, 3), keepdim=True)
    slow = (centered / (centered.square().mean((2, 3), keepdim=True) + 1e-5).sqrt()).flatten(1)
    with torch.no_grad():
        joined = torch.cat([slow * prior.scales[0], prior.network(images[:, None]) * prior.scales[1]], 1)
    torch.testing.assert_close(rows, prior.whitening(joined), atol=1e-4, rtol=0)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(5))
    known = prior.features(images, coefficients=maps.flatten(1).numpy(), batch=2)
    torch.testing.assert_close(known, rows, atol=1e-4, rtol=0)
    alone = torch.cat([prior.features(image[None]) for image in images])
    torch.testing.assert_close(alone, rows, atol=1e-5, rtol=0)
    assert len(list(tmp_path.iterdir())) == 1
    assert prior.features(images[:0]).shape == (0, 20)
    raw = (images * 255).round().to(torch.uint8)
    for compute in (prior.features, prior.network.features, Scattering().features):
        torch.testing.assert_close(compute(raw), compute(raw.float() / 255))


@pytest.mark.parametrize(
    "build",
    [
        lambda: ProceduralClasses(1),
        lambda: ProceduralClasses(shape=(2, 28, 28)),
        lambda: ProceduralClasses(shape=(1, 28)),  # type: ignore[arg-type]
        lambda: ProceduralClasses(shape=(1, 0, 28)),
        lambda: ProceduralClasses(seed=-1),
        lambda: ProceduralClasses().images(0, generator()),
        lambda: ProceduralNetwork(width=0),
        lambda: ProceduralNetwork.trained(steps=0),
        lambda: ProceduralNetwork()(torch.zeros(2, 28, 28)),
        lambda: ProceduralNetwork()(torch.zeros(2, 1, 28, 28, dtype=torch.uint8)),
        lambda: ProceduralPrior(components=0),
        lambda: ProceduralPrior(power=2),
        lambda: Whitening.fit(torch.zeros(4, 3), components=4),
        lambda: Whitening.fit(torch.zeros(4), components=1),
        lambda: Whitening.fit(torch.ones(4, 3), components=1),
        lambda: Whitening.fit(torch.randn(9, 2, generator=generator()) @ torch.ones(2, 30), components=8),
        lambda: Whitening.fit(torch.randn(9, 2, generator=generator()) @ torch.ones(2, 5), components=4),
        lambda: Whitening.fit(torch.full((4, 3), torch.nan), components=1),
        lambda: Whitening.fit(torch.rand(4, 3), components=2)(torch.zeros(2, 2)),
    ],
)
def test_what_cannot_be_is_refused(build: Any) -> None:
    with pytest.raises(DiscreetError):
        build()


def test_what_the_page_shows_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[3] / "docs" / "vision.md"
    done = doctest.testfile(str(page), module_relative=False)
    assert done.attempted >= 15
    assert done.failed == 0
