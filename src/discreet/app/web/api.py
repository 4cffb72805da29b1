"""Defines HTTP routes for programs, under `/api/v1`: the six verbs of the wire, questions in SQL, plans,
explanations, copies, releases, ledgers, jobs, and the steward's people, tokens, datasets and budgets.

`dp.connect` is their client in Python. "Free" means: it costs no privacy, because it reads no data.

The front desk (`desk_of`, a `front_desk.FrontDesk`) passes a request to a worker process, under a verb that
names the worker's function for it. `look` is for verbs that read no data and answers as soon as it is done;
`ask` is for verbs that may read data, and holds the answer back until the
end of its public time, which does not depend on the data. A *live* mechanism is an interactive one: it is
paid for at its start, and then answers questions.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import re
import time
from collections.abc import AsyncIterator
from pathlib import Path as File
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request
from fastapi.responses import JSONResponse, Response, StreamingResponse

from ..._errors import InvalidInput
from .. import requests
from . import bodies
from .auth import ASKERS, EVERYBODY, Bounded, allow, desk_of, granted, sent, store_of
from .problems import DOCUMENTED, HTTPError
from .server_store import Dataset, Person, Role

Facts = dict[str, Any]
router = APIRouter(prefix="/api/v1", responses=DOCUMENTED, route_class=Bounded)
Anybody = Annotated[Person, Depends(allow(*EVERYBODY))]
Asker = Annotated[Person, Depends(allow(*ASKERS))]
DatasetName = Annotated[str, Path(min_length=1, max_length=64, pattern=bodies.NAME_IN_PATH)]
# The number of an entry of the ledger, as the caller sees it (`sessions`).
Number = Annotated[int, Path(ge=1, le=2**53)]
# How many lines of a list, by default the last ones; with `First`, those from that one on, counted from 0.
Last = Annotated[int, Query(ge=1, le=1000)]
First = Annotated[int | None, Query(ge=0, le=2**53)]
JobId = Annotated[str, Path(min_length=32, max_length=32, pattern="^[0-9a-f]+$")]


@router.get("/me")
async def me(person: Anybody) -> Facts:
    """Say who the token belongs to."""
    return {"name": person.name, "role": str(person.role)}


@router.get("/datasets")
async def datasets(request: Request, person: Anybody) -> Facts:
    """List the datasets that the caller may see."""
    return {"datasets": [dataset.name for dataset in store_of(request).datasets(person)]}


@router.get("/datasets/{name}")
async def dataset(request: Request, name: DatasetName, person: Anybody) -> Response:
    """Describe a dataset: its public facts, and the account of the caller."""
    limits = desk_of(request).settings
    facts = {"name": name, "seconds": limits.seconds, "tick": limits.step}
    return await passed(request, name, person, "describe", facts=facts)


@router.get("/datasets/{name}/budget")
async def budget(request: Request, name: DatasetName, person: Anybody) -> Response:
    """Return what the caller has spent, and their limits."""
    return await passed(request, name, person, "budget")


async def passed(request: Request, name: str, person: Person, verb: str, **options: Any) -> Response:
    """Answer a request about a dataset that reads no data (`FrontDesk.look`), with the worker's own JSON."""
    return reply_of(await desk_of(request).look(verb, person, granted(request, name, person), **options))


async def looked(request: Request, name: str, person: Person, verb: str, **options: Any) -> Facts:
    """Return what `passed` sends, for a page."""
    return facts_of(await desk_of(request).look(verb, person, granted(request, name, person), **options))


def reply_of(result: bytes) -> Response:
    """Return a worker's result as a response, as it is."""
    return Response(result, media_type="application/json")


def facts_of(result: bytes) -> Facts:
    """Return a worker's result, for what the front process has to know of it."""
    facts: Facts = json.loads(result)
    return facts


def passes(path: str, verb: str, body: type, text: str, *, paid: bool, reply: Any = None) -> None:
    """Add a route that passes its body to a worker under a verb. If it is not `paid`, it reads no data."""

    async def route(request: Request, name: DatasetName, person: Asker, body: bytes) -> Response:
        desk, dataset = desk_of(request), granted(request, name, person)
        return reply_of(await (desk.ask if paid else desk.look)(verb, person, dataset, body))

    route.__annotations__["body"] = Annotated[bytes, sent(body, Asker, parse=False)]
    documented: dict[int | str, Any] = {} if reply is None else {200: {"model": reply}}
    router.post(f"/datasets/{{name}}{path}", responses=documented)(_named(route, path, text))


def lists(path: str, verb: str, who: Any, text: str) -> None:
    """Add a route that returns a page of a list (`bookkeeping.page`)."""

    async def route(
        request: Request, name: DatasetName, person: Any, last: Last = 100, first: First = None
    ) -> Response:
        return await passed(request, name, person, verb, last=last, first=first)

    route.__annotations__["person"] = who
    router.get(f"/datasets/{{name}}{path}")(_named(route, path, text))


def shows(path: str, verb: str, text: str) -> None:
    """Add a route that returns what has the number in its path."""

    async def route(request: Request, name: DatasetName, number: Number, person: Asker) -> Response:
        return await passed(request, name, person, verb, number=number)

    router.get(f"/datasets/{{name}}{path}")(_named(route, path, text))


def _named(route: Any, path: str, text: str) -> Any:
    """Return a route that the OpenAPI document names by its path, and describes by the text."""
    route.__name__, route.__doc__ = re.sub(r"\W+", "_", path).strip("_"), text
    return route


# Questions whose descriptions are built on the server, for curl and the console; then the six verbs of the
# wire: ask, start, answer, feed and run a description, and read (`price` and the GET routes of this module).
# `app.remote.RemoteCurator` is their client.
FREE: tuple[tuple[str, str, type, str], ...] = (
    ("/preview", "preview", bodies.PreviewBody, "Return the price and expected error of questions; free."),
    ("/plan", "plan", bodies.PlanBody, "Split an epsilon so that the weighted error is least; free."),
    ("/explain", "explain", bodies.ExplainBody, "Explain a price, a question, a release, the ledger; free."),
    ("/copies/preview", "preview_copy", bodies.SynthesizeBody, "Return the price of a copy; free."),
    ("/price", "price", bodies.MechanismBody, "Return the price of a described mechanism; free."),
)
PAID: tuple[tuple[str, str, type, str], ...] = (
    ("/query", "sql", bodies.QueryBody, "Answer a question in SQL, for its price; the same again is free."),
    ("/workload", "workload", bodies.WorkloadBody, "Answer several counting questions for one price."),
    ("/ask", "ask", bodies.AskBody, "Run a described mechanism, for its price; the same again is free."),
    ("/start", "start", bodies.StartBody, "Pay for a described live mechanism, and open it."),
    ("/answer", "answer", bodies.AnswerBody, "Put a question to a live mechanism of the caller's; free."),
    ("/feed", "feed", bodies.FeedBody, "Close a tick of a stream, or go on with a new version of the table."),
)
REPLIES = {"/start": bodies.Started} | dict.fromkeys(("/ask", "/answer", "/feed"), bodies.Released)
for routes, is_paid in ((FREE, False), (PAID, True)):
    for each in routes:
        passes(*each, paid=is_paid, reply=REPLIES.get(each[0]))
# Lists, all to the steward and to an analyst their own and those served to them; and what is in them.
LISTS: tuple[tuple[str, str, Any, str], ...] = (
    ("/ledger", "ledger", Anybody, "Show the ledger; to an analyst their own charges."),
    ("/releases", "releases", Asker, "List stored releases."),
    ("/copies", "copies", Asker, "List synthetic copies."),
    ("/live", "all_live", Asker, "List live mechanisms, such as streams."),
)
SINGLE: tuple[tuple[str, str, str], ...] = (
    ("/releases/{number}", "releases", "Return a stored release."),
    ("/copies/{number}", "copy", "Return the released model of a copy, and its card."),
    ("/live/{number}", "live", "Return what a live mechanism has released so far; free."),
)
for path, verb, who, text in LISTS:
    lists(path, verb, who, text)
for path, verb, text in SINGLE:
    shows(path, verb, text)


@router.post("/datasets/{name}/run")
async def run(
    request: Request,
    name: DatasetName,
    person: Asker,
    body: Annotated[bytes, sent(bodies.RunBody, Asker, parse=False)],
) -> Response:
    """Run what may take long, such as a model or a synthetic copy, for its price. With `seconds` it is a job,
    and the reply is its id, with status 202: the result is shown that long after the job's process was ready,
    and not before. Without, the reply is the result."""
    desk, dataset = desk_of(request), granted(request, name, person)
    facts = facts_of(await desk.look("run", person, dataset, body))
    seconds = facts["seconds"]
    if len(facts["work"]) != 1:
        wrong = "a run is one of fit, query, workload, ask and synthesize."
        raise HTTPError("InvalidInput", wrong, charged=False)
    part, verb = facts["work"][0]
    if seconds is None:
        return reply_of(await desk.ask(verb, person, dataset, body, part))
    if seconds > desk.settings.job_seconds:
        wrong = f"a job takes at most {desk.settings.job_seconds:g} seconds here."
        raise HTTPError("InvalidInput", wrong, option="seconds", charged=False)
    return JSONResponse({"id": desk.submit(verb, person, dataset, seconds, body, part)}, 202)


@router.get("/datasets/{name}/ledger/check")
async def check(
    request: Request, name: DatasetName, person: Annotated[Person, Depends(allow(Role.STEWARD, Role.AUDITOR))]
) -> Response:
    """Verify every hash, signature and total of the ledger."""
    return await passed(request, name, person, "check")


@router.get("/jobs")
async def jobs(request: Request, person: Asker, last: Last = 200, first: First = None) -> Facts:
    """List your jobs, without their results; to the steward, everybody's."""
    rows = store_of(request).jobs(person, last=last, first=first)
    owner = ("person",) if person.role is Role.STEWARD else ()
    lines = [{name: job[name] for name in owner} | job_json(job) for job in rows]
    return {"jobs": lines} | ({} if first is None else {"first": first})


@router.get("/jobs/{job}")
async def job(request: Request, job: JobId, person: Asker) -> Response:
    """Return the public facts of a job, and its result once its public time is over."""
    facts, result = job_of(request, job, person)
    # The result is not parsed: it may be large.
    return reply_of(f'{json.dumps(job_json(facts))[:-1]}, "result": {result or "null"}}}'.encode())


@router.delete("/jobs/{job}")
async def cancel(request: Request, job: JobId, person: Asker) -> Facts:
    """Cancel a job: your own, or as the steward anybody's. What it was charged stays charged."""
    facts, _ = job_of(request, job, person)
    return {"cancelled": await end_job(request, facts, person)}


async def end_job(request: Request, facts: Facts, person: Person) -> bool:
    """Cancel a job, and return whether it was unfinished; that a steward has ended somebody else's is on
    record."""
    cancelled = desk_of(request).cancel(facts["id"])
    if cancelled and facts["person"] != person.name:
        await record(request, person, f"ended a job of {facts['person']}", facts["person"])
    return cancelled


def job_of(request: Request, job: str, person: Person) -> tuple[Facts, str | None]:
    """Return a job that this person may see, and its result: their own, on a dataset that is still granted to
    them, and to a steward any."""
    row = store_of(request).job(job, person)
    if row is None:
        raise HTTPError("NotFound", "there is no such job of yours.")
    return row


def job_json(job: dict[str, Any]) -> Facts:
    """Return the public facts of a job. "elapsed" is the time since its process was ready, in whole seconds:
    0 while the job waits, null once it has ended. It says nothing of the progress of the work."""
    # Within 0 and `seconds`, even if the machine's clock was set in the meantime.
    elapsed = max(0.0, min(time.time() - job["created"], job["seconds"]))
    facts = {name: job[name] for name in ("id", "dataset", "verb", "state", "seconds")}
    running = job["state"] in ("waiting", "running")
    waiting = job["state"] == "waiting"
    return facts | {"elapsed": (0 if waiting else math.floor(elapsed)) if running else None}


Rows = Annotated[int | None, Query(ge=1, le=10**7)]
Seed = Annotated[int | None, Query(ge=0, lt=2**63)]
# The format of a downloaded file, as it stands in the path of the request.
Form = Annotated[str, Path(pattern="^(parquet|csv)$")]
MEDIA_TYPES = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv; charset=utf-8"}


# synthetic copies; a job makes them (`run`)


@router.get(
    "/datasets/{name}/copies/{number}/rows.{form}",
    response_class=Response,
    responses={200: {"content": {kind: {} for kind in MEDIA_TYPES.values()}}},
)
async def copy_rows(
    request: Request, name: DatasetName, number: Number, form: Form, person: Asker, rows: Rows = None,
    seed: Seed = None,
) -> Response:  # fmt: skip
    """Download rows of a copy: Parquet with its card inside, or CSV; the same rows for the same seed."""
    file = desk_of(request).new_download()
    options = {"number": number, "form": form, "rows": rows, "seed": seed, "file": str(file)}
    try:
        await looked(request, name, person, "copy_rows", **options)
    except BaseException:
        file.unlink(missing_ok=True)
        raise
    headers = {"Content-Disposition": f'attachment; filename="copy-{number}.{form}"'}
    return StreamingResponse(_parts_of(file), media_type=MEDIA_TYPES[form], headers=headers)


async def _parts_of(file: File) -> AsyncIterator[bytes]:
    """Yield a file piece by piece, and delete it."""
    try:
        with file.open("rb") as parts:
            while part := await asyncio.to_thread(parts.read, 1 << 18):
                yield part
    finally:
        file.unlink(missing_ok=True)


@router.post("/datasets/{name}/copies/{number}/query")
async def ask_copy(
    request: Request,
    name: DatasetName,
    number: Number,
    person: Asker,
    body: Annotated[bytes, sent(bodies.CopyQueryBody, Asker, parse=False)],
) -> Response:
    """Answer SQL from the rows of a copy; free. The answer has no error bound: how far it is from the true
    one is not said."""
    return await passed(request, name, person, "ask_copy", number=number, sent=body)


Steward = Annotated[Person, Depends(allow(Role.STEWARD))]
PersonName = Annotated[str, Path(min_length=1, max_length=64, pattern=bodies.NAME_IN_PATH)]
TokenId = Annotated[str, Path(min_length=16, max_length=16, pattern="^[0-9a-f]+$")]


@router.get("/people")
async def people(request: Request, person: Steward) -> Facts:
    """List people and roles."""
    return {"people": [{"name": name, "role": str(role)} for name, role in store_of(request).people()]}


@router.post("/people", status_code=201)
async def add_person(
    request: Request, body: Annotated[bodies.PersonBody, sent(bodies.PersonBody, Steward)], person: Steward
) -> Facts:
    """Add a person. Without a token they cannot do anything yet."""
    store_of(request).add_person(body.name, body.role)
    # A policy may have named this analyst before the person was added.
    await desk_of(request).renew_grants()
    await record(request, person, f"added {body.role} {body.name}", body.name)
    return {"name": body.name, "role": body.role}


@router.delete("/people/{who}")
async def remove_person(request: Request, who: PersonName, person: Steward) -> Facts:
    """Remove a person with their tokens and log-ins. What they spent stays spent."""
    if who == person.name:
        raise HTTPError("InvalidInput", "you cannot remove yourself. Nobody was removed.")
    store = store_of(request)
    # Read before the removal, which deletes the grants, too.
    datasets = store.granted_to(who)
    # A job that has not begun would still be charged, for a result that nobody could fetch.
    for job in store.unfinished_jobs(who):
        desk_of(request).cancel(job["id"])
    removed = store.remove_person(who)
    if removed:
        await record(request, person, f"removed {who}", datasets=datasets)
    return {"removed": removed}


@router.get("/actions")
async def actions(request: Request, person: Steward, last: Last = 100, first: First = None) -> Facts:
    """List what stewards did, the newest first; with `first`, from that one on, the oldest first."""
    lines = store_of(request).actions(last, first)
    return {"actions": [{"time": when, "person": who, "what": what} for when, who, what in lines]}


@router.get("/people/{who}/tokens")
async def tokens(request: Request, who: PersonName, person: Steward) -> Facts:
    """List the public ids of a person's tokens."""
    return {"tokens": store_of(request).tokens_of(who)}


@router.post("/people/{who}/tokens", status_code=201)
async def issue(
    request: Request,
    who: PersonName,
    body: Annotated[bodies.TokenBody, sent(bodies.TokenBody, Steward)],
    person: Steward,
) -> Facts:
    """Issue a token, which is shown only once."""
    if store_of(request).role_of(who) is None:
        raise HTTPError("NotFound", "there is no person of this name. No token was made.")
    days = body.days or desk_of(request).settings.token_days
    token, public = store_of(request).issue_token(who, days)
    await record(request, person, f"issued token {public} to {who}", who)
    return {"token": token, "id": public, "days": days}


@router.delete("/tokens/{token}")
async def revoke(request: Request, token: TokenId, person: Steward) -> Facts:
    """Revoke a token by its public id."""
    owner = store_of(request).revoke_token(token)
    if owner is not None:
        await record(request, person, f"revoked token {token} of {owner}", owner)
    return {"revoked": owner is not None}


@router.post("/drafts")
async def draft(
    request: Request, body: Annotated[bodies.DraftBody, sent(bodies.DraftBody, Steward)], person: Steward
) -> Facts:
    """Draft the schema of a file under a configured root, from names and types, never from values."""
    return await draft_of(request, person, body.path)


async def draft_of(request: Request, person: Person, path: str) -> Facts:
    """Return the schema that lies beside a data file, or else a draft, and whether a ledger lies there."""
    desk = desk_of(request)
    folders = desk.settings.folders
    data = folders.data(path)
    existing = requests.beside(data, ".schema.toml")
    text = folders.file(existing).read_text("utf-8") if existing.exists() else None
    if text is None:
        text = facts_of(await desk.steward("draft", person, None, data=data))["schema"]
    return {"path": path, "schema": text, "ledger": requests.beside(data, ".ledger").exists()}


@router.post("/datasets", status_code=201)
async def add_dataset(
    request: Request, body: Annotated[bodies.DatasetBody, sent(bodies.DatasetBody, Steward)], person: Steward
) -> Facts:
    """Serve a dataset: write its schema beside the data, and create its ledger with a budget."""
    return await create_dataset(request, person, body)


async def create_dataset(request: Request, person: Person, body: bodies.DatasetBody) -> Facts:
    """Create the dataset's ledger and register the dataset; one after the other, whether or not the client
    waits, so that no request changes a schema after its paths were checked for another."""

    async def create() -> Facts:
        async with desk_of(request).adding:
            return await _create_dataset(request, person, body)

    return await asyncio.shield(asyncio.ensure_future(create()))


async def _create_dataset(request: Request, person: Person, body: bodies.DatasetBody) -> Facts:
    store, desk = store_of(request), desk_of(request)
    if any(body.name == existing.name for existing in store.datasets(person)):
        raise InvalidInput(f"there is a dataset named {body.name!r} already. Nothing was added.")
    data = desk.settings.folders.data(body.path)
    schema, ledger = requests.beside(data, ".schema.toml"), requests.beside(data, ".ledger")
    before = schema.read_bytes() if schema.exists() else None
    if body.schema_text is not None:
        _write_schema(schema, ledger, body.schema_text)
    dataset = Dataset(body.name, data, str(schema), str(ledger))
    options = body.model_dump()
    budget_options = {name: options[name] for name in ("budget", "analysts", "large_epsilon")}
    books = desk.settings.books(body.name)
    try:
        facts = facts_of(await desk.steward("create", person, dataset, books=books, **budget_options))
    except BaseException:
        # What was refused leaves the schema as it was, unless its ledger was made: that belongs to it.
        if body.schema_text is not None and not ledger.exists():
            schema.unlink() if before is None else schema.write_bytes(before)
        raise
    store.add_dataset(dataset)
    store.set_grants(body.name, facts["analysts"])
    store.record(person.name, f"added dataset {body.name}")
    return {"name": body.name, "table": facts["table"], "analysts": facts["analysts"]}


@router.delete("/datasets/{name}")
async def remove_dataset(request: Request, name: DatasetName, person: Steward) -> Facts:
    """Serve a dataset no longer. Its files and its ledger stay: added again, it goes on where it was."""
    dataset, desk = granted(request, name, person), desk_of(request)
    for job in store_of(request).unfinished_jobs(dataset=name):
        desk.cancel(job["id"])
    await record(request, person, f"removed dataset {name}", datasets=[dataset])
    store_of(request).remove_dataset(name)
    return {"removed": True}


def _write_schema(schema: File, ledger: File, text: str) -> None:
    """Write the schema of a new dataset; a schema whose ledger exists is never changed."""
    if ledger.exists():
        if schema.exists() and schema.read_text("utf-8") == text:
            return
        raise InvalidInput("this data has a ledger already, whose schema stays. Nothing was changed.")
    temporary = schema.with_name(schema.name + ".part")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, schema)


@router.get("/datasets/{name}/policy")
async def policy(request: Request, name: DatasetName, person: Steward) -> Response:
    """Show the budgets in force."""
    return await passed(request, name, person, "policy")


@router.put("/datasets/{name}/policy")
async def change_policy(
    request: Request,
    name: DatasetName,
    body: Annotated[bodies.PolicyBody, sent(bodies.PolicyBody, Steward)],
    person: Steward,
) -> Facts:
    """Change budgets and analysts from now on; the ledger keeps the change."""
    return await set_policy(request, person, name, body)


async def set_policy(
    request: Request, person: Person, name: str, body: bodies.PolicyBody, was: str | None = None
) -> Facts:
    """Change a policy, and with it who may see the dataset.

    `was` is the `policy_fingerprint` of the policy to be changed: the request is refused if another one is in
    force. None changes any.
    """
    dataset = granted(request, name, person)
    facts = body.model_dump()
    large = {name: facts.pop(name) for name in ("large_delta", "large_epsilon")}
    changed = facts_of(
        await desk_of(request).change("policy", person, dataset, policy=facts, was=was, **large)
    )
    store_of(request).set_grants(name, list(changed["analysts"]))
    await record(request, person, f"changed budgets of {name}", datasets=[dataset])
    return changed


async def record(
    request: Request,
    person: Person,
    action: str,
    about: str | None = None,
    datasets: list[Dataset] | None = None,
) -> None:
    """Record an action in the server's store, and in the ledgers of the datasets that it concerns.

    These are `datasets`, or else those granted to the person `about`, or else none.
    """
    store = store_of(request)
    store.record(person.name, action)
    concerned = datasets if datasets is not None else ([] if about is None else store.granted_to(about))
    for dataset in concerned:
        await desk_of(request).change("note", person, dataset, by=person.name, what=action)
