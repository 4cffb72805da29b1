"""Every release says what its price rests on, and so do the ledger and its explanation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import discreet as dp
from discreet import Bounds, Categories, mechanisms
from discreet._registry import registered
from discreet.app.ledger_view import what
from discreet.core.question import CONSTRUCTED, QuestionMechanism
from discreet.curator.identities import mark_of
from discreet.query import Query

COUNT = "SELECT town, COUNT(*) AS n FROM people GROUP BY town"


def opened() -> Any:
    return dp.open(
        {"town": ["a", "b", "b"], "age": [20, 30, 40]},
        table="people",
        schema={"town": Categories(["a", "b"]), "age": Bounds(0, 90)},
        unit=dp.rows(),
        budget=dp.Budget(epsilon=9),
        ledger=":memory:",
        version="1",
    )


@dataclass(frozen=True)
class Handmade(mechanisms.Mechanism):
    """A mechanism of a script, which states its own price."""

    public: Any
    event: Any

    def __call__(self, source: Any, /, *, entropy: Any) -> Any:
        return mechanisms.release(1, event=self.event, entropy=entropy)


def ask_all(people: Any) -> list[Any]:
    asked = Query(sql=COUNT, public=people.public, epsilon=1)
    counted = mechanisms.noisy_count(people.public, epsilon=1)
    return [people.ask(one) for one in (asked, counted, Handmade(people.public, counted.event), asked)]


def test_a_release_says_what_its_price_rests_on() -> None:
    people = opened()
    marks = [release.mark for release in ask_all(people)]
    assert marks == ["by construction", "by proof", "on the word of the steward's code", "by construction"]
    assert "mark='by construction'" in repr(people.ask(Query(sql=COUNT, public=people.public, epsilon=1)))


def test_the_ledger_and_its_explanation_say_it_too() -> None:
    people = opened()
    ask_all(people)
    charges = [e for e in people.ledger.entries() if e.kind == "charge"]
    assert Counter(mark_of(e.body) for e in charges) == {
        "by construction": 1,
        "by proof": 1,
        "on the word of the steward's code": 1,
    }
    assert [what(e).rpartition(" (")[2] for e in charges] == [
        "by construction)",
        "by proof)",
        "on the word of the steward's code)",
    ]
    page = str(dp.explain(people))
    assert (
        "Their prices are kept 1 by construction, 1 by proof, 1 on the word of the steward's code"
        in page.replace("\n", " ")
    )


def test_what_is_marked_by_construction_is_what_the_core_runs() -> None:
    constructed = {tag for tag, cls in registered().items() if issubclass(cls, QuestionMechanism)}
    assert constructed == CONSTRUCTED
    forged = {"mechanism": {"type": "query.Query"}, "trust": "acme-dp 1.2"}
    assert mark_of(forged) == "on the word of acme-dp 1.2", "a release has the weakest mark of its parts"
