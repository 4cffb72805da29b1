"""Adds noise to every record instead of to the answer: input perturbation beside output perturbation.

Every person's value gets its own noise before anybody adds it up, so nobody has to be trusted with the exact
values; in return the error grows with the square root of the number of people. (The mechanism here simulates
that on a table: it reads the exact values.) The example shows how much:

>>> from discreet._public import Bounds, Public, REPLACE
>>> from discreet.mechanisms.additive import noisy_sum
>>> public = Public(schema={"age": Bounds(0, 100, nullable=False)}, neighbors=REPLACE, size=10_000)
>>> InputPerturbation.for_epsilon(1, public=public, column="age").error(0.95)
38417
>>> noisy_sum(public, "age", epsilon=1).error(0.95)
300
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Literal

from .. import _require, sampling
from .._public import REPLACE, ZERO_OUT, Public, require_relation
from .._registry import described
from .._require import Real
from ..accounting import DiscreteLaplace, Event
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns, calibration, noise_tails
from .grid import nearest_float
from .protocols import Release, check_source, release
from .statistics import Sum, contributions


@described("mechanisms.InputPerturbation")
@dataclass(frozen=True, slots=True, kw_only=True)
class InputPerturbation:
    """Adds discrete Laplace noise to each row's value, in whole steps, and releases their sum (or mean):
    input perturbation.

    Guarantee: each row's noisy value, of which only the sum is released here, has the event
               `DiscreteLaplace(scale, r)`, r being `range_of_a_row`; the release has the same event.
    Proof:     neighbors differ in one row, and only that row's noisy value has another distribution: one
               application of the Laplace mechanism. Adding the noisy values up is post-processing. Exactly
               `size` draws are made, one for each unit.
    Assumes:   the number of rows is public: refused under add_remove, where one row more means one draw more,
               and the sum over an empty table would be exact.
    """

    public: Public
    column: str
    # the scale of the noise on each row, in steps
    scale: Fraction
    step: Fraction = Fraction(1)
    release_as: Literal["sum", "mean"] = "sum"

    def __post_init__(self) -> None:
        arrow_columns.require_public(self.public)
        require_relation(self.public.neighbors, REPLACE, ZERO_OUT, what="input perturbation")
        self.public.declared_size("input perturbation")
        object.__setattr__(self, "scale", _require.exact(self.scale, "scale"))
        object.__setattr__(self, "step", arrow_columns.as_step(self.step))
        _require.positive(scale=self.scale)
        if not Fraction(1, 10**100) <= self.scale <= 10**100:
            raise _require.fail("scale", self.scale, "between 1e-100 and 1e100")
        _require.one_of(("sum", "mean"), release_as=self.release_as)
        self.range_of_a_row  # noqa: B018 - refuses undeclared bounds

    @classmethod
    def for_epsilon(
        cls,
        epsilon: Real,
        *,
        public: Public,
        column: str,
        step: Real = 1,
        release_as: Literal["sum", "mean"] = "sum",
    ) -> InputPerturbation:
        """Return the mechanism for which every row's own value is epsilon-DP."""
        sensitivity = Sum(column, step).sensitivity(public).linf
        scale = calibration.discrete_laplace(epsilon, sensitivity)
        return cls(
            public=public, column=column, scale=scale, step=arrow_columns.as_step(step), release_as=release_as
        )

    @property
    def range_of_a_row(self) -> int:
        """How far one row's value can move, in steps."""
        return Sum(self.column, self.step).sensitivity(self.public).linf

    @property
    def event(self) -> Event:
        return DiscreteLaplace(
            scale=self.scale, sensitivity=self.range_of_a_row, neighbors=self.public.neighbors
        )

    def error(self, confidence: float = 0.95) -> Any:
        """Return a proved bound on the error of the sum or mean, from public numbers: see
        `noise_tails.laplace_sum_error`."""
        _require.open_probability(confidence=confidence)
        rows = self.public.declared_size("input perturbation")
        return self._in_units(noise_tails.laplace_sum_error(self.scale, rows, 1 - confidence))

    def _in_units(self, steps: int) -> Any:
        """Return a number of steps in the column's own unit, divided by the number of rows for a mean."""
        total = steps * self.step
        if self.release_as == "mean":
            total /= self.public.declared_size("a mean")
        return int(total) if total.denominator == 1 else nearest_float(total)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        total = 0
        for part in contributions(Sum(self.column, self.step), source):
            total += arrow_columns.exact_sum(part)
        remaining = self.public.declared_size("input perturbation")
        # the noise of a row is independent of its value, so it may be drawn and added separately; 2**16 draws
        # at a time bound the memory (not tuned)
        while remaining > 0:
            draws = sampling.discrete_laplace(self.scale, min(remaining, 1 << 16), entropy)
            total += sum(draws.tolist())
            remaining -= len(draws)
        return release(self._in_units(total), event=self.event, entropy=entropy, error=self.error)
