"""Draws correlated noise for long streams of vectors in floats, as training uses it: rows of C⁻¹ Z, many at a
time, in constant memory. C is the matrix of a strategy, Z has independent normal entries.

It is for model weights, which are floats anyway; counts and sums are released by `ContinualCounter`, whose
noise is exact integers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import toeplitz

from .. import _require
from .._errors import InvalidInput
from ..mechanisms.matrix.buffered import Buffered
from ..mechanisms.matrix.triangular import Toeplitz
from ..sampling import Entropy, EntropyStream
from .factors import decoder

Floats = NDArray[np.float64]

# The number of rows of a block, which a BLT (`Buffered`) computes at once. CPU time per row of 1,000 entries,
# measured: 31 us in blocks of 32; 47 us in blocks of 64 or more, whose arrays the allocator returns to the
# system each time. Drawing Z alone takes 26 us. Recursive filters, instead of products of matrices, took 46
# us more than that.
_BLOCK_ROWS = 32


class CorrelatedNoise:
    """Draws rows of C⁻¹ Z for a Toeplitz strategy, many at a time; a BLT stores only its few buffers.

    `CorrelatedNoise(..., state=earlier.state)` continues a stream that was interrupted, with fresh Z.

    Assumes:   `deviation`, the standard deviation of the entries of Z, was computed for the sensitivity of C
               over all rows that will be drawn; their number is not checked here. The noise is in floats, and
               no exact price is claimed for it, as there is for integer noise.
    """

    def __init__(
        self,
        strategy: Buffered | Toeplitz,
        dimension: int,
        deviation: float,
        entropy: Entropy,
        state: Floats | None = None,
    ) -> None:
        _require.integer(dimension=dimension, at_least=1)
        _require.non_negative(deviation=deviation)
        self._filter: _BLTFilter | _ToeplitzFilter
        if isinstance(strategy, Buffered):
            self._filter = _BLTFilter(strategy)
        elif isinstance(strategy, Toeplitz):
            self._filter = _ToeplitzFilter(strategy)
        else:
            raise _require.fail(
                "strategy", type(strategy).__name__, "matrix.blt(steps), or a Toeplitz strategy"
            )
        self._dimension, self._deviation, self._bits = dimension, deviation, EntropyStream(entropy)
        shape = (self._filter.memory, dimension)
        self.state = np.zeros(shape) if state is None else np.asarray(state, dtype=np.float64)
        if self.state.shape != shape:
            raise InvalidInput("this state is of another strategy or dimension. Nothing was drawn.")

    def rows(self, count: int) -> Floats:
        """Return the next rows, [count, dimension]."""
        _require.integer(count=count, at_least=0)
        independent = self._gaussian(count)
        if not count:
            return independent
        rows, self.state = self._filter(independent, self.state)
        return rows

    def blocks(self, steps: int) -> Iterator[Floats]:
        """Yield all rows of a stream, a block at a time."""
        _require.integer(steps=steps, at_least=0)
        for start in range(0, steps, _BLOCK_ROWS):
            yield self.rows(min(_BLOCK_ROWS, steps - start))

    def _gaussian(self, count: int) -> Floats:
        """Return rows of Z: independent normals by the Box-Muller transform of words of the keyed stream, 64
        bits for a radius and 32 for an angle.

        A radius from 53 bits is at most 8.66 standard deviations; a normal number is further from 0 with
        probability 5e-18.
        """
        size = count * self._dimension
        pairs = -(-size // 2)
        words = np.empty(pairs, dtype=np.uint64)
        self._bits.fill(words.view(np.int32))
        turns = np.empty(pairs, dtype=np.uint32)
        self._bits.fill(turns.view(np.int32))
        radius = np.sqrt(-2 * np.log(((words >> np.uint64(11)) + 0.5) * 2.0**-53)) * self._deviation
        angle = (turns + 0.5) * (2.0**-32 * 2 * np.pi)
        out = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return out[:size].reshape(count, self._dimension)


class _BLTFilter:
    """Computes the next m rows y of C⁻¹ z for a BLT from rows z and the buffers b: y = R (z - W b), then
    b <- theta^m b + P y.

    Row t of C y is y_t + sum of omega_j b_j(t), with b_j(t + 1) = theta_j b_j(t) + y_t, theta_j the decays
    and omega_j the output weights. Over m rows C y = T y + W b, where T is the first m rows and columns of C,
    and W has the entries omega_j theta_j^age for ages 0 to m - 1. R, the inverse of T, is `_inverse`; -R W is
    `_buffers_to_rows`; P, with the entries theta_j^(m - 1 - i) in column i, is `_rows_to_buffers`.
    """

    def __init__(self, strategy: Buffered) -> None:
        decays, output_scales = np.array(strategy.decays), np.array(strategy.outputs)
        ages = np.arange(_BLOCK_ROWS)
        powers = decays[:, None] ** ages
        self.memory = len(decays)
        self._decays = decays[:, None]
        impulse = decoder(strategy, np.eye(1, _BLOCK_ROWS)[0])
        self._inverse = toeplitz(impulse, np.zeros(_BLOCK_ROWS))
        self._buffers_to_rows = -self._inverse @ (output_scales[:, None] * powers).T
        self._rows_to_buffers = np.ascontiguousarray(powers[:, ::-1])

    def __call__(self, z: Floats, buffers: Floats) -> tuple[Floats, Floats]:
        out = np.empty_like(z)
        for start in range(0, len(z), _BLOCK_ROWS):
            part = z[start : start + _BLOCK_ROWS]
            m = len(part)
            rows = self._inverse[:m, :m] @ part + self._buffers_to_rows[:m] @ buffers
            out[start : start + m] = rows
            buffers = self._decays**m * buffers + self._rows_to_buffers[:, _BLOCK_ROWS - m :] @ rows
        return out, buffers


class _ToeplitzFilter:
    """Computes rows of C⁻¹ z from the strategy's coefficients by a recursive filter, whose state has one row
    less than there are coefficients."""

    def __init__(self, strategy: Toeplitz) -> None:
        self._denominator = np.array(strategy.coefficients)
        self.memory = len(self._denominator) - 1

    def __call__(self, z: Floats, state: Floats) -> tuple[Floats, Floats]:
        if not self.memory:
            return z / self._denominator[0], state
        # Imported here because it is slow to load, and most processes never need it.
        from scipy.signal import lfilter

        rows, final_state = lfilter(np.ones(1), self._denominator, z, axis=0, zi=state)
        return rows, final_state
