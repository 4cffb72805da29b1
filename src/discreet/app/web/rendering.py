"""Defines what all pages share: templates, error pages, forms, and who may see a page.

The templates escape every text that is put into them. A form carries the session's CSRF token in a header
(htmx) or in a field; `page_person` checks it.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlencode, urlsplit

from fastapi import Depends, Request
from fastapi.responses import HTMLResponse, RedirectResponse, Response
from jinja2 import Environment, FileSystemLoader, select_autoescape

from ...tables.source import quoted
from .auth import ASKERS, EVERYBODY, allow, check_role
from .charts import FILTERS
from .problems import HTTPError
from .server_store import Person, Role

TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).parent / "templates"),
    autoescape=select_autoescape(default=True, default_for_string=True),
    trim_blocks=True,
    lstrip_blocks=True,
)
TEMPLATES.globals["quote"] = quoted
TEMPLATES.filters |= FILTERS
# Headings of error pages by HTTP status; "Refused" for all others.
HEADINGS = {
    404: "Not found",
    413: "Too large",
    429: "Too many requests",
    500: "Failed",
    503: "Busy",
    504: "Out of time",
}


def render(request: Request, template: str, code: int = 200, **facts: Any) -> HTMLResponse:
    """Return a page or a part of one. `facts` are the variables of its template; "person" is who looks at
    it."""
    facts.setdefault("person", None)
    facts["demo"], facts["here"] = request.app.state.settings.demo, request.url.path
    return HTMLResponse(TEMPLATES.get_template(template).render(**facts), code)


def error_page(request: Request, error: HTTPError) -> Response:
    """Return an error as a page, or as a part of a page if htmx has sent the request; without a log-in,
    redirect to the log-in page."""
    message, code = str(error), error.code
    if error.kind == "NotLoggedIn":
        # back to the page from which this was sent
        page = urlsplit(request.headers.get("hx-current-url", "")).path or request.url.path
        address = "/login" if page == "/" else f"/login?{urlencode({'next': page}, safe='/')}"
        if request.headers.get("hx-request"):
            return Response(status_code=401, headers={"HX-Redirect": address})
        return RedirectResponse(address, 303)
    if request.headers.get("hx-request"):
        # static/console.js lets htmx show responses with an error status, too.
        return render(request, "error_part.html", code, message=message)
    person = None
    # With status 500 the store, which identifies people, may be what failed.
    with contextlib.suppress(Exception if code == 500 else HTTPError):
        person = request.app.state.gate.identify(request)
    heading = HEADINGS.get(code, "Refused")
    return render(request, "error.html", code, person=person, heading=heading, message=message)


async def form_of(request: Request) -> dict[str, str]:
    """Return the text fields of a form by name; of a name that occurs twice, the last."""
    form = await request.form(max_fields=200, max_files=1)
    return {name: value for name, value in form.items() if isinstance(value, str)}


def page_person(*roles: Any) -> Any:
    """Return a dependency like `allow` that takes the CSRF token from a field as well as from the header."""
    check = allow(*roles)

    async def allowed(request: Request) -> Person:
        if request.method == "POST" and "x-csrf-token" not in request.headers:
            # Identify the person first: the body of somebody unknown is not read.
            check_role(request.app.state.gate.identify(request), roles)
            form = await request.form(max_fields=200, max_files=1)
            sent = form.get("csrf")
            if isinstance(sent, str):
                headers = [*request.scope["headers"], (b"x-csrf-token", sent.encode("latin-1", "replace"))]
                request.scope["headers"] = headers
                # Starlette caches the parsed headers here; now it parses the changed ones.
                del request._headers
        return await check(request)

    allowed.roles = roles  # type: ignore[attr-defined]
    return allowed


# The parameter types of pages for everybody who is logged in, and for those who may ask questions.
Anybody = Annotated[Person, Depends(page_person(*EVERYBODY))]
Asker = Annotated[Person, Depends(page_person(*ASKERS))]
Reader = Annotated[Person, Depends(page_person(Role.STEWARD, Role.AUDITOR))]
