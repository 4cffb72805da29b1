"""Numbers with their sources. We may be pessimistic within a stated slack, never optimistic."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import pytest

from discreet import accounting as acc
from discreet.accounting import moments, pate, shuffling
from discreet.accounting.conversion import zcdp_to_epsilon_classic

from ..loops import for_each

CASES = tomllib.loads((Path(__file__).parent / "goldens.toml").read_text())["case"]


@for_each("case", CASES, ids=[case["id"] for case in CASES])
def test_golden(case: dict[str, Any]) -> None:
    event = acc.from_json(case["event"] | {})
    claimed = acc.epsilon(event, delta=case["delta"], accountant=case["accountant"])
    assert case["epsilon"] <= claimed <= case["epsilon"] * (1 + case["slack"])


def test_the_2016_method_gives_the_2016_number() -> None:
    assert round(moments.epsilon(0.01, 4.0, 10_000, 1e-5), 2) == 1.26  # Abadi et al. 2016, Figure 2


@pytest.mark.parametrize(("queries", "published"), [(100, 0.4513), (286, 0.5838), (1000, 0.8614)])
def test_pate_votes_of_230_in_250(queries: int, published: float) -> None:
    votes = [230, 20] + [0] * 8
    cost = pate.vote_cost([votes] * queries, 40.0)
    assert (
        round(cost.epsilon_for_steward(1e-5, classic=True), 4) == published
    )  # Papernot et al. 2018, by PEERS.md
    assert cost.epsilon_for_steward(1e-5) < published


def test_shuffling_closed_form() -> None:
    assert round(shuffling.closed_form(4.0, 100_000, 1e-6), 4) == 0.5378


def test_classic_concentrated_conversion() -> None:
    assert zcdp_to_epsilon_classic(0.5, 1e-6) == pytest.approx(0.5 + 2 * (0.5 * 13.815510557964274) ** 0.5)
