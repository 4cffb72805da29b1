"""Defines randomized response by an arbitrary channel: a table with the probability of each report given each
value, as exact rationals."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._registry import described
from ..accounting import Event
from ..mechanisms.protocols import Release
from ..mechanisms.response_designs import Channel
from ..sampling import Entropy
from . import _draws
from ._base import Floats, LocalRandomizer, check_range, codes_below, one_code, released, spec
from ._draws import Codes


@described("local.DesignResponse")
@dataclass(frozen=True, slots=True, kw_only=True)
class DesignResponse(LocalRandomizer):
    """Runs a channel as a client randomizer: `design.rows[i][j]` is the probability that value i is reported
    as j.

    Guarantee: one report is epsilon-DP, where epsilon is the logarithm of `ratio`, rounded up.
    Proof:     see `mechanisms.Channel`.
    Assumes:   `entropy` yields independent uniform bits.

    >>> from discreet.mechanisms import two_coins
    >>> DesignResponse(design=two_coins()).ratio
    Fraction(3, 1)
    """

    design: Channel

    def __post_init__(self) -> None:
        if not isinstance(self.design, Channel):
            raise _require.fail("design", type(self.design).__name__, "a mechanisms.Channel")
        if any(ends[-1] > _draws.LIMIT for ends in self._ends):
            raise _require.fail(
                "design",
                "a row",
                f"such that its probabilities have a common denominator of at most {_draws.LIMIT}",
            )

    @property
    def epsilon(self) -> float:
        return self.design.epsilon

    @property
    def domain(self) -> int:
        """Return the number of values."""
        return self.design.truths

    @property
    def ratio(self) -> Fraction:
        return self.design.ratio

    @property
    def _ends(self) -> list[list[int]]:
        """Return the cumulative sums of each row's probabilities, as integers: each row is multiplied by the
        common denominator of its probabilities."""
        tables = []
        for row in self.design.rows:
            exact = [Fraction(p) for p in row]
            common = math.lcm(*(p.denominator for p in exact))
            tables.append(np.cumsum(np.array([int(p * common) for p in exact], dtype=object)).tolist())
        return tables

    def matrix(self) -> Floats:
        """Return the probabilities as floats, one row per value and one column per report."""
        return np.array([[float(p) for p in row] for row in self.design.rows])

    def client(self) -> dict[str, Any]:
        return spec("table", self, ends=self._ends)

    def _one(self, value: Any) -> Codes:
        return one_code(value, self.domain)

    def _values(self, array: NDArray[Any]) -> Codes:
        return codes_below(array, self.domain)

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        data = np.empty(len(values), np.int64)
        for truth, ends in enumerate(self._ends):
            members = np.flatnonzero(values == truth)
            if len(members):
                data[members] = _draws.choose(ends, len(members), entropy)
        return data

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, self.design.reports)
        # No value leads to these reports; one that is forged would have likelihood zero for every value.
        impossible = [j for j, column in enumerate(zip(*self.design.rows, strict=True)) if not any(column)]
        if np.isin(data, impossible).any():
            raise InvalidInput("some reports cannot come from this randomizer. Nothing was estimated.")

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        counts, people = np.bincount(data, minlength=self.design.reports).tolist(), len(data)
        shares = np.array([float(x / people) for x in self.design.estimate(counts)])
        return released(shares, event, lambda confidence: self.design.error(people, confidence) / people)
