"""The survey page in a real browser: what leaves it is a report, and never the answer."""

from __future__ import annotations

import errno
import json
import math
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from random import Random

import httpx
import numpy as np
import pytest
import uvicorn
from typer.testing import CliRunner

from discreet import InvalidInput
from discreet.app.cli import app as cli
from discreet.app.web.survey import ReportStore, build_survey, load_survey, results_of
from discreet.sampling import SeededEntropy

from .conftest import expect, watch
from .run_server import ROOT
from .running import free_port, in_a_loop

SURVEY = """
title = "Habits <script>window.hacked=1</script>"
about = "Two questions."
people = 500

[[question]]
name = "smoke"
text = "Do you smoke?"
categories = ["never", "sometimes", "SECRETCATEGORY"]
epsilon = 1

[[question]]
name = "drinks"
text = "How many drinks a week?"
between = [0, 40]
epsilon = 1
"""


@pytest.fixture(scope="module")
def survey(tmp_path_factory):
    """`discreet collect survey.toml`, as a shell runs it."""
    file = tmp_path_factory.mktemp("survey") / "survey.toml"
    file.write_text(SURVEY)
    port = free_port()
    command = [
        sys.executable,
        "-c",
        "from discreet.app.cli import main; main()",
        "collect",
        str(file),
        "--port",
        str(port),
    ]
    paths = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    results = process.stdout.readline().split()[-1]
    url = f"http://127.0.0.1:{port}"
    for _ in range(600):
        try:
            httpx.get(url)
            break
        except httpx.HTTPError:
            time.sleep(0.1)
    yield url, results, file
    process.terminate()
    process.wait()
    process.stdout.close()


def answered(browser, url: str, drinks: str):
    """A page on which both questions were answered; everything that left it is noted."""
    context = browser.new_context()
    page = context.new_page()
    watch(page, url)
    page.sent = []
    page.on(
        "request", lambda r: page.sent.append((r.method, r.url, r.post_data or "", json.dumps(r.headers)))
    )
    page.goto(url)
    page.wait_for_selector("fieldset >> nth=1")
    page.click("label:has-text('SECRETCATEGORY')")
    page.fill("input[type=number]", drinks)
    return page


def test_the_true_answer_never_leaves_the_page(browser, survey):
    url, _, _ = survey
    page = answered(browser, url, "31.375")
    before = len(page.sent)
    page.click("#draw")
    page.wait_for_selector("#reports")
    assert len(page.sent) == before, "drawing sends nothing"
    shown = json.loads(page.inner_text("#reports"))
    page.click("#send")
    page.wait_for_selector("#thanks")
    posts = [one for one in page.sent if one[0] == "POST"]
    assert len(posts) == 1
    assert json.loads(posts[0][2]) == {"reports": shown}, "what was shown is what was sent, and nothing else"
    everything = "\n".join(" ".join(one) for one in page.sent)
    assert "31.375" not in everything
    assert "SECRETCATEGORY" not in everything
    assert "cookie" not in everything.lower()
    kept = page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie, location.href])")
    assert "31.375" not in kept
    # the three categories are part of no key: a description holds numbers only
    assert "SECRETCATEGORY" not in kept
    assert page.evaluate(
        "[...document.querySelectorAll('input')].every(e => e.autocomplete === 'off' && !e.form)"
    )
    assert page.evaluate(
        "[...document.querySelectorAll('input')].every(e => !e.checked && e.type === 'radio' || e.value === '')"
    )
    assert page.evaluate("window.hacked") is None
    page.reload()
    page.wait_for_selector("text=This browser has sent its reports")
    expect(page.locator("#draw")).to_be_disabled()
    assert not page.problems
    page.context.close()


def test_a_respondent_may_leave_out_is_told_of_mistakes_and_of_a_server_that_is_gone(browser, survey):
    """On a phone, in the dark; what is out of range counts as the nearest bound, and that is said: left out, it
    would tell the server that it is out of range."""
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = context.new_page()
    page.goto(survey[0])
    page.wait_for_selector("fieldset >> nth=1")
    page.fill("input[type=number]", "1000")
    expect(page.locator("[role=status]")).to_have_text("This counts as 40.")
    expect(page.locator("#draw")).to_be_enabled()
    page.locator("input[type=number]").press_sequentially("e")
    expect(page.locator("[role=status]")).to_have_text("This is no number: it is left out.")
    expect(page.locator("#draw")).to_be_disabled()
    page.click("label:has-text('SECRETCATEGORY')")
    page.click("label:has-text('I leave this out')")
    expect(page.locator("#draw")).to_be_disabled()
    page.fill("input[type=number]", "3")
    page.click("#draw")
    page.wait_for_selector("#reports")
    assert list(json.loads(page.inner_text("#reports"))) == ["drinks"]
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    context.set_offline(True)
    page.click("#send")
    page.wait_for_selector("#failed")
    context.set_offline(False)
    page.click("#send")
    page.wait_for_selector("#thanks")
    context.close()


def test_a_page_loaded_again_and_a_second_tab_send_the_same_report_once(browser, survey):
    """Nobody draws twice from their answers in one browser: not after a reload, and not in a tab that was open
    before."""
    page = answered(browser, survey[0], "3")
    other = page.context.new_page()
    other.goto(survey[0])
    other.fill("input[type=number]", "4")
    page.click("#draw")
    first = page.inner_text("#reports")
    page.reload()
    page.wait_for_selector("#reports")
    assert page.inner_text("#reports") == first
    other.click("#draw")
    assert other.inner_text("#reports") == first
    other.click("#send")
    other.wait_for_selector("#thanks")
    requests = len(page.sent)
    page.click("#send")
    page.wait_for_selector("text=This browser has sent its reports")
    assert len(page.sent) == requests, "they were sent by the other tab"
    page.context.close()


def test_reports_are_stored_without_address_time_or_order(browser, survey):
    url, results, file = survey
    questions = {q.name: q for q in load_survey(file).questions}
    entropy = SeededEntropy(5)
    drinks = list(questions["drinks"].randomizer.respond([10.0] * 60, entropy=entropy))
    smoke = list(questions["smoke"].randomizer.respond([0] * 60, entropy=entropy))
    for one, two in zip(smoke, drinks, strict=True):
        body = json.loads(json.dumps({"reports": {"smoke": _plain(one), "drinks": _plain(two)}}))
        assert httpx.post(f"{url}/reports", json=body).status_code == 200
    _, *lines = file.with_name("survey.toml.reports").read_text().splitlines()
    kept = [json.loads(line.rsplit(" ", 1)[0]) for line in lines]
    assert lines == sorted(lines), "the order of arrival is not kept"
    assert all(
        [name, _plain(one)] in kept for name, part in (("smoke", smoke), ("drinks", drinks)) for one in part
    )
    assert httpx.get(f"{url}/results/wrong").status_code == 404
    page = browser.new_page()
    page.goto(url + results)
    expect(page.locator("svg .whisker")).to_have_count(4)
    assert "within" in page.inner_text("section >> nth=0")
    assert page.evaluate("window.hacked") is None
    page.close()


def _plain(report):
    return json.loads(json.dumps(report, default=lambda x: x.tolist()))


def test_reports_that_are_none_are_refused(survey):
    for body in (
        {"reports": {"nope": 1}},
        {"reports": {"smoke": "x"}},
        {"reports": {"smoke": {"a": 1}}},
        {"reports": {"drinks": [9, 9, 9]}},
    ):
        reply = httpx.post(f"{survey[0]}/reports", json=body)
        assert reply.status_code == 400, body
    for body in ({}, {"reports": {}}, {"reports": {}, "name": "MYNAME"}):
        reply = httpx.post(f"{survey[0]}/reports", json=body)
        assert reply.status_code == 422
        assert reply.json()["error"]["kind"] == "InvalidRequest"
        assert "MYNAME" not in reply.text
    # a page of another site, in the browser of somebody who visits it
    for headers in ({"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}):
        reply = httpx.post(f"{survey[0]}/reports", json={"reports": {"smoke": 1}}, headers=headers)
        assert reply.status_code == 403


@pytest.mark.parametrize(
    ("method", "path", "body", "code"),
    [
        ("GET", "/nothing", b"", 404),
        ("GET", "/reports", b"", 405),
        ("POST", "/reports", b'{"reports": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", 400),
        ("POST", "/reports", b'{"reports": {"smoke": ' + b"9" * 10_000 + b"}}", 400),
    ],
)
def test_every_error_of_a_survey_has_the_shape_of_all_errors(survey, method, path, body, code):
    headers = {"Content-Type": "application/json"}
    reply = httpx.request(method, f"{survey[0]}{path}", content=body, headers=headers)
    assert reply.status_code == reply.json()["error"]["code"] == code
    assert "Nothing was kept" in reply.json()["error"]["message"]


def test_estimates_come_with_errors_that_hold(tmp_path):
    """60 alike answers: false-alarm rate 5% of one seeded draw; the seed was not searched for."""
    file = tmp_path / "survey.toml"
    file.write_text(SURVEY)
    question = load_survey(file).questions[0]
    reports = list(question.randomizer.respond([1] * 400, entropy=SeededEntropy(7)))
    facts = results_of(question, reports)
    for estimate, share in zip(facts["estimates"], (0.0, 1.0, 0.0), strict=True):
        assert abs(estimate - share) <= facts["error"]
    assert results_of(question, reports[:9])["estimates"] is None


def test_estimates_that_no_answers_could_cause_are_marked(tmp_path):
    """Honest reports of any mixture are not accused; those of somebody who sends what suits them are."""
    file = tmp_path / "survey.toml"
    file.write_text(SURVEY)
    smoke, drinks = load_survey(file).questions
    entropy = SeededEntropy(7)
    for shares in ([0, 0, 1], [0.98, 0.01, 0.01]):
        codes = np.random.default_rng(1).choice(3, size=2000, p=shares)
        honest = results_of(smoke, smoke.randomizer.respond(codes, entropy=entropy))
        assert honest["plausible"], shares
    assert results_of(drinks, drinks.randomizer.respond(np.full(500, 40.0), entropy=entropy))["plausible"]
    (report,) = smoke.randomizer.respond([1], entropy=entropy)
    forged = results_of(smoke, [_plain(report)] * 2000)
    assert not forged["plausible"]


def test_the_address_of_the_results_lasts_and_is_secret(tmp_path):
    file = tmp_path / "survey.toml"
    file.write_text(SURVEY)
    kept = set()
    for _ in range(2):
        app = build_survey(file)
        kept.add(app.state.results)
        app.state.reports.close()
    assert len(kept) == 1
    secret = tmp_path / "survey.toml.results"
    assert secret.stat().st_mode & 0o777 == 0o600
    secret.write_text("short")
    with pytest.raises(InvalidInput, match="holds no secret of 16 characters"):
        build_survey(file)


def test_one_address_sends_so_many_reports_and_others_go_on(tmp_path):
    file = tmp_path / "survey.toml"
    file.write_text(SURVEY)
    app = build_survey(file, secure=True)
    question = load_survey(file).questions[1]
    (report,) = question.randomizer.respond([3.0], entropy=SeededEntropy(3))
    body = {"reports": {"drinks": _plain(report)}}

    async def send(address, count):
        transport = httpx.ASGITransport(app=app, client=(address, 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            replies = [await client.post("/reports", json=body) for _ in range(count)]
        assert all(reply.headers["strict-transport-security"] for reply in replies)
        return [reply.status_code for reply in replies]

    codes = in_a_loop(lambda: send("10.0.0.1", 210))
    assert codes[:200] == [200] * 200
    assert 429 in codes[200:]
    assert in_a_loop(lambda: send("10.0.0.2", 1)) == [200]
    assert len(app.state.reports.of("drinks")) == codes.count(200) + 1, "what was refused is not kept"
    app.state.reports.close()


@pytest.mark.parametrize(
    ("epsilon", "words"),
    [
        (0.1, "Nobody, not even"),
        (1, "can only guess"),
        (2, "right more often than not"),
        (9, "protects you little"),
    ],
)
def test_what_the_page_promises_depends_on_epsilon(browser, tmp_path, epsilon, words):
    file = tmp_path / "survey.toml"
    file.write_text(
        f'[[question]]\nname = "a"\ntext = "A?"\ncategories = ["yes", "no"]\nepsilon = {epsilon}\n'
    )
    app, port = build_survey(file), free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="warning"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    page = browser.new_page()
    try:
        while not server.started:
            time.sleep(0.05)
        page.goto(f"http://127.0.0.1:{port}")
        expect(page.locator("#protection")).to_contain_text(words)
        text = page.inner_text("#protection")
        bet = 100 / (1 + math.exp(-epsilon))
        said = "more than 99.9" if bet > 99.9 else f"{bet:.1f}".replace(".0", "")
        assert f"at most {said} of 100" in text
    finally:
        page.close()
        server.should_exit = True
        thread.join()
        app.state.reports.close()


def test_without_tls_a_survey_is_served_on_this_machine_only(tmp_path):
    (tmp_path / "survey.toml").write_text(SURVEY)
    command = ["collect", str(tmp_path / "survey.toml"), "--host", "0.0.0.0"]
    result = CliRunner().invoke(cli, command)
    assert isinstance(result.exception, InvalidInput)
    assert "would travel in the clear" in str(result.exception)
    assert not (tmp_path / "survey.toml.reports").exists()


def test_a_survey_that_changed_does_not_mix_its_reports(tmp_path):
    file = tmp_path / "survey.toml"
    file.write_text(SURVEY)
    ReportStore(tmp_path / "kept", load_survey(file)).close()
    file.write_text(SURVEY.replace("epsilon = 1", "epsilon = 2"))
    with pytest.raises(InvalidInput, match="other questions or prices"):
        ReportStore(tmp_path / "kept", load_survey(file))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "title = 1",
        "[[question]]\ntext = 'x'",
        "[[question]]\ntext='x'\nepsilon=1\ncategories=['a']",
        "x = 1\n[[question]]\ntext='x'",
        "[[question]]\ntext='x'\nepsilon=0\ncategories=['a','b']",
        "[[question]]\ntext='x'\nepsilon=1\nbetween=[1]",
        "not toml",
    ],
)
def test_bad_survey_files_are_refused(tmp_path, text):
    file = tmp_path / "survey.toml"
    file.write_text(text)
    with pytest.raises(InvalidInput):
        load_survey(Path(file))


def test_what_the_survey_keeps_holds_no_address_and_no_time(browser, survey):
    """The whole file of reports, and everything beside it, after a known respondent has answered."""
    url, _, file = survey
    page = answered(browser, url, "12.5")
    page.click("#draw")
    page.wait_for_selector("#send")
    before = time.time()
    page.click("#send")
    page.wait_for_selector("#thanks")
    page.context.close()
    raw = b"".join(path.read_bytes() for path in file.parent.iterdir() if path.name != "survey.toml")
    assert b"127.0.0.1" not in raw
    # any of the times since: as digits of seconds, as a date, or as eight bytes of either kind
    for moment in range(int(before) - 2, int(before) + 60):
        assert str(moment).encode() not in raw
    assert time.strftime("%Y-%m-%d", time.gmtime(before)).encode() not in raw
    _, *lines = file.with_name("survey.toml.reports").read_text().splitlines()
    for line in lines:
        kept, count = line.rsplit(" ", 1)
        question, report = json.loads(kept)
        assert question in ("smoke", "drinks")
        assert int(count) >= 1
        assert all(isinstance(part, int) for part in (report if isinstance(report, list) else [report]))


def test_the_survey_logs_no_address_and_asks_for_no_cookie(survey):
    url, _, _ = survey
    for path in ("/", "/survey.json", "/static/survey.js"):
        reply = httpx.get(url + path)
        assert "set-cookie" not in reply.headers
        assert reply.headers["cache-control"] == "no-store"
        assert reply.headers["referrer-policy"] == "no-referrer"
    page = httpx.get(url).text
    assert "Answering again, on another device or after clearing this browser's storage" in page
    assert "<form" not in page, "nothing that a browser could fill in, remember or put into an address"
    script = httpx.get(f"{url}/static/survey.js").text
    assert "sessionStorage" not in script
    assert script.count("localStorage.setItem") == 2, "reports only, before and after they were sent"


def test_results_show_an_error_bar_for_each_estimate(browser, survey):
    url, results, file = survey
    question = load_survey(file).questions[0]
    for report in question.randomizer.respond([2] * 40, entropy=SeededEntropy(9)):
        body = {"reports": {"smoke": _plain(report)}}
        assert httpx.post(f"{url}/reports", json=body).status_code == 200
    page = browser.new_page()
    page.goto(url + results)
    first = page.locator("section >> nth=0")
    expect(first.locator("svg .bar")).to_have_count(3)
    expect(first.locator("svg .whisker")).to_have_count(3)
    assert "95% confidence" in first.inner_text()
    assert all(float(text) > 0 for text in first.locator("tbody td:nth-child(3)").all_inner_texts())
    page.close()


@pytest.mark.parametrize(
    "damaged",
    [
        b"", b"no reports at all", b"SQLite format 3\x00" + bytes(500), b"\xff", b"[]", b'[]\n["a", 1]\n', b"[]\n7 1\n",
        b'[]\n["b", 1] 1\n["a", 1] 1\n', b'[]\n["a", 1] 1\n["a", 1] 1\n', b'[]\n["a", 1] 01\n', b'[]\n["a", 1] -1\n', b'[]\n["a", 1] 1',
    ],
)  # fmt: skip
def test_a_file_of_reports_that_is_damaged_is_refused_and_left_as_it_is(tmp_path, damaged):
    (tmp_path / "survey.toml").write_text(SURVEY)
    path = tmp_path / "survey.toml.reports"
    path.write_bytes(damaged)
    with pytest.raises(InvalidInput, match="cannot be read as the reports of a survey"):
        ReportStore(path, load_survey(tmp_path / "survey.toml"))
    assert path.read_bytes() == damaged


def test_a_report_that_could_not_be_kept_does_not_stop_later_ones(tmp_path, monkeypatch):
    (tmp_path / "survey.toml").write_text(SURVEY)
    survey = load_survey(tmp_path / "survey.toml")
    store = ReportStore(tmp_path / "survey.reports", survey)
    question = survey.questions[0].name
    store.add({question: 1})
    before = contents(tmp_path)

    def full(*paths):
        raise OSError(errno.ENOSPC, "no space left on device")

    for step in ("fsync", "replace"):
        monkeypatch.setattr(os, step, full)
        with pytest.raises(OSError, match="no space left"):
            store.add({question: 1})
        monkeypatch.undo()
        assert contents(tmp_path) == before
    store.add({question: 2})
    assert store.of(question) == [1, 2]
    store.close()


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a folder: names and bytes."""
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_the_bytes_that_are_kept_are_a_function_of_the_multiset_of_reports(tmp_path, monkeypatch):
    """80 people's reports, in two orders and shared out among people in two ways, with stops and starts between
    them: all files have the same bytes, also the one that is written before it takes the place of the other. (In
    SQLite's file the order of arrival could be read from the places of the cells, 80 of 80.)"""
    file = tmp_path / "survey.toml"
    file.write_text(SURVEY)
    survey = load_survey(file)
    entropy, random = SeededEntropy(3), Random()
    smoke, drinks = (
        [_plain(one) for one in question.randomizer.respond([1] * 80, entropy=entropy)]
        for question in survey.questions
    )
    written, replace = [], os.replace

    def watched(source, target):
        written.append(Path(source).read_bytes())
        replace(source, target)

    monkeypatch.setattr(os, "replace", watched)
    kept = []
    for number in range(3):
        folder = tmp_path / str(number)
        folder.mkdir()
        random.shuffle(smoke)
        random.shuffle(drinks)
        store = ReportStore(folder / "reports", survey)
        for i, (one, two) in enumerate(zip(smoke, drinks, strict=True)):
            if number < 2:
                store.add({"smoke": one, "drinks": two} if number else {"drinks": two, "smoke": one})
            else:
                store.add({"drinks": two})
                store.add({"smoke": one})
            if i == 40:
                store.close()
                store = ReportStore(folder / "reports", survey)
        assert sorted(store.of("smoke")) == sorted(smoke)
        assert sorted(store.of("drinks")) == sorted(drinks)
        store.close()
        kept.append(contents(folder))
        assert written[-1] == kept[-1]["reports"]
    assert kept[0] == kept[1] == kept[2]
    assert set(kept[0]) == {"reports", "reports.lock"}
    assert kept[0]["reports.lock"] == b""


def test_what_a_stopped_server_left_half_written_is_removed_and_what_was_confirmed_is_kept(tmp_path):
    (tmp_path / "survey.toml").write_text(SURVEY)
    survey = load_survey(tmp_path / "survey.toml")
    store = ReportStore(tmp_path / "kept", survey)
    store.add({"smoke": 1, "drinks": [0, 1]})
    with pytest.raises(InvalidInput, match="another process"):
        ReportStore(tmp_path / "kept", survey)
    store.close()
    before = contents(tmp_path)
    (tmp_path / "kept.part").write_bytes(before["kept"] + b"half a li")
    again = ReportStore(tmp_path / "kept", survey)
    assert contents(tmp_path) == before
    assert (again.of("smoke"), again.of("drinks")) == ([1], [[0, 1]])
    again.close()
