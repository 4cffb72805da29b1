"""Draws integer noise with weights exp(-a k² - b |k|): geometric, discrete Laplace and discrete Gaussian, by
one sampler.

Narrow distributions are drawn by inversion, with a table of all their values. Wide distributions are cut into
cells of 2**shift integers: the cell comes from a table, the offset in the cell is uniform, and a last coin,
nearly always heads, makes up for the slope of the weights inside the cell (rejection sampling). No logarithm
is taken. A coin falls heads if a uniform number U on [0, 1) is below the probability of heads; floats decide
this only where the two are further apart than all float errors.

The first 16 bits of a draw decide most draws; in the tails they decide fewer. So that the time of a call
does not tell how many draws were undecided, a fixed number of draws is looked up a second time with more
bits, whether they need it or not (`_second_look`).

Draws single values of integer noise, without the tables that many draws share: slower per draw, but
nothing to prepare.

The time of a draw must not depend on its value, which would be a timing side channel. Each attempt takes the
same steps on integers of the same lengths (see `Logarithm`), and the draw is returned as a constant
(`lift`) plus its value, so that small values are not shorter integers. The number of rejected proposals tells
nothing: attempts are independent, so that it is independent of the one that is accepted. What remains: an
attempt that its first bits do not decide (one in about 2**55) takes longer, and for a draw beyond 20 scales,
which has probability 2**-28, the prefix of U is a digit shorter (Python stores an integer in digits of
`DIGIT` = 30 bits).

The argument `lifted` is this constant, 0 for none; `Logarithm.lift` is another such constant, for -ln(U).

U is a uniform number on [0, 1), a prefix its first bits as an integer.

Computes -ln(U) for a uniform U, as integers that are proved to enclose it, by the same steps on numbers of
the same lengths whatever U is.

An observer who can time a draw must not learn its size. So nothing here branches on U, and every number is
kept at a length that does not depend on U: Python stores integers in digits of 30 bits (or 15), drops leading
zeros, and takes longer for more digits. Lengths are therefore multiples of 30 bits, and a constant (`lift`)
is added to every number that may come near zero.

Changing an operation here, even to a faster one, may make its time depend on U again.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import ceil, isqrt, sqrt
from typing import Any, overload

import numpy as np
import numpy.typing as npt

from .. import _require
from . import _entropy
from ._bernoulli import exp_coins
from ._entropy import Entropy, draws
from ._uniform import Table, WeightIntervals, Weights

# Bits of a digit of a Python integer: lengths are whole digits, so that no operation takes longer for some U.
DIGIT = 30
# Leading bits of a number that stay zero, so that a sum has no more digits than its terms.
MARGIN = 2
# The series of the logarithm is around c = 1 - 2**-8, not around 1: its variable z is then never so small
# that its leading digit would be zero.
_CENTER_BITS = 8
# A bound on the error of the series, in units of 2**-bits; see `enclose`.
_SERIES_ERROR = 7


def round_up(bits: int) -> int:
    """Return a number of bits rounded up to whole digits."""
    return -(-bits // DIGIT) * DIGIT


@dataclass(frozen=True, slots=True)
class Logarithm:
    """Holds the constants with which `enclose` computes -ln(U) from the first (bits - `MARGIN`) bits of U;
    all but `bits` and `turns` are in units of 2**-bits."""

    bits: int
    # c / 4 for c = 1 - 2**-8
    center: int
    # ln(2), rounded down
    log_two: int
    # how often `lift` holds ln(2): a power of two above `bits`
    turns: int
    # -ln(c), rounded up, plus a bound on the error of log_two times at most `turns`
    top: int
    # a bound on the errors of log_two, `top` and the series together
    spread: int
    # 1/(2i + 1), the last i first
    coefficients: tuple[int, ...]

    @property
    def lift(self) -> int:
        """The constant that `enclose` adds to -ln(U)."""
        return self.turns * self.log_two

    def enclose(self, prefix: int) -> tuple[int, int]:
        """Return (low, high) with low <= 2**bits * -ln(U) + lift <= high for all U in [prefix, prefix + 1) /
        2**(bits - 2), prefix > 0.

        Proof: with j = bits - 1 - the length of prefix, U = 2**-j m at the lower end, for m in [1, 2); and
               ln(m) = ln(c) + 2 artanh(z) with z = (m - c) / (m + c) in (0.0019, 0.3351), z² < 0.1124. In
               units: rounding down costs z at most 1, z² at most 1 + 2 z < 1.68, and a step s' = 1/(2i + 1) +
               z² s of Horner's rule 2, another 0.4 * 1.68 for the error of z² (for s < 0.4) and 0.1124 of the
               error of s: together below 2.68 / (1 - 0.1124) < 3.1. What the series leaves out is below 1
               unit, for it has more than bits / 3.15 terms and 0.1124 < 2**-3.15. So 2 z s is off by at most
               2 (1.05 + 0.336 * 4.1) + 1 < 7 units, downwards. ln(c) and ln(2) are at most 3 above what is
               stored, and ln(2) is taken j <= turns times. Finally ln(prefix + 1) - ln(prefix) <= 1 / prefix
               <= 2**(j + 2 - bits): 2**(j + 2) units, written below as the difference of two numbers of full
               length.
        """
        shift = self.bits - 1 - prefix.bit_length()
        # m / 4
        mantissa = prefix << shift
        lower, upper = prefix << shift + MARGIN, (prefix + 1) << shift + MARGIN
        z = ((mantissa - self.center) << self.bits) // (mantissa + self.center)
        square = z * z >> self.bits
        total = 0
        for coefficient in self.coefficients:
            total = coefficient + (total * square >> self.bits)
        high = (self.turns + shift) * self.log_two + self.top - (z * total >> self.bits - 1)
        return high - self.spread + lower - upper, high


@lru_cache(maxsize=64)
def logarithm(bits: int) -> Logarithm:
    """Return the constants for `bits` bits, a multiple of `DIGIT`."""
    center = (1 << bits - MARGIN) - (1 << bits - MARGIN - _CENTER_BITS)
    turns = 1 << bits.bit_length()
    return Logarithm(
        bits=bits,
        center=center,
        log_two=_entropy.log(Fraction(2), bits)[0],
        turns=turns,
        top=3 * turns - _entropy.log(Fraction(center, 1 << bits - MARGIN), bits)[0],
        spread=3 * turns + 3 + _SERIES_ERROR,
        coefficients=tuple((1 << bits) // (2 * i + 1) for i in range(bits * 100 // 315 + 1, -1, -1)),
    )


def lift_one(scale: int) -> int:
    """Return the constant that is added to values of about this scale: so much larger than the values that
    all sums are integers of the same length."""
    return 1 << max(2 * DIGIT, round_up(scale.bit_length() + 9)) + 2


@dataclass(frozen=True, slots=True)
class _Floor:
    """Computes floor(-ln(U) / x) + lifted from the first bits of U, as (log * slope + offset) >> shift with
    log the bounds on -ln(U) of `Logarithm.enclose`; the offsets subtract its lift and add `lifted`."""

    log: Logarithm
    # slope <= 2**(shift - bits) / x <= slope + 1, with bits those of `log`
    slope: int
    shift: int
    low_offset: int
    high_offset: int

    def __call__(self, prefix: int) -> tuple[int, int]:
        """Return a lower and an upper bound on floor(-ln(U) / x) + lifted, for U in [prefix, prefix + 1) /
        2**(bits - MARGIN).

        Proof: -ln(U) > 0 lies between the ends of `enclose` minus their lift; 1/x lies between slope and
               slope + 1, in units of 2**(bits - shift); so -ln(U) / x lies between the two products.
        """
        low, high = self.log.enclose(prefix)
        return (
            (low * self.slope + self.low_offset) >> self.shift,
            (high * (self.slope + 1) + self.high_offset) >> self.shift,
        )


@lru_cache(maxsize=64)
def _floor(numerator: int, denominator: int, bits: int, lifted: int) -> _Floor:
    """Return the `_Floor` for x = numerator / denominator, with so many bits of `slope` that products have
    the same length for all U."""
    log = logarithm(bits)
    slope_bits = bits + 2 * DIGIT
    slope_bits += _to_middle(log.lift * ((denominator << slope_bits) // numerator))
    slope, shift = (denominator << slope_bits) // numerator, bits + slope_bits
    return _Floor(
        log, slope, shift, (lifted << shift) - log.lift * slope, (lifted << shift) - log.lift * (slope + 1)
    )


def _to_middle(number: int) -> int:
    """Return by how many bits to lengthen a number so that half and twice the result have as many digits of
    `DIGIT` bits as the result."""
    return (DIGIT // 3 - number.bit_length()) % DIGIT


def geometric_one(x: Fraction, entropy: Entropy, lifted: int = 0) -> int:
    """Return one draw with P(G >= k) = exp(-k x), plus `lifted`.

    Proof: G = floor(-ln(U) / x) >= k exactly when U <= exp(-k x). U is drawn bit by bit until its enclosure
           decides the floor; -ln(U) / x is whole with probability zero.
    """
    bits = working_bits(x)
    prefix = entropy.integer(bits - MARGIN)
    while True:
        if prefix:
            low, high = _floor(x.numerator, x.denominator, bits, lifted)(prefix)
            if low == high:
                return low
        prefix = prefix << 2 * DIGIT | entropy.integer(2 * DIGIT)
        bits += 2 * DIGIT


def working_bits(x: Fraction) -> int:
    """Return with how many bits -ln(U) is computed at first: about 64 more than the integer part of
    -ln(U) / x has, so that they nearly always decide."""
    return round_up(66 + (x.denominator // x.numerator).bit_length())


def _draw_laplace_size(rate: Fraction, entropy: Entropy, lifted: int) -> tuple[int, int]:
    """Return (size + lifted, minus) of a discrete Laplace draw: a geometric size, and 1 for a negative sign
    or 0, with equal probability; size 0 with a negative sign is rejected."""
    while True:
        size, minus = geometric_one(rate, entropy, lifted), entropy.integer(1)
        # `&`, not `and`, and below an index, not an `if`: the same steps for all sizes and signs
        if not (size == lifted) & minus:
            return size, minus


def laplace(rate: Fraction, entropy: Entropy, lifted: int = 0) -> int:
    """Return one draw with weights exp(-rate |k|), plus `lifted`.

    Proof: Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Algorithm 2: a geometric size and a fair sign,
           where 0 with a negative sign is rejected so that 0 is not counted twice.
    """
    size, minus = _draw_laplace_size(rate, entropy, lifted)
    return (size, 2 * lifted - size)[minus]


def gaussian(variance: Fraction, entropy: Entropy, lifted: int = 0) -> int:
    """Return one draw with weights exp(-k² / (2 variance)), plus `lifted`.

    Proof: Canonne, Kamath & Steinke 2020, arXiv:2004.00010v4, Algorithm 3: a discrete Laplace Y of scale t =
           floor(sigma) + 1, accepted with probability exp(-(|Y| - variance / t)² / (2 variance)).
    """
    scale = isqrt(int(variance)) + 1
    rate = Fraction(1, scale)
    while True:
        size, minus = _draw_laplace_size(rate, entropy, lifted)
        if _accept(size, scale, variance, entropy, lifted):
            return (size, 2 * lifted - size)[minus]


@dataclass(frozen=True, slots=True)
class _Coin:
    """Decides whether -ln(U) is at least (|Y| - variance / scale)² / (2 variance), by integers whose lengths
    do not depend on Y and U: the acceptance step of `gaussian`.

    Y is accepted if log * factor + linear * size >= square * size² + constant, with log the bounds of
    `Logarithm.enclose` and size = |Y| + lifted.
    """

    log: Logarithm
    factor: int
    linear: int
    square: int
    constant: int

    def __call__(self, prefix: int, size: int) -> tuple[bool, bool]:
        """Return whether acceptance is certain, and whether it is possible, for all U in
        [prefix, prefix + 1) / 2**(bits - MARGIN).

        Proof: with variance = v / w, a = w scale and b = lifted a + v, size = |Y| + lifted, the bound is
               (a size - b)² / (2 v w scale²). Multiplied by the denominator and expanded, with the negative
               terms on the other side, it is the inequality above.
        """
        low, high = self.log.enclose(prefix)
        right = self.square * (size * size) + self.constant
        left = self.linear * size
        return low * self.factor + left >= right, high * self.factor + left >= right


@lru_cache(maxsize=64)
def _coin(v: int, w: int, scale: int, bits: int, lifted: int) -> _Coin:
    """Return the coin for the variance v / w, with the integers that do not depend on the draw."""
    log, a = logarithm(bits), w * scale
    b, factor = lifted * a + v, 2 * v * w * scale * scale
    more = _to_middle(log.lift * factor)
    factor, bits = factor << more, bits + more
    return _Coin(log, factor, 2 * a * b << bits, a * a << bits, (b * b << bits) + log.lift * factor)


def _accept(size: int, scale: int, variance: Fraction, entropy: Entropy, lifted: int) -> bool:
    """Toss a coin of probability exp(-c), c = (|Y| - variance / scale)² / (2 variance), where `size` is |Y| +
    lifted: U <= exp(-c) exactly when -ln(U) >= c."""
    bits = round_up(66)
    prefix = entropy.integer(bits - MARGIN)
    while True:
        if prefix:
            certain, possible = _coin(variance.numerator, variance.denominator, scale, bits, lifted)(
                prefix, size
            )
            if certain == possible:
                return certain
        prefix = prefix << 2 * DIGIT | entropy.integer(2 * DIGIT)
        bits += 2 * DIGIT


Integers = npt.NDArray[Any]

# Words handled at once: the buffers stay in the second-level cache.
_CHUNK = 1 << 14
# The largest number of bits of a word that are used for the offset in a cell.
_OFFSET_BITS = 31
# The largest log2 of the integers per cell, and the largest number of cells, for which values fit 64 bits
# (they are below 2**62). Beyond either, values are Python integers.
_NATIVE_SHIFT, _NATIVE_CELLS = 42, 1 << 20
# Up to so many draws are made one by one, as preparing a table costs more than so few draws. Not tuned.
_FEW = 4
# Up to so many draws are all looked up again, decided or not. Not tuned.
_ALL_AGAIN = 256
# The probability that more draws are undecided than are looked up again is at most exp(-28) = 7e-13.
_EXPONENT = 28.0
# The bits of a word that are used for the cell, and for the coin of rejection sampling.
_CELL = np.uint64(0xFFFF << 48)
_COIN = np.uint64(0xFFFF << 32)
# Marks a value that 16 bits do not decide.
_UNDECIDED = -(1 << 31)


def geometric(x: Any, n: int, entropy: Entropy) -> Integers:
    """Draw `n` times the number of failures before a success of probability 1 - exp(-x), so that
    P(G >= k) = exp(-k x).

    Guarantee: independent, with exactly this distribution, for every rational x > 0.
    Proof:     P(G = k) is proportional to exp(-k x); see `_Wide` and `_Narrow`.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> bool((geometric(1, 5, SeededEntropy(1)) >= 0).all())
    True
    """
    rate = _positive(x, "x")
    return _draw(_Shape(Fraction(0), rate, signed=False), draws(n, entropy), entropy)


def discrete_laplace(scale: Any, n: int, entropy: Entropy) -> Integers:
    """Draw `n` integers with P(X = k) proportional to exp(-|k| / scale).

    Guarantee: independent, with exactly this distribution, for every rational scale > 0 (a float is taken at
               its binary value).
    Proof:     see `_Wide` (scale >= 32) and `_Narrow`.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.sampling import SeededEntropy
    >>> discrete_laplace(10, 4, SeededEntropy(1)).dtype
    dtype('int64')
    """
    rate = 1 / _positive(scale, "scale")
    return _draw(_Shape(Fraction(0), rate, signed=True), draws(n, entropy), entropy)


@overload
def discrete_gaussian(sigma: Any, n: int, entropy: Entropy) -> Integers: ...
@overload
def discrete_gaussian(*, sigma_squared: Any, n: int, entropy: Entropy) -> Integers: ...
def discrete_gaussian(
    sigma: Any = None, n: Any = None, entropy: Any = None, *, sigma_squared: Any = None
) -> Integers:
    """Draw `n` integers with P(X = k) proportional to exp(-k² / (2 sigma²)).

    Give `sigma`, or `sigma_squared` where the variance parameter is rational and its root is not.

    Guarantee: independent, with exactly this distribution (Canonne, Kamath & Steinke 2020,
               arXiv:2004.00010v4, Definition 1), for every rational sigma² > 0 (a float is taken at its
               binary value).
    Proof:     see `_Wide` (sigma >= 128) and `_Narrow`.
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
    return _draw(_Shape(1 / (2 * variance), Fraction(0), signed=True), draws(n, entropy), entropy)


@dataclass(frozen=True, slots=True)
class _Shape:
    """Describes the weights exp(-(square k² + linear k)) for k = 0, 1, 2, ..., mirrored to the negative
    integers if `signed`."""

    square: Fraction
    linear: Fraction
    signed: bool

    def cost(self, k: int) -> Fraction:
        """Return square k² + linear k: minus the log of the weight of k."""
        return (self.square * k + self.linear) * k

    @property
    def scale(self) -> int:
        """The scale of a Laplace or geometric distribution, or the sigma of a Gaussian one, rounded down."""
        if self.square:
            return isqrt(self.square.denominator // (2 * self.square.numerator))
        return self.linear.denominator // self.linear.numerator

    @property
    def shift(self) -> int:
        """log2 of the integers per cell; negative if the distribution is too narrow for cells.

        A sigma is cut into 128 to 256 cells, the scale of the other distributions into 32 to 64: weights
        then change so little inside a cell that few coins are undecided.
        """
        return self.scale.bit_length() - 1 - (7 if self.square else 5)


def _draw(shape: _Shape, n: int, entropy: Entropy) -> Integers:
    """Return n draws; few are made one by one, many from a table."""
    if n <= _FEW:
        return _singly(shape, n, entropy)
    sampler: _Wide | _Narrow = _wide(shape) if shape.shift >= 0 else _narrow(shape)
    return sampler.draw(n, entropy)


def _singly(shape: _Shape, n: int, entropy: Entropy) -> Integers:
    """Return n draws made one by one.

    Each comes with a large constant added (`lift_one`), so that all draws are integers of the same length
    and the time does not depend on them. The constant is subtracted in 64 bits where all of them fit.
    """
    lift = lift_one(shape.scale)
    if shape.square:
        lifted = [gaussian(1 / (2 * shape.square), entropy, lift) for _ in range(n)]
    else:
        draw = laplace if shape.signed else geometric_one
        lifted = [draw(shape.linear, entropy, lift) for _ in range(n)]
    if shape.shift <= _NATIVE_SHIFT and all(0 < value < 2 * lift for value in lifted):
        return np.array(lifted, dtype=np.int64) - lift
    return np.array([value - lift for value in lifted], dtype=object)


def _weights_at(shape: _Shape, step: int, mirrored: bool) -> WeightIntervals:
    """Return the weights at k = 0, step, 2 step, ...; each k > 0 twice in a row if `mirrored`.

    Proof: with f(j) the weight at k = j step, f(j+1) = f(j) r(j) and r(j+1) = r(j) c, where r(0) =
           exp(-(square step² + linear step)) and c = exp(-2 square step²); products of intervals in [0, 1]
           are rounded outwards. r does not increase, so f(J) and all that follow sum to at most f(J) / (1 -
           r(J)).
    """
    first = shape.cost(step)
    curve = 2 * shape.square * step * step

    def weights(bits: int) -> Weights:
        unit = 1 << bits
        ratio_low, ratio_high = _entropy.exp_neg(first, bits)
        curve_low, curve_high = _entropy.exp_neg(curve, bits)
        low, high = [unit], [unit]
        f_low = f_high = unit
        copies = 2 if mirrored else 1
        while True:
            f_low, f_high = f_low * ratio_low >> bits, -(-f_high * ratio_high >> bits)
            ratio_low, ratio_high = ratio_low * curve_low >> bits, -(-ratio_high * curve_high >> bits)
            tail = -(-(f_high << bits) // (unit - ratio_high))
            # All weights that are left out add up to less than 2**(24 - bits) of the first, or twice that if
            # mirrored. `ends` is false, as there are infinitely many of them.
            if tail < 1 << 24:
                return Weights(low, high, copies * tail, ends=False)
            low += [f_low] * copies
            high += [f_high] * copies

    return weights


def _second_look(undecided: npt.NDArray[np.bool_], chance: float) -> npt.NDArray[np.int64]:
    """Return the positions where `undecided` is true, filled up with other positions to a number m that does
    not depend on the draws, except with probability exp(-28). `chance` is the probability that one of the n
    draws is undecided.

    Proof: m is at least n chance + t with t = a/3 + sqrt(a²/9 + 2 a n chance), a = 28, or m = n. By
           Bernstein's inequality more than m are undecided with probability at most
           exp(-t² / (2 n chance + 2 t / 3)) = exp(-a). Among the first m positions at least m minus the
           number of undecided draws are decided, so that there are enough to fill up with.
    """
    n = len(undecided)
    looks = min(
        n, ceil(n * chance + _EXPONENT / 3 + sqrt(_EXPONENT * _EXPONENT / 9 + 2 * _EXPONENT * n * chance))
    )
    if n <= _ALL_AGAIN or looks == n:
        return np.arange(n)
    needed = np.flatnonzero(undecided)
    others = np.flatnonzero(~undecided[:looks])[: max(looks - len(needed), 0)]
    return np.concatenate((needed, others))


class _Narrow:
    """Draws every value from one table, in the order 0, 1, -1, 2, -2, ... (or 0, 1, 2, ...).

    Proof: `Table` is exact for any list of weights, and these are the weights themselves.
    """

    def __init__(self, shape: _Shape) -> None:
        self.signed = shape.signed
        self.table = Table(_weights_at(shape, 1, mirrored=shape.signed))
        guide = self.table.guide()
        self.values = np.where(guide < 0, _UNDECIDED, self._value(guide)).astype(np.int32)
        self.chance = float((guide < 0).mean())

    def _value(self, index: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Return the values at indices of the table."""
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
        """Overwrite `out` with draws: 16 bits each, and 48 more for the second look."""
        bins = entropy.shorts(len(out))
        values = self.values.take(bins)
        out[:] = values
        looks = _second_look(values == _UNDECIDED, self.chance)
        prefixes = bins[looks].astype(np.uint64) << np.uint64(48) | entropy.words(len(looks)) >> np.uint64(16)
        out[looks] = self._value(self.table.resolve(prefixes, entropy))


class _Wide:
    """Draws by rejection sampling: a cell of 2**shift integers, a uniform offset in it, and a coin for the
    slope inside it.

    Proof: with f(k) the weight of k and M = 2**shift, propose a cell h >= 0 with weight f(hM), an offset L
           uniform below M and a fair sign bit s, and accept with probability f(hM + L + s) / f(hM) <= 1. Then
           k = hM + L runs over 0, 1, 2, ... and (k, s) is accepted with weight f(k + s). Return k if s = 0
           and -1 - k if s = 1: value v has weight f(|v|), each value exactly once. Unsigned distributions
           always have s = 0.

    `bases` holds, for each 16 bits of cell, the cell times 2**offset_bits, or -1 if they do not decide it;
    `chance` is the probability that 16 bits of cell and 16 of coin do not decide a draw.
    """

    def __init__(self, shape: _Shape) -> None:
        self.shape = shape
        self.shift = shape.shift
        self.table = Table(_weights_at(shape, 1 << self.shift, mirrored=False))
        self.offset_bits = min(self.shift, _OFFSET_BITS)
        self.rest_bits = self.shift - self.offset_bits
        self.squeeze, easy_cells = self._squeeze()
        guide = self.table.guide()
        self.bases = np.where((guide >= 0) & (guide < easy_cells), guide << self.offset_bits, -1)
        self.chance = 1 - float((self.bases >= 0).mean()) * self.squeeze / (1 << 16)
        self.coefficients = float(shape.square), float(shape.linear)

    def _squeeze(self) -> tuple[int, int]:
        """Return (c, h): a coin whose first 16 bits are below c is heads in every cell below h.

        Proof: the probability of heads is at least exp(-d) >= 1 - d, where d is the difference of the costs
               at the two ends of the cell, which does not decrease with h; and U < c / 2**16 <= 1 - d for
               all cells below h. (d <= 1/32 is allowed; any other bound gives the same distribution.)
        """
        step = 1 << self.shift
        allowed = Fraction(1, 32)
        first = self.shape.cost(step)
        curve = 2 * self.shape.square * step * step
        # without a quadratic term d is the same in all cells, and 1 << 30 is above all cells of the table
        cells = int((allowed - first) / curve) + 1 if curve else 1 << 30
        return int((1 - allowed) * (1 << 16)), cells if first <= allowed else 0

    def draw(self, n: int, entropy: Entropy) -> Integers:
        """Return n draws: proposals for all, then again for those that were rejected.

        `again` are the positions that are looked up a second time; only there can a proposal be rejected.
        """
        out = np.empty(n, np.int64 if self.shift <= _NATIVE_SHIFT else object)
        again, words = self._fill(out, entropy)
        while len(again):
            values, heads = self._settle(words, entropy)
            # Python integers: always for huge scales, otherwise if a value has more than 62 bits
            if values.dtype == object:
                out = out.astype(object, copy=False)
            out[again] = values
            rejected = again[~heads]
            fresh = np.empty(len(rejected), out.dtype)
            fresh_again, words = self._fill(fresh, entropy)
            out[rejected] = fresh
            again = rejected[fresh_again]
        return out

    def _fill(self, out: Integers, entropy: Entropy) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Write proposals to all of `out`; return the positions that are looked up again, and their words.

        One word per draw: 16 bits for the cell, 16 for the coin, 1 for the sign, up to 31 for the offset in
        the cell. A draw that they decide is decided in the same way when it is looked up again: more bits of
        cell and coin change neither. Only the bits that `_lengthen` appends are drawn anew then; the old
        ones are discarded, and the new ones are as uniform.
        """
        indices, kept = [np.empty(0, np.int64)], [np.empty(0, np.uint64)]
        for start in range(0, len(out), _CHUNK):
            words = entropy.words(min(_CHUNK, len(out) - start))
            bases = self.bases.take((words >> np.uint64(48)).view(np.int64), mode="clip")
            undecided = (words & _COIN) >= np.uint64(self.squeeze << 32)
            undecided |= bases < 0
            bases |= (words & np.uint64((1 << self.offset_bits) - 1)).view(np.int64)
            out[start : start + _CHUNK] = self._apply_sign(self._lengthen(bases, entropy), words)
            looks = _second_look(undecided, self.chance)
            kept.append(words[looks])
            indices.append(looks + start)
        return np.concatenate(indices), np.concatenate(kept)

    def _settle(
        self, words: npt.NDArray[np.uint64], entropy: Entropy
    ) -> tuple[Integers, npt.NDArray[np.bool_]]:
        """Return the values of words by 64 bits of cell and 53 of coin, and whether the coins fell heads."""
        more = entropy.words(2 * len(words))
        prefixes = words & _CELL | more[: len(words)] >> np.uint64(16)
        cells = self.table.resolve(prefixes, entropy)
        offsets = (words & np.uint64((1 << self.offset_bits) - 1)).view(np.int64)
        if self.shift > _NATIVE_SHIFT or int(cells.max()) >= _NATIVE_CELLS:
            cells = cells.astype(object)
        k = self._lengthen((cells << self.offset_bits) + offsets, entropy)
        sign = (words >> np.uint64(31) & np.uint64(1)).view(np.int64) * self.shape.signed
        coins = (words & _COIN) << np.uint64(5) | more[len(words) :] >> np.uint64(27)

        def exponent(i: int) -> Fraction:
            """Return x for the coin that falls heads with probability exp(-x)."""
            return self.shape.cost(int(k[i]) + int(sign[i])) - self.shape.cost(int(cells[i]) << self.shift)

        if k.dtype == object:
            exponents = np.array([float(exponent(i)) for i in range(len(k))])
        else:
            step = (k + sign - (cells << self.shift)).astype(np.float64)
            base = (cells << self.shift).astype(np.float64)
            exponents = self.coefficients[0] * step * (2 * base + step) + self.coefficients[1] * step
        return self._apply_sign(k, words), exp_coins(exponents, exponent, coins, entropy)

    def _lengthen(self, k: Integers, entropy: Entropy) -> Integers:
        """Append the low bits of the offset in a cell that do not fit into a word."""
        if self.rest_bits == 0:
            return k
        if self.shift <= _NATIVE_SHIFT:
            low: Integers = (entropy.words(len(k)) >> np.uint64(64 - self.rest_bits)).view(np.int64)
        else:
            k, low = k.astype(object), entropy.integers(self.rest_bits, len(k))
        return (k << self.rest_bits) + low

    def _apply_sign(self, k: Integers, words: npt.NDArray[np.uint64]) -> Integers:
        """Return k, or -1 - k where the sign bit is set."""
        if not self.shape.signed:
            return k
        # all ones where the sign bit is set, and k ^ -1 = -1 - k
        mask = (words << np.uint64(32)).view(np.int64) >> 63
        mirrored: Integers = k ^ mask
        return mirrored


_narrow = lru_cache(maxsize=32)(_Narrow)
_wide = lru_cache(maxsize=32)(_Wide)


def _positive(value: Any, name: str) -> Fraction:
    """Return a parameter as an exact rational; raise an error that names it unless it is positive."""
    exact = _require.exact(value, name)
    _require.positive(**{name: exact})
    return exact
