"""Reads events from dp-accounting's `DpEvent`s and writes them, where both libraries have them.

A `DpEvent` names no neighbor relation: there the accountant does. In both libraries a noise multiplier is
relative to the sensitivity under that relation, so that reading an event is saying which one is meant.
Numbers are rounded towards the higher price. What one of the two does not have is refused, not approximated.

>>> from discreet.accounting import Gaussian
>>> Gaussian(noise_multiplier=1.0).sampled(0.01).repeated(100).to_dp_event().count
100
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

from .. import _require
from .._errors import MissingExtra, Unsupported
from .._public import ZERO_OUT, Neighbors
from .._require import Real
from . import events as ev


def write(event: ev.Event) -> Any:  # noqa: C901 - one case for each event
    """Return the `DpEvent` that says what an event says."""
    theirs = _library()
    match event:
        case ev.NoOp():
            return theirs.NoOpDpEvent()
        case ev.NonPrivate():
            return theirs.NonPrivateDpEvent()
        case ev.Gaussian(noise_multiplier=noise):
            return theirs.GaussianDpEvent(_down(noise))
        case ev.Laplace(noise_multiplier=noise):
            return theirs.LaplaceDpEvent(_down(noise))
        case ev.DiscreteLaplace(scale=scale, sensitivity=sensitivity):
            return theirs.DiscreteLaplaceDpEvent(_up(1 / _require.exact(scale, "scale")), sensitivity)
        case ev.RandomizedResponse(epsilon=epsilon, categories=k):
            return theirs.RandomizedResponseDpEvent(_chance_of_noise(epsilon, k), k)
        case ev.ZCDP(rho=rho, delta=0):
            return theirs.ZCDpEvent(_up(rho))
        case ev.Composed(events=parts):
            return theirs.ComposedDpEvent([write(part) for part in parts])
        case ev.Repeated(event=inner, times=times):
            return theirs.SelfComposedDpEvent(write(inner), times)
        case ev.PoissonSampled(event=inner, rate=rate):
            return theirs.PoissonSampledDpEvent(_up(rate), write(inner))
        case ev.SampledWithoutReplacement(event=inner, size=size, sample=sample):
            return theirs.SampledWithoutReplacementDpEvent(size, sample, write(inner))
        case ev.TruncatedPoisson(event=ev.Gaussian(noise_multiplier=z), rate=rate, size=size, limit=limit):
            return theirs.TruncatedSubsampledGaussianDpEvent(size, _up(rate), limit, _down(z))
        case ev.RepeatAndSelect(event=inner, trials=ev.PoissonTrials(mean=mean)):
            return theirs.RepeatAndSelectDpEvent(write(inner), _up(mean), math.inf)
        case ev.RepeatAndSelect(event=inner, trials=ev.NegativeBinomialTrials(shape=1, gamma=gamma)):
            return theirs.RepeatAndSelectDpEvent(write(inner), _up(1 / _require.exact(gamma, "gamma")), 1)
    raise Unsupported(f"dp-accounting has no event for {type(event).__name__}.")


def read(event: Any, neighbors: Neighbors) -> ev.Event:  # noqa: C901 - one case for each event
    """Return the event that says what a `DpEvent` says, for neighbors of the given relation."""
    theirs = _library()

    def inside() -> ev.Event:
        return read(event.event, neighbors)

    match event:
        case theirs.NoOpDpEvent():
            return ev.NoOp(neighbors=neighbors)
        case theirs.NonPrivateDpEvent():
            return ev.NonPrivate(neighbors=neighbors)
        case theirs.GaussianDpEvent(noise_multiplier=noise):
            return ev.Gaussian(noise_multiplier=noise, neighbors=neighbors)
        case theirs.LaplaceDpEvent(noise_multiplier=noise):
            return ev.Laplace(noise_multiplier=noise, neighbors=neighbors)
        case theirs.DiscreteLaplaceDpEvent(noise_parameter=rate, sensitivity=sensitivity):
            _require.positive(noise_parameter=rate)
            scale = 1 / _require.exact(rate, "noise_parameter")
            return ev.DiscreteLaplace(scale=scale, sensitivity=sensitivity, neighbors=neighbors)
        case theirs.RandomizedResponseDpEvent(noise_parameter=p, num_buckets=k):
            return ev.RandomizedResponse(epsilon=_response_epsilon(p, k), categories=k, neighbors=neighbors)
        case theirs.ZCDpEvent(rho=rho, xi=0):
            return ev.ZCDP(rho=rho, neighbors=neighbors)
        case theirs.ComposedDpEvent(events=parts):
            return ev.Composed(events=tuple(read(part, neighbors) for part in parts))
        case theirs.SelfComposedDpEvent(count=count):
            return ev.Repeated(event=inside(), times=count)
        case theirs.PoissonSampledDpEvent(sampling_probability=rate):
            return ev.PoissonSampled(event=inside(), rate=rate)
        case theirs.SampledWithoutReplacementDpEvent(source_dataset_size=size, sample_size=sample):
            return ev.SampledWithoutReplacement(event=inside(), size=size, sample=sample)
        case theirs.TruncatedSubsampledGaussianDpEvent(sampling_probability=rate, noise_multiplier=z):
            wanted = "zero_out, as sizes are limited"
            _require.must(neighbors is ZERO_OUT, "neighbors", str(neighbors), wanted)
            noise = ev.Gaussian(noise_multiplier=z, neighbors=ZERO_OUT)
            size, limit = event.dataset_size, event.truncated_batch_size
            return ev.TruncatedPoisson(event=noise, rate=rate, size=size, limit=limit)
        case theirs.RepeatAndSelectDpEvent(mean=mean, shape=math.inf):
            return ev.RepeatAndSelect(event=inside(), trials=ev.PoissonTrials(mean=mean))
        case theirs.RepeatAndSelectDpEvent(mean=mean, shape=1):
            _require.positive(mean=mean)
            gamma = 1 / _require.exact(mean, "mean")
            return ev.RepeatAndSelect(event=inside(), trials=ev.NegativeBinomialTrials(shape=1, gamma=gamma))
        case theirs.DpEvent():
            raise Unsupported(f"discreet has no event for {event}.")
    raise _require.fail("event", type(event).__name__, "a DpEvent of dp-accounting")


def _library() -> Any:
    try:
        from dp_accounting import dp_event
    except ImportError:
        raise MissingExtra(
            "events of dp-accounting need that library. Install it with: pip install dp-accounting"
        ) from None
    return dp_event


def _response_epsilon(p: float, k: int) -> float:
    """Return the epsilon of k-ary randomized response that answers at random with probability `p`, rounded
    up: ln(1 + k (1 - p) / p)."""
    _require.probability(noise_parameter=p)
    exact = _require.exact(p, "noise_parameter")
    if exact == 0:
        raise Unsupported("randomized response that never answers at random has no epsilon.")
    # a log1p is within an ulp, and its argument within half of one
    return math.log1p(_up(k * (1 - exact) / exact)) * (1 + 2**-51)


def _chance_of_noise(epsilon: Real, k: int) -> float:
    """Return the probability of a random answer in k-ary randomized response, rounded down:
    k / (e^epsilon - 1 + k). Where no float holds e^epsilon it is 0."""
    if epsilon > 700:
        return 0.0
    return k / (math.expm1(_up(epsilon)) * (1 + 2**-51) + k) * (1 - 2**-51)


def _up(value: Real) -> float:
    """Return the smallest float that is not below a number."""
    try:
        rounded = float(value)
    except OverflowError:
        raise Unsupported("dp-accounting's events hold floats, and this event's numbers fit none.") from None
    return rounded if Fraction(rounded) >= value else math.nextafter(rounded, math.inf)


def _down(value: Real) -> float:
    """Return the largest float that is not above a number."""
    # 0.0 is added so that zero has no sign
    return 0.0 - _up(-value)
