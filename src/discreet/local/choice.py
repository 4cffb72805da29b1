"""The choice of a frequency oracle: every candidate predicts its error before anybody is asked, so the choice
is a comparison of numbers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .. import _require
from .._errors import InvalidInput
from .._require import Real
from .hashing import HadamardResponse, LocalHashing
from .oracles import FrequencyOracle, KaryResponse, OptimalUnary, SubsetSelection, SymmetricUnary

ORACLES: dict[str, Callable[..., FrequencyOracle]] = {
    "kary": KaryResponse,
    "symmetric_unary": SymmetricUnary,
    "optimal_unary": OptimalUnary,
    "hashing": LocalHashing,
    "hadamard": HadamardResponse,
    "subset": SubsetSelection,
}
# relative: of errors that differ by rounding alone the shorter report wins
_TIE = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Says what an oracle would cost and give: its mean squared error, and the bits of a report."""

    oracle: FrequencyOracle
    mean_squared_error: float
    bits: int


def predictions(*, epsilon: Real, domain: int, people: int, bits: int | None = None) -> list[Prediction]:
    """Return what each oracle promises where all values are equally common, best first; those whose reports
    are too long are left out.

    >>> best = predictions(epsilon=1, domain=128, people=20_000)[:3]
    >>> [(type(p.oracle).__name__, round(p.mean_squared_error, 7)) for p in best]
    [('SubsetSelection', 0.0001809), ('OptimalUnary', 0.0001845), ('LocalHashing', 0.0001851)]
    """
    _require.integer(people=people, at_least=1)
    if bits is not None:
        _require.integer(bits=bits, at_least=1)
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
    """Return the frequency oracle of least predicted error among those whose reports take at most `bits`
    bits.

    Guarantee: no oracle of this package with reports of that length has a smaller mean squared error where
               all values are equally common.
    Proof:     all are unbiased, and their variances are compared (`predictions`).

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
