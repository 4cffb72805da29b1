"""The chapters of `discreet demo`, in the order in which they are told.

A chapter is a module with TITLE and run(stage).
"""

from importlib import import_module
from types import ModuleType

CHAPTERS = (
    "one-budget",
    "first-answers",
    "consistency",
    "composition",
    "learning",
    "adaptive",
    "discoveries",
    "anonymity",
    "attacks",
    "models",
)

# What `discreet demo` tells by itself, in well under a minute; the others come with --all or by name.
SHORT = ("one-budget", "first-answers", "consistency", "composition", "anonymity", "attacks")


def chapter(name: str) -> ModuleType:
    """Return the module of a chapter, loaded when it is run: some need packages that are slow to load."""
    return import_module(f".{name.replace('-', '_')}", __name__)
