"""Where people are: a report is a place near the true one, the nearer the likelier (the exponential
mechanism with a distance score).
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
from ._base import Floats, LocalRandomizer, check_range, codes_below, released, spec
from ._draws import Codes

# The exact ratio looks at every place for every report: at most 160,000 weights. No measurement on record.
_MAX_PLACES = 400
# Bits of the largest weight: a report that is rarer gets weight 1, which is its share rounded up. Rows of at
# most 400 weights stay below the 2**52 of `_draws.LIMIT`.
_WEIGHT_BITS = 36


@described("local.DistanceResponse")
@dataclass(frozen=True, slots=True, kw_only=True)
class DistanceResponse(LocalRandomizer):
    """Reports place y for place x with a weight of exp(-rate * distance(x, y)): distance response, an
    exponential mechanism.

    `places` are points of the plane (or a line: one number each), numbered in order. The rate is the largest,
    to one part in a thousand, at which the mechanism is epsilon-DP: with few places it is well above the
    textbook's epsilon / (2 diameter), because rows that are normalized differ by less.

    Guarantee: one report is epsilon-DP.
    Proof:     weights are integers; the largest ratio of two places' probabilities of one report is computed
               over all reports and pairs, as a fraction, and compared with exp(epsilon). McSherry & Talwar
               2007 say that epsilon / (2 diameter) is always found.
    Assumes:   `entropy` yields independent uniform bits.

    >>> corner = DistanceResponse(epsilon=1, places=grid_places(3))
    >>> bool(corner.rate > 1 / (2 * 2 * 2**0.5)), float(corner.ratio) <= 2.7182818284590455
    (True, True)
    """

    epsilon: Real
    places: tuple[tuple[Real, ...], ...]

    def __post_init__(self) -> None:
        _draws.positive_epsilon(self.epsilon)
        rows = [_require.listed(place=place) for place in _require.listed(places=self.places)]
        if not 2 <= len(rows) <= _MAX_PLACES or len({len(row) for row in rows}) != 1 or not rows[0]:
            raise InvalidInput(
                f"places must be 2 to {_MAX_PLACES} points with as many coordinates each, got {len(rows)}. "
                "Nothing was drawn. Use a coarser grid."
            )
        for row in rows:
            for coordinate in row:
                _require.finite(coordinate=coordinate)
                if not abs(_require.float_or_inf(coordinate)) <= 1e100:
                    raise _require.fail("coordinate", coordinate, "at most 1e100")
        distances = _distances(tuple(rows))
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
        """Return how fast weights fall with distance."""
        return float(_table(self.places, _require.exact(self.epsilon, "epsilon"))[0])

    @property
    def weights(self) -> tuple[tuple[int, ...], ...]:
        """Return the integer weights of every report, one row for each place."""
        return _table(self.places, _require.exact(self.epsilon, "epsilon"))[1]

    @property
    def ratio(self) -> Fraction:
        return _ratio(self.weights)

    def matrix(self) -> Floats:
        """Return the probabilities, one row for each place."""
        table = np.array(self.weights, dtype=np.float64)
        return np.asarray(table / table.sum(axis=1, keepdims=True))

    def expected_distance(self) -> Floats:
        """Return, for each place, how far from it its reports are on average."""
        return np.asarray((self.matrix() * _distances(self.places)).sum(axis=1))

    def client(self) -> dict[str, Any]:
        return spec("table", self, ends=self._ends)

    @property
    def _ends(self) -> list[list[int]]:
        return [list(accumulate(row)) for row in self.weights]

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
        """Return the matrix that turns shares of reports to unbiased shares of places."""
        matrix = self.matrix()
        if np.linalg.cond(matrix) > 1e12:
            raise InvalidInput(
                "at this epsilon nearby places cannot be told apart without bias. Use "
                "expectation_maximization(randomizer, reports), or fewer places."
            )
        return np.asarray(np.linalg.inv(matrix.T))

    def variance(self, people: int, shares: Any = None) -> Floats:
        """Return the variance of each estimated share, for these true shares (by default all alike)."""
        _require.integer(people=people, at_least=1)
        f = np.full(self.domain, 1 / self.domain) if shares is None else np.asarray(shares, dtype=np.float64)
        inverse = self._inverse()
        return np.asarray((inverse**2 @ (self.matrix().T @ f) - f) / people)

    def _estimate(self, data: NDArray[Any], event: Event) -> Release:
        people, inverse = len(data), self._inverse()
        shares = inverse @ (np.bincount(data, minlength=self.domain) / people)
        widths = inverse.max(axis=1) - inverse.min(axis=1)

        def error(confidence: float) -> float:
            """Return Hoeffding's bound with a union over the places."""
            return float(
                widths.max() * math.sqrt(math.log(2 * self.domain / (1 - confidence)) / (2 * people))
            )

        return released(shares, event, error)


def grid_places(side: int, other: int | None = None) -> tuple[tuple[int, int], ...]:
    """Return the cells of a grid, row by row."""
    _require.integer(side=side, at_least=2)
    if other is not None:
        _require.integer(other=other, at_least=1)
    return tuple((row, column) for row in range(side) for column in range(side if other is None else other))


def _distances(places: tuple[tuple[Real, ...], ...]) -> Floats:
    """Return all pairwise distances."""
    points = np.array([[float(c) for c in place] for place in places])
    return np.asarray(np.sqrt(((points[:, None] - points[None]) ** 2).sum(axis=2)))


@lru_cache(maxsize=32)
def _table(
    places: tuple[tuple[Real, ...], ...], epsilon: Fraction
) -> tuple[Fraction, tuple[tuple[int, ...], ...]]:
    """Return (rate, weights): the largest rate of a bisection whose integer weights are epsilon-DP, in floats
    first and then exactly."""
    distances = _distances(places)
    target = float(epsilon)

    def spread(rate: float) -> float:
        logs = -rate * distances
        logs = logs - np.log(np.exp(logs).sum(axis=1, keepdims=True))
        return float((logs.max(axis=0) - logs.min(axis=0)).max())

    low = target / (2 * float(distances.max()))
    high = 2 * low
    while spread(high) < target and high < low * 64:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if spread(middle) <= target else (low, middle)
    # rounding to integers may have enlarged the ratio: step back, by growing steps and as long as the rate is
    # positive, until the exact one fits
    for back in range(1, 45):
        rate = Fraction(low) * (1 - Fraction(back * back, 2000))
        weights = _weights(distances, rate)
        if _draws.within(_ratio(weights), epsilon):
            return rate, weights
    raise _require.fail(
        "epsilon", target, f"larger: weights of {_WEIGHT_BITS} bits cannot tell these places apart at it"
    )


def _weights(distances: Floats, rate: Fraction) -> tuple[tuple[int, ...], ...]:
    """Return the integer weights exp(-rate distance), at least 1, one row for each place."""
    table: dict[float, int] = {}
    for distance in np.unique(distances).tolist():
        table[distance] = max(1, exp_neg(rate * Fraction(distance), _WEIGHT_BITS)[0])
    return tuple(tuple(table[d] for d in row) for row in distances.tolist())


def _ratio(weights: tuple[tuple[int, ...], ...]) -> Fraction:
    """Return the largest ratio of two places' probabilities of one report."""
    totals = [sum(row) for row in weights]
    largest = Fraction(1)
    for column in zip(*weights, strict=True):
        ranked = sorted((w / t, i) for i, (w, t) in enumerate(zip(column, totals, strict=True)))
        # floats order up to rounding: the exact extremes are among those within 1e-12 of the ends
        ends = (
            [i for chance, i in ranked if chance <= ranked[0][0] * (1 + 1e-12)],
            [i for chance, i in ranked if chance >= ranked[-1][0] * (1 - 1e-12)],
        )
        lower = min(Fraction(column[i], totals[i]) for i in ends[0])
        upper = max(Fraction(column[i], totals[i]) for i in ends[1])
        largest = max(largest, upper / lower)
    return largest
