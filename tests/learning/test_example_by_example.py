"""Modules that run example by example, whatever vmap knows of them; tensors with the batch elsewhere than
first; and what is said of models that keep a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from discreet import DiscreetError, NotPrivate, Unsupported
from discreet.learning import routes
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.safety import made_up, probe

from .zoo import loss, naive

B, T, D, WORDS = 7, 6, 8, 11


class Calls(nn.Module):
    """A model of some parts, with a function as forward pass."""

    def __init__(self, run: Callable[..., Tensor], **parts: Any) -> None:
        super().__init__()
        self.run = run
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def assert_sum_of_single_examples(model: nn.Module, x: Tensor, *, isolate: bool = False) -> ClippingEngine:
    """Accepted by the probe, and the clipped sum of every batch size up to all of them is that of a loop."""
    y = torch.randn_like(model(x)) * torch.logspace(-1, 1, len(x)).view(-1, *[1] * (model(x).dim() - 1))
    engine = ClippingEngine(model, loss, isolate=isolate)
    probe(engine, made_up(x), made_up(y), batch=len(x))
    truth = naive(model, x, y)
    clip = float(truth.norm(dim=1).median())
    clipped = truth * (clip / truth.norm(dim=1)).clamp(max=1).unsqueeze(1)
    with engine.attached():
        for size in range(len(x) + 1):
            got = engine.clipped_sum(x[:size], y[:size], clip=clip)
            assert (got - clipped[:size].sum(0)).norm() <= 1e-4 * max(1, size) * clip
        squares = engine.gradients(x, y).squares.sum(1)
    assert (squares.sqrt() >= truth.norm(dim=1) * (1 - 1e-4)).all()
    return engine


class Scaled(nn.Embedding):
    """An embedding with a forward pass of its own, as BART's has one."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input) * 3


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize(
    "build",
    [
        lambda: Scaled(WORDS, D, padding_idx=5),
        lambda: Scaled(WORDS, D, padding_idx=-6),
        lambda: Calls(lambda m, ids: F.embedding(ids, m.table, 5), table=nn.Parameter(torch.randn(WORDS, D))),
        lambda: Calls(
            lambda m, ids: torch.embedding(m.table, ids, padding_idx=5),
            table=nn.Parameter(torch.randn(WORDS, D)),
        ),
    ],
    ids=["subclass", "from the end", "functional", "of torch"],
)
def test_the_row_of_padding_stays_wherever_a_table_is_looked_up(build: Any, isolate: bool) -> None:
    """Made-up ids are 0 and 1: the probe alone would not see that the fifth row has a gradient."""
    torch.manual_seed(0)
    ids = torch.randint(0, WORDS, (B, T))
    ids[:, 2] = 5
    model = build()
    engine = assert_sum_of_single_examples(model, ids, isolate=isolate)
    with engine.attached():
        total = engine.clipped_sum(ids, torch.randn_like(model(ids)), clip=1.0)
    assert total.view(WORDS, D)[5].abs().max() == 0


def start_learned(kind: Any) -> nn.Module:
    """A recurrent layer whose first state is learned: a parameter of the module's own, in its second
    dimension expanded to the batch."""

    def run(model: Any, x: Tensor) -> Tensor:
        state = model.state.expand(1, len(x), D).contiguous()
        outputs: Tensor = model.layer(x, (state, state) if kind is nn.LSTM else state)[0]
        return outputs

    return Calls(run, layer=kind(D, D, batch_first=True), state=nn.Parameter(torch.randn(1, 1, D)))


def branching(model: Any, x: Tensor) -> Tensor:
    """Code that goes by the value of a tensor."""
    out: Tensor = model.layer(x)
    return out * 2 if bool((x.sum() > 0).all()) else out


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_a_recurrent_layer_with_a_learned_first_state_trains(kind: Any) -> None:
    torch.manual_seed(0)
    assert_sum_of_single_examples(start_learned(kind), torch.randn(B, T, D))


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_what_vmap_has_no_rule_for_runs_in_a_loop(kind: Any) -> None:
    torch.manual_seed(0)
    model = Calls(lambda m, x: m.layer(x)[0], layer=kind(D, 4, batch_first=True))
    engine = assert_sum_of_single_examples(model, torch.randn(B, T, D), isolate=True)
    assert engine.recorder.looped == {id(model)}


def test_code_that_branches_on_values_runs_in_a_loop_each_example_by_its_own() -> None:
    torch.manual_seed(0)
    model = Calls(branching, layer=nn.Linear(D, D))
    with pytest.raises(NotPrivate, match="mixes examples"):
        probe(ClippingEngine(model, loss), torch.randn(5, D), torch.randn(5, D))
    assert_sum_of_single_examples(model, torch.randn(B, D), isolate=True)


def test_a_loss_that_vmap_has_no_rule_for_runs_in_a_loop() -> None:
    def branching_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        errors = (outputs - targets).square().sum(1)
        return errors * 2 if bool(errors.max() > 1) else errors

    torch.manual_seed(0)
    model, x, y = nn.Linear(D, D), torch.randn(B, D), torch.randn(B, D)
    engine = ClippingEngine(model, branching_loss, isolate=True)
    with engine.attached():
        got = engine.clipped_sum(x, y, clip=1e6)
    torch.testing.assert_close(got, naive(model, x, y, branching_loss).sum(0), rtol=1e-4, atol=1e-4)


class Positions(nn.Module):
    """A table of positions in a module of its own, given a number, the batch, or nothing."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(shape))

    def forward(self, given: Any = None) -> Tensor:
        if given is None:
            return self.table.exp()
        rows: Tensor = self.table[..., : given if isinstance(given, int) else given.shape[1], :]
        return rows


CONSTANTS: dict[str, Callable[[], nn.Module]] = {
    "by a number": lambda: Calls(
        lambda m, x: m.out(x + m.where(x.shape[1])), out=nn.Linear(D, D), where=Positions(2 * T, D)
    ),
    "by the batch": lambda: Calls(
        lambda m, x: m.out(x + m.where(x)), out=nn.Linear(D, D), where=Positions(1, 2 * T, D)
    ),
    "twice": lambda: Calls(
        lambda m, x: m.out(x + m.where(x)) * m.where(x), out=nn.Linear(D, D), where=Positions(1, 2 * T, D)
    ),
    "a temperature": lambda: Calls(
        lambda m, x: m.out(x) * m.scale(), out=nn.Linear(D, D), scale=Positions()
    ),
    "chosen by a mask": lambda: Calls(
        lambda m, x: m.out(x) + torch.where(x[..., :1] > 0, m.where(x), 0.0),
        out=nn.Linear(D, D), where=Positions(1, 2 * T, D),
    ),
    "chosen by a constant": lambda: Calls(
        lambda m, x: m.out(x) + m.where(x).masked_fill(torch.eye(T, D, dtype=torch.bool)[None], 1.0),
        out=nn.Linear(D, D), where=Positions(1, 2 * T, D),
    ),
    "a bias of attention": lambda: Calls(
        lambda m, x: F.scaled_dot_product_attention(
            *[m.mix(x)[:, None]] * 3, attn_mask=m.bias(torch.arange(T)).permute(1, 0)[None, None, :, :T]
        ),
        mix=nn.Linear(D, D), bias=nn.Embedding(T, T),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CONSTANTS)
def test_what_a_module_returns_as_the_same_for_all_examples_is_kept_apart(name: str) -> None:
    torch.manual_seed(0)
    assert_sum_of_single_examples(CONSTANTS[name](), torch.randn(2 * T, T, D))


class BatchMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(D))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).mean((0, 1))


def test_a_mean_over_the_batch_in_such_a_module_is_that_of_each_example() -> None:
    torch.manual_seed(0)
    model = Calls(lambda m, x: m.out(x) + m.mean(x), out=nn.Linear(D, D), mean=BatchMean())
    assert_sum_of_single_examples(model, torch.randn(B, T, D))


ELSEWHERE: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "second": lambda m, x: m.norm(m.out(x.transpose(0, 1))).transpose(0, 1),
    "third of four": lambda m, x: m.norm(m.out(x[:, None].permute(1, 2, 0, 3))).permute(2, 0, 1, 3)[:, :, 0],
    "second, changed in place": lambda m, x: m.norm(m.out(x.transpose(0, 1)).add_(1).mul_(2)).transpose(0, 1),
    "folded": lambda m, x: torch.tanh(m.norm(m.out(x.reshape(-1, D)))).view(x.shape),
    "folded, changed in place": lambda m, x: m.norm(m.out(x.reshape(-1, D)).add_(1)).view(x.shape).add_(x),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_layers_of_last_dimensions_take_the_batch_wherever_it_is(name: str) -> None:
    torch.manual_seed(0)
    model = Calls(ELSEWHERE[name], out=nn.Linear(D, D), norm=nn.LayerNorm(D))
    assert_sum_of_single_examples(model, torch.randn(2 * T, T, D))
    assert set(routes(model).values()) == {"tapped"}


@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True")
def test_a_transformer_with_the_batch_second_trains() -> None:
    torch.manual_seed(0)
    inner = nn.Transformer(D, 2, 1, 1, 16, dropout=0.0)
    model = Calls(
        lambda m, x: m.inner(x.transpose(0, 1), x.flip(1).transpose(0, 1)).transpose(0, 1), inner=inner
    )
    assert_sum_of_single_examples(model, torch.randn(B, T, D))


def test_positions_folded_before_examples_are_refused() -> None:
    def run(model: Any, x: Tensor) -> Tensor:
        flat: Tensor = model.out(x.transpose(0, 1).reshape(-1, D))
        return flat.view(x.shape[1], len(x), D).transpose(0, 1)

    model = Calls(run, out=nn.Linear(D, D))
    with pytest.raises(NotPrivate, match="positions first") as caught:
        probe(ClippingEngine(model, loss), torch.rand(5, T, D), torch.rand(5, T, D))
    assert "mixes examples" not in str(caught.value)


def test_rows_that_are_picked_by_a_mask_are_refused_also_where_it_shows_all_of_them() -> None:
    """As many rows for each example, by chance: on other data rows of one would count as another's."""

    def run(model: Any, x: Tensor) -> Tensor:
        shown = x[..., 0] > -100
        out = torch.zeros_like(x)
        out[shown] = model.out(x[shown])
        return out

    model = Calls(run, out=nn.Linear(D, D))
    with pytest.raises(Unsupported, match="not known to which example a row belongs"):
        probe(ClippingEngine(model, loss), torch.rand(5, T, D), torch.rand(5, T, D))
    assert_sum_of_single_examples(model, torch.randn(B, T, D), isolate=True)


def test_hooks_are_code_between_layers_and_leave_a_table_tapped() -> None:
    """`transformers` puts one on its table of words where gradient checkpoints are switched on: example by
    example there would be a table for each."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(WORDS, D, padding_idx=5), nn.Linear(D, 2))
    model[0].register_forward_hook(lambda _, __, out: out.requires_grad_(True))
    model[0].register_forward_hook(lambda _, __, out: out * 2)
    assert routes(model) == {"0": "tapped", "1": "tapped"}
    assert_sum_of_single_examples(model, torch.randint(0, WORDS, (B, T)))


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("norm", [parametrizations.spectral_norm, torch.nn.utils.spectral_norm])
def test_spectral_norms_are_refused_in_words_of_their_own(norm: Any, isolate: bool) -> None:
    model = nn.Sequential(norm(nn.Linear(D, D)), nn.Linear(D, D))
    with pytest.raises(Unsupported, match=r"spectral_norm takes a step.*weight_norm"):
        ClippingEngine(model, loss, isolate=isolate)
    if norm is parametrizations.spectral_norm:
        nn.utils.parametrize.remove_parametrizations(model[0], "weight")
    else:
        nn.utils.remove_spectral_norm(model[0])
    assert_sum_of_single_examples(model, torch.randn(B, D))


class Remembers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.before = nn.Linear(D, D), 0.0

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + self.before
        self.before = float(out.detach().mean())
        return out


@pytest.mark.parametrize("isolate", [False, True])
def test_a_model_that_keeps_a_state_is_told_so(isolate: bool) -> None:
    with pytest.raises(NotPrivate, match="another loss the second time") as caught:
        probe(ClippingEngine(Remembers(), loss, isolate=isolate), torch.rand(5, D), torch.rand(5, D))
    assert "mixes examples" not in str(caught.value)


def test_nested_tensors_are_refused_in_words_of_their_own() -> None:
    def run(model: Any, x: Tensor) -> Tensor:
        nested = torch.nested.as_nested_tensor(list(x), layout=torch.jagged)
        padded: Tensor = model.out(nested).to_padded_tensor(0.0)
        return padded

    model = Calls(run, out=nn.Linear(D, D))
    with pytest.raises(DiscreetError, match="nested tensor"):
        probe(ClippingEngine(model, loss), torch.rand(5, T, D), torch.rand(5, T, D))


class Checkpointed(nn.Module):
    """Computes the activations of some layers again in the backward pass, as `transformers` does."""

    def __init__(self, inner: nn.Module, *, reentrant: bool = False) -> None:
        super().__init__()
        self.first, self.inner, self.reentrant = nn.Linear(D, D), inner, reentrant

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, self.first(x), use_reentrant=self.reentrant)
        return out


@pytest.mark.parametrize("isolate", [False, True])
# A PReLU has parameters of its own, so that it runs example by example within the checkpoint.
@pytest.mark.parametrize("activation", [nn.Tanh, nn.PReLU])
def test_gradient_checkpoints_train_in_every_way(isolate: bool, activation: type[nn.Module]) -> None:
    """They compute again in the backward pass, when the tensors of vmap are gone."""
    torch.manual_seed(0)
    model = Checkpointed(nn.Sequential(nn.Linear(D, 6), activation(), nn.Linear(6, D)))
    engine = assert_sum_of_single_examples(model, torch.randn(B, D), isolate=isolate)
    assert bool(engine.recorder.looped) == isolate


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
@pytest.mark.parametrize("isolate", [False, True])
def test_reentrant_checkpoints_are_refused_in_words_of_their_own(isolate: bool) -> None:
    model = Checkpointed(nn.Linear(D, D), reentrant=True)
    with pytest.raises(Unsupported, match="use_reentrant=False") as caught:
        probe(ClippingEngine(model, loss, isolate=isolate), torch.rand(5, D), torch.rand(5, D))
    assert "synthetic" not in str(caught.value)
    model.reentrant = False
    assert_sum_of_single_examples(model, torch.randn(B, D), isolate=isolate)


def test_random_branches_that_hardly_move_the_loss_are_told_apart_from_mixing() -> None:
    """As ConvNeXt's: a branch that is scaled by a millionth is dropped at random, and its gradient is not
    small."""

    class Dropped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(D, D), 1e-9

        def forward(self, x: Tensor) -> Tensor:
            kept = torch.rand(len(x), 1) < 0.5 if self.training else torch.ones(len(x), 1)
            return x + self.scale * kept * self.layer(x)

    torch.manual_seed(0)
    probe(ClippingEngine(Dropped(), loss), torch.rand(5, D), torch.rand(5, D))


class Counts(nn.Module):
    """Has a parameter of its own, and returns a number that it reads off its input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(D))

    def forward(self, x: Tensor) -> tuple[Tensor, int]:
        return x * self.scale, int((x > 5).sum())


class Divides(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = Counts(), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        h, count = self.inner(x)
        result: Tensor = self.outer(h) / (1 + count)
        return result


def test_a_number_of_one_example_is_not_taken_for_that_of_others() -> None:
    engine = ClippingEngine(Divides(), loss)
    x = torch.rand(3, D)
    with engine.attached():
        engine.clipped_sum(x, torch.rand(3, D), clip=1.0)
        x[2] = 9
        with pytest.raises(Unsupported, match="differs between examples"):
            engine.clipped_sum(x, torch.rand(3, D), clip=1.0)
