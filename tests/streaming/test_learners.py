"""Online learners through the curator: charged once, fed with rounds, regret between the leader's and the
bound."""

from __future__ import annotations

import itertools
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet import Halted, InvalidInput, Public, Unsupported
from discreet._public import REPLACE, Unit
from discreet.sampling import SeededEntropy
from discreet.streaming import (
    Ball,
    Box,
    Latest,
    LinearLoss,
    LogisticLoss,
    OnlineLearner,
    Simplex,
    SquaredDistance,
    SquaredLoss,
    learner,
    regret,
)
from discreet.streaming.losses import GRID, ClippedGradients
from discreet.tables import Memory

from ..contracts.audit import epsilon_lower_bound
from ..loops import for_each

ROUNDS = 150
COLUMNS = ("a", "b", "c")
PUBLIC = Public(schema={name: dp.Bounds(-1, 1) for name in COLUMNS}, table="t")
UNIT = Public(schema={name: dp.Bounds(0, 1) for name in COLUMNS}, table="t")


def rounds_of(values: Any, public: Public) -> list[Memory]:
    return [Memory({n: [v] for n, v in zip(COLUMNS, row, strict=True)}, public) for row in values.tolist()]


def decisions(mechanism: OnlineLearner, rounds: list[Memory], seed: int = 1) -> Any:
    """The decision before each round."""
    entropy = SeededEntropy(seed)
    state = mechanism.start(rounds[0], entropy=entropy)
    played = [mechanism.first_decision()]
    for batch in rounds:
        state, released = mechanism.feed(state, batch, entropy=entropy)
        played.append(released.value)
    return np.array(played[:-1])


def regret_of(mechanism: OnlineLearner, values: Any, public: Public, seed: int = 1) -> float:
    played, loss = decisions(mechanism, rounds_of(values, public), seed), mechanism.loss
    losses = [float(loss.values(w, x[None])[0]) for w, x in zip(played, values, strict=True)]
    if isinstance(loss, SquaredDistance):
        best = float(loss.values(values.mean(axis=0), values).sum())
    elif isinstance(mechanism.space, Simplex):
        best = float(values.sum(axis=0).min())
    else:
        total = values.sum(axis=0)
        best = float(total @ mechanism.space.project(-1e9 * total))
    return regret(losses, best)


def points() -> Any:
    z = np.random.default_rng(1).normal(0, 0.3, (ROUNDS, 3)) + np.array([0.5, 0, -0.3])
    return np.clip(z, -0.57, 0.57)


def expert_losses() -> Any:
    return (np.random.default_rng(2).random((ROUNDS, 3)) < np.array([0.2, 0.5, 0.8])).astype(float)


CASES: dict[str, tuple[Any, Any, Public, dict[str, Any]]] = {
    "leader": (SquaredDistance(columns=COLUMNS), points(), PUBLIC, {"clip": 2}),
    "mirror": (LinearLoss(columns=COLUMNS), points(), PUBLIC, {"learner": "mirror", "clip": 1}),
    "experts": (LinearLoss(columns=COLUMNS), expert_losses(), UNIT, {}),
}


# Regret is accuracy, no privacy: one learner now, the others in `make test-all`.
@pytest.mark.parametrize(
    "name", ["leader", *(pytest.param(name, marks=pytest.mark.slow) for name in list(CASES)[1:])]
)
@pytest.mark.parametrize(
    "price", [pytest.param({"epsilon": 4}, marks=pytest.mark.slow), {"epsilon": 4, "delta": 1e-6}]
)
def test_regret_is_near_the_leaders_without_noise_and_below_the_bound(name: str, price: Any) -> None:
    loss, values, public, options = CASES[name]
    exact = learner(public, loss, horizon=ROUNDS, rho=10**12, strategy="item", **options)
    private = learner(public, loss, horizon=ROUNDS, **price, **options)
    assert private.learner == exact.learner == name
    without = regret_of(exact, values, public)
    with_noise = float(np.mean([regret_of(private, values, public, seed) for seed in range(3)]))
    assert -1 < without < exact.regret_bound() < private.regret_bound()
    assert with_noise < private.regret_bound()
    # Noise costs; of experts it may happen to help, as a higher temperature would.
    assert name == "experts" or without < with_noise


@pytest.mark.parametrize("name", ["leader", "mirror"])
def test_regret_with_ridge_is_below_the_bound_in_a_box_away_from_the_origin(name: str) -> None:
    """The gradient of the ridge is as long as the decision. (The bound took it for at most the diameter of the box:
    66 for a regret of 1,000.)"""
    public, rounds = Public(schema={"a": dp.Bounds(-1, 1)}, table="t"), 20
    private = learner(
        public, LinearLoss(columns=("a",)), learner=name, space=Box(1, 99.0, 100.0), ridge=1, horizon=rounds,
        rho=1e-9,
    )  # fmt: skip
    batch, regrets = Memory({"a": [0.0]}, public), []
    for seed in range(20):
        entropy = SeededEntropy(seed)
        state, total = private.start(batch, entropy=entropy), 0.0
        for _ in range(rounds):
            total += (state["decision"][0] ** 2 - 99**2) / 2
            state, _released = private.feed(state, batch, entropy=entropy)
        regrets.append(total)
    assert 500 < float(np.mean(regrets)) < private.regret_bound()


def test_the_leader_without_noise_is_the_mean_so_far() -> None:
    exact = learner(PUBLIC, SquaredDistance(columns=COLUMNS), horizon=60, rho=10**12, strategy="item", clip=2)
    values = points()[:50]
    played = decisions(exact, rounds_of(values, PUBLIC))
    assert np.allclose(played[-1], values[:-1].mean(axis=0), atol=1e-3)


def test_regression_and_classification_learn_from_rounds_of_many_rows() -> None:
    public = Public(
        schema={n: dp.Bounds(-1, 1) for n in COLUMNS} | {"ill": dp.Categories(["no", "yes"])}, table="t"
    )
    rng = np.random.default_rng(3)
    truth = np.array([0.6, -0.5, 0.1])
    squared = SquaredLoss(target="c", features=("a", "b"))
    logistic = LogisticLoss(target="ill", features=("a", "b"))
    for loss, options in (
        (squared, {"learner": "mirror"}),
        (logistic, {"learner": "mirror", "space": Ball(3, 4.0)}),
    ):
        mechanism = learner(public, loss, horizon=60, clip=2, batch=40, epsilon=4, delta=1e-6, **options)
        rounds = []
        for _ in range(60):
            x = rng.uniform(-1, 1, (40, 2))
            y = x @ truth[:2] + truth[2]
            ill = [
                "yes" if r < 1 / (1 + np.exp(-4 * v)) else "no"
                for r, v in zip(rng.random(40), y, strict=True)
            ]
            rounds.append(Memory({"a": x[:, 0], "b": x[:, 1], "c": np.clip(y, -1, 1), "ill": ill}, public))
        last = decisions(mechanism, rounds)[-1]
        assert last @ truth / np.linalg.norm(last) / np.linalg.norm(truth) > 0.9


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_a_unit_moves_the_gradients_by_no_more_than_the_clip_whatever_its_rows_hold(norm: str) -> None:
    hostile = [0.3, -0.0, 1e308, -1e308, float("inf"), float("-inf"), float("nan"), None, 5e-324, 2.0**-1074]
    by_unit = replace(PUBLIC, unit=Unit("who"))
    others = {"a": [0.5, 0.1, -0.2], "b": [0.0, 0.4, 0.3], "c": [0.9, -0.9, 0.2]}
    for public in (PUBLIC, by_unit):
        for loss in (SquaredDistance(columns=COLUMNS), SquaredLoss(target="c", features=("a", "b")),
                     LogisticLoss(target="c", features=("a", "b"), intercept=False)):  # fmt: skip
            if isinstance(loss, LogisticLoss):
                public = replace(public, schema=(*public.schema[:2], ("c", dp.Bounds(0, 1))))
            decision = tuple([1e150, -1e150, 3.0][: loss.dimension])
            statistic = ClippedGradients(loss=loss, clip=0.7, norm=norm, decision=decision)
            limit = statistic.sensitivity(public)
            plain = statistic(Memory({**others, "who": [1, 2, 3]}, public))
            for value in hostile:
                loud = 1 if public.unit.column is None else 50
                rows = {n: [*others[n], *[value if n != "b" else 0.5] * loud] for n in COLUMNS}
                moved = statistic(Memory({**rows, "who": [1, 2, 3, *[9] * loud]}, public)) - plain
                assert np.abs(moved).sum() <= (limit.l1 or 0)
                assert np.square(moved).sum() <= (limit.l2_squared or 0)
                assert np.abs(moved).max() <= GRID


def test_under_replace_a_unit_moves_the_gradients_twice_as_far() -> None:
    for norm in ("l1", "l2"):
        statistic = ClippedGradients(loss=SquaredDistance(columns=("a",)), clip=1, norm=norm)
        sized = replace(PUBLIC, neighbors=REPLACE, size=1)
        here, there = (statistic(Memory({"a": [v], "b": [0], "c": [0]}, sized)) for v in (1.0, -1.0))
        assert 2 * GRID - 4 <= np.abs(here - there).max() <= statistic.sensitivity(sized).linf == 2 * GRID


def test_a_row_contributes_the_same_wherever_it_stands() -> None:
    rng = np.random.default_rng(5)
    public = replace(PUBLIC, schema=(*PUBLIC.schema[:2], ("c", dp.Bounds(0, 1))))
    for loss in (SquaredLoss(target="c", features=("a", "b")), LogisticLoss(target="c", features=("a", "b"))):
        statistic = ClippedGradients(loss=loss, clip=1.0, decision=(0.3, -0.7, 0.11))
        values = rng.uniform(0, 1, (67, 3))
        alone = [statistic(Memory(dict(zip(COLUMNS, row[:, None], strict=True)), public)) for row in values]
        together = statistic(Memory(dict(zip(COLUMNS, values.T, strict=True)), public))
        assert (np.sum(alone, axis=0) == together).all()


def test_half_the_noise_on_gradients_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first decision of mirror descent is the noisy gradient itself: 2,700 runs, level 1e-9 / 400."""
    counters = sys.modules["discreet.streaming.continual"]
    honest_noise = counters.noise_of
    public = Public(schema={"a": dp.Bounds(-1, 1)}, table="t")
    mechanism = learner(
        public, LinearLoss(columns=("a",)), learner="mirror", horizon=1, clip=1, epsilon=2, strategy="item",
        space=Box(1, -50, 50), parameter=1,
    )  # fmt: skip
    pair = [Memory({"a": [-1.0]}, public), Memory({"a": []}, public)]

    # The exact gradients are the same in every run: they are read once.
    gradients = {id(rows): mechanism.sums.statistic(rows) for rows in pair}
    monkeypatch.setattr(
        type(mechanism.sums), "_exact", lambda self, state, source, *rest: gradients[id(source)]
    )

    def shown() -> float:
        both = []
        for seed, rows in enumerate(pair):
            entropy = SeededEntropy(seed)
            state = mechanism.start(rows, entropy=entropy)
            both.append(
                [bool(mechanism.feed(state, rows, entropy=entropy)[1].value[0] > 0.99) for _ in range(2700)]
            )
        return max(epsilon_lower_bound(*both, 0.0), epsilon_lower_bound(*both[::-1], 0.0))

    assert shown() <= 2
    monkeypatch.setattr(
        counters,
        "noise_of",
        lambda asked, steps: replace(honest_noise(asked, steps), scale=honest_noise(asked, steps).scale / 2),
    )
    assert shown() > 2


def session(tmp_path: Path, **options: Any) -> dp.Session:
    facts = {"table": "t", "unit": dp.rows(), "schema": dict(PUBLIC.schema)} | options
    rows = {"a": [0.1], "b": [0.1], "c": [0.1], "who": [1]}
    return dp.open(rows, budget=dp.Budget(epsilon=9, delta=1e-6), ledger=tmp_path / "l", **facts)


def test_a_session_learns_online_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    people = session(tmp_path)
    terms: dict[str, Any] = {"clip": 2, "horizon": 5, "epsilon": 4}
    loss = SquaredDistance(columns=COLUMNS)
    live = people.online(loss, **terms)
    with pytest.raises(InvalidInput, match="epsilon"):
        people.online(loss, clip=2, horizon=5, epsilon=-1)
    with pytest.raises(InvalidInput, match="epsilon"):
        people.stream("SELECT COUNT(*) AS n FROM t", horizon=5, epsilon=0)
    assert people.spent == pytest.approx(4)
    assert live.decision.tolist() == [0, 0, 0]
    batch = {"a": [0.5], "b": [0.1], "c": [-0.4]}
    live.feed(batch, tick="monday")
    with pytest.raises(InvalidInput, match="fed to this before"):
        live.feed(batch, tick="monday")
    live.feed({"a": [], "b": [], "c": []})
    again = session(tmp_path).online(loss, **terms, number=live.number)
    assert [d.tolist() for d in again.history] == [d.tolist() for d in live.history]
    assert again.steps == 2
    assert np.linalg.norm(again.decision) <= 1 + 1e-9
    handle = people.curator.resume(live.learner, live.number)
    assert handle.answer(Latest()).value.tolist() == again.decision.tolist()
    assert live.steps == 2
    for _ in range(3):
        again.feed(batch)
    with pytest.raises(Halted, match="5 steps"):
        again.feed(batch)
    assert people.spent == pytest.approx(4)
    assert people.curator.verify() == []
    with pytest.raises(InvalidInput, match="not the start"):
        session(tmp_path).online(loss, clip=3, horizon=5, epsilon=4, number=live.number)


def test_at_user_level_a_person_counts_in_as_many_rounds_as_was_paid_for(tmp_path: Path) -> None:
    people = session(tmp_path, unit="who")
    loss = LinearLoss(columns=("a",))
    terms: dict[str, Any] = {"learner": "mirror", "clip": 1, "rho": 1e6, "horizon": 4, "strategy": "item"}
    terms |= {"space": Box(1, -50, 50), "parameter": 1}
    with pytest.raises(InvalidInput, match="participations"):
        people.online(loss, **terms)
    generous = dp.open(
        {"a": [0.1], "who": [1]}, table="t", unit="who", schema={"a": dp.Bounds(-1, 1)},
        budget=dp.Budget(rho=2e6), ledger=tmp_path / "m", large_epsilon=True,
    )  # fmt: skip
    live = generous.online(loss, **terms, participations=1)
    loud = {"a": [-1.0] * 1000, "who": [7] * 1000}
    history = [float(live.feed(loud).value[0]) for _ in range(3)]
    assert np.allclose(history, 1, atol=0.1)
    live.feed({"a": [-1.0, -1.0], "who": [7, 8]})
    assert abs(float(live.decision[0]) - 2) < 0.1


@for_each(
    ("loss", "options", "message"),
    [
        (SquaredDistance(columns=("a",)), {}, "clip"),
        (SquaredLoss(target="a", features=("b",)), {"clip": 1, "learner": "leader"}, "strongly convex"),
        (SquaredDistance(columns=("a", "z")), {"clip": 1}, "nothing is declared"),
        (LogisticLoss(target="a", features=("b",)), {"clip": 1}, "within 0 and 1"),
        (SquaredDistance(columns=("a",)), {"clip": 1, "space": Ball(2)}, "1 entries"),
        (LinearLoss(columns=("a",)), {"learner": "experts", "space": Ball(1)}, "Simplex"),
        (LinearLoss(columns=("a",)), {"learner": "best"}, "learner"),
        (SquaredDistance(columns=("a",)), {"clip": 0}, "clip"),
        (SquaredDistance(columns=("a",)), {"clip": 1, "batch": 0}, "batch"),
        (SquaredDistance(columns=("a",)), {"clip": 1, "parameter": 1e-320}, "parameter"),
        (SquaredDistance(columns=("a",)), {"clip": 1e-320}, "clip"),
        (SquaredDistance(columns=("a",)), {"clip": 1, "space": Ball(1, 1e300)}, "diameter"),
        (SquaredDistance(columns=("a",)), {"clip": 1e300}, "clip must be between"),
        (SquaredDistance(columns=("a",)), {"clip": 1, "ridge": float("nan")}, "ridge"),
        (SquaredDistance(columns=("a",)), {"clip": 1, "horizon": None}, "horizon"),
        (SquaredDistance(columns=("a",)), {"clip": 1, "window": 2}, "no window"),
        (SquaredDistance(columns=("a",)), {"clip": 1, "participations": 0}, "participations"),
        ("squared", {"clip": 1}, "loss"),
    ],
)
def test_what_makes_no_sense_is_refused_before_anything_is_charged(
    loss: Any, options: Any, message: str
) -> None:
    with pytest.raises(dp.DiscreetError, match=message):
        learner(PUBLIC, loss, **({"horizon": 9, "epsilon": 1} | options))


def test_bounds_too_wide_for_a_clip_are_refused_before_anything_is_charged() -> None:
    wide = Public(schema={"a": dp.Bounds(-1e300, 1e300)}, table="t")
    with pytest.raises(InvalidInput, match="clip must be between"):
        learner(wide, LinearLoss(columns=("a",)), horizon=9, epsilon=1, delta=1e-6)


def test_losses_name_columns_once() -> None:
    for bad in ({"columns": "ab"}, {"columns": ()}, {"columns": ("a", "a")}):
        with pytest.raises(InvalidInput, match="columns"):
            SquaredDistance(**bad)
    with pytest.raises(InvalidInput, match="target"):
        SquaredLoss(target="a", features=("a",))
    sized = replace(PUBLIC, neighbors=REPLACE, size=5, unit=Unit("who"))
    with pytest.raises(Unsupported, match="replace"):
        learner(sized, SquaredDistance(columns=("a",)), clip=1, horizon=3, epsilon=1)


def test_the_order_of_a_units_rows_never_moves_its_sum() -> None:
    """Rows come in the engine's order, which may go with the rows of others; with wide bounds a sum of floats
    in that order moved from 0 to the whole clip."""
    public = Public(
        schema={"a": dp.Bounds(-1e300, 1e300), "b": dp.Bounds(-1e300, 1e300)}, unit=Unit("who"), table="t"
    )
    statistic = ClippedGradients(loss=LinearLoss(columns=("a", "b")), clip=1.0)
    rows = [(1e300, 1.0), (1.0, 1e300), (-1e300, 3.0), (1e17, -1e300), (-1e17, 0.1)]
    sums = {
        tuple(statistic(Memory({"who": ["ann"] * 5, "a": a, "b": b}, public)).tolist())
        for a, b in (zip(*order, strict=True) for order in itertools.permutations(rows))
    }
    assert len(sums) == 1
    assert max(map(abs, sums.pop())) > 0
    # Beyond floats on the way in some orders: the same sum in all, and never a failure.
    top = Public(schema={"a": dp.Bounds(-4e307, 4e307)}, unit=Unit("who"), table="t")
    one = ClippedGradients(loss=LinearLoss(columns=("a",)), clip=1.0)
    ends = {
        int(one(Memory({"who": ["ann"] * 11, "a": a}, top))[0])
        for a in ([4e307] * 6 + [-4e307] * 5, [-4e307] * 5 + [4e307] * 6, [4e307, -4e307] * 5 + [4e307])
    }
    assert len(ends) == 1
    assert ends.pop() > 1 << 15


def test_a_learner_refuses_a_counter_without_a_horizon() -> None:
    """Its regret bound ended in an AssertionError."""
    public = dp.Public(schema={"x": dp.Bounds(-1, 1)}, table="points")
    learner = dp.streaming.learner(
        public, dp.streaming.SquaredDistance(columns=("x",)), clip=1, rho=1, horizon=4, strategy="honaker"
    )
    with pytest.raises(dp.InvalidInput, match="horizon"):
        replace(learner, sums=replace(learner.sums, horizon=None))
