"""`make docs`: the Markdown pages of this folder as a small static site in site/, with every internal link
checked.

Exits with 1 if a page links to something that is not there.
"""

from __future__ import annotations

import re
import sys
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parent.parent
SITE = ROOT / "site"
FIRST = [
    "README.md",
    "docs/promise.md",
    "docs/sql.md",
    "docs/curator.md",
    "docs/mechanisms.md",
    "docs/inference.md",
]
FIRST += [
    "docs/learning.md",
    "docs/adaptive.md",
    "docs/streaming.md",
    "docs/local.md",
    "docs/auditing.md",
    "docs/accounting.md",
    "docs/api.md",
    "docs/pld.md",
    "docs/filters.md",
    "docs/sampling.md",
]

STYLE = """
body { font: 16px/1.55 system-ui, sans-serif; color: #1f2933; margin: 0; display: grid; grid-template-columns: 15rem minmax(0, 52rem); }
nav { padding: 2rem 1.5rem; border-right: 1px solid #e4e7eb; min-height: 100vh; box-sizing: border-box; }
nav a { display: block; color: #0b6e99; text-decoration: none; padding: .15rem 0; }
nav a.here { color: #1f2933; font-weight: 600; }
main { padding: 1.5rem 3rem 4rem; }
h1 { font-size: 1.9rem; line-height: 1.2; } h2 { margin-top: 2.2rem; }
code { background: #f3f5f7; padding: .1em .3em; border-radius: 3px; font-size: .9em; }
pre { background: #f3f5f7; padding: 1rem; overflow-x: auto; border-radius: 6px; } pre code { background: none; padding: 0; }
table { border-collapse: collapse; display: block; overflow-x: auto; } td, th { text-align: left; padding: .35rem .9rem .35rem 0; border-bottom: 1px solid #e4e7eb; vertical-align: top; }
@media (max-width: 60rem) { body { display: block; } nav { min-height: 0; border: 0; padding-bottom: 0; } main { padding: 1rem 1.5rem; } }
"""


def pages() -> list[Path]:
    """All pages, the important ones first."""
    found = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]
    order = {ROOT / name: place for place, name in enumerate(FIRST)}
    return sorted(found, key=lambda path: (order.get(path, len(FIRST)), "decisions" in path.parts, str(path)))


def heading(path: Path) -> str:
    """The text of a page's first heading, as the menu shows it."""
    match = re.search(r"^# (.+)$", path.read_text(), re.M)
    return match.group(1) if match else path.stem


def target(path: Path) -> str:
    """The name of a page's file in the site, which is flat."""
    return "index.html" if path.name == "README.md" and path.parent == ROOT else f"{path.stem}.html"


def render(path: Path, menu: list[tuple[Path, str]]) -> str:
    """One page as HTML, its links to other pages pointing to their HTML."""
    body = MarkdownIt("commonmark").enable("table").render(path.read_text())
    body = re.sub(r'href="(?!https?:|#)([^"#]+)\.md(#[^"]*)?"', lambda m: f'href="{link(path, m)}"', body)
    nav = "".join(
        f'<a href="{target(p)}"{" class=here" if p == path else ""}>{escape(title)}</a>' for p, title in menu
    )
    return (
        f"<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(heading(path))} - "
        f"discreet</title><style>{STYLE}</style><nav>{nav}</nav><main>{body}</main>"
    )


def link(path: Path, match: re.Match[str]) -> str:
    """The address in the site of a link to another Markdown page."""
    other = (path.parent / f"{match.group(1)}.md").resolve()
    return target(other) + (match.group(2) or "")


def broken_links(path: Path) -> list[str]:
    """Links of a page to files that are not there."""
    links = re.findall(r"\]\((?!https?:|#|mailto:)([^)#\s]+)", path.read_text())
    return [f"{path.relative_to(ROOT)}: {to}" for to in links if not (path.parent / to).exists()]


def main() -> int:
    menu = [(path, heading(path)) for path in pages()]
    SITE.mkdir(exist_ok=True)
    broken = []
    for path, _ in menu:
        broken += broken_links(path)
        (SITE / target(path)).write_text(render(path, menu))
    for line in broken:
        print(f"broken link in {line}")
    print(f"{len(menu)} pages in {SITE.relative_to(ROOT)}/, {len(broken)} broken links")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
