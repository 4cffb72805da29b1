"""`python -m docs.architecture`: draws docs/architecture.svg, the layers of docs/architecture.md.

The layers are read from the contract of import-linter in pyproject.toml, so that the picture cannot disagree
with what `lint-imports` checks. The colors are the picture's own, on its own background: it looks the same in
a dark page, and follows the reader's preference where it is opened by itself.
"""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path

ROOT = Path(__file__).parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"

# what each layer is for, by its first package
WORDS = {
    "app": "command line, server, client",
    "session": "what a script calls",
    "planning": "splits a budget",
    "curator": "the door to the data (curator), and what a price means (explaining)",
    "query": "kinds of work, each with a price",
    "tabular": "models of tables (tabular), and questions about tables (core)",
    "mechanisms": "building blocks with a price",
    "sampling": "noise, prices, fitting, data",
}
FOUNDATIONS = "public facts, descriptions, checks, errors: four layers, the lowest at the right"
LEFT, WIDTH, SIDE, STEP = 24, 690, 800, 62
STYLE = """
  .page { fill: #ffffff; stroke: #c9d1d9 } .band { fill: #f3f6f8 } .box { fill: #ffffff; stroke: #7a8793 }
  .door { fill: #e3f2ef; stroke: #00796b; stroke-width: 2 } .data { fill: #fff4e0; stroke: #b26a00 }
  .secret { fill: #fdecea; stroke: #b3261e } .wire { stroke: #4b5a66; fill: none; stroke-width: 1.6 }
  .charge { stroke: #00796b } .read { stroke: #b26a00 }
  text { fill: #1c2429; font-family: system-ui, -apple-system, "Segoe UI", Roboto, "DejaVu Sans", sans-serif;
         font-size: 14px }
  .name { text-anchor: middle } .note { fill: #56646f; font-size: 12px } .title { font-weight: 600 }
  @media (prefers-color-scheme: dark) {
    .page { fill: #12181d; stroke: #3b464f } .band { fill: #1b242b } .box { fill: #243039; stroke: #8b98a3 }
    .door { fill: #10332f; stroke: #4db6ac } .data { fill: #33270f; stroke: #ffb74d }
    .secret { fill: #3a1a18; stroke: #f28b82 } .wire { stroke: #aeb9c2 } .charge { stroke: #4db6ac }
    .read { stroke: #ffb74d } text { fill: #e8edf0 } .note { fill: #a9b5be }
  }
"""


def layers() -> list[list[str]]:
    """The layers of the contract, from the top, each as its packages and modules."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (one for one in contracts if one["type"] == "layers")
    return [layer.split(" | ") for layer in contract["layers"]]


def draw() -> str:
    """Return the picture as SVG."""
    stack = layers()
    packages = [layer for layer in stack if not layer[0].startswith("_")]
    ground = [layer for layer in stack if layer[0].startswith("_") and layer != ["__main__"]]
    parts, tops = [], {}
    for i, layer in enumerate(packages):
        tops[layer[0]] = top = 24 + i * STEP
        parts.append(_band(layer, top))
    top = 24 + len(packages) * STEP
    parts.append(_ground(ground, top))
    height = top + STEP + 10
    parts += _sides(tops)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1080 {height}" role="img" '
        f'aria-labelledby="title description">\n'
        f'<title id="title">The layers of discreet</title>\n'
        f'<desc id="description">Packages as layers, each importing only what is below it; the curator as '
        f"the door to the data; the wire; where secrets are kept.</desc>\n"
        f"<style>{STYLE}</style>\n{_ARROW}\n"
        f'<rect class="page" x="1" y="1" width="1078" height="{height - 2}" rx="12"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


_ARROW = (
    '<defs><marker id="tip" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="7" markerHeight="7" '
    'orient="auto-start-reverse"><path d="M0 0 L10 5 L0 10 z" fill="#6b7883"/></marker></defs>'
)


def _text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def _rectangle(x: float, y: float, width: float, height: float, kind: str) -> str:
    return f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>'


def _boxes(names: list[str], left: float, top: float, width: float, height: float = 28) -> str:
    each = (width - 8 * (len(names) - 1)) / len(names)
    return "".join(
        _rectangle(left + i * (each + 8), top, each, height, "door" if name == "curator" else "box")
        + _text(left + i * (each + 8) + each / 2, top + height / 2 + 5, name, "name")
        for i, name in enumerate(names)
    )


def _band(layer: list[str], top: float) -> str:
    """One layer: its name row above its packages."""
    return (
        f'<g data-layer="{" | ".join(layer)}">'
        + _rectangle(LEFT, top - 6, WIDTH, STEP - 8, "band")
        + _text(LEFT + 10, top + 8, WORDS[layer[0]], "note")
        # the curator stands beside the ledger
        + _boxes(layer[::-1] if "curator" in layer else layer, LEFT + 8, top + 14, WIDTH - 16)
        + "</g>"
    )


def _ground(ground: list[list[str]], top: float) -> str:
    """The modules that everything rests on: layers too, drawn side by side to save room."""
    parts = [
        _rectangle(LEFT, top - 6, WIDTH, STEP - 8, "band"),
        _text(LEFT + 10, top + 8, FOUNDATIONS, "note"),
    ]
    names = [name for layer in ground for name in layer]
    each, left = (WIDTH - 16 + 8) / len(names), LEFT + 8.0
    for layer in ground:
        parts.append(f'<g data-layer="{" | ".join(layer)}">')
        parts.append(_boxes(layer, left, top + 14, each * len(layer) - 8) + "</g>")
        left += each * len(layer)
    return "".join(parts)


def _sides(tops: dict[str, float]) -> list[str]:
    """What is outside the packages: who asks, the wire, the ledger, the data, and the secrets."""
    asks, tokens = tops["app"] + 21, tops["session"] + 25
    door, data = tops["curator"] + 28, tops["sampling"] + 28
    return [
        _side(asks, "box", "Another machine", "browser, notebook with dp.connect"),
        _side(tokens, "secret", "Tokens, passwords", "only digests, in server.db"),
        _side(door, "door", "The ledger", "signed entries: charges and releases"),
        _side(
            door + STEP + 14,
            "secret",
            "Ledger key, vault",
            "people.ledger.key: signs and seals;",
            "people.ledger-vault: live states",
        ),
        _side(data, "data", "The data", "files, DuckDB, PostgreSQL, Spark"),
        _arrow(asks, "", "HTTP, JSON", both=True),
        _arrow(door, "charge", "1. charge"),
        _arrow(data, "read", "2. read"),
        _text(SIDE, data + STEP - 12, "A layer imports only what is below it;", "note"),
        _text(SIDE, data + STEP + 4, "packages of one layer never each other.", "note"),
        _text(SIDE, data + STEP + 20, "A charge is on disk before data is read.", "note"),
    ]


def _side(middle: float, kind: str, title: str, *notes: str) -> str:
    """A box at the right, with its middle at this height."""
    height = 36 + 16 * len(notes)
    top = middle - height / 2
    lines = (_text(SIDE + 12, top + 41 + 16 * i, words, "note") for i, words in enumerate(notes))
    return (
        _rectangle(SIDE, top, 256, height, kind) + _text(SIDE + 12, top + 22, title, "title") + "".join(lines)
    )


def _arrow(y: float, kind: str, words: str, *, both: bool = False) -> str:
    start = ' marker-start="url(#tip)"' if both else ""
    path = (
        f'<path class="wire {kind}" d="M{LEFT + WIDTH + 2} {y:g} H{SIDE - 2}"{start} marker-end="url(#tip)"/>'
    )
    return path + _text(LEFT + WIDTH + 8, y - 8, words, "note")


def main() -> None:
    PICTURE.write_text(draw())


if __name__ == "__main__":
    main()
