"""Whitening within a few public directions: what can be paid for where features are many.

The noise on the second moments of d features has a spectral norm that grows as sqrt(d), and computing them
costs d^2 for each row. Most of the variance of image features lies in a few hundred directions, and
procedural images show which: only there are moments released, and the rest of each row stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ... import _require
from ..._errors import InvalidInput
from .private_whitening import PaidWhitening
from .whitening import principal

# Rows that are mapped at once: 64 MB of floats at 4,000 features.
_ROWS = 4096


@dataclass(frozen=True, eq=False)
class Directions:
    """Holds orthonormal public directions, one in each row of `matrix`, and projects feature rows on them.

    Guarantee: a projection is a function of its row by itself, and is not longer than that, both up to the
               rounding of floats.
    Proof:     the directions are constants; a projection on orthonormal directions does not lengthen, and
               `PrivateWhitening` scales what rounding made longer than 1.
    """

    matrix: Tensor = field(repr=False)

    @classmethod
    def fit(cls, features: Any, *, count: int) -> Directions:
        """Return the mean of public features and their first principal directions, `count` in all.

        The mean is among them because private rows are not centered: its direction has the most variance.
        """
        rows = torch.as_tensor(features, dtype=torch.float32)
        if rows.dim() != 2 or len(rows) < 2 or not torch.isfinite(rows).all():
            raise InvalidInput("directions are fitted to finite public features, two rows or more.")
        _require.integer(count=count, at_least=1)
        if count > min(len(rows) - 1, rows.shape[1]):
            raise _require.fail("count", count, f"at most {min(len(rows) - 1, rows.shape[1])} of these rows")
        mean = rows.mean(0)
        _, principals = principal(rows - mean, count)
        stacked = torch.cat([mean[:, None], principals[:, : count - 1]], 1)
        return cls(torch.linalg.qr(stacked.double())[0].T.float().contiguous())

    def __call__(self, rows: Any) -> Tensor:
        """Return the coordinates of each row along the directions; a row that is not finite becomes zero."""
        tensor = _rows(rows, self.matrix.shape[1])
        out = tensor @ self.matrix.T
        return torch.where(torch.isfinite(out).all(1, keepdim=True), out, 0.0)

    def whitened(self, paid: PaidWhitening, *, power: float = 0.5) -> PartialWhitening:
        """Return the map that shrinks the directions in which the paid moments are large.

        `paid` was released for projections on these directions; what is made of it is post-processing. A
        direction with the moment v is multiplied by (penalty / (v + penalty)) to the `power`.
        """
        _require.probability(power=power)
        if len(paid.matrix) != len(self.matrix):
            raise InvalidInput(
                f"the whitening is for {len(paid.matrix)} features, and there are {len(self.matrix)} "
                f"directions. Nothing was computed. Release it for projections on these directions."
            )
        # the paid map is V diag((v + penalty)^-1/2), up to a factor: its columns' lengths give the scales
        lengths = paid.matrix.double().norm(dim=0).clamp(1e-30)
        scales = (lengths / lengths.max()) ** (2 * power)
        rotated = (paid.matrix.double() / lengths).T @ self.matrix.double()
        return PartialWhitening(rotated.float().contiguous(), scales.float())


@dataclass(frozen=True, eq=False)
class PartialWhitening:
    """Multiplies each row by `scales` along orthonormal `directions`, leaves the rest of it as it is, and
    scales the result to length 1.

    Guarantee: a function of each row by itself, of length at most 1 whatever the row holds, both up to the
               rounding of floats.
    """

    directions: Tensor = field(repr=False)
    scales: Tensor = field(repr=False)

    def __call__(self, rows: Any) -> Tensor:
        """Return mapped rows. One that is not finite becomes zero."""
        tensor = _rows(rows, self.directions.shape[1])
        parts = [self._map_rows(part) for part in torch.split(tensor, _ROWS)]
        return torch.cat(parts) if parts else tensor

    def _map_rows(self, rows: Tensor) -> Tensor:
        out = torch.addmm(rows, (rows @ self.directions.T) * (self.scales - 1), self.directions)
        out = out / out.norm(dim=1, keepdim=True).clamp(1e-12)
        return torch.where(torch.isfinite(out).all(1, keepdim=True), out, 0.0)


def _rows(rows: Any, width: int) -> Tensor:
    """Return rows as a tensor of floats, refused unless they have `width` features."""
    tensor = torch.as_tensor(rows, dtype=torch.float32)
    if tensor.dim() != 2 or tensor.shape[1] != width:
        raise InvalidInput(
            f"rows of {width} features are needed; the shape is {tuple(tensor.shape)}. Nothing was computed."
        )
    return tensor


__all__ = ["Directions", "PartialWhitening"]
