"""Private empirical risk minimization of linear models: what output and objective perturbation share.

All minimize J(w) = sum_i c_i f(<w, x_i>, y_i) + (lambda/2) |w|² + l1 |w|_1, a sum and not a mean, so that
adding or removing a row changes one summand and no number that depends on the size. `regularization` is this
lambda; scikit-learn's C is 1 / lambda. The l1 penalty leaves the intercept out.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _require
from ..._public import ADD_REMOVE, Public
from ...accounting import Event
from ...mechanisms.protocols import Release, Sensitivity, check_source, release
from ...sampling import Entropy
from ...tables import Source
from .losses import Logistic, Loss, Softmax
from .model import LinearModel, columns_only, target_classes
from .proximal import minimize_damped, minimize_sparse
from .rows import Design, Rows
from .softmax import SoftmaxProblem, rounding_of_chances
from .solver import Problem, minimize, rounding_of_gradient, rounding_of_slopes

Array = npt.NDArray[np.float64]
# How short the gradient must be where the solver stops, and what rounding may add, over the largest gradient
# of one row.
_TOLERANCE = 2.0**-20
# What rounding may add per declared row, over the same: it grows with their number (see `Problem.rounding`).
_PER_ROW = 2.0**-37
# How many times the declared number of rows a table may have such that rounding leaves room for a
# certificate.
_MAX_TIMES = 2
# Below this, noise in cells of the grid would not fit 64 bits.
LEAST_EPSILON = 1e-6
# Above this, the rho of Gaussian noise is no float.
LARGEST_EPSILON = 1e300
# The largest l1 penalty, over the largest gradient of one row: a larger one leaves no weight in any table of
# fewer rows, and rounding of it would be more than the solver's tolerance (`proximal`).
LARGEST_L1 = 2.0**28
# The least and the largest lambda that is taken: beyond them, squares of weights leave the range of floats.
REGULARIZATIONS = 1e-100, 1e100
# The largest class weight: beyond it, squares of gradients and noise leave the range of floats.
LARGEST_CLASS_WEIGHT = 1e9
# The least lambda that is chosen here, over one row's curvature, where a huge epsilon leaves no noise.
LEAST_STRENGTH = 2.0**-30


@dataclass(frozen=True, kw_only=True)
class Facts:
    """Holds the public numbers of a problem, which prices and noise scales are computed from."""

    width: int
    models: int
    # how many rows' summands differ between neighbors: 1 under add_remove; a replaced row is one removed and
    # one added
    changes: int
    l1: float
    l2: float
    lipschitz: float
    smoothness: float
    size: int
    # of all classes at once (softmax): how many; 1 otherwise
    joint: int = 1

    @property
    def gradient_l1(self) -> float:
        """Return a bound on the l1 norm of one row's gradient: for a softmax sqrt(2) times its l2 bound in
        the scores, as |p - e_y|_1 <= 2.
        """
        return self.lipschitz * self.l1 * (1.0 if self.joint == 1 else math.sqrt(2) * (1 + 1e-15))

    @property
    def gradient_l2(self) -> float:
        return self.lipschitz * self.l2

    @property
    def curvature(self) -> float:
        """Return a bound on the largest eigenvalue of one row's Hessian."""
        return self.smoothness * self.l2**2

    @property
    def sides(self) -> int:
        """Return the number of normal variables whose maximum bounds the privacy loss of one row: the score
        of every other class against its own (`ObjectivePerturbation`).
        """
        return max(1, self.joint - 1)

    @property
    def rank(self) -> int:
        """Return a bound on the rank of one row's Hessian."""
        return max(1, self.joint - 1)

    @property
    def eigenvalue(self) -> float:
        """Return a bound on the mean of the nonzero eigenvalues of one row's Hessian, which bounds the
        product of 1 + eigenvalue / lambda, by the inequality of the arithmetic and the geometric mean. A
        softmax of k classes has a trace of at most 1 - 1/k and rank k - 1: 1/k, where its largest is 1/2.
        """
        return self.curvature if self.joint == 1 else self.curvature * 2 / self.joint

    def determinant(self, strength: float) -> float:
        """Return how much the determinant of the Hessian of J can change with a row, in logarithms."""
        return self.rank * math.log1p(self.eigenvalue / strength)

    @property
    def least_tolerance(self) -> float:
        """Return the length of the gradient at which the solver stops, with what rounding hides of it at
        short weights; `LinearERM.tolerance_at` allows for long ones."""
        return self.gradient_l2 * (_TOLERANCE + max(_TOLERANCE, _PER_ROW * self.size))

    @property
    def expected_norm(self) -> float:
        """Return the norm of weights that is expected a priori: 1/2 for each coordinate, in root mean
        square.
        """
        return math.sqrt(self.width) / 2


@dataclass(frozen=True, kw_only=True)
class LinearERM(ABC):
    """Shares what learners need that solve a regularized problem: fields, checks, and the fit of one or
    several models.

    With more than two classes one model is fitted for each class against the rest; every row is in all of
    them, and the price is the sum. `class_weights`: one weight for each declared class, which multiplies the
    loss of its rows, and the sensitivity. `rows`: the number of units, declared here where the public facts
    have none. `l1` is the weight of the l1 penalty; the minimizer of J is sparse, the released one is noisy.
    """

    public: Public
    design: Design
    epsilon: float
    delta: float = 0.0
    loss: Loss = field(default_factory=Logistic)
    regularization: float | None = None
    class_weights: tuple[float, ...] = ()
    rows: int | None = None
    l1: float = 0.0

    def __post_init__(self) -> None:
        check_price(self.epsilon, self.delta)
        if not isinstance(self.loss, Loss):
            raise _require.fail("loss", self.loss, "Logistic(), HuberHinge(), Huber() or Squared()")
        _require.finite(l1=self.l1)
        _require.non_negative(l1=self.l1)
        if self.regularization is not None:
            _require.positive(regularization=self.regularization)
            low, high = REGULARIZATIONS
            if not low <= self.regularization <= high:
                raise _require.fail("regularization", self.regularization, f"between {low:g} and {high:g}")
        object.__setattr__(self, "class_weights", _require.listed(class_weights=self.class_weights))
        _require.positive(**{f"class_weights[{i}]": weight for i, weight in enumerate(self.class_weights)})
        if self.design.target is None:
            raise _require.fail("target", None, "the name of a column")
        self.design.check(self.public)
        if self.class_weights and len(self.class_weights) != len(self.classes):
            raise _require.fail(
                "class_weights", self.class_weights, f"one for each of {len(self.classes)} classes"
            )
        if max(self.class_weights, default=1.0) > LARGEST_CLASS_WEIGHT:
            raise _require.fail("class_weights", max(self.class_weights), f"at most {LARGEST_CLASS_WEIGHT:g}")
        if self.rows is not None:
            _require.integer(rows=self.rows, at_least=1)
        largest_l1 = LARGEST_L1 * self.facts.gradient_l2 / self.facts.width**0.5
        if self.l1 > largest_l1:
            raise _require.fail("l1", self.l1, f"at most {largest_l1:.3g}, which leaves no weight")
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Refuse what has no price."""

    @abstractmethod
    def _weights(self, problem: Any, entropy: Entropy) -> Array:
        """Return the private weights of one model."""

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
        """Return the expected excess of J over its minimum, by bias and noise: a rough figure for choosing a
        method, from public facts.
        """

    @property
    def numbers(self) -> int:
        """Return how many numbers its model holds."""
        return self.facts.width * self.facts.models

    @property
    def _bias(self) -> float:
        return self.strength * self.facts.expected_norm**2 / 2

    @property
    def asked(self) -> tuple[float, float]:
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
            l1=l1,
            l2=l2,
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
        kind = Problem if self.facts.joint == 1 else partial(SoftmaxProblem, classes=self.facts.joint)
        return [
            kind(
                x=x,
                y=y,
                weights=weights,
                loss=self.loss,
                linear=np.zeros(self.facts.width),
                strength=self.strength,
                row_norm=self.facts.l2,
                lipschitz=self.facts.lipschitz,
            )
            for y in labels
        ]

    @property
    def penalties(self) -> Array:
        """Return the weight of the l1 penalty of each coordinate; 0 for the intercept."""
        per_class = np.full(self.facts.width // self.facts.joint, float(self.l1))
        if self.design.intercept:
            per_class[-1] = 0.0
        return np.tile(per_class, self.facts.joint)

    @property
    def _longest_noise(self) -> float:
        """Return a length that the linear part of the objective exceeds with probability 2 e^-60 at most."""
        return 0.0

    @property
    def tolerance(self) -> float:
        """Return the length of the gradient at which the solver stops, with what rounding may have hidden."""
        return self.tolerance_at(self.strength)

    def tolerance_at(self, strength: float) -> float:
        """Return the tolerance for this lambda, such that rounding leaves room for a certificate.

        Guarantee: at the minimizer of any table of at most `_MAX_TIMES` the declared number of rows,
                   rounding (`Problem.rounding`) takes no more of it than is left beside the solver's 2^-20.
        Proof:     the minimizer w of J + <b, .> has no larger an objective than 0, and losses are not
                   negative: lambda |w|² / 2 <= |b| |w| + the losses at 0, which bounds |w|. What rounding
                   adds grows with |w|.
        """
        facts, rows = self.facts, _MAX_TIMES * self.facts.size
        noise, least = self._longest_noise, facts.least_tolerance
        length = (noise + math.sqrt(noise**2 + 2 * strength * rows * self._loss_at_zero) + least) / strength
        heaviest = max(self.class_weights, default=1.0)
        slope = rounding_of_slopes(
            facts.width // facts.joint, length, facts.l2, facts.lipschitz, facts.smoothness
        ) + (0.0 if facts.joint == 1 else heaviest * rounding_of_chances(facts.joint))
        penalty = strength * length + noise + float(np.linalg.norm(self.penalties))
        rounding = rounding_of_gradient(rows, facts.l2, slope, penalty)
        return max(least, facts.gradient_l2 * _TOLERANCE + rounding * (1 + 1e-6))

    @property
    def _loss_at_zero(self) -> float:
        """Return the largest loss of a row at weights of zero: targets are in [-1, 1], and losses convex."""
        heaviest = max(self.class_weights, default=1.0)
        if self.facts.joint > 1:
            return heaviest * math.log(self.facts.joint)
        return heaviest * float(self.loss.value(np.zeros(2), np.array([-1.0, 1.0])).max())

    def _solve(self, problem: Problem) -> Array:
        """Return a point with a certificate, which the price rests on: where the quick solvers end without
        one, the damped solver goes on."""
        tolerance = self.tolerance
        if self.l1 > 0:
            point, certified = minimize_sparse(problem, self.penalties, tolerance)
        else:
            point, certified = minimize(problem, tolerance)
        return point if certified else minimize_damped(problem, self.penalties, tolerance)[0]


def check_price(epsilon: float, delta: float) -> None:
    """Require an epsilon between `LEAST_EPSILON` and `LARGEST_EPSILON`, and a delta in [0, 1)."""
    _require.finite(epsilon=epsilon)
    if not epsilon >= LEAST_EPSILON:
        raise _require.fail("epsilon", epsilon, f"at least {LEAST_EPSILON:g}")
    if epsilon > LARGEST_EPSILON:
        raise _require.fail("epsilon", epsilon, f"at most {LARGEST_EPSILON:g}")
    _require.probability(delta=delta)
    if not delta < 1:
        raise _require.fail("delta", delta, "below 1")


def grid_sensitivity(cells: float, width: int) -> Sensitivity:
    """Return the sensitivity of points of `width` coordinates that are rounded to a grid, where neighbors'
    are within `cells` of each other in l2 before they are rounded.

    Proof: rounding moves each coordinate of either by at most half a cell, so that the difference grows by at
           most sqrt(width) in l2 and by 1 in each coordinate; l1 is at most sqrt(width) times l2.
    """
    l2 = (cells + math.sqrt(width)) * (1 + 1e-12)
    return Sensitivity(
        linf=math.ceil(cells + 1),
        l0=width,
        l1=math.ceil(math.sqrt(width) * l2),
        l2_squared=math.ceil(l2**2),
    )


def power_of_two(value: float) -> float:
    """Return the largest power of two that is not above a positive number: grids of these make floats
    exact."""
    return 2.0 ** (math.frexp(value)[1] - 1)
