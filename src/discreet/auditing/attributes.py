"""Attribute inference and model inversion: a model that fits its data too well reveals the missing column of
a record, or the typical input of a class.

Attribute inference (Yeom et al. 2018, arXiv:1709.01604, section 5; Fredrikson et al. 2014) knows all of a
person's record but one column, tries each value, and keeps the one with which the model's loss is smallest.
Right guesses about people outside the training data are statistics, not a leak: the leak is the *difference*
between members and others. Model inversion (Fredrikson et al. 2015) searches for the input that a model finds
most typical of a class; where a class is one person, that is their picture.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .. import _require
from .._errors import InvalidInput
from .outputs import floats
from .rates import Guesses, lower_limit, upper_limit
from .roc import Floats

Objective = Callable[[Floats], tuple[float, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attributes:
    """Counts how often a hidden value was guessed right: of members (`right` of `members`), and of others."""

    right: int
    members: int
    right_of_others: int
    others: int

    @property
    def advantage(self) -> float:
        """Return the share guessed right among members minus that among others: what the model tells beyond
        statistics.
        """
        return self.right / self.members - self.right_of_others / self.others

    def limits(self, confidence: float = 0.95) -> tuple[float, float]:
        """Return a lower and an upper limit of the advantage; both hold together with this confidence, from
        exact limits of the two shares (four in all, each at a quarter of the level)."""
        _require.open_probability(confidence=confidence)
        level = (1 - confidence) / 4
        among_members, among_others = (self.right, self.members), (self.right_of_others, self.others)
        low = float(lower_limit(*among_members, level)) - float(upper_limit(*among_others, level))
        return low, float(upper_limit(*among_members, level)) - float(lower_limit(*among_others, level))

    @property
    def guesses(self) -> Guesses:
        """Return the counts of a membership inference attack that says "member" where the guess is right."""
        return Guesses(
            hits=self.right, first=self.members, false_hits=self.right_of_others, second=self.others
        )


def guess_attributes(losses: Any, prior: Any = None) -> Any:
    """Return, for each example, the likeliest of the values that its hidden column may have.

    `losses` is [examples, values]: the model's loss on the example with each value filled in. `prior` is how
    common the values are (public statistics; all alike by default). A loss counts as minus a log-likelihood:
    the guess is the value with the largest prior * e^-loss.
    """
    table = floats(losses=losses)
    if table.ndim != 2 or table.shape[1] < 2 or np.isnan(table).any():
        raise InvalidInput("losses must be [examples, values], with two values at least and no NaN.")
    weights = np.ones(table.shape[1]) if prior is None else np.asarray(prior, dtype=float)
    if weights.shape != table.shape[1:] or (weights < 0).any() or not weights.sum() > 0:
        raise InvalidInput("the prior must have one number for each value, none below zero.")
    with np.errstate(divide="ignore"):
        return np.argmax(np.log(weights) - table, axis=1)


def attribute_inference(losses: Any, truth: Any, included: Any, *, prior: Any = None) -> Attributes:
    """Guess the hidden column of everybody, and count right guesses among members and others.

    `truth` has, for each example, the number of the true value, which is its column in `losses`; `included`
    says whether the example is a member, that is, was in the training data.
    """
    guessed, true_values = guess_attributes(losses, prior), floats(truth=truth)
    if true_values.shape != guessed.shape or not np.isin(true_values, np.arange(np.shape(losses)[1])).all():
        raise InvalidInput(
            "truth must have the number of the right value, 0 for the first column of losses and so "
            "on, for each example."
        )
    right = guessed == true_values
    is_member = np.asarray(included, dtype=bool)
    if is_member.shape != right.shape or is_member.all() or not is_member.any():
        raise InvalidInput(
            "say of each example whether it was in the training data; some must be in and some out."
        )
    return Attributes(
        right=int(right[is_member].sum()), members=int(is_member.sum()),
        right_of_others=int(right[~is_member].sum()), others=int((~is_member).sum()),
    )  # fmt: skip


def invert(
    objective: Objective,
    start: Any,
    *,
    bounds: tuple[float, float] = (0.0, 1.0),
    rate: float = 0.1,
    steps: int = 500,
    patience: int = 50,
    smooth: Callable[[Floats], Floats] | None = None,
) -> Floats:
    """Return the input a model finds most typical: descend `objective` (1 - confidence in a class, or its
    loss) within `bounds`, in steps of `rate` times the gradient, and keep the best input.

    `objective(x)` returns its value at x and its gradient. The gradient may be None: then it is estimated
    from the values at nearby points, which is all that a black box allows. `smooth` may tidy the input
    after each step (a blur, where neighbors are alike).

    Fredrikson, Jha & Ristenpart 2015, Algorithm 1 (MI-Face): gradient descent, stopped when `patience` steps
    bring nothing.
    """
    _require.ordered(low=bounds[0], high=bounds[1])
    _require.positive(rate=rate)
    _require.integer(steps=steps, patience=patience, at_least=1)
    x = np.clip(np.asarray(start, dtype=float), *bounds)
    best, least, waited = x, np.inf, 0
    for _ in range(steps):
        value, gradient = objective(x)
        if value < least - 1e-9:
            best, least, waited = x, float(value), 0
        else:
            waited += 1
            if waited >= patience:
                break
        slope = (
            _finite_differences(objective, x, value)
            if gradient is None
            else np.asarray(gradient, dtype=float)
        )
        x = np.clip(x - rate * slope, *bounds)
        x = np.clip(smooth(x), *bounds) if smooth is not None else x
    return np.asarray(best, dtype=float)


def _finite_differences(objective: Objective, x: Floats, value: float, width: float = 1e-3) -> Floats:
    """Estimate the gradient of a black box by one query for each coordinate, at distance `width`."""
    gradient = np.zeros(x.size)
    for i in range(x.size):
        shifted = x.copy()
        shifted.flat[i] += width
        gradient[i] = (objective(shifted)[0] - value) / width
    return gradient.reshape(x.shape)
