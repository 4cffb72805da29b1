"""What stands beside the code for hosts and tools: workflows, forms, hooks, the citation, the addresses."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import discreet

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([a-z-]+):", MAKEFILE, re.M))
WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/workflows").glob("*.yml")
}
FORMS = {
    path.stem: yaml.safe_load(path.read_text()) for path in (ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")
}
# files that a host or a tool reads
READ_BY_OTHERS = [
    *(ROOT / ".github").rglob("*.yml"),
    *(
        ROOT / name
        for name in ("Dockerfile", "compose.yaml", "Caddyfile", "CITATION.cff", ".pre-commit-config.yaml")
    ),
]


def test_python_runs_the_package_like_the_command() -> None:
    run = [sys.executable, "-m", "discreet"]
    done = subprocess.run([*run, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"discreet {discreet.__version__}\n")
    done = subprocess.run([*run, "explain", "-1", "--json"], capture_output=True, text=True)
    assert done.returncode == 2, "the exit codes of the command"


@pytest.mark.parametrize("name", WORKFLOWS)
def test_a_workflow_only_calls_make(name: str) -> None:
    steps = [step for job in WORKFLOWS[name]["jobs"].values() for step in job["steps"]]
    commands = [step["run"] for step in steps if "run" in step]
    assert commands
    for command in commands:
        target = re.fullmatch(r"make ([a-z-]+) PYTHON=python[\d.]*", command)
        assert target is not None, command
        assert target[1] in TARGETS
    assert all(step.get("uses", "actions/").startswith("actions/") for step in steps)
    assert WORKFLOWS[name]["permissions"] == {"contents": "read"}


def test_workflows_try_every_python_that_is_promised() -> None:
    assert set(WORKFLOWS) == {"test", "lint", "docs", "wheel"}
    promised = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    matrix = WORKFLOWS["test"]["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert matrix == ["3.11", "3.12", "3.13", "3.14"]
    assert set(promised) <= set(matrix)
    (setup,) = [
        step["with"]["python-version"].split()
        for step in WORKFLOWS["wheel"]["jobs"]["wheel"]["steps"]
        if "setup-python" in step.get("uses", "")
    ]
    assert set(setup) == set(promised)
    smoke = WORKFLOWS["test"]["jobs"]["smoke"]
    assert smoke["strategy"]["matrix"]["system"] == ["macos-latest", "windows-latest"]
    assert smoke["steps"][-1]["run"].startswith("make smoke")


def test_the_demo_installs_the_package_alone() -> None:
    (recipe,) = re.findall(r"^\.venv-demo/\.installed:.*\n((?:\t.*\n)+)", MAKEFILE, re.M)
    (install,) = [line for line in recipe.splitlines() if "pip install" in line]
    assert re.search(r" -e \.$", install), "no extra, and the sources as they are"
    assert re.search(r"^demo: \.venv-demo/\.installed\n\t\.venv-demo/", MAKEFILE, re.M)


def test_every_environment_of_make_is_ignored_by_git_and_removed_by_clean() -> None:
    environments = {".venv", *re.findall(r"\.venv-[a-z]+", MAKEFILE)}
    assert len(environments) > 4
    (clean,) = re.findall(r"^clean:\n\t(.*)", MAKEFILE, re.M)
    assert environments <= set(clean.replace("$(VENV)", ".venv").split())
    assert {f"{name}/" for name in environments} <= set((ROOT / ".gitignore").read_text().split())


def test_hooks_are_local_and_call_make() -> None:
    repos = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repo["repo"] for repo in repos] == ["local"]
    for hook in repos[0]["hooks"]:
        assert hook["language"] == "system"
        assert hook["entry"].removeprefix("make ") in TARGETS


def test_a_form_asks_for_something_and_tells_where_a_privacy_flaw_goes() -> None:
    assert FORMS.pop("config") == {"blank_issues_enabled": False}
    assert set(FORMS) == {"bug", "privacy-flaw", "question"}
    for name, form in FORMS.items():
        assert {"name", "description", "body"} <= set(form), name
        fields = [field for field in form["body"] if field["type"] != "markdown"]
        assert fields, name
        ids = [field["id"] for field in fields]
        assert len(ids) == len(set(ids)), name
        assert all(field["attributes"]["label"] for field in fields), name
    for name in ("bug", "privacy-flaw"):
        assert "SECURITY.md" in FORMS[name]["body"][0]["attributes"]["value"]
    # the form is public: there is no field in which a flaw could be described
    assert not [field for field in FORMS["privacy-flaw"]["body"] if field["type"] == "textarea"]


def test_the_citation_is_that_of_the_package() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["cff-version"] == "1.2.0"
    assert {"message", "title", "authors"} <= set(citation)
    assert (citation["version"], citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert citation["keywords"] == PROJECT["keywords"]


def test_the_addresses_of_the_project_are_in_one_place() -> None:
    assert {"Homepage", "Documentation", "Source", "Issues"} == set(PROJECT["urls"])
    (host,) = {re.match(r"https://([^/]+)/", address)[1] for address in PROJECT["urls"].values()}  # type: ignore[index]
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "src").rglob("*.py")]
    assert len(pages) > 300
    assert [path.name for path in [*pages, *READ_BY_OTHERS] if host in path.read_text()] == []


@pytest.mark.parametrize("path", READ_BY_OTHERS, ids=lambda path: path.name)
def test_no_file_names_a_host_or_a_folder_of_a_machine(path: Path) -> None:
    text = path.read_text().replace("http://127.0.0.1:", "").replace("postgresql://discreet@postgres/", "")
    assert "://" not in text
    assert re.findall(r"(?:/home|/root|/Users|/work|/tmp)\b", text) == []
