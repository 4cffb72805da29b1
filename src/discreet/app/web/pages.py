"""Renders the console's pages of datasets, questions and answers on the server; htmx, a script in the
browser, replaces parts of them."""

from __future__ import annotations

import csv
import io
import json
import math
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup

from ... import _registry
from ..._errors import InvalidInput
from ..._public import Boolean, Bounds, Categories, Dates
from ...curator import values
from ...query.spelling import plain_or_quoted
from . import api, charts
from .auth import desk_of, granted, store_of
from .errors import HTTPError
from .formats import harmless
from .rendering import Anybody, Asker, form_of, render
from .store import Dataset, Person

router = APIRouter()


@router.get("/")
async def home(request: Request, person: Anybody) -> HTMLResponse:
    """List the datasets, each with how much of its budget is spent."""
    desk = desk_of(request)
    cards: list[dict[str, Any]] = []
    for dataset in store_of(request).datasets(person):
        try:
            facts = await desk.look("describe", person, dataset)
        except HTTPError as error:
            cards.append({"name": dataset.name, "problem": error.message})
            continue
        columns = [name for name, _ in facts["public"]["schema"]]
        cards.append(
            {
                "name": dataset.name,
                "account": facts["account"],
                "columns": columns,
                "own_budget": facts["own_budget"],
            }
        )
    return render(request, "home.html", person=person, cards=cards)


def column_facts(public: Any) -> list[dict[str, str]]:
    """Return the name of each column, and its declared facts in words."""
    return [{"name": name, "kind": _kind(facts)} for name, facts in public.schema]


def _kind(facts: Any) -> str:
    """Return the declared facts of a column in words."""
    if isinstance(facts, Bounds):
        return f"number from {facts.lower:,} to {facts.upper:,}"
    if isinstance(facts, Dates):
        return f"date from {facts.lower} to {facts.upper}"
    if isinstance(facts, Boolean):
        return "true or false"
    if isinstance(facts, Categories):
        examples = ", ".join(str(value) for value in facts.values[:6])
        return f"one of {examples}{' …' if len(facts.values) > 6 else ''}"
    return "text"


@router.get("/data/{name}")
async def ask_page(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Show the page of one dataset: its columns, and the editor for a question."""
    facts = await desk_of(request).look("describe", person, granted(request, name, person))
    public = _registry.from_json(facts["public"])
    columns = column_facts(public)
    hints = json.dumps({public.table: [column["name"] for column in columns]})
    questions = first_questions(public)
    return render(
        # the editor starts with the second example, counts by group, if there is one
        request, "ask.html", person=person, name=name, columns=columns, account=facts["account"],
        own_budget=facts["own_budget"], start=questions[min(1, len(questions) - 1)]["sql"],
        examples=questions, hints=hints, table=public.table, unit=public.unit.column,
        # answers leave at multiples of this time only, so that it tells nothing of the data
        answers_every=desk_of(request).settings.step,
    )  # fmt: skip


def first_questions(public: Any) -> list[dict[str, str]]:
    """Return example questions from the declared columns: a count, counts by group, and a mean."""
    table = plain_or_quoted(public.table)
    # The column that identifies people is no group, and has no mean.
    columns = [(n, f) for n, f in public.schema if n != public.unit.column]
    grouped = next((n for n, f in columns if isinstance(f, Categories)), None)
    measured = next((n for n, f in reversed(columns) if isinstance(f, Bounds)), None)
    questions = [{"text": "how many rows", "sql": f"SELECT COUNT(*) AS n\nFROM {table}"}]
    if grouped is not None:
        by = plain_or_quoted(grouped)
        text = f"how many by {grouped}"
        questions.append({"text": text, "sql": f"SELECT {by}, COUNT(*) AS n\nFROM {table}\nGROUP BY {by}"})
    if measured is not None:
        mean = f"AVG({plain_or_quoted(measured)}) AS mean"
        questions.append({"text": f"mean of {measured}", "sql": f"SELECT {mean}\nFROM {table}"})
    return questions


def question_options(form: dict[str, str]) -> dict[str, Any]:
    """Return the options of a question from the fields of the page.

    The field "by" says which of "epsilon" (a price) and "within" (an error) the analyst has chosen.
    """
    by = form.get("by", "epsilon")
    field = form.get(by) if by in ("epsilon", "within") else None
    try:
        amount = float(field or "")
    except ValueError:
        raise InvalidInput("say what the answer may cost, or how good it must be, as a number.") from None
    try:
        limits = {name: int(form[name]) for name in ("rows", "groups") if form.get(name)}
    except ValueError:
        raise InvalidInput("give the limits on rows and groups of one person as whole numbers.") from None
    if not (math.isfinite(amount) and amount > 0):
        raise InvalidInput("say what the answer may cost, or how good it must be, as a number above 0.")
    text = form.get("sql", "").strip()
    if not text or len(text) > 20_000:
        raise InvalidInput("write a question: one SELECT of at most 20,000 characters.")
    return {"sql": text, by: amount, **limits}


@router.post("/data/{name}/preview")
async def preview(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Show the price and the expected error of a question; the page requests it while the analyst types."""
    options = question_options(await form_of(request))
    dataset = granted(request, name, person)
    facts = await desk_of(request).look("preview", person, dataset, in_odds=True, **options)
    cost = facts["budget"]
    chart = charts.expected(facts["columns"], facts["errors"], facts["confidence"])
    # Without an epsilon, as for a price in rho, what the question adds to the account.
    price = facts["epsilon"] if facts["epsilon"] is not None else cost["after"] - cost["before"]
    errors = [error for error in facts["errors"] if error is not None and math.isfinite(error)]
    return render(
        request, "preview.html", facts=facts, cost=cost, chart=Markup(chart), odds=facts["odds"], price=price,
        # the result of which the expected error would be one tenth
        name=name, result_to_a_tenth=_two_digits(10 * errors[0]) if len(errors) == 1 else None,
    )  # fmt: skip


def _two_digits(value: float) -> float:
    """Round to two significant digits."""
    return float(f"{value:.2g}")


@router.post("/data/{name}/run")
async def run(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Answer a question for its price, and show the answer."""
    form = await form_of(request)
    dataset = granted(request, name, person)
    answer = await desk_of(request).ask(
        "sql", person, dataset, **question_options(form), fresh=form.get("fresh") == "on"
    )
    desk = desk_of(request)
    description = await desk.look("describe", person, dataset)
    bought = _registry.from_json(answer["answer"])
    odds = await price_in_odds(request, dataset, person, bought)
    facts = answer_facts(bought) | {"odds": odds}
    return render(
        request, "answer.html", name=name, account=description["account"],
        own_budget=description["own_budget"], in_history_after=desk.settings.seconds, **facts,
    )  # fmt: skip


async def price_in_odds(request: Request, dataset: Dataset, person: Person, answer: Any) -> str:
    """Return what the price of an answer means as odds. A worker computes it, because it may take seconds."""
    options = {"event": answer.event.to_json(), "delta": float(answer.delta or 0.0)}
    sentence: str = (await desk_of(request).look("odds", person, dataset, **options))["odds"]
    return sentence


def answer_facts(answer: Any) -> dict[str, Any]:
    """Return what the page of an answer shows: its table, intervals and chart.

    Each cell of "rows" is its value, its interval and its error; the last two are None without noise. "below"
    says whether an interval holds 0 and reaches below it.
    """
    ends, errors = answer.interval(0.95), answer.error(0.95)
    rows = [
        [
            (value, ends[column][r], errors[column][r]) if column in ends else (value, None, None)
            for column, value in zip(answer.columns, row, strict=True)
        ]
        for r, row in enumerate(answer.rows)
    ]
    chart = ""
    if errors and rows:
        bars = answer.bars()
        column = next(iter(errors))
        labels = [label or column for label in bars["labels"]]
        chart = charts.bars(labels, bars["heights"], ends[column], f"{column}, with 95% intervals")
    return {
        "columns": answer.columns,
        "rows": rows,
        "noisy": set(ends),
        "below": any(
            span is not None and span[0] < 0 <= span[1] for spans in ends.values() for span in spans
        ),
        "notes": answer.notes,
        "sql": answer.sql,
        "price": answer.price,
        "chart": Markup(chart),
    }


@router.get("/data/{name}/history")
async def history(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Show what was asked before, with its price and its answer."""
    releases = await api.stored_releases(request, name, person, last=200)
    lines = (await desk_of(request).look("ledger", person, granted(request, name, person), last=200))[
        "entries"
    ]
    charges = [line for line in lines if line["kind"] in ("charge", "served")]
    return render(
        request,
        "history.html",
        person=person,
        name=name,
        releases=releases["releases"][::-1],
        entries=charges[::-1],
    )


async def _find_stored(request: Request, name: str, number: int, person: Person) -> tuple[Any, Any]:
    """Return a stored release as JSON, and its value; if that is a tuple of one item, the item."""
    line = await api.stored_releases(request, name, person, last=1, number=number)
    value = values.decode(line["value"])
    answer = value[0] if isinstance(value, tuple) and len(value) == 1 else value
    return line, answer


@router.get("/data/{name}/releases/{number}")
async def release_page(request: Request, name: str, number: int, person: Asker) -> HTMLResponse:
    """Show a stored answer."""
    line, answer = await _find_stored(request, name, number, person)
    if not hasattr(answer, "columns"):
        raw = json.dumps(line["value"], indent=1)
        return render(request, "release.html", person=person, name=name, number=number, raw=raw, line=line)
    odds = await price_in_odds(request, granted(request, name, person), person, answer)
    facts = answer_facts(answer) | {"odds": odds}
    return render(
        request, "release.html", person=person, name=name, number=number, raw=None, line=line, **facts
    )


@router.get("/data/{name}/releases/{number}/{form}")
async def download(request: Request, name: str, number: int, form: str, person: Asker) -> Response:
    """Download a stored answer as CSV (with intervals) or JSON."""
    line, answer = await _find_stored(request, name, number, person)
    if form == "json":
        body, kind = json.dumps(line), "application/json"
    elif form == "csv" and hasattr(answer, "columns"):
        body, kind = _csv(answer), "text/csv; charset=utf-8"
    else:
        raise HTTPError("NotFound", "a release is downloaded as csv (a table) or json.")
    headers = {"Content-Disposition": f'attachment; filename="release-{number}.{form}"'}
    return Response(body, media_type=kind, headers=headers)


def _csv(answer: Any) -> str:
    """Return an answer as CSV with the ends of its intervals; no spreadsheet runs its texts as formulas."""
    columns = answer._with_intervals(0.95)
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow([harmless(name) for name in columns])
    for row in zip(*columns.values(), strict=True):
        writer.writerow([harmless(value) if isinstance(value, str) else value for value in row])
    return text.getvalue()
