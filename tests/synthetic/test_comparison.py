"""The comparison with the data is marked as not private, and tells good copies from bad ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from discreet import InvalidInput, auditing
from discreet.sampling import SeededEntropy
from discreet.synthetic import compared
from discreet.synthetic.copy import SyntheticCopy
from discreet.synthetic.methods import method_for
from discreet.tables import Memory

from .test_methods import DOMAIN, PUBLIC, correlated


def copy_by(name: str, epsilon: float) -> SyntheticCopy:
    method = method_for(name, PUBLIC, DOMAIN, epsilon=epsilon, delta=1e-6)
    released = method(correlated(), entropy=SeededEntropy(1))
    return SyntheticCopy.of(released.value, released.event, rows=3000, seed=1)


def test_a_copy_that_knows_dependence_is_told_from_one_that_does_not() -> None:
    good = compared(copy_by("mst", 5.0), correlated(), target="q", rho=0.5)
    bad = compared(copy_by("independent", 5.0), correlated(), target="q")
    assert not good.private
    assert "NOT PRIVATE" in str(good)
    assert good.pairs[0] < 0.05 < bad.pairs[0]
    assert good.triples is not None
    assert good.triples[0] < 0.1
    assert good.accuracy is not None
    assert bad.accuracy is not None
    assert good.accuracy[0] > 0.95 > 0.6 > bad.accuracy[0]
    assert good.accuracy[1] == pytest.approx(1.0)
    assert good.direct is not None
    assert 0 < good.direct < 0.1
    assert bad.direct is None
    assert good.propensity < 0.01
    assert good.nearest[1] > 0.9 > bad.nearest[1]
    assert "no evidence of privacy" in str(good)


def test_what_cannot_be_compared_is_refused() -> None:
    copy = copy_by("independent", 1.0)
    with pytest.raises(InvalidInput, match="no column"):
        compared(copy, correlated(), target="z")
    with pytest.raises(InvalidInput, match="empty"):
        compared(copy, Memory(correlated()._table.slice(0, 0), PUBLIC))


def shown(method: Any, runs: int = 250) -> float:
    """The epsilon that an attack proves: was one odd row in the table? It sees all that a copy is made from, and
    adds up the noisy counts of the row's values."""
    random = np.random.default_rng(0)
    base = {n: random.choice(["a", "b"], 60).tolist() for n in ("p", "q", "r", "s")}
    guesses = []
    for k, rows in enumerate(({n: [*base[n], "c"] for n in base}, base)):
        source = Memory(rows, PUBLIC)
        tables = [method(source, entropy=SeededEntropy(1000 * k + i)).value.tables for i in range(runs)]
        guesses.append([sum(t.values[2] for t in released) >= 2 for released in tables])
    return max(auditing.epsilon_of_labels(a, b, delta=1e-6, level=1e-9) for a, b in (guesses, guesses[::-1]))


@pytest.mark.slow
def test_a_membership_attack_on_releases_shows_no_more_than_was_paid_and_less_noise_is_noticed() -> None:
    # A false alarm in a billion for each of the two directions.
    method = method_for("independent", PUBLIC, DOMAIN, epsilon=1, delta=1e-6)
    assert shown(method) <= 1
    assert shown(replace(method, rho=10_000 * method.rho)) > 1
