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

Defines attacks that learn: from some runs on both tables, a score that says from which of them an output
came.

By the Neyman-Pearson lemma the best score orders outputs by their likelihood ratio. Each attack here
estimates that ratio in its own way: by counting whole outputs, by a histogram of one coordinate or of a
difference of two, by their product, by logistic regression. Which is best is decided on other runs than they
were fitted on, and what is reported is measured on yet others: an attack can be weak, never unfair. (The idea
of DP-Sniper: Bichsel, Steffen, Bogunovic & Vechev 2021.)

Floating-point attacks: noise drawn in floating point leaves traces in the last bits that the mathematics
of the noise does not have.

Textbook Laplace noise is a logarithm of one of 2^53 numbers, so most floats can never come out, and which
ones can depends on the true value: an output may be possible under one table and impossible under its
neighbor, whatever epsilon was claimed. Both attacks use outputs alone, and `audit.from_outputs` measures how
well they tell the tables apart. They succeed against noise in floats, and find nothing where outputs are
multiples of a fixed step.

>>> import numpy as np
>>> rng = np.random.default_rng(1)
>>> naive = lambda x: x + rng.laplace(scale=10)
>>> floating_point_attack(naive, 1.0, 0.0, scale=10, claim=0.1, runs=1000).refuted
True
"""

from __future__ import annotations

import inspect
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from .. import _require
from .._errors import Halted, InvalidInput, PublicMismatch
from ..mechanisms.protocols import Interactive, Mechanism
from ..sampling import Entropy
from .outputs import (
    Floats,
    Guesses,
    Outputs,
    Raised,
    atoms,
    epsilon_of_limits,
    fresh_order,
    lower_limit,
    newton_logistic,
    number,
    numeric_paths,
    split_into_leaves,
    upper_limit,
)
from .report import Claim, Report, as_claim

Score = Callable[[Outputs], Floats]
# The number of bins of a histogram, and of coordinates that get attacks of their own: larger numbers overfit
# when runs are few. They change the power of an audit, never its validity. Chosen by hand, not tuned.
BINS, TOP = 48, 8


@dataclass(frozen=True)
class Attack:
    """Holds a score, which is larger where the first table is more likely, and a name that says which part of
    the output it uses."""

    name: str
    score: Score


def fit(first: Outputs, second: Outputs) -> list[Attack]:
    """Fit every kind of attack to these runs."""
    attacks = [by_label(first, second)]
    # Without numbers, and with equally many leaves in each output, only complete outputs can be told apart.
    if first.width == 0 and len(np.unique(np.vstack([first.numbers, second.numbers]))) == 1:
        return attacks
    center, scale = _center(first, second)
    columns = _columns(first, second, center, scale)
    histograms = [_by_histogram(name, column, first, second) for name, column in columns]
    attacks += [_by_size(name, column, first, second) for name, column in columns] + histograms
    # single coordinates, without differences and projections
    coordinates = [h for h, (name, _) in zip(histograms, columns, strict=True) if name.startswith("output")]
    if len(coordinates) > 1:
        attacks.append(
            Attack(
                "product of the coordinates' ratios",
                lambda x: np.sum([h.score(x) for h in coordinates], axis=0),
            )
        )
        attacks.append(_logistic(first, second, center, scale))
    return attacks


def by_label(first: Outputs, second: Outputs) -> Attack:
    """Score whole outputs by the log ratio of how often they occurred on the first and on the second table;
    one is added to both counts."""
    p, q = Counter(first.labels), Counter(second.labels)
    ratios = {label: math.log((p[label] + 1) / (q[label] + 1)) for label in p | q}

    def score(x: Outputs) -> Floats:
        return np.array([ratios.get(label, 0.0) for label in x.labels])

    return Attack("whole output", score)


def _center(first: Outputs, second: Outputs) -> tuple[Floats, Floats]:
    """Return the median and the interquartile range of each column over both tables: robust, as noise has
    heavy tails."""
    pooled = np.vstack([first.numbers, second.numbers])
    pooled = np.where(np.isfinite(pooled), pooled, np.nan)
    pooled[:, np.isnan(pooled).all(axis=0)] = 0.0
    low, center, high = np.nanquantile(pooled, (0.25, 0.5, 0.75), axis=0)
    return center, np.where(high > low, high - low, 1.0)


def standardized(x: Outputs, center: Floats, scale: Floats) -> Floats:
    """Return the numbers in units of their spread, clipped to -8 and 8; missing ones are 0."""
    return np.clip(np.nan_to_num((x.numbers - center) / scale, nan=0.0, posinf=8.0, neginf=-8.0), -8.0, 8.0)


def _columns(
    first: Outputs, second: Outputs, center: Floats, scale: Floats
) -> list[tuple[str, Callable[[Outputs], Floats]]]:
    """Return the numbers that are scored, each with a name: single coordinates, differences of two, and the
    projection of all on the line between the two tables' means.
    """
    gap = standardized(first, center, scale).mean(axis=0) - standardized(second, center, scale).mean(axis=0)
    top = sorted(np.argsort(-np.abs(gap), kind="stable")[:TOP].tolist())

    def coordinate(j: int) -> Callable[[Outputs], Floats]:
        return lambda x: x.numbers[:, j]

    def difference(i: int, j: int) -> Callable[[Outputs], Floats]:
        return lambda x: x.numbers[:, i] - x.numbers[:, j]

    names = ["number of answers", *(f"output{path}" for path in first.paths)]
    columns = [(names[j], coordinate(j)) for j in top]
    if first.width > 1:
        columns.append(
            ("projection on the difference of means", lambda x: standardized(x, center, scale) @ gap)
        )
        columns += [
            (f"difference of {names[i]} and {names[j]}", difference(i, j))
            for i, j in combinations(top, 2)
            # Column 0 is the number of answers, not a coordinate.
            if i
        ]
    return columns


def _by_size(name: str, column: Callable[[Outputs], Floats], first: Outputs, second: Outputs) -> Attack:
    """Score by the value itself, or by minus the value if it tends to be smaller on the first table: optimal
    for noise whose likelihood ratio is monotone."""
    with np.errstate(invalid="ignore"):
        p, q = column(first), column(second)
    ranks = np.concatenate([p, q]).argsort(kind="stable").argsort(kind="stable")
    sign = 1.0 if ranks[: len(p)].mean() >= ranks[len(p) :].mean() else -1.0

    def score(x: Outputs) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.nan_to_num(sign * column(x), nan=-1e308, posinf=1e308, neginf=-1e308)

    return Attack(name, score)


def _by_histogram(name: str, column: Callable[[Outputs], Floats], first: Outputs, second: Outputs) -> Attack:
    """Score by the ratio of two histograms: a bin for each value if there are few, else bins with equally
    many runs."""
    with np.errstate(invalid="ignore"):
        p, q = column(first), column(second)
    pooled = np.concatenate([p, q])
    values = np.unique(pooled[np.isfinite(pooled)])
    few = len(values) <= 4 * BINS
    edges = (
        values
        if few
        else np.unique(np.quantile(pooled[np.isfinite(pooled)], np.linspace(0, 1, BINS + 1)[1:-1]))
    )

    def bins(x: Floats) -> Any:
        index = np.searchsorted(edges, x, side="left" if few else "right")
        # NaN has the last bin. If there are few values, infinities and values that the fitting runs do not
        # have share the last bin but one.
        if few:
            clipped_index = np.minimum(index, max(len(edges) - 1, 0))
            exact = edges[clipped_index] == x if len(edges) else np.zeros(len(x), bool)
            index = np.where(exact, index, len(edges))
        return np.where(np.isnan(x), len(edges) + 1, index)

    size = len(edges) + 2
    ratio = np.log((np.bincount(bins(p), minlength=size) + 1) / (np.bincount(bins(q), minlength=size) + 1))

    def score(x: Outputs) -> Floats:
        with np.errstate(invalid="ignore"):
            return np.asarray(ratio[bins(column(x))], dtype=float)

    return Attack(name, score)


def _logistic(first: Outputs, second: Outputs, center: Floats, scale: Floats, ridge: float = 1.0) -> Attack:
    """Fit a logistic regression on the standardized coordinates (at most 64, those that differ most) by
    Newton's method."""
    p, q = standardized(first, center, scale), standardized(second, center, scale)
    used = np.argsort(-np.abs(p.mean(axis=0) - q.mean(axis=0)), kind="stable")[:64]
    design = np.hstack([np.vstack([p, q])[:, used], np.ones((len(p) + len(q), 1))])
    truth = np.concatenate([np.ones(len(p)), np.zeros(len(q))])
    weights = newton_logistic(design, truth, ridge, rounds=8)

    def score(x: Outputs) -> Floats:
        return np.asarray(standardized(x, center, scale)[:, used] @ weights[:-1] + weights[-1], dtype=float)

    return Attack("logistic regression", score)


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
            f"{problem}. Give a function of one argument, such as lambda data: release(data, epsilon=1)."
        ) from None


def _callable(run: Any, entropy: Entropy | None) -> Run:
    """Return what is audited as a function of the data alone."""
    if isinstance(run, Mechanism) and not isinstance(run, Interactive):
        stream = Entropy() if entropy is None else entropy
        return lambda data: run(data, entropy=stream)
    _require.must(callable(run), "run", type(run).__name__, "a function of the data, or a mechanism")
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
    return Guesses.of(scores, other_scores, threshold), attack.name, name, _curve(scores, other_scores)


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


# numpy's Laplace noise is scale ln(U + U) below zero and -scale ln((2 - U) - U) above, with U a multiple of
# 2^-53, and 2 - U rounded to a multiple of 2^-52: the argument of the logarithm is a multiple of 2^-52 below,
# and of 2^-53 above.
_GRID_BELOW, _GRID_ABOVE = 1 << 52, 1 << 53


def explained(output: float, value: float, scale: float, *, reach: int = 6) -> bool:
    """Return whether `output` can be value + textbook Laplace noise: some u on the grid has value -+ scale
    ln(u) exactly equal to it.

    Mironov 2012: u is computed from the output up to rounding, and the `reach` grid points on either side of
    it are tried. The grid is that of numpy's sampler. NaN and infinities are not explained.
    """
    noise = output - value
    if not math.isfinite(noise):
        return False
    sign, grid = (1.0, _GRID_BELOW) if noise < 0 else (-1.0, _GRID_ABOVE)
    nearest = round(math.exp(-abs(noise) / scale) * grid)
    return any(
        value + sign * (scale * math.log(k / grid)) == output
        for k in range(max(1, nearest - reach), min(grid, nearest + reach) + 1)
    )


def lowest_bit(outputs: Sequence[float] | Any) -> NDArray[np.int64]:
    """Return the exponent e of the last bit that is set: output = odd * 2^e. Zero, NaN and infinities give
    1024, which no other float has.

    >>> lowest_bit([1.0, 0.75, 6.0, 0.1]).tolist()
    [0, -2, 1, -55]
    """
    values = np.asarray(outputs, dtype=np.float64)
    usable = np.isfinite(values) & (values != 0)
    mantissa, exponent = np.frexp(np.where(usable, values, 1.0))
    integers = np.abs(np.ldexp(mantissa, 53)).astype(np.int64)
    last = np.log2((integers & -integers).astype(np.float64)).astype(np.int64)
    return np.where(usable, exponent.astype(np.int64) - 53 + last, 1024)


def _values(outputs: Sequence[Any]) -> list[float]:
    """Return the first number of each output."""
    values = [number(next(iter(atoms(output)), None)) for output in outputs]
    numeric = not all(math.isnan(value) for value in values)
    _require.that(numeric, "these attacks look at numbers, and the outputs begin with none.")
    return values


def _outputs_on_both(
    run: Callable[[Any], Any], on: Any, neighbor: Any, runs: int
) -> tuple[list[float], list[float]]:
    """Return the first numbers of `runs` outputs on each table."""
    return _values([run(on) for _ in range(runs)]), _values([run(neighbor) for _ in range(runs)])


def floating_point_attack(
    run: Callable[[Any], Any],
    on: Any,
    neighbor: Any,
    *,
    scale: float,
    values: tuple[float, float] | None = None,
    claim: Any,
    confidence: float = 0.95,
    runs: int = 1000,
) -> Report:
    """Run the attack of Mironov 2012: which of the two true values could have given this output at all?

    `values` are the exact answers on both tables (default: `on` and `neighbor` are numbers themselves);
    `scale` is that of the noise.
    """
    _require.positive(scale=scale)
    _require.integer(runs=runs, at_least=40)
    stated = as_claim(claim, run, None)
    a, b = (float(on), float(neighbor)) if values is None else (float(values[0]), float(values[1]))
    explained_by = [
        [(explained(y, a, float(scale)), explained(y, b, float(scale))) for y in outputs]
        for outputs in _outputs_on_both(run, on, neighbor, runs)
    ]
    return from_outputs(*explained_by, claim=stated, confidence=confidence)


def precision_attack(
    run: Callable[[Any], Any],
    on: Any,
    neighbor: Any,
    *,
    claim: Any,
    confidence: float = 0.95,
    runs: int = 2000,
) -> Report:
    """Run the precision-based attack of Haney et al. 2022: a sum of floats has no finer bits than the larger
    of them had.

    Noise near zero keeps its last bits when the true value is 0, and loses them when it is added to 1. The
    attack works however well the noise was drawn, as long as it is rounded to a float before or while it is
    added.
    """
    _require.integer(runs=runs, at_least=40)
    stated = as_claim(claim, run, None)
    lowest_bits = [lowest_bit(outputs).tolist() for outputs in _outputs_on_both(run, on, neighbor, runs)]
    return from_outputs(*lowest_bits, claim=stated, confidence=confidence)
