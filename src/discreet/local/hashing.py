"""Local hashing and Hadamard response: short reports over large domains, added up by a fast Walsh-Hadamard
transform.

Numbers are read as vectors of bits. A mask m sends a value x to the parity of the bits that both have, <m,
x>; for two different values and a uniform mask the parities are independent fair coins. That is a universal
family with a collision probability of exactly one half, so the published variances hold exactly and not up to
the quality of a hash function, and a sum over all masks is a Walsh-Hadamard transform.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require, _round
from .._errors import InvalidInput
from .._registry import described
from .._require import Real
from ..sampling import Entropy
from . import _draws
from ._base import Floats, check_range, codes_below, require_parameters, spec
from ._draws import Codes
from .oracles import FrequencyOracle

# The most bits of a domain that is transformed at once: 2**24 integers of 64 bits are 128 MB. Larger domains
# are estimated for some candidates only.
_TRANSFORM_BITS = 24
# Entries of the table of parities that are computed at once: 2**22 integers of 64 bits are 32 MB. No
# measurement on record.
_CELLS = 1 << 22


def walsh_hadamard(values: NDArray[Any]) -> NDArray[Any]:
    """Return the sum over y of (-1)**<x, y> values[..., y] for every x: along the last axis, whose length is
    a power of two.

    >>> walsh_hadamard(np.array([1, 0, 2, 0])).tolist()
    [3, 3, -1, -1]
    """
    transformed, size = values.copy(), values.shape[-1]
    step = 1
    while step < size:
        pairs = transformed.reshape(*transformed.shape[:-1], size // (2 * step), 2, step)
        even, odd = pairs[..., 0, :], pairs[..., 1, :]
        even += odd
        odd *= -2
        odd += even
        step *= 2
    return transformed


def parity(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return whether the number of bits set is odd."""
    return (np.bitwise_count(words) & 1).astype(np.int64)


@described("local.LocalHashing")
@dataclass(frozen=True, slots=True, kw_only=True)
class LocalHashing(FrequencyOracle):
    """Hashes the value to one of `buckets`, and reports the bucket by k-ary randomized response: optimized
    local hashing (OLH).

    `buckets` is a power of two, by default the one of least variance (the optimum over all numbers is
    exp(epsilon) + 1). The hash is log2(buckets) random masks, drawn by the client and part of the report:
    they tell nothing. A report takes (log2(domain) + 1) log2(buckets) bits, and all reports are added up in
    one transform of the domain's size (*fast*: n (buckets - 1) + d log d steps, not n d).

    Guarantee: one report is epsilon-DP.
    Proof:     the masks do not depend on the value; given them, the report is k-ary randomized response over
               the buckets with a / b <= exp(epsilon). Wang et al. 2017 (USENIX Security); with two buckets it
               is that of Bassily & Smith 2015, arXiv:1504.04686. For the estimate: P(<m, x> = <m, y> for all
               masks) = 1 / buckets exactly for x != y, so q = 1 / buckets.
    Assumes:   `entropy` yields independent uniform bits.

    >>> oracle = LocalHashing(epsilon=1, domain=128)
    >>> oracle.buckets, round(oracle.mean_squared_error(20_000), 7)
    (4, 0.0001851)
    """

    epsilon: Real
    domain: int
    buckets: int = 0

    def __post_init__(self) -> None:
        require_parameters(self.epsilon, self.domain)
        _require.integer(buckets=self.buckets, at_least=0)
        if not self.buckets:
            object.__setattr__(self, "buckets", self._best_buckets())
        if self.buckets < 2 or self.buckets & (self.buckets - 1) or self.buckets > 1 << 30:
            raise _require.fail("buckets", self.buckets, "a power of two from 2 to 2**30")
        self._weights  # noqa: B018 - refuses an epsilon that integer odds cannot express

    @property
    def _weights(self) -> tuple[int, int]:
        return _draws.odds(self.epsilon, 1, self.buckets - 1)

    @property
    def _masks(self) -> int:
        return self.buckets.bit_length() - 1

    @property
    def _length(self) -> int:
        """Return the bits of a value."""
        return (self.domain - 1).bit_length()

    @property
    def ratio(self) -> Fraction:
        return Fraction(*self._weights)

    @property
    def support(self) -> tuple[Fraction, Fraction]:
        a, b = self._weights
        return Fraction(a, a + (self.buckets - 1) * b), Fraction(1, self.buckets)

    @property
    def bits(self) -> int:
        return self._masks * (self._length + 1)

    def client(self) -> dict[str, Any]:
        return spec(
            "hashing",
            self,
            domain=self.domain,
            length=self._length,
            masks=self._masks,
            weights=list(self._weights),
        )

    def _best_buckets(self) -> int:
        e = math.exp(min(float(self.epsilon), 20.0))
        # more buckets than values hide nothing more, and each costs a pass over all reports: at most 2**12
        longest = min(self._length, 12)
        return min((1 << k for k in range(1, longest + 1)), key=lambda g: (e - 1 + g) ** 2 / (g - 1))

    def hash(self, masks: Codes, values: Codes) -> Codes:
        """Return the buckets of values under rows of masks; the arrays are broadcast against each other."""
        bits = parity(masks[..., 0] & values)
        for bit in range(1, self._masks):
            bits |= parity(masks[..., bit] & values) << bit
        return bits

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        """Return the masks, one after the other; then whether the true bucket is reported, and if not,
        which other one.
        """
        a, b = self._weights
        n = len(values)
        data = np.empty((n, self._masks + 1), np.int64)
        for bit in range(self._masks):
            data[:, bit] = _draws.below(1 << self._length, n, entropy)
        truth = self.hash(data[:, :-1], values)
        honest = _draws.coin(a, a + (self.buckets - 1) * b, n, entropy)
        lies = np.flatnonzero(~honest)
        others = _draws.below(self.buckets - 1, len(lies), entropy)
        truth[lies] = others + (others >= truth[lies])
        data[:, -1] = truth
        return data

    def _width(self) -> int:
        return self._masks + 1

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, [1 << self._length] * self._masks + [self.buckets])

    def _counts(self, data: NDArray[Any]) -> Codes:
        """Return how many reports support each value, by one transform.

        Proof: a report with masks m and bucket y supports x if <m_j, x> = y_j for all j, which is the mean
               over all c of (-1)**(<c.m, x> + <c, y>), c.m the sum of the masks that c names. For each c
               these are added up by mask first.
        """
        if self._length > _TRANSFORM_BITS:
            raise InvalidInput(
                f"a domain of {self.domain} is not estimated whole. Give candidates: counts_of(reports, "
                "candidates), or look for the common values with local.HeavyHitters."
            )
        if self.buckets > self.domain:
            return self._counts_of(data, np.arange(self.domain))
        weights = np.zeros(1 << self._length, np.int64)
        # c = 0
        weights[0] = len(data)
        masks, y = data[:, :-1], data[:, -1]
        combined, odd = np.zeros(len(data), np.int64), np.zeros(len(data), np.int64)
        columns = [np.ascontiguousarray(masks[:, bit]) for bit in range(self._masks)]
        for number in range(1, self.buckets):
            # in the order of a Gray code, so that two neighbors differ in one mask
            bit = (number & -number).bit_length() - 1
            combined ^= columns[bit]
            odd ^= y >> bit & 1
            # sums of fewer than 2**53 signs are exact in floats
            signed = np.bincount(combined, weights=1 - 2 * odd, minlength=len(weights))
            weights += signed.astype(np.int64)
        return walsh_hadamard(weights)[: self.domain] >> self._masks

    def counts_of(self, reports: Any, candidates: Any) -> Codes:
        """Return how many reports support each of some candidates, one by one: for domains too large to be
        looked at whole.
        """
        return self._counts_of(self._collect(reports)[0], codes_below(np.atleast_1d(candidates), self.domain))

    def _counts_of(self, data: NDArray[Any], candidates: Codes) -> Codes:
        counts = np.zeros(len(candidates), np.int64)
        rows = max(1, _CELLS // max(1, len(candidates)))
        for start in range(0, len(data), rows):
            part = data[start : start + rows]
            counts += (self.hash(part[:, None, :-1], candidates[None, :]) == part[:, -1:]).sum(axis=0)
        return counts

    def counts_of_sums(self, data: NDArray[Any], high: Codes, low: Codes) -> Codes:
        """Return `_counts_of` for all sums high[i] + low[j] that share no bit, row by row: parities of sums
        are sums of parities."""
        counts = np.zeros((len(high), len(low)), np.int64)
        small = np.uint16 if self.buckets <= 1 << 16 else np.uint32
        rows = max(1, _CELLS // (len(high) * len(low)))
        for start in range(0, len(data), rows):
            part = data[start : start + rows]
            masks = part[:, None, :-1]
            low_buckets = (self.hash(masks, high[None, :]) ^ part[:, -1:]).astype(small)
            counts += (
                low_buckets[:, :, None] == self.hash(masks, low[None, :]).astype(small)[:, None, :]
            ).sum(axis=0)
        return counts.ravel()

    def shares_of(self, reports: Any, candidates: Any) -> Floats:
        """Return unbiased estimates of the shares of some candidates."""
        data = self._collect(reports)[0]
        codes = codes_below(np.atleast_1d(candidates), self.domain)
        return self._from_counts(self._counts_of(data, codes), len(data))

    def _supported(self, data: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(self.hash(data[:, None, :-1], np.arange(self.domain)[None, :]) == data[:, -1:])


@described("local.HadamardResponse")
@dataclass(frozen=True, slots=True, kw_only=True)
class HadamardResponse(FrequencyOracle):
    """Reports one of at most about 2 * domain numbers, more likely from the half that the value's Hadamard
    row marks: Hadamard response.

    With `blocks` = 1 it tells one bit (the high-privacy form); more blocks, a power of two, suit a larger
    epsilon. By default the best number.

    Guarantee: one report is epsilon-DP.
    Proof:     each value marks equally many numbers; these have weight a and all others weight b, so that the
               total is the same for all values, and a / b <= exp(epsilon). Acharya, Sun & Zhang 2019,
               arXiv:1802.04705. The estimate is 2 (marked) - (block), which has mean zero for other values:
               within the block because rows are orthogonal, outside because all its numbers weigh alike.
    Assumes:   `entropy` yields independent uniform bits.

    >>> round(HadamardResponse(epsilon=1, domain=128, blocks=1).mean_squared_error(20_000), 6)
    0.000234
    """

    epsilon: Real
    domain: int
    blocks: int = 0

    def __post_init__(self) -> None:
        require_parameters(self.epsilon, self.domain)
        _require.integer(blocks=self.blocks, at_least=0)
        if self.domain > 1 << _TRANSFORM_BITS:
            raise _require.fail(
                "domain", self.domain, f"at most 2**{_TRANSFORM_BITS}; LocalHashing has no such limit"
            )
        if not self.blocks:
            object.__setattr__(self, "blocks", self._best_blocks())
        if self.blocks & (self.blocks - 1) or self.blocks > self.domain:
            raise _require.fail(
                "blocks", self.blocks, f"a power of two up to the domain's size {self.domain}"
            )
        self._weights  # noqa: B018 - refuses an epsilon that integer odds cannot express

    @property
    def _block(self) -> int:
        """Return how many numbers are in a block: a power of two, one row of which (all ones) stands for no
        value.
        """
        return _block_size(self.domain, self.blocks)

    @property
    def _weights(self) -> tuple[int, int]:
        half = self._block // 2
        return _draws.odds(self.epsilon, half, self.blocks * self._block - half)

    @property
    def ratio(self) -> Fraction:
        return Fraction(*self._weights)

    @property
    def _block_chances(self) -> tuple[Fraction, Fraction, Fraction]:
        """Return (the mean of a sender's own summand before scaling, the chance of the sender's block, that
        of any other block).
        """
        a, b = self._weights
        half = self._block // 2
        total = half * a + (self.blocks * self._block - half) * b
        return Fraction(half * (a - b), total), Fraction(half * (a + b), total), Fraction(2 * half * b, total)

    @property
    def support(self) -> tuple[Fraction, Fraction]:
        """Return, for one block, the chance of a marked number and one half; more blocks have no single q."""
        if self.blocks > 1:
            raise InvalidInput(
                "Hadamard response with several blocks supports values of one block at a time: see "
                "`variance`."
            )
        a, b = self._weights
        return Fraction(a, a + b), Fraction(1, 2)

    @property
    def bits(self) -> int:
        return (self.blocks * self._block - 1).bit_length()

    def variance(self, people: int, shares: Any = None) -> Floats:
        """Return the variance of each estimated share, if the true ones are `shares` (by default all alike).

        Proof: a term is +1 or -1 where the report falls into the value's block, else 0, divided by its mean
               for the value itself; so its square has the probability of the block.
        """
        _require.integer(people=people, at_least=1)
        f = self._shares(shares)
        scale, own, other = (float(x) for x in self._block_chances)
        rows = self._block - 1
        padded = np.zeros(self.blocks * rows)
        padded[: self.domain] = f
        mass = np.repeat(padded.reshape(self.blocks, rows).sum(axis=1), rows)[: self.domain]
        return np.asarray(((mass * own + (1 - mass) * other) / scale**2 - f) / people)

    def client(self) -> dict[str, Any]:
        return spec(
            "hadamard",
            self,
            domain=self.domain,
            blocks=self.blocks,
            block=self._block,
            weights=list(self._weights),
        )

    def mean_squared_error(self, people: int, shares: Any = None) -> float:
        return float(self.variance(people, shares).mean())

    def _best_blocks(self) -> int:
        e = math.exp(min(float(self.epsilon), 20.0))
        largest = min(2 * self.domain, max(2.0, 2 * e))

        def unit_variance(blocks: int) -> float:
            half = _block_size(self.domain, blocks) / 2
            total = half * e + (2 * blocks - 1) * half
            own, other, scale = half * (e + 1) / total, 2 * half / total, half * (e - 1) / total
            return (own / blocks + (1 - 1 / blocks) * other) / scale**2

        return min((1 << k for k in range(25) if 1 << k <= min(largest, self.domain)), key=unit_variance)

    def _moments(self) -> tuple[float, float]:
        """Return the range of one person's summand, and a bound on its variance."""
        scale, own, other = self._block_chances
        return _round.up(2 / scale), _round.up(max(own, other) / scale**2)

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        """Return whether the report is marked; then which of the marked, or which of all others, the block's
        other half first.
        """
        a, b = self._weights
        block, half, n = self._block, self._block // 2, len(values)
        size = self.blocks * block
        own, row = values // (block - 1), 1 + values % (block - 1)
        marked = _draws.coin(half * a, half * a + (size - half) * b, n, entropy)
        position = np.empty(n, np.int64)
        position[marked] = _draws.below(half, int(marked.sum()), entropy)
        position[~marked] = _draws.below(size - half, n - int(marked.sum()), entropy)
        inside = self._with_parity(np.minimum(position, half - 1), row, (~marked).astype(np.int64))
        beyond = position - half
        beyond = beyond + np.where(beyond >= own * block, block, 0)
        return np.where(position < half, own * block + inside, beyond)

    def _with_parity(self, position: Codes, row: Codes, wanted: Codes) -> Codes:
        """Return the number with `position` as its bits but one, and in the row's lowest bit what makes the
        parity `wanted`.
        """
        low = row & -row
        spread = (position & (low - 1)) | ((position & -low) << 1)
        return spread | np.where(parity(spread & row) != wanted, low, 0)

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, self.blocks * self._block)

    def _counts(self, data: NDArray[Any]) -> Codes:
        """Return, for each value, how often it was marked less how often not, within its block: a
        Walsh-Hadamard transform of the numbers in each block."""
        table = np.bincount(data, minlength=self.blocks * self._block).reshape(self.blocks, self._block)
        return walsh_hadamard(table)[:, 1:].ravel()[: self.domain]

    def _from_counts(self, counts: NDArray[Any], people: int) -> Floats:
        return np.asarray(counts / (people * float(self._block_chances[0])))

    def _supported(self, data: NDArray[Any]) -> NDArray[np.bool_]:
        values = np.arange(self.domain)
        own, row = values // (self._block - 1), 1 + values % (self._block - 1)
        same = (data[:, None] // self._block) == own
        return np.asarray(same & (parity(row & (data[:, None] % self._block)) == 0))


def _block_size(domain: int, blocks: int) -> int:
    return 1 << (-(-domain // blocks)).bit_length()
