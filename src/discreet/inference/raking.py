"""Raking (iterative proportional fitting): scales a table, axis by axis, until it has public margins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _require
from .._errors import InvalidInput
from . import _check
from ._check import NOTHING_COMPUTED, Floats


@dataclass(frozen=True, eq=False, kw_only=True)
class Raked:
    """Holds the fitted table, the number of rounds that it took, and the largest remaining difference from a
    margin, relative to the total (`gap`)."""

    values: Floats
    rounds: int
    gap: float


def rake(
    table: Any,
    margins: Sequence[tuple[int | Sequence[int], Any]],
    *,
    tolerance: float = 1e-10,
    rounds: int = 1_000,
) -> Raked:
    """Return the non-negative table with the given sums that is nearest to `table` in relative entropy.

    `margins` has pairs (axes, sums): the axes that are not summed over, and the wanted sums over all others;
    `[(0, rows), (1, columns)]` or `[((0, 1), face), (2, depth)]`. Zeros stay zero; with margins of single
    axes all odds ratios are kept. The margins must be public facts or released values, and agree with each
    other. One round scales the table to each margin in turn. Raking ends when `gap` is at most `tolerance`;
    after `rounds` rounds it is refused.

    Guarantee: converges to the table of least relative entropy among those with these margins, if any table
               has these margins and is zero wherever `table` is.
    Proof:     Csiszár 1975, Theorem 3.2.

    >>> rake([[40.0, 30.0], [35.0, 50.0]], [(0, [80.0, 70.0]), (1, [70.0, 80.0])]).values.round(2).tolist()
    [[43.26, 36.74], [26.74, 43.26]]
    """
    x = _check.numbers("table", table, dimensions=None)
    if (x < 0).any():
        raise InvalidInput(
            f"table must not be negative: raking keeps signs. {NOTHING_COMPUTED} Apply non_negative first."
        )
    _require.positive(tolerance=tolerance)
    _require.integer(rounds=rounds, at_least=1)
    targets = [_target(x, axes, sums) for axes, sums in margins]
    if not targets:
        raise InvalidInput(f"margins must not be empty. {NOTHING_COMPUTED}")
    _require_agreement(targets)
    total = max(float(targets[0][1].sum()), np.finfo(float).tiny)
    for count in range(1, rounds + 1):
        for others, sums in targets:
            x = _scale(x, others, sums)
        gap = (
            max(float(np.abs(x.sum(axis=others, keepdims=True) - sums).max()) for others, sums in targets)
            / total
        )
        if gap <= tolerance:
            return Raked(values=x, rounds=count, gap=gap)
    raise InvalidInput(
        f"after {rounds} rounds the margins are still missed by {gap:.2g} of the total: the zeros of "
        f"the table may not allow them, or the margins disagree by more than the tolerance. "
        f"{NOTHING_COMPUTED} Put small positive numbers there, allow more rounds, or a larger tolerance."
    )


Target = tuple[tuple[int, ...], Floats]


def _target(x: Floats, axes: int | Sequence[int], sums: Any) -> Target:
    """Return the axes to sum over, and the wanted sums as an array in which these axes have length one."""
    kept = tuple(axes) if isinstance(axes, Sequence | np.ndarray) else (axes,)
    are_integers = all(isinstance(a, int | np.integer) and not isinstance(a, bool) for a in kept)
    if not are_integers or len(set(kept)) < len(kept) or any(not 0 <= a < x.ndim for a in kept):
        raise InvalidInput(
            f"axes must be different whole numbers from 0 to {x.ndim - 1}, got {axes!r}. {NOTHING_COMPUTED}"
        )
    wanted = _check.numbers("margins", sums, dimensions=None)
    if wanted.shape != tuple(x.shape[a] for a in kept):
        raise InvalidInput(
            f"the margin of axes {kept!r} must have shape {tuple(x.shape[a] for a in kept)}, got "
            f"{wanted.shape}. {NOTHING_COMPUTED}"
        )
    if (wanted < 0).any():
        raise InvalidInput(f"the margin of axes {kept!r} must not be negative. {NOTHING_COMPUTED}")
    # the caller may name the axes in any order; here they get the order of the table's axes
    turned = np.transpose(wanted, np.argsort(kept)) if kept else wanted
    others = tuple(a for a in range(x.ndim) if a not in kept)
    full = np.expand_dims(turned, others) if others else turned
    if ((x.sum(axis=others, keepdims=True) == 0) & (full > 0)).any():
        raise InvalidInput(
            f"the margin of axes {kept!r} is positive where the whole table is zero. {NOTHING_COMPUTED} Put "
            f"positive numbers there."
        )
    return others, full


def _require_agreement(targets: list[Target]) -> None:
    """Require that any two margins have the same sums over the axes that they share, up to rounding."""
    for i, (first, a) in enumerate(targets):
        for j, (second, b) in enumerate(targets[:i]):
            summed = tuple(sorted(set(first) | set(second)))
            shared_a, shared_b = a.sum(axis=summed, keepdims=True), b.sum(axis=summed, keepdims=True)
            if (np.abs(shared_a - shared_b) > 1e-9 * (1 + np.abs(shared_a))).any():
                raise InvalidInput(
                    f"margins {j} and {i} (counted from zero) do not agree on what they share. "
                    f"{NOTHING_COMPUTED}"
                )


def _scale(x: Floats, others: tuple[int, ...], sums: Floats) -> Floats:
    """Return the table scaled so that its sums over the axes `others` are `sums`; zeros stay zero."""
    current = x.sum(axis=others, keepdims=True)
    factor = np.divide(sums, current, out=np.zeros_like(current), where=current > 0)
    scaled: Floats = x * factor
    return scaled
