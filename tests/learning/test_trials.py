"""Private tuning: exact laws of the number of trials, and searches over trainers."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import discreet as dp
from discreet import Bounds, Budget, Categories, InvalidInput, Public
from discreet import accounting as acc
from discreet.learning import SGD, DPClassifier, Examples, Trainer
from discreet.learning.training.schedules import Poisson, TruncatedPoisson, WithoutReplacement
from discreet.learning.trials import TrainerTrials, _classes, _correct
from discreet.sampling import SeededEntropy
from discreet.tables import Memory
from discreet.tabular import LogisticRegression, PrivateSearch
from discreet.tabular.trials import cap_of, gamma_of, mean_of, number_of_trials

from ..contracts.audit import assert_private
from ..contracts.case import Case

SCHEMA = {"a": Bounds(-1, 1), "b": Bounds(-1, 1), "y": Categories(["n", "y"])}
SPACE = {"optimizer": [SGD(lr=0.01), SGD(lr=2.0)]}


def table(rows: int) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    a, b = rng.uniform(-1, 1, (2, rows))
    return {"a": a, "b": b, "y": np.where(a + 0.2 * b > 0, "y", "n")}


def laws() -> list[tuple[Any, Any]]:
    gamma = 0.3
    return [
        (acc.geometric(gamma), lambda k: gamma * (1 - gamma) ** (k - 1)),
        (acc.logarithmic(gamma), lambda k: (1 - gamma) ** k / (k * math.log(1 / gamma))),
        (
            acc.NegativeBinomialTrials(shape=0.5, gamma=gamma),
            lambda k: (
                (1 - gamma) ** k
                / (gamma**-0.5 - 1)
                * math.gamma(k + 0.5)
                / math.gamma(0.5)
                / math.factorial(k)
            ),
        ),
        (
            acc.NegativeBinomialTrials(shape=2.5, gamma=gamma),
            lambda k: (
                (1 - gamma) ** k
                / (gamma**-2.5 - 1)
                * math.gamma(k + 2.5)
                / math.gamma(2.5)
                / math.factorial(k)
            ),
        ),
        (acc.PoissonTrials(mean=1.7), lambda k: math.exp(-1.7) * 1.7**k / math.factorial(k)),
    ]


@pytest.mark.parametrize("place", range(5))
def test_the_number_of_trials_follows_its_law(place: int) -> None:
    """Hoeffding's bound for each of 12 values: a false alarm in a billion."""
    law, chance = laws()[place]
    n, entropy = 800, SeededEntropy(place)
    counts = Counter(number_of_trials(law, entropy) for _ in range(n))
    slack = math.sqrt(math.log(2 * 12 / 1e-9) / (2 * n))
    for k in range(0 if isinstance(law, acc.PoissonTrials) else 1, 12):
        assert abs(counts[k] / n - chance(k)) <= slack
    mean = sum(k * count for k, count in counts.items()) / n
    assert mean == pytest.approx(mean_of(law), rel=0.3)
    assert cap_of(law) >= mean_of(law)
    if not isinstance(law, acc.PoissonTrials):
        assert mean_of(
            acc.NegativeBinomialTrials(shape=law.shape, gamma=gamma_of(law.shape, 7.0))
        ) == pytest.approx(7)


def test_a_session_hides_the_number_of_trials(tmp_path: Path) -> None:
    people = dp.open(
        table(400), schema=SCHEMA, unit=dp.rows(), size=400, budget=Budget(epsilon=6, delta=1e-5),
        ledger=tmp_path / "people.ledger",
    )  # fmt: skip
    search = people.fit(
        PrivateSearch(
            LogisticRegression(method="gradient"), {"regularization": [1.0, 50.0]}, epsilon=3, trials=2.0
        ),
        target="y",
    )
    assert search.score({"a": [0.9, -0.9], "b": [0.0, 0.0]}, ["y", "n"]) == 1.0
    assert people.spent <= 3
    # one charge and one release, however many trials there were
    assert [e.kind for e in people.ledger.entries()][1:] == ["charge", "release"]
    costs = search.comparison()
    assert costs["this search"] <= 3 < costs["plain composition, every candidate once"] * 2
    assert costs["cheating: the best run alone, not a guarantee"] < costs["this search"]
    with pytest.raises(InvalidInput, match="fitted in one step"):
        people.fit(
            PrivateSearch(LogisticRegression(), {"regularization": [50.0]}, epsilon=1),
            target="y",
            progress=print,
        )


def test_gaussian_candidates_get_more_than_half_of_epsilon() -> None:
    public = Public(schema=SCHEMA, size=400)
    gaussian = PrivateSearch(
        LogisticRegression(method="output"), {"regularization": [1.0]}, epsilon=2, delta=1e-6
    )
    renyi = gaussian.mechanism(public, target="y")
    assert isinstance(renyi.run_event, acc.ZCDP)
    assert renyi.epsilon <= 2
    assert acc.epsilon(renyi.run_event, delta=1e-6) > 1
    pure = PrivateSearch(
        LogisticRegression(method="objective"), {"regularization": [9.0]}, epsilon=2, delta=1e-6
    )
    assert isinstance(pure.mechanism(public, target="y").run_event, acc.PureDP)
    poisson = PrivateSearch(
        LogisticRegression(method="objective"), {"regularization": [9.0]}, epsilon=2, law="poisson"
    )
    with pytest.raises(InvalidInput, match="needs a delta"):
        poisson.mechanism(public, target="y")
    nothing = renyi.untrained_model(SeededEntropy(1))
    assert np.isfinite(nothing.scores({"a": [0.0], "b": [0.0]})).all()


def test_a_search_over_trainers_picks_what_learns(tmp_path: Path) -> None:
    people = dp.open(
        table(500), schema=SCHEMA, unit=dp.rows(), size=500, budget=Budget(epsilon=40, delta=1e-5),
        ledger=tmp_path / "people.ledger", large_epsilon=True,
    )  # fmt: skip
    base = DPClassifier(batch=100, epochs=3)
    # With a geometric number of trials of mean 40, and half of the candidates good, none is tried with
    # probability (1/40 / 2) / (1 - 39/80) = 0.024: four searches in a row fail so once in three million.
    for _ in range(4):
        search = people.fit(PrivateSearch(base, SPACE, epsilon=8, trials=40.0, law="geometric"), target="y")
        if search.score({"a": [0.9, -0.9], "b": [0.0, 0.0]}, ["y", "n"]) == 1.0:
            break
    assert people.spent <= 32
    assert search.score({"a": [0.9, -0.9], "b": [0.0, 0.0]}, ["y", "n"]) == 1.0
    assert search.mechanism_.epsilon <= 8
    with pytest.raises(InvalidInput, match="one price"):
        people.fit(PrivateSearch(base, {"batch": [50, 100]}, epsilon=1), target="y")
    with pytest.raises(InvalidInput, match="delta above 0"):
        PrivateSearch(base, SPACE, epsilon=1).mechanism(Public(schema=SCHEMA, size=500), target="y")


def test_a_held_out_row_on_which_the_model_fails_counts_as_wrong() -> None:
    model = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(2, 2)).eval()
    x = torch.randint(0, 4, (9, 1))
    y = _classes(model, x)
    assert _correct(model, Examples(x, y), np.arange(9)) == 9
    wrong = x.clone()
    wrong[4] = 987_654
    assert _correct(model, Examples(wrong, y), np.arange(9)) == 8


class LastBits(nn.Module):
    """Stands for a product whose last bits depend on the size of the batch."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tensor([0.0, 1e-6 * len(x) - 3e-6])


def test_the_class_of_a_held_out_row_does_not_depend_on_other_rows() -> None:
    rows = torch.tensor([[1.0, 1.0], [0.0, 2.0], [2.0, 0.0], [3.0, 3.0], [math.nan, 1.0]])
    alone = torch.cat([_classes(LastBits(), row.unsqueeze(0)) for row in rows])
    assert torch.equal(_classes(LastBits(), rows), alone)
    assert torch.equal(alone[:4], torch.tensor([0, 1, 0, 0]))


def test_a_search_over_trainers_releases_models_in_evaluation_mode() -> None:
    module = nn.Sequential(nn.Dropout(0.5), nn.Linear(2, 2))
    trials = PrivateSearch(DPClassifier(module, batch=10), SPACE, epsilon=3, delta=1e-5).mechanism(
        Public(schema=SCHEMA, size=100), target="y"
    )
    assert module.training
    assert not trials.untrained_model(SeededEntropy(0)).training
    rows = Memory(table(100), trials.public)
    assert not trials.trial(trials.load_data(rows), SeededEntropy(0))[2].training


@pytest.mark.parametrize(
    "schedule",
    [
        WithoutReplacement(sample=4, size=40, steps=2),
        TruncatedPoisson(rate=0.1, size=40, limit=20, steps=2),
        Poisson(rate=0.1, steps=2, divisor=4),
    ],
    ids=lambda schedule: type(schedule).__name__,
)
def test_schedules_for_an_exact_number_of_rows_are_refused_before_the_charge(schedule: Any) -> None:
    """A run trains on a random number of rows, so that the search failed in its first run."""
    neighbors = "replace" if isinstance(schedule, WithoutReplacement) else "zero_out"
    public = Public(schema=SCHEMA, size=40, neighbors=neighbors)
    trainer = Trainer(
        model=nn.Linear(2, 2), loss=nn.functional.cross_entropy, public=public, sampling=schedule,
        noise_multiplier=2.0, clip=1.0, optimizer=SGD(lr=0.1),
    )  # fmt: skip

    def search() -> TrainerTrials:
        return TrainerTrials(
            public=public,
            candidates=(trainer,),
            trials=acc.geometric(0.5),
            holdout=0.2,
            delta=1e-5,
            score_rho=1,
        )

    if isinstance(schedule, Poisson):
        assert search().candidates == (trainer,)
    else:
        with pytest.raises(InvalidInput, match="for exactly 40 rows"):
            search()


@pytest.mark.slow
def test_a_search_over_trainers_shows_no_more_than_it_claims() -> None:
    public = Public(schema=SCHEMA, size=2)
    base = DPClassifier(batch=2, epochs=2)
    mechanism = PrivateSearch(base, SPACE, epsilon=3, delta=1e-2, trials=1.5, holdout=0.5).mechanism(
        public, target="y"
    )
    rows = {"a": [1.0, 0.0], "b": [1.0, 0.0], "y": ["y", "n"]}
    case = Case(
        name="trainer trials",
        mechanism=mechanism,
        source=Memory(rows, public),
        neighbor=Memory({name: values[1:] for name, values in rows.items()}, public),
        outcome=lambda r: (r.value.score > 0.5, float(next(r.value.model.parameters())[1, 0].detach()) > 0),
        claim=(3.0, 1e-2),
        runs=80,
    )
    assert_private(case)
