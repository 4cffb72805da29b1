"""Post-processes released numbers: makes them consistent, non-negative, whole or ordered.

The functions read released numbers and public facts only, never data, so they cost no privacy.

Linear steps (`least_squares`, `measured`, `hierarchy`, `consistent_marginals`, `combine`) are unbiased and
return their variances. Projections (`non_negative`, `with_total`, `isotonic`, `top_down`) never increase the
distance to a truth that satisfies the same constraints, but bias single values, so they return plain arrays.
See docs/inference.md for when to use what.
"""

from .combine import Interval, combine, intersect
from .estimate import Estimate
from .hierarchy import hierarchy, top_down
from .least_squares import least_squares, measured
from .marginals import Marginal, consistent_marginals, marginal_matrix
from .projections import isotonic, non_negative, non_negative_measured, with_total
from .raking import Raked, rake
from .rounding import round_table, round_to_total, round_tree
from .tree import Tree

__all__ = [
    "Estimate",
    "Interval",
    "Marginal",
    "Raked",
    "Tree",
    "combine",
    "consistent_marginals",
    "hierarchy",
    "intersect",
    "isotonic",
    "least_squares",
    "marginal_matrix",
    "measured",
    "non_negative",
    "non_negative_measured",
    "rake",
    "round_table",
    "round_to_total",
    "round_tree",
    "top_down",
    "with_total",
]
