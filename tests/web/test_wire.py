"""The six verbs: what may be named over the network, what is compared, who may, and what is never lost."""

from __future__ import annotations

import importlib
import sys
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

import discreet as dp
from discreet import _registry, query
from discreet.app.web import wire
from discreet.app.web.sessions import Desk, Folders
from discreet.app.web.verbs import handle
from discreet.mechanisms import AddNoise, Histogram, IntegerLaplace, SparseVector

from .running import COUNT, Server, watch_body

# Whoever adds a class to what the network may name reads its constructor first.
ALLOWED = {
    "public": "Boolean Bounds Categories Dates Public Reference Related Text Unit",
    "query": "Mean PublicSize Query Range SqlStatistic SqlVector WorkloadQuery",
    "mechanisms": "AboveThreshold AddNoise ApproximateQuantiles CellCounts CellDistances Clamp Count CountNonNull"
    " CountsBelow Design DistanceToInstability Entry ExponentialMechanism Fold GridGaussian GridLaplace"
    " GroupPrivate Histogram HistogramBounds InputPerturbation IntegerGaussian IntegerLaplace Kary Mean"
    " MeanWithFoundBounds Parallel PartMean PartMode PermuteAndFlip PostProcessed PowerSum"
    " ProposeTestRelease Quantile RandomizedResponse RedrawnSparseVector ReportNoisyMax Reports Round"
    " SampleAndAggregate Select Sequential SmoothSensitivityMedian SparseVector StableMedian StableMode"
    " StableSparseVector Stack SubsampleAggregateStable TopK Truncate Variance",
    "learning": "Dense Design SecondMoments Toeplitz",
    "matrix": "AllRanges Attribute BinaryTree Buffered Cells Explicit Fourier Haar Identity Lower Marginals"
    " Optimal PIdentity Prefix Product Residuals Total Tree Union WeightedTree WorkloadMechanism",
    "adaptive": "AlphaInvesting GeneralizedAlphaInvesting Lord3 LordPlusPlus"
    " BernoulliChange Binomial Bound ChangeWatch Changepoint Check CrossCounts Decision Estimate"
    " GaussianChange GoodnessOfFitTest GroupSums Hypothesis IndependenceTest LikelihoodScores Listed Paprika"
    " PowerLaw PrivateBenjaminiHochberg ProportionTest RankScores TestResult Thresholdout"
    " TruncatedExponential TwoSampleMeanTest YesNo",
    "streaming": "Advance Ball Box ClippedGradients ContinualCounter Latest LinearLoss"
    " LogisticLoss OnlineLearner Presence RunningSum Simplex SquaredDistance SquaredLoss",
    "synthetic": "AIM Constraint CopyDistance Domain DomainColumn Fitted Independent MST MWEM MarginalCounts"
    " MeasuredTable",
}


def all_tags() -> set[str]:
    for modules in _registry.PACKAGES.values():
        for module in modules:
            importlib.import_module(f"discreet.{module}")
    return {tag for tag, cls in _registry.registered().items() if cls.__module__.startswith("discreet.")}


def test_the_network_names_what_analysts_ask_with_and_nothing_else():
    listed = {f"{package}.{name}" for package, names in ALLOWED.items() for name in names.split()}
    assert listed == wire.NETWORK
    assert listed <= all_tags()


def test_every_other_class_is_refused_before_it_is_looked_up(monkeypatch):
    others = sorted(all_tags() - wire.NETWORK)
    assert len(others) > 100
    made: list[object] = []
    monkeypatch.setattr(_registry, "_object", lambda data: made.append(data))
    for tag in [*others, "os.system", "discreet.Curator", 5, None]:
        for description in ({"type": tag}, {"type": "query.Query", "public": [{"type": tag}]}):
            with pytest.raises(dp.InvalidInput, match="not a description that is read from the network"):
                wire.read(description)
    assert made == []


SCHEMA = 'table = "t"\nversion = "1"\nunit = "row"\n[columns.a]\ntype = "number"\nlower = 0\nupper = 99\n'
PUBLIC = dp.Public(table="t", schema={"a": dp.Bounds(0, 99)}, unit=dp.rows(), version="1")


def body_of(mechanism) -> dict:
    return {"mechanism": _registry.to_json(mechanism), "claim": mechanism.event.to_json()}


def question(n: int, epsilon: float = 0.1) -> query.Query:
    return query.Query(sql=f"SELECT COUNT(*) AS n FROM t WHERE a > {n}", public=PUBLIC, epsilon=epsilon)


@pytest.fixture
def worker(tmp_path):
    """A function that asks a worker something as ann, and returns its reply."""
    data, schema, ledger = (tmp_path / name for name in ("t.csv", "t.csv.schema.toml", "t.csv.ledger"))
    data.write_text("a\n" + "1\n2\n3\n" * 20)
    schema.write_text(SCHEMA)
    budget = dp.Budget(epsilon=5)
    dp.open(
        data, schema=schema, ledger=ledger, budget=budget, analysts={"ann": dp.Budget(epsilon=2), "bob": None}
    )
    desk = Desk(True, 5.0, Folders((tmp_path,), tmp_path / "state"), rows=3)
    facts = {"name": "t", "data": str(data), "schema": str(schema), "ledger": str(ledger)}

    def ask(verb: str, who: str = "ann", withheld=None, **options):
        request = {"verb": verb, "analyst": who, "by": who, "role": "analyst", "dataset": facts}
        withheld = withheld or {"now": time.time(), "since": []}
        return handle(desk, request | {"options": options, "opening": "x", "withheld": withheld})

    return ask


def test_a_claim_is_compared_with_the_price_that_is_computed_here(worker):
    """A client of another version, or a hostile one, is charged what it is, or nothing."""
    dear = body_of(question(1, epsilon=1))
    for verb in ("ask", "price"):
        refused = worker(verb, **dear | {"claim": question(1, epsilon=0.01).event.to_json()})
        assert "is not the one that the request claims" in refused["error"]["message"]
        assert not refused["touched"]
    vector = SparseVector(public=PUBLIC, threshold=5, epsilon=1, positives=1)
    refused = worker("start", **body_of(vector) | {"claim": question(1).event.to_json()})
    assert "claims" in refused["error"]["message"]
    assert worker("budget")["result"]["used"] == 0
    assert worker("ask", **dear)["result"]["event"] == dear["claim"]
    assert worker("budget")["result"]["used"] == 1


def test_the_words_in_the_ledger_are_those_of_the_question(worker):
    """An analyst cannot write others into the steward's books."""
    worker("ask", **body_of(question(7)), text="SELECT harmless")
    entries = worker("ledger", last=10)["result"]["entries"]
    assert [entry["body"]["text"] for entry in entries] == [question(7).sql]


def test_more_groups_than_may_be_sent_are_refused_in_every_verb_before_the_charge(worker):
    wide = "SELECT ROUND(a, -1) AS tens, COUNT(*) AS n FROM t GROUP BY ROUND(a, -1)"
    asked = query.Query(sql=wide, public=PUBLIC, epsilon=0.1)
    several = query.WorkloadQuery(queries=(question(1).sql,) * 1 + (wide,), public=PUBLIC, epsilon=0.1)
    columns = ", ".join(f"SUM(a) AS s{i}" for i in range(31))
    tens = Histogram(column="a", edges=(0.0, 10.0, 20.0, 30.0, 40.0))
    vector = AddNoise(statistic=tens, public=PUBLIC, noise=IntegerLaplace(scale=10, sensitivity=1))
    for reply in (
        worker("sql", sql=f"SELECT {columns} FROM t", epsilon=0.1),
        worker("ask", **body_of(vector)),
        worker("sql", sql=wide, epsilon=0.1),
        worker("workload", queries=[wide], epsilon=0.1),
        worker("ask", **body_of(asked)),
        worker("ask", **body_of(several)),
    ):
        assert "this server sends at most 3 rows" in reply["error"]["message"]
        assert reply["error"]["charged"] is False
    assert worker("budget")["result"]["used"] == 0


OPENED: Counter = Counter()


def _count(event: str, arguments: tuple) -> None:
    if event == "sqlite3.connect" and ".ledger" in str(arguments[0]):
        OPENED[threading.get_ident()] += 1


def test_a_request_opens_the_ledger_at_most_four_times(worker):
    """One look, the charge, the release: it was 25 for a question in SQL."""
    sys.addaudithook(_count)
    vector = SparseVector(public=PUBLIC, threshold=5, epsilon=0.1, positives=5)
    worker("describe")
    requests = [
        ("ask", body_of(question(1))),
        ("ask", body_of(question(1))),
        ("sql", {"sql": question(2).sql, "epsilon": 0.1}),
        ("workload", {"queries": [question(3).sql, question(4).sql], "epsilon": 0.1}),
        ("price", body_of(question(5))),
        ("preview", {"sql": question(6).sql, "epsilon": 0.1}),
        ("budget", {}),
        ("describe", {}),
        ("start", body_of(vector)),
    ]
    for verb, options in requests:
        OPENED.clear()
        assert "result" in worker(verb, **options)
        assert 1 <= OPENED[threading.get_ident()] <= 4, verb


def test_what_is_refused_is_refused_with_one_message(server: Server):
    from discreet.tabular import Ridge

    people = dp.connect(server.url, server.tokens["ann"], dataset="health")
    words = "cannot be sent: it has no JSON description. Callables, modules, checkpoints and objects of other"
    for attempt in (
        lambda: people.ask(lambda source: 1),
        lambda: people.start(object()),
        lambda: people.teach(object(), teachers=5),
        lambda: people.preview_teach(object(), teachers=5),
        lambda: people.resume(object(), "run"),
        lambda: people.fit(Ridge(epsilon=1), target="age", checkpoint="run"),
        lambda: people.fit(Ridge(epsilon=1), target="age", text="mine"),
        lambda: people.synthesize(epsilon=1, columns=["sex"], checkpoint="run"),
        lambda: people.synthesize(epsilon=1, columns=["sex"], checkpoint="run", resume=True),
    ):
        with pytest.raises(dp.InvalidInput, match=words) as refused:
            attempt()
        assert not refused.value.charged


def test_an_interrupted_client_loses_no_release_that_was_paid_for(server: Server):
    people = dp.connect(server.url, server.tokens["ann"], dataset="health")
    text = "SELECT COUNT(*) AS n FROM health WHERE age > 47"
    asked = query.Query(sql=text, public=people.public, epsilon=0.0625)
    before = people.spent
    with server.client("ann") as ann, pytest.raises(httpx.ReadTimeout):
        ann.post("/datasets/health/ask", json=body_of(asked), timeout=httpx.Timeout(60, read=0.001))
    deadline = time.monotonic() + 60
    while people.spent == before and time.monotonic() < deadline:
        time.sleep(0.05)
    paid = people.spent
    assert paid > before
    answer = None
    while answer is None and time.monotonic() < deadline:
        # until its public time is over it is "being computed"
        with suppress(dp.InvalidInput):
            answer = people.ask(asked).value
        time.sleep(0.1)
    assert len(answer) == 1
    assert people.spent == paid, "asking again serves what was paid for"
    assert people.sql(text, epsilon=0.0625)["n"] == answer["n"]


# who sends a request, and what each verb answers them: a status, or what a wrong one of theirs is
ASKED, REFUSED, GONE, HIDDEN = 200, 403, 401, 404
VERBS = ("price", "ask", "start", "answer", "feed", "run", "live", "live/1", "ledger", "budget", "releases")
READS = {"live", "live/1", "ledger", "budget", "releases"}


@pytest.fixture(scope="module")
def people(server: Server) -> dict[str, dict[str, str]]:
    """Headers of everybody: `other` is an analyst of other data, `removed` was one of this."""
    with server.client("steward") as steward:
        tokens = {}
        for name in ("otto", "remo"):
            steward.post("/people", json={"name": name, "role": "analyst"})
            tokens[name] = steward.post(f"/people/{name}/tokens", json={}).json()["token"]
        steward.delete("/people/remo")
    named = {
        "steward": server.tokens["steward"],
        "analyst": server.tokens["ann"],
        "own": server.tokens["bob"],
        "other": tokens["otto"],
        "removed": tokens["remo"],
        "auditor": server.tokens["olga"],
    }
    headers = {who: {"Authorization": f"Bearer {token}"} for who, token in named.items()}
    return {"anonymous": {}, **headers}


@pytest.fixture(scope="module")
def bodies(server: Server) -> dict[str, dict]:
    """A right request for each verb that has a body. `answer` and `feed` are about a mechanism of bob's."""
    with server.client("bob") as bob:
        public = _registry.from_json(bob.get("/datasets/health").json()["public"])
        started = bob.post(
            "/datasets/health/start", json=watch_body(bob, "health", epsilon=0.05, positives=50)
        )
        assert started.status_code == 200, started.text
        number = started.json()["number"]
    asked = query.Query(sql=COUNT, public=public, epsilon=0.03125)
    return {
        "price": body_of(asked),
        "ask": body_of(asked),
        "start": body_of(SparseVector(public=public, threshold=3, epsilon=0.03125, positives=1)),
        "answer": {"number": number, "question": "age > 30"},
        "feed": {"number": number},
        "run": {"ask": body_of(asked)},
    }


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_is_for_its_people_alone(server: Server, people, bodies, verb):
    """Every verb x anonymous, analyst, the owner, another analyst, a removed one, auditor, steward."""
    expected = {"anonymous": GONE, "removed": GONE, "other": HIDDEN, "auditor": REFUSED}
    if verb in ("ledger", "budget"):
        expected["auditor"] = ASKED
    seen = {}
    with httpx.Client(base_url=f"{server.url}/api/v1/datasets/health/", timeout=600) as client:
        spent = client.get("budget", headers=people["other"]).status_code
        assert spent == HIDDEN
        for who, headers in people.items():
            if verb in READS:
                reply = client.get(verb, headers=headers)
            else:
                reply = client.post(verb, headers=headers, json=bodies[verb])
            seen[who] = reply.status_code
            if who in expected:
                assert reply.status_code == expected[who], (who, reply.text)
            if seen[who] not in (200, 202, 400):
                assert reply.json()["error"]["charged"] is None, "nothing was asked of a curator"
    assert seen["own"] in (200, 400), seen
    if verb in ("answer", "feed"):
        # bob's mechanism, under a number that is his: ann's and the steward's own numbers are others
        assert seen["own"] == 200
    elif verb not in ("live/1",):
        assert (seen["steward"], seen["analyst"], seen["own"]) == (200, 200, 200), seen


def test_what_is_not_yours_and_what_is_not_there_are_answered_alike(server: Server, bodies):
    number = bodies["answer"]["number"]
    with server.client("ann") as ann:
        absent = number + 10_000
        for path, body in (("answer", {"question": "age > 30"}), ("feed", {})):
            replies = [
                ann.post(f"/datasets/health/{path}", json={**body, "number": n}) for n in (absent, 2**50)
            ]
            texts = {r.text.replace(str(n), "N") for r, n in zip(replies, (absent, 2**50), strict=True)}
            assert [r.status_code for r in replies] == [400, 400]
            assert len(texts) == 1
            assert "is no live mechanism of yours" in texts.pop()
        assert ann.get(f"/datasets/health/live/{absent}").status_code == 400


def test_one_person_s_verbs_share_one_limit(tmp_path_factory):
    """`slots_per_person` counts questions that wait for their public time, by whichever verb they came."""
    server = Server(
        tmp_path_factory.mktemp("slots"),
        seconds=4.0,
        tick=4.0,
        rate=1000,
        burst=2000,
        workers=2,
        previewers=1,
    ).start()
    try:
        with server.client("ann") as ann:
            public = _registry.from_json(ann.get("/datasets/health").json()["public"])
            codes: list[int] = []

            def send(n: int) -> None:
                verb = ("ask", "start", "run", "query")[n % 4]
                asked = query.Query(
                    sql=f"SELECT COUNT(*) AS n FROM health WHERE age > {n}", public=public, epsilon=0.01
                )
                vector = SparseVector(public=public, threshold=n, epsilon=0.01, positives=1)
                body = {
                    "ask": body_of(asked),
                    "start": body_of(vector),
                    "run": {"ask": body_of(asked)},
                    "query": {"sql": asked.sql, "epsilon": 0.01},
                }[verb]
                with server.client("ann") as own:
                    codes.append(own.post(f"/datasets/health/{verb}", json=body).status_code)

            threads = [threading.Thread(target=send, args=(20 + n,)) for n in range(14)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert codes.count(503) == 14 - 8, codes
    finally:
        server.stop()


def test_the_same_new_question_by_six_connections_at_once_is_charged_once_and_answers_all(server: Server):
    """Those that came while it was computed were refused."""
    body = {"sql": "SELECT COUNT(*) AS n FROM health WHERE age > 13", "epsilon": 0.03}
    with server.client("bob") as bob:
        before = bob.get("/datasets/health/budget").json()["used"]
        with ThreadPoolExecutor(6) as pool:
            replies = list(pool.map(lambda _: _ask(server, body), range(6)))
        assert [reply.status_code for reply in replies] == [200] * 6, [reply.text for reply in replies]
        assert len({str(reply.json()["rows"]) for reply in replies}) == 1
        assert bob.get("/datasets/health/budget").json()["used"] - before == pytest.approx(0.03, rel=0.01)


def _ask(server: Server, body: dict) -> httpx.Response:
    with server.client("bob") as bob:
        return bob.post("/datasets/health/query", json=body)


def test_who_asks_what_a_cancelled_job_asked_is_charged_as_if_nobody_had(worker):
    """Whether the job had stored its answer depends on the data: its own analyst is refused until its time."""
    asked, begun = {"sql": question(11).sql, "epsilon": 0.1}, time.time()
    worker("sql", **asked)
    withheld = {"now": time.time() + 60, "since": []}
    dropped = withheld | {"dropped": [["ann", begun - 1, time.time()]]}
    used = lambda: worker("budget", who="bob")["result"]["used"]  # noqa: E731, the dataset's
    assert "is being computed" in worker("sql", withheld=dropped, **asked)["error"]["message"]
    assert used() == pytest.approx(0.1)
    assert "result" in worker("sql", withheld=dropped, who="bob", **asked)
    assert used() == pytest.approx(0.2)
    assert "result" in worker("sql", withheld=withheld, **asked)
    assert used() == pytest.approx(0.2)
