"""What outsiders broke in the packages on top of the session, each as it was found."""

import numpy as np
import pyarrow as pa
import pytest

import discreet as dp
from discreet import tables
from discreet.curator.live_mechanisms import _pad_state
from discreet.query import Query, QueryError

VISITS = {"ward": ["A", "B", "A", "B"]}


def visits(**budgets):
    return dp.open(
        VISITS,
        table="visits",
        schema={"ward": dp.Categories(["A", "B"])},
        unit=dp.rows(),
        budget=dp.Budget(epsilon=5, delta=1e-6),
        analysts={"ann": dp.Budget(epsilon=5), "bob": dp.Budget(epsilon=0.1)},
        ledger=":memory:",
        **budgets,
    )


@pytest.mark.parametrize(
    "ids",
    [
        lambda *days: pa.array(days, pa.int32()).view(pa.date32()),
        lambda *days: pa.array([d * 86_400 for d in days], pa.int64()).view(pa.timestamp("s")),
        lambda *days: pa.array([d * 86_400_000_000 for d in days], pa.int64()).view(pa.timestamp("us")),
    ],
)
def test_ids_that_are_days_beyond_the_calendar_are_not_one_person(ids):
    """Put at the end of the calendar they were: one person's row decided which row of another counts."""
    public = dp.Public(
        table="t", schema=(("g", dp.Categories(["a", "b"])),), unit=dp.Unit("who", rows=1, groups=1)
    )
    query = Query(sql="SELECT g, COUNT(*) AS n FROM t GROUP BY g", public=public, epsilon=1)
    both = tables.connect(pa.table({"who": ids(4_000_001, 4_000_002), "g": ["a", "b"]}), public)
    alone = tables.connect(pa.table({"who": ids(4_000_002), "g": ["b"]}), public)
    for key in range(1, 9):
        here, there = (query._without_noise(source, key) for source in (both, alone))
        moved = sum(abs(a[1] - b[1]) for a, b in zip(here, there, strict=True))
        assert moved <= 1


def test_an_analyst_does_not_go_on_with_what_another_has_paid_for():
    people = visits()
    ann, bob = people.as_analyst("ann"), people.as_analyst("bob")
    stream = ann.stream("SELECT COUNT(*) AS n FROM visits", epsilon=1, delta=0.0, horizon=4)
    stream.feed(VISITS)
    with pytest.raises(dp.InvalidInput, match="no mechanism that bob has started"):
        bob.stream("SELECT COUNT(*) AS n FROM visits", epsilon=1, delta=0.0, horizon=4, number=stream.number)
    watch = ann.watch(2, epsilon=0.5)
    with pytest.raises(dp.InvalidInput, match="no mechanism that bob has started"):
        bob.watch(2, epsilon=0.5, number=watch.number)
    assert ann.watch(2, epsilon=0.5, number=watch.number).number == watch.number
    assert bob.spent == 0


def test_a_stream_counts_nothing_distinct():
    for distinct in ("COUNT(DISTINCT ward)", "APPROX_COUNT_DISTINCT(ward)"):
        with pytest.raises(QueryError, match="counted twice"):
            visits().stream(f"SELECT {distinct} AS n FROM visits", epsilon=1, horizon=4)


def test_one_odd_day_does_not_stop_a_stream_with_a_clock(tmp_path):
    import duckdb

    with duckdb.connect(tmp_path / "x.db") as db:
        db.execute(
            "CREATE TABLE t AS SELECT * FROM (VALUES (DATE '2026-01-01', 'A'), (DATE 'infinity', 'A'), "
            "(DATE '12026-01-02', 'A'), (DATE '0044-03-15 (BC)', 'A')) v(day, w)"
        )
    people = dp.open(
        tables.Database(tmp_path / "x.db", "t"),
        table="t",
        schema={"day": dp.Dates("2026-01-01", "2026-01-03"), "w": dp.Categories(["A"])},
        unit=dp.rows(),
        budget=dp.Budget(epsilon=4, delta=1e-6),
        ledger=":memory:",
    )
    stream = people.stream("SELECT day, COUNT(*) AS n FROM t GROUP BY day", epsilon=1)
    assert np.isfinite(stream.feed().value).all()


@pytest.mark.parametrize("size", [3, 300, 3000])
def test_the_length_of_a_state_goes_with_its_structure_and_not_with_its_numbers(size):
    states = ({"secret": [value] * size, "steps": 7} for value in (0, -1, 10**6, 2**63, 10**30))
    assert len({len(_pad_state(state)) for state in states}) == 1


def test_a_labeller_goes_on_with_the_aggregator_that_was_paid_for():
    from sklearn.linear_model import LogisticRegression

    from discreet.learning import Examples
    from discreet.mechanisms.votes import SparseVotes

    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(60, 3)).astype("f4"), rng.integers(0, 2, 60)
    people = dp.open(
        Examples(x, y, dp.Public(table="x", size=60)),
        budget=dp.Budget(epsilon=3, delta=1e-5),
        ledger=":memory:",
    )
    options = {"teachers": 5, "classes": 2, "size": 20_000, "workers": 1}
    terms = {"epsilon": 1, "delta": 1e-6}
    paid = people.teach(
        LogisticRegression(), aggregator=SparseVotes(**terms, failures=1, queries=1), **options
    )
    more = SparseVotes(**terms, failures=1000, queries=100_000)
    with pytest.raises(dp.InvalidInput, match="other parameters than are given now: aggregator differ"):
        people.teach(LogisticRegression(), aggregator=more, number=paid.number, **options)
    same = SparseVotes(**terms, failures=1, queries=1)
    again = people.teach(LogisticRegression(), aggregator=same, number=paid.number, **options)
    assert again.label(rng.normal(size=(1, 3)).astype("f4"))


def test_boosting_without_a_declared_size_and_components_that_are_not_there_are_refused_before_the_charge():
    data = {"a": [0.1, 0.9], "b": [0.3, 0.2], "t": ["x", "y"]}
    people = dp.open(
        data,
        table="d",
        schema={"a": dp.Bounds(0, 1), "b": dp.Bounds(0, 1), "t": dp.Categories(["x", "y"])},
        unit=dp.rows(),
        budget=dp.Budget(epsilon=9, delta=1e-5),
        ledger=":memory:",
    )
    with pytest.raises(dp.DiscreetError, match="number of units"):
        people.fit(dp.tabular.ExplainableBoostingClassifier(epsilon=1), target="t")
    for components in (-1, 0, 3):
        with pytest.raises(dp.DiscreetError, match="n_components"):
            people.fit(dp.tabular.PCA(n_components=components, epsilon=1), features=["a", "b"])
    assert people.spent == 0


def test_more_categories_than_sixteen_bits_have_codes_of_their_own():
    from discreet.tabular.rows import Design
    from discreet.tabular.trees import bin_codes

    values = [f"v{i}" for i in range(33_000)]
    public = dp.Public(schema={"c": dp.Categories(values)})
    design = Design(features=("c",), target=None)
    row = np.zeros((1, len(values)), dtype=np.float32)
    row[0, 32_900] = 1
    assert bin_codes(row, design, public, 4).tolist() == [[32_900]]
