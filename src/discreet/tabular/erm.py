"""Minimizes the empirical risk of linear models privately: the base class of objective, output and gradient
perturbation.

All minimize J(w) = sum_i c_i f(<w, x_i>, y_i) + (lambda/2) |w|² over the weights w, where row i has the
coordinates x_i, the target y_i and the weight c_i of its class, and f is the loss. J is a sum and not
a mean, so that adding or removing a row changes one summand only. `regularization` is this lambda;
scikit-learn's C is 1 / lambda.

In proofs G is `Facts.gradient_l2`, the bound on the l2 norm of one row's gradient, L is the Lipschitz
constant of the loss and R the bound on the l2 norm of a row: G = L R.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from .. import _require
from .._public import ADD_REMOVE, Public
from .._require import POSITIVE, PROBABILITY, Limit, at_least, at_most, between, instance_of
from ..accounting import Event
from ..mechanisms.protocols import Mechanism, Release, Sensitivity, check_source, release
from ..sampling import Entropy
from ..tables import Source
from .linear_model import LinearModel, columns_only, target_classes
from .losses import (
    Logistic,
    Loss,
    Problem,
    Softmax,
    SoftmaxProblem,
    minimize,
    minimize_damped,
    rounding_of_gradient,
    rounding_of_probabilities,
    rounding_of_slopes,
)
from .rows import Design, Rows

Array = npt.NDArray[np.float64]
# The length of the gradient at which the solver stops, as a multiple of G; rounding may hide as much again.
_TOLERANCE = 2.0**-20
# The length of the gradient that rounding may hide, per declared row and as a multiple of G: it grows with
# the number of rows (`Problem.rounding`).
_PER_ROW = 2.0**-37
# The solver can certify its result for tables of up to `_MIN_TIMES` times the declared number of rows, and of
# up to `_MAX_TIMES` times as far as the tolerance for them adds little noise (`LinearERM._free_tolerance`).
_MIN_TIMES, _MAX_TIMES = 2, 64
# The least epsilon that is accepted. Weights or gradients are rounded to a grid; below this epsilon the exact
# noise, counted in cells of the grid, would not fit 64-bit integers.
LEAST_EPSILON = 1e-6
# The largest epsilon that is accepted. Above it, the rho of Gaussian noise overflows.
LARGEST_EPSILON = 1e300
# The least and the largest lambda that is accepted: beyond them, squares of weights overflow or underflow.
REGULARIZATIONS = 1e-100, 1e100
# The largest class weight that is accepted: squares of gradients and noise must not overflow.
LARGEST_CLASS_WEIGHT = 10**9
_WEIGHT = at_most(LARGEST_CLASS_WEIGHT)
LOSS = instance_of(Loss, "Logistic(), HuberHinge(), Softmax(), Huber() or Squared()")
# The least lambda that is chosen by default, as a multiple of one row's curvature; without it a huge epsilon
# would lead to 0.
LEAST_STRENGTH = 2.0**-30


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Holds the public numbers of a problem, which prices and noise scales are computed from.

    `width` is the number of weights of a model, `models` the number of models that are fitted one by one,
    `row_l1` and `row_l2` bound the norms of a row, `lipschitz` and `smoothness` the first and the second
    derivative of a row's loss in its score, class weight included, and `size` is the declared number of
    units.
    """

    width: int
    models: int
    # how many rows' summands differ between neighbors: 1 under add_remove; a replaced row is one removed and
    # one added
    changes: int
    row_l1: float
    row_l2: float
    lipschitz: float
    smoothness: float
    size: int
    # the number of classes of a softmax, whose weights are fitted as one model; 1 for any other loss
    joint: int = 1

    @property
    def gradient_l1(self) -> float:
        """Return a bound on the l1 norm of one row's gradient.

        For a softmax the gradient in the scores is p - e_y (`Softmax`), with |p - e_y|_1 <= 2, which is
        sqrt(2) times its `lipschitz`.
        """
        return self.lipschitz * self.row_l1 * (1.0 if self.joint == 1 else math.sqrt(2) * (1 + 1e-15))

    @property
    def gradient_l2(self) -> float:
        """Return G, a bound on the l2 norm of one row's gradient."""
        return self.lipschitz * self.row_l2

    @property
    def curvature(self) -> float:
        """Return a bound on the largest eigenvalue of one row's Hessian."""
        return self.smoothness * self.row_l2**2

    @property
    def sides(self) -> int:
        """Return the number of normal variables whose maximum bounds the privacy loss of one row under
        Gaussian noise, for a loss of classes: one for each class of a softmax other than the row's own, one
        for any other. For a loss of numbers `ObjectivePerturbation` takes 2, as its slope has both signs.
        """
        return max(1, self.joint - 1)

    @property
    def rank(self) -> int:
        """Return a bound on the rank of one row's Hessian."""
        return max(1, self.joint - 1)

    @property
    def eigenvalue(self) -> float:
        """Return a bound on the mean of the `rank` largest eigenvalues of one row's Hessian.

        By the inequality of arithmetic and geometric means, the product of 1 + eigenvalue / lambda is largest
        where all are equal to this mean. For a softmax of k classes the Hessian in the scores has rank k - 1
        and a trace of at most 1 - 1/k, hence the mean 1/k; `curvature` has its largest eigenvalue, 1/2.
        """
        return self.curvature if self.joint == 1 else self.curvature * 2 / self.joint

    def log_determinant(self, strength: float) -> float:
        """Return a bound on the change, by one row, of the logarithm of the determinant of J's Hessian at
        lambda = `strength`."""
        return self.rank * math.log1p(self.eigenvalue / strength)

    @property
    def least_tolerance(self) -> float:
        """Return the length of the gradient at which the solver stops, plus the length that rounding may hide
        where weights are short; `LinearERM.tolerance_at` adds more for long weights."""
        return self.gradient_l2 * (_TOLERANCE + max(_TOLERANCE, _PER_ROW * self.size))

    @property
    def expected_norm(self) -> float:
        """Return the norm of weights that defaults are computed for: a root mean square of 1/2 per
        coordinate. It is an assumption, and affects accuracy only.
        """
        return math.sqrt(self.width) / 2


def _below_one(**named: float) -> None:
    for name, value in named.items():
        _require.must(value < 1, name, value, "below 1")


Epsilon = Annotated[float, between(LEAST_EPSILON, LARGEST_EPSILON)]
Delta = Annotated[float, PROBABILITY, Limit(_below_one)]


@dataclass(frozen=True, kw_only=True)
class LinearERM(Mechanism):
    """Shares fields, checks and the fit of one or several models among learners that minimize J.

    With more than two classes, and any loss but a softmax, one model is fitted for each class against the
    rest; every row is in all of them, and the price is the sum. `class_weights`: one weight for each declared
    class, which multiplies the loss of its rows, and the sensitivity. `rows`: the declared number of units,
    by default `public.size`.
    """

    public: Public
    design: Design
    epsilon: Epsilon
    delta: Delta = 0.0
    loss: Annotated[Loss, LOSS] = field(default_factory=Logistic)
    regularization: Annotated[float, POSITIVE, between(*REGULARIZATIONS)] | None = None
    class_weights: tuple[Annotated[float, POSITIVE, _WEIGHT], ...] = ()
    rows: Annotated[int, at_least(1)] | None = None

    def __post_init__(self) -> None:
        self.design.require_target()
        self.design.check(self.public)
        weights, wanted = self.class_weights, f"one for each of {len(self.classes)} classes"
        _require.must(not weights or len(weights) == len(self.classes), "class_weights", weights, wanted)
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Refuse fields for which no price can be computed."""

    @abstractmethod
    def _weights(self, problem: Any, entropy: Entropy) -> Array:
        """Return the private weights of one model: the only method that adds noise."""

    @property
    @abstractmethod
    def event(self) -> Event: ...

    @property
    @abstractmethod
    def strength(self) -> float:
        """Return the lambda that is used: `regularization`, or one computed from public facts."""

    @property
    @abstractmethod
    def expected_excess(self) -> float:
        """Return an estimate of how far regularization and noise raise J above its minimum, from public
        facts: a rough figure for the choice of a method.
        """

    @property
    def numbers(self) -> int:
        """Return how many numbers its model holds."""
        return self.facts.width * self.facts.models

    @property
    def _bias(self) -> float:
        """Return the part of `expected_excess` that is due to regularization."""
        return self.strength * self.facts.expected_norm**2 / 2

    @property
    def asked(self) -> tuple[float, float]:
        """Return the epsilon and the delta that the caller declared; `event` may cost less."""
        return self.epsilon, self.delta

    @property
    def classes(self) -> tuple[Any, ...]:
        assert self.design.target is not None
        return target_classes(self.public, self.design.target, self.loss.classifies)

    @cached_property
    def facts(self) -> Facts:
        l1, l2 = self.design.norms(self.public)
        heaviest = max(self.class_weights, default=1.0)
        joint = len(self.classes) if isinstance(self.loss, Softmax) else 1
        return Facts(
            width=self.design.width(self.public) * joint,
            models=1 if len(self.classes) <= 2 or joint > 1 else len(self.classes),
            joint=joint,
            changes=1 if self.public.neighbors is ADD_REMOVE else 2,
            row_l1=l1,
            row_l2=l2,
            lipschitz=self.loss.lipschitz * heaviest,
            smoothness=self.loss.smoothness * heaviest,
            size=self.public.declared_size("private empirical risk minimization")
            if self.rows is None
            else self.rows,
        )

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        value = self.fit_rows(*self.design.read(source, entropy), entropy)
        return release(value, event=self.event, entropy=entropy, error=self.error)

    def fit_rows(self, x: Rows, targets: Array, entropy: Entropy) -> LinearModel:
        """Return the private model of rows that `design` has read, for the price of `event`.

        Not a release: callers account for it.
        """
        weights = [self._weights(problem, entropy) for problem in self._problems(x, targets)]
        if self.facts.joint > 1:
            weights = list(weights[0].reshape(self.facts.joint, -1))
            if len(weights) == 2:
                # Only the difference of two classes' weights counts.
                weights = [weights[1] - weights[0]]
        return LinearModel(
            design=self.design, public=columns_only(self.public, self.design), classes=self.classes,
            joint=self.facts.joint > 1, weights=tuple(tuple(row.tolist()) for row in weights),
        )  # fmt: skip

    @abstractmethod
    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on the l2 distance of the released weights from the minimizer of J, which holds with
        this probability."""

    def _problems(self, x: Rows, targets: Array) -> list[Problem]:
        """Return the objective of each model: one, or one of each class against the rest."""
        weights = None
        if self.class_weights:
            weights = np.array(self.class_weights)[targets.astype(np.int64)]
        if not self.loss.classifies or self.facts.joint > 1:
            labels = [targets]
        elif self.facts.models == 1:
            labels = [2 * targets - 1]
        else:
            labels = [np.where(targets == number, 1.0, -1.0) for number in range(self.facts.models)]
        kind = Problem if self.facts.joint == 1 else SoftmaxProblem
        return [
            kind(
                x=x,
                y=y,
                weights=weights,
                loss=self.loss,
                linear=np.zeros(self.facts.width),
                strength=self.strength,
                row_norm=self.facts.row_l2,
                lipschitz=self.facts.lipschitz,
                classes=self.facts.joint,
            )
            for y in labels
        ]

    @property
    def _longest_noise(self) -> float:
        """Return a length that the linear part b of the objective exceeds with probability 2 e^-60 at most; 0
        where there is no linear part."""
        return 0.0

    @property
    def tolerance(self) -> float:
        """Return the length of the gradient at which the solver stops, plus the length that rounding may
        hide."""
        return self.tolerance_at(self.strength)

    def tolerance_at(self, strength: float) -> float:
        """Return the tolerance for lambda = `strength`: that for tables of `_MIN_TIMES` times the declared
        number of rows or, where this adds little noise, of up to `_MAX_TIMES` times (`certified_rows`)."""
        size = self.facts.size
        more_rows = min(self._tolerance_for(strength, _MAX_TIMES * size), self._free_tolerance(strength))
        return max(self._tolerance_for(strength, _MIN_TIMES * size), more_rows)

    def _free_tolerance(self, strength: float) -> float:
        """Return a tolerance that adds so little noise that it is worth the room for more rows."""
        return 0.0

    def _tolerance_for(self, strength: float, rows: int) -> float:
        """Return a tolerance that is large enough that the solver can certify its result for tables of up to
        so many rows.

        Guarantee: at the minimizer of any such table, the bound `Problem.rounding` is at most the tolerance
                   minus G 2^-20, the length at which the solver stops.
        Proof:     let w minimize J + <b, .>, b the linear part. Its objective is at most that of weights 0,
                   and losses are not negative, so that lambda |w|² / 2 <= |b| |w| + the losses at 0. This
                   bounds |w|, with which the bound on rounding grows.
        """
        facts, noise, least = self.facts, self._longest_noise, self.facts.least_tolerance
        length = (noise + math.sqrt(noise**2 + 2 * strength * rows * self._loss_at_zero) + least) / strength
        heaviest = max(self.class_weights, default=1.0)
        slope_error = rounding_of_slopes(
            facts.width // facts.joint, length, facts.row_l2, facts.lipschitz, facts.smoothness
        ) + heaviest * rounding_of_probabilities(facts.joint)
        penalty = strength * length + noise
        rounding = rounding_of_gradient(rows, facts.row_l2, slope_error, penalty)
        return max(least, facts.gradient_l2 * _TOLERANCE + rounding * (1 + 1e-6))

    @property
    def certified_rows(self) -> int:
        """Return for tables of how many rows the solver can certify its result, which the guarantee rests
        on: between 2 and 64 times the declared number.

        For more rows there is no sound way out. To refuse, to train on fewer rows or to take other weights is
        to act on the number of rows, which neighbors under add_remove do not share; rows that are left out to
        keep a number make room for others, so that two rows change; and weights of rows that fall with their
        number change the Hessian in more directions than objective perturbation pays for.
        """
        low, high, tolerance = _MIN_TIMES * self.facts.size, _MAX_TIMES * self.facts.size, self.tolerance
        while low < high:
            middle = (low + high + 1) // 2
            fits = self._tolerance_for(self.strength, middle) <= tolerance
            low, high = (middle, high) if fits else (low, middle - 1)
        return low

    @property
    def assumption(self) -> str | None:
        """Return, as a sentence, what the guarantee rests on beside the declared facts; None where it is
        nothing.

        It is the same for every table. Whether a run has ended without a certificate is a function of the
        private rows, and neighbors may differ in it: a mark on the released model, an error or another output
        would tell it, at a price that nobody has charged.
        """
        times = self.certified_rows // self.facts.size
        return (
            f"the table has at most {self.certified_rows:,} rows, {times} times the declared number, and the "
            f"solver proves there that its point is near the minimizer. Where it does not, the privacy "
            f"guarantee does not hold, and no result shows it, because that would tell something about the "
            f"rows. Declare no fewer rows than the table may have."
        )

    @property
    def _loss_at_zero(self) -> float:
        """Return the largest loss of a row at weights 0. It is that of a target -1 or 1, as targets are in
        [-1, 1] and losses convex in them."""
        heaviest = max(self.class_weights, default=1.0)
        if self.facts.joint > 1:
            return heaviest * math.log(self.facts.joint)
        return heaviest * float(self.loss.value(np.zeros(2), np.array([-1.0, 1.0])).max())

    def _solve(self, problem: Problem) -> Array:
        """Return a point whose gradient is at most `tolerance` long, which privacy rests on.

        Where the fast solver ends without a certificate, the damped one, which is slower, starts anew. Its
        own certificate is not asked for: that it has one is an assumption of the learners' guarantees.
        """
        point, certified = minimize(problem, self.tolerance)
        return point if certified else minimize_damped(problem, self.tolerance)[0]


def grid_sensitivity(cells: float, width: int) -> Sensitivity:
    """Return the sensitivity, in cells, of a point of `width` coordinates that is rounded to a grid, where
    the points of neighbors are within `cells` of each other in l2 before they are rounded.

    Proof: rounding moves each coordinate of either point by at most half a cell, so that the difference grows
           by at most sqrt(width) in l2 and by 1 in each coordinate; l1 is at most sqrt(width) times l2.
    """
    l2 = (cells + math.sqrt(width)) * (1 + 1e-12)
    return Sensitivity(
        linf=math.ceil(cells + 1), l0=width, l1=math.ceil(math.sqrt(width) * l2), l2_squared=math.ceil(l2**2)
    )


def power_of_two(value: float) -> float:
    """Return the largest power of two that is not above a positive number. A grid with such cells makes the
    products with the cell exact in floats."""
    return 2.0 ** (math.frexp(value)[1] - 1)
