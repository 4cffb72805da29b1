"""No option decides whether a run fails on data: what a run shows beside its noisy value is the same on all
tables.

Each run takes a mechanism of the package with random options, or a verb of `Session` with random options, and two
tables: two neighbors, or any two with the same public facts, hostile rows included (`outcomes`). Refusals, failures,
the words of errors, warnings, prices and the entries of the ledger must be the same on both, with the same draws of
noise on both, so that a difference is due to the data.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from discreet._errors import DiscreetError
from discreet._public import ADD_REMOVE, Public
from discreet.curator import Budget, Curator, Period, Policy
from discreet.mechanisms.protocols import Interactive, SecretlyStepped, Stepped
from discreet.session import Session
from discreet.tables import Memory

from .changes import KEPT, candidates, changed, fields_of, seen_values
from .outcomes import Replayed, neighbor_of, outcome, replayed, table_like
from .test_mechanisms import CASES
from .verbs import OTHERWISE, TABLES, VERBS, facts, follow, opened, terms, visits_like

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
    "ShakyLadder": "halts after so many noisy improvements",
    "SparseVectorBoard": "halts after so many noisy improvements",
    "teach": "the verb of `PrivateTeachers`",
    "watch": "the verb of `SparseVector` and `RedrawnSparseVector`",
    "Thresholdout": "halts after so many noisy findings of overfitting",
}
# Run on the tables of their case only.
OWN_TABLES = {
    "sparse vector, replace, trusted question": "its question is the steward's code, and fails on a missing age",
}
SEEN = seen_values(CASES)
LOG = False
REFUSALS = {"InvalidInput", "QueryError", "Unsupported", "NotImplementedError"}


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


def until_halted(name: str, pair: list[Any]) -> list[Any]:
    """What is compared: everything, or what was shown before a mechanism or verb halted on one of the tables."""
    if name not in HALTS_BY_ITS_ANSWERS:
        return pair
    ends = [n for shown in pair for n, one in enumerate(shown) if one[0].startswith("Halted")]
    return [shown[: min(ends, default=None)] for shown in pair]


def difference(here: Any, there: Any) -> str | None:
    """The first difference between what two runs show."""
    if here == there:
        return None
    if isinstance(here, dict) and isinstance(there, dict) and here.keys() == there.keys():
        return next(f"{key}: {inner}" for key in here if (inner := difference(here[key], there[key])))
    sequences = isinstance(here, list | tuple) and isinstance(there, list | tuple)
    if sequences and len(here) == len(there):
        inner = (difference(*parts) for parts in zip(here, there, strict=True))
        return next(f"{n}: {found}" for n, found in enumerate(inner) if found)
    return f"{here}\n   on the other table\n{there}"


def two_tables(template: pa.Table, public: Public, source: random.Random) -> list[pa.Table]:
    """Two neighbors, or any two tables."""
    first = table_like(template, public, source)
    near = source.random() < 0.4
    return [first, neighbor_of(first, template, public, source) if near else table_like(template, public, source)]


def walk_mechanisms(runs: int, seed: int, folder: Path) -> tuple[list[str], int]:
    """The differences that so many random runs of mechanisms find, and how many of the runs failed."""
    found, failed = [], 0
    for number in range(runs):
        source = random.Random(f"{seed} {number}")
        case = CASES[number % len(CASES)]
        mechanism = changed(case, source, SEEN)
        sources = [case.source, case.neighbor]
        if isinstance(case.source, Memory) and case.name not in OWN_TABLES:
            public = case.mechanism.public
            sources = [Memory(table, public) for table in two_tables(case.source._table, public, source)]
        pair = [run(mechanism, case.questions, one, number, folder / f"{seed} {number} {i}.ledger")
                for i, one in enumerate(sources)]  # fmt: skip
        fails = any(one[0].startswith("ReleaseFailed") for shown in pair for one in shown)
        failed += fails
        if fails and LOG: print("FAILED", number, case.name, mechanism)
        if differs := difference(*until_halted(type(mechanism).__name__, pair)):
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
    assert {type(case.mechanism).__name__ for case in CASES} | VERBS.keys() >= HALTS_BY_ITS_ANSWERS.keys()


def test_no_option_of_a_mechanism_decides_whether_it_fails_on_data(tmp_path: Path) -> None:
    found, failed = walk_mechanisms(len(CASES), 1, tmp_path)
    assert found == []


# -- the verbs of a session


def two_sessions(template: pa.Table, source: random.Random) -> list[Session]:
    """Sessions on two tables, alike but for the rows; sometimes of a period, or of an analyst."""
    public = facts(source)
    related = [visits_like(public, source) for _ in range(2)]
    total = None if public.unit.column is None else "unlimited"
    per = source.choice([None] * 5 + [Period(column="day", every="day", total=total), Period(column="c", total=total)])
    per = per if public.neighbors is ADD_REMOVE and not public.tables else None
    sessions = [opened(*tables, public, per) for tables in zip(two_tables(template, public, source), related, strict=True)]
    if per is not None and source.random() < 0.7:
        name = source.choice(("2020-01-02", "2020-01-03") if per.column == "day" else ("a", "b"))
        sessions = [session.during(name) for session in sessions]
    if source.random() < 0.2:
        sessions = [session.as_analyst("ann") for session in sessions]
    return sessions


def call(session: Session, verb: str, number: int, seed: str, batches: list[pa.Table]) -> list[Any]:
    """What one call of a verb shows, and what is done with its result."""
    source = random.Random(seed)
    session.curator._entropy = Replayed(number)
    results: list[Any] = []
    try:
        options = terms(verb, session, source)
    except DiscreetError as error:
        # an estimator that refuses its options before there is a table
        return [(f"{type(error).__name__}: {error}",)]
    shown = [outcome(session.ledger, lambda: results.append(getattr(session, verb)(**options)))]
    for step in follow(verb, options, batches, source) if results else ():
        shown.append(outcome(session.ledger, lambda step=step: step(session, results[0])))
    return shown


def walk_verbs(runs: int, seed: int) -> tuple[list[str], Counter[str]]:
    """The differences that so many random calls find, and how often each verb was accepted and failed."""
    found, counts, sessions = [], Counter(), []
    for number, verb in zip(range(runs), itertools.cycle(VERBS), strict=False):
        with replayed(number):
            source = random.Random(f"{seed} {number}")
            if number % 8 == 0 or not sessions:
                template = source.choice(TABLES)
                sessions = two_sessions(template, source)
            public = sessions[0].public
            batches = [two_tables(template, public, source) for _ in range(3)]
            for attempt in range(6):
                text = f"{seed} {number} {attempt}"
                pair = [call(session, verb, number, text, [tables[i] for tables in batches])
                        for i, session in enumerate(sessions)]  # fmt: skip
                counts[f"{verb}: {pair[0][0][0].split(':')[0]}"] += 1
                if LOG: print(verb, pair[0][0][0])
                if differs := difference(*until_halted(verb, pair)):
                    options = terms(verb, sessions[0], random.Random(text))
                    found.append(f"{text} {verb} {options} {public}\n{differs}")
                if pair[0][0][0].partition(":")[0] not in REFUSALS:
                    break
            # Once two ledgers differ, the numbers of their entries do: the next call is on new ones.
            sessions = sessions if pair[0] == pair[1] else []
    return found, counts


def test_every_verb_and_every_option_of_a_session_is_tried() -> None:
    """A new verb or option is found here, and fails until there are values for it, or a reason."""
    methods = {n: m for n, m in inspect.getmembers(Session, inspect.isfunction) if not n.startswith("_")}
    assert VERBS.keys() | OTHERWISE.keys() == methods.keys()
    for verb, options in VERBS.items():
        assert [*options] != [] and options.keys() == inspect.signature(methods[verb]).parameters.keys() - {"self"}, verb
