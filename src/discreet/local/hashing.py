"""Defines local hashing and Hadamard response: short reports over large domains, added up by a fast
Walsh-Hadamard transform.

Numbers are read as vectors of bits. A *mask* m hashes a value x to <m, x>, the parity of the bits that are
set in both. For two different values and a uniformly random mask, the two parities agree with probability
exactly one half. So the masks are a universal family of hash functions without any assumption on the quality
of a hash, the published variances hold exactly, and a sum over all masks is a Walsh-Hadamard transform.

Chooses a frequency oracle: the error of every candidate is known before any report is collected, so the
smallest one is chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from .. import _require, _round
from .._errors import InvalidInput
from .._registry import described
from .._require import Real, at_least
from ..mechanisms.randomized_response import People, Support, codes_below
from ..sampling import Entropy
from . import _base
from ._base import Codes, Epsilon, Floats, check_range, domain_up_to, spec
from .oracles import FrequencyOracle, KaryResponse, OptimalUnary, SubsetSelection, SymmetricUnary

# The largest number of bits of a domain whose transform is computed: 2**24 integers of 64 bits are 128 MB. In
# larger domains only the shares of given candidates are estimated. Chosen by hand, not tuned.
_TRANSFORM_BITS = 24
# The largest table of parities that is computed at once, reports times candidates: 2**22 integers of 64 bits
# are 32 MB. Chosen by hand, not tuned.
_CELLS = 1 << 22


def walsh_hadamard(values: NDArray[Any]) -> NDArray[Any]:
    """Return, for every x, the sum over y of (-1)**<x, y> values[..., y], where <x, y> is the parity of the
    bits set in both: the Walsh-Hadamard transform along the last axis, whose length is a power of two.

    >>> walsh_hadamard(np.array([1, 0, 2, 0])).tolist()
    [3, 3, -1, -1]
    """
    transformed, size = values.copy(), values.shape[-1]
    step = 1
    while step < size:
        pairs = transformed.reshape(*transformed.shape[:-1], size // (2 * step), 2, step)
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        # in place: (first, second) becomes (first + second, first - second)
        first += second
        second *= -2
        second += first
        step *= 2
    return transformed


def parity(words: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return 1 where the number of set bits is odd, else 0."""
    return (np.bitwise_count(words) & 1).astype(np.int64)


@described("local.LocalHashing")
class LocalHashing(FrequencyOracle):
    """Hashes the value to one of `buckets`, and reports the bucket by k-ary randomized response: optimized
    local hashing (OLH).

    `buckets` is a power of two, by default the one with the smallest variance (the optimum over all numbers
    is exp(epsilon) + 1). The hash function is a list of log2(buckets) random masks, one per bit of the
    bucket. The client draws the masks and sends them in the report; they do not depend on the value. A report
    takes (log2(domain) + 1) log2(buckets) bits. All n reports over d values are added up in one transform, in
    n (buckets - 1) + d log d steps instead of n d.

    Guarantee: one report is epsilon-DP.
    Proof:     the masks do not depend on the value; given them, the report is k-ary randomized response over
               the buckets, with weight a for the true bucket, weight b for any other, and a / b <=
               exp(epsilon) (`_base.odds`). Wang et al. 2017 (USENIX Security); with two buckets it is that
               of Bassily & Smith 2015, arXiv:1504.04686. For the estimate: P(<m, x> = <m, y> for all masks m)
               = 1 / buckets exactly for x != y, so a report supports any other value with probability q =
               1 / buckets.
    Assumes:   `entropy` yields independent uniform bits.

    >>> oracle = LocalHashing(epsilon=1, domain=128)
    >>> oracle.buckets, round(oracle.mean_squared_error(20_000), 7)
    (4, 0.0001851)
    """

    epsilon: Epsilon
    domain: Annotated[int, domain_up_to(_base.LIMIT)]
    buckets: Annotated[int, at_least(0)] = 0

    def __post_init__(self) -> None:
        if not self.buckets:
            object.__setattr__(self, "buckets", self._best_buckets())
        fits = 2 <= self.buckets <= 1 << 30 and self.buckets & (self.buckets - 1) == 0
        _require.must(fits, "buckets", self.buckets, "a power of two from 2 to 2**30")
        FrequencyOracle.__post_init__(self)

    @property
    def _weights(self) -> tuple[int, int]:
        """Return (a, b): the integer weights of the true bucket and of any other."""
        return _base.odds(self.epsilon, 1, self.buckets - 1)

    @property
    def _masks(self) -> int:
        """Return the number of masks in a report, one per bit of the bucket."""
        return self.buckets.bit_length() - 1

    @property
    def _length(self) -> int:
        """Return the number of bits of a value, and of a mask."""
        return (self.domain - 1).bit_length()

    @property
    def support(self) -> Support:
        bucket = Support.of_odds(self.ratio, self.buckets)
        return Support(bucket.p, Fraction(1, self.buckets))

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
        """Return the power of two g that minimizes the variance at small shares, which is proportional to
        (exp(epsilon) - 1 + g)² / (g - 1)."""
        # The cap at 20 avoids overflow; there, the limit on buckets decides.
        exp_epsilon = math.exp(min(_require.float_or_inf(self.epsilon), 20.0))
        # More buckets than values gain nothing, and each bucket costs a pass over all reports: at most 2**12,
        # chosen by hand, not tuned.
        longest = min(self._length, 12)
        candidates = (1 << k for k in range(1, longest + 1))
        return min(candidates, key=lambda g: (exp_epsilon - 1 + g) ** 2 / (g - 1))

    def hash(self, masks: Codes, values: Codes) -> Codes:
        """Return the buckets of values. The last axis of `masks` numbers the masks of one report; its other
        axes and `values` are broadcast against each other. Bit j of a bucket is the parity under mask j."""
        bits = parity(masks[..., 0] & values)
        for bit in range(1, self._masks):
            bits |= parity(masks[..., bit] & values) << bit
        return bits

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        """Return rows (masks..., bucket). The order of draws: the masks, whether the true bucket is reported,
        and if not, which other one.
        """
        n = len(values)
        data = np.empty((n, self._masks + 1), np.int64)
        for bit in range(self._masks):
            data[:, bit] = _base.below(1 << self._length, n, entropy)
        truth = self.hash(data[:, :-1], values)
        data[:, -1] = _base.kary_response(truth, self.buckets, self._weights, entropy)
        return data

    def _width(self) -> int:
        return self._masks + 1

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, [1 << self._length] * self._masks + [self.buckets])

    def _counts(self, data: NDArray[Any]) -> Codes:
        """Return how many reports support each value, by one transform.

        Proof: a report with masks m_0, m_1, ... and bucket y supports x if <m_j, x> = y_j for every bit j.
               The indicator of that is the mean, over all numbers c below `buckets`, of
               (-1)**(<c.m, x> + <c, y>), where c.m is the XOR of the masks m_j whose bit j is set in c. So
               the counts are a transform of `weights`: weights[z] is the sum of (-1)**<c, y> over all reports
               and all c with c.m = z, and the shift at the end divides by `buckets`.
        """
        _require.that(
            self._length <= _TRANSFORM_BITS,
            f"a domain of {self.domain} values is too large to estimate all shares. Give candidates: "
            f"shares_of(reports, candidates).",
        )
        # many buckets: one pass per value is cheaper than one per bucket
        if self.buckets > self.domain:
            return self._counts_of(data, np.arange(self.domain))
        weights = np.zeros(1 << self._length, np.int64)
        # c = 0: the XOR of no mask is 0, and every sign is +1
        weights[0] = len(data)
        masks, y = data[:, :-1], data[:, -1]
        # c.m and <c, y> of every report, for the current c
        combined, odd = np.zeros(len(data), np.int64), np.zeros(len(data), np.int64)
        columns = [np.ascontiguousarray(masks[:, bit]) for bit in range(self._masks)]
        for number in range(1, self.buckets):
            # c runs through a Gray code: from one c to the next, only this bit changes
            bit = (number & -number).bit_length() - 1
            combined ^= columns[bit]
            odd ^= y >> bit & 1
            # sums of fewer than 2**53 signs are exact in floats
            signed = np.bincount(combined, weights=1 - 2 * odd, minlength=len(weights))
            weights += signed.astype(np.int64)
        return walsh_hadamard(weights)[: self.domain] >> self._masks

    def counts_of(self, reports: Any, candidates: Any) -> Codes:
        """Return how many reports support each candidate, computed one by one; for domains that are too large
        for a transform.
        """
        return self._counts_of(self._collect(reports)[0], codes_below(np.atleast_1d(candidates), self.domain))

    def _counts_of(self, data: NDArray[Any], candidates: Codes) -> Codes:
        """Return `counts_of` for checked reports and candidates, some rows of reports at a time."""
        counts = np.zeros(len(candidates), np.int64)
        rows = max(1, _CELLS // max(1, len(candidates)))
        for start in range(0, len(data), rows):
            part = data[start : start + rows]
            counts += (self.hash(part[:, None, :-1], candidates[None, :]) == part[:, -1:]).sum(axis=0)
        return counts

    def shares_of(self, reports: Any, candidates: Any) -> Floats:
        """Return unbiased estimates of the shares of the candidates."""
        data = self._collect(reports)[0]
        codes = codes_below(np.atleast_1d(candidates), self.domain)
        return self._from_counts(self._counts_of(data, codes), len(data))

    def _supported(self, data: NDArray[Any]) -> NDArray[np.bool_]:
        return np.asarray(self.hash(data[:, None, :-1], np.arange(self.domain)[None, :]) == data[:, -1:])


@described("local.HadamardResponse")
class HadamardResponse(FrequencyOracle):
    """Reports one of at most 4 * domain numbers, more likely one that the value marks: Hadamard
    response.

    The numbers are divided into `blocks` blocks of equal size, and so are the values. A value marks half of
    the numbers of its own block: those where its row of a Hadamard matrix is +1. One block is the form for
    high privacy; more blocks suit a larger epsilon. `blocks` is a power of two, by default the best one.

    Guarantee: one report is epsilon-DP.
    Proof:     each value marks equally many numbers; these have weight a and all others weight b, so that the
               total is the same for all values, and a / b <= exp(epsilon). Acharya, Sun & Zhang 2019,
               arXiv:1802.04705. The estimate counts, for each value, reports that it marks minus reports of
               its block that it does not mark. For senders of other values this has mean zero: within the
               block because rows are orthogonal, from other blocks because all numbers of this block then
               have the same weight.
    Assumes:   `entropy` yields independent uniform bits.

    >>> round(HadamardResponse(epsilon=1, domain=128, blocks=1).mean_squared_error(20_000), 6)
    0.000234
    """

    epsilon: Epsilon
    domain: Annotated[int, domain_up_to(1 << _TRANSFORM_BITS, "; LocalHashing has no such limit")]
    blocks: Annotated[int, at_least(0)] = 0

    def __post_init__(self) -> None:
        if not self.blocks:
            object.__setattr__(self, "blocks", self._best_blocks())
        fits = self.blocks & (self.blocks - 1) == 0 and self.blocks <= self.domain
        _require.must(fits, "blocks", self.blocks, f"a power of two up to the domain's size {self.domain}")
        FrequencyOracle.__post_init__(self)

    @property
    def _block(self) -> int:
        """Return how many numbers a block has: a power of two. It has one value fewer, because row 0 of the
        Hadamard matrix, which is constant, stands for no value.
        """
        return _block_size(self.domain, self.blocks)

    @property
    def _weights(self) -> tuple[int, int]:
        """Return (a, b): the integer weights of a marked number and of any other."""
        half = self._block // 2
        return _base.odds(self.epsilon, half, self.blocks * self._block - half)

    @property
    def _block_probabilities(self) -> tuple[Fraction, Fraction, Fraction]:
        """Return (P(marked) - P(not marked, but in the sender's block), P(the sender's block), P(any one
        other block)); the first is the mean of a sender's own summand before it is scaled to 1.
        """
        a, b = self._weights
        half = self._block // 2
        total = half * a + (self.blocks * self._block - half) * b
        return Fraction(half * (a - b), total), Fraction(half * (a + b), total), Fraction(2 * half * b, total)

    @property
    def support(self) -> Support:
        """Return (p, q) for one block: the probability of a marked number, and one half. With more blocks, no
        single q holds for all other values."""
        _require.that(
            self.blocks <= 1,
            "Hadamard response with several blocks has no single probability q of support for other "
            "values. Use `variance`.",
        )
        return Support(Support.of_odds(self.ratio, 2).p, Fraction(1, 2))

    @property
    def bits(self) -> int:
        return (self.blocks * self._block - 1).bit_length()

    @_require.check_options
    def variance(self, people: People, shares: Any = None) -> Floats:
        """Return the variance of each estimated share, if the true ones are `shares` (by default all equal).

        Proof: a summand is +1 or -1 if the report is in the value's block, else 0, divided by `scale`, its
               mean for senders of the value itself. So the mean of its square is the probability of the block
               divided by scale².
        """
        f = self._shares(shares)
        scale, own, other = (float(x) for x in self._block_probabilities)
        rows = self._block - 1
        padded = np.zeros(self.blocks * rows)
        padded[: self.domain] = f
        # for each value, the share of people whose value is in its block
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
        """Return the number of blocks, a power of two up to about 2 exp(epsilon), that minimizes the variance
        where all values are equally common. Beyond epsilon 20 the domain is the smaller limit anyway."""
        exp_epsilon = math.exp(min(_require.float_or_inf(self.epsilon), 20.0))
        largest = min(self.domain, max(2.0, 2 * exp_epsilon))

        def unit_variance(blocks: int) -> float:
            half = _block_size(self.domain, blocks) / 2
            total = half * exp_epsilon + (2 * blocks - 1) * half
            own, other = half * (exp_epsilon + 1) / total, 2 * half / total
            scale = half * (exp_epsilon - 1) / total
            return (own / blocks + (1 - 1 / blocks) * other) / scale**2

        return min((1 << k for k in range(25) if 1 << k <= largest), key=unit_variance)

    def _moments(self) -> tuple[float, float]:
        """Return the range of one person's summand, and a bound on its variance."""
        scale, own, other = self._block_probabilities
        return _round.up(2 / scale), _round.up(max(own, other) / scale**2)

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        """Return one number per value. The order of draws: whether the number is marked; then which of the
        marked numbers, or which of all others, where the other half of the own block comes first.
        """
        a, b = self._weights
        block, half, n = self._block, self._block // 2, len(values)
        size = self.blocks * block
        # The number of the value's own block, and the value's row of the Hadamard matrix.
        own, row = values // (block - 1), 1 + values % (block - 1)
        marked = _base.coin(half * a, half * a + (size - half) * b, n, entropy)
        position = np.empty(n, np.int64)
        position[marked] = _base.below(half, int(marked.sum()), entropy)
        position[~marked] = _base.below(size - half, n - int(marked.sum()), entropy)
        # The number within the own block, where `position` is below `half`; elsewhere it is not used.
        in_own_block = self._with_parity(np.minimum(position, half - 1), row, (~marked).astype(np.int64))
        # The number in another block: those before the own block keep their number, the others skip it.
        elsewhere = position - half
        elsewhere = elsewhere + np.where(elsewhere >= own * block, block, 0)
        return np.where(position < half, own * block + in_own_block, elsewhere)

    def _with_parity(self, position: Codes, row: Codes, wanted: Codes) -> Codes:
        """Return the numbers of a block whose parity <number, row> is `wanted`, by their `position` among all
        such numbers: the bits of `position` fill all bits but one, and the lowest set bit of `row` is chosen
        to make the parity right.
        """
        low = row & -row
        # `position` with a zero bit inserted at the bit `low`
        spread = (position & (low - 1)) | ((position & -low) << 1)
        return spread | np.where(parity(spread & row) != wanted, low, 0)

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, self.blocks * self._block)

    def _counts(self, data: NDArray[Any]) -> Codes:
        """Return, for each value, the number of reports that it marks minus the number of reports of its
        block that it does not mark: the Walsh-Hadamard transform of each block, without row 0."""
        table = np.bincount(data, minlength=self.blocks * self._block).reshape(self.blocks, self._block)
        return walsh_hadamard(table)[:, 1:].ravel()[: self.domain]

    def _from_counts(self, counts: NDArray[Any], people: int) -> Floats:
        return np.asarray(counts / (people * float(self._block_probabilities[0])))

    def _supported(self, data: NDArray[Any]) -> NDArray[np.bool_]:
        values = np.arange(self.domain)
        own, row = values // (self._block - 1), 1 + values % (self._block - 1)
        # int64, because a block of 256 numbers does not fit into reports of 8 bits
        numbers = data.astype(np.int64)[:, None]
        is_own_block = numbers // self._block == own
        return np.asarray(is_own_block & (parity(row & (numbers % self._block)) == 0))


def _block_size(domain: int, blocks: int) -> int:
    """Return the smallest power of two above the number of values per block."""
    return 1 << (-(-domain // blocks)).bit_length()


ORACLES: dict[str, Callable[..., FrequencyOracle]] = {
    "kary": KaryResponse,
    "symmetric_unary": SymmetricUnary,
    "optimal_unary": OptimalUnary,
    "hashing": LocalHashing,
    "hadamard": HadamardResponse,
    "subset": SubsetSelection,
}
# Errors whose relative difference is below this count as equal, and the shorter report is chosen. It is far
# above the rounding of floats and far below any difference that matters; chosen by hand.
_TIE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Holds an oracle, the mean squared error that it predicts for an estimated share, and the bits of one
    report."""

    oracle: FrequencyOracle
    mean_squared_error: float
    bits: int


@_require.check_options
def predictions(
    *, epsilon: Real, domain: int, people: People, bits: Annotated[int, at_least(1)] | None = None
) -> list[Prediction]:
    """Return the predictions of all oracles for `people` reports where all values are equally common,
    smallest error first; oracles whose reports are longer than `bits` are left out.

    >>> best = predictions(epsilon=1, domain=128, people=20_000)[:3]
    >>> [(type(p.oracle).__name__, round(p.mean_squared_error, 7)) for p in best]
    [('SubsetSelection', 0.0001809), ('OptimalUnary', 0.0001845), ('LocalHashing', 0.0001851)]
    """
    candidates = []
    refusals: list[Exception] = []
    for build in ORACLES.values():
        try:
            oracle: Any = build(epsilon=epsilon, domain=domain)
        except InvalidInput as refusal:
            refusals.append(refusal)
            continue
        if bits is None or oracle.bits <= bits:
            candidates.append(
                Prediction(
                    oracle=oracle, mean_squared_error=oracle.mean_squared_error(people), bits=oracle.bits
                )
            )
    if not candidates:
        if len(refusals) == len(ORACLES):
            raise refusals[0]
        raise InvalidInput(
            f"no oracle for {domain} values has reports of at most {bits} bits. Allow more bits."
        )
    return sorted(candidates, key=lambda candidate: (candidate.mean_squared_error, candidate.bits))


def best(*, epsilon: Real, domain: int, people: int, bits: int | None = None) -> FrequencyOracle:
    """Return the frequency oracle with the smallest predicted error among those whose reports take at most
    `bits` bits. Above 2**24 values it is `LocalHashing`, which estimates the shares of given candidates
    (`shares_of`), because no oracle estimates so many shares at once.

    Guarantee: no oracle in `ORACLES` with reports of at most that length has a smaller mean squared error
               where all values are equally common (up to one part in 10**9).
    Proof:     all are unbiased, and `predictions` compares their variances.

    >>> best(epsilon=1, domain=128, people=20_000)
    SubsetSelection(epsilon=1, domain=128, size=34)
    >>> best(epsilon=1, domain=10_000, people=1_000_000, bits=64)
    LocalHashing(epsilon=1, domain=10000, buckets=4)
    """
    candidates = predictions(epsilon=epsilon, domain=domain, people=people, bits=bits)
    least = candidates[0].mean_squared_error
    return min(
        (c for c in candidates if c.mean_squared_error <= least * (1 + _TIE)), key=lambda c: c.bits
    ).oracle
