"""What a worker process can be asked to do: one function for each verb, from JSON options to JSON results.

A worker keeps one session for each dataset, with an engine of its own; all share the ledger, which decides.
A `Desk` without an engine does what needs no data: previews, budgets, ledgers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ... import _registry, tables
from ..._errors import DiscreetError, InvalidInput, LedgerError, Unsupported
from ..._public import Public
from ...accounting.caps import asked_of
from ...curator import STEWARD, Budget, Curator, Key, Ledger, Policy, books, values
from ...curator.closed import Books
from ...curator.curator import key_path
from ...mechanisms.protocols import Interactive, Mechanism, Release
from ...session import Session, Watch
from ...session import open as open_session
from .. import entries, requests
from .estimators import estimator_of, model_json

Options = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PublicFacts:
    """A table of which only the public facts are here: it can be priced, and not read."""

    public: Public

    def ready(self) -> None:
        raise LedgerError("this process has no table. Nothing was charged or read.")

    def batches(self, columns: Sequence[str]) -> Iterator[Any]:
        raise LedgerError("this process has no table. Nothing was charged or read.")


@dataclass(slots=True)
class Desk:
    """The sessions of one worker. `reads`: whether it may open tables."""

    reads: bool
    seconds: float
    # the largest number of groups that an answer may have
    rows: int = 10_000
    _sessions: dict[str, Session] = field(default_factory=dict)

    def session(self, dataset: dict[str, str], analyst: str, periods: Sequence[str] = ()) -> Session:
        """Return a dataset as one person sees it."""
        opened = self._sessions.get(dataset["ledger"])
        if opened is None:
            opened = self._sessions[dataset["ledger"]] = self._open(dataset)
        own = opened if analyst == STEWARD else opened.as_analyst(analyst)
        return own.during(*periods) if periods else own

    def _open(self, dataset: dict[str, str]) -> Session:
        if self.reads:
            return open_session(
                requests.data_of(dataset["data"]),
                schema=Path(dataset["schema"]),
                ledger=Path(dataset["ledger"]),
                seconds=self.seconds,
            )
        path = Path(dataset["ledger"])
        public = tables.load(Path(dataset["schema"]))
        return Session(Books(PublicFacts(public), Ledger(path, Key.load(key_path(path)))))

    def handle(self, request: dict[str, Any]) -> dict[str, Any]:
        """Do what a request asks; the reply says whether data may have been touched."""
        analyst, before, curator = request["analyst"], None, None
        verb = VERBS[request["verb"]]
        try:
            if verb.data:
                curator = self.session(request["dataset"], analyst).curator
                before = _last_charge(curator, analyst)
            result = verb.run(self, request)
            # a live question is answered without a charge of its own
            touched = verb.data and (verb.live or _last_charge(curator, analyst) != before)
            return {"result": result, "touched": touched}
        except Exception as error:
            touched = verb.data and (verb.live or curator is None or _changed(curator, analyst, before))
            return {"error": _without_paths(error_json(error, analyst), request), "touched": touched}


def _last_charge(curator: Any, analyst: str) -> int:
    newest = curator.ledger.last(books.SPENDING, analyst)
    return 0 if newest is None else int(newest.seq)


def _changed(curator: Curator, analyst: str, before: int | None) -> bool:
    try:
        return _last_charge(curator, analyst) != before
    except DiscreetError:
        return True


def error_json(error: Exception, analyst: str = STEWARD) -> dict[str, Any]:
    """Return what may be said of an error. Paths and faults of the server are told to the steward only."""
    if isinstance(error, LedgerError) and analyst != STEWARD:
        return {
            "kind": "LedgerError",
            "message": "the books of this dataset cannot be used now. Nothing was released. Tell the "
            "steward.",
        }
    if isinstance(error, DiscreetError):
        return {"kind": type(error).__name__, "message": str(error)}
    return {
        "kind": "InvalidInput",
        "message": f"this could not be computed ({type(error).__name__}). Nothing was released; what "
        f"the ledger "
        f"shows as charged stays charged.",
    }


def _without_paths(error: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Take the server's paths out of a message for an analyst."""
    if request["analyst"] == STEWARD or request["dataset"] is None:
        return error
    message = error["message"]
    for place in ("schema", "ledger", "data"):
        path = request["dataset"][place].partition("::")[0]
        message = message.replace(path, request["dataset"]["name"])
        message = message.replace(str(Path(path).parent), "...")
    return error | {"message": message}


def _session(desk: Desk, request: dict[str, Any]) -> tuple[Session, Options]:
    options = dict(request["options"])
    return desk.session(request["dataset"], request["analyst"], options.pop("periods", None) or ()), options


def account_json(session: Session) -> dict[str, Any]:
    """Return the account of who asks, and its parts by period."""
    return {
        "used": session.spent,
        "remaining": session.remaining,
        "limit": float(session.curator.account(session.analyst).rule.total),
        "unit": session.curator.account(session.analyst).rule.unit,
        "budget": _registry.to_json(session.budget),
        "accounts": [
            {"of": a.of, "used": a.used, "limit": float(a.rule.total), "unit": a.rule.unit}
            for a in session.accounts
        ],
    }


def open_table(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Open a dataset, so that the next question need not."""
    desk.session(request["dataset"], STEWARD)
    return {}


def describe(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Return what is public about a dataset, and the account of who asks."""
    session, _ = _session(desk, request)
    own = session.curator.policy.of(request["analyst"]) is not None
    return {
        "public": _registry.to_json(session.public),
        "own_budget": own,
        "account": account_json(session),
    }


def budget(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    session, _ = _session(desk, request)
    return account_json(session)


def preview(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Price and error of a question, of questions together, or of a described mechanism."""
    session, options = _session(desk, request)
    described = options.pop("mechanism", None)
    if described is not None:
        mechanism = mechanism_of(described, session.public, (Mechanism, Interactive))
        cost = session.curator.preview(mechanism.event, analyst=session.analyst, asked=asked_of(mechanism))
        return {"event": mechanism.event.to_json(), "admitted": cost.admitted, "fits": cost.fits,
                "budget": requests.cost_json(cost)}  # fmt: skip
    text = options.pop("sql", None)
    questions = options.pop("queries", None)
    asked = session.preview(text if questions is None else questions, **_numbers(options))
    return requests.preview_json(asked)


def sql(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Answer a question, for its price."""
    session, options = _session(desk, request)
    text, fresh = options.pop("sql"), bool(options.pop("fresh", False))
    options = _numbers(options)
    _few_enough(desk, session.preview(text, **options))
    answer = session.sql(text, fresh=fresh, **options)
    return requests.answer_json(answer, options.get("confidence", 0.95), session)


def workload(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Answer several counting questions together, for one price."""
    session, options = _session(desk, request)
    answers = session.workload(options.pop("queries"), **_numbers(options))
    return {"answers": [requests.answer_json(answer, 0.95, session) for answer in answers]}


def _few_enough(desk: Desk, asked: Any) -> None:
    """Refuse an answer with more declared groups than may be sent, before it is charged."""
    groups = getattr(asked.query, "groups", None)
    if groups is not None and groups > desk.rows:
        raise InvalidInput(
            f"the answer would have {groups:,} groups, and this server sends at most {desk.rows:,} rows. "
            f"Nothing was charged. Ask about fewer groups."
        )


def ask(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Run a described mechanism, for its price."""
    session, options = _session(desk, request)
    mechanism = mechanism_of(options["mechanism"], session.public, (Mechanism,))
    return release_json(session.ask(mechanism, fresh=bool(options.get("fresh", False))))


def start(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Pay for a described live mechanism, and open it."""
    session, options = _session(desk, request)
    live = session.start(mechanism_of(options["mechanism"], session.public, (Interactive,)))
    return {"number": live.number, "mechanism": _registry.to_json(live.mechanism)}


def watch(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Pay for a sparse vector over counts."""
    session, options = _session(desk, request)
    opened = session.watch(options.pop("threshold"), **_numbers(options))
    return {"number": opened.number, "mechanism": _registry.to_json(opened.live.mechanism)}


def answer(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Answer a question to a live mechanism; only who started it may ask."""
    session, options = _session(desk, request)
    number = options["number"]
    # An entry that is not there and one that is another's are told alike: how long the ledger is says what
    # others do.
    try:
        body = session.ledger.entry(number).body
    except DiscreetError:
        body = {}
    described = body.get("mechanism")
    if body.get("analyst") != request["analyst"] or described is None:
        raise InvalidInput(f"entry {number} is no live mechanism of yours. Nothing was charged or read.")
    mechanism = _registry.from_json(described)
    if not isinstance(mechanism, Interactive):
        raise InvalidInput(f"entry {number} is no live mechanism of yours. Nothing was charged or read.")
    live = session.curator.resume(mechanism, number)
    question = options["question"]
    if isinstance(question, str):
        value = Watch(live).ask(question)
        return {"value": values.encode(value), "event": mechanism.event.to_json(), "errors": []}
    return release_json(live.answer(_registry.from_json(question)))


def fit(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Fit a described estimator; the model comes back as JSON or safetensors."""
    session, options = _session(desk, request)
    estimator = estimator_of(options["estimator"])
    return model_json(session.fit(estimator, target=options["target"], features=options.get("features")))


def release_json(release: Release) -> dict[str, Any]:
    """Return a release as it is stored: value, price, and its errors at some confidences."""
    return {
        "value": values.encode(release.value),
        "event": release.event.to_json(),
        "scored": release.scored,
        "errors": values.tabulated(release._error),
    }


def mechanism_of(described: Any, public: Public, kinds: tuple[Any, ...]) -> Any:
    """Return the mechanism that a description names; refused unless it is of one of the kinds."""
    mechanism = _registry.from_json(described)
    if not any(isinstance(mechanism, kind) for kind in kinds) or not hasattr(mechanism, "event"):
        raise InvalidInput(
            f"{type(mechanism).__name__} is not a mechanism that can be asked for here. Nothing was "
            f"charged or read."
        )
    if getattr(mechanism, "public", None) != public:
        raise InvalidInput(
            "the mechanism was described for other public facts than this dataset has now. Nothing was "
            "charged "
            "or read. Build it from the session's own `public`."
        )
    return mechanism


def _numbers(options: Options) -> Options:
    """Take numbers as descriptions write them: 0.1, or {"fraction": "1/3"}."""
    weights = options.get("weights")
    plain = {k: _registry.from_json(v) for k, v in options.items() if k != "weights" and v is not None}
    if "split" in plain:
        plain["split"] = tuple(plain["split"])
    return plain | ({"weights": {k: _registry.from_json(v) for k, v in weights.items()}} if weights else {})


# ledgers


def ledger(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Entries of the ledger: all for steward and auditor, an analyst's own charges for an analyst."""
    options = request["options"]
    last = options["last"]
    if request["role"] == "analyst":
        session = desk.session(request["dataset"], request["analyst"])
        shown = entries.own_entries(session.ledger, request["analyst"])
        # what points to a charge says when its work was done: an analyst sees the charges alone
        charges = [e for e in shown if e.kind in (books.SPENDING, books.SERVED)]
        return {"entries": [_analyst_line(e) for e in charges[-last:]]}
    opened = desk.session(request["dataset"], STEWARD).ledger
    delta = books.policy_of(opened).budget.delta
    listed = list(opened.entries(after=max(0, opened.anchor.seq - last)))
    lines = [e.to_json() | {"what": entries.what(e), "price": entries.price(e.body, delta)} for e in listed]
    return {"entries": lines, "anchor": str(opened.anchor)}


def _analyst_line(entry: Any) -> dict[str, Any]:
    facts = entries.without_totals(entry)
    body = {k: v for k, v in facts["body"].items() if k != "own"}
    return facts | {
        "body": body,
        "time": entry.time[:16] + "Z",
        "what": entries.what(entry),
        "price": entries.price(entry.body, 0.0),
    }


def check(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Verify every hash, signature and total of the ledger."""
    curator = desk.session(request["dataset"], STEWARD).curator
    problems = curator.verify()
    return {"whole": not problems, "problems": problems, "anchor": str(curator.ledger.anchor)}


def spending(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Return what was charged when, and by whom: each charge alone, in the budget's unit."""
    session = desk.session(request["dataset"], STEWARD)
    delta = session.budget.delta
    points = []
    for entry in session.ledger.entries(kind=books.SPENDING):
        event = entry.body.get("event")
        alone = None if event is None else _alone(_registry.from_json(event), delta)
        points.append({"time": entry.time, "analyst": entry.body.get("analyst"), "epsilon": alone})
    people = []
    for owned in books.owners(session.ledger):
        account = owned.all()[0]
        limit, unit = float(account.rule.total), account.rule.unit
        people.append({"of": account.of, "used": account.used, "limit": limit, "unit": unit})
    return {"charges": points, "accounts": people}


def _alone(event: Any, delta: float) -> float | None:
    from ... import accounting as acc

    for at in (0.0, delta):
        try:
            epsilon = acc.epsilon(event, delta=at)
        except Unsupported:
            continue
        if math.isfinite(epsilon):
            return float(epsilon)
    return None


def releases(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Stored releases: an analyst's own, once their time has come; all for the steward."""
    options = request["options"]
    session = desk.session(request["dataset"], request["analyst"])
    analyst, mine = request["analyst"], request["role"] == "analyst"
    charges: dict[int, Any] = {}
    stored: dict[int, Any] = {}
    served: set[int] = set()
    for entry in session.ledger.entries():
        if entry.kind == books.SPENDING:
            charges[entry.seq] = entry
        elif entry.kind == "release" and "value" in entry.body:
            stored[entry.seq] = entry
        elif entry.kind == books.SERVED and entry.body["analyst"] == analyst:
            served.add(entry.body["release"])
    lines = []
    for number, entry in stored.items():
        charge = charges[entry.body["charge"]]
        own = entry.body["analyst"] == analyst
        early = datetime.fromisoformat(charge.time) > datetime.fromtimestamp(options["horizon"], UTC)
        if mine and ((not own and number not in served) or (own and early)):
            continue
        if options.get("number") in (None, number):
            lines.append(_release_line(number, entry, charge, options.get("number") is not None))
    if options.get("number") is not None:
        if not lines:
            raise InvalidInput(f"there is no stored release {options['number']} of yours.")
        return lines[0]
    return {"releases": lines[-options["last"] :]}


def _release_line(number: int, entry: Any, charge: Any, whole: bool) -> dict[str, Any]:
    line = {
        "number": number,
        "analyst": entry.body["analyst"],
        "time": charge.time[:16] + "Z",
        "text": charge.body.get("text"),
        "price": entries.price(charge.body, 0.0),
    }
    return line | ({"value": entry.body["value"], "event": charge.body["event"]} if whole else {})


# the steward


def policy(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Return the budgets in force; with a new policy, that from now on."""
    curator = desk.session(request["dataset"], STEWARD).curator
    options = request["options"]
    if options.get("policy") is not None:
        facts = options["policy"]
        per = curator.policy.budget.per
        budget_ = Budget(**_numbers(facts["budget"]), per=per)
        analysts = tuple(
            (name, None if own is None else Budget(**_numbers(own)))
            for name, own in facts["analysts"].items()
        )
        changed = Policy(budget=budget_, analysts=analysts)
        if changed != curator.policy:
            curator.change_policy(changed, large_delta=bool(options.get("large_delta", False)))
    now = curator.policy
    return {
        "budget": _registry.to_json(now.budget),
        "analysts": {n: None if b is None else _registry.to_json(b) for n, b in now.analysts},
    }


def note(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Enter an act of the steward into the ledger."""
    curator = desk.session(request["dataset"], STEWARD).curator
    return {"entry": curator.note("steward", request["options"]).seq}


def draft(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Draft the schema of a file from names and types, never from values."""
    data = requests.data_of(request["options"]["data"])
    if isinstance(data, tables.Database):
        return {"schema": tables.draft(data.path, table=data.table)}
    return {"schema": tables.draft(data)}


def create(desk: Desk, request: dict[str, Any]) -> dict[str, Any]:
    """Open the ledger of a new dataset; the schema file was written before."""
    dataset, options = request["dataset"], request["options"]
    if Path(dataset["ledger"]).exists():
        session = desk.session(dataset, STEWARD)
    else:
        if options.get("budget") is None:
            raise InvalidInput("a new dataset needs a budget, such as epsilon 1. Nothing was opened.")
        analysts = {
            n: None if b is None else Budget(**_numbers(b)) for n, b in options.get("analysts", {}).items()
        }
        session = open_session(
            requests.data_of(dataset["data"]),
            schema=Path(dataset["schema"]),
            ledger=Path(dataset["ledger"]),
            remote=_remote(options.get("remote"), dataset["name"]),
            budget=Budget(**_numbers(options["budget"])),
            analysts=analysts,
            seconds=desk.seconds,
        )
    session.curator.note("steward", {"by": request["by"], "what": f"served as {dataset['name']!r}"})
    return {"table": session.public.table, "analysts": [name for name, _ in session.curator.policy.analysts]}


def _remote(address: str | None, name: str) -> str | None:
    """Return where in the database of ledgers a dataset has its own."""
    return None if address is None else f"{address}::{re.sub('[^a-z0-9_]', '_', name.lower())}"


@dataclass(frozen=True, slots=True)
class Verb:
    """How a verb is run; `data`: it may read the table, `live`: without a charge of its own."""

    run: Callable[[Desk, dict[str, Any]], dict[str, Any]]
    data: bool = False
    live: bool = False


VERBS: dict[str, Verb] = {
    "open": Verb(open_table),
    "describe": Verb(describe),
    "budget": Verb(budget),
    "preview": Verb(preview),
    "ledger": Verb(ledger),
    "check": Verb(check),
    "spending": Verb(spending),
    "releases": Verb(releases),
    "policy": Verb(policy),
    "note": Verb(note),
    "sql": Verb(sql, data=True),
    "workload": Verb(workload, data=True),
    "ask": Verb(ask, data=True),
    "start": Verb(start, data=True),
    "watch": Verb(watch, data=True),
    "answer": Verb(answer, data=True, live=True),
    "fit": Verb(fit, data=True),
    "draft": Verb(draft),
    "create": Verb(create),
}
