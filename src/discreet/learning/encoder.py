"""A transformer's encoder layer by hand: forward and backward a few examples at a time, so that what one operation leaves is in the cache for the next.

Torch runs each operation over the whole batch, and every one of them reads from memory what the one before has written there. In here a few examples go
through the whole layer; bends work in place, what goes around a block is added by the product that ends it, and per-example gradients are measured as soon as
they can be. It is for training that only clips and adds (`Recorder.lean`), and for layers as torch builds them: all others are taken apart.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .._errors import Unsupported
from .attention import SHORT, attend, pull
from .layers import Recorder, is_bare, targets
from .taps import Pieces, Rows, Tap, Target, worth_building

_aten = torch.ops.aten
_RELUS, _GELUS = (F.relu, torch.relu), (F.gelu,)
# Entries of the widest layer, for the examples that go through together: fewer would make products dearer, more everything else (measured).
WARM = 1 << 20
_PARTS = {
    "self_attn": nn.MultiheadAttention,
    "linear1": nn.Linear,
    "linear2": nn.Linear,
    "norm1": nn.LayerNorm,
    "norm2": nn.LayerNorm,
}
_DROPS = ("dropout", "dropout1", "dropout2")

Taps = list[Tap]
# By the gradient of what came out that of what went in; taps of the parameters are appended.
Back = Callable[[Tensor, Taps], Tensor]


@dataclass(frozen=True, eq=False)
class _Affine:
    """W x + b."""

    weight: Tensor
    bias: Tensor | None
    goal: Target | None
    shift: Target | None

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def back(self, x: Tensor, g: Tensor, taps: Taps, onto: Tensor | None = None) -> Tensor:
        """The gradient of x; added to `onto`, in place, where that is given."""
        if self.goal is not None:
            taps.append(Pieces(self.goal).take(x, g))
        if self.shift is not None:
            taps.append(Rows(self.shift, g.sum(1)))
        if onto is None:
            return g @ self.weight
        onto.view(-1, onto.shape[2]).addmm_(g.view(-1, g.shape[2]), self.weight)
        return onto


def _affine(module: Any, weight: str = "weight", bias: str = "bias") -> _Affine:
    return _Affine(getattr(module, weight).detach(), _detached(getattr(module, bias)), *targets(module, weight, bias))


def _detached(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.detach()


@dataclass(frozen=True, eq=False)
class _Norm:
    shape: list[int]
    weight: Tensor | None
    bias: Tensor | None
    eps: float
    scale: Target | None
    shift: Target | None

    def __call__(self, x: Tensor) -> tuple[Tensor, Back]:
        out, mean, steep = torch.native_layer_norm(x, self.shape, self.weight, self.bias, self.eps)

        def back(g: Tensor, taps: Taps) -> Tensor:
            if self.scale is not None:
                taps.append(Rows(self.scale, torch.sub(x, mean).mul_(steep).mul_(g).sum(1)))
            if self.shift is not None:
                taps.append(Rows(self.shift, g.sum(1)))
            only = [True, False, False]
            found = _aten.native_layer_norm_backward(g, x, self.shape, mean, steep, self.weight, self.bias, only)
            return cast(Tensor, found[0])

        return out, back


def _norm(layer: nn.LayerNorm) -> _Norm:
    weight, bias = _detached(layer.weight), _detached(layer.bias)
    return _Norm(list(layer.normalized_shape), weight, bias, layer.eps, *targets(layer, "weight", "bias"))


@dataclass(frozen=True, eq=False)
class _Attention:
    into: _Affine
    out: _Affine
    heads: int

    def __call__(self, x: Tensor, *, around: bool) -> tuple[Tensor, Back]:
        """`around`: the gradient of x is to be that of x + attention(x), and that of the result may be overwritten by it."""
        mixed, parts, shares = attend(self.into(x), self.heads)

        def back(g: Tensor, taps: Taps) -> Tensor:
            pulled = pull(self.out.back(mixed, g, taps), parts, shares)
            return self.into.back(x, pulled, taps, onto=g if around else None)

        return self.out(mixed), back


@dataclass(frozen=True, eq=False)
class _Forward:
    """Two affine maps with a bend between them."""

    one: _Affine
    two: _Affine
    relu: bool

    def __call__(self, x: Tensor, *, around: bool) -> tuple[Tensor, Back]:
        flat = self.one(x)
        bent = flat.relu_() if self.relu else F.gelu(flat)

        def back(g: Tensor, taps: Taps) -> Tensor:
            inner = self.two.back(bent, g, taps)
            if self.relu:
                _aten.threshold_backward.grad_input(inner, bent, 0, grad_input=inner)
            else:
                _aten.gelu_backward.grad_input(inner, flat, grad_input=inner)
            return self.one.back(x, inner, taps, onto=g if around else None)

        return self.two(bent), back


class _Run:
    """One forward and one backward pass of a layer."""

    def __init__(self, layer: nn.TransformerEncoderLayer, recorder: Recorder, places: int) -> None:
        attention = layer.self_attn
        first = _Attention(
            _affine(attention, "in_proj_weight", "in_proj_bias"), _affine(attention.out_proj), attention.num_heads
        )
        second = _Forward(_affine(layer.linear1), _affine(layer.linear2), _is_relu(layer.activation))
        self._blocks = ((first, _norm(layer.norm1)), (second, _norm(layer.norm2)))
        self._before, self._workers = layer.norm_first, recorder.workers
        widest = max(len(attention.in_proj_weight), layer.linear1.out_features)
        hands = self._workers.count
        room = WARM if hands > 1 else WARM * torch.get_num_threads()
        self._few = min(max(1, room // (widest * places)), -(-recorder.batch // hands))
        self._backs: dict[int, Back] = {}
        self._taps: dict[int, Taps] = {}

    def forward(self, x: Tensor) -> Tensor:
        self._given, self._version = x, _version(x)
        out = torch.empty_like(x)
        some, places = torch.split(x, self._few), torch.split(out, self._few)

        def one(i: int) -> None:
            found, self._backs[i] = self._through(some[i])
            places[i].copy_(found)

        self._workers.each(one, len(some))
        return out

    def backward(self, g: Tensor) -> Tensor:
        if _version(self._given) != self._version:  # as torch's own layers do
            raise Unsupported(
                "an encoder layer was given a tensor that the model has changed in place since (x += ..., x.relu_()): its gradient would be that of "
                "other numbers. Nothing was added. Write x = x + ..., or give the layer a copy."
            )
        out = torch.empty(g.shape, dtype=g.dtype)
        some, places = torch.split(g, self._few), torch.split(out, self._few)

        def one(i: int) -> None:
            self._taps[i] = []
            places[i].copy_(self._backs.pop(i)(some[i].contiguous(), self._taps[i]))

        self._workers.each(one, len(some))
        return out

    def _through(self, x: Tensor) -> tuple[Tensor, Back]:
        backs: list[tuple[Back, Back]] = []
        for block, norm in self._blocks:
            if self._before:
                normal, back_norm = norm(x)
                found, back = block(normal, around=False)
                x = found.add_(x)
            else:
                found, back = block(x, around=True)
                x, back_norm = norm(found.add_(x))
            backs.append((back, back_norm))

        def through(g: Tensor, taps: Taps) -> Tensor:
            for back, back_norm in reversed(backs):
                g = back_norm(back(g, taps), taps).add_(g) if self._before else back(back_norm(g, taps), taps)
            return g

        return x, through

    def taps(self, g: Tensor) -> Taps:
        if not self._taps:  # nothing before this layer learns: torch had no reason to go through it
            self.backward(g)
        return [_joined(group) for group in zip(*(self._taps[i] for i in range(len(self._taps))), strict=True)]


def _version(tensor: Tensor) -> int:
    """Counts changes in place. Tensors of inference mode cannot be changed outside of it, and do not count."""
    return 0 if tensor.is_inference() else tensor._version


def _joined(group: tuple[Any, ...]) -> Tap:
    """The taps of one parameter, a few examples each."""
    target = group[0].target
    if isinstance(group[0], Rows):
        return Rows(target, torch.cat([tap.rows for tap in group]))
    return Pieces(target, [r for tap in group for r in tap.rows], [n for tap in group for n in tap.norms])


class _Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, run: _Run) -> Tensor:
        ctx.run = run
        return run.forward(x)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return ctx.run.backward(g), None


def encoder(
    layer: nn.TransformerEncoderLayer,
    recorder: Recorder,
    plain: Callable[..., Tensor],
    src: Tensor,
    src_mask: Tensor | None = None,
    src_key_padding_mask: Tensor | None = None,
    is_causal: bool = False,
) -> Tensor:
    """The same arguments and result as the layer's own forward pass, `plain`, to which everything unusual is left."""
    bare = src_mask is None and src_key_padding_mask is None and not is_causal
    if recorder.inside or not recorder.active or not recorder.lean or not bare or not _takes(layer, src):
        return plain(src, src_mask, src_key_padding_mask, is_causal)
    recorder.first(layer, src)
    run = _Run(layer, recorder, src.shape[1])
    x = src.contiguous() if src.requires_grad else src.detach().contiguous().requires_grad_()
    out = cast(Tensor, _Through.apply(x, run))  # type: ignore[no-untyped-call]
    recorder.note((out,), run.taps)
    return out


def _takes(layer: nn.TransformerEncoderLayer, src: Tensor) -> bool:
    """Whether this batch is of the right kind: short, in full precision, nothing dropped out, all gradients worth being built."""
    kinds = {src.dtype, *(p.dtype for p in layer.parameters())}
    if src.dim() != 3 or src.shape[1] > SHORT or kinds != {torch.float32} or torch.is_autocast_enabled("cpu"):
        return False
    drops = [drop.p for name in _DROPS if (drop := layer.get_submodule(name)).training]
    if any(drops) or (layer.self_attn.training and layer.self_attn.dropout):
        return False
    batch, places, width = src.shape
    wide = layer.linear1.out_features
    shapes = ((width, 3 * width), (width, width), (width, wide), (wide, width))
    return all(worth_building(batch, places, k, p) for k, p in shapes)


def _is_relu(bend: Any) -> bool:
    return bend in _RELUS or type(bend) is nn.ReLU


def _is_gelu(bend: Any) -> bool:
    return bend in _GELUS or (type(bend) is nn.GELU and bend.approximate == "none")


def is_ordinary(layer: nn.Module) -> bool:
    """Whether a layer is an encoder layer as torch builds it; whether its parts are tapped is for the caller to know."""
    if type(layer) is not nn.TransformerEncoderLayer or not all(map(is_bare, layer.modules())):
        return False
    if {"_sa_block", "_ff_block"} & vars(layer).keys():
        return False
    kinds = _PARTS | dict.fromkeys(_DROPS, nn.Dropout)
    attention, out, bend = layer.self_attn, layer.self_attn.out_proj, layer.activation
    return (
        all(type(layer.get_submodule(name)) is kind for name, kind in kinds.items())
        and type(out) is nn.modules.linear.NonDynamicallyQuantizableLinear
        and "weight" in out._parameters
        and attention.batch_first
        and attention._qkv_same_embed_dim
        and (_is_relu(bend) or _is_gelu(bend))
    )


def parts(name: str) -> list[str]:
    """The names of a layer's parts that hold parameters."""
    return [f"{name}.{part}".lstrip(".") for part in _PARTS]
