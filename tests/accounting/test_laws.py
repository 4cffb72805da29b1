"""Laws that hold for all events, on random nested ones: nothing costs less than nothing, and no whole less
than a part of it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from itertools import pairwise

import pytest

from discreet import accounting as acc
from discreet._errors import DiscreetError, Unsupported
from discreet.accounting import conversion, pure, rdp, sampled_renyi
from discreet.accounting.filters import Filter

from ..loops import for_each
from .zoo import ZOO

ORDERS = (1.0001, 1.3, 2.0, 3.7, 16.0, 255.5, 3000.0)


def _log_uniform(rng: random.Random, low: float, high: float) -> float:
    return math.exp(rng.uniform(math.log(low), math.log(high)))


def _trials(rng: random.Random) -> acc.choice_events.Trials:
    if rng.random() < 0.5:
        return acc.PoissonTrials(mean=_log_uniform(rng, 1e-12, 50))
    shape = rng.choice(
        [0, 1, rng.uniform(-0.999999, 3), _log_uniform(rng, 1e-14, 1e-6), -_log_uniform(rng, 1e-14, 1e-6)]
    )
    gamma = rng.choice(
        [rng.uniform(1e-3, 1 - 1e-3), _log_uniform(rng, 1e-200, 1e-2), 1 - _log_uniform(rng, 1e-15, 1e-2)]
    )
    return acc.NegativeBinomialTrials(shape=shape, gamma=gamma)


_LEAVES: tuple[Callable[[random.Random], acc.Event], ...] = (
    lambda r: acc.Gaussian(noise_multiplier=_log_uniform(r, 0.1, 1e6)),
    lambda r: acc.Laplace(noise_multiplier=_log_uniform(r, 0.1, 1e9)),
    lambda r: acc.PureDP(epsilon=_log_uniform(r, 1e-12, 20)),
    lambda r: acc.RandomizedResponse(epsilon=_log_uniform(r, 1e-12, 20), categories=r.choice([2, 3, 100])),
    lambda r: acc.ExponentialMechanism(epsilon=_log_uniform(r, 1e-12, 20)),
    lambda r: acc.DiscreteLaplace(scale=_log_uniform(r, 0.1, 1e6), sensitivity=r.choice([0, 1, 2, 5000])),
    lambda r: acc.DiscreteGaussian(variance=_log_uniform(r, 0.1, 1e6), sensitivity=r.choice([0, 1, 7])),
    lambda r: acc.VectorDiscreteGaussian(variance=_log_uniform(r, 0.1, 1e6), l2_squared=r.choice([0, 1, 7])),
    lambda r: acc.ZCDP(rho=r.choice([0.0, _log_uniform(r, 1e-12, 2)])),
    lambda r: acc.RDPPoint(order=r.choice([1.5, 8, 4000]), epsilon=r.choice([0.0, _log_uniform(r, 1e-9, 2)])),
    lambda r: acc.NoisyMax(
        epsilon=_log_uniform(r, 1e-9, 5), noise=r.choice(["laplace", "exponential", "gumbel"])
    ),
    lambda r: acc.SparseVector(
        threshold_epsilon=_log_uniform(r, 1e-9, 2), query_epsilon=0.1, cutoff=r.choice([1, 9])
    ),
    lambda r: acc.GNMax(sigma=_log_uniform(r, 0.5, 1e4)),
    lambda r: acc.CorrelatedGaussian(noise_multiplier=_log_uniform(r, 0.5, 1e4), steps=3),
    lambda r: acc.NoOp(),
)


def nested(rng: random.Random, depth: int) -> acc.Event:
    """A random event for add/remove, without a failure probability of its own."""
    if depth == 0 or rng.random() < 0.25:
        return rng.choice(_LEAVES)(rng)
    kind = rng.choice(["sampled", "repeated", "composed", "group", "selected", "selected", "allocation"])
    if kind == "allocation":
        base = acc.Gaussian(noise_multiplier=_log_uniform(rng, 0.5, 50))
        steps = rng.choice([1, 2, 7])
        return acc.RandomAllocation(event=base, steps=steps, selected=rng.randint(1, steps))
    inner = nested(rng, depth - 1)
    if kind == "sampled":
        return inner.sampled(rng.choice([0, 1, _log_uniform(rng, 1e-9, 1)]))
    if kind == "repeated":
        return inner.repeated(rng.choice([0, 1, 2, 1000]))
    if kind == "composed":
        return acc.compose([inner, nested(rng, depth - 1)])
    if kind == "group":
        return acc.Group(event=inner, size=rng.choice([1, 2, 5]))
    return acc.RepeatAndSelect(event=inner, trials=_trials(rng))


Price = Callable[[acc.Event], list[float]]
_PRICES: dict[str, Price] = {
    "renyi": lambda e: rdp.curve(e, ORDERS),
    "zcdp": lambda e: [conversion.zcdp(e).value],
    "pure": lambda e: [value if (value := pure.epsilon_of(e)) is not None else math.inf],
}


def price(name: str, event: acc.Event) -> list[float] | None:
    try:
        return _PRICES[name](event)
    except Unsupported:
        return None


@pytest.mark.parametrize("name", _PRICES)
def test_no_price_is_negative_and_no_whole_costs_less_than_a_part(name: str) -> None:
    rng, compared = random.Random(14), 0
    for _ in range(150):
        parts = [nested(rng, 3) for _ in range(2)]
        prices = [price(name, part) for part in parts]
        whole = price(name, acc.compose(parts))
        for part, values in zip(parts, prices, strict=True):
            if values is None:
                continue
            assert all(value >= 0 for value in values), (part, values)
            if whole is not None:
                compared += 1
                pairs = zip(whole, values, strict=True)
                assert all(total >= value for total, value in pairs), (parts, part, whole, values)
    assert compared > 80


# Of random trials with a Poisson number, which take seconds, one is looked at now.
LATER = {"poisson-pure", "poisson-laplace"}


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n in LATER)) for n in ZOO])
def test_no_run_is_free_and_no_sample_is_negative(name: str) -> None:
    event = ZOO[name]
    assert event.repeated(0) == acc.NoOp(neighbors=event.neighbors)
    assert acc.epsilon(event.repeated(0), delta=0) == 0
    for rate in (0.0, 1e-300, 1e-12, 1 - 1e-16, 1.0):
        for accountant in ("rdp", "zcdp", "basic"):
            try:
                assert acc.epsilon(event.sampled(rate), delta=1e-6, accountant=accountant) >= 0
            except DiscreetError:
                continue


def test_the_upper_end_of_a_whole_is_at_least_the_lower_end_of_each_part() -> None:
    rng, compared = random.Random(7), 0
    while compared < 8:
        parts = [nested(rng, 2) for _ in range(2)]
        delta = 10 ** rng.uniform(-9, -2)
        try:
            above = acc.epsilon(acc.compose(parts), delta=delta)
            lowest = [acc.bounds(part, delta=delta)[0] for part in parts]
        except DiscreetError:
            continue
        compared += max(lowest) > 0
        assert above >= max(lowest) * (1 - 1e-12), (parts, delta, above, lowest)


# --- the best of a random number of trials, against its exact law -------------------------------------------


def _generating(trials: acc.choice_events.Trials, x: float) -> float:
    """E[x^K]."""
    if isinstance(trials, acc.PoissonTrials):
        return math.exp(float(trials.mean) * (x - 1))
    assert isinstance(trials, acc.NegativeBinomialTrials)
    shape, gamma = float(trials.shape), float(trials.gamma)
    if shape == 0:
        return math.log1p(-(1 - gamma) * x) / math.log(gamma)
    return (1 - (1 - (1 - gamma) * x) ** -shape) / (1 - gamma**-shape)


def _best_of(law: list[float], trials: acc.choice_events.Trials) -> list[float]:
    """The chances of no output and of each output being the best, outputs in ascending order."""
    reached = [0.0]
    for mass in law:
        reached.append(min(1.0, reached[-1] + mass))
    reached[-1] = 1.0
    values = [_generating(trials, x) for x in reached]
    return [values[0], *(b - a for a, b in pairwise(values))]


def _log_moment(p: list[float], q: list[float], order: float) -> float:
    """ln sum p^order q^(1 - order)."""
    seen = [(a, b) for a, b in zip(p, q, strict=True) if a > 1e-13 and b > 1e-13]
    logs = [order * math.log(a) + (1 - order) * math.log(b) for a, b in seen]
    return max(logs) + math.log(math.fsum(math.exp(x - max(logs)) for x in logs))


def _case(rng: random.Random) -> tuple[list[float], list[float], acc.choice_events.Trials, float]:
    size = rng.randint(2, 4)
    p = [rng.uniform(0.01, 1) for _ in range(size)]
    spread = rng.choice([0.01, 0.3, 2])
    q = [x * math.exp(rng.uniform(-spread, spread)) for x in p]
    p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
    trials: acc.choice_events.Trials = acc.PoissonTrials(mean=_log_uniform(rng, 1e-3, 20))
    if rng.random() < 0.4:
        trials = acc.NegativeBinomialTrials(
            shape=rng.choice([0, 1, rng.uniform(-0.9, 2)]), gamma=rng.uniform(0.02, 0.98)
        )
    return p, q, trials, rng.choice([1.2, 2.0, 4.5, 12.0])


def _claimed(p: list[float], q: list[float], trials: acc.choice_events.Trials, order: float) -> float:
    """What the rule charges for a base whose curve is the larger of both directions."""

    def inner(a: float) -> float:
        return max(0.0, _log_moment(p, q, a), _log_moment(q, p, a)) * (1 + 1e-12) + 1e-14

    return sampled_renyi.of_trials(inner, trials)(order)


def test_the_charge_for_the_best_of_random_trials_is_at_least_the_divergence_of_its_exact_law() -> None:
    rng = random.Random(3)
    for _ in range(300):
        p, q, trials, order = _case(rng)
        best_p, best_q = _best_of(p, trials), _best_of(q, trials)
        truth = max(_log_moment(best_p, best_q, order), _log_moment(best_q, best_p, order))
        assert _claimed(p, q, trials, order) >= truth - 1e-10, (p, q, trials, order)


def test_the_exact_law_catches_a_rule_that_forgets_the_outcome_without_a_trial() -> None:
    rng, caught = random.Random(3), 0
    for _ in range(300):
        p, q, trials, order = _case(rng)
        if not isinstance(trials, acc.PoissonTrials):
            continue
        mean = float(trials.mean)
        truth = _log_moment(_best_of(p, trials), _best_of(q, trials), order)
        with_none = _claimed(p, q, trials, order)
        forgetful = with_none + math.log(max(-math.expm1(-mean - with_none), 1e-300))
        caught += forgetful < truth - 1e-10
    assert caught > 20


@pytest.mark.parametrize("mean", [1e-300, 1e-12, 1e-6, 1e-3, 0.1, 0.5, 1, 3, 700, 1e6])
def test_poisson_trials_of_what_shows_nothing_cost_nothing_or_little_but_never_less(mean: float) -> None:
    event = acc.RepeatAndSelect(event=acc.PureDP(epsilon=0.0), trials=acc.PoissonTrials(mean=mean))
    gaussian = acc.Gaussian(noise_multiplier=1.0)
    alone, both = rdp.curve(gaussian, ORDERS), rdp.curve(acc.compose([gaussian, event.repeated(10)]), ORDERS)
    assert all(b >= a for a, b in zip(alone, both, strict=True))
    assert (
        acc.epsilon(acc.compose([gaussian, event.repeated(10)]), delta=1e-5)
        >= acc.bounds(gaussian, delta=1e-5)[0]
    )


@pytest.mark.parametrize("mean", [1e-6, 0.1, 0.999, 1, 10])
def test_a_filter_is_charged_at_least_nothing_for_poisson_trials(mean: float) -> None:
    event = acc.RepeatAndSelect(
        event=acc.Gaussian(noise_multiplier=20.0), trials=acc.PoissonTrials(mean=mean)
    )
    budget = Filter(epsilon=3, delta=1e-6)
    assert all(value > 0 for value in budget.price(event).sums)


@for_each("gamma", [1e-300, 1e-12, 0.5, 1 - 1e-12, 1 - 2**-53])
@for_each("shape", [-0.999999, -1e-12, 0, 1e-300, 1e-12, 1e-9, 1, 40])
def test_the_mean_number_of_trials_at_the_edges_of_its_parameters(shape: float, gamma: float) -> None:
    """Against the same in 60 digits, and never below one trial."""
    from mpmath import mp, mpf

    with mp.workdps(60):
        g, s = mpf(gamma), mpf(shape)
        spread = -mp.log(g) if s == 0 else (1 - g**s) / s
        if s != 0 and abs(s * mp.log(g)) < mpf(10) ** -40:
            spread = -mp.log(g)
        truth = mp.log((1 - g) / (g * spread))
        claimed = sampled_renyi._log_mean(shape, gamma)
        assert claimed >= truth
        assert claimed >= 0
        assert claimed <= truth + 1e-9 * (1 + abs(truth))
