"""`make docs`: the pages of this folder, README and the reference as a site in site/, built offline.

Strict: a page that links to nothing, a name without a page and a page outside the menu are errors (exit code
1).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from . import bench_pictures

ROOT = Path(__file__).parent.parent
# not --quiet: that drops the warnings before --strict counts them
COMMAND = [sys.executable, "-m", "mkdocs", "build", "--strict", "--clean", "-f", str(ROOT / "mkdocs.yml")]


def pages() -> list[Path]:
    """All Markdown pages of the project."""
    return [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def broken_links(path: Path) -> list[str]:
    """Links of a page to files that are not there, or to headings that the file does not have."""
    broken = []
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    for target, anchor in re.findall(r"\]\((?!https?:|mailto:)([^)#\s]*)(#[^)\s]*)?\)", text):
        file = path.parent / target if target else path
        made = target.startswith("reference/") or "/reference/" in target
        if made or (target.endswith("commands.md") and not file.exists()):
            # made when the site is built, which checks it
            continue
        if not file.exists() or (anchor and file.suffix == ".md" and anchor[1:] not in headings(file)):
            broken.append(f"{path.relative_to(ROOT)}: {target}{anchor}")
    return broken


def headings(path: Path) -> set[str]:
    """The anchors of a page's headings."""
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
    plain = (re.sub(r"[^\w\s-]", "", title).strip().lower() for title in re.findall(r"^#+ (.+)$", text, re.M))
    return {re.sub(r"[-\s]+", "-", title) for title in plain}


def main() -> int:
    # from the tables of the pages as they are now
    bench_pictures.main()
    broken = [line for page in pages() for line in broken_links(page)]
    for line in broken:
        print(f"broken link in {line}")
    if broken:
        return 1
    # no advertisement between our own lines
    env = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(COMMAND, cwd=ROOT, env=env, stderr=subprocess.PIPE, text=True)
    print("".join(line for line in done.stderr.splitlines(True) if not line.startswith("INFO")), end="")
    if done.returncode == 0:
        print(
            f"{len(list((ROOT / 'site').rglob('*.html')))} pages in site/; as files they have no search: "
            f"python -m http.server -d site"
        )
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
