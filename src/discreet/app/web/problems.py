"""Turns errors into HTTP responses. All have one JSON shape, {"error": {"kind", "message", "code", ...}}."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel
from starlette.responses import JSONResponse

from ..._errors import DiscreetError
from ..requests import error_json

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
    """The kind of an error, a message that says what happened and what did not, and the HTTP status.

    The other fields are the parts of the message: what happened; what to do; the option that it is about; and
    whether a budget was charged, null where nothing that charges was asked, or `what` says it.
    """

    kind: str
    message: str
    code: int
    what: str
    remedy: str
    option: str | None
    charged: bool | None


class ErrorBody(BaseModel):
    """The body of every response that is an error."""

    error: ErrorFacts


class HTTPError(DiscreetError):
    """An error with which a route answers its request. `kind` is the name of the class of an error of the
    library, or one of `CODES`."""

    def __init__(
        self,
        kind: str,
        what: str,
        headers: dict[str, str] | None = None,
        *,
        remedy: str = "",
        option: str | None = None,
        charged: bool | None = None,
        status: int | None = None,
    ) -> None:
        super().__init__(what, remedy=remedy, option=option)
        self.kind, self.headers, self.charged = kind, headers or {}, charged
        self.code = status or CODES.get(kind, 400)

    @classmethod
    def of(cls, facts: dict[str, Any]) -> HTTPError:
        """Return the error that `requests.error_json` wrote."""
        parts = {name: facts[name] for name in ("remedy", "option", "charged")}
        return cls(facts["kind"], facts["what"], **parts)

    def response(self) -> JSONResponse:
        """Return the response of a route of the API."""
        body = {"error": error_json(self, self.kind) | {"code": self.code}}
        return JSONResponse(body, self.code, self.headers)


# The error responses in the OpenAPI description of every route.
DOCUMENTED: dict[int | str, dict[str, Any]] = {
    code: {"model": ErrorBody}
    for code in (400, 401, 402, 403, 404, 405, 409, 413, 422, 429, 500, 501, 503, 504)
}
