"""Leaderboards that cannot be climbed by luck: a score is shown only for an improvement, and with noise that
makes the board differentially private.

Participants know the features of a test set, the board keeps the labels. On a plain board every score leaks
some labels, and hundreds of random submissions can be combined into a winning one (the boosting attack of
Blum & Hardt 2015). These boards show a new best score only when it beats the last one by a step, add noise to
the comparison and to the score, and halt after a declared number of improvements. That makes them private, so
that their scores hold for the population too. `ShakyLadder` shows a score with fresh noise;
`SparseVectorBoard` derives it from the comparison at no further price.

Defines submissions to a leaderboard: predicted labels by the id of their row, and how many of them are
wrong.
"""

from __future__ import annotations

import hashlib
import math
from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import field, replace
from fractions import Fraction
from functools import lru_cache
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from .. import _require, _round
from .._errors import InvalidInput
from .._public import REPLACE, Boolean, Categories, Public
from .._registry import described
from .._require import TEXT, Limit, Real, at_least
from ..accounting import Event
from ..mechanisms import RedrawnSparseVector, SparseVector, arrow_columns
from ..mechanisms.protocols import Answered, check_source, require_columns
from ..mechanisms.sparse_vector import (
    FOREIGN_STATE,
    NOISE,
    Comparing,
    SparseVectorRounds,
    State,
    Thresholds,
    declared,
)
from ..mechanisms.stability import failure_of
from ..sampling import Entropy
from ..tables import Source
from .generalization import Bound, best
from .significance import RowFacts

Integers = npt.NDArray[np.int64]
# The largest number of characters of a submission's name, which is stored in the ledger. Chosen by hand.
_MAX_CHARACTERS = 100


def _check_name(**named: Any) -> None:
    for option, name in named.items():
        fits = isinstance(name, str) and 0 < len(name) <= _MAX_CHARACTERS and name.isprintable()
        _require.must(fits, option, name, f"a printable text of 1 to {_MAX_CHARACTERS} characters")


def _check_step(**named: Real) -> None:
    """Refuse a step that is no difference of accuracies, or below a millionth: that bounds the default number
    of improvements, 1 / step. Chosen by hand, not tuned."""
    _require.open_probability(**named)
    for name, step in named.items():
        _require.must(step * 10**6 >= 1, name, step, "at least a millionth")


@described("adaptive.Submission")
class Submission:
    """Holds predictions under a name; build it with `Submission.of`.

    Its JSON description, which the ledger stores, has the number (`rows`) and the SHA-256 `digest` of the
    predictions, not the predictions. An object read back from it cannot be scored.
    """

    name: Annotated[str, Limit(_check_name)]
    rows: Annotated[int, at_least(0)] = 0
    digest: Annotated[str, TEXT] = ""
    _ids: Any = field(default=None, init=False, repr=False, compare=False)
    _labels: Any = field(default=None, init=False, repr=False, compare=False)

    @classmethod
    def of(cls, name: str, predictions: Mapping[Any, Any]) -> Submission:
        """Build a submission from predicted labels by id.

        Ids are whole numbers or texts; labels are checked against the declared ones when the submission is
        scored.
        """
        kind, some = type(predictions).__name__, isinstance(predictions, Mapping) and predictions
        _require.must(some, "predictions", kind, "labels by id, at least one")
        ids, labels = list(predictions), list(predictions.values())
        with _require.refusing(
            "the ids of a submission must be all whole numbers, or all texts.", pa.ArrowException
        ):
            array = pa.array(ids)
            kind = array.type
            if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
                raise TypeError(kind)
        text = "\n".join(f"{i!r}:{label!r}" for i, label in zip(ids, labels, strict=True))
        self = cls(name=name, rows=len(ids), digest=hashlib.sha256(text.encode()).hexdigest())
        object.__setattr__(self, "_ids", array)
        object.__setattr__(self, "_labels", labels)
        return self

    def codes(self, public: Public, target: str) -> Integers:
        """Return the index of each predicted label among the declared categories; InvalidInput if a label is
        not declared.

        Reads no data.
        """
        _require.that(
            self._ids is not None,
            "this is only the description of a submission, which does not contain its predictions.",
        )
        code_of = {value: i for i, value in enumerate(categories(public, target))}
        plain = [label.item() if isinstance(label, np.generic) else label for label in self._labels]
        unknown = next(
            (label for label in plain if not isinstance(label, str | int) or label not in code_of), None
        )
        # a label None is not declared either, but looks like "no unknown label" here
        what = f"declared label of column {target!r}; the labels are {list(code_of)[:20]}."
        _require.that(unknown is None and None not in plain, f"{unknown!r} is not a {what}")
        return np.array([code_of[label] for label in plain], np.int64)


def categories(public: Public, target: str) -> tuple[str | int, ...]:
    """Return the labels a column can have, as declared."""
    fact = public.fact(target)
    if isinstance(fact, Boolean):
        # equal to False and True, so that both spellings are accepted
        return (0, 1)
    if not isinstance(fact, Categories):
        raise InvalidInput(f"the target {target!r} must be declared as Categories([...]) or Boolean().")
    return fact.values


def check_columns(public: Public, target: Any, id: Any) -> None:
    """Check that the target has declared labels, and that the id is another column."""
    categories(public, target)
    _require.must(
        isinstance(id, str) and id != target, "id", id, "the name of the column that tells rows apart"
    )


def check_submission(question: Any) -> None:
    """Refuse what is no submission."""
    kind, fits = type(question).__name__, isinstance(question, Submission)
    _require.must(fits, "a question to a leaderboard", kind, "a Submission")


def losses(source: Source, submission: Submission, target: str, id: str) -> tuple[Any, Integers]:
    """Return the ids of all rows, as a list of arrays, and the loss of each row in the same order: 1 where
    its label is missing, is not the predicted one, or was not predicted, else 0.

    Guarantee: the loss of a row depends on this row only, so one row moves the sum by at most 1 under every
               neighbor relation.
    """
    codes, labels = submission.codes(source.public, target), categories(source.public, target)
    ids, row_losses = [], []
    for batch in source.batches([id, target]):
        keys, truth = (
            batch.column(0),
            arrow_columns.categories(arrow_columns.unpacked(batch.column(1)), labels, target),
        )
        ids.append(keys)
        row_losses.append(
            np.where(_predictions_by_id(keys, submission._ids, codes) == truth, 0, 1) | (truth < 0)
        )
    return ids, np.concatenate(row_losses).astype(np.int64) if row_losses else np.zeros(0, np.int64)


def _predictions_by_id(keys: Any, ids: Any, codes: Integers) -> Integers:
    """Return the predicted code of each key, or -1 where none was predicted."""
    keys = arrow_columns.unpacked(keys)
    try:
        positions = pc.fill_null(pc.index_in(keys, value_set=ids.cast(keys.type), skip_nulls=True), -1)
    except (pa.ArrowException, NotImplementedError):
        # ids that cannot be cast to the type of the keys match no row
        return np.full(len(keys), -1, np.int64)
    indices = positions.to_numpy(zero_copy_only=False).astype(np.int64)
    # index -1, of a key without a prediction, selects the -1 at the end
    predicted: Integers = np.append(codes, -1)[indices]
    return predicted


Step = Annotated[Real, Limit(_check_step)]


@described("adaptive.Standing")
class Standing:
    """Holds what a board releases: the best accuracy so far (`score`), whether this submission `improved` it,
    and how many improvements are `left` before the board halts.

    `within`: with probability 0.95 every score, when it is shown, is this close to the best true accuracy (on
    the population) among the submissions so far; None where the number of submissions was not declared.
    """

    score: float
    improved: bool
    left: int
    within: float | None = None


class _Board(Comparing):
    """Base of the private boards. A submission is compared with a public bar: the fewest errors shown so far
    less the step. The state is that of `SparseVectorRounds` and "best", the fewest errors shown."""

    __slots__ = ()

    public: Public
    target: str
    id: str
    step: Real
    budget: int | None
    submissions: int | None

    @property
    @abstractmethod
    def _vector(self) -> Thresholds:
        """The sparse vector whose price and noise the comparisons with the bar have."""

    @property
    def rounds(self) -> SparseVectorRounds:
        return replace(self._vector.rounds, names=NOISE)

    @property
    def event(self) -> Event:
        return self._vector.event

    def __post_init__(self) -> None:
        check_columns(self.public, self.target, self.id)
        # properties that refuse parameters for which they have no value
        self.size, self.rounds  # noqa: B018

    @property
    def size(self) -> int:
        """Return the declared number of rows; scores are counts divided by it."""
        return self.public.declared_size("a leaderboard")

    @property
    def improvements(self) -> int:
        """Return how many improvements are shown before the board halts: the declared budget, or as many
        steps as fit between an accuracy of 0 and of 1.
        """
        return math.ceil(1 / _require.exact(self.step, "step")) if self.budget is None else self.budget

    @property
    def _margin(self) -> int:
        """Return the step in rows: how many errors fewer than the best a submission must have."""
        return math.ceil(_require.exact(self.step, "step") * self.size)

    @property
    def _monotone(self) -> bool:
        """Return whether one row moves the numbers of errors of all submissions the same way.

        Under add_remove a new row adds an error or none to each submission. Under zero_out the row becomes a
        blank: where the table leaves it out, that takes away an error or none from each; where it stays
        without a label, it counts as an error of every submission. Replacing a label moves some up and others
        down.
        """
        return self.public.neighbors is not REPLACE

    def rehearse(self, source: Source) -> None:
        """Refuse a missing id column before anything is charged: the schema need not declare it."""
        require_columns(source, self.id)

    def start(self, source: Source, *, entropy: Entropy) -> State:
        """Start a board without submissions: its best score is that of predictions which are all wrong. No
        data is read."""
        return {**Comparing.start(self, source, entropy=entropy), "best": self.size}

    def answer(self, state: State, source: Source, question: Any, *, entropy: Entropy) -> Answered:
        """Score one `Submission`. It costs nothing more: everything was paid at the start."""
        before = self.rounds.check(state, self.submissions, "best")
        _require.that(type(before.get("best")) is int, FOREIGN_STATE)
        check_submission(question)
        # refuses labels that are not declared, before any data is read
        question.codes(self.public, self.target)
        check_source(self.public, source)
        wrong = int(losses(source, question, self.target, self.id)[1].sum())
        bar = before["best"] - self._margin
        after, gap, noisy = self.rounds.one(before, bar - wrong, wrong, entropy)
        if gap is not None:
            after["best"] = min(max(bar - gap if noisy is None else noisy, 0), before["best"])
        value = Standing(
            score=1 - after["best"] / self.size,
            improved=gap is not None,
            left=self.improvements - after["positives"],
            within=None if self.submissions is None else self.generalization().radius,
        )
        return after, self.paid(value, entropy, None if self.submissions is None else self.error)

    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on how far the shown score is from the best accuracy on the test set so far: with
        probability `confidence` it holds after every submission.

        Proof: a submission that was not shown had, up to the noise on threshold and comparison, at least as
               many errors as the best shown number less the step. A shown number of errors is off by its own
               noise (or, if derived from the comparison, by the noise on threshold and comparison), and the
               best shown number never rises. Tails of the discrete noise are exact, with a union bound over
               all submissions.
        """
        return self._sample_error(failure_of(confidence))

    def _sample_error(self, failure: Fraction) -> float:
        """Return the bound of `error` that holds with probability at least 1 - failure."""
        submissions = declared(self.submissions, "submissions")
        missed = self._margin + self.rounds.noise_bound(failure / 2, submissions)
        # a number that is derived from the comparison has no noise beyond that in `missed`
        shown = 0 if self.rounds.value is None else self.rounds.spread(failure / 2, self.improvements)
        return _round.up(Fraction(max(missed, shown), self.size))

    def generalization(self, confidence: float = 0.95) -> Bound:
        """Return a bound on how far the shown score is from the best true accuracy among the submissions so
        far, with probability `confidence`: the smallest of all theorems in `generalization` that apply.

        Proof: `generalization.best`. The worst violation of the bound is by one submission, which is a
               function of the shown scores and of the population only: one whose shown score is too high, or
               one that was not shown although it is better. Its accuracy on the test set is, up to the sample
               error, the shown score, or not above it.
        """
        return _generalization(self, float(confidence))


@lru_cache(maxsize=64)
def _generalization(board: Any, confidence: float) -> Bound:
    """Return the bound of `_Board.generalization`, cached."""

    def sample_error(beta: float) -> float:
        error: float = board._sample_error(_require.exact(beta, "failure"))
        return error

    return best(board.event, n=board.size, sample_error=sample_error, confidence=confidence)


@described("adaptive.ShakyLadder")
class ShakyLadder(_Board):
    """Runs a leaderboard that is (epsilon, delta)-DP: it shows a noisy score when a submission beats the best
    one by `step`, a difference of accuracies.

    `target` is the column of labels, `id` the column by whose values predictions are given. `budget`
    improvements are shown, by default 1 / step. `submissions` declares the largest number of submissions;
    with it the error is known.

    Guarantee: (epsilon, delta)-DP for the rows of the test set; its event is more precise: `budget` rounds in
               sequence, each e0-DP with the same e0.
    Proof:     the idea of a ladder with noise on the comparison and the score is Hardt's (2017,
               arXiv:1706.02733); none of his scales is used. Price and scales are those of
               `RedrawnSparseVector` with numbers: the bar, best - step, is a function of what was shown, and
               a row moves the number of wrong predictions by at most 1. `SparseVectorRounds` covers bars that
               change. Under add_remove and zero_out all submissions move the same way, which halves the noise
               on the comparison. `tests/adaptive/test_constants.py` compares the exact distributions of all
               shown scores on neighboring tables of two rows.
    Assumes:   predictions are made without looking at the labels, except through the board. For `within`: the
               rows are independent draws from one population, and the declared size is their number.
    """

    public: RowFacts
    target: str
    id: str
    epsilon: Real
    delta: float
    step: Step = Fraction(1, 100)
    budget: Annotated[int, at_least(1)] | None = None
    submissions: Annotated[int, at_least(1)] | None = None

    @property
    def _vector(self) -> RedrawnSparseVector:
        return RedrawnSparseVector(
            public=self.public,
            threshold=0,
            epsilon=self.epsilon,
            delta=self.delta,
            positives=self.improvements,
            monotone=self._monotone,
            numeric=True,
        )


@described("adaptive.SparseVectorBoard")
class SparseVectorBoard(_Board):
    """Runs a leaderboard that is epsilon-DP: the score of an improvement is derived from the comparison that
    detected it, at no further price.

    Parameters are those of `ShakyLadder`.

    Guarantee: epsilon-DP for the rows of the test set.
    Proof:     `SparseVector` with gap: one noisy threshold for all submissions, and shares of epsilon for
               threshold and comparisons of 1 : (2c)^(2/3) at c improvements, or 1 : c^(2/3) where all
               submissions move the same way (Lyu, Su & Li 2017, arXiv:1603.01699); the gap is free (Ding,
               Wang, Zhang & Kifer 2019, arXiv:1904.12773). The bar changes with what was shown:
               `SparseVectorRounds`. The shown number of errors is bar - gap: the wrong predictions, minus the
               noise on the comparison, plus that on the threshold.
    Assumes:   as `ShakyLadder`.
    """

    public: RowFacts
    target: str
    id: str
    epsilon: Real
    step: Step = Fraction(1, 100)
    budget: Annotated[int, at_least(1)] | None = None
    submissions: Annotated[int, at_least(1)] | None = None

    @property
    def _vector(self) -> SparseVector:
        return SparseVector(
            public=self.public,
            threshold=0,
            epsilon=self.epsilon,
            positives=self.improvements,
            monotone=self._monotone,
            gap=True,
        )
