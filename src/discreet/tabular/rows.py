"""Encodes rows of a table as vectors of coordinates, from the declared schema alone, with norms that are
bounded by public facts.

A number becomes a coordinate in [-1, 1], a truth value -1 or 1, a category one indicator per declared value;
a missing or undeclared value is 0. Rows above the bounds on the norms are scaled down to them. Of a unit with
several rows one is used, drawn at random.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .. import _require, sampling
from .._errors import InvalidInput
from .._public import Boolean, Bounds, Categories, Public
from .._registry import described
from .._require import NON_EMPTY, among
from ..mechanisms.arrow_columns import one_name_each
from ..sampling import Entropy
from ..tables import Memory, Source

Array = npt.NDArray[np.float64]
# Rows are held in single precision, which takes half the memory. All sensitivities are those of rows after
# this rounding.
Rows = npt.NDArray[np.float32]
# The bounds of `norms` are this factor above the norms that rows are scaled down to. It covers the rounding
# errors of scaling, and of single precision, which is at most 2^-24 of each coordinate.
_MARGIN = 1 + 2.0**-20
CLIPS = ("typical", "never")
# How many rows are converted together: with 50 columns 1.6 MB, so that they fit a second-level cache. Chosen
# by hand, not tuned.
_CHUNK = 1 << 12
# The largest number of coordinates that memory is reserved for in advance; the array grows where a table has
# more.
_RESERVED = 1 << 28


@described("learning.Design")
class Design:
    """Says which columns are the coordinates of a row, which one is the target, and which norms rows may
    have.

    `clip`: with "never" the bounds on the norms are those of the longest row that the declared bounds allow,
    and no row is scaled down. With "typical" they are the norms of a row whose numbers are uniform in their
    bounds (a squared coordinate is 1/3 and an absolute one 1/2 on average), and longer rows are scaled down:
    less noise for a little bias. The intercept is a last coordinate that is 1 before scaling, and counts in
    the norms.
    """

    features: Annotated[tuple[str, ...], NON_EMPTY]
    target: str | None
    intercept: bool = True
    clip: Annotated[str, among(CLIPS)] = "typical"

    def __post_init__(self) -> None:
        _require.that(
            len(set(self.features)) == len(self.features), f"a feature is named twice: {list(self.features)}."
        )
        _require.that(
            self.target not in self.features, f"the target {self.target!r} cannot be a feature, too."
        )

    def require_target(self) -> None:
        """Refuse a design without a target, for a learner that predicts one."""
        _require.must(self.target is not None, "target", None, "the name of a column")

    def check(self, public: Public) -> None:
        """Refuse features without declared Bounds, Categories or Boolean, and the unit's column as a
        feature."""
        for name in self.features:
            _require.that(
                isinstance(public.fact(name), Bounds | Categories | Boolean),
                f"column {name!r} cannot be a feature: declare Bounds, Categories or Boolean for it.",
            )
        if public.unit.column in self.features:
            raise InvalidInput(f"{public.unit.column!r} identifies people and cannot be a feature.")

    def names(self, public: Public) -> tuple[str, ...]:
        """Return the name of each coordinate."""
        result: list[str] = []
        for name in self.features:
            fact = public.fact(name)
            result += [f"{name}={value}" for value in fact.values] if isinstance(fact, Categories) else [name]
        return (*result, *(["intercept"] if self.intercept else []))

    def width(self, public: Public) -> int:
        return len(self.names(public))

    def norms(self, public: Public) -> tuple[float, float]:
        """Return bounds on the l1 and the l2 norm of a row: a truth value, a category and the intercept count
        1 each, and a number 1 or its typical share."""
        numbers = sum(isinstance(public.fact(name), Bounds) for name in self.features)
        discrete = len(self.features) - numbers + self.intercept
        l1, squared = (0.5, 1 / 3) if self.clip == "typical" else (1.0, 1.0)
        return (discrete + l1 * numbers) * _MARGIN, math.sqrt(discrete + squared * numbers) * _MARGIN

    def matrix(self, columns: Mapping[str, pa.Array], public: Public) -> Array:
        """Return the coordinates of rows, not yet scaled down."""
        result = np.empty((len(columns[self.features[0]]), self.width(public)))
        self._fill(result, columns, public, clipped=False)
        return result

    def _fill(self, result: Any, columns: Mapping[str, pa.Array], public: Public, *, clipped: bool) -> None:
        """Write the coordinates of rows into `result`, in blocks of `_CHUNK` rows; with `clipped`, scaled
        down to `norms`."""
        numbers, discrete, column = [], [], 0
        norms = self.norms(public) if clipped else None
        for name in self.features:
            fact = public.fact(name)
            if isinstance(fact, Bounds):
                numbers.append((column, _floats(columns[name]), fact))
            else:
                discrete.append((column, _coordinates(columns[name], fact)))
            column += len(fact.values) if isinstance(fact, Categories) else 1
        # one pass over all numbers of a block; low and high are columns, one entry per number
        number_columns = np.array([start_column for start_column, _, _ in numbers], dtype=np.int64)
        low, high = (np.array([[float(end)] for end in ends]) for ends in _ends(numbers))
        for start in range(0, len(result), _CHUNK):
            stop = min(start + _CHUNK, len(result))
            block = np.empty((stop - start, result.shape[1]))
            if numbers:
                block[:, number_columns] = _scale_to_unit(
                    np.stack([v[start:stop] for _, v, _ in numbers]), low, high
                ).T
            for start_column, values in discrete:
                block[:, start_column : start_column + values.shape[1]] = values[start:stop]
            if self.intercept:
                block[:, -1] = 1.0
            result[start:stop] = block if norms is None else self._clip_rows(block, norms)

    def read(self, source: Source, entropy: Entropy) -> tuple[Rows, Array]:
        """Return the rows, scaled down to `norms`, and their targets; one row of each unit.

        Guarantee: neighboring tables give the same rows, in distribution, except for one unit's row.
        Proof:     a row's coordinates are a function of that row; which row of a unit is used depends on that
                   unit's rows only.
        Assumes:   numpy adds up each row of a contiguous block in an order that depends on its width alone.
        """
        return self.load(source).pick_rows(entropy)

    def load(self, source: Source) -> Loaded:
        """Return all rows, scaled down to `norms`, their targets, and the units that they belong to."""
        public, unit = source.public, source.public.unit.column
        column_names = [
            *self.features,
            *([] if self.target is None else [self.target]),
            *([] if unit is None else [unit]),
        ]
        width, count = self.width(public), 0
        # Reserve memory for the declared number of rows; the system assigns it only as it is written.
        x = np.empty((min(public.size or 0, _RESERVED // width), width), dtype=np.float32)
        targets, owners = [np.zeros(0)], []
        for batch in source.batches(list(dict.fromkeys(column_names))):
            columns = {name: batch.column(name) for name in batch.schema.names}
            if count + len(batch) > len(x):
                x = np.concatenate([x[:count], np.empty((max(count, len(batch)), width), dtype=np.float32)])
            self._fill(x[count : count + len(batch)], columns, public, clipped=True)
            count += len(batch)
            targets.append(
                np.zeros(len(batch))
                if self.target is None
                else encode_target(columns[self.target], public.fact(self.target))
            )
            owners += [] if unit is None else [columns[unit]]
        return Loaded(x[:count], np.concatenate(targets), None if unit is None else owners)

    def _clip_rows(self, x: Array, norms: tuple[float, float]) -> Array:
        """Scale rows down, in place, to norms a factor `_MARGIN` below `norms`, which leaves room for
        rounding."""
        if self.clip == "never":
            # every coordinate is in [-1, 1], and at most one indicator of a category is 1: no row is longer
            return x
        l1, l2 = (norm / _MARGIN for norm in norms)
        # Not einsum, which adds up a row of more than 8192 coordinates in an order that depends on where the
        # row stands: then one person would change how the rows of others are scaled.
        ratio = np.maximum(np.abs(x).sum(axis=1) / l1, np.sqrt(np.square(x).sum(axis=1)) / l2)
        x /= np.maximum(ratio, 1.0)[:, None]
        return x

    def encode(self, X: Any, public: Public) -> Array:
        """Return the coordinates of new rows (a mapping of columns, a data frame, an Arrow table), for
        prediction: never scaled down."""
        columns_by_name: Any = X if isinstance(X, Mapping) or hasattr(X, "columns") else None
        names: Any = (
            columns_by_name.column_names if isinstance(columns_by_name, pa.Table) else columns_by_name
        )
        _require.that(
            columns_by_name is not None and all(name in names for name in self.features),
            f"the model predicts from the columns {list(self.features)}, by name; some are missing.",
        )
        columns = {name: _as_arrow(columns_by_name[name], name) for name in self.features}
        if len({len(column) for column in columns.values()}) > 1:
            raise InvalidInput("the columns of these rows have different lengths.")
        # as a table with the declared schema, so that values are converted as those of the training table
        facts = tuple((name, public.fact(name)) for name in self.features)
        source = Memory(pa.table(columns), Public(schema=facts, table=public.table))
        blocks = [np.zeros((0, self.width(public)))]
        for batch in source.batches(list(self.features)):
            blocks.append(self.matrix({name: batch.column(name) for name in batch.schema.names}, public))
        return np.concatenate(blocks)


@dataclass(frozen=True)
class Loaded:
    """Holds all rows of a table as a design reads them; `pick_rows` draws one row of each unit.

    `owners` has the column of units, batch by batch; None where every row is a unit of its own.
    """

    x: Rows
    y: Array
    owners: list[Any] | None

    def pick_rows(self, entropy: Entropy) -> tuple[Rows, Array]:
        """Return the coordinates and the targets of one random row of each unit."""
        if self.owners is None:
            return self.x, self.y
        positions = one_row_each(self.owners, entropy)
        return self.x[positions], self.y[positions]


def _as_arrow(values: Any, name: str) -> Any:
    """Return a column of new rows as an Arrow array. Rows to predict are not protected, so that an error may
    quote them."""
    if isinstance(values, pa.Array | pa.ChunkedArray):
        return values
    try:
        return pa.array(values, from_pandas=True)
    except (TypeError, ValueError, OverflowError, pa.ArrowException) as error:
        raise InvalidInput(f"column {name!r} of these rows: {error}.") from None


def one_row_each(owners: Sequence[pa.Array], entropy: Entropy) -> npt.NDArray[np.int64]:
    """Return the positions of one random row of each unit, sorted; rows whose unit is missing are left out.

    Guarantee: each of a unit's rows is equally likely (up to ties of 62-bit numbers), independently of all
               other units.
    Proof:     every row draws a uniform number, its ticket; the unit's row with the smallest ticket is used.
    """
    column = pa.chunked_array(owners, type=None if owners else pa.null()).combine_chunks()
    encoded = one_name_each(column).dictionary_encode()
    codes = pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
    tickets = sampling.uniform_below(1 << 62, len(codes), entropy)
    order = np.lexsort((tickets, codes))
    sorted_codes = codes[order]
    is_first = np.ones(len(order), dtype=bool)
    is_first[1:] = sorted_codes[1:] != sorted_codes[:-1]
    return np.sort(order[is_first & (sorted_codes >= 0)])


def encode_target(values: pa.Array, fact: Any) -> Array:
    """Return targets: the position of the class among the declared ones (0 for a missing or undeclared
    class), or a number scaled to [-1, 1] (0 where it is missing)."""
    if isinstance(fact, Categories):
        return np.maximum(_category_codes(values, fact), 0).astype(np.float64)
    if isinstance(fact, Boolean):
        numbers = _floats(values)
        return np.asarray(np.nan_to_num(numbers) != 0, dtype=np.float64)
    return _coordinates(values, fact)[:, 0]


def classes_of(public: Public, target: str) -> list[Any]:
    """Return the declared classes of a target; refuse one that has none."""
    fact = public.fact(target)
    if not isinstance(fact, Categories | Boolean):
        raise InvalidInput(
            f"a classifier needs a target with declared categories, and {target!r} has none. Declare "
            "Categories or Boolean for it, or use a regression."
        )
    values = [False, True] if isinstance(fact, Boolean) else list(fact.values)
    _require.that(len(values) >= 2, f"at least two classes must be declared for {target!r}.")
    return values


def features_of(public: Public, target: str | None, features: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the chosen features, and by default all columns that can be features; neither the target nor the
    unit's column can."""
    if features is not None:
        return _require.listed(features=features)
    excluded = (target, public.unit.column)
    names = tuple(
        name
        for name, fact in public.schema
        if isinstance(fact, Bounds | Categories | Boolean) and name not in excluded
    )
    _require.that(
        names,
        "there is no feature: no column besides target and unit has declared Bounds, Categories or Boolean.",
    )
    return names


def _ends(numbers: Sequence[tuple[int, Array, Bounds]]) -> tuple[list[float], list[float]]:
    """Return the lower and the upper bounds of numbers, given as (first coordinate, values, bounds)."""
    return [float(fact.lower) for *_, fact in numbers], [float(fact.upper) for *_, fact in numbers]


def _scale_to_unit(numbers: Array, low: Any, high: Any) -> Array:
    """Clip numbers to their bounds and scale these to [-1, 1], in place; a missing number (NaN) becomes 0."""
    np.clip(numbers, low, high, out=numbers)
    # halves and quarters, so that no difference of declared bounds overflows
    numbers /= 2
    numbers -= low / 2
    # bounds so near to 0 that their quarters are equal make every number NaN; a warning would tell whether
    # there are rows
    with np.errstate(invalid="ignore", divide="ignore"):
        numbers /= high / 4 - low / 4
    numbers -= 1
    np.clip(numbers, -1, 1, out=numbers)
    numbers[np.isnan(numbers)] = 0.0
    return numbers


def _coordinates(values: pa.Array, fact: Any) -> Array:
    """Return the coordinates of one column, one row per value: a scaled number, -1 or 1 of a boolean, or the
    indicators of a category; a missing or undeclared value has 0."""
    if isinstance(fact, Bounds):
        return _scale_to_unit(np.array(_floats(values)), float(fact.lower), float(fact.upper))[:, None]
    if isinstance(fact, Boolean):
        numbers = _floats(values)
        return np.where(np.isnan(numbers), 0.0, np.where(numbers != 0, 1.0, -1.0))[:, None]
    codes = _category_codes(values, fact)
    result = np.zeros((len(codes), len(fact.values)))
    is_declared = codes >= 0
    result[np.flatnonzero(is_declared), codes[is_declared]] = 1.0
    return result


def _category_codes(values: pa.Array, fact: Categories) -> npt.NDArray[np.int64]:
    """Return the position of each value among the declared ones, -1 for any other."""
    if pa.types.is_dictionary(values.type):
        values = values.dictionary_decode()
    try:
        declared = pa.array(list(fact.values)).cast(values.type)
        is_lossless = declared.to_pylist() == list(fact.values)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        is_lossless = False
    if is_lossless:
        positions = pc.fill_null(pc.index_in(values, value_set=declared), -1)
        return np.asarray(positions.to_numpy(zero_copy_only=False), dtype=np.int64)
    # reversed, so that of declared values that are equal the first counts
    code_of = {value: i for i, value in reversed(list(enumerate(fact.values)))}
    return np.array([code_of.get(value, -1) for value in values.to_pylist()], dtype=np.int64)


def _floats(values: pa.Array) -> Array:
    """Return a column as floats, NaN for a missing value. The result may be a view of the column's own
    memory: never write to it."""
    if (
        pa.types.is_boolean(values.type)
        or pa.types.is_integer(values.type)
        or pa.types.is_floating(values.type)
    ):
        numbers = (
            values.cast(pa.float64(), safe=False)
            if not pa.types.is_boolean(values.type)
            else values.cast(pa.int8()).cast(pa.float64())
        )
        if numbers.null_count:
            numbers = pc.fill_null(numbers, math.nan)
        return np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float64)
    return np.array(
        [math.nan if value is None else float(value) for value in values.to_pylist()], dtype=np.float64
    )
