"""Trained estimators in a file: weights and public facts, and nothing that could run.

    people.fit(LogisticRegression(epsilon=1), target="income")
    models.save(model, "income.model"); model = models.load("income.model")

The file is in the safetensors layout (`files`): other programs can read the weights. What it says beside them is the schema of the columns it was trained on,
the sizes of its layers, and the price: all public. Only networks of this package are loaded again; for a module of one's own, save its
`state_dict` with `files.dump`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .. import _registry
from .._errors import DiscreetError, InvalidInput
from .._public import Public
from . import files
from .data import Tabular
from .estimators import DPClassifier, DPRegressor, LogisticRegression, network

_KINDS: dict[str, Any] = {cls.__name__: cls for cls in (DPClassifier, DPRegressor, LogisticRegression)}


def save(model: Any, path: str | Path) -> None:
    """Write an estimator that was fitted to a table through a session."""
    if (
        type(model) not in _KINDS.values()
        or not hasattr(model, "columns_")
        or getattr(model, "module", None) is not None
    ):
        raise InvalidInput(
            "a model file holds an estimator of discreet with its own network (hidden=...), fitted to a table by Session.fit. Nothing was written."
        )
    columns: Tabular = model.columns_
    names = (*columns.features, columns.target)
    public = Public(schema=tuple((name, model.public_.fact(name)) for name in names), table=model.public_.table)
    facts = {
        "kind": type(model).__name__,
        "public": _registry.to_json(public),
        "features": list(columns.features),
        "target": columns.target,
        "hidden": list(getattr(model, "hidden", ())),
        "event": model.event_.to_json(),
    }
    if getattr(columns, "scaling", None) is not None:
        raise InvalidInput("a model with a PrivateScaler is not saved by this yet. Nothing was written.")
    Path(path).write_bytes(files.dump(model.module_.state_dict(), {"discreet": json.dumps(facts)}))


def load(path: str | Path) -> Any:
    """The estimator in such a file, ready to predict."""
    try:
        tensors, texts = files.load(Path(path).read_bytes())
    except OSError as error:
        raise InvalidInput(f"the model {path} cannot be read: {error.strerror}.") from None
    try:
        facts = json.loads(texts["discreet"])
        cls, public = _KINDS[facts["kind"]], _registry.from_json(facts["public"])
        columns = Tabular(features=tuple(facts["features"]), target=facts["target"])
        hidden, event = tuple(facts["hidden"]), _registry.from_json(facts["event"])
        model = cls(**({} if cls is LogisticRegression else {"hidden": hidden}))
        outputs = model._told(public.fact(columns.target), columns.target)
        module = network(columns.width(public), outputs, hidden)
        module.load_state_dict(tensors)
    except (KeyError, TypeError, ValueError, RuntimeError, DiscreetError):
        raise InvalidInput(f"{path} is not a model file of discreet, or was changed. Nothing was loaded.") from None
    model._knows(columns, public)
    model.module_, model.event_ = module.eval(), event
    return model
