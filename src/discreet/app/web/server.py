"""Builds the application: routes, error responses, headers, limits on bodies, and an access log that holds no
names, questions or addresses."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from ... import __version__
from ..._errors import DiscreetError
from . import analysis_api, analysis_pages, api, door_pages, pages, steward_api, steward_pages
from .auth import Gate
from .desk import FrontDesk
from .errors import HTTPError, body_of, from_error
from .limits import BodyLimit
from .rendering import error_page
from .settings import Settings
from .store import ServerStore

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
    app.include_router(analysis_api.router)
    app.include_router(steward_api.router)
    app.include_router(door_pages.router, include_in_schema=False)
    app.include_router(pages.router, include_in_schema=False)
    app.include_router(analysis_pages.router, include_in_schema=False)
    app.include_router(steward_pages.router, include_in_schema=False)
    app.mount("/static", StaticFiles(directory=STATIC), name="static")
    _add_error_handlers(app)
    _add_middleware(app, settings)
    return app


def _add_error_handlers(app: FastAPI) -> None:
    """Turn every error into a response: JSON for the routes of the API, a page for all others."""

    def respond(request: Request, kind: str, message: str, code: int, headers: dict[str, str]) -> Response:
        if request.url.path.startswith("/api/"):
            return JSONResponse(body_of(kind, message), code, headers)
        return error_page(request, kind, message, code)

    @app.exception_handler(HTTPError)
    async def from_route(request: Request, error: HTTPError) -> Response:
        return respond(request, error.kind, error.message, error.code, error.headers)

    @app.exception_handler(DiscreetError)
    async def from_library(request: Request, error: DiscreetError) -> Response:
        return await from_route(request, from_error(error))

    @app.exception_handler(RequestValidationError)
    async def from_validation(request: Request, error: RequestValidationError) -> Response:
        # Say which field is wrong and why, but do not repeat its value.
        first = error.errors()[0] if error.errors() else {"loc": (), "msg": "not valid"}
        field = ".".join(str(name) for name in first["loc"] if name != "body")
        return respond(request, "InvalidRequest", f"{field}: {first['msg']}. Nothing was charged.", 422, {})

    @app.exception_handler(HTTPException)
    async def from_starlette(request: Request, error: HTTPException) -> Response:
        kinds = {404: "NotFound", 405: "MethodNotAllowed", 413: "TooLarge", 400: "InvalidInput"}
        kind = kinds.get(error.status_code, "InvalidInput")
        headers = dict(error.headers or {})
        return respond(request, kind, f"{error.detail}. Nothing was done.", error.status_code, headers)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        # The text of the error stays in the server's log. Starlette sends this response past the middleware
        # of `_add_middleware`, so that its headers are set here.
        response = respond(request, "InternalError", FAULT, 500, {})
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
            response: Response = JSONResponse(
                body_of("InvalidInput", "this server does not go by that name (--name NAME)."), 400
            )
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
