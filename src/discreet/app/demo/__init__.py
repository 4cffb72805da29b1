"""The chapters of `discreet demo`, in the order in which they are told. A chapter is a module with TITLE and run(stage)."""

from types import ModuleType

from . import composition, consistency, first_answers, one_budget

CHAPTERS: dict[str, ModuleType] = {
    "one-budget": one_budget,
    "first-answers": first_answers,
    "consistency": consistency,
    "composition": composition,
}
