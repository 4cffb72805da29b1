"""Defines pairs of mechanisms with discrete outcomes, as atoms of privacy loss: randomized response, discrete
Laplace and discrete Gaussian noise. U is the unit roundoff 2^-53."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from .arrays import U
from .basic_pairs import Atoms

# About the largest number of atoms of a discrete Laplace pair; where there are more, neighboring values are
# joined into blocks. Bounds time and memory; more atoms are tighter.
_ATOMS = 2**15


def randomized_response(epsilon: float, categories: int = 2) -> Atoms:
    """Return the atoms of the two answers whose probabilities the unit's value exchanges, and of all other
    answers together at loss 0 (Kairouz, Oh & Viswanath 2015 for two categories)."""
    others = categories - 2
    total = 1.0 + math.exp(-epsilon) * (categories - 1)
    loss, mass = (
        [-epsilon, 0.0, epsilon],
        [math.exp(-epsilon) / total, others * math.exp(-epsilon) / total, 1 / total],
    )
    if others == 0:
        return Atoms(np.array(loss[::2]), np.array(mass[::2]), (2 * epsilon, -epsilon), 8 * U * (1 + epsilon))
    return Atoms(np.array(loss), np.array(mass), (epsilon, -epsilon), 8 * U * (1 + epsilon))


def discrete_laplace(scale: Fraction, shift: int) -> tuple[Atoms, Atoms]:
    """Return an upper and a lower pair of discrete Laplace noise of this scale that is moved by `shift`.

    Losses are (shift - 2x)/scale at the noise x = 0..shift, where both ends also hold all noise beyond them.

    Many x are joined into blocks: for the upper pair a block is split between its two ends (connect the dots,
    `cells.upper`), for the lower pair it is merged. Without blocks both pairs are the same, and exact.
    """
    s = float(scale)
    r = math.exp(-1 / s)
    # P(noise = 0); P(noise = x) is that times r^|x|
    at_zero = -math.expm1(-1 / s) / (1 + r)
    block = max(1, math.ceil((shift - 1) / _ATOMS))
    start = np.arange(1, shift, block, dtype=np.float64)
    count = np.minimum(block, shift - start)
    p = at_zero * np.exp(-start / s) * (np.expm1(-count / s) / math.expm1(-1 / s))
    ends = np.array([1 / (1 + r), math.exp(-shift / s) / (1 + r)])
    error = 32 * U * (2 + shift / s)
    loss_error = 8 * U * shift / s
    # the loss of a merged block
    middle = (shift - 2 * start - count + 1) / s
    loss = np.concatenate(([shift / s], middle, [-shift / s]))[::-1]
    mass = np.concatenate((ends[:1], p, ends[1:]))[::-1]
    merged = Atoms(loss, mass, (2 / s, -shift / s) if block == 1 else None, error, loss_error)
    if block == 1:
        return merged, merged
    high, low = (shift - 2 * start) / s, (shift - 2 * (start + count - 1)) / s
    # the part of each block's mass that is put on its larger loss
    at_high = p * -np.expm1(low - middle) / np.maximum(-np.expm1(low - high), 1e-300)
    at_high = np.where(high > low, np.clip(at_high, 0.0, p), p)
    loss = np.concatenate(([shift / s], high, low, [-shift / s]))
    mass = np.concatenate((ends[:1], at_high * (1 + 1e-9), p - at_high, ends[1:]))
    order = np.argsort(loss, kind="stable")
    return Atoms(loss[order], mass[order], None, error, loss_error), merged


def discrete_gaussian(variance: Fraction, shift: int) -> Atoms:
    """Return the pair of discrete Gaussian noise that is moved by `shift`: losses (shift² - 2 shift x) / (2
    variance) at every integer x within 14 standard deviations; the mass beyond is below 1e-42."""
    v = float(variance)
    reach = math.ceil(14 * math.sqrt(v)) + 2
    x = np.arange(-reach, reach + 1, dtype=np.float64)
    mass = np.exp(-x * x / (2 * v))
    loss = (shift * shift - 2 * shift * x) / (2 * v)
    step = shift / v
    offset = float(loss[-1])
    return Atoms(
        loss[::-1],
        mass[::-1] / mass.sum(),
        (step, offset),
        16 * U * (100 + math.log2(len(x))),
        8 * U * abs(offset),
    )
