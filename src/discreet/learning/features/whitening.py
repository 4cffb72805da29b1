"""Private whitening: noisy second moments of feature rows are released for a price, and turned into the
linear map that makes the moments about equal in all directions.

How well a linear model is trained by noisy gradients depends on the condition number of its features'
moments: directions with little variance are learned last, and the noise is the same in all directions. A part
of the budget is spent on releasing the second moments once. Gradients are then computed in whitened
coordinates, where a few dozen steps achieve more than hundreds of steps without whitening (Mehta et al. 2022,
arXiv:2211.13403, precondition with the private feature covariance in the same way).

Whitens within a few public directions, for rows with many features.

The noise on the second moments of d features has a spectral norm that grows as sqrt(d), and computing the
moments takes d^2 operations for each row. Most of the variance of image features lies in a few hundred
directions, which can be estimated from procedural images (images of random processes) at no cost in privacy.
Moments are released only within these directions; the component of each row that is orthogonal to them is
left unchanged.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ... import _require
from ..._errors import InvalidInput
from ..._public import REPLACE, Public
from ..._registry import described
from ..._require import POSITIVE, Real, at_least
from ..._system import on_one_thread
from ...accounting import Event
from ...mechanisms.noise import IntegerGaussian
from ...mechanisms.protocols import AnySource, Mechanism, Release, Sensitivity, check_source, release
from ...mechanisms.statistics import require_rows
from ...sampling import Entropy
from ..training.data import as_array, examples_of

__all__ = ["Directions", "PaidWhitening", "PartialWhitening", "PrivateWhitening"]

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
        tensor = torch.as_tensor(rows, dtype=torch.float32, device="cpu")
        if tensor.dim() != 2 or tensor.shape[1] != len(self.matrix):
            raise InvalidInput(
                f"rows of {len(self.matrix)} features are needed; the shape is {tuple(tensor.shape)}."
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
class PrivateWhitening(Mechanism):
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
    width: Annotated[int, at_least(1)]
    rho: Annotated[Real, POSITIVE]
    penalty: Annotated[float, POSITIVE] | None = None

    def __post_init__(self) -> None:
        require_rows(self.public)
        _require.must(self.width <= 1 << 14, "width", self.width, "at most 2**14 features")
        if _require.float_or_inf(self.rho) < _LEAST_RHO:
            raise _require.fail("rho", self.rho, f"at least {_LEAST_RHO:g}")
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
                f"whitening takes examples whose inputs are rows of width={self.width} features."
            )

    def __call__(self, source: AnySource, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source, examples=True)
        self.rehearse(source)
        examples = examples_of(source, None)
        total = np.zeros((self.width, self.width), np.int64)
        for start in range(0, examples.size, _ROWS):
            rows, _ = examples.take(np.arange(start, min(start + _ROWS, examples.size)))
            cells = _cells(as_array(rows))
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
        values, vectors = on_one_thread(np.linalg.eigh)(moments)
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


# The number of rows that are mapped at once: 64 MB of floats at 4,000 features. Chosen by hand, not tuned.
_PARTIAL_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Directions:
    """Holds orthonormal public directions, one in each row of `matrix`, and projects feature rows on them.

    Guarantee: the projection of a row depends on that row alone, and its norm is at most that of the row,
               both up to the rounding of floats.
    Proof:     the directions are constants, and orthonormal. (`PrivateWhitening` scales every row down to a
               norm of at most 1, also where rounding has made its projection longer.)
    """

    matrix: Tensor = field(repr=False)

    @classmethod
    def fit(cls, features: Any, *, count: int) -> Directions:
        """Return the direction of the mean of public features and their first `count` - 1 principal
        directions, made orthonormal.

        The mean is among them because private rows are not centered, so that their second moment is large
        in its direction.
        """
        rows = torch.as_tensor(features, dtype=torch.float32, device="cpu")
        if rows.dim() != 2 or len(rows) < 2 or not torch.isfinite(rows).all():
            raise InvalidInput("directions are fitted to finite public features, two rows or more.")
        _require.integer(count=count, at_least=1)
        limit = min(len(rows) - 1, rows.shape[1])
        if count > limit:
            wanted = f"at most {limit}: fewer than the rows, and no more than the features"
            raise _require.fail("count", count, wanted)
        mean = rows.mean(0)
        principals = _principal_directions(rows - mean, count)
        stacked = torch.cat([mean[:, None], principals[:, : count - 1]], 1)
        return cls(torch.linalg.qr(stacked.double())[0].T.float().contiguous())

    def __call__(self, rows: Any) -> Tensor:
        """Return the coordinates of each row along the directions; a row that is not finite becomes zero."""
        tensor = _rows(rows, self.matrix.shape[1])
        out = tensor @ self.matrix.T
        return torch.where(torch.isfinite(out).all(1, keepdim=True), out, 0.0)

    def whitened(self, paid: PaidWhitening, *, power: float = 0.5) -> PartialWhitening:
        """Return the map that shrinks rows along the directions in which the released moments are large.

        `paid` must have been released for projections on these directions; this map is post-processing of it.
        Along an eigenvector of the released moments with eigenvalue v, rows are multiplied by
        ((w + penalty) / (v + penalty)) to the power `power`, where w is the smallest eigenvalue and penalty
        that of `PrivateWhitening`.
        """
        _require.probability(power=power)
        _require.that(
            len(paid.matrix) == len(self.matrix),
            f"the whitening is for {len(paid.matrix)} features, and there are {len(self.matrix)} "
            "directions. Release it for projections on these directions.",
        )
        # `paid.matrix` is V diag((v + penalty)^(-1/2)) up to a factor, with the eigenvectors of the moments
        # in the columns of V and the eigenvalues v: the norms of its columns give the scales, and the columns
        # divided by their norms give V.
        lengths = paid.matrix.double().norm(dim=0).clamp(1e-30)
        scales = (lengths / lengths.max()) ** (2 * power)
        rotated = (paid.matrix.double() / lengths).T @ self.matrix.double()
        return PartialWhitening(rotated.float().contiguous(), scales.float())


@dataclass(frozen=True, eq=False)
class PartialWhitening:
    """Multiplies each row by `scales` along orthonormal `directions`, leaves the component orthogonal to them
    unchanged, and scales the result to norm 1.

    Guarantee: the result depends on its row alone, and has a norm of at most 1 whatever the row holds, both
               up to the rounding of floats.
    Proof:     directions and scales are constants. A row that is not finite becomes zero.
    """

    directions: Tensor = field(repr=False)
    scales: Tensor = field(repr=False)

    def __call__(self, rows: Any) -> Tensor:
        """Return mapped rows; a row that is not finite becomes zero."""
        tensor = _rows(rows, self.directions.shape[1])
        parts = [self._map_rows(part) for part in torch.split(tensor, _PARTIAL_ROWS)]
        return torch.cat(parts) if parts else tensor

    def _map_rows(self, rows: Tensor) -> Tensor:
        out = torch.addmm(rows, (rows @ self.directions.T) * (self.scales - 1), self.directions)
        out = out / out.norm(dim=1, keepdim=True).clamp(1e-12)
        return torch.where(torch.isfinite(out).all(1, keepdim=True), out, 0.0)


def _rows(rows: Any, width: int) -> Tensor:
    """Return rows as a tensor of floats; other shapes than (n, width) are refused."""
    tensor = torch.as_tensor(rows, dtype=torch.float32, device="cpu")
    if tensor.dim() != 2 or tensor.shape[1] != width:
        raise InvalidInput(f"rows of {width} features are needed; the shape is {tuple(tensor.shape)}.")
    return tensor


def _principal_directions(centered: Tensor, count: int) -> Tensor:
    """Return the `count` directions in which centered rows vary most, in columns, in descending order.

    They are computed from the eigenvectors of the smaller of the two products X'X and XX'.
    """
    n, width = centered.shape
    directions: Tensor
    if n >= width:
        directions = torch.linalg.eigh(centered.T @ centered / n).eigenvectors.flip(1)[:, :count]
    else:
        values, vectors = torch.linalg.eigh(centered @ centered.T / n)
        values, vectors = values.flip(0)[:count], vectors.flip(1)[:, :count]
        directions = centered.T @ vectors / (values * n).clamp(1e-30).sqrt()
    return directions
