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
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any

from ... import _registry, tables
from ... import accounting as acc
from ..._errors import InvalidInput, Unsupported
from ...curator import STEWARD, Budget, Policy, books
from ...query import Answer
from .. import ledger_view, requests
from .sessions import Desk, Numbers, Options, Request, Result, numbers


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
        visible_entries = ledger_view.own_entries(session.ledger, request["analyst"])
        # Other entries, such as releases, are written when the work of a charge is done, so that their times
        # would tell how long it took: an analyst sees no other entry than charges and served answers.
        charges = [e for e in visible_entries if e.kind in (books.SPENDING, books.SERVED)]
        delta = session.budget.delta
        own_numbers = desk.numbers(request["dataset"], request["analyst"])
        facts = page("entries", charges, options)
        return facts | {"entries": [_analyst_line(e, delta, own_numbers) for e in facts["entries"]]}
    full_ledger = desk.session(request["dataset"], STEWARD).ledger
    delta = books.policy_of(full_ledger).budget.delta
    # Entries are numbered from 1 on, without gaps.
    last, first = options["last"], options.get("first")
    start = max(0, full_ledger.anchor.seq - last) if first is None else first
    lines = [
        e.to_json() | {"what": ledger_view.what(e), "price": ledger_view.price(e.body, delta)}
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
    for entry in session.ledger.entries(kind=books.SPENDING):
        event = entry.body.get("event")
        epsilon = None if event is None else _epsilon_alone(_registry.from_json(event), delta)
        charges.append({"time": entry.time, "analyst": entry.body.get("analyst"), "epsilon": epsilon})
    owners = books.owners(session.ledger)
    # The account of all periods together is the last one, where there is one.
    per = owners[0].budget.per
    has_limit = per is None or per.limit is not None
    return {
        "charges": charges,
        "accounts": [_account_line(owned.all()[0]) for owned in owners],
        "together": _account_line(owners[0].all()[-1]) if has_limit else None,
    }


def _account_line(account: Any) -> Result:
    """Return an account as JSON; its amounts are in the unit that it names."""
    limit, unit = float(account.rule.total), account.rule.unit
    return {"of": account.of, "used": account.used, "limit": limit, "unit": unit}


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


def visible_releases(desk: Desk, request: Request) -> list[tuple[int, Any, Any]]:
    """Return the stored releases that the caller may see, each as a tuple of its number, its entry and the
    entry of its charge: all to anybody but an analyst; to an analyst their own and those served to them.

    An analyst's own release is shown once its charge is older than the horizon, so that the moment at which
    it appears does not tell how long its query took. One that was served is shown at once: it was stored
    before it was asked for.

    Releases are in the order of their numbers, which for an analyst is the order of the charges: the order in
    which releases were stored would tell which of two questions took longer.

    A release that somebody else paid for and that was served to an analyst is shown as if the analyst had
    asked first: with the analyst's name, their words, and the time and number of the entry that served it.
    Who asked first, when and in which words stays hidden.
    """
    return sorted(_iterate_visible(desk, request), key=lambda release: release[0])


def _iterate_visible(desk: Desk, request: Request) -> Iterator[tuple[int, Any, Any]]:
    """Yield the number, the release and the charge of every release that the caller may see now, in the order
    in which they were stored."""
    session = desk.session(request["dataset"], request["analyst"])
    analyst, is_analyst = request["analyst"], request["role"] == "analyst"
    horizon = datetime.fromtimestamp(request["options"]["horizon"], UTC)
    own_numbers = desk.numbers(request["dataset"], analyst)
    # Entries of the ledger by their own numbers; `served` by the number of the release that was served. A
    # release whose value is not stored in its entry cannot be shown.
    charges: dict[int, Any] = {}
    stored: dict[int, Any] = {}
    served: dict[int, Any] = {}
    for entry in session.ledger.entries():
        if entry.kind == books.SPENDING:
            charges[entry.seq] = entry
        elif entry.kind == "release" and "value" in entry.body:
            stored[entry.seq] = entry
        elif entry.kind == books.SERVED and entry.body["analyst"] == analyst:
            served.setdefault(entry.body["release"], entry)
    for number, entry in stored.items():
        charge = charges[entry.body["charge"]]
        is_own = entry.body["analyst"] == analyst
        is_early = is_own and datetime.fromisoformat(charge.time) > horizon
        if not is_analyst:
            yield number, entry, charge
        elif is_own and not is_early:
            yield own_numbers.shown(charge.seq), entry, charge
        elif not is_own and number in served:
            served_entry = served[number]
            value = _with_text(entry.body["value"], served_entry.body.get("text") or "")
            body = {"analyst": analyst, "text": served_entry.body.get("text")}
            yield (
                own_numbers.shown(served_entry.seq),
                replace(entry, body=entry.body | {"analyst": analyst, "value": value}),
                replace(charge, time=served_entry.time, body=charge.body | body),
            )


def _with_text(value: Any, text: str) -> Any:
    """Return a stored value in which every answer to SQL has `text` as its question."""
    if isinstance(value, list):
        return [_with_text(item, text) for item in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == _registry.tag_of(Answer):
        return value | {"sql": text}
    return {name: _with_text(item, text) for name, item in value.items()}


def releases(desk: Desk, request: Request) -> Result:
    """Return the latest stored releases that the caller may see (`visible_releases`), or with the option
    "number" one of them with its value."""
    number = request["options"].get("number")
    delta = desk.session(request["dataset"], request["analyst"]).budget.delta
    if number is None:
        facts = page("releases", visible_releases(desk, request), request["options"])
        shown: list[tuple[int, Any, Any]] = facts["releases"]
        return facts | {"releases": [_release_line(*release, delta, with_value=False) for release in shown]}
    for release in visible_releases(desk, request):
        if release[0] == number:
            return _release_line(*release, delta, with_value=True)
    raise InvalidInput(f"no stored release of yours has the number {number}.")


def _release_line(number: int, entry: Any, charge: Any, delta: float, *, with_value: bool) -> Result:
    """Return a release as JSON; `with_value` adds its value and its privacy event."""
    line = {
        "number": number,
        "analyst": entry.body["analyst"],
        "time": charge.time[:16] + "Z",
        "text": charge.body.get("text"),
        "price": ledger_view.price(charge.body, delta),
        "kind": _kind(entry.body["value"]),
    }
    return line | ({"value": entry.body["value"], "event": charge.body["event"]} if with_value else {})


def _kind(value: Any) -> str:
    """Return what a stored value is: "table", "copy" (a synthetic copy) or "value" (anything else)."""
    # A tuple with one item, written as {"tuple": [item]}, is what its item is.
    items = value.get("tuple") if isinstance(value, dict) else None
    item = items[0] if isinstance(items, list) and len(items) == 1 else value
    tag = item.get("type") if isinstance(item, dict) else None
    # By its tag: the package of synthetic copies is only imported where one is made or drawn.
    return {_registry.tag_of(Answer): "table", "synthetic.Fitted": "copy"}.get(str(tag), "value")


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
    return Policy(budget=_changed_budget(facts["budget"], in_force.budget), analysts=analysts)


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
