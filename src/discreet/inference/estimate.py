"""Holds linear estimates with their variances, covariances and intervals.

Least squares with known noise variances gives numbers whose variances are known too, before any data is
read. `Estimate` holds both. After a projection (clipping at zero) or rounding the variances depend on the
unknown truth, so the functions that do this return plain arrays.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from scipy import optimize, special

from .. import _require
from .._errors import InvalidInput
from . import _check
from ._check import Floats

Noise = Literal["gaussian", "laplace", "any"]

# For more values than this the variances of all of them are not computed together: each takes a solution of
# the normal equations, and a covariance matrix of this size takes 200 MB. Chosen by hand, not tuned.
MAX_VARIANCES = 5_000


@dataclass(frozen=True, eq=False, kw_only=True)
class Estimate:
    """Holds best linear unbiased estimates (BLUE) and their covariance.

    Guarantee: unbiased, and no other unbiased linear function of the same answers has a smaller variance, for
               any linear question about the values.
    Proof:     Gauss-Markov theorem (Aitken's form, for unequal variances).
    Assumes:   the noise is independent with mean zero and the variances given, and the constraints hold of
               the truth.
    """

    values: Floats
    # Maps a question, as the vector of its coefficients, to the covariance matrix times this vector.
    _covariance_product: Callable[[Floats], Floats] = field(repr=False)
    _variances: Floats | None = field(default=None, repr=False)

    @property
    def variances(self) -> Floats:
        """Return the variance of each value, infinite where the measurements do not determine it.

        In very large systems, which are solved iteratively, each variance costs a solution of its own: ask
        `variance_of` for the ones you need.
        """
        if self._variances is not None:
            return self._variances
        if self.values.size > MAX_VARIANCES:
            raise InvalidInput(
                f"the variances of all {self.values.size} values would need as many solutions. Ask "
                f"variance_of(questions) for the "
                f"questions you need."
            )
        return self.variance_of(np.eye(self.values.size))

    @property
    def standard_deviations(self) -> Floats:
        return np.sqrt(self.variances)

    def answer(self, questions: Any) -> Floats:
        """Return the estimates of linear questions, each a row of coefficients of the values."""
        answers: Floats = self._questions(questions) @ self.values.ravel()
        return answers

    def variance_of(self, questions: Any) -> Floats:
        """Return the variances of `answer(questions)`."""
        rows = self._questions(questions)
        return np.array([_variance(row, self._covariance_product(row)) for row in rows])

    def covariance(self) -> Floats:
        """Return the covariance matrix of all values: n by n, so for small n."""
        n = self.values.size
        if n > MAX_VARIANCES:
            raise InvalidInput(
                f"a covariance matrix of {n} by {n} is too large. Ask variance_of(questions) instead."
            )
        matrix = np.column_stack([self._covariance_product(unit) for unit in np.eye(n)])
        return (matrix + matrix.T) / 2

    def interval(self, confidence: float = 0.95, *, noise: Noise = "gaussian") -> tuple[Floats, Floats]:
        """Return for each value a (pointwise) confidence interval; see `width` for its validity."""
        half_width = width(confidence, noise) * self.standard_deviations
        return self.values - half_width, self.values + half_width

    def _questions(self, questions: Any) -> Any:
        """Return the questions as a dense matrix with one column for each value."""
        rows = _check.matrix("questions", questions, columns=self.values.size)
        return rows if isinstance(rows, np.ndarray) else rows.toarray()


def width(confidence: float, noise: Noise = "gaussian") -> float:
    """Return the half-width of a confidence interval, in standard deviations, for a linear combination of
    independent noises.

    gaussian: the normal quantile. Exact for Gaussian noise, and for any noise in the limit of many small
              terms; it is too small for a few terms of Laplace noise, and of discrete Gaussian noise whose
              sigma is below about 3 (`IntegerGaussian.combined_width` is right for these).
    laplace:  valid for every linear combination of Laplace noises, continuous or discrete, if each variance
              was given as 2 * scale**2.
    any:      valid for every noise of mean zero and finite variance.

    Guarantee: laplace, any: at least the stated confidence, whatever the coefficients.
    Proof:     any: Chebyshev. laplace: the moment generating function of a Laplace noise of scale b at t is
               1 / (1 - b²t²); that of a discrete one is at most that, since (cosh t - 1) / t² increases in
               t > 0 and t < 1 / b. A product of 1 / (1 - u_i), where u_i is the b²t² of summand i, is at most
               1 / (1 - sum of u_i). So every combination obeys the Chernoff bound of one Laplace noise with
               the same variance; Chebyshev is used where it is sharper.

    >>> round(width(0.95), 3), round(width(0.95, "laplace"), 3), round(width(0.95, "any"), 3)
    (1.96, 4.134, 4.472)
    """
    _require.open_probability(confidence=confidence)
    outside = 1 - confidence
    if noise == "gaussian":
        return float(-special.ndtri(outside / 2))
    chebyshev = 1 / math.sqrt(outside)
    if noise == "any":
        return chebyshev
    if noise != "laplace":
        raise _require.fail("noise", noise, "one of gaussian, laplace, any")
    # the bound is above `outside` at the lower end of the search, and below it at the upper end
    root = optimize.brentq(lambda a: _log_chernoff(a) - math.log(outside), 1e-6, 100 - 10 * math.log(outside))
    # from scales to standard deviations, which are sqrt(2) scales
    return min(chebyshev, float(root) / math.sqrt(2))


def _log_chernoff(a: float) -> float:
    """Return the logarithm of the minimum over u in (0, 1) of 2 exp(-ua) / (1 - u²): the Chernoff bound on
    the probability that Laplace noise is more than `a` scales from zero."""
    u = (math.sqrt(1 + a * a) - 1) / a
    return math.log(2) - u * a - math.log1p(-u * u)


def _variance(question: Floats, product: Floats) -> float:
    """Return the variance of a question: its dot product with `product`, the covariance matrix times it.
    Infinite if a value that the question uses has no finite variance."""
    used = question != 0
    # checked first, because infinities of both signs would add up to NaN
    if not np.isfinite(product[used]).all():
        return math.inf
    return max(0.0, float(question[used] @ product[used]))
