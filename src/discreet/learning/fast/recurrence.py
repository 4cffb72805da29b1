"""Runs the steps of an LSTM by hand: one node of torch's graph for all steps, instead of twenty for each.

In shapes T is the number of steps, B that of examples and h that of hidden units; i, f, g, o are the gates,
by torch's names. `recurrent` calls this module.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _LstmSteps(torch.autograd.Function):
    """Runs all steps of an LSTM, forward and backward: the gates' inputs [T, B, 4 h] become outputs [T, B, h]
    and the last cell [B, h].

    In the backward pass the derivatives of the activations are computed for all steps at once; only factors
    that depend on the next step are left to the loop. No gradient is returned for the recurrent weight: it is
    needed per example, and its tap (`taps`) computes it from the gradient of `gates`.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, h: Tensor, c: Tensor, w_hh: Tensor) -> tuple[Tensor, Tensor]:
        (positions, batch, _), size, recurrent_weight = gates.shape, h.shape[1], w_hh.t()
        gate_values, cells = gates.new_empty(gates.shape), gates.new_empty(positions + 1, batch, size)
        tanh_cells, outputs = gates.new_empty(positions, batch, size), gates.new_empty(positions, batch, size)
        cells[0] = c
        # `cells` has one entry more than the others: the cell before the first step
        for gate, value, cell, next_cell, tanh_cell, out in zip(
            gates, gate_values, cells, cells[1:], tanh_cells, outputs, strict=False
        ):
            torch.addmm(gate, h, recurrent_weight, out=value)
            i, f, g, o = value.chunk(4, 1)
            # tanh is several times as fast on a contiguous tensor
            candidate = g.clone(memory_format=torch.contiguous_format).tanh_()
            value.sigmoid_()
            g.copy_(candidate)
            torch.mul(f, cell, out=next_cell).addcmul_(i, g)
            torch.tanh(next_cell, out=tanh_cell)
            h = torch.mul(o, tanh_cell, out=out)
        ctx.save_for_backward(gate_values, cells, tanh_cells, w_hh)
        return outputs, cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, grad_outputs: Tensor, grad_last_cell: Tensor) -> tuple[Tensor | None, ...]:
        gate_values, cells, tanh_cells, w_hh = ctx.saved_tensors
        i, f, g, o = gate_values.chunk(4, 2)
        # `gradient` first holds derivatives with respect to each gate's input: for the gates i, f and g those
        # of the step's cell, for gate o those of its output. The loop multiplies them by the gradient of that
        # cell or output, which gives the gradients of the gates' inputs.
        gradient = (gate_values * (1 - gate_values)).unflatten(2, (4, -1))
        gradient[:, :, 0].mul_(g)
        gradient[:, :, 1].mul_(cells[:-1])
        torch.mul(i, 1 - g.square(), out=gradient[:, :, 2])
        gradient[:, :, 3].mul_(tanh_cells)
        output_to_cell = tanh_cells.square().neg_().add_(1).mul_(o)
        grad_h, grad_c = torch.zeros_like(grad_last_cell), grad_last_cell.clone()
        for step in range(len(gradient) - 1, -1, -1):
            step_gradient = gradient[step]
            grad_h = grad_h.add_(grad_outputs[step])
            grad_c.addcmul_(grad_h, output_to_cell[step])
            step_gradient[:, :3].mul_(grad_c.unsqueeze(1))
            step_gradient[:, 3].mul_(grad_h)
            grad_c.mul_(f[step])
            grad_h = step_gradient.flatten(1) @ w_hh
        return gradient.flatten(2), grad_h, grad_c, None


def takes_lstm(gates: Tensor, projection: Tensor | None) -> bool:
    """Return whether `lstm` can run a layer: in float32 or float64, without autocast, and without a
    projection of its outputs."""
    is_full_precision = gates.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return is_full_precision and projection is None


def lstm(gates: Tensor, h: Tensor, c: Tensor, w_hh: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of all steps [T, B, h] and the last cell [B, h].

    `gates` [T, B, 4 h] is W_ih x plus both biases, in torch's order i, f, g, o; `h` and `c` are the state and
    the cell before the first step. `w_hh`, the recurrent weight, gets no gradient.
    """
    outputs, last = _LstmSteps.apply(gates, h, c, w_hh)  # type: ignore[no-untyped-call]
    return outputs, last
