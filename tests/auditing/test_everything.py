"""Everything we ship is audited, and what is known to be broken is caught, each by its name.

Every Mechanism and Interactive class of the package must have a case in tests/contracts, where it is audited
by hand-made labels. Here the tight ones are audited again by attacks that learn, and must show at least half
of what they claim.
"""

from __future__ import annotations

import importlib
import inspect
from typing import Any

import numpy as np
import pytest

from discreet import REPLACE, Categories, Public, auditing, sampling
from discreet.mechanisms import RandomizedResponse
from discreet.tables import Memory

from ..contracts.audit import answers, claim_of
from ..contracts.randomizers import CASES as RANDOMIZER_CASES
from ..contracts.test_mechanisms import CASES
from ..contracts.walker import classes, public_classes, runs_for_a_price

pytestmark = pytest.mark.usefixtures("runs_in_order")
SURE = 1 - 1e-9 / 20  # twenty audits of true claims, a false alarm in a billion
BY_NAME = {case.name: case for case in CASES}
TIGHT = {
    "count": 1000,
    "histogram, add_remove": 1200,
    "sum, add_remove": 1500,
    "group of three": 1500,
}  # runs
# What cannot be run a thousand times on two tables is audited by tests of its own: class -> where.
ELSEWHERE = {
    "discreet.learning.trials.TrainerTrials": (
        "tests.learning.test_trials",
        "test_a_search_over_trainers_shows_no_more_than_it_claims",
    ),
    "discreet.learning.training.trainer.Trainer": (
        "tests.auditing.test_training",
        "test_trainer_four_runs_show_at_least_60_percent_of_what_is_claimed_and_not_more_than_all",
    ),
}
HOW = """
{missing} run on data for a price, and nothing audits them. Add a Case (tests/contracts/case.py) to the list CASES of some
tests/contracts/cases_*.py, a new one if you like:

    Case(name="what it is", mechanism=..., source=<a table>, neighbor=<the neighbor that changes the output most>,
         outcome=lambda release: <one of a few labels that tells the two apart>, runs=2000)

(`questions=` for an Interactive, `claim=(epsilon, delta)` where the event has no pair of its own.) A class that takes too long to be run
so often gets an audit of its own and is listed in ELSEWHERE (tests/auditing/test_everything.py), by test module and test.
"""

# References without a guarantee claim nothing (their event is NonPrivate): what is tested is that the curator
# refuses them.
_REFUSED = (
    "tests.adaptive.test_leaderboard",
    "test_boards_without_a_guarantee_are_refused_on_protected_data",
)
ELSEWHERE |= {
    f"discreet.adaptive.reference.{name}": _REFUSED
    for name in ("Ladder", "ParameterFreeLadder", "PlainBoard")
}


def test_every_mechanism_and_every_interactive_one_in_the_package_has_an_audit() -> None:
    audited = {type(case.mechanism) for case in CASES}
    found = {f"{cls.__module__}.{cls.__qualname__}": cls for cls in classes()}
    missing = sorted(name for name, cls in found.items() if cls not in audited and name not in ELSEWHERE)
    assert not missing, HOW.format(missing=", ".join(missing))
    assert len(found) > 20


BASES = {
    "discreet.mechanisms.protocols.Randomizer",
    "discreet.local._base.LocalRandomizer",
    "discreet.local.oracles.FrequencyOracle",
}


def is_randomizer(cls: type) -> bool:
    """Whether a class runs on the client: it responds with an `entropy` given by name, and estimates.

    (Designs of randomized response act on arrays, inside others.)
    """
    names = set(dir(cls)) | set(getattr(cls, "__dataclass_fields__", {}))
    if inspect.isabstract(cls) or not {"epsilon", "respond", "estimate"} <= names:
        return False
    entropy = inspect.signature(cls.respond).parameters.get("entropy")
    return entropy is not None and entropy.kind is inspect.Parameter.KEYWORD_ONLY


def randomizers() -> dict[str, type]:
    """Every public client randomizer of the whole package."""
    named = {f"{cls.__module__}.{cls.__name__}": cls for cls in public_classes()}
    return {name: cls for name, cls in named.items() if name not in BASES and is_randomizer(cls)}


def without_a_case(found: dict[str, type]) -> list[str]:
    enumerated = {type(case.randomizer) for case in RANDOMIZER_CASES}
    return sorted(name for name, cls in found.items() if cls not in enumerated)


def test_every_client_randomizer_in_the_package_has_a_case_whose_law_is_enumerated_or_audited() -> None:
    found = randomizers()
    missing = without_a_case(found)
    assert not missing, (
        f"{missing} randomize on the client, and nothing checks them: add a RandomizerCase to "
        f"tests/contracts/randomizers.py"
    )
    assert len(found) >= 12


def test_a_client_randomizer_without_a_case_is_noticed() -> None:
    class Unchecked:
        epsilon = 1.0

        def respond(self, value: Any, /, *, entropy: Any) -> Any: ...

        def estimate(self, reports: Any, /) -> Any: ...

    assert is_randomizer(Unchecked)
    assert without_a_case({"Unchecked": Unchecked}) == ["Unchecked"]


def test_the_walker_knows_all_ways_to_run_for_a_price() -> None:
    for way in ({"__call__"}, {"start", "answer"}, {"start", "restore"}):
        body = dict.fromkeys({"public", "event", *way}, lambda *args: None)
        assert runs_for_a_price(type("Unheard", (), body))
        assert not runs_for_a_price(type("Free", (), {name: body[name] for name in way}))


@pytest.mark.parametrize("name", ELSEWHERE)
def test_an_audit_that_is_said_to_be_elsewhere_is_there(name: str) -> None:
    module, test = ELSEWHERE[name]
    assert name in {f"{cls.__module__}.{cls.__qualname__}" for cls in classes()}
    assert callable(getattr(importlib.import_module(module), test))


@pytest.mark.parametrize(
    "name", [*list(TIGHT)[:2], *(pytest.param(n, marks=pytest.mark.slow) for n in list(TIGHT)[2:])]
)
def test_a_learned_attack_shows_at_least_half_of_a_tight_claim_and_not_more_than_all(name: str) -> None:
    case, entropy, runs = BY_NAME[name], sampling.SeededEntropy(11), TIGHT[name]
    here, there = (
        [answers(case, source, entropy) for _ in range(runs)] for source in (case.source, case.neighbor)
    )
    claim = claim_of(case)
    assert not auditing.from_outputs(here, there, claim=claim, confidence=SURE).refuted
    assert auditing.from_outputs(here, there, claim=claim, confidence=0.95).epsilon >= claim[0] / 2


def test_randomized_response_of_one_person_is_shown_at_half_of_its_claim_or_more() -> None:
    public = Public(schema={"city": Categories(["bern", "rome"])}, neighbors=REPLACE, size=1)
    mechanism, entropy = (
        RandomizedResponse(public=public, column="city", epsilon=1),
        sampling.SeededEntropy(12),
    )
    here, there = (
        [mechanism(Memory({"city": [c]}, public), entropy=entropy).value.counts for _ in range(1000)]
        for c in ("bern", "rome")
    )
    assert not auditing.from_outputs(here, there, claim=1.0, confidence=SURE).refuted
    assert auditing.from_outputs(here, there, claim=1.0, confidence=0.95).epsilon >= 0.5


def draws(scale: Any, runs: int, seed: int, width: int = 1) -> Any:
    return sampling.discrete_laplace(scale, runs * width, sampling.SeededEntropy(seed)).reshape(runs, width)


def caught(first: Any, second: Any, epsilon: float = 1.0) -> auditing.Report:
    report = auditing.from_outputs(first.tolist(), second.tolist(), claim=epsilon, confidence=SURE)
    assert report.refuted, str(report)
    return report


RUNS = 6000


def test_honest_noise_is_not_caught() -> None:
    report = auditing.from_outputs(
        (draws(1, RUNS, 1) + 1).tolist(), draws(1, RUNS, 2).tolist(), claim=1.0, confidence=SURE
    )
    assert not report.refuted
    assert report.epsilon > 0.5


def test_noise_halved_is_caught() -> None:
    caught(draws(0.5, RUNS, 1) + 1, draws(0.5, RUNS, 2))


def test_clip_off_by_a_factor_of_two_is_caught() -> None:
    """Values are clipped to 10, noise is for 5."""
    value = min(12, 10)
    caught(draws(5, RUNS, 3) + value, draws(5, RUNS, 4))


def test_a_sum_without_clipping_is_caught() -> None:
    """Bounds of 0 to 5 were declared, and somebody has 40."""
    caught(draws(5, RUNS, 5) + 40, draws(5, RUNS, 6))


def test_one_draw_broadcast_to_all_groups_is_caught() -> None:
    counts = np.array([4, 2, 7])
    report = caught(counts + draws(1, RUNS, 7), counts - np.array([1, 0, 0]) + draws(1, RUNS, 8))
    assert "difference" in report.attack or "logistic" in report.attack or report.attack == "whole output"


def test_float_laplace_is_caught() -> None:
    rng = np.random.default_rng(9)
    found = auditing.floating_point_attack(
        lambda x: x + rng.laplace(), 1.0, 0.0, scale=1, claim=1.0, confidence=SURE, runs=1500
    )
    assert found.refuted


# Sparse vector as published, by the numbers of Lyu, Su & Li 2017 (Figure 1): epsilon for the threshold, noise
# of a query at epsilon 1 and c positives, and whether it stops after c. 1 is theirs, and right; 3 also
# releases the noisy number that
# passed.
VARIANTS = {
    1: (0.5, lambda c: 2 * c / 0.5, True),
    3: (0.5, lambda c: c / 0.5, True),
    4: (0.25, lambda c: 1 / 0.75, True),
    5: (0.5, lambda c: 0.0, False),
    6: (0.5, lambda c: 1 / 0.5, False),
}


def sparse_vector(variant: int, queries: Any, runs: int, seed: int, c: int = 1) -> tuple[Any, Any]:
    """(answers above the threshold 0, noisy numbers), for many runs at once; epsilon 1, sensitivity 1.

    After the stop nothing is above.
    """
    share, scale, stops = VARIANTS[variant]
    rng = np.random.default_rng((variant, seed))
    noisy = np.asarray(queries) + rng.laplace(scale=1.0, size=(runs, len(queries))) * scale(c)
    above = noisy >= rng.laplace(scale=1 / share, size=(runs, 1))
    if stops:
        above &= np.cumsum(above, axis=1) - above < c
    return above, noisy


def shown(variant: int, event: Any, first: Any, second: Any, runs: int, c: int = 1) -> float:
    """The epsilon that a fixed event proves, with 20 such tests at one false alarm in a billion."""
    hits, wrong = (
        int(event(*sparse_vector(variant, q, runs, s, c)).sum()) for s, q in enumerate((first, second))
    )
    return auditing.Guesses(hits=hits, first=runs, false_hits=wrong, second=runs).epsilon(confidence=SURE)


def test_sparse_vector_variant_3_that_releases_the_compared_number_is_caught() -> None:
    """Low numbers pass only a low threshold, under which six answers of 1 would have passed too."""
    first, second = [0] * 6 + [1], [1] * 6 + [0]

    def event(above: Any, noisy: Any) -> Any:
        return ~above[:, :6].any(axis=1) & above[:, 6] & (noisy[:, 6] <= 2)

    assert shown(3, event, first, second, 200_000) > 1.3


WAVES = [1, -1] * 150


def wave(above: Any, noisy: Any) -> Any:
    return above[:, 0::2].sum(axis=1) - above[:, 1::2].sum(axis=1) > 14


def test_sparse_vector_variant_4_whose_noise_forgets_the_number_of_positives_is_caught() -> None:
    assert shown(4, wave, WAVES, [0] * 300, 4000, c=50) > 1


def test_sparse_vector_variant_5_without_noise_on_the_answers_is_caught() -> None:
    def event(above: Any, noisy: Any) -> Any:
        return ~above[:, 0] & above[:, 1]

    assert shown(5, event, [0, 1], [1, 0], 4000) > 3
    assert shown(1, event, [0, 1], [1, 0], 4000) <= 1


def test_sparse_vector_variant_6_without_an_end_is_caught() -> None:
    assert shown(6, wave, WAVES, [0] * 300, 4000) > 1


@pytest.mark.parametrize("c", [1, 50])
def test_the_right_sparse_vector_withstands_the_same_events(c: int) -> None:
    assert shown(1, wave, WAVES, [0] * 300, 4000, c=c) <= 1
