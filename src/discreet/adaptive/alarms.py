"""Detects changepoints online: a private watch over a sliding window, and at the alarm a private estimate of
when the change began.

After OnlinePCPD (Cummings, Krehbiel, Mei, Tuo & Zhang 2018, arXiv:1808.10056, Algorithm 3): the best score of
each window (its largest sum of log-likelihood ratios, see `changepoints`) is compared with a noisy threshold,
and for the first window that passes the time of the change is estimated, as `changepoints` does for a
complete series. Half of epsilon pays for the comparisons and half for the estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .. import _require
from .._errors import InvalidInput
from .._public import Public
from .._registry import described
from .._require import Real
from ..accounting import Event, NoOp, PureDP
from ..mechanisms import arrow_columns
from ..mechanisms.protocols import Release, check_source, release, require_columns
from ..mechanisms.selection import moves_one_way
from ..mechanisms.selectors import PermuteAndFlip, ReportNoisyMax
from ..sampling import Entropy
from ..tables import Source
from ._sparse_vector import SparseVectorRounds
from .changepoints import GRID, Change, LikelihoodScores, on_grid, score_selector

State = dict[str, Any]


@described("adaptive.Alarm")
@dataclass(frozen=True, slots=True, kw_only=True)
class Alarm:
    """Says whether a window raised the alarm; if so, `time` is the private estimate of the first time after
    the change."""

    raised: bool
    time: int | None = None


@described("adaptive.ChangeWatch")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeWatch:
    """Watches a series for a change: a question is a time `now`, and the answer says whether the last
    `window` times up to it raise the alarm. It halts for good at the first alarm.

    `column` holds the values, `time` the whole times from 1 to `times` (`changepoints`). `threshold` is in
    nats of log-likelihood; `alarm_threshold` computes one for a given probability of a false alarm.
    `questions` is the largest number of windows, which `error` needs. `paper` uses the paper's noise scales,
    4 A / epsilon for the threshold and 8 A / epsilon for each window, where A is the sensitivity of a score,
    and Laplace noise for the estimate; the default has the same guarantee and a smaller error.

    Guarantee: epsilon-DP, for any number of windows, each chosen after the answers before it.
    Proof:     half of epsilon for the comparisons: `_sparse_vector.SparseVectorRounds` with one positive. One
               row moves the best score of a window, a maximum of sums, by at most the sensitivity of
               `LikelihoodScores`, and under add_remove and zero_out in all windows the same way. Half for the
               estimate: `score_selector` over the scores of one window, whose first and last time are public.
               The two run in sequence, so their epsilons add up.
    Assumes:   the state stays secret, and each state is used for one question only.
    """

    public: Public
    column: str
    time: str
    times: int
    change: Change
    window: int
    threshold: Real
    epsilon: Real
    paper: bool = False
    questions: int | None = None

    def __post_init__(self) -> None:
        arrow_columns.require_public(self.public)
        self.scores.check(self.public)
        _require.integer(window=self.window, at_least=1)
        if self.window > self.times:
            raise InvalidInput(
                f"window={self.window!r} is longer than the {self.times} times. Give at most that."
            )
        _require.finite(threshold=self.threshold)
        _require.positive(epsilon=self.epsilon)
        _require.flag(paper=self.paper)
        if self.questions is not None:
            _require.integer(questions=self.questions, at_least=1)

    def rehearse(self, source: Source) -> None:
        """Refuse a missing time column before anything is charged: the schema need not declare it."""
        require_columns(source, self.time)

    @property
    def scores(self) -> LikelihoodScores:
        return LikelihoodScores(column=self.column, time=self.time, times=self.times, change=self.change)

    @property
    def grid_sensitivity(self) -> int:
        """Return how far one row moves the best score of a window, in units of 1 / GRID nat."""
        return self.scores.sensitivity(self.public).linf

    @property
    def event(self) -> Event:
        return PureDP(epsilon=self.epsilon, neighbors=self.public.neighbors)

    @property
    def rounds(self) -> SparseVectorRounds:
        """Return the comparisons, for half of epsilon. Threshold and windows share it 1 : 1 in the paper and
        where one row moves all windows the same way, else 1 : 2^(2/3).
        """
        one_way = moves_one_way(self.scores, self.public) and not self.paper
        # 1000 / 2587 is 1 / (1 + 2^(2/3)), rounded: any share is private, this one has the least variance
        share = Fraction(1, 2) if self.paper or one_way else Fraction(1000, 2587)
        half_epsilon = _require.exact(self.epsilon, "epsilon") / 2
        query = (1 if one_way else 2) * self.grid_sensitivity / (half_epsilon * (1 - share))
        return SparseVectorRounds(
            threshold=self.grid_sensitivity / (half_epsilon * share),
            query=query,
            value=None,
            max_positives=1,
            redraws=True,
        )

    @property
    def picker(self) -> PermuteAndFlip | ReportNoisyMax:
        """Return the mechanism that estimates the time of the change, for the other half of epsilon."""
        half_epsilon = _require.exact(self.epsilon, "epsilon") / 2
        return score_selector(self.scores, self.public, half_epsilon, paper=self.paper)

    def start(self, source: Source, *, entropy: Entropy) -> State:
        """Draw the noisy threshold. No data is read."""
        check_source(self.public, source)
        return self.rounds.begin(entropy)

    def answer(
        self, state: State, source: Source, question: Any, *, entropy: Entropy
    ) -> tuple[State, Release]:
        """Answer whether the window that ends at the time `question` raises the alarm.

        The answer costs nothing more: everything was paid at the start.
        """
        rounds = self.rounds
        before = rounds.check(state, self.questions)
        _require.integer(now=question, at_least=self.window)
        if question > self.times:
            raise _require.fail("now", question, f"at most {self.times}, the last public time")
        check_source(self.public, source)
        scores = np.cumsum(self.scores.parts(source)[question - self.window : question][::-1])[::-1]
        excess = int(scores.max()) - round(_require.exact(self.threshold, "threshold") * GRID)
        after, gap, _ = rounds.one(before, excess, 0, entropy)
        alarm = Alarm(raised=False)
        if gap is not None:
            alarm = Alarm(
                raised=True, time=int(question) - self.window + 1 + int(self.picker.pick(scores, entropy))
            )
        return after, release(alarm, event=NoOp(neighbors=self.public.neighbors), entropy=entropy)

    def error(self, confidence: float = 0.95) -> Fraction:
        """Return a bound a, in nats: with probability `confidence`, every window that raises the alarm has a
        best score of at least t - a, and every other window one below t + a, where t is the threshold rounded
        to a multiple of 1 / GRID nat."""
        _require.open_probability(confidence=confidence)
        if self.questions is None:
            raise InvalidInput(
                "how far off the alarms may be depends on how many windows there are: declare questions=..."
            )
        return Fraction(
            self.rounds.noise_bound(1 - _require.exact(confidence, "confidence"), self.questions), GRID
        )


def best_scores(parts: Any, window: int) -> NDArray[np.int64]:
    """Return the best score of each window: the largest sum of its last k scores over k from 1 to `window`.

    `parts` are the scores per time; the first window ends at time `window`.
    """
    total = np.concatenate([[0], np.cumsum(np.asarray(parts, np.int64))])
    lowest = np.lib.stride_tricks.sliding_window_view(total[:-1], window).min(axis=1)
    scores: NDArray[np.int64] = total[window:] - lowest
    return scores


def alarm_threshold(watch: ChangeWatch, *, false_alarm: float, runs: int = 2000, seed: int = 0) -> float:
    """Return the threshold, in nats, at which a series without a change, with one row at each time, raises a
    false alarm with about the probability `false_alarm`.

    Computed from `runs` simulated series, noise included: no data is read and nothing is charged. It is an
    estimate: with 2000 runs the probability is off by about 0.02.
    """
    _require.open_probability(false_alarm=false_alarm)
    _require.integer(runs=runs, at_least=10)
    if false_alarm * runs < 1:
        raise _require.fail("runs", runs, f"at least {math.ceil(1 / false_alarm)} for so rare a false alarm")
    generator, rounds = np.random.default_rng(seed), watch.rounds
    highest = np.empty(runs)
    for run in range(runs):
        values = watch.change.draw(generator, watch.times, changed=False)
        parts = on_grid(watch.change, watch.scores.clipped(values, watch.public))
        best = best_scores(parts, watch.window)
        noise = generator.laplace(0, float(rounds.query), len(best)) - generator.laplace(
            0, float(rounds.threshold)
        )
        highest[run] = (best + noise).max() / GRID
    return float(np.quantile(highest, 1 - false_alarm))
