"""Writes explanations as HTML: a fragment for notebooks, a page, and a one-page privacy label.

The pages load no script, style sheet, font or picture from elsewhere. All text that others wrote (titles,
questions, names of columns) is escaped.
"""

from __future__ import annotations

from html import escape

from .explanation import Explanation, Section
from .risk import EXTRA_EPSILON, Risk
from .words import DISCLAIMERS, factor, has_bounded_odds, number, out_of, price

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
