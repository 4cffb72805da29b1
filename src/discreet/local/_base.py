"""Defines the base class of all client randomizers: it checks values, returns reports, and estimates a
release from many reports.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from numbers import Real as RealNumber
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import REPLACE
from .._registry import to_json
from ..accounting import Event, NonPrivate, PureDP
from ..mechanisms.protocols import Release
from ..sampling import Entropy
from . import _draws
from ._draws import Codes

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False, kw_only=True)
class ReportBatch:
    """Holds many reports of one randomizer, one row per report, and the price of each for its sender.

    `event` is `NonPrivate` if the randomness was seeded: such reports are for tests and simulations.
    `randomizer` is the one that drew the reports; None if it is not known.
    """

    data: NDArray[Any]
    event: Event
    randomizer: Any = None

    def __len__(self) -> int:
        return len(self.data)

    def __iter__(self) -> Iterator[Any]:
        return (plain(row) for row in self.data)

    def __getitem__(self, rows: slice | NDArray[Any]) -> ReportBatch:
        return ReportBatch(data=np.atleast_1d(self.data[rows]), event=self.event, randomizer=self.randomizer)


def plain(row: Any) -> Any:
    """Return one report as plain Python, ready for JSON: an integer, or a list of integers."""
    return row.tolist() if isinstance(row, np.ndarray) else int(row)


class LocalRandomizer:
    """Checks, draws and estimates; the base class of randomizers whose reports are integers, or rows of
    integers of one length.

    A subclass reads the value of one person (`_one`) and checks those of many (`_values`), checks its reports
    (`_check_reports`), draws (`_draw`), and estimates (`_estimate`). This class calls them so that values are
    read before anything is drawn, and reports before anything is estimated, because reports come from
    strangers.

    The value of one person is never refused: what is none of the randomizer's values counts as a fixed public
    one (zero, the lower bound, the empty word). The collector chooses the randomizer, so a
    device that reports some values and refuses others would tell it which of them its value is, for nothing.
    Values of many people are given by somebody who sees them, and wrong ones are refused.
    """

    __slots__ = ()
    epsilon: Any

    @property
    def ratio(self) -> Fraction:
        """Return the largest ratio P(report | value) / P(report | other value), over all reports and values,
        exactly; it is at most exp(epsilon).
        """
        raise NotImplementedError

    @property
    def event(self) -> Event:
        """Return the price of one report for its sender; neighbors differ in the sender's value."""
        return PureDP(epsilon=self.epsilon, neighbors=REPLACE)

    def respond(self, value: Any, /, *, entropy: Entropy) -> Any:
        """Return the report of one value, an integer or a list of integers; or a `ReportBatch` for an array
        with the values of several people. A value outside the randomizer's values counts as a fixed public
        one; an array with such values is refused.
        """
        require_entropy(entropy)
        if self.is_single(value):
            return self._respond_one(value, entropy)
        array = _array(value)
        if array.ndim != 1:
            raise InvalidInput(
                f"give one value, or an array with one value for each person; got {array.ndim} "
                f"dimensions. Nothing was drawn."
            )
        return self._batch(self._draw(self._values(array), entropy), entropy)

    def is_single(self, value: Any) -> bool:
        """Return whether this is the value of one person, and not a list of values of several."""
        return _array(value).ndim == 0

    def _respond_one(self, value: Any, entropy: Entropy) -> Any:
        """Return the report of one person, whatever the value is."""
        return plain(self._draw(self._one(value), entropy)[0])

    def estimate(self, reports: Any, /) -> Release:
        """Return the estimate from many reports: a `ReportBatch`, or a list of plain reports. It only
        post-processes, so anybody may compute it.
        """
        data, event = self._collect(reports)
        return self._estimate(data, event)

    def client(self) -> dict[str, Any]:
        """Return the description from which js/discreet-local.mjs draws the same reports in a browser. Its
        names and integers are a contract with that file."""
        raise InvalidInput(
            f"{type(self).__name__} has no client for browsers (docs/local.md lists the randomizers "
            f"that have one)."
        )

    def _batch(self, data: NDArray[Any], entropy: Entropy) -> ReportBatch:
        """Return drawn reports as a batch, which is not private if the entropy was seeded."""
        event = self.event if entropy.private else NonPrivate(neighbors=REPLACE)
        return ReportBatch(data=data, event=event, randomizer=self)

    def _collect(self, reports: Any) -> tuple[NDArray[Any], Event]:
        """Return the reports as one checked array, and their price."""
        event = self.event
        if isinstance(reports, ReportBatch):
            if reports.randomizer is not None and reports.randomizer != self:
                raise InvalidInput(
                    "these reports were drawn by another randomizer, or with another epsilon. Nothing was "
                    "estimated. Use the randomizer that drew them."
                )
            reports, event = reports.data, reports.event
        data = self._as_array(reports)
        if not len(data):
            raise InvalidInput("there are no reports. Nothing was estimated.")
        width = self._width()
        if data.shape[1:] != (() if width is None else (width,)) or data.dtype.kind not in "iub":
            wanted = "an integer" if width is None else f"a list of {width} integers"
            raise InvalidInput(f"each report of {type(self).__name__} is {wanted}. Nothing was estimated.")
        self._check_reports(data)
        # All values were checked to be small. numpy does not combine uint64 with signed integers exactly.
        return data.astype(np.int64) if data.dtype == np.uint64 else data, event

    def _as_array(self, reports: Any) -> NDArray[Any]:
        """Return reports as an array. An array is not checked here: `_collect` checks its shape and type."""
        if isinstance(reports, np.ndarray):
            return reports
        if isinstance(reports, str | bytes | dict) or not isinstance(reports, Iterable):
            raise _require.fail("reports", type(reports).__name__, "a ReportBatch or a list of reports")
        rows = list(reports)
        if any(not _is_integer(row) for row in rows):
            raise InvalidInput(
                "reports are integers or lists of integers of one length. Nothing was estimated."
            )
        try:
            return np.array(rows, dtype=np.int64)
        except (ValueError, TypeError, OverflowError):
            raise InvalidInput(
                "reports are integers or lists of integers of one length, each below 2**63. Nothing "
                "was estimated."
            ) from None

    def _one(self, value: Any) -> Any:
        """Return the value of one person, or the fixed public value in place of what is none, in the form
        that `_draw` takes: one row. It accepts everything. The fixed values are a contract with
        js/discreet-local.mjs."""
        raise NotImplementedError

    def _values(self, array: NDArray[Any]) -> Any:
        """Return the values, one row per person, checked and in the form that `_draw` takes."""
        raise NotImplementedError

    def _draw(self, values: Any, entropy: Entropy) -> NDArray[Any]:
        """Return one report per value. For one value, the order of draws is a contract with
        js/discreet-local.mjs."""
        raise NotImplementedError

    def _width(self) -> int | None:
        """Return how many integers a report has; None if it is one integer and not a list."""
        return None

    def _check_reports(self, data: NDArray[Any]) -> None:
        """Refuse reports that this randomizer never returns."""
        raise NotImplementedError

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        """Return the estimate from checked reports, whose price is `event`."""
        raise NotImplementedError


def _array(value: Any) -> NDArray[Any]:
    """Return the value as an array; the error message does not depend on the value."""
    try:
        return np.asarray(value)
    except (ValueError, TypeError, OverflowError):
        raise InvalidInput(
            "give one value, or an array with one value for each person. Nothing was drawn."
        ) from None


def _is_integer(row: Any) -> bool:
    """Return whether a plain report is an integer or a list of integers. Values that could be converted to
    integers (True, '1', 1.0) do not count.
    """
    if isinstance(row, np.ndarray):
        return row.dtype.kind in "iu"
    if isinstance(row, list | tuple):
        return all(isinstance(item, int | np.integer) and not isinstance(item, bool) for item in row)
    return isinstance(row, int | np.integer) and not isinstance(row, bool)


def released(value: Any, event: Event, error: Callable[[float], Any]) -> Release:
    """Return the release of an estimate; it is private unless the event is `NonPrivate`. `error` maps a
    confidence to the error bound."""
    return Release(value=value, event=event, private=not isinstance(event, NonPrivate), _error=error)


def is_list(values: Any) -> bool:
    """Return whether this is a list of values of several people, for randomizers whose values are no
    arrays."""
    return (
        isinstance(values, Iterable)
        and not isinstance(values, str | bytes | Mapping)
        and getattr(values, "ndim", 1) > 0
    )


def number_of(value: Any) -> float:
    """Return one value as a float, NaN if it is no number. As in the browser, True and "1" are no numbers."""
    if isinstance(value, np.ndarray) and value.ndim == 0:
        value = value.item()
    if isinstance(value, bool) or not isinstance(value, RealNumber | Decimal):
        return math.nan
    try:
        return _require.float_or_inf(value)
    except ValueError:
        # a signaling NaN of a Decimal
        return math.nan


def code_of(value: Any, domain: int) -> int | None:
    """Return one value as an integer from 0 to domain - 1 (at most 2**52); None if it is none. As in the
    browser, 3.0 is 3."""
    number = number_of(value)
    return int(number) if 0 <= number < domain and number.is_integer() else None


def one_code(value: Any, domain: int) -> Codes:
    """Return the code of one person as an array of length 1; it is 0 for what is no code below `domain`."""
    return np.array([code_of(value, domain) or 0], dtype=np.int64)


def require_entropy(entropy: Any) -> None:
    """Refuse anything but a `sampling.Entropy`."""
    if not isinstance(entropy, Entropy):
        raise _require.fail("entropy", type(entropy).__name__, "a sampling.Entropy")


def codes_below(array: NDArray[Any], domain: int, what: str = "values") -> Codes:
    """Return an array of integers from 0 to domain - 1, or raise an error that shows no value; `what` names
    the integers in it."""
    if array.dtype.kind not in "iu":
        raise InvalidInput(
            f"{what} must be integers from 0 to {domain - 1}, got {array.dtype}. Nothing was drawn."
        )
    if array.size and not (int(array.min()) >= 0 and int(array.max()) < domain):
        raise InvalidInput(f"{what} must be integers from 0 to {domain - 1}. Nothing was drawn.")
    return array.astype(np.int64, copy=False)


def check_range(data: NDArray[Any], bounds: Any) -> None:
    """Refuse reports outside 0, ..., bounds - 1; `bounds` is one bound, or one per column."""
    if (data < 0).any() or (data >= np.asarray(bounds)).any():
        raise InvalidInput("some reports cannot come from this randomizer. Nothing was estimated.")


def spec(kind: str, randomizer: Any, **numbers: Any) -> dict[str, Any]:
    """Return the description of a randomizer for the browser: its kind, its price in millionths of epsilon
    (rounded up), its JSON, and the numbers that its kind needs. All names are a contract with
    js/discreet-local.mjs.
    """
    cost = _require.exact(randomizer.epsilon, "epsilon") * 10**6
    microepsilon = -(-cost.numerator // cost.denominator)
    fields = {name: value for name, value in numbers.items() if value is not None}
    return {
        "kind": kind,
        "microepsilon": microepsilon,
        "randomizer": json.dumps(to_json(randomizer)),
        **fields,
    }


def require_span(low: Any, high: Any) -> None:
    """Refuse bounds whose difference is zero or infinite as a float. The position of some values between such
    bounds would be NaN, and whether a report is refused would then depend on the value.
    """
    if not 0 < (span := _require.float_or_inf(high) - _require.float_or_inf(low)) < math.inf:
        raise _require.fail("high - low", span, "a number above zero that floats can hold")


def require_parameters(epsilon: Any, domain: Any) -> None:
    """Require a domain of 2 to 2**52 values, and an epsilon large enough for uneven integer odds."""
    _require.integer(domain=domain, at_least=2)
    _draws.odds(epsilon)
    if domain > _draws.LIMIT:
        raise _require.fail("domain", domain, f"at most 2**52 = {_draws.LIMIT}")
