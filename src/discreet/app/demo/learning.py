"""Trains a private network: handwritten digits are learned by DP-SGD at several prices, beside the same
network without privacy."""

from __future__ import annotations

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import accounting as acc
from ... import session as sessions
from ..._errors import MissingExtra
from ...curator import Budget, segments
from ...curator.entries import Entry
from ...explaining.words import number
from .stage import ACCENT, INK, PALE, Stage

if TYPE_CHECKING:
    from ...learning.digits import Digits

TITLE = "A network that forgets each of its teachers"

EPSILONS = (0.5, 1.0, 2.0, 4.0, 8.0)
DELTA = 1e-5
BATCH, EPOCHS, CLIP = 256, 20, 1.0


def run(stage: Stage) -> None:
    """Train the same small network at several epsilons and without privacy, and compare the accuracies."""
    try:
        from ...learning.digits import Digits

        data = Digits(delta=DELTA, batch=BATCH, epochs=EPOCHS, clip=CLIP)
    except (MissingExtra, ImportError):
        stage.aside("This chapter needs PyTorch and scikit-learn: pip install 'discreet[learn]'")
        return
    stage.say(
        "1,437 handwritten digits, each taken as one person's; a small convolutional network learns "
        "to read them. Each step of the training takes a "
        "random sample, scales every person's gradient down to a length of at most 1, adds the gradients up, "
        "and adds noise. How much anybody who sees the network, with all its weights, can learn about "
        "whether one person's digit was used is bounded by epsilon and delta.\n"
    )
    trainer = data.trainer(EPSILONS[1])
    stage.say(
        f"The price is known before any data is read. {trainer.schedule.steps} steps, each on a "
        f"sample with rate "
        f"{BATCH / 1437:.3f}, with noise of {trainer.noise_multiplier:.2f} times the largest gradient: "
        f"epsilon {number(acc.epsilon(trainer.event, delta=DELTA))} at delta {DELTA:g}.\n"
    )
    plain = data.plain()
    accuracies = [(epsilon, *data.private(epsilon)) for epsilon in EPSILONS]
    # the width that the other columns (52 characters) leave for the bars
    width = max(8, min(40, stage.console.width - 52))
    rows = [
        [f"{epsilon:g}", f"{noise:.2f}", f"{accuracy:.1%}", _bar(accuracy, width)]
        for epsilon, noise, accuracy in accuracies
    ]
    rows.append(["no privacy", "0", f"{plain:.1%}", _bar(plain, width)])
    stage.table(["epsilon", "noise over clip", "test accuracy", ""], rows)
    stage.say(
        "\nPrivacy costs accuracy because 1,437 people are few: the noise does not grow with the number of "
        "people, but the sum of their gradients does. With many more people the gap narrows.\n"
    )
    _picture(stage, [(epsilon, accuracy) for epsilon, _, accuracy in accuracies], plain)
    _crash(stage, data)


def _crash(stage: Stage, data: Digits) -> None:
    """Run a training through a ledger, stop it within a segment (the steps between two checkpoints), and
    resume it."""
    stage.say(
        "\nWhat if the machine stops in the middle? Through a session the whole run is paid for at "
        "its start, and each segment of steps is entered in "
        "the ledger before it is run. This run is stopped, and resumed:\n"
    )
    trainer = data.trainer(EPSILONS[-1])
    every = max(1, trainer.length // 4)

    def stop(progress: Any) -> None:
        """Interrupt the training one step before the end of the second segment."""
        if progress.step == 2 * every - 1:
            raise KeyboardInterrupt

    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "run.ckpt"
        people = sessions.open(
            data.examples,
            budget=Budget(epsilon=100, delta=DELTA),
            ledger=Path(folder) / "ledger",
            large_epsilon=True,
        )
        with suppress(KeyboardInterrupt):
            people.train(trainer, checkpoint=checkpoint, every=every, progress=stop)
        spent = people.spent
        model = people.resume(trainer, checkpoint).value
        rows = [
            [str(entry.seq), _entry_words(entry)] for entry in people.ledger.entries() if entry.kind != "open"
        ]
        resumed_free = people.spent == spent
    stage.table(["entry", " "], rows)
    stage.say(
        f"\nNo step is run twice, no noise is ever stored, and resuming costs "
        f"{'nothing' if resumed_free else 'something'}: only the segment that was stopped is lost. "
        f"The network reads {data.accuracy(model):.1%} of the test digits.\n"
    )


def _entry_words(entry: Entry) -> str:
    """Return an entry of the ledger in words."""
    body = entry.body
    if entry.kind == segments.SEGMENT:
        return f"steps {body['from'] + 1} to {body['to']} begin"
    if entry.kind == segments.SAVED:
        return f"checkpoint after step {body['step']}"
    return {
        "charge": "the whole run is charged, before any digit is read",
        "release": "the model is released",
    }.get(entry.kind, entry.kind)


def _bar(share: float, width: int) -> str:
    """Return a bar that fills this share of `width` characters."""
    return ("█" * round(width * share)).ljust(width)


def _picture(stage: Stage, accuracies: list[tuple[float, float]], plain: float) -> None:
    try:
        path = _draw(stage.out / "learning.png", accuracies, plain)
    except MissingExtra as missing:
        stage.aside(str(missing))
        return
    stage.saved(path)


def _draw(path: Path, accuracies: list[tuple[float, float]], plain: float) -> Path:
    try:
        import matplotlib
    except ImportError:
        raise MissingExtra.of("plots", "no picture: matplotlib is missing") from None
    matplotlib.use("Agg")
    from matplotlib import pyplot

    path.parent.mkdir(parents=True, exist_ok=True)
    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    axes.axhline(plain, color=PALE, linewidth=2, zorder=1)
    axes.annotate(
        "without privacy",
        (accuracies[0][0], plain),
        xytext=(0, -14),
        textcoords="offset points",
        color=INK,
        fontsize=10,
    )
    axes.plot(*zip(*accuracies, strict=True), color=ACCENT, marker="o", linewidth=2.2, zorder=3)
    for epsilon, accuracy in accuracies:
        # below and to the right of the point, where a rising curve leaves space
        axes.annotate(
            f"{accuracy:.0%}",
            (epsilon, accuracy),
            xytext=(7, -15),
            textcoords="offset points",
            fontsize=10,
            color=INK,
        )
    axes.set_xscale("log", base=2)
    axes.set_xticks([epsilon for epsilon, _ in accuracies], [f"{epsilon:g}" for epsilon, _ in accuracies])
    axes.set_ylim(min(0.5, min(a for _, a in accuracies) - 0.1), 1.04)
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    axes.set_title(
        "Reading digits: accuracy against epsilon", loc="left", fontsize=13, color=INK, fontweight="bold"
    )
    axes.set_xlabel(
        f"epsilon at delta {DELTA:g} (1,437 digits, each taken as one person; DP-SGD, tanh network)",
        loc="left",
        fontsize=9,
        color="#52606d",
    )
    axes.yaxis.grid(visible=True, color="#e4e7eb", zorder=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.tick_params(length=0)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return path
