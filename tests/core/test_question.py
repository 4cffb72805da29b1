"""A question says which noise it takes, and never how far one unit can move its numbers: noise that was made for
less is refused, whoever built it, and what it costs follows from it."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

import discreet as dp
from discreet import Bounds, Categories, Public, Text, Unit
from discreet._errors import DiscreetError, InvalidInput
from discreet._public import REPLACE
from discreet.accounting import ApproximateDP, pure
from discreet.core.errors import QueryError
from discreet.core.form import Form
from discreet.core.measures import Bounding, Choice, GroupKey, Measure
from discreet.core.nodes import Call, Literal
from discreet.core.question import NoisyNumbers, PublicSize, Question, QuestionMechanism
from discreet.mechanisms import IntegerLaplace, TopK
from discreet.query import Query

PEOPLE = Public(
    schema={"id": Text(), "town": Categories(["a", "b"]), "age": Bounds(0, 90), "street": Text()},
    unit=Unit("id", rows=3, groups=2),
    table="people",
)
ROWS = Public(schema={"age": Bounds(0, 90)}, table="people", neighbors=REPLACE, size=4)


def asked(sql: str, public: Public = PEOPLE, **price: Any) -> Question:
    return Query(sql=sql, public=public, **(price or {"epsilon": 1})).question


COUNT = asked("SELECT town, COUNT(*) FROM people GROUP BY town")
SUM = asked("SELECT SUM(age) FROM people")
MEDIAN = asked("SELECT town, MEDIAN(age) FROM people GROUP BY town")
TOP = asked("SELECT APPROX_TOP_K(town, 1) FROM people")
HIDDEN = asked("SELECT street, COUNT(*) FROM people GROUP BY street", epsilon=1, delta=1e-6)
SIZE = asked("SELECT COUNT(*) FROM people", ROWS)


@pytest.mark.parametrize("question", [COUNT, SUM])
def test_noise_is_made_for_what_one_unit_can_change(question: Question) -> None:
    (noise,) = question.noises
    (bound,) = question.form.sensitivities
    assert noise.sensitivity == bound.l1  # type: ignore[union-attr]
    assert pure.epsilon_of(question.event) == pytest.approx(1)
    less = replace(noise, sensitivity=noise.sensitivity - 1)  # type: ignore[union-attr, arg-type]
    with pytest.raises(QueryError, match="made for less than one unit can change"):
        replace(question, noises=(less,))
    # more noise than is needed is priced as it is
    assert replace(question, noises=(replace(noise, scale=2 * noise.scale),)).event != question.event  # type: ignore[union-attr, arg-type]


def test_limits_on_a_unit_are_not_the_builders_to_leave_out() -> None:
    """With wider limits the same noise is too small; without any there is no form."""
    for wider in (Bounding(rows=4, groups=2), Bounding(rows=3, groups=3)):
        form = replace(HIDDEN.form, bounding=wider)
        with pytest.raises(QueryError, match="made for less"):
            replace(HIDDEN, form=form)
    for name, wrong in (("rows", 0), ("groups", 10**9)):
        with pytest.raises(InvalidInput, match=f"{name} must be .*at (least|most)"):
            Bounding(**({"rows": 1, "groups": 1} | {name: wrong}))


def test_selectors_are_made_for_what_one_unit_can_change() -> None:
    (selector,) = MEDIAN.selectors
    assert pure.epsilon_of(MEDIAN.event) == pytest.approx(1)
    for wrong in (
        replace(selector, sensitivity=selector.sensitivity - 1),
        replace(selector, monotone=True),
        replace(selector, neighbors=REPLACE),
        TopK(epsilon=1, sensitivity=99, k=1),
    ):
        with pytest.raises(QueryError, match="made for less"):
            replace(MEDIAN, selectors=(wrong,))
    (top,) = TOP.selectors
    with pytest.raises(QueryError, match="made for less"):
        replace(TOP, selectors=(replace(top, k=2),))  # type: ignore[arg-type]


def test_a_choice_and_a_shown_group_are_paid_for_in_each_group_that_changes() -> None:
    (selector,) = MEDIAN.selectors
    assert MEDIAN.form.changed_groups == 2
    assert pure.epsilon_of(MEDIAN.event) == pytest.approx(2 * float(selector.epsilon))
    assert HIDDEN.selection is not None
    epsilon, delta = HIDDEN.selection
    shown = ApproximateDP(epsilon=epsilon, delta=float(delta)).repeated(2)
    assert shown in HIDDEN.event.events  # type: ignore[union-attr]


def test_a_delta_that_is_no_float_is_charged_rounded_up() -> None:
    assert HIDDEN.selection is not None
    exact = Fraction(1, 7 * 10**6)
    assert Fraction(float(exact)) < exact
    event = replace(HIDDEN, selection=(HIDDEN.selection[0], exact)).event
    (shown,) = (part.event for part in event.events if hasattr(part, "event"))  # type: ignore[attr-defined]
    assert Fraction(shown.delta) >= exact


def test_private_groups_are_never_shown_without_paying() -> None:
    with pytest.raises(QueryError, match="one noise for each measure"):
        replace(HIDDEN, selection=None)
    with pytest.raises(QueryError, match="one noise for each measure"):
        replace(COUNT, selection=(Fraction(1), Fraction(1, 10**6)))
    with pytest.raises(QueryError, match="one noise for each measure"):
        replace(COUNT, noises=())
    with pytest.raises(QueryError, match="groups are added up where they are private"):
        replace(COUNT.form, gathered=True)


def test_only_the_declared_number_of_rows_is_public() -> None:
    (size,) = SIZE.noises
    assert size == PublicSize(value=4, neighbors=REPLACE)
    with pytest.raises(QueryError, match="made for less"):
        replace(SIZE, noises=(PublicSize(value=5, neighbors=REPLACE),))
    with pytest.raises(QueryError, match="made for less"):
        replace(SUM, noises=(PublicSize(value=4, neighbors=PEOPLE.neighbors),))
    with pytest.raises(QueryError, match="made for less"):
        replace(COUNT, noises=tuple(replace(n, neighbors=REPLACE) for n in COUNT.noises))  # type: ignore[arg-type]


def test_a_measure_has_no_range_but_its_expressions() -> None:
    """Range, step and middle are computed: there is nothing to state."""
    (total,) = SUM.form.measures
    assert (total.low * total.step, total.high * total.step) == (0, 90)
    for stated in ("low", "high", "step", "center"):
        with pytest.raises(TypeError):
            Measure(kind="sum", expression=total.expression, **{stated: 0})  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="init=False"):
        replace(total, high=1)
    for wrong in (
        {"kind": "rows of others"},
        {"kind": "sum"},
        {"kind": "rows", "expression": total.expression},
    ):
        with pytest.raises(QueryError):
            Measure(**wrong)  # type: ignore[arg-type]


def test_public_values_are_of_the_kind_of_their_key() -> None:
    """A text that is compared with a number would fail on the first row that is none."""
    (key,) = COUNT.form.keys
    with pytest.raises(QueryError, match="of another kind"):
        replace(COUNT.form, keys=(GroupKey(key.expression, (1, 2)),))
    with pytest.raises(QueryError, match="listed twice"):
        replace(COUNT.form, keys=(GroupKey(key.expression, ("a", "a")),))


@pytest.mark.parametrize(
    "values",
    [
        (2**53 + 1, 2**53 + 5, 2**53),
        (0, 0.0),
        (Fraction(1, 3), Fraction(1, 3) + Fraction(1, 10**30)),
        (10**400,),
        (float("nan"),),
        (float("inf"),),
        (b"a",),
        ([1],),
        (True,),
        (),
    ],
)
def test_public_values_are_numbers_that_the_engine_tells_apart(values: Any) -> None:
    """Two values that are one DOUBLE would count a row twice; others would fail when the question runs."""
    (total,) = SUM.form.measures
    assert total.expression is not None
    with pytest.raises(QueryError, match=r"of another kind|told apart|listed twice"):
        replace(SUM.form, keys=(GroupKey(total.expression, values),))


def test_forged_parts_are_refused_where_they_are_made() -> None:
    (total,) = SUM.form.measures
    (choice,) = MEDIAN.form.choices
    deep: Any = total.expression
    for _ in range(5000):
        deep = Call("abs", (deep,), deep.domain)
    for forged in (
        lambda: replace(SUM.form, measures=(Measure(kind="present", expression=Literal(10**400)),)),
        lambda: replace(SUM.form, measures=(Measure(kind="present", expression=deep),)),
        lambda: replace(SUM.form, measures=(Measure(kind="present", expression="age"),)),  # type: ignore[arg-type]
        lambda: Measure(kind="sum", expression="age"),  # type: ignore[arg-type]
        lambda: Measure(kind="rows", scaled=True),
        lambda: Choice(kind="quantile", expression=choice.expression, parameter=0.3),  # type: ignore[arg-type]
        lambda: replace(HIDDEN, selection=(1.0, 1e-6)),  # type: ignore[arg-type]
    ):
        with pytest.raises(QueryError):
            forged()


class Peeking(QuestionMechanism):
    """A mechanism of a builder who is careless, and returns whatever it is given."""

    public, question = PEOPLE, SUM

    def finish(self, released: NoisyNumbers) -> Any:
        return released.measures[0], None


def test_what_a_builder_sees_has_its_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    people = dp.open(
        {"id": ["x"], "town": ["a"], "age": [50], "street": ["s"]},
        table="people",
        schema=dict(PEOPLE.schema),
        unit=PEOPLE.unit,
        budget=dp.Budget(epsilon=9),
        ledger=":memory:",
    )
    drawn = []
    add = IntegerLaplace.__call__

    def noted(self: Any, values: Any, /, *, entropy: Any) -> Any:
        drawn.append((np.array(values), add(self, values, entropy=entropy)))
        return drawn[-1][1]

    monkeypatch.setattr(IntegerLaplace, "__call__", noted)
    released = people.curator.ask(Peeking())
    ((exact, noisy),) = drawn
    assert [int(v) * SUM.form.measures[0].resolution for v in exact] == [50]
    assert released.value is noisy
    assert released.event == SUM.event
    assert people.curator.ledger.last("charge") is not None


def test_no_mechanism_reads_or_prices_beside_its_question() -> None:
    def below(cls: type) -> list[type]:
        return [cls, *(deeper for sub in cls.__subclasses__() for deeper in below(sub))]

    classes = [cls for cls in below(QuestionMechanism)[1:] if cls is not Peeking]
    assert Query in classes
    for cls in classes:
        assert cls.__call__ is QuestionMechanism.__call__
        assert cls.event is QuestionMechanism.event


def test_a_form_of_public_tables_alone_is_refused() -> None:
    with pytest.raises(DiscreetError):
        Form(
            public=replace(PEOPLE, table="others"),
            source=SUM.form.source,
            bounding=Bounding(rows=1, groups=1),
        )
