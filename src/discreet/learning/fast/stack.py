"""Plain stacks of linear layers, run forward and backward by hand: where the arithmetic takes a tenth of a
millisecond, so does everything around it.

Only a bare `nn.Linear`, or an `nn.Sequential` of exactly the classes in `_ACTIVATIONS` and `nn.Linear`,
without hooks and with every weight used once. Each row of the result is computed from the same row of the
input, by construction. What it leaves are the same taps as everybody's, with norms by the same bound
(`bounds.outer_bound`).
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
# The widest layer: beyond, inner products gain from more than one thread, which torch's way uses, and all
# that is saved here is little beside them. No measurement on record.
_WIDEST = 8192

Sums = npt.NDArray[Any]


@dataclass(frozen=True)
class _Layer:
    """Holds a linear layer and those of its parameters that learn."""

    module: nn.Linear
    weight: Target | None
    bias: Target | None


@dataclass(frozen=True, eq=False)
class LinearStack:
    """Runs linear layers and activations in order, forward and backward; what is not linear is stored as its
    class.
    """

    parts: tuple[_Layer | type[nn.Module], ...]
    # the first layer that learns: no gradient is needed before it
    first: int
    width: int
    dtype: torch.dtype
    # the row of the sums below for each layer whose weight learns, by the layer's position
    rows: dict[int, int]
    # of the sums of squares [2, layers, B], of inputs and of gradients
    widening: Widening
    # [layers, 1]: 1 where the layer's bias learns, too
    biases: Sums

    def takes(self, inputs: tuple[Any, ...]) -> bool:
        """Return whether this batch is one matrix of the right kind. Autocast is left to torch."""
        if len(inputs) != 1 or not isinstance(inputs[0], Tensor) or torch.is_autocast_enabled("cpu"):
            return False
        x = inputs[0]
        return x.dim() == 2 and x.shape[1] == self.width and x.dtype is self.dtype and not x.requires_grad

    # a warning would leak a fact about the data
    @np.errstate(all="ignore")
    def forward(self, x: Tensor) -> tuple[list[Tensor], Sums]:
        """Return what goes into each part, and at last what comes out; and room for sums of squares [2,
        layers, B], the first half filled.

        Activations work in place, on what a linear layer just made. Squares are added up while their
        numbers are in the cache.
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
        """Run backward from the gradient of the outputs, as far as the first layer that learns.

        With what all their squares add up to, where that is known.
        """
        outer: list[Outer] = []
        rest: list[Tap] = []
        for position in range(len(self.parts) - 1, self.first - 1, -1):
            part = self.parts[position]
            if not isinstance(part, _Layer):
                g = _activation_gradient(part, g, activations[position + 1])
                continue
            if part.weight is not None:
                _add_up(g, sums[1, self.rows[position]])
                outer.append(Outer(part.weight, activations[position], g, part.bias))
            elif part.bias is not None:
                rest.append(Rows(part.bias, g))
            if position > self.first:
                g = g @ part.module.weight
        x, g_bounds = self.widening(sums)
        squares = outer_bound(x, g_bounds, self.biases)
        for tap, squared_norms in zip(outer, squares[::-1], strict=True):
            tap.precomputed = squared_norms
        return [*outer, *rest], None if rest else torch.from_numpy(squares.sum(0))


def _add_up(rows: Tensor, into: Sums) -> None:
    """Write the sum of squares of each row."""
    array = rows.numpy()
    np.vecdot(array, array, out=into)


def _activate(kind: type[nn.Module], x: Tensor, is_input: bool) -> Tensor:
    """Apply an activation, in place except on the batch itself."""
    if kind is nn.Identity:
        return x
    # the batch itself stays as it is
    if is_input:
        return torch.relu(x) if kind is nn.ReLU else torch.tanh(x)
    return torch.relu_(x) if kind is nn.ReLU else torch.tanh_(x)


def _activation_gradient(kind: type[nn.Module], g: Tensor, out: Tensor) -> Tensor:
    """Multiply by the activation's derivative, in place: the gradient comes from a product, or from the
    loss, and nobody else has it.
    """
    if kind is nn.ReLU:
        _aten.threshold_backward.grad_input(g, out, 0, grad_input=g)
    elif kind is nn.Tanh:
        _aten.tanh_backward.grad_input(g, out, grad_input=g)
    return g


def stack_of(model: nn.Module, routes: dict[str, str]) -> LinearStack | None:
    """Return the model as a stack, or None if it is anything else."""
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
    # a weight that is used twice has a sum as its gradient
    if len({id(p) for p in parameters}) < len(parameters) or len({id(m) for m in modules}) < len(modules):
        return None
    parts = tuple(_Layer(m, *_targets(m)) if isinstance(m, nn.Linear) else type(m) for m in modules)
    learning = [i for i, p in enumerate(parts) if isinstance(p, _Layer) and (p.weight or p.bias)]
    if not learning or len({p.dtype for p in parameters}) > 1 or _has_adjacent_activations(parts):
        return None
    weights = {i: p for i, p in enumerate(parts) if isinstance(p, _Layer) and p.weight}
    if max((max(p.module.weight.shape) for p in weights.values()), default=0) > _WIDEST:
        return None
    bounds = np.array(
        [[widening(p.module.weight.shape[1]), widening(p.module.weight.shape[0])] for p in weights.values()]
    )
    widths = Widening(*bounds.reshape(-1, 2, 2).transpose(2, 1, 0)[..., None])
    biases = np.array([[p.bias is not None] for p in weights.values()], dtype=np.float64).reshape(-1, 1)
    rows = {position: row for row, position in enumerate(weights)}
    return LinearStack(parts, learning[0], linear[0].in_features, parameters[0].dtype, rows, widths, biases)


def _has_adjacent_activations(parts: tuple[_Layer | type[nn.Module], ...]) -> bool:
    """Return whether two activations stand in a row: the second would overwrite what the first needs."""
    return any(not isinstance(a, _Layer) and not isinstance(b, _Layer) for a, b in itertools.pairwise(parts))


def _targets(module: nn.Linear) -> tuple[Target | None, Target | None]:
    """Return the targets of weight and bias; None for one that does not learn."""
    weight, bias = (module._parameters.get(name) for name in ("weight", "bias"))
    return (Target(p) if p is not None and p.requires_grad else None for p in (weight, bias))  # type: ignore[return-value]


def _is_unusual(module: nn.Module) -> bool:
    """Return whether hooks or parametrizations make this more than a plain layer."""
    return not is_bare(module) or (type(module) is nn.Linear and "weight" not in module._parameters)
