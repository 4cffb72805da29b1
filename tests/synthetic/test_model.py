"""The graphical model against the table of all cells, which small domains let us write out."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from discreet.synthetic.estimation import (
    MeasuredTree,
    NoisyTable,
    combine_measurements,
    estimate_total,
    mirror_descent,
)
from discreet.synthetic.generation import allocate_codes, condition, sample
from discreet.synthetic.graphical_model import (
    GraphicalModel,
    JunctionTree,
    junction_tree_cells,
    propagate_beliefs,
    triangulate,
)

SIZES = (3, 2, 4, 2, 3)
GRAPHS = [
    [(0, 1), (1, 2), (2, 3), (3, 4)],
    [(0, 1), (1, 2), (2, 3), (0, 3)],
    [(0, 1, 2), (2, 3, 4), (0, 4)],
    [(0, 1)],
    [(0, 1, 2, 3, 4)],
]


def model_and_joint(graph: list[Any], seed: int = 0, scale: float = 1.0) -> tuple[GraphicalModel, Any]:
    random = np.random.default_rng(seed)
    tree = JunctionTree.of(SIZES, graph)
    potentials = [random.normal(0, scale, tree.shape(c)) for c in tree.cliques]
    tables, log = propagate_beliefs(tree, potentials, 100.0)
    joint = np.zeros(SIZES)
    for clique, potential in zip(tree.cliques, potentials, strict=True):
        joint = joint + potential.reshape([SIZES[a] if a in clique else 1 for a in range(len(SIZES))])
    top = joint.max()
    joint = np.exp(joint - top)
    assert log == pytest.approx(top + np.log(joint.sum()))
    return GraphicalModel(tree, tuple(tables), 100.0), joint * (100.0 / joint.sum())


@pytest.mark.parametrize("graph", GRAPHS)
@pytest.mark.parametrize("scale", [1.0, 300.0])
def test_every_table_of_the_model_is_that_of_the_table_of_all_cells(graph: list[Any], scale: float) -> None:
    model, joint = model_and_joint(graph, scale=scale)
    for size in (1, 2, 3):
        for attributes in itertools.permutations(range(5), size):
            others = tuple(a for a in range(5) if a not in attributes)
            expected = np.transpose(joint.sum(axis=others), np.argsort(np.argsort(attributes)))
            assert np.allclose(model.project(attributes), expected, atol=1e-9)


@pytest.mark.parametrize("graph", GRAPHS)
def test_a_junction_tree_holds_every_clique_and_keeps_each_attribute_connected(graph: list[Any]) -> None:
    tree = JunctionTree.of(SIZES, graph)
    assert all(tree.host(clique) is not None for clique in graph)
    assert tree.cells == junction_tree_cells(SIZES, graph)
    assert sorted(triangulate(SIZES, graph)) == sorted(tree.cliques)
    for a in range(5):
        holding = {i for i, clique in enumerate(tree.cliques) if a in clique}
        joined = [i for i in holding if tree.parents[i] in holding and a in tree.separators[i]]
        assert len(joined) == len(holding) - 1


def test_exact_tables_are_fitted_exactly() -> None:
    _, joint = model_and_joint([(0, 1), (1, 2), (2, 3), (3, 4)], seed=3)
    cliques = [(0, 1), (1, 2), (2, 3), (3, 4)]
    tables = [NoisyTable(c, joint.sum(axis=tuple(a for a in range(5) if a not in c)), 1.0) for c in cliques]
    model = mirror_descent(MeasuredTree(SIZES, tables, 100.0), iterations=2000).model
    for table in tables:
        assert np.abs(model.project(table.clique) - table.values).max() < 0.05
    assert np.abs(model.project((0, 4)) - joint.sum(axis=(1, 2, 3))).max() < 0.1


def test_tables_measured_twice_are_averaged_by_precision_and_the_total_has_the_least_variance() -> None:
    first = NoisyTable((0,), np.array([10.0, 20.0]), 1.0)
    second = NoisyTable((0,), np.array([16.0, 26.0]), 2.0)
    (both,) = combine_measurements([first, second])
    assert both.values.tolist() == [12.0, 22.0]
    assert both.variance == pytest.approx(2 / 3)
    assert estimate_total([first, second]) == pytest.approx(34.0)
    assert estimate_total([NoisyTable((0,), np.array([-5.0, -5.0]), 1.0)]) == 1.0


def test_rows_have_the_tables_of_the_model_and_conditions_hold() -> None:
    model, joint = model_and_joint([(0, 1, 2), (2, 3, 4)], seed=5)
    rows = sample(model, 20_000, np.random.default_rng(1))
    for pair in itertools.combinations(range(5), 2):
        shares = np.zeros((SIZES[pair[0]], SIZES[pair[1]]))
        np.add.at(shares, (rows[pair[0]], rows[pair[1]]), 1 / 20_000)
        # Rounded column by column: far nearer than the 0.01 of independent draws within cliques.
        assert 0.5 * np.abs(shares - model.project(pair) / 100).sum() < 0.01
    conditional = condition(model, {4: 1})
    expected = joint[..., 1].sum(axis=(1, 2, 3)) / joint[..., 1].sum()
    assert np.allclose(conditional.project((0,)) / conditional.total, expected)
    conditional_rows = sample(model, 500, np.random.default_rng(2), {4: 1, 0: 2})
    assert set(conditional_rows[4]) == {1}
    assert set(conditional_rows[0]) == {2}


def test_rows_are_drawn_also_where_a_uniform_number_is_zero() -> None:
    class Zeros:
        def random(self, shape: Any) -> Any:
            return np.zeros(shape)

    codes = allocate_codes(np.array([[0.0, 1.0, 1.0]]), np.zeros(3, np.int64), Zeros())  # type: ignore[arg-type]
    assert sorted(codes) in ([1, 1, 2], [1, 2, 2])
