"""A module is a concept that a newcomer looks for: of some size, and with a name of its own."""

import ast
from collections import defaultdict
from pathlib import Path

from .test_size import code_lines

SRC = Path(__file__).parents[2] / "src" / "discreet"
FILES = {path: path.relative_to(SRC).with_suffix("").parts for path in sorted(SRC.rglob("*.py"))}
# The same thing in several packages: a command or a page beside what it runs, and the kinds of one concept.
SAME = {
    "audit", "estimators", "leaderboard", "ledger", "losses", "means", "model_files", "plan", "planning", "policy",
    "trials",
}  # fmt: skip
LEAST, MOST = 60, 700


def importers() -> dict[tuple[str, ...], set[tuple[str, ...]]]:
    """Return for each module the modules that import it, or something from it."""
    modules = {parts[:-1] if parts[-1] == "__init__" else parts for parts in FILES.values()}
    found = defaultdict(set)
    for path, parts in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.ImportFrom) or not node.level:
                continue
            base = parts[: len(parts) - node.level] + tuple(node.module.split(".") if node.module else ())
            for alias in node.names:
                goal = (*base, alias.name) if (*base, alias.name) in modules else base
                found[goal].add(parts)
    return found


def test_a_file_name_stands_for_one_thing():
    places = defaultdict(list)
    for parts in FILES.values():
        places[parts[-1]].append("/".join(parts))
    twice = {name for name, where in places.items() if len(where) > 1} - {"__init__"}
    assert not twice - SAME, [places[name] for name in sorted(twice - SAME)]
    assert twice >= SAME, "a name of SAME that occurs once is taken out"


def test_small_modules_have_several_callers():
    """A module below 60 lines of code with one caller belongs to its caller. Commands and chapters are loaded
    by name, `discreet.leaderboard` and `accounting.amplification` by users, and `__main__` by `python -m discreet`."""
    callers = importers()
    small = [
        "/".join(parts)
        for path, parts in FILES.items()
        if parts[-1] not in {"__init__", "__main__"}
        and code_lines(path.read_text()) < LEAST
        and len(callers[parts]) < 2
        and parts[:2]
        not in {("app", "cli"), ("app", "demo"), ("leaderboard",), ("accounting", "amplification")}
    ]
    assert small == []


def test_no_module_is_longer_than_a_concept():
    long = {"/".join(parts): n for path, parts in FILES.items() if (n := code_lines(path.read_text())) > MOST}
    assert long == {}


def test_smoke_has_a_part_of_every_package():
    makefile = (SRC.parents[1] / "Makefile").read_text()
    listed = makefile.split("SMOKE :=")[1].split("\nsmoke:")[0].replace("\\", " ").split()
    tests = SRC.parents[1] / "tests"
    assert [name for name in listed if not (tests / name).exists()] == []
    packages = {parts[0] for parts in FILES.values() if len(parts) > 1 and parts[0] != "data"}
    assert packages <= {name.split("/")[0] for name in listed}
