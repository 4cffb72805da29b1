"""Checks and writes the output files of all commands: never over a ledger, a key or data, and over another
file that exists only with --force.

Builds events (`accounting.events`) from options of the command line: from named forms `dpsgd`, `gaussian`,
`laplace`, ..., or from a JSON description.

Decimals are exact where an event takes exact numbers (`--rate 0.01` is 1/100); a noise multiplier is rounded
to the nearest float.
"""

from __future__ import annotations

import json
import math
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from ... import accounting as acc
from ..._errors import DiscreetError, InvalidInput
from ..._public import as_neighbors

# (offset, bytes at that offset) of files that are never overwritten: SQLite files such as ledgers, keys,
# Parquet, DuckDB
_PRECIOUS = ((0, b"SQLite format 3\0"), (0, b"discreet ledger key"), (0, b"PAR1"), (8, b"DUCK"))
# Suffixes of pictures that matplotlib draws without further packages.
_PICTURES = (".png", ".svg", ".pdf", ".jpg")
# Suffixes of files that belong to a ledger of the same name. A text in the place of its journal would
# destroy the ledger.
_COMPANIONS = (".key", "-journal", "-wal", "-shm", "-lock")


def check(
    path: Path | None, *, force: bool = False, data: Iterable[str | Path] = (), makes_folder: bool = False
) -> None:
    """Refuse a path that the command must not write to; called before anything is charged, run or read.

    `data` are the input files of the command, which are never overwritten. With `makes_folder` the command
    makes the folder of `path` itself. None and "-" (standard output) pass.
    """
    if path is None or str(path) == "-":
        return
    if not makes_folder and not path.absolute().parent.is_dir():
        raise InvalidInput(f"there is no folder {str(path.parent)!r} to write to.")
    if path.is_dir():
        raise InvalidInput(f"{path} is a folder.")
    if precious(path) or any(belongs_to(path, item) for item in data):
        raise InvalidInput(
            f"{path} is a ledger, a key or data, or belongs to one, and is never overwritten. "
            "Give another name."
        )
    if path.is_symlink() and not path.exists():
        raise InvalidInput(f"{path} is a link that leads nowhere.")
    if path.exists() and not force:
        raise InvalidInput(f"{path} exists already. Give another name, or --force.")
    # Found out before the charge: a folder that is to be made has no rights yet.
    target = path if path.exists() else path.absolute().parent
    if target.exists() and not os.access(target, os.W_OK):
        raise InvalidInput(f"{path} cannot be written: no permission. Give another name.")


def check_distinct(*paths: Path | None) -> None:
    """Refuse two outputs of one command at the same path: the second would overwrite the first."""
    real_paths = [os.path.realpath(path) for path in paths if path is not None]
    for path in real_paths:
        if real_paths.count(path) > 1:
            raise InvalidInput(f"{path} is named for two outputs. Give them different names.")


def picture(path: Path | None) -> Path | None:
    """Return the path under which a picture is saved: with .png added if it has no suffix. Refuse a suffix
    that matplotlib cannot draw, before anything is charged. What must not be overwritten is left to `check`,
    which names the reason."""
    if path is None or path.suffix.lower() in _PICTURES or precious(path):
        return path
    if path.suffix:
        raise InvalidInput(f"a picture is saved as {', '.join(_PICTURES)}, got {path.name!r}.")
    return path.with_name(path.name + ".png")


def precious(path: Path) -> bool:
    """Return whether a file is a ledger, a key or a data file by its first bytes, belongs to a ledger by its
    name, or is data or a schema file that a ledger lies beside."""
    real_path = os.path.realpath(path)
    owners = [real_path.removesuffix(end) for end in _COMPANIONS if real_path.endswith(end)]
    # A text such as a CSV file has no first bytes of its own: its ledger tells that it is data.
    ledger = real_path.removesuffix(".schema.toml") + ".ledger"
    beside = os.path.exists(real_path) and _starts_like_precious(ledger)
    return beside or any(_starts_like_precious(owner) for owner in (real_path, *owners))


def write(path: Path, text: str, *, force: bool = False) -> None:
    """Write a text to a path that `check` has admitted before; `check` is repeated, as a file may have been
    made there in the meantime."""
    check(path, force=force)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}.") from None


def belongs_to(path: Path, data: str | Path) -> bool:
    """Return whether a path is the data file or one of its files, where `data` is a folder or a pattern."""
    text = str(data).partition("::")[0]
    if path.exists() and (os.path.isdir(text) or not os.path.exists(text)):
        # imported late: commands without data need no engine
        from ...tables.engines.spark_files import is_several
        from ...tables.files import several as files_of

        files = files_of(text) if is_several(text) else None
        return files is not None and any(same(path, file) for file in files.paths)
    return same(path, Path(text))


def _starts_like_precious(path: str) -> bool:
    """Return whether a file begins like those that are never overwritten; a file that cannot be read does
    not."""
    try:
        with open(path, "rb") as file:
            start = file.read(64)
    except OSError:
        return False
    return any(start[offset:].startswith(mark) for offset, mark in _PRECIOUS)


def same(first: Path, second: Path) -> bool:
    """Return whether two paths lead to the same file; no if either does not exist."""
    try:
        return os.path.samefile(first, second)
    except OSError:
        return False


# The longest number that is read, in characters, and its largest power of ten. Floats end at 1e-308 and
# 1e308, and numbers beyond them cannot be computed with.
_LONGEST, _POWER = 400, 300


@dataclass(frozen=True, kw_only=True)
class EventOptions:
    """Holds the options that describe an event; None where one was not given."""

    noise_multiplier: Fraction | None = None
    scale: Fraction | None = None
    variance: Fraction | None = None
    sensitivity: int = 1
    # the epsilon of one release
    each: Fraction | None = None
    categories: int = 2
    times: int | None = None
    rate: Fraction | None = None
    n: int | None = None
    batch: int | None = None
    epochs: Fraction | None = None
    neighbors: str = "add_remove"


@dataclass(frozen=True)
class ReleaseForm:
    """Describes how the options of one named form become an event.

    `noise` is the name of the option that sets the noise, `grows` whether a larger value is more private.
    `build` makes the event of one release from all options and the value of that option; `takes` are further
    options.
    """

    noise: str
    grows: bool
    build: Callable[[EventOptions, Any], acc.Event]
    takes: tuple[str, ...] = ()


KINDS: dict[str, ReleaseForm] = {
    "dpsgd": ReleaseForm(
        "noise_multiplier",
        True,
        lambda a, x: acc.Gaussian(noise_multiplier=float(x), **_relation(a)),
        ("n", "batch", "epochs"),
    ),
    "gaussian": ReleaseForm(
        "noise_multiplier", True, lambda a, x: acc.Gaussian(noise_multiplier=float(x), **_relation(a))
    ),
    "laplace": ReleaseForm(
        "noise_multiplier", True, lambda a, x: acc.Laplace(noise_multiplier=float(x), **_relation(a))
    ),
    "discrete-laplace": ReleaseForm(
        "scale",
        True,
        lambda a, x: acc.DiscreteLaplace(scale=x, sensitivity=a.sensitivity, **_relation(a)),
        ("sensitivity",),
    ),
    "discrete-gaussian": ReleaseForm(
        "variance",
        True,
        lambda a, x: acc.DiscreteGaussian(variance=x, sensitivity=a.sensitivity, **_relation(a)),
        ("sensitivity",),
    ),
    "randomized-response": ReleaseForm(
        "each",
        False,
        lambda a, x: acc.RandomizedResponse(epsilon=x, categories=a.categories, **_relation(a)),
        ("categories",),
    ),
    "exponential": ReleaseForm(
        "each", False, lambda a, x: acc.ExponentialMechanism(epsilon=x, **_relation(a))
    ),
    "pure": ReleaseForm("each", False, lambda a, x: acc.PureDP(epsilon=x, **_relation(a))),
}


def _relation(options: EventOptions) -> dict[str, Any]:
    """Return the neighbor relation as a keyword argument of an event."""
    return {"neighbors": as_neighbors(options.neighbors)}


def exact(text: str | None, option: str) -> Fraction | None:
    """Return the number that a text writes, such as 0.1, 1e-3 or 1/3, without rounding; `option` is for
    messages."""
    if text is None:
        return None
    # Python allows underscores between digits, also in an exponent: 1e1_0 is 1e10.
    power = re.search(r"e[+-]?0*(\d*)$", text[:_LONGEST].strip().replace("_", ""), re.IGNORECASE)
    if len(text) > _LONGEST or (power is not None and (len(power[1]) > 3 or int(power[1] or 0) > _POWER)):
        raise InvalidInput(
            f"{option} is longer or larger than any number that can be computed with: {text[:20]!r}."
        )
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise InvalidInput(f"{option} must be a number such as 0.1, 1e-3 or 1/3, got {text!r}.") from None


def number(text: str | None, option: str) -> Fraction:
    """Return the exact number of an option that was given."""
    value = exact(text, option)
    assert value is not None
    return value


def kind(name: str) -> ReleaseForm:
    """Return the form of this name."""
    if name not in KINDS:
        raise InvalidInput(f"there is no form {name!r}. There are: {', '.join(KINDS)}; or give --event FILE.")
    return KINDS[name]


def settle(name: str, options: EventOptions) -> EventOptions:
    """Refuse options that the form does not take; for dpsgd, turn --n, --batch and --epochs into a sampling
    rate and a number of steps."""
    allowed = {kind(name).noise, *kind(name).takes, "times", "rate", "neighbors"}
    for field in fields(EventOptions):
        if field.name not in allowed and getattr(options, field.name) != field.default:
            raise InvalidInput(f"{name} does not take --{field.name.replace('_', '-')}.")
    if name != "dpsgd":
        return options
    both_rates = options.rate is not None and options.batch is not None
    both_lengths = options.times is not None and options.epochs is not None
    if both_rates or both_lengths:
        raise InvalidInput("give --batch or --rate, and --epochs or --times, not both.")
    return _training_options(options)


def _training_options(options: EventOptions) -> EventOptions:
    """Turn --n, --batch and --epochs of DP-SGD into a sampling rate and a number of steps."""
    rate, times = options.rate, options.times
    if options.batch is not None:
        if options.n is None:
            raise missing_option("dpsgd", "n")
        if not 0 < options.batch <= options.n:
            raise InvalidInput(f"--batch must be between 1 and n = {options.n}, got {options.batch}.")
        rate = Fraction(options.batch, options.n)
    if options.epochs is not None:
        if rate is None:
            raise missing_option("dpsgd", "batch (or --rate)")
        if not 0 < rate <= 1:
            raise InvalidInput(
                f"with --epochs, --rate must be above 0 and at most 1, got {float(rate):g}: an epoch takes 1 "
                "/ rate steps. Correct --rate, or give --times, the number of steps."
            )
        times = math.ceil(options.epochs / rate)
    # Without --batch and --epochs, which `settle` would refuse beside a rate and steps: it may run again.
    return replace(options, rate=rate, times=times, batch=None, epochs=None)


def event(name: str, options: EventOptions) -> acc.Event:
    """Return the event that the options describe."""
    form, options = kind(name), settle(name, options)
    noise = getattr(options, form.noise)
    if noise is None:
        raise missing_option(name, form.noise)
    if name == "dpsgd":
        for value, option in ((options.rate, "batch (or --rate)"), (options.times, "epochs (or --times)")):
            if value is None:
                raise missing_option(name, option)
    release = form.build(options, noise)
    sampled_release = release if options.rate is None else release.sampled(options.rate)
    return sampled_release.repeated(1 if options.times is None else options.times)


def missing_option(name: str, option: str) -> InvalidInput:
    """Return the error for an option that the form `name` needs."""
    return InvalidInput(f"{name} needs --{option.replace('_', '-')}.")


def described(source: str) -> acc.Event:
    """Return the event of a JSON description in a file, or on standard input for `-`."""
    try:
        if source == "-":
            return acc.from_json(json.load(sys.stdin))
        with open(source, encoding="utf-8") as file:
            return acc.from_json(json.load(file))
    except OSError as error:
        raise InvalidInput(f"cannot read {source!r}: {error.strerror}.") from None
    except ValueError as error:
        if isinstance(error, DiscreetError):
            raise
        raise InvalidInput(f"{source!r} is not JSON: {error}.") from None
