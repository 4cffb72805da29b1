"""Empirical privacy, against definitions written out in plain Python; and what breaks it."""

from __future__ import annotations

from collections import Counter, defaultdict

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from discreet import Bounds, Categories, Public, auditing, mechanisms, sampling, tables
from discreet._errors import InvalidInput
from discreet.auditing import anonymity

from ..work import calls

ROW = st.tuples(st.integers(0, 2), st.sampled_from(["a", "b", None]), st.integers(0, 3))
QI = ["x", "y"]


def columns(rows):
    return pa.table(
        {
            "x": pa.array([r[0] for r in rows], pa.int64()),
            "y": pa.array([r[1] for r in rows], pa.string()),
            "s": pa.array([r[2] for r in rows], pa.int64()),
        }
    )


def classes(rows):
    found = defaultdict(list)
    for x, y, s in rows:
        found[x, y].append(s)
    return list(found.values())


def ordered_distance(group, whole):
    values = sorted(set(whole))
    gaps = [abs(np.mean([g <= v for g in group]) - np.mean([w <= v for w in whole])) for v in values]
    return sum(gaps) / (len(values) - 1) if len(values) > 1 else 0.0


@settings(max_examples=8, deadline=None)
@given(st.lists(ROW, min_size=1, max_size=30))
def test_every_measure_is_what_its_definition_says(rows):
    table, groups, whole = columns(rows), classes(rows), [r[2] for r in rows]
    risk = auditing.risk(table, QI)
    assert risk.k == min(map(len, groups)) == auditing.k_anonymity(table, QI)
    assert risk.unique == sum(len(g) == 1 for g in groups) / len(rows)
    assert risk.average == len(groups) / len(rows)
    assert auditing.distinct_l_diversity(table, QI, "s") == min(len(set(g)) for g in groups)
    all_, each = Counter(whole), [Counter(g) for g in groups]
    tv = [sum(abs(c[v] / c.total() - all_[v] / len(whole)) for v in all_) / 2 for c in each]
    assert auditing.t_closeness(table, QI, "s") == pytest.approx(max(tv), abs=1e-12)
    wanted = max(ordered_distance(g, whole) for g in groups)
    assert auditing.t_closeness(table, QI, "s", ordered=True) == pytest.approx(wanted, abs=1e-12)
    alone = sum(len(g) for g in groups if len(set(g)) == 1)
    assert auditing.homogeneity(table, QI, "s").found == alone


def test_two_hundred_thousand_rows_are_measured_without_a_loop_over_them():
    """Measured: 9,100 calls for 200,000 rows."""
    rng = np.random.default_rng(0)
    n = 200_000
    table = pa.table(
        {"age": rng.integers(0, 90, n), "zip": rng.integers(0, 500, n), "ill": rng.integers(0, 10, n)}
    )

    def measure() -> None:
        assert auditing.risk(table, ["age", "zip"]).rows == n
        assert auditing.distinct_l_diversity(table, ["age", "zip"], "ill") >= 1
        assert 0 < auditing.t_closeness(table, ["age", "zip"], "ill") < 1

    assert calls(measure) < n // 5


def test_sources_engines_and_mappings_are_all_tables():
    public = Public(schema={"age": Bounds(0, 90)})
    data = {"age": [30, 30, 40]}
    for table in (data, tables.Memory(data, public), tables.connect(data, public)):
        assert auditing.k_anonymity(table, ["age"]) == 1
    with pytest.raises(InvalidInput, match="there is no column 'zip'"):
        auditing.k_anonymity(data, ["zip"])
    odd = {"age{": [1, 1], 'a"b': [2, 2], "s;": [None, "x"]}
    assert auditing.k_anonymity(odd, ["age{", 'a"b']) == 2
    assert auditing.homogeneity(odd, ["age{"], "s;").found == 0
    both = auditing.intersection(
        odd, odd, person="s;", first_class=["age{"], second_class=['a"b'], sensitive="s;"
    )
    assert (both.rows, both.found) == (
        1,
        0,
    )  # a person without a name is not joined; a missing value is a value


def test_mondrian_makes_a_table_k_anonymous_and_ranges_hold_their_values():
    people = pa.Table.from_batches(tables.rand_hie(year=1).batches(["age", "site", "education", "health"]))
    assert auditing.k_anonymity(people, ["age", "site", "education"]) == 1
    for k in (2, 10):
        released = auditing.mondrian(people, ["age", "site", "education"], k)
        assert auditing.k_anonymity(released, ["age", "site", "education"]) >= k
        assert released["health"].equals(people["health"])
    low_high = [text.split(" .. ") for text in released["age"].to_pylist()]
    assert all(
        float(ends[0]) <= age <= float(ends[-1])
        for ends, age in zip(low_high, people["age"].to_pylist(), strict=True)
    )
    assert auditing.risk(released, ["age", "site", "education"]).classes > 100
    with pytest.raises(InvalidInput, match="fewer rows than k"):
        auditing.mondrian({"a": [1]}, ["a"], 2)


def test_generalization_climbs_the_hierarchy():
    data = {"age": [31, 38, 44], "zip": ["1234", "1299", "3000"], "job": ["nurse", "cook", "dean"]}
    groups = auditing.Groups({"nurse": "care", "cook": "trade"}, other="else's")
    up = auditing.generalize(
        data, {"age": auditing.ToInterval(10), "zip": auditing.ToPrefix(2), "job": groups}, keep=["age"][:0]
    ).to_pydict()
    assert up == {"age": [30.0, 30.0, 40.0], "zip": ["12*", "12*", "30*"], "job": ["care", "trade", "else's"]}
    gone = auditing.generalize(data, {"job": auditing.SUPPRESSED}, keep=["zip"])
    assert set(gone["job"].to_pylist()) == {"*"}


def test_knowing_what_somebody_does_not_have_gives_away_what_they_have():
    data = {"zip": [1, 1, 1, 2, 2], "ill": ["flu", "gout", "gout", "flu", "gout"]}
    assert auditing.homogeneity(data, ["zip"], "ill").found == 0
    with pytest.raises(InvalidInput, match="ruled_out"):
        auditing.background_knowledge(data, ["zip"], "ill", ruled_out="flu")
    found = auditing.background_knowledge(data, ["zip"], "ill", ruled_out=["flu"])
    assert (found.rows, found.found, found.share) == (3, 3, 1.0)


def test_two_releases_that_are_each_anonymous_are_not_so_together():
    rng = np.random.default_rng(1)
    n = 2000
    people = pa.table(
        {
            "who": np.arange(n),
            "age": rng.integers(0, 180, n),
            "zip": rng.integers(0, 180, n),
            "ill": rng.integers(0, 100, n),
        }
    )
    one, two = auditing.mondrian(people, ["age"], 10), auditing.mondrian(people, ["zip"], 10)
    assert (
        auditing.homogeneity(one, ["age"], "ill").found
        == auditing.homogeneity(two, ["zip"], "ill").found
        == 0
    )
    found = auditing.intersection(
        one, two, person="who", first_class=["age"], second_class=["zip"], sensitive="ill"
    )
    assert found.rows == n
    assert found.share > 0.05
    sets = {}
    for name, table, column in (("a", one, "age"), ("b", two, "zip")):
        members = defaultdict(set)
        for key, ill in zip(table[column].to_pylist(), table["ill"].to_pylist(), strict=True):
            members[key].add(ill)
        sets[name] = [members[key] for key in table[column].to_pylist()]
    assert found.found == sum(len(a & b) == 1 for a, b in zip(sets["a"], sets["b"], strict=True))


PUBLIC = Public(schema={"bit": Categories([0, 1])})


def asker(secret, epsilon, seed=3):
    """A count of the bit in a group, exact or with our noise; epsilon is that of one answer."""
    if epsilon is None:
        return lambda group: int((group & secret).sum())
    noise = mechanisms.IntegerLaplace.for_epsilon(epsilon)
    entropy = sampling.SeededEntropy(seed)
    return lambda group: int(noise(np.array([(group & secret).sum()]), entropy=entropy)[0])


def test_differencing_reads_every_bit_off_exact_counts_and_few_off_private_ones():
    secret = np.random.default_rng(2).random(300) < 0.5
    assert (auditing.differencing(asker(secret, None), 300) == secret).all()
    right = (auditing.differencing(asker(secret, 0.1), 300) == secret).mean()
    assert (
        right < 0.75
    )  # a difference of two answers at 0.1 moves odds by e^0.2 at most: 0.55; Hoeffding gives 1e-10 for 0.75


@pytest.mark.parametrize("method", ["least squares", "lp"])
def test_reconstruction_succeeds_on_exact_and_on_rounded_answers_and_fails_on_private_ones(method):
    people = 60
    secret = np.random.default_rng(5).random(people) < 0.5
    exact = auditing.reconstruct(asker(secret, None), people, method=method)
    assert exact.accuracy(secret) == 1
    rng = np.random.default_rng(6)
    slightly = auditing.reconstruct(
        lambda g: asker(secret, None)(g) + rng.integers(-1, 2), people, method=method
    )
    assert slightly.accuracy(secret) > 0.9
    private = auditing.reconstruct(
        asker(secret, 1 / exact.questions), people, method=method
    )  # epsilon 1 in all
    # noise of scale 240 on counts below 60: hardly better than coins, which get 51 of 60 right with chance
    # below 1e-7
    assert private.accuracy(secret) < 0.85


def test_a_few_vague_ratings_find_a_person_in_the_long_tail_and_not_in_what_private_counts_gave():
    ratings = anonymity.made_up_ratings(1500, 800, seed=1)
    users = range(60)
    right, wrong = anonymity.linked(ratings, ratings, users)
    assert right > 0.8
    assert wrong < 0.1
    counts = np.asarray((ratings.stars > 0).sum(axis=0)).ravel()
    noise = mechanisms.IntegerLaplace.for_epsilon(1, sensitivity=mechanisms.Sensitivity(linf=1, l0=400))
    noisy = noise(counts.astype(np.int64), entropy=sampling.SeededEntropy(8))
    copy = anonymity.made_up_ratings(1500, 800, seed=9, popularity=noisy)
    private_right, private_wrong = anonymity.linked(copy, ratings, users)
    assert private_right == 0
    assert private_wrong < 0.4


def test_popular_ratings_alone_do_not_stand_out():
    ratings = anonymity.made_up_ratings(1500, 800, seed=1)
    counts = np.asarray((ratings.stars > 0).sum(axis=0)).ravel()
    vague = anonymity.SideKnowledge(np.argsort(-counts)[:2], np.array([4, 4]), np.array([1e6, 1e6]))
    assert anonymity.link(ratings, vague).user is None


def test_bad_arguments_are_refused():
    with pytest.raises(InvalidInput, match="'least squares' or 'lp'"):
        auditing.reconstruct(lambda g: 0, 3, method="guess")
    with pytest.raises(InvalidInput, match="width must be above zero"):
        auditing.ToInterval(0)


def test_ordered_t_closeness_leaves_out_rows_without_a_value() -> None:
    """Of the values 1, 1, 2 the first class has 1 only: a third of them would have to move by the whole range.
    (Its missing row counted in its size, and the distance was two thirds.)"""
    table = {"zip": [1, 1, 2, 2, 3], "pay": [1, None, 1, 2, None]}
    assert auditing.t_closeness(table, ["zip"], "pay", ordered=True) == pytest.approx(1 / 3)
