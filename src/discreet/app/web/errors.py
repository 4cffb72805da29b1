"""One JSON shape for every error: {"error": {"kind", "message", "code"}}, the shape of the shell's
`--json`."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel

from ..._errors import DiscreetError

# what a kind of error is over HTTP; 400 for all others
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
    """What went wrong, and what did not happen."""

    kind: str
    message: str
    code: int


class ErrorBody(BaseModel):
    """The one shape of all errors."""

    error: ErrorFacts


class HTTPError(Exception):
    """An error that a route answers with."""

    def __init__(self, kind: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.kind, self.message, self.headers = kind, message, headers or {}

    @property
    def code(self) -> int:
        return CODES.get(self.kind, 400)


def body_of(kind: str, message: str) -> dict[str, Any]:
    """Return the JSON of an error."""
    return {"error": {"kind": kind, "message": message, "code": CODES.get(kind, 400)}}


def from_error(error: DiscreetError) -> HTTPError:
    """Return an error of the library as one of HTTP."""
    return HTTPError(type(error).__name__, str(error))


# of the pages of the API's description
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody}
    for code in (400, 401, 402, 403, 404, 405, 409, 413, 422, 429, 500, 501, 503, 504)
}
