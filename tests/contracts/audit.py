"""Can two tables be told apart better than claimed? A lower bound on epsilon from how often labels come up,
with a proved level.

The auditing package does the work (`auditing.epsilon_of_labels`); here is how a case of the contract is run and
labelled.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Hashable, Sequence
from functools import cache
from typing import Any, TypeGuard
from unittest import mock

import numpy as np

from discreet import accounting, auditing
from discreet._errors import Halted, Unsupported
from discreet.mechanisms.noise_scales import zcdp_delta
from discreet.mechanisms.protocols import Interactive, Release
from discreet.sampling import Entropy, SeededEntropy

from .case import Case

LEVEL = 1e-9 / 400  # per direction and case, so that up to 200 cases stay below 1e-9 together


_INTERACTIVE: dict[type, bool] = {}


def is_interactive(mechanism: Any) -> TypeGuard[Interactive]:
    """Whether the mechanism answers questions; looked up once per class, since audits ask thousands of times."""
    kind = type(mechanism)
    if kind not in _INTERACTIVE:
        _INTERACTIVE[kind] = isinstance(mechanism, Interactive)
    return _INTERACTIVE[kind]


def answers(case: Case, source: Any, entropy: Entropy) -> Release | list[Release]:
    """One run: the release, or all answers until the questions end or the mechanism halts."""
    if not is_interactive(case.mechanism):
        return case.mechanism(source, entropy=entropy)
    state = case.mechanism.start(source, entropy=entropy)
    given: list[Release] = []
    for question in case.questions:
        try:
            state, answer = case.mechanism.answer(state, source, question, entropy=entropy)
        except Halted:
            break
        given.append(answer)
    return given


def claim_of(case: Case) -> tuple[float, float]:
    """The claim to refute: the case's own, or the event's price by basic composition, else through zCDP at
    delta 0.05."""
    if case.claim is not None:
        return case.claim
    event = case.mechanism.event
    try:
        return tuple(accounting.basic(event))  # type: ignore[return-value]
    except Unsupported:
        rho, extra = accounting.zcdp(event)
    epsilon = next(e for e in (k / 50 for k in range(10**6)) if zcdp_delta(rho, e) <= 0.05)
    return epsilon, 0.05 + extra


def epsilon_lower_bound(
    first: Sequence[Hashable], second: Sequence[Hashable], delta: float, level: float = LEVEL
) -> float:
    """With probability 1 - level: no larger than any epsilon with P(first in S) <= e^epsilon P(second in S) +
    delta for all S.

    The runs are seeded, and in the order in which they were made, which depends on nothing: split by position, a
    mutant that is caught is caught each time.
    """
    with mock.patch("discreet.auditing.audit.fresh_order", np.arange):
        return auditing.epsilon_of_labels(first, second, delta=delta, level=level)


@cache
def reach(runs: int, delta: float) -> float:
    """The most that so many runs can show: the bound of a mechanism that tells the two tables apart always."""
    return epsilon_lower_bound([True] * runs, [False] * runs, delta)


@cache
def least_runs(epsilon: float, delta: float) -> int:
    """The fewest runs of an audit that can fail: without noise, they would show a quarter more than claimed."""
    fewest, enough = 8, 16
    while reach(enough, delta) <= 1.25 * epsilon:
        fewest, enough = enough, 2 * enough
    while enough - fewest > 1:
        middle = (fewest + enough) // 2
        fewest, enough = (fewest, middle) if reach(middle, delta) > 1.25 * epsilon else (middle, enough)
    return enough


def runs_of(case: Case) -> int:
    return max(case.runs, least_runs(*claim_of(case)))


def audit(case: Case, seed: int = 1, run: Callable[..., Any] = answers) -> float:
    """The larger of the two directions' lower bounds on epsilon."""
    entropy, runs = SeededEntropy(seed), runs_of(case)
    here = [case.outcome(run(case, case.source, entropy)) for _ in range(runs)]
    there = [case.outcome(run(case, case.neighbor, entropy)) for _ in range(runs)]
    delta = claim_of(case)[1]
    return max(epsilon_lower_bound(here, there, delta), epsilon_lower_bound(there, here, delta))


def assert_private(case: Case, seed: int = 1) -> None:
    """The one check that every mechanism passes and every mutant must fail."""
    found, claimed = audit(case, seed), claim_of(case)[0]
    assert found <= claimed, f"{case.name}: at least {found:.3f} shown, {claimed:.3f} claimed"


class CountingEntropy(SeededEntropy):
    """Counts how many bytes were drawn."""

    def __init__(self, seed: int = 0) -> None:
        self.drawn = 0
        super().__init__(seed)

    def _take(self, size: int) -> Any:
        self.drawn += size
        return super()._take(size)


class Untouchable:
    """A source that may be asked for its public facts and nothing else."""

    def __init__(self, public: Any) -> None:
        self.public = public

    def batches(self, columns: Sequence[str]) -> Any:
        raise AssertionError("data was read")


def through_json(value: Any) -> Any:
    return json.loads(json.dumps(value))
