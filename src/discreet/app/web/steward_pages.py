"""Renders the steward's pages: adding datasets, people and tokens, budgets, spending, and the check of a
ledger."""

from __future__ import annotations

import os
import re
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from pydantic import ValidationError
from starlette.datastructures import UploadFile

from ... import _system
from ..._errors import DiscreetError, InvalidInput
from . import api, bodies, charts
from .api import facts_of
from .auth import Bounded, desk_of, granted, store_of
from .bookkeeping import policy_fingerprint
from .charts import exact
from .problems import HTTPError
from .rendering import Reader, form_of, page_person, render
from .server_store import Person, Role
from .settings import Settings

router = APIRouter(route_class=Bounded)
Steward = Annotated[Person, Depends(page_person(Role.STEWARD))]
# Endings of files that can be added as data.
_DATA = (".parquet", ".csv", ".tsv", ".gz", ".zst", ".duckdb")
# The most files that the form lists. Chosen by hand, not tuned, as are the limits of 200 lines on the other
# lists of this module.
_LISTED = 200


@router.get("/steward/data/{name}")
async def books(request: Request, name: str, person: Reader) -> HTMLResponse:
    """Show the books of one dataset: its budgets, its spending over time, and its ledger."""
    return await _books(request, name, person)


async def _books(request: Request, name: str, person: Person, code: int = 200, **typed: str) -> HTMLResponse:
    """Return the page of the books. `typed`: what stands in the form that changes budgets, and what is wrong
    with it; by default the form holds the present budgets."""
    dataset, desk = granted(request, name, person), desk_of(request)
    spending = facts_of(await desk.look("spending", person, dataset))
    ledger = facts_of(await desk.look("ledger", person, dataset, last=200, brief=True))
    policy = facts_of(await desk.look("policy", person, dataset))
    chart = _spending_chart(spending["charges"], spending["together"])
    unit = "rho" if policy["budget"]["rho"] else "epsilon"
    # the lines of the form's text field, one for each analyst
    lines = "\n".join(_line(who, budget, unit) for who, budget in policy["analysts"].items())
    names = {who for who, _ in store_of(request).people()}
    # analysts of the policy who are not people of this server yet, for the steward, who can add them
    strangers = [who for who in policy["analysts"] if who not in names] if person.role is Role.STEWARD else []
    form = {
        "epsilon": exact(policy["budget"][unit]),
        "delta": exact(policy["budget"]["delta"]),
        "analysts": lines,
        "was": policy_fingerprint(policy),
    }
    return render(
        request, "books.html", code, form=form | typed, strangers=strangers,
        person=person, name=name, accounts=spending["accounts"],
        policy=policy, chart=chart, days=_days(spending["charges"]),
        entries=ledger["entries"][::-1], anchor=ledger["anchor"],
    )  # fmt: skip


def _spending_chart(charges: list[dict[str, Any]], account: dict[str, Any] | None) -> str:
    """Return the chart of the epsilons of all charges, added up over time; a charge without one adds 0.

    `account` is the one that limits all charges together; None where only single periods have a limit, which
    is no limit of this sum. Its limit is drawn only if it is an epsilon: one in rho is no limit of it either.
    """
    points = [(datetime.fromisoformat(charge["time"]), charge["epsilon"] or 0.0) for charge in charges]
    limit = account["limit"] if account is not None and account["unit"] == "epsilon" else None
    title = f"Epsilons of {len(points)} charges added up over time"
    if limit is not None:
        title += f", under a limit of {limit:g}"
    return charts.steps(points, datetime.now(UTC), limit, title)


def _days(charges: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the number of charges and the sum of their epsilons for each day and person, the latest day
    first, at most 200 lines."""
    days: dict[tuple[str, str], dict[str, Any]] = {}
    for charge in charges:
        key = (charge["time"][:10], str(charge["analyst"]))
        line = days.setdefault(key, {"day": key[0], "analyst": key[1], "charges": 0, "epsilon": 0.0})
        line["charges"] += 1
        line["epsilon"] += charge["epsilon"] or 0.0
    return [days[key] for key in sorted(days, reverse=True)][:200]


def _line(who: str, budget: dict[str, Any] | None, unit: str) -> str:
    """Return an analyst's line of the form: NAME, or NAME AMOUNT DELTA, or NAME UNIT AMOUNT DELTA if the unit
    (epsilon or rho) of their budget is not `unit`, that of the dataset's budget."""
    if budget is None:
        return who
    own_unit = "rho" if budget["rho"] else "epsilon"
    unit_words = "" if own_unit == unit else f"{own_unit} "
    return f"{who} {unit_words}{exact(budget[own_unit])} {exact(budget['delta'])}"


def _parse_analysts(text: str, unit: str) -> dict[str, Any]:
    """Return the analysts' budgets, as `bodies.PolicyBody` takes them, from lines as `_line` writes them. A
    line may leave out the delta, which is 0 then."""
    analysts: dict[str, Any] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        who, *amounts = line.split()
        own_unit = amounts.pop(0) if amounts and amounts[0] in ("epsilon", "rho") else None
        if who in analysts or "=" in who or len(amounts) > 2 or (own_unit and not amounts):
            raise InvalidInput(
                f"{line[:80]!r} is no line of the form. Each analyst has one: NAME, NAME AMOUNT DELTA, or, "
                f"in another unit than the dataset's, NAME UNIT AMOUNT DELTA. Nothing was changed."
            )
        fields = (own_unit or unit, "delta")
        analysts[who] = dict(zip(fields, map(_number, amounts), strict=False)) if amounts else None
    return analysts


@router.get("/steward/data/{name}/check")
async def check(request: Request, name: str, person: Reader) -> HTMLResponse:
    """Verify the ledger, and show the result."""
    facts = await api.looked(request, name, person, "check")
    return render(request, "check.html", **facts)


@router.post("/steward/data/{name}/policy")
async def policy(request: Request, name: str, person: Steward) -> Response:
    """Change budgets; the form has one line for each analyst (`_line`)."""
    form = await form_of(request)
    unit = "rho" if form.get("unit") == "rho" else "epsilon"
    try:
        analysts = _parse_analysts(form.get("analysts", ""), unit)
        # The field "epsilon" of the form holds the amount, also where the unit is rho.
        budget = {unit: _number(form.get("epsilon", "")), "delta": _number(form.get("delta") or "0")}
        body = _body(bodies.PolicyBody, {"budget": budget, "analysts": analysts})
    except InvalidInput as error:
        # With the `was` of the form: what another steward has changed meanwhile is not overwritten later.
        typed = {field: form.get(field, "") for field in ("epsilon", "delta", "analysts", "was")}
        return await _books(request, name, person, 400, wrong=str(error), **typed)
    await api.set_policy(request, person, name, body, form.get("was"))
    return RedirectResponse(f"/steward/data/{name}", 303)


@router.post("/steward/data/{name}/remove")
async def remove_dataset(request: Request, name: str, person: Steward) -> Response:
    """Serve a dataset no longer."""
    await api.remove_dataset(request, name, person)
    return RedirectResponse("/", 303)


def _number(text: str) -> float:
    """Return the number in a field of a form."""
    try:
        return float(text)
    except ValueError:
        advice = f": write {text.replace(',', '.')}" if re.fullmatch(r"\s*\d{0,20},\d{1,20}\s*", text) else ""
        raise InvalidInput(f"{text[:40]!r} is no number{advice}. Nothing was changed.") from None


def _body(kind: Any, facts: dict[str, Any]) -> Any:
    """Return a request body of the class `kind`, made from the fields of a form; refused if one is wrong."""
    try:
        return kind(**facts)
    except ValidationError as error:
        raise InvalidInput(f"{bodies.problem(error.errors()[0])}. Nothing was changed.") from None


@router.get("/steward/people")
async def people(request: Request, person: Steward) -> HTMLResponse:
    """Show people, roles and tokens."""
    return _people(request, person)


def _people(
    request: Request, person: Person, token: str | None = None, whose: str | None = None
) -> HTMLResponse:
    """Return the page of people; `token` is a new token of the person `whose`, shown this once."""
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
    """Add a person, and show their first token, which is never shown again."""
    form = await form_of(request)
    body = _body(bodies.PersonBody, {"name": form.get("name", ""), "role": form.get("role", "")})
    await api.add_person(request, body, person)
    issued = await api.issue(request, body.name, bodies.TokenBody(), person)
    return _people(request, person, issued["token"], body.name)


@router.post("/steward/people/{who}/token")
async def issue(request: Request, who: str, person: Steward) -> HTMLResponse:
    """Issue another token, which is shown only once."""
    issued = await api.issue(request, who, bodies.TokenBody(), person)
    return _people(request, person, issued["token"], who)


@router.post("/steward/tokens/{token}/revoke")
async def revoke(request: Request, token: str, person: Steward) -> Response:
    """Revoke a token."""
    await api.revoke(request, token, person)
    return RedirectResponse("/steward/people", 303)


@router.post("/steward/people/{who}/remove")
async def remove(request: Request, who: str, person: Steward) -> Response:
    """Remove a person."""
    await api.remove_person(request, who, person)
    return RedirectResponse("/steward/people", 303)


@router.get("/steward/add")
async def add_page(request: Request, person: Steward) -> HTMLResponse:
    """Show the form that chooses a file under a configured root, or uploads one."""
    settings = desk_of(request).settings
    served = {dataset.data for dataset in store_of(request).datasets(person)}
    return render(
        request, "add.html", person=person, roots=[str(root) for root in settings.roots], draft=None,
        files=_files(settings, served), most_bytes=settings.upload_bytes,
    )  # fmt: skip


def _files(settings: Settings, served: set[str]) -> list[str]:
    """Return the data files under the roots that are not served yet, as paths relative to their root.

    Folders down to three levels below the root are searched, hidden ones left out.
    """
    paths: list[str] = []
    for root in settings.roots:
        for folder, subfolders, names in os.walk(root):
            is_deepest = os.path.relpath(folder, root).count(os.sep) >= 2
            # `os.walk` visits the subfolders that are left in this list.
            visible = sorted(name for name in subfolders if not name.startswith("."))
            subfolders[:] = [] if is_deepest else visible
            for name in sorted(names):
                path = os.path.join(folder, name)
                if name.endswith(_DATA) and os.path.realpath(path) not in served:
                    paths.append(os.path.relpath(path, root))
            if len(paths) >= _LISTED:
                return paths[:_LISTED]
    return paths


@router.post("/steward/draft")
async def draft(request: Request, person: Steward) -> HTMLResponse:
    """Draft the schema of a file under a configured root."""
    form = await form_of(request)
    return await _draft_page(request, person, form.get("path", ""))


async def _draft_page(request: Request, person: Person, path: str) -> HTMLResponse:
    """Show the form with the draft of a schema, and a name for the dataset made from the name of the file."""
    draft = await api.draft_of(request, person, path)
    name = re.sub(r"[^A-Za-z0-9_-]", "_", os.path.basename(path).split(".")[0])[:64] or "data"
    roots = [str(root) for root in desk_of(request).settings.roots]
    return render(request, "add.html", person=person, roots=roots, draft=draft, name=name)


@router.post("/steward/upload")
async def upload(request: Request, person: Steward) -> HTMLResponse:
    """Save an uploaded file in the folder "uploads" of the first root, never over an existing file, and show
    the form with the draft of its schema."""
    form = await request.form(max_fields=20, max_files=1)
    file = form.get("file")
    if not isinstance(file, UploadFile) or not file.filename:
        raise InvalidInput("choose a file. Nothing was kept.")
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", os.path.basename(file.filename)).lstrip(".")[:100]
    if not name.endswith(_DATA):
        raise InvalidInput(f"a file of data ends in one of {', '.join(_DATA)}. Nothing was kept.")
    settings = desk_of(request).settings
    if not settings.roots:
        raise InvalidInput(
            "this server has no folder for data. Nothing was kept. Start it with --root FOLDER."
        )
    folder = settings.folders.inside(settings.roots[0] / "uploads")
    folder.mkdir(exist_ok=True, mode=0o700)
    uploaded = await _keep(folder / name, file)
    try:
        page = await _draft_page(request, person, f"uploads/{name}")
    except BaseException:
        # A file whose schema cannot be drafted is deleted, so that it can be sent again under its name.
        uploaded.unlink(missing_ok=True)
        raise
    store_of(request).record(person.name, f"uploaded {name}")
    return page


async def _keep(path: Path, file: UploadFile) -> Path:
    """Write an uploaded file; never over an existing file, and nothing if it cannot be written whole."""
    try:
        handle = _system.create_file(path)
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


@router.post("/steward/check")
async def check_file(request: Request, person: Steward) -> HTMLResponse:
    """Show how well a file fits the schema in the form; that somebody looked is recorded first."""
    form = await form_of(request)
    data = desk_of(request).settings.folders.data(form.get("path", ""))
    await api.record(request, person, f"looked at how {os.path.basename(data)} fits its schema")
    schema = form.get("schema", "").replace("\r\n", "\n")
    facts = await desk_of(request).steward("fit_of", person, None, data=data, schema=schema)
    return render(request, "fit.html", **facts_of(facts))


@router.post("/steward/add")
async def add(request: Request, person: Steward) -> Response:
    """Add the dataset with its schema and its budget; data that has a ledger already keeps the ledger's."""
    form = await form_of(request)
    facts = {"name": form.get("name", ""), "path": form.get("path", "")}
    text = form.get("schema", "").replace("\r\n", "\n")
    try:
        budget = None
        if form.get("epsilon"):
            budget = {"epsilon": _number(form["epsilon"]), "delta": _number(form.get("delta") or "0")}
        body = _body(bodies.DatasetBody, facts | {"schema_text": text or None, "budget": budget})
        await api.create_dataset(request, person, body)
    except (DiscreetError, HTTPError) as error:
        # Show the form again with what was typed. "ledger" says that the data has a ledger already: then the
        # form had no field for an epsilon.
        draft = {"path": facts["path"], "schema": text, "ledger": not form.get("epsilon")}
        typed = {name: form.get(name, "") for name in ("name", "epsilon", "delta")}
        return render(request, "add.html", 400, person=person, draft=draft, wrong=str(error), **typed)
    return RedirectResponse(f"/steward/data/{body.name}", 303)
