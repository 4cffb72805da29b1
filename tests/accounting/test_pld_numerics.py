"""What the certified bounds assume of floating point, measured; and the pieces of the method, each against an
exact counterpart."""

from __future__ import annotations

import math

import mpmath as mp
import numpy as np
import pytest
from scipy import fft, special

from discreet.accounting.pld import rules
from discreet.accounting.pld.lattice import convolution, mesh
from discreet.accounting.pld.lattice.convolution import LatticeMasses, LatticePairMasses, RepeatedPair
from discreet.accounting.pld.pairs import basic_pairs, families

from ..loops import for_each


def test_normal_tail_is_as_accurate_as_assumed():
    rng = np.random.default_rng(1)
    z = np.concatenate([rng.uniform(low, high, 150) for low, high in ((0, 1), (1, 8), (8, 20), (20, 37))])
    computed = special.ndtr(-z)
    with mp.workdps(40):
        for x, value in zip(z, computed, strict=True):
            exact = mp.erfc(mp.mpf(float(x)) / mp.sqrt(2)) / 2
            assert (
                abs(mp.mpf(float(value)) - exact)
                <= float(basic_pairs.tail_error(np.array([x]), np.array([value]))[0]) / 2
            )


@pytest.mark.parametrize("edges", [[-np.inf, -3.0, -0.1, 0.2, 5.0, np.inf], [4.0, 4.001, 9.0, 20.0]])
def test_interval_probabilities_are_within_their_error(edges):
    mass, error = basic_pairs.between(np.array(edges))
    with mp.workdps(40):
        for a, b, value, bound in zip(edges[:-1], edges[1:], mass, error, strict=True):
            exact = mp.ncdf(-mp.mpf(a)) - mp.ncdf(-mp.mpf(b))
            assert abs(exact - mp.mpf(float(value))) <= mp.mpf(float(bound))


def test_transform_error_is_below_the_bound():
    """Against the same transform in extended precision: the componentwise bound has a wide margin."""
    rng = np.random.default_rng(2)
    for size in (2**12, 3**4 * 5**2 * 2**3, 2**16):
        x = rng.random(size) * np.exp(-rng.random(size) * 30)
        exact = fft.rfft(x.astype(np.longdouble))
        seen = float(np.max(np.abs(fft.rfft(x) - exact)))
        assert seen <= convolution._ROUNDINGS_PER_LEVEL * basic_pairs.U * math.log2(size) * x.sum() / 4


def test_composition_equals_exact_convolution():
    """Powers of a small integer law in rational arithmetic, tilted or not, precise or not."""
    place, mass = np.array([-2, 0, 1, 5]), np.array([0.125, 0.5, 0.25, 0.125])
    exact = np.array([1.0])
    step = np.array([0.125, 0, 0.5, 0.25, 0, 0, 0, 0.125])
    for _ in range(7):
        exact = np.convolve(exact, step)
    for theta in (0.0, 0.7, -0.4):
        for precise in (False, True):
            found = convolution.compose([LatticeMasses(place, mass, 7)], theta, 1.0, 64, -14, precise)
            weight = exact * np.exp(theta * np.arange(-14, 36) - found.log_scale)
            assert np.max(np.abs(found.mass[:50] - weight)) <= found.error + 1e-15
            assert found.error < 1e-12


def test_composition_keeps_its_error_small_for_many_steps():
    """Ten million steps of a symmetric walk against the exact binomial in mpmath."""
    n = 10**7
    part = LatticeMasses(np.array([-1, 1]), np.array([0.5, 0.5]), n)
    found = convolution.compose([part], 0.0, 1.0, 2**16, -(2**15))
    assert found.error < 1e-8
    with mp.workdps(30):
        for k in (0, 2000, 10_000):
            exact = mp.binomial(n, (n + k) // 2) / mp.mpf(2) ** n
            assert abs(mp.mpf(float(found.mass[2**15 + k])) - exact) <= found.error


def powers(pairs, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Convolutions, by positive sums, of what pairs on 0, 1, ... have under P and under e^loss Q."""
    p, q = np.ones(1), np.ones(1)
    for part in pairs:
        for _ in range(part.times):
            p, q = np.convolve(p, part.mass), np.convolve(q, part.mass - part.gain)
    return np.pad(p, (0, size - len(p))), np.pad(q, (0, size - len(q)))


SPREAD = LatticePairMasses(np.arange(2), np.array([0.6, 0.4]), np.array([0.1, 0.2]), 60)
EQUAL = LatticePairMasses(np.arange(2), np.array([0.6, 0.4]), np.zeros(2), 60)
# negative gains: e^loss Q has a mass of more than one, and what was dropped before it grows 131 times
GROWING = LatticePairMasses(np.arange(1), np.ones(1), np.array([-0.05]), 100)
# e^loss Q is one point, whose transform nowhere fades
SHARP = LatticePairMasses(np.arange(2), np.array([0.5, 0.5]), np.array([0.5, -0.5]), 60)


@pytest.mark.parametrize("precise", [False, True])
@pytest.mark.parametrize("parts", [[EQUAL, GROWING], [GROWING, SPREAD], [SHARP], [SPREAD, SHARP, GROWING]])
def test_what_is_dropped_is_within_the_error(monkeypatch, parts, precise):
    """However much is dropped, of however many pairs."""
    p, q = powers(parts, 256)
    for negligible in (-80.0, -20.0, -8.0, -4.0):
        monkeypatch.setattr(convolution, "_NEGLIGIBLE", negligible)
        found = convolution.difference(parts, 0.0, 1.0, 256, 0, precise)
        assert np.max(np.abs(found.p.mass - p)) <= found.p.error + 1e-15
        assert np.max(np.abs(found.gain - (p - q))) <= found.gain_error + 1e-15 * (1 + q.max())
        one = convolution.compose([LatticeMasses(*part[:2], part.times) for part in parts], 0.0, 1.0, 256, 0)
        assert np.max(np.abs(one.mass - p)) <= one.error + 1e-15


def test_infinite_loss_of_some_step_is_less_likely_than_the_sum():
    """1 - (1 - p)^n, to the last digits for a tiny p, and 1 where every loss is infinite."""
    tail = basic_pairs.Atoms(np.array([0.0, 5.0]), np.array([0.5, 0.5]))
    plan = mesh.plan(convolution.cumulants([RepeatedPair(tail, 2)], 1e-9), 1.0)
    for cap, times in ((0.5, 3), (-1.0, 2), (4.999, 1000)):
        part = RepeatedPair(tail, times, 0.0, cap)
        law = basic_pairs.upper(tail, plan.mesh * convolution._knots(part, plan, 1e-9, mesh.COARSE))
        found = convolution.curve([part], plan, 1e-9).infinite
        with mp.workdps(40):
            exact = 1 - (1 - mp.mpf(law.infinite)) ** times
            assert exact <= found <= exact * (1 + mp.mpf(10) ** -11)


PAIRS = {
    "sampled-remove": families.SampledGaussian(1.1, 0.01, True),
    "sampled-add": families.SampledGaussian(1.1, 0.01, False),
    "gaussian": families.SampledGaussian(0.7, 1.0),
    "laplace": basic_pairs.laplace(0.8),
    "bounded-range": basic_pairs.bounded_range(0.8),
    "response": rules.randomized_response(0.8, 4),
    "mixed-remove": basic_pairs.PoissonSampledPair(basic_pairs.laplace(0.8), 0.1, True),
    "mixed-add": basic_pairs.PoissonSampledPair(basic_pairs.laplace(0.8), 0.1, False),
    "fixed-size": basic_pairs.FixedSizeSampledPair(families.SampledGaussian(0.9, 1.0), 0.2),
    "fixed-size-laplace": basic_pairs.FixedSizeSampledPair(basic_pairs.laplace(0.8), 0.2),
    "fixed-size-response": basic_pairs.FixedSizeSampledPair(rules.randomized_response(1.0, 5), 0.2),
    "discrete-gaussian": rules.discrete_gaussian(rules.Fraction(4), 1),
}


def curve(loss, mass, infinite, epsilon):
    return infinite + float(mass @ np.maximum(-np.expm1(epsilon - loss), 0.0))


@for_each("name", PAIRS)
def test_fine_laws_dominate_nothing_less_and_coarse_ones_dominate_fine_ones(name):
    """A coarser mesh is above a finer one, which is above the merged law: at every epsilon, not only at
    knots."""
    pair = PAIRS[name]
    fine, coarse = np.arange(-6000, 6001) * 1e-3, np.arange(-60, 61) * 0.1
    up_fine, up_coarse, low = (
        basic_pairs.upper(pair, fine),
        basic_pairs.upper(pair, coarse),
        basic_pairs.lower(pair, fine),
    )
    for epsilon in np.linspace(-3, 3, 61):
        above = curve(coarse, up_coarse.mass, up_coarse.infinite, epsilon)
        middle = curve(fine, up_fine.mass, up_fine.infinite, epsilon)
        below = float(np.maximum(low.p - math.exp(epsilon) * np.exp(-fine) * (low.p - low.gain), 0.0).sum())
        assert above >= middle - 1e-9  # what was rounded outwards
        assert middle >= below
        assert middle - below <= 2e-3
    assert up_fine.mass.sum() + up_fine.infinite == pytest.approx(1.0, abs=1e-9)
    assert low.p.sum() == pytest.approx(1.0, abs=1e-9)


def test_sampled_gaussian_meets_its_exact_curve_at_the_knots():
    pair = families.SampledGaussian(1.1, 0.01, True)
    knots = np.arange(-40, 400) * 0.01
    law = basic_pairs.upper(pair, knots)
    with mp.workdps(30):
        s, q = mp.mpf(1.1), mp.mpf(0.01)
        for epsilon in (0.05, 0.5, 1.5):
            x = s**2 * mp.log((mp.exp(epsilon) - 1 + q) / q) + mp.mpf(1) / 2
            exact = (1 - q - mp.exp(epsilon)) * mp.ncdf(-x / s) + q * mp.ncdf((1 - x) / s)
            found = curve(knots, law.mass, law.infinite, epsilon)
            assert exact <= found <= exact * (1 + mp.mpf(10) ** -6)


def test_sampling_any_pair_agrees_with_the_gaussian_formula():
    direct, general = (
        PAIRS["sampled-remove"],
        basic_pairs.PoissonSampledPair(families.SampledGaussian(1.1, 1.0), 0.01, True),
    )
    knots = np.arange(-30, 300) * 0.01
    assert np.allclose(
        basic_pairs.upper(direct, knots).mass, basic_pairs.upper(general, knots).mass, rtol=1e-9, atol=1e-15
    )


def test_fixed_size_sampling_has_the_amplified_curve():
    """delta'(log(1 + q (e^x - 1))) = q delta(x) (Balle, Barthe & Gaboardi 2018, Theorem 9)."""
    law = basic_pairs.upper(PAIRS["fixed-size"], np.arange(-4000, 6001) * 1e-3)
    for x in (0.1, 0.7, 2.0):
        outer = math.log1p(0.2 * math.expm1(x))
        assert curve(np.arange(-4000, 6001) * 1e-3, law.mass, law.infinite, outer) == pytest.approx(
            0.2 * families.gaussian_delta(1 / 0.9, x)[1], rel=1e-4
        )


def test_bounded_range_is_the_largest_two_point_curve():
    epsilon = 1.3
    knots = np.arange(-1400, 1401) * 1e-3
    law = basic_pairs.upper(basic_pairs.bounded_range(epsilon), knots)
    for x in (-0.5, 0.0, 0.4, 1.0):
        t = np.linspace(max(x, 0.0), epsilon, 4001)
        worst = np.max((math.exp(epsilon) - np.exp(t)) * -np.expm1(x - t)) / math.expm1(epsilon)
        if x < 0:
            worst = max(worst, -math.expm1(x))
        assert curve(knots, law.mass, law.infinite, x) == pytest.approx(worst, rel=2e-5)


def test_zcdp_atoms_lie_above_the_gaussian_and_on_their_own_curve():
    atoms, infinite = families.zcdp_atoms(0.125, 1e-12)
    for x in (-1.0, 0.0, 0.5, 1.7):
        found = curve(atoms.loss, atoms.mass, infinite, x)
        assert found >= families.gaussian_delta(0.5, x)[1] if x >= 0 else found >= -math.expm1(x)
    far = np.array([1.7])
    assert curve(atoms.loss, atoms.mass, infinite, 1.7) == pytest.approx(
        float(families.zcdp_curve(0.125, far)[0]), rel=1e-3
    )


def test_mass_is_never_lost_however_coarse_the_knots():
    for pair in PAIRS.values():
        for knots in (np.array([-0.01, 0.0, 0.02]), np.array([-2.0, 3.0])):
            law = basic_pairs.upper(pair, knots)
            assert law.mass.sum() + law.infinite >= 1 - 1e-15


@for_each("name", PAIRS)
def test_cells_with_finite_ends_hold_what_lies_between_them_and_nothing_else(name):
    edges = np.array([-np.inf, -0.7, -0.1, 0.0, 0.05, 1.1, np.inf])
    whole = PAIRS[name].measure(edges, np.zeros(6))
    assert whole.mass.sum() == pytest.approx(1.0, abs=1e-12)
    for i, j in ((0, 2), (1, 3), (3, 6), (4, 5)):
        part = PAIRS[name].measure(edges[i : j + 1], np.zeros(j - i))
        assert part.mass == pytest.approx(whole.mass[i:j], abs=1e-12)
        assert part.excess == pytest.approx(whole.excess[i:j], abs=1e-12)


def test_plan_windows_stay_affordable():
    for rate, sigma, steps in ((1e-6, 0.3, 10**7), (0.5, 1000.0, 10**7), (1e-3, 1.0, 1)):
        k = mesh.Cumulants([(families.SampledGaussian(sigma, rate).nodes(1e-20), steps)])
        for delta in (1e-2, 1e-15):
            assert mesh.narrowest(k, mesh.tilt_for_delta(k, delta)).points <= 2**22


def test_sums_of_exponentials_are_the_same_in_blocks_and_at_once() -> None:
    random = np.random.default_rng(3)
    t = np.concatenate([-np.geomspace(1e-3, 50, 20), np.geomspace(1e-3, 50, 21)])
    for size in (1, 7, 1000, 40_000):
        loss, log = np.sort(random.normal(size=size)), random.normal(size=size) * 30 - 50
        exponent = log + np.multiply.outer(t, loss)
        peak = exponent.max(axis=1)
        whole = peak + np.log(np.exp(exponent - peak[:, None]).sum(axis=1))
        assert np.array_equal(basic_pairs.log_sums(t, loss, log), whole)
