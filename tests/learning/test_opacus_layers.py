"""Opacus's own layers, unchanged: clipped sums as in the naive loop. Runs where opacus is installed."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    layers = pytest.importorskip("opacus.layers")

from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.safety import made_up, probe

from .zoo import naive

T, WORDS = 5, 20


class Recurrent(nn.Module):
    def __init__(self, kind: Any, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.layer = kind(8, 6, batch_first=True, **options)
        self.out = nn.Linear(12 if options.get("bidirectional") else 6, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.layer(self.words(ids))[0][:, -1])


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, 8)
        self.layer = layers.DPMultiheadAttention(8, 2, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.words(ids)
        return self.layer(h, h, h)[0].mean(1)


MODELS = {
    "DPLSTM": lambda: Recurrent(layers.DPLSTM),
    "DPLSTM, two layers, both directions": lambda: Recurrent(layers.DPLSTM, num_layers=2, bidirectional=True),
    "DPGRU": lambda: Recurrent(layers.DPGRU),
    "DPRNN": lambda: Recurrent(layers.DPRNN),
    "DPMultiheadAttention": Attending,
}


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return (outputs - targets[:, None]).pow(2).sum(1)


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_it_trains_as_in_a_loop_of_single_examples(name: str, isolate: bool) -> None:
    torch.manual_seed(0)
    model, ids, y = MODELS[name](), torch.randint(0, WORDS, (13, T)), torch.randn(13)
    truth = naive(model, ids, y, loss)
    clip = float(truth.norm(dim=1).median())
    clipped = truth * (clip / truth.norm(dim=1)).clamp(max=1).unsqueeze(1)
    engine = ClippingEngine(model, loss, isolate=isolate)
    with engine.attached():
        for size in (1, T, 13):
            got = engine.clipped_sum(ids[:size], y[:size], clip=clip)
            assert (got - clipped[:size].sum(0)).norm() <= 1e-4 * size * clip
    probe(ClippingEngine(model, loss, isolate=isolate), made_up(ids), made_up(y))
