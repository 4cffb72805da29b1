"""The trainer audited from inside: canaries with Dirac gradients, in runs of the real `learning.Trainer`; and
trainers that lie.

The model is a table of numbers, one for each canary, and the loss is linear: an example's gradient is then
one coordinate, far longer than the clip. Between two models on the way lies the noisy sum of that step, which
is all that the trainer lets out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from torch import nn

from discreet import accounting, auditing, learning, sampling
from discreet._errors import InvalidInput
from discreet.auditing import canaries
from discreet.auditing.outputs import Guesses

RATE, STEPS, DELTA, LENGTH = Fraction(1, 10), 100, 1e-5, 1000.0
pytestmark = pytest.mark.usefixtures("runs_in_order")
EVERYBODY = Fraction(1)
SURE = 1 - 1e-9 / 20  # twenty audits of true claims, a false alarm in a billion


def linear(outputs: Any, targets: Any) -> Any:
    return outputs[:, 0] * targets


def event(noise: float, rate: Any = RATE, steps: int = STEPS) -> accounting.Event:
    return accounting.Gaussian(noise_multiplier=noise).sampled(rate).repeated(steps)


def trainer(canaries: int, noise: float, **settings: Any) -> learning.Trainer:
    """Twice as many coordinates as canaries: the second half nobody touches."""
    settings = {"rate": RATE, "batch": 100, "steps": STEPS, "clip": 1.0} | settings
    return learning.Trainer(
        nn.Embedding(2 * canaries, 1),
        linear,
        noise_multiplier=noise,
        optimizer=learning.SGD(lr=1.0),
        **settings,
    )


def observe(made: learning.Trainer, included: Any, seed: int) -> Any:
    """[steps, coordinates]: each step's noisy sum, in units of a clip of 1."""
    members = np.flatnonzero(included)
    examples = learning.Examples(members, np.full(len(members), LENGTH, np.float32), made.public)
    seen = []
    with made.start(examples, entropy=sampling.SeededEntropy(seed)) as run:
        before = run.model.weight.detach().numpy().ravel()
        while not run.done:
            run.step()
            after = run.model.weight.detach().numpy().ravel()
            seen.append((before - after) * made.schedule.divisor)
            before = after
    return np.array(seen)


def scores(
    made: learning.Trainer, claimed: float, canaries: int, runs: int, rate: Any = RATE
) -> tuple[dict[str, Any], Any]:
    """The scores of all canaries of some runs, and who was in."""
    found, coins = [], []
    for seed in range(runs):
        included = np.random.default_rng((seed, canaries)).random(canaries) < 0.5
        seen = observe(made, included, seed)
        controls = seen[:, canaries:]
        found.append(
            auditing.step_scores(
                seen[:, :canaries], noise_multiplier=claimed, rate=float(rate), controls=controls
            )
        )
        coins.append(included)
    return {name: np.concatenate([one[name] for one in found]) for name in found[0]}, np.concatenate(coins)


@functools.cache
def noise_for(epsilon: float) -> float:
    return accounting.calibrate(event, epsilon=epsilon, delta=DELTA)


# With everybody in every batch the curves that the search for the least noise compares are those of Gaussians,
# which have a formula; those of sampled ones take seconds.
@pytest.mark.parametrize(
    ("epsilon", "rate"),
    [*(pytest.param(e, RATE, marks=pytest.mark.slow) for e in (1.0, 2.0, 4.0)), (4.0, EVERYBODY)],
)
def test_trainer_four_runs_show_at_least_60_percent_of_what_is_claimed_and_not_more_than_all(
    epsilon: float, rate: Fraction
) -> None:
    family = functools.partial(event, rate=rate)
    noise = accounting.calibrate(family, epsilon=epsilon, delta=DELTA)
    made = trainer(10_000, noise, rate=rate)
    assert made.event == family(noise)
    found, included = scores(made, noise, 10_000, runs=4, rate=rate)
    audit = auditing.audit_canaries(found, included, family=family, noise_multiplier=noise, delta=DELTA)
    assert audit.claimed == pytest.approx(epsilon, rel=1e-3)
    assert audit.epsilon >= 0.6 * epsilon
    assert not audit.guesses.below(auditing.report.Lines.of(made.event).tradeoff, confidence=SURE)
    best = found[audit.score]
    assert auditing.audit_one_run(best, included, delta=DELTA, confidence=SURE) <= epsilon
    assert 0 < max(audit.one_run_epsilon, audit.one_run_curve_epsilon) < audit.epsilon
    assert min(audit.one_run_epsilon, audit.one_run_curve_epsilon) > 0
    if epsilon > 1:
        # No theorem orders the two bounds of one run. At epsilon 1 they were 0.587 and 0.581.
        assert audit.one_run_epsilon < audit.one_run_curve_epsilon
    assert audit.to_json()["report"]["claim"]["epsilon"] == audit.claimed
    assert f"{audit.one_run_epsilon:.4g}" in str(audit)


def test_trainer_that_samples_stays_below_its_curve_and_one_that_samples_twice_as_often_is_caught() -> None:
    """One curve and one score, where the audit above looks for the least noise that is refuted."""
    noise, score = noise_for(4.0), "likelihood ratio"
    curve = auditing.report.Lines.of(event(noise))
    for rate, lies in ((2 * RATE, True), (RATE, False)):
        made = trainer(10_000, noise, rate=rate)
        found, included = scores(made, noise, 10_000, runs=2)
        chooses = np.arange(len(included)) % 4 == 0
        _, threshold = canaries._choose(
            {score: found[score][chooses]}, included[chooses], level=0.05, claimed=curve
        )
        counted, is_in = found[score][~chooses], included[~chooses]
        guesses = Guesses.of(counted[is_in], counted[~is_in], threshold)
        assert guesses.below(curve.tradeoff, confidence=SURE) == lies
    # a score that knows the rate proves more than one that does not
    proved = {name: auditing.audit_one_run(found[name], included, delta=DELTA) for name in (score, "sum")}
    assert proved[score] > 1.05 * proved["sum"] > 0


def caught(
    found: dict[str, Any], included: Any, claimed: float, family: Any = event
) -> auditing.canaries.CanaryAudit:
    audit = auditing.audit_canaries(
        found, included, family=family, noise_multiplier=claimed, delta=DELTA, confidence=SURE
    )
    assert audit.refuted, str(audit)
    assert audit.epsilon > audit.claimed
    return audit


# What is released is the same as with a clip of 2, below, where everybody is in every batch.
@pytest.mark.slow
def test_trainer_with_noise_halved_is_caught() -> None:
    noise = noise_for(4.0)
    caught(*scores(trainer(4000, noise / 2), noise, 4000, runs=1), noise)


def test_trainer_with_a_clip_off_by_a_factor_of_two_is_caught() -> None:
    """Gradients are clipped to 2, the noise is that for 1."""
    noise = accounting.calibrate(_unsampled, epsilon=4.0, delta=DELTA)
    lying = trainer(4000, noise / 2, clip=2.0, rate=EVERYBODY)
    caught(*scores(lying, noise, 4000, runs=1, rate=EVERYBODY), noise, _unsampled)


@pytest.mark.slow
def test_trainer_without_clipping_is_caught() -> None:
    noise = noise_for(1.0)
    caught(*scores(trainer(1000, noise / 1e4, clip=1e4), noise, 1000, runs=1), noise)


class Shuffled(learning.Poisson):
    """Every example exactly once in every pass, in batches of equal size; sold as Poisson sampling."""

    def batches(self, size: int, entropy: sampling.Entropy) -> Iterator[Any]:
        passes, rng = round(float(self.rate * self.steps)), np.random.default_rng(entropy.integer(32))
        for _ in range(passes):
            yield from np.array_split(rng.permutation(size), self.steps // passes)


@pytest.mark.slow
def test_trainer_that_shuffles_and_claims_poisson_sampling_is_caught() -> None:
    """With little noise nobody can hide in a shuffle; under Poisson sampling one in e takes no part at
    all."""
    noise, rate, steps = 0.36, Fraction(1, 20), 20
    family = functools.partial(event, rate=rate, steps=steps)
    honest = learning.Poisson(rate=rate, steps=steps, divisor=100.0)
    lying = Shuffled(rate=rate, steps=steps, divisor=100.0)
    settings: dict[str, Any] = {"rate": None, "batch": None, "steps": None}
    assert (
        trainer(10, noise, sampling=lying, **settings).event
        == trainer(10, noise, sampling=honest, **settings).event
    )
    caught(*scores(trainer(16_000, noise, sampling=lying, **settings), noise, 16_000, 1, rate), noise, family)
    found, included = scores(trainer(4000, noise, sampling=honest, **settings), noise, 4000, 1, rate)
    audit = auditing.audit_canaries(
        found, included, family=family, noise_multiplier=noise, delta=DELTA, confidence=SURE
    )
    assert not audit.refuted


@pytest.mark.slow
def test_trainer_with_one_draw_of_noise_for_all_coordinates_is_caught() -> None:
    """A run with hardly any noise of its own, to which each step's one draw is added."""
    noise, canaries = noise_for(1.0), 1000
    included = np.random.default_rng(5).random(canaries) < 0.5
    seen = observe(trainer(canaries, 1e-3), included, seed=5)
    seen = seen + np.random.default_rng(6).normal(scale=noise, size=(STEPS, 1))
    found = auditing.step_scores(
        seen[:, :canaries], noise_multiplier=noise, rate=float(RATE), controls=seen[:, canaries:]
    )
    caught(found, included, noise)
    caught({"against a control": found["against a control"]}, included, noise)


@pytest.mark.slow
def test_the_noise_that_is_shown_is_rarely_less_than_the_noise_there_is() -> None:
    """Gaussian steps without sampling, 60 audits at 90%: 25 refutations of a true claim or more have chance
    below 1e-9."""
    from scipy import stats

    rng, wrong = np.random.default_rng(7), 0
    family = functools.partial(_unsampled, steps=10)
    for _ in range(60):
        included = rng.random(400) < 0.5
        seen = rng.normal(scale=5.0, size=(10, 400)) + included
        found = auditing.step_scores(seen, noise_multiplier=5.0)
        wrong += auditing.audit_canaries(
            found, included, family=family, noise_multiplier=5.0, confidence=0.9
        ).refuted
    assert stats.binom.sf(24, 60, 0.1) < 1e-9
    assert wrong < 25


def _unsampled(noise: float, steps: int = STEPS) -> accounting.Event:
    return accounting.Gaussian(noise_multiplier=noise).repeated(steps)


def test_bad_arguments_are_refused() -> None:
    coins = np.arange(400) % 3 == 0
    with pytest.raises(InvalidInput, match="too few"):
        auditing.audit_canaries(np.zeros(20), coins[:20], family=event, noise_multiplier=1.0)
    with pytest.raises(InvalidInput, match="one number for each canary"):
        auditing.audit_canaries(np.zeros(20), coins, family=event, noise_multiplier=1.0)
    with pytest.raises(InvalidInput, match="steps, canaries"):
        auditing.step_scores([1.0, 2.0], noise_multiplier=1.0)
    with pytest.raises(InvalidInput, match="controls"):
        auditing.step_scores(np.zeros((2, 3)), noise_multiplier=1.0, controls=np.zeros((2, 2)))
