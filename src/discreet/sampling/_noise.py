"""Integer noise with weights exp(-a k² - b k): geometric, discrete Laplace and discrete Gaussian, by one engine.

Narrow laws are inverted with a table of all their values. Wide laws are cut into cells of 2**shift integers: the cell
comes from a table, the place in the cell is uniform, and a last coin, nearly always heads, makes up for the slope of
the weights inside the cell. No logarithm is taken, and a float only settles coins that are far from the edge.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _require
from . import _bounds
from ._entropy import Entropy
from ._table import Law, Table, Weights

Integers = npt.NDArray[Any]

_CHUNK = 1 << 13  # words handled at once: the buffers stay in the second-level cache
_PLACE_BITS = 31  # bits of a word that tell the place in a cell
_RESOLUTION = 6  # a wide law has between 2**6 and 2**7 cells per scale
_WIDE = 1 << _RESOLUTION


def geometric(x: Any, n: int, entropy: Entropy) -> Integers:
    """`n` draws of the number of failures before a success of probability 1 - exp(-x): P(G >= k) = exp(-k x).

    Guarantee: independent, with exactly this law, for every rational x > 0.
    Proof:     P(G = k) is proportional to exp(-k x); see `_Wide` and `_Narrow`.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> bool((geometric(1, 5, SeededEntropy(1)) >= 0).all())
    True
    """
    rate = _positive(x, "x")
    _require.integer(n=n, at_least=0)
    return _draw(_Shape(Fraction(0), rate, signed=False), int(n), entropy)


def discrete_laplace(scale: Any, n: int, entropy: Entropy) -> Integers:
    """`n` draws with P(X = k) proportional to exp(-|k| / scale) on all integers.

    Guarantee: independent, with exactly this law, for every rational scale > 0 (a float is taken at its binary value).
    Proof:     see `_Wide` (scale >= 64) and `_Narrow`.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> discrete_laplace(10, 4, SeededEntropy(1)).dtype
    dtype('int64')
    """
    rate = 1 / _positive(scale, "scale")
    _require.integer(n=n, at_least=0)
    return _draw(_Shape(Fraction(0), rate, signed=True), int(n), entropy)


def discrete_gaussian(
    sigma: Any = None, n: int = 1, entropy: Entropy | None = None, *, sigma_squared: Any = None
) -> Integers:
    """`n` draws with P(X = k) proportional to exp(-k² / (2 sigma²)) on all integers.

    Give `sigma`, or `sigma_squared` where the variance parameter is rational and its root is not.

    Guarantee: independent, with exactly this law (Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Definition 1),
               for every rational sigma² > 0 (a float is taken at its binary value).
    Proof:     see `_Wide` (sigma >= 64) and `_Narrow`.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> len(discrete_gaussian(sigma_squared=2, n=3, entropy=SeededEntropy(1)))
    3
    """
    if (sigma is None) == (sigma_squared is None):
        raise _require.fail("sigma", sigma, "given, or else sigma_squared, and not both")
    if sigma_squared is None:
        variance = _positive(sigma, "sigma") ** 2
    else:
        variance = _positive(sigma_squared, "sigma_squared")
    _require.integer(n=n, at_least=0)
    if entropy is None:
        raise _require.fail("entropy", entropy, "a stream of random bits")
    return _draw(_Shape(1 / (2 * variance), Fraction(0), signed=True), int(n), entropy)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Weights exp(-(square k² + linear k)) for k = 0, 1, 2, ..., mirrored to the negative integers if `signed`."""

    square: Fraction
    linear: Fraction
    signed: bool

    def cost(self, k: int) -> Fraction:
        return (self.square * k + self.linear) * k

    @property
    def scale(self) -> int:
        """About how far the weights reach, rounded down."""
        if self.square:
            return isqrt(int(1 / (2 * self.square)))
        return int(1 / self.linear)


def _draw(shape: _Shape, n: int, entropy: Entropy) -> Integers:
    sampler: _Wide | _Narrow = _wide(shape) if shape.scale >= _WIDE else _narrow(shape)
    return sampler.draw(n, entropy)


def _ladder(shape: _Shape, step: int, mirrored: bool) -> Law:
    """The weights at k = 0, step, 2 step, ...; each k > 0 twice in a row if `mirrored`.

    Proof: f(j+1) = f(j) r(j) and r(j+1) = r(j) c with r(0) = exp(-(square step² + linear step)), c = exp(-2 square
           step²); products of intervals in [0, 1] are rounded outwards. r does not increase, so what follows f(J) sums
           to at most f(J) / (1 - r(J)).
    """
    first = shape.cost(step)
    curve = 2 * shape.square * step * step

    def law(bits: int) -> Weights:
        one = 1 << bits
        ratio_low, ratio_high = _bounds.exp_neg(first, bits)
        curve_low, curve_high = _bounds.exp_neg(curve, bits)
        low, high = [one], [one]
        f_low = f_high = one
        copies = 2 if mirrored else 1
        while True:
            f_low, f_high = f_low * ratio_low >> bits, -(-f_high * ratio_high >> bits)
            ratio_low, ratio_high = ratio_low * curve_low >> bits, -(-ratio_high * curve_high >> bits)
            tail = -(-(f_high << bits) // (one - ratio_high))
            if tail < 1 << 24:
                return Weights(low, high, copies * tail, ends=False)
            low += [f_low] * copies
            high += [f_high] * copies

    return law


class _Narrow:
    """Every value from one table, in the order 0, 1, -1, 2, -2, ... (or 0, 1, 2, ...).

    Proof: `Table` is exact for any list of weights, and these are the weights themselves.
    """

    def __init__(self, shape: _Shape) -> None:
        self.signed = shape.signed
        self.table = Table(_ladder(shape, 1, mirrored=shape.signed))
        self.values = np.where(self.table.guide < 0, np.iinfo(np.int32).min, self._value(self.table.guide)).astype(
            np.int32
        )

    def _value(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        if not self.signed:
            return index
        size = (index + 1) >> 1
        return np.where(index & 1 == 1, size, -size)

    def draw(self, n: int, entropy: Entropy) -> Integers:
        out = np.empty(n, np.int64)
        for start in range(0, n, 2 * _CHUNK):
            self._fill(out[start : start + 2 * _CHUNK], entropy)
        return out

    def _fill(self, out: npt.NDArray[np.int64], entropy: Entropy) -> None:
        bins = entropy.shorts(len(out))
        found = self.values.take(bins)
        out[:] = found
        open_ = np.flatnonzero(found == np.iinfo(np.int32).min)
        if len(open_):
            prefixes = bins[open_].astype(np.uint64) << np.uint64(48) | entropy.words(len(open_)) >> np.uint64(16)
            out[open_] = self._value(self.table.resolve(prefixes, entropy))


class _Wide:
    """Cells of 2**shift integers, a uniform place in the cell, and a coin for the slope inside it.

    Proof: with M = 2**shift, propose h >= 0 with weight f(hM), a place L uniform below M, a fair sign bit s, and accept
           with probability f(hM + L + s) / f(hM) <= 1. Then k = hM + L runs over 0, 1, 2, ... and (k, s) is accepted with
           weight f(k + s). Return k if s = 0 and -1 - k if s = 1: value v has weight f(|v|), each value exactly once.
           Unsigned laws always have s = 0.
    """

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        self.shift = shape.scale.bit_length() - 1 - _RESOLUTION
        self.table = Table(_ladder(shape, 1 << self.shift, mirrored=False))

    def draw(self, n: int, entropy: Entropy) -> Integers:
        return np.array([self._one(entropy) for _ in range(n)], dtype=object if self.shift > 50 else np.int64)

    def _one(self, entropy: Entropy) -> int:
        while True:
            base = int(self.table.resolve(entropy.words(1), entropy)[0]) << self.shift
            k = base + entropy.integer(self.shift)
            sign = entropy.integer(1) if self.shape.signed else 0
            slope = self.shape.cost(k + sign) - self.shape.cost(base)
            if _bounds.below(entropy.integer(64), 64, _bounds.exponential(slope), entropy):
                return -1 - k if sign else k


_narrow = lru_cache(maxsize=64)(_Narrow)
_wide = lru_cache(maxsize=64)(_Wide)


def _positive(value: Any, name: str) -> Fraction:
    exact = _require.exact(value, name)
    _require.positive(**{name: exact})
    return exact
