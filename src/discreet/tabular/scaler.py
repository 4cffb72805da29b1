"""Learns standardization from private data, for a price: noisy means and deviations of bounded columns.

    columns = ("age", "income")
    scaler = PrivateScaler.for_privacy(public=session.public, columns=columns, epsilon=0.1, delta=1e-6)
    scaling = session.ask(scaler).value
    scaling.transform(X)  # standardized, for any data: it costs nothing more
    Trainer(..., columns=Tabular(features=columns, target="sick", scaling=scaling))

Scaling by declared bounds costs nothing, and is enough where they are tight. This is for columns whose values
fill a small part of their declared bounds.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt

from .. import _require, _round, accounting
from .._errors import InvalidInput
from .._public import ADD_REMOVE, Public
from .._registry import described
from .._require import FINITE, LISTED, NON_EMPTY, POSITIVE, Real, at_least, at_most
from ..accounting import Event, compose
from ..mechanisms import means as moments
from ..mechanisms.noise import IntegerGaussian
from ..mechanisms.protocols import Mechanism, Release, check_source, release
from ..mechanisms.statistics import require_rows, row_contribution
from ..sampling import Entropy
from ..tables import Source

Array = npt.NDArray[np.float64]
# Shares of rho for the count, the sum and the sum of squares of each column: the count's error matters less.
# Chosen by hand, not tuned.
SHARES = (1, 2, 2)
# The smallest deviation, as a share of the bounds' width: division by a smaller one, which may be noise
# alone, would blow values up. Chosen by hand, not tuned.
FLOOR = Fraction(1, 1000)


@described("learning.Scaling")
class Scaling:
    """Standardizes columns: `(value - mean) / deviation` for each column, of values clipped to the column's
    bounds `lower` and `upper`.

    Missing values become 0, as if they were the mean.
    """

    columns: Annotated[tuple[str, ...], LISTED]
    means: tuple[Annotated[float, FINITE], ...]
    deviations: tuple[Annotated[float, POSITIVE], ...]
    lower: tuple[Annotated[float, FINITE], ...]
    upper: tuple[Annotated[float, FINITE], ...]

    def __post_init__(self) -> None:
        facts = {"means": self.means, "deviations": self.deviations, "lower": self.lower, "upper": self.upper}
        for name, values in facts.items():
            _require.must(len(values) == len(self.columns), name, values, "one for each column")
        _require.that(
            len(set(self.columns)) == len(self.columns), f"a column is named twice: {list(self.columns)}."
        )

    def column(self, name: str, values: Array) -> Array:
        """Return the values of one column, standardized."""
        _require.that(name in self.columns, f"{name!r} is none of the columns {list(self.columns)}.")
        i = self.columns.index(name)
        clipped = np.clip(_floats(values), self.lower[i], self.upper[i])
        return np.asarray(np.nan_to_num((clipped - self.means[i]) / self.deviations[i]))

    def transform(self, X: Any) -> Array:
        """Return the standardized array [rows, columns], in the order of `columns`; X is an array in this
        order, or holds columns by name (a mapping, a data frame)."""
        if isinstance(X, Mapping) or hasattr(X, "columns"):
            try:
                columns = {name: X[name] for name in self.columns}
            except KeyError as error:
                raise InvalidInput(f"the column {error} is missing.") from None
            return np.stack([self.column(name, values) for name, values in columns.items()], axis=1)
        array = _floats(X)
        _require.that(
            array.ndim == 2 and array.shape[1] == len(self.columns),
            f"an array with {len(self.columns)} columns is needed, in the order {list(self.columns)}.",
        )
        return np.stack([self.column(name, array[:, i]) for i, name in enumerate(self.columns)], axis=1)

    def inverse_transform(self, X: Any) -> Array:
        """Return standardized values in the columns' own units."""
        values: Array = _floats(X) * np.array(self.deviations) + np.array(self.means)
        return values


def _floats(values: Any) -> Array:
    """Return values as floats; a refusal quotes none of them."""
    with _require.refusing("the values to scale are not all numbers."):
        return np.asarray(values, np.float64)


@described("learning.PrivateScaler")
class PrivateScaler(Mechanism):
    """Releases means and standard deviations of bounded columns with rho-zCDP in total.

    Each value is rounded to the nearest end of `cells` equal cells between its column's bounds (4096 by
    default, chosen by hand). The `error` of the release bounds its distance from the mean and the deviation
    of the rounded values: the effect of rounding is not counted.

    Guarantee: the composition of exact discrete Gaussian noises, three for each column (count, sum, sum of
               squares; two where the count is public), whose rho add up to at most `rho`.
    Proof:     sums are exact integers that one row moves by at most `row_contribution`
               (`mechanisms.means`), with the noise of `IntegerGaussian.for_rho` for their share of rho.
               Means and deviations are computed from the noisy sums alone.
    Assumes:   each person has one row.
    """

    public: Public
    columns: Annotated[tuple[str, ...], NON_EMPTY]
    rho: Annotated[Real, POSITIVE]
    # squares of cells are computed in 64-bit integers (`mechanisms.means`): the limit is far within them
    cells: Annotated[int, at_least(1), at_most(1 << 28)] = 1 << 12

    def __post_init__(self) -> None:
        require_rows(self.public)
        if len(set(map(str, self.columns))) < len(self.columns):
            raise InvalidInput(f"a column is named twice: {list(self.columns)}.")
        for name in self.columns:
            # Raises where the column is not declared, or has no bounds.
            self.public.bounds(name)
        # Raises where no noise can be made for this rho.
        self._noises(self.columns[0])

    @classmethod
    def for_privacy(
        cls, *, public: Public, columns: Any, epsilon: float, delta: float, cells: int = 1 << 12
    ) -> PrivateScaler:
        """Return the scaler with the largest rho that stays within (epsilon, delta), by Rényi accounting,
        which is quick and a few per cent from the tightest."""
        # `calibrate` searches for the smallest amount of noise, so that it is given 1 / rho.
        draft = cls(public=public, columns=columns, rho=1, cells=cells)
        inverse = accounting.calibrate(
            lambda x: cls(public=public, columns=draft.columns, rho=1 / Fraction(x), cells=cells).event,
            epsilon=epsilon,
            delta=delta,
            accountant="rdp",
        )
        return cls(public=public, columns=draft.columns, rho=1 / Fraction(inverse), cells=cells)

    def _scale(self, column: str) -> moments.Scale:
        bounds = self.public.bounds(column)
        lower, upper = _require.exact(bounds.lower, "lower"), _require.exact(bounds.upper, "upper")
        return moments.Scale(lower, (upper - lower) / self.cells, self.cells)

    def _noises(self, column: str) -> tuple[IntegerGaussian | None, ...]:
        """Return the noises of count, sum and sum of squares; None for a count that is public."""
        nullable, relation = self.public.bounds(column).nullable, self.public.neighbors
        is_count_public = relation is not ADD_REMOVE and not nullable and self.public.size is not None
        column_rho = _require.exact(self.rho, "rho") / len(self.columns)
        total_share = sum(SHARES) - (SHARES[0] if is_count_public else 0)
        # A public count comes first, without noise; the loop then leaves it out.
        noises: list[IntegerGaussian | None] = [None] if is_count_public else []
        for (low, high), share in list(zip(self._scale(column).ranges(), SHARES, strict=True))[len(noises) :]:
            # `row_contribution` is 0 for a sum that no row can move, and noise needs a positive sensitivity.
            contribution = max(1, row_contribution(relation, low, high, nullable=nullable))
            noises.append(
                IntegerGaussian.for_rho(
                    column_rho * share / total_share, sensitivity=contribution, neighbors=relation
                )
            )
        return tuple(noises)

    @property
    def event(self) -> Event:
        return compose(
            [noise.event for name in self.columns for noise in self._noises(name) if noise is not None]
        )

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        moments_by_column = [self._measure(source, name, entropy) for name in self.columns]
        scales = [self._scale(name) for name in self.columns]
        estimates = [_estimates(noisy, scale) for noisy, scale in zip(moments_by_column, scales, strict=True)]
        value = Scaling(
            columns=self.columns,
            means=tuple(mean for mean, _ in estimates),
            deviations=tuple(deviation for _, deviation in estimates),
            lower=tuple(float(scale.lower) for scale in scales),
            upper=tuple(float(scale.upper) for scale in scales),
        )

        def error(confidence: float) -> dict[str, tuple[float, float]]:
            column_confidence = 1 - (1 - confidence) / len(self.columns)
            return {
                name: _errors(noisy, scale, column_confidence)
                for name, noisy, scale in zip(self.columns, moments_by_column, scales, strict=True)
            }

        return release(value, event=self.event, entropy=entropy, error=error)

    def _measure(self, source: Source, column: str, entropy: Entropy) -> moments.Noisy:
        nullable = self.public.bounds(column).nullable
        noises: Any = self._noises(column)
        return moments.measure(source, column, nullable, self._scale(column), noises, entropy)


def _spans(noisy: moments.Noisy, confidence: float | None) -> list[moments.Span]:
    """Return intervals of count, sum and sum of squares that hold the true values with probability
    `confidence`; without one, the noisy values themselves as intervals of length zero."""
    spans = [(v, v) if confidence is None else noisy.span(i, confidence) for i, v in enumerate(noisy.values)]
    return [(Fraction(low), Fraction(high)) for low, high in spans]


def _mean(spans: list[moments.Span], scale: moments.Scale) -> moments.Span:
    """Return the interval of the mean that intervals of the sums allow."""
    count, total, squares = spans
    return moments.mean_span(count, total, squares, scale)


def _deviation(spans: list[moments.Span], scale: moments.Scale) -> moments.Span:
    """Return the interval of the standard deviation that intervals of the sums allow, never below the floor.

    Square roots are taken in units of a cell, so that the squares of huge or tiny bounds are ordinary floats.
    """
    count, total, squares = spans
    variances = moments.variance_span(count, total, squares, scale._replace(step=Fraction(1)))
    low, high = (scale.step * max(FLOOR * scale.cells, Fraction(math.sqrt(v))) for v in variances)
    return low, high


def _estimates(noisy: moments.Noisy, scale: moments.Scale) -> tuple[float, float]:
    """Return the mean and the deviation that are released: those of the noisy sums, as floats.

    Both lie within the range of floats, as bounds do. A deviation that rounds to zero becomes the smallest
    float, because columns are divided by it.
    """
    point = _spans(noisy, None)
    return float(_mean(point, scale)[0]), max(float(_deviation(point, scale)[0]), math.ulp(0.0))


def _errors(noisy: moments.Noisy, scale: moments.Scale, confidence: float) -> tuple[float, float]:
    """Return error bounds of the released mean and deviation (as floored): for each the larger distance to
    the ends of its interval, rounded up."""
    mean, deviation = map(Fraction, _estimates(noisy, scale))
    spans = _spans(noisy, confidence)
    (low, high), (smallest, largest) = _mean(spans, scale), _deviation(spans, scale)
    # The square roots in `_deviation` are rounded by less than this share of themselves.
    rounding = largest * Fraction(1, 1 << 50)
    return (
        _round.up(max(mean - low, high - mean)),
        _round.up(max(deviation - smallest, largest - deviation) + rounding),
    )
