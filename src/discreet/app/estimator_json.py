"""Writes and reads estimators as JSON descriptions (from a closed list of names), and writes fitted models
as JSON.

A parameter that is a Python object (a torch module, an optimizer, a callback) is never sent to a server: it
would run there. The steward can use it in a local session.
"""

from __future__ import annotations

import inspect
import json
from typing import Any

from .. import _require
from .._errors import InvalidInput
from .._registry import DEEPEST

# Estimators whose parameters, apart from those in `PYTHON`, are numbers, texts, lists and other estimators.
NAMES = (
    "DPClassifier",
    "DPRegressor",
    "DecisionTreeClassifier",
    "DecisionTreeRegressor",
    "ExplainableBoostingClassifier",
    "ExplainableBoostingRegressor",
    "GaussianNB",
    "HuberRegressor",
    "KMeans",
    "LinearRegression",
    "LinearSVC",
    "LogisticRegression",
    "PrivateSearch",
    "Ridge",
    "SGDLogisticRegression",
)
# Parameters that are Python objects, and are refused in a description.
PYTHON = ("module", "optimizer", "progress")
# How many levels of descriptions may lie inside one, such as the estimator that a `PrivateSearch` tunes.
# Chosen by hand.
_DEEPEST = 3


def describe_estimator(estimator: Any) -> dict[str, Any]:
    """Return the JSON description of an estimator: its name, and the parameters that are not the defaults.

    Refused for an estimator that is not in `NAMES`, and for a parameter that JSON cannot hold (`_plain`).
    """
    _require.an_object(estimator)
    name = type(estimator).__name__
    if name not in NAMES:
        raise InvalidInput(
            f"{name} cannot be sent: it has no JSON description. Send one of "
            f"{', '.join(NAMES)}, or ask the steward to run it in their own process: dp.open(...).fit(...)."
        )
    defaults = {n: p.default for n, p in inspect.signature(type(estimator).__init__).parameters.items()}
    parameters = {}
    for key, value in estimator.get_params(deep=False).items():
        # By identity, as arrays cannot be compared: a value that only equals the default is sent, too.
        if value is not defaults.get(key):
            parameters[key] = _plain(key, value)
    return {"estimator": name, "parameters": parameters}


def _plain(key: str, value: Any) -> Any:
    """Return the value of the parameter `key` as JSON; an estimator as its description."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [_plain(key, item) for item in value]
    if isinstance(value, dict):
        return {str(name): _plain(key, item) for name, item in value.items()}
    if hasattr(value, "get_params"):
        return describe_estimator(value)
    if hasattr(value, "tolist"):
        return _plain(key, value.tolist())
    raise InvalidInput(
        f"{key}={type(value).__name__} has no JSON description, so it cannot be sent: callables and "
        f"modules run only in the steward's own process, with dp.open(...)."
    )


def estimator_of(described: Any, depth: int = 0) -> Any:
    """Return the estimator that a description names; `depth` is how many descriptions it is nested in."""
    # Imported when a description is first read: most workers never load them.
    from .. import learning, tabular

    well_formed = isinstance(described, dict) and described.keys() <= {"estimator", "parameters"}
    name = described.get("estimator") if well_formed else None
    if name not in NAMES:
        raise InvalidInput(f"an estimator is one of {', '.join(NAMES)}.")
    if depth > _DEEPEST:
        raise InvalidInput(
            f"an estimator is nested in at most {_DEEPEST} others, and a {name} is nested in {depth}.",
            remedy="Take out one of the estimators around it.",
        )
    parameters = described.get("parameters") or {}
    cls = getattr(learning if name in learning.__all__ else tabular, name)
    allowed = inspect.signature(cls.__init__).parameters
    if not isinstance(parameters, dict) or not parameters.keys() <= allowed.keys() - {"self"}:
        raise InvalidInput(f"{name} takes {', '.join(list(allowed)[1:])}.")
    if python := sorted(set(PYTHON) & {key for key, value in parameters.items() if value is not None}):
        raise InvalidInput(
            f"{python[0]} of {name} takes Python, which runs only in the steward's own process.",
            remedy="Leave it out.",
            option=python[0],
        )
    return cls(**{key: _value_of(key, value, depth) for key, value in parameters.items()})


def _value_of(key: str, value: Any, depth: int, level: int = 0) -> Any:
    """Return the value of the parameter `key` from JSON as `_plain` wrote it: the descriptions of estimators
    in it, also inside lists and maps, become estimators. `depth` is that of the estimator with the parameter,
    `level` how many lists and maps the value is in."""
    if level > DEEPEST:
        raise InvalidInput(f"{key} is nested more than {DEEPEST} deep.")
    if isinstance(value, list):
        return [_value_of(key, item, depth, level + 1) for item in value]
    if not isinstance(value, dict):
        return value
    # A map of another parameter may have the key "estimator", too: the values of a search over it.
    if isinstance(value.get("estimator"), str):
        return estimator_of(value, depth + 1)
    return {name: _value_of(key, item, depth, level + 1) for name, item in value.items()}


def model_json(fitted: Any) -> dict[str, Any]:
    """Return a fitted model as the JSON of its file; never as a pickle."""
    if "module_" in vars(fitted):
        from ..learning.model_files import dumps
    else:
        from ..tabular.model_cards import dumps

    return {"model": json.loads(dumps(fitted))}
