"""Defines spending sequences: how a procedure for an unlimited number of tests distributes its error budget
over them.

A sequence gamma(1), gamma(2), ... is non-negative, non-increasing and sums to at most one; the theorems of
online false discovery rate control in `discovery` and `_alpha_wealth` need that and nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import zeta

from .. import _require
from .._errors import InvalidInput
from .._registry import described, plain

Levels = NDArray[np.float64]


@described("adaptive.PowerLaw")
@dataclass(frozen=True, slots=True, kw_only=True)
class PowerLaw:
    """Spends gamma(j) = j^-exponent / zeta(exponent), which sums to one. Ramdas et al. 2018
    (arXiv:1802.09098) use the exponent 1.6 for SAFFRON.
    """

    exponent: float = 1.6

    def __post_init__(self) -> None:
        _require.positive(exponent=self.exponent)
        if not 1 < self.exponent <= 50:
            raise InvalidInput(
                f"exponent={self.exponent!r} is not in (1, 50]: at or below one the sequence has no sum, and "
                "beyond 50 it is spent on the first test."
            )

    def __call__(self, count: int) -> Levels:
        """Return the first `count` summands."""
        exponent = float(self.exponent)
        return np.arange(1, count + 1, dtype=np.float64) ** -exponent / float(zeta(exponent))


@described("adaptive.Javanmard")
@dataclass(frozen=True, slots=True, kw_only=True)
class Javanmard:
    """Spends gamma(j) = c log(max(j, 2)) / (j exp(sqrt(log j))), near optimal for Gaussian means (Javanmard &
    Montanari 2018, arXiv:1603.09000, equation 31).

    c = 0.07720838, as in the R package onlineFDR, whose published sequences are reproduced. The infinite sum
    without the factor c is 12.6451, so the terms sum to 0.9763, which is below one as it must be.
    """

    def __call__(self, count: int) -> Levels:
        """Return the first `count` summands."""
        j = np.arange(1, count + 1, dtype=np.float64)
        return 0.07720838 * np.log(np.maximum(j, 2)) / (j * np.exp(np.sqrt(np.log(j))))


@described("adaptive.Listed")
@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    """Spends by a finite list: these terms, then zeros. For a stream whose length is known."""

    terms: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(map(plain, _require.listed(terms=self.terms))))
        if not self.terms:
            raise InvalidInput("terms is empty: give at least one.")
        for term in self.terms:
            _require.non_negative(term=term)
        if any(later > earlier for earlier, later in zip(self.terms, self.terms[1:], strict=False)):
            raise InvalidInput(
                "terms must not increase: the theorems need that. Sort them from largest to smallest."
            )
        if float(np.sum(np.sort(self.terms))) > 1:
            raise InvalidInput(
                f"terms sum to {float(np.sum(np.sort(self.terms)))!r}, above 1. Make them smaller."
            )

    def __call__(self, count: int) -> Levels:
        """Return the first `count` summands."""
        levels = np.zeros(count)
        levels[: min(count, len(self.terms))] = self.terms[:count]
        return levels


Spending = PowerLaw | Javanmard | Listed
