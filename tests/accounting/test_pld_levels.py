"""Rare huge losses, a line for each level: against closed forms of one step, exact integrals of two, mpmath,
and one line for all."""

from __future__ import annotations

import itertools
import math
from functools import partial

import mpmath as mp
import numpy as np
import pytest

from discreet.accounting.pld import solve as solve_module
from discreet.accounting.pld.lattice import convolution, mesh
from discreet.accounting.pld.pairs import basic_pairs
from discreet.accounting.pld.pairs.basic_pairs import Nodes
from discreet.accounting.pld.pairs.families import SampledGaussian

from . import oracles
from .oracles import ladder
from .oracles import line as line_module
from .oracles.line import ALL, Aim, Cut, Level, StepMoments
from .test_pld_line import exact_moment


def lines(
    pair: SampledGaussian, times: int, epsilon: float, delta: float, levels: list[Level], tau: float = 1e-3
):
    """A line for each level, all with the same kernel."""
    steps = [(pair, times, 0.0)]
    moments = StepMoments([Cut(step, 1e-7 * delta) for step in steps])
    made = []
    for level in levels:
        aim = Aim(epsilon, math.log(delta), 10 / min(level.high, moments.largest_loss()), 14.0)
        shape = line_module.LineShape(tau, 1e-7 * delta, 1e8)
        made.append(line_module.Line(steps, partial(moments.logs, level=level), aim, shape, level))
        assert made[-1].usable
    return made


def one_level(pair: SampledGaussian, epsilon: float, level: Level) -> float:
    """The part of delta of one step that is made of losses of that level, in closed form."""
    edges = np.array([max(level.low, epsilon), max(level.high, epsilon)])
    return float(pair.measure(edges, np.array([epsilon])).excess[0]) if edges[0] < edges[1] else 0.0


CUTS = [[0.02, 0.3], [0.5], [0.01, 0.1, 1.0], [1.5]]


@pytest.mark.parametrize("cuts", CUTS)
@pytest.mark.parametrize(
    "pair", [SampledGaussian(0.7, 0.01), SampledGaussian(0.9, 0.3), SampledGaussian(1.1, 0.6, False)]
)
def test_every_level_of_one_step_encloses_its_closed_form(pair, cuts):
    epsilon = 0.2
    ends = [
        -math.inf,
        *(c for c in cuts if c < StepMoments([Cut((pair, 1, 0.0), 1e-12)]).largest_loss()),
        math.inf,
    ]
    levels = [Level(low, high) for low, high in itertools.pairwise(ends)]
    delta = basic_pairs.delta(pair, epsilon)[0]
    made = lines(pair, 1, epsilon, delta, levels, 3e-3)
    for line, level in zip(made, levels, strict=True):
        truth, found = one_level(pair, epsilon, level), line.read(epsilon)
        assert found.low <= truth * (1 + 1e-9) + 1e-15
        assert found.high >= truth * (1 - 1e-9) - 1e-15
        assert found.high - found.low < 6e-3 * delta
    whole = ladder.LineLadder(made).read(epsilon)
    assert whole.low <= delta * (1 + 1e-9)
    assert whole.high >= delta * (1 - 1e-9)
    assert whole.high - whole.low < 6e-3 * delta


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize(
    ("rate", "sigma", "times", "theta", "u"), [(1e-3, 0.7, 500, 9.0, 12.0), (0.05, 1.0, 30, 4.0, 8.0)]
)
def test_runs_with_a_jump_are_within_their_error_of_mpmath(rate, sigma, times, theta, u, precise):
    pair = SampledGaussian(sigma, rate)
    step = Cut((pair, times, 0.0), 1e-10, Level(0.2))
    law = step.tilted(theta, u, precise)
    assert law is not None
    assert step.far is not None
    whole = line_module.summed([step], [law], theta)
    value, error = line_module.powers([step], [law], whole, u / 5, 6)
    low, at, high = float(step.edges[0]), float(step.far[0]), float(step.far[-1])
    with mp.workdps(24):
        base = exact_moment(rate, sigma, True, complex(theta, 0), (low, at))
        for i in (0, 5):
            z = complex(theta, i * (u / 5))
            c, j = (exact_moment(rate, sigma, True, z, reach) / base for reach in ((low, at), (at, high)))
            true = (c + j) ** times - c**times
            got = mp.mpc(mp.mpf(str(value[i].real)), mp.mpf(str(value[i].imag)))
            assert abs(got - true) <= error[i]
            assert error[i] < 1e-9 * abs(true) + 1e-25
            if i == 0:
                moment = mp.log(true.real) + times * mp.log(base.real)
                assert moment <= whole.log_above([step]) <= moment + mp.mpf(10) ** -6
        assert abs(mp.log(base.real) * times - whole.log) <= whole.error


def test_a_level_whose_bound_takes_too_many_nodes_is_not_usable(monkeypatch):
    exponent, core = 12.5, Cut.core
    monkeypatch.setattr(Cut, "core", lambda self, t, *rest: None if t == exponent else core(self, t, *rest))
    steps = [(SampledGaussian(0.7, 1e-3), 500, 0.0)]
    moments, level = StepMoments([Cut(steps[0], 1e-12)]), Level(0.2, math.inf, exponent)
    aim, shape = Aim(1.0, math.log(1e-5), 3.0, 14.0), line_module.LineShape(1e-2, 1e-12, 1e8)
    logs = partial(moments.logs, level=level)
    assert line_module.Line(steps, logs, aim, shape, level._replace(exponent=12.0)).usable
    assert not line_module.Line(steps, logs, aim, shape, level).usable


def two_steps(rate: float, sigma: float, epsilon: float) -> mp.mpf:
    """delta of two steps, removing: the loss of the first integrated against the closed form of the
    second."""
    q, s, e = mp.mpf(rate), mp.mpf(sigma), mp.mpf(epsilon)

    def one(x):
        if x <= mp.log(1 - q):
            return 1 - mp.exp(x)
        at = s * s * mp.log((mp.exp(x) - 1 + q) / q) + mp.mpf(1) / 2
        plain, moved = mp.ncdf(-at / s), mp.ncdf((1 - at) / s)
        return (1 - q) * plain + q * moved - mp.exp(x) * plain

    def density(x):
        return ((1 - q) * mp.npdf(x, 0, s) + q * mp.npdf(x, 1, s)) * one(
            e - mp.log(1 - q + q * mp.exp((2 * x - 1) / (2 * s * s)))
        )

    kink = s * s * mp.log((mp.exp(e - mp.log(1 - q)) - 1 + q) / q) + mp.mpf(1) / 2
    return mp.quad(density, [*mp.linspace(-10 * s, kink, 9), *mp.linspace(kink, kink + 9 * s, 5)[1:]])


@pytest.mark.parametrize(
    ("rate", "sigma", "delta"),
    [
        (1.97e-4, 0.863, 1.6e-13),
        pytest.param(1.93e-6, 0.604, 1.1e-10, marks=pytest.mark.slow),
        pytest.param(0.02, 0.5, 1e-6, marks=pytest.mark.slow),
    ],
)
def test_two_steps_bracket_their_exact_curve(rate, sigma, delta):
    composition = solve_module.Composition(((SampledGaussian(sigma, rate), 2),))
    solver = solve_module.Solver(composition, delta)
    high = solver.epsilon_above(delta)
    low = solver.epsilon_below(delta, high)
    found = oracles.interval(composition, delta, ladder.EpsilonInterval(low, high, solver.theta))
    assert found is not None
    with mp.workdps(22):
        assert two_steps(rate, sigma, min(high, found.high)) <= delta
        assert two_steps(rate, sigma, max(low, found.low)) >= delta
    assert found.high <= found.low * (1 + 1e-4)
    assert high <= low * (1 + 1.5e-4)


def many(times: int = 200, epsilon: float = 0.9) -> tuple[SampledGaussian, line_module.Line, float]:
    """A composition for which one line does well, and its delta at epsilon."""
    pair = SampledGaussian(0.9, 0.01)
    k = convolution.cumulants([convolution.RepeatedPair(pair, times)], 1e-16)
    aim = Aim(epsilon, math.log(3e-4), mesh.tilt_for_epsilon(k, epsilon), 14.0)
    line = line_module.Line([(pair, times, 0.0)], k.logs, aim, line_module.LineShape(1e-3, 1e-12, 1e8))
    assert line.usable
    return pair, line, line.read(epsilon).high


LEVELS = [
    [Level(high=0.5), Level(0.5)],
    [Level(high=0.2), Level(0.2, 1.5), Level(1.5)],
    [Level(0.03, 0.8, 67.0), Level(0.8)],
]


@pytest.mark.parametrize("levels", LEVELS)
def test_levels_and_one_line_agree(levels):
    pair, line, delta = many()
    made = lines(pair, 200, 0.9, delta, levels)
    for epsilon in (0.85, 0.9, 1.0):
        one, all_ = line.read(epsilon), ladder.LineLadder(made).read(epsilon)
        assert one.low <= one.high <= one.low * (1 + 1e-4)
        assert all_.low <= one.high
        assert one.low <= all_.high <= one.high * (1 + 1e-3)
        assert all_.low >= one.low * (1 - 1e-3)


def test_a_forgotten_level_is_caught():
    """Mutant: one level is left out. The upper bound is then below the truth."""
    pair, line, delta = many()
    made = lines(pair, 200, 0.9, delta, LEVELS[1])
    for i in range(3):
        assert ladder.LineLadder(made[:i] + made[i + 1 :]).read(0.9).high < line.read(0.9).low


def test_forgotten_runs_below_the_first_level_are_caught():
    """Mutant: runs without a jump count for nothing, where they are not negligible."""
    pair, line, delta = many()
    (rest,) = lines(pair, 200, 0.9, delta, [Level(0.4, exponent=6.0)])
    assert rest.read(0.9).high > line.read(0.9).low
    rest.still = -math.inf
    assert rest.read(0.9).high < line.read(0.9).low


def test_levels_that_cannot_be_cut_are_refused():
    pair = SampledGaussian(0.9, 0.01)
    assert not Cut((pair, 3, 0.0), 1e-9, Level(-1.0)).sound
    assert not Cut((pair, 3, 0.0), 1e-9, Level(high=-1.0)).sound
    above = Cut((pair, 3, 0.0), 1e-9, Level(600.0))
    assert above.sound
    assert above.far is None
    assert (Cut((pair, 3, 0.0), 1e-9).edges == above.edges).all()
    assert Cut((pair, 3, 0.0), 1e-9, Level(high=0.1)).lost == 0
    moments = StepMoments([Cut((pair, 3, 0.0), 1e-9)])
    shape, aim = line_module.LineShape(1e-2, 1e-9, 1e8), Aim(0.5, math.log(1e-4), 3.0, 14.0)
    assert not line_module.Line([(pair, 3, 0.0)], moments.logs, aim, shape, Level(600.0)).usable


def test_neighboring_levels_share_their_edge_and_miss_nothing():
    pair = SampledGaussian(0.6, 1e-4)
    full, low, high = (Cut((pair, 9, 0.0), 1e-9, level) for level in (ALL, Level(high=0.3), Level(0.3)))
    assert low.edges[-1] == high.edges[-1] == high.far[0]
    assert low.edges[0] == high.edges[0] == full.edges[0]
    assert high.far[-1] == full.edges[-1]
    assert high.lost == full.lost > 0
    loss = line_module.loss(pair, low.edges[-1:])
    assert loss[0] == pytest.approx(0.3, rel=1e-9)


def test_lower_ends_hold_for_deltas_that_callers_round_up():
    pair = SampledGaussian(1.0, 0.01)
    solver = solve_module.Solver(solve_module.Composition(((pair, 1),)), 1e-6)
    high = solver.epsilon_above(1e-6)
    low = solver.epsilon_below(1e-6, high)
    assert basic_pairs.delta(pair, low)[0] >= 1e-6 * (1 + 0.5 * basic_pairs.ROUNDED)
    assert low < high < low * (1 + 1e-10)
    assert solver.epsilon_below(1e-6 * 1.01, high) < low


def test_a_tilt_that_is_asked_for_again_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """With hundreds of thousands of atoms, as of wide discrete Gaussians, each tilt takes milliseconds, and two of
    five were repetitions. Shifted losses have results of their own."""
    tilts: list[float] = []
    tilted = mesh.Cumulants._tilted
    monkeypatch.setattr(mesh.Cumulants, "_tilted", lambda k, t: (tilts.append(t), tilted(k, t))[1])
    nodes = Nodes(np.array([-1.0, 0.5, 2.0]), np.array([0.2, 0.3, 0.5]))
    k = mesh.Cumulants([(nodes, 3)])
    assert k(0.5) == k(0.5)
    assert tilts == [0.5]
    assert k.shifted([1.0])(0.5)[1] == pytest.approx(k(0.5)[1] - 3.0)
    assert tilts == [0.5, 0.5]
