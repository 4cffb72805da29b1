"""Requests: from options, as text or numbers, to calls of a session, and from results to JSON.

The one place where this is done, for the shell and for the server. Nothing here prints or parses a
command line.
"""

from __future__ import annotations

import dataclasses
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .. import _registry, tables
from .. import session as sessions
from .._errors import InvalidInput
from ..accounting.filters import FilterPreview as Cost
from ..curator import STEWARD, Budget, Curator, Period, Policy, postgres_store
from ..curator.periods import UNLIMITED
from ..query import Answer


def beside(data: str, suffix: str) -> Path:
    """Return the file that belongs to a data file: its schema, or its ledger."""
    path, _, table = data.partition("::")
    # in the folder one is in, named as the table is
    if tables.is_address(data):
        return Path((table or "table").replace('"', "").replace("/", "-") + suffix)
    # a folder, or the folder that a pattern is in
    if tables.is_several(path):
        path = str(tables.stand_in(path))
    return Path(f"{path}.{table}{suffix}" if table else path + suffix)


def data_of(data: str) -> Any:
    """Return the table that a text names: a file, "database.duckdb::table", or
    "postgresql://user@host/database::table"."""
    if tables.is_address(data):
        return data
    path, _, table = data.partition("::")
    return tables.Database(path, table) if table else Path(path)


def _require_data(data: str) -> None:
    """Refuse a question in the place of the file, and a file that is not there: no schema is missing then."""
    if data.lstrip().lower().startswith("select "):
        raise InvalidInput("the file comes first, then the question. Nothing was opened or charged.")
    plain = not tables.is_address(data) and "::" not in data and not set(data) & set("*?[")
    if plain and not Path(data).exists():
        raise InvalidInput(f"there is no file {data!r}. Nothing was opened or charged.")


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
    """Open the session of a data file whose schema and ledger are made already, as one analyst sees it."""
    path, books = schema or beside(data, ".schema.toml"), ledger or beside(data, ".ledger")
    start = f"discreet init {shlex.quote(data)}" + (
        "" if schema is None else f" --schema {shlex.quote(str(schema))}"
    )
    for needed, make in ((path, start), (books, f"{start} --epsilon 1")):
        if not needed.exists() and not str(needed).startswith(("postgresql:", "postgres:")):
            _require_data(data)
            raise InvalidInput(f"there is no file {str(needed)!r}. Make it with: {make}")
    steward_session = sessions.open(data_of(data), schema=path, ledger=books, seconds=seconds, engine=engine)
    session = steward_session if analyst == STEWARD else steward_session.as_analyst(analyst)
    return session.during(*periods) if periods else session


def create_session(
    data: str,
    *,
    schema: Path,
    ledger: Path,
    budget: Budget,
    analysts: Mapping[str, Budget | None] | None = None,
    seconds: float | None = None,
    books: str | None = None,
) -> sessions.Session:
    """Open a data file with a new ledger.

    `books`: the PostgreSQL database that keeps its entries, "postgresql://user@host/books::name"; the file at
    `ledger` then says where they are. If the database has that ledger already, made by another machine, it is
    opened, with its key beside `ledger`, and its budgets stay.
    """
    options: dict[str, Any] = {"schema": schema, "seconds": seconds}
    if books is None:
        return sessions.open(data_of(data), ledger=ledger, budget=budget, analysts=analysts, **options)
    if not postgres_store.attach(ledger, books):
        # a ledger that is thrown away, for the table alone
        trial = sessions.open(data_of(data), ledger=sessions.TRIAL, budget=budget, **options)
        policy = Policy(budget=budget, analysts=tuple((analysts or {}).items()))
        Curator.create(ledger, trial.curator.source, policy, remote=books)
    return sessions.open(data_of(data), ledger=ledger, **options)


def ledger_name(dataset: str) -> str:
    """Return the name of a dataset's ledger in a database: small letters, digits and _.

    >>> ledger_name("Health.2026")
    'd_health_2026'
    """
    return "d_" + re.sub(r"[^a-z0-9_]", "_", dataset.lower())[:48]


def without_none(**options: Any) -> dict[str, Any]:
    """Return the options that were given."""
    return {name: value for name, value in options.items() if value is not None}


def answer_json(answer: Answer, confidence: float, session: sessions.Session) -> dict[str, Any]:
    """Return an answer with its errors, its price and the state of the one who asked."""
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


def cost_json(cost: Cost) -> dict[str, Any]:
    """Return what an event would do to a budget."""
    return dataclasses.asdict(cost)


def preview_json(query_preview: sessions.QueryPreview) -> dict[str, Any]:
    """Return a preview."""
    body = dataclasses.asdict(dataclasses.replace(query_preview.query, event=None))  # type: ignore[arg-type]
    return body | {
        "event": query_preview.query.event.to_json(),
        "admitted": query_preview.admitted,
        "fits": query_preview.fits,
        "budget": cost_json(query_preview.budget),
    }


def policy_json(policy: Policy) -> dict[str, Any]:
    """Return the dataset's budget and those of its analysts; null is one limited by the dataset's only."""
    return {
        "budget": _registry.to_json(policy.budget),
        "analysts": {name: None if own is None else _registry.to_json(own) for name, own in policy.analysts},
    }


def fit_json(
    columns: dict[str, Any],
    people: dict[str, str],
    groups: dict[str, str],
    not_utf8: str | None = None,
    *,
    noted: bool,
) -> dict[str, Any]:
    """Return how well a table fits its schema: exact facts made coarse, for the steward only."""
    shares = {name: dict(kinds) for name, kinds in columns.items()}
    facts = {"private": False, "columns": shares, "people": people, "groups": groups, "noted": noted}
    return facts | ({} if not_utf8 is None else {"not_utf8": not_utf8})


def period_of(per: str | None, total: str | None, delta: float) -> Period | None:
    """Return the periods that COLUMN:EVERY and a total name."""
    if per is None:
        if total is not None:
            raise InvalidInput("--total is about budgets per period: give --per, too. Nothing was opened.")
        return None
    column, mark, every = per.partition(":")
    if total is None or total == UNLIMITED:
        return Period(column=column, every=every if mark else None, total=total)
    try:
        return Period(
            column=column, every=every if mark else None, total=Budget(epsilon=float(total), delta=delta)
        )
    except ValueError as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"--total is an epsilon, or {UNLIMITED}; got {total!r}. Nothing was opened."
        ) from None


def analyst_of(text: str) -> tuple[str, Budget | None]:
    """Return the name and the budget of NAME, NAME=EPSILON or NAME=EPSILON,DELTA."""
    name, mark, price = text.partition("=")
    epsilon, _, delta = price.partition(",")
    try:
        return name, Budget(epsilon=float(epsilon), delta=float(delta or 0)) if mark else None
    except ValueError:
        raise InvalidInput(
            f"an analyst is given as NAME, NAME=EPSILON or NAME=EPSILON,DELTA, got {text!r}."
        ) from None
