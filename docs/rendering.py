"""How the site shows formulas and sessions: LaTeX becomes MathML, and the copy button of a session copies
what is typed, without prompts and output. Done when the site is built: nothing of this runs in a browser.

The only module that knows latex2mathml. That package shows what it does not know as it stands; here a formula
that cannot be typeset, or that GitHub would not show as one, is an error of the build.
"""

from __future__ import annotations

import re
from doctest import DocTestParser
from html import escape, unescape
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Name the sessions of a page."""
    return sessions(markdown)


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Typeset the formulas of a page, and say what its copy buttons copy."""
    try:
        return typeset(copied(html))
    except ValueError as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error


def sessions(markdown: str) -> str:
    """Name the blocks that begin with a prompt as sessions: prompts and output get a look of their own.

    Not where a command reads what follows it: a session would show that as output.
    """
    markdown = re.sub(
        r"^( *```)sh\n(?= *\$ )(?!(?: *(?:[^`\s].*)?\n)*?.*<<)", r"\1console\n", markdown, flags=re.M
    )
    return re.sub(r"^( *```)python\n(?=(?: *#.*\n)* *>>> )", r"\1pycon\n", markdown, flags=re.M)


_BLOCK = re.compile(r'<div class="(language-(?:sh|console|pycon) highlight)">(<pre.*?</pre>)', re.S)


def copied(html: str) -> str:
    """Give every session the text that the theme's copy button takes in place of what is shown."""

    def block(match: re.Match[str]) -> str:
        shown = unescape(re.sub(r"<[^>]*>", "", match[2]))
        if not shown.startswith("$ ") and ">>> " not in shown:
            return match[0]
        return f'<div class="{match[1]}" data-copy="{escape(typed(shown))}">{match[2]}'

    return _BLOCK.sub(block, html)


# a line, those it is continued on, and the text that a command reads up to a word of its own
_COMMAND = re.compile(
    r"""^\$\ ( (?:.*\\\n)* .*<<-?\ *(['"]?)(\w+)\2 (?s:.*?) ^\3$ | (?:.*\\\n)* .* )""", re.M | re.X
)


def typed(session: str) -> str:
    """Return what is typed in a session of a shell or of Python, without prompts and output."""
    if ">>> " in session:
        return "".join(example.source for example in DocTestParser().get_examples(session))
    return "\n".join(match[1] for match in _COMMAND.finditer(session))


# what the Markdown extension makes of $...$ and $$...$$, with the letters that it touches
_FORMULA = re.compile(r'(\S?)<(span|div) class="arithmatex">\\[(\[](.*?)\\[)\]]</\2>(\S?)', re.S)
_CODE = re.compile(r"<(code|pre|math)\b.*?</\1>", re.S)


def typeset(html: str) -> str:
    """Return a page with its formulas as MathML.

    Refuses what would be shown as source: an unknown command, a formula in a heading, two dollars within a
    paragraph.
    """
    if heading := re.search(r'<h\d[^>]*>(?:(?!</h\d>).)*class="arithmatex">(.*?)</span>', html, re.S):
        raise ValueError(f"the heading with the formula {heading[1]} would show its source in the menu")
    html = _FORMULA.sub(_formula, html)
    if rest := re.search(r"\$\$|\\[a-zA-Z]{2,}", _CODE.sub("", html)):
        found = html[max(0, html.find(rest[0]) - 40) :][:100]
        raise ValueError(f"LaTeX outside of a formula ($$ stand on lines of their own): {found!r}")
    return html


def _formula(match: re.Match[str]) -> str:
    before, tag, latex, after = match.groups()
    latex = unescape(latex).strip()
    if re.match(r"[\w$]", before) or re.match(r"[\w$]", after):
        raise ValueError(f"${latex}$ touches a word or a dollar: GitHub shows no formula there")
    made = mathml(latex, "block" if tag == "div" else "inline")
    if tag == "span" and len(unescape(re.sub(r"<[^>]*>", "", made))) > LONG:
        made = made.replace("<math ", '<math class="long" ', 1)
    return before + made + after


# signs of a formula within a line, which browsers never break: wider than a phone, so it scrolls there
LONG = 24


ENVIRONMENTS = {"aligned", "align*", "split", "cases", "matrix", "pmatrix", "bmatrix", "vmatrix"}


def mathml(latex: str, display: str = "inline") -> str:
    """Return a formula as MathML."""
    plain = re.sub(r"\\.", "", latex, flags=re.S)
    if plain.count("{") != plain.count("}"):
        raise ValueError(f"a brace of the formula {latex!r} has no partner")
    try:
        made = convert(latex.replace("{aligned}", "{align*}"), display=display)
    except Exception as error:
        raise ValueError(f"the formula {latex!r} is not complete ({type(error).__name__})") from error
    # what the package does not know stays as it stands, and of an environment only the inside
    unknown = re.findall(r"\\[a-zA-Z]*|(?<=>)[{}&](?=<)", made)
    unknown += set(re.findall(r"\\begin\{(.*?)\}", latex)) - ENVIRONMENTS
    if unknown:
        raise ValueError(f"the formula {latex!r} has {unknown[0]!r}, which latex2mathml does not know")
    return _spaced(made)


# left and right of names such as ln and Pr: as in TeX, and nothing before a bracket
_NAME = re.compile(r"<(mi|mo)[^>]*>([A-Za-z]{2,}(?:&#x02009;[a-z]+)?)</\1>(?=(<mo[^>]*>(?:&#x00028;|\[))?)")
# characters that the package takes for letters, writes as ASCII, or spaces as no book does
_SIGNS = {
    "<mi>&#x0007E;</mi>": "<mo>&#x0223C;</mo>",
    "<mo>&#x0002F;</mo>": '<mo lspace="0" rspace="0">/</mo>',
    '<mo stretchy="false">&#x0007C;</mo>': '<mo stretchy="false" lspace="0" rspace="0">&#x0007C;</mo>',
} | {
    f"<mi>&#x0{code};</mi>": f'<mo stretchy="false">&#x0{code};</mo>'
    for code in ("2308", "2309", "230A", "230B")
}

_PRIME = '<mo lspace="0" rspace="0">&#x02032;</mo>'


def _spaced(made: str) -> str:
    # a raised prime raised again stands too high where no font for formulas is
    made = re.sub(r"<msup>(<mi>[^<]*</mi>)<mi>&#x02032;</mi></msup>", rf"<mrow>\1{_PRIME}</mrow>", made)
    for sign, better in _SIGNS.items():
        made = made.replace(sign, better)
    return _NAME.sub(
        lambda name: f'<mo lspace="0.167em" rspace="{"0" if name[3] else "0.167em"}">{name[2]}</mo>', made
    )
