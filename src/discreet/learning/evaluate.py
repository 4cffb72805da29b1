"""Evaluates a model on a PUBLIC set: rows that everybody may know, and that say nothing about the people it
was trained on.

A score on private rows would be a release with a price of its own, which this module does not offer.
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
    """Scores a model on public examples: its loss, and accuracy or the root mean squared error.

    `inputs` and `targets` are encoded as `Tabular` encodes the training rows.
    """

    inputs: Tensor = field(repr=False)
    targets: Tensor = field(repr=False)
    # The upper less the lower bound of a target that is a number; 0 for a target that is a class.
    span: float

    @classmethod
    def of(cls, data: Any, columns: Tabular, public: Public) -> PublicSet:
        """Read a file, a data frame, an Arrow table or a mapping of columns, with the declarations of
        `public` for the features and the target in `columns`."""
        facts = tuple((name, public.fact(name)) for name in (*columns.features, columns.target))
        examples = columns.read(connect(data, Public(schema=facts, table="public_set")))
        if not examples.size:
            raise InvalidInput("the public set is empty. Nothing was trained.")
        inputs, targets = examples.take(np.arange(examples.size))
        fact = public.fact(columns.target)
        is_classification = isinstance(fact, Categories | Boolean)
        return cls(inputs, targets, 0.0 if is_classification else float(fact.upper) - float(fact.lower))  # type: ignore[union-attr]

    def score(self, module: nn.Module) -> dict[str, float]:
        """Return the loss, and the accuracy of a classifier or the root mean squared error of a regression.

        The error is in the target's own unit: targets were scaled from their bounds to [-1, 1], of length 2.
        """
        with torch.no_grad():
            outputs = module(self.inputs)
            if not self.span:
                accuracy = (outputs.argmax(1) == self.targets).float().mean()
                return {"loss": F.cross_entropy(outputs, self.targets).item(), "accuracy": accuracy.item()}
            loss = F.mse_loss(outputs, self.targets).item()
        return {"loss": loss, "rmse": loss**0.5 * self.span / 2}
