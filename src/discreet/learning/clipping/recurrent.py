"""Defines recurrent layers, written out step by step so that the gradient of every gate can be tapped.

The products of the inputs with the weight W_ih are computed for all steps at once. The gradient of these
products is the gradient of the gates' inputs, which the taps of the recurrent weight W_hh need as well: in an
RNN and an LSTM one recorded tensor, `gates`, serves both. In a GRU the reset gate multiplies a product with
W_hh, so these products are recorded by themselves.

In shapes T is the number of steps, B that of examples, k the width of the inputs and H that of the states.
The states of one direction are its outputs. (With a `proj_size` the cell of an LSTM is wider than H.) In the
loops over steps, h is the state, c the cell of an LSTM, i, f, g, o its gates and r, z, n those of a GRU, as
torch's documentation names them; elsewhere g is the gradient of a recorded tensor. Variables called `steps`
hold the output of each step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence

from .batching import NotBatchFirst
from .layers import Recorder, affine, owned, targets
from .taps import Tap, Target, product, single, summed_over_positions

# Stands for the length of packed sequences where the way to bound a norm is chosen (`taps.ProductTap`): the
# length of the longest sequence of a batch depends on one example, which must not change the bounds of all
# others. Chosen by hand, not tuned.
PACKED_LENGTH = 64


def recurrent(layer: Any, recorder: Recorder, input: Any, hx: Any = None) -> tuple[Any, Any]:
    """Run the layer, with the arguments and results of `nn.RNN`, `nn.LSTM` and `nn.GRU`, on padded or packed
    batches."""
    if isinstance(input, PackedSequence):
        return _packed(layer, recorder, input, hx)
    if not isinstance(input, Tensor) or input.dim() != 3:
        raise NotBatchFirst(f"{type(layer).__name__} was given no batch dimension.")
    # [T, B, k]
    x = input.transpose(0, 1) if layer.batch_first else input
    recorder.require_batch_dim(layer, input, 0 if layer.batch_first else 1)
    x, last_states = _layers(layer, recorder, x, hx, None, recorder.positions(input, layer.input_size))
    return (x.transpose(0, 1) if layer.batch_first else x), last_states


def _packed(layer: Any, recorder: Recorder, input: PackedSequence, hx: Any) -> tuple[PackedSequence, Any]:
    """Run on the padded batch, in the order of the examples.

    Steps beyond an example's length enter no result, and so have no gradient.
    """
    # the lengths of packed sequences are on the host
    x, lengths = pad_packed_sequence(input)
    lengths = lengths.to(x.device)
    if x.shape[1] != recorder.batch:
        raise NotBatchFirst(
            f"{type(layer).__name__} was given another number of packed sequences than there are examples. "
            f"Pack one sequence for each example."
        )
    steps, last_states = _layers(layer, recorder, x, hx, lengths, PACKED_LENGTH)
    order = (
        torch.arange(len(lengths), device=x.device) if input.sorted_indices is None else input.sorted_indices
    )
    data = torch.cat(
        [step[order[:size]] for step, size in zip(steps, input.batch_sizes.tolist(), strict=True)]
    )
    return PackedSequence(data, input.batch_sizes, input.sorted_indices, input.unsorted_indices), last_states


def _layers(
    layer: Any, recorder: Recorder, x: Tensor, hx: Any, lengths: Tensor | None, positions: int | None
) -> tuple[Tensor, Any]:
    """Run all layers in all directions on x [T, B, k], and return outputs ([T, B, H], or [T, B, 2 H] where
    there are two directions) and last states.

    `lengths` [B] are those of packed sequences, None for padded ones; for `positions` see `taps.ProductTap`.
    """
    lstm = isinstance(layer, nn.LSTM)
    states = _initial(layer, x, hx, lstm)
    states_by_layer: list[tuple[Tensor, ...]] = []
    for depth in range(layer.num_layers):
        outputs = []
        for direction in range(2 if layer.bidirectional else 1):
            state = tuple(s[len(states_by_layer)] for s in states)
            steps, last = _direction(layer, recorder, x, state, depth, direction, lengths, positions)
            outputs.append(steps)
            states_by_layer.append(last)
        x = torch.cat(outputs, -1) if len(outputs) > 1 else outputs[0]
        if layer.dropout and layer.training and depth < layer.num_layers - 1:
            x = F.dropout(x, layer.dropout)
    last_states = tuple(torch.stack(parts) for parts in zip(*states_by_layer, strict=True))
    return x, (last_states if lstm else last_states[0])


def _reversed(x: Tensor, lengths: Tensor | None) -> Tensor:
    """Return each sequence of x [T, B, k] from its own end to its beginning; padding behind it stays."""
    if lengths is None:
        return x.flip(0)
    positions = torch.arange(len(x), device=x.device).unsqueeze(1)
    positions = torch.where(positions < lengths, lengths - 1 - positions, positions)
    return x[positions, torch.arange(x.shape[1], device=x.device)]


def _last_steps(steps: Tensor, lengths: Tensor) -> Tensor:
    """Return [B, H]: of each sequence its last step."""
    return steps[lengths - 1, torch.arange(steps.shape[1], device=steps.device)]


def _initial(layer: Any, x: Tensor, hx: Any, lstm: bool) -> tuple[Tensor, ...]:
    """Return the initial states, those that were passed or zeros, each [layers and directions, B, H]."""
    if hx is not None:
        return tuple(hx) if lstm else (hx,)
    count = layer.num_layers * (2 if layer.bidirectional else 1)
    zero = x.new_zeros(count, x.shape[1], layer.hidden_size)
    if not lstm:
        return (zero,)
    return (x.new_zeros(count, x.shape[1], layer.proj_size) if layer.proj_size else zero), zero


def _direction(
    layer: Any,
    recorder: Recorder,
    x: Tensor,
    state: tuple[Tensor, ...],
    depth: int,
    direction: int,
    lengths: Tensor | None,
    positions: int | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run one layer in one direction, and return the outputs [T, B, H] and the last state.

    `state` is (h,), or (h, c) with the cell of an LSTM. `learned` holds a target for each of the five
    parameters in `names`, None for one that is missing or frozen.
    """
    suffix = f"_l{depth}" + ("_reverse" if direction else "")
    names = [f"{name}{suffix}" for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr")]
    parameters: list[Any] = [getattr(layer, name, None) for name in names]
    w_ih, w_hh, b_ih, b_hh, w_hr = parameters
    learned = targets(layer, *names)
    x = _reversed(x, lengths) if direction else x
    gru = isinstance(layer, nn.GRU)
    # In a GRU, b_hh belongs to the products with W_hh, of which the reset gate multiplies a part.
    bias = b_ih if gru or b_ih is None else b_ih + b_hh
    gates = owned(F.linear(x, w_ih, bias))
    if learned[1] is not None and not gates.requires_grad:
        # Only the recurrent weight learns: its tap needs the gradient of the gates.
        gates.requires_grad_()
    if gru:
        steps, last = _gru(recorder, gates, state[0], w_hh, b_hh, learned, lengths, positions)
    elif isinstance(layer, nn.LSTM):
        steps, last = _lstm(recorder, gates, state, w_hh, w_hr, learned, lengths, positions)
    else:
        steps, last = _rnn(gates, state[0], w_hh, torch.tanh if layer.nonlinearity == "tanh" else torch.relu)
    if lengths is not None:
        last = (_last_steps(steps, lengths), *last[1:])
    states_before = torch.cat([state[0].unsqueeze(0), steps[:-1]]).detach()
    inputs = x.detach()

    def taps(g: Tensor) -> list[Tap]:
        g = single(g).transpose(0, 1)
        products = _products(learned[0], inputs, g, lengths, positions) + _biases(learned[2], g)
        if not gru:
            products += _products(learned[1], states_before, g, lengths, positions) + _biases(learned[3], g)
        return products

    recorder.note((gates,), taps)
    return (_reversed(steps, lengths) if direction else steps), last


def _products(
    target: Target | None, x: Tensor, g: Tensor, lengths: Tensor | None, positions: int | None
) -> list[Tap]:
    """Return the tap of a weight, from its inputs x [T, B, ...] and the gradients g [B, T, ...] of its
    outputs; none for a weight that does not learn.

    Beyond an example's own length its inputs count as zero. The states there may grow to infinity, in as many
    steps as the longest sequence of the batch has, and infinity times a gradient of zero would be NaN.
    """
    if target is None:
        return []
    if lengths is not None:
        is_beyond = torch.arange(len(x), device=x.device).unsqueeze(1) >= lengths
        x = x.masked_fill(is_beyond.unsqueeze(2), 0)
    return [product(target, single(x).transpose(0, 1), g, positions=positions)]


def _biases(target: Target | None, g: Tensor) -> list[Tap]:
    """Return the tap of a bias, from the gradients g [B, T, ...]; none for a bias that does not learn."""
    return [] if target is None else [summed_over_positions(target, g)]


def _rnn(gates: Tensor, h: Tensor, w_hh: Tensor, activation: Any) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run the steps of a plain recurrent layer, and return the outputs [T, B, H] and the last state."""
    steps, recurrent_weight = [], w_hh.t()
    for gate in gates.unbind(0):
        h = activation(torch.addmm(gate, h, recurrent_weight))
        steps.append(h)
    return torch.stack(steps), (h,)


def _lstm(
    recorder: Recorder,
    gates: Tensor,
    state: tuple[Tensor, ...],
    w_hh: Tensor,
    w_hr: Tensor | None,
    learned: list[Any],
    lengths: Tensor | None,
    positions: int | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run the steps of an LSTM, and return the outputs [T, B, H] and the last states.

    `w_hr` projects the outputs of each step, if the layer has a `proj_size`.
    """
    (h, c), steps, unprojected, cells, recurrent_weight = state, [], [], [], w_hh.t()
    for gate in gates.unbind(0):
        i, f, g, o = torch.addmm(gate, h, recurrent_weight).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        cells.append(c)
        if w_hr is not None:
            unprojected.append(h)
            h = F.linear(h, w_hr)
        steps.append(h)
    sequence = torch.stack(steps)
    if w_hr is not None and learned[4] is not None:
        projection_inputs = torch.stack(unprojected).detach()

        def taps(*g: Tensor) -> list[Tap]:
            all_g = single(torch.stack(g, 1))
            return _products(learned[4], projection_inputs, all_g, lengths, positions)

        recorder.note(tuple(steps), taps)
    return sequence, (h, c if lengths is None else _last_steps(torch.stack(cells), lengths))


def _gru(
    recorder: Recorder,
    gates: Tensor,
    h: Tensor,
    w_hh: Tensor,
    b_hh: Tensor | None,
    learned: list[Any],
    lengths: Tensor | None,
    positions: int | None,
) -> tuple[Tensor, tuple[Tensor, ...]]:
    """Run the steps of a GRU, whose recurrent products are recorded step by step, and return the outputs
    [T, B, H] and the last state."""
    steps, recurrent_terms, states_before = [], [], []
    for gate in gates.unbind(0):
        recurrent_term = F.linear(h, w_hh, b_hh)
        states_before.append(h.detach())
        recurrent_terms.append(recurrent_term)
        (rx, zx, nx), (rh, zh, nh) = gate.chunk(3, 1), recurrent_term.chunk(3, 1)
        r, z = torch.sigmoid(rx + rh), torch.sigmoid(zx + zh)
        n = torch.tanh(nx + r * nh)
        h = n + z * (h - n)
        steps.append(h)
    hidden_states = torch.stack(states_before)

    def taps(*g: Tensor) -> list[Tap]:
        all_g = single(torch.stack(g, 1))
        products = _products(learned[1], hidden_states, all_g, lengths, positions)
        return products + _biases(learned[3], all_g)

    recorder.note(tuple(recurrent_terms), taps)
    return torch.stack(steps), (h,)


def cell(layer: Any, recorder: Recorder, input: Tensor, hx: Any = None) -> Any:
    """Run one step, with the arguments and results of `nn.RNNCell`, `nn.LSTMCell` and `nn.GRUCell`, on a
    batch [B, k]."""
    if input.dim() != 2:
        raise NotBatchFirst(f"{type(layer).__name__} was given a tensor without a batch dimension.")
    recorder.require_batch_dim(layer, input)
    lstm = isinstance(layer, nn.LSTMCell)
    zeros = input.new_zeros(len(input), layer.hidden_size)
    h, c = (hx if hx is not None else (zeros, zeros)) if lstm else (zeros if hx is None else hx, zeros)
    w_ih, w_hh, b_ih, b_hh = targets(layer, "weight_ih", "weight_hh", "bias_ih", "bias_hh")
    from_input = _recorded_linear(recorder, input, layer.weight_ih, layer.bias_ih, w_ih, b_ih)
    from_state = _recorded_linear(recorder, h, layer.weight_hh, layer.bias_hh, w_hh, b_hh)
    if isinstance(layer, nn.GRUCell):
        (rx, zx, nx), (rh, zh, nh) = from_input.chunk(3, 1), from_state.chunk(3, 1)
        z = torch.sigmoid(zx + zh)
        n = torch.tanh(nx + torch.sigmoid(rx + rh) * nh)
        return n + z * (h - n)
    if not lstm:
        return (torch.tanh if layer.nonlinearity == "tanh" else torch.relu)(from_input + from_state)
    i, f, g, o = (from_input + from_state).chunk(4, 1)
    c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
    return torch.sigmoid(o) * torch.tanh(c), c


def _recorded_linear(
    recorder: Recorder, x: Tensor, weight: Tensor, bias: Tensor | None, w: Target | None, b: Target | None
) -> Tensor:
    """Apply a linear map, and record how its per-example gradients follow from those of its outputs."""
    out, held = F.linear(x, weight, bias), x.detach()
    recorder.note((out,), lambda g: affine(w, b, held, g))
    return out
