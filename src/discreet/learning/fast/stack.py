"""Runs plain stacks of linear layers forward and backward by hand: where their arithmetic takes a tenth of a
millisecond, autograd around it would take as long again.

A model is run so if it is a bare `nn.Linear`, or an `nn.Sequential` of exactly the classes in `_ACTIVATIONS`
and `nn.Linear`, without hooks and with every weight used once (`stack_of`), and if its loss is `CrossEntropy`
(`engine`). Each row of the result is computed from the same row of the input, by construction. The taps hold
what per-example gradients are computed from: they are of the classes that linear layers have under autograd
too (module `taps`), with norms by the same bound (`bounds.outer_bound`). In shapes B is the number of
examples.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..bounds import Widening, outer_bound, widening
from ..layers import is_bare
from ..taps import Outer, Rows, Tap, Target

_aten = torch.ops.aten
_ACTIVATIONS = (nn.ReLU, nn.Tanh, nn.Identity)
# The most inputs or outputs of a layer: sums of squares over more gain from several threads, which torch uses
# and numpy does not, and the time that is saved here is small beside them. No measurement on record.
_WIDEST = 8192

Sums = npt.NDArray[Any]


@dataclass(frozen=True)
class _Layer:
    """Holds a linear layer and the `Target` of its weight and of its bias: where the tap adds its sum of
    gradients. It is None for a parameter that does not learn."""

    module: nn.Linear
    weight: Target | None
    bias: Target | None


@dataclass(frozen=True, eq=False)
class LinearStack:
    """Runs linear layers and activations in order, forward and backward."""

    # the layers in order; an activation is stored as its class
    parts: tuple[_Layer | type[nn.Module], ...]
    # the position of the first layer that learns: no gradient is needed before it
    first: int
    # the number of inputs
    width: int
    dtype: torch.dtype
    # The row of a layer whose weight learns, by its position in `parts`: a row of the sums of squares
    # [2, layers, B], which are those of the layers' inputs (0) and of the gradients of their outputs (1).
    rows: dict[int, int]
    # turns these sums, which are rounded, into upper bounds
    widening: Widening
    # [layers, 1]: 1 where the layer's bias learns, too
    biases: Sums

    def takes(self, inputs: tuple[Any, ...]) -> bool:
        """Return whether `forward` can run these inputs: one matrix of the right width and type, without
        autocast."""
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or torch.is_autocast_enabled("cpu"):
            return False
        x = inputs[0]
        return x.dim() == 2 and x.shape[1] == self.width and x.dtype is self.dtype and not x.requires_grad

    # a warning would leak a fact about the data
    @np.errstate(all="ignore")
    def forward(self, x: Tensor) -> tuple[list[Tensor], Sums]:
        """Return the input of each part followed by the output of the last, and the array [2, layers, B] of
        sums of squares, whose first half is filled here and whose second half `taps` fills.

        Activations overwrite the output of the linear layer before them. The squares of a layer's inputs are
        added up right before the layer runs, while these inputs are in the cache.
        """
        activations, sums = [x], np.empty((2, len(self.rows), len(x)), x.numpy().dtype)
        for position, part in enumerate(self.parts):
            if not isinstance(part, _Layer):
                x = _activate(part, x, len(activations) == 1)
            else:
                if position in self.rows:
                    _add_up(x, sums[0, self.rows[position]])
                x = F.linear(x, part.module.weight, part.module.bias)
            activations.append(x)
        return activations, sums

    @np.errstate(all="ignore")
    def taps(self, activations: list[Tensor], sums: Sums, g: Tensor) -> tuple[list[Tap], Tensor | None]:
        """Run backward from g, the gradient of the outputs, as far as the first layer that learns.

        Return the taps, and bounds [B] on the squared norm of each example's gradient over all layers. The
        bounds are None if the bias of a layer learns and its weight does not: such a bias has a tap of its
        own, whose norm is not computed here.
        """
        outer: list[Outer] = []
        biases_alone: list[Tap] = []
        for position in range(len(self.parts) - 1, self.first - 1, -1):
            part = self.parts[position]
            if not isinstance(part, _Layer):
                g = _activation_gradient(part, g, activations[position + 1])
                continue
            if part.weight is not None:
                _add_up(g, sums[1, self.rows[position]])
                outer.append(Outer(part.weight, activations[position], g, part.bias))
            elif part.bias is not None:
                biases_alone.append(Rows(part.bias, g))
            if position > self.first:
                g = g @ part.module.weight
        x_bounds, g_bounds = self.widening(sums)
        squares = outer_bound(x_bounds, g_bounds, self.biases)
        # `outer` is in the order of the backward pass, the rows of `squares` in that of the forward pass
        for tap, squared_norms in zip(outer, squares[::-1], strict=True):
            tap.precomputed = squared_norms
        return [*outer, *biases_alone], None if biases_alone else torch.from_numpy(squares.sum(0))


def _add_up(rows: Tensor, into: Sums) -> None:
    """Write the sum of squares of each row to `into`."""
    array = rows.numpy()
    np.vecdot(array, array, out=into)


def _activate(kind: type[nn.Module], x: Tensor, is_input: bool) -> Tensor:
    """Apply an activation, in place except on the batch itself, which must not change."""
    if kind is nn.Identity:
        return x
    if is_input:
        return torch.relu(x) if kind is nn.ReLU else torch.tanh(x)
    return torch.relu_(x) if kind is nn.ReLU else torch.tanh_(x)


def _activation_gradient(kind: type[nn.Module], g: Tensor, out: Tensor) -> Tensor:
    """Multiply g by the activation's derivative, in place: g was just made by a product or by the loss, and
    is used by nothing else.
    """
    if kind is nn.ReLU:
        _aten.threshold_backward.grad_input(g, out, 0, grad_input=g)
    elif kind is nn.Tanh:
        _aten.tanh_backward.grad_input(g, out, grad_input=g)
    return g


def stack_of(model: nn.Module, routes: dict[str, str]) -> LinearStack | None:
    """Return the model as a stack, or None if it is anything else; `routes` is `plan.routes(model)`."""
    modules = [model] if type(model) is nn.Linear else list(model) if type(model) is nn.Sequential else []
    linear = [m for m in modules if type(m) is nn.Linear]
    is_supported = all(type(m) is nn.Linear or type(m) in _ACTIVATIONS for m in modules)
    if (
        not linear
        or not is_supported
        or any(map(_is_unusual, [model, *modules]))
        or "isolated" in routes.values()
    ):
        return None
    parameters = [p for m in linear for p in m.parameters()]
    # a weight that is used twice has the sum of two gradients, which one tap does not hold
    if len({id(p) for p in parameters}) < len(parameters) or len({id(m) for m in modules}) < len(modules):
        return None
    parts = tuple(_Layer(m, *_targets(m)) if isinstance(m, nn.Linear) else type(m) for m in modules)
    learning = [i for i, p in enumerate(parts) if isinstance(p, _Layer) and (p.weight or p.bias)]
    if not learning or len({p.dtype for p in parameters}) > 1 or _has_adjacent_activations(parts):
        return None
    weights = {i: p for i, p in enumerate(parts) if isinstance(p, _Layer) and p.weight}
    if max((max(p.module.weight.shape) for p in weights.values()), default=0) > _WIDEST:
        return None
    # [layers, 2, 2]: for the input and for the gradient of each, `factor` and `offset` of `Widening`; after
    # the transposition each of the two is [2, layers, 1], which broadcasts with the sums of squares
    pairs = np.array(
        [[widening(p.module.weight.shape[1]), widening(p.module.weight.shape[0])] for p in weights.values()]
    )
    widenings = Widening(*pairs.reshape(-1, 2, 2).transpose(2, 1, 0)[..., None])
    biases = np.array([[p.bias is not None] for p in weights.values()], dtype=np.float64).reshape(-1, 1)
    rows = {position: row for row, position in enumerate(weights)}
    return LinearStack(
        parts, learning[0], linear[0].in_features, parameters[0].dtype, rows, widenings, biases
    )


def _has_adjacent_activations(parts: tuple[_Layer | type[nn.Module], ...]) -> bool:
    """Return whether two activations follow each other: the second would overwrite the output of the first,
    which the backward pass needs."""
    return any(not isinstance(a, _Layer) and not isinstance(b, _Layer) for a, b in itertools.pairwise(parts))


def _targets(module: nn.Linear) -> tuple[Target | None, Target | None]:
    """Return the targets of weight and bias; None for one that does not learn."""
    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
    return (Target(p) if p is not None and p.requires_grad else None for p in (weight, bias))  # type: ignore[return-value]


def _is_unusual(module: nn.Module) -> bool:
    """Return whether hooks or parametrizations are on a module, so that it is more than a plain layer."""
    return not is_bare(module) or (type(module) is nn.Linear and "weight" not in module._parameters)
