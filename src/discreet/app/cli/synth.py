"""`discreet synth`: makes a synthetic copy of a table, written as Parquet or CSV, with its card (a
description of how it was made)."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import typer

from ..._errors import InvalidInput
from ...curator.policy import check_epsilon
from .. import requests
from . import forms
from .query import ANALYST, DATA, JSON, LARGE_EPSILON, LEDGER, SCHEMA, explaining_interruption

OUT = typer.Option(..., "--out", "-o", help="A .parquet or .csv file for the copy.", show_default=False)
EPSILON = typer.Option(..., "--epsilon", "-e", help="The epsilon of the copy.", show_default=False)
DELTA = typer.Option(None, "--delta", help="The delta of the copy. By default a share of the budget's.")
ROWS = typer.Option(
    None, "--rows", help="How many rows to draw. By default a noisy count, which is paid for."
)
METHOD = typer.Option("auto", "--method", help="auto, aim, mst, mwem, privbayes or independent.")
COLUMN = typer.Option([], "--column", help="Only this column. Can be repeated.")
BINS = typer.Option([], "--bins", help="COLUMN=20, or COLUMN=0,18,65,120. Can be repeated.")
PER_UNIT = typer.Option(None, "--rows-per-unit", help="How many rows of one person count.")
CONSTRAINT = typer.Option([], "--constraint", help="A public fact: 'age >= education_num'. Can be repeated.")
SEED = typer.Option(None, "--seed", help="The seed of the rows that are drawn; not of the noise.")
CHECKPOINT = typer.Option(None, "--checkpoint", help="Save the run here after each step.")
RESUME = typer.Option(False, "--resume", help="Go on from the checkpoint, with the same options. Free.")


def synth(
    data: str = DATA,
    out: Path = OUT,
    epsilon: float = EPSILON,
    delta: float = DELTA,
    rows: int = ROWS,
    method: str = METHOD,
    column: list[str] = COLUMN,
    bins: list[str] = BINS,
    rows_per_unit: int = PER_UNIT,
    constraint: list[str] = CONSTRAINT,
    seed: int = SEED,
    checkpoint: Path = CHECKPOINT,
    resume: bool = RESUME,
    force: bool = forms.FORCE,
    schema: Path = SCHEMA,
    ledger: Path = LEDGER,
    analyst: str = ANALYST,
    large_epsilon: bool = LARGE_EPSILON,
    as_json: bool = JSON,
) -> None:
    """Make a synthetic copy of a table. Charged before any data is read; rows, SQL and reports on it are
    free."""
    check_epsilon(epsilon, large_epsilon=large_epsilon)
    _check_output(out, data, force)
    session = requests.open_session(data, schema=schema, ledger=ledger, analyst=analyst)
    edges = dict(_bins(text) for text in bins)
    with explaining_interruption(checkpoint):
        copy = session.synthesize(
            rows,
            epsilon=epsilon,
            delta=delta,
            method=method,
            columns=column or None,
            bins=edges,
            rows_per_unit=rows_per_unit,
            constraints=constraint,
            seed=seed,
            checkpoint=checkpoint,
            resume=resume,
            progress=_show_progress if checkpoint is not None and sys.stderr.isatty() else None,
        )
    if out.suffix == ".csv":
        copy.to_csv(out, overwrite=force)
    else:
        copy.to_parquet(out, overwrite=force)
    if as_json:
        print(json.dumps(copy.card()))
        return
    print(f"{copy!r}: {out}")
    print(copy.report())


def _check_output(out: Path, data: str, force: bool) -> None:
    """Refuse, before the charge, a path that the copy cannot be written to."""
    if out.suffix not in (".parquet", ".csv"):
        raise InvalidInput(f"the copy is written as .parquet or .csv, got {out.name!r}.")
    from ...synthetic.copy import is_copy

    # `forms.check` never overwrites a Parquet file, as it may be data. One with the card of a synthetic
    # copy is not data, and may be overwritten with --force.
    if is_copy(out) and not forms.same(out, Path(data)):
        if not force:
            raise InvalidInput(f"{out} exists already. Give another name, or --force.")
        return
    forms.check(out, force=force, data=[data])
    if out.suffix == ".csv":
        forms.check(out.with_suffix(".card.json"), force=force, data=[data])


def _show_progress(facts: Any) -> None:
    """Print the progress of a run on one line of the terminal."""
    print(f"\rstep {facts['step']} of at most {facts['steps']}", end="", file=sys.stderr, flush=True)


def _bins(text: str) -> tuple[str, Any]:
    """Return the column and the number of bins of COLUMN=20, or the column and the edges of
    COLUMN=0,18,65."""
    name, _, value = text.rpartition("=")
    parts = [part.strip() for part in value.split(",")]
    if not name or not all(parts):
        raise InvalidInput(f"--bins needs COLUMN=20 or COLUMN=0,18,65, got {text!r}.")
    edges = [_edge(part) for part in parts]
    return name, edges[0] if len(edges) == 1 else edges


def _edge(text: str) -> Any:
    """Return an edge as an integer or a float; a text, such as a date, as it is."""
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
