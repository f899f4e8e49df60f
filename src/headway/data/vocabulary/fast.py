"""The same ids several times sooner: tiktoken in place of the tokenizers library, where both are proven to give the same ids.

    text --pattern--> pieces --merges of bytes, lowest rank first--> ids

The two differ in what they merge: tokenizers the pairs that tokenizer.json lists, tiktoken any two neighbours whose bytes make up
a token. While the borders of a part of a piece stand, what happens inside follows from its bytes alone: what is merged next in
the piece, if it lies inside, is what would be next there. So neighbours that make up token T are the two that T's own bytes, as a
piece, end in before T is made; no others ever meet. Where the bytes of every token are merged to it by the list, these two are
a listed pair, and both have the same pairs to choose from at every step. They choose alike, the lowest rank and of that the
leftmost, where the pairs of a token stand together in the list. That is what is tried, token by token.

A piece that is a token as a whole is that token at once to tiktoken, which is what merging gives. Tokens that no merge makes
are taken so by tokenizers too if the file says ignore_merges; they end in three parts or more: no two neighbours make them up.

They differ, too, in the engine that splits text into pieces. A pattern is taken if every construct in it means the same in both,
and its classes of characters are compared over all code points: documents that hold one on which the engines disagree, or
at which tiktoken's gives up, are left to tokenizers. No pattern may skip text: bytes are counted.
"""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import tokenizers
from tokenizers import Regex, models, pre_tokenizers

from headway.data.vocabulary.letters import BYTE_OF, bytes_of
from headway.data.vocabulary.splits import Policy


class NotProven(Exception):
    """Why only tokenizers will do."""


@dataclass(frozen=True)
class Proof:
    """That tiktoken gives the same ids for every text without the code points ``odd``."""

    pattern: str
    odd: str


class FastEncoder:
    """tiktoken on the merges of a tokenizer.json."""

    def __init__(self, plain: dict[str, Any], proof: Proof):
        import tiktoken

        tokens = _ranked(plain)
        vocabulary = plain["model"]["vocab"]
        ranks = {bytes_of(token): rank for rank, token in enumerate(tokens)}
        # tiktoken looks for control tokens in text, to skip what it may not read as one: give it one that is not there
        nowhere = {"\ud7ff\ue000" * 8: len(ranks)}
        self.encoding = tiktoken.Encoding("headway", pat_str=proof.pattern, mergeable_ranks=ranks, special_tokens=nowhere)
        self._ids = np.array([vocabulary[token] for token in tokens], np.uint32)
        self._is_same = bool((self._ids == np.arange(len(tokens))).all())
        self._sizes = np.array([len(token) for token in tokens], np.int64)
        self._odd = re.compile(f"[{re.escape(proof.odd)}]") if proof.odd else None

    def encode(self, text: str) -> np.ndarray | None:
        """uint32 ids; None: this text is for tokenizers."""
        size = len(text)
        if not text.isascii():
            if self._odd and self._odd.search(text):
                return None
            size = len(text.encode())
        try:
            ranks = self.encoding.encode_to_numpy(text, disallowed_special=())
        except ValueError:  # its engine's stack has a limit, which a million blanks in a row reach
            return None
        if int(self._sizes[ranks].sum()) != size:
            return None
        return ranks if self._is_same else self._ids[ranks]

    def encode_all(self, texts: list[str]) -> list[np.ndarray | None]:
        """In threads, unless the environment says that others use the cores (TOKENIZERS_PARALLELISM, as for tokenizers)."""
        if os.environ.get("TOKENIZERS_PARALLELISM") == "false" or len(texts) < 2:
            return [self.encode(text) for text in texts]
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            return list(pool.map(self.encode, texts))


def prove(plain: dict[str, Any]) -> Proof:
    """For a parsed tokenizer.json; NotProven says what stands against it. Some seconds: every code point is asked for."""
    try:
        import tiktoken  # noqa: F401
    except ImportError:
        raise NotProven("tiktoken is not installed: pip install 'headway[data]'") from None
    pattern = _pattern(plain)
    _check_merges(plain)
    return Proof(pattern, _odd(pattern))


# --- merges -----------------------------------------------------------------------------------------------------------------


def _check_merges(plain: dict[str, Any]) -> None:
    model = plain["model"]
    odd = [key for key in ("dropout", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback") if model.get(key)]
    if model["type"] != "BPE" or odd:
        raise NotProven(f"the model is {model['type']}" + (f" with {odd[0]}" if odd else ""))
    if plain.get("normalizer") is not None or any(not token["special"] for token in plain["added_tokens"]):
        raise NotProven("text is normalised, or searched for added tokens, before it is split")
    tokens, vocabulary = _ranked(plain), model["vocab"]
    if len(set(tokens)) != len(tokens):
        raise NotProven("the merges of a token stand apart")
    made = set(_alphabet()) | {left + right for left, right in _merges(plain)}
    if model.get("ignore_merges") and any(token["content"] in vocabulary for token in plain["added_tokens"]):
        raise NotProven("a control token is taken where it stands alone")
    if not all(letter in BYTE_OF for token in tokens for letter in token):
        raise NotProven("a token is not made of bytes")
    bare = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=_merges(plain)))
    found = bare.encode_batch_fast(tokens, add_special_tokens=False)
    for encoding, token in zip(found, tokens, strict=True):
        if (encoding.ids != [vocabulary[token]]) if token in made else (len(encoding.ids) < 3):
            raise NotProven(f"the bytes of token {token!r} are merged to something else")


def _merges(plain: dict[str, Any]) -> list[tuple[str, str]]:
    pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in plain["model"]["merges"])
    return [(left, right) for left, right in pairs]


def _ranked(plain: dict[str, Any]) -> list[str]:
    """Tokens in the order of their ranks: bytes, what merges make, each once where its merges stand together, and, where they are
    taken as whole pieces, the others."""
    tokens, vocabulary = _alphabet(), plain["model"]["vocab"]
    if not all(token in vocabulary for token in tokens):
        raise NotProven("the vocabulary lacks bytes")
    for left, right in _merges(plain):
        if left + right != tokens[-1]:
            tokens.append(left + right)
    return tokens + sorted(set(vocabulary) - set(tokens)) if plain["model"].get("ignore_merges") else tokens


def _alphabet() -> list[str]:
    return sorted(BYTE_OF)


# --- the pattern ------------------------------------------------------------------------------------------------------------


def _pattern(plain: dict[str, Any]) -> str:
    """What splits text, as one pattern that means the same to both engines."""
    first, *rest = _steps(plain.get("pre_tokenizer"))
    if first["type"] == "ByteLevel" and not rest and first.get("use_regex", True) and not first["add_prefix_space"]:
        return Policy().pattern
    is_plain = [step["type"] for step in rest] == ["ByteLevel"] and not rest[0].get("use_regex", True)
    is_split = first["type"] == "Split" and first["behavior"] == "Isolated" and not first["invert"]
    if not (is_plain and is_split and not rest[0]["add_prefix_space"] and "Regex" in first["pattern"]):
        raise NotProven("text is split by other means than one pattern")
    pattern = first["pattern"]["Regex"]
    if left := _not_understood(pattern):
        raise NotProven(f"the pattern has {left[:8]!r}, which engines read in different ways")
    return pattern


def _steps(pre_tokenizer: dict[str, Any] | None) -> list[dict[str, Any]]:
    if pre_tokenizer is None or pre_tokenizer.get("pretokenizers") == []:
        raise NotProven("text is not split")
    return pre_tokenizer["pretokenizers"] if pre_tokenizer["type"] == "Sequence" else [pre_tokenizer]


_CLASS = r"\\[pP]\{\w+\}|\\[sSdDwW]"
_LITERAL = r"\\[rnt]|\\[^\w\s]"
_CONSTRUCT = re.compile(
    rf"""{_CLASS} | {_LITERAL}
    | \[\^?(?:{_CLASS}|{_LITERAL}|(?!--|&&|~~)[^\\\[\]])+\]
    | \(\?(?::|i:|!|=|<!|<=)(?!\?) | \((?!\?) | \) | \|
    | [?*+]\+?(?![?*+]) | \{{\d+(?:,\d*)?\}}(?![?*+])
    | [^\\\[\](){{}}|?*+.^$]""",
    re.VERBOSE,
)


def _not_understood(pattern: str) -> str:
    """What is left of it where a construct begins that is in neither engine's common ground; empty: nothing."""
    place = 0
    while place < len(pattern):
        found = _CONSTRUCT.match(pattern, place)
        if not found:
            return pattern[place:]
        place = found.end()
    return ""


def _odd(pattern: str) -> str:
    """Code points on which the engines may disagree."""
    found: set[str] = set()
    names = sorted({_positive(one) for one in re.findall(_CLASS, pattern)})
    far = bool(names) and _of_class(f"[{''.join(names)}]", _FAR) != ("", "")  # all classes at once: they are empty there
    for one in names:
        found |= _compare(one, _NEAR) | (_compare(one, _FAR) if far else frozenset())
    if "(?i:" in pattern:  # letters beyond ASCII that are the same as one or more of the pattern's in another case
        lower = pattern.lower()
        folded = {chr(c): chr(c).casefold() for c in range(128, 0x20000)}
        found |= {letter for letter, fold in folded.items() if fold.isascii() and fold in lower}
    return "".join(sorted(found))


def _positive(one: str) -> str:
    return one.replace(r"\P", r"\p").replace(r"\S", r"\s").replace(r"\D", r"\d").replace(r"\W", r"\w")


_NEAR = (*range(0xD800), *range(0xE000, 0x40000), *range(0xE0000, 0xF0000))
_FAR = (*range(0x40000, 0xE0000), *range(0xF0000, 0x110000))
"""Planes with characters, and those that have none, or private ones."""


@cache
def _compare(one: str, points: tuple[int, ...]) -> frozenset[str]:
    """Code points that are of a class to one engine alone."""
    ours, theirs = _of_class(one, points)
    return frozenset(ours) ^ frozenset(theirs) if ours != theirs else frozenset()


def _of_class(one: str, points: tuple[int, ...]) -> tuple[str, str]:
    """Code points of a class in tokenizers' engine and in tiktoken's, as text. NotProven: one of them does not know the class."""
    import tiktoken

    text = "".join(map(chr, points))
    try:
        pieces = pre_tokenizers.Split(Regex(f"{one}+"), "removed", invert=True).pre_tokenize_str(text)
        bytes_alone = {bytes([b]): b for b in range(256)}
        encoding = tiktoken.Encoding("classes", pat_str=f"{one}+", mergeable_ranks=bytes_alone, special_tokens={})
    except Exception as error:  # of either's own kind
        raise NotProven(f"the class {one} is not known to both engines: {error}") from None
    return "".join(piece for piece, _ in pieces), bytes(encoding.encode_ordinary(text)).decode()
