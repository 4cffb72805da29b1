"""Private whitening: noisy second moments of feature rows are released for a price, and turned into the
linear map that makes the moments about equal in all directions.

How well a linear model is trained by noisy gradients depends on the condition number of its features'
moments: directions with little variance are learned last, and the noise is the same in all directions. A part
of the budget is spent on releasing the second moments once. Gradients are then computed in whitened
coordinates, where a few dozen steps achieve more than hundreds of steps without whitening (Mehta et al. 2022,
arXiv:2211.13403, precondition with the private feature covariance in the same way).
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

# Coordinates are truncated to integer multiples of 1 / CELLS before they are multiplied.
CELLS = 1 << 12
# The number of rows that are multiplied at once: the sums of their products are at most _ROWS * CELLS**2 =
# 2**37, below 2**53, so that floats add them exactly.
_ROWS = 1 << 13
# The smallest rho: for much smaller ones the variance of the noise is beyond the range of floats.
_LEAST_RHO = 1e-100


@dataclass(frozen=True, eq=False, slots=True)
class PaidWhitening:
    """Whitens rows: multiplies them by `matrix`, which is V diag((v + penalty)^(-1/2)) for the eigenvectors
    V and eigenvalues v of the released moments, times a factor that makes the root mean square of the
    whitened rows' norms about 1. Rows longer than 1 are scaled down to norm 1 before the multiplication, and
    results longer than 1 after it."""

    matrix: Tensor = field(repr=False)

    def __call__(self, rows: Any) -> Tensor:
        """Return whitened rows; each depends on its own row alone, up to the rounding of floats. A row that
        is not finite becomes zero."""
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
    """Releases the second moments of feature rows, scaled to a norm of at most 1, with exact discrete
    Gaussian noise, and returns the whitening that follows from them (`PaidWhitening`).

    The moments are the sum over rows x of x x', a matrix in units of rows. `width` is the number of features.
    `penalty`, in rows, is added to every eigenvalue, so that directions with nothing but noise are not
    amplified; by default it is about the spectral norm of the noise. The size of the table must be declared.

    Guarantee: `event`: rho-zCDP, for an integer vector of l2 sensitivity CELLS² (under replace: sqrt(2) times
               that) with exact discrete Gaussian noise.
    Proof:     a row is scaled to norm 1 or less, multiplied by CELLS and truncated towards zero to an integer
               vector q. Rows that are not finite, and rows for which rounding leaves |q|² > CELLS², count as
               zero; so |q|² <= CELLS². Products of integers and their sums are exact. The upper triangle of
               q q' has an l2 norm of at most |q|². Under replace, q becomes r, and the triangles of q q' and
               r r' differ by at most sqrt(2) CELLS², because their inner product is not negative: the sum
               over j <= k of q_j q_k r_j r_k is ((q.r)² + sum of q_j² r_j²) / 2 >= 0.
    Assumes:   each person has one row. Neighbors are tables of feature rows: features that are computed in
               batches depend on one image only up to the rounding of floats, and a last bit that changes with
               an image's position in a batch may change a truncated coordinate by one.
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
        """Return a bound that the noise on all entries keeps with probability `confidence`, in rows. The
        truncation of coordinates is not counted."""
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
            # Exact in floats: see _ROWS.
            total += (cells.T @ cells).astype(np.int64)
        noisy: Any = self.noise(total[np.triu_indices(self.width)], entropy=entropy)
        matrix = np.zeros((self.width, self.width))
        matrix[np.triu_indices(self.width)] = np.asarray([int(v) for v in noisy], np.float64) / CELLS**2
        value = PaidWhitening(self._map(matrix + np.triu(matrix, 1).T))
        return release(value, event=self.event, entropy=entropy, error=self.error)

    def _map(self, moments: NDArray[Any]) -> Tensor:
        """Return the matrix of `PaidWhitening`, from the noisy moments and public numbers."""
        size = self.public.declared_size("whitening")
        # The spectral norm of a symmetric d x d matrix of independent noise is about 2 * deviation * sqrt(d).
        noise_norm = 2 * self.deviation * math.sqrt(self.width)
        # 1e-9 here and 1e-12 below only prevent a division by zero.
        penalty = max(noise_norm if self.penalty is None else float(self.penalty), 1e-9)
        values, vectors = np.linalg.eigh(moments)
        values = np.maximum(values, 0.0)
        scales = (values + penalty) ** -0.5
        # The root mean square of the norms of mapped rows, estimated from the noisy moments.
        length = math.sqrt(max(float((scales**2 * values).sum()) / size, 1e-12))
        return torch.from_numpy(np.ascontiguousarray(vectors * scales / length, dtype=np.float32))


def _cells(rows: NDArray[Any]) -> NDArray[np.float64]:
    """Return rows, scaled to a norm of at most 1, times CELLS and truncated towards zero to integers: the
    vectors q of the class's proof."""
    # The norm of a row must not depend on other rows: numpy adds up each row of a contiguous array in an
    # order that depends on its width alone.
    floats = np.ascontiguousarray(rows, dtype=np.float64)
    finite = np.where(np.isfinite(floats).all(1, keepdims=True), floats, 0.0)
    with np.errstate(over="ignore", invalid="ignore"):
        length = np.sqrt((finite**2).sum(1, keepdims=True))
        cells = np.trunc(finite / np.maximum(length, 1.0) * CELLS)
        within = (cells**2).sum(1, keepdims=True) <= CELLS**2
    return np.asarray(np.where(within, cells, 0.0))


__all__ = ["PaidWhitening", "PrivateWhitening"]
