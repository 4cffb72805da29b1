"""Private multiplicative weights: price, threshold, update rule, halting, and answers that are as good as
promised."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from discreet import REPLACE, Boolean, Bounds, Categories, Halted, InvalidInput, Public, Unit, Unsupported
from discreet import accounting as acc
from discreet.adaptive.multiplicative_weights import MultiplicativeWeights, Where
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

from ..contracts.audit import CountingEntropy, Untouchable

N = 20_000
COLUMNS = ("a", "b", "c", "d")
SCHEMA: dict[str, Any] = {"a": Categories(["x", "y", "z"]), **{name: Boolean() for name in "bcd"}}
PUBLIC = Public(schema=SCHEMA, size=N)
RANDOM = np.random.default_rng(1)
ROWS: dict[str, Any] = {"a": RANDOM.choice(["x", "y", "z"], N, p=[0.7, 0.2, 0.1])}
ROWS |= {"b": RANDOM.random(N) < 0.9, "c": RANDOM.random(N) < 0.2}
ROWS["d"] = ROWS["b"] ^ ROWS["c"]
TABLE = Memory(ROWS, PUBLIC)


def weights(**more: Any) -> MultiplicativeWeights:
    named = {
        "public": PUBLIC,
        "columns": COLUMNS,
        "epsilon": 1,
        "delta": 1e-6,
        "alpha": 0.03,
        "questions": 60,
        "updates": 20,
    }
    return MultiplicativeWeights(**{**named, **more})


def asked(count: int, seed: int = 1) -> list[Where]:
    random, found = np.random.default_rng(seed), []
    for _ in range(count):
        chosen = random.choice(COLUMNS, size=2, replace=False)
        found.append(
            Where(
                conditions=tuple(
                    (str(c), ("x", "y") if c == "a" else (int(random.integers(2)),)) for c in chosen
                )
            )
        )
    return found


def play(made: MultiplicativeWeights, questions: list[Where], seed: int = 1) -> tuple[Any, list[Any]]:
    entropy = SeededEntropy(seed)
    state, told = made.start(TABLE, entropy=entropy), []
    for question in questions:
        state, answer = made.answer(state, TABLE, question, entropy=entropy)
        told.append(answer.value)
    return state, told


def test_where_counts_rows() -> None:
    table = Memory(
        {"a": ["x", "y", None, "w"], "b": [True, None, False, True]},
        Public(schema={"a": SCHEMA["a"], "b": Boolean()}),
    )
    assert int(Where()(table)) == 4
    assert int(Where(conditions=(("a", ("x", "y")),))(table)) == 2
    assert int(Where(conditions=(("a", ("x", "y")), ("b", (1,))))(table)) == 1
    assert int(Where(conditions=(("b", ()),))(table)) == 0


@pytest.mark.parametrize(
    "bad",
    [None, "a", ("a",), (("a", "x"),), ((1, ("x",)),), (("a", (1.5,)),), (("a", ("x",)), ("a", ("y",)))],
)
def test_nonsense_is_no_condition(bad: Any) -> None:
    with pytest.raises(InvalidInput):
        Where(conditions=bad)


def test_price_and_scales_are_those_of_the_sparse_vector_with_numbers() -> None:
    for made, total in ((weights(delta=0.0), 1), (weights(), None)):
        per = made.rounds.price(1, 1)
        if total is not None:
            assert per == total
            assert made.event == acc.PureDP(epsilon=1)
        else:
            assert made.event == acc.PureDP(epsilon=per).repeated(20)
            assert acc.epsilon(made.event, delta=1e-6) <= 1


def test_the_default_number_of_updates_is_what_the_potential_argument_needs() -> None:
    cells = 3 * 2 * 2 * 2
    assert weights(updates=None, alpha=0.1, rule="hardt-rothblum").max_updates == math.ceil(
        4 * math.log(cells) / 0.01
    )
    assert weights(updates=None, alpha=0.1).max_updates == math.ceil(math.log(cells) / 0.02)


def _relative_entropy(picture: Any) -> float:
    codes = [
        [["x", "y", "z"].index(v) for v in ROWS["a"].tolist()],
        *(ROWS[c].astype(int).tolist() for c in "bcd"),
    ]
    table = np.zeros(picture.shape)
    np.add.at(table, tuple(codes), 1 / N)
    here = table > 0
    return float((table[here] * np.log(table[here] / picture[here])).sum())


@pytest.mark.parametrize(("rule", "least"), [("exact", 2.0), ("hardt-rothblum", 0.25)])
def test_every_update_lowers_the_relative_entropy_by_the_promised_amount(rule: str, least: float) -> None:
    made, entropy = weights(rule=rule, epsilon=200, delta=0.0, alpha=0.05, updates=61), SeededEntropy(3)
    assert made.rounds.spread(made._half_failure, 61) < 0.05 * N
    state, updates = made.start(TABLE, entropy=entropy), 0
    for question in asked(60):
        before = _relative_entropy(made.picture(state))
        state, told = made.answer(state, TABLE, question, entropy=entropy)
        after = _relative_entropy(made.picture(state))
        if told.value.updated:
            updates += 1
            assert before - after >= least * 0.05**2
        else:
            assert after == before
    assert updates >= 3


def test_answers_are_within_the_promised_error_and_few_are_bought() -> None:
    questions, made = asked(60), weights()
    promised = made.error(0.95)
    assert promised < 0.3 * N
    _, told = play(made, questions)
    off = [abs(t.value - int(q(TABLE))) for t, q in zip(told, questions, strict=True)]
    assert max(off) <= promised
    assert 1 <= sum(t.updated for t in told) <= 19


def test_a_question_asked_again_is_answered_from_the_picture_that_learned_it() -> None:
    question = Where(conditions=(("b", (1,)),))
    _, told = play(weights(), [question] * 4)
    assert [t.updated for t in told] == [True, False, False, False]
    assert abs(told[3].value - told[0].value) < 0.13 * N


def test_it_halts_for_good_when_its_updates_are_gone() -> None:
    made, counting = weights(updates=1), CountingEntropy()
    state, _ = play(made, [Where(conditions=(("b", (1,)),))])
    with pytest.raises(Halted):
        made.answer(state, TABLE, Where(), entropy=counting)
    assert counting.drawn == 0


def test_what_is_refused_is_refused_before_data_is_read() -> None:
    made, entropy = weights(columns=("a", "b")), CountingEntropy()
    state = made.start(TABLE, entropy=entropy)
    drawn = entropy.drawn
    for question in (
        "a = 1",
        Where(conditions=(("c", (1,)),)),
        Where(conditions=(("a", ("w",)),)),
        Where(conditions=(("b", (7,)),)),
    ):
        with pytest.raises(InvalidInput):
            made.answer(state, Untouchable(PUBLIC), question, entropy=entropy)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="state"):
        made.answer({**state, "moves": [[1, 2]]}, TABLE, Where(), entropy=entropy)
    assert entropy.drawn == drawn


def test_declarations_are_checked() -> None:
    with pytest.raises(InvalidInput):
        weights(public=Public(schema={**SCHEMA, "a": Bounds(0, 1)}, size=N))
    with pytest.raises((InvalidInput, Unsupported)):
        weights(public=Public(schema=SCHEMA, unit=Unit("a"), size=N))
    with pytest.raises(InvalidInput, match="cells"):
        weights(alpha=1e-4, updates=None)
    # paid for, and then no question was answered: 1 - failure was 1
    with pytest.raises(InvalidInput, match="failure must be at least"):
        weights(failure=1e-17)
    assert weights(public=Public(schema=SCHEMA, size=N, neighbors=REPLACE)).event.neighbors is REPLACE


def test_the_bound_for_the_population_is_shown_with_every_answer() -> None:
    made = weights(
        public=Public(schema=SCHEMA, size=10**8, neighbors=REPLACE), epsilon=0.01, updates=5, alpha=0.01
    )
    bound = made.generalization().radius
    assert 0.01 < bound < 0.1
    _, told = play(weights(), [Where()])
    assert told[0].within == weights().generalization(0.95).radius * N
