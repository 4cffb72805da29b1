"""`discreet dossier`: papers that are drafted from a ledger, and what they leave to the steward."""

import re
import tomllib
from dataclasses import replace
from html import escape
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

import discreet as dp
from discreet import InvalidInput
from discreet.app.cli import app
from discreet.app.cli.dossier import ASK, _markdown
from discreet.mechanisms import noise, noisy_count

TEMPLATE = tomllib.loads((Path(dp.__file__).parent / "data/dossier.toml").read_text("utf-8"))
PRODUCTS = {
    "Summary statistics",
    "Machine learning model",
    "Dataset",
    "Synthetic data",
    "Interactive API",
    "SQL queries",
}
# The schema of the registry (opendp/deployments-registry-data of 15 July 2026), in our words: of each field its type
# or its values; * marks what must be there.
TEXT, MANY, NUMBER = str, [str], (int, float)
SCHEMA = {
    "*url_slug": TEXT,
    "*status": {"Converted", "Draft", "Pending", "Changes Required", "Approved"},
    "*tier": {1, 2, 3},
    "*deployment": {
        "*basic": {
            **dict.fromkeys(["*name", "*description", "*intended_use", "*data_product_region"], TEXT),
            "*data_curators": MANY,
            "*data_product_type": PRODUCTS,
            "*publication_date": TEXT,
            "data_product_sector": {
                "Technology",
                "Healthcare",
                "Education",
                "Government",
                "Energy",
                "Finance",
            },
        },
        "dp_variant": {
            "variant_name": {"Pure DP", "Approximate DP", "Zero-concentrated DP", "Renyi DP", "Custom"},
            **dict.fromkeys(["data_domain", "unprotected_quantities"], TEXT),
        },
        "privacy_loss": {
            **dict.fromkeys(["privacy_unit", "privacy_unit_details", "privacy_parameters_details"], TEXT),
            "privacy_parameters": dict.fromkeys(["epsilon", "delta", "rho"], NUMBER),
        },
        "deployment_model": {
            "model_name": {"Local", "Central", "Shuffle", "Federated", "Varies"},
            "release_type": {"One release", "Many releases"},
            "data_source_type": {"Static", "Dynamic"},
            "access_type": {"Interactive", "Non-interactive"},
            "actors": TEXT,
            **dict.fromkeys(
                [f"{of}_details" for of in ("model_name", "release_type", "data_source_type", "access_type")],
                TEXT,
            ),
        },
        "accounting": dict.fromkeys(["post_processing", "composition"], TEXT),
        "implementation": dict.fromkeys(
            ["preprocessing_and_hyperparameter_tuning", "mechanisms", "justification"], TEXT
        ),
        "administrative": {"sources": TEXT, "notes": TEXT, "*registry_authors": MANY},
    },
}


def problems(value, schema, where="entry"):
    """What in an entry is not as the schema has it."""
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            return [where]
        fields = {name.lstrip("*"): of for name, of in schema.items()}
        missing = [f"{where}.{name[1:]}" for name in schema if name[0] == "*" and name[1:] not in value]
        unknown = [f"{where}.{name}" for name in value if name not in fields]
        inner = (problems(value[n], of, f"{where}.{n}") for n, of in fields.items() if n in value)
        return missing + unknown + [line for lines in inner for line in lines]
    if isinstance(schema, set):
        return [] if value in schema else [where]
    if isinstance(schema, list):
        return [] if isinstance(value, list) and value and all(isinstance(v, str) for v in value) else [where]
    return [] if isinstance(value, schema) else [where]


def stays(**more):
    """A ledger with two questions, one of an analyst; names of columns and values with markup."""
    options = {
        "table": "st|ays",
        "schema": {"ward": dp.Categories(["A", "<b>B"]), "day": dp.Dates("2026-01-01", "2026-12-31")},
        "unit": dp.Unit(column="person", rows=3),
        "version": "7",
        "budget": dp.Budget(epsilon=3, delta=1e-6),
        "analysts": {"ann": dp.Budget(epsilon=1), "bob": None},
        "ledger": "stays.ledger",
    }
    data = {
        "ward": ["A", "<b>B"] * 50,
        "day": ["2026-02-03"] * 100,
        "person": [f"secret-{i // 2}" for i in range(100)],
    }
    return dp.open(data, **(options | more))


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def run(*words):
    result = CliRunner().invoke(app, ["dossier", "stays.ledger", *words])
    if result.exception is not None:
        raise result.exception
    texts = [
        Path("dossier", name).read_text("utf-8") for name in ("registry.yaml", "dossier.md", "dossier.html")
    ]
    return [yaml.safe_load(texts[0]), *texts[1:]]


def test_the_entry_for_the_registry_follows_its_schema_and_says_what_the_ledger_says():
    people = stays()
    people.as_analyst("ann").sql('SELECT COUNT(*) AS n FROM "st|ays"', epsilon=0.5)
    people.sql("SELECT COUNT(*) AS n FROM \"st|ays\" WHERE ward = 'A'", epsilon=0.25)
    entry, *_ = run()
    assert problems(entry, SCHEMA) == []
    deployment = entry["deployment"]
    assert entry["status"] == "Draft"
    assert entry["url_slug"] == "st-ays"
    assert deployment["privacy_loss"]["privacy_parameters"] == {"epsilon": 3.0, "delta": 1e-6}
    assert deployment["privacy_loss"]["privacy_unit"] == "person (all rows of one person)"
    assert "rows: 3, groups: by question" in deployment["privacy_loss"]["privacy_unit_details"]
    assert "dataset: epsilon 0.75 of 3" in deployment["privacy_loss"]["privacy_parameters_details"]
    assert deployment["dp_variant"]["variant_name"] == "Approximate DP"
    assert deployment["deployment_model"]["data_source_type"] == "Static"
    assert "Analysts who may ask: 2, 1 with limits" in deployment["deployment_model"]["access_type_details"]
    assert "DiscreteLaplace (2)" in deployment["implementation"]["mechanisms"]
    assert "Prices are: 2 kept by construction" in deployment["implementation"]["mechanisms"]
    assert deployment["basic"]["publication_date"] == next(people.ledger.entries(kind="charge")).time[:10]
    for asked in (deployment["basic"]["name"], deployment["administrative"]["sources"]):
        assert asked.startswith(ASK)


def test_the_check_of_the_schema_has_teeth():
    stays()
    entry, *_ = run()
    basic, loss = entry["deployment"]["basic"], entry["deployment"]["privacy_loss"]
    del basic["name"]
    basic["more"], basic["data_product_type"], basic["data_curators"] = "x", "Numbers", []
    loss["privacy_parameters"]["epsilon"] = "3"
    entry["tier"] = 0
    wrong = ["entry.tier"] + [
        f"entry.deployment.basic.{n}" for n in ("name", "more", "data_curators", "data_product_type")
    ]
    assert problems(entry, SCHEMA) == [*wrong, "entry.deployment.privacy_loss.privacy_parameters.epsilon"]


@pytest.mark.parametrize(
    ("budget", "variant", "numbers"),
    [
        (dp.Budget(epsilon=0.00001), "Pure DP", {"epsilon": 1e-5, "delta": 0.0}),
        (dp.Budget(rho=0.5), "Zero-concentrated DP", {"rho": 0.5, "delta": 0.0}),
    ],
)
def test_other_kinds_of_budget_are_entered_as_numbers(budget, variant, numbers):
    stays(budget=budget, analysts={})
    entry, *_ = run()
    assert problems(entry, SCHEMA) == []
    assert entry["deployment"]["dp_variant"]["variant_name"] == variant
    assert entry["deployment"]["privacy_loss"]["privacy_parameters"] == numbers
    assert "Analysts who may ask: 0" in entry["deployment"]["deployment_model"]["actors"]


def test_every_question_is_answered_or_asked_of_the_steward():
    people = stays()
    _, text, page = run()
    rows = [row for part in TEMPLATE["part"] for section in part["section"] for row in section["rows"]]
    for question, _, _ in rows:
        plain = question.format(noun="person")
        assert f"| {plain} | " in text
        assert f"<td>{escape(plain)}</td>" in page
    assert {by for _, by, _ in rows} == {"enforced", "ledger", "steward", "{delta_by}"}
    # delta is not 0
    assert text.count("| the steward |") == sum(by in ("steward", "{delta_by}") for _, by, _ in rows)
    assert text.count(f"\\[{ASK}\\] |") == text.count("| the steward |")
    for title in ("NIST SP 800-226", "GDPR, Article 35", "What the bounds mean"):
        assert re.search(f"^## .*{title}", text, re.MULTILINE)
        assert re.search(f"<h2>.*{title}", page)
    risk = dp.explain(people.budget).risk
    assert f"becomes at most {dp.explaining.words.out_of(risk.after(0.5))}, and one of 1 in 100" in text
    assert not re.search(r"\{[a-z_]+\}", text + page)


def test_what_the_steward_did_is_in_it():
    people = stays()
    people.curator.enter(dp.accounting.PureDP(epsilon=0.25), "in the yearbook")
    with people.ledger.writing() as writer:
        writer.append("looked", {"what": "discreet check"})
    _, text, _ = run()
    assert "Entered by hand: 1 (in the yearbook). The steward looked at the data 1 times since" in text
    assert "1 as it was entered by hand" in text
    for shown in ("Groups are shown whatever their size", "Guard against slips: none."):
        assert shown in text
    people.curator.change_policy(replace(people.curator.policy, min_people=11, max_per_day=0.5))
    _, text, _ = run("--force")
    assert "In SQL a group of fewer than 11 people is shown with a small probability" in text
    assert "Guard against slips: 0.5 per day." in text


def test_periods_without_a_limit_for_all_of_them_bound_nothing_for_a_person():
    for total, words in (("unlimited", "anything (there is no limit)"), (dp.Budget(epsilon=2), "89 in 100")):
        per = dp.Period(column="day", every="month", total=total)
        stays(budget=dp.Budget(epsilon=1, per=per), analysts={}, ledger="stays.ledger")
        entry, text, _ = run("--force")
        together = "without a limit" if total == "unlimited" else "epsilon 2"
        assert f"for each month of day by itself, and all together {together}." in text
        assert f"a belief of 50 in 100 about one person becomes at most {words}, and one" in text
        assert entry["deployment"]["deployment_model"]["data_source_type"] == "Dynamic"
        for file in Path().glob("stays.ledger*"):
            file.unlink()


def test_only_the_ledger_is_read_without_its_key_and_names_are_no_markup():
    people = stays()
    people.sql('SELECT ward, COUNT(*) AS n FROM "st|ays" GROUP BY ward', epsilon=0.5)
    Path("stays.ledger.key").unlink()
    before = Path("stays.ledger").read_bytes()
    _, text, page = run()
    assert Path("stays.ledger").read_bytes() == before
    assert "secret" not in text + page
    assert "<b>B" not in page
    assert "<b>" not in text
    assert "st\\|ays" in text
    with pytest.raises(InvalidInput, match="exists already"):
        run()
    run("--force")


def test_the_title_is_no_markup_and_a_file_is_no_folder():
    assert _markdown("Dossier: <script>", [], []).startswith("# Dossier: \\<script\\>")
    stays()
    Path("taken").write_text("mine")
    with pytest.raises(InvalidInput, match="'taken' is a file"):
        run("--out", "taken")
    assert Path("taken").read_text() == "mine"


def test_an_audit_stands_beside_what_is_proved_and_finds_missing_noise(monkeypatch):
    people = stays(analysts={}, unit=dp.rows())
    people.ask(noisy_count(people.public, epsilon=2))
    _, text, _ = run("--audit", "2000")
    (row,) = [line for line in text.splitlines() if line.startswith("| AddNoise |")]
    proved, found, claim = (cell.strip() for cell in row.split("|")[2:5])
    assert proved == "2"
    # one true claim in twenty may be refuted: only what is far off is an error
    assert 0.5 < float(found) < 4
    assert claim in ("not refuted", "refuted")
    assert "1 of 1 mechanisms were run" in text
    monkeypatch.setattr(noise.IntegerLaplace, "__call__", lambda self, values, /, *, entropy: values)
    _, text, _ = run("--audit", "400", "--force")
    assert re.search(r"\| AddNoise \| 2 \| [\d.]+ \| refuted \|", text)
    with pytest.raises(InvalidInput, match="at least 40 runs"):
        run("--audit", "7")


def test_an_audit_uses_all_rows_of_a_person_that_count():
    people = stays(analysts={}, unit=dp.Unit(column="person", rows=20, groups=1))
    # noise of one row would be too small by far for 20
    people.sql('SELECT COUNT(*) AS n FROM "st|ays"', epsilon=2)
    _, text, _ = run("--audit", "1000")
    row = [line for line in text.splitlines() if line.startswith("| SELECT COUNT")][-1]
    proved, found, claim = (cell.strip() for cell in row.rsplit("|", 4)[1:4])
    assert proved == "2"
    # with one row of 20 nobody could find more than 0.1
    assert 0.4 < float(found) < 4
    assert claim in ("not refuted", "refuted")
