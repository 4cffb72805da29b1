"""Renders pages of the console (the server in the browser) for models, synthetic copies, their jobs, and
explanations of prices.

A job fits a model (verb "fit") or makes a synthetic copy (verb "synthesize"); its result is shown after a
time that the person chose, and not before. `api` says what the front desk (`desk_of`) and its methods are.
"""

from __future__ import annotations

import base64
import json
import math
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from markupsafe import Markup

from ... import _registry
from ..._errors import InvalidInput
from ..._public import Bounds, Dates, Text
from . import analysis_api, api
from .auth import desk_of, granted, store_of
from .errors import HTTPError
from .pages import column_facts
from .rendering import Asker, form_of, render
from .store import Person

router = APIRouter()
# The audiences of an explanation, as `bodies.ExplainBody` admits them.
AUDIENCES = ("public", "policy", "engineer")
# The most rows of an answer from a copy that a page shows; chosen by hand.
SHOWN = 500


# models


@router.get("/data/{name}/models")
async def models(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Show the form that submits a job to fit a model, and the person's jobs of this kind."""
    facts = await desk_of(request).look("describe", person, granted(request, name, person))
    public = _registry.from_json(facts["public"])
    columns = [column for column in column_facts(public) if column["name"] != public.unit.column]
    return render(
        request, "models.html", person=person, name=name, columns=columns, account=facts["account"],
        size=public.size, own_budget=facts["own_budget"],
        verb="fit", jobs=_jobs(request, name, person, "fit"),
        max_seconds=desk_of(request).settings.job_seconds,
    )  # fmt: skip


@router.post("/data/{name}/models")
async def begin_model(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Submit a job that fits a model: `Ridge` for a number, `LogisticRegression` for classes.

    The field "kind" of the form says which, "number" or "classes"; if it says neither, a target with declared
    bounds is a number.
    """
    form = await form_of(request)
    epsilon, seconds = _price_and_time(request, form)
    dataset, target = granted(request, name, person), form.get("target", "")
    public = _registry.from_json((await desk_of(request).look("describe", person, dataset))["public"])
    declared = dict(public.schema).get(target)
    kind = form.get("kind")
    is_number = kind == "number" or (kind != "classes" and isinstance(declared, Bounds))
    parameters: dict[str, Any] = {"epsilon": epsilon}
    if not is_number and public.size is None:
        parameters["n"] = _number_of_people(form.get("n", ""))
    estimator = {"estimator": "Ridge" if is_number else "LogisticRegression", "parameters": parameters}
    desk_of(request).submit("fit", person, dataset, seconds, {"estimator": estimator, "target": target})
    return _job_list(request, name, person, "fit")


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
    jobs = [j for j in store_of(request).jobs(person.name) if j["dataset"] == name and j["verb"] == verb]
    return [api.job_json(job) | {"result": job["result"], "created": job["created"]} for job in jobs]


def _job_list(request: Request, name: str, person: Person, verb: str) -> HTMLResponse:
    return render(request, "jobs.html", name=name, verb=verb, jobs=_jobs(request, name, person, verb))


@router.get("/data/{name}/jobs/{verb}")
async def job_list(request: Request, name: str, verb: str, person: Asker) -> HTMLResponse:
    """Return the list of jobs of one verb; the page requests it again while a job is running."""
    granted(request, name, person)
    return _job_list(request, name, person, verb)


@router.post("/data/{name}/jobs/{job}/cancel")
async def cancel(request: Request, name: str, job: str, person: Asker) -> HTMLResponse:
    """Cancel a job; what it was charged stays charged."""
    own_job = api.own_job(request, job, person)
    desk_of(request).cancel(job)
    return _job_list(request, name, person, own_job["verb"])


@router.get("/data/{name}/jobs/{job}/model")
async def model_file(request: Request, name: str, job: str, person: Asker) -> Response:
    """Download the model of a finished job: safetensors for a neural network, else JSON."""
    own_job = api.own_job(request, job, person)
    if own_job["state"] != "done" or own_job["verb"] != "fit":
        raise HTTPError("NotFound", "this job has no model.")
    result = own_job["result"]
    is_network = "safetensors" in result
    body = base64.b64decode(result["safetensors"]) if is_network else json.dumps(result["model"], indent=1)
    ending = "safetensors" if is_network else "json"
    headers = {"Content-Disposition": f'attachment; filename="model-{job[:8]}.{ending}"'}
    media_type = "application/octet-stream" if is_network else "application/json"
    return Response(body, media_type=media_type, headers=headers)


# synthetic copies


@router.get("/data/{name}/copies")
async def copies(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Show the form that makes a synthetic copy, and the copies that can be downloaded or asked."""
    dataset, desk = granted(request, name, person), desk_of(request)
    facts = await desk.look("describe", person, dataset)
    public = _registry.from_json(facts["public"])
    # A copy has no column of free text, and none that identifies people.
    left_out = {column for column, fact in public.schema if isinstance(fact, Text)} | {public.unit.column}
    columns = [column_info for column_info in column_facts(public) if column_info["name"] not in left_out]
    return render(
        request, "copies.html", person=person, name=name, columns=columns, account=facts["account"],
        own_budget=facts["own_budget"], verb="synthesize",
        jobs=_jobs(request, name, person, "synthesize"), max_seconds=desk.settings.job_seconds,
        copies=(await _copies(request, name, person)), table=public.table,
    )  # fmt: skip


async def _copies(request: Request, name: str, person: Person) -> list[dict[str, Any]]:
    """Return the latest synthetic copies that the person may see, the newest first."""
    reply = await analysis_api.of_copies(request, name, person, "copies", last=100)
    oldest_first: list[dict[str, Any]] = reply["copies"]
    return oldest_first[::-1]


async def _synthesis(request: Request, name: str, person: Person) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the options of a synthesis, and the text fields of the form they come from.

    Each chosen column of numbers or dates gets the number of bins in the field "bins".
    """
    # More fields than `form_of` allows: there is one for each chosen column.
    raw = await request.form(max_fields=2000, max_files=1)
    form = {field: value for field, value in raw.items() if isinstance(value, str)}
    try:
        epsilon, bins = float(form.get("epsilon", "")), int(form.get("bins") or 10)
    except ValueError:
        raise InvalidInput("epsilon and the number of bins are numbers. Nothing was charged.") from None
    if not (math.isfinite(epsilon) and epsilon > 0 and 1 <= bins <= 1000):
        raise InvalidInput("epsilon is above 0, and there are 1 to 1,000 bins. Nothing was charged.")
    names = [str(value) for value in raw.getlist("columns")]
    if not names:
        raise InvalidInput("choose at least one column. Nothing was charged.")
    facts = await desk_of(request).look("describe", person, granted(request, name, person))
    public = _registry.from_json(facts["public"])
    binned = {column for column, fact in public.schema if isinstance(fact, Bounds | Dates)}
    options = {"epsilon": epsilon, "method": form.get("method") or "auto", "columns": names}
    return options | {"bins": {column: bins for column in names if column in binned}}, form


@router.post("/data/{name}/copies/preview")
async def preview_copy(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Show the price of a copy; the page requests it while columns are chosen."""
    options, _ = await _synthesis(request, name, person)
    dataset = granted(request, name, person)
    facts = await desk_of(request).look("preview_copy", person, dataset, **options)
    price = {"event": facts["event"], "delta": facts["delta"]}
    odds = await desk_of(request).look("odds", person, dataset, **price)
    cost, sentence = facts["budget"], odds["odds"]
    return render(request, "copy_preview.html", name=name, facts=facts, cost=cost, odds=sentence)


@router.post("/data/{name}/copies")
async def begin_copy(request: Request, name: str, person: Asker) -> HTMLResponse:
    """Submit a job that makes a copy."""
    options, form = await _synthesis(request, name, person)
    _, seconds = _price_and_time(request, form)
    desk_of(request).submit("synthesize", person, granted(request, name, person), seconds, options)
    return _job_list(request, name, person, "synthesize")


@router.get("/data/{name}/copies/{number}/{form}")
async def copy_file(request: Request, name: str, number: int, form: str, person: Asker) -> Response:
    """Download the rows of a copy; `form` is the format of the file, "parquet" or "csv"."""
    if form not in analysis_api.MEDIA_TYPES:
        raise HTTPError("NotFound", "a copy is downloaded as parquet or csv.")
    return await analysis_api.rows_file(request, name, number, form, person)


@router.post("/data/{name}/copies/{number}/ask")
async def ask_copy(request: Request, name: str, number: int, person: Asker) -> HTMLResponse:
    """Answer SQL from the rows of a copy; free."""
    text = (await form_of(request)).get("sql", "").strip()
    # 20,000 is the limit of `bodies.SQL`, too.
    if not text or len(text) > 20_000:
        raise InvalidInput("write a question: one SELECT of at most 20,000 characters.")
    facts = await analysis_api.of_copies(request, name, person, "ask_copy", number=number, sql=text)
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
    explanation = await analysis_api.explained(request, name, person, **options)
    # `Markup` is safe: `explaining.pages.fragment` made this HTML, and escaped every text in it.
    return render(
        request, "explain.html", person=person, name=name, html=Markup(explanation["html"]),
        audience=audience, audiences=AUDIENCES, epsilon=query.get("epsilon", ""),
        delta=query.get("delta", ""), release=query.get("release", ""),
    )  # fmt: skip
