"""The contract of a mechanism, the same for all: what a steward may rely on without reading the code.

Every Mechanism and Interactive class of the package has a case in some `cases_*.py` here, or an audit of its
own: one walker over all packages (`walker`, used by tests/auditing/test_everything.py) sees to it.
"""

from __future__ import annotations

import importlib
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from discreet import accounting
from discreet._errors import DescriptionError, Halted, PublicMismatch
from discreet._registry import from_json, to_json
from discreet.accounting import NonPrivate
from discreet.mechanisms.protocols import Interactive
from discreet.sampling import Entropy, SeededEntropy

from ..loops import for_each
from .audit import (
    CountingEntropy,
    Untouchable,
    answers,
    assert_private,
    claim_of,
    reach,
    runs_of,
    through_json,
)
from .case import Case

CASES: list[Case] = [
    case
    for path in sorted(Path(__file__).parent.glob("cases_*.py"))
    for case in importlib.import_module(f"{__package__}.{path.stem}").CASES
]

each_case = for_each("case", CASES, ids=[case.name for case in CASES])
each_interactive = for_each(
    "case", [c for c in CASES if isinstance(c.mechanism, Interactive)], ids=lambda case: case.name
)


def same(first: Any, second: Any) -> bool:
    """Equality of released values, whatever they are made of."""
    if isinstance(first, dict):
        return first.keys() == second.keys() and all(same(first[k], second[k]) for k in first)
    if isinstance(first, tuple | list):
        return len(first) == len(second) and all(map(same, first, second))
    if isinstance(first, np.ndarray):
        return bool(np.array_equal(first, second))
    return bool(first == second)


def flat(error: Any) -> list[float]:
    """All numbers of an error; one that is not known (an average of perhaps nobody) is without bound."""
    if error is None:
        return [math.inf]
    if isinstance(error, dict):
        return [x for value in error.values() for x in flat(value)]
    if isinstance(error, tuple | list):
        return [x for value in error for x in flat(value)]
    return [float(x) for x in np.ravel(np.asarray(error))]


def values(output: Any) -> Any:
    return [answer.value for answer in output] if isinstance(output, list) else output.value


@each_case
def test_the_price_is_known_hashable_and_has_a_description_before_data_is_read(case: Case) -> None:
    event = case.mechanism.event
    assert event.neighbors == case.mechanism.public.neighbors
    assert hash(event) == hash(case.mechanism.event)
    assert accounting.from_json(through_json(event.to_json())) == event
    assert not isinstance(event, NonPrivate)


@each_case
def test_the_neighbor_differs_from_the_source_in_data_only(case: Case) -> None:
    assert case.source.public == case.neighbor.public == case.mechanism.public


@each_case
def test_a_description_rebuilds_the_mechanism_exactly(case: Case) -> None:
    if not case.describable:
        with pytest.raises(DescriptionError):
            to_json(case.mechanism)
        return
    rebuilt = from_json(through_json(to_json(case.mechanism)))
    assert rebuilt == case.mechanism
    assert rebuilt.event == case.mechanism.event
    first = answers(case, case.source, SeededEntropy(3))
    again = answers(replace(case, mechanism=rebuilt), case.source, SeededEntropy(3))
    assert same(values(first), values(again))


@each_case
def test_a_source_with_other_public_facts_is_refused_and_nothing_is_read_or_drawn(case: Case) -> None:
    entropy = CountingEntropy()
    other = Untouchable(replace(case.mechanism.public, version="another"))
    run: Any = case.mechanism.start if isinstance(case.mechanism, Interactive) else case.mechanism
    with pytest.raises(PublicMismatch):
        run(other, entropy=entropy)
    assert entropy.drawn == 0


@each_interactive
def test_an_answer_from_a_source_with_other_public_facts_is_refused(case: Case) -> None:
    assert isinstance(case.mechanism, Interactive)
    entropy = CountingEntropy()
    state = case.mechanism.start(case.source, entropy=entropy)
    drawn = entropy.drawn
    other = Untouchable(replace(case.mechanism.public, version="another"))
    with pytest.raises(PublicMismatch):
        case.mechanism.answer(state, other, case.questions[0], entropy=entropy)  # type: ignore[arg-type]
    assert entropy.drawn == drawn


@each_case
def test_seeded_randomness_marks_the_release_as_not_private(case: Case) -> None:
    output = answers(case, case.source, SeededEntropy(4))
    for one in output if isinstance(output, list) else [output]:
        assert not one.private
        assert isinstance(one.event, NonPrivate)


@each_case
def test_randomness_of_the_operating_system_makes_a_private_release(case: Case) -> None:
    output = answers(case, case.source, Entropy())
    if isinstance(output, list):
        assert output
        assert all(one.private and not isinstance(one.event, NonPrivate) for one in output)
    else:
        assert output.private
        assert output.event == case.mechanism.event


@each_case
def test_the_error_is_positive_and_grows_with_confidence(case: Case) -> None:
    error = getattr(case.mechanism, "error", None)
    if error is None:
        output = answers(case, case.source, SeededEntropy(5))
        assert not isinstance(output, list)
        error = output.error
    loose, usual, strict = (flat(error(c)) for c in (0.5, 0.95, 1 - 1e-9))
    assert len(loose) == len(usual) == len(strict) > 0
    assert all(0 <= a <= b <= c and c > 0 for a, b, c in zip(loose, usual, strict, strict=True))


# Audited in `make test`: of every class the cases whose laws differ (noise, relation, way to choose); all the
# others are in `make test-all`. Every audit has enough runs to fail (`audit.least_runs`).
NOW = {
    *("count", "sum, replace", "histogram, add_remove", "gaussian histogram", "clamped", "sequential"),
    *("parallel, replace", "group of three", "input perturbation", "changepoint", "changepoint, ranks"),
    *("change watch", "paprika", "whitening, add_remove", "whitening, replace"),
    *("scaler, add_remove, nullable", "scaler, replace, not nullable"),
    *("GNMax, add_remove", "LNMax", "M_stab", "M_svec"),
    *("choice by exponential mechanism", "choice by laplace noise", "real scores"),
    *("median", "quartiles", "mean", "variance"),
    *("bounds by histogram", "mean inside found bounds"),
    *("proportion, trials known", "proportion, counts bought", "goodness of fit", "independence"),
    "two-sample mean, replace",
    *("private Benjamini-Hochberg", "continual count, tree", "continual count, Gaussian, square_root"),
    *("continual count, window", "online leader", "tabular, output, pure", "tabular, input, replace"),
    *("tabular, output, squared, replace", "tabular, objective, pure", "tabular, objective, strong, delta"),
    *("tabular, softmax", "tabular, second moments, pure", "tabular, naive Bayes", "tabular, k-means"),
    *("tabular, boosting", "tabular, tree", "tabular, regression tree", "tabular, random trials"),
    *("tabular, quantile bounds", "tabular, piped", "tabular, gradient"),
    *("randomized response", "above threshold", "sparse vector, monotone, with gap"),
    *("sparse vector, numeric", "redrawn sparse vector", "distance to instability, values differ"),
    *("propose, test, release", "smooth median, add_remove", "stable sparse vector"),
    *("sample and aggregate, mean", "sample and aggregate, trusted function"),
    *("subsample and aggregate with stability", "thresholdout, pure, a list of questions"),
    *("shaky ladder, add_remove", "sparse vector board, replace"),
    *("workload, four counts", "workload, prefix, replace", "workload, ranges, gaussian"),
}
# One run takes 10 ms and more: audits that can fail are in `make test-all`, and these are tried in `make test`.
TRIED_ELSEWHERE = {
    *("AIM", "CopyDistance", "Independent", "MST", "MWEM"),
    *("FormQuestion", "Query", "WorkloadQuery"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(c, id=c.name, marks=[pytest.mark.slow] * (c.name not in NOW)) for c in CASES]
)
def test_an_audit_does_not_refute_the_claim(case: Case) -> None:
    assert_private(case)


def test_every_class_is_audited_now_or_tried_elsewhere() -> None:
    assert {case.name for case in CASES} >= NOW
    now = {type(case.mechanism).__name__ for case in CASES if case.name in NOW}
    assert now | TRIED_ELSEWHERE == {type(case.mechanism).__name__ for case in CASES}
    assert not now & TRIED_ELSEWHERE


def test_every_audit_has_enough_runs_to_fail() -> None:
    """Without any noise the two tables are told apart in every run: no case may pass then."""
    for case in CASES:
        epsilon, delta = claim_of(case)
        assert reach(runs_of(case), delta) > 1.2 * epsilon, case.name


@each_case
def test_a_release_depends_on_randomness(case: Case) -> None:
    """What is released without noise is the same in all runs; a coin that falls 19 to 1 shows both sides."""
    first = values(answers(case, case.source, SeededEntropy(0)))
    others = (values(answers(case, case.source, SeededEntropy(seed))) for seed in range(1, 300))
    assert any(not same(first, other) for other in others)


@each_interactive
def test_an_interactive_mechanism_halts_for_good_and_its_state_can_be_stored(case: Case) -> None:
    mechanism = case.mechanism
    assert isinstance(mechanism, Interactive)
    entropy, twin = SeededEntropy(6), SeededEntropy(6)
    state = mechanism.start(case.source, entropy=entropy)
    stored = json.dumps(mechanism.start(case.source, entropy=twin))
    halted = False
    for question in case.questions:
        assert through_json(state) == json.loads(stored)
        try:
            state, answer = mechanism.answer(state, case.source, question, entropy=entropy)
        except Halted:
            halted = True
            break
        after, replayed = mechanism.answer(json.loads(stored), case.source, question, entropy=twin)
        stored = json.dumps(after)
        assert same(answer.value, replayed.value)
    assert halted, "give the case enough questions to make it halt"
    counting = CountingEntropy()
    for question in case.questions:
        with pytest.raises(Halted):
            mechanism.answer(state, case.source, question, entropy=counting)
    assert counting.drawn == 0


def test_case_names_are_unique() -> None:
    names = [case.name for case in CASES]
    assert len(set(names)) == len(names)
