"""Serves a survey in the browser, in the local model: answers are randomized on the respondent's device.

The page shows the questions, their price and what is sent. The server gets randomized answers, called
reports, and stores nothing else: no address, no time, and no order of arrival (`ReportStore`). Respondents
need not trust what the server does with reports, but they must trust the page.

Guarantee: what leaves the page for one question is epsilon-DP for whoever answers, with that question's
           epsilon; all questions together cost the sum.
Proof:     that of the randomizer (docs/local.md). Its implementation in JavaScript (`local.SCRIPT`) draws the
           report: it computes the epsilon from the randomizer's description, and refuses a description that
           claims a smaller one.
Assumes:   the server sends the page and the script of this package, and the browser runs them as they are.
           Whoever doubts it reads the script, or uses a client of their own. Answering again, on another
           device or after the browser's storage was cleared, spends the same again; the page says so.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import tomllib
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, HTMLResponse, JSONResponse, Response
from fastapi.staticfiles import StaticFiles
from pydantic import Field, ValidationError
from starlette.exceptions import HTTPException

from ... import _system, local
from ..._errors import InvalidInput
from ..._registry import to_json
from . import bodies, charts
from .auth import BODY_SECONDS, BoundedRequest, Rates, check_origin
from .problems import HTTPError
from .rendering import TEMPLATES
from .server import HEADERS, STATIC, STRICT, NamedHosts

# Reports of one address, which a school may share: one in ten seconds, and up to 200 at once. Chosen by hand.
RATE, BURST = 0.1, 200
# How surely shares are impossible that are said to be: one survey in 1,000 is accused wrongly. Not tuned.
SURELY = 0.999
# The fewest reports from which an estimate is shown, as the error of fewer is too large. Chosen by hand, not
# tuned.
FEWEST = 10


@dataclass(frozen=True)
class SurveyQuestion:
    """A question with its randomizer. The answer is one of `categories`, or a number `between` two bounds."""

    name: str
    text: str
    categories: tuple[str, ...] | None
    between: tuple[float, float] | None
    randomizer: Any

    def to_json(self) -> dict[str, Any]:
        """Return the question as the page needs it; "client" describes the randomizer to the script."""
        return {
            "name": self.name,
            "text": self.text,
            "categories": None if self.categories is None else list(self.categories),
            "between": None if self.between is None else list(self.between),
            "epsilon": float(self.randomizer.epsilon),
            "client": self.randomizer.client(),
        }


@dataclass(frozen=True)
class Survey:
    """A survey as its file describes it."""

    title: str
    about: str
    questions: tuple[SurveyQuestion, ...]

    @property
    def epsilon(self) -> float:
        """What all questions together cost a respondent."""
        return sum(float(question.randomizer.epsilon) for question in self.questions)

    def to_json(self) -> dict[str, Any]:
        return {
            "title": self.title,
            "about": self.about,
            "epsilon": self.epsilon,
            "questions": [question.to_json() for question in self.questions],
        }


Label = Annotated[str, Field(min_length=1)]


class QuestionFacts(bodies.Body):
    """A question of a survey file: of `categories` and `between` (two bounds) it has one."""

    name: str | None = None
    text: str
    epsilon: int | float
    categories: Annotated[list[Label], Field(min_length=2)] | None = None
    between: Annotated[list[int | float], Field(min_length=2, max_length=2)] | None = None

    def asked(self, number: int, people: int) -> SurveyQuestion:
        """Return the question, the one with this number; by the expected number of `people` its randomizer is
        chosen."""
        name, labels = self.name or f"question{number}", tuple(self.categories or ())
        if (self.categories is None) == (self.between is None) or len(set(labels)) < len(labels):
            raise InvalidInput(
                f"question {number} needs either categories, which differ, or between. Nothing was served."
            )
        if self.between is None:
            oracle = local.best(epsilon=self.epsilon, domain=len(labels), people=people)
            return SurveyQuestion(name, self.text, labels, None, oracle)
        low, high = self.between
        mean = local.HybridMean(epsilon=self.epsilon, low=low, high=high)
        return SurveyQuestion(name, self.text, None, (float(low), float(high)), mean)


class SurveyFacts(bodies.Body):
    """A survey file, and how many people are expected to answer."""

    title: str = "A survey"
    about: str = ""
    people: int = 1000
    question: Annotated[list[QuestionFacts], Field(min_length=1)]


def load_survey(path: Path) -> Survey:
    """Read a survey file (TOML). A file with a mistake is refused, and the message names the first one."""
    try:
        facts = SurveyFacts(**tomllib.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise InvalidInput(
            f"the survey {str(path)!r} cannot be read: {(error.strerror or type(error).__name__).lower()}. "
            f"Nothing was served. docs/server.md shows how one is written."
        ) from None
    except ValueError as error:
        wrong = bodies.problem(error.errors()[0]) if isinstance(error, ValidationError) else str(error)
        raise InvalidInput(
            f"{str(path)!r} cannot be read as a survey: {wrong}. Nothing was served."
        ) from None
    questions = tuple(q.asked(number, facts.people) for number, q in enumerate(facts.question, 1))
    if len({question.name for question in questions}) < len(questions):
        raise InvalidInput("the names of questions must differ. Nothing was served.")
    return Survey(facts.title, facts.about, questions)


class ReportStore:
    """The reports of a survey in one file of text: a line with the survey's description, then each report
    that was sent, with its question and how often it was sent, sorted.

    Guarantee: what the file holds, bytes and all, is a function of the survey and of the multiset of its
               reports. It tells neither their order nor which of them one person sent.
    Proof:     `_text` sorts and counts, and each change writes the file as a whole: to a file beside it,
               which then takes its place. There is no journal, and no page keeps what was there before.
    Assumes:   whoever reads the file sees no earlier copy of it, such as a backup: two copies differ in what
               came between them. What the file system keeps of its own (freed blocks, snapshots, the time of
               the last change) is not covered.

    A report is kept, also if the machine stops, once `add` returns. One process at a time has the file, as
    each writes what it knows. Reports that are alike share a line; with 100,000 different ones `add` takes
    about 0.05 s.
    """

    def __init__(self, path: Path, survey: Survey) -> None:
        self._path, self._lock = path, threading.Lock()
        self._part = path.with_name(path.name + ".part")
        self._description = json.dumps(
            [[q.name, to_json(q.randomizer), q.categories] for q in survey.questions]
        )
        self._claim = _claim(path)
        try:
            # Left by a process that stopped while it wrote: its reports were not confirmed.
            self._part.unlink(missing_ok=True)
            # How often each line was sent, in order. A line is the JSON of a question and a report.
            self._counts = self._read()
        except BaseException:
            self._claim.close()
            raise

    def _read(self) -> dict[str, int]:
        """Return the reports of the file; a new file gets the survey's description."""
        if not self._path.exists():
            self._write({})
            return {}
        content = self._path.read_bytes()
        description, counts = _parsed(content)
        if description is None or content != _text(description, counts):
            raise InvalidInput(
                f"{self._path} cannot be read as the reports of a survey. Nothing was served or changed. Put "
                f"a whole copy in its place, or give the survey another file name."
            )
        if description != self._description:
            raise InvalidInput(
                f"{self._path} holds reports of a survey with other questions or prices. Nothing was served. "
                f"Give the changed survey another file name."
            )
        return counts

    def _write(self, counts: dict[str, int]) -> None:
        """Put a file with these reports in place of the one that is there, and wait until the disk has it."""
        try:
            with self._part.open("wb") as file:
                file.write(_text(self._description, counts))
                _system.sync(file)
            os.replace(self._part, self._path)
        except BaseException:
            self._part.unlink(missing_ok=True)
            raise
        _system.sync_folder(self._path.parent)

    def add(self, reports: dict[str, Any]) -> None:
        """Store the reports of one person by question; nothing links them to each other."""
        with self._lock:
            counts = Counter(self._counts)
            counts.update(json.dumps([question, report]) for question, report in reports.items())
            ordered = dict(sorted(counts.items()))
            self._write(ordered)
            self._counts = ordered

    def of(self, question: str) -> list[Any]:
        """Return all reports of a question, sorted."""
        start = f"[{json.dumps(question)}, "
        with self._lock:
            lines = [(line, count) for line, count in self._counts.items() if line.startswith(start)]
        return [report for line, count in lines for report in [json.loads(line)[1]] * count]

    def close(self) -> None:
        self._claim.close()


def _text(description: str, counts: dict[str, int]) -> bytes:
    """Return the content of a file of reports: the one form of these reports."""
    lines = [description, *(f"{line} {counts[line]}" for line in sorted(counts))]
    return ("\n".join(lines) + "\n").encode("ascii")


def _parsed(content: bytes) -> tuple[str | None, dict[str, int]]:
    """Return the description and the reports of a file; no description if it is no file of reports."""
    try:
        description, *lines = content.decode("ascii").splitlines()
        pairs = [line.rsplit(" ", 1) for line in lines]
        counts = {line: int(count) for line, count in pairs}
        if isinstance(json.loads(description), list) and all(
            count > 0 and isinstance(json.loads(line)[0], str) for line, count in counts.items()
        ):
            return description, counts
    except (ValueError, TypeError, KeyError, IndexError, RecursionError):
        pass
    return None, {}


def _claim(path: Path) -> IO[bytes]:
    """Keep other processes from a file of reports, by a lock on an empty file beside it, until that is
    closed."""
    claim = path.with_name(path.name + ".lock").open("ab")
    if not _system.try_lock(claim.fileno()):
        claim.close()
        raise InvalidInput(
            f"another process serves the survey whose reports are in {path}. Nothing was served. Stop "
            f"that one first, or give each survey a file of its own."
        )
    return claim


class ReportBody(bodies.Body):
    """What a page sends: one report for each answered question, by the name of the question."""

    reports: Annotated[dict[str, Any], Field(min_length=1, max_length=200)]


def results_of(question: SurveyQuestion, reports: list[Any]) -> dict[str, Any]:
    """Return the estimates of a question with their labels and their error at 95% confidence; all three are
    None if there are fewer than `FEWEST` reports. "plausible": whether chance explains estimates that nobody
    could have caused by answering, such as a share below 0."""
    facts: dict[str, Any] = {"name": question.name, "text": question.text, "reports": len(reports)}
    if len(reports) < FEWEST:
        return facts | {"labels": None, "estimates": None, "error": None, "plausible": True}
    release = question.randomizer.estimate(reports)
    values = [release.value] if question.categories is None else release.value
    low, high = question.between or (0.0, 1.0)
    most = float(release.error(SURELY))
    return facts | {
        "labels": list(question.categories or ["mean"]),
        "estimates": [float(value) for value in values],
        "error": float(release.error(0.95)),
        "plausible": all(low - most <= value <= high + most for value in values),
    }


def _secret_of(path: Path) -> str:
    """Return what is secret in the address of a survey's results: from a file that only its owner can read,
    made at the first start."""
    with contextlib.suppress(FileExistsError), os.fdopen(_system.create_file(path), "w") as file:
        file.write(secrets.token_urlsafe(16))
    secret = path.read_text(encoding="ascii", errors="replace").strip()
    if len(secret) < 16:
        raise InvalidInput(f"{path} holds no secret of 16 characters or more. Remove it, for a new one.")
    return secret


def build_survey(
    path: Path, *, hosts: tuple[str, ...] = (), secure: bool = False, proxy: bool = False
) -> FastAPI:
    """Return the application of a survey.

    `hosts` are names under which browsers reach the server, beside localhost. Its results are shown at
    /results/SECRET, the same at every start (`app.state.results`). `secure`: it is reached by TLS. `proxy`:
    by way of a proxy, which limits what one client sends.
    """
    survey = load_survey(path)
    secret = _secret_of(path.with_name(path.name + ".results"))
    reports = ReportStore(path.with_name(path.name + ".reports"), survey)
    senders = Rates(RATE, BURST)
    app = FastAPI(title=survey.title, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.results, app.state.reports = secret, reports

    @app.get("/")
    async def page() -> HTMLResponse:
        return HTMLResponse(TEMPLATES.get_template("survey.html").render(survey=survey))

    @app.get("/survey.json")
    async def description() -> JSONResponse:
        return JSONResponse(survey.to_json())

    @app.get("/discreet-local.mjs")
    async def script() -> FileResponse:
        return FileResponse(local.SCRIPT, media_type="text/javascript")

    @app.post("/reports")
    async def take(request: Request) -> JSONResponse:
        check_origin(request)
        if not proxy and not senders.take(request.client.host if request.client else "?"):
            busy = "too many reports come from this address. Nothing was kept. Try again in a minute."
            return HTTPError("TooManyRequests", busy, {"Retry-After": "60"}).response()
        body = bodies.parse(ReportBody, await BoundedRequest(request, bodies.LARGE, BODY_SECONDS).body())
        if problem := _problem(survey, body.reports):
            return HTTPError("InvalidInput", f"{problem} Nothing was kept.").response()
        reports.add(body.reports)
        return JSONResponse({"kept": len(body.reports)})

    @app.get("/results/{token}")
    async def show(token: str) -> Response:
        if not secrets.compare_digest(token.encode(), secret.encode()):
            return HTTPError("NotFound", "there is no such page.").response()
        return HTMLResponse(_results_page(survey, reports))

    app.mount("/static", StaticFiles(directory=STATIC), name="static")

    @app.exception_handler(HTTPError)
    async def too_large(request: Request, error: HTTPError) -> Response:
        return error.response()

    @app.exception_handler(InvalidInput)
    async def invalid(request: Request, error: InvalidInput) -> Response:
        # The message does not repeat what was sent.
        message = 'reports are sent as {"reports": {question: report}}. Nothing was kept.'
        return HTTPError(type(error).__name__, message).response()

    @app.exception_handler(HTTPException)
    async def refused(request: Request, error: HTTPException) -> Response:
        kind = {404: "NotFound", 405: "MethodNotAllowed"}.get(error.status_code, "InvalidInput")
        message = f"{error.detail}. Nothing was kept."
        headers = dict(error.headers or {})
        return HTTPError(kind, message, headers, status=error.status_code).response()

    headers = HEADERS | {"Referrer-Policy": "no-referrer"} | (STRICT if secure else {})
    app.add_middleware(NamedHosts, names={"127.0.0.1", "localhost", "[::1]", *hosts}, headers=headers)
    return app


def _problem(survey: Survey, reports: dict[str, Any]) -> str | None:
    """Return what is wrong with some reports, without repeating them; None if nothing is."""
    questions = {question.name: question for question in survey.questions}
    for name, report in reports.items():
        if name not in questions:
            return "a report names a question that this survey does not ask."
        try:
            # Only to see whether it can be done: `estimate` checks the reports.
            questions[name].randomizer.estimate([report])
        except (ValueError, TypeError, OverflowError, KeyError, IndexError):
            return "a report is not well-formed."
    return None


def _results_page(survey: Survey, reports: ReportStore) -> str:
    lines = []
    for question in survey.questions:
        facts = results_of(question, reports.of(question.name))
        chart = ""
        if facts["estimates"] is not None:
            ends = [(value - facts["error"], value + facts["error"]) for value in facts["estimates"]]
            title = f"{question.text}: estimates with 95% intervals"
            chart = charts.bars(facts["labels"], facts["estimates"], ends, title)
        lines.append(facts | {"chart": chart})
    return TEMPLATES.get_template("results.html").render(survey=survey, lines=lines, fewest=FEWEST)
