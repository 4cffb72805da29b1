"""Explanations say the right numbers, to three audiences, of everything that has a price, and load nothing."""

from __future__ import annotations

import json
import math
import re
from fractions import Fraction
from xml.etree import ElementTree

import numpy as np
import pytest

import discreet as dp
from discreet import accounting as acc
from discreet.explaining import DEPLOYMENTS, Risk
from discreet.explaining.odds import _bet, odds
from discreet.explaining.subjects import Spending, columns, explain_question, explain_spending
from discreet.explaining.words import AUDIENCES, number, out_of, percent
from discreet.tables import rand_hie


def flat(explanation: object) -> str:
    """The text without its line breaks."""
    return " ".join(str(explanation).split())


COUNT = "SELECT COUNT(*) AS n FROM rand_hie"


@pytest.fixture(scope="module")
def people() -> dp.Session:
    opened = dp.open(
        rand_hie(year=1),
        budget=dp.Budget(epsilon=3, delta=1e-6),
        analysts={"ann": dp.Budget(epsilon=1), "bob": None},
        ledger=":memory:",
    )
    opened.sql("SELECT health, COUNT(*) AS n FROM rand_hie GROUP BY health", epsilon=0.5)
    opened.as_analyst("ann").sql(COUNT, epsilon=0.25)
    return opened


def test_an_epsilon_of_one() -> None:
    text = flat(dp.explain(1.0))
    assert "at most 74 in 100" in text  # e / (1 + e), rounded up
    assert "no more than 14 in 100" in text  # 5% times e
    assert "at most 2,720" in text  # an expected cost of 1,000
    assert "Not encryption" in text


@pytest.mark.parametrize("audience", AUDIENCES)
def test_each_audience_gets_its_own_text_of_everything(people: dp.Session, audience: str) -> None:
    answer = people.sql(COUNT, epsilon=0.125)
    budget, preview = people.budget, people.preview(COUNT, epsilon=0.5)
    for subject in (0.5, acc.Laplace(noise_multiplier=2), answer, people, budget, preview):
        shown = dp.explain(subject, audience=audience)
        assert shown.audience == audience
        assert shown.risk.bounded
        assert shown.sections[-1].heading == "What this is not"
        assert not re.search(r"\b(anonymous|safe|guaranteed|inf|nan)\b", str(shown), re.I)
        json.dumps(shown.to_json(), allow_nan=False)
    assert len({flat(dp.explain(1.0, audience=name)) for name in AUDIENCES}) == 3


def test_what_was_started_is_explained_by_the_price_that_was_paid() -> None:
    opened = dp.open(rand_hie(), budget=dp.Budget(epsilon=3, delta=1e-6), ledger=":memory:")
    stream = opened.stream(COUNT, epsilon=1, delta=1e-7, horizon=64, participations=2)
    watch = opened.watch(100, epsilon=1, positives=2)
    for subject, mechanism in (
        (stream, stream.counter),
        (watch, watch.live.mechanism),
        (watch.live, watch.live.mechanism),
    ):
        shown, plain = dp.explain(subject), dp.explain(mechanism)
        assert shown.risk == plain.risk
        assert shown.risk.epsilon == pytest.approx(1, rel=1e-3)
        assert f"this {type(subject).__name__} means" in shown.title
        assert shown.facts[-1] == plain.facts[-1]
        assert shown.risk.delta == 0
    gaussian = opened.stream(
        COUNT, epsilon=1, delta=1e-7, horizon=64, participations=2, strategy="blt"
    )  # the delta that was asked for, not the usual one
    assert dp.explain(gaussian).risk.delta == 1e-7
    assert dp.explain(gaussian).risk.epsilon == pytest.approx(1, rel=0.02)
    assert "one person" in flat(dp.explain(gaussian))


def test_a_session_adds_up_and_an_analyst_sees_only_what_is_theirs(people: dp.Session) -> None:
    steward, ann = flat(dp.explain(people)), flat(dp.explain(people.as_analyst("ann")))
    assert "GROUP BY health" in steward
    assert "0.75" in steward
    assert "GROUP BY health" not in ann
    assert "0.75" not in ann
    assert "epsilon 0.25 of 1" in ann


def test_a_planned_question_in_its_own_units(people: dp.Session) -> None:
    before = people.spent
    shown = people.explain(COUNT, epsilon=0.5)
    error = people.preview(COUNT, epsilon=0.5).query.errors[0]  # type: ignore[union-attr]
    assert f"within {number(error)} of the exact one" in flat(shown)
    assert people.spent == before
    query = lambda price: people.preview(COUNT, epsilon=price).query  # noqa: E731
    (column,) = columns(query, 0.5, size=5000)  # type: ignore[arg-type]
    assert column.halved_at is not None
    assert query(column.halved_at).errors[0] <= column.error / 2  # type: ignore[union-attr]
    assert query(column.halved_at / 1.05).errors[0] > column.error / 2  # type: ignore[union-attr]
    assert column.share == pytest.approx(column.error / 5000)
    assert [y for _, y in column.curve] == sorted((y for _, y in column.curve), reverse=True)


def test_averages_without_a_declared_size_say_so_and_by_accuracy_works(people: dp.Session) -> None:
    assert "comes with the answer" in str(
        people.explain("SELECT AVG(visits) AS v FROM rand_hie", epsilon=0.5)
    )
    assert people.explain(COUNT, within=20).risk.epsilon < 0.5
    with pytest.raises(dp.InvalidInput, match="say what the answer may cost"):
        people.explain(COUNT)
    with pytest.raises(dp.InvalidInput, match="rho"):
        people.explain(COUNT, rho=0.1)


def test_a_model_is_explained_by_the_price_of_its_training() -> None:
    rng = np.random.default_rng(0)
    x = rng.uniform(0, 1, 300)
    people = dp.open(
        {"x": x, "y": np.where(x > 0.5, "a", "b")},
        table="t",
        schema={"x": dp.Bounds(0, 1), "y": dp.Categories(["a", "b"])},
        unit=dp.rows(), size=300, budget=dp.Budget(epsilon=3, delta=1e-6), ledger=":memory:",
    )  # fmt: skip
    model = people.fit(dp.tabular.LogisticRegression(epsilon=1, method="output"), target="y")
    shown = dp.explain(model)
    assert shown.risk.event == model.event_
    assert shown.risk.epsilon <= 1.0
    assert dict(shown.facts)["Released"] == "a model, LogisticRegression"


def test_seeded_values_are_not_said_to_be_private() -> None:
    text = flat(dp.explain(acc.NonPrivate()))
    assert "There is no bound" in text
    with pytest.raises(dp.InvalidInput, match="where nothing is promised there is nothing to"):
        dp.explain(acc.NonPrivate()).plot()


def test_pages_and_labels_load_nothing_and_escape_what_others_wrote() -> None:
    account = Spending("<b>x</b>", "epsilon", 1.0, 2.0, 0.0, (("<script>alert(1)</script>", 1.0),))
    shown = explain_spending([account], title="<img src=x>", facts=[("a", "<i>")])
    for html in (shown.to_html(), shown.label(), shown._repr_html_()):
        assert not re.search(r"<(script|img|link|iframe|i|b>x)\b", html)
        assert not re.search(r"<[^>]*(src|href|url)\s*[=(]", html)
        hosts = set(re.findall(r"https?://([^/\"']+)", html))
        assert hosts <= {"www.w3.org"}  # the name of the SVG language, which nobody loads


def test_pictures_are_well_formed(people: dp.Session, tmp_path: object) -> None:
    shown = people.explain(COUNT, epsilon=0.5)
    assert len(shown.pictures) == 3
    for heading in shown.pictures:
        ElementTree.fromstring(shown.plot(heading).svg())
    path = shown.plot().save(f"{tmp_path}/p.svg")
    assert path.read_text().startswith("<svg")
    with pytest.raises(dp.InvalidInput, match="heading must be"):
        shown.plot("nothing")


@pytest.mark.parametrize("epsilon", [0, 1e-9, 0.1, 20, 1000, 1e300])
def test_every_epsilon_can_be_explained(epsilon: float) -> None:
    for audience in AUDIENCES:
        shown = dp.explain(epsilon, audience=audience)
        assert shown.label()
        assert str(shown)


@pytest.mark.parametrize(
    ("wrong", "fact"),
    [
        (-1, "epsilon must be zero or above"),
        (math.nan, "epsilon must be a number"),
        ("x", "subject must be an epsilon, an event, an answer, a release, a"),
        (None, "subject must be an epsilon, an event, an answer, a release, a"),
        (True, "subject must be an epsilon, an event, an answer, a release, a"),
        (object(), "subject must be an epsilon, an event, an answer, a release, a"),
        (dp.Budget, "subject must be an epsilon, an event, an answer, a release, a"),
    ],
)
def test_what_has_no_price_is_refused(wrong: object, fact: str) -> None:
    with pytest.raises(dp.InvalidInput, match=fact):
        dp.explain(wrong)


@pytest.mark.parametrize(
    ("options", "fact"),
    [
        ({"audience": "child"}, "audience must be"),
        ({"delta": 2}, "delta must be between 0 and 1"),
        ({"delta": -1}, "delta must be between 0 and 1"),
        ({"neighbors": "x"}, "neighbors must be one of add_remove, replace, zero_out"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, object], fact: str) -> None:
    with pytest.raises(dp.DiscreetError, match=fact):
        dp.explain(1.0, **options)  # type: ignore[arg-type]


def test_numbers_are_rounded_up() -> None:
    assert out_of(0.5000001) == "51 in 100"
    assert out_of(0.0) == "0 in 100"
    assert out_of(1.0) == "100 in 100"
    assert number(2.71828) == "2.72"
    assert number(math.inf) == "without limit"
    assert percent(0.123401) == "12.4%"
    assert number(12_340.1) == "12,400"


def test_nothing_is_rounded_to_certainty_or_to_nothing() -> None:
    text = flat(dp.explain(5.0))
    assert "994 in 1,000" in text
    assert "100 in 100." not in text
    for exponent in range(1, 16):
        assert not out_of(10.0**-exponent).startswith("0 ")
        almost = out_of(1 - 10.0**-exponent), percent(1 - 10.0**-exponent)
        assert not {"100 in 100", "1,000,000,000 in 1,000,000,000", "100%", "100.0%"} & set(almost), almost
    assert _bet(Risk(acc.PureDP(epsilon=6.95))) is None  # 99.904%: tenths would round it to 100:0
    assert _bet(Risk(acc.PureDP(epsilon=6.5))) == "99.9:0.1"


def test_the_declared_unit_is_named() -> None:
    data = {"patient_id": [1, 1, 2], "x": [0, 1, 2]}
    schema = {"patient_id": dp.Text(), "x": dp.Bounds(0, 5)}
    public = {"table": "t", "budget": dp.Budget(epsilon=3), "ledger": ":memory:"}
    named = dp.open(data, schema=schema, unit=dp.Unit("patient_id", rows=2), **public)
    rows = dp.open(data, schema=schema, unit=dp.rows(), **public)
    question = "SELECT COUNT(*) AS n FROM t"
    for shown in (named.explain(), named.explain(question, epsilon=1.0)):
        assert "one patient" in flat(shown)
        assert "one unit" not in flat(shown)
        assert "one patient, whether they are in the data" in dict(shown.facts)["Protected"]
    assert "protecting one row, whether" in flat(rows.explain())
    assert "protecting one unit, whether" in flat(dp.explain(1.0))


def test_every_deployment_has_a_source_and_was_read_a_second_time() -> None:
    assert len(DEPLOYMENTS) >= 15
    for one in DEPLOYMENTS:
        assert one.epsilon > 0
        assert one.source
        assert one.checked
        assert one.url.startswith("https://")
        assert one.unit


def test_the_census_epsilon_is_what_our_accounting_makes_of_its_published_rho() -> None:
    """A second route to the figure: rho 2.56 at delta 1e-10. The published rho is rounded."""
    (persons,) = [one for one in DEPLOYMENTS if "redistricting data, persons" in one.what]
    rho = float(persons.what.split("rho ")[1].rstrip(")"))
    assert acc.epsilon(acc.ZCDP(rho=rho), delta=persons.delta) == pytest.approx(persons.epsilon, rel=0.005)


def test_every_published_rho_of_the_census_is_between_our_accounting_and_the_simple_conversion() -> None:
    """epsilon = rho + 2 sqrt(rho ln(1 / delta)) (Bun & Steinke 2016) is what a careful agency claims at most."""
    census = [one for one in DEPLOYMENTS if "Census" in one.who]
    assert len(census) == 4
    for one in census:
        rho = float(one.what.split("rho ")[1].rstrip(")"))
        assert one.delta is not None
        simple = rho + 2 * math.sqrt(rho * math.log(1 / one.delta))
        ours = acc.epsilon(acc.ZCDP(rho=rho), delta=one.delta)
        assert ours * 0.995 <= one.epsilon <= simple * 1.001, one.what


def test_a_budget_in_rho_is_explained_at_a_delta() -> None:
    shown = dp.explain(dp.Budget(rho=0.1, delta=1e-6))
    assert shown.risk.epsilon == acc.epsilon(acc.ZCDP(rho=0.1), delta=1e-6)


def test_an_analyst_without_a_budget_of_their_own_sees_no_question_of_others(people: dp.Session) -> None:
    people.as_analyst("bob").sql("SELECT COUNT(*) AS bobs FROM rand_hie WHERE age > 30", epsilon=0.1)
    text = flat(dp.explain(people.as_analyst("bob"), audience="engineer"))
    assert "bobs" in text
    assert "GROUP BY health" not in text
    assert "(asked by somebody else)" in text


def test_budgets_of_every_kind_used_or_not() -> None:
    data = {"day": ["2026-01-03", "2026-02-11"], "x": [1, 2]}
    schema = {"day": dp.Dates("2026-01-01", "2026-12-31"), "x": dp.Bounds(0, 9)}
    monthly = dp.Period(column="day", every="month")
    budgets = (dp.Budget(epsilon=1), dp.Budget(rho=0.1), dp.Budget(epsilon=1, delta=1e-6, per=monthly))
    for budget in budgets:
        for options in ({}, {"neighbors": "replace", "size": 2}, {"neighbors": "zero_out"}):
            if budget.per is not None and options:
                # budgets per period are for add_remove
                continue
            opened = dp.open(
                data, table="t", schema=schema, unit=dp.rows(), budget=budget, ledger=":memory:", **options
            )
            assert dp.explain(opened).risk.epsilon < 1e-3
            part = opened.during("2026-01") if budget.per is not None else opened
            part.sql("SELECT COUNT(*) AS n FROM t WHERE x > 1", epsilon=0.25)
            for audience in AUDIENCES:
                shown = dp.explain(opened, audience=audience)
                # a rho is told at delta 1e-6, where it is worth more epsilon than was asked for
                assert 0 < shown.risk.epsilon < 2
                assert shown.label()


@pytest.mark.parametrize("number", [np.float64(1), np.int64(1), Fraction(1), 1])
def test_every_kind_of_number_is_an_epsilon(number: object) -> None:
    assert dp.explain(number).risk.epsilon == pytest.approx(1.0)


def test_several_counts_and_mechanisms_are_explained(people: dp.Session) -> None:
    both = "SELECT COUNT(*) AS n, COUNT_IF(age > 40) AS old FROM rand_hie"
    assert people.explain(both, epsilon=0.5).risk.epsilon <= 0.5
    count = dp.mechanisms.noisy_count(people.public, epsilon=Fraction(1, 4))
    assert dp.explain(count).risk.epsilon <= 0.25
    release = people.ask(count)
    assert dp.explain(release).risk.epsilon <= 0.25
    with pytest.raises(dp.DiscreetError, match="nothing is declared"):
        people.explain("SELECT nothing FROM rand_hie", epsilon=0.5)
    with pytest.raises(dp.DiscreetError, match="text must be a text"):
        people.explain(["SELECT COUNT(*) AS n FROM rand_hie"], epsilon=0.5)  # type: ignore[arg-type]
    with pytest.raises(dp.DiscreetError, match="explain has no option"):
        people.explain(COUNT, epsilon=0.5, colour="red")


def test_the_two_factors_of_one_price_are_told_apart():
    """With a delta, odds are bounded by e^(epsilon + 0.1) and chances by e^epsilon: each says which it is."""
    explanation = dp.explain(1.0, delta=1e-6)
    text = " ".join(str(explanation).split())
    assert "76 in 100" in text
    assert "a factor of 2.72, and a remainder of 1e-06" in text
    assert "the larger bound 3.01, because delta is not 0" in text
    label = explanation.label()
    assert "3.01 times" in label
    assert "2.72 times, plus delta 1e-06" in label
    assert "delta / (1 - e^-0.1)" in label
    assert "larger bound" not in " ".join(str(dp.explain(1.0)).split())


TABLE = {"table": "t", "schema": {"x": dp.Bounds(0, 1)}, "unit": dp.rows(), "ledger": ":memory:"}


def test_one_answer_without_a_delta_has_the_same_odds_on_every_page():
    """The ledger's page took the whole budget's delta as spent: 52.5:47.5 on one page, 55 in 100 on another."""
    people = dp.open({"x": [1, 0]}, budget=dp.Budget(epsilon=2, delta=1e-6), **TABLE)
    answer = people.sql("SELECT COUNT(*) AS n FROM t", epsilon=0.1)
    ledger = dp.explain(people)
    assert (ledger.risk.delta, ledger.risk.after(0.5)) == (0.0, dp.explain(answer).risk.after(0.5))
    for page in (str(ledger), ledger.label(), str(dp.explain(answer))):
        assert "53 in 100" in page
        assert "55 in 100" not in page
    assert "bet at most 53:47" in odds(answer.event, float(answer.delta or 0.0))


def test_many_answers_have_the_lesser_of_both_bounds():
    people = dp.open({"x": [1, 0]}, budget=dp.Budget(epsilon=2, delta=1e-6), **TABLE)
    for i in range(100):
        people.sql("SELECT COUNT(*) AS n FROM t", epsilon=0.02, fresh=i > 0)
    risk = dp.explain(people).risk
    assert people.spent < 1.9, "the filter's total is below the sum"
    assert (risk.delta, risk.epsilon) == (1e-6, pytest.approx(people.spent))
    assert "more than the charges' own deltas" in " ".join(str(dp.explain(people)).split())
    # One charge with a delta of its own: the sum has that delta.
    spent = Spending("x", "epsilon", 0.5, 2.0, 1e-6, pure=0.5, own_delta=1e-9)
    assert spent.risk().delta == 1e-9


def test_the_account_with_the_largest_risk_is_shown_and_a_limit_may_be_infinite():
    """That with the largest part of its limit was shown: 0.9 of 1, and not 50 of 100."""
    small = Spending("small", "epsilon", 0.9, 1.0, 0.0)
    large = Spending("large", "epsilon", 5.0, 100.0, 0.0)
    endless = Spending("endless", "epsilon", 7.0, math.inf, 0.0, (("a", 3.0), ("b", 7.0)))
    assert explain_spending([small, large], title="t").risk.epsilon == 5.0
    explanation = explain_spending([small, endless, large], title="t")
    assert explanation.risk.epsilon == 7.0
    assert "there is no limit" in str(explanation)
    assert explanation.label()
    assert explanation.to_html()
    rho = Spending("rho", "rho", 0.5, math.inf, 0.0)
    assert math.isfinite(explain_spending([rho], title="t").risk.epsilon)


def test_beliefs_over_several_periods_count_every_period():
    """A person with rows in three months is in the results of three months: one month's epsilon is too small."""
    data = {"who": ["a", "a", "b"], "day": ["2026-01-03", "2026-02-11", "2026-03-12"], "x": [1, 2, 3]}
    schema = {"who": dp.Text(), "day": dp.Dates("2026-01-01", "2026-12-31"), "x": dp.Bounds(0, 9)}
    for total in ("unlimited", dp.Budget(epsilon=10)):
        months = dp.Budget(epsilon=1, per=dp.Period(column="day", every="month", total=total))
        opened = dp.open(
            data, table="t", schema=schema, unit=dp.Unit("who", rows=2), budget=months, ledger=":memory:"
        )
        assert "Nothing was asked yet" in str(dp.explain(opened))
        for month in ("2026-01", "2026-02", "2026-03"):
            opened.during(month).sql("SELECT COUNT(*) AS n FROM t", epsilon=0.5, rows=1)
        text = flat(dp.explain(opened))
        assert dp.explain(opened).risk.epsilon == pytest.approx(1.5)
        assert "at most 82 in 100" in text  # e^1.5 / (1 + e^1.5), where e^0.5 would give 63
        assert "Nothing was asked yet" not in text
        assert not re.search(r"\b(inf|nan)\b", text)


@pytest.mark.parametrize("neighbors", ["add_remove", "replace", "zero_out"])
def test_every_sentence_compares_with_a_neighboring_table(neighbors: str) -> None:
    """Under replace the bounds say nothing of a table without the person: its size would be another."""
    for audience in AUDIENCES:
        text = flat(dp.explain(1.0, audience=audience, neighbors=neighbors))
        assert ("had stayed away" in text) == (neighbors == "add_remove")
        assert ("record had said anything else" in text) == (neighbors == "replace")
        assert "not taken part" not in text
        assert "its record" not in text


def test_the_edges_of_epsilon_and_delta_are_told_as_they_are() -> None:
    assert "a factor of e^1,000." in flat(dp.explain(1000.0))  # e^700 would be too small
    assert "almost the same" not in flat(dp.explain(10.0))
    assert dp.explain(5e-324, audience="policy").label()
    assert dp.explain(1.0, delta=1e-323, audience="policy").label()
    for audience in AUDIENCES:
        large = dp.explain(1.0, delta=0.1, audience=audience)
        assert "no useful bound on how sure somebody can become" in flat(large)
        assert "without limit" not in flat(large) + large.label()
        json.dumps(large.to_json(), allow_nan=False)
        # (0, 1) holds of everything: no epsilon of 0 is to be read there
        assert "There is no bound: nothing is promised at delta 1." in flat(
            dp.explain(1.0, delta=1.0, audience=audience)
        )
    groups = flat(dp.explain(10.0, delta=1e-6, audience="policy"))
    assert "4 units together: nothing is promised at delta 1." in groups
    assert "epsilon 0, delta 1" not in groups


def test_exceptions_are_rounded_up_and_counted_for_each_direction() -> None:
    """Under P the odds leave the factor on either side with up to (1 + 1/factor) odds_fail in all."""
    text = flat(dp.explain(1.0, delta=1e-6, audience="engineer"))
    assert "except with probability 1.06e-05 in each direction" in text
    assert "delta 5.44e-06" in text  # 2 e delta, which is 5.43656...e-06
    assert "(except with probability 5.72e-05 in each direction)" in text


def test_the_share_of_the_declared_size_is_said_of_counts_alone_and_chosen_values_have_none() -> None:
    facts = {"table": "t", "schema": {"x": dp.Bounds(0, 10)}, "unit": dp.rows(), "ledger": ":memory:"}
    opened = dp.open({"x": [1.0] * 50}, size=50, neighbors="replace", budget=dp.Budget(epsilon=3), **facts)
    preview = opened.preview("SELECT AVG(x) AS a, MEDIAN(x) AS m FROM t", epsilon=1.0).query
    text = flat(explain_question(lambda price: preview, 1.0, title="t", size=50))  # type: ignore[arg-type,return-value]
    assert "If a is a count, that is" in text
    assert "m: chosen values, which have no ±" in text
    assert "Declare the size of the table" not in text


def test_an_unknown_audience_is_named_also_in_a_session(people: dp.Session) -> None:
    """It was a KeyError."""
    for ask in (lambda: people.explain(audience="children"), lambda: dp.explain(people, audience="children")):
        with pytest.raises(dp.InvalidInput, match=r"audience must be .*'children'"):
            ask()
