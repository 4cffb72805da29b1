"""Defines the trainer: DP-SGD (private stochastic gradient descent) as a mechanism with a price, its `event`.

    trainer = Trainer(
        model, nn.CrossEntropyLoss(), public=data.public, epsilon=3, delta=1e-5, clip=1, batch=256, epochs=10
    )
    trainer.event  # the price, before any data is read
    model = trainer(data, entropy=Entropy()).value

Each step draws its batch, adds up clipped gradients, adds Gaussian noise, divides by a public number, and
moves the weights (Abadi et al. 2016, arXiv:1607.00133). The number of steps is fixed in advance.

Checks a trainer's options when it is made: an option that failed only after the charge would cost the
price of a run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import InitVar, dataclass, field, fields
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from ... import _require
from ... import accounting as acc
from ..._errors import Halted, InvalidInput, ReleaseFailed, Unsupported
from ..._public import Public
from ..._require import at_least
from ...accounting import Event
from ...mechanisms.protocols import AnySource, ExampleSource, Release, Stepped, check_source, release
from ...sampling import Entropy
from ..clipping.batching import forked_generator, generators, placed
from ..clipping.engine import ClippingEngine
from ..clipping.norms import Adaptive, Clipping, as_clipping
from ..probing.safety import made_up, probe
from ..probing.single_examples import SMALL_BATCH, pick
from . import checkpoints, federated
from .callbacks import Progress, PublicSet, ReleasedWeights, StepWatch
from .clipped_sums import Summands
from .data import Augment, Tabular, empty_batch_of, examples_of, one_variant_each, require_same_shapes
from .federated import LocalSGD
from .gradient_noise import GradientGrid
from .optimizers import SGD, Adam, Optimizer, scheduled, start
from .pooling import KeptBuffers, check_copyable, copied
from .schedules import Cyclic, Indices, Poisson, Schedule, TruncatedPoisson, build_schedule
from .trainer_options import Optimization, Performance, Privacy, Rounds, padded_sizes, spread

# The number of steps whose learning rate is tried before anything is charged. Chosen by hand, so that a
# function of plain Python takes less than about a tenth of a second for all of them.
_TRIED_STEPS = 100_000

_INSTEAD = (
    "learning.SGD(lr=...), learning.Adam(lr=...), or a function that builds one of torch's: lambda "
    "parameters: torch.optim.RMSprop(parameters)"
)


def check(trainer: Trainer) -> None:
    """Check all options but the schedule, the clip and the privacy, which are checked where they are made,
    and the optimizer and its learning rate (`check_optimizer`)."""
    if trainer.average is not None:
        _require.open_probability(average=trainer.average)
        trainer._set("average", float(trainer.average))
    if not isinstance(trainer.performance, Performance):
        raise _require.fail(
            "performance", type(trainer.performance).__name__, "Performance(microbatch=..., ...)"
        )
    _require.one_of(("gaussian", "discrete"), noise=trainer.noise)
    _require.one_of(("mean", "sum"), pooling=trainer.pooling)
    if trainer.augment is not None and not isinstance(trainer.augment, Augment):
        raise _require.fail("augment", type(trainer.augment).__name__, "Augment(function=..., times=...)")
    if trainer.columns is not None and not isinstance(trainer.columns, Tabular):
        raise _require.fail("columns", type(trainer.columns).__name__, "Tabular(features=..., target=...)")
    _require.must(
        trainer.synthetic is None or (isinstance(trainer.synthetic, tuple) and len(trainer.synthetic) == 2),
        "synthetic",
        type(trainer.synthetic).__name__,
        "a pair (inputs, targets) of invented examples to try the model on",
    )
    federated.check(trainer)
    _check_together(trainer)


def _check_together(trainer: Trainer) -> None:
    """Refuse combinations of options that no price is proved for, or that would train wrongly."""
    declared, size = trainer.schedule.exact_size, trainer.public.size
    _require.that(
        declared is None or size is None or declared == size,
        f"{type(trainer.schedule).__name__} samples from all examples, exactly: it was made for "
        f"{declared}, and Public(size={size}) says otherwise. Leave out n=, or make the schedule for the "
        "declared size.",
    )
    has_adaptive_clip, is_cyclic = isinstance(trainer.clip, Adaptive), isinstance(trainer.schedule, Cyclic)
    if has_adaptive_clip and (is_cyclic or trainer.noise == "discrete"):
        raise Unsupported(
            "an adaptive clip changes from step to step, and a cyclic schedule or discrete noise is priced "
            "for one clip."
        )
    # The noise of a cyclic schedule may be correlated over time: then its variance changes from step to step.
    if (
        (has_adaptive_clip or is_cyclic)
        and isinstance(trainer.optimizer, Adam)
        and trainer.optimizer.noise_aware
    ):
        raise Unsupported(
            "Adam subtracts one variance of noise, and here it may change from step to step: give "
            "Adam(noise_aware=False)."
        )


def _factors(trainer: Trainer) -> list[float]:
    """Return the factors of the learning rate in the first and in the last step, and the one of largest size.

    The function is called for each step, but for no more than `_TRIED_STEPS` and the last.
    """
    factor, steps = trainer.learning_rate, trainer.schedule.steps
    if factor is None:
        return [1.0]
    if not callable(factor):
        raise _require.fail(
            "learning_rate",
            factor,
            "a function of the step that gives a factor, such as warmup_cosine(steps) (the rate "
            "itself is the optimizer's, SGD(lr=...)), or a scheduler of torch",
        )
    factors = []
    for step in (*range(min(steps - 1, _TRIED_STEPS)), steps - 1):
        try:
            factors.append(float(factor(step)))
        except InvalidInput:
            raise
        except Exception as error:
            # The function was given the number of a step, so its message tells nothing about a person.
            raise InvalidInput(
                f"learning_rate({step}) failed: {type(error).__name__}: {error}. It must be a number for "
                f"each of {steps} steps."
            ) from error
        _require.finite(**{f"learning_rate({step})": factors[-1]})
    return [factors[0], factors[-1], max(factors, key=abs)]


def _check_deviation(trainer: Trainer) -> None:
    """Refuse noise that rounds to zero in float32, or is beyond its range or the integers of a grid.

    With a deviation between 2**-100 and 2**100, noise is far within the range of float32. On a grid, noise of
    deviation 2**58 steps is a 64-bit integer up to 31 deviations.
    """
    try:
        deviation = trainer.deviation
    except OverflowError:
        deviation = math.inf
    largest = 2.0**100 if trainer.grid is None else 2.0**58 * float(trainer.grid.step)
    if not 2.0**-100 <= deviation <= largest:
        raise _require.fail(
            "noise_multiplier",
            trainer.noise_multiplier,
            f"such that the noise on a sum has a deviation between 2**-100 and {largest:g}",
        )


def check_optimizer(trainer: Trainer, parameters: list[nn.Parameter]) -> None:
    """Check the optimizer: `SGD`, `Adam`, or a function that builds one of torch's for the parameters that it
    is given.

    The optimizer takes a step on copies of the parameters, with zero gradients, for each factor that
    `_factors` returns. Whether a step of `SGD` or `Adam` fails depends on the type of the parameters only, so
    their copies are empty.
    """
    optimizer: Any = trainer.optimizer
    if isinstance(optimizer, torch.optim.Optimizer):
        kind, rate = type(optimizer).__name__, optimizer.param_groups[0].get("lr", "...")
        raise InvalidInput(
            f"optimizer= is a torch.optim.{kind} for the weights of your model, and the trainer trains a "
            f"copy. Say how to build one, optimizer=lambda parameters: torch.optim.{kind}(parameters, "
            f"lr={rate}), or give learning.SGD(lr=...) or learning.Adam(lr=...)."
        )
    _check_deviation(trainer)
    is_own = isinstance(optimizer, SGD | Adam)
    if not is_own and (not callable(optimizer) or optimizer in (SGD, Adam)):
        raise _require.fail("optimizer", optimizer, _INSTEAD)
    copies = [nn.Parameter(p.detach()[:0] if is_own and p.dim() else p.detach().clone()) for p in parameters]
    try:
        update = start(optimizer, copies, trainer.schedule.divisor, trainer.deviation)
        trainer._set("learning_rate", scheduled(trainer.learning_rate, update.rate))
        with torch.no_grad():
            for factor in _factors(trainer):
                values = torch.zeros(
                    sum(p.numel() for p in copies), dtype=copies[0].dtype, device=copies[0].device
                )
                update(values, torch.zeros_like(values), factor)
    except InvalidInput:
        raise
    except Exception as error:
        # No data was read so far, so the message tells nothing about a person.
        raise InvalidInput(
            f"optimizer= cannot take a step with a copy of the parameters: {type(error).__name__}: {error}. "
            f"Give {_INSTEAD}."
        ) from error


@_require.checked
@dataclass(frozen=True)
class Trainer(Stepped):
    """Trains a copy of `model` with DP-SGD.

    The price is set by `epsilon` and `delta`, or by `noise_multiplier` (the noise's standard deviation
    divided by the clip); the length by `batch` or `rate`, and `epochs` or `steps`. `n` declares the number of
    examples where `public.size` does not. `clip` is a number or a clipping rule. All other options have
    defaults.

    `sampling`: "poisson", "truncated_poisson" (with `limit`, the largest batch), "balls_in_bins",
    "without_replacement", or "cyclic", without sampling, where noise may be correlated by a `strategy`.
    `noise="discrete"` draws exact noise on a grid. `augment` makes several variants of each example. Where
    `public.unit` names people, `n`, `batch` and `rate` are about people, and a person's gradient is the
    "mean" or the "sum" (`pooling`) over the person's rows, at most `unit.rows` of them, at random. With
    `local`, a `LocalSGD`, a person's gradient is how far the model moves when the person trains it: federated
    averaging, where `optimizer` is the server's. `learning_rate(step)` is a factor on the optimizer's
    learning rate; or it is a scheduler of torch, or a function that makes one of an optimizer, which gives
    the rate itself, step by step. `average` is the decay of an average of the weights over the steps.
    `columns` says how a table is read as examples; `synthetic` is (inputs, targets) of made-up examples to
    try the model on, in place of those of `safety.made_up`. `performance` has the options for time and
    memory; two of them may be given here: `microbatch=`, `isolate=`. The other options may be given in
    groups: `privacy=Privacy(...)`, `rounds=Rounds(...)`, `optimization=Optimization(...)`.

    Guarantee: `event`, under the neighboring relation of `public`, for everything that is released: the
               trained model, and every model on the way.
    Proof:     docs/learning.md: each step is the event's Gaussian on its sample; what is released is a
               function of the noisy sums, of public parameters, and of fresh randomness.
    Assumes:   model and loss compute each example's gradient from that example (probed; certain with
               `isolate=True` where vmap runs the model); floats are close enough to reals (docs/learning.md).
    """

    model: nn.Module
    loss: Any
    public: Public = field(default=Public(), kw_only=True)
    epsilon: float | None = field(default=None, kw_only=True)
    delta: float | None = field(default=None, kw_only=True)
    noise_multiplier: float = field(default=None, kw_only=True)  # type: ignore[assignment]
    clip: float | Clipping = field(default=1.0, kw_only=True)
    rate: Any = field(default=None, kw_only=True)
    batch: Any = field(default=None, kw_only=True)
    n: Annotated[int, at_least(1)] | None = field(default=None, kw_only=True)
    steps: int | None = field(default=None, kw_only=True)
    epochs: Any = field(default=None, kw_only=True)
    sampling: str | Schedule = field(default="poisson", kw_only=True)
    limit: int | None = field(default=None, kw_only=True)
    strategy: Any = field(default=None, kw_only=True)
    noise: str = field(default="gaussian", kw_only=True)
    augment: Augment | None = field(default=None, kw_only=True)
    pooling: str = field(default="mean", kw_only=True)
    local: LocalSGD | None = field(default=None, kw_only=True)
    optimizer: Optimizer = field(default=SGD(lr=0.1), kw_only=True)
    learning_rate: Any = field(default=None, kw_only=True)
    average: float | None = field(default=None, kw_only=True)
    performance: Performance = field(default=Performance(), kw_only=True)
    microbatch: InitVar[int | None] = field(default=None, kw_only=True)
    isolate: InitVar[bool | None] = field(default=None, kw_only=True)
    columns: Tabular | None = field(default=None, kw_only=True)
    synthetic: tuple[Any, Any] | None = field(default=None, kw_only=True)
    privacy: InitVar[Privacy | None] = field(default=None, kw_only=True)
    rounds: InitVar[Rounds | None] = field(default=None, kw_only=True)
    optimization: InitVar[Optimization | None] = field(default=None, kw_only=True)
    schedule: Schedule = field(init=False, repr=False)
    event: Event = field(init=False)

    def __post_init__(
        self,
        microbatch: int | None,
        isolate: bool | None,
        privacy: Privacy | None,
        rounds: Rounds | None,
        optimization: Optimization | None,
    ) -> None:
        defaults = {f.name: f.default for f in fields(self)}
        for name, value in spread(privacy=privacy, rounds=rounds, optimization=optimization).items():
            if getattr(self, name) is not defaults[name]:
                raise InvalidInput(f"{name}= was given to the trainer and in a group. Give it once.")
            self._set(name, value)
        if not isinstance(self.public, Public):
            raise _require.fail(
                "public", type(self.public).__name__, "Public(...), the facts that the data have: data.public"
            )
        if self.delta is not None:
            _require.probability(delta=self.delta)
        size = self.n if self.n is not None else self.public.size
        schedule = build_schedule(
            self.sampling,
            size=size,
            rate=self.rate,
            batch=self.batch,
            steps=self.steps,
            epochs=self.epochs,
            limit=self.limit,
            strategy=self.strategy,
            target=(self.epsilon, self.delta),
        )
        self._set("schedule", schedule)
        self._set("clip", as_clipping(self.clip))
        check(self)
        self._set("performance", self.performance.updated(microbatch=microbatch, isolate=isolate))
        engine = self._engine(self.model)
        check_copyable(self.model)
        self._set("noise_multiplier", self._calibrate())
        self._set("event", schedule.event(self.noise_multiplier, self.public.neighbors, self.grid))
        if isinstance(self.clip, Adaptive):
            # Called for its refusal: count and sum must be able to share this noise.
            self.clip.split(self.noise_multiplier, schedule.divisor)
        check_optimizer(self, list(engine.parameters.values()))
        if self.synthetic is not None:
            self._probe(engine, *self.synthetic, own=True)

    @property
    def grid(self) -> GradientGrid | None:
        """Return the grid that clipped gradients are rounded to, with noise="discrete"."""
        if self.noise != "discrete":
            return None
        size = sum(p.numel() for p in self.model.parameters() if p.requires_grad)
        return GradientGrid.of(self.clip.clip, size)  # type: ignore[union-attr]

    @property
    def deviation(self) -> float:
        """Return the standard deviation of a step's fresh noise on the sum of clipped gradients; a `strategy`
        adds noise of earlier steps to it. If the clip adapts, it is that of the first step."""
        clip: Any = self.clip
        if isinstance(clip, Adaptive):
            return clip.split(self.noise_multiplier, self.schedule.divisor) * clip.clip
        if self.grid is not None:
            return math.sqrt(self.grid.variance(self.noise_multiplier)) * float(self.grid.step)
        return float(self.noise_multiplier * clip.clip * self.schedule.growth)

    def _engine(self, model: nn.Module) -> ClippingEngine:
        """Return the engine that computes clipped gradient sums of a model."""
        options, batch = self.performance, float(self.schedule.divisor)
        rate = float(self.schedule.rate) if isinstance(self.schedule, Poisson | TruncatedPoisson) else 0.0
        return ClippingEngine(
            model,
            self.loss,
            isolate=options.isolate,
            sizes=padded_sizes(batch, rate, options.microbatch) if options.compiled else (),
            expected=self._rows_together(),
            half=options.precision == "bfloat16",
        )

    def _working_copy(self) -> nn.Module:
        """Return a copy of the model to train, on the device that was asked for."""
        device = self.performance.device
        return copied(self.model) if device is None else copied(self.model).to(device)

    def _rows_together(self) -> int:
        """Return about how many rows the model is given at a time: a microbatch, or the expected batch."""
        expected = max(1, round(float(self.schedule.divisor)))
        return min(expected, self.performance.microbatch or expected)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _calibrate(self) -> float:
        """Return the noise multiplier, calibrated to (epsilon, delta) where it is not given."""
        if self.noise_multiplier is not None:
            _require.that(self.epsilon is None, "give epsilon= and delta=, or noise_multiplier=, not both.")
            noise_multiplier = _require.as_float(noise_multiplier=self.noise_multiplier)
            _require.positive(noise_multiplier=noise_multiplier)
            return noise_multiplier
        if self.epsilon is None or self.delta is None:
            raise InvalidInput("say how private: epsilon= and delta=, or noise_multiplier=.")
        relation, grid = self.public.neighbors, self.grid
        return float(
            acc.calibrate(
                lambda s: self.schedule.event(s, relation, grid), epsilon=self.epsilon, delta=self.delta
            )
        )

    @property
    def asked(self) -> tuple[float, float] | None:
        """Return the (epsilon, delta) that noise was calibrated to; None where the noise itself was given."""
        return None if self.epsilon is None or self.delta is None else (self.epsilon, self.delta)

    def spent(self, step: int, *, delta: float) -> float:
        """Return epsilon after this many steps where the price is one event repeated for each step, or for
        each pass of several steps (a pass that has begun counts whole); otherwise that of the whole run."""
        if step >= self.schedule.steps or not isinstance(self.event, acc.Repeated):
            return acc.epsilon(self.event, delta=delta)
        steps_per_event = self.schedule.steps // self.event.times
        return acc.epsilon(self.event.event.repeated(-(-step // steps_per_event)), delta=delta)

    def start(self, source: AnySource, *, entropy: Entropy) -> TrainingRun:
        """Return a run that the caller steps through. The whole price is due when it starts."""
        check_source(self.public, source, examples=True)
        return TrainingRun(self, examples_of(source, self.columns), entropy)

    def __call__(
        self,
        source: AnySource,
        /,
        *,
        entropy: Entropy | None = None,
        progress: Callable[[Progress], Any] | bool | None = None,
        callbacks: Iterable[Any] = (),
        validation: PublicSet | None = None,
    ) -> Release:
        """Run all steps; the release's value is the trained model. A session gives the `entropy`, after it
        has charged the price. `progress`, `callbacks` and `validation` are those of `watch`.

        An exception of a callback reaches the caller unchanged, because it can contain nothing private, and
        ends the run.
        """
        if entropy is None:
            raise InvalidInput(
                "a trainer is run by a session, which charges its price first: "
                "dp.open(learning.Examples(inputs, targets, public), budget=..., ledger=...).train(trainer). "
                "Without a ledger, where you account for trainer.event yourself: trainer(examples, "
                "entropy=sampling.Entropy())."
            )
        watch = self.watch(progress, callbacks, validation=validation, source=source)
        run = self.start(source, entropy=entropy)
        with run:
            while not run.done:
                run.step()
                watch(run.progress)
        return run.release()

    def watch(
        self,
        progress: Callable[[Progress], Any] | bool | None = None,
        callbacks: Iterable[Any] = (),
        *,
        validation: PublicSet | None = None,
        source: AnySource | None = None,
        delta: float | None = None,
    ) -> StepWatch:
        """Return what a run calls after each step with public facts, its `Progress`.

        `progress` is a function, True for a progress bar, or None for one in terminals and notebooks only.
        `callbacks` are functions, writers of TensorBoard or runs of W&B; `validation` is data that you
        declare public. `delta` is that of epsilon so far, where the trainer has none.
        """
        return StepWatch(self, progress, callbacks, validation, source, delta)

    def rehearse(self, source: AnySource) -> None:
        """Try model and loss on made-up examples of the source's shapes, before anything is charged; no value
        of the source is read. Examples of `synthetic` were tried when the trainer was made: the source must
        have their shapes."""
        if isinstance(source, ExampleSource):
            self.schedule.check_size(source.size)
        shapes = empty_batch_of(source, self.columns)
        if self.synthetic is None:
            self._try(self._engine(self._working_copy()), *shapes)
        else:
            require_same_shapes(self.synthetic, shapes)

    def _try(self, engine: ClippingEngine, inputs: Any, targets: Any) -> None:
        """Probe the engine on made-up examples of these shapes, or on variants of them."""
        examples = made_up(inputs)
        examples = examples if self.augment is None else one_variant_each(self.augment, examples)
        self._probe(engine, examples, made_up(targets))

    def _probe(self, engine: ClippingEngine, inputs: Any, targets: Any, *, own: bool = False) -> None:
        """Probe the engine in full precision, as torch's own gradients are; then try what trains in bfloat16
        in it, too."""
        engine.half = False
        probe(engine, inputs, targets, batch=self._rows_together(), own=own)
        engine.half = self.performance.precision == "bfloat16"
        if not engine.half:
            return
        try:
            with engine.attached(), forked_generator(engine.device):
                engine.gradients(*pick((inputs, targets), torch.arange(SMALL_BATCH, device="cpu")))
        except Exception as error:
            raise Unsupported(
                f"the model does not run in bfloat16: {type(error).__name__}: {error}. Leave precision= out. "
                "No data was read."
            ) from error

    @property
    def length(self) -> int:
        """Return the number of steps."""
        return self.schedule.steps

    @property
    def period(self) -> int:
        """Return after every how many steps a checkpoint can be taken; raise Unsupported where none can."""
        return checkpoints.period(self)

    @property
    def identity(self) -> dict[str, Any]:
        """Return all facts that a trainer must share with the one whose run it resumes."""
        return checkpoints.identity(self)

    def restore(self, source: AnySource, raw: bytes, steps_taken: int, *, entropy: Entropy) -> TrainingRun:
        """Return a run that goes on from the bytes of a checkpoint.

        For `Session.resume`: alone, it would run steps that nobody paid for.
        """
        return checkpoints.restore(self, source, raw, steps_taken, entropy=entropy)


class TrainingRun:
    """Runs one training: `step()` until `done`; one more is refused.

    `model` is the model so far, averaged over the steps if the trainer has an `average`. The state that
    `checkpoints` stores and `distributed` shares among workers: `values`, the parameters in one vector,
    `averaged`, their average or None, `update`, the optimizer's state, and `summands`, which adds noise and
    clipped gradients.
    """

    def __init__(self, trainer: Trainer, examples: ExampleSource, entropy: Entropy) -> None:
        self.trainer, self._examples, self._entropy = trainer, examples, entropy
        self._coins = entropy.aside("coins of the model")
        self._steps_taken, self._failed, self._factor = 0, False, 1.0
        self._working_model = trainer._working_copy()
        # Puts the model's buffers back after each step, so that one step's examples do not reach the next.
        self._buffers = KeptBuffers(self._working_model)
        self.engine = trainer._engine(self._working_model)
        self.engine.train()
        if trainer.synthetic is None:
            trainer._try(self.engine, *examples.shapes())
        else:
            # The engine chooses how to run layers on its first batch, which must not be private.
            few = pick(trainer.synthetic, torch.arange(SMALL_BATCH, device="cpu"))
            with self.engine.attached(), forked_generator(self.engine.device):
                self.engine.gradients(*placed(few, self.engine.device))
        self.values, self._gradient = _flatten_parameters(self.engine), self.engine.buffer()
        self._sums = self.engine.sums(self._gradient)
        self.summands = Summands(trainer, self.engine, examples, entropy)
        self.averaged = self.values.clone() if trainer.average is not None else None
        self.update = start(
            trainer.optimizer,
            list(self.engine.parameters.values()),
            trainer.schedule.divisor,
            self.deviation,
        )
        self._released = ReleasedWeights(trainer, self.values, self.averaged)
        batches = trainer.schedule.batches(examples.size, entropy)
        self._batches: Iterator[Indices] = self.summands.read_ahead(batches)
        self._context = ExitStack()

    @property
    def steps_taken(self) -> int:
        """The number of steps that are taken or lost; all of them, once a callback has ended the run."""
        return self.trainer.schedule.steps if self._released.ended else self._steps_taken

    @steps_taken.setter
    def steps_taken(self, number: int) -> None:
        self._steps_taken = number

    @property
    def done(self) -> bool:
        return self.steps_taken >= self.trainer.schedule.steps

    @property
    def deviation(self) -> float:
        """Return `Trainer.deviation`."""
        return self.trainer.deviation

    def __enter__(self) -> TrainingRun:
        self._context.enter_context(self.engine.attached())
        return self

    def __exit__(self, *error: Any) -> None:
        self._context.close()
        if self.done or error[0] is not None:
            self.summands.end()

    def step(self) -> None:
        """Take one noisy step. An empty batch is a step like any other."""
        if self.done:
            steps = f"all {self.trainer.schedule.steps} steps that were paid for are taken"
            raise Halted(
                f"{'a step failed or was interrupted, and ended the run' if self._failed else steps}. "
                "Training on means a new trainer, which pays for its own steps."
            )
        if not self.engine.is_attached:
            with self:
                return self.step()
        self.steps_taken += 1
        try:
            self.summands.noise(self._gradient)
            self._accumulate(next(self._batches))
            self.summands.close(self._gradient)
        except BaseException:
            # Also if interrupted, the run is done: sums and buffers of half a step must not reach another.
            self.steps_taken, self._failed = self.trainer.schedule.steps, True
            raise
        self._descend()
        return None

    def _descend(self) -> None:
        """Move the weights by the noisy sum; nothing else here depends on the data."""
        rate = self.trainer.learning_rate
        self._factor = 1.0 if rate is None else float(rate(self.steps_taken - 1))
        with torch.no_grad():
            self.update(self.values, self._gradient, self._factor)
            if self.averaged is not None:
                # Less decay in the first steps, at most s / (s + 9) in step s: a usual choice, not tuned.
                decay = min(self.trainer.average or 0.0, self.steps_taken / (self.steps_taken + 9))
                self.averaged.lerp_(self.values, 1 - decay)

    def _accumulate(self, members: Indices) -> None:
        """Add the clipped gradients of a batch to the noise, a microbatch at a time; noise was drawn once,
        for all of them."""
        try:
            with _secret_coins(self._coins, self.engine.device):
                self.summands.add(members, self._sums)
            self._buffers.restore()
        except ReleaseFailed:
            raise
        except Exception:
            # The error's text could quote a private value, such as an index that is out of range.
            raise ReleaseFailed(
                "the model or the loss failed on private examples. Its message is withheld because it may "
                "reveal something about the data. The price of the run is spent, and the run is over. Try "
                "the model on made-up examples: are all words and classes within range?"
            ) from None

    @property
    def progress(self) -> Progress:
        """Return the progress, which is public, and may be shown."""
        trainer, clip = self.trainer, self.trainer.clip
        return Progress(
            self.steps_taken,
            trainer.schedule.steps,
            learning_rate=self.update.rate * self._factor,
            noise_multiplier=trainer.noise_multiplier,
            clip=(self.summands.rule if isinstance(clip, Adaptive) else clip).clip,  # type: ignore[union-attr]
            expected_batch=float(trainer.schedule.divisor),
            delta=trainer.delta,
            _released=self._released,
        )

    def dump(self) -> bytes:
        """Return a checkpoint of the run between two steps: no noise, no seed, no data."""
        return checkpoints.dump(self)

    def release(self) -> Release:
        """Return the model so far, with the price of the whole run."""
        return release(self.model, event=self.trainer.event, entropy=self._entropy)

    @property
    def model(self) -> nn.Module:
        """Return a copy of the model so far, with weights of its own."""
        return self._released.model()


@contextmanager
def _secret_coins(entropy: Entropy, device: torch.device) -> Iterator[None]:
    """Seed torch's generators, which dropout draws from, with secret numbers, new for each step.

    Without it, the caller could know the coins, by `torch.manual_seed`, and so which mask belongs to which
    position in the batch; and the generator's state afterwards would show how large the batch was.
    """
    states = [(generator, generator.get_state()) for generator in generators(device)]
    try:
        for generator, _ in states:
            generator.manual_seed(entropy.integer(63))
        yield
    finally:
        for generator, state in states:
            generator.set_state(state)


def _flatten_parameters(engine: ClippingEngine) -> Tensor:
    """Move all trainable parameters into one vector, of which they become views."""
    values = engine.buffer()
    for p, view in zip(engine.parameters.values(), engine.parts(values).values(), strict=True):
        view.copy_(p.detach())
        p.data = view
    return values
