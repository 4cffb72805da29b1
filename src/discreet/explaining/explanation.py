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
from typing import Any

from .. import _require
from .._drawing import Markup, Picture, Section, Series, element, markup, page, table
from .risk import EXTRA_EPSILON, Risk
from .words import DISCLAIMERS, factor, has_bounded_odds, number, out_of, price


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
        sections = (section.html() for section in self.sections)
        return page(self.title, element("h1", self.title), _facts(self), *sections)

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
        _require.that(
            pictures, "this explanation has no picture: where nothing is promised there is nothing to draw."
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


def fragment(explanation: Explanation) -> Markup:
    """Return the explanation as a piece of HTML, for a notebook or a page of the web console."""
    return markup(element("h3", explanation.title), *(s.html("h4") for s in explanation.sections))


def label(explanation: Explanation) -> str:
    """Return one page to print: who is protected, how much, from what, and what this is not."""
    pictures = [picture.svg() for picture in explanation.pictures.values()][:2]
    main = element(
        "main",
        element("h1", "Privacy label"),
        element("p", explanation.title),
        _facts(explanation),
        element("h2", "How much"),
        table((), label_rows(explanation.risk)),
        *([element("div", *pictures, class_="pair")] if pictures else ()),
        element("h2", "What this is not"),
        *(element("p", element("b", f"Not {name}."), f" {why}") for name, why in DISCLAIMERS),
        element("footer", "Made by discreet; bounds are rounded up."),
    )
    return page("Privacy label", main, style=_LABEL_STYLE)


def label_rows(risk: Risk) -> list[tuple[str, str]]:
    """Return the numbers of the privacy label, each with what it bounds."""
    rows = [("Price", price(risk))]
    if not risk.bounded:
        return [*rows, ("Protection", "none is promised")]
    test = "A test that points wrongly at 5 of 100 outside points rightly at most at"
    hits = f"{out_of(risk.true_positives(0.05))} inside"
    return [*rows, *_odds(risk), *_chances(risk), (test, hits)]


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


def _facts(explanation: Explanation) -> Markup:
    return table((), explanation.facts) if explanation.facts else Markup()
