"""Chooses a frequency oracle: the error of every candidate is known before any report is collected, so the
smallest one is chosen.
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


def predictions(*, epsilon: Real, domain: int, people: int, bits: int | None = None) -> list[Prediction]:
    """Return the predictions of all oracles for `people` reports where all values are equally common,
    smallest error first; oracles whose reports are longer than `bits` are left out.

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
