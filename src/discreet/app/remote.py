"""`RemoteCurator`: the curator of a dataset on a server, for an ordinary `Session`.

A session builds descriptions (`_registry`) and hands them to its curator. The local one runs them; this one
sends them: `ask`, `start`, `answer`, `feed`, `run` and `read`. What it knows itself are public facts: the
schema, the budgets that limit the caller, and prices. No reply is unpickled: answers are JSON descriptions,
models are JSON. A reply that cannot be read is a `ServerError`.
"""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from .. import _registry, _require
from .._errors import DescriptionError, InvalidInput, PublicMismatch
from .._public import Public
from .._round import UpperAmount
from ..accounting.filters import BudgetFilter, FilterPreview
from ..curator import STEWARD, Budget, Policy, values
from ..curator.accounts import legible
from ..curator.curator import NoData
from ..curator.entries import Anchor, Entry
from ..curator.live_mechanisms import Handle
from ..curator.policy import LIMITS, spending_table
from ..mechanisms.protocols import BaseMechanism, Release, as_of
from ..query import Answer, Query, WorkloadQuery
from ..session import Session
from .client import Job, Server, dataset_path, reads_reply
from .estimator_json import describe_estimator

if TYPE_CHECKING:
    from ..synthetic import SyntheticCopy

Progress = Callable[[dict[str, Any]], None]
# How many lines of a list are asked for at a time: the most that a server sends.
_PAGE = 1000


def open_session(server: Server, name: str) -> Session:
    """Return the session of a dataset on a server, as the holder of the token."""
    curator = RemoteCurator(server, name)
    return Session(curator, curator.analyst)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class RemoteAccount:
    """What was spent on one account (`curator.accounts.Account`), as the server tells it."""

    of: str
    rule: BudgetFilter
    used: float
    pure: float
    own_delta: float

    @property
    def left(self) -> float:
        """How much of the budget is left, rounded down."""
        return legible(float(self.rule.total) - self.used, float(self.rule.total))

    def text(self) -> str:
        """Return what is spent and left as a table; of delta only the limit."""
        amounts = (self.rule.unit, float(self.rule.total), self.used, self.left)
        table = spending_table(self.of, [amounts, ("delta", self.rule._delta(), None, None)])
        return f"{table}\n\n(the server does not say how much of delta is spent)"


@dataclass(frozen=True, slots=True)
class RemoteLedger(_require.NearestNames):
    """The entries that the caller may see: all to a steward, to an analyst their own charges and served
    answers, under their own numbers and without hashes."""

    curator: RemoteCurator

    @property
    def path(self) -> str:
        return f"the ledger of {self.curator.name!r} on the server"

    def refreshed(self) -> AbstractContextManager[None]:
        """Do nothing: each request reads the ledger as it is then."""
        return nullcontext()

    def lines(self) -> list[dict[str, Any]]:
        """Return the entries as the server writes them, with their prices and what they record in words."""
        return self.curator.pages("/ledger", "entries")

    def entries(self, *, kind: str | None = None, after: int = 0) -> Iterator[Entry]:
        """Yield the entries above the number `after`, in order, of one `kind` if given."""
        for line in self.lines():
            entry = _entry_of(line)
            if entry.seq > after and kind in (None, entry.kind):
                yield entry

    def entry(self, seq: int) -> Entry:
        """Return the entry with a number."""
        for entry in self.entries(after=seq - 1):
            if entry.seq == seq:
                return entry
        raise InvalidInput(f"there is no entry {seq} that you may see.")

    @property
    def anchor(self) -> Anchor:
        """The number and hash of the newest entry; told to stewards and auditors."""
        return Anchor.parse(self.curator.read("/ledger?last=1")["anchor"])


@reads_reply
def _entry_of(line: Mapping[str, Any]) -> Entry:
    body = line["body"]
    if not isinstance(body, dict):
        raise TypeError("no body")
    digest, signature = (bytes.fromhex(line.get(name) or "") for name in ("hash", "signature"))
    return Entry(int(line["seq"]), str(line["time"]), str(line["kind"]), body, digest, signature)


@dataclass(frozen=True, slots=True)
class RemoteHandle(Handle):
    """Asks an interactive mechanism on the server; its price was charged at its start."""

    curator: RemoteCurator
    mechanism: Any
    number: int

    def answer(self, question: Any) -> Release:
        """Ask one question: an object with a JSON description, or a condition in SQL."""
        described = question if isinstance(question, str) else self.curator.describe(question)
        return _release_of(self.curator.post("/answer", number=self.number, question=described))

    def on_ledger_of(self, curator: Any) -> bool:
        """Return whether its price was paid in the ledger of this curator."""
        return (
            bool(curator.away) and curator.name == self.curator.name and curator.server is self.curator.server
        )


@dataclass(slots=True, repr=False)
class _Facts:
    """What the server says of a dataset: read once, and again if the server has newer public facts."""

    public: Public
    analyst: str
    policy: Policy


@reads_reply
def _facts_of(reply: Mapping[str, Any]) -> _Facts:
    """Return the facts of a dataset; the policy names the caller only."""
    public, analyst = _registry.from_json(reply["public"]), str(reply["analyst"])
    budget, own = (
        None if part is None else _registry.from_json(part)
        for part in (reply["policy"]["budget"], reply["policy"]["own"])
    )
    if not (isinstance(public, Public) and isinstance(budget, Budget) and isinstance(own, Budget | None)):
        raise TypeError("no public facts")
    analysts = () if analyst == STEWARD else ((analyst, own),)
    limits = {name: _registry.from_json(reply["policy"].get(name)) for name in LIMITS}
    return _Facts(public, analyst, Policy(budget=budget, analysts=analysts, **limits))


@reads_reply
def _accounts_of(reply: Mapping[str, Any], public: Public) -> list[RemoteAccount]:
    """Return the accounts of the caller: one, or one per period."""
    budget, lines = _registry.from_json(reply["budget"]), reply["accounts"]
    total = None if budget.per is None else budget.per.limit
    accounts = []
    for number, line in enumerate(lines, 1):
        # The account of all periods together comes last.
        limit = total if total is not None and number == len(lines) else budget
        pure = math.inf if line["pure"] is None else float(line["pure"])
        used, own_delta = UpperAmount(float(line["used"])), float(line["own_delta"])
        accounts.append(RemoteAccount(str(line["of"]), limit.filter(public.neighbors), used, pure, own_delta))
    if not accounts:
        raise ValueError("no account")
    return accounts


@reads_reply
def _quote_of(reply: Mapping[str, Any]) -> tuple[FilterPreview, str | None]:
    return FilterPreview(**reply["budget"]), reply["answered"]


@reads_reply
def _release_of(reply: Mapping[str, Any], mechanism: Any = None) -> Release:
    """Return a release with its price and its error; that of a question in SQL holds answers."""
    value = values.decode(reply["value"])
    answers = value if isinstance(value, tuple) else (value,)
    if isinstance(mechanism, Query | WorkloadQuery) and not all(isinstance(one, Answer) for one in answers):
        raise TypeError("no answer")
    return Release(
        value=value,
        event=_registry.from_json(reply["event"]),
        error_in_scores=bool(reply.get("scored")),
        mark=reply["mark"],
        _error=values.recalled(reply["errors"]),
    )


@reads_reply
def model_of(reply: Mapping[str, Any]) -> Any:
    """Return a fitted model from the JSON of its file, which holds no code."""
    from ..tabular import model_cards, model_files

    text = json.dumps(reply["model"])
    if reply["model"]["holds"] == model_files.NETWORK:
        from ..learning.model_files import loads

        return loads(text)
    return model_cards.loads(text)


@reads_reply
def _copy_of(reply: Mapping[str, Any], rows: int | None, seed: int) -> SyntheticCopy:
    """Return a synthetic copy from its released distribution; its rows are drawn in this process."""
    from ..synthetic import Fitted, SyntheticCopy

    fitted, asked = values.decode(reply["fitted"]), reply["asked"]
    if not isinstance(fitted, Fitted):
        raise TypeError("no synthetic copy")
    # the (epsilon, delta) that the caller of `synthesize` gave; None where the price was given as rho
    price = None if asked is None else (_registry.from_json(asked[0]), float(asked[1]))
    return SyntheticCopy.of(fitted, _registry.from_json(reply["event"]), rows=rows, seed=seed, asked=price)


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


@dataclass(slots=True, repr=False)
class RemoteCurator(_require.NearestNames):
    """Sends the descriptions of a session to a server: `name` is the dataset's, `periods` restrict questions
    to the rows of these periods. Options of the local curator that say who asks are not read: the token says
    it.
    """

    server: Server
    name: str
    periods: tuple[str, ...] = ()
    _facts: _Facts = field(init=False)

    def __post_init__(self) -> None:
        self._facts = _facts_of(self.read(""))

    def __repr__(self) -> str:
        return f"<RemoteCurator of {self.name!r}>"

    # public facts

    @property
    def away(self) -> bool:
        """Whether the table is elsewhere: True, and False for a local curator."""
        return True

    @property
    def source(self) -> NoData:
        """Stands for the table, or its rows of some periods, with their public facts."""
        public, per = self._facts.public, self._facts.policy.budget.per
        if per is not None and self.periods:
            public = per.public_of(public, self.periods)
        return NoData(public, f"the table {self.name!r} is on the server, and is not read here.")

    @property
    def analyst(self) -> str:
        """The name of the token's holder in the ledger."""
        return self._facts.analyst

    @property
    def policy(self) -> Policy:
        """The budgets that limit the caller now: the dataset's, and their own if they have one."""
        policy = _facts_of(self.read("")).policy
        self._facts.policy = policy
        return policy

    def require_analyst(self, name: str) -> NoReturn:
        """Refuse: the token alone says who asks."""
        raise InvalidInput(
            f"on a server the token says who asks, so nobody can become {name!r}. Nothing was done. Connect "
            f"with that person's token: dp.connect(url, token)."
        )

    def during(self, *periods: str) -> RemoteCurator:
        """Return a view of the rows of some periods only. Where the budgets are not per period, the server
        refuses its questions."""
        _require.non_empty(periods=periods)
        view, per, public = copy.copy(self), self._facts.policy.budget.per, self._facts.public
        names = periods if per is None else {per.named(period, public) for period in periods}
        view.periods = tuple(sorted(map(str, names)))
        return view

    # the wire

    def read(self, path: str) -> dict[str, Any]:
        """Return what the server has at a path of the dataset, such as "/budget"; free."""
        return self.server.call("GET", dataset_path(self.name) + path)

    def post(self, path: str, **body: Any) -> dict[str, Any]:
        """Send a request about this dataset; fields of the body that are None are left out."""
        present = {key: value for key, value in body.items() if value is not None}
        if self.periods:
            present["periods"] = list(self.periods)
        try:
            return self.server.call("POST", dataset_path(self.name) + path, present)
        except PublicMismatch:
            # The server has a newer version of the table: the next question is built for that.
            self._facts.public = _facts_of(self.read("")).public
            raise

    def describe(self, thing: Any) -> Any:
        """Return the JSON description of an object that is to be sent; one that has none is refused."""
        try:
            return _registry.to_json(thing)
        except DescriptionError:
            self.require_here(thing)

    def require_here(self, thing: Any) -> NoReturn:
        """Refuse what works in the steward's process only."""
        name = thing if isinstance(thing, str) else type(thing).__name__
        raise InvalidInput(
            f"{name} cannot be sent: it has no JSON description. Callables, modules, checkpoints and objects "
            f"of other packages stay in the steward's own process: ask the steward to run it there, with "
            f"dp.open(...)."
        )

    def _described(self, mechanism: Any) -> dict[str, Any]:
        """Return a mechanism and its price as a request has them."""
        if not isinstance(mechanism, BaseMechanism):
            self.require_here(mechanism)
        return {"mechanism": self.describe(mechanism), "claim": mechanism.event.to_json()}

    # the six verbs

    def ask(self, mechanism: Any, *, fresh: bool = False, **_: Any) -> Release:
        """Run a described mechanism for its price, or get its stored release."""
        return _release_of(self.post("/ask", **self._described(mechanism), fresh=bool(fresh)), mechanism)

    def start(self, interactive: Any, **_: Any) -> RemoteHandle:
        """Pay the whole price of an interactive mechanism, and start it."""
        reply = self.post("/start", **self._described(interactive))
        return reads_reply(lambda: RemoteHandle(self, interactive, int(reply["number"])))()

    def resume(self, interactive: Any, number: int, **_: Any) -> RemoteHandle:
        """Return a handle on an interactive mechanism that was started before; `number` is that of its
        charge."""
        _require.integer(number=number)
        described = self.described(number)
        public = self.source.public
        started = as_of(reads_reply(_registry.from_json)(described), public)
        current = as_of(interactive, public)
        if started != current:
            raise InvalidInput(f"number {number} is not the start of this mechanism, with these parameters.")
        return RemoteHandle(self, current, int(number))

    def feed(
        self, interactive: Any, number: int, *, rows: Any = None, tick: str | None = None, **_: Any
    ) -> Release | None:
        """Close a tick of a stream, or continue a mechanism on the server's newest version of the table;
        free. Only a steward may send `rows`."""
        _require.integer(number=number)
        sent = None if rows is None else rows_json(rows)
        reply = self.post("/feed", number=int(number), rows=sent, tick=tick)
        return _release_of(reply) if reply["released"] else None

    def run(
        self,
        work: Any,
        *,
        target: str | None = None,
        features: Sequence[str] | None = None,
        checkpoint: Any = None,
        resume: bool = False,
        text: str | None = None,
        progress: Progress | None = None,
        fresh: bool = False,
        seconds: float | None = None,
        **_: Any,
    ) -> Any:
        """Fit an estimator, and return the model; or run a described mechanism, and return its release.

        With `seconds` the server does it as a job, and returns the result after that time and not before;
        `progress` is called about once per second with the job's public state.
        """
        if checkpoint is not None or resume or text is not None:
            self.require_here("checkpoint=" if text is None else "text=")
        if seconds is None and progress is not None:
            raise InvalidInput("progress= needs a job: give seconds=, too.")
        if isinstance(work, BaseMechanism):
            kind, body = "ask", {**self._described(work), "fresh": bool(fresh)}
        else:
            listed = None if features is None else list(features)
            kind, body = "fit", {"estimator": describe_estimator(work), "target": target, "features": listed}
        if self.periods:
            body["periods"] = list(self.periods)
        path = f"{dataset_path(self.name)}/run"
        reply = self.server.call("POST", path, {"seconds": seconds, kind: body})
        if seconds is not None:
            reply = Job(self.server, reply["id"]).wait(progress)
        return _release_of(reply) if kind == "ask" else model_of(reply)

    # what was released, and what it cost

    @property
    def ledger(self) -> RemoteLedger:
        """The entries that the caller may see."""
        return RemoteLedger(self)

    def accounts_of(self, analyst: str = "") -> list[RemoteAccount]:
        """Return the accounts of the caller."""
        return _accounts_of(self.read("/budget"), self._facts.public)

    def account(self, analyst: str = "") -> RemoteAccount:
        """Return the account of the caller; with a budget per period, that of the period that has spent
        most."""
        accounts, per = self.accounts_of(), self._facts.policy.budget.per
        periods = accounts[:-1] if per is not None and per.limit is not None else accounts
        return max(periods or accounts, key=lambda account: account.used)

    def quote(self, mechanism: Any, **_: Any) -> tuple[FilterPreview, str | None]:
        """Return what a mechanism would cost the caller, and when they were given its release; free."""
        return _quote_of(self.post("/price", **self._described(mechanism)))

    def described(self, number: int) -> Any:
        """Return the description of a live mechanism of the caller, by the number of its charge."""
        return self.read(f"/live/{int(number)}")["mechanism"]

    def released(self, number: int) -> list[dict[str, Any]]:
        """Return what a live mechanism has released, in order; a release whose public time is not over does
        not count yet."""
        return _releases_of(self.read(f"/live/{int(number)}"))

    def pages(self, path: str, name: str) -> list[dict[str, Any]]:
        """Return all lines of a list that the server sends in pages."""
        lines: list[dict[str, Any]] = []
        while True:
            page = _page_of(self.read(f"{path}?last={_PAGE}&first={len(lines)}"), name, len(lines))
            lines += page
            if len(page) < _PAGE:
                return lines

    def verify(self) -> list[str]:
        """Return what is wrong with the ledger, in words; for stewards and auditors."""
        return [str(problem) for problem in self.read("/ledger/check")["problems"]]

    def releases(self) -> list[dict[str, Any]]:
        """Return the stored releases of the caller."""
        return self.pages("/releases", "releases")

    def release(self, number: int) -> Any:
        """Return the value of a stored release, by its number in `releases()`."""
        _require.integer(number=number)
        return reads_reply(values.decode)(self.read(f"/releases/{int(number)}")["value"])

    def copies(self) -> list[dict[str, Any]]:
        """Return the synthetic copies of the caller."""
        return self.pages("/copies", "copies")

    def copy(self, number: int, rows: int | None = None, *, seed: int | None = None) -> SyntheticCopy:
        """Return a synthetic copy that was made before, by the number of its release; without `rows` and
        `seed`, the same rows as on the server, whose seed is that number."""
        _require.integer(number=number)
        return _copy_of(self.read(f"/copies/{int(number)}"), rows, int(number) if seed is None else seed)


@reads_reply
def _releases_of(reply: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the releases of a live mechanism, each of which can be decoded."""
    bodies = list(reply["released"])
    for body in bodies:
        values.decode(body["value"])
    return bodies


@reads_reply
def _page_of(reply: Mapping[str, Any], name: str, first: int) -> list[dict[str, Any]]:
    """Return the lines of one page of a list; refuse a reply that does not begin at line `first`, as that of
    a server that does not know pages, which would be asked for ever."""
    if reply["first"] != first:
        raise ValueError("another page than was asked for")
    lines: list[dict[str, Any]] = reply[name]
    if not isinstance(lines, list) or len(lines) > _PAGE:
        raise TypeError("no list of lines")
    return lines
