"""Two passes over any tree equal dense generalized least squares, to ten digits; nested levels agree from the
top down."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import InvalidInput
from discreet.inference import Tree, hierarchy, measured, top_down

from ..loops import for_each
from ..work import calls
from .oracles import assert_variance, generalized, tree_matrix

LAW = settings(max_examples=80, deadline=None)
seeds = st.integers(0, 2**32 - 1)


def random_tree(rng, n, roots=1):
    """Any shape, in any order of numbers."""
    parents = [-1] * min(roots, n) + [int(rng.integers(0, i)) for i in range(min(roots, n), n)]
    names = rng.permutation(n)
    shuffled = np.full(n, -1)
    for node, parent in enumerate(parents):
        shuffled[names[node]] = names[parent] if parent >= 0 else -1
    return Tree(shuffled)


@LAW
@given(seeds, st.integers(1, 30), st.integers(1, 3))
def test_any_tree_equals_dense_least_squares(seed, n, roots):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, n, roots)
    y, v = rng.normal(0, 100, n), 10.0 ** rng.uniform(-1, 1, n)
    A = tree_matrix(tree.parents.tolist())
    x, covariance = generalized(A, y, v)
    fit = hierarchy(tree, y, v)
    full = A @ covariance @ A.T
    assert np.allclose(fit.values, A @ x, rtol=1e-10, atol=1e-10 * 100)
    assert np.allclose(fit.variances, np.diag(full), rtol=1e-10)
    assert np.allclose(fit.covariance(), full, rtol=1e-9, atol=1e-10)


@LAW
@given(seeds, st.integers(2, 16))
def test_public_totals_and_unmeasured_nodes(seed, n):
    """Variance zero and infinity, against the general solver; what it cannot identify is refused by both."""
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, n)
    v = rng.uniform(0.5, 3, n)
    v[rng.uniform(size=n) < 0.3] = np.inf
    if rng.uniform() < 0.5:
        v[np.flatnonzero(tree.parents == -1)] = 0.0
    A, y = tree_matrix(tree.parents.tolist()), rng.normal(0, 10, n)
    seen = np.isfinite(v)
    try:
        oracle = measured(A[seen], y[seen], v[seen])
    except InvalidInput:
        with pytest.raises(InvalidInput, match="were not measured"):
            hierarchy(tree, np.where(seen, y, np.nan), v)
        return
    fit = hierarchy(tree, np.where(seen, y, np.nan), v)
    assert np.allclose(fit.values, A @ oracle.values, atol=1e-8)
    assert np.allclose(fit.variances, oracle.variance_of(A), atol=1e-8)
    assert np.allclose(fit.covariance(), A @ oracle.covariance() @ A.T, atol=1e-8)


def hay(fanout, height, y):
    """The closed form of Hay et al. 2010, section 4.1, for regular trees with equal variances: heights count
    from 1 at the leaves."""
    k, n = fanout, len(y)
    parents = Tree.regular(fanout=k, height=height).parents
    children = {u: [i for i in range(n) if parents[i] == u] for u in range(n)}
    high = {}
    z = np.array(y)
    for u in reversed(range(n)):
        high[u] = 1 + (high[children[u][0]] if children[u] else 0)
        if children[u]:
            power = k ** high[u]
            own, below = (power - power // k) / (power - 1), (power // k - 1) / (power - 1)
            z[u] = own * y[u] + below * sum(z[c] for c in children[u])
    h = z.copy()
    for u in range(n):
        for c in children[u]:
            h[c] = z[c] + (h[u] - sum(z[d] for d in children[u])) / k
    return h


@pytest.mark.parametrize(("fanout", "height"), [(2, 4), (3, 3), (5, 2)])
def test_regular_trees_give_the_published_closed_form(fanout, height):
    tree = Tree.regular(fanout=fanout, height=height)
    y = np.random.default_rng(0).normal(0, 100, len(tree))
    assert np.allclose(hierarchy(tree, y, 3.0).values, hay(fanout, height, y), rtol=1e-10, atol=1e-9)


def test_the_claimed_variances_are_those_of_simulated_errors():
    rng = np.random.default_rng(11)
    tree = Tree.regular(fanout=2, height=3)
    v = rng.uniform(1, 5, len(tree))
    errors = np.array([hierarchy(tree, rng.normal(0, np.sqrt(v)), v).values for _ in range(1500)])
    claimed = hierarchy(tree, np.zeros(len(tree)), v).variances
    for node in range(len(tree)):
        assert_variance(errors[:, node], claimed[node])
        assert claimed[node] < v[node]
    with pytest.raises(
        AssertionError, match="variance off"
    ):  # a mutant that reports the noise's own variance
        assert_variance(errors[:, 0], v[0])


@LAW
@given(seeds, st.integers(1, 40), st.booleans())
def test_from_the_top_down_everything_agrees_and_nothing_is_negative(seed, n, integers):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, n, 2)
    v = rng.choice([0.5, 1.0, 20.0, np.inf], n, p=[0.3, 0.3, 0.2, 0.2])
    v[tree.parents == -1] = 1.0
    x = top_down(tree, rng.normal(3, 10, n), v, integers=integers)
    assert (x >= 0).all()
    assert np.allclose(tree.sums(x), x, rtol=1e-9, atol=1e-9)
    assert (x.dtype == np.int64) is integers


@LAW
@given(seeds, st.integers(1, 40))
def test_where_nothing_is_negative_top_down_is_least_squares(seed, n):
    rng = np.random.default_rng(seed)
    tree = random_tree(rng, n)
    truth = tree.sums(rng.uniform(500, 900, n))
    v = rng.uniform(0.5, 3, n)
    y = truth + rng.normal(0, np.sqrt(v))
    assert np.allclose(top_down(tree, y, v, integers=False), hierarchy(tree, y, v).values, rtol=1e-9)
    assert np.abs(top_down(tree, y, v) - hierarchy(tree, y, v).values).max() < 1 + n


def test_public_totals_stay_as_they_are():
    x = top_down(Tree([-1, 0, 0, 1, 1]), [10.0, 9.2, -3.0, 2.2, 2.1], [0.0, 1.0, 1.0, 1.0, 1.0])
    assert x[0] == 10
    assert x[0] == x[1] + x[2]
    assert x[1] == x[3] + x[4]


def test_paths_name_the_nodes():
    paths = [("north", "bern"), (), ("north",), ("south",), ("north", "basel")]
    tree = Tree.of_paths(paths)
    assert tree.parents.tolist() == [2, -1, 1, 1, 2]
    assert tree.leaves.tolist() == [0, 3, 4]
    assert tree.sums(np.array([1.0, 0, 0, 5, 2])).tolist() == [1, 8, 3, 5, 2]


@for_each(
    ("call", "says"),
    [
        (lambda: Tree([1, 0]), "nodes 0, 1 hang on a cycle"),
        (lambda: Tree([-1, 1, 0]), "nodes 1 hang on a cycle"),
        (lambda: Tree([-1, 5]), r"parents\[1\] must be -1 or a node below 2, got 5"),
        (lambda: Tree([-1.0]), "whole numbers"),
        (lambda: Tree([]), "whole numbers"),
        (lambda: Tree.of_paths([("a",), ("a",)]), "paths must differ"),
        (lambda: Tree.regular(fanout=0, height=1), "fanout must be an integer of at least 1"),
        (lambda: hierarchy([-1, 0], [1.0, 2.0], 1.0), "tree must be a Tree"),
        (
            lambda: hierarchy(Tree([-1, 0]), [1.0], 1.0),
            r"one entry for each node, got \(1,\)",
        ),
        (lambda: hierarchy(Tree([-1, 0]), [1.0, np.nan], 1.0), r"values\[1\] must be finite"),
        (lambda: hierarchy(Tree([-1, 0]), [1.0, 2.0], [1.0, -2.0]), r"variances\[1\] must be zero or above"),
        (
            lambda: hierarchy(Tree([-1, 0, 0]), [1.0, 2.0, 3.0], 0.0),
            "nodes 0 and all their children are known exactly",
        ),
        (
            lambda: hierarchy(Tree([-1, 0, 0]), [1.0, 2.0, 3.0], [1.0, np.inf, np.inf]),
            "nodes 1, 2 were not measured",
        ),
        (lambda: top_down(Tree([-1, 0]), [1.0, 2.0], np.inf), "nodes 0 were not measured"),
    ],
)
def test_bad_input_is_named(call, says):
    with pytest.raises(InvalidInput, match=says):
        call()


def test_half_a_million_nodes_take_a_few_calls_a_level():
    """Measured: 2,600 in all, well under a second of CPU time; the naive dense solution needs n³."""
    tree = Tree.regular(fanout=2, height=18)
    y = np.random.default_rng(0).normal(size=len(tree))
    fits = []
    assert calls(lambda: fits.append(hierarchy(Tree(tree.parents), y, 1.0))) < 10_000
    assert np.allclose(tree.sums(fits[0].values), fits[0].values, atol=1e-8)


def test_a_root_beyond_64_bits_is_refused_as_such() -> None:
    with pytest.raises(InvalidInput, match="2\\^62"):
        top_down(Tree([-1, 0]), [1e20, 1e20], 1.0)
    assert top_down(Tree([-1, 0]), [1e20, 1e20], 1.0, integers=False).tolist() == [1e20, 1e20]


def test_an_odd_root_beyond_2_to_the_52_stays_as_it_is() -> None:
    """One half more is rounded to the next even number there."""
    root = 2**52 + 1
    assert top_down(Tree([-1]), [float(root)], 0.0).tolist() == [root]


def test_a_parent_of_2_to_the_64_less_1_is_no_root() -> None:
    with pytest.raises(
        InvalidInput, match=r"parents\[0\] must be -1 or a node below 2, got 18446744073709551615"
    ):
        Tree(np.array([2**64 - 1, 0], dtype=np.uint64))
