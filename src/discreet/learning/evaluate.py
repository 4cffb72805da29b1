"""How good a model is, on a PUBLIC set: rows that everybody may know, and that say nothing about the people
it was trained on.

On private rows any score is a release, and has a price; it is not offered here.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._errors import InvalidInput
from .._public import Boolean, Categories, Public
from ..tables import connect
from .data import Tabular


@dataclass(frozen=True, slots=True)
class PublicSet:
    """Public examples for a model of `columns`: loss, and accuracy or the root of the mean squared error."""

    inputs: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    span: float  # of the target, where it is a number

    @classmethod
    def of(cls, data: Any, columns: Tabular, public: Public) -> PublicSet:
        """From a file, a data frame, an Arrow table or a mapping of columns, with the features and the target
        under the same declarations."""
        facts = tuple((name, public.fact(name)) for name in (*columns.features, columns.target))
        read = columns.read(connect(data, Public(schema=facts, table="public_set")))
        if not read.size:
            raise InvalidInput("the public set is empty. Nothing was trained.")
        inputs, targets = read.take(np.arange(read.size))
        fact = public.fact(columns.target)
        classes = isinstance(fact, Categories | Boolean)
        return cls(inputs, targets, 0.0 if classes else float(fact.upper) - float(fact.lower))  # type: ignore[union-attr]

    def score(self, module: nn.Module) -> dict[str, float]:
        with torch.no_grad():
            outputs = module(self.inputs)
            if not self.span:
                right = (outputs.argmax(1) == self.targets).float().mean()
                return {"loss": F.cross_entropy(outputs, self.targets).item(), "accuracy": right.item()}
            loss = F.mse_loss(outputs, self.targets).item()
        return {"loss": loss, "rmse": loss**0.5 * self.span / 2}
