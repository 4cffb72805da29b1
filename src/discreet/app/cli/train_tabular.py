"""`discreet train --method`: trains models of tables that need no torch, each fitted in one step. A model is
saved as JSON, with its card (a description in Markdown) beside it.

The methods of linear models are objective perturbation ("objective"), output perturbation ("output"), noisy
gradient descent ("gradient") and ridge regression from noisy second moments ("moments").
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ... import session as sessions
from ..._errors import InvalidInput
from ..._public import Boolean, Categories
from ..._round import UpperAmount
from .query import print_note

# the classes in `learning` by --method: for a target with classes, and for a number
CLASSIFIERS = {
    "naive_bayes": "GaussianNB",
    "tree": "DecisionTreeClassifier",
    "boosting": "ExplainableBoostingClassifier",
}
REGRESSORS = {"tree": "DecisionTreeRegressor", "boosting": "ExplainableBoostingRegressor"}
METHODS = ("auto", "objective", "output", "gradient", "moments", *CLASSIFIERS)


def card_path(path: Path) -> Path:
    """Return the path of a model's card."""
    return path.with_name(path.name + ".md")


def train_tabular(
    session: sessions.Session,
    estimator: Any,
    *,
    target: str,
    features: list[str] | None,
    path: Path,
    as_json: bool,
) -> None:
    """Fit a model, save it and its card, and print its public facts."""
    from ...learning import tabular

    model = session.fit(estimator, target=target, features=features)
    tabular.save(model, path)
    card = tabular.card(model)
    card_file = card_path(path)
    card_file.write_text(card.markdown(), encoding="utf-8")
    if as_json:
        print(
            json.dumps(
                {"model": str(path), **card.facts, "used": session.spent, "remaining": session.remaining}
            )
        )
        return
    print(
        f"{path}: a model of {target!r} from {len(card.facts['features'])} columns; its card is {card_file}"
    )
    print(
        f"price: epsilon {UpperAmount(card.facts['epsilon']):.4g} at delta {card.facts['delta']:g}, by "
        f"{card.facts['mechanism']}"
    )
    if card.facts.get("why"):
        print(card.facts["why"])
    print_note(f"used so far: {session.spent:.4g}; left: {session.remaining:.4g}")


def tabular_estimator(
    session: sessions.Session, method: str, target: str, epsilon: float, delta: float | None, n: int | None
) -> Any:
    """Return the estimator of a --method, for the kind of target that the schema declares."""
    from ... import learning
    from ...learning import HuberRegressor, LogisticRegression, Ridge

    if method not in METHODS:
        raise InvalidInput(
            f"--method must be sgd or one of {', '.join(METHODS)}, got {method!r}. Nothing was "
            f"charged or trained."
        )
    is_classification = isinstance(session.public.fact(target), Categories | Boolean)
    if method == "moments" and is_classification:
        raise InvalidInput(
            "--method moments is a ridge regression, and the target has classes. Nothing was charged "
            "or trained. Take --method auto."
        )
    if method in CLASSIFIERS:
        if not is_classification and method not in REGRESSORS:
            raise InvalidInput(
                f"--method {method} needs a target with classes, and {target!r} is a number. Nothing was "
                f"charged or trained. Take --method auto, tree or boosting."
            )
        name = CLASSIFIERS[method] if is_classification else REGRESSORS[method]
        return getattr(learning, name)(epsilon=epsilon, delta=delta, n=n)
    # For a numeric target the default is ridge regression from second moments: one release of the moments
    # serves every penalty. It needs no n.
    if not is_classification and method in ("auto", "moments"):
        return Ridge(epsilon=epsilon, delta=delta)
    estimator_class = LogisticRegression if is_classification else HuberRegressor
    return estimator_class(epsilon=epsilon, delta=delta, method=method, n=n)
