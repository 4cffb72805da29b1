"""Lists what a worker process can do: one function for each verb, from a request in JSON to a result in JSON.

`handle` runs a verb, and says whether data may have been touched: the front process holds such replies back.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from ... import _require
from ..._errors import DiscreetError, InvalidInput, LedgerError
from ...curator import STEWARD
from ...curator.curator import BeingComputed, Withheld
from ...curator.policy import check_epsilon
from .. import requests
from . import bodies
from .sessions import Desk, Numbers, Request, Result, exact, names_entry

# A search with a secret number of runs enters its release after this share of its public time, whenever its
# work was done. docs/promise.md names the figure. Chosen by hand, not tuned.
SEARCHING = 0.6
# Characters of SQL from which on a preview counts as slow. Not tuned.
LONG_SQL = 2_000


@dataclass(frozen=True, slots=True)
class Verb:
    """How a verb is run: by the function `name` of a module of this package, loaded when first needed.

    `body`: the class (of `bodies`) of the body of its requests. `data`: the function may read the table for
    an answer, which is then held back. `live`: it may do so without a charge of its own, because the
    mechanism was charged when it was started. `slow`: what a request names can be so large that it may take
    long.
    """

    module: str
    name: str
    body: str = ""
    data: bool = False
    live: bool = False
    slow: bool = False

    def run(self, desk: Desk, request: Request) -> Result:
        """Run the verb on a request."""
        function: Callable[[Desk, Request], Result] = getattr(self.load(), self.name)
        return function(desk, request)

    def load(self) -> Any:
        """Return the module of the function."""
        return import_module(f"{__package__}.{self.module}")


# "open", "draft" and "create" read a table or its file, too, but only for the steward, or before a question.
VERBS: dict[str, Verb] = {
    "open": Verb("asking", "open_table"),
    "describe": Verb("asking", "describe"),
    "budget": Verb("asking", "budget"),
    "preview": Verb("asking", "preview", "PreviewBody"),
    "plan": Verb("planning", "plan", "PlanBody", slow=True),
    "explain": Verb("planning", "explain", "ExplainBody", slow=True),
    "odds": Verb("planning", "event_odds"),
    "ledger": Verb("bookkeeping", "ledger"),
    "check": Verb("bookkeeping", "check"),
    "spending": Verb("bookkeeping", "spending"),
    "releases": Verb("bookkeeping", "releases"),
    "policy": Verb("bookkeeping", "policy"),
    "note": Verb("bookkeeping", "note"),
    "run": Verb("asking", "parse_run", "RunBody"),
    "sql": Verb("asking", "sql", "QueryBody", data=True),
    "workload": Verb("asking", "workload", "WorkloadBody", data=True),
    "price": Verb("wire", "price", "MechanismBody"),
    "ask": Verb("wire", "ask", "AskBody", data=True),
    "start": Verb("wire", "start", "StartBody", data=True),
    "answer": Verb("wire", "answer", "AnswerBody", data=True, live=True),
    "feed": Verb("wire", "feed", "FeedBody", data=True, live=True),
    "all_live": Verb("wire", "all_live"),
    "live": Verb("wire", "live"),
    "fit": Verb("asking", "fit", "FitBody", data=True),
    "preview_fit": Verb("asking", "preview_fit", slow=True),
    "suggest": Verb("asking", "suggest", data=True),
    "synthesize": Verb("copies", "synthesize", "SynthesizeBody", data=True),
    "preview_copy": Verb("copies", "preview_copy", "SynthesizeBody", slow=True),
    "copies": Verb("copies", "copies", slow=True),
    "copy": Verb("copies", "copy", slow=True),
    "copy_rows": Verb("copies", "copy_rows", slow=True),
    "ask_copy": Verb("copies", "ask_copy", "CopyQueryBody", slow=True),
    "draft": Verb("bookkeeping", "draft"),
    "fit_of": Verb("bookkeeping", "fit_of"),
    "create": Verb("bookkeeping", "create"),
}


def takes_long(verb: str, options: dict[str, Any]) -> bool:
    """Return whether free work may take so long that others' previews must not wait for it. A preview takes
    about 10 CPU-ms, one with Gaussian noise 2 s (an accountant searches), and one of 900 sums with a required
    accuracy 1.4 s.

    Slow work that is not recognized here holds up only the previews of the person who asked: one person never
    has all preview workers.
    """
    described = options.get("mechanism")
    if described is not None:
        # of all mechanisms, one question in SQL is the quick one
        is_query = described.get("type") == "query.Query" and isinstance(described.get("sql"), str)
        options = described if is_query else {"queries": True}
    accountant_searches = options.get("noise") == "gaussian" or (
        verb == "odds" and bool(options.get("delta"))
    )
    slow_options = any(options.get(name) is not None for name in ("queries", "rho"))
    is_long = len(options.get("sql") or "") > LONG_SQL
    return VERBS[verb].slow or accountant_searches or slow_options or is_long


def reply_to(desk: Desk, message: bytes) -> bytes:
    """Return the reply to a request: a line of JSON, and after it the result, JSON too, which the front
    process passes on as it is. So does a request hold the body that was sent after its first line.

    A worker never dies of a request: an error that `handle` did not turn into a reply is one here. Only its
    class is told, as if data had been touched.
    """
    try:
        line, separator, sent = message.partition(b"\n")
        reply = handle(desk, json.loads(line) | {"sent": sent if separator else None})
        result = _written(reply.pop("result", None))
        return json.dumps(reply).encode() + b"\n" + result
    # A panic of an extension that is written in Rust is no Exception.
    except BaseException as error:
        return json.dumps({"error": _foreign_error(error), "touched": True}).encode()


def _written(result: Any) -> bytes:
    """Return a result as JSON, which has no infinities and no NaN: they are null."""
    try:
        return json.dumps(result, allow_nan=False).encode()
    except ValueError:
        return json.dumps(_finite(result), allow_nan=False).encode()


def _finite(value: Any) -> Any:
    """Return nested JSON with None in place of numbers that are not finite."""
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _with_options(request: Request, verb: Verb) -> Request:
    """Return a request with the options of the body that was sent with it, if there is one. The "part" of a
    run is the field of its body that has the verb's own options."""
    sent, part = request.get("sent"), request.get("part")
    if sent is None:
        return request
    body = bodies.parse(bodies.RunBody if part else getattr(bodies, verb.body), sent)
    options = bodies.fields_of(getattr(body, part) if part else body)
    return request | {"options": options | request["options"]}


def handle(desk: Desk, request: Request) -> dict[str, Any]:
    """Run a request, and return its reply: "result" or "error", and under "touched" whether data may have
    been read."""
    analyst, charges, curator = request["analyst"], 0, None
    verb = VERBS[request["verb"]]
    looking: AbstractContextManager[None] = nullcontext()
    try:
        request = _with_options(request, verb)
        if request.get("quick") and takes_long(request["verb"], request["options"]):
            return {"slow": True, "touched": False}
        if verb.data:
            curator = desk.session(request["dataset"], STEWARD).curator
            # Others can read the ledger while a search runs: it writes at a public time only.
            curator.sealed_for = desk.seconds * SEARCHING
            # One opening for all workers: how long a worker lives may depend on how long its questions take.
            curator.opening = request.get("opening", curator.opening)
            curator.withheld = _parse_withheld(request.get("withheld"))
            charges = len(curator.charged)
            if not verb.live:
                # One look for all that is read before the charge, and after the release. A live mechanism
                # looks again and again, until it is its question's turn.
                looking = curator.ledger.refreshed()
        with looking, _require.door() if verb.data else nullcontext():
            result = verb.run(desk, _checked_price(request, verb.data))
        # Without a new charge nothing was read: the answer came from the store. Live verbs read without one.
        touched = verb.data and (verb.live or curator is None or len(curator.charged) != charges)
        return {"result": result, "touched": touched}
    except Exception as error:
        touched = verb.data and (verb.live or curator is None or len(curator.charged) != charges)
        facts = {"error": _as_seen(desk, request, error_json(error, analyst)), "touched": touched}
        # The front process lets who asked wait for it, and ask again.
        return facts | ({"computing": True} if isinstance(error, BeingComputed) else {})


def _checked_price(request: Request, is_paid: bool) -> Request:
    """Return a request with its option "large_epsilon" beside the others; an epsilon above 20 is not paid
    without it. It is checked here, where people type it: in Python who writes code means it."""
    options = dict(request["options"])
    prices = [exact(options.get(name)) for name in ("epsilon", "rho")]
    if prices == [None, None] and options.get("within") is None and not is_paid:
        # such as a budget, for which the option is its own verb's
        return request
    large = bool(options.pop("large_epsilon", False))
    if is_paid and not large:
        check_epsilon(*prices)
    return request | {"options": options, "large_epsilon": large}


def _parse_withheld(facts: Any) -> Withheld | None:
    """Return the questions whose answers are still withheld, from the request (`PublicTimes.begin`)."""
    if facts is None:
        return None

    def moment(seconds: float) -> datetime:
        # Entries are dated in whole milliseconds. Two are subtracted, so that an entry of the same
        # millisecond counts as later.
        return datetime.fromtimestamp(seconds - 0.002, UTC)

    since = tuple((name, moment(begun)) for name, begun in facts["since"])
    dropped = tuple((name, moment(b), moment(e + 0.004)) for name, b, e in facts.get("dropped", ()))
    return Withheld(moment(facts["now"]), since, dropped)


def error_json(error: Exception, analyst: str = STEWARD) -> Result:
    """Return an error as JSON, as the analyst may see it.

    Errors of the ledger are told in full to stewards only, and to auditors, who read ledgers as the steward.
    Of an error that is not the library's own only the class is told.
    """
    if isinstance(error, LedgerError) and analyst != STEWARD:
        wrong = "the books of this dataset cannot be used now. Nothing was released."
        return requests.error_json(LedgerError(wrong, remedy="Tell the steward."))
    if isinstance(error, DiscreetError):
        kind = "InvalidInput" if isinstance(error, BeingComputed) else ""
        return requests.error_json(error, kind)
    return _foreign_error(error)


def _foreign_error(error: BaseException) -> Result:
    """Return the JSON of an error of which only the class is told."""
    return requests.error_json(
        InvalidInput(
            f"this could not be computed ({type(error).__name__}). Nothing was released; what the ledger "
            "shows as charged stays charged."
        )
    )


def _as_seen(desk: Desk, request: Request, error: Result) -> Result:
    """Return an error as an analyst may see it: entries have the numbers that the analyst sees (`sessions`),
    and the server's paths are left out."""
    if request["analyst"] == STEWARD or request["dataset"] is None:
        return error
    own_numbers = Numbers([])
    # No number is shown where the ledger cannot be read.
    with suppress(Exception):
        if not names_entry(request["options"]):
            own_numbers = desk.numbers(request["dataset"], request["analyst"])
    dataset = request["dataset"]
    texts = {name: text for name, text in error.items() if isinstance(text, str)}
    return error | {n: own_numbers.renumbered(_without_paths(t, dataset)) for n, t in texts.items()}


def _without_paths(text: str, dataset: dict[str, str]) -> str:
    """Return a text without the server's paths."""
    for field in ("schema", "ledger", "data"):
        path = dataset[field].partition("::")[0]
        text = text.replace(path, dataset["name"]).replace(str(Path(path).parent), "...")
    return text
