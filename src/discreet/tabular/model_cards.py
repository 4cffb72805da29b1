"""Writes and reads fitted models of tables as model files (`model_files`), and writes model cards. Loading a
file runs no code from it. A model card says what a model was learned from, and what that cost.

    save(model, "income.json"); model = load("income.json"); print(card(model).markdown())

The file holds the model's numbers, the schema of its columns and its price, which are all public. Loading it
and predicting with it need neither torch nor scikit-learn.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from pathlib import Path
from typing import Any

from .. import _registry, _require, accounting
from .._errors import InvalidInput, Unsupported
from .._public import REPLACE
from ..accounting import Event
from . import model_files
from .erm import LinearERM
from .learner import TableLearner
from .trials import RepeatedTrials, Selected


@dataclass(frozen=True)
class LoadedModel:
    """Holds a model that was loaded, the event of its release, and `notes`, the facts that its card shows."""

    model: Any
    event: Event
    notes: dict[str, Any]

    def predict(self, X: Any) -> Any:
        return self.model.predict(X)


def save(estimator: Any, path: str | Path) -> None:
    """Write a fitted estimator of this package."""
    model_files.write(path, _predictor_facts(estimator), model_files.TABLE_MODEL)


def dumps(estimator: Any) -> str:
    """Return the text of the model file of a fitted estimator."""
    return model_files.text_of(_predictor_facts(estimator), model_files.TABLE_MODEL)


def _predictor_facts(estimator: Any) -> dict[str, Any]:
    """Return the facts in the file of a fitted estimator; refuse one that does not predict."""
    facts = _file_facts(estimator)
    _require.that(
        hasattr(estimator.model_, "predict"),
        f"a model file holds a model that predicts, and {type(estimator).__name__} does not. Nothing was "
        f"written.",
    )
    return facts


def _file_facts(estimator: Any) -> dict[str, Any]:
    """Return the contents of the model file of a fitted estimator."""
    model = None if isinstance(estimator, type) else vars(estimator).get("model_")
    if model is None:
        raise InvalidInput("a model file holds a fitted estimator of discreet.tabular. Nothing was written.")
    notes = {
        "kind": type(estimator).__name__,
        "why": vars(estimator).get("why_"),
        **_mechanism_facts(estimator.mechanism_),
    }
    return {"model": _registry.to_json(model), "event": estimator.event_.to_json(), "notes": notes}


def load(path: str | Path) -> LoadedModel:
    """Read a model file; raise InvalidInput for any other file."""
    return _loaded(model_files.read(path, model_files.TABLE_MODEL), str(path))


def loads(text: str) -> LoadedModel:
    """Read the text of a model file."""
    return _loaded(model_files.facts_of(text, model_files.TABLE_MODEL), "this text")


def _loaded(facts: Mapping[str, Any], path: str) -> LoadedModel:
    """Return the model that these facts are of; `path` names them in error messages."""
    try:
        if not isinstance(facts["notes"], dict):
            raise ValueError
        model, event = _registry.from_json(facts["model"]), _registry.from_json(facts["event"])
        if not isinstance(event, Event):
            raise ValueError
        _try_out(model)
    # Exception: in a file that was changed, anything may be of another type or length than the model expects.
    except Exception:
        raise model_files.not_a_model(path) from None
    return LoadedModel(model, event, facts["notes"])


def _try_out(model: Any) -> None:
    """Predict for one row with nothing in it; raise what a model of a file that was changed raises then."""
    fitted = model.model if isinstance(model, Selected) else model
    model.predict({name: [None] for name in fitted.design.features})


def _mechanism_facts(mechanism: Any) -> dict[str, Any]:
    """Return the notes of a model file about the mechanism: price, unit, columns and regularization."""
    public = mechanism.public
    rows = mechanism.rows if isinstance(mechanism, LinearERM | TableLearner) else None
    linear = isinstance(mechanism, LinearERM)
    tuned = isinstance(mechanism, RepeatedTrials)
    return {
        "mechanism": type(mechanism).__name__,
        "epsilon": float(mechanism.epsilon),
        "delta": float(mechanism.delta),
        "table": public.table,
        "version": public.version,
        "unit": public.unit.column or "row",
        "neighbors": str(public.neighbors),
        "size": public.size if rows is None else rows,
        "features": list(mechanism.design.features),
        "target": mechanism.design.target,
        "regularization": mechanism.strength if linear else None,
        "assumption": mechanism.assumption if linear else None,
        "tuning": mechanism.tuning if tuned else "none: defaults from public facts",
    }


@dataclass(frozen=True)
class Card:
    """Describes a model: data, unit, price, tuning, and the bound on its generalization gap."""

    facts: dict[str, Any]

    def json(self) -> str:
        return json.dumps(self.facts, indent=1)

    def markdown(self) -> str:
        lines = [f"# {self.facts.get('kind')} of {self.facts.get('target')}", ""]
        headings = {
            "table": "Table",
            "unit": "Who is protected",
            "neighbors": "Neighbors",
            "size": "Declared number of units",
            "features": "Features",
            "mechanism": "Mechanism",
            "why": "Why this mechanism",
            "epsilon": "epsilon",
            "delta": "delta",
            "regularization": "Regularization (lambda)",
            "assumption": "The guarantee assumes that",
            "tuning": "Tuning",
            "generalization": "Generalization",
        }
        for name, heading in headings.items():
            value = self.facts.get(name)
            if value is not None:
                text = (
                    ", ".join(map(str, value))
                    if isinstance(value, list)
                    else f"{value:g}"
                    if isinstance(value, float)
                    else str(value)
                )
                lines.append(f"- **{heading}**: {text}")
        return "\n".join([*lines, ""])


def card(estimator: Any) -> Card:
    """Return the card of a fitted estimator, or of a model that was loaded."""
    if isinstance(estimator, LoadedModel):
        notes, event = dict(estimator.notes), estimator.event
    else:
        # through JSON, so that the card of an estimator and that of its file are equal
        notes, event = json.loads(json.dumps(_file_facts(estimator)["notes"])), estimator.event_
    return Card({**notes, "event": event.to_json(), "generalization": _generalization(event)})


def _generalization(event: Event) -> str:
    """Return, as a sentence, the bound on the generalization gap that follows from the price alone: for a
    loss in [0, 1] its expectation differs by at most exp(epsilon) - 1 + delta between training and new rows.

    Proof: Dwork, Feldman, Hardt, Pitassi, Reingold & Roth 2015 (arXiv:1411.2664); with delta, Bassily et al.
           2016 (arXiv:1511.02513), Lemma 3.3, both for a replaced row. Under any other relation a replaced
           row is two steps, such as one removed and one added: group privacy for two gives 2 epsilon and
           (1 + exp(epsilon)) delta.
    """
    try:
        epsilon, delta = accounting.basic(event)
    except Unsupported:
        return "no pair (epsilon, delta) of its own; ask accounting.epsilon(event, delta=...)."
    factor = 1 if event.neighbors is REPLACE else 2
    # 700 keeps `exp` from overflowing; such a bound is far above 1 anyway
    bound = (
        math.expm1(min(700.0, factor * epsilon)) + (1 + math.exp(min(700.0, epsilon))) ** (factor - 1) * delta
    )
    if bound >= 1:
        return f"epsilon = {epsilon:g} alone gives no bound below 1 on the gap between training and new rows."
    # rounded up, as it is said to be an upper bound
    shown = Context(prec=3, rounding=ROUND_CEILING).create_decimal(bound)
    return (
        f"a loss in [0, 1] is expected to be at most {shown:g} larger on new rows than on those the "
        f"model was trained on."
    )
