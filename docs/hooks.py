"""What the site has beside the pages of this folder: README and CHANGELOG, the reference from docstrings, the
commands of the shell, and a menu in which new pages find their place by themselves."""

from __future__ import annotations

import json
import pkgutil
import re
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
# folder or pattern of names: title of its part of the menu; what matches nothing is a room's page
PARTS = (
    (r"index|tour|explain|promise|api|sharp-edges|not-here|never-run", "Start"),
    (r"tutorials/.*", "Tutorials"),
    (r"howto/.*", "How to"),
    (r"examples/.*", "Examples"),
    (r"course/.*", "Course"),
    (r"migrate-.*", "Coming from"),
    (r"reference/.*", "Reference"),
    (r"glossary|references|changelog|history-of-flaws|decisions/.*", "Words and decisions"),
)
IN_DEPTH = "In depth"
# in the order in which a newcomer reads them
FIRST = ("tour", "explain", "promise", "sharp-edges", "api", "tutorials/steward", "tutorials/analyst")
OUTSIDE = ("CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "LICENSE")


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages, and order all of them."""
    for path, text in generated().items():
        files.append(File.generated(config, path, content=text))
    config.nav = menu([file.src_uri for file in files.documentation_pages()])
    return files


def generated() -> dict[str, str]:
    """The pages that are not files of this folder, by name."""
    pages = {"index.md": in_site((ROOT / "README.md").read_text())}
    pages |= {name.lower(): in_site((ROOT / name).read_text()) for name in OUTSIDE if name.endswith(".md")}
    return pages | examples() | reference() | {"reference/commands.md": commands()}


def examples() -> dict[str, str]:
    """Return a page for each script of examples/ with its code and what one run of it printed, and a list."""
    pages, rows = {}, []
    for path in sorted((ROOT / "docs" / "notebooks").glob("*.ipynb")):
        cells = json.loads(path.read_text())["cells"]
        text = re.split(r"\s*\bRun(?: it)?(?: with)?:?\s+`?(?:python|pip)", "".join(cells[0]["source"]))[0]
        title = text.split("\n\n")[0].replace("\n", " ").strip()
        parts = [f"# {path.stem}\n\n{text}".strip()]
        parts.append(f"As a [notebook](../notebooks/{path.name}); as a script, `examples/{path.stem}.py`.")
        for cell in cells[1:]:
            source = "".join(cell["source"])
            parts.append(f"```python\n{source}\n```" if cell["cell_type"] == "code" else source)
            printed = "".join(line for out in cell.get("outputs", []) for line in out["text"]).strip("\n")
            parts += [f"```text\n{printed}\n```"] if printed else []
        pages[f"examples/{path.stem}.md"] = "\n\n".join(parts) + "\n"
        rows.append(f"- [{path.stem}]({path.stem}.md): {title}")
    intro = "# Examples\n\nScripts under 100 lines, each run by a test; here with what one run printed.\n\n"
    return {"examples/index.md": intro + "\n".join(rows) + "\n"} | pages


def in_site(text: str) -> str:
    """The text of a page of the project's root, with its links as the site has them."""
    text = re.sub(r"\]\(docs/", "](", text)
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
    parts: dict[str, list[str]] = {title: [] for _, title in PARTS[:4]} | {IN_DEPTH: []}
    parts |= {title: [] for _, title in PARTS[4:]}
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


def rooms() -> list[str]:
    """The rooms whose names are public: every package that lists what it offers."""
    top = import_module("discreet")
    names = [module.name for module in pkgutil.iter_modules(top.__path__) if module.ispkg]
    return sorted(
        name
        for name in names
        if name not in INNER and getattr(import_module(f"discreet.{name}"), "__all__", None)
    )


def reference() -> dict[str, str]:
    """One page for the names of `import discreet as dp`, and one for each room."""
    top = import_module("discreet")
    names = sorted(set(top.__all__) - set(rooms()), key=str.casefold)
    intro = "What `import discreet as dp` offers. What a script may rely on: [three tiers](../api.md).\n"
    pages = {"reference/discreet.md": _page("discreet", names, intro)}
    for room in rooms():
        module = import_module(f"discreet.{room}")
        text = f"{(module.__doc__ or '').split(chr(10) + chr(10))[0].strip()}\n".replace("<", "&lt;")
        pages[f"reference/{room}.md"] = _page(
            f"discreet.{room}", sorted(module.__all__, key=str.casefold), text
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
        "# Commands\n\nEvery command has `--help`; most have `--json`. Exit codes: [how "
        "to](../howto/exit-codes.md).\n"
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
