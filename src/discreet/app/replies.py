"""Decodes a server's replies to the objects that a local session returns, and encodes requests.

Replies are data: no code in them is run.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _registry, _require
from ..accounting.filters import FilterPreview as Cost
from ..curator import values
from ..mechanisms.protocols import Release
from ..query import Answer
from ..query.preview import Preview as QuestionPreview
from ..session.previews import QueryPreview
from ..tables.spill import FILES_PREFIX, PrivateFolder
from .client import ServerError, reads_reply, to_description

if TYPE_CHECKING:
    from ..synthetic import SyntheticCopy


def sent(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options as JSON; fractions stay exact, and options that are None are left out."""
    return {
        name: {key: to_description(part) for key, part in value.items()}
        if isinstance(value, Mapping)
        else to_description(value)
        for name, value in options.items()
        if value is not None
    }


@reads_reply
def answer_of(facts: Mapping[str, Any]) -> Answer:
    """Return the answer of a query."""
    answer = _registry.from_json(facts["answer"])
    if not isinstance(answer, Answer):
        raise ServerError("the server sent something else than an answer.")
    return answer


@reads_reply
def preview_of(facts: dict[str, Any]) -> QueryPreview:
    """Return the preview of one question, or of a workload of several.

    The reply has the fields of the preview, and beside them fields that a `QueryPreview` computes itself:
    these are dropped.
    """
    from ..query.workload import WorkloadPreview

    cost = Cost(**facts.pop("budget"))
    answered = facts.pop("answered")
    for computed in ("admitted", "fits", "buys"):
        facts.pop(computed)
    facts.pop("odds", None)
    event = _registry.from_json(facts.pop("event"))
    # only the preview of one question has the field "keys"
    preview_class: Any = QuestionPreview if "keys" in facts else WorkloadPreview
    fields = {name: _tuples(value) for name, value in facts.items()}
    return QueryPreview(preview_class(event=event, **fields), cost, answered)


def _tuples(value: Any) -> Any:
    """Return lists, also nested ones, as tuples, which JSON does not have."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


@reads_reply
def release_of(facts: Mapping[str, Any]) -> Release:
    """Return a release with its price and its error."""
    error = values.recalled(facts["errors"])
    event = _registry.from_json(facts["event"])
    return Release(
        value=values.decode(facts["value"]),
        event=event,
        error_in_scores=bool(facts.get("scored")),
        _error=error,
    )


@reads_reply
def model_of(facts: Mapping[str, Any]) -> Any:
    """Return a fitted model: from JSON, or from safetensors, which hold no code."""
    if "safetensors" in facts:
        from ..learning import models

        with PrivateFolder(FILES_PREFIX) as folder:
            path = folder / "model.safetensors"
            path.write_bytes(base64.b64decode(facts["safetensors"]))
            return models.load(path)
    from ..learning.tabular.cards import loads

    return loads(json.dumps(facts["model"]))


@reads_reply
def copy_of(facts: Mapping[str, Any], rows: int | None, seed: int | None) -> SyntheticCopy:
    """Return a synthetic copy from its released distribution; its rows are drawn in this process, with
    `seed`."""
    from ..synthetic import Fitted, SyntheticCopy

    fitted = values.decode(facts["fitted"])
    if not isinstance(fitted, Fitted):
        raise ServerError("the server sent something else than a synthetic copy.")
    # the (epsilon, delta) that the caller of `synthesize` gave; None where the price was given as rho
    requested_price = facts.get("asked")
    price = (
        None
        if requested_price is None
        else (_registry.from_json(requested_price[0]), float(requested_price[1]))
    )
    event = _registry.from_json(facts["event"])
    return SyntheticCopy.of(fitted, event, rows=rows, seed=seed, asked=price)


def rows_json(rows: Any) -> dict[str, Any]:
    """Return a data frame, an Arrow table, a mapping of columns or a file (CSV or Parquet) as JSON that holds
    an Arrow stream."""
    import pyarrow as pa
    from pyarrow import csv, parquet

    if isinstance(rows, str | Path):
        table = csv.read_csv(rows) if str(rows).endswith(".csv") else parquet.read_table(rows)
    elif isinstance(rows, pa.Table):
        table = rows
    elif isinstance(rows, Mapping):
        table = pa.table(dict(rows))
    elif hasattr(rows, "to_arrow"):
        table = rows.to_arrow()
    else:
        table = pa.Table.from_pandas(rows, preserve_index=False)
    encoded: dict[str, Any] = values.encode(table)
    return encoded


def listed_edges(value: Any) -> Any:
    """Return a number of bins, or a list of their edges, as JSON; dates become texts."""
    if isinstance(value, int):
        return value
    return [item if isinstance(item, int | float) else str(item) for item in _require.listed(bins=value)]


def work_json(item: Any) -> Any:
    """Return one piece of work for `RemoteSession.plan` as JSON: SQL, a list of SQL, (estimator, target), or
    a mapping of these."""
    from .web.estimators import describe_estimator

    if isinstance(item, str):
        return item
    if isinstance(item, tuple) and len(item) == 2 and hasattr(item[0], "get_params"):
        return {"estimator": describe_estimator(item[0]), "target": item[1]}
    if isinstance(item, Mapping):
        fields = dict(item)
        if "estimator" in fields:
            fields["estimator"] = describe_estimator(fields["estimator"])
        return {name: list(value) if isinstance(value, tuple) else value for name, value in fields.items()}
    if isinstance(item, list | tuple) and item and all(isinstance(part, str) for part in item):
        return list(item)
    raise _require.fail(
        "work", type(item).__name__, "SQL, a list of SQL, (estimator, target), or a mapping of these"
    )
