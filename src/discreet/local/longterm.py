"""Collects from the same people again and again (long-term collection): permanent and instantaneous
randomized response, and the price of all reports together.

A report that is drawn from the value each time is paid for each time. With memoization, the device draws a
*permanent* answer once, stores it, and each time reports a noisy copy of it, the *instantaneous* response.
Any number of reports is post-processing of the permanent answer, so the price of the permanent answer is the
price of all of them.

This price is about one value, for which `start` is called once. A device that stores one permanent answer per
value, and switches between them as the value changes, reveals *when* the value changed, and no finite epsilon
covers that (docs/local.md has two histories that show it; tests enumerate them). So here a device goes on
reporting its first answer until the application calls `start` again, at times that do not depend on values (a
public calendar). Each `start` is paid in full.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray

from .. import _require, _round
from .._errors import InvalidInput
from .._registry import described
from .._require import OPEN_PROBABILITY, POSITIVE, Real, at_least, at_most
from ..accounting import Event
from ..inference import non_negative_measured
from ..mechanisms import noise
from ..mechanisms.protocols import Release
from ..mechanisms.randomized_response import Support
from ..sampling import Entropy
from . import _base
from ._base import (
    Codes,
    Floats,
    LocalRandomizer,
    check_range,
    code_of,
    domain_up_to,
    is_list,
    released,
    require_entropy,
    spec,
)
from .oracles import NamingOracle


class Memoized(LocalRandomizer):
    """Draws a permanent answer once, which the device stores, and reports noisy copies of it."""

    __slots__ = ()

    @abstractmethod
    def start(self, value: Any, /, *, entropy: Entropy) -> Any:
        """Return the permanent answer, as JSON, which the device stores and keeps secret; each call costs
        `epsilon`. What is no value counts as a fixed public one."""

    @abstractmethod
    def report(self, state: Any, /, *, entropy: Entropy) -> Any:
        """Return one more noisy copy of the permanent answer `state`, at no further cost."""


@described("local.LongTermResponse")
class LongTermResponse(NamingOracle, Memoized):
    """Draws a permanent answer that costs `epsilon` once, and reports noisy copies of it: chained k-ary
    randomized response.

    Towards an observer who sees one report only, the price is `first_epsilon`, which is below epsilon.

    Guarantee: all reports that follow one `start`, however many, are together epsilon-DP; the first alone is
               first_epsilon-DP.
    Proof:     the permanent answer is k-ary randomized response, with weight a for the truth, weight b for
               any other of the k = domain values, and a / b <= exp(epsilon). Reports depend on the value only
               through it. The instantaneous response has weights a' and b' in the same way. So one report has
               weight A = a a' + (k-1) b b' for the truth and B = a b' + b a' + (k-2) b b' for each other
               value; A / B grows with a' / b', which is rounded down. (Arcolezi et al. 2022,
               arXiv:2111.04636, L-GRR; Erlingsson et al. 2014, arXiv:1407.6981, for bits.)
    Assumes:   `entropy` yields independent uniform bits; the times of `start` do not depend on values.
    """

    epsilon: Annotated[Real, POSITIVE]
    first_epsilon: Annotated[Real, POSITIVE]
    domain: Annotated[int, domain_up_to(1 << 20)]

    def __post_init__(self) -> None:
        first, wanted = self.first_epsilon, f"below epsilon = {self.epsilon!r}"
        _require.must(first < self.epsilon, "first_epsilon", first, wanted)
        self._instantaneous  # noqa: B018 - refuses epsilons too small for integer odds (`_base`)

    @property
    def _permanent(self) -> tuple[int, int]:
        """Return (a, b), the weights of the permanent answer."""
        return _base.odds(self.epsilon, 1, self.domain - 1)

    @property
    def _instantaneous(self) -> tuple[int, int]:
        """Return (a', b'), the weights of the instantaneous response: a' / b' is at most (R (r + k - 2) - (k
        - 1)) / (r - R), where r = a / b and R <= exp(first_epsilon) is the ratio A / B that one report may
        have. Solving A / B = R for a' / b' gives this.
        """
        k = self.domain
        r, first_odds = Fraction(*self._permanent), Fraction(*_base.odds(self.first_epsilon, 1, k - 1))
        _require.must(
            first_odds < r,
            "first_epsilon",
            self.first_epsilon,
            f"below epsilon = {self.epsilon!r} also after both are rounded to integer odds",
        )
        target_odds = (first_odds * (r + k - 2) - (k - 1)) / (r - first_odds)
        b = 1 << max(int(_base.LIMIT / (target_odds + k - 1)).bit_length() - 1, 0)
        a = min(int(target_odds * b), _base.LIMIT - (k - 1) * b)
        _require.must(
            a > b, "first_epsilon", self.first_epsilon, "larger: rounded to integers, its odds would be 1 : 1"
        )
        return a, b

    @property
    def ratio(self) -> Fraction:
        return Fraction(*self._permanent)

    @property
    def first_ratio(self) -> Fraction:
        """Return the largest ratio P(report | value) / P(report | other value) of one report alone."""
        p, q = self.support
        return Fraction(p / q)

    @property
    def support(self) -> Support:
        k = self.domain
        (p, q), (p2, q2) = (
            Support.of_odds(Fraction(*weights), k) for weights in (self._permanent, self._instantaneous)
        )
        return Support(p * p2 + (k - 1) * q * q2, p * q2 + q * p2 + (k - 2) * q * q2)

    def start(self, value: Any, /, *, entropy: Entropy) -> int:
        require_entropy(entropy)
        return int(_base.kary_response(self._one(value), self.domain, self._permanent, entropy)[0])

    def report(self, state: Any, /, *, entropy: Entropy) -> int:
        require_entropy(entropy)
        _require.that(code_of(state, self.domain) is not None, "this is not what `start` returned.")
        return int(_base.kary_response(self._one(state), self.domain, self._instantaneous, entropy)[0])

    def client(self) -> dict[str, Any]:
        return spec(
            "longterm",
            self,
            domain=self.domain,
            permanent=list(self._permanent),
            again=list(self._instantaneous),
        )

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        return _base.kary_response(
            _base.kary_response(values, self.domain, self._permanent, entropy),
            self.domain,
            self._instantaneous,
            entropy,
        )


@described("local.Rappor")
class Rappor(Memoized):
    """Puts a word of an open vocabulary into a Bloom filter, stores a permanent noisy copy of the filter, and
    reports noisy copies of that copy: RAPPOR.

    The filter has `bits` bits, of which `hashes` hash functions set one each. A device draws one of `cohorts`
    cohorts, each with hash functions of its own. Bits of the permanent copy are flipped with probability f/2,
    the smallest with 2 * hashes * ln((1 - f/2) / (f/2)) <= epsilon. In a report, a bit is set with
    probability `q` where the permanent bit is set, and with probability `p` where it is not.

    Guarantee: all reports that follow one `start` are together epsilon-DP; one alone is first_epsilon-DP.
    Proof:     the cohort does not depend on the word, and in one cohort the filters of two words differ in at
               most 2 * hashes bits. Erlingsson, Pihur & Korolova 2014, arXiv:1407.6981. f/2 is rounded up to
               units of 2**-32, and first_epsilon is computed from the rounded f/2, p and q; tests enumerate
               both claims.
    Assumes:   `entropy` yields independent uniform bits; the times of `start` do not depend on values.
    """

    epsilon: Real
    bits: Annotated[int, at_least(1), at_most(1 << 16)] = 32
    hashes: Annotated[int, at_least(1)] = 2
    cohorts: Annotated[int, at_least(1), at_most(1 << 20)] = 8
    p: Annotated[Real, OPEN_PROBABILITY] = Fraction(1, 2)
    q: Annotated[Real, OPEN_PROBABILITY] = Fraction(3, 4)

    def __post_init__(self) -> None:
        _require.must(self.hashes <= self.bits, "hashes", self.hashes, f"at most the {self.bits} bits")
        _, p, q = self.thresholds
        _require.must(p < q, "p", self.p, f"below q = {self.q!r} by at least 2**-32")

    @property
    def thresholds(self) -> tuple[int, int, int]:
        """Return (f/2, p, q) in units of 2**-32."""
        flip = _base.small_share(self.epsilon, bits=2 * self.hashes)
        p, q = (int(_require.exact(x, "p") * _base.COIN) for x in (self.p, self.q))
        return flip, max(p, 1), min(q, _base.COIN - 1)

    @property
    def ratio(self) -> Fraction:
        flip = self.thresholds[0]
        return Fraction(_base.COIN - flip, flip) ** (2 * self.hashes)

    @property
    def _one_report(self) -> tuple[Fraction, Fraction]:
        """Return (q*, p*), in the notation of the paper: the probabilities that a reported bit is set, for a
        bit of the filter that is set and for one that is not.
        """
        flip, p, q = (Fraction(x, _base.COIN) for x in self.thresholds)
        return (1 - flip) * q + flip * p, flip * q + (1 - flip) * p

    @property
    def first_ratio(self) -> Fraction:
        """Return the largest ratio P(report | word) / P(report | other word) of one report alone: that of two
        words whose filters have no set bit in common."""
        q_star, p_star = self._one_report
        return (q_star * (1 - p_star) / (p_star * (1 - q_star))) ** self.hashes

    @property
    def first_epsilon(self) -> float:
        """Return what one report alone costs, rounded up."""
        return noise.log_above(self.first_ratio)

    def filter(self, word: str | bytes, cohort: int) -> NDArray[np.bool_]:
        """Return the Bloom filter of a word in a cohort. The text that is hashed is a contract with
        js/discreet-local.mjs and with stored reports."""
        raw = _word(word)
        bits = np.zeros(self.bits, bool)
        for number in range(self.hashes):
            digest = hashlib.sha256(b"rappor:%d:%d:" % (cohort, number) + raw).digest()
            bits[int.from_bytes(digest[:8], "little") % self.bits] = True
        return bits

    def start(self, value: str | bytes, /, *, entropy: Entropy) -> list[Any]:
        """Return the state [cohort, permanent bits]. What is no word counts as the empty one."""
        require_entropy(entropy)
        cohorts, permanent = self._permanent(self._one(value), entropy)
        return [int(cohorts[0]), permanent[0].astype(int).tolist()]

    def report(self, state: Any, /, *, entropy: Entropy) -> list[int]:
        """Return [cohort, bits...]."""
        require_entropy(entropy)
        well_formed = (
            isinstance(state, list | tuple) and len(state) == 2 and isinstance(state[1], list | tuple)
        )
        if not well_formed or len(state[1]) != self.bits or any(bit not in (0, 1) for bit in state[1]):
            raise InvalidInput("this is not what `start` returned.")
        cohort, permanent = state
        return [
            int(cohort),
            *self._instantaneous(np.asarray([permanent], dtype=bool), entropy)[0].astype(int).tolist(),
        ]

    def is_single(self, value: Any) -> bool:
        return not is_list(value)

    def _values(self, values: Any) -> list[bytes]:
        return [_word(word) for word in values]

    def _one(self, value: Any) -> list[bytes]:
        return [_word(value if isinstance(value, str | bytes) else "")]

    def _draw(self, words: list[bytes], entropy: Entropy) -> Codes:
        cohorts, permanent = self._permanent(words, entropy)
        return np.concatenate([cohorts[:, None], self._instantaneous(permanent, entropy)], axis=1)

    def _permanent(self, words: list[bytes], entropy: Entropy) -> tuple[Codes, NDArray[np.bool_]]:
        """Return (cohorts, permanent bits), one row per word. The order of draws: all cohorts, then all
        bits."""
        flip = self.thresholds[0]
        cohorts = _base.below(self.cohorts, len(words), entropy)
        cached: dict[tuple[bytes, int], NDArray[np.bool_]] = {}
        filters = np.zeros((len(words), self.bits), bool)
        for i, key in enumerate(zip(words, cohorts.tolist(), strict=True)):
            if key not in cached:
                cached[key] = self.filter(*key)
            filters[i] = cached[key]
        return cohorts, _base.coins(np.where(filters, _base.COIN - flip, flip), entropy)

    def _instantaneous(self, permanent: NDArray[np.bool_], entropy: Entropy) -> NDArray[np.bool_]:
        """Return one noisy copy of each row of permanent bits."""
        _, p, q = self.thresholds
        return _base.coins(np.where(permanent, q, p), entropy)

    def client(self) -> dict[str, Any]:
        return spec(
            "rappor",
            self,
            bits=self.bits,
            hashes=self.hashes,
            cohorts=self.cohorts,
            thresholds=list(self.thresholds),
        )

    def _width(self) -> int:
        return self.bits + 1

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, [self.cohorts] + [2] * self.bits)

    def bit_shares(self, reports: Any) -> tuple[Floats, NDArray[np.int64]]:
        """Return (shares, people): unbiased estimates of the share of devices that have each filter bit set,
        one row per cohort, NaN in a cohort without reports; and the number of reports of each cohort."""
        data, _ = self._collect(reports)
        people = np.bincount(data[:, 0], minlength=self.cohorts)
        sums = np.zeros((self.cohorts, self.bits))
        np.add.at(sums, data[:, 0], data[:, 1:])
        q_star, p_star = (float(x) for x in self._one_report)
        with np.errstate(invalid="ignore", divide="ignore"):
            return (sums / people[:, None] - p_star) / (q_star - p_star), people

    def decode(self, reports: Any, words: Any) -> dict[Any, float]:
        """Return estimated shares of the candidate words: the non-negative shares for which the sum of the
        words' filters is nearest to the estimated bits (least squares, weighted by the size of each cohort).
        """
        candidates = _require.entries(words=words)
        _require.that(
            len({_word(word) for word in candidates}) == len(candidates),
            "some words are listed twice, and their share would be divided between them. Give each word "
            "once.",
        )
        shares, people = self.bit_shares(reports)
        present = np.flatnonzero(people)
        rows = np.concatenate(
            [np.array([self.filter(w, int(c)) for w in candidates], dtype=float).T for c in present]
        )
        variances = np.repeat(1.0 / people[present], self.bits)
        fitted = non_negative_measured(rows, shares[present].ravel(), variances)
        return dict(zip(candidates, fitted.tolist(), strict=True))

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        """Return the estimated shares of set bits, one row per cohort. This needs no list of words; `decode`
        estimates the shares of given words. A cohort without reports has zeros, to which the error does not
        apply."""
        shares, people = self.bit_shares(data)
        q_star, p_star = self._one_report
        spread = _round.up(1 / (q_star - p_star))

        def error(confidence: float) -> float:
            """Return Hoeffding's bound for the smallest cohort that has reports, with a union over all bits
            of all cohorts."""
            log_term = math.log(2 * self.cohorts * self.bits / (1 - confidence))
            return float(spread * math.sqrt(log_term / (2 * max(1, int(people[people > 0].min())))))

        return released(np.nan_to_num(shares), event, error)


def _word(value: Any) -> bytes:
    """Return a word as bytes; anything but text or bytes is refused. Text is encoded as by a browser's
    TextEncoder: in UTF-8, with U+FFFD in place of each surrogate that has no partner."""
    if not isinstance(value, str | bytes):
        raise InvalidInput(f"a value must be a word (text or bytes), got a {type(value).__name__}.")
    if isinstance(value, bytes):
        return value
    return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
