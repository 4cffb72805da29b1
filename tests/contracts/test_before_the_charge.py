"""What can fail for public reasons fails before the charge: the curator rehearses every mechanism and every
question, and after that no engine is opened and no statement runs that the engine has not planned."""

from __future__ import annotations

import re
from typing import Any

import pytest

from discreet import Bounds, Budget, Public
from discreet import open as open_table
from discreet._errors import DiscreetError, Unsupported
from discreet.mechanisms.protocols import rehearse, rehearse_parts
from discreet.query import Query
from discreet.sampling import SeededEntropy
from discreet.tables import DuckDB, EngineError, Memory, connect
from discreet.tables.engines import duckdb as engine_module
from discreet.tables.engines.duckdb import engine_of

from .audit import answers
from .case import Case
from .test_mechanisms import CASES

# One case of each mechanism with each kind of question: opening an engine for all 200 takes two seconds.
IN_MEMORY = list(
    {
        (type(case.mechanism), *map(type, case.questions)): case
        for case in CASES
        if isinstance(case.source, Memory)
    }.values()
)


def shape_of(sql: str) -> str:
    """A statement without its numbers: the key of the hash that chooses rows is another one in every run."""
    return re.sub(r"\d+", "#", sql)


class Watched:
    """Counts the engines that are opened, and keeps the statements that are planned and answered."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.opened, self.planned, self.answered = 0, set[str](), set[str]()
        connection, plan, answer = engine_module.connection, DuckDB.plan, DuckDB.answer

        def opening(*limits: Any) -> Any:
            self.opened += 1
            return connection(*limits)

        def planning(engine: DuckDB, texts: Any) -> None:
            self.planned |= set(map(shape_of, texts))
            plan(engine, texts)

        def answering(engine: DuckDB, sql: str) -> Any:
            self.answered.add(shape_of(sql))
            return answer(engine, sql)

        monkeypatch.setattr(engine_module, "connection", opening)
        monkeypatch.setattr(DuckDB, "plan", planning)
        monkeypatch.setattr(DuckDB, "answer", answering)


def test_after_the_rehearsal_no_engine_is_opened_and_no_unplanned_statement_is_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watched, asked = Watched(monkeypatch), 0
    for case in IN_MEMORY:
        # A table that nobody has asked before.
        source = Memory(case.source._table, case.source.public)  # type: ignore[attr-defined]
        rehearse(case.mechanism, source)
        for question in case.questions:
            rehearse_parts(question, source)
        opened, planned = watched.opened, set(watched.planned)
        watched.answered.clear()
        answers(case, source, SeededEntropy(1))
        assert watched.opened == opened, case.name
        assert watched.answered <= planned, case.name
        asked += bool(watched.answered)
    # Most mechanisms read rows; enough of them run statements for this test to mean something.
    assert asked >= 6


def test_a_case_without_its_rehearsal_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    case: Case = next(case for case in IN_MEMORY if isinstance(case.mechanism, Query))
    watched = Watched(monkeypatch)
    answers(case, Memory(case.source._table, case.source.public), SeededEntropy(1))  # type: ignore[attr-defined]
    assert watched.opened
    assert watched.answered - watched.planned


def session(data: Any = None) -> Any:
    public = Public(table="people", schema={"age": Bounds(0, 100)})
    source = Memory({"age": [31, 45, 27]}, public) if data is None else data(public)
    return open_table(source, budget=Budget(epsilon=3, delta=1e-6), ledger=":memory:")


QUESTIONS = {
    "sql": lambda people: people.sql("SELECT COUNT(*) AS n FROM people", epsilon=1),
    "workload": lambda people: people.workload(["SELECT COUNT(*) AS n FROM people"], epsilon=1),
    "stream": lambda people: people.stream("SELECT COUNT(*) AS n FROM people", epsilon=1, horizon=4),
    "synthesize": lambda people: people.synthesize(epsilon=1),
}


@pytest.mark.parametrize("name", QUESTIONS)
def test_where_no_engine_opens_nothing_is_charged(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*limits: Any) -> Any:
        raise EngineError("no engine here")

    people = session()
    monkeypatch.setattr(engine_module, "connection", broken)
    with pytest.raises(EngineError, match="no engine here"):
        QUESTIONS[name](people)
    assert people.spent == 0


@pytest.mark.parametrize("name", QUESTIONS)
@pytest.mark.parametrize("data", [None, lambda public: connect({"age": [31, 45, 27]}, public)])
def test_a_statement_that_the_engine_cannot_plan_is_not_charged(name: str, data: Any) -> None:
    people = session(data)
    engine_of(people.curator.source)._con.execute('DROP VIEW "people"')  # type: ignore[attr-defined]
    with pytest.raises(Unsupported, match=r"cannot plan this query\. .*Nothing was charged"):
        QUESTIONS[name](people)
    assert people.spent == 0


def test_the_refusal_is_an_error_of_ours() -> None:
    with pytest.raises(DiscreetError, match="cannot plan"):
        connect({"age": [1]}, Public(table="people")).plan(["SELECT no_such_function(age) FROM people"])
