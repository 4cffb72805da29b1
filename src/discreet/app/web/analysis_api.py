"""Defines HTTP routes for plans, explanations, synthetic copies and streams; `api` has the routes for
questions.

"Free" means: it costs no privacy, because it reads no data. `api` says what the front desk (`desk_of`), its
methods `look` and `ask`, and verbs are; `draw` is a `look` that may take long.
"""

from __future__ import annotations

import base64
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request
from fastapi.responses import Response

from . import bodies
from .api import Asker, DatasetName, First, Last, Number
from .auth import desk_of, granted, options_of
from .errors import DOCUMENTED
from .store import Person

router = APIRouter(prefix="/api/v1", responses=DOCUMENTED)
Rows = Annotated[int | None, Query(ge=1, le=10**7)]
Seed = Annotated[int | None, Query(ge=0, lt=2**63)]
# The format of a downloaded file, as it stands in the path of the request.
Form = Annotated[str, Path(pattern="^(parquet|csv)$")]
MEDIA_TYPES = {"parquet": "application/vnd.apache.parquet", "csv": "text/csv; charset=utf-8"}


@router.post("/datasets/{name}/plan")
async def plan(request: Request, name: DatasetName, body: bodies.PlanBody, person: Asker) -> dict[str, Any]:
    """Split an epsilon among questions and models so that the weighted error is least; free."""
    return await desk_of(request).look("plan", person, granted(request, name, person), **options_of(body))


@router.post("/datasets/{name}/explain")
async def explain(
    request: Request, name: DatasetName, body: bodies.ExplainBody, person: Asker
) -> dict[str, Any]:
    """Explain what a price, a planned question, a stored release or the ledger means for one person; free."""
    return await explained(request, name, person, **options_of(body))


async def explained(request: Request, name: str, person: Person, **options: Any) -> dict[str, Any]:
    """Return an explanation; a stored release is explained once its public time is over
    (`FrontDesk.horizon`)."""
    desk, dataset = desk_of(request), granted(request, name, person)
    return await desk.look("explain", person, dataset, horizon=desk.horizon(person, dataset), **options)


# synthetic copies; a job makes them (`api.submit`)


@router.post("/datasets/{name}/copies/preview")
async def preview_copy(
    request: Request, name: DatasetName, body: bodies.SynthesizeBody, person: Asker
) -> dict[str, Any]:
    """Return the price of a synthetic copy; free. A job makes the copy itself."""
    dataset = granted(request, name, person)
    return await desk_of(request).look("preview_copy", person, dataset, **options_of(body))


@router.get("/datasets/{name}/copies")
async def copies(
    request: Request, name: DatasetName, person: Asker, last: Last = 100, first: First = None
) -> dict[str, Any]:
    """List synthetic copies: all to the steward; to an analyst their own and those served to them."""
    return await of_copies(request, name, person, "copies", last=last, first=first)


async def of_copies(request: Request, name: str, person: Person, verb: str, **options: Any) -> dict[str, Any]:
    """Run a free verb on synthetic copies whose public time is over (`FrontDesk.horizon`), in a worker that
    has no table open."""
    desk, dataset = desk_of(request), granted(request, name, person)
    return await desk.draw(verb, person, dataset, horizon=desk.horizon(person, dataset), **options)


@router.get("/datasets/{name}/copies/{number}")
async def copy(request: Request, name: DatasetName, number: Number, person: Asker) -> dict[str, Any]:
    """Return the released model of a copy, from which any number of rows can be drawn, and its card."""
    return await of_copies(request, name, person, "copy", number=number)


@router.get(
    "/datasets/{name}/copies/{number}/rows.{form}",
    response_class=Response,
    responses={200: {"content": {kind: {} for kind in MEDIA_TYPES.values()}}},
)
async def copy_rows(
    request: Request,
    name: DatasetName,
    number: Number,
    form: Form,
    person: Asker,
    rows: Rows = None,
    seed: Seed = None,
) -> Response:
    """Download rows of a copy: Parquet with its card inside, or CSV; the same rows for the same seed."""
    return await rows_file(request, name, number, form, person, rows, seed)


async def rows_file(
    request: Request,
    name: str,
    number: int,
    form: str,
    person: Person,
    rows: int | None = None,
    seed: int | None = None,
) -> Response:
    """Return the rows of a copy as a file."""
    options = {"number": number, "form": form, "rows": rows, "seed": seed}
    facts = await of_copies(request, name, person, "copy_rows", **options)
    headers = {"Content-Disposition": f'attachment; filename="copy-{number}.{form}"'}
    return Response(base64.b64decode(facts["file"]), media_type=MEDIA_TYPES[form], headers=headers)


@router.post("/datasets/{name}/copies/{number}/query")
async def ask_copy(
    request: Request, name: DatasetName, number: Number, body: bodies.CopyQueryBody, person: Asker
) -> dict[str, Any]:
    """Answer SQL from the rows of a copy; free. The answer has no error bound: how far it is from the true
    one is not said."""
    return await of_copies(request, name, person, "ask_copy", number=number, **options_of(body))


# streams


@router.post("/datasets/{name}/streams")
async def start_stream(
    request: Request, name: DatasetName, body: bodies.StreamBody, person: Asker
) -> dict[str, Any]:
    """Pay for a stream: a count or a sum that is published again at every tick."""
    return await desk_of(request).ask("stream", person, granted(request, name, person), **options_of(body))


@router.get("/datasets/{name}/streams")
async def streams(request: Request, name: DatasetName, person: Asker, last: Last = 100) -> dict[str, Any]:
    """List streams: all to the steward, to an analyst their own."""
    return await desk_of(request).look("streams", person, granted(request, name, person), last=last)


@router.get("/datasets/{name}/streams/{number}")
async def read_stream(
    request: Request,
    name: DatasetName,
    number: Number,
    person: Asker,
    confidence: Annotated[float, Query(gt=0, lt=1)] = 0.95,
) -> dict[str, Any]:
    """Return what a stream has released so far; free."""
    desk, dataset = desk_of(request), granted(request, name, person)
    options = {"number": number, "confidence": confidence, "horizon": desk.horizon(person, dataset)}
    return await desk.look("read_stream", person, dataset, **options)


@router.post("/datasets/{name}/streams/{number}/ticks")
async def tick(
    request: Request, name: DatasetName, number: Number, body: bodies.TickBody, person: Asker
) -> dict[str, Any]:
    """Close one tick of a stream: with the table's rows of that tick if the stream has a clock (a column of
    dates), else with rows that the steward sends."""
    options = {"number": number, **options_of(body)}
    return await desk_of(request).ask("tick", person, granted(request, name, person), **options)


@router.post("/datasets/{name}/live/{number}/feed")
async def feed(
    request: Request, name: DatasetName, number: Number, body: bodies.FeedBody, person: Asker
) -> dict[str, Any]:
    """Continue a live mechanism (an interactive one) with the table as it is now, the next version of the
    table."""
    options = {"number": number, **options_of(body)}
    return await desk_of(request).ask("feed", person, granted(request, name, person), **options)
