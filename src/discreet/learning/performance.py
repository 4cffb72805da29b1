"""Defines performance options of a trainer: time and memory, apart from what sets the price.

>>> Performance(microbatch=64)
Performance(microbatch=64, isolate=False, compiled=False)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from .. import _require
from .._errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class Performance:
    """Holds the options of a `Trainer` that change how fast it runs and how much memory it takes.

    `microbatch` is the largest number of rows that go through the model together. `isolate` runs model and
    loss example by example, so that they cannot mix examples. `compiled=True` trains with the code
    that `torch.compile` generates, on batches that are filled up to a few public sizes (`padded_sizes`);
    without it, a model that was given to `torch.compile` is trained by its original code.

    Guarantee: the event of a run is the same for all values.
    Proof:     the clipped sum of a batch is a sum over its examples, in whatever parts it is added up; noise
               is drawn once per step. An example that fills up a batch has weight zero in the sum. The
               size that a batch is filled up to depends on its secret size: it is never released, and shows,
               as the batch size itself does, only in the running time of a step (docs/promise.md).
    """

    microbatch: int | None = None
    isolate: bool = False
    compiled: bool = False

    def __post_init__(self) -> None:
        if self.microbatch is not None:
            _require.integer(microbatch=self.microbatch, at_least=1)
        _require.flag(isolate=self.isolate)
        _require.flag(compiled=self.compiled)
        if self.compiled and self.isolate:
            raise InvalidInput(
                "compiled=True and isolate=True do not go together: example by example nothing is compiled. "
                "Nothing was read or trained. Give one of them."
            )

    def updated(self, **options: object) -> Performance:
        """Return a copy with the options that the trainer was given by keyword; None means not given."""
        set_options = {name: value for name, value in options.items() if value is not None}
        # An option that is not at its default was given in performance=.
        twice = [name for name in set_options if getattr(self, name) != getattr(Performance(), name)]
        if twice:
            raise InvalidInput(
                f"{twice[0]}= was given to the trainer and in performance=. Nothing was read or "
                f"trained. Give it once."
            )
        return replace(self, **set_options) if set_options else self  # type: ignore[arg-type]


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
