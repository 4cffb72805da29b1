"""Continual sums: a count, a sum or a histogram that is released again at every tick, for one price.

>>> from discreet import Public
>>> from discreet.streaming import counter
>>> from discreet.mechanisms import Count
>>> from discreet.sampling import SeededEntropy
>>> from discreet.tables import Memory
>>> public = Public(table="visits")
>>> daily = counter(public, Count(), horizon=365, epsilon=1, strategy="honaker")
>>> daily.strategy, daily.event.sensitivity
(BinaryTree(from_below=True), 9)
>>> batch = Memory({"age": [31, 45, 27]}, public)
>>> state = daily.start(batch, entropy=SeededEntropy(1))
>>> state, released = daily.feed(state, batch, entropy=SeededEntropy(2))
>>> released.value.shape, round(daily.error(0.95))
((), 115)
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import Halted, InvalidInput
from .._public import Public
from .._registry import described
from .._require import Real
from ..accounting import ZCDP, Event, PureDP
from ..mechanisms.matrix.mechanism import width
from ..mechanisms.protocols import Integers, Release, Sensitivity, Statistic, check_source, release
from ..mechanisms.statistics import length_of, step_of
from ..sampling import Entropy
from ..tables import Source
from .counter_checks import check_options, check_shape, check_units
from .deviations import Noise, deviation_at, encoder_of, noise_of, worst_deviation
from .factors import StreamStrategy
from .records import BLOB, UnitRecord, columns_of, record_size, rows_of, tick_value

Floats = NDArray[np.float64]
State = dict[str, Any]

# The default number of units that a record has room for: 24 MB, rewritten at every step.
CAPACITY = 1_000_000
# Ticks that may fail, whatever the horizon, and one more for each so many ticks of it, up to `MAX_FAILURES`:
# a tick in a hundred is what machines lose over years. More is no accident, and each may tell a bit.
FAILURES, TICKS_PER_FAILURE, MAX_FAILURES = 10, 100, 100


@described("streaming.Advance")
@dataclass(frozen=True, slots=True)
class Advance:
    """Asks to close the next tick of the clock, over the table as it is now."""


@described("streaming.Latest")
@dataclass(frozen=True, slots=True)
class Latest:
    """Asks for the newest release: nothing is read, no noise is drawn."""


@described("streaming.ContinualCounter")
@dataclass(frozen=True, slots=True, kw_only=True)
class ContinualCounter:
    """Releases the sum of a statistic over all batches fed so far, after each: continual counting.

    `feed` is one tick, whatever the batch holds, nothing included. With a `clock`, a column whose ticks are
    declared, only the rows of the tick that is closed now count, so that each version of a growing table can
    be fed as it is; late rows are those of closed ticks, and do not count. What was counted stays counted
    when its row is edited or deleted later, and a row that is fed again counts again (as a unit's next
    participation, where units are a column). `window` sums the last ticks only, `decay` weights them by
    decay^age, `restart` begins again at zero after so many. Without a horizon the stream may go on for ever,
    in blocks of doubled length. Exactly one of `epsilon` (Laplace) and `rho` (discrete Gaussian) is the
    price.

    Guarantee: the event, for two histories that differ in all rows of one unit: one row in one batch where
               units are rows (event level); where they are a column (user level), at most `participations`
               steps, any two at least `separation` apart, which is enforced by a sealed record across all
               feeds. The noise of a node, or of a row of C, is drawn once.
    Proof:     what is released are functions of C x + z with x the exact integers of the steps, C an integer
               matrix fixed in advance and z independent integer noise; the change of C x is within
               `sensitivity` (`Encoder.sensitivity`, after rounding), for which the noise is priced. Rows that
               come later may depend on releases: row t moves by d_t, which earlier releases and rows decide,
               and the sums of |d_t| and d_t² are within `sensitivity` in every case, so that the likelihood
               ratio (Laplace), or the Rényi filter (Feldman & Zrnic 2021, arXiv:2008.11193, Theorem 3.1,
               Gaussian) gives the same price. Blocks (doubling, restart) have disjoint rows: a unit with one
               participation is in one of them.
    Assumes:   the statistic is a sum over rows of a batch, or at least moves by no more than it says in any
               one batch; when a batch arrives, and the number of units that `capacity` has room for, do not
               depend on the data.
    Versions:  each version or batch is fed once.
    """

    public: Public
    statistic: Statistic
    strategy: StreamStrategy
    horizon: int | None = None
    epsilon: Real | None = None
    rho: Real | None = None
    participations: int = 1
    separation: int = 1
    clock: str | None = None
    window: int | None = None
    decay: float | None = None
    restart: int | None = None
    capacity: int = CAPACITY
    asked: tuple[Real, float] | None = None

    def __post_init__(self) -> None:
        check_options(self)
        for name in ("epsilon", "rho"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _require.exact(getattr(self, name), name))
        if self.asked is not None:
            object.__setattr__(self, "asked", tuple(self.asked))
        check_shape(self)
        check_units(self)
        # Refuses what cannot be priced, before anything is charged.
        self.noise()

    # -- price and error, known before anything is read

    @property
    def level(self) -> str:
        """Return whom the guarantee is about: "event" (a row) or "user" (all rows of a unit)."""
        return "event" if self.public.unit.column is None else "user"

    @property
    def batches_only(self) -> bool:
        """Return whether a tick is new rows alone: nothing tells rows of an earlier tick apart (no clock, no
        record of units), so that those of a version of a whole table would count again in each.
        """
        return self.clock is None and self.level == "event"

    @property
    def blob_size(self) -> int | None:
        """Return the public size of the sealed record of units; None at event level, where there is none."""
        return None if self.level == "event" else record_size(self.capacity)

    @property
    def failures(self) -> int:
        """Return how many ticks may fail before the curator halts this for good: a public number.

        That a tick failed after its rows were read is not covered by the price, so it may not happen at every
        tick. One whose process was killed and that is fed again under its name has not failed."""
        if self.horizon is None:
            return MAX_FAILURES
        return min(MAX_FAILURES, FAILURES + self.horizon // TICKS_PER_FAILURE)

    @property
    def sensitivity(self) -> Sensitivity:
        """Return how far one unit moves all measurements of a block, after rounding."""
        return self._block_sensitivity(self._block_length(1))

    def _block_sensitivity(self, steps: int) -> Sensitivity:
        step_sensitivity = self.statistic.sensitivity(self.public)
        encoder = encoder_of(self.strategy, steps)
        if self.restart is None or self.participations == 1:
            return encoder.sensitivity(min(self.participations, steps), self.separation, step_sensitivity)
        # A unit may be in several blocks: the worst way to divide its participations among them.
        norms = [
            encoder.sensitivity(min(k, steps), self.separation, step_sensitivity)
            for k in range(1, self.participations + 1)
        ]
        best = [0]
        for k in range(1, self.participations + 1):
            best.append(max(int(norms[j - 1].l2_squared or 0) + best[k - j] for j in range(1, k + 1)))
        last = norms[-1]
        return Sensitivity(
            linf=last.linf,
            l0=last.l0 * self.participations,
            l1=self.participations * int(norms[0].l1 or 0),
            l2_squared=best[-1],
        )

    def noise(self, steps: int | None = None) -> Noise:
        """Return the noise on every measurement of a block of so many steps."""
        return noise_of(self, self._block_length(1) if steps is None else steps)

    @property
    def event(self) -> Event:
        if self.horizon is not None or self.restart is not None:
            return self.noise().event
        neighbors = self.public.neighbors
        if self.epsilon is not None:
            return PureDP(epsilon=self.epsilon, neighbors=neighbors)
        assert self.rho is not None
        return ZCDP(rho=self.rho, neighbors=neighbors)

    def deviation(self, step: int) -> float:
        """Return the standard deviation of the value released at a step, in the statistic's own unit (of
        windows of a tree, a bound of it)."""
        return self._grid_step() * deviation_at(self._unversioned(), step)

    def _unversioned(self) -> ContinualCounter:
        """Return the counter without the version of its table, on which no deviation depends: what caches are
        asked with."""
        return replace(self, public=replace(self.public, version=""))

    @property
    def rmse(self) -> float:
        """Return the root mean squared error over all steps of the horizon (or of a block, or of 1,024
        steps).
        """
        steps = range(1, (self.horizon or self.restart or 1024) + 1)
        # of a longer horizon, a sample of about 4,096 steps at equal distances
        sampled = steps if len(steps) <= 4096 else steps[:: len(steps) // 4096]
        counter, unit = self._unversioned(), self._grid_step()
        deviations = [unit * deviation_at(counter, t) for t in sampled]
        # Squares of large deviations are not finite. Scaling by a power of two changes no digit: which
        # strategy is the best must not change under a stream that goes on.
        _, exponent = math.frexp(max(deviations))
        mean_square = sum(math.ldexp(d, -exponent) ** 2 for d in deviations) / len(deviations)
        return math.ldexp(math.sqrt(mean_square), exponent)

    def error(self, confidence: float = 0.95, step: int | None = None) -> float:
        """Return how far off a released value may be, by itself: at `step`, or at the worst step of the
        horizon (of the first 1,024 steps where there is none)."""
        _require.open_probability(confidence=confidence)
        noise = self.noise(self._block_length(step or 1))
        largest = self.deviation(step) if step is not None else self._worst_deviation()
        return width(noise, confidence) * largest

    def _worst_deviation(self) -> float:
        """Return the largest deviation of the horizon (or of a block, or of the first 1,024 steps)."""
        return self._grid_step() * worst_deviation(self._unversioned())

    def _grid_step(self) -> float:
        """Return the step of the grid that the statistic counts in, in its own unit."""
        step_for = getattr(self.statistic, "step_for", None)
        return float(step_of(self.statistic) if step_for is None else step_for(self.public))

    def _block_length(self, step: int) -> int:
        return self._block_of(step)[1]

    def _block_of(self, step: int) -> tuple[int, int, int]:
        """Return the block of a step: where it begins, its length, and the step's number in it, from 1."""
        if self.restart is not None:
            start = (step - 1) // self.restart * self.restart
            return start, self.restart, step - start
        if self.horizon is not None:
            return 0, self.horizon, step
        length = 1 << (step.bit_length() - 1)
        return length - 1, length, step - length + 1

    # -- running

    def start(self, source: Source, *, entropy: Entropy, drawer: Any = None) -> State:
        """Start the counter; nothing of the source counts yet: the first tick is the first `feed`, or
        `Advance`."""
        check_source(self.public, source)
        key = entropy.integer(128).to_bytes(16, "little").hex()
        if drawer is not None:
            drawer.put(BLOB, b"")
        return {"step": 0, "key": key, "block": None, "carry": None, "tail": [], "value": None}

    def answer(
        self, state: State, source: Source, question: Any, *, entropy: Entropy, drawer: Any = None
    ) -> tuple[State, Release]:
        """Close the next tick of the clock (`Advance`), or give the newest release again (`Latest`)."""
        check_source(self.public, source)
        if not isinstance(question, Advance | Latest):
            raise _require.fail("question", type(question).__name__, "Advance() or Latest()")
        if isinstance(question, Latest):
            return state, self._latest(state, entropy)
        if self.clock is None:
            raise InvalidInput(
                "this counter has no clock: a tick is the batch that it is fed with. Nothing was read or "
                "released. Use feed, or build it with clock=, a column of days."
            )
        return self.tick(state, source, entropy=entropy, drawer=drawer)

    def feed(
        self, state: State, batch: Source, *, entropy: Entropy, drawer: Any = None
    ) -> tuple[State, Release]:
        """Take one tick: count the batch, add noise, and release the sum so far."""
        check_source(self.public, batch)
        return self.tick(state, batch, entropy=entropy, drawer=drawer)

    def _check_end(self, state: State) -> None:
        if self.horizon is not None and state["step"] >= self.horizon:
            raise Halted(
                f"the horizon of {self.horizon:,} steps is reached. Nothing was read or released. Start a "
                "new counter; its price is its own."
            )

    def tick(
        self,
        state: State,
        source: Source,
        *,
        entropy: Entropy,
        drawer: Any = None,
        statistic: Statistic | None = None,
    ) -> tuple[State, Release]:
        """Count, add noise, and release the sum so far; with another `statistic` of the same sensitivity,
        which earlier releases may have chosen (a gradient at the decision so far)."""
        self._check_end(state)
        step = state["step"] + 1
        tick_statistic = self.statistic if statistic is None else statistic
        exact = np.atleast_1d(np.asarray(self._exact(state, source, step, drawer, tick_statistic))).ravel()
        value, after = self._advance(state, exact, step, entropy)
        shown = value.reshape(()) if length_of(self.statistic, self.public) is None else value
        return after, self._make_release(shown, step, entropy)

    def _exact(
        self, state: State, source: Source, step: int, drawer: Any, statistic: Statistic | None = None
    ) -> Integers:
        """Return the statistic of the rows that count, an exact integer vector."""
        statistic = self.statistic if statistic is None else statistic
        if self.clock is None and self.level == "event":
            return statistic(source)
        tick = None if self.clock is None else tick_value(self.public, self.clock, step)
        names = [name for name, _ in self.public.schema]
        unit = self.public.unit.column
        # A statistic may read a column that nobody declared (`CountNonNull`).
        columns = list(dict.fromkeys([*names, *columns_of(statistic), *([] if unit is None else [unit])]))
        if unit is None:
            return statistic(rows_of(source, columns, clock=self.clock, tick=tick))
        if drawer is None:
            raise InvalidInput(
                "at user level the record of units needs the curator's vault. Nothing was read or released. "
                "Start the counter with session.start or session.stream."
            )
        record = UnitRecord(drawer.get(BLOB), bytes.fromhex(state["key"]), self.capacity)

        def allowed(units: Any) -> Integers:
            return record.admit(units, step, times=self.participations, separation=self.separation)

        rows = rows_of(source, columns, clock=self.clock, tick=tick, allowed=allowed)
        drawer.put(BLOB, record.dump())
        return statistic(rows)

    def _advance(self, state: State, exact: Integers, step: int, entropy: Entropy) -> tuple[Floats, State]:
        """Measure, add noise, decode: the value in the statistic's own unit, and the next state."""
        _, length, position = self._block_of(step)
        encoder = encoder_of(self.strategy, length)
        block, carry = state["block"], state["carry"]
        if position == 1:
            if block is not None and self.restart is None:
                carry = (np.array(carry) + np.array(state["sum"])).tolist()
            else:
                carry = [0.0] * len(exact)
            block = encoder.begin(len(exact))
        block, rows = encoder.encode(block, exact, position)
        flat = self.noise(length)(np.concatenate(rows), entropy=entropy)
        block, total = encoder.decode(block, np.split(flat, len(rows)), position)
        value, tail = self._apply_window(state, np.array(carry) + total)
        value = value * self._grid_step()
        after = {"step": step, "key": state["key"], "block": block, "carry": carry, "sum": total.tolist()}
        return value, {**after, "tail": tail, "value": value.tolist()}

    def _apply_window(self, state: State, total: Floats) -> tuple[Floats, list[Any]]:
        """Return the sum, or that of the window, or the decayed one, from estimates of sums:
        post-processing."""
        if self.window is not None:
            tail = [*(state["tail"] or [[0.0] * len(total)]), total.tolist()][-self.window - 1 :]
            return total - np.array(tail[0]), tail
        if self.decay is not None:
            before, decayed = (np.array(vector) for vector in (state["tail"] or [[0.0] * len(total)] * 2))
            decayed = float(self.decay) * decayed + (total - before)
            return decayed, [total.tolist(), decayed.tolist()]
        return total, []

    def _latest(self, state: State, entropy: Entropy) -> Release:
        if state["value"] is None:
            raise InvalidInput("nothing was released yet: feed the first batch. Nothing was read.")
        scalar = length_of(self.statistic, self.public) is None
        value = np.array(state["value"])
        return self._make_release(value.reshape(()) if scalar else value, state["step"], entropy)

    def _make_release(self, value: Floats, step: int, entropy: Entropy) -> Release:
        return release(
            value, event=self.event, entropy=entropy, error=lambda confidence: self.error(confidence, step)
        )
