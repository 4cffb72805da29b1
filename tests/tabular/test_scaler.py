"""Normalization that is paid for: exact sums with exact noise, and then a transform that costs nothing
more."""

from __future__ import annotations

import dataclasses
import itertools
import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from torch import nn

import discreet as dp
from discreet import Bounds, Categories, InvalidInput, PrivateFact, Public, Unit, Unsupported
from discreet import accounting as acc
from discreet.learning import Tabular, Trainer
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import Memory
from discreet.tabular import PrivateScaler, Scaling

N = 20_000
SCHEMA = {"age": Bounds(0, 120), "pay": Bounds(0, 1e6), "sick": Categories(["no", "yes"])}
PUBLIC = Public(schema=SCHEMA, size=N)


def table(public: Public = PUBLIC, n: int = N) -> Memory:
    rng = np.random.default_rng(1)
    return Memory(
        {"age": rng.normal(40, 12, n), "pay": rng.gamma(2, 2e4, n), "sick": rng.choice(["no", "yes"], n)},
        public,
    )


def scaler(**changes: Any) -> PrivateScaler:
    return PrivateScaler(**({"public": PUBLIC, "columns": ("age", "pay"), "rho": 0.05} | changes))


def test_means_and_deviations_are_near_the_truth_and_within_the_stated_error() -> None:
    """False alarm 1e-9: the error at that confidence holds for all four numbers."""
    found = scaler()(table(), entropy=SeededEntropy(1))
    rng = np.random.default_rng(1)
    columns = {"age": np.clip(rng.normal(40, 12, N), 0, 120), "pay": np.clip(rng.gamma(2, 2e4, N), 0, 1e6)}
    errors = found.error(1 - 1e-9)
    for i, (name, values) in enumerate(columns.items()):
        step = float(Fraction(SCHEMA[name].upper)) / 4096  # type: ignore[union-attr]
        assert abs(found.value.means[i] - values.mean()) <= errors[name][0] + step
        assert abs(found.value.deviations[i] - values.std()) <= errors[name][1] + step
        assert errors[name][0] < 0.2 * values.std()


def test_the_price_adds_up_to_rho_and_every_sum_pays() -> None:
    event = scaler(rho=Fraction(1, 20)).event
    assert acc.zcdp(event).value == pytest.approx(0.05, rel=1e-9)
    assert acc.zcdp(event).value <= 0.05 * (1 + 1e-12)
    assert sum(acc.events.leaves(event).values()) == 6, "count, sum and squares of two columns"
    known = Public(schema={"age": Bounds(0, 120, nullable=False)}, size=N, neighbors="replace")
    assert sum(acc.events.leaves(scaler(public=known, columns=("age",)).event).values()) == 2, (
        "the count is public"
    )


def test_a_wanted_epsilon_is_met_and_composes_with_training() -> None:
    made = PrivateScaler.for_privacy(public=PUBLIC, columns=["age"], epsilon=0.5, delta=1e-6)
    assert 0.5 * 0.99 <= acc.epsilon(made.event, delta=1e-6, accountant="rdp") <= 0.5
    trained = Trainer(
        nn.Linear(1, 2), nn.CrossEntropyLoss(), public=PUBLIC, noise_multiplier=2.0, batch=200, steps=5
    )
    both = acc.compose([made.event, trained.event])
    alone = [acc.epsilon(e, delta=1e-6, accountant="rdp") for e in (made.event, trained.event)]
    assert max(alone) < acc.epsilon(both, delta=1e-6, accountant="rdp") < sum(alone)


def test_one_row_moves_each_sum_by_at_most_its_sensitivity() -> None:
    """The exact sums of neighbors, before noise, for the rows that move them most; a mutant with half the
    sensitivity is caught."""
    from discreet.mechanisms import means

    made = scaler(columns=("age",), cells=64)
    noises = [noise for noise in made._noises("age") if noise is not None]
    limits = [noise.linf for noise in noises]
    most = np.zeros(3)
    for value in (0.0, 60.0, 61.9, 120.0, 1e9, -5.0):
        rows = [10.0, 20.0]
        sums = [
            np.array(
                means._sums(
                    Memory({"age": r, "pay": r, "sick": ["no"] * len(r)}, PUBLIC),
                    "age",
                    True,
                    made._scale("age"),
                    True,
                )
            )
            for r in (rows, [*rows, value])
        ]
        moved = np.abs(sums[1] - sums[0])
        assert (moved <= limits).all()
        most = np.maximum(most, moved)
    assert (most > np.array(limits) / 2).all()
    assert [n.l0 for n in noises] == [1, 1, 1]


def test_transforming_is_what_it_says_and_goes_back() -> None:
    scaling = Scaling(
        columns=("a", "b"), means=(1.0, 2.0), deviations=(2.0, 0.5), lower=(0.0, 0.0), upper=(5.0, 4.0)
    )
    X = np.array([[1.0, 2.0], [3.0, 2.5], [99.0, np.nan]])
    np.testing.assert_allclose(scaling.transform(X), [[0, 0], [1, 1], [2, 0]])
    np.testing.assert_allclose(scaling.transform({"b": X[:, 1], "a": X[:, 0]}), scaling.transform(X))
    np.testing.assert_allclose(scaling.inverse_transform(scaling.transform(X[:2])), X[:2])
    with pytest.raises(InvalidInput, match="2 columns"):
        scaling.transform(X[:, :1])
    with pytest.raises(InvalidInput, match="deviations"):
        Scaling(columns=("a",), means=(1.0,), deviations=(0.0,), lower=(0.0,), upper=(1.0,))
    with pytest.raises(InvalidInput, match="means must be one for"):
        Scaling(columns=("a",), means=(1.0, 2.0), deviations=(1.0,), lower=(0.0,), upper=(1.0,))


def test_in_a_session_it_is_charged_stored_and_used_by_a_trainer(tmp_path: Path) -> None:
    session = dp.open(table(), budget=dp.Budget(epsilon=5, delta=1e-5), ledger=tmp_path / "ledger")
    before = session.spent
    scaling = session.ask(scaler()).value
    assert isinstance(scaling, Scaling)
    charged = session.spent
    assert charged > before
    assert session.ask(scaler()).value == scaling, "the same question again is answered from the ledger"
    assert session.spent == charged
    columns = Tabular(features=("age", "pay"), target="sick", scaling=scaling)
    x, _ = columns.read(table()).take(np.arange(N))
    raw = {name: table()._table[name].to_numpy() for name in ("age", "pay")}
    np.testing.assert_allclose(x.numpy(), scaling.transform(raw), rtol=1e-5, atol=1e-6)
    trained = Trainer(
        nn.Linear(2, 2),
        nn.CrossEntropyLoss(),
        public=PUBLIC,
        noise_multiplier=2.0,
        batch=200,
        steps=2,
        columns=columns,
    )
    session.ask(trained)
    assert session.spent > charged


def test_a_scaled_column_without_bounds_is_refused_before_the_charge_and_no_value_is_quoted() -> None:
    one = {"means": (0.0,), "deviations": (1.0,), "lower": (0.0,), "upper": (1.0,)}
    columns = Tabular(features=("sick",), target="sick", scaling=Scaling(columns=("sick",), **one))
    for refused in (lambda: columns.shapes(PUBLIC), lambda: columns.read(table(n=4))):
        with pytest.raises(InvalidInput, match=r"categories; this needs Bounds") as error:
            refused()
        assert "'no'" not in str(error.value)


def test_no_deviation_is_zero_however_little_is_there() -> None:
    empty = Memory(
        pa.table(
            {
                "age": pa.array([], pa.float64()),
                "pay": pa.array([], pa.float64()),
                "sick": pa.array([], pa.string()),
            }
        ),
        PUBLIC,
    )
    for seed in range(20):
        found = scaler(rho=1e-4)(empty, entropy=SeededEntropy(seed)).value
        assert all(d >= 0.12 for d in found.deviations[:1])
        assert np.isfinite(found.transform(np.array([[1.0, 2.0]]))).all()
        assert 0 <= found.means[0] <= 120


@pytest.mark.parametrize("top", [1e200, 2.0**1021, 1e-200, 1e-322])
def test_bounds_whose_squares_are_no_floats_are_scaled_like_others(top: float) -> None:
    """Huge ones failed after the charge; tiny ones had the floor as their deviation, with an error of 0."""
    public = Public(schema={"x": Bounds(0, top)}, size=120)
    source = Memory({"x": np.array([0.0, 0.0, 0.0, top] * 30)}, public)
    found = PrivateScaler(public=public, columns=("x",), rho=10**6)(source, entropy=SeededEntropy(1))
    assert found.value.means[0] == pytest.approx(top / 4, rel=0.1)
    assert found.value.deviations[0] == pytest.approx(top * math.sqrt(3) / 4, rel=0.1)
    assert all(0 < error < top / 10 or top < 1e-300 for error in found.error(0.99)["x"])


def test_a_scaling_refuses_what_it_cannot_scale_and_quotes_no_value() -> None:
    scaling = Scaling(columns=("a", "b"), means=(0, 1), deviations=(1, 2), lower=(0, 0), upper=(5, 5))
    for X in ([["secret", 1.0]], {"a": [1.0]}, {"a": ["secret"], "b": [1.0]}):
        with pytest.raises(InvalidInput, match=r"the column|the values to scale are") as refused:
            scaling.transform(X)
        assert "secret" not in str(refused.value)
    with pytest.raises(InvalidInput, match="none of the columns"):
        scaling.column("c", np.zeros(1))
    for bad in (
        {"columns": ("a", "a")},
        {"means": (math.nan, 0)},
        {"means": ("x", 0)},
        {"upper": (math.inf, 1)},
    ):
        with pytest.raises(InvalidInput, match=r"a column is named twice|means|upper"):
            dataclasses.replace(scaling, **bad)


def test_the_error_is_about_the_floats_that_are_released() -> None:
    """Between 1e17 and the next float there is room for sixteen: the mean's own rounding is an error of 4."""
    low, high = 10**17, 10**17 + 16
    public = Public(schema={"x": Bounds(low, high, nullable=False)}, size=120)
    source = Memory({"x": np.array([low, low, low, high] * 30, dtype=float)}, public)
    found = PrivateScaler(public=public, columns=("x",), rho=10**6)(source, entropy=SeededEntropy(1))
    assert abs(Fraction(found.value.means[0]) - (low + 4)) <= Fraction(found.error(0.99)["x"][0])


def test_the_error_grows_with_the_confidence_with_four_rows() -> None:
    public = Public(schema={"a": Bounds(-3, 5)}, size=4)
    scaler, entropy = PrivateScaler(public=public, columns=("a",), rho=0.1), SeededEntropy(1)
    for _ in range(20):
        answer = scaler(Memory({"a": [-2.0, 0.0, 1.0, 3.0]}, public), entropy=entropy)
        errors = [answer.error(c)["a"] for c in (0.01, 0.1, 0.3, 0.5, 0.8, 0.95, 0.999)]
        assert all(a <= b and c <= d for (a, c), (b, d) in itertools.pairwise(errors))


def test_what_is_not_declared_or_not_one_row_a_person_is_refused() -> None:
    with pytest.raises(PrivateFact, match="nothing is declared of column"):
        scaler(columns=("height",))
    with pytest.raises(InvalidInput, match="column"):
        scaler(columns=("sick",))
    with pytest.raises(InvalidInput, match="twice"):
        scaler(columns=("age", "age"))
    with pytest.raises(Unsupported, match="the unit of privacy is"):
        scaler(public=Public(schema=SCHEMA, unit=Unit("id")))
    for bad in ({"rho": 0}, {"cells": 0}, {"cells": 1 << 29}, {"columns": ()}, {"columns": "age"}):
        with pytest.raises(InvalidInput, match=r"must be|must not"):
            scaler(**bad)
    with pytest.raises(InvalidInput, match="scaling must be the Scaling"):
        Tabular(features=("age",), target="sick", scaling=3)  # type: ignore[arg-type]
    assert scaler()(table(), entropy=Entropy()).private
