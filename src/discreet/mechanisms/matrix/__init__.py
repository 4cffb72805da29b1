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

from typing import TYPE_CHECKING

from ... import _registry

if TYPE_CHECKING:
    from .compound import marginals as marginals
    from .compound import product as product
    from .compound import union as union
    from .factorization import greedy_tree as greedy_tree
    from .factorization import haar as haar
    from .factorization import optimize as optimize
    from .factorization import square_root as square_root
    from .factorization import tree as tree
    from .matrix_mechanism import Attribute as Attribute
    from .matrix_mechanism import Cells as Cells
    from .matrix_mechanism import answer as answer
    from .strategies import Haar as Haar
    from .strategies import Strategy as Strategy
    from .strategies import sensitivity as sensitivity
    from .triangular import BinaryTree as BinaryTree
    from .triangular import Dense as Dense
    from .triangular import Toeplitz as Toeplitz
    from .triangular import blt as blt
    from .workloads import Workload as Workload
    from .workloads import all_ranges as all_ranges
    from .workloads import explicit as explicit
    from .workloads import identity as identity
    from .workloads import predicates as predicates
    from .workloads import prefix as prefix
    from .workloads import total as total

__all__, __getattr__, __dir__ = _registry.exports(__name__)
