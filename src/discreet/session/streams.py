"""Defines the streams of a session: continual counters that SQL describes, and online learners. They are fed
with rows, files that grow or tables of a database, one tick or round at a time. A stream with a clock, a
column of days, has one tick per day; otherwise each batch of rows is a tick. What was released can be read
from the ledger at any time, free."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from .. import _require
from .._errors import InvalidInput
from .._public import Public
from .._registry import from_json, tag_of, to_json
from .._text import is_text
from ..curator import STEWARD, Curator
from ..curator.accounts import SPENDING
from ..curator.live_mechanisms import was_fed
from ..curator.values import decode
from ..mechanisms.protocols import Release, as_of
from ..query import SqlVector
from ..query.statistic import stream_statistic
from ..streaming import Advance, ContinualCounter, Latest, OnlineLearner, counter, learner
from ..tables import EngineError, Memory, Source, connect, connect_postgres
from ..tables.engines.postgres_tables import is_address
from ..tables.engines.spark_files import is_frame
from ..tables.files import refuse_empty
from .terms import OnlineTerms, StreamTerms, chosen

if TYPE_CHECKING:
    from .base import SessionBase


@dataclass(slots=True, repr=False)
class Stream(_require.NearestNames):
    """Holds a continual counter whose price was paid at its start.

    Each `feed` closes one tick and releases the sum so far. `value`, `error` and `history` describe what was
    released, and are free. `number`, that of its charge in the ledger, continues the stream after a restart:
    `session.stream(..., number=...)` with the same options.
    """

    session: SessionBase
    counter: Any
    number: int

    @classmethod
    def begin(cls, session: SessionBase, mechanism: Any) -> Self:
        """Charge a counter (or a learner), and start it.

        A session on some periods (`Session.during`) cannot start a stream without a clock: the batches that
        it would be fed are not divided by period.
        """
        _require.that(
            not session.curator.periods or mechanism.clock is not None,
            "a stream without a clock is fed with batches, which may hold rows of any period, and this "
            f"session is about {', '.join(session.curator.periods)} only. Start it on the whole table, "
            "which every period pays for, or give it a clock: GROUP BY a column of days.",
        )
        return cls(session, mechanism, session.curator.start(mechanism, analyst=session.analyst).number)

    @classmethod
    def resume(cls, session: SessionBase, mechanism: Any, number: int) -> Self:
        """Continue the counter (or the learner) whose charge has this `number`."""
        session.curator.resume(mechanism, number, analyst=session.analyst)
        return cls(session, mechanism, number)

    @_require.check_options
    def feed(self, rows: Any = None, *, tick: str | None = None) -> Release:
        """Close one tick, and return its release. `rows`, the rows of this tick, are a data frame, an Arrow
        table, a mapping of columns, a file, a `tables.Database`, "postgresql://...::table" or a Spark
        DataFrame; an empty batch is a tick as well.

        `tick` is the name of the tick, by default "tick 1", "tick 2" and so on. A name that was fed before is
        refused, so that a batch can be fed again after a crash without counting twice. With a clock, the rows
        of the next day are selected from `rows`, or from the session's own table if `rows` is left out. If
        the files of that table have changed since they were opened, they are refused, and the tick stays
        open.
        """
        has_clock = self.counter.clock is not None
        _require.that(
            not has_clock or tick is None,
            f"this stream has a clock, whose ticks have the names of their days: tick={tick!r} would "
            "have no effect. Leave it out.",
        )
        _require.that(
            has_clock or rows is not None,
            "a stream without a clock counts the rows that it is given: feed(rows). An empty batch is a "
            "tick too.",
        )
        if self.session.curator.away:
            release = self.session.curator.feed(  # type: ignore[call-arg]
                self.counter, self.number, rows=rows, tick=tick
            )
            assert release is not None
            return release
        if has_clock:
            return self._advance(rows)
        name = self._next_name() if tick is None else tick
        if not isinstance(name, str) or not name or not is_text(name):
            raise _require.fail("tick", tick, "a name, such as '2026-11-16'")
        fed_before = was_fed(self.session.ledger, self.number, name)
        try:
            return self._feed_batch(rows, name)
        except InvalidInput:
            if tick is not None or fed_before or not was_fed(self.session.ledger, self.number, name):
                raise
        # Another process has closed the tick of this number in the meantime. These rows were not counted, and
        # become the next tick.
        return self.feed(rows)

    def _feed_batch(self, rows: Any, name: str) -> Release:
        """Feed the counter with one batch. The name of the tick is the version of its table, and the curator
        refuses to feed the same version twice."""
        source = self._source(rows, self._batch_facts(name))
        curator = Curator.open(self.session.ledger.path, source)
        release = curator.feed(self.counter, self.number, analyst=self.session.analyst, batch=True)
        assert release is not None
        return release

    def _next_name(self) -> str:
        """Return the default name of the next tick, "tick n": n is the number of released ticks plus one, or
        the next number whose name is not released. A tick during which a process died has no release, so its
        name is used again."""
        used_names = {body.get("table") for body in self._states()}
        return next(name for n in itertools.count(self.steps + 1) if (name := f"tick {n}") not in used_names)

    def _advance(self, rows: Any) -> Release:
        """Close the next tick of a clock, with its rows among `rows`, or in the session's own table if these
        are None."""
        session = self.session
        if rows is None:
            self._check_current()
            handle = session.curator.resume(self.counter, self.number, analyst=session.analyst)
            return handle.answer(Advance())
        _require.that(
            not session.curator.periods,
            f"this stream is about {', '.join(session.curator.periods)} only, and the rows of feed(rows) "
            "may be of any period. Leave them out: feed() closes the tick with the rows of the "
            "session's own table.",
        )
        version = f"tick {self.steps + 1}"
        source = self._source(rows, self._batch_facts(version))
        curator = Curator.open(session.ledger.path, source)
        return curator.resume(self.counter, self.number, analyst=session.analyst).answer(Advance())

    def _check_current(self) -> None:
        """Refuse to close a tick if the files of the session's table have changed since they were opened:
        rows of the tick may be in the new files only, and a tick is closed once."""
        check = getattr(self.session.curator.source, "current", None)
        try:
            if check is not None:
                check()
        except EngineError as error:
            raise InvalidInput(
                f"{error} Continue with session.stream(..., number={self.number}) in the new session, or "
                f"give the rows: feed('the file')."
            ) from None

    def _batch_facts(self, name: str) -> Public:
        """Return the public facts of the rows of a tick: those of the table, but for its size."""
        facts: Public = replace(self.counter.public, version=name, size=None)
        return facts

    def _source(self, rows: Any, public: Public) -> Source:
        """Return a source of the rows of a tick, in any of the forms that `feed` accepts."""
        if is_frame(rows):
            from ..tables.engines.spark import connect as connect_spark

            return connect_spark(rows, public)
        if is_address(rows):
            address, _, table = rows.partition("::")
            return connect_postgres(address, public, table=table or public.table)
        if isinstance(rows, Source):
            raise _require.fail("rows", type(rows).__name__, "data, a path, or tables.Database(path, table)")
        # a mapping of columns; data frames have `keys` too
        if hasattr(rows, "keys") and not hasattr(rows, "columns"):
            return Memory(rows, public)
        refuse_empty(rows)
        source: Source = connect(Path(rows) if isinstance(rows, str) else rows, public)
        return source

    @property
    def steps(self) -> int:
        """The number of ticks that were released."""
        return len(self._released_values())

    @property
    def value(self) -> Any:
        """The newest release: a number, or a mapping from group to number."""
        values = self._released_values()
        _require.that(values, "nothing was released yet: feed the first batch.")
        return self._by_group(values[-1])

    @property
    def history(self) -> list[Any]:
        """Every release so far, in order."""
        return [self._by_group(value) for value in self._released_values()]

    def error(self, confidence: float = 0.95) -> float:
        """Return the error that the newest release does not exceed with probability `confidence`; before the
        first release, that of the first tick."""
        return float(self.counter.error(confidence, max(1, self.steps)))

    def _released_values(self) -> list[Any]:
        """Return the values of all releases, in order, as they stand in the ledger."""
        return [decode(body["value"]) for body in self._states()]

    def _states(self) -> list[dict[str, Any]]:
        """Return the bodies of the entries with the releases of this stream, one per tick. Entries of the
        question `Latest`, which repeats the newest release, are left out."""
        latest_question = to_json(Latest())
        bodies = self.session.curator.released(self.number)
        return [body for body in bodies if body.get("question") != latest_question]

    def _by_group(self, value: Any) -> Any:
        """Return a released value in the form that users see."""
        return value_by_group(self.counter, value)

    def __repr__(self) -> str:
        end = "without end" if self.counter.horizon is None else f"of {self.counter.horizon}"
        return f"<Stream {self.number} of {self.counter.public.table!r}: {self.steps} ticks {end}>"


def value_by_group(counter: Any, value: Any) -> Any:
    """Return a released value of a counter as a number, as a mapping from group to number for a statistic
    with GROUP BY, or else as the array that it is."""
    array = np.asarray(value)
    if array.ndim == 0:
        return float(array)
    if isinstance(counter.statistic, SqlVector):
        keys = counter.statistic.keys(counter.public)
        names = [key[0] if len(key) == 1 else key for key in keys]
        return dict(zip(names, array.tolist(), strict=True))
    return array


@dataclass(slots=True, repr=False)
class OnlineStream(Stream):
    """Holds an online learner whose price was paid at its start. Each `feed` is one round, and releases the
    decision for the next round."""

    @property
    def learner(self) -> OnlineLearner:
        learner: OnlineLearner = self.counter
        return learner

    @property
    def decision(self) -> Any:
        """The newest decision; before the first round, the first decision, which does not depend on data."""
        values = self._released_values()
        return np.asarray(values[-1]) if values else self.learner.first_decision()

    def regret_bound(self) -> float:
        """Return an upper bound on the expected regret over all rounds."""
        return self.learner.regret_bound()

    def _by_group(self, value: Any) -> Any:
        return np.asarray(value)

    def __repr__(self) -> str:
        rounds = f"{self.steps} rounds of {self.learner.horizon}"
        table, kind = self.learner.public.table, self.learner.learner
        return f"<OnlineStream {self.number} of {table!r}: {kind}, {rounds}>"


def online_learner(session: SessionBase, loss: Any, terms: OnlineTerms) -> OnlineLearner:
    """Return the priced learner of a loss. Nothing is read or charged."""
    if terms.epsilon is None and terms.rho is None:
        raise InvalidInput("say what the learner may cost in all: epsilon=1.")
    _check_price_and_participations(session, terms)
    options = chosen(terms)
    options.pop("number", None)
    if terms.delta is None and terms.rho is None:
        options["delta"] = session._delta(terms.epsilon, session.curator.policy)
    return learner(session.public, loss, **options)


def _check_price_and_participations(session: SessionBase, terms: OnlineTerms | StreamTerms) -> None:
    """Refuse a price out of range, and a table of people without `participations`."""
    if terms.epsilon is not None:
        _require.price(epsilon=terms.epsilon)
    if session.public.unit.column is not None and terms.participations is None:
        raise _participations(session.public)


def _participations(public: Public) -> InvalidInput:
    """Return the error for a table of people without `participations`."""
    return InvalidInput(
        f"one person (column {public.unit.column!r}) may have rows in several ticks. Say in how many they "
        "may count, participations=..."
    )


def find_stream(session: SessionBase, number: int | None = None) -> Stream:
    """Continue a stream of this ledger: the one whose charge has this number, or else the newest that the
    caller has started (for the steward, the newest of all)."""
    tags = {tag_of(ContinualCounter), tag_of(OnlineLearner)}
    found, described = number, None
    if number is None:
        for entry in session.ledger.entries(kind=SPENDING):
            own = session.analyst in (STEWARD, entry.body.get("analyst"))
            if own and (entry.body.get("mechanism") or {}).get("type") in tags:
                found, described = entry.seq, entry.body["mechanism"]
    else:
        # `resume` refuses the stream of another analyst
        described = session.curator.described(number)
    if found is None or (described or {}).get("type") not in tags:
        raise InvalidInput(
            f"there is no stream{'' if number is None else f' {number}'} in {session.ledger.path}. Start one "
            "with session.stream(...), or discreet stream start."
        )
    mechanism = as_of(from_json(described), session.public)
    return kind_of(mechanism).resume(session, mechanism, found)


def kind_of(mechanism: Any) -> type[Stream]:
    """Return the class of the stream of a mechanism."""
    return OnlineStream if isinstance(mechanism, OnlineLearner) else Stream


def stream_counter(session: SessionBase, text: str, terms: StreamTerms) -> ContinualCounter:
    """Return the priced counter of a SQL text. Nothing is read or charged. Options that are None get the
    defaults of `streaming.counter`.
    """
    public, clock, delta = session.public, terms.clock, terms.delta
    if terms.epsilon is None and terms.rho is None:
        raise InvalidInput("say what the stream may cost in all: epsilon=1.")
    _check_price_and_participations(session, terms)
    statistic, grouped_clock = stream_statistic(text, public, rows=terms.rows, groups=terms.groups)
    if clock is not None and grouped_clock not in (None, clock):
        raise InvalidInput(f"GROUP BY {grouped_clock} and clock={clock!r} are two clocks. Give one of them.")
    if delta is None:
        delta = 0.0 if terms.rho is not None else session._delta(terms.epsilon, session.curator.policy)
    options = chosen(replace(terms, number=None, rows=None, groups=None))
    return counter(
        public, statistic, **{"participations": 1, **options, "delta": delta, "clock": clock or grouped_clock}
    )
