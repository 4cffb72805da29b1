"""`discreet synth`: makes a synthetic copy of a table, written as Parquet or CSV, with its card (a
description of how it was made)."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import typer

from ..._errors import InvalidInput
from ...curator.policy import check_epsilon
from ...session.terms import CopyTerms, chosen
from . import forms
from .options import DATA, FORCE, JSON, LARGE_EPSILON, Opening
from .parser import Only
from .query import explaining_interruption


@dataclass(frozen=True, kw_only=True)
class TableDomainOptions:
    """What of the table is copied, as the shell writes it."""

    column: Annotated[list[str], "Only this column. Can be repeated."] = field(default_factory=list)
    bins: Annotated[list[str], "COLUMN=20, or COLUMN=0,18,65,120. Can be repeated."] = field(
        default_factory=list
    )
    constraint: Annotated[list[str], "A public fact: 'age >= education_num'. Can be repeated."] = field(
        default_factory=list
    )

    @property
    def options(self) -> dict[str, Any]:
        """Return them as options of `Session.synthesize`."""
        bins = dict(_bins(text) for text in self.bins)
        return {"columns": self.column or None, "bins": bins, "constraints": self.constraint}


def synth(
    data: str = DATA,
    out: Path = typer.Option(
        ..., "--out", "-o", help="A .parquet or .csv file for the copy.", show_default=False
    ),
    *,
    terms: Annotated[CopyTerms, Only("epsilon delta rows method rows_per_unit seed checkpoint resume")],
    domain: TableDomainOptions,
    force: bool = FORCE,
    opening: Annotated[Opening, Only("schema ledger analyst")],
    large_epsilon: bool = LARGE_EPSILON,
    as_json: bool = JSON,
) -> None:
    check_epsilon(terms.epsilon, large_epsilon=large_epsilon)
    _check_output(out, data, force)
    session = opening.session(data)
    checkpoint: Any = terms.checkpoint
    progress = _show_progress if checkpoint is not None and sys.stderr.isatty() else None
    with explaining_interruption(checkpoint):
        copy = session.synthesize(**{**chosen(terms), **domain.options, "progress": progress})
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
