"""Numbers of entries: an analyst's own count is all that an analyst is told."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import parse_qs

import pytest

import discreet as dp
from discreet import _registry
from discreet.app import remote
from discreet.app.client import ServerError
from discreet.app.web import copies
from discreet.app.web.sessions import Desk, Folders, Numbers
from discreet.app.web.verbs import handle
from discreet.curator import ledger as ledgers
from discreet.mechanisms import SparseVector

SCHEMA = 'table = "t"\nversion = "1"\nunit = "row"\n[columns.a]\ntype = "number"\nlower = 0\nupper = 99\n'


PUBLIC = dp.Public(table="t", schema={"a": dp.Bounds(0, 99)}, unit=dp.rows(), version="1")
VECTOR = SparseVector(public=PUBLIC, threshold=5, epsilon=0.1, positives=1)
WATCH = {"mechanism": _registry.to_json(VECTOR), "claim": VECTOR.event.to_json()}


@pytest.fixture
def asked(tmp_path):
    """Return a function that lets a person ask a worker something."""
    data, schema, ledger = (tmp_path / name for name in ("t.csv", "t.csv.schema.toml", "t.csv.ledger"))
    data.write_text("a\n" + "1\n2\n3\n" * 20)
    schema.write_text(SCHEMA)
    analysts = {who: dp.Budget(epsilon=20) for who in ("ann", "bob")}
    dp.open(
        data,
        schema=schema,
        ledger=ledger,
        budget=dp.Budget(epsilon=50),
        analysts=analysts,
        large_epsilon=True,
    )
    desk = Desk(True, 5.0, Folders((tmp_path,), tmp_path / "state"))
    facts = {"name": "t", "data": str(data), "schema": str(schema), "ledger": str(ledger)}

    def ask(who: str, verb: str, **options):
        role = "steward" if who == "steward" else "analyst"
        request = {"verb": verb, "analyst": who, "by": who, "role": role, "dataset": facts}
        reply = handle(desk, request | {"options": options})
        return reply.get("result") or reply["error"]

    ask.desk = desk
    return ask


def sql(number: int) -> str:
    return f"SELECT COUNT(*) AS n FROM t WHERE a > {number}"


class Pages:
    """Stands for a server: answers requests for pages with a worker's replies."""

    def __init__(self, asked, who: str) -> None:
        self.asked, self.who, self.paths = asked, who, []

    def call(self, method: str, path: str) -> dict:
        self.paths.append(path)
        verb, _, query = path.rpartition("/")[2].partition("?")
        options = {name: int(value[0]) for name, value in parse_qs(query).items()}
        return self.asked(self.who, verb, horizon=time.time() + 60, **options)


def reader_of(server) -> remote.RemoteCurator:
    reader = remote.RemoteCurator.__new__(remote.RemoteCurator)
    reader.server, reader.name, reader.periods = server, "t", ()
    return reader


def test_a_client_pages_through_all_lines_of_a_list(asked, monkeypatch):
    """It showed the last 1000, without a word about the others."""
    monkeypatch.setattr(remote, "_PAGE", 2)
    for i in range(5):
        asked("ann", "sql", sql=sql(i), epsilon=0.1)
        asked("bob", "sql", sql=sql(10 + i), epsilon=0.1)
    everything = asked("steward", "ledger", last=1000)["entries"]
    for who, entries, releases in (("ann", 5, 5), ("steward", len(everything), 10)):
        server = Pages(asked, who)
        reader = reader_of(server)
        assert reader.ledger.lines() == asked(who, "ledger", last=1000)["entries"]
        assert len(list(reader.ledger.entries())) == entries
        assert [line["text"] for line in reader.releases()][-1] == sql(4 if who == "ann" else 14)
        assert len(reader.releases()) == releases
        assert reader.copies() == []
        assert len(server.paths) > entries / 2


@pytest.mark.parametrize("reply", [{"entries": [1, 2]}, {"entries": [1, 2], "first": 0}, {"first": 0}, {}])
def test_a_server_without_pages_is_not_asked_for_ever(reply, monkeypatch):
    """One that does not know them would send the same lines again and again."""
    monkeypatch.setattr(remote, "_PAGE", 2)
    with pytest.raises(ServerError, match="is it a discreet server of this version"):
        _ = reader_of(SimpleNamespace(call=lambda *_: reply)).ledger.lines()


def test_what_others_do_changes_no_number_that_an_analyst_sees(asked):
    """Bob's replies are the same to the letter whether or not Ann asks in between."""
    seen = {"horizon": time.time() + 60, "last": 100}
    asked("ann", "sql", sql=sql(1), epsilon=0.1)
    numbers = []
    for i in (2, 3):
        asked("bob", "sql", sql=sql(i), epsilon=0.1)
        asked("ann", "sql", sql=sql(10 + i), epsilon=0.1)
        numbers.append(asked("bob", "start", **WATCH)["number"])
    served = asked("bob", "sql", sql=sql(1), epsilon=0.1)
    assert "columns" in served
    assert numbers == [2, 4]
    assert [line["seq"] for line in asked("bob", "ledger", last=10)["entries"]] == [1, 2, 3, 4, 5]
    releases = asked("bob", "releases", **seen)["releases"]
    assert [line["number"] for line in releases] == [1, 3, 5]
    assert asked("bob", "releases", number=5, **seen)["text"] == sql(1)
    everything = json.dumps([asked("bob", "ledger", last=10), asked("bob", "releases", **seen)])
    theirs = [line["seq"] for line in asked("steward", "ledger", last=100)["entries"]]
    assert len(theirs) > 12
    assert not [word for word in ('"charge":', '"release":', '"previous"') if word in everything]


def test_a_number_means_an_own_entry_or_nothing(asked):
    asked("ann", "sql", sql=sql(1), epsilon=0.1)
    watch = asked("ann", "start", **WATCH)
    assert watch["number"] == 2
    assert "value" in asked("ann", "answer", number=2, question="a > 1")
    for number in (1, 3, 99):
        said = asked("ann", "answer", number=number, question="a > 1")
        assert said["message"].startswith(f"number {number} is no live mechanism of yours")
        assert "of yours" in asked("bob", "answer", number=number, question="a > 1")["message"]
    charges = [e for e in asked("steward", "ledger", last=50)["entries"] if e["kind"] == "charge"]
    assert charges[-1]["seq"] > 2, "the steward sees the ledger's own numbers"


def test_a_message_that_repeats_a_question_does_not_tell_whose_an_entry_is(asked):
    """Who writes the names of entries into a question learns nothing: one's own entries are named alike."""
    asked("bob", "sql", sql=sql(2), epsilon=0.1)
    entries = asked("steward", "ledger", last=100)["entries"]
    own = next(e["seq"] for e in entries if e["kind"] == "charge")
    for words in ("entry {} of the ledger", "number={}"):
        questions = [f'SELECT COUNT("{words.format(number)}") AS n FROM t' for number in (own, own + 1)]
        said = {asked("bob", "preview", sql=text, epsilon=0.1)["message"] for text in questions}
        assert len(said) == 1, said


def test_two_analysts_with_one_number_have_each_their_own_copy(monkeypatch):
    """A worker keeps copies at hand by their entries: numbers are each analyst's own."""
    entries = {
        who: SimpleNamespace(seq=seq, body={"value": {"type": "synthetic.Fitted", "whose": who}})
        for seq, who in ((4, "ann"), (9, "bob"))
    }
    charge = SimpleNamespace(body={"event": None, "mechanism": None})
    drawn = lambda fitted, *_, seed, **__: SimpleNamespace(rows=10, whose=fitted["whose"], seed=seed)  # noqa: E731
    monkeypatch.setattr(
        copies, "find_release", lambda _, r, *__: SimpleNamespace(release=entries[r["analyst"]].seq)
    )
    monkeypatch.setattr(copies, "value_of", lambda _, r, __: entries[r["analyst"]].body["value"])
    monkeypatch.setattr(copies, "charge_of", lambda *_: charge)
    monkeypatch.setattr(copies.values, "decode", lambda value: value)
    monkeypatch.setattr(copies, "SyntheticCopy", SimpleNamespace(of=drawn))
    desk, request = (
        Desk(False, 5.0, Folders((), Path())),
        {"dataset": {"ledger": "books"}, "options": {"number": 1}},
    )
    held = [copies._copy_of(desk, request | {"analyst": who}) for who in ("ann", "bob", "ann")]
    assert [copy.whose for copy in held] == ["ann", "bob", "ann"]
    assert held[2] is held[0], "what was drawn before is at hand"


def test_messages_of_the_library_name_entries_as_they_are_shown():
    own = Numbers([4, 9, 20])
    assert [own.shown(seq) for seq in (4, 9, 20, 5)] == [1, 2, 3, 0]
    assert [own.entry(number) for number in (1, 3, 0, 4, -1)] == [4, 20, 0, 0, 0]
    failed = "the mechanism failed after it was charged (entry 9 of the ledger)."
    assert own.renumbered(failed).endswith("(entry 2 of your ledger).")
    assert "17" not in own.renumbered("entry 17 of the ledger; go on with number=17")
    assert Numbers(None).renumbered(failed) == failed


def test_a_list_reads_no_values_and_each_entry_once(asked, monkeypatch):
    """After 120 large answers another analyst's list took ten seconds: each list read them all."""
    decoded: list[tuple[int, str]] = []
    entry_of = ledgers.entry_of

    def noted(row):
        decoded.append((row[0], row[2]))
        return entry_of(row)

    for i in range(6):
        asked("ann", "sql", sql=sql(i), epsilon=0.1)
    asked("bob", "sql", sql=sql(1), epsilon=0.1)
    options = {"horizon": time.time() + 60, "last": 100}
    asked("bob", "releases", **options)
    monkeypatch.setattr(ledgers, "entry_of", noted)
    for who, lines in (("bob", 1), ("ann", 6), ("steward", 6)):
        decoded.clear()
        assert len(asked(who, "releases", **options)["releases"]) == lines
        for verb in ("copies", "all_live") if who == "steward" else ("ledger", "copies", "all_live"):
            assert not {"kind", "message"} <= asked(who, verb, **options).keys()
        assert [kind for _, kind in decoded].count("release") == 0, who
    asked.desk.catch_up()
    asked("ann", "sql", sql=sql(9), epsilon=0.1)
    asked.desk.catch_up()
    decoded.clear()
    asked.desk.catch_up()
    assert len(asked("ann", "releases", **options)["releases"]) == 7
    assert [kind for _, kind in decoded].count("release") == 0, "an idle worker has read it"
    assert asked("bob", "releases", number=1, **options)["value"]
    assert [kind for _, kind in decoded].count("release") == 1
