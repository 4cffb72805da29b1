"""No option decides whether a run fails on data: what a run shows beside its noisy value is the same on all
tables.

Each run takes a mechanism of the package with random options, or a verb of `Session` with random options, and two
tables: two neighbors, or any two with the same public facts, hostile rows included (`outcomes`). Refusals, failures,
the words of errors, warnings, prices and the entries of the ledger must be the same on both, with the same draws of
noise on both, so that a difference is due to the data.
"""

from __future__ import annotations

import dataclasses
import itertools
import random
from pathlib import Path
from typing import Any

import pytest

from discreet._errors import DiscreetError
from discreet.curator import Budget, Curator, Policy
from discreet.mechanisms.protocols import Interactive, SecretlyStepped, Stepped
from discreet.tables import Memory

from .changes import KEPT, candidates, changed, fields_of, seen_values
from .outcomes import neighbor_of, outcome, replayed, table_like
from .test_mechanisms import CASES

# A mechanism whose answers are noisy comparisons halts after so many of them, so that *when* it halts is what was
# released. Answers after the first halt on either table are not compared; that one halts and how it fails is.
HALTS_BY_ITS_ANSWERS = {
    "AboveThreshold": "halts at the first noisy count above the noisy threshold",
    "SparseVector": "halts after `positives` answers above",
    "RedrawnSparseVector": "halts after `positives` answers above",
    "StableSparseVector": "halts after so many unstable answers",
    "ChangeWatch": "halts after `times` alarms, which are noisy",
    "MultiplicativeWeights": "halts after so many noisy updates",
    "Paprika": "halts after so many noisy rejections",
    "PrivateTeachers": "some aggregators halt after so many noisy answers or refusals",
    "SparseVectorBoard": "halts after so many noisy improvements",
    "Thresholdout": "halts after so many noisy findings of overfitting",
}
SEEN = seen_values(CASES)


def policy(size: int | None) -> Policy:
    """A budget that is never spent."""
    return Policy(budget=Budget(epsilon=10**6, delta=0.4 / (size or 1)))


def run(mechanism: Any, questions: Any, source: Any, seed: int, path: Path) -> tuple[Any, ...]:
    """What one run shows: of its start, and of each question."""
    with replayed(seed):
        budget = policy(source.public.size)
        curator = Curator.create(path, source, budget, large_delta=True, durable=False)
        if not isinstance(mechanism, Interactive):
            steps = isinstance(mechanism, Stepped | SecretlyStepped)
            return (outcome(curator.ledger, lambda: (curator.run if steps else curator.ask)(mechanism)),)
        handles: list[Any] = []
        shown = [outcome(curator.ledger, lambda: handles.append(curator.start(mechanism)))]
        for question in questions if handles else ():
            shown.append(outcome(curator.ledger, lambda question=question: handles[0].answer(question)))
        return tuple(shown)


def until_halted(mechanism: Any, pair: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """What is compared: everything, or what was shown before the mechanism halted on one of the tables."""
    if type(mechanism).__name__ not in HALTS_BY_ITS_ANSWERS:
        return pair
    ends = [n for shown in pair for n, one in enumerate(shown) if one[0].startswith("Halted")]
    return [shown[: min(ends, default=None)] for shown in pair]


def difference(pair: list[tuple[Any, ...]]) -> str | None:
    """The first difference between what two runs show."""
    for here, there in itertools.zip_longest(*pair):
        if here != there:
            return f"{here}\n  on the other table\n{there}"
    return None


def walk_mechanisms(runs: int, seed: int, folder: Path) -> tuple[list[str], int]:
    """The differences that so many random runs of mechanisms find, and how many of the runs failed."""
    found, failed = [], 0
    for number in range(runs):
        source = random.Random(f"{seed} {number}")
        case = CASES[number % len(CASES)]
        mechanism = changed(case, source, SEEN)
        sources = [case.source, case.neighbor]
        if isinstance(case.source, Memory):
            public = case.mechanism.public
            first = table_like(case.source._table, public, source)
            make = neighbor_of if source.random() < 0.4 else table_like
            sources = [Memory(first, public), Memory(make(first, public, source), public)]
        pair = [run(mechanism, case.questions, one, number, folder / f"{seed} {number} {i}.ledger")
                for i, one in enumerate(sources)]  # fmt: skip
        failed += any(one[0].startswith("ReleaseFailed") for shown in pair for one in shown)
        if differs := difference(until_halted(mechanism, pair)):
            found.append(f"{seed} {number} {case.name}: {mechanism}\n{differs}")
    return found, failed


def test_every_option_of_every_mechanism_is_changed() -> None:
    """A new field is found here, and fails until there is a rule for its values or a reason to keep it."""
    unknown = {
        f"{type(case.mechanism).__name__}: {path}"
        for case in CASES
        for path, field, value in fields_of(case.mechanism)
        if not dataclasses.is_dataclass(value)
        and not candidates(field, value, case.mechanism.public, SEEN)  # type: ignore[arg-type]
    }
    assert unknown == set()
    assert {type(case.mechanism).__name__ for case in CASES} >= HALTS_BY_ITS_ANSWERS.keys()


def test_no_option_of_a_mechanism_decides_whether_it_fails_on_data(tmp_path: Path) -> None:
    found, failed = walk_mechanisms(len(CASES), 1, tmp_path)
    assert found == []
