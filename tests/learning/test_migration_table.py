"""Walks the table of layers in docs/migrate.md: each is trained as in a loop, by the way that it
says."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet import Unsupported
from discreet.learning.clipping import routes
from discreet.learning.clipping.engine import ClippingEngine

from .zoo import naive

PAGE = (Path(__file__).parents[2] / "docs" / "migrate.md").read_text()
TABLE = PAGE.split("<!-- layers -->")[1].split("<!-- end of layers -->")[0]
WAYS = dict(re.findall(r"^\| `(\w+)` \|.*\| (\w+) \|$", TABLE, re.MULTILINE))
B, T = 7, 5


class First(nn.Module):
    """A layer that gives more than a tensor, or takes more than one."""

    def __init__(self, inner: nn.Module, call: Callable[[nn.Module, Tensor], Any]) -> None:
        super().__init__()
        self.inner, self.call = inner, call

    def forward(self, x: Tensor) -> Tensor:
        result = self.call(self.inner, x)
        return result[0] if isinstance(result, tuple) else result


def itself(layer: nn.Module, x: Tensor) -> Any:
    return layer(x)


def thrice(layer: nn.Module, x: Tensor) -> Any:
    return layer(x, x, x)


def twice(layer: nn.Module, x: Tensor) -> Any:
    return layer(x, x)


def floats(*shape: int) -> Tensor:
    return torch.randn(B, *shape)


def words() -> Tensor:
    return torch.randint(0, 9, (B, T))


LAYERS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor], Any]] = {
    "Linear": (lambda: nn.Linear(4, 3), lambda: floats(T, 4), itself),
    "Conv1d": (lambda: nn.Conv1d(4, 6, 3, padding=1, groups=2), lambda: floats(4, 8), itself),
    "Conv2d": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding="valid"), lambda: floats(3, 8, 8), itself),
    "Conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1), lambda: floats(2, 4, 4, 4), itself),
    "ConvTranspose1d": (lambda: nn.ConvTranspose1d(4, 3, 3), lambda: floats(4, 6), itself),
    "ConvTranspose2d": (lambda: nn.ConvTranspose2d(3, 2, 2, stride=2), lambda: floats(3, 4, 4), itself),
    "ConvTranspose3d": (lambda: nn.ConvTranspose3d(2, 2, 2), lambda: floats(2, 3, 3, 3), itself),
    "Embedding": (lambda: nn.Embedding(9, 4, padding_idx=1), words, itself),
    "EmbeddingBag": (lambda: nn.EmbeddingBag(9, 4, mode="mean"), words, itself),
    "GroupNorm": (lambda: nn.GroupNorm(2, 4), lambda: floats(4, 6), itself),
    "InstanceNorm1d": (lambda: nn.InstanceNorm1d(4, affine=True), lambda: floats(4, 6), itself),
    "InstanceNorm2d": (lambda: nn.InstanceNorm2d(3, affine=True), lambda: floats(3, 4, 4), itself),
    "InstanceNorm3d": (lambda: nn.InstanceNorm3d(2, affine=True), lambda: floats(2, 3, 3, 3), itself),
    "LayerNorm": (lambda: nn.LayerNorm(4), lambda: floats(T, 4), itself),
    "RMSNorm": (lambda: nn.RMSNorm(4), lambda: floats(T, 4), itself),
    "BatchNorm1d": (lambda: nn.BatchNorm1d(3), lambda: floats(3), itself),
    "BatchNorm2d": (lambda: nn.BatchNorm2d(3), lambda: floats(3, 4, 4), itself),
    "BatchNorm3d": (lambda: nn.BatchNorm3d(3), lambda: floats(3, 2, 2, 2), itself),
    "SyncBatchNorm": (lambda: nn.SyncBatchNorm(3), lambda: floats(3, 4, 4), itself),
    "MultiheadAttention": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True), lambda: floats(T, 4), thrice,
    ),
    "SequenceBias": (
        lambda: nn.MultiheadAttention(4, 2, batch_first=True, add_bias_kv=True), lambda: floats(T, 4), thrice,
    ),
    "LSTM": (lambda: nn.LSTM(4, 3, batch_first=True), lambda: floats(T, 4), itself),
    "GRU": (lambda: nn.GRU(4, 3, batch_first=True), lambda: floats(T, 4), itself),
    "RNN": (lambda: nn.RNN(4, 3, batch_first=True), lambda: floats(T, 4), itself),
    "LSTMCell": (lambda: nn.LSTMCell(4, 3), lambda: floats(4), itself),
    "GRUCell": (lambda: nn.GRUCell(4, 3), lambda: floats(4), itself),
    "RNNCell": (lambda: nn.RNNCell(4, 3), lambda: floats(4), itself),
    "PReLU": (lambda: nn.PReLU(4), lambda: floats(4, T), itself),
    "Bilinear": (lambda: nn.Bilinear(4, 4, 3), lambda: floats(T, 4), twice),
}  # fmt: skip


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs.flatten(1) - targets[:, None]).pow(2).sum(1)


def test_the_table_has_every_layer_that_is_tried() -> None:
    assert set(WAYS) == set(LAYERS)


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_trains_as_in_a_loop_by_the_way_that_the_page_says(name: str) -> None:
    torch.manual_seed(0)
    build, data, call = LAYERS[name]
    model, x, y = First(build(), call), data(), torch.randn(B)
    if WAYS[name] == "refused":
        with pytest.raises(Unsupported, match="without_batch_norm"):
            routes.routes(model)
        return
    assert routes.routes(model) == {"inner": WAYS[name]}
    truth = naive(model, x, y, loss)
    norms = truth.norm(dim=1)
    clip = float(norms.median())
    clipped = truth * (clip / norms).clamp(max=1).unsqueeze(1)
    engine = ClippingEngine(model, loss)
    with engine.attached():
        got = engine.clipped_sum(x, y, clip=clip)
    assert (got - clipped.sum(0)).norm() <= 1e-3 * clip
