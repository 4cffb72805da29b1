"""Handles requests to a worker for ledgers, releases, spending and budgets, and for the steward's drafts and
new datasets.

What an analyst may see of others, and when, is decided here (`ledger`, `_analyst_line`, `visible_releases`).
A release is listed only after the time limit of its question or job: earlier, the moment at which it appears
would tell how long the work took. "The horizon" is the moment that `PublicTimes.horizon` returns: a release
that was charged before it may be listed. The `desk` of a handler holds the sessions that the worker has open.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from ... import _registry, tables
from ... import accounting as acc
from ..._errors import InvalidInput, Unsupported
from ...curator import STEWARD, Budget, Policy, books
from ...curator.identities import shown_value
from ...curator.policy import LIMITS
from ...query import Answer
from ...session import Session
from .. import ledger_view, requests
from .sessions import COPY, Desk, Numbers, Options, Request, Result, Stored, numbers


def page(name: str, lines: list[Any], options: Options) -> Result:
    """Return the last lines of a list under `name`, as many as the option "last" says; with the option
    "first", so many from that line on, counted from 0, and its number: by them a client reads all lines of a
    list that grows meanwhile."""
    last, first = options["last"], options.get("first")
    return {name: lines[-last:]} if first is None else {name: lines[first : first + last], "first": first}


def ledger(desk: Desk, request: Request) -> Result:
    """Return a page of the entries of the ledger (`page`). A steward or auditor gets all kinds; an analyst
    gets their own charges and the stored answers that were served to them."""
    options = request["options"]
    if request["role"] == "analyst":
        session = desk.session(request["dataset"], request["analyst"])
        # Other entries, such as releases, are written when the work of a charge is done, so that their times
        # would tell how long it took: an analyst sees no other entry than charges and served answers.
        own_numbers, delta = desk.numbers(request["dataset"], request["analyst"]), session.budget.delta
        facts = page("entries", own_numbers.own or [], options)
        entries = read_entries(session, facts["entries"])
        return facts | {"entries": [_analyst_line(entry, delta, own_numbers) for entry in entries]}
    full_ledger = desk.session(request["dataset"], STEWARD).ledger
    delta = books.policy_of(full_ledger).budget.delta
    # Entries are numbered from 1 on, without gaps.
    last, first = options["last"], options.get("first")
    start = max(0, full_ledger.anchor.seq - last) if first is None else first
    # Pages show no values: these may be large.
    left_out = {"value"} if options.get("brief") else set()
    lines = [
        e.to_json()
        | {"body": {name: part for name, part in e.body.items() if name not in left_out}}
        | {"what": ledger_view.what(e), "price": ledger_view.price(e.body, delta)}
        for e in islice(full_ledger.entries(after=start), None if first is None else last)
    ]
    shown = {"entries": lines, "anchor": str(full_ledger.anchor)}
    return shown if first is None else shown | {"first": first}


def _analyst_line(entry: Any, delta: float, own_numbers: Numbers) -> Result:
    """Return a charge or a served answer as its analyst sees it: under the number that counts the analyst's
    entries only (`sessions`), with its time to the minute, and without totals and numbers of entries, which
    would tell what others do."""
    facts = ledger_view.without_totals(entry)
    # "own" is the analyst's total after the charge, "release" the number of the entry that was served.
    body = {k: v for k, v in facts["body"].items() if k not in ("own", "release")}
    description = "served from the store" if entry.kind == books.SERVED else ledger_view.what(entry)
    text = entry.body.get("text")
    return facts | {
        "body": body,
        "seq": own_numbers.shown(entry.seq),
        "time": entry.time[:16] + "Z",
        "what": f"{description}: {text}" if entry.kind == books.SERVED and text else description,
        "price": ledger_view.price(entry.body, delta),
    }


def check(desk: Desk, request: Request) -> Result:
    """Verify every hash, signature and total of the ledger; "whole" says whether there is no problem."""
    curator = desk.session(request["dataset"], STEWARD).curator
    problems = curator.verify()
    return {"whole": not problems, "problems": problems, "anchor": str(curator.ledger.anchor)}


def spending(desk: Desk, request: Request) -> Result:
    """Return the time, the analyst and the epsilon of every charge. Also return one account for the dataset
    and for each analyst with a budget of their own: the only one, or the first where the budget is per
    period. "together" is the account that limits all charges of the dataset together, or None where only
    single periods have a limit.

    The epsilon is that of the charge by itself (`_epsilon_alone`), also where a budget counts in rho. The
    amounts of an account are in the unit that it names.
    """
    session = desk.session(request["dataset"], STEWARD)
    delta = session.budget.delta
    charges = []
    for entry in read_entries(session, desk.index(request["dataset"]).charges):
        event = entry.body.get("event")
        epsilon = None if event is None else _epsilon_alone(_registry.from_json(event), delta)
        charges.append({"time": entry.time, "analyst": entry.body.get("analyst"), "epsilon": epsilon})
    owners = books.owners(session.ledger)
    # The account of all periods together is the last one, where there is one.
    per = owners[0].budget.per
    has_limit = per is None or per.limit is not None
    return {
        "charges": charges,
        "accounts": [requests.account_line(owned.all()[0]) for owned in owners],
        "together": requests.account_line(owners[0].all()[-1]) if has_limit else None,
    }


def _epsilon_alone(event: Any, delta: float) -> float | None:
    """Return the epsilon of an event by itself: at delta 0 if it is finite there, else at `delta`, the
    policy's; None where neither is finite."""
    for candidate_delta in (0.0, delta):
        try:
            epsilon = acc.epsilon(event, delta=candidate_delta)
        except Unsupported:
            continue
        if math.isfinite(epsilon):
            return float(epsilon)
    return None


def read_entries(session: Session, numbers: Iterable[int]) -> list[Any]:
    """Return the entries of a ledger with these numbers, all from one look."""
    entries: list[Any] = session.ledger.look(lambda reader: [reader.entry(number) for number in numbers])
    return entries


class Visible(NamedTuple):
    """A stored release that the caller may see: its number as they see it, and the ledger's numbers of the
    release, of its charge, and of the entry that served it to them, if that is how they got it."""

    number: int
    release: int
    charge: int
    served: int | None
    stored: Stored


def visible_releases(desk: Desk, request: Request) -> list[Visible]:
    """Return the stored releases that the caller may see: all to anybody but an analyst; to an analyst their
    own and those served to them. No entry is read but the new ones (`sessions.Index`).

    An analyst's own release is shown once its charge is older than the horizon, so that the moment at which
    it appears does not tell how long its query took. One that was served is shown at once: it was stored
    before it was asked for.

    Releases are in the order of their numbers, which for an analyst is the order of the charges: the order in
    which releases were stored would tell which of two questions took longer.
    """
    index, analyst = desk.index(request["dataset"]), request["analyst"]
    if request["role"] != "analyst":
        return [Visible(n, n, stored.charge, None, stored) for n, stored in index.releases.items()]
    own_numbers, served = desk.numbers(request["dataset"], analyst), index.served.get(analyst, {})
    visible = []
    for number, stored in index.releases.items():
        if stored.analyst == analyst:
            if requests.is_shown(index.charges[stored.charge][0], request["options"]):
                visible.append(Visible(own_numbers.shown(stored.charge), number, stored.charge, None, stored))
        elif number in served:
            by = served[number]
            visible.append(Visible(own_numbers.shown(by), number, stored.charge, by, stored))
    return sorted(visible, key=lambda release: release.number)


def find_release(desk: Desk, request: Request, number: int, what: str = "stored release") -> Visible:
    """Return the release that the caller sees under a number; an unknown one and another person's give the
    same error."""
    for release in visible_releases(desk, request):
        is_copy = release.stored.copied is not None
        if release.number == number and (is_copy or what == "stored release"):
            return release
    raise InvalidInput(f"no {what} of yours has the number {number}.")


def charge_of(desk: Desk, request: Request, release: Visible) -> Any:
    """Return the entry of the charge of a release, as the caller may see it.

    A release that somebody else paid for and that was served to an analyst is shown as if the analyst had
    asked first: with the analyst's name, their words, and the time and number of the entry that served it.
    Who asked first, when and in which words stays hidden.
    """
    session = desk.session(request["dataset"], request["analyst"])
    numbers = [release.charge] if release.served is None else [release.charge, release.served]
    charge, *served = read_entries(session, numbers)
    if not served:
        return charge
    own_words = {"analyst": request["analyst"], "text": served[0].body.get("text")}
    return replace(charge, time=served[0].time, body=charge.body | own_words)


def value_of(desk: Desk, request: Request, release: Visible) -> Any:
    """Return the value of a release, as JSON; a served one as its own question has it (`charge_of`)."""
    session = desk.session(request["dataset"], request["analyst"])
    value = session.ledger.value(session.ledger.entry(release.release).body)
    return value if release.served is None else shown_value(value, session.ledger.entry(release.served).body)


def releases(desk: Desk, request: Request) -> Result:
    """Return the latest stored releases that the caller may see (`visible_releases`), or with the option
    "number" one of them with its value and its privacy event."""
    number = request["options"].get("number")
    if number is None:
        facts = page("releases", visible_releases(desk, request), request["options"])
        return facts | {"releases": [_release_line(desk, request, one) for one in facts["releases"]]}
    release = find_release(desk, request, number)
    event = charge_of(desk, request, release).body["event"]
    value = {"value": value_of(desk, request, release), "event": event}
    return _release_line(desk, request, release) | value


def _release_line(desk: Desk, request: Request, release: Visible) -> Result:
    """Return a release as a line of a list."""
    charge = charge_of(desk, request, release)
    delta = desk.session(request["dataset"], request["analyst"]).budget.delta
    return {
        "number": release.number,
        "analyst": release.stored.analyst if release.served is None else request["analyst"],
        "time": charge.time[:16] + "Z",
        "text": charge.body.get("text"),
        "price": ledger_view.price(charge.body, delta),
        # what a stored value is: a table, a synthetic copy, or anything else
        "kind": {_registry.tag_of(Answer): "table", COPY: "copy"}.get(release.stored.tag, "value"),
    }


def policy_fingerprint(facts: Result) -> str:
    """Return a hash of a policy's JSON. A form carries the hash of the policy that it shows, and is refused
    if another policy is in force when it is sent."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:16]


def policy(desk: Desk, request: Request) -> Result:
    """Return the budgets in force; change them first if the request holds a new policy.

    The option "was" is the `policy_fingerprint` of the policy to be changed; None changes any.
    """
    curator = desk.session(request["dataset"], STEWARD).curator
    options = request["options"]
    if options.get("policy") is not None:
        in_force = curator.policy
        if options.get("was") not in (None, policy_fingerprint(requests.policy_json(in_force))):
            raise InvalidInput(
                "the budgets were changed by somebody else since you loaded the page. Nothing was changed. "
                "Load it again, and look at what is there now."
            )
        changed = _changed_policy(options["policy"], in_force)
        if changed != in_force:
            large = {name: bool(options.get(name, False)) for name in ("large_delta", "large_epsilon")}
            curator.change_policy(changed, replacing=in_force, **large)
    return requests.policy_json(curator.policy)


def _changed_policy(facts: Options, in_force: Policy) -> Policy:
    """Return the policy that the JSON of a request describes; `in_force` gives what a request cannot say
    (`_changed_budget`)."""
    own = dict(in_force.analysts)
    analysts = tuple(
        (name, None if budget is None else _changed_budget(budget, own.get(name)))
        for name, budget in facts["analysts"].items()
    )
    limits = {name: facts[name] or None for name in LIMITS if facts.get(name) is not None}
    budget = _changed_budget(facts["budget"], in_force.budget)
    return replace(in_force, budget=budget, analysts=analysts, **limits)


def _changed_budget(facts: Options, old: Budget | None) -> Budget:
    """Return the budget that the JSON of a request describes.

    A request can state neither periods nor exact fractions. The periods stay as in the `old` budget. Its
    fractions stay only if the request changes nothing, that is, if each of its amounts is the float nearest
    to the old one.
    """
    new = Budget(**numbers(facts))
    if old is None:
        return new
    new = replace(new, per=old.per)
    return old if _floats(new) == _floats(old) else new


def _floats(budget: Budget) -> tuple[float | None, ...]:
    """Return the amounts of a budget, each as the nearest float."""
    return tuple(None if x is None else float(x) for x in (budget.epsilon, budget.rho, budget.delta))


def note(desk: Desk, request: Request) -> Result:
    """Write an action of the steward into the ledger."""
    curator = desk.session(request["dataset"], STEWARD).curator
    return {"entry": curator.note("steward", request["options"]).seq}


def draft(desk: Desk, request: Request) -> Result:
    """Draft the schema of a file from names and types, never from values."""
    data = requests.data_of(desk.folders.data(request["options"]["data"]))
    if isinstance(data, tables.Database):
        return {"schema": tables.draft(data.path, table=data.table)}
    return {"schema": tables.draft(data)}


def fit_of(desk: Desk, request: Request) -> Result:
    """Return how well a file fits the text of a schema (`requests.fit_facts`): for the steward only."""
    options = request["options"]
    ledger = requests.beside(options["data"], ".ledger")
    # beside the data, as paths of related tables are relative to the schema's folder
    schema = ledger.with_name(f"{ledger.name}.{os.getpid()}.part")
    try:
        schema.write_text(options["schema"], encoding="utf-8")
        files = desk.folders.dataset({"data": options["data"], "schema": str(schema), "ledger": str(ledger)})
        return requests.fit_facts(files["data"], schema, ledger, files["related"])
    finally:
        schema.unlink(missing_ok=True)


def create(desk: Desk, request: Request) -> Result:
    """Create the ledger of a new dataset, or open the one that its data has already; the front process has
    written the schema file before. The option "books" is that of `requests.create_session`."""
    dataset, options = request["dataset"], request["options"]
    if Path(dataset["ledger"]).exists():
        session = desk.session(dataset, STEWARD)
        _check_in_force(options, session.curator.policy)
    else:
        if options.get("budget") is None:
            raise InvalidInput("a new dataset needs a budget, such as epsilon 1. Nothing was opened.")
        analysts = {
            n: None if b is None else Budget(**numbers(b)) for n, b in options.get("analysts", {}).items()
        }
        session = requests.create_session(
            **desk.folders.dataset(dataset),
            budget=Budget(**numbers(options["budget"])),
            analysts=analysts,
            seconds=desk.seconds,
            books=options.get("books"),
            large_epsilon=bool(options.get("large_epsilon", False)),
        )
    session.curator.note("steward", {"by": request["by"], "what": f"served as {dataset['name']!r}"})
    return {"table": session.public.table, "analysts": [name for name, _ in session.curator.policy.analysts]}


def _check_in_force(options: Options, policy: Policy) -> None:
    """Refuse options that name another budget or other analysts than the policy of an existing ledger.

    A budget or analysts that the options leave out are not compared.
    """
    budget, analysts, own = options.get("budget"), options.get("analysts"), dict(policy.analysts)

    def stays(facts: Options | None, old: Budget | None) -> bool:
        """Return whether what a request says of one budget leaves it as it is."""
        return old is None if facts is None else _changed_budget(facts, old) == old

    budget_stays = budget is None or stays(budget, policy.budget)
    analysts_stay = not analysts or (
        analysts.keys() == own.keys() and all(stays(facts, own[name]) for name, facts in analysts.items())
    )
    if not (budget_stays and analysts_stay):
        raise InvalidInput(
            "this data has a ledger already, with another budget or other analysts, which stay. Nothing was "
            "added. Leave both out, and change them afterwards, in the books of the dataset."
        )
