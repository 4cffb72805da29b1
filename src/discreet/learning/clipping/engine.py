"""Computes the clipped sum: the sum of per-example gradients, each scaled so that its norm is at most the
clip, by one forward and one backward pass.

The layers of a model leave taps (`taps`), from which come upper bounds on the norms of per-example gradients,
and then the sum of the scaled gradients. B is the number of examples in a batch. A part of a batch is some of
its examples, run together to save memory; the `parts` of a vector are its views in the parameters' shapes.

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

from ..._errors import INTERRUPTIONS, InvalidInput, Unsupported
from . import attachment, routes
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
    full_precision,
    layouts,
    seed_generators,
)
from .layers import Recorder
from .losses import CrossEntropy, per_example
from .norms import Clipping, PerLayer, as_clipping, factors
from .taps import Tap, entries, merged

# The number of float32 numbers that the taps of one part of a batch may hold: 64 megabytes (measured).
ENTRIES = 16 << 20
# The smallest number of examples in a part, however much their taps hold. Those of a BERT-base hold some 60
# MB per example (measured in the probe): with 8 examples its steps would take nearly 1.3 times plain torch's
# memory. The cost in time of smaller parts was not measured.
FEWEST = 4
# A last part smaller than this fraction of a full one is spread over the other parts: 16 examples of a
# ViT-tiny, of which 7 to 8 fill a part, take 0.93 times as long in two parts of 8 as in 6, 6, 4 (measured).
PART_OVERFLOW = 0.25


@dataclass
class Gradients:
    """Holds the per-example gradients of one batch as taps.

    `squares` are upper bounds on their squared norms in float64: of each layer, [B, layers], or of all layers
    together, [B, 1]. `losses` is [B], or empty.
    """

    taps: list[Tap]
    squares: Tensor
    losses: Tensor

    def add(self, weights: Tensor, sums: dict[int, Tensor], layers: dict[int, int]) -> None:
        """Add the sum of the gradients times `weights`, [B, 1] or [B, layers], to the buffers `sums`. For the
        id of each parameter, `sums` has its buffer and `layers` the number of its layer."""
        columns = weights.unbind(1)
        for tap in self.taps:
            tap.add(columns[layers[id(tap.target.parameter)] if len(columns) > 1 else 0], sums)

    def zero_out(self, keep: Tensor) -> None:
        """Replace the gradients of examples that are not in `keep`, [B], by zeros."""
        for tap in self.taps:
            tap.zero_out(keep)


class ClippingEngine:
    """Computes clipped gradient sums of a model under a loss that gives one number for each example.

    `isolate=True` runs the whole model and the loss example by example, which is slower: under vmap, where
    examples cannot mix, or in a loop where vmap cannot run them (`batching`). With `sizes`, clipped sums run
    the code that `torch.compile` made of the model, on parts of a batch that are padded to one of these
    sizes. `expected` is the expected size of a batch, which is public: how a norm is bounded is chosen by it,
    never by the size of an actual batch. With `half` the model computes in bfloat16
    (docs/proofs/bfloat16.md).
    """

    def __init__(
        self,
        model: nn.Module,
        loss: Any,
        *,
        isolate: bool = False,
        sizes: tuple[int, ...] = (),
        expected: int = 256,
        half: bool = False,
    ) -> None:
        self.sizes, self._expected, self._expected_part = tuple(sorted(sizes)), expected, 0
        self.model, self.isolate, self.half = model, isolate, half
        self.loss = per_example(loss, isolate=isolate)
        self.routes = routes.routes(model)
        if isolate:
            self.routes = {"": "isolated"} | {
                name: route for name, route in self.routes.items() if route == routes.CONSTANT
            }
        self.recorder, self.is_attached = Recorder(), False
        self.parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if not self.parameters:
            raise InvalidInput("the model has no trainable parameters.")
        self.dtype = next(iter(self.parameters.values())).dtype
        self.device = _device_of(model)
        dtypes = {p.dtype for p in self.parameters.values()}
        if not dtypes <= {torch.float32} and not dtypes <= {torch.float64}:
            raise Unsupported(
                f"trainable parameters must all be float32 (or all float64), got {sorted(map(str, dtypes))}. "
                "Keep them in float32 and use torch.autocast inside the model for half precision."
            )
        routes.check_hooks(self.parameters)
        self.layers = _layers(self.parameters)
        self._layouts: dict[tuple[bool, Any], dict[Call, Layout]] = {}
        self.recorder.isolated_model = model if isolate else None
        # How many numbers the taps of one example hold, built gradients included. Known after the first
        # batch, which in training is one of the probe's made-up examples; 0 before.
        self._entries = 0

    @property
    def size(self) -> int:
        """Return the number of trainable numbers of the model."""
        return sum(p.numel() for p in self.parameters.values())

    def buffer(self) -> Tensor:
        """Return a vector of zeros, one for each trainable number of the model."""
        return torch.zeros(self.size, dtype=self.dtype, device=self.device)

    def parts(self, vector: Tensor) -> dict[str, Tensor]:
        """Return views of such a vector in the shapes of the parameters, by the parameter's name."""
        sizes = [p.numel() for p in self.parameters.values()]
        pairs = zip(self.parameters.items(), torch.split(vector, sizes), strict=True)
        return {name: piece.view(p.shape) for (name, p), piece in pairs}

    def sums(self, vector: Tensor) -> dict[int, Tensor]:
        """Return the same views by the parameter's id, as taps use them."""
        return {
            id(p): part for p, part in zip(self.parameters.values(), self.parts(vector).values(), strict=True)
        }

    def train(self, mode: bool = True) -> None:
        """Set the model's mode, except that a frozen batch normalization stays in evaluation mode."""
        self.model.train(mode)
        for name, route in self.routes.items():
            if route == routes.CONSTANT:
                self.model.get_submodule(name).eval()

    @contextmanager
    def attached(self) -> Iterator[None]:
        """Attach the model (`attachment`) within this context: its layers leave taps. Then restore it."""
        with (
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

        A tuple of inputs holds the model's arguments. `by_layer` bounds the norm of each layer, otherwise
        that of all layers together. With `sums_only` there are no losses, and the taps free what `add` does
        not need.
        """
        with full_precision():
            taps, losses = self.recorded(inputs, targets, sums_only)
            return self.bounded(taps, losses, _length((inputs,)), by_layer=by_layer, sums_only=sums_only)

    def recorded(self, inputs: Any, targets: Any, sums_only: bool = False) -> tuple[list[Tap], Tensor]:
        """Return taps and losses by torch's forward and backward pass; norms are not computed yet."""
        inputs = inputs if isinstance(inputs, tuple) else (inputs,)
        recorder = self.recorder
        try:
            self.decide(inputs)
            recorder.batch, recorder.active, recorder.expected = _length(inputs), True, self._fix_part()
            with torch.enable_grad():
                outputs = self._outputs(inputs)
                gradient = self._loss_gradient(outputs, targets)
                losses = (
                    self.loss(outputs, targets)
                    if not sums_only or gradient is None
                    else torch.empty(0, device=self.device)
                )
                taps = merged(recorder.taps(losses if gradient is None else outputs, gradient))
        except NotBatchFirst as error:
            way_out = "" if self.isolate else " Or run everything example by example: isolate=True."
            raise Unsupported(f"{error}{way_out}") from None
        finally:
            recorder.active, recorder.edges, recorder.notes, recorder.calls = False, [], [], {}
            recorder.axes = {}
        return taps, losses.detach()

    def _outputs(self, inputs: tuple[Any, ...]) -> Any:
        """Return the model's outputs, in float32 whatever it computes in."""
        if not self.half:
            return self.model(*inputs)
        device = next(iter(self.parameters.values())).device.type
        with torch.autocast(device, torch.bfloat16):
            outputs = self.model(*inputs)
        return tree_map(lambda t: t.float() if getattr(t, "dtype", None) is torch.bfloat16 else t, outputs)

    def decide(self, inputs: tuple[Any, ...]) -> None:
        """Decide which dimensions are the batch (`batching`), once for each mode (training or evaluation) and
        each shape of an example. With `isolate`, or not attached, there is nothing to decide."""
        if self.isolate or not self.is_attached:
            return
        shapes = tuple(t.shape[1:] if isinstance(t, Tensor) else type(t) for t in tree_leaves(inputs))
        key = self.model.training, shapes
        if key not in self._layouts:
            with forked_generator(self.device):
                decisions = self._survey_layouts(inputs)
                if routes.SHARED in self.routes.values() and not self._can_share(inputs):
                    self._isolate_shared()
                    decisions = self._survey_layouts(inputs)
                self._check_folds(inputs, decisions)
                if any(CONSTANT in layout.inputs + layout.outputs for layout in decisions.values()):
                    # What a layer makes of a tensor that is the same for all examples (`batching.CONSTANT`)
                    # meets batches by broadcasting, which may fail. The model is run at both sizes, as at one
                    # size the shapes may agree by chance.
                    for size in SIZES:
                        self._rehearse(inputs, size)
            self._layouts[key] = decisions
        self.recorder.layouts = self._layouts[key]

    def _check_folds(self, inputs: tuple[Any, ...], decisions: dict[Call, Layout]) -> None:
        """Refuse a model with `Folded` dimensions whose numbers of rows per example may depend on the data.

        Models without them are not watched, as `DynamicShapes` imports torch's compiler, a hundred megabytes.
        """
        if any(isinstance(axis, Folded) for layout in decisions.values() for axis in layout.inputs):
            watch = DynamicShapes()  # type: ignore[no-untyped-call]
            with watch:
                self._rehearse(inputs, SIZES[0], ShapeSurvey())
            if watch.seen:
                raise NotBatchFirst(
                    "a layer is given rows of all examples in one dimension, and the model picks rows by "
                    "their values (by a mask, say), so that it is not known to which example a row belongs. "
                    "Keep the batch first."
                )

    def _survey_layouts(self, inputs: tuple[Any, ...]) -> dict[Call, Layout]:
        """Return the batch dimensions in each call, from forward passes at the two sizes."""
        surveys = [ShapeSurvey() for _ in SIZES]
        for size, survey in zip(SIZES, surveys, strict=True):
            self._rehearse(inputs, size, survey)
        self.recorder.layouts = layouts(*surveys)
        return self.recorder.layouts

    def _can_share(self, inputs: tuple[Any, ...]) -> bool:
        """Return whether modules of the route "shared" can run with copies of their parameters: at both
        sizes, results must have the same shapes and values as without copies."""
        try:
            for size in SIZES:
                seed = int(torch.randint(0, 1 << 30, (), device="cpu"))
                results = []
                for survey in (None, ShapeSurvey()):
                    seed_generators(self.device, seed)
                    results.append(self._rehearse(inputs, size, survey))
                pairs = zip(*map(tree_leaves, results), strict=True)
                if not all(_same(one, other) for one, other in pairs):
                    return False
        # The modules then run example by example. If the error has another cause, it is raised again there.
        except Exception:
            return False
        return True

    def _isolate_shared(self) -> None:
        """Take other routes: modules of the route "shared" run example by example, with all their layers."""
        attachment.detach(self.model)
        self.routes, self._layouts = routes.routes(self.model, share=False), {}
        attachment.attach(self.model, self.recorder, self.routes, opaque=bool(self.sizes))

    def _rehearse(self, inputs: tuple[Any, ...], size: int, survey: ShapeSurvey | None = None) -> Any:
        """Run the model on `size` examples; return its result. Nothing else is kept, except in `survey`."""
        recorder = self.recorder
        recorder.batch, recorder.active, recorder.survey = size, True, survey
        try:
            return self.model(*first_examples(inputs, size))
        finally:
            recorder.active, recorder.survey = False, None
            recorder.edges, recorder.notes, recorder.calls, recorder.axes = [], [], {}, {}

    def _loss_gradient(self, outputs: Any, targets: Any) -> Tensor | None:
        """Return the gradient of the losses by the outputs; None where the loss has no closed form of it."""
        if not isinstance(self.loss, CrossEntropy):
            return None
        are_tensors = isinstance(outputs, Tensor) and isinstance(targets, Tensor)
        return self.loss.gradient(outputs, targets) if are_tensors else None

    def bounded(
        self, taps: list[Tap], losses: Tensor, batch: int, *, by_layer: bool = True, sums_only: bool = False
    ) -> Gradients:
        """Return the gradients that were recorded, with upper bounds on their squared norms."""
        layers = max(self.layers.values()) + 1 if by_layer else 1
        bounds = torch.zeros(batch, layers, dtype=torch.float64, device=self.device)
        columns, held_entries = bounds.unbind(1), 0
        for tap in taps:
            columns[self.layers[id(tap.target.parameter)] if by_layer else 0].add_(tap.square())
            held_entries += entries(tap)
            if sums_only:
                tap.release_inputs()
        self._entries = held_entries // max(1, batch)
        return Gradients(taps, bounds, losses)

    def clipped_sum(
        self, inputs: Any, targets: Any, *, clip: float | Clipping, into: Tensor | None = None
    ) -> Tensor:
        """Return the sum over the batch of each example's gradient, scaled by the clipping rule; if `into` is
        given, add the sum to it and return it.

        Guarantee: adding or removing one example moves the sum by at most the clip in l2 norm (up to the
                   rounding of the sum itself).
        Proof:     each summand is a function of its own example (checked by `safety.probe`, or by
                   construction with `isolate` under vmap), and its norm is at most the clip
                   (`norms.factors`, `taps`). An example whose gradient is not finite counts as zero.
        Assumes:   the model's code computes each example's output from that example alone.
        """
        out = self.buffer() if into is None else into
        self.add_clipped(inputs, targets, as_clipping(clip), self.sums(out))
        return out

    def add_clipped(
        self, inputs: Any, targets: Any, rule: Clipping, sums: dict[int, Tensor], *, private: bool = False
    ) -> None:
        """Add the batch's clipped sum to `sums`, one part of the batch after the other (`part_size`).

        If `private`, nothing that the model or the loss raises leaves this method, as it would tell of an
        example: where they raise, the examples are run one by one, and one on which they raise counts as
        zero.
        """
        size = _length((inputs,))
        if size == 0:
            return
        if self.sizes:
            self._add_padded(inputs, targets, rule, sums, size, private)
            return
        step = self.part_size(size)
        for start in range(0, size, step):
            part, part_targets = tree_map(itemgetter(slice(start, start + step)), (inputs, targets))
            if not self._add_part(part, part_targets, rule, sums, private=private):
                self._add_each(part, part_targets, rule, sums)

    def _add_each(self, inputs: Any, targets: Any, rule: Clipping, sums: dict[int, Tensor]) -> None:
        """Add the examples of a part on which the model or the loss raised, each by itself; nothing for an
        example that was by itself already."""
        size = _length((inputs,))
        for i in range(size if size > 1 else 0):
            one, its_target = tree_map(itemgetter(slice(i, i + 1)), (inputs, targets))
            self.add_clipped(one, its_target, rule, sums, private=True)

    def part_size(self, batch: int) -> int:
        """Return the size of the parts that a batch is run in; the last part may be smaller."""
        if self.sizes:
            return next((size for size in self.sizes if size >= batch), self.sizes[-1])
        return -(-batch // max(1, math.ceil(batch / self._examples_per_part() - PART_OVERFLOW)))

    def _fix_part(self) -> int:
        """Return the part size of the expected batch, fixed once `_entries` is known. Bounds are chosen by it
        (`Recorder.expected`), so that it must not depend on an actual batch."""
        if not self._expected_part and self._entries:
            self._expected_part = self.part_size(self._expected)
        return self._expected_part or FEWEST

    def _examples_per_part(self) -> float:
        """Return about how many examples the taps of a part may hold.

        They may hold ENTRIES numbers. Each part reads all weights once, so that a large model gets larger
        parts: 1.5 numbers per weight, but at most twice ENTRIES (no measurement of either is on record).
        """
        capacity = min(max(ENTRIES, 3 * self.size // 2), 2 * ENTRIES)
        return max(FEWEST, capacity / self._entries) if self._entries else FEWEST

    def _add_padded(
        self, inputs: Any, targets: Any, rule: Clipping, sums: dict[int, Tensor], size: int, private: bool
    ) -> None:
        """Add the same sum as `add_clipped` does, in parts that have one of the public sizes: the last part
        is padded with copies of its own examples, whose factor is zero.

        The model runs as it was compiled, unless any of its layers is given a constant (a table of positions)
        or any module has the route "shared". Then all of it runs as written: tensors in it hide their batch
        dimension (`isolation.Shared`), which torch's compiler does not support.
        """
        try:
            self.decide(inputs if isinstance(inputs, tuple) else (inputs,))
        except INTERRUPTIONS:
            raise
        except Exception:
            if not private:
                raise
            self._add_each(inputs, targets, rule, sums)
            return
        decisions = self.recorder.layouts.values()
        constants = any(shape is not None for layout in decisions for shape in layout.constants)
        as_written = constants or routes.SHARED in self.routes.values()
        for start in range(0, size, self.sizes[-1]):
            count = min(self.sizes[-1], size - start)
            padded = torch.arange(next(n for n in self.sizes if n >= count), device="cpu")
            indices = start + padded % count
            part, part_targets = tree_map(itemgetter(indices), (inputs, targets))
            with nullcontext() if as_written else attachment.compiled(self.model):
                added = self._add_part(part, part_targets, rule, sums, count, private)
            if not added:
                part, part_targets = tree_map(itemgetter(indices[:count]), (inputs, targets))
                self._add_each(part, part_targets, rule, sums)

    def _add_part(
        self,
        inputs: Any,
        targets: Any,
        rule: Clipping,
        sums: dict[int, Tensor],
        count: int | None = None,
        private: bool = False,
    ) -> bool:
        """Add the clipped sum of the first `count` examples, or of all where `count` is None. Return False,
        with nothing added, if the model or the loss raises and the examples are `private`.

        Guarantee: nothing is added for an example beyond `count`, whatever its gradient.
        Proof:     its factor is zero. If any squared norm of the part is not finite, gradients beyond `count`
                   are replaced by zeros, too; otherwise all are finite, and zero times them is zero.
        """
        try:
            gradients = self.gradients(inputs, targets, by_layer=isinstance(rule, PerLayer), sums_only=True)
        except INTERRUPTIONS:
            raise
        except Exception:
            if not private:
                raise
            return False
        weights, keep = factors(rule, gradients.squares)
        if count is not None:
            weights[count:] = 0
            keep = None if keep is None else keep & (torch.arange(len(keep), device=keep.device) < count)
        if keep is not None:
            gradients.zero_out(keep)
        with torch.no_grad(), full_precision():
            gradients.add(weights.to(self.dtype), sums, self.layers)
        return True


def _device_of(model: nn.Module) -> torch.device:
    """Return the device that the whole model is on; refuse one that is on several, or where it cannot run."""
    devices = {p.device for p in (*model.parameters(), *model.buffers())}
    if len(devices) > 1:
        raise Unsupported(
            f"the model is on several devices ({', '.join(sorted(map(str, devices)))}), and private training "
            "runs where the model is: move all of it to one, model.to(...)."
        )
    (device,) = devices
    if device.type == "meta":
        raise InvalidInput('the model is on "meta", where tensors have no values. Give it real weights.')
    if device.type == "mps":
        raise Unsupported(
            "the model is on 'mps', which has no float64, and norms are bounded in float64. Give model.cpu()."
        )
    return device


def _length(inputs: tuple[Any, ...]) -> int:
    """Return the size of the batch, which is the first dimension of each tensor in it."""
    return len(inputs[0] if isinstance(inputs[0], Tensor) else tree_leaves(inputs)[0])


def _same(one: Any, other: Any) -> bool:
    """Return whether two results agree up to rounding; NaN agrees with NaN."""
    if not isinstance(one, Tensor) or not isinstance(other, Tensor):
        return type(one) is type(other)
    if one.shape != other.shape:
        return False
    return torch.allclose(one.detach(), other.detach(), rtol=1e-3, atol=1e-5, equal_nan=True)


def _layers(parameters: dict[str, nn.Parameter]) -> dict[int, int]:
    """Return for each parameter, by its id, the number of its layer: of the module that holds it, from 0."""
    modules = [name.rpartition(".")[0] for name in parameters]
    numbers = {module: number for number, module in enumerate(dict.fromkeys(modules))}
    return {id(p): numbers[module] for p, module in zip(parameters.values(), modules, strict=True)}
