"""Every claim of README and of the tour has a test or a benchmark behind it: this is the list, and it is kept true.

Each row is a phrase as it stands on one of these pages, and what shows it: a test by file and name, or a benchmark.
A phrase that was changed, and a test that was renamed or removed, fail here.
"""

from __future__ import annotations

import re
from inspect import ismodule
from pathlib import Path

import numpy as np
import pytest

import discreet as dp
from discreet.adaptive import ProportionTest

from ..loops import for_each

PACKAGES = {name for name in dp.__all__ if ismodule(getattr(dp, name))}

ROOT = Path(__file__).parents[2]
TOUR = (ROOT / "docs" / "tour.md").read_text()
# lines may be broken anywhere
CLAIMING = " ".join(
    ((ROOT / "README.md").read_text() + TOUR + (ROOT / "CONTRIBUTING.md").read_text()).split()
)

CLAIMS = [
    ("shows price and error beforehand, for free", "tests/curator/test_curator.py::test_preview_touches_nothing_and_takes_the_tighter_budget"),
    ("the answers stop when the budget is gone", "tests/session/test_session.py::test_the_budget_is_enforced_and_what_is_refused_costs_nothing"),
    ("shows the private answers with their price, their error, and the truth beside them", "tests/app/test_demo.py::test_it_shows_a_price_an_error_and_the_truth"),
    ("in less than a minute", "tests/app/test_demo.py::test_the_first_answer_comes_within_ten_seconds_and_all_within_a_minute_of_cpu"),
    ("two shorter chapters follow", "tests/app/test_demo.py::test_every_chapter_is_told_and_where_there_is_more"),
    ("the scripts of `examples/` tell more, from attacks on models to a leaderboard", "tests/examples/test_stories.py"),
    ("They need Python 3.11 or newer", "tests/ground/test_wheel.py::test_it_installs_and_answers_on"),
    ("two exact counts that differ in one person give that person away", "tests/auditing/test_anonymity.py::test_differencing_reads_every_bit_off_exact_counts_and_few_off_private_ones"),
    ("discreet keeps that sum for everything that is ever done with the table", "tests/ground/test_claims.py::test_one_ledger_for_sql_models_tests_streams_and_copies"),
    ("what it means for one person", "tests/explaining/test_explain.py"),
    ("price, error, how many of these fit: free", "tests/session/test_session.py::test_preview_is_free_and_says_how_many_more_fit"),
    ("the same question again is free", "tests/session/test_session.py::test_a_question_is_charged_answered_and_then_free"),
    ("Only the names of columns are read for the draft", "tests/app/test_cli_query.py::test_init_drafts_questions_and_reads_no_value"),
    ("It may be messy", "tests/ground/test_readme.py::test_its_commands_answer_a_messy_file_from_an_empty_folder"),
    ("all rows of one patient are protected together", "tests/session/test_session.py::test_many_rows_of_one_person_are_protected_together"),
    ("how well the file fits, for you alone", "tests/app/test_cli_roles.py::test_a_look_tells_shares_and_no_value"),
    ("a one-page privacy label", "tests/explaining/test_cli.py::test_a_label_prints_on_one_page"),
    ("| epsilon of DP-SGD, proved from both sides |", "benchmarks/accounting.py"),
    ("| exact discrete Laplace noise, scale 10 |", "benchmarks/sampling.py"),
    ("| a step of DP-SGD over a plain one, MLP |", "benchmarks/learning.py"),
    ("| accuracy on Adult at epsilon 1 (plain 0.8525) |", "benchmarks/tabular.py"),
    ("| accuracy on CIFAR-10 at epsilon 3, on two CPU cores |", "benchmarks/vision.py"),
    ("| a million local reports over 10,000 values |", "benchmarks/local.py"),
    ("| one ledger for SQL, models, tests, streams and copies |", "tests/ground/test_claims.py::test_one_ledger_for_sql_models_tests_streams_and_copies"),
    ("The figures are those of the pages", "tests/ground/test_readme.py::test_the_figures_it_compares_stand_on_the_pages_it_names"),
    ("ask by accuracy instead", "tests/session/test_session.py::test_asking_by_accuracy_takes_the_least_price_that_promises_it"),
    ("a real table, 5,912 people", "tests/ground/test_claims.py::test_the_table_that_comes_with_it_is_what_it_says"),
    ("ann's own limit; together nobody exceeds the dataset's", "tests/curator/test_curator.py::test_an_analyst_stops_at_their_own_budget_and_all_together_at_the_datasets"),
    ("Spark computes, only aggregates of groups come back", "tests/tables/test_spark.py::test_only_aggregates_come_back"),
    ("or a table that stays in PostgreSQL", "tests/session/test_postgres.py::test_all_statements_of_one_answer_see_one_snapshot"),
    ("A CSV file may have any names, delimiter, decimal mark and date formats", "tests/app/test_walk.py::test_what_the_file_says_is_read_as_it_is_meant"),
    ("exit codes for scripts", "tests/app/test_cli_query.py::test_a_script_can_tell_a_spent_budget_from_bad_input"),
    ("`discreet init -i` asks its questions one by one", "tests/app/test_cli_interactive.py"),
    ("it is marked in the draft and noted in the ledger", "tests/app/test_walk.py::test_the_walk_of_the_tour_has_no_stop"),
    ("An analyst with a budget of their own sees that account, and not what others have spent", "tests/session/test_options.py::test_an_analyst_is_not_told_what_others_spent_when_the_datasets_budget_is_gone"),
    ("In a notebook answers, previews, sessions and budgets show themselves", "tests/session/test_options.py::test_a_notebook_shows_answers_previews_sessions_and_budgets"),
    ("asks how many people have more than 20 rows", "tests/session/test_options.py::test_a_priced_question_tells_whom_a_limit_cuts_off"),
    ("Related counts are answered together, for one price and in agreement with each other", "tests/query/test_workload.py::test_noisy_answers_agree_with_each_other"),
    ("A count that is published every day, for one price in all", "tests/streaming/test_counter.py"),
    ("A table that grows has a budget for each period", "tests/curator/test_periods.py::test_each_period_has_its_own_budget_and_a_release_is_charged_to_what_it_reads"),
    ("an analyst who looks often pays only for what is found", "tests/curator/test_live.py::test_all_is_paid_at_the_start_and_answers_are_free"),
    ("goes on with what was paid for", "tests/session/test_feed.py::test_what_has_a_feed_is_given_each_version_once"),
    ("charged to the same budget as SQL", "tests/session/test_reading.py::test_a_fresh_budget_admits_one_model_asked_with_all_of_it"),
    ("resumed after a crash", "tests/app/test_cli_train.py::test_a_run_is_resumed_for_nothing"),
    ("A holdout that can be asked for ever", "tests/adaptive/test_holdout.py::test_plain_reuse_overfits_and_the_reusable_holdout_does_not"),
    ("pay at the start and halt for good", "tests/curator/test_live.py::test_it_halts_for_good_also_when_resumed"),
    ("SQL with its price, error and odds before you pay", "tests/web/test_console.py::test_an_analyst_sees_the_price_before_paying_runs_and_downloads"),
    ("has the verbs of a local session", "tests/web/test_client.py::test_a_preview_and_an_answer_are_those_of_a_local_session"),
    ("a survey whose answers are randomized on the device", "tests/web/test_survey.py::test_the_true_answer_never_leaves_the_page"),
    ("2.3817, a certified upper bound", "tests/app/test_cli_accounting.py::test_epsilon_is_never_below_the_truth_and_within_1e_4"),
    ("the distribution of what is drawn is the stated one", "tests/sampling/test_noise.py::test_discrete_laplace_has_its_law"),
    ("noise as fast as numpy's floats", "benchmarks/sampling.py"),
    ("private before they leave a device (also in the browser)", "tests/local/test_javascript.py::test_javascript_reports_from_its_own_randomness_estimate_the_truth"),
    ("the tests with the newest of every dependency but torch", "Makefile"),
    ("built offline, loads nothing from elsewhere", "tests/ground/test_site.py::test_the_site_is_built_strictly_and_loads_nothing_from_another_host"),
    ("530 MB of packages on Linux", "benchmarks/install.py"),
    ("with `pip install --no-compile .` it is 455 MB", "tests/ground/test_wheel.py::test_it_installs_and_answers_on"),
    ("that we test, 433 MB", "benchmarks/install.py"),
    ("The pages are installed, too", "tests/ground/test_wheel.py::test_it_holds_the_package_the_data_and_the_pages"),
]  # fmt: skip


@for_each(("phrase", "where"), CLAIMS, ids=[phrase[:40] for phrase, _ in CLAIMS])
def test_a_claim_stands_on_a_page_and_is_shown_somewhere(phrase: str, where: str) -> None:
    assert phrase in CLAIMING, "changed: is what shows it still right?"
    path, _, name = where.partition("::")
    text = (ROOT / path).read_text()
    assert not name or re.search(rf"^def {name}\(", text, re.M), where


def test_every_package_in_the_table_of_the_tour_has_a_page_and_tests() -> None:
    table = TOUR.split("## What is in the package")[1].split("\n## ")[0]
    packages = re.findall(r"^\| `discreet\.(\w+)` \|.*\|(.*)\|$", table, re.M)
    assert {name for name, _ in packages} == set(PACKAGES)
    for name, pages in packages:
        assert re.search(r"\([\w/]+\.md", pages), name
        assert list((ROOT / "tests" / name).glob("test_*.py")), name


def test_one_ledger_for_sql_models_tests_streams_and_copies() -> None:
    """Five kinds of work, one account: what each was asked at adds up, and the sixth is refused."""
    random = np.random.default_rng(0)
    dose = random.uniform(0, 10, 800)
    people = dp.open(
        {"dose": dose, "well": dose + random.normal(size=800) > 5}, table="people", unit=dp.rows(), size=800,
        schema={"dose": dp.Bounds(0, 10, nullable=False), "well": dp.Boolean(nullable=False)},
        budget=dp.Budget(epsilon=2.5, delta=1e-5), ledger=":memory:",
    )  # fmt: skip
    work = (
        lambda: people.sql("SELECT COUNT(*) AS n FROM people", epsilon=0.5),
        lambda: people.fit(dp.tabular.LogisticRegression(epsilon=0.5, method="output"), target="well"),
        lambda: people.ask(ProportionTest(public=people.public, column="well", chance=0.5, epsilon=0.5)),
        lambda: people.stream("SELECT COUNT(*) AS n FROM people", epsilon=0.5, horizon=4),
        lambda: people.synthesize(20, epsilon=0.5, method="independent", bins={"dose": [0, 5, 10]}),
    )
    for number, task in enumerate(work, start=1):
        task()
        assert people.spent == pytest.approx(0.5 * number, abs=1e-9)
    with pytest.raises(dp.BudgetExceeded, match="this would raise epsilon from"):
        people.sql("SELECT SUM(dose) AS d FROM people", epsilon=0.5)
    assert people.curator.verify() == []


def test_the_table_that_comes_with_it_is_what_it_says() -> None:
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    table = pq.read_table(ROOT / "src" / "discreet" / "data" / "rand_hie.parquet")
    assert table.num_rows == 20_190
    assert pc.count_distinct(table["person"]).as_py() == 5_912
