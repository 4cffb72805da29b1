"""Defines estimators with scikit-learn's contract around any torch module: `DPClassifier`, `DPRegressor`, and
`SGDLogisticRegression`.

    model = DPClassifier(epsilon=3, delta=1e-5, classes=[0, 1], n=1400, lower=0, upper=16).fit(X, y)
    model.predict(X_new); model.event_

    # through `people`, a session (`discreet.open`): charged first, facts from the schema
    model = people.fit(SGDLogisticRegression(epsilon=1), target="income")
    model.predict({"age": [35], "education": ["Masters"]})

What scikit-learn would read from the data is declared instead: the classes, the number of examples, the
bounds of features and target. Each `fit` is a release of its own: a function that fits k models
(GridSearchCV, cross_val_score) costs k prices, and `event_` is the last one's.

Defines the base class of DP-SGD estimators with scikit-learn's contract: scaling by declared bounds, the
torch module, and the trainer.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Annotated, Any, ClassVar

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from .. import _require
from .._errors import InvalidInput
from .._public import Boolean, Bounds, Categories, Public
from .._require import POSITIVE
from ..mechanisms.protocols import Release
from ..sampling import Entropy
from ..tables import Memory
from ..tabular.estimator_base import (
    ArrayEstimator,
    Classifier,
    Regressor,
    of_another_length,
    parameters,
    require_bounds,
    require_declared,
)
from ..tabular.rows import Design, features_of
from .training.callbacks import Progress
from .training.data import Examples, Tabular
from .training.optimizers import SGD
from .training.trainer import Trainer

__all__ = ["DPClassifier", "DPRegressor", "SGDLogisticRegression", "default_batch", "encode_rows", "network"]


@parameters
class SGDEstimator(ArrayEstimator):
    """Trains a torch module with DP-SGD: the base of `DPClassifier` and `DPRegressor`; the module is linear
    unless a subclass builds another (`_build_module`).

    A subclass defines `_loss`, the class of its loss, and `_declare_target`. There are two ways to fit:
    `fit(X, y)` on arrays (`_fit_arrays`), and through a session, which runs the trainer that `mechanism`
    returns, charges it and hands the release to `adopt`.
    """

    epsilon: float | None = 1.0  # type: ignore[assignment]
    noise_multiplier: Any = None
    clip: Any = 1.0
    batch: Annotated[int, POSITIVE] | None = None
    epochs: float = 20
    optimizer: Any = None
    average: float | None = None
    microbatch: int | None = None
    progress: Callable[[Progress], Any] | None = None

    _loss: ClassVar[type[nn.Module]]
    _default_delta: ClassVar[float] = 1e-5

    def _build(self, public: Public, target: Any, features: Sequence[str] | None, delta: float) -> Trainer:
        names = features_of(public, target, features)
        Design(features=names, target=target).check(public)
        columns = Tabular(features=names, target=target)
        outputs = self._declare_target(public.fact(target), target)
        return self._build_trainer(public, columns.width(public), outputs, delta, columns)

    def search_trials(self, search: Any, delta: float, trials: Any, settings: Any, **task: Any) -> Any:
        """Return the mechanism that trains this estimator with the settings that a `PrivateSearch` draws."""
        from .trials import trainer_trials

        return trainer_trials(search, delta, trials, settings, **task)

    def adopt(self, release: Release, trainer: Trainer) -> Any:
        """Become fitted: take over the model that `trainer` released."""
        assert trainer.columns is not None
        self._set_columns(trainer.columns, trainer.public)
        self._declare_target(trainer.public.fact(trainer.columns.target), trainer.columns.target)
        return self._adopt_release(release, trainer)

    def _set_columns(self, columns: Tabular, public: Public) -> None:
        self.columns_, self.public_ = columns, public
        self.feature_names_in_ = np.array(columns.features, dtype=object)
        self.n_features_in_ = len(columns.features)

    @abstractmethod
    def _declare_target(self, fact: Any, target: str) -> int:
        """Store the classes or the range of the target, from its declared `fact`, and return the number of
        outputs of its model."""

    def _adopt_release(self, release: Release, trainer: Trainer) -> Any:
        self.module_, self.event_, self.trainer_ = release.value, release.event, trainer
        return self

    def _build_trainer(
        self,
        public: Public,
        features: int,
        outputs: int,
        delta: float,
        columns: Tabular | None = None,
    ) -> Trainer:
        """Return the trainer for a model of `features` inputs and `outputs` outputs.

        `columns` says how to read a table.
        """
        has_noise, size = self.noise_multiplier is not None, public.size if self.n is None else self.n
        size = require_declared(size)
        batch = (
            default_batch(size, None if has_noise else self.epsilon)
            if self.batch is None
            else min(self.batch, size)
        )
        return Trainer(
            self._build_module(features, outputs),
            self._loss(),
            public=public,
            n=size,
            noise_multiplier=self.noise_multiplier,
            epsilon=None if has_noise else self.epsilon,
            delta=None if has_noise else delta,
            clip=self.clip,
            batch=batch,
            epochs=self.epochs,
            optimizer=SGD(lr=0.5, momentum=0.9) if self.optimizer is None else self.optimizer,
            average=self.average,
            microbatch=self.microbatch,
            columns=columns,
        )

    def _fit_arrays(self, X: Any, y: Any, target: Any) -> Any:
        """Train on arrays, outside of a session: nothing is charged, and `event_` is the price.

        `target` is the declared fact of y: the numbers of classes, or the bounds of a number. Values are not
        checked: whether one is missing or infinite is private, so that it must not decide whether there is an
        error.
        """
        require_bounds(self)
        X = self._validate_array(X)
        if len(y) != len(X):
            raise of_another_length()
        # Left from an earlier fit through a session: now the features are those of arrays.
        self.__dict__.pop("columns_", None)
        outputs = self._declare_target(target, "y")
        public = Public(size=self.n)
        self._check_parameters()
        trainer = self._build_trainer(public, X.shape[1], outputs, self._delta_or(None))
        examples = Examples(self._scale(X), self._target_tensor(y), public)
        return self._adopt_release(
            trainer(examples, entropy=Entropy(), progress=self.progress or False), trainer
        )

    @abstractmethod
    def _target_tensor(self, y: Any) -> Tensor:
        """Return the targets of arrays as the loss takes them."""

    def _build_module(self, features: int, outputs: int) -> nn.Module:
        """Return the module to train."""
        return network(features, outputs)

    def _scale(self, X: npt.NDArray[Any]) -> Tensor:
        """Scale to [-1, 1] by the declared bounds; values outside are clipped, missing values become 0."""
        lower, upper = np.asarray(self.lower, np.float64), np.asarray(self.upper, np.float64)
        if not (np.all(np.isfinite(lower)) and np.all(lower < upper) and np.all(np.isfinite(upper))):
            raise _require.fail(
                "lower and upper", (self.lower, self.upper), "finite, with lower below upper for each feature"
            )
        unit_scaled = 2 * (np.clip(X, lower, upper) - lower) / (upper - lower) - 1
        return torch.from_numpy(np.nan_to_num(unit_scaled).astype(np.float32))

    def _outputs(self, X: Any) -> Tensor:
        """Return the trained model's outputs for new rows, read as those of the last fit were."""
        check_is_fitted(self, "module_")
        if "columns_" in vars(self):
            inputs = encode_rows(X, self.columns_, self.public_)
        else:
            inputs = self._scale(self._validate_array(X, reset=False))
        with torch.no_grad():
            place = next(self.module_.parameters()).device
            return self.module_(inputs.to(place))  # type: ignore[no-any-return]


def default_batch(n: int, epsilon: float | None) -> int:
    """Return the expected batch of an estimator that was given none: 1024 / epsilon, at most n / 2, at least
    256 (and never above n). It depends on the declared n and epsilon alone; with `noise_multiplier` instead
    of epsilon it is 256.

    At a fixed number of epochs, the accumulated noise in the weights is proportional to learning rate *
    epochs / (epsilon * batch), whatever n is: a batch proportional to 1 / epsilon keeps it constant. Half of
    n leaves two steps per epoch.

    Test accuracies of logistic regression on Adult, 20 epochs, one run each: at epsilon 0.1 80.6% with 256,
    83.2% with 2048, 85.0% with 8192; at epsilon 1 85.0% with 256, 85.3% with 1024; 4,000 rows at epsilon 0.1:
    77.3% with 256, 80.9% with 2048.

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

    Tanh suits clipped gradients: activations are bounded, and so are gradients (Papernot et al. 2021,
    arXiv:2007.14191).
    """
    sizes = [features, *hidden]
    _require.integer(**{f"hidden[{i}]": size for i, size in enumerate(hidden)}, at_least=1)
    modules: list[nn.Module] = []
    for in_features, out_features in itertools.pairwise(sizes):
        modules += [nn.Linear(in_features, out_features, device="cpu"), nn.Tanh()]
    output_layer = nn.Linear(sizes[-1], outputs, device="cpu")
    return nn.Sequential(*modules, output_layer) if modules else output_layer


def encode_rows(X: Any, columns: Tabular, public: Public) -> Tensor:
    """Return the features of new rows (a mapping of columns, a data frame, an Arrow table), encoded like
    those of the training rows."""
    columns_by_name: Mapping[str, Any] = X.to_pandas() if isinstance(X, pa.Table) else X
    missing = [name for name in columns.features if name not in columns_by_name]
    if missing:
        raise InvalidInput(
            f"the model was trained on columns {list(columns.features)}, and {missing[0]!r} is missing."
        )
    table = {name: pa.array(columns_by_name[name], from_pandas=True) for name in columns.features}
    # `Tabular.read` reads a target, too, which new rows do not have: it is missing in all of them.
    table[columns.target] = pa.nulls(len(table[columns.features[0]]))
    # The facts below have no unit, as new rows need no column of people.
    facts = tuple((name, public.fact(name)) for name in (*columns.features, columns.target))
    examples = columns.read(Memory(pa.table(table), Public(schema=facts, table=public.table)))
    inputs: Tensor = examples.take(np.arange(examples.size))[0]
    return inputs


@parameters
class _SGDClassifier(SGDEstimator, Classifier):
    """Trains a classifier: the base of `DPClassifier` and `SGDLogisticRegression`."""

    _loss: ClassVar[type[nn.Module]] = nn.CrossEntropyLoss

    def _target_tensor(self, y: Any) -> Tensor:
        return torch.tensor(y, dtype=torch.int64, device="cpu")

    def _declare_target(self, fact: Any, target: str) -> int:
        _require.that(
            isinstance(fact, Categories | Boolean),
            f"a classifier needs a target with declared categories, and {target!r} has none. Declare "
            "Categories or Boolean for it, or use DPRegressor.",
        )
        values = [False, True] if isinstance(fact, Boolean) else list(fact.values)
        _require.that(len(values) >= 2, f"at least two classes must be declared for {target!r}.")
        # arrays are fitted with the numbers of their classes in place of the classes
        declared = self.classes if self._labels is None else None
        if declared is not None and set(declared) != set(values):
            raise InvalidInput(f"classes= differs from what the schema declares of {target!r}: leave it out.")
        self.classes_ = np.array(values, dtype=None if len({type(v) for v in values}) == 1 else object)
        return len(values)

    def decision_function(self, X: Any) -> npt.NDArray[Any]:
        scores = self._outputs(X)
        return (scores[:, 1] - scores[:, 0] if scores.shape[1] == 2 else scores).cpu().numpy()

    def predict_proba(self, X: Any) -> npt.NDArray[Any]:
        return torch.softmax(self._outputs(X), 1).cpu().numpy()

    def predict(self, X: Any) -> npt.NDArray[Any]:
        labels = self._outputs(X).argmax(1).cpu().numpy()
        return self.classes_[labels]  # type: ignore[no-any-return]


@parameters
class _AnyModule(SGDEstimator):
    """Trains a module of the user's, or a tanh network with `hidden` layers."""

    module: Callable[[int, int], nn.Module] | nn.Module | None = field(default=None, kw_only=False)
    hidden: Sequence[int] = ()

    def _build_module(self, features: int, outputs: int) -> nn.Module:
        """Return the user's module, or what the user's function makes, or else a tanh network."""
        if isinstance(self.module, nn.Module):
            return self.module
        return (
            network(features, outputs, self.hidden) if self.module is None else self.module(features, outputs)
        )


@parameters
class DPClassifier(_AnyModule, _SGDClassifier):
    """Fits a classifier with DP-SGD; logistic regression unless `module` or `hidden` says otherwise.

    `module` is a function of (features, classes), or a torch module whose outputs are one score for each
    class; `hidden` are the sizes of layers of a tanh network. `classes` are the declared classes; a label
    that is not among them counts as the smallest of them (through a session: as the first in the schema). `n`
    is the declared number of examples (through a session: by default the table's declared size), `lower` and
    `upper` are the bounds of all features, or of each (through a session: those of the schema).

    `delta` is by default the budget's, and 1e-5 without a session. `noise_multiplier`, if given, is used
    instead of epsilon. `clip` is a norm or a clipping rule. `batch` is by default chosen from n and epsilon,
    which are public (`default_batch`): 1024 / epsilon, at most n / 2, at least 256 and never above n.
    `average` is the decay of an exponential average of the weights. `microbatch` limits how many examples the
    model is given at a time, to save memory. `progress` is called after each step, with public facts.
    `event_` is the price, `module_` the trained model.

    Each `fit` is another release with its own price, and `event_` is that of the last one: cross_val_score
    with k folds, or GridSearchCV over k settings, fits at least k times. Outside of a session nobody adds up
    these prices. A scaler before it in a pipeline reads private data without paying, and what
    it learns is not private: declare `lower` and `upper`, or pay for a `PrivateScaler`.

    Guarantee: the privacy event `event_`, under add_remove and one row per person; through a session, under
               its relation and unit. Proof: `Trainer`.
    """


class SGDLogisticRegression(_SGDClassifier):
    """Fits logistic regression with DP-SGD: `coef_` and `intercept_` as scikit-learn has them, for
    features scaled to [-1, 1].

    It is linear: `DPClassifier` takes `hidden` layers or a `module`. Options, defaults and the price of each
    `fit` are those of `DPClassifier`.

    Guarantee: the privacy event `event_`. Proof: `Trainer`.
    """

    @property
    def coef_(self) -> npt.NDArray[Any]:
        check_is_fitted(self, "module_")
        return self._fold_binary(self.module_.weight.detach().cpu().numpy())

    @property
    def intercept_(self) -> npt.NDArray[Any]:
        check_is_fitted(self, "module_")
        return self._fold_binary(self.module_.bias.detach().cpu().numpy())

    @staticmethod
    def _fold_binary(by_class: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return one row for two classes, as scikit-learn does: the second class's row less the first's. For
        more classes return all rows."""
        return by_class[1:] - by_class[:1] if len(by_class) == 2 else by_class


@parameters
class DPRegressor(_AnyModule, Regressor):
    """Fits a regression with DP-SGD, on targets clipped to the declared bounds; linear unless `module` or
    `hidden` says otherwise.

    Options are those of `DPClassifier`, without `classes`; `target_lower` and `target_upper` are the declared
    bounds of the target.

    Each `fit` is another release with its own price, and `event_` is that of the last one: cross_val_score
    with k folds, or GridSearchCV over k settings, fits at least k times. Outside of a session nobody adds up
    these prices. A scaler before it in a pipeline reads private data without paying, and what
    it learns is not private: declare `lower` and `upper`, or pay for a `PrivateScaler`.

    Guarantee: the privacy event `event_`, under add_remove and one row per person; through a session, under
               its relation and unit. Proof: `Trainer`.
    """

    _loss: ClassVar[type[nn.Module]] = nn.MSELoss

    def _target_tensor(self, y: Any) -> Tensor:
        low, high = self.range_
        scaled = np.nan_to_num(2 * (np.clip(y, low, high) - low) / (high - low) - 1)
        return torch.from_numpy(scaled.astype(np.float32))[:, None]

    def _declare_target(self, fact: Any, target: str) -> int:
        _require.that(
            isinstance(fact, Bounds),
            f"a regression needs a target with declared bounds, and {target!r} has none. Declare Bounds "
            "for it, or use DPClassifier.",
        )
        self.range_ = float(fact.lower), float(fact.upper)
        return 1

    def predict(self, X: Any) -> npt.NDArray[Any]:
        predictions = self._outputs(X)[:, 0].double().cpu().numpy()
        low, high = self.range_
        return np.clip((predictions + 1) / 2 * (high - low) + low, low, high)
