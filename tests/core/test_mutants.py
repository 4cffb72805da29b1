"""The list of mutants stays in step with the code; `python -m tests.core.mutants` runs them."""

from __future__ import annotations

from .mutants import MUTANTS, SOURCE, check


def test_each_mutant_is_another_text_that_stands_in_the_code_once() -> None:
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS) >= 60
    for mutant in MUTANTS:
        check(SOURCE, mutant)
        assert mutant.old != mutant.new
