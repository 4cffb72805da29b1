"""Finds bounds of a column that nobody declared, privately and for a price.

Both mechanisms look at the public ranges between the edges 0, ±smallest, ±2 smallest, ±4 smallest, ...,
±2**levels smallest. A value beyond the last edge counts as lying at it; a missing value (NULL, NaN, infinite)
does not count. The answer is a `Bounds`, to be declared for later mechanisms.
"""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import _require, _round
from .._public import REPLACE, Bounds, Public
from .._registry import described
from .._require import Real
from ..accounting import Event
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns
from .noise import IntegerLaplace
from .protocols import Release, check_source, release, require_numbers
from .statistics import require_rows

# The most doublings of `smallest`: floats have about as many powers of two on either side of 1.
_MAX_LEVELS = 1000


@described("mechanisms.HistogramBounds")
@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramBounds:
    """Releases the hull of those ranges whose noisy number of rows reaches a threshold.

    Guarantee: one discrete Laplace histogram of price epsilon. With probability `confidence` every end of the
               answer is that of a range that holds a row, and every range with more than 2 t rows lies
               inside, t = `threshold` - 1. None is released if no range reaches the threshold.
    Proof:     a row is in one range: the histogram moves by 1 in l1, by 2 under replace. All noise together
               stays within t with probability `confidence` (exact tail); an empty range then stays below t +
               1, one with 2 t + 1 rows reaches it.
    """

    error_in_scores: ClassVar[bool] = True
    public: Public
    column: str
    epsilon: Real
    smallest: Real
    levels: int
    confidence: float = 0.99

    def __post_init__(self) -> None:
        _check(self)
        _require.open_probability(confidence=self.confidence)
        # Refuses what the noise refuses.
        self._noise()

    def _noise(self) -> IntegerLaplace:
        sensitivity = 2 if self.public.neighbors is REPLACE else 1
        return IntegerLaplace.for_epsilon(
            self.epsilon, sensitivity=sensitivity, neighbors=self.public.neighbors
        )

    @property
    def event(self) -> Event:
        return self._noise().event

    def rehearse(self, source: Source) -> None:
        """Refuse a column that the table does not have, or that holds no numbers; no schema need declare
        it."""
        require_numbers(source, self.column)

    @property
    def threshold(self) -> int:
        """Return the noisy number of rows from which on a range is part of the answer."""
        return self._noise().error(self.confidence, entries=2 * (self.levels + 1)) + 1

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        edges = doubling(self.smallest, self.levels)
        counts = np.zeros(len(edges) - 1, np.int64)
        for values in present_values(source, self.column, edges):
            bins = np.clip(np.searchsorted(edges, values, side="right") - 1, 0, len(counts) - 1)
            counts += np.bincount(bins, minlength=len(counts))
        noisy, threshold = self._noise()(counts, entropy=entropy), self.threshold
        reaching = [i for i, n in enumerate(noisy) if n >= threshold]
        value = Bounds(float(edges[reaching[0]]), float(edges[reaching[-1] + 1])) if reaching else None
        ranges_outside = len(counts) - (reaching[-1] + 1 - reaching[0] if reaching else 0)

        def error(confidence: float) -> int:
            """Return an upper bound on the number of rows outside the answer: each range there has a noisy
            count below the threshold."""
            return ranges_outside * (threshold - 1 + self._noise().error(confidence, entries=len(counts)))

        return release(value, event=self.event, entropy=entropy, error=error, error_in_scores=True)


@described("mechanisms.BinarySearchBounds")
@dataclass(frozen=True, slots=True, kw_only=True)
class BinarySearchBounds:
    """Releases the smallest edge on either side beyond which about a fraction `tail` of the rows lies: two
    noisy binary searches.

    Guarantee: 2 ceil(log2(2 * levels + 2)) discrete Laplace comparisons that share epsilon. With probability
               `confidence`, on either side at most tail * n + `error` of the n rows are outside, and the next
               smaller range, if the noise did not make the two ends cross, would leave out at least tail * n
               - `error`.
    Proof:     each comparison asks the sign of tail * #(x <= edge) - (1 - tail) * #(x > edge), times the
               denominator of `tail`, plus noise: before that factor, a row that appears or disappears moves
               it by at most max(tail, 1 - tail), one that is replaced by at most 1. It grows with the edge
               and is zero or more at the last. If all noise stays within t, the edge found passed at >= -t
               and the one before failed at < t.
    """

    error_in_scores: ClassVar[bool] = True
    public: Public
    column: str
    epsilon: Real
    smallest: Real
    levels: int
    tail: Real = Fraction(1, 100)

    def __post_init__(self) -> None:
        _check(self)
        _require.open_probability(tail=self.tail)
        exact = Fraction(repr(self.tail)) if isinstance(self.tail, float) else Fraction(self.tail)
        object.__setattr__(self, "tail", exact)
        if exact.denominator > 10**6:
            raise _require.fail("tail", self.tail, "a fraction with a denominator of at most 10**6")
        if exact >= Fraction(1, 2):
            raise _require.fail("tail", self.tail, "below 1/2: that part is left out on either side")
        # Refuses what the noise refuses.
        self._noise()

    def rehearse(self, source: Source) -> None:
        """Refuse a column that the table does not have, or that holds no numbers; no schema need declare
        it."""
        require_numbers(source, self.column)

    @property
    def steps(self) -> int:
        """Return the number of comparisons on one side: the answer is one of the 2 * levels + 2 edges above
        the lowest."""
        return (2 * self.levels + 1).bit_length()

    def _noise(self) -> IntegerLaplace:
        a, b = Fraction(self.tail).as_integer_ratio()
        sensitivity = b if self.public.neighbors is REPLACE else max(a, b - a)
        each = _require.exact(self.epsilon, "epsilon") / (2 * self.steps)
        return IntegerLaplace.for_epsilon(each, sensitivity=sensitivity, neighbors=self.public.neighbors)

    @property
    def event(self) -> Event:
        return self._noise().event.repeated(2 * self.steps)

    def error(self, confidence: float = 0.95) -> float:
        """Return by how many rows the number outside may differ from tail * n, on both sides at once, with
        probability `confidence`."""
        worst = self._noise().error(confidence, entries=2 * self.steps)
        return _round.up(Fraction(worst, Fraction(self.tail).denominator))

    def __call__(self, source: Source, /, *, entropy: Entropy) -> Release:
        check_source(self.public, source)
        edges = doubling(self.smallest, self.levels)
        # The number of values up to each edge, of all values, and of those below each edge.
        up_to, total, below = np.zeros(len(edges), np.int64), 0, np.zeros(len(edges), np.int64)
        for values in present_values(source, self.column, edges):
            total += len(values)
            up_to += np.cumsum(np.bincount(np.searchsorted(edges, values, side="left"), minlength=len(edges)))
            below += np.cumsum(
                np.bincount(np.searchsorted(edges, values, side="right"), minlength=len(edges) + 1)
            )[:-1]
        high = self._search(up_to, total, entropy)
        low = len(edges) - 1 - self._search((total - below)[::-1], total, entropy)
        # Noise may make the two ends cross.
        low, high = min(low, high), max(low, high)
        # Where both are the same edge, `low` goes down by one: `high` is never the lowest edge.
        low -= low == high
        value = Bounds(float(edges[low]), float(edges[high]))
        return release(value, event=self.event, entropy=entropy, error=self.error, error_in_scores=True)

    def _search(self, covered: NDArray[Any], total: int, entropy: Entropy) -> int:
        """Return the number of the first edge after the lowest at which the noisy comparison passes;
        `covered` counts the rows up to each edge."""
        a, b = Fraction(self.tail).as_integer_ratio()
        low, high, noise = 0, len(covered) - 1, self._noise()
        while high - low > 1:
            middle = (low + high) // 2
            inside = int(covered[middle])
            signed = a * inside - (b - a) * (total - inside)
            passed = int(noise(arrow_columns.as_integers([signed]), entropy=entropy)[0]) >= 0
            low, high = (low, middle) if passed else (middle, high)
        return high


def doubling(smallest: Real, levels: int) -> NDArray[np.float64]:
    """Return the public edges: 0 and ±smallest * 2**i for i up to `levels`, in order.

    >>> doubling(1, 2).tolist()
    [-4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0]
    """
    up = float(smallest) * 2.0 ** np.arange(levels + 1)
    return np.concatenate((-up[::-1], [0.0], up))


def present_values(source: Source, column: str, edges: NDArray[np.float64]) -> Any:
    """Yield the values that are not missing, batch by batch, as floats clipped to the outermost edges."""
    for array in arrow_columns.each(source, column):
        is_present, values = (
            arrow_columns.present(array),
            arrow_columns.numbers(array, column).astype(np.float64),
        )
        yield np.clip(values[is_present], edges[0], edges[-1])


def _check(mechanism: Any) -> None:
    """Refuse a price, a unit of privacy or a grid of edges that the two mechanisms cannot have."""
    require_rows(mechanism.public)
    _require.positive(epsilon=mechanism.epsilon, smallest=mechanism.smallest)
    _require.integer(levels=mechanism.levels, at_least=0)
    if (
        mechanism.levels > _MAX_LEVELS
        or not 1e-300 < _require.float_or_inf(mechanism.smallest) * 2.0**mechanism.levels < 1e300
    ):
        raise _require.fail(
            "smallest, levels",
            (mechanism.smallest, mechanism.levels),
            f"such that levels is at most {_MAX_LEVELS} and smallest * 2**levels between 1e-300 and 1e300",
        )


__all__ = ["BinarySearchBounds", "HistogramBounds"]
