"""The steps of an LSTM by hand: one node of torch's graph instead of twenty for each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class _Steps(torch.autograd.Function):
    """Runs all steps of an LSTM, forward and backward: [T, B, 4 h] gates' inputs to [T, B, h] outputs and the
    last cell [B, h].

    Torch's graph of a step has twenty nodes. What the backward pass multiplies by is computed for all steps
    at once; only what depends on the next step is left to the loop. No gradient is given for the recurrent
    weight: its tap takes that of the gates.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, h: Tensor, c: Tensor, w_hh: Tensor) -> tuple[Tensor, Tensor]:
        (positions, batch, _), size, across = gates.shape, h.shape[1], w_hh.t()
        opened, cells = gates.new_empty(gates.shape), gates.new_empty(positions + 1, batch, size)
        activated, steps = gates.new_empty(positions, batch, size), gates.new_empty(positions, batch, size)
        cells[0] = c
        for gate, now, before, after, activation, out in zip(
            gates, opened, cells, cells[1:], activated, steps, strict=False
        ):
            torch.addmm(gate, h, across, out=now)
            i, f, g, o = now.chunk(4, 1)
            # What is in one piece is several times as fast.
            new = g.clone(memory_format=torch.contiguous_format).tanh_()
            now.sigmoid_()
            g.copy_(new)
            torch.mul(f, before, out=after).addcmul_(i, g)
            torch.tanh(after, out=activation)
            h = torch.mul(o, activation, out=out)
        ctx.save_for_backward(opened, cells, activated, w_hh)
        return steps, cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, g_steps: Tensor, g_last: Tensor) -> tuple[Tensor | None, ...]:
        opened, cells, activated, w_hh = ctx.saved_tensors
        i, f, g, o = opened.chunk(4, 2)
        # What each gate's gradient is multiplied by; in the loop, that gradient.
        gradient = (opened * (1 - opened)).unflatten(2, (4, -1))
        gradient[:, :, 0].mul_(g)
        gradient[:, :, 1].mul_(cells[:-1])
        torch.mul(i, 1 - g.square(), out=gradient[:, :, 2])
        gradient[:, :, 3].mul_(activated)
        through = activated.square().neg_().add_(1).mul_(o)
        h, c = torch.zeros_like(g_last), g_last.clone()
        for step in range(len(gradient) - 1, -1, -1):
            now = gradient[step]
            h = h.add_(g_steps[step])
            c.addcmul_(h, through[step])
            now[:, :3].mul_(c.unsqueeze(1))
            now[:, 3].mul_(h)
            c.mul_(f[step])
            h = now.flatten(1) @ w_hh
        return gradient.flatten(2), h, c, None


def takes_lstm(gates: Tensor, projection: Tensor | None) -> bool:
    """Return whether an LSTM can be run by hand: in full precision, without a projection of its outputs."""
    full = gates.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return full and projection is None


def lstm(gates: Tensor, h: Tensor, c: Tensor, w_hh: Tensor) -> tuple[Tensor, Tensor]:
    """Return the outputs of all steps [T, B, h] and the last cell [B, h]."""
    outputs, last = _Steps.apply(gates, h, c, w_hh)  # type: ignore[no-untyped-call]
    return outputs, last
