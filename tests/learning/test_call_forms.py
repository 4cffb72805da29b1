"""One module called in two ways, and one weight in two layers: the gradient is the sum of both, and is
measured and clipped as one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet import NotPrivate
from discreet.learning import Flat, PerLayer
from discreet.learning.clipping import taps
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.clipping.norms import factors
from discreet.learning.probing.safety import probe
from discreet.learning.training.pooling import built, owned, pooled

from .zoo import naive

B, T, WIDTH = 5, 6, 8

Form = Callable[[Any, Tensor], Tensor]


def attention_forms(*, first: bool = True) -> dict[str, Form]:
    def turned(x: Tensor) -> Tensor:
        return x if first else x.transpose(0, 1)

    def form(*, memory: int, **options: Any) -> Form:
        def call(layer: Any, x: Tensor) -> Tensor:
            x = turned(x)
            near = torch.tanh(x)
            key, value = {0: (x, x), 1: (near, near), 2: (near, near * 2), 3: (x, near), 4: (near, x)}[memory]
            return turned(layer(x, key, value, **options)[0])

        return call

    mask = nn.Transformer.generate_square_subsequent_mask(T)
    return {
        "self": form(memory=0),
        "self, without weights": form(memory=0, need_weights=False),
        "self, causal": form(memory=0, need_weights=False, attn_mask=mask, is_causal=True),
        "cross": form(memory=1),
        "cross, other values": form(memory=2, need_weights=False),
        "own keys": form(memory=3),
        "own values": form(memory=4),
    }


def recurrent_forms(count: int) -> dict[str, Form]:
    def with_state(layer: Any, x: Tensor) -> Tensor:
        state = torch.tanh(x[:, 0, :4]).repeat(count, 1, 1)
        return layer(x, (state, state * 2) if isinstance(layer, nn.LSTM) else state)[0]

    return {
        "all": lambda layer, x: layer(x)[0],
        "one step": lambda layer, x: layer(x[:, :1])[0],
        "last state": lambda layer, x: (
            layer(x)[1][0] if isinstance(layer, nn.LSTM) else layer(x)[1]
        ).transpose(0, 1),
        "from a state": with_state,
    }


LINEAR: dict[str, Form] = {
    "one position": lambda layer, x: layer(x[:, 0]),
    "positions": lambda layer, x: layer(x),
    "two dims of positions": lambda layer, x: layer(x.unflatten(1, (2, 3))),
    "one position of three dims": lambda layer, x: layer(x[:, :1]),
}
CHANNELS: dict[str, Form] = {
    "whole": lambda layer, x: layer(x.transpose(1, 2)),
    "half": lambda layer, x: layer(x[:, :3].transpose(1, 2)),
}
IMAGES: dict[str, Form] = {
    "wide": lambda layer, x: layer(x.transpose(1, 2).unflatten(2, (2, 3))),
    "high": lambda layer, x: layer(x.transpose(1, 2).unflatten(2, (3, 2))),
}
WORDS: dict[str, Form] = {
    "one word": lambda layer, x: layer(ids(x)[:, 0]),
    "text": lambda layer, x: layer(ids(x)),
    "two dims of words": lambda layer, x: layer(ids(x).unflatten(1, (2, 3))),
}


def ids(x: Tensor) -> Tensor:
    return (x[:, :, 0].abs() * 10).long() % 5


KINDS: dict[str, tuple[Callable[[], nn.Module], dict[str, Form]]] = {
    "attention": (lambda: nn.MultiheadAttention(WIDTH, 2, batch_first=True), attention_forms()),
    "attention without bias": (
        lambda: nn.MultiheadAttention(WIDTH, 2, bias=False, batch_first=True),
        attention_forms(),
    ),
    "attention, sequence first": (lambda: nn.MultiheadAttention(WIDTH, 2), attention_forms(first=False)),
    "attention, own widths": (
        lambda: nn.MultiheadAttention(WIDTH, 2, kdim=WIDTH, vdim=WIDTH, batch_first=True),
        attention_forms(),
    ),
    "linear": (lambda: nn.Linear(WIDTH, 4), LINEAR),
    "linear without bias": (lambda: nn.Linear(WIDTH, 4, bias=False), LINEAR),
    "embedding": (lambda: nn.Embedding(5, 4), WORDS),
    "embedding with padding": (lambda: nn.Embedding(5, 4, padding_idx=2), WORDS),
    "conv1d": (lambda: nn.Conv1d(WIDTH, 4, 2), CHANNELS),
    "conv1d in groups": (lambda: nn.Conv1d(WIDTH, 4, 2, groups=2), CHANNELS),
    "conv2d": (lambda: nn.Conv2d(WIDTH, 4, 2, padding=1), IMAGES),
    "layer norm": (lambda: nn.LayerNorm(WIDTH), LINEAR),
    "rms norm": (lambda: nn.RMSNorm(WIDTH), LINEAR),
    "group norm": (
        lambda: nn.GroupNorm(2, WIDTH),
        CHANNELS | IMAGES | {"vector": lambda layer, x: layer(x[:, 0])},
    ),
    "instance norm": (lambda: nn.InstanceNorm1d(WIDTH, affine=True), CHANNELS),
    "rnn": (lambda: nn.RNN(WIDTH, 4, batch_first=True), recurrent_forms(1)),
    "lstm": (lambda: nn.LSTM(WIDTH, 4, batch_first=True), recurrent_forms(1)),
    "gru, both ways": (lambda: nn.GRU(WIDTH, 4, bidirectional=True, batch_first=True), recurrent_forms(2)),
    "prelu, example by example": (lambda: nn.PReLU(), LINEAR),
}


def pairs(kind: str) -> Iterator[Any]:
    """All pairs of ways to call a module; of the further kinds of attention, each way with itself and with the
    next one in every run, and the others in `make test-all`: their taps are those of the first kind."""
    forms = list(KINDS[kind][1])
    for one, other in itertools.combinations_with_replacement(forms, 2):
        later = kind.startswith("attention") and kind != "attention"
        far = forms.index(other) - forms.index(one) > 1
        yield pytest.param(kind, one, other, marks=[pytest.mark.slow] * (later and far))


PAIRS = [pair for kind in KINDS for pair in pairs(kind)]


class Both(nn.Module):
    """Two calls of one module, after a layer that learns, as one long vector."""

    def __init__(self, layer: nn.Module, one: Form, other: Form) -> None:
        super().__init__()
        self.before, self.layer, self.one, self.other = nn.Linear(WIDTH, WIDTH), layer, one, other

    def forward(self, x: Tensor) -> Tensor:
        x = x + 0.1 * self.before(x)
        return torch.cat([self.one(self.layer, x).flatten(1), self.other(self.layer, x * 0.9).flatten(1)], 1)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    return ((outputs * targets[:, None]) ** 2).sum(1) + outputs.sum(1)


def check(model: nn.Module) -> None:
    """Gradients, lengths, clipped sums and what exact noise rounds, against a loop over single examples."""
    x, y = torch.randn(B, T, WIDTH), torch.logspace(-1, 1, B)
    truth = naive(model, x, y, loss)
    norms = truth.norm(dim=1)
    clip = float(norms.median())
    engine = ClippingEngine(model, loss)
    with engine.attached():
        gradients = engine.gradients(x, y)
        bounds = gradients.squares.sum(1).sqrt()
        assert (bounds >= norms * (1 - 1e-4)).all()
        assert (bounds <= norms * 1.001 + 1e-6).all()
        torch.testing.assert_close(
            built(engine, gradients), truth, rtol=1e-3, atol=1e-4 * float(truth.abs().max())
        )
        got = engine.clipped_sum(x, y, clip=clip)
        wanted = (truth * (clip / norms).clamp(max=1).unsqueeze(1)).sum(0)
        assert (got - wanted).norm() < 1e-3 * clip
        # One person with all rows: the sum of all gradients, pooled before it is clipped.
        person = pooled(engine, engine.gradients(x, y), owned(torch.tensor([B]), mean=False))
        total = truth.sum(0).norm()
        assert total * (1 - 1e-4) <= person.squares.sum().sqrt() <= total * 1.001
        torch.testing.assert_close(
            built(engine, person)[0], truth.sum(0), rtol=1e-3, atol=1e-3 * float(truth.abs().max())
        )


@pytest.mark.parametrize(("kind", "one", "other"), PAIRS)
def test_two_calls_of_one_module_are_clipped_as_one(kind: str, one: str, other: str) -> None:
    torch.manual_seed(0)
    build, forms = KINDS[kind]
    check(Both(build(), forms[one], forms[other]))


class Shared(nn.Module):
    """One weight in two layers."""

    def __init__(
        self, first: nn.Module, second: nn.Module, name: str, into: str, use: Callable[..., Tensor]
    ) -> None:
        super().__init__()
        self.first, self.second, self.use = first, second, use
        owner, _, leaf = into.rpartition(".")
        setattr(second.get_submodule(owner), leaf, first.get_parameter(name))

    def forward(self, x: Tensor) -> Tensor:
        return self.use(self.first, self.second, x).flatten(1)


class Inside(nn.Module):
    """A layer within a module of somebody's own, which runs example by example."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.scale, self.inner = nn.Parameter(torch.randn(())), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x) * self.scale


def joined(*parts: Tensor) -> Tensor:
    return torch.cat([part.flatten(1) for part in parts], 1)


SHARED: dict[str, Callable[[], nn.Module]] = {
    "table and output layer, texts": lambda: Shared(
        nn.Embedding(5, WIDTH), nn.Linear(WIDTH, 5), "weight", "weight", lambda a, b, x: b(a(ids(x)) + x)
    ),
    "table and output layer, one word": lambda: Shared(
        nn.Embedding(5, WIDTH), nn.Linear(WIDTH, 5), "weight", "weight", lambda a, b, x: b(a(ids(x)[:, 0]))
    ),
    "table with padding and output layer": lambda: Shared(
        nn.Embedding(5, WIDTH, padding_idx=1),
        nn.Linear(WIDTH, 5),
        "weight",
        "weight",
        lambda a, b, x: b(a(ids(x)) + x),
    ),
    "projections of attention and a linear layer": lambda: Shared(
        nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        nn.Linear(WIDTH, 3 * WIDTH),
        "in_proj_weight",
        "weight",
        lambda a, b, x: joined(a(x, x.tanh(), x.tanh())[0], b(x)),
    ),
    "biases of attention and a linear layer": lambda: Shared(
        nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        nn.Linear(WIDTH, 3 * WIDTH),
        "in_proj_bias",
        "bias",
        lambda a, b, x: joined(a(x, x.tanh(), x)[0], b(x[:, 0])),
    ),
    "bias of a linear layer and of a norm": lambda: Shared(
        nn.Linear(WIDTH, WIDTH),
        nn.LayerNorm(WIDTH),
        "bias",
        "bias",
        lambda a, b, x: joined(b(a(x[:, 0])), a(x)),
    ),
    "weight of a convolution, twice": lambda: Shared(
        nn.Conv1d(WIDTH, WIDTH, 2),
        nn.Conv1d(WIDTH, WIDTH, 2, padding=1),
        "weight",
        "weight",
        lambda a, b, x: joined(a(x.transpose(1, 2)), b(x.transpose(1, 2))),
    ),
    "input weights of two lstms": lambda: Shared(
        nn.LSTM(WIDTH, 4, batch_first=True),
        nn.LSTM(WIDTH, 4, batch_first=True),
        "weight_ih_l0",
        "weight_ih_l0",
        lambda a, b, x: joined(a(x)[0], b(x.flip(1))[0]),
    ),
    "output projection of attention and a linear layer": lambda: Shared(
        nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        nn.Linear(WIDTH, WIDTH),
        "out_proj.weight",
        "weight",
        lambda a, b, x: joined(a(x, x, x)[0], b(x)),
    ),
    "a weight that is also in a module of its own": lambda: Shared(
        nn.Linear(WIDTH, WIDTH),
        Inside(nn.Linear(WIDTH, WIDTH)),
        "weight",
        "inner.weight",
        lambda a, b, x: joined(a(x), b(x)),
    ),
    "projections of attention within a module of its own": lambda: Shared(
        nn.MultiheadAttention(WIDTH, 2, batch_first=True),
        Inside(nn.Linear(WIDTH, 3 * WIDTH)),
        "in_proj_weight",
        "inner.weight",
        lambda a, b, x: joined(a(x, x.tanh(), x)[0], b(x)),
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_one_weight_in_two_layers_is_clipped_as_one(name: str) -> None:
    torch.manual_seed(0)
    model = SHARED[name]()
    if "lstm" in name:
        # LSTMs keep a list of their weights of their own.
        model.second._flat_weights = [getattr(model.second, n) for n in model.second._flat_weights_names]  # type: ignore[union-attr, operator]
    check(model)


def both_attentions() -> nn.Module:
    forms = attention_forms()
    return Both(nn.MultiheadAttention(WIDTH, 2, batch_first=True), forms["self"], forms["cross"])


def test_layers_are_clipped_one_by_one_where_that_is_the_rule() -> None:
    model, x, y = both_attentions(), torch.randn(B, T, WIDTH), torch.logspace(-1, 1, B)
    truth = naive(model, x, y, loss)
    engine = ClippingEngine(model, loss)
    rule = PerLayer(clip=float(truth.norm(dim=1).median()))
    with engine.attached():
        gradients = engine.gradients(x, y)
    weights, _ = factors(rule, gradients.squares)
    sizes = [p.numel() for p in engine.parameters.values()]
    pieces = torch.split(truth, sizes, 1)
    layers = [engine.layers[id(p)] for p in engine.parameters.values()]
    for layer in set(layers):
        true = torch.cat([piece for piece, own in zip(pieces, layers, strict=True) if own == layer], 1).norm(
            dim=1
        )
        bounds = gradients.squares[:, layer].sqrt()
        assert (bounds >= true * (1 - 1e-4)).all()
        assert (bounds <= true * 1.001 + 1e-6).all()
    assert (weights <= 1).all()


def by_key(parts: list[Any]) -> list[Any]:
    """The old way: one tap for each pair of parameter and rows, overlapping or not."""
    groups: dict[Any, list[Any]] = {}
    for tap in (piece for part in parts for piece in taps.without_bias(part)):
        groups.setdefault((id(tap.target.parameter), tap.target.rows), []).append(tap)
    return [group[0] if len(group) == 1 else taps._merge_group(group) for group in groups.values()]


def test_the_probe_refuses_what_is_measured_too_short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The old way to merge is a mutant that it must find: norms too short by up to sqrt(2)."""
    torch.manual_seed(0)
    x, y = torch.rand(5, T, WIDTH), torch.rand(5)
    probe(ClippingEngine(both_attentions(), loss), x, y)
    monkeypatch.setattr("discreet.learning.clipping.engine.merged", by_key)
    with pytest.raises(NotPrivate, match="longer than what was measured"):
        probe(ClippingEngine(both_attentions(), loss), x, y)
    with pytest.raises(AssertionError):
        check(both_attentions())


def test_a_person_moves_the_sum_by_at_most_the_clip_whatever_is_called_twice() -> None:
    model, x, y = both_attentions(), torch.randn(B, T, WIDTH), torch.full((B,), 10.0)
    engine = ClippingEngine(model, loss)
    with engine.attached():
        for i in range(B):
            alone = engine.clipped_sum(x[i : i + 1], y[i : i + 1], clip=Flat(clip=0.5))
            assert 0.49 <= alone.norm() <= 0.5
