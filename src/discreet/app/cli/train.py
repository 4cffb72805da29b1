"""`discreet train`: a private model of one column of a table, from the shell."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ... import accounting as acc
from ... import session as sessions
from ..._errors import InvalidInput, PrivateFact
from ..._public import Boolean, Categories
from ..requests import beside, open_session
from ..training_page import Curve, Page, Point
from . import outputs
from .query import ANALYST, DATA, JSON, LEDGER, PERIOD, SCHEMA, _say
from .train_tabular import card_path, refuse_mixture, train_tabular

if TYPE_CHECKING:
    from ...learning import Trainer

# points of the curves
_MARKS = 20


def train(
    data: str = DATA,
    target: str = typer.Option(
        ...,
        "--target",
        help="The column to predict: categories, true or false, or a number.",
        show_default=False,
    ),
    epsilon: float = typer.Option(1.0, "--epsilon", "-e", help="Of the model."),
    delta: float = typer.Option(None, "--delta", help="By default the budget's."),
    method: str = typer.Option(
        "sgd",
        "--method",
        help="sgd (DP-SGD), a linear model without torch: auto, objective, output, gradient, moments; or "
        "naive_bayes, tree, boosting.",
    ),
    features: str = typer.Option(
        None, "--features", help="Columns to predict from, by commas. By default all that can be."
    ),
    n: int = typer.Option(
        None, "--n", help="The number of people, as you declare it, where the schema does not."
    ),
    batch: int = typer.Option(
        None,
        "--batch",
        help="The expected size of a batch. By default from n and --epsilon: 1024 / epsilon, at most n / 2, "
        "at least 256.",
    ),
    epochs: float = typer.Option(20, "--epochs", help="Passes over the data."),
    clip: float = typer.Option(1.0, "--clip", help="What one person's gradient is scaled down to."),
    rate: float = typer.Option(0.5, "--learning-rate", help="Of stochastic gradient descent with momentum."),
    hidden: list[int] = typer.Option(
        [], "--hidden", help="The size of a hidden layer; may be given more than once. Linear without."
    ),
    out: Path = typer.Option(None, "--out", help="The model file. By default DATA with .TARGET.model added."),
    page: Path = typer.Option(None, "--page", help="Also write a results page (HTML)."),
    public: Path = typer.Option(
        None,
        "--public",
        help="A PUBLIC table, of people who need no protection here, to measure the model on.",
    ),
    checkpoint: Path = typer.Option(None, "--checkpoint", help="Save the run here after --every steps."),
    every: int = typer.Option(100, "--every", help="Steps between two checkpoints."),
    resume: bool = typer.Option(
        False, "--resume", help="Go on from --checkpoint, with the settings of the run. Free."
    ),
    schema: Path = SCHEMA,
    ledger: Path = LEDGER,
    analyst: str = ANALYST,
    period: list[str] = PERIOD,
    force: bool = outputs.FORCE,
    as_json: bool = JSON,
) -> None:
    """Train a private model of one column, with DP-SGD or another --method. Charged before any data is read;
    every step is paid for once."""
    path = out or beside(data, f".{target}.model")
    if method != "sgd":
        refuse_mixture(
            {
                "--hidden": hidden,
                "--page": page,
                "--public": public,
                "--checkpoint": checkpoint,
                "--resume": resume,
            }
        )
    opened = open_session(data, schema=schema, ledger=ledger, analyst=analyst, periods=period)
    inputs: list[str | Path] = [
        data,
        *([] if schema is None else [schema]),
        *([] if public is None else [public]),
    ]
    outputs.check(path, force=force or resume, data=inputs)
    outputs.check(page, force=force, data=inputs)
    outputs.check(checkpoint, force=resume, data=inputs)
    if method != "sgd":
        outputs.check(card_path(path), force=force, data=inputs)
        train_tabular(
            opened,
            method=method,
            target=target,
            features=_names(features),
            epsilon=epsilon,
            delta=delta,
            n=n,
            path=path,
            as_json=as_json,
        )
        return
    if resume and checkpoint is None:
        raise InvalidInput("--resume needs --checkpoint. Nothing was charged or trained.")
    estimator = _estimator(opened, target)(
        epsilon=epsilon, delta=delta, n=n, clip=clip, batch=batch, epochs=epochs, hidden=tuple(hidden),
        optimizer=_momentum(rate),
    )  # fmt: skip
    trainer = _trainer(opened, estimator, target, features, n)
    watched = _Watched(trainer, trainer.delta, _public_set(public, trainer))
    text = f"{type(estimator).__name__} of {target}"
    steps: dict[str, Any] = {
        "checkpoint": checkpoint,
        "every": every,
        "resumed": checkpoint if resume else None,
    }
    _run(opened, estimator, trainer, watched, path, text=text, **steps)
    facts = _facts(opened, trainer, watched, path)
    if page is not None:
        outputs.write(page, _page(facts, watched).html(), force=force)
    if as_json:
        scores = {
            name: value if math.isfinite(value) else str(value) for name, value in watched.scores.items()
        }
        print(json.dumps({**facts, "public_set": scores or None}))
        return
    _tell(facts, page)


def _names(features: str | None) -> list[str] | None:
    return None if features is None else [name.strip() for name in features.split(",")]


def _momentum(rate: float) -> Any:
    from ...learning import SGD

    return SGD(lr=rate, momentum=0.9)


def _trainer(
    opened: sessions.Session, estimator: Any, target: str, features: str | None, n: int | None
) -> Any:
    """Return the priced `learning.Trainer`; refused where the number of people is not declared."""
    if n is None and opened.public.size is None:
        raise PrivateFact(
            "the number of people is private and never read off the data: declare it, --n 1000 or "
            "size = 1000 in the schema, or buy a noisy count: "
            "discreet query. Nothing was charged or trained."
        )
    return estimator.mechanism(
        opened.public, target=target, features=_names(features), delta=opened.budget.delta or None
    )


def _run(
    opened: sessions.Session,
    estimator: Any,
    trainer: Trainer,
    watched: _Watched,
    path: Path,
    *,
    text: str,
    checkpoint: Path | None,
    every: int,
    resumed: Path | None,
) -> None:
    """Train, or go on with a run, and write the model file."""
    with _bar(watched) as progress:
        if resumed is not None:
            released = opened.resume(trainer, resumed, progress=progress)
        else:
            released = opened.train(trainer, checkpoint=checkpoint, every=every, text=text, progress=progress)
    model = estimator.adopt(released, trainer)
    _save(model, path)
    watched.finish(model.module_)


@dataclass
class _Watched:
    """What is gathered on the way, all of it public: epsilon so far, and how good the model is on a public
    set."""

    trainer: Trainer
    delta: float
    examples: Any = None
    losses: list[Point] = field(default_factory=list)
    prices: dict[int, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def marks(self) -> list[int]:
        steps = self.trainer.length
        return sorted({max(1, steps * i // _MARKS) for i in range(1, _MARKS + 1)})

    def spent(self) -> list[Point]:
        """Return the price so far: from none to the first step, which already costs a good part, and on."""
        return [(0, 0.0), *((float(step), self.epsilon(step)) for step in sorted({1, *self.marks}))]

    def epsilon(self, step: int) -> float:
        if step not in self.prices:
            self.prices[step] = self.trainer.spent(step, delta=self.delta)
        return self.prices[step]

    def see(self, progress: Any) -> None:
        if self.examples is not None:
            self.losses.append((progress.step, self.examples.score(progress.model)["loss"]))

    def finish(self, module: Any) -> None:
        if self.examples is not None:
            self.scores = self.examples.score(module)


@contextmanager
def _bar(watched: _Watched) -> Iterator[Callable[[Any], None]]:
    """Show a bar on standard error, with epsilon so far; evaluate the model at some of the steps."""
    marks = set(watched.marks)
    columns = (
        TextColumn("step {task.completed} of {task.total}"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=watched.trainer.length)

        def show(progress: Any) -> None:
            if progress.step in marks:
                watched.see(progress)
                bar.update(task, description=f"epsilon {watched.epsilon(progress.step):.3g} so far")
            bar.update(task, completed=progress.step)

        yield show


def _estimator(opened: sessions.Session, target: str) -> Any:
    from ...learning import DPClassifier, DPRegressor

    return DPClassifier if isinstance(opened.public.fact(target), Categories | Boolean) else DPRegressor


def _public_set(path: Path | None, trainer: Trainer) -> Any:
    if path is None:
        return None
    from ...learning.evaluate import PublicSet

    if not path.exists():
        raise InvalidInput(f"there is no file {str(path)!r}. Nothing was charged or trained.")
    assert trainer.columns is not None
    return PublicSet.of(path, trainer.columns, trainer.public)


def _save(model: Any, path: Path) -> None:
    from ...learning import models

    models.save(model, path)


def _facts(opened: sessions.Session, trainer: Trainer, watched: _Watched, path: Path) -> dict[str, Any]:
    """Return the public facts of the run: settings, price, and scores on a public set."""
    columns: Any = trainer.columns
    return {
        "model": str(path),
        "table": trainer.public.table,
        "target": columns.target,
        "features": list(columns.features),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "epsilon": acc.epsilon(trainer.event, delta=watched.delta),
        "delta": watched.delta,
        "neighbors": str(trainer.public.neighbors),
        "unit": trainer.public.unit.column or "row",
        "noise_multiplier": trainer.noise_multiplier,
        "clip": trainer.clip.clip,  # type: ignore[union-attr]
        "batch": trainer.schedule.divisor,
        "steps": trainer.length,
        "event": trainer.event.to_json(),
        "public_set": watched.scores or None,
        "used": opened.spent,
        "remaining": opened.remaining,
    }


_WHY = (
    "all so far, priced for questions that may depend on earlier answers: that is more than the model "
    "costs by itself"
)


def _page(facts: dict[str, Any], watched: _Watched) -> Page:
    price = f"({facts['epsilon']:.4g}, {facts['delta']:g})"
    rows = [
        ("privacy", f"{price}-differential privacy, {facts['neighbors']}, protected: {facts['unit']}"),
        ("features", ", ".join(facts["features"])),
        ("parameters", f"{facts['parameters']:,}"),
        ("steps, expected batch", f"{facts['steps']:,}, {facts['batch']:g}"),
        ("noise over clip, clip", f"{facts['noise_multiplier']:.4g}, {facts['clip']:g}"),
        ("budget used, left", f"{facts['used']:.4g}, {facts['remaining']:.4g} ({_WHY})"),
    ]
    rows += [(f"{name}, public set", f"{value:.4g}") for name, value in watched.scores.items()]
    spent = Curve(
        title="Epsilon over steps",
        note=f"At delta {facts['delta']:g}. All of it was charged before the first step.",
        points=watched.spent(),
    )
    loss = Curve(
        title="Loss on the public set",
        note="Of the models on the way; they are covered by the same price.",
        points=watched.losses,
    )
    shown = (
        "Shown are public settings and what the released models do on a public set."
        if watched.scores
        else "Shown are public settings only: nothing here was computed from the data."
    )
    return Page(
        title=f"A private model of {facts['target']}", summary=shown, facts=rows, curves=(spent, loss)
    )


def _tell(facts: dict[str, Any], page: Path | None) -> None:
    print(
        f"{facts['model']}: a model of {facts['target']!r} from {len(facts['features'])} columns, "
        f"{facts['parameters']:,} parameters"
    )
    print(
        f"price: epsilon {facts['epsilon']:.4g} at delta {facts['delta']:g}; {facts['steps']:,} "
        f"steps, noise {facts['noise_multiplier']:.3g} times the clip"
    )
    for name, value in (facts["public_set"] or {}).items():
        print(f"{name} on the public set: {value:.4g}")
    _say(
        f"used so far: {facts['used']:.4g}; left: {facts['remaining']:.4g} ({_WHY})"
        + ("" if page is None else f"; page saved as {page}")
    )
