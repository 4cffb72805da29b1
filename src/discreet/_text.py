"""Makes text of other people safe to show: characters that could control a terminal, or hide or reorder the
text around them, are replaced by their escape sequences."""

from __future__ import annotations

import unicodedata

# Unicode categories: control, format (zero-width, bidirectional), surrogate, private use, unassigned, line
# and paragraph separators.
_HIDDEN = frozenset(("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"))


def is_text(value: str) -> bool:
    """Return whether every query engine and every file can hold this text: it can be written in UTF-8, and
    has no NUL, which ends a text in some of them.

    >>> is_text("naïve"), is_text("a\\x00b"), is_text("\\ud800")
    (True, False, False)
    """
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\x00" not in value


def visible(text: str, *, keep: str = "") -> str:
    """Return the text with every character of a hidden category replaced by its escape sequence, except the
    characters in `keep`.

    >>> visible("a\\x1b[2Jb")
    'a\\\\x1b[2Jb'
    """
    if text.isascii() and text.isprintable():
        return text
    return "".join(c if c in keep or unicodedata.category(c) not in _HIDDEN else _escape(c) for c in text)


def _escape(character: str) -> str:
    return ascii(character)[1:-1]
