"""Builds a continual counter: chooses, at a given price, the strategy with the smallest predicted error."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

from .. import _require
from .._errors import InvalidInput
from .._public import Public
from .._require import Real
from ..mechanisms.calibration import zcdp_rho
from ..mechanisms.noise import IntegerGaussian
from ..mechanisms.protocols import Statistic
from . import factors
from .continual import ContinualCounter
from .counter_checks import MAX_STEPS
from .records import ticks_of

# The largest numbers of steps for which "auto" tries the optimal strategy (_SHORT) and the square root with
# all its coefficients (_FULL): the state of each has as many vectors as there are steps. For more than _FULL
# steps the error of BLT (the buffered linear Toeplitz strategy) is within 0.1 percent of the square root's.
_SHORT, _FULL = 64, 512


@_require.check_options
def counter(
    public: Public,
    statistic: Statistic,
    *,
    epsilon: Real | None = None,
    delta: float = 0.0,
    rho: Real | None = None,
    horizon: int | None = None,
    strategy: str | Any = "auto",
    clock: str | None = None,
    **options: Any,
) -> ContinualCounter:
    """Return the continual counter at a price. With epsilon alone the noise is Laplace, with rho it is
    Gaussian, and with epsilon and delta it is the one of the two that has the smaller error.

    `strategy`: "auto", one of `streaming.NAMES`, or a strategy object. The `options` are further fields of
    `ContinualCounter`; with a `clock` the horizon is by default the number of the clock's ticks.
    """
    if not isinstance(public, Public):
        raise _require.fail("public", type(public).__name__, "a Public")
    if (epsilon is None) == (rho is None):
        raise InvalidInput("give either epsilon (with or without delta) or rho. Nothing was read or charged.")
    _require.price(**({"epsilon": epsilon} if rho is None else {"rho": rho}))
    _require.probability(delta=delta)
    if horizon is None and clock is not None:
        horizon = ticks_of(public, clock)
    if horizon is not None:
        _require.integer(horizon=horizon, at_least=1)
        if horizon > MAX_STEPS:
            raise _require.fail("horizon", horizon, f"at most {MAX_STEPS:,}")
    if options.get("restart") is not None:
        _require.integer(restart=options["restart"], at_least=1)
        if options["restart"] > MAX_STEPS:
            raise _require.fail("restart", options["restart"], f"at most {MAX_STEPS:,}")
    # The length of a block, a run of ticks with noise of its own; None where blocks double without end.
    steps = options.get("restart") or horizon
    names = _candidates(strategy, steps, rho is not None or delta > 0, options.get("decay") is not None)
    facts = {"public": public, "statistic": statistic, "horizon": horizon, "clock": clock, **options}
    choices = []
    refusal: Exception | None = None
    for name in names:
        candidate = factors.named(name, steps or 1) if isinstance(name, str) else name
        try:
            choices += _priced_choices(facts, candidate, epsilon, delta, rho)
        # `Unsupported`: there is no proof or no formula for this strategy with these options
        except NotImplementedError as unsupported:
            refusal = unsupported
    if not choices:
        assert refusal is not None
        raise refusal
    return min(choices, key=lambda choice: choice.rmse)


def _candidates(strategy: Any, steps: int | None, gaussian: bool, decayed: bool) -> list[Any]:
    """Return the strategies to compare: the given one, or those that "auto" chooses from. The error of
    decayed sums is known for Toeplitz strategies only, and the optimal strategy is not Toeplitz."""
    if strategy != "auto":
        return [strategy]
    if steps is None or not gaussian:
        return ["honaker"] if steps is None else ["honaker", "item"]
    best = "optimal" if steps <= _SHORT and not decayed else "square_root" if steps <= _FULL else "blt"
    return [best, "honaker", "item"]


def _priced_choices(
    facts: dict[str, Any], strategy: Any, epsilon: Real | None, delta: float, rho: Real | None
) -> list[ContinualCounter]:
    """Return the counters of one strategy at the price: with Laplace noise, with Gaussian noise, or both."""
    if rho is not None:
        return [ContinualCounter(**facts, strategy=strategy, rho=rho)]
    assert epsilon is not None
    requested_price = (epsilon, float(delta))
    choices = [ContinualCounter(**facts, strategy=strategy, epsilon=epsilon, asked=requested_price)]
    if delta:
        draft = choices[0]
        if draft.horizon is None and draft.restart is None:
            # Blocks double without end, so that no single noise describes the counter: it is charged as zCDP.
            gaussian_rho = Fraction(zcdp_rho(epsilon, delta))
        else:
            noise = IntegerGaussian.for_privacy(
                epsilon=epsilon, delta=delta, sensitivity=draft.sensitivity, neighbors=draft.public.neighbors
            )
            gaussian_rho = Fraction(int(draft.sensitivity.l2_squared or 0)) / (2 * noise.variance)
        choices.append(ContinualCounter(**facts, strategy=strategy, rho=gaussian_rho, asked=requested_price))
    return choices
