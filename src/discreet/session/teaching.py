"""`people.teach`: a labeller over teachers on this session's data (PATE), its preview and its report."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import _require
from .._errors import InvalidInput
from .._public import Boolean, Categories
from ..accounting import Event, basic
from ..accounting import epsilon as epsilon_of
from ..accounting.caps import requested_price_of
from ..accounting.filters import FilterPreview
from ..curator import InteractiveHandle
from ..mechanisms import stable_votes, vote_cost, votes
from ..mechanisms.protocols import ExampleSource
from .previews import BudgetPreview

if TYPE_CHECKING:
    from ..learning.pate import PrivateTeachers
    from .base import SessionBase

AGGREGATORS = ("gnmax", "lnmax", "confident", "interactive", "stable", "sampled", "sparse")
# Options of `teach` that are for some aggregators only.
_OPTIONS = {
    "answers": ("confident", "interactive"),
    "threshold": ("confident", "interactive"),
    "failures": ("sparse",),
    "overlap": ("sampled",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class LabellerReport:
    """Reports what a labeller did and cost. Every figure is public: a function of settings and released
    answers.

    `epsilon` at `delta` is what was charged, data-independent, and `per_answer` its share of each answer.
    `agreement` is the mean share of teachers behind an answer, from noisy counts (None where the aggregator
    releases none). `sanitized` is the data-dependent epsilon, published with noise of its own, where it was
    asked for.
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
    """Labels public inputs by the votes of teachers: `label` costs nothing more, as all was paid at the
    start, and is refused beyond the quota."""

    def __init__(self, live: InteractiveHandle, values: tuple[Any, ...] | None) -> None:
        self.live = live
        self.values = values

    @property
    def mechanism(self) -> PrivateTeachers:
        mechanism: Any = self.live.mechanism
        return cast("PrivateTeachers", mechanism)

    @property
    def number(self) -> int:
        """The number of the charge in the ledger, which finds this labeller again."""
        return self.live.number

    @property
    def event(self) -> Event:
        return self.mechanism.event

    def label(self, x: Any, *, predictions: Any = None) -> list[Any]:
        """Return the teachers' answers for public inputs: a class, or None where the question was refused.

        x is a batch: an array or tensor of inputs as the teachers', or for a table a data frame or mapping of
        the feature columns. `predictions` are the student's probabilities, for an interactive aggregator.
        """
        from ..learning.pate import PublicInputs

        inputs = np.asarray(self._inputs(x))
        value = self.live.answer(PublicInputs(inputs, predictions)).value
        return [None if n is None else self._value(n) for n in value.labels]

    def publish_cost(self) -> Any:
        """Publish the data-dependent cost of all answers, sanitized: once, and it ends the labeller.

        Was paid for at the start, with `sanitize`.
        """
        from ..learning.pate import CostQuestion

        return self.live.answer(CostQuestion()).value

    def report(self) -> LabellerReport:
        """Report what was asked and answered since the start, also before a restart and by others, at what
        price, and how far teachers agree: from the ledger, which has every answer."""
        from ..learning.pate import Labels

        mechanism, aggregator = self.mechanism, self.mechanism.aggregator
        values, failed = self.live.released()
        answers = [value for value in values if isinstance(value, Labels)]
        labels = [n for v in answers for n in v.labels[: v.asked]]
        counts = [c for v in answers for c in v.counts if c is not None]
        answered = sum(n is not None for n in labels)
        sanitized = [value for value in values if isinstance(value, vote_cost.SanitizedFigure)]
        price = tightest_epsilon(mechanism.event, mechanism.delta)
        limit = getattr(aggregator, "answers", aggregator.queries)
        agreement, error = self._agreement(counts)
        return LabellerReport(
            teachers=mechanism.teachers,
            asked=len(labels) + failed,
            answered=answered,
            refused=len(labels) - answered,
            left=0 if sanitized else _remaining_questions(aggregator, len(labels) + failed, answered),
            epsilon=price,
            delta=mechanism.delta,
            per_answer=price / max(answered, 1) if answered else price / limit,
            agreement=agreement,
            agreement_error=error,
            sanitized=sanitized[-1] if sanitized else None,
        )

    def _agreement(self, counts: Sequence[int]) -> tuple[float | None, float | None]:
        aggregator: Any = self.mechanism.aggregator
        if not counts:
            return None, None
        variance = getattr(aggregator, "variance", None)
        noise_variance = float(variance) if variance is not None else 2 * float(aggregator.scale) ** 2
        share = float(np.mean(counts)) / self.mechanism.teachers
        error = 1.96 * (noise_variance / len(counts)) ** 0.5 / self.mechanism.teachers
        return min(max(share, 0.0), 1.0), error

    def _inputs(self, x: Any) -> Any:
        columns = self.mechanism.columns
        if columns is None or isinstance(x, np.ndarray):
            return x
        return columns.inputs(x, self.mechanism.public)

    def _value(self, number: int) -> Any:
        return number if self.values is None else self.values[number]

    def __repr__(self) -> str:
        return f"<Labeller of {self.mechanism.teachers} teachers, charge {self.number}>"


def _remaining_questions(aggregator: Any, questions: int, answered: int) -> int:
    """Return how many questions may still be asked; 0 where it has halted."""
    limit = getattr(aggregator, "answers", None)
    failures = getattr(aggregator, "failures", None)
    halted = (limit is not None and answered >= limit) or (
        failures is not None and questions - answered >= failures
    )
    return 0 if halted else max(int(aggregator.queries) - questions, 0)


def tightest_epsilon(event: Event, delta: float) -> float:
    """Return the tightest epsilon of an event at delta; that of basic composition where there is none."""
    try:
        return epsilon_of(event, delta=delta)
    except Exception:
        return float(basic(event)[0])


def teach(
    session: SessionBase, learner: Any, options: Mapping[str, Any], *, number: int | None = None
) -> Labeller:
    """Build the mechanism, charge it and train the teachers; or find one again by its `number`."""
    mechanism, values = build_mechanism(session, learner, **options)
    curator = session.curator
    if number is not None:
        return Labeller(curator.resume(mechanism, number, analyst=session.analyst), values)
    return Labeller(curator.start(mechanism, analyst=session.analyst), values)


@dataclass(frozen=True, slots=True)
class TeachingPreview(BudgetPreview):
    """Previews what a labeller would cost, and how clear a plurality it needs. Free: no data is touched.

    `lead`: where one class has so many votes more than any other, the answer is that class (or it is answered
    at all, where answers are exact) in 95 of 100 questions. `fits`: how many more of these the budget buys.
    """

    mechanism: PrivateTeachers
    epsilon: float
    lead: int
    budget: FilterPreview

    def __str__(self) -> str:
        mechanism, buys = self.mechanism, "any number" if self.fits is None else f"{self.fits:,}"
        return (
            f"{mechanism.teachers} teachers, {mechanism.aggregator.queries:,} questions for epsilon "
            f"{self.epsilon:.4g} at delta {mechanism.delta:g} (data-independent); a lead of {self.lead} "
            f"votes is answered rightly in 95 of 100\nused so far: {self.budget.before:.4g} of "
            f"{self.budget.limit:.4g}; the budget buys {buys} of these."
        )


def preview(session: SessionBase, learner: Any, options: Mapping[str, Any]) -> TeachingPreview:
    """Price a labeller, and return the lead in votes that its noise asks for."""
    from .models import Models

    parameters = inspect.signature(Models.teach).parameters
    defaults = {
        name: p.default for name, p in parameters.items() if name not in ("self", "learner", "number")
    }
    unknown = sorted(set(options) - set(defaults))
    if unknown:
        raise InvalidInput(
            f"preview_teach has no option {unknown[0]!r}: it takes those of teach. Nothing was charged."
        )
    if "teachers" not in options:
        raise InvalidInput("say how many teachers there are, teachers=250. Nothing was charged.")
    mechanism, _ = build_mechanism(session, learner, **(defaults | {"workers": 1} | dict(options)))
    cost = session.curator.preview(
        mechanism.event, analyst=session.analyst, requested_price=requested_price_of(mechanism)
    )
    epsilon = tightest_epsilon(mechanism.event, mechanism.delta)
    return TeachingPreview(mechanism, epsilon, mechanism.error(), cost)


def build_mechanism(
    session: SessionBase, learner: Any, *, teachers: int, workers: Any, progress: Any, **options: Any
) -> tuple[PrivateTeachers, tuple[Any, ...] | None]:
    """Return the priced labeller, and the classes that its numbers stand for; `options` are those of
    `Session.teach`, all of them."""
    from ..learning.pate import PrivateTeachers
    from ..learning.pate.teachers import can_train_apart

    public, source = session.public, session.curator.source
    _check_terms(options["aggregator"], options)
    columns, classes, values = _columns(
        public, source, options["target"], options["features"], options["classes"]
    )
    _require.integer(teachers=teachers, queries=options["queries"], at_least=1)
    _require.integer(classes=classes, at_least=2)
    epsilon = options["epsilon"]
    delta = _delta(session, epsilon, options["delta"])
    aggregator, cost = _aggregator(teachers, classes, delta, options)
    shape = (columns.width(public),) if columns is not None else tuple(source.shapes()[0].shape[1:])
    size = options["size"]
    if size is None:
        size = _teacher_size(public, learner, teachers, shape, classes)
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
        size=size,
        sanitize=cost,
        delta=delta,
        asked=None if epsilon is None else (epsilon, delta),
        workers=workers,
        progress=progress,
    )
    return mechanism, values


def _aggregator(
    teachers: int, classes: int, delta: float, options: Mapping[str, Any]
) -> tuple[Any, vote_cost.SanitizedCost | None]:
    """Return the aggregator with its noise, and the release of the data-dependent cost where that is paid."""
    aggregator, epsilon, sanitize = options["aggregator"], options["epsilon"], options["sanitize"]
    if isinstance(aggregator, str):
        vote_epsilon = None if epsilon is None else float(epsilon) - float(sanitize or 0)
        own = {name: options[name] for name in _OPTIONS}
        aggregator = build_aggregator(aggregator, vote_epsilon, delta, options["queries"], teachers, **own)
    if sanitize is None:
        return aggregator, None
    vote_cost.check_known(aggregator)
    order = options["order"]
    if order is None:
        order = vote_cost.best_order(aggregator, teachers, classes, delta)
    return aggregator, vote_cost.SanitizedCost(epsilon=sanitize, order=order)


def _teacher_size(public: Any, learner: Any, teachers: int, shape: tuple[int, ...], classes: int) -> int:
    """Return the bytes that one teacher has in the vault by default, from a fit to made-up examples.

    Models grow with the rows they see, and what does not fit becomes a default vote: made-up labels are the
    hardest, and twice a teacher's share (512 rows where no size is declared) leaves room.
    """
    from ..learning.pate.labeller import fit_made_up

    rows = 512 if public.size is None else min(2 * public.size // teachers + 1, 4096)
    return len(fit_made_up(learner, shape, classes, rows)) * 5 // 4 + (1 << 14)


def _check_terms(aggregator: Any, options: Mapping[str, Any]) -> None:
    """Refuse terms that mean nothing, or that this aggregator would ignore."""
    for name in ("epsilon", "delta", "sanitize", "order"):
        if options[name] is not None:
            check = _require.open_probability if name == "delta" else _require.positive
            check(**{name: options[name]})
    for name in _OPTIONS:
        value = options[name]
        if value is None:
            continue
        _require.integer(**{name: value}, at_least=1)
        if not isinstance(aggregator, str) or aggregator not in _OPTIONS[name]:
            raise InvalidInput(
                f"{name}={value!r} is for the aggregators {', '.join(_OPTIONS[name])}, and "
                f"{aggregator if isinstance(aggregator, str) else type(aggregator).__name__} would not heed "
                f"it. Nothing was charged or read. Leave it out, or set it in the aggregator itself."
            )
    if options["order"] is not None and options["sanitize"] is None:
        raise InvalidInput("order= is for sanitize=. Nothing was charged or read. Give both, or neither.")


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
    """Return the aggregator of this name with the noise that epsilon and delta allow."""
    _require.one_of(AGGREGATORS, aggregator=name)
    if epsilon is None or not epsilon > 0:
        raise InvalidInput(
            "give epsilon, above that of `sanitize`, or an aggregator with its noise, such as "
            "GNMax(variance=1600, queries=286). Nothing was charged."
        )
    if name == "gnmax":
        return votes.GNMax.for_privacy(epsilon, delta, queries)
    if name == "lnmax":
        return votes.LNMax.for_privacy(epsilon, delta, queries)
    if name == "stable":
        return stable_votes.StableVotes.for_privacy(epsilon, delta, queries)
    if name == "sampled":
        # By default a tenth of the teachers share a unit.
        unit_teachers = max(teachers // 10, 1) if overlap is None else overlap
        if unit_teachers > teachers:
            raise _require.fail("overlap", unit_teachers, f"at most the {teachers} teachers")
        return stable_votes.SampledVotes.for_privacy(epsilon, delta, queries, overlap=unit_teachers)
    if name == "sparse":
        refusals = 5 if failures is None else failures
        return stable_votes.SparseVotes.for_privacy(epsilon, delta, queries, failures=refusals)
    # By default 4 of 5 teachers must agree, as in the paper; or differ from the student by 3 of 10.
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
    """Return the columns that teachers read, the number of classes, and their values; None for examples."""
    if isinstance(source, ExampleSource):
        if classes is None:
            raise InvalidInput(
                "say how many classes there are, classes=10: it is public, and never read off the data. "
                "Nothing was charged or read."
            )
        if target is not None or features is not None:
            raise InvalidInput(
                "target= and features= name columns of a table, and these are examples, which have inputs "
                "and targets already. Nothing was charged or read. Leave them out."
            )
        return None, classes, None
    from ..learning import Tabular

    if target is None:
        raise InvalidInput("say which column is the target, target='label'. Nothing was charged or read.")
    fact = public.fact(target)
    if not isinstance(fact, Categories | Boolean):
        raise InvalidInput(
            f"column {target!r} is no class: declare Categories or Boolean for it. Nothing was "
            f"charged or read."
        )
    names = features
    if names is None:
        unit = public.unit.column
        names = [
            name
            for name, kind in _schema(public)
            if name not in (target, unit) and type(kind).__name__ in ("Bounds", "Categories", "Boolean")
        ]
    values = (False, True) if isinstance(fact, Boolean) else tuple(fact.values)
    if classes is not None and classes != len(values):
        raise _require.fail("classes", classes, f"{len(values)}, as the target declares")
    return Tabular(features=tuple(names), target=target), len(values), values


def _schema(public: Any) -> list[tuple[str, Any]]:
    schema = public.schema
    return list(schema.items() if isinstance(schema, Mapping) else schema)


def _delta(session: SessionBase, epsilon: float | None, delta: float | None) -> float:
    if delta is not None:
        return delta
    return session._delta(1 if epsilon is None else epsilon, session.curator.policy) or 1e-6
