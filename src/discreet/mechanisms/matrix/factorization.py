"""Computes how good a strategy is for a workload, and chooses the best one, before any privacy is spent.

>>> from discreet.mechanisms.matrix.workloads import prefix
>>> best = optimize(prefix(64))
>>> best.name, round(best.rmse, 3), round(best.bound, 3)
('optimal', 2.1, 2.04)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Annotated

import numpy as np

from ... import _require
from . import strategies, triangular
from .compound import Marginals, Product, Union, unweighted
from .integer import products
from .strategies import (
    MAX_CELLS,
    Fourier,
    Haar,
    Hierarchical,
    LowerTriangular,
    MeasuredMarginals,
    Norm,
    Optimal,
    PIdentity,
    Residuals,
    WeightedTree,
    sensitivity,
)
from .workloads import MAX_ENTRIES, WORKLOAD, Identity, Prefix, Workload

# The most cells of several attributes for which one dense matrix is tried besides products of smaller ones.
# Chosen by hand, not tuned.
DENSE = 512
# The most cells for which a strategy is searched by descent, per norm: "optimal" (l2) with 2,048 cells takes
# a minute or two on one core, "p-identity" (l1) with 1,024 about as long.
SEARCHED = {"l1": 1024, "l2": 2048}
# Rounds of alternating minimization over the factors of a product; more gained less than 0.1% on unions of
# ranges and marginals.
ROUNDS = 4


@_require.checked
@dataclass(frozen=True, slots=True, kw_only=True)
class Factorization:
    """Holds a workload and the strategy through which it is answered: W = B A, with W the workload, A the
    strategy and B from least squares.

    `error` is the sum of the variances of all answers (times squared weights) and `rmse` the root of their
    mean, for a strategy scaled to sensitivity 1 in `norm` and noise of variance 1. Laplace noise for epsilon
    has variance 2 / epsilon², Gaussian noise for rho-zCDP 1 / (2 rho). `candidates`: the name and rmse of
    every strategy that `optimize` compared, in the order in which it tried them.
    """

    workload: Annotated[Workload, WORKLOAD]
    strategy: Annotated[Workload, WORKLOAD]
    norm: Norm = "l2"
    name: str = ""
    candidates: tuple[tuple[str, float], ...] = field(default=(), compare=False)

    def __post_init__(self) -> None:
        _require.that(
            self.workload.cells == self.strategy.cells,
            f"the workload is about {self.workload.cells:,} cells, the strategy about "
            f"{self.strategy.cells:,}.",
        )

    @property
    def error(self) -> float:
        return error_of(self.workload, self.strategy, self.norm)

    @property
    def rmse(self) -> float:
        """The root mean squared error of the answers at sensitivity 1 and noise of variance 1."""
        return math.sqrt(self.error / mass(self.workload))

    @property
    def bound(self) -> float:
        """A lower bound on the rmse of every strategy: the SVD bound, or a smaller one (`lower_bound`)."""
        return math.sqrt(lower_bound(self.workload) / mass(self.workload))

    @property
    def reason(self) -> str:
        """Why this strategy was chosen: the error of each candidate, as a multiple of the smallest."""
        if not self.candidates:
            return f"{self.name or type(self.strategy).__name__}: as it was asked for, rmse {self.rmse:.4g}."
        best = min(value for _, value in self.candidates)
        compared = ", ".join(
            f"{name} {value / best:.2f}" for name, value in sorted(self.candidates, key=lambda c: c[1])
        )
        # Where `lower_bound` returned a smaller bound, it is the SVD bound of a part of the workload.
        within = (
            f"; nothing is more than {self.rmse / self.bound - 1:.1%} better (SVD bound)"
            if self.bound
            else ""
        )
        return f"{self.name}: the smallest error of {len(self.candidates)} strategies ({compared}){within}."

    def __str__(self) -> str:
        return self.reason


def mass(workload: Workload) -> float:
    """Return the sum of the squared weights of all questions: their number, where no weights are given."""
    if isinstance(workload, Union):
        return sum(w**2 * mass(part) for w, part in zip(workload.weights, workload.parts, strict=True))
    if isinstance(workload, Marginals):
        return sum(
            w**2 * workload.questions_of(s) for w, s in zip(workload.weights, workload.sets, strict=True)
        )
    return float(workload.queries)


def error_of(workload: Workload, strategy: Workload, norm: Norm) -> float:
    """Return the sum of the weighted variances at sensitivity 1 and noise of variance 1; infinite where the
    strategy does not determine the answers."""
    if isinstance(strategy, Residuals) and workload == strategy.marginals and norm == "l2":
        return strategy.error()
    if isinstance(strategy, MeasuredMarginals) and workload == strategy.marginals and norm == "l1":
        return strategy.error()
    if isinstance(strategy, Identity):
        # `frobenius` is the squared Frobenius norm: the sum of all squared entries.
        return workload.frobenius
    if isinstance(strategy, Product):
        # The error of a Kronecker product is the product of the errors of its factors.
        return sum(
            w**2
            * math.prod(error_of(f, s, norm) for f, s in zip(part.factors, strategy.factors, strict=True))
            for w, part in products(workload, tuple(f.cells for f in strategy.factors))
        )
    return sensitivity(strategy, norm) ** 2 * strategies.least_squares_error(
        workload.gram(), unweighted(strategy).gram()
    )


def lower_bound(workload: Workload) -> float:
    """Return the SVD bound on the error in either norm, (sum of the workload's singular values)² / cells. For
    large unions, and for marginals of other bases than identities, it is the largest SVD bound of a part; for
    any other workload with too many cells for singular values it is 0."""
    if isinstance(workload, Marginals):
        return _marginal_bound(workload)
    if isinstance(workload, Product):
        return math.prod(lower_bound(factor) for factor in workload.factors)
    if workload.cells > MAX_CELLS:
        # The error of a union is at least that of any of its parts. For other workloads of this size no bound
        # but 0 is known.
        parts = workload.parts if isinstance(workload, Union) else ()
        weights = workload.weights if isinstance(workload, Union) else ()
        return max((w**2 * lower_bound(part) for w, part in zip(weights, parts, strict=True)), default=0.0)
    return _svd(workload)


@lru_cache(maxsize=64)
def _svd(workload: Workload) -> float:
    return strategies.svd_bound(workload.gram())


def _marginal_bound(workload: Marginals) -> float:
    """Return a lower bound on the error for marginals.

    Where the workload along every attribute (`Marginals.bases`) is the identity, it is the error of
    `Residuals`, which attains the SVD bound. Otherwise it is the largest bound of a single table: all tables
    together have at least the error of each.
    """
    if all(isinstance(base, Identity) for base in workload.bases):
        return Residuals(marginals=workload).error()
    tables = [
        w**2 * math.prod(lower_bound(workload.bases[a]) for a in s)
        for w, s in zip(workload.weights, workload.sets, strict=True)
    ]
    return max(tables)


@_require.check_options
def optimize(workload: Annotated[Workload, WORKLOAD], norm: Norm = "l2") -> Factorization:
    """Choose the strategy of least expected error, for Gaussian ("l2") or Laplace ("l1") noise; `reason` says
    why."""
    _require.that(
        workload.frobenius > 0,
        "every question of the workload is zero, or so small that its square is zero in floats, so there "
        "is nothing to measure.",
    )
    return _optimize(workload, norm)


@lru_cache(maxsize=64)
def _optimize(workload: Workload, norm: Norm) -> Factorization:
    """Build every candidate strategy, and return the one of least expected error."""
    tried = []
    for name, build in _candidates(workload, norm):
        strategy = build()
        tried.append((error_of(workload, strategy, norm), name, strategy))
    _require.that(
        tried,
        f"no strategy is known for a workload with {workload.cells:,} cells that is neither a product "
        "nor made of marginals. Write it as products over attributes, or as marginals.",
    )
    # Of errors that differ by rounding alone the first candidate wins, so that the choice is the same on all
    # machines.
    best = min(range(len(tried)), key=lambda i: (tried[i][0] * (1 + 1e-6 * i), i))
    _, name, strategy = tried[best]
    total_mass = mass(workload)
    candidates = tuple((n, math.sqrt(e / total_mass)) for e, n, _ in tried)
    return Factorization(workload=workload, strategy=strategy, norm=norm, name=name, candidates=candidates)


Candidates = Iterator[tuple[str, Callable[[], Workload]]]


def _candidates(workload: Workload, norm: Norm) -> Candidates:
    """Yield the name of each strategy that may be best for a workload, with a function that builds it."""
    if len(workload.domain) > 1 and _is_products(workload):
        yield from _for_products(workload, norm)
    elif workload.cells <= MAX_ENTRIES:
        yield "identity", lambda: Identity(n=workload.cells)
    if isinstance(workload, Marginals):
        yield from _for_marginals(workload, norm)
    if workload.cells <= (MAX_CELLS if len(workload.domain) == 1 else DENSE):
        yield from _dense(workload, norm)


def _for_marginals(workload: Marginals, norm: Norm) -> Candidates:
    if norm == "l2":
        yield "residuals", lambda: Residuals(marginals=workload)
    else:
        yield "marginals", lambda: MeasuredMarginals(marginals=workload)


def _is_products(workload: Workload) -> bool:
    """Return whether a workload is a product, marginals, or a union of products over the same factors."""
    if isinstance(workload, Union):
        kinds = {tuple(f.cells for f in p.factors) for p in workload.parts if isinstance(p, Product)}
        return all(isinstance(p, Product) for p in workload.parts) and len(kinds) == 1
    return isinstance(workload, Product | Marginals)


def _for_products(workload: Workload, norm: Norm) -> Candidates:
    """Yield strategies that are products. Measuring one takes the counts of all cells, so there are none for
    domains too large to be written out."""
    if workload.cells > MAX_ENTRIES:
        return
    first = workload.as_union().parts[0] if isinstance(workload, Marginals) else workload
    first = first.parts[0] if isinstance(first, Union) else first
    assert isinstance(first, Product)
    sizes = tuple(f.cells for f in first.factors)
    yield "identity", lambda: Product(factors=tuple(Identity(n=n) for n in sizes))
    # The integer matrix of each factor is written out when it is measured.
    if max(sizes) <= MAX_CELLS:
        yield "product", lambda: _alternating(workload, sizes, norm)


def _alternating(workload: Workload, sizes: tuple[int, ...], norm: Norm) -> Product:
    """Return a product strategy by OPT_⊗ of HDMM (McKenna, Miklau, Hay & Machanavajjhala 2018).

    The workload is a union of products. Its error is the sum, over these products, of the squared weight
    times the errors of the factors, all multiplied. So the attributes are optimized in turn. The workload of
    an attribute is the union of all products' factors for it; the squared weight of a factor in that union is
    the squared weight of its product times the errors of the product's other factors.
    """
    parts = products(workload, sizes)
    factors: list[Workload] = [Identity(n=n) for n in sizes]
    errors = np.array(
        [[error_of(p.factors[i], factors[i], norm) for i in range(len(sizes))] for _, p in parts]
    )
    weights = np.array([w for w, _ in parts])
    for _ in range(ROUNDS if len(parts) > 1 else 1):
        for i in range(len(sizes)):
            others = weights**2 * np.prod(np.delete(errors, i, axis=1), axis=1)
            # Rounded to six digits, so that the same workload has the same description everywhere.
            factor_weights = tuple(float(f"{math.sqrt(o):.6g}") for o in others / others.max())
            merged_workload = _merge([p.factors[i] for _, p in parts], factor_weights)
            factors[i] = _optimize(merged_workload, norm).strategy
            errors[:, i] = [error_of(p.factors[i], factors[i], norm) for _, p in parts]
    return Product(factors=tuple(factors))


def _merge(parts: list[Workload], weights: tuple[float, ...]) -> Workload:
    """Return the union of workloads, equal ones once with their squared weights added; the workload itself if
    all are equal."""
    squares: dict[Workload, float] = {}
    for part, weight in zip(parts, weights, strict=True):
        squares[part] = squares.get(part, 0.0) + weight**2
    if len(squares) == 1:
        return parts[0]
    return Union(parts=tuple(squares), weights=tuple(math.sqrt(s) for s in squares.values()))


def _dense(workload: Workload, norm: Norm) -> Candidates:
    """Yield the strategies that are one matrix over all cells."""
    n = workload.cells
    if workload.queries * n <= MAX_ENTRIES:
        yield "workload", lambda: unweighted(workload)
    if len(workload.domain) == 1:
        yield "haar", lambda: Haar(n=n)
        for branching in (2, 4, 16):
            if branching <= n:
                yield f"tree of {branching}", lambda b=branching: Hierarchical(n=n, branching=b)  # type: ignore[misc]
    if norm == "l2":
        yield "fourier", lambda: Fourier(workload=workload)
        if n <= SEARCHED["l2"]:
            yield "optimal", lambda: Optimal(workload=workload)
    elif n <= SEARCHED["l1"]:
        yield "p-identity", lambda: PIdentity(workload=workload)


def _or_prefix(n: int, workload: Workload | None) -> Workload:
    return Prefix(n=n) if workload is None else workload


def tree(n: int, branching: int = 2, *, workload: Workload | None = None, norm: Norm = "l2") -> Factorization:
    """Return the factorization of a workload (prefix sums unless given) through hierarchical counts."""
    return Factorization(
        workload=_or_prefix(n, workload),
        strategy=Hierarchical(n=n, branching=branching),
        norm=norm,
        name=f"tree of {branching}",
    )


def greedy_tree(
    n: int, branching: int = 2, *, workload: Workload | None = None, norm: Norm = "l2"
) -> Factorization:
    """Return the factorization of a workload (prefix sums unless given) through a tree with greedily chosen
    weights of its levels."""
    answered = _or_prefix(n, workload)
    return Factorization(
        workload=answered,
        strategy=WeightedTree(workload=answered, norm=norm, branching=branching),
        norm=norm,
        name=f"greedy tree of {branching}",
    )


def haar(n: int, *, workload: Workload | None = None, norm: Norm = "l2") -> Factorization:
    """Return the factorization of a workload (prefix sums unless given) through Haar wavelets: Privelet."""
    return Factorization(workload=_or_prefix(n, workload), strategy=Haar(n=n), norm=norm, name="haar")


def square_root(n: int, bands: int | None = None, *, workload: Workload | None = None) -> Factorization:
    """Return the factorization of a workload (prefix sums unless given) through the square root of the matrix
    of prefix sums, which streams use too (`triangular.square_root`)."""
    strategy = LowerTriangular(strategy=triangular.square_root(n, bands), n=n)
    return Factorization(workload=_or_prefix(n, workload), strategy=strategy, name="square root")
