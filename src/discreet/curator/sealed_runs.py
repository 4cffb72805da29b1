"""Runs mechanisms with a secret number of steps: private tuning, whose guarantee needs the number of trials
to be random and secret.

The ledger must not tell the number of steps. So every run takes the same number of *rounds*, a public cap
(`mechanism.length`). Each round stores one version of the run's sealed (encrypted) state, padded to one
public size (`mechanism.blob_size`). Rounds after the last step only seal the same state again. No counter of
steps is written, and no progress is shown. A round that was lost in a crash is run again from the sealed
state before it. It is not forfeited as in `segments`: that would change the distribution of the number of
steps, for which the price is computed; and nobody has seen the result that was lost.
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
from .segments import noting_interruption
from .tickets import alone

if TYPE_CHECKING:
    from .curator import Curator

# The name of the state's blob in the vault; never changes.
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
    """Pay for a run with a secret number of steps, and run it; with the `number` of its charge, continue a
    run that was interrupted.

    Guarantee: unless a step fails, the entries of the ledger and the files of the vault, except for their
               times, look the same for every number of steps up to the cap; every step in the result was run
               once, from the state that the step before has left.
    Proof:     the number of rounds and the size of blobs are `length` and `blob_size`; a blob is encrypted. A
               round is committed by the entry of its blob. A round that a crash lost was not committed, and
               nobody saw it.
    Assumes:   what `Vault` assumes; and that a process does not end because of the values that it computes.
               **Running time is not hidden** by default: whoever can watch the machine, or the times of the
               entries, sees when steps end. With `pace`, every round lasts at least that many seconds: if no
               step takes longer, the times tell nothing. With `seconds`, for a run that can be watched from
               outside (on a server), nothing of any step is written before that many seconds have passed
               since the call, and nothing at all if the steps take longer or fail after that. The times of
               entries then tell nothing, and a run that did not finish in time tells only that.
    """
    _check_run(curator, mechanism, pace)
    _require.non_negative(seconds=seconds)
    # A moment on the monotonic clock: all steps must end before it, and nothing of them is written before it.
    deadline = time.monotonic() + seconds if seconds else None
    charge = (
        _charge_new_run(curator, mechanism, analyst, text)
        if number is None
        else _find_charge(curator, mechanism, number, analyst)
    )
    advice = (
        f"This run (entry {charge.seq} of the ledger) stays paid for: with the same candidates and "
        f"number={charge.seq} it goes on, free."
    )
    with noting_interruption(advice), alone(Path(curator.ledger.path), f"run-{charge.seq}"):
        secret_run = _load_run(curator, mechanism, charge, deadline)
        if deadline is not None:
            _take_all(curator, mechanism, charge, secret_run, deadline)
        # Version 0 of the blob is the state before the first round.
        while (rounds := curator.vault.version(charge.seq, NAME)) < mechanism.length:
            begun = time.monotonic()
            with _guard(curator, charge):
                if not secret_run.done:
                    with computing(curator.ledger), secret_run:
                        secret_run.step()
                raw = _dump(mechanism, secret_run)
            time.sleep(max(0.0, begun + pace - time.monotonic()))
            curator.vault.put(charge.seq, NAME, raw, size=mechanism.blob_size)
            assert curator.vault.version(charge.seq, NAME) == rounds + 1
        return _enter_release(curator, charge, secret_run)


def _take_all(
    curator: Curator, mechanism: SecretlyStepped, charge: Entry, secret_run: SecretRun, deadline: float
) -> None:
    """Take all steps in memory, and return at the deadline, whatever the number of steps; the rounds after
    this only seal the state. Raises if the steps end after the deadline.

    Steps that a crash loses before the deadline are run again, from the state that was sealed last. The run
    then has the same number of steps, which is part of that state.
    """
    rounds_left = mechanism.length - curator.vault.version(charge.seq, NAME)
    with _guard(curator, charge, deadline):
        while not secret_run.done and rounds_left > 0 and time.monotonic() < deadline:
            with computing(curator.ledger), secret_run:
                secret_run.step()
            rounds_left -= 1
        # Raises if the state is too large, before anything is written.
        _dump(mechanism, secret_run)
    if time.monotonic() >= deadline:
        raise curator.failure(charge)
    _wait_until(deadline)


def _wait_until(deadline: float) -> None:
    """Wait until the deadline, a moment on the monotonic clock."""
    time.sleep(max(0.0, deadline - time.monotonic()))


def _charge_new_run(curator: Curator, mechanism: SecretlyStepped, analyst: str, text: str | None) -> Entry:
    """Charge a new run, and return the entry of its charge."""
    requested_price = requested_price_of(mechanism)
    curator._prepare(mechanism.event, analyst, requested_price)
    with curator.ledger.writing() as writer:
        # "trusted": the entry holds no description from which the mechanism could be built.
        facts = {"text": text, "trusted": True, "rounds": mechanism.length, "size": mechanism.blob_size}
        return curator._charge(
            writer, mechanism.event, analyst, requested_price, **facts, identity=identity_of(mechanism)
        )


def _find_charge(curator: Curator, mechanism: SecretlyStepped, number: int, analyst: str) -> Entry:
    """Return the charge of a run that was started before; refuse a mechanism that differs in anything from
    the one that it was started with.

    The price of the best of several trials is computed for trials that are all drawn in the same way.
    """
    _require.integer(number=number)
    charge = curator.ledger.entry(number)
    periods = periods_field(curator._in_force(curator.ledger).budget, curator.periods).get("periods")
    facts = {"rounds": mechanism.length, "size": mechanism.blob_size, "analyst": analyst, "periods": periods}
    same_facts = charge.kind == SPENDING and all(
        charge.body.get(name) == fact for name, fact in facts.items()
    )
    identity = identity_of(mechanism)
    same_identity = identity is not None and charge.body.get("identity") == identity
    if not same_facts or not same_identity or events.from_json(charge.body["event"]) != mechanism.event:
        raise InvalidInput(
            f"entry {number} of the ledger is not the start of this run: it goes on with exactly what it was "
            f"begun with (candidates, their parameters, trials, price, analyst, periods). Nothing was "
            f"charged or run."
        )
    if curator.ledger.last("failed", str(number)) is not None:
        raise InvalidInput(
            f"the run of entry {number} of the ledger has failed, and is not gone on with. Nothing was run."
        )
    return charge


def _load_run(
    curator: Curator, mechanism: SecretlyStepped, charge: Entry, deadline: float | None
) -> SecretRun:
    """Return the run in the state to continue from: the newest one in the vault, or for a new run its initial
    state, which is stored first."""
    if curator.ledger.last("blob", f"{charge.seq}:{NAME}") is None:
        with _guard(curator, charge, deadline):
            with computing(curator.ledger):
                secret_run = mechanism.start(curator.source, entropy=curator._entropy)
            raw = _dump(mechanism, secret_run)
        curator.vault.put(charge.seq, NAME, raw, size=mechanism.blob_size)
        return secret_run
    raw, rounds = curator.vault.get(charge.seq, NAME), curator.vault.version(charge.seq, NAME)
    with _guard(curator, charge, deadline), computing(curator.ledger):
        return mechanism.restore(curator.source, raw, rounds, entropy=curator._entropy)


def _enter_release(curator: Curator, charge: Entry, secret_run: SecretRun) -> Release:
    """Return the release of a finished run, and enter in the ledger that it was released."""
    # The texts of the errors raised here are for readers of the code: `_guard` replaces the errors.
    with _guard(curator, charge):
        if not secret_run.done:
            raise ValueError("more steps than the public cap")
        release = secret_run.release()
        if not isinstance(release, Release) or not release.private:
            raise TypeError("a run gives a private Release")
    with curator.ledger.writing() as writer:
        if writer.last("release", str(charge.seq)) is None:
            body = {"charge": charge.seq, "analyst": charge.body["analyst"]}
            writer.append("release", body, topic=str(charge.seq))
    return release


@contextmanager
def _guard(curator: Curator, charge: Entry, deadline: float | None = None) -> Iterator[None]:
    """Raise an error that does not say why, if the computation in the block fails, and enter that the run has
    failed: why and when it failed may depend on the data, and on the number of steps.

    With a `deadline` the failure is entered at that moment. After it, nothing is entered: a run that fails
    late looks like one that takes too long.
    """
    try:
        yield
    except LedgerError:
        # It speaks of the ledger, not of the data.
        raise
    except Exception:
        if deadline is not None:
            if time.monotonic() >= deadline:
                raise curator.failure(charge) from None
            _wait_until(deadline)
        with curator.ledger.writing() as writer:
            body = {"charge": charge.seq, "analyst": charge.body["analyst"]}
            writer.append("failed", body, topic=str(charge.seq))
        raise curator.failure(charge) from None


def _dump(mechanism: SecretlyStepped, secret_run: SecretRun) -> bytes:
    """Return the bytes of a run's state; raises ValueError if they are more than the public size."""
    raw = secret_run.dump()
    if len(raw) > mechanism.blob_size:
        raise ValueError("the state is larger than the public size of its blobs")
    return raw


def _check_run(curator: Curator, mechanism: Any, pace: Any) -> None:
    """Refuse, before anything is charged, a mechanism that cannot run in a secret number of steps."""
    if isinstance(mechanism, type) or not isinstance(mechanism, SecretlyStepped):
        raise InvalidInput(
            f"{type(mechanism).__name__} does not run in a secret number of steps: it lacks an attribute of "
            f"SecretlyStepped, such as `blob_size`. Nothing was charged or read."
        )
    _require.non_negative(pace=pace)
    _require.integer(length=mechanism.length, blob_size=mechanism.blob_size, at_least=1)
    check_source(mechanism.public, curator.source, examples=True)
    rehearse(mechanism, curator.source)
    curator.vault.blobs.check()
