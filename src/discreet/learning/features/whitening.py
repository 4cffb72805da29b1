"""Principal components of procedural images, and a scale for each that makes linear models quick to train."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ... import _require
from ..._errors import InvalidInput

# The least variance of a component, over the largest: below, what single precision rounds of the products is
# all that is left of it, which would be divided by nearly zero.
_LEAST_VARIANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Whitening:
    """Maps features to `components` principal components, divides each by its deviation to the `power`, and
    scales each row to length 1.

    `power` 0 keeps the variances, 1 makes them equal. Fitted with `fit` to features of *public* images, such
    as procedural ones. Rows of length 1 make clipping harmless: the gradient of a softmax layer is at most
    sqrt(2) times as long as its input.

    Guarantee: a function of each row by itself, of length at most 1 whatever the row holds, both up to the
               rounding of floats.
    Proof:     mean and matrix are constants. A row that is not finite becomes zero.
    """

    mean: Tensor = field(repr=False)
    matrix: Tensor = field(repr=False)

    @classmethod
    def fit(cls, features: Any, *, components: int, power: float = 0.75) -> Whitening:
        """Return the map for public features, one row for each image."""
        rows = torch.as_tensor(features, dtype=torch.float32)
        if rows.dim() != 2 or len(rows) < 2 or not torch.isfinite(rows).all():
            raise InvalidInput("whitening is fitted to finite public features, two rows or more.")
        _require.integer(components=components, at_least=1)
        _require.probability(power=power)
        if components > min(len(rows) - 1, rows.shape[1]):
            raise _require.fail(
                "components", components, f"at most {min(len(rows) - 1, rows.shape[1])}, of {len(rows)} rows"
            )
        mean = rows.mean(0)
        variances, directions = principal(rows - mean, components)
        if (rank := int((variances > _LEAST_VARIANCE * variances[0]).sum())) < components:
            raise _require.fail(
                "components", components, f"at most {rank}, the directions in which these rows differ"
            )
        return cls(mean, directions * variances ** (-power / 2))

    def __call__(self, features: Any) -> Tensor:
        rows = torch.as_tensor(features, dtype=torch.float32)
        if rows.dim() != 2 or rows.shape[1] != len(self.mean):
            raise InvalidInput(
                f"features must be rows of {len(self.mean)} numbers, and have the shape "
                f"{tuple(rows.shape)}. Nothing was computed."
            )
        out = (rows - self.mean) @ self.matrix
        out = out / out.norm(dim=1, keepdim=True).clamp(1e-12)
        return torch.where(torch.isfinite(out).all(1, keepdim=True), out, 0.0)


def principal(centered: Tensor, components: int) -> tuple[Tensor, Tensor]:
    """Return the largest variances, and their directions: from the smaller of the two products."""
    n, width = centered.shape
    if n >= width:
        values, vectors = torch.linalg.eigh(centered.T @ centered / n)
        return values.flip(0)[:components], vectors.flip(1)[:, :components]
    values, vectors = torch.linalg.eigh(centered @ centered.T / n)
    values, vectors = values.flip(0)[:components], vectors.flip(1)[:, :components]
    return values, centered.T @ vectors / (values * n).clamp(1e-30).sqrt()
