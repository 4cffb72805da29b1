"""Makes and checks receipts: one released number with its question, price and error, and a proof that a
ledger has it, which needs nothing of the rest of the ledger.

The entries are the leaves of a Merkle tree as in Certificate Transparency (RFC 6962, RFC 9162 section 2.1).
A receipt has the two entries of a release (its charge and its value), the path of each to the root, and the
number of entries; the ledger's key signs all of it. Two receipts of one ledger for the same number of entries
have the same root: a steward who shows two histories has signed the proof of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__, _registry, _require
from .. import accounting as acc
from .._errors import DiscreetError, InvalidInput, Unsupported
from .._round import UpperAmount
from .._text import visible
from ..accounting import events
from ..mechanisms.protocols import Release
from . import books, values
from .entries import Entry, canonical, hash_of, lies_beside, text_is, value_of
from .identities import error_of_value, mark_of
from .keys import signed_by
from .ledger import Ledger

FORMAT = "discreet receipt 1"
# The error of a released number is stated at this confidence.
CONFIDENCE = 0.95
# The longest receipt that is read, in bytes: an answer of some hundred thousand rows. Chosen by hand.
_LARGEST = 1 << 26


def leaf(data: bytes) -> bytes:
    """Return the hash of a leaf (RFC 9162, section 2.1.1): no leaf has the hash of an inner node."""
    return hashlib.sha256(b"\0" + data).digest()


def node(left: bytes, right: bytes) -> bytes:
    return hashlib.sha256(b"\1" + left + right).digest()


def root_of(leaves: list[bytes]) -> bytes:
    """Return the root over the hashes of leaves; that of none is the hash of nothing."""
    if len(leaves) < 2:
        return leaves[0] if leaves else hashlib.sha256().digest()
    split = 1 << (len(leaves) - 1).bit_length() - 1
    return node(root_of(leaves[:split]), root_of(leaves[split:]))


def path_of(index: int, leaves: list[bytes]) -> list[bytes]:
    """Return the inclusion proof of leaf `index` (RFC 9162, section 2.1.3.1), from the leaf upwards."""
    if len(leaves) == 1:
        return []
    split = 1 << (len(leaves) - 1).bit_length() - 1
    if index < split:
        return [*path_of(index, leaves[:split]), root_of(leaves[split:])]
    return [*path_of(index - split, leaves[split:]), root_of(leaves[:split])]


def root_from(index: int, size: int, leaf_hash: bytes, path: list[bytes]) -> bytes | None:
    """Return the root that a path leads to (as RFC 9162, section 2.1.3.2); None where it is too long or too
    short for leaf `index` of a tree of `size` leaves."""
    if size <= 1 or not path:
        return leaf_hash if (index, size) == (0, 1) and not path else None
    split, sibling = 1 << (size - 1).bit_length() - 1, path[-1]
    is_left = index < split
    place = (index, split) if is_left else (index - split, size - split)
    inner = root_from(*place, leaf_hash, path[:-1])
    return None if inner is None else node(inner, sibling) if is_left else node(sibling, inner)


def _view(entry: Entry, public: dict[str, Any]) -> dict[str, Any]:
    """Return what a receipt shows of an entry: of a charge its question and price, of a release its value, of
    any other nothing. Left out are who asked, running totals (other analysts' spending) and times of day to
    the second (how long an answer took)."""
    body = entry.body
    if entry.kind == books.SPENDING:
        described = body.get("mechanism")
        facts = described.get("public", public) if isinstance(described, dict) else public
        shown: dict[str, Any] = {name: body[name] for name in ("text", "event") if name in body}
        shown |= {name: facts.get(name) for name in ("table", "version", "unit", "neighbors")}
        shown |= {"periods": body["periods"]["in"]} if "periods" in body else {}
        more = {"time": entry.time[:16] + "Z", "mark": mark_of(body), "of": _type(described)}
        return shown | {"entry": entry.seq, **more}
    if entry.kind == "release" and "value" in body:
        errors = {"errors": body["errors"]} if "errors" in body else {}
        return {"entry": entry.seq, "charge": body["charge"], "value": body["value"], **errors}
    return {}


def _data(view: dict[str, Any], blind: str) -> bytes:
    """Return the content of a leaf: what a receipt shows of the entry, and its blinded hash."""
    return canonical([view, blind]).encode()


def receipt(ledger: Ledger, number: int) -> dict[str, Any]:
    """Return the receipt of a release, by the number of its entry or of its charge, as JSON.

    Guarantee: whoever has receipts but not the key learns of other entries only how many there are: a guess
               of what one says cannot be checked.
    Proof:     of another entry a receipt has at most the hash of its leaf, or of nodes above it. A leaf has
               `Key.blind` of the entry's hash: HMAC-SHA256 under a key that is used for nothing else, so to
               whoever lacks it 256 random bits, for each entry its own, which no other entry's receipt shows.
               A guess without them has no leaf to compare. No entry's own hash is shown, which would confirm
               a guess of the next entry.
    Assumes:   that SHA-256 and HMAC behave as random functions, and that the key is secret.
    """
    _require.integer(number=number, at_least=1)
    if ledger.key is None:
        raise InvalidInput(f"a receipt is signed: that needs the key of {ledger.path}.")
    public = ledger.genesis.body["public"]
    leaves: list[bytes] = []
    charges: dict[int, tuple[dict[str, Any], str]] = {}
    pair: list[tuple[dict[str, Any], str]] = []
    for entry in ledger.entries():
        view, blind = _view(entry, public), ledger.key.blind(entry.hash).hex()
        leaves.append(leaf(_data(view, blind)))
        if entry.kind == books.SPENDING:
            charges[entry.seq] = view, blind
        elif "value" in view and number in (entry.seq, view["charge"]):
            pair = [charges[view["charge"]], (view, blind)]
        # A released value can be large: nothing else is kept of it.
    if not pair:
        raise InvalidInput(
            f"entry {number} of {ledger.path} is no released number (see `discreet ledger show`): a model "
            "has no value in the ledger, nor has what was entered by hand."
        )
    delta = books.policy_of(ledger).budget.delta
    charge, release = (ledger.entry(view["entry"]).body for view, _ in pair)
    value = ledger.value(release)
    shown = [
        {"shows": view, "blind": blind, "path": [step.hex() for step in path_of(view["entry"] - 1, leaves)]}
        for view, blind in pair
    ]
    made = {
        "format": FORMAT,
        "made_by": f"discreet {__version__}",
        "number": released_number(charge, release | {"value": value}, delta),
        "charge": shown[0],
        "release": shown[1],
        # of a large value the entry has the hash
        "beside": value if lies_beside(release["value"]) else None,
        "entries": len(leaves),
        "root": root_of(leaves).hex(),
        "key": ledger.key.public.hex(),
    }
    return made | {"signature": ledger.key.sign(_message(made)).hex()}


def number_of(ledger: Ledger, released: Any) -> int:
    """Return the number of the newest release of this value: an answer, or a `Release`."""
    wanted = canonical(values.encode(released.value if isinstance(released, Release) else released))
    numbers = [entry.seq for entry in ledger.entries(kind="release") if text_is(entry.body, wanted)]
    if not numbers:
        raise InvalidInput(
            "the ledger has no release of just this value and question. Give the number of its entry."
        )
    return numbers[-1]


def _message(made: dict[str, Any]) -> bytes:
    """Return what is signed: all of a receipt but its signature. It is longer than the 32 bytes of a hash,
    which entries sign."""
    return canonical({name: value for name, value in made.items() if name != "signature"}).encode()


def released_number(charge: dict[str, Any], release: dict[str, Any], delta: float) -> dict[str, Any]:
    """Return the released number as it is read, from the bodies of its two entries: the question, the value,
    its error and its price. `delta` is that of the budget."""
    value, described = values.decode(release["value"]), charge.get("mechanism")
    try:
        known = error_of_value(value, _registry.from_json(described)) if described else None
        error = values.recalled(release["errors"]) if "errors" in release else known
        bound = None if error is None else error(CONFIDENCE)
    except DiscreetError:
        # no bound is known, or the class is a third party's, which is not allowed here
        bound = None
    if isinstance(bound, dict):
        # of an answer, whose own delta may be smaller than the budget's
        delta = value.delta or delta
    epsilon, at = price_of(events.from_json(charge["event"]), delta)
    price = {"epsilon": epsilon, "delta": at, "plus_minus": _plain(bound), "confidence": CONFIDENCE}
    question = charge.get("text") or _type(described)
    return {"question": question, "value": _shown(release["value"]), **price}


def _type(described: Any) -> Any:
    """Return the name of a mechanism in its description; None for trusted code, which has none."""
    return described.get("type") if isinstance(described, dict) else None


def _shown(stored: Any) -> Any:
    """Return a stored value as it is read: of an answer its table, without how it was computed."""
    is_answer = isinstance(stored, dict) and {"columns", "rows"} <= stored.keys()
    return {name: stored[name] for name in ("columns", "rows")} if is_answer else stored


def _plain(bound: Any) -> Any:
    """Return error bounds as JSON: None where there is none, or no finite one."""
    if isinstance(bound, dict):
        return {str(name): _plain(of) for name, of in bound.items()}
    if isinstance(bound, list | tuple | np.ndarray):
        return [_plain(of) for of in bound]
    return float(bound) if bound is not None and math.isfinite(bound) else None


def price_of(event: events.Event, delta: float) -> tuple[float | None, float]:
    """Return the epsilon of an event without a delta, if that is finite, else at `delta`; None where there is
    none."""
    for at in (0.0, delta):
        try:
            epsilon = acc.epsilon(event, delta=at)
        except Unsupported:
            continue
        if math.isfinite(epsilon):
            return epsilon, at
    return None, delta


def load(path: Path) -> dict[str, Any]:
    """Return the receipt in a file that anybody may have written; refuse what is none."""
    try:
        with path.open("rb") as file:
            text = file.read(_LARGEST + 1)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.") from None
    _require.that(len(text) <= _LARGEST, f"{path} has more than {_LARGEST:,} bytes, and is no receipt.")
    try:
        made = json.loads(text, object_pairs_hook=_once, parse_constant=_refused)
    except DiscreetError:
        raise
    except (ValueError, RecursionError):
        raise InvalidInput(f"{path} is not JSON as receipts are.") from None
    if not isinstance(made, dict) or made.get("format") != FORMAT:
        raise InvalidInput(f"{path} is no receipt: its format is not {FORMAT!r}.")
    _registry.check_readable(made)
    return made


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    _require.that(len(dict(pairs)) == len(pairs), "this is no receipt: a name is repeated in it.")
    return dict(pairs)


def _refused(name: str) -> Any:
    raise InvalidInput(f"this is no receipt: {name} is no number.")


def _stored(made: dict[str, Any]) -> Any:
    """Return the value of a receipt; raises LedgerError where its entry has the hash of another."""
    text = canonical(made["beside"])
    return value_of(made["release"]["shows"], {hash_of(text): text}.get)


def verify(made: dict[str, Any], key: bytes | None = None) -> list[str]:
    """Return what is wrong with a receipt, in words; an empty list if the number is as the key has signed it.

    `key` is the public key that the verifier trusts; without it, the receipt is only compared with the key
    that it names, which anybody can have made. Never raises because of what a receipt says.
    """
    try:
        if key is not None and key.hex() != made["key"]:
            return [f"it is signed by the key {visible(made['key'])[:64]}, not by the one you trust"]
        if not signed_by(_bytes(made["key"]), _message(made), _bytes(made["signature"])):
            return ["it was changed after it was signed, or was not signed by this key"]
        # Whoever signs with a key of their own can write anything below.
        problems = [*_strays(made), *_differences(made)]
        text(made)
    except Exception as error:
        return [f"it cannot be read as a receipt ({type(error).__name__})"]
    return problems


def _strays(made: dict[str, Any]) -> Iterator[str]:
    """Yield which entries are not in the tree with this root, or do not belong together."""
    for name in ("charge", "release"):
        proof = made[name]
        found = leaf(_data(proof["shows"], proof["blind"]))
        path = [_bytes(step) for step in proof["path"]]
        if root_from(proof["shows"]["entry"] - 1, made["entries"], found, path) != _bytes(made["root"]):
            yield f"its {name} is not in the ledger that has this root"
    if made["release"]["shows"]["charge"] != made["charge"]["shows"]["entry"]:
        yield "its value is that of another question"


def _differences(made: dict[str, Any]) -> Iterator[str]:
    """Yield where the number is not what its entries say."""
    charge, number = made["charge"]["shows"], made["number"]
    if canonical(_shown(_stored(made))) != canonical(number["value"]):
        yield "its value is not the released one"
    if number["question"] != (charge.get("text") or charge["of"]):
        yield "its question is not the one that was asked"
    proved = price_of(events.from_json(charge["event"]), number["delta"])[0]
    # A later accountant may prove less, never more; the slack is that of two ways to round.
    if number["epsilon"] is not None and (proved is None or number["epsilon"] < proved * (1 - 1e-9)):
        yield f"its epsilon {number['epsilon']:g} is below that of its noise, {proved}"
    known = getattr(values.decode(_stored(made)), "error", None)
    if known is not None and _plain(known(CONFIDENCE)) != number["plus_minus"]:
        yield "its error is not that of its noise"


def text(made: dict[str, Any]) -> str:
    """Return a receipt that `verify` has found to be whole, to be read by people."""
    charge, number = made["charge"]["shows"], made["number"]
    value = values.decode(_stored(made))
    bound = "" if number["plus_minus"] is None else f" ± {number['plus_minus']} (95%)"
    shown = str(value) if isinstance(number["plus_minus"], dict) else f"{value}{bound}"
    column, epsilon, delta = charge["unit"]["column"], number["epsilon"], number["delta"]
    price = "nothing is promised" if epsilon is None else f"epsilon {UpperAmount(epsilon):.4g}"
    price += f", delta {delta:g}" if delta else ""
    whom = "one row" if column is None else f"all rows of one {column}"
    version = f", version {charge['version']}" if charge["version"] else ""
    return (
        f"{number['question']}\n\n{shown}\n\n{price}, protecting {whom} of {charge['table']}{version}, under "
        f"{charge['neighbors']}; its price is kept {charge['mark']}; asked {charge['time']}"
    )


def _bytes(text: Any) -> bytes:
    """Return the bytes of a hexadecimal text; for anything else b"", which is no hash, key or signature."""
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        return b""
