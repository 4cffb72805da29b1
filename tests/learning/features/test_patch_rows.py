"""Rows of patch features: against a slow reference, one patch and one filter at a time."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from discreet import DiscreetError
from discreet.learning.features import PatchRows


def images(n: int, *shape: int) -> torch.Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(4))


def small(**settings: Any) -> PatchRows:
    chosen = {"filters": 5, "size": 4, "grid": 2, "procedural": 40, **settings}
    return PatchRows((3, 13, 13), **chosen)


def slow_response(make: PatchRows, image: torch.Tensor, row: int, column: int, filter_: int) -> float:
    """Return the response of one patch to one filter, from the definition."""
    patch = image[:, row : row + 4, column : column + 4].flatten()
    patch = (patch - patch.mean()) / (patch.var() + 0.01).sqrt()
    return float(patch @ make._weights[filter_] - make._offsets[filter_])


def test_a_row_is_the_pooled_excess_over_the_threshold_centered_and_of_length_1() -> None:
    make, (image,) = small(mirror=False), images(1, 3, 13, 13)
    # ten positions in each direction, two parts of five
    slow = torch.zeros(2, 5, 2, 2)
    for filter_ in range(5):
        for row in range(10):
            for column in range(10):
                response = slow_response(make, image, row, column, filter_)
                for sign, excess in ((0, response - 0.6), (1, -response - 0.6)):
                    slow[sign, filter_, row // 5, column // 5] += max(excess, 0.0) / 25
    centered = slow.flatten() - make._mean
    torch.testing.assert_close(
        make.features(image[None])[0], centered / centered.norm(), atol=1e-5, rtol=0
    )  # fmt: skip
    assert make.size == slow.numel()


def test_filters_are_whitened_patches_of_procedural_images() -> None:
    """Responses of procedural patches to the filters: the whitened patches times unit vectors."""
    make = small(filters=400, mirror=False, procedural=200, penalty=1e-4)
    again = small(filters=400, mirror=False, procedural=200, penalty=1e-4)
    assert torch.equal(make._weights, again._weights), "the same seed gives the same filters"
    other = small(filters=400, mirror=False, procedural=200, penalty=1e-4, seed=1)
    assert not torch.allclose(make._weights, other._weights)
    # most patches of some other procedural images have responses with a mean of 0 and a mean square of 1
    from discreet.learning.features import ProceduralClasses

    fresh, _ = ProceduralClasses(shape=(3, 13, 13)).images(200, torch.Generator().manual_seed(99))
    raw = make._weights @ make._patches(fresh) - make._offsets
    assert abs(float(raw.mean())) < 0.1
    assert 0.5 < float(raw.square().mean()) < 2


def test_per_part_every_part_of_the_image_has_the_same_length() -> None:
    plain, even = small(), small(per_part=True)
    pictures = images(3, 3, 13, 13)
    # the lower half has next to no contrast
    pictures[:, :, 7:] = 0.5 + 0.01 * pictures[:, :, 7:]
    rows, parts = plain.features(pictures), even.features(pictures).view(3, -1, 4)
    torch.testing.assert_close(parts.norm(dim=1), torch.full((3, 4), 0.5))
    torch.testing.assert_close(
        parts * rows.view(3, -1, 4).norm(dim=1, keepdim=True) * 2, rows.view(3, -1, 4), atol=1e-5, rtol=0
    )  # fmt: skip
    assert float(rows.view(3, -1, 4).norm(dim=1).std()) > 0.01, "without it, parts differ"


def test_an_image_and_its_mirror_image_have_the_same_row() -> None:
    pictures = images(3, 3, 13, 13)
    alike, apart = small(), small(mirror=False)
    torch.testing.assert_close(
        alike.features(pictures), alike.features(pictures.flip(-1)), atol=1e-5, rtol=0
    )  # fmt: skip
    assert float((apart.features(pictures) - apart.features(pictures.flip(-1))).norm()) > 0.1
    assert alike.size == apart.size


def test_each_image_is_mapped_by_itself_and_odd_ones_become_zero() -> None:
    make, pictures = small(), images(19, 3, 13, 13)
    rows = make.features(pictures)
    alone = torch.cat([make.features(picture[None]) for picture in pictures])
    torch.testing.assert_close(rows, alone, atol=1e-5, rtol=0)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(19))
    odd = pictures.clone()
    odd[3, 0, 2, 2], odd[5] = torch.nan, torch.inf
    mapped = make.features(odd)
    assert (mapped[[3, 5]] == 0).all()
    others = [i for i in range(19) if i not in (3, 5)]
    torch.testing.assert_close(mapped[others], rows[others], atol=1e-5, rtol=0)
    raw = (pictures * 255).round().to(torch.uint8)
    torch.testing.assert_close(make.features(raw), make.features(raw.float() / 255))
    assert make.features(pictures[:0]).shape == (0, make.size)
    flat = make.features(torch.full((1, 3, 13, 13), 0.5))
    assert torch.isfinite(flat).all()
    assert PatchRows((1, 9, 9), filters=2, grid=1, procedural=30).features(images(2, 9, 9)).shape == (2, 4)


@pytest.mark.parametrize(
    "build",
    [
        lambda: PatchRows((32, 32)),  # type: ignore[arg-type]
        lambda: small(size=13),
        lambda: small(size=0),
        lambda: small(filters=0),
        lambda: small(filters=10**6),
        lambda: small(threshold=-1),
        lambda: small(penalty=0),
        lambda: small(contrast=float("nan")),
        lambda: small(mirror=1),
        lambda: small(per_part="False"),
        lambda: small(procedural=1),
        lambda: small().features(torch.zeros(2, 3, 12, 13)),
    ],
)
def test_what_cannot_be_is_refused(build: Any) -> None:
    with pytest.raises(DiscreetError, match=r"must be|must have"):
        build()
