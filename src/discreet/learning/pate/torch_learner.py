"""Trains a torch model as a teacher of PATE: without noise, because teachers are never released, only noisy
aggregates of their votes."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ... import _require


class TorchLearner:
    """Fits a copy of a torch model to the examples of one teacher, by Adam on cross-entropy.

    It has the two methods that a teacher needs, `fit(x, y)` and `predict(x)`, like a scikit-learn classifier.
    Not private by itself: a fitted model must not be released.
    Batches are drawn with torch's global generator, which `teachers.seeded` sets for each teacher.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        epochs: int = 20,
        batch: int = 32,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
    ) -> None:
        if not isinstance(model, nn.Module):
            raise _require.fail(
                "model", type(model).__name__, "a torch.nn.Module that gives scores of classes"
            )
        _require.integer(epochs=epochs, batch=batch, at_least=1)
        _require.positive(lr=lr)
        _require.non_negative(weight_decay=weight_decay)
        self.model = model
        self.epochs, self.batch, self.lr, self.weight_decay = epochs, batch, lr, weight_decay

    def fit(self, x: Any, y: Any) -> TorchLearner:
        """Replace the model by a copy of it, and train that copy."""
        self.model = copy.deepcopy(self.model)
        inputs, targets = self._inputs(x), torch.as_tensor(np.asarray(y))
        optimizer = torch.optim.Adam(self.model.parameters(), lr=self.lr, weight_decay=self.weight_decay)
        self.model.train()
        for _ in range(self.epochs):
            for batch in torch.split(torch.randperm(len(inputs)), self.batch):
                optimizer.zero_grad()
                torch.autograd.backward(
                    nn.functional.cross_entropy(self.model(inputs[batch]), targets[batch])
                )
                optimizer.step()
        self.model.eval()
        return self

    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        """Return the class of the largest score."""
        return self.model(self._inputs(x)).argmax(1).numpy()

    def _inputs(self, x: Any) -> Tensor:
        """Return inputs as a tensor, floats as the type of the model's weights."""
        inputs = torch.as_tensor(np.asarray(x))
        weights = next((p for p in self.model.parameters() if p.is_floating_point()), None)
        return inputs if weights is None or not inputs.is_floating_point() else inputs.to(weights.dtype)
