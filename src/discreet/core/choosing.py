"""Chooses a value for every group with the exponential mechanism: a quantile from a grid of candidates, or
the most common of public values.

Candidates are the values among which is chosen (`measures.Choice`). How often each occurs in each group is a
sparse matrix, in which zeros take no memory: a dense one of a million groups and two thousand candidates
would take 16 GB. The engine returns only counts that are not zero, and choices are made from a few dense rows
at a time.

Where nobody declared which groups exist, that is private too. Each group is shown with a probability that
grows with its number of units (a unit is who is protected: a person, or a row).

>>> [float(p) for p in show_probabilities(epsilon=Fraction(1), delta=Fraction(1, 100))[:2]]
[0.0, 0.01]
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np

from .. import _require, sampling
from .._errors import InvalidInput
from ..mechanisms.selectors import ExponentialMechanism, TopK
from ..sampling import Entropy
from .measures import Choice

Selector = ExponentialMechanism | TopK
# scores below this bound are computed in 64 bits without overflow
_SAFE = 1 << 62
# Entries of the dense rows that are made at a time, few enough for the processor's caches: a median of 1,281
# candidates took 0.20 ms per group, and 0.39 ms with 2**20 entries.
CELLS = 1 << 16


@dataclass(frozen=True, slots=True)
class SparseCounts:
    """A sparse matrix of `shape` (groups, candidates): the entry in row `group[i]` and column `candidate[i]`
    is `count[i]`, and all others are 0. `group` is sorted, which `dense` relies on."""

    group: Any
    candidate: Any
    count: Any
    shape: tuple[int, int]

    @staticmethod
    def of(group: Any, candidate: Any, count: Any, shape: tuple[int, int]) -> SparseCounts:
        """Return the matrix with these entries, given in any order."""
        order = np.argsort(group, kind="stable")
        return SparseCounts(group[order], candidate[order], count[order], shape)

    @property
    def rows_at_once(self) -> int:
        """How many dense rows have about `CELLS` entries; at least 1."""
        return max(1, CELLS // max(1, self.shape[1]))

    def dense(self, start: int, stop: int) -> Any:
        """Return the rows `start` to `stop` (exclusive) as a dense array."""
        stop = min(stop, self.shape[0])
        matrix = np.zeros((stop - start, self.shape[1]), self.count.dtype)
        entries = slice(*np.searchsorted(self.group, [start, stop]))
        matrix[self.group[entries] - start, self.candidate[entries]] = self.count[entries]
        return matrix

    def __getitem__(self, row: int) -> Any:
        return self.dense(row, row + 1)[0]

    def take(self, rows: Any) -> SparseCounts:
        """Return the matrix of the groups `rows`, in this order."""
        index_of = np.full(self.shape[0], -1, np.int64)
        index_of[rows] = np.arange(len(rows))
        group = index_of[self.group]
        kept = group >= 0
        return SparseCounts.of(
            group[kept], self.candidate[kept], self.count[kept], (len(rows), self.shape[1])
        )


def scores(counts: Any, q: Fraction) -> Any:
    """Return the score of each candidate for the quantile q = a/b: minus b times the distance between the
    rank of the quantile and the ranks of the candidate, an integer that is at most 0.

    In a group of n rows the quantile has the rank a n / b. A candidate with `below` rows below it and `at`
    rows equal to it has the ranks from `below` to `below + at`; its score is 0 where a n / b is among these.
    """
    a, b = q.numerator, q.denominator
    total = counts.sum(axis=-1, keepdims=True)
    # more rows than any table has; Python's integers do not overflow
    if counts.size and int(total.max()) >= _SAFE // b:
        counts = counts.astype(object)
        total = total.astype(object)
    upto = np.cumsum(counts, axis=-1)
    below = upto - counts
    return -np.maximum(np.maximum(b * below - a * total, a * total - b * upto), 0)


def pick(
    choice: Choice, selector: Selector, counts: SparseCounts, entropy: Entropy, check: Callable[[], None]
) -> Any:
    """Return one private choice for every group, many groups at a time; `check` is called in between, and may
    raise an error at a deadline.

    The time for one group depends on the number of candidates alone (tens of nanoseconds per candidate), and
    not on the rows of the group.
    """
    picked = []
    for start in range(0, counts.shape[0], counts.rows_at_once):
        check()
        group_scores = _candidate_scores(choice, counts.dense(start, start + counts.rows_at_once))
        if group_scores.dtype == object:
            picked.append(
                np.array([np.atleast_1d(selector.pick(row, entropy)) for row in group_scores], dtype=np.int64)
            )
        else:
            picked.append(selector.pick_rows(group_scores, entropy))
    return _name_choices(choice, _stack_choices(choice, picked))


def best(choice: Choice, counts: SparseCounts) -> Any:
    """Return the choice without noise, for tests of semantics and for trial runs on an empty table: the first
    of the candidates with the best score."""
    k = int(choice.parameter) if choice.kind == "top" else 1
    picked = []
    for start in range(0, counts.shape[0], counts.rows_at_once):
        group_scores = _candidate_scores(choice, counts.dense(start, start + counts.rows_at_once))
        picked.append(np.argsort(-group_scores.astype(float), axis=1, kind="stable")[:, :k])
    return _name_choices(choice, _stack_choices(choice, picked))


def _candidate_scores(choice: Choice, counts: Any) -> Any:
    """Return the score of each candidate in each group; for the most common values it is the count."""
    return scores(counts, choice.parameter) if choice.kind == "quantile" else counts


def _stack_choices(choice: Choice, picked: list[Any]) -> list[Any]:
    """Return the chosen candidates of all groups: one index per group, or a list of indices for the k most
    common values."""
    together = np.concatenate(picked) if picked else np.zeros((0, 1), np.int64)
    result: list[Any] = together.tolist() if choice.kind == "top" else together[:, 0].tolist()
    return result


def _name_choices(choice: Choice, chosen: list[Any]) -> Any:
    """Return, per group, the values of the chosen candidates instead of their indices; dates are ISO texts,
    as they are in keys."""
    if choice.kind == "quantile":
        domain = choice.expression.domain
        values = [float(choice.first + int(i) * choice.step) for i in chosen]
        return np.clip(np.array(values, dtype=float), domain.low, domain.high)
    if choice.kind == "top":
        lists = np.empty(len(chosen), dtype=object)
        for g, indices in enumerate(chosen):
            lists[g] = tuple(shown(choice.values[i]) for i in indices)
        return lists
    modes = [shown(choice.values[int(i)]) for i in chosen]
    numeric = all(isinstance(v, int) and not isinstance(v, bool) for v in choice.values)
    return np.array(modes, dtype=float if numeric else object)


def shown(value: Any) -> Any:
    """Return the released form of a key: a date as ISO text, and any other value as it is."""
    return value.isoformat() if isinstance(value, date) else value


# probabilities are multiples of 2**-128
_BITS = 128
# A larger epsilon is computed as this one, which bounds the time of `exp_below`. Any number from 89 on would
# do: there e^epsilon is above 2**128, and the table depends on delta alone (below 1/2, a group of one unit is
# shown with probability delta, of two units with 1 - 2**-128, of three with 1).
_LARGEST_EPSILON = 200
# The most entries of the table of probabilities: epsilon and delta are refused if a group would need more
# units to be shown with probability 1. Not tuned; a table of this length takes about a second and 50 MB.
LONGEST = 1_000_000


def exp_below(x: Fraction, bits: int = _BITS) -> Fraction:
    """Return a rational between exp(x) (1 - 2**-100) and exp(x), for 0 <= x <= 200.

    The Taylor series of exp has positive terms only, so that a partial sum of terms that are rounded down is
    below exp. x is halved until it is at most 1, and the result squared as often.

    >>> 2.718281828 < float(exp_below(Fraction(1))) <= 2.718281829
    True
    """
    halvings = 0
    while x > 1:
        x, halvings = x / 2, halvings + 1
    term, total, n = Fraction(1), Fraction(1), 1
    while term > Fraction(1, 1 << (bits + 20)):
        term = _round_down(term * x / n, bits + 40)
        total, n = total + term, n + 1
    for _ in range(halvings):
        total = _round_down(total * total, bits + 40)
    return total


def _round_down(x: Fraction, bits: int) -> Fraction:
    """Return the largest multiple of 2**-bits that is at most x."""
    return Fraction((x.numerator << bits) // x.denominator, 1 << bits)


# few, as a table may have a million entries
@lru_cache(maxsize=8)
def _table(epsilon: Fraction, delta: Fraction) -> tuple[int, ...]:
    """Return `show_probabilities` as multiples of 2**-128."""
    if not (epsilon > 0 and 0 < delta < 1):
        raise InvalidInput("groups that nobody declared need an epsilon and a delta above zero.")
    one = 1 << _BITS
    # e^epsilon and delta as multiples of 2**-128, rounded down: rounded up, the guarantee would be lost
    factor, step = int(exp_below(min(epsilon, Fraction(_LARGEST_EPSILON))) * one), int(delta * one)
    entries = [0]
    while entries[-1] < one:
        p = entries[-1]
        # the most that "shown" allows: e^epsilon p + delta, rounded down
        by_shown = (factor * p >> _BITS) + step
        # the most that "not shown" allows: 1 - (1 - p - delta) / e^epsilon, rounded down
        by_hidden = one + ((p + step - one) << _BITS) // factor
        entries.append(min(by_shown, by_hidden, one))
        # An entry that does not grow would never reach 1: delta is below 2**-128.
        if len(entries) > LONGEST or entries[-1] <= p:
            raise InvalidInput(
                f"with epsilon {float(epsilon):.3g} and delta {float(delta):.3g} a group would need more "
                f"than {LONGEST} units to be shown surely. Ask with more epsilon, or fewer groups per unit."
            )
    return tuple(entries)


def show_probabilities(*, epsilon: Fraction, delta: Fraction) -> tuple[Fraction, ...]:
    """Return the largest probabilities to show a group of 0, 1, 2, ... units such that showing it or not is
    (epsilon, delta)-DP; the last is 1.

    Guarantee: for neighbors in which the group has n and n + 1 units, "shown" and "not shown" are both
               (epsilon, delta)-indistinguishable, and an empty group is never shown. No strategy with
               this guarantee shows any group more often, up to 2**-90 or so.
    Proof:     Desfontaines, Voss & Gipson 2022, arXiv:2006.03684, Theorem 1: with p(n) the probability for n
               units and p(0) = 0, p(n+1) is the least of e^epsilon p(n) + delta,
               1 - e^-epsilon (1 - p(n) - delta), and 1. `_table` computes with a rational that is at most
               e^epsilon, and rounds delta and the probabilities down, so that both inequalities hold exactly.
    """
    return tuple(Fraction(p, 1 << _BITS) for p in _table(epsilon, delta))


def units_always_shown(epsilon: Fraction, delta: Fraction) -> int:
    """Return the least number of units with which a group is shown with probability 1."""
    return len(_table(epsilon, delta)) - 1


def select(units: Any, *, epsilon: Fraction, delta: Fraction, entropy: Entropy) -> Any:
    """Return, for each group's exact number of units, whether to show it: independent draws with exactly
    `show_probabilities`."""
    _require.positive(epsilon=epsilon)
    table = _table(epsilon, delta)
    sizes = np.minimum(np.asarray(units, dtype=np.int64), len(table) - 1)
    is_shown = sizes == len(table) - 1
    for size in np.unique(sizes[~is_shown]).tolist():
        groups = np.flatnonzero(sizes == size)
        is_shown[groups] = sampling.bernoulli(Fraction(table[size], 1 << _BITS), len(groups), entropy)
    return is_shown
