"""Lists the chapters of `discreet demo`, in the order in which they are shown.

A chapter is a module of this package with a TITLE and a function run(stage), which prints the chapter and
saves its pictures through a `stage.Stage`. The name of a chapter is that of its module with hyphens.
"""

from importlib import import_module
from types import ModuleType

CHAPTERS = ("one-budget", "first-answers", "attacks")


def chapter(name: str) -> ModuleType:
    """Return the module of a chapter. It is imported here and not above, because chapters need packages that
    are slow to load."""
    return import_module(f".{name.replace('-', '_')}", __name__)
