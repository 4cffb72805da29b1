"""Checks a trainer's options when it is made: an option that failed only after the charge would cost the
price of a run."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from .. import _require
from .._errors import InvalidInput, Unsupported
from . import federated
from .augment import Augment
from .clipping import Adaptive
from .data import Tabular
from .optimizers import SGD, Adam, start
from .performance import Performance
from .schedules import Cyclic

if TYPE_CHECKING:
    from .trainer import Trainer

# The number of steps whose learning rate is tried before anything is charged. Chosen by hand, so that a
# function of plain Python takes less than about a tenth of a second for all of them.
_TRIED_STEPS = 100_000

_INSTEAD = (
    "learning.SGD(lr=...), learning.Adam(lr=...), or a function that builds one of torch's: lambda "
    "parameters: torch.optim.RMSprop(parameters)"
)


def check(trainer: Trainer) -> None:
    """Check all options but the schedule, the clip and the privacy, which are checked where they are made,
    and the optimizer and its learning rate (`check_optimizer`)."""
    if trainer.average is not None:
        _require.open_probability(average=trainer.average)
        trainer._set("average", float(trainer.average))
    if not isinstance(trainer.performance, Performance):
        raise _require.fail(
            "performance", type(trainer.performance).__name__, "Performance(microbatch=..., ...)"
        )
    _require.one_of(("gaussian", "discrete"), noise=trainer.noise)
    _require.one_of(("mean", "sum"), pooling=trainer.pooling)
    if trainer.augment is not None and not isinstance(trainer.augment, Augment):
        raise _require.fail("augment", type(trainer.augment).__name__, "Augment(function=..., times=...)")
    if trainer.columns is not None and not isinstance(trainer.columns, Tabular):
        raise _require.fail("columns", type(trainer.columns).__name__, "Tabular(features=..., target=...)")
    if trainer.synthetic is not None and not (
        isinstance(trainer.synthetic, tuple) and len(trainer.synthetic) == 2
    ):
        raise _require.fail(
            "synthetic",
            type(trainer.synthetic).__name__,
            "a pair (inputs, targets) of invented examples to try the model on",
        )
    federated.check(trainer)
    _check_together(trainer)


def _check_together(trainer: Trainer) -> None:
    """Refuse combinations of options that no price is proved for, or that would train wrongly."""
    declared, size = getattr(trainer.schedule, "size", None), trainer.public.size
    if declared is not None and size is not None and declared != size:
        raise InvalidInput(
            f"{type(trainer.schedule).__name__} samples from all examples, exactly: it was made for "
            f"{declared}, and Public(size={size}) says otherwise. Nothing was read or trained. Leave out n=, "
            "or make the schedule for the declared size."
        )
    has_adaptive_clip, is_cyclic = isinstance(trainer.clip, Adaptive), isinstance(trainer.schedule, Cyclic)
    if has_adaptive_clip and (is_cyclic or trainer.noise == "discrete"):
        raise Unsupported(
            "an adaptive clip changes from step to step, and a cyclic schedule or discrete noise is priced "
            "for one clip. Nothing was read or trained."
        )
    # The noise of a cyclic schedule may be correlated over time: then its variance changes from step to step.
    if (
        (has_adaptive_clip or is_cyclic)
        and isinstance(trainer.optimizer, Adam)
        and trainer.optimizer.noise_aware
    ):
        raise Unsupported(
            "Adam subtracts one variance of noise, and here it may change from step to step: give "
            "Adam(noise_aware=False). Nothing was read or trained."
        )


def _factors(trainer: Trainer) -> list[float]:
    """Return the factors of the learning rate in the first and in the last step, and the one of largest size.

    The function is called for each step, but for no more than `_TRIED_STEPS` and the last.
    """
    factor, steps = trainer.learning_rate, trainer.schedule.steps
    if factor is None:
        return [1.0]
    if not callable(factor):
        raise _require.fail(
            "learning_rate",
            factor,
            "a function of the step that gives a factor, such as warmup_cosine(steps): the rate "
            "itself is the optimizer's, SGD(lr=...)",
        )
    factors = []
    for step in (*range(min(steps - 1, _TRIED_STEPS)), steps - 1):
        try:
            factors.append(float(factor(step)))
        except Exception as error:
            # The function was given the number of a step, so its message tells nothing about a person.
            raise InvalidInput(
                f"learning_rate({step}) failed: {type(error).__name__}: {error}. It must be a number "
                f"for each of {steps} steps. Nothing was read or trained."
            ) from error
        _require.finite(**{f"learning_rate({step})": factors[-1]})
    return [factors[0], factors[-1], max(factors, key=abs)]


def _check_deviation(trainer: Trainer) -> None:
    """Refuse noise that rounds to zero in float32, or is beyond its range or the integers of a grid.

    With a deviation between 2**-100 and 2**100, noise is far within the range of float32. On a grid, noise of
    deviation 2**58 steps is a 64-bit integer up to 31 deviations.
    """
    try:
        deviation = trainer.deviation
    except OverflowError:
        deviation = math.inf
    largest = 2.0**100 if trainer.grid is None else 2.0**58 * float(trainer.grid.step)
    if not 2.0**-100 <= deviation <= largest:
        raise _require.fail(
            "noise_multiplier",
            trainer.noise_multiplier,
            f"such that the noise on a sum has a deviation between 2**-100 and {largest:g}",
        )


def check_optimizer(trainer: Trainer, parameters: list[nn.Parameter]) -> None:
    """Check the optimizer: `SGD`, `Adam`, or a function that builds one of torch's for the parameters that it
    is given.

    The optimizer takes a step on copies of the parameters, with zero gradients, for each factor that
    `_factors` returns. Whether a step of `SGD` or `Adam` fails depends on the type of the parameters only, so
    their copies are empty.
    """
    optimizer: Any = trainer.optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        kind, rate = type(optimizer).__name__, optimizer.param_groups[0].get("lr", "...")
        raise InvalidInput(
            f"optimizer= is a torch.optim.{kind} for the weights of your model, and the trainer trains a "
            "copy. Nothing was read or trained. Say how to build one, optimizer=lambda parameters: "
            f"torch.optim.{kind}(parameters, lr={rate}), or give learning.SGD(lr=...) or "
            "learning.Adam(lr=...)."
        )
    _check_deviation(trainer)
    is_own = isinstance(optimizer, SGD | Adam)
    if not is_own and (not callable(optimizer) or optimizer in (SGD, Adam)):
        raise _require.fail("optimizer", optimizer, _INSTEAD)
    copies = [nn.Parameter(p.detach()[:0] if is_own and p.dim() else p.detach().clone()) for p in parameters]
    factors = _factors(trainer)
    try:
        update = start(optimizer, copies, trainer.schedule.divisor, trainer.deviation)
        with torch.no_grad():
            for factor in factors:
                values = torch.zeros(sum(p.numel() for p in copies), dtype=copies[0].dtype)
                update(values, torch.zeros_like(values), factor)
    except InvalidInput:
        raise
    except Exception as error:
        # No data was read so far, so the message tells nothing about a person.
        raise InvalidInput(
            f"optimizer= cannot take a step with a copy of the parameters: {type(error).__name__}: "
            f"{error}. Nothing was read or trained. Give {_INSTEAD}."
        ) from error
