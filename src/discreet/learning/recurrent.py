"""Recurrent layers, written out step by step so that the gradient of every gate can be tapped.

The products with the inputs are one contraction for all steps. The gradient there is that of the gates, which is also what
the recurrent weights need: one edge serves both (a GRU's candidate gate sees the state through its reset gate, and has its own).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .layers import NotBatchFirst, Recorder, targets
from .taps import Tap, Target, over_places, product, single


def recurrent(layer: Any, recorder: Recorder, input: Tensor, hx: Any = None) -> tuple[Tensor, Any]:
    """The same arguments and results as `nn.RNN`, `nn.LSTM` and `nn.GRU`, for padded (not packed) batches."""
    if not isinstance(input, Tensor) or input.dim() != 3:
        raise NotBatchFirst(f"{type(layer).__name__} was given a packed sequence, or no batch dimension.")
    x = input.transpose(0, 1) if layer.batch_first else input  # [T, B, k]
    recorder.first(layer, x, 1)
    lstm = isinstance(layer, nn.LSTM)
    states = _initial(layer, x, hx, lstm)
    lasts: list[tuple[Tensor, ...]] = []
    for depth in range(layer.num_layers):
        ways = []
        for way in range(2 if layer.bidirectional else 1):
            state = tuple(s[len(lasts)] for s in states)
            steps, last = _way(layer, recorder, x, state, depth, way)
            ways.append(steps)
            lasts.append(last)
        x = torch.cat(ways, -1) if len(ways) > 1 else ways[0]
        if layer.dropout and layer.training and depth < layer.num_layers - 1:
            x = F.dropout(x, layer.dropout)
    ends = tuple(torch.stack(parts) for parts in zip(*lasts, strict=True))
    return (x.transpose(0, 1) if layer.batch_first else x), (ends if lstm else ends[0])


def _initial(layer: Any, x: Tensor, hx: Any, lstm: bool) -> tuple[Tensor, ...]:
    if hx is not None:
        return tuple(hx) if lstm else (hx,)
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    zero = x.new_zeros(count, x.shape[1], layer.hidden_size)
    if not lstm:
        return (zero,)
    return (x.new_zeros(count, x.shape[1], layer.proj_size) if layer.proj_size else zero), zero


def _way(
    layer: Any, recorder: Recorder, x: Tensor, state: tuple[Tensor, ...], depth: int, way: int
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """One layer in one direction: the outputs [T, B, h], and the last state."""
    end = f"_l{depth}" + ("_reverse" if way else "")
    names = [f"{name}{end}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")]
    held: list[Any] = [getattr(layer, name, None) for name in names]
    w_ih, w_hh, b_ih, b_hh, w_hr = held
    goals = targets(layer, *names)
    x = x.flip(0) if way else x
    gru = isinstance(layer, nn.GRU)
    shift = b_ih if gru or b_ih is None else b_ih + b_hh
    gates = F.linear(x, w_ih, shift)
    if goals[1] is not None and not gates.requires_grad:
        gates.requires_grad_()  # only the recurrent weight learns: its gradient is tapped here
    if gru:
        steps, last = _gru(recorder, gates, state[0], w_hh, b_hh, goals)
    elif isinstance(layer, nn.LSTM):
        steps, last = _lstm(recorder, gates, state, w_hh, w_hr, goals)
    else:
        steps, last = _rnn(gates, state[0], w_hh, torch.tanh if layer.nonlinearity == "tanh" else torch.relu)
    before = torch.cat([state[0].unsqueeze(0), steps[:-1]]).detach()
    inputs = x.detach()

    def taps(g: Tensor) -> list[Tap]:
        g = single(g).transpose(0, 1)
        found = _products(goals[0], inputs, g) + _biases(goals[2], g)
        if not gru:
            found += _products(goals[1], before, g) + _biases(goals[3], g)
        return found

    recorder.note((gates,), taps)
    return (steps.flip(0) if way else steps), last


def _products(target: Target | None, x: Tensor, g: Tensor) -> list[Tap]:
    return [] if target is None else [product(target, single(x).transpose(0, 1), g)]


def _biases(target: Target | None, g: Tensor) -> list[Tap]:
    return [] if target is None else [over_places(target, g)]


def _rnn(gates: Tensor, h: Tensor, w_hh: Tensor, bend: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    steps, across = [], w_hh.t()
    for gate in gates.unbind(0):
        h = bend(torch.addmm(gate, h, across))
        steps.append(h)
    return torch.stack(steps), (h,)


class _Lstm(torch.autograd.Function):
    """All steps of an LSTM by hand, forward and backward: [T, B, 4 h] gates' inputs to [T, B, h] outputs and the last cell [B, h].

    Torch's graph of a step has twenty nodes. What the backward pass multiplies by is computed for all steps at once; only what depends on the next step is
    left to the loop. No gradient is given for the recurrent weight: its tap takes that of the gates.
    """

    @staticmethod
    def forward(ctx: Any, gates: Tensor, h: Tensor, c: Tensor, w_hh: Tensor) -> tuple[Tensor, Tensor]:
        (places, batch, _), size, across = gates.shape, h.shape[1], w_hh.t()
        opened, cells = gates.new_empty(gates.shape), gates.new_empty(places + 1, batch, size)
        bent, steps = gates.new_empty(places, batch, size), gates.new_empty(places, batch, size)
        cells[0] = c
        for gate, now, before, after, bend, out in zip(gates, opened, cells, cells[1:], bent, steps, strict=False):
            torch.addmm(gate, h, across, out=now)
            i, f, g, o = now.chunk(4, 1)
            new = g.clone(
                memory_format=torch.contiguous_format
            ).tanh_()  # what is in one piece is several times as fast
            now.sigmoid_()
            g.copy_(new)
            torch.mul(f, before, out=after).addcmul_(i, g)
            torch.tanh(after, out=bend)
            h = torch.mul(o, bend, out=out)
        ctx.save_for_backward(opened, cells, bent, w_hh)
        return steps, cells[-1].clone()

    @staticmethod
    def backward(ctx: Any, g_steps: Tensor, g_last: Tensor) -> tuple[Tensor | None, ...]:
        opened, cells, bent, w_hh = ctx.saved_tensors
        i, f, g, o = opened.chunk(4, 2)
        found = (opened * (1 - opened)).unflatten(
            2, (4, -1)
        )  # what each gate's gradient is multiplied by; in the loop, that gradient
        found[:, :, 0].mul_(g)
        found[:, :, 1].mul_(cells[:-1])
        torch.mul(i, 1 - g.square(), out=found[:, :, 2])
        found[:, :, 3].mul_(bent)
        through = bent.square().neg_().add_(1).mul_(o)
        h, c = torch.zeros_like(g_last), g_last.clone()
        for step in range(len(found) - 1, -1, -1):
            now = found[step]
            h = h.add_(g_steps[step])
            c.addcmul_(h, through[step])
            now[:, :3].mul_(c.unsqueeze(1))
            now[:, 3].mul_(h)
            c.mul_(f[step])
            h = now.flatten(1) @ w_hh
        return found.flatten(2), h, c, None


def _by_hand(gates: Tensor, w_hr: Tensor | None) -> bool:
    return w_hr is None and gates.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")


def _lstm(
    recorder: Recorder, gates: Tensor, state: tuple[Tensor, ...], w_hh: Tensor, w_hr: Tensor | None, goals: list[Any]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    if _by_hand(gates, w_hr):
        found, last = _Lstm.apply(gates, *state, w_hh)  # type: ignore[no-untyped-call]
        return found, (found[-1], last)
    (h, c), steps, outs, across = state, [], [], w_hh.t()
    for gate in gates.unbind(0):
        i, f, g, o = torch.addmm(gate, h, across).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        if w_hr is not None:
            outs.append(h)
            h = F.linear(h, w_hr)
        steps.append(h)
    made = torch.stack(steps)
    if w_hr is not None and goals[4] is not None:
        held = torch.stack(outs).detach()

        def taps(*g: Tensor) -> list[Tap]:
            return _products(goals[4], held, single(torch.stack(g, 1)))

        recorder.note(tuple(steps), taps)
    return made, (h, c)


def _gru(
    recorder: Recorder, gates: Tensor, h: Tensor, w_hh: Tensor, b_hh: Tensor | None, goals: list[Any]
) -> tuple[Tensor, tuple[Tensor, ...]]:
    steps, seen, before = [], [], []
    for gate in gates.unbind(0):
        inner = F.linear(h, w_hh, b_hh)
        before.append(h.detach())
        seen.append(inner)
        (rx, zx, nx), (rh, zh, nh) = gate.chunk(3, 1), inner.chunk(3, 1)
        r, z = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
        n = torch.tanh(nx + r * nh)
        h = n + z * (h - n)
        steps.append(h)
    held = torch.stack(before)

    def taps(*g: Tensor) -> list[Tap]:
        all_g = single(torch.stack(g, 1))
        return _products(goals[1], held, all_g) + _biases(goals[3], all_g)

    recorder.note(tuple(seen), taps)
    return torch.stack(steps), (h,)
