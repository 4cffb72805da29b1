"""Defines gradient perturbation: gradient descent over all rows, with discrete Gaussian noise on every
gradient."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _require
from ..._errors import InvalidInput
from ..._registry import described
from ...accounting import Event
from ...mechanisms.calibration import zcdp_rho
from ...mechanisms.noise import IntegerGaussian
from ...mechanisms.protocols import Sensitivity
from ...sampling import Entropy
from .erm import LEAST_STRENGTH, LinearERM, power_of_two
from .proximal import soft_threshold
from .solver import Problem

Array = npt.NDArray[np.float64]
# The grid's cell is at most G divided by this and by the square root of the width, so that rounding adds at
# most 1/512 of G to the sensitivity of a row.
_CELLS = 256
# How many rows' gradients are held at once, which bounds memory. Chosen by hand, not tuned.
_ROWS = 1 << 14


@described("learning.GradientPerturbation")
@dataclass(frozen=True, kw_only=True)
class GradientPerturbation(LinearERM):
    """Fits a linear model by noisy full-batch gradient descent on J (Bassily, Smith & Thakurta 2014, Section
    2, with all rows in every step), and releases the mean of the last half of the iterates.

    Every row's gradient is rounded to a grid before it is summed, so that sums are exact integers. The step
    size is 1 / (lambda + n curvature), n the declared number of rows. An l1 penalty is a proximal step after
    each gradient step, which is post-processing. J, lambda and G: see `erm`.

    Guarantee: `event`: `steps` discrete Gaussian releases per model, each of an integer vector with noise for
               its `sensitivity`, chosen adaptively.
    Proof:     the integer gradient of one row has l2 norm at most G / cell + sqrt(width) / 2; `changes` rows
               differ, and the gradient of every other row is the same (`solver.exact_scores`). The next
               iterate is a function of what was released before. zCDP composes; nothing else is read.
    Assumes:   numpy's elementwise functions give a number the same value wherever it stands in an array, and
               the sum over the classes of a row (softmax) does not depend on other rows.
    Accuracy:  let w* be the minimizer of J, T the number of averaged iterates, w_0 the iterate before them
               and s the standard deviation of the noise per coordinate. Without an l1 penalty, and for a step
               size of at most 1 / (largest curvature of J), J(mean) - J(w*) is at most
               |w_0 - w*|² / (2 step T) + step width s² in expectation: for the step u from w without noise,
               J(u) - J(w*) <= (|w - w*|² - |u - w*|²) / (2 step), and independent noise raises J(u) and
               |u - w*|² / (2 step) by at most step width s² / 2 each. Rounding to the grid is not included.
    """

    steps: int = 100

    def _check(self) -> None:
        _require.integer(steps=self.steps, at_least=2)
        if self.delta == 0:
            raise InvalidInput(
                "gradient perturbation adds Gaussian noise, which needs a delta above 0. Nothing was "
                "charged or trained. "
                'Give delta=1e-6, or take method="objective", which needs none.'
            )
        self.noise  # noqa: B018 - price it now

    @cached_property
    def strength(self) -> float:
        """Return the lambda that is used: by default the norm of the noise of the mean of all gradients,
        divided by the expected norm of weights."""
        if self.regularization is not None:
            return float(self.regularization)
        deviation = math.sqrt(float(self.noise.variance) / self.steps) * self.cell
        balanced = math.sqrt(self.facts.width) * deviation / self.facts.expected_norm
        return max(balanced, LEAST_STRENGTH * self.facts.curvature)

    @property
    def cell(self) -> float:
        """Return the width of a cell of the grid that gradients are rounded to."""
        return power_of_two(self.facts.gradient_l2 / (_CELLS * math.sqrt(self.facts.width)))

    @property
    def sensitivity(self) -> Sensitivity:
        facts = self.facts
        l2 = facts.changes * (facts.gradient_l2 / self.cell + math.sqrt(facts.width) / 2) * (1 + 1e-9)
        return Sensitivity(linf=math.ceil(l2), l0=facts.width, l2_squared=math.ceil(l2**2))

    @cached_property
    def noise(self) -> IntegerGaussian:
        rho = zcdp_rho(self.epsilon, self.delta) / (self.facts.models * self.steps) * (1 - 1e-12)
        return IntegerGaussian.for_rho(rho, sensitivity=self.sensitivity, neighbors=self.public.neighbors)

    @property
    def event(self) -> Event:
        return self.noise.event.repeated(self.steps * self.facts.models)

    @property
    def step(self) -> float:
        """Return the step size."""
        return 1 / (self.strength + self.facts.size * self.facts.curvature)

    @property
    def assumption(self) -> None:
        """Return None: no solver is used."""
        return None

    def _weights(self, problem: Problem, entropy: Entropy) -> Array:
        w, total = np.zeros(self.facts.width), np.zeros(self.facts.width)
        for number in range(self.steps):
            noisy: Any = self.noise(self._integer_gradient(problem, w), entropy=entropy)
            w = w - self.step * (noisy.astype(np.float64) * self.cell + self.strength * w)
            w = soft_threshold(w, self.step * self.penalties) if self.l1 > 0 else w
            total += w if number >= self.steps // 2 else 0.0
        return total / (self.steps - self.steps // 2)

    def _integer_gradient(self, problem: Problem, w: Array) -> npt.NDArray[np.int64]:
        """Return the sum of all rows' gradients, each rounded to whole cells, as exact integers."""
        slopes = problem.slopes(w)
        total = np.zeros(self.facts.width, dtype=np.int64)
        chunk = max(1, _ROWS // self.facts.joint)
        for start in range(0, len(problem.x), chunk):
            rows = np.asarray(problem.x[start : start + chunk], np.float64)
            # a row's gradient is its slope times its coordinates; with a softmax, one such part per class
            slopes_in_cells = slopes[start : start + chunk].reshape(len(rows), -1, 1) / self.cell
            total += np.rint(slopes_in_cells * rows[:, None, :]).astype(np.int64).sum(axis=0).ravel()
        return total

    @property
    def expected_excess(self) -> float:
        facts = self.facts
        typical_curvature = facts.size * facts.curvature / facts.width
        noise_variance = facts.width * float(self.noise.variance) / self.steps * self.cell**2
        optimization_error = facts.expected_norm**2 / (2 * self.step * self.steps)
        return self._bias + optimization_error + noise_variance / (2 * (self.strength + typical_curvature))

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on the distance of the released weights from those of the same descent without
        noise, which holds with this probability; rounding to the grid is not included.

        Proof: with at most twice the declared number of rows a gradient step does not increase the distance
               of two points; each adds at most the step size times the norm of its noise.
        """
        entry_error = self.noise.error(confidence, entries=self.facts.width * self.facts.models * self.steps)
        return self.step * self.steps * math.sqrt(self.facts.width) * float(entry_error) * self.cell
