"""Odd values of any public parameter are refused in words of ours, or do no harm; flags and texts are nothing
else."""

from __future__ import annotations

import dataclasses
import inspect
import math
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from importlib import import_module
from inspect import ismodule
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet import _registry
from discreet import accounting as acc
from discreet._public import Bounds, Public
from discreet.mechanisms import IntegerGaussian, IntegerLaplace
from discreet.tabular import HuberRegressor, Ridge, estimator_base

PACKAGES = {name for name in dp.__all__ if ismodule(getattr(dp, name))}

ODD: tuple[Any, ...] = (
    *(True, -1, 2.5, math.nan, math.inf, 10**400, -(10**400), Fraction(1, 10**400), Decimal("1.5")),
    *(Decimal("sNaN"), 1j, "x", "", "False", b"x", (), [1], {}, object(), np.longdouble(1.5)),
    *(np.float32("nan"), np.array([1.0, 2.0])),
)
COUNT = "SELECT COUNT(*) AS n FROM t"
DATA = {"id": [1, 2, 3], "x": [1, 2, 3], "c": ["a", "b", "a"]}
SCHEMA = {"x": dp.Bounds(0, 5), "c": dp.Categories(["a", "b"])}
NORMAL = acc.Gaussian(noise_multiplier=2)
OPEN = {"data": {"x": [1, 2]}, "table": "t", "schema": {"x": dp.Bounds(0, 5)}, "unit": dp.rows(),
        "budget": dp.Budget(epsilon=1), "ledger": ":memory:"}  # fmt: skip
# each with its own smallest sensible call; `data` and `ledger` may be anything, and are tested elsewhere
CALLS: dict[str, dict[str, Any]] = {
    "sql": {"text": COUNT, "epsilon": 0.1},
    "workload": {"queries": [COUNT], "epsilon": 0.1},
    "preview": {"text": COUNT, "epsilon": 0.1},
    "cut_off": {"rows": 2, "epsilon": 0.1},
    "suggest": {"column": "x", "epsilon": 40},
    "suggest_limits": {"text": COUNT, "epsilon": 0.1},
    "preview_suggest": {"what": "x", "epsilon": 0.1},
    "plan": {"work": [COUNT], "epsilon": 0.1},
    "watch": {"threshold": 3, "epsilon": 0.1},
    "stream": {"text": COUNT, "epsilon": 0.1, "horizon": 3, "participations": 1},
    "as_analyst": {"name": "steward"},
    "dummy": {"rows": 3},
}
FUNCTIONS: list[tuple[Callable[..., Any], dict[str, Any]]] = [
    (dp.open, OPEN),
    (dp.explain, {"subject": 1.0}),
    (dp.Budget, {"epsilon": 1}),
    (dp.Unit, {"column": "x"}),
    (dp.Bounds, {"lower": 0, "upper": 1}),
    (dp.Categories, {"values": ["a"]}),
    (dp.Dates, {"lower": "2020-01-01", "upper": "2021-01-01"}),
    (dp.Boolean, {}),
    (dp.Public, {"schema": SCHEMA}),
    (acc.epsilon, {"event": NORMAL, "delta": 1e-6}),
    (acc.delta, {"event": NORMAL, "epsilon": 1.0}),
    (acc.bounds, {"event": NORMAL, "delta": 1e-6}),
    (acc.compare, {"event": NORMAL, "delta": 1e-6}),
    (acc.tradeoff, {"event": NORMAL, "alpha": 0.1}),
    (acc.geometric, {"gamma": 0.1}),
    (IntegerLaplace.for_epsilon, {"epsilon": 1.0}),
    (IntegerLaplace.for_rho, {"rho": 0.5}),
    (IntegerLaplace.for_privacy, {"epsilon": 1.0}),
    (IntegerGaussian.for_rho, {"rho": 0.5}),
    (IntegerGaussian.for_privacy, {"epsilon": 1.0, "delta": 1e-6}),
]


def walk(function: Callable[..., Any], call: dict[str, Any]) -> list[tuple[str, str, str]]:
    """Call with every odd value in every parameter; return what came out as an error that is not ours, or was
    taken for a flag or a text and is none."""
    escaped = []
    function(**call)
    for name, parameter in inspect.signature(function).parameters.items():
        kinds = set(str(parameter.annotation).split(" | ")) - {"None"}
        for value in ODD if name not in ("data", "ledger") else ():
            try:
                function(**{**call, name: value})
            except dp.DiscreetError:
                continue
            except Exception as error:
                escaped.append((name, type(value).__name__, f"{type(error).__name__}: {error}"))
                continue
            if (kinds == {"bool"} and value is not True) or (kinds == {"str"} and not isinstance(value, str)):
                escaped.append((name, type(value).__name__, "was accepted"))
    return escaped


@pytest.mark.parametrize(
    ("function", "call"), FUNCTIONS, ids=[getattr(f, "__qualname__", str(f)) for f, _ in FUNCTIONS]
)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_odd_values_are_refused_in_words_of_ours(
    function: Callable[..., Any], call: dict[str, Any], tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert walk(function, call) == []


@pytest.fixture(scope="module")
def people() -> dp.Session:
    return dp.open(DATA, table="t", schema=SCHEMA, unit=dp.Unit("id", rows=1),
                   budget=dp.Budget(epsilon=10**6, delta=1e-4), ledger=":memory:", large_epsilon=True)  # fmt: skip


@pytest.mark.parametrize("verb", CALLS)
def test_odd_values_of_a_sessions_verbs_are_refused_in_words_of_ours(people: dp.Session, verb: str) -> None:
    assert walk(getattr(people, verb), CALLS[verb]) == []


def test_a_text_is_no_flag_and_is_not_paid_for(people: dp.Session) -> None:
    people.sql(COUNT, epsilon=0.1)
    spent = people.spent
    with pytest.raises(dp.InvalidInput, match="fresh must be True or False, got 'False'"):
        people.sql(COUNT, epsilon=0.1, fresh="False")  # type: ignore[arg-type]
    assert people.spent == spent


def test_a_message_shows_no_endless_number() -> None:
    with pytest.raises(dp.InvalidInput, match="a value of type int"):
        acc.delta(NORMAL, epsilon=10**5000)


# Results that we make ourselves, and pictures: nobody pays by them.
RECORDS = {
    "CopyComparison", "Decision", "DomainColumn", "Marginal", "QualityReport", "Release",
    "Report", "Standing",
}  # fmt: skip
# Constructors of estimators keep what they are given until `fit`; settings of speed change no price. The law
# of a simulated change, and what a strategy of discoveries is told of its own decision, are computed.
UNCHECKED = {"ClippingEngine", "Performance", "FlipAndShift", "BernoulliChange", "GaussianChange",
             "GeneralizedAlphaInvesting", "Lord3", "routes", "Policy", "draft", "Ledger"}  # fmt: skip


def flags_of(function: Any) -> list[str]:
    annotations = getattr(function, "__annotations__", {})
    return [n for n, kind in annotations.items() if n != "return" and str(kind) in ("bool", "bool | None")]


def test_every_public_flag_is_checked() -> None:
    """Structural: a function with a flag is decorated with `_require.check_options`, a class with one has a
    description, whose constructor checks flags."""
    unchecked = []
    for package in sorted(PACKAGES):
        module = import_module(f"discreet.{package}")
        for name in module.__all__:
            thing = getattr(module, name)
            if name in UNCHECKED | RECORDS or not getattr(thing, "__module__", "").startswith("discreet"):
                continue
            if inspect.isfunction(thing) and flags_of(thing) and not hasattr(thing, "__wrapped__"):
                unchecked.append(f"{package}.{name}")
            if not inspect.isclass(thing):
                continue
            fields = dataclasses.fields(thing) if dataclasses.is_dataclass(thing) else ()
            if any(str(f.type) in ("bool", "bool | None") and f.init for f in fields):
                # an estimator's are checked when its mechanism is built
                checked = thing in _registry._TAGS or issubclass(thing, estimator_base.Estimator)
                unchecked += [] if checked else [f"{package}.{name}"]
            methods = {n: getattr(m, "__func__", m) for n, m in vars(thing).items() if not n.startswith("_")}
            unchecked += [
                f"{package}.{name}.{n}"
                for n, m in methods.items()
                if inspect.isfunction(m) and flags_of(m) and not hasattr(m, "__wrapped__")
            ]
    assert unchecked == []


def test_a_flag_of_an_estimator_is_checked_when_its_mechanism_is_built() -> None:
    public = Public(schema={"x": Bounds(0.0, 1.0), "y": Bounds(0.0, 1.0)}, size=100)
    for estimator in (Ridge(fit_intercept="no"), HuberRegressor(fit_intercept=1)):
        with pytest.raises(dp.InvalidInput, match="fit_intercept must be True or False"):
            estimator.mechanism(public, target="y")
