"""The matrix mechanism: many linear questions answered together through a strategy, and noise that is
correlated over time.

    W = matrix.prefix(1024)          # or all_ranges, marginals, product(...), union(...), explicit(rows)
    best = matrix.optimize(W)        # chooses a strategy; nothing is read or spent
    best.rmse, best.bound, best.reason
    mechanism = matrix.answer(public, cells, W, epsilon=1)
    people.ask(mechanism)            # exact integers plus noise; answers by least squares

`cells` are the `Cells` whose rows are counted, `public` the public facts of the table, and `people` an
open dataset. `blt` builds a buffered linear Toeplitz strategy for noise that is correlated over time.
"""

from .binary_tree import BinaryTree
from .buffered import Buffered, blt
from .compound import Marginals, Product, Union, marginals, product, union
from .factorization import Factorization, fourier, greedy_tree, haar, optimize, square_root, tree
from .marginal_strategies import MeasuredMarginals, Residuals
from .mechanism import Attribute, Cells, WorkloadAnswer, WorkloadMechanism, answer
from .minimax import optimal_prefix
from .strategies import (
    Fourier,
    Haar,
    Hierarchical,
    LowerTriangular,
    Optimal,
    PIdentity,
    Strategy,
    WeightedTree,
    sensitivity,
)
from .triangular import Dense, Toeplitz, Triangular
from .workloads import (
    AllRanges,
    Explicit,
    Identity,
    Prefix,
    Total,
    Workload,
    all_ranges,
    explicit,
    identity,
    predicates,
    prefix,
    total,
)

__all__ = [
    "AllRanges",
    "Attribute",
    "BinaryTree",
    "Buffered",
    "Cells",
    "Dense",
    "Explicit",
    "Factorization",
    "Fourier",
    "Haar",
    "Hierarchical",
    "Identity",
    "LowerTriangular",
    "Marginals",
    "MeasuredMarginals",
    "Optimal",
    "PIdentity",
    "Prefix",
    "Product",
    "Residuals",
    "Strategy",
    "Toeplitz",
    "Total",
    "Triangular",
    "Union",
    "WeightedTree",
    "Workload",
    "WorkloadAnswer",
    "WorkloadMechanism",
    "all_ranges",
    "answer",
    "blt",
    "explicit",
    "fourier",
    "greedy_tree",
    "haar",
    "identity",
    "marginals",
    "optimal_prefix",
    "optimize",
    "predicates",
    "prefix",
    "product",
    "sensitivity",
    "square_root",
    "total",
    "tree",
    "union",
]
