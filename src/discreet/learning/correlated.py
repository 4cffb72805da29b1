"""Noise that is correlated over time: DP-FTRL by the matrix mechanism, as a source of noise for the trainer.

Step t's noise is row t of C⁻¹ Z, with Z independent and C lower triangular: what is added in one step is
partly taken back in later ones, so that the *sum* of gradients so far, which is where the weights are, has
little noise. In return everybody's steps must be known in advance, and no sampling hides who took part. The
strategies C are those of `mechanisms.matrix`.
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
    """Supplies independent noise vectors."""

    def into(self, vector: Tensor) -> None: ...


class CorrelatedSource:
    """Supplies the rows of C⁻¹ Z, one after the other, from independent rows of Z: by forward substitution,
    y_t = (z_t - sum of C[t, s] y_s over s < t) / C[t, t].

    As many rows are kept as C has bands, less one; of a buffered strategy (BLT), its few buffers instead.
    They are secret: a run that keeps them cannot be resumed without them.
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
        row: Any = self._strategy.row(self._step).tolist()
        for coefficient, past in zip(row[1:], self._past, strict=False):
            if coefficient:
                vector.sub_(past, alpha=coefficient)
        vector.div_(row[0])
        self._step += 1
        if self._past.maxlen:
            self._past.appendleft(vector.clone())

    def _subtract_buffers(self, vector: Tensor, strategy: Buffered) -> None:
        """Subtract the buffers: y_t = z_t - sum of omega_j b_j, then b_j <- theta_j b_j + y_t."""
        self._step += 1
        if not self._buffers:
            self._buffers = [vector.clone() for _ in strategy.decays]
            return
        for weight, buffer in zip(strategy.outputs, self._buffers, strict=True):
            vector.sub_(buffer, alpha=weight)
        for decay, buffer in zip(strategy.decays, self._buffers, strict=True):
            buffer.mul_(decay).add_(vector)
