"""The steps of an LSTM by hand: one node of torch's graph instead of twenty for each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _LstmSteps(torch.autograd.Function):
    """Runs all steps of an LSTM, forward and backward: [T, B, 4 h] gates' inputs to [T, B, h] outputs and the
    last cell [B, h].

    Torch's graph of a step has twenty nodes. What the backward pass multiplies by is computed for all steps
    at once; only what depends on the next step is left to the loop. No gradient is given for the recurrent
    weight: its tap takes that of the gates.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, h: Tensor, c: Tensor, w_hh: Tensor) -> tuple[Tensor, Tensor]:
        (positions, batch, _), size, recurrent_weight = gates.shape, h.shape[1], w_hh.t()
        gate_values, cells = gates.new_empty(gates.shape), gates.new_empty(positions + 1, batch, size)
        activated, steps = gates.new_empty(positions, batch, size), gates.new_empty(positions, batch, size)
        cells[0] = c
        for gate, value, cell, next_cell, activation, out in zip(
            gates, gate_values, cells, cells[1:], activated, steps, strict=False
        ):
            torch.addmm(gate, h, recurrent_weight, out=value)
            i, f, g, o = value.chunk(4, 1)
            # tanh is several times as fast on a contiguous tensor
            candidate = g.clone(memory_format=torch.contiguous_format).tanh_()
            value.sigmoid_()
            g.copy_(candidate)
            torch.mul(f, cell, out=next_cell).addcmul_(i, g)
            torch.tanh(next_cell, out=activation)
            h = torch.mul(o, activation, out=out)
        ctx.save_for_backward(gate_values, cells, activated, w_hh)
        return steps, cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, g_steps: Tensor, g_last: Tensor) -> tuple[Tensor | None, ...]:
        gate_values, cells, activated, w_hh = ctx.saved_tensors
        i, f, g, o = gate_values.chunk(4, 2)
        # What each gate's gradient is multiplied by; in the loop, that gradient.
        gradient = (gate_values * (1 - gate_values)).unflatten(2, (4, -1))
        gradient[:, :, 0].mul_(g)
        gradient[:, :, 1].mul_(cells[:-1])
        torch.mul(i, 1 - g.square(), out=gradient[:, :, 2])
        gradient[:, :, 3].mul_(activated)
        output_to_cell = activated.square().neg_().add_(1).mul_(o)
        h, c = torch.zeros_like(g_last), g_last.clone()
        for step in range(len(gradient) - 1, -1, -1):
            step_gradient = gradient[step]
            h = h.add_(g_steps[step])
            c.addcmul_(h, output_to_cell[step])
            step_gradient[:, :3].mul_(c.unsqueeze(1))
            step_gradient[:, 3].mul_(h)
            c.mul_(f[step])
            h = step_gradient.flatten(1) @ w_hh
        return gradient.flatten(2), h, c, None


def takes_lstm(gates: Tensor, projection: Tensor | None) -> bool:
    """Return whether an LSTM can be run by hand: in full precision, without a projection of its outputs."""
    is_full_precision = gates.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return is_full_precision and projection is None


def lstm(gates: Tensor, h: Tensor, c: Tensor, w_hh: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of all steps [T, B, h] and the last cell [B, h]."""
    outputs, last = _LstmSteps.apply(gates, h, c, w_hh)  # type: ignore[no-untyped-call]
    return outputs, last
