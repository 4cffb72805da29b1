"""The console: pages for people, rendered on the server; parts of them are exchanged by htmx.

Everything that others wrote is escaped by the templates. A form carries the session's CSRF token in a header
(htmx) or in a field; `person_of` and `form_of` check it.
"""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, select_autoescape
from markupsafe import Markup

from ... import _registry
from ..._errors import InvalidInput
from ..._public import Boolean, Bounds, Categories, Dates
from ...curator import values
from ...tables.engine import quoted
from . import api, charts
from .auth import ASKERS, COOKIE, EVERYBODY, allow, check_origin, desk_of, granted, store_of
from .errors import HTTPError
from .store import Dataset, Person
from .tokens import same

router = APIRouter()
TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(default=True, default_for_string=True),
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals["quote"] = quoted
TEMPLATES.filters["number"] = lambda value: "" if value is None else f"{value:,.4g}"


def render(request: Request, template: str, code: int = 200, **facts: Any) -> HTMLResponse:
    """Return a page; `person` is who looks at it."""
    facts.setdefault("person", None)
    facts["demo"] = request.app.state.settings.demo
    return HTMLResponse(TEMPLATES.get_template(template).render(**facts), code)


def error_page(request: Request, kind: str, message: str, code: int) -> Response:
    """Return an error for a person: a part of a page for htmx, a page else; to the log-in if nobody is."""
    if kind == "NotLoggedIn":
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={"HX-Redirect": "/login"})
        return RedirectResponse("/login", 303)
    if request.headers.get("hx-request"):
        # htmx puts answers with these codes on the page, too (static/console.js)
        return render(request, "error_part.html", code, kind=kind, message=message)
    return render(request, "error.html", code, kind=kind, message=message)


async def form_of(request: Request) -> dict[str, str]:
    """Return the fields of a form, each once."""
    form = await request.form(max_fields=200, max_files=1)
    return {name: value for name, value in form.items() if isinstance(value, str)}


def page_person(*roles: Any) -> Any:
    """Return a dependency like `allow` that takes the CSRF token from a field as well as from the header."""
    check = allow(*roles)

    async def allowed(request: Request) -> Person:
        if request.method == "POST" and "x-csrf-token" not in request.headers:
            form = await request.form(max_fields=200, max_files=1)
            sent = form.get("csrf")
            if isinstance(sent, str):
                headers = [*request.scope["headers"], (b"x-csrf-token", sent.encode("latin-1", "replace"))]
                request.scope["headers"] = headers
                del request._headers
        return await check(request)

    allowed.roles = roles  # type: ignore[attr-defined]
    return allowed


Anybody = Annotated[Person, Depends(page_person(*EVERYBODY))]
Asker = Annotated[Person, Depends(page_person(*ASKERS))]


async def everyone() -> None:
    """Mark a route that needs no log-in."""


everyone.roles = ()  # type: ignore[attr-defined]
Everyone = Depends(everyone)


@router.get("/login", dependencies=[Everyone])
async def login_page(request: Request) -> HTMLResponse:
    """Ask for a token, or a name and a password."""
    return render(request, "login.html", tokens=request.app.state.settings.demo_tokens)


@router.post("/login", dependencies=[Everyone])
async def login(request: Request) -> Response:
    """Open a browser session."""
    check_origin(request)
    settings, store = request.app.state.settings, store_of(request)
    address = request.client.host if request.client else "?"
    if not request.app.state.gate.logins.take(address):
        raise HTTPError("TooManyRequests", "too many log-ins. Wait a minute.", {"Retry-After": "60"})
    form = await form_of(request)
    if form.get("token"):
        person = store.by_token(form["token"].strip())
    else:
        person = store.by_password(form.get("name", ""), form.get("password", ""))
    if person is None:
        wrong = (
            "This token is not valid: it is unknown, revoked or has expired. Ask the steward for a new one."
        )
        return render(request, "login.html", 401, wrong=wrong, tokens=settings.demo_tokens)
    response = RedirectResponse("/", 303)
    response.set_cookie(
        COOKIE,
        store.open_session(person, settings.session_hours),
        max_age=int(settings.session_hours * 3600),
        httponly=True,
        samesite="strict",
        secure=settings.secure,
        path="/",
    )
    return response


@router.post("/logout")
async def logout(request: Request, person: Anybody) -> Response:
    """Close the browser session."""
    store_of(request).close_session(request.cookies.get(COOKIE, ""))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(COOKIE)
    return response


@router.get("/")
async def home(request: Request, person: Anybody) -> HTMLResponse:
    """List the datasets with their gauges."""
    desk = desk_of(request)
    cards: list[dict[str, Any]] = []
    for dataset in store_of(request).datasets(person):
        try:
            facts = await desk.look("describe", person, dataset)
        except HTTPError as error:
            cards.append({"name": dataset.name, "problem": error.message})
            continue
        columns = [name for name, _ in facts["public"]["schema"]]
        cards.append({"name": dataset.name, "account": facts["account"], "columns": columns})
    return render(request, "home.html", person=person, cards=cards)


def column_facts(public: Any) -> list[dict[str, str]]:
    """Return what is public of each column, in words."""
    return [{"name": name, "kind": _kind(facts)} for name, facts in public.schema]


def _kind(facts: Any) -> str:
    if isinstance(facts, Bounds):
        return f"number from {facts.lower:,} to {facts.upper:,}"
    if isinstance(facts, Dates):
        return f"date from {facts.lower} to {facts.upper}"
    if isinstance(facts, Boolean):
        return "true or false"
    if isinstance(facts, Categories):
        shown = ", ".join(str(value) for value in facts.values[:6])
        return f"one of {shown}{' …' if len(facts.values) > 6 else ''}"
    return "text"


@router.get("/data/{name}")
async def ask_page(request: Request, name: str, person: Asker) -> HTMLResponse:
    """The page of one dataset: its columns, the editor, the preview and the answer."""
    facts = await desk_of(request).look("describe", person, granted(request, name, person))
    public = _registry.from_json(facts["public"])
    columns = column_facts(public)
    grouped = next((n for n, f in public.schema if isinstance(f, Categories)), None)
    table = public.table
    start = _first_question(table, grouped)
    hints = json.dumps({table: [column["name"] for column in columns]})
    return render(
        request, "ask.html", person=person, name=name, columns=columns, account=facts["account"], start=start,
        hints=hints, table=table, unit=public.unit.column, seconds=desk_of(request).settings.step,
    )  # fmt: skip


def _first_question(table: str, grouped: str | None) -> str:
    """Return the question that the editor begins with; names that are no plain words are quoted."""
    of, by = (name if name is None or name.isidentifier() else quoted(name) for name in (table, grouped))
    count = f"SELECT COUNT(*) AS n FROM {of}"
    return count if by is None else f"SELECT {by}, COUNT(*) AS n\nFROM {of}\nGROUP BY {by}"


def asked(form: dict[str, str]) -> dict[str, Any]:
    """Return the options of a question from the fields of the page."""
    by = form.get("by", "epsilon")
    field = form.get(by) if by in ("epsilon", "within") else None
    try:
        amount = float(field or "")
        limits = {name: int(form[name]) for name in ("rows", "groups") if form.get(name)}
    except ValueError:
        raise InvalidInput("say what the answer may cost, or how good it must be, as a number.") from None
    if not (math.isfinite(amount) and amount > 0):
        raise InvalidInput("say what the answer may cost, or how good it must be, as a number above 0.")
    text = form.get("sql", "").strip()
    if not text or len(text) > 20_000:
        raise InvalidInput("write a question: one SELECT of at most 20,000 characters.")
    return {"sql": text, by: amount, **limits}


@router.post("/data/{name}/preview")
async def preview(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Price and expected error while typing."""
    options = asked(await form_of(request))
    held = granted(request, name, person)
    facts = await desk_of(request).look("preview", person, held, in_odds=True, **options)
    cost = facts["budget"]
    chart = charts.expected(facts["columns"], facts["errors"], facts["confidence"])
    price = facts["epsilon"] if facts["epsilon"] is not None else cost["after"] - cost["before"]
    return render(
        request, "preview.html", facts=facts, cost=cost, chart=Markup(chart), odds=facts["odds"], price=price,
        name=name,
    )  # fmt: skip


@router.post("/data/{name}/run")
async def run(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Buy the answer."""
    form = await form_of(request)
    dataset = granted(request, name, person)
    answer = await desk_of(request).ask(
        "sql", person, dataset, **asked(form), fresh=form.get("fresh") == "on"
    )
    account = await desk_of(request).look("budget", person, dataset)
    bought = _registry.from_json(answer["answer"])
    told = await price_in_odds(request, dataset, person, bought)
    facts = answer_facts(bought) | {"odds": told}
    return render(request, "answer.html", name=name, account=account, oob=True, **facts)


async def price_in_odds(request: Request, dataset: Dataset, person: Person, answer: Any) -> str:
    """Return what the price of an answer means; an accountant may have to work it out, so a worker does."""
    options = {"event": answer.event.to_json(), "delta": float(answer.delta or 0.0)}
    said: str = (await desk_of(request).look("odds", person, dataset, **options))["odds"]
    return said


def answer_facts(answer: Any) -> dict[str, Any]:
    """Return what the page of an answer shows: table, intervals and chart."""
    ends, errors = answer.interval(0.95), answer.error(0.95)
    rows = [
        [
            (value, ends[column][r] if column in ends else None)
            for column, value in zip(answer.columns, row, strict=True)
        ]
        for r, row in enumerate(answer.rows)
    ]
    chart = ""
    if errors and rows:
        drawn = answer.bars()
        column = next(iter(errors))
        labels = [label or column for label in drawn["labels"]]
        chart = charts.bars(labels, drawn["heights"], drawn["errors"], f"{column}, with 95% intervals")
    return {
        "columns": answer.columns,
        "rows": rows,
        "notes": answer.notes,
        "sql": answer.sql,
        "price": answer.price,
        "chart": Markup(chart),
    }


@router.get("/data/{name}/history")
async def history(request: Request, name: str, person: Asker) -> HTMLResponse:
    """What was asked before, with its price and its answer."""
    listed = await api.stored(request, name, person, last=200)
    lines = (await desk_of(request).look("ledger", person, granted(request, name, person), last=200))[
        "entries"
    ]
    charges = [line for line in lines if line["kind"] in ("charge", "served")]
    return render(
        request,
        "history.html",
        person=person,
        name=name,
        releases=listed["releases"][::-1],
        entries=charges[::-1],
    )


async def _stored(request: Request, name: str, number: int, person: Person) -> Any:
    line = await api.stored(request, name, person, last=1, number=number)
    value = values.decode(line["value"])
    answer = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    return line, answer


@router.get("/data/{name}/releases/{number}")
async def release_page(request: Request, name: str, number: int, person: Asker) -> HTMLResponse:
    """A stored answer again."""
    line, answer = await _stored(request, name, number, person)
    if not hasattr(answer, "columns"):
        raw = json.dumps(line["value"], indent=1)
        return render(request, "release.html", person=person, name=name, number=number, raw=raw, line=line)
    told = await price_in_odds(request, granted(request, name, person), person, answer)
    facts = answer_facts(answer) | {"odds": told}
    return render(
        request, "release.html", person=person, name=name, number=number, raw=None, line=line, **facts
    )


@router.get("/data/{name}/releases/{number}/{form}")
async def download(request: Request, name: str, number: int, form: str, person: Asker) -> Response:
    """A stored answer as CSV (with intervals) or JSON."""
    line, answer = await _stored(request, name, number, person)
    if form == "json":
        body, kind = json.dumps(line), "application/json"
    elif form == "csv" and hasattr(answer, "columns"):
        body, kind = _csv(answer), "text/csv; charset=utf-8"
    else:
        raise HTTPError("NotFound", "a release is downloaded as csv (a table) or json.")
    headers = {"Content-Disposition": f'attachment; filename="release-{number}.{form}"'}
    return Response(body, media_type=kind, headers=headers)


def _csv(answer: Any) -> str:
    """Return a table with the ends of intervals; what a spreadsheet would run as a formula is quoted."""
    columns = answer._with_intervals(0.95)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([_harmless(name) for name in columns])
    for row in zip(*columns.values(), strict=True):
        writer.writerow([_harmless(value) if isinstance(value, str) else value for value in row])
    return text.getvalue()


def _harmless(text: str) -> str:
    return "'" + text if text[:1] in "=+-@\t\r" else text


@router.get("/account")
async def account_page(request: Request, person: Anybody) -> HTMLResponse:
    """Who one is, and a password for the next log-in."""
    return render(request, "account.html", person=person)


@router.post("/account")
async def set_password(request: Request, person: Anybody) -> HTMLResponse:
    """Set a password, for people who log in without a token at hand."""
    form = await form_of(request)
    first, second = form.get("password", ""), form.get("again", "")
    if not same(first.encode(), second.encode()):
        raise InvalidInput("the two passwords differ. Nothing was changed.")
    store_of(request).set_password(person.name, first)
    return render(request, "account.html", person=person, done=True)
