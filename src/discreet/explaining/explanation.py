"""Holds an explanation: sections of sentences, tables and pictures about one risk, for one audience (one of
`words.AUDIENCES`).

It shows itself as text, in a notebook, as an HTML page, and as a one-page privacy label.
"""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass, field
from typing import Any

from .. import _require
from .._errors import InvalidInput
from .picture import Picture, Series
from .risk import Risk


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

    # `pages` is imported inside the methods because it imports this module.

    def _repr_html_(self) -> str:
        from .pages import fragment

        return fragment(self)

    def to_html(self) -> str:
        """Return the explanation as a page of its own, which loads nothing from anywhere."""
        from .pages import page

        return page(self)

    def label(self) -> str:
        """Return the privacy label: the explanation in short, as one HTML page to print."""
        from .pages import label

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
