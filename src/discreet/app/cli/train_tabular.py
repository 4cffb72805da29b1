"""`discreet train --method`: linear models of tables, without torch: fitted once, saved as JSON with a card
beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ... import session as sessions
from ..._errors import InvalidInput
from ..._public import Boolean, Categories
from .query import _say

LEARNERS = {
    "naive_bayes": "GaussianNB",
    "tree": "DecisionTreeClassifier",
    "boosting": "ExplainableBoostingClassifier",
}
REGRESSORS = {"tree": "DecisionTreeRegressor", "boosting": "ExplainableBoostingRegressor"}
METHODS = ("auto", "objective", "output", "gradient", "moments", *LEARNERS)


def card_path(path: Path) -> Path:
    """Return the path of a model's card."""
    return path.with_name(path.name + ".md")


def refuse_mixture(options: dict[str, Any]) -> None:
    """Refuse options that only DP-SGD has."""
    extra = [name for name, value in options.items() if value]
    if extra:
        raise InvalidInput(
            f"{extra[0]} belongs to DP-SGD, and this method fits in one step. Nothing was charged or "
            f"trained. Leave {extra[0]} or --method out."
        )


def train_tabular(
    opened: sessions.Session,
    *,
    method: str,
    target: str,
    features: list[str] | None,
    epsilon: float,
    delta: float | None,
    n: int | None,
    path: Path,
    as_json: bool,
) -> None:
    """Fit, save the model and its card, and print their public facts."""
    from ...learning import tabular

    model = opened.fit(
        _estimator(opened, method, target, epsilon, delta, n), target=target, features=features
    )
    tabular.save(model, path)
    card = tabular.card(model)
    card_file = card_path(path)
    card_file.write_text(card.markdown(), encoding="utf-8")
    if as_json:
        print(
            json.dumps(
                {"model": str(path), **card.facts, "used": opened.spent, "remaining": opened.remaining}
            )
        )
        return
    print(
        f"{path}: a model of {target!r} from {len(card.facts['features'])} columns; its card is {card_file}"
    )
    print(
        f"price: epsilon {card.facts['epsilon']:.4g} at delta {card.facts['delta']:g}, by "
        f"{card.facts['mechanism']}"
    )
    if card.facts.get("why"):
        print(card.facts["why"])
    _say(f"used so far: {opened.spent:.4g}; left: {opened.remaining:.4g}")


def _estimator(
    opened: sessions.Session, method: str, target: str, epsilon: float, delta: float | None, n: int | None
) -> Any:
    from ... import learning
    from ...learning import HuberRegressor, LogisticRegression, Ridge

    if method not in METHODS:
        raise InvalidInput(
            f"--method must be sgd or one of {', '.join(METHODS)}, got {method!r}. Nothing was "
            f"charged or trained."
        )
    classes = isinstance(opened.public.fact(target), Categories | Boolean)
    if method == "moments" and classes:
        raise InvalidInput(
            "--method moments is a ridge regression, and the target has classes. Nothing was charged "
            "or trained. Take --method auto."
        )
    if method in LEARNERS:
        if not classes and method not in REGRESSORS:
            raise InvalidInput(
                f"--method {method} needs a target with classes, and {target!r} is a number. Nothing was "
                f"charged or trained. Take --method auto, tree or boosting."
            )
        name = LEARNERS[method] if classes else REGRESSORS[method]
        return getattr(learning, name)(epsilon=epsilon, delta=delta, n=n)
    # for a numeric target, second moments by default: one release serves every penalty
    if not classes and method in ("auto", "moments"):
        return Ridge(epsilon=epsilon, delta=delta)
    kind = LogisticRegression if classes else HuberRegressor
    return kind(epsilon=epsilon, delta=delta, method=method, n=n)
