"""What a worker process can be asked to do: one function for each verb, from JSON options to JSON results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from ..._errors import DiscreetError, LedgerError
from ...curator import STEWARD, Curator, books
from ...curator.withholding import Withheld
from .numbering import Numbers, names_entry
from .sessions import Desk, Request, Result

# the share of its public time after which a search with a secret number of runs writes what it has
SEARCHING = 0.6


@dataclass(frozen=True, slots=True)
class Verb:
    """How a verb is run: a function of a module beside this one, which is loaded when it is first needed.

    `data`: it may read the table, `live`: without a charge of its own.
    """

    home: str
    name: str
    data: bool = False
    live: bool = False

    def run(self, desk: Desk, request: Request) -> Result:
        function: Callable[[Desk, Request], Result] = getattr(self.load(), self.name)
        return function(desk, request)

    def load(self) -> Any:
        return import_module(f"{__package__}.{self.home}")


VERBS: dict[str, Verb] = {
    "open": Verb("asking", "open_table"),
    "describe": Verb("asking", "describe"),
    "budget": Verb("asking", "budget"),
    "preview": Verb("asking", "preview"),
    "plan": Verb("planning", "plan"),
    "explain": Verb("planning", "explain"),
    "odds": Verb("planning", "event_odds"),
    "ledger": Verb("bookkeeping", "ledger"),
    "check": Verb("bookkeeping", "check"),
    "spending": Verb("bookkeeping", "spending"),
    "releases": Verb("bookkeeping", "releases"),
    "policy": Verb("bookkeeping", "policy"),
    "note": Verb("bookkeeping", "note"),
    "sql": Verb("asking", "sql", data=True),
    "workload": Verb("asking", "workload", data=True),
    "ask": Verb("asking", "ask", data=True),
    "start": Verb("asking", "start", data=True),
    "watch": Verb("asking", "watch", data=True),
    "answer": Verb("asking", "answer", data=True, live=True),
    "feed": Verb("streams", "feed", data=True, live=True),
    "stream": Verb("streams", "stream", data=True),
    "tick": Verb("streams", "tick", data=True, live=True),
    "streams": Verb("streams", "streams"),
    "read_stream": Verb("streams", "read_stream"),
    "fit": Verb("asking", "fit", data=True),
    "synthesize": Verb("copies", "synthesize", data=True),
    "preview_copy": Verb("copies", "preview_copy"),
    "copies": Verb("copies", "copies"),
    "copy": Verb("copies", "copy"),
    "copy_rows": Verb("copies", "copy_rows"),
    "ask_copy": Verb("copies", "ask_copy"),
    "draft": Verb("bookkeeping", "draft"),
    "create": Verb("bookkeeping", "create"),
}


def handle(desk: Desk, request: Request) -> dict[str, Any]:
    """Do what a request asks; the reply says whether data may have been touched."""
    analyst, before, curator = request["analyst"], None, None
    verb = VERBS[request["verb"]]
    try:
        if verb.data:
            curator = desk.session(request["dataset"], analyst).curator
            # a search may be watched while it runs: its entries are written at a public time
            curator.sealed_for = desk.seconds * SEARCHING
            curator.withheld = _parse_withheld(request.get("withheld"))
            before = _last_charge(curator, analyst)
        result = verb.run(desk, request)
        # a live question is answered without a charge of its own
        touched = verb.data and (verb.live or _last_charge(curator, analyst) != before)
        return {"result": result, "touched": touched}
    except Exception as error:
        touched = verb.data and (verb.live or curator is None or _has_charged(curator, analyst, before))
        reply = _without_paths(error_json(error, analyst), request)
        return {"error": _renumber_entries(desk, request, reply), "touched": touched}


def _parse_withheld(facts: Any) -> Withheld | None:
    """Return the calls whose results are still withheld, from the request."""
    if facts is None:
        return None

    def moment(seconds: float) -> datetime:
        # entries have times in whole milliseconds
        return datetime.fromtimestamp(seconds - 0.002, UTC)

    return Withheld(moment(facts["now"]), tuple((name, moment(begun)) for name, begun in facts["since"]))


def _last_charge(curator: Any, analyst: str) -> int:
    newest = curator.ledger.last(books.SPENDING, analyst)
    return 0 if newest is None else int(newest.seq)


def _has_charged(curator: Curator, analyst: str, before: int | None) -> bool:
    """Return whether the analyst was charged since; True where that cannot be read."""
    try:
        return _last_charge(curator, analyst) != before
    except DiscreetError:
        return True


def error_json(error: Exception, analyst: str = STEWARD) -> dict[str, Any]:
    """Return what may be said of an error. Paths and faults of the server are told to stewards, and to
    auditors, who read ledgers as the steward."""
    if isinstance(error, LedgerError) and analyst != STEWARD:
        return {
            "kind": "LedgerError",
            "message": "the books of this dataset cannot be used now. Nothing was released. Tell the "
            "steward.",
        }
    if isinstance(error, DiscreetError):
        return {"kind": type(error).__name__, "message": str(error)}
    return {
        "kind": "InvalidInput",
        "message": f"this could not be computed ({type(error).__name__}). Nothing was released; what "
        f"the ledger "
        f"shows as charged stays charged.",
    }


def _renumber_entries(desk: Desk, request: Request, error: dict[str, Any]) -> dict[str, Any]:
    """Name entries in a message for an analyst by the numbers that they see."""
    if request["analyst"] == STEWARD or request["dataset"] is None:
        return error
    try:
        if names_entry(request["options"]):
            own_numbers = Numbers([])
        else:
            own_numbers = desk.numbers(request["dataset"], request["analyst"])
    except Exception:
        # without its ledger no number can be told
        own_numbers = Numbers([])
    return error | {"message": own_numbers.renumbered(error["message"])}


def _without_paths(error: dict[str, Any], request: dict[str, Any]) -> dict[str, Any]:
    """Take the server's paths out of a message for an analyst."""
    if request["analyst"] == STEWARD or request["dataset"] is None:
        return error
    message = error["message"]
    for place in ("schema", "ledger", "data"):
        path = request["dataset"][place].partition("::")[0]
        message = message.replace(path, request["dataset"]["name"])
        message = message.replace(str(Path(path).parent), "...")
    return error | {"message": message}
