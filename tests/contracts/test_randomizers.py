"""The contract of a client randomizer, the same for all: what the one who is asked may rely on without
reading the code."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

from discreet import accounting, auditing
from discreet._errors import InvalidInput
from discreet._public import REPLACE
from discreet._registry import from_json, to_json
from discreet.accounting import NonPrivate
from discreet.local import ClientBudget, _base
from discreet.mechanisms.protocols import Randomizer
from discreet.sampling import Entropy, SeededEntropy

from .audit import LEVEL, CountingEntropy, through_json
from .randomizers import (
    CASES,
    RandomizerCase,
    assert_exactly_private,
    assert_statistically_private,
    frozen,
    largest_ratio,
    laws,
    within,
)

each_case = pytest.mark.parametrize("case", CASES, ids=[case.name for case in CASES])
each_exact = pytest.mark.parametrize(
    "case", [c for c in CASES if c.exact], ids=[c.name for c in CASES if c.exact]
)


def batch(case: RandomizerCase) -> Any:
    return case.batch if case.batch is not None else np.array(case.values)


@each_case
def test_it_is_a_randomizer(case: RandomizerCase) -> None:
    assert isinstance(case.randomizer, Randomizer)
    assert case.randomizer.event.neighbors == REPLACE
    assert accounting.from_json(through_json(case.randomizer.event.to_json())) == case.randomizer.event
    assert accounting.basic(case.randomizer.event).value <= float(case.randomizer.epsilon) * (1 + 1e-12)


@each_exact
def test_the_ratio_of_probabilities_over_all_reports_is_at_most_exp_epsilon_exactly(
    case: RandomizerCase,
) -> None:
    ratio = assert_exactly_private(laws(case), case.randomizer.epsilon)
    assert ratio <= case.randomizer.ratio
    assert within(case.randomizer.ratio, case.randomizer.epsilon)
    if case.tight:
        assert ratio == case.randomizer.ratio


TIGHT = [c for c in CASES if c.exact and c.tight and c.name != "design"]


@pytest.mark.parametrize("case", TIGHT, ids=lambda c: c.name)
def test_a_mutant_with_odds_a_hundredth_too_large_fails_the_check(
    case: RandomizerCase, monkeypatch: Any
) -> None:
    odds, share = _base.odds, _base.small_share
    monkeypatch.setattr(_base, "odds", lambda e, *places: ((w := odds(e, *places))[0] + w[0] // 100, w[1]))
    monkeypatch.setattr(_base, "small_share", lambda e, **bits: (q := share(e, **bits)) - q // 50)
    with pytest.raises(AssertionError, match="above exp"):
        assert_exactly_private(laws(case), case.randomizer.epsilon)


BY_NAME = {case.name: case for case in CASES}


def test_a_mutant_of_a_lottery_with_truths_a_hundredth_too_likely_fails_the_check(monkeypatch: Any) -> None:
    """The weights that are drawn from are changed behind the description: enumeration alone can notice."""
    case = BY_NAME["design"]
    weights = [np.diff([0, *ends]).tolist() for ends in case.randomizer._ends]

    def heavier(extra: int) -> property:
        rows = [[w * (100 + extra * (i == j)) for j, w in enumerate(row)] for i, row in enumerate(weights)]
        return property(lambda self: [list(accumulate(row)) for row in rows])

    monkeypatch.setattr(type(case.randomizer), "_ends", heavier(0))
    assert assert_exactly_private(laws(case), case.randomizer.epsilon) == case.randomizer.ratio
    monkeypatch.setattr(type(case.randomizer), "_ends", heavier(1))
    with pytest.raises(AssertionError, match="above exp"):
        assert_exactly_private(laws(case), case.randomizer.epsilon)


RUNS = 2_000_000


def test_laplace_noise_passes_the_statistical_check_and_a_mutant_with_a_scale_too_small_fails_it(
    monkeypatch: Any,
) -> None:
    """False alarms of the first part: 2.5e-12 (`LEVEL`).

    The mutant's scale is that of an epsilon three per cent
    larger.

    At two million reports an end what the limits show is 1.016 on average, with a standard deviation of
    0.0015: ten of them above the claim.
    """
    randomizer = BY_NAME["laplace"].randomizer
    assert_statistically_private(randomizer, RUNS, LEVEL)
    honest = randomizer.scale
    monkeypatch.setattr(type(randomizer), "scale", property(lambda self: honest * 100 / 103))
    with pytest.raises(AssertionError, match="above the claimed"):
        assert_statistically_private(randomizer, RUNS, LEVEL)


def test_every_case_has_a_mutant() -> None:
    assert {case.name for case in CASES} == {c.name for c in TIGHT} | {"design", "laplace"}


def test_the_check_notices_a_report_that_only_one_value_can_give(monkeypatch: Any) -> None:
    found = laws(CASES[0])
    del found[0][next(iter(found[0]))]
    with pytest.raises(AssertionError):
        largest_ratio(found)


@each_case
def test_a_description_rebuilds_the_randomizer_exactly(case: RandomizerCase) -> None:
    rebuilt = from_json(through_json(to_json(case.randomizer)))
    assert rebuilt == case.randomizer
    for value in case.values:
        first, again = (r.respond(value, entropy=SeededEntropy(3)) for r in (case.randomizer, rebuilt))
        assert frozen(first) == frozen(again)


@each_case
def test_a_report_is_plain_json(case: RandomizerCase) -> None:
    for value in case.values:
        report = case.randomizer.respond(value, entropy=SeededEntropy(2))
        assert json.loads(json.dumps(report)) == report


@each_case
def test_plain_reports_and_a_batch_give_the_same_estimate(case: RandomizerCase) -> None:
    reports = case.randomizer.respond(batch(case), entropy=SeededEntropy(4))
    first = case.randomizer.estimate(reports)
    again = case.randomizer.estimate(json.loads(json.dumps(list(reports))))
    assert repr(first.value) == repr(again.value)


@each_case
def test_seeded_randomness_marks_the_release_as_not_private(case: RandomizerCase) -> None:
    seeded = case.randomizer.estimate(case.randomizer.respond(batch(case), entropy=SeededEntropy(4)))
    assert not seeded.private
    assert isinstance(seeded.event, NonPrivate)
    real = case.randomizer.estimate(case.randomizer.respond(batch(case), entropy=Entropy()))
    assert real.private
    assert real.event == case.randomizer.event


@each_case
def test_a_wrong_value_of_one_person_is_charged_and_reported_as_the_fixed_public_value(
    case: RandomizerCase,
) -> None:
    """Whatever a device has, nothing but the noisy report depends on it: a refusal would be free."""
    for value in case.wrong:
        reports = []
        for one in (value, case.outside):
            device = ClientBudget(epsilon=case.randomizer.epsilon)
            reports.append(device.answer("q", case.randomizer, one, entropy=SeededEntropy(7)))
            assert device.remaining == 0
        assert frozen(reports[0]) == frozen(reports[1]), value
        if _base._array(value).ndim == 0:
            reports = [
                case.randomizer.respond(one, entropy=SeededEntropy(7)) for one in (value, case.outside)
            ]
            assert frozen(reports[0]) == frozen(reports[1]), value


@each_case
def test_wrong_values_among_many_are_refused_before_anything_is_drawn_and_are_not_repeated(
    case: RandomizerCase,
) -> None:
    batches = [[value, value] for value in case.wrong if _base._array([value, value]).ndim]
    assert len(batches) >= 2
    for values in batches:
        entropy = CountingEntropy()
        with pytest.raises(InvalidInput) as refusal:
            case.randomizer.respond(values, entropy=entropy)
        assert entropy.drawn == 0
        assert not any(word in str(refusal.value) for word in ("10000000000", "nan,", "inf,"))
    with pytest.raises(InvalidInput, match="entropy"):
        case.randomizer.respond(case.values[0], entropy=np.random.default_rng(0))


HOSTILE: list[Callable[[Any], Any]] = [
    lambda r: [],
    lambda r: "report",
    lambda r: None,
    lambda r: [*r, "x"],
    lambda r: [*r, None],
    lambda r: [*r, {}],
    lambda r: [*r, 10**40],
    lambda r: [*r, 2.5],
    lambda r: [*r, [[1]]],
    lambda r: [*r, True],
    lambda r: [*r, 1 << 62] if isinstance(r[0], int) else [*r, [1 << 62] * len(r[0])],
    lambda r: [*r, -(1 << 62) - 1] if isinstance(r[0], int) else [*r, [-5] * len(r[0])],
    lambda r: [*r, r[0][:-1]] if isinstance(r[0], list) else [*r, [r[0]]],
    lambda r: np.array(r, dtype=float),
]


@each_case
def test_forged_reports_are_refused(case: RandomizerCase) -> None:
    reports = list(case.randomizer.respond(batch(case), entropy=SeededEntropy(4)))
    for forge in HOSTILE:
        with pytest.raises(InvalidInput):
            case.randomizer.estimate(forge(reports))


@each_case
def test_the_error_is_positive_and_grows_with_confidence(case: RandomizerCase) -> None:
    release = case.randomizer.estimate(case.randomizer.respond(batch(case), entropy=SeededEntropy(4)))

    def flat(error: Any) -> list[float]:
        if isinstance(error, dict):
            error = list(error.values())
        return (
            [x for e in error for x in flat(e)]
            if isinstance(error, list | tuple)
            else np.ravel(error).tolist()
        )

    loose, usual, strict = (flat(release.error(c)) for c in (0.5, 0.95, 1 - 1e-9))
    assert all(0 < a <= b <= c for a, b, c in zip(loose, usual, strict, strict=True))


@each_case
def test_an_audit_of_the_real_draws_does_not_refute_the_claim(case: RandomizerCase) -> None:
    entropy, runs = SeededEntropy(5), 3000

    def label(report: Any) -> Any:
        if case.name == "laplace":
            return int(report > 0)
        return report[-1] if isinstance(report, list) and len(report) > 3 else frozen(report)

    here, there = (
        [label(report) for report in case.randomizer.respond([value] * runs, entropy=entropy)]
        for value in case.values[:2]
    )
    shown = max(
        auditing.epsilon_of_labels(a, b, delta=0.0, level=LEVEL) for a, b in ((here, there), (there, here))
    )
    assert shown <= case.randomizer.epsilon


def test_case_names_are_unique() -> None:
    assert len({case.name for case in CASES}) == len(CASES)
