"""What is asked at epsilon e reads as at most e spent (docs/proofs/filters.md, "Capped prices"), through a
session."""

import numpy as np
import pytest

import discreet as dp
from discreet import accounting as acc
from discreet._errors import BudgetExceeded
from discreet.curator import Policy

COUNT = "SELECT COUNT(*) AS n FROM data"
MEANS = 'SELECT "group", COUNT(*) AS n, AVG(age) AS mean FROM data GROUP BY "group"'


def opened(epsilon, delta, **more):
    random = np.random.default_rng(0)
    columns = {"age": random.integers(18, 90, 500), "group": random.choice(list("abcd"), 500)}
    schema = {"age": dp.Bounds(18, 90), "group": dp.Categories(list("abcd"))}
    budget = dp.Budget(epsilon=epsilon, delta=delta)
    return dp.open(columns, schema=schema, unit=dp.rows(), budget=budget, ledger=":memory:", size=500, **more)


def test_one_gaussian_answer_and_ten_counts_read_as_what_was_asked():
    people = opened(20, 1e-5)
    people.sql(COUNT, epsilon=0.1, noise="gaussian")
    assert people.spent <= 0.1 * (1 + 1e-9)
    for age in range(20, 30):
        people.sql(f"{COUNT} WHERE age > {age}", epsilon=0.05)
    assert 0.59 <= people.spent <= 0.6 * (1 + 1e-9)
    assert people.curator.verify() == []


@pytest.mark.parametrize("delta", [None, 1e-6])
def test_a_fresh_budget_admits_one_question_asked_with_all_of_it(delta):
    people = opened(1, 1e-6)
    options = {} if delta is None else {"delta": delta}
    assert people.preview(MEANS, epsilon=1, noise="gaussian", **options).fits >= 1
    people.sql(MEANS, epsilon=1, noise="gaussian", **options)
    assert people.spent <= 1 + 1e-9
    assert people.curator.verify() == []
    with pytest.raises(BudgetExceeded, match="above the limit"):
        people.sql(MEANS + " ORDER BY 1", epsilon=1, noise="gaussian", fresh=True, **options)


@pytest.mark.parametrize("delta", [None, 1e-5])
def test_a_fresh_budget_admits_one_model_asked_with_all_of_it(delta):
    people = opened(2, 1e-5)
    model = dp.learning.SGDLogisticRegression(epsilon=2, delta=delta, epochs=1, batch=64)
    people.fit(model, target="group")
    assert 1.9 <= people.spent <= 2 + 1e-9
    assert people.curator.verify() == []


def test_analysts_read_their_own_account_as_what_they_asked_and_a_changed_budget_counts_it_again():
    people = opened(
        1, 1e-6, analysts={"ann": dp.Budget(epsilon=0.5, delta=1e-7), "bob": dp.Budget(epsilon=0.5)}
    )
    people.as_analyst("ann").sql(MEANS, epsilon=0.5, noise="gaussian")
    # Bob has no delta: his questions get Laplace noise, and no part of the dataset's delta.
    people.as_analyst("bob").sql(COUNT, epsilon=0.25)
    assert people.spent <= 0.75 + 1e-9
    assert people.curator.verify() == []
    people.curator.change_policy(Policy(budget=dp.Budget(epsilon=2, delta=2e-6)))
    assert people.spent <= 0.75 + 1e-9
    people.sql(MEANS, epsilon=0.5, noise="gaussian", fresh=True)
    assert people.spent <= 1.25 + 1e-9
    assert people.curator.verify() == []


def test_what_was_released_elsewhere_does_not_fix_the_split_of_delta():
    people = opened(1, 1e-6)
    people.curator.enter(acc.ApproximateDP(epsilon=0.1, delta=4e-7), "a table of last year")
    with pytest.raises(BudgetExceeded, match="delta"):
        people.curator.enter(acc.ApproximateDP(epsilon=0.1, delta=4e-7), "another")
    assert people.spent == pytest.approx(0.1)
    assert people.curator.verify() == []
