"""The arguments and options that commands share, each said once."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import typer

from ... import session as sessions
from ...curator import STEWARD
from .. import requests
from .parser import named

DATA = typer.Argument(
    ...,
    help="A .parquet, .csv or .tsv file (also .csv.gz, .csv.zst), or database.duckdb::table.",
    show_default=False,
)
SQL = typer.Argument(..., help="One SELECT; - reads it from standard input.", show_default=False)
SCHEMA = typer.Option(None, "--schema", help="The schema file. By default DATA with .schema.toml added.")
LEDGER = typer.Option(None, "--ledger", help="The ledger. By default DATA with .ledger added.")
CONFIDENCE = typer.Option(0.95, "--confidence", help="The probability with which errors hold.")
ENGINE_HELP = "spark: have Spark read a Parquet file, a folder or a pattern of these."
ENGINE = typer.Option(None, "--engine", help=ENGINE_HELP)
LARGE_EPSILON = typer.Option(
    False, "--large-epsilon", help="Insist on an epsilon or rho above 20, which protects next to nothing."
)
LARGE_DELTA = typer.Option(
    False, "--large-delta", help="Insist on a delta above 1e-3 where no size is declared."
)
FORCE = typer.Option(
    False, "--force", help="Overwrite an output that exists. A ledger, a key or data never is."
)
JSON = typer.Option(False, "--json", help="Machine-readable output.")


@dataclass(frozen=True, kw_only=True)
class Files:
    """The files beside a table, with which its session is opened."""

    schema: Path | None = field(
        default=None, metadata=named("The schema file. By default DATA with .schema.toml added.")
    )
    ledger: Path | None = field(
        default=None, metadata=named("The ledger. By default DATA with .ledger added.")
    )

    def session(self, data: str) -> sessions.Session:
        """Open the session of `data`."""
        return requests.open_session(data, **{name: getattr(self, name) for name in _names(self)})


@dataclass(frozen=True, kw_only=True)
class Opening(Files):
    """The files beside a table, and who asks about which of its rows."""

    analyst: str = field(default=STEWARD, metadata=named("Who asks.", "--as", "--analyst"))
    periods: list[str] = field(
        default_factory=list,
        metadata=named(
            "Only rows of this period, where budgets are per period. Can be repeated.", "--period"
        ),
    )
    seconds: float | None = field(
        default=None,
        metadata=named("Stop the engine after this long. What was charged stays charged."),
    )
    engine: str | None = field(default=None, metadata=named(ENGINE_HELP))


def _names(options: Any) -> list[str]:
    return [option.name for option in fields(options)]
