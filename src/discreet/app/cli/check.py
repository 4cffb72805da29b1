"""`discreet check`: shows how well a file fits its schema, for the steward's eyes only."""

from __future__ import annotations

import json
import shlex

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import tables
from ..._errors import InvalidInput
from ..._public import Boolean, Bounds, Categories, Dates, Fact, Public, Unit
from ...curator import Curator
from ...tables.files import formatted
from ...tables.fit import fit_of, not_utf8
from ...tables.schema import data_of as related_data
from ..requests import beside, data_of, fit_json, refuse_password
from .options import DATA, JSON, TableFiles


def check(data: str = DATA, *, files: TableFiles, as_json: bool = JSON) -> None:
    refuse_password(data)
    schema, ledger = files.schema, files.ledger
    schema_path, ledger_path = schema or beside(data, ".schema.toml"), ledger or beside(data, ".ledger")
    if not schema_path.exists():
        raise InvalidInput(
            f"there is no schema {str(schema_path)!r} to check against. Make it with: "
            f"discreet init {shlex.quote(data)}"
        )
    if ledger is not None and not ledger.exists():
        raise InvalidInput(f"there is no ledger {str(ledger)!r} to record the look in. Correct --ledger.")
    public = tables.load(schema_path)
    engine = tables.connect(
        formatted(data_of(data), schema_path, public),
        public,
        related=related_data(schema_path) or None,
    )
    columns, people, groups = fit_of(engine)
    undecodable = not_utf8(data_of(data))
    has_ledger = ledger_path.exists()
    # Recorded before anything is printed.
    if has_ledger:
        Curator.open(ledger_path, engine).note(
            "looked", {"what": "discreet check", "columns": [name for name, _ in public.schema]}
        )
    if as_json:
        print(json.dumps(fit_json(columns, people, groups, undecodable, noted=has_ledger)))
        return
    console = Console()
    table = Table("column", "missing", "does not convert", "outside", box=None, header_style="dim")
    for name, shares in columns.items():
        table.add_row(Text(name), *(shares[kind] for kind in ("missing", "unreadable", "outside")))
    console.print(table)
    for hint in _hints(data, public, columns, undecodable):
        console.print(Text(hint, style="yellow"), soft_wrap=True)
    for limit, share in people.items():
        console.print(Text(f"people with more than {limit}: {share}"), soft_wrap=True)
    unit = public.unit
    for name, share in groups.items():
        console.print(Text(f"people in more than {_limit(unit)} of {name}: {share}"), soft_wrap=True)
    if warning := _cut_groups(unit, groups):
        console.print(Text(warning, style="yellow"), soft_wrap=True)
    if people:
        console.print(
            Text(
                "rows are counted per person in the whole table. A query without GROUP BY cuts at `rows`; "
                "with it, at `rows` in each group, and a person counts in at most `groups` of these.",
                style="dim",
            ),
            soft_wrap=True,
        )
    noted_words = "is noted in the ledger" if has_ledger else "is noted nowhere: there is no ledger yet"
    note = (
        f"For the steward only: these shares are exact facts about the data, made coarse, not private "
        f"ones. That you looked {noted_words}."
    )
    Console(stderr=True).print(Text(note, style="yellow"), soft_wrap=True)


def _hints(
    data: str, public: Public, columns: dict[str, dict[str, str]], undecodable: str | None
) -> list[str]:
    """Return hints on frequent causes: lines in another encoding, texts that differ by a blank or a capital
    letter, and numbers, dates and words for true and false that are written in another way."""
    hints = []
    if undecodable not in (None, "none"):
        hints.append(
            f"lines that are not text in UTF-8, and are left out: {undecodable}. In Excel, save the file as "
            f'"CSV UTF-8". On Linux or macOS: iconv -f cp1252 -t utf-8 {shlex.quote(data)} > new.csv'
        )
    with_categories = [name for name, fact in public.schema if isinstance(fact, Categories)]
    if columns_outside := [name for name in with_categories if columns[name]["outside"] != "none"]:
        hints.append(
            f"outside, of {', '.join(columns_outside)}: other texts than those declared. Capital letters and "
            "blanks at either end make another text."
        )
    for kind, hint in _UNREADABLE.items():
        unreadable = [
            name
            for name, fact in public.schema
            if isinstance(fact, kind) and columns[name]["unreadable"] != "none"
        ]
        if unreadable:
            hints.append(f"does not convert, of {', '.join(unreadable)}: {hint}")
    return hints


# What to look at where values of a column do not convert, by the declared type.
_UNREADABLE: dict[type[Fact], str] = {
    Bounds: "is there a decimal comma, or a mark between thousands? Say so under [format] in the schema "
    "file. A word such as n/a belongs in missing = [...].",
    Dates: "is a date written in another way than 2025-12-31? Say so under [format] in the schema file: "
    'dates = ["%d.%m.%Y"].',
    Boolean: "true is written true, t, yes, y or 1, and false is written false, f, no, n or 0. Another word "
    "counts as missing: of J and N only N would be read, and an average would be 0. Recode the column, or "
    'declare type = "categories".',
}


def _cut_groups(unit: Unit, groups: dict[str, str]) -> str:
    """Return a warning about columns in which a person is in more groups than they are counted in; empty
    where there is none."""
    cut = [name for name, share in groups.items() if share != "none"]
    if not cut:
        return ""
    number = unit.groups or unit.rows
    return (
        f"GROUP BY over {', '.join(cut)} counts a person in {number} of their groups and leaves them out of "
        f"the others: counts come out too low. Declare more groups, at the price of more noise, or ask with "
        f"--groups (in Python groups=...)."
    )


def _limit(unit: Unit) -> str:
    """Return the limit on groups per person in words; where none is declared, the limit on rows holds."""
    number = unit.groups or unit.rows
    source = "the declared limit" if unit.groups else "the declared limit on rows, as groups has none"
    return f"{number} group{'' if number == 1 else 's'} ({source})"
