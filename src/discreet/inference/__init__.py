"""Post-processes released numbers: makes them consistent, non-negative, whole or ordered.

The functions read released numbers and public facts only, never data, so they cost no privacy.

Linear steps (`least_squares`, `measured`, `hierarchy`, `consistent_marginals`, `combine`) are unbiased and
return their variances. Projections (`non_negative`, `with_total`, `isotonic`, `top_down`) never increase the
distance to a truth that satisfies the same constraints, but bias single values, so they return plain arrays.
See docs/workloads.md for when to use what.
"""

from typing import TYPE_CHECKING

from .. import _registry
from .hierarchy import hierarchy as hierarchy
from .least_squares import least_squares as least_squares

if TYPE_CHECKING:
    from .hierarchy import Tree as Tree
    from .hierarchy import round_to_total as round_to_total
    from .hierarchy import top_down as top_down
    from .least_squares import Estimate as Estimate
    from .least_squares import combine as combine
    from .least_squares import measured as measured
    from .marginals import Marginal as Marginal
    from .marginals import consistent_marginals as consistent_marginals
    from .marginals import marginal_matrix as marginal_matrix
    from .projections import isotonic as isotonic
    from .projections import non_negative as non_negative
    from .projections import non_negative_measured as non_negative_measured
    from .projections import with_total as with_total

__all__, __getattr__, __dir__ = _registry.exports(__name__)
