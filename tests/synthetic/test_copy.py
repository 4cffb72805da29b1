"""A copy from the session and from the shell: charged once, free afterwards, honest about what it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.app.cli import app
from discreet.session import Session
from discreet.synthetic.copy import NOTE, encode_value, open_copy
from discreet.tables.cells import Coding

SCHEMA = {
    "sex": dp.Categories(["f", "m"]),
    "age": dp.Bounds(0, 90, nullable=False),
    "years": dp.Bounds(0, 17, nullable=False),
}
BINS = {"age": [0, 10, 18, 40, 60, 91]}


def table(rows: int = 2000) -> dict[str, Any]:
    random = np.random.default_rng(0)
    years = random.integers(0, 18, rows)
    return {
        "sex": random.choice(["f", "m"], rows),
        "age": years + random.integers(0, 73, rows),
        "years": years,
    }


def open_session(ledger: str | Path = ":memory:", **options: Any) -> Session:
    budget = dp.Budget(epsilon=5, delta=1e-6)
    given = {"unit": dp.rows(), "schema": SCHEMA, "budget": budget, "ledger": ledger} | options
    return dp.open(table(), **given)


@pytest.fixture(scope="module")
def people() -> Session:
    return open_session()


@pytest.fixture(scope="module")
def copy(people: Session) -> Any:
    return people.synthesize(500, epsilon=1, bins=BINS, constraints=["age >= years"], seed=3)


def test_a_copy_is_charged_once_and_what_is_done_with_it_is_free(people: Session, copy: Any) -> None:
    spent = people.spent
    assert 0.9 < spent <= 1
    assert copy.to_pandas().shape == (500, 3)
    assert copy.to_arrow().column_names == ["sex", "age", "years"]
    again = people.synthesize(500, epsilon=1, bins=BINS, constraints=["age >= years"], seed=3)
    assert again.to_arrow() == copy.to_arrow()
    assert again.sample(7).num_rows == 7
    copy.report()
    assert people.spent == spent
    assert copy.fitted.method == "aim"


def test_the_default_number_of_rows_is_a_noisy_total(people: Session) -> None:
    copy = people.synthesize(epsilon=1, method="independent")
    assert copy.rows == round(copy.total)
    assert abs(copy.rows - 2000) < 200


def test_a_noisy_total_alone_does_not_fill_the_memory(copy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(copy), "total", property(lambda self: 3e9))
    assert type(copy).of(copy.fitted, copy.event).rows == 10**7
    assert type(copy).of(copy.fitted, copy.event, rows=10**8).rows == 10**8


def test_answers_of_a_copy_say_that_they_carry_no_interval(copy: Any) -> None:
    answer = copy.sql("SELECT sex, COUNT(*) AS n, STDDEV(age) AS s FROM data GROUP BY sex ORDER BY sex")
    assert sum(answer.to_arrow()["n"].to_pylist()) == 500
    assert NOTE in str(answer)
    with pytest.raises(dp.InvalidInput, match="no ± of the truth"):
        answer.interval()
    # The rows are made up, so that the engine's own words may be shown; files are out of reach.
    with pytest.raises(dp.InvalidInput, match=r"agge.*not found"):
        copy.sql("SELECT agge FROM data")
    with pytest.raises(dp.InvalidInput, match="cannot be answered"):
        copy.sql("SELECT * FROM read_csv('/etc/passwd')")


def test_constraints_hold_in_every_row_and_conditions_too(copy: Any) -> None:
    frame = copy.sample(3000, seed=1).to_pandas()
    assert (frame.age >= frame.years).all()
    conditional = copy.sample(300, given={"sex": "f", "age": 12}).to_pandas()
    assert set(conditional.sex) == {"f"}
    assert conditional.age.between(10, 17).all()
    for given, words in (
        ({"sx": "f"}, "no column"),
        ({"sex": "x"}, "no declared value"),
        ({"age": None}, "never missing"),
    ):
        with pytest.raises(dp.InvalidInput, match=words):
            copy.sample(3, given=given)


def test_a_condition_may_be_a_number_of_numpy() -> None:
    coding = Coding("x", dp.Categories([4, 7]))
    assert encode_value(coding, np.int64(7)) == encode_value(coding, 7) == 1
    for wrong in (7.0, np.int64(5), True, np.True_):
        with pytest.raises(dp.InvalidInput, match="no declared value"):
            encode_value(coding, wrong)


def test_files_carry_the_card(copy: Any, tmp_path: Path) -> None:
    copy.to_parquet(tmp_path / "copy.parquet")
    copy.to_csv(tmp_path / "copy.csv")
    card = json.loads((tmp_path / "copy.card.json").read_text())
    assert card["method"] == "aim"
    assert card["privacy"]["asked"]["epsilon"] == 1
    assert card["constraints"] == ["age >= years"]
    stored = pq.read_table(tmp_path / "copy.parquet")
    assert json.loads(stored.schema.metadata[b"discreet"]) == card
    for name in ("copy.parquet", "copy.csv"):
        opened_again = open_copy(tmp_path / name)
        answer = opened_again.sql("SELECT COUNT(*) AS n, MAX(age) AS m FROM data")
        assert answer.to_arrow()["n"].to_pylist() == [500]
        assert NOTE in str(answer)
        assert opened_again.card == card
    pq.write_table(stored.replace_schema_metadata(None), tmp_path / "data.parquet")
    (tmp_path / "junk.parquet").write_text("junk")
    for wrong in (tmp_path / "data.parquet", tmp_path / "junk.parquet", tmp_path, "no such file", 3):
        with pytest.raises(
            dp.InvalidInput,
            match=r"has no card of a synthetic copy|cannot be read as a copy|path must be the file of a copy",
        ):
            open_copy(wrong)  # type: ignore[arg-type]
    assert stored.num_rows == len((tmp_path / "copy.csv").read_text().splitlines()) - 1 == 500


def test_files_that_are_there_are_not_written_over_unless_told(copy: Any, tmp_path: Path) -> None:
    for write, name in ((copy.to_parquet, "a.parquet"), (copy.to_csv, "b.csv"), (copy.to_csv, "c.card.json")):
        (tmp_path / name).write_text("the only copy")
        target = tmp_path / name.replace(".card.json", ".csv")
        with pytest.raises(dp.InvalidInput, match="exists already"):
            write(target)
        assert (tmp_path / name).read_text() == "the only copy"
        assert target.exists() == (target.name == name)
        write(target, overwrite=True)
        assert open_copy(target).to_arrow().num_rows == 500


def test_the_report_bounds_hold(copy: Any) -> None:
    data = table()
    truth = np.mean(data["sex"] == "f")
    share = np.mean(copy.to_pandas().sex == "f")
    bounds = {t.columns: t.bound for t in copy.report().tables}
    assert abs(truth - share) <= bounds[("sex",)] < 0.2
    assert "free" in str(copy.report())


def test_comparing_with_the_data_is_paid(people: Session, copy: Any) -> None:
    spent = people.spent
    release = people.compare_copy(copy, epsilon=0.25)
    assert people.spent == pytest.approx(spent + 0.25)
    assert 0 < release.value < 0.3
    assert 0 < release.error(0.95) < 0.05


def test_a_run_with_a_checkpoint_shows_progress_and_goes_on_after_a_stop(tmp_path: Path) -> None:
    people = open_session(tmp_path / "a.ledger")
    reported: list[Any] = []

    def stop(facts: Any) -> None:
        reported.append(facts)
        if len(reported) == 3:
            raise KeyError("the light went out")

    terms: dict[str, Any] = {"epsilon": 1, "method": "mwem", "bins": BINS, "checkpoint": tmp_path / "run"}
    with pytest.raises(KeyError, match="the light went out"):
        people.synthesize(100, progress=stop, **terms)
    assert reported[0] == {"step": 1, "steps": 11, "tables": 3}
    spent = people.spent
    copy = people.synthesize(100, resume=True, **terms)
    assert people.spent == spent
    # The step that was under way is lost; it is not run twice.
    assert len(copy.fitted.tables) == 12
    with pytest.raises(dp.InvalidInput, match="checkpoint"):
        people.synthesize(100, epsilon=1, resume=True)


def test_people_with_many_rows_need_a_bound_and_get_one() -> None:
    data = table(300) | {"id": np.arange(300) % 50}
    people = dp.open(
        data, unit="id", schema=SCHEMA, budget=dp.Budget(epsilon=5, delta=1e-6), ledger=":memory:"
    )
    with pytest.raises(dp.InvalidInput, match="rows_per_unit"):
        people.synthesize(epsilon=1)
    assert people.spent == 0
    copy = people.synthesize(50, epsilon=1, rows_per_unit=2, method="mst")
    assert "id" not in copy.columns


def test_nothing_is_charged_for_what_is_refused(people: Session) -> None:
    spent = people.spent
    for wrong in (
        {"rows": 0},
        {"seed": -1},
        {"method": "gan"},
        {"columns": ["nobody"]},
        {"options": {"degree": -1}},
    ):
        with pytest.raises(dp.DiscreetError, match=r"must be|nothing is declared"):
            people.synthesize(**({"epsilon": 0.5} | wrong))  # type: ignore[arg-type]
    # One table is copied, not two.
    with pytest.raises(dp.UnknownOption, match=r"synthesize has no option 'child'\..* Nothing was charged"):
        people.synthesize(epsilon=0.5, child="visits")  # type: ignore[call-arg]
    assert people.spent == spent


def test_the_shell_makes_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(dp.tables.Memory(table())._table, "people.parquet")
    Path("people.parquet.schema.toml").write_text(
        'table = "people"\nunit = "row"\n[columns.sex]\ntype = "categories"\nvalues = ["f", "m"]\n'
        '[columns.age]\ntype = "number"\nlower = 0\nupper = 90\nnullable = false\n'
    )
    runner = CliRunner()

    def run(*words: str) -> Any:
        return runner.invoke(app, list(words))

    assert run("init", "people.parquet", "--epsilon", "2", "--delta", "1e-6").exit_code == 0
    words = [
        "synth",
        "people.parquet",
        "-o",
        "copy.csv",
        "-e",
        "1",
        "--rows",
        "40",
        "--bins",
        "age=0,30,60,91",
    ]
    done = run(*words, "--method", "mst", "--json")
    assert done.exit_code == 0, (done.output, done.exception)
    assert json.loads(done.stdout)["columns"][1]["edges"] == [0, 30, 60, 91]
    assert len(Path("copy.csv").read_text().splitlines()) == 41
    for more in ([], ["--force", "-o", "copy.txt"], ["--force", "--bins", "age"]):
        refused = run(*words, *more)
        assert refused.exit_code != 0
    # A copy's own Parquet file is replaced if told; a file that may be data never is.
    pq.write_table(dp.tables.Memory(table())._table, "other.parquet")
    again = [*words, "--method", "mst", "-o"]
    assert run(*again, "copy.parquet").exit_code == 0
    assert run(*again, "copy.parquet").exit_code != 0
    assert run(*again, "copy.parquet", "--force").exit_code == 0
    for data in ("other.parquet", "people.parquet"):
        before = Path(data).read_bytes()
        assert run(*again, data, "--force").exit_code != 0
        assert Path(data).read_bytes() == before


def test_a_printed_answer_is_aligned_and_a_wrong_table_is_named(copy: Any) -> None:
    shown = str(copy.sql("SELECT 'a' AS x, 1 / 3.0 AS y UNION ALL SELECT 'long', NULL ORDER BY x"))
    assert shown.splitlines()[:3] == ["x     y", "a     0.333333", "long  -"]
    with pytest.raises(dp.InvalidInput, match=f"The tables are: {copy.public.table}"):
        copy.sql("SELECT COUNT(*) FROM nowhere")
