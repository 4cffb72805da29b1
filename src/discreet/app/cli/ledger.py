"""`discreet ledger` and `discreet budget`: show what was asked and what it cost, check that the ledger is
intact, and back it up.

They read the ledger only, never the data.

`discreet ledger carry`: takes the charges of an old ledger over to a new one, per analyst.
"""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import typer
from rich.console import Console
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from ... import accounting as acc
from ..._errors import InvalidInput, LedgerError, Unsupported
from ..._public import Neighbors
from ..._round import LowerAmount, UpperAmount
from ..._text import visible
from ...accounting import events
from ...curator import Curator, Ledger, books, receipts
from ...curator.accounts import Account
from ...curator.backups import Export, back_up, exported, is_export
from ...curator.backups import carry as carry_charges
from ...curator.closed_ledger import without_data
from ...curator.entries import Anchor
from ...tables.engines.postgres_tables import is_address
from ...tables.engines.spark_files import is_several
from ..ledger_view import own_entries, price, what, without_totals
from ..requests import beside, refuse_password
from . import forms
from .forms import described, number
from .options import FORCE, JSON
from .parser import Shell
from .query import print_note

ledger = Shell(no_args_is_help=True)


def _ledger_of(path: Path) -> Path:
    """Return the path of a ledger from that path itself, or from the data file that the ledger lies
    beside."""
    refuse_password(str(path))
    # As a Path, the address of a database has lost one slash; its ledger is in the current folder.
    address = re.sub(r"^(postgres(?:ql)?):/+", r"\1://", str(path))
    if is_address(address):
        return beside(address, ".ledger")
    name, _, table = str(path).partition("::")
    several = is_several(name)
    ledger_path = (
        beside(name, ".ledger") if several else Path(f"{name}.{table}.ledger" if table else f"{name}.ledger")
    )
    if ledger_path.is_file():
        return ledger_path
    # The endings of data files: the ledger should lie beside the file, and does not.
    if Path(name).suffix in (".parquet", ".csv", ".tsv", ".gz", ".zst", ".duckdb", ".db", ".ddb"):
        if not several and not Path(name).exists():
            raise InvalidInput(f"there is no file {name!r}, and no ledger {str(ledger_path)!r}.")
        raise InvalidInput(
            f"there is no ledger beside {str(path)!r} yet. Make it with: discreet init "
            f"{shlex.quote(str(path))} --epsilon 1"
        )
    return path


LEDGER = typer.Argument(
    ..., help="The ledger file, or the data file it lies beside.", show_default=False, callback=_ledger_of
)


@ledger.command()
def show(
    path: Path = LEDGER,
    last: int = typer.Option(20, "--last", min=1, help="How many entries."),
    analyst: str = typer.Option(None, "--as", "--analyst", help="Only what this analyst has asked."),
    as_json: bool = JSON,
) -> None:
    """Show who asked what, when, at which price."""
    opened_ledger = Ledger(path)
    entries = list(opened_ledger.entries() if analyst is None else own_entries(opened_ledger, analyst))[
        -last:
    ]
    if as_json:
        # Totals of all analysts are left out for an analyst with a budget of their own; any other analyst is
        # limited by the dataset's budget, and so may know them.
        with_totals = analyst is None or books.policy_of(opened_ledger).of(analyst) is None
        print(
            json.dumps(
                [entry.to_json() if with_totals else without_totals(entry) for entry in entries], indent=2
            )
        )
        return
    table = Table(box=None, pad_edge=False, header_style="dim")
    for name in ("entry", "when (UTC)", "who", "what", "price"):
        table.add_column(name, justify="right" if name == "entry" else "left", overflow="fold")
    # Prices without a finite pure epsilon are shown at the delta of the budget.
    delta = books.policy_of(opened_ledger).budget.delta
    for entry in entries:
        body, timestamp = entry.body, entry.time[:19].replace("T", " ")
        cells = (str(entry.seq), timestamp, body.get("analyst", ""), what(entry), price(body, delta))
        table.add_row(*map(_plain_text, cells))
    Console().print(table)


@ledger.command()
def verify(
    path: Path = LEDGER,
    anchor: str = typer.Option(
        None,
        "--anchor",
        help="The head of the chain, stored elsewhere before, as `discreet ledger anchor` printed it.",
    ),
    key: str = typer.Option(
        None, "--key", help="The public key that you trust, in hex; by default the ledger's own."
    ),
    as_json: bool = JSON,
) -> None:
    """Check every hash, every signature, every total and every file of the vault, of a ledger; or of its
    export, which comes without the vault.

    Exit code 1 if anything is wrong.
    """
    opened_ledger: Any = Export(path) if is_export(path) else Ledger(path)
    # An empty text is refused, not left out: `--anchor "$(cat anchor.txt)"` of a lost file would pass.
    known_anchor = None if anchor is None else Anchor.parse(anchor)
    problems = books.verify(opened_ledger, known_anchor, key=None if key is None else _key(key))
    head = _head(opened_ledger)
    if as_json:
        print(json.dumps({"whole": not problems, "problems": problems, "anchor": head}))
    elif problems:
        _print_problems(problems)
    else:
        comparison = (
            "and against the anchor"
            if known_anchor is not None
            else "but a rollback can only be seen against an anchor: keep one elsewhere "
            "(discreet ledger anchor)"
        )
        Console().print(
            f"[bold green]✓[/] {opened_ledger.anchor.seq} entries, all intact, {comparison}.", highlight=False
        )
    raise typer.Exit(1 if problems else 0)


def _print_problems(problems: list[str]) -> None:
    for line in problems:
        Console(stderr=True).print(Text.assemble(("✗ ", "bold red"), visible(line)), soft_wrap=True)


@ledger.command()
def backup(
    path: Path = LEDGER,
    target: Path = typer.Argument(
        ..., help="The new file; the vault and the key are written beside it.", show_default=False
    ),
    as_json: bool = JSON,
) -> None:
    """Copy a ledger, its vault and its key to new files that only their owner can read, also while others
    ask. Prints the anchor of the copy.

    Nothing is overwritten. Exit code 1 if the copy is not intact.
    """
    has_key = back_up(Ledger(path), target)
    problems = books.verify(Ledger(target))
    head = _head(Ledger(target))
    if as_json:
        print(json.dumps({"whole": not problems, "problems": problems, "anchor": head, "key": has_key}))
        raise typer.Exit(1 if problems else 0)
    _print_problems(problems)
    key_notice = (
        "Its key was copied too: keep it from analysts, and apart from the rest of the copy."
        if has_key
        else "Its key is not beside it and was not copied: back it up where it lies. Without it nothing can "
        "be asked."
    )
    Console(stderr=True).print(_plain_text(key_notice), soft_wrap=True)
    print(head)
    raise typer.Exit(1 if problems else 0)


def _head(opened_ledger: Ledger) -> str | None:
    """Return the head of the chain (the number and the hash of its last entry); None where the file cannot be
    read."""
    try:
        return str(opened_ledger.anchor)
    except LedgerError:
        return None


def _key(text: str) -> bytes:
    """Return the public key that a text writes in hex."""
    try:
        key = bytes.fromhex(text)
    except ValueError:
        # one byte, which the next line refuses
        key = b"?"
    if len(key) != 32:
        raise InvalidInput(
            f"a public key is 64 hexadecimal digits, as the first entry of a ledger has it; got {text!r}."
        )
    return key


@ledger.command()
def export(
    path: Path = LEDGER,
    out: Path = typer.Option(Path("-"), "--out", help="A file; - is standard output."),
    force: bool = FORCE,
) -> None:
    """Write all entries as JSON lines, which `discreet ledger verify` can check without the ledger. The
    secret state of live mechanisms is left out."""
    forms.check(out, force=force, data=[path])
    lines = "\n".join(exported(Ledger(path)))
    if str(out) == "-":
        print(lines)
    else:
        forms.write(out, lines + "\n", force=force)


@ledger.command()
def receipt(
    path: Path = LEDGER,
    number: int = typer.Argument(
        ..., help="The entry of a release or of its charge, as `show` numbers them.", show_default=False
    ),
    out: Path = typer.Option(Path("receipt.json"), "--out", help="A file; - is standard output."),
    force: bool = FORCE,
) -> None:
    """Write the receipt of one released number, to hand on with it: `discreet verify-number` checks it
    without the ledger. Needs the key file of the ledger, not the data."""
    forms.check(out, force=force, data=[path])
    made = receipts.receipt(without_data(path).ledger, number)
    if str(out) == "-":
        print(json.dumps(made))
    else:
        forms.write(out, json.dumps(made, indent=1) + "\n", force=force)


def verify_number(
    path: Path = typer.Argument(..., help="A receipt, as `discreet ledger receipt` wrote it."),
    key: str = typer.Option(None, "--key", help="The public key that you trust, in hex."),
    as_json: bool = JSON,
) -> None:
    made = receipts.load(path)
    problems = receipts.verify(made, None if key is None else _key(key))
    facts = {name: made[name] for name in ("number", "entries", "root", "key")}
    if as_json:
        print(json.dumps({"whole": not problems, "problems": problems, **({} if problems else facts)}))
    elif problems:
        _print_problems([f"not to be relied on: {problem}." for problem in problems])
    else:
        print(visible(receipts.text(made), keep="\n"))
        whose = "Anybody can make a key: compare it with the steward's, or give that with --key."
        print_note(
            f"✓ entry {made['release']['shows']['entry']} of {made['entries']:,}, signed by the key "
            f"{made['key']}, {'which you trust.' if key else 'which it names. ' + whose}"
        )
    raise typer.Exit(1 if problems else 0)


@ledger.command()
def anchor(path: Path = LEDGER, as_json: bool = JSON) -> None:
    """Print the head of the chain. Keep it where the ledger is not: then a rollback is noticed."""
    head = str(Ledger(path).anchor)
    print(json.dumps({"anchor": head}) if as_json else head)


@ledger.command()
def enter(
    path: Path = LEDGER,
    note: str = typer.Option(..., "--note", help="What was released, where and when.", show_default=False),
    epsilon: str = typer.Option(None, "--epsilon", "-e", help="Its price, as pure or approximate privacy."),
    delta: str = typer.Option(None, "--delta", help="The delta of that price."),
    rho: str = typer.Option(None, "--rho", help="Its price, as zero-concentrated privacy."),
    event: str = typer.Option(
        None, "--event", help="Its price as a JSON event in a file; - is standard input."
    ),
    period: list[str] = typer.Option(
        [], "--period", help="The period it was about, where budgets are per period."
    ),
    as_json: bool = JSON,
) -> None:
    """Enter a release that was made elsewhere, so that it counts. Needs the key file of the ledger, not the
    data."""
    curator: Curator = without_data(path)
    entered_event = _entered_price(epsilon, delta, rho, event, books.public_of(curator.ledger).neighbors)
    if period:
        curator = curator.during(*period)
    charge = curator.enter(entered_event, note)
    if as_json:
        print(json.dumps(charge.to_json()))
    else:
        Console().print(
            f"entered as {charge.seq}; used so far: {UpperAmount(curator.used):.4g}, "
            f"left: {LowerAmount(curator.remaining):.4g}",
            highlight=False,
        )


def _entered_price(
    epsilon: str | None, delta: str | None, rho: str | None, file: str | None, neighbors: Neighbors
) -> events.Event:
    """Return the price of a release that was made elsewhere, as one event. An amount is taken under the
    relation `neighbors`; an event in a file says its own."""
    if sum(option is not None for option in (epsilon, rho, file)) != 1 or (
        delta is not None and epsilon is None
    ):
        raise InvalidInput(
            "give the price once: --epsilon (and --delta), or --rho, or --event. Nothing was entered."
        )
    if file is not None:
        return described(file)
    if rho is not None:
        return acc.ZCDP(rho=number(rho, "--rho"), neighbors=neighbors)
    if delta is None:
        return acc.PureDP(epsilon=number(epsilon, "--epsilon"), neighbors=neighbors)
    return acc.ApproximateDP(
        epsilon=number(epsilon, "--epsilon"),
        delta=float(number(delta, "--delta")),
        neighbors=neighbors,
    )


def budget(
    path: Path = LEDGER,
    epsilon: float = typer.Option(
        None, "--epsilon", "-e", help="Also show how many more queries of this price each budget would buy."
    ),
    analyst: str = typer.Option(None, "--as", "--analyst", help="Only what this analyst has and has spent."),
    as_json: bool = JSON,
) -> None:
    opened_ledger = Ledger(path)
    owners = books.owners(opened_ledger)
    if analyst is not None:
        # An analyst without a budget of their own is limited by the dataset's, whose owner is None.
        analyst_budget = books.policy_of(opened_ledger).of(analyst)
        owners = [
            accounts for accounts in owners if accounts.owner == (None if analyst_budget is None else analyst)
        ]
    rows = [row for accounts in owners for row in _rows(accounts, epsilon)]
    shows_all = analyst is None
    askers = books.spent_for(opened_ledger) if shows_all else {}
    total = _odometer(opened_ledger) if shows_all else None
    # The first row also has facts about the whole ledger; they are empty where only one analyst is shown.
    rows[0]["asked"] = {name: {"times": times, "alone": cost} for name, (times, cost) in askers.items()}
    rows[0]["odometer"] = None if total is None else total._asdict()
    if as_json:
        print(json.dumps(rows, indent=2))
        return
    titles = [
        "budget of",
        "used",
        "of",
        "",
        "left",
        "delta",
        *([] if epsilon is None else [f"buys at {epsilon:g}"]),
    ]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")
    for title in titles:
        table.add_column(title, justify="left" if title in ("budget of", "", "delta") else "right")
    for row in rows:
        bar = ProgressBar(total=row["limit"], completed=row["used"], width=24)
        cells: list[Any] = [
            _plain_text(row["of"]),
            f"{row['used']:.4g}",
            f"{row['unit']} {row['limit']:.4g}",
            bar,
            f"{row['left']:.4g}",
        ]
        buys = [] if epsilon is None else ["any number" if row["buys"] is None else f"{row['buys']:,}"]
        table.add_row(*cells, f"{row['delta']:g}", *buys)
    Console().print(table)
    for name, (times, cost) in askers.items():
        summary = (
            f"charged for {name}: {times:,} time{'' if times == 1 else 's'}, alone worth "
            f"{rows[0]['unit']} {UpperAmount(cost):.4g}"
        )
        Console().print(_plain_text(summary), style="dim")
    if total is not None:
        line = (
            f"odometer: all charges together cost at most epsilon {UpperAmount(total.epsilon):.4g} (delta "
            f"{total.delta:g}), whenever you look"
        )
        Console().print(_plain_text(line), style="dim")


def _odometer(opened_ledger: Ledger) -> Any:
    """Return a bound on the cost of all charges so far (`books.odometer`); None where it has no theorem for
    one of the events."""
    try:
        return books.odometer(opened_ledger)
    except Unsupported:
        return None


def _rows(accounts: Any, epsilon: float | None) -> list[dict[str, Any]]:
    """Return one row per account of an owner, with how many queries of `epsilon` it would buy, if one is
    given."""
    if epsilon is None:
        return [_row(account, None) for account in accounts.all()]
    event = events.PureDP(epsilon=epsilon, neighbors=accounts.public.neighbors)
    return [_row(account, account_event) for account, account_event in accounts.priced(event)]


def _row(account: Account, event: events.Event | None) -> dict[str, Any]:
    """Return an account as a row of the table of budgets; with an `event`, also how often it can be paid:
    "buys" is that number, or None if there is no limit to it."""
    # the privacy filter of the account's budget
    rule = account.rule
    row = {
        "of": account.of,
        "unit": rule.unit,
        "used": UpperAmount(account.used),
        "limit": float(rule.total),
        "left": LowerAmount(account.left),
    }
    # A filter for pure privacy has no delta.
    row["delta"] = float(getattr(rule, "delta", 0.0))
    if event is not None:
        row["buys"] = rule.preview(account.spent, event).fits
    return row


def _plain_text(text: str) -> Text:
    """Return a text of another author as plain text for rich: brackets are not markup, and control characters
    are written out."""
    return Text(visible(" ".join(text.split("\n"))))


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
