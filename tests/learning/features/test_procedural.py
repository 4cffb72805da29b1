"""Procedural images: a function of seeds alone, equal to slow references."""

from __future__ import annotations

import doctest
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discreet import DiscreetError
from discreet.learning.features import ProceduralClasses


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


@pytest.mark.parametrize(
    "build",
    [
        lambda: ProceduralClasses(1),
        lambda: ProceduralClasses(shape=(2, 28, 28)),
        lambda: ProceduralClasses(shape=(1, 28)),  # type: ignore[arg-type]
        lambda: ProceduralClasses(shape=(1, 0, 28)),
        lambda: ProceduralClasses(seed=-1),
        lambda: ProceduralClasses().images(0, generator()),
    ],
)
def test_what_cannot_be_is_refused(build: Any) -> None:
    with pytest.raises(DiscreetError):
        build()


def test_what_the_page_shows_is_what_happens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = Path(__file__).parents[3] / "docs" / "images.md"
    done = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
    assert done.attempted >= 30
    assert done.failed == 0
