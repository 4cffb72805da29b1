"""`discreet check`: shows how well a file fits its schema, for the steward's eyes only."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from ... import tables
from ..._errors import InvalidInput
from ..._public import Boolean, Bounds, Categories, Dates, Fact, Public, Unit
from ...tables.schema import data_of as related_data
from ..requests import beside, data_of, fit_facts, refuse_password
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
    show_fit(data, schema_path, ledger_path, as_json=as_json)


def show_fit(data: str, schema: Path, ledger: Path, *, as_json: bool = False) -> None:
    """Print how well the data fit the schema file; where there is a ledger, an entry says so."""
    public = tables.load(schema)
    others = related_data(schema)
    facts = fit_facts(data_of(data), schema, ledger, others)
    if as_json:
        print(json.dumps(facts))
        return
    columns, groups, people = facts["columns"], facts["groups"], facts["people"]
    console = Console()
    table = Table("column", "missing", "does not convert", "outside", box=None, header_style="dim")
    for name, shares in columns.items():
        table.add_row(Text(name), *(shares[kind] for kind in ("missing", "unreadable", "outside")))
    console.print(table)
    related = facts.get("related", {"lines": {}, "not_utf8": {}})
    lines = {public.table: facts["lines"], **related["lines"]}
    undecodable = related["not_utf8"] | ({public.table: facts["not_utf8"]} if "not_utf8" in facts else {})
    paths = {public.table: data, **{name: str(of) for name, of in others.items()}}
    for hint in [*_line_hints(paths, undecodable, lines), *_hints(public, columns, facts["ids"])]:
        console.print(Text(hint, style="yellow"), soft_wrap=True)
    for fact in _facts(public, columns, people, groups, facts["ids"]):
        console.print(Text(fact), soft_wrap=True)
    if warning := _cut_groups(public.unit, groups):
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
    noted_words = "is noted in the ledger" if facts["noted"] else "is noted nowhere: there is no ledger yet"
    note = (
        f"For the steward only: these shares are exact facts about the data, made coarse, not private "
        f"ones. That you looked {noted_words}."
    )
    Console(stderr=True).print(Text(note, style="yellow"), soft_wrap=True)


def _facts(
    public: Public,
    columns: dict[str, dict[str, str]],
    people: dict[str, str],
    groups: dict[str, str],
    ids: dict[str, str],
) -> list[str]:
    """Return in words what codebooks did, and how many rows and groups people have."""
    read = [
        f"{name}, {stage}: {share} changed"
        for name, shares in columns.items()
        for stage, share in shares.items()
        if stage.startswith("read by")
    ]
    return [
        *read,
        *(f"{words}: {share}" for words, share in ids.items()),
        *(f"people with more than {limit}: {share}" for limit, share in people.items()),
        *(f"people in more than {_limit(public.unit)} of {name}: {share}" for name, share in groups.items()),
    ]


def _line_hints(
    paths: dict[str, str], undecodable: dict[str, str], lines: dict[str, dict[str, str]]
) -> list[str]:
    """Return hints on lines that cannot be read, by table: in another encoding, with more or fewer fields."""
    hints = [
        f"lines of {table} that are not text in UTF-8, and are left out: {share}. In Excel, save the file as "
        f'"CSV UTF-8". On Linux or macOS: iconv -f cp1252 -t utf-8 {shlex.quote(paths[table])} > new.csv. Or '
        'write encoding = "cp1252" under [format] (of a related table, format = {encoding = "cp1252"}) in '
        "the schema file."
        for table, share in undecodable.items()
        if share != "none"
    ]
    for table, shares in lines.items():
        for which, share in shares.items():
            if share != "none":
                rest = "left out" if which == "more" else "missing"
                hints.append(
                    f"lines of {table} with {which} fields than the first line names, whose last are {rest}: "
                    f"{share}. Is there a delimiter in a text without quotes?"
                )
    return hints


def _hints(public: Public, columns: dict[str, dict[str, str]], ids: dict[str, str]) -> list[str]:
    """Return hints on frequent causes: texts that differ by a blank or a capital letter, numbers, dates and
    words for true and false that are written in another way, and ids that stand for nobody."""
    hints = []
    facts = [*public.schema, *((f"{t.name}.{name}", fact) for t in public.tables for name, fact in t.schema)]
    if columns_outside := [
        name for name, fact in facts if isinstance(fact, Categories) and columns[name]["outside"] != "none"
    ]:
        hints.append(
            f"outside, of {', '.join(columns_outside)}: other texts than those declared. Capital letters and "
            'blanks at either end make another text; trim = true, and same = {"old" = "new"}, read them as '
            "one that is declared."
        )
    for kind, hint in _UNREADABLE.items():
        unreadable = [
            name for name, fact in facts if isinstance(fact, kind) and columns[name]["unreadable"] != "none"
        ]
        if unreadable:
            hints.append(f"does not convert, of {', '.join(unreadable)}: {hint}")
    if any(" has more than " in words and share != "none" for words, share in ids.items()):
        hints.append(
            "ids with very many rows: does one of them, such as NA or 999999, stand for people without an "
            "id? To discreet it is one person, of whom `rows` count; those behind it are not protected each. "
            "Empty it in the export: rows without an id are in no answer."
        )
    return hints


# What to look at where values of a column do not convert, by the declared type.
_UNREADABLE: dict[type[Fact], str] = {
    Bounds: "is there a decimal comma, or a mark between thousands? Say so under [format] in the schema "
    "file. A word such as n/a belongs in missing = [...].",
    Dates: "is a date written in another way than 2025-12-31? Say so under [format] in the schema file: "
    'dates = ["%d.%m.%Y"].',
    Boolean: "true is written true, t, yes, y or 1, and false is written false, f, no, n or 0. Another word "
    "counts as missing: of J and N only N would be read, and an average would be 0. Declare the others, "
    'true = ["ja"] and false = ["nein"], or type = "categories".',
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
