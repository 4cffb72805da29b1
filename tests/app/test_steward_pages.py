"""The steward's pages: the recipe of docs/back-up.md restores a ledger that goes on, and lists are complete."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import discreet as dp
from discreet import curator
from discreet.app.cli import COMMANDS, load
from discreet.curator.curator import NOTES
from discreet.tables import schema

DOCS = Path(__file__).parents[2] / "docs"


def commands(page: str, heading: str) -> str:
    """The lines after "$ " of one section of a page, as a script that ends at the first failure."""
    section = (DOCS / page).read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    blocks = "\n".join(re.findall(r"```sh\n(.*?)```", section, re.S))
    return "set -e\n" + "\n".join(re.findall(r"^\$ (.*)$", blocks, re.M))


def follow(heading: str, folder: Path) -> str:
    paths = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent), os.environ["PATH"]]
    done = subprocess.run(
        ["bash", "-c", commands("back-up.md", heading)],
        cwd=folder,
        env=os.environ | {"PATH": os.pathsep.join(paths)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def stays() -> Any:
    """The session of the tutorial's file, in the folder one is in."""
    return dp.open(
        Path("stays.csv"), schema=Path("stays.csv.schema.toml"), budget=dp.Budget(epsilon=9, delta=1e-6)
    )


def test_a_stream_goes_on_after_the_recipe_of_the_page_was_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    tutorial = (DOCS / "tutorials/steward.md").read_text()
    for name in ("stays.csv", "stays.csv.schema.toml"):
        text = re.search(rf"^\$ cat > {re.escape(name)} <<'END'\n(.*?)^END$", tutorial, re.M | re.S)
        assert text is not None
        Path(name).write_text(text[1])
    row = {"Admitted": "2025-01-03", "Ward": "A", "Age": 67, "Length of stay (days)": 4.5, "Smoker": True}
    crowd = {name: [value] * 40 for name, value in row.items()}
    crowd["Patient No"] = [str(i) for i in range(40)]
    terms = {"epsilon": 8, "horizon": 9, "rows": 1, "participations": 1}
    question = "SELECT COUNT(*) AS n FROM stays"
    stream = stays().stream(question, **terms)
    stream.feed(crowd)
    follow("Back up", tmp_path)
    # the disk fails: half of the ledger is gone, with its key and its vault
    Path("stays.csv.ledger").write_bytes(Path("stays.csv.ledger").read_bytes()[:5000])
    Path("stays.csv.ledger.key").unlink()
    vault = Path("stays.csv.ledger-vault")
    assert len(list(vault.iterdir())) > 0
    for blob in vault.iterdir():
        blob.unlink()
    assert "and against the anchor" in " ".join(follow("Restore", tmp_path).split())
    files = [path for path in tmp_path.glob("stays.csv.ledger*") if path.is_file()]
    assert {path.stat().st_mode & 0o777 for path in (*files, *vault.iterdir())} == {0o600}
    restored = stays()
    again = restored.stream(question, **terms, number=stream.number)
    assert again.history == stream.history
    # everybody has taken part already, which only the vault knows
    again.feed(crowd)
    assert abs(again.value - 40) < again.error(1 - 1e-9)
    # the stream, and the half that the page enters
    assert restored.spent == pytest.approx(8.5)
    assert restored.curator.verify() == []


def test_the_schema_file_of_the_page_is_one(tmp_path: Path) -> None:
    page = (DOCS / "schema-file.md").read_text()
    text, unit = re.findall(r"```toml\n(.*?)```", page, re.S)
    assert schema.load(text).unit == dp.rows()
    others = schema.load(text.replace('unit = "row"', "", 1) + unit).unit
    assert others == dp.Unit("Patient No", rows=5, groups=2)
    for kind, (needed, beside) in schema._FIELDS.items():
        row = re.search(rf"^\| `{kind}` \|(.*?)\|(.*?)\|", page, re.M)
        assert row is not None
        named = [set(re.findall(r"`(\w+)`", cell)) for cell in row.groups()]
        assert named == [needed, beside], kind


def kinds() -> Iterator[str]:
    """The kinds of entries that the package of the curator writes, by literal or by the name of a constant."""
    for path in Path(curator.__file__).parent.glob("*.py"):
        module = __import__(f"discreet.curator.{path.stem}", fromlist=["x"])
        for kind in re.findall(r"writer\.append\(\s*\"?(\w+)\"?,|[\[(]\"(open)\", first", path.read_text()):
            name = "".join(kind)
            if name.isupper():
                yield getattr(module, name)
            elif name not in ("entry", "kind"):
                yield name


def test_the_page_of_the_curator_lists_every_kind_of_entry() -> None:
    from discreet.curator.accounts import SERVED, SPENDING

    page = (DOCS / "curator.md").read_text()
    table = page.split("| kind |")[1].split("\n\n")[0]
    assert set(re.findall(r"`(\w+)`", "\n".join(line.split("|")[1] for line in table.splitlines()[2:]))) == {
        *kinds(),
        *NOTES,
        SPENDING,
        SERVED,
    }


def without_json(command: Any, name: str) -> Iterator[str]:
    inner = getattr(command, "commands", {})
    for part, child in inner.items():
        yield from without_json(child, f"{name} {part}")
    if not inner and not any("--json" in option.opts for option in command.params):
        yield name


def test_the_page_of_exit_codes_names_every_command_without_json() -> None:
    page = (DOCS / "exit-codes.md").read_text().split("Without it are")[1]
    named = {name.replace("survey.toml", "survey") for name in re.findall(r"`([a-z][\w .]*)`", page)}
    assert named == {name for top in COMMANDS for name in without_json(load(top), top)}
