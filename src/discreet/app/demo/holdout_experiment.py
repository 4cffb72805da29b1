"""The experiment of Dwork et al. (Science 2015): choose attributes with the help of a holdout, and see what
the holdout is still worth.

n people, d attributes, two classes; an analyst keeps the attributes that correlate with the class on the
training part and on the holdout alike, classifies by the vote of the best k, and asks the holdout how good
that is. Without a signal the truth is one half. A plain holdout, used for choosing and for judging, says much
more.

Exact in distribution without the n d numbers: attributes are normal, so the n d table enters through its
column means, and the votes of a block of attributes given these means are one normal number per row, shifted
so that they have the right mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt

from ... import _require
from ..._public import REPLACE, Public
from ...adaptive.holdout import Check, Thresholdout
from ...mechanisms import Sensitivity
from ...sampling import Entropy, SeededEntropy
from ...tables import Source

Floats = npt.NDArray[np.float64]
# k, as in the paper's figure
SIZES = (10, 20, 30, 45, 70, 100, 150, 200, 250, 300, 400, 500)
# attributes that know something, in the paper
SIGNAL = 20
# attributes are taken within +-8; rows on a grid of 1/1024
REACH, STEP = 8, Fraction(1, 1024)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Accuracies by run and k: on the training part, as the holdout told, and on fresh people.

    `findings`: of overfitting, by run.
    """

    sizes: tuple[int, ...]
    training: Floats
    holdout: Floats
    fresh: Floats
    findings: npt.NDArray[np.int64]

    @property
    def optimism(self) -> Floats:
        """How much more the holdout promised than fresh people held, by k, on average."""
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
    """Run the experiment `runs` times.

    `reusable`: through `holdout_of`; otherwise with exact answers, as a plain holdout gives them.

    `paper` takes the threshold of the authors' code. The randomness is seeded: this simulates, and protects
    nobody.
    """
    _require.integer(n=n, d=d, runs=runs, at_least=1)
    _require.integer(seed=seed, at_least=0)
    _require.flag(signal=signal, reusable=reusable, paper=paper)
    random, entropy = np.random.default_rng([seed, n, d, signal, reusable]), SeededEntropy(seed)
    reusable_holdout = holdout_of(n, d, paper=paper) if reusable else None
    plays = [_Run(n, d, signal, random).play(sizes, reusable_holdout, entropy) for _ in range(runs)]
    training, holdout, fresh, findings = (np.array(part) for part in zip(*plays, strict=True))
    return Outcome(sizes=sizes, training=training, holdout=holdout, fresh=fresh, findings=findings)


def holdout_of(n: int, d: int, *, paper: bool = False) -> Thresholdout:
    """Return a holdout of n rows for d attributes: T = sqrt(4 ln d / n), and comparisons with noise of
    standard deviation 1 / sqrt(n).

    The threshold is a public choice. An honest attribute, of no use in truth, has a training and a holdout
    mean that differ by a normal number of variance 2 / n; the largest of d such differences is about T, so
    that few honest ones are findings, and telling their holdout means cannot be used for choosing among them.
    `paper`: T = 4 / sqrt(n), as in the code that came with the Science paper (there the told value has noise
    of 1 / sqrt(n), too, four times ours). Below sqrt(4 ln d / n) the choice itself starts to fit the holdout.

    Its price is for values within +-8, and it is high: these settings were chosen to keep an analyst honest,
    not to protect people.
    """
    root = Fraction(round(float(n) ** 0.5 * 1000), 1000)
    times = 4 if paper else Fraction(round(1000 * max(1.0, 4 * math.log(d)) ** 0.5), 1000)
    return Thresholdout(
        public=Public(neighbors=REPLACE, size=n),
        threshold=times / root,
        sigma=1
        # 4 sigma is the scale of the comparison, sqrt(2) scales a deviation
        / (root * Fraction(5657, 1000)),
        budget=n,
        lower=-REACH,
        upper=REACH,
        step=STEP,
    )


class _Asked:
    """A holdout that exists only as the sums that are asked of it."""

    def __init__(self, holdout: Thresholdout, entropy: Entropy) -> None:
        self.holdout, self.entropy, self.source = holdout, entropy, _Nothing(holdout.public)
        self.state = holdout.start(self.source, entropy=entropy)

    def means(self, sums: Any, training: Any) -> Floats:
        integers = np.rint(np.asarray(sums) / float(STEP)).astype(np.int64)
        question = Check(
            statistic=_Sums(integers, self.holdout.grid_sensitivity),
            training=tuple(np.asarray(training).tolist()),
        )
        self.state, answer = self.holdout.answer(self.state, self.source, question, entropy=self.entropy)
        return np.array(answer.value.value)


class _Nothing:
    def __init__(self, public: Public) -> None:
        self.public = public

    def batches(self, columns: Any) -> Any:
        return iter(())


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of which it is known how far one person moves them; they come from no table."""

    values: Any
    moved: int
    step: Fraction = STEP

    def sensitivity(self, public: Public) -> Sensitivity:
        return Sensitivity(linf=self.moved, l0=len(self.values))

    def length(self, public: Public) -> int:
        return len(self.values)

    def __call__(self, source: Source) -> Any:
        return self.values


class _Run:
    def __init__(self, n: int, d: int, signal: bool, random: Any) -> None:
        self.n, self.random = n, random
        self.bias = np.zeros(d)
        if signal:
            self.bias[:SIGNAL] = 6 / n**0.5
        self.training, self.kept = (self.bias + random.standard_normal(d) / n**0.5 for _ in range(2))

    def play(self, sizes: tuple[int, ...], holdout: Thresholdout | None, entropy: Entropy) -> tuple[Any, ...]:
        scorer = None if holdout is None else _Asked(holdout, entropy)
        seen = self.kept if scorer is None else scorer.means(self.n * self.kept, self.training)
        chosen = self._choose_attributes(seen, max(sizes))
        signs = np.sign(self.training[chosen])
        training, kept = (
            self._accuracies(sizes, signs * means[chosen]) for means in (self.training, self.kept)
        )
        fresh = self._accuracies(sizes, signs * self.bias[chosen], centered=False)
        released = kept if scorer is None else scorer.means(self.n * kept, training)
        return training, released, fresh, 0 if scorer is None else scorer.state["positives"]

    def _choose_attributes(self, seen: Floats, limit: int) -> Any:
        """Return the attributes with one sign on both parts and enough of a correlation, the strongest on the
        training part first."""
        least = 1 / self.n**0.5
        both = (np.abs(self.training) >= least) & (np.abs(seen) >= least) & (self.training * seen > 0)
        chosen = np.flatnonzero(both)
        return chosen[np.argsort(-np.abs(self.training[chosen]))][:limit]

    def _accuracies(self, sizes: tuple[int, ...], means: Floats, centered: bool = True) -> Floats:
        """Return the accuracies of the votes of the first k, for each k: a block of attributes adds its votes
        to those before it.

        `means`: of each attribute's vote over these n people, where these are `centered`; else in the
        population.
        """
        votes, before, accuracies = np.zeros(self.n), 0, []
        for k in sizes:
            block = means[before:k]
            noise = self.random.standard_normal(self.n) * len(block) ** 0.5
            votes += (noise - noise.mean() if centered else noise) + block.sum()
            accuracies.append(float((votes > 0).mean()))
            before = k
        return np.array(accuracies)
