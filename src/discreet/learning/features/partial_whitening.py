"""Whitens within a few public directions, for rows with many features.

The noise on the second moments of d features has a spectral norm that grows as sqrt(d), and computing the
moments takes d^2 operations for each row. Most of the variance of image features lies in a few hundred
directions, which can be estimated from procedural images (images of random processes) at no cost in privacy.
Moments are released only within these directions; the component of each row that is orthogonal to them is
left unchanged.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ... import _require
from ..._errors import InvalidInput
from .private_whitening import PaidWhitening

# The number of rows that are mapped at once: 64 MB of floats at 4,000 features. Chosen by hand, not tuned.
_ROWS = 4096


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
        rows = torch.as_tensor(features, dtype=torch.float32)
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
        if len(paid.matrix) != len(self.matrix):
            raise InvalidInput(
                f"the whitening is for {len(paid.matrix)} features, and there are {len(self.matrix)} "
                f"directions. Nothing was computed. Release it for projections on these directions."
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
        parts = [self._map_rows(part) for part in torch.split(tensor, _ROWS)]
        return torch.cat(parts) if parts else tensor

    def _map_rows(self, rows: Tensor) -> Tensor:
        out = torch.addmm(rows, (rows @ self.directions.T) * (self.scales - 1), self.directions)
        out = out / out.norm(dim=1, keepdim=True).clamp(1e-12)
        return torch.where(torch.isfinite(out).all(1, keepdim=True), out, 0.0)


def _rows(rows: Any, width: int) -> Tensor:
    """Return rows as a tensor of floats; other shapes than (n, width) are refused."""
    tensor = torch.as_tensor(rows, dtype=torch.float32)
    if tensor.dim() != 2 or tensor.shape[1] != width:
        raise InvalidInput(
            f"rows of {width} features are needed; the shape is {tuple(tensor.shape)}. Nothing was computed."
        )
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


__all__ = ["Directions", "PartialWhitening"]
