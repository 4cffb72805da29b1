"""Finds bounds of a column that nobody declared, privately and for a price.

The mechanism looks at the public ranges between the edges 0, ±smallest, ±2 smallest, ±4 smallest, ...,
±2**levels smallest. A value beyond the last edge counts as lying at it; a missing value (NULL, NaN, infinite)
does not count. The answer is a `Bounds`, to be declared for later mechanisms.
"""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._public import REPLACE, Bounds, Public
from .._registry import described
from .._require import OPEN_PROBABILITY, POSITIVE, Real, at_least, at_most
from ..accounting import Event
from ..sampling import Entropy
from ..tables import Source
from . import arrow_columns
from .additive import laplace_noise
from .noise import IntegerLaplace
from .protocols import Mechanism, Release, check_source, release, require_numbers
from .statistics import ROWS

# The most doublings of `smallest`: floats have about as many powers of two on either side of 1.
_MAX_LEVELS = 1000


@described("mechanisms.HistogramBounds")
class HistogramBounds(Mechanism):
    """Releases the hull of those ranges whose noisy number of rows reaches a threshold.

    Guarantee: one discrete Laplace histogram of price epsilon. With probability `confidence` every end of the
               answer is that of a range that holds a row, and every range with more than 2 t rows lies
               inside, t = `threshold` - 1. None is released if no range reaches the threshold.
    Proof:     a row is in one range: the histogram moves by 1 in l1, by 2 under replace. All noise together
               stays within t with probability `confidence` (exact tail); an empty range then stays below t +
               1, one with 2 t + 1 rows reaches it.
    """

    error_in_scores: ClassVar[bool] = True
    public: Annotated[Public, ROWS]
    column: str
    epsilon: Annotated[Real, POSITIVE]
    smallest: Annotated[Real, POSITIVE]
    levels: Annotated[int, at_least(0), at_most(_MAX_LEVELS)]
    confidence: Annotated[float, OPEN_PROBABILITY] = 0.99

    def __post_init__(self) -> None:
        _require.must(
            1e-300 < _require.float_or_inf(self.smallest) * 2.0**self.levels < 1e300,
            "smallest, levels",
            (self.smallest, self.levels),
            "such that smallest * 2**levels is between 1e-300 and 1e300",
        )
        # Refuses what the noise refuses.
        self._noise()

    def _noise(self) -> IntegerLaplace:
        sensitivity = 2 if self.public.neighbors is REPLACE else 1
        return laplace_noise(self.public, self.epsilon, sensitivity)

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
