"""Generalization in adaptive data analysis: how far are private answers from the population, not only from
the sample? Privacy itself bounds that, however questions were chosen.

An analyst who chooses questions after seeing answers may ask for something that is true of the sample only.
If the answers are private, they hardly depend on any one person of the sample, and no question chosen from
them fits the sample much better than the population it was drawn from. Each theorem that says how much is a
function of public numbers here; `best` returns the smallest radius of those that apply.

All theorems are about means of values in [0, 1] over `n` independent draws from one population, and about all
answers together: with probability 1 - failure, no answer is further than the returned radius from the
population's mean. `sample_error(beta)` is a bound that holds with probability at least 1 - beta on how far
any answer is from the mean over the sample. `epsilon`, `delta` and `rho` are those for replacing one person's
data.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Annotated

from .. import _require
from .._errors import Unsupported
from .._public import REPLACE
from .._registry import described
from .._require import FLOAT, NON_NEGATIVE, OPEN_PROBABILITY, PROBABILITY, at_least, instance_of
from ..accounting import Event, epsilon, zcdp
from ..accounting.pure import epsilon_of

SampleError = Callable[[float], float]
Price = Annotated[float, NON_NEGATIVE, FLOAT]
Failure = Annotated[float, OPEN_PROBABILITY]
People = Annotated[int, at_least(1)]
# A factor on every result: covers the rounding of a few dozen operations in double precision.
_ROUNDING = 1 + 1e-12


@described("adaptive.Bound")
class Bound:
    """States that, with probability `confidence`, all answers are within `radius` of the population's values,
    by `theorem`.
    """

    radius: float
    confidence: float
    theorem: str

    def __str__(self) -> str:
        return (
            f"within {self.radius:.3g} of the population with probability {self.confidence:g} "
            f"({self.theorem})"
        )


@_require.check_options
def posterior(
    *, epsilon: Price, delta: Annotated[float, PROBABILITY], sample_error: SampleError, failure: Failure
) -> float:
    """Return the radius for (epsilon, delta)-DP answers, by the distribution of the sample given the answers.

    Guarantee: with probability 1 - failure, all answers are within the radius of the population's means.
    Proof:     Jung, Ligett, Neel, Roth, Sharifi-Malvajerdi & Shenfeld 2020 (arXiv:1909.03577): for all
               positive c and d the radius sample_error(beta) + c + (e^epsilon - 1) + 2d fails with
               probability at most beta / c + delta / d. In short: given all answers (the transcript), an
               answer is near its query's mean over the conditional distribution of the sample (Markov: beta /
               c). By privacy, E[q(x_i) 1(B)] <= e^epsilon E[q(x') 1(B)] + delta for a query q, a sampled x_i,
               a fresh x' and any set B of transcripts. Let B be the transcripts whose conditional mean
               exceeds the population's by more than e^epsilon - 1 + 2d: P(B) <= delta / (2d). The conditional
               mean falls below it by as much with at most the same probability.
    Assumes:   answers lie in [0, 1]. c, d and beta are chosen from a grid: each choice is valid.
    """
    # the theorem's radius would be above 1, and 1 holds for all means in [0, 1]
    if epsilon > 2:
        return 1.0
    gap, best = math.expm1(epsilon), 1.0
    # share of the failure probability for delta / d; the rest is for beta / c
    for share in (0.0,) if delta == 0 else (0.1, 0.25, 0.5, 0.75, 0.9):
        d = 0.0 if delta == 0 else delta / (share * failure)
        remaining_failure = (1 - share) * failure
        for power in range(1, 12):
            c = 4.0**-power
            # saves calls of `sample_error`, which is slow, where they cannot improve on `best`
            if gap + c + 2 * d < best:
                best = min(best, sample_error(remaining_failure * c) + c + gap + 2 * d)
    return min(1.0, best * _ROUNDING)


@_require.check_options
def max_information(*, epsilon: Price, n: People, sample_error: SampleError, failure: Failure) -> float:
    """Return the radius for epsilon-DP answers: close to that of fresh data while epsilon is below 1 /
    sqrt(n).

    Guarantee: as `posterior`.
    Proof:     for answers y and a sample s let f(s) = ln P(y | s); replacing one person moves f by at most
               epsilon, so under the prior f(S) - E f is sub-Gaussian with variance proxy v = n epsilon² / 4
               (McDiarmid). By Jensen, ln(P(s | y) / P(s)) = f(s) - ln E e^f <= X := f(s) - E f. So under the
               posterior P(X >= t) <= E[e^X 1(X >= t)], over the prior, and for t >= v that is at most e^(t -
               t² / (2v)) (Chernoff), which is b at t = v + sqrt(v² + 2 v ln(1/b)). So the probability of any
               event is at most e^t times that for fresh data, plus b: the approximate max-information of
               Dwork, Feldman, Hardt, Pitassi, Reingold & Roth 2015 (arXiv:1506.02629; arXiv:1411.2664 for the
               first such bound), with ln(1/b) where they have ln(2/b). It is applied to the event that the
               query with the worst answer, which is a function of the answers alone, has a mean over the
               sample that is off by more than tau. For fresh data this event has probability at most
               2 e^(-2 n tau²) (Hoeffding).
    """
    best = 1.0
    # `share` of the failure probability is for the sample error. The rest is halved: b, and as much again for
    # e^t times the probability of the event, 2 e^(-2 n tau²).
    for share in (0.5, 0.1, 0.01):
        b = failure * (1 - share) / 2
        v = n * float(epsilon) ** 2 / 4
        t = v + math.sqrt(v * v + 2 * v * math.log(1 / b))
        tau = math.sqrt((t + math.log(2 / b)) / (2 * n))
        if tau < best:
            best = min(best, tau + sample_error(failure * share))
    return min(1.0, best * _ROUNDING)


@_require.check_options
def mutual_information(*, rho: Price, n: People, sample_error: SampleError, failure: Failure) -> float:
    """Return the radius for rho-zCDP answers (Gaussian noise, for example). It holds for every rho, but it
    grows as 1 / sqrt(failure).

    Guarantee: as `posterior`.
    Proof:     the persons x_i of the sample S are independent, so the mutual information I(S; answers) <=
               sum_i I(x_i; answers | others) <= n rho nats, because the divergence between neighbors is at
               most rho (Bun & Steinke 2016, arXiv:1605.02065). An event that has probability q for fresh data
               and p for S has p ln(1/q) - h(p) <= kl(p, q) <= n rho (data processing; h is the binary
               entropy). The event is that of `max_information`, with q <= 2 e^(-2 n tau²). The approach of
               Rogers, Roth, Smith, Srebro, Thakkar & Woodworth 2020 (arXiv:1906.09231) and of Russo & Zou
               2016.
    """
    best = 1.0
    for share in (0.5, 0.1, 0.01):
        p = failure * (1 - share)
        entropy = -p * math.log(p) - (1 - p) * math.log1p(-p)
        tau = math.sqrt((math.log(2) + (n * float(rho) + entropy) / p) / (2 * n))
        if tau < best:
            best = min(best, tau + sample_error(failure * share))
    return min(1.0, best * _ROUNDING)


@_require.check_options
def stability(
    *,
    epsilon: Price,
    delta: Annotated[float, PROBABILITY],
    n: People,
    sample_error: SampleError,
    failure: Failure,
) -> float:
    """Return the radius for (epsilon, delta)-DP answers, by a monitor that looks for the worst of many
    repetitions. It holds for all parameters.

    Guarantee: as `posterior`.
    Proof:     the idea of Bassily, Nissim, Smith, Steinke, Stemmer & Ullman 2016 (arXiv:1511.02513); the
               constants are derived in docs/adaptive.md ("The monitor"). Draw sample and answers T times,
               independently. Suppose that with probability above b the query with the worst answer has a
               sample mean that is off by more than a. Then some repetition has such a query with probability
               at least 1 - (1 - b)^T, and the choice of an eta-DP exponential mechanism is at most 2 ln(2T) /
               (eta n) better than the worst, on average. This choice is (epsilon + eta, delta)-DP, so on
               average it is off by at most e^(epsilon + eta) - 1 + T delta. Hence a <= (e^(epsilon + eta) - 1
               + T delta + 2 ln(2T) / (eta n)) / (1 - (1 - b)^T), for all eta > 0 and T. In the range of their
               theorem (epsilon < 1/3, delta < epsilon / 4, n >= ln(4 epsilon / delta) / epsilon², b = delta /
               epsilon) that is below 8 epsilon, where theirs is 18 epsilon.
    Assumes:   eta and T are chosen from a grid: each choice is valid.
    """
    best = 1.0
    for share in (0.5, 0.1, 0.01):
        deviation = _monitor(float(epsilon), float(delta), n, failure * (1 - share))
        if deviation < best:
            best = min(best, deviation + sample_error(failure * share))
    return min(1.0, best * _ROUNDING)


def _monitor(epsilon: float, delta: float, n: int, failure: float) -> float:
    """Return a of the proof of `stability` with b = failure: a bound, which holds with probability at least 1
    - failure, on how far the sample mean of the query with the worst answer is from the population's."""
    best = 1.0
    for power in range(-4, 13):
        # `times` is T; `detection` is 1 - (1 - b)^T
        times = math.ceil(2 ** (power / 2) / failure)
        detection = -math.expm1(times * math.log1p(-failure))
        # `loss` / eta bounds how much better than the worst the exponential mechanism's choice is, on average
        loss = 2 * math.log(2 * times) / n
        # near the eta at which e^(epsilon + eta) + loss / eta is smallest
        for scale in (0.5, 0.7, 1.0, 1.4):
            eta = scale * math.sqrt(loss)
            # beyond 2 the bound is above 1 (`best` at first), and e^(epsilon + eta) may overflow
            if epsilon + eta < 2:
                best = min(best, (math.expm1(epsilon + eta) + times * delta + loss / eta) / detection)
    return best


@_require.check_options
def ladder_error(
    *,
    n: People,
    submissions: Annotated[int, at_least(1)],
    step: Annotated[float, OPEN_PROBABILITY],
    failure: Failure,
) -> float:
    """Return how far the best score of a `Ladder` is from the smallest true risk so far, by the ladder's own
    theorem, which needs no privacy. `step` is the ladder's.

    Guarantee: with probability 1 - failure, after every submission the shown risk is within the returned
               error of the smallest true risk among all submissions so far, however these were chosen.
    Proof:     after Blum & Hardt 2015 (arXiv:1502.04585), with a count of our own. The shown risk is a
               multiple of the step, one of m = floor(1/step + 1/2) + 1 in [0, 1 + step/2], and each change is
               to a smaller one. So after t submissions there are at most sum_j C(m, j) C(t, j) = C(m + t, m)
               histories of shown risks. The next submission is a function of the history (and of coins, which
               may be fixed), so k submissions choose among at most sum_(t < k) C(m + t, m) = C(m + k, m + 1)
               functions. By Hoeffding all their true risks are within r of those on the test set, except with
               probability 2 C(m + k, m + 1) e^(-2 n r²). Then the smallest true risk and the smallest on the
               test set are within r of each other. The latter and the shown risk are within a step: a
               submission that was not shown had a risk of at least the shown one less a step, and a shown
               risk was rounded by at most half a step.
    Assumes:   independent draws, losses in [0, 1].
    """
    levels = math.floor(1 / step + 0.5) + 1
    # ln C(m + k, m + 1), with m `levels` and k `submissions`; 1e-9 covers the rounding of lgamma
    log_functions = math.lgamma(levels + submissions + 1) - math.lgamma(levels + 2) - math.lgamma(submissions)
    exponent = log_functions * (1 + 1e-9) + math.log(2 / failure)
    return min(1.0, (math.sqrt(exponent / (2 * n)) + step) * _ROUNDING)


@_require.check_options
def fresh(*, n: People, answers: Annotated[int, at_least(1)], failure: Failure) -> float:
    """Return the radius of this many `answers` if each were computed from `n` fresh people of its own:
    sqrt(ln(2 answers / failure) / (2 n)) (Hoeffding). It is the yardstick for the other functions."""
    return min(1.0, math.sqrt(math.log(2 * answers / failure) / (2 * n)) * _ROUNDING)


# The deltas at which `best` takes the (epsilon, delta) of an event. Each gives a valid radius, and the
# smallest radius is returned. The values were chosen by hand, not tuned.
_DELTAS = (1e-4, 1e-6, 1e-8, 1e-10)


@_require.check_options
def best(
    event: Annotated[Event, instance_of(Event, "an accounting event, such as PureDP(epsilon=1)")],
    *,
    n: People,
    sample_error: SampleError,
    confidence: Annotated[float, OPEN_PROBABILITY] = 0.95,
) -> Bound:
    """Return the smallest radius that any of the theorems proves for answers whose privacy loss is `event`.

    Guarantee: as `posterior`, with failure = 1 - confidence. Each theorem holds by itself, and which one is
               used depends on public numbers only.
    Proof:     replacing one person is removing one and adding one, so an event for add_remove or zero_out is
               priced for a group of two: epsilon doubles, delta becomes (1 + e^epsilon) delta, rho becomes 4
               rho.
    """
    failure, as_group = 1 - float(confidence), event.neighbors is not REPLACE
    bounds = [(1.0, "no theorem says more than that a mean lies between 0 and 1")]
    pure = epsilon_of(event)
    if pure is not None:
        group_epsilon = float(pure) * (2 if as_group else 1)
        bounds.append(
            (
                posterior(epsilon=group_epsilon, delta=0.0, sample_error=sample_error, failure=failure),
                "Jung et al. 2020",
            )
        )
        bounds.append(
            (
                max_information(epsilon=group_epsilon, n=n, sample_error=sample_error, failure=failure),
                "max-information",
            )
        )
    for delta in _DELTAS:
        rdp_epsilon = epsilon(event, delta=delta, accountant="rdp")
        # from 2 on, both theorems give 1
        if rdp_epsilon < 2:
            group_epsilon, group_delta = rdp_epsilon, delta
            if as_group:
                group_epsilon, group_delta = 2 * rdp_epsilon, (1 + math.exp(rdp_epsilon)) * delta
            radius = posterior(
                epsilon=group_epsilon, delta=group_delta, sample_error=sample_error, failure=failure
            )
            bounds.append((radius, "Jung et al. 2020"))
            radius = stability(
                epsilon=group_epsilon, delta=group_delta, n=n, sample_error=sample_error, failure=failure
            )
            bounds.append((radius, "monitor"))
    try:
        # the event is rho-zCDP, except with probability `own_delta`
        rho, own_delta = zcdp(event)
    except Unsupported:
        rho, own_delta = math.inf, 0.0
    if own_delta == 0 and math.isfinite(rho):
        radius = mutual_information(
            rho=rho * (4 if as_group else 1), n=n, sample_error=sample_error, failure=failure
        )
        bounds.append((radius, "mutual information"))
    radius, theorem = min(bounds, key=lambda pair: pair[0])
    return Bound(radius=radius, confidence=float(confidence), theorem=theorem)
