"""The audit that the tabular learners pass refutes their mutants: less noise than was claimed, and rows that
are not scaled down."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest

from discreet import tabular
from discreet.accounting import Event
from discreet.mechanisms.protocols import Mechanism, Release, release

from ..contracts.audit import assert_private
from ..contracts.cases_tabular import ADDED, CASES, DESIGN

BY_NAME = {case.name: case for case in CASES}


@dataclass(frozen=True)
class Lying(Mechanism):
    """Runs `inside` and claims `event` for it."""

    inside: Any
    event: Event

    @property
    def public(self) -> Any:
        return self.inside.public

    def __call__(self, source: Any, /, *, entropy: Any) -> Release:
        return release(self.inside(source, entropy=entropy).value, event=self.event, entropy=entropy)


# each runs at twenty times the epsilon that it claims
@pytest.mark.parametrize("kind", [tabular.OutputPerturbation, tabular.ObjectivePerturbation])
def test_an_audit_refutes_a_twentieth_of_the_noise(kind: Any) -> None:
    honest = BY_NAME[f"tabular, {'output' if kind is tabular.OutputPerturbation else 'objective'}, pure"]
    mutant = kind(public=ADDED, design=DESIGN, epsilon=20.0, regularization=1.0)
    with pytest.raises(AssertionError, match="claimed"):
        assert_private(replace(honest, mechanism=Lying(mutant, honest.mechanism.event)))


def test_an_audit_refutes_second_moments_with_a_twentieth_of_the_noise() -> None:
    honest = BY_NAME["tabular, second moments, pure"]
    mutant = replace(honest.mechanism, epsilon=20.0)  # type: ignore[type-var]
    with pytest.raises(AssertionError, match="claimed"):
        assert_private(replace(honest, mechanism=Lying(mutant, honest.mechanism.event)))
