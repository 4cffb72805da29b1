"""Releases continual sums: a count, a sum or a histogram again at every tick, for one price.

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
((), 60)
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
from ..mechanisms.protocols import Integers, Release, Sensitivity, Statistic, check_source, release
from ..mechanisms.statistics import length_of, step_of
from ..sampling import Entropy
from ..tables import Source
from .counter_checks import check_arguments, check_shape, check_units
from .deviations import Noise, deviation_at, encoder_of, noise_of, worst_deviation
from .factors import StreamStrategy
from .records import UnitRecord, columns_of, read_record, rows_of, tick_value, write_record

Floats = NDArray[np.float64]
State = dict[str, Any]

# FAILURES ticks may fail, and one more for every TICKS_PER_FAILURE ticks of the horizon, but never more than
# MAX_FAILURES. One tick in a hundred is an assumption about machines over years, not measured. The number is
# limited because each failure may reveal a bit about the data, which the price does not cover.
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
    """Releases, after each batch, the sum of a statistic over all batches fed so far: continual counting.

    Each `feed` is one tick (also called a step), even with an empty batch. With a `clock`, a column whose
    ticks are declared, only the rows of the tick that is being closed count, so that each version of a
    growing table can be fed as it is; rows of ticks that are already closed are late, and do not count. A
    counted row stays counted when it is edited or deleted later, and a row that is fed again counts again (as
    a unit's next participation, where units are a column).

    `window` sums the last `window` ticks only, `decay` weights each tick by decay^age, `restart` begins again
    at zero after every `restart` ticks. A block is a run of ticks with noise of its own: the whole horizon,
    or the ticks between two restarts. Without a horizon the stream may go on for ever, in blocks of 1, 2, 4,
    ... ticks. At user level a unit counts in at most `participations` ticks, any two of them at least
    `separation` apart. Exactly one of `epsilon` (Laplace) and `rho` (discrete Gaussian) is the price; `asked`
    is the (epsilon, delta) that the caller gave to `counter`, which may have converted it to rho.

    Guarantee: `event`, for two histories that differ in all rows of one unit: one row in one batch where
               units are rows (event level); where they are a column (user level), at most `participations`
               steps, any two at least `separation` apart, which is enforced by a sealed record across all
               feeds. The noise of each measurement is drawn once.
    Proof:     every release is a function of the measurements C x + z, with x the exact integers of the
               steps, C an integer matrix fixed in advance (the strategy) and z independent integer noise; the
               change of C x is within `sensitivity` (`Encoder.sensitivity`, after rounding), for which the
               noise is priced. Data that comes later may depend on releases: measurement t moves by d_t,
               which earlier releases and data decide, and the sums of |d_t| and d_t² are within `sensitivity`
               in every case, so that the likelihood ratio (Laplace), or the Rényi filter (Feldman & Zrnic
               2021, arXiv:2008.11193, Theorem 3.1, Gaussian) gives the same price. Blocks (doubling, restart)
               have disjoint measurements: a unit with one participation is in one block.
    Assumes:   the statistic is a sum over rows of a batch, or at least moves by no more than its
               `sensitivity` in any one batch; the time when a batch arrives does not depend on the data.
    Versions:  the guarantee is for histories of the table, because the curator feeds each version or batch
               once (`protocols.Interactive`).
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
    asked: tuple[Real, float] | None = None

    def __post_init__(self) -> None:
        check_arguments(self)
        for name in ("epsilon", "rho"):
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _require.exact(getattr(self, name), name))
        if self.asked is not None:
            object.__setattr__(self, "asked", tuple(self.asked))
        check_shape(self)
        check_units(self)
        # Computed for its errors: a counter that cannot be priced is refused before anything is charged.
        self.noise()

    # -- price and error, known before anything is read

    @property
    def level(self) -> str:
        """Return whom the guarantee is about: "event" (a row) or "user" (all rows of a unit)."""
        return "event" if self.public.unit.column is None else "user"

    @property
    def batches_only(self) -> bool:
        """Return whether each fed batch must consist of new rows alone. That is so without a clock and
        without a record of units: nothing tells rows of an earlier tick apart, so that a version of a whole
        table would count all its earlier rows again.
        """
        return self.clock is None and self.level == "event"

    @property
    def blob_size(self) -> int | None:
        """Return 0, for blobs that grow (`protocols.Interactive`): the record of units is one. At event level
        there is none."""
        return None if self.level == "event" else 0

    @property
    def failures(self) -> int:
        """Return how many ticks may fail before the curator halts this counter for good: a public number.

        The price does not cover the information that a tick failed after its rows were read, so it must not
        be allowed to happen at every tick. A tick whose process was killed, and that is fed again under the
        same name, has not failed."""
        if self.horizon is None:
            return MAX_FAILURES
        return min(MAX_FAILURES, FAILURES + self.horizon // TICKS_PER_FAILURE)

    @property
    def sensitivity(self) -> Sensitivity:
        """Return how far one unit moves the measurements, after rounding: those of one block, or of all
        blocks where a unit may take part in several (`restart` with `participations` above 1)."""
        return self._block_sensitivity(self._block_length(1))

    def _block_sensitivity(self, steps: int) -> Sensitivity:
        """Return `sensitivity` for blocks of so many steps."""
        step_sensitivity = self.statistic.sensitivity(self.public)
        encoder = encoder_of(self.strategy, steps)
        if self.restart is None or self.participations == 1:
            return encoder.sensitivity(min(self.participations, steps), self.separation, step_sensitivity)
        # A unit may be in several blocks. best[k] is the largest squared l2 norm over all ways to divide k
        # participations among blocks; norms[k - 1] is the sensitivity of k participations in one block.
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
        """Return the standard deviation of the value released at `step` = 1, 2, ..., in the statistic's own
        unit; for windows of a strategy that is not Toeplitz, an upper bound of it."""
        self._check_step(step)
        return self._grid_spacing() * deviation_at(self._unversioned(), step)

    def _unversioned(self) -> ContinualCounter:
        """Return the counter without the version of its table, on which no deviation depends, so that the
        caches of `deviations` serve all versions."""
        return replace(self, public=replace(self.public, version=""))

    @property
    def rmse(self) -> float:
        """Return the root mean squared error over all steps of the horizon (or of a block, or of 1,024
        steps).

        `build.counter` chooses the strategy with the smallest one, and must choose the same when a stored
        stream is built again: neither the formula nor its numbers of steps may change.
        """
        steps = range(1, (self.horizon or self.restart or 1024) + 1)
        # Of a longer horizon, about 4,096 steps at equal distances are taken (chosen by hand).
        sampled = steps if len(steps) <= 4096 else steps[:: len(steps) // 4096]
        counter, spacing = self._unversioned(), self._grid_spacing()
        deviations = [spacing * deviation_at(counter, t) for t in sampled]
        # Squares of large deviations overflow, so all are scaled by a power of two, which rounds nothing.
        _, exponent = math.frexp(max(deviations))
        mean_square = sum(math.ldexp(d, -exponent) ** 2 for d in deviations) / len(deviations)
        return math.ldexp(math.sqrt(mean_square), exponent)

    def error(self, confidence: float = 0.95, step: int | None = None) -> float:
        """Return the half-width of the confidence interval of one released number: at `step`, or at the worst
        step of the horizon or of a block (of the first 1,024 steps where there is neither)."""
        _require.open_probability(confidence=confidence)
        if step is not None:
            self._check_step(step)
        largest = self.deviation(step) if step is not None else self._worst_deviation()
        # A sum combines the noises of its block and of all before it; the first block's is the narrowest,
        # which needs the most standard deviations.
        return self.noise().combined_width(confidence) * largest

    def _worst_deviation(self) -> float:
        """Return `worst_deviation` in the statistic's own unit."""
        return self._grid_spacing() * worst_deviation(self._unversioned())

    def _grid_spacing(self) -> float:
        """Return the grid spacing of the statistic, whose integers are multiples of it, in its own unit."""
        step_for = getattr(self.statistic, "step_for", None)
        return float(step_of(self.statistic) if step_for is None else step_for(self.public))

    def _check_step(self, step: int) -> None:
        """Refuse a step outside of 1, 2, ..., horizon."""
        _require.integer(step=step, at_least=1)
        if self.horizon is not None and step > self.horizon:
            raise _require.fail("step", step, f"at most the horizon of {self.horizon:,}")

    def _block_length(self, step: int) -> int:
        """Return the number of steps of the block that `step` is in."""
        return self._block_of(step)[1]

    def _block_of(self, step: int) -> tuple[int, int, int]:
        """Return the block of a step: the number of steps before it, its length, and the step's position in
        it, from 1."""
        if self.restart is not None:
            start = (step - 1) // self.restart * self.restart
            return start, self.restart, step - start
        if self.horizon is not None:
            return 0, self.horizon, step
        # Doubling: the blocks of 1, 2, 4, ... steps begin after 0, 1, 3, ... steps.
        length = 1 << (step.bit_length() - 1)
        return length - 1, length, step - length + 1

    # -- running

    def start(self, source: Source, *, entropy: Entropy, drawer: Any = None) -> State:
        """Start the counter: return the state before the first tick. Nothing of the source counts yet: the
        first tick is the first `feed` or `Advance`.

        `drawer` is where the curator's vault, its encrypted store, keeps the record of units; it is needed at
        user level only. In the state, whose keys are stored and must not change, `step` is the number of
        closed ticks, `key` the secret key of the record's hashes, `block` the encoder's state, `sum` (absent
        before the first tick) the noisy sum of the block so far, `carry` that of all earlier blocks, `tail`
        what a window or a decayed sum needs of the past, and `value` the newest release.
        """
        check_source(self.public, source)
        key = entropy.integer(128).to_bytes(16, "little").hex()
        if drawer is not None:
            write_record(drawer, b"")
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
        """Count, add noise, and release the sum so far.

        `statistic` replaces the counter's own for this tick. Its sensitivity must be the same, and earlier
        releases may have chosen it (a gradient at the newest decision).
        """
        self._check_end(state)
        step = state["step"] + 1
        tick_statistic = self.statistic if statistic is None else statistic
        exact = np.atleast_1d(np.asarray(self._exact(state, source, step, drawer, tick_statistic))).ravel()
        value, after = self._advance(state, exact, step, entropy)
        shown = value.reshape(()) if length_of(self.statistic, self.public) is None else value
        return after, self._make_release(shown, step, entropy)

    def _exact(self, state: State, source: Source, step: int, drawer: Any, statistic: Statistic) -> Integers:
        """Return the statistic of the rows that count, an exact integer vector."""
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
                "at user level the record of units needs a drawer of the curator's vault. Nothing was read "
                "or released. Start the counter with session.start or session.stream."
            )
        record = UnitRecord(read_record(drawer), bytes.fromhex(state["key"]))

        def allowed(units: Any) -> Integers:
            return record.admit(units, step, times=self.participations, separation=self.separation)

        rows = rows_of(source, columns, clock=self.clock, tick=tick, allowed=allowed)
        write_record(drawer, record.dump())
        return statistic(rows)

    def _advance(self, state: State, exact: Integers, step: int, entropy: Entropy) -> tuple[Floats, State]:
        """Measure, add noise and decode; return the value in the statistic's own unit, and the next state.

        All measurements of a tick get their noise in one call: the order of draws is part of what seeded
        tests replay."""
        _, length, position = self._block_of(step)
        encoder = encoder_of(self.strategy, length)
        encoder_state, carry = state["block"], state["carry"]
        if position == 1:
            if encoder_state is not None and self.restart is None:
                carry = (np.array(carry) + np.array(state["sum"])).tolist()
            else:
                carry = [0.0] * len(exact)
            encoder_state = encoder.begin(len(exact))
        encoder_state, measurements = encoder.encode(encoder_state, exact, position)
        noisy = self.noise(length)(np.concatenate(measurements), entropy=entropy)
        encoder_state, total = encoder.decode(encoder_state, np.split(noisy, len(measurements)), position)
        value, tail = self._apply_window(state, np.array(carry) + total)
        value = value * self._grid_spacing()
        after = {"step": step, "key": state["key"], "block": encoder_state, "carry": carry}
        return value, {**after, "sum": total.tolist(), "tail": tail, "value": value.tolist()}

    def _apply_window(self, state: State, total: Floats) -> tuple[Floats, list[Any]]:
        """Return the sum, the sum of the window or the decayed sum, and the next `tail`: post-processing of
        noisy sums. For a window the tail is the last window + 1 sums, for a decay the last sum and the last
        decayed sum."""
        if self.window is not None:
            tail = [*(state["tail"] or [[0.0] * len(total)]), total.tolist()][-self.window - 1 :]
            return total - np.array(tail[0]), tail
        if self.decay is not None:
            previous, decayed = (np.array(vector) for vector in (state["tail"] or [[0.0] * len(total)] * 2))
            decayed = float(self.decay) * decayed + (total - previous)
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
