"""Online changepoint detection: a private watch over a sliding window, and at the alarm a private estimate of
when the change began.

After OnlinePCPD (Cummings, Krehbiel, Mei, Tuo & Zhang 2018, arXiv:1808.10056, Algorithm 3): a noisy threshold
is compared with the best score of each window, and the first window that passes is handed to the offline
step. Half of epsilon for each.
"""

from __future__ import annotations

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
    """Says whether the window that was asked about raised the alarm; if so, the time at which the change
    seems to have begun."""

    raised: bool
    time: int | None = None


@described("adaptive.ChangeWatch")
@dataclass(frozen=True, slots=True, kw_only=True)
class ChangeWatch:
    """Watches a series for a change: asked with a time `now`, it looks at the last `window` times up to it;
    halts for good at the first alarm.

    `threshold` is in nats of log-likelihood; `alarm_threshold` finds one for a wanted chance of false alarms.
    `paper` takes the paper's scales, 4 A / epsilon for the threshold and 8 A / epsilon for each window, and
    Laplace noise in the last step; the default is as private, and errs less.

    Guarantee: epsilon-DP, for any number of windows, each chosen after the answers before it.
    Proof:     half of epsilon for the comparisons: `_sparse_vector.SparseVectorRounds` with one positive. One
               row moves the best score of a window, a maximum of sums, by at most the sensitivity of
               `LikelihoodScores`, and under add_remove and zero_out in all windows the same way. Half for the
               estimate: `score_selector` over the scores of one window, whose ends are public. In sequence
               they add up.
    Assumes:   the state stays secret and is used once.
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
        """Refuse a time column that is not there before anything is charged: no schema declares it."""
        require_columns(source, self.time)

    @property
    def scores(self) -> LikelihoodScores:
        return LikelihoodScores(column=self.column, time=self.time, times=self.times, change=self.change)

    @property
    def grid_sensitivity(self) -> int:
        """Return how far one row moves the best score of a window, in steps."""
        return self.scores.sensitivity(self.public).linf

    @property
    def event(self) -> Event:
        return PureDP(epsilon=self.epsilon, neighbors=self.public.neighbors)

    @property
    def rounds(self) -> SparseVectorRounds:
        """Return the comparisons: half of epsilon, shared 1 : 1 in the paper and where all windows move one
        way, else 1 : 2^(2/3).
        """
        one_way = moves_one_way(self.scores, self.public) and not self.paper
        share = Fraction(1, 2) if self.paper or one_way else Fraction(1000, 2587)
        half = _require.exact(self.epsilon, "epsilon") / 2
        query = (1 if one_way else 2) * self.grid_sensitivity / (half * (1 - share))
        return SparseVectorRounds(
            threshold=self.grid_sensitivity / (half * share),
            query=query,
            value=None,
            max_positives=1,
            redraws=True,
        )

    @property
    def picker(self) -> PermuteAndFlip | ReportNoisyMax:
        """Return the offline step, for the other half."""
        half = _require.exact(self.epsilon, "epsilon") / 2
        return score_selector(self.scores, self.public, half, paper=self.paper)

    def start(self, source: Source, *, entropy: Entropy) -> State:
        """Draw the noisy threshold. No data is read."""
        check_source(self.public, source)
        return self.rounds.begin(entropy)

    def answer(
        self, state: State, source: Source, question: Any, *, entropy: Entropy
    ) -> tuple[State, Release]:
        """Answer whether the window that ends at the time `question` raises the alarm.

        Its own price is nothing: all was paid at the start.
        """
        rounds = self.rounds
        before = rounds.check(state, self.questions)
        _require.integer(now=question, at_least=self.window)
        if question > self.times:
            raise _require.fail("now", question, f"at most {self.times}, the last public time")
        check_source(self.public, source)
        scores = np.cumsum(self.scores.parts(source)[question - self.window : question][::-1])[::-1]
        excess = int(scores.max()) - _steps(self.threshold)
        after, gap, _ = rounds.one(before, excess, 0, entropy)
        alarm = Alarm(raised=False)
        if gap is not None:
            alarm = Alarm(
                raised=True, time=int(question) - self.window + 1 + int(self.picker.pick(scores, entropy))
            )
        return after, release(alarm, event=NoOp(neighbors=self.public.neighbors), entropy=entropy)

    def error(self, confidence: float = 0.95) -> Fraction:
        """Return a, in nats: with probability `confidence`, an alarm has a best score of at least threshold -
        a, and a window without one has a best score below threshold + a."""
        _require.open_probability(confidence=confidence)
        if self.questions is None:
            raise InvalidInput(
                "how far off the alarms may be depends on how many windows there are: declare questions=..."
            )
        return Fraction(
            self.rounds.noise_bound(1 - _require.exact(confidence, "confidence"), self.questions), GRID
        )


def _steps(threshold: Real) -> int:
    return round(_require.exact(threshold, "threshold") * GRID)


def best_scores(parts: Any, window: int) -> NDArray[np.int64]:
    """Return, for each end of a window, the largest sum of the last scores in it, one at least."""
    total = np.concatenate([[0], np.cumsum(np.asarray(parts, np.int64))])
    lowest = np.lib.stride_tricks.sliding_window_view(total[:-1], window).min(axis=1)
    scores: NDArray[np.int64] = total[window:] - lowest
    return scores


def alarm_threshold(watch: ChangeWatch, *, false_alarm: float, runs: int = 2000, seed: int = 0) -> float:
    """Return the threshold, in nats, at which a series without a change, one row at each time, raises a false
    alarm with about this chance.

    From simulated series: no data is read, nothing is paid. The noise is part of it. An estimate: with 2000
    runs good to about 0.02.
    """
    _require.open_probability(false_alarm=false_alarm)
    _require.integer(runs=runs, at_least=10)
    source, rounds = np.random.default_rng(seed), watch.rounds
    highest = np.empty(runs)
    for run in range(runs):
        parts = on_grid(watch.change, watch.change.draw(source, watch.times, changed=False))
        best = best_scores(parts, watch.window)
        noise = source.laplace(0, float(rounds.query), len(best)) - source.laplace(0, float(rounds.threshold))
        highest[run] = (best + noise).max() / GRID
    return float(np.quantile(highest, 1 - false_alarm))
