"""Answers made to agree: sums match, errors shrink as said, nothing is spent, and what cannot be added up is
refused."""

import numpy as np
import pytest

import discreet as dp
from discreet.mechanisms import IntegerLaplace
from discreet.query import Query, consistent
from discreet.sampling import SeededEntropy
from discreet.tables import Memory

PUBLIC = dp.Public(
    schema={"a": dp.Categories(["x", "y", "z"]), "b": dp.Categories([1, 2]), "v": dp.Bounds(0, 10)}, table="t"
)
ROWS = Memory({"a": ["x", "y", "z", "x"] * 25, "b": [1, 2] * 50, "v": [1.0, 2.0] * 50}, PUBLIC)
TOTAL, BY_A = "SELECT COUNT(*) AS n FROM t", "SELECT a, COUNT(*) AS n FROM t GROUP BY a"
BY_B, CELLS = "SELECT b, COUNT(*) AS n FROM t GROUP BY b", "SELECT b, a, COUNT(*) AS n FROM t GROUP BY b, a"


def ask(sql, seed, epsilon=0.1):
    return Query(sql=sql, public=PUBLIC, epsilon=epsilon)(ROWS, entropy=SeededEntropy(seed)).value


def sums(answer, key):
    found = {}
    for k, n in zip(answer[key], answer["n"], strict=True):
        found[k] = found.get(k, 0) + n
    return found


def test_totals_are_sums_of_groups_and_levels_agree():
    raw = [ask(sql, i) for i, sql in enumerate((TOTAL, BY_A, BY_B, CELLS))]
    total, by_a, by_b, cells = consistent(raw, "n")
    assert sum(raw[1]["n"]) != raw[0].value
    for answer in (by_a, by_b, cells):
        assert sum(answer["n"]) == pytest.approx(total.value)
    assert sums(cells, "a") == pytest.approx(dict(zip(by_a["a"], by_a["n"], strict=True)))
    assert sums(cells, "b") == pytest.approx(dict(zip(by_b["b"], by_b["n"], strict=True)))
    for before, after in zip(raw, (total, by_a, by_b, cells), strict=True):
        assert after.columns == before.columns
        assert after.event == before.event
        assert max(after.error(0.9)["n"]) < max(before.error(0.9)["n"])
        assert "at no cost" in after.plan[-1]


@pytest.mark.slow
def test_the_stated_deviation_is_the_simulated_one():
    errors = []
    for seed in range(250):
        total, _ = consistent([ask(TOTAL, 2 * seed, 1), ask(BY_A, 2 * seed + 1, 1)], "n")
        errors.append(total.value - 100)
    stated = total.deviations[0][0]
    assert np.std(errors) == pytest.approx(
        stated, rel=0.35
    )  # 250 draws: more than four deviations of the estimate
    assert stated < ask(TOTAL, 0, 1).deviations[0][0]


def test_whole_counts_are_never_negative_and_nested():
    for seed in range(20):
        raw = [ask(sql, 10 * seed + i, 0.02) for i, sql in enumerate((CELLS, TOTAL, BY_A))]
        cells, total, by_a = consistent(raw, "n", counts=True)
        assert all(isinstance(n, int) and n >= 0 for n in (*cells["n"], *by_a["n"], total.value))
        assert sum(by_a["n"]) == total.value
        assert sums(cells, "a") == dict(zip(by_a["a"], by_a["n"], strict=True))


def test_one_answer_alone_becomes_whole():
    (answer,) = consistent([ask(BY_A, 3)], "n", counts=True)
    assert all(isinstance(n, int) and n >= 0 for n in answer["n"])


def test_sums_agree_too():
    raw = [ask("SELECT SUM(v) AS n FROM t", 1), ask("SELECT a, SUM(v) AS n FROM t GROUP BY a", 2)]
    total, by_a = consistent(raw, "n")
    assert sum(by_a["n"]) == pytest.approx(total.value)


def test_what_cannot_be_added_up_is_refused():
    with pytest.raises(dp.InvalidInput, match="at least one"):
        consistent([], "n")
    with pytest.raises(dp.InvalidInput, match="'m' is not a single noisy"):
        consistent([ask(BY_A, 1)], "m")
    with pytest.raises(dp.InvalidInput, match="'v' is not a single noisy"):
        consistent([ask("SELECT a, AVG(v) AS v FROM t GROUP BY a", 1)], "v")
    with pytest.raises(dp.InvalidInput, match="not all there"):
        consistent([ask("SELECT a, b, COUNT(*) AS n FROM t GROUP BY a, b LIMIT 3", 1)], "n")
    with pytest.raises(dp.InvalidInput, match="nested"):
        consistent([ask(BY_A, 1), ask(BY_B, 2)], "n", counts=True)


def test_answers_with_other_groups_are_not_taken_for_each_other():
    """Positions alone would average the count of 'y' in one answer with that of 'z' in the other."""
    public = dp.Public(schema={"a": dp.Text()}, table="t")
    answers = [
        Query(sql=BY_A, public=public, epsilon=50, delta=0.01)(
            Memory({"a": ["x"] * 30 + [last] * 90}, public), entropy=SeededEntropy(1)
        ).value
        for last in ("y", "z")
    ]
    for counts in (False, True):
        with pytest.raises(dp.InvalidInput, match=r"different groups by 'a': \['y', 'z'\]"):
            consistent(answers, "n", counts=counts)


def test_intervals_of_whole_counts_are_as_wide_as_their_laplace_noise():
    raw = ask(BY_A, 1)
    (whole,) = consistent([raw], "n", counts=True)
    assert [type(noise) for noise in whole.combined] == [IntegerLaplace]
    assert whole.error(0.95)["n"][0] == pytest.approx(raw.error(0.95)["n"][0], rel=0.05)
