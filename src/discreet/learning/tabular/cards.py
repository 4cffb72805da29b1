"""Model files and model cards: a fitted model as JSON that holds nothing that could run, and what it was
learned from and what that cost.

    save(model, "income.json"); model = load("income.json"); print(card(model).markdown())

The file holds the model's numbers, the schema of its columns and its price: all public. It loads for
prediction without torch and without scikit-learn.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ... import _registry, accounting
from ..._errors import DiscreetError, InvalidInput, Unsupported
from ...accounting import Event

FORMAT = "discreet.tabular/1"


@dataclass(frozen=True)
class LoadedModel:
    """Holds a model that was loaded, and the price it was released for; `predict` is the model's."""

    model: Any
    event: Event
    notes: dict[str, Any]

    def predict(self, X: Any) -> Any:
        return self.model.predict(X)


def save(estimator: Any, path: str | Path) -> None:
    """Write a fitted estimator of this package, as JSON."""
    Path(path).write_text(dumps(estimator), encoding="utf-8")


def dumps(estimator: Any) -> str:
    """Return a fitted estimator as JSON."""
    model = getattr(estimator, "model_", None)
    if model is None:
        raise InvalidInput(
            "a model file holds a fitted estimator of discreet.learning.tabular. Nothing was written."
        )
    notes = {
        "kind": type(estimator).__name__,
        "why": getattr(estimator, "why_", None),
        **_mechanism_facts(estimator.mechanism_),
    }
    facts = {
        "format": FORMAT,
        "model": _registry.to_json(model),
        "event": estimator.event_.to_json(),
        "notes": notes,
    }
    return json.dumps(facts, indent=1)


def load(path: str | Path) -> LoadedModel:
    """Read a model file; raise InvalidInput if it is not one, whatever else it is."""
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        raise InvalidInput(f"the model {path} cannot be read. Nothing was loaded.") from None
    return loads(text, str(path))


def loads(text: str, path: str = "this text") -> LoadedModel:
    """Read the text of a model file."""
    try:
        facts = json.loads(text)
        if facts["format"] != FORMAT or not isinstance(facts["notes"], dict):
            raise ValueError
        model, event = _registry.from_json(facts["model"]), _registry.from_json(facts["event"])
        if not hasattr(model, "predict") or not isinstance(event, Event):
            raise ValueError
    except (KeyError, TypeError, ValueError, RecursionError, DiscreetError):
        raise InvalidInput(
            f"{path} is not a model file of discreet, or was changed. Nothing was loaded."
        ) from None
    return LoadedModel(model, event, facts["notes"])


def _mechanism_facts(mechanism: Any) -> dict[str, Any]:
    """Return what a model file says about the mechanism: price, unit, columns and regularization."""
    public = mechanism.public
    return {
        "mechanism": type(mechanism).__name__,
        "epsilon": float(mechanism.epsilon),
        "delta": float(mechanism.delta),
        "table": public.table,
        "version": public.version,
        "unit": public.unit.column or "row",
        "neighbors": str(public.neighbors),
        "size": public.size if getattr(mechanism, "rows", None) is None else mechanism.rows,
        "features": list(mechanism.design.features),
        "target": mechanism.design.target,
        "regularization": getattr(mechanism, "strength", None),
        "tuning": getattr(mechanism, "tuning", "none: defaults from public facts"),
    }


@dataclass(frozen=True)
class Card:
    """Describes a model: data, unit, price, tuning, and what the price says about generalization."""

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
            "why": "Why this one",
            "epsilon": "epsilon",
            "delta": "delta",
            "regularization": "Regularization (lambda)",
            "tuning": "Tuning",
            "generalization": "Generalization",
        }
        for name, heading in headings.items():
            value = self.facts.get(name)
            if value is not None:
                text = (
                    ", ".join(value)
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
        facts = json.loads(dumps(estimator))
        notes, event = facts["notes"], estimator.event_
    return Card({**notes, "event": event.to_json(), "generalization": _generalization(event)})


def _generalization(event: Event) -> str:
    """Return what epsilon alone says: pure epsilon-DP moves the expectation of a loss in [0, 1] by at most
    exp(epsilon) - 1.

    Proof: Dwork, Feldman, Hardt, Pitassi, Reingold & Roth 2015 (arXiv:1411.2664); with delta, Bassily et al.
           2016 (arXiv:1511.02513), Lemma 3.3: exp(epsilon) - 1 + delta, for replaced rows; a removed and an
           added row count as two.
    """
    try:
        epsilon, delta = accounting.basic(event)
    except Unsupported:
        return "no pair (epsilon, delta) of its own; ask accounting.epsilon(event, delta=...)."
    factor = 2 if str(event.neighbors) == "add_remove" else 1
    bound = (
        math.expm1(min(700.0, factor * epsilon)) + (1 + math.exp(min(700.0, epsilon))) ** (factor - 1) * delta
    )
    if bound >= 1:
        return f"epsilon = {epsilon:g} alone gives no bound below 1 on the gap between training and new rows."
    return (
        f"a loss in [0, 1] is expected to be at most {bound:.3g} larger on new rows than on those it was "
        f"trained on."
    )
