"""No option decides whether a run fails on data: what a run shows beside its noisy value is the same on all
tables.

Each run takes a mechanism of the package, or a verb of `Session`, with random options, and two tables: two neighbors,
or any two with the same public facts, hostile rows included (`outcomes`). Refusals, failures, the words of errors,
warnings, prices and the entries of the ledger must be the same on both. The draws of noise are the same on both, so
that a difference is due to the data, and nothing here fails by chance.
"""

from __future__ import annotations

import dataclasses
import inspect
import random
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import discreet as dp
from discreet._errors import DiscreetError
from discreet._public import ADD_REMOVE, Public
from discreet.accounting import RepeatAndSelect
from discreet.curator import Budget, Curator, Period, Policy
from discreet.mechanisms import AddNoise
from discreet.mechanisms.protocols import Interactive, Stepped
from discreet.session import Session
from discreet.streaming.stream_statistics import UnitRecord
from discreet.tables import Memory

from .changes import candidates, changed, fields_of, seen_values
from .outcomes import Replayed, neighbor_of, outcome, replayed, table_like
from .test_mechanisms import CASES
from .verbs import OTHERWISE, SCHEMA, TABLE, TABLES, VERBS, facts, follow, opened, terms, visits_like

# Closed: of these, *when* they halt is what they release, since they halt after so many noisy answers of one kind.
# Nothing is compared from the first halt on either table on. Everything else they show is compared: that they start,
# what they cost, and that no question fails.
HALTS_BY_ITS_ANSWERS = {
    "AboveThreshold": "halts at the first noisy count above the noisy threshold",
    "ChangeWatch": "halts after `times` alarms",
    "Paprika": "halts after so many noisy rejections",
    "PrivateTeachers": "some aggregators halt after so many noisy answers, or refusals",
    "RedrawnSparseVector": "halts after `positives` answers above",
    "ShakyLadder": "halts after so many noisy improvements",
    "SparseVector": "halts after `positives` answers above",
    "SparseVectorBoard": "halts after so many noisy improvements",
    "StableSparseVector": "halts after so many unstable answers, which a noisy distance decides",
    "Thresholdout": "halts after so many noisy findings of overfitting",
    "teach": "the verb of `PrivateTeachers`",
    "watch": "the verb of `SparseVector` and `RedrawnSparseVector`",
}
# Run on the tables of their case only.
OWN_TABLES = {
    "sparse vector, replace, trusted question": "its question is the steward's code, and fails on a missing age",
}
# How often a verb is drawn: those that read nothing rarely, the plain ones often.
READS_NOTHING, PLAIN = ("preview", "explain", "preview_teach"), ("sql", "watch", "stream", "fit")
REFUSALS = ("InvalidInput", "QueryError", "Unsupported", "PrivateFact", "WrongRelation", "UnknownOption")
SEEN = seen_values(CASES)


def two_tables(template: pa.Table, public: Public, source: random.Random) -> list[pa.Table]:
    """Two neighbors, or any two tables."""
    first = table_like(template, public, source)
    if source.random() < 0.4:
        return [first, neighbor_of(first, template, public, source)]
    return [first, table_like(template, public, source)]


def difference(here: Any, there: Any) -> str | None:
    """The first difference between what two runs show."""
    if here == there:
        return None
    if isinstance(here, dict) and isinstance(there, dict) and here.keys() == there.keys():
        return next(f"{key}: {found}" for key in here if (found := difference(here[key], there[key])))
    sequences = isinstance(here, list | tuple) and isinstance(there, list | tuple)
    if sequences and len(here) == len(there):
        inner = (difference(*parts) for parts in zip(here, there, strict=True))
        return next(f"{n}: {found}" for n, found in enumerate(inner) if found)
    return f"{here}\n   on the other table\n{there}"


def until_halted(name: str, pair: list[list[Any]]) -> list[list[Any]]:
    """What is compared: everything, or what was shown before a mechanism halted on one of the tables."""
    if name not in HALTS_BY_ITS_ANSWERS:
        return pair
    ends = [n for shown in pair for n, one in enumerate(shown) if one[0].startswith("Halted")]
    return [shown[: min(ends, default=None)] for shown in pair]


# -- mechanisms


def run(mechanism: Any, questions: Sequence[Any], source: Any, seed: int, path: Path) -> list[Any]:
    """What one run shows: of its start, and of each question."""
    # Never spent; in rho, which is quickly computed, but for runs that have no price in it.
    price = {"epsilon": 10**6} if isinstance(mechanism.event, RepeatAndSelect) else {"rho": 10**9}
    policy = Policy(budget=Budget(**price, delta=0.4 / (source.public.size or 1)))
    with replayed(seed):
        curator = Curator.create(path, source, policy, large_delta=True, large_epsilon=True, durable=False)
        if not isinstance(mechanism, Interactive):
            verb: Any = curator.run if isinstance(mechanism, Stepped) else curator.ask
            return [outcome(curator.ledger, lambda: verb(mechanism))]
        handles: list[Any] = []
        shown = [outcome(curator.ledger, lambda: handles.append(curator.start(mechanism)))]
        for question in questions if handles else ():
            shown.append(outcome(curator.ledger, lambda question=question: handles[0].answer(question)))
        return shown


def walk_mechanisms(seed: int, folder: Path, cases: Sequence[Any] = CASES) -> Iterator[str | None]:
    """Random runs of mechanisms without end, and what differs in each; the cases take turns."""
    for number in range(10**9):
        source = random.Random(f"mechanism {seed} {number}")
        case = cases[number % len(cases)]
        mechanism, public = changed(case, source, SEEN), case.mechanism.public
        sources = [case.source, case.neighbor]
        if isinstance(case.source, Memory) and case.name not in OWN_TABLES:
            sources = [Memory(table, public) for table in two_tables(case.source._table, public, source)]
        paths = [folder / f"{seed} {number} {side}.ledger" for side in range(2)]
        pair = [run(mechanism, case.questions, *side, number, path)
                for *side, path in zip(sources, paths, strict=True)]  # fmt: skip
        found = difference(*until_halted(type(mechanism).__name__, pair))
        yield found and f"seed {seed}, run {number}, {case.name}: {mechanism}\n{found}"


def test_every_option_of_every_mechanism_is_changed() -> None:
    """A new field is found here, and fails until there is a rule for its values or a reason to keep it."""
    unknown = {
        f"{type(case.mechanism).__name__}: {path}"
        for case in CASES
        for path, field, value in fields_of(case.mechanism)
        if not dataclasses.is_dataclass(value) and not candidates(field, value, case.mechanism.public, SEEN)
    }
    assert unknown == set()
    assert {type(case.mechanism).__name__ for case in CASES} | VERBS.keys() >= HALTS_BY_ITS_ANSWERS.keys()
    assert {case.name for case in CASES} >= OWN_TABLES.keys()


def test_no_option_of_a_mechanism_decides_whether_it_fails_on_data(tmp_path: Path) -> None:
    """One run of each case; in `make test-all` there are 40."""
    assert [found for found in islice(walk_mechanisms(1, tmp_path), len(CASES)) if found] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_no_option_of_a_mechanism_decides_whether_it_fails_on_data_in_many_runs(
    seed: int, tmp_path: Path
) -> None:
    assert [found for found in islice(walk_mechanisms(seed, tmp_path), 800) if found] == []


def test_a_mechanism_that_fails_on_an_empty_table_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: Any, source: Any, *, entropy: Any) -> Any:
        assert sum(batch.num_rows for batch in source.batches(source.column_names))
        return honest(self, source, entropy=entropy)

    honest = AddNoise.__call__
    monkeypatch.setattr(AddNoise, "__call__", failing)
    cases = [case for case in CASES if isinstance(case.mechanism, AddNoise)]
    assert any(islice(walk_mechanisms(1, tmp_path, cases), 40))


# -- the verbs of a session


def two_sessions(template: pa.Table, source: random.Random) -> list[Session]:
    """Sessions on two tables, alike but for the rows; sometimes of a period, or of an analyst."""
    public = facts(source)
    total = None if public.unit.column is None else "unlimited"
    per = source.choice(
        [None] * 8 + [Period(column="day", every="day", total=total), Period(column="c", total=total)]
    )
    per = per if public.neighbors is ADD_REMOVE and not public.tables else None
    # Never spent; without a delta, noise is quickly calibrated.
    budget = Budget(epsilon=10**6, delta=source.choice((0, 0.4 / (public.size or 1))), per=per)
    tables = two_tables(template, public, source)
    sessions = [opened(table, visits_like(source), public, budget) for table in tables]
    if per is not None and source.random() < 0.7:
        name = source.choice(("2020-01-02", "2020-01-03") if per.column == "day" else ("a", "b"))
        sessions = [session.during(name) for session in sessions]
    return [session.as_analyst("ann") for session in sessions] if source.random() < 0.2 else sessions


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


def walk_verbs(seed: int, verbs: Sequence[str]) -> Iterator[str | None]:
    """Random calls of verbs without end, and what differs in each; a call that is refused is followed by up to four
    others of the same verb, which are compared as well."""
    sessions: list[Session] = []
    template = TABLE
    for number in range(10**9):
        source = random.Random(f"verb {seed} {number}")
        verb = source.choice(verbs)
        with replayed(number):
            if number % 4 == 0 or not sessions:
                template = source.choice(TABLES)
                sessions = two_sessions(template, source)
            batches = [two_tables(template, sessions[0].public, source) for _ in range(3)]
            for attempt in range(5):
                text = f"seed {seed}, run {number}, attempt {attempt}"
                pair = [call(session, verb, number, text, [tables[side] for tables in batches])
                        for side, session in enumerate(sessions)]  # fmt: skip
                found = difference(*until_halted(verb, pair))
                if found or not pair[0][0][0].startswith(REFUSALS):
                    break
            # Once two ledgers differ, the numbers of their entries do: the next call is on new ones.
            same = pair[0] == pair[1]
            yield found and f"{text}: {verb}({terms(verb, sessions[0], random.Random(text))})\n{found}"
            sessions = sessions if same else []


OFTEN = [verb for verb in VERBS if verb not in READS_NOTHING] * 3 + [*READS_NOTHING, *PLAIN * 3]


def test_every_verb_and_every_option_of_a_session_is_tried() -> None:
    """A new verb or option is found here, and fails until there are values for it, or a reason."""
    methods = {n: m for n, m in inspect.getmembers(Session, inspect.isfunction) if not n.startswith("_")}
    assert VERBS.keys() | OTHERWISE.keys() == methods.keys()
    for verb, options in VERBS.items():
        assert options.keys() == inspect.signature(methods[verb]).parameters.keys() - {"self"}, verb


def test_no_option_of_a_verb_decides_whether_it_fails_on_data() -> None:
    assert [found for found in islice(walk_verbs(1, OFTEN), 24) if found] == []


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 12))
def test_no_option_of_a_verb_decides_whether_it_fails_on_data_in_many_runs(seed: int) -> None:
    assert [found for found in islice(walk_verbs(seed, OFTEN), 200) if found] == []


def test_a_tick_that_fails_if_many_come_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it did when an analyst could limit the record of units."""

    def failing(self: UnitRecord, *batch: Any, **rule: Any) -> Any:
        admitted = honest(self, *batch, **rule)
        assert len(self._entries) <= 2
        return admitted

    honest = UnitRecord.admit
    monkeypatch.setattr(UnitRecord, "admit", failing)
    assert any(islice(walk_verbs(1, ["stream"]), 60))


def test_whether_an_answer_is_served_again_does_not_depend_on_the_rows(tmp_path: Path) -> None:
    def opening(table: pa.Table, name: str) -> Session:
        return dp.open(table, schema=SCHEMA, unit="who", table="t", budget=Budget(epsilon=10),
                       ledger=tmp_path / name)  # fmt: skip

    shown = []
    text = "SELECT COUNT(DISTINCT who) AS n FROM t"
    for name, later in (("same", TABLE), ("other", TABLE.slice(1))):
        opening(TABLE, name).sql(text, epsilon=1)
        again = opening(later, name)
        shown.append(outcome(again.ledger, lambda again=again: again.sql(text, epsilon=1)))
    assert difference(*shown) is None
