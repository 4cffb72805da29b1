"""Turns errors into HTTP responses. All have one JSON shape, {"error": {"kind", "message", "code"}}, which
the command line prints with `--json`, too."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from ..._errors import DiscreetError

# The HTTP status of each kind of error; 400 for all others.
CODES = {
    "BudgetExceeded": 402,
    "NotPrivate": 403,
    "PrivateFact": 403,
    "Forbidden": 403,
    "NotLoggedIn": 401,
    "NotFound": 404,
    "MethodNotAllowed": 405,
    "Halted": 409,
    "ReleaseFailed": 409,
    "TooLarge": 413,
    "InvalidRequest": 422,
    "TooManyRequests": 429,
    "InternalError": 500,
    "MissingExtra": 501,
    "LedgerError": 503,
    "Busy": 503,
    "TimeLimit": 504,
}


class ErrorFacts(BaseModel):
    """The kind of an error, a message that says what happened and what did not, and the HTTP status."""

    kind: str
    message: str
    code: int


class ErrorBody(BaseModel):
    """The body of every response that is an error."""

    error: ErrorFacts


class HTTPError(Exception):
    """An error with which a route answers its request."""

    def __init__(self, kind: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.headers = kind, message, headers or {}

    @property
    def code(self) -> int:
        """The HTTP status."""
        return CODES.get(self.kind, 400)


def body_of(kind: str, message: str) -> dict[str, Any]:
    """Return the JSON of an error."""
    return {"error": {"kind": kind, "message": message, "code": CODES.get(kind, 400)}}


def from_error(error: DiscreetError) -> HTTPError:
    """Return an error of the library as an `HTTPError`."""
    return HTTPError(type(error).__name__, str(error))


# The error responses in the OpenAPI description of every route.
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody}
    for code in (400, 401, 402, 403, 404, 405, 409, 413, 422, 429, 500, 501, 503, 504)
}
