"""The arguments and options that commands share, each said once."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ...session.terms import values
from .parser import Named

if TYPE_CHECKING:
    from ...session import Session

DATA = typer.Argument(
    ...,
    help="A .parquet, .csv or .tsv file (also .csv.gz, .csv.zst), or database.duckdb::table.",
    show_default=False,
)
SQL = typer.Argument(..., help="One SELECT; - reads it from standard input.", show_default=False)
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
class TableFiles:
    """The files beside a table, with which its session is opened."""

    schema: Annotated[Path | None, "The schema file. By default DATA with .schema.toml added."] = None
    ledger: Annotated[Path | None, "The ledger. By default DATA with .ledger added."] = None

    def session(self, data: str) -> Session:
        """Open the session of `data`."""
        # loaded here: commands without data need no session
        from ..requests import open_session

        return open_session(data, **values(self))


@dataclass(frozen=True, kw_only=True)
class Opening(TableFiles):
    """The files beside a table, and who asks about which of its rows."""

    # the steward (`curator.STEWARD`)
    analyst: Annotated[str, Named("Who asks.", "--as", "--analyst")] = "steward"
    periods: Annotated[
        list[str],
        Named("Only rows of this period, where budgets are per period. Can be repeated.", "--period"),
    ] = field(default_factory=list)
    seconds: Annotated[float | None, "Stop the engine after this long. What was charged stays charged."] = (
        None
    )
    engine: Annotated[str | None, ENGINE_HELP] = None


CERTIFICATE = typer.Option(None, "--certificate", help="A TLS certificate (PEM), with --key.")
KEY = typer.Option(None, "--key", help="The certificate's key (PEM).")
