"""Mechanisms of a session that stay open: thresholds, streams, online learners, and how they go on with new
data."""

from __future__ import annotations

import copy
import os
from dataclasses import is_dataclass, replace
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput
from .._public import ADD_REMOVE
from .._require import Real
from ..curator import InteractiveHandle
from ..mechanisms import RedrawnSparseVector, SparseVector
from ..mechanisms.protocols import Interactive
from .base import SessionBase
from .previews import Fed, Watch

if TYPE_CHECKING:
    from .streams import OnlineStream, Stream


class OpenMechanisms(SessionBase):
    """Adds the verbs that pay once and answer many times."""

    __slots__ = ()

    @_require.check_options
    def watch(
        self,
        threshold: int,
        *,
        epsilon: Real,
        delta: float = 0.0,
        positives: int = 1,
        number: int | None = None,
        numeric: bool = False,
        gap: bool = False,
        questions: int | None = None,
        sensitivity: int = 1,
        monotone: bool | None = None,
        split: tuple[Real, ...] | None = None,
    ) -> Watch:
        """Ask which of many counts are above a threshold: a sparse vector, paid now, that halts after
        `positives` that are.

        `numeric` also buys a noisy value for each, `gap` tells how far above, free; `questions`,
        `sensitivity`, `monotone` (by default that of counts) and `split` as in `mechanisms.SparseVector`.
        With a delta the threshold is drawn anew after each, which is cheaper for many. `number` goes on with
        one that was started before.
        """
        options: dict[str, Any] = {
            "public": self.public,
            "threshold": threshold,
            "epsilon": epsilon,
            "positives": positives,
            "monotone": self.public.neighbors is ADD_REMOVE if monotone is None else monotone,
            "numeric": numeric,
            "gap": gap,
            "questions": questions,
            "sensitivity": sensitivity,
            "split": split,
        }
        vector = SparseVector(**options) if delta == 0 else RedrawnSparseVector(**options, delta=delta)
        return Watch(
            self.start(vector)
            if number is None
            else self.curator.resume(vector, number, analyst=self.analyst)
        )

    @_require.check_options
    def stream(
        self,
        text: str,
        *,
        epsilon: Real | None = None,
        delta: float | None = None,
        rho: Real | None = None,
        horizon: int | None = None,
        strategy: str = "auto",
        participations: int | None = None,
        separation: int | None = None,
        clock: str | None = None,
        window: int | None = None,
        decay: float | None = None,
        restart: int | None = None,
        capacity: int | None = None,
        rows: int | None = None,
        groups: int | None = None,
        number: int | None = None,
    ) -> Stream:
        """Publish a count or a sum again at every tick, for one price, paid now: a continual counter.

        `text` is one COUNT or SUM, with GROUP BY declared columns for a vector of them; a column of declared
        days in GROUP BY (or `clock=`) is the clock, whose ticks are closed one after the other. `epsilon`
        (with `delta`) or `rho` is the price of all ticks together, of which there are `horizon`.
        `participations`: in how many ticks one unit may count, needed where units are a column, at least
        `separation` ticks apart. `rows`, `groups`: what one unit may contribute to one tick. `strategy`,
        `window`, `decay`, `restart` and `capacity` as in `streaming.ContinualCounter`; `number` goes on with
        a stream that was started before.
        """
        from .streams import open_stream

        options = {name: value for name, value in locals().items() if name not in ("self", "open_stream")}
        return open_stream(self, options.pop("text"), options.pop("number"), **options)

    @_require.check_options
    def online(
        self,
        loss: Any,
        *,
        learner: str = "auto",
        horizon: int | None = None,
        clip: Real | None = None,
        space: Any = None,
        epsilon: Real | None = None,
        delta: float | None = None,
        rho: Real | None = None,
        batch: Real = 1,
        ridge: Real = 0,
        parameter: Real | None = None,
        strategy: str = "auto",
        clock: str | None = None,
        participations: int | None = None,
        separation: int | None = None,
        capacity: int | None = None,
        number: int | None = None,
    ) -> OnlineStream:
        """Learn online: a decision before each round, for one price, paid now; `feed` is a round.

        `loss`: one of `streaming.SquaredLoss`, `LogisticLoss`, `SquaredDistance`, `LinearLoss`. `learner`:
        "leader" (follow the approximate leader), "mirror" (online mirror descent), "experts" (expert advice).
        Options as in `streaming.learner`; `number` goes on with a learner that was started before.
        """
        from .streams import open_learner

        options = {name: value for name, value in locals().items() if name not in ("self", "open_learner")}
        return open_learner(self, options.pop("loss"), options.pop("number"), **options)

    @_require.check_options
    def feed(self, live: Any, *, number: int | None = None) -> Fed:
        """Let a live mechanism go on with this session's table: the next version, or a batch of new rows.

        Free: it was paid for at its start.

        `live` is what `watch` or `start` gave in the session of an earlier version on the same ledger; after
        a restart it is the mechanism, with the `number` of its charge. What has a method `feed` is given the
        table, once for each name of a version; a sparse vector or a `Thresholdout` is asked about it from now
        on, by the new handle. All others are refused, and so is a stream of rows without a clock, where each
        row of a version would count again: its ticks are `Stream.feed(rows)`.

        Guarantee: that of the mechanism, for histories of versions that differ in the rows of one unit.
        Proof:     that of `Curator.feed` and `Curator.resume`, which do all of it.
        Assumes:   when a version arrives does not depend on the data.
        """
        mechanism, number = self._mechanism_of(live, number)
        goes_on = getattr(mechanism, "any_version", False) and not hasattr(mechanism, "feed")
        if goes_on and mechanism is not live and mechanism.public == self.public:
            raise InvalidInput(
                f"this goes on with the version {self.public.version!r} of the table already. "
                f"Nothing was read or released. Open the new data as "
                f"a version of its own, dp.open(..., version=...), and feed it there."
            )
        release = None if goes_on else self.curator.feed(mechanism, number, analyst=self.analyst)
        handle = self.curator.resume(mechanism, number, analyst=self.analyst)
        return Fed(
            handle if isinstance(live, InteractiveHandle) or mechanism is live else _handle_on(live, handle),
            release,
        )

    def _mechanism_of(self, live: Any, number: int | None) -> tuple[Any, int]:
        """Return the mechanism of a handle and the number of its charge, which must be one of this ledger."""
        handle = live if isinstance(live, InteractiveHandle) else getattr(live, "live", None)
        if isinstance(handle, InteractiveHandle) and number is None:
            if os.path.realpath(handle.ledger.path) != os.path.realpath(self.ledger.path):
                raise InvalidInput(
                    "this was started on another ledger, where its price was paid. Nothing was read "
                    "or released. Open the new version of the "
                    "table with that ledger, dp.open(..., ledger=...), or start a new one here."
                )
            return handle.mechanism, handle.number
        if handle is None and number is not None and isinstance(live, Interactive):
            return live, number
        raise _require.fail(
            "live",
            type(live).__name__,
            "what watch(...) or start(...) gave, or a live mechanism with the number= of its charge",
        )


def _handle_on(handle: Any, live: InteractiveHandle) -> Any:
    """Return a copy of a handle (a `Watch`, a `HoldoutScorer`) on another `live`."""
    if is_dataclass(handle):
        return replace(handle, live=live)  # type: ignore[type-var]
    other = copy.copy(handle)
    other.live = live
    return other
