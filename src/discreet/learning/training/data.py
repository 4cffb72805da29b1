"""Holds private examples as tensors, with the public facts by which they are protected.

`Examples(x, y, public)` holds tensors; `Examples.of(dataset, public)` wraps any map-style torch dataset.
`Tabular` reads the columns of a table: features are scaled by their declared bounds and categories become
indicators, so that no statistic of the data is used.

Makes several variants of each example (augmentation multiplicity), whose gradients are averaged before
they are clipped.

The average is clipped as one example's gradient, so that the price is the same as without augmentation (De,
Berrada, Hayes, Smith & Balle 2022, arXiv:2204.13650); only training takes longer. Mixup and the like, which
blend examples, are not covered: one person would be in many gradients.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_unflatten
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    default_collate,
    default_convert,
)

from ... import _require, sampling
from ..._errors import INTERRUPTIONS, DiscreetError, InvalidInput, NotPrivate, ReleaseFailed
from ..._public import Boolean, Bounds, Categories, Public
from ..._registry import described
from ..._require import at_least
from ...mechanisms.arrow_columns import one_name_each
from ...mechanisms.protocols import AnySource, ExampleSource
from ...sampling import Entropy
from ...tables import Source
from ...tabular.scaler import Scaling

# An array of numpy.
Array = Any


class Examples:
    """Holds inputs and targets for training, one entry per row (an `ExampleSource`).

    Where `public.unit` names a column, `people` has one entry per row: the person that the row belongs to. A
    row of nobody (None) takes no part. Shapes and types of one example are public; the values and, under
    add_remove, the number of examples are private. A tuple of inputs holds the model's arguments; a dict of
    inputs is one argument: `Examples({"ids": ids, "mask": mask}, labels)` for a model that is called with
    that dict.
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
        `target`; items are read when a batch takes them, by position, so that a dataset may lie on disk.

        A DataLoader stands for its dataset, which is read as it says (`num_workers`, `prefetch_factor`,
        `collate_fn`, ...), in batches of our own: batch_size and shuffle play no part, and another sampler
        is refused. Its collate_fn is given one item at a time, so that it cannot mix examples.

        All items must have one shape. Whether they do is private, so that an item that cannot be read, or has
        another shape, counts as an example of zeros. The shape is public: `like` declares it, a pair of
        made-up inputs and targets of one or more examples. Without `like` the shape is that of the first
        item, which this call, made by the steward of the data, reads once. A dataset that may be empty needs
        `like`.
        """
        loader = dataset if isinstance(dataset, DataLoader) else None
        if loader is not None:
            _check_sampler(loader)
            dataset = loader.dataset
        return _Dataset(dataset, public, people, target, like, loader)

    @property
    def size(self) -> int:
        """Return the number of units: of people where the unit is a person, else of rows.

        For the trainer only: under add_remove it is private.
        """
        return self._rows if self.people is None else len(self.people.counts)

    @property
    def public(self) -> Public:
        return self._public

    @property
    def origin(self) -> Any:
        """Return the tensors, or the dataset, that hold the examples."""
        return self._data

    def take(self, positions: Array) -> tuple[Any, Any]:
        """Return the examples at these positions (row numbers), as a batch. For the trainer only: the result
        is private."""
        index = torch.from_numpy(positions)
        inputs, targets = (
            tree.index_select(0, index.to(tree.device))
            if isinstance(tree, Tensor)
            else tree_map(lambda t: _rows(t, index.to(t.device) if isinstance(t, Tensor) else index), tree)
            for tree in self._data
        )
        return inputs, targets

    def shapes(self) -> tuple[Any, Any]:
        """Return inputs and targets of zero examples, which have the shapes and types of one example."""

        def none_of(values: Any) -> Tensor:
            return values[:0] if isinstance(values, Tensor) else _from_array(values[:0])

        inputs, targets = tree_map(none_of, self._data)
        return inputs, targets

    # Shows no values and no number of rows: both are private.
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
        loader: DataLoader[Any] | None = None,
    ) -> None:
        _require.that(
            hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__"),
            "a dataset must have __getitem__ and __len__ (map-style): batches are sampled by position, "
            "which a stream does not allow.",
        )
        self._public, self._dataset, self._rows = (
            Public() if public is None else public,
            dataset,
            len(dataset),
        )
        self._target, self.loader = target, loader
        self.people = _owners(self._public, people, self._rows)
        if like is not None and not (isinstance(like, tuple) and len(like) == 2):
            raise _require.fail("like", type(like).__name__, "a pair of made-up (inputs, targets)")
        # Read now, once: later, an error or its absence would show whether there is a first item.
        self._empty_batch = (
            self._empty_like_first_item() if like is None else tree_map(lambda t: _tensor(t)[:0], like)
        )

    @property
    def origin(self) -> Any:
        return self._dataset

    def take(self, positions: Array) -> tuple[Any, Any]:
        if not len(positions):
            return self.shapes()
        batch = self._batch(positions)
        if batch is None:
            # Some item is not as declared. It must decide nothing else: each is read by itself.
            items = [self._batch(positions[i : i + 1]) or self._zeros() for i in range(len(positions))]
            batch = tree_map(lambda *parts: torch.cat(parts), *items)
        return batch

    def _batch(self, positions: Array) -> tuple[Any, Any] | None:
        """Return these items as a batch of the declared types; None if some item cannot be read, or has
        another shape than the declared one."""
        try:
            batch = self._collated(positions)
            leaves, structure = tree_flatten(batch)
            declared, same = tree_flatten(self._empty_batch)
            shapes = [t.shape[1:] for t in leaves] == [t.shape[1:] for t in declared]
            if structure != same or not shapes:
                return None
            inputs, targets = tree_unflatten(
                [t.to(d.dtype) for t, d in zip(leaves, declared, strict=True)], structure
            )
            return inputs, targets
        except INTERRUPTIONS:
            raise
        except BaseException:
            return None

    def _zeros(self) -> tuple[Any, Any]:
        """Return one example of zeros, in place of an item that is not as declared."""
        inputs, targets = tree_map(
            lambda t: torch.zeros(1, *t.shape[1:], dtype=t.dtype, device=t.device), self._empty_batch
        )
        return inputs, targets

    def _collated(self, positions: Array) -> tuple[Any, Any]:
        """Return these items as a batch, whatever their shape; raises what reading them raises."""
        indices, read = [int(i) for i in positions], getattr(self._dataset, "__getitems__", None)
        items = [self._dataset[i] for i in indices] if read is None else read(indices)
        with torch.device("cpu"):
            if self.loader is None or self.loader.collate_fn in (default_collate, default_convert):
                inputs, targets = default_collate([self._pair(item) for item in items])
            else:
                # one by one: with several items it could mix them, or pad them to the longest
                pairs = [self._pair(self.loader.collate_fn([item])) for item in items]
                inputs, targets = tree_map(lambda *parts: torch.cat(parts), *pairs)
        return (tuple(inputs) if isinstance(inputs, list) else inputs), targets

    def shapes(self) -> tuple[Any, Any]:
        inputs, targets = self._empty_batch
        return inputs, targets

    def _empty_like_first_item(self) -> tuple[Any, Any]:
        """Return inputs and targets of zero examples, of the first item's shapes and types."""
        _require.that(
            self._rows,
            "a dataset that may be empty needs like=(inputs, targets), made-up examples: without it only "
            "an empty dataset would be refused, and the refusal would reveal that it is empty.",
        )
        try:
            inputs, targets = tree_map(lambda t: t[:0], self._collated(np.zeros(1, np.int64)))
        except DiscreetError:
            raise
        except Exception as error:
            # The error's text could quote a value.
            raise InvalidInput(
                "the first item of the dataset could not be read, or holds something that cannot become a "
                f"tensor ({type(error).__name__}; its text is withheld, as it may quote the data). Items are "
                "(inputs, target), of tensors, arrays and numbers."
            ) from None
        return inputs, targets

    def _pair(self, item: Any) -> tuple[Any, Any]:
        """Return one item of the dataset, or a batch of them, as (inputs, target)."""
        if self._target is not None and isinstance(item, Mapping) and self._target in item:
            return {name: value for name, value in item.items() if name != self._target}, item[self._target]
        _require.that(
            self._target is None and isinstance(item, tuple | list) and len(item) == 2,
            "items of a dataset must be (inputs, target), or dicts with target= naming one entry "
            f"(target={self._target!r}); here an item is a {type(item).__name__}.",
        )
        return item[0], item[1]


def _check_sampler(loader: DataLoader[Any]) -> None:
    """Refuse a DataLoader whose own way of choosing examples would be lost."""
    batches = loader.batch_sampler
    # a batch sampler may choose by a sampler of its own
    sampler = batches.sampler if type(batches) is BatchSampler else loader.sampler
    is_plain = type(batches) in (BatchSampler, type(None)) and (
        type(sampler) is SequentialSampler
        or (type(sampler) is RandomSampler and not sampler.replacement and sampler._num_samples is None)
    )
    if not is_plain and hasattr(loader.dataset, "__len__"):
        chosen = sampler if type(batches) in (BatchSampler, type(None)) else batches
        raise InvalidInput(
            f"this DataLoader chooses examples by a {type(chosen).__name__}, and private training by coins "
            "of its own: the price is for these. Leave sampler= and batch_sampler= out; for a part of the "
            "data give torch.utils.data.Subset(dataset, ...), and weigh examples in the loss."
        )


class ReadAhead:
    """Reads examples in the workers of a DataLoader, in the order of `plan`, the rows that will be taken.

    Guarantee: `take` returns what `examples.take` returns, whatever the workers do.
    Proof:     the workers run `examples.take` on the rows of the plan; rows that are not next in the plan are
               read here.
    """

    def __init__(self, examples: _Dataset, plan: Iterator[Array], entropy: Entropy) -> None:
        assert examples.loader is not None
        self._examples, self._planned, self.people = examples, deque[Array](), examples.people
        names = ("num_workers", "prefetch_factor", "timeout", "worker_init_fn", "multiprocessing_context")
        generator = torch.Generator().manual_seed(entropy.aside("workers").integer(63))
        self._batches: Iterator[Any] = iter(
            DataLoader(
                _Taking(examples),  # type: ignore[arg-type]
                batch_sampler=self._announced(plan),
                collate_fn=_same,
                generator=generator,
                **{name: getattr(examples.loader, name) for name in names},
            )
        )

    def _announced(self, plan: Iterator[Array]) -> Iterator[list[int]]:
        for rows in plan:
            self._planned.append(rows)
            yield rows.tolist()

    def take(self, positions: Array) -> tuple[Any, Any]:
        if not self._planned or not np.array_equal(self._planned[0], positions):
            return self._examples.take(positions)
        self._planned.popleft()
        try:
            inputs, targets = next(self._batches)
        except RuntimeError:
            raise ReleaseFailed(
                "a worker process of the DataLoader was lost, or took longer than its timeout. The price of "
                "the run is spent, and the run is over."
            ) from None
        # The loader announces more as long as there is more: this was the last, and its workers may go.
        if not self._planned:
            next(self._batches, None)
        return inputs, targets

    def close(self) -> None:
        """End the workers of a run that takes no further step."""
        self._batches, self._planned = iter(()), deque()


@dataclass(frozen=True, slots=True)
class _Taking:
    """Is what a worker has of the examples: it takes whole batches."""

    examples: _Dataset

    def __getitems__(self, positions: list[int]) -> tuple[Any, Any]:
        return self.examples.take(np.array(positions, np.int64))


def _same(batch: Any) -> Any:
    return batch


class People:
    """Groups rows by the person they belong to. `ids` has one entry per row, None for a row of nobody.

    People are numbered from 0 in the order in which they first occur. `counts` is the number of rows of each
    person, `length` that of all rows, `names` the ids of the people. All are private.
    """

    def __init__(self, ids: Any) -> None:
        try:
            column = (
                ids
                if isinstance(ids, pa.Array | pa.ChunkedArray)
                else pa.array(_as_list(ids), from_pandas=True)
            )
        except (pa.ArrowException, OverflowError, TypeError, ValueError):
            # The error's text would quote a value.
            raise InvalidInput("people must be numbers or texts, one for each row.") from None
        if isinstance(column, pa.ChunkedArray):
            column = column.combine_chunks()
        # 0.0 and -0.0 are one person, and so are all NaNs; a dictionary may list one name twice.
        encoded = one_name_each(column).dictionary_encode()
        # In the order of the people's numbers. `pate.labeller` assigns people to teachers by a secret hash of
        # these.
        self.names = encoded.dictionary
        codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        # All rows that belong to somebody, sorted by person; the rows of nobody have the code -1.
        order = np.argsort(codes, kind="stable")
        self._order = order[np.searchsorted(codes[order], 0) :]
        self.counts = np.bincount(codes[codes >= 0])
        # The rows of person i are self._order[self._starts[i] : self._starts[i + 1]].
        self._starts = np.concatenate([[0], np.cumsum(self.counts)])
        self.length = len(codes)

    def owned(self) -> tuple[Array, Array]:
        """Return all rows that belong to somebody, and for each of these rows the person's number."""
        return self._order, np.repeat(np.arange(len(self.counts)), self.counts)

    def rows(self, person: int, limit: int | None, entropy: Entropy) -> Array:
        """Return a person's rows in random order, at most `limit` of them, chosen at random.

        Guarantee: every sequence of that many different rows of the person is equally likely, whatever rows
                   other people have.
        Proof:     fresh randomness for each call. The order matters, as the sum of a person's gradients
                   before clipping is rounded in this order: an order that depended on other people's rows
                   would change the person's summand with them.
        """
        positions = self._order[self._starts[person] : self._starts[person + 1]]
        if limit is not None and len(positions) > limit:
            positions = positions[np.asarray(sampling.subset(len(positions), limit, entropy), dtype=np.int64)]
        if len(positions) < 2:
            return positions
        return positions[np.asarray(sampling.permutation(len(positions), entropy), dtype=np.int64)]


def as_array(values: Any) -> npt.NDArray[Any]:
    """Return values as an array of numpy, wherever a tensor among them is."""
    return np.asarray(values.cpu() if isinstance(values, Tensor) else values)


def _as_list(ids: Any) -> Any:
    return ids.tolist() if isinstance(ids, Tensor) else ids


def _owners(public: Public, people: Any, rows: int) -> People | None:
    """Return the rows grouped by person where the unit is a person, None where the unit is a row.

    Refuse `people` that contradicts the unit, or does not have one entry for each of `rows` rows.
    """
    column = public.unit.column
    if column is None:
        if people is not None:
            raise InvalidInput(
                "people= is given, but the unit is a row: declare Public(unit=Unit('the column of people'))."
            )
        return None
    if people is None:
        raise InvalidInput(
            f"the unit is all rows of one person ({column!r}): give the person of each row, people=[...]."
        )
    owners = People(people)
    _require.that(owners.length == rows, "people must have one entry for each row.")
    return owners


def _rows(values: Any, index: Tensor) -> Tensor:
    """Return rows of a tensor, or of an array on disk."""
    if isinstance(values, Tensor):
        return values.index_select(0, index)
    return torch.from_numpy(values[index.cpu().numpy()])


def _from_array(values: Any) -> Tensor:
    """Return an array as a tensor; the error for one that cannot become a tensor quotes no value."""
    try:
        array = np.asarray(values)
        # Arrays of pandas may be read-only, for which torch would warn.
        return torch.as_tensor(array if array.flags.writeable else array.copy(), device="cpu")
    except (TypeError, ValueError, RuntimeError):
        # The error's text could quote a value.
        raise InvalidInput(
            f"inputs and targets must be tensors, or arrays of numbers: this {type(values).__name__} cannot "
            "become one."
        ) from None


def _tensor(values: Any) -> Any:
    """Return values as a tensor with one entry per example, detached from any autograd graph; an array on
    disk (`np.memmap`) stays there."""
    if isinstance(values, np.memmap) and values.ndim:
        return values
    tensor = values if isinstance(values, Tensor) else _from_array(values)
    _require.that(tensor.dim(), "inputs and targets must have a first dimension, one entry for each example.")
    return tensor.detach()


@dataclass(frozen=True, slots=True, kw_only=True)
class Tabular:
    """Reads columns of a table as examples, by the declarations of the schema alone.

    Numbers are clipped to their bounds and scaled to [-1, 1], booleans become -1 and 1, and a missing number
    or boolean becomes 0. A column of categories becomes one indicator per declared category, all 0 for a
    value that is missing or not declared. Features among the columns of `scaling`, which a `PrivateScaler`
    released, are standardized instead. The target is a class number (for categories and booleans; a value
    that is missing, or not declared, counts as the first class) or a number clipped and scaled to [-1, 1].
    """

    features: tuple[str, ...]
    target: str
    scaling: Scaling | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        _require.non_empty(features=self.features)
        if self.scaling is not None and not isinstance(self.scaling, Scaling):
            raise _require.fail(
                "scaling", type(self.scaling).__name__, "the Scaling that a PrivateScaler released"
            )

    def width(self, public: Public) -> int:
        """Return the number of inputs of one example, with an indicator for each category. Refuse a column of
        `scaling` without declared bounds here, before the charge: reading it would fail, and quote a text."""
        scaled = () if self.scaling is None else self.scaling.columns
        for name in self.features:
            if name in scaled:
                public.bounds(name)
        return sum(
            len(f.values) if isinstance(f := public.fact(name), Categories) else 1 for name in self.features
        )

    def shapes(self, public: Public) -> tuple[Tensor, Tensor]:
        """Return inputs and targets of zero examples, which have the shapes and types of one example."""
        classes = isinstance(public.fact(self.target), Categories | Boolean)
        target = (
            torch.zeros(0, dtype=torch.int64, device="cpu") if classes else torch.zeros(0, 1, device="cpu")
        )
        return torch.zeros(0, self.width(public), device="cpu"), target

    def read(self, source: Source) -> Examples:
        """Read a table into examples: features as float32, targets as class numbers or scaled numbers."""
        no_rows = np.zeros((0, self.width(source.public)), np.float32)
        features, targets, owners = [], [], []
        unit = source.public.unit.column
        for batch in source.batches([*self.features, self.target, *([] if unit is None else [unit])]):
            columns = {name: batch.column(name) for name in batch.schema.names}
            features.append(
                np.concatenate([self._feature(columns[n], source.public, n) for n in self.features], axis=1)
            )
            targets.append(_target(columns[self.target], source.public.fact(self.target), self.target))
            owners += [] if unit is None else [columns[unit]]
        x = torch.from_numpy(np.concatenate([no_rows, *features]))
        # Begins with a target of zero rows: so a table without rows has the right type, and does not fail.
        y = torch.from_numpy(np.concatenate([self.shapes(source.public)[1].numpy(), *targets]))
        return Examples(
            x,
            y,
            source.public,
            people=None if unit is None else pa.chunked_array(owners, None if owners else pa.null()),
        )

    def inputs(self, data: Any, public: Public) -> Array:
        """Return the features of PUBLIC rows (a data frame or a mapping of columns), encoded like those of
        private rows. Its errors may quote a value."""
        if data is None or isinstance(data, str | bytes | float | int):
            raise _require.fail("rows", data, "a data frame, or a mapping of columns such as {'age': [30]}")
        names = list(data) if isinstance(data, Mapping) else list(getattr(data, "column_names", data))
        missing = [name for name in self.features if name not in names]
        if missing:
            raise InvalidInput(f"these rows have no column {missing[0]!r}.")
        columns = [self._public_feature(data[name], public, name) for name in self.features]
        if len({len(column) for column in columns}) > 1:
            raise InvalidInput("the columns of these rows have different lengths.")
        return np.concatenate(columns, axis=1)

    def _public_feature(self, values: Any, public: Public, name: str) -> Array:
        """Return the encoding of one column of public rows; its errors may quote a value."""
        try:
            return self._feature(_as_arrow(values), public, name)
        except InvalidInput:
            raise
        except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
            raise InvalidInput(f"column {name!r} of these rows: {error}.") from None

    def _feature(self, values: pa.Array, public: Public, name: str) -> Array:
        """Return the encoding of one feature, [rows, numbers], in float32."""
        if self.scaling is not None and name in self.scaling.columns:
            return self.scaling.column(name, _floats(values)).astype(np.float32)[:, None]
        return _column(values, public.fact(name), name)


def _as_arrow(values: Any) -> Any:
    """Return a column (an Arrow array, a numpy array, a series, a list) as an Arrow array; NaN is missing."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    return pa.array(values.tolist() if hasattr(values, "tolist") else list(values), from_pandas=True)


def _column(values: pa.Array, fact: Any, name: str) -> Array:
    """Return one feature, [rows, numbers]: scaled to [-1, 1], or one indicator per declared category."""
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
    """Return 1 where true, 0 where false, NaN where missing. As in SQL, every number but 0 is true."""
    numbers = _floats(values)
    return np.where(np.isnan(numbers), np.nan, (numbers != 0).astype(np.float64))


def _floats(values: pa.Array) -> Array:
    """Return the numbers of a column in float64, NaN where missing.

    `float` would quote a text that is no number. A source has none in a column that is declared as numbers or
    booleans, as it converts such columns; in public rows (`_public_feature`) it may be quoted."""
    return np.array([np.nan if v is None else float(v) for v in values.to_pylist()], dtype=np.float64)


def empty_batch_of(source: AnySource, reader: Tabular | None) -> tuple[Any, Any]:
    """Return inputs and targets of zero examples, from the public facts of a source."""
    if reader is not None and not isinstance(source, ExampleSource):
        return reader.shapes(source.public)
    return examples_of(source, None).shapes()


def examples_of(source: AnySource, reader: Tabular | None) -> ExampleSource:
    """Return a source of examples: the source itself, or a table's rows as `reader` reads them."""
    if isinstance(source, ExampleSource):
        return source
    if reader is not None:
        return reader.read(source)
    raise NotPrivate(
        f"{type(source).__name__} is not a source of examples: wrap tensors as learning.Examples(x, y, "
        "public), a dataset as learning.Examples.of(dataset, public), or say which columns of a table to "
        "use, columns=Tabular(features=..., target=...)."
    )


def require_same_shapes(tried: tuple[Any, Any], shapes: tuple[Any, Any]) -> None:
    """Refuse a source whose examples have other shapes or types than those that a model was tried on. Both
    are public: `shapes` holds zero examples of the source."""

    def facts(tree: Any) -> list[tuple[tuple[int, ...], torch.dtype]]:
        return [(tuple(t.shape[1:]), t.dtype) for t in tree_leaves(tree)]

    for what, of_tried, of_source in zip(("inputs", "targets"), tried, shapes, strict=True):
        if facts(of_tried) != facts(of_source):
            raise InvalidInput(
                f"this session is over other examples than the trainer was made for: the {what} of one "
                f"example are {_words(facts(of_source))}, and those that the model was tried on "
                f"{_words(facts(of_tried))}. Open a session over the trainer's own examples, or make a "
                "trainer for these."
            )


def _words(facts: list[tuple[tuple[int, ...], torch.dtype]]) -> str:
    """Return the shapes and types of tensors in words."""
    return " and ".join(f"{str(dtype).removeprefix('torch.')} of shape {shape}" for shape, dtype in facts)


@described("learning.FlipAndShift")
class FlipAndShift:
    """Mirrors images [..., height, width] left to right with probability 1/2 (if `flip`) and moves them by up
    to `shift` pixels in each direction; pixels beyond an edge are those reflected at it.

    Where an example has several images as inputs, each is flipped and moved independently. The augmentation
    of De et al. for CIFAR-10 is `FlipAndShift(shift=4)`.
    """

    shift: Annotated[int, at_least(0)] = 4
    flip: bool = True

    def batch(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Return one variant of each image of a batch; each is computed from its own image alone."""
        height, width = images.shape[-2:]
        flat = images.reshape(len(images), -1, height, width)
        padded = F.pad(flat, [self.shift] * 4, mode="reflect") if self.shift else flat
        row_offsets, column_offsets = (
            torch.randint(0, 2 * self.shift + 1, (len(images), 1), generator=generator, device="cpu")
            for _ in range(2)
        )
        columns = column_offsets + torch.arange(width, device="cpu")
        if self.flip:
            is_flipped = torch.randint(0, 2, (len(images), 1), generator=generator, device="cpu").bool()
            columns = torch.where(is_flipped, columns.flip(1), columns)
        rows = (row_offsets + torch.arange(height, device="cpu"))[:, None, :, None]
        image_numbers = torch.arange(len(images), device="cpu")[:, None, None, None]
        channels = torch.arange(flat.shape[1], device="cpu")[None, :, None, None]
        return padded[image_numbers, channels, rows, columns[:, None, None, :]].reshape(images.shape)


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Augment:
    """Makes `times` variants of each example, whose gradients are averaged.

    `function` takes the inputs of ONE example and returns a variant; or it is `FlipAndShift`.

    Guarantee: a variant depends on its own example and on fresh randomness only.
    Proof:     the function is called once for each variant, and is given nothing else.
    Assumes:   the function remembers nothing from one call to the next.
    """

    function: FlipAndShift | Callable[[Any], Any]
    times: Annotated[int, at_least(1)]

    def __post_init__(self) -> None:
        if not isinstance(self.function, FlipAndShift) and not callable(self.function):
            raise _require.fail(
                "function", type(self.function).__name__, "FlipAndShift(...), or a function of one example"
            )

    def __call__(self, inputs: Any, entropy: Entropy) -> Any:
        """Return `times` variants of each example, those of one example one after the other.

        While `function` runs, torch's global generator is seeded with fresh randomness; then it is restored.
        """
        copies = tree_map(lambda t: t.repeat_interleave(self.times, 0), inputs)
        seed = entropy.integer(63)
        if isinstance(self.function, FlipAndShift):
            generator = torch.Generator().manual_seed(seed)
            return tree_map(lambda t: self.function.batch(t, generator), copies)  # type: ignore[union-attr]
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            return _one_by_one(self.function, copies)

    def targets(self, targets: Any) -> Any:
        """Return the targets of all variants: each example's target `times` times in a row."""
        return tree_map(lambda t: t.repeat_interleave(self.times, 0), targets)


def one_variant_each(augment: Augment, inputs: Any) -> Any:
    """Return one variant of each of these MADE-UP examples; raise InvalidInput if the function fails.

    They must be made-up, as the message has the text of the error, which may quote an example.
    """
    try:
        return replace(augment, times=1)(inputs, Entropy())
    except Exception as error:
        raise InvalidInput(
            f"augment failed on made-up examples: {type(error).__name__}: {error}. If these examples are not "
            "valid for it, give made-up ones of your own, as the model gets them, with "
            "synthetic=(inputs, targets). No data was read."
        ) from error


def _one_by_one(function: Callable[[Any], Any], inputs: Any) -> Any:
    """Return the stacked results of the function, which is called once for each example."""
    count = len(torch.utils._pytree.tree_leaves(inputs)[0])
    if not count:
        return inputs
    outputs = [function(tree_map(lambda t, i=i: t[i], inputs)) for i in range(count)]
    return tree_map(lambda *parts: torch.stack(parts), outputs[0], *outputs[1:])
