"""Draws continuous noise for the inside of a computation, rounded to a stated precision. It is never
released: the minimizer that is computed with it gets exact discrete noise as well.

Objective perturbation is proved for a continuous noise vector. The functions here return such a vector
rounded: there is an ideal draw with exactly the stated distribution, and every returned coordinate is within
a stated precision of it. This distance is counted as part of the solver's tolerance, which
the exact noise covers (docs/decisions/0020-noise-inside-the-objective.md).
"""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from ... import sampling
from ...sampling import Entropy

Array = npt.NDArray[np.float64]
# Laplace draws are multiples of scale / 2**_BITS, a rounding that is far below the solver's tolerance.
_BITS = 40
# A draw of `gaussian` is within this many standard deviations of an ideal one: the errors in its proof add up
# to about 2^-38.
GAUSSIAN_PRECISION = 2.0**-36
# A bound on the probability with which a Gaussian draw is further from an ideal one.
GAUSSIAN_FAILURE = 2.0**-190


def laplace_precision(scale: float) -> float:
    """Return a bound on the distance of a draw of `laplace` from an ideal one."""
    return scale * 2.0 ** (1 - _BITS)


def laplace(scale: float, n: int, entropy: Entropy) -> Array:
    """Return n Laplace draws of density exp(-|x| / scale) / (2 scale), rounded towards 0 to multiples of
    scale / 2^40.

    Guarantee: each is within `laplace_precision(scale)` of an ideal draw; the ideal draws are independent and
               have exactly the Laplace distribution.
    Proof:     the absolute value X of a Laplace draw is exponential with mean `scale`. With g = scale / 2^40,
               floor(X / g) has P(floor(X / g) >= k) = exp(-k / 2^40): the geometric distribution, which is
               sampled exactly. The product with g rounds once more, far below g.
    """
    steps = sampling.geometric(Fraction(1, 1 << _BITS), n, entropy).astype(np.float64)
    signs = sampling.uniform_below(2, n, entropy).astype(np.float64) * 2 - 1
    return np.asarray(signs * steps * (scale * 2.0**-_BITS))


def gaussian(deviation: float, n: int, entropy: Entropy) -> Array:
    """Return n Gaussian draws of mean 0 and this standard deviation, each rounded.

    Guarantee: each is within `GAUSSIAN_PRECISION * deviation` of an ideal draw, except with a probability of
               at most n 2^-190 (`GAUSSIAN_FAILURE`), which callers add to their delta; the ideal draws are
               independent and have exactly the Gaussian distribution.
    Proof:     an ideal draw is a sign and the quantile of a tail probability v, uniform on (0, 1/2). v is
               known to 248 bits, and as a float to 1 part in 2^52 unless its first 195 bits are 0. The
               quantile z moves by at most v 2^-52 / phi(z) <= 2^-52 sqrt(pi / 2), with phi the normal
               density, as v / phi(z) is Mills' ratio.
    Assumes:   scipy's ndtri is right to 2^-38 of a standard deviation (tests compare it with mpmath; it is
               right to about 2^-46).
    """
    words = sampling.uniform_below(1 << 62, 4 * n, entropy).reshape(4, n).tolist()
    tails = np.array([_float(*four) for four in zip(*words, strict=True)], dtype=np.float64)
    signs = sampling.uniform_below(2, n, entropy).astype(np.float64) * 2 - 1
    return np.asarray(signs * -ndtri(tails) * deviation)


def _float(a: int, b: int, c: int, d: int) -> float:
    """Return four numbers of 62 bits as one float between 0 and 1/2: the middle of the cell of width 2^-249
    whose number these 248 bits are."""
    # the division of Python integers of any length rounds once
    return (2 * (a << 186 | b << 124 | c << 62 | d) + 1) / (1 << 250)
