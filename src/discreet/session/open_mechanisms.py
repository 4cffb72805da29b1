"""Keeps mechanisms of a session open: thresholds, streams and online learners. They are charged once and
answer many times; `feed` continues them on new data."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from .. import _require
from .._public import ADD_REMOVE
from ..curator.live_mechanisms import Handle
from ..mechanisms import RedrawnSparseVector, SparseVector
from ..mechanisms.protocols import Interactive
from .base import Fed, SessionBase, Watch
from .terms import OnlineTerms, StreamTerms, WatchTerms, takes, values

if TYPE_CHECKING:
    from .streams import OnlineStream, Stream


class OpenMechanisms(SessionBase):
    """Adds the methods whose mechanisms are charged once and answer many times to a session."""

    __slots__ = ()

    @_require.paying
    @takes(WatchTerms)
    def watch(self, threshold: int, terms: WatchTerms) -> Watch:
        """Start a sparse vector, which tells for each of many counts whether it is above a threshold. Its
        price is charged now, and it halts after `positives` answers "above".

        With a `delta` above zero it is `mechanisms.RedrawnSparseVector`, else `mechanisms.SparseVector`.
        """
        monotone = self.public.neighbors is ADD_REMOVE if terms.monotone is None else terms.monotone
        options = {**values(terms), "monotone": monotone, "public": self.public, "threshold": threshold}
        number, delta = options.pop("number"), options.pop("delta")
        vector = SparseVector(**options) if delta == 0 else RedrawnSparseVector(**options, delta=delta)
        if number is None:
            return Watch(self.start(vector))
        return Watch(self.curator.resume(vector, number, analyst=self.analyst))

    @_require.paying
    @takes(StreamTerms)
    def stream(self, text: str, terms: StreamTerms) -> Stream:
        """Start a continual counter, which publishes a count or a sum again at every tick. One price for all
        ticks is charged now.

        `text` is one SELECT of a COUNT or a SUM, or with GROUP BY declared columns a vector of them. A column
        of declared days in GROUP BY (or named by `clock`) is the clock: each of its days is a tick, and the
        ticks are closed in order. `epsilon` (with `delta`) or `rho` is the price of all `horizon` ticks
        together. With a `number` and no text, the stream of that charge goes on. `participations` must be
        given where the unit is a column.
        """
        from .streams import Stream, find_stream, stream_counter

        if terms.number is not None and not text:
            return find_stream(self, terms.number)
        mechanism = stream_counter(self, text, terms)
        return (
            Stream.begin(self, mechanism)
            if terms.number is None
            else Stream.resume(self, mechanism, terms.number)
        )

    @_require.paying
    @takes(OnlineTerms)
    def online(self, loss: Any, terms: OnlineTerms) -> OnlineStream:
        """Start an online learner, which releases a decision before each round. One price for all rounds is
        charged now; each `feed` of the returned stream is one round.

        `loss`: one of `streaming.SquaredLoss`, `LogisticLoss`, `SquaredDistance`, `LinearLoss`. `learner`:
        "leader" (follow the approximate leader), "mirror" (online mirror descent), "experts" (expert advice)
        or "auto". The other options are those of `streaming.learner`.
        """
        from .streams import OnlineStream, online_learner

        mechanism = online_learner(self, loss, terms)
        if terms.number is None:
            return OnlineStream.begin(self, mechanism)
        return OnlineStream.resume(self, mechanism, terms.number)

    @_require.paying
    def feed(self, live: Any, *, number: int | None = None) -> Fed:
        """Continue an open mechanism on this session's table: the next version, or a batch of new rows. Free,
        because the mechanism was paid for at its start.

        `live` is what `watch` or `start` returned in the session of an earlier version on the same ledger;
        after a restart it is the mechanism, with the `number` of its charge. A mechanism with a method `feed`
        is given the table, once per version name. A sparse vector or a `Thresholdout` answers questions about
        this table from now on, through the returned handle. All other mechanisms are refused. A stream
        without a clock is refused as well, because each row of a version would count again: its ticks are
        closed by `Stream.feed(rows)`.

        Guarantee: that of the mechanism, for histories of versions that differ in the rows of one unit.
        Proof:     that of `Curator.feed` and `Curator.resume`, which do all of the work.
        Assumes:   the times at which versions arrive do not depend on the data.
        """
        mechanism, number = self._mechanism_of(live, number)
        # The mechanism only answers questions about the new table, and is given no rows.
        only_resumed = mechanism.any_version and mechanism.feed is None
        # a server's table may be newer than the public facts that were read from it
        stays = mechanism.public == self.public and not self.curator.away
        _require.that(
            not (only_resumed and mechanism is not live and stays),
            f"this mechanism answers about version {self.public.version!r} of the table already. Open "
            "the new data as a version of its own, dp.open(..., version=...), and feed it there.",
        )
        release = None if only_resumed else self.curator.feed(mechanism, number, analyst=self.analyst)
        handle = self.curator.resume(mechanism, number, analyst=self.analyst)
        is_bare = isinstance(live, Handle) or mechanism is live
        return Fed(handle if is_bare else replace(live, live=handle), release)

    def _mechanism_of(self, live: Any, number: int | None) -> tuple[Interactive, int]:
        """Return a mechanism and the number of its charge in this ledger: those of a handle, or the mechanism
        itself with the given number."""
        handle = live if isinstance(live, Handle) else getattr(live, "live", None)
        if isinstance(handle, Handle) and number is None:
            _require.that(
                handle.on_ledger_of(self.curator),
                "this mechanism was started on another ledger, where its price was paid. Open the new "
                "version of the table with that ledger, dp.open(..., ledger=...), or start a new "
                "mechanism in this session.",
            )
            return handle.mechanism, handle.number
        if handle is None and number is not None and isinstance(live, Interactive):
            return live, number
        raise _require.fail(
            "live",
            type(live).__name__,
            "what watch(...) or start(...) returned, or an open mechanism with the number= of its charge",
        )
