"""Trains over several processes or machines, with torch.distributed: each worker holds some of the people's
examples, and all workers take the same steps.

    torch.distributed.init_process_group("gloo")  # in every worker, as torchrun starts them
    model = learning.across_workers(trainer)(shard, entropy=Entropy()).value

Every worker samples a batch of its own examples, clips their gradients and adds its share of the noise. The
sums of all workers are added up, and each worker updates its weights by the total. The distribution of the
noisy sum, and so the price, is that of one process with all the examples. If a worker dies, the step has no
total: every worker discards its sum, and the run is over.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ... import _require
from ..._errors import InvalidInput, ReleaseFailed, Unsupported
from ..._public import Public
from ...accounting import Event
from ...mechanisms.protocols import AnySource, Mechanism, Release
from ...sampling import Entropy
from ..clipping.norms import Automatic, Flat, PerLayer
from . import checkpoints
from .clipped_sums import Summands
from .schedules import BallsInBins, Indices, Poisson
from .trainer import Trainer, TrainingRun

# Who adds the noise: every worker an equal share of the variance, or the first worker all of it.
SHARES, FIRST = "shares", "first"


def across_workers(trainer: Trainer, *, noise: str = SHARES, group: Any = None) -> Mechanism:
    """Return the trainer as a mechanism that all workers of a process group run together, each on its own
    examples.

    With `noise="shares"` each of N workers adds noise of 1 / N of the variance, with `noise="first"` the
    first worker adds all of it. `group` is the process group of torch.distributed, by default that of all
    processes. `trainer.public` and `n` are about the people of all workers together. One worker runs the
    mechanism through a curator, which charges it; the others call it with an `Entropy` of their own. No
    worker reads data before all of them have agreed on the settings.

    Guarantee: `trainer.event`, for everything that is released (the same model, by every worker).
    Proof:     examples are sampled independently, so that independent Poisson samples (or bins) of the
               workers' examples are together one such sample of all examples. The sum of the workers' clipped
               sums is the clipped sum of all; independent N(0, s²/N), where s² is the variance that is
               priced, add up to N(0, s²). The weights of every worker are functions of complete sums only:
               where adding up fails, an incomplete sum is overwritten and never used.
    Assumes:   each person's example is with one worker. Workers trust each other and the network between
               them, as the sum that a worker sends has only its share of the noise.
    """
    _require.one_of((SHARES, FIRST), noise=noise)
    is_supported = type(trainer.schedule) in (Poisson, BallsInBins) and type(trainer.clip) in (
        Flat,
        PerLayer,
        Automatic,
    )
    if not is_supported or trainer.noise != "gaussian" or trainer.public.unit.column is not None:
        raise Unsupported(
            "training over several workers needs Poisson sampling or balls-in-bins, one row per person, a "
            "fixed clip and Gaussian noise. Use these, or one process."
        )
    return _DistributedTrainer(trainer, noise, group)


@dataclass(frozen=True)
class _DistributedTrainer(Mechanism):
    """Runs a trainer on all workers of a process group, each with its own examples."""

    trainer: Trainer
    noise: str
    group: Any = field(repr=False)

    @property
    def public(self) -> Public:
        return self.trainer.public

    @property
    def event(self) -> Event:
        return self.trainer.event

    def rehearse(self, source: AnySource) -> None:
        """Try model and loss on made-up examples, as the trainer does: an error there costs nothing."""
        self.trainer.rehearse(source)

    def __call__(self, source: AnySource, /, *, entropy: Entropy) -> Release:
        self._check_agreement()
        run = self.trainer.start(source, entropy=entropy)
        self._broadcast_weights(run)
        run.summands = _WorkerSummands(run.summands, run, self)  # type: ignore[assignment]
        with run:
            while not run.done:
                run.step()
        return run.release()

    def _check_agreement(self) -> None:
        """Require that all workers have the same trainer. Reads no data.

        With different prices, clips or steps the sum could have less noise than was paid for; with different
        optimizers or frozen weights the workers' models would differ.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidInput(
                "there is no process group: call torch.distributed.init_process_group('gloo') first."
            )
        trainer = self.trainer
        settings = checkpoints.identity(trainer)
        frozen = checkpoints.frozen_digest(trainer.model)
        facts = [trainer.event.to_json(), repr(trainer.public), self.noise, settings, frozen]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
        digest_tensor = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        digests = [torch.empty_like(digest_tensor) for _ in range(dist.get_world_size(self.group))]
        self._communicate(lambda: dist.all_gather(digests, digest_tensor, group=self.group))
        _require.that(
            all(torch.equal(digest_tensor, other) for other in digests),
            "the workers do not have the same trainer: price, public facts, shapes, frozen weights and "
            "buffers, and all settings but performance= must be alike.",
        )

    def _broadcast_weights(self, run: TrainingRun) -> None:
        """Start all workers from the first worker's weights."""
        self._communicate(lambda: dist.broadcast(run.values, group_src=0, group=self.group))
        if run.averaged is not None:
            run.averaged.copy_(run.values)

    def _communicate(self, operation: Any) -> None:
        """Run a collective operation of torch.distributed; raise ReleaseFailed if a worker is lost."""
        try:
            operation()
        except RuntimeError:
            raise ReleaseFailed(
                "a worker was lost, so that the others cannot continue. An incomplete sum was discarded: no "
                "update was made with only a part of the noise. The price of the run is spent, and the run "
                "is over."
            ) from None


class _WorkerSummands:
    """Replaces a run's `Summands`: it adds up the summands of one worker with its share of the noise, and
    ends a step with the sum over all workers."""

    def __init__(self, summands: Summands, run: TrainingRun, distributed: _DistributedTrainer) -> None:
        self._summands, self._run, self._distributed = summands, run, distributed
        workers, rank = dist.get_world_size(distributed.group), dist.get_rank(distributed.group)
        # The standard deviation of this worker's noise, divided by that of all workers' noise together.
        self._share = 1 / math.sqrt(workers) if distributed.noise == SHARES else float(rank == 0)

    def noise(self, vector: Tensor) -> None:
        self._summands.noise(vector)
        vector.mul_(self._share)

    def add(self, members: Indices, sums: dict[int, Tensor]) -> None:
        self._summands.add(members, sums)

    def end(self) -> None:
        self._summands.end()

    def close(self, vector: Tensor) -> None:
        """Replace the vector by the sum over all workers; if a worker is lost, by zeros, and end the run."""
        group = self._distributed.group
        try:
            self._distributed._communicate(lambda: dist.all_reduce(vector, group=group))
            # Only when all workers have the sum does any of them use it; otherwise all discard it.
            self._distributed._communicate(lambda: dist.barrier(group=group))
        except ReleaseFailed:
            vector.zero_()
            # No step is left: the run is over.
            self._run.steps_taken = self._run.trainer.schedule.steps
            raise
