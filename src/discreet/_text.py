"""Text that others wrote, made safe to show: what would command a terminal, hide or reorder what stands
beside it is written out."""

from __future__ import annotations

import unicodedata

# control, format (zero-width, bidirectional), surrogate, private use, unassigned, line and paragraph
# separators
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def is_text(value: str) -> bool:
    """Return whether every engine and every file takes this for a text: UTF-8, and no character that ends
    one.

    >>> is_text("naïve"), is_text("a\\x00b"), is_text("\\ud800")
    (True, False, False)
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in value


def visible(text: str, *, keep: str = "") -> str:
    """Return the text with every character that does not show as itself in its escaped form; those in `keep`
    stay.

    >>> visible("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or unicodedata.category(c) not in _HIDDEN else _escape(c) for c in text)


def _escape(character: str) -> str:
    return ascii(character)[1:-1]
