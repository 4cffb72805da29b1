"""Black-box audits: run a mechanism often on two neighboring tables, learn to tell the outputs apart, measure
how well that works, and compare it with the privacy that the mechanism claims.

A quarter of the runs fits attacks, a quarter chooses the best of them and its threshold, the other half
measures that one choice. So the lower bound on epsilon holds with the stated confidence for any callable
whatever, seen only from outside. It can refute a claim, never prove one: a small number means that these
attacks on these tables found no more.

>>> from discreet import Public, mechanisms, tables
>>> public = Public()
>>> one, none = tables.Memory({"x": [1]}, public), tables.Memory({"x": []}, public)
>>> report = audit(mechanisms.noisy_count(public, epsilon=1), one, none, runs=1000, confidence=0.999999)
>>> report.refuted, 0.2 < report.epsilon <= 1
(False, True)
"""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import numpy as np
from scipy import special

from .. import _require
from .._errors import Halted, InvalidInput, PublicMismatch
from ..mechanisms.protocols import Interactive, Mechanism
from ..sampling import Entropy
from .attacks import Attack, by_label, fit
from .claims import Claim, as_claim
from .outputs import Outputs, Raised, numeric_paths, split_into_leaves
from .rates import Guesses, epsilon_of_limits, fresh_order, lower_limit, upper_limit
from .report import Report

Run = Callable[[Any], Any]
# The number of thresholds that are tried, on runs that do not measure: more thresholds cost time, and never
# make an audit invalid. Chosen by hand, not tuned.
THRESHOLDS = 64
# When attacks are compared, their rates are replaced by Clopper-Pearson limits at this level; a larger level
# is closer to the observed rates. It changes the power of an audit, never its validity. Chosen by hand.
CAUTION = 0.03
# If so many first runs on each table all fail, the caller has made a mistake. Chosen by hand.
TRIES = 10


def audit(
    run: Run | Mechanism,
    on: Any,
    neighbor: Any,
    *,
    claim: Any = None,
    delta: float | None = None,
    confidence: float = 0.95,
    runs: int = 10_000,
    entropy: Entropy | None = None,
    progress: Callable[[int], None] | None = None,
) -> Report:
    """Return a lower bound on the epsilon of `run`, from `runs` runs on each of two neighbors, against what
    is claimed.

    `run` is any function of the data with randomness of its own, or a Mechanism (then the claim is its event,
    unless one is given). `claim` is an epsilon, a pair (epsilon, delta), or an accounting event. Of an event
    that has a pair by basic composition (Laplace noise, also repeated) that pair is tested; of another
    (Gaussian noise) its whole trade-off curve, and `delta` is where it states its epsilon; beside a claim
    with another delta of its own, `delta` is refused. A run that raises is an output too: what is raised, and
    what it says. The two tables take turns, so that what drifts drifts for both; `progress` is called after
    each turn with the number of turns.

    Guarantee: with probability at most 1 - confidence, the reported epsilon is above the true one of `run`
               for these neighbors, at the delta of the claim, or a true claim is refuted.
    Proof:     the attack is fixed by the first half of the runs; on the others its two rates have
               Clopper-Pearson limits (`Guesses.limits`). Two attacks are measured, one per direction, each at
               half the level.
    Assumes:   the runs are independent, and `on` and `neighbor` are neighbors under the relation of the
               claim.
    """
    _require.integer(runs=runs, at_least=40)
    _require.open_probability(confidence=confidence)
    stated = as_claim(claim, run, delta)
    started = time.process_time()
    call = _callable(run, entropy)
    outputs, neighbor_outputs = run_alternately(call, on, neighbor, runs, progress)
    # These runs are in the order in which they were made, which does not depend on their outputs.
    return _measured(outputs, neighbor_outputs, stated, confidence, time.process_time() - started)


def from_outputs(
    first: Sequence[Any], second: Sequence[Any], *, claim: Any, confidence: float = 0.95, seconds: float = 0.0
) -> Report:
    """Audit outputs that were collected elsewhere: equally many independent runs on each of two neighbors.

    `claim` is given as to `audit`; `seconds` is the CPU time of the runs, which the report states. Which runs
    choose the attack and which measure it is drawn anew, so that the outputs may stand in any order.
    """
    _require.open_probability(confidence=confidence)
    _require.integer(runs=min(len(first), len(second)), at_least=40)
    stated = as_claim(claim, None, None)
    return _measured(_reordered(first), _reordered(second), stated, confidence, seconds)


def _reordered(outputs: Sequence[Any]) -> list[Any]:
    """Return the outputs in a fresh random order."""
    listed = list(outputs)
    return [listed[i] for i in fresh_order(len(listed)).tolist()]


def _measured(
    first: Sequence[Any], second: Sequence[Any], stated: Claim, confidence: float, seconds: float
) -> Report:
    """Return the report on outputs whose order does not depend on them: the first half of each list chooses
    the attack, the second measures it."""
    parts = split_into_leaves(first), split_into_leaves(second)
    first_half = min(len(first), len(second)) // 2
    # the other half, which measures, chooses nothing
    paths = numeric_paths([*parts[0][:first_half], *parts[1][:first_half]])
    on, neighbor = (Outputs.of_leaves(runs, paths) for runs in parts)
    measured = [
        _one_direction(a, b, stated, (1 - confidence) / 2, name)
        for a, b, name in ((on, neighbor, "on"), (neighbor, on, "neighbor"))
    ]
    reports = [
        Report.of(
            guesses,
            claim=stated,
            confidence=confidence,
            share=2,
            attack=attack,
            guessed=name,
            curve=curve,
            runs=min(len(first), len(second)),
            seconds=seconds,
        )
        for guesses, attack, name, curve in measured
    ]
    return max(reports, key=lambda report: (report.refuted, report.epsilon, report.mu))


def run_alternately(
    call: Run, on: Any, neighbor: Any, runs: int, progress: Callable[[int], None] | None = None
) -> tuple[list[Any], list[Any]]:
    """Return `runs` outputs on each of two tables, run alternately; an exception is returned as `Raised`.

    If the first `TRIES` runs on each table all fail, the audit is refused.
    """
    _check_signature(call, on)
    outputs: list[Any] = []
    neighbor_outputs: list[Any] = []
    for turn in range(1, runs + 1):
        outputs.append(_outcome(call, on))
        neighbor_outputs.append(_outcome(call, neighbor))
        if turn == TRIES and all(isinstance(output, Raised) for output in outputs + neighbor_outputs):
            last = neighbor_outputs[-1]
            raise InvalidInput(
                f"the first {TRIES} runs failed on both tables, at last with {last.kind}: "
                f"{last.message.rstrip('.')}. There is nothing to audit."
            )
        if progress is not None:
            progress(turn)
    return outputs, neighbor_outputs


def _outcome(call: Run, data: Any) -> Any:
    """Return the output of a run, or `Raised` if it raised an exception."""
    try:
        return call(data)
    except PublicMismatch:
        # The table does not match the mechanism's declarations: a mistake of the caller, not an output.
        raise
    except Exception as problem:
        return Raised(kind=type(problem).__name__, message=str(problem))


def _check_signature(call: Run, data: Any) -> None:
    """Refuse what cannot be called with the data alone."""
    try:
        inspect.signature(call).bind(data)
    except ValueError:
        # written in C, without a signature
        return
    except TypeError as problem:
        raise InvalidInput(
            "what is audited is called with the data alone, and this is not how it can be called: "
            f"{problem}. Give a function of one argument, such as lambda data: release(data, epsilon=1). "
            "Nothing was run."
        ) from None


def _callable(run: Any, entropy: Entropy | None) -> Run:
    """Return what is audited as a function of the data alone."""
    if isinstance(run, Mechanism) and not isinstance(run, Interactive):
        stream = Entropy() if entropy is None else entropy
        return lambda data: run(data, entropy=stream)
    if not callable(run):
        raise _require.fail("run", type(run).__name__, "a function of the data, or a mechanism")
    call: Run = run
    return call


def transcript(mechanism: Interactive, questions: Sequence[Any], *, entropy: Entropy | None = None) -> Run:
    """Return a function of the data that runs an interactive mechanism, and returns its answers to
    `questions`, until it halts."""
    stream = Entropy() if entropy is None else entropy

    def run(source: Any) -> list[Any]:
        state, answers = mechanism.start(source, entropy=stream), []
        for question in questions:
            try:
                state, answer = mechanism.answer(state, source, question, entropy=stream)
            except Halted:
                break
            answers.append(answer)
        return answers

    return run


def _one_direction(
    first: Outputs, second: Outputs, claim: Claim, level: float, name: str
) -> tuple[Guesses, str, str, list[tuple[float, float]]]:
    """Fit, choose and measure the attack that guesses the first table: counts, attack, guessed table and
    curve.
    """
    n = min(len(first), len(second))
    quarter, half = n // 4, n // 2
    attacks = fit(first.part(0, quarter), second.part(0, quarter))
    attack, threshold = choose(
        attacks, first.part(quarter, half), second.part(quarter, half), claim, level, len(first) - half
    )
    scores = attack.score(first.part(half, len(first)))
    other_scores = attack.score(second.part(half, len(second)))
    guesses = Guesses(
        hits=int((scores >= threshold).sum()),
        first=len(scores),
        false_hits=int((other_scores >= threshold).sum()),
        second=len(other_scores),
    )
    return guesses, attack.name, name, _curve(scores, other_scores)


def choose(
    attacks: Sequence[Attack], first: Outputs, second: Outputs, claim: Claim, level: float, later: int
) -> tuple[Attack, float]:
    """Return the attack and the threshold from which these runs promise the strongest bound on `later` runs.

    The attack that looks best among many was partly lucky, most of all if it uses rare outputs. So each is
    judged by confidence limits of its two rates (`CAUTION`), as if the `later` runs had exactly these rates.
    """
    best: tuple[float, Attack, float] | None = None
    for attack in attacks:
        p, q = np.sort(attack.score(first)), np.sort(attack.score(second))
        pooled = np.unique(np.concatenate([p, q]))
        thresholds = (
            pooled
            if len(pooled) <= THRESHOLDS
            else np.unique(np.quantile(pooled, np.linspace(0, 1, THRESHOLDS)))
        )
        hits, false_hits = (len(x) - np.searchsorted(x, thresholds, side="left") for x in (p, q))
        low = lower_limit(lower_limit(hits, len(p), CAUTION) * later, later, level / 2)
        high = upper_limit(
            np.minimum(upper_limit(false_hits, len(q), CAUTION) * later, later), later, level / 2
        )
        strengths = _strength(low, high, claim)
        best_index = int(np.argmax(strengths))
        if best is None or strengths[best_index] > best[0]:
            best = (float(strengths[best_index]), attack, float(thresholds[best_index]))
    assert best is not None
    return best[1], best[2]


def _strength(low: Any, high: Any, claim: Claim) -> Any:
    """Return the number by which attacks are compared: epsilon at the claimed delta, or mu where a complete
    curve is claimed; ties are decided by the difference of the two rates."""
    if claim.pair:
        main = epsilon_of_limits(low, high, claim.delta)
    else:
        main = np.maximum(
            special.ndtri(np.clip(low, 1e-300, 1)) - special.ndtri(np.clip(high, 0, 1 - 1e-16)), 0.0
        )
    return main + 1e-6 * (low - high)


def _curve(scores: Any, other_scores: Any, points: int = 120) -> list[tuple[float, float]]:
    """Return (FPR, FNR) of the attack at up to `points` thresholds, on the measuring runs."""
    thresholds = np.unique(np.quantile(np.concatenate([scores, other_scores]), np.linspace(0, 1, points)))
    p, q = np.sort(scores), np.sort(other_scores)
    fpr = 1 - np.searchsorted(q, thresholds, side="left") / len(q)
    fnr = np.searchsorted(p, thresholds, side="left") / len(p)
    rates = list(zip(fpr.tolist(), fnr.tolist(), strict=True))
    return [(0.0, 1.0), *reversed(rates), (1.0, 0.0)]


def epsilon_of_labels(
    first: Sequence[Hashable], second: Sequence[Hashable], *, delta: float = 0.0, level: float = 0.05
) -> float:
    """Return a lower bound on epsilon from outcomes that are already sorted into a few labels, by one attack,
    which guesses that an outcome is one of `first`.

    Guarantee: above the true epsilon at `delta` with probability at most `level`.
    Proof:     a quarter of the runs, drawn anew, chooses a set of labels, the others measure it with
               Clopper-Pearson limits.
    """
    _require.open_probability(level=level)
    _require.probability(delta=delta)
    _require.integer(runs=min(len(first), len(second)), at_least=4)
    on, neighbor = Outputs.of(_reordered(first), ()), Outputs.of(_reordered(second), ())
    # A quarter of the runs is enough to order a few labels, and more measuring runs give a larger bound.
    quarter = min(len(on), len(neighbor)) // 4
    choosing = on.part(0, quarter), neighbor.part(0, quarter)
    claim = Claim(epsilon=0.0, delta=float(delta))
    # The level 1e-3 affects only which threshold is chosen.
    attack, threshold = choose([by_label(*choosing)], *choosing, claim, 1e-3, len(on) - quarter)
    scores = attack.score(on.part(quarter, len(on)))
    other_scores = attack.score(neighbor.part(quarter, len(neighbor)))
    hits, false_hits = int((scores >= threshold).sum()), int((other_scores >= threshold).sum())
    limits = lower_limit(hits, len(scores), level / 2), upper_limit(false_hits, len(other_scores), level / 2)
    return float(epsilon_of_limits(*limits, float(delta)))
