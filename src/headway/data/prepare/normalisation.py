"""Unicode and line ends. Line ends and byte order marks are the spool's rule, applied here so that every step sees the result."""

from __future__ import annotations

import re
import unicodedata

from headway.data.prepare.steps import Piece, Step, Verdict
from headway.data.spool import normalise

_CONTROL = re.compile("[\x00-\x08\x0b\x0e-\x1f\x7f-\x9f]")
_TRAILING = re.compile(r"[^\S\n]+$", re.MULTILINE)


def normalised(text: str, *, unicode: str = "as written", control: str = "keep", trailing_space: str = "keep") -> str:
    """``text`` by the rules. Control characters go first: one of them may keep two characters from composing."""
    text = normalise(text.lstrip("\ufeff"))  # of several marks the spool would leave all but one
    if control == "remove":
        text = _CONTROL.sub("", text)
    if unicode != "as written":
        text = unicodedata.normalize("NFC" if unicode == "nfc" else "NFKC", text)
    return _TRAILING.sub("", text) if trailing_space == "remove" else text


class Normalisation(Step):
    name = "text"

    def check(self, piece: Piece) -> Verdict:
        return Verdict(normalised(piece.text, **self.settings))
