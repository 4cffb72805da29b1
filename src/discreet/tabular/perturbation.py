"""Defines objective perturbation, as approximate minima perturbation: noise inside the objective, and exact
noise of a small share of epsilon on the output.

Draws continuous noise for the inside of a computation, rounded to a stated precision. It is never
released: the minimizer that is computed with it gets exact discrete noise as well.

Objective perturbation is proved for a continuous noise vector. The functions here return such a vector
rounded: there is an ideal draw with exactly the stated distribution, and every returned coordinate is within
a stated precision of it. This distance is counted as part of the solver's tolerance, which
the exact noise covers (docs/decisions/0011-noise-inside-the-objective.md).

Output perturbation: minimize the objective, and add noise to the minimizer.

Defines gradient perturbation: gradient descent over all rows, with discrete Gaussian noise on every
gradient; and input perturbation, noise on every row.

Chooses between objective, output and gradient perturbation, from public facts alone, and says why.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, log_ndtr, ndtri

from .. import _require, sampling
from .._errors import InvalidInput
from .._public import ADD_REMOVE, REPLACE, ZERO_OUT, Categories, Neighbors, Public, require_relation
from .._registry import described
from .._require import at_least
from ..accounting import ApproximateDP, Event, PureDP
from ..mechanisms.additive import laplace_noise
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.noise_scales import zcdp_rho
from ..mechanisms.protocols import Sensitivity
from ..sampling import Entropy
from .erm import LEAST_STRENGTH, LinearERM, grid_sensitivity, power_of_two
from .losses import Problem, minimize
from .rows import Design, features_of

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
                f"determinant alone costs {self.facts.log_determinant(self.strength):.3g} per model. Take "
                f"more than {smallest_strength:.4g}."
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
        failure = self.facts.width * GAUSSIAN_FAILURE
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
        precision = laplace_precision(scale) if kind == "laplace" else GAUSSIAN_PRECISION * scale
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
        return laplace_noise(self.public, self._model_epsilon * _OUTPUT_SHARE, self.sensitivity)

    @property
    def event(self) -> Event:
        if self.noise_distribution[0] == "laplace":
            return PureDP(epsilon=self.epsilon, neighbors=self.public.neighbors)
        return ApproximateDP(epsilon=self.epsilon, delta=self.delta, neighbors=self.public.neighbors)

    def _weights(self, problem: Problem, entropy: Entropy) -> Array:
        kind, scale = self.noise_distribution
        draw = laplace if kind == "laplace" else gaussian
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


def _noise_for(learner: LinearERM, sensitivity: Sensitivity) -> IntegerLaplace | IntegerGaussian:
    """Return the noise of one model's vector of integers: discrete Laplace, or with a delta discrete
    Gaussian."""
    models, neighbors = learner.facts.models, learner.public.neighbors
    if learner.delta == 0:
        # 1e-12 less, so that the rounded sum over several models is not above epsilon
        model_epsilon = learner.epsilon if models == 1 else learner.epsilon / models * (1 - 1e-12)
        return IntegerLaplace.for_epsilon(model_epsilon, sensitivity=sensitivity, neighbors=neighbors)
    rho = zcdp_rho(learner.epsilon, learner.delta) / models * (1 - 1e-12)
    return IntegerGaussian.for_rho(rho, sensitivity=sensitivity, neighbors=neighbors)


# The grid's cell is at most the distance of two neighbors' points, divided by this and by the square root of
# the number of weights of a model (`Facts.width`), so that rounding adds at most 1/64 to the sensitivity.
_OUTPUT_CELLS = 64


@described("learning.OutputPerturbation")
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
               arXiv:0912.0071v5, Lemma 7 and Corollary 8, for a sum instead of a mean). The solver's point
               has a gradient of at most `tolerance`, so it is within tolerance / lambda of the minimizer, in
               both tables. Rounding to the grid moves each coordinate of either by at most half a cell.
    Accuracy:  |released - minimizer| <= `error`; for a table of n rows,
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
        return power_of_two(self._distance(strength) / (_OUTPUT_CELLS * math.sqrt(self.facts.width)))

    def _sensitivity(self, strength: float) -> Sensitivity:
        return grid_sensitivity(self._distance(strength) / self._cell(strength), self.facts.width)

    def _noise_at(self, strength: float) -> IntegerLaplace | IntegerGaussian:
        return _noise_for(self, self._sensitivity(strength))

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


# The grid's cell is at most G divided by this and by the square root of the width, so that rounding adds at
# most 1/512 of G to the sensitivity of a row.
_GRADIENT_CELLS = 256
# How many rows' gradients are held at once, which bounds memory. Chosen by hand, not tuned.
_ROWS = 1 << 14


@described("learning.GradientPerturbation")
class GradientPerturbation(LinearERM):
    """Fits a linear model by noisy full-batch gradient descent on J (Bassily, Smith & Thakurta 2014, Section
    2, with all rows in every step), and releases the mean of the last half of the iterates.

    Every row's gradient is rounded to a grid before it is summed, so that sums are exact integers. The step
    size is 1 / (lambda + n curvature), n the declared number of rows. J, lambda and G: see `erm`.

    Guarantee: `event`: `steps` discrete Gaussian releases per model, each of an integer vector with noise for
               its `sensitivity`, chosen adaptively.
    Proof:     the integer gradient of one row has l2 norm at most G / cell + sqrt(width) / 2; `changes` rows
               differ, and the gradient of every other row is the same (`losses.exact_scores`). The next
               iterate is a function of what was released before. zCDP composes; nothing else is read.
    Assumes:   numpy's elementwise functions give a number the same value wherever it stands in an array, and
               the sum over the classes of a row (softmax) does not depend on other rows.
    Accuracy:  let w* be the minimizer of J, T the number of averaged iterates, w_0 the iterate before them
               and s the standard deviation of the noise per coordinate. For a step size of at most
               1 / (largest curvature of J), J(mean) - J(w*) is at most
               |w_0 - w*|² / (2 step T) + step width s² in expectation: for the step u from w without noise,
               J(u) - J(w*) <= (|w - w*|² - |u - w*|²) / (2 step), and independent noise raises J(u) and
               |u - w*|² / (2 step) by at most step width s² / 2 each. Rounding to the grid is not included.
    """

    steps: Annotated[int, at_least(2)] = 100

    def _check(self) -> None:
        _require.that(
            self.delta != 0,
            "gradient perturbation adds Gaussian noise, which needs a delta above 0. Give delta=1e-6, or "
            'take method="objective", which needs none.',
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
        return power_of_two(self.facts.gradient_l2 / (_GRADIENT_CELLS * math.sqrt(self.facts.width)))

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


# The grid's cell is at most R divided by this and by the square root of the width, so that rounding adds at
# most 1/64 of R to the sensitivity of a row.
_ROW_CELLS = 64
# The length of the gradient at which the solver stops, per row and as a multiple of G. Nothing but accuracy
# rests on it: the rows that it is given are private already.
_ROW_TOLERANCE = 2.0**-30


@described("learning.RowPerturbation")
class RowPerturbation(LinearERM):
    """Adds discrete noise to every row, and minimizes J on the noisy rows: input perturbation.

    The loss of a row with label y = 1 or -1 is a function of <w, y x>, so that the noise is on y x, rounded
    to a grid: discrete Laplace, and with a delta discrete Gaussian. It is the least accurate method: every
    row, and not only the result, is protected, so that the curator need not be trusted with exact rows. J and
    R: see `erm`.

    Guarantee: `event`: for each model (one, or one per class against the others) one vector of integers per
               unit, with exact discrete noise for its `sensitivity`.
    Proof:     under a public number of units neighbors differ in one row, and only the noisy row made of it
               has another distribution: y x moves by at most 2 R, in l2, before it is rounded
               (`grid_sensitivity`). A unit without a row counts as a row of zeros, so that there is one noisy
               row for each. They are sorted, so that all that follows is a function of the noisy rows,
               wherever the rows stood: post-processing.
    Accuracy:  with e the length of the longest noise, n the number of rows and w* the minimizer of J,
               |released - w*| is at most n e (L + f'' R |w*|) / lambda: so far do the gradients at w* differ,
               and the objective on noisy rows is lambda-strongly convex. |w*|² is at most 2 n f(0) / lambda.
    """

    def _check(self) -> None:
        require_relation(self.public.neighbors, REPLACE, ZERO_OUT, what="input perturbation")
        self._rows  # noqa: B018 - refuses a table whose size is not public
        _require.that(
            self.loss.classifies and self.facts.joint <= 1 and not self.class_weights,
            "input perturbation adds noise to rows that are multiplied by a label 1 or -1: it fits "
            'classes, one against the rest (multi_class="ovr"), without class weights. Take '
            'method="output" for anything else.',
        )
        self.noise  # noqa: B018 - price it now

    @property
    def _rows(self) -> int:
        return self.public.declared_size("input perturbation")

    @property
    def strength(self) -> float:
        """Return the lambda that is used: by default one row's curvature."""
        return self.facts.curvature if self.regularization is None else float(self.regularization)

    @property
    def cell(self) -> float:
        """Return the width of a cell of the grid that rows are rounded to."""
        return power_of_two(self.facts.row_l2 / (_ROW_CELLS * math.sqrt(self.facts.width)))

    @property
    def sensitivity(self) -> Sensitivity:
        """Return how far one row moves, in cells."""
        return grid_sensitivity(2 * self.facts.row_l2 / self.cell, self.facts.width)

    @cached_property
    def noise(self) -> IntegerLaplace | IntegerGaussian:
        return _noise_for(self, self.sensitivity)

    @property
    def event(self) -> Event:
        return self.noise.event.repeated(self.facts.models) if self.facts.models > 1 else self.noise.event

    @property
    def assumption(self) -> None:
        """Return None: the solver sees noisy rows only."""
        return None

    def _weights(self, problem: Problem, entropy: Entropy) -> Array:
        cells = np.zeros((self._rows, self.facts.width), dtype=np.int64)
        signed = problem.y[: self._rows, None] * np.asarray(problem.x[: self._rows], np.float64)
        cells[: len(signed)] = np.rint(signed / self.cell)
        noisy: Any = self.noise(cells.ravel(), entropy=entropy)
        rows = noisy.reshape(cells.shape).astype(np.float64) * self.cell
        rows = rows[np.lexsort(rows.T)]
        longest = max(self.facts.row_l2, float(np.linalg.norm(rows, axis=1).max()))
        problem = replace(problem, x=rows, y=np.ones(len(rows)), row_norm=longest)
        tolerance = len(rows) * self.facts.gradient_l2 * _ROW_TOLERANCE
        return minimize(problem, tolerance)[0]

    @property
    def expected_excess(self) -> float:
        """Return an estimate of how far regularization and noise raise J above its minimum: noise of this
        deviation changes the loss of each row by about `lipschitz` times the noise of its score."""
        facts, deviation = self.facts, math.sqrt(self.noise.mean_squared_error) * self.cell
        return self._bias + 2 * facts.size * facts.lipschitz * deviation * facts.expected_norm

    def error(self, confidence: float = 0.95) -> float:
        facts, rows = self.facts, self._rows
        entries = rows * facts.width * facts.models
        entry_error = float(self.noise.error(confidence, entries=entries)) + 1
        longest = math.sqrt(facts.width) * entry_error * self.cell
        norm = math.sqrt(2 * rows * self._loss_at_zero / self.strength)
        slope = facts.lipschitz + facts.smoothness * facts.row_l2 * norm
        return rows * (longest * slope + facts.gradient_l2 * _ROW_TOLERANCE) / self.strength


def excess_risk(
    rows: int,
    width: int,
    *,
    epsilon: float,
    delta: float,
    steps: int | None = None,
    lipschitz: float = 1.0,
    diameter: float = 1.0,
    neighbors: Neighbors = ADD_REMOVE,
) -> float:
    """Return a bound on the expected excess of the mean loss over its minimum, for noisy gradient descent
    on a convex loss: with many steps about sqrt(2 width ln(1/delta)) / (epsilon rows), times `lipschitz` and
    `diameter`.

    The descent starts anywhere in a convex set of this diameter, is projected onto it after each of `steps`
    steps (None: more and more of them), takes the gradients of all rows and averages the iterates. The number
    of rows is public; `lipschitz` bounds the norm of a row's gradient in the set.

    Guarantee: (epsilon, delta)-DP at this expected excess, at the best step size.
    Proof:     let n be `rows`, d `width`, T `steps`, L `lipschitz`, D `diameter`, and c what one unit moves
               the sum of gradients by, in l2: L, and 2 L if it is replaced. Noise of variance T c² / (2 rho)
               on each sum is rho-zCDP, which implies (epsilon, delta)-DP (`zcdp_rho`), and makes the mean
               gradient unbiased with a second moment of at most V = L² + d T c² / (2 rho n²). With F the mean
               loss, s the step size and w* a minimizer, projection and convexity give 2 s E[F(w_t) - F(w*)]
               <= E|w_t - w*|² - E|w_(t+1) - w*|² + s² V, and so D² / (2 s T) + s V / 2 for the mean iterate:
               D sqrt(V / T) at s = D / sqrt(V T). No learner does better than about min(1, sqrt(d) /
               (epsilon n)) on all such losses (Bassily, Smith & Thakurta 2014, arXiv:1405.7085, Section 5;
               their descent, Section 2, takes stochastic steps and loses a power of a logarithm more).
    """
    _require.integer(rows=rows, width=width, at_least=1)
    _require.positive(lipschitz=lipschitz, diameter=diameter)
    change = lipschitz if neighbors is ADD_REMOVE else 2 * lipschitz
    noise = width * change**2 / (2 * zcdp_rho(epsilon, delta) * rows**2)
    if steps is None:
        return diameter * math.sqrt(noise)
    _require.integer(steps=steps, at_least=1)
    return diameter * math.sqrt(lipschitz**2 / steps + noise)


METHODS: dict[str, type[LinearERM]] = {
    "objective": ObjectivePerturbation,
    "output": OutputPerturbation,
    "gradient": GradientPerturbation,
    "input": RowPerturbation,
}
# What "auto" chooses among: input perturbation is never the best of them.
_AUTO = ("objective", "output", "gradient")


def linear_mechanism(
    public: Public,
    *,
    target: str,
    features: Sequence[str] | None,
    method: str,
    clip: str,
    intercept: bool = True,
    **options: Any,
) -> tuple[LinearERM, str]:
    """Return the learner of a linear model, and the reason for its choice as a sentence.

    `method` is a key of `METHODS` or "auto"; `clip` as in `Design`; `options` are fields of the learner.

    With a category among the features there is no intercept: the category's indicators add up to 1, so that
    their weights can express one. A coordinate for it would make rows longer, and so increase the noise
    (without it rows of Adult are 4% shorter, and accuracy at epsilon 0.1 is 0.001 higher).
    """
    _require.one_of(("auto", *METHODS), method=method)
    names = features_of(public, target, features)
    has_category = any(isinstance(public.fact(name), Categories) for name in names)
    design = Design(features=names, target=target, intercept=intercept and not has_category, clip=clip)
    fields = {"public": public, "design": design, **options}
    if method != "auto":
        return METHODS[method](**fields), f"{method}: chosen by the caller."
    # gradient perturbation needs a delta
    return least_excess(
        [METHODS[name](**fields) for name in _AUTO if name != "gradient" or options.get("delta")]
    )


def least_excess(candidates: Sequence[LinearERM]) -> tuple[LinearERM, str]:
    """Return the learner with the least expected excess loss, which depends on public facts alone, and a
    sentence with the figures of all candidates."""
    names = {cls: name for name, cls in METHODS.items()}
    choice = min(candidates, key=lambda learner: learner.expected_excess)
    facts = choice.facts
    size = facts.size
    figures = ", ".join(f"{names[type(c)]} {c.expected_excess / size:.2g}" for c in candidates)
    return choice, (
        f"{names[type(choice)]}: the least expected excess loss per row ({figures}), from {size} declared "
        f"rows, {facts.width} coordinates, row norm {facts.row_l2:.3g}, epsilon {choice.epsilon:g} and delta "
        f"{choice.delta:g}."
    )
