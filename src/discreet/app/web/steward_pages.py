"""The steward's pages: datasets added with a drafted schema, analysts, budgets, the ledger and its check."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from markupsafe import Markup
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from ..._errors import DiscreetError, InvalidInput
from . import bodies, charts, steward_api
from .auth import desk_of, granted, store_of
from .bookkeeping import policy_fingerprint
from .errors import HTTPError
from .formats import exact
from .rendering import form_of, page_person, render
from .settings import Settings
from .store import Person, Role

router = APIRouter()
Steward = Annotated[Person, Depends(page_person(Role.STEWARD))]
Reader = Annotated[Person, Depends(page_person(Role.STEWARD, Role.AUDITOR))]
_DATA = (".parquet", ".csv", ".tsv", ".gz", ".duckdb")
# files that the form offers
_LISTED = 200


@router.get("/steward/data/{name}")
async def books(request: Request, name: str, person: Reader) -> HTMLResponse:
    """The books of one dataset: budgets, spending over time, ledger."""
    dataset, desk = granted(request, name, person), desk_of(request)
    spending = await desk.look("spending", person, dataset)
    ledger = await desk.look("ledger", person, dataset, last=200)
    policy = await desk.look("policy", person, dataset)
    # The first account is that of the whole dataset.
    chart = _spending_chart(spending["charges"], spending["accounts"][0])
    unit = "rho" if policy["budget"]["rho"] else "epsilon"
    lines = "\n".join(_line(who, budget, unit) for who, budget in policy["analysts"].items())
    names = {who for who, _ in store_of(request).people()}
    strangers = [who for who in policy["analysts"] if who not in names] if person.role is Role.STEWARD else []
    return render(
        request, "books.html", lines=lines, was=policy_fingerprint(policy), strangers=strangers,
        person=person, name=name, accounts=spending["accounts"],
        policy=policy, chart=Markup(chart), days=_days(spending["charges"]),
        entries=ledger["entries"][::-1], anchor=ledger["anchor"],
    )  # fmt: skip


def _spending_chart(charges: list[dict[str, Any]], account: dict[str, Any]) -> str:
    """Return the chart of the epsilons of all charges, added up over time; a charge without one adds 0.

    The limit of the account is drawn only if it is an epsilon: a limit in rho is no limit of this sum.
    """
    points = [(datetime.fromisoformat(charge["time"]), charge["epsilon"] or 0.0) for charge in charges]
    limit = account["limit"] if account["unit"] == "epsilon" else None
    title = f"Epsilons of {len(points)} charges added up over time"
    if limit is not None:
        title += f", under a limit of {limit:g}"
    return charts.steps(points, datetime.now(UTC), limit, title)


def _days(charges: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what each person was charged on each day, the latest first."""
    days: dict[tuple[str, str], dict[str, Any]] = {}
    for charge in charges:
        key = (charge["time"][:10], str(charge["analyst"]))
        line = days.setdefault(key, {"day": key[0], "analyst": key[1], "charges": 0, "epsilon": 0.0})
        line["charges"] += 1
        line["epsilon"] += charge["epsilon"] or 0.0
    return [days[key] for key in sorted(days, reverse=True)][:200]


def _line(who: str, budget: dict[str, Any] | None, unit: str) -> str:
    """Return an analyst as the form shows them; `unit` is that of the dataset's budget."""
    if budget is None:
        return who
    own_unit = "rho" if budget["rho"] else "epsilon"
    mark = "" if own_unit == unit else f"{own_unit} "
    return f"{who} {mark}{exact(budget[own_unit])} {exact(budget['delta'])}"


def _parse_analysts(text: str, unit: str) -> dict[str, Any]:
    """Return the budgets of analysts from the lines that `_line` writes."""
    analysts: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        who, *price = line.split()
        named = price.pop(0) if price and price[0] in ("epsilon", "rho") else None
        if who in analysts or len(price) > 2 or (named and not price):
            raise InvalidInput(
                f"{line[:80]!r} is no line of the form: each analyst has one, with a name, or with a name, "
                f"an amount and a delta. Nothing was changed."
            )
        fields = (named or unit, "delta")
        analysts[who] = dict(zip(fields, map(_number, price), strict=False)) if price else None
    return analysts


@router.get("/steward/data/{name}/check")
async def check(request: Request, name: str, person: Reader) -> HTMLResponse:
    """Verify the ledger."""
    facts = await desk_of(request).look("check", person, granted(request, name, person))
    return render(request, "check.html", **facts)


@router.post("/steward/data/{name}/policy")
async def policy(request: Request, name: str, person: Steward) -> Response:
    """Change budgets: one line of the form for each analyst."""
    form = await form_of(request)
    unit = "rho" if form.get("unit") == "rho" else "epsilon"
    analysts = _parse_analysts(form.get("analysts", ""), unit)
    facts = {"budget": {unit: _number(form.get("epsilon", "")), "delta": _number(form.get("delta") or "0")}}
    body = _body(bodies.PolicyBody, facts | {"analysts": analysts})
    await steward_api.set_policy(request, person, name, body, form.get("was"))
    return RedirectResponse(f"/steward/data/{name}", 303)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise InvalidInput(f"{text[:40]!r} is no number. Nothing was changed.") from None


def _body(kind: Any, facts: dict[str, Any]) -> Any:
    """Return the checked body of a form."""
    try:
        return kind(**facts)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        raise InvalidInput(f"{place}: {first['msg']}. Nothing was changed.") from None


@router.get("/steward/people")
async def people(request: Request, person: Steward) -> HTMLResponse:
    """People, roles, and tokens."""
    return _people(request, person)


def _people(
    request: Request, person: Person, token: str | None = None, whose: str | None = None
) -> HTMLResponse:
    store = store_of(request)
    people = [(name, str(role), store.tokens_of(name)) for name, role in store.people()]
    return render(
        request,
        "people.html",
        person=person,
        people=people,
        token=token,
        whose=whose,
        now=time.time(),
        actions=store.actions(30),
    )


@router.post("/steward/people")
async def add_person(request: Request, person: Steward) -> HTMLResponse:
    """Add a person, and show their first token, this once."""
    form = await form_of(request)
    body = _body(bodies.PersonBody, {"name": form.get("name", ""), "role": form.get("role", "")})
    await steward_api.add_person(request, body, person)
    issued = await steward_api.issue(request, body.name, bodies.TokenBody(), person)
    return _people(request, person, issued["token"], body.name)


@router.post("/steward/people/{who}/token")
async def issue(request: Request, who: str, person: Steward) -> HTMLResponse:
    """Make another token, shown this once."""
    issued = await steward_api.issue(request, who, bodies.TokenBody(), person)
    return _people(request, person, issued["token"], who)


@router.post("/steward/tokens/{token}/revoke")
async def revoke(request: Request, token: str, person: Steward) -> Response:
    """Void a token."""
    await steward_api.revoke(request, token, person)
    return RedirectResponse("/steward/people", 303)


@router.post("/steward/people/{who}/remove")
async def remove(request: Request, who: str, person: Steward) -> Response:
    """Remove a person."""
    await steward_api.remove_person(request, who, person)
    return RedirectResponse("/steward/people", 303)


@router.get("/steward/add")
async def add_page(request: Request, person: Steward) -> HTMLResponse:
    """Choose a file, or send one."""
    settings = desk_of(request).settings
    served = {dataset.data for dataset in store_of(request).datasets(person)}
    return render(
        request, "add.html", person=person, roots=[str(root) for root in settings.roots], draft=None,
        files=_files(settings, served), most_bytes=settings.upload_bytes,
    )  # fmt: skip


def _files(settings: Settings, served: set[str]) -> list[str]:
    """Return files of data under the roots that are not served yet, by the path that the form takes."""
    paths: list[str] = []
    for root in settings.roots:
        for folder, inner, names in os.walk(root):
            deep = os.path.relpath(folder, root).count(os.sep) >= 2
            inner[:] = [] if deep else sorted(name for name in inner if not name.startswith("."))
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.endswith(_DATA) and os.path.realpath(path) not in served:
                    paths.append(os.path.relpath(path, root))
            if len(paths) >= _LISTED:
                return paths[:_LISTED]
    return paths


@router.post("/steward/draft")
async def draft(request: Request, person: Steward) -> HTMLResponse:
    """Draft the schema of a file that is there."""
    form = await form_of(request)
    return await _draft_page(request, person, form.get("path", ""))


async def _draft_page(request: Request, person: Person, path: str) -> HTMLResponse:
    """Render the page with the draft of a schema."""
    draft = await steward_api.draft_of(request, person, path)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", os.path.basename(path).split(".")[0])[:64] or "data"
    roots = [str(root) for root in desk_of(request).settings.roots]
    return render(request, "add.html", person=person, roots=roots, draft=draft, name=name)


@router.post("/steward/upload")
async def upload(request: Request, person: Steward) -> HTMLResponse:
    """Take a file, under a name of its own in the first root; never over one that is there."""
    form = await request.form(max_fields=20, max_files=1)
    file = form.get("file")
    if not isinstance(file, UploadFile) or not file.filename:
        raise InvalidInput("choose a file. Nothing was kept.")
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", os.path.basename(file.filename)).lstrip(".")[:100]
    if not name.endswith(_DATA):
        raise InvalidInput(f"a file of data ends in one of {', '.join(_DATA)}. Nothing was kept.")
    settings = desk_of(request).settings
    if not settings.roots:
        raise InvalidInput("this server has no folder for data (--root FOLDER). Nothing was kept.")
    folder = settings.roots[0] / "uploads"
    folder.mkdir(exist_ok=True, mode=0o700)
    uploaded = await _keep(folder / name, file)
    try:
        page = await _draft_page(request, person, f"uploads/{name}")
    except BaseException:
        # what cannot be read is not kept: its name is free for a better one
        uploaded.unlink(missing_ok=True)
        raise
    store_of(request).record(person.name, f"uploaded {name}")
    return page


async def _keep(path: Path, file: UploadFile) -> Path:
    """Write a file that was sent; never over one that is there, and never half of it."""
    try:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    except FileExistsError:
        raise InvalidInput(
            f"there is a file {path.name!r} already. Nothing was kept. Give it another name."
        ) from None
    try:
        with os.fdopen(handle, "wb") as target:
            while part := await file.read(1 << 20):
                target.write(part)
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    return path


@router.post("/steward/add")
async def add(request: Request, person: Steward) -> Response:
    """Open the dataset with its schema and its budget."""
    form = await form_of(request)
    budget = None
    if form.get("epsilon"):
        budget = {"epsilon": _number(form["epsilon"]), "delta": _number(form.get("delta") or "0")}
    facts = {"name": form.get("name", ""), "path": form.get("path", ""), "budget": budget}
    text = form.get("schema", "").replace("\r\n", "\n")
    try:
        body = _body(bodies.DatasetBody, facts | {"schema_text": text or None})
        await steward_api.create_dataset(request, person, body)
    except (DiscreetError, HTTPError) as error:
        # what was typed stays on the page
        draft = {"path": facts["path"], "schema": text, "ledger": not form.get("epsilon")}
        typed = {name: form.get(name, "") for name in ("name", "epsilon", "delta")}
        return render(request, "add.html", 400, person=person, draft=draft, wrong=str(error), **typed)
    return RedirectResponse(f"/steward/data/{body.name}", 303)
