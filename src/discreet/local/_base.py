"""Defines the base class of all client randomizers: it checks values, returns reports, and estimates a
release from many reports.

Makes the draws of which every client randomizer is made, from uniform random 64-bit words, and computes
the integer odds that they use.

Given the same random bytes, a device must draw the same in Python and in a browser. So there are only three
kinds of draws: an integer below a bound, a coin with a rational probability, and many coins with a resolution
of 2**-32. Each reads complete little-endian words from the entropy; a word that gives a too large integer is
thrown away; nothing is compared in floating point. For one report at a time the order of the words is part of
the contract with js/discreet-local.mjs (docs/local.md), and tests feed both the same bytes.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from numbers import Real as RealNumber
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import REPLACE
from .._registry import to_json
from .._require import Limit, Real
from ..accounting import Event, NonPrivate, PureDP
from ..mechanisms.protocols import Release
from ..sampling import Entropy, exp_neg

# The largest bound of a draw: numbers of a browser are exact up to 2**53.
LIMIT = 1 << 52
# The denominator of the probabilities of `coins`, and of rounding to a grid. Like LIMIT, it is a contract
# with js/discreet-local.mjs.
COIN = 1 << 32
Codes = NDArray[np.int64]
Bools = NDArray[np.bool_]

# The bits after the point of exp(-epsilon), from which odds are computed. At the largest epsilon, 60, 73 of
# them are significant, more than the 52 of LIMIT.
_BITS = 160
# A larger epsilon is charged in full, and drawn with the odds of epsilon 60. Odds within LIMIT are below
# 2**52, which is less than exp(60) already, and smaller odds are more private.
_LARGEST = 60


def below(bound: int, n: int, entropy: Entropy) -> Codes:
    """Draw `n` independent integers, uniform on 0, ..., bound - 1. A bound of 1 uses no random word.

    Guarantee: each value has probability exactly 1 / bound, for every bound up to 2**52.
    Proof:     the highest bits of a 64-bit word, as many as bound - 1 has, are a uniform integer; where it is
               not below the bound, the word is thrown away and another is drawn.
    Assumes:   `entropy` yields independent uniform bits.
    """
    _require.must(1 <= bound <= LIMIT, "bound", bound, f"between 1 and {LIMIT}")
    if bound == 1:
        return np.zeros(n, np.int64)
    shift = np.uint64(64 - (bound - 1).bit_length())
    values = (entropy.words(n) >> shift).view(np.int64)
    rejected = np.flatnonzero(values >= bound)
    while len(rejected):
        values[rejected] = (entropy.words(len(rejected)) >> shift).view(np.int64)
        rejected = rejected[values[rejected] >= bound]
    return values


def below_each(bounds: Sequence[int], entropy: Entropy) -> list[int]:
    """Draw one integer below each bound, independent and uniform. It returns what `below(bound, 1, entropy)`
    returns for one bound after the other, and uses the same words, but reads many words at once.

    Guarantee: that of `below`.
    Proof:     as in `below`, each word is used for the first bound that has no integer yet. Only as many
               words are read at once as the remaining bounds need at least, one per bound above 1.
    """
    drawn: list[int] = []
    while len(drawn) < len(bounds):
        least_words = sum(bound > 1 for bound in bounds[len(drawn) :])
        words = iter(entropy.words(least_words).tolist())
        while len(drawn) < len(bounds):
            bound = bounds[len(drawn)]
            word = 0 if bound == 1 else next(words, None)
            if word is None:
                break
            value = word >> (64 - (bound - 1).bit_length())
            if value < bound:
                drawn.append(value)
    return drawn


def coin(numerators: int | Codes, denominator: int, n: int, entropy: Entropy) -> Bools:
    """Toss `n` independent coins, each True with probability exactly numerator / denominator; `numerators` is
    one integer for all, or one per coin. Each coin is one draw of `below`."""
    return np.asarray(below(denominator, n, entropy) < numerators)


def coins(thresholds: NDArray[np.int64], entropy: Entropy) -> Bools:
    """Toss one coin per threshold, True with probability exactly threshold / 2**32. Each word gives two
    coins, from its low half first."""
    words = entropy.words((thresholds.size + 1) // 2).view(np.dtype("<u4"))[: thresholds.size]
    return np.asarray(words.reshape(thresholds.shape) < thresholds)


def choose(ends: Sequence[int], n: int, entropy: Entropy) -> Codes:
    """Draw `n` independent indices, index i with probability (ends[i] - ends[i-1]) / ends[-1], and index 0
    with probability ends[0] / ends[-1]: `ends` are cumulative sums of integer weights."""
    drawn = below(int(ends[-1]), n, entropy)
    return np.searchsorted(np.asarray(ends, dtype=np.int64), drawn, side="right").astype(np.int64, copy=False)


def kary_response(values: Codes, domain: int, weights: tuple[int, int], entropy: Entropy) -> Codes:
    """Draw k-ary randomized response: `weights` are (a, b), those of the true value and of each other value
    below `domain`. The order of draws: which reports are true, then the other values of the rest."""
    a, b = weights
    is_true = coin(a, a + (domain - 1) * b, len(values), entropy)
    changed = np.flatnonzero(~is_true)
    data = values.copy()
    others = below(domain - 1, len(changed), entropy)
    # values from the true one on are raised by one, so that the true value is skipped
    data[changed] = others + (others >= values[changed])
    return data


def odds(epsilon: Any, truth: int = 1, other: int = 1) -> tuple[int, int]:
    """Return integer weights (a, b), a > b, with a / b <= exp(epsilon) and truth * a + other * b <= 2**52.

    A randomizer gives weight a to `truth` of its reports and weight b to `other` reports. b is a power of
    two, as large as fits.

    Guarantee: a / b never exceeds exp(epsilon). It is above exp(epsilon) - 1 / b where weights of that ratio
               fit below 2**52; for larger epsilon it is smaller, which is more private.
    Proof:     `exp_neg` returns an integer that is not below 2**160 exp(-epsilon); dividing by it rounds
               down.

    >>> odds(1.0, 1, 1)[0] / odds(1.0, 1, 1)[1]
    2.7182818284590446
    """
    a, b = _odds(positive_epsilon(epsilon), truth, other)
    _require.must(
        a > b,
        "epsilon",
        epsilon,
        f"larger for {truth + other} different reports: rounded to integers, their odds would be 1 : 1",
    )
    return a, b


def small_share(epsilon: Any, bits: int = 1) -> int:
    """Return the least integer q with (2**32 - q) / q <= exp(epsilon / bits), so that q / 2**32 is the
    probability 1 / (1 + exp(epsilon / bits)) rounded up.

    `bits` is the number of bits in which the reports of two values differ before they are flipped with this
    probability.
    """
    q = _small_share(positive_epsilon(epsilon) / bits)
    _require.must(2 * q < COIN, "epsilon", epsilon, "larger: coins with a resolution of 2**-32 would be fair")
    return q


@lru_cache(maxsize=1024)
def _odds(exact: Fraction, truth: int, other: int) -> tuple[int, int]:
    """Return the weights of `odds`, cached. They may be 1 : 1, which the caller refuses."""
    exp_epsilon = Fraction(1 << _BITS, exp_neg(min(exact, Fraction(_LARGEST)), _BITS)[1])
    largest_b = LIMIT / (truth * exp_epsilon + other)
    b = 1 << max(int(largest_b).bit_length() - 1, 0)
    return min(int(b * exp_epsilon), (LIMIT - other * b) // truth), b


@lru_cache(maxsize=1024)
def _small_share(x: Fraction) -> int:
    """Return exp(-x) / (1 + exp(-x)) in units of 2**-32, rounded up."""
    # exp_neg returns a lower and an upper bound on exp(-x), in units of 2**-160
    low, high = exp_neg(min(x, Fraction(_LARGEST)), _BITS)
    return -(-(high << 32) // ((1 << _BITS) + low))


def positive_epsilon(epsilon: Any) -> Fraction:
    """Return the epsilon as an exact rational, refused unless it is above zero."""
    _require.positive(epsilon=epsilon)
    return _require.exact(epsilon, "epsilon")


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


class LocalRandomizer(ABC):
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
        return Fraction(*self._weights)

    if TYPE_CHECKING:
        # The integer odds of the likeliest report of a value, and of any other. Where there are none, `ratio`
        # is another.
        @property
        def _weights(self) -> tuple[int, int]: ...

    @property
    def event(self) -> Event:
        """Return the price of one report for its sender; neighbors differ in the sender's value."""
        return PureDP(epsilon=self.epsilon, neighbors=REPLACE)

    def respond(self, value: Any, /, *, entropy: Entropy) -> Any:
        """Return the report of one value, an integer or a list of integers; or a `ReportBatch` for an array
        or a list with the values of several people. A value outside the randomizer's values counts as a fixed
        public one; an array with such values is refused.
        """
        require_entropy(entropy)
        if _array(value).ndim == 0:
            return self._respond_one(value, entropy)
        return self._batch(self._draw(self._values(value), entropy), entropy)

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
            _require.that(
                reports.randomizer is None or reports.randomizer == self,
                "these reports were drawn by another randomizer, or with another epsilon. Use the "
                "randomizer that drew them.",
            )
            reports, event = reports.data, reports.event
        data = self._as_array(reports)
        _require.that(len(data), "there are no reports.")
        width = self._width()
        if data.shape[1:] != (() if width is None else (width,)) or data.dtype.kind not in "iub":
            wanted = "an integer" if width is None else f"a list of {width} integers"
            raise InvalidInput(f"each report of {type(self).__name__} is {wanted}.")
        self._check_reports(data)
        # All values were checked to be small. numpy does not combine uint64 with signed integers exactly.
        return data.astype(np.int64) if data.dtype == np.uint64 else data, event

    def _as_array(self, reports: Any) -> NDArray[Any]:
        """Return reports as an array. An array is not checked here: `_collect` checks its shape and type."""
        if isinstance(reports, np.ndarray):
            return reports
        listed = isinstance(reports, Iterable) and not isinstance(reports, str | bytes | dict)
        _require.must(listed, "reports", type(reports).__name__, "a ReportBatch or a list of reports")
        rows = list(reports)
        _require.that(
            all(_is_integer(row) for row in rows), "reports are integers or lists of integers of one length."
        )
        with _require.refusing("reports are integers or lists of integers of one length, each below 2**63."):
            return np.array(rows, dtype=np.int64)

    @abstractmethod
    def _one(self, value: Any) -> Any:
        """Return the value of one person, or the fixed public value in place of what is none, in the form
        that `_draw` takes: one row. It accepts everything. The fixed values are a contract with
        js/discreet-local.mjs."""

    @abstractmethod
    def _values(self, values: Any) -> Any:
        """Return the values of several people, one row per person, checked and in the form that `_draw`
        takes."""

    @abstractmethod
    def _draw(self, values: Any, entropy: Entropy) -> NDArray[Any]:
        """Return one report per value. For one value, the order of draws is a contract with
        js/discreet-local.mjs."""

    def _width(self) -> int | None:
        """Return how many integers a report has; None if it is one integer and not a list."""
        return None

    @abstractmethod
    def _check_reports(self, data: NDArray[Any]) -> None:
        """Refuse reports that this randomizer never returns."""

    @abstractmethod
    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        """Return the estimate from checked reports, whose price is `event`."""


def _array(value: Any) -> NDArray[Any]:
    """Return the value as an array; the error message does not depend on the value."""
    with _require.refusing("give one value, or an array with one value for each person."):
        return np.asarray(value)


def vector(values: Any) -> NDArray[Any]:
    """Return the values of several people as an array with one dimension."""
    array = _array(values)
    _require.that(
        array.ndim == 1,
        f"give one value, or an array with one value for each person; got {array.ndim} dimensions.",
    )
    return array


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
    _require.must(isinstance(entropy, Entropy), "entropy", type(entropy).__name__, "a sampling.Entropy")


def require_randomizer(randomizer: Any) -> None:
    """Refuse anything but a client randomizer."""
    kind, ours = type(randomizer).__name__, isinstance(randomizer, LocalRandomizer)
    _require.must(ours, "randomizer", kind, "a client randomizer of discreet.local")


def check_range(data: NDArray[Any], bounds: Any) -> None:
    """Refuse reports outside 0, ..., bounds - 1; `bounds` is one bound, or one per column."""
    require_possible((data >= 0) & (data < np.asarray(bounds)))


def require_possible(possible: NDArray[np.bool_]) -> None:
    """Refuse reports of which some are not possible."""
    _require.that(possible.all(), "some reports cannot come from this randomizer.")


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


def domain_up_to(most: int, why: str = "") -> Limit:
    """Return the limit of a number of values, from 2 to `most`, a power of two; `why` ends the message."""

    def check(**named: int) -> None:
        _require.integer(at_least=2, **named)
        for name, domain in named.items():
            _require.must(domain <= most, name, domain, f"at most 2**{most.bit_length() - 1}{why}")

    return Limit(check)


def _check_epsilon(**named: Real) -> None:
    """Refuse an epsilon that is too small for uneven integer odds."""
    for epsilon in named.values():
        odds(epsilon)


# The limit of an epsilon, from which odds are computed.
Epsilon = Annotated[Real, Limit(_check_epsilon)]
