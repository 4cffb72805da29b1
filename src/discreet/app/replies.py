"""Decodes a server's replies to the objects that a local session returns, and encodes requests.

Replies are data: no code in them is run.

Defines the read-only half of a session over HTTP: public facts, budgets, and the ledger entries, releases
and synthetic copies of the token's holder.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _registry, _require
from .._public import Public
from .._require import NearestNames
from .._round import LowerAmount, UpperAmount
from ..accounting.filters import FilterPreview as Cost
from ..curator import Budget, values
from ..curator.accounts import legible
from ..curator.policy import spending_table
from ..mechanisms.protocols import Release
from ..query import Answer
from ..query.preview import Preview as QuestionPreview
from ..session.base import QueryPreview
from .client import Server, ServerError, dataset_path, reads_reply, to_description

if TYPE_CHECKING:
    from ..synthetic import SyntheticCopy
    from ..tables import Memory


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
        trust=facts.get("trust"),
        _error=error,
    )


@reads_reply
def model_of(facts: Mapping[str, Any]) -> Any:
    """Return a fitted model from the JSON of its file, which holds no code."""
    from ..tabular import model_cards, model_files

    text = json.dumps(facts["model"])
    if facts["model"]["holds"] == model_files.NETWORK:
        from ..learning.model_files import loads

        return loads(text)
    return model_cards.loads(text)


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
    from .web.estimator_json import describe_estimator

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


# Decoders of a server's reply; where one fails, the error says that the server is at fault.
from_description, value_of = reads_reply(_registry.from_json), reads_reply(values.decode)
number_of = reads_reply(float)
# How many lines of a list are asked for at a time: the most that a server sends.
_PAGE = 1000


@reads_reply
def page_of(facts: Mapping[str, Any], name: str, first: int) -> list[dict[str, Any]]:
    """Return the lines of one page of a list; refuse a reply that does not begin at line `first`, as that of
    a server that does not know pages, which would be asked for ever."""
    if facts["first"] != first:
        raise ValueError("another page than was asked for")
    lines: list[dict[str, Any]] = facts[name]
    if not isinstance(lines, list) or len(lines) > _PAGE:
        raise TypeError("no list of lines")
    return lines


@reads_reply
def _spending_text(accounts: list[dict[str, Any]], budget: Budget) -> str:
    """Return what is spent and left on each account of a budget. Replies do not say what is spent of
    delta."""
    total = None if budget.per is None else budget.per.limit
    tables = []
    for n, account in enumerate(accounts, 1):
        limit, used = number_of(account["limit"]), number_of(account["used"])
        # The account of all periods together comes last.
        delta = total.delta if total is not None and n == len(accounts) else budget.delta
        spent = (str(account["unit"]), limit, UpperAmount(used), legible(limit - used, limit))
        tables.append(spending_table(str(account["of"]), [spent, ("delta", delta, None, None)]))
    return "\n\n".join([*tables, "(the server does not say how much of delta is spent)"])


@dataclass(frozen=True, slots=True)
class RemoteReader(NearestNames):
    """Reads one dataset on a server as the token's holder sees it; nothing here costs or changes anything.

    `name` is that of the dataset; `periods`, if any, restrict requests to the rows of these periods.
    """

    server: Server
    name: str
    periods: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self.name!r}>"

    def call(self, method: str, path: str, **body: Any) -> dict[str, Any]:
        """Send a request about this dataset; fields of the body that are None are left out. A GET has no
        body."""
        full_path = dataset_path(self.name) + path
        if method == "GET":
            return self.server.call("GET", full_path)
        return self.server.call(method, full_path, self._body(body))

    def _all(self, path: str, name: str) -> list[dict[str, Any]]:
        """Return all lines of a list that the server sends in pages."""
        lines: list[dict[str, Any]] = []
        while True:
            facts = self.call("GET", f"{path}?last={_PAGE}&first={len(lines)}")
            lines += page_of(facts, name, len(lines))
            if len(facts[name]) < _PAGE:
                return lines

    def _body(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that are not None, with the periods of this session."""
        present = {key: value for key, value in body.items() if value is not None}
        return present | ({"periods": list(self.periods)} if self.periods else {})

    @property
    def public(self) -> Public:
        """What everybody may know about the table."""
        public: Public = from_description(self.call("GET", "")["public"])
        return public

    @property
    def budget(self) -> Budget:
        """The budget that limits the token's holder: their own, or that of the dataset. Printed, it shows
        what was spent and left when it was fetched, of epsilon or rho; of delta only the limit."""
        facts = self.call("GET", "/budget")
        budget: Budget = from_description(facts["budget"])
        text = _spending_text(facts["accounts"], budget)
        return budget.showing(lambda: text)

    @property
    def spent(self) -> float:
        """How much of `budget` is spent; printed rounded up."""
        return UpperAmount(number_of(self.call("GET", "/budget")["used"]))

    @property
    def remaining(self) -> float:
        """How much of `budget` is left; printed rounded down."""
        return LowerAmount(number_of(self.call("GET", "/budget")["remaining"]))

    @property
    def accounts(self) -> list[dict[str, Any]]:
        """The accounts of `budget`: one, or one per period."""
        accounts: list[dict[str, Any]] = self.call("GET", "/budget")["accounts"]
        return accounts

    @property
    def ledger(self) -> list[dict[str, Any]]:
        """All entries that the token's holder may see."""
        return self._all("/ledger", "entries")

    @property
    def analyst(self) -> str:
        """The name of the token's holder."""
        return str(self.server.call("GET", "/me")["name"])

    def dummy(self, rows: int = 100, seed: int = 0) -> Memory:
        """Return a made-up table with the same schema, to write queries against. It says nothing about the
        data."""
        from ..tables import dummy

        return dummy(self.public, rows, seed)

    def copies(self) -> list[dict[str, Any]]:
        """Return all synthetic copies of the token's holder."""
        return self._all("/copies", "copies")

    def copy(self, number: int, rows: int | None = None, *, seed: int | None = None) -> SyntheticCopy:
        """Return a synthetic copy that was made before, by the number of its release; without `rows` and
        `seed`, the same rows as on the server, whose seed is that number."""
        _require.integer(number=number)
        facts = self.call("GET", f"/copies/{int(number)}")
        return copy_of(facts, rows, int(number) if seed is None else seed)

    def releases(self) -> list[dict[str, Any]]:
        """Return all stored releases of the token's holder."""
        return self._all("/releases", "releases")

    def release(self, number: int) -> Any:
        """Return the value of a stored release, by its number in `releases()`."""
        _require.integer(number=number)
        return value_of(self.call("GET", f"/releases/{int(number)}")["value"])
