"""Builds the sampling schedule of a run (`schedules`) from a trainer's options: `sampling`, `batch` or
`rate`, `epochs` or `steps`."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from .. import _require
from .._errors import InvalidInput, PrivateFact
from .correlated import blt, square_root
from .schedules import (
    BallsInBins,
    Cyclic,
    Poisson,
    Schedule,
    TruncatedPoisson,
    WithoutReplacement,
    smallest_limit,
)

_KINDS = ("poisson", "truncated_poisson", "balls_in_bins", "without_replacement", "cyclic")


def build_schedule(
    kind: Any,
    *,
    size: int | None,
    rate: Any = None,
    batch: Any = None,
    steps: int | None = None,
    epochs: Any = None,
    limit: int | None = None,
    strategy: Any = None,
    target: tuple[float | None, float | None] = (None, None),
) -> Schedule:
    """Return a schedule from a trainer's options; a `kind` that is a schedule already is returned as it is.

    `size` is the declared number of examples, None if there is none. The sampling rate is `rate`, or `batch`
    (the expected size of a batch) divided by `size`; the length is `steps`, or `epochs` passes. `limit` is
    the largest batch of truncated Poisson sampling; by default `_limit` computes it from `target`, the
    (epsilon, delta) that the trainer is calibrated to. `strategy` correlates the noise of a cyclic schedule.
    """
    if isinstance(kind, Schedule):
        options = {"rate": rate, "batch": batch, "steps": steps, "epochs": epochs, "limit": limit}
        ignored = [name for name, value in (options | {"strategy": strategy}).items() if value is not None]
        if ignored:
            raise InvalidInput(
                f"{ignored[0]}= belongs to the schedule, sampling={type(kind).__name__}(...), and would be "
                "ignored. Nothing was read or trained. Leave it out."
            )
        return kind
    _check_options(kind, steps, epochs, limit, strategy)
    exact_rate, divisor = _rate(size, rate, batch)
    if kind in ("balls_in_bins", "cyclic"):
        return _pass_schedule(kind, exact_rate, divisor, steps, epochs, strategy)
    if epochs is not None:
        _require.positive(epochs=epochs)
    total_steps = steps if steps is not None else max(1, round(_require.exact(epochs, "epochs") / exact_rate))
    if kind == "poisson":
        return Poisson(rate=exact_rate, steps=total_steps, divisor=divisor)
    if size is None or (kind == "without_replacement" and batch is None):
        raise InvalidInput(
            f"{kind} sampling needs batch=, and the exact number of examples, Public(size=...), which is "
            "public then. Nothing was read or trained."
        )
    if rate is not None and batch is not None and exact_rate * size != _require.exact(batch, "batch"):
        # The sample has one size, which would follow from only one of them.
        raise InvalidInput(
            f"rate={rate!r} of {size} examples is {float(exact_rate * size):g}, and batch={batch!r} says "
            f"otherwise. Nothing was read or trained. For {kind} sampling, leave one of them out."
        )
    if kind == "without_replacement":
        return WithoutReplacement(sample=batch, size=size, steps=total_steps)
    return TruncatedPoisson(
        rate=exact_rate,
        size=size,
        limit=_limit(limit, size, exact_rate, total_steps, target),
        steps=total_steps,
    )


def _check_options(kind: Any, steps: Any, epochs: Any, limit: Any, strategy: Any) -> None:
    """Refuse an unknown kind of sampling, and options that do not go with it or with each other."""
    if not isinstance(kind, str) or kind not in _KINDS:
        raise _require.fail("sampling", kind, f"{', '.join(map(repr, _KINDS))}, or a schedule")
    if (steps is None) == (epochs is None):
        raise InvalidInput("give steps=, or epochs= (and not both). Nothing was read or trained.")
    if limit is not None and kind != "truncated_poisson":
        raise InvalidInput(
            f"limit= is for sampling='truncated_poisson'; {kind!r} has none. Nothing was read or trained."
        )
    if strategy is not None and kind != "cyclic":
        raise InvalidInput(
            f"strategy= is for sampling='cyclic': with {kind!r} noise is independent. Nothing was "
            f"read or trained."
        )


def _limit(
    limit: int | None, size: int, rate: Fraction, steps: int, target: tuple[float | None, float | None]
) -> int:
    """Return the batch limit, by default the smallest that costs at most a hundredth of delta (chosen by
    hand, not tuned)."""
    if limit is not None:
        return limit
    epsilon, delta = target
    if epsilon is None or delta is None:
        raise InvalidInput(
            "truncated_poisson with a noise_multiplier needs limit=, the largest batch. Nothing was "
            "read or trained."
        )
    return smallest_limit(size=size, rate=rate, steps=steps, epsilon=epsilon, delta=delta / 100)


def _pass_schedule(
    kind: str, rate: Fraction, divisor: float, steps: int | None, epochs: Any, strategy: Any
) -> Schedule:
    """Return a schedule of whole passes, each of 1 / `rate` steps (rounded): balls in bins, or cyclic.

    `divisor` is the expected batch size.
    """
    bins = max(1, round(1 / rate))
    if steps is not None:
        _require.integer(steps=steps, at_least=1)
        if steps % bins:
            raise _require.fail("steps", steps, f"a multiple of {bins}, the number of steps in one pass")
        epochs = steps // bins
    _require.integer(epochs=epochs, at_least=1)
    passes = int(epochs)
    if kind == "balls_in_bins":
        return BallsInBins(bins=bins, epochs=passes, divisor=divisor)
    if strategy is None or strategy == "identity":
        return Cyclic(bins=bins, epochs=passes, divisor=divisor)
    matrix = strategy
    if strategy == "square_root":
        matrix = square_root(bins * passes)
    elif strategy == "blt":
        matrix = blt(bins * passes)
    return Cyclic(bins=bins, epochs=passes, divisor=divisor, strategy=matrix)


def _rate(size: int | None, rate: Any, batch: Any) -> tuple[Fraction, float]:
    """Return the sampling rate and the expected batch size; where only one is given, the other follows from
    the declared number of examples."""
    if rate is None and batch is None:
        raise InvalidInput(
            "give batch= (the expected size of a batch), or rate=. Nothing was read or trained."
        )
    if rate is not None:
        _require.positive(rate=_require.exact(rate, "rate"))
        _require.probability(rate=_require.exact(rate, "rate"))
    if rate is not None and batch is not None:
        _require.positive(batch=batch)
        return _require.exact(rate, "rate"), float(batch)
    if size is None:
        option = "batch" if rate is None else "rate"
        raise PrivateFact(
            f"{option}= alone needs the number of examples, and none is declared. It is private under "
            "add_remove and never read off the data: declare Public(size=...) or n=, buy a noisy count, or "
            "give both rate= and batch=. Nothing was read or trained."
        )
    if batch is not None:
        _require.positive(batch=batch)
        exact_rate = _require.exact(batch, "batch") / size
        if exact_rate > 1:
            raise _require.fail(
                "batch", batch, f"at most n, the declared number of examples, which is {size}"
            )
        return exact_rate, float(batch)
    exact_rate = _require.exact(rate, "rate")
    return exact_rate, float(exact_rate * size)
