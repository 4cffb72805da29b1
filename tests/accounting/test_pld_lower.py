"""Lower ends of delta never exceed the truth, also where nearly everything cancels: at an epsilon far below
the typical loss."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from discreet import REPLACE
from discreet import accounting as acc
from discreet.accounting import pld
from discreet.accounting.pld import rules, solve
from discreet.accounting.pld.lattice import convolution

mpmath = pytest.importorskip("mpmath")
mp, mpf = mpmath.mp, mpmath.mpf


def _two_outcomes(p: Any, q: Any, times: int, epsilon: float) -> Any:
    """delta of `times` draws that show one of two outcomes, in 60 digits."""
    total = mpf(0)
    for k in range(times + 1):
        apart = p[0] ** k * p[1] ** (times - k) - mp.exp(mpf(epsilon)) * q[0] ** k * q[1] ** (times - k)
        total += mp.binomial(times, k) * max(mpf(0), apart)
    return total


def _cases(count: int) -> list[tuple[acc.Event, float, Any]]:
    rng, cases = random.Random(4), []
    for _ in range(count):
        inner, rate = 10 ** rng.uniform(-4, -1), 10 ** rng.uniform(-5, -1)
        yes = 1 / (1 + mp.exp(-mpf(inner)))
        q, shown = (1 - yes, yes), (yes, 1 - yes)
        times = rng.choice([1, 2, 10, 60])
        p = tuple((1 - mpf(rate)) * b + mpf(rate) * a for a, b in zip(shown, q, strict=True))
        epsilon = rng.choice([0.0, 10 ** rng.uniform(-12, 0) * float(mp.log(p[0] / q[0]))])
        event = acc.PureDP(epsilon=inner).sampled(rate).repeated(times)
        cases.append(
            (event, epsilon, max(_two_outcomes(p, q, times, epsilon), _two_outcomes(q, p, times, epsilon)))
        )
    return cases


def test_lower_ends_of_delta_at_tiny_epsilons_are_below_the_truth() -> None:
    with mp.workdps(60):
        for event, epsilon, truth in _cases(25):
            low, high = pld.accountant.delta_bounds(event, epsilon)
            assert low <= truth <= high, (event, epsilon)
            assert low >= truth * (1 - mpf("1e-3"))


def test_fixed_size_samples_of_almost_nothing() -> None:
    with mp.workdps(60):
        for inner, sample in ((3.2827441582721326e-05, 3), (1e-6, 3), (8.3e-05, 9)):
            base = acc.PureDP(epsilon=inner, neighbors=REPLACE)
            event = acc.SampledWithoutReplacement(event=base, size=1000, sample=sample)
            truth = mpf(sample) / 1000 * mp.tanh(mpf(inner) / 2)
            low, high = pld.accountant.delta_bounds(event, 0.0)
            assert low <= truth <= high


def test_the_checks_notice_a_logarithm_that_loses_small_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """With numpy's complex log1p, which does; the first check also needs the allowance for rounding to go."""
    monkeypatch.setattr(convolution, "_complex_log1p", lambda z, unit: np.log1p(z))
    with pytest.raises(AssertionError):
        test_no_delta_is_claimed_beyond_the_largest_loss()
    read = convolution._read_lower
    monkeypatch.setattr(convolution, "_read_lower", lambda *given: read(*given[:-1], 0.0))
    with pytest.raises(AssertionError):
        test_fixed_size_samples_of_almost_nothing()


def test_no_delta_is_claimed_beyond_the_largest_loss() -> None:
    """When a unit is added the losses are at most 3.33 together. numpy's log1p loses small complex numbers,
    and what was left of a tiny gain, 1e-20 where the bound on its error was 1e-28, became a lower end of
    1."""
    one, five = (
        acc.RandomizedResponse(epsilon=0.17850358199018013).sampled(0.5),
        acc.RandomizedResponse(epsilon=3.0638483844441624, categories=3).sampled(0.5),
    )
    parts: dict[acc.Event, int] = {one: 1, five: 5}
    adding = rules.compositions(parts, 1e-40, 1)[1]
    assert sum(n * float(pair.nodes(1e-40).loss[-1]) for pair, n in adding.parts) < 3.33
    solver = solve.Solver(adding, solve.guess_delta(adding.parts, 5.11))
    assert solver.delta_below(5.11) == 0
    assert solver.delta_below(3.2) > 0


def test_a_window_that_merging_stretches_without_limit_is_not_computed() -> None:
    """10^20 steps would have taken 600 TiB; nothing is claimed from below then."""
    parts: dict[acc.Event, int] = {acc.Laplace(noise_multiplier=3e5): 10**12}
    solver = solve.Solver(rules.compositions(parts, 1e-14, 1)[0], 1e-6)
    assert solver.epsilon_below(1e-6, 20.0) == 0
    assert solver.delta_below(20.0) == 0


def test_a_sample_of_losses_that_no_float_holds_has_an_interval() -> None:
    """Every loss of the composition is above 708 but for a tiny probability, and no Q-mass is a float: the lower
    bound is 0."""
    inner = acc.DiscreteLaplace(scale=4.76534354935176, sensitivity=20).repeated(1000)
    low, high = acc.bounds(inner.sampled(1e-300), delta=4e-274)
    assert 0 <= low <= high


def test_a_sample_without_replacement_of_what_may_fail_attains_no_more_than_a_sample() -> None:
    """Sampled at rate 1/2, two tables are at a distance of 1/2 (1 + delta) at most, whatever the epsilon."""
    inner = acc.ApproximateDP(epsilon=6.0, delta=1e-9, neighbors=REPLACE)
    sampled = acc.SampledWithoutReplacement(event=inner, size=2, sample=1)
    low, high = acc.bounds(sampled, delta=0.51)
    assert low == 0.0 <= high


@pytest.mark.parametrize(
    "event",
    [
        acc.PureDP(epsilon=Fraction(1, 3)),
        acc.Laplace(noise_multiplier=3),
        acc.RandomizedResponse(epsilon=Fraction(1, 3), categories=4),
        acc.ExponentialMechanism(epsilon=Fraction(1, 3)),
    ],
    ids=lambda event: type(event).__name__,
)
def test_lower_pairs_have_parameters_that_are_rounded_down(event: Any) -> None:
    """They were those of the upper pairs, rounded up, and relied on slack elsewhere."""
    pairs = rules.pairs_of(event, 1e-12)
    losses = [
        [float(pair.nodes(1e-12).loss[-1]) for pair in side or ()] for side in (pairs.upper, pairs.lower)
    ]
    assert max(map(Fraction, losses[1])) <= Fraction(1, 3) <= min(map(Fraction, losses[0]))
