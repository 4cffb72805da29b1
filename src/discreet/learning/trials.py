"""Tunes DP-SGD privately: the best of a secret number of runs of a `Trainer` (Liu & Talwar, Papernot &
Steinke).

    search = PrivateSearch(DPClassifier(), {"optimizer": [SGD(lr=0.1), SGD(lr=1)]}, epsilon=2)
    people.fit(search, target="digit")
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .. import _require, accounting, sampling
from .._errors import INTERRUPTIONS
from .._public import Public
from .._require import POSITIVE, Real
from ..accounting import Event, RepeatAndSelect, compose
from ..mechanisms.noise import IntegerGaussian
from ..mechanisms.protocols import AnySource
from ..sampling import Entropy
from ..tabular.trials import CELLS, RepeatedTrials, TrialDistribution
from .training.data import Examples, examples_of
from .training.trainer import Trainer

# The share of a run's rho (`tabular.search.run_rho`) that pays for its score; training gets what is left of
# epsilon. Chosen by hand, not tuned.
_SCORE_SHARE = Fraction(1, 10)
# Rows that are scored at once: bounds the memory of a large model's outputs.
_ROWS = 1 << 12
# Outputs closer than this share of a row's largest are compared with the row alone: far more than float32
# rounding changes them from one batch to another.
_DOUBT = 1e-3


@_require.checked
@dataclass(frozen=True, kw_only=True)
class TrainerTrials(RepeatedTrials):
    """Trains a random one of `candidates` on some of the units and scores it on the others, a secret number
    of times, and releases only the run with the best score (Papernot & Steinke 2022).

    Candidates are `Trainer`s of one price: they may differ in model, optimizer, learning rate and clip. In a
    run every unit is held out with probability `holdout`, by a fresh coin. The score is the number of
    held-out rows whose largest output is their class, with discrete Gaussian noise of `score_rho`-zCDP.

    Guarantee: `event`: RepeatAndSelect of one run, which is the training followed by the score.
    Proof:     given its coins a run is an adaptive composition of a trainer's event on the rows that are not
               held out and of a count that one row moves by at most 1 (the class given to a row does not
               depend on other rows: `_classes`); counts are in units of 1 / `CELLS`. The candidate and the
               coins do not depend on the data. (A unit is trained on or scored, never both, so that
               composition charges more than is needed.) Runs are independent and identically distributed.
               Papernot & Steinke 2022 (arXiv:2110.03620), Theorems 2 and 6.
    Assumes:   as `Trainer`; rows are units (`public.unit` names no column).
    """

    score_rho: Annotated[Real, POSITIVE]

    def _check(self) -> None:
        """Refuse candidates of different prices or for an exact number of rows, and units that are not
        rows."""
        reference = self.candidates[0]
        for candidate in self.candidates:
            _require.must(isinstance(candidate, Trainer), "candidates", type(candidate).__name__, "trainers")
            _require.that(
                candidate.event == reference.event and candidate.public == self.public,
                "all candidates must have one price: the same data, batch, steps and noise. They may "
                "differ in model, optimizer, learning rate and clip.",
            )
        _require.that(
            reference.schedule.exact_size is None,
            f"a {type(reference.schedule).__name__} schedule is for exactly "
            f"{reference.schedule.exact_size} rows, and a run trains on those that a coin does not hold "
            "out. Take another schedule, such as Poisson.",
        )
        _require.that(self.public.unit.column is None, "tuning of a trainer needs rows as units.")

    @property
    def columns(self) -> Any:
        return self.candidates[0].columns

    @cached_property
    def noise(self) -> IntegerGaussian:
        return IntegerGaussian.for_rho(self.score_rho, sensitivity=CELLS, neighbors=self.public.neighbors)

    @property
    def run_event(self) -> Event:
        return compose([self.candidates[0].event, self.noise.event])

    def rehearse(self, source: AnySource) -> None:
        """Try every model on made-up examples, before anything is charged."""
        for candidate in self.candidates:
            candidate.rehearse(source)

    def load_data(self, source: Any) -> Any:
        return examples_of(source, self.columns)

    def trial(self, data: Any, entropy: Entropy) -> tuple[int, int, Any]:
        """Run one trial, and return its noisy score, the candidate's number, and the model."""
        is_held_out = np.asarray(sampling.bernoulli(self.holdout, data.size, entropy), dtype=bool)
        candidate = self.draw_candidate(entropy)
        model = self.candidates[candidate](self._subset(data, ~is_held_out), entropy=entropy).value
        held_out, correct = np.flatnonzero(is_held_out), 0
        with torch.no_grad():
            for start in range(0, len(held_out), _ROWS):
                correct += _correct(model, data, held_out[start : start + _ROWS])
        score = self.noise(np.array([correct * CELLS], dtype=np.int64), entropy=entropy)
        return int(score[0]), candidate, model

    def _subset(self, data: Any, is_member: Any) -> Examples:
        inputs, targets = data.take(np.flatnonzero(is_member))
        return Examples(inputs, targets, self.public)

    def untrained_model(self, entropy: Entropy) -> Any:
        """Return the first candidate before training, which is released if the number of trials is 0."""
        # In evaluation mode, as a trainer releases it: without dropout.
        return copy.deepcopy(self.candidates[0].model).eval()


def _correct(model: Any, data: Any, rows: Any) -> int:
    """Return how many of these rows are given their class. Where reading them or the model raises, each row
    is run by itself, and one on which they raise is not given its class."""
    try:
        inputs, targets = data.take(rows)
        return int((_classes(model, inputs) == targets).sum())
    except INTERRUPTIONS:
        raise
    except Exception:
        return sum(_correct(model, data, rows[i : i + 1]) for i in range(len(rows) if len(rows) > 1 else 0))


def _classes(model: Any, inputs: Any) -> Tensor:
    """Return the position of the largest output for each row.

    Guarantee: each position is a function of the row and the model, whatever other rows are in the batch.
    Proof:     where the two largest outputs are close, the row is run alone. Otherwise the row alone has the
               same largest output, because outputs in a batch differ from these by rounding only.
    Assumes:   rounding changes an output by less than half of `_DOUBT` times the row's largest output.
    """
    outputs = model(inputs)
    classes: Tensor = outputs.argmax(1)
    if outputs.shape[1] > 1:
        first, second = outputs.topk(2).values.unbind(1)
        # Not `<=`, which is false where an output is NaN.
        for row in (~(first - second > _DOUBT * outputs.abs().amax(1))).nonzero().flatten().tolist():
            classes[row] = model(tree_map(lambda t, i=row: t[i : i + 1], inputs)).argmax(1)[0]
    return classes


def trainer_trials(
    search: Any,
    delta: float,
    trials: TrialDistribution,
    settings: list[dict[str, Any]],
    *,
    public: Public,
    target: str,
    features: Any,
) -> TrainerTrials:
    """Return the search over an estimator of DP-SGD, with noise calibrated to (search.epsilon, delta) for the
    whole search.

    `search` is a `PrivateSearch`, `settings` has the parameters of each candidate, and `trials` is the
    distribution of the number of runs.
    """
    # Imported here: `Trainer` and this module work without scikit-learn.
    from sklearn.base import clone

    _require.that(delta > 0, "tuning of DP-SGD needs a delta above 0.")
    # The expected number of rows that a run trains on.
    rows = max(1, round(public.declared_size("tuning") * (1 - search.holdout)))
    score_rho = _SCORE_SHARE * Fraction(_rho(trials, search.epsilon, delta, public.neighbors))
    # Their noise multiplier is a placeholder, replaced below: the price is computed from their schedules.
    drafts = [
        clone(search.estimator)
        .set_params(**parameters, epsilon=None, noise_multiplier=1.0, n=rows)
        .mechanism(public, target=target, features=features)
        for parameters in settings
    ]
    score = IntegerGaussian.for_rho(score_rho, sensitivity=CELLS, neighbors=public.neighbors).event
    reference = drafts[0]

    def price(multiplier: float) -> Event:
        training = reference.schedule.event(multiplier, public.neighbors, reference.grid)
        return RepeatAndSelect(event=compose([training, score]), trials=trials)

    multiplier = float(accounting.calibrate(price, epsilon=search.epsilon, delta=delta, accountant="rdp"))
    return TrainerTrials(
        public=public,
        candidates=tuple(replace(draft, noise_multiplier=multiplier) for draft in drafts),
        trials=trials,
        holdout=search.holdout,
        delta=delta,
        score_rho=score_rho,
    )


def _rho(trials: TrialDistribution, epsilon: float, delta: float, neighbors: Any) -> float:
    """Return the rho that one run may cost, as zCDP, in a search of (epsilon, delta)."""
    from ..tabular.search import run_rho

    return run_rho(trials, epsilon, delta, neighbors)
