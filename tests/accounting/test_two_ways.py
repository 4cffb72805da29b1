"""Two certified ways to the same number: the integral along a line (an oracle), and the lattice.

Their intervals must meet, or one of them is wrong.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator

import pytest

from discreet import accounting as acc
from discreet.accounting import pld
from discreet.accounting.pld.lattice import convolution
from discreet.accounting.pld.solve import Solver

from . import oracles

Interval = tuple[float, float]


def intervals(event: acc.Event, delta: float) -> Iterator[tuple[Interval, Interval]]:
    """For each direction the interval by the line, and that by the lattice, where the line is not too long."""
    for composition in oracles.directions(event, delta):
        line = oracles.interval(composition, delta)
        if line is None or not 1e-3 <= line.high <= 500:
            continue
        lattice = Solver(composition, delta)
        high = lattice.epsilon_above(delta)
        yield (line.low, line.high), (lattice.epsilon_below(delta, high), high)


def random_runs(seed: int) -> Iterator[tuple[acc.Event, float]]:
    """Random sampled Gaussians over the whole range of the issue."""
    source = random.Random(seed)
    while True:
        rate, steps = 10 ** source.uniform(-6, 0), int(10 ** source.uniform(math.log10(64), 7))
        noise, delta = math.exp(source.uniform(math.log(0.3), math.log(1000))), 10 ** source.uniform(-15, -2)
        yield acc.Gaussian(noise_multiplier=noise).sampled(rate).repeated(steps), delta


def mixtures(seed: int) -> Iterator[tuple[acc.Event, float]]:
    """Random compositions of a few kinds of steps."""
    source = random.Random(seed)
    while True:
        kinds = [
            acc.Gaussian(noise_multiplier=math.exp(source.uniform(-0.7, 3)))
            .sampled(10 ** source.uniform(-4, 0))
            .repeated(int(10 ** source.uniform(0, 4)))
            for _ in range(source.randint(2, 4))
        ]
        yield acc.compose(kinds), 10 ** source.uniform(-12, -2)


def compared(runs: Iterator[tuple[acc.Event, float]], wanted: int) -> None:
    """Every lattice interval meets that of the line."""
    found = 0
    while found < wanted:
        event, delta = next(runs)
        for line, lattice in intervals(event, delta):
            found += 1
            assert line[0] <= line[1]
            assert lattice[0] <= lattice[1]
            assert line[0] <= lattice[1], (event, delta, line, lattice)
            assert lattice[0] <= line[1], (event, delta, line, lattice)


def test_line_and_lattice_meet():
    compared(random_runs(1), wanted=12)


@pytest.mark.slow
def test_line_and_lattice_meet_five_hundred_times():
    compared(random_runs(2), wanted=500)


def test_line_and_lattice_meet_for_mixtures():
    compared(mixtures(3), wanted=4)


@pytest.mark.slow
def test_line_and_lattice_meet_for_three_hundred_mixtures():
    compared(mixtures(4), wanted=300)


def test_the_comparison_has_teeth(monkeypatch):
    """A line that is one part in a thousand too low is seen, and so is a lattice that is too high below."""
    solve, below = oracles.ladder.solve, convolution.epsilon_below
    with monkeypatch.context() as patch:

        def low(*given):
            found = solve(*given)
            return None if found is None else found._replace(low=found.low * 0.999, high=found.high * 0.999)

        patch.setattr(oracles.ladder, "solve", low)
        with pytest.raises(AssertionError):
            compared(random_runs(1), wanted=12)
    monkeypatch.setattr(convolution, "epsilon_below", lambda *given: below(*given) * 1.001)
    with pytest.raises(AssertionError):
        compared(random_runs(1), wanted=12)


def test_prices_of_training_runs_are_within_1e_4_of_the_line():
    """What a run costs is above the lower end of the line, and at most 1e-4 above its upper end."""
    for rate, noise, steps, delta in (
        (256 / 60_000, 1.1, 14_063, 1e-5),
        (0.01, 4.0, 10_000, 1e-5),
        (0.02, 0.5, 200, 1e-5),
        (0.001, 0.7, 20_000, 1e-7),
    ):
        event = acc.Gaussian(noise_multiplier=noise).sampled(rate).repeated(steps)
        found = [oracles.interval(one, delta) for one in oracles.directions(event, delta)]
        low, high = pld.bounds(event, delta)
        line = max(one.low for one in found), max(one.high for one in found)
        assert line[0] <= high <= line[1] * (1 + 1e-4)
        assert line[0] * (1 - 1e-4) <= low <= line[1]
