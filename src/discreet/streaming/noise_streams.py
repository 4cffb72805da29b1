"""Correlated noise for long streams of vectors in floats, as training uses it: rows of C⁻¹ Z, many at a time,
in constant memory.

For model weights, which are floats anyway; what is published as numbers goes through `ContinualCounter`,
whose noise is exact integers.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray
from scipy import signal

from .. import _require
from .._errors import InvalidInput
from ..mechanisms.matrix.buffered import Buffered
from ..mechanisms.matrix.triangular import Toeplitz
from ..sampling import Entropy, Stream

Floats = NDArray[np.float64]

# Rows worked on together: calls are shared by many, and a block of 1,000 entries stays within a core's cache.
_BLOCK = 256


class CorrelatedNoise:
    """Rows of C⁻¹ Z for a Toeplitz strategy, one block after the other: each first-order factor of a BLT is a
    recursive filter with one vector of memory.

    `state` and `CorrelatedNoise(..., state=...)` go on exactly where a stream was cut, with fresh Z.
    """

    def __init__(
        self,
        strategy: Buffered | Toeplitz,
        dimension: int,
        deviation: float,
        entropy: Entropy,
        state: list[Floats] | None = None,
    ) -> None:
        _require.integer(dimension=dimension, at_least=1)
        _require.non_negative(deviation=deviation)
        if isinstance(strategy, Buffered):
            pairs = zip(strategy.decays, strategy.inverse_decays, strict=True)
            self._filters = [(np.array([1.0, -d]), np.array([1.0, -i])) for d, i in pairs]
        elif isinstance(strategy, Toeplitz):
            self._filters = [(np.array([1.0]), np.array(strategy.coefficients))]
        else:
            raise _require.fail(
                "strategy", type(strategy).__name__, "matrix.blt(steps), or a Toeplitz strategy"
            )
        self._dimension, self._deviation, self._bits = dimension, deviation, Stream(entropy)
        memory = [max(len(b), len(a)) - 1 for b, a in self._filters]
        self.state = [np.zeros((m, dimension)) for m in memory] if state is None else state
        if [s.shape for s in self.state] != [(m, dimension) for m in memory]:
            raise InvalidInput("this state is of another strategy or dimension. Nothing was drawn.")

    def rows(self, count: int) -> Floats:
        """Return the next rows, [count, dimension]."""
        _require.integer(count=count, at_least=0)
        block = self._gaussian(count)
        for k, (top, bottom) in enumerate(self._filters):
            if not len(self.state[k]):
                block = block / bottom[0]
            elif count:
                block, self.state[k] = signal.lfilter(top, bottom, block, axis=0, zi=self.state[k])
        return block

    def blocks(self, steps: int) -> Iterator[Floats]:
        """All rows of a stream, a block at a time."""
        _require.integer(steps=steps, at_least=0)
        for start in range(0, steps, _BLOCK):
            yield self.rows(min(_BLOCK, steps - start))

    def _gaussian(self, count: int) -> Floats:
        """Independent normals by Box and Muller's transform of 32-bit words of the keyed stream."""
        size = count * self._dimension
        pairs = -(-size // 2)
        words = np.empty(2 * pairs, dtype=np.uint32)
        self._bits.fill(words.view(np.int32))
        uniform = (words + 0.5) * 2.0**-32
        radius = np.sqrt(-2 * np.log(uniform[:pairs])) * self._deviation
        angle = uniform[pairs:] * (2 * np.pi)
        out = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])
        return out[:size].reshape(count, self._dimension)
