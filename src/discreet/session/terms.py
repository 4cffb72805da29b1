"""Defines the options of a question in SQL, and the part of a budget's delta that it gets by default."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import BudgetExceeded, InvalidInput
from .._public import Public
from .._require import Real
from ..accounting.caps import share
from ..accounting.filters import Filter
from ..curator import Budget
from ..query import Query, ask
from ..query.groupings import several_counts

if TYPE_CHECKING:
    from ..query import WorkloadQuery

# Under a budget in rho, a query without a delta of its own gets the budget's delta divided by this number, so
# that a hundred such queries fit. Chosen by hand, not tuned: a larger number means slightly more noise per
# query.
_QUERIES_PER_DELTA = 100


@dataclass(frozen=True, slots=True)
class Terms:
    """Holds the options of a question in SQL; `Session.sql` documents them."""

    epsilon: Real | None = None
    rho: Real | None = None
    within: float | None = None
    confidence: float = 0.95
    delta: float | None = None
    noise: str = "auto"
    rows: int | None = None
    groups: int | None = None
    weights: Mapping[str, Real] | Sequence[tuple[str, Real]] = ()
    other: bool = False

    def query(self, text: str, public: Public, delta: Callable[[Any], float]) -> Query | WorkloadQuery:
        """Return the priced query of a SQL text. `delta` maps an epsilon to the default delta of a question
        at that epsilon (`SessionBase._delta`); it is used unless these options have a delta."""
        if self.epsilon is None and self.rho is None and self.within is None:
            raise InvalidInput(
                "say what the answer may cost (epsilon=0.1) or how good it must be (within=50). "
                "Nothing was charged."
            )
        query_delta: float | Callable[[Any], float] = 0.0 if self.rho is not None else delta
        if self.delta is not None:
            query_delta = self.delta
        if several_counts(text) and self.within is None:
            workload = self._as_workload(
                text, public, query_delta(self.epsilon) if callable(query_delta) else query_delta
            )
            if workload is not None:
                return workload
        if isinstance(self.weights, Mapping):
            weights = tuple(self.weights.items())
        else:
            weights = _require.listed(weights=self.weights)
        return ask(
            text,
            public,
            epsilon=self.epsilon,
            rho=self.rho,
            within=self.within,
            confidence=self.confidence,
            delta=query_delta,
            noise=self.noise,
            rows=self.rows,
            groups=self.groups,
            weights=weights,
            other=self.other,
        )

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Rewrite the advice of a `BudgetExceeded` raised inside, where the question is asked by accuracy
        (`within`): such a question has no epsilon to lower, only an error to raise."""
        try:
            yield
        except BudgetExceeded as error:
            if self.within is None:
                raise
            raise BudgetExceeded(
                str(error).replace(
                    "Ask with less epsilon", f"Ask for a larger error than {float(self.within):g}"
                )
            ) from None

    def _as_workload(self, text: str, public: Public, delta: float) -> WorkloadQuery | None:
        """Return a statement with several counts as a workload if that is better than separate counts, or the
        only way to answer it; else None. See `query.workload.together`, which decides."""
        from ..query.workload import together

        # Options that a workload does not have, with their defaults; `together` decides what each means.
        unsupported = {
            "noise": (self.noise, "auto"),
            "groups": (self.groups, None),
            "other": (self.other, False),
        }
        options: dict[str, Any] = {
            name: value for name, (value, default) in unsupported.items() if value != default
        }
        options |= {"weights": self.weights} if self.weights else {}
        options |= {"rows": self.rows} if self.rows is not None else {}
        return together(text, public, epsilon=self.epsilon, rho=self.rho, delta=delta, **options)


def share_of(budget: Budget, epsilon: Any) -> float:
    """Return the part of a budget's delta that a query with this epsilon gets by default: for a budget in
    epsilon, in proportion to epsilon (`accounting.caps.share`); for a budget in rho, a hundredth."""
    if budget.epsilon is None:
        return budget.delta / _QUERIES_PER_DELTA
    rule = budget.filter()
    assert isinstance(rule, Filter)
    return share(_require.exact(epsilon, "epsilon"), of=rule)
