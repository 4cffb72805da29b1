"""Post-processes released numbers: makes them consistent, non-negative, whole or ordered.

The functions read released numbers and public facts only, never data, so they cost no privacy.

Linear steps (`least_squares`, `measured`, `hierarchy`, `consistent_marginals`, `combine`) are unbiased and
return their variances. Projections (`non_negative`, `with_total`, `isotonic`, `top_down`) never increase the
distance to a truth that satisfies the same constraints, but bias single values, so they return plain arrays.
See docs/workloads.md for when to use what.
"""

from .hierarchy import Tree, hierarchy, round_table, round_to_total, round_tree, top_down
from .least_squares import Estimate, Interval, combine, intersect, least_squares, measured
from .marginals import Marginal, consistent_marginals, marginal_matrix
from .projections import Raked, isotonic, non_negative, non_negative_measured, rake, with_total

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
