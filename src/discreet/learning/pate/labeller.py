"""The labeller of PATE as a mechanism: the whole price is charged at the start, when teachers are trained on
private data; then they vote on public inputs until the quota of questions is used up.

Between questions the teachers, which are secret, are kept in the vault, the curator's encrypted store, where
a charge has a drawer of its own (`curator.vault`). The rest of the state is a dict, which the curator stores
encrypted: its history holds exact votes, as text whose length does not depend on them."""

from __future__ import annotations

import base64
import pickle
from dataclasses import dataclass, field
from typing import Annotated, Any, NamedTuple

import numpy as np
import torch

from ... import _require, sampling
from ..._errors import Halted, InvalidInput
from ..._public import Boolean, Categories, Public
from ..._registry import described, named
from ..._require import OPEN_PROBABILITY, at_least
from ...accounting import Event, NoOp, compose
from ...mechanisms.protocols import AnySource, Interactive, Release, check_source, release
from ...mechanisms.votes import (
    Aggregator,
    InteractiveGNMax,
    SanitizedCost,
    State,
    parse_record,
    record,
    record_text,
)
from ...sampling import Entropy
from ...tables import Source
from ..training.data import Tabular, as_array, empty_batch_of, examples_of
from . import teachers as ensemble
from .teachers import Array, Ints, Progress

# The name under which the vault keeps the teachers: it must not change.
BLOB = "teachers"
# The most bytes of one blob of the vault (`curator.vault.LARGEST`).
_MAX_BLOB_BYTES = 1 << 30


@named("learning.Labels")
class Labels(NamedTuple):
    """Holds the answers to a batch of inputs.

    `labels`: the number of a class for each input, or None where the aggregator refused to answer or the
    quota had ended. `counts`: the noisy number of votes for the class, where the aggregator releases it.
    `reinforced`: whether the answer is the student's own prediction, confirmed by the teachers. `asked`: how
    many inputs of the batch were asked before the quota ended.
    """

    labels: tuple[int | None, ...]
    counts: tuple[int | None, ...]
    reinforced: tuple[bool, ...]
    asked: int


@dataclass(frozen=True, slots=True, eq=False)
class PublicInputs:
    """Asks for labels of public inputs `x`, one per row; `predictions` are the student's own probabilities of
    each class, which an interactive aggregator needs."""

    x: Array = field(repr=False)
    predictions: Array | None = field(default=None, repr=False)


@described("learning.CostQuestion")
@dataclass(frozen=True, slots=True)
class CostQuestion:
    """Asks for the sanitized data-dependent cost of all answers so far. It is answered once, and ends the
    labeller."""


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class PrivateTeachers(Interactive):
    """Trains teachers on disjoint parts of private examples, and answers with an aggregate of their votes
    (PATE).

    `learner` is the steward's trusted code: an object with `fit(x, y)` and `predict(x)`, of which every
    teacher is a copy. `columns` says which columns of a table are features and target; a source of examples
    needs none. `classes` and the `shape` of one input are public. `size` is the number of bytes that the
    vault keeps for one teacher. With `sanitize` the data-dependent cost (a bound that is smaller where
    teachers agree) can be published once, with noise, at `delta`. `asked`, the epsilon and delta that the
    caller asked for, is a note: nothing is computed with it. `workers` is the number of processes that train
    teachers, and `progress` is called with the number of trained teachers and of all.

    Guarantee: that of the aggregator, and of `sanitize`, under add_remove, replace and zero_out alike, for a
               unit of any number of rows; whatever inputs are asked, even if they depend on earlier answers.
    Proof:     rows are dealt to teachers by unit, each unit independently of the others (`teachers.deal`),
               and put in a random order. So the deals of two neighbors can be coupled such that all teachers
               but one have the same examples. Each teacher is trained with its own seed on its own examples;
               a teacher that fails changes its own votes only (module `teachers`). So in every question one
               vote differs, and two counts by 1 each (with the aggregator `SampledVotes`, a unit is dealt to
               `overlap` teachers, and as many votes differ). Given the teachers, answers are those of the
               aggregator on these counts, and its theorem holds for adaptive questions with any counts. What
               the ledger and the vault show depends on public numbers and on answers.
    Assumes:   the learner depends on nothing but the examples it is fitted to: no files, no network, no state
               shared with other teachers. How long training takes is not hidden.
    """

    public: Public
    # Neither the learner nor the number of processes matters once the teachers are trained: a labeller may be
    # resumed with others (`curator.identities.parameters_of`).
    learner: Any = field(compare=False)
    aggregator: Aggregator
    teachers: Annotated[int, at_least(1)]
    classes: Annotated[int, at_least(2)]
    shape: tuple[int, ...]
    columns: Tabular | None = None
    size: Annotated[int, at_least(1)] = 1 << 20
    sanitize: SanitizedCost | None = None
    delta: Annotated[float, OPEN_PROBABILITY] = 1e-5
    asked: tuple[Any, float] | None = None
    workers: Annotated[int, at_least(1)] = field(default=1, compare=False)
    progress: Progress | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not (hasattr(self.learner, "fit") and hasattr(self.learner, "predict")):
            raise _require.fail(
                "learner",
                type(self.learner).__name__,
                "something with fit(x, y) and predict(x): a scikit-learn classifier, or "
                "learning.pate.TorchLearner(model)",
            )
        if not isinstance(self.aggregator, Aggregator):
            raise _require.fail("aggregator", type(self.aggregator).__name__, "such as GNMax(...)")
        if self.overlap > self.teachers:
            raise _require.fail("overlap", self.overlap, f"at most the {self.teachers} teachers")
        self._check_columns()
        if self.blob_size > _MAX_BLOB_BYTES:
            raise InvalidInput(
                f"{self.teachers} teachers of {self.size:,} bytes each do not fit into the "
                f"{_MAX_BLOB_BYTES:,} bytes of one blob of the vault. Take smaller teachers, or fewer."
            )
        if self.sanitize is not None:
            self.sanitize.check(self.aggregator)
        if self.progress is not None and not callable(self.progress):
            raise _require.fail("progress", self.progress, "a function of (done, teachers)")

    def _check_columns(self) -> None:
        """Refuse a target column without declared classes, or with another number of them."""
        if self.columns is None:
            return
        fact = self.public.fact(self.columns.target)
        if not isinstance(fact, Categories | Boolean):
            raise InvalidInput(
                f"column {self.columns.target!r} is no class: declare Categories or Boolean for it."
            )
        declared_classes = 2 if isinstance(fact, Boolean) else len(fact.values)
        if declared_classes != self.classes:
            raise _require.fail("classes", self.classes, f"{declared_classes}, as the target declares")

    @property
    def event(self) -> Event:
        price = self.aggregator.event(self.public.neighbors)
        return (
            price if self.sanitize is None else compose([price, self.sanitize.event(self.public.neighbors)])
        )

    @property
    def overlap(self) -> int:
        """Return the number of teachers that a unit is dealt to: the aggregator's `overlap`, which its price
        is for, or one.
        """
        return int(getattr(self.aggregator, "overlap", 1))

    @property
    def blob_size(self) -> int:
        """Return the public number of bytes of all teachers in the vault (`teachers.pack`): `size` for each,
        and 8 for its length."""
        return int(self.teachers) * (int(self.size) + 8)

    def error(self, confidence: float = 0.95) -> int:
        """Return a lead in votes: where one class leads by this many, it is the answer with probability
        `confidence`. With aggregators that either release the exact winner or refuse (`StableVotes`), the
        question is answered with this probability."""
        _require.open_probability(confidence=confidence)
        return int(self.aggregator.lead(confidence, self.classes))

    def rehearse(self, source: AnySource) -> None:
        """Fit the learner to made-up examples of the type of the private ones, and let it predict, before the
        charge: an error that is raised here does not depend on the private data."""
        inputs, _ = empty_batch_of(source, self.columns)
        if not isinstance(inputs, torch.Tensor):
            raise InvalidInput("teachers take examples whose inputs are one tensor.")
        if tuple(inputs.shape[1:]) != tuple(self.shape):
            raise _require.fail("shape", self.shape, f"{tuple(inputs.shape[1:])}, as the examples are")
        teacher = fit_made_up(
            self.learner, tuple(self.shape), self.classes, dtype=input_type(source, self.columns)
        )
        if len(teacher) > self.size:
            raise InvalidInput(
                f"a teacher fitted to made-up examples takes {len(teacher):,} bytes, more than "
                f"size={self.size:,}. Give more room, or smaller teachers."
            )
        if self.workers > 1 and not ensemble.can_train_apart(self.learner):
            raise InvalidInput(
                "the learner cannot be sent to other processes, or none can be started. Begin the script "
                'with `if __name__ == "__main__":`, define the learner in a module, or give workers=1.'
            )

    def start(self, source: AnySource, *, entropy: Entropy, drawer: Any = None) -> State:
        """Train the teachers and put them into the drawer of the vault; without a drawer they are part of the
        state."""
        check_source(self.public, source, examples=True)
        parts = self._partition(source, entropy)
        seeds = [entropy.integer(63) for _ in range(self.teachers)]
        models = ensemble.train(
            self.learner,
            parts,
            self.classes,
            self.size,
            seeds,
            workers=self.workers,
            progress=self.progress,
        )
        state = {
            **self.aggregator.start(entropy),
            "history": [],
            "closed": False,
            "type": input_type(source, self.columns).str,
        }
        blob = ensemble.pack(models, self.size)
        if drawer is None:
            return {**state, BLOB: base64.b64encode(blob).decode()}
        drawer.put(BLOB, blob)
        return state

    def answer(
        self, state: State, source: AnySource, question: Any, *, entropy: Entropy, drawer: Any = None
    ) -> tuple[State, Release]:
        """Answer a batch of public inputs (`PublicInputs`), or with the sanitized cost (`CostQuestion`)."""
        check_source(self.public, source, examples=True)
        if state["closed"]:
            raise Halted("the cost of this labeller was published, which ends it.")
        if isinstance(question, CostQuestion):
            return self._cost(state, source, entropy)
        if not isinstance(question, PublicInputs):
            raise _require.fail("question", type(question).__name__, "PublicInputs(x)")
        x = self._inputs(question.x, np.dtype(state["type"]))
        predictions = self._predictions(question, len(x))
        self._check_quota(state, len(x))
        _touch(source)
        blob = base64.b64decode(state[BLOB]) if drawer is None else drawer.get(BLOB)
        counts = ensemble.votes(ensemble.unpack(blob, self.teachers, self.size), x, self.classes)
        return self._labels(state, counts, predictions, entropy)

    def _labels(
        self, state: State, counts: Ints, predictions: Any, entropy: Entropy
    ) -> tuple[State, Release]:
        """Aggregate the votes on each input until the quota ends."""
        answers, history = [], list(state["history"])
        for row, prediction in zip(counts, predictions, strict=True):
            try:
                state, vote = self.aggregator.label(state, row, entropy=entropy, prediction=prediction)
            except Halted:
                # Some aggregators also limit the number of answers or of refusals, and may halt within a
                # batch. Where they do is a function of answers that were released.
                break
            answers.append(vote)
            if self.sanitize is not None:
                is_answered = vote.label is not None and not vote.reinforced
                history.append(
                    record_text(record(self.aggregator, row, is_answered, prediction), self.classes)
                )
        unanswered = len(counts) - len(answers)
        value = Labels(
            tuple(v.label for v in answers) + (None,) * unanswered,
            tuple(v.votes for v in answers) + (None,) * unanswered,
            tuple(v.reinforced for v in answers) + (False,) * unanswered,
            len(answers),
        )
        return {**state, "history": history}, self._make_release(value, entropy)

    def _cost(self, state: State, source: AnySource, entropy: Entropy) -> tuple[State, Release]:
        """Release the sanitized data-dependent cost, and close the labeller."""
        if self.sanitize is None:
            raise InvalidInput(
                "the sanitized cost was not paid for. Start a labeller with sanitize=..., an epsilon of its "
                "own."
            )
        _touch(source)
        history = [parse_record(text) for text in state["history"]]
        value = self.sanitize(self.aggregator, history, delta=self.delta, entropy=entropy)
        return {**state, "history": [], "closed": True}, self._make_release(value, entropy)

    def _make_release(self, value: Any, entropy: Entropy) -> Release:
        return release(value, event=NoOp(neighbors=self.public.neighbors), entropy=entropy)

    def _partition(self, source: AnySource, entropy: Entropy) -> list[tuple[Array, Ints]]:
        """Return the examples of each teacher: its inputs and class numbers, in random order. Rows whose
        target is no class are left out."""
        examples = examples_of(source, self.columns)
        rows, owners = _rows_and_owners(examples)
        names = None if examples.people is None else examples.people.names.to_pylist()
        teachers_of = ensemble.deal(examples.size, names, self.teachers, entropy, overlap=self.overlap)
        order = np.asarray(sampling.permutation(len(rows), entropy), dtype=np.int64)
        rows, teachers_of = rows[order], teachers_of[owners[order]]
        parts = []
        for number in range(self.teachers):
            x, y = examples.take(rows[(teachers_of == number).any(1)])
            targets = as_array(y).astype(np.float64).reshape(len(x), -1)[:, 0] if len(x) else np.zeros(0)
            has_label = np.isin(targets, np.arange(self.classes))
            parts.append((as_array(x)[has_label], targets[has_label].astype(np.int64)))
        return parts

    def _inputs(self, x: Any, dtype: np.dtype[Any]) -> Array:
        """Return public inputs as numbers of the type that teachers were fitted to: a network of another
        type would refuse them, and its vote would be the default one."""
        values = as_array(x)
        if values.shape[1:] != tuple(self.shape) or not values.ndim or not len(values):
            raise InvalidInput(
                f"inputs have the shape {values.shape}, and must be a batch of one or more of the shape "
                f"{tuple(self.shape)}."
            )
        if values.dtype.kind not in "biuf" or not np.isfinite(values).all():
            raise InvalidInput("inputs must be finite real numbers.")
        if not np.can_cast(values.dtype, dtype, casting="same_kind"):
            raise InvalidInput(
                f"inputs are {values.dtype}, and the teachers were fitted to {dtype}. Convert them in the "
                "way in which the private inputs were."
            )
        with np.errstate(over="ignore"):
            converted = values.astype(dtype)
        if not np.isfinite(converted).all():
            raise InvalidInput(f"inputs are too large for {dtype}.")
        return converted

    def _predictions(self, question: PublicInputs, length: int) -> Any:
        """Return the student's probabilities, one row for each of `length` inputs, or None for each."""
        if question.predictions is None:
            if isinstance(self.aggregator, InteractiveGNMax):
                raise InvalidInput(
                    "an interactive aggregator compares votes with the student's own probabilities: give "
                    "predictions=, one row per input."
                )
            return [None] * length
        predictions = np.asarray(question.predictions, dtype=np.float64)
        if predictions.shape != (length, self.classes):
            raise _require.fail("predictions", predictions.shape, f"of the shape {(length, self.classes)}")
        if not np.isfinite(predictions).all() or (predictions < 0).any():
            raise InvalidInput("predictions must be probabilities.")
        return predictions

    def _check_quota(self, state: State, length: int) -> None:
        """Refuse a batch of more inputs than questions are left."""
        self.aggregator.check_open(state)
        remaining = self.aggregator.queries - state["asked"]
        if length > remaining:
            raise Halted(
                f"{length} inputs were asked, and {max(remaining, 0)} of the {self.aggregator.queries} "
                "questions that were paid for are left. Ask fewer, or train a student on the answers."
            )


def input_type(source: AnySource, columns: Tabular | None) -> np.dtype[Any]:
    """Return the type of the numbers of private inputs, a public fact; types that numpy does not have, such
    as bfloat16, are refused."""
    inputs, _ = empty_batch_of(source, columns)
    try:
        return as_array(inputs).dtype
    except TypeError:
        raise InvalidInput(
            f"teachers cannot be given inputs of {inputs.dtype}. Convert them to float32."
        ) from None


def fit_made_up(
    learner: Any, shape: tuple[int, ...], classes: int, rows: int = 0, dtype: Any = np.float32
) -> bytes:
    """Return a teacher fitted to made-up examples, pickled; where that fails, the learner's own error is
    passed on.

    Inputs are random: floats from 0 to 1, or 0 and 1 where `dtype` is one of whole numbers, which suits an
    embedding. There are eight examples for each class, or `rows` in all if that is more.
    """
    generator = np.random.default_rng(0)
    x = generator.random((max(rows, 8 * classes), *shape), dtype=np.float32)
    x = (x if np.issubdtype(dtype, np.floating) else np.rint(x)).astype(dtype)
    y = np.arange(len(x)) % classes
    try:
        with ensemble.quiet(), ensemble.seeded(0):
            teacher = ensemble.fit_copy(learner, x, y)
            predictions = np.asarray(teacher.predict(x))
            model_bytes = pickle.dumps(teacher, protocol=5)
            # Only to see that it can be pickled, as it is for teachers that are trained in other processes.
            pickle.dumps(learner, protocol=5)
    except Exception as error:
        raise InvalidInput(
            f"the learner failed on made-up examples: {type(error).__name__}: {error}."
        ) from error
    if predictions.shape != (len(x),) or not np.isin(predictions, np.arange(classes)).all():
        raise InvalidInput(
            f"the learner's predict must give one class number from 0 to {classes - 1} for each input."
        )
    return model_bytes


def _rows_and_owners(examples: Any) -> tuple[Ints, Ints]:
    """Return the numbers of the rows that take part, and for each the number of its unit."""
    if examples.people is None:
        rows = np.arange(examples.size, dtype=np.int64)
        return rows, rows
    rows, owners = examples.people.owned()
    return rows, owners


def _touch(source: Any) -> None:
    """Ask the source for no columns at all: nothing is read, but where the curator rehearses a question with
    a source that refuses to be read, the rehearsal ends here, after all checks."""
    if isinstance(source, Source):
        source.batches(())
