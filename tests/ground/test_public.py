"""Public facts are declared, never read off the data; sources keep to them."""

import numpy as np
import pyarrow as pa
import pytest

from discreet import (
    ADD_REMOVE,
    REPLACE,
    ZERO_OUT,
    Bounds,
    Categories,
    InvalidInput,
    PrivateFact,
    Public,
    PublicMismatch,
    Related,
    Unit,
    WrongRelation,
)
from discreet._public import require_relation
from discreet.tables import Memory, Source, rand_hie

from ..loops import for_each


def test_what_is_not_declared_is_not_looked_up():
    public = Public(schema={"age": Bounds(0, 99)})
    assert public.bounds("age") == Bounds(0, 99)
    with pytest.raises(PrivateFact, match=r"'income'.*never read off the data"):
        public.fact("income")
    with pytest.raises(InvalidInput, match="declared as a number"):
        public.categories("age")


def test_a_size_is_declared_or_refused():
    assert Public(size=10).declared_size("a rate") == 10
    with pytest.raises(PrivateFact, match="a rate needs the number of units"):
        Public().declared_size("a rate")


@for_each(
    ("bad", "fact"),
    [
        (lambda: Bounds(3, 2), "lower must be below upper"),
        (lambda: Bounds(2, 2), "lower must be below upper"),
        (lambda: Bounds(float("nan"), 1), "lower must be a number"),
        (lambda: Bounds(0, float("inf")), "upper must be finite"),
        (lambda: Categories([]), "values must not be empty"),
        (lambda: Categories("abc"), "values must be a list"),
        (lambda: Categories(["a", "a"]), "categories must differ from each other"),
        (lambda: Categories([1.5]), "a category must be a string or an"),
        (lambda: Public(neighbors="nearby"), "neighbors must be one of add_remove, replace, zero_out"),
        (lambda: Public(size=0), "size must be an integer of at least 1"),
        (lambda: Public(schema={"age": (0, 1)}), "the schema of column"),
        (
            lambda: Public(schema=[("a", Bounds(0, 1)), ("a", Bounds(0, 1))]),
            "a column is declared twice in the schema",
        ),
    ],
)
def test_bad_facts_are_refused(bad, fact):
    with pytest.raises(InvalidInput, match=fact):
        bad()


def test_relations_are_not_mixed_up():
    require_relation(REPLACE, REPLACE, ZERO_OUT, what="this bound")
    with pytest.raises(WrongRelation, match="this bound is proved for replace, not for add_remove"):
        require_relation(ADD_REMOVE, REPLACE, what="this bound")


def test_memory_is_a_source_and_streams_batches():
    source = Memory({"a": np.arange(10), "b": list("abcdefghij")}, batch_rows=4)
    assert isinstance(source, Source)
    sizes = [batch.num_rows for batch in source.batches(["a"])]
    assert sizes == [4, 4, 2]
    assert next(source.batches(["b"])).schema.names == ["b"]


def test_memory_shows_no_value_and_no_size():
    source = Memory({"salary": [123456, 654321]})
    assert "123456" not in repr(source)
    assert "2" not in repr(source)


def test_memory_refuses_what_does_not_fit():
    with pytest.raises(InvalidInput, match="one length"):
        Memory({"a": [1], "b": [1, 2]})
    with pytest.raises(InvalidInput, match="one-dimensional"):
        Memory({"a": np.zeros((2, 2))})
    with pytest.raises(InvalidInput, match="got lists of different lengths"):
        Memory({"a": [[1], [2, 3]]})
    with pytest.raises(InvalidInput, match="declares"):
        Memory({"a": [1]}, Public(schema={"b": Bounds(0, 1)}))
    with pytest.raises(InvalidInput, match="unit's column is 'id'"):
        Memory({"a": [1]}, Public(unit=Unit("id")))
    with pytest.raises(InvalidInput, match="no column 'z'"):
        list(Memory({"a": [1]}).batches(["z"]))


def test_a_public_size_must_be_true_and_a_private_one_is_not_compared():
    table = pa.table({"a": [1, 2, 3]})
    Memory(table, Public(neighbors=REPLACE, size=3))
    with pytest.raises(PublicMismatch, match="declared 4"):
        Memory(table, Public(neighbors=REPLACE, size=4))
    Memory(table, Public(neighbors=ADD_REMOVE, size=1000))


def test_the_bundled_table_has_one_row_a_person_in_a_year():
    first = next(iter(rand_hie(year=1).batches(["person"])))
    people = np.asarray(first.column("person"))
    assert len(np.unique(people)) == len(people) == 5638
    assert rand_hie().public.unit == Unit("person", rows=5)
    with pytest.raises(InvalidInput, match="study years"):
        rand_hie(year=6)


def test_the_bundled_schema_covers_its_categories():
    batch = pa.Table.from_batches(rand_hie().batches([name for name, _ in rand_hie().public.schema]))
    for name, fact in rand_hie().public.schema:
        if isinstance(fact, Categories):
            assert set(batch[name].unique().to_pylist()) == set(fact.values)


@for_each(
    ("wrong", "fact"),
    [
        (lambda: Bounds(0, 10**400), "bounds must lie within"),
        (lambda: Bounds(-1.7e308, 0), "bounds must lie within"),
        (lambda: Bounds(0, 1, nullable="no"), "nullable must be True or False"),
        (lambda: Categories(5), "values must be a list"),
        (lambda: Categories("abc"), "values must be a list"),
        (lambda: Public(schema=5), "schema must be a list"),
        (lambda: Public(schema=[1]), "a_column must be a list"),
        (
            lambda: Public(schema={3: Bounds(0, 1)}),
            r"schema must be public facts by the name of a column, such as \{",
        ),
        (lambda: Public(unit="person"), r"unit must be rows\(\) or Unit\("),
        (lambda: Public(tables=5), "tables must be a list"),
        (lambda: Public(tables=("visits",)), r"tables\[0\] must be Related\("),
        (lambda: Public(version=3), "version must be a text"),
        (lambda: Related(name=3), "name must be a text"),
        (lambda: Related(name="visits", private=True, unit=3), "unit must be a text"),
        (lambda: Related(name="visits", key=3), "key must be a list"),
        (lambda: Unit(column=3), "column must be the name of a column"),
    ],
)
def test_public_facts_are_checked_where_they_are_declared(wrong, fact):
    with pytest.raises(InvalidInput, match=fact):
        wrong()


@pytest.mark.parametrize("value", ["a\x00b", "a\ud800"])
def test_categories_that_no_engine_takes_for_text_are_refused_when_declared(value):
    with pytest.raises(InvalidInput, match="without NUL"):
        Categories(["a", value])
