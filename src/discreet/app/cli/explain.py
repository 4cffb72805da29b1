"""`discreet explain`: says what a privacy price means for one person, in words for the public, for policy
makers or for engineers.

Prints HTML pages to PDF, with a Chromium that is installed on this machine.

The pages have no scripts and refer to no other files, so nothing is loaded from the network.
"""

from __future__ import annotations

import contextlib
import json
import math
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer

from ... import _system
from ... import session as sessions
from ..._errors import DiscreetError, InvalidInput, MissingExtra
from ..._text import visible
from ...accounting import Event, from_json
from ...curator import STEWARD
from ...curator.curator import read_only
from ...explaining import Explanation
from ...explaining import explain as explain_anything
from ...explaining.subjects import explain_event
from ...explaining.words import AUDIENCES
from ...session.terms import Terms, values
from .. import requests
from . import forms
from .ledger import _ledger_of
from .options import FORCE, JSON, Opening
from .parser import Only

_AUDIENCE = (
    "Who reads it: public, policy or engineer. By default the public; for a planned question, an engineer."
)
# The largest model file that is read, in bytes: weights of 190 million parameters. Chosen by hand.
_LARGEST_MODEL = 1 << 30


def explain(
    subject: str = typer.Argument(
        ...,
        help="An epsilon (1.5), a ledger or the data file it lies beside, a model file, or a JSON event.",
        show_default=False,
    ),
    sql: str = typer.Argument(None, help="Of a data file: a planned question.", show_default=False),
    audience: str = typer.Option(None, "--for", help=_AUDIENCE),
    *,
    terms: Annotated[Terms, Only("epsilon within confidence delta rows groups")],
    opening: Annotated[Opening, Only("schema ledger analyst")],
    neighbors: str = typer.Option(
        "add_remove", "--neighbors", help="Of a given epsilon: add_remove, replace or zero_out."
    ),
    html: Path = typer.Option(None, "--html", help="Also write the explanation as an HTML page."),
    label: Path = typer.Option(None, "--label", help="Also write a one-page privacy label: .html or .pdf."),
    force: bool = FORCE,
    as_json: bool = JSON,
) -> None:
    requests.refuse_password(subject)
    for path in (html, label):
        forms.check(path, force=force, data=[subject])
    forms.check_distinct(html, label)
    if audience is not None and audience not in AUDIENCES:
        raise InvalidInput(f"--for must be one of {', '.join(AUDIENCES)}, got {audience!r}.")
    if sql is not None:
        options = {name: values(terms)[name] for name in ("within", "rows", "groups", "delta", "epsilon")}
        explanation = opening.session(subject).explain(
            sql, audience=audience, confidence=terms.confidence, **requests.without_none(**options)
        )
    else:
        explanation = _explain_subject(subject, audience or "public", terms.delta, neighbors, opening)
    _write(explanation, html, label, force)
    print(json.dumps(explanation.to_json()) if as_json else visible(str(explanation), keep="\n"))


def _explain_subject(
    subject: str, audience: str, delta: float | None, neighbors: str, opening: Opening
) -> Explanation:
    """Explain a number, a model file, a JSON event, or what a ledger adds up to."""
    number = _number(subject)
    if number is not None:
        return explain_anything(number, delta=delta, audience=audience, neighbors=neighbors)
    # The ledger of a data file, or `subject` itself (a ledger, a model, an event) where none lies beside it.
    path = opening.ledger or Path(_ledger_of(Path(subject)))
    if not path.is_file():
        raise InvalidInput(
            f"{subject!r} is not a number and there is no such file. Give an epsilon such as 1.0, a ledger, "
            f"a data file with its ledger beside it, a model file, or a JSON event."
        )
    model = None if path.suffix == ".ledger" or _starts(path, b"SQLite format 3") else _model(path)
    if model is not None:
        event, facts = model
        title = f"What {visible(path.name)} means for one person in its training data"
        # the delta that was given, or the one that is explained by default
        model_delta = explain_anything(event, delta=delta).risk.delta
        return explain_event(event, delta=model_delta, audience=audience, title=title, facts=facts)
    session = sessions.Session(read_only(path))
    return (session if opening.analyst == STEWARD else session.as_analyst(opening.analyst)).explain(
        audience=audience, delta=delta
    )


def _number(text: str) -> float | None:
    """Return the epsilon that a text writes; None where it is no number."""
    try:
        value = float(text)
    except ValueError:
        return None
    if not math.isfinite(value) or value < 0:
        raise InvalidInput(f"an epsilon is zero or above and finite, got {text!r}.")
    return value


def _starts(path: Path, mark: bytes) -> bool:
    """Return whether a file begins with these bytes."""
    with path.open("rb") as file:
        return file.read(len(mark)) == mark


def _model(path: Path) -> tuple[Event, list[tuple[str, str]]]:
    """Return the event of a model file or of a JSON event, and facts about the model; no code in the file is
    run.
    """
    error = InvalidInput(f"{path} is neither a ledger, nor a model file of discreet, nor a JSON event.")
    try:
        with path.open("rb") as file:
            facts = json.loads(file.read(_LARGEST_MODEL))
        # a model has its event under "event"; a JSON event is told by its "type"
        event = from_json(facts["event"] if "event" in facts and "type" not in facts else facts)
    except (OSError, ValueError, KeyError, TypeError, RecursionError, DiscreetError):
        raise error from None
    # models of `tabular` have their kind under "notes", the others at the top
    notes: Any = facts.get("notes") or facts
    kind = notes.get("kind") if isinstance(notes, dict) else None
    return event, [("Released", f"a model, {visible(str(kind))}")] if kind else []


def _write(explanation: Explanation, html: Path | None, label: Path | None, force: bool) -> None:
    """Write the page and the label, where --html and --label name files."""
    if html is not None:
        forms.write(html, explanation.to_html(), force=force)
    if label is not None and label.suffix.lower() == ".pdf":
        to_pdf(explanation.label(), label)
    elif label is not None:
        forms.write(label, explanation.label(), force=force)
    for path in (html, label):
        if path is not None:
            typer.secho(f"written: {visible(str(path))}", err=True, dim=True)


BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
# The time limit of one page, in seconds. Measured: a page takes two seconds; a cold start on a busy machine
# took fifteen.
_SECONDS = 90


def browser() -> str | None:
    """Return the path of the first Chromium or Chrome that is found, or None."""
    return next((path for name in BROWSERS if (path := shutil.which(name)) is not None), None)


def to_pdf(html: str, path: Path) -> None:
    """Print a page to a PDF file."""
    program = browser()
    if program is None:
        raise MissingExtra(
            "a PDF is printed by Chromium, which was not found. Nothing was written. Give a name that ends "
            "in .html instead, and print the page from any browser."
        )
    with tempfile.TemporaryDirectory() as folder:
        page, printed = Path(folder, "page.html"), Path(folder, "page.pdf")
        page.write_text(html, encoding="utf-8")
        command = [program, "--headless", "--disable-gpu", f"--user-data-dir={folder}/profile"]
        # Chromium refuses to run as root with its sandbox. The sandbox guards against hostile pages; this
        # package wrote the page, and it has no script.
        command += ["--no-sandbox"] if _system.is_root() else []
        command += ["--no-pdf-header-footer", f"--print-to-pdf={printed}", page.as_uri()]
        # whether it succeeded shows in the file: the exit code is not read
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, capture_output=True, timeout=_SECONDS, check=False)
        if not printed.is_file():
            raise InvalidInput(
                f"{program} printed nothing. Nothing was written. Give a name that ends in .html."
            )
        try:
            shutil.copyfile(printed, path)
        except OSError as error:
            raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from None
