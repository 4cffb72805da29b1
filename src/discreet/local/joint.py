"""Estimates marginals of several attributes, where each person reports one marginal; and heavy hitters of
huge domains, by extending common prefixes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._registry import described
from .._require import Real
from ..accounting import Event
from ..inference import Marginal, consistent_marginals
from ..mechanisms.protocols import Release
from ..sampling import Entropy
from . import _draws
from ._base import LocalRandomizer, check_range, code_of, codes_below, one_code, released, spec
from ._draws import Codes
from .hashing import LocalHashing
from .oracles import FrequencyOracle
from .sets import oracle_named


@described("local.MarginalResponse")
@dataclass(frozen=True, slots=True, kw_only=True)
class MarginalResponse(LocalRandomizer):
    """Collects all `ways`-way marginals of several attributes: each person draws one marginal at random, and
    reports its cell with the whole epsilon.

    A value is a list of codes, one per attribute; attribute i has codes from 0 to sizes[i] - 1. `oracle` is a
    name in `choice.ORACLES`, or "best". Dividing people among the marginals is better than dividing epsilon:
    the variance grows with the number of marginals instead of its square. The release maps each tuple of
    attributes to a table of shares; `consistent` makes the tables agree.

    Guarantee: one report is epsilon-DP.
    Proof:     which marginal is drawn does not depend on the value; given it, the oracle's report is
               epsilon-DP. (Cormode, Kulkarni & Srivastava 2018, SIGMOD; Zhang et al. 2018, CALM.)
    Assumes:   `entropy` yields independent uniform bits.
    """

    epsilon: Real
    sizes: tuple[int, ...]
    ways: int = 2
    oracle: str = "best"

    _value_dimensions = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "sizes", tuple(_require.listed(sizes=self.sizes)))
        for size in self.sizes:
            _require.integer(size=size, at_least=2)
        _require.integer(ways=self.ways, at_least=1)
        if self.ways > len(self.sizes):
            raise _require.fail("ways", self.ways, f"at most the number of attributes, {len(self.sizes)}")
        # Refuses what the oracles refuse.
        self._oracles()

    @property
    def marginals(self) -> tuple[tuple[int, ...], ...]:
        """Return the attributes of each marginal; a report names a marginal by its index in this tuple."""
        return tuple(combinations(range(len(self.sizes)), self.ways))

    def client(self) -> dict[str, Any]:
        marginals = [list(attributes) for attributes in self.marginals]
        oracles = [oracle.client() for oracle in self._oracles()]
        return spec("marginals", self, sizes=list(self.sizes), marginals=marginals, oracles=oracles)

    def _cells(self, attributes: tuple[int, ...]) -> int:
        """Return the number of cells of a marginal."""
        return math.prod(self.sizes[i] for i in attributes)

    def _oracles(self) -> list[FrequencyOracle]:
        """Return the frequency oracle of each marginal."""
        return [
            oracle_named(self.oracle, self.epsilon, self._cells(attributes)) for attributes in self.marginals
        ]

    @property
    def ratio(self) -> Fraction:
        return max(oracle.ratio for oracle in self._oracles())

    def _one(self, value: Any) -> Codes:
        """Return the codes of one person. An attribute whose code is none counts as 0; so do all of them if
        the value is no list of this length."""
        is_list = isinstance(value, list | tuple) or (isinstance(value, np.ndarray) and value.ndim == 1)
        codes = value if is_list and len(value) == len(self.sizes) else [0] * len(self.sizes)
        return np.array([[code_of(code, size) or 0 for code, size in zip(codes, self.sizes, strict=True)]])

    def _values(self, array: NDArray[Any]) -> Codes:
        if array.shape[1] != len(self.sizes):
            raise InvalidInput(
                f"a value has one code for each of {len(self.sizes)} attributes. Nothing was drawn."
            )
        for column, size in zip(array.T, self.sizes, strict=True):
            codes_below(column, size, "an attribute's codes")
        return array.astype(np.int64)

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        """Return rows (index of the marginal, the oracle's report..., padding of -1)."""
        which = _draws.below(len(self.marginals), len(values), entropy)
        data = np.full((len(values), self._width()), -1, np.int64)
        data[:, 0] = which
        for number, (attributes, oracle) in enumerate(zip(self.marginals, self._oracles(), strict=True)):
            members = np.flatnonzero(which == number)
            if len(members):
                cells = np.zeros(len(members), np.int64)
                for i in attributes:
                    cells = cells * self.sizes[i] + values[members, i]
                reports = oracle._draw(cells, entropy)
                data[members, 1 : 1 + (oracle._width() or 1)] = reports.reshape(len(members), -1)
        return data

    def _width(self) -> int:
        return 1 + max(oracle._width() or 1 for oracle in self._oracles())

    def _rows(self, data: NDArray[Any], number: int, oracle: FrequencyOracle) -> NDArray[Any]:
        """Return the oracle's reports of one marginal, without index and padding."""
        width = oracle._width()
        rows = data[data[:, 0] == number, 1:]
        if (rows[:, width or 1 :] != -1).any():
            raise InvalidInput("some reports cannot come from this randomizer. Nothing was estimated.")
        return rows[:, 0] if width is None else rows[:, :width]

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data[:, 0], len(self.marginals))
        for number, oracle in enumerate(self._oracles()):
            oracle._check_reports(self._rows(data, number, oracle))

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        tables, people = {}, {}
        for number, (attributes, oracle) in enumerate(zip(self.marginals, self._oracles(), strict=True)):
            rows = self._rows(data, number, oracle)
            if not len(rows):
                raise InvalidInput(
                    f"nobody reported the marginal of attributes {attributes}. Nothing was estimated. "
                    f"Collect more reports."
                )
            tables[attributes] = oracle.estimate(rows).value.reshape([self.sizes[i] for i in attributes])
            people[attributes] = len(rows)

        def error(confidence: float) -> dict[tuple[int, ...], float]:
            """Return the error bound of each marginal; with probability `confidence` all hold at once. Half
            of the failure probability is for the oracles, and half for the sampling: those who report a
            marginal are a random sample of all people (Hoeffding, a union over the cells)."""
            part_confidence = 1 - (1 - confidence) / (2 * len(tables))
            return {
                attributes: oracle.error(people[attributes], part_confidence)
                + math.sqrt(math.log(2 * oracle.domain / (1 - part_confidence)) / (2 * people[attributes]))
                for attributes, oracle in zip(self.marginals, self._oracles(), strict=True)
            }

        return released(tables, event, error)

    def consistent(self, release: Release, people: int) -> dict[tuple[int, ...], NDArray[Any]]:
        """Return the tables of a release, changed by least squares so that they agree on all marginals that
        they share. `people` is the number of reports behind the release; each table counts as if it had an
        equal part of them.
        """
        people_each = max(1, people // len(self.marginals))
        measured = [
            Marginal(
                attributes=attributes,
                values=release.value[attributes],
                variance=oracle.mean_squared_error(people_each),
            )
            for attributes, oracle in zip(self.marginals, self._oracles(), strict=True)
        ]
        total = Marginal(attributes=(), values=np.array(1.0), variance=0.0)
        agreed = consistent_marginals([*measured, total])
        return {m.attributes: m.values for m in agreed[:-1]}  # type: ignore[misc]


@described("local.HeavyHitters")
@dataclass(frozen=True, slots=True, kw_only=True)
class HeavyHitters(LocalRandomizer):
    """Finds the common values among numbers of `length` bits (which may encode words or addresses) by the
    prefix extending method (PEM).

    Each person draws one level at random, and reports the prefix of the value at that level by local hashing
    with the whole epsilon. Prefixes have `first` bits at the lowest level, and at each further level `step`
    bits more, up to `length`. At each level the collector keeps the `keep` most common prefixes, extends them
    in all 2**step ways, and estimates the extended prefixes at the next level. The release maps the `keep`
    values of the last level to their estimated shares, most common first.

    Guarantee: one report is epsilon-DP.
    Proof:     the level does not depend on the value; given it, the report is `LocalHashing`'s. Wang, Li &
               Jha 2018, arXiv:1708.06674; the tree of prefixes is Bassily & Smith 2015, arXiv:1504.04686.
    Assumes:   `entropy` yields independent uniform bits.
    """

    epsilon: Real
    length: int
    first: int = 8
    step: int = 4
    keep: int = 32

    def __post_init__(self) -> None:
        _require.integer(length=self.length, first=self.first, step=self.step, keep=self.keep, at_least=1)
        if (
            self.length > 52
            or self.first > self.length
            or self.first > 16
            or self.step > 12
            or self.keep > 4096
        ):
            raise InvalidInput(
                "length must be at most 52, first at most 16 and at most length, step at most 12, keep at "
                f"most 4096; got {self.length}, {self.first}, {self.step}, {self.keep}. Nothing was drawn."
            )
        # Refuses an epsilon that the oracle refuses.
        self._oracle(0)

    @property
    def levels(self) -> tuple[int, ...]:
        """Return how many bits are reported at each level."""
        inner = range(self.first, self.length, self.step)
        return (*inner, self.length)

    def client(self) -> dict[str, Any]:
        oracles = [self._oracle(level).client() for level in range(len(self.levels))]
        return spec("prefixes", self, length=self.length, levels=list(self.levels), oracles=oracles)

    def _oracle(self, level: int) -> LocalHashing:
        """Return the oracle of a level. All levels have the number of buckets that is best for complete
        values, so that all reports have one length."""
        buckets = LocalHashing(epsilon=self.epsilon, domain=1 << self.length).buckets
        return LocalHashing(epsilon=self.epsilon, domain=1 << self.levels[level], buckets=buckets)

    @property
    def ratio(self) -> Fraction:
        return self._oracle(0).ratio

    def _one(self, value: Any) -> Codes:
        return one_code(value, 1 << self.length)

    def _values(self, array: NDArray[Any]) -> Codes:
        return codes_below(array, 1 << self.length)

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        """Return rows (level, the oracle's report...)."""
        levels = _draws.below(len(self.levels), len(values), entropy)
        data = np.empty((len(values), self._width()), np.int64)
        data[:, 0] = levels
        for level, bits in enumerate(self.levels):
            members = np.flatnonzero(levels == level)
            if len(members):
                data[members, 1:] = self._oracle(level)._draw(
                    values[members] >> (self.length - bits), entropy
                )
        return data

    def _width(self) -> int:
        return 1 + self._oracle(0)._width()

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data[:, 0], len(self.levels))
        for level in range(len(self.levels)):
            self._oracle(level)._check_reports(data[data[:, 0] == level, 1:])

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        prefixes, shares, people = np.arange(1 << self.first), np.zeros(0), 0
        # Each candidate prefix is high[i] + low[j]: a prefix that was kept, shifted, plus the new bits.
        high, low = prefixes, np.zeros(1, np.int64)
        for level, bits in enumerate(self.levels):
            rows, oracle = data[data[:, 0] == level, 1:], self._oracle(level)
            if not len(rows):
                raise InvalidInput(
                    f"nobody reported a prefix of {bits} bits. Nothing was estimated. Collect more reports."
                )
            if level:
                added = bits - self.levels[level - 1]
                high, low = prefixes << added, np.arange(1 << added)
                prefixes = (high[:, None] | low).ravel()
            # up to 2**16 prefixes one transform is used; chosen by hand, not tuned
            if bits <= 16:
                counts = oracle._counts(rows)[prefixes]
            else:
                counts = oracle.counts_of_sums(rows, high, low)
            shares, people = oracle._from_counts(counts, len(rows)), len(rows)
            order = np.argsort(-shares, kind="stable")[: self.keep]
            prefixes, shares = prefixes[order], shares[order]
        last = self._oracle(len(self.levels) - 1)

        def error(confidence: float) -> float:
            """Return the error bound of the shares at the last level. It holds for all values of the domain
            at once; the values in the release are those with the largest estimates, which are overestimated
            on average. Half of the failure probability is for the oracle, and half for the sampling."""
            half_confidence = 1 - (1 - confidence) / 2
            sampling_error = math.sqrt(math.log(2 * last.domain / (1 - half_confidence)) / (2 * people))
            return last.error(people, half_confidence) + sampling_error

        return released(dict(zip(prefixes.tolist(), shares.tolist(), strict=True)), event, error)
