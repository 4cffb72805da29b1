"""Estimators with scikit-learn's contract around any torch module: `DPClassifier`, `DPRegressor`, and
`SGDLogisticRegression`.

    model = DPClassifier(epsilon=3, delta=1e-5, classes=[0, 1], n=1400, lower=0, upper=16).fit(X, y)
    model.predict(X_new); model.event_

    model = people.fit(SGDLogisticRegression(epsilon=1), target="income")       # through a session: charged
    first, facts from the schema model.predict({"age": [35], "education": ["Masters"]})

What scikit-learn would read off the data is declared instead: the classes, the number of examples, the bounds
of features and target. Each `fit` is a release of its own: what fits k models (GridSearchCV, cross_val_score)
costs k prices, and `event_` is the last one's.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data
from torch import Tensor, nn

from .. import _require
from .._errors import InvalidInput, PrivateFact
from .._public import Boolean, Bounds, Categories, Public
from ..mechanisms.protocols import Release
from ..sampling import Entropy
from ..tables import Memory
from .data import Examples, Tabular
from .optimizers import SGD
from .trainer import Progress, Trainer

DELTA = 1e-5  # where none is given, and no budget has one


class _Estimator(BaseEstimator):  # type: ignore[misc]
    """What all share: scaling by declared bounds, the module, the trainer."""

    _loss: type[nn.Module]

    def __init__(
        self,
        module: Callable[[int, int], nn.Module] | nn.Module | None = None,
        *,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        n: int | None = None,
        lower: Any = -1.0,
        upper: Any = 1.0,
        clip: Any = 1.0,
        batch: int | None = None,
        epochs: float = 20,
        hidden: Sequence[int] = (),
        optimizer: Any = None,
        average: float | None = None,
        microbatch: int | None = None,
        progress: Callable[[Progress], Any] | None = None,
    ) -> None:
        self.module, self.epsilon, self.delta, self.noise_multiplier = (
            module,
            epsilon,
            delta,
            noise_multiplier,
        )
        self.n, self.lower, self.upper, self.clip = n, lower, upper, clip
        self.batch, self.epochs, self.hidden, self.optimizer = batch, epochs, hidden, optimizer
        self.average, self.microbatch, self.progress = average, microbatch, progress

    def mechanism(
        self,
        public: Public,
        *,
        target: str,
        features: Sequence[str] | None = None,
        delta: float | None = None,
    ) -> Trainer:
        """Return the mechanism that fits this estimator to a table of these public facts; priced, and not run
        yet. For `Session.fit`.

        `features` are by default all columns that can be: numbers with bounds, categories, booleans.
        """
        names = features_of(public, target) if features is None else tuple(features)
        if target in names:
            raise InvalidInput(
                f"the target {target!r} cannot be a feature, too. Nothing was charged or trained."
            )
        columns = Tabular(features=names, target=target)
        for name in names:
            _usable(public, name)
        outputs = self._told(public.fact(target), target)
        return self._priced(public, columns.width(public), outputs, delta, columns)

    # the name it had before estimators could be anything but trained
    trainer = mechanism

    def adopt(self, release: Release, trainer: Trainer) -> Any:
        """Become the model that `trainer` released."""
        assert trainer.columns is not None
        self._knows(trainer.columns, trainer.public)
        self._told(trainer.public.fact(trainer.columns.target), trainer.columns.target)
        return self._became(release, trainer)

    def _knows(self, columns: Tabular, public: Public) -> None:
        self.columns_, self.public_ = columns, public
        self.feature_names_in_ = np.array(columns.features, dtype=object)
        self.n_features_in_ = len(columns.features)

    def _told(self, fact: Any, target: str) -> int:
        """How many outputs a target with this declaration needs; remembers what its values are."""
        raise NotImplementedError

    def _became(self, release: Release, trainer: Trainer) -> Any:
        self.module_, self.event_, self.trainer_ = release.value, release.event, trainer
        return self

    def _priced(
        self,
        public: Public,
        features: int,
        outputs: int,
        delta: float | None = None,
        columns: Tabular | None = None,
    ) -> Trainer:
        noisy, size = self.noise_multiplier is not None, public.size if self.n is None else self.n
        if size is None:
            raise PrivateFact(
                "the number of examples is private and never read off the data: declare it, n=..., "
                "or buy a noisy count. Nothing was trained."
            )
        _require.integer(n=size, at_least=1)
        if self.batch is not None:
            _require.positive(batch=self.batch)
        batch = (
            default_batch(size, None if noisy else self.epsilon)
            if self.batch is None
            else min(self.batch, size)
        )
        wanted = next(d for d in (self.delta, delta, DELTA) if d is not None)
        return Trainer(
            self._built(features, outputs),
            self._loss(),
            public=public,
            n=size,
            noise_multiplier=self.noise_multiplier,  # type: ignore[arg-type]
            epsilon=None if noisy else self.epsilon,
            delta=None if noisy else wanted,
            clip=self.clip,
            batch=batch,
            epochs=self.epochs,
            optimizer=SGD(lr=0.5, momentum=0.9) if self.optimizer is None else self.optimizer,
            average=self.average,
            microbatch=self.microbatch,
            columns=columns,
        )

    def _train(self, X: Tensor, y: Tensor, outputs: int) -> Any:
        public = Public(size=self.n)
        trainer = self._priced(public, int(np.prod(X.shape[1:])), outputs)
        return self._became(
            trainer(Examples(X, y, public), entropy=Entropy(), progress=self.progress), trainer
        )

    def _checked(self, X: Any, y: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]]:
        """Shapes and types only: that some value is missing or infinite is a fact about people, and no reason
        to stop."""
        X = validate_data(self, X, dtype=np.float64, ensure_all_finite=False, ensure_min_samples=0)
        y = np.asarray(y)
        y = column_or_1d(y, warn=True) if y.shape[1:] == (1,) else y
        if y.shape != (len(X),):
            raise InvalidInput("y must have one entry for each row of X. Nothing was trained.")
        self.__dict__.pop("columns_", None)
        return X, y

    def _built(self, features: int, outputs: int) -> nn.Module:
        if isinstance(self.module, nn.Module):
            return self.module
        return (
            network(features, outputs, self.hidden) if self.module is None else self.module(features, outputs)
        )

    def _scaled(self, X: npt.NDArray[Any]) -> Tensor:
        """To [-1, 1] by the declared bounds; what lies outside is clipped, what is missing is 0."""
        lower, upper = np.asarray(self.lower, np.float64), np.asarray(self.upper, np.float64)
        if not (np.all(np.isfinite(lower)) and np.all(lower < upper) and np.all(np.isfinite(upper))):
            raise _require.fail(
                "lower and upper", (self.lower, self.upper), "finite, with lower below upper for each feature"
            )
        scaled = 2 * (np.clip(X, lower, upper) - lower) / (upper - lower) - 1
        return torch.from_numpy(np.nan_to_num(scaled).astype(np.float32))

    def _outputs(self, X: Any) -> Tensor:
        check_is_fitted(self, "module_")
        if hasattr(self, "columns_"):
            inputs = encoded(X, self.columns_, self.public_)
        else:
            X = validate_data(self, X, reset=False, dtype=np.float64, ensure_all_finite=False)
            inputs = self._scaled(X)
        with torch.no_grad():
            return self.module_(inputs)  # type: ignore[no-any-return]


class DPClassifier(ClassifierMixin, _Estimator):  # type: ignore[misc]
    """A classifier trained with DP-SGD; logistic regression unless `module` or `hidden` says otherwise.

    `module` is a function of (features, classes), or a torch module whose outputs are one score for each
    class; `hidden` are the sizes of layers of a tanh network. `classes` are declared; a label that is not
    among them counts as the first. `delta` is by default the budget's, and 1e-5 without a session. `batch` is
    by default chosen from n and epsilon, which are public (`default_batch`): 1024 / epsilon, at most half of
    n and at least 256; what is given wins. `progress` is called after each step, with public facts. `event_`
    is the price, `module_` the trained model.

    Each `fit` is another release with its own price, and `event_` is that of the last one: cross_val_score
    with k folds, or GridSearchCV over k settings, fits and costs k times and more, which nobody adds up
    outside of a session. A scaler before it in a pipeline learns from private data for nothing: declare
    `lower` and `upper`, or pay for a `PrivateScaler`.

    Guarantee: `event_` under add_remove, one row per person; through a session, under its relation and unit.
               Proof: `Trainer`.
    """

    _loss = nn.CrossEntropyLoss

    @_require.spelled
    def __init__(
        self,
        module: Callable[[int, int], nn.Module] | nn.Module | None = None,
        *,
        classes: Any = None,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        n: int | None = None,
        lower: Any = -1.0,
        upper: Any = 1.0,
        clip: Any = 1.0,
        batch: int | None = None,
        epochs: float = 20,
        hidden: Sequence[int] = (),
        optimizer: Any = None,
        average: float | None = None,
        microbatch: int | None = None,
        progress: Callable[[Progress], Any] | None = None,
    ) -> None:
        super().__init__(
            module,
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=noise_multiplier,
            n=n,
            lower=lower,
            upper=upper,
            clip=clip,
            batch=batch,
            epochs=epochs,
            hidden=hidden,
            optimizer=optimizer,
            average=average,
            microbatch=microbatch,
            progress=progress,
        )
        self.classes = classes

    def fit(self, X: Any, y: Any) -> DPClassifier:
        if self.classes is None:
            raise PrivateFact(
                "which classes occur is private: declare them, classes=[...]. Nothing was trained."
            )
        X, y = self._checked(X, y)
        self.classes_ = np.array(sorted(self.classes))
        if len(self.classes_) < 2:
            raise InvalidInput(
                f"at least two classes must be declared, got {len(self.classes_)}. Nothing was trained."
            )
        place = np.searchsorted(self.classes_, y).clip(0, len(self.classes_) - 1)
        place[self.classes_[place] != y] = 0
        self._train(self._scaled(X), torch.from_numpy(place.astype(np.int64)), len(self.classes_))
        return self

    def _told(self, fact: Any, target: str) -> int:
        if not isinstance(fact, Categories | Boolean):
            raise InvalidInput(
                f"a classifier needs a target with declared categories, and {target!r} has none. "
                f"Nothing was charged or trained. Declare "
                f"Categories or Boolean for it, or use DPRegressor."
            )
        values = [False, True] if isinstance(fact, Boolean) else list(fact.values)
        if len(values) < 2:
            raise InvalidInput(
                f"at least two classes must be declared for {target!r}. Nothing was charged or trained."
            )
        if self.classes is not None and set(self.classes) != set(values):
            raise InvalidInput(f"classes= differs from what the schema declares of {target!r}: leave it out.")
        self.classes_ = np.array(values, dtype=None if len({type(v) for v in values}) == 1 else object)
        return len(values)

    def decision_function(self, X: Any) -> npt.NDArray[Any]:
        scores = self._outputs(X)
        return (scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores).numpy()

    def predict_proba(self, X: Any) -> npt.NDArray[Any]:
        return torch.softmax(self._outputs(X), 1).numpy()

    def predict(self, X: Any) -> npt.NDArray[Any]:
        best = self._outputs(X).argmax(1).numpy()
        return self.classes_[best]  # type: ignore[no-any-return]


class SGDLogisticRegression(DPClassifier):
    """Logistic regression trained with DP-SGD: `coef_` and `intercept_` as scikit-learn has them, for
    features scaled to [-1, 1].

    It is linear: `DPClassifier` takes `hidden` layers or a `module`. Options, defaults and the price of each
    `fit` are those of `DPClassifier`.

    Guarantee: `event_`. Proof: `Trainer`.
    """

    @_require.spelled
    def __init__(
        self,
        *,
        classes: Any = None,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        n: int | None = None,
        lower: Any = -1.0,
        upper: Any = 1.0,
        clip: Any = 1.0,
        batch: int | None = None,
        epochs: float = 20,
        optimizer: Any = None,
        average: float | None = None,
        microbatch: int | None = None,
        progress: Callable[[Progress], Any] | None = None,
    ) -> None:
        super().__init__(
            classes=classes,
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=noise_multiplier,
            n=n,
            lower=lower,
            upper=upper,
            clip=clip,
            batch=batch,
            epochs=epochs,
            optimizer=optimizer,
            average=average,
            microbatch=microbatch,
            progress=progress,
        )

    @property
    def coef_(self) -> npt.NDArray[Any]:
        check_is_fitted(self, "module_")
        return self._folded(self.module_.weight.detach().numpy())

    @property
    def intercept_(self) -> npt.NDArray[Any]:
        check_is_fitted(self, "module_")
        return self._folded(self.module_.bias.detach().numpy())

    @staticmethod
    def _folded(scores: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Of two classes, the difference decides."""
        return scores[1:] - scores[:1] if len(scores) == 2 else scores


class DPRegressor(RegressorMixin, _Estimator):  # type: ignore[misc]
    """A regression trained with DP-SGD, on targets clipped to the declared bounds; linear unless `module` or
    `hidden` says otherwise.

    Options are those of `DPClassifier`, and `batch` is chosen as there; `target_lower` and `target_upper` are
    declared bounds.

    Each `fit` is another release with its own price, and `event_` is that of the last one: cross_val_score
    with k folds, or GridSearchCV over k settings, fits and costs k times and more, which nobody adds up
    outside of a session. A scaler before it in a pipeline learns from private data for nothing: declare
    `lower` and `upper`, or pay for a `PrivateScaler`.

    Guarantee: `event_` under add_remove, one row per person; through a session, under its relation and unit.
               Proof: `Trainer`.
    """

    _loss = nn.MSELoss

    @_require.spelled
    def __init__(
        self,
        module: Callable[[int, int], nn.Module] | nn.Module | None = None,
        *,
        target_lower: float = -1.0,
        target_upper: float = 1.0,
        epsilon: float | None = 1.0,
        delta: float | None = None,
        noise_multiplier: float | None = None,
        n: int | None = None,
        lower: Any = -1.0,
        upper: Any = 1.0,
        clip: Any = 1.0,
        batch: int | None = None,
        epochs: float = 20,
        hidden: Sequence[int] = (),
        optimizer: Any = None,
        average: float | None = None,
        microbatch: int | None = None,
        progress: Callable[[Progress], Any] | None = None,
    ) -> None:
        super().__init__(
            module,
            epsilon=epsilon,
            delta=delta,
            noise_multiplier=noise_multiplier,
            n=n,
            lower=lower,
            upper=upper,
            clip=clip,
            batch=batch,
            epochs=epochs,
            hidden=hidden,
            optimizer=optimizer,
            average=average,
            microbatch=microbatch,
            progress=progress,
        )
        self.target_lower, self.target_upper = target_lower, target_upper

    def fit(self, X: Any, y: Any) -> DPRegressor:
        _require.ordered(target_lower=self.target_lower, target_upper=self.target_upper)
        X, y = self._checked(X, y)
        low, high = self.range_ = float(self.target_lower), float(self.target_upper)
        target = np.nan_to_num(
            2 * (np.clip(y.astype(np.float64), low, high) - low) / (high - low) - 1
        ).astype(np.float32)
        self._train(self._scaled(X), torch.from_numpy(target)[:, None], 1)
        return self

    def _told(self, fact: Any, target: str) -> int:
        if not isinstance(fact, Bounds):
            raise InvalidInput(
                f"a regression needs a target with declared bounds, and {target!r} has none. Nothing "
                f"was charged or trained. Declare Bounds for "
                f"it, or use DPClassifier."
            )
        self.range_ = float(fact.lower), float(fact.upper)
        return 1

    def predict(self, X: Any) -> npt.NDArray[Any]:
        predictions = self._outputs(X)[:, 0].double().numpy()
        low, high = self.range_
        return np.clip((predictions + 1) / 2 * (high - low) + low, low, high)


def default_batch(n: int, epsilon: float | None) -> int:
    """Return the expected batch of estimators that were given none: 1024 / epsilon, at most n / 2, at least
    256 (and never above n).

    At a fixed number of epochs the noise that gathers in the weights goes with learning rate * epochs /
    (epsilon * batch), whatever n is: a batch in proportion to 1 / epsilon keeps it where it is, and half of n
    leaves two steps per epoch. From declared n and epsilon alone; with `noise_multiplier` instead of epsilon
    it is 256.

    Logistic regression on Adult, 20 epochs, one run each: at epsilon 0.1 80.6% with 256, 83.2% with 2048,
    85.0% with 8192; at epsilon 1 85.0% with 256, 85.3% with 1024; 4,000 rows at epsilon 0.1: 77.3% with 256,
    80.9% with 2048.

    >>> [default_batch(n, epsilon) for n, epsilon in ((32_561, 0.1), (32_561, 1), (4000, 0.1), (100, 0.1))]
    [10240, 1024, 2000, 100]
    """
    if epsilon is None:
        return min(n, 256)
    _require.positive(epsilon=epsilon)
    by_noise = 1024 / float(epsilon)
    return min(n, max(256, int(min(by_noise, n // 2))))


def network(features: int, outputs: int, hidden: Sequence[int] = ()) -> nn.Module:
    """Return a tanh network with these hidden layers; linear without any.

    Tanh suits clipped gradients (Papernot et al. 2021, arXiv:2007.14191).
    """
    sizes = [features, *hidden]
    _require.integer(**{f"hidden[{i}]": size for i, size in enumerate(hidden)}, at_least=1)
    parts: list[nn.Module] = []
    for inside, outside in itertools.pairwise(sizes):
        parts += [nn.Linear(inside, outside), nn.Tanh()]
    last = nn.Linear(sizes[-1], outputs)
    return nn.Sequential(*parts, last) if parts else last


def features_of(public: Public, target: str) -> tuple[str, ...]:
    """Return all columns that can be features: whoever a row belongs to is none, and the target is none."""
    taken = (target, public.unit.column)
    names = tuple(
        name
        for name, fact in public.schema
        if isinstance(fact, Bounds | Categories | Boolean) and name not in taken
    )
    if not names:
        raise InvalidInput(
            "no column is declared as a number with bounds, as categories or as boolean: nothing to "
            "learn from."
        )
    return names


def _usable(public: Public, name: str) -> None:
    if not isinstance(public.fact(name), Bounds | Categories | Boolean):
        raise InvalidInput(
            f"column {name!r} cannot be a feature: declare Bounds, Categories or Boolean for it. "
            f"Nothing was charged or trained."
        )


def encoded(X: Any, columns: Tabular, public: Public) -> Tensor:
    """Return the features of new rows (a mapping of columns, a data frame, an Arrow table), as the trainer
    saw those it learned from."""
    held: Mapping[str, Any] = X.to_pandas() if isinstance(X, pa.Table) else X
    missing = [name for name in columns.features if name not in held]
    if missing:
        raise InvalidInput(
            f"the model was trained on columns {list(columns.features)}, and {missing[0]!r} is missing."
        )
    table = {name: pa.array(held[name], from_pandas=True) for name in columns.features}
    table[columns.target] = pa.nulls(len(table[columns.features[0]]))
    facts = tuple((name, public.fact(name)) for name in (*columns.features, columns.target))
    examples = columns.read(Memory(pa.table(table), Public(schema=facts, table=public.table)))
    inputs: Tensor = examples.take(np.arange(examples.size))[0]
    return inputs
