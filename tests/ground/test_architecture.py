"""docs/architecture.md and its picture name the layers of the contract, and modules and functions that exist."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from docs import architecture

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "architecture.md").read_text()
PACKAGES = sorted({name for layer in architecture.layers() for name in layer})
# `query.price.allocate`, `sampling`; not `people.ledger.key` or `dp.open(...)`
NAMED = sorted(
    {
        name
        for name in re.findall(r"`([A-Za-z_][\w.]*)`", PAGE)
        if name.partition(".")[0] in PACKAGES and not name.startswith("__main__")
    }
)


def resolve(name: str) -> object:
    """The module, class or function of a dotted name, relative to the package."""
    parts = name.split(".")
    for size in range(len(parts), 0, -1):
        try:
            thing: object = importlib.import_module(".".join(["discreet", *parts[:size]]))
        except ModuleNotFoundError:
            continue
        for part in parts[size:]:
            thing = getattr(thing, part)
        return thing
    raise ModuleNotFoundError(name)


def test_the_table_of_layers_is_the_contract_of_import_linter() -> None:
    section = PAGE.split("\n## Layers\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    assert [re.findall(r"`(\w+)`", row) for row in rows] == architecture.layers()


def test_the_picture_is_drawn_from_the_contract_and_is_the_file() -> None:
    """Every layer but `__main__`, which only calls the one below it."""
    assert architecture.PICTURE.read_text() == architecture.draw(), "run: python -m docs.architecture"
    picture = ElementTree.fromstring(architecture.draw())
    drawn = [
        group.attrib["data-layer"].split(" | ") for group in picture.iter() if "data-layer" in group.attrib
    ]
    assert drawn == architecture.layers()[1:]
    texts = {text.text for text in picture.iter("{http://www.w3.org/2000/svg}text")}
    assert {name for layer in drawn for name in layer} <= texts


@pytest.mark.parametrize("name", NAMED)
def test_what_the_page_names_is_there(name: str) -> None:
    assert resolve(name) is not None


def test_the_test_of_names_has_teeth() -> None:
    assert len(NAMED) > 60
    assert {"curator.door.Door.ask", "query.price.allocate", "app.web.wire.ask"} <= set(NAMED)
    with pytest.raises(ModuleNotFoundError, match="kurator"):
        resolve("kurator")
    with pytest.raises(AttributeError):
        resolve("curator.door.Door.answer_for_free")


def test_the_steps_of_a_question_are_taken_in_the_order_of_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    """A question is followed through the functions that the page names; what runs after the charge is named
    after it."""
    import discreet as dp
    from discreet.core import exact, question
    from discreet.curator import door, ledger
    from discreet.query import mechanism

    taken: list[str] = []

    def note(owner: object, attribute: str, label: str) -> None:
        function = getattr(owner, attribute)

        def noted(*arguments: object, **options: object) -> object:
            taken.append(label)
            return function(*arguments, **options)

        monkeypatch.setattr(owner, attribute, noted)

    people = dp.open(
        {"age": [30, 40, 50]}, table="people", schema={"age": dp.Bounds(0, 100)}, unit=dp.rows(),
        budget=dp.Budget(epsilon=1), ledger=":memory:",
    )  # fmt: skip
    note(mechanism, "plan", "query.plan.plan")
    note(mechanism, "allocate", "query.price.allocate")
    note(door, "check_mechanism", "curator.identities.check_mechanism")
    note(ledger.Writer, "append", "curator.ledger.Writer.append")
    note(question, "measure", "core.exact.measure")
    note(mechanism, "table", "query.release.table")
    assert question.measure is not exact.measure
    people.sql("SELECT COUNT(*) AS n FROM people WHERE age > 35", epsilon=0.5)
    firsts = list(dict.fromkeys(taken))
    # one empty group is computed when the query is made, to refuse what cannot be computed before the charge
    firsts.remove("query.release.table")
    steps = PAGE.split("## How a question becomes an answer")[1]
    assert firsts == sorted(firsts, key=lambda name: steps.index(f"`{name}`"))
    assert len(firsts) == 5
    assert taken.index("curator.ledger.Writer.append") < taken.index("core.exact.measure")
    # the charge and its totals before the data is read, the release after it
    assert taken[-1] == "curator.ledger.Writer.append"
    assert taken[-2] == "query.release.table"


def test_every_decision_has_its_number_and_a_line_in_the_index() -> None:
    index = (DOCS / "decisions" / "index.md").read_text()
    pages = sorted(path for path in (DOCS / "decisions").glob("*.md") if path.name != "index.md")
    listed = re.findall(r"^\| (\d+) \| \[.+?\]\((.+?)\) \| .+ \|$", index, re.M)
    assert [(int(number), name) for number, name in listed] == [
        (int(path.name[:4]), path.name) for path in pages
    ]
    for path in pages:
        assert re.match(rf"# {int(path.name[:4])}\. [A-Z]", path.read_text()), path.name
        assert "**Decision.**" in path.read_text(), path.name


def test_what_the_page_on_nist_rests_on_is_there() -> None:
    """Every hazard but one names tests, and every test that is named is a file."""
    page = (DOCS / "nist.md").read_text()
    rows = page.split("## Hazards")[1].splitlines()
    hazards = [line for line in rows if line.startswith("| ") and not line.endswith("| shown by |")]
    assert [int(n) for n in re.findall(r"^\| (\d+)\. ", "\n".join(hazards), re.M)] == list(range(1, 15))
    named = [re.findall(r"`(tests/[\w/]+\.py)`", line) for line in hazards]
    assert len(hazards) > 20
    assert [
        line for line, tests in zip(hazards, named, strict=True) if not tests and "not testable" not in line
    ] == []
    assert [path for tests in named for path in tests if not (DOCS.parent / path).is_file()] == []
