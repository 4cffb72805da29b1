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
# The grid's cell is at most the distance of two neighbors' points, divided by this and by the square root of
# the number of weights of a model (`Facts.width`), so that rounding adds at most 1/64 to the sensitivity.
_CELLS = 64


@described("learning.OutputPerturbation")
@dataclass(frozen=True, kw_only=True)
class OutputPerturbation(LinearERM):
    """Releases the minimizer of J on a grid, with discrete noise on every coordinate (Chaudhuri, Monteleoni &
    Sarwate 2011, Algorithm 1).

    Without a delta the noise is discrete Laplace for the l1 sensitivity, which is at most sqrt(width) times
    the l2 sensitivity. Its l2 norm is about sqrt(2) times that of the paper's spherical noise, but it can be
    sampled exactly. With a delta it is discrete Gaussian for the l2 sensitivity. J, lambda and G: see `erm`.

    Guarantee: `event`: for each model (one, or one per class against the others) an integer vector is
               released, with exact discrete noise for its `sensitivity`.
    Proof:     J is lambda-strongly convex, and the objectives of neighbors differ in `changes` summands whose
               gradients have l2 norm at most G: at the minimizer of one the gradient of the other has norm at
               most changes G, so the minimizers are at most changes G / lambda apart (CMS 2011,
               arXiv:0912.0071v5, Lemma 7 and Corollary 8, for a sum instead of a mean). An l1 penalty changes
               nothing: with t, t' the minimizers and v the gradient at t' of the summands that differ, 0 and
               -v are subgradients of one objective at t and t', so lambda |t - t'|² <= <-v, t' - t>,
               which is at most changes G |t - t'|. The solver's point has a gradient of at most `tolerance`,
               so it is within tolerance / lambda of the minimizer, in both tables. Rounding to the grid moves
               each coordinate of either by at most half a cell.
    Accuracy:  |released - minimizer| <= `error`; without an l1 penalty and for a table of n rows,
               J(released) - J(minimizer) <= (lambda + n curvature) / 2 times the square of this distance.
    Assumes:   the solver certifies that the gradient is at most `tolerance`, which `tolerance_at` makes
               possible for tables of at most `certified_rows` rows, which is twice the declared number or
               more. Without the certificate the point is released all the same, and the guarantee is void:
               `assumption` says so on every model, for every table.
    """

    def _check(self) -> None:
        self.noise  # noqa: B018 - price it now

    @cached_property
    def strength(self) -> float:
        """Return the lambda that is used: by default the one with the least sum of the bias lambda B² / 2 and
        the excess n curvature / (2 width) |noise|², with n the declared size, B `Facts.expected_norm` and
        width the number of weights. A row curves J in one direction only: curvature / width is its mean over
        all directions.
        """
        if self.regularization is not None:
            return float(self.regularization)
        facts = self.facts
        typical_curvature = facts.size * facts.curvature / facts.width
        # the noise's norm is inversely proportional to lambda
        squared_noise_at_one = facts.width * self._noise_at(1.0).mean_squared_error * self._cell(1.0) ** 2
        balanced = float((2 * typical_curvature * squared_noise_at_one / facts.expected_norm**2) ** (1 / 3))
        return max(balanced, LEAST_STRENGTH * facts.curvature)

    def _free_tolerance(self, strength: float) -> float:
        # The sensitivity grows by two tolerances: by 1/512 of G.
        return self.facts.gradient_l2 * 2.0**-10

    def _distance(self, strength: float) -> float:
        """Return a bound on the l2 distance of the solver's points of two neighbors."""
        facts = self.facts
        return (facts.changes * facts.gradient_l2 + 2 * self.tolerance_at(strength)) / strength * (1 + 1e-12)

    def _cell(self, strength: float) -> float:
        return power_of_two(self._distance(strength) / (_CELLS * math.sqrt(self.facts.width)))

    def _sensitivity(self, strength: float) -> Sensitivity:
        return grid_sensitivity(self._distance(strength) / self._cell(strength), self.facts.width)

    def _noise_at(self, strength: float) -> IntegerLaplace | IntegerGaussian:
        sensitivity, models = self._sensitivity(strength), self.facts.models
        if self.delta == 0:
            # 1e-12 less, so that the rounded sum over several models is not above epsilon
            model_epsilon = self.epsilon if models == 1 else self.epsilon / models * (1 - 1e-12)
            return IntegerLaplace.for_epsilon(
                model_epsilon, sensitivity=sensitivity, neighbors=self.public.neighbors
            )
        rho = zcdp_rho(self.epsilon, self.delta) / models * (1 - 1e-12)
        return IntegerGaussian.for_rho(rho, sensitivity=sensitivity, neighbors=self.public.neighbors)

    @property
    def sensitivity(self) -> Sensitivity:
        """Return the sensitivity of the solver's point, in cells of the grid."""
        return self._sensitivity(self.strength)

    @cached_property
    def noise(self) -> IntegerLaplace | IntegerGaussian:
        return self._noise_at(self.strength)

    @property
    def cell(self) -> float:
        """Return the width of a cell of the grid that the point is rounded to."""
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
