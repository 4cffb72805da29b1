"""Defines HTTP routes for programs, under `/api/v1`: questions, mechanisms, models, releases, ledgers and
jobs.

`dp.connect` is their client in Python. "Free" means: it costs no privacy, because it reads no data.

The front desk (`desk_of`, a `desk.FrontDesk`) passes a request to a worker process, under a verb that names
the worker's function for it. `look` is for verbs that read no data and answers as soon as it is done; `ask`
is for verbs that may read data, and holds the answer back until the end of its public time, which does not
depend on the data. A *live* mechanism is an interactive one: it is paid for at its start, and then answers
questions.
"""

from __future__ import annotations

import math
import time
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Query, Request

from . import bodies
from .auth import ASKERS, EVERYBODY, allow, desk_of, granted, options_of, store_of
from .errors import DOCUMENTED, HTTPError
from .store import Person, Role

router = APIRouter(prefix="/api/v1", responses=DOCUMENTED)
Anybody = Annotated[Person, Depends(allow(*EVERYBODY))]
Asker = Annotated[Person, Depends(allow(*ASKERS))]
DatasetName = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.@-]+$")]
# The number of an entry of the ledger, as the caller sees it (`numbering`).
Number = Annotated[int, Path(ge=1, le=2**53)]
# How many lines of a list, by default the last ones; with `First`, those from that one on, counted from 0.
Last = Annotated[int, Query(ge=1, le=1000)]
First = Annotated[int | None, Query(ge=0, le=2**53)]
JobId = Annotated[str, Path(min_length=32, max_length=32, pattern="^[0-9a-f]+$")]


@router.get("/me")
async def me(person: Anybody) -> dict[str, Any]:
    """Say who the token belongs to."""
    return {"name": person.name, "role": str(person.role)}


@router.get("/datasets")
async def datasets(request: Request, person: Anybody) -> dict[str, Any]:
    """List the datasets that the caller may see."""
    return {"datasets": [dataset.name for dataset in store_of(request).datasets(person)]}


@router.get("/datasets/{name}")
async def dataset(request: Request, name: DatasetName, person: Anybody) -> dict[str, Any]:
    """Describe a dataset: its public facts, and the account of the caller."""
    facts = await desk_of(request).look("describe", person, granted(request, name, person))
    limits = desk_of(request).settings
    return {"name": name, "seconds": limits.seconds, "tick": limits.step, **facts}


@router.get("/datasets/{name}/budget")
async def budget(request: Request, name: DatasetName, person: Anybody) -> dict[str, Any]:
    """Return what the caller has spent, and their limits."""
    return await desk_of(request).look("budget", person, granted(request, name, person))


@router.post("/datasets/{name}/preview")
async def preview(
    request: Request, name: DatasetName, body: bodies.PreviewBody, person: Asker
) -> dict[str, Any]:
    """Return the price and expected error of a question; free."""
    return await desk_of(request).look("preview", person, granted(request, name, person), **options_of(body))


@router.post("/datasets/{name}/workload/preview")
async def preview_workload(
    request: Request, name: DatasetName, body: bodies.WorkloadPreviewBody, person: Asker
) -> dict[str, Any]:
    """Return the price and expected errors of several questions together; free."""
    return await desk_of(request).look("preview", person, granted(request, name, person), **options_of(body))


@router.post("/datasets/{name}/ask/preview")
async def preview_mechanism(
    request: Request, name: DatasetName, body: bodies.MechanismBody, person: Asker
) -> dict[str, Any]:
    """Return the price of a described mechanism; free."""
    return await desk_of(request).look("preview", person, granted(request, name, person), **options_of(body))


@router.post("/datasets/{name}/query")
async def query(request: Request, name: DatasetName, body: bodies.QueryBody, person: Asker) -> dict[str, Any]:
    """Answer a question in SQL, for its price; the same question again is free."""
    return await desk_of(request).ask("sql", person, granted(request, name, person), **options_of(body))


@router.post("/datasets/{name}/workload")
async def workload(
    request: Request, name: DatasetName, body: bodies.WorkloadBody, person: Asker
) -> dict[str, Any]:
    """Answer several counting questions together, for one price."""
    return await desk_of(request).ask("workload", person, granted(request, name, person), **options_of(body))


@router.post("/datasets/{name}/ask")
async def ask(request: Request, name: DatasetName, body: bodies.AskBody, person: Asker) -> dict[str, Any]:
    """Run a described mechanism, for its price."""
    return await desk_of(request).ask("ask", person, granted(request, name, person), **options_of(body))


@router.post("/datasets/{name}/watches")
async def watch(request: Request, name: DatasetName, body: bodies.WatchBody, person: Asker) -> dict[str, Any]:
    """Pay for a watch: which of many counts are above a threshold."""
    return await desk_of(request).ask("watch", person, granted(request, name, person), **options_of(body))


@router.post("/datasets/{name}/live")
async def start(
    request: Request, name: DatasetName, body: bodies.MechanismBody, person: Asker
) -> dict[str, Any]:
    """Pay for a described live mechanism, and open it."""
    return await desk_of(request).ask("start", person, granted(request, name, person), **options_of(body))


@router.post("/datasets/{name}/live/{number}/answers")
async def answer(
    request: Request, name: DatasetName, number: Number, body: bodies.QuestionBody, person: Asker
) -> dict[str, Any]:
    """Put a question to a live mechanism that the caller started."""
    options = {"number": number, **options_of(body)}
    return await desk_of(request).ask("answer", person, granted(request, name, person), **options)


@router.post("/datasets/{name}/models")
async def fit(request: Request, name: DatasetName, body: bodies.FitBody, person: Asker) -> dict[str, Any]:
    """Fit a model, for its price; it comes back as JSON or safetensors."""
    return await desk_of(request).ask("fit", person, granted(request, name, person), **options_of(body))


@router.get("/datasets/{name}/releases")
async def releases(
    request: Request, name: DatasetName, person: Asker, last: Last = 100, first: First = None
) -> dict[str, Any]:
    """List stored releases: all to the steward; to an analyst their own and those served to them."""
    return await stored_releases(request, name, person, last=last, first=first)


@router.get("/datasets/{name}/releases/{number}")
async def release(request: Request, name: DatasetName, number: Number, person: Asker) -> dict[str, Any]:
    """Return a stored release."""
    return await stored_releases(request, name, person, last=1, number=number)


async def stored_releases(request: Request, name: str, person: Person, **options: Any) -> dict[str, Any]:
    """Return stored releases; an analyst's own once their public time is over (`FrontDesk.horizon`)."""
    desk, dataset = desk_of(request), granted(request, name, person)
    return await desk.look("releases", person, dataset, horizon=desk.horizon(person, dataset), **options)


@router.get("/datasets/{name}/ledger")
async def ledger(
    request: Request, name: DatasetName, person: Anybody, last: Last = 100, first: First = None
) -> dict[str, Any]:
    """Show the ledger: all of it to steward and auditor, an analyst's own charges to an analyst."""
    dataset = granted(request, name, person)
    return await desk_of(request).look("ledger", person, dataset, last=last, first=first)


@router.get("/datasets/{name}/ledger/check")
async def check(
    request: Request,
    name: DatasetName,
    person: Annotated[Person, Depends(allow(Role.STEWARD, Role.AUDITOR))],
) -> dict[str, Any]:
    """Verify every hash, signature and total of the ledger."""
    return await desk_of(request).look("check", person, granted(request, name, person))


@router.post("/datasets/{name}/jobs", status_code=202)
async def submit(request: Request, name: DatasetName, body: bodies.JobBody, person: Asker) -> dict[str, Any]:
    """Begin long work. You choose `seconds`: the result is shown that long after the job's process was ready,
    and not before."""
    work_by_verb = {
        "fit": body.fit,
        "sql": body.query,
        "workload": body.workload,
        "ask": body.ask,
        "synthesize": body.synthesize,
    }
    requested = [(verb, work) for verb, work in work_by_verb.items() if work is not None]
    desk = desk_of(request)
    if len(requested) != 1:
        raise HTTPError(
            "InvalidInput", "a job is one of fit, query, workload, ask and synthesize. Nothing was charged."
        )
    if body.seconds > desk.settings.job_seconds:
        raise HTTPError(
            "InvalidInput",
            f"a job takes at most {desk.settings.job_seconds:g} seconds here. Nothing was charged.",
        )
    (verb, work), dataset = requested[0], granted(request, name, person)
    return {"id": desk.submit(verb, person, dataset, body.seconds, options_of(work))}


@router.get("/jobs")
async def jobs(request: Request, person: Asker) -> dict[str, Any]:
    """List your jobs."""
    granted_to = {dataset.name for dataset in store_of(request).datasets(person)}
    rows = [job for job in store_of(request).jobs(person.name) if job["dataset"] in granted_to]
    return {"jobs": [job_json(job) for job in rows]}


@router.get("/jobs/{job}")
async def job(request: Request, job: JobId, person: Asker) -> dict[str, Any]:
    """Return the public facts of a job, and its result once its public time is over."""
    row = own_job(request, job, person)
    return job_json(row) | {"result": row["result"]}


@router.delete("/jobs/{job}")
async def cancel(request: Request, job: JobId, person: Asker) -> dict[str, Any]:
    """Cancel a job. What it was charged stays charged."""
    own_job(request, job, person)
    return {"cancelled": desk_of(request).cancel(job)}


def own_job(request: Request, job: str, person: Person) -> dict[str, Any]:
    """Return a job of this person, on a dataset that is still granted to them."""
    rows = store_of(request).jobs(person.name, job)
    if not rows or store_of(request).dataset(rows[0]["dataset"], person) is None:
        raise HTTPError("NotFound", "there is no such job of yours.")
    return rows[0]


def job_json(job: dict[str, Any]) -> dict[str, Any]:
    """Return the public facts of a job. "elapsed" is the time since its process was ready, in whole seconds:
    0 while the job waits, null once it has ended. It says nothing of the progress of the work."""
    # Within 0 and `seconds`, even if the machine's clock was set in the meantime.
    elapsed = max(0.0, min(time.time() - job["created"], job["seconds"]))
    facts = {name: job[name] for name in ("id", "dataset", "verb", "state", "seconds")}
    running = job["state"] in ("waiting", "running")
    waiting = job["state"] == "waiting"
    return facts | {"elapsed": (0 if waiting else math.floor(elapsed)) if running else None}
