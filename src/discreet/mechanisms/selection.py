"""Choosing from a public list: a candidate is the likelier the better its score, and none is ever certain.

`Select` is the mechanism: a statistic gives every candidate an integer score, a selector chooses one (or
some). Scores are those of any statistic: a histogram (the most common category), cells of a map by count or
by distance (`CellCounts`, `CellDistances`), or the steward's own function (`Trusted`, and `RealScores` for
real numbers).

Defines selectors: selection mechanisms that return the index of a good score out of a bare vector of
integers.

`mechanisms.selection` computes scores from a table and chooses with one of these.

Scores are integers, because the proofs do not hold for floats, which are rounded; real scores are put on a
grid first (`selection.RealScores`).

"Monotone" means: between any two neighbors all scores move the same way (or stay), as counts do under
add_remove; then half the noise is enough. `rate` below is epsilon / (2 * sensitivity), or epsilon /
sensitivity for monotone scores.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import _require, _round, sampling
from .._errors import InvalidInput
from .._public import ADD_REMOVE, PUBLIC, REPLACE, Bounds, Neighbors, Public, require_relation
from .._registry import described
from .._require import NON_EMPTY, POSITIVE, Real, among, at_least, instance_of
from ..accounting import Event, PureDP
from ..accounting import ExponentialMechanism as BoundedRange
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns
from .protocols import (
    STATISTIC,
    Integers,
    Mechanism,
    Release,
    Sensitivity,
    Statistic,
    check_source,
    release,
)
from .statistics import CountsBelow, Histogram, Trusted, length_of, require_rows

__all__ = [
    "CellCounts",
    "CellDistances",
    "ExponentialMechanism",
    "Mistakes",
    "PermuteAndFlip",
    "RealScores",
    "ReportNoisyMax",
    "Select",
    "TopK",
    "enough_rows",
    "moves_one_way",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Selector(ABC):
    """Chooses by integer scores; `epsilon` is the pure price of one choice when no score moves by more than
    `sensitivity`."""

    epsilon: Annotated[Real, POSITIVE]
    sensitivity: Annotated[int, at_least(1)] = 1
    monotone: bool = False
    neighbors: Neighbors = ADD_REMOVE

    @property
    def rate(self) -> Fraction:
        """The factor of every score before noise of scale 1 is added; `TopK` divides it by k."""
        return _require.exact(self.epsilon, "epsilon") / ((1 if self.monotone else 2) * int(self.sensitivity))

    @property
    def event(self) -> Event:
        return PureDP(epsilon=self.epsilon, neighbors=self.neighbors)

    def __call__(self, scores: Any, /, *, entropy: Entropy) -> Any:
        return self.named(self.pick(as_scores(scores), entropy), range(len(scores)))

    @abstractmethod
    def pick(self, scores: Integers, entropy: Entropy) -> Any:
        """Return the chosen index, or indices."""

    def named(self, picked: Any, candidates: Any) -> Any:
        """Return the choice, with candidates in place of indices."""
        return candidates[picked]

    @abstractmethod
    def tail(self, candidates: int, shortfall: int) -> float:
        """Return an upper bound, for all scores, on the probability of choosing a candidate whose score is
        `shortfall` or more below the best; for k choices, that for some j the j-th choice is that far below
        the j-th best."""

    def error(self, candidates: int, confidence: float = 0.95) -> int:
        """Return how far, with probability `confidence`, the chosen score may be below the best one, whatever
        the scores are; for k choices, how far the j-th choice may be below the j-th best, for all j."""
        _require.integer(candidates=candidates, at_least=1)
        _require.open_probability(confidence=confidence)
        if candidates == 1:
            return 0
        # slack for the rounding of floats in `tail`
        allowed = (1 - confidence) * (1 - 1e-9)
        return _first(lambda c: self.tail(candidates, c) <= allowed) - 1


@described("mechanisms.ExponentialMechanism")
@dataclass(frozen=True, slots=True, kw_only=True)
class ExponentialMechanism(_Selector):
    """Chooses candidate i with probability proportional to exp(rate * score i): the exponential mechanism.

    Guarantee: epsilon-DP, and of bounded range epsilon, if no score moves by more than `sensitivity` (and,
               with `monotone`, all move the same way). The distribution is exact. A choice among k candidates
               falls short of the best score by c or more with probability at most y / (1 + y), where y = (k -
               1) exp(-rate c); hence by (ln k + t) / rate or more with probability at most exp(-t).
    Proof:     McSherry & Talwar 2007; Dwork & Roth 2014, Theorems 3.10 and 3.11; bounded range: Durfee &
               Rogers 2019, arXiv:1905.04273. For scores s and s' of neighbors, ln P'(i)/P(i) = rate (s'_i -
               s_i) + a constant, and all s'_i - s_i lie in an interval of length 2 sensitivity, or 1
               sensitivity if monotone. Shortfall: the best weighs 1, the k - 1 others at most exp(-rate c)
               each.

    >>> ExponentialMechanism(epsilon=1)([0, 10**6, 3], entropy=Entropy())
    1
    """

    @property
    def event(self) -> Event:
        return BoundedRange(epsilon=self.epsilon, neighbors=self.neighbors)

    def utility(self, candidates: int, *, failure: float, best: int = 1) -> float:
        """Return (ln(candidates / best) + ln(1 / failure)) / rate: the chosen score is so far below the best
        one, or further, with probability at most `failure`, where `best` of the candidates have the best
        score.

        How many do is a private fact: this theorem is for planning. `error` holds whatever the scores are.

        Proof: each of the at most `candidates` scores that low weighs at most exp(-rate c) times what each of
               the `best` ones weighs, with c the result; the ratio is candidates exp(-rate c) / best =
               `failure`.
        """
        _require.integer(candidates=candidates, at_least=1)
        _require.integer(best=best, at_least=1)
        if best > candidates:
            raise _require.fail("best", best, f"at most {candidates}, the number of candidates")
        _require.open_probability(failure=failure)
        logarithm = math.log(candidates / best) - math.log(failure)
        return _round.up(_require.exact(logarithm, "utility") / self.rate)

    def pick(self, scores: Integers, entropy: Entropy) -> int:
        return sampling.argmax_gumbel(scores, self.rate, entropy)

    def pick_rows(self, scores: Integers, entropy: Entropy) -> Integers:
        """Return one independent choice for each row of a matrix of 64-bit scores: a column with the index
        chosen."""
        return sampling.top_k_gumbel_rows(scores, self.rate, 1, entropy)

    def tail(self, candidates: int, shortfall: int) -> float:
        y = (candidates - 1) * _exp_neg(self.rate * shortfall)
        return y / (1 + y)


@described("mechanisms.PermuteAndFlip")
@dataclass(frozen=True, slots=True, kw_only=True)
class PermuteAndFlip(_Selector):
    """Goes through candidates in random order, and takes each with probability exp(rate * (its score - the
    best)), until one is taken: permute-and-flip.

    Guarantee: epsilon-DP; expected shortfall never above the exponential mechanism's. It is *not* of bounded
               range epsilon (scores 0, 0 against 1, -1: the log ratios span epsilon + ln(2 - exp(-epsilon))),
               so it is charged as pure DP. Among k candidates it falls short of the best score by c or more
               with probability at most (k - 1) exp(-rate c) / 2.
    Proof:     McKenna & Sheldon 2020, arXiv:2010.12603. Drawn as the arg-max of scores with exponential
               noise, the same distribution (Ding et al. 2021, arXiv:2105.07260). Shortfall: E' - E > x has
               probability exp(-x) / 2 for two exponentials; one of k - 1 candidates must beat the best that
               way.
    """

    def pick(self, scores: Integers, entropy: Entropy) -> int:
        return sampling.argmax_exponential(scores, self.rate, entropy)

    def tail(self, candidates: int, shortfall: int) -> float:
        return (candidates - 1) * _exp_neg(self.rate * shortfall) / 2


@described("mechanisms.ReportNoisyMax")
@dataclass(frozen=True, slots=True, kw_only=True)
class ReportNoisyMax(_Selector):
    """Chooses the candidate whose score is largest after independent noise of scale 1 / rate, drawn for each:
    report noisy max.

    `noise` is "laplace", "exponential" (the distribution of permute-and-flip) or "gumbel" (that of the
    exponential mechanism).

    Guarantee: epsilon-DP; with Gumbel noise of bounded range epsilon. With Laplace noise it falls short of
               the best of k scores by c or more with probability at most (k - 1) (2 + x) exp(-x) / 4, where x
               = rate c.
    Proof:     given the others' noise, i wins if its own exceeds a threshold; between neighbors that
               threshold moves by at most 2 sensitivity (1 sensitivity if monotone), and P(noise > t) changes
               by a factor of at most exp(epsilon) (Dwork & Roth 2014, Claim 3.9). The arg-max is that of
               continuous noise, compared exactly: ties have probability zero. Shortfall: the difference of
               two unit Laplace variables exceeds x with probability (2 + x) exp(-x) / 4.
    """

    noise: Annotated[str, among(("laplace", "exponential", "gumbel"))] = "laplace"

    @property
    def event(self) -> Event:
        kind = BoundedRange if self.noise == "gumbel" else PureDP
        return kind(epsilon=self.epsilon, neighbors=self.neighbors)

    def pick(self, scores: Integers, entropy: Entropy) -> int:
        argmax = {
            "laplace": sampling.argmax_laplace,
            "exponential": sampling.argmax_exponential,
            "gumbel": sampling.argmax_gumbel,
        }[self.noise]
        return argmax(scores, self.rate, entropy)

    def tail(self, candidates: int, shortfall: int) -> float:
        x = self.rate * shortfall
        if self.noise == "laplace":
            # `_exp_neg` is 0 from 10**6 on; x itself may be beyond floats.
            return (candidates - 1) * _exp_neg(x) * (2 + float(min(x, Fraction(10**6)))) / 4
        y = (candidates - 1) * _exp_neg(x)
        return y / 2 if self.noise == "exponential" else y / (1 + y)


@described("mechanisms.TopK")
@dataclass(frozen=True, slots=True, kw_only=True)
class TopK(_Selector):
    """Chooses the best `k`, in order: k exponential mechanisms of price epsilon / k, each without the
    candidates already chosen ("peeling").

    With `one_shot` Gumbel noise is drawn once and the k largest are taken: the same distribution, k times
    faster.

    Guarantee: k composed choices of bounded range epsilon / k, so epsilon-DP. The j-th choice falls short of
               the j-th best score by c or more, for some j, with probability at most k y / (1 + y), y =
               (m - 1) exp(-rate c / k), among m candidates.
    Proof:     Durfee & Rogers 2019, arXiv:1905.04273, Lemma 4.2 (one shot equals peeling). Before the j-th
               choice one of the j best is left, so the best left is no worse than the j-th best;
               `ExponentialMechanism` bounds each choice.
    """

    k: Annotated[int, at_least(1)] = 1
    one_shot: bool = True

    @property
    def event(self) -> Event:
        each = _require.exact(self.epsilon, "epsilon") / int(self.k)
        return BoundedRange(epsilon=each, neighbors=self.neighbors).repeated(self.k)

    def check_k(self, candidates: int) -> None:
        """Refuse to choose more candidates than there are."""
        _require.must(self.k <= candidates, "k", self.k, f"at most the number of candidates, {candidates}")

    def pick(self, scores: Integers, entropy: Entropy) -> list[int]:
        self.check_k(len(scores))
        rate = self.rate / int(self.k)
        if self.one_shot:
            return [int(i) for i in sampling.top_k_gumbel(scores, rate, int(self.k), entropy)]
        remaining, chosen = np.arange(len(scores)), []
        for _ in range(self.k):
            index = sampling.argmax_gumbel(scores[remaining], rate, entropy)
            chosen.append(int(remaining[index]))
            remaining = np.delete(remaining, index)
        return chosen

    def pick_rows(self, scores: Integers, entropy: Entropy) -> Integers:
        """Return the best k of each row of a matrix of 64-bit scores, in order."""
        return sampling.top_k_gumbel_rows(scores, self.rate / int(self.k), int(self.k), entropy)

    def named(self, picked: Any, candidates: Any) -> tuple[Any, ...]:
        return tuple(candidates[i] for i in picked)

    def tail(self, candidates: int, shortfall: int) -> float:
        y = (candidates - 1) * _exp_neg(self.rate * shortfall / int(self.k))
        return self.k * y / (1 + y)


Selector = ExponentialMechanism | PermuteAndFlip | ReportNoisyMax | TopK


def as_scores(scores: Any) -> Integers:
    """Return scores as a vector of integers; refuse anything else."""
    array = np.asarray(scores)
    integral = array.dtype.kind in "iu" or (
        array.dtype.kind == "O" and all(isinstance(v, int) for v in array.flat)
    )
    _require.that(
        array.ndim == 1 and len(array) != 0 and integral,
        f"scores must be a non-empty list of integers, got {array.ndim} dimensions of {array.dtype}. Put "
        "real scores on a grid with RealScores.",
    )
    return array


def _exp_neg(x: Fraction) -> float:
    """Return exp(-x), which is 0 as a float from x = 746 on, also where x itself is beyond floats."""
    return math.exp(-min(float(x), 800.0)) if x < 10**6 else 0.0


def _first(good: Callable[[int], bool]) -> int:
    """Return the smallest positive integer for which `good` is true, if it is true for all larger ones."""
    high = 1
    while not good(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if good(middle) else (middle, high)
    return high


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class RealScores:
    """Puts the steward's real-valued scores on a grid: each is rounded to a whole number of `step`s, exactly.

    Guarantee: if no real score moves by more than `claimed`, no integer moves by more than ceil(claimed /
               step); and if all move the same way, so do the integers.
    Proof:     rounding is monotone and commutes with adding integers: r(b) <= r(a + ceil(d)) = r(a) + ceil(d)
               for b <= a + d.
    Assumes:   `function` returns finite numbers, and `claimed` bounds how far they move *as computed*. It
               sees values as they are, not clipped, and raises on none (see `Trusted`).

    It has no JSON description, so an earlier release is never repeated for free: each is charged.
    """

    function: Callable[[Source], Any]
    claimed: Annotated[Real, POSITIVE]
    step: Annotated[Real, POSITIVE]
    name: str = "trusted"

    def sensitivity(self, public: Public) -> Sensitivity:
        ratio = _require.exact(self.claimed, "claimed") / _require.exact(self.step, "step")
        # All scores may move, and their number is not known here.
        return Sensitivity(linf=math.ceil(ratio), l0=1 << 62)

    def __call__(self, source: Source) -> Integers:
        scores = np.asarray(self.function(source), dtype=np.float64)
        if scores.ndim != 1 or not np.isfinite(scores).all():
            raise InvalidInput("scores must be a list of finite numbers, one per candidate.")
        step = _require.exact(self.step, "step")
        rounded = [math.floor(Fraction(float(s)) / step + Fraction(1, 2)) for s in scores]
        return np.array(rounded, dtype=np.int64 if all(abs(r) < 1 << 62 for r in rounded) else object)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Cells:
    """Cuts a map into `cells` x `cells` equal rectangles (cells) by the declared bounds of columns `x` and
    `y`; the scores are in the order of `candidates`."""

    x: str
    y: str
    cells: Annotated[int, at_least(1)]

    def length(self, public: Public) -> int:
        return self.cells**2

    def candidates(self) -> tuple[tuple[int, int], ...]:
        """Return the cells in the order of the scores: (position along x, position along y), each from 0."""
        return tuple((i, j) for i in range(self.cells) for j in range(self.cells))

    def positions(self, source: Source) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
        """Yield the cells of the rows, batch by batch; a row without one of its coordinates is in none."""
        bounds = [source.public.bounds(name) for name in (self.x, self.y)]
        for batch in source.batches([self.x, self.y]):
            arrays = [arrow_columns.unpacked(batch.column(0)), arrow_columns.unpacked(batch.column(1))]
            is_present = arrow_columns.present(arrays[0]) & arrow_columns.present(arrays[1])
            i, j = (
                self._cell(arrow_columns.numbers(array, name)[is_present], bound)
                for array, name, bound in zip(arrays, (self.x, self.y), bounds, strict=True)
            )
            yield i, j

    def _cell(self, values: NDArray[Any], bounds: Bounds) -> NDArray[np.int64]:
        low, high = float(bounds.lower), float(bounds.upper)
        # Bounds that round to the same float leave one cell.
        width = high - low or 1.0
        part = (np.clip(values.astype(np.float64), low, high) - low) / width * self.cells
        return np.clip(np.floor(part), 0, self.cells - 1).astype(np.int64)

    def moves_one_way(self, public: Public) -> bool:
        """Return whether all scores of a cell map move the same way: they do if a row appears or disappears,
        but not if it is replaced."""
        return public.neighbors is not REPLACE


@described("mechanisms.CellCounts")
@dataclass(frozen=True, slots=True, kw_only=True)
class CellCounts(_Cells):
    """Counts the rows in every cell of a map: the "uniform" score of a location.

    On a table of one person the exponential mechanism at epsilon (not `monotone`) chooses the true cell
    exp(epsilon / 2) times as likely as each other cell: randomized response over the cells at epsilon / 2.

    Guarantee: no entry moves by more than 1; replace moves two, in opposite directions.
    Proof:     a row is in at most one cell.
    """

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        # refuses columns without bounds
        public.bounds(self.x), public.bounds(self.y)
        return Sensitivity(linf=1, l0=min(2 if public.neighbors is REPLACE else 1, self.length(public)))

    def __call__(self, source: Source) -> Integers:
        require_rows(source.public)
        total = np.zeros(self.cells**2, np.int64)
        for i, j in self.positions(source):
            total += np.bincount(i * self.cells + j, minlength=self.cells**2)
        return total


@described("mechanisms.CellDistances")
@dataclass(frozen=True, slots=True, kw_only=True)
class CellDistances(_Cells):
    """Scores every cell (i, j) by minus the sum of its distances |i - k| + |j - l| to the cells (k, l) of the
    rows.

    On a table of one person near cells are likelier than far ones; on a table of many the best cell is the
    median in each direction.

    Guarantee: no entry moves by more than 2 (cells - 1).
    Proof:     one row contributes a distance of 0 to 2 (cells - 1), which appears, disappears, or becomes
               another in that range.
    """

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        # refuses columns without bounds
        public.bounds(self.x), public.bounds(self.y)
        # The score of a single cell never moves, but noise needs a sensitivity of at least 1.
        return Sensitivity(linf=max(1, 2 * (self.cells - 1)), l0=self.length(public))

    def __call__(self, source: Source) -> Integers:
        require_rows(source.public)
        x_counts, y_counts = np.zeros(self.cells, np.int64), np.zeros(self.cells, np.int64)
        for i, j in self.positions(source):
            x_counts += np.bincount(i, minlength=self.cells)
            y_counts += np.bincount(j, minlength=self.cells)
        distances = np.abs(np.subtract.outer(np.arange(self.cells), np.arange(self.cells)))
        return -np.add.outer(distances @ x_counts, distances @ y_counts).ravel()


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Mistakes:
    """Scores each hypothesis of a finite class by minus the number of rows on which it is wrong.

    With `Select` and the exponential mechanism it is a private PAC learner (Kasiviswanathan, Lee, Nissim,
    Raskhodnikova & Smith 2011, arXiv:0803.0924); `enough_rows` says how many rows it needs.

    A hypothesis is a function of the values of `columns` in one row, which returns a value of `target`.

    Guarantee: no score moves by more than 1, and all move the same way if a row appears or disappears.
    Proof:     a row adds 0 or -1 to each score, from its own values alone: hypotheses are asked about one
               row, and where one raises it counts as wrong.
    Assumes:   hypotheses are functions: they keep nothing of the rows that they have seen.
    """

    columns: Annotated[tuple[str, ...], NON_EMPTY]
    target: str
    hypotheses: Annotated[tuple[Callable[..., Any], ...], NON_EMPTY]

    def length(self, public: Public) -> int:
        return len(self.hypotheses)

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        for name in (*self.columns, self.target):
            public.fact(name)
        return Sensitivity(linf=1, l0=len(self.hypotheses))

    def moves_one_way(self, public: Public) -> bool:
        return public.neighbors is ADD_REMOVE

    def __call__(self, source: Source) -> Integers:
        require_rows(source.public)
        rows: Counter[tuple[Any, ...]] = Counter()
        for batch in source.batches([*self.columns, self.target]):
            columns = (arrow_columns.unpacked(column).to_pylist() for column in batch.columns)
            rows.update(zip(*columns, strict=True))
        wrong = [
            sum(n * _is_wrong(one, row[:-1], row[-1]) for row, n in rows.items()) for one in self.hypotheses
        ]
        return -np.array(wrong, dtype=np.int64)


def _is_wrong(hypothesis: Callable[..., Any], values: tuple[Any, ...], label: Any) -> bool:
    try:
        return not bool(hypothesis(*values) == label)
    except Exception:
        return True


def enough_rows(hypotheses: int, *, epsilon: Real, accuracy: float, failure: float = 0.05) -> int:
    """Return from how many rows on the exponential mechanism over so many hypotheses is an agnostic PAC
    learner: its choice errs by at most `accuracy` more often than the best one, on the population that the
    rows are independent draws from, except with probability `failure`. The scores are `Mistakes`, with a
    sensitivity of 1 and not `monotone`.

    Proof: let k be `hypotheses` and b be `failure`. With probability 1 - b/2 the choice errs on at most
           (2 / epsilon) ln(2 k / b) rows more than the best (`ExponentialMechanism.utility`). By Hoeffding's
           inequality and a union bound the shares of errors on n rows are all within sqrt(ln(4 k / b) /
           (2 n)) of the population's, with probability 1 - b/2; this is paid twice. The sum is at most
           `accuracy` from the result on (Kasiviswanathan et al. 2011, arXiv:0803.0924, with constants).
    """
    _require.integer(hypotheses=hypotheses, at_least=1)
    _require.positive(epsilon=epsilon)
    _require.open_probability(accuracy=accuracy, failure=failure)
    sampling_error = 2 * math.sqrt(math.log(4 * hypotheses / failure) / 2)
    noise_error = 2 * math.log(2 * hypotheses / failure) / float(epsilon)
    # the positive root of noise_error x² + sampling_error x = accuracy, with x = 1 / sqrt(n)
    root = (sampling_error + math.sqrt(sampling_error**2 + 4 * noise_error * accuracy)) / (2 * accuracy)
    return math.ceil(root**2 * (1 + 1e-12))


@described("mechanisms.Select")
@dataclass(frozen=True, slots=True, kw_only=True)
class Select(Mechanism):
    """Chooses one of public `candidates` (or several) by the `scores` that a statistic gives them.

    `chooser` is the selector that picks: the exponential mechanism, permute-and-flip, report noisy max. (It
    is stored in ledgers under this name.)

    Guarantee: as the selector's, whose `sensitivity` must cover the statistic's, for the relation of
               `public`.
    Proof:     the selector's. `monotone` is accepted for scores that are proved to move the same way
               (`moves_one_way`), and for trusted code.
    """

    error_in_scores: ClassVar[bool] = True
    public: Annotated[Public, PUBLIC]
    scores: Annotated[Statistic, STATISTIC]
    candidates: Annotated[tuple[Any, ...], NON_EMPTY]
    chooser: Annotated[Selector, instance_of(Selector, "a selector, such as ExponentialMechanism(...)")]

    def __post_init__(self) -> None:
        try:
            distinct = len(set(self.candidates))
        except TypeError:
            raise InvalidInput("candidates must be hashable: use tuples instead of lists.") from None
        _require.that(distinct == len(self.candidates), "candidates must differ from each other.")
        require_relation(
            self.public.neighbors, self.chooser.neighbors, what=f"this {type(self.chooser).__name__}"
        )
        if isinstance(self.chooser, TopK):
            self.chooser.check_k(len(self.candidates))
        self._check_length()
        needed = self.scores.sensitivity(self.public).linf
        _require.that(
            needed <= self.chooser.sensitivity,
            f"the scores move by up to {needed} under {self.public.neighbors}, and the selector is "
            f"priced for {self.chooser.sensitivity}. Give it sensitivity={needed}.",
        )
        _require.that(
            not self.chooser.monotone or moves_one_way(self.scores, self.public),
            f"nothing proves that under {self.public.neighbors} these scores all move the same way. Use "
            "monotone=False.",
        )

    def _check_length(self) -> None:
        """Refuse scores that are not one for each candidate. How many trusted code returns is known only
        after it has run, so `__call__` checks that."""
        if isinstance(self.scores, Trusted | RealScores) or not hasattr(self.scores, "length"):
            return
        length = length_of(self.scores, self.public)
        _require.that(
            length == len(self.candidates),
            f"the statistic gives {'a single number' if length is None else f'{length} scores'}, and "
            f"there are {len(self.candidates)} candidates. Give one candidate for each entry of the "
            "statistic, in its order.",
        )

    @property
    def event(self) -> Event:
        return self.chooser.event

    def error(self, confidence: float = 0.95) -> int:
        """Return how far, with probability `confidence`, the chosen candidate's score may be below the best,
        in the statistic's units; of k choices, how far each j-th one may be below the j-th best."""
        return self.chooser.error(len(self.candidates), confidence)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        scores = as_scores(self.scores(source))
        _require.that(
            len(scores) == len(self.candidates),
            f"the statistic does not give one score for each of the {len(self.candidates)} candidates.",
        )
        value = self.chooser.named(self.chooser.pick(scores, entropy), self.candidates)
        return release(value, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)


def moves_one_way(statistic: Statistic, public: Public) -> bool:
    """Return whether all entries move the same way between any two neighbors, as far as is proved; for
    `Trusted` and `RealScores` the steward vouches for it by asking for `monotone`.

    Proof: `Histogram`: a row appears or disappears (replace moves one entry up and another down, and so does
           a blank that counts as the lower bound). `CountsBelow`: a larger value only lowers entries, and so
           does a missing one that counts nowhere; a smaller value, the lower bound included, only raises
           them.
    """
    if isinstance(statistic, Trusted | RealScores | CountsBelow):
        return True
    if isinstance(statistic, Histogram):
        return public.neighbors is not REPLACE and statistic.sensitivity(public).l0 == 1
    proved = getattr(statistic, "moves_one_way", None)
    return bool(proved(public)) if proved is not None else False
