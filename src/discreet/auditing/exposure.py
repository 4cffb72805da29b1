"""Measures by canaries in text whether a language model has memorized a secret that was planted once.

Plant "the code is 4821" in the training text, train, and compute the rank of 4821 when all codes are listed
from the least to the most surprising, where surprise is minus the log-likelihood. The exposure is
log2(number of codes) - log2(rank): about 1 to 2 for a code that was not in the text, and log2(number of
codes), its maximum, for a code that comes first and so can be extracted (Carlini et al. 2019, "The Secret
Sharer", arXiv:1802.08232).

>>> exposure(surprise=2.0, others=[3.0, 5.0, 4.0, 1.0, 8.0, 9.0, 7.0]).bits
2.0
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from .. import _require
from .._errors import InvalidInput
from .outputs import floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """Holds the exposure of a secret in `bits`, at most `max_bits`, and its `rank` among all candidates, 1
    for the least surprising (a number with a fraction where it is estimated)."""

    bits: float
    max_bits: float
    rank: float

    @property
    def extracted(self) -> bool:
        """Return whether the secret comes first: whoever ranks the candidates by surprise learns it."""
        return self.rank <= 1


def exposure(surprise: float, others: Any) -> Exposure:
    """Return the exact exposure; `others` has the surprise (minus log-likelihood) of every other candidate.

    A candidate that is as surprising as the secret is ranked before it.

    Proof: Carlini et al. 2019, arXiv:1802.08232, Definition 4: log2 of the number of candidates minus log2 of
           the rank.
    """
    other_surprises = _check_surprises(surprise, others=others)
    rank = 1 + int((other_surprises <= surprise).sum())
    return Exposure(
        bits=math.log2(len(other_surprises) + 1) - math.log2(rank),
        max_bits=math.log2(len(other_surprises) + 1),
        rank=rank,
    )


def estimated_exposure(surprise: float, sample: Any, *, candidates: int) -> Exposure:
    """Estimate the exposure where there are too many candidates to list: a skew normal distribution is fitted
    to `sample`, the surprises of random candidates other than the secret. `candidates` is the number of all
    candidates.

    This is an estimate, not a bound; Carlini et al. 2019, arXiv:1802.08232, section 4.3: minus log2 of the
    distribution's mass at or below the secret's surprise, here at most log2 of the number of candidates.
    """
    sampled_surprises = _check_surprises(surprise, sample=sample)
    _require.integer(candidates=candidates, at_least=len(sampled_surprises))
    if (
        len(sampled_surprises) < 20
        or not np.isfinite(sampled_surprises).all()
        or np.ptp(sampled_surprises) == 0
    ):
        raise InvalidInput(
            "to fit a distribution, twenty finite surprises at least are needed, and not all of them alike. "
            "With few candidates use `exposure`."
        )
    shape, location, scale = stats.skewnorm.fit(sampled_surprises)
    max_bits = math.log2(candidates)
    bits = min(max_bits, -float(stats.skewnorm.logcdf(surprise, shape, location, scale)) / math.log(2))
    return Exposure(bits=bits, max_bits=max_bits, rank=2 ** (max_bits - bits))


def _check_surprises(surprise: float, **argument: Any) -> Any:
    """Return the one further argument, surprises of other candidates, as an array; refuse it if there are
    none or some are NaN."""
    _require.number(surprise=surprise)
    surprises = floats(**argument).ravel()
    if not len(surprises) or np.isnan(surprises).any():
        raise InvalidInput("exposure needs the surprises of other candidates, and none may be NaN.")
    return surprises
