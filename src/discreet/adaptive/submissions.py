"""Defines submissions to a leaderboard: predicted labels by the id of their row, and how many of them are
wrong."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .. import _require
from .._errors import InvalidInput
from .._public import Boolean, Categories, Public
from .._registry import described
from ..mechanisms import arrow_columns
from ..mechanisms.statistics import require_rows
from ..tables import Source

Integers = npt.NDArray[np.int64]
# The largest number of characters of a submission's name, which is stored in the ledger. Chosen by hand.
_MAX_CHARACTERS = 100


@described("adaptive.Submission")
@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """Holds predictions under a name; build it with `Submission.of`.

    Its JSON description, which the ledger stores, has the number (`rows`) and the SHA-256 `digest` of the
    predictions, not the predictions. An object read back from it cannot be scored.
    """

    name: str
    rows: int = 0
    digest: str = ""
    _ids: Any = field(default=None, init=False, repr=False, compare=False)
    _labels: Any = field(default=None, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if (
            not isinstance(self.name, str)
            or not 0 < len(self.name) <= _MAX_CHARACTERS
            or not self.name.isprintable()
        ):
            raise _require.fail("name", self.name, f"a printable text of 1 to {_MAX_CHARACTERS} characters")
        _require.integer(rows=self.rows, at_least=0)
        if not isinstance(self.digest, str):
            raise _require.fail("digest", self.digest, "a text")

    @classmethod
    def of(cls, name: str, predictions: Mapping[Any, Any]) -> Submission:
        """Build a submission from predicted labels by id.

        Ids are whole numbers or texts; labels are checked against the declared ones when the submission is
        scored.
        """
        if not isinstance(predictions, Mapping) or not predictions:
            raise _require.fail("predictions", type(predictions).__name__, "labels by id, at least one")
        ids, labels = list(predictions), list(predictions.values())
        try:
            array = pa.array(ids)
            kind = array.type
            if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
                raise TypeError(kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise InvalidInput(
                "the ids of a submission must be all whole numbers, or all texts. Nothing was scored."
            ) from None
        text = "\n".join(f"{i!r}:{label!r}" for i, label in zip(ids, labels, strict=True))
        self = cls(name=name, rows=len(ids), digest=hashlib.sha256(text.encode()).hexdigest())
        object.__setattr__(self, "_ids", array)
        object.__setattr__(self, "_labels", labels)
        return self

    def codes(self, public: Public, target: str) -> Integers:
        """Return the index of each predicted label among the declared categories; InvalidInput if a label is
        not declared.

        Reads no data.
        """
        if self._ids is None:
            raise InvalidInput(
                "this is only the description of a submission, which does not contain its predictions. "
                "Nothing was scored."
            )
        code_of = {value: i for i, value in enumerate(categories(public, target))}
        plain = [label.item() if isinstance(label, np.generic) else label for label in self._labels]
        unknown = next(
            (label for label in plain if not isinstance(label, str | int) or label not in code_of), None
        )
        # a label None is not declared either, but looks like "no unknown label" here
        if unknown is not None or None in plain:
            raise InvalidInput(
                f"{unknown!r} is not a declared label of column {target!r}; the labels are "
                f"{list(code_of)[:20]}. Nothing was scored."
            )
        return np.array([code_of[label] for label in plain], np.int64)


def categories(public: Public, target: str) -> tuple[str | int, ...]:
    """Return the labels a column can have, as declared."""
    fact = public.fact(target)
    if isinstance(fact, Boolean):
        # equal to False and True, so that both spellings are accepted
        return (0, 1)
    if not isinstance(fact, Categories):
        raise InvalidInput(f"the target {target!r} must be declared as Categories([...]) or Boolean().")
    return fact.values


def check_columns(public: Any, target: Any, id: Any) -> None:
    """Check that one row is the unit of privacy, that the target has declared labels, and that the id is
    another column."""
    arrow_columns.require_public(public)
    require_rows(public)
    categories(public, target)
    if not isinstance(id, str) or id == target:
        raise _require.fail("id", id, "the name of the column that tells rows apart")


def losses(source: Source, submission: Submission, target: str, id: str) -> tuple[Any, Integers]:
    """Return the ids of all rows, as a list of arrays, and the loss of each row in the same order: 1 where
    its label is missing, is not the predicted one, or was not predicted, else 0.

    Guarantee: the loss of a row depends on this row only, so one row moves the sum by at most 1 under every
               neighbor relation.
    """
    codes, labels = submission.codes(source.public, target), categories(source.public, target)
    ids, row_losses = [], []
    for batch in source.batches([id, target]):
        keys, truth = (
            batch.column(0),
            arrow_columns.categories(arrow_columns.unpacked(batch.column(1)), labels, target),
        )
        ids.append(keys)
        row_losses.append(
            np.where(_predictions_by_id(keys, submission._ids, codes) == truth, 0, 1) | (truth < 0)
        )
    return ids, np.concatenate(row_losses).astype(np.int64) if row_losses else np.zeros(0, np.int64)


def _predictions_by_id(keys: Any, ids: Any, codes: Integers) -> Integers:
    """Return the predicted code of each key, or -1 where none was predicted."""
    keys = arrow_columns.unpacked(keys)
    try:
        positions = pc.fill_null(pc.index_in(keys, value_set=ids.cast(keys.type), skip_nulls=True), -1)
    except (pa.ArrowException, NotImplementedError):
        # ids that cannot be cast to the type of the keys match no row
        return np.full(len(keys), -1, np.int64)
    indices = positions.to_numpy(zero_copy_only=False).astype(np.int64)
    # index -1, of a key without a prediction, selects the -1 at the end
    predicted: Integers = np.append(codes, -1)[indices]
    return predicted
