"""Defines the errors that discreet raises, as a small tree of classes.

Each error is also a subclass of the built-in exception that a caller would expect (`ValueError`,
`PermissionError`, ...). A message states the fact with its values and what to do; it never contains a value
of the data. Whether anything was charged is added by the verb that charges (`_require.paying`), which alone
knows.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from threading import Lock
from typing import TypeVar

T = TypeVar("T")

# How many charges were written in this context (that is, by this thread), and by all threads of this process.
charges: ContextVar[int] = ContextVar("charges", default=0)
_all_charges, _counting = [0], Lock()


def count_charges(number: int) -> None:
    """Count charges that are on disk."""
    charges.set(charges.get() + number)
    with _counting:
        _all_charges[0] += number


def charges_of_all() -> int:
    """Return how many charges all threads of this process have written."""
    return _all_charges[0]


class DiscreetError(Exception):
    """Base of all errors that discreet raises on purpose.

    `what` is the fact, `remedy` what to do, `option` the argument that it is about, if there is one.
    `charged` says whether a budget had paid when the error was raised; None if no verb that charges was
    called, if another thread has charged meanwhile, or if `what` itself says it. The text of the error has
    all of them.
    """

    charged: bool | None = None
    # Whether a server has said it: what this process has charged does not tell.
    settled = False

    def __init__(self, what: str = "", *, remedy: str = "", option: str | None = None) -> None:
        super().__init__(what)
        self.what, self.remedy, self.option = what, remedy, option

    def __str__(self) -> str:
        told = {None: "", False: "Nothing was charged.", True: "What was charged before stays charged."}
        return " ".join(part for part in (self.what, self.remedy, told[self.charged]) if part)


class InvalidInput(DiscreetError, ValueError):
    """An argument is of the wrong kind, or its value is outside what is allowed."""


class UnknownOption(InvalidInput, TypeError):
    """A function was called with an option that it does not have, or without one that it needs."""


class UnknownAttribute(DiscreetError, AttributeError):
    """An object or a module was asked for a name that it does not have."""


class WrongRelation(DiscreetError, ValueError):
    """A guarantee that is proved for one neighbor relation was requested for another."""


class PublicMismatch(DiscreetError, ValueError):
    """A mechanism was built, and so priced, for other public facts than those of the source it is run on."""


class PrivateFact(DiscreetError, PermissionError):
    """A private quantity (a size, a bound, a key set) would have been read from the data without a charge."""


class Unsupported(DiscreetError, NotImplementedError):
    """No theorem in this package covers the request, so it is refused."""


class BudgetExceeded(DiscreetError, PermissionError):
    """A release would have spent more than the budget allows; it was not made, and is not charged."""


class Halted(DiscreetError, RuntimeError):
    """An interactive mechanism has given all the answers it paid for."""


class NotPrivate(DiscreetError, PermissionError):
    """A mechanism without a privacy guarantee was to be run on protected data."""


class MissingExtra(DiscreetError, ImportError):
    """An optional package is not installed; the message names the extra."""

    @classmethod
    def of(cls, extra: str, fact: str) -> MissingExtra:
        """Return the error that says `fact` (a sentence without its period) and how to install `extra`."""
        return cls(f"{fact}. Install it with: pip install 'discreet[{extra}]'")


class DescriptionError(DiscreetError, ValueError):
    """A JSON description does not name a registered class with exactly its fields."""


class LedgerError(DiscreetError, RuntimeError):
    """The ledger is missing, was tampered with, or does not belong to what it was opened for."""


class ReleaseFailed(DiscreetError, RuntimeError):
    """A mechanism failed after it was charged: the charge stays, and nothing was released."""


class Interruption(BaseException):
    """Base of signals that pass through the code of others: what handles their failures lets these pass."""


# What does not come from a failure of the code that it passes through. All else that code raises on a part of
# the data is a failure of that part, also what is no Exception: SystemExit, and PanicException, which polars
# and other libraries written in Rust raise.
INTERRUPTIONS = (KeyboardInterrupt, GeneratorExit, Interruption)


def result_or(fallback: T, call: Callable[[], T]) -> T:
    """Return what the code of others gives for a part of the data, or `fallback` where it fails: that it
    fails, and how, depends on the part."""
    try:
        return call()
    except INTERRUPTIONS:
        raise
    except BaseException:
        return fallback
