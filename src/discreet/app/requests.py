"""Turns options, given as texts or numbers, into sessions and budgets, and results into JSON.

The command line and the server both use them, so that they agree. Nothing here prints, or parses a command
line.
"""

from __future__ import annotations

import dataclasses
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from .. import _registry, tables
from .. import session as sessions
from .._errors import DiscreetError, InvalidInput
from ..curator import STEWARD, Budget, Curator, Period, Policy, postgres_store
from ..curator.periods import UNLIMITED
from ..query import Answer
from ..session.base import QueryPreview
from ..session.opening import TRIAL
from ..tables.engines.postgres_tables import is_address
from ..tables.engines.spark_files import is_several
from ..tables.files import codebooks_of, formatted, refuse_empty, several, stand_in
from ..tables.fit import fit_of, ids_of, not_utf8, odd_lines


def beside(data: str, suffix: str) -> Path:
    """Return the default path of the schema or the ledger of `data`: the data file's name with `suffix`
    added.

    For "database.duckdb::table" the table's name comes between the file's name and `suffix`. For a folder, or
    a pattern of files in one ("visits/*.parquet"), the folder's path stands in for the file's; where
    wildcards begin in the current folder or in a folder's name, the text before the first wildcard does
    (`tables.files.stand_in`).
    """
    path, _, table = data.partition("::")
    refuse_empty(path)
    # data in a database on a server: the path is in the current folder, named after the table
    if is_address(data):
        return Path((table or "table").replace('"', "").replace("/", "-") + suffix)
    if is_several(path):
        path = str(stand_in(path))
    return Path(f"{path}.{table}{suffix}" if table else path + suffix)


def data_of(data: str) -> Any:
    """Return the table that a text names, as `session.open` takes it: a file, "database.duckdb::table", or
    "postgresql://user@host/database::table"."""
    if is_address(data):
        return data
    path, _, table = data.partition("::")
    refuse_empty(path)
    return tables.Database(path, table) if table else Path(path)


def refuse_password(data: str) -> None:
    """Refuse the address of a database that has a password in it, before any message could repeat the
    address.

    `tables.engines.postgres_tables` refuses it too, but only when the address is used, and with a driver
    installed.
    """
    # as a Path, an address has one slash after its scheme
    address = re.match(r"postgres(?:ql)?:/+(?P<authority>[^/?]*)", data)
    if address is None:
        return
    user, at, _ = address["authority"].rpartition("@")
    if (at and ":" in user) or re.search(r"[?&](ssl)?password=", data, re.IGNORECASE):
        raise InvalidInput(
            "the address has a password in it, which would end up in histories and logs. Leave it out, and "
            "put it into PGPASSWORD, ~/.pgpass or a service file."
        )


def _require_data(data: str) -> None:
    """Refuse SQL where the data file should be, and a data file that does not exist; called where the schema
    or the ledger is missing, as these are the likely reasons."""
    if data.lstrip().lower().startswith("select "):
        raise InvalidInput("the file comes first, then the question.")
    is_plain_path = not is_address(data) and "::" not in data and not set(data) & set("*?[")
    if is_plain_path and not Path(data).exists():
        raise InvalidInput(f"there is no file {data!r}.")


def open_session(
    data: str,
    *,
    schema: Path | None = None,
    ledger: Path | None = None,
    analyst: str = STEWARD,
    periods: list[str] | tuple[str, ...] = (),
    seconds: float | None = None,
    engine: str | None = None,
) -> sessions.Session:
    """Open the session of `data`, whose schema file and ledger exist already, as `analyst` sees it.

    `schema` and `ledger` are paths, by default `beside` the data. `periods` restrict the session to rows of
    these periods; `seconds` is the time limit of the engine, `engine` its name as `session.open` takes it.
    """
    refuse_password(data)
    schema_path, ledger_path = schema or beside(data, ".schema.toml"), ledger or beside(data, ".ledger")
    command = f"discreet init {shlex.quote(data)}" + (
        "" if schema is None else f" --schema {shlex.quote(str(schema))}"
    )
    for path, maker in ((schema_path, command), (ledger_path, f"{command} --epsilon 1")):
        if not path.exists() and not str(path).startswith(("postgresql:", "postgres:")):
            _require_data(data)
            raise InvalidInput(f"there is no file {str(path)!r}. Make it with: {maker}")
    steward_session = sessions.open(
        data_of(data), schema=schema_path, ledger=ledger_path, seconds=seconds, engine=engine
    )
    session = steward_session if analyst == STEWARD else steward_session.as_analyst(analyst)
    return session.during(*periods) if periods else session


def create_session(
    data: Any,
    *,
    schema: Path,
    ledger: Path,
    budget: Budget,
    related: Mapping[str, Any] | None = None,
    analysts: Mapping[str, Budget | None] | None = None,
    seconds: float | None = None,
    books: str | None = None,
    large_epsilon: bool = False,
) -> sessions.Session:
    """Open data, as `session.open` takes it, with a new ledger.

    `books` is the PostgreSQL database that stores the ledger's entries, "postgresql://user@host/books::name";
    the file at `ledger` then holds this address only. If the database has that ledger already, made by
    another machine, it is opened with the key file beside `ledger`; its budgets stay, and `budget` and
    `analysts` are not used.
    """
    options: dict[str, Any] = {"schema": schema, "related": related, "seconds": seconds}
    if books is None:
        return sessions.open(
            data, ledger=ledger, budget=budget, analysts=analysts, large_epsilon=large_epsilon, **options
        )
    # `attach` returns False if the database does not have that ledger yet.
    if not postgres_store.attach(ledger, books):
        # opens and checks the table; its ledger is temporary and never charged
        trial = sessions.open(data, ledger=TRIAL, budget=budget, large_epsilon=large_epsilon, **options)
        policy = Policy(budget=budget, analysts=tuple((analysts or {}).items()))
        Curator.create(ledger, trial.curator.source, policy, remote=books, large_epsilon=large_epsilon)
    return sessions.open(data, ledger=ledger, **options)


def ledger_name(dataset: str) -> str:
    """Return the name of a dataset's ledger in a database: small letters, digits and _, at most 50
    characters. Two datasets have the same one if their names differ only in case, in other characters, or
    beyond that length.

    >>> ledger_name("Health.2026")
    'd_health_2026'
    """
    return "d_" + re.sub(r"[^a-z0-9_]", "_", dataset.lower())[:48]


def without_none(**options: Any) -> dict[str, Any]:
    """Return the options that are not None."""
    return {name: value for name, value in options.items() if value is not None}


def answer_json(answer: Answer, confidence: float, session: sessions.Session) -> dict[str, Any]:
    """Return an answer with its errors at `confidence`, its price, and what its analyst has spent and has
    left."""
    return {
        "columns": list(answer.columns),
        "rows": [list(row) for row in answer.rows],
        "errors": answer.error(confidence),
        "confidence": confidence,
        "event": answer.event.to_json(),
        "plan": list(answer.plan),
        "notes": list(answer.notes),
        "used": session.spent,
        "remaining": session.remaining,
        "answer": _registry.to_json(answer),
    }


def is_shown(time: str, options: Mapping[str, Any]) -> bool:
    """Return whether what was charged at a time may be shown: it is not after the "horizon", in seconds since
    1970, and in none of the spans that are "hidden". That something is stored would tell how long the work
    took."""
    moment = datetime.fromisoformat(time).timestamp()
    hidden = any(begun - 0.002 <= moment <= end + 0.002 for begun, end in options.get("hidden", ()))
    return moment <= options.get("horizon", 0.0) and not hidden


def shown_time(time: str | None, options: Mapping[str, Any]) -> str | None:
    """Return the time of an entry to the minute; None where it may not be shown (`is_shown`)."""
    return f"{time[:16]}Z" if time is not None and is_shown(time, options) else None


def account_line(account: Any) -> dict[str, Any]:
    """Return an account as JSON; null is infinite."""
    return {
        "of": account.of,
        "used": account.used,
        "limit": float(account.rule.total),
        "unit": account.rule.unit,
        "pure": account.pure if math.isfinite(account.pure) else None,
        "own_delta": account.own_delta,
    }


def preview_json(query_preview: QueryPreview) -> dict[str, Any]:
    """Return the preview of a query as JSON, with what it would do to the budget.

    "admitted" says whether the budget pays for it, "fits" how many times in a row; null means without limit.
    "buys" says the same in words; "answered" when the caller was given the answer, which is free since, or
    null.
    """
    # Without the event, which `asdict` would take apart: its own JSON is added below.
    body = dataclasses.asdict(dataclasses.replace(query_preview.query, event=None))  # type: ignore[arg-type]
    return body | {
        "event": query_preview.query.event.to_json(),
        "admitted": query_preview.admitted,
        "fits": query_preview.fits,
        "buys": query_preview.buys,
        "answered": query_preview.answered,
        "budget": dataclasses.asdict(query_preview.budget),
    }


def policy_json(policy: Policy) -> dict[str, Any]:
    """Return the dataset's budget and those of its analysts as JSON; null is an analyst without a budget of
    their own, whom only the dataset's budget limits."""
    return {
        "budget": _registry.to_json(policy.budget),
        "analysts": {name: None if own is None else _registry.to_json(own) for name, own in policy.analysts},
        **limits_json(policy),
    }


def limits_json(policy: Policy) -> dict[str, Any]:
    """Return the limits beside the budgets that are set, as JSON."""
    return {name: _registry.to_json(limit) for name, limit in policy.limits.items()}


def fit_facts(source: Any, schema: Path, ledger: Path, related: Mapping[str, Any]) -> dict[str, Any]:
    """Return as JSON how well data and related tables fit a schema file: coarse but exact facts, for the
    steward only. Where there is a ledger, an entry says so, written before anything is returned.

    "columns" has, for each column, the shares of cells that are missing, unreadable and outside what the
    schema declares; "people" and "groups" say how many people are over the limits on rows and groups,
    "not_utf8" how many lines are not text in their encoding, "lines" how many have more or fewer fields than
    the first, "ids" how many rows belong to nobody or to few, "noted" whether the ledger records that the
    steward looked at the data, and "related" the same of lines of other tables, by their names.
    "private" is false: the facts are not protected by noise.
    """
    public = tables.load(schema)
    source = formatted(several(source) or source, schema, public)
    related = {name: formatted(several(of) or of, schema, public, name) for name, of in related.items()}
    books = codebooks_of(schema, public)
    engine = tables.connect(source, public, related=related or None, codebooks=books)
    columns, people, groups = fit_of(engine)
    undecodable, lines, ids, noted = not_utf8(source), odd_lines(source), ids_of(engine), ledger.exists()
    shares = {name: dict(column_shares) for name, column_shares in columns.items()}
    facts = {"private": False, "columns": shares, "people": people, "groups": groups, "noted": noted}
    facts |= {"lines": lines, "ids": ids} | ({} if undecodable is None else {"not_utf8": undecodable})
    if related:
        broken = {name: share for name, of in related.items() if (share := not_utf8(of)) is not None}
        others = {name: odd_lines(of) for name, of in related.items()}
        facts |= {"related": {"lines": others, "not_utf8": broken}}
    if noted:
        named = [name for name, _ in public.schema]
        Curator.open(ledger, engine).note("looked", {"what": "discreet check", "columns": named})
    return facts


def period_of(per: str | None, total: str | None, delta: float) -> Period | None:
    """Return the periods that the options --per COLUMN:EVERY and --total describe; None without --per.

    `total` is the epsilon, at `delta`, of all periods together, or "unlimited"; None where units are rows,
    which are in one period each.
    """
    if per is None:
        if total is not None:
            raise InvalidInput("--total is about budgets per period: give --per, too.")
        return None
    column, colon, every = per.partition(":")
    if total is None or total == UNLIMITED:
        return Period(column=column, every=every if colon else None, total=total)
    try:
        return Period(
            column=column, every=every if colon else None, total=Budget(epsilon=float(total), delta=delta)
        )
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(f"--total is an epsilon, or {UNLIMITED}; got {total!r}.") from None


def analysts_of(texts: Sequence[str]) -> dict[str, Budget | None]:
    """Return the budgets by name, each name given once."""
    named = [analyst_of(text) for text in texts]
    names = [name for name, _ in named]
    if repeated := [name for name in names if names.count(name) > 1]:
        raise InvalidInput(
            f"{repeated[0]!r} is named more than once in --analyst. Say once what the analyst may spend."
        )
    return dict(named)


def analyst_of(text: str) -> tuple[str, Budget | None]:
    """Return the name and the budget of NAME, NAME=EPSILON or NAME=EPSILON,DELTA."""
    name, equals, price = text.partition("=")
    epsilon, _, delta = price.partition(",")
    try:
        return name, Budget(epsilon=float(epsilon), delta=float(delta or 0)) if equals else None
    except InvalidInput as error:
        raise InvalidInput(f"the budget of the analyst {name!r}: {error}") from None
    except ValueError:
        raise InvalidInput(
            f"an analyst is given as NAME, NAME=EPSILON or NAME=EPSILON,DELTA, got {text!r}."
        ) from None


def error_json(error: DiscreetError, kind: str = "") -> dict[str, Any]:
    """Return an error as JSON: the name of its class, if no `kind` is given, its message, and the parts of
    that, from which the client makes the same error."""
    return {
        "kind": kind or type(error).__name__,
        "message": str(error),
        "what": error.what,
        "remedy": error.remedy,
        "option": error.option,
        "charged": error.charged,
    }
