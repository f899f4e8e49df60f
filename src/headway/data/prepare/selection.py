"""Which documents are taken at all: by the end of their names, and by language.

Languages are told by script where a script has one language of note, else by the share of the most frequent function words:
on a few sentences that is as sure as a trained model, it needs no model file to be fetched and trusted, and what it does not
know it calls unknown instead of guessing. It does not tell close relatives apart (Norwegian reads as unknown).
"""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

from headway.data.prepare.steps import Piece, Step, Verdict

READ_CHARACTERS = 20_000
"""Of a document's head: the language of more than that is hardly in doubt."""

_SCRIPTS = {
    "ar": "\u0600-\u06ff",
    "cyrillic": "\u0400-\u04ff",
    "el": "\u0370-\u03ff",
    "he": "\u0590-\u05ff",
    "hi": "\u0900-\u097f",
    "kana": "\u3040-\u30ff",
    "ko": "\uac00-\ud7af",
    "th": "\u0e00-\u0e7f",
    "zh": "\u4e00-\u9fff",
}
_SCRIPT_PATTERNS = {name: re.compile(f"[{characters}]") for name, characters in _SCRIPTS.items()}
_LEAST_OF_SCRIPT, _LEAST_OF_KANA = 0.5, 0.05
_FUNCTION_WORDS = {
    "en": "the of and to in is that for it with as was on are be this by not or from which an have has at but they",
    "de": "der die das und ist nicht ein eine zu den von mit auf für im dem des sich als auch es werden wird oder aus sie",
    "fr": "le la les des et est un une dans que qui pour pas sur par au avec ce il sont du ne se ou être leur plus",
    "es": "el la los las de que y en un una es por con para no se del al como su lo más son o pero sus todos",
    "it": "il lo gli della di che è un una per non con del sono dei alla nel si da come le più anche essere ogni ed",
    "pt": "o os as da do que e em um uma é para não com dos das por se na no ao mais como são todos ou à",
    "nl": "de het een en van is dat niet op te zijn in voor met die aan er worden als ook door bij of uit naar wordt",
    "sv": "och att det som en på är av för med den till inte ett om har de han var eller från alla sina kan ska",
    "pl": "i w na nie się że do to jest z o jak ale po co przez od są dla oraz lub jego których być wszyscy",
    "tr": "ve bir bu da için ile de olarak olan daha çok gibi en kadar her ya sonra olduğu göre var ne değil veya",
}
_WORDS_OF = {language: frozenset(words.split()) for language, words in _FUNCTION_WORDS.items()}
_LANGUAGES_OF = {
    word: [language for language, known in _WORDS_OF.items() if word in known] for word in frozenset().union(*_WORDS_OF.values())
}
_WORD = re.compile(r"[^\W\d_]+")
_LEAST_SHARE, _LEAST_LEAD, _LEAST_WORDS, _LEAST_DISTINCT = 0.12, 1.3, 8, 4
"""Of all words, over the second language, in all, and different ones: "op" alone makes no Dutch of a list of opcodes."""
_UKRAINIAN = re.compile("[іїєґ]")


def language_of(text: str) -> str:
    """Its code, or "" where that cannot be told."""
    words = _WORD.findall(text[:READ_CHARACTERS].lower())
    letters = "".join(words)
    counts = {name: len(pattern.findall(letters)) for name, pattern in _SCRIPT_PATTERNS.items()}
    if counts["kana"] + counts["zh"] > _LEAST_OF_SCRIPT * len(letters) and counts["kana"] > _LEAST_OF_KANA * len(letters):
        return "ja"
    script = max(counts, key=lambda name: counts[name])
    if counts[script] > _LEAST_OF_SCRIPT * len(letters):
        return "uk" if script == "cyrillic" and _UKRAINIAN.search(letters) else {"cyrillic": "ru"}.get(script, script)
    return _by_function_words(words)


def _by_function_words(words: list[str]) -> str:
    if len(words) < _LEAST_WORDS:
        return ""
    found = Counter(language for word in words for language in _LANGUAGES_OF.get(word, ()))
    (best, most), (_, second) = (*found.most_common(2), ("", 0), ("", 0))[:2]
    sure = most >= _LEAST_SHARE * len(words) and most >= _LEAST_LEAD * second
    return best if sure and len(_WORDS_OF[best].intersection(words)) >= _LEAST_DISTINCT else ""


class Languages(Step):
    name = "languages"

    def check(self, piece: Piece) -> Verdict:
        language = language_of(piece.text)
        wanted = language in self.settings["keep"] if language else self.settings["unknown"] == "keep"
        return Verdict(piece.text) if wanted else Verdict(piece.text, "language", language or "unknown")


class Extensions(Step):
    name = "extensions"

    def check(self, piece: Piece) -> Verdict:
        return Verdict(piece.text) if extension_is_taken(piece.origin, **self.settings) else Verdict(piece.text, "extension")


def extension_is_taken(origin: str, *, keep: Any, drop: Any) -> bool:
    """By the end of the file's name; of a line of a file (``x.jsonl:3``), by the file's."""
    name = re.sub(r":\d+$", "", origin)
    return not name.endswith(tuple(drop)) and (not keep or name.endswith(tuple(keep)))
