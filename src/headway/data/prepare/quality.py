"""Rules of quality, and n-grams that follow each other again and again.

The rules are of the kind that Gopher, C4 and the filters of The Stack use: each measures one thing in linear time. Their
defaults let good prose and code pass (tests/data/test_prepare_filters.py measures it); they are no judgement of content.

Repeats: OLMo 2 left out documents with 32 or more repeats in a row of an n-gram of 1 to 13 tokens, since those were found where
the gradient's norm jumped. Here units are words and runs of one sign, so that a ruler ("-----") is one unit and no repeat; no
tokenizer is needed before the documents that it is trained on are chosen.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from headway.data.prepare.characters import DIGIT, LETTER, SPACE, count, traits
from headway.data.prepare.steps import Piece, Step, Verdict
from headway.data.prepare.words import unit_hashes


class Quality(Step):
    name = "quality"

    def check(self, piece: Piece) -> Verdict:
        reason, detail = next(broken_rules(piece.text, **self.settings), ("", ""))
        return Verdict(piece.text, reason, detail)


def broken_rules(
    text: str,
    *,
    least_characters: int,
    least_letters: float,
    most_digits: float,
    longest_word: int,
    mean_line: int,
    most_repeated_lines: float,
) -> Iterator[tuple[str, str]]:
    """(reason, the measured value) of each rule that ``text`` breaks, cheapest first. 0, and a share of 1, are no rule."""
    stripped = text.strip()
    if len(stripped) < least_characters:
        yield "short", f"{len(stripped)} characters"
    flags = traits(text)  # of what was not stripped: white space at the ends counts as nothing
    visible = len(flags) - count(flags, SPACE)
    digits = count(flags, DIGIT)
    if most_digits < 1 and digits > most_digits * visible:
        yield "digits", f"{digits / visible:.2f} digits"
    letters = count(flags, LETTER)
    if letters < least_letters * visible:
        yield "few_letters", f"{letters / visible:.2f} letters"
    longest = longest_run(flags) if longest_word else 0
    if longest > longest_word:
        yield "long_word", f"a word of {longest:,} characters"
    lines = [line.strip() for line in stripped.split("\n")]
    mean = len(stripped) / len(lines)
    if mean_line and mean > mean_line:
        yield "long_lines", f"{mean:.0f} characters a line"
    repeated = repeated_share(lines)
    if most_repeated_lines < 1 and repeated > most_repeated_lines:
        yield "repeated_lines", f"{repeated:.2f} repeated"


def longest_run(flags: np.ndarray) -> int:
    """Characters without white space between them, at most."""
    spaces = np.flatnonzero(flags & SPACE)
    return int(np.diff(spaces, prepend=-1, append=len(flags)).max()) - 1


def repeated_share(lines: list[str]) -> float:
    """Share of characters in lines that stood in the document before."""
    total = sum(map(len, lines))
    return 1 - sum(map(len, set(lines))) / total if total else 0.0


class Repeats(Step):
    name = "repeats"

    def check(self, piece: Piece) -> Verdict:
        hashes = unit_hashes(piece.text)
        self.operations["units compared"] += len(hashes) * self.settings["words"]
        for length in range(1, self.settings["words"] + 1):
            times = most_repeats(hashes, length, self.settings["times"])
            if times >= self.settings["times"]:
                return Verdict(piece.text, "repeated_ngram", f"{times:,} times {length} words")
        return Verdict(piece.text)


def most_repeats(hashes: np.ndarray, length: int, times: int = 2) -> int:
    """How often an n-gram of ``length`` units stands in a row, at most; where that is less than ``times``, 1 may be said too."""
    if len(hashes) <= length:
        return 1
    # Where an n-gram stands ``times`` times in a row, so many units are equal to those ``length`` before them: some of every
    # such stretch are looked at first, since hardly any text has one.
    stretch = (times - 1) * length
    if not (hashes[length + stretch - 1 :: stretch] == hashes[stretch - 1 : len(hashes) - length : stretch]).any():
        return 1
    differ = np.flatnonzero(hashes[length:] != hashes[:-length])
    bounds = np.concatenate(([-1], differ, [len(hashes) - length]))
    return int(np.diff(bounds).max() - 1) // length + 1
