"""Defines the base class of learners that release noisy sums and counts: fields, checks, and exact noise for
a declared sensitivity.

Naive Bayes, k-means, additive boosting and trees read a table as coordinates in [-1, 1] (`Design` with clip
"never" and no intercept), round them to a grid, and add discrete noise to sums of whole numbers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _require
from ..._errors import InvalidInput
from ..._public import ADD_REMOVE, Boolean, Bounds, Categories, Public
from ...accounting import Event
from ...mechanisms.calibration import zcdp_rho
from ...mechanisms.noise import IntegerGaussian, IntegerLaplace
from ...mechanisms.protocols import Release, Sensitivity, check_source, release
from ...sampling import Entropy
from ...tables import Source
from .erm import check_price
from .model import target_classes
from .rows import Design, Rows

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
# Coordinates are rounded to multiples of 1 / CELLS before they are added, so that sums are exact integers.
# Chosen by hand, not tuned; the proof of `clusters._nearest` holds up to this value.
CELLS = 1 << 10


@dataclass(frozen=True, kw_only=True)
class TableLearner(ABC):
    """Shares fields, checks and the call among learners that release noisy sums and counts of rows.

    `rows`: the declared number of units, by default `public.size`.
    """

    public: Public
    design: Design
    epsilon: float
    delta: float = 0.0
    rows: int | None = None

    def __post_init__(self) -> None:
        check_price(self.epsilon, self.delta)
        if self.design.intercept or self.design.clip != "never":
            raise InvalidInput(
                f"{type(self).__name__} needs rows without an intercept that are not scaled down. Give "
                f'Design(..., intercept=False, clip="never"). Nothing was charged or trained.'
            )
        if self.rows is not None:
            _require.integer(rows=self.rows, at_least=1)
        self.design.check(self.public)
        self._check()

    @abstractmethod
    def _check(self) -> None:
        """Refuse fields for which no price can be computed."""

    @property
    @abstractmethod
    def event(self) -> Event: ...

    @abstractmethod
    def fit_rows(self, x: Rows, targets: Array, entropy: Entropy) -> Any:
        """Return the private model of rows that `design` has read, for the price of `event`.

        Not a release: callers account for it.
        """

    @abstractmethod
    def error(self, confidence: float = 0.95) -> float:
        """Return a bound on the noise, which holds with this probability."""

    @property
    @abstractmethod
    def numbers(self) -> int:
        """Return how many numbers its model holds."""

    @property
    def asked(self) -> tuple[float, float]:
        """Return the epsilon and the delta that the caller declared; `event` may cost less."""
        return self.epsilon, self.delta

    @property
    def changes(self) -> int:
        """Return how many rows' summands differ between neighbors: a replaced row is one removed and one
        added."""
        return 1 if self.public.neighbors is ADD_REMOVE else 2

    @property
    def size(self) -> int:
        """Return the declared number of units."""
        return self.public.declared_size(type(self).__name__) if self.rows is None else self.rows

    @property
    def layout(self) -> CoordinateLayout:
        return CoordinateLayout.of(self.design, self.public)

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        value = self.fit_rows(*self.design.read(source, entropy), entropy)
        # `error_in_scores`: the error is that of noisy sums and counts, not of the model.
        return release(value, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)


class Classifying(TableLearner):
    """Shares the classes of a target, and their check, among classifiers."""

    def _check(self) -> None:
        if self.design.target is None:
            raise _require.fail("target", None, "the name of a column")
        self.classes  # noqa: B018 - refuse a target without classes now

    @property
    def classes(self) -> tuple[Any, ...]:
        assert self.design.target is not None
        return target_classes(self.public, self.design.target, classifies=True)


@dataclass(frozen=True)
class CoordinateLayout:
    """Says which coordinates belong to numbers, to booleans (`flags`), and to the indicators of categories
    (`groups`)."""

    numbers: tuple[int, ...]
    flags: tuple[int, ...]
    # for each category its first coordinate and its number of declared values
    groups: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, design: Design, public: Public) -> CoordinateLayout:
        """Return the layout of a design's coordinates."""
        numbers, flags, groups, column = [], [], [], 0
        for name in design.features:
            fact: Any = public.fact(name)
            if isinstance(fact, Categories):
                groups.append((column, len(fact.values)))
            elif isinstance(fact, Boolean):
                flags.append(column)
            else:
                assert isinstance(fact, Bounds)
                numbers.append(column)
            column += len(fact.values) if isinstance(fact, Categories) else 1
        return cls(tuple(numbers), tuple(flags), tuple(groups))


def exact_noise(
    epsilon: float, delta: float, sensitivity: Sensitivity, public: Public, times: int = 1
) -> IntegerLaplace | IntegerGaussian:
    """Return the exact noise for `times` releases of this sensitivity within (epsilon, delta): Laplace, or
    with a delta Gaussian where that has the smaller variance.

    Guarantee: `times` of its events are within (epsilon, delta).
    Proof:     basic composition of pure events; zCDP adds up (Bun & Steinke 2016, Lemma 1.7), and `zcdp_rho`
               is the rho that (epsilon, delta) allows. Which distribution it is depends on public facts
               alone.
    """
    # the factor 1 - 1e-12 leaves room for the rounding of the division and of the sum over `times`
    laplace = IntegerLaplace.for_epsilon(
        epsilon / times * (1 - 1e-12), sensitivity=sensitivity, neighbors=public.neighbors
    )
    if delta == 0:
        return laplace
    rho = zcdp_rho(epsilon, delta) / times * (1 - 1e-12)
    gaussian = IntegerGaussian.for_rho(rho, sensitivity=sensitivity, neighbors=public.neighbors)
    return laplace if laplace.mean_squared_error <= gaussian.mean_squared_error else gaussian


def on_grid(x: Any) -> Integers:
    """Return coordinates rounded to whole multiples of 1 / CELLS, as these integers."""
    return np.asarray(np.rint(np.asarray(x, np.float64) * CELLS), dtype=np.int64)


def by_group(values: Integers, groups: Any, count: int) -> Integers:
    """Return one row for each of `count` groups: the exact sum of the rows of `values` in that group.

    `groups` has the number of each row's group.
    """
    result = np.zeros((count, values.shape[1]), dtype=np.int64)
    for group in range(count):
        result[group] = values[groups == group].sum(axis=0)
    return result
