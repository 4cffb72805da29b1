"""Builds the application: routes, error responses, headers, and an access log without names, questions and
addresses."""

from __future__ import annotations

import asyncio
import errno
import logging
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from fastapi.staticfiles import StaticFiles
from pydantic.json_schema import models_json_schema
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from uvicorn.protocols.http.h11_impl import H11Protocol

from ... import __version__
from ..._errors import DiscreetError
from ..requests import error_json
from . import api, bodies, pages, steward_pages
from .auth import SAFE, SCHEMA, Gate, Rates
from .front_desk import FrontDesk
from .problems import HTTPError
from .rendering import error_page
from .server_store import ServerStore
from .settings import Settings

LOG = logging.getLogger("discreet.access")
# How many requests were answered, by method and status (`pages.metrics`).
COUNTS: Counter[tuple[str, int]] = Counter()
# Lines about refused writes: one a second, and up to 100 at once. Chosen by hand, not tuned.
LINES = Rates(1.0, 100)
# What a full disk, or one that cannot be written, says.
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
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
# Added where browsers come by TLS.
STRICT = {"Strict-Transport-Security": "max-age=31536000"}
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
        # A redirect to the path with another slash would name the address behind a proxy.
        redirect_slashes=False,
    )
    app.state.settings, app.state.store, app.state.counts = settings, store, COUNTS
    app.state.gate, app.state.desk = Gate(settings, store), FrontDesk(settings, store)
    app.include_router(api.router)
    app.include_router(pages.router, include_in_schema=False)
    app.include_router(steward_pages.router, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    _add_error_handlers(app)
    _describe_bodies(app)
    transport = STRICT if settings.secure else {}
    names = {*settings.hosts, settings.host}
    app.add_middleware(NamedHosts, names=names, headers=HEADERS | transport, kept="/static/")
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
        # Of a path or a query: bodies are validated by `bodies.parse`.
        first = error.errors()[0]
        wrong, field = f"{bodies.problem(first)}.", str(first["loc"][1])
        return await from_route(request, HTTPError("InvalidRequest", wrong, option=field, charged=False))

    @app.exception_handler(HTTPException)
    async def from_starlette(request: Request, error: HTTPException) -> Response:
        kinds = {404: "NotFound", 405: "MethodNotAllowed", 413: "TooLarge", 400: "InvalidInput"}
        kind = kinds.get(error.status_code, "InvalidInput")
        what, status = f"{error.detail}. Nothing was done.", error.status_code
        return await from_route(request, HTTPError(kind, what, dict(error.headers or {}), status=status))

    @app.exception_handler(sqlite3.OperationalError)
    @app.exception_handler(OSError)
    async def from_disk(request: Request, error: Exception) -> Response:
        if isinstance(error, OSError) and error.errno not in FULL:
            raise error
        LOG.error("the server cannot write its files: %s", error)
        wrong = "the server cannot write its files now. What was charged stays charged."
        return await from_route(request, HTTPError("Busy", wrong, remedy="Tell the steward."))

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        # The text of the error stays in the server's log. Starlette sends this response past
        # `NamedHosts`, so that its headers are set here.
        response = await from_route(request, HTTPError("InternalError", FAULT))
        response.headers.update(HEADERS | {"Cache-Control": "no-store"})
        return response


def host_name(host: str) -> str:
    """Return a Host header without the port."""
    # An IPv6 address is in brackets, and has colons itself.
    return host if host.endswith("]") else host.rsplit(":", 1)[0]


class NamedHosts:
    """ASGI middleware that checks the host of every request, sets the headers of every response, and logs.
    Browsers keep what is below the path `kept` only."""

    def __init__(self, app: Any, names: set[str], headers: dict[str, str], kept: str | None = None) -> None:
        self.app, self.names, self.headers, self.kept = app, names, headers, kept

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for header, value in self.headers.items():
                    headers.setdefault(header, value)
                if self.kept is None or not scope["path"].startswith(self.kept):
                    headers["Cache-Control"] = "no-store"
                # The pattern of the route, not its path, which holds names.
                pattern, status = getattr(scope.get("route"), "path", "-"), message["status"]
                COUNTS[scope["method"], status] += 1
                # Not those of strangers, and of nobody very many: a log must not fill the disk.
                is_refused_write = status >= 400 and status not in (401, 429) and scope["method"] not in SAFE
                level = logging.WARNING if is_refused_write and LINES.take("") else logging.INFO
                LOG.log(level, "%s %s %d", scope["method"], pattern, status)
            await send(message)

        app = self.app
        # Another site may have let its own name point to this address (DNS rebinding).
        if host_name(Headers(scope=scope).get("host", "")) not in self.names:
            app = HTTPError("InvalidInput", "this server does not go by that name (--name NAME).").response()
        await app(scope, receive, send_with_headers)


# Seconds from the opening of a connection, or from the first byte of a later request, until the end of its
# header. Chosen by hand, not tuned.
HEADER_SECONDS = 10.0


class HeaderLimit(H11Protocol):
    """A connection that is closed if the header of a request takes too long to arrive: a client that sends a
    byte a minute would have it for as long as it likes."""

    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._watch()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._watch()

    def _watch(self) -> None:
        """Run the timer while a header is awaited, from its first byte on."""
        if self.cycle is not None and not self.cycle.response_complete:
            if self._timer is not None:
                self._timer.cancel()
                self._timer = None
        elif self._timer is None:
            self._timer = self.loop.call_later(HEADER_SECONDS, self.transport.close)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        super().connection_lost(exc)


def _describe_bodies(app: FastAPI) -> None:
    """Add the bodies to the OpenAPI document: no route takes one as a parameter (`auth.sent`)."""
    describe = app.openapi
    kinds = {kind for route in api.router.routes if (kind := getattr(route, "kind", None)) is not None}

    def with_bodies() -> dict[str, Any]:
        document = describe()
        modes: Any = [(kind, "validation") for kind in sorted(kinds, key=lambda kind: kind.__name__)]
        _, schemas = models_json_schema(modes, ref_template=SCHEMA)
        document["components"]["schemas"] |= schemas["$defs"]
        return document

    app.openapi = with_bodies  # type: ignore[method-assign]
