"""One person, one term: the coin is tossed for the person, and the norm that is clipped is that of all the
person's rows together."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from torch import Tensor, nn

from discreet import Bounds, Categories, InvalidInput, Public, PublicMismatch, Unit
from discreet import accounting as acc
from discreet.learning import SGD, Automatic, Examples, Flat, PerLayer, Tabular, Trainer
from discreet.learning.clipping.engine import ClippingEngine
from discreet.learning.training.clipped_sums import _grouped_by_size
from discreet.learning.training.data import People
from discreet.learning.training.pooling import built, owned, pooled
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import Memory

from .zoo import ZOO, B, loss, made, naive

pytestmark = [
    pytest.mark.filterwarnings("ignore:Using padding='same'"),
    pytest.mark.filterwarnings("ignore:LSTM with projections is not supported"),
]
COUNTS = torch.tensor([2, 1, B - 3])
PUBLIC = Public(size=6, unit=Unit("who"))
WHO = [*("ann",) * 9, "bob", "cem", "cem", *("dee",) * 3, "eve", *("fay",) * 4]  # six people, twenty rows


def sums(rows: Tensor, counts: Tensor, mean: bool) -> Tensor:
    parts = torch.split(rows, counts.tolist())
    return torch.stack([part.mean(0) if mean else part.sum(0) for part in parts])


@pytest.mark.parametrize("name", ZOO)
def test_a_persons_gradient_and_norm_are_those_of_the_naive_loop(name: str) -> None:
    model, x, y = made(name)
    examples = naive(model, x, y)
    engine = ClippingEngine(model, loss)
    for mean in (True, False):
        truth = sums(examples, COUNTS, mean)
        with engine.attached():
            found = pooled(engine, engine.gradients(x, y), owned(COUNTS, mean=mean))
            rows, norms = built(engine, found), found.squares.sum(1).sqrt()
            out = engine.buffer()
            with torch.no_grad():
                found.add(torch.tensor([[0.0], [1.0], [-2.0]]), engine.sums(out), engine.layers)
        scale = truth.norm(dim=1, keepdim=True).clamp(min=1e-6)
        assert ((rows - truth) / scale).abs().max() < 1e-5, mean
        assert (out - (truth[1] - 2 * truth[2])).norm() < 1e-4 * scale.max(), mean
        exact = truth.double().norm(dim=1)
        assert (norms >= exact * (1 - 1e-6)).all(), mean
        assert (norms <= exact * 1.001 + 1e-6).all(), mean


def test_a_persons_norm_is_bounded_in_the_same_way_whoever_else_is_there() -> None:
    """Four rows that almost cancel: bounds by ghost norms and by built gradients differ by much more than
    rounding, and which is taken must not go with the rows of others."""
    torch.manual_seed(0)
    x, y = torch.randn(1, 12).expand(11, -1), torch.tensor([[1.0], [-1.0]]).repeat(6, 12)[:11]
    engine = ClippingEngine(nn.Linear(12, 12), lambda outputs, targets: (outputs * targets).sum(1))
    bounds = []
    with engine.attached():
        for counts in ([4], [4, 7]):
            rows = sum(counts)
            gradients = engine.gradients(x[:rows], y[:rows])
            bounds.append(pooled(engine, gradients, owned(torch.tensor(counts), mean=True)).squares[0])
    assert torch.allclose(*bounds, rtol=1e-3, atol=0)
    groups = _grouped_by_size([np.arange(n) for n in (7, 3, 4, 1)], None)
    assert [counts.tolist() for _, counts in groups] == [[1], [3], [4, 7]]


def people_data(public: Public = PUBLIC, who: Any = None, without: str | None = None) -> Examples:
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(20, 5, generator=generator) * 3
    y = (torch.rand(20, generator=generator) > 0.5).long()
    who = WHO if who is None else who
    keep = [i for i, name in enumerate(who) if name != without]
    return Examples(x[keep], y[keep], public, people=[who[i] for i in keep])


def trainer(model: nn.Module, **changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "public": PUBLIC,
        "noise_multiplier": 1e-9,
        "clip": 0.5,
        "batch": 6,
        "steps": 1,
        "optimizer": SGD(lr=6.0),
    }
    return Trainer(model, nn.CrossEntropyLoss(), **(settings | changes))


def moved(made: Trainer, data: Examples, seed: int = 1) -> Tensor:
    """The clipped sum itself: lr is the divisor, and the noise next to nothing."""
    before = torch.cat([p.detach().flatten() for p in made.model.parameters()])
    after = made(data, entropy=SeededEntropy(seed)).value
    return before - torch.cat([p.detach().flatten() for p in after.parameters()])


@pytest.mark.parametrize("microbatch", [None, 1, 4])
@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_a_step_is_the_naive_sum_over_people(pooling: str, microbatch: int | None) -> None:
    model = nn.Linear(5, 2)
    data = people_data()
    rows = naive(model, *data.take(np.arange(20)), torch.nn.functional.cross_entropy)
    terms = sums(rows, torch.tensor([9, 1, 2, 3, 1, 4]), pooling == "mean")
    wanted = (terms * (0.5 / terms.norm(dim=1)).clamp(max=1).unsqueeze(1)).sum(0)
    got = moved(trainer(model, pooling=pooling, microbatch=microbatch), data)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("rule", [Flat(clip=0.5), PerLayer(clip=0.5), Automatic(clip=0.5)])
@pytest.mark.parametrize("pooling", ["mean", "sum"])
def test_removing_a_person_with_many_rows_moves_the_sum_by_at_most_the_clip(pooling: str, rule: Any) -> None:
    model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 2))
    made_ = trainer(model, pooling=pooling, clip=rule)
    change = (moved(made_, people_data()) - moved(made_, people_data(without="ann"))).norm()
    assert 0.1 < change <= 0.5 * (1 + 1e-4)


def test_clipping_rows_instead_of_people_would_be_noticed() -> None:
    """The mutant: the same data with a row as the unit.

    Nine rows of one person then move the sum by far more than the clip.
    """
    public = Public(size=6)
    made_ = trainer(nn.Linear(5, 2), public=public)
    x, y = people_data().take(np.arange(20))
    everyone, others = Examples(x, y, public), Examples(x[9:], y[9:], public)
    assert (moved(made_, everyone) - moved(made_, others)).norm() > 2 * 0.5


def test_the_coin_is_tossed_for_the_person() -> None:
    """Rate 1/2 on six people: in 200 steps all nine rows of one person are in, or none.

    Hoeffding for how often, false alarm 1e-9.
    """
    made_ = trainer(nn.Linear(5, 2), batch=3, steps=200, noise_multiplier=1.0)
    assert made_.event == acc.Gaussian(noise_multiplier=1.0).sampled(made_.schedule.rate).repeated(200)  # type: ignore[attr-defined]
    data = people_data()
    run = made_.start(data, entropy=SeededEntropy(4))
    taken, plain = [], data.take

    def watched(rows: Any) -> Any:
        taken[-1] += rows.tolist()
        return plain(rows)

    data.take = watched  # type: ignore[method-assign]
    for _ in range(200):
        taken.append([])
        run.step()
    assert all(len([r for r in rows if r < 9]) in (0, 9) for rows in taken)
    assert all(len(set(rows)) == len(rows) for rows in taken)
    often = sum(0 in rows for rows in taken)
    assert abs(often - 100) <= math.sqrt(200 * math.log(2e9) / 2)


def test_at_most_so_many_rows_count_and_they_are_drawn_uniformly() -> None:
    """Hoeffding for each of nine rows, 2 of 9 kept, false alarm 1e-9 for all of them."""
    people, entropy, runs = People(WHO), SeededEntropy(5), 3000
    seen = np.zeros(9)
    for _ in range(runs):
        kept = people.rows(0, 2, entropy)
        assert len(set(kept.tolist())) == 2
        seen[kept] += 1
    assert np.abs(seen / runs - 2 / 9).max() <= math.sqrt(math.log(18e9) / (2 * runs))
    assert sorted(people.rows(2, 2, entropy).tolist()) == [10, 11]
    # In an order of their own coins: that of the engine may go with the rows of others, and decides about the
    # rounding of sums before they are clipped.
    orders = [tuple(people.rows(2, most, entropy).tolist()) for most in (None, 2) for _ in range(200)]
    assert abs(orders.count((10, 11)) - 200) <= math.sqrt(400 * math.log(2e9) / 2)
    public = Public(size=6, unit=Unit("who", rows=2))
    made_ = trainer(nn.Linear(5, 2), public=public)
    data = people_data(public)
    run, sizes, plain = made_.start(data, entropy=SeededEntropy(1)), [], data.take
    data.take = lambda rows: sizes.append(len(rows)) or plain(rows)  # type: ignore[func-returns-value,method-assign]
    run.step()
    assert sum(sizes) == 2 + 1 + 2 + 2 + 1 + 2


def test_a_choice_of_rows_does_not_depend_on_other_people() -> None:
    """With and without others, the law of the kept rows is the same: uniform (above); here, that nobody
    else's rows can come in."""
    for ids in (["a"] * 5, ["b", *["a"] * 5, "c"]):
        people = People(ids)
        mine = {i for i, name in enumerate(ids) if name == "a"}
        person = next(p for p in range(len(people.counts)) if people.counts[p] == 5)
        for _ in range(20):
            assert set(people.rows(person, 3, SeededEntropy(1)).tolist()) < mine


def test_rows_of_nobody_take_no_part() -> None:
    people = People(["a", None, "b", None, "a"])
    assert people.counts.tolist() == [2, 1]
    assert sorted(people.rows(0, None, Entropy()).tolist()) == [0, 4]
    assert people.rows(1, None, Entropy()).tolist() == [2]
    assert People(np.array([1.0, np.nan, 1.0])).counts.tolist() == [2]
    unused = pa.DictionaryArray.from_arrays(pa.array([1, 1, None]), pa.array(["nobody", "a"]))
    assert People(unused).counts.tolist() == [2]
    assert People(pa.chunked_array([unused, unused])).counts.tolist() == [4]
    assert len(People([]).counts) == 0
    assert len(People([None]).counts) == 0


def test_a_person_with_one_bad_row_counts_as_zero_and_stops_nobody() -> None:
    data, made_ = people_data(), trainer(nn.Linear(5, 2))
    data._data[0][3, 1] = float("nan")  # one of ann's nine
    torch.testing.assert_close(
        moved(made_, data), moved(made_, people_data(without="ann")), rtol=1e-4, atol=1e-6
    )


def test_nobody_at_all_is_a_step_like_any_other() -> None:
    nobody = Examples(torch.zeros(0, 5), torch.zeros(0, dtype=torch.long), PUBLIC, people=[])
    got = moved(trainer(nn.Linear(5, 2), noise_multiplier=1.0), nobody)
    assert (got != 0).all()


def test_the_persons_column_of_a_table_is_read() -> None:
    schema = {"age": Bounds(0, 100), "rich": Categories(["no", "yes"])}
    public = Public(schema=schema, unit=Unit("id"), size=3)
    table = Memory(
        {"age": [1.0, 2.0, 3.0, 4.0], "rich": ["no"] * 4, "id": [7, 8, 7, None]}, public, batch_rows=2
    )
    examples = Tabular(features=("age",), target="rich").read(table)
    assert examples.size == 2
    made_ = Trainer(
        nn.Linear(1, 2),
        nn.CrossEntropyLoss(),
        public=public,
        noise_multiplier=1.0,
        batch=2,
        steps=2,
        columns=Tabular(features=("age",), target="rich"),
    )
    assert made_(table, entropy=Entropy()).private
    empty = Memory(
        pa.table(
            {
                "age": pa.array([], pa.float64()),
                "rich": pa.array([], pa.string()),
                "id": pa.array([], pa.int64()),
            }
        ),
        public,
    )
    assert Tabular(features=("age",), target="rich").read(empty).size == 0


def test_whose_rows_they_are_must_be_said_and_fit() -> None:
    x, y = torch.zeros(3, 5), torch.zeros(3, dtype=torch.long)
    with pytest.raises(InvalidInput, match="give the person of each row"):
        Examples(x, y, PUBLIC)
    with pytest.raises(InvalidInput, match="one entry for each row"):
        Examples(x, y, PUBLIC, people=["a", "b"])
    with pytest.raises(InvalidInput, match="the unit is a row"):
        Examples(x, y, Public(), people=["a", "b", "c"])
    with pytest.raises(InvalidInput, match="numbers or texts") as caught:
        Examples(x, y, PUBLIC, people=["a", 987_654, object()])
    assert "987654" not in str(caught.value)
    with pytest.raises(PublicMismatch, match="the mechanism was priced for"):
        trainer(nn.Linear(5, 2))(Examples(x, y, Public(size=6)), entropy=Entropy())
    listed = Examples.of(torch.utils.data.TensorDataset(x, y), PUBLIC, people=torch.tensor([1, 1, 2]))
    assert listed.size == 2
