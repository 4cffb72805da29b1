"""The console in a real browser: synthetic copies, explanations, models, spending, and adding a dataset."""

from __future__ import annotations

import io
import json
import time
from pathlib import Path

import pytest
from pyarrow import parquet

from discreet import Bounds, Categories, Dates, Text, Unit, tables
from discreet import accounting as acc
from discreet.explaining import Risk
from discreet.explaining.odds import odds

from .conftest import expect, watch
from .running import COUNT
from .test_console import ATTACK, log_in, write


def test_a_copy_is_priced_made_downloaded_and_asked(page, server):
    log_in(page, server, "bob")
    page.goto(f"{server.url}/data/health/copies")
    page.wait_for_selector("#preview .price")
    for box in page.locator("input[name=columns]").all():
        box.uncheck()
    page.check("input[value=sex]")
    page.check("input[value=education]")
    page.select_option("#method", "mst")
    page.fill("#epsilon", "0.75")
    page.wait_for_selector("#preview .price:has-text('epsilon 0.75')")
    assert "2 columns by mst" in page.inner_text("#preview .price")
    assert "except with a chance of" in page.inner_text("#preview .odds"), "delta is said, too"
    page.fill("#seconds", "12")
    page.click("#begin")
    page.wait_for_selector("#jobs progress")
    page.wait_for_selector("#jobs a:has-text('See the copy')", timeout=90_000)
    # A click before the page's scripts are there would send the form as a plain one.
    with page.expect_navigation():
        page.click("#jobs a:has-text('See the copy')")
    card = page.locator("article.copy").first
    assert "education" in card.inner_text()
    with page.expect_download() as kept:
        card.locator("a:has-text('Parquet')").click()
    table = parquet.read_table(io.BytesIO(Path(kept.value.path()).read_bytes()))
    assert table.column_names == ["sex", "education"]
    with page.expect_download() as kept:
        card.locator("a:text-is('CSV')").click()
    assert len(Path(kept.value.path()).read_text().splitlines()) == table.num_rows + 1
    card.locator("button").click()
    page.wait_for_selector("article.copy table", timeout=90_000)
    expect(page.locator("article.copy tbody tr:nth-child(2)")).to_be_visible()
    assert page.locator("article.copy tbody tr").count() in (2, 3), "and who has none"
    assert "no ±" in card.inner_text()
    card.locator("textarea").fill("SELECT * FROM read_csv('/etc/passwd')")
    card.locator("button").click()
    page.wait_for_selector("article.copy [role=alert]")
    page.fill("#epsilon", "100000")
    page.wait_for_selector("#preview strong.error")


def test_what_a_price_a_release_and_the_ledger_mean_is_on_a_page(page, server):
    log_in(page, server, "ann")
    page.goto(f"{server.url}/data/health")
    page.wait_for_selector("#preview .price")
    page.click("#preview .odds a")
    page.wait_for_selector(".explanation h3")
    assert "an epsilon of 0.1" in page.inner_text(".explanation h3").lower()
    page.fill("#epsilon", "1")
    page.fill("#delta", "1e-6")
    page.select_option("#for", "engineer")
    page.click("button:text-is('Explain')")
    page.wait_for_selector(".explanation :text('delta 1e-06')")
    expect(page.locator(".explanation svg[role=img]").nth(1)).to_be_visible()
    page.click("nav.tabs a:text-is('What it means')")
    page.wait_for_selector(".explanation :text('How it adds up')")
    with server.client("ann") as ann:
        assert ann.post("/datasets/health/query", json={"sql": COUNT, "epsilon": 0.0425}).status_code == 200
    time.sleep(5.2)
    page.goto(f"{server.url}/data/health/history")
    page.locator("tr", has_text="0.0425").first.locator("a:text-is('meaning')").click()
    page.wait_for_selector(".explanation h3:has-text('release')")
    page.goto(f"{server.url}/data/health/explain?release=999999")
    assert "no stored release" in page.inner_text("[role=alert]")
    assert page.goto(f"{server.url}/data/health/explain?epsilon=nan").status == 400


def test_a_model_is_fitted_and_downloaded(page, server):
    log_in(page, server, "bob")
    page.goto(f"{server.url}/data/health/models")
    page.select_option("#target", "sex")
    page.fill("#n", "5000")
    page.fill("#epsilon", "0.5")
    page.fill("#seconds", "15")
    page.click("text=Fit and pay")
    page.wait_for_selector("#jobs progress")
    page.wait_for_selector("#jobs a:has-text('Download the model')", timeout=90_000)
    with page.expect_download() as kept:
        page.click("#jobs a:has-text('Download the model')")
    assert kept.value.suggested_filename.endswith(".json")
    assert json.loads(Path(kept.value.path()).read_text())["format"].startswith("discreet.model")


def test_the_steward_declares_a_file_that_is_there_and_sees_spending_over_time(page, server):
    (server.folder / "data" / "clinic.csv").write_text("ward,age\n" + "A,40\nB,50\n" * 100)
    log_in(page, server, "steward")
    page.goto(f"{server.url}/steward/add")
    page.fill("#path", "../../etc/passwd")
    page.click("text=Draft its schema >> nth=0")
    assert "no file in a folder" in page.inner_text("[role=alert]")
    page.goto(f"{server.url}/steward/add")
    # what nobody has opened is listed, uploads among it
    page.click(".files button:text-is('clinic.csv')")
    page.wait_for_selector("#columns tr")
    page.click("text=The same as text")
    expect(page.locator(".help li").nth(3)).to_be_attached()  # each kind of column is explained
    page.fill("#schema", page.input_value("#schema") + "\n# kept on the page")
    page.click("text=Open it")
    assert page.inner_text("[role=alert]"), "a draft that was not completed opens nothing"
    assert "# kept on the page" in page.input_value("#schema")
    page.click("text=The same as text")
    text = 'table = "clinic"\nversion = "1"\nunit = "row"\n[columns.ward]\ntype = "categories"\nvalues = ["A", "B"]\n'
    page.fill("#schema", text)
    page.fill("#epsilon", "5")
    page.click("text=Open it")
    page.wait_for_selector("h1:text-is('Books of clinic')")
    with server.client("steward") as steward:
        for epsilon in (0.5, 1.0):
            asked = {"sql": "SELECT ward, COUNT(*) AS n FROM clinic GROUP BY ward", "epsilon": epsilon}
            assert steward.post("/datasets/clinic/query", json=asked).status_code == 200
    page.goto(f"{server.url}/steward/data/clinic")
    label = page.locator("svg.chart").get_attribute("aria-label")
    assert label == "Epsilons of 2 charges added up over time, under a limit of 5"
    cells = page.locator("table.days tbody tr").first.locator("td").all_inner_texts()
    assert cells[1:] == ["steward", "2", "1.5"]


def test_a_schema_is_declared_column_by_column_and_checked(page, server):
    """The form writes the text that is sent; `check` says where the file does not fit, and that is recorded."""
    rows = "".join(f"p{i},{'AB'[i % 2]},{20 + i % 150},2020-01-0{1 + i % 9}\n" for i in range(600))
    (server.folder / "data" / "ward.csv").write_text('person,"ward ""x""",age,came\n' + rows)
    log_in(page, server, "steward")
    page.goto(f"{server.url}/steward/add")
    page.click(".files button:text-is('ward.csv')")
    page.wait_for_selector("#columns tr")
    page.select_option("#unit", "=person")
    page.fill("#unit-rows", "2")
    page.fill("#unit-groups", "2")
    page.get_by_label("what person holds").select_option("text")
    page.get_by_label('what ward "x" holds').select_option("categories")
    page.get_by_label('values of ward "x"').fill("A, B")
    page.get_by_label("what age holds").select_option("number")
    page.get_by_label("lower of age").fill("0")
    page.get_by_label("upper of age").fill("120")
    page.get_by_label("what came holds").select_option("date")
    page.get_by_label("lower of came").fill("2020-01-01")
    page.get_by_label("upper of came").fill("2020-12-31")
    public = tables.load(page.input_value("#schema"))
    assert public.unit == Unit("person", rows=2, groups=2)
    assert dict(public.schema) == {
        "person": Text(),
        'ward "x"': Categories(("A", "B")),
        "age": Bounds(0, 120),
        "came": Dates("2020-01-01", "2020-12-31"),
    }
    page.click("text=Check how well the file fits it")
    row = page.locator("#fit tr", has_text="age")
    row.wait_for()
    assert row.locator("td").all_inner_texts() == ["age", "none", "none", "20 to 50%"]
    assert not [path for path in (server.folder / "data").iterdir() if path.name.endswith(".part")]
    page.fill("#epsilon", "3")
    page.click("text=Open it")
    page.wait_for_selector("h1:text-is('Books of ward')")
    page.goto(f"{server.url}/steward/people")
    assert "looked at how ward.csv fits its schema" in page.inner_text("main")
    page.goto(f"{server.url}/steward/data/ward")
    page.click("text=Serve it no longer")
    page.click("text=Remove ward")
    page.wait_for_selector("h1:text-is('Datasets')")
    expect(page.locator("article h2", has_text="ward")).to_have_count(0)
    assert (server.folder / "data" / "ward.csv.ledger").exists()


@pytest.mark.parametrize("look", [{"color_scheme": "dark"}, {"viewport": {"width": 390, "height": 800}}])
def test_axe_finds_nothing_on_any_page(browser, server, look):
    """The rules of WCAG that a program can check, with answers, prices and forms on the pages."""
    axe = pytest.importorskip("axe_playwright_python", reason="axe is not installed: NO PAGE WAS CHECKED")
    script = (Path(axe.__file__).parent / "axe.min.js").read_text()
    (server.folder / "data" / "axe.csv").write_text("ward,age\nA,40\n")
    context = browser.new_context(bypass_csp=True, **look)
    page = context.new_page()

    def check(path, *steps):
        page.goto(server.url + path)
        for selector, wanted in steps:
            page.click(selector)
            page.wait_for_selector(wanted, timeout=90_000)
        page.evaluate(script)
        found = page.evaluate("axe.run().then(r => r.violations.map(v => [v.id, v.nodes.map(n => n.html)]))")
        assert found == [], path

    check("/login")
    log_in(page, server, "steward")
    check("/data/health", ("#run", "#answer table"), ("text=How much one person counts", "input[name=rows]"))
    for room in ("history", "explain", "models", "copies"):
        check(f"/data/health/{room}")
    for path in ("/", "/account", "/steward/data/health", "/steward/people", "/data/absent"):
        check(path)
    check("/steward/add", (".files button:text-is('axe.csv')", "#columns tr"))
    context.close()


EVIL = '"><img src=x onerror=window.hacked=1>'


def test_names_of_columns_and_copies_are_shown_and_never_run(page, server):
    """A column may have any name: in the list of columns, in copies, in explanations, in the first question."""
    (server.folder / "data" / "evil2.csv").write_text(
        f'"{EVIL.replace(chr(34), chr(34) * 2)}"\n' + "a\nb\n" * 50
    )
    name = json.dumps(EVIL)
    schema = f'table = "evil2"\nversion = "1"\nunit = "row"\n[columns.{name}]\ntype = "categories"\nvalues = ["a", "b", {json.dumps(ATTACK)}]\n'
    with server.client("steward") as steward:
        body = {
            "name": "evil2",
            "path": "evil2.csv",
            "schema_text": schema,
            "budget": {"epsilon": 50, "delta": 1e-6},
            "large_epsilon": True,
        }
        made = steward.post("/datasets", json=body)
        assert made.status_code == 201, made.text
        assert steward.post("/datasets", json=body | {"name": "<b>x</b>"}).status_code == 422
        job = {"seconds": 20, "synthesize": {"epsilon": 1, "columns": [EVIL], "method": "independent"}}
        assert steward.post("/datasets/evil2/run", json=job).status_code == 202
    log_in(page, server, "steward")
    page.goto(f"{server.url}/data/evil2")
    page.wait_for_selector("#preview .price")
    page.click("#run")
    page.wait_for_selector("#answer table", timeout=90_000)
    deadline = time.monotonic() + 600
    while page.locator("article.copy").count() == 0 and time.monotonic() < deadline:
        time.sleep(1)
        page.goto(f"{server.url}/data/evil2/copies")
    page.wait_for_selector("#preview .price")
    assert EVIL in page.inner_text("article.copy")
    page.click("text=Ask the copy")
    page.wait_for_selector("article.copy table")
    for path in ("/data/evil2", "/data/evil2/copies", "/data/evil2/explain", "/data/evil2/history", "/data/evil2/models", "/steward/data/evil2", "/"):  # fmt: skip
        assert page.goto(server.url + path).status == 200, path
        page.wait_for_timeout(300)
        assert page.evaluate("window.hacked") is None
        expect(page.locator("img")).to_have_count(0)
    page.goto(f"{server.url}/data/evil2/explain?epsilon={'1%22%3E%3Cimg%20src=x%3E'}")
    expect(page.locator("img")).to_have_count(0)


def test_two_tabs_of_one_analyst_share_a_session_and_a_log_out_ends_both(browser, server):
    context = browser.new_context()
    first, second = context.new_page(), context.new_page()
    for page in (first, second):
        watch(page, server.url)
    log_in(first, server, "ann")
    for page, epsilon in ((first, "0.011"), (second, "0.012")):
        page.goto(f"{server.url}/data/health")
        page.wait_for_selector("#preview .price")
        write(page, COUNT)
        page.fill("input[name=epsilon]", epsilon)
        page.wait_for_selector(f"#preview :text('epsilon {epsilon}')")
    first.click("#run")
    second.click("#run")
    for page in (first, second):
        page.wait_for_selector("#answer table", timeout=90_000)
    first.click("text=Log out")
    first.wait_for_url("**/login")
    second.click("#run")
    second.wait_for_url("**/login?next=/data/health")
    assert not first.problems
    assert not second.problems
    context.close()


def test_a_token_that_is_revoked_ends_the_page_in_the_middle(browser, server):
    with server.client("steward") as steward:
        steward.post("/people", json={"name": "gone", "role": "analyst"})
        made = steward.post("/people/gone/tokens", json={}).json()
        policy = steward.get("/datasets/health/policy").json()
        facts = {"budget": {"epsilon": policy["budget"]["epsilon"], "delta": policy["budget"]["delta"]}}
        names = {
            n: b and {"epsilon": b["epsilon"], "delta": b["delta"]} for n, b in policy["analysts"].items()
        }
        assert (
            steward.put(
                "/datasets/health/policy", json=facts | {"analysts": names | {"gone": None}}
            ).status_code
            == 200
        )
        page = browser.new_context().new_page()
        page.goto(server.url)
        page.fill("#token", made["token"])
        page.click("button:text-is('Log in')")
        page.wait_for_selector("h1:text-is('Datasets')")
        page.goto(f"{server.url}/data/health")
        page.wait_for_selector("#preview .price")
        steward.delete(f"/tokens/{made['id']}")
        page.click("#run")
        page.wait_for_url("**/login?next=/data/health")
        page.context.close()
        assert steward.put("/datasets/health/policy", json=facts | {"analysts": names}).status_code == 200


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_odds_say_epsilon_and_delta_and_are_never_below_the_bound(delta):
    """A mutant that ignores delta would say the bet of e^epsilon; the bound with a delta is wider, and may fail."""
    event = acc.PureDP(epsilon=1.0) if delta == 0 else acc.ApproximateDP(epsilon=1.0, delta=delta)
    said, risk = odds(event, delta), Risk(event, delta)
    bet = float(said.split("bet at most ")[1].split(":")[0])
    assert bet >= 100 * risk.after(0.5) - 1e-9
    assert ("except with a chance" in said) == (delta > 0)
    gaussian = odds(acc.Gaussian(noise_multiplier=10.0), 0.0)
    assert "except with a chance" in gaussian, "without a pure epsilon a delta is taken, and said"
    assert "almost surely" in odds(acc.PureDP(epsilon=50.0), 0.0)
    replaced = odds(acc.PureDP(epsilon=1.0, neighbors="replace"), 0.0)
    assert "which of two things" in replaced
