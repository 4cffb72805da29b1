"""Holds an explanation: sections of sentences, tables and pictures about one risk, for one audience (one of
`words.AUDIENCES`).

It shows itself as text, in a notebook, as an HTML page, and as a one-page privacy label.

Writes explanations as HTML: a fragment for notebooks, a page, and a one-page privacy label.

The pages load no script, style sheet, font or picture from elsewhere. All text that others wrote (titles,
questions, names of columns) is escaped.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from html import escape
from typing import Any

from .. import _require
from .._errors import InvalidInput
from .picture import Picture, Series
from .risk import EXTRA_EPSILON, Risk
from .words import DISCLAIMERS, factor, has_bounded_odds, number, out_of, price


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """Holds one heading with its sentences (`lines`), and optionally a table (`columns` names its columns)
    and a picture."""

    heading: str
    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    rows: tuple[tuple[str, ...], ...] = ()
    picture: Picture | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation(_require.NearestNames):
    """Says what an epsilon, a release, a budget or a planned question means for one person, in words and
    pictures.

    `risk` has the numbers, `sections` the words. `facts` are the lines of the privacy label: what was
    released, of what, by whom.
    """

    title: str
    audience: str
    risk: Risk
    sections: tuple[Section, ...]
    facts: tuple[tuple[str, str], ...] = field(default=())

    def __str__(self) -> str:
        parts = [self.title, "=" * len(self.title)]
        for section in self.sections:
            parts += ["", section.heading]
            parts += [
                textwrap.fill(line, 96, initial_indent="  ", subsequent_indent="  ") for line in section.lines
            ]
            parts += [f"  {line}" for line in _align(section)]
        return "\n".join(parts)

    def _repr_html_(self) -> str:
        return fragment(self)

    def to_html(self) -> str:
        """Return the explanation as a page of its own, which loads nothing from anywhere."""

        return page(self)

    def label(self) -> str:
        """Return the privacy label: the explanation in short, as one HTML page to print."""

        return label(self)

    @property
    def pictures(self) -> dict[str, Picture]:
        """Return the pictures by the heading of their section."""
        return {s.heading: s.picture for s in self.sections if s.picture is not None}

    def plot(self, heading: str | None = None) -> Picture:
        """Return one of the pictures, by default the first: an SVG that a notebook shows, with
        `save(path)`."""
        pictures = self.pictures
        if not pictures:
            raise InvalidInput(
                "this explanation has no picture: where nothing is promised there is nothing to draw."
            )
        if heading is None:
            return next(iter(pictures.values()))
        _require.one_of(tuple(pictures), heading=heading)
        return pictures[heading]

    def to_json(self) -> dict[str, Any]:
        """Return the numbers and the words, for other programs."""
        risk = self.risk
        return {
            "title": self.title,
            "audience": self.audience,
            "epsilon": risk.epsilon if risk.bounded else None,
            "delta": risk.delta,
            "neighbors": risk.neighbors.value,
            # JSON has no infinity: None where no finite float bounds the odds
            "odds_factor": risk.odds_factor if math.isfinite(risk.odds_factor) else None,
            "odds_fail": risk.odds_fail,
            "true_positives": {str(rate): risk.true_positives(rate) for rate in (0.001, 0.01, 0.05, 0.1)},
            "event": risk.event.to_json(),
            "facts": dict(self.facts),
            "sections": [
                {
                    "heading": s.heading,
                    "lines": list(s.lines),
                    "columns": list(s.columns),
                    "rows": list(map(list, s.rows)),
                }
                for s in self.sections
            ],
        }


def _align(section: Section) -> list[str]:
    """Return the table of a section as lines of text."""
    if not section.rows:
        return []
    # sources are long: the page and docs/explain.md have them
    shown = [i for i, name in enumerate(section.columns) if name != "source"]
    table = [[row[i] for i in shown] for row in (section.columns, *section.rows)]
    widths = [max(len(row[i]) for row in table) for i in range(len(shown))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in table
    ]


def belief_picture(risk: Risk) -> Picture:
    """Draw the largest and the smallest belief after the release against the belief before it."""
    priors = tuple(i / 50 for i in range(51))
    return Picture(
        title="What somebody can believe about one person, before and after",
        x_label="belief before (%)",
        y_label="belief after (%)",
        y_top=100.0,
        series=(
            Series("at most", tuple(100 * p for p in priors), tuple(100 * risk.after(p) for p in priors)),
            Series(
                "at least", tuple(100 * p for p in priors), tuple(100 * risk.least_after(p) for p in priors)
            ),
            Series("unchanged", (0.0, 100.0), (0.0, 100.0), dashed=True),
        ),
    )


def attack_picture(risk: Risk) -> Picture:
    """Draw the best attack's true-positive rate against its false-positive rate, with a coin flip for
    comparison."""
    # The curve of a pure epsilon has its corner at this rate; lines between the others would miss it.
    corner = 1 / (1 + math.exp(min(risk.epsilon, 700.0)))
    rates = tuple(sorted({0.0, 0.001, 0.01, 0.03, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 1.0, corner}))
    hits = tuple(100 * risk.true_positives(rate) for rate in rates)
    return Picture(
        title="The best possible test of whether one person is in the data",
        x_label="points wrongly at (% of those outside)",
        y_label="points rightly at (% of those inside)",
        y_top=100.0,
        series=(
            Series("no test does better", tuple(100 * rate for rate in rates), hits),
            Series("a coin", (0.0, 100.0), (0.0, 100.0), dashed=True),
        ),
    )


_STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 46rem; margin: 2rem auto; padding: 0
1rem; }
h1 { font-size: 1.6rem; line-height: 1.25; } h2 { font-size: 1.1rem; margin: 1.4rem 0 .3rem; }
table { border-collapse: collapse; font-size: .9rem; } td, th { text-align: left; padding: .2rem .9rem .2rem
0; border-bottom: 1px solid #e4e7eb; vertical-align: top; }
svg { max-width: 100%; height: auto; } p { margin: .35rem 0; } footer { color: #616e7c; font-size: .85rem;
margin-top: 2rem; }
"""
_LABEL_STYLE = """
@page { size: A4; margin: 14mm; }
body { font: 13px/1.4 system-ui, sans-serif; color: #1f2933; margin: 0; }
main { border: 2px solid #1f2933; padding: 6mm; max-width: 180mm; margin: 4mm auto; }
h1 { font-size: 22px; margin: 0; } h2 { font-size: 14px; margin: 4mm 0 1mm; border-top: 4px solid #1f2933;
padding-top: 2mm; }
table { border-collapse: collapse; width: 100%; } td { border-bottom: 1px solid #9aa5b1; padding: 1.2mm 0;
vertical-align: top; } td + td { text-align: right; font-weight: 600; padding-left: 6mm; }
svg { width: 82mm; height: auto; } .pair { display: flex; gap: 4mm; } p { margin: 1mm 0; } footer { font-size:
11px; color: #616e7c; margin-top: 3mm; }
"""


def fragment(explanation: Explanation) -> str:
    """Return the explanation as a piece of HTML, for a notebook or a page of the web console."""
    return f"<h3>{escape(explanation.title)}</h3>" + "".join(_section(s, "h4") for s in explanation.sections)


def page(explanation: Explanation) -> str:
    """Return the explanation as a complete page."""
    body = "".join(_section(s, "h2") for s in explanation.sections)
    return _document(
        explanation.title, _STYLE, f"<h1>{escape(explanation.title)}</h1>{_facts(explanation)}{body}"
    )


def label(explanation: Explanation) -> str:
    """Return one page to print: who is protected, how much, from what, and what this is not."""
    risk = explanation.risk
    head = f"<main><h1>Privacy label</h1><p>{escape(explanation.title)}</p>"
    body = f"{head}{_facts(explanation)}<h2>How much</h2>"
    rows = [("Price", price(risk))]
    if risk.bounded:
        rows += [
            *_odds(risk),
            *_chances(risk),
            (
                "A test that points wrongly at 5 of 100 outside points rightly at most at",
                f"{out_of(risk.true_positives(0.05))} inside",
            ),
        ]
    else:
        rows.append(("Protection", "none is promised"))
    body += _table((), tuple(rows))
    pictures = list(explanation.pictures.values())[:2]
    if pictures:
        body += f'<div class="pair">{"".join(p.svg() for p in pictures)}</div>'
    body += "<h2>What this is not</h2>" + "".join(
        f"<p><b>Not {escape(name)}.</b> {escape(why)}</p>" for name, why in DISCLAIMERS
    )
    return _document(
        "Privacy label",
        _LABEL_STYLE,
        body + "<footer>Made by discreet; bounds are rounded up.</footer></main>",
    )


def _odds(risk: Risk) -> list[tuple[str, str]]:
    """Return the rows about odds and beliefs."""
    if not has_bounded_odds(risk):
        return [("Odds about one person", "no useful bound")]
    rows = [
        ("Odds about one person move by at most", f"{number(risk.odds_factor)} times"),
        ("A belief of 50 in 100 becomes at most", out_of(risk.after(0.5))),
        ("A belief of 1 in 100 becomes at most", out_of(risk.after(0.01))),
    ]
    if risk.odds_fail:
        bound = f"at most {number(risk.odds_fail)} (delta / (1 - e^-{EXTRA_EPSILON}))"
        rows.append(("Chance that the odds rise further; as large that they fall further", bound))
    return rows


def _chances(risk: Risk) -> list[tuple[str, str]]:
    """Return the row that bounds the probabilities of results; none where the bound on odds never fails."""
    if not risk.odds_fail:
        return []
    bound = f"{factor(risk.epsilon)} times, plus delta {number(risk.delta)}"
    return [("Chances of results move by at most (e^epsilon)", bound)]


def _section(section: Section, tag: str) -> str:
    """Return a section as HTML, its heading in this tag."""
    lines = "".join(f"<p>{escape(line)}</p>" for line in section.lines)
    table = _table(section.columns, section.rows) if section.rows else ""
    picture = section.picture.svg() if section.picture is not None else ""
    return f"<{tag}>{escape(section.heading)}</{tag}>{lines}{table}{picture}"


def _facts(explanation: Explanation) -> str:
    return _table((), explanation.facts) if explanation.facts else ""


def _table(columns: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> str:
    """Return a table as HTML, every cell escaped."""
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    return "<table>" + (f"<thead><tr>{head}</tr></thead>" if head else "") + f"<tbody>{body}</tbody></table>"


def _document(title: str, style: str, body: str) -> str:
    """Return a complete HTML document."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta name="viewport" content="width=device-width"><title>{escape(title)}</title>'
        f"<style>{style}</style></head><body>{body}</body></html>\n"
    )
