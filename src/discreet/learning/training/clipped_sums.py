"""Computes the clipped sum of one DP-SGD step, and the noise it is hidden in: the part of a run that sees the
data.

Each unit of a batch (an example, or a person with all rows) adds one summand: its gradient, averaged over
augmentations, pooled over the unit's rows, clipped as one. Adaptive clipping also counts the summands that
are not clipped; exact noise rounds each summand to a grid. Only the noisy sum and the noisy count leave this
module.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..._errors import INTERRUPTIONS, ReleaseFailed
from ...mechanisms.protocols import ExampleSource
from ...sampling import Entropy
from ..clipping.batching import full_precision, placed
from ..clipping.engine import ClippingEngine, Gradients
from ..clipping.norms import Adaptive, Clipping, Flat, factors
from .data import ReadAhead
from .federated import Updates
from .gradient_noise import IDENTITY, CorrelatedSource, GridSum, NoiseBuffer, fill_gaussian
from .pooling import Owners, built, owned, pooled, size_class
from .schedules import Cyclic, Indices

if TYPE_CHECKING:
    from .trainer import Trainer

# How many rows are run together where exact noise needs each gradient by itself: few, so that their gradients
# stay in the processor's caches. Chosen by hand, not tuned.
ROWS_AT_ONCE = 8


class Summands:
    """Adds up the summands of each step of a run, which are clipped gradients.

    In each step a vector goes through `noise`, `add` and `close`, once each and in this order; then it is the
    noisy sum.
    """

    def __init__(
        self, trainer: Trainer, engine: ClippingEngine, examples: ExampleSource, entropy: Entropy
    ) -> None:
        self._trainer, self._engine, self._examples, self._entropy = trainer, engine, examples, entropy
        # The clipping rule of the current step.
        self.rule: Clipping = trainer.clip  # type: ignore[assignment]
        if isinstance(self.rule, Adaptive):
            self._adaptive: Adaptive | None = self.rule
            self.rule = Flat(clip=self.rule.clip)
        else:
            self._adaptive = None
        # Of this step: 1/2 for each unit that is not clipped, -1/2 for each other one (`norms.Adaptive`).
        self._count = 0.0
        grid = trainer.grid
        self._grid_sum = (
            None if grid is None else GridSum(grid, trainer.noise_multiplier, entropy, engine.device)
        )
        # The memory of gradients that are built one by one, used again by each microbatch.
        self._rows: Tensor | None = None
        self._copies = 1 if trainer.augment is None else trainer.augment.times
        self._one_row_each = trainer.augment is None and examples.people is None
        # With federated averaging (`local=`), summands are the clients' updates instead of gradients.
        self._updates = None if trainer.local is None else Updates(trainer, engine, entropy)
        self._noise = self._noise_source()
        # The chunks of this step, where they were planned ahead.
        self._planned: list[tuple[Indices, Indices | None]] | None = None

    def read_ahead(self, batches: Iterator[Indices]) -> Iterator[Indices]:
        """Return these batches; if the examples have workers, these read the rows of the coming steps. A
        batch must be added before the next one is drawn."""
        loader = getattr(self._examples, "loader", None)
        if loader is None or not loader.num_workers or self._updates is not None:
            yield from batches
            return
        steps = deque[tuple[Indices, list[tuple[Indices, Indices | None]]]]()

        def plan() -> Iterator[Indices]:
            for members in batches:
                steps.append((members, list(self._chunks(members))))
                yield from (rows for rows, _ in steps[-1][1])

        self._examples = ReadAhead(self._examples, plan(), self._entropy)  # type: ignore[arg-type, assignment]
        while steps:
            members, self._planned = steps.popleft()
            yield members

    def end(self) -> None:
        """End what reads ahead: no further step is taken."""
        if isinstance(self._examples, ReadAhead):
            self._examples.close()

    def _noise_source(self) -> NoiseBuffer | CorrelatedSource:
        """Return the source of the run's noise, independent or correlated over time.

        With an adaptive clip it is noise for a clip of 1, which `noise` multiplies by the clip of the step.
        """
        trainer, engine = self._trainer, self._engine
        deviation = trainer.deviation / (1 if self._adaptive is None else self._adaptive.clip)
        noise = NoiseBuffer(engine.size, engine.dtype, deviation, self._entropy)
        schedule = trainer.schedule
        return (
            CorrelatedSource(noise, schedule.strategy)
            if isinstance(schedule, Cyclic) and schedule.strategy != IDENTITY
            else noise
        )

    def noise(self, vector: Tensor) -> None:
        """Overwrite the vector with this step's noise, or with zeros if noise is exact: `close` adds that."""
        if self._grid_sum is not None:
            vector.zero_()
            return
        self._noise.into(vector)
        if self._adaptive is not None:
            vector.mul_(self.rule.clip)

    def add(self, members: Indices, sums: dict[int, Tensor]) -> None:
        """Add the clipped summands of these units to `sums`, one microbatch at a time.

        `sums` holds the part of the vector that belongs to each parameter, by the parameter's id. An
        autocast that is on around training is off meanwhile (`full_precision`).
        """
        with full_precision():
            self._add(members, sums)

    def _add(self, members: Indices, sums: dict[int, Tensor]) -> None:
        if self._updates is not None:
            people, cap = self._examples.people, self._trainer.public.unit.rows
            clients = [people.rows(int(person), cap, self._entropy) for person in members]
            for updates in self._updates.of(clients, self._examples, self.rule):
                self._add_clipped(updates, sums)
            return
        for rows, counts in self._chunks(members) if self._planned is None else self._planned:
            self._add_units(rows, counts, sums)

    def _add_units(self, rows: Indices, counts: Indices | None, sums: dict[int, Tensor]) -> None:
        """Add the clipped summands of units taken together. Where reading them, the model, the loss or the
        augmentation raises, each unit is run by itself, and one on which they raise adds nothing: an error
        would tell of the unit."""
        sums_only = self._one_row_each and self._adaptive is None and self._grid_sum is None
        try:
            inputs, targets = self._examples.take(rows)
            if self._trainer.augment is not None:
                inputs = self._trainer.augment(inputs, self._entropy)
                targets = self._trainer.augment.targets(targets)
            # drawn and read on the host, and run where the model is
            inputs, targets = placed((inputs, targets), self._engine.device)
            gradients = None if sums_only else self._gradients(inputs, targets, counts)
        except (*INTERRUPTIONS, ReleaseFailed):
            raise
        except Exception:
            units = np.split(rows, np.cumsum(np.ones_like(rows) if counts is None else counts)[:-1])
            for unit in units if len(units) > 1 else []:
                self._add_units(unit, None if counts is None else np.array([len(unit)]), sums)
            return
        if gradients is None:
            self._engine.add_clipped(inputs, targets, self.rule, sums, private=True)
        else:
            self._add_clipped(gradients, sums)

    def _gradients(self, inputs: Any, targets: Any, counts: Indices | None) -> Gradients:
        """Return the gradients of these rows, pooled by unit where a unit has several rows or variants."""
        rows = len(tree_leaves(inputs)[0]) // self._copies
        gradients = self._engine.gradients(inputs, targets)
        if self._one_row_each:
            return gradients
        return pooled(self._engine, gradients, self._owners(rows, counts))

    def _owners(self, rows: int, counts: Indices | None) -> Owners:
        """Return which unit each row belongs to, from the numbers of rows of each unit (None: one each)."""
        rows_per_unit = (
            torch.ones(rows, dtype=torch.int64, device="cpu") if counts is None else torch.from_numpy(counts)
        )
        rows_per_unit = rows_per_unit.to(self._engine.device)
        return owned(rows_per_unit, mean=self._trainer.pooling == "mean", copies=self._copies)

    def _add_clipped(self, gradients: Gradients, sums: dict[int, Tensor]) -> None:
        """Clip these gradients and add them up; count those that are not clipped, if the clip adapts."""
        if self._adaptive is not None:
            unclipped = gradients.squares.sum(1).sqrt() <= self.rule.clip
            self._count += float(unclipped.sum()) - len(unclipped) / 2
        weights, keep = factors(self.rule, gradients.squares)
        with torch.no_grad():
            # A gradient that is not finite is NaN times weight zero; `GradientGrid.rounded` makes it zero.
            if self._grid_sum is not None:
                rows = built(self._engine, gradients, self._rows)
                self._rows = rows if self._rows is None or len(rows) > len(self._rows) else self._rows
                self._grid_sum.add(rows, self._weights_by_parameter(weights.double()))
                return
            if keep is not None:
                gradients.zero_out(keep)
            gradients.add(weights.to(self._engine.dtype), sums, self._engine.layers)

    def _weights_by_parameter(self, weights: Tensor) -> Tensor:
        """Return [B, entries of all parameters] clipping factors, from [B, layers]; [B, 1] for one layer."""
        if weights.shape[1] == 1:
            return weights
        parameters = self._engine.parameters.values()
        layers = [self._engine.layers[id(p)] for p in parameters]
        return weights[:, layers].repeat_interleave(
            torch.tensor([p.numel() for p in parameters], device=weights.device), 1
        )

    def close(self, vector: Tensor) -> None:
        """Finish a step when all summands are added: add exact noise, and compute the next clip from the
        noisy count.
        """
        if self._grid_sum is not None:
            self._grid_sum.release(vector)
        if self._adaptive is not None:
            divisor = self._trainer.schedule.divisor
            noise = fill_gaussian(
                torch.empty(1, dtype=torch.float64, device="cpu"),
                self._adaptive.deviation(divisor),
                self._entropy,
            )
            self.rule = Flat(
                clip=self._adaptive.next_clip(self.rule.clip, self._count + noise.item(), divisor)
            )
            self._count = 0.0

    def _chunks(self, members: Indices) -> Iterator[tuple[Indices, Indices | None]]:
        """Yield rows to take together, and how many of them each unit has, in order (None: one each)."""
        default_rows = max(1, len(members) * self._copies) if self._grid_sum is None else ROWS_AT_ONCE
        limit = max(1, (self._trainer.performance.microbatch or default_rows) // self._copies)
        if self._examples.people is None:
            for begin in range(0, len(members), limit):
                yield members[begin : begin + limit], None
            return
        cap, people = self._trainer.public.unit.rows, self._examples.people
        rows = [people.rows(int(person), cap, self._entropy) for person in members]
        yield from _grouped_by_size(
            rows, None if self._trainer.performance.microbatch is None and self._grid_sum is None else limit
        )


def _grouped_by_size(rows: list[Indices], limit: int | None) -> Iterator[tuple[Indices, Indices]]:
    """Yield groups of people with about as many rows as each other, so that little is padded: the rows of
    all, and the number of rows of each. A group has at most `limit` rows, unless one person has more.

    All people of a group are of one `size_class`, which depends on a person's own number of rows alone: it
    decides how the norm of the person's gradient is bounded, which must not depend on others.
    """
    rows = sorted(rows, key=len)
    begin, row_count = 0, 0
    for end in range(len(rows) + 1):
        full = (
            end == len(rows)
            or size_class(len(rows[end])) > size_class(len(rows[begin]))
            or (limit and row_count + len(rows[end]) > limit)
        )
        if full and end > begin:
            group = rows[begin:end]
            yield np.concatenate(group), np.array([len(r) for r in group], dtype=np.int64)
            begin, row_count = end, 0
        row_count += len(rows[end]) if end < len(rows) else 0
