"""Answers: what is in them follows from released values and public parameters; they travel; their intervals
hold."""

from __future__ import annotations

from dataclasses import replace
from datetime import date

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import stats

import discreet as dp
from discreet import Bounds, Categories, InvalidInput, Public, Unit
from discreet._public import Dates, Text
from discreet.query import Answer, Query
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import connect, rand_hie

SOURCE = rand_hie()
SQL = (
    "SELECT health, COUNT(*) AS n, AVG(visits) AS v, MEDIAN(age) AS m FROM rand_hie GROUP BY health "
    "ORDER BY n DESC"
)
ANSWER = Query(sql=SQL, public=SOURCE.public, epsilon=2, rows=2, groups=2)(
    SOURCE, entropy=SeededEntropy(2)
).value


def test_an_answer_travels_as_text_and_back():
    assert Answer.from_json(ANSWER.to_json()) == ANSWER
    with pytest.raises(InvalidInput, match="not the description of an answer"):
        Answer.from_json('{"type": "public.Text"}')


def test_an_answer_becomes_a_frame_or_a_table():
    assert ANSWER.to_pandas()["n"].tolist() == ANSWER["n"]
    assert ANSWER.to_arrow().column_names == ["health", "n", "v", "m"]
    assert list(ANSWER.to_dict()) == list(ANSWER.columns)
    with pytest.raises(InvalidInput, match="no column 'z'"):
        ANSWER["z"]
    with pytest.raises(InvalidInput, match="4 rows"):
        _ = ANSWER.value


@pytest.mark.parametrize(
    "sql",
    [
        SQL,
        "SELECT APPROX_TOP_K(health, 2) AS t, MODE(sex) AS s, COUNT(*) AS n FROM rand_hie",
        "SELECT health, AVG(visits) AS v FROM rand_hie WHERE age > 60 GROUP BY health HAVING COUNT(*) > 1e9",
    ],
)
def test_arrow_polars_and_pandas_hold_what_was_released(sql):
    polars = pytest.importorskip("polars")
    answer = Query(sql=sql, public=SOURCE.public, epsilon=2, rows=2, groups=2)(
        SOURCE, entropy=SeededEntropy(3)
    ).value
    plain = {name: [list(v) if isinstance(v, tuple) else v for v in answer[name]] for name in answer.columns}
    assert answer.to_arrow().to_pydict() == plain
    frame = answer.to_polars(intervals=False)
    assert isinstance(frame, polars.DataFrame)
    assert frame.to_dict(as_series=False) == plain
    assert answer.to_pandas(intervals=False).shape == (len(answer), len(answer.columns))


def test_rows_are_walked_through_as_named_tuples():
    assert list(ANSWER) == list(ANSWER.rows)
    assert [row.n for row in ANSWER] == ANSWER["n"]
    assert {row.health: row.v for row in ANSWER} == dict(zip(ANSWER["health"], ANSWER["v"], strict=True))
    odd = replace(ANSWER, columns=("health", "the number", "class", "_m"))
    assert [next(iter(odd))._fields, list(odd)] == [("health", "_1", "_2", "_3"), list(ANSWER.rows)]
    assert list(replace(ANSWER, rows=(), deviations=())) == []


def test_frames_have_the_ends_of_the_intervals_at_the_confidence_of_the_printed_answer():
    pytest.importorskip("polars")
    names = ["health", "n", "n_low", "n_high", "v", "v_low", "v_high", "m"]
    for intervals, confidence in ((True, 0.95), (0.5, 0.5)):
        ends = ANSWER.interval(confidence)
        pandas, polars = ANSWER.to_pandas(intervals=intervals), ANSWER.to_polars(intervals=intervals)
        assert list(pandas.columns) == polars.columns == names
        for column in ("n", "v"):
            for frame in (pandas, polars):
                both = zip(frame[f"{column}_low"], frame[f"{column}_high"], strict=True)
                assert list(both) == ends[column]
    assert ANSWER.to_pandas().equals(ANSWER.to_pandas(intervals=0.95))
    assert list(ANSWER.to_pandas(intervals=False).columns) == list(ANSWER.columns)
    assert ANSWER.to_polars(intervals=False).columns == list(ANSWER.columns)
    for wrong in (0, 1.0, 95, None, "yes"):
        with pytest.raises(InvalidInput, match="intervals"):
            ANSWER.to_pandas(intervals=wrong)


def test_an_end_named_like_a_column_gets_underscores_and_the_column_keeps_its_name():
    pytest.importorskip("polars")
    sql = 'SELECT COUNT(*) AS n, COUNT(age) AS n_low, COUNT(sex) AS "n_low_" FROM rand_hie'
    answer = Query(sql=sql, public=SOURCE.public, epsilon=2, rows=2)(SOURCE, entropy=SeededEntropy(4)).value
    pandas, polars = answer.to_pandas(), answer.to_polars()
    assert list(pandas.columns) == polars.columns
    assert list(pandas.columns)[:3] == ["n", "n_low__", "n_high"]
    assert len(set(pandas.columns)) == 9
    for frame in (pandas, polars):
        assert [list(frame[name]) for name in answer.columns] == [answer[name] for name in answer.columns]
        assert (frame["n_low__"][0], frame["n_high"][0]) == answer.interval()["n"][0]


def test_counts_are_integers_in_frames_also_with_missing_values_and_without_rows():
    pytest.importorskip("polars")
    sql = "SELECT health, NULLIF(COUNT(*), 3) AS n, COUNT(*) / 2 AS h, AVG(visits) AS v FROM rand_hie GROUP BY health"
    answer = Query(sql=sql, public=SOURCE.public, epsilon=2, rows=2, groups=2)(
        SOURCE, entropy=SeededEntropy(5)
    ).value
    some = replace(answer, rows=tuple((row[0], None, *row[2:]) for row in answer.rows[:1]) + answer.rows[1:])
    empty = replace(ANSWER, rows=(), deviations=())
    for case, kind in ((ANSWER, "int64"), (answer, "int64"), (some, "Int64"), (empty, "int64")):
        frame = case.to_pandas()
        assert str(frame["n"].dtype) == kind
        assert str(case.to_polars()["n"].dtype) == "Int64"
        assert [None if n is pd.NA else n for n in frame["n"]] == case["n"] == case.to_polars()["n"].to_list()
    assert str(answer.to_pandas()["h"].dtype) == str(answer.to_pandas()["v"].dtype) == "float64"
    # by chance, averages may all be whole: they stay floats
    whole = replace(answer, rows=tuple((*row[:3], 2.0) for row in answer.rows))
    assert str(whole.to_pandas(intervals=False)["v"].dtype) == "float64"


def test_counts_of_a_workload_are_integers_in_frames_unless_they_have_fractions():
    people = dp.open(rand_hie(year=1), budget=dp.Budget(epsilon=2), ledger=":memory:")
    rollup = people.sql("SELECT health, COUNT(*) AS n FROM rand_hie GROUP BY ROLLUP(health)", epsilon=1)
    assert str(rollup.to_pandas()["n"].dtype) == "int64"
    assert rollup.to_pandas()["n"].tolist() == rollup["n"]
    half = replace(rollup, rows=tuple((key, n + 0.5) for key, n in rollup.rows))
    assert half.to_pandas()["n"].tolist() == half["n"]


def test_numbers_too_large_for_64_bits_travel_as_floats():
    huge = replace(ANSWER, rows=(("good", 1 << 80, 1.0, 2.0),), deviations=((None, 1.0, 1.0, None),))
    assert huge.to_arrow()["n"].to_pylist() == [float(1 << 80)]
    assert huge.to_pandas()["n"].tolist() == [1 << 80]
    assert Answer.from_json(huge.to_json()) == huge


def test_an_answer_shows_errors_price_and_plan():
    text = ANSWER.text()
    assert "±" in text
    assert "epsilon 2" in text
    assert any("4 groups" in line for line in ANSWER.plan)
    assert "more rows" in ANSWER.text(max_rows=2)
    bars = ANSWER.bars("v")
    assert bars["labels"] == [f"{h}, {m}" for h, m in zip(ANSWER["health"], ANSWER["m"], strict=True)]
    assert len(bars["errors"]) == 4


def test_counts_are_integers_and_chosen_values_have_no_deviation():
    assert all(isinstance(n, int) for n in ANSWER["n"])
    assert [d[3] for d in ANSWER.deviations] == [None] * 4
    assert [d[0] for d in ANSWER.deviations] == [None] * 4
    assert "m" not in ANSWER.interval()


def coverage(sql, public, source, column, truth, runs, confidence):
    query = Query(sql=sql, public=public, epsilon=1)
    entropy = SeededEntropy(77)
    hits = 0
    # the engine says the same each time: only noise is drawn anew
    exact = query._measure(source, 1)
    for _ in range(runs):
        ((low, high),) = query._noisy(exact, entropy).interval(confidence)[column]
        hits += low <= truth <= high
    return hits


@pytest.mark.parametrize(
    ("expression", "column"),
    [
        ("COUNT(*)", "c"),
        pytest.param("SUM(visits)", "c", marks=pytest.mark.slow),
        # intervals of averages: see also the next test
        pytest.param("AVG(visits)", "c", marks=pytest.mark.slow),
        ("SUM(visits) / COUNT(*) * 2", "c"),
    ],
)
def test_intervals_cover_as_often_as_they_say(expression, column):
    """Exact for counts and sums; for derived numbers within two points. Binomial bounds at 1e-9."""
    source = rand_hie(year=1)
    sql = f"SELECT {expression} AS c FROM rand_hie"
    truth = Query(sql=sql, public=source.public, epsilon=1)._without_noise(source, 1)[0][0]
    runs = 300
    hits = coverage(sql, source.public, source, column, truth, runs, 0.9)
    assert stats.binom.ppf(1e-9, runs, 0.87) <= hits
    assert hits <= stats.binom.isf(1e-9, runs, 0.96)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.999])
def test_the_interval_of_a_count_is_that_of_its_noise(confidence):
    """Exactly: one that holds two times in a hundred less often than it says passes for honest in simulations."""
    public = Public(schema={"x": Bounds(-3, 7)}, table="t")
    source = connect({"x": [1.0] * 50}, public, threads=1)
    query = Query(sql="SELECT COUNT(*) AS n, SUM(x) AS s FROM t", public=public, epsilon=0.02)
    answer = query(source, entropy=SeededEntropy(3)).value
    count, total = query.question.noises
    for column, noise, step in (("n", count, 1), ("s", total, query.question.form.measures[1].resolution)):
        ((low, high),) = answer.interval(confidence)[column]
        assert high - low == pytest.approx(2 * noise.error(confidence) * float(step), rel=1e-12)
        assert noise.error(confidence) > noise.error(confidence / 1.02)


@pytest.mark.parametrize("people", [1, 3, 40])
@pytest.mark.parametrize("noise", ["laplace", "gaussian"])
def test_intervals_of_averages_hold_at_every_size(people, noise):
    """Also where the count is all noise, and a normal approximation means nothing. Binomial bound at 1e-9."""
    public = Public(schema={"x": Bounds(-3, 7)}, table="t")
    values = [7.0] * (people // 2) + [1.5] * (people - people // 2)
    source = connect({"x": values}, public, threads=1)
    query = Query(sql="SELECT AVG(x) AS a FROM t", public=public, epsilon=0.5, delta=1e-5, noise=noise)
    truth, runs, misses, shown = sum(values) / people, 120, 0, 0
    exact, entropy = query._measure(source, 1), SeededEntropy(5)
    for _ in range(runs):
        answer = query._noisy(exact, entropy)
        (interval,) = answer.interval(0.8).get("a", (None,))
        shown += interval is not None
        misses += interval is not None and not interval[0] <= truth <= interval[1]
        assert interval is None or -3 <= interval[0] <= answer["a"][0] <= interval[1] <= 7
    assert misses <= stats.binom.isf(1e-9, runs, 0.2)
    assert shown


def test_the_interval_of_an_average_is_made_of_both_errors():
    (mean,) = (m for m in ANSWER.means if m is not None)
    low, high = mean.interval(0, 0.9)
    count, total = mean.counts[0], mean.sums[0]
    around, beside = mean.noise_of_count.error(0.95), mean.noise_of_sum.error(0.95)
    corners = [
        (t * mean.step / n + mean.shift)
        for t in (total - beside, total + beside)
        for n in (count - around, count + around)
    ]
    assert low == pytest.approx(max(mean.low, float(min(corners))))
    assert high == pytest.approx(min(mean.high, float(max(corners))))


def test_nothing_in_an_answer_depends_on_the_data_but_its_released_values():
    """The same draws on a table with other values: deviations of counts and the plan stay the same."""
    query = Query(sql="SELECT COUNT(*) AS n, SUM(visits) AS s FROM rand_hie", public=SOURCE.public, epsilon=1)
    from discreet.tables import Memory

    other = Memory(SOURCE._table.slice(0, 50), SOURCE.public)
    a, b = (query(s, entropy=SeededEntropy(1)).value for s in (SOURCE, other))
    assert a.deviations == b.deviations
    assert a.plan == b.plan
    assert a.noises == b.noises
    assert a.rows != b.rows


PLACES = Public(
    schema={
        "town": Text(),
        "x": Bounds(0, 10),
        "day": Dates("2020-01-15", "2020-04-02"),
        "k": Categories(["a", "b"]),
    },
    unit=Unit("id", rows=1, groups=1),
    table="places",
)


@pytest.fixture(scope="module")
def places():
    rows = [
        (i, "big" if i < 900 else f"small {i}", 1.0, date(2020, 1 + i % 4, 20 if i % 4 < 3 else 1), "a")
        for i in range(1000)
    ]
    columns = list(zip(*rows, strict=True))
    return connect(
        pa.table(dict(zip(("id", "town", "x", "day", "k"), map(list, columns), strict=True))), PLACES
    )


def test_small_groups_are_not_shown_and_the_rest_can_be_added_up(places):
    query = Query(
        sql="SELECT town, COUNT(*) AS n FROM places GROUP BY town", public=PLACES, epsilon=2, delta=1e-6
    )
    answer = query(places, entropy=SeededEntropy(1)).value
    assert answer["town"] == ["big"]
    assert abs(answer["n"][0] - 900) < 60
    with_rest = Query(
        sql="SELECT town, COUNT(*) AS n, SUM(x) AS s FROM places GROUP BY town",
        public=PLACES,
        epsilon=2,
        delta=1e-6,
        other=True,
    )
    answer = with_rest(places, entropy=SeededEntropy(1)).value
    assert answer["town"] == ["big", "other"]
    assert abs(answer["n"][1] - 100) < 80
    words = " ".join(with_rest.words)
    assert "added up in one row" in words


def test_the_rest_is_priced_for_a_person_with_all_groups_in_it():
    sql = "SELECT town, COUNT(*) AS n FROM places GROUP BY town"
    apart = Query(sql=sql, public=PLACES, rows=2, groups=3, epsilon=2, delta=1e-6, noise="gaussian")
    together = Query(
        sql=sql, public=PLACES, rows=2, groups=3, epsilon=2, delta=1e-6, noise="gaussian", other=True
    )
    (s,), (t,) = apart.question.form.sensitivities, together.question.form.sensitivities
    assert (s.linf, s.l1, s.l2_squared) == (2, 6, 12)
    assert (t.linf, t.l1, t.l2_squared) == (6, 6, 36)
    assert together.question.noises[0].covers(t)


def test_dates_group_by_month(places):
    sql = (
        "SELECT DATE_TRUNC('month', day) AS month, COUNT(*) AS n FROM places WHERE day <> DATE "
        "'2020-01-16' GROUP BY 1"
    )
    rows = Query(sql=sql, public=PLACES, epsilon=1)._without_noise(places, 1)
    assert rows == [["2020-01-01", 250], ["2020-02-01", 250], ["2020-03-01", 250], ["2020-04-01", 250]]
    sql = (
        "SELECT EXTRACT(month FROM day) AS m, AVG(DATEDIFF('day', DATE '2020-01-01', day)) AS d FROM "
        "places GROUP BY m"
    )
    rows = Query(sql=sql, public=PLACES, epsilon=1)._without_noise(places, 1)
    assert [row[0] for row in rows] == list(range(1, 13))
    assert np.allclose([row[1] for row in rows[:4]], [19, 50, 79, 91])
    assert rows[5][1] is None


def test_absent_groups_appear_with_noise(places):
    answer = Query(sql="SELECT k, COUNT(*) AS n FROM places GROUP BY k", public=PLACES, epsilon=0.01)(
        places, entropy=Entropy()
    ).value
    assert answer["k"] == ["a", "b"]
    assert len(answer["n"]) == 2


def test_post_processing_is_free_and_right(places):
    base = Query(sql="SELECT k, COUNT(*) AS n FROM places GROUP BY k", public=PLACES, epsilon=1)
    more = Query(
        sql="SELECT k, COUNT(*) AS n, CASE WHEN COUNT(*) > 500 THEN 'many' ELSE 'few' END AS size, "
        "ROUND(SQRT(COUNT(*)), 1) AS root "
        "FROM places GROUP BY k HAVING COUNT(*) >= 0 AND k <> 'b' ORDER BY n, k LIMIT 2 OFFSET 0",
        public=PLACES,
        epsilon=1,
    )
    assert more.event == base.event
    assert more._without_noise(places, 1) == [["a", 1000, "many", 31.6]]


def test_averages_of_very_small_numbers_have_a_deviation_and_squares_are_refused():
    people = dp.open(
        {"x": [1e-301] * 500},
        table="people",
        schema={"x": dp.Bounds(0, 1e-300)},
        unit=dp.rows(),
        budget=dp.Budget(epsilon=8),
        ledger=":memory:",
    )
    answer = people.sql("SELECT AVG(x) AS x FROM people", epsilon=4)
    # the count of 500 moves little: the deviation is that of the sum over it, within a factor of ten
    assert 1e-304 < answer.deviations[0][0] < 1e-301
    with pytest.raises(dp.DiscreetError, match="Nothing was charged"):
        people.sql("SELECT STDDEV(x) AS x FROM people", epsilon=1)
    assert people.spent == pytest.approx(4)


@pytest.mark.parametrize("upper", [1e-300, 1e-310, 5e-324])
@pytest.mark.parametrize("output", ["AVG(x)", "2 * AVG(x)"])
def test_an_average_next_to_zero_is_never_shown_as_exact(upper, output):
    """Rounded to the grid, the values lay beyond their bounds, and the interval was cut down to a point; the
    deviation of 5e-324 / n underflowed."""
    public = dp.Public(schema={"x": dp.Bounds(0, upper)}, table="t")
    query = Query(sql=f"SELECT {output} AS v FROM t", public=public, epsilon=50)
    engine = connect({"x": np.full(10_000, upper)}, public)
    answer = query(engine, entropy=SeededEntropy(1)).value
    [low, high] = answer.interval(0.95)["v"][0]
    factor = 2 if "2" in output else 1
    assert low < factor * upper <= high
    assert answer.error(0.95)["v"][0] > 0
    assert answer.deviations[0][0] > 0


@pytest.mark.parametrize("text", ["not JSON", "[]", "[" * 100_000, None])
def test_a_text_that_is_no_answer_is_refused(text):
    with pytest.raises(InvalidInput, match="not the description of an answer"):
        Answer.from_json(text)


@pytest.mark.parametrize(
    ("low", "high", "value", "within"),
    [
        (48.85, 48.86, 48.853127, 1e-8),
        (1e6, 1e6 + 0.001, 1e6 + 0.00037, 1e-6),
        (1_700_000_000, 1_700_086_400, 1_700_012_345, 0),
        (-1_700_086_400.5, -1_700_000_000.5, -1_700_012_345.25, 0.1),
    ],
)
def test_a_narrow_range_far_from_zero_is_rounded_by_its_width(low, high, value, within):
    """Steps were a millionth of the larger end: the average of a day's seconds since 1970 was off by up to 17
    minutes, and the interval, of the noise alone, did not contain the truth."""
    public = Public(schema={"x": Bounds(low, high)}, table="t", size=1000)
    source = connect({"x": [value] * 1000}, public)
    query = Query(sql="SELECT AVG(x) AS a, SUM(x) AS s, STDDEV(x) AS d FROM t", public=public, epsilon=3)
    average, total, deviation = query._without_noise(source, 1)[0]
    assert abs(average - value) <= within
    assert abs(total - 1000 * value) <= 1000 * within + 1e-9 * abs(total)
    assert deviation <= 2 * within
    answer = query(source, entropy=SeededEntropy(5)).value
    lower, upper = answer.interval(0.999)["a"][0]
    assert lower - within <= value <= upper + within


@pytest.mark.parametrize(("low", "high", "value"), [(0.0, 1.0, 0.3), (-7.3, 100.0, 36.7)])
def test_rounding_to_the_grid_stays_below_the_noise_of_a_million_rows(low, high, value):
    """With a millionth of the range as step, the sum of a million values of 0.3 was off by 0.7 of the range,
    and an interval of the noise at epsilon 20 never contained the truth."""
    public = Public(schema={"x": Bounds(low, high)}, table="t")
    query = Query(sql="SELECT SUM(x) AS s, AVG(x) AS a FROM t", public=public, epsilon=20)
    total, average = query._without_noise(connect({"x": [value] * 1000}, public), 1)[0]
    assert 1000 * abs(total - 1000 * value) <= 0.01 * (high - low)
    assert 1_000_000 * abs(average - value) <= 0.01 * (high - low)
