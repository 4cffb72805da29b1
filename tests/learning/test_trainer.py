"""What is charged is what is done: the price is known first, steps are counted, noise is always added,
nothing private is shown."""

from __future__ import annotations

import dataclasses
import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from torch import Tensor, nn

from discreet import (
    Bounds,
    Categories,
    Halted,
    InvalidInput,
    NotPrivate,
    PrivateFact,
    Public,
    PublicMismatch,
    Unit,
    Unsupported,
    WrongRelation,
)
from discreet import accounting as acc
from discreet._errors import ReleaseFailed
from discreet.learning import (
    SGD,
    Adam,
    Adaptive,
    Augment,
    BallsInBins,
    Examples,
    Performance,
    Poisson,
    Progress,
    Tabular,
    Trainer,
    warmup_cosine,
)
from discreet.learning.training.schedules import WithoutReplacement
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import Memory

from .zoo import naive

SIZE = 60
PUBLIC = Public(size=SIZE)


def examples(public: Public = PUBLIC, rows: int = SIZE) -> Examples:
    x = torch.randn(rows, 5)
    return Examples(x, (x.sum(1) > 0).long(), public)


def trainer(**changes: Any) -> Trainer:
    settings: dict[str, Any] = {
        "public": PUBLIC,
        "noise_multiplier": 1.0,
        "clip": 0.5,
        "batch": 20,
        "steps": 4,
        "optimizer": SGD(lr=0.3),
    }
    return Trainer(
        changes.pop("model", nn.Linear(5, 2)),
        changes.pop("loss", nn.CrossEntropyLoss()),
        **(settings | changes),
    )


def weights(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def test_the_price_is_known_before_any_data_is_read() -> None:
    assert trainer().event == acc.Gaussian(noise_multiplier=1.0).sampled(Fraction(20, 60)).repeated(4)
    assert trainer(batch=None, rate=0.25, epochs=3, steps=None).schedule.steps == 12


def test_a_wanted_epsilon_is_met_and_not_overshot() -> None:
    made = trainer(noise_multiplier=None, epsilon=2.0, delta=1e-5, steps=50)
    spent = acc.epsilon(made.event, delta=1e-5)
    assert 2.0 * 0.995 <= spent <= 2.0
    assert made.spent(50, delta=1e-5) == spent
    assert 0 < made.spent(10, delta=1e-5) < made.spent(25, delta=1e-5) < spent


def test_a_step_is_the_clipped_sum_plus_noise_over_the_expected_size() -> None:
    """With next to no noise and everybody in every batch, training is the naive loop; n is what was declared,
    not what is there."""
    data, model = examples(Public(size=100)), nn.Linear(5, 2)
    made = trainer(model=model, public=Public(size=100), batch=100, steps=3, noise_multiplier=1e-9, clip=0.05)
    got = weights(made(data, entropy=SeededEntropy(1)).value)
    inputs, targets = data.take(np.arange(SIZE))
    loss = torch.nn.functional.cross_entropy
    for _ in range(3):
        rows = naive(model, inputs, targets, loss)
        total = (rows * (0.05 / rows.norm(dim=1)).clamp(max=1).unsqueeze(1)).sum(0)
        with torch.no_grad():
            for p, part in zip(
                model.parameters(), total.split([p.numel() for p in model.parameters()]), strict=True
            ):
                p.sub_(0.3 * part.view(p.shape) / 100)
    torch.testing.assert_close(got, weights(model), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("size", [1, 3, 7, 50])
def test_microbatches_do_not_change_the_mechanism(size: int) -> None:
    data, model = examples(), nn.Linear(5, 2)
    whole = trainer(model=model)(data, entropy=SeededEntropy(3)).value
    parts = trainer(model=model, microbatch=size)(data, entropy=SeededEntropy(3)).value
    torch.testing.assert_close(weights(parts), weights(whole), rtol=1e-4, atol=1e-5)


def test_empty_batches_still_add_noise() -> None:
    """No data at all: the weights move by lr * noise / batch in every step, with the deviation that was
    priced."""
    model = nn.Linear(400, 50)
    made = Trainer(
        model,
        nn.CrossEntropyLoss(),
        public=PUBLIC,
        noise_multiplier=2.0,
        clip=0.5,
        batch=20,
        steps=4,
        optimizer=SGD(lr=0.3),
    )
    none = Examples(torch.zeros(0, 400), torch.zeros(0, dtype=torch.long), PUBLIC)
    moved = weights(made(none, entropy=SeededEntropy(5)).value) - weights(model)
    unit = moved / (0.3 * 2.0 * 0.5 / 20 * math.sqrt(4))
    assert_normal(unit.double().numpy())


def assert_normal(draws: np.ndarray, alpha: float = 1e-9) -> None:
    """Dvoretzky-Kiefer-Wolfowitz-Massart: fails with probability at most alpha if the law is the standard
    normal."""
    ordered, n = np.sort(draws), len(draws)
    cdf = ndtr(ordered)
    gap = max(np.max(np.arange(1, n + 1) / n - cdf), np.max(cdf - np.arange(n) / n))
    assert gap <= math.sqrt(math.log(2 / alpha) / (2 * n))


def test_the_trained_model_is_the_release_and_the_given_one_is_untouched() -> None:
    model = nn.Linear(5, 2)
    before = weights(model).clone()
    made = trainer(model=model)
    found = made(examples(), entropy=Entropy())
    assert torch.equal(weights(model), before)
    assert not torch.equal(weights(found.value), before)
    assert found.event == made.event
    assert found.private
    assert not found.value.training
    assert found.value.weight.untyped_storage().size() == 4 * 10, "weights of its own, not views of all"
    seeded = made(examples(), entropy=SeededEntropy(1))
    assert not seeded.private
    assert isinstance(seeded.event, acc.NonPrivate)


def test_training_stops_for_good_at_the_budget() -> None:
    run = trainer().start(examples(), entropy=Entropy())
    for _ in range(4):
        run.step()
    assert run.done
    before = weights(run.model)
    with pytest.raises(Halted, match="all 4 steps"):
        run.step()
    assert torch.equal(weights(run.model), before)


def words(rows: int = SIZE) -> tuple[Tensor, Tensor]:
    """Texts of three words, of which there are four, and their classes."""
    x = torch.randint(0, 4, (rows, 3))
    return x, (x.sum(1) > 4).long()


def of_words(**changes: Any) -> Trainer:
    model = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(6, 2))
    return trainer(model=model, **{"batch": SIZE, "steps": 1, "noise_multiplier": 1e-9, **changes})


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"microbatch": 7},
        {"clip": Adaptive(clip=0.5, count_noise=9.0)},
        {"noise": "discrete"},
        {"augment": Augment(function=lambda x: x, times=2)},
        {"isolate": True},
    ],
    ids=["plain", "microbatch", "adaptive", "discrete", "augment", "isolate"],
)
def test_one_example_on_which_the_model_fails_adds_nothing_and_does_not_fail_the_run(options: Any) -> None:
    """A word, or a class, that the model does not have raises an IndexError: the run failed, which told of it. The
    step is that of the other examples. (Noise: 1e-9 of the clip, and for the grid its steps of 2**-20 or so.)"""
    made = of_words(**options)
    x, y = words()
    kept = torch.ones(SIZE, dtype=torch.bool)
    kept[[7, 20]] = False
    wrong_x, wrong_y = x.clone(), y.clone()
    wrong_x[7, 1], wrong_y[20] = 987_654, 5
    moved = [
        weights(made(Examples(inputs, targets, PUBLIC), entropy=SeededEntropy(1)).value)
        for inputs, targets in ((wrong_x, wrong_y), (x[kept], y[kept]))
    ]
    assert torch.allclose(*moved, atol=1e-5)
    assert not torch.allclose(moved[0], weights(made.model), atol=1e-3)


def test_rows_that_a_source_of_the_stewards_own_cannot_read_add_nothing() -> None:
    x, y = words()

    class Own(Examples):
        def take(self, positions: Any) -> Any:
            if (positions == 7).any():
                raise KeyError("private")
            return super().take(positions)

    made, others = of_words(), torch.arange(SIZE) != 7
    moved = [
        weights(made(data, entropy=SeededEntropy(1)).value)
        for data in (Own(x, y, PUBLIC), Examples(x[others], y[others], PUBLIC))
    ]
    assert torch.allclose(*moved, atol=1e-5)


def test_one_person_on_whose_rows_the_model_fails_adds_nothing() -> None:
    """The person's other rows do not count either: a unit that fails is as one that is not there."""
    public = Public(size=20, unit=Unit("who"))
    made = of_words(public=public, batch=20)
    x, y = words()
    people = np.arange(SIZE) % 20
    wrong = x.clone()
    wrong[23, 0] = 987_654
    others = people != 3
    moved = [
        weights(made(Examples(*part, public, people=ids), entropy=SeededEntropy(1)).value)
        for part, ids in (((wrong, y), people), ((x[others], y[others]), people[others]))
    ]
    assert torch.allclose(*moved, atol=1e-5)
    assert not torch.allclose(moved[0], weights(made.model), atol=1e-3)


def test_an_item_of_a_dataset_that_is_not_as_declared_counts_as_zeros() -> None:
    """It cannot be read, has another shape, another form, or holds no numbers: batches with it failed."""
    x, y = words(8)
    items: list[Any] = [(x[i], int(y[i])) for i in range(8)]
    for i, wrong in ((2, (torch.zeros(5), 0)), (3, None), (5, (x[5], "x")), (6, ({"a": x[6]}, 1))):
        items[i] = wrong

    class Items:
        def __len__(self) -> int:
            return len(items)

        def __getitem__(self, i: int) -> Any:
            if i == 3:
                raise KeyError("private")
            return items[i]

    inputs, targets = Examples.of(Items(), Public(size=8)).take(np.arange(8))
    right = [i for i in range(8) if i not in (2, 3, 5, 6)]
    assert torch.equal(inputs[right], x[right])
    assert torch.equal(targets[right], y[right])
    assert not inputs[[2, 3, 5, 6]].any()
    assert not targets[[2, 3, 5, 6]].any()


def test_a_failure_of_our_own_on_private_examples_says_nothing_about_them(monkeypatch: Any) -> None:
    made = of_words()
    run = made.start(Examples(*words(), PUBLIC), entropy=Entropy())

    def failing(*args: Any) -> None:
        raise ValueError("987654")

    monkeypatch.setattr(run.summands, "add", failing)
    with pytest.raises(ReleaseFailed, match="withheld") as caught:
        run.step()
    assert "987654" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert run.done


@pytest.mark.parametrize("options", [{"noise": "discrete"}, {"clip": Adaptive(clip=0.5, count_noise=9.0)}])
def test_a_step_that_was_interrupted_ends_the_run(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of its batch is in sums and counts, and must not be added to the next one's."""
    run = trainer(batch=SIZE, microbatch=SIZE // 2, **options).start(examples(), entropy=Entropy())
    add, calls = run.summands._add_clipped, []

    def interrupted(*args: Any) -> None:
        calls.append(add(*args))
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(run.summands, "_add_clipped", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run.step()
    assert run.done
    with pytest.raises(Halted, match="interrupted"):
        run.step()


def test_progress_shows_public_facts_only() -> None:
    seen: list[Progress] = []
    trainer()(examples(), entropy=Entropy(), progress=seen.append)
    assert [(p.step, p.steps) for p in seen] == [(1, 4), (2, 4), (3, 4), (4, 4)]
    settings = ("learning_rate", "noise_multiplier", "clip", "expected_batch", "delta")
    assert Progress.__slots__ == ("step", "steps", *settings, "_released", "metrics")
    assert repr(examples()) == "Examples(table='data')"


def test_the_number_of_examples_is_never_read_off_the_data() -> None:
    nobody = Public()
    with pytest.raises(PrivateFact, match="never read off"):
        trainer(public=nobody)
    with pytest.raises(PrivateFact, match="rate= alone needs the number"):
        trainer(public=nobody, batch=None, rate=0.1)
    assert trainer(public=nobody, rate=0.1, batch=20).schedule.divisor == 20
    assert trainer(public=nobody, n=SIZE).schedule == trainer().schedule


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"epsilon": 1.0}, InvalidInput),
        ({"noise_multiplier": None}, InvalidInput),
        ({"noise_multiplier": None, "epsilon": 1.0}, InvalidInput),
        ({"noise_multiplier": 0.0}, InvalidInput),
        ({"steps": None}, InvalidInput),
        ({"epochs": 2}, InvalidInput),
        ({"batch": 61}, InvalidInput),
        ({"batch": None}, InvalidInput),
        ({"sampling": "shuffle"}, InvalidInput),
        ({"clip": -1.0}, InvalidInput),
        ({"average": 1.5}, InvalidInput),
        ({"microbatch": 0}, InvalidInput),
        ({"loss": "hinge"}, InvalidInput),
        ({"limit": 30}, InvalidInput),
        ({"strategy": "square_root"}, InvalidInput),
        ({"noise": "laplace"}, InvalidInput),
        ({"pooling": "max"}, InvalidInput),
        ({"augment": torch.flip}, InvalidInput),
        ({"public": Public(size=SIZE, neighbors="replace")}, WrongRelation),
        ({"model": nn.Sequential(nn.Linear(5, 2), nn.BatchNorm1d(2))}, Unsupported),
        ({"model": nn.Linear(5, 2).requires_grad_(False)}, InvalidInput),
        ({"model": nn.Linear(5, 2).half()}, Unsupported),
    ],
)
def test_bad_settings_are_refused_before_anything_is_read(
    changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        trainer(**changes)


def test_a_model_that_mixes_examples_is_refused_before_data_is_read() -> None:
    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    model = nn.Sequential(nn.Linear(5, 2), Mean())
    with pytest.raises(NotPrivate, match="the gradient of an example"):
        trainer(model=model, synthetic=(torch.rand(5, 5), torch.tensor([0, 1, 0, 1, 1])))
    with pytest.raises(NotPrivate, match="the gradient of an example"):
        trainer(model=model)(examples(), entropy=Entropy())


def test_a_model_on_no_device_or_on_two_is_refused_before_data_is_read() -> None:
    with pytest.raises(InvalidInput, match='on "meta", where tensors have no values'):
        trainer(model=nn.Linear(5, 2, device="meta"))
    with pytest.raises(Unsupported, match=r"several devices \(cpu, meta\).*move all of it to one"):
        trainer(model=nn.Sequential(nn.Linear(5, 2), nn.Linear(2, 2, device="meta")))


@pytest.mark.parametrize("device", ["cuda", "cuda:7", "meta", "gpu", 3])
def test_a_device_that_is_missing_is_refused_before_data_is_read(device: Any) -> None:
    with pytest.raises(InvalidInput, match="device"):
        trainer(performance=Performance(device=device))


def test_other_public_facts_are_refused() -> None:
    with pytest.raises(PublicMismatch, match="the mechanism was priced for"):
        trainer()(examples(Public(size=61)), entropy=Entropy())
    with pytest.raises(NotPrivate, match="Examples"):
        trainer()(Memory({"x": [1.0]}, PUBLIC), entropy=Entropy())


def test_poisson_batches_are_independent_coins() -> None:
    """Chernoff-Hoeffding for the count of all members over 200 steps, false alarm 1e-9; no two batches are
    alike by design."""
    plan = Poisson(rate=Fraction(1, 4), steps=200, divisor=15.0)
    batches = list(plan.batches(SIZE, SeededEntropy(2)))
    assert len(batches) == 200
    total = sum(map(len, batches))
    assert abs(total - 3000) <= math.sqrt(12_000 * math.log(2e9) / 2)
    assert len({len(b) for b in batches}) > 3, "the size of a Poisson batch is random"


def test_balls_in_bins_is_a_pass_over_everybody_and_priced_as_such() -> None:
    made = trainer(sampling="balls_in_bins", batch=20, epochs=2, steps=None)
    assert isinstance(made.schedule, BallsInBins)
    assert made.event == acc.RandomAllocation(event=acc.Gaussian(noise_multiplier=1.0), steps=3).repeated(2)
    batches = list(made.schedule.batches(SIZE, SeededEntropy(2)))
    assert len(batches) == made.schedule.steps == 6
    for start in (0, 3):
        assert sorted(np.concatenate(batches[start : start + 3]).tolist()) == list(range(SIZE))
    assert made(examples(), entropy=Entropy()).private


def test_without_replacement_charges_noise_over_twice_the_clip() -> None:
    public = Public(size=SIZE, neighbors="replace")
    made = trainer(public=public, sampling="without_replacement", batch=20, steps=5)
    noise = acc.Gaussian(noise_multiplier=0.5, neighbors="replace")
    assert made.event == acc.SampledWithoutReplacement(event=noise, size=SIZE, sample=20).repeated(5)
    assert all(len(set(b.tolist())) == 20 for b in made.schedule.batches(SIZE, SeededEntropy(1)))
    assert made(examples(public), entropy=Entropy()).private
    with pytest.raises(PublicMismatch, match="the size is public and"):
        list(WithoutReplacement(sample=20, size=SIZE, steps=1).batches(SIZE - 1, SeededEntropy(1)))


def test_a_size_that_is_not_true_is_refused_before_anything_is_charged() -> None:
    public = Public(size=SIZE, neighbors="replace")
    with pytest.raises(InvalidInput, match="says otherwise"):
        trainer(public=public, sampling="without_replacement", n=SIZE - 1)
    made = trainer(public=public, sampling="without_replacement")
    made.rehearse(examples(public))
    with pytest.raises(PublicMismatch, match="the size is public"):
        made.rehearse(examples(public, rows=SIZE - 1))
    # under add_remove the size is private, and no reason to stop
    trainer().rehearse(examples(rows=SIZE - 1))


def test_zero_out_is_priced_for_its_own_relation() -> None:
    assert trainer(public=Public(size=SIZE, neighbors="zero_out")).event.neighbors == "zero_out"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (SGD(lr=0.1), lambda p: torch.optim.SGD(p, lr=0.1)),
        (SGD(lr=0.1, momentum=0.9), lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9)),
        (
            SGD(lr=0.1, momentum=0.9, nesterov=True),
            lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        ),
        (SGD(lr=0.1, weight_decay=0.1), lambda p: torch.optim.SGD(p, lr=0.1, weight_decay=0.1)),
        (Adam(lr=0.1, noise_aware=False), lambda p: torch.optim.Adam(p, lr=0.1)),
        (
            Adam(lr=0.1, weight_decay=0.1),
            lambda p: torch.optim.AdamW(p, lr=0.1, weight_decay=0.1),
        ),
    ],
)
def test_optimizers_are_those_of_torch(ours: Any, theirs: Any) -> None:
    data, model = examples(), nn.Linear(5, 2)
    settings = {"model": model, "steps": 6, "learning_rate": warmup_cosine(6, 2)}
    one = trainer(optimizer=ours, **settings)(data, entropy=SeededEntropy(4)).value
    two = trainer(optimizer=theirs, **settings)(data, entropy=SeededEntropy(4)).value
    torch.testing.assert_close(weights(one), weights(two), rtol=1e-4, atol=1e-6)


def test_noise_aware_adam_takes_the_noise_out_of_the_second_moment() -> None:
    """Pure noise: plain Adam's denominator is its deviation; noise-aware, only what is left beyond it, down
    to the floor."""
    update = Adam(lr=1.0, betas=(0.0, 0.5), noise_aware=True, floor=1e-3).start(1, torch.float64, 10.0, 2.0)
    values = torch.zeros(1, dtype=torch.float64)
    update(values, torch.tensor([10 * 0.25], dtype=torch.float64), 1.0)
    assert values.item() == pytest.approx(-0.25 / math.sqrt(0.25**2 - 0.2**2), rel=1e-6)
    update = Adam(lr=1.0, betas=(0.0, 0.5), noise_aware=True, floor=1e-3).start(1, torch.float64, 10.0, 2.0)
    values.zero_()
    update(values, torch.tensor([10 * 0.1], dtype=torch.float64), 1.0)
    assert values.item() == pytest.approx(-0.1 / 1e-3, rel=1e-4)


def test_averaging_is_free_and_between_the_steps() -> None:
    run = trainer(average=0.9, steps=2).start(examples(), entropy=SeededEntropy(1))
    start = run.values.clone()
    run.step()
    first = run.values.clone()
    torch.testing.assert_close(weights(run.model), start * 0.1 + first * 0.9, rtol=1e-4, atol=1e-6)


def test_datasets_are_read_item_by_item() -> None:
    data = examples()
    x, y = data.take(np.arange(SIZE))
    listed = Examples.of(torch.utils.data.TensorDataset(x, y), PUBLIC)
    model = nn.Linear(5, 2)
    one = trainer(model=model)(data, entropy=SeededEntropy(9)).value
    two = trainer(model=model)(listed, entropy=SeededEntropy(9)).value
    torch.testing.assert_close(weights(one), weights(two))
    with pytest.raises(InvalidInput, match="map-style"):
        Examples.of(iter([1, 2]), PUBLIC)


def test_tables_are_read_by_their_declared_facts() -> None:
    public = Public(
        schema={"age": Bounds(0, 100), "job": Categories(["a", "b"]), "rich": Categories(["no", "yes"])},
        size=4,
    )
    table = Memory(
        {"age": [0.0, 50.0, 1e9, None], "job": ["a", "b", "zzz", None], "rich": ["no", "yes", "yes", "?"]},
        public,
    )
    columns = Tabular(features=("age", "job"), target="rich")
    x, y = columns.read(table).take(np.arange(4))
    assert x.tolist() == [[-1, 1, 0], [0, 0, 1], [1, 0, 0], [0, 0, 0]]
    assert y.tolist() == [0, 1, 1, 0]
    made = trainer(model=nn.Linear(columns.width(public), 2), public=public, batch=2, columns=columns)
    assert made(table, entropy=Entropy()).private


def test_the_curator_charges_first_and_trains(tmp_path: Path) -> None:
    from discreet.curator import Budget, Curator, Policy

    source = examples()
    curator = Curator.create(tmp_path / "ledger", source, Policy(budget=Budget(epsilon=8, delta=1e-5)))
    made = trainer()
    found = curator.ask(made)
    assert isinstance(found.value, nn.Linear)
    assert curator.used > 0


def test_without_torch_the_error_names_the_extra() -> None:
    code = (
        "import sys; sys.modules['torch'] = None\nimport discreet\ntry:\n    "
        "discreet.learning.Trainer\nexcept discreet.MissingExtra as e:\n    print(e)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert "pip install 'discreet[learn]'" in said


def test_a_model_can_be_had_between_steps() -> None:
    """A copy is made of what is attached: a forward pass that somebody replaced is kept."""
    model = nn.Sequential(
        nn.Linear(4, 8),
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True),
        nn.Flatten(),
        nn.Linear(40, 2),
    )
    model[0].forward = torch.nn.functional.silu  # type: ignore[method-assign]
    model[0] = nn.Sequential(nn.Linear(4, 8), model[0])
    public = Public(size=64)
    trainer = Trainer(
        model,
        nn.CrossEntropyLoss(),
        public=public,
        noise_multiplier=1.0,
        clip=1.0,
        batch=32,
        steps=3,
        optimizer=SGD(lr=0.1),
    )
    data = Examples(torch.randn(64, 5, 4), torch.randint(0, 2, (64,)), public)
    with trainer.start(data, entropy=Entropy()) as run:
        while not run.done:
            run.step()
            found = run.model
            assert found(torch.zeros(1, 5, 4)).isfinite().all()
    assert found[0][1].forward is torch.nn.functional.silu
    assert all("forward" not in vars(module) for module in found.modules() if module is not found[0][1])


def test_performance_options_have_their_own_object_and_the_old_spelling_is_accepted() -> None:
    public = Public(size=64)
    settings = {"public": public, "noise_multiplier": 1.0, "batch": 32, "steps": 3}
    new = Trainer(nn.Linear(4, 2), "mse", performance=Performance(microbatch=8, isolate=True), **settings)
    old = Trainer(nn.Linear(4, 2), "mse", microbatch=8, isolate=True, **settings)
    assert new.performance == old.performance == Performance(microbatch=8, isolate=True)
    assert new.event == old.event == Trainer(nn.Linear(4, 2), "mse", **settings).event
    assert dataclasses.replace(old, steps=4).performance == old.performance
    with pytest.raises(InvalidInput, match="microbatch= was given to the trainer and in performance="):
        Trainer(nn.Linear(4, 2), "mse", performance=Performance(microbatch=8), microbatch=4, **settings)
    with pytest.raises(InvalidInput, match="performance must be Performance"):
        Trainer(nn.Linear(4, 2), "mse", performance={"microbatch": 8}, **settings)


def test_settings_of_hugging_face_are_followed_or_refused() -> None:
    from discreet.learning.training import hugging_face

    for args in ({"warmup_steps": 4}, {"warmup_steps": 0.4}, {"warmup_ratio": 0.35}):
        factor = hugging_face._rate(args | {"lr_scheduler_type": "constant_with_warmup"}, 10)
        assert [factor(step) for step in range(5)] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert hugging_face._optimizer({"adam_epsilon": 1e-6}).eps == 1e-6
    with pytest.raises(Unsupported, match="AdamW"):
        hugging_face._optimizer({"optim": "adafactor"})


def test_a_batch_normalization_under_two_names_is_replaced_under_both() -> None:
    from discreet.learning import without_batch_norm

    model = nn.Module()
    model.first = model.second = nn.BatchNorm1d(4, dtype=torch.float64)
    swapped: Any = without_batch_norm(model)
    assert isinstance(swapped.first, nn.GroupNorm)
    assert swapped.first is swapped.second
    assert swapped.first.weight.dtype is torch.float64


def test_adaptive_clipping_splits_the_noise_without_losing_any() -> None:
    for z, count_noise in ((1.0, 0.5 * (1 + 1e-10)), (1e-200, 1.0), (3.7, 20.0)):
        shares = Adaptive(count_noise=count_noise).split(z, 1.0), 2 * count_noise
        assert sum((Fraction(z) / Fraction(share)) ** 2 for share in shares) <= 1
