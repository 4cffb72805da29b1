"""Models that somebody wrote to be accepted although one example reaches others' gradients, or the price of a
step is more than the clip; each was accepted once, or refused for a reason that was not the true one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from discreet import DiscreetError, InvalidInput, NotPrivate, Public, Unsupported
from discreet.learning import Trainer
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.probing.safety import Medians, probe

from .zoo import loss

D = 6


class Calls(nn.Module):
    """Two layers, with a function as forward pass."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.run, self.layer, self.out = run, nn.Linear(D, D), nn.Linear(D, D)

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def probe_of(model: nn.Module, *, isolate: bool = False) -> None:
    torch.manual_seed(0)
    probe(ClippingEngine(model, loss, isolate=isolate), torch.rand(5, D), torch.rand(5, D))


def _dropped_by_function(x: Tensor) -> Tensor:
    return F.dropout(x, 0.3)


def _dropped_by_rand(x: Tensor) -> Tensor:
    return x * (torch.rand(len(x), 1) < 0.7)


def _dropped_in_place(x: Tensor) -> Tensor:
    return x * x.new_empty(len(x), 1).bernoulli_(0.7)


def _noised(x: Tensor) -> Tensor:
    return x + 0.1 * torch.randn_like(x)


SOURCES = [_dropped_by_function, _dropped_by_rand, _dropped_in_place, _noised]


@pytest.mark.parametrize("source", SOURCES)
def test_what_goes_with_the_size_of_the_batch_in_training_alone_is_seen_in_random_models(source: Any) -> None:
    """Such models were compared in evaluation mode, where nothing of it is to be seen."""

    def by_size(model: Any, x: Tensor) -> Tensor:
        h: Tensor = model.out(source(model.layer(x)) if model.training else model.layer(x))
        return h * len(x) if model.training else h

    def by_position(model: Any, x: Tensor) -> Tensor:
        h: Tensor = model.out(source(model.layer(x)) if model.training else model.layer(x))
        return h * (1.0 + torch.arange(len(x))).unsqueeze(1) if model.training else h

    for run in (by_size, by_position):
        with pytest.raises(NotPrivate, match="not that of the same example alone"):
            probe_of(Calls(run))
    probe_of(Calls(lambda m, x: m.out(source(m.layer(x)) if m.training else m.layer(x))))


def test_weights_used_outside_their_layer_in_training_alone_are_seen_in_random_models() -> None:
    def run(model: Any, x: Tensor) -> Tensor:
        h: Tensor = F.linear(x, model.out.weight) if model.training else model.layer(x)
        return model.out(F.dropout(h, 0.3, model.training)) + model.layer(x)

    with pytest.raises(NotPrivate, match="outside its layer"):
        probe_of(Calls(run))


def test_medians_are_those_of_what_is_drawn_and_no_number_is_drawn() -> None:
    state = torch.default_generator.get_state()
    x = torch.linspace(0, 1, 4)
    with Medians():
        assert torch.equal(F.dropout(x, 0.9), x)
        assert torch.equal(torch.rand(2, 3), torch.full((2, 3), 0.5))
        assert torch.equal(torch.randn((2,)), torch.zeros(2))
        assert torch.equal(torch.rand_like(x), torch.full((4,), 0.5))
        assert torch.equal(torch.randn_like(x), torch.zeros(4))
        assert torch.equal(torch.bernoulli(x), (x >= 0.5).float())
        assert torch.equal(torch.bernoulli(x, p=0.7), torch.ones(4))
        assert torch.equal(x.bernoulli(p=0.3), torch.zeros(4))
        assert torch.equal(x.clone().bernoulli_(0.7), torch.ones(4))
        assert torch.equal(x.clone().bernoulli_(x), (x >= 0.5).float())
        assert torch.equal(x.clone().uniform_(1, 3), torch.full((4,), 2.0))
        assert torch.equal(x.clone().uniform_(1, to=3), torch.full((4,), 2.0))
        assert torch.equal(x.clone().uniform_(**{"from": 1.0, "to": 3.0}), torch.full((4,), 2.0))
        assert torch.equal(x.clone().normal_(5, 2), torch.full((4,), 5.0))
        q = torch.ones(1, 2, 3)
        assert torch.allclose(F.scaled_dot_product_attention(q, q, q, dropout_p=0.5), q)
    assert torch.equal(state, torch.default_generator.get_state())


@pytest.mark.parametrize(
    "looks",
    [
        lambda x: torch.isinf(x).any(),
        lambda x: x.abs().max() > 1e6,
        lambda x: (x < -0.5).any(),
        lambda x: (x == 0).all(1).any(),
        lambda x: torch.isnan(x).any(),
    ],
)
def test_code_that_looks_for_a_value_in_the_batch_and_treats_all_examples_by_it_is_refused(
    looks: Any,
) -> None:
    """As models do that clamp, or scale down, all of a batch where one number in it is too large."""
    with pytest.raises(NotPrivate, match="changed the gradient or the loss of another"):
        probe_of(Calls(lambda m, x: m.out(m.layer(x / 2 if looks(x) else x))))


def test_hooks_on_gradients_of_parameters_are_refused_by_name() -> None:
    for add in ("register_hook", "register_post_accumulate_grad_hook"):
        model = nn.Sequential(nn.Linear(D, D))
        getattr(model[0].weight, add)(lambda gradient: None)
        with pytest.raises(Unsupported, match=r"0\.weight has a hook on its gradient"):
            ClippingEngine(model, loss)


class KeepsMean(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mean = nn.Linear(D, D), torch.zeros(D)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x) + self.mean
        self.mean = 0.1 * x.mean(0).detach()
        return out


@pytest.mark.parametrize("isolate", [False, True])
def test_a_tensor_that_is_kept_of_an_example_is_told_as_a_state(isolate: bool) -> None:
    with pytest.raises(NotPrivate, match="keeps something"):
        probe_of(KeepsMean(), isolate=isolate)


def test_the_function_batch_norm_and_half_precision_are_told_as_such() -> None:
    with pytest.raises(NotPrivate, match="batch_norm, as a function"):
        probe_of(Calls(lambda m, x: m.out(F.batch_norm(m.layer(x), None, None, training=True))))

    def outside(model: Any, x: Tensor) -> Tensor:
        h = F.linear(model.layer(x).bfloat16(), model.out.weight.bfloat16())
        return h.float()

    with pytest.raises(DiscreetError, match="outside its layer") as caught:
        probe_of(Calls(outside))
    assert "mixes examples" not in str(caught.value)


@pytest.mark.parametrize("run", [lambda m, x: m.out(x).log() - 9, lambda m, x: m.out(x[:, :2])])
def test_made_up_examples_of_ones_own_are_not_recommended_to_whoever_gave_them(run: Any) -> None:
    """One has a loss that is not finite, the other fails."""
    model, examples = Calls(run), (torch.rand(5, D), torch.rand(5, D))
    with pytest.raises(InvalidInput, match=r"give your own with synthetic="):
        probe(ClippingEngine(model, loss), *examples)
    with pytest.raises(InvalidInput, match=r"those of synthetic=: give values") as caught:
        Trainer(
            model, loss, public=Public(size=9), noise_multiplier=1.0, batch=3, steps=1, synthetic=examples
        )
    assert "give your own" not in str(caught.value)


class KeepsNumbers(nn.Module):
    """Runs in a loop with `isolate`, as vmap has no values, and keeps one for the next example."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.largest = nn.Linear(D, D), 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.largest = max(self.largest, float(x.max())) if bool((x == x).all()) else self.largest
        return self.layer(x / max(1.0, self.largest))


@pytest.mark.parametrize("isolate", [False, True])
def test_a_number_that_is_kept_is_found_and_nobody_is_told_to_do_what_was_done(isolate: bool) -> None:
    with pytest.raises(NotPrivate, match="changing one made-up example changed") as caught:
        probe_of(KeepsNumbers(), isolate=isolate)
    assert not (isolate and "isolate=True" in str(caught.value))
