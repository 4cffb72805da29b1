"""Intervals of deviations and of expressions over aggregates hold at least as often as they say, on small
tables too."""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from scipy.stats import beta

from discreet import Bounds, Categories, Public, Unit
from discreet.query import Answer, Query
from discreet.sampling import SeededEntropy
from discreet.tables import connect

RANDOM = np.random.default_rng(1)
DATA = {"x": RANDOM.uniform(0, 10, 60), "g": RANDOM.choice(["a", "b", "c"], 60, p=[0.8, 0.15, 0.05])}
PUBLIC = Public(schema={"x": Bounds(0, 10), "g": Categories(["a", "b", "c"])}, table="p")
SOURCE = connect(DATA, PUBLIC)
AGGREGATES = [
    "VAR_POP(x)",
    "VAR_SAMP(x)",
    "STDDEV(x)",
    "SUM(x) / COUNT(*)",
    "COUNT(*) FILTER (WHERE x > 5) / NULLIF(COUNT(*), 0)",
    "COUNT(*) * 100",
    "AVG(x) - COUNT(*)",
    "LN(COUNT(*))",
    "CAST(COUNT(*) AS INTEGER)",
    "CASE WHEN COUNT(*) > 20 THEN AVG(x) ELSE 0 END",
    "ROUND(AVG(x), 0)",
]


def missed(noise, delta, aggregates, runs, group="g", confidence=0.9):
    """How often the true value is outside, of how many intervals, by aggregate."""
    columns = ", ".join(f"{a} AS v{i}" for i, a in enumerate(aggregates))
    sql = f"SELECT {group + ', ' if group else ''}{columns} FROM p" + (f" GROUP BY {group}" if group else "")
    query = Query(sql=sql, public=PUBLIC, epsilon=8, delta=delta, noise=noise)
    exact, truth = query._measure(SOURCE, 1), query._without_noise(SOURCE, 1)
    entropy, first = SeededEntropy(11), 1 if group else 0
    out, all_ = np.zeros(len(aggregates), int), np.zeros(len(aggregates), int)
    for _ in range(runs):
        found = query._noisy(exact, entropy).interval(confidence)
        for i in range(len(aggregates)):
            for row, ends in zip(truth, found[f"v{i}"], strict=True):
                if ends is not None and row[first + i] is not None:
                    all_[i] += 1
                    out[i] += not ends[0] <= row[first + i] <= ends[1]
    return out, all_


@pytest.mark.parametrize(
    ("noise", "delta", "confidence"),
    [("laplace", 0.0, 0.999), pytest.param("gaussian", 1e-6, 0.9, marks=pytest.mark.slow)],
)
def test_intervals_hold_as_often_as_they_say(noise, delta, confidence):
    """Clopper-Pearson: a false alarm in 1e9."""
    for out, all_ in zip(*missed(noise, delta, AGGREGATES, 150, confidence=confidence), strict=True):
        assert all_ >= 100
        assert beta.ppf(1e-9, max(out, 1), all_ - max(out, 1) + 1) <= 1 - confidence


def test_the_check_has_teeth(monkeypatch):
    """Normal approximations, which these intervals were before, miss too often where counts are small."""

    def normal(self, i, confidence):
        z = NormalDist().inv_cdf((1 + confidence) / 2)
        return [None if row[i] is None else z * row[i] for row in self.deviations]

    monkeypatch.setattr(Answer, "_interval_column", lambda self, i: None)
    monkeypatch.setattr(Answer, "_widths", normal)
    out, all_ = missed("laplace", 0.0, ["VAR_SAMP(x)"], 700, confidence=0.999)
    assert beta.ppf(1e-9, out[0], all_[0] - out[0] + 1) > 0.001


def test_intervals_survive_the_store():
    query = Query(
        sql="SELECT g, STDDEV(x) AS s, AVG(x) / COUNT(*) AS r FROM p GROUP BY g", public=PUBLIC, epsilon=1
    )
    answer = query(SOURCE, entropy=SeededEntropy(3)).value
    again = Answer.from_json(answer.to_json())
    assert again == answer
    assert again.interval(0.9) == answer.interval(0.9)


def test_an_average_of_no_rows_is_skipped_by_greatest():
    public = Public(schema={"x": Bounds(5, 8)}, table="p")
    sql = "SELECT GREATEST(AVG(x), 3) AS a, GREATEST(VAR_SAMP(x) + 5, 3) AS b FROM p"
    query = Query(sql=sql, public=public, epsilon=1)
    exact = query._measure(connect({"x": np.zeros(0)}, public), 1)
    answers = [query._noisy(exact, SeededEntropy(seed)).interval(0.999) for seed in range(6)]
    intervals = [ends for answer in answers for column in answer.values() for ends in column if ends]
    assert intervals
    assert all(low <= 3 <= high for low, high in intervals)


@pytest.mark.parametrize("unit", [Unit(), Unit(column="p", rows=1)])
def test_deviations_on_a_grid_coarser_than_their_range_are_not_shown_as_zero(unit):
    """In a range so narrow and so far from zero that no step of the grid is inside, all values are rounded to
    the same step: a variance said 0 ± 0, and a covariance the square of half the width."""
    low, high = 1e15, 1e15 + 4
    public = Public(schema={"x": Bounds(low, high), "y": Bounds(low, high)}, table="t", unit=unit)
    values = [low, high, high, high] * 250
    source = connect({"x": values, "y": values, "p": list(range(1000))}, public)
    sql = "SELECT VAR_POP(x) AS v, STDDEV_POP(x) AS d, COVAR_POP(x, y) AS c, AVG(x) AS a FROM t"
    answer = Query(sql=sql, public=public, epsilon=1e5)(source, entropy=SeededEntropy(1)).value
    for column, truth in (("v", 3.0), ("d", 3**0.5), ("c", 3.0), ("a", low + 3)):
        bottom, top = answer.interval(0.999)[column][0]
        assert bottom <= truth <= top, column
