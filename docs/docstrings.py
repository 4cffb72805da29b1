"""How docstrings become Markdown: doctests are code, and what is promised, why and under which assumptions
stands
out."""

from __future__ import annotations

import re
from typing import Any

import griffe

_CLAIMS = re.compile(r"^(Guarantee|Proof|Assumes|Versions|Cost):\s*", re.M)


class Docstrings(griffe.Extension):
    """Rewrites every docstring before it is rendered."""

    def on_instance(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = markdown(obj.docstring.value)


def markdown(text: str) -> str:
    """Return a docstring with its doctests fenced and its claims in bold, each a paragraph of its own."""
    parts: list[str] = []
    for block in re.split(r"\n\s*\n", text):
        lines = block.splitlines()
        start = next((i for i, line in enumerate(lines) if line.lstrip().startswith(">>>")), None)
        prose = lines if start is None else lines[:start]
        if any(line.strip() for line in prose):
            parts.append(_prose(prose))
        if start is not None:
            parts.append("```python\n" + "\n".join(line.strip() for line in lines[start:]) + "\n```")
    return "\n\n".join(parts)


def _prose(lines: list[str]) -> str:
    """Paragraphs; what was laid out in columns becomes running text, so that nothing is taken for code."""
    joined = "\n".join(line.strip() for line in lines)
    joined = joined.replace("<", "&lt;")
    return _CLAIMS.sub(lambda match: f"\n**{match.group(1)}.** ", joined).strip()
