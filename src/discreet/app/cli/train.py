"""`discreet train`: trains a private model that predicts one column of a table."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from ... import accounting as acc
from ... import session as sessions
from ..._errors import InvalidInput, PrivateFact
from ..._public import Boolean, Categories
from ..._round import UpperAmount
from ...curator.policy import check_epsilon
from ..requests import beside, open_session
from ..training_page import Page, Point, TrainingCurve
from . import outputs
from . import train_options as options
from .query import (
    ANALYST,
    DATA,
    JSON,
    LARGE_EPSILON,
    LEDGER,
    PERIOD,
    SCHEMA,
    explaining_interruption,
    print_note,
)
from .train_tabular import card_path, tabular_estimator, train_tabular

if TYPE_CHECKING:
    from ...learning import Trainer

# Number of points of the curves; chosen by hand, not tuned. At each of them the model is evaluated on the
# public set, which takes time.
_POINTS = 20


def train(
    data: str = DATA,
    target: str = options.TARGET,
    epsilon: float = options.EPSILON,
    delta: float = options.DELTA,
    method: str = options.METHOD,
    features: str = options.FEATURES,
    n: int = options.N,
    batch: int = options.BATCH,
    epochs: float = options.EPOCHS,
    clip: float = options.CLIP,
    rate: float = options.RATE,
    hidden: list[int] = options.HIDDEN,
    out: Path = options.OUT,
    page: Path = options.PAGE,
    public: Path = options.PUBLIC,
    checkpoint: Path = options.CHECKPOINT,
    every: int = options.EVERY,
    resume: bool = options.RESUME,
    schema: Path = SCHEMA,
    ledger: Path = LEDGER,
    analyst: str = ANALYST,
    period: list[str] = PERIOD,
    large_epsilon: bool = LARGE_EPSILON,
    force: bool = outputs.FORCE,
    as_json: bool = JSON,
) -> None:
    """Train a private model of one column, with DP-SGD or another --method. Charged before any data is read;
    every step is paid for once."""
    check_epsilon(epsilon, large_epsilon=large_epsilon)
    path = out or beside(data, f".{target}.model")
    if method != "sgd":
        # the numbers are the defaults of the options in `train_options`
        options.refuse_sgd_options(
            hidden=hidden, page=page, public=public, checkpoint=checkpoint, resume=resume, batch=batch,
            epochs=epochs != 20, clip=clip != 1, learning_rate=rate != 0.5, every=every != 100,
        )  # fmt: skip
    session = open_session(data, schema=schema, ledger=ledger, analyst=analyst, periods=period)
    inputs = options.input_files(data, schema, public)
    outputs.check(path, force=force or resume, data=inputs)
    outputs.check(page, force=force, data=inputs)
    outputs.check(checkpoint, force=resume, data=inputs)
    outputs.check_distinct(path, page, checkpoint)
    options.refuse_private_test_set(data, public)
    columns = options.names_of(features)
    if method != "sgd":
        outputs.check(card_path(path), force=force, data=inputs)
        model = tabular_estimator(session, method, target, epsilon, delta, n)
        train_tabular(session, model, target=target, features=columns, path=path, as_json=as_json)
        return
    if resume and checkpoint is None:
        raise InvalidInput("--resume needs --checkpoint. Nothing was charged or trained.")
    estimator = _estimator(session, target)(
        epsilon=epsilon, delta=delta, n=n, clip=clip, batch=batch, epochs=epochs, hidden=tuple(hidden),
        optimizer=_momentum(rate),
    )  # fmt: skip
    trainer = _trainer(session, estimator, target, columns, n)
    log = _TrainingLog(trainer, trainer.delta, _public_set(public, trainer))
    _run(session, estimator, log, path, checkpoint=checkpoint, every=every, resume=resume)
    _report(_facts(session, log, path), log, page, force=force, as_json=as_json)


def _report(
    facts: dict[str, Any], log: _TrainingLog, page: Path | None, *, force: bool, as_json: bool
) -> None:
    """Write the results page, and print the facts of the run."""
    if page is not None:
        outputs.write(page, _page(facts, log).html(), force=force)
    if as_json:
        # JSON has no infinity and no NaN: these are written as texts
        scores = {name: value if math.isfinite(value) else str(value) for name, value in log.scores.items()}
        print(json.dumps({**facts, "public_set": scores or None}))
        return
    _print_summary(facts, page)


def _momentum(rate: float) -> Any:
    """Return stochastic gradient descent with momentum, at this learning rate."""
    from ...learning import SGD

    return SGD(lr=rate, momentum=0.9)


def _trainer(
    session: sessions.Session, estimator: Any, target: str, features: list[str] | None, n: int | None
) -> Any:
    """Return the `learning.Trainer`, which knows its price; refuse if the number of people is not
    declared."""
    if n is None and session.public.size is None:
        raise PrivateFact(
            "the number of people is private and never read off the data: declare it, --n 1000 or "
            "size = 1000 in the schema, or buy a noisy count: discreet query. Nothing was charged or trained."
        )
    return estimator.mechanism(
        session.public, target=target, features=features, delta=session.budget.delta or None
    )


def _run(
    session: sessions.Session,
    estimator: Any,
    log: _TrainingLog,
    path: Path,
    *,
    checkpoint: Path | None,
    every: int,
    resume: bool,
) -> None:
    """Train, or go on with a run from its checkpoint, and write the model file."""
    trainer = log.trainer
    assert trainer.columns is not None
    text = f"{type(estimator).__name__} of {trainer.columns.target}"
    with explaining_interruption(checkpoint), _bar(log) as progress:
        if resume:
            assert checkpoint is not None
            release = session.resume(trainer, checkpoint, progress=progress)
        else:
            release = session.train(trainer, checkpoint=checkpoint, every=every, text=text, progress=progress)
    model = estimator.adopt(release, trainer)
    _save(model, path)
    log.finish(model.module_)


@dataclass
class _TrainingLog:
    """Collects public facts of a run.

    `examples` is the public set, or None; `losses` are (step, loss on that set), `scores` the final model's
    scores on it, and `prices` the epsilon at `delta` after a number of steps.
    """

    trainer: Trainer
    delta: float
    examples: Any = None
    losses: list[Point] = field(default_factory=list)
    prices: dict[int, float] = field(default_factory=dict)
    scores: dict[str, float] = field(default_factory=dict)

    @property
    def steps_shown(self) -> list[int]:
        """Return the steps at which the curves have points."""
        steps = self.trainer.length
        return sorted({max(1, steps * i // _POINTS) for i in range(1, _POINTS + 1)})

    def price_curve(self) -> list[Point]:
        """Return the points (step, epsilon after it); the first step is among them, as it costs a large part
        already."""
        return [(0, 0.0), *((float(step), self.epsilon(step)) for step in sorted({1, *self.steps_shown}))]

    def epsilon(self, step: int) -> float:
        """Return the epsilon after so many steps, computed once; printed rounded up."""
        if step not in self.prices:
            self.prices[step] = UpperAmount(self.trainer.spent(step, delta=self.delta))
        return self.prices[step]

    def record(self, progress: Any) -> None:
        """Evaluate the model of this step on the public set."""
        if self.examples is not None:
            self.losses.append((progress.step, self.examples.score(progress.model)["loss"]))

    def finish(self, module: Any) -> None:
        """Evaluate the final model on the public set."""
        if self.examples is not None:
            self.scores = self.examples.score(module)


@contextmanager
def _bar(log: _TrainingLog) -> Iterator[Callable[[Any], None]]:
    """Show a progress bar on standard error, with epsilon so far. Yields the function that is called after
    every step, which also evaluates the model at the steps of `log.steps_shown`."""
    steps_shown = set(log.steps_shown)
    columns = (
        TextColumn("step {task.completed} of {task.total}"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=log.trainer.length)

        def show(progress: Any) -> None:
            if progress.step in steps_shown:
                log.record(progress)
                bar.update(task, description=f"epsilon {log.epsilon(progress.step):.3g} so far")
            bar.update(task, completed=progress.step)

        yield show


def _estimator(session: sessions.Session, target: str) -> Any:
    """Return the class of the estimator: a classifier for categories and booleans, else a regressor."""
    from ...learning import DPClassifier, DPRegressor

    return DPClassifier if isinstance(session.public.fact(target), Categories | Boolean) else DPRegressor


def _public_set(path: Path | None, trainer: Trainer) -> Any:
    """Return the public set on which the model is evaluated; None where none is given."""
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


def _facts(session: sessions.Session, log: _TrainingLog, path: Path) -> dict[str, Any]:
    """Return the public facts of the run: settings, price, and scores on a public set."""
    trainer = log.trainer
    columns: Any = trainer.columns
    return {
        "model": str(path),
        "table": trainer.public.table,
        "target": columns.target,
        "features": list(columns.features),
        "parameters": sum(p.numel() for p in trainer.model.parameters()),
        "epsilon": UpperAmount(acc.epsilon(trainer.event, delta=log.delta)),
        "delta": log.delta,
        "neighbors": str(trainer.public.neighbors),
        "unit": trainer.public.unit.column or "row",
        "noise_multiplier": trainer.noise_multiplier,
        "clip": trainer.clip.clip,  # type: ignore[union-attr]
        "batch": trainer.schedule.divisor,
        "steps": trainer.length,
        "event": trainer.event.to_json(),
        "public_set": log.scores or None,
        "used": session.spent,
        "remaining": session.remaining,
    }


# why "used" may grow by more than the model's epsilon
_WHY_MORE_IS_USED = (
    "all so far, priced for questions that may depend on earlier answers: that is more than the model "
    "costs by itself"
)


def _page(facts: dict[str, Any], log: _TrainingLog) -> Page:
    """Return the results page: settings, price and scores, all public."""
    price = f"({facts['epsilon']:.4g}, {facts['delta']:g})"
    rows = [
        ("privacy", f"{price}-differential privacy, {facts['neighbors']}, protected: {facts['unit']}"),
        ("features", ", ".join(facts["features"])),
        ("parameters", f"{facts['parameters']:,}"),
        ("steps, expected batch", f"{facts['steps']:,}, {facts['batch']:g}"),
        ("noise over clip, clip", f"{facts['noise_multiplier']:.4g}, {facts['clip']:g}"),
        ("budget used, left", f"{facts['used']:.4g}, {facts['remaining']:.4g} ({_WHY_MORE_IS_USED})"),
    ]
    rows += [(f"{name}, public set", f"{value:.4g}") for name, value in log.scores.items()]
    price_curve = TrainingCurve(
        title="Epsilon over steps",
        note=f"At delta {facts['delta']:g}. All of it was charged before the first step.",
        points=log.price_curve(),
    )
    loss_curve = TrainingCurve(
        title="Loss on the public set",
        note="Loss of the models after some of the steps; the same price covers all of them.",
        points=log.losses,
    )
    summary = (
        "Shown are public settings and what the released models do on a public set."
        if log.scores
        else "Shown are public settings only: nothing here was computed from the data."
    )
    return Page(
        title=f"A private model of {facts['target']}",
        summary=summary,
        facts=rows,
        curves=(price_curve, loss_curve),
    )


def _print_summary(facts: dict[str, Any], page: Path | None) -> None:
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
        print(f"{name} on the public set: {value:.4g}")
    print_note(
        f"used so far: {facts['used']:.4g}; left: {facts['remaining']:.4g} ({_WHY_MORE_IS_USED})"
        + ("" if page is None else f"; page saved as {page}")
    )
