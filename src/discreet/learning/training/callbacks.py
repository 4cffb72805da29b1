"""Tells callbacks, loggers and progress bars what is public about a run: `Progress`, a closed list.

    people.train(trainer, callbacks=[SummaryWriter("runs")],
                 validation=learning.PublicSet((x, y), metrics={"accuracy": accuracy}))

Guarantee: whatever a callback does with what it is told stays within the price of the run.
Proof:     `Progress` holds settings of the trainer, the number of the step, weights and clips of earlier
           steps, which are functions of noisy sums, and scores of these weights on public data. Neither it
           nor what it refers to has a batch, its size, a loss or a gradient. Stopping early is a function of
           the same, and the whole run was charged.
"""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import DataLoader

from ... import _require
from ..._errors import InvalidInput, PrivateFact
from ..._public import Boolean, Categories, Public
from ..._require import at_least
from ..._round import UpperAmount
from ...tables import connect
from ..clipping import attachment
from ..clipping.losses import per_example
from .data import Examples, Tabular, _tensor
from .pooling import copied

if TYPE_CHECKING:
    from .trainer import Trainer

# What a logger is told of a step, beside the scores on public data, each as "validation/" and its name.
LOGGED = ("epsilon", "delta", "learning_rate", "noise_multiplier", "clip", "expected_batch")


class ReleasedWeights:
    """Holds what a run has released so far: the weights, their average over the steps or None, and whether a
    callback has ended the run."""

    __slots__ = ("averaged", "ended", "trainer", "values")

    def __init__(self, trainer: Trainer, values: Tensor, averaged: Tensor | None) -> None:
        self.trainer, self.values, self.averaged, self.ended = trainer, values, averaged, False

    def model(self) -> nn.Module:
        """Return a copy of the model so far, with weights of its own."""
        # A copy of the model as it was given, which saw no data: the code of the working model may have kept
        # something of its batches in attributes or in new buffers, which must not be released.
        model = copied(self.trainer.model)
        vector = self.values if self.averaged is None else self.averaged
        trained = [p for p in model.parameters() if p.requires_grad]
        pieces = iter(torch.split(vector, [p.numel() for p in trained]))
        with torch.no_grad():
            for p in model.parameters():
                source = next(pieces).view(p.shape) if p.requires_grad else p.data
                p.data = source.to(p.device, copy=True)
        attachment.detach(model)
        return model.eval()


@dataclass(frozen=True, slots=True)
class Progress:
    """Reports a step of a run: all that a callback is told.

    `metrics` are scores of the model so far on public data (`PublicSet`), after the steps at which it is
    scored, else None. `clip` is that of the next step, if it adapts.
    """

    step: int
    steps: int
    learning_rate: float
    noise_multiplier: float
    clip: float
    expected_batch: float
    delta: float | None
    _released: ReleasedWeights = field(repr=False, compare=False)
    metrics: Mapping[str, float] | None = None

    @property
    def epsilon(self) -> float | None:
        """Return epsilon so far at `delta`, which takes some milliseconds; None where there is no delta."""
        return None if self.delta is None else self._released.trainer.spent(self.step, delta=self.delta)

    @property
    def model(self) -> nn.Module:
        """Return a copy of the model so far. Evaluate it on public examples, never on private ones."""
        return self._released.model()

    def stop(self) -> None:
        """End the run after this step. Its whole price stays spent."""
        self._released.ended = True

    def logged(self) -> dict[str, float]:
        """Return what a logger is told: `LOGGED`, and the metrics."""
        facts = {name: getattr(self, name) for name in LOGGED}
        scores = {f"validation/{name}": score for name, score in (self.metrics or {}).items()}
        return {name: float(value) for name, value in (facts | scores).items() if value is not None}


@_require.checked
@dataclass(frozen=True, slots=True)
class PublicSet:
    """Declares data PUBLIC, and scores models on them: rows that everybody may know, and that say nothing
    about the people whose examples a model is trained on.

    `data` are (inputs, targets), a map-style dataset of such pairs, or a DataLoader. `metrics` are functions
    of (outputs, targets) of the whole set. A run scores its model after `every` steps (by default, after each
    pass) and after the last. `loss` is by default the trainer's.

    A score on private rows would be a release with a price of its own, which this module does not offer.
    """

    data: Any = field(repr=False)
    metrics: Mapping[str, Callable[[Any, Any], Any]] = field(default_factory=dict, kw_only=True)
    loss: Any = field(default=None, kw_only=True)
    batch: Annotated[int, at_least(1)] = field(default=512, kw_only=True)
    every: Annotated[int, at_least(1)] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.data, Examples):
            raise PrivateFact(
                "these are private examples, and a score on them would be a release that nobody has paid "
                "for. Give public data: PublicSet((inputs, targets)), or a dataset."
            )
        if not isinstance(self.metrics, Mapping) or not all(map(callable, self.metrics.values())):
            wanted = "functions by their names, such as {'accuracy': lambda outputs, targets: ...}"
            raise _require.fail("metrics", self.metrics, wanted)
        if "loss" in self.metrics:
            raise InvalidInput("a metric cannot be called 'loss', the name of the score by loss=.")

    @classmethod
    def of(cls, data: Any, columns: Tabular, public: Public) -> PublicSet:
        """Read a file, a data frame, an Arrow table or a mapping of columns, with the declarations of
        `public` for the features and the target in `columns`. It is scored by its loss, and by its accuracy
        or the root mean squared error in the target's own unit."""
        facts = tuple((name, public.fact(name)) for name in (*columns.features, columns.target))
        examples = columns.read(connect(data, Public(schema=facts, table="public_set")))
        _require.that(examples.size, "the public set is empty.")
        pair, fact = examples.take(np.arange(examples.size)), public.fact(columns.target)
        if isinstance(fact, Categories | Boolean):
            return cls(
                pair,
                metrics={"accuracy": lambda o, t: (o.argmax(1) == t).float().mean()},
                loss="cross_entropy",
            )
        # Targets were scaled from their bounds to [-1, 1], of length 2.
        span = float(fact.upper) - float(fact.lower)  # type: ignore[union-attr]
        return cls(pair, metrics={"rmse": lambda o, t: F.mse_loss(o, t).sqrt() * span / 2}, loss="mse")

    def score(self, model: nn.Module, loss: Any = None, *, batches: int | None = None) -> dict[str, float]:
        """Return the mean loss of a model and all metrics, on all `batches` or on so many."""
        losses_of = per_example(loss if self.loss is None else self.loss)
        device = next(model.parameters()).device
        pairs, losses = [], []
        with torch.no_grad():
            for batch in itertools.islice(self._batches(), batches):
                x, y = tree_map(lambda t: t.to(device), tuple(batch))
                outputs = model(*x) if isinstance(x, tuple | list) else model(x)
                losses.append(losses_of(outputs, y))
                pairs += [(outputs, y)] if self.metrics else []
            together = tree_map(lambda *parts: torch.cat(parts), *pairs) if pairs else ()
            scores = {name: float(metric(*together)) for name, metric in self.metrics.items()}
        return {"loss": float(torch.cat(losses).mean())} | scores

    def _batches(self) -> Iterator[Any]:
        if isinstance(self.data, tuple | list):
            inputs, targets = tree_map(_tensor, tuple(self.data))
            for begin in range(0, len(tree_leaves(targets)[0]), self.batch):
                yield tree_map(lambda t, b=begin: t[b : b + self.batch], (inputs, targets))
        elif isinstance(self.data, DataLoader):
            yield from self.data
        else:
            # A generator of its own, so that torch's is as it was.
            yield from DataLoader(self.data, batch_size=self.batch, generator=torch.Generator())


class StepWatch:
    """Is called after each step of a run: scores the model when that is due, and calls all callbacks."""

    def __init__(
        self,
        trainer: Trainer,
        progress: Any,
        callbacks: Iterable[Any],
        validation: PublicSet | None,
        source: Any,
        delta: float | None,
    ) -> None:
        if validation is not None:
            _check(trainer, validation, source)
        self._trainer, self._validation, self._delta = trainer, validation, delta
        self._every = (validation and validation.every) or _steps_per_pass(trainer.schedule)
        self._callbacks = [_as_function(callback) for callback in _require.listed(callbacks=callbacks)]
        if progress is True or (progress is None and _has_viewer()):
            self._callbacks.insert(0, _bar())
        elif progress not in (None, False):
            if not callable(progress):
                raise _require.fail("progress", progress, "a function of the progress, or True or False")
            self._callbacks.insert(0, _of_one_argument(progress))

    def __call__(self, progress: Progress) -> Progress:
        """Return the progress, with metrics if they are due."""
        metrics: dict[str, float] | None = None
        if progress.step % self._every == 0 or progress.step == progress.steps:
            valid, loss = self._validation, self._trainer.loss
            metrics = {} if valid is None else valid.score(progress.model, loss)
        delta = self._delta if progress.delta is None else progress.delta
        progress = replace(progress, metrics=metrics, delta=delta)
        for callback in self._callbacks:
            callback(progress)
        return progress


def _steps_per_pass(schedule: Any) -> int:
    """Return the number of steps in which each example takes part once, on average."""
    bins, rate = getattr(schedule, "bins", None), getattr(schedule, "rate", None)
    length = bins or (1 / rate if rate else schedule.exact_size / schedule.divisor)
    steps: int = max(1, round(min(length, schedule.steps)))
    return steps


def _check(trainer: Trainer, validation: Any, source: Any) -> None:
    """Refuse validation data that nobody has declared public, that are the private examples themselves, or on
    which the model fails."""
    _require.that(
        isinstance(validation, PublicSet),
        f"validation= must be data that you declare public, PublicSet(...), got a "
        f"{type(validation).__name__}. A score on private rows, held out or not, is a release that "
        "nobody has paid for.",
    )
    if _origins(validation.data) & _origins(source):
        raise PrivateFact(
            "validation= and the private examples are parts of one dataset: people who are held out are "
            "people, too. Give public data."
        )
    try:
        validation.score(copied(trainer.model).eval(), trainer.loss, batches=1)
    except Exception as error:
        # The data were declared public, so that the message may quote them.
        raise InvalidInput(
            f"the model cannot be scored on validation=: {type(error).__name__}: {error}."
        ) from error


def _origins(data: Any) -> set[Any]:
    """Return what identifies the datasets and the memory that these data are taken from."""
    data = data.origin if isinstance(data, Examples) else data
    while hasattr(data, "dataset"):
        data = data.dataset
    tensors = [t for t in tree_leaves(getattr(data, "tensors", data)) if isinstance(t, Tensor)]
    return {t.untyped_storage().data_ptr() for t in tensors} or {id(data)}


def _as_function(callback: Any) -> Callable[[Progress], Any]:
    """Return a callback as a function of the progress: a writer of TensorBoard (`add_scalar`) or a run of W&B
    (`log`) gets what `Progress.logged` returns, when a score is due; a logger that noted each step would note
    the time that it took."""

    def note(progress: Progress) -> None:
        facts = progress.logged() if progress.metrics is not None else {}
        if facts and not hasattr(callback, "add_scalar"):
            callback.log(facts, step=progress.step)
            return
        for name, value in facts.items():
            callback.add_scalar(name, value, progress.step)

    if hasattr(callback, "add_scalar") or (hasattr(callback, "log") and not callable(callback)):
        return note
    if not callable(callback):
        kinds = "functions of the progress, writers of TensorBoard, or runs of W&B"
        raise _require.fail("callbacks", [type(callback).__name__], kinds)
    return _of_one_argument(callback)


def _of_one_argument(callback: Any) -> Callable[[Progress], Any]:
    """Return a function; refuse one that cannot be called with one argument: it would fail after the
    charge."""
    try:
        inspect.signature(callback).bind(None)
    except TypeError:
        raise InvalidInput(
            f"callbacks and progress are called with one argument, the progress: {callback!r} takes others."
        ) from None
    # what is written in C has no signature
    except ValueError:
        pass
    return callback  # type: ignore[no-any-return]


def _has_viewer() -> bool:
    """Return whether somebody looks: standard error is a terminal, or this is a notebook."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    in_notebook = type(shell).__name__ == "ZMQInteractiveShell"
    return in_notebook or (sys.stderr is not None and sys.stderr.isatty())


def _bar() -> Callable[[Progress], None]:
    """Return a progress bar with epsilon so far: tqdm's, or lines on standard error where it is missing."""
    tqdm = import_module("tqdm").tqdm if find_spec("tqdm") else None
    bar: Any = None
    facts: dict[str, str] = {}

    def show(progress: Progress) -> None:
        nonlocal bar
        if progress.step % max(1, progress.steps // 20) and progress.step != progress.steps:
            return
        if (epsilon := progress.epsilon) is not None:
            facts["epsilon"] = f"{UpperAmount(epsilon):.3g}"
        facts.update({name: f"{score:.4g}" for name, score in (progress.metrics or {}).items()})
        if tqdm is None:
            texts = [f"step {progress.step} of {progress.steps}", *map(" ".join, facts.items())]
            sys.stderr.write(f"{', '.join(texts)}\n")
            return
        bar = tqdm(total=progress.steps, unit="step") if bar is None else bar
        bar.set_postfix(facts, refresh=False)
        bar.update(progress.step - bar.n)
        if progress.step == progress.steps:
            bar.close()

    return show
