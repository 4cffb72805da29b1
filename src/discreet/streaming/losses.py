"""Defines losses of online learners, with a gradient for every row, and the statistic that adds up clipped
gradients.

There are no other losses than these, and each is described by its fields, so that analysts may request them
and no code of theirs is run. A row's gradient is computed column by column, in operations whose rounding does
not depend on the row's position (sums, products, roots; exponentials one number at a time; never a matrix
product): a row never changes the gradient of another, not by an ulp. The methods `values` serve comparisons
in simulations, and no release uses them.

In a loss, w is the decision, x the numbers of the columns [rows, columns] and y the target; `read` are the
columns that it needs, `convexity` is its strong convexity.

Defines convex sets of decisions, the update rules of online learning, which post-process noisy sums of
gradients, and bounds of their regret, which are known before anything is spent.

In this module v is the noisy sum of gradients (or losses) so far, n_t its noise after step t, w a decision, H
the strong convexity of the losses (`convexity`), L the longest gradient (`lipschitz`), D the diameter of the
set, d its dimension, T the number of steps and N the number of experts. `deviations` are the standard
deviations of an entry of n_1, ..., n_T. The bounds leave out that vectors are rounded to a grid before they
are added: by at most e per entry, this adds at most T e for experts, and T e sqrt(d) D for other learners.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import REPLACE, Bounds, Categories, Public
from .._registry import described
from .._require import POSITIVE, Limit, among, at_least
from ..mechanisms import arrow_columns
from ..mechanisms.protocols import Integers, Sensitivity
from ..tables import Source
from .stream_statistics import names_unit

Floats = NDArray[np.float64]
# The number of grid steps in a gradient of length `clip`: rounding changes an entry by less than clip / 2^16.
GRID = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _ColumnLoss:
    """Is the base of losses that treat all their columns alike."""

    columns: Annotated[tuple[str, ...], Limit(_names)]

    @property
    def dimension(self) -> int:
        return len(self.columns)

    @property
    def read(self) -> tuple[str, ...]:
        return self.columns


@described("streaming.SquaredDistance")
class SquaredDistance(_ColumnLoss):
    """Computes |w - x|² / 2: the best decision is the mean of the columns. It is 1-strongly convex."""

    convexity = 1.0

    def gradients(self, w: Floats, x: Floats) -> Floats:
        return w - x

    def values(self, w: Floats, x: Floats) -> Floats:
        return np.asarray(0.5 * np.square(w - x).sum(axis=1))


@described("streaming.LinearLoss")
class LinearLoss(_ColumnLoss):
    """Computes <w, x>: each column has the losses of one expert (or one direction), within its declared
    bounds.
    """

    convexity = 0.0

    def gradients(self, w: Floats, x: Floats) -> Floats:
        return x

    def values(self, w: Floats, x: Floats) -> Floats:
        return np.asarray(x @ w)


@dataclass(frozen=True, slots=True, kw_only=True)
class _TargetLoss:
    """Is the base of losses of a linear prediction of `target` from `features`. The last entry of w is the
    intercept, unless `intercept` is False.
    """

    target: str
    features: Annotated[tuple[str, ...], Limit(_names)]
    intercept: bool = True

    def __post_init__(self) -> None:
        wanted = f"columns without the target {self.target!r}"
        _require.must(self.target not in self.features, "features", self.features, wanted)

    @property
    def dimension(self) -> int:
        return len(self.features) + self.intercept

    @property
    def read(self) -> tuple[str, ...]:
        return (*self.features, self.target)

    convexity = 0.0

    def _parts(self, w: Floats, x: Floats) -> tuple[Floats, Floats, Floats]:
        """Return the inputs, the predictions and the targets."""
        inputs = x[:, :-1]
        if self.intercept:
            inputs = np.column_stack([inputs, np.ones(len(x))])
        predicted = np.zeros(len(x))
        for column, weight in zip(inputs.T, w.tolist(), strict=True):
            predicted = predicted + column * weight
        return inputs, predicted, x[:, -1]


@described("streaming.SquaredLoss")
class SquaredLoss(_TargetLoss):
    """Computes (<w, x> - y)² / 2: linear regression."""

    def gradients(self, w: Floats, x: Floats) -> Floats:
        inputs, predicted, y = self._parts(w, x)
        return np.asarray((predicted - y)[:, None] * inputs)

    def values(self, w: Floats, x: Floats) -> Floats:
        _, predicted, y = self._parts(w, x)
        return np.asarray(0.5 * np.square(predicted - y))


@described("streaming.LogisticLoss")
class LogisticLoss(_TargetLoss):
    """Computes log(1 + exp(<w, x>)) - y <w, x>: logistic regression on a target of two declared categories
    (the second is 1), or a number from 0 to 1.
    """

    def gradients(self, w: Floats, x: Floats) -> Floats:
        inputs, predicted, y = self._parts(w, x)
        # One number at a time: numpy's vectorized exponential may round by position.
        probability = np.array([_sigmoid(z) for z in predicted.tolist()]).reshape(-1)
        return np.asarray((probability - y)[:, None] * inputs)

    def values(self, w: Floats, x: Floats) -> Floats:
        _, predicted, y = self._parts(w, x)
        return np.asarray(np.logaddexp(0, predicted) - y * predicted)


Loss = SquaredDistance | LinearLoss | SquaredLoss | LogisticLoss
LOSSES = {"distance": SquaredDistance, "linear": LinearLoss, "squared": SquaredLoss, "logistic": LogisticLoss}


def _finite(vectors: Floats) -> Floats:
    """Return the vectors, with zeros in place of those that are not finite."""
    return np.where(np.isfinite(vectors).all(axis=1, keepdims=True), vectors, 0.0)


def _exact_sum(gradients: list[Floats]) -> Floats:
    """Return the sum of the gradients, computed exactly and rounded once, so that order does not matter.
    An entry beyond the range of floats is infinite."""
    if len(gradients) == 1:
        return gradients[0]
    # Each is scaled down by 2^64, so that no partial sum overflows, on which math.fsum would raise.
    scaled = np.ldexp(np.stack(gradients), -64)
    with np.errstate(over="ignore"):
        return np.asarray(np.ldexp([math.fsum(column) for column in scaled.T.tolist()], 64))


def _sigmoid(z: float) -> float:
    # exp(-z) overflows for z below -709; at -700 the result is already below 1e-304.
    return 1 / (1 + math.exp(-z)) if z > -700 else 0.0


def _names(**named: Any) -> tuple[str, ...]:
    """Return names of columns as a tuple, each once."""
    (name,) = named
    columns = _require.entries(**named)
    are_names = all(isinstance(c, str) for c in columns) and len(set(columns)) == len(columns)
    _require.must(are_names, name, columns, "names of columns, each once")
    return columns


def examples(source: Source, loss: Loss) -> Iterator[tuple[Floats, list[Any]]]:
    """Yield, for each batch, the numbers of the loss's columns, [rows, columns], clipped to declared bounds,
    and the unit of each row (None where units are rows).

    A row in which anything is missing, not a number or infinite is left out: it contributes nothing.
    """
    unit = source.public.unit.column
    names = list(dict.fromkeys([*loss.read, *([] if unit is None else [unit])]))
    for batch in source.batches(names):
        arrays = dict(zip(batch.schema.names, batch.columns, strict=True))
        complete = np.ones(batch.num_rows, dtype=bool)
        columns = []
        for name in loss.read:
            values, present = _numbers(arrow_columns.unpacked(arrays[name]), name, source.public)
            columns.append(values)
            complete &= present
        units = [None] * batch.num_rows if unit is None else arrays[unit].to_pylist()
        x = np.stack(columns, axis=1) if columns else np.zeros((batch.num_rows, 0))
        yield x[complete], [u for u, k in zip(units, complete.tolist(), strict=True) if k]


def _numbers(array: Any, name: str, public: Public) -> tuple[Floats, Any]:
    """Return a column as numbers within its bounds (or codes of its categories), and a mask of the rows whose
    value is usable."""
    fact = public.fact(name)
    if isinstance(fact, Categories):
        codes = arrow_columns.categories(array, fact.values, name)
        return codes.astype(np.float64), codes >= 0
    assert isinstance(fact, Bounds)
    present = arrow_columns.present(array)
    values = arrow_columns.numbers(array, name).astype(np.float64)
    return np.clip(values, float(fact.lower), float(fact.upper)), present


def check_columns(loss: Any, public: Public) -> None:
    """Refuse a loss whose columns are not declared as what it needs."""
    _require.must(
        isinstance(loss, Loss), "loss", type(loss).__name__, f"one of streaming.losses: {', '.join(LOSSES)}"
    )
    for name in loss.read:
        fact = public.fact(name)
        is_binary = isinstance(fact, Categories) and len(fact.values) == 2
        if isinstance(fact, Bounds) or (is_binary and isinstance(loss, LogisticLoss) and name == loss.target):
            continue
        raise InvalidInput(
            f"column {name!r} has no declared bounds, and a loss needs numbers (a target of LogisticLoss may "
            "have two categories). Declare Bounds(lower, upper)."
        )
    if isinstance(loss, LogisticLoss) and isinstance(public.fact(loss.target), Bounds):
        bounds = public.bounds(loss.target)
        within = float(bounds.lower) >= 0 and float(bounds.upper) <= 1
        _require.must(within, f"the bounds of the target {loss.target!r}", bounds, "within 0 and 1")


@described("streaming.ClippedGradients")
class ClippedGradients:
    """Sums the gradients of a loss at `decision`, each unit's clipped to length `clip` (in the norm `norm`),
    in integer multiples of clip / 2^16, the grid step. An empty `decision` stands for zeros.

    Guarantee: one unit moves the sum by at most 2^16 grid steps in l2, or in l1 if `norm` is "l1" (twice that
               under replace), whatever its rows hold.
    Proof:     the gradients of a unit's rows of the tick are added up and scaled to length at most `clip`;
               entries are truncated towards zero. A vector that rounding made longer counts as zero, and so
               does one that is not finite. A row with a missing value adds nothing, so that a blank row
               (zero_out) moves nothing, and a row whose id names no unit adds nothing. Each unit's integers
               are a function of its own rows and of `decision`: its rows are added exactly and rounded once,
               so that the order in which the engine returns them, which may depend on the rows of others,
               does not matter.
    """

    loss: Loss
    clip: Annotated[float, POSITIVE]
    norm: Annotated[str, among(("l1", "l2"))] = "l2"
    decision: tuple[float, ...] = ()

    @property
    def step(self) -> Fraction:
        return Fraction(self.clip) / GRID

    def length(self, public: Public) -> int:
        return self.loss.dimension

    def sensitivity(self, public: Public) -> Sensitivity:
        check_columns(self.loss, public)
        d = self.loss.dimension
        reach = GRID * (2 if public.neighbors is REPLACE else 1)
        l1 = reach if self.norm == "l1" else reach * (math.isqrt(d - 1) + 1)
        return Sensitivity(linf=reach, l0=d, l1=l1, l2_squared=reach**2)

    def __call__(self, source: Source) -> Integers:
        units_are_rows = source.public.unit.column is None
        total = np.zeros(self.loss.dimension, np.int64)
        gradients_by_unit: dict[Any, list[Floats]] = {}
        for x, units in examples(source, self.loss):
            gradients = self._row_gradients(x)
            if units_are_rows:
                total += self.clipped(gradients).sum(axis=0)
                continue
            for unit, gradient in zip(units, gradients, strict=True):
                if names_unit(unit):
                    gradients_by_unit.setdefault(unit, []).append(gradient)
        if gradients_by_unit:
            unit_gradients = np.stack([_exact_sum(part) for part in gradients_by_unit.values()])
            total += self.clipped(unit_gradients).sum(axis=0)
        return total

    def _row_gradients(self, x: Floats) -> Floats:
        w = np.array(self.decision) if self.decision else np.zeros(self.loss.dimension)
        # A warning of numpy would depend on the data.
        with np.errstate(all="ignore"):
            gradients = self.loss.gradients(w, x)
        return _finite(gradients)

    @np.errstate(all="ignore")
    def clipped(self, gradients: Floats) -> Integers:
        """Return each vector in integer grid steps, with a length of at most 2^16 of them."""
        finite = _finite(gradients)
        peak = np.maximum(np.abs(finite).max(axis=1, initial=0.0), 1e-300)[:, None]
        direction = finite / peak
        length = np.zeros(len(finite))
        for column in direction.T:
            length = length + (np.abs(column) if self.norm == "l1" else column * column)
        length = (length if self.norm == "l1" else np.sqrt(length))[:, None]
        # The factor below 1 makes up for the rounding of lengths in floats, which is far below 2^-30.
        clipped_length = np.minimum(self.clip, peak * length) / self.clip * (1 - 2.0**-30)
        steps = np.trunc(direction / np.maximum(length, 1e-300) * clipped_length * GRID)
        steps = np.where(np.isfinite(steps), np.clip(steps, -GRID, GRID), 0.0).astype(np.int64)
        size = np.abs(steps).sum(axis=1) if self.norm == "l1" else np.square(steps).sum(axis=1)
        within = np.asarray(size <= (GRID if self.norm == "l1" else GRID**2))
        return np.where(within.reshape(-1, 1), steps, 0)


class ConvexSet(Protocol):
    """Describes a convex set of decisions: its diameter, and the projection onto it, which returns the point
    of the set that is nearest to w."""

    @property
    def dimension(self) -> int: ...

    @property
    def diameter(self) -> float: ...

    def project(self, w: Floats, /) -> Floats: ...


@described("streaming.Ball")
@dataclass(frozen=True, slots=True)
class Ball:
    """Holds all points within `radius` of the origin."""

    dimension: Annotated[int, at_least(1)]
    radius: Annotated[float, POSITIVE] = 1.0

    @property
    def diameter(self) -> float:
        return 2 * self.radius

    def project(self, w: Floats) -> Floats:
        length = float(np.linalg.norm(w))
        return w if length <= self.radius else w * (self.radius / length)


@described("streaming.Box")
@dataclass(frozen=True, slots=True)
class Box:
    """Holds all points with every entry between `lower` and `upper`."""

    dimension: Annotated[int, at_least(1)]
    lower: float = 0.0
    upper: float = 1.0

    def __post_init__(self) -> None:
        _require.ordered(lower=self.lower, upper=self.upper)

    @property
    def diameter(self) -> float:
        return (self.upper - self.lower) * math.sqrt(self.dimension)

    def project(self, w: Floats) -> Floats:
        return np.clip(w, self.lower, self.upper)


@described("streaming.Simplex")
@dataclass(frozen=True, slots=True)
class Simplex:
    """Holds all weights that are not negative and add up to 1."""

    dimension: Annotated[int, at_least(1)]

    @property
    def diameter(self) -> float:
        return math.sqrt(2)

    def project(self, w: Floats) -> Floats:
        """Project onto the simplex by sorting (Duchi, Shalev-Shwartz, Singer & Chandra 2008)."""
        # The same constant added to all entries does not change the projection. With the largest entry at 0,
        # rounding does not lose the 1 that is subtracted below, as it would next to large entries.
        w = w - w.max()
        descending = np.sort(w)[::-1]
        # entry k - 1: what to subtract if the k largest entries stay positive
        excess = (np.cumsum(descending) - 1) / np.arange(1, len(w) + 1)
        return np.asarray(np.maximum(w - excess[np.flatnonzero(descending > excess)[-1]], 0.0))


Space = Ball | Box | Simplex


def follow_leader(space: ConvexSet, decisions: Floats, noisy: Floats, convexity: float, step: int) -> Floats:
    """Return the w in the set that minimizes <v, w> + (H / 2) sum of |w - w_s|² over the `step` decisions w_s
    so far, whose sum is `decisions`: the projection of their mean less v / (H step)."""
    return space.project(decisions / step - noisy / (convexity * step))


def descend_mirror(space: ConvexSet, noisy: Floats, inverse_rate: float) -> Floats:
    """Return the w in the set that minimizes <v, w> + (r / 2) |w - w_1|², where w_1 is the point of the set
    nearest to the origin and r is `inverse_rate`, the inverse of a learning rate: the projection of
    w_1 - v / r."""
    return space.project(space.project(np.zeros(space.dimension)) - noisy / inverse_rate)


def weigh_experts(noisy: Floats, temperature: float) -> Floats:
    """Return weights proportional to exp(- v / temperature): Hedge."""
    weights = np.exp(-(noisy - noisy.min()) / temperature)
    return np.asarray(weights / weights.sum())


def leader_bound(space: ConvexSet, lipschitz: float, convexity: float, deviations: Sequence[float]) -> float:
    """Return a bound of the expected regret of the approximate leader.

    Proof: let g_s be the gradient at the decision w_s of round s. By strong convexity the regret is at most
           that for the surrogate losses f_s(w) = <g_s, w> + (H / 2) |w - w_s|². Let u_s be the decision from
           exact sums, which minimizes f_1 + ... + f_(s-1), and x_s = |w_s - u_s| <= D. By strong convexity of
           this sum x_(t+1) <= |n_t| / (H t), and E|n_t| <= sqrt(d) times the deviation. Playing w_s, not u_s,
           costs f_s(w_s) - f_s(u_s) <= L x_s. The gradient of f_s at u_s has length at most L + H x_s, so the
           regret of u_1, ..., u_T is at most the sum of (L + H x_s)² / (2 H s) (Kakade & Shalev-Shwartz
           2008), at most twice L² (1 + ln T) / (2 H) plus the sum of H x_s² / s. There H x_s <= H D <= 2 L:
           where an H-strongly convex loss has gradients of length at most L, the diameter D is at most
           2 L / H. Together x_s adds at most L x_s (1 + 2 / s).
    """
    root = math.sqrt(space.dimension)
    exact = lipschitz**2 * (1 + math.log(len(deviations))) / (2 * convexity)
    shifts = (
        min(space.diameter, root * deviation / (convexity * t)) * (1 + 2 / (t + 1))
        for t, deviation in enumerate(deviations, 1)
    )
    return 2 * exact + lipschitz * sum(shifts)


def mirror_bound(
    space: ConvexSet, lipschitz: float, inverse_rate: float, deviations: Sequence[float]
) -> float:
    """Return a bound of the expected regret of mirror descent: with r the `inverse_rate`, r D² / 2 +
    L² T / (2 r) for exact sums, plus L |n_t| / r for the noise of each step.

    Proof: as in Agarwal & Singh 2017, arXiv:1701.07953, the decision from noisy sums is within |n_t| / r of
           the one from exact sums, and E|n_t| <= sqrt(d) times the deviation; no two decisions are further
           than D apart.
    """
    root, steps = math.sqrt(space.dimension), len(deviations)
    exact = inverse_rate * space.diameter**2 / 2 + lipschitz**2 * steps / (2 * inverse_rate)
    shifts = (min(space.diameter, root * deviation / inverse_rate) for deviation in deviations)
    return exact + lipschitz * sum(shifts)


def experts_bound(experts: int, temperature: float, deviations: Sequence[float], *, laplace: bool) -> float:
    """Return a bound of the expected regret of Hedge for losses in [0, 1]: T / (8 temperature) + temperature
    ln N for exact sums, plus what the noise costs in rounds 2 to T, min(1, E max |n_t| / (2 temperature))
    each, where max is over the entries. `laplace` says whether the noise is Laplace, else it is Gaussian.

    Proof: let p be the weights of round t + 1 from exact sums and q those from sums with noise n_t. Playing
           p, the regret is at most T / (8 temperature) + temperature ln N for any losses in [0, 1], also if
           they depend on earlier decisions (Cesa-Bianchi & Lugosi 2006, Theorem 2.2). Playing q costs at most
           the largest q(A) - p(A) over sets A of experts more, as losses are in [0, 1]. Noise multiplies the
           odds p(A) / (1 - p(A)) by a mean of exp(-n / temperature) over experts in A, over one of experts
           outside, so that their logarithm changes by at most 2 max |n_t| / temperature; the logistic
           function, which turns it into a probability, has a slope of at most 1/4. The noise of the last sum
           is in no decision that is played.
           With s the deviation of n_t, E max |n_t| <= s sqrt(2 ln(2 N)) for Gaussian noise. A sum of Laplace
           noises has E exp(|n| / s) <= 2 E exp(n / s) <= 2e (a Laplace noise of variance u² has E exp(z) =
           1 / (1 - u² / 2) <= exp(u²) for u <= 1, and discrete noise of deviation 1 or more as well), so that
           E max |n_t| <= s ln(N 2e) = s (ln(2 N) + 1).
    """
    widest = math.log(2 * experts) + 1 if laplace else math.sqrt(2 * math.log(2 * experts))
    noise_cost = sum(min(1.0, widest * deviation / (2 * temperature)) for deviation in deviations[:-1])
    return len(deviations) / (8 * temperature) + temperature * math.log(experts) + noise_cost
