"""Examples: private tensors, with the public facts they are protected under.

`Examples(x, y, public)` holds tensors; `Examples.of(dataset, public)` any map-style torch dataset. `Tabular`
reads the columns of a table: features are scaled by their declared bounds, categories become indicators, so
that nothing is learned from the data on the way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

from .. import _require, sampling
from .._errors import DiscreetError, InvalidInput, NotPrivate
from .._public import Boolean, Bounds, Categories, Public
from ..mechanisms.arrow_columns import one_name_each
from ..mechanisms.protocols import AnySource, ExampleSource
from ..sampling import Entropy
from ..tables import Source
from .scaler import Scaling

# An array of numpy.
Array = Any


class Examples:
    """Holds inputs and targets for training, one entry per row (an `ExampleSource`).

    Where `public.unit` names a column, `people` says whose each row is: one entry per row. A row that is
    nobody's (None) takes no part. Shapes and types of one example are public; values and, under add_remove,
    their number are not. A tuple of inputs are the model's arguments; a dict of them is one argument:
    `Examples({"ids": ids, "mask": mask}, labels)` for a model that is called with that dict.
    """

    def __init__(
        self, inputs: Any, targets: Any, public: Public | None = None, *, people: Any = None
    ) -> None:
        self._public = Public() if public is None else public
        self._data = tree_map(
            _tensor, tuple(dict(tree) if isinstance(tree, Mapping) else tree for tree in (inputs, targets))
        )
        sizes = {len(t) for t in tree_leaves(self._data)}
        if len(sizes) != 1:
            raise InvalidInput("inputs and targets must have one entry for each example, all of one length.")
        self._rows = sizes.pop()
        self.people = _owners(self._public, people, self._rows)

    @classmethod
    def of(
        cls,
        dataset: Any,
        public: Public | None = None,
        *,
        people: Any = None,
        target: str | None = None,
        like: tuple[Any, Any] | None = None,
    ) -> Examples:
        """Wrap a map-style dataset whose items are (inputs, target), or dicts of which one entry is the
        `target`; items are read when a batch takes them.

        All items must have one shape, and a target among the classes: whether they do is private, and only
        found out when the run is paid for. What shape that is everybody may know: `like` says it, a pair of
        made-up inputs and targets of one or more examples. Without `like` it is taken from the first item
        here, where the steward wraps the data, and never again; a dataset that may be empty needs it.
        """
        return _Dataset(dataset, public, people, target, like)

    @property
    def size(self) -> int:
        """Return the number of units: rows, or people. For the trainer only: under add_remove it is
        private.
        """
        return self._rows if self.people is None else len(self.people.counts)

    @property
    def public(self) -> Public:
        return self._public

    def take(self, positions: Array) -> tuple[Any, Any]:
        """Return the examples at these positions, as a batch. For the trainer only: what it returns is
        private."""
        index = torch.from_numpy(positions)
        inputs, targets = (
            tree.index_select(0, index)
            if isinstance(tree, Tensor)
            else tree_map(lambda t: t.index_select(0, index), tree)
            for tree in self._data
        )
        return inputs, targets

    def shapes(self) -> tuple[Any, Any]:
        """Return empty tensors of the shapes and types of one example."""
        inputs, targets = tree_map(lambda t: t[:0], self._data)
        return inputs, targets

    # No values and no count.
    def __repr__(self) -> str:
        return f"{type(self).__name__}(table={self._public.table!r})"


class _Dataset(Examples):
    """Reads examples of a map-style dataset, item by item, when a batch takes them."""

    def __init__(
        self,
        dataset: Any,
        public: Public | None,
        people: Any,
        target: str | None,
        like: tuple[Any, Any] | None,
    ) -> None:
        if not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
            raise InvalidInput(
                "a dataset must have __getitem__ and __len__ (map-style): a stream cannot toss a coin for "
                "each example. A DataLoader chooses batches by itself; give its .dataset instead."
            )
        self._public, self._dataset, self._rows = (
            Public() if public is None else public,
            dataset,
            len(dataset),
        )
        self._target = target
        self.people = _owners(self._public, people, self._rows)
        if like is not None and not (isinstance(like, tuple) and len(like) == 2):
            raise _require.fail("like", type(like).__name__, "a pair of made-up (inputs, targets)")
        # Read once, before anybody asks anything: whether there is a first item must not show later.
        self._example_shapes = self._first() if like is None else tree_map(lambda t: _tensor(t)[:0], like)

    def take(self, positions: Array) -> tuple[Any, Any]:
        if not len(positions):
            return self.shapes()
        inputs, targets = torch.utils.data.default_collate([self._item(int(i)) for i in positions])
        return (tuple(inputs) if isinstance(inputs, list) else inputs), targets

    def shapes(self) -> tuple[Any, Any]:
        inputs, targets = self._example_shapes
        return inputs, targets

    def _first(self) -> tuple[Any, Any]:
        """Return empty tensors of the shapes and types of the first item."""
        if not self._rows:
            raise InvalidInput(
                "a dataset that may be empty needs like=(inputs, targets), made-up examples: else only this "
                "one would be refused. Nothing was charged or trained."
            )
        try:
            inputs, targets = tree_map(lambda t: t[:0], self.take(np.zeros(1, np.int64)))
        except DiscreetError:
            raise
        except Exception as error:
            # Its text could quote a value.
            raise InvalidInput(
                "the first item of the dataset could not be read, or holds something that cannot become a "
                f"tensor ({type(error).__name__}; what it says is withheld, as it may speak of the data). "
                "Nothing was charged or trained. Items are (inputs, target), of tensors, arrays and numbers."
            ) from None
        return inputs, targets

    def _item(self, position: int) -> tuple[Any, Any]:
        item = self._dataset[position]
        if self._target is not None and isinstance(item, Mapping) and self._target in item:
            return {name: value for name, value in item.items() if name != self._target}, item[self._target]
        if self._target is not None or not isinstance(item, tuple | list) or len(item) != 2:
            raise InvalidInput(
                "items of a dataset must be (inputs, target), or dicts with target= naming one entry "
                f"(target={self._target!r}); here an item is a {type(item).__name__}. Nothing was trained."
            )
        return item[0], item[1]


class People:
    """Groups rows by the person they belong to. Numbers of rows, and of people, are private."""

    def __init__(self, ids: Any) -> None:
        try:
            column = (
                ids
                if isinstance(ids, pa.Array | pa.ChunkedArray)
                else pa.array(_as_list(ids), from_pandas=True)
            )
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            # Its text would quote a value.
            raise InvalidInput(
                "people must be numbers or texts, one for each row. Nothing was read or trained."
            ) from None
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        encoded = one_name_each(column).dictionary_encode()
        # The people who have a row, in the order of their numbers: a secret hash of these names deals them.
        self.names = encoded.dictionary
        codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        order = np.argsort(codes, kind="stable")
        self._order = order[np.searchsorted(codes[order], 0) :]
        self.counts = np.bincount(codes[codes >= 0])
        self._first = np.concatenate([[0], np.cumsum(self.counts)])
        self.length = len(codes)

    def owned(self) -> tuple[Array, Array]:
        """Return all rows that belong to somebody, and the number of the person of each."""
        return self._order, np.repeat(np.arange(len(self.counts)), self.counts)

    def rows(self, person: int, limit: int | None, entropy: Entropy) -> Array:
        """Return at most `limit` rows of a person, in random order, whatever others have.

        Guarantee: each sequence of at most `limit` rows is equally likely, independently of everybody else's.
        Proof:     coins of its own. In the engine's order, which may go with the rows of others, what floats
                   make of the sum of a person's gradients before it is clipped would go with them too.
        """
        positions = self._order[self._first[person] : self._first[person + 1]]
        if limit is not None and len(positions) > limit:
            positions = positions[np.asarray(sampling.subset(len(positions), limit, entropy), dtype=np.int64)]
        if len(positions) < 2:
            return positions
        return positions[np.asarray(sampling.permutation(len(positions), entropy), dtype=np.int64)]


def _as_list(ids: Any) -> Any:
    return ids.tolist() if isinstance(ids, Tensor) else ids


def _owners(public: Public, people: Any, rows: int) -> People | None:
    """Return whose each row is where the unit is a person, None where it is a row; refuse a contradiction."""
    column = public.unit.column
    if column is None:
        if people is not None:
            raise InvalidInput(
                "people= is given, and the unit is a row: declare Public(unit=Unit('the column of people'))."
            )
        return None
    if people is None:
        raise InvalidInput(
            f"the unit is everyone's rows together ({column!r}): say whose each row is, people=[...]."
        )
    owners = People(people)
    if owners.length != rows:
        raise InvalidInput("people must have one entry for each row.")
    return owners


def _from_array(values: Any) -> Tensor:
    """Return an array as a tensor; a refusal quotes no value."""
    try:
        array = np.asarray(values)
        # Pandas lends what may not be written.
        return torch.as_tensor(array if array.flags.writeable else array.copy())
    except (TypeError, ValueError, RuntimeError):
        # Its text could quote a value.
        raise InvalidInput(
            f"inputs and targets must be tensors, or arrays of numbers: this {type(values).__name__} "
            f"cannot become one. Nothing was trained."
        ) from None


def _tensor(values: Any) -> Tensor:
    """Return values as a tensor with one entry per example, cut off from any graph."""
    tensor = values if isinstance(values, Tensor) else _from_array(values)
    if not tensor.dim():
        raise InvalidInput("inputs and targets must have a first dimension, one entry for each example.")
    return tensor.detach()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabular:
    """Reads columns of a table as examples, by what the schema declares of them and nothing else.

    Numbers are clipped to their bounds and scaled to [-1, 1]; a missing one is 0. A column of categories
    becomes one indicator per declared category, all 0 for a value that is not declared. The target is a class
    number (categories, booleans; a value that is not declared, or missing, counts as the first) or a number
    scaled like the features. With `scaling`, which a `PrivateScaler` released, its columns are
    standardized instead.
    """

    features: tuple[str, ...]
    target: str
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        _require.non_empty(features=self.features)
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            raise _require.fail("scaling", type(self.scaling).__name__, "what a PrivateScaler released")

    def width(self, public: Public) -> int:
        """Return how many numbers one example has."""
        return sum(
            len(f.values) if isinstance(f := public.fact(name), Categories) else 1 for name in self.features
        )

    def shapes(self, public: Public) -> tuple[Tensor, Tensor]:
        """Return empty tensors of the shapes and types of one example."""
        classes = isinstance(public.fact(self.target), Categories | Boolean)
        target = torch.zeros(0, dtype=torch.int64) if classes else torch.zeros(0, 1)
        return torch.zeros(0, self.width(public)), target

    def read(self, source: Source) -> Examples:
        """Read a table into examples: features as float32, targets as class numbers or scaled numbers."""
        features, targets, owners = [], [], []
        unit = source.public.unit.column
        for batch in source.batches([*self.features, self.target, *([] if unit is None else [unit])]):
            columns = {name: batch.column(name) for name in batch.schema.names}
            features.append(
                np.concatenate([self._feature(columns[n], source.public, n) for n in self.features], axis=1)
            )
            targets.append(_target(columns[self.target], source.public.fact(self.target), self.target))
            owners += [] if unit is None else [columns[unit]]
        no_rows = np.zeros((0, self.width(source.public)), np.float32)
        x = torch.from_numpy(np.concatenate([no_rows, *features]))
        # The right type without a single row, too: else an empty table would be the only one to fail.
        y = torch.from_numpy(np.concatenate([self.shapes(source.public)[1].numpy(), *targets]))
        return Examples(
            x,
            y,
            source.public,
            people=None if unit is None else pa.chunked_array(owners, None if owners else pa.null()),
        )

    def inputs(self, data: Any, public: Public) -> Array:
        """Return the features of public rows, a data frame or a mapping of columns, as those of private rows
        are read."""
        if data is None or isinstance(data, str | bytes | float | int):
            raise _require.fail("rows", data, "a data frame, or a mapping of columns such as {'age': [30]}")
        names = list(data) if isinstance(data, Mapping) else list(getattr(data, "column_names", data))
        missing = [name for name in self.features if name not in names]
        if missing:
            raise InvalidInput(f"these rows have no column {missing[0]!r}. Nothing was asked.")
        columns = [self._public_feature(data[name], public, name) for name in self.features]
        if len({len(column) for column in columns}) > 1:
            raise InvalidInput("the columns of these rows have different lengths. Nothing was asked.")
        return np.concatenate(columns, axis=1)

    def _public_feature(self, values: Any, public: Public, name: str) -> Array:
        """Return the coordinates of one column of public rows; what is wrong with these may be said."""
        try:
            return self._feature(_as_arrow(values), public, name)
        except InvalidInput:
            raise
        except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
            raise InvalidInput(f"column {name!r} of these rows: {error}. Nothing was asked.") from None

    def _feature(self, values: pa.Array, public: Public, name: str) -> Array:
        if self.scaling is not None and name in self.scaling.columns:
            return self.scaling.column(name, _floats(values)).astype(np.float32)[:, None]
        return _column(values, public.fact(name), name)


def _as_arrow(values: Any) -> Any:
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    return pa.array(values.tolist() if hasattr(values, "tolist") else list(values), from_pandas=True)


def _column(values: pa.Array, fact: Any, name: str) -> Array:
    """Return the coordinates of one feature: scaled to [-1, 1], or one indicator per declared category."""
    if isinstance(fact, Bounds):
        low, high = float(fact.lower), float(fact.upper)
        numbers = np.clip(_floats(values), low, high)
        return np.nan_to_num((2 * (numbers - low) / (high - low) - 1).astype(np.float32))[:, None]
    if isinstance(fact, Boolean):
        return np.nan_to_num(2 * _booleans(values) - 1).astype(np.float32)[:, None]
    if isinstance(fact, Categories):
        labels = np.asarray(values.to_pylist(), dtype=object)
        return np.stack([labels == value for value in fact.values], axis=1).astype(np.float32)
    raise InvalidInput(f"column {name!r} cannot be a feature: declare Bounds, Categories or Boolean for it.")


def _target(values: pa.Array, fact: Any, name: str) -> Array:
    """Return the class number of each row, or the target scaled to [-1, 1]."""
    if isinstance(fact, Categories):
        codes = {value: i for i, value in enumerate(fact.values)}
        return np.array([codes.get(v, 0) for v in values.to_pylist()], dtype=np.int64)
    if isinstance(fact, Boolean):
        return np.nan_to_num(_booleans(values)).astype(np.int64)
    return _column(values, fact, name)


def _booleans(values: pa.Array) -> Array:
    """Return 1 where true, 0 where false, NaN where missing.

    Any whole number but 0 is true, as to SQL: a 5 is no class of its own.
    """
    numbers = _floats(values)
    return np.where(np.isnan(numbers), np.nan, (numbers != 0).astype(np.float64))


def _floats(values: pa.Array) -> Array:
    return np.array([np.nan if v is None else float(v) for v in values.to_pylist()], dtype=np.float64)


def shapes_of(source: AnySource, reader: Tabular | None) -> tuple[Any, Any]:
    """Return empty tensors of the shapes and types of one example, from what is public of a source."""
    if reader is not None and not isinstance(source, ExampleSource):
        return reader.shapes(source.public)
    return examples_of(source, None).shapes()


def examples_of(source: AnySource, reader: Tabular | None) -> ExampleSource:
    """Return the examples behind a source."""
    if isinstance(source, ExampleSource):
        return source
    if reader is not None:
        return reader.read(source)
    raise NotPrivate(
        f"{type(source).__name__} is not a source of examples: wrap tensors as learning.Examples(x, y, "
        "public), a dataset as learning.Examples.of(dataset, public), or say which columns of a table to "
        "use, columns=Tabular(features=..., target=...)."
    )
