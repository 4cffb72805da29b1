"""Features of several kinds in one row."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from discreet import DiscreetError
from discreet.learning.features import JoinedRows, PatchRows, ScatteringRows

PATCHES = PatchRows((3, 16, 16), filters=5, size=4, grid=2, procedural=40)
SCATTERING = ScatteringRows((3, 16, 16), mirror=True)


def images(n: int) -> torch.Tensor:
    return torch.rand(n, 3, 16, 16, generator=torch.Generator().manual_seed(4))


def test_a_joined_row_holds_the_rows_of_all_kinds_by_their_weights() -> None:
    joined, pictures = JoinedRows([PATCHES, SCATTERING], weights=(3, 4)), images(3)
    rows = joined.features(pictures)
    assert rows.shape == (3, joined.size) == (3, PATCHES.size + SCATTERING.size)
    torch.testing.assert_close(rows[:, : PATCHES.size], PATCHES.features(pictures) * 0.6)
    torch.testing.assert_close(rows[:, PATCHES.size :], SCATTERING.features(pictures) * 0.8)
    torch.testing.assert_close(rows.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(JoinedRows([PATCHES, PATCHES]).weights, (0.5**0.5, 0.5**0.5))
    assert JoinedRows([PATCHES, PATCHES], weights=(1e308, 1e308)).weights == JoinedRows([PATCHES] * 2).weights


def test_each_image_is_mapped_by_itself_and_odd_ones_become_zero() -> None:
    joined, pictures = JoinedRows([PATCHES, SCATTERING]), images(5)
    rows = joined.features(pictures)
    alone = torch.cat([joined.features(picture[None]) for picture in pictures])
    torch.testing.assert_close(rows, alone, atol=1e-5, rtol=0)
    odd = pictures.clone()
    odd[2, 0, 3, 3] = torch.nan
    mapped = joined.features(odd)
    assert (mapped[2] == 0).all()
    torch.testing.assert_close(mapped[[0, 1, 3, 4]], rows[[0, 1, 3, 4]], atol=1e-5, rtol=0)
    assert joined.features(pictures[:0]).shape == (0, joined.size)
    assert joined.features(pictures, dtype=torch.float16).dtype == torch.float16


@pytest.mark.parametrize(
    "build",
    [
        lambda: JoinedRows([]),
        lambda: JoinedRows("patches"),  # type: ignore[arg-type]
        lambda: JoinedRows([torch.nn.Linear(2, 2)]),  # type: ignore[list-item]
        lambda: JoinedRows([PATCHES, ScatteringRows((1, 28, 28))]),
        lambda: JoinedRows([PATCHES, SCATTERING], weights=(1,)),
        lambda: JoinedRows([PATCHES, SCATTERING], weights=(1, 0)),
        lambda: JoinedRows([PATCHES, SCATTERING], weights=(1, float("nan"))),
        lambda: JoinedRows([PATCHES, SCATTERING], weights=(1, 10**400)),
        lambda: JoinedRows([PATCHES, SCATTERING]).features(torch.zeros(2, 3, 8, 8)),
        lambda: JoinedRows([PATCHES]).joined([torch.zeros(2, 3)]),
        lambda: JoinedRows([PATCHES, SCATTERING]).joined([torch.zeros(2, PATCHES.size)]),
    ],
)
def test_what_cannot_be_is_refused(build: Any) -> None:
    with pytest.raises(DiscreetError, match=r"must be|must have|must not"):
        build()
