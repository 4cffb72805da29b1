"""Jobs: a public clock, a result at its end, cancel without a refund, datasets and limits."""

from __future__ import annotations

import shutil
import time
from datetime import datetime

from .running import COUNT, Server

FIT = {
    "estimator": {"estimator": "LogisticRegression", "parameters": {"epsilon": 0.5, "n": 5000}},
    "target": "sex",
    "features": ["age"],
}


def test_a_job_shows_its_clock_only_and_its_result_at_its_time(server: Server):
    with server.client("ann") as ann, server.client("bob") as bob:
        begun = time.monotonic()
        made = ann.post(
            "/datasets/health/run", json={"seconds": 20, "query": {"sql": COUNT, "epsilon": 0.02}}
        )
        assert made.status_code == 202
        path = f"/jobs/{made.json()['id']}"
        assert bob.get(path).status_code == 404
        assert bob.delete(path).status_code == 404
        while (facts := ann.get(path).json())["state"] in ("waiting", "running"):
            assert set(facts) == {"id", "dataset", "verb", "state", "seconds", "elapsed", "result"}
            assert facts["result"] is None
            # the release is in the ledger long before: it is not shown
            texts = [line["price"] for line in ann.get("/datasets/health/releases").json()["releases"]]
            assert not any("0.02:" in text for text in texts)
            time.sleep(0.5)
        assert time.monotonic() - begun >= 19.9
        assert facts["state"] == "done", facts
        assert facts["result"]["columns"] == ["health", "n"]


def test_a_cancelled_job_stays_charged_if_it_was(server: Server):
    with server.client("bob") as bob:
        job = bob.post("/datasets/health/run", json={"seconds": 60, "fit": FIT}).json()["id"]
        before = bob.get("/datasets/health/budget").json()["used"]
        deadline = time.monotonic() + 600
        while bob.get("/datasets/health/budget").json()["used"] == before and time.monotonic() < deadline:
            time.sleep(0.1)
        charged = bob.get("/datasets/health/budget").json()["used"]
        assert bob.delete(f"/jobs/{job}").json() == {"cancelled": True}
        assert bob.get(f"/jobs/{job}").json()["state"] == "cancelled"
        assert charged > before
        assert bob.get("/datasets/health/budget").json()["used"] == charged, "the charge stays"
        assert bob.delete(f"/jobs/{job}").json() == {"cancelled": False}


def test_results_of_jobs_end_with_the_grant(server: Server):
    (server.folder / "data" / "ended.csv").write_text("ward\n" + "A\nB\n" * 50)
    schema = 'table = "ended"\nversion = "1"\nunit = "row"\n[columns.ward]\ntype = "categories"\nvalues = ["A", "B"]\n'
    with server.client("steward") as steward, server.client("ann") as ann:
        body = {
            "name": "ended",
            "path": "ended.csv",
            "schema_text": schema,
            "budget": {"epsilon": 2},
            "analysts": {"ann": None},
        }
        assert steward.post("/datasets", json=body).status_code == 201
        asked = {"sql": "SELECT ward, COUNT(*) AS n FROM ended GROUP BY ward", "epsilon": 0.5}
        job = ann.post("/datasets/ended/run", json={"seconds": 20, "query": asked}).json()["id"]
        deadline = time.monotonic() + 600
        while (
            ann.get(f"/jobs/{job}").json()["state"] in ("waiting", "running") and time.monotonic() < deadline
        ):
            time.sleep(0.3)
        assert ann.get(f"/jobs/{job}").json()["state"] == "done"
        assert (
            steward.put("/datasets/ended/policy", json={"budget": {"epsilon": 2}, "analysts": {}}).status_code
            == 200
        )
        assert ann.get(f"/jobs/{job}").status_code == 404
        assert job not in [one["id"] for one in ann.get("/jobs").json()["jobs"]]


def test_limits_of_jobs_are_refused_before_a_charge(server: Server):
    with server.client("bob") as bob:
        before = bob.get("/datasets/health/budget").json()["used"]
        for body in ({}, {"seconds": 1e5, "fit": FIT}, {"fit": FIT, "query": {"sql": COUNT, "epsilon": 1}}):
            assert bob.post("/datasets/health/run", json=body).status_code == 400
        assert bob.get("/datasets/health/budget").json()["used"] == before


def test_a_dataset_is_added_from_a_root_only_and_its_budgets_are_in_the_ledger(server: Server):
    data = server.folder / "data"
    (data / "wards.csv").write_text("ward,age\n" + "A,40\nB,50\n" * 500)
    (server.folder / "outside.csv").write_text("ward,age\nA,1\n")
    (data / "link.csv").unlink(missing_ok=True)
    (data / "link.csv").symlink_to(server.folder / "outside.csv")
    schema = 'table = "wards"\nversion = "1"\nunit = "row"\n[columns.ward]\ntype = "categories"\nvalues = ["A", "B"]\n'
    schema += '[columns.age]\ntype = "number"\nlower = 0\nupper = 120\nnullable = false\n'
    with server.client("steward") as steward, server.client("ann") as ann:
        for path in (
            "../outside.csv",
            "link.csv",
            "/etc/passwd",
            "https://example.org/x.csv",
            "health.parquet.ledger.key",
        ):
            assert steward.post("/drafts", json={"path": path}).status_code == 400, path
        draft = steward.post("/drafts", json={"path": "wards.csv"})
        assert "ward" in draft.json()["schema"]
        assert "500" not in draft.json()["schema"]
        body = {"name": "wards", "path": "wards.csv", "schema_text": schema, "budget": {"epsilon": 2}}
        made = steward.post("/datasets", json=body)
        assert made.status_code == 201, made.text
        assert steward.post("/datasets", json=body).status_code == 400
        assert ann.get("/datasets/wards").status_code == 404
        policy = {"budget": {"epsilon": 3}, "analysts": {"ann": {"epsilon": 1}}}
        assert steward.put("/datasets/wards/policy", json=policy).status_code == 200
        asked = {"sql": "SELECT ward, COUNT(*) AS n FROM wards GROUP BY ward", "epsilon": 0.5}
        assert ann.post("/datasets/wards/query", json=asked).status_code == 200
        policy["analysts"] = {}
        assert steward.put("/datasets/wards/policy", json=policy).status_code == 200
        assert ann.post("/datasets/wards/query", json=asked | {"epsilon": 0.25}).status_code == 404
        entries = steward.get("/datasets/wards/ledger").json()["entries"]
        kinds = [entry["kind"] for entry in entries]
        assert kinds.count("policy") == 2
        assert any(e["kind"] == "steward" and "changed budgets" in e["what"] for e in entries)
        assert steward.get("/datasets/wards/ledger/check").json()["whole"]


def test_the_result_of_a_job_is_not_had_before_its_time_by_asking_again(server: Server):
    """Before the work is done and after it, until its public time: the same words, and no charge."""
    work = {"sql": "SELECT sex, COUNT(*) AS n FROM health WHERE age > 33 GROUP BY sex", "epsilon": 0.03}
    with server.client("ann") as ann, server.client("bob") as bob:
        ann.post("/datasets/health/preview", json=work)
        job = ann.post("/datasets/health/run", json={"seconds": 24, "query": work}).json()["id"]
        before, seen = ann.get("/datasets/health/budget").json()["used"], set()
        deadline = time.monotonic() + 600
        while ann.get("/datasets/health/budget").json()["used"] == before and time.monotonic() < deadline:
            time.sleep(0.05)
        charged = ann.get("/datasets/health/budget").json()["used"]
        assert charged > before
        for _ in range(8):
            for asker in (ann, bob):
                reply = asker.post("/datasets/health/query", json=work | {"sql": work["sql"] + " -- again"})
                seen.add((reply.status_code, reply.text))
            time.sleep(0.25)
        assert ann.get(f"/jobs/{job}").json()["state"] == "running"
        assert [code for code, _ in seen] == [400], seen
        assert "being computed" in next(iter(seen))[1]
        while (facts := ann.get(f"/jobs/{job}").json())["state"] == "running":
            time.sleep(0.3)
        assert facts["state"] == "done"
        time.sleep(0.2)
        again = ann.post("/datasets/health/query", json=work)
        assert again.json()["rows"] == facts["result"]["rows"]
        assert ann.get("/datasets/health/budget").json()["used"] == charged


def test_who_is_served_a_stored_release_reads_nothing_of_who_asked_first(server: Server):
    text = "SELECT COUNT(*) AS n FROM health WHERE age > 51"
    with server.client("ann") as ann, server.client("bob") as bob:
        first = ann.post("/datasets/health/query", json={"sql": f"{text} -- about Mr Smith", "epsilon": 0.04})
        own = {"sql": f"{text} -- my own words", "epsilon": 0.04}
        served = bob.post("/datasets/health/query", json=own)
        assert served.json()["rows"] == first.json()["rows"]
        assert "Smith" not in served.text
        line = bob.get("/datasets/health/releases").json()["releases"][-1]
        assert (line["analyst"], "my own words" in line["text"]) == ("bob", True)
        whole = bob.get(f"/datasets/health/releases/{line['number']}")
        explained = bob.post("/datasets/health/explain", json={"number": line["number"]})
        copies = bob.get("/datasets/health/copies")
        for reply in (whole, explained, copies, bob.get("/datasets/health/releases")):
            assert reply.status_code == 200
            assert "Smith" not in reply.text
            assert '"ann"' not in reply.text
        for entry in bob.get("/datasets/health/ledger").json()["entries"]:
            assert not entry["body"].keys() & {"spent", "first", "cap", "cap of total"}


def test_a_search_writes_nothing_of_its_runs_before_a_public_time(server: Server):
    """Who counts entries while it runs learns nothing of how many runs there are."""
    inner = {"estimator": "LogisticRegression", "parameters": {"method": "gradient"}}
    search = {"estimator": inner, "space": {"regularization": [1.0, 3.0]}, "trials": 2, "epsilon": 0.5}
    fit = {
        "estimator": {"estimator": "PrivateSearch", "parameters": search},
        "target": "sex",
        "features": ["age"],
    }
    data = server.folder / "data"
    shutil.copy(data / "health.parquet", data / "sized.parquet")
    schema = "size = 5000\n" + (data / "health.parquet.schema.toml").read_text()
    with server.client("ann") as ann, server.client("steward") as steward:
        body = {"name": "sized", "path": "sized.parquet", "schema_text": schema, "analysts": {"ann": None}}
        added = steward.post("/datasets", json=body | {"budget": {"epsilon": 10, "delta": 1e-6}})
        assert added.status_code == 201, added.text
        job = ann.post("/datasets/sized/run", json={"seconds": 30, "fit": fit}).json()["id"]
        while (facts := ann.get(f"/jobs/{job}").json())["state"] in ("waiting", "running"):
            time.sleep(0.5)
        entries = steward.get("/datasets/sized/ledger", params={"last": 500}).json()["entries"]
    assert facts["state"] == "done", facts["result"]
    charge = next(e for e in reversed(entries) if e["kind"] == "charge")
    begun = datetime.fromisoformat(charge["time"])
    later = [e for e in entries if e["kind"] != "charge" and e["body"].get("charge") == charge["seq"]]
    assert [e["kind"] for e in later] == ["release"], entries
    waits = [(datetime.fromisoformat(e["time"]) - begun).total_seconds() for e in later]
    assert min(waits) > 0.5 * 15
