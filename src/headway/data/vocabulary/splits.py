"""How text is split into pieces before merges: no token reaches over two pieces. One regular expression each.

def f(x):\\n        return 123456      runs          def| f|(|x|):|\\n       | return| 123456
                                       indentation   def| f|(|x|):|\\n|        |return| 123456
                                       groups-of-3                                    ...| |123|456
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby

from tokenizers import Regex, pre_tokenizers

_CONTRACTIONS = r"'s|'t|'re|'ve|'m|'ll|'d"
DIGITS = {
    "any": r" ?\p{N}+",
    "single": r"\p{N}",
    # so far ahead and no further: a file of digits would take quadratic time
    "groups-of-3": r"\p{N}{1,3}(?=(?:\p{N}{3}){0,20}(?!\p{N}))|\p{N}{3}",
}
WHITESPACE = {
    "runs": ("", r"\s+(?!\S)|\s+"),
    "lines": ("", r"\s*[\r\n]+|\s+(?!\S)|\s+"),
    "indentation": (r"(?<![^\n])[ \t]+|", r"\n+|[^\S\n]+(?!\S)|[^\S\n]+"),
    "single": ("", r"\s"),
}
"""Before words and after all else."""


@dataclass(frozen=True)
class Policy:
    """Keys of the recipe's [tokenizer]; at their defaults GPT-2's split."""

    digits: str = "any"
    whitespace: str = "runs"

    @property
    def pattern(self) -> str:
        before, after = WHITESPACE[self.whitespace]
        return rf"{before}{_CONTRACTIONS}| ?\p{{L}}+|{DIGITS[self.digits]}| ?[^\s\p{{L}}\p{{N}}]+|{after}"

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        if self == Policy():
            return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
        return split_by(self.pattern)


def split_by(pattern: str) -> pre_tokenizers.PreTokenizer:
    """By a pattern, then bytes. Exception for one that is no regular expression."""
    by_pattern = pre_tokenizers.Split(Regex(pattern), "isolated")
    return pre_tokenizers.Sequence([by_pattern, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


GPT2 = Policy()
LONGEST_PIECE = 1000
"""Characters of a piece of text that is trained on, such as a word: longer ones are rules and data, not language."""
_SPACE = r"\t-\r \x85\xa0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"  # as the patterns' engine has it


def _run(characters: int) -> re.Pattern[str]:
    """So many without a space, or spaces alone. Linear: each run is tried at its head."""
    return re.compile(rf"(?<![^{_SPACE}])[^{_SPACE}]{{{characters}}}|(?<![{_SPACE}])[{_SPACE}]{{{characters}}}")


_STEP = 10
_LONG, _LONG_OF_TENTH = _run(LONGEST_PIECE), _run(LONGEST_PIECE // _STEP - 1)


def _may_have_long(text: str) -> bool:
    """A long piece is at most one blank and then no space, or spaces alone: every tenth character shows it, ten times sooner."""
    return bool(_LONG_OF_TENTH.search(text[::_STEP]) and _LONG.search(text))


class ShortPieces:
    """``texts`` to train on, without pieces of more than LONGEST_PIECE characters; ``left_out``: characters of these so far.

    A text that has none is as it was; of another come the parts between.
    """

    def __init__(self, texts: Iterable[str], policy: Policy):
        self._texts, self._split = texts, pre_tokenizers.Split(Regex(policy.pattern), "isolated")
        self.left_out = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            if not _may_have_long(text):
                yield text
                continue
            pieces = (piece for piece, _ in self._split.pre_tokenize_str(text))
            for is_long, some in groupby(pieces, lambda piece: len(piece) > LONGEST_PIECE):
                part = "".join(some)
                if is_long:
                    self.left_out += len(part)
                else:
                    yield part


_ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_TAIL = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_HEAD = r"[^\r\n\p{L}\p{N}]?"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
KNOWN = {
    "gpt2": GPT2.pattern,
    "cl100k": rf"{_ENDINGS}|{_HEAD}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}",
    "o200k": rf"{_HEAD}{_UPPER}*{_LOWER}+{_ENDINGS}?|{_HEAD}{_UPPER}+{_LOWER}*{_ENDINGS}?|\p{{N}}{{1,3}}"
    rf"| ?[^\s\p{{L}}\p{{N}}]+[\r\n/]*|{_TAIL}",
    "qwen2": rf"{_ENDINGS}|{_HEAD}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_TAIL}",
    "qwen3.5": rf"{_ENDINGS}|{_HEAD}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_TAIL}",
}
"""Published splits of .tiktoken files, written so that both regex engines read them alike (tiktoken_ext.openai_public; qwen)."""
