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

from .compound import marginals, product, union
from .factorization import greedy_tree, haar, optimize, square_root, tree
from .matrix_mechanism import Attribute, Cells, answer
from .strategies import Haar, Strategy, sensitivity
from .triangular import BinaryTree, Dense, Toeplitz, blt
from .workloads import Workload, all_ranges, explicit, identity, predicates, prefix, total

__all__ = [
    "Attribute",
    "BinaryTree",
    "Cells",
    "Dense",
    "Haar",
    "Strategy",
    "Toeplitz",
    "Workload",
    "all_ranges",
    "answer",
    "blt",
    "explicit",
    "greedy_tree",
    "haar",
    "identity",
    "marginals",
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
