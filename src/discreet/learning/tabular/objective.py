"""Defines objective perturbation, as approximate minima perturbation: noise inside the objective, and exact
noise of a small share of epsilon on the output."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, log_ndtr

from ..._errors import InvalidInput
from ..._registry import described
from ...accounting import ApproximateDP, Event, PureDP
from ...mechanisms.noise import IntegerLaplace
from ...mechanisms.protocols import Sensitivity
from ...sampling import Entropy
from . import noise as inner_noise
from .erm import LEAST_STRENGTH, LinearERM, grid_sensitivity, power_of_two
from .solver import Problem

Array = npt.NDArray[np.float64]
# The share of epsilon for the noise on the output. That noise is proportional to the solver's tolerance, so
# that even with a small share it is below the noise inside the objective. Chosen by hand, not tuned.
_OUTPUT_SHARE = 1 / 256
# The grid's cell is at most the distance of two neighbors' points, divided by this and by the square root of
# the width, so that rounding adds at most 1/8 to the sensitivity.
_CELLS = 8


def gaussian_objective_delta(epsilon: float, multiplier: float, sides: int = 1) -> float:
    """Return delta at epsilon where the privacy loss is at most A / m + 1 / (2m²), with m = `multiplier`.

    A is the largest of `sides` standard normal variables, of any dependence, or 0 where all are negative.
    With two sides this includes the absolute value of one variable.

    Proof: delta <= E[(1 - exp(epsilon - loss))_+] for every mechanism, which grows with the loss, and for a
           maximum is at most the sum over its variables. With u = 1/m and c = epsilon - u²/2 >= 0 it is
           sides (Q(c/u) - exp(c + u²/2) Q(c/u + u)), Q the upper tail of a standard normal variable. Where
           c < 0, 1 is returned. 1e-13 covers rounding.
    """
    u = 1 / multiplier
    c = epsilon - u * u / 2
    if c < 0:
        return 1.0
    log_tail = float(log_ndtr(-c / u))
    gap = c + u * u / 2 + float(log_ndtr(-c / u - u)) - log_tail
    return min(1.0, sides * math.exp(log_tail) * (-math.expm1(min(0.0, gap)) + 1e-13))


@described("learning.ObjectivePerturbation")
@dataclass(frozen=True, kw_only=True)
class ObjectivePerturbation(LinearERM):
    """Minimizes J(w) + <b, w> for a random b, up to a certified tolerance, and releases the point on a grid
    with discrete noise.

    b has independent Laplace coordinates, scaled to the l1 norm of a row's gradient. For sparse rows, such as
    indicators of categories, its l2 norm is below that of the spherical noise of Chaudhuri, Monteleoni &
    Sarwate 2011 (Algorithm 2). With a delta, b is Gaussian, scaled to the l2 norm (Kifer, Smith & Thakurta
    2012, Algorithm 1), if its expected length is smaller; otherwise the delta is not used.

    Symbols: J, f, lambda, G, L: see `erm`. epsilon_m, delta_m are the price of one model, d its number of
    weights, H(t) the Hessian of the sum of losses at t, f' and f'' the derivatives of the differing row's
    loss in its score, class weight included, p the density of b, s the standard deviation of Gaussian noise,
    (x) the Kronecker product.

    Guarantee: for each model epsilon_m-DP, or (epsilon_m, delta_m)-DP with Gaussian noise; together `event`.
    Proof:     Let t be the exact minimizer of J + <b, .> for an ideal draw b, for two neighboring tables that
               differ in one row (x, y). b = -grad J(t) is a bijection of t and b that is Lipschitz both
               ways, so t has density p(b(t)) det(H(t) + lambda I) (area formula; f'' may jump). (1) The b and
               b' that give the same t in the two tables differ by v = f' x, so with Laplace noise their
               densities differ by a factor of at most exp(|v|_1 / scale). With Gaussian noise
               log p(b) - log p(b') is <b, v> / s² + |v|² / 2s². Here <b, v> = f' <b, x>, where <b, x> is
               normal because x is fixed and b independent of it; f' depends on b, but |f'| <= L, and f' has
               one sign for a label (`Loss.classifies`). So <b, v> / s is at most G times the positive part
               of a standard normal variable, or times its absolute value where f' can have both signs: see
               `gaussian_objective_delta`. The other direction is the same with -v. (2) The
               determinants differ by a factor 1 + f'' x' (H + lambda)^-1 x between 1 and 1 + curvature /
               lambda. So t is (epsilon_1, delta_m)-DP with epsilon_1 = noise part + log(1 + curvature /
               lambda), as in CMS 2011 (arXiv:0912.0071v5, Theorem 9) and KST 2012 (Theorem 2), for sums.
               (3) Given t, b is a function of t and the table, hence so is the solver's point, apart from
               independent randomness. The point's gradient for the ideal objective is at most `tolerance`
               plus the distance of the drawn b from the ideal one, so the point is within this sum divided by
               lambda of t, in both tables. The release of the point is a second mechanism, which is given t:
               its l2 sensitivity is twice this distance (`_distance`), and with exact discrete Laplace noise
               it is epsilon_2-DP, epsilon_m = epsilon_1 + epsilon_2 by basic composition (Iyengar et al.
               2019, IEEE S&P, Algorithm 1).
               (4) A Gaussian draw is far from the ideal one with a probability of at most z = d 2^-190
               (`inner_noise.gaussian`). In either table outcomes change their probability by at most z then,
               so that delta grows by (1 + exp(epsilon_m)) z, which is part of delta_m.
               A replaced row is one removed and one added: group privacy for two. Several models: basic
               composition.
               An l1 penalty (Kifer, Smith & Thakurta 2012, Theorem 2, takes any convex one as a limit of
               smooth ones; for this one directly): let u be the penalty's subgradient, b = -grad J(t) - l1 u.
               On the points t with given signs on a set S and 0 elsewhere, (t_S, u outside S) is a bijection
               of b, Lipschitz both ways, with determinant l1^(d - |S|) det((H(t) + lambda I)_SS). For the
               same (t, u) the two b's differ by v again, and (2) holds for the rows and columns S: x_S is
               shorter, and for a softmax the eigenvalues of a principal submatrix are at most those of the
               matrix, in order. So the pair (t, u) has the privacy loss that t alone had without the penalty,
               and t is a function of the pair. (3) A point at which some subgradient is at most `tolerance`
               long is within `tolerance` / lambda of t, by strong convexity.
               A softmax of k classes, with q the probabilities of the classes, e_y and A as in `Softmax`:
               v = (q - e_y) (x) x. With Gaussian noise <b, v> is <q - e_y, z>, where z_c = <b_c, x> are
               independent normal variables and b_c is the part of b for class c. Whatever q is, this is at
               most the largest of z_j - z_y over j != y, each normal of standard deviation
               sqrt(2) s |x| <= s G: the sum of the deltas of these k - 1 is charged (`Facts.sides`). The
               determinants differ by the factor det(I + M^-1/2 B M^-1/2) with M = H + lambda I and
               B = A (x) x x'. The eigenvalues of this product are at most those of B divided by lambda, in
               order (Weyl), at most k - 1 of B's are not 0, and their sum is at most (1 - 1/k) |x|², so that
               the factor is at most (1 + |x|² / (k lambda))^(k - 1) (`Facts.log_determinant`).
    Accuracy:  with r the distance of the released weights from the perturbed minimizer, |released - minimizer
               of J| <= |b| / lambda + r, and J(perturbed minimizer) - J(minimizer) <= |b|² / lambda.
    Assumes:   the solver ends with a certificate, which `tolerance_at` makes possible for tables of at most
               `certified_rows` rows, which is twice the declared number or more, unless b is longer than
               `_longest_noise`, which has a probability of at most 2 e^-60 and is not charged.
    """

    def _check(self) -> None:
        if not self._remaining_epsilon(self.strength) > 0:
            smallest_strength = self.facts.eigenvalue / math.expm1(
                min(700.0, self._objective_epsilon / self.facts.rank)
            )
            raise InvalidInput(
                f"regularization = {self.regularization!r} is too small for epsilon = {self.epsilon!r}: the "
                f"determinant alone costs {self.facts.log_determinant(self.strength):.3g} per model. Nothing "
                f"was charged or trained. Take more than {smallest_strength:.4g}."
            )
        self.output_noise  # noqa: B018 - price it now

    @property
    def _model_epsilon(self) -> float:
        """Return epsilon_m for one added or removed row; 1e-12 less covers rounding."""
        return self.epsilon / (self.facts.models * self.facts.changes) * (1 - 1e-12)

    @property
    def _model_delta(self) -> float:
        """Return delta_m for one added or removed row.

        For two rows that change one after the other, group privacy turns (epsilon, delta)-DP into
        (2 epsilon, (1 + exp(epsilon)) delta)-DP.
        """
        group = 1.0 if self.facts.changes == 1 else 1 + math.exp(min(700.0, self._model_epsilon))
        return self.delta / (self.facts.models * group) * (1 - 1e-9)

    @property
    def _failure_delta(self) -> float:
        """Return the part of delta_m for Gaussian draws that are far from ideal ones: step (4) of the
        proof."""
        failure = self.facts.width * inner_noise.GAUSSIAN_FAILURE
        return failure * (1 + math.exp(min(700.0, self._model_epsilon))) * (1 + 1e-9)

    @property
    def _objective_epsilon(self) -> float:
        """Return epsilon_1, the share of the noise inside the objective and of the determinant."""
        return self._model_epsilon * (1 - _OUTPUT_SHARE)

    def _remaining_epsilon(self, strength: float) -> float:
        """Return the part of epsilon_1 that is left for the noise after the determinant's cost."""
        return self._objective_epsilon - self.facts.log_determinant(strength) * (1 + 1e-12)

    @cached_property
    def strength(self) -> float:
        """Return the lambda that is used: by default the expected norm of b, divided by the expected norm
        of weights, and at least so large that the determinant costs at most half of epsilon_1.
        """
        if self.regularization is not None:
            return float(self.regularization)
        # half of epsilon_1, shared by the eigenvalues
        eigenvalue_epsilon = self._objective_epsilon / 2 / self.facts.rank
        for_determinant = self.facts.eigenvalue / math.expm1(min(700.0, eigenvalue_epsilon))
        smallest = strength = max(for_determinant, LEAST_STRENGTH * self.facts.curvature)
        # the noise depends on lambda in turn; 30 steps of this fixed-point iteration (by hand, not tuned)
        for _ in range(30):
            strength = max(smallest, self._expected_noise(strength) / self.facts.expected_norm)
        return strength

    def _laplace_scale(self, strength: float) -> float:
        """Return the scale that is enough for Laplace noise."""
        return self.facts.gradient_l1 / self._remaining_epsilon(strength) * (1 + 1e-12)

    def _deviation(self, strength: float) -> float:
        """Return the least standard deviation that is enough for Gaussian noise, or up to 1e-6 of it more;
        infinity without a delta."""
        epsilon, delta = self._remaining_epsilon(strength), self._model_delta - self._failure_delta
        # Also where nothing is left. Smaller deltas are of no use, and not tested.
        if delta < 1e-40:
            return math.inf
        sides = self.facts.sides if self.loss.classifies else 2
        low, high = 1e-3, 1.0
        while gaussian_objective_delta(epsilon, high, sides) > delta:
            low, high = high, 2 * high
            if high > 1e12:
                return math.inf
        while high > low * (1 + 1e-6):
            middle = math.sqrt(low * high)
            low, high = (
                (low, middle) if gaussian_objective_delta(epsilon, middle, sides) <= delta else (middle, high)
            )
        return self.facts.gradient_l2 * high * (1 + 1e-12)

    def _expected_noise(self, strength: float) -> float:
        """Return the root mean square of |b|, for the better of the two distributions."""
        return math.sqrt(self.facts.width) * min(
            math.sqrt(2) * self._laplace_scale(strength), self._deviation(strength)
        )

    @cached_property
    def noise_distribution(self) -> tuple[str, float]:
        """Return the distribution of b's coordinates and its scale: "laplace" with the scale, or "gaussian"
        with the standard deviation.
        """
        scale, deviation = self._laplace_scale(self.strength), self._deviation(self.strength)
        return ("laplace", scale) if math.sqrt(2) * scale <= deviation else ("gaussian", deviation)

    @property
    def _longest_noise(self) -> float:
        """Return a length that b exceeds with probability 2 e^-60 at most.

        Proof: Laplace, in units of the scale: |b|_2² <= |b|_inf |b|_1. |b|_inf is above ln d + 60 with
               probability at most e^-60, and |b|_1, which has the Gamma distribution, is above
               d + sqrt(120 d) + 60 with probability at most e^-60. Gaussian: |b| is above sqrt(d) + 11
               standard deviations with probability at most e^(-11² / 2).
        """
        kind, scale = self.noise_distribution
        d = self.facts.width
        if kind == "laplace":
            return scale * math.sqrt((math.log(d) + 60) * (d + math.sqrt(120 * d) + 60))
        return scale * (math.sqrt(d) + 11)

    def _free_tolerance(self, strength: float) -> float:
        # The noise on the output, of l1 sensitivity sqrt(d) 2 tolerance / lambda and a bit, has a root mean
        # square of at most 1/16 of b's over lambda then: together they are 0.2% above b's alone.
        output_epsilon = self._model_epsilon * _OUTPUT_SHARE
        return self._expected_noise(strength) * output_epsilon / (16 * 4 * self.facts.width)

    @property
    def _distance(self) -> float:
        """Return a bound on the distance of the computed points of two neighbors from each other, given the
        same exact minimizer t.
        """
        kind, scale = self.noise_distribution
        precision = (
            inner_noise.laplace_precision(scale)
            if kind == "laplace"
            else inner_noise.GAUSSIAN_PRECISION * scale
        )
        return 2 * (self.tolerance + math.sqrt(self.facts.width) * precision) / self.strength * (1 + 1e-12)

    @property
    def cell(self) -> float:
        """Return the width of a cell of the grid that the point is rounded to."""
        return power_of_two(self._distance / (_CELLS * math.sqrt(self.facts.width)))

    @property
    def sensitivity(self) -> Sensitivity:
        """Return the sensitivity of the computed point, given t, in cells of the grid."""
        return grid_sensitivity(self._distance / self.cell, self.facts.width)

    @cached_property
    def output_noise(self) -> IntegerLaplace:
        return IntegerLaplace.for_epsilon(
            self._model_epsilon * _OUTPUT_SHARE, sensitivity=self.sensitivity, neighbors=self.public.neighbors
        )

    @property
    def event(self) -> Event:
        if self.noise_distribution[0] == "laplace":
            return PureDP(epsilon=self.epsilon, neighbors=self.public.neighbors)
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=self.public.neighbors)

    def _weights(self, problem: Problem, entropy: Entropy) -> Array:
        kind, scale = self.noise_distribution
        draw = inner_noise.laplace if kind == "laplace" else inner_noise.gaussian
        perturbed_problem = replace(problem, linear=draw(scale, self.facts.width, entropy))
        cells = np.rint(self._solve(perturbed_problem) / self.cell).astype(np.int64)
        return self.output_noise(cells, entropy=entropy).astype(np.float64) * self.cell

    @property
    def expected_excess(self) -> float:
        """Return an estimate of how far regularization and noise raise J above its minimum; the noise's part
        is |b|² / (2 (lambda + typical curvature)), where the typical curvature is the mean over all
        directions of what the rows add at most.
        """
        typical_curvature = self.facts.size * self.facts.curvature / self.facts.width
        squared_noise = self._expected_noise(self.strength) ** 2
        return self._bias + squared_noise / (2 * (self.strength + typical_curvature))

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on |b| / lambda plus the distance of the output from the perturbed minimizer, for
        all models at once; each summand has half of the failure probability."""
        facts, (kind, scale) = self.facts, self.noise_distribution
        failure = (1 - confidence) / 2 / facts.models
        if kind == "laplace":
            # |b|_2 is at most |b|_1, which has the Gamma distribution, and at most sqrt(width) times the
            # largest coordinate
            total = float(gammaincinv(facts.width, 1 - failure))
            length = scale * min(total, math.sqrt(facts.width) * math.log(facts.width / failure))
        else:
            length = scale * math.sqrt(2 * float(gammaincinv(facts.width / 2, 1 - failure)))
        entry_error = self.output_noise.error(1 - (1 - confidence) / 2, entries=facts.width * facts.models)
        output_error = self._distance / 2 + math.sqrt(facts.width) * (entry_error + 1) * self.cell
        return length / self.strength + output_error
