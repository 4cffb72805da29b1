"""What a model's own code keeps or draws: nothing of private examples leaves with the model, and coins are
nobody's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

import discreet as dp
from discreet import NotPrivate
from discreet.learning import Trainer
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.training.data import Examples
from discreet.sampling import SeededEntropy
from discreet.tabular.rows import one_row_each

N = 60
PUBLIC = dp.Public(schema={}, unit=dp.rows(), size=N)


# Sizes of the batches that were written into a buffer.
WRITTEN: list[int] = []


class Keeps(nn.Module):
    """Remembers its last batch."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.layer, self.how, self.last, self.all = nn.Linear(4, 2), how, None, []
        self.register_buffer("seen", None)

    def forward(self, x: Tensor) -> Tensor:
        if self.how == "attribute":
            self.last = x.detach()
        elif self.how == "list":
            self.all.append(x.detach())
        elif len(x) > {"large batches": 30, "batches of training": 12, "buffer": 0}.get(self.how, N):
            WRITTEN.append(len(x))
            self.seen = x.detach().clone()
        elif self.how == "new buffer":
            self.register_buffer("fresh", x.detach().clone())
        return self.layer(x)


def data() -> Examples:
    torch.manual_seed(0)
    return Examples(torch.randn(N, 4), torch.randint(0, 2, (N,)), public=PUBLIC)


def trainer(model: nn.Module, **settings: Any) -> Trainer:
    return Trainer(
        model, nn.CrossEntropyLoss(), public=PUBLIC, epsilon=1, delta=1e-6, batch=30, steps=2, **settings
    )


@pytest.mark.parametrize("how", ["attribute", "list", "large batches"])
def test_what_a_model_kept_of_its_batches_does_not_leave_with_it(how: str) -> None:
    """Batches above the expected 30 are not among those that the probe tries."""
    WRITTEN.clear()
    run = trainer(Keeps(how)).start(data(), entropy=SeededEntropy(1))
    while not run.done:
        run.step()
        live: Any = run._working_model
        assert live.seen is None, "what one step wrote into a buffer does not reach the next"
    assert bool(WRITTEN) == (how == "large batches"), "a batch of this seed is larger than expected"
    model: Any = run.model
    assert model.last is None
    assert model.all == []
    assert model.seen is None
    assert list(model.state_dict()) == ["layer.weight", "layer.bias"]
    assert not torch.equal(model.layer.weight, run.trainer.model.layer.weight)  # type: ignore[union-attr,arg-type]


@pytest.mark.parametrize("how", ["buffer", "new buffer", "batches of training"])
def test_a_buffer_that_the_forward_pass_makes_is_refused(how: str) -> None:
    with pytest.raises(NotPrivate, match="buffer"):
        trainer(Keeps(how)).start(data(), entropy=SeededEntropy(1))


def test_dropout_in_training_is_drawn_from_secret_coins_and_leaves_the_caller_s_alone() -> None:
    model = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Dropout(0.5), nn.Linear(32, 2))
    sums, after = [], []
    for seed in (1, 2):
        run = trainer(model).start(data(), entropy=SeededEntropy(seed))
        seen: list[Tensor] = []
        add = run.summands.add

        def spied(members: Any, out: Any, add: Any = add, seen: list[Tensor] = seen) -> None:
            seen.append(torch.rand(3))
            add(members, out)

        run.summands.add = spied  # type: ignore[method-assign]
        torch.manual_seed(0)
        run.step()
        after.append(torch.rand(3))
        sums.append(seen[0])
    assert not torch.equal(sums[0], sums[1]), "the caller's seed does not decide what is dropped"
    torch.manual_seed(0)
    expected = torch.rand(3)
    assert torch.equal(after[0], expected), "how much was drawn does not show in the caller's generator"
    assert torch.equal(after[1], expected)


def test_all_nans_are_one_unit_as_in_sql() -> None:
    bits = np.array([0x7FF8000000000000 + i for i in range(50)], dtype=np.uint64)
    names = pa.array(np.concatenate([bits.view(np.float64), [-np.nan, 0.0, -0.0, 7.0]]))
    assert len(one_row_each([names], SeededEntropy(1))) == 3  # NaN, zero, seven
    examples = Examples(
        torch.zeros(len(names), 1),
        torch.zeros(len(names), dtype=torch.long),
        public=dp.Public(schema={}, unit=dp.Unit("who", rows=1), size=3),
        people=names,
    )
    assert examples.people is not None
    assert len(examples.people.names) == 3


def test_mixing_at_an_even_size_is_seen() -> None:
    from discreet.learning.probing.safety import probe

    class Mixes(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 2)

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x - x.mean(0) if len(x) % 2 == 0 else x)

    engine = ClippingEngine(Mixes(), nn.CrossEntropyLoss())
    with pytest.raises(NotPrivate, match="the gradient of an example"):
        probe(engine, torch.randn(5, 4), torch.randint(0, 2, (5,)))


def test_a_compiled_model_with_a_parameter_of_its_own_trains() -> None:
    from discreet.learning import Performance

    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.scale = nn.Linear(4, 2), nn.Parameter(torch.ones(4))

        def forward(self, x: Tensor) -> Tensor:
            return self.layer(x * self.scale)

    model: Any = torch.compile(Own(), backend="eager")
    run = trainer(model, performance=Performance(compiled=True)).start(data(), entropy=SeededEntropy(1))
    while not run.done:
        run.step()
    assert run.steps_taken == 2
