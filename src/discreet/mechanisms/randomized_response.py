"""Randomized response: everyone reports a category drawn from a public channel given their true one (a
randomized-response design), so that no single report can be held against anyone.

Reports reveal how many people reported, so the relations here are `replace` and `zero_out` (the number of
units is public); under `add_remove` the mechanism is refused. The designs are in `response_designs`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require, sampling
from .._errors import InvalidInput
from .._public import REPLACE, ZERO_OUT, Public, require_relation
from .._registry import described
from .._require import Real
from ..accounting import Event
from ..accounting import RandomizedResponse as RandomizedResponseEvent
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns
from .protocols import Release, check_source, release
from .response_designs import Channel, Codes, Kary, optimal_response_design
from .statistics import require_rows


@described("mechanisms.Reports")
@dataclass(frozen=True, slots=True, kw_only=True)
class Reports:
    """Holds the released values: how often each report was given, and the estimates of the true counts.

    `counts` has one entry per kind of report of the design. `estimates` and `standard_errors` have one per
    category, in the order of `categories`. All of it is computed from the reports alone.
    """

    categories: tuple[str | int | None, ...]
    counts: tuple[int, ...]
    estimates: tuple[float, ...]
    standard_errors: tuple[float, ...]

    def __post_init__(self) -> None:
        for name in ("categories", "counts", "estimates", "standard_errors"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        """Return the estimates, so that intervals can be built around them."""
        return np.array(self.estimates, dtype=dtype)


@described("mechanisms.RandomizedResponse")
@dataclass(frozen=True, slots=True, kw_only=True)
class RandomizedResponse:
    """Passes everyone's value of `column` through a randomized-response design; releases the counts of
    reports and unbiased estimates.

    Give `epsilon` for the best design over the declared categories, or a design of your own as `lottery`, the
    name under which ledgers store it. With `missing`, having none of the declared values is one more category
    (the last). Without it, someone without a declared value reports as if theirs had been drawn uniformly,
    which adds 1/k of the number of such people to the estimate of each of the k categories.

    Guarantee: epsilon-DP under replace and zero_out, also locally: each single report is epsilon-DP.
    Proof:     all reports are independent, and neighbors differ in the truth of one. Rows of the design
               differ by a factor of at most exp(epsilon) in each report. The report of someone without a
               value follows the mean of the rows, and the divergence from (and to) a mean is at most the
               largest from (and to) one of the rows, by joint convexity; so the event is right for them too.
               A blank row of zero_out is someone without a value.
    Assumes:   one row per person; the number of rows is public.
    """

    public: Public
    column: str
    epsilon: Real | None = None
    lottery: Kary | Channel | None = None
    missing: bool = False

    def __post_init__(self) -> None:
        arrow_columns.require_public(self.public)
        _require.flag(missing=self.missing)
        require_relation(
            self.public.neighbors,
            REPLACE,
            ZERO_OUT,
            what="randomized response, which shows how many people reported,",
        )
        require_rows(self.public)
        if (self.epsilon is None) == (self.lottery is None):
            raise InvalidInput(
                f"give either epsilon or a design of your own, got epsilon={self.epsilon!r} and "
                f"lottery={self.lottery!r}. Nothing was drawn."
            )
        if self.lottery is not None and not isinstance(self.lottery, Kary | Channel):
            raise _require.fail("lottery", self.lottery, "a Kary or a Channel")
        if self.design.truths != len(self.labels):
            raise InvalidInput(
                f"the design is for {self.design.truths} categories and column {self.column!r} has "
                f"{len(self.labels)}. Nothing was drawn."
            )

    @property
    def labels(self) -> tuple[str | int | None, ...]:
        """The categories, with None last where missing values are one."""
        declared = self.public.categories(self.column).values
        return (*declared, None) if self.missing else declared

    @property
    def design(self) -> Kary | Channel:
        """The design in use: the one that was passed, or the best for epsilon."""
        if self.lottery is not None:
            return self.lottery
        if self.epsilon is None:
            raise InvalidInput("give either epsilon or a design of your own (lottery=...).")
        return optimal_response_design(len(self.labels), self.epsilon)

    @property
    def event(self) -> Event:
        # the odds were rounded below exp(epsilon), so the charge is an upper bound of the cost
        if self.epsilon is not None:
            return RandomizedResponseEvent(
                epsilon=self.epsilon, categories=len(self.labels), neighbors=self.public.neighbors
            )
        return self.design.event(self.public.neighbors)

    def error(self, confidence: float = 0.95) -> float:
        """Return an upper bound on the distance of every estimated count from the true one, which holds for
        all together with probability `confidence`; it needs the declared size."""
        return self.design.error(self.public.declared_size("the error of randomized response"), confidence)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        design = self.design
        counts = np.zeros(design.reports, np.int64)
        for array in arrow_columns.each(source, self.column):
            truths = arrow_columns.categories(array, self.public.categories(self.column).values, self.column)
            counts += np.bincount(
                design.respond(self._fill(truths, entropy), entropy), minlength=design.reports
            )
        report_counts = [int(c) for c in counts]
        reports = Reports(
            categories=self.labels,
            counts=tuple(report_counts),
            # The estimates of a design with nearly equal rows may be beyond floats; then they are infinite.
            estimates=tuple(_require.float_or_inf(x) for x in design.estimate(report_counts)),
            standard_errors=tuple(
                math.sqrt(_require.float_or_inf(v)) for v in design.variance(report_counts)
            ),
        )
        # `error` is defined for one person or more
        people = max(sum(report_counts), 1)
        return release(
            reports,
            event=self.event,
            entropy=entropy,
            error=lambda confidence: design.error(people, confidence),
        )

    def _fill(self, truths: Codes, entropy: Entropy) -> Codes:
        """Give everybody without a declared value the extra category, or one drawn uniformly.

        Without `missing` one is drawn for every row, needed or not, so that the time reveals nothing.
        """
        absent = truths < 0
        if self.missing:
            return np.where(absent, len(self.labels) - 1, truths)
        return np.where(absent, sampling.uniform_below(len(self.labels), len(truths), entropy), truths)
