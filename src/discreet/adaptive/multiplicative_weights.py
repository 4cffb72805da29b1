"""Answers a stream of counting questions by private multiplicative weights, from a synthetic distribution
that is corrected where it is wrong.

The synthetic distribution is over the cells of the public domain, and uniform at first. A question that it
answers about right uses up nothing. Where it is off by more than about a share alpha of the rows, a noisy
count is released and the distribution is moved towards it. This is an update; updates are paid for at the
start, and each noisy count is "bought" with one of them. At most about ln(number of cells) / alpha² updates
happen, however many questions are asked, so a stream of thousands of questions costs as much as a few.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from .. import _require, _round
from .._errors import InvalidInput
from .._public import Boolean, Public
from .._registry import described, plain
from .._require import Real
from ..accounting import Event, NoOp
from ..mechanisms import RedrawnSparseVector, Sensitivity, SparseVector, arrow_columns
from ..mechanisms.protocols import Release, check_source, release
from ..mechanisms.statistics import require_rows
from ..sampling import Entropy
from ..tables import Source
from ._sparse_vector import SparseVectorRounds, State
from .generalization import Bound, best

Floats = npt.NDArray[np.float64]
# The largest number of cells of the synthetic distribution, which is held in memory: 2**22 floats are 32 MB.
# The value was chosen by hand, not tuned.
MAX_CELLS = 1 << 22
# The update rules, as described at `MultiplicativeWeights`.
EXACT, TEXTBOOK = "exact", "hardt-rothblum"
# The largest number of updates, each of which is in the stored state. Chosen by hand, not tuned.
_MAX_UPDATES = 10**6
# The smallest `failure`: 1 - failure must be a float below 1, with room for rounding.
_LEAST_FAILURE = 1e-12


@described("adaptive.Where")
@dataclass(frozen=True, slots=True, kw_only=True)
class Where:
    """Counts how many rows have, in each named column, one of the values listed for it.

    `conditions` are pairs of a column and its values, ((column, values), ...); without any, all rows count.

    Guarantee: one row moves the count by at most 1, under every neighbor relation; adding a row never lowers
               it.
    Proof:     each row adds 0 or 1.
    """

    conditions: tuple[tuple[str, tuple[str | int, ...]], ...] = ()

    def __post_init__(self) -> None:
        pairs = tuple(_require.listed(condition=c) for c in _require.listed(conditions=self.conditions))
        if any(len(pair) != 2 or not isinstance(pair[0], str) for pair in pairs):
            raise _require.fail("conditions", self.conditions, "pairs of a column and the values it may have")
        conditions = tuple(
            (name, tuple(plain(v) for v in _require.listed(values=values))) for name, values in pairs
        )
        if any(not isinstance(v, str | int) for _, values in conditions for v in values):
            raise _require.fail("a value", self.conditions, "a text or a whole number, as declared")
        if len({name for name, _ in conditions}) < len(conditions):
            raise InvalidInput("a column is named twice in the conditions. List all its values in one.")
        object.__setattr__(self, "conditions", conditions)

    monotone = True

    def sensitivity(self, public: Public) -> Sensitivity:
        require_rows(public)
        for name, values in self.conditions:
            categories = labels(public, name)
            if unknown := [value for value in values if value not in categories]:
                raise InvalidInput(
                    f"{unknown[0]!r} is not a declared value of column {name!r}. Nothing was read."
                )
        return Sensitivity(linf=1)

    def __call__(self, source: Source) -> Any:
        self.sensitivity(source.public)
        names = [name for name, _ in self.conditions]
        total = 0
        for batch in source.batches(names):
            keep = np.ones(batch.num_rows, bool)
            for i, (name, values) in enumerate(self.conditions):
                categories = labels(source.public, name)
                codes = arrow_columns.categories(arrow_columns.unpacked(batch.column(i)), categories, name)
                keep &= np.isin(codes, [categories.index(value) for value in values])
            total += int(keep.sum())
        return np.array(total)


def labels(public: Public, column: str) -> tuple[str | int, ...]:
    """Return the values a column can have, as declared."""
    return (0, 1) if isinstance(public.fact(column), Boolean) else public.categories(column).values


@described("adaptive.Counted")
@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """Holds a count, from the synthetic distribution or (if `updated`) bought with noise; and how many more
    counts can be bought (`left`).

    `within`: with probability 1 - failure all answers of the mechanism are this close, in rows, to n times
    the share in the population; n is the declared size, `failure` that of the mechanism.
    """

    value: float
    updated: bool
    left: int
    within: float


@described("adaptive.MultiplicativeWeights")
@dataclass(frozen=True, slots=True, kw_only=True)
class MultiplicativeWeights:
    """Answers up to `questions` counting questions (`Where`) over the cells of `columns`: all combinations of
    their declared values.

    `alpha` is the share of all rows by which the synthetic distribution must be off for an update. `updates`
    is the number of updates that are paid for; after them the mechanism halts. By default it is a number that
    is enough with probability 1 - failure. With `delta` the noise grows with the square root of the updates
    instead of their number.

    Guarantee: epsilon-DP; with a delta, (epsilon, delta)-DP, and its event is more precise.
    Proof:     Hardt & Rothblum 2010, in the form of Dwork & Roth 2014, Section 4.2: the sparse vector
               technique with released numbers, on |count - center|, where the center is n times the
               question's share in the synthetic distribution, a function of what was released. One row moves
               this distance and the count by at most 1: `SparseVector`, or with a delta
               `RedrawnSparseVector`, with `updates` positives; `SparseVectorRounds` covers centers that
               change.
    Updates:   the threshold is alpha n plus the bound on the noise that holds with probability 1 - failure /
               2, so at an update the synthetic share p of the question differs from the table's share q by
               alpha or more (less half a row at most, because n p is rounded to whole rows). Adding t to the
               logarithms of the question's weights lowers the relative entropy of the table to the synthetic
               distribution, at most ln(cells) at first, by t q - ln(1 - p + p e^t). `rule` "hardt-rothblum"
               takes t = alpha / 2 in the direction of q: a decrease of at least alpha² / 4, so 4 ln(cells) /
               alpha² updates are enough. `rule` "exact", our own, takes t = logit(r) - logit(p), where r lies
               between p and q (by the noisy count less the bound on its noise) and at least alpha from p: a
               decrease of at least kl(r, p) >= 2 alpha² (Pinsker), so an eighth of the updates, ln(cells) /
               (2 alpha²), is enough.
    Assumes:   for accuracy: the declared size is the number of rows, and each row is in a cell.
    """

    public: Public
    columns: tuple[str, ...]
    epsilon: Real
    alpha: Real
    questions: int
    delta: float = 0.0
    failure: float = 0.05
    updates: int | None = None
    rule: str = EXACT

    def __post_init__(self) -> None:
        _require.one_of((EXACT, TEXTBOOK), rule=self.rule)
        require_rows(self.public)
        object.__setattr__(self, "columns", _require.listed(columns=self.columns))
        _require.non_empty(columns=self.columns)
        if len(set(map(repr, self.columns))) < len(self.columns):
            raise _require.fail("columns", self.columns, "different from each other")
        _require.positive(epsilon=self.epsilon)
        _require.open_probability(alpha=self.alpha, failure=self.failure)
        _require.integer(questions=self.questions, at_least=1)
        _require.probability(delta=self.delta)
        if self.updates is not None:
            _require.integer(updates=self.updates, at_least=1)
        if self.cells > MAX_CELLS or self.max_updates > _MAX_UPDATES:
            raise InvalidInput(
                f"the domain has {self.cells} cells and {self.max_updates} updates; at most {MAX_CELLS} "
                f"and {_MAX_UPDATES} are handled."
            )
        if self.failure < _LEAST_FAILURE:
            raise _require.fail("failure", self.failure, f"at least {_LEAST_FAILURE:g}")
        self._threshold_rows  # noqa: B018 - checks the price, the noise and the declared size

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(len(labels(self.public, column)) for column in self.columns)

    @property
    def cells(self) -> int:
        return math.prod(self.shape)

    @property
    def size(self) -> int:
        return self.public.declared_size("multiplicative weights")

    @property
    def max_updates(self) -> int:
        """Return the number of updates after which the mechanism halts."""
        return self._sufficient_updates if self.updates is None else self.updates

    @property
    def _sufficient_updates(self) -> int:
        """Return how many updates are enough with probability 1 - failure: ln(cells) divided by the least
        decrease of the relative entropy per update ("Updates" above)."""
        # 1e-9 keeps the square above zero; such an alpha is refused for its number of updates
        entropy_drop = max(float(self.alpha), 1e-9) ** 2 * (2 if self.rule == EXACT else 0.25)
        return max(1, math.ceil(math.log(max(2, self.cells)) / entropy_drop))

    @property
    def _vector(self) -> SparseVector | RedrawnSparseVector:
        options = {
            "public": self.public,
            "threshold": 0,
            "epsilon": self.epsilon,
            "positives": self.max_updates,
        }
        if self.delta == 0:
            return SparseVector(**options, numeric=True)  # type: ignore[arg-type]
        return RedrawnSparseVector(**options, delta=self.delta, numeric=True)  # type: ignore[arg-type]

    @property
    def rounds(self) -> SparseVectorRounds:
        threshold, query, value = self._vector.scales
        return SparseVectorRounds(
            threshold=threshold,
            query=query,
            value=value,
            max_positives=self.max_updates,
            redraws=self.delta > 0,
        )

    @property
    def event(self) -> Event:
        return self._vector.event

    @property
    def _half_failure(self) -> Fraction:
        """Return half of `failure`: one half for the noise on comparisons, the other for that on counts."""
        return _require.exact(self.failure, "failure") / 2

    @property
    def _threshold_rows(self) -> int:
        """Return the threshold in rows: alpha n plus the bound on the noise ("Updates" above)."""
        target = _require.exact(self.alpha, "alpha") * self.size
        return math.ceil(target) + self.rounds.noise_bound(self._half_failure, self.questions)

    @property
    def converges(self) -> bool:
        """Return whether, with probability 1 - failure, every bought count lies on the same side of the
        synthetic answer as the exact count, so that the default number of updates is enough.
        """
        spread = self.rounds.spread(self._half_failure, min(self.max_updates, self.questions))
        return (
            self.max_updates >= self._sufficient_updates
            and spread < _require.exact(self.alpha, "alpha") * self.size
        )

    def start(self, source: Source, *, entropy: Entropy) -> State:
        """Return the first state: that of `SparseVectorRounds`, and "moves", the updates so far (a name
        that ledgers store). Without any the synthetic distribution is uniform. No data is read."""
        check_source(self.public, source)
        return {**self.rounds.begin(entropy), "moves": []}

    def answer(
        self, state: State, source: Source, question: Any, *, entropy: Entropy
    ) -> tuple[State, Release]:
        """Answer one `Where` from the synthetic distribution, or by a noisy count. It costs nothing more:
        everything was paid at the start."""
        before = self.rounds.check(state, self.questions)
        self._check_question(question)
        moves = self._moves(before)
        check_source(self.public, source)
        guess = self.size * float(_synthetic_histogram(self, moves)[self._cells(question)].sum())
        center, exact = round(guess), arrow_columns.integers(question(source)).item()
        after, gap, noisy = self.rounds.one(
            before, abs(exact - center) - self._threshold_rows, exact, entropy
        )
        if gap is not None and noisy is not None:
            after["moves"] = [
                *before["moves"],
                [[list(c) for c in question.conditions], self._step(guess, noisy)],
            ]
        value = Counted(
            value=guess if noisy is None else float(min(max(noisy, 0), self.size)),
            updated=gap is not None,
            left=self.max_updates - after["positives"],
            within=self.generalization(1 - float(self.failure)).radius * self.size,
        )
        event = NoOp(neighbors=self.public.neighbors)
        return after, release(value, event=event, entropy=entropy, error=self.error)

    def _step(self, guess: float, answer: int) -> float:
        """Return t, which is added to the logarithms of the weights of the question's cells, from the
        synthetic answer `guess` and the noisy count `answer`."""
        direction = math.copysign(1.0, answer - guess)
        if self.rule == TEXTBOOK:
            return direction * float(self.alpha) / 2
        spread = self.rounds.spread(self._half_failure, min(self.max_updates, self.questions))
        # with probability 1 - failure the synthetic share is off by at least this much
        off = max(float(self.alpha), (abs(answer - guess) - spread) / self.size)
        return _logit(guess / self.size + direction * off) - _logit(guess / self.size)

    def picture(self, state: State) -> Floats:
        """Return the synthetic distribution after the answers so far: one axis per column, in the order of
        `columns`. It is a function of released answers, so it is public."""
        if not isinstance(state, dict):
            raise InvalidInput("the state is not one that start() or answer() gave.")
        return _synthetic_histogram(self, self._moves(state)).copy()

    def _check_question(self, question: Any) -> None:
        if not isinstance(question, Where):
            raise InvalidInput(
                f"a question to multiplicative weights is a Where(conditions=...), got "
                f"{type(question).__name__}. Nothing was drawn."
            )
        question.sensitivity(self.public)
        if unknown := [name for name, _ in question.conditions if name not in self.columns]:
            raise InvalidInput(
                f"column {unknown[0]!r} is not among {list(self.columns)}. Nothing was drawn or released."
            )

    def _cells(self, question: Where) -> Any:
        """Return the question's cells, as an index into the synthetic distribution."""
        conditions = dict(question.conditions)
        axes = []
        for column in self.columns:
            categories = labels(self.public, column)
            axes.append(
                [categories.index(v) for v in dict.fromkeys(conditions[column])]
                if column in conditions
                else range(len(categories))
            )
        return np.ix_(*(np.array(list(axis), dtype=np.int64) for axis in axes))

    def _moves(self, state: State) -> tuple[tuple[Where, float], ...]:
        """Return the updates so far: each question, and t that was added to the log-weights of its cells."""
        try:
            return tuple(
                (Where(conditions=_freeze(conditions)), float(step)) for conditions, step in state["moves"]
            )
        except (KeyError, TypeError, ValueError):
            raise InvalidInput(
                "the state is not one that start() or answer() gave. Nothing was drawn."
            ) from None

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on how far any answer is from the exact count, in rows: with probability
        `confidence` it holds for all answers until the mechanism halts.

        Proof: an answer of the synthetic distribution had a distance below the threshold, up to the noise on
               threshold and comparison; a bought count is off by its own noise. Tails of the discrete noise
               are exact.
        """
        _require.open_probability(confidence=confidence)
        return self._sample_error(1 - _require.exact(confidence, "confidence")) * self.size

    def _sample_error(self, failure: Fraction) -> float:
        """Return the bound of `error` that holds with probability at least 1 - failure, as a share of n."""
        # + 1: the center is rounded to a whole number of rows
        synthetic = self._threshold_rows + self.rounds.noise_bound(failure / 2, self.questions) + 1
        bought = self.rounds.spread(failure / 2, min(self.max_updates, self.questions))
        return _round.up(Fraction(max(synthetic, bought), self.size))

    def generalization(self, confidence: float = 0.95) -> Bound:
        """Return a bound on how far any answer, as a share of n, is from the population's share, with
        probability `confidence`."""
        return _generalization(self, float(confidence))


@lru_cache(maxsize=64)
def _generalization(weights: MultiplicativeWeights, confidence: float) -> Bound:
    """Return the bound of `MultiplicativeWeights.generalization`, cached."""

    def sample_error(beta: float) -> float:
        return weights._sample_error(_require.exact(beta, "failure"))

    return best(weights.event, n=weights.size, sample_error=sample_error, confidence=confidence)


@lru_cache(maxsize=8)
def _synthetic_histogram(weights: MultiplicativeWeights, moves: tuple[tuple[Where, float], ...]) -> Floats:
    """Return the synthetic distribution. Weights are added up as logarithms, so that thousands of updates
    neither overflow nor underflow."""
    logs: Floats = np.zeros(weights.shape)
    for question, step in moves:
        logs[weights._cells(question)] += step
    shares: Floats = np.exp(logs - logs.max())
    shares /= shares.sum()
    return shares


def _logit(share: float) -> float:
    """Return ln(share / (1 - share)), for a share clipped to [1e-9, 1 - 1e-9], so that it is finite."""
    clipped = min(max(share, 1e-9), 1 - 1e-9)
    return math.log(clipped / (1 - clipped))


def _freeze(conditions: Any) -> tuple[Any, ...]:
    """Return the conditions of a stored question, lists in JSON, as tuples."""
    return tuple((name, tuple(values)) for name, values in conditions)
