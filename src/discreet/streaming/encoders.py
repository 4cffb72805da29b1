"""Defines encoders: they compute the measurements of a stream at each step, in exact integers and with a
small state, and estimate sums from the noisy measurements.

A strategy is a lower triangular matrix C (`mechanisms.matrix`); x has one row per step, the step's vector of
integers x_t. At step t `encode` computes rows of C x in integers, in units of 1 / `scale`; the caller adds
integer noise; `decode` estimates the sum of x_1, ..., x_t from the noisy rows alone. States are plain JSON:
`secret` holds exact sums and is never released, `public` and `sum` are computed from noisy rows alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .._errors import InvalidInput
from ..mechanisms.matrix.triangular import (
    BinaryTree,
    Buffered,
    Dense,
    Toeplitz,
    sensitivity,
    toeplitz_square,
    tree_square,
)
from ..mechanisms.protocols import Integers, Sensitivity
from .factors import RunningSum, StreamStrategy, prefix_variances

Floats = NDArray[np.float64]
State = dict[str, Any]

# Binary digits after the point that are kept of a coefficient of C: truncation there changes the error by
# about a millionth (2^-20).
BITS = 20
# The largest coefficient of a strategy: in integers it is at most 2^40, far below 2^53, up to which floats
# hold integers exactly.
_LARGEST = 2.0**20
# Binary digits after the point of a buffer's decay and weight. A product with them is shifted right by
# as many digits, which rounds it down by less than 1: the proof of `BufferedEncoder` counts on that alone.
_DECAY_BITS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class UnitInfluence:
    """Says how far a unit that adds 1 to each of its steps moves the measurements: the l1 norm, the squared
    l2 norm and the largest entry of the change, and `l0`, in how many measurements each of its steps counts,
    added up over its steps: at different steps it may change different entries of the vector. It holds for a
    unit with at most as many steps as the encoder was told (`times`); nothing here enforces that.
    """

    l1: int
    l2_squared: int
    linf: int
    l0: int

    def of(self, step: Sensitivity) -> Sensitivity:
        """Return the sensitivity for a unit that moves the vector of a step by `step`.

        Proof: the change of the measurements is C U, where row u_i of U is the change of x at step i, bounded
               by `step`, and e_i is the i-th unit vector. |C U|_1 <= sum of |C e_i|_1 |u_i|_1. With
               X = Cᵀ C, |C U|² = sum of X_ij <u_i, u_j> <= max |u|² times the sum of |X_ij| over the unit's
               steps, which `l2_squared` bounds (`triangular.sensitivity`). An entry of row t moves by at most
               the sum of |C_ti| |u_i|_inf, and only if u_i moves this entry for one of the unit's steps i
               with C_ti not 0: of all pairs (i, t) there are `l0`, each with `step.l0` entries at most.
        """
        return Sensitivity(
            linf=self.linf * step.linf,
            l0=max(1, self.l0 * step.l0),
            # The norms are never None once a Sensitivity is made; `or 0` is for the type checker.
            l1=self.l1 * int(step.l1 or 0),
            l2_squared=self.l2_squared * int(step.l2_squared or 0),
        )


class Encoder(ABC):
    """Defines the interface of all encoders: each encodes a block of `steps` steps."""

    scale: int = 1
    steps: int

    @abstractmethod
    def begin(self, size: int) -> State:
        """Return the state before the first step, for vectors with `size` entries."""

    @abstractmethod
    def encode(self, state: State, x: Integers, step: int) -> tuple[State, list[Integers]]:
        """Return the next state and the rows that are measured at `step` = 1, 2, ..."""

    @abstractmethod
    def decode(self, state: State, rows: list[Integers], step: int) -> tuple[State, Floats]:
        """Return the next state and the estimate of the sum so far, from the noisy rows."""

    @abstractmethod
    def sensitivity(self, times: int, separation: int, step: Sensitivity) -> Sensitivity:
        """Return how far a unit moves all measurements of the block, where it changes at most `times` steps,
        any two at least `separation` apart, and each by at most `step`."""

    @abstractmethod
    def variances(self) -> Floats:
        """Return the variance of the sum after each step, for measurements with noise of variance 1."""


def encoder(strategy: StreamStrategy, steps: int) -> Encoder:
    """Return the encoder of a strategy over a block of steps."""
    if isinstance(strategy, BinaryTree):
        return TreeEncoder(strategy, steps)
    if isinstance(strategy, RunningSum):
        return RunningEncoder(steps)
    if isinstance(strategy, Buffered):
        return BufferedEncoder(strategy, steps)
    return RowEncoder(strategy, steps)


def _exact_integers(values: Any) -> Any:
    """Return an array of Python integers, which neither wrap nor round."""
    return np.array([int(v) for v in values], dtype=object)


def _json_integers(values: Any) -> list[Any]:
    """Return a list of Python integers, as JSON has them."""
    return [int(v) for v in values]


class TreeEncoder(Encoder):
    """Runs tree-based aggregation (the binary tree mechanism): a node of level k is the sum of 2^k aligned
    steps. At step t the nodes whose last step is t are complete and get noise, each once: the leaf, and its
    ancestors up to the first that is a left child, of level `_lowest_bit(t)`. Entry k of `secret` and of
    `public` is the newest left child of level k.
    """

    def __init__(self, strategy: BinaryTree, steps: int) -> None:
        self.strategy, self.steps, self.levels = strategy, steps, steps.bit_length()
        self._variances = strategy.node_variances(self.levels)

    def begin(self, size: int) -> State:
        return {"secret": [[0] * size] * self.levels, "public": [[0.0] * size] * self.levels}

    def encode(self, state: State, x: Integers, step: int) -> tuple[State, list[Integers]]:
        top = _lowest_bit(step)
        left, total = list(state["secret"]), _exact_integers(x)
        rows = [total]
        for level in range(top):
            total = total + _exact_integers(left[level])
            rows.append(total)
        left[top] = _json_integers(total)
        return {**state, "secret": left}, rows

    def decode(self, state: State, rows: list[Integers], step: int) -> tuple[State, Floats]:
        top, left = _lowest_bit(step), list(state["public"])
        node = np.asarray(rows[0], dtype=np.float64)
        for level in range(top):
            measured = np.asarray(rows[level + 1], dtype=np.float64)
            if self.strategy.from_below:
                # The mean of two estimates, weighted by inverse variances: the node's own measurement, of
                # variance 1, and the sum of its children. The measurement's weight equals the mean's
                # variance.
                share = self._variances[level + 1]
                children = np.array(left[level]) + node
                node = share * measured + (1 - share) * children
            else:
                node = measured
        left[top] = node.tolist()
        # The first `step` steps are the union of one left node for each binary digit 1 of `step`.
        total = np.zeros(len(node))
        for level in range(self.levels):
            if step >> level & 1:
                total += np.array(left[level])
        return {**state, "public": left}, total

    def sensitivity(self, times: int, separation: int, step: Sensitivity) -> Sensitivity:
        """Return the sensitivity: every leaf is in one node of each level."""
        return UnitInfluence(
            l1=times * self.levels,
            l2_squared=tree_square(self.steps, separation, times),
            linf=times,
            l0=times * self.levels,
        ).of(step)

    def variances(self) -> Floats:
        return self.strategy.variances(self.steps)


def _lowest_bit(step: int) -> int:
    """Return the position of the lowest binary digit 1, from 0."""
    return (step & -step).bit_length() - 1


class RunningEncoder(Encoder):
    """Encodes the sum so far at every step, with fresh noise."""

    def __init__(self, steps: int) -> None:
        self.steps = steps

    def begin(self, size: int) -> State:
        return {"secret": [0] * size, "public": []}

    def encode(self, state: State, x: Integers, step: int) -> tuple[State, list[Integers]]:
        total = _exact_integers(state["secret"]) + _exact_integers(x)
        return {**state, "secret": _json_integers(total)}, [total]

    def decode(self, state: State, rows: list[Integers], step: int) -> tuple[State, Floats]:
        return state, np.asarray(rows[0], dtype=np.float64)

    def sensitivity(self, times: int, separation: int, step: Sensitivity) -> Sensitivity:
        """Return the sensitivity: a unit moves every later sum, by at most what it added to all steps."""
        return UnitInfluence(
            l1=times * self.steps, l2_squared=times**2 * self.steps, linf=times, l0=times * self.steps
        ).of(step)

    def variances(self) -> Floats:
        return np.ones(self.steps)


class RowEncoder(Encoder):
    """Encodes a Toeplitz or dense strategy by its rows; coefficients are cut to multiples of 1 / `scale`. The
    state has the vectors of the last (number of bands - 1) steps, newest first."""

    def __init__(self, strategy: Toeplitz | Dense, steps: int) -> None:
        self.steps, self.scale = steps, 1 if strategy == Toeplitz(coefficients=(1.0,)) else 1 << BITS
        largest = max(
            map(abs, strategy.coefficients if isinstance(strategy, Toeplitz) else sum(strategy.rows, ()))
        )
        if largest > _LARGEST:
            raise InvalidInput(
                f"a strategy of streams has coefficients up to {_LARGEST:g}, got {largest:g}. Scale it: only "
                "ratios matter."
            )
        # Truncated towards zero, and stored as floats, in which integers below 2**53 are exact.
        if isinstance(strategy, Toeplitz):
            truncated = tuple(float(math.trunc(c * self.scale)) for c in strategy.coefficients[:steps])
            self.grid: Toeplitz | Dense = Toeplitz(coefficients=truncated)
        else:
            rows = (tuple(float(math.trunc(c * self.scale)) for c in row) for row in strategy.rows[:steps])
            self.grid = Dense(rows=tuple(rows))

    def begin(self, size: int) -> State:
        return {"secret": [], "public": [], "sum": [0.0] * size}

    def encode(self, state: State, x: Integers, step: int) -> tuple[State, list[Integers]]:
        # `row` and `past` begin with the current step and go backwards
        row = self.grid.row(step - 1)
        past = [_json_integers(x), *state["secret"]]
        total = sum(
            (int(c) * _exact_integers(old) for c, old in zip(row, past, strict=False)),
            _exact_integers([0] * len(x)),
        )
        return {**state, "secret": past[: self.grid.bands - 1]}, [total]

    def decode(self, state: State, rows: list[Integers], step: int) -> tuple[State, Floats]:
        row = self.grid.row(step - 1)
        value = np.asarray(rows[0], dtype=np.float64)
        for c, old in zip(row[1:], state["public"], strict=False):
            value = value - c * np.array(old)
        value = value / row[0]
        total = np.array(state["sum"]) + value
        past = [value.tolist(), *state["public"]][: self.grid.bands - 1]
        return {**state, "public": past, "sum": total.tolist()}, total

    def sensitivity(self, times: int, separation: int, step: Sensitivity) -> Sensitivity:
        """Return the sensitivity: `triangular.sensitivity` of the truncated coefficients, rounded up.

        For noise on every item (C = I, `scale` 1) the squared l2 norm is computed exactly: rounding 1 + 1e-12
        up to the next integer would make it 2, and the noise larger by the square root of 2.

        Proof: with C = I the change is the unit's own rows u_i, at different steps that are at least
               `separation` apart: |U|² = sum of |u_i|² <= (number of these steps) max |u|². A unit that is
               added, removed or zeroed moves step i by u_i itself; for `replace` the caller gives a `step`
               whose norms are doubled.
        """
        if self.scale == 1:
            square = min(times, -(-self.steps // separation))
        else:
            square = math.ceil(sensitivity(self.grid, self.steps, separation, times) ** 2)
        if isinstance(self.grid, Toeplitz):
            floats = self.grid.diagonals(self.steps)[:, None]
        else:
            floats = self.grid.matrix(self.steps)
        # Added up in integers, because a sum of floats beyond 2**53 may round down.
        absolute = np.abs(floats.astype(np.int64))
        longest_column, largest_entry = int(absolute.sum(axis=0).max()), int(absolute.max())
        bands = min(self.grid.bands, self.steps)
        return UnitInfluence(
            l1=times * longest_column, l2_squared=square, linf=times * largest_entry, l0=times * bands
        ).of(step)

    def variances(self) -> Floats:
        return prefix_variances(self.grid, self.steps)


class BufferedEncoder(Encoder):
    """Runs a buffered linear Toeplitz strategy (BLT) in integers: buffers decay with rounding, and the
    sensitivity includes what rounding can add to a unit's influence.

    Guarantee: the measurements of two streams that differ in one unit differ by at most `sensitivity`.
    Proof:     with S = `scale`, theta_j the decay and omega_j the weight of buffer j: at each step the row
               S x + sum of floor(omega_j b_j) is measured, then b_j <- floor(theta_j b_j) + S x. For two
               streams with difference U, floor moves the difference of their buffers by less than 1, so that
               it stays within 1 / (1 - theta_j) of the recursion without rounding, and the difference of the
               rows is within K = sum of (1 + omega_j / (1 - theta_j)), `drift`, of S C U in every entry.
               Before the unit's first step, and in entries of the vector that it never touches, both streams
               are the same. So the distance is at most S |C U|_2 + K sqrt(entries times steps).
    """

    def __init__(self, strategy: Buffered, steps: int) -> None:
        self.steps = steps
        unit = 1 << _DECAY_BITS
        self._decays = [int(d * unit) for d in strategy.decays]
        self._weights = [int(w * unit) for w in strategy.outputs]
        # The truncated decays and weights as floats, for decoding and for the sensitivity: C is theirs.
        self.decays = np.array([d / unit for d in self._decays])
        self.weights = np.array([w / unit for w in self._weights])
        # K of the proof, rounded up: what rounding may add to the difference of two streams in one entry.
        self.drift = float(np.sum(1 + self.weights / (1 - self.decays))) * (1 + 1e-9)
        # So fine that K sqrt(steps), the share of rounding in the l2 sensitivity, is below 2^-17 of `scale`.
        self.scale = 1 << max(BITS, math.ceil(math.log2(self.drift * math.sqrt(steps))) + 17)

    def begin(self, size: int) -> State:
        zeros = [[0] * size] * len(self.decays)
        return {"secret": zeros, "public": [[0.0] * size] * len(self.decays), "sum": [0.0] * size}

    def encode(self, state: State, x: Integers, step: int) -> tuple[State, list[Integers]]:
        scaled = self.scale * _exact_integers(x)
        buffers = [_exact_integers(b) for b in state["secret"]]
        row = scaled
        for weight, b in zip(self._weights, buffers, strict=True):
            row = row + (weight * b >> _DECAY_BITS)
        after = [
            _json_integers((d * b >> _DECAY_BITS) + scaled)
            for d, b in zip(self._decays, buffers, strict=True)
        ]
        return {**state, "secret": after}, [row]

    def decode(self, state: State, rows: list[Integers], step: int) -> tuple[State, Floats]:
        buffers = np.array(state["public"])
        value = np.asarray(rows[0], dtype=np.float64) / self.scale - self.weights @ buffers
        after = self.decays[:, None] * buffers + value
        total = np.array(state["sum"]) + value
        return {**state, "public": after.tolist(), "sum": total.tolist()}, total

    def diagonals(self) -> Floats:
        """Return the coefficients of C as it is measured, without the rounding of buffers."""
        powers = self.decays[:, None] ** np.arange(max(0, self.steps - 1))[None, :]
        return np.concatenate([[1.0], self.weights @ powers])

    def sensitivity(self, times: int, separation: int, step: Sensitivity) -> Sensitivity:
        coefficients = self.diagonals()
        # Rounds up: floats err by less than this factor over `continual.MAX_STEPS` steps.
        rounding = 1 + 1e-9
        length = math.sqrt(toeplitz_square(coefficients, separation, times)) * rounding
        # The unit changes up to `l0` entries of the vector at each of `times` steps, and rounding may carry
        # each of these changes through all steps.
        touched = step.l0 * times * self.steps
        l2 = self.scale * length * math.sqrt(int(step.l2_squared or 0)) + self.drift * math.sqrt(touched)
        l1 = self.scale * times * float(coefficients.sum()) * int(step.l1 or 0) + self.drift * touched
        # the coefficients of C are at most 1
        entry = math.ceil((self.scale * times * step.linf + self.drift) * rounding)
        return Sensitivity(
            linf=entry,
            l0=max(1, touched),
            l1=math.ceil(l1 * rounding),
            l2_squared=math.ceil((l2 * rounding) ** 2),
        )

    def variances(self) -> Floats:
        """Return the variances of the sums after each step: with A the lower triangular matrix of ones, the
        sums of squares of the rows of A C⁻¹. `values` are the coefficients of C⁻¹, its response to an
        impulse."""
        impulse = np.zeros(self.steps)
        impulse[0] = 1.0
        values, buffers = np.zeros(self.steps), np.zeros(len(self.decays))
        for t in range(self.steps):
            values[t] = impulse[t] - self.weights @ buffers
            buffers = self.decays * buffers + values[t]
        return np.asarray(np.cumsum(np.square(np.cumsum(values))) / float(self.scale) ** 2)
