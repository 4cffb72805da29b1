"""Rewrites the library's messages for the command line: `epsilon=0.1` becomes `--epsilon 0.1`.

>>> in_shell_words("say what the answer may cost (epsilon=0.1) or how good it must be (within=50).")
'say what the answer may cost (--epsilon 0.1) or how good it must be (--within 50).'
>>> in_shell_words("above the limit 1 (delta=1e-06). Ask with less epsilon.")
'above the limit 1 (delta 1e-06). Ask with less epsilon.'
"""

from __future__ import annotations

import re

# keyword arguments that are options of the command line too
_OPTIONS = (
    "epsilon|rho|within|delta|confidence|rows|groups|noise|seconds|fresh|other|large_delta|large_epsilon|checkpoint|every|"
    "features|total|by|where|target|batch|epochs|clip|n"
)
# (regular expression, replacement), applied in this order before `_OPTIONS`
_RULES: tuple[tuple[str, str], ...] = (
    # the same is said for the shell right behind it
    (r"analysts=\{[^}]*\}, in the shell ", ""),
    (r"unit=dp\.rows\(\)", 'unit = "row" in the schema file'),
    (r"unit='(\w+)'", r"[unit] column = '\1' in the schema file"),
    (r"(?:Public\()?size=\.\.\.\)?", "size = ... in the schema file"),
    (r"session\.curator\.change_policy\(\.\.\.\)", "discreet policy"),
    (r"Period\(.*?, total=(?:Budget\([^)]*\)|'\w+')\)", "--per COLUMN:EVERY --total"),
    (r"(?:dp\.)?Budget\(epsilon=([^,)]+), delta=([^,)]+)\)", r"--epsilon \1 --delta \2"),
    (r"(?:dp\.)?Budget\(epsilon=([^,)]+)\)", r"--epsilon \1"),
    # states the delta of a budget; it is not an option that the reader should give
    (r"\(delta=([\d.e-]+)\)", r"(delta \1)"),
    (r"total=(?:dp\.)?Budget\([^)]*\)", "--total EPSILON"),
)


def in_shell_words(message: str) -> str:
    """Return a message with its keyword arguments written as options of the command line."""
    for pattern, words in _RULES:
        message = re.sub(pattern, words, message)
    return re.sub(rf"(?<![\w.\"'])({_OPTIONS})=(True\b|\.\.\.|'[^']*'|[\w.-]*\w|)", _option, message)


def _option(match: re.Match[str]) -> str:
    """Return `name=value` as `--name value`; a flag, or an option without a value, as `--name`."""
    name, value = "--" + match[1].replace("_", "-"), match[2]
    return name if value in ("True", "") else f"{name} {value}"
