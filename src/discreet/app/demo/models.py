"""Attacks trained models: membership inference, attribute inference and model inversion; and membership
inference against a private model."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from ... import auditing
from ..._errors import MissingExtra
from ...explaining.words import number
from .stage import ACCENT, INK, PALE, Stage

TITLE = "What a model remembers: attacks on trained models"

# Examples; shadow models without and with privacy; the privacy of the latter; classes of digits.
PEOPLE, MODELS, PRIVATE_MODELS, EPSILON, DELTA, CLASSES = 400, 24, 8, 2.0, 1e-5, 10
# the color of what an attack finds
ALARM = "#c0392b"


def run(stage: Stage) -> None:
    """Show membership inference (by loss, and by LiRA without and with privacy), attribute inference and
    model inversion."""
    x, y = _digits()
    stage.say(
        f"{PEOPLE} handwritten digits, each taken as one person's; for a fifth the label was drawn at "
        f"random, as some labels of real data are wrong. A network that fits them all has to memorize "
        f"these. Was somebody in its training data? An attacker trains {MODELS} similar networks, with and "
        f"without each person, and compares ([bold]LiRA[/], Carlini et al. 2022):\n"
    )
    shadows = auditing.train_shadows(lambda members: _overfit(x, y, members), PEOPLE, models=MODELS, seed=1)
    private = auditing.train_shadows(
        lambda members: _private(x, y, members), PEOPLE, models=PRIVATE_MODELS, seed=2
    )
    # [models, examples]: the margin of each example, and whether the model was trained on it
    margins, is_member = shadows.scores[:, :, 0], shadows.included
    curves = {
        "one threshold on the loss": auditing.Roc.of(margins[is_member], margins[~is_member]),
        "LiRA": auditing.lira_roc(shadows, fixed_variance=True),
        f"LiRA, trained with epsilon {EPSILON:g}": auditing.lira_roc(private, fixed_variance=True),
    }
    _membership(stage, curves)
    _attribute(stage, x, y)
    person, inverted = _inversion(x, y)
    stage.say(
        f"And where a class has a single person in it, the picture that the model finds most typical of that "
        f"class can be computed ([bold]inversion[/], Fredrikson et al. 2015): its correlation with the "
        f"person's own picture is {np.corrcoef(person, inverted)[0, 1]:.2f}.\n"
    )
    _picture(stage, curves, person, inverted)


def _digits() -> tuple[Any, Any]:
    """Return pictures with values in [0, 1] and their labels, of which a fifth is drawn anew at random."""
    try:
        from sklearn.datasets import load_digits
    except ImportError:
        raise MissingExtra(
            "this chapter needs scikit-learn. Install it with: pip install 'discreet[learn]'"
        ) from None
    x, y = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    chosen = rng.permutation(len(x))[:PEOPLE]
    x, y = x[chosen] / 16, y[chosen].copy()
    redrawn = rng.random(PEOPLE) < 0.2
    y[redrawn] = rng.integers(0, CLASSES, redrawn.sum())
    return x, y


def _network(x: Any, y: Any) -> Any:
    """Return a network fitted to its training data almost without regularization, so that it overfits."""
    from sklearn.neural_network import MLPClassifier

    with warnings.catch_warnings():
        # The warning that 60 iterations did not converge does not matter here.
        warnings.simplefilter("ignore")
        return MLPClassifier((64,), solver="lbfgs", alpha=1e-6, max_iter=60, random_state=0).fit(x, y)


def _logs(model: Any, x: Any) -> Any:
    """Return the log-probabilities of all classes, at least -50; for a class without training data it is
    -50."""
    logs = np.full((len(x), CLASSES), -50.0)
    logs[:, model.classes_] = np.maximum(model.predict_log_proba(x), -50.0)
    return logs


def _overfit(x: Any, y: Any, members: Any) -> Callable[[], Any]:
    """Train on the members; return a function that returns the margins of the true labels for all people."""
    model = _network(x[members], y[members])
    return lambda: auditing.margins(_logs(model, x), y)


def _private(x: Any, y: Any, members: Any) -> Callable[[], Any]:
    """Do the same as `_overfit` with a private classifier."""
    from ... import learning

    model = learning.DPClassifier(
        epsilon=EPSILON,
        delta=DELTA,
        classes=list(range(CLASSES)),
        n=PEOPLE // 2,
        lower=0,
        upper=1,
        batch=50,
        epochs=10,
    ).fit(x[members], y[members])
    return lambda: auditing.margins(np.log(model.predict_proba(x) + 1e-12), y)


def _membership(stage: Stage, curves: dict[str, auditing.Roc]) -> None:
    """Print how well each attack finds members, and the bound that differential privacy gives."""
    rows = []
    for name, roc in curves.items():
        low, high = roc.at(0.01).tpr
        rows.append([name, f"{roc.auc:.2f}", f"{roc.tpr_at(0.01):.1%}", f"{low:.1%} to {high:.1%}"])
    stage.table(
        ["attack", "area under the curve", "members found at 1% false alarms", "its 95% limits*"],
        rows,
    )
    bound = number(100 * (float(np.exp(EPSILON)) * 0.01 + DELTA))
    stage.say(
        f"\n* The threshold is set on one random half of the scores, and measured on the other.\n"
        f"Epsilon {EPSILON:g} (delta {DELTA:g}) promises that no attack finds more than {bound}% of the "
        f"members at 1% false alarms.\n"
    )


def _attribute(stage: Stage, x: Any, y: Any) -> None:
    """Add a random bit to every record, train on half of the people, and infer the bit from the losses."""
    coin = np.random.default_rng(1).integers(0, 2, PEOPLE)
    is_member = np.arange(PEOPLE) < PEOPLE // 2
    # the bit enters as 0 or 4, which is more than any pixel (at most 1)
    model = _network(np.hstack([x, 4.0 * coin[:, None]])[is_member], y[is_member])

    def losses(value: int) -> Any:
        """Return everybody's loss if their bit were `value`."""
        return -_logs(model, np.hstack([x, np.full((PEOPLE, 1), 4.0 * value)]))[np.arange(PEOPLE), y]

    attack = auditing.attribute_inference(np.stack([losses(0), losses(1)], axis=1), coin, is_member)
    stage.say(
        f"A random yes or no, which says nothing about the digit, is added to every record. An attacker who "
        f"knows the rest of a record tries both values and takes the one with the smaller loss of the "
        f"network ([bold]attribute inference[/], Yeom et al. 2018). That is right for "
        f"{attack.right / attack.members:.0%} of the people it was trained on, and for "
        f"{attack.right_of_others / attack.others:.0%} of others; guessing is right for 50%.\n"
    )


def _inversion(x: Any, y: Any) -> tuple[Any, Any]:
    """Train a model in which class 3 has a single person. Return that person's picture, and the picture with
    the highest probability of class 3 under the model, found by gradient descent."""
    from sklearn.linear_model import LogisticRegression

    person, others = x[y == 3][0], y != 3
    model = LogisticRegression(max_iter=300).fit(np.vstack([x[others], person]), np.append(y[others], 3))
    index = list(model.classes_).index(3)

    def objective(picture: Any) -> tuple[float, Any]:
        """Return the loss of the class, and its gradient by the picture."""
        probabilities = model.predict_proba(picture[None])[0]
        return -float(np.log(probabilities[index])), -(model.coef_[index] - probabilities @ model.coef_)

    return person, auditing.invert(objective, np.full(64, 0.5), steps=200)


def _picture(stage: Stage, curves: dict[str, auditing.Roc], person: Any, inverted: Any) -> None:
    """Save a picture with the ROC curves of the attacks, the bound, and the inverted class."""
    try:
        import matplotlib
    except ImportError:
        stage.aside("no picture: matplotlib is missing. Install it with: pip install 'discreet[plots]'")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure = pyplot.figure(figsize=(10, 4.8), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(2, 1))
    axis = left.subplots()
    for (name, roc), color in zip(curves.items(), (PALE, ALARM, ACCENT), strict=True):
        fpr, tpr = roc.curve()
        axis.plot(fpr, tpr, color=color, lw=2, label=name)
        # no band for the losses: many are equal, so that the curve has few points
        if color != PALE:
            _, low, high = roc.band(0.95)
            axis.fill_between(fpr, low, high, color=color, alpha=0.2, lw=0)
    grid = np.geomspace(1e-3, 1, 200)
    axis.plot(
        grid,
        np.minimum(1, np.exp(EPSILON) * grid + DELTA),
        color=INK,
        lw=1,
        ls=":",
        label=f"the most that epsilon {EPSILON:g} allows",
    )
    axis.plot(grid, grid, color=INK, lw=0.6, label="guessing")
    axis.set(
        xscale="log",
        yscale="log",
        xlim=(1e-3, 1),
        ylim=(1e-3, 1),
        xlabel="false-positive rate",
        ylabel="true-positive rate",
    )
    axis.legend(frameon=False, fontsize=9, loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)
    left.suptitle("Who was in the training data?", color=INK, weight="bold")
    for part, picture, title in zip(
        right.subplots(2, 1),
        (person, inverted),
        ("the only person of a class", "most typical for the model"),
        strict=True,
    ):
        part.imshow(np.asarray(picture).reshape(8, 8), cmap="gray_r", vmin=0, vmax=1)
        part.set_title(title, fontsize=10, color=INK)
        part.set_axis_off()
    stage.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(stage.out / "models.png", dpi=150)
    pyplot.close(figure)
    stage.saved(stage.out / "models.png")
