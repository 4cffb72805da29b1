"""Whitening that is paid for: noisy second moments of feature rows, and the map that makes them alike.

A linear model by noisy gradients is as good as its features are well conditioned: directions with little
variance are learned last, and noise is the same in all. With a part of the budget the second moments are
released once, and gradients are taken in whitened coordinates, so that a few dozen steps do what hundreds
would not (Mehta et al. 2022, arXiv:2211.13403, precondition with the private feature covariance in the same
way).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ... import _require
from ..._errors import InvalidInput
from ..._public import REPLACE, Public
from ..._registry import described
from ..._require import Real
from ...accounting import Event
from ...mechanisms.noise import IntegerGaussian
from ...mechanisms.protocols import AnySource, Release, Sensitivity, check_source, release
from ...mechanisms.statistics import require_rows
from ...sampling import Entropy
from ..data import examples_of

# Coordinates are truncated to whole numbers of 1 / CELLS before they are multiplied.
CELLS = 1 << 12
# Rows that are multiplied at once: sums of their products stay below 2**53, so that floats are exact.
_ROWS = 1 << 13
# Below, the variance of the noise is no float.
_LEAST_RHO = 1e-100


@dataclass(frozen=True, eq=False, slots=True)
class PaidWhitening:
    """Maps rows by (moments + penalty)^(-1/2), and scales them such that most have a length of about 1 and
    none more."""

    matrix: Tensor = field(repr=False)

    def __call__(self, rows: Any) -> Tensor:
        """Return whitened rows: a function of each row by itself, up to the rounding of floats. One that is
        not finite becomes zero."""
        tensor = torch.as_tensor(rows, dtype=torch.float32)
        if tensor.dim() != 2 or tensor.shape[1] != len(self.matrix):
            raise InvalidInput(
                f"rows of {len(self.matrix)} features are needed; the shape is {tuple(tensor.shape)}. "
                f"Nothing was computed."
            )
        tensor = tensor / tensor.norm(dim=1, keepdim=True).clamp(1.0)
        out = tensor @ self.matrix
        out = out / out.norm(dim=1, keepdim=True).clamp(1.0)
        return torch.where(torch.isfinite(out).all(1, keepdim=True), out, 0.0)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PaidWhitening) and torch.equal(self.matrix, other.matrix)

    def __hash__(self) -> int:
        return hash(tuple(self.matrix.flatten().tolist()))


@described("learning.PrivateWhitening")
@dataclass(frozen=True, kw_only=True)
class PrivateWhitening:
    """Releases the second moments of feature rows of length at most 1, with exact discrete Gaussian noise,
    and the whitening that follows from them.

    `width` is the number of features. `penalty`, in rows, is added to every eigenvalue, so that directions of
    which noise is all there is are not blown up: as large as the noise's spectral norm, by default. Needs the
    declared size.

    Guarantee: `event`: an integer vector of l2 sensitivity CELLS² (replace: sqrt 2 times that) with exact
               noise, rho-zCDP.
    Proof:     a row is scaled to length 1 or less, and cut towards zero to whole cells q, so that |q|² is at
               most CELLS²; one of which, after rounding, that is not true in integers, or which is not
               finite, counts as zero. Its products are whole numbers and their sums exact. The upper triangle
               of q q' has an l2 norm of at most |q|². Under replace two such triangles differ by at most
               sqrt 2 CELLS²: q q' and r r' have a nonnegative inner product, entry by entry
               (sum over j <= k of q_j q_k r_j r_k = ((q.r)² + sum of q_j² r_j²) / 2 >= 0).
    Assumes:   one row, one person. Neighbors are tables of such rows: features that are computed in batches
               are functions of one image up to the rounding of floats only, and a last bit that differs with
               an image's place in a batch may move a coordinate into the next cell.
    """

    public: Public
    width: int
    rho: Real
    penalty: float | None = None

    def __post_init__(self) -> None:
        require_rows(self.public)
        _require.integer(width=self.width, at_least=1)
        if self.width > 1 << 14:
            raise _require.fail("width", self.width, "at most 2**14 features")
        _require.positive(rho=self.rho)
        if _require.float_or_inf(self.rho) < _LEAST_RHO:
            raise _require.fail("rho", self.rho, f"at least {_LEAST_RHO:g}")
        if self.penalty is not None:
            _require.positive(penalty=self.penalty)
        self.public.declared_size("whitening")

    @property
    def sensitivity(self) -> Sensitivity:
        """Return the l2 sensitivity of the upper triangle, when one row comes, goes or is replaced."""
        changes = 2 if self.public.neighbors is REPLACE else 1
        entries = self.width * (self.width + 1) // 2
        l2_squared = changes * CELLS**4
        return Sensitivity(
            linf=CELLS**2, l0=entries, l1=math.isqrt(l2_squared * entries) + 1, l2_squared=l2_squared
        )

    @cached_property
    def noise(self) -> IntegerGaussian:
        return IntegerGaussian.for_rho(
            Fraction(_require.exact(self.rho, "rho")),
            sensitivity=self.sensitivity,
            neighbors=self.public.neighbors,
        )

    @property
    def event(self) -> Event:
        return self.noise.event

    @property
    def deviation(self) -> float:
        """Return the standard deviation of the noise on one entry, in rows."""
        return float(self.noise.standard_deviation) / CELLS**2

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on the error of every entry, in rows, rounding aside."""
        entries = self.width * (self.width + 1) // 2
        return float(self.noise.error(confidence, entries=entries)) / CELLS**2

    def rehearse(self, source: AnySource) -> None:
        """Refuse inputs of another shape before anything is charged."""
        inputs, _ = examples_of(source, None).shapes()
        if not isinstance(inputs, Tensor) or tuple(inputs.shape[1:]) != (self.width,):
            raise InvalidInput(
                f"whitening takes examples whose inputs are rows of width={self.width} features. Nothing "
                f"was charged or read."
            )

    def __call__(self, source: AnySource, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source, examples=True)
        self.rehearse(source)
        examples = examples_of(source, None)
        total = np.zeros((self.width, self.width), np.int64)
        for start in range(0, examples.size, _ROWS):
            rows, _ = examples.take(np.arange(start, min(start + _ROWS, examples.size)))
            cells = _cells(np.asarray(rows))
            # products of a block stay below 2^53: floats add them exactly
            total += (cells.T @ cells).astype(np.int64)
        noisy: Any = self.noise(total[np.triu_indices(self.width)], entropy=entropy)
        matrix = np.zeros((self.width, self.width))
        matrix[np.triu_indices(self.width)] = np.asarray([int(v) for v in noisy], np.float64) / CELLS**2
        value = PaidWhitening(self._map(matrix + np.triu(matrix, 1).T))
        return release(value, event=self.event, entropy=entropy, error=self.error)

    def _map(self, moments: NDArray[Any]) -> Tensor:
        """Return the map, from the noisy moments and public numbers."""
        size = self.public.declared_size("whitening")
        spread = 2 * self.deviation * math.sqrt(self.width)
        penalty = max(spread if self.penalty is None else float(self.penalty), 1e-9)
        values, vectors = np.linalg.eigh(moments)
        values = np.maximum(values, 0.0)
        scales = (values + penalty) ** -0.5
        # the mean squared length of a mapped row, as far as the moments tell
        length = math.sqrt(max(float((scales**2 * values).sum()) / size, 1e-12))
        return torch.from_numpy(np.ascontiguousarray(vectors * scales / length, dtype=np.float32))


def _cells(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return rows of length at most 1 in whole cells, truncated towards zero."""
    # numpy adds up each row of a contiguous array in an order that depends on its width alone
    floats = np.ascontiguousarray(rows, dtype=np.float64)
    finite = np.where(np.isfinite(floats).all(1, keepdims=True), floats, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.sqrt((finite**2).sum(1, keepdims=True))
        cells = np.trunc(finite / np.maximum(length, 1.0) * CELLS)
        within = (cells**2).sum(1, keepdims=True) <= CELLS**2
    return np.asarray(np.where(within, cells, 0.0))


__all__ = ["PaidWhitening", "PrivateWhitening"]
