"""Defines `PrivateSearch`: private hyperparameter tuning in scikit-learn's manner.

    search = PrivateSearch(LogisticRegression(), {"regularization": [1, 10, 100]}, epsilon=1)
    people.fit(search, target="income")
    search.best_params_; search.predict(...); search.comparison()

A search has one price, however many candidates there are.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from sklearn.base import clone
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted

from .. import _require, accounting
from .._errors import InvalidInput
from .._public import Bounds, Public
from .._require import FINITE, NON_NEGATIVE, OPEN_PROBABILITY, POSITIVE, among
from ..accounting import ZCDP, NegativeBinomialTrials, PoissonTrials, RepeatAndSelect
from ..mechanisms.protocols import Mechanism, Release
from .estimator_base import Estimator, Regressor, numbers_of, parameters, require_bounds
from .trials import RandomTrials, TrialDistribution, cap_of, gamma_of, rho_of

# For each `law` the shape of the negative binomial distribution of the number of trials; None is Poisson.
TRIAL_SHAPES = {"logarithmic": 0, "geometric": 1, "poisson": None}
# The largest number of candidates. For each a mechanism is built and priced, which takes some milliseconds.
_MAX_CANDIDATES = 10_000
# The largest mean number of trials. A search may take several times as many, each of them a fit.
_MAX_TRIALS = 1_000_000


def trial_distribution(name: str, mean: float) -> TrialDistribution:
    """Return the distribution of the number of trials with this name (a key of `TRIAL_SHAPES`) and mean."""
    shape = TRIAL_SHAPES[name]
    if shape is None:
        return PoissonTrials(mean=mean)
    return NegativeBinomialTrials(shape=shape, gamma=gamma_of(shape, mean))


def run_rho(trials: TrialDistribution, epsilon: float, delta: float, neighbors: Any) -> float:
    """Return nearly the largest zCDP parameter rho of one run with which the search is (epsilon, delta)-DP.

    `calibrate` searches the least x that is private enough: here x is 1 / rho.
    """
    inverse = accounting.calibrate(
        lambda x: RepeatAndSelect(event=ZCDP(rho=1 / x, neighbors=neighbors), trials=trials),
        epsilon=epsilon,
        delta=delta,
        accountant="rdp",
    )
    return 1 / float(inverse) * (1 - 1e-9)


@parameters
class PrivateSearch(Estimator):
    """Tunes an estimator over all combinations of the values in `space`, within one epsilon; fitted, it
    predicts with the best model.

    A run draws a combination, and fits and scores it. `trials` is the mean number of runs, `law` the
    distribution of their number: "logarithmic", "geometric" or "poisson" (which needs a delta). The price of
    one run does not depend on the number of combinations. Where all candidates have Gaussian noise and there
    is a `delta`, Rényi accounting gives a run nearly the whole epsilon. Otherwise a run is pure, with half of
    epsilon for the logarithmic distribution and a third for the geometric. `holdout` is the share of units
    that a run is scored on.

    The number of runs stays secret, but how long they take tells it. With `pace`, the seconds that a run may
    take, a session enters and returns the result after the time of the largest likely number of runs, and not
    before: if no run takes longer, times tell nothing. A search that is interrupted is lost, and stays paid.

    Guarantee: the privacy event `event_`. Proof: `RandomTrials`.
    """

    estimator: Any = field(kw_only=False)
    space: Mapping[str, Sequence[Any]] = field(kw_only=False)
    epsilon: Annotated[float, POSITIVE] = 1.0
    trials: Annotated[float, FINITE] = 10.0
    law: Annotated[str, among(tuple(TRIAL_SHAPES))] = "logarithmic"
    holdout: Annotated[float, OPEN_PROBABILITY] = 0.2
    pace: Annotated[float, NON_NEGATIVE] = 0.0

    @property
    def _settings(self) -> list[dict[str, Any]]:
        """Return all combinations of parameters; refuse a space that is empty, or varies the price or public
        facts."""
        wanted = 'lists of values by parameter, such as {"regularization": [1, 10]}'
        _require.must(isinstance(self.space, Mapping) and self.space, "space", self.space, wanted)
        for name, values in self.space.items():
            # `adopt` reads the space again, after the charge
            wanted = "a list, not an iterator that ends after one use"
            _require.must(not isinstance(values, Iterator), str(name), values, wanted)
        lists = [_require.listed(**{str(name): values}) for name, values in self.space.items()]
        if unknown := [name for name in self.space if name not in self.estimator.get_params()]:
            raise InvalidInput(
                f"{type(self.estimator).__name__} has no parameter {unknown[0]!r} that space could "
                f"vary.{_require.did_you_mean(str(unknown[0]), list(self.estimator.get_params()))}"
            )
        _require.that(
            (combinations := math.prod(map(len, lists))) <= _MAX_CANDIDATES,
            f"space has {combinations:,} combinations, more than {_MAX_CANDIDATES:,}. A search tries few "
            "of them: give shorter lists.",
        )
        settings = [dict(zip(self.space, values, strict=True)) for values in itertools.product(*lists)]
        if not settings or any(
            name in self.space for name in ("epsilon", "delta", "n", "lower", "upper", "classes")
        ):
            raise InvalidInput(
                f"space = {dict(self.space)!r} is empty, or varies the price or public facts, which a search "
                "must not do."
            )
        return settings

    def _build(self, public: Public, target: Any, features: Sequence[str] | None, delta: float) -> Mechanism:
        wanted = f"above 1, and at most {_MAX_TRIALS:,}: the mean number of runs"
        _require.must(1 < self.trials <= _MAX_TRIALS, "trials", self.trials, wanted)
        trials = trial_distribution(self.law, float(self.trials))
        task: dict[str, Any] = {"public": public, "target": target, "features": features}
        if hasattr(self.estimator, "search_trials"):
            # a neural network: its trials are trained, and paid, step by step
            found: Mechanism = self.estimator.search_trials(self, delta, trials, self._settings, **task)
            return found
        if delta > 0:
            rho = run_rho(trials, self.epsilon, delta, public.neighbors)
            # candidates are given the epsilon whose Gaussian noise, at this delta, has at most this rho
            run_epsilon = float(accounting.epsilon(ZCDP(rho=rho), delta=delta, accountant="zcdp")) * (
                1 - 1e-6
            )
            candidates = self._candidates(run_epsilon, delta, **task)
            if all(rho_of(c.event) <= rho and c.delta > 0 for c in candidates):
                return self._trials(candidates, trials, public, delta=delta, score_rho=rho)
        if isinstance(trials, PoissonTrials):
            raise InvalidInput(
                'law = "poisson" needs a delta, and candidates with Gaussian noise (method="output" or '
                '"gradient", GaussianNB, boosting). Take law="logarithmic".'
            )
        run_epsilon = self.epsilon / float(2 + trials.shape) * (1 - 1e-12)
        return self._trials(
            self._candidates(run_epsilon, 0.0, **task), trials, public, score_epsilon=run_epsilon
        )

    @property
    def least_seconds(self) -> float:
        """The seconds after which a session enters the result of this search, if it is there by then."""
        return self.pace * cap_of(trial_distribution(self.law, float(self.trials)))

    def _candidates(self, epsilon: float, delta: float, public: Public, **task: Any) -> list[Any]:
        """Return the mechanism of each combination, for this price of one run."""
        _require.an_object(self.estimator)
        _require.must(
            "n" in self.estimator.get_params(),
            "estimator",
            type(self.estimator).__name__,
            "an estimator of one table with n=, not a pipeline",
        )
        rows = max(1, round(public.declared_size("tuning") * (1 - self.holdout)))
        candidates = []
        for combination in self._settings:
            model = clone(self.estimator).set_params(**combination, epsilon=epsilon, delta=delta, n=rows)
            model._labels = self._labels
            candidates.append(model.mechanism(public, **task))
        return candidates

    def _trials(
        self, candidates: list[Any], trials: TrialDistribution, public: Public, **price: Any
    ) -> RandomTrials:
        """Return the search over candidates; `price` has score_epsilon, or score_rho and delta."""
        return RandomTrials(
            public=public,
            candidates=tuple(candidates),
            trials=trials,
            holdout=self.holdout,  # type: ignore[arg-type]
            **price,
        )

    def adopt(self, release: Release, mechanism: Any) -> Any:
        self.model_, self.event_, self.mechanism_ = release.value, release.event, mechanism
        # a search over training runs has `columns`, one over learners of tables has a `design`
        columns = getattr(mechanism, "columns", None) or mechanism.design
        self.feature_names_in_ = np.array(columns.features, dtype=object)
        self.n_features_in_, self._arrays = len(columns.features), False
        self.best_params_ = self._settings[release.value.candidate]
        self.best_score_ = release.value.score
        learner = mechanism.candidates[release.value.candidate]
        inner = Release(value=release.value.model, event=release.event, private=release.private)
        self.best_estimator_ = clone(self.estimator).set_params(**self.best_params_).adopt(inner, learner)
        return self

    def fit(self, X: Any, y: Any) -> PrivateSearch:
        """Fit to arrays, whose public facts are arguments of the estimator: `n`, `lower`, `upper`, and
        `classes` or the bounds of the target."""
        base = self.estimator
        _require.an_object(base)
        require_bounds(base)
        self.n, self.lower, self.upper = base.n, base.lower, base.upper
        if isinstance(base, Regressor):
            self._fit_arrays(X, numbers_of(y, X), Bounds(base.target_lower, base.target_upper))
        else:
            labels = self._fit_classes(X, y, vars(base).get("classes"))
            self.best_estimator_.classes_ = np.array(labels)
        self.best_estimator_._use_arrays(vars(self).get("feature_names_in_"))
        return self

    def carried_over(self, X: Any, y: Any, *, folds: int = 5) -> Any:
        """Return the estimator, not fitted yet, with the parameters that score best on a PUBLIC table of the
        same kind and about the same size, for `epsilon`. This costs nothing.

        Cross-validation in `folds` parts: every candidate is fitted with its noise to all parts but one, and
        scored on that part, because good parameters depend on the noise. The scores are exact: never pass
        protected rows.

        Guarantee: a later fit of the returned estimator costs its own price and no more.
        Proof:     the choice does not depend on protected data.
        """
        _require.integer(folds=folds, at_least=2)
        X, y = np.asarray(X), np.asarray(y)
        fold_of_row = np.random.default_rng(0).permutation(len(X)) % folds
        price = {"epsilon": self.epsilon, **({} if self.delta is None else {"delta": self.delta})}
        scores = []
        for combination in self._settings:
            total = 0.0
            for fold in range(folds):
                is_held_out = fold_of_row == fold
                model = clone(self.estimator).set_params(**combination, **price, n=int((~is_held_out).sum()))
                total += float(
                    model.fit(X[~is_held_out], y[~is_held_out]).score(X[is_held_out], y[is_held_out])
                )
            scores.append(total / folds)
        best_parameters = self._settings[int(np.argmax(scores))]
        return clone(self.estimator).set_params(**best_parameters, **price)

    def predict(self, X: Any) -> npt.NDArray[Any]:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict(X)  # type: ignore[no-any-return]

    @available_if(lambda self: getattr(self.estimator, "predict_proba", None) is not None)  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        check_is_fitted(self, "best_estimator_")
        return self.best_estimator_.predict_proba(X)  # type: ignore[no-any-return]

    def score(self, X: Any, y: Any) -> float:
        check_is_fitted(self, "best_estimator_")
        return float(self.best_estimator_.score(X, y))

    def comparison(self) -> dict[str, float]:
        """Return epsilons to compare: of this search as it is charged, by Rényi divergences; of trying every
        candidate once, by plain composition; and of the best run as if no other had been tried, which is no
        guarantee."""
        check_is_fitted(self, "best_estimator_")
        search = self.mechanism_
        run_event, count = search.run_event, len(search.candidates)
        return {
            "this search": search.epsilon,
            "plain composition, every candidate once": _price(run_event.repeated(count), search.delta),
            "cheating: the best run alone, not a guarantee": _price(run_event, search.delta),
        }


def _price(event: Any, delta: float) -> float:
    """Return the epsilon of an event at a delta."""
    if delta == 0:
        return float(accounting.basic(event).value)
    return float(accounting.epsilon(event, delta=delta, accountant="rdp"))
