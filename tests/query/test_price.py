"""Prices: never above what was asked, shared as asked, by the better noise; accuracy on demand; one key for
one question."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from fractions import Fraction

import pytest

import discreet as dp
from discreet import Bounds, Categories, InvalidInput, Public, PublicMismatch, Related, Text, Unit, accounting
from discreet._registry import from_json, to_json
from discreet.accounting import ApproximateDP, DiscreteGaussian, DiscreteLaplace, NonPrivate
from discreet.accounting.conversion import zcdp_to_epsilon
from discreet.mechanisms.noise import IntegerGaussian, IntegerLaplace
from discreet.query import Query, QueryError, ask, price
from discreet.query.price import rho_for
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import rand_hie

from ..loops import for_each

SOURCE = rand_hie()
PUBLIC = SOURCE.public
BY_HEALTH = "SELECT health, COUNT(*) AS n FROM rand_hie GROUP BY health"
MANY = (
    "SELECT health, COUNT(*) AS n, AVG(visits) AS v, STDDEV(age) AS d, COUNT(DISTINCT site) AS s, "
    "MEDIAN(age) AS m, MODE(sex) AS x FROM rand_hie GROUP BY health"
)


def query(sql=BY_HEALTH, **options):
    return Query(sql=sql, public=options.pop("public", PUBLIC), **options)


@for_each("sql", [BY_HEALTH, MANY, "SELECT COUNT(*) FROM rand_hie", "SELECT AVG(visits) FROM rand_hie"])
@for_each("epsilon", [0.1, Fraction(1, 3), 1, 0.7])
def test_laplace_queries_cost_at_most_epsilon_and_nearly_all_of_it(sql, epsilon):
    total, delta = accounting.basic(query(sql, epsilon=epsilon).event)
    assert delta == 0
    assert float(epsilon) * (1 - 1e-12) <= total <= epsilon


@pytest.mark.parametrize(
    "sql", [BY_HEALTH, "SELECT health, COUNT(*) AS n, AVG(visits) AS v FROM rand_hie GROUP BY health"]
)
def test_gaussian_queries_cost_at_most_epsilon_and_delta(sql):
    found = query(sql, epsilon=1, delta=1e-6, noise="gaussian")
    assert all(isinstance(noise, IntegerGaussian) for noise in found.question.noises)
    rho, extra = accounting.zcdp(found.event)
    assert extra == 0
    if len(found.question.noises) > 1:
        assert zcdp_to_epsilon(rho, 1e-6) <= 1
    else:  # one measure: from the discrete law itself, tighter than through rho
        assert zcdp_to_epsilon(rho, 1e-6) < 1.15


def test_by_rho_the_whole_query_costs_rho():
    for sql in (BY_HEALTH, MANY):
        rho, extra = accounting.zcdp(query(sql, rho=0.1).event)
        assert extra == 0
        assert 0.0999 <= rho <= 0.1 * (1 + 1e-9)


def test_laplace_noise_at_a_price_in_rho_is_refused():
    """It was Gaussian noise, without a word."""
    session = dp.open(SOURCE, budget=dp.Budget(rho=1, delta=1e-6), ledger=":memory:")
    several = "SELECT COUNT(*) AS n, COUNT_IF(age < 40) AS young FROM rand_hie"
    for act in (
        lambda: query(rho=0.5, noise="laplace"),
        lambda: session.sql(BY_HEALTH, rho=0.5, noise="laplace"),
        lambda: session.preview(several, rho=0.5, noise="laplace"),
    ):
        with pytest.raises(InvalidInput, match=r"a price in rho is for Gaussian noise"):
            act()
    assert session.spent == 0
    assert query(rho=0.5, noise="gaussian").question == query(rho=0.5).question


def test_rho_for_is_the_inverse_from_below():
    for epsilon, delta in [(0.1, 1e-9), (1.0, 1e-6), (10.0, 1e-5)]:
        rho = float(rho_for(epsilon, delta))
        assert epsilon * 0.999 <= zcdp_to_epsilon(rho, delta) <= epsilon


def test_many_groups_of_one_person_make_gaussian_noise_the_better_one():
    few = query(epsilon=1, delta=1e-6, rows=1, groups=1)
    many = query(
        "SELECT FLOOR(age), COUNT(*) FROM rand_hie GROUP BY 1", epsilon=1, delta=1e-6, rows=1, groups=40
    )
    assert isinstance(few.question.noises[0], IntegerLaplace)
    assert isinstance(many.question.noises[0], IntegerGaussian)
    worse = replace(many, noise="laplace")
    assert many.question.noises[0].standard_deviation < worse.question.noises[0].standard_deviation


def test_the_average_pays_for_one_count_and_says_the_true_price():
    """smartnoise issue 202: AVG understated epsilon twofold."""
    found = query(
        "SELECT COUNT(visits) AS n, AVG(visits) AS a, SUM(visits) / COUNT(*) AS r FROM rand_hie", epsilon=1
    )
    kinds = [m.kind for m in found.question.form.measures]
    assert kinds == ["rows", "sum", "sum"]
    assert (
        sum(
            Fraction(e.sensitivity) / e.scale * times
            for e, times in accounting.events.leaves(found.event).items()
        )
        <= 1
    )


def test_weights_share_the_price():
    sql = "SELECT COUNT(*) AS n, SUM(visits) AS v FROM rand_hie"
    even = query(sql, epsilon=1)
    skewed = query(sql, epsilon=1, weights=(("n", 3),))
    scale = lambda q, i: q.question.noises[i].scale  # noqa: E731
    assert math.isclose(scale(skewed, 0) * 3, scale(even, 0) * 2)
    assert math.isclose(scale(skewed, 1), scale(even, 1) * 2)
    with pytest.raises(InvalidInput, match="weights name a column 'x'"):
        query(sql, epsilon=1, weights=(("x", 3),))


def test_unknown_groups_need_a_delta_and_pay_for_the_choice():
    from discreet._public import Text

    public = replace(
        PUBLIC, schema=(*((n, f) for n, f in PUBLIC.schema if n != "health"), ("health", Text()))
    )
    with pytest.raises(InvalidInput, match="delta above zero"):
        query(epsilon=1, public=public)
    found = query(epsilon=1, delta=1e-6, public=public, groups=2)
    chosen = [
        (e, times)
        for e, times in accounting.events.leaves(found.event).items()
        if isinstance(e, ApproximateDP)
    ]
    assert [(times, round(float(e.epsilon), 12)) for e, times in chosen] == [(2, 0.25)]
    total, delta = accounting.basic(
        query(epsilon=1, delta=1e-6, public=public, groups=2, noise="laplace").event
    )
    assert total <= 1
    assert delta <= 1e-6
    # no probability of 2**-128 or more is left: it was charged, and failed then
    with pytest.raises(InvalidInput, match="delta"):
        query(epsilon=1, delta=1e-40, public=public, groups=2)
    # half of the smallest delta is 0: it was a ZeroDivisionError
    with pytest.raises(InvalidInput, match="delta"):
        query(epsilon=1, delta=5e-324, public=public, groups=2)


@pytest.mark.parametrize("within", [5, 50, 500])
def test_asking_by_accuracy_buys_just_enough(within):
    found = ask(BY_HEALTH, PUBLIC, within=within, confidence=0.95, rows=2, groups=2)
    assert found.preview(0.95).errors[1] <= within
    cheaper = replace(found, epsilon=float(found.epsilon) * 0.99)
    assert cheaper.preview(0.95).errors[1] >= within


def test_the_promise_of_accuracy_is_kept():
    """1000 groups of nobody: how often the noise exceeds the promise, against an exact binomial bound."""
    from scipy import stats

    public = Public(schema=PUBLIC.schema, table="empty")
    from discreet.tables import connect

    empty = connect(SOURCE._table.slice(0, 0), public)
    found = ask(
        "SELECT FLOOR(income / 30) AS k, COUNT(*) AS n FROM empty GROUP BY 1",
        public,
        within=10,
        confidence=0.9,
    )
    values = found(empty, entropy=SeededEntropy(9)).value["n"]
    assert len(values) == 1001
    misses = sum(abs(v) > 10 for v in values)
    assert misses <= stats.binom.isf(1e-9, len(values), 0.1)
    assert misses > 0


def test_an_average_of_everybody_can_be_asked_by_accuracy_when_the_size_is_declared():
    public = replace(PUBLIC, size=20_000)
    found = ask("SELECT AVG(age) AS a FROM rand_hie", public, within=0.5, confidence=0.95)
    from discreet.tables import Memory

    source = Memory(SOURCE._table, public)
    (true,) = found._without_noise(source, 1)[0]
    assert abs(found(source, entropy=Entropy()).value.value - true) < 5
    with pytest.raises(InvalidInput, match="depends on the data"):
        ask("SELECT AVG(age) AS a FROM rand_hie", PUBLIC, within=0.5)
    with pytest.raises(InvalidInput, match="not both"):
        ask(BY_HEALTH, PUBLIC, within=1, epsilon=1)


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT AVG(age) AS a FROM rand_hie WHERE health = 'poor'",
        "SELECT AVG(age) FILTER (WHERE health = 'poor') AS a FROM rand_hie",
        "SELECT AVG(age) AS a FROM (SELECT age FROM rand_hie WHERE health = 'poor') AS p",
    ],
)
def test_no_error_is_promised_for_an_average_of_a_private_number_of_rows(sql):
    public = replace(PUBLIC, size=20_000)
    assert query(sql, public=public, epsilon=1, rows=1).preview().errors == (None,)
    with pytest.raises(InvalidInput, match="depends on the data"):
        ask(sql, public, within=0.5, rows=1)


def test_no_error_is_promised_for_an_average_of_a_table_that_not_everybody_need_be_in():
    visits = Related(name="visits", schema={"cost": Bounds(0, 100)}, private=True, unit="person")
    schema = {"person": Text(), "age": Bounds(0, 120)}
    unit = Unit(column="person", rows=5)
    public = Public(schema=schema, unit=unit, table="people", size=1000, tables=(visits,))
    assert query("SELECT AVG(cost) AS a FROM visits", public=public, epsilon=1).preview().errors == (None,)
    assert query("SELECT AVG(age) AS a FROM people", public=public, epsilon=1).preview().errors != (None,)


def test_a_size_in_units_says_nothing_about_a_chosen_value_of_units_with_several_rows():
    schema = {"person": Text(), "age": Bounds(0, 120)}
    unit = Unit(column="person", rows=5)
    public = Public(schema=schema, unit=unit, table="people", size=400)
    asked = query("SELECT MEDIAN(age) AS m FROM people", public=public, epsilon=1)
    assert not any("declared rows this is useless" in note for note in asked.notes)


def test_asking_by_accuracy_searches_up_to_its_largest_price():
    public = Public(schema={"x": Bounds(0.0, 100.0)}, table="t")
    found = ask("SELECT SUM(x) AS s FROM t", public, within=0.4)
    assert 512 < found.epsilon <= 1000
    assert found.preview().errors[0] <= 0.4


@for_each(
    "bad",
    [
        {},
        {"epsilon": 1, "rho": 1},
        {"epsilon": 0},
        {"epsilon": -1},
        {"epsilon": float("inf")},
        {"epsilon": "1"},
        {"epsilon": 1, "delta": 2},
        {"epsilon": 1, "rows": 0},
        {"epsilon": 1, "groups": 1.5},
        {"epsilon": 1, "noise": "none"},
        {"epsilon": 1, "noise": "gaussian"},
        {"epsilon": 1, "rows": 10**7},
        {"epsilon": 1, "weights": (("n", 0),)},
        {"epsilon": 1, "weights": ("n",)},
        {"epsilon": 1, "other": True},
    ],
)
def test_a_bad_price_is_refused(bad):
    with pytest.raises(InvalidInput, match=list(bad or {"epsilon": None})[-1].removesuffix("s")):
        query(**bad)


def test_one_question_has_one_key():
    base = query("SELECT health, COUNT(*) AS n FROM rand_hie WHERE age > 30 GROUP BY health", epsilon=1)
    same = query(
        "select r.HEALTH AS health , count(*) as n from RAND_HIE as r where (r.age > 30.0) group by 1",
        epsilon=1,
    )
    assert base.key == same.key
    assert (
        query("SELECT health,COUNT(*) n FROM Rand_HIE x WHERE Age > 30 GROUP BY x.health", epsilon=1).key
        == base.key
    )
    others = [
        query("SELECT health, COUNT(*) AS n FROM rand_hie WHERE age > 31 GROUP BY health", epsilon=1),
        query("SELECT health, COUNT(*) AS n FROM rand_hie WHERE age > 30 GROUP BY health", epsilon=2),
        query(
            "SELECT health, COUNT(*) AS n FROM rand_hie WHERE age > 30 GROUP BY health", epsilon=1, groups=1
        ),
        query(
            "SELECT health, COUNT(*) AS n FROM rand_hie WHERE age > 30 GROUP BY health",
            epsilon=1,
            public=replace(PUBLIC, version="2"),
        ),
        query("SELECT health, COUNT(age) AS n FROM rand_hie WHERE age >= 30 GROUP BY health", epsilon=1),
    ]
    assert len({q.key for q in [base, *others]}) == 6


def test_a_query_is_its_description():
    found = query(MANY, epsilon=Fraction(1, 3), delta=1e-6, weights=(("n", 2),))
    again = from_json(json.loads(json.dumps(to_json(found))))
    assert again == found
    assert again.event == found.event
    assert again.key == found.key


def test_a_query_runs_only_on_what_it_was_priced_for():
    found = query(epsilon=1)
    with pytest.raises(PublicMismatch, match="public facts"):
        found(rand_hie(year=1), entropy=Entropy())


def test_a_preview_touches_no_data_and_says_what_will_happen():
    shown = query(MANY, epsilon=1, delta=1e-6, rows=2, groups=2).preview()
    assert shown.errors[0] is None
    assert shown.errors[1] > 0
    text = str(shown)
    for words in (
        "epsilon 1",
        "person",
        "at most 2 rows",
        "4 groups",
        "quantile 0.5",
        "exponential mechanism",
    ):
        assert words in text


def test_the_events_are_those_of_discrete_noise():
    laplace = query(epsilon=1, rows=2, groups=2).event
    assert laplace == DiscreteLaplace(scale=Fraction(4), sensitivity=4)
    gaussian = query(rho=0.5, rows=2, groups=2).event
    assert gaussian == DiscreteGaussian(variance=Fraction(8), sensitivity=2).repeated(2)
    assert isinstance(query(epsilon=1)(SOURCE, entropy=SeededEntropy(1)).event, NonPrivate)


def test_sums_as_large_as_they_get_neither_wrap_nor_raise():
    import pyarrow as pa

    from discreet import Bounds, Unit
    from discreet.tables import connect

    big = 2.0**40
    public = Public(schema={"x": Bounds(-big, big), "w": Bounds(0, 3)}, unit=Unit("id", rows=1000), table="t")
    rows = 3000
    source = connect(pa.table({"id": [1, 2] * (rows // 2), "x": [big] * rows, "w": [1e18] * rows}), public)
    sql = (
        "SELECT SUM(x) AS s, VARIANCE(x) AS v, SUM(CAST(x AS BIGINT)) AS i, STDDEV(CAST(x AS BIGINT)) AS "
        "d, SUM(POWER(CAST(x / 1024 AS INTEGER), 4)) AS p FROM t"
    )
    found = Query(sql=sql, public=public, epsilon=10_000)
    (s, v, i, d, p) = found._without_noise(source, 1)[0]
    assert s == i == 2000 * big
    assert abs(p - 2000 * 2.0**120) <= 2.0**112
    assert (v, d) == (0, 0)
    answer = found(source, entropy=Entropy()).value
    assert all(isinstance(value, int | float) for value in answer.rows[0])


def test_the_unit_of_a_query_error_is_a_value_error():
    with pytest.raises(QueryError, match="nowhere") as error:
        query("SELECT nothing FROM nowhere", epsilon=1)
    assert isinstance(error.value, ValueError)


COUNTED = (
    "SELECT g, COUNT(*) AS n FROM t GROUP BY g",
    "SELECT g, COUNT(*) AS n, SUM(x) AS s FROM t GROUP BY g",
)


# Half of the product, which has every three of the four; the other half is in `make test-all`.
@pytest.mark.parametrize(
    ("epsilon", "delta", "groups", "sql"),
    [
        pytest.param(epsilon, delta, groups, sql, marks=[pytest.mark.slow] * ((i + j + k + m) % 2))
        for i, epsilon in enumerate([0.01, 0.1, 1, 5])
        for j, delta in enumerate([1e-9, 1e-5, 1e-2])
        for k, groups in enumerate([1, 3, 6, 40])
        for m, sql in enumerate(COUNTED)
    ],
)
def test_the_noise_that_is_calibrated_is_the_one_with_the_smaller_error(epsilon, delta, groups, sql):
    """Only the winner is calibrated: closed-form bounds must never choose worse than calibrating both."""
    public = Public(
        schema={"g": Categories(range(64)), "x": Bounds(0, 10), "u": Text()},
        unit=Unit("u", rows=2, groups=groups),
        table="t",
    )
    queries = {
        noise: Query(sql=sql, public=public, epsilon=epsilon, delta=delta, noise=noise)
        for noise in ("auto", "laplace", "gaussian")
    }
    errors = {
        noise: price._squared_error(query.question.form, query.question) for noise, query in queries.items()
    }
    assert errors["auto"] == min(errors.values())


def test_a_count_calibrates_no_gaussian(monkeypatch):
    def never(*_, **__):
        raise AssertionError("a Gaussian was calibrated")

    public = Public(schema={"x": Bounds(0, 10)}, table="t")
    monkeypatch.setattr(IntegerGaussian, "for_privacy", never)
    query = Query(sql="SELECT COUNT(*) AS n FROM t", public=public, epsilon=0.1, delta=1e-8)
    assert isinstance(query.question.noises[0], IntegerLaplace)
