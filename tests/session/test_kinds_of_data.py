"""Data as it comes: empty tables, CSV files, mixed columns; nothing about them is told that was not paid
for."""

import pytest

import discreet as dp
from discreet import mechanisms
from discreet.tables import Memory, connect

SCHEMA = {"age": dp.Bounds(0, 100), "ward": dp.Categories(["a", "b"]), "floor": dp.Categories([1, 2])}
SQL = "SELECT ward, COUNT(*) AS n, SUM(age) AS s FROM people GROUP BY ward"


def opened(data, **options):
    settings = {
        "unit": dp.rows(),
        "schema": SCHEMA,
        "table": "people",
        "budget": dp.Budget(epsilon=10),
        "ledger": ":memory:",
    }
    return dp.open(data, **{**settings, **options})


@pytest.mark.parametrize("rows", [0, 1])
def test_an_empty_table_answers_like_any_other(rows):
    table = {"age": [30.0] * rows, "ward": ["a"] * rows, "floor": [1] * rows}
    public = dp.Public(schema=SCHEMA, table="people")
    for source in (Memory(table, public), connect(table, public)):
        people = dp.open(source, budget=dp.Budget(epsilon=10), ledger=":memory:")
        assert len(people.sql(SQL, epsilon=1)) == 2
        assert people.ask(mechanisms.noisy_sum(public, "age", epsilon=1)).value is not None
        assert len(people.ask(mechanisms.noisy_histogram(public, "ward", epsilon=1)).value) == 2


def test_a_csv_file_serves_mechanisms_as_declared(tmp_path):
    path = tmp_path / "people.csv"
    path.write_text("age,ward,floor\n" + "50,a,1\nnonsense,b,2\n,a,9\n" * 200)
    people = opened(path)
    assert abs(people.ask(mechanisms.noisy_sum(people.public, "age", epsilon=2)).value - 10_000) < 2000
    counts = people.ask(mechanisms.noisy_histogram(people.public, "floor", epsilon=2)).value
    assert all(abs(n - 200) < 20 for n in counts)


def test_a_column_of_mixed_kinds_is_refused_without_quoting_a_value():
    with pytest.raises(dp.InvalidInput, match="'age' does not hold values of one kind") as refusal:
        opened({"age": [1, "secret"], "ward": ["a", "b"], "floor": [1, 2]})
    assert "secret" not in str(refusal.value)
    assert refusal.value.__cause__ is None


def test_a_public_size_must_be_true_for_engines_too():
    table = {"age": [30, 40], "ward": ["a", "b"], "floor": [1, 2]}
    opened(table, neighbors="replace", size=2)
    with pytest.raises(dp.PublicMismatch, match="declared 3"):
        opened(table, neighbors="replace", size=3)


def test_a_price_shows_a_delta_only_where_one_is_used():
    people = opened(
        {"age": [30] * 50, "ward": ["a"] * 50, "floor": [1] * 50}, budget=dp.Budget(epsilon=10, delta=1e-6)
    )
    assert "delta" not in str(people.preview(SQL, epsilon=1).query).splitlines()[0]
    assert "delta" not in people.sql(SQL, epsilon=1).price
    assert "delta" in people.sql(SQL, epsilon=1, noise="gaussian").price


def test_what_the_engine_says_while_batches_are_read_is_withheld(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    from discreet.tables import EngineError

    path = tmp_path / "people.parquet"
    pq.write_table(pa.table({"age": [30.0] * 5000, "ward": ["a"] * 5000, "floor": [1] * 5000}), path)
    source = connect(path, dp.Public(schema=SCHEMA, table="people"))
    path.write_bytes(b"PAR1 broken")
    with pytest.raises(EngineError, match="withheld") as refusal:
        list(source.batches(["age"]))
    assert str(path) not in str(refusal.value)
