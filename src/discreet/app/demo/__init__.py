"""The chapters of `discreet demo`, in the order in which they are told. A chapter is a module with TITLE and run(stage)."""

from types import ModuleType

from . import first_answers

CHAPTERS: dict[str, ModuleType] = {
    "first-answers": first_answers,
}
