"""A torch model as a teacher: fitted in plain minibatches, without noise, because teachers are never
released."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import nn

from ... import _require


class TorchLearner:
    """Fits a copy of a torch model to the examples of one teacher, by Adam on cross-entropy.

    It has the two methods that a teacher needs, `fit(x, y)` and `predict(x)`, like a scikit-learn classifier.
    Not private by itself.
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
        """Train a copy of the model, which takes the place of the model."""
        self.model = copy.deepcopy(self.model)
        inputs, targets = torch.as_tensor(np.asarray(x)), torch.as_tensor(np.asarray(y))
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
        return self.model(torch.as_tensor(np.asarray(x))).argmax(1).numpy()
