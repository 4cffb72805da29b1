"""Prices and answers one question about a table: a form with the noise of each of its numbers.

The event follows from the form's limits and the scales of the noise, and what runs is what was priced.
Builders of questions (`query`) choose scales, and compute answers from the noisy numbers alone: a mistake of
theirs gives a wrong answer or a refusal, and reveals nothing.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Annotated, Any, final

import numpy as np

from .. import _round
from .._public import ADD_REMOVE, PUBLIC, Neighbors, Public
from .._registry import described
from ..accounting.events import ApproximateDP, Event, NoOp, compose
from ..mechanisms.noise import IntegerGaussian, IntegerLaplace
from ..mechanisms.protocols import Mechanism, Release, Sensitivity, check_source, release
from ..mechanisms.selectors import ExponentialMechanism, TopK
from ..sampling import Entropy
from ..tables import Source
from ..tables.engines.duckdb import engine_of
from .choosing import Selector, pick, select, shown, units_always_shown
from .errors import QueryError
from .exact import Exact, measure, plan_statements
from .flat import packed, unpacked
from .form import NONE, Form
from .measures import Choice

# The tags of the mechanisms that are kept by construction: all that they read is read by a question.
CONSTRUCTED = frozenset({"core.FormQuestion", "query.Query"})
# The key of the row that holds the groups that are not shown (`Form.gathered`). A shown group may have the
# same key.
OTHER = "other"


@described("query.PublicSize")
class PublicSize:
    """Stands in the place of noise for a count that is public.

    Guarantee: no privacy loss: the event is `NoOp`.
    Proof:     what is released is `value`, whatever the data.
    """

    value: int
    neighbors: Neighbors

    @property
    def event(self) -> Event:
        return NoOp(neighbors=self.neighbors)

    @property
    def standard_deviation(self) -> float:
        return 0.0

    @property
    def mean_squared_error(self) -> float:
        return 0.0

    def error(self, confidence: float = 0.95) -> int:
        """Return 0, with any confidence."""
        return 0

    def __call__(self, values: Any, /, *, entropy: Entropy) -> Any:
        """Return the public number in the place of the engine's."""
        return np.full(np.shape(values), self.value, dtype=np.int64)


Noise = IntegerLaplace | IntegerGaussian | PublicSize


@dataclass(slots=True)
class NoisyNumbers:
    """Holds what a question releases. `keys`: one tuple of key values per group; `measures`: for each measure
    its noisy integers, one per group; `choices`: for each choice its value in each group. `private`: False if
    the noise came from a seed."""

    keys: list[tuple[Any, ...]]
    measures: list[Any]
    choices: list[Any]
    private: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Asks for the numbers of a form at a price.

    `noises`: of each measure; `selectors`: of each choice, for one group; `selection`: where the groups are
    private, the epsilon and delta of the decision whether to show one of them.

    Guarantee: what `answered` returns satisfies `event`, for the neighbors of the form's public facts.
    Proof:     `Form` bounds how far neighbors are apart, and noise or a selector that is made for less is
               refused here; their theorems are in `mechanisms.noise`, `mechanisms.selectors` and
               `choosing.show_probabilities`. Selectors and the selection run in all groups and are charged
               `changed_groups` times: in all other groups neighbors agree. Adaptive composition adds the
               parts up: each looks only at the data and at the released results of earlier ones.
    Assumes:   the engine computes the statements as `tables.semantics` says, and what is declared is true.
    """

    form: Form
    noises: tuple[Noise, ...] = ()
    selectors: tuple[Selector, ...] = ()
    selection: tuple[Fraction, Fraction] | None = None
    event: Event = field(init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        form, neighbors = self.form, self.form.public.neighbors
        if self.selection is not None and not all(type(part) is Fraction for part in self.selection):
            raise QueryError("epsilon and delta of the selection of groups are fractions.")
        parts = (*self.noises, *self.selectors)
        is_complete = len(self.noises) == len(form.measures) and len(self.selectors) == len(form.choices)
        if not is_complete or (self.selection is None) is not form.known_keys:
            raise QueryError("a question has one noise for each measure, and one selector for each choice.")
        covered = (
            *map(self._covers, self.noises, form.sensitivities),
            *map(self._suits, self.selectors, form.choices),
        )
        if not all(covered) or any(part.neighbors != neighbors for part in parts):
            raise QueryError("this noise was made for less than one unit can change.")
        events = [noise.event for noise in self.noises]
        events += [selector.event.repeated(form.changed_groups) for selector in self.selectors]
        if self.selection is not None:
            # probabilities that are too small to be tabulated are refused here, before the charge
            units_always_shown(*self.selection)
            epsilon, delta = self.selection
            shown = ApproximateDP(epsilon=epsilon, delta=_round.up(delta), neighbors=neighbors)
            events.append(shown.repeated(form.changed_groups))
        object.__setattr__(self, "event", compose(events))

    def _covers(self, noise: Noise, sensitivity: Sensitivity) -> bool:
        """Return whether the event of a noise is a right price for a measure of this sensitivity."""
        if sensitivity == NONE:
            return isinstance(noise, PublicSize) and noise.value == self.form.public_rows
        return isinstance(noise, IntegerLaplace | IntegerGaussian) and noise.covers(sensitivity)

    def _suits(self, selector: Selector, choice: Choice) -> bool:
        """Return whether the event of a selector is a right price for a choice in one group."""
        is_one_way = choice.kind != "quantile" and self.form.public.neighbors is ADD_REMOVE
        if isinstance(selector, TopK):
            picks = choice.picks if choice.kind == "top" else 0
            is_right = selector.k == picks
        else:
            is_right = isinstance(selector, ExponentialMechanism) and choice.kind != "top"
        return (
            is_right
            and selector.sensitivity >= self.form.score_sensitivity(choice)
            and (is_one_way or not selector.monotone)
        )

    def answered(
        self, exact: Exact, entropy: Entropy, check: Callable[[], None] = lambda: None
    ) -> NoisyNumbers:
        """Show groups, add noise and make the choices; `check` raises when the deadline has passed. Draws
        come in this order."""
        if self.selection is not None:
            epsilon, delta = self.selection
            is_shown = select(exact.units, epsilon=epsilon, delta=delta, entropy=entropy)
            exact = shown_groups(exact, is_shown, self.form.gathered)
        pairs = zip(self.noises, exact.measures, strict=True)
        measures = [noise(values, entropy=entropy) for noise, values in pairs]
        trios = zip(self.form.choices, self.selectors, exact.scores, strict=True)
        choices = [pick(choice, selector, counts, entropy, check) for choice, selector, counts in trios]
        check()
        return NoisyNumbers(exact.keys, measures, choices, entropy.private)


class QuestionMechanism(Mechanism):
    """Base of the mechanisms that read a table by one `question` and in no other way: subclasses build it,
    and `finish` what it released without seeing data."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def question(self) -> Question: ...

    @property
    @final
    def event(self) -> Event:
        """The price of a run, computed from the question."""
        return self.question.event

    def rehearse(self, source: Source) -> None:
        """Write the engine's queries, and let the engine plan them, so that a question that cannot be written
        or planned is refused before it is charged. The run uses the same texts."""
        plan_statements(self.question.form, engine_of(source))

    @abstractmethod
    def finish(self, released: NoisyNumbers) -> tuple[Any, Callable[..., Any] | None]:
        """Return the value to release, and its error."""

    @final
    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        """Run the question on the data: the curator calls this after the charge. Drawn first, before any
        noise, is the key of the hash that chooses which rows and groups of a unit count (`compile`)."""
        check_source(self.question.form.public, source)
        check = engine_of(source).stopwatch()
        exact = measure(self.question.form, engine_of(source), entropy.integer(63))
        value, error = self.finish(self.question.answered(exact, entropy, check))
        return release(value, event=self.event, entropy=entropy, error=error)


@described("core.FormQuestion")
class FormQuestion(QuestionMechanism):
    """Asks a question as a planner has built it, without the SQL.

    Its `form` is rows of plain values (`flat`), so that all of it is JSON and may come from anywhere. The
    noisy numbers are released: a dict of `keys`, one tuple per group, and of `measures` and `choices`, one
    tuple of values per measure and choice. A measure is in steps of its grid (`Measure.resolution`).

    Guarantee: that of `Question`, whatever the description says.
    Proof:     the form and the question are made anew from the description, with all their checks, and
               `question.event` is computed from them.
    """

    public: Annotated[Public, PUBLIC]
    form: tuple[tuple[Any, ...], ...]
    noises: tuple[Noise, ...] = ()
    selectors: tuple[Selector, ...] = ()
    selection: tuple[Fraction, Fraction] | None = None
    question: Question = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        question = Question(
            form=unpacked(self.form, self.public),
            noises=self.noises,
            selectors=self.selectors,
            selection=self.selection,
        )
        object.__setattr__(self, "question", question)

    @classmethod
    def of(cls, question: Question) -> FormQuestion:
        """Return the mechanism that asks one question."""
        return cls(
            public=question.form.public,
            form=packed(question.form),
            noises=question.noises,
            selectors=question.selectors,
            selection=question.selection,
        )

    @property
    def error(self) -> Callable[..., Any] | None:
        return self._error if self.noises else None

    def _error(self, confidence: float = 0.95) -> tuple[int, ...]:
        """Return for each measure how far, with probability `confidence`, its noise is from zero at most."""
        return tuple(noise.error(confidence) for noise in self.noises)

    def finish(self, released: NoisyNumbers) -> tuple[dict[str, Any], Callable[..., Any] | None]:
        def plain(arrays: list[Any]) -> tuple[tuple[Any, ...], ...]:
            return tuple(tuple(map(shown, array.tolist())) for array in arrays)

        keys = tuple(tuple(map(shown, k)) for k in released.keys)
        return {
            "keys": keys,
            "measures": plain(released.measures),
            "choices": plain(released.choices),
        }, self.error


def shown_groups(exact: Exact, is_shown: Any, gathered: bool = False) -> Exact:
    """Return the groups that are shown, sorted by their keys as texts; with `gathered`, the measures of all
    hidden groups are added up as one more group."""
    indices = sorted(np.flatnonzero(is_shown).tolist(), key=lambda i: tuple(map(str, exact.keys[i])))
    groups = np.array(indices, dtype=np.int64)
    shown = Exact(
        [exact.keys[i] for i in indices],
        [m[groups] for m in exact.measures],
        [s.take(groups) for s in exact.scores],
        None if exact.units is None else exact.units[groups],
    )
    if gathered:
        # Python's integers, which do not overflow
        hidden_totals = [
            m[~is_shown].sum() if m.dtype == object else int(sum(m[~is_shown].tolist()))
            for m in exact.measures
        ]
        shown.keys.append((OTHER,))
        shown.measures = [
            np.array([*m.tolist(), total], dtype=object)
            for m, total in zip(shown.measures, hidden_totals, strict=True)
        ]
    return shown
