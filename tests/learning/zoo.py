"""Models of every kind that the engine takes, each with a batch; and the naive loop that they are compared
with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.single_examples import BatchComparison, measure

B = 5


def differing(engine: ClippingEngine, x: Any, y: Any) -> set[int]:
    """The batch sizes at which gradients of examples are not those of each alone."""
    comparison = BatchComparison(engine, x, y)
    return comparison.differing_sizes(*comparison.examples, sizes=comparison.sizes)


def rows_of(engine: ClippingEngine, x: Any, y: Any) -> Tensor:
    """Each example's gradient, [B, parameters], by the engine's own route."""
    found = measure(engine, x, y)
    units = torch.eye(len(found.gradients.losses), dtype=engine.dtype)
    return torch.stack([torch.cat([part.flatten() for part in found.parts(unit)]) for unit in units])


class Pick(nn.Module):
    """A recurrent layer's or attention's first result."""

    def __init__(self, inner: nn.Module, *, same: bool = False, **kwargs: Any) -> None:
        super().__init__()
        self.inner, self.same, self.kwargs = inner, same, kwargs

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x, x, x, **self.kwargs)[0] if self.same else self.inner(x)[0]


class Chain(nn.Module):
    """The second starts where the first ended: both of its last states have gradients."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor) -> Tensor:
        found, states = self.first(x)
        out, (h, c) = self.second(found, states)
        return out[:, -1] + h[0] * 2 + c[0] * 3


class SeqFirst(nn.Module):
    """The batch second inside, first outside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x.transpose(0, 1)).transpose(0, 1)


class Cross(nn.Module):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True, **kwargs)
        self.near = nn.Linear(8, kwargs.get("kdim", 8))

    def forward(self, x: Tensor) -> Tensor:
        memory = torch.tanh(self.near(x.flip(1)))
        hidden = torch.zeros(x.shape[0], x.shape[1], dtype=torch.bool)
        hidden[:, -1] = True
        return self.attend(x, memory, memory * 2, key_padding_mask=hidden)[0]


class Tied(nn.Module):
    """A tiny language model whose table of words is its output layer too."""

    def __init__(self, places: int = 6) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4, padding_idx=1)
        self.middle = nn.Linear(4, 4)
        self.out = nn.Linear(4, 7, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(torch.tanh(self.middle(self.table(ids)))).transpose(1, 2)


class Twice(nn.Module):
    """One layer used twice, of which once at several places."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(torch.tanh(self.layer(x))) + self.layer(x)


class Own(nn.Module):
    """A layer of somebody's own, with parameters, in-place operations and a child."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(6))
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        out = self.inner(x) * self.scale
        out += x.flatten(1).mean(1).view(-1, *[1] * (x.dim() - 1))
        return out


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.LayerNorm(6))
        self.body[0].weight.requires_grad_(False)
        self.body[2].requires_grad_(False)
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


class LoRA(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(6, 5).requires_grad_(False)
        self.down, self.up = nn.Linear(6, 2, bias=False), nn.Linear(2, 5, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + self.up(self.down(x))


class Loop(nn.Module):
    """A recurrent cell, step by step."""

    def __init__(self, cell: nn.Module) -> None:
        super().__init__()
        self.cell = cell

    def forward(self, x: Tensor) -> Tensor:
        state: Any = None
        for t in range(x.shape[1]):
            state = self.cell(x[:, t], state)
        out: Tensor = state[0] if isinstance(state, tuple) else state
        return out


def images(*shape: int) -> Callable[[], Tensor]:
    return lambda: torch.randn(B, *shape)


def words(vocabulary: int, places: int) -> Callable[[], Tensor]:
    return lambda: torch.randint(0, vocabulary, (B, places))


def _transformer(**kwargs: Any) -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, **kwargs)
    return nn.Sequential(nn.Linear(6, 8), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))


ZOO: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "linear": (lambda: nn.Linear(6, 4), images(6)),
    "linear without bias": (lambda: nn.Linear(6, 4, bias=False), images(6)),
    "linear, few places": (lambda: nn.Linear(40, 30), images(2, 40)),
    "linear, many places": (lambda: nn.Linear(3, 2), images(50, 3)),
    "linear, three leading dims": (lambda: nn.Linear(6, 4), images(2, 3, 6)),
    "linear, one place of two dims": (lambda: nn.Linear(6, 4), images(1, 1, 6)),
    "embedding": (lambda: nn.Embedding(4, 3), words(4, 6)),
    "embedding bag": (lambda: nn.EmbeddingBag(4, 3, mode="mean"), words(4, 6)),
    "embedding, one word": (lambda: nn.Embedding(4, 3), lambda: torch.randint(0, 4, (B,))),
    "embedding, long text": (lambda: nn.Embedding(9, 3, padding_idx=0), words(9, 200)),
    "conv1d": (lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1), images(4, 9)),
    "conv2d": (
        lambda: nn.Conv2d(3, 5, (3, 2), stride=(1, 2), padding=(1, 0), dilation=(2, 1)),
        images(3, 8, 7),
    ),
    "conv2d, few places": (lambda: nn.Conv2d(16, 24, 3), images(16, 4, 3)),
    "conv2d in groups": (lambda: nn.Conv2d(4, 6, 3, groups=2, padding=1), images(4, 5, 5)),
    "conv2d, depthwise": (lambda: nn.Conv2d(4, 4, 3, groups=4, bias=False), images(4, 5, 5)),
    "conv2d, same padding": (lambda: nn.Conv2d(2, 3, (4, 3), padding="same"), images(2, 6, 5)),
    "conv2d, reflected": (lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="reflect"), images(2, 6, 5)),
    "conv2d, circular": (
        lambda: nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="circular"),
        images(2, 6, 5),
    ),
    "conv2d, replicated": (
        lambda: nn.Conv2d(2, 3, 3, padding=1, padding_mode="replicate", groups=1),
        images(2, 6, 5),
    ),
    "conv3d": (lambda: nn.Conv3d(2, 3, 2, padding=1, stride=2), images(2, 4, 5, 4)),
    "layer norm": (lambda: nn.Sequential(nn.Linear(6, 6), nn.LayerNorm(6)), images(4, 6)),
    "layer norm of two dims": (lambda: nn.LayerNorm((4, 6)), images(3, 4, 6)),
    "layer norm, one place": (lambda: nn.LayerNorm(6), images(6)),
    "rms norm": (lambda: nn.Sequential(nn.Linear(6, 6), nn.RMSNorm(6)), images(4, 6)),
    "group norm": (lambda: nn.GroupNorm(2, 6), images(6, 3, 3)),
    "group norm of vectors": (lambda: nn.GroupNorm(2, 6), images(6)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), images(3, 4, 4)),
    "instance norm 1d": (lambda: nn.InstanceNorm1d(3, affine=True), images(3, 7)),
    "attention": (lambda: Pick(nn.MultiheadAttention(8, 2, batch_first=True), same=True), images(6, 8)),
    "attention, no weights": (
        lambda: Pick(
            nn.MultiheadAttention(8, 2, batch_first=True, bias=False), same=True, need_weights=False
        ),
        images(6, 8),
    ),
    "attention, causal": (
        lambda: Pick(
            nn.MultiheadAttention(8, 4, batch_first=True),
            same=True,
            need_weights=False,
            attn_mask=nn.Transformer.generate_square_subsequent_mask(6),
            is_causal=True,
        ),
        images(6, 8),
    ),
    "attention, sequence first": (
        lambda: SeqFirst(Pick(nn.MultiheadAttention(8, 2), same=True)),
        images(6, 8),
    ),
    "cross attention": (Cross, images(6, 8)),
    "cross attention, other widths": (lambda: Cross(kdim=5, vdim=5), images(6, 8)),
    "attention with bias_kv": (
        lambda: Pick(nn.MultiheadAttention(8, 2, batch_first=True, add_bias_kv=True), same=True),
        images(6, 8),
    ),
    "rnn": (lambda: Pick(nn.RNN(4, 5, batch_first=True)), images(6, 4)),
    "rnn, relu, two layers, both ways": (
        lambda: Pick(nn.RNN(4, 5, 2, nonlinearity="relu", bidirectional=True, batch_first=True)),
        images(6, 4),
    ),
    "lstm": (lambda: Pick(nn.LSTM(4, 5, batch_first=True)), images(6, 4)),
    "lstm, two layers, both ways": (
        lambda: Pick(nn.LSTM(4, 5, 2, bidirectional=True, batch_first=True)),
        images(6, 4),
    ),
    "lstm, projected, no bias": (
        lambda: Pick(nn.LSTM(4, 5, 2, bias=False, proj_size=3, batch_first=True)),
        images(6, 4),
    ),
    "lstm, states handed on": (
        lambda: Chain(nn.LSTM(4, 5, batch_first=True), nn.LSTM(5, 5, batch_first=True)),
        images(6, 4),
    ),
    "lstm, sequence first": (lambda: SeqFirst(Pick(nn.LSTM(4, 5))), images(6, 4)),
    "gru": (lambda: Pick(nn.GRU(4, 5, batch_first=True)), images(6, 4)),
    "gru, two layers, both ways": (
        lambda: Pick(nn.GRU(4, 5, 2, bidirectional=True, batch_first=True)),
        images(6, 4),
    ),
    "rnn cell": (lambda: Loop(nn.RNNCell(4, 5, nonlinearity="relu")), images(6, 4)),
    "lstm cell": (lambda: Loop(nn.LSTMCell(4, 5)), images(6, 4)),
    "gru cell, no bias": (lambda: Loop(nn.GRUCell(4, 5, bias=False)), images(6, 4)),
    "tied embedding": (Tied, words(7, 6)),
    "one layer twice": (lambda: Twice(nn.Linear(6, 6)), images(6)),
    "one layer twice at many places": (lambda: Twice(nn.Linear(6, 6)), images(9, 6)),
    "one convolution twice": (lambda: Twice(nn.Conv2d(2, 2, 3, padding=1)), images(2, 5, 5)),
    "one norm twice": (lambda: Twice(nn.LayerNorm(6)), images(4, 6)),
    "one grouped convolution twice": (
        lambda: Twice(nn.Conv2d(2, 2, 3, padding=1, groups=2)),
        images(2, 5, 5),
    ),
    "frozen parts": (Frozen, images(6)),
    "lora": (LoRA, images(4, 6)),
    "somebody's own": (lambda: nn.Sequential(nn.Linear(4, 6), Own(), nn.Linear(6, 3)), images(4)),
    "prelu": (lambda: nn.Sequential(nn.Linear(4, 6), nn.PReLU(6), nn.Linear(6, 3)), images(4)),
    "bilinear": (lambda: Bilinear(), images(4)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(2, 3, 3), images(2, 4, 4)),
    "weight normed": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), images(4)),
    "transformer": (_transformer, images(5, 6)),
    "transformer, norm first": (lambda: _transformer(norm_first=True, activation="gelu"), images(5, 6)),
    "cnn with in-place relu": (
        lambda: nn.Sequential(
            nn.Conv2d(1, 4, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.GroupNorm(2, 4),
            nn.MaxPool2d(2),
            nn.Conv2d(4, 6, 3),
            nn.Tanh(),
            nn.Flatten(),
            nn.Linear(24, 10),
            nn.ReLU(inplace=True),
            nn.Linear(10, 3),
        ),
        images(1, 8, 8),
    ),
    "text classifier": (
        lambda: nn.Sequential(nn.Embedding(20, 6), MeanPool(), nn.Linear(6, 3)),
        words(20, 8),
    ),
}


class Bilinear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.two = nn.Bilinear(4, 4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.two(x, x.flip(1))


class MeanPool(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean(1)


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """A model of the zoo with a batch: inputs, and targets for `loss`.

    Odd scales, so that clipping bites for some only.
    """
    build, inputs = ZOO[name]
    model, x = build(), inputs()
    with torch.no_grad():
        y = torch.randn_like(model(x)) * torch.logspace(-1, 1, B).view(-1, *[1] * (model(x).dim() - 1))
    return model, x, y


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets, reduction="none").flatten(1).sum(1)


def naive(model: nn.Module, x: Tensor, y: Tensor, per_example: Callable[[Any, Any], Tensor] = loss) -> Tensor:
    """[B, parameters]: one backward pass for each example by itself."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(len(x)):
        value = per_example(model(x[i : i + 1]), y[i : i + 1]).sum()
        parts = torch.autograd.grad(value, parameters, allow_unused=True)
        rows.append(
            torch.cat(
                [
                    (torch.zeros_like(p) if g is None else g.to_dense()).flatten()
                    for g, p in zip(parts, parameters, strict=True)
                ]
            )
        )
    return torch.stack(rows)
