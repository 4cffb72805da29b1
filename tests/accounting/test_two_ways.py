"""Two certified ways to the same number: the integral along a line, and the lattice.

Their intervals must meet, or one of them is wrong.

`bounds` takes the better of the two, so a contradiction would not show there.
"""

from __future__ import annotations

import math
import random

import pytest

from discreet import accounting as acc
from discreet.accounting.normal import normal
from discreet.accounting.pld import rules
from discreet.accounting.pld import solve as solve_module


def intervals(event, delta):
    """For each direction the interval by the line, and that by the lattice, where the line is used at all."""
    for composition in rules.compositions(rules.merged(normal(event)), delta * 1e-8):
        line = solve_module.Solver(composition, delta)._interval_by_line(delta)
        if line is None or not 1e-3 <= line.high <= 500:
            continue
        lattice = solve_module.Solver(composition, delta)
        high = lattice._lattice_above(delta, delta, -1)
        lattice.line_interval = (delta, None)
        yield (line.low, line.high), (lattice.epsilon_below(delta, high), high)


def compared(seed, wanted):
    """Random sampled Gaussians over the whole range of the issue."""
    source, found = random.Random(seed), 0
    while found < wanted:
        rate, steps = 10 ** source.uniform(-6, 0), int(10 ** source.uniform(math.log10(64), 7))
        noise, delta = math.exp(source.uniform(math.log(0.3), math.log(1000))), 10 ** source.uniform(-15, -2)
        event = acc.Gaussian(noise_multiplier=noise).sampled(rate).repeated(steps)
        for line, lattice in intervals(event, delta):
            found += 1
            assert line[0] <= line[1]
            assert lattice[0] <= lattice[1]
            assert line[0] <= lattice[1], (rate, noise, steps, delta, line, lattice)
            assert lattice[0] <= line[1], (rate, noise, steps, delta, line, lattice)


def test_line_and_lattice_meet():
    compared(seed=1, wanted=12)


@pytest.mark.slow
def test_line_and_lattice_meet_five_hundred_times():
    compared(seed=2, wanted=500)


def test_the_comparison_has_teeth(monkeypatch):
    """A line that is one part in a thousand too low is seen."""
    solve = solve_module.ladder.solve

    def low(*given):
        found = solve(*given)
        return None if found is None else found._replace(low=found.low * 0.999, high=found.high * 0.999)

    monkeypatch.setattr(solve_module.ladder, "solve", low)
    with pytest.raises(AssertionError):
        compared(seed=1, wanted=12)
