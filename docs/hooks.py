"""What the site has beside the pages of this folder: README and CHANGELOG, notebooks and examples, the
reference from docstrings, the commands of the shell, and a menu in which new pages find their place by
themselves."""

from __future__ import annotations

import ast
import base64
import json
import pkgutil
import re
import textwrap
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.structure.files import File, InclusionLevel

ROOT = Path(__file__).parent.parent
NOTEBOOKS = ROOT / "docs" / "notebooks"
# patterns of names: title of its part of the menu, one for each kind of reader; anything else is in depth
PARTS = (
    (r"index|tour|promise|explain|for-review-boards", "Start"),
    (
        r"(tutorials|notebooks)/steward|notebooks/publisher|choosing|schema-file|curator|back-up|server|databases",
        "Steward",
    ),
    (r"(tutorials|notebooks)/analyst|sql|workloads|adaptive|streaming|synthetic", "Analyst"),
    (
        r"(tutorials|notebooks)/engineer|learning|tabular|images|mechanisms|accounting|auditing|local|migrate",
        "Engineer",
    ),
    (r"course/.*|lectures|notebooks/student", "Student"),
    (r"examples/.*", "Examples"),
    (r"reference/.*|api|exit-codes|glossary", "Reference"),
    (
        r"architecture|core|contributing|benchmarks|measurements|proofs/.*|decisions/.*|history-of-flaws|not-here"
        r"|never-run|nist|security|changelog",
        "Inside",
    ),
)
IN_DEPTH = "In depth"
# in the order in which a newcomer reads them; what is not named comes after, by its name
FIRST = (
    *("tour", "promise", "explain", "for-review-boards"),
    *(
        "tutorials/steward",
        "notebooks/steward",
        "choosing",
        "schema-file",
        "curator",
        "back-up",
        "server",
        "databases",
    ),
    *("tutorials/analyst", "notebooks/analyst", "sql", "workloads", "adaptive", "streaming", "synthetic"),
    *(
        "tutorials/engineer",
        "notebooks/engineer",
        "learning",
        "tabular",
        "images",
        "mechanisms",
        "accounting",
        "auditing",
        "local",
        "migrate",
    ),
    *("course/definitions", "course/mechanisms", "course/composition", "course/learning", "course/accuracy"),
    *("course/exercises", "course/terms", "lectures"),
    *("api", "reference/discreet", "reference/commands", "exit-codes", "glossary"),
    *("architecture", "contributing", "benchmarks", "nist", "history-of-flaws", "never-run", "not-here"),
)
# how much a hit counts in the search: where guide and reference say the same words, the guide is first
BOOSTS = {"Reference": 0.2, "Examples": 0.15, "Inside": 0.1}
GUIDE = 2.0
OUTSIDE = ("CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "LICENSE")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, and order all of them."""
    for path, text in generated().items():
        files.append(File.generated(config, path, content=text))
    for path, content in attached().items():
        # also scripts, although `exclude_docs` has *.py
        files.append(File.generated(config, path, content=content, inclusion=InclusionLevel.INCLUDED))
    config.nav = menu([file.src_uri for file in files.documentation_pages()])
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> None:
    """Say how much a hit in this page counts in the search."""
    page.meta.setdefault("search", {"boost": BOOSTS.get(part_of(page.file.src_uri), GUIDE)})


def generated() -> dict[str, str]:
    """The pages that are not files of this folder, by name."""
    pages = {"index.md": in_site((ROOT / "README.md").read_text())}
    pages |= {name.lower(): in_site((ROOT / name).read_text()) for name in OUTSIDE if name.endswith(".md")}
    return pages | notebooks() | examples() | reference() | {"reference/commands.md": commands()}


def attached() -> dict[str, bytes]:
    """Return what generated pages show or link to: the pictures of notebooks and the scripts, by name."""
    scripts = {
        f"examples/{path.name}": path.read_bytes() for path in sorted((ROOT / "examples").glob("*.py"))
    }
    pictures = [_notebook(path)[1] for path in sorted(NOTEBOOKS.glob("*.ipynb"))]
    return scripts | {name: content for some in pictures for name, content in some.items()}


def examples() -> dict[str, str]:
    """Return a page for each script of examples/, with its docstring as prose and its code, and a list."""
    pages, rows = {}, []
    for path in sorted((ROOT / "examples").glob("*.py")):
        text = path.read_text()
        tree = ast.parse(text)
        words = re.split(r"\s*\bRun(?: it)?(?: with)?:?\s+`?(?:python|pip)", ast.get_docstring(tree) or "")[0]
        code = "\n".join(text.splitlines()[tree.body[0].end_lineno :]).strip("\n")
        run = f"Run it: `python examples/{path.name}` ([the script]({path.name}))."
        pages[f"examples/{path.stem}.md"] = f"# {path.stem}\n\n{words}\n\n{run}\n\n```python\n{code}\n```\n"
        title = words.split("\n\n")[0].replace("\n", " ").strip()
        rows.append(f"- [{path.stem}]({path.stem}.md): {title}")
    books = [f"- [{_title(page)}](../{name})" for name, page in notebooks().items()]
    parts = [
        "# Examples",
        "Notebooks, one for each kind of reader, with their tables and plots:",
        "\n".join(books),
    ]
    parts += ["Scripts under 100 lines, each run by a test:", "\n".join(rows)]
    return {"examples/index.md": "\n\n".join(parts) + "\n"} | pages


def notebooks() -> dict[str, str]:
    """Return a page for each notebook: its prose, its code, and what its last run showed."""
    paths = sorted(NOTEBOOKS.glob("*.ipynb"))
    return {f"notebooks/{path.stem}.md": _notebook(path)[0] for path in paths}


def _notebook(path: Path) -> tuple[str, dict[str, bytes]]:
    """Return the page of a notebook, and its pictures by their names in the site."""
    parts: list[str] = []
    pictures: dict[str, bytes] = {}
    for number, cell in enumerate(json.loads(path.read_text())["cells"]):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", source))
            continue
        parts.append(f"```python\n{source}\n```")
        for place, output in enumerate(cell["outputs"]):
            content = {kind: "".join(lines) for kind, lines in output.get("data", {}).items()}
            picture = f"pictures/{path.stem}-{number}-{place}"
            if "image/png" in content:
                pictures[f"notebooks/{picture}.png"] = base64.b64decode(content["image/png"])
                parts.append(f"![{_heading(parts)}]({picture}.png)")
            elif "image/svg+xml" in content:
                pictures[f"notebooks/{picture}.svg"] = content["image/svg+xml"].encode()
                parts.append(f"![{_heading(parts)}]({picture}.svg)")
            elif "text/html" in content:
                parts.append(_shown(content["text/html"]))
            else:
                printed = ("".join(output.get("text", "")) or content["text/plain"]).splitlines()
                lines = [part for line in printed for part in textwrap.wrap(line, 84) or [""]]
                parts.append("```text\n" + "\n".join(lines) + "\n```")
    title, _, rest = parts[0].partition("\n\n")
    parts[0] = f"{title}\n\nTo run it yourself: [the notebook]({path.name}).\n\n{rest}"
    return "\n\n".join(parts) + "\n", pictures


def _shown(html: str) -> str:
    """Return a piece of HTML as the site shows it; tables of pandas as close as answers have theirs."""
    html = re.sub(r"<style scoped>.*?</style>|\n\s*(?=\n)", "", html, flags=re.S)
    if 'class="dataframe"' in html:
        html = html.replace('<table border="1" class="dataframe">', "<table>")
        # the name of the index in the row of titles, and no row of its own for it
        names = r"<th></th>(.*?</tr>)\s*<tr>\s*<th>([^<]+)</th>(?:\s*<th></th>)+\s*</tr>(?=\s*</thead>)"
        html = re.sub(names, r"<th>\2</th>\1", html, flags=re.S)
        html = re.sub(r"<(t[hd])>", r'<\1 style="padding:2px 10px">', html)
    return f'<div style="border-left:3px solid #8fc1d6;padding-left:1em;overflow-x:auto">\n{html}\n</div>'


def _title(page: str) -> str:
    return page.partition("\n")[0].removeprefix("# ")


def _heading(parts: list[str]) -> str:
    """Return the last heading of a page so far, as the text for who cannot see the picture below it."""
    prose = re.sub(r"```.*?```", "", "\n".join(parts), flags=re.S)
    return str(re.findall(r"^#+ (.+)$", prose, re.M)[-1])


def in_site(text: str) -> str:
    """The text of a page of the project's root, with its links as the site has them."""
    text = re.sub(r"\]\(docs/", "](", text)
    text = re.sub(r"\]\((notebooks/\w+)\.ipynb\)", r"](\1.md)", text)
    for name in OUTSIDE:
        text = text.replace(f"]({name})", f"]({name.lower()})" if name.endswith(".md") else "](index.md)")
    return re.sub(r"\]\((?!https?:|#|mailto:)([^)#]*[^)#.md/])/?\)", _plain, text)


def _plain(match: re.Match[str]) -> str:
    """A link to a file that is not part of the site becomes one to the page itself, unless it is a
    picture."""
    target = match.group(1)
    kept = target.endswith((".md", ".png", ".svg", ".html")) or (ROOT / "docs" / target).is_file()
    return match.group(0) if kept else "](index.md)"


def menu(pages: list[str]) -> list[dict[str, Any]]:
    """All pages under the parts of the menu; a page's own heading is its title."""
    parts: dict[str, list[str]] = {title: [] for _, title in PARTS} | {IN_DEPTH: []}
    for page in sorted(pages, key=_place):
        parts[part_of(page)].append(page)
    return [{title: names} for title, names in parts.items() if names]


def _place(page: str) -> tuple[bool, int, str]:
    """The place in its part of the menu: an index first, then the pages in `FIRST`, then by name."""
    name = page.removesuffix(".md")
    return not page.endswith("index.md"), FIRST.index(name) if name in FIRST else len(FIRST), page


def part_of(page: str) -> str:
    """The part of the menu that a page belongs to."""
    name = page.removesuffix(".md")
    return next((title for pattern, title in PARTS if re.fullmatch(pattern, name)), IN_DEPTH)


# packages that offer nothing of their own to scripts: `dp` has what they are for
INNER = ("app", "session")


def packages() -> list[str]:
    """The packages whose names are public: every package that lists what it offers."""
    top = import_module("discreet")
    names = [module.name for module in pkgutil.iter_modules(top.__path__) if module.ispkg]
    return sorted(
        name
        for name in names
        if name not in INNER and getattr(import_module(f"discreet.{name}"), "__all__", None)
    )


def nested() -> list[str]:
    """The packages inside of those that list what they offer as well: `mechanisms.matrix`."""
    return sorted(
        f"{package}.{module.name}"
        for package in packages()
        for module in pkgutil.iter_modules(import_module(f"discreet.{package}").__path__)
        if module.ispkg and getattr(import_module(f"discreet.{package}.{module.name}"), "__all__", None)
    )


def reference() -> dict[str, str]:
    """One page for the names of `import discreet as dp`, and one for each package."""
    top = import_module("discreet")
    names = sorted(set(top.__all__) - set(packages()), key=str.casefold)
    intro = "What `import discreet as dp` offers. What a script may rely on: [three tiers](../api.md).\n"
    pages = {"reference/discreet.md": _page("discreet", names, intro)}
    for package in (*packages(), *nested()):
        module = import_module(f"discreet.{package}")
        text = f"{(module.__doc__ or '').split(chr(10) + chr(10))[0].strip()}\n".replace("<", "&lt;")
        pages[f"reference/{package}.md"] = _page(
            f"discreet.{package}", sorted(module.__all__, key=str.casefold), text
        )
    return pages


def _page(path: str, names: list[str], intro: str) -> str:
    return f"# {path}\n\n{intro}\n" + "\n\n".join(_entry(path, name) for name in names) + "\n"


def _entry(path: str, name: str) -> str:
    """One public name: its docstring by mkdocstrings, or what a constant is."""
    thing = getattr(import_module(path), name)
    if isinstance(thing, ModuleType):
        return f"::: {thing.__name__}"
    if getattr(thing, "__qualname__", None) == name and str(thing.__module__).startswith("discreet."):
        return f"::: {thing.__module__}.{name}"
    shown = repr(thing)
    return f"### {name}\n\n`{type(thing).__name__}`" + (f": `{shown}`" if len(shown) < 100 else "")


def commands() -> str:
    """Every command of the shell with its arguments and options."""
    from discreet.app.cli import COMMANDS, load

    parts = [
        "# Commands\n\nEvery command has `--help`; most have `--json`. Exit codes: [their "
        "meaning](../exit-codes.md).\n"
    ]
    for name in COMMANDS:
        parts += _command(load(name), f"discreet {name}", 2)
    return "\n".join(parts)


def _command(command: Any, title: str, level: int) -> list[str]:
    text = re.sub(r"\[/?[a-z ]*\]", "", command.help or "")
    first, *rest = [part for part in re.split(r"\n\s*\n", text) if part.strip()] or [""]
    parts = [f"{'#' * level} {title}\n\n{' '.join(first.split())}\n"]
    for part in rest:
        lines = [line.strip() for line in part.splitlines()]
        code = all(line.startswith("discreet ") for line in lines)
        parts.append("```sh\n" + "\n".join(lines) + "\n```\n" if code else " ".join(lines) + "\n")
    rows = [_option(option) for option in command.params if not getattr(option, "hidden", False)]
    if rows:
        parts.append("| option | what |\n|---|---|\n" + "\n".join(rows) + "\n")
    for name, inner in sorted(getattr(command, "commands", {}).items()):
        parts += _command(inner, f"{title} {name}", level + 1)
    return parts


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in (*option.opts, *getattr(option, "secondary_opts", ())))
    name = f"`{str(option.name).upper()}`" if option.param_type_name == "argument" else names
    default = option.default
    shown = (
        f" Default: `{default}`."
        if isinstance(default, int | float | str) and default not in (False, "")
        else ""
    )
    text = f"{' '.join((getattr(option, 'help', None) or '').split())}{shown}"
    return f"| {name} | {text.replace('|', '&#124;').replace('<', '&lt;')} |"
