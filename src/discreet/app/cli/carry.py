"""`discreet ledger carry`: takes the charges of an old ledger over to a new one, per analyst."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from ..._round import LowerAmount, UpperAmount
from ...curator import Ledger
from ...curator.carrying import carry as carry_charges
from ...curator.closed import without_data
from ...curator.entries import Anchor
from ...curator.exports import Export, is_export
from .ledger import JSON, LEDGER, _key, ledger

OLD = typer.Argument(..., help="The old ledger, or its export (discreet ledger export).", show_default=False)
ANCHOR = typer.Option(None, "--anchor", help="The head of the old chain, as it was kept elsewhere.")
KEY = typer.Option(None, "--key", help="The public key of the old ledger that you trust, in hex.")


@ledger.command()
def carry(
    old: Path = OLD, path: Path = LEDGER, anchor: str = ANCHOR, key: str = KEY, as_json: bool = JSON
) -> None:
    """Enter all charges of an old ledger, whose key is lost, in a new one: per analyst, with their deltas.

    [dim]discreet ledger carry old.jsonl people.csv[/]
    """
    curator = without_data(path)
    old_ledger: Any = Export(old) if is_export(old) else Ledger(old)
    known_anchor = None if anchor is None else Anchor.parse(anchor)
    number = carry_charges(curator, old_ledger, anchor=known_anchor, key=None if key is None else _key(key))
    if as_json:
        print(json.dumps({"carried": number, "used": curator.used, "left": curator.remaining}))
        return
    unseen: list[str] = [] if anchor is not None else ["whether later charges are missing (--anchor)"]
    unseen += [] if key is not None else ["who signed it (--key)"]
    shown = f" Not checked: {' and '.join(unseen)}." if unseen else ""
    Console().print(
        f"carried over {number:,} charges; used so far: {UpperAmount(curator.used):.4g}, left: "
        f"{LowerAmount(curator.remaining):.4g}. Chain, signatures and totals of {old.name} verify.{shown}",
        highlight=False,
        markup=False,
    )
