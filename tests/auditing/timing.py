"""Timing attacks: does the time that a draw of noise takes tell its size? Whoever knows the noise knows the
exact answer (Jin et al. 2022, arXiv:2112.05307).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from discreet import _require
from discreet.auditing.outputs import Floats, atoms, number

# The number of consecutive draws whose median time is subtracted: the machine's other load changes little
# within so few. Chosen by hand, not tuned.
_WINDOW = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Holds times of single draws in nanoseconds, and how they go with what was drawn.

    `correlation` is Spearman's, of |value| with time. `explained` is the Kolmogorov-Smirnov distance between
    the times of small and of large draws (0: equal, 1: disjoint): an observer's best advantage in telling the
    smaller half from the larger. By chance the two differ from 0 by about 1 / sqrt(draws) and 2 /
    sqrt(draws). `question` ("large", "very large", "zero" or "positive") is what the time answered best on
    the first half of the draws; `p_value` is the chance that it is answered as well on the second half if
    values do not depend on times.
    """

    draws: int
    median_ns: float
    correlation: float
    explained: float
    question: str
    p_value: float


def timing(
    draw: Callable[[], Any],
    *,
    draws: int = 2000,
    magnitude: Callable[[Any], float] = lambda output: number(atoms(output)[0]),
) -> Timing:
    """Test whether the time of a draw tells what was drawn. `magnitude(output)` is the number to be learned,
    which may be negative; by default the first leaf of the output, as a number.

    On the first half of the draws a question is chosen (is it large? very large? zero? positive?), and the
    threshold on the time that answers it best. The time is taken as it is, or minus the median of its window
    of 16 draws, which removes what else the machine was doing. The second half judges, by Fisher's exact
    test.

    Guarantee: for independent draws of one distribution whose values are independent of the times, p_value
               <= a with probability at most a, on any machine.
    Proof:     given all times and the first half, the values of the second half are still independent and of
               one distribution. So given how many of them answer "yes", all positions of these are equally
               likely, and how many fall where the time says "yes" is hypergeometric. Load and drift are in
               the times, which are given.
    """
    _require.integer(draws=draws, at_least=20)
    values, times = np.empty(draws), np.empty(draws)
    for i in range(draws):
        started = time.perf_counter_ns()
        value = draw()
        times[i] = time.perf_counter_ns() - started
        values[i] = magnitude(value)
    question, p_value = attack(values, times)
    sizes = np.abs(values)
    large = sizes > np.median(sizes)
    alike = np.unique(sizes).size < 2 or np.unique(times).size < 2
    return Timing(
        draws=draws,
        median_ns=float(np.median(times)),
        correlation=0.0 if alike else float(stats.spearmanr(sizes, times).statistic),
        explained=_gap(times, large)[0],
        question=question,
        p_value=p_value,
    )


def attack(values: Floats, times: Floats) -> tuple[str, float]:
    """Return the question that the first half of the times answers best, and how likely the second half
    answers it as well by chance."""
    half = len(values) // 2
    sizes = np.abs(values)
    median, ninth_decile = np.quantile(sizes[:half], [0.5, 0.9])
    questions = {
        "large": sizes > median,
        "very large": sizes > ninth_decile,
        "zero": values == 0,
        "positive": values > 0,
    }
    best = (-1.0, "none", False, 0.0, times, np.zeros(len(values), bool))
    for question, yes in questions.items():
        for clocked in (times, times - _window_medians(times)):
            gap, yes_is_slower, threshold = _gap(clocked[:half], yes[:half])
            # The gap in units of its standard deviation, up to a constant: a rare "yes" has gaps by chance.
            score = gap * math.sqrt(yes[:half].mean() * (1 - yes[:half].mean()))
            best = max(
                best,
                (score, question, yes_is_slower, threshold, clocked, yes),
                key=lambda candidate: candidate[0],
            )
    _, question, yes_is_slower, threshold, clocked, yes = best
    guessed, true_answers = (clocked[half:] > threshold) == yes_is_slower, yes[half:]
    hits = int((guessed & true_answers).sum())
    p_value = stats.hypergeom.sf(hits - 1, len(true_answers), int(true_answers.sum()), int(guessed.sum()))
    return question, float(p_value)


def _window_medians(times: Floats) -> Floats:
    """Return, for each time, the median of its window."""
    padded = np.pad(times, (0, -len(times) % _WINDOW), mode="edge").reshape(-1, _WINDOW)
    return np.repeat(np.median(padded, axis=1), _WINDOW)[: len(times)]


def _gap(times: Floats, yes: NDArray[np.bool_]) -> tuple[float, bool, float]:
    """Return the largest gap between the distribution functions of the times with and without `yes`, whether
    those with it are the slower ones, and the time at which the gap is largest."""
    if yes.all() or not yes.any():
        return 0.0, True, 0.0
    order = np.argsort(times)
    sorted_times, sorted_yes = times[order], yes[order]
    # At each time, the share of the draws without `yes` that have ended, minus the share of those with it.
    difference = np.cumsum(~sorted_yes) / (~sorted_yes).sum() - np.cumsum(sorted_yes) / sorted_yes.sum()
    # Among equal times only the last has the shares of all of them.
    difference = np.where(np.append(sorted_times[1:] > sorted_times[:-1], True), difference, 0.0)
    index = int(np.argmax(np.abs(difference)))
    return float(abs(difference[index])), bool(difference[index] > 0), float(sorted_times[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Holds the times of two jobs that were timed in turns: their medians in nanoseconds, and how well the
    clock tells them apart.

    `advantage` is a lower limit, with the stated confidence, on the true-positive rate minus the
    false-positive rate of one threshold on the time; 0 where no difference is shown.
    """

    runs: int
    first_ns: float
    second_ns: float
    advantage: float
    confidence: float


def clock(
    first: Callable[[], Any],
    second: Callable[[], Any],
    *,
    runs: int = 100,
    confidence: float = 0.95,
    seed: int | None = None,
) -> Clock:
    """Test whether the time of a query tells which of two neighboring tables it was run on: run both, in
    random order (drawn anew, unless a `seed` is given), and try to guess.

    The threshold is chosen on the first half of the runs and judged on the other, by exact limits of Clopper
    and Pearson: if all times are independent and of one distribution, `advantage` is above 0 with probability
    at most 1 - confidence.
    """
    _require.integer(runs=runs, at_least=20)
    _require.open_probability(confidence=confidence)
    jobs, times = (first, second), (np.empty(runs), np.empty(runs))
    order = np.random.default_rng(seed)
    for i in range(runs):
        for which in order.permutation(2):
            started = time.perf_counter_ns()
            jobs[which]()
            times[which][i] = time.perf_counter_ns() - started
    half = runs // 2
    second_is_slower, threshold = _split(times[0][:half], times[1][:half])
    slow, fast = (times[1], times[0]) if second_is_slower else (times[0], times[1])
    hits, false_hits = int((slow[half:] > threshold).sum()), int((fast[half:] > threshold).sum())
    judged, level = runs - half, (1 - confidence) / 2
    tpr_limit = float(stats.beta.ppf(level, hits, judged - hits + 1)) if hits else 0.0
    fpr_limit = (
        float(stats.beta.ppf(1 - level, false_hits + 1, judged - false_hits)) if false_hits < judged else 1.0
    )
    return Clock(
        runs=runs,
        first_ns=float(np.median(times[0])),
        second_ns=float(np.median(times[1])),
        advantage=max(0.0, tpr_limit - fpr_limit),
        confidence=confidence,
    )


def _split(first: Any, second: Any) -> tuple[bool, float]:
    """Return whether the second job is the slower one, and the threshold on the time that tells the two apart
    best."""
    thresholds = np.sort(np.concatenate([first, second]))
    gaps = [
        (float((second > threshold).mean() - (first > threshold).mean()), float(threshold))
        for threshold in thresholds
    ]
    best = max(gaps, key=lambda gap: abs(gap[0]))
    return best[0] > 0, best[1]
