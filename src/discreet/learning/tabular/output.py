"""Output perturbation: minimize the objective, and add noise to the minimizer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ..._registry import described
from ...accounting import Event
from ...mechanisms.calibration import zcdp_rho
from ...mechanisms.noise import IntegerGaussian, IntegerLaplace
from ...mechanisms.protocols import Sensitivity
from ...sampling import Entropy
from .erm import LEAST_STRENGTH, LinearERM, grid_sensitivity, power_of_two
from .solver import Problem

Array = npt.NDArray[np.float64]
# Cells of the grid per l2 sensitivity and square root of the width: rounding adds 1/64 to the sensitivity.
_CELLS = 64


@described("learning.OutputPerturbation")
@dataclass(frozen=True, kw_only=True)
class OutputPerturbation(LinearERM):
    """Releases the minimizer of J on a grid, with discrete noise on every coordinate (Chaudhuri, Monteleoni &
    Sarwate 2011, Algorithm 1).

    Without a delta the noise is discrete Laplace for the l1 sensitivity, at most sqrt(width) times that in
    l2: its l2 norm is 1.4 times that of the paper's spherical noise, and it is exact. With a delta it is
    discrete Gaussian for the l2 sensitivity.

    Guarantee: `event`, for each model an integer vector with exact discrete noise for its `sensitivity`.
    Proof:     J is lambda-strongly convex, and the objectives of neighbors differ in `changes` summands whose
               gradients have l2 norm at most G: at the minimizer of one the gradient of the other has norm at
               most changes G, so the minimizers are at most changes G / lambda apart (CMS 2011,
               arXiv:0912.0071v5, Lemma 7 and Corollary 8, for a sum instead of a mean). An l1 penalty changes
               nothing: with t, t' the minimizers and v the gradient of what differs at t', 0 and -v are
               subgradients of one objective at t and t', so lambda |t - t'|² <= <-v, t' - t>. The solver's
               point has a gradient of at most `tolerance`, so it is within tolerance / lambda of the
               minimizer, in both tables. Rounding to the grid moves each coordinate of either by at most half
               a cell.
    Accuracy:  |released - minimizer| <= `error`; J(released) - J(minimizer) <= (lambda + n curvature) / 2
               times its square.
    Assumes:   the solver ends with a certificate, for which rounding leaves room where the table has at most
               twice the declared number of rows (`tolerance_at`).
    """

    def _check(self) -> None:
        self.noise  # noqa: B018 - price it now

    @cached_property
    def strength(self) -> float:
        """Return the lambda that is used: by default where the bias lambda B² / 2 and the loss n curvature /
        (2 width) |noise|² are smallest together, B the expected norm.
        """
        if self.regularization is not None:
            return float(self.regularization)
        facts = self.facts
        typical_curvature = facts.size * facts.curvature / facts.width
        # the noise's norm is inverse to lambda: this is its squared norm at lambda 1
        unit = facts.width * self._noise_at(1.0).mean_squared_error * self._cell(1.0) ** 2
        balanced = float((2 * typical_curvature * unit / facts.expected_norm**2) ** (1 / 3))
        return max(balanced, LEAST_STRENGTH * facts.curvature)

    def _distance(self, strength: float) -> float:
        facts = self.facts
        return (facts.changes * facts.gradient_l2 + 2 * self.tolerance_at(strength)) / strength * (1 + 1e-12)

    def _cell(self, strength: float) -> float:
        return power_of_two(self._distance(strength) / (_CELLS * math.sqrt(self.facts.width)))

    def _sensitivity(self, strength: float) -> Sensitivity:
        return grid_sensitivity(self._distance(strength) / self._cell(strength), self.facts.width)

    def _noise_at(self, strength: float) -> IntegerLaplace | IntegerGaussian:
        sensitivity, models = self._sensitivity(strength), self.facts.models
        if self.delta == 0:
            return IntegerLaplace.for_epsilon(
                self.epsilon / models, sensitivity=sensitivity, neighbors=self.public.neighbors
            )
        rho = zcdp_rho(self.epsilon, self.delta) / models * (1 - 1e-12)
        return IntegerGaussian.for_rho(rho, sensitivity=sensitivity, neighbors=self.public.neighbors)

    @property
    def sensitivity(self) -> Sensitivity:
        """Return how far one unit moves the minimizer, in cells of the grid."""
        return self._sensitivity(self.strength)

    @cached_property
    def noise(self) -> IntegerLaplace | IntegerGaussian:
        return self._noise_at(self.strength)

    @property
    def cell(self) -> float:
        return self._cell(self.strength)

    @property
    def event(self) -> Event:
        return self.noise.event.repeated(self.facts.models) if self.facts.models > 1 else self.noise.event

    def _weights(self, problem: Problem, entropy: Entropy) -> Array:
        cells = np.rint(self._solve(problem) / self.cell).astype(np.int64)
        noisy: Any = self.noise(cells, entropy=entropy)
        return np.asarray(noisy.astype(np.float64) * self.cell)

    @property
    def expected_excess(self) -> float:
        facts = self.facts
        squared_noise = facts.width * self.noise.mean_squared_error * self.cell**2
        return self._bias + (self.strength + facts.size * facts.curvature / facts.width) * squared_noise / 2

    def error(self, confidence: float = 0.95) -> float:
        entries = self.facts.width * self.facts.models
        entry_error = self.noise.error(confidence, entries=entries)
        solver_error = self.tolerance / self.strength
        return math.sqrt(self.facts.width) * (float(entry_error) + 1) * self.cell + solver_error
