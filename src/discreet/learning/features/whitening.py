"""Whitens by public features: principal components, each divided by a power of its standard deviation, so
that linear models train in fewer steps."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ... import _require
from ..._errors import InvalidInput

# The least variance of a component, relative to the largest. A smaller variance consists of rounding errors
# of single precision, and dividing by it would amplify these.
_LEAST_VARIANCE = 1e-6


@dataclass(frozen=True, eq=False)
class Whitening:
    """Subtracts `mean`, multiplies by `matrix`, and scales each row to norm 1. `fit` makes it from *public*
    features, such as those of procedural images: the rows' principal components, each divided by its standard
    deviation to a power.

    With rows of norm 1, clipping to sqrt(2) changes no gradient of a softmax layer's weights: with
    cross-entropy as the loss, its norm is at most sqrt(2) times that of the layer's input.

    Guarantee: the result depends on its row alone, and has a norm of at most 1 whatever the row holds, both
               up to the rounding of floats.
    Proof:     mean and matrix are constants. A row that is not finite becomes zero.
    """

    mean: Tensor = field(repr=False)
    matrix: Tensor = field(repr=False)

    @classmethod
    def fit(cls, features: Any, *, components: int, power: float = 0.75) -> Whitening:
        """Return the map to `components` principal components of public features, which have one row for each
        image. Each component is divided by its standard deviation to the power `power`: 0 keeps the
        variances, 1 makes them equal."""
        rows = torch.as_tensor(features, dtype=torch.float32)
        if rows.dim() != 2 or len(rows) < 2 or not torch.isfinite(rows).all():
            raise InvalidInput("whitening is fitted to finite public features, two rows or more.")
        _require.integer(components=components, at_least=1)
        _require.probability(power=power)
        limit = min(len(rows) - 1, rows.shape[1])
        if components > limit:
            wanted = f"at most {limit}: fewer than the rows, and no more than the features"
            raise _require.fail("components", components, wanted)
        mean = rows.mean(0)
        variances, directions = principal(rows - mean, components)
        if (rank := int((variances > _LEAST_VARIANCE * variances[0]).sum())) < components:
            raise _require.fail(
                "components", components, f"at most {rank}, the directions in which these rows differ"
            )
        return cls(mean, directions * variances ** (-power / 2))

    def __call__(self, features: Any) -> Tensor:
        """Return mapped rows of norm 1; a row that is not finite becomes zero."""
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
    """Return the largest `components` variances of centered rows, descending, and their directions in
    columns.

    They are computed from the eigenvectors of the smaller of the two products X'X and XX'.
    """
    n, width = centered.shape
    if n >= width:
        values, vectors = torch.linalg.eigh(centered.T @ centered / n)
        return values.flip(0)[:components], vectors.flip(1)[:, :components]
    values, vectors = torch.linalg.eigh(centered @ centered.T / n)
    values, vectors = values.flip(0)[:components], vectors.flip(1)[:, :components]
    return values, centered.T @ vectors / (values * n).clamp(1e-30).sqrt()
