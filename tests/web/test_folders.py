"""Every file that the server opens is below --root: none that a schema, a link or a database names elsewhere."""

from __future__ import annotations

from pathlib import Path

import duckdb
import pytest

from discreet import tables
from discreet._errors import InvalidInput
from discreet.app.web.sessions import Folders

from .running import Server

SCHEMA = 'table = "t"\nversion = "1"\nunit = "row"\n[columns.a]\ntype = "number"\nlower = 0\nupper = 9\n'
RELATED = '[tables.other]\nprivate = false\ndata = "{}"\n[tables.other.columns.a]\ntype = "number"\nlower = 0\nupper = 9\n'


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    (tmp_path / "data").mkdir()
    (tmp_path / "state").mkdir()
    for name in ("data/t.csv", "outside.csv", "state/server.csv"):
        (tmp_path / name).write_text("a\n1\n")
    return Folders((tmp_path / "data",), tmp_path / "state")


def test_a_related_table_outside_the_root_is_refused_over_http(server: Server):
    """`data =` of a schema that a steward sent opened any file of the service's account."""
    data, outside = server.folder / "data", server.folder / "beyond.csv"
    outside.write_text("a\n1\n2\n")
    (data / "leads_out.csv").unlink(missing_ok=True)
    (data / "leads_out.csv").symlink_to(outside)
    (data / "beside.csv").write_text("a\n1\n2\n")
    with server.client("steward") as steward:
        for number, named in enumerate((str(outside), "../beyond.csv", "leads_out.csv", "beside.csv")):
            (data / f"main{number}.csv").write_text("a\n" + "1\n2\n" * 20)
            body = {"name": f"main{number}", "path": f"main{number}.csv", "budget": {"epsilon": 1}}
            made = steward.post("/datasets", json=body | {"schema_text": SCHEMA + RELATED.format(named)})
            is_inside = named == "beside.csv"
            assert (made.status_code == 201) is is_inside, (named, made.text)
            assert is_inside or "may read" in made.json()["error"]["message"]
            assert (data / f"main{number}.csv.ledger").exists() is is_inside


@pytest.mark.parametrize(
    "path", ["../outside.csv", "link.csv", "out/outside.csv", "/etc/passwd", "a*.csv", "no.csv", "", "\0"]
)
def test_paths_that_lead_out_are_refused_where_files_are_opened(folders, tmp_path, path):
    (tmp_path / "data" / "a*.csv").write_text("a\n1\n")
    (tmp_path / "data" / "link.csv").symlink_to(tmp_path / "outside.csv")
    (tmp_path / "data" / "out").symlink_to(tmp_path)
    with pytest.raises(InvalidInput, match="may read"):
        folders.data(path)
    assert folders.data("t.csv") == str(tmp_path / "data" / "t.csv")


def test_the_state_is_no_data_and_links_that_stay_inside_are_followed(tmp_path, folders):
    around = Folders((tmp_path,), tmp_path / "state")
    with pytest.raises(InvalidInput, match="may read"):
        around.data("state/server.csv")
    (tmp_path / "data" / "link.csv").symlink_to("t.csv")
    assert folders.data("link.csv") == str(tmp_path / "data" / "t.csv")


def test_a_dataset_is_checked_again_when_it_is_opened(tmp_path, folders):
    """A file that was added may have become a link since."""
    data = tmp_path / "data"
    facts = {name: str(data / f"t.csv{end}") for name, end in (("data", ""), ("ledger", ".ledger"))}
    facts["schema"] = str(data / "t.csv.schema.toml")
    Path(facts["schema"]).write_text(SCHEMA + RELATED.format("t.csv"))
    assert folders.dataset(facts)["related"] == {"other": data / "t.csv"}
    for name in ("data", "schema"):
        path = Path(facts[name])
        path.rename(tmp_path / "moved")
        path.symlink_to(tmp_path / "moved")
        with pytest.raises(InvalidInput, match="may read"):
            folders.dataset(facts)
        (tmp_path / "moved").replace(path)


def test_a_view_of_a_database_is_not_opened(tmp_path):
    """Its SQL could read any file of the account, and the names of its columns would be the first line."""
    (tmp_path / "secret.csv").write_text("password\nx\n")
    with duckdb.connect(str(tmp_path / "x.duckdb")) as con:
        con.execute(
            f"CREATE VIEW V AS SELECT *, 1::BIGINT AS rowid FROM read_csv('{tmp_path}/secret.csv', header=true)"
        )
    with pytest.raises(InvalidInput, match="is a view") as refusal:
        tables.draft(tmp_path / "x.duckdb", table="v")
    assert "password" not in str(refusal.value)
