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

Builds a continual counter: chooses, at a given price, the strategy with the smallest predicted error.

Checks the options of a continual counter when it is built, before anything is read or charged.

A combination without a proof of its sensitivity, or without a formula for its error, is refused: relaxing a
check here needs that proof or formula first.

Computes the standard deviation of a counter's release at each step, and the noise, encoders and variances
that it follows from; each result is cached.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import Halted, Unsupported
from .._public import ADD_REMOVE, PUBLIC, Public
from .._registry import described
from .._require import (
    EXACT,
    FLOAT,
    LISTED,
    OPEN_PROBABILITY,
    POSITIVE,
    PRICE,
    PROBABILITY,
    Real,
    at_least,
    at_most,
    instance_of,
)
from ..accounting import ZCDP, Event, PureDP
from ..mechanisms.matrix.triangular import BinaryTree, Dense
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.noise_scales import zcdp_rho
from ..mechanisms.protocols import (
    STATISTIC,
    Answered,
    Integers,
    Interactive,
    Release,
    Sensitivity,
    Statistic,
    check_source,
    release,
)
from ..mechanisms.statistics import length_of, step_of
from ..sampling import Entropy
from ..tables import Source
from . import factors
from .encoders import Encoder, encoder
from .factors import RunningSum, StreamStrategy, decoder
from .stream_statistics import (
    UnitRecord,
    columns_of,
    read_record,
    rows_of,
    tick_value,
    ticks_of,
    write_record,
)

# The largest number of steps of a horizon, or between restarts. The first call of `error` computes the
# variances of all steps: 3 s at this number (measured, tree strategy), and more than a minute at 16 times it.
MAX_STEPS = 1 << 22
Steps = Annotated[int, at_least(1), at_most(MAX_STEPS)]
Price = Annotated[Real, EXACT, POSITIVE]
_STRATEGY = instance_of(StreamStrategy, "one of streaming.named(...), such as 'honaker'")


def check_shape(counter: ContinualCounter) -> None:
    """Refuse horizons, clocks, restarts, windows and decays for which there is no proof of the sensitivity or
    no formula of the error."""
    if counter.clock is not None:
        ticks = ticks_of(counter.public, counter.clock)
        _require.that(
            counter.horizon is not None and counter.horizon <= ticks,
            f"the clock {counter.clock!r} has {ticks:,} declared ticks, so horizon is a number up to "
            f"{ticks:,}, got {counter.horizon}.",
        )
    # blocks of 1, 2, 4, ... ticks, see `ContinualCounter`
    doubling = counter.horizon is None and counter.restart is None
    if doubling and not isinstance(counter.strategy, BinaryTree):
        raise Unsupported(
            "without a horizon the blocks double, which takes a strategy for every length: 'tree' or "
            "'honaker'. Give horizon=, or restart=."
        )
    _require.that(counter.window is None or counter.decay is None, "give window or decay, not both.")
    if (counter.window or counter.decay) and (doubling or counter.restart):
        raise Unsupported("a sliding window or a decayed sum needs a horizon and no restart.")
    if counter.decay is not None and isinstance(counter.strategy, BinaryTree | RunningSum | Dense):
        raise Unsupported(
            "a decayed sum is read off single steps, which a tree over time does not estimate well, and its "
            "error is known for Toeplitz strategies only. Take strategy='square_root', 'blt' or 'item'."
        )
    if isinstance(counter.strategy, Dense) and len(counter.strategy.rows) < counter._block_length(1):
        raise _require.fail("strategy", f"{len(counter.strategy.rows)} rows", "as long as the horizon")


def check_units(counter: ContinualCounter) -> None:
    """Refuse units and neighbors for which no sensitivity is proved."""
    by_unit = counter.public.unit.column is not None
    _require.that(
        by_unit or counter.participations <= 1,
        f"where the unit is a row, it is in one batch only: participations={counter.participations} "
        "needs a unit with several rows. Open the table with unit='person_id', the column that tells "
        "people apart.",
    )
    if by_unit and counter.horizon is None:
        raise Unsupported(
            "where units are a column the horizon must be known: without an end a unit could take part "
            "without end. Give horizon=."
        )
    if (by_unit or counter.clock is not None) and counter.public.neighbors is not ADD_REMOVE:
        raise Unsupported(
            f"under {counter.public.neighbors} a unit (or a row, with a clock) may be replaced by one of "
            "other ticks, for which no sensitivity is proved here. Protect the table under add_remove."
        )
    if (by_unit or counter.clock is not None) and counter.public.tables:
        raise Unsupported(
            "rows are chosen before they are counted, which is not done across related tables. Stream one "
            "table."
        )


Floats = NDArray[np.float64]
Noise = IntegerLaplace | IntegerGaussian


@lru_cache(maxsize=256)
def noise_of(counter: ContinualCounter, steps: int) -> Noise:
    """Return the noise that a block of so many steps needs for the counter's epsilon or rho."""
    sensitivity, neighbors = counter._block_sensitivity(steps), counter.public.neighbors
    if counter.epsilon is not None:
        return IntegerLaplace.for_epsilon(counter.epsilon, sensitivity=sensitivity, neighbors=neighbors)
    assert counter.rho is not None
    return IntegerGaussian.for_rho(counter.rho, sensitivity=sensitivity, neighbors=neighbors)


@lru_cache(maxsize=64)
def encoder_of(strategy: StreamStrategy, steps: int) -> Encoder:
    """Return the encoder of a strategy for so many steps; the latest are cached."""
    return encoder(strategy, steps)


def worst_candidates(steps: int) -> list[int]:
    """Return a few steps from 1 to `steps`, one of which has the largest error.

    Proof: for Toeplitz strategies it is the last step. For trees each binary digit 1 of a step adds a noisy
           node, whose variance depends on the digit's position alone. A step below `steps` first differs
           from it in a digit that is 1 in `steps` and 0 in the step; all later digits 1 make its error
           largest.
    """
    below = ((steps >> k << k) - 1 for k in range(steps.bit_length()) if steps >> k & 1)
    return sorted({t for t in (*below, steps) if t})


@lru_cache(maxsize=8192)
def deviation_at(counter: ContinualCounter, step: int) -> float:
    """Return the standard deviation of the release at a step; its unit is the statistic's grid spacing."""
    if counter.window is not None or counter.decay is not None:
        return filtered_deviation(counter, step)
    start, length, position = counter._block_of(step)
    variance = variances_of(counter.strategy, length)[position - 1] * noise_variance(counter, length)
    if counter.restart is None and counter.horizon is None:
        # Without a horizon, blocks of 1, 2, 4, ... steps follow each other, and the release adds the noisy
        # sums of all earlier blocks.
        earlier = 1
        while earlier <= start:
            variance += variances_of(counter.strategy, earlier)[-1] * noise_variance(counter, earlier)
            earlier *= 2
    return math.sqrt(variance)


@lru_cache(maxsize=64)
def worst_deviation(counter: ContinualCounter) -> float:
    """Return the largest deviation over the steps of the horizon (with a `restart`, of the first block; with
    neither, of the first 1,024 steps); its unit is the statistic's grid spacing."""
    last = min((n for n in (counter.horizon, counter.restart) if n is not None), default=1024)
    if counter.horizon is None and counter.restart is None:
        return max(deviation_at(counter, step) for step in range(1, last + 1))
    window_of_tree = counter.window is not None and isinstance(counter.strategy, BinaryTree | RunningSum)
    if isinstance(counter.strategy, Dense) or window_of_tree:
        # Any step may be the worst. A window is the difference of two sums, so its deviation is at most the
        # sum of theirs (`filtered_deviation`).
        deviations = np.sqrt(variances_of(counter.strategy, counter._block_length(1))[:last])
        subtracted = np.zeros(last)
        if counter.window is not None:
            subtracted[counter.window :] = deviations[: max(0, last - counter.window)]
        largest = float((deviations + subtracted).max())
        return math.sqrt(noise_variance(counter, counter._block_length(1))) * largest
    return max(deviation_at(counter, step) for step in worst_candidates(last))


@lru_cache(maxsize=1024)
def noise_variance(counter: ContinualCounter, length: int) -> float:
    """Return the variance of the noise on one measurement of a block."""
    return counter.noise(length).mean_squared_error


def filtered_deviation(counter: ContinualCounter, step: int) -> float:
    """Return the standard deviation of a window or a decayed sum at a step.

    For strategies that are not Toeplitz it is an upper bound: a window is the difference of two running sums,
    and its deviation is at most the sum of their deviations.
    """
    length = counter._block_length(1)
    noise_deviation = math.sqrt(noise_variance(counter, length))
    if isinstance(counter.strategy, BinaryTree | RunningSum | Dense):
        # `check_shape` refuses decayed sums with these strategies.
        assert counter.window is not None
        variances = variances_of(counter.strategy, length)
        before = step - counter.window
        return noise_deviation * (
            math.sqrt(variances[step - 1]) + (math.sqrt(variances[before - 1]) if before > 0 else 0)
        )
    return noise_deviation * math.sqrt(
        filtered_variances(counter.strategy, length, counter.window, counter.decay)[step - 1]
    )


@lru_cache(maxsize=64)
def filtered_variances(strategy: Any, steps: int, window: int | None, decay: float | None) -> Floats:
    """Return the variances of a window or a decayed sum, for measurements with noise of variance 1."""
    age = np.arange(steps)
    workload: Floats = (
        (age < window).astype(float) if window is not None else np.power(float(decay or 0), age)
    )
    scale = encoder_of(strategy, steps).scale
    return np.asarray(np.cumsum(np.square(decoder(strategy, workload)))) / float(scale) ** 2


@lru_cache(maxsize=64)
def variances_of(strategy: Any, steps: int) -> Floats:
    """Return the variance of the sum after each step, for noise of variance 1 on each measurement."""
    return encoder_of(strategy, steps).variances()


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


def advances(question: Any, step: int, clock: str | None) -> bool:
    """Return whether a question closes a tick, or asks for the newest release; refuse one that cannot be
    answered after `step` ticks."""
    if isinstance(question, Latest):
        _require.that(step, "nothing was released yet: feed the first batch.")
        return False
    _require.must(isinstance(question, Advance), "question", type(question).__name__, "Advance() or Latest()")
    _require.that(
        clock is not None,
        "without a clock, a tick is the batch that is fed. Use feed, or build it with clock=, a column "
        "of days.",
    )
    return True


@described("streaming.ContinualCounter")
class ContinualCounter(Interactive):
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

    public: Annotated[Public, PUBLIC]
    statistic: Annotated[Statistic, STATISTIC]
    strategy: Annotated[StreamStrategy, _STRATEGY]
    horizon: Steps | None = None
    epsilon: Price | None = None
    rho: Price | None = None
    participations: Annotated[int, at_least(1)] = 1
    separation: Annotated[int, at_least(1)] = 1
    clock: str | None = None
    window: Annotated[int, at_least(1)] | None = None
    decay: Annotated[float, OPEN_PROBABILITY] | None = None
    restart: Steps | None = None
    asked: Annotated[tuple[Real, float], LISTED] | None = None

    def __post_init__(self) -> None:
        _require.that((self.epsilon is None) != (self.rho is None), "give either epsilon or rho.")
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
    def failure_limit(self) -> int:
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

        `counter` chooses the strategy with the smallest one, and must choose the same when a stored
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
        return float(step_of(self.statistic, self.public))

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
    ) -> Answered:
        """Close the next tick of the clock (`Advance`), or give the newest release again (`Latest`)."""
        check_source(self.public, source)
        if not advances(question, state["step"], self.clock):
            return state, self._latest(state, entropy)
        return self.tick(state, source, entropy=entropy, drawer=drawer)

    def feed(self, state: State, batch: Source, *, entropy: Entropy, drawer: Any = None) -> Answered:
        """Take one tick: count the batch, add noise, and release the sum so far."""
        check_source(self.public, batch)
        return self.tick(state, batch, entropy=entropy, drawer=drawer)

    def _check_end(self, state: State) -> None:
        if self.horizon is not None and state["step"] >= self.horizon:
            raise Halted(
                f"the horizon of {self.horizon:,} steps is reached. Start a new counter; its price is its "
                "own."
            )

    def tick(
        self,
        state: State,
        source: Source,
        *,
        entropy: Entropy,
        drawer: Any = None,
        statistic: Statistic | None = None,
    ) -> Answered:
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
        _require.that(
            drawer is not None,
            "at user level the record of units needs a drawer of the curator's vault. Start the counter "
            "with session.start or session.stream.",
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
        scalar = length_of(self.statistic, self.public) is None
        value = np.array(state["value"])
        return self._make_release(value.reshape(()) if scalar else value, state["step"], entropy)

    def _make_release(self, value: Floats, step: int, entropy: Entropy) -> Release:
        return release(
            value, event=self.event, entropy=entropy, error=lambda confidence: self.error(confidence, step)
        )


# The largest numbers of steps for which "auto" tries the optimal strategy (_SHORT) and the square root with
# all its coefficients (_FULL): the state of each has as many vectors as there are steps. For more than _FULL
# steps the error of BLT (the buffered linear Toeplitz strategy) is within 0.1 percent of the square root's.
_SHORT, _FULL = 64, 512


@_require.check_options
def counter(
    public: Annotated[Public, PUBLIC],
    statistic: Statistic,
    *,
    epsilon: Annotated[Real, PRICE] | None = None,
    delta: Annotated[float, PROBABILITY, FLOAT] = 0.0,
    rho: Annotated[Real, PRICE] | None = None,
    horizon: Steps | None = None,
    strategy: str | Any = "auto",
    clock: str | None = None,
    restart: Steps | None = None,
    decay: float | None = None,
    **options: Any,
) -> ContinualCounter:
    """Return the continual counter at a price. With epsilon alone the noise is Laplace, with rho it is
    Gaussian, and with epsilon and delta it is the one of the two that has the smaller error.

    `strategy`: "auto", one of `streaming.NAMES`, or a strategy object. The `options` are further fields of
    `ContinualCounter`; with a `clock` the horizon is by default the number of the clock's ticks.
    """
    _require.that((epsilon is None) != (rho is None), "give either epsilon (with or without delta) or rho.")
    if horizon is None and clock is not None:
        horizon = ticks_of(public, clock)
        at_most(MAX_STEPS)("horizon", horizon)
    # The length of a block, a run of ticks with noise of its own; None where blocks double without end.
    steps = restart or horizon
    names = _candidates(strategy, steps, rho is not None or delta > 0, decay is not None)
    facts = {
        "public": public, "statistic": statistic, "horizon": horizon, "clock": clock, "restart": restart,
        "decay": decay, **options,
    }  # fmt: skip
    choices = []
    refusal: Exception | None = None
    for name in names:
        candidate = factors.named(name, steps or 1) if isinstance(name, str) else name
        try:
            choices += _priced_choices(facts, candidate, epsilon, delta, rho)
        # `Unsupported`: there is no proof or no formula for this strategy with these options
        except NotImplementedError as unsupported:
            refusal = unsupported
    if not choices:
        assert refusal is not None
        raise refusal
    return min(choices, key=lambda choice: choice.rmse)


def _candidates(strategy: Any, steps: int | None, gaussian: bool, decayed: bool) -> list[Any]:
    """Return the strategies to compare: the given one, or those that "auto" chooses from. The error of
    decayed sums is known for Toeplitz strategies only, and the optimal strategy is not Toeplitz."""
    if strategy != "auto":
        return [strategy]
    if steps is None or not gaussian:
        return ["honaker"] if steps is None else ["honaker", "item"]
    best = "optimal" if steps <= _SHORT and not decayed else "square_root" if steps <= _FULL else "blt"
    return [best, "honaker", "item"]


def _priced_choices(
    facts: dict[str, Any], strategy: Any, epsilon: Real | None, delta: float, rho: Real | None
) -> list[ContinualCounter]:
    """Return the counters of one strategy at the price: with Laplace noise, with Gaussian noise, or both."""
    if rho is not None:
        return [ContinualCounter(**facts, strategy=strategy, rho=rho)]
    assert epsilon is not None
    requested_price = (epsilon, float(delta))
    choices = [ContinualCounter(**facts, strategy=strategy, epsilon=epsilon, asked=requested_price)]
    if delta:
        draft = choices[0]
        if draft.horizon is None and draft.restart is None:
            # Blocks double without end, so that no single noise describes the counter: it is charged as zCDP.
            gaussian_rho = Fraction(zcdp_rho(epsilon, delta))
        else:
            noise = IntegerGaussian.for_privacy(
                epsilon=epsilon, delta=delta, sensitivity=draft.sensitivity, neighbors=draft.public.neighbors
            )
            gaussian_rho = Fraction(int(draft.sensitivity.l2_squared or 0)) / (2 * noise.variance)
        choices.append(ContinualCounter(**facts, strategy=strategy, rho=gaussian_rho, asked=requested_price))
    return choices
