"""`min_people`: groups of fewer people are hidden, by their noisy number, with a stated probability."""

import json
from dataclasses import replace

import mpmath
import pytest
from scipy.stats import binom

import discreet as dp
from discreet import InvalidInput, Unsupported
from discreet.core.question import FormQuestion
from discreet.mechanisms import AddNoise, Histogram, IntegerLaplace
from discreet.query import Query, WorkloadQuery, mechanism
from discreet.query.release import SMALL, SmallGroups
from discreet.sampling import Entropy
from discreet.tables import connect, load
from discreet.tables.schema import dump

WARDS = {"a": 3, "b": 10, "c": 11, "d": 12, "e": 40}
COUNT = "SELECT ward, COUNT(*) AS n FROM visits GROUP BY ward ORDER BY ward"


def visits(stays: int = 1) -> dict[str, list]:
    """Wards with so many people, each of whom has `stays` rows; every second has no weight."""
    people = [(f"{ward}{i}", ward, i) for ward, size in WARDS.items() for i in range(size)] * stays
    return {
        "who": [who for who, _, _ in people],
        "ward": [ward for _, ward, _ in people],
        "weight": [None if i % 2 else float(50 + i) for _, _, i in people],
    }


def public(*, declared=True, unit=dp.Unit("who", rows=3, groups=1), **facts):
    ward = dp.Categories(list(WARDS)) if declared else dp.Text()
    schema = {"who": dp.Text(), "ward": ward, "weight": dp.Bounds(0, 200)}
    return dp.Public(table="visits", schema=schema, unit=unit, **facts)


def shown(sql, facts, *, stays=1, **options):
    query = Query(sql=sql, public=facts, epsilon=1, delta=1e-6, **options)
    return [row[0] for row in query._without_noise(connect(visits(stays), facts), 3)]


@pytest.mark.parametrize("declared", [True, False])
@pytest.mark.parametrize(
    "unit", [dp.rows(), dp.Unit("who", rows=1, groups=1), dp.Unit("who", rows=3, groups=1)]
)
def test_without_noise_just_the_groups_of_so_many_people_are_shown(declared, unit):
    facts = public(declared=declared, unit=unit)
    assert shown(COUNT, facts) == list("abcde")
    assert shown(COUNT, facts, min_people=11) == list("cde")
    assert shown(COUNT, facts, min_people=41) == []
    assert shown(COUNT, replace(facts, min_people=12)) == list("de")


def test_people_are_counted_and_not_their_rows():
    three_rows = [
        COUNT,
        COUNT.replace("COUNT(*)", "SUM(weight)"),
        COUNT.replace("COUNT(*)", "MEDIAN(weight)"),
    ]
    facts = public(unit=dp.Unit("who", rows=3, groups=1))
    assert shown(three_rows[0], facts, stays=3, min_people=11) == list("cde")
    # of the 12 people of ward d, 6 have a weight
    for sql in three_rows[1:]:
        assert shown(sql, facts, stays=3, min_people=7) == list("e")
        assert shown(sql, facts, stays=3, min_people=6) == list("cde")


@pytest.mark.parametrize("counted", ["COUNT(*) FILTER (WHERE weight > 55)", "COUNT_IF(weight > 55)"])
@pytest.mark.parametrize("unit", [dp.rows(), dp.Unit("who", rows=3, groups=1)])
def test_a_condition_inside_an_aggregate_leaves_as_many_people(counted, unit):
    """Of wards c and d, 3 people are above 55; of ward e, 17."""
    sql = COUNT.replace("COUNT(*)", f"{counted} AS heavy, COUNT(*)")
    assert shown(sql, public(unit=unit), min_people=4) == list("e")
    assert shown(sql, public(unit=unit), min_people=3) == list("cde")


def test_a_single_number_of_few_people_is_hidden_too():
    facts = public()
    query = Query(
        sql="SELECT COUNT(*) AS n FROM visits WHERE ward = 'a'", public=facts, epsilon=1, min_people=11
    )
    assert query._without_noise(connect(visits(), facts), 3) == []
    answer = replace(query, min_people=500)._noisy(query._measure(connect(visits(), facts), 3), Entropy())
    assert answer.rows == ()
    for number in (lambda: answer.value, lambda: float(answer), answer.bars):
        with pytest.raises(
            InvalidInput, match="this answer has no row: 1 group is hidden: a group is shown from"
        ):
            number()


QUERIES = {
    "laplace": {"epsilon": 0.7},
    "many rows": {"epsilon": 0.7, "rows": 3},
    "gaussian": {"epsilon": 0.7, "delta": 1e-6, "noise": "gaussian"},
    "wide gaussian": {"epsilon": 0.01, "delta": 1e-9, "noise": "gaussian"},
}


def crowd(size: int, groups: int = 1000) -> tuple[dict[str, list], dp.Public]:
    """So many groups of so many people each."""
    facts = dp.Public(
        table="t", schema={"who": dp.Text(), "g": dp.Bounds(0, groups - 1)}, unit=dp.Unit("who", groups=1)
    )
    table = {"who": [str(i) for i in range(size * groups)], "g": [i % groups for i in range(size * groups)]}
    return table, facts


@pytest.mark.parametrize("options", QUERIES.values(), ids=QUERIES)
def test_small_groups_are_shown_more_rarely_than_stated(options):
    """10,000 groups of 10 people, of whom 11 are asked for: at most as many are shown as the .999 quantile of
    the stated probability. The same without the margin shows more, and large groups are shown."""
    table, facts = crowd(10)
    options = {"rows": 1, **options}
    query = Query(sql="SELECT g, COUNT(*) AS n FROM t GROUP BY g", public=facts, min_people=11, **options)
    exact, draws, few = query._measure(connect(table, facts), 3), 10, binom.ppf(0.999, 10_000, SMALL)

    def count_shown(asked):
        return sum(len(asked._noisy(exact, Entropy()).rows) for _ in range(draws))

    assert count_shown(query) <= few
    without_margin = replace(query)
    small = query._small
    object.__setattr__(without_margin, "_small", replace(small, margins=(0,) * len(small.margins)))
    assert count_shown(without_margin) > few
    exact.measures = [m + 2 * max(small.margins) + 1 for m in exact.measures]
    assert count_shown(query) >= 9_900


@pytest.mark.parametrize("options", QUERIES.values(), ids=QUERIES)
def test_the_margin_is_the_quantile_of_the_noise(options):
    _, facts = crowd(1, 3)
    query = Query(
        sql="SELECT g, COUNT(*) AS n FROM t GROUP BY g", public=facts, min_people=11, **{"rows": 1, **options}
    )
    ((position, margin),) = zip(query._small.people, query._small.margins, strict=True)
    noise = query.question.noises[position]
    with mpmath.workdps(40):
        if hasattr(noise, "variance"):
            variance = mpmath.mpf(noise.variance.numerator) / noise.variance.denominator
            reach = int(40 * mpmath.sqrt(variance)) + 5
            weights = [mpmath.exp(-(mpmath.mpf(x) ** 2) / (2 * variance)) for x in range(reach)]
            whole = 2 * mpmath.fsum(weights) - 1
            above = [mpmath.fsum(weights[m + 1 :]) / whole for m in (margin, margin - 1)]
        else:
            p = mpmath.exp(-mpmath.mpf(noise.scale.denominator) / noise.scale.numerator)
            above = [p ** (m + 1) / (1 + p) for m in (margin, margin - 1)]
    assert above[0] <= mpmath.mpf("0.001") < above[1]


def test_a_count_of_people_that_is_there_is_not_paid_twice():
    facts = public()
    people = "SELECT ward, COUNT(DISTINCT who) AS n FROM visits GROUP BY ward"
    for sql, rows in ((people, 3), (COUNT, 1)):
        before = Query(sql=sql, public=facts, epsilon=1, rows=rows)
        after = replace(before, min_people=11)
        assert after.question.noises == before.question.noises
    three = Query(sql=COUNT, public=facts, epsilon=1, rows=3, min_people=11)
    assert len(three.question.noises) == 2
    assert three.event != Query(sql=COUNT, public=facts, epsilon=1, rows=3).event


def opened(tmp_path, table=None, facts=None, **options):
    facts = public() if facts is None else facts
    return dp.open(
        connect(table or visits(), facts),
        ledger=tmp_path / "visits.ledger",
        budget=dp.Budget(epsilon=20, delta=1e-6),
        **options,
    )


@pytest.mark.parametrize("declared", [True, False])
def test_hidden_numbers_are_in_no_ledger_and_the_answer_is_served_as_it_was(tmp_path, declared):
    people = opened(tmp_path, facts=public(declared=declared))
    answer = people.sql(COUNT, epsilon=4, rows=3, min_people=30)
    assert answer["ward"] == ["e"]
    hidden = [note for note in answer.notes if "hidden" in note]
    assert len(hidden) == 1
    least = (
        30
        + Query(
            sql=COUNT, public=people.public, epsilon=4, delta=answer.delta, rows=3, min_people=30
        )._small.margins[0]
    )
    count = "4 groups are" if declared else hidden[0].split(" hidden")[0]
    assert hidden[0] == (
        f"{count} hidden: a group is shown from a noisy number of {least} people on: one of fewer than 30 is "
        "shown with a probability of at most 0.001"
    )
    spent = people.spent
    again = people.sql(COUNT, epsilon=4, rows=3, min_people=30)
    assert (again.rows, again.notes, people.spent) == (answer.rows, answer.notes, spent)
    assert again.error() == answer.error()
    (release,) = [entry.body for entry in people.ledger.entries(kind="release")]
    assert '"d"' not in json.dumps(release["value"])
    assert all(len(numbers) == 1 for pairs in answer.numbers[1:3] for _, numbers in pairs)
    # all hidden: still an answer, which is served again
    none = people.sql(COUNT, epsilon=4, rows=3, min_people=300)
    assert none.rows == people.sql(COUNT, epsilon=4, rows=3, min_people=300).rows == ()


def test_the_strictest_of_schema_policy_and_question_holds(tmp_path):
    people = opened(tmp_path, facts=public(min_people=5))

    def least(**options):
        (line,) = [
            line for line in people.preview(COUNT, epsilon=1, rows=1, **options).query.plan if "fewer" in line
        ]
        return int(line.split("fewer than ")[1].split()[0])

    assert (least(), least(min_people=3), least(min_people=9)) == (5, 5, 9)
    people.curator.change_policy(replace(people.curator.policy, min_people=7))
    assert (least(), least(min_people=3), least(min_people=9)) == (7, 7, 9)
    # a question that was built elsewhere
    below = Query(sql=COUNT, public=people.public, epsilon=1, rows=1, min_people=6)
    with pytest.raises(Unsupported, match="fewer than 7 people"):
        people.ask(below)
    assert people.spent == 0
    assert people.ask(replace(below, min_people=7)).value.columns == ("ward", "n")


@pytest.mark.parametrize("where", ["schema", "policy"])
def test_tables_of_numbers_that_count_no_people_are_refused(tmp_path, where):
    people = opened(tmp_path, facts=public(min_people=5 if where == "schema" else None, unit=dp.rows()))
    if where == "policy":
        people.curator.change_policy(replace(people.curator.policy, min_people=5))
    noise = IntegerLaplace.for_epsilon(1, sensitivity=1)
    histogram = AddNoise(public=people.public, statistic=Histogram(column="ward"), noise=noise)
    for refused in (
        lambda: people.workload([COUNT.partition(" ORDER")[0]], epsilon=1),
        lambda: people.preview([COUNT.partition(" ORDER")[0]], epsilon=1),
        lambda: people.ask(
            WorkloadQuery(queries=(COUNT.partition(" ORDER")[0],), public=people.public, epsilon=1)
        ),
        lambda: people.ask(histogram),
        lambda: people.ask(FormQuestion.of(Query(sql=COUNT, public=people.public, epsilon=1).question)),
        lambda: people.preview("SELECT ward, COUNT(*) AS n FROM visits GROUP BY ROLLUP(ward)", epsilon=1),
        lambda: people.watch(10, epsilon=1),
        lambda: people.stream("SELECT COUNT(*) AS n FROM visits", epsilon=1, horizon=3),
    ):
        with pytest.raises((Unsupported, InvalidInput), match="min_people"):
            refused()
    assert people.spent == 0
    # several counts are one question each with noise of its own
    two = "SELECT COUNT(*) AS n, COUNT(weight) AS m FROM visits"
    assert people.sql(two, epsilon=1).columns == ("n", "m")


def test_what_is_not_shown_of_private_groups_is_added_up_where_rows_are_people():
    facts = public(declared=False, unit=dp.rows())
    query = Query(sql=COUNT, public=facts, epsilon=1, delta=1e-6, other=True, min_people=11)
    assert len(query.question.noises) == 1
    with pytest.raises(InvalidInput, match="have several rows, whom min_people counts"):
        Query(sql=COUNT, public=public(declared=False), epsilon=1, delta=1e-6, other=True, min_people=11)


def test_the_schema_file_declares_it():
    facts = public(min_people=11)
    assert load(dump(facts)) == facts
    with pytest.raises(InvalidInput, match="min_people"):
        load(dump(facts).replace("min_people = 11", "min_people = 0"))


def test_what_hides_nothing_leaves_every_description_as_it_was():
    query = Query(sql=COUNT, public=public(), epsilon=1)
    text = json.dumps(mechanism.to_json(query))
    assert "min_people" not in text + query.key
    assert "min_people" in replace(query, min_people=2).key
    assert SmallGroups.of(query._recipes, query.question, 0) is None
