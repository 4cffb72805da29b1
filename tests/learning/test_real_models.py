"""Models as people write them train unchanged: each equals a loop of single examples, and passes the
probe."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet import InvalidInput, NotPrivate, Public, Unsupported
from discreet.learning import Examples, Trainer
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.safety import made_up, probe
from discreet.sampling import Entropy

from .zoo import loss, naive

B, T, WIDTH, WORDS = 7, 6, 8, 11


class Block(nn.Module):
    """A block of nanoGPT, in short."""

    def __init__(self) -> None:
        super().__init__()
        self.ln, self.attn = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3 * WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.attn(self.ln(x)).chunk(3, -1)
        return self.mlp(x + F.scaled_dot_product_attention(q, k, v, is_causal=True))


class GPT(nn.Module):
    """Positions of shape [T] or [1, T], and a table that is the output layer too, as in nanoGPT and GPT-2."""

    def __init__(
        self,
        positions: Callable[[int], Tensor],
        combine: Callable[[Tensor, Tensor], Tensor],
        *,
        tied: bool = True,
    ) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = (
            nn.Embedding(WORDS, WIDTH),
            nn.Embedding(2 * T, WIDTH),
            nn.Dropout(0.0),
        )
        self.blocks, self.ln_f = nn.ModuleList([Block(), Block()]), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, WORDS, bias=False)
        if tied:
            self.head.weight = self.wte.weight
        self.positions, self.combine = positions, combine

    def forward(self, ids: Tensor) -> Tensor:
        x = self.combine(self.wte(ids), self.wpe(self.positions(ids.shape[1])))
        for block in self.blocks:
            x = block(self.drop(x))
        return self.head(self.ln_f(x))


def added_in_place(x: Tensor, positions: Tensor) -> Tensor:
    x = x * 1
    x += positions
    return x


class Normed(nn.Module):
    """What is made of positions goes through further layers before it meets the words."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.where, self.mix = (
            nn.Embedding(WORDS, WIDTH),
            nn.Embedding(T, WIDTH),
            nn.Linear(WIDTH, WIDTH),
        )
        self.norm, self.out = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2)

    def forward(self, ids: Tensor) -> Tensor:
        where = torch.tanh(self.mix(self.norm(self.where(torch.arange(T)))))
        return self.out(self.words(ids) * (1 + where) + where[None])


class Temperature(nn.Module):
    """A parameter without dimensions, as CLIP's logit_scale."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.out = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, 3)
        self.logit_scale = nn.Parameter(torch.tensor(0.3))

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.words(ids)) * self.logit_scale.exp()


class ClassToken(nn.Module):
    """A class token and a table of positions before torch's encoder: a small ViT."""

    def __init__(self, dropout: float = 0.0, **options: Any) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.token, self.where = (
            nn.Parameter(torch.randn(1, 1, WIDTH)),
            nn.Parameter(torch.randn(1, T + 1, WIDTH)),
        )
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=dropout, batch_first=True, **options)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, ids: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(ids), -1, -1), self.words(ids)], 1) + self.where
        return self.encoder(x)[:, 0]


class Listed(nn.Module):
    """A ParameterList, and parameters in a ParameterDict."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.scales = nn.ParameterList([torch.randn(WIDTH), torch.randn(())])
        self.named = nn.ParameterDict({"shift": torch.randn(WIDTH)})

    def forward(self, ids: Tensor) -> Tensor:
        return self.words(ids) * self.scales[0] * self.scales[1] + self.named["shift"]


class Cells(nn.Module):
    """An LSTMCell (or a GRUCell) in a loop."""

    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.words, self.cell = nn.Embedding(WORDS, WIDTH), kind(WIDTH, 4)

    def forward(self, ids: Tensor) -> Tensor:
        x, state = self.words(ids), None
        for t in range(ids.shape[1]):
            state = self.cell(x[:, t], state)
        return state[0] if isinstance(state, tuple) else state


class Padded(nn.Module):
    """A module of somebody's own with a table whose padding row stays, which is the output layer too."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.scale = nn.Embedding(WORDS, WIDTH, padding_idx=5), nn.Parameter(torch.randn(WIDTH))
        self.out = nn.Linear(WIDTH, WORDS, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.out(self.table(ids) * self.scale)


class FlatBags(nn.Module):
    """Bags of words as a flat list with offsets, of different lengths, some of them empty."""

    def __init__(self, mode: str = "mean", *, weighted: bool = False, named: bool = False) -> None:
        super().__init__()
        self.bag, self.out = nn.EmbeddingBag(WORDS, WIDTH, mode=mode), nn.Linear(WIDTH, 2)
        self.weighted, self.named = weighted, named

    def forward(self, ids: Tensor) -> Tensor:
        kept = ids % 3 > 0
        offsets = kept.sum(1).cumsum(0) - kept.sum(1)
        weights = (ids[kept] / WORDS) if self.weighted else None
        if self.named:
            return self.out(self.bag(input=ids[kept], offsets=offsets, per_sample_weights=weights))
        return self.out(self.bag(ids[kept], offsets, weights))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "positions [T]": lambda: GPT(torch.arange, lambda x, p: x + p),
    "positions [1, T]": lambda: GPT(lambda t: torch.arange(t)[None], lambda x, p: x + p.to(x.device)),
    "positions added in place": lambda: GPT(lambda t: torch.arange(t)[None], added_in_place),
    "positions expanded": lambda: GPT(
        torch.arange, lambda x, p: x + p.unsqueeze(0).expand(len(x), -1, -1), tied=False
    ),
    "positions with a dimension more": lambda: GPT(torch.arange, lambda x, p: p[None] + x, tied=False),
    "positions cut": lambda: GPT(lambda t: torch.arange(2 * T), lambda x, p: x + p[: x.shape[1]]),
    "positions through layers": Normed,
    "a temperature": Temperature,
    "class token": ClassToken,
    "class token, norm first": lambda: ClassToken(norm_first=True),
    "class token, dropout": lambda: ClassToken(dropout=0.1).eval(),
    "parameter list": Listed,
    "lstm cell": lambda: Cells(nn.LSTMCell),
    "gru cell": lambda: Cells(nn.GRUCell),
    "rnn cell": lambda: Cells(nn.RNNCell),
    "sparse table": lambda: nn.Sequential(nn.Embedding(WORDS, WIDTH, sparse=True), nn.Linear(WIDTH, 2)),
    "sum of a bag": lambda: nn.Sequential(nn.EmbeddingBag(WORDS, WIDTH, mode="sum"), nn.Linear(WIDTH, 2)),
    "mean of a bag with padding, sparse": lambda: nn.Sequential(
        nn.EmbeddingBag(WORDS, WIDTH, mode="mean", padding_idx=5, sparse=True), nn.Linear(WIDTH, 2)
    ),
    "largest of a bag": lambda: nn.Sequential(
        nn.EmbeddingBag(WORDS, WIDTH, mode="max", padding_idx=5), nn.Linear(WIDTH, 2)
    ),
    "flat bags": FlatBags,
    "flat bags, weighted": lambda: FlatBags("sum", weighted=True),
    "flat bags, named": lambda: FlatBags("sum", named=True),
    "padding and tied, in a module of its own": Padded,
}


@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("name", MODELS)
def test_the_clipped_sum_is_that_of_single_examples_at_every_batch_size(name: str, isolate: bool) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    ids = torch.randint(0, WORDS, (2 * T + 1, T))
    ids[:, 1] = 5
    y = torch.randn_like(model(ids)) * torch.logspace(-1, 1, len(ids)).view(-1, *[1] * (model(ids).dim() - 1))
    truth = naive(model, ids, y)
    clip = float(truth.norm(dim=1).median())
    clipped = truth * (clip / truth.norm(dim=1)).clamp(max=1).unsqueeze(1)
    engine = ClippingEngine(model, loss, isolate=isolate)
    with engine.attached():
        for size in (1, 2, T, T + 1, 2 * T, 2 * T + 1):
            got = engine.clipped_sum(ids[:size], y[:size], clip=clip)
            assert (got - clipped[:size].sum(0)).norm() <= 1e-4 * size * clip
        squares = engine.gradients(ids, y).squares.sum(1)
    assert (squares.sqrt() >= truth.norm(dim=1) * (1 - 1e-4)).all()


@pytest.mark.parametrize("name", MODELS)
def test_the_probe_accepts_it(name: str) -> None:
    model = MODELS[name]()
    ids = torch.zeros(1, T, dtype=torch.long)
    probe(ClippingEngine(model, loss), made_up(ids), made_up(model(ids).detach()))


class WithMask(nn.Module):
    """An encoder with a mask of padding as an input, as data sets of texts have it."""

    def __init__(self, *, own: bool = False) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 16, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.scale = nn.Parameter(torch.ones(WIDTH)) if own else None

    def forward(self, ids: Tensor, hidden: Tensor) -> Tensor:
        x = self.encoder(self.words(ids), src_key_padding_mask=hidden)
        x = x.masked_fill(hidden.unsqueeze(-1), 0).sum(1)
        return x if self.scale is None else x * self.scale


@pytest.mark.parametrize("own", [False, True])
def test_a_mask_of_padding_is_an_input(own: bool) -> None:
    model = WithMask(own=own)
    ids, y = torch.randint(0, WORDS, (B, T)), torch.randn(B, WIDTH)
    hidden = torch.arange(T) >= torch.randint(1, T + 1, (B, 1))
    rows = torch.stack(
        [naive(Fixed(model, hidden[i : i + 1]), ids[i : i + 1], y[i : i + 1])[0] for i in range(B)]
    )
    clip = float(rows.norm(dim=1).median())
    wanted = (rows * (clip / rows.norm(dim=1)).clamp(max=1).unsqueeze(1)).sum(0)
    engine = ClippingEngine(model, loss)
    with engine.attached():
        got = engine.clipped_sum((ids, hidden), y, clip=clip)
    assert (got - wanted).norm() <= 1e-4 * B * clip
    probe(engine, made_up((ids, hidden)), made_up(y))


class Weighted(nn.Module):
    """Attention that shows its weights, where a mask that hides everything makes a NaN."""

    def __init__(self) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(WIDTH, 2, batch_first=True)

    def forward(self, x: Tensor, hidden: Tensor) -> Tensor:
        return self.attend(x, x, x, key_padding_mask=hidden)[0].sum(1)


def test_made_up_masks_hide_something_and_not_everything() -> None:
    x, hidden = torch.zeros(1, T, WIDTH), torch.zeros(1, T, dtype=torch.bool)
    masks = made_up(hidden)
    assert masks.any(1).all()
    assert not masks.all(1).any()
    probe(ClippingEngine(Weighted(), loss), made_up((x, hidden)), torch.rand(5, WIDTH))


class Fixed(nn.Module):
    def __init__(self, inner: nn.Module, mask: Tensor) -> None:
        super().__init__()
        self.inner, self.mask = inner, mask

    def forward(self, ids: Tensor) -> Tensor:
        return self.inner(ids, self.mask)


class Outside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(self.layer(x), self.layer.weight)


class Mean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) - x.mean(0)


class Logarithm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.log(x - 2)


class Summed(nn.Module):
    """Positions used in a way that is not known: a refusal, not a wrong gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.where, self.layer = nn.Embedding(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + self.where(torch.arange(4)).cumsum(0)[-1]


@pytest.mark.parametrize(
    ("model", "error", "words"),
    [
        (Outside, NotPrivate, "although examples do not mix.*outside its layer"),
        (Mean, NotPrivate, "mixes examples"),
        (Logarithm, InvalidInput, "not finite"),
        (Summed, Unsupported, "cumsum"),
    ],
)
def test_refusals_say_what_is_wrong_and_nothing_else(
    model: type[nn.Module], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words) as caught:
        probe(ClippingEngine(model(), loss), torch.rand(5, 4), torch.rand(5, 4))
    assert ("mixes examples" in str(caught.value)) == (model is Mean)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_old_weight_norm_is_told_as_such_and_both_ways_out_work() -> None:
    """It computes its weight in a hook, from parameters that are no layer's."""
    torch.manual_seed(0)
    x, y = torch.randn(5, 4), torch.randn(5, 4)
    old, new = (
        nn.Sequential(norm(nn.Linear(4, 4)))
        for norm in (nn.utils.weight_norm, nn.utils.parametrizations.weight_norm)
    )
    with pytest.raises(NotPrivate, match=r"0: the old torch\.nn\.utils\.weight_norm") as caught:
        probe(ClippingEngine(old, loss), torch.rand(5, 4), torch.rand(5, 4))
    assert "mixes examples" not in str(caught.value)
    for model, isolate in ((old, True), (new, False)):
        engine = ClippingEngine(model, loss, isolate=isolate)
        probe(engine, torch.rand(5, 4), torch.rand(5, 4))
        with engine.attached():
            got = engine.clipped_sum(x, y, clip=1e6)
        torch.testing.assert_close(got, naive(model, x, y).sum(0), rtol=1e-4, atol=1e-4)


@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
def test_old_weight_norm_trains_example_by_example_and_its_copy_has_a_weight_of_its_own() -> None:
    """Torch does not copy the weight that its hook computed, which has a history."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)))
    public = Public(size=20)
    trainer = Trainer(model, loss, public=public, noise_multiplier=1.0, batch=10, steps=2, isolate=True)
    trained: Any = trainer(Examples(torch.randn(20, 4), torch.randn(20, 4), public), entropy=Entropy()).value
    assert not torch.equal(trained[0].weight_v, model[0].weight_v)
    assert not torch.equal(trained(torch.ones(1, 4)), model(torch.ones(1, 4)))


def test_a_model_that_cannot_be_copied_is_refused_when_the_trainer_is_made() -> None:
    model = nn.Sequential(nn.Linear(4, 4))
    model.lock = threading.Lock()
    with pytest.raises(Unsupported, match=r"cannot be copied.*lock"):
        Trainer(model, loss, public=Public(size=20), noise_multiplier=1.0, batch=10, steps=2)


def test_flat_bags_whose_lengths_agree_by_chance_are_no_constants() -> None:
    """The third of three examples is empty, so that the flat list is as long at both batch sizes."""
    torch.manual_seed(0)
    model = FlatBags()
    ids = torch.ones(7, T, dtype=torch.long)
    ids[2] = 0
    y = torch.randn(7, 2)
    engine = ClippingEngine(model, loss)
    with engine.attached():
        engine.decide((ids,))
        got = engine.clipped_sum(ids[3:], y[3:], clip=1e9)
    assert torch.allclose(got, naive(model, ids[3:], y[3:]).sum(0), atol=1e-4)


def _compiled_forward(model: nn.Module) -> nn.Module:
    model.forward = torch.compile(model.forward)
    return model


def _compiled_in_place(model: nn.Module) -> nn.Module:
    model.compile()
    return model


def _compiled_part(model: Any) -> nn.Module:
    model[0] = torch.compile(model[0])
    return model


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated:DeprecationWarning")
@pytest.mark.parametrize("compiled", [torch.compile, _compiled_forward, _compiled_in_place, _compiled_part])
def test_a_compiled_model_is_trained_as_it_is_written_and_compiles_nothing(
    compiled: Callable[..., Any],
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    x, y = torch.randn(9, 4), torch.randn(9, 2)
    truth = naive(model, x, y)
    model = compiled(model)
    engine = ClippingEngine(model, loss)
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with engine.attached():
        for size in range(1, 10):
            got = engine.clipped_sum(x[:size], y[:size], clip=1e9)
            assert torch.allclose(got, truth[:size].sum(0), atol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 0
    probe(ClippingEngine(model, loss), made_up(x), made_up(y))


class Tokens(nn.Module):
    """A class token and positions as parameters of its own, as a vision transformer has them."""

    def __init__(self, odd: bool = False) -> None:
        super().__init__()
        self.inside, self.odd = nn.Linear(4, 8), odd
        self.token, self.positions = (
            nn.Parameter(torch.randn(1, 1, 8)),
            nn.Parameter(torch.randn(1, T + 1, 8)),
        )
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.cat([self.token.expand(len(x), -1, -1), self.inside(x)], 1) + self.positions
        if self.odd:
            x = x * torch.cumsum(self.positions, 1)
        scores: Tensor = self.out(self.layers(x)[:, 0])
        return scores


@pytest.mark.parametrize("odd", [False, True])
def test_parameters_of_a_module_itself_are_copied_and_its_layers_tapped(odd: bool) -> None:
    """Where it does with them what is not known, all of it runs example by example."""
    torch.manual_seed(0)
    model, x, y = Tokens(odd), torch.randn(2 * T, T, 4), torch.randn(2 * T, 2)
    truth = naive(model, x, y)
    norms = truth.norm(dim=1)
    clip = float(norms.median())
    clipped = truth * (clip / norms).clamp(max=1).unsqueeze(1)
    engine = ClippingEngine(model, loss)
    names = list(dict(model.named_parameters()))
    with engine.attached():
        for size in (1, T, T + 1, 2 * T):
            got = engine.clipped_sum(x[:size], y[:size], clip=clip)
            assert (got - clipped[:size].sum(0)).norm() <= 1e-4 * size * clip
    assert engine.routes[""] == ("isolated" if odd else "shared")
    assert list(dict(model.named_parameters())) == names
    assert type(model.token) is nn.Parameter
    probe(ClippingEngine(model, loss), made_up(x), made_up(y))


class MixingTokens(Tokens):
    def forward(self, x: Tensor) -> Tensor:
        scores: Tensor = super().forward(x) - self.token.mean() * x.mean()
        return scores


def test_a_module_with_parameters_of_its_own_that_mixes_is_refused_or_kept_apart() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(7, T, 4), torch.randn(7, 2)
    model = MixingTokens()
    engine = ClippingEngine(model, loss)
    with engine.attached():
        engine.clipped_sum(x, y, clip=1.0)
    # example by example, where x.mean() is that of one example
    assert engine.routes[""] == "isolated"
