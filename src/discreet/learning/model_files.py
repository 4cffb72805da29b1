"""Writes and reads model files of trained estimators: weights and public facts, and nothing that could run.

    model = people.fit(SGDLogisticRegression(epsilon=1), target="income")    # or DPClassifier(...).fit(X, y)
    models.save(model, "income.model"); model = models.load("income.model")

The file is in the format of all models (`tabular.model_files`); its `weights` are a safetensors file (module
`training.checkpoints`) in base64. Beside them it holds only facts that were declared or released: the schema
of the columns that the model was trained on, or the bounds and classes that `fit(X, y)` was given, the sizes
of its layers, and the price. It never holds code: a model that was trained with a module of the user's is
loaded with `load(path, module=...)`.
"""

from __future__ import annotations

import base64
import itertools
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from .. import _registry, _require
from .._errors import DiscreetError, InvalidInput
from .._public import Public
from ..accounting import Event
from ..tabular import model_files
from ..tabular.estimator_base import Estimator
from .estimators import DPClassifier, DPRegressor, SGDLogisticRegression, network
from .training import checkpoints
from .training.data import Tabular

# The most features that a file may declare: arrays of this length are made before the declared sizes are
# compared with the weights, and a changed file must not fill the memory. Chosen by hand.
_MAX_FEATURES = 1_000_000
_KINDS: dict[str, Any] = {cls.__name__: cls for cls in (DPClassifier, DPRegressor, SGDLogisticRegression)}


def save(model: Any, path: str | Path) -> None:
    """Write a fitted estimator of this package, whether a session fitted it or `fit(X, y)`."""
    model_files.write(path, _file_facts(model), model_files.NETWORK)


def dumps(estimator: Any) -> str:
    """Return the text of the model file of a fitted estimator."""
    return model_files.text_of(_file_facts(estimator), model_files.NETWORK)


def _file_facts(model: Any) -> dict[str, Any]:
    """Return the facts in the file of a fitted estimator."""
    if type(model) not in _KINDS.values() or "module_" not in vars(model):
        raise _not_saved_here(model)
    weights = checkpoints.dump_tensors(model.module_.state_dict())
    return {
        "kind": type(model).__name__,
        "hidden": list(vars(model).get("hidden", ())),
        "own_module": vars(model).get("module") is not None,
        "event": model.event_.to_json(),
        **(_table_facts(model) if "columns_" in vars(model) else _array_facts(model)),
        "weights": base64.b64encode(weights).decode(),
    }


def _not_saved_here(model: Any) -> InvalidInput:
    """Return the error for what is no fitted estimator of this package; it says how to save it, if it can
    be."""
    names = sorted(_KINDS)
    name, reason = type(model).__name__, "which is none of them"
    if isinstance(model, type):
        name, reason = model.__name__, "a class: give the fitted object that people.fit(...) returned"
    elif type(model) in _KINDS.values():
        reason = "not fitted yet: people.fit(model, target=...) first"
    elif isinstance(model, Estimator):
        reason = "which tabular.save writes"
    return InvalidInput(
        f"a model file holds a fitted {', '.join(names)}; got {name}, {reason}. Nothing was written."
    )


def _table_facts(model: Any) -> dict[str, Any]:
    """Return the schema of the columns that the model was trained on."""
    columns: Tabular = model.columns_
    names = (*columns.features, columns.target)
    public = Public(
        schema=tuple((name, model.public_.fact(name)) for name in names), table=model.public_.table
    )
    scaling = None if columns.scaling is None else _registry.to_json(columns.scaling)
    return {
        "public": _registry.to_json(public),
        "features": list(columns.features),
        "target": columns.target,
        "scaling": scaling,
    }


def _array_facts(model: Any) -> dict[str, Any]:
    """Return what `fit(X, y)` was told about its arrays: bounds of features and target, classes, and the
    names of columns where X had any."""
    names = vars(model).get("feature_names_in_")
    facts = {
        "columns": model.n_features_in_,
        "names": None if names is None else [str(name) for name in names],
        "lower": np.asarray(model.lower, np.float64).tolist(),
        "upper": np.asarray(model.upper, np.float64).tolist(),
    }
    if isinstance(model, DPRegressor):
        return facts | {"range": list(model.range_)}
    classes = model.classes_.tolist()
    if not all(isinstance(value, str | int | float) for value in classes):
        raise InvalidInput(
            "a model file holds classes that are text, numbers or booleans. Nothing was written."
        )
    return facts | {"classes": classes}


def load(path: str | Path, *, module: Any = None) -> Any:
    """Return the estimator that `save` wrote, ready to predict.

    `module` is given if, and only if, the model was trained with a module of the user's: the same module, or
    the same function of (features, outputs) that builds it. A copy of it gets the weights of the file.
    """
    return _loaded(model_files.read(path, model_files.NETWORK), path, module)


def loads(text: str) -> Any:
    """Return the estimator whose model file has this text."""
    return _loaded(model_files.facts_of(text, model_files.NETWORK), "this text", None)


def _loaded(facts: dict[str, Any], path: str | Path, module: Any) -> Any:
    """Return the estimator that these facts are of; `path` names them in messages."""
    try:
        tensors, _ = checkpoints.load_tensors(base64.b64decode(facts["weights"], validate=True))
        model, features, outputs = _declared_estimator(facts)
        own, event = bool(facts["own_module"]), _registry.from_json(facts["event"])
        if not isinstance(event, Event):
            raise model_files.not_a_model(path)
        hidden = tuple(int(size) for size in facts["hidden"])
        sizes = (features, *hidden, outputs)
        # Checked before the network is made, because a changed file could ask for one that fills the memory.
        # Each layer has a weight for each pair of input and output, and a bias for each output.
        weights = sum((fan_in + 1) * fan_out for fan_in, fan_out in itertools.pairwise(sizes))
        if not own and (min(sizes) < 1 or weights != sum(tensor.numel() for tensor in tensors.values())):
            raise model_files.not_a_model(path)
    # A changed file can hold anything: infinite sizes, or an object of another class than expected.
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError, RuntimeError, DiscreetError):
        raise model_files.not_a_model(path) from None
    _require.that(
        own == (module is not None),
        (
            f"the model in {path} was trained with a module that the user gave, and no file holds code: "
            "load(path, module=...)."
        )
        if own
        else f"the model in {path} has a network of discreet: leave module= out.",
    )
    network_ = _module(module, features, outputs) if own else None
    try:
        network_ = network(features, outputs, hidden) if network_ is None else network_
        network_.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError, DiscreetError):
        if own:
            raise InvalidInput(f"the weights in {path} are not those of the module that was given.") from None
        raise model_files.not_a_model(path) from None
    model.module_, model.event_ = network_.eval(), event
    return model


def _module(module: Any, features: int, outputs: int) -> nn.Module:
    """Return the user's module: a copy of it, or what the user's function builds."""
    if not isinstance(module, nn.Module) and not callable(module):
        raise InvalidInput(f"module= is a torch module, or a function that builds one; got {module!r}.")
    built = deepcopy(module) if isinstance(module, nn.Module) else module(features, outputs)
    _require.that(
        isinstance(built, nn.Module),
        "module= is a torch module, or a function of (features, outputs) that builds one; it built "
        f"{type(built).__name__}.",
    )
    return built


def _declared_estimator(facts: dict[str, Any]) -> tuple[Any, int, int]:
    """Return the estimator with the facts that its file declares, still without weights, and the numbers of
    features and outputs of its network."""
    cls = _KINDS[facts["kind"]]
    model = cls(**({} if cls is SGDLogisticRegression else {"hidden": tuple(facts["hidden"])}))
    if "public" in facts:
        public = _registry.from_json(facts["public"])
        scaling = None if facts["scaling"] is None else _registry.from_json(facts["scaling"])
        columns = Tabular(features=tuple(facts["features"]), target=facts["target"], scaling=scaling)
        model._set_columns(columns, public)
        return (
            model,
            columns.width(public),
            model._declare_target(public.fact(columns.target), columns.target),
        )
    features = int(facts["columns"])
    model.n_features_in_, model.lower, model.upper = features, facts["lower"], facts["upper"]
    if not 1 <= features <= _MAX_FEATURES or any(
        np.shape(end) not in ((), (features,)) for end in (model.lower, model.upper)
    ):
        raise InvalidInput("bounds are one for all features, or one for each")
    # Called for its check of the bounds: it raises unless they are finite and in order.
    model._scale(np.zeros((1, features)))
    if facts["names"] is not None:
        if not isinstance(facts["names"], list) or len(facts["names"]) != features:
            raise InvalidInput("there is one name for each feature")
        model.feature_names_in_ = np.array(facts["names"], dtype=object)
    if cls is DPRegressor:
        low, high = (float(end) for end in facts["range"])
        model.range_ = model.target_lower, model.target_upper = low, high
        return model, features, 1
    model.classes = [value for value in facts["classes"] if isinstance(value, str | int | float)]
    if len(model.classes) != len(facts["classes"]) or len(model.classes) < 2:
        raise InvalidInput("classes are text, numbers or booleans, two or more")
    model.classes_ = np.array(model.classes)
    return model, features, len(model.classes_)
