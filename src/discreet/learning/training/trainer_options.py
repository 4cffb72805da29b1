"""Groups the options of a `Trainer`: what it costs, who takes part in a step, how it learns; and, apart from
these, the options for time and memory.

>>> Privacy(epsilon=3, delta=1e-5, clip=0.5).given()
{'epsilon': 3, 'delta': 1e-05, 'clip': 0.5}
>>> Performance(microbatch=64)
Performance(microbatch=64, isolate=False, compiled=False, precision='float32', device=None)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields, replace
from typing import Annotated, Any

import torch

from ... import _require
from ..._errors import InvalidInput
from ..._require import at_least
from .optimizers import SGD


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """Holds the options of a `Trainer` that change how fast it runs and how much memory it takes.

    `microbatch` is the largest number of rows that go through the model together. `isolate` runs model and
    loss example by example, so that they cannot mix examples. `compiled=True` trains with the code
    that `torch.compile` generates, on batches that are filled up to a few public sizes (`padded_sizes`);
    without it, a model that was given to `torch.compile` is trained by its original code. With
    `precision="bfloat16"` the model computes in bfloat16 where torch's autocast does; norms, sums, noise and
    weights stay in float32. With `device` a copy of the model is trained there ("cuda", "xpu"), and the
    result comes back to where the model is; without, training runs where the model is.

    Guarantee: the event of a run is the same for all values.
    Proof:     the clipped sum of a batch is a sum over its examples, in whatever parts it is added up; noise
               is drawn once per step. An example that fills up a batch has weight zero in the sum. The
               size that a batch is filled up to depends on its secret size: it is never released, and shows,
               as the batch size itself does, only in the running time of a step (docs/promise.md). For
               bfloat16: docs/proofs/bfloat16.md.
    """

    microbatch: Annotated[int, at_least(1)] | None = None
    isolate: bool = False
    compiled: bool = False
    precision: str = "float32"
    device: str | None = None

    def __post_init__(self) -> None:
        _require.one_of(("float32", "bfloat16"), precision=self.precision)
        _check_device(self.device)
        _require.that(
            not self.compiled or not self.isolate,
            "compiled=True and isolate=True do not go together: example by example nothing is compiled. "
            "Give one of them.",
        )

    def updated(self, **options: object) -> Performance:
        """Return a copy with the options that the trainer was given by keyword; None means not given."""
        set_options = {name: value for name, value in options.items() if value is not None}
        # An option that is not at its default was given in performance=.
        own, defaults = _require.field_values(self), _require.field_values(Performance())
        twice = [name for name in set_options if own[name] != defaults[name]]
        if twice:
            raise InvalidInput(f"{twice[0]}= was given to the trainer and in performance=. Give it once.")
        return replace(self, **set_options) if set_options else self  # type: ignore[arg-type]


def _check_device(device: Any) -> None:
    """Refuse a device that this machine, or this torch, does not have."""
    if device is None:
        return
    if not isinstance(device, str | torch.device):
        raise _require.fail("device", device, '"cuda", "xpu", "cpu" or None, for where the model is')
    try:
        torch.ones(1, device=device).item()
    # torch has an error of its own for each kind of device that is not there.
    except Exception as error:
        raise InvalidInput(
            f"device={str(device)!r} is not there, or nothing can be computed on it ({type(error).__name__}: "
            f"{str(error).splitlines()[0]}). Leave out device=, to train where the model is."
        ) from error


def padded_sizes(expected: float, rate: float, microbatch: int | None = None) -> tuple[int, ...]:
    """Return the public sizes that batches are filled up to: the expected size, and 2 standard deviations
    less, 2 more and 5 more (chosen by hand, not tuned), each at most `microbatch`.

    The deviation is that of a Poisson sample with `expected` members at sampling rate `rate`. A batch above
    the largest size, which is rare, is run in parts. The sizes depend on the schedule alone.

    >>> padded_sizes(256, 0.01)
    (225, 256, 288, 336)
    >>> padded_sizes(256, 0.01, microbatch=64)
    (64,)
    """
    deviation = math.sqrt(expected * (1 - min(1.0, rate)))
    sizes = {math.ceil(expected + k * deviation) for k in (-2, 0, 2, 5)}
    largest = max(sizes) if microbatch is None else microbatch
    return tuple(sorted({max(1, min(size, largest)) for size in sizes}))


class _Group:
    """Holds options of a `Trainer`, under the names that they have there."""

    __slots__ = ()

    def given(self) -> dict[str, Any]:
        """Return the options that are not at their defaults."""
        values = _require.field_values(self)
        return {f.name: values[f.name] for f in fields(self) if values[f.name] is not f.default}  # type: ignore[arg-type]


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Privacy(_Group):
    """Says how private a trained model is: the price, and what bounds and hides each person's part."""

    epsilon: Any = None
    delta: Any = None
    noise_multiplier: Any = None
    clip: Any = 1.0
    noise: Any = "gaussian"
    pooling: Any = "mean"


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds(_Group):
    """Says who takes part in which step, and how many steps there are."""

    batch: Any = None
    rate: Any = None
    n: Any = None
    steps: Any = None
    epochs: Any = None
    sampling: Any = "poisson"
    limit: Any = None
    strategy: Any = None


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Optimization(_Group):
    """Says how the weights follow the noisy sums, and what of an example is summed up."""

    optimizer: Any = field(default=SGD(lr=0.1))
    learning_rate: Any = None
    average: Any = None
    augment: Any = None
    local: Any = None


# The options of `Trainer` that are groups.
GROUPS = {"privacy": Privacy, "rounds": Rounds, "optimization": Optimization}


def spread(**groups: Any) -> dict[str, Any]:
    """Return the options that are given in groups, by their names; None is a group that is left out."""
    for name, group in groups.items():
        if group is not None and not isinstance(group, GROUPS[name]):
            raise _require.fail(name, type(group).__name__, f"{GROUPS[name].__name__}(...)")
    return {k: v for group in groups.values() if group is not None for k, v in group.given().items()}
