"""Every page of the documentation does what it shows: doctests pass, Python blocks run in order, shell blocks of
tutorials and how-tos run in one folder, terms of the course lead somewhere."""

from __future__ import annotations

import contextlib
import doctest
import importlib
import io
import json
import os
import re
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from ..loops import for_each

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# pages whose examples run in the tests of their package
ELSEWHERE = {
    "accounting.md": "accounting/test_docs.py",
    "adaptive.md": "adaptive/test_docs.py",
    "auditing.md": "auditing/test_docs.py",
    "curator.md": "ground/test_readme.py",
    "databases.md": "tables/test_docs.py",
    "explain.md": "explaining/test_docs.py",
    "images.md": "learning/features/test_procedural.py",
    "learning.md": "learning/test_docs.py",
    "local.md": "local/test_docs.py",
    "mechanisms.md": "mechanisms/test_docs.py",
    "server.md": "web/test_docs.py",
    "sql.md": "ground/test_readme.py",
    "streaming.md": "streaming/test_docs.py",
    "tabular.md": "tabular/test_docs.py",
    "tour.md": "ground/test_readme.py",
}
# pages whose doctests run there, because they need half a minute of torch; the plain blocks run here
DOCTESTS_ELSEWHERE = {"migrate.md": "learning/test_docs.py", "workloads.md": "inference/test_docs.py"}


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(), re.S)


PAGES = sorted(
    page
    for page in DOCS.rglob("*.md")
    if (blocks(page, "python") or blocks(page, "sh")) and str(page.relative_to(DOCS)) not in ELSEWHERE
)
NAMES = [str(page.relative_to(DOCS)) for page in PAGES]


@pytest.mark.parametrize(("page", "test"), [*ELSEWHERE.items(), *DOCTESTS_ELSEWHERE.items()])
def test_a_page_that_is_not_run_here_is_run_by_the_test_that_is_named(page: str, test: str) -> None:
    assert (DOCS / page).is_file()
    assert page in (ROOT / "tests" / test).read_text()


@pytest.mark.parametrize("name", NAMES)
def test_the_python_of_a_page_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = DOCS / name
    if ">>>" in page.read_text() and name not in DOCTESTS_ELSEWHERE:
        with contextlib.redirect_stdout(io.StringIO()) as told:
            result = doctest.testfile(str(page), module_relative=False, optionflags=doctest.ELLIPSIS)
        assert result.failed == 0, told.getvalue()
    space: dict[str, object] = {"__name__": "page"}
    with contextlib.redirect_stdout(io.StringIO()):
        for block in blocks(page, "python"):
            if ">>>" not in block:
                exec(compile(block, name, "exec"), space)


SHELL = [name for name in NAMES if any("$ " in block for block in blocks(DOCS / name, "sh"))]


def script(page: Path) -> str:
    """The lines after "$ ", with the texts that they read from here-documents."""
    lines, inside = [], False
    for line in "\n".join(blocks(page, "sh")).splitlines():
        if inside:
            lines.append(line)
            inside = line != "END"
        elif line.startswith("$ "):
            lines.append(line[2:])
            inside = line.endswith("<<'END'")
    return "set -e\n" + "\n".join(lines)


@pytest.mark.slow
def test_the_shell_of_the_pages_runs(tmp_path: Path) -> None:
    """In one folder: what the steward's tutorial makes, the how-tos go on with."""
    paths = [sysconfig.get_path("scripts"), str(Path(sys.executable).parent), os.environ["PATH"]]
    env = os.environ | {"PATH": os.pathsep.join(paths)}
    assert "tutorials/steward.md" in SHELL
    for name in sorted(SHELL, key=lambda name: not name.startswith("tutorials")):
        done = subprocess.run(
            ["bash", "-c", script(DOCS / name)], cwd=tmp_path, env=env, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{name}: {done.stdout[-2000:]}{done.stderr[-2000:]}"


ROW = re.compile(r"^\| (.+?) \| `(.+?)`.*? \|(.*?)\| \[.*?\]\((.+?)\) \|$", re.M)
TERMS = ROW.findall((DOCS / "course/terms.md").read_text())


# What the five lectures name: their headings, algorithms, theorems and attacks, in their order.
LECTURES = {
    "Cummings, CIRM 2022": """
        personally identifiable information; epsilon; delta; neighboring databases; post-processing; composition;
        advanced composition; group privacy; Laplace mechanism; sensitivity; histogram; exponential mechanism; score
        function; generalization; robust; perfect; adaptive analysis; AboveNoisyThreshold; sparse vector; reusable
        holdout; Thresholdout; p-value; false discovery rate; alpha-investing; generalized alpha-investing; LORD;
        SAFFRON; candidacy; PAPRIKA; multiplicative sensitivity; changepoint detection; online optimization; partial
        sums; TBAP; tree-based aggregation; follow the approximate leader; DP-SGD; Rényi DP; trusted curator; local
        model; two coins; synthetic data; explaining DP; AOL""",
    "approximate DP and private ERM": """
        approximate DP; l1, l2; Gaussian mechanism; mean; group privacy; basic composition; advanced composition;
        leaderboard; empirical risk minimization; input perturbation; output perturbation; objective perturbation;
        gradient perturbation; DP-SGD; accuracy of private learning""",
    "Kamath": """
        Netflix; memorization; perplexity; canary; linkage; membership inference; Gaussian mechanism; clipping; lot;
        amplification by subsampling; moments accountant; ScatterNet; tanh against ReLU; hyperparameter tuning""",
    "Waterloo CS848": """
        k-anonymity; l-diversity; t-closeness; membership inference; encryption; secure computation; access control;
        background knowledge; deterministic algorithm; random sampling; randomized response; larger domains; Laplace
        mechanism; count; sum; exponential mechanism; distance score; Gaussian mechanism; noisy max; sparse vector;
        sample and aggregate; sequential composition; parallel composition; multiple queries; generalized sensitivity;
        constrained inference; isotonic regression; DP gradient descent; optimal composition; Rényi DP; computing on
        encrypted data; millionaires; desiderata; bad outcomes; nuclear option; Rényi divergence""",
    "PSL 2024": """
        DP-SGD; amplification by subsampling; advanced composition; privacy loss random variable; moments accountant;
        PATE; teachers; student; noisy arg-max; subsampling stability; perturbation stability; distance to
        instability; M_stab; propose-test-release; M_samp; n_T; AboveThreshold; sparse vector; M_svec; DP-SGD against
        PATE; strong composition; federated learning; stochastic gradient descent; private PAC learning; poisoned rows""",
}


@pytest.mark.parametrize("lecture", LECTURES)
def test_the_terms_of_the_lectures_are_all_there(lecture: str) -> None:
    names = " | ".join(term for term, *_ in TERMS).casefold()
    wanted = [" ".join(term.split()).casefold() for term in LECTURES[lecture].split(";")]
    assert [term for term in wanted if term not in names] == []
    assert len(wanted) > 10


def test_every_term_is_one_row_in_order() -> None:
    rows = [line for line in (DOCS / "course/terms.md").read_text().splitlines() if line.startswith("| ")]
    assert len(TERMS) == len(rows) - 1 > 100
    firsts = [term.casefold() for term, *_ in TERMS]
    assert len(firsts) == len(set(firsts))
    assert firsts == sorted(firsts), "in alphabetical order, so that one is seen in ten seconds"


@for_each(("term", "path", "command", "page"), TERMS, ids=[term for term, *_ in TERMS])
def test_a_term_leads_to_an_object_a_command_and_a_page(
    term: str, path: str, command: str, page: str
) -> None:
    from discreet.app.cli import COMMANDS

    thing = importlib.import_module("discreet")
    for name in path.split("."):
        thing = (
            getattr(thing, name)
            if hasattr(thing, name)
            else importlib.import_module(f"{thing.__name__}.{name}")
        )
    assert (DOCS / "course" / page.partition("#")[0]).resolve().is_file()
    if command.strip():
        assert command.strip(" `").split()[1] in COMMANDS


def test_every_picture_of_the_course_is_there_and_shown() -> None:
    from docs.pictures import FOLDER, PICTURES

    shown = {
        name
        for page in (DOCS / "course").glob("*.md")
        for name in re.findall(r"pictures/(.+?)\.svg", page.read_text())
    }
    assert shown == set(PICTURES) == {path.stem for path in FOLDER.glob("*.svg")}


class WithoutTorch:
    """A finder as on a machine without torch."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name=name)


def test_pictures_that_need_torch_say_so_and_leave_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from docs import pictures

    monkeypatch.setattr(pictures, "FOLDER", tmp_path)
    # not None in its place: scipy takes what is there for torch
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    monkeypatch.setattr(sys, "meta_path", [WithoutTorch(), *sys.meta_path])
    assert pictures.main(["training", "beliefs"]) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["beliefs.svg"]
    assert "training: needs torch; pip install '.[learn]'" in capsys.readouterr().err
    assert pictures.main(["beliefs"]) == 0
    for arguments, code, told in ((["--help"], 0, "reconstruction"), (["belief"], 2, "no picture 'belief'")):
        with pytest.raises(SystemExit) as ended:
            pictures.main(arguments)
        captured = capsys.readouterr()
        assert ended.value.code == code
        assert told in " ".join((captured.out + captured.err).split())


def test_every_page_of_exercises_has_its_notebook() -> None:
    """The cells are those of the page, in order, and hold what they printed when they were run."""
    from docs.notebooks import PAGES, sources, stored

    cells = sources()
    assert {path.stem for path in cells} == {page.stem for page in PAGES}
    assert cells
    for path, expected in cells.items():
        raw = json.loads(path.read_text())
        kept = [("".join(cell["source"]), cell["cell_type"] == "code") for cell in raw["cells"]]
        assert kept == expected, f"run: python -m docs.notebooks {path.stem}"
        assert len("".join(stored(path)).splitlines()) >= 3, path


EXERCISES = sorted((DOCS / "course").glob("exercises*.ipynb"))


@pytest.mark.parametrize("path", EXERCISES, ids=lambda path: path.stem)
def test_a_notebook_of_exercises_runs(path: Path) -> None:
    space: dict[str, object] = {}
    cells = json.loads(path.read_text())["cells"]
    codes = ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]
    assert len(codes) >= 7
    with contextlib.redirect_stdout(io.StringIO()):
        for code in codes:
            exec(compile(code, path.name, "exec"), space)


def test_every_exercise_has_its_answer_folded_and_prints_a_number() -> None:
    from docs.notebooks import from_page

    text = (DOCS / "course" / "exercises.md").read_text()
    exercises = re.split(r"^\*\*\d+\. ", text, flags=re.M)[1:]
    assert len(exercises) == 31
    named: set[int] = set()
    for exercise in exercises:
        of_chapters = re.search(r"\(chapters? ([\d and]+)\)", exercise)
        assert of_chapters, exercise[:40]
        named |= set(map(int, of_chapters[1].split(" and ")))
        question, answer = exercise.split('<details markdown="1"><summary>Answer</summary>\n\n```python\n')
        assert ">>>" not in question
        examples = doctest.DocTestParser().get_examples(answer.split("\n\n</details>\n")[0])
        assert any(re.search(r"\d", example.want) for example in examples), question[:40]
    assert named == set(range(1, 15)), "every chapter has an exercise"
    assert not any("details" in cell for cell, _ in from_page(text))


def test_chapters_of_the_course_have_their_two_proofs_and_a_picture_each() -> None:
    course = {page.stem: page.read_text() for page in (DOCS / "course").glob("*.md")}
    assert "**Proof.**" in course["mechanisms"]
    assert "**Proof of basic composition.**" in course["composition"]
    titles = []
    for name in ("definitions", "mechanisms", "composition", "learning", "accuracy"):
        for chapter in re.split(r"^## (?=\d)", course[name], flags=re.M)[1:]:
            titles.append(chapter.splitlines()[0])
            assert "](pictures/" in chapter, titles[-1]
            assert "*Measured*" in chapter or "*Computed*" in chapter, titles[-1]
            words = re.sub(r"```.*?```", "", chapter, flags=re.S).split()
            assert 600 <= len(words) <= 1200, f"{titles[-1]}: {len(words)} words beside its code"
    assert [int(title.split(".")[0]) for title in titles] == list(range(1, 15))
    assert all(f"{number}. [" in course["index"] for number in range(1, 15))


def test_every_benchmark_is_on_the_page_with_its_command_and_its_pictures_can_be_drawn() -> None:
    from benchmarks.__main__ import modules
    from docs.bench_pictures import PICTURES

    page = (DOCS / "benchmarks.md").read_text()
    assert set(re.findall(r"`python -m benchmarks (\w+)`", page)) == set(modules())
    assert set(re.findall(r"\(benchmarks/(\w+)\.svg\)", page)) == set(PICTURES)
    for draw in PICTURES.values():
        picture = draw()
        assert len(picture.series) >= 2
        assert all(len(one.y) >= 4 and min(one.y) > 0 for one in picture.series)


def test_prose_has_lines_of_at_most_110_characters() -> None:
    """Code of examples and tables have the lines that they need."""
    pages = [*ROOT.glob("*.md"), *DOCS.rglob("*.md")]
    assert len(pages) > 40
    for page in pages:
        prose = re.sub(r"^ *```.*?^ *```", "", page.read_text(), flags=re.S | re.M)
        for line in prose.splitlines():
            words = line.strip()
            # what is one command or one link cannot be broken
            single = words.startswith(("|", "<", "![", "`")) or line.startswith("    ")
            assert single or len(line) <= 110, f"{page.relative_to(ROOT)}: {line[:60]}"


def test_code_is_at_most_88_characters_wide() -> None:
    """It fits beside the menu of the site. What a session prints may be wider."""
    for page in [ROOT / "README.md", *DOCS.rglob("*.md")]:
        for language in ("python", "sh"):
            for line in "\n".join(blocks(page, language)).splitlines():
                printed = ">>>" in page.read_text() and not line.startswith((">>>", "..."))
                assert printed or len(line) <= 88, f"{page.relative_to(ROOT)}: {line[:60]}"


def test_every_cause_in_the_history_of_flaws_names_tests_that_are_there() -> None:
    causes = (DOCS / "history-of-flaws.md").read_text().split("\n## ")[1:]
    assert len(causes) >= 12
    for cause in causes:
        assert "**What excludes it now:**" in cause
        named = re.findall(r"`([\w/]+/test_\w+\.py)`", cause)
        assert len(named) >= 3, cause[:60]
        assert [name for name in named if not (ROOT / "tests" / name).is_file()] == []


def test_a_number_of_a_table_is_read_with_its_unit() -> None:
    from docs.bench_pictures import number

    assert number("8,045 ns") == 8045
    assert number("38.8 s (2.02530): 392x") == 38_800
    assert number("34 (0.946999) / 76 ms") == 34
    with pytest.raises(ValueError, match="no number"):
        number("not in time")
