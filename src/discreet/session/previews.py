"""Defines handles and previews of a session: the preview of a question, a watch on counts, a fed
mechanism."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .._errors import InvalidInput
from .._require import NearestNames
from ..accounting.filters import FilterPreview
from ..curator import InteractiveHandle
from ..mechanisms.protocols import Release
from ..mechanisms.threshold import ThresholdAnswer
from ..query.preview import Preview
from ..query.statistic import where

if TYPE_CHECKING:
    from ..query.workload import WorkloadPreview


# The words for a question whose answer the caller has been given before.
ANSWERED = "already answered: free (fresh=True pays for new noise); "


class BudgetPreview:
    """Says whether and how often a previewed charge fits the budget; `budget` is set by the subclass."""

    __slots__ = ()
    budget: FilterPreview

    @property
    def fits(self) -> int | None:
        """How many such charges the remaining budget pays for; None if their number is not limited."""
        return self.budget.fits

    @property
    def buys(self) -> str:
        """How many such charges the remaining budget pays for, in words; with the reason, where it is more
        than their prices seem to allow."""
        if self.fits is None:
            return "any number of these"
        budget, price = self.budget, self._price
        left = max(0.0, budget.limit - budget.before)
        if budget.unit != "epsilon" or not price or self.fits <= left / price + 1:
            return f"{self.fits:,} of these"
        return (
            f"{self.fits:,} of these, more than {left:.4g} / {price:.4g}: with the budget's delta, many "
            f"small prices add up to less than their sum (docs/filters.md)"
        )

    @property
    def _price(self) -> float | None:
        """The epsilon of one such charge, if it has one."""
        return None

    @property
    def admitted(self) -> bool:
        """Whether the remaining budget pays for one such charge."""
        return self.budget.admitted


@dataclass(frozen=True, slots=True)
class QueryPreview(BudgetPreview, NearestNames):
    """Previews what a question would cost and how good its answer would be.

    `query`: its price, error and plan. `budget`: the spending before and after it, and the limit. `answered`:
    when the caller was given the stored answer to the same question; None if it would be paid for.
    """

    query: Preview | WorkloadPreview
    budget: FilterPreview
    answered: str | None = None

    @property
    def free(self) -> bool:
        """Whether the question costs nothing, because the caller was given its answer before."""
        return self.answered is not None

    @property
    def _price(self) -> float | None:
        epsilon = getattr(self.query, "epsilon", None)
        return None if epsilon is None else float(epsilon)

    @property
    def _state(self) -> str:
        used = f"used so far: {self.budget.before:.4g} of {self.budget.limit:.4g}"
        return f"{ANSWERED if self.free else ''}{used}; what is left buys {self.buys}."

    def __str__(self) -> str:
        return f"{self.query}\n{self._state}"

    def _repr_html_(self) -> str:
        from ..query.pages import preview_html

        if not isinstance(self.query, Preview):
            return f"<pre>{html.escape(str(self))}</pre>"
        return preview_html(self.query, self.budget.before, self.budget.after, self.budget.limit, self._state)


@dataclass(frozen=True, slots=True)
class Watch(NearestNames):
    """Asks any number of questions of the form "is this count above the threshold?" (a sparse vector).

    The price, paid at the start, depends on the number of answers "above" only; the watch halts after them.
    `number`, that of its charge, continues it after a restart: `session.watch(..., number=...)` with the same
    options.
    """

    live: InteractiveHandle

    @property
    def number(self) -> int:
        return self.live.number

    def ask(self, question: Any) -> ThresholdAnswer:
        """Compare one statistic with the threshold. `question` is a condition as after WHERE ("age > 60 AND
        smoker"), whose rows are counted; one SELECT of a COUNT or a SUM; or a statistic object."""
        statistic = where(question, self.live.mechanism.public) if isinstance(question, str) else question
        answer: ThresholdAnswer = self.live.answer(statistic).value
        return answer


class Fed(NamedTuple):
    """Holds the result of `Session.feed`: the `handle` that asks the mechanism about the new table, and the
    `release` that feeding it caused, or None."""

    handle: Any
    release: Release | None


def require_sql(text: Any) -> None:
    """Refuse an estimator, a trainer or a mechanism in the place of SQL, and say what shows its price."""
    if hasattr(text, "mechanism") or hasattr(text, "event"):
        name = text.__name__ if isinstance(text, type) else type(text).__name__
        raise InvalidInput(
            f"preview takes SQL, got {name}. Nothing was charged. An estimator is planned by "
            f'people.plan([({name}(), "the target")], epsilon=1), and people.curator.preview('
            f"mechanism.event) shows what a mechanism or a trainer would cost."
        )
