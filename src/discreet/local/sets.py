"""Randomizes sets and key-value maps: people with several items each report one of them, after padding that
hides how many items they have.

Padding and sampling: a set is padded with the item "nothing" to `largest` positions (the padding length of
the literature), one position is drawn uniformly, and the item there is reported through a frequency oracle. A
person with more than `largest` items reports a uniform one of all their items, so that these count less.
Choose `largest` from public knowledge, never from the data.

The order of the draws for one person, and the names in `client()`, are a contract with js/discreet-local.mjs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._registry import described
from .._require import Real
from ..accounting import Event
from ..mechanisms.protocols import Release
from ..sampling import Entropy
from . import _draws
from ._base import (
    Floats,
    LocalRandomizer,
    code_of,
    is_list,
    number_of,
    released,
    require_entropy,
    require_span,
    spec,
)
from .choice import ORACLES, best
from .oracles import FrequencyOracle


def oracle_named(name: str, epsilon: Real, domain: int) -> FrequencyOracle:
    """Return a frequency oracle by its name in `choice.ORACLES`, or for "best" the one with the smallest
    predicted error. (The order of predicted errors does not depend on the number of people.)"""
    _require.one_of(("best", *ORACLES), oracle=name)
    return (
        best(epsilon=epsilon, domain=domain, people=1)
        if name == "best"
        else ORACLES[name](epsilon=epsilon, domain=domain)
    )


class _PaddedRandomizer(LocalRandomizer):
    """Samples one of `largest` positions of each person's collection (a set or a mapping), and reports its
    content through a frequency oracle."""

    __slots__ = ()
    largest: int

    @property
    def frequency_oracle(self) -> FrequencyOracle:
        """Return the oracle over all contents of a position; the last code is "nothing"."""
        raise NotImplementedError

    @property
    def ratio(self) -> Fraction:
        return self.frequency_oracle.ratio

    def respond(self, value: Any, /, *, entropy: Entropy) -> Any:
        """Return the report of one collection; or a `ReportBatch` for a list with the collections of several
        people.
        """
        require_entropy(entropy)
        if self.is_single(value):
            return self._respond_one(value, entropy)
        return self._batch(self._draw([self._checked(one) for one in value], entropy), entropy)

    def _draw(self, values: list[list[Any]], entropy: Entropy) -> NDArray[Any]:
        """Return one report per collection. The order of draws: all positions, then the oracle's draws."""
        codes = np.array([self._sample_code(items, entropy) for items in values], dtype=np.int64)
        return self.frequency_oracle._draw(codes, entropy)

    def _one(self, value: Any) -> list[list[Any]]:
        return [self._items(value)]

    def _sampled_position(self, items: int, entropy: Entropy) -> int:
        """Return the position that is reported, for a collection of so many items; a position of `items` or
        more holds "nothing"."""
        return int(_draws.below(max(self.largest, items), 1, entropy)[0])

    def is_single(self, value: Any) -> bool:
        raise NotImplementedError

    def _items(self, value: Any) -> list[Any]:
        """Return the items of one collection as a sorted list. What is no item is left out, and what is no
        collection has none."""
        raise NotImplementedError

    def _checked(self, value: Any) -> list[Any]:
        """Return the items of a collection of which nothing is left out; the error message shows no item."""
        raise NotImplementedError

    def _sample_code(self, value: Any, entropy: Entropy) -> int:
        """Return the oracle's code of the content of one sampled position."""
        raise NotImplementedError

    def _width(self) -> int | None:
        return self.frequency_oracle._width()

    def _check_reports(self, data: NDArray[Any]) -> None:
        self.frequency_oracle._check_reports(data)


@described("local.SetResponse")
@dataclass(frozen=True, slots=True, kw_only=True)
class SetResponse(_PaddedRandomizer):
    """Estimates the share of people who have each item, from one report per person: padding and sampling,
    then a frequency oracle.

    A value is a set of items, numbered from 0 to domain - 1. `oracle` is a name in `choice.ORACLES`, or
    "best".

    Guarantee: one report is epsilon-DP, for any two sets.
    Proof:     for any two contents of the sampled position, the probabilities of the oracle's report differ
               by at most the factor exp(epsilon). The same holds for any two mixtures over contents, so it
               does not matter how positions are drawn. (Qin et al. 2016, LDPMiner; Wang, Li & Jha 2018, S&P.)
    Assumes:   `entropy` yields independent uniform bits. Estimates are unbiased if nobody has more than
               `largest` items.
    """

    epsilon: Real
    domain: int
    largest: int
    oracle: str = "best"

    def __post_init__(self) -> None:
        _require.integer(domain=self.domain, largest=self.largest, at_least=1)
        self.frequency_oracle  # noqa: B018 - refuses an epsilon too small for integer odds (`_draws`)

    @property
    def frequency_oracle(self) -> FrequencyOracle:
        """Return the oracle over all items and "nothing", whose code is `domain`."""
        return oracle_named(self.oracle, self.epsilon, self.domain + 1)

    def is_single(self, value: Any) -> bool:
        return isinstance(value, Set) or not is_list(value)

    def client(self) -> dict[str, Any]:
        return spec(
            "set", self, items=self.domain, largest=self.largest, oracle=self.frequency_oracle.client()
        )

    def _items(self, value: Any) -> list[int]:
        # A device may have its set as a list, as JSON does.
        collection = value if isinstance(value, Set | list | tuple) else ()
        return sorted({code for item in collection if (code := code_of(item, self.domain)) is not None})

    def _checked(self, value: Any) -> list[int]:
        items = self._items(value)
        if not isinstance(value, Set) or len(items) < len(value):
            raise InvalidInput(
                f"a value must be a set of items, numbered from 0 to {self.domain - 1}. Nothing was drawn."
            )
        return items

    def _sample_code(self, value: list[int], entropy: Entropy) -> int:
        position = self._sampled_position(len(value), entropy)
        return value[position] if position < len(value) else self.domain

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        inner = self.frequency_oracle.estimate(data)
        return released(
            inner.value[:-1] * self.largest, event, lambda confidence: self._error(len(data), confidence)
        )

    def _error(self, people: int, confidence: float) -> float:
        """Return the error bound, with half of the failure probability for the oracle and half for the
        sampling of positions (Hoeffding, a union over the items)."""
        half_confidence = 1 - (1 - confidence) / 2
        log_inverse_failure = math.log(2 * self.domain / (1 - half_confidence))
        sampling_error = self.largest * math.sqrt(log_inverse_failure / (2 * people))
        return self.largest * self.frequency_oracle.error(people, half_confidence) + sampling_error


@described("local.KeyValueResponse")
@dataclass(frozen=True, slots=True, kw_only=True)
class KeyValueResponse(_PaddedRandomizer):
    """Estimates the share of people who have each key, and the mean of their numbers for it; key and number
    are reported together.

    A value is a mapping from keys (0 to keys - 1) to numbers, which are clamped to `low` and `high`. The
    number of the sampled key is rounded to one of the two bounds at random, so that its mean is unchanged (up
    to 2**-32 of high - low, the resolution of the coin), and the pair of key and bound is one of the
    2 * keys + 1 values of a frequency oracle. The release is the pair (shares of people, means). `oracle` is
    a name in `choice.ORACLES`, or "best".

    Guarantee: one report is epsilon-DP, for any two mappings.
    Proof:     as `SetResponse`; the rounding is part of the mixture. (Joint perturbation of key and value: Gu
               et al. 2020, arXiv:1911.12834.)
    Assumes:   `entropy` yields independent uniform bits. Shares are unbiased if nobody has more than
               `largest` keys. Means are quotients of two unbiased estimates, and not unbiased themselves.
    """

    epsilon: Real
    keys: int
    low: Real
    high: Real
    largest: int = 1
    oracle: str = "best"

    def __post_init__(self) -> None:
        _require.integer(keys=self.keys, largest=self.largest, at_least=1)
        _require.ordered(low=self.low, high=self.high)
        require_span(self.low, self.high)
        self.frequency_oracle  # noqa: B018 - refuses an epsilon too small for integer odds (`_draws`)

    @property
    def frequency_oracle(self) -> FrequencyOracle:
        """Return the oracle over (0, low), (0, high), (1, low), ..., "nothing": code 2 * key + 1 is
        (key, high)."""
        return oracle_named(self.oracle, self.epsilon, 2 * self.keys + 1)

    def is_single(self, value: Any) -> bool:
        return not is_list(value)

    def client(self) -> dict[str, Any]:
        bounds = {"low": float(self.low), "high": float(self.high)}
        oracle = self.frequency_oracle.client()
        return spec("pairs", self, keys=self.keys, largest=self.largest, **bounds, oracle=oracle)

    def _items(self, value: Any) -> list[tuple[int, float]]:
        mapping = value if isinstance(value, Mapping) else {}
        pairs = ((code_of(key, self.keys), number_of(number)) for key, number in mapping.items())
        low, high = float(self.low), float(self.high)
        return sorted(
            (key, min(max(number, low), high))
            for key, number in pairs
            if key is not None and not math.isnan(number)
        )

    def _checked(self, value: Any) -> list[tuple[int, float]]:
        items = self._items(value)
        if not isinstance(value, Mapping) or len(items) < len(value):
            raise InvalidInput(
                f"a value must map keys, numbered from 0 to {self.keys - 1}, to numbers. Nothing was drawn."
            )
        return items

    def _sample_code(self, value: list[tuple[int, float]], entropy: Entropy) -> int:
        position = self._sampled_position(len(value), entropy)
        key, number = value[position] if position < len(value) else (self.keys, float(self.low))
        level = (number - float(self.low)) / (float(self.high) - float(self.low))
        # Drawn for "nothing" too, so that the number of draws is the same for all values.
        up = bool(_draws.coin(int(level * _draws.COIN), _draws.COIN, 1, entropy)[0])
        return 2 * self.keys if position >= len(value) else 2 * key + up

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        shares = self.frequency_oracle.estimate(data).value[:-1].reshape(self.keys, 2) * self.largest
        total = shares.sum(axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            level = np.where(total > 0, np.clip(shares[:, 1] / total, 0.0, 1.0), 0.5)
        means = float(self.low) + level * (float(self.high) - float(self.low))
        people = len(data)

        def error(confidence: float) -> tuple[float, Floats]:
            """Return the error bounds (of all shares, of each mean); with probability `confidence` all hold
            at once. The error of a mean is at most high - low."""
            # Half of the failure probability is for the oracle, half for the sampling of positions
            # (Hoeffding, a union over the 2 * keys pairs).
            half_confidence = 1 - (1 - confidence) / 2
            log_inverse_failure = math.log(4 * self.keys / (1 - half_confidence))
            sampling_error = self.largest * math.sqrt(log_inverse_failure / (2 * people))
            # The error of the share of one pair; the share of a key is the sum of two such shares.
            pair_error = self.largest * self.frequency_oracle.error(people, half_confidence) + sampling_error
            span = float(self.high) - float(self.low)
            # The level is a / (a + c), where a and c, the shares of people with (key, high) and (key, low),
            # are each estimated to within pair_error: its error is at most pair_error divided by the
            # estimated a + c.
            with np.errstate(divide="ignore", invalid="ignore"):
                level_error = np.where(total > 0, pair_error / total, 1.0)
            return 2 * pair_error, np.minimum(level_error, 1.0) * span

        return released((total, means), event, error)
