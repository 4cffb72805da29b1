"""A mechanism without a description is resumed with the parameters that it was started with, or not at all."""

from __future__ import annotations

import functools
from collections import namedtuple
from dataclasses import dataclass, field, fields, is_dataclass, replace
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from discreet import Bounds, Public
from discreet._errors import InvalidInput
from discreet._registry import registered
from discreet.accounting import NoOp, PureDP
from discreet.adaptive import ChangeWatch
from discreet.curator import Budget, Curator, Policy, segments
from discreet.curator.identities import parameters_of
from discreet.curator.live_mechanisms import InteractiveHandle
from discreet.mechanisms import Sensitivity, noisy_count
from discreet.mechanisms.matrix.triangular import BinaryTree
from discreet.mechanisms.protocols import Interactive, Stepped, release
from discreet.streaming.continual import ContinualCounter
from discreet.tables import Memory

PUBLIC = Public(schema={"x": Bounds(0, 1)}, table="series", version="1")


def series(version="1"):
    return Memory({"t": np.arange(1, 21), "x": np.zeros(20)}, replace(PUBLIC, version=version))


@pytest.fixture
def curator(tmp_path):
    return Curator.create(tmp_path / "series.ledger", series(), Policy(budget=Budget(epsilon=3)))


def opened(curator, version="1"):
    """As another process would open it."""
    return Curator.open(curator.ledger.path, series(version))


class Ratios:
    """What the steward's own changes have in common."""

    def ratios(self, values):
        return np.full(len(values), self.range[0])

    def draw(self, generator, count, *, changed):
        return generator.uniform(size=count)


def in_an_attribute(most):
    class Mine(Ratios):
        def __init__(self):
            self.range = (-most, most)

    return Mine()


def in_a_private_attribute(most):
    class Mine(Ratios):
        def __init__(self):
            self._most = most

        @property
        def range(self):
            return (-self._most, self._most)

    return Mine()


def in_the_class(most):
    class Mine(Ratios):
        range = (-most, most)

    return Mine()


def in_the_code(most):
    class Mine(Ratios):
        @property
        def range(self):
            return (-most, most)

    return Mine()


def in_slots(most):
    class Mine(Ratios):
        __slots__ = ("range",)

        def __init__(self):
            self.range = (-most, most)

    return Mine()


def in_a_dataclass(most):
    @dataclass(frozen=True, slots=True)
    class Mine(Ratios):
        most: float
        seen: list = field(default_factory=list, compare=False)

        @property
        def range(self):
            return (-self.most, self.most)

    return Mine(most)


CHANGES = [
    in_an_attribute, in_a_private_attribute, in_the_class, in_the_code, in_slots, in_a_dataclass
]  # fmt: skip


def watch(change):
    return ChangeWatch(
        public=PUBLIC, column="x", time="t", times=20, change=change, window=2, threshold=50, epsilon=1
    )


@pytest.mark.parametrize("change", CHANGES)
def test_a_watch_does_not_go_on_with_larger_ratios_than_its_noise_is_for(curator, change):
    """Started with ratios within 1 and resumed with 1000, it answered under the same charge."""
    live = curator.start(watch(change(1.0)))
    again = opened(curator)
    same = again.resume(watch(change(1.0)), live.number)
    assert not same.answer(2).value.raised
    before = curator.ledger.anchor
    with pytest.raises(InvalidInput, match=r"other parameters than are given now: change differ\."):
        again.resume(watch(change(1000.0)), live.number)
    # nor through a handle of one's own
    handle = InteractiveHandle(again.ledger, again.source, watch(change(1000.0)), live.number, again._entropy)
    with pytest.raises(InvalidInput, match="change differ"):
        handle.answer(3)
    assert curator.ledger.anchor == before
    assert not same.answer(3).value.raised


def test_another_class_or_number_is_refused_and_named(curator):
    live = curator.start(watch(in_an_attribute(1.0)))
    for other, names in (
        (replace(watch(in_an_attribute(1.0)), window=3, threshold=40), "threshold, window"),
        (replace(watch(in_an_attribute(1.0)), threshold=50.0), "threshold"),
        (watch(in_slots(1.0)), "change"),
        (watch(in_an_attribute(1)), "change"),
    ):
        with pytest.raises(InvalidInput, match=f"given now: {names} differ"):
            opened(curator).resume(other, live.number)


class Moves:
    """A statistic of the steward's: its sensitivity is a function of the public facts."""

    def __init__(self, most):
        self.sensitivity = functools.partial(self._sensitivity, most)

    @staticmethod
    def _sensitivity(most, public):
        return Sensitivity(linf=most)

    def __call__(self, source):
        return np.array([0])


class Told(Moves):
    """The same, as code that another version of a script has changed."""

    def __init__(self, most):
        type(self)._most = most

    def sensitivity(self, public):
        return Sensitivity(linf=self._most)


@pytest.mark.parametrize("statistic", [Moves, Told])
def test_a_stream_does_not_go_on_with_a_larger_sensitivity(curator, statistic):
    def counter(most):
        return ContinualCounter(
            public=PUBLIC, statistic=statistic(most), strategy=BinaryTree(), horizon=4, epsilon=1
        )

    live = curator.start(counter(1))
    # the next version of the table goes on, the statistic with another sensitivity does not
    opened(curator, "2").feed(counter(1), live.number, batch=True)
    with pytest.raises(InvalidInput, match="statistic differ"):
        opened(curator, "3").resume(counter(1000), live.number)


class Own(Interactive):
    """An interactive mechanism of the steward's own."""

    event = PureDP(epsilon=1)

    def __init__(self, scale):
        self.public, self.scale = PUBLIC, scale

    def start(self, source, *, entropy):
        return {"asked": 0}

    def answer(self, state, source, question, *, entropy):
        return {"asked": state["asked"] + 1}, release(self.scale, event=NoOp(), entropy=entropy)


def test_a_mechanism_of_the_stewards_own_goes_on_with_its_own_numbers_only(curator):
    live = curator.start(Own(2))
    assert opened(curator).resume(Own(2), live.number).answer("x").value == 2
    for other in (Own(3), Own(2.0), watch(in_an_attribute(1.0))):
        with pytest.raises(InvalidInput, match="other parameters"):
            opened(curator).resume(other, live.number)


class Stopped(BaseException):
    """The process ends."""


class InSteps(Stepped):
    """A run of the steward's own, in two steps."""

    public, event, length, period, progress, steps_taken = PUBLIC, PureDP(epsilon=1), 2, 1, None, 0

    def __init__(self, scale):
        self.scale = scale

    def start(self, source, *, entropy):
        return self

    def restore(self, source, raw, steps_taken, *, entropy):
        self.steps_taken = steps_taken
        return self

    def __enter__(self):
        return self

    def __exit__(self, *error):
        return None

    def step(self):
        raise Stopped

    def dump(self):
        return b""


def test_a_run_in_steps_does_not_go_on_with_another_scale(curator, tmp_path):
    with pytest.raises(Stopped):
        curator.run(InSteps(2), checkpoint=tmp_path / "run", every=1)
    with pytest.raises(InvalidInput, match="with other options"):
        segments.resume(curator, InSteps(3), tmp_path / "run")
    with pytest.raises(Stopped):
        segments.resume(curator, InSteps(2), tmp_path / "run")


def interactive_classes() -> list[Any]:
    import discreet.learning.pate as pate
    import discreet.streaming

    assert discreet.streaming
    classes = [cls for cls in registered().values() if is_dataclass(cls) and hasattr(cls, "answer")]
    return [*(cls for cls in classes if hasattr(cls, "event")), pate.PrivateTeachers]


def test_every_parameter_of_every_interactive_mechanism_is_compared():
    """Built without their own checks: each field in turn gets a value, then another."""
    pytest.importorskip("torch")
    classes = interactive_classes()
    assert len(classes) > 8
    for cls in classes:
        for name in (f.name for f in fields(cls) if f.compare and f.name != "public"):
            digests = []
            for value in (in_an_attribute(1.0), in_an_attribute(1000.0)):
                mechanism = object.__new__(cls)
                for f in fields(cls):
                    object.__setattr__(mechanism, f.name, None)
                object.__setattr__(mechanism, "public", PUBLIC)
                object.__setattr__(mechanism, name, value)
                digests.append(parameters_of(mechanism))
            assert [n for n in digests[0] if digests[0][n] != digests[1][n]] == [name], (cls, name)


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    ("value", "other"),
    [
        (1, 1.0), (1, True), (1, Fraction(1)), (0.0, -0.0), (1, "1"), (b"1", "1"), (Decimal(1), Decimal("1.5")),
        ([10**5000], [10**5000 + 1]), ([Fraction(1, 10**5000)], [Fraction(2, 10**5000)]), ("\ud800", "\udfff"),
        ([1, 2], [2, 1]), ({"a": 1}, {"a": 2}), ({1, 2}, {1, 3}), (Pair(1, 2), Pair(1, 3)),
        (np.array([1, 2]), np.array([1.0, 2.0])), (np.array([1, 2]), np.array([1, 3])),
        (functools.partial(max, 1), functools.partial(max, 2)), (max, min), (dict, list), (np, functools),
        (in_an_attribute(1).ratios, in_an_attribute(2).ratios),
        ([in_a_dataclass(1)], [in_a_dataclass(2)]),
        (noisy_count(PUBLIC, epsilon=1), noisy_count(PUBLIC, epsilon=2)),
    ],
)  # fmt: skip
def test_values_that_differ_have_different_digests(value, other):
    assert parameters_of(Own(value)) != parameters_of(Own(other))


def test_equal_values_have_equal_digests_and_an_object_may_hold_itself():
    around: dict[str, Any] = {"b": {2, 1}, "a": np.int64(1)}
    around["self"] = around
    again: dict[str, Any] = {"a": 1, "b": {1, 2}}
    again["self"] = again
    assert parameters_of(Own(around)) == parameters_of(Own(again))
    deep: list[Any] = []
    for _ in range(5000):
        deep = [deep]
    assert parameters_of(Own(deep)).keys() == parameters_of(Own(1)).keys()
    later = Own(noisy_count(replace(PUBLIC, version="2"), epsilon=1))
    assert parameters_of(later) == parameters_of(Own(noisy_count(PUBLIC, epsilon=1)))
