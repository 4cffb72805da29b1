"""`discreet train`: trains a private model that predicts one column of a table.

Defines the options of `discreet train`, and checks them.

`discreet train --method`: trains models of tables that need no torch, each fitted in one step. A model is
saved as JSON, with its card (a description in Markdown) beside it.

The methods of linear models are objective perturbation ("objective"), output perturbation ("output"), noisy
gradient descent ("gradient") and ridge regression from noisy second moments ("moments").
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ... import accounting as acc
from ... import session as sessions
from ..._errors import InvalidInput, PrivateFact
from ..._public import Boolean, Categories
from ..._round import UpperAmount
from ...curator.policy import check_epsilon
from ...session.terms import defaults, values
from ..requests import beside
from . import forms
from .options import DATA, FORCE, JSON, LARGE_EPSILON, Opening
from .parser import Only, flag
from .query import explaining_interruption, print_note

if TYPE_CHECKING:
    from ...learning import Trainer


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """What is predicted, from what, and at which price."""

    target: Annotated[str, "The column to predict: categories, true or false, or a number."]
    epsilon: Annotated[float, "The epsilon of the model."] = 1.0
    delta: Annotated[float | None, "The delta of the model. By default the budget's."] = None
    method: Annotated[
        str,
        "sgd (DP-SGD); a linear model without torch: auto, objective, output, gradient or moments; or "
        "naive_bayes, tree or boosting.",
    ] = "sgd"
    features: Annotated[
        str | None, "Columns to predict from, separated by commas. By default all that can be used."
    ] = None
    n: Annotated[int | None, "The number of people, as you declare it, where the schema does not."] = None

    @property
    def columns(self) -> list[str] | None:
        """Return the columns to predict from; None if they are not named."""
        return None if self.features is None else [name.strip() for name in self.features.split(",")]


@dataclass(frozen=True, kw_only=True)
class DescentOptions:
    """What only DP-SGD has: its steps, its layers and its checkpoints."""

    batch: Annotated[
        int | None,
        "The expected size of a batch. By default from n and --epsilon: 1024 / epsilon, at most n / 2, "
        "at least 256.",
    ] = None
    epochs: Annotated[float, "Passes over the data."] = 20
    clip: Annotated[float, "The largest L2 norm of one person's gradient; longer ones are scaled down."] = 1.0
    learning_rate: Annotated[float, "The learning rate of stochastic gradient descent with momentum 0.9."] = (
        0.5
    )
    hidden: Annotated[
        list[int], "The size of a hidden layer; may be given more than once. Without it the model is linear."
    ] = field(default_factory=list)
    public: Annotated[
        Path | None, "A PUBLIC table, of people who need no protection here, to measure the model on."
    ] = None
    checkpoint: Annotated[Path | None, "Save the run here after --every steps."] = None
    every: Annotated[int, "Steps between two checkpoints."] = 100
    resume: Annotated[bool, "Go on from --checkpoint, with the settings of the run. Free."] = False

    def refuse(self) -> None:
        """Refuse what was chosen here, for a method that fits in one step."""
        changed = [name for name, value in values(self).items() if value != defaults(DescentOptions)[name]]
        if changed:
            raise InvalidInput(
                f"{flag(changed[0])} belongs to DP-SGD, and this method fits in one step. Leave "
                f"{flag(changed[0])} or --method out.",
                option=changed[0],
            )


def refuse_private_test_set(data: str, public: Path | None) -> None:
    """Refuse the private table, one of its files, or a folder that holds one, as the public table: the exact
    loss on it would be printed, at no charge."""
    if public is None:
        return
    # imported late: commands without data need no engine
    from ...tables.files import several

    files = several(public)
    if any(forms.belongs_to(path, data) for path in ((public,) if files is None else files.paths)):
        raise PrivateFact(
            f"--public {str(public)!r} is the private table, or holds one of its files: the model's exact "
            "scores on it are not private. Give a table of people who need no protection, or leave --public "
            "out."
        )


def input_files(data: str, *paths: Path | None) -> list[str | Path]:
    """Return the files that a command reads, which no output may overwrite."""
    return [data, *(path for path in paths if path is not None)]


# the classes in `tabular` by --method: for a target with classes, and for a number
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


def train_tabular(session: sessions.Session, options: ModelOptions, *, path: Path, as_json: bool) -> None:
    """Fit a model, save it and its card, and print its public facts."""
    from ... import tabular

    target, estimator = options.target, tabular_estimator(session, options)
    model = session.fit(estimator, target=target, features=options.columns)
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


def tabular_estimator(session: sessions.Session, options: ModelOptions) -> Any:
    """Return the estimator of a --method, for the kind of target that the schema declares."""
    from ... import tabular
    from ...tabular import HuberRegressor, LogisticRegression, Ridge

    method, target = options.method, options.target
    price: dict[str, Any] = {"epsilon": options.epsilon, "delta": options.delta}
    if method not in METHODS:
        raise InvalidInput(f"--method must be sgd or one of {', '.join(METHODS)}, got {method!r}.")
    is_classification = isinstance(session.public.fact(target), Categories | Boolean)
    if method == "moments" and is_classification:
        raise InvalidInput(
            "--method moments is a ridge regression, and the target has classes. Take --method auto."
        )
    if method in CLASSIFIERS:
        if not is_classification and method not in REGRESSORS:
            raise InvalidInput(
                f"--method {method} needs a target with classes, and {target!r} is a number. Take --method "
                "auto, tree or boosting."
            )
        name = CLASSIFIERS[method] if is_classification else REGRESSORS[method]
        return getattr(tabular, name)(**price, n=options.n)
    # For a numeric target the default is ridge regression from second moments: one release of the moments
    # serves every penalty. It needs no n.
    if not is_classification and method in ("auto", "moments"):
        return Ridge(**price)
    estimator_class = LogisticRegression if is_classification else HuberRegressor
    return estimator_class(**price, method=method, n=options.n)


def train(
    data: str = DATA,
    *,
    model: ModelOptions,
    descent: DescentOptions,
    out: Path = typer.Option(None, "--out", help="The model file. By default DATA with .TARGET.model added."),
    opening: Annotated[Opening, Only("schema ledger analyst periods")],
    large_epsilon: bool = LARGE_EPSILON,
    force: bool = FORCE,
    as_json: bool = JSON,
) -> None:
    check_epsilon(model.epsilon, large_epsilon=large_epsilon)
    path = out or beside(data, f".{model.target}.model")
    if model.method != "sgd":
        descent.refuse()
    session = opening.session(data)
    inputs = input_files(data, opening.schema, descent.public)
    forms.check(path, force=force or descent.resume, data=inputs)
    forms.check(descent.checkpoint, force=descent.resume, data=inputs)
    forms.check_distinct(path, descent.checkpoint)
    refuse_private_test_set(data, descent.public)
    if model.method != "sgd":
        forms.check(card_path(path), force=force, data=inputs)
        train_tabular(session, model, path=path, as_json=as_json)
        return
    if descent.resume and descent.checkpoint is None:
        raise InvalidInput("--resume needs --checkpoint.")
    estimator = _estimator(session, model, descent)
    trainer = _trainer(session, estimator, model)
    public_set = _public_set(descent.public, trainer)
    module = _run(session, estimator, trainer, path, descent)
    facts = _facts(session, trainer, path, {} if public_set is None else public_set.score(module))
    if as_json:
        print(json.dumps(facts))
    else:
        _print_summary(facts)


def _trainer(session: sessions.Session, estimator: Any, model: ModelOptions) -> Any:
    """Return the `learning.Trainer`, which knows its price; refuse if the number of people is not
    declared."""
    if model.n is None and session.public.size is None:
        raise PrivateFact(
            "the number of people is private and never read off the data: declare it, --n 1000 or size = "
            "1000 in the schema, or buy a noisy count: discreet query."
        )
    return estimator.mechanism(
        session.public, target=model.target, features=model.columns, delta=session.budget.delta or None
    )


def _run(
    session: sessions.Session, estimator: Any, trainer: Trainer, path: Path, descent: DescentOptions
) -> Any:
    """Train, or go on with a run from its checkpoint, write the model file, and return the model."""
    from ...learning import model_files

    checkpoint, every = descent.checkpoint, descent.every
    assert trainer.columns is not None
    text = f"{type(estimator).__name__} of {trainer.columns.target}"
    with explaining_interruption(checkpoint):
        if descent.resume:
            assert checkpoint is not None
            release = session.resume(trainer, checkpoint)
        else:
            release = session.train(trainer, checkpoint=checkpoint, every=every, text=text)
    fitted = estimator.adopt(release, trainer)
    model_files.save(fitted, path)
    return fitted.module_


def _estimator(session: sessions.Session, model: ModelOptions, descent: DescentOptions) -> Any:
    """Return the estimator: a classifier for categories and booleans, else a regressor."""
    from ...learning import SGD, DPClassifier, DPRegressor

    has_classes = isinstance(session.public.fact(model.target), Categories | Boolean)
    return (DPClassifier if has_classes else DPRegressor)(
        epsilon=model.epsilon, delta=model.delta, n=model.n, clip=descent.clip, batch=descent.batch,
        epochs=descent.epochs, hidden=tuple(descent.hidden),
        optimizer=SGD(lr=descent.learning_rate, momentum=0.9),
    )  # fmt: skip


def _public_set(path: Path | None, trainer: Trainer) -> Any:
    """Return the public set on which the model is evaluated; None where none is given."""
    if path is None:
        return None
    from ...learning import PublicSet

    if not path.exists():
        raise InvalidInput(f"there is no file {str(path)!r}.")
    assert trainer.columns is not None
    return PublicSet.of(path, trainer.columns, trainer.public)


def _facts(
    session: sessions.Session, trainer: Trainer, path: Path, scores: dict[str, float]
) -> dict[str, Any]:
    """Return the public facts of the run: settings, price, and scores on a public set."""
    columns: Any = trainer.columns
    assert trainer.delta is not None
    return {
        "model": str(path),
        "table": trainer.public.table,
        "target": columns.target,
        "features": list(columns.features),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "epsilon": UpperAmount(acc.epsilon(trainer.event, delta=trainer.delta)),
        "delta": trainer.delta,
        "neighbors": str(trainer.public.neighbors),
        "unit": trainer.public.unit.column or "row",
        "noise_multiplier": trainer.noise_multiplier,
        "clip": trainer.clip.clip,  # type: ignore[union-attr]
        "batch": trainer.schedule.divisor,
        "steps": trainer.length,
        "event": trainer.event.to_json(),
        # JSON has no infinity and no NaN: these are written as texts
        "public_set": {n: v if math.isfinite(v) else str(v) for n, v in scores.items()} or None,
        "used": session.spent,
        "remaining": session.remaining,
    }


# why "used" may grow by more than the model's epsilon
_WHY_MORE_IS_USED = (
    "all so far, priced for questions that may depend on earlier answers: that is more than the model "
    "costs by itself"
)


def _print_summary(facts: dict[str, Any]) -> None:
    """Print what was trained, its price, and its scores on a public set."""
    print(
        f"{facts['model']}: a model of {facts['target']!r} from {len(facts['features'])} columns, "
        f"{facts['parameters']:,} parameters"
    )
    print(
        f"price: epsilon {facts['epsilon']:.4g} at delta {facts['delta']:g}; {facts['steps']:,} "
        f"steps, noise {facts['noise_multiplier']:.3g} times the clip"
    )
    for name, value in (facts["public_set"] or {}).items():
        print(f"{name} on the public set: {float(value):.4g}")
    print_note(f"used so far: {facts['used']:.4g}; left: {facts['remaining']:.4g} ({_WHY_MORE_IS_USED})")
