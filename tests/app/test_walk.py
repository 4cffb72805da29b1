"""The walk that the tour describes, from an empty directory, with a file as people have them: the commands are
the page's own."""

import json
import random
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet import InvalidInput
from discreet.app.cli import app

TOUR = Path(__file__).parents[2] / "docs" / "tour.md"
HEADER = "Patienten-Nr;ward;Größe (cm);Tag der Aufnahme;Kosten in €"
runner = CliRunner()


def commands() -> list[list[str]]:
    """The lines of the tour's block about a CSV file, as the shell would split them."""
    (block,) = [
        b for b in re.findall(r"```sh\n(.*?)```", TOUR.read_text("utf-8"), re.S) if "init patients.csv" in b
    ]
    block, question = (
        re.sub(r'^ask="(.*)"\n', "", block, flags=re.M),
        re.findall(r'^ask="(.*)"$', block, re.M),
    )
    lines = [part for line in block.splitlines() for part in line.partition("#")[0].split(";")]
    words = [shlex.split(line.replace('"$ask"', shlex.quote("".join(question)))) for line in lines]
    return [line[1:] for line in words if line]


def table() -> str:
    """Several rows per person, a decimal comma, thousands with a point, two formats of dates, and what is in
    no format at all."""
    source = random.Random(4)
    lines = [HEADER]
    for person in range(500):
        height = f"{source.randint(1500, 2000) / 10:.1f}".replace(".", ",")
        for _ in range(source.choice([1, 1, 2, 3])):
            day, month = source.randint(1, 28), source.randint(1, 12)
            date = source.choice([f"{day:02}.{month:02}.2025", f"2025-{month:02}-{day:02}"])
            cost = source.choice(
                [f"{source.randint(1, 9)}.{source.randint(100, 999)},50", f"{source.randint(10, 999)},00"]
            )
            lines.append(f"P{person};{source.choice('ABC')};{height};{date};{cost}")
    return "\n".join([*lines, "P7;A;;unbekannt;?"]) + "\n"


ANSWERS = {  # what the steward writes in the place of the draft's questions
    "# column =": 'column = "Patienten-Nr"',
    "# rows =": "rows = 3",
    "# groups =": "groups = 2",
    "# [unit]": "[unit]",
}
FACTS = {
    "ward": 'type = "categories"\nvalues = ["A", "B", "C"]',
    "Größe (cm)": 'type = "number"\nlower = 30\nupper = 250',
    "Tag der Aufnahme": 'type = "date"\nlower = "2025-01-01"\nupper = "2025-12-31"',
    "Kosten in €": 'type = "number"\nlower = 0\nupper = 20000',
}
FORMAT = {'# decimal = ","': 'decimal = ","', '# thousands = "."': 'thousands = "."', "# dates =": "dates ="}


def answered(draft: str) -> str:
    """The draft with its questions answered: lines uncommented, columns declared where the draft asks about
    them."""
    lines = draft.splitlines()
    for question, answer in (ANSWERS | FORMAT).items():
        places = [i for i, line in enumerate(lines) if line.startswith(question)]
        if not places and question in FORMAT:
            continue  # known already, after --look
        whole = question if question.endswith("=") and question != "# dates =" else None
        lines[places[0]] = answer if whole else lines[places[0]].replace(question, answer, 1)
    for name, fact in FACTS.items():
        (place,) = [
            i for i, line in enumerate(lines) if line in (f"# [columns.{name}]", f'# [columns."{name}"]')
        ]
        lines[place] = f"{lines[place][2:]}\n{fact}"
    return "\n".join(lines) + "\n"


def run(*arguments: str) -> str:
    result = runner.invoke(app, list(arguments), env={"COLUMNS": "120"})
    assert result.exit_code == 0, (arguments, result.output, result.exception)
    return result.stdout


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("patients.csv").write_text(table(), "utf-8")
    return tmp_path


@pytest.mark.parametrize("look", [False, True])
def test_the_walk_of_the_tour_has_no_stop(here, look):
    first, *rest = commands()
    assert first == ["init", "patients.csv"]
    assert [c[0] for c in rest] == [
        "check",
        "init",
        "preview",
        "query",
        "budget",
        "ledger",
        "ledger",
        "policy",
    ]
    run(*first, *(["--look"] if look else []))
    schema = Path("patients.csv.schema.toml")
    draft = schema.read_text("utf-8")
    assert 'delimiter = ";"' in draft.splitlines(), "what parts the names is seen in the first line"
    assert ("looked = true" in draft) == look
    schema.write_text(answered(draft), "utf-8")
    said = {tuple(command): run(*command) for command in rest}
    check, answer, own = (
        next(t for c, t in said.items() if c[0] == name) for name in ("check", "query", "ledger")
    )
    assert "Größe (cm)" in check
    assert re.search(r"A\s+[\d,-]+ ± \d+", answer)
    assert "ann" in own
    assert "ledger opened" not in own
    kinds = [entry["kind"] for entry in json.loads(run("ledger", "show", "patients.csv", "--json"))]
    assert kinds.count("looked") == (1 if look else 0), (
        "without --look, discreet check came before there was a ledger"
    )


def test_what_the_file_says_is_read_as_it_is_meant(here):
    run("init", "patients.csv", "--look")
    schema = Path("patients.csv.schema.toml")
    draft = schema.read_text("utf-8")
    assert 'dates = ["%Y-%m-%d", "%d.%m.%Y"]' in draft
    assert 'decimal = ","\nthousands = "."' in draft
    assert "For example, a height in cm: 30 to 250." in draft
    assert not re.search(r"P\d|1[5-9]\d,\d|unbekannt", draft), "no value of the data"
    schema.write_text(answered(draft), "utf-8")
    people = dp.open(
        "patients.csv",
        schema=schema,
        budget=dp.Budget(epsilon=10_000, delta=1e-6),
        large_delta=False,
        large_epsilon=True,
    )
    how = {"epsilon": 1000, "rows": 3, "groups": 3}
    height = people.sql('SELECT AVG("Größe (cm)") AS h FROM patients', **how).rows[0][0]
    assert 170 < height < 180
    months = people.sql(
        'SELECT month("Tag der Aufnahme") AS m, COUNT(*) AS n FROM patients GROUP BY m', **how
    ).rows
    lines = table().splitlines()[1:-1]
    assert sum(n for _, n in months) == pytest.approx(len(lines), abs=5), "both formats of dates count"
    costs = sum(float(line.split(";")[4].replace(".", "").replace(",", ".")) for line in lines)
    assert people.sql('SELECT SUM("Kosten in €") AS k FROM patients', **how).rows[0][0] == pytest.approx(
        costs, rel=0.01
    )


def test_looking_is_for_drafts_of_csv_files(here):
    run("init", "patients.csv")
    # a file without a schema, whose name needs quotes on the shell
    (here / "Besuche 2025.csv").write_text("a\n1\n")
    for arguments, match in [
        (("init", "patients.csv", "--look"), "exists already: --look is for the draft"),
        (("query", "Besuche 2025.csv", "SELECT 1", "--epsilon", "1"), "discreet init 'Besuche 2025.csv'"),
    ]:
        result = runner.invoke(app, list(arguments))
        assert isinstance(result.exception, InvalidInput)
        assert match in str(result.exception)
    with pytest.raises(InvalidInput, match="no file"):
        dp.open("patients-*.csv", schema={"a": dp.Boolean()}, unit=dp.rows(), budget=dp.Budget(epsilon=1))


def test_names_that_stand_twice_and_another_encoding_are_told_with_a_way_out(here):
    """What stopped a walk with a German export: a name that stands twice, lines in Latin-1 below an ASCII header
    (the engine leaves them out), categories with stray blanks."""
    Path("twice.csv").write_text("id;note;note\n1;a;b\n", "utf-8")
    result = runner.invoke(app, ["init", "twice.csv"])
    assert "'note' stands in columns 2 and 3." in str(result.exception)
    wards = ("Innere", "Gynäkologie", " Innere")
    Path("stays.csv").write_text("ward\n" + "".join(f"{wards[i % 3]}\n" for i in range(30)), "latin-1")
    Path("stays.csv.schema.toml").write_text(
        'table = "stays"\nunit = "row"\n[columns.ward]\ntype = "categories"\nvalues = ["Innere", "Gynäkologie"]\n',
        "utf-8",
    )
    said = " ".join(run("check", "stays.csv").split())
    assert "not text in UTF-8, and are left out: 20 to 50%" in said
    assert "iconv -f cp1252 -t utf-8 stays.csv" in said
    assert 'In Excel, save the file as "CSV UTF-8".' in said
    assert "outside, of ward: other texts than those declared" in said
    assert json.loads(run("check", "stays.csv", "--json"))["not_utf8"] == "20 to 50%"
    Path("stays.csv").write_text("ward\nInnere\n", "utf-8")
    assert "UTF-8" not in run("check", "stays.csv")


def test_what_does_not_convert_has_a_hint_on_how_it_may_be_written(here):
    """What stopped another walk: a forgotten decimal comma, German dates, and J and N for true and false, of
    which only N was read."""
    Path("visits.csv").write_text("cost;day;smoker\n" + "1,5;31.12.2025;J\n0,5;01.12.2025;N\n" * 9, "utf-8")
    schema = (
        'table = "visits"\nunit = "row"\n[format]\ndelimiter = ";"\n[columns.cost]\ntype = "number"\nlower = 0\n'
        'upper = 9\n[columns.day]\ntype = "date"\nlower = "2025-01-01"\nupper = "2025-12-31"\n[columns.smoker]\n'
        'type = "boolean"\n'
    )
    Path("visits.csv.schema.toml").write_text(schema, "utf-8")
    said = " ".join(run("check", "visits.csv").split())
    assert "does not convert, of cost: is there a decimal comma" in said
    assert "does not convert, of day: is a date written in another way than 2025-12-31?" in said
    assert "does not convert, of smoker: true is written true, t, yes, y or 1" in said
    Path("visits.csv.schema.toml").write_text(
        schema.replace('";"', '";"\ndecimal = ","\ndates = ["%d.%m.%Y"]', 1), "utf-8"
    )
    said = run("check", "visits.csv")
    assert "smoker: true is" in said
    assert "does not convert, of cost" not in said
    assert "does not convert, of day" not in said
