"""The clipped sum of one backward pass is that of the naive loop, for every layer; and no term is longer than
the clip."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from discreet import Unsupported
from discreet.learning import Automatic, Flat, PerLayer
from discreet.learning.clipping import layers as convolution
from discreet.learning.clipping import routes as plan
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.clipping.losses import CrossEntropy, per_example
from discreet.learning.clipping.norms import factors
from discreet.learning.probing.single_examples import pick

from .zoo import ZOO, B, loss, made, naive

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported"),
]
ISOLATED = {
    "somebody's own": {"1"},
    "prelu": {"1"},
    "bilinear": {"two"},
    "transposed convolution": {""},
    "weight normed": {""},
    "attention with bias_kv": {"inner"},
}


def rows_of(engine: ClippingEngine, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Each example's gradient as the engine would add it, and the engine's bound on its norm."""
    rows = []
    with engine.attached():
        found = engine.gradients(x, y)
        for i in range(B):
            out = engine.buffer()
            with torch.no_grad():
                found.add(torch.eye(B, dtype=out.dtype)[:, i : i + 1], engine.sums(out), engine.layers)
            rows.append(out)
    return torch.stack(rows), found.squares.sum(1).sqrt()


@pytest.mark.parametrize("name", ZOO)
def test_gradients_and_norms_are_those_of_the_naive_loop(name: str) -> None:
    model, x, y = made(name)
    truth = naive(model, x, y)
    rows, norms = rows_of(ClippingEngine(model, loss), x, y)
    scale = truth.norm(dim=1, keepdim=True).clamp(min=1e-6)
    assert ((rows - truth) / scale).abs().max() < 1e-5
    exact = truth.double().norm(dim=1)
    assert (norms >= exact * (1 - 1e-6)).all()
    assert (norms <= exact * 1.001 + 1e-9).all()


@pytest.mark.parametrize("name", ZOO)
def test_the_clipped_sum_is_that_of_the_naive_loop(name: str) -> None:
    model, x, y = made(name)
    truth = naive(model, x, y)
    norms = truth.norm(dim=1)
    clip = float(norms.median())
    wanted = (truth * (clip / norms).clamp(max=1).unsqueeze(1)).sum(0)
    engine = ClippingEngine(model, loss)
    with engine.attached():
        got = engine.clipped_sum(x, y, clip=clip)
        parts = engine.buffer()
        for i in range(0, B, 2):  # in microbatches
            engine.clipped_sum(x[i : i + 2], y[i : i + 2], clip=clip, into=parts)
    for found in (got, parts):
        assert (found - wanted).norm() < 1e-3 * clip  # the bound on the norm is up to 0.1% above it
    assert "forward" not in vars(model)
    assert all("forward" not in vars(module) for module in model.modules())


@pytest.mark.parametrize("name", ZOO)
def test_named_layers_take_the_book_keeping_path_and_only_they(name: str) -> None:
    routes = plan.routes(made(name)[0])
    assert {part for part, way in routes.items() if way in ("isolated", "shared")} == ISOLATED.get(
        name, set()
    )


def test_every_known_layer_is_in_the_zoo() -> None:
    seen = {type(module) for build, _ in ZOO.values() for module in build().modules()}
    assert set(plan.TAPPED_LAYERS) - seen == {nn.InstanceNorm3d}


@pytest.mark.parametrize("name", ["linear", "cnn with in-place relu", "transformer", "text classifier"])
def test_isolated_examples_give_the_same(name: str) -> None:
    model, x, y = made(name)
    truth = naive(model, x, y)
    rows, _ = rows_of(ClippingEngine(model, loss, isolate=True), x, y)
    assert ((rows - truth).norm(dim=1) / truth.norm(dim=1)).max() < 1e-5


@pytest.mark.parametrize(
    "rule", [Flat(clip=0.5), PerLayer(clip=0.5), Automatic(clip=0.5)], ids=["flat", "per layer", "automatic"]
)
@pytest.mark.parametrize(
    "name", ["cnn with in-place relu", "tied embedding", "transformer", "lstm", "somebody's own"]
)
def test_no_example_moves_the_sum_by_more_than_the_clip(name: str, rule: Flat | PerLayer | Automatic) -> None:
    model, x, y = made(name)
    engine = ClippingEngine(model, loss)
    with engine.attached():
        for i in range(B):
            one = engine.clipped_sum(x[i : i + 1], y[i : i + 1], clip=rule).double()
            assert one.norm() <= 0.5 * (1 + 1e-6)  # 1e-6 is for the rounding of the sum itself
            assert one.norm() >= 0.5 * 0.2 or i == 0


def test_per_layer_clipping_bounds_each_layer() -> None:
    model, x, y = made("cnn with in-place relu")
    engine = ClippingEngine(model, loss)
    share = 0.5 / 5**0.5
    with engine.attached():
        one = engine.clipped_sum(x[4:], y[4:], clip=PerLayer(clip=0.5))
    parts = engine.parts(one)
    layers = {name.split(".")[0] for name in parts}
    assert len(layers) == 5
    for layer in layers:
        norm = torch.cat([p.flatten() for name, p in parts.items() if name.startswith(layer + ".")]).norm()
        assert norm == pytest.approx(share, rel=1e-3)
        assert norm <= share * (1 + 1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
@pytest.mark.parametrize(
    "name", ["linear", "linear, many places", "conv2d", "layer norm", "lstm", "somebody's own", "attention"]
)
def test_a_gradient_that_is_not_finite_counts_as_zero(name: str, bad: float) -> None:
    model, x, y = made(name)
    engine = ClippingEngine(model, loss)
    keep = [0, 1, 3, 4]
    x[2] = bad
    with engine.attached():
        got = engine.clipped_sum(x, y, clip=1.0)
        wanted = engine.clipped_sum(x[keep], y[keep], clip=1.0)
    assert got.isfinite().all()
    if bad != 1e30:
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)
    assert (got - wanted).norm() <= 1.0 + 1e-4


def test_terms_that_cancel_do_not_hide_from_the_norm() -> None:
    """Ghost norms subtract large numbers: the bound must cover what rounding leaves, here all of the
    gradient."""
    from discreet.learning.clipping.taps import ProductTap, Target

    weight = nn.Parameter(torch.zeros(200, 100))
    x = torch.randn(3, 1, 100).repeat(1, 6, 1) * 1e3
    g = torch.randn(3, 6, 200) * 1e3
    g[:, 5] = -g[:, :5].sum(1)  # sums to zero up to rounding, exactly or not
    tap = ProductTap(Target(weight), x, g)
    bound = tap.square().sqrt()
    assert tap.pieces is None, "the ghost path is what is tested"
    exact = torch.einsum("btp,btk->bpk", g.double(), x.double()).flatten(1).norm(dim=1)
    assert (bound >= exact).all()
    factor = (1.0 / bound).float()
    scaled = (
        torch.einsum("btp,btk->bpk", g.double(), (x * factor.view(-1, 1, 1)).double()).flatten(1).norm(dim=1)
    )
    assert (scaled <= 1 + 1e-6).all()


def test_gradients_too_small_to_square_are_still_clipped() -> None:
    """1e-25 squared is zero in float32; times a large activation the gradient is not."""
    from discreet.learning.clipping.taps import Outer, Target

    tap = Outer(Target(nn.Parameter(torch.zeros(2, 2))), torch.full((1, 2), 1e18), torch.full((1, 2), 1e-22))
    assert tap.square().sqrt().item() >= 1e18 * 1e-22 * 2


@pytest.mark.parametrize("flushed", [False, True], ids=["subnormal", "flushed to zero"])
@pytest.mark.parametrize(("large", "small"), [(1e15, 1e-19), (1e-19, 1e15), (1e18, 3e-23), (1e-12, 1e-12)])
def test_ghost_norms_cover_what_underflows(large: float, small: float, flushed: bool) -> None:
    """1e-19 squared is lost where subnormal numbers are flushed to zero (`torch.set_flush_denormal`); times
    1e15 it is not."""
    from discreet.learning.clipping.layers import Convolved
    from discreet.learning.clipping.taps import Lookup, ProductTap, Target
    from discreet.learning.clipping.taps import Tied as TiedTap

    table, layer = Target(nn.Parameter(torch.zeros(200, 100))), nn.Conv2d(20, 200, 3, padding=1, bias=False)
    ids, looked_up = torch.tensor([[0, 1, 0]]), torch.full((1, 3, 100), small)
    x, g = torch.full((1, 3, 100), large), torch.full((1, 3, 200), small)
    taps = [
        ProductTap(table, x, g),
        Convolved(
            Target(layer.weight), layer, torch.full((1, 20, 2, 2), large), torch.full((1, 200, 2, 2), small)
        ),
        TiedTap(Lookup(table, ids, looked_up), ProductTap(table, x, g)),
    ]
    exact = [tap.built().double().norm() for tap in taps]
    for tap in taps:
        if isinstance(tap, Convolved):
            tap.pieces = None
    if flushed and not torch.set_flush_denormal(True):
        pytest.skip("this processor does not flush")
    try:
        bounds = [tap.square().sqrt() for tap in taps]
    finally:
        torch.set_flush_denormal(False)
    assert all(getattr(tap, "pieces", None) is None for tap in taps), "the ghost path is what is tested"
    for bound, true in zip(bounds, exact, strict=True):
        assert float(bound) >= float(true) * (1 - 1e-6)


def test_half_precision_norms_do_not_underflow() -> None:
    model = nn.Linear(6, 4)
    engine = ClippingEngine(model, lambda out, y: (out.float() * y).sum(1))
    x, y = torch.randn(B, 6), torch.full((B, 4), 1e-5)
    with engine.attached(), torch.autocast("cpu", dtype=torch.bfloat16):
        got = engine.clipped_sum(x, y, clip=1e-6)
        one = engine.clipped_sum(x[:1], y[:1], clip=1e-6)
    assert got.norm() > 0
    assert one.norm() <= 1e-6 * (1 + 1e-5)


STACKS = {
    "logistic": lambda: nn.Linear(6, 4),
    "no bias": lambda: nn.Sequential(nn.Linear(6, 5, bias=False), nn.ReLU(), nn.Linear(5, 4)),
    "deep": lambda: nn.Sequential(
        nn.Identity(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 4), nn.Tanh()
    ),
    "bends first": lambda: nn.Sequential(nn.Tanh(), nn.Linear(6, 4)),
}


@pytest.mark.parametrize(
    "frozen", [None, 0, -1], ids=["all learn", "first weight frozen", "last bias frozen"]
)
@pytest.mark.parametrize("name", STACKS)
def test_a_plain_stack_has_the_gradients_of_the_naive_loop(name: str, frozen: int | None) -> None:
    torch.manual_seed(3)
    model, x, y = STACKS[name](), torch.randn(B, 6) * 3, torch.randint(0, 4, (B,))
    if frozen is not None:
        list(model.parameters())[frozen].requires_grad_(False)
    kept = x.clone()
    rows, norms = rows_of(ClippingEngine(model, nn.CrossEntropyLoss()), x, y)
    truth = naive(model, x, y, lambda out, y: nn.functional.cross_entropy(out, y, reduction="none"))
    assert torch.equal(x, kept), "the batch is not overwritten"
    assert ((rows - truth).norm(dim=1) / truth.norm(dim=1)).max() < 1e-5
    assert (norms >= truth.double().norm(dim=1) * (1 - 1e-6)).all()
    assert (norms <= truth.double().norm(dim=1) * 1.001).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), 1e30])
def test_a_plain_stack_leaves_out_what_is_not_finite(bad: float) -> None:
    model, x, y = STACKS["deep"](), torch.randn(B, 6), torch.randint(0, 4, (B,))
    engine, keep = ClippingEngine(model, nn.CrossEntropyLoss()), [0, 1, 3, 4]
    x[2] = bad
    with engine.attached():
        got, wanted = engine.clipped_sum(x, y, clip=1.0), engine.clipped_sum(x[keep], y[keep], clip=1.0)
    assert got.isfinite().all()
    assert (got - wanted).norm() <= 1.0 + 1e-4


def test_labels_that_are_ignored_have_no_gradient_and_labels_out_of_range_are_an_error() -> None:
    model, x, y = nn.Linear(6, 4), torch.randn(B, 6), torch.randint(0, 4, (B,))
    engine, some = ClippingEngine(model, nn.CrossEntropyLoss()), [0, 1, 3, 4]
    with engine.attached():
        ignored = y.clone()
        ignored[2] = -100
        got = engine.clipped_sum(x, ignored, clip=1.0)
        torch.testing.assert_close(got, engine.clipped_sum(x[some], y[some], clip=1.0))
        with pytest.raises((RuntimeError, IndexError)):
            engine.clipped_sum(x, y + 4, clip=1.0)


def test_the_closed_gradient_of_cross_entropy_is_that_of_autograd() -> None:
    from discreet.learning.clipping.losses import CrossEntropy, per_example

    loss_fn, y = per_example(nn.CrossEntropyLoss()), torch.randint(0, 10, (40,))
    assert isinstance(loss_fn, CrossEntropy)
    out = (torch.randn(40, 10) * 20).requires_grad_()
    (wanted,) = torch.autograd.grad(loss_fn(out, y).sum(), out)
    got = loss_fn.gradient(out, y)
    assert got is not None
    torch.testing.assert_close(got, wanted, rtol=1e-5, atol=1e-6)


def test_a_large_batch_in_parts_has_the_sum_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    from discreet.learning.clipping import engine as module

    model, x, y = made("transformer")
    engine = ClippingEngine(model, loss)
    x, y = x.repeat(8, *[1] * (x.dim() - 1)), y.repeat(8, *[1] * (y.dim() - 1))
    with engine.attached():
        whole = engine.clipped_sum(x, y, clip=1.0)
        monkeypatch.setattr(module, "ENTRIES", 1)
        monkeypatch.setattr(module, "FEWEST", 7)
        sizes = []
        plain = engine._add_part
        monkeypatch.setattr(
            engine, "_add_part", lambda x, *rest, **named: sizes.append(len(x)) or plain(x, *rest, **named)
        )
        parts = engine.clipped_sum(x, y, clip=1.0)
    assert sizes == [7] * 5 + [5]
    torch.testing.assert_close(parts, whole, rtol=1e-4, atol=1e-5)


FEW_PATCHES = {
    "1d, circular": lambda: nn.Conv1d(9, 24, 3, padding=1, padding_mode="circular", bias=False),
    "2d": lambda: nn.Conv2d(6, 40, 3, padding=1),
    "2d, stride and dilation": lambda: nn.Conv2d(6, 40, 2, stride=2, dilation=2, padding=(1, 2)),
    "2d, same": lambda: nn.Conv2d(6, 40, (3, 2), padding="same"),
    "3d": lambda: nn.Conv3d(4, 64, 2, padding=1, stride=2),
}


@pytest.mark.parametrize("name", FEW_PATCHES)
@pytest.mark.parametrize("scale", [1.0, 1e-12, 1e9, float("nan")])
def test_large_convolutions_over_few_places_have_the_sum_of_the_naive_loop(
    name: str, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Patches are multiplied right into the sum; one example may be huge, tiny or not a number."""
    from discreet.learning.clipping import layers as convolution

    monkeypatch.setattr(convolution, "LARGE_WEIGHT", 1)
    monkeypatch.setattr(convolution.Convolved, "_build_is_cheaper", lambda _: False)
    torch.manual_seed(0)
    layer = FEW_PATCHES[name]()
    dims = layer.weight.dim() - 2
    x, y = torch.randn(3, layer.in_channels, *[3 if dims == 1 else 2] * dims), torch.randn(3, 4)
    x[1] *= scale
    model = nn.Sequential(layer, nn.Flatten(), nn.Tanh(), nn.LazyLinear(4))
    model(x)
    calls: list[object] = []
    patches = convolution.Convolved._patches
    monkeypatch.setattr(convolution.Convolved, "_patches", lambda tap: calls.append(tap) or patches(tap))
    engine = ClippingEngine(model, loss)
    terms = torch.stack([torch.zeros(engine.size)] * 3)
    for i in range(3):
        total = loss(model(x[i : i + 1]), y[i : i + 1]).sum()
        found = torch.cat([part.flatten() for part in torch.autograd.grad(total, list(model.parameters()))])
        terms[i] = found / max(1.0, float(found.double().norm()) / 0.1) if found.isfinite().all() else 0
    with engine.attached():
        whole = engine.clipped_sum(x, y, clip=0.1)
        one = engine.clipped_sum(x[1:2], y[1:2], clip=0.1)
    assert calls
    assert float(one.double().norm()) <= 0.1
    torch.testing.assert_close(whole, terms.sum(0), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("p", "k", "batch"), [(300, 100, 3), (512, 128, 3), (512, 128, 11), (1024, 512, 2)])
def test_norms_of_long_gradients_are_tight(p: int, k: int, batch: int) -> None:
    """Built all at once, or a few at a time where they divide evenly."""
    from discreet.learning.clipping.taps import ProductTap, Target

    tap = ProductTap(
        Target(nn.Parameter(torch.zeros(p, k))), torch.randn(batch, 400, k), torch.randn(batch, 400, p)
    )
    bound = tap.square().sqrt()
    assert tap.pieces is not None, "the built path is what is tested"
    every = torch.einsum("btp,btk->bpk", tap.g.double(), tap.x.double())
    torch.testing.assert_close(tap.pieces.built().double(), every.flatten(1), rtol=1e-4, atol=1e-3)
    exact = every.flatten(1).norm(dim=1)
    assert (bound >= exact * (1 - 1e-6)).all()  # exact is of the gradient before it was rounded
    assert (bound <= exact * (1 + 3e-5)).all()


@pytest.mark.parametrize("kind", [nn.RNN, nn.LSTM, nn.GRU])
@pytest.mark.parametrize("learns", ["weight_hh", "weight_ih", "bias_ih", "bias_hh"])
def test_each_part_of_a_recurrent_layer_can_learn_alone(kind: type[nn.RNN], learns: str) -> None:
    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = kind(4, 5, batch_first=True)

        def forward(self, x: Tensor) -> Tensor:
            return self.inner(x)[0][:, -1]

    model = Last()
    for name, p in model.inner.named_parameters():
        p.requires_grad_(name.startswith(learns))
    engine, x, y = (
        ClippingEngine(model, nn.CrossEntropyLoss()),
        torch.randn(6, 7, 4),
        torch.randint(0, 5, (6,)),
    )
    with engine.attached():
        got = engine.clipped_sum(x, y, clip=1e6)
    nn.functional.cross_entropy(model(x), y, reduction="sum").backward()
    true = torch.cat([p.grad.flatten() for p in model.parameters() if p.requires_grad])
    torch.testing.assert_close(got, true, rtol=1e-4, atol=1e-5)
    assert got.norm() > 0.01


def test_a_forward_pass_that_somebody_replaced_is_the_one_that_is_trained_and_stays() -> None:
    model, x, y = nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2)), torch.randn(B, 3), torch.randn(B, 2)
    first = model[0]
    own = first.forward = lambda x: torch.nn.functional.linear(x, first.weight).sin()  # type: ignore[method-assign]
    truth = naive(model, x, y)
    engine = ClippingEngine(model, loss)
    assert engine.routes == {"0": "isolated", "1": "tapped"}
    with engine.attached():
        got = engine.clipped_sum(x, y, clip=1e6)
    torch.testing.assert_close(got, truth.sum(0), rtol=1e-4, atol=1e-5)
    assert first.forward is own


def test_what_runs_example_by_example_may_return_more_than_tensors() -> None:
    class Talkative(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale = nn.Parameter(torch.randn(3))

        def forward(self, x: Tensor) -> dict[str, object]:
            return {"out": x * self.scale, "none": None, "name": "talkative", "pair": (x.sum(-1), 3)}

    class Outer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = Talkative()

        def forward(self, x: Tensor) -> Tensor:
            found = self.inner(x)
            assert found["none"] is None
            assert found["name"] == "talkative"
            assert found["pair"][1] == 3
            out: Tensor = found["out"] + found["pair"][0].unsqueeze(-1)
            return out

    model, x, y = Outer(), torch.randn(B, 3), torch.randn(B, 3)
    engine = ClippingEngine(model, loss)
    with engine.attached():
        got = engine.clipped_sum(x, y, clip=1e6)
    torch.testing.assert_close(got, naive(model, x, y).sum(0), rtol=1e-4, atol=1e-5)


class ChangesItsInput(nn.Module):
    """Torch's backward pass refuses this, and so must what is run by hand."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.first, self.inner = nn.Linear(8, 8), inner

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        out: Tensor = self.inner(x)
        return out + x.mul_(2)


@pytest.mark.parametrize(
    "inner",
    [
        nn.Linear(8, 8),
        nn.LayerNorm(8),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True),
        nn.Sequential(nn.Conv1d(5, 5, 3, padding=1)),
    ],
    ids=["linear", "norm", "encoder", "encoder with dropout", "convolution"],
)
def test_a_tensor_that_is_changed_in_place_after_a_layer_had_it_is_refused(inner: nn.Module) -> None:
    model, x, y = ChangesItsInput(inner), torch.randn(B, 5, 8), torch.randn(B, 5, 8)
    with pytest.raises(RuntimeError, match="inplace"):
        naive(model, x, y)
    engine = ClippingEngine(model, loss)
    with engine.attached(), pytest.raises((RuntimeError, Unsupported), match=r"changed in place|inplace"):
        engine.clipped_sum(x, y, clip=1.0)


def test_the_clipped_sum_of_an_empty_batch_is_zero() -> None:
    for model, isolate in (
        (nn.Linear(3, 2), False),
        (nn.Linear(3, 2), True),
        (nn.Sequential(nn.PReLU()), False),
    ):
        engine = ClippingEngine(model, nn.CrossEntropyLoss(), isolate=isolate)
        with engine.attached():
            got = engine.clipped_sum(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), clip=1.0)
        assert torch.equal(got, engine.buffer())


class Packed(nn.Module):
    """Runs a recurrent layer on packed sequences: their longest decides how many steps there are."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        states, _ = nn.utils.rnn.pad_packed_sequence(self.inner(packed)[0], batch_first=True)
        return states[torch.arange(len(x)), lengths - 1]


class CutOff(nn.Module):
    """Cuts texts off behind the longest of them, and adds up what a layer makes of each one's own tokens."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        longest = int(lengths.max())
        is_own = torch.arange(longest) < lengths.unsqueeze(1)
        x = x[:, :longest]
        if isinstance(self.inner, nn.Conv1d):
            outputs = self.inner(x.transpose(1, 2)).transpose(1, 2)
        else:
            outputs = self.inner(x)[0] if isinstance(self.inner, nn.RNN) else self.inner(x)
        return torch.where(is_own.unsqueeze(2), outputs, 0).sum(1)


def growing() -> nn.RNN:
    """A recurrent layer whose states grow fiftyfold with each step, beyond floats within a long text."""
    layer = nn.RNN(16, 16, nonlinearity="relu", batch_first=True)
    layer.weight_hh_l0.data.copy_(50 * torch.eye(16))
    return layer


def bounds_of(model: nn.Module, criterion: Any, inputs: Any, targets: Tensor, count: int) -> Tensor:
    """Bounds on the norms of the first examples, in a batch of so many."""
    engine = ClippingEngine(model, criterion)
    with engine.attached():
        engine.gradients(*pick((inputs, targets), torch.arange(2)))
        batch = pick((inputs, targets), torch.arange(count))
        return engine.gradients(*batch, by_layer=False, sums_only=True).squares[:2].sqrt()


def weighted(outputs: Tensor, y: Tensor) -> Tensor:
    return outputs.flatten(1).sum(1) * y


def test_bounds_on_norms_do_not_depend_on_the_rest_of_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ghost norms and built gradients differ by up to a per cent, beyond rounding: which of them is taken must
    not change with one example more."""
    torch.manual_seed(0)
    # Between two and three examples what is built would be too large, were it for the batch that came.
    monkeypatch.setattr(convolution, "FRESH_FROM", 2 * 64 * 64 * 9)
    images = nn.Conv2d(64, 64, 3, padding=1), weighted, torch.randn(3, 64, 8, 8), torch.ones(3)
    # The third label is an ignored one.
    labels = nn.Linear(4096, 3), nn.CrossEntropyLoss(), torch.randn(3, 4096), torch.tensor([0, 1, -100])
    # The third text is longer.
    models = [Packed(nn.LSTM(16, 16, batch_first=True)), Packed(growing()), CutOff(growing())]
    models += [CutOff(nn.Linear(16, 16)), CutOff(nn.Conv1d(16, 16, 1))]
    data = torch.randn(3, 40, 16), torch.tensor([5, 5, 40])
    texts = [(model, weighted, data, torch.ones(3)) for model in models]
    for model, criterion, inputs, targets in (images, labels, *texts):
        fewer, more = (bounds_of(model, criterion, inputs, targets, count) for count in (2, 3))
        assert fewer.isfinite().all()
        assert torch.allclose(fewer, more, rtol=1e-6, atol=0)


def test_an_ignored_label_has_no_gradient_in_closed_form() -> None:
    outputs, labels = torch.randn(4, 3, requires_grad=True), torch.tensor([0, 2, 1, 2])
    for ignored in (-100, 2):
        targets = labels.masked_fill(labels == 2, ignored)
        closed = per_example(nn.CrossEntropyLoss(ignore_index=ignored))
        assert isinstance(closed, CrossEntropy)
        (wanted,) = torch.autograd.grad(closed(outputs, targets).sum(), outputs)
        got = closed.gradient(outputs.detach(), targets)
        assert got is not None
        assert torch.allclose(got, wanted, atol=1e-6)


def test_no_factor_is_rounded_up_among_the_smallest_floats() -> None:
    squared = torch.tensor([[1e39**2], [1.3e39**2], [1.0]], dtype=torch.float64)
    for clip in (1.0, 1e-2, 1e-6):
        weights, keep = factors(Flat(clip=clip), squared)
        assert keep is None
        assert (weights.double() * squared.sqrt() <= clip).all()


def test_a_gradient_of_zeros_stays_zero_under_a_tiny_stability() -> None:
    # Infinity times zero would be NaN, and with it the whole sum.
    weights, keep = factors(Automatic(clip=1.0, stability=1e-40), torch.zeros(1, 1, dtype=torch.float64))
    assert keep is None
    assert (weights * torch.zeros(1, 1)).tolist() == [[0.0]]
