"""Every limit that a field declares is kept: a value outside is refused by its name, before anything else."""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Annotated

import pytest

from discreet import _require
from discreet._require import EXACT, POSITIVE, at_least
from discreet.mechanisms.votes import LNMax
from tests.contracts.limits import RECORD, declared, described_classes, every_limit

CLASSES = described_classes()


@pytest.mark.parametrize("tag", CLASSES)
def test_a_value_outside_of_a_declared_limit_is_refused_by_name(tag: str) -> None:
    for limit in declared(tag, CLASSES[tag]):
        limit.assert_refused()


@pytest.mark.parametrize("tag", CLASSES)
def test_the_walk_finds_every_check_that_the_constructor_makes(tag: str) -> None:
    cls = CLASSES[tag]
    init = {name for name, field in cls.__dataclass_fields__.items() if field.init}
    assert {limit.field for limit in declared(tag, cls)} == set(_require._checks_of_fields(cls)) & init


def test_no_limit_was_taken_away_or_widened() -> None:
    """A new limit is entered by `python -m tests.contracts.limits`."""
    assert [str(limit) for limit in every_limit()] == RECORD.read_text().splitlines()


@dataclass(frozen=True, kw_only=True)
class Unchecked:
    """A mutant whose constructor ignores what is declared."""

    scale: Annotated[Fraction, EXACT, POSITIVE]
    counts: tuple[Annotated[int, at_least(1)], ...] = ()


@dataclass(frozen=True, kw_only=True)
class Nameless(Unchecked):
    """A mutant that does not say which field it refuses."""

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise _require.fail("a number", self.scale, "above zero")


@_require.checked
@dataclass(frozen=True, kw_only=True)
class Kept(Unchecked):
    pass


def test_the_walk_has_teeth() -> None:
    exact, positive, counts = declared("kept", Kept)
    assert [str(limit) for limit in (exact, positive, counts)] == [
        "kept scale exactly", "kept scale positive", "kept counts[0] integer 1",
    ]  # fmt: skip
    for limit in (exact, positive):
        limit.assert_refused()
    with pytest.raises(AssertionError, match="scale positive: 0 was accepted"):
        replace(positive, cls=Unchecked).assert_refused()
    with pytest.raises(AssertionError, match="scale is not named in: a number must be above zero"):
        replace(positive, cls=Nameless).assert_refused()


def test_a_limit_that_is_taken_away_is_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(LNMax.__annotations__, "scale", "Real")
    left = [str(limit) for limit in declared("mechanisms.LNMax", LNMax)]
    recorded = [line for line in RECORD.read_text().splitlines() if line.startswith("mechanisms.LNMax ")]
    assert recorded == ["mechanisms.LNMax scale positive", *left]
