"""Handles and previews of a session: the preview of a question, a watch on counts, a fed mechanism."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from .._require import NearestNames
from ..accounting.filters import FilterPreview
from ..curator import InteractiveHandle
from ..mechanisms import ThresholdAnswer
from ..mechanisms.protocols import Release
from ..query import Preview, where

if TYPE_CHECKING:
    from ..query import WorkloadPreview


class BudgetPreview:
    """What a charge would leave of the budget."""

    __slots__ = ()
    budget: FilterPreview

    @property
    def fits(self) -> int | None:
        """How many more of these the budget buys; None for any number."""
        return self.budget.fits

    @property
    def admitted(self) -> bool:
        """Whether the budget buys one."""
        return self.budget.admitted


@dataclass(frozen=True, slots=True)
class QueryPreview(BudgetPreview, NearestNames):
    """Previews what a question would cost and how good its answer would be.

    `fits`: how many more of these the budget buys.
    """

    query: Preview | WorkloadPreview
    budget: FilterPreview

    def __str__(self) -> str:
        number = "any number of these" if self.fits is None else f"{self.fits:,} of these"
        used = f"used so far: {self.budget.before:.4g} of {self.budget.limit:.4g}"
        state = f"{used}; what is left buys {number}."
        return f"{self.query}\n{state}"

    def _repr_html_(self) -> str:
        from ..query.pages import preview_html

        if not isinstance(self.query, Preview):
            return f"<pre>{html.escape(str(self))}</pre>"
        return preview_html(self.query, self.budget.before, self.budget.after, self.budget.limit, self.fits)


@dataclass(frozen=True, slots=True)
class Watch(NearestNames):
    """Asks any number of questions of the form "are there at least so many?"; only those answered with yes
    are paid for, and beforehand.

    `number` finds it again after a restart: `session.watch(..., number=...)` with the same terms.
    """

    live: InteractiveHandle

    @property
    def number(self) -> int:
        return self.live.number

    def ask(self, question: Any) -> ThresholdAnswer:
        """Ask a condition as after WHERE ("age > 60 AND smoker"), one SELECT of a COUNT or a SUM, or a
        statistic from Python."""
        statistic = where(question, self.live.mechanism.public) if isinstance(question, str) else question
        answer: ThresholdAnswer = self.live.answer(statistic).value
        return answer


class Fed(NamedTuple):
    """Holds a live mechanism that goes on with another table: the `handle` to ask it over that one, and what
    it released when it was fed, if anything."""

    handle: Any
    release: Release | None
