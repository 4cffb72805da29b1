"""The options of `discreet train`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from ..._errors import InvalidInput

TARGET = typer.Option(
    ..., "--target", help="The column to predict: categories, true or false, or a number.", show_default=False
)
EPSILON = typer.Option(1.0, "--epsilon", "-e", help="Of the model.")
DELTA = typer.Option(None, "--delta", help="By default the budget's.")
METHOD = typer.Option(
    "sgd",
    "--method",
    help="sgd (DP-SGD), a linear model without torch: auto, objective, output, gradient, moments; or "
    "naive_bayes, tree, boosting.",
)
FEATURES = typer.Option(
    None, "--features", help="Columns to predict from, by commas. By default all that can be."
)
N = typer.Option(None, "--n", help="The number of people, as you declare it, where the schema does not.")
BATCH = typer.Option(
    None,
    "--batch",
    help="The expected size of a batch. By default from n and --epsilon: 1024 / epsilon, at most n / 2, "
    "at least 256.",
)
EPOCHS = typer.Option(20, "--epochs", help="Passes over the data.")
CLIP = typer.Option(1.0, "--clip", help="What one person's gradient is scaled down to.")
RATE = typer.Option(0.5, "--learning-rate", help="Of stochastic gradient descent with momentum.")
HIDDEN = typer.Option(
    [], "--hidden", help="The size of a hidden layer; may be given more than once. Linear without."
)
OUT = typer.Option(None, "--out", help="The model file. By default DATA with .TARGET.model added.")
PAGE = typer.Option(None, "--page", help="Also write a results page (HTML).")
PUBLIC = typer.Option(
    None, "--public", help="A PUBLIC table, of people who need no protection here, to measure the model on."
)
CHECKPOINT = typer.Option(None, "--checkpoint", help="Save the run here after --every steps.")
EVERY = typer.Option(100, "--every", help="Steps between two checkpoints.")
RESUME = typer.Option(False, "--resume", help="Go on from --checkpoint, with the settings of the run. Free.")


def names_of(features: str | None) -> list[str] | None:
    """Return the columns that an option names, by commas; None where it is not given."""
    return None if features is None else [name.strip() for name in features.split(",")]


def refuse_sgd_options(**options: Any) -> None:
    """Refuse options that only DP-SGD has."""
    present = [f"--{name}" for name, value in options.items() if value]
    if present:
        raise InvalidInput(
            f"{present[0]} belongs to DP-SGD, and this method fits in one step. Nothing was charged or "
            f"trained. Leave {present[0]} or --method out."
        )


def input_files(data: str, *paths: Path | None) -> list[str | Path]:
    """Return the files that a command reads, which no output may overwrite."""
    return [data, *(path for path in paths if path is not None)]
