"""Training over several processes or machines, with torch.distributed: each worker holds a part of the
people, and all make the same steps.

    torch.distributed.init_process_group("gloo")  # in every worker, as torchrun starts them
    model = learning.across_workers(trainer)(shard, entropy=Entropy()).value

Every worker tosses the coins of its own examples, clips their gradients and adds its share of the noise; the
sums are added up over all workers, and each makes the same move. The distribution of the noisy sum, and so
the price, is that of one process with all the examples. If a worker dies, the sum of a step does not come
about: it is thrown away everywhere, and the run is over.
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

from .. import _require
from .._errors import InvalidInput, ReleaseFailed, Unsupported
from .._public import Public
from ..accounting import Event
from ..mechanisms.protocols import AnySource, Mechanism, Release
from ..sampling import Entropy
from . import checkpoints
from .clipping import Automatic, Flat, PerLayer
from .schedules import BallsInBins, Indices, Poisson
from .summands import Summands
from .trainer import Run, Trainer

SHARES, FIRST = "shares", "first"


def across_workers(trainer: Trainer, *, noise: str = SHARES, group: Any = None) -> Mechanism:
    """Return the trainer as a mechanism that all workers of a process group run together, each on its own
    part of the examples.

    `noise="shares"`: each of N workers adds noise of 1 / N of the variance. `noise="first"`: the first adds
    all of it. `trainer.public` and `n` are about all workers' people together. Let one worker ask through a
    curator, and the others call it with an `Entropy` of their own: nobody reads data before all of them, the
    one that was charged included, have agreed on the settings.

    Guarantee: `trainer.event`, for everything that is released (the same model, by every worker).
    Proof:     coins of different examples are independent, so independent Poisson samples (or bins) of the
               parts are one of all examples. The sum of the workers' clipped sums is the clipped sum of
               all; independent N(0, s²/N) add up to N(0, s²). The weights of every worker are functions of
               complete sums only: where adding up fails, what there is of the sum is overwritten and never
               used.
    Assumes:   each person's example is with one worker. Workers trust each other and the network between
               them: what they send before it is added up has only a part of the noise.
    """
    _require.one_of((SHARES, FIRST), noise=noise)
    is_supported = type(trainer.schedule) in (Poisson, BallsInBins) and type(trainer.clip) in (
        Flat,
        PerLayer,
        Automatic,
    )
    if not is_supported or trainer.noise != "gaussian" or trainer.public.unit.column is not None:
        raise Unsupported(
            "over several workers there is Poisson sampling or balls-in-bins of examples, with a fixed clip "
            "and Gaussian noise. Nothing was read or trained. Use these, or one process."
        )
    return _DistributedTrainer(trainer, noise, group)


@dataclass(frozen=True)
class _DistributedTrainer:
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
        """Try model and loss on made-up examples, as the trainer does: what fails there costs nothing."""
        self.trainer.rehearse(source)

    def __call__(self, source: AnySource, /, *, entropy: Entropy) -> Release:
        self._check_agreement()
        run = self.trainer.start(source, entropy=entropy)
        self._broadcast_weights(run)
        run._summands = _WorkerSummands(run._summands, run, self)  # type: ignore[assignment]
        with run:
            while not run.done:
                run.step()
        return run.release()

    def _check_agreement(self) -> None:
        """Require that all workers have the same price, clip and steps, else the sum would have less noise
        than was paid for, and the same optimizer, else their weights would part. Reads no data."""
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidInput(
                "there is no process group: call torch.distributed.init_process_group('gloo') first. "
                "Nothing was read."
            )
        trainer = self.trainer
        settings = checkpoints.identity(trainer)
        frozen = checkpoints.frozen_digest(trainer.model)
        facts = [trainer.event.to_json(), repr(trainer.public), self.noise, settings, frozen]
        digest = hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).digest()
        digest_tensor = torch.frombuffer(bytearray(digest), dtype=torch.uint8)
        digests = [torch.empty_like(digest_tensor) for _ in range(dist.get_world_size(self.group))]
        self._communicate(lambda: dist.all_gather(digests, digest_tensor, group=self.group))
        if any(not torch.equal(digest_tensor, other) for other in digests):
            raise InvalidInput(
                "the workers do not have the same trainer: price, public facts, shapes, frozen weights and "
                "buffers, and all settings but performance= must be alike. Nothing was read or trained."
            )

    def _broadcast_weights(self, run: Run) -> None:
        """Start all workers from the first worker's weights."""
        self._communicate(lambda: dist.broadcast(run._values, group_src=0, group=self.group))
        if run._averaged is not None:
            run._averaged.copy_(run._values)

    def _communicate(self, act: Any) -> None:
        """Run a collective operation; a worker that is lost ends the run."""
        try:
            act()
        except RuntimeError:
            raise ReleaseFailed(
                "a worker was lost, so that the workers could not go on together. What was underway is "
                "thrown away: no update was made with part of the noise. The price of the run is spent, and "
                "the run is over."
            ) from None


class _WorkerSummands:
    """Adds up the summands of one worker, with its share of the noise, and closes a step with the sum over
    all workers."""

    def __init__(self, summands: Summands, run: Run, distributed: _DistributedTrainer) -> None:
        self._summands, self._run, self._distributed = summands, run, distributed
        workers, rank = dist.get_world_size(distributed.group), dist.get_rank(distributed.group)
        self._share = 1 / math.sqrt(workers) if distributed.noise == SHARES else float(rank == 0)

    def noise(self, vector: Tensor) -> None:
        self._summands.noise(vector)
        vector.mul_(self._share)

    def add(self, members: Indices, sums: dict[int, Tensor]) -> None:
        self._summands.add(members, sums)

    def close(self, vector: Tensor) -> None:
        """Replace the vector by the sum over all workers; if a worker is lost, by zeros, and end the run."""
        group = self._distributed.group
        try:
            self._distributed._communicate(lambda: dist.all_reduce(vector, group=group))
            # A worker goes on when it hears that all have the sum; else the step is dropped.
            self._distributed._communicate(lambda: dist.barrier(group=group))
        except ReleaseFailed:
            vector.zero_()
            self._run.steps_taken = self._run._trainer.schedule.steps
            raise
