"""Synthetic copies, streams, plans, explanations and descriptions of other packages over HTTP."""

from __future__ import annotations

import io
import time

import httpx
import pyarrow as pa
import pytest
from pyarrow import parquet

import discreet as dp
from discreet import adaptive, query
from discreet.app.client import ServerError
from discreet.query.parse import plain_select
from discreet.session import Session

from .running import COUNT, Server


@pytest.fixture(scope="module")
def ann(server: Server) -> Session:
    return dp.connect(server.url, server.tokens["ann"], dataset="health")


@pytest.fixture(scope="module")
def bob(server: Server) -> Session:
    return dp.connect(server.url, server.tokens["bob"], dataset="health")


@pytest.fixture(scope="module")
def copy(ann):
    before = ann.spent
    made = ann.synthesize(300, epsilon=0.5, method="mst", columns=["sex", "health", "education"],
                          bins={"education": 4}, seed=7, seconds=15)  # fmt: skip
    assert ann.spent > before
    return made


def test_a_synthetic_copy_is_made_by_a_job_and_is_that_of_a_local_session(ann, copy):
    assert copy.rows == 300
    assert copy.to_arrow().column_names == ["sex", "health", "education"]
    assert copy.card()["privacy"]["asked"]["epsilon"] == 0.5
    assert copy.sql("SELECT COUNT(*) AS n FROM health").to_arrow().to_pylist() == [{"n": 300}]
    assert "mst" in str(copy.report()) or copy.report() is not None
    spent = ann.spent
    again = ann.synthesize(300, epsilon=0.5, method="mst", columns=["sex", "health", "education"],
                           bins={"education": 4}, seed=7, seconds=15)  # fmt: skip
    assert again.fitted == copy.fitted
    assert ann.spent == spent, "the same copy again is free"


def test_a_copy_is_listed_downloaded_and_asked_by_who_made_it_only(server, ann, bob, copy):
    line = next(one for one in ann.curator.copies() if one["method"] == "mst")
    number = line["number"]
    assert line["columns"] == ["sex", "health", "education"]
    assert ann.curator.copy(number, 50).fitted == copy.fitted
    path = f"/datasets/health/copies/{number}"
    with server.client("ann") as own, server.client("bob") as other, server.client("steward") as steward:
        raw = own.get(f"{path}/rows.parquet?rows=120&seed=3")
        table = parquet.read_table(io.BytesIO(raw.content))
        assert table.num_rows == 120
        assert b"synthetic copy" in table.schema.metadata[b"discreet"]
        text = own.get(f"{path}/rows.csv?rows=120&seed=3")
        assert "attachment" in text.headers["content-disposition"]
        assert len(text.text.splitlines()) == 121
        assert own.get(f"{path}/rows.parquet?rows=120&seed=3").content == raw.content
        asked = own.post(f"{path}/query", json={"sql": "SELECT sex, COUNT(*) AS n FROM health GROUP BY 1"})
        assert asked.status_code == 200, asked.text
        assert asked.json()["columns"] == ["sex", "n"]
        assert "no ±" in asked.json()["note"]
        theirs = steward.get("/datasets/health/copies").json()["copies"][-1]["number"]
        assert steward.get(f"/datasets/health/copies/{theirs}").status_code == 200
        # one that is another's, and one that is not there, are told alike
        absent = f"/datasets/health/copies/{number + 10_000}"
        for tail in ("", "/rows.csv"):
            first, second = other.get(path + tail), other.get(absent + tail)
            assert first.status_code == second.status_code == 400
            named = [f"the number {one}." for one in (number, number + 10_000)]
            assert first.text.replace(named[0], "N") == second.text.replace(named[1], "N")
            assert named[0] in first.text
        assert other.post(f"{path}/query", json={"sql": "SELECT 1 FROM health"}).status_code == 400
        assert all(one["analyst"] == "bob" for one in other.get("/datasets/health/copies").json()["copies"])
        assert own.get(f"{path}/rows.csv?rows=9999999").status_code == 400
    assert bob.curator.copies() == [one for one in bob.curator.copies() if one["analyst"] == "bob"]


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM duckdb_settings()",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM health, range(10)",
        "COPY health TO '/tmp/x.csv'",
        "ATTACH 'x.db'",
        "SELECT getenv('HOME') FROM health",
        "SELECT 1; SELECT 2",
        "SELECT current_setting('temp_directory') FROM health",
        "SELECT getvariable('x') FROM health",
        "DROP VIEW health",
        "SELECT * FROM (SELECT * FROM main.health)",
        "WITH a AS (SELECT * FROM glob('/*')) SELECT * FROM a",
    ],
)
def test_sql_to_a_copy_reaches_the_copy_only(server, ann, copy, sql):
    number = ann.curator.copies()[-1]["number"]
    with server.client("ann") as own:
        reply = own.post(f"/datasets/health/copies/{number}/query", json={"sql": sql})
        assert reply.status_code == 400, reply.text
        assert str(server.folder) not in reply.text


def test_a_select_is_written_anew_from_what_was_parsed():
    assert plain_select("SELECT a FROM t -- x\n", "t") == "SELECT a FROM t"
    with pytest.raises(dp.InvalidInput, match="something else"):
        plain_select("SELECT a FROM (SELECT a FROM u)", "t")


def test_the_price_of_a_copy_is_known_before(server):
    with server.client("ann") as own:
        body = {"epsilon": 0.25, "columns": ["sex", "health"]}
        facts = own.post("/datasets/health/copies/preview", json=body).json()
        assert facts["epsilon"] == 0.25
        assert facts["admitted"]
        assert facts["budget"]["after"] > facts["budget"]["before"]
        too_much = own.post("/datasets/health/copies/preview", json=body | {"epsilon": 10_000}).json()
        assert not too_much["admitted"]


DAYS = 'table = "visits"\nversion = "1"\nunit = "row"\n[columns.day]\ntype = "date"\nlower = "2026-01-01"\nupper = "2026-01-04"\n'
DAYS += '[columns.ward]\ntype = "categories"\nvalues = ["A", "B"]\n'


@pytest.fixture(scope="module")
def wards(server: Server) -> str:
    rows = "".join(f"2026-01-0{day},{ward}\n" * 40 * day for day in (1, 2, 3) for ward in "AB")
    (server.folder / "data" / "days.csv").write_text("day,ward\n" + rows)
    with server.client("steward") as steward:
        body = {"name": "days", "path": "days.csv", "schema_text": DAYS, "budget": {"epsilon": 200},
                "large_epsilon": True,
                "analysts": {"ann": None, "bob": None}}  # fmt: skip
        assert steward.post("/datasets", json=body).status_code == 201
    return "days"


def test_a_stream_with_a_clock_is_started_advanced_and_read(server, wards):
    ann, bob = (dp.connect(server.url, server.tokens[who], dataset=wards) for who in ("ann", "bob"))
    stream = ann.stream(
        "SELECT day, ward, COUNT(*) AS n FROM visits GROUP BY day, ward", epsilon=20, horizon=3
    )
    spent = ann.spent
    first = stream.feed()
    assert abs(first.value[0] - 40) < 15
    with server.client("ann") as own:
        latest = {"number": stream.number, "question": {"type": "streaming.Latest"}}
        assert own.post(f"/datasets/{wards}/answer", json=latest).status_code == 200
    stream.feed()
    assert ann.spent == spent, "ticks are paid for at the start"
    assert stream.steps == 0, "a release is listed once its public time is over"
    time.sleep(5.3)
    assert stream.steps == 2
    assert set(stream.value) == {"A", "B"}
    assert abs(stream.value["A"] - 120) < 25
    assert len(stream.history) == 2
    assert 0 < stream.error(0.9) < stream.error(0.99)
    again = ann.stream("", number=stream.number)
    assert again.value == stream.value
    with pytest.raises(dp.InvalidInput, match="of yours"):
        _ = bob.stream("", number=stream.number).value
    with pytest.raises(dp.InvalidInput, match="of yours"):
        bob.stream("", number=stream.number).feed()
    with server.client("bob") as other:
        assert other.get(f"/datasets/{wards}/live").json() == {"live": []}
    with server.client("ann") as own:
        assert [one["number"] for one in own.get(f"/datasets/{wards}/live").json()["live"]] == [stream.number]


def test_new_rows_come_from_the_steward_and_each_tick_counts_once(server, wards):
    ann, steward = (dp.connect(server.url, server.tokens[who], dataset=wards) for who in ("ann", "steward"))
    stream = ann.stream("SELECT COUNT(*) AS n FROM visits", epsilon=20, horizon=4)
    rows = pa.table({"day": pa.array([20_454] * 50, pa.int32()).cast(pa.date32()), "ward": ["A"] * 50})
    with pytest.raises(dp.DiscreetError, match="come from the steward"):
        stream.feed(rows)
    with server.client("steward") as client:
        listed = client.get(f"/datasets/{wards}/live").json()["live"]
    theirs = {"ann": stream.number, "steward": listed[-1]["number"]}
    assert theirs["ann"] < theirs["steward"], "an analyst's numbers count their own charges"
    fed = steward.stream("", number=theirs["steward"])
    assert abs(fed.feed(rows, tick="monday").value - 50) < 15
    with pytest.raises(dp.InvalidInput, match="before"):
        fed.feed(rows, tick="monday")
    for who in ("ann", "steward"):
        with server.client(who) as client:
            refused = client.post(f"/datasets/{wards}/feed", json={"number": theirs[who]})
            assert (refused.status_code, "is no batch" in refused.text) == (400, True)
    with server.client("steward") as client:
        own = {"number": theirs["steward"]}
        path = f"/datasets/{wards}/feed"
        body = own | {"rows": {"day": ["2026-01-01"], "ward": [["nested"]]}}
        assert client.post(path, json=body).status_code == 422
        broken = client.post(path, json=own | {"rows": {"arrow": "bm90IGFycm93"}})
        assert 400 <= broken.status_code < 500
        absent = client.post(path, json={"number": 99999})
        assert absent.status_code == 400


def test_a_watch_goes_on_with_the_servers_table(ann, bob):
    watch = ann.watch(100, epsilon=0.5)
    fed = ann.feed(watch)
    assert fed.release is None
    assert fed.handle.number == watch.number
    assert fed.handle.ask("age > 60").above in (True, False)
    with pytest.raises(dp.InvalidInput, match="of yours"):
        bob.feed(watch.live.mechanism, number=watch.number)
    with pytest.raises(dp.InvalidInput, match="watch"):
        ann.feed("nothing")


def test_a_plan_splits_the_budget_and_runs_over_http(ann):
    from discreet.tabular import LogisticRegression

    spent = ann.spent
    work = [COUNT, {"sql": "SELECT COUNT(*) AS n FROM health", "weight": 2.0},
            (LogisticRegression(n=5000), "sex")]  # fmt: skip
    plan = ann.plan(work, epsilon=0.9, together=False)
    assert ann.spent == spent, "planning is free"
    assert [item.work.name for item in plan.items][2] == "LogisticRegression of sex"
    assert sum(item.epsilon for item in plan.items) <= 0.9
    assert plan.items[0].error > 0
    answers = ann.plan([COUNT, "SELECT sex, COUNT(*) AS n FROM health GROUP BY sex"], epsilon=0.2).run()
    assert ann.spent > spent
    assert answers
    with pytest.raises(dp.InvalidInput, match="work"):
        ann.plan([object()], epsilon=1)


def test_explanations_over_http_are_those_of_a_local_session(ann, server):
    ledger = ann.explain()
    assert "health" in ledger.title
    assert ledger.pictures
    question = ann.explain(COUNT, epsilon=0.5, audience="engineer")
    assert question.risk.epsilon == pytest.approx(0.5)
    ann.sql(COUNT, epsilon=0.03)
    time.sleep(5.2)
    with server.client("ann") as own, server.client("bob") as other:
        number = own.get("/datasets/health/releases").json()["releases"][-1]["number"]
        told = own.post("/datasets/health/explain", json={"number": number}).json()
        assert f"release {number}" in told["title"]
        assert "<script" not in told["html"]
        assert other.post("/datasets/health/explain", json={"number": 9_999}).status_code == 400
        price = own.post("/datasets/health/explain", json={"epsilon": 1.0, "delta": 1e-6}).json()
        assert price["delta"] == 1e-6


def test_descriptions_of_rooms_that_a_worker_has_not_loaded_are_read(server):
    """`Thresholdout` is of the adaptive package; a worker that knew SQL only could not read it."""
    (server.folder / "data" / "held.csv").write_text("right\n" + "1\n0\n1\n" * 200)
    schema = 'table = "held"\nversion = "1"\nunit = "row"\nsize = 600\n[columns.right]\ntype = "number"\n'
    with server.client("steward") as steward:
        body = {"name": "held", "path": "held.csv", "schema_text": schema + "lower = 0\nupper = 1\n",
                "budget": {"epsilon": 50}, "large_epsilon": True}  # fmt: skip
        assert steward.post("/datasets", json=body).status_code == 201
    held = dp.connect(server.url, server.tokens["steward"], dataset="held")
    holdout = adaptive.Thresholdout(public=held.public, threshold=0.1, sigma=0.01, budget=1)
    handle = held.start(holdout)
    assert handle.mechanism == holdout
    asked = adaptive.Check(
        statistic=dp.mechanisms.CountsBelow(column="right", thresholds=(0.5,)), training=0.33
    )
    assert handle.answer(asked).value is not None


def test_a_session_of_nothing_granted_has_no_rooms(server):
    with server.client("steward") as steward:
        steward.post("/people", json={"name": "rita", "role": "analyst"})
        token = steward.post("/people/rita/tokens", json={}).json()["token"]
    with httpx.Client(base_url=f"{server.url}/api/v1", headers={"Authorization": f"Bearer {token}"}) as rita:
        for name in ("health", "absent"):
            for tail in ("/copies", "/copies/1", "/copies/1/rows.csv", "/live", "/live/1"):
                assert rita.get(f"/datasets/{name}{tail}").status_code == 404
        said = [rita.get(f"/datasets/{name}/copies").json() for name in ("health", "absent")]
        assert said[0] == said[1]
    with pytest.raises(ServerError, match="no dataset"):
        dp.connect(server.url, token, dataset="health").explain()


def test_what_a_mechanism_of_another_room_costs_is_previewed(ann, server):
    asked = query.ask(COUNT, ann.public, epsilon=0.25, delta=0.0)
    with server.client("ann") as own:
        from discreet import _registry

        reply = own.post("/datasets/health/price", json={"mechanism": _registry.to_json(asked)})
        assert reply.json()["admitted"]
