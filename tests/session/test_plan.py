"""Workloads and plans through a session: charged once, split so that the weighted error is least, nothing
spent before it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import discreet as dp
from discreet.app.cli import app

COUNTS = [
    "SELECT sex, COUNT(*) AS n FROM people GROUP BY sex",
    "SELECT COUNT(*) AS n FROM people WHERE bmi < 25",
]
MEAN = "SELECT AVG(bmi) AS b FROM people"


@pytest.fixture
def people() -> dp.Session:
    rng = np.random.default_rng(0)
    data = {"sex": rng.choice(["f", "m"], 400).tolist(), "bmi": rng.uniform(10, 60, 400).tolist()}
    schema = {"sex": dp.Categories(["f", "m"]), "bmi": dp.Bounds(10, 60)}
    return dp.open(
        data,
        schema=schema,
        unit=dp.rows(),
        budget=dp.Budget(epsilon=5),
        ledger=":memory:",
        table="people",
        size=400,
    )


def test_a_workload_is_charged_once_and_served_again_free(people: dp.Session) -> None:
    shown = people.preview(COUNTS, epsilon=1)
    assert "less" in str(shown)
    assert people.spent == 0
    first = people.workload(COUNTS, epsilon=1)
    assert [answer.columns for answer in first] == [("sex", "n"), ("n",)]
    assert people.spent == pytest.approx(1)
    again = people.workload(COUNTS, epsilon=1)
    assert [a.rows for a in again] == [a.rows for a in first]
    assert people.spent == pytest.approx(1)
    people.workload(COUNTS, epsilon=1, fresh=True)
    assert people.spent == pytest.approx(2)
    with pytest.raises(dp.InvalidInput, match="as a workload"):
        people.preview(COUNTS, epsilon=1, within=3)


def test_several_counts_and_cubes_go_through_sql(people: dp.Session) -> None:
    both = people.sql("SELECT COUNT_IF(sex = 'f') AS f, COUNT_IF(sex = 'm') AS m FROM people", epsilon=1)
    assert both.columns == ("f", "m")
    cube = people.sql("SELECT sex, COUNT(*) AS n FROM people GROUP BY ROLLUP(sex)", epsilon=1)
    assert cube["sex"] == ["f", "m", None]
    assert "together" in str(
        people.preview("SELECT COUNT_IF(sex = 'f') AS f, COUNT_IF(sex = 'm') AS m FROM people", epsilon=1)
    )


def test_shares_follow_cube_roots_of_weighted_errors(people: dp.Session) -> None:
    """Two counts of equal error, weights 1 and 8: shares 1 to 2.

    Any other split has a larger weighted error.
    """
    work = [COUNTS[0], {"sql": "SELECT COUNT(*) AS n FROM people", "weight": 8}]
    plan = people.plan(work, epsilon=0.3, together=False)
    one, eight = plan.items
    assert eight.epsilon / one.epsilon == pytest.approx(2, rel=0.02)
    assert sum(item.epsilon for item in plan.items) <= 0.3

    def loss(share: float) -> float:
        return (
            float(one.work.error(people, share) or 0) ** 2
            + 8 * float(eight.work.error(people, 0.3 - share) or 0) ** 2
        )

    assert all(loss(one.epsilon) <= loss(one.epsilon * factor) for factor in (0.8, 0.9, 1.1, 1.2))
    assert people.spent == 0


def test_a_workload_weighs_as_much_as_its_queries_however_it_is_written(people: dp.Session) -> None:
    listed = people.plan([list(COUNTS), MEAN], epsilon=1, together=False)
    mapped = people.plan([{"queries": COUNTS}, MEAN], epsilon=1, together=False)
    assert [item.weight for item in listed.items] == [len(COUNTS), 1]
    assert mapped.items == listed.items


def test_a_plan_joins_counts_keeps_wishes_and_runs_in_order(people: dp.Session) -> None:
    plan = people.plan(
        [*COUNTS, MEAN, {"sql": "SELECT COUNT(*) AS n FROM people WHERE bmi > 50", "within": 30}], epsilon=2
    )
    assert [type(item.work).__name__ for item in plan.items] == ["Together", "PlannedQuery", "PlannedQuery"]
    assert "2 counting queries together" in str(plan)
    assert people.spent == 0
    answers = plan.run()
    assert len(answers) == 3
    assert answers[2].error(0.95)["n"][0] <= 30
    assert people.spent == pytest.approx(2, rel=1e-4)
    with pytest.raises(dp.BudgetExceeded, match="is left"):
        people.plan(COUNTS, epsilon=4).run()
    assert people.spent == pytest.approx(2, rel=1e-4)


def test_other_kinds_of_work_take_part(people: dp.Session) -> None:
    class Stream:
        name = "a stream"

        def error(self, session: Any, epsilon: float) -> float | None:
            return None

        def run(self, session: Any, epsilon: float) -> str:
            return f"{epsilon:.2f}"

    plan = people.plan([COUNTS[0], Stream()], epsilon=1)
    assert plan.items[1].epsilon == pytest.approx(0.5)
    assert plan.run()[1] == "0.50"


@pytest.mark.parametrize(
    "work",
    [
        [],
        [3],
        [{"sql": "SELECT"}],
        [{"sql": COUNTS[1], "weight": 0}],
        [{"weight": 1}],
        [{"sql": COUNTS[1], "colour": 1}],
        [{"estimator": object()}],
        [{"estimator": object(), "target": "sex", "features": 3}],
        "SELECT",
    ],
)
def test_bad_plans_are_refused(people: dp.Session, work: Any) -> None:
    with pytest.raises(dp.InvalidInput, match=r"work|epsilon|within|target|weight|query|FROM|features"):
        people.plan(work, epsilon=1)
    with pytest.raises(dp.InvalidInput, match="accuracies alone"):
        people.plan([{"sql": COUNTS[1], "within": 1}], epsilon=0.01)
    with pytest.raises(dp.InvalidInput, match="at least 1e-09"):
        people.plan(COUNTS[:1], epsilon=1e-300)
    assert people.spent == 0


def test_a_plan_on_the_shell(tmp_path: Path) -> None:
    data = tmp_path / "people.csv"
    data.write_text("sex,bmi\n" + "f,20\nm,30\n" * 50)
    (tmp_path / "people.csv.schema.toml").write_text(
        'table = "people"\nunit = "row"\n[columns.sex]\ntype = "categories"\nvalues = ["f", '
        '"m"]\n[columns.bmi]\ntype = "number"\nlower = 10\nupper = 60\n'
    )
    shell = CliRunner()
    opened = shell.invoke(app, ["init", str(data), "--epsilon", "2"])
    assert opened.exit_code == 0, opened.output
    plan = tmp_path / "plan.toml"
    plan.write_text(
        f'data = "people.csv"\nepsilon = 1.0\n[[work]]\nsql = "{COUNTS[0]}"\n[[work]]\nsql = '
        f'"{MEAN}"\nweight = 2\n'
    )
    dry = json.loads(shell.invoke(app, ["plan", str(plan), "--json"]).stdout)
    assert dry["run"] is False
    assert sum(item["epsilon"] for item in dry["items"]) <= 1
    done = json.loads(shell.invoke(app, ["plan", str(plan), "--run", "--json"]).stdout)
    assert done["answers"][0]["columns"] == ["sex", "n"]


def test_a_plan_with_a_model_runs_within_its_epsilon(people: dp.Session) -> None:
    from discreet.tabular import LogisticRegression

    plan = people.plan([*COUNTS, MEAN, (LogisticRegression(), "sex")], epsilon=4)
    assert people.spent == 0
    counts, mean, model = plan.run()
    assert [len(answer) for answer in counts] == [2, 1]
    assert 10 <= mean.value <= 60
    assert set(model.predict({"bmi": [20.0, 50.0]})) <= {"f", "m"}
    assert 3.9 < people.spent <= 4


def test_a_huge_epsilon_is_split_though_all_errors_are_zero_in_floats(people: dp.Session) -> None:
    plan = people.plan([MEAN, COUNTS[1]], epsilon=10**5, together=False)
    assert all(item.epsilon > 0 for item in plan.items)


def test_a_model_that_fixes_its_own_noise_is_refused_where_it_costs_more_than_its_share() -> None:
    """The plan showed epsilon 0.1, and 22 was charged."""
    from discreet.learning import SGDLogisticRegression

    data = {"sex": ["f", "m"] * 200, "bmi": [20.0, 30.0] * 200}
    people = dp.open(
        data, schema={"sex": dp.Categories(["f", "m"]), "bmi": dp.Bounds(10, 60)}, unit=dp.rows(),
        budget=dp.Budget(epsilon=20, delta=1e-6), ledger=":memory:", table="people", size=400,
    )  # fmt: skip
    noisy = SGDLogisticRegression(noise_multiplier=0.3, n=400)
    with pytest.raises(
        dp.InvalidInput, match=r"cost epsilon .* and the plan gives it 0\.1.*noise_multiplier"
    ):
        people.plan([(noisy, "sex")], epsilon=0.1)
    assert people.spent == 0
    plan = people.plan([(SGDLogisticRegression(n=400), "sex")], epsilon=0.1)
    assert plan.items[0].epsilon == pytest.approx(0.1)
    with pytest.raises(dp.InvalidInput, match="not the class itself"):
        people.plan([(SGDLogisticRegression, "sex")], epsilon=0.1)
    with pytest.raises(dp.InvalidInput, match="not the class itself"):
        people.plan([{"estimator": SGDLogisticRegression, "target": "sex"}], epsilon=0.1)


@pytest.mark.parametrize("rows", [1, 5])
def test_errors_of_a_plan_are_in_units_of_what_one_person_contributes(rows: int) -> None:
    """The error of a workload was in rows, and with 5 rows per person counts were never joined into one."""
    ids = [str(i) for i in range(50)]
    stays = dp.open(
        {"who": ids * 2, "sex": ["f", "m"] * 50},
        schema={"who": dp.Text(), "sex": dp.Categories(["f", "m"])},
        unit=dp.Unit("who", rows=rows, groups=1),
        budget=dp.Budget(epsilon=5),
        ledger=":memory:",
        table="stays",
    )
    counts = ["SELECT sex, COUNT(*) AS n FROM stays GROUP BY sex", "SELECT COUNT(*) AS n FROM stays"]
    (joined,) = stays.plan(counts, epsilon=1).items
    assert str(joined).startswith("epsilon 1: 2 counting queries together (error about 1.")
    assert "times what one person contributes at most" in str(joined)
    (alone,) = stays.plan(counts[:1], epsilon=1).items
    preview = str(stays.preview(counts[0], epsilon=1))
    deviation = float(preview.split("standard deviation ")[1].splitlines()[0].rstrip("."))
    assert alone.error * rows == pytest.approx(deviation, rel=1e-3)
