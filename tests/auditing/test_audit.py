"""The audit of any callable: it stays below the truth, comes close to it, and refutes what lies."""

from __future__ import annotations

import json
import math
from fractions import Fraction
from html.parser import HTMLParser

import numpy as np
import pytest
from typer.testing import CliRunner

from discreet import Bounds, Categories, Public, accounting, auditing, mechanisms, tables
from discreet._errors import InvalidInput
from discreet.app.cli import app
from discreet.auditing.outputs import Outputs, atoms
from discreet.sampling import SeededEntropy

SURE = 1 - 1e-9  # a true claim is refuted once in a billion tests


def noisy(sample, *, seed=0):
    rng = np.random.default_rng(seed)
    return lambda data: data + sample(rng)


laplace = noisy(lambda rng: rng.laplace())


def test_laplace_noise_is_shown_to_cost_most_of_what_it_claims():
    found = auditing.audit(laplace, 1.0, 0.0, claim=1.0, runs=20_000, confidence=SURE)
    assert not found.refuted
    assert 0.75 < found.epsilon <= 1
    assert found.attack == "output"


def test_half_the_noise_is_refuted():
    found = auditing.audit(
        noisy(lambda rng: rng.laplace(scale=0.5)), 1.0, 0.0, claim=1.0, runs=8000, confidence=SURE
    )
    assert found.refuted
    assert 1.2 < found.epsilon <= 2


def test_a_gaussian_claim_is_tested_along_its_whole_curve():
    event = accounting.Gaussian(noise_multiplier=1.0)
    honest = auditing.audit(
        noisy(lambda rng: rng.normal()), 1.0, 0.0, claim=event, runs=20_000, confidence=SURE
    )
    assert not honest.refuted
    assert 0.8 < honest.mu <= 1
    assert honest.claim.epsilon == pytest.approx(4.377178, abs=1e-4)
    lying = auditing.audit(
        noisy(lambda rng: rng.normal(scale=0.7)), 1.0, 0.0, claim=event, runs=20_000, confidence=SURE
    )
    assert lying.refuted
    assert str(lying).startswith("REFUTED (an attack beats its trade-off curve)")
    assert "below the claimed trade-off curve" in lying.html()
    assert lying.epsilon < lying.claim.epsilon  # (epsilon, delta) alone would not have noticed


def test_delta_shows_as_an_event_that_gives_away_the_table():
    rng = np.random.default_rng(2)

    def sometimes_says_it(data):
        return data if rng.random() < 0.1 else rng.integers(2)

    refuted = auditing.audit(sometimes_says_it, 3, 0, claim=(0.5, 0.01), runs=4000, confidence=SURE)
    assert refuted.refuted
    assert not auditing.audit(sometimes_says_it, 3, 0, claim=(0.5, 0.2), runs=4000, confidence=SURE).refuted


def test_the_projection_finds_what_is_spread_over_many_coordinates():
    spread = noisy(lambda rng: rng.normal(size=50))
    found = auditing.audit(
        spread, np.full(50, 0.3), np.zeros(50), claim=(1.0, 1e-5), runs=3000, confidence=SURE
    )
    assert found.mu > 1.2  # the truth is 0.3 sqrt(50) = 2.12; one coordinate shows 0.3
    assert found.mu <= 0.3 * math.sqrt(50)


def test_one_draw_for_all_entries_is_found_by_a_difference():
    rng = np.random.default_rng(3)
    broadcast = lambda data: np.array(data) + rng.laplace()  # noqa: E731
    found = auditing.audit(broadcast, [3.0, 3.0], [3.0, 2.0], claim=1.0, runs=2000, confidence=SURE)
    assert found.refuted
    assert "difference" in found.attack or "logistic" in found.attack


def test_words_none_and_answers_of_different_length_are_outputs_too():
    rng = np.random.default_rng(4)

    def answers(data):
        return {"said": ["yes"] * int(rng.geometric(0.3 + 0.4 * data)), "more": None}

    found = auditing.audit(answers, 0, 1, claim=5.0, runs=2000, confidence=SURE)
    assert found.epsilon > 0.5
    assert atoms({"b": (1, None), "a": np.array([[2, 3]])}) == [2, 3, 1, None]
    outputs = Outputs.of([(1, "x"), (10**400,), ()])
    assert outputs.numbers.shape == (3, 2)  # how many, and the one place with a number
    assert outputs.numbers[1, 1] == math.inf
    assert np.isnan(outputs.numbers[2, 1])


def test_a_mechanism_brings_its_own_claim():
    public = Public(schema={"age": Bounds(0, 8), "city": Categories(["bern", "rome"])})
    here = tables.Memory({"age": [8, 1], "city": ["bern", "rome"]}, public)
    there = tables.Memory({"age": [1], "city": ["rome"]}, public)
    total = mechanisms.noisy_sum(public, "age", epsilon=1)
    found = auditing.audit(total, here, there, runs=2000, confidence=SURE, entropy=SeededEntropy(1))
    assert found.claim.epsilon == 1
    assert not found.refuted
    assert found.epsilon > 0.3
    vector = mechanisms.SparseVector(public=public, threshold=1, epsilon=Fraction(2), questions=2)
    bern = mechanisms.Component(statistic=mechanisms.Histogram(column="city"), index=0)
    run = auditing.transcript(vector, [bern] * 2, entropy=SeededEntropy(2))
    told = auditing.audit(run, here, there, claim=vector.event, runs=400, confidence=SURE)
    assert not told.refuted


def test_the_chance_of_refuting_a_true_claim_is_as_stated():
    """Randomized response at its own epsilon, 200 audits at 80%: 90 or more refutations have chance below
    1e-9."""
    from scipy import stats

    rng = np.random.default_rng(5)
    keep = math.e / (1 + math.e)
    wrong = 0
    for _ in range(200):
        first, second = rng.random(200) < keep, rng.random(200) < 1 - keep
        wrong += auditing.from_outputs(first.tolist(), second.tolist(), claim=1.0, confidence=0.8).refuted
    assert stats.binom.sf(89, 200, 0.2) < 1e-9
    assert wrong < 90


def test_outputs_and_labels_that_are_given_sorted_do_not_refute_a_true_claim():
    """Randomized response at its own epsilon, sorted as a caller may: 40 audits at 80% and 40 bounds from labels
    at 20%, each wrong with chance at most 0.2: 30 or more have chance below 1e-9. Split by position, all were."""
    from scipy import stats

    rng = np.random.default_rng()
    keep = math.e / (1 + math.e)
    refuted = above = 0
    for _ in range(40):
        first, second = (sorted((rng.random(200) < p).tolist()) for p in (keep, 1 - keep))
        refuted += auditing.from_outputs(first, second, claim=1.0, confidence=0.8).refuted
        above += auditing.epsilon_of_labels(first, second, level=0.2) > 1
    assert stats.binom.sf(29, 40, 0.2) < 1e-9
    assert refuted < 30
    assert above < 30


def test_labels_may_have_any_shape():
    first, second = [("a",), ("a", "b")] * 500, [("a",), ()] * 500
    assert auditing.epsilon_of_labels(first, second, level=1e-9) > 2
    assert auditing.epsilon_of_labels(first, first, level=1e-9) == 0


def test_equal_tables_show_nothing():
    found = auditing.audit(laplace, 0.0, 0.0, claim=0.0, runs=2000, confidence=SURE)
    assert found.epsilon == 0
    assert not found.refuted


class Tags(HTMLParser):
    def __init__(self):
        super().__init__()
        self.found = []

    def handle_starttag(self, tag, attrs):
        self.found.append(tag)


def test_the_report_is_json_and_a_page_with_the_picture(tmp_path):
    report = auditing.audit(laplace, 1.0, 0.0, claim=(0.3, 0.0), runs=4000, confidence=SURE)
    plain = json.loads(json.dumps(report.to_json()))
    assert plain["refuted"] is True
    assert plain["claim"] == {"epsilon": 0.3, "delta": 0.0}
    assert plain["guesses"]["first"] == 2000
    fprs = [x for x, _ in report.curve]
    assert fprs == sorted(fprs)
    page = report.save(tmp_path / "audit.html").read_text()
    tags = Tags()
    tags.feed(page)
    assert tags.found.count("polyline") == 3
    assert tags.found.count("circle") == 1
    assert "The claim is refuted." in page
    assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert str(report).startswith("REFUTED: claimed epsilon 0.3; at least")


def test_the_claimed_curve_is_that_of_the_pair_and_of_the_event():
    pair = auditing.report.Claim(epsilon=1.0, delta=0.1)
    assert pair.tradeoff(0.0) == pytest.approx(0.9)
    assert pair.tradeoff(0.9) == pytest.approx(0.0)
    assert pair.tradeoff(0.2) == pytest.approx(max(0.9 - math.e * 0.2, (0.9 - 0.2) / math.e))


def test_bad_arguments_are_refused_before_anything_runs():
    def never(data):
        raise AssertionError("it was run")

    for more in (
        {"claim": -1},
        {"claim": (1, 2)},
        {"claim": 1, "runs": 3},
        {"claim": 1, "confidence": 1},
        {},
    ):
        with pytest.raises(InvalidInput, match=r"must be|claim"):
            auditing.audit(never, 1, 0, **more)
    with pytest.raises(InvalidInput, match="a function of the data"):
        auditing.audit(3, 1, 0, claim=1)
    # The delta beside such a claim was ignored.
    for claim in (
        1,
        (1, 1e-6),
        accounting.Laplace(noise_multiplier=1),
        auditing.report.Claim(epsilon=1, delta=0),
    ):
        with pytest.raises(InvalidInput, match="has a delta of its own"):
            auditing.audit(never, 1, 0, claim=claim, delta=1e-5)


def test_the_shell_hears_a_delta_without_an_epsilon(tmp_path, monkeypatch):
    (tmp_path / "ours.py").write_text(
        "import discreet as dp\nfrom discreet import mechanisms\n"
        "public = dp.Public(schema={'age': dp.Bounds(0, 8)})\n"
        "pure = mechanisms.noisy_sum(public, 'age', epsilon=1)\n"
        "curve = mechanisms.gaussian(public, mechanisms.Sum('age'), rho=0.5)\n"
    )
    monkeypatch.chdir(tmp_path)
    options = ["--on", '{"age": [8]}', "--neighbor", '{"age": []}', "--runs", "40", "--json"]
    result = CliRunner().invoke(app, ["audit", "ours:curve", "--delta", "1e-3", *options])
    assert json.loads(result.output)["claim"]["delta"] == 1e-3
    refused = CliRunner().invoke(app, ["audit", "ours:pure", "--delta", "1e-3", *options]).exception
    assert isinstance(refused, InvalidInput)
    assert "a delta of its own, 0, and delta=0.001 was given" in str(refused)


def test_the_shell_audits_a_function_of_a_module(tmp_path, monkeypatch):
    module = (
        "import random\n\ndef coin(data):\n    return (sum(data) if random.random() < 0.9 else "
        "random.choice([0, 1]))\n"
    )
    (tmp_path / "somebodys.py").write_text(module)
    monkeypatch.chdir(tmp_path)
    runner = CliRunner()
    honest = runner.invoke(
        app, ["audit", "somebodys:coin", "--epsilon", "3.1", "--runs", "2000", "--confidence", "0.999999"]
    )
    assert honest.exit_code == 0, honest.output
    assert "not refuted" in honest.output
    arguments = [
        "audit",
        "somebodys:coin",
        "--epsilon",
        "1",
        "--runs",
        "2000",
        "--json",
        "--html",
        "page.html",
    ]
    lying = runner.invoke(app, arguments)
    assert lying.exit_code == 1
    assert json.loads(lying.output)["epsilon"] > 1
    assert (tmp_path / "page.html").exists()
    for wrong in ("somebodys", "somebodys:nothing", "nobodys:coin", "somebodys:random"):
        assert isinstance(runner.invoke(app, ["audit", wrong, "--epsilon", "1"]).exception, InvalidInput)
    assert isinstance(
        runner.invoke(app, ["audit", "somebodys:coin", "--epsilon", "1", "--on", "{"]).exception, InvalidInput
    )
