"""Renders the pages that log a person in and out, and show their own account."""

from __future__ import annotations

import asyncio

from fastapi import APIRouter, Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response

from ..._errors import InvalidInput
from .auth import check_origin, cookie_name, store_of
from .errors import HTTPError
from .rendering import Anybody, form_of, render
from .tokens import same

router = APIRouter()
WRONG_TOKEN = "This token is not valid: it is unknown, revoked or has expired. Ask the steward for a new one."
WRONG_NAME = (
    "This name and password are not valid together. Try again, or log in with your token; a password ends "
    "with the token it was set with, and when a token of yours is revoked."
)


async def everyone() -> None:
    """Mark a route that needs no log-in; tests/web/test_authorization.py reads the mark."""


everyone.roles = ()  # type: ignore[attr-defined]
Everyone = Depends(everyone)


@router.get("/login", dependencies=[Everyone])
async def login_page(request: Request) -> HTMLResponse:
    """Show the form that takes a token, or a name and a password."""
    return render(request, "login.html", tokens=request.app.state.settings.demo_tokens)


@router.post("/login", dependencies=[Everyone])
async def login(request: Request) -> Response:
    """Open a browser session."""
    check_origin(request)
    settings, store = request.app.state.settings, store_of(request)
    _count_guess(request)
    form = await form_of(request)
    name = form.get("name", "").strip()
    if form.get("token") or not name:
        name, person = "", store.by_token(form.get("token", "").strip())
    else:
        # In a thread: the hash is slow, and the event loop must send the answers of others on time.
        person = await asyncio.to_thread(store.by_password, name, form.get("password", ""))
    if person is None:
        wrong = WRONG_NAME if name else WRONG_TOKEN
        context = {"wrong": wrong, "by_name": name[:64], "tokens": settings.demo_tokens}
        return render(request, "login.html", 401, **context)
    response = RedirectResponse("/", 303)
    response.set_cookie(
        cookie_name(settings),
        store.open_session(person, settings.session_hours),
        max_age=int(settings.session_hours * 3600),
        httponly=True,
        samesite="strict",
        secure=settings.secure,
        path="/",
    )
    return response


def _count_guess(request: Request) -> None:
    """Refuse an address that sends too many passwords or tokens per minute."""
    address = request.client.host if request.client else "?"
    if not request.app.state.gate.logins.take(address):
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
    _count_guess(request)
    form = await form_of(request)
    first, second = form.get("password", ""), form.get("again", "")
    if not same(first.encode(), second.encode()):
        raise InvalidInput("the two passwords differ. Nothing was changed.")
    await asyncio.to_thread(store_of(request).set_password, person, first, form.get("old", ""))
    return render(request, "account.html", person=person, has_password=True, done=True)
