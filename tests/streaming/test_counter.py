"""Continual counters through the curator: ticks, units across feeds, blocks, windows, and processes that die."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

import discreet as dp
from discreet import Halted, InvalidInput, Public, Unsupported
from discreet._errors import ReleaseFailed
from discreet._public import REPLACE, Unit
from discreet.curator import Budget, Curator, Policy
from discreet.curator.values import decode
from discreet.mechanisms import Count, CountNonNull, Histogram, Stack, Sum
from discreet.mechanisms.matrix import Toeplitz
from discreet.query import SqlStatistic
from discreet.sampling import SeededEntropy
from discreet.session.streams import find_stream
from discreet.streaming import (
    Advance,
    ContinualCounter,
    Latest,
    SquaredDistance,
    counter,
    named,
    stream_statistics,
)
from discreet.tables import Database, Memory

from .. import warm

PUBLIC = Public(schema={"age": dp.Bounds(0, 100)}, table="visits")
BY_UNIT = Public(schema={"age": dp.Bounds(0, 100)}, table="visits", unit=Unit("who"))


class Shelf(dict[str, bytes]):
    """A drawer in memory."""

    def put(self, name: str, data: bytes) -> None:
        self[name] = data

    def get(self, name: str) -> bytes:  # type: ignore[override]
        return self[name]


def ages(n: int, public: Public = PUBLIC) -> Memory:
    return Memory({"age": np.arange(n) % 90}, public)


def run(mechanism: ContinualCounter, counts: list[int], seed: int = 1) -> list[float]:
    entropy = SeededEntropy(seed)
    state = mechanism.start(ages(1), entropy=entropy)
    values = []
    for n in counts:
        state, released = mechanism.feed(state, ages(n), entropy=entropy)
        values.append(float(released.value))
    return values


@pytest.mark.parametrize("strategy", ["tree", "honaker", "blt"])
@pytest.mark.parametrize("options", [{"horizon": 40}, {"restart": 10}])
def test_errors_have_the_predicted_deviation(strategy: str, options: dict[str, Any]) -> None:
    mechanism = counter(PUBLIC, Count(), rho=0.5, strategy=strategy, **options)
    counts = [3, 0, 8, 1] * 10
    block = options.get("restart", 40)
    truth = [sum(counts[t // block * block : t + 1]) for t in range(40)]
    deviations = np.array([mechanism.deviation(t) for t in range(1, 41)])
    z = np.concatenate([(np.array(run(mechanism, counts, s)) - truth) / deviations for s in range(12)])
    # 480 correlated draws: at least 12 independent ones, whose mean square is within a factor of 4 of 1
    assert 0.25 < float(np.mean(z**2)) < 3


def test_nodes_that_end_with_the_same_tick_have_noise_of_their_own() -> None:
    """The second step of two: its leaf and the node of both. Honaker's average of them, with the first leaf, has
    2/3 of a node's variance; with one draw for both it would be 10/9, five thirds of what is said. A false alarm
    has probability 1e-9, the mutant is missed with one below 1e-4."""
    mechanism, entropy, runs = (
        counter(PUBLIC, Count(), rho=0.5, strategy="honaker", horizon=2),
        SeededEntropy(5),
        800,
    )
    nobody, squares = ages(0), 0.0
    for _ in range(runs):
        state = mechanism.start(nobody, entropy=entropy)
        for _ in range(2):
            state, released = mechanism.feed(state, nobody, entropy=entropy)
        squares += (float(released.value) / mechanism.deviation(2)) ** 2
    assert stats.chi2.ppf(5e-10, runs) < squares < stats.chi2.isf(5e-10, runs)


def test_a_stream_without_end_goes_on_in_doubled_blocks_for_one_price() -> None:
    mechanism = counter(PUBLIC, Count(), epsilon=2)
    assert mechanism.event == dp.accounting.PureDP(epsilon=Fraction(2))
    values = run(mechanism, [5] * 70)
    errors = [abs(v - 5 * (t + 1)) / mechanism.error(1 - 1e-9, t + 1) for t, v in enumerate(values)]
    assert max(errors) < 1
    assert mechanism.error(0.95, 1000) < 40 * mechanism.error(0.95, 1)
    with pytest.raises(Unsupported, match="horizon"):
        counter(BY_UNIT, SqlStatistic(sql="SELECT COUNT(*) FROM visits", rows=1), epsilon=1)
    with pytest.raises(Unsupported, match="honaker"):
        counter(PUBLIC, Count(), epsilon=1, strategy="item")


def test_the_price_of_every_block_is_the_same_whatever_its_length() -> None:
    mechanism = counter(PUBLIC, Count(), epsilon=2)
    for length in (1, 2, 64, 1024):
        noise = mechanism.noise(length)
        assert noise.event.sensitivity / noise.event.scale == 2


def test_windows_and_decayed_sums_follow_the_last_ticks() -> None:
    counts = [100] * 20 + [0] * 20
    for strategy in ("square_root", "honaker", "blt"):
        window = counter(PUBLIC, Count(), rho=50, horizon=40, strategy=strategy, window=5)
        values = run(window, counts)
        assert abs(values[19] - 500) < window.error(1 - 1e-9, 20) < 40
        assert abs(values[39]) < window.error(1 - 1e-9, 40)
    faded = counter(PUBLIC, Count(), rho=50, horizon=40, strategy="square_root", decay=0.5)
    values = run(faded, counts)
    assert abs(values[19] - 200) < faded.error(1 - 1e-9, 20) < 30
    assert abs(values[39]) < faded.error(1 - 1e-9, 40)


def test_a_restart_begins_at_zero_and_needs_no_end() -> None:
    mechanism = counter(PUBLIC, Count(), epsilon=8, restart=4, strategy="tree")
    values = run(mechanism, [50] * 12)
    assert all(abs(v - 50 * (t % 4 + 1)) < mechanism.error(1 - 1e-9, t + 1) for t, v in enumerate(values))
    assert mechanism.event.sensitivity == 3


def test_vectors_and_sums_are_counted_in_their_own_unit() -> None:
    public = Public(schema={"ward": dp.Categories(["a", "b"]), "age": dp.Bounds(0, 100)})
    batch = Memory({"ward": ["a"] * 30 + ["b"] * 10, "age": [50.0] * 40}, public)
    for statistic, truth in ((Histogram(column="ward"), [30, 10]), (Sum("age"), 2000)):
        mechanism = counter(public, statistic, rho=5, horizon=8, strategy="blt")
        entropy = SeededEntropy(3)
        state = mechanism.start(batch, entropy=entropy)
        state, released = mechanism.feed(state, batch, entropy=entropy)
        assert np.shape(released.value) == np.shape(truth)
        assert np.all(np.abs(released.value - truth) < mechanism.error(1 - 1e-9))
        assert np.all(
            np.asarray(mechanism.answer(state, batch, Latest(), entropy=entropy)[1].value) == released.value
        )


def people(*rows: tuple[Any, int]) -> Memory:
    return Memory({"who": [w for w, _ in rows], "age": [a for _, a in rows]}, BY_UNIT)


def exact_counts(mechanism: ContinualCounter, batches: list[Memory]) -> list[int]:
    """What would be measured, without noise: no public call leads here."""
    shelf, entropy = Shelf(), SeededEntropy(1)
    state = mechanism.start(batches[0], entropy=entropy, drawer=shelf)
    counts = []
    for step, batch in enumerate(batches, 1):
        counts.append(int(mechanism._exact(state, batch, step, shelf, mechanism.statistic)))
    return counts


ROWS = SqlStatistic(sql="SELECT COUNT(*) FROM visits", rows=3)


def test_a_unit_counts_on_no_more_ticks_than_it_may_whatever_it_does() -> None:
    mechanism = counter(BY_UNIT, ROWS, epsilon=1, horizon=9, participations=2, separation=3)
    loud = [("ann", 1)] * 1000
    batches = [
        people(*loud, ("bob", 2)),
        people(*loud),
        people(),
        people(*loud, (None, 3)),
        *[people(*loud)] * 4,
    ]
    assert exact_counts(mechanism, batches) == [3 + 1, 0, 0, 3, 0, 0, 0, 0]


def test_one_unit_never_changes_whether_another_counts() -> None:
    mechanism = counter(BY_UNIT, ROWS, epsilon=1, horizon=9, participations=1)
    rng = np.random.default_rng(4)
    days = [[(int(w), 1) for w in rng.integers(0, 9, 20)] for _ in range(4)]
    whole = exact_counts(mechanism, [people(*day) for day in days])
    for unit in range(4):
        less = exact_counts(mechanism, [people(*(r for r in day if r[0] != unit)) for day in days])
        change = np.array(whole) - less
        assert (change != 0).sum() <= 1
        assert 0 <= change.sum() <= 3


def test_ids_of_other_types_are_the_same_person() -> None:
    mechanism = counter(BY_UNIT, ROWS, epsilon=1, horizon=9, participations=1)
    same = [
        people((7, 1)),
        Memory({"who": ["7"], "age": [1]}, BY_UNIT),
        Memory({"who": [7.0], "age": [1]}, BY_UNIT),
    ]
    assert exact_counts(mechanism, same) == [1, 0, 0]
    from decimal import Decimal

    odd = [people((7, 1)), Memory({"who": [Decimal("7.00")], "age": [1]}, BY_UNIT)]
    odd += [Memory({"who": [float("nan"), float("inf")], "age": [1, 1]}, BY_UNIT)]
    assert exact_counts(mechanism, odd) == [1, 0, 0]
    # Decimals of another scale in a later batch, and floats, are equal numbers: one person.
    for first, later in ((Decimal("7.5"), Decimal("7.50")), (Decimal("1.5E-7"), 1.5e-07)):
        equal = [Memory({"who": [who], "age": [1]}, BY_UNIT) for who in (first, later)]
        assert exact_counts(mechanism, equal) == [1, 0]


def test_no_number_of_people_fails_a_tick_and_no_option_limits_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An analyst's `capacity` once failed a tick exactly if more people came, which counted them for next to
    nothing. The record of units has no limit: a long one has several blobs."""
    visits = session(tmp_path, unit="who")
    text = "SELECT COUNT(*) AS n FROM visits"
    terms: dict[str, Any] = {"epsilon": 1, "horizon": 9, "rows": 1, "participations": 1}
    for verb in (visits.stream, visits.online):
        with pytest.raises(dp.InvalidInput, match="no option 'capacity'"):
            verb(text, epsilon=1, horizon=9, participations=1, capacity=2)
    monkeypatch.setattr("discreet.streaming.stream_statistics.PIECE", 100)
    stream = visits.stream(text, **terms)
    for people_here in (3, 137, 5):
        stream.feed({"age": [3] * people_here, "who": list(range(people_here))})
    assert stream.steps == 3
    # 137 entries of 24 bytes, in blobs of 100
    assert {e.body["name"] for e in visits.ledger.entries(kind="blob")} == {
        "units", *(f"units {i}" for i in range(1, 33))
    }  # fmt: skip
    shelf, record = Shelf(), bytes(range(200))
    for length in (0, 99, 100, 101, 200):
        stream_statistics.write_record(shelf, record[:length])
        assert stream_statistics.read_record(shelf) == record[:length]


def test_more_participations_need_more_noise_and_separation_less() -> None:
    def spread(**options: Any) -> float:
        return counter(BY_UNIT, ROWS, rho=1, horizon=64, strategy="blt", **options).rmse

    assert spread(participations=1) < spread(participations=4, separation=8) < spread(participations=4)
    restarted = counter(BY_UNIT, ROWS, rho=1, horizon=64, restart=8, strategy="tree", participations=3)
    single = counter(BY_UNIT, ROWS, rho=1, horizon=64, restart=8, strategy="tree")
    assert (restarted.sensitivity.l2_squared or 0) >= 3 * (single.sensitivity.l2_squared or 0)


def session(tmp_path: Path, **options: Any) -> dp.Session:
    facts = {"table": "visits", "unit": dp.rows(), "schema": {"age": dp.Bounds(0, 100)}} | options
    return dp.open(
        {"age": [1], "who": [1]}, budget=dp.Budget(epsilon=9, delta=1e-6), ledger=tmp_path / "l", **facts
    )


def test_a_session_streams_feeds_and_finds_its_stream_again(tmp_path: Path) -> None:
    visits = session(tmp_path)
    stream = visits.stream("SELECT COUNT(*) AS n FROM visits", epsilon=2, horizon=365)
    with pytest.raises(InvalidInput, match="nothing was released"):
        stream.value  # noqa: B018
    stream.feed({"age": [3] * 500, "who": [1] * 500})
    stream.feed({"age": [], "who": []}, tick="empty")
    with pytest.raises(InvalidInput, match="fed to this before"):
        stream.feed({"age": [3], "who": [1]}, tick="empty")
    assert stream.steps == 2
    assert abs(stream.value - 500) < 3 * stream.error(0.999)
    again = visits.stream("SELECT COUNT(*) AS n FROM visits", epsilon=2, horizon=365, number=stream.number)
    assert again.history == stream.history
    assert visits.spent == pytest.approx(2)
    assert visits.curator.verify() == []


def test_a_user_level_stream_keeps_its_record_in_the_vault_across_sessions(tmp_path: Path) -> None:
    visits = session(tmp_path, unit="who")
    text = "SELECT COUNT(*) AS n FROM visits"
    with pytest.raises(InvalidInput, match="participations"):
        visits.stream(text, epsilon=1, horizon=9, rows=1)
    for none in (0, -1):
        with pytest.raises(InvalidInput, match="participations"):
            visits.stream(text, epsilon=1, horizon=9, rows=1, participations=none)
    assert visits.spent == 0
    terms: dict[str, Any] = {"epsilon": 8, "horizon": 9, "rows": 1, "participations": 1}
    stream = visits.stream(text, **terms)
    crowd = {"age": [3] * 400, "who": list(range(400))}
    stream.feed(crowd)
    reopened = session(tmp_path, unit="who").stream(text, **terms, number=stream.number)
    reopened.feed(crowd)
    assert abs(reopened.value - 400) < reopened.error(1 - 1e-9) < 200
    assert not any("size" in e.body for e in visits.ledger.entries(kind="blob"))
    assert visits.curator.verify() == []


def test_a_table_of_a_database_and_a_frame_are_batches_too(tmp_path: Path) -> None:
    import duckdb

    with duckdb.connect(str(tmp_path / "v.duckdb")) as connection:
        connection.execute("CREATE TABLE visits AS SELECT 5 AS age, i AS who FROM range(300) t(i)")
    visits = session(tmp_path)
    stream = visits.stream("SELECT COUNT(*) AS n FROM visits", epsilon=8, horizon=9)
    stream.feed(Database(str(tmp_path / "v.duckdb"), "visits"))
    import pandas as pd

    stream.feed(pd.DataFrame({"age": [4] * 100, "who": range(100)}))
    assert abs(stream.value - 400) < stream.error(1 - 1e-9) < 100


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"horizon": 0}, "horizon"),
        ({"horizon": 1 << 40, "strategy": "tree"}, "horizon"),
        ({"horizon": 9, "window": 2, "decay": 0.5, "strategy": "blt"}, "not both"),
        ({"horizon": 9, "decay": 1.5, "strategy": "blt"}, "decay"),
        ({"horizon": 9, "decay": 0.5, "strategy": "tree"}, "decayed"),
        ({"horizon": 9, "decay": 0.5, "strategy": "optimal"}, "decayed"),
        ({"horizon": 9, "participations": 2}, "participations"),
        ({"horizon": 9, "participations": 0}, "participations"),
        ({"horizon": 9, "separation": 0}, "separation"),
        ({"horizon": 9, "restart": 0}, "restart"),
        ({"horizon": 9, "window": 0}, "window"),
        ({"horizon": 9, "clock": "age", "restart": 200}, None),
        ({"horizon": 900, "clock": "age"}, "ticks"),
        ({"restart": 4, "window": 2, "strategy": "item"}, "window"),
        ({"horizon": 9, "strategy": "best"}, "strategy"),
        ({"horizon": 9, "strategy": Toeplitz(coefficients=(1.0, 1e99))}, "coefficients"),
        ({"horizon": 9, "strategy": Toeplitz(coefficients=(1e-300, 1.0))}, "first coefficient"),
        ({"horizon": 9, "surprise": 1}, "surprise"),
    ],
)
def test_what_has_no_theorem_is_refused_before_anything_is_read(
    options: dict[str, Any], message: str | None
) -> None:
    if message is None:
        assert counter(PUBLIC, Count(), epsilon=1, **options).restart == 200
        return
    with pytest.raises(dp.DiscreetError, match=message):
        counter(PUBLIC, Count(), epsilon=1, **options)


def test_relations_for_which_ticks_may_change_are_refused() -> None:
    sized = replace(PUBLIC, neighbors=REPLACE, size=5)
    assert counter(sized, Sum("age"), epsilon=1, horizon=4).event.neighbors == REPLACE
    with pytest.raises(InvalidInput, match="sensitivity is 0"):
        counter(sized, Count(), epsilon=1, horizon=4)
    with pytest.raises(Unsupported, match="replace"):
        counter(sized, Sum("age"), epsilon=1, horizon=4, clock="age")
    with pytest.raises(Unsupported, match="replace"):
        counter(replace(sized, unit=Unit("who")), ROWS, epsilon=1, horizon=4)


@pytest.mark.parametrize("neighbors", ["replace", "zero_out"])
def test_where_the_size_is_public_batches_have_sizes_of_their_own(tmp_path: Path, neighbors: str) -> None:
    """They were charged, and then refused every batch that had not as many rows as the table."""
    visits = dp.open({"age": [1, 2, 3]}, table="visits", schema={"age": dp.Bounds(0, 100)}, unit=dp.rows(),
                     neighbors=neighbors, size=3, ledger=str(tmp_path / "l"),
                     budget=dp.Budget(epsilon=2000, delta=1e-6), large_epsilon=True)  # fmt: skip
    terms: dict[str, Any] = {"epsilon": 900, "delta": 0, "horizon": 4}
    text = "SELECT SUM(age) AS n FROM visits"
    stream = visits.stream(text, **terms)
    learner = visits.online(SquaredDistance(columns=("age",)), clip=1, **terms)
    total = 0
    for n in (100, 0, 3):
        batch = {"age": [7] * n}
        stream.feed(batch)
        learner.feed(batch)
        total += 7 * n
        assert abs(stream.value - total) <= stream.error(1 - 1e-9) < 9
    again = find_stream(visits, stream.number)
    again.feed({"age": [1] * 5})
    assert again.steps == 4
    assert learner.steps == 3
    assert visits.spent == 1800


def fail_on_crowds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stand for a machine that fails after it has read the rows, here of 40 people."""

    def failing(self: Any, units: Any, step: int, **rule: Any) -> Any:
        assert len(units) < 40, len(units)
        return admit(self, units, step, **rule)

    admit = stream_statistics.UnitRecord.admit
    monkeypatch.setattr(stream_statistics.UnitRecord, "admit", failing)


def test_a_failing_batch_is_withheld_and_the_tick_can_be_fed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on_crowds(monkeypatch)
    visits = session(tmp_path, unit="who")
    text = "SELECT COUNT(*) AS n FROM visits"
    stream = visits.stream(text, epsilon=1, horizon=9, rows=1, participations=1)
    with pytest.raises(ReleaseFailed, match="the question failed") as failed:
        stream.feed({"age": [3] * 40, "who": list(range(40))})
    assert "40" not in str(failed.value)
    assert stream.steps == 0
    stream.feed({"age": [3] * 5, "who": list(range(5))})
    assert stream.steps == 1


def test_failures_have_a_public_end_that_does_not_grow_with_every_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fail_on_crowds(monkeypatch)
    for horizon, most in ((9, 10), (365, 13), (100_000, 100), (None, 100)):
        assert counter(PUBLIC, Count(), epsilon=1, horizon=horizon, strategy="tree").failure_limit == most
    visits = session(tmp_path, unit="who")
    text = "SELECT COUNT(*) AS n FROM visits"
    stream = visits.stream(text, epsilon=1, horizon=9, rows=1, participations=1)
    crowd = {"age": [3] * 40, "who": list(range(40))}
    for _ in range(stream.counter.failure_limit):
        with pytest.raises(ReleaseFailed, match="the question failed"):
            stream.feed(crowd)
    with pytest.raises(Halted, match="10 questions"):
        stream.feed({"age": [3], "who": [1]})
    assert stream.steps == 0


def test_after_the_horizon_nothing_is_released() -> None:
    mechanism = counter(PUBLIC, Count(), epsilon=1, horizon=2)
    entropy = SeededEntropy(1)
    state = mechanism.start(ages(1), entropy=entropy)
    for _ in range(2):
        state, _ = mechanism.feed(state, ages(1), entropy=entropy)
    with pytest.raises(Halted, match="2 steps"):
        mechanism.feed(state, ages(1), entropy=entropy)


def killed_at_random_points(tmp_path: Path, kills: int, seed: int = 7) -> None:
    """Feed in processes that are killed at random moments.

    What a process showed is in the ledger, each tick once: no release without its state, no noise twice."""
    path = tmp_path / "l"
    curator = Curator.create(path, ages(1), Policy(budget=Budget(epsilon=9)))
    mechanism = counter(PUBLIC, Count(), epsilon=4, horizon=4000, strategy="honaker")
    number = curator.start(mechanism).number
    shown = tmp_path / "shown"
    shown.touch()
    dice = random.Random(seed)
    for kill in range(kills):
        outside = kill % 4 == 3
        pid = os.fork()
        if pid == 0:
            if not outside:
                die_after(dice.randrange(1, 100_000))
            with shown.open("a") as file:
                while True:
                    feed_next(path, mechanism, number, file)
        dice = random.Random(dice.random())
        if outside:
            # Whatever it is at: within a transaction, within a write.
            time.sleep(dice.uniform(0.0, 0.3))
            os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    with shown.open("a") as file:
        feed_next(path, mechanism, number, file)
    states = [e.body for e in curator.ledger.entries(kind="state") if "value" in e.body]
    history = [float(decode(body["value"])) for body in states]
    lines = [line.split() for line in shown.read_text().splitlines() if line.count(" ") == 1]
    assert all(history[int(step) - 1] == float(value) for step, value in lines)
    assert len({step for step, _ in lines}) == len(lines)
    fed = [e.body["table"] for e in curator.ledger.entries(kind="fed")]
    assert fed == [f"tick {t}" for t in range(1, len(history) + 1)]
    assert len(history) > kills / 8
    assert abs(history[-1] - 10 * len(history)) < mechanism.error(1 - 1e-9, len(history))
    assert curator.verify() == []


def die_after(calls: int) -> None:
    """Kill this process at its n-th call or return of a function from now on."""
    left = [calls]

    def count(*_: Any) -> None:
        left[0] -= 1
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)


def feed_next(path: Path, mechanism: ContinualCounter, number: int, file: Any) -> None:
    ledger = Curator.open(path, ages(1)).ledger
    step = 1 + sum(1 for _ in ledger.entries(kind="fed"))
    source = ages(10, replace(PUBLIC, version=f"tick {step}"))
    try:
        released = Curator.open(path, source).feed(mechanism, number, batch=True)
    except InvalidInput:
        # the tick of a process that died, finished in its place
        assert ledger.last("fed", f"{number}:tick {step}") is not None
        return
    assert released is not None
    file.write(f"{step} {float(released.value)!r}\n")
    file.flush()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
def test_killed_at_random_points_no_release_is_without_its_state(tmp_path: Path) -> None:
    killed_at_random_points(tmp_path, 8)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_killed_at_200_random_points_no_release_is_without_its_state(tmp_path: Path, seed: int) -> None:
    """40 in each of five ledgers. The processes are forked by a small one: a fork of a test process that has run for
    long may need more memory than there is."""
    root = str(Path(__file__).parents[2])
    module = f"import sys; from pathlib import Path; sys.path.append({root!r}); import {__name__} as tests"
    done = warm.run(f"{module}; tests.killed_at_random_points(Path(), 40, {seed})", tmp_path)
    assert done.returncode == 0, done.stderr


def test_a_description_has_the_strategy_itself() -> None:
    described = dp._registry.to_json(counter(PUBLIC, Count(), rho=1, horizon=600))
    assert described["strategy"]["type"] == "matrix.Buffered"
    assert dp._registry.from_json(described).event == counter(PUBLIC, Count(), rho=1, horizon=600).event
    assert (
        ContinualCounter(public=PUBLIC, statistic=Count(), strategy=named("tree", 8), horizon=8, rho=1).rmse
        > 0
    )


@pytest.mark.parametrize("name", ["horizon", "restart"])
def test_more_steps_than_variances_can_be_computed_for_are_refused(name: str) -> None:
    """Whoever builds the counter from a description does not pass through `streaming.counter`."""
    with pytest.raises(InvalidInput, match=f"{name} must be at most 4,194,304"):
        ContinualCounter(
            public=Public(), statistic=Count(), strategy=named("honaker", 8), epsilon=1, **{name: 1 << 26}
        )


@pytest.mark.parametrize(
    ("options", "worst"),
    [
        ({"strategy": "honaker"}, 1022),
        ({"horizon": 100, "window": 30, "strategy": "honaker"}, 93),
        ({"horizon": 50, "window": 7, "strategy": "optimal"}, 8),
        ({"horizon": 100, "restart": 22, "strategy": "honaker"}, 15),
        ({"horizon": 100, "window": 7, "strategy": "item"}, 100),
    ],
)
def test_the_error_of_all_steps_is_that_of_the_worst(options: dict[str, Any], worst: int) -> None:
    mechanism = counter(PUBLIC, Count(), rho=1, **options)
    deviations = [mechanism.deviation(t) for t in range(1, options.get("horizon", 1) + 1)]
    assert max(deviations) <= mechanism.deviation(worst) * (1 + 1e-9)
    assert mechanism.error(0.95) == pytest.approx(mechanism.error(0.95, worst))


def test_a_decayed_sum_of_a_short_horizon_finds_a_strategy() -> None:
    """The first candidate, the optimal matrix, has no formula for it: that refused all others with it."""
    mechanism = counter(PUBLIC, Count(), rho=1, horizon=30, decay=0.9)
    assert mechanism.strategy == named("square_root", 30)


def test_a_gaussian_stream_without_end_fits_a_budget_of_what_it_was_asked_for() -> None:
    """Its blocks are charged as zCDP: calibrated by the noise of one block, 1 was charged as 1.078."""
    statistic = Stack(parts=(Histogram(column="age", edges=tuple(range(65))),) * 7)
    mechanism = counter(PUBLIC, statistic, epsilon=1, delta=1e-6)
    assert mechanism.rho is not None
    assert dp.accounting.epsilon(mechanism.event, delta=1e-6) <= 1


def test_the_newest_release_can_be_had_again_when_the_clock_has_run_down() -> None:
    public = Public(schema={"day": dp.Bounds(1, 2)}, table="visits")
    # the second column is declared nowhere: its values count all the same
    mechanism = counter(public, CountNonNull(column="age"), rho=1, clock="day")
    visits, entropy = Memory({"day": [1, 1, 2], "age": [5, None, 7]}, public), SeededEntropy(1)
    state = mechanism.start(visits, entropy=entropy)
    for _ in range(2):
        state, released = mechanism.answer(state, visits, Advance(), entropy=entropy)
    assert abs(float(released.value) - 2) < mechanism.error(1 - 1e-9)
    with pytest.raises(Halted, match="the horizon of 2 steps is reached"):
        mechanism.answer(state, visits, Advance(), entropy=entropy)
    assert mechanism.answer(state, visits, Latest(), entropy=entropy)[1].value == released.value


@pytest.mark.parametrize("step", [0, -1, 11])
def test_errors_of_steps_that_do_not_exist_are_refused(step: int) -> None:
    """Step 0 gave the error of the last step, step 11 an IndexError of numpy."""
    ten = counter(Public(table="visits"), Count(), horizon=10, epsilon=1, strategy="honaker")
    for of_step in (ten.deviation, lambda step: ten.error(0.95, step)):
        with pytest.raises(InvalidInput, match="step"):
            of_step(step)
