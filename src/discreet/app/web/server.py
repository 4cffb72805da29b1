"""Builds the application: routes, error responses, headers, limits on bodies, and an access log that holds no
names, questions or addresses.

Limits the size of request bodies: a body that is too long is refused before it is read into memory.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from ... import __version__
from ..._errors import DiscreetError
from ..requests import error_json
from . import api, bodies, pages, steward_pages
from .auth import Gate
from .front_desk import FrontDesk
from .problems import HTTPError
from .rendering import error_page
from .server_store import ServerStore
from .settings import Settings

# The one route that takes larger bodies.
UPLOAD = "/steward/upload"


class _TooLong(Exception):
    """The body has more bytes than the limit."""


class BodyLimit:
    """ASGI middleware that refuses a body above the limit: by its Content-Length, and by counting its bytes.

    The limits are in bytes: `uploads` for the route `UPLOAD`, `requests` for all others.
    """

    def __init__(self, app: Any, requests: int, uploads: int) -> None:
        self.app, self.requests, self.uploads = app, requests, uploads

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                # The server has no routes for WebSockets.
                await send({"type": "websocket.close", "code": 1008})
                return
            await self.app(scope, receive, send)
            return
        limit = self.uploads if scope["path"] == UPLOAD else self.requests
        claimed = dict(scope["headers"]).get(b"content-length", b"0")
        # Only 20 digits are read: Python refuses to parse thousands, and 20 are above any limit.
        if not claimed.isdigit() or int(claimed[:20]) > limit:
            await self._refuse(scope, receive, send, limit)
            return
        total, refused = 0, False

        async def receive_counted() -> Any:
            nonlocal total
            message = await receive()
            total += len(message.get("body", b""))
            if total > limit:
                raise _TooLong
            return message

        async def send_or_refuse(message: Any) -> None:
            nonlocal refused
            if total > limit:
                # The route could not read the whole body, and may answer with another error: the length is
                # the true reason.
                if not refused:
                    refused = True
                    await self._refuse(scope, receive, send, limit)
                return
            await send(message)

        try:
            await self.app(scope, receive_counted, send_or_refuse)
        except _TooLong:
            await send_or_refuse({})

    async def _refuse(self, scope: Any, receive: Any, send: Any, limit: int) -> None:
        error = HTTPError("TooLarge", f"a request has at most {limit:,} bytes here. Nothing was done.")
        await error.response()(scope, receive, send)


LOG = logging.getLogger("discreet.access")
STATIC = Path(__file__).parent / "static"
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    # not "no-referrer": forms would then come without their origin
    "Referrer-Policy": "same-origin",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}
# The message for an error of the server itself.
FAULT = "the server failed, and its log says why. What was charged stays charged. Tell the steward."


def build(settings: Settings) -> FastAPI:
    """Return the application with these settings; its workers start and end with it."""
    store = ServerStore(settings.state)
    store.claim()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await app.state.desk.start()
        yield
        await app.state.desk.stop()
        store.close()

    app = FastAPI(
        title="discreet",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
    )
    app.state.settings, app.state.store = settings, store
    app.state.gate, app.state.desk = Gate(settings, store), FrontDesk(settings, store)
    app.include_router(api.router)
    app.include_router(pages.router, include_in_schema=False)
    app.include_router(steward_pages.router, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    _add_error_handlers(app)
    _add_middleware(app, settings)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    """Turn every error into a response: JSON for the routes of the API, a page for all others."""

    @app.exception_handler(HTTPError)
    async def from_route(request: Request, error: HTTPError) -> Response:
        return error.response() if request.url.path.startswith("/api/") else error_page(request, error)

    @app.exception_handler(DiscreetError)
    async def from_library(request: Request, error: DiscreetError) -> Response:
        return await from_route(request, HTTPError.of(error_json(error)))

    @app.exception_handler(RequestValidationError)
    async def from_validation(request: Request, error: RequestValidationError) -> Response:
        # Say which field is wrong and why, but do not repeat its value.
        first = error.errors()[0] if error.errors() else {"loc": (), "msg": "not valid"}
        field = str(first["loc"][1]) if len(first["loc"]) > 1 else None
        wrong = f"{bodies.problem(first)}."
        return await from_route(request, HTTPError("InvalidRequest", wrong, option=field, charged=False))

    @app.exception_handler(HTTPException)
    async def from_starlette(request: Request, error: HTTPException) -> Response:
        kinds = {404: "NotFound", 405: "MethodNotAllowed", 413: "TooLarge", 400: "InvalidInput"}
        kind = kinds.get(error.status_code, "InvalidInput")
        what, status = f"{error.detail}. Nothing was done.", error.status_code
        return await from_route(request, HTTPError(kind, what, dict(error.headers or {}), status=status))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        # The text of the error stays in the server's log. Starlette sends this response past the middleware
        # of `_add_middleware`, so that its headers are set here.
        response = await from_route(request, HTTPError("InternalError", FAULT))
        response.headers.update(HEADERS | {"Cache-Control": "no-store"})
        return response


def host_name(request: Request) -> str:
    """Return the Host header of a request without the port."""
    host = request.headers.get("host", "")
    # An IPv6 address is in brackets, and has colons itself.
    return host if host.endswith("]") else host.rsplit(":", 1)[0]


def _add_middleware(app: FastAPI, settings: Settings) -> None:
    """Check the host of every request, and set the headers of every response."""
    allowed = {*settings.hosts, settings.host}

    @app.middleware("http")
    async def around(request: Request, call_next: Callable[[Request], Awaitable[Response]]) -> Response:
        # Another site may have let its own name point to this address (DNS rebinding).
        if host_name(request) not in allowed:
            wrong_name = "this server does not go by that name (--name NAME)."
            response: Response = HTTPError("InvalidInput", wrong_name).response()
        else:
            response = await call_next(request)
        for header, value in HEADERS.items():
            response.headers.setdefault(header, value)
        if not request.url.path.startswith("/static/"):
            response.headers["Cache-Control"] = "no-store"
        if settings.secure:
            response.headers["Strict-Transport-Security"] = "max-age=31536000"
        route: Any = request.scope.get("route")
        # The pattern of the route, not its path, which holds names.
        LOG.info("%s %s %d", request.method, getattr(route, "path", "-"), response.status_code)
        return response

    app.add_middleware(BodyLimit, requests=settings.request_bytes, uploads=settings.upload_bytes)
