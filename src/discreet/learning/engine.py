"""The clipped sum: per-example gradients, each scaled to the clip, added up; one forward and one backward
pass.

>>> from torch import nn
>>> model = nn.Linear(4, 2)
>>> engine = ClippingEngine(model, nn.CrossEntropyLoss())
>>> with engine.attached():
...     total = engine.clipped_sum(torch.randn(8, 4), torch.zeros(8, dtype=torch.long), clip=0.1)
>>> [tuple(part.shape) for part in engine.parts(total).values()]
[(2, 4), (2,)]
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from .._errors import InvalidInput, Unsupported
from . import attachment, heap, plan
from .batching import (
    CONSTANT,
    SIZES,
    Call,
    DynamicShapes,
    Folded,
    Layout,
    NotBatchFirst,
    ShapeSurvey,
    first_examples,
    forked_generator,
    layouts,
)
from .clipping import Clipping, PerLayer, as_clipping, factors
from .fast import stack_of
from .layers import Recorder
from .losses import CrossEntropy, per_example
from .merging import merged
from .precision import full_precision
from .taps import Tap, entries

# Floats that the taps of one part of a batch may hold: 64 megabytes (measured).
ENTRIES = 16 << 20
# Examples in a part, however much they hold. A BERT-base holds some 60 MB for each (measured in the probe):
# with 8 its steps would be near 1.3 times plain torch's memory. The cost of smaller parts was not measured.
FEWEST = 4
# Of a part, which the others take over rather than run one more: a ViT-tiny's batch of 16 in parts of 8 takes
# 0.93 times as long as in parts of 6, 6 and 4 (measured).
PART_OVERFLOW = 0.25

# Taps, the squares of all of them together where that is known, losses.
TapsAndLosses = tuple[list[Tap], Tensor | None, Tensor]


@dataclass
class Gradients:
    """Holds the gradients of one batch, each example's by itself, as taps; `squares` bounds their squared
    norms from above, [B, layers] or [B, 1]."""

    taps: list[Tap]
    squares: Tensor
    losses: Tensor

    def add(self, weights: Tensor, sums: dict[int, Tensor], layers: dict[int, int]) -> None:
        """Add the weighted sum to the buffers. `weights` is [B, 1], or [B, layers]."""
        columns = weights.unbind(1)
        for tap in self.taps:
            tap.add(columns[layers[id(tap.target.parameter)] if len(columns) > 1 else 0], sums)

    def zero_out(self, keep: Tensor) -> None:
        for tap in self.taps:
            tap.zero_out(keep)


class ClippingEngine:
    """Computes clipped gradient sums of a model under a loss, which is one number for each example.

    `isolate=True` runs the whole model and the loss example by example under vmap: slower, and mixing
    examples is impossible. `by_hand=False` leaves every layer to torch, `keep_memory=True` sets the process's
    allocator while attached (`Performance`). With `sizes`, clipped sums run what `torch.compile` made of the
    model, on parts of a batch that are filled up to one of these sizes. `expected` is about the size of a
    batch, which is public: ways to bound a norm are chosen by it, never by the size of the batch that came.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        *,
        isolate: bool = False,
        by_hand: bool = True,
        keep_memory: bool = False,
        sizes: tuple[int, ...] = (),
        expected: int = 256,
    ) -> None:
        self.sizes, self._expected, self._expected_part = tuple(sorted(sizes)), expected, 0
        self.model, self.isolate, self.keep_memory = model, isolate, keep_memory
        self.loss = per_example(loss, isolate=isolate)
        self.routes = plan.routes(model)
        if isolate:
            self.routes = {"": "isolated"} | {
                name: way for name, way in self.routes.items() if way == plan.CONSTANT
            }
        self.recorder, self.is_attached = Recorder(fast=by_hand), False
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise InvalidInput("the model has no trainable parameters. Nothing was read or trained.")
        self.dtype = next(iter(self.parameters.values())).dtype
        kinds = {p.dtype for p in self.parameters.values()}
        if not kinds <= {torch.float32} and not kinds <= {torch.float64}:
            raise Unsupported(
                f"trainable parameters must all be float32 (or all float64), got "
                f"{sorted(map(str, kinds))}. Keep them in float32 and "
                f"use torch.autocast inside the model for half precision. Nothing was read or trained."
            )
        plan.check_hooks(self.parameters)
        self.layers = _layers(self.parameters)
        self._layouts: dict[tuple[bool, Any], dict[Call, Layout]] = {}
        self.recorder.isolated_model = model if isolate else None
        closed = isinstance(self.loss, CrossEntropy) and not isolate and by_hand
        self._stack = stack_of(model, self.routes) if closed else None
        # what the taps of one example hold, with what is built of them: known after the first batch, the
        # probe's for one
        self._entries = 0

    @property
    def size(self) -> int:
        """Return how many numbers the model learns."""
        return sum(p.numel() for p in self.parameters.values())

    def buffer(self) -> Tensor:
        """Return a zero vector with room for one number per trainable parameter."""
        return torch.zeros(self.size, dtype=self.dtype)

    def parts(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of such a vector in the shapes of the parameters, by name."""
        sizes = [p.numel() for p in self.parameters.values()]
        pairs = zip(self.parameters.items(), torch.split(vector, sizes), strict=True)
        return {name: piece.view(p.shape) for (name, p), piece in pairs}

    def sums(self, vector: Tensor) -> dict[int, Tensor]:
        """Return the same views by id of the parameter, as taps want them."""
        return {
            id(p): part for p, part in zip(self.parameters.values(), self.parts(vector).values(), strict=True)
        }

    def train(self, mode: bool = True) -> None:
        """Set the model's mode, except that a frozen batch normalization stays in evaluation mode."""
        self.model.train(mode)
        for name, way in self.routes.items():
            if way == plan.CONSTANT:
                self.model.get_submodule(name).eval()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Let the model leave behind what the engine needs, within this context; outside, it is as it was."""
        with (
            heap.kept(self.keep_memory),
            attachment.eager(self.model),
            attachment.attached(self.model, self.recorder, self.routes, opaque=bool(self.sizes)),
        ):
            self.is_attached = True
            try:
                yield
            finally:
                self.is_attached = False

    def gradients(
        self, inputs: Any, targets: Any, *, by_layer: bool = True, sums_only: bool = False
    ) -> Gradients:
        """Run one batch forward and backward; the first dimension of every tensor is the batch.

        A tuple holds the model's arguments. With `sums_only` the result is good for `add` alone: no losses,
        and taps let go of the rest.
        """
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        batch = _length(inputs)
        with full_precision():
            result = self._stacked(inputs, targets, sums_only) or self._recorded(inputs, targets, sums_only)
            taps, total, losses = result
            if by_layer or not taps:
                squares = self._squares(taps, batch, sums_only)
            else:
                squares = (self._total(taps, batch, sums_only) if total is None else total).unsqueeze(1)
        return Gradients(taps, squares, losses)

    def _recorded(self, inputs: tuple[Any, ...], targets: Any, sums_only: bool) -> TapsAndLosses:
        """Return taps and losses, by torch's forward and backward pass; the squares are not known yet."""
        recorder = self.recorder
        try:
            self.decide(inputs)
            recorder.batch, recorder.active, recorder.expected = _length(inputs), True, self._fix_part()
            with torch.enable_grad():
                outputs = self.model(*inputs)
                gradient = self._loss_gradient(outputs, targets)
                each = self.loss(outputs, targets) if not sums_only or gradient is None else torch.empty(0)
                taps = merged(recorder.taps(each if gradient is None else outputs, gradient))
        except NotBatchFirst as error:
            way_out = "" if self.isolate else " Or run everything example by example: isolate=True."
            raise Unsupported(f"{error}{way_out}") from None
        finally:
            recorder.active, recorder.edges, recorder.notes, recorder.calls = False, [], [], {}
            recorder.axes = {}
        return taps, None, each.detach()

    def decide(self, inputs: tuple[Any, ...]) -> None:
        """Decide what follows the batch, from shapes at two batch sizes; once for each mode, training or
        evaluation, and shape of example."""
        if self.isolate or not self.is_attached:
            return
        shapes = tuple(t.shape[1:] if isinstance(t, Tensor) else type(t) for t in tree_leaves(inputs))
        key = self.model.training, shapes
        if key not in self._layouts:
            with forked_generator():
                decisions = self._survey_layouts(inputs)
                if plan.SHARED in self.routes.values() and not self._can_share(inputs):
                    self._isolate_shared()
                    decisions = self._survey_layouts(inputs)
                self._check_folds(inputs, decisions)
                if any(CONSTANT in layout.inputs + layout.outputs for layout in decisions.values()):
                    # What a layer makes of a constant is combined with batches by their size: it must be
                    # right at both sizes, so that it was no coincidence.
                    for size in SIZES:
                        self._rehearse(inputs, size)
            self._layouts[key] = decisions
        self.recorder.layouts = self._layouts[key]

    def _check_folds(self, inputs: tuple[Any, ...], decisions: dict[Call, Layout]) -> None:
        """Refuse rows of examples in one dimension where their number may go with the data.

        Not looked into otherwise: watching loads torch's compiler, a hundred megabytes.
        """
        if any(isinstance(axis, Folded) for layout in decisions.values() for axis in layout.inputs):
            watch = DynamicShapes()  # type: ignore[no-untyped-call]
            with watch:
                self._rehearse(inputs, SIZES[0], ShapeSurvey())
            if watch.seen:
                raise NotBatchFirst(
                    "a layer is given rows of all examples in one dimension, and the model picks rows by "
                    "their values (by a mask, say): whose each row is cannot be told. Keep the batch first."
                )

    def _survey_layouts(self, inputs: tuple[Any, ...]) -> dict[Call, Layout]:
        """Return what follows the batch in each call, by two forward passes."""
        surveys = []
        for size in SIZES:
            survey = ShapeSurvey()
            surveys.append(survey)
            self._rehearse(inputs, size, survey)
        self.recorder.layouts = layouts(*surveys)
        return self.recorder.layouts

    def _can_share(self, inputs: tuple[Any, ...]) -> bool:
        """Return whether modules use parameters of their own in ways that are known, at both sizes; the
        result must have the same shapes and values as without copies."""
        try:
            for size in SIZES:
                seed = int(torch.randint(0, 1 << 30, ()))
                results = []
                for survey in (None, ShapeSurvey()):
                    torch.default_generator.manual_seed(seed)
                    results.append(self._rehearse(inputs, size, survey))
                pairs = zip(*map(tree_leaves, results), strict=True)
                if not all(_same(one, other) for one, other in pairs):
                    return False
        # Whatever it was, example by example it is either gone, or seen again.
        except Exception:
            return False
        return True

    def _isolate_shared(self) -> None:
        """Run modules with parameters of their own example by example, with all their layers."""
        self.routes, self._layouts = plan.routes(self.model_as_passed(), share=False), {}
        attachment.attach(self.model, self.recorder, self.routes, opaque=bool(self.sizes))

    def model_as_passed(self) -> nn.Module:
        """Return the model with every forward pass as it was."""
        attachment.detach(self.model)
        return self.model

    def _rehearse(self, inputs: tuple[Any, ...], size: int, survey: ShapeSurvey | None = None) -> Any:
        """Run the model on a few examples; nothing is kept but the result, and what the survey notes."""
        recorder = self.recorder
        recorder.batch, recorder.active, recorder.survey = size, True, survey
        try:
            return self.model(*first_examples(inputs, size))
        finally:
            recorder.active, recorder.survey = False, None
            recorder.edges, recorder.notes, recorder.calls, recorder.axes = [], [], {}, {}

    def _stacked(self, inputs: tuple[Any, ...], targets: Any, sums_only: bool) -> TapsAndLosses | None:
        """Return what `_recorded` does, by hand, for a plain stack of layers; None for any other model."""
        if self._stack is None or not self.is_attached or not self._stack.takes(inputs):
            return None
        with torch.no_grad():
            held, sums = self._stack.forward(inputs[0])
            gradient = self._loss_gradient(held[-1], targets)
            if gradient is None:
                return None
            self._entries = self._entries or sum(h[0].numel() for h in held)
            taps, total = self._stack.taps(held, sums, gradient)
            return taps, total, torch.empty(0) if sums_only else self.loss(held[-1], targets)

    def _loss_gradient(self, outputs: Any, targets: Any) -> Tensor | None:
        """Return the gradient of the losses by the outputs, where the loss knows it."""
        if not isinstance(self.loss, CrossEntropy):
            return None
        are_tensors = isinstance(outputs, Tensor) and isinstance(targets, Tensor)
        return self.loss.gradient(outputs, targets) if are_tensors else None

    def _squares(self, taps: list[Tap], batch: int, sums_only: bool) -> Tensor:
        """Return the bounds on squared norms [B, layers], of each layer by itself."""
        out, held = torch.zeros(batch, max(self.layers.values()) + 1, dtype=torch.float64), 0
        for tap in taps:
            out[:, self.layers[id(tap.target.parameter)]] += tap.square()
            held += entries(tap)
            if sums_only:
                tap.release_inputs()
        self._entries = held // max(1, batch)
        return out

    def _total(self, taps: list[Tap], batch: int, sums_only: bool) -> Tensor:
        """Return the bounds on squared norms [B], of all layers together."""
        total, held = torch.zeros(batch, dtype=torch.float64), 0
        for tap in taps:
            total.add_(tap.square())
            held += entries(tap)
            if sums_only:
                tap.release_inputs()
        self._entries = held // max(1, batch)
        return total

    def clipped_sum(
        self, inputs: Any, targets: Any, *, clip: float | Clipping, into: Tensor | None = None
    ) -> Tensor:
        """Return the sum over the batch of each example's gradient, scaled by the rule; added to `into` where
        that is given.

        Guarantee: adding or removing one example moves the sum by at most clip in l2 norm (up to the rounding
                   of the sum itself).
        Proof:     each term is a function of its own example (checked by `safety.probe`, or by construction
                   with `isolate`), and no longer than clip (`clipping.factors`, `taps`). An example whose
                   gradient is not finite is zero.
        Assumes:   the model's code computes each example's output from that example alone.
        """
        out = self.buffer() if into is None else into
        self.add_clipped(inputs, targets, as_clipping(clip), self.sums(out))
        return out

    def add_clipped(self, inputs: Any, targets: Any, rule: Clipping, sums: dict[int, Tensor]) -> None:
        """Add the batch's clipped sum, in as many parts as keep what they leave behind near the caches: the
        sum is that of the whole."""
        size = _length((inputs,))
        if size == 0:
            return
        if self.sizes:
            self._add_padded(inputs, targets, rule, sums, size)
            return
        each = self.part_size(size)
        for start in range(0, size, each):
            part, its_targets = tree_map(itemgetter(slice(start, start + each)), (inputs, targets))
            self._add_part(part, its_targets, rule, sums)

    def part_size(self, batch: int) -> int:
        """Return how many examples of a batch are run together: parts are of one size, up to the last."""
        if self.sizes:
            return next((size for size in self.sizes if size >= batch), self.sizes[-1])
        return -(-batch // max(1, math.ceil(batch / self._examples_per_part() - PART_OVERFLOW)))

    def _fix_part(self) -> int:
        """Return the part size of the expected batch; fixed as soon as it is known what an example holds."""
        if not self._expected_part and self._entries:
            self._expected_part = self.part_size(self._expected)
        return self._expected_part or FEWEST

    def _examples_per_part(self) -> float:
        """Return how many examples are worked on together, about.

        Every part of a batch goes over all weights once, so that a large model is worth larger parts.
        """
        room = min(max(ENTRIES, 3 * self.size // 2), 2 * ENTRIES)
        return max(FEWEST, room / self._entries) if self._entries else FEWEST

    def _add_padded(
        self, inputs: Any, targets: Any, rule: Clipping, sums: dict[int, Tensor], size: int
    ) -> None:
        """Add the same sum, in parts that have one of the public sizes: the last one is filled up with copies
        of its own examples, which count for nothing.

        Where a layer is given a constant (a table of positions), or a module has parameters of its own, the
        model runs as it is written: what stands in for these hides a dimension, which torch's compiler does
        not know.
        """
        self.decide(inputs if isinstance(inputs, tuple) else (inputs,))
        decisions = self.recorder.layouts.values()
        constants = any(shape is not None for layout in decisions for shape in layout.constants)
        written = constants or plan.SHARED in self.routes.values()
        for start in range(0, size, self.sizes[-1]):
            count = min(self.sizes[-1], size - start)
            indices = start + torch.arange(next(n for n in self.sizes if n >= count)) % count
            part, its_targets = tree_map(itemgetter(indices), (inputs, targets))
            with nullcontext() if written else attachment.compiled(self.model):
                self._add_part(part, its_targets, rule, sums, count)

    def _add_part(
        self, inputs: Any, targets: Any, rule: Clipping, sums: dict[int, Tensor], count: int | None = None
    ) -> None:
        """Add the clipped sum of the first `count` examples, or of all.

        Guarantee: of an example beyond `count` nothing is added, whatever its gradient.
        Proof:     its factor is zero, and what it left is zeroed where any square is not finite; a finite
                   square is that of finite numbers, and zero times these is zero.
        """
        gradients = self.gradients(inputs, targets, by_layer=isinstance(rule, PerLayer), sums_only=True)
        weights, keep = factors(rule, gradients.squares)
        if count is not None:
            weights[count:] = 0
            keep = None if keep is None else keep & (torch.arange(len(keep)) < count)
        if keep is not None:
            gradients.zero_out(keep)
        with torch.no_grad(), full_precision():
            gradients.add(weights.to(self.dtype), sums, self.layers)


def _length(inputs: tuple[Any, ...]) -> int:
    """Return the size of the batch, which is the first dimension of each tensor in it."""
    return len(inputs[0] if isinstance(inputs[0], Tensor) else tree_leaves(inputs)[0])


def _same(one: Any, other: Any) -> bool:
    """Return whether two results are the same up to rounding; NaN where the other is."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other)
    if one.shape != other.shape:
        return False
    return torch.allclose(one.detach(), other.detach(), rtol=1e-3, atol=1e-5, equal_nan=True)


def _layers(parameters: dict[str, nn.Parameter]) -> dict[int, int]:
    """Return the number of each parameter's layer, the module that holds it, by id of the parameter."""
    owners: dict[str, int] = {}
    return {id(p): owners.setdefault(name.rpartition(".")[0], len(owners)) for name, p in parameters.items()}
