"""Adds to a session the methods that learn from the table: `train`, `fit`, `teach` (PATE) and `synthesize`.

Each builds a mechanism and hands it to the curator, which charges its whole price before any data is read.
`segments.Watch` is the type of a callback `progress`, which is called after each step.

Defines the labeller that `Session.teach` returns (PATE: teachers on private data label public inputs), its
preview and its report.

Builds the mechanism of `Session.teach` (PATE), behind the `Labeller` that it returns: checks its options,
and chooses the aggregator's noise, the columns that teachers read and the stored size of a teacher.

A labeller is resumed by building its mechanism again from the same options. All of its parameters must be
those of its start (`curator.identities.parameters_of`): a labeller that was started with the defaults of this
module cannot be resumed after they change.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import _require, _system
from .._errors import InvalidInput
from .._public import Boolean, Bounds, Categories
from .._require import Real
from ..accounting import Event, basic
from ..accounting import epsilon as epsilon_of
from ..accounting.caps import requested_price_of
from ..accounting.filters import FilterPreview
from ..curator import InteractiveHandle, segments
from ..mechanisms import votes
from ..mechanisms.protocols import ExampleSource, FitsTables, Release, Stepped
from .base import BudgetPreview, SessionBase
from .terms import CopyTerms, TeachTerms, defaults, takes, values

if TYPE_CHECKING:
    from ..learning.pate import PrivateTeachers
    from ..synthetic import SyntheticCopy


class Models(SessionBase):
    """Adds the methods that learn from the table to a session."""

    __slots__ = ()

    @_require.paying
    def train(
        self,
        trainer: Stepped,
        *,
        checkpoint: str | Path | None = None,
        every: int = 100,
        text: str | None = None,
        progress: segments.Watch | bool | None = None,
        callbacks: Sequence[Any] = (),
        validation: Any = None,
    ) -> Release:
        """Train a model (`learning.Trainer`); its whole price is charged first. Each call is a new run, and
        is charged again.

        With a `checkpoint`, a path, the state is saved there after every `every` steps, and `resume`
        continues the run after a crash: steps that were taken after the newest checkpoint are lost, and not
        taken again.

        `progress` is called after each step with public facts, such as the step and epsilon so far; True is a
        progress bar, which is also shown in terminals and notebooks where nothing is said. `callbacks` are
        such functions, writers of TensorBoard or runs of W&B, and `validation` is data that you declare
        public (`learning.PublicSet`): the model is scored on it. `text` describes the run in the ledger.
        """
        watch = self._watch(trainer, progress, callbacks, validation)
        if checkpoint is not None:
            _require_room(Path(checkpoint), trainer)
        return self.curator.run(
            trainer, checkpoint=checkpoint, every=every, analyst=self.analyst, text=text, progress=watch
        )

    @_require.paying
    def resume(
        self,
        trainer: Stepped,
        checkpoint: str | Path,
        *,
        every: int | None = None,
        progress: segments.Watch | bool | None = None,
        callbacks: Sequence[Any] = (),
        validation: Any = None,
    ) -> Release:
        """Continue a run from its newest checkpoint, with the trainer it was started with, and return the
        trained model. Free, because the run was paid for at its start. `every` is as before by default."""
        watch = self._watch(trainer, progress, callbacks, validation)
        return self.curator.run(
            trainer, checkpoint=checkpoint, every=every, analyst=self.analyst, progress=watch, resume=True
        )

    @_require.check_options
    def steps(
        self,
        trainer: Stepped,
        *,
        checkpoint: str | Path | None = None,
        every: int = 100,
        resume: bool = False,
        text: str | None = None,
        validation: Any = None,
    ) -> Iterator[Any]:
        """Train as `train` does (or with `resume=True` as `resume` does), one step at each iteration, which
        gives what `progress` is told: `for step in people.steps(trainer): ...`. The whole price is charged
        before the first step. A loop that is left ends the run like a crash; `step.model` is the model so
        far.
        """
        self.curator.require_here("a loop of your own")
        watch = self._watch(trainer, False, (), validation)
        paid: dict[str, Any] = {"analyst": self.analyst}
        if resume:
            _require.that(checkpoint is not None, "resume=True needs the checkpoint to continue from.")
            run = segments.resumed_steps(self.curator, trainer, str(checkpoint), **paid)
        else:
            run = segments.steps(self.curator, trainer, checkpoint, every=every, text=text, **paid)

        @_require.paying
        def next_step() -> Any:
            return next(run, None)

        def loop() -> Iterator[Any]:
            with closing(run):
                while (facts := next_step()) is not None:
                    yield facts if watch is None else watch(facts)

        return loop()

    def _watch(self, trainer: Any, progress: Any, callbacks: Sequence[Any], validation: Any) -> Any:
        """Return what is called after each step of a run; on a server, nothing of the caller's is."""
        if self.curator.away:
            return progress or None
        if hasattr(trainer, "watch") and not isinstance(trainer, type):
            watched = {"validation": validation, "source": self.curator.source}
            return trainer.watch(progress, callbacks, **watched, delta=self.budget.delta or None)
        if callbacks or validation is not None or progress is True:
            raise InvalidInput(
                "callbacks=, validation= and progress=True are for a learning.Trainer, not for a "
                f"{type(trainer).__name__}: give progress= a function."
            )
        return progress or None

    @_require.paying
    def fit(
        self,
        estimator: Any,
        *,
        target: str | None = None,
        features: Sequence[str] | None = None,
        checkpoint: str | Path | None = None,
        every: int = 100,
        text: str | None = None,
        progress: segments.Watch | None = None,
        seconds: float | None = None,
    ) -> Any:
        """Fit an estimator to the table, charged first, and return what its `adopt` returns (the fitted
        estimator). Classes, bounds and size are those of the schema.

        An estimator has `mechanism(public, target=..., features=..., delta=...)`, which returns a priced
        mechanism that has not run yet, and `adopt(release, mechanism)`, which takes the fitted parameters
        from its release. `target` is left out where nothing is predicted (k-means, principal components).
        `features` are by default all columns that the estimator can use.

        `checkpoint`, `every` and `progress` are those of `train`, for estimators that are trained in steps.
        `text` describes the run in the ledger. With `seconds`, a server fits it as a job and returns it after
        that time and not before, so that the time tells nothing of the data; `progress` is then called with
        the job's public state. A local session returns as soon as it is done.
        """
        # A model that predicts is fitted and comes back as a file; of others, the release comes back.
        if self.curator.away and (hasattr(estimator, "predict") or not hasattr(estimator, "mechanism")):
            return self.curator.run(  # type: ignore[call-arg]
                estimator, target=target, features=features, checkpoint=checkpoint, text=text,
                progress=progress, seconds=seconds,
            )  # fmt: skip
        require_estimator(estimator)
        if target is None and not getattr(estimator, "unsupervised", False):
            raise _require.fail("target", None, "the name of the column to predict")
        mechanism = self._mechanism_for(estimator, target, features)
        note = type(estimator).__name__ if target is None else f"{type(estimator).__name__} of {target}"
        note = note if text is None else text
        if isinstance(mechanism, Stepped):
            release = self.train(mechanism, checkpoint=checkpoint, every=every, text=note, progress=progress)
        elif checkpoint is not None or progress is not None:
            raise InvalidInput(
                f"{type(estimator).__name__} is fitted in one step, so there are no steps to save or to "
                "report. Leave checkpoint= and progress= out."
            )
        else:
            # a `PrivateSearch` can hide how many trials it takes
            seconds = float(getattr(estimator, "least_seconds", 0.0))
            release = self.curator.ask(mechanism, analyst=self.analyst, text=note, least_seconds=seconds)
        return estimator.adopt(release, mechanism)

    def _mechanism_for(self, estimator: Any, target: str | None, features: Sequence[str] | None) -> Any:
        """Return the priced mechanism that fits an estimator to this table; used by `planning`, too."""
        epsilon = getattr(estimator, "epsilon", None)
        delta = None if epsilon is None else self._delta(epsilon, self.curator.policy)
        # `_delta` returns 0 for a budget without delta; estimators expect None then
        return estimator.mechanism(self.public, target=target, features=features, delta=delta or None)

    @_require.paying
    @takes(TeachTerms)
    def teach(self, learner: Any, terms: TeachTerms) -> Labeller:
        """Train `teachers` models on parts of the data, charged first, and return a labeller that labels up
        to `queries` public inputs by the noisy vote of these teachers (PATE, Papernot et al. 2017,
        arXiv:1610.05755). The parts are disjoint; with "sampled" they overlap.

        `learner`: a scikit-learn classifier, or `learning.pate.TorchLearner(model)`. With the `number` of its
        charge in the ledger, a labeller that was started before is returned, for example after a restart.
        """
        self.curator.require_here(learner)
        mechanism, values = build_mechanism(self, learner, terms)
        if terms.number is not None:
            return Labeller(self.curator.resume(mechanism, terms.number, analyst=self.analyst), values)
        return Labeller(self.curator.start(mechanism, analyst=self.analyst), values)

    def preview_teach(self, learner: Any, **options: Any) -> TeachingPreview:
        """Preview the price of a labeller, the lead in votes with which a class wins despite the noise, and
        how many such labellers the budget pays for. The options are those of `teach`. Free: no data is
        read."""
        self.curator.require_here(learner)
        return preview(self, learner, options)

    @_require.paying
    @takes(CopyTerms)
    def synthesize(self, terms: CopyTerms) -> Any:
        """Make a synthetic copy of the table, charged first. The same options again are answered from the
        ledger, free, unless `fresh` is set. A call with a `checkpoint` or with `progress` is a run like that
        of `train`: each such call is charged.

        `bins`, `missing` and `constraints` are public facts, see `synthetic.Domain` and
        `synthetic.Constraint`. With a `checkpoint`, a path, `resume=True` continues the run after a crash.
        """
        from .synthesis import synthesize

        return synthesize(self, terms)

    @_require.paying
    def compare_copy(
        self, copy: SyntheticCopy, *, epsilon: Real, rows_per_unit: int | None = None
    ) -> Release:
        """Measure, at the price `epsilon`, how far the two-way marginals of a synthetic copy are from those
        of the table, on average (`synthetic.quality.CopyDistance`)."""
        from .synthesis import compare_copy

        return compare_copy(self, copy, epsilon=epsilon, rows_per_unit=rows_per_unit)


def _require_room(checkpoint: Path, trainer: Any) -> None:
    """Refuse, before the charge, a checkpoint that cannot be written: if the first one fails after it, the
    price of the run is lost. What `segments.train` refuses itself passes."""
    if checkpoint.exists() or not checkpoint.parent.is_dir():
        return
    parameters = getattr(getattr(trainer, "model", None), "parameters", None)
    count = sum(int(p.numel()) for p in parameters()) if callable(parameters) else 0
    # Four floats of 4 bytes per parameter: the weight, two moments of an optimizer and an average. One
    # megabyte more for everything else: an estimate, not measured.
    megabytes = 1 + (16 * count >> 20)
    try:
        with NamedTemporaryFile(dir=checkpoint.parent, prefix=checkpoint.name) as trial:
            for _ in range(megabytes):
                trial.write(bytes(1 << 20))
            _system.sync(trial)
    # ValueError: a NUL in the path
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"a checkpoint of about {megabytes} MB cannot be written at {str(checkpoint)!r} "
            f"({_system.reason_of(error)})."
        ) from None


def require_estimator(candidate: Any) -> None:
    """Refuse what is no estimator with a sentence that says what to give instead."""
    _require.an_object(candidate)
    if isinstance(candidate, FitsTables):
        return
    name, module = type(candidate).__name__, type(candidate).__module__
    if name == "Pipeline":
        advice = (
            "a pipeline of scikit-learn learns its scaling from private rows and pays nothing for it: give "
            "tabular.PrivatePipeline(tabular.LogisticRegression(), epsilon=1), or the estimator alone, "
            "whose features are scaled by the declared bounds"
        )
    elif isinstance(candidate, Stepped):
        advice = "it is run by people.train(trainer)"
    elif module.startswith("sklearn"):
        advice = f"it is not private: see whether tabular.{name}(epsilon=1) exists"
    else:
        advice = "give one of discreet.learning, such as LogisticRegression(epsilon=1)"
    raise InvalidInput(f"fit takes an estimator, got {name}: {advice}.")


# The names that the option `aggregator` of `teach` accepts.
AGGREGATORS = ("gnmax", "lnmax", "confident", "interactive", "stable", "sampled", "sparse")


# Options of `teach` that only some aggregators have, with the names of these.
_OPTIONS = {
    "answers": ("confident", "interactive"),
    "threshold": ("confident", "interactive"),
    "failures": ("sparse",),
    "overlap": ("sampled",),
}


def build_mechanism(
    session: SessionBase, learner: Any, terms: TeachTerms
) -> tuple[PrivateTeachers, tuple[Any, ...] | None]:
    """Return the priced mechanism, and the values of the target that its class numbers 0, 1, ... stand for
    (None for tensors, whose classes are the numbers themselves)."""
    from ..learning.pate import PrivateTeachers
    from ..learning.pate.labeller import input_type
    from ..learning.pate.teachers import can_train_apart

    public, source = session.public, session.curator.source
    _check_terms(terms)
    columns, classes, values = _columns(public, source, terms.target, terms.features, terms.classes)
    _require.integer(classes=classes, at_least=2)
    teachers, epsilon, workers = terms.teachers, terms.epsilon, terms.workers
    delta = _delta(session, epsilon, terms.delta)
    aggregator, sanitized_cost = _aggregator(classes, delta, terms)
    shape = (columns.width(public),) if columns is not None else tuple(source.shapes()[0].shape[1:])
    teacher_bytes = terms.size
    if teacher_bytes is None:
        teacher_bytes = _teacher_bytes(public, learner, teachers, shape, classes, input_type(source, columns))
    if workers is None:
        cores = os.cpu_count() or 1
        workers = cores if cores > 1 and teachers > 1 and can_train_apart(learner) else 1
    mechanism = PrivateTeachers(
        public=public,
        learner=learner,
        aggregator=aggregator,
        teachers=teachers,
        classes=classes,
        shape=shape,
        columns=columns,
        size=teacher_bytes,
        sanitize=sanitized_cost,
        delta=delta,
        asked=None if epsilon is None else (epsilon, delta),
        workers=workers,
        progress=terms.progress,
    )
    return mechanism, values


def _aggregator(classes: int, delta: float, terms: TeachTerms) -> tuple[Any, votes.SanitizedCost | None]:
    """Return the aggregator with its noise, and, if `sanitize` is given (the epsilon of that), the mechanism
    that publishes the data-dependent cost; else None."""
    aggregator, epsilon, cost_epsilon = terms.aggregator, terms.epsilon, terms.sanitize
    if isinstance(aggregator, str):
        vote_epsilon = None if epsilon is None else float(epsilon) - float(cost_epsilon or 0)
        specific = {name: values(terms)[name] for name in _OPTIONS}
        aggregator = build_aggregator(
            aggregator, vote_epsilon, delta, terms.queries, terms.teachers, **specific
        )
    if cost_epsilon is None:
        return aggregator, None
    votes.check_cost_known(aggregator)
    order = terms.order
    if order is None:
        order = votes.best_order(aggregator, terms.teachers, classes, delta)
    return aggregator, votes.SanitizedCost(epsilon=cost_epsilon, order=order)


def _teacher_bytes(
    public: Any, learner: Any, teachers: int, shape: tuple[int, ...], classes: int, dtype: Any
) -> int:
    """Return the default limit on the bytes of one stored teacher, from a fit to random examples.

    Some models grow with their rows, and a teacher above the limit is replaced by one that always casts a
    default vote. So the limit is generous: random labels make the largest models, the fit has twice the rows
    of one teacher (512 rows where no number of rows is declared, and at most 4096), and a quarter and 16 KiB
    are added. These numbers are chosen by hand, not tuned.
    """
    from ..learning.pate.labeller import fit_made_up

    rows = 512 if public.size is None else min(2 * public.size // teachers + 1, 4096)
    return len(fit_made_up(learner, shape, classes, rows, dtype)) * 5 // 4 + (1 << 14)


def _check_terms(terms: TeachTerms) -> None:
    """Refuse options that this aggregator would ignore."""
    aggregator = terms.aggregator
    for name, aggregators in _OPTIONS.items():
        value = values(terms)[name]
        _require.that(
            value is None or (isinstance(aggregator, str) and aggregator in aggregators),
            f"{name}={value!r} is for the aggregators {', '.join(aggregators)}, and "
            f"{aggregator if isinstance(aggregator, str) else type(aggregator).__name__} would ignore "
            "it. Leave it out, or set it in the aggregator itself.",
        )
    if terms.order is not None and terms.sanitize is None:
        raise InvalidInput("order= is used with sanitize= only. Give both, or neither.")


def build_aggregator(
    name: str,
    epsilon: float | None,
    delta: float,
    queries: int,
    teachers: int,
    answers: int | None,
    threshold: int | None,
    failures: int | None,
    overlap: int | None = None,
) -> Any:
    """Return the aggregator of this name with noise for (epsilon, delta)-DP over all `queries`; the options
    are those of `Session.teach`."""
    _require.one_of(AGGREGATORS, aggregator=name)
    if epsilon is None or not epsilon > 0:
        raise InvalidInput(
            "give an epsilon, larger than `sanitize`, or an aggregator with its own noise, such as "
            "GNMax(variance=1600, queries=286)."
        )
    if name == "gnmax":
        return votes.GNMax.for_privacy(epsilon, delta, queries)
    if name == "lnmax":
        return votes.LNMax.for_privacy(epsilon, delta, queries)
    if name == "stable":
        return votes.StableVotes.for_privacy(epsilon, delta, queries)
    if name == "sampled":
        # By default each unit is given to a tenth of the teachers. Chosen by hand, not tuned.
        unit_teachers = max(teachers // 10, 1) if overlap is None else overlap
        _require.must(unit_teachers <= teachers, "overlap", unit_teachers, f"at most the {teachers} teachers")
        return votes.SampledVotes.for_privacy(epsilon, delta, queries, overlap=unit_teachers)
    if name == "sparse":
        # 5 refused questions by default: chosen by hand, not tuned.
        refusals = 5 if failures is None else failures
        return votes.SparseVotes.for_privacy(epsilon, delta, queries, failures=refusals)
    # By default, "confident": 4 of 5 teachers must agree, as in Papernot et al. 2018, arXiv:1802.08908;
    # "interactive": for some class, the votes must exceed what the student's prediction expects by 3 in 10 of
    # the teachers, chosen by hand, not tuned.
    votes_needed = (
        threshold if threshold is not None else round((0.8 if name == "confident" else 0.3) * teachers)
    )
    settings: dict[str, Any] = {"answers": queries if answers is None else answers, "threshold": votes_needed}
    if name == "confident":
        return votes.ConfidentGNMax.for_privacy(epsilon, delta, queries, **settings)
    return votes.InteractiveGNMax.for_privacy(epsilon, delta, queries, teachers=teachers, **settings)


def _columns(
    public: Any, source: Any, target: str | None, features: Sequence[str] | None, classes: int | None
) -> tuple[Any, int, tuple[Any, ...] | None]:
    """Return (the columns that teachers read, the number of classes, the values of the target); for tensors,
    columns and values are None."""
    if isinstance(source, ExampleSource):
        if classes is None:
            raise InvalidInput(
                "say how many classes there are, classes=10: their number is public, and is never read from "
                "the data."
            )
        _require.that(
            target is None and features is None,
            "target= and features= name columns of a table, but these data are examples of tensors, "
            "which have inputs and targets already. Leave them out.",
        )
        return None, classes, None
    from ..learning import Tabular

    if target is None:
        raise InvalidInput("say which column is the target, target='label'.")
    fact = public.fact(target)
    _require.that(
        isinstance(fact, Categories | Boolean),
        f"column {target!r} has no declared classes. Declare Categories or Boolean for it.",
    )
    names = features
    if names is None:
        unit = public.unit.column
        names = [
            name
            for name, kind in _schema(public)
            if name not in (target, unit) and isinstance(kind, Bounds | Categories | Boolean)
        ]
    values = (False, True) if isinstance(fact, Boolean) else tuple(fact.values)
    if classes is not None and classes != len(values):
        raise _require.fail("classes", classes, f"{len(values)}, as the target declares")
    return Tabular(features=tuple(names), target=target), len(values), values


def _schema(public: Any) -> list[tuple[str, Any]]:
    """Return the declared columns with their facts."""
    schema = public.schema
    return list(schema.items() if isinstance(schema, Mapping) else schema)


def _delta(session: SessionBase, epsilon: float | None, delta: float | None) -> float:
    """Return the delta of the labeller: as given, or the session's default for this epsilon (for epsilon 1
    where the aggregator has its own noise); 1e-6 where that default is zero. 1e-6 is a convention."""
    if delta is not None:
        return delta
    return session._delta(1 if epsilon is None else epsilon, session.curator.policy) or 1e-6


@dataclass(frozen=True, slots=True, kw_only=True)
class LabellerReport:
    """Reports what a labeller did and cost. Every number is public: a function of options and released
    answers.

    `asked` = `answered` + `refused` + questions that failed; `left` is the number of questions that may still
    be asked. `epsilon` at `delta` is the data-independent price, charged at the start, and `per_answer` is
    epsilon divided by the number of answers so far (before the first answer: by the largest possible number).
    `agreement` is the mean share of teachers that voted for an answer, from noisy counts, and
    `agreement_error` its error with 95% confidence; both are None where the aggregator releases no counts.
    `sanitized` is the data-dependent cost (`vote_cost.SanitizedFigure`), published with noise of its own, or
    None if `publish_cost` was not called.
    """

    teachers: int
    asked: int
    answered: int
    refused: int
    left: int
    epsilon: float
    delta: float
    per_answer: float
    agreement: float | None
    agreement_error: float | None
    sanitized: Any = None

    def __str__(self) -> str:
        lines = [
            f"{self.teachers} teachers: {self.answered} answered, {self.refused} refused, {self.left} left",
            f"epsilon {self.epsilon:.4g} at delta {self.delta:g} (data-independent, charged), "
            f"{self.per_answer:.4g} per answer",
        ]
        if self.agreement is not None:
            lines.append(
                f"agreement {self.agreement:.1%} of the teachers, +- {self.agreement_error:.1%} (noised; 95%)"
            )
        if self.sanitized is not None:
            lines.append(
                f"epsilon {self.sanitized.epsilon:.4g} at delta {self.sanitized.delta:g} (data-dependent, "
                f"sanitized: an estimate, with noise, for this run; not what was charged)"
            )
        return "\n".join(lines)


class Labeller(_require.NearestNames):
    """Labels public inputs by the votes of teachers. `label` is free, because all questions were paid for at
    the start; questions beyond their number are refused.

    `values` are the values of the target by class number, or None if classes are the numbers themselves.
    """

    def __init__(self, live: InteractiveHandle, values: tuple[Any, ...] | None) -> None:
        self.live = live
        self.values = values

    @property
    def mechanism(self) -> PrivateTeachers:
        mechanism: Any = self.live.mechanism
        return cast("PrivateTeachers", mechanism)

    @property
    def number(self) -> int:
        """The number of the charge in the ledger; `teach(..., number=...)` continues the labeller with it."""
        return self.live.number

    @property
    def event(self) -> Event:
        return self.mechanism.event

    def label(self, x: Any, *, predictions: Any = None) -> list[Any]:
        """Return one answer per public input: a class, or None where the question was refused.

        `x` is a batch of inputs: an array or tensor in the format of the teachers' inputs, or for a table a
        data frame or mapping of the feature columns. `predictions` are the student's class probabilities, one
        row per input; only an interactive aggregator uses them.
        """
        from ..learning.pate import PublicInputs

        inputs = np.asarray(self._inputs(x))
        value = self.live.answer(PublicInputs(inputs, predictions)).value
        return [None if n is None else self._value(n) for n in value.labels]

    def publish_cost(self) -> Any:
        """Publish the data-dependent cost of all answers, with noise. It can be published once, and ends the
        labeller.

        It was paid for at the start, by the option `sanitize`.
        """
        from ..learning.pate import CostQuestion

        return self.live.answer(CostQuestion()).value

    def report(self) -> LabellerReport:
        """Report all questions and answers since the start, their price, and how far teachers agree. The
        report is computed from the ledger, so it includes answers before a restart and to other processes."""
        from ..learning.pate import Labels

        mechanism, aggregator = self.mechanism, self.mechanism.aggregator
        values, failed = self.live.released()
        answers = [value for value in values if isinstance(value, Labels)]
        labels = [n for v in answers for n in v.labels[: v.asked]]
        counts = [c for v in answers for c in v.counts if c is not None]
        answered = sum(n is not None for n in labels)
        sanitized = [value for value in values if isinstance(value, votes.SanitizedFigure)]
        price = tightest_epsilon(mechanism.event, mechanism.delta)
        agreement, error = self._agreement(counts)
        return LabellerReport(
            teachers=mechanism.teachers,
            asked=len(labels) + failed,
            answered=answered,
            refused=len(labels) - answered,
            left=0 if sanitized else _remaining_questions(aggregator, len(labels) + failed, answered),
            epsilon=price,
            delta=mechanism.delta,
            per_answer=price / (answered or aggregator.most_answers),
            agreement=agreement,
            agreement_error=error,
            sanitized=sanitized[-1] if sanitized else None,
        )

    def _agreement(self, counts: Sequence[int]) -> tuple[float | None, float | None]:
        """Return (mean share of teachers behind an answer, 1.96 standard deviations of its noise), from the
        noisy vote counts of the answers; (None, None) without counts."""
        aggregator: Any = self.mechanism.aggregator
        if not counts:
            return None, None
        # Gaussian aggregators have a variance; the others add Laplace noise, of variance 2 scale².
        is_gaussian = isinstance(aggregator, votes.GNMax | votes.ConfidentGNMax)
        noise_variance = float(aggregator.variance) if is_gaussian else 2 * float(aggregator.scale) ** 2
        share = float(np.mean(counts)) / self.mechanism.teachers
        error = 1.96 * (noise_variance / len(counts)) ** 0.5 / self.mechanism.teachers
        return min(max(share, 0.0), 1.0), error

    def _inputs(self, x: Any) -> Any:
        """Return the inputs as an array of features: an array as it is, feature columns encoded."""
        columns = self.mechanism.columns
        if columns is None or isinstance(x, np.ndarray):
            return x
        return columns.inputs(x, self.mechanism.public)

    def _value(self, number: int) -> Any:
        """Return the class of a class number."""
        return number if self.values is None else self.values[number]

    def __repr__(self) -> str:
        return f"<Labeller of {self.mechanism.teachers} teachers, charge {self.number}>"


def _remaining_questions(aggregator: Any, questions: int, answered: int) -> int:
    """Return how many questions may still be asked; 0 if the aggregator has given all its answers, or has
    refused as often as it may."""
    refusals = aggregator.most_refusals
    halted = answered >= aggregator.most_answers or (
        refusals is not None and questions - answered >= refusals
    )
    return 0 if halted else max(int(aggregator.queries) - questions, 0)


def tightest_epsilon(event: Event, delta: float) -> float:
    """Return the tightest epsilon of an event at `delta` that an accountant computes. Where none can, return
    that of basic composition, or infinity if basic composition needs a larger delta."""
    try:
        return epsilon_of(event, delta=delta)
    except Exception:
        basic_epsilon, basic_delta = basic(event)
        return float(basic_epsilon) if basic_delta <= delta else math.inf


@dataclass(frozen=True, slots=True)
class TeachingPreview(BudgetPreview):
    """Previews what a labeller would cost, and how clear a plurality it needs. Free: no data is read.

    `lead`: if one class has at least this many votes more than every other, the answer is that class in 95 of
    100 questions; for aggregators that answer exactly or refuse, it is answered in 95 of 100 questions.
    """

    mechanism: PrivateTeachers
    epsilon: float
    lead: int
    budget: FilterPreview

    @property
    def _price(self) -> float:
        return self.epsilon

    def __str__(self) -> str:
        mechanism = self.mechanism
        return (
            f"{mechanism.teachers} teachers, {mechanism.aggregator.queries:,} questions for epsilon "
            f"{self.epsilon:.4g} at delta {mechanism.delta:g} (data-independent); a lead of {self.lead} "
            f"votes is answered rightly in 95 of 100\nused so far: {self.budget.before:.4g} of "
            f"{self.budget.limit:.4g}; what is left buys {self.buys}."
        )


def preview(session: SessionBase, learner: Any, options: Mapping[str, Any]) -> TeachingPreview:
    """Return the preview of a labeller, with the options of `Session.teach`; no data is read."""

    options = {"workers": 1, **options}
    unknown = sorted(options.keys() - (defaults(TeachTerms).keys() - {"number"}))
    if unknown:
        raise InvalidInput(f"preview_teach has no option {unknown[0]!r}: it takes those of teach.")
    _require.that("teachers" in options, "say how many teachers there are, teachers=250.")
    mechanism, _ = build_mechanism(session, learner, TeachTerms(**options))
    cost = session.curator.preview(
        mechanism.event, analyst=session.analyst, requested_price=requested_price_of(mechanism)
    )
    epsilon = tightest_epsilon(mechanism.event, mechanism.delta)
    return TeachingPreview(mechanism, epsilon, mechanism.error(), cost)
