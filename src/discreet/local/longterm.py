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

from fractions import Fraction
from typing import Annotated, Any

from .. import _require
from .._registry import described
from .._require import POSITIVE, Real
from ..mechanisms.randomized_response import Support
from ..sampling import Entropy
from . import _base
from ._base import Codes, code_of, domain_up_to, require_entropy, spec
from .oracles import NamingOracle


@described("local.LongTermResponse")
class LongTermResponse(NamingOracle):
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
        """Return the permanent answer, which the device stores and keeps secret; each call costs `epsilon`.
        What is no value counts as a fixed public one."""
        require_entropy(entropy)
        return int(_base.kary_response(self._one(value), self.domain, self._permanent, entropy)[0])

    def report(self, state: Any, /, *, entropy: Entropy) -> int:
        """Return one more noisy copy of the permanent answer `state`, at no further cost."""
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
