"""Defines the labeller that `Session.teach` returns (PATE: teachers on private data label public inputs), its
preview and its report."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from .. import _require
from .._errors import InvalidInput
from ..accounting import Event, basic
from ..accounting import epsilon as epsilon_of
from ..accounting.caps import requested_price_of
from ..accounting.filters import FilterPreview
from ..curator import InteractiveHandle
from ..mechanisms import vote_cost
from .previews import BudgetPreview
from .teachers import build_mechanism

if TYPE_CHECKING:
    from ..learning.pate import PrivateTeachers
    from .base import SessionBase


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
        sanitized = [value for value in values if isinstance(value, vote_cost.SanitizedFigure)]
        price = tightest_epsilon(mechanism.event, mechanism.delta)
        # the largest number of answers that the price pays for
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
            per_answer=price / (answered or limit),
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
        variance = getattr(aggregator, "variance", None)
        noise_variance = float(variance) if variance is not None else 2 * float(aggregator.scale) ** 2
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
    limit = getattr(aggregator, "answers", None)
    failures = getattr(aggregator, "failures", None)
    halted = (limit is not None and answered >= limit) or (
        failures is not None and questions - answered >= failures
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


def teach(
    session: SessionBase, learner: Any, options: Mapping[str, Any], *, number: int | None = None
) -> Labeller:
    """Build the mechanism, charge it and train the teachers; or, with the `number` of an earlier charge,
    continue that labeller."""
    mechanism, values = build_mechanism(session, learner, **options)
    curator = session.curator
    if number is not None:
        return Labeller(curator.resume(mechanism, number, analyst=session.analyst), values)
    return Labeller(curator.start(mechanism, analyst=session.analyst), values)


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
