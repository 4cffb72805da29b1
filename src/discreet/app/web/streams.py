"""Handles requests to a worker for streams, and for live mechanisms on a new version of the table.

A live mechanism (`Interactive`) is paid for once, when it is started, and then answers several times; its
number is that of its charge. A stream is one that gets new rows at each tick, and releases its count or sum.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from ... import _registry
from ..._errors import DiscreetError, InvalidInput, PrivateFact
from ...curator import STEWARD, values
from ...curator.accounts import SPENDING
from ...curator.tickets import STATE, TICKET
from ...mechanisms.protocols import Interactive, as_of
from ...session import Session
from ...session.streams import Stream
from ...streaming import ContinualCounter, Latest
from .asking import release_json
from .sessions import Desk, Request, Result, entry_number, numbers, session_of, shown_number


def own_mechanism(desk: Desk, request: Request, session: Session, kind: Any = Interactive) -> tuple[Any, int]:
    """Return the live mechanism of the class `kind` with the number in the request, and the ledger's number
    of its charge. The caller must have started it; the steward may use all.

    An unknown number and another person's give the same error, because the length of the ledger tells what
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
        raise InvalidInput(f"number {number} is no {what} of yours.")
    return mechanism, entry


def stream(desk: Desk, request: Request) -> Result:
    """Pay for a stream: a count or a sum that is published again at every tick."""
    session, options = session_of(desk, request)
    started = session.stream(options.pop("sql"), **numbers(options))
    number = shown_number(desk, request, started.number)
    return {"number": number, "mechanism": _registry.to_json(started.counter)}


def streams(desk: Desk, request: Request) -> Result:
    """List the streams that the caller has started; for the steward, all streams."""
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
    """Return what a stream has released so far, up to the last tick whose public time is over; free."""
    session, options = session_of(desk, request)
    counter, number = own_mechanism(desk, request, session, ContinualCounter)
    horizon = datetime.fromtimestamp(options["horizon"], UTC)
    # When the work on each tick began. A tick leads to the next version of the mechanism's state; an entry,
    # the ticket, announces it before data are read. Later attempts at a version do not count.
    begun = {
        int(entry.body["version"]): datetime.fromisoformat(entry.time)
        for entry in session.ledger.entries(kind=TICKET)
        if entry.body["charge"] == number and not entry.body.get("attempt")
    }
    released, ticks, latest = [], [], _registry.to_json(Latest())
    for entry in session.ledger.entries(kind=STATE):
        # The question `Latest` repeats an old release, and is no tick.
        is_repeated = entry.body.get("question") == latest
        if entry.body["charge"] == number and "value" in entry.body and not is_repeated:
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
    """Close one tick of a stream: with the table's rows of that tick if the stream has a clock (a column of
    dates), else with rows that the steward sends."""
    session, options = session_of(desk, request)
    counter, number = own_mechanism(desk, request, session, ContinualCounter)
    rows = options.get("rows")
    if rows is not None:
        if request["analyst"] != STEWARD:
            raise PrivateFact(
                "new rows come from the steward.",
                remedy="An analyst closes the ticks of a stream with a clock, whose rows are in the table.",
            )
        rows = _decode_rows(rows)
    # The stream was started on an earlier version of the table.
    current = as_of(counter, session.public)
    # Checks that the caller may continue the stream; the handle is not needed.
    session.curator.resume(current, number, analyst=session.analyst)
    return release_json(Stream(session, current, number).feed(rows, tick=options.get("tick")))


def _decode_rows(rows: dict[str, Any]) -> Any:
    """Return the rows of a request: columns by name, or the Arrow table whose base64 stands under "arrow"."""
    # A list under "arrow" is a column of that name.
    if rows.keys() == {"arrow"} and isinstance(rows["arrow"], str):
        try:
            return values.decode(rows)
        except (ValueError, OSError, pa.ArrowException):
            raise InvalidInput(
                "the rows are no Arrow stream in base64.",
                remedy="Write them with pyarrow.ipc.new_stream, or send columns by name.",
            ) from None
    if any(not isinstance(column, list) for column in rows.values()):
        raise InvalidInput("rows are columns by name, each a list.")
    return rows


def feed(desk: Desk, request: Request) -> Result:
    """Continue a live mechanism with the table as the server has it now, the next version of the table."""
    session, options = session_of(desk, request)
    mechanism, number = own_mechanism(desk, request, session)
    fed = session.feed(mechanism, number=number)
    release = None if fed.release is None else release_json(fed.release)
    described = _registry.to_json(fed.handle.mechanism)
    return {"number": options["number"], "mechanism": described, "release": release}
