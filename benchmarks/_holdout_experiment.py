"""Repeats the experiment of Dwork et al. (Science 2015): choose attributes with the help of a holdout, and
measure how far the holdout then overestimates the accuracy.

There are n people in the training part and n in the holdout, d attributes and two classes. An analyst keeps
the attributes that correlate with the class on both parts, classifies by the vote of the best k, and asks the
holdout for the accuracy of that vote. Without a signal the true accuracy is one half; a plain holdout, used
for choosing and for judging, reports much more.

The n by d tables are not drawn, and the results still have exactly their distribution. Attributes (times the
class, which is 1 or -1) are independent normal numbers of variance 1, so the choice depends on column means
alone, and given the means the votes of a block of attributes are one normal number per row, shifted to have
the right mean.

The reusable holdout (`adaptive.Thresholdout`) answers with the value on the training part, unless that
differs from the value on the holdout by more than a threshold. Such a difference is a *finding*: the answer
is then the noisy value on the holdout.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from discreet import REPLACE, Public, _require
from discreet.adaptive import Check, Thresholdout
from discreet.mechanisms import Sensitivity
from discreet.sampling import Entropy, SeededEntropy
from discreet.tables import Source

Floats = npt.NDArray[np.float64]
# the numbers k of attributes that vote, as in the paper's figure
SIZES = (10, 20, 30, 45, 70, 100, 150, 200, 250, 300, 400, 500)
# the number of attributes that correlate with the class if there is a signal, as in the paper
SIGNAL = 20
# The holdout is priced for values clipped to +-REACH, beyond which a normal number is once in 10^15, and
# rounded to multiples of STEP. The simulation rounds their sums, and does not clip.
REACH, STEP = 8, Fraction(1, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Holds accuracies by run (rows) and by k in `sizes` (columns): on the training part, as the holdout
    reports them, and on fresh people.

    `findings` has the number of findings of the reusable holdout in each run.
    """

    sizes: tuple[int, ...]
    training: Floats
    holdout: Floats
    fresh: Floats
    findings: npt.NDArray[np.int64]

    @property
    def optimism(self) -> Floats:
        """The accuracy that the holdout reports less that on fresh people, by k, averaged over the runs."""
        mean: Floats = (self.holdout - self.fresh).mean(axis=0)
        return mean


def science(
    *,
    n: int = 10_000,
    d: int = 10_000,
    signal: bool = False,
    reusable: bool = True,
    runs: int = 100,
    sizes: tuple[int, ...] = SIZES,
    seed: int = 0,
    paper: bool = False,
) -> Outcome:
    """Run the experiment `runs` times with n people in each part and d attributes.

    With `signal` the first 20 attributes correlate with the class. With `reusable` the holdout answers
    through `holdout_of`, otherwise exactly, as a plain holdout does. `paper` takes the threshold of the
    authors' code. The randomness is seeded: this is a simulation, and protects nobody.
    """
    _require.integer(n=n, d=d, runs=runs, at_least=1)
    _require.integer(seed=seed, at_least=0)
    _require.flag(signal=signal, reusable=reusable, paper=paper)
    random, entropy = np.random.default_rng([seed, n, d, signal, reusable]), SeededEntropy(seed)
    reusable_holdout = holdout_of(n, d, paper=paper) if reusable else None
    outcomes = [_Run(n, d, signal, random).play(sizes, reusable_holdout, entropy) for _ in range(runs)]
    training, holdout, fresh, findings = (np.array(part) for part in zip(*outcomes, strict=True))
    return Outcome(sizes=sizes, training=training, holdout=holdout, fresh=fresh, findings=findings)


def holdout_of(n: int, d: int, *, paper: bool = False) -> Thresholdout:
    """Return a holdout of n rows for d attributes, with the threshold T = sqrt(4 ln d / n) and comparisons
    with noise of standard deviation 1 / sqrt(n).

    The threshold is a public choice. An attribute without a signal has a training and a holdout mean that
    differ by a normal number of variance 2 / n. The largest of d such differences is about T, so few of these
    attributes are findings, and an analyst hardly ever sees their holdout means to choose by. With a
    threshold below sqrt(4 ln d / n) the choice itself starts to fit the holdout.
    `paper` takes T = 4 / sqrt(n), as in the code that came with the Science paper (there the released value
    has noise of 1 / sqrt(n) as well, four times the noise here).

    The price is for values within +-8 (REACH), and it is high: these settings were chosen to keep an analyst
    from overfitting, not to protect people.
    """
    # fractions near sqrt(n) and sqrt(4 ln d), because a mechanism's parameters are exact numbers
    sqrt_n = Fraction(round(float(n) ** 0.5 * 1000), 1000)
    numerator = 4 if paper else Fraction(round(1000 * max(1.0, 4 * math.log(d)) ** 0.5), 1000)
    return Thresholdout(
        public=Public(neighbors=REPLACE, size=n),
        threshold=numerator / sqrt_n,
        # The comparison has Laplace noise of scale 4 sigma, so of standard deviation 4 sqrt(2) sigma: here
        # 1 / sqrt(n).
        sigma=1 / (sqrt_n * Fraction(5657, 1000)),
        budget=n,
        lower=-REACH,
        upper=REACH,
        step=STEP,
    )


class _SimulatedHoldout:
    """Asks a reusable holdout about sums that the simulation drew, in place of sums over a table."""

    def __init__(self, holdout: Thresholdout, entropy: Entropy) -> None:
        self.holdout, self.entropy, self.source = holdout, entropy, _Nothing(holdout.public)
        self.state = holdout.start(self.source, entropy=entropy)

    def means(self, sums: Any, training: Any) -> Floats:
        """Return the holdout's answers for the means of these sums, given the means on the training part."""
        integers = np.rint(np.asarray(sums) / float(STEP)).astype(np.int64)
        question = Check(
            statistic=_Sums(integers, self.holdout.grid_sensitivity),
            training=tuple(np.asarray(training).tolist()),
        )
        self.state, answer = self.holdout.answer(self.state, self.source, question, entropy=self.entropy)
        return np.array(answer.value.value)


class _Nothing:
    """A table without rows: the sums do not come from it."""

    def __init__(self, public: Public) -> None:
        self.public = public

    def batches(self, columns: Any) -> Any:
        return iter(())


@dataclass(frozen=True, slots=True)
class _Sums:
    """Holds sums, in units of `step`, that come from no table; a person changes each by at most `linf`."""

    values: Any
    linf: int
    step: Fraction = STEP

    def sensitivity(self, public: Public) -> Sensitivity:
        return Sensitivity(linf=self.linf, l0=len(self.values))

    def length(self, public: Public) -> int:
        return len(self.values)

    def __call__(self, source: Source) -> Any:
        return self.values


class _Run:
    """One run: the attributes' true means (`bias`), and their means on the two parts."""

    def __init__(self, n: int, d: int, signal: bool, random: Any) -> None:
        self.n, self.random = n, random
        self.bias = np.zeros(d)
        if signal:
            # 6 / sqrt(n), as in the paper
            self.bias[:SIGNAL] = 6 / n**0.5
        self.training, self.holdout = (self.bias + random.standard_normal(d) / n**0.5 for _ in range(2))

    def play(self, sizes: tuple[int, ...], holdout: Thresholdout | None, entropy: Entropy) -> tuple[Any, ...]:
        """Choose attributes and let them vote; return the accuracies on the training part, as the holdout
        reports them (exactly if `holdout` is None) and on fresh people, and the number of findings."""
        scorer = None if holdout is None else _SimulatedHoldout(holdout, entropy)
        reported = self.holdout if scorer is None else scorer.means(self.n * self.holdout, self.training)
        chosen = self._choose_attributes(reported, max(sizes))
        signs = np.sign(self.training[chosen])
        training, exact = (
            self._accuracies(sizes, signs * means[chosen]) for means in (self.training, self.holdout)
        )
        fresh = self._accuracies(sizes, signs * self.bias[chosen], centered=False)
        released = exact if scorer is None else scorer.means(self.n * exact, training)
        return training, released, fresh, 0 if scorer is None else scorer.state["positives"]

    def _choose_attributes(self, reported: Floats, limit: int) -> Any:
        """Return up to `limit` attributes whose means have the same sign on both parts and a size of at least
        1 / sqrt(n), the largest on the training part first. `reported` has the holdout's means as it reports
        them.
        """
        smallest = 1 / self.n**0.5
        large = (np.abs(self.training) >= smallest) & (np.abs(reported) >= smallest)
        chosen = np.flatnonzero(large & (self.training * reported > 0))
        return chosen[np.argsort(-np.abs(self.training[chosen]))][:limit]

    def _accuracies(self, sizes: tuple[int, ...], means: Floats, centered: bool = True) -> Floats:
        """Return the accuracy of the vote of the first k attributes, for each k in `sizes`.

        `means` has the mean of each attribute's vote: over the n people themselves if `centered`, so that the
        simulated votes must have exactly this mean, and in the population otherwise. Each block of attributes
        adds its votes to those of the blocks before it; a block is empty if too few attributes were chosen.
        """
        votes, start, accuracies = np.zeros(self.n), 0, []
        for k in sizes:
            block = means[start:k]
            noise = self.random.standard_normal(self.n) * len(block) ** 0.5
            votes += (noise - noise.mean() if centered else noise) + block.sum()
            accuracies.append(float((votes > 0).mean()))
            start = k
        return np.array(accuracies)
