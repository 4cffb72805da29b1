"""Training fails on no row and on no lack of rows: empty tables, and values that are no class, go through
like any other."""

import pyarrow as pa
import pytest
import torch

from discreet import Bounds, Categories, InvalidInput, Public
from discreet._public import Boolean
from discreet.learning import Examples, Tabular
from discreet.tables import Memory, connect

PUBLIC = Public(schema={"x": Bounds(0, 1), "b": Boolean(), "c": Categories(["u", "v"])}, table="t")


class Rows(torch.utils.data.Dataset):
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        return torch.zeros(3), 1


def test_an_empty_dataset_looks_like_one_with_a_row():
    like = (torch.zeros(1, 3), torch.zeros(1, dtype=torch.int64))
    empty, one = (Examples.of(Rows(size), like=like) for size in (0, 1))
    for a, b in zip(empty.shapes(), one.shapes(), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype
    assert repr(empty) == repr(one)
    for a, b in zip(empty.take(torch.zeros(0).numpy()), Examples.of(Rows(1)).shapes(), strict=True):
        assert a.shape == b.shape
        assert a.dtype == b.dtype


def test_shapes_are_found_where_the_steward_wraps_the_data():
    with pytest.raises(InvalidInput, match="like="):
        Examples.of(Rows(0))
    with pytest.raises(InvalidInput, match="like"):
        Examples.of(Rows(1), like=torch.zeros(1))


@pytest.mark.parametrize("target", ["x", "b", "c"])
def test_an_empty_table_has_examples_of_the_right_types(target):
    features = tuple(name for name in ("x", "b", "c") if name != target)
    reader = Tabular(features=features, target=target)
    rows = {"x": [0.5], "b": [True], "c": ["u"]}
    for make in (Memory, connect):
        one = reader.read(make(pa.table(rows), PUBLIC))
        empty = reader.read(make(pa.table(rows).slice(1), PUBLIC))
        for a, b, wanted in zip(empty.shapes(), one.shapes(), reader.shapes(PUBLIC), strict=True):
            assert a.dtype == b.dtype == wanted.dtype
            assert a.shape == b.shape == wanted.shape


def test_a_whole_number_that_is_declared_true_or_false_is_one_of_two_classes():
    table = pa.table({"x": [0.5] * 4, "b": [5, 0, -(2**62), None], "c": ["u"] * 4})
    inputs, targets = Tabular(features=("x",), target="b").read(Memory(table, PUBLIC))._data
    assert targets.tolist() == [1, 0, 1, 0]
    inputs, _ = Tabular(features=("b",), target="c").read(Memory(table, PUBLIC))._data
    assert inputs[:, 0].tolist() == [1.0, -1.0, 1.0, 0.0]
