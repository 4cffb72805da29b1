"""Defines optimizers over one flat vector of weights.

They see noisy gradients only: whatever they do is post-processing, and costs no privacy.

A function that builds one of torch's own (`lambda parameters: torch.optim.RMSprop(parameters)`) works, too.

Throughout, `divisor` is the public number that turns a sum of gradients into a mean (the expected batch),
and `deviation` the standard deviation of the noise on the sum.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from ... import _require
from ..._errors import InvalidInput
from ..._registry import described
from ..._require import FLOAT, NON_NEGATIVE, POSITIVE


class Update(Protocol):
    """Takes the steps of one training run: changes `values`, the weights, in place.

    `total` is the noisy sum of gradients, which may be overwritten; `factor` multiplies the learning rate in
    this step. `rate` is the learning rate where the factor is 1.
    """

    @property
    def rate(self) -> float: ...

    def __call__(self, values: Tensor, total: Tensor, factor: float) -> None: ...

    def state(self) -> Any:
        """Return what later steps depend on, for a checkpoint: tensors and numbers, in dicts and lists."""

    def restore(self, state: Any) -> None: ...


@dataclass(frozen=True, slots=True)
class _FlatUpdate:
    """Applies `SGD` or `Adam`: `move` takes a step, and changes the tensors in `memory` in place. Checkpoints
    hold the keys of `memory`."""

    move: Callable[[Tensor, Tensor, float], None]
    memory: dict[str, Tensor]
    rate: float

    def __call__(self, values: Tensor, total: Tensor, factor: float) -> None:
        self.move(values, total, factor)

    def state(self) -> dict[str, Tensor]:
        return dict(self.memory)

    def restore(self, state: dict[str, Tensor]) -> None:
        for name, tensor in self.memory.items():
            tensor.copy_(state[name])


@dataclass(frozen=True, slots=True)
class _TorchUpdate:
    """Applies one of torch's own optimizers."""

    move: Callable[[Tensor, Tensor, float], None]
    inner: torch.optim.Optimizer
    rate: float

    def __call__(self, values: Tensor, total: Tensor, factor: float) -> None:
        self.move(values, total, factor)

    def state(self) -> dict[str, Any]:
        return self.inner.state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        self.inner.load_state_dict(state)


@described("learning.SGD")
class SGD:
    """Runs stochastic gradient descent, with heavy-ball or Nesterov momentum."""

    lr: Annotated[float, FLOAT, POSITIVE]
    momentum: Annotated[float, FLOAT, NON_NEGATIVE] = 0.0
    nesterov: bool = False
    weight_decay: Annotated[float, FLOAT, NON_NEGATIVE] = 0.0

    def start(
        self, size: int, dtype: torch.dtype, divisor: float, deviation: float, device: Any = "cpu"
    ) -> Update:
        """Return the update of one run, over `size` weights; `deviation` is not used.

        The update is linear in the gradient, so the velocity is that of sums, and the division by `divisor`
        is done once, where the weights move.
        """
        velocity = torch.zeros(size, dtype=dtype, device=device) if self.momentum else None

        def update(values: Tensor, total: Tensor, factor: float) -> None:
            if self.weight_decay:
                total.add_(values, alpha=self.weight_decay * divisor)
            if velocity is not None:
                velocity.mul_(self.momentum).add_(total)
                total = total.add_(velocity, alpha=self.momentum) if self.nesterov else velocity
            values.add_(total, alpha=-self.lr * factor / divisor)

        # Checkpoints hold this name: it must not change.
        return _FlatUpdate(update, {} if velocity is None else {"velocity": velocity}, self.lr)


@described("learning.Adam")
class Adam:
    """Runs Adam with decoupled weight decay (AdamW); on request its second moment is corrected for the
    variance of the noise.

    Squared noisy gradients are too large by the variance of the noise, (noise_multiplier clip / batch)²,
    which is public. It would hide how gradients differ in size, and Adam would scale all weights alike, as
    SGD does. `noise_aware` subtracts this variance from the second moment, and replaces a difference below
    `floor`² by `floor`² (Tang & Lécuyer 2023, arXiv:2312.14334). Steps are then longer, and need a smaller
    `lr` or a larger `floor`: docs/learning.md has what was measured.
    """

    lr: Annotated[float, FLOAT, POSITIVE] = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Annotated[float, FLOAT, POSITIVE] = 1e-8
    weight_decay: Annotated[float, FLOAT, NON_NEGATIVE] = 0.0
    noise_aware: bool = False
    floor: Annotated[float, FLOAT, POSITIVE] = 1e-4

    def __post_init__(self) -> None:
        betas = _require.listed(betas=self.betas)
        _require.probability(**{f"betas[{i}]": beta for i, beta in enumerate(betas)})
        # With a beta of 1 no gradient would ever enter the average.
        _require.must(len(betas) == 2 and max(betas) != 1, "betas", betas, "two numbers from 0 to below 1")
        object.__setattr__(self, "betas", tuple(map(float, betas)))

    def start(
        self, size: int, dtype: torch.dtype, divisor: float, deviation: float, device: Any = "cpu"
    ) -> Update:
        """Return the update of one run, over `size` weights."""
        momentum, second_moment = (torch.zeros(size, dtype=dtype, device=device) for _ in range(2))
        beta1, beta2 = self.betas
        noise_variance = (deviation / divisor) ** 2 if self.noise_aware else 0.0
        step_count = torch.zeros((), dtype=torch.int64, device="cpu")

        def update(values: Tensor, total: Tensor, factor: float) -> None:
            steps = int(step_count.add_(1))
            gradient = total.div_(divisor)
            momentum.lerp_(gradient, 1 - beta1)
            second_moment.mul_(beta2).addcmul_(gradient, gradient, value=1 - beta2)
            corrected = second_moment / (1 - beta2**steps)
            if noise_variance:
                corrected.sub_(noise_variance).clamp_(min=self.floor**2)
            if self.weight_decay:
                values.mul_(1 - self.lr * factor * self.weight_decay)
            values.addcdiv_(
                momentum, corrected.sqrt_().add_(self.eps), value=-self.lr * factor / (1 - beta1**steps)
            )

        # Checkpoints hold these names: they must not change.
        return _FlatUpdate(update, {"first": momentum, "second": second_moment, "steps": step_count}, self.lr)


Optimizer = SGD | Adam | Callable[[list[nn.Parameter]], torch.optim.Optimizer]


def start(optimizer: Optimizer, parameters: list[nn.Parameter], divisor: float, deviation: float) -> Update:
    """Return the optimizer of one run, for parameters that are views of one vector of weights, in order."""
    if isinstance(optimizer, SGD | Adam):
        size, first = sum(p.numel() for p in parameters), parameters[0]
        return optimizer.start(size, first.dtype, divisor, deviation, first.device)
    return foreign(optimizer, parameters, divisor)


def foreign(
    build: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    parameters: list[nn.Parameter],
    divisor: float,
) -> Update:
    """Return one of torch's own optimizers as an update; in each step the factor multiplies the learning rate
    of every group of parameters."""
    inner = build(parameters)
    _require.that(
        isinstance(inner, torch.optim.Optimizer),
        f"the function optimizer= gave a {type(inner).__name__}, and must give a torch.optim.Optimizer "
        "for the parameters it is given.",
    )
    parameter_ids = {id(p) for p in parameters}
    _require.that(
        all(id(p) in parameter_ids for group in inner.param_groups for p in group["params"]),
        "the function optimizer= builds an optimizer for other parameters than those it is given; the "
        "trainer trains a copy of the model. Write lambda parameters: torch.optim.SGD(parameters, "
        "lr=...).",
    )
    rates = [group["lr"] for group in inner.param_groups]

    def update(values: Tensor, total: Tensor, factor: float) -> None:
        gradient = total.div_(divisor)
        for group, rate in zip(inner.param_groups, rates, strict=True):
            group["lr"] = rate * factor
        for p, flat_gradient in zip(
            parameters, torch.split(gradient, [p.numel() for p in parameters]), strict=True
        ):
            p.grad = flat_gradient.view(p.shape)
        # torch's counters of steps are on the host, whatever the default device
        with torch.device("cpu"):
            inner.step()
        for p in parameters:
            p.grad = None

    return _TorchUpdate(update, inner, float(rates[0]))


def warmup_cosine(steps: int, warmup: int = 0) -> Callable[[int], float]:
    """Return the factor of the learning rate as a function of the step, which counts from 0.

    It rises in a line to 1 over the first `warmup` of `steps` steps, then falls along a cosine, to 0 after
    the last.
    """
    _require.integer(steps=steps, at_least=1)
    _require.integer(warmup=warmup, at_least=0)

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return 0.5 * (1 + math.cos(math.pi * (step - warmup) / max(1, steps - warmup)))

    return factor


class _StandIn(torch.optim.SGD):
    """Has learning rates, and no weights that a step would move. It is marked as torch marks an optimizer
    that has taken a step, because schedulers warn before the first one."""

    _opt_called = True

    def step(self, closure: Any = None) -> None: ...  # type: ignore[override]

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]


class Scheduled:
    """Turns a scheduler of torch into the factor on the learning rate as a function of the step.

    The scheduler runs over a stand-in for the optimizer. So a run has no state of it that would have to be
    saved: the rate of a step depends on its number alone, also in a run that is resumed.
    """

    def __init__(self, scheduler: LRScheduler, rate: float) -> None:
        _require.that(
            not isinstance(scheduler, ReduceLROnPlateau),
            "ReduceLROnPlateau follows a metric, and here the rate of a step depends on its number alone. "
            "Give another scheduler, such as CosineAnnealingLR.",
        )
        self._scheduler, self._rate, self._factors = scheduler, rate, list[float]()
        self._others = self._settings()

    def __call__(self, step: int) -> float:
        while len(self._factors) <= step:
            rates = {float(group["lr"]) for group in self._scheduler.optimizer.param_groups}
            _require.that(
                len(rates) <= 1 and self._settings() == self._others,
                f"{type(self._scheduler).__name__} sets more than one learning rate (betas or momentum, "
                "or the rates of several groups), and only one rate is scheduled here. Give "
                "cycle_momentum=False, or one group.",
            )
            self._factors.append(rates.pop() / self._rate)
            self._scheduler.step()
        return self._factors[step]

    def _settings(self) -> list[Any]:
        groups = self._scheduler.optimizer.param_groups
        return [(group["momentum"], group.get("betas")) for group in groups]

    # Without an address: it is part of the identity of a run.
    def __repr__(self) -> str:
        return type(self._scheduler).__name__


def scheduled(learning_rate: Any, rate: float) -> Any:
    """Return a scheduler of torch, or a function that makes one of an optimizer, as a function of the step;
    return anything else as it is. `rate` is the learning rate of the trainer's optimizer."""
    if isinstance(learning_rate, LRScheduler):
        own = learning_rate.optimizer
        nothing = nn.Parameter(torch.empty(0, device="cpu"))
        groups = [{**group, "params": [nothing]} for group in own.param_groups]
        return Scheduled(copy.deepcopy(learning_rate, {id(own): _StandIn(groups, lr=rate)}), rate)
    if not callable(learning_rate):
        return learning_rate
    try:
        learning_rate(0)
    except Exception as error:
        try:
            scheduler = learning_rate(_StandIn([nn.Parameter(torch.empty(0, device="cpu"))], lr=rate))
        except Exception as cause:
            if "is not an Optimizer" not in str(error):
                return learning_rate
            raise InvalidInput(
                f"learning_rate(optimizer) failed: {type(cause).__name__}: {cause}."
            ) from cause
        if isinstance(scheduler, LRScheduler):
            return Scheduled(scheduler, rate)
    return learning_rate
