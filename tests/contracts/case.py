"""One case of the mechanism contract: a mechanism (or an interactive one) on a table, and a neighbor of that
table.

Every Mechanism and Interactive class must have at least one case in a `tests/contracts/cases_*.py` module, in
its list `CASES`; tests/contracts/test_mechanisms.py runs them all through the same suite.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from discreet.mechanisms.protocols import Interactive, Mechanism, Release
from discreet.tables import Source


@dataclass(frozen=True, kw_only=True)
class Case:
    name: str
    mechanism: Mechanism | Interactive
    source: Source
    neighbor: Source  # one unit added, removed, replaced or zeroed, as `mechanism.public.neighbors` says
    # output -> one of a FEW labels, chosen to tell the two tables apart
    outcome: Callable[[Release | list[Release]], Hashable]
    # for an Interactive: asked in this order until it halts; `outcome` then gets the list of answers
    questions: Sequence[Any] = ()
    # (epsilon, delta) to audit against; None: basic composition of the event
    claim: tuple[float, float] | None = None
    describable: bool = True  # False only where a Python callable is part of it
    # pairs of runs for the audit; fewer than it takes to refute a mechanism without noise become as many
    # (`audit.runs_of`): what costs more than a second is audited in `make test-all`
    runs: int = 0
