"""Rows of scattering coefficients, and whitening within public directions: against slow references."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional as F

import discreet as dp
from discreet import DiscreetError, learning
from discreet.learning.features import (
    Directions,
    PaidWhitening,
    PartialWhitening,
    PrivateWhitening,
    Scattering,
    ScatteringRows,
)
from discreet.learning.features.whitening import _principal_directions
from discreet.sampling import SeededEntropy


def images(n: int, *shape: int) -> torch.Tensor:
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(4))


def test_rows_are_group_normalized_coefficients_of_each_image_by_itself() -> None:
    given = images(5, 3, 16, 16)
    rows = ScatteringRows((3, 16, 16)).features(given, batch=2)
    maps = Scattering((16, 16))(given).flatten(1, 2)
    slow = F.group_norm(maps, 81).flatten(1)
    torch.testing.assert_close(rows, slow / slow.norm(dim=1, keepdim=True), atol=1e-5, rtol=0)
    alone = torch.cat([ScatteringRows((3, 16, 16)).features(image[None]) for image in given])
    torch.testing.assert_close(alone, rows, atol=1e-6, rtol=0)
    raw = (given * 255).round().to(torch.uint8)
    scaled = ScatteringRows((3, 16, 16)).features(raw.float() / 255)
    torch.testing.assert_close(ScatteringRows((3, 16, 16)).features(raw), scaled)


def test_an_image_and_its_mirror_image_three_pixels_aside_have_the_same_rows() -> None:
    """A bump far from all edges: averages stand at pixels 0, 4, ..., 28, whose mirror image is 3 aside."""
    across, down = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="xy")
    bump = torch.exp(-((across - 13) ** 2 + (down - 17) ** 2 + 0.9 * (across - 13) * (down - 17)) / 12)
    plain, alike = (ScatteringRows((1, 32, 32), mirror=mirror) for mirror in (False, True))
    pair = torch.stack([bump, bump.flip(-1).roll(-3, -1)])[:, None]
    assert alike.size == plain.size // 2
    rows, apart = alike.features(pair), plain.features(pair)
    assert rows.shape == (2, alike.size)
    assert float((rows[0] - rows[1]).norm()) < 0.1 < 0.5 < float((apart[0] - apart[1]).norm())


def paid_for(rows: torch.Tensor, directions: Directions, rho: float = 1e4) -> PaidWhitening:
    public = dp.Public(table="t", size=len(rows))
    mechanism = PrivateWhitening(public=public, width=len(directions.matrix), rho=rho)
    private = learning.Examples(directions(rows), np.zeros(len(rows), np.int64), public)
    released = mechanism(private, entropy=SeededEntropy(1)).value
    assert isinstance(released, PaidWhitening)
    return released


def test_partial_whitening_shrinks_what_is_large_and_leaves_the_rest() -> None:
    """Against a slow reference: the whole matrix, from the exact moments and nearly no noise."""
    generator = torch.Generator().manual_seed(2)
    spread = torch.tensor([3.0, 2.0, 1.0, 0.5, 0.2, 0.2])
    rows = torch.randn(4000, 6, generator=generator) * spread + torch.tensor([2.0, 0, 0, 0, 0, 0])
    rows = rows / rows.norm(dim=1, keepdim=True)
    directions = Directions.fit(rows[:50], count=3)
    torch.testing.assert_close(directions.matrix @ directions.matrix.T, torch.eye(3), atol=1e-6, rtol=0)
    partial = directions.whitened(paid_for(rows, directions))
    projected = (directions(rows)).double()
    values, vectors = torch.linalg.eigh(projected.T @ projected)
    penalty = 2 * np.sqrt(3) / np.sqrt(2e4)
    # scales are relative to the direction with the smallest moment
    scales = ((values.min() + penalty) / (values + penalty)).sqrt()
    inner = vectors @ torch.diag(scales) @ vectors.T
    matrix = directions.matrix.double()
    whole = torch.eye(6).double() + matrix.T @ (inner - torch.eye(3).double()) @ matrix
    slow = rows.double() @ whole
    slow = (slow / slow.norm(dim=1, keepdim=True)).float()
    torch.testing.assert_close(partial(rows), slow, atol=2e-3, rtol=0)
    assert float(partial.scales.max()) == 1
    none = directions.whitened(paid_for(rows, directions), power=0)
    torch.testing.assert_close(none(rows), rows, atol=1e-5, rtol=0)


def test_directions_are_the_principal_components_of_public_rows_after_their_mean() -> None:
    """Against a slow reference, the eigenvectors of the covariance, up to signs; both ways to compute it."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(60, 8, generator=generator) @ torch.diag(torch.arange(1.0, 9.0))
    for given in (rows, rows[:7]):
        found = _principal_directions(given - given.mean(0), 4).double().numpy()
        centered = (given - given.mean(0)).double().numpy()
        vectors = np.linalg.eigh(centered.T @ centered / len(given))[1][:, ::-1][:, :4]
        np.testing.assert_allclose(np.abs((found * vectors).sum(0)), 1, atol=1e-5)
        np.testing.assert_allclose(np.linalg.norm(found, axis=0), 1, atol=1e-5)
        # the directions span the mean and the first count - 1 components
        spanned = Directions.fit(given, count=4).matrix.double().numpy()
        for wanted in (given.mean(0).double().numpy(), *vectors.T[:3]):
            np.testing.assert_allclose(wanted @ spanned.T @ spanned, wanted, atol=1e-4)


def test_rows_that_are_not_finite_become_zero_and_others_are_not_touched() -> None:
    partial = PartialWhitening(torch.eye(4)[:2], torch.tensor([0.5, 1.0]))
    rows = torch.rand(6000, 4, generator=torch.Generator().manual_seed(0))
    odd = rows.clone()
    odd[3], odd[5] = torch.nan, torch.inf
    out, kept = partial(odd), partial(rows)
    assert (out[[3, 5]] == 0).all()
    others = [i for i in range(6000) if i not in (3, 5)]
    assert torch.equal(out[others], kept[others])
    assert (out.norm(dim=1) <= 1 + 1e-6).all()
    assert (Directions(torch.eye(4)[:2])(odd)[[3, 5]] == 0).all()
    assert partial(rows[:0]).shape == (0, 4)


@pytest.mark.parametrize(
    "build",
    [
        lambda: ScatteringRows((28, 28)),  # type: ignore[arg-type]
        lambda: ScatteringRows((1, 28, 28), group=2),
        lambda: ScatteringRows((1, 28, 28), group=0),
        lambda: ScatteringRows(mirror=1),  # type: ignore[arg-type]
        lambda: ScatteringRows().features(torch.zeros(2, 1, 32, 32)),
        lambda: Directions.fit(torch.rand(4, 3), count=4),
        lambda: Directions.fit(torch.full((4, 3), torch.nan), count=1),
        lambda: Directions.fit(torch.rand(4, 3), count=2)(torch.zeros(2, 4)),
        lambda: Directions.fit(torch.rand(4, 3), count=2).whitened(PaidWhitening(torch.eye(3))),
        lambda: Directions.fit(torch.rand(4, 3), count=2).whitened(PaidWhitening(torch.eye(2)), power=2),
        lambda: PartialWhitening(torch.eye(2), torch.ones(2))(torch.zeros(3)),
    ],
)
def test_what_cannot_be_is_refused(build: Any) -> None:
    with pytest.raises(DiscreetError, match=r"are fitted|must be|must have|rows of|whitening is"):
        build()


@pytest.mark.filterwarnings("error")
def test_an_image_that_is_too_bright_or_missing_is_an_empty_row_without_a_word() -> None:
    given = images(3, 1, 28, 28).double().numpy()
    given[1], given[2] = 1e308, np.nan
    lengths = ScatteringRows((1, 28, 28)).features(given).norm(dim=1)
    torch.testing.assert_close(lengths, torch.tensor([1.0, 0.0, 0.0]))
    for odd in (given * 1j, given.astype(str)):
        with pytest.raises(DiscreetError, match="real numbers"):
            ScatteringRows((1, 28, 28)).features(odd)
    for secret in ("secret", 10**400):
        with pytest.raises(DiscreetError, match="must hold numbers") as refusal:
            ScatteringRows((1, 28, 28)).features(np.full((1, 28, 28), secret, dtype=object))
        assert str(secret) not in str(refusal.value)
