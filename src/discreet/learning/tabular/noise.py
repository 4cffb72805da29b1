"""Continuous noise for inside a computation, known to a stated precision: never released, and never the only
noise.

Objective perturbation is proved for a continuous noise vector. What is drawn here is such a vector rounded:
there is an ideal draw with exactly the stated distribution, and what is returned is at most `precision` away
from it in every coordinate. The distance is counted as part of the solver's tolerance
(docs/decisions/0020-noise-inside-the-objective.md).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from ... import sampling
from ...sampling import Entropy

Array = npt.NDArray[np.float64]
# Laplace draws are multiples of scale / 2**_BITS: a rounding far below the solver's tolerance, which it is
# part of.
_BITS = 40
# Of the standard deviation: far above what 53 bits of a quantile leave open, and what ndtri is off by.
GAUSSIAN_PRECISION = 2.0**-36


def laplace_precision(scale: float) -> float:
    """Return how far a draw of `laplace` may be from an ideal one."""
    return scale * 2.0 ** (1 - _BITS)


def laplace(scale: float, n: int, entropy: Entropy) -> Array:
    """Return n Laplace draws of density exp(-|x| / scale) / 2 scale, cut off after a multiple of scale / 2^40
    towards 0.

    Guarantee: each is within `laplace_precision(scale)` of an ideal draw; these are independent and have
               exactly the Laplace distribution.
    Proof:     the size of a Laplace draw is exponential, and for X exponential of mean s the number floor(X /
               g) has P(floor >= k) = exp(-k g / s): the geometric distribution, which is sampled exactly. The
               product with g rounds once.
    """
    steps = sampling.geometric(Fraction(1, 1 << _BITS), n, entropy).astype(np.float64)
    signs = sampling.uniform_below(2, n, entropy).astype(np.float64) * 2 - 1
    return np.asarray(signs * steps * (scale * 2.0**-_BITS))


def gaussian(deviation: float, n: int, entropy: Entropy) -> Array:
    """Return n Gaussian draws of mean 0 and this standard deviation, each rounded.

    Guarantee: each is within `GAUSSIAN_PRECISION * deviation` of an ideal draw, but for an event of
               probability n 2^-190; the ideal draws are independent and have exactly the Gaussian
               distribution.
    Proof:     an ideal draw is a sign and the quantile of a tail probability v, uniform on (0, 1/2). v is
               known to 248 bits, and as a float to 1 part in 2^52 unless its first 195 bits are 0. The
               quantile z moves by at most v 2^-52 / phi(z) <= 2^-52 sqrt(pi / 2), as v / phi(z) is Mills'
               ratio.
    Assumes:   scipy's ndtri is right to 2^-38 of a standard deviation (tests compare it with mpmath; it is
               right to about 2^-46).
    """
    words = sampling.uniform_below(1 << 62, 4 * n, entropy).reshape(4, n).tolist()
    tails = np.array([_float(*four) for four in zip(*words, strict=True)], dtype=np.float64)
    signs = sampling.uniform_below(2, n, entropy).astype(np.float64) * 2 - 1
    return np.asarray(signs * -ndtri(tails) * deviation)


def _float(a: int, b: int, c: int, d: int) -> float:
    """Return the middle of the cell of 2^-249 that these bits name, between 0 and 1/2."""
    # division of Python integers rounds once, however long they are
    return (2 * (a << 186 | b << 124 | c << 62 | d) + 1) / (1 << 250)
