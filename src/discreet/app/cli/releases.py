"""`discreet report`: one page with everything that was released from a dataset, by its ledger: questions,
answers with their errors and pictures, what was spent by whom, and what it means for one person.

`write_answer`: an answer as a file of CSV or Excel.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from ... import __version__
from ... import session as sessions
from ..._drawing import STYLE, Markup, element, page, table
from ..._errors import InvalidInput, MissingExtra
from ..._round import UpperAmount
from ..._text import visible
from ...accounting import from_json
from ...curator import STEWARD, Ledger, books, receipts, values
from ...curator.accounts import SPENDING
from ...curator.curator import read_only
from ...curator.entries import Entry
from ...explaining.explanation import fragment, label_rows
from ...query import Answer
from ...query.html_view import answer_html
from ..ledger_view import epsilon_text, kept, mechanism_name
from ..web import charts
from . import forms
from .explain import to_pdf
from .ledger import LEDGER
from .options import FORCE
from .query import print_note

# The charts of the server's pages, in the colors of this one.
PAGE_STYLE = f"""{STYLE}
.chart {{ display: block; width: 100%; max-width: 32rem; font: 13px system-ui, sans-serif; }}
.chart text {{ fill: var(--ink); }} .chart .value {{ fill: var(--soft); }}
.chart .bar {{ fill: var(--line); }}
.chart .whisker {{ stroke: var(--ink); stroke-width: 1.6; fill: none; }}
.chart .center {{ fill: var(--accent); }}
h3 {{ font-size: 1rem; margin: 1.6rem 0 .2rem; overflow-wrap: anywhere; }}
td, code, pre {{ overflow-wrap: anywhere; white-space: pre-wrap; }} ul {{ color: var(--soft); }}
code {{ font-size: .8rem; display: block; padding: .4rem .6rem; background: var(--line); }}
ul {{ font-size: .85rem; margin: .3rem 0; padding-left: 1.1rem; }}
.label {{ border: 2px solid var(--ink); padding: 0 1rem; margin: 1.5rem 0; }}
@media print {{ body {{ max-width: none; margin: 0; font-size: 11pt; }}
h1, h2, h3, h4 {{ break-after: avoid; }} tr, svg, .label {{ break-inside: avoid; }} }}
@page {{ margin: 16mm; }}
"""


def report(
    path: Path = LEDGER,
    *,
    out: Path = typer.Option(
        "report.html", "--out", help="The page to write: .html or .pdf; .xlsx for all answers."
    ),
    force: bool = FORCE,
) -> None:
    kind = out.suffix.lower()
    if kind not in (".html", ".pdf", ".xlsx"):
        raise InvalidInput(f"a report is an .html, a .pdf or an .xlsx file, got {out.name!r}.")
    forms.check(out, force=force, data=[path])
    if kind == ".pdf":
        to_pdf(report_html(path), out)
    elif kind == ".html":
        forms.write(out, report_html(path), force=force)
    else:
        check_answer(out)
        _write_sheets(out, dict(_sheets(read_only(path).ledger)))
    print_note(f"written: {out}")


def report_html(path: Path) -> str:
    """Return the page of a ledger, which is read without its key."""
    curator = read_only(path)
    public, ledger, policy = curator.source.public, curator.ledger, curator.policy
    ends = {
        entry.body["charge"]: entry for kind in ("release", "failed") for entry in ledger.entries(kind=kind)
    }
    facts = [
        ("Data", f"{public.table}, version {public.version}"),
        ("Protected", "a row" if public.unit.column is None else f"all rows of one {public.unit.column}"),
        ("Neighbors", public.neighbors),
        ("Signed head of the ledger", str(ledger.anchor)),
        ("Public key of the ledger", ledger.genesis.body["key"]),
        ("First and last entry", f"{charts.minute(ledger.genesis.time)}, {_last(ledger)} (UTC)"),
        ("Made by", f"discreet {__version__}, on {datetime.now(UTC):%Y-%m-%d}"),
    ]
    accounts = [
        (account.of, f"{account.rule.unit} {account.used:.4g} of {float(account.rule.total):.4g}")
        for name in (STEWARD, *(name for name, own in policy.analysts if own is not None))
        for account in curator.accounts_of(name)
    ]
    unit = curator.accounts_of(STEWARD)[0].rule.unit
    askers = [
        (who, f"{times:,}", f"{unit} {UpperAmount(alone):.4g}")
        for who, (times, alone) in books.spent_for(ledger).items()
    ]
    explanation = sessions.Session(curator).explain()
    released = [
        element("section", *_released(curator, charge, ends.get(charge.seq)))
        for charge in ledger.entries(kind=SPENDING)
    ]
    return page(
        f"What was released about {public.table}",
        element("h1", f"What was released about {public.table}"),
        table((), facts),
        element(
            "section",
            element("h2", "Privacy label: everything together"),
            table((), [*explanation.facts, *label_rows(explanation.risk)]),
            class_="label",
        ),
        element("h2", "What was spent"),
        table(("budget of", "spent"), accounts),
        *([table(("asked by", "charges", "alone worth"), askers)] if askers else []),
        element("h2", "What was released"),
        *(released or [element("p", "Nothing.")]),
        fragment(explanation),
        style=PAGE_STYLE,
    )


def _last(ledger: Any) -> str:
    return charts.minute(next(iter(ledger.entries(after=ledger.anchor.seq - 1))).time)


def _released(curator: Any, charge: Entry, end: Entry | None) -> list[Markup]:
    """Return one charge as HTML: what was asked, by whom and when, its value and error where the value is
    stored, and its price. `end` is the entry of its release or its failure."""
    body, sql = charge.body, charge.body.get("text")
    title, delta = mechanism_name(body), curator.policy.budget.delta
    price = epsilon_text(from_json(body["event"]), delta).rstrip(": ") or "no epsilon"
    how = kept(body)
    who = f"{charts.minute(charge.time)}, asked by {body['analyst']}, {price}; its price is {how}"
    parts = [element("p", who), *([element("code", " ".join(sql.split()))] if sql else [])]
    if end is not None and "value" in end.body:
        stored = curator.ledger.value(end.body)
        number = receipts.released_number(body, end.body | {"value": stored}, delta)
        value = values.decode(stored)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, Answer):
                title = _title(one)
                parts += _answer(one)
            else:
                bound = number["plus_minus"]
                shown = f"{one} ± {bound:g} (95% of errors are within ±)" if isinstance(bound, float) else one
                parts.append(element("pre", str(shown)[:2000]))
    else:
        answers = [str(values.decode(state["value"])) for state in curator.released(charge.seq)]
        failed = end is not None and end.kind == "failed"
        nothing = _FAILED if failed else _NO_VALUE
        parts += [element("pre", "\n".join(answers)[:2000])] if answers else [element("p", nothing)]
    return [element("h3", f"Entry {charge.seq}: {title}"), *parts]


_FAILED = "It failed: nothing was released, and the charge stays."
_NO_VALUE = "Its value is not stored in the ledger, as that of a model or of a release made elsewhere."


def _title(answer: Answer) -> str:
    """Return what an answer is of, in words: its numbers, and by which columns they are grouped."""
    numbers = [name for name in answer.columns if name in answer.error()] or [answer.columns[-1]]
    keys = [name for name in answer.columns if name not in numbers]
    return ", ".join(numbers) + (f" by {', '.join(keys)}" if keys else "")


def _answer(answer: Answer) -> list[Markup]:
    """Return an answer as HTML: how it was measured, its table, and its picture."""
    parts = [element("ul", *(element("li", line) for line in answer.plan)), answer_html(answer)]
    if answer.error() and len(answer.rows) > 1:
        bars = answer.bars()
        column = next(iter(answer.error()))
        labels = [str(label) for label in bars["labels"]]
        ends = answer.interval()[column]
        parts.append(charts.bars(labels, bars["heights"], ends, f"{column}, with 95% intervals"))
    return parts


def _sheets(ledger: Ledger) -> Iterator[tuple[str, list[list[Any]]]]:
    """Yield the answers of a ledger, each as the name and the rows of a sheet."""
    for entry in ledger.entries(kind="release"):
        stored = values.decode(ledger.value(entry.body)) if "value" in entry.body else ()
        for i, one in enumerate(stored if isinstance(stored, tuple) else (stored,)):
            if isinstance(one, Answer):
                yield f"entry {entry.body['charge']}" + (f" ({i + 1})" if i else ""), _cells(one, 0.95)


def _cells(answer: Answer, confidence: float) -> list[list[Any]]:
    """Return an answer as rows, the first with names, each number followed by the ends of its interval. A
    text that a spreadsheet would compute is marked as a text; characters that no sheet can hold are shown by
    their numbers."""
    intervals = answer.interval(confidence)
    columns: list[list[Any]] = []
    for name in answer.columns:
        columns.append([_text(v) if isinstance(v, str) else v for v in (name, *answer[name])])
        for i, end in enumerate(("low", "high") if name in intervals else ()):
            ends = [None if pair is None else pair[i] for pair in intervals[name]]
            columns.append([_text(f"{name}_{end}"), *ends])
    return list(map(list, zip(*columns, strict=True)))


def _text(text: str) -> str:
    return charts.harmless(visible(text))


def write_answer(path: Path, answer: Answer, confidence: float, *, force: bool) -> None:
    """Write an answer as .csv or .xlsx."""
    rows = _cells(answer, confidence)
    forms.check(path, force=force)
    if path.suffix.lower() == ".xlsx":
        _write_sheets(path, {"answer": rows})
        return
    with path.open("w", encoding="utf-8-sig", newline="") as file:
        csv.writer(file).writerows(rows)


def _write_sheets(path: Path, sheets: dict[str, list[list[Any]]]) -> None:
    from openpyxl import Workbook

    book = Workbook()
    # It has an empty sheet, which is what a file without answers keeps.
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(row)
    if sheets:
        book.remove(book.worksheets[0])
    book.save(path)


def check_answer(path: Path | None) -> None:
    """Refuse, before a charge, a file to which no answer can be written."""
    if path is None:
        return
    if path.suffix.lower() not in (".csv", ".xlsx"):
        raise InvalidInput(f"an answer is written to a .csv or an .xlsx file, got {path.name!r}.")
    if path.suffix.lower() == ".xlsx":
        try:
            import openpyxl  # noqa: F401
        except ImportError:
            raise MissingExtra.of("formats", "Excel files need openpyxl") from None
