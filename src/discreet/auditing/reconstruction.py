"""Reconstruction: too many answers that are too accurate give away the table, nearly all of it (Dinur &
Nissim 2003).

The attacker asks how many people of random groups have a secret bit, and solves for the bits. Noise that
is small against the square root of the number of people does not help; the noise that a privacy budget
requires for so many questions does.

>>> import numpy as np
>>> secret = np.random.default_rng(1).random(40) < 0.5
>>> reconstruct(lambda group: (group & secret).sum(), 40, seed=2).accuracy(secret)
1.0
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import optimize

from .. import _require
from .._errors import InvalidInput
from .outputs import floats

Bits = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Reconstruction:
    """Holds the attacker's guess of every bit, and the solution it was rounded from."""

    bits: Bits
    solution: Any
    questions: int

    def accuracy(self, secret: Any) -> float:
        """Return the share of bits that are right; 0.5 is what a coin would get on fair bits."""
        return float((self.bits == np.asarray(secret, bool)).mean())


def reconstruct(
    ask: Callable[[Bits], float],
    people: int,
    *,
    questions: int | None = None,
    method: str = "least squares",
    seed: int = 0,
) -> Reconstruction:
    """Ask about random groups, about half of the people each, and solve for everyone's bit: by the method
    "least squares", or "lp", a linear program for bits in [0, 1] with the least sum of absolute residuals.

    `questions` defaults to four for each person. The linear program is that of Dwork, McSherry & Talwar 2007:
    it withstands some answers that are wildly wrong.
    """
    _require.integer(people=people, at_least=1)
    question_count = 4 * people if questions is None else questions
    _require.integer(questions=question_count, at_least=1)
    if method not in _METHODS:
        raise _require.fail("method", method, " or ".join(repr(name) for name in _METHODS))
    groups = np.random.default_rng(seed).random((question_count, people)) < 0.5
    answers = floats(answers=[ask(group) for group in groups])
    if answers.shape != (question_count,) or not np.isfinite(answers).all():
        raise InvalidInput(
            "each answer must be one finite number: how many of the group have the bit. Nothing was solved."
        )
    solution = _METHODS[method](groups.astype(float), answers)
    return Reconstruction(bits=solution > 0.5, solution=solution, questions=question_count)


def _least_squares(groups: Any, answers: Any) -> Any:
    return np.linalg.lstsq(groups, answers, rcond=None)[0]


def _linear_program(groups: Any, answers: Any) -> Any:
    """Minimize sum r such that -r <= groups x - answers <= r, 0 <= x <= 1."""
    rows, people = groups.shape
    eye = np.eye(rows)
    solution = optimize.linprog(
        np.concatenate([np.zeros(people), np.ones(rows)]),
        A_ub=np.block([[groups, -eye], [-groups, -eye]]),
        b_ub=np.concatenate([answers, -answers]),
        bounds=[(0, 1)] * people + [(0, None)] * rows,
        method="highs",
    )
    return solution.x[:people]


_METHODS: dict[str, Callable[[Any, Any], Any]] = {"least squares": _least_squares, "lp": _linear_program}
