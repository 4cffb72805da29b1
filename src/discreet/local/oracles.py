"""Defines frequency oracles: they estimate the share of each value among many people from one private report
per person.

Every person has one of `domain` values, numbered from 0. Every oracle of this module is a pure protocol (Wang
et al. 2017): a report *supports* some values, the sender's own with probability p and any other one with
probability q. So (c / n - q) / (p - q) is an unbiased estimate of the share of a value that c of n reports
support, and its variance is known beforehand. `hashing.best` compares the oracles. In the proofs, a and b are
the integer weights of `_base.odds`, a / b <= exp(epsilon).

Defines randomized response by an arbitrary channel: a table with the probability of each report given each
value, as exact rationals.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from fractions import Fraction
from itertools import accumulate
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._registry import described
from .._require import at_least, instance_of
from ..accounting import Event
from ..mechanisms.protocols import Release
from ..mechanisms.randomized_response import Channel, Confidence, People, Support, codes_below, deviation
from ..sampling import Entropy
from . import _base
from ._base import (
    Codes,
    Epsilon,
    Floats,
    LocalRandomizer,
    check_range,
    domain_up_to,
    one_code,
    released,
    require_possible,
    spec,
    vector,
)

# The largest domain all of whose shares are estimated at once: 2**24 integers of 64 bits are 128 MB. Chosen
# by hand, not tuned.
MOST_SHARES = 1 << 24
# What a message ends with that refuses a large domain.
_HASHING = "; LocalHashing has no such limit"
# The largest table that is drawn at once, reports times values: 2**22 integers are 32 MB. Chosen by hand.
_CELLS = 1 << 22


class FrequencyOracle(LocalRandomizer):
    """Estimates shares without bias, with their variances and error bounds; the base class of frequency
    oracles."""

    __slots__ = ()
    domain: int

    def __post_init__(self) -> None:
        self.ratio  # noqa: B018 - refuses an epsilon that is too small for integer odds

    @property
    @abstractmethod
    def support(self) -> Support:
        """Return (p, q): the probability that a report supports the sender's value, and that it supports any
        one other value."""

    @property
    @abstractmethod
    def bits(self) -> int:
        """Return how many bits a report takes."""

    def counts(self, reports: Any) -> Codes:
        """Return how many reports support each value."""
        return self._counts(self._collect(reports)[0])

    def supported(self, reports: Any) -> NDArray[np.bool_]:
        """Return which values each report supports: one row per report, one column per value."""
        return self._supported(self._collect(reports)[0])

    @_require.check_options
    def variance(self, people: People, shares: Any = None) -> Floats:
        """Return the variance of each estimated share, if the true ones are `shares` (by default all
        equal)."""
        f = self._shares(shares)
        return np.asarray(self.support.as_floats().variance(f, 1 - f, people))

    @_require.check_options
    def mean_squared_error(self, people: People, shares: Any = None) -> float:
        """Return the variance of an estimated share, averaged over all values."""
        # The same without an array of the domain's size.
        if shares is None and self.domain > 1 << 20:
            f = 1 / self.domain
            return float(self.support.as_floats().variance(f, 1 - f, people))
        return float(self.variance(people, shares).mean())

    def standard_errors(self, release: Release, people: int) -> Floats:
        """Return estimated standard deviations of the shares in a release: their variance with the estimated
        shares in place of the true ones."""
        return np.sqrt(self.variance(people, np.clip(release.value, 0.0, 1.0)))

    @_require.check_options
    def error(self, people: People, confidence: Confidence = 0.95) -> float:
        """Return a bound on the distance of all estimated shares from the true ones; with probability
        `confidence` it holds for all values at once.

        Proof: an estimate is the mean of independent summands. `randomized_response.deviation`, with a union
               over the domain.
        """
        log_term = math.log(2 * self.domain / (1 - confidence))
        return deviation(people, *self._moments(), log_term) / people * (1 + 1e-12)

    def _moments(self) -> tuple[float, float]:
        """Return (width of the interval of one person's summand, upper bound on its variance), rounded up."""
        return self.support.moments()

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        people = len(data)
        value = self._from_counts(self._counts(data), people)
        return released(value, event, lambda confidence: self.error(people, confidence))

    def _from_counts(self, counts: NDArray[Any], people: int) -> Floats:
        """Return the estimated shares from the number of reports that support each value."""
        return np.asarray(self.support.as_floats().unbiased(counts / people))

    def _shares(self, shares: Any) -> Floats:
        """Return checked shares, one per value; equal ones for None."""
        if shares is None:
            return np.full(self.domain, 1 / self.domain)
        f = np.asarray(shares, dtype=np.float64)
        fits = f.shape == (self.domain,) and ((f >= 0) & (f <= 1)).all()
        _require.that(fits, f"shares must be {self.domain} numbers between 0 and 1.")
        return f

    def _one(self, value: Any) -> Codes:
        return one_code(value, self.domain)

    def _values(self, values: Any) -> Codes:
        return codes_below(vector(values), self.domain)

    @abstractmethod
    def _counts(self, data: NDArray[Any]) -> Codes:
        """Return `counts` for checked reports."""

    @abstractmethod
    def _supported(self, data: NDArray[Any]) -> NDArray[np.bool_]:
        """Return `supported` for checked reports."""


class NamingOracle(FrequencyOracle):
    """Reports one of the values, which alone is supported; the base class of k-ary responses."""

    __slots__ = ()

    @property
    def bits(self) -> int:
        return (self.domain - 1).bit_length()

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, self.domain)

    def _counts(self, data: NDArray[Any]) -> Codes:
        return np.bincount(data, minlength=self.domain)

    def _supported(self, data: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(data[:, None] == np.arange(self.domain))


@described("local.KaryResponse")
class KaryResponse(NamingOracle):
    """Reports the true value, or another one that is drawn uniformly: k-ary randomized response (generalized
    randomized response, direct encoding).

    Guarantee: one report is epsilon-DP.
    Proof:     the true value has weight a and every other report weight b, of a total that is the same for
               all values; a / b <= exp(epsilon) (`_base.odds`). Kairouz, Bonawitz & Ramage 2016,
               arXiv:1602.07387; for two values Warner 1965.
    Assumes:   `entropy` yields independent uniform bits.

    >>> round(KaryResponse(epsilon=1, domain=128).mean_squared_error(20_000), 5)
    0.00221
    """

    epsilon: Epsilon
    domain: Annotated[int, domain_up_to(MOST_SHARES, f", as all shares are estimated at once{_HASHING}")]

    @property
    def _weights(self) -> tuple[int, int]:
        return _base.odds(self.epsilon, 1, self.domain - 1)

    @property
    def support(self) -> Support:
        return Support.of_odds(self.ratio, self.domain)

    def client(self) -> dict[str, Any]:
        return spec("kary", self, domain=self.domain, weights=list(self._weights))

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        return _base.kary_response(values, self.domain, self._weights, entropy)


BitDomain = Annotated[int, domain_up_to(1 << 20, f", as reports have one bit per value{_HASHING}")]


class UnaryEncoding(FrequencyOracle):
    """Reports one bit per value: the bit of the true value is set with probability p, each other bit with
    probability q."""

    __slots__ = ()

    @property
    @abstractmethod
    def thresholds(self) -> tuple[int, int]:
        """Return (p, q) in units of 2**-32; q is rounded up, towards privacy."""

    @property
    def support(self) -> Support:
        high, low = self.thresholds
        return Support(Fraction(high, _base.COIN), Fraction(low, _base.COIN))

    @property
    def ratio(self) -> Fraction:
        p, q = self.support
        return Fraction(p * (1 - q) / ((1 - p) * q))

    @property
    def bits(self) -> int:
        return self.domain

    def client(self) -> dict[str, Any]:
        return spec("unary", self, domain=self.domain, thresholds=list(self.thresholds))

    def _draw(self, values: Codes, entropy: Entropy) -> NDArray[np.uint8]:
        high, low = self.thresholds
        data = np.empty((len(values), self.domain), np.uint8)
        rows = max(1, _CELLS // self.domain)
        for start in range(0, len(values), rows):
            part = values[start : start + rows]
            levels = np.full((len(part), self.domain), low, np.int64)
            levels[np.arange(len(part)), part] = high
            data[start : start + rows] = _base.coins(levels, entropy)
        return data

    def _width(self) -> int:
        return self.domain

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, 2)

    def _counts(self, data: NDArray[Any]) -> Codes:
        return np.asarray(data.sum(axis=0, dtype=np.int64))

    def _supported(self, data: NDArray[Any]) -> NDArray[np.bool_]:
        return data.astype(bool)


@described("local.SymmetricUnary")
class SymmetricUnary(UnaryEncoding):
    """Reports one bit per value, all flipped with the same probability: symmetric unary encoding (SUE, basic
    one-time RAPPOR).

    Guarantee: one report is epsilon-DP.
    Proof:     the encodings of two values differ in two bits, and each bit is flipped with probability q,
               where (1 - q) / q <= exp(epsilon / 2). Wang et al. 2017 (USENIX Security); Erlingsson, Pihur &
               Korolova 2014, arXiv:1407.6981.
    Assumes:   `entropy` yields independent uniform bits.
    """

    epsilon: Epsilon
    domain: BitDomain

    @property
    def thresholds(self) -> tuple[int, int]:
        low = _base.small_share(self.epsilon, bits=2)
        return _base.COIN - low, low


@described("local.OptimalUnary")
class OptimalUnary(UnaryEncoding):
    """Reports one bit per value: optimized unary encoding (OUE). The bit of the true value is a fair coin,
    the others are set with probability 1 / (exp(epsilon) + 1).

    Guarantee: one report is epsilon-DP.
    Proof:     two values differ in the distribution of two bits, which are set with probability (p, q) for
               one value and (q, p) for the other. With p = 1/2 the ratio of the probabilities of both bits is
               largest where the first is set and the second is not: p (1 - q) / ((1 - p) q) = (1 - q) / q <=
               exp(epsilon). Wang et al. 2017 (USENIX Security):
               variance 4 exp(epsilon) / (n (exp(epsilon) - 1)²).
    Assumes:   `entropy` yields independent uniform bits.

    >>> round(OptimalUnary(epsilon=1, domain=128).mean_squared_error(20_000), 7)
    0.0001845
    """

    epsilon: Epsilon
    domain: BitDomain

    @property
    def thresholds(self) -> tuple[int, int]:
        return _base.COIN // 2, _base.small_share(self.epsilon)


@described("local.SubsetSelection")
class SubsetSelection(FrequencyOracle):
    """Reports a set of `size` values, which contains the true value more often than a uniform set would:
    subset selection.

    The size with the smallest variance, the default, is about domain / (exp(epsilon) + 1); with size 1 this
    is k-ary randomized response.

    Guarantee: one report is epsilon-DP.
    Proof:     every set that contains the true value has weight a, every other set weight b, of a total that
               is the same for all values; a / b <= exp(epsilon). Ye & Barg 2018, arXiv:1702.00610; Wang et
               al. 2016, arXiv:1607.08025.
    Assumes:   `entropy` yields independent uniform bits.

    >>> round(SubsetSelection(epsilon=1, domain=128).mean_squared_error(20_000), 7)
    0.0001809
    """

    epsilon: Epsilon
    domain: Annotated[int, domain_up_to(1 << 20, f" for subset selection{_HASHING}")]
    size: Annotated[int, at_least(0)] = 0

    def __post_init__(self) -> None:
        _require.must(self.size < self.domain, "size", self.size, f"below the domain's size {self.domain}")
        if not self.size:
            object.__setattr__(self, "size", self._best_size())
        FrequencyOracle.__post_init__(self)

    @property
    def _weights(self) -> tuple[int, int]:
        return _base.odds(self.epsilon, self.size, self.domain - self.size)

    @property
    def support(self) -> Support:
        # q: a set has k - 1 of the d - 1 other values if it contains the true one, else k of them.
        a, b = self._weights
        k, d = self.size, self.domain
        p = Fraction(a * k, a * k + b * (d - k))
        return Support(p, (p * (k - 1) + (1 - p) * k) / (d - 1))

    @property
    def bits(self) -> int:
        return min(self.domain, self.size * (self.domain - 1).bit_length())

    def client(self) -> dict[str, Any]:
        return spec("subset", self, domain=self.domain, size=self.size, weights=list(self._weights))

    def _best_size(self) -> int:
        """Return the size with the smallest variance where all values are equally common, among 1 and the
        sizes next to domain / (exp(epsilon) + 1). Beyond epsilon 60, the size is 1."""
        d, exp_epsilon = self.domain, math.exp(min(_require.float_or_inf(self.epsilon), 60.0))
        middle = round(d / (exp_epsilon + 1))
        sizes = {min(max(k, 1), d - 1) for k in (1, middle - 1, middle, middle + 1)}

        def unit_variance(k: int) -> float:
            p = exp_epsilon * k / (exp_epsilon * k + d - k)
            q = (p * (k - 1) + (1 - p) * k) / (d - 1)
            return (p * (1 - p) + (d - 1) * q * (1 - q)) / (p - q) ** 2

        return min(sorted(sizes), key=unit_variance)

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        """Return one sorted set per value. The order of draws: whether the true value is in the set, then the
        other values, by the first steps of a Fisher-Yates shuffle of all other values."""
        a, b = self._weights
        k, d = self.size, self.domain
        data = np.empty((len(values), k), np.int64)
        rows = max(1, _CELLS // d)
        for start in range(0, len(values), rows):
            part = values[start : start + rows]
            contains_own = _base.coin(a * k, a * k + b * (d - k), len(part), entropy)
            data[start : start + rows] = self._subsets(part, contains_own, entropy)
        data.sort(axis=1)
        return data

    def _subsets(self, values: Codes, contains_own: NDArray[np.bool_], entropy: Entropy) -> Codes:
        """Draw, for each value, a uniform set of `size` values that contains the value itself where
        `contains_own` is True, and does not contain it elsewhere."""
        k, n = self.size, len(values)
        if n == 1:
            return self._subset_of_one(int(values[0]), bool(contains_own[0]), entropy)
        # All values but the own one, as 0 to domain - 2: numbers from the own value on are raised by one
        # below.
        urn = np.broadcast_to(np.arange(self.domain - 1), (n, self.domain - 1)).copy()
        rows = np.arange(n)
        for step in range(k):
            if step == k - 1:
                # the last position is drawn only where the true value does not take it
                rows = np.flatnonzero(~contains_own)
            swapped = step + _base.below(self.domain - 1 - step, len(rows), entropy)
            urn[rows, step], urn[rows, swapped] = urn[rows, swapped], urn[rows, step].copy()
        subset = urn[:, :k]
        subset = subset + (subset >= values[:, None])
        subset[contains_own, k - 1] = values[contains_own]
        return subset

    def _subset_of_one(self, value: int, contains_own: bool, entropy: Entropy) -> Codes:
        """Draw `_subsets` for a single value: the same set from the same random words, but faster. One report
        over 10**6 values at epsilon 1 takes 269,000 draws; measured, each took 90 microseconds as an
        array."""
        k, d = self.size, self.domain
        drawn = k - 1 if contains_own else k
        urn = list(range(d - 1))
        for step, offset in enumerate(_base.below_each(range(d - 1, d - 1 - drawn, -1), entropy)):
            swapped = step + offset
            urn[step], urn[swapped] = urn[swapped], urn[step]
        subset = np.array(urn[:drawn], np.int64)
        subset += subset >= value
        return np.append(subset, value)[None, :] if contains_own else subset[None, :]

    def _width(self) -> int:
        return self.size

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, self.domain)
        # compared, not subtracted: differences of unsigned integers are never negative
        _require.that(
            not (data[:, 1:] <= data[:, :-1]).any(), "each report must list different values in order."
        )

    def _counts(self, data: NDArray[Any]) -> Codes:
        return np.bincount(data.ravel(), minlength=self.domain)

    def _supported(self, data: NDArray[Any]) -> NDArray[np.bool_]:
        supported = np.zeros((len(data), self.domain), bool)
        np.put_along_axis(supported, data, True, axis=1)
        return supported


@described("local.DesignResponse")
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

    design: Annotated[Channel, instance_of(Channel, "a mechanisms.Channel")]

    def __post_init__(self) -> None:
        _require.must(
            all(ends[-1] <= _base.LIMIT for ends in self._ends),
            "design",
            "a row",
            f"such that its probabilities have a common denominator of at most {_base.LIMIT}",
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
        """Return the cumulative sums of the integer weights of each row."""
        return [list(accumulate(weights)) for weights in self.design.weights]

    def matrix(self) -> Floats:
        """Return the probabilities as floats, one row per value and one column per report."""
        return np.array([[float(p) for p in row] for row in self.design.rows])

    def client(self) -> dict[str, Any]:
        return spec("table", self, ends=self._ends)

    def _one(self, value: Any) -> Codes:
        return one_code(value, self.domain)

    def _values(self, values: Any) -> Codes:
        return codes_below(vector(values), self.domain)

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        data = np.empty(len(values), np.int64)
        for truth, ends in enumerate(self._ends):
            members = np.flatnonzero(values == truth)
            if len(members):
                data[members] = _base.choose(ends, len(members), entropy)
        return data

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, self.design.reports)
        # No value leads to these reports; one that is forged would have likelihood zero for every value.
        impossible = [j for j, column in enumerate(zip(*self.design.rows, strict=True)) if not any(column)]
        require_possible(~np.isin(data, impossible))

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        counts, people = np.bincount(data, minlength=self.design.reports).tolist(), len(data)
        shares = np.array([float(x / people) for x in self.design.estimate(counts)])
        return released(shares, event, lambda confidence: self.design.error(people, confidence) / people)
