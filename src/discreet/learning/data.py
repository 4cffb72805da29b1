"""Examples: private tensors, with the public facts they are protected under.

`Examples(x, y, public)` holds tensors; `Examples.of(dataset, public)` any map-style torch dataset. `Tabular` reads the columns of a table: features
are scaled by their declared bounds, categories become indicators, so that nothing is learned from the data on the way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .. import _require
from .._errors import InvalidInput, NotPrivate, Unsupported
from .._public import Boolean, Bounds, Categories, Public
from ..tables import Source

Array = Any  # of numpy


class Examples:
    """A source of examples for training: inputs and targets, one entry per protected row.

    Shapes and types of one example are public; values and, under add_remove, their number are not.
    """

    def __init__(self, inputs: Any, targets: Any, public: Public | None = None) -> None:
        self._public = Public() if public is None else public
        self._data = tree_map(_tensor, (inputs, targets))
        sizes = {len(t) for t in tree_leaves(self._data)}
        if len(sizes) != 1:
            raise InvalidInput("inputs and targets must have one entry for each example, all of one length.")
        self._size = sizes.pop()

    @classmethod
    def of(cls, dataset: Any, public: Public | None = None) -> Examples:
        """Any map-style dataset whose items are (inputs, target); items are read when a batch takes them."""
        return _Dataset(dataset, public)

    @property
    def public(self) -> Public:
        return self._public

    def batches(self, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        raise Unsupported("examples are tensors without columns: use them with learning.Trainer only.")
        yield

    def _take(self, places: Array) -> tuple[Any, Any]:
        """The examples at these places, as a batch. For the trainer only: what it returns is private."""
        index = torch.from_numpy(places)
        inputs, targets = tree_map(lambda t: t.index_select(0, index), self._data)
        return inputs, targets

    def _shapes(self) -> tuple[Any, Any]:
        """Empty tensors of the shapes and types of one example."""
        inputs, targets = tree_map(lambda t: t[:0], self._data)
        return inputs, targets

    def __repr__(self) -> str:  # no values and no count
        return f"{type(self).__name__}(table={self._public.table!r})"


class _Dataset(Examples):
    def __init__(self, dataset: Any, public: Public | None) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise InvalidInput(
                "a dataset must have __getitem__ and __len__ (map-style): a stream cannot toss a coin for each example. A DataLoader chooses "
                "batches by itself; give its .dataset instead."
            )
        self._public, self._dataset, self._size = Public() if public is None else public, dataset, len(dataset)

    def _take(self, places: Array) -> tuple[Any, Any]:
        if not len(places):
            return self._shapes()
        inputs, targets = torch.utils.data.default_collate([self._dataset[int(i)] for i in places])
        return (tuple(inputs) if isinstance(inputs, list) else inputs), targets

    def _shapes(self) -> tuple[Any, Any]:
        if not self._size:
            raise InvalidInput("the shapes of an empty dataset are not known: give synthetic=(inputs, targets).")
        inputs, targets = tree_map(lambda t: t[:0], self._take(np.zeros(1, np.int64)))
        return inputs, targets


def _tensor(values: Any) -> Tensor:
    found = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    if not found.dim():
        raise InvalidInput("inputs and targets must have a first dimension, one entry for each example.")
    return found.detach()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabular:
    """Columns of a table as examples, by what the schema declares of them and nothing else.

    Numbers are clipped to their bounds and scaled to [-1, 1]; a missing one is 0. A category becomes one indicator each, none for a value
    that is not declared. The target is a class number (categories, booleans) or a number scaled like the features.
    """

    features: tuple[str, ...]
    target: str

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        _require.non_empty(features=self.features)

    def width(self, public: Public) -> int:
        """How many numbers one example has."""
        return sum(len(f.values) if isinstance(f := public.fact(name), Categories) else 1 for name in self.features)

    def shapes(self, public: Public) -> tuple[Tensor, Tensor]:
        """Empty tensors of the shapes and types of one example."""
        classes = isinstance(public.fact(self.target), Categories | Boolean)
        goal = torch.zeros(0, dtype=torch.int64) if classes else torch.zeros(0, 1)
        return torch.zeros(0, self.width(public)), goal

    def read(self, source: Source) -> Examples:
        parts, goals = [], []
        for batch in source.batches([*self.features, self.target]):
            columns = {name: batch.column(name) for name in batch.schema.names}
            facts = {name: source.public.fact(name) for name in columns}
            parts.append(np.concatenate([_column(columns[n], facts[n], n) for n in self.features], axis=1))
            goals.append(_goal(columns[self.target], facts[self.target], self.target))
        empty = np.zeros((0, self.width(source.public)), np.float32)
        x = torch.from_numpy(np.concatenate([empty, *parts]))
        return Examples(x, torch.from_numpy(np.concatenate(goals)) if goals else torch.zeros(0), source.public)


def _column(values: pa.Array, fact: Any, name: str) -> Array:
    if isinstance(fact, Bounds):
        low, high = float(fact.lower), float(fact.upper)
        raw = np.clip(_floats(values), low, high)
        return np.nan_to_num((2 * (raw - low) / (high - low) - 1).astype(np.float32))[:, None]
    if isinstance(fact, Boolean):
        return np.nan_to_num(2 * _floats(values) - 1).astype(np.float32)[:, None]
    if isinstance(fact, Categories):
        held = np.asarray(values.to_pylist(), dtype=object)
        return np.stack([held == value for value in fact.values], axis=1).astype(np.float32)
    raise InvalidInput(f"column {name!r} cannot be a feature: declare Bounds, Categories or Boolean for it.")


def _goal(values: pa.Array, fact: Any, name: str) -> Array:
    if isinstance(fact, Categories):
        place = {value: i for i, value in enumerate(fact.values)}
        return np.array([place.get(v, 0) for v in values.to_pylist()], dtype=np.int64)
    if isinstance(fact, Boolean):
        return np.nan_to_num(_floats(values)).astype(np.int64)
    return _column(values, fact, name)


def _floats(values: pa.Array) -> Array:
    return np.array([np.nan if v is None else float(v) for v in values.to_pylist()], dtype=np.float64)


def shapes_of(source: Any, reader: Tabular | None) -> tuple[Any, Any]:
    """Empty tensors of the shapes and types of one example, from what is public of a source."""
    if reader is not None and not isinstance(source, Examples):
        return reader.shapes(source.public)
    return examples_of(source, None)._shapes()


def examples_of(source: Any, reader: Tabular | None) -> Examples:
    """The examples behind a source."""
    if isinstance(source, Examples):
        return source
    if reader is not None:
        return reader.read(source)
    raise NotPrivate(
        f"{type(source).__name__} is not a source of examples: wrap tensors as learning.Examples(x, y, public), a dataset as "
        f"learning.Examples.of(dataset, public), or say which columns of a table to use, columns=Tabular(features=..., target=...)."
    )
