"""`discreet demo`: runs the chapters of app/demo, one after the other.

`discreet version`: prints the version of the package.
"""

from __future__ import annotations

from pathlib import Path

import typer
from rich.console import Console

from ... import __version__
from ..._errors import InvalidInput
from ..demo import CHAPTERS
from ..demo import chapter as load_chapter
from ..demo.stage import Stage


def demo(
    chapter: list[str] = typer.Option(
        [], "--chapter", "-c", help="Only this chapter; may be given more than once."
    ),
    out: Path = typer.Option(Path("out/demo"), "--out", help="Folder for the pictures."),
    list_: bool = typer.Option(False, "--list", help="List the chapters and stop."),
) -> None:
    console = Console()
    if list_:
        for name in CHAPTERS:
            console.print(f"[bold]{name}[/]  {load_chapter(name).TITLE}", highlight=False)
        return
    unknown = [name for name in chapter if name not in CHAPTERS]
    if unknown:
        raise InvalidInput(f"there is no chapter {unknown[0]!r}. There are: {', '.join(CHAPTERS)}.")
    stage = Stage(console=console, out=out)
    for number, name in enumerate(chapter or CHAPTERS, start=1):
        stage.title(number, load_chapter(name).TITLE)
        load_chapter(name).run(stage)
    console.print()
    if not chapter:
        console.print("[dim]More, as short scripts and as notebooks: examples/ and docs/notebooks[/]")


def version() -> None:
    print(f"discreet {__version__}")
