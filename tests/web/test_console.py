"""The console in a real browser: every flow, and what goes wrong on the way."""

from __future__ import annotations

import json
import time
from pathlib import Path

import httpx
import pytest

from .conftest import expect, watch
from .running import COUNT, Server

ATTACK = "<img src=x onerror=window.hacked=1><script>window.hacked=1</script>"


def log_in(page, server: Server, who: str) -> None:
    page.goto(server.url)
    page.fill("#token", server.tokens[who])
    page.click("button:text-is('Log in')")
    page.wait_for_selector("h1:text-is('Datasets')")


def write(page, text: str) -> None:
    page.evaluate("text => discreetEditor.setValue(text)", text)


def run(page) -> None:
    page.click("#run")
    page.wait_for_selector("#answer table, #answer .error", timeout=90_000)


def test_a_wrong_token_is_refused_and_a_right_one_lets_in_and_out(page, server):
    page.goto(server.url)
    assert page.url.endswith("/login")
    page.fill("#token", "dsc_0000000000000000_" + "x" * 43)
    page.click("button:text-is('Log in')")
    assert "not valid" in page.inner_text("[role=alert]")
    log_in(page, server, "ann")
    assert page.inner_text("article h2") == "health"
    # another test may have given her a second table meanwhile
    assert page.locator("article [role=meter]").first.get_attribute("aria-valuenow") is not None
    page.click("text=Log out")
    page.wait_for_url("**/login")
    page.goto(f"{server.url}/data/health")
    assert page.url.endswith("/login?next=/data/health")
    page.fill("#token", server.tokens["ann"])
    page.click("button:text-is('Log in')")
    page.wait_for_url("**/data/health")
    for elsewhere in (
        "//evil.example",
        "/\\evil.example",
        "https://evil.example",
        "/%2F/evil.example",
        "/login:x",
    ):
        sent = {"token": server.tokens["ann"], "next": elsewhere}
        assert httpx.post(f"{server.url}/login", data=sent).headers["location"] == "/", elsewhere


def test_an_analyst_sees_the_price_before_paying_runs_and_downloads(page, server):
    log_in(page, server, "ann")
    page.click("article h2 a")
    page.wait_for_selector("#preview .price")
    before = page.inner_text("#gauge span").split(" used")[0]
    write(page, "SELECT health, COUNT(*) AS people FROM health GROUP BY health")
    page.fill("input[name=epsilon]", "0.2")
    page.wait_for_selector("#preview :text('epsilon 0.2')")
    assert "bet 50:50" in page.inner_text("#preview .odds")
    expect(page.locator("#preview svg.chart .whisker")).to_have_count(1)
    assert page.inner_text("#gauge span").split(" used")[0] == before, "looking is free"
    run(page)
    expect(page.locator("#answer tbody tr")).to_have_count(4)
    expect(page.locator("#answer svg .whisker")).to_have_count(4)
    assert " to " in page.inner_text("#answer tbody tr td.num")
    expect(page.locator("#gauge span").first).not_to_contain_text(before + " used", use_inner_text=True)
    time.sleep(5.2)
    page.click("text=History and downloads")
    page.wait_for_selector("td code:text('AS people')")
    row = page.locator("tr", has_text="AS people").first
    with page.expect_download() as kept:
        row.locator("a:text-is('CSV')").click()
    lines = Path(kept.value.path()).read_text().splitlines()
    assert lines[0] == "health,people,people_lower,people_upper"
    assert len(lines) == 5
    with page.expect_download() as kept:
        row.locator("a:text-is('JSON')").click()
    assert json.loads(Path(kept.value.path()).read_text())["text"].startswith("SELECT health")
    row.locator("a:text-is('see')").click()
    expect(page.locator("svg.chart .bar")).to_have_count(4)


def test_the_answer_is_in_sight_beside_its_question_which_survives(page, server):
    """With focus; the price panel is true after paying; another page and a new log-in lose no question."""
    page.set_viewport_size({"width": 1280, "height": 900})
    log_in(page, server, "ann")
    page.goto(f"{server.url}/data/health")
    page.wait_for_selector("#preview .price")
    text = "SELECT sex, COUNT(*) AS heads FROM health GROUP BY sex"
    write(page, text)
    page.fill("input[name=epsilon]", "0.21")
    page.wait_for_selector("#preview :text('epsilon 0.21')")
    expect(page.locator("[role=meter]")).to_have_count(1)
    assert "after this" in page.inner_text("#gauge")
    run(page)
    assert page.evaluate("document.activeElement.id") == "answer-h"
    places = page.evaluate("""() => ['.CodeMirror', '#answer table'].map(e => document.querySelector(e).getBoundingClientRect().toJSON())""")  # fmt: skip
    asked, answered = places
    assert asked["right"] <= answered["left"], "beside, not below"
    assert asked["top"] < 900
    assert 0 <= answered["top"] < 900, "in sight"
    assert "Paid: epsilon 0.21" in page.inner_text("#preview")
    assert "after this" not in page.inner_text("#gauge")
    page.click("text=History and downloads")
    page.wait_for_selector("h1:text-is('History of health')")
    page.context.clear_cookies()
    page.click("nav.tabs a:text-is('Ask')")
    page.wait_for_url("**/login?next=/data/health")
    page.fill("#token", server.tokens["ann"])
    page.click("button:text-is('Log in')")
    page.wait_for_selector("#preview :text('epsilon 0.21')")
    assert page.evaluate("discreetEditor.getValue()") == text
    # who logs out leaves nothing to the next person at this browser
    page.click("text=Log out")
    page.wait_for_url("**/login")
    assert page.evaluate("Object.keys(sessionStorage).filter(key => key.includes('health'))") == []


def test_a_question_of_the_history_is_edited_and_asked_again(page, server):
    text = "SELECT site, COUNT(*) AS visitors FROM health GROUP BY site"
    with server.client("ann") as ann:
        assert ann.post("/datasets/health/query", json={"sql": text, "epsilon": 0.0625}).status_code == 200
    time.sleep(5.2)
    log_in(page, server, "ann")
    page.goto(f"{server.url}/data/health/history")
    row = page.locator("tr", has_text="visitors").first
    row.locator("a:text-is('edit')").click()
    page.wait_for_selector("#preview :text('Already answered: free')")
    assert page.evaluate("discreetEditor.getValue()") == text
    assert page.input_value("input[name=epsilon]") == "0.0625", "at its exact price"
    page.go_back()
    row.locator("a:text-is('ask again')").click()
    page.wait_for_selector("#preview .price:has-text('This costs')")
    before = page.inner_text("#gauge")
    run(page)
    assert page.inner_text("#gauge") != before, "new noise is paid for"


def test_limits_and_bounds_are_found_for_a_price(page, server):
    log_in(page, server, "ann")
    page.goto(f"{server.url}/data/health")
    page.wait_for_selector("#preview .price")
    page.fill("input[name=epsilon]", "2")
    page.click("text=How much one person counts")
    page.click("text=Find both")
    page.wait_for_selector("#suggested .good, #suggested .error")
    assert "Paid: epsilon 0.1" in page.inner_text("#suggested")
    page.click("text=Take them")
    assert int(page.input_value("input[name=rows]")) >= 1
    assert int(page.input_value("input[name=groups]")) >= 1
    row = page.locator("details.columns tr", has_text="education")
    row.locator("button").click()
    row.locator(".good").wait_for()
    low, high = (
        row.locator("code").last.inner_text().removeprefix("CLAMP(education, ").rstrip(")").split(", ")
    )
    assert 0 <= float(low) < float(high) <= 25


def test_a_page_without_javascript_says_so(browser, server):
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    log_in(page, server, "ann")
    page.goto(f"{server.url}/data/health")
    assert "JavaScript" in page.inner_text("noscript")
    context.close()


def test_the_editor_completes_public_columns_from_the_keyboard(page, server):
    log_in(page, server, "ann")
    page.goto(f"{server.url}/data/health")
    page.wait_for_selector(".CodeMirror")
    write(page, "")
    page.click(".CodeMirror")
    page.keyboard.type("SELECT edu")
    # On a busy machine the list of "SELECT e" may still stand there.
    page.wait_for_function(
        """() => {
          const list = discreetEditor.state.completionActive;
          return list && list.widget && list.widget.data.to.ch == discreetEditor.getCursor().ch;
        }"""
    )
    page.keyboard.press("Enter")
    page.wait_for_function("discreetEditor.getValue() == 'SELECT education'")
    write(page, COUNT)
    page.click(".CodeMirror")
    page.keyboard.press("Control+Enter")
    page.wait_for_selector("#answer table", timeout=90_000)


def test_a_budget_that_is_used_up_refuses_and_says_so(page, server):
    log_in(page, server, "bob")
    page.goto(f"{server.url}/data/health")
    page.fill("input[name=epsilon]", "5000")
    page.wait_for_selector("#preview strong.error")
    assert "nothing charged" in page.inner_text("#preview strong.error")
    page.click("#run")
    page.wait_for_selector("#answer [role=alert]")
    assert "Nothing was charged" in page.inner_text("#answer [role=alert]")
    page.check("input[value=within]")
    page.fill("input[name=within]", "100")
    page.wait_for_selector("#preview .price:has-text('The budget holds it')")


def test_what_others_wrote_is_shown_and_never_run(page, server):
    """Stored scripts in SQL, in the names of output columns, in categories and in error messages."""
    data = server.folder / "data"
    (data / "evil.csv").write_text("kind\n" + "a\n" * 50)
    schema = 'table = "evil"\nversion = "1"\nunit = "row"\n[columns.kind]\ntype = "categories"\n'
    schema += f"values = ['{ATTACK}', 'a']\n"
    with server.client("steward") as steward:
        body = {
            "name": "evil",
            "path": "evil.csv",
            "schema_text": schema,
            "budget": {"epsilon": 50},
            "large_epsilon": True,
        }
        assert steward.post("/datasets", json=body).status_code == 201
    log_in(page, server, "steward")
    page.goto(f"{server.url}/data/evil")
    write(page, f'SELECT kind, COUNT(*) AS "{ATTACK}" FROM evil GROUP BY kind -- {ATTACK}')
    page.wait_for_selector("#preview .price")
    run(page)
    expect(page.locator("#answer table")).to_have_count(1)
    assert ATTACK in page.inner_text("#answer table")
    write(page, f'SELECT "{ATTACK}" FROM evil')
    page.wait_for_selector("#preview [role=alert]")
    time.sleep(5.2)
    for path in ("/data/evil/history", "/steward/data/evil", "/"):
        page.goto(server.url + path)
        assert page.evaluate("window.hacked") is None
        expect(page.locator("img[src=x]")).to_have_count(0)
    assert page.goto(f"{server.url}/data/evil/history").status == 200
    assert ATTACK in page.content().replace("&lt;", "<").replace("&gt;", ">")


def test_the_steward_adds_a_dataset_people_and_budgets_and_checks_the_ledger(page, server, tmp_path):
    table = tmp_path / "visits.csv"
    table.write_text("ward,age\n" + "A,40\nB,50\n" * 100)
    log_in(page, server, "steward")
    page.click("text=Add a dataset")
    page.set_input_files("#file", str(table))
    page.click("text=Send it, and draft its schema")
    page.wait_for_selector("#columns tr")
    page.click("text=The same as text")
    draft = page.input_value("#schema")
    assert "ward" in draft
    assert "40" not in draft
    text = 'table = "visits"\nversion = "1"\nunit = "row"\n[columns.ward]\ntype = "categories"\nvalues = ["A", "B"]\n'
    page.fill("#schema", text)
    page.fill("#name", "visits")
    page.fill("#epsilon", "0,5")
    page.click("text=Open it")
    expect(page.locator("[role=alert]")).to_have_text("'0,5' is no number: write 0.5. Nothing was changed.")
    assert page.input_value("#schema") == text
    page.fill("#epsilon", "2")
    page.click("text=Open it")
    page.wait_for_selector("h1:text-is('Books of visits')")
    page.goto(f"{server.url}/steward/people")
    page.fill("#name", "eve")
    page.click("text=Add, and make a token")
    token = page.inner_text("#new-token")
    assert token.startswith("dsc_")
    page.goto(f"{server.url}/steward/data/visits")
    for lines, message in [
        ("eve 0,5\nann", "'0,5' is no number: write 0.5."),
        ("eve=0.5", "'eve=0.5' is no line of the form. Each analyst has one: NAME, NAME AMOUNT DELTA"),
        ("müller 0.5", "analysts.müller: a name has letters a to z, A to Z, digits and _ . @ - only"),
    ]:
        page.fill("#analysts", lines)
        page.click("button:text-is('Change')")
        expect(page.locator("[role=alert]")).to_contain_text(message)
        assert page.input_value("#analysts") == lines
        assert page.input_value("#epsilon") == "2"
    page.fill("#analysts", "eve 0.5\nann")
    page.click("button:text-is('Change')")
    page.wait_for_selector(".who:has-text('eve')")
    assert page.input_value("#analysts").split("\n") == ["eve 0.5 0", "ann"]
    page.click("text=Check every hash")
    page.wait_for_selector("#check .good")
    other = page.context.browser.new_context().new_page()
    watch(other, server.url)
    other.goto(server.url)
    other.fill("#token", token)
    other.click("button:text-is('Log in')")
    other.wait_for_selector("article h2 a:text-is('visits')")
    expect(other.locator("article")).to_have_count(1)
    assert other.goto(f"{server.url}/steward/people").status == 403
    assert not other.problems
    other.context.close()


def test_two_analysts_at_once_each_pay_from_their_own(browser, server):
    pages = []
    # The same question at the same time is refused until its public time is over (test_jobs).
    for who, key in (("ann", "sex"), ("bob", "health")):
        context = browser.new_context()
        page = context.new_page()
        watch(page, server.url)
        log_in(page, server, who)
        page.goto(f"{server.url}/data/health")
        page.wait_for_selector("#preview .price")
        write(page, f"SELECT {key}, COUNT(*) AS n FROM health GROUP BY {key}")
        page.fill("input[name=epsilon]", "0.17")
        page.wait_for_selector("#preview :text('epsilon 0.17')")
        pages.append((page, page.inner_text("#gauge span")))
    for page, _ in pages:
        page.click("#run")
    for page, before in pages:
        page.wait_for_selector("#answer table", timeout=90_000)
        expect(page.locator("#gauge span").first).not_to_have_text(before, use_inner_text=True)
        assert not page.problems
        assert len(page.inner_text("#answer table").splitlines()) >= 3
    for page, _ in pages:
        page.context.close()


def test_models_are_fitted_as_jobs_with_a_public_clock(page, server):
    # Not as ann: the public time of a cancelled job runs on, and until its end no other test is served again what
    # its owner was charged for meanwhile.
    log_in(page, server, "bob")
    page.goto(f"{server.url}/data/health/models")
    page.select_option("#target", "sex")
    page.fill("#epsilon", "0.5")
    page.fill("#seconds", "60")
    page.click("text=Fit and pay")
    page.wait_for_selector("#jobs [role=alert]:has-text('how many people')")
    page.fill("#n", "5000")
    page.click("text=Fit and pay")
    page.wait_for_selector("#jobs progress")
    page.click("text=Cancel (the charge stays)")
    page.wait_for_selector("#jobs li:has-text('cancelled')")


def test_pages_say_what_they_are_and_fit_a_phone(browser, server):
    context = browser.new_context(viewport={"width": 360, "height": 740}, color_scheme="dark")
    page = context.new_page()
    watch(page, server.url)
    log_in(page, server, "steward")
    for path in (
        "/",
        "/data/health",
        "/data/health/history",
        "/data/health/models",
        "/data/health/copies",
        "/data/health/explain",
        "/steward/data/health",
        "/steward/people",
        "/steward/add",
        "/account",
    ):
        page.goto(server.url + path)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), path
        unnamed = page.evaluate(
            """() => [...document.querySelectorAll('input:not([type=hidden]),select,textarea,button')]
               .filter(e => e.offsetParent && !e.closest('.CodeMirror') && !(e.labels?.length || e.ariaLabel || e.textContent.trim()))
               .map(e => e.outerHTML)"""
        )
        assert unnamed == [], path
        expect(page.locator("h1")).to_have_count(1)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 24, 28)"
    page.goto(f"{server.url}/data/health")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert not page.problems
    context.close()


@pytest.fixture
def own(tmp_path):
    running = Server(tmp_path / "own", rate=1000, burst=2000, workers=1, previewers=1).start()
    yield running
    running.stop()


def test_a_server_that_is_restarted_in_the_middle_loses_no_charge(browser, own):
    context = browser.new_context()
    page = context.new_page()
    log_in(page, own, "ann")
    page.goto(f"{own.url}/data/health")
    page.wait_for_selector("#preview .price")
    own.kill()
    page.click("#run")
    page.wait_for_selector("#answer .error")
    assert "cannot be reached" in page.inner_text("#answer")
    own.start()
    page.click("#run")
    page.wait_for_selector("#answer table", timeout=90_000)
    with own.client("olga") as auditor:
        assert auditor.get("/datasets/health/ledger/check").json()["whole"]
    context.close()
