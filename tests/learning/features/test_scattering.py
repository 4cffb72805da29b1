"""The scattering transform: equal to kymatio's, and a function of each image by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from discreet import DiscreetError
from discreet.learning.features import Scattering

# Written by kymatio 0.3.0, Scattering2D(J, shape, L=L) on torch, of the image `pattern(shape)`.
GOLDEN = np.load(Path(__file__).with_name("kymatio.npz"))


def pattern(shape: tuple[int, int]) -> torch.Tensor:
    i = np.arange(shape[0] * shape[1]).reshape(1, *shape)
    return torch.from_numpy(((i * i * 7 + i * 13) % 101 / 101).astype(np.float32))


@pytest.mark.parametrize("name", GOLDEN.files)
def test_coefficients_are_those_of_kymatio_to_one_in_ten_thousand(name: str) -> None:
    shape, J, L = name.split("-")
    height, width = (int(part) for part in shape.split("x"))
    transform = Scattering((height, width), J=int(J), L=int(L))
    ours = transform(pattern((height, width)))
    assert ours.shape == GOLDEN[name].shape
    assert ours.shape[1] == transform.channels
    assert ours[0].numel() == transform.size
    np.testing.assert_allclose(ours.numpy(), GOLDEN[name], atol=1e-5)


def test_eighty_one_channels_at_a_quarter_of_the_resolution() -> None:
    assert Scattering()(torch.zeros(2, 3, 28, 28)).shape == (2, 3, 81, 7, 7)


def test_order_one_gives_the_first_channels() -> None:
    image = pattern((28, 28))
    assert torch.equal(Scattering(order=1)(image), Scattering()(image)[:, :17])


def test_an_image_has_the_same_coefficients_whatever_is_beside_it() -> None:
    """Neighbors stay neighbors: with an image removed, all others keep their coefficients, bit by bit."""
    images = torch.rand(40, 28, 28, generator=torch.Generator().manual_seed(1))
    transform = Scattering()
    whole = transform.features(images, normalize=True)
    alone = torch.cat([transform.features(image[None], normalize=True) for image in images])
    assert torch.equal(whole, alone)
    assert whole.shape == (40, transform.size)


def test_bytes_are_divided_by_255() -> None:
    raw = (torch.rand(5, 28, 28, generator=torch.Generator().manual_seed(0)) * 255).round().to(torch.uint8)
    torch.testing.assert_close(Scattering().features(raw), Scattering().features(raw.float() / 255))


def test_an_image_of_nothing_but_nan_leaves_the_others_alone() -> None:
    images = torch.zeros(3, 28, 28)
    images[1] = torch.nan
    out = Scattering()(images)
    assert torch.isfinite(out[[0, 2]]).all()
    assert torch.isnan(out[1]).all()


def test_gradients_are_those_of_differences() -> None:
    transform, image = Scattering((8, 8), J=1, L=2), torch.rand(1, 8, 8, dtype=torch.float64)
    assert torch.autograd.gradcheck(transform, image.requires_grad_())


def test_no_images_give_no_rows() -> None:
    assert Scattering().features(np.zeros((0, 28, 28))).shape == (0, 3969)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Scattering((27, 28)),
        lambda: Scattering((4, 4)),
        lambda: Scattering("28"),  # type: ignore[arg-type]
        lambda: Scattering(J=0),
        lambda: Scattering(order=3),
        lambda: Scattering()(torch.zeros(28, 27)),
        lambda: Scattering()(torch.zeros(28, 28, dtype=torch.uint8)),
        lambda: Scattering().features(np.zeros((1, 28, 28)), batch=0),
    ],
)
def test_what_cannot_be_transformed_is_refused(build: Any) -> None:
    with pytest.raises(DiscreetError, match=r"are not|must be"):
        build()
