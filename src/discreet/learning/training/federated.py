"""Federated averaging at user level: a client's summand is the update of the model by training on its rows.

DP-FedAvg (McMahan, Ramage, Talwar & Zhang 2018, arXiv:1710.06963, Algorithm 1): each sampled client starts
from the current model, takes several epochs of SGD on its own rows, and sends the difference of the weights,
of norm at most the clip. The server adds Gaussian noise to the sum and divides by a public number. This
module has the clients' part. The rest is done by the trainer: sampling of people, clipping rules, noise (with
correlated noise it is DP-FTRL), price and checkpoints. All of it runs in one process.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ... import _require
from ..._errors import INTERRUPTIONS, Unsupported
from ..._registry import described
from ..._require import FLOAT, POSITIVE, at_least
from ...sampling import Entropy
from ..clipping.batching import full_precision, placed
from ..clipping.engine import ClippingEngine, Gradients
from ..clipping.norms import Clipping, Flat, PerLayer
from ..clipping.taps import Rows, Target
from .pooling import KeptBuffers, copied, squares_of
from .schedules import Indices

if TYPE_CHECKING:
    from .trainer import Trainer

# The number of clients whose updates, each a vector as long as the model, are in memory at once. Chosen by
# hand, not tuned: it changes memory, and the order in which updates are summed, so the last bits of a sum.
CLIENTS_AT_ONCE = 8

# A larger learning rate is no float32, and torch would refuse it in the first step of a client.
_LARGEST_RATE = 1e38


@described("learning.LocalSGD")
class LocalSGD:
    """Describes a client's local training in a round: `epochs` passes of SGD over its rows, in batches of
    `batch` rows, with learning rate `lr`.

    After each local step the model's parameters (except under `Automatic` clipping) are projected onto the
    ball of radius `clip` around those that the client began with, as in the paper's UserUpdateFedAvg. With
    `full`, the update of a client with n rows (at most `unit.rows`) is multiplied by the client's weight
    min(1, n / full) (the paper's w_k, where full is its ŵ); by default all clients have weight 1.

    Guarantee: a client's summand is a function of its own rows, of the current model and of fresh randomness,
               and its norm is at most the clip: so the trainer's guarantee holds unchanged.
    Proof:     `Updates.of` trains on the rows of one client at a time, each time from the current parameters
               and with the buffers restored; the client's weight is at most 1; `clipped_sums.Summands` clips
               every update, and counts an update that is not finite as zero.
    Assumes:   the model's code keeps nothing between two calls but in parameters and buffers.
    """

    epochs: Annotated[int, at_least(1)] = 1
    batch: Annotated[int, at_least(1)] = 32
    lr: Annotated[float, FLOAT, POSITIVE] = 0.1
    full: Annotated[int, at_least(1)] | None = None

    def __post_init__(self) -> None:
        _require.must(self.lr <= _LARGEST_RATE, "lr", self.lr, f"at most {_LARGEST_RATE:g}, for float32")

    def weight(self, rows: int) -> float:
        """Return the weight of a client with this many rows."""
        return 1.0 if self.full is None else min(1.0, rows / self.full)


def check(trainer: Trainer) -> None:
    """Refuse options of a trainer that cannot be combined with its `local`."""
    if trainer.local is None:
        return
    if not isinstance(trainer.local, LocalSGD):
        raise _require.fail("local", type(trainer.local).__name__, "LocalSGD(epochs=..., batch=..., lr=...)")
    if trainer.public.unit.column is None:
        raise Unsupported(
            "local= trains on all rows of a client, and here the unit is a single row. Declare the column of "
            "clients: Public(unit=Unit('the column of clients'))."
        )
    if trainer.augment is not None or trainer.pooling != "mean":
        raise Unsupported(
            "local= cannot be combined with augment= or pooling=: local training decides how a client's rows "
            "are used. Leave them out."
        )


class Updates:
    """Computes clients' updates by local training, on a copy of the model (that of `_client_engine`);
    `_server_engine` has the trained model itself."""

    def __init__(self, trainer: Trainer, engine: ClippingEngine, entropy: Entropy) -> None:
        assert trainer.local is not None
        self._local_sgd, self._server_engine = trainer.local, engine
        self._client_engine = trainer._engine(copied(trainer.model))
        self._client_engine.train()
        # What a client's training stores in the model's buffers must not reach the next client.
        self._buffers = KeptBuffers(self._client_engine.model)
        self._generator = np.random.default_rng(entropy.integer(128))

    def of(self, clients: list[Indices], examples: Any, rule: Clipping) -> Iterator[Gradients]:
        """Yield the clients' negative updates in the form of gradients, so that the server's gradient descent
        moves the model by the sum of updates. `clients` has the row numbers of each client."""
        for start in range(0, len(clients), CLIENTS_AT_ONCE):
            chunk = clients[start : start + CLIENTS_AT_ONCE]
            negative_updates = torch.stack([self._update_or_zero(examples, rows, rule) for rows in chunk])
            yield self._as_gradients(negative_updates)

    def _as_gradients(self, negative_updates: Tensor) -> Gradients:
        """Return negative updates, [clients, parameters], as the per-example gradients of a batch."""
        sizes = [p.numel() for p in self._server_engine.parameters.values()]
        parameters = self._server_engine.parameters.values()
        # A `Rows` tap holds per-example gradients that are already built; `Target` names the parameter that
        # they belong to.
        taps: list[Any] = [
            Rows(Target(p), part.reshape(len(negative_updates), *p.shape))
            for p, part in zip(parameters, torch.split(negative_updates, sizes, dim=1), strict=True)
        ]
        return Gradients(
            taps,
            squares_of(self._server_engine, taps, len(negative_updates)),
            torch.empty(0, device=self._server_engine.device),
        )

    def _update_or_zero(self, examples: Any, rows: Indices, rule: Clipping) -> Tensor:
        """Return the client's negative update; zeros where reading its rows, the model or the loss raises, as
        an error would tell of the client."""
        try:
            taken = placed(examples.take(rows), self._client_engine.device)
            return self._client_update(taken, len(rows), rule)
        except INTERRUPTIONS:
            raise
        except Exception:
            return self._server_engine.buffer()

    def _client_update(self, examples: tuple[Any, Any], row_count: int, rule: Clipping) -> Tensor:
        """Train on one client's rows, and return its negative update times its weight."""
        parameters = list(self._client_engine.parameters.values())
        start = [p.detach().clone() for p in self._server_engine.parameters.values()]
        with torch.no_grad():
            for p, value in zip(parameters, start, strict=True):
                p.copy_(value)
        self._buffers.restore()
        for _ in range(self._local_sgd.epochs):
            order = torch.from_numpy(self._generator.permutation(row_count))
            for first in range(0, row_count, self._local_sgd.batch):
                batch = order[first : first + self._local_sgd.batch]
                self._step(*tree_map(lambda tensor, batch=batch: tensor[batch], examples))
                self._project(parameters, start, rule)
        with torch.no_grad():
            negative_update = torch.cat([(s - p).reshape(-1) for s, p in zip(start, parameters, strict=True)])
            return negative_update * self._local_sgd.weight(row_count)

    def _step(self, inputs: Any, targets: Any) -> None:
        """Take one step of SGD on a batch of one client's rows."""
        model, parameters = self._client_engine.model, list(self._client_engine.parameters.values())
        with torch.enable_grad(), full_precision():
            outputs = model(*inputs) if isinstance(inputs, tuple) else model(inputs)
            loss = self._client_engine.loss(outputs, targets).mean()
            gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
        with torch.no_grad():
            for p, gradient in zip(parameters, gradients, strict=True):
                if gradient is not None:
                    p.sub_(gradient, alpha=self._local_sgd.lr)

    @torch.no_grad()
    def _project(self, parameters: list[Any], start: list[Tensor], rule: Clipping) -> None:
        """Project the parameters onto the ball of radius `clip` around `start`; with `PerLayer`, each layer's
        onto a ball of radius clip / sqrt(layers). Nothing is projected for `Automatic`, which rescales every
        update.

        This is for learning alone: the sensitivity rests on the clipping of the finished update.
        """
        if not isinstance(rule, Flat | PerLayer):
            return
        layers = self._client_engine.layers
        squared_norms: dict[int, float] = {}
        for p, s in zip(parameters, start, strict=True):
            layer = layers[id(p)] if isinstance(rule, PerLayer) else 0
            squared_norms[layer] = squared_norms.get(layer, 0.0) + float((p - s).double().square().sum())
        limit = rule.clip / (len(squared_norms) ** 0.5)
        for p, s in zip(parameters, start, strict=True):
            length = squared_norms[layers[id(p)] if isinstance(rule, PerLayer) else 0] ** 0.5
            if length > limit:
                p.copy_(s + (p - s) * (limit / length))
