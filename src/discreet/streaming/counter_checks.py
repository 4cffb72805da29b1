"""Checks the options of a continual counter when it is built, before anything is read or charged.

A combination without a proof of its sensitivity, or without a formula for its error, is refused: relaxing a
check here needs that proof or formula first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .. import _require
from .._errors import InvalidInput, Unsupported
from .._public import ADD_REMOVE, Public
from ..mechanisms.matrix.binary_tree import BinaryTree
from ..mechanisms.matrix.buffered import Buffered
from ..mechanisms.matrix.triangular import Dense, Toeplitz
from ..mechanisms.protocols import is_statistic
from .records import ticks_of
from .running import RunningSum

if TYPE_CHECKING:
    from .continual import ContinualCounter

# The largest number of steps of a horizon, or between restarts. The first call of `error` computes the
# variances of all steps: 3 s at this number (measured, tree strategy), and more than a minute at 16 times it.
MAX_STEPS = 1 << 22


def check_arguments(counter: ContinualCounter) -> None:
    """Refuse arguments of the wrong type or sign, and anything but exactly one of epsilon and rho."""
    _check_types(counter)
    for name in ("participations", "separation"):
        _require.integer(**{name: getattr(counter, name)}, at_least=1)
    for name in ("horizon", "window", "restart"):
        if getattr(counter, name) is not None:
            _require.integer(**{name: getattr(counter, name)}, at_least=1)
    _check_price(counter)


def _check_types(counter: ContinualCounter) -> None:
    """Refuse a `public`, a statistic or a strategy of the wrong type."""
    if not isinstance(counter.public, Public):
        raise _require.fail("public", type(counter.public).__name__, "a Public")
    if not is_statistic(counter.statistic):
        raise _require.fail("statistic", type(counter.statistic).__name__, "a statistic, such as Count()")
    if not isinstance(counter.strategy, BinaryTree | Toeplitz | Buffered | Dense | RunningSum):
        raise _require.fail(
            "strategy", type(counter.strategy).__name__, "one of streaming.named(...), such as 'honaker'"
        )


def _check_price(counter: ContinualCounter) -> None:
    """Refuse anything but exactly one of epsilon and rho, which must be positive."""
    if (counter.epsilon is None) == (counter.rho is None):
        raise InvalidInput("give either epsilon or rho. Nothing was read or charged.")
    for name in ("epsilon", "rho"):
        if getattr(counter, name) is not None:
            _require.positive(**{name: getattr(counter, name)})


def check_shape(counter: ContinualCounter) -> None:
    """Refuse horizons, clocks, restarts, windows and decays for which there is no proof of the sensitivity or
    no formula of the error."""
    for name in ("horizon", "restart"):
        if (getattr(counter, name) or 0) > MAX_STEPS:
            raise _require.fail(name, getattr(counter, name), f"at most {MAX_STEPS:,}")
    if counter.clock is not None:
        ticks = ticks_of(counter.public, counter.clock)
        if counter.horizon is None or counter.horizon > ticks:
            raise InvalidInput(
                f"the clock {counter.clock!r} has {ticks:,} declared ticks, so horizon is a number up to "
                f"{ticks:,}, got {counter.horizon}. Nothing was read or charged."
            )
    # blocks of 1, 2, 4, ... ticks, see `ContinualCounter`
    doubling = counter.horizon is None and counter.restart is None
    if doubling and not isinstance(counter.strategy, BinaryTree):
        raise Unsupported(
            "without a horizon the blocks double, which takes a strategy for every length: 'tree' or "
            "'honaker'. Nothing was read or charged. Give horizon=, or restart=."
        )
    if counter.window is not None and counter.decay is not None:
        raise InvalidInput("give window or decay, not both. Nothing was read or charged.")
    if counter.decay is not None:
        _require.open_probability(decay=counter.decay)
    if (counter.window or counter.decay) and (doubling or counter.restart):
        raise Unsupported(
            "a sliding window or a decayed sum needs a horizon and no restart. Nothing was read or charged."
        )
    if counter.decay is not None and isinstance(counter.strategy, BinaryTree | RunningSum | Dense):
        raise Unsupported(
            "a decayed sum is read off single steps, which a tree over time does not estimate well, and its "
            "error is known for Toeplitz strategies only. Nothing was read or charged. Take "
            "strategy='square_root', 'blt' or 'item'."
        )
    if isinstance(counter.strategy, Dense) and len(counter.strategy.rows) < counter._block_length(1):
        raise _require.fail("strategy", f"{len(counter.strategy.rows)} rows", "as long as the horizon")


def check_units(counter: ContinualCounter) -> None:
    """Refuse units and neighbors for which no sensitivity is proved."""
    by_unit = counter.public.unit.column is not None
    if not by_unit and counter.participations > 1:
        raise InvalidInput(
            f"where the unit is a row, it is in one batch only: participations={counter.participations} "
            "needs a unit with several rows. Nothing was read or charged. Open the table with "
            "unit='person_id', the column that tells people apart."
        )
    if by_unit and counter.horizon is None:
        raise Unsupported(
            "where units are a column the horizon must be known: without an end a unit could take part "
            "without end. Nothing was read or charged. Give horizon=."
        )
    if (by_unit or counter.clock is not None) and counter.public.neighbors is not ADD_REMOVE:
        raise Unsupported(
            f"under {counter.public.neighbors} a unit (or a row, with a clock) may be replaced by one of "
            "other ticks, for which no sensitivity is proved here. Nothing was read or charged. Protect "
            "the table under add_remove."
        )
    if (by_unit or counter.clock is not None) and counter.public.tables:
        raise Unsupported(
            "rows are chosen before they are counted, which is not done across related tables. Nothing "
            "was read or charged. Stream one table."
        )
