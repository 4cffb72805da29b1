"""`discreet report`: one page with everything that was released from a dataset, by its ledger: questions,
answers with their errors and pictures, what was spent by whom, and what it means for one person.

`write_answer`: an answer as a file of CSV or Excel.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import typer

from ... import __version__
from ... import session as sessions
from ..._drawing import STYLE, Markup, element, page, table
from ..._errors import InvalidInput, MissingExtra
from ...curator import STEWARD, values
from ...curator.accounts import SPENDING
from ...curator.closed_ledger import read_only
from ...curator.identities import mark_of
from ...explaining.explanation import fragment
from ...query import Answer
from ...query.html_view import answer_html
from ..web import charts
from . import forms
from .explain import to_pdf
from .ledger import LEDGER
from .options import FORCE
from .query import print_note

# The charts of the server's pages, in the colors of this one.
_STYLE = f"""{STYLE}
.chart {{ display: block; width: 100%; max-width: 32rem; font: 13px system-ui, sans-serif; }}
.chart text {{ fill: var(--ink); }} .chart .value {{ fill: var(--soft); }}
.chart .bar {{ fill: var(--line); }}
.chart .whisker {{ stroke: var(--ink); stroke-width: 1.6; fill: none; }}
.chart .center {{ fill: var(--accent); }}
h3 {{ font-size: 1rem; margin: 1.6rem 0 .2rem; overflow-wrap: anywhere; }}
"""


def report(
    path: Path = LEDGER,
    *,
    out: Path = typer.Option("report.html", "--out", help="The page to write: .html or .pdf."),
    force: bool = FORCE,
) -> None:
    if out.suffix.lower() not in (".html", ".pdf"):
        raise InvalidInput(f"a report is an .html or a .pdf file, got {out.name!r}.")
    forms.check(out, force=force, data=[path])
    text = report_html(path)
    if out.suffix.lower() == ".pdf":
        to_pdf(text, out)
    else:
        forms.write(out, text, force=force)
    print_note(f"written: {out}")


def report_html(path: Path) -> str:
    """Return the page of a ledger, which is read without its key."""
    curator = read_only(path)
    public, ledger, policy = curator.source.public, curator.ledger, curator.policy
    values_of = {entry.body["charge"]: entry.body for entry in ledger.entries(kind="release")}
    facts = [
        ("Data", f"{public.table}, version {public.version}"),
        ("Protected", "a row" if public.unit.column is None else f"all rows of one {public.unit.column}"),
        ("Neighbors", public.neighbors),
        ("Signed head of the ledger", str(ledger.anchor)),
        ("Last entry", charts.minute(next(iter(ledger.entries(after=ledger.anchor.seq - 1))).time)),
        ("Made by", f"discreet {__version__}"),
    ]
    accounts = [
        (name, account.of, f"{account.rule.unit} {account.used:.4g} of {float(account.rule.total):.4g}")
        for name in (STEWARD, *(name for name, own in policy.analysts if own is not None))
        for account in curator.accounts_of(name)
    ]
    released = [
        part
        for charge in ledger.entries(kind=SPENDING)
        for part in _released(charge, ledger, values_of.get(charge.seq, {}))
    ]
    explanation = sessions.Session(curator).explain()
    return page(
        f"What was released about {public.table}",
        element("h1", f"What was released about {public.table}"),
        table((), facts),
        element("h2", "What was spent"),
        table(("account", "of", "spent"), accounts),
        element("h2", "What was released"),
        *(released or [element("p", "Nothing.")]),
        fragment(explanation),
        style=_STYLE,
    )


def _released(charge: Any, ledger: Any, body: dict[str, Any]) -> list[Markup]:
    """Return one charge as HTML: its question, who asked and when, and its value where it is stored."""
    when, analyst = charts.minute(charge.time), charge.body["analyst"]
    who = f"entry {charge.seq}, {when}, asked by {analyst}; its price is kept {mark_of(charge.body)}"
    parts = [element("h3", " ".join(str(charge.body.get("text") or charge.body["event"]["type"]).split()))]
    parts.append(element("p", who))
    stored = (
        values.decode(ledger.value(body)) if "value" in body else "The value is not stored in the ledger."
    )
    for value in stored if isinstance(stored, tuple) else (stored,):
        if not isinstance(value, Answer):
            parts.append(element("pre", str(value)[:2000]))
            continue
        parts.append(answer_html(value))
        if value.error() and len(value.rows) > 1:
            bars = value.bars()
            column = next(iter(value.error()))
            ends = value.interval()[column]
            labels = [str(label) for label in bars["labels"]]
            parts.append(charts.bars(labels, bars["heights"], ends, f"{column}, with 95% intervals"))
    return parts


def write_answer(path: Path, answer: Answer, confidence: float, *, force: bool) -> None:
    """Write an answer as .csv or .xlsx, each number followed by the ends of its interval. A text that a
    spreadsheet would compute is marked as a text."""
    intervals = answer.interval(confidence)
    columns: dict[str, list[Any]] = {}
    for name in answer.columns:
        columns[name] = [charts.harmless(v) if isinstance(v, str) else v for v in answer[name]]
        for i, end in enumerate(("low", "high") if name in intervals else ()):
            columns[f"{name}_{end}"] = [None if pair is None else pair[i] for pair in intervals[name]]
    rows = [[charts.harmless(name) for name in columns], *map(list, zip(*columns.values(), strict=True))]
    forms.check(path, force=force)
    if path.suffix.lower() == ".csv":
        with path.open("w", encoding="utf-8-sig", newline="") as file:
            csv.writer(file).writerows(rows)
        return
    from openpyxl import Workbook

    book = Workbook()
    for row in rows:
        book.active.append(row)
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
