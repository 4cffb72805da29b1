"""Equality of facts, events and mechanisms: numbers of different kinds differ, as in their descriptions."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np

import discreet as dp
from discreet import _registry
from discreet._registry import registered, to_json
from discreet.accounting import PureDP
from discreet.mechanisms.matrix.triangular import BinaryTree
from discreet.query.statistic import SqlStatistic
from discreet.streaming.continual import ContinualCounter

# Equal for Python, and different numbers for what computes with them: // on whole numbers is another
# operation than on others, a True is no size, and 1 / 0.0 and 1 / -0.0 are two ends.
ONES = (1, 1.0, Fraction(1), True, Decimal(1))
PAIRS = [
    *((a, b) for a in ONES for b in ONES if a is not b),
    (0.0, -0.0),
    ((1, (2, 3)), (1, (2.0, 3))),
    ((0.0, "a"), (-0.0, "a")),
]


def classes() -> list[type]:
    """All classes that can be described and are compared by their fields."""
    for modules in _registry.PACKAGES.values():
        for module in modules:
            # A module that needs torch is left out where there is none.
            with contextlib.suppress(ModuleNotFoundError):
                importlib.import_module(f"discreet.{module}")
    compared = {cls for cls in registered().values() if dataclasses.is_dataclass(cls)}
    return sorted((cls for cls in compared if cls.__eq__ is not object.__eq__), key=lambda cls: cls.__name__)


def instance(cls: Any, name: str, value: Any) -> Any:
    """An object whose fields are all None except one, made without the class's own checks."""
    self = object.__new__(cls)
    for field in dataclasses.fields(cls):
        object.__setattr__(self, field.name, value if field.name == name else None)
    return self


def test_no_class_that_can_be_described_takes_one_kind_of_number_for_another():
    """`Bounds(0, 9)` and `Bounds(0.0, 9.0)` were equal: caches gave one the noise of the other."""
    wrong, fields = [], 0
    for cls in classes():
        for field in dataclasses.fields(cls):
            if not field.compare:
                continue
            fields += 1
            for a, b in PAIRS:
                first, second, again = (instance(cls, field.name, value) for value in (a, b, a))
                if first == second or first != again or hash(first) != hash(again):
                    wrong.append((cls.__name__, field.name, a, b))
    assert fields > 500
    assert not wrong


def test_equal_objects_have_equal_descriptions_and_the_other_way_round():
    bounds = [dp.Bounds(low, 9) for low in (0, 0.0, -0.0, Fraction(0))]
    bounds += [dp.Bounds(0, 9.0), dp.Bounds(0, 9, nullable=False)]
    facts = [dp.Public(schema={"x": bound}) for bound in bounds] + [PureDP(epsilon=e) for e in ONES[:3]]
    for first in facts:
        for second in facts:
            same_text = json.dumps(to_json(first)) == json.dumps(to_json(second))
            assert (first == second) == same_text, (first, second)
    # a number of numpy's is taken as Python's
    assert PureDP(epsilon=np.float64(1)) == PureDP(epsilon=1.0) != PureDP(epsilon=np.int64(1))


def test_each_of_two_tables_gets_its_own_noise_whichever_was_first():
    """A counter over numbers got the noise of one over whole numbers: 36, where a row moves 603,979,776."""

    def counter(bounds: dp.Bounds) -> ContinualCounter:
        return ContinualCounter(
            public=dp.Public(schema={"x": bounds, "y": dp.Bounds(0, 9)}, table="t"),
            statistic=SqlStatistic(sql="SELECT SUM(y // x) FROM t"),
            strategy=BinaryTree(),
            horizon=8,
            epsilon=1,
        )

    for bounds in (dp.Bounds(1, 9), dp.Bounds(1.0, 9.0), dp.Bounds(Fraction(1), 9)):
        made = counter(bounds)
        # a row is in one node of each of the four levels of a tree with eight leaves
        assert made.noise(8).sensitivity == 4 * made.statistic.sensitivity(made.public).linf


def test_a_budget_of_1_and_one_of_1_0_are_the_same() -> None:
    """A ledger made on the shell, `--epsilon 1`, is opened again in Python with Budget(epsilon=1)."""
    assert dp.Budget(epsilon=1.0, delta=0) == dp.Budget(epsilon=1)
    assert dp.Budget(rho=2.0) == dp.Budget(rho=2)
    assert dp.Budget(epsilon=1.5) != dp.Budget(epsilon=1)
