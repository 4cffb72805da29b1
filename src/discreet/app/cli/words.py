"""Messages of the library in the words of the shell: `epsilon=0.1` is `--epsilon 0.1` there.

>>> in_shell_words("say what the answer may cost (epsilon=0.1) or how good it must be (within=50).")
'say what the answer may cost (--epsilon 0.1) or how good it must be (--within 50).'
>>> in_shell_words("above the limit 1 (delta=1e-06). Ask with less epsilon.")
'above the limit 1 (delta 1e-06). Ask with less epsilon.'
"""

from __future__ import annotations

import re

_OPTIONS = (
    "epsilon|rho|within|delta|confidence|rows|groups|noise|seconds|fresh|other|large_delta|checkpoint|every|features|total|by|where|target|"
    "batch|epochs|clip|n"
)
_SCHEMA = r"(?:dp\.)?(Bounds|Categories|Dates|Boolean|Text)\("
_RULES: tuple[tuple[str, str], ...] = (
    (r"unit=dp\.rows\(\)", 'unit = "row" in the schema file'),
    (r"unit='(\w+)'", r"[unit] column = '\1' in the schema file"),
    (r"(?:Public\()?size=\.\.\.\)?", "size = ... in the schema file"),
    (r"session\.curator\.change_policy\(\.\.\.\)", "discreet policy"),
    (r"Period\((.*?), total=(?:Budget\([^)]*\)|'(\w+)')\)", r"--per COLUMN:EVERY --total"),
    (r"(?:dp\.)?Budget\(epsilon=([^,)]+), delta=([^,)]+)\)", r"--epsilon \1 --delta \2"),
    (r"(?:dp\.)?Budget\(epsilon=([^,)]+)\)", r"--epsilon \1"),
    # a fact about a budget, not an option to give
    (r"\(delta=([\d.e-]+)\)", r"(delta \1)"),
    (r"total=(?:dp\.)?Budget\([^)]*\)", "--total EPSILON"),
)


def in_shell_words(message: str) -> str:
    """Write what a message says about Python's options as options of the shell."""
    for pattern, words in _RULES:
        message = re.sub(pattern, words, message)
    return re.sub(rf"(?<![\w.\"'])({_OPTIONS})=(True\b|\.\.\.|'[^']*'|[\w.-]*\w|)", _option, message)


def _option(match: re.Match[str]) -> str:
    name, value = "--" + match[1].replace("_", "-"), match[2]
    return name if value in ("True", "") else f"{name} {value}"
