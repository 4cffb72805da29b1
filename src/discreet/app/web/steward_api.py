"""Defines HTTP routes for the steward: people, tokens, datasets and budgets. Every change is recorded."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path as File
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path, Request

from ..._errors import InvalidInput
from .. import requests
from . import bodies
from .api import DatasetName
from .auth import allow, desk_of, granted, store_of
from .errors import DOCUMENTED, HTTPError
from .store import Dataset, Person, Role

router = APIRouter(prefix="/api/v1", responses=DOCUMENTED)
Steward = Annotated[Person, Depends(allow(Role.STEWARD))]
PersonName = Annotated[str, Path(min_length=1, max_length=64, pattern=r"^[A-Za-z0-9_.@-]+$")]
TokenId = Annotated[str, Path(min_length=16, max_length=16, pattern="^[0-9a-f]+$")]


@router.get("/people")
async def people(request: Request, person: Steward) -> dict[str, Any]:
    """List people and roles."""
    return {"people": [{"name": name, "role": str(role)} for name, role in store_of(request).people()]}


@router.post("/people", status_code=201)
async def add_person(request: Request, body: bodies.PersonBody, person: Steward) -> dict[str, Any]:
    """Add a person. Without a token they cannot do anything yet."""
    store_of(request).add_person(body.name, body.role)
    # A policy may have named this analyst before the person was added.
    await desk_of(request).renew_grants()
    await record(request, person, f"added {body.role} {body.name}", body.name)
    return {"name": body.name, "role": body.role}


@router.delete("/people/{who}")
async def remove_person(request: Request, who: PersonName, person: Steward) -> dict[str, Any]:
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


@router.get("/people/{who}/tokens")
async def tokens(request: Request, who: PersonName, person: Steward) -> dict[str, Any]:
    """List the public ids of a person's tokens."""
    return {"tokens": store_of(request).tokens_of(who)}


@router.post("/people/{who}/tokens", status_code=201)
async def issue(request: Request, who: PersonName, body: bodies.TokenBody, person: Steward) -> dict[str, Any]:
    """Issue a token, which is shown only once."""
    if store_of(request).role_of(who) is None:
        raise HTTPError("NotFound", "there is no person of this name. No token was made.")
    days = body.days or desk_of(request).settings.token_days
    token, public = store_of(request).issue_token(who, days)
    await record(request, person, f"issued token {public} to {who}", who)
    return {"token": token, "id": public, "days": days}


@router.delete("/tokens/{token}")
async def revoke(request: Request, token: TokenId, person: Steward) -> dict[str, Any]:
    """Revoke a token by its public id."""
    owner = store_of(request).revoke_token(token)
    if owner is not None:
        await record(request, person, f"revoked token {token} of {owner}", owner)
    return {"revoked": owner is not None}


@router.post("/drafts")
async def draft(request: Request, body: bodies.DraftBody, person: Steward) -> dict[str, Any]:
    """Draft the schema of a file under a configured root, from names and types, never from values."""
    return await draft_of(request, person, body.path)


async def draft_of(request: Request, person: Person, path: str) -> dict[str, Any]:
    """Return the schema that lies beside a data file, or else a draft, and whether a ledger lies there."""
    desk = desk_of(request)
    folders = desk.settings.folders
    data = folders.data(path)
    existing = requests.beside(data, ".schema.toml")
    text = folders.file(existing).read_text("utf-8") if existing.exists() else None
    if text is None:
        text = (await desk.steward("draft", person, None, data=data))["schema"]
    return {"path": path, "schema": text, "ledger": requests.beside(data, ".ledger").exists()}


@router.post("/datasets", status_code=201)
async def add_dataset(request: Request, body: bodies.DatasetBody, person: Steward) -> dict[str, Any]:
    """Serve a dataset: write its schema beside the data, and create its ledger with a budget."""
    return await create_dataset(request, person, body)


async def create_dataset(request: Request, person: Person, body: bodies.DatasetBody) -> dict[str, Any]:
    """Create the dataset's ledger and register the dataset; one after the other, whether or not the client
    waits, so that no request changes a schema after its paths were checked for another."""

    async def create() -> dict[str, Any]:
        async with desk_of(request).adding:
            return await _create_dataset(request, person, body)

    return await asyncio.shield(asyncio.ensure_future(create()))


async def _create_dataset(request: Request, person: Person, body: bodies.DatasetBody) -> dict[str, Any]:
    store, desk = store_of(request), desk_of(request)
    if any(body.name == existing.name for existing in store.datasets(person)):
        raise InvalidInput(f"there is a dataset named {body.name!r} already. Nothing was added.")
    data = desk.settings.folders.data(body.path)
    schema, ledger = requests.beside(data, ".schema.toml"), requests.beside(data, ".ledger")
    if body.schema_text is not None:
        _write_schema(schema, ledger, body.schema_text)
    dataset = Dataset(body.name, data, str(schema), str(ledger))
    options = body.model_dump()
    budget_options = {name: options[name] for name in ("budget", "analysts", "large_epsilon")}
    facts = await desk.steward(
        "create", person, dataset, books=desk.settings.books(body.name), **budget_options
    )
    store.add_dataset(dataset)
    store.set_grants(body.name, facts["analysts"])
    store.record(person.name, f"added dataset {body.name}")
    return {"name": body.name, "table": facts["table"], "analysts": facts["analysts"]}


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
async def policy(request: Request, name: DatasetName, person: Steward) -> dict[str, Any]:
    """Show the budgets in force."""
    return await desk_of(request).look("policy", person, granted(request, name, person))


@router.put("/datasets/{name}/policy")
async def change_policy(
    request: Request, name: DatasetName, body: bodies.PolicyBody, person: Steward
) -> dict[str, Any]:
    """Change budgets and analysts from now on; the ledger keeps the change."""
    return await set_policy(request, person, name, body)


async def set_policy(
    request: Request, person: Person, name: str, body: bodies.PolicyBody, was: str | None = None
) -> dict[str, Any]:
    """Change a policy, and with it who may see the dataset.

    `was` is the `policy_fingerprint` of the policy to be changed: the request is refused if another one is in
    force. None changes any.
    """
    dataset = granted(request, name, person)
    facts = body.model_dump()
    large = {name: facts.pop(name) for name in ("large_delta", "large_epsilon")}
    changed = await desk_of(request).change("policy", person, dataset, policy=facts, was=was, **large)
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
