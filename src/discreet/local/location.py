"""Reports locations: the nearer a place is to the true one, the more likely it is reported (the exponential
mechanism with the distance as its score).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._registry import described
from .._require import Real
from ..accounting import Event
from ..mechanisms.protocols import Release
from ..sampling import Entropy, exp_neg
from . import _draws
from ._base import Floats, LocalRandomizer, check_range, codes_below, one_code, released, spec
from ._draws import Codes

# The largest number of places. The exact ratio reads the weight of every report for every place, at most
# 160,000 weights. The limit was not tuned by timing.
_MAX_PLACES = 400
# The bits of the largest weight. Weights that would be rounded to 0 become 1, so that no report has
# probability zero. The sum of 400 weights stays below the 2**52 of `_draws.LIMIT`.
_WEIGHT_BITS = 36


@described("local.DistanceResponse")
@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceResponse(LocalRandomizer):
    """Reports place j for the true place i with probability proportional to exp(-rate * distance(i, j)):
    distance response, an exponential mechanism.

    `places` are points as tuples of coordinates, such as (x, y), or (x,) on a line. Values and reports are
    indices in `places`. The rate is nearly the largest at which the mechanism is epsilon-DP. It is up to
    twice the textbook's epsilon / (2 diameter), which allows for the largest possible change of the
    normalizing sums; here the actual sums are used.

    Guarantee: one report is epsilon-DP.
    Proof:     weights are integers. The largest ratio of the probabilities of one report from two places is
               computed over all reports and pairs of places, as an exact fraction, and compared with
               exp(epsilon). (Without rounding to integers, the rate epsilon / (2 diameter) is always
               epsilon-DP: McSherry & Talwar 2007.)
    Assumes:   `entropy` yields independent uniform bits.

    >>> response = DistanceResponse(epsilon=1, places=grid_places(3))
    >>> bool(response.rate > 1 / (2 * 2 * 2**0.5)), float(response.ratio) <= 2.7182818284590455
    (True, True)
    """

    epsilon: Real
    places: tuple[tuple[Real, ...], ...]

    def __post_init__(self) -> None:
        _draws.positive_epsilon(self.epsilon)
        rows = [_require.listed(place=place) for place in _require.listed(places=self.places)]
        if not 2 <= len(rows) <= _MAX_PLACES:
            raise InvalidInput(
                f"places must be 2 to {_MAX_PLACES} points, got {len(rows)}. Nothing was drawn. Use a "
                f"coarser grid."
            )
        if len({len(row) for row in rows}) != 1 or not rows[0]:
            raise InvalidInput(
                "places must be points with the same number of coordinates each, one at least. Nothing was "
                "drawn."
            )
        for row in rows:
            for coordinate in row:
                _require.finite(coordinate=coordinate)
                if not abs(_require.float_or_inf(coordinate)) <= 1e100:
                    raise _require.fail("coordinate", coordinate, "at most 1e100")
        distances = _distances(tuple(rows))
        # The identity matrix lifts the zeros of the diagonal, which are no two places.
        if (
            not (distances + distances.max() * np.eye(len(rows)) > 1e-9 * distances.max()).all()
            or distances.max() < 1e-100
        ):
            raise InvalidInput(
                "places must differ from each other, by 1e-9 of the largest distance at least. "
                "Nothing was drawn."
            )
        object.__setattr__(self, "places", tuple(rows))
        _table(self.places, _require.exact(self.epsilon, "epsilon"))

    @property
    def domain(self) -> int:
        return len(self.places)

    @property
    def rate(self) -> float:
        """Return the rate at which weights fall with distance, per unit of distance."""
        return float(_table(self.places, _require.exact(self.epsilon, "epsilon"))[0])

    @property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        """Return the integer weights of all reports, one row per true place."""
        return _table(self.places, _require.exact(self.epsilon, "epsilon"))[1]

    @property
    def ratio(self) -> Fraction:
        return _ratio(self.weights)

    def matrix(self) -> Floats:
        """Return the probabilities of all reports, one row per true place."""
        table = np.array(self.weights, dtype=np.float64)
        return np.asarray(table / table.sum(axis=1, keepdims=True))

    def expected_distance(self) -> Floats:
        """Return, for each true place, the mean distance of its reports."""
        return np.asarray((self.matrix() * _distances(self.places)).sum(axis=1))

    def client(self) -> dict[str, Any]:
        return spec("table", self, ends=self._ends)

    @property
    def _ends(self) -> list[list[int]]:
        """Return the cumulative sums of each row of weights."""
        return [list(accumulate(row)) for row in self.weights]

    def _one(self, value: Any) -> Codes:
        return one_code(value, self.domain)

    def _values(self, array: NDArray[Any]) -> Codes:
        return codes_below(array, self.domain)

    def _draw(self, values: Codes, entropy: Entropy) -> Codes:
        ends = self._ends
        data = np.empty(len(values), np.int64)
        for place in np.unique(values).tolist():
            members = np.flatnonzero(values == place)
            data[members] = _draws.choose(ends[place], len(members), entropy)
        return data

    def _check_reports(self, data: NDArray[Any]) -> None:
        check_range(data, self.domain)

    def _inverse(self) -> Floats:
        """Return the matrix that maps shares of reports to unbiased estimates of the shares of places. Beyond
        a condition number of 1e12, floats would leave few digits."""
        matrix = self.matrix()
        if np.linalg.cond(matrix) > 1e12:
            raise InvalidInput(
                "at this epsilon, reports of nearby places are too similar for unbiased estimates. Nothing "
                "was estimated. Use expectation_maximization(randomizer, reports), or fewer places."
            )
        return np.asarray(np.linalg.inv(matrix.T))

    def variance(self, people: int, shares: Any = None) -> Floats:
        """Return the variance of each estimated share, if the true ones are `shares` (by default all
        equal)."""
        _require.integer(people=people, at_least=1)
        f = np.full(self.domain, 1 / self.domain) if shares is None else np.asarray(shares, dtype=np.float64)
        inverse = self._inverse()
        return np.asarray((inverse**2 @ (self.matrix().T @ f) - f) / people)

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        people, inverse = len(data), self._inverse()
        shares = inverse @ (np.bincount(data, minlength=self.domain) / people)
        widths = inverse.max(axis=1) - inverse.min(axis=1)

        def error(confidence: float) -> float:
            """Return Hoeffding's bound, with a union over the places. A report adds one entry of row i of
            `inverse` to the estimate of place i, so its summand is in an interval of width widths[i]."""
            return float(
                widths.max() * math.sqrt(math.log(2 * self.domain / (1 - confidence)) / (2 * people))
            )

        return released(shares, event, error)


def grid_places(side: int, other: int | None = None) -> tuple[tuple[int, int], ...]:
    """Return the points (row, column) of a grid with `side` rows and `other` columns (by default as many),
    row by row."""
    _require.integer(side=side, at_least=2)
    if other is not None:
        _require.integer(other=other, at_least=1)
    return tuple((row, column) for row in range(side) for column in range(side if other is None else other))


def _distances(places: tuple[tuple[Real, ...], ...]) -> Floats:
    """Return all pairwise Euclidean distances."""
    points = np.array([[float(c) for c in place] for place in places])
    return np.asarray(np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2)))


@lru_cache(maxsize=32)
def _table(
    places: tuple[tuple[Real, ...], ...], epsilon: Fraction
) -> tuple[Fraction, tuple[tuple[int, ...], ...]]:
    """Return (rate, weights): nearly the largest rate whose integer weights are epsilon-DP. A bisection in
    floats finds a candidate; then the exact ratio of its integer weights is checked, and the rate lowered
    until it passes."""
    distances = _distances(places)
    # Weights of 36 bits have ratios below 400 * 2**36, which is exp(31): from epsilon 31 on every rate is
    # private, and 1e9 only bounds the rate.
    target = min(_require.float_or_inf(epsilon), 1e9)

    def spread(rate: float) -> float:
        """Return the logarithm of the largest ratio, in floats and without rounding weights to integers."""
        logs = -rate * distances
        logs = logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))
        return float((logs.max(axis=0) - logs.min(axis=0)).max())

    # With D the diameter: the rate epsilon / (2 D) is private. For two places at distance D, the log ratios
    # of the reports of these two places add up to 2 * rate * D, so no rate above epsilon / D is private.
    low = target / (2 * float(distances.max()))
    high = 2 * low
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if spread(middle) <= target else (low, middle)
    # Rounding to integers may have enlarged the ratio. The rate is lowered by 1, 4, 9, ... parts in 2000,
    # while it is positive (44² < 2000), until the exact ratio passes.
    for attempt in range(1, 45):
        rate = Fraction(low) * (1 - Fraction(attempt * attempt, 2000))
        weights = _weights(distances, rate)
        if _draws.within(_ratio(weights), epsilon):
            return rate, weights
    raise _require.fail(
        "epsilon", target, f"larger: no weights of {_WEIGHT_BITS} bits are private for these places at it"
    )


def _weights(distances: Floats, rate: Fraction) -> tuple[tuple[int, ...], ...]:
    """Return the weights exp(-rate * distance) in units of 2**-36, rounded to integers of at least 1, one row
    per true place."""
    table: dict[float, int] = {}
    for distance in np.unique(distances).tolist():
        table[distance] = max(1, exp_neg(rate * Fraction(distance), _WEIGHT_BITS)[0])
    return tuple(tuple(table[d] for d in row) for row in distances.tolist())


def _ratio(weights: tuple[tuple[int, ...], ...]) -> Fraction:
    """Return the largest ratio of the probabilities of one report from two places, exactly."""
    totals = [sum(row) for row in weights]
    largest = Fraction(1)
    for column in zip(*weights, strict=True):
        ranked = sorted((w / t, i) for i, (w, t) in enumerate(zip(column, totals, strict=True)))
        # Quotients in floats have a relative error of 2**-53, so the exact extremes are among the places
        # within 1e-12 of the smallest and of the largest.
        smallest = [i for probability, i in ranked if probability <= ranked[0][0] * (1 + 1e-12)]
        greatest = [i for probability, i in ranked if probability >= ranked[-1][0] * (1 - 1e-12)]
        lower = min(Fraction(column[i], totals[i]) for i in smallest)
        upper = max(Fraction(column[i], totals[i]) for i in greatest)
        largest = max(largest, upper / lower)
    return largest
