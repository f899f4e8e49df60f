"""Text of unknown origin, as it may be printed: what could move a cursor, turn writing round or hide stands as an escape.

Training text holds whatever somebody wrote: escape sequences that recolour or clear a terminal, marks that reverse the order
of letters, characters without any width. Line ends and tabs stay.
"""

from __future__ import annotations

import json
import unicodedata

_HIDDEN = {"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"}
"""Controls, formats (direction, joiners, tags), surrogates, private, unassigned, line and paragraph separators."""


def printable_text(text: str) -> str:
    r"""``text`` with such characters as ``\x1b``, ``\u202e`` or ``\U000e0041``."""
    return text if text.isascii() and text.isprintable() else "".join(map(_shown, text))


def _shown(character: str) -> str:
    return character.encode("unicode_escape", "surrogatepass").decode() if _is_hidden(character) else character


def _is_hidden(character: str) -> bool:
    return character not in "\n\t" and unicodedata.category(character) in _HIDDEN


def printable_json(text: str) -> str:
    """JSON that says the same: what would be hidden in its strings stands as JSON's own escape."""
    if text.isascii() and "\x7f" not in text:
        return text
    return "".join(_json_escape(one) if _is_hidden(one) else one for one in text)


def _json_escape(character: str) -> str:
    return r"\u007f" if character == "\x7f" else json.dumps(character)[1:-1]


def one_line(text: str, most: int = 60) -> str:
    """The same on one line, with line ends as escapes, cut behind ``most`` characters."""
    shown = printable_text(text[: most + 1]).replace("\n", "\\n").replace("\t", "\\t")
    return shown if len(shown) <= most else f"{shown[: most - 3]}..."
