"""What an outsider tried on the clipped sum: changes in place, sizes that coincide, code that depends on the
mode or on the batch size."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, rnn

from discreet import DiscreetError, Unsupported
from discreet.learning.clipping import layers
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.safety import made_up, probe

from .zoo import naive

T, WIDTH = 4, 6


class Does(nn.Module):
    """Parts, and what is done with them."""

    def __init__(self, forward: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.does = forward
        for name, part in parts.items():
            if isinstance(part, Tensor):
                self.register_buffer(name, part)
            else:
                setattr(self, name, part)

    def forward(self, *inputs: Any) -> Tensor:
        return self.does(self, *inputs)


def loss(outputs: Tensor, targets: Tensor) -> Tensor:
    outputs = outputs.flatten(1)
    return ((outputs * targets[:, None]) ** 2).sum(1) + outputs.sum(1)


def check(
    model: nn.Module, inputs: Callable[[int], Any], sizes: tuple[int, ...] = (1, 2, T, T + 1, 2 * T)
) -> None:
    """Hold the clipped sum against a loop over single examples."""
    engine = ClippingEngine(model, loss)
    for size in sizes:
        x, y = inputs(size), torch.logspace(-1, 1, size)
        truth = naive(model, x, y, loss)
        norms = truth.norm(dim=1)
        clip = float(norms.median()) * 0.7
        with engine.attached():
            total = engine.clipped_sum(x, y, clip=clip)
        wanted = (truth * (clip / norms).clamp(max=1).unsqueeze(1)).sum(0)
        assert (total - wanted).norm() < 1e-3 * clip


def sequences(size: int) -> Tensor:
    return torch.randn(size, T, WIDTH)


def images(size: int) -> Tensor:
    return torch.randn(size, T, 5, 5)


def words(size: int) -> Tensor:
    return torch.randint(0, 5, (size, T))


IN_PLACE: dict[str, tuple[nn.Module, Callable[[int], Tensor]]] = {
    "linear": (nn.Linear(WIDTH, WIDTH), sequences),
    "linear without bias": (nn.Linear(WIDTH, WIDTH, bias=False), sequences),
    "convolution": (nn.Conv2d(T, T, 3), images),
    "embedding": (nn.Embedding(5, WIDTH), words),
    "layer norm": (nn.LayerNorm(WIDTH), sequences),
    "rms norm": (nn.RMSNorm(WIDTH), sequences),
    "group norm": (nn.GroupNorm(2, T), images),
    "instance norm": (nn.InstanceNorm2d(T, affine=True), images),
    "attention": (nn.MultiheadAttention(WIDTH, 2, batch_first=True), sequences),
    "GRU": (nn.GRU(WIDTH, WIDTH, batch_first=True), sequences),
}


def called(layer: nn.Module, x: Tensor) -> Tensor:
    out = layer(x, x, x) if isinstance(layer, nn.MultiheadAttention) else layer(x)
    return out[0] if isinstance(out, tuple) else out


def all_of_it(model: Any, x: Tensor) -> Tensor:
    return called(model.layer, x).mul_(2).add_(1)


def a_part_of_it(model: Any, x: Tensor) -> Tensor:
    out = called(model.layer, x)
    out[:, 0].mul_(3)
    return out


@pytest.mark.parametrize("change", [all_of_it, a_part_of_it])
@pytest.mark.parametrize("name", IN_PLACE)
def test_what_a_layer_gives_may_be_changed_in_place(name: str, change: Any) -> None:
    torch.manual_seed(0)
    layer, inputs = IN_PLACE[name]
    check(Does(change, layer=layer), inputs, (1, T))


def test_a_residual_is_added_in_place() -> None:
    torch.manual_seed(0)
    model = Does(
        lambda m, x: m.two(F.relu_(m.one(x).add_(x))), one=nn.Linear(WIDTH, WIDTH), two=nn.Linear(WIDTH, 2)
    )
    probe(ClippingEngine(model, loss), made_up(sequences(1)), made_up(torch.rand(1)))
    check(model, sequences)


def test_a_layer_that_gives_a_view_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "owned", lambda out: out)
    with pytest.raises(Unsupported, match="view"):
        check(Does(all_of_it, layer=nn.Linear(WIDTH, WIDTH)), sequences, (2,))


@pytest.mark.parametrize(
    "run",
    [
        lambda m, x: m.two(m.one(x).add_(m.one(m.table), alpha=2)),
        lambda m, x: m.two(x.repeat(1, T, 1) + m.one(m.table)[None].repeat(len(x), T, 1)),
    ],
)
def test_a_constant_in_a_call_that_is_not_known_is_refused_with_the_way_out(run: Any) -> None:
    """The first failed with a TypeError; the second repeated nothing, and failed by its shapes."""
    model = Does(run, one=nn.Linear(WIDTH, WIDTH), two=nn.Linear(WIDTH, 2), table=torch.randn(T, WIDTH))
    with pytest.raises(Unsupported, match="isolate=True"):
        check(model, sequences, (2,))


TABLE, VECTOR = torch.randn(T, WIDTH), torch.randn(WIDTH)
COINCIDE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "a vector and a table": lambda m, x: m.two(x + (m.table + m.one(m.vector))),
    "a row and a table": lambda m, x: m.two(x + (m.table + m.one(m.vector[None]))),
    "a row expanded to a table": lambda m, x: m.two(x + m.one(m.vector[None]).expand(T, WIDTH)),
    "a vector and the batch second": lambda m, x: m.two(
        (x.transpose(0, 1) * m.one(m.vector)).transpose(0, 1)
    ),
}


@pytest.mark.parametrize("name", COINCIDE)
def test_a_constant_with_as_many_rows_as_the_batch_is_not_taken_for_it(name: str) -> None:
    """Each was refused at every size but T, and there the sum was off by more than two clips."""
    model = Does(
        COINCIDE[name], one=nn.Linear(WIDTH, WIDTH), two=nn.Linear(WIDTH, WIDTH), table=TABLE, vector=VECTOR
    )
    for size in range(1, 2 * T + 1):
        engine = ClippingEngine(model, loss)
        with engine.attached(), pytest.raises(Unsupported):
            engine.clipped_sum(sequences(size), torch.ones(size), clip=1.0)


def other_order(model: Any, x: Tensor) -> Tensor:
    one, other = (model.table, x) if len(x) > 5 else (x, model.table)
    return model.one(one) + model.one(other)


def more_calls(model: Any, x: Tensor) -> Tensor:
    return model.one(x) + model.one(model.table) + (model.one(2 * model.table) if len(x) > 5 else 0)


def squeezed(model: Any, x: Tensor) -> Tensor:
    return model.one(x.squeeze()).view(len(x), -1)


def outside_in_training(model: Any, x: Tensor) -> Tensor:
    return model.drop(model.one(x) + (F.linear(x, model.one.weight) if model.training else 0))


@pytest.mark.parametrize("does", [other_order, more_calls, squeezed, outside_in_training])
def test_code_that_depends_on_the_batch_size_or_the_mode_is_refused_before_the_charge(does: Any) -> None:
    model = Does(does, one=nn.Linear(WIDTH, WIDTH), table=TABLE, drop=nn.Dropout(0.5))
    with pytest.raises(DiscreetError):
        probe(ClippingEngine(model, loss), made_up(sequences(1)), made_up(torch.rand(1)))


def test_attention_with_a_computed_projection_runs_example_by_example() -> None:
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
    parametrizations.weight_norm(layer.out_proj)
    check(Does(lambda m, x: called(m.layer, x), layer=layer), sequences, (2, T))


def test_examples_of_another_shape_are_decided_anew() -> None:
    torch.manual_seed(0)
    model = Does(
        lambda m, x: m.one(x) + m.place(torch.arange(x.shape[1])),
        one=nn.Linear(WIDTH, 3),
        place=nn.Embedding(9, 3),
    )
    engine = ClippingEngine(model, loss)
    with engine.attached():
        for places in (3, 7):
            x, y = torch.randn(places, places, WIDTH), torch.ones(places)
            total = engine.clipped_sum(x, y, clip=1e6)
            torch.testing.assert_close(total, naive(model, x, y, loss).sum(0), rtol=1e-4, atol=1e-4)


def packed(model: Any, x: Tensor) -> Tensor:
    lengths = 1 + (x[:, 0, 0] > 0).long() * (T - 2) + (x[:, 0, 1] > 0).long()
    sequence = rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
    steps, last = model.layer(sequence)
    out = rnn.pad_packed_sequence(steps, batch_first=True, total_length=T)[0]
    ends = last if isinstance(last, tuple) else (last,)
    return torch.cat([out.flatten(1), *(end.transpose(0, 1).flatten(1) for end in ends)], 1)


RECURRENT: dict[str, tuple[type[nn.RNNBase], dict[str, Any]]] = {
    "RNN": (nn.RNN, {}),
    "GRU": (nn.GRU, {"num_layers": 2, "bidirectional": True}),
    "LSTM": (nn.LSTM, {}),
    "LSTM, both ways": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "projected LSTM": (nn.LSTM, {"proj_size": 3, "bidirectional": True}),
}


@pytest.mark.parametrize("name", RECURRENT)
def test_packed_sequences_are_those_of_single_examples(name: str) -> None:
    torch.manual_seed(0)
    kind, options = RECURRENT[name]
    model = Does(packed, layer=kind(WIDTH, WIDTH, **options))
    check(model, sequences)
    probe(ClippingEngine(model, loss), made_up(sequences(1)), made_up(torch.rand(1)))


def test_sequences_sorted_by_hand_and_not_put_back_are_refused() -> None:
    def sorted_by_length(model: Any, x: Tensor) -> Tensor:
        order = x[:, 0, 0].argsort(descending=True)
        sequence = rnn.pack_padded_sequence(x[order], torch.full((len(x),), T), batch_first=True)
        return model.after(model.layer(sequence)[1][0][order.argsort()])

    model = Does(sorted_by_length, layer=nn.GRU(WIDTH, WIDTH), after=nn.Linear(WIDTH, 2))
    with pytest.raises(DiscreetError, match="the gradient of an example"):
        probe(ClippingEngine(model, loss), made_up(sequences(1)), made_up(torch.rand(1)))


class Conv1D(nn.Module):
    """As in `transformers`."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], self.nf)


@pytest.mark.parametrize("frozen", [(), ("weight",), ("bias",)])
def test_the_layer_of_gpt_2_is_tapped(frozen: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setitem(sys.modules, "transformers.pytorch_utils", SimpleNamespace(Conv1D=Conv1D))
    layer = Conv1D(3, WIDTH)
    for name in frozen:
        layer.get_parameter(name).requires_grad_(False)
    model = Does(
        lambda m, x: torch.cat([m.layer(x), m.layer(x[:, :1]), m.layer(m.table) + x[..., :3]], 1),
        layer=layer,
        table=TABLE,
    )
    assert ClippingEngine(model, loss).routes == {"layer": "tapped"}
    check(model, sequences)
    check(Does(lambda m, x: m.layer(x[:, 0]), layer=layer), sequences)
