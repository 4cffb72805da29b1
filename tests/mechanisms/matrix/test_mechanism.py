"""The workload mechanism: integers whose sensitivity holds after rounding, answers that are as good as
predicted."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest

from discreet import (
    ADD_REMOVE,
    REPLACE,
    Bounds,
    Categories,
    InvalidInput,
    PrivateFact,
    Public,
    Unit,
    Unsupported,
    inference,
)
from discreet.mechanisms import IntegerLaplace, matrix
from discreet.mechanisms.matrix.integer import DenseGrid, SparseCellCounts, on_grid
from discreet.mechanisms.matrix.matrix_mechanism import WorkloadMechanism
from discreet.mechanisms.matrix.strategies import optimal_prefix
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import Memory

from ...work import calls

FOUR = matrix.explicit([[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 1, 1]], over=(2, 2))
PUBLIC = Public(
    schema={"sex": Categories(["m", "f"]), "light": Categories(["yes", "no"]), "age": Bounds(0, 8)}
)
BY_BOTH = matrix.Cells.of("sex", "light")
PEOPLE = Memory(
    {"sex": ["m", "f", "m", None, "m"], "light": ["yes", "no", "no", "yes", "no"], "age": [1, 2, 3, 4, 5]},
    PUBLIC,
)


@pytest.mark.parametrize("epsilon", [Fraction(1, 100), 0.1])
def test_the_lecture_four_counts_for_12_instead_of_128(epsilon: Any) -> None:
    """Total squared error: 12 / epsilon², where four Laplace answers at epsilon / 4 each have 128 /
    epsilon²."""
    together = matrix.answer(PUBLIC, BY_BOTH, FOUR, epsilon=epsilon)
    assert 4 * together.rmse**2 * float(epsilon) ** 2 == pytest.approx(12, rel=2e-3)
    alone = matrix.factorization.Factorization(workload=FOUR, strategy=FOUR, norm="l1")
    assert alone.error * 2 == pytest.approx(4 * 2 * 2**2)
    one_by_one = IntegerLaplace.for_epsilon(Fraction(epsilon) / 4).mean_squared_error * 4
    assert one_by_one * float(epsilon) ** 2 == pytest.approx(128, rel=2e-3)


def test_generalized_sensitivity_of_the_lecture() -> None:
    """q1 and q2 are disjoint: 1. q1 and q1 + q2: 2. All four counts: 2."""
    assert matrix.sensitivity(matrix.explicit([[1, 0], [0, 1]]), "l1") == 1
    assert matrix.sensitivity(matrix.explicit([[1, 0], [1, 1]]), "l1") == 2
    assert matrix.sensitivity(FOUR, "l1") == 2
    assert matrix.sensitivity(FOUR, "l2") == pytest.approx(math.sqrt(2))


STRATEGIES: list[tuple[matrix.Workload, matrix.Workload, Any]] = [
    (matrix.prefix(9), matrix.strategies.Optimal(workload=matrix.prefix(9)), "l2"),
    (matrix.prefix(9), matrix.strategies.PIdentity(workload=matrix.prefix(9), p=2), "l1"),
    (matrix.prefix(9), matrix.Haar(n=9), "l1"),
    (matrix.prefix(9), matrix.workloads.Identity(n=9), "l2"),
    (
        matrix.product(matrix.prefix(3), matrix.identity(3)),
        matrix.product(matrix.strategies.Optimal(workload=matrix.prefix(3)), matrix.workloads.Identity(n=3)),
        "l2",
    ),
    (
        matrix.marginals([2, 3, 3], ways=2),
        matrix.strategies.Residuals(marginals=matrix.marginals([2, 3, 3], ways=2)),
        "l2",
    ),
    (
        matrix.marginals([2, 4], [(1,), (0, 1)], bases={1: matrix.prefix(4)}),
        matrix.strategies.Residuals(
            marginals=matrix.marginals([2, 4], [(1,), (0, 1)], bases={1: matrix.prefix(4)})
        ),
        "l2",
    ),
    (
        matrix.marginals([2, 3], [(0,), (0, 1)]),
        matrix.strategies.MeasuredMarginals(marginals=matrix.marginals([2, 3], [(0,), (0, 1)])),
        "l1",
    ),
]
each = pytest.mark.parametrize(("workload", "strategy", "norm"), STRATEGIES, ids=lambda v: type(v).__name__)


def counts(domain: tuple[int, ...], x: Any) -> SparseCellCounts:
    places = np.unravel_index(np.arange(len(x)), domain)
    return SparseCellCounts(domain, tuple(places), np.asarray(x, np.int64))


@each
def test_no_unit_moves_the_integers_by_more_than_is_claimed(workload: Any, strategy: Any, norm: Any) -> None:
    """Every cell, and every pair that a replaced row may exchange: exact in Python integers."""
    grid, n = on_grid(strategy, norm), workload.cells
    base = np.random.default_rng(1).integers(0, 50, n)
    from discreet.mechanisms import Sensitivity

    one = grid.sensitivity(Sensitivity(linf=1), norm)
    two = grid.sensitivity(Sensitivity(linf=1, l0=2), norm, exchanged=True)
    three = grid.sensitivity(Sensitivity(linf=3), norm)
    here = [int(v) for v in grid.measure(counts(workload.domain, base))]

    def moved(x: Any) -> list[int]:
        return [int(a) - b for a, b in zip(grid.measure(counts(workload.domain, x)), here, strict=True)]

    worst = 0
    for i in range(n):
        change = moved(base + np.eye(n, dtype=np.int64)[i])
        size = sum(abs(c) for c in change) if norm == "l1" else sum(c * c for c in change)
        worst = max(worst, size)
        assert size <= (one.l1 if norm == "l1" else one.l2_squared)
        many = moved(base + 3 * np.eye(n, dtype=np.int64)[i])
        assert sum(c * c for c in many) <= three.l2_squared
        assert max(abs(c) for c in many) <= three.linf
    # not pessimistic by more than the grid: half the sensitivity would be caught
    claimed = one.l1 if norm == "l1" else one.l2_squared
    assert worst > 0.98 * claimed
    for i, j in itertools.combinations(range(n), 2):
        change = moved(base + np.eye(n, dtype=np.int64)[i] - np.eye(n, dtype=np.int64)[j])
        assert sum(abs(c) for c in change) <= two.l1 or norm == "l2"
        assert sum(c * c for c in change) <= two.l2_squared


@each
def test_without_noise_answers_are_exact_and_variances_are_those_of_least_squares(
    workload: Any, strategy: Any, norm: Any
) -> None:
    grid = on_grid(strategy, norm)
    x = np.random.default_rng(2).integers(0, 10**9, workload.cells)
    np.testing.assert_allclose(
        grid.fit(workload, grid.measure(counts(workload.domain, x))).answers,
        workload.times(x),
        rtol=1e-9,
        atol=1e-3,
    )
    variances = grid.variances(workload)
    # the answers are linear in the measurements: their variances are the squared rows of that map
    units = np.eye(grid.rows) if grid.rows <= 60 else np.eye(grid.rows)[:0]
    if len(units):
        rows = np.array([grid.fit(workload, unit).answers for unit in units])
        np.testing.assert_allclose((rows**2).sum(axis=0), variances, rtol=1e-6)
    assert grid.error(workload) == pytest.approx(variances.sum(), rel=1e-6)


def test_counts_beyond_64_bits_neither_wrap_nor_raise() -> None:
    grid = on_grid(matrix.strategies.Optimal(workload=matrix.prefix(4)), "l2")
    huge = counts((4,), [2**62, 2**62 - 1, 0, 5])
    exact = [
        sum(int(a) * int(c) for a, c in zip(row, [2**62, 2**62 - 1, 0, 5], strict=True))
        for row in grid.matrix.tolist()
    ]  # type: ignore[attr-defined]
    assert [int(v) for v in grid.measure(huge)] == exact


@pytest.mark.parametrize("price", [{"epsilon": 0.5}, {"rho": 0.1}, {"epsilon": 0.5, "delta": 1e-6}])
def test_measured_error_is_within_five_percent_of_predicted(price: dict[str, Any]) -> None:
    """600 runs of 36 answers with a fixed seed. A tenth more noise would be noticed."""
    public = Public(schema={"age": Bounds(0, 8)})
    rng = np.random.default_rng(1)
    people = Memory({"age": rng.uniform(0, 8, 500).tolist()}, public)
    cells = matrix.Cells.of(matrix.Attribute(column="age", edges=tuple(range(9))))
    asked = matrix.answer(public, cells, matrix.all_ranges(8), **price)
    truth = matrix.all_ranges(8).times(cells(people))
    entropy = SeededEntropy(5)
    errors = [asked(people, entropy=entropy).value.answers - truth for _ in range(600)]
    assert float(np.sqrt(np.mean(np.square(errors)))) == pytest.approx(asked.rmse, rel=0.05)
    spread = np.sqrt(np.mean(np.square(errors), axis=0)) / asked.deviations
    assert 0.8 < spread.min() <= spread.max() < 1.2
    low, high = zip(*(asked(people, entropy=entropy).value.interval(0.9) for _ in range(60)), strict=True)
    held = np.mean([(a <= truth) & (truth <= b) for a, b in zip(low, high, strict=True)])
    assert held >= 0.85


def test_projection_theorem_in_the_norm_of_the_noise() -> None:
    """The nearest non-negative cells are never further from the truth than the unconstrained estimate, as
    measured; each draw."""
    truth = np.array([0, 0, 3, 1, 0, 0, 2, 0])
    public = Public(schema={"age": Bounds(0, 8)})
    people = Memory({"age": np.repeat(np.arange(8) + 0.5, truth).tolist()}, public)
    cells = matrix.Cells.of(matrix.Attribute(column="age", edges=tuple(range(9))))
    asked = matrix.answer(
        public,
        cells,
        matrix.identity(8),
        epsilon=0.5,
        strategy=matrix.tree(8, workload=matrix.identity(8), norm="l1"),
    )
    A = matrix.strategies.Hierarchical(n=8).dense()
    entropy, better = SeededEntropy(6), 0
    for _ in range(60):
        answer = asked(people, entropy=entropy).value
        before, after = (
            float(np.linalg.norm(A @ (x - truth))) for x in (answer.answers, answer.non_negative())
        )
        assert after <= before + 1e-6
        better += after < before
        assert (answer.non_negative() >= 0).all()
        whole = answer.integral()
        assert (whole == np.rint(whole)).all()
        assert (whole >= 0).all()
    assert better > 50


def test_isotonic_regression_of_a_million_values_takes_no_loop() -> None:
    values = np.sort(np.random.default_rng(1).normal(size=1_000_000)) + np.random.default_rng(2).normal(
        size=1_000_000
    )
    fits: list[Any] = []
    assert calls(lambda: fits.append(inference.isotonic(values))) < 1000
    assert (np.diff(fits[0]) >= 0).all()


def test_replace_costs_the_distance_of_two_columns_not_twice_a_norm() -> None:
    public = Public(schema=PUBLIC.schema, neighbors=REPLACE, size=5)
    here = matrix.answer(public, BY_BOTH, matrix.product(matrix.identity(2), matrix.identity(2)), rho=1)
    assert here.noise.l2_squared == 2  # type: ignore[union-attr]
    assert (
        matrix.answer(
            PUBLIC, BY_BOTH, matrix.product(matrix.identity(2), matrix.identity(2)), rho=1
        ).noise.l2_squared
        == 1
    )  # type: ignore[union-attr]


def test_noise_that_covers_less_and_keys_that_nobody_declared_are_refused() -> None:
    good = matrix.answer(PUBLIC, BY_BOTH, FOUR, epsilon=1)
    fields = {name: getattr(good, name) for name in ("public", "cells", "workload", "norm")}
    with pytest.raises(InvalidInput, match="more than the noise is priced for"):
        WorkloadMechanism(**fields, strategy=FOUR, noise=IntegerLaplace.for_epsilon(1))
    with pytest.raises(PrivateFact, match="nothing is declared of column"):
        matrix.answer(PUBLIC, matrix.Cells.of("sex", "town"), FOUR, epsilon=1)
    with pytest.raises(Unsupported, match="the unit of privacy is all rows of"):
        matrix.answer(Public(schema=PUBLIC.schema, unit=Unit("who")), BY_BOTH, FOUR, epsilon=1)
    with pytest.raises(InvalidInput, match="does not determine"):
        matrix.answer(
            PUBLIC,
            BY_BOTH,
            FOUR,
            epsilon=1,
            strategy=matrix.factorization.Factorization(
                workload=FOUR, strategy=matrix.workloads.Total(n=4), norm="l1"
            ),
        )
    for wrong in ({}, {"epsilon": 1, "rho": 1}, {"epsilon": 0}, {"rho": -1}, {"epsilon": math.inf}):
        with pytest.raises(InvalidInput, match=r"give either epsilon|must be"):
            matrix.answer(PUBLIC, BY_BOTH, FOUR, **wrong)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="cells are 2 by 2"):
        matrix.answer(PUBLIC, BY_BOTH, matrix.prefix(5), epsilon=1)


def test_rows_outside_all_declared_values_are_in_no_cell() -> None:
    assert BY_BOTH(PEOPLE).tolist() == [1, 2, 0, 1]
    twice = matrix.Cells.of("sex", "sex")(PEOPLE)
    assert twice.tolist() == [3, 0, 0, 1]
    assert BY_BOTH.sensitivity(PUBLIC).l1 == 1
    assert PUBLIC.neighbors is ADD_REMOVE
    assert matrix.answer(PUBLIC, BY_BOTH, FOUR, epsilon=1)(PEOPLE, entropy=Entropy()).value.answers.shape == (
        4,
    )


@pytest.mark.parametrize(("norm", "tiny"), [("l1", 5e-324), ("l2", 1e-200)])
def test_a_strategy_of_tiny_numbers_is_measured_as_what_it_is(norm: Any, tiny: float) -> None:
    """One over its length is not a float: entries became the least 64-bit integer, whose absolute value is
    negative, so that no sensitivity was seen; with noise for a sensitivity of 1 the answer told the parity."""
    strategy = matrix.explicit([[tiny, tiny]])
    assert np.array_equal(on_grid(strategy, norm).matrix, on_grid(matrix.explicit([[0.5, 0.5]]), norm).matrix)
    with pytest.raises(InvalidInput, match="more than the noise is priced for"):
        WorkloadMechanism(
            public=PUBLIC,
            cells=matrix.Cells.of("sex"),
            workload=matrix.total(2),
            strategy=strategy,
            norm=norm,
            noise=IntegerLaplace(scale=Fraction(1)),
        )


def test_no_entry_of_a_grid_may_be_the_least_64_bit_integer() -> None:
    with pytest.raises(InvalidInput, match="9,223,372,036,854,775,808"):
        DenseGrid(np.full((1, 2), np.iinfo(np.int64).min))


def test_products_with_more_values_than_one_matrix_may_have_are_answered_cell_by_cell() -> None:
    """A factor of so many values would have to be written out; such a plan was chosen, and refused afterwards."""
    public = Public(schema={"a": Categories(list(range(5000))), "b": Categories(["x", "y"])})
    workload = matrix.product(matrix.identity(5000), matrix.prefix(2))
    plan = matrix.answer(public, matrix.Cells.of("a", "b"), workload, rho=1)
    assert plan.rmse == pytest.approx(plan.noise.standard_deviation * math.sqrt(1.5))


def test_marginals_of_differences_alone_do_not_measure_the_total() -> None:
    """Of counts by sex only the difference is asked: the total is in no answer, and its variance was 1 / 0."""
    workload = matrix.marginals([2], [(0,)], bases={0: matrix.explicit([[1, -1]])})
    asked = matrix.answer(PUBLIC, matrix.Cells.of("sex"), workload, rho=1e12)
    assert asked(PEOPLE, entropy=SeededEntropy(1)).value.answers == pytest.approx([2], abs=1e-3)
    assert asked.deviations == pytest.approx(asked.rmse)


def test_edges_given_as_a_list_are_those_of_a_tuple() -> None:
    by_age = matrix.Attribute(column="age", edges=[0, 4, 8])  # type: ignore[arg-type]
    assert by_age == matrix.Attribute(column="age", edges=(0, 4, 8))
    assert len({by_age}) == 1


def test_marginals_over_one_attribute_count_all_cells_in_order() -> None:
    # The residual strategy measures tables by attribute: of cells by two attributes it took the first alone,
    # and the answers failed after the charge.
    workload = matrix.marginals([4], sets=[(), (0,)], weights=[30.0, 1.0])
    mechanism = matrix.answer(PUBLIC, BY_BOTH, workload, rho=1e6)
    assert isinstance(mechanism.strategy, matrix.strategies.Residuals)
    answers = mechanism(PEOPLE, entropy=SeededEntropy(1)).value.answers
    assert np.allclose(answers, [4, 1, 2, 0, 1], atol=0.5)


@pytest.mark.parametrize(
    ("build", "words"),
    [
        (lambda: matrix.answer(PUBLIC, "sex", FOUR, epsilon=1), "cells must be made by"),
        (lambda: matrix.answer(PUBLIC, BY_BOTH, "FOUR", epsilon=1), "workload must be"),
        (
            lambda: matrix.answer(PUBLIC, BY_BOTH, FOUR, epsilon=1, strategy=matrix.Haar(n=4)),
            "strategy must be a Factorization",
        ),
        (
            lambda: matrix.factorization.Factorization(workload=FOUR, strategy="haar"),
            "strategy must be a workload",
        ),
        (lambda: matrix.explicit([[1j, 2]]), "rows of numbers"),
        (lambda: matrix.explicit([[1, 2]], over=2), "over must be a list"),
        (lambda: matrix.predicates([[True], [True, False]]), "one length"),
        (lambda: matrix.union(FOUR, weights=None), "weights must be a list"),
        (lambda: matrix.optimize(matrix.explicit([[1e-200, 0]])), "so small that its square"),
        (lambda: optimal_prefix(4, gap=math.nan), "gap must be"),
        (lambda: matrix.blt(1 << 60), "steps must be at most 281,474,976,710,656"),
        (lambda: matrix.Toeplitz(coefficients=(1e200,)), "scale it"),
    ],
)
def test_bad_arguments_are_refused_by_name(build: Any, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        build()
