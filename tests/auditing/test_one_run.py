"""One-run audits: published values, the binomial law, and simulated runs whose epsilon is known."""

from __future__ import annotations

import itertools
import json
from statistics import NormalDist

import numpy as np
import pytest
from scipy import special, stats

from discreet import accounting, auditing
from discreet._errors import InvalidInput
from discreet.auditing.canaries import _split_canaries, gaussian_refuted

from ..work import calls


@pytest.mark.parametrize(
    ("counts", "epsilon"),
    [((1000, 1000, 1000), 5.8091), ((1000, 500, 400), 1.19865), ((1000, 100, 100), 3.49297)],
)
def test_reference_values_at_95_percent(counts, epsilon):
    assert auditing.one_run_epsilon(*counts) == pytest.approx(epsilon, rel=1e-5)


@pytest.mark.parametrize(
    ("guesses", "right", "epsilon", "delta"), [(20, 15, 0.7, 1e-3), (7, 7, 0.0, 0.01), (30, 3, 2.0, 1e-4)]
)
def test_the_p_value_is_the_theorems_term_by_term(guesses, right, epsilon, delta):
    """Theorem 5.2 written out with sums over single counts."""
    chance, canaries = special.expit(epsilon), 40
    pmf = stats.binom.pmf(np.arange(guesses + 1), guesses, chance)
    gaps = [2 / i * sum(pmf[j] for j in range(max(0, right - i), right)) for i in range(1, canaries + 1)]
    wanted = min(1, pmf[right:].sum() + canaries * delta * max(gaps))
    assert auditing.one_run_p_value(canaries, guesses, right, epsilon=epsilon, delta=delta) == pytest.approx(
        wanted
    )


def test_more_right_guesses_refute_more_and_delta_costs():
    found = [auditing.one_run_epsilon(1000, 200, v) for v in range(100, 201, 10)]
    assert found == sorted(found)
    assert found[0] == 0
    deltas = [auditing.one_run_epsilon(1000, 200, 190, delta=d) for d in (0, 1e-6, 1e-5, 1e-4, 1e-2)]
    assert deltas == sorted(deltas, reverse=True)
    assert deltas[-1] == 0


def test_randomized_response_on_every_canary_is_refuted_at_its_epsilon_no_more_often_than_stated():
    """The bound is exact for it, so the chance follows from the binomial law, without a simulation."""
    for epsilon, guesses in itertools.product((0.5, 2.0), (20, 300)):
        chance = special.expit(epsilon)
        counts = np.arange(guesses + 1)
        above = [auditing.one_run_epsilon(guesses, guesses, int(v)) > epsilon for v in counts]
        wrong = stats.binom.pmf(counts, guesses, chance)[above].sum()
        assert wrong <= 0.05
        assert wrong > 0.02 or guesses == 20  # with few guesses even all right ones prove little


def test_one_canary_in_gaussian_noise_is_the_optimal_test():
    """One canary is guessed right with chance at most Phi(mu / 2); so the level must exceed that to be
    impossible."""
    for mu in (0.3, 1.0, 2.5):
        best = NormalDist().cdf(mu / 2)
        assert gaussian_refuted(1, 1, 1, mu=mu, level=best + 1e-6)
        assert not gaussian_refuted(1, 1, 1, mu=mu, level=best - 1e-6)


def test_gaussian_canaries_are_never_said_to_leak_more_than_they_do():
    """50 runs, each above the truth with chance at most 1e-4 at this confidence: more than 3 has chance below
    1e-9."""
    rng = np.random.default_rng(3)
    above, found = 0, []
    for _ in range(50):
        included = rng.random(2000) < 0.5
        scores = rng.normal(size=2000) + 2.0 * included
        guesses, right = auditing.guess_by_score(scores, included, 100)
        found.append(auditing.one_run_mu(2000, guesses, right, confidence=1 - 1e-4))
        above += found[-1] > 2.0
    assert stats.binom.sf(3, 50, 1e-4) < 1e-9
    assert above <= 3
    assert np.mean(found) > 0.6  # and it has teeth


def test_few_sure_guesses_say_more_of_a_gaussian_than_the_epsilon_delta_route():
    wide = auditing.one_run_epsilon(10_000, 1000, 1000, delta=1e-5)
    assert auditing.one_run_gaussian_epsilon(10_000, 1000, 1000, delta=1e-5) > 1.5 * wide


def test_the_best_number_of_guesses_is_paid_for():
    rng = np.random.default_rng(4)
    included = rng.random(1000) < 0.5
    scores = np.where(rng.random(1000) < 0.1, np.where(included, 9.0, -9.0), rng.normal(size=1000))
    found = auditing.audit_one_run(scores, included)
    alone = auditing.one_run_epsilon(1000, *auditing.guess_by_score(scores, included, 100))
    assert 2 < found < alone  # the union bound over five numbers costs something


def test_scores_and_coins_may_be_tensors() -> None:
    torch = pytest.importorskip("torch")
    included = torch.arange(400) % 2 == 0
    scores = torch.where(included, 1.0, -1.0).requires_grad_()
    found = auditing.audit_one_run(scores, included)
    assert found == auditing.audit_one_run(scores.detach().numpy(), included.numpy()) > 3


def test_a_hundred_thousand_canaries_take_as_many_calls_as_ten_thousand():
    found = []
    few = calls(lambda: auditing.one_run_epsilon(10_000, 10_000, 8_000, delta=1e-6))
    many = calls(lambda: found.append(auditing.one_run_epsilon(100_000, 100_000, 80_000, delta=1e-6)))
    assert many < 2 * few
    assert found == [pytest.approx(1.37323, rel=1e-4)]


def test_impossible_counts_are_refused():
    for counts in ((10, 11, 5), (10, 5, 6), (0, 0, 0)):
        with pytest.raises(
            InvalidInput, match=r"canaries must be an integer|right <= guesses <= canaries is needed"
        ):
            auditing.one_run_epsilon(*counts)
    with pytest.raises(InvalidInput, match="one length"):
        auditing.guess_by_score([1.0, 2.0], [True], 1)
    with pytest.raises(InvalidInput, match="3 guesses for 2 canaries"):
        auditing.guess_by_score([1.0, 2.0], [True, False], 3)


def test_equal_scores_prove_nothing_whatever_order_the_canaries_stand_in() -> None:
    """Scores that are all alike, with the members last: by position every guess was right, which proved an
    epsilon above 5. The bound is above 0 with chance at most 1e-9."""
    included = np.arange(400) >= 200
    assert auditing.audit_one_run(np.zeros(400), included, confidence=1 - 1e-9) == 0


def test_which_canaries_choose_is_drawn_at_each_audit() -> None:
    """Two draws of 50 of 200 canaries are the same with chance below 1e-40."""
    included, scores = np.arange(200) // 4 % 2 == 0, np.arange(200.0)
    first, second = (_split_canaries(scores, included)[2] for _ in range(2))
    assert first.sum() == second.sum() == 50
    assert (first != second).any()


def test_canary_audit_does_not_measure_with_the_canaries_that_chose_the_score(monkeypatch) -> None:
    """Of enough scores that no coin has touched, one is right about every canary that chooses among them. Measured
    with these canaries, too, it proved an epsilon above 1 of a run that tells nothing (and the best of 2,000 such
    scores, at 95%, an epsilon above 0 in 7 of 12 audits)."""
    # The split that the audit draws, known to the test.
    monkeypatch.setattr("discreet.auditing.canaries.fresh_order", np.arange)
    first, rng = np.arange(400) % 4 == 0, np.random.default_rng(0)
    included = np.zeros(400, bool)
    for part in (first, ~first):
        included[rng.permutation(np.flatnonzero(part))[: part.sum() // 2]] = True
    scores = rng.standard_normal(400) + np.where(first, np.where(included, 10, -10), 0)
    audit = auditing.audit_canaries(
        {"lucky": scores, "not": rng.standard_normal(400)},
        included,
        family=lambda s: accounting.Gaussian(noise_multiplier=s),
        noise_multiplier=1.0,
        confidence=0.9999,
    )
    assert audit.score == "lucky"
    assert (audit.epsilon, audit.one_run_epsilon, audit.one_run_curve_epsilon) == (0, 0, 0)
    assert json.loads(json.dumps(audit.to_json(), allow_nan=False))["noise_multiplier"] == "infinite"
    assert auditing.audit_one_run(scores, included, confidence=0.9999) > 1
