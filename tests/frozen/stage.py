"""The stage on which stories are played: a temporary folder, entropy that repeats itself, and what is written
down of a story.

Every story is played twice. Without noise (layer A) integer noise is zero and selections take the largest
score; with noise (layer B) every draw is that of a keyed stream. In both, each `Entropy()` of a story has a key
that follows from the story's name and from how many streams were made before it; it still says that it is
private, so that nothing in the package behaves otherwise. What cannot repeat itself (times, hashes, signatures,
keys, random names, the folder) is taken out by `normalized`, and floats are rounded.

Only public names are patched here: modules may move.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import CTR

from discreet import DiscreetError, sampling

# Another processor's mathematical library may round the last bits otherwise; what torch, BLAS and optimizers
# compute may differ in more of them.
DIGITS, FEWER_DIGITS, DIGITS_OF_FRACTIONS = 9, 5, 12
# Words are kept in files of their own: they stand in lists of these names.
WORDS = ("notes", "plan", "sections")
VOLATILE = (
    (re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(\+00:00|Z)?( UTC)?"), "<time>"),
    (re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d"), "<time>"),
    (re.compile(r"\b[0-9a-f]{24,}\b"), "<hex>"),
)
# Hardly any text that people read has all digits of a float.
LONG_NUMBER = re.compile(r"\d+\.\d{10,}(?:[eE][-+]?\d+)?")


def normalized(value: Any, digits: int = DIGITS, folder: str = "") -> Any:
    """Return a value as JSON, without what is new in every run, and with rounded numbers."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, str):
        return _without_volatile(value, folder)
    if isinstance(value, float | np.floating):
        return _rounded(float(value), digits)
    if isinstance(value, Fraction):
        return _fraction(value)
    if isinstance(value, np.ndarray | np.generic):
        return normalized(value.tolist(), digits, folder)
    if isinstance(value, date | Path):
        return normalized(str(value), digits, folder)
    if isinstance(value, dict):
        if value.keys() == {"fraction"}:
            return {"fraction": _fraction(Fraction(value["fraction"]))}
        return {
            _without_volatile(str(name), folder): normalized(part, digits, folder)
            for name, part in value.items()
            if not (name in WORDS and isinstance(part, list | tuple))
        }
    if isinstance(value, list | tuple):
        return [normalized(part, digits, folder) for part in value]
    raise TypeError(f"a story cannot write down a {type(value).__name__}: {value!r}")


def _without_volatile(text: str, folder: str) -> str:
    text = text.replace(folder, "<folder>") if folder else text
    for pattern, name in VOLATILE:
        text = pattern.sub(name, text)
    return text


def _rounded(value: float, digits: int) -> Any:
    """Return a rounded number; those that JSON has no word for as text."""
    return float(f"{value:.{digits}g}") + 0.0 if math.isfinite(value) else str(value)


def _fraction(value: Fraction) -> str:
    """Return a fraction of few digits as it is; a long one, which comes from a float, rounded."""
    if max(abs(value.numerator), value.denominator) < 10**6:
        return str(value)
    return f"{float(value):.{DIGITS_OF_FRACTIONS}g}"


@dataclass
class Stage:
    """What a story is given, and what it writes down. `noise` says whether noise is drawn."""

    folder: Path
    noise: bool
    facts: dict[str, Any] = field(default_factory=dict)
    messages: list[tuple[str, str]] = field(default_factory=list)

    def exactly(self, digits: int = DIGITS, **facts: Any) -> None:
        """Write down what is the same with any noise, or with none."""
        for name, value in facts.items():
            assert name not in self.facts, f"{name} is written down twice"
            self.facts[name] = normalized(value, digits, str(self.folder))

    def drawn(self, digits: int = DIGITS, **facts: Any) -> None:
        """Write down what depends on draws that are made in both layers: in layer B only."""
        if self.noise:
            self.exactly(digits, **facts)

    def price(self, **prices: Any) -> None:
        """Write down prices, which may fall, and rise by a ten-thousandth."""
        self.facts.setdefault("prices", {}).update(normalized(prices))

    def says(self, title: str, text: Any) -> None:
        """Write down a text that somebody reads."""
        if self.noise:
            lines = "\n".join(line.rstrip() for line in str(text).splitlines())
            rounded = LONG_NUMBER.sub(lambda number: f"{float(number[0]):.{DIGITS}g}", lines)
            self.messages.append((title, _without_volatile(rounded, str(self.folder))))

    def refused(self, title: str, call: Callable[[], Any]) -> None:
        """Write down the class of a refusal, and its text; what is not refused fails here."""
        try:
            call()
        except DiscreetError as error:
            self.facts.setdefault("refusals", {})[title] = type(error).__name__
            self.says(f"refused: {title}", error)
        else:
            raise AssertionError(f"{title} was not refused")

    def books(self, session: Any, *, values: bool = True, digits: int = DIGITS) -> None:
        """Write down the ledger of a session, and what is spent. Values of releases are left out of layer A
        where they depend on draws that are made in both layers (`values`)."""
        self.facts["ledger"] = ledger_of(session.ledger, values or self.noise, digits, str(self.folder))
        self.price(spent=session.spent)
        assert session.curator.verify() == []


def ledger_of(ledger: Any, values: bool, digits: int, folder: str) -> list[Any]:
    """Return kinds, topics and bodies of a ledger's entries. A description of the table stands there once, and
    a release does not repeat the event of its charge."""
    entries = [entry.to_json() for entry in ledger.entries()]
    known = [(entries[0]["body"].get("public"), "<public>")]

    def short(value: Any) -> Any:
        if isinstance(value, dict):
            for part, name in known:
                if value == part:
                    return name
            return {name: short(part) for name, part in value.items()}
        return [short(part) for part in value] if isinstance(value, list) else value

    shown = []
    for entry in entries:
        body = dict(entry["body"])
        if not values:
            for name in ("value", "state"):
                body.pop(name, None)
        shown.append(
            {
                "kind": entry["kind"],
                "topic": normalized(entry["topic"], digits, folder),
                "body": normalized(short(body) if shown else body, digits, folder),
                "sealed": entry["seal"] is not None,
            }
        )
        if entry["kind"] == "charge":
            known[1:] = [(entry["body"]["event"], "<event>")]
    return shown


def play(story: Callable[[Stage], None], *, noise: bool) -> Stage:
    """Play a story in a folder of its own, and return what it wrote down."""
    with tempfile.TemporaryDirectory(prefix="story") as name:
        # as the operating system spells it, which is how messages do
        stage = Stage(Path(os.path.realpath(name)), noise)
        with contextlib.chdir(stage.folder), repeating(story.__name__), quiet(noise):
            story(stage)
    return stage


@contextlib.contextmanager
def repeating(name: str) -> Iterator[None]:
    """Give every new `Entropy()` the next key of a story. It still says that it is private."""
    numbers = itertools.count()

    def rekey(self: Any) -> None:
        key = hashlib.sha256(f"frozen:{name}:{next(numbers)}".encode()).digest()
        self._stream, self._spent = Cipher(AES(key), CTR(bytes(16))).encryptor(), 0

    with mock.patch.object(sampling.Entropy, "_rekey", rekey):
        yield


@contextlib.contextmanager
def quiet(noise: bool) -> Iterator[None]:
    """Take the noise away, unless it is wanted: integer noise is zero, a selection takes the largest score."""
    with contextlib.ExitStack() as stack:
        for name, plain in {} if noise else QUIET.items():
            stack.enter_context(mock.patch.object(sampling, name, plain))
        yield


def _zeros(scale: Any = None, n: Any = None, entropy: Any = None, **_: Any) -> Any:
    return np.zeros(int(n), np.int64)


def _lowest(bound: Any, n: int, entropy: Any) -> Any:
    return np.zeros(int(n), np.int64)


def _best(scores: Any, k: int) -> list[int]:
    """The places of the `k` largest scores, the first of equal ones first."""
    numbers = [int(score) if isinstance(score, np.integer) else score for score in scores]
    return sorted(range(len(numbers)), key=lambda i: (-numbers[i], i))[:k]


def _argmax(scores: Any, rate: Any, entropy: Any) -> int:
    return _best(scores, 1)[0]


def _top(scores: Any, rate: Any, k: int, entropy: Any) -> Any:
    return np.array(_best(scores, int(k)), np.int64)


def _top_rows(scores: Any, rate: Any, k: int, entropy: Any) -> Any:
    return np.array([_best(row, int(k)) for row in np.asarray(scores)], np.int64).reshape(-1, int(k))


QUIET: dict[str, Callable[..., Any]] = {
    "discrete_laplace": _zeros,
    "discrete_gaussian": _zeros,
    "argmax_exponential": _argmax,
    "argmax_gumbel": _argmax,
    "argmax_laplace": _argmax,
    "top_k_gumbel": _top,
    "top_k_gumbel_rows": _top_rows,
    # a quantile is drawn from equally good values
    "uniform_below": _lowest,
}


def written(facts: Any, width: int = 110) -> str:
    """Return facts as JSON whose small parts stand on one line each: readable, and short."""
    return _lines(facts, 0, width) + "\n"


def _lines(value: Any, depth: int, width: int) -> str:
    line = json.dumps(value, ensure_ascii=False, sort_keys=True)
    if not isinstance(value, dict | list) or not value or len(line) + depth <= width:
        return line
    inner, outer = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, list):
        return "[" + ",".join(inner + _lines(part, depth + 1, width) for part in value) + outer + "]"
    parts = (
        f"{inner}{json.dumps(str(name), ensure_ascii=False)}: {_lines(value[name], depth + 1, width)}"
        for name in sorted(value)
    )
    return "{" + ",".join(parts) + outer + "}"


def text_of(messages: list[tuple[str, str]]) -> str:
    return "".join(f"=== {title}\n{text}\n\n" for title, text in messages)


# Prices may fall, and rise by this much.
SLACK = 1e-4
ONE_SIDED = ("prices", "spent")


def differences(
    old: Any, new: Any, path: str = "", *, names: tuple[str, ...] = ONE_SIDED, one_sided: bool = False
) -> list[str]:
    """Say where two records differ: the path, what was there, what is there now. Below one of `names` stand
    prices, which may fall (`one_sided`)."""
    if isinstance(old, dict) and isinstance(new, dict):
        gone = [f"{path}/{name}: {_short(old[name])} is gone" for name in old.keys() - new.keys()]
        come = [f"{path}/{name}: {_short(new[name])} is new" for name in new.keys() - old.keys()]
        both = (
            line
            for name in sorted(old.keys() & new.keys())
            for line in differences(
                old[name], new[name], f"{path}/{name}", names=names, one_sided=one_sided or name in names
            )
        )
        return sorted(gone) + sorted(come) + list(both)
    if isinstance(old, list) and isinstance(new, list):
        lines = [] if len(old) == len(new) else [f"{path}: {len(old)} parts became {len(new)}"]
        pairs = enumerate(zip(old, new, strict=False))
        return lines + [
            line
            for i, (a, b) in pairs
            for line in differences(a, b, f"{path}/{i}", names=names, one_sided=one_sided)
        ]
    if (type(old) is type(new) and old == new) or (one_sided and _no_dearer(old, new)):
        return []
    if isinstance(old, str) and isinstance(new, str):
        # of long texts what is around the first place where they differ
        pairs = enumerate(zip(old, new, strict=False))
        same = next((i for i, (a, b) in pairs if a != b), min(len(old), len(new)))
        old, new = (f"...{text[same - 30 :]}" if same > 60 else text for text in (old, new))
    return [f"{path}: {_short(old)} became {_short(new)}"]


def _no_dearer(old: Any, new: Any) -> bool:
    """Whether a price is lower than it was, or higher by no more than the slack."""
    try:
        before, after = (float(Fraction(x)) if "/" in str(x) else float(x) for x in (old, new))
    except (TypeError, ValueError):
        return False
    return after <= before * (1 + SLACK)


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True)
    return text if len(text) < 160 else f"{text[:140]}..."
