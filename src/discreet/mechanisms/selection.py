"""Choosing from a public list: a candidate is the likelier the better its score, and none is ever certain.

`Select` is the mechanism: a statistic gives every candidate an integer score, a selector (`selectors`)
chooses one (or some). Scores are those of any statistic: a histogram (the most common category), cells of a
map by count or by distance (`CellCounts`, `CellDistances`), or the steward's own function (`Trusted`, and
`RealScores` for real numbers).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import ADD_REMOVE, PUBLIC, REPLACE, Bounds, Public, require_relation
from .._registry import described
from .._require import NON_EMPTY, POSITIVE, Real, at_least, instance_of
from ..accounting import Event
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
from .selectors import Selector, TopK, as_scores
from .statistics import CountsBelow, Histogram, Trusted, length_of, require_rows

__all__ = [
    "CellCounts",
    "CellDistances",
    "Mistakes",
    "RealScores",
    "Select",
    "enough_rows",
    "moves_one_way",
]


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
