"""Defines the options of `discreet train`, and checks them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from ..._errors import InvalidInput, PrivateFact
from . import outputs

TARGET = typer.Option(
    ..., "--target", help="The column to predict: categories, true or false, or a number.", show_default=False
)
EPSILON = typer.Option(1.0, "--epsilon", "-e", help="The epsilon of the model.")
DELTA = typer.Option(None, "--delta", help="The delta of the model. By default the budget's.")
METHOD = typer.Option(
    "sgd",
    "--method",
    help="sgd (DP-SGD); a linear model without torch: auto, objective, output, gradient or moments; or "
    "naive_bayes, tree or boosting.",
)
FEATURES = typer.Option(
    None, "--features", help="Columns to predict from, separated by commas. By default all that can be used."
)
N = typer.Option(None, "--n", help="The number of people, as you declare it, where the schema does not.")
BATCH = typer.Option(
    None,
    "--batch",
    help="The expected size of a batch. By default from n and --epsilon: 1024 / epsilon, at most n / 2, "
    "at least 256.",
)
EPOCHS = typer.Option(20, "--epochs", help="Passes over the data.")
CLIP = typer.Option(
    1.0, "--clip", help="The largest L2 norm of one person's gradient; longer ones are scaled down."
)
RATE = typer.Option(
    0.5, "--learning-rate", help="The learning rate of stochastic gradient descent with momentum 0.9."
)
HIDDEN = typer.Option(
    [],
    "--hidden",
    help="The size of a hidden layer; may be given more than once. Without it the model is linear.",
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
    """Return the columns that the option --features names, separated by commas; None if it is not given."""
    return None if features is None else [name.strip() for name in features.split(",")]


def refuse_sgd_options(**options: Any) -> None:
    """Refuse options that only DP-SGD has. The keywords are the options' names; a value that is true means
    that the option was given."""
    present = [f"--{name.replace('_', '-')}" for name, value in options.items() if value]
    if present:
        raise InvalidInput(
            f"{present[0]} belongs to DP-SGD, and this method fits in one step. Nothing was charged or "
            f"trained. Leave {present[0]} or --method out."
        )


def refuse_private_test_set(data: str, public: Path | None) -> None:
    """Refuse the private table, one of its files, or a folder that holds one, as the public table: the exact
    loss on it would be printed, at no charge."""
    if public is None:
        return
    # imported late: commands without data need no engine
    from ...tables.files import several

    files = several(public)
    if any(outputs.belongs_to(path, data) for path in ((public,) if files is None else files.paths)):
        raise PrivateFact(
            f"--public {str(public)!r} is the private table, or holds one of its files: the model's exact "
            f"scores on it are not private. Nothing was charged or trained. Give a table of people who need "
            f"no protection, or leave --public out."
        )


def input_files(data: str, *paths: Path | None) -> list[str | Path]:
    """Return the files that a command reads, which no output may overwrite."""
    return [data, *(path for path in paths if path is not None)]
