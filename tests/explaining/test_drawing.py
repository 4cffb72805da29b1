"""Everything that is drawn escapes what others wrote, loads nothing, and is well-formed."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from datetime import UTC, datetime
from xml.etree import ElementTree

import pytest

import discreet as dp
from discreet import auditing
from discreet._drawing import Markup, Picture, PixelScale, Section, Series, element, markup, page, table
from discreet.app.web import charts
from discreet.app.web.rendering import TEMPLATES
from discreet.synthetic.quality import Drawing, MarginalShares

# the name of a column, as somebody with bad intentions would choose it
NAME = '<script>alert("1")</script>\u202e'


def pictures() -> dict[str, str]:
    """Return everything that draws, with the name in every place that takes a text."""
    lines = (Series(NAME, (0.0, 1.0), (1.0, 2.0)), Series(NAME, (0.0, 1.0), (1.0, 2.0), kind="area"))
    points = Series(NAME, (0.5,), (1.5,), kind="points")
    bars = (Series(NAME, (), (1.0, 2.0)),)
    picture = Picture(title=NAME, x_label=NAME, y_label=NAME, series=(*lines, points))
    shares = (MarginalShares(NAME, (NAME, "b"), (0.5, 0.5), (0.2, 0.8)),)
    drawing = Drawing(NAME, (NAME, "y"), {(NAME, "y"): 0.5}, shares, NAME)
    section = Section(heading=NAME, lines=(NAME,), columns=(NAME,), rows=((NAME,),), picture=picture)
    steps = [(datetime(2026, 1, day, tzinfo=UTC), 1.0) for day in (1, 2)]
    report = auditing.audit(lambda rows: NAME, [1], [], claim=1.0, runs=200)
    return {
        "lines": picture.svg(),
        "bars": Picture(title=NAME, x_label=NAME, y_label=NAME, series=bars, labels=(NAME, "b")).svg(),
        "copy": drawing.svg(),
        "console's bars": charts.bars([NAME, "b"], [1.0, None], [(0.0, 2.0), None], NAME),
        "console's errors": charts.expected([NAME], [1.0], 0.95),
        "console's steps": charts.steps(steps, datetime(2026, 1, 3, tzinfo=UTC), 3.0, NAME),
        "section": markup(Markup("<div>"), section.html(), Markup("</div>")),
        "notebook": notebook(),
        "audit": replace(report, attack=NAME, guessed=NAME).html(),
    }


def notebook() -> str:
    schema = {NAME: dp.Bounds(0, 100), "ward": dp.Categories([NAME, "b"])}
    people = dp.open(
        {NAME: [1], "ward": ["b"]},
        unit=dp.rows(), schema=schema, table="p", budget=dp.Budget(epsilon=4, delta=1e-6), ledger=":memory:",
    )  # fmt: skip
    quoted = NAME.replace('"', '""')
    question = f'SELECT ward, SUM("{quoted}") AS "{quoted}" FROM p GROUP BY ward'
    preview = people.preview(question, epsilon=1)
    shown = people.explain(question, epsilon=1)
    answer = people.sql(question, epsilon=1)
    parts = [x._repr_html_() for x in (preview, answer, people, shown)] + [shown.to_html(), shown.label()]
    return "".join(parts)


def test_a_column_that_is_named_as_a_script_is_text_in_every_picture() -> None:
    for name, drawn in pictures().items():
        assert not re.search(r"<\s*/?(script|img|link|iframe)\b", drawn), name
        assert not re.search(r"<[^>]*(src|href|url|onload|onerror)\s*[=(]", drawn), name
        assert "\u202e" not in drawn, name
        assert "&lt;script&gt;" in drawn, name
        assert set(re.findall(r"https?://([^/\"']+)", drawn)) <= {"www.w3.org"}, name
        if name not in ("training", "notebook", "audit"):
            ElementTree.fromstring(drawn)


def test_templates_take_markup_unchanged_and_escape_all_else() -> None:
    template = TEMPLATES.from_string("{{ shown }}")
    drawn = element("b", "<i>")
    assert template.render(shown=drawn) == drawn == "<b>&lt;i&gt;</b>"
    # what was put together without `markup` is text again, which is escaped twice rather than never
    assert template.render(shown="" + drawn + "<u>") == "&lt;b&gt;&amp;lt;i&amp;gt;&lt;/b&gt;&lt;u&gt;"
    assert 'title="&quot;&gt;&lt;b&gt;"' in element("p", title='"><b>')


def test_a_page_is_light_and_dark_and_a_table_has_a_head_only_with_columns() -> None:
    shown = page("t", table(("a",), [("1",)]), table((), [("2", "3")]))
    assert "prefers-color-scheme: dark" in shown
    assert shown.count("<thead>") == 1
    assert shown.count("<td>") == 3


@pytest.mark.parametrize("log", [False, True])
@pytest.mark.parametrize(
    "ends", [(0.0, 5e-324), (1e-300, 1e300), (3.0, 3.0), (math.nan, math.inf), (-1.0, 1.0)]
)
def test_an_axis_shows_whatever_numbers_it_gets(ends: tuple[float, float], log: bool) -> None:
    axis = PixelScale.of(ends, 0.0, 100.0, log=log)
    assert all(0 <= axis(value) <= 100 for value in ends)
    assert len(axis.ticks()) <= 12 or log
