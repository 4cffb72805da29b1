"""Runs with a secret number of steps: private tuning, where how many trials there were is part of what hides
the best of them.

The ledger must not tell the number. So a run takes as many *rounds* as the public cap, each with one version
of one sealed blob of one public size; a round after the last step does nothing but seal the state again. No
counter of steps is written, no progress is shown. A round that was lost in a crash is run again from the
sealed state before it, and not forfeited: forfeiting would change the distribution of the number of steps,
which the price is computed for; and nobody has seen what was lost.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput, LedgerError
from ..accounting import events
from ..accounting.caps import requested_price_of
from ..mechanisms.protocols import Release, SecretlyStepped, SecretRun, check_source, rehearse
from .accounts import periods_field
from .charges import SPENDING
from .identities import identity_of
from .ledger import Entry, computing
from .policy import STEWARD
from .tickets import alone

if TYPE_CHECKING:
    from .curator import Curator

NAME = "run"


def run(
    curator: Curator,
    mechanism: SecretlyStepped,
    *,
    number: int | None = None,
    analyst: str = STEWARD,
    text: str | None = None,
    pace: float = 0.0,
    seconds: float = 0.0,
) -> Release:
    """Pay for a run with a secret number of steps, and run it; with the `number` of its charge, go on with
    one that was interrupted.

    Guarantee: the entries of the ledger and the files of the vault, but for their times, are the same for
               every number of steps up to the cap; every step that counts was run once, from the state
               before.
    Proof:     rounds, blobs and sizes depend on `length` and `blob_size` alone; a blob is encrypted. A round
               is committed by the entry of its blob; what a crash lost was never committed, and nobody saw
               it.
    Assumes:   as `Vault`; that a process ends does not depend on what it computes. **Running time is not
               hidden**: whoever can watch the machine, or the times of the entries, sees when steps end. With
               a `pace`, in seconds, every round lasts at least that long: if no step takes longer, times tell
               nothing either. With `seconds`, for a run that can be watched from outside (on a server),
               nothing of any step is written before that public time has passed, and nothing at all where the
               steps took longer: the times of entries then tell nothing, and that a run came to no end in its
               time tells that alone.
    """
    _check_run(curator, mechanism, pace)
    _require.non_negative(seconds=seconds)
    moment = time.monotonic() + seconds if seconds else None
    charge = (
        _charge_new_run(curator, mechanism, analyst, text)
        if number is None
        else _find_charge(curator, mechanism, number, analyst)
    )
    with alone(Path(curator.ledger.path), f"run-{charge.seq}"):
        state = _state(curator, mechanism, charge, moment)
        if moment is not None:
            _take_all(curator, mechanism, charge, state, moment)
        while (steps_taken := curator.vault.version(charge.seq, NAME)) < mechanism.length:
            begun = time.monotonic()
            with _guard(curator, charge):
                if not state.done:
                    with computing(curator.ledger), state:
                        state.step()
                raw = _dump(mechanism, state)
            time.sleep(max(0.0, begun + pace - time.monotonic()))
            curator.vault.put(charge.seq, NAME, raw, size=mechanism.blob_size)
            assert curator.vault.version(charge.seq, NAME) == steps_taken + 1
        return _load_release(curator, charge, state)


def _take_all(
    curator: Curator, mechanism: SecretlyStepped, charge: Entry, state: SecretRun, moment: float
) -> None:
    """Take all steps in memory, and return at the moment whatever their number is; the rounds after this do
    nothing but seal the state.

    What a crash loses before is run again from the sealed start, with the same number of steps.
    """
    left = mechanism.length - curator.vault.version(charge.seq, NAME)
    with _guard(curator, charge, moment):
        while not state.done and left > 0 and time.monotonic() < moment:
            with computing(curator.ledger), state:
                state.step()
            left -= 1
        _dump(mechanism, state)
    if time.monotonic() >= moment:
        raise curator.failure(charge)
    _wait(moment)


def _wait(moment: float | None) -> None:
    if moment is not None:
        time.sleep(max(0.0, moment - time.monotonic()))


def _charge_new_run(curator: Curator, mechanism: SecretlyStepped, analyst: str, text: str | None) -> Entry:
    """Charge a new run, and return its charge."""
    requested_price = requested_price_of(mechanism)
    curator._prepare(mechanism.event, analyst, requested_price)
    with curator.ledger.writing() as writer:
        facts = {"text": text, "trusted": True, "rounds": mechanism.length, "size": mechanism.blob_size}
        return curator._charge(
            writer, mechanism.event, analyst, requested_price, **facts, identity=identity_of(mechanism)
        )


def _find_charge(curator: Curator, mechanism: SecretlyStepped, number: int, analyst: str) -> Entry:
    """Return the charge of a run that was begun before, with all that it was begun with: steps before and
    after are alike, which the price of their best is computed for."""
    _require.integer(number=number)
    charge = curator.ledger.entry(number)
    during = periods_field(curator._in_force(curator.ledger).budget, curator.periods).get("periods")
    facts = {"rounds": mechanism.length, "size": mechanism.blob_size, "analyst": analyst, "periods": during}
    same = charge.kind == SPENDING and all(charge.body.get(name) == fact for name, fact in facts.items())
    identity = identity_of(mechanism)
    alike = identity is not None and charge.body.get("identity") == identity
    if not same or not alike or events.from_json(charge.body["event"]) != mechanism.event:
        raise InvalidInput(
            f"entry {number} of the ledger is not the start of this run: it goes on with exactly what it was "
            f"begun with (candidates, their parameters, trials, price). Nothing was charged or run."
        )
    if curator.ledger.last("failed", str(number)) is not None:
        raise InvalidInput(
            f"the run of entry {number} of the ledger has failed, and is not gone on with. Nothing was run."
        )
    return charge


def _state(curator: Curator, mechanism: SecretlyStepped, charge: Entry, moment: float | None) -> SecretRun:
    """Return the state to go on from: the newest one in the vault, or that of a run which has just begun."""
    if curator.ledger.last("blob", f"{charge.seq}:{NAME}") is None:
        with _guard(curator, charge, moment):
            with computing(curator.ledger):
                state = mechanism.start(curator.source, entropy=curator._entropy)
            raw = _dump(mechanism, state)
        curator.vault.put(charge.seq, NAME, raw, size=mechanism.blob_size)
        return state
    raw, steps_taken = curator.vault.get(charge.seq, NAME), curator.vault.version(charge.seq, NAME)
    with _guard(curator, charge, moment), computing(curator.ledger):
        return mechanism.restore(curator.source, raw, steps_taken, entropy=curator._entropy)


def _load_release(curator: Curator, charge: Entry, state: SecretRun) -> Release:
    """Return the release of a finished run, and enter that there is one."""
    with _guard(curator, charge):
        if not state.done:
            raise ValueError("more steps than the public cap")
        release = state.release()
        if not isinstance(release, Release) or not release.private:
            raise TypeError("a run gives a private Release")
    with curator.ledger.writing() as writer:
        if writer.last("release", str(charge.seq)) is None:
            body = {"charge": charge.seq, "analyst": charge.body["analyst"]}
            writer.append("release", body, topic=str(charge.seq))
    return release


@contextmanager
def _guard(curator: Curator, charge: Entry, moment: float | None = None) -> Iterator[None]:
    """End a run whose computation fails, and withhold why: how it failed may depend on the data, and on the
    number of steps; so may when, which is entered at the `moment`."""
    try:
        yield
    except LedgerError:
        raise
    except Exception:
        if moment is not None and time.monotonic() >= moment:
            raise curator.failure(charge) from None
        _wait(moment)
        with curator.ledger.writing() as writer:
            body = {"charge": charge.seq, "analyst": charge.body["analyst"]}
            writer.append("failed", body, topic=str(charge.seq))
        raise curator.failure(charge) from None


def _dump(mechanism: SecretlyStepped, state: SecretRun) -> bytes:
    raw = state.dump()
    if len(raw) > mechanism.blob_size:
        raise ValueError("the state is larger than the public size of its blobs")
    return raw


def _check_run(curator: Curator, mechanism: Any, pace: Any) -> None:
    """Refuse what cannot run in a secret number of steps, before anything is charged."""
    if isinstance(mechanism, type) or not isinstance(mechanism, SecretlyStepped):
        raise InvalidInput(
            f"{type(mechanism).__name__} does not run in a secret number of steps: it has no "
            f"`blob_size`. Nothing was charged or read."
        )
    _require.non_negative(pace=pace)
    _require.integer(length=mechanism.length, blob_size=mechanism.blob_size, at_least=1)
    check_source(mechanism.public, curator.source, examples=True)
    rehearse(mechanism, curator.source)
    curator.vault.blobs.check()
