"""Renders the console's pages of datasets, questions and answers on the server; htmx, a script in the
browser, replaces parts of them.

Renders pages of the console (the server in the browser) for models, synthetic copies, their jobs, and
explanations of prices.

A job fits a model (verb "fit") or makes a synthetic copy (verb "synthesize"); its result is shown after a
time that the person chose, and not before. `api` says what the front desk (`desk_of`) and its methods are.

Renders the pages that log a person in and out, and show their own account.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import logging
import math
import re
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse, RedirectResponse, Response
from markupsafe import Markup

from ... import _registry
from ..._errors import InvalidInput
from ..._public import Boolean, Bounds, Categories, Dates, Text
from ...curator import values
from ...query.parse import plain_or_quoted
from . import api, charts
from .api import facts_of
from .auth import BEGUN, UNKNOWN, Bounded, OpenId, check_origin, cookie_name, desk_of, granted, store_of
from .charts import harmless
from .problems import HTTPError
from .rendering import Anybody, Asker, Reader, form_of, render
from .server_store import Person, same

LOG = logging.getLogger("discreet.access")
router = APIRouter(route_class=Bounded)


@router.get("/")
async def home(request: Request, person: Anybody) -> HTMLResponse:
    """List the datasets, each with how much of its budget is spent."""
    desk = desk_of(request)
    cards: list[dict[str, Any]] = []
    for dataset in store_of(request).datasets(person):
        try:
            facts = facts_of(await desk.look("describe", person, dataset))
        except HTTPError as error:
            cards.append({"name": dataset.name, "problem": str(error)})
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


def column_facts(public: Any) -> list[dict[str, Any]]:
    """Return the name of each column, its declared facts in words, all its values where these are more than
    the words name, and whether it holds numbers."""
    return [
        {
            "name": name,
            "kind": _kind(facts),
            "more": facts.values if isinstance(facts, Categories) and len(facts.values) > 6 else (),
            "number": isinstance(facts, Bounds),
        }
        for name, facts in public.schema
    ]


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
async def ask_page(
    request: Request, name: str, person: Asker, release: int | None = None, fresh: str = ""
) -> HTMLResponse:
    """Show the page of one dataset: its columns, and the editor for a question. It begins with that of a
    stored `release`, at its price, or else with an example."""
    facts = await api.looked(request, name, person, "describe")
    public = _registry.from_json(facts["public"])
    columns = column_facts(public)
    hints = json.dumps({public.table: [column["name"] for column in columns]})
    questions = first_questions(public)
    # the second example is counts by group, if there is one
    start, epsilon = questions[min(1, len(questions) - 1)]["sql"], 0.1
    if release is not None:
        line, answer = await _find_stored(request, name, release, person)
        start, epsilon = line["text"] or start, getattr(answer, "epsilon", None) or epsilon
    return render(
        request, "ask.html", person=person, name=name, columns=columns, account=facts["account"],
        own_budget=facts["own_budget"], start=start, epsilon=epsilon, given=release is not None,
        fresh=bool(fresh), examples=questions, hints=hints, table=public.table, unit=public.unit.column,
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
    form = await form_of(request)
    facts = await api.looked(request, name, person, "preview", in_odds=True, **question_options(form))
    # who draws anew pays again
    facts["answered"] = facts["answered"] and form.get("fresh") != "on"
    cost = facts["budget"]
    chart = charts.expected(facts["columns"], facts["errors"], facts["confidence"])
    # Without an epsilon, as for a price in rho, what the question adds to the account.
    price = facts["epsilon"] if facts["epsilon"] is not None else cost["after"] - cost["before"]
    errors = [error for error in facts["errors"] if error is not None and math.isfinite(error)]
    return render(
        request, "preview.html", facts=facts, cost=cost, chart=chart, odds=facts["odds"], price=price,
        # the result of which the expected error would be one tenth
        result_to_a_tenth=_two_digits(10 * errors[0]) if len(errors) == 1 else None,
        name=name, label=form.get("label", "Budget")[:20],
    )  # fmt: skip


def _two_digits(value: float) -> float:
    """Round to two significant digits."""
    return float(f"{value:.2g}")


@router.post("/data/{name}/run")
async def run(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Answer a question for its price, and show the answer."""
    form = await form_of(request)
    dataset = granted(request, name, person)
    desk, fresh = desk_of(request), form.get("fresh") == "on"
    answer = facts_of(await desk.ask("sql", person, dataset, **question_options(form), fresh=fresh))
    description = await api.looked(request, name, person, "describe")
    bought = _registry.from_json(answer["answer"])
    odds = await _odds(request, name, person, answer["event"], bought.delta)
    facts = answer_facts(bought) | {"odds": odds}
    return render(
        request, "answer.html", name=name, account=description["account"],
        own_budget=description["own_budget"], in_history_after=desk.settings.seconds, **facts,
    )  # fmt: skip


@router.post("/data/{name}/suggest")
async def suggest(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Find narrower bounds of the column in the field "column", for the price in the form; or the limits on
    rows and groups of the question, for a twentieth of that."""
    form = await form_of(request)
    options = question_options(form | {"by": "epsilon"})
    price = options["epsilon"] if "column" in form else options["epsilon"] / 20
    what = {"column": form["column"]} if "column" in form else {"sql": options["sql"]}
    asked: dict[str, Any] = what | {"epsilon": price}
    found = facts_of(await desk_of(request).ask("suggest", person, granted(request, name, person), **asked))
    return render(request, "suggested.html", **found, **asked)


async def _odds(request: Request, name: str, person: Person, event: Any, delta: Any) -> str:
    """Return what a price means as odds. A worker computes it, because it may take seconds."""
    options = {"event": event, "delta": float(delta or 0.0)}
    sentence: str = (await api.looked(request, name, person, "odds", **options))["odds"]
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
        "chart": chart,
    }


@router.get("/data/{name}/history")
async def history(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Show what was asked before, with its price and its answer."""
    releases = await api.looked(request, name, person, "releases", last=200)
    lines = (await api.looked(request, name, person, "ledger", last=200))["entries"]
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
    line = await api.looked(request, name, person, "releases", last=1, number=number)
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
    odds = await _odds(request, name, person, line["event"], answer.delta)
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


# The audiences of an explanation, as `bodies.ExplainBody` admits them.
AUDIENCES = ("public", "policy", "engineer")
# The most rows of an answer from a copy that a page shows; chosen by hand.
SHOWN = 500


# models


@router.get("/data/{name}/models")
async def models(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Show the form that submits a job to fit a model, and the person's jobs of this kind."""
    facts = await api.looked(request, name, person, "describe")
    public = _registry.from_json(facts["public"])
    columns = [column for column in column_facts(public) if column["name"] != public.unit.column]
    return render(
        request, "models.html", person=person, name=name, columns=columns, account=facts["account"],
        size=public.size, own_budget=facts["own_budget"],
        verb="fit", jobs=_jobs(request, name, person, "fit"),
        max_seconds=desk_of(request).settings.job_seconds,
    )  # fmt: skip


async def _fit(request: Request, name: str, person: Person) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options of a job that fits a model, `Ridge` for a number or `LogisticRegression` for
    classes, and the form they come from.

    The field "kind" of the form says which, "number" or "classes"; if it says neither, a target with declared
    bounds is a number.
    """
    form = await form_of(request)
    epsilon, _ = _price_and_time(request, form)
    public = _registry.from_json((await api.looked(request, name, person, "describe"))["public"])
    target, kind = form.get("target", ""), form.get("kind")
    declared = dict(public.schema).get(target)
    is_number = kind == "number" or (kind != "classes" and isinstance(declared, Bounds))
    parameters: dict[str, Any] = {"epsilon": epsilon}
    if not is_number and public.size is None:
        parameters["n"] = _number_of_people(form.get("n", ""))
    estimator = {"estimator": "Ridge" if is_number else "LogisticRegression", "parameters": parameters}
    return {"estimator": estimator, "target": target}, form


@router.post("/data/{name}/models/preview")
async def preview_model(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Show the price of a model; the page requests it while its form is filled in."""
    return await _price_page(request, name, person, "preview_fit", *await _fit(request, name, person))


@router.post("/data/{name}/models")
async def begin_model(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Submit a job that fits a model."""
    return await _begin(request, name, person, "fit", *await _fit(request, name, person))


async def _price_page(
    request: Request, name: str, person: Person, verb: str, options: dict[str, Any], form: dict[str, str]
) -> HTMLResponse:
    """Show the price of a model or a copy, and what it would do to the budget."""
    facts = await api.looked(request, name, person, verb, **options)
    odds = await _odds(request, name, person, facts["event"], facts["delta"])
    label = form.get("label", "Budget")[:20]
    return render(request, "price.html", name=name, facts=facts, cost=facts["budget"], odds=odds, label=label)


async def _begin(
    request: Request, name: str, person: Person, verb: str, options: dict[str, Any], form: dict[str, str]
) -> HTMLResponse:
    """Submit a job, and show the list of jobs."""
    _, seconds = _price_and_time(request, form)
    desk_of(request).submit(verb, person, granted(request, name, person), seconds, **options)
    return _job_list(request, name, person, verb, begun=True)


def _number_of_people(text: str) -> int:
    """Return the approximate number of people from the text of its field."""
    if not text.isdecimal() or len(text) > 11 or not 1 <= int(text) <= 10**10:
        raise InvalidInput(
            "a model of classes needs to know about how many people are in the table: a whole number, from "
            "what is known without the data. Nothing was charged."
        )
    return int(text)


def _price_and_time(request: Request, form: dict[str, str]) -> tuple[float, float]:
    """Return the epsilon of a job and the seconds after which its result is shown, from its form."""
    limit = desk_of(request).settings.job_seconds
    try:
        epsilon, seconds = float(form.get("epsilon", "")), float(form.get("seconds", ""))
    except ValueError:
        raise InvalidInput("epsilon and seconds are numbers. Nothing was charged.") from None
    if not (math.isfinite(epsilon) and epsilon > 0):
        raise InvalidInput("epsilon is a number above 0. Nothing was charged.")
    if not 0 < seconds <= limit:
        raise InvalidInput(f"a job takes above 0 and at most {limit:g} seconds. Nothing was charged.")
    return epsilon, seconds


# jobs


def _jobs(request: Request, name: str, person: Person, verb: str) -> list[dict[str, Any]]:
    """Return the person's jobs of one verb ("fit" or "synthesize") on a dataset, the newest first."""
    store = store_of(request)
    jobs = store.jobs(person, dataset=name, verb=verb)
    # The result of a failed job is its error, which is small.
    failed = {job["id"]: store.job(job["id"], person) for job in jobs if job["state"] == "failed"}
    problems = {job: json.loads(row[1] or "{}") for job, row in failed.items() if row is not None}
    own = [job for job in jobs if job["person"] == person.name]
    return [api.job_json(j) | {"problem": problems.get(j["id"]), "created": j["created"]} for j in own]


def _job_list(request: Request, name: str, person: Person, verb: str, *, begun: bool = False) -> HTMLResponse:
    jobs = _jobs(request, name, person, verb)
    return render(request, "jobs.html", name=name, verb=verb, jobs=jobs, begun=begun)


@router.get("/data/{name}/jobs/{verb}")
async def job_list(request: Request, name: str, verb: str, person: Asker) -> HTMLResponse:
    """Return the list of jobs of one verb; the page requests it again while a job is running."""
    granted(request, name, person)
    return _job_list(request, name, person, verb)


@router.post("/data/{name}/jobs/{job}/cancel")
async def cancel(request: Request, name: str, job: str, person: Asker) -> HTMLResponse:
    """Cancel a job; what it was charged stays charged."""
    facts, _ = api.job_of(request, job, person)
    await api.end_job(request, facts, person)
    return _job_list(request, name, person, facts["verb"])


@router.get("/data/{name}/jobs/{job}/model")
async def model_file(request: Request, name: str, job: str, person: Asker) -> Response:
    """Download the model of a finished job, a JSON file."""
    facts, result = api.job_of(request, job, person)
    if facts["state"] != "done" or facts["verb"] != "fit":
        raise HTTPError("NotFound", "this job has no model.")
    body = json.dumps(json.loads(result or "{}")["model"], indent=1)
    headers = {"Content-Disposition": f'attachment; filename="model-{job[:8]}.json"'}
    return Response(body, media_type="application/json", headers=headers)


# synthetic copies


@router.get("/data/{name}/copies")
async def copies(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Show the form that makes a synthetic copy, and the copies that can be downloaded or asked."""
    facts = await api.looked(request, name, person, "describe")
    oldest_first = (await api.looked(request, name, person, "copies", last=100))["copies"]
    public = _registry.from_json(facts["public"])
    # A copy has no column of free text, and none that identifies people.
    left_out = {column for column, fact in public.schema if isinstance(fact, Text)} | {public.unit.column}
    columns = [column_info for column_info in column_facts(public) if column_info["name"] not in left_out]
    return render(
        request, "copies.html", person=person, name=name, columns=columns, account=facts["account"],
        own_budget=facts["own_budget"], verb="synthesize",
        jobs=_jobs(request, name, person, "synthesize"), copies=oldest_first[::-1], table=public.table,
        max_seconds=desk_of(request).settings.job_seconds,
    )  # fmt: skip


async def _synthesis(request: Request, name: str, person: Person) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options of a synthesis, and the text fields of the form they come from.

    Each chosen column of numbers or dates gets the number of bins in the field "bins".
    """
    # More fields than `form_of` allows: there is one for each chosen column.
    raw = await request.form(max_fields=2000, max_files=1)
    form = {field: value for field, value in raw.items() if isinstance(value, str)}
    (epsilon, _), bins = _price_and_time(request, form), form.get("bins") or "10"
    if not (bins.isdecimal() and len(bins) < 5 and 1 <= int(bins) <= 1000):
        raise InvalidInput("there are 1 to 1,000 bins. Nothing was charged.")
    names = [str(value) for value in raw.getlist("columns")]
    if not names:
        raise InvalidInput("choose at least one column. Nothing was charged.")
    facts = await api.looked(request, name, person, "describe")
    public = _registry.from_json(facts["public"])
    binned = {column for column, fact in public.schema if isinstance(fact, Bounds | Dates)}
    options = {"epsilon": epsilon, "method": form.get("method") or "auto", "columns": names}
    return options | {"bins": {column: int(bins) for column in names if column in binned}}, form


@router.post("/data/{name}/copies/preview")
async def preview_copy(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Show the price of a copy; the page requests it while columns are chosen."""
    return await _price_page(request, name, person, "preview_copy", *await _synthesis(request, name, person))


@router.post("/data/{name}/copies")
async def begin_copy(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Submit a job that makes a copy."""
    return await _begin(request, name, person, "synthesize", *await _synthesis(request, name, person))


@router.get("/data/{name}/copies/{number}/{form}")
async def copy_file(request: Request, name: str, number: int, form: str, person: Asker) -> Response:
    """Download the rows of a copy; `form` is the format of the file, "parquet" or "csv"."""
    if form not in api.MEDIA_TYPES:
        raise HTTPError("NotFound", "a copy is downloaded as parquet or csv.")
    return await api.copy_rows(request, name, number, form, person)


@router.post("/data/{name}/copies/{number}/ask")
async def ask_copy(request: Request, name: str, number: int, person: Asker) -> HTMLResponse:
    """Answer SQL from the rows of a copy; free."""
    text = (await form_of(request)).get("sql", "").strip()
    # 20,000 is the limit of `bodies.SQL`, too.
    if not text or len(text) > 20_000:
        raise InvalidInput("write a question: one SELECT of at most 20,000 characters.")
    facts = await api.looked(request, name, person, "ask_copy", number=number, sql=text)
    return render(request, "copy_answer.html", facts=facts, rows=facts["rows"][:SHOWN])


# explanations


@router.get("/data/{name}/explain")
async def explain(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Explain what a release, an epsilon, or, where the address names neither, the ledger means for one
    person."""
    query = request.query_params
    audience = query.get("for") if query.get("for") in AUDIENCES else "public"
    options: dict[str, Any] = {"audience": audience}
    try:
        if query.get("release"):
            options["number"] = int(query["release"])
        elif query.get("epsilon"):
            options["epsilon"], options["delta"] = float(query["epsilon"]), float(query.get("delta") or 0)
    except ValueError:
        raise InvalidInput("a release, an epsilon and a delta are numbers.") from None
    # Without an epsilon in the address, the defaults 1.0 and 0.0 only pass the check below.
    epsilon, delta = options.get("epsilon", 1.0), options.get("delta", 0.0)
    if not (math.isfinite(epsilon) and math.isfinite(delta) and 0 < epsilon <= 1e6 and 0 <= delta < 1):
        raise InvalidInput("an epsilon is above 0 and at most 1e6, and a delta from 0 to below 1.")
    explanation = await api.looked(request, name, person, "explain", **options)
    # `Markup` is safe: `explaining.explanation.fragment` made this HTML, and escaped every text in it.
    return render(
        request, "explain.html", person=person, name=name, html=Markup(explanation["html"]),
        audience=audience, audiences=AUDIENCES, epsilon=query.get("epsilon", ""),
        delta=query.get("delta", ""), release=query.get("release", ""),
    )  # fmt: skip


WRONG_TOKEN = "This token is not valid: it is unknown, revoked or has expired. Ask the steward for a new one."
WRONG_NAME = (
    "This name and password are not valid together. Try again, or log in with your token; a password ends "
    "with the token it was set with, and when a token of yours is revoked."
)


async def everyone() -> None:
    """Mark a route that needs no log-in; tests/web/test_authorization.py reads the mark."""


everyone.roles = ()  # type: ignore[attr-defined]
Everyone = Depends(everyone)


@router.get("/healthz", dependencies=[Everyone])
async def health(request: Request) -> JSONResponse:
    """Say whether requests are answered: 200, or 503 while no worker is ready."""
    desk = desk_of(request)
    is_ready = desk.previews.ready_workers > 0 and desk.data.ready_workers > 0
    return JSONResponse({"ready": is_ready}, 200 if is_ready else 503)


@router.get("/metrics")
async def metrics(request: Request, person: Reader) -> PlainTextResponse:
    """Return counts for Prometheus, to stewards and auditors: they tell when others' work is done."""
    desk, store = desk_of(request), store_of(request)
    lanes = {"preview": desk.previews, "data": desk.data, "slow": desk.slow_free}
    states = store.count_jobs()
    counts = request.app.state.counts
    lines = [
        *(f'discreet_requests_total{{method="{m}",status="{s}"}} {n}' for (m, s), n in counts.items()),
        *(f'discreet_workers_ready{{lane="{name}"}} {lane.ready_workers}' for name, lane in lanes.items()),
        *(f'discreet_workers_ended_total{{lane="{name}"}} {lane.ended}' for name, lane in lanes.items()),
        *(f'discreet_jobs{{state="{state}"}} {n}' for state, n in states.items()),
        f"discreet_questions_waiting {desk.waiting}",
    ]
    return PlainTextResponse("\n".join(lines) + "\n", media_type="text/plain; version=0.0.4")


@router.get("/login", dependencies=[Everyone])
async def login_page(request: Request) -> HTMLResponse:
    """Show the form that takes a token, or a name and a password."""
    return _login_page(request, 200, request.query_params.get("next", ""))


def _login_page(request: Request, code: int, back: str, **facts: Any) -> HTMLResponse:
    settings = request.app.state.settings
    facts |= {"tokens": settings.demo_tokens, "oidc": settings.oidc, "next": _page_here(back)}
    return render(request, "login.html", code, **facts)


@router.post("/login", dependencies=[Everyone])
async def login(request: Request) -> Response:
    """Open a browser session."""
    check_origin(request)
    store, address = store_of(request), _address(request)
    _count_guess(request, address)
    form = await form_of(request)
    name = form.get("name", "").strip()
    if form.get("token") or not name:
        name, person = "", store.by_token(form.get("token", "").strip())
    else:
        # In a thread: the hash is slow, and the event loop must send the answers of others on time.
        person = await asyncio.to_thread(store.by_password, name, form.get("password", ""))
    if person is None:
        wrong = WRONG_NAME if name else WRONG_TOKEN
        return _login_page(request, 401, form.get("next", ""), wrong=wrong, by_name=name[:64])
    # Behind a proxy all come from one address: there only wrong guesses count, and right ones by name.
    request.app.state.gate.logins.give_back(address)
    return _logged_in(request, person, RedirectResponse(_page_here(form.get("next", "")), 303))


def _logged_in(request: Request, person: Person, response: Response) -> Response:
    """Open a session for a person who was identified, and return the response with its cookie."""
    _count_guess(request, f"person {person.name}")
    settings = request.app.state.settings
    response.set_cookie(
        cookie_name(settings),
        store_of(request).open_session(person, settings.session_hours),
        max_age=int(settings.session_hours * 3600),
        httponly=True,
        samesite="strict",
        secure=settings.secure,
        path="/",
    )
    return response


def _address(request: Request) -> str:
    return request.client.host if request.client else "?"


def _oidc(request: Request) -> tuple[OpenId, str, str]:
    """Return what identifies people by an OpenID provider, the address to which they come back, and the name
    of the cookie that they bring."""
    provider, settings = request.app.state.gate.oidc, request.app.state.settings
    if provider is None:
        raise HTTPError("NotFound", "this server knows no OpenID provider.")
    # Nothing is guessed here: these requests count by themselves, like any other, so that whoever sends them
    # shuts nobody out who has a token.
    if not request.app.state.gate.rates.take(f"oidc {_address(request)}"):
        raise HTTPError("TooManyRequests", "too many log-ins. Wait a moment.", {"Retry-After": "1"})
    scheme = "https" if settings.secure else "http"
    # The host is one of this server's names (`server.NamedHosts`).
    return provider, f"{scheme}://{request.headers['host']}/login/back", f"{cookie_name(settings)}_oidc"


@router.get("/login/oidc", dependencies=[Everyone])
async def begin_oidc(request: Request) -> Response:
    """Send a browser to the OpenID provider."""
    provider, back, cookie = _oidc(request)
    page = _page_here(request.query_params.get("next", ""))
    try:
        address, kept = await asyncio.to_thread(provider.begin, back, page)
    except Exception as error:
        LOG.warning("the OpenID provider cannot be used: %s", type(error).__name__)
        return _login_page(request, 503, page, wrong="The provider cannot be reached now. Try again later.")
    response = RedirectResponse(address, 303)
    # "lax": the provider, another site, sends the browser back
    secure = request.app.state.settings.secure
    response.set_cookie(cookie, kept, max_age=int(BEGUN), httponly=True, samesite="lax", secure=secure)
    return response


@router.get("/login/back", dependencies=[Everyone])
async def finish_oidc(request: Request) -> Response:
    """Open a browser session for somebody whom the OpenID provider sends back."""
    provider, back, cookie = _oidc(request)
    kept, query = request.cookies.get(cookie, ""), dict(request.query_params)
    try:
        name, page = await asyncio.to_thread(provider.finish, back, kept, query)
    except Exception as error:
        # Also errors of the provider's texts, whatever they are; none is shown, as others have written them.
        LOG.warning("a log-in by the OpenID provider was refused: %s", type(error).__name__)
        return _login_page(request, 401, "", wrong="The provider did not identify you. Begin again.")
    person = store_of(request).by_name(name)
    if person is None:
        return _login_page(request, 403, "", wrong=UNKNOWN.format(name[:64]))
    # No redirect: after one from another site, the browser would not send the new cookie ("strict").
    response = _logged_in(request, person, render(request, "back.html", page=_page_here(page)))
    response.delete_cookie(cookie, secure=request.app.state.settings.secure, httponly=True, samesite="lax")
    return response


def _page_here(path: str) -> str:
    """Return the path of a page of this server, to which somebody goes after the log-in; "/" for anything
    that may lead elsewhere, such as //evil.example."""
    return path if re.fullmatch(r"/[\w@-][\w@./-]*", path, re.ASCII) else "/"


def _count_guess(request: Request, who: str) -> None:
    """Refuse an address or a person that sends too many passwords or tokens per minute."""
    if not request.app.state.gate.logins.take(who):
        raise HTTPError("TooManyRequests", "too many log-ins. Wait a minute.", {"Retry-After": "60"})


@router.post("/logout")
async def logout(request: Request, person: Anybody) -> Response:
    """Close the browser session."""
    settings = request.app.state.settings
    store_of(request).close_session(request.cookies.get(cookie_name(settings), ""))
    response = RedirectResponse("/login", 303)
    response.delete_cookie(cookie_name(settings), secure=settings.secure, httponly=True, samesite="strict")
    return response


@router.get("/account")
async def account_page(request: Request, person: Anybody) -> HTMLResponse:
    """Show the person's name and role, and the form that sets a password."""
    has_password = store_of(request).has_password(person.name)
    return render(request, "account.html", person=person, has_password=has_password)


@router.post("/account")
async def set_password(request: Request, person: Anybody) -> HTMLResponse:
    """Set the person's password, with which they can log in without a token for as long as that lasts."""
    _count_guess(request, f"person {person.name}")
    form = await form_of(request)
    first, second = form.get("password", ""), form.get("again", "")
    if not same(first.encode(), second.encode()):
        raise InvalidInput("the two passwords differ. Nothing was changed.")
    cookie = request.cookies.get(cookie_name(request.app.state.settings), "")
    await asyncio.to_thread(store_of(request).set_password, person, first, form.get("old", ""), cookie)
    return render(request, "account.html", person=person, has_password=True, done=True)
