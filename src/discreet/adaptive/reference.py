"""Keeps boards without a privacy guarantee, for comparison: the curator refuses them on protected data.

Defines leaderboards without a privacy guarantee, as published: for comparison, and for labels that need no
protection.

Their event is `NonPrivate`: the curator refuses them on protected data. `PlainBoard` shows every score
exactly. The `Ladder` (Blum & Hardt 2015, arXiv:1502.04585) shows only scores that beat the best by a step,
rounded to a multiple of the step. The `ParameterFreeLadder` takes its step from the standard error of the
difference to the best submission. Ladders withstand adaptive submissions, but there is no proof that they are
private.
"""

from __future__ import annotations

from abc import abstractmethod
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from .. import _require
from .._public import Public
from .._registry import described
from .._require import OPEN_PROBABILITY, Real
from ..accounting import Event, NonPrivate
from ..mechanisms import arrow_columns
from ..mechanisms.protocols import Answered, Interactive, check_source, release
from ..mechanisms.sparse_vector import FOREIGN_STATE
from ..sampling import Entropy
from ..tables import Source
from .leaderboard import Integers, Standing, check_columns, check_submission, losses
from .significance import RowFacts

State = dict[str, Any]
# Shown as the number of improvements that are left: these boards do not limit it.
_UNLIMITED = 10**9


class _Reference(Interactive):
    """Base of the three boards. No noise is drawn, and the state is not secret.

    The state holds "best", the smallest risk (share of wrong predictions) shown so far, None at first.
    """

    __slots__ = ()

    public: Public
    target: str
    id: str

    def __post_init__(self) -> None:
        check_columns(self.public, self.target, self.id)

    @property
    def event(self) -> Event:
        return NonPrivate(neighbors=self.public.neighbors)

    def start(self, source: Source, *, entropy: Entropy) -> State:
        check_source(self.public, source)
        return {"best": None}

    def answer(self, state: State, source: Source, question: Any, *, entropy: Entropy) -> Answered:
        _require.that(isinstance(state, dict) and "best" in state, FOREIGN_STATE)
        check_submission(question)
        check_source(self.public, source)
        ids, wrong = losses(source, question, self.target, self.id)
        after, risk, improved = self._judge(state, _by_id(ids, wrong))
        value = Standing(score=1 - risk, improved=improved, left=_UNLIMITED)
        return after, release(value, event=self.event, entropy=entropy)

    @abstractmethod
    def _judge(self, state: State, wrong: Integers) -> tuple[State, float, bool]:
        """Return the new state, the risk to show, and whether the submission improved the best. `wrong` has 1
        for each row that was predicted wrong, else 0."""


def _by_id(ids: list[Any], wrong: Integers) -> Integers:
    """Return losses in the order of the ids, so that those of two submissions can be compared row by row."""
    if not ids:
        return wrong
    keys = pa.chunked_array(ids).combine_chunks()
    order = pa.compute.sort_indices(keys).to_numpy()
    sorted_losses: Integers = wrong[order]
    return sorted_losses


@described("adaptive.PlainBoard")
class PlainBoard(_Reference):
    """Shows every score exactly, as most competitions do. The boosting attack of Blum & Hardt breaks it."""

    public: RowFacts
    target: str
    id: str

    def _judge(self, state: State, wrong: Integers) -> tuple[State, float, bool]:
        risk = float(wrong.mean())
        improved = state["best"] is None or risk < state["best"]
        return {"best": risk if improved else state["best"]}, risk, improved


@described("adaptive.Ladder")
class Ladder(_Reference):
    """Runs the ladder mechanism: a risk below best - step is shown, rounded to a multiple of the step;
    otherwise the best risk is shown again. The score is 1 - risk.

    Its error is proved at `generalization.ladder_error`. No privacy guarantee.
    """

    public: RowFacts
    target: str
    id: str
    step: Annotated[Real, OPEN_PROBABILITY] = Fraction(1, 100)

    def _judge(self, state: State, wrong: Integers) -> tuple[State, float, bool]:
        step, risk = _require.exact(self.step, "step"), Fraction(int(wrong.sum()), max(1, len(wrong)))
        if state["best"] is not None and not risk < Fraction(state["best"]) - step:
            return state, float(Fraction(state["best"])), False
        shown = arrow_columns.nearest(risk / step) * step
        # as text, so that the stored state keeps the exact fraction
        return {"best": str(shown)}, float(shown), True


@described("adaptive.ParameterFreeLadder")
class ParameterFreeLadder(_Reference):
    """Runs the ladder whose step is s / sqrt(n), where n is the number of rows and s the standard deviation
    of the row-wise differences between the losses of the submission and of the best one. The state also
    holds "losses", those of the best submission as a text of digits 0 and 1 in the order of the ids.

    Blum & Hardt 2015 round risks to multiples of 1 / n, which changes nothing: risks are such multiples. No
    privacy guarantee.
    """

    public: RowFacts
    target: str
    id: str

    def _judge(self, state: State, wrong: Integers) -> tuple[State, float, bool]:
        risk = float(wrong.mean())
        if state["best"] is not None:
            best_losses = np.array([int(digit) for digit in state["losses"]])
            step = float(np.std(wrong - best_losses, ddof=min(1, len(wrong) - 1))) / len(wrong) ** 0.5
            if not risk < state["best"] - step:
                return state, state["best"], False
        return {"best": risk, "losses": "".join(map(str, wrong.tolist()))}, risk, True
