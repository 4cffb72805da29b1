"""Draws noise that is correlated over time: DP-FTRL by the matrix mechanism, as a source of noise for the
trainer.

The noise of step t is row t of C⁻¹ Z, where the rows of Z are independent and the strategy C is lower
triangular: noise that is added in one step is partly subtracted in later ones, so that the *sum* of all
gradients so far, which decides the weights, has little noise. In return the steps in which an example takes
part must be fixed in advance, and there is no amplification by sampling. The strategies C are those of
`mechanisms.matrix`; `schedules.Cyclic` computes the sensitivity.
"""

from __future__ import annotations

from collections import deque
from typing import Any, Protocol

from torch import Tensor

from ..mechanisms.matrix.buffered import Buffered, blt
from ..mechanisms.matrix.triangular import IDENTITY, Dense, Toeplitz, sensitivity, square_root
from ..mechanisms.matrix.triangular import Triangular as Strategy

__all__ = [
    "IDENTITY",
    "Buffered",
    "Dense",
    "CorrelatedSource",
    "NoiseSource",
    "Strategy",
    "Toeplitz",
    "blt",
    "sensitivity",
    "square_root",
]


class NoiseSource(Protocol):
    """Supplies noise vectors, one per call."""

    def into(self, vector: Tensor) -> None:
        """Overwrite the vector with noise."""


class CorrelatedSource:
    """Supplies the rows y_t of C⁻¹ Z, one per call, from the independent rows z_t of Z, by forward
    substitution: y_t = (z_t - sum of C[t, s] y_s over s < t) / C[t, t].

    The last rows y_s are held, one fewer than C has bands; for a buffered strategy (BLT), its few buffers
    instead. They are secret, and in no checkpoint: such a run cannot be resumed.
    """

    def __init__(self, independent: NoiseSource, strategy: Strategy) -> None:
        self._independent, self._strategy, self._step = independent, strategy, 0
        self._past: deque[Tensor] = deque(maxlen=0 if isinstance(strategy, Buffered) else strategy.bands - 1)
        self._buffers: list[Tensor] = []

    def into(self, vector: Tensor) -> None:
        """Overwrite the vector with the next row of noise."""
        self._independent.into(vector)
        if isinstance(self._strategy, Buffered):
            self._subtract_buffers(vector, self._strategy)
            return
        # C[t, t], C[t, t - 1], ...: backwards from the diagonal, as `_past` begins with the last row.
        row: Any = self._strategy.row(self._step).tolist()
        for coefficient, past in zip(row[1:], self._past, strict=False):
            if coefficient:
                vector.sub_(past, alpha=coefficient)
        vector.div_(row[0])
        self._step += 1
        if self._past.maxlen:
            self._past.appendleft(vector.clone())

    def _subtract_buffers(self, vector: Tensor, strategy: Buffered) -> None:
        """Turn z_t in `vector` into y_t = z_t - sum of omega_j b_j, then set each b_j to theta_j b_j + y_t.

        omega_j are the strategy's `outputs`, theta_j its `decays`, b_j the buffers, which begin with zeros.
        """
        self._step += 1
        if not self._buffers:
            self._buffers = [vector.clone() for _ in strategy.decays]
            return
        for weight, buffer in zip(strategy.outputs, self._buffers, strict=True):
            vector.sub_(buffer, alpha=weight)
        for decay, buffer in zip(strategy.decays, self._buffers, strict=True):
            buffer.mul_(decay).add_(vector)
