"""Adds to a session the methods that learn from the table: `train`, `fit`, `teach` (PATE) and `synthesize`.

Each builds a mechanism and hands it to the curator, which charges its whole price before any data is read.
`segments.Watch` is the type of a callback `progress`, which is called after each step.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Any

from .. import _require
from .._errors import InvalidInput
from .._require import Real
from ..curator import segments
from ..mechanisms.protocols import Release, SecretlyStepped, Stepped
from .base import SessionBase

if TYPE_CHECKING:
    from ..synthetic import SyntheticCopy
    from .teaching import Labeller, TeachingPreview


class Models(SessionBase):
    """Adds the methods that learn from the table to a session."""

    __slots__ = ()

    @_require.check_options
    def train(
        self,
        trainer: Stepped,
        *,
        checkpoint: str | Path | None = None,
        every: int = 100,
        text: str | None = None,
        progress: segments.Watch | None = None,
    ) -> Release:
        """Train a model (`learning.Trainer`); its whole price is charged first. Each call is a new run, and
        is charged again.

        With a `checkpoint`, a path, the state is saved there after every `every` steps, and `resume`
        continues the run after a crash: steps that were taken after the newest checkpoint are lost, and not
        taken again.

        `progress` is called after each step with public facts: the step, and the number of steps. `text`
        describes the run in the ledger.
        """
        if checkpoint is not None:
            _require_room(Path(checkpoint), trainer)
        return segments.train(
            self.curator, trainer, checkpoint, every=every, analyst=self.analyst, text=text, progress=progress
        )

    @_require.check_options
    def resume(
        self,
        trainer: Stepped,
        checkpoint: str | Path,
        *,
        every: int | None = None,
        progress: segments.Watch | None = None,
    ) -> Release:
        """Continue a run from its newest checkpoint, with the trainer it was started with, and return the
        trained model. Free, because the run was paid for at its start. `every` is as before by default."""
        return segments.resume(
            self.curator, trainer, checkpoint, every=every, analyst=self.analyst, progress=progress
        )

    @_require.check_options
    def fit(
        self,
        estimator: Any,
        *,
        target: str | None = None,
        features: Sequence[str] | None = None,
        checkpoint: str | Path | None = None,
        every: int = 100,
        text: str | None = None,
        progress: segments.Watch | None = None,
        number: int | None = None,
    ) -> Any:
        """Fit an estimator to the table, charged first, and return what its `adopt` returns (the fitted
        estimator). Classes, bounds and size are those of the schema.

        An estimator has `mechanism(public, target=..., features=..., delta=...)`, which returns a priced
        mechanism that has not run yet, and `adopt(release, mechanism)`, which takes the fitted parameters
        from its release. `target` is left out where nothing is predicted (k-means, principal components).
        `features` are by default all columns that the estimator can use.

        `checkpoint`, `every` and `progress` are those of `train`, for estimators that are trained in steps.
        `number`, the number of its charge in the ledger, continues a `PrivateSearch` that was interrupted,
        with exactly the same candidates; free. `text` describes the run in the ledger.
        """
        require_estimator(estimator)
        if target is None and not getattr(estimator, "unsupervised", False):
            raise _require.fail("target", None, "the name of the column to predict")
        mechanism = self._mechanism_for(estimator, target, features)
        note = type(estimator).__name__ if target is None else f"{type(estimator).__name__} of {target}"
        note = note if text is None else text
        # a `PrivateSearch`, whose number of trials is secret; `pace` is the least seconds of one round, which
        # hide how long its step took
        if isinstance(mechanism, SecretlyStepped):
            release = self.curator.run(
                mechanism, checkpoint=checkpoint, progress=progress, analyst=self.analyst, text=note,
                pace=getattr(estimator, "pace", 0.0), number=number,
            )  # fmt: skip
        elif number is not None:
            raise InvalidInput(
                "number= continues a PrivateSearch only; other estimators that are trained in steps are "
                "resumed from their checkpoint. Nothing was charged."
            )
        elif isinstance(mechanism, Stepped):
            release = self.train(mechanism, checkpoint=checkpoint, every=every, text=note, progress=progress)
        elif checkpoint is not None or progress is not None:
            raise InvalidInput(
                f"{type(estimator).__name__} is fitted in one step, so there are no steps to save or to "
                f"report. Nothing was charged. "
                f"Leave checkpoint= and progress= out."
            )
        else:
            release = self.curator.ask(mechanism, analyst=self.analyst, text=note)
        return estimator.adopt(release, mechanism)

    def _mechanism_for(self, estimator: Any, target: str | None, features: Sequence[str] | None) -> Any:
        """Return the priced mechanism that fits an estimator to this table; used by `planning`, too."""
        epsilon = getattr(estimator, "epsilon", None)
        delta = None if epsilon is None else self._delta(epsilon, self.curator.policy)
        # `_delta` returns 0 for a budget without delta; estimators expect None then
        return estimator.mechanism(self.public, target=target, features=features, delta=delta or None)

    @_require.check_options
    def teach(
        self,
        learner: Any,
        *,
        teachers: int,
        target: str | None = None,
        features: Sequence[str] | None = None,
        epsilon: float | None = None,
        delta: float | None = None,
        queries: int = 500,
        aggregator: Any = "gnmax",
        answers: int | None = None,
        threshold: int | None = None,
        failures: int | None = None,
        overlap: int | None = None,
        classes: int | None = None,
        sanitize: float | None = None,
        order: float | None = None,
        size: int | None = None,
        workers: int | None = None,
        progress: Any = None,
        number: int | None = None,
    ) -> Labeller:
        """Train `teachers` models on parts of the data, charged first, and return a labeller that labels up
        to `queries` public inputs by the noisy vote of these teachers (PATE, Papernot et al. 2017,
        arXiv:1610.05755). The parts are disjoint; with "sampled" they overlap. `epsilon`, `delta`: the
        data-independent price of all labels; an instance as `aggregator` has its own.

        `learner`: a scikit-learn classifier, or `learning.pate.TorchLearner(model)`. `target`, `features`:
        the column of classes, and the columns that teachers read. `aggregator`: "gnmax", "lnmax",
        "confident", "interactive", "stable" (M_stab of Bassily et al. 2018, arXiv:1803.05101), "sampled"
        (M_samp), "sparse" (M_svec), or an instance of a class of `mechanisms.votes` or
        `mechanisms.stable_votes`, which has its own noise.

        Options of some aggregators only. `answers`: how many questions are answered at most ("confident",
        "interactive"). `threshold`: how many votes the most common class needs ("confident"), or by how many
        votes a class must exceed what the student's prediction expects ("interactive"). `overlap`: to how
        many teachers each unit is given ("sampled"). `failures`: after how many refused questions the
        labeller halts ("sparse").

        `sanitize`: the part of epsilon that pays for publishing the data-dependent cost, computed at the
        Rényi order `order`. `classes`: their number, where the data are examples of tensors and not a table.
        `size`: the public limit on the bytes of one stored teacher. `workers`: the processes that train
        teachers. `progress` is called with (teachers trained so far, `teachers`). `number`, the number of its
        charge in the ledger, returns a labeller that was started before, for example after a restart.
        """
        # `preview_teach` reads the names and defaults of these parameters too (`teaching.preview`). The
        # dictionary is made before the import, which would add a name to locals().
        options = {
            name: value for name, value in locals().items() if name not in ("self", "learner", "number")
        }
        from .teaching import teach

        return teach(self, learner, options, number=number)

    def preview_teach(self, learner: Any, **options: Any) -> TeachingPreview:
        """Preview the price of a labeller, the lead in votes with which a class wins despite the noise, and
        how many such labellers the budget pays for. The options are those of `teach`. Free: no data is
        read."""
        from .teaching import preview

        return preview(self, learner, options)

    @_require.check_options
    def synthesize(
        self,
        rows: int | None = None,
        *,
        epsilon: Real,
        delta: float | None = None,
        method: str = "auto",
        columns: Sequence[str] | None = None,
        bins: Mapping[str, Any] | None = None,
        missing: Mapping[str, bool] | None = None,
        rows_per_unit: int | None = None,
        constraints: Sequence[Any] = (),
        options: Mapping[str, Any] | None = None,
        seed: int | None = None,
        checkpoint: str | Path | None = None,
        resume: bool = False,
        progress: segments.Watch | None = None,
        fresh: bool = False,
    ) -> Any:
        """Make a synthetic copy of the table, charged first. The same options again are answered from the
        ledger, free, unless `fresh` is set. A call with a `checkpoint` or with `progress` is a run like that
        of `train`: each such call is charged.

        `rows`: how many rows to draw, by default the noisy number of rows; `seed`: that of the draw.
        `method`: "auto", "aim", "mst", "mwem", "privbayes" or "independent"; `options` are the method's own
        (degree, cells). `columns`: the columns to copy, by default all. `rows_per_unit`: how many rows of one
        unit count. `bins`, `missing` and `constraints` are public facts, see `synthetic.Domain` and
        `synthetic.Constraint`. With a `checkpoint`, a path, the run is saved after each step, and
        `resume=True` continues it after a crash, free; `progress` is called after each step.
        """
        from .synthesis import SynthesisTerms, synthesize

        terms = SynthesisTerms(
            epsilon=epsilon,
            delta=delta,
            method=method,
            columns=columns,
            bins=bins,
            missing=missing,
            rows_per_unit=rows_per_unit,
            constraints=constraints,
            options=options,
        )
        run = {"checkpoint": checkpoint, "resume": resume, "progress": progress, "fresh": fresh}
        return synthesize(self, terms, rows=rows, seed=seed, **run)  # type: ignore[arg-type]

    def compare_copy(
        self, copy: SyntheticCopy, *, epsilon: Real, rows_per_unit: int | None = None
    ) -> Release:
        """Measure, at the price `epsilon`, how far the two-way marginals of a synthetic copy are from those
        of the table, on average (`synthetic.quality.CopyDistance`)."""
        from .synthesis import compare_copy

        return compare_copy(self, copy, epsilon=epsilon, rows_per_unit=rows_per_unit)


def _require_room(checkpoint: Path, trainer: Any) -> None:
    """Refuse, before the charge, a checkpoint that cannot be written: if the first one fails after it, the
    price of the run is lost. What `segments.train` refuses itself passes."""
    if checkpoint.exists() or not checkpoint.parent.is_dir():
        return
    parameters = getattr(getattr(trainer, "model", None), "parameters", None)
    count = sum(int(p.numel()) for p in parameters()) if callable(parameters) else 0
    # Four floats of 4 bytes per parameter: the weight, two moments of an optimizer and an average. One
    # megabyte more for everything else: an estimate, not measured.
    megabytes = 1 + (16 * count >> 20)
    try:
        with NamedTemporaryFile(dir=checkpoint.parent, prefix=checkpoint.name) as trial:
            for _ in range(megabytes):
                trial.write(bytes(1 << 20))
            trial.flush()
            os.fsync(trial.fileno())
    # ValueError: a NUL in the path
    except (OSError, ValueError) as error:
        raise InvalidInput(
            f"a checkpoint of about {megabytes} MB cannot be written at {str(checkpoint)!r} "
            f"({getattr(error, 'strerror', error)}). Nothing was charged or trained."
        ) from None


def require_estimator(candidate: Any) -> None:
    """Refuse what is no estimator with a sentence that says what to give instead."""
    _require.an_object(candidate)
    if hasattr(candidate, "adopt") and hasattr(candidate, "mechanism"):
        return
    name, module = type(candidate).__name__, type(candidate).__module__
    if name == "Pipeline":
        advice = (
            "a pipeline of scikit-learn learns its scaling from private rows and pays nothing for it: give "
            "learning.PrivatePipeline(learning.LogisticRegression(), epsilon=1), or the estimator alone, "
            "whose features are scaled by the declared bounds"
        )
    elif hasattr(candidate, "length") and hasattr(candidate, "event"):
        advice = "it is run by people.train(trainer)"
    elif module.startswith("sklearn"):
        advice = f"it is not private: see whether learning.{name}(epsilon=1) exists"
    else:
        advice = "give one of discreet.learning, such as LogisticRegression(epsilon=1)"
    raise InvalidInput(f"fit takes an estimator, got {name}: {advice}. Nothing was charged or read.")
