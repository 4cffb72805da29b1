"""Request handlers of a worker for streams and their feeding: started for one price, given new rows, read at
any time."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from ... import _registry
from ..._errors import DiscreetError, InvalidInput, PrivateFact
from ...curator import STEWARD, values
from ...curator.charges import SPENDING
from ...curator.tickets import STATE, TICKET
from ...mechanisms.protocols import Interactive, as_of
from ...session import Session
from ...session.streams import Stream
from ...streaming import ContinualCounter, Latest
from .asking import release_json
from .sessions import Desk, Request, Result, entry_number, numbers, session_of, shown_number


def own_mechanism(desk: Desk, request: Request, session: Session, kind: Any = Interactive) -> tuple[Any, int]:
    """Return the live mechanism that a number means, which who asks has started, and its entry; the steward
    may go on with all.

    A number that means nothing and one that is another's are told alike: how long the ledger is says what
    others do.
    """
    analyst, number = request["analyst"], request["options"]["number"]
    entry = entry_number(desk, request, number)
    try:
        body = session.ledger.entry(entry).body
    except DiscreetError:
        body = {}
    is_own = analyst == STEWARD or body.get("analyst") == analyst
    mechanism = _registry.from_json(body["mechanism"]) if is_own and body.get("mechanism") else None
    if not isinstance(mechanism, kind):
        what = "stream" if kind is ContinualCounter else "live mechanism"
        raise InvalidInput(f"number {number} is no {what} of yours. Nothing was charged or read.")
    return mechanism, entry


def stream(desk: Desk, request: Request) -> Result:
    """Pay for a stream: a count or a sum that is published again at every tick."""
    session, options = session_of(desk, request)
    started = session.stream(options.pop("sql"), **numbers(options))
    number = shown_number(desk, request, started.number)
    return {"number": number, "mechanism": _registry.to_json(started.counter)}


def streams(desk: Desk, request: Request) -> Result:
    """List the streams that the caller has started; all for the steward."""
    session, tag = desk.session(request["dataset"], request["analyst"]), _registry.tag_of(ContinualCounter)
    lines = []
    for entry in session.ledger.entries(kind=SPENDING):
        described = entry.body.get("mechanism") or {}
        is_own = request["analyst"] in (STEWARD, entry.body.get("analyst"))
        if is_own and described.get("type") == tag:
            number = shown_number(desk, request, entry.seq)
            line = {"number": number, "time": entry.time[:16] + "Z", "clock": described.get("clock"),
                    "horizon": described.get("horizon")}  # fmt: skip
            lines.append(line | {"analyst": entry.body.get("analyst")})
    return {"streams": lines[-request["options"]["last"] :]}


def read_stream(desk: Desk, request: Request) -> Result:
    """Return what a stream has released, once the time of each tick has come; free."""
    session, options = session_of(desk, request)
    counter, number = own_mechanism(desk, request, session, ContinualCounter)
    horizon = datetime.fromtimestamp(options["horizon"], UTC)
    begun = {
        int(entry.body["version"]): datetime.fromisoformat(entry.time)
        for entry in session.ledger.entries(kind=TICKET)
        if entry.body["charge"] == number and not entry.body.get("attempt")
    }
    released, ticks, latest = [], [], _registry.to_json(Latest())
    for entry in session.ledger.entries(kind=STATE):
        # an old release that was given again is no tick
        again = entry.body.get("question") == latest
        if entry.body["charge"] == number and "value" in entry.body and not again:
            if begun[int(entry.body["version"])] > horizon:
                break
            released.append(entry.body["value"])
            ticks.append(entry.body.get("table"))
    return {
        "number": options["number"],
        "mechanism": _registry.to_json(counter),
        "steps": len(released),
        "ticks": ticks,
        "history": released,
        "error": float(counter.error(options.get("confidence", 0.95), max(1, len(released)))),
    }


def tick(desk: Desk, request: Request) -> Result:
    """Close one tick of a stream: with the rows of its clock, or with rows that the steward sends."""
    session, options = session_of(desk, request)
    counter, number = own_mechanism(desk, request, session, ContinualCounter)
    rows = options.get("rows")
    if rows is not None:
        if request["analyst"] != STEWARD:
            raise PrivateFact(
                "new rows come from the steward. Nothing was read or released. An analyst closes the ticks "
                "of a stream with a clock, whose rows are in the table."
            )
        rows = _decode_rows(rows)
    current = as_of(counter, session.public)
    session.curator.resume(current, number, analyst=session.analyst)
    return release_json(Stream(session, current, number).feed(rows, tick=options.get("tick")))


def _decode_rows(rows: dict[str, Any]) -> Any:
    """Return the rows of a request: columns by name, or the Arrow table whose base64 stands under "arrow"."""
    # A list under "arrow" is a column of that name.
    if rows.keys() == {"arrow"} and isinstance(rows["arrow"], str):
        return values.decode(rows)
    if any(not isinstance(column, list) for column in rows.values()):
        raise InvalidInput("rows are columns by name, each a list. Nothing was read or released.")
    return rows


def feed(desk: Desk, request: Request) -> Result:
    """Let a live mechanism go on with the table as the server has it now: its next version."""
    session, options = session_of(desk, request)
    mechanism, number = own_mechanism(desk, request, session)
    fed = session.feed(mechanism, number=number)
    release = None if fed.release is None else release_json(fed.release)
    described = _registry.to_json(fed.handle.mechanism)
    return {"number": options["number"], "mechanism": described, "release": release}
