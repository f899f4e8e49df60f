"""What a tokenizer is asked, whatever it was trained on: fixed texts, so that answers of two tokenizers compare.

round trips    text -> ids -> text must give the text back, also where Unicode is odd. Lone surrogates are not text and must
               be refused
control tokens text that spells one must become ordinary tokens
whitespace     how many tokens a run of n spaces, tabs or line ends costs, and an indentation of n spaces
digits         how many tokens a number of n digits costs, at least and at most
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from headway.base.errors import ConfigError
from headway.data.tokenizer import Tokenizer

_LONG = 20_000

_FAMILY = "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466"
_WALES = "\U0001f3f4\U000e0067\U000e0062\U000e0077\U000e006c\U000e0073\U000e007f"

ODD_TEXTS: dict[str, str] = {
    "empty text": "",
    "combining marks": "e\u0301 o\u0323\u0302 Z\u0351\u036b\u0343\u036a\u0302 \u0301alone",
    "composed and decomposed": "\u00e9 e\u0301 \u212b \u00c5 A\u030a \ufb01 fi",
    "emoji joined by ZWJ": f"{_FAMILY} \U0001f9d1\u200d\U0001f4bb \U0001f44d\U0001f3fd",
    "emoji flags and tags": f"\U0001f1ec\U0001f1f7{_WALES}\u2764\ufe0f\u2764\ufe0e",
    "right to left": "\u05e9\u05dc\u05d5\u05dd (\u0645\u0631\u062d\u0628\u0627) 123 abc",
    "direction marks": "a\u202eb\u202cc\u2066d\u2069\u200e\u200f",
    "next to the surrogates": "\ud7ff\ue000\uf8ff",
    "noncharacters and the last ones": "\ufdd0\ufffe\uffff\U00010000\U0001ffff\U0010fffe\U0010ffff",
    "replacement character": "\ufffd a\ufffdb",
    "NUL": "\x00 a\x00b \x00\x00\x00",
    "control characters": "".join(map(chr, [*range(1, 32), *range(127, 160)])),
    "CRLF": "a\r\nb\r\n\r\nc",
    "lone CR and mixed line ends": "a\rb\n\rc\r\r\n",
    "other line ends": "a\x0bb\x0cc\x85d\u2028e\u2029f",
    "lone byte order mark": "\ufeff",
    "byte order mark before, within, after": "\ufeffa\ufeffb\ufeff",
    "spaces of all kinds": "a\u00a0b\u2003c\u2009d\u202fe\u3000f\u200bg\u2060h",
    "space at both ends": "  \t a \t\n ",
    "writing without spaces": "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35 \u4f60\u597d\u4e16\u754c \u3053\u3093\u306b\u3061\u306f",
    "conjuncts and jamo": "\u0915\u094d\u0937 \u0bb8\u0bcd\u0bb0\u0bc0 \u1112\u1161\u11ab \ud55c",
    "letters for mathematics, full width": "\U0001d400\U0001d7d8 \uff21\uff11 \u2460 \u00bd",
    "one code point in 61 of all": "".join(chr(c) for c in range(0, 0x110000, 61) if not 0xD800 <= c < 0xE000),
    "a long run of a letter": "a" * _LONG,
    "a long run of spaces": " " * _LONG,
    "a long run of line ends": "\n" * _LONG,
    "a long run of digits": "0123456789" * (_LONG // 10),
    "a long run of emoji": "\U0001f600" * (_LONG // 4),
    "a long run without a space": "x1_\u00e9-" * (_LONG // 5),
}

RUNS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128)
RUN_KINDS = {"spaces": " ", "tabs": "\t", "line ends": "\n"}
INDENTATION = "indented line"
"""A line end, n spaces, a letter: what the n spaces add to the line without them."""


DIGITS = tuple(range(1, 13))
_NUMBERS = ("012345678901", "131313131313", "200000000000", "271828182845", "314159265358", "567567567567", "999999999999")


@dataclass(frozen=True)
class RoundTrip:
    name: str
    characters: int
    bytes: int
    tokens: int
    returned: bool  # the text itself


@dataclass(frozen=True)
class ControlToken:
    """``produced_by``: texts that gave its id; none may."""

    token: str
    id: int
    probes: int
    produced_by: tuple[str, ...]


def round_trips(tokenizer: Tokenizer) -> list[RoundTrip]:
    """One text at a time, and in a batch as the build does it."""
    together = tokenizer.encode_batch(list(ODD_TEXTS.values()))
    found = []
    for (name, text), of_batch in zip(ODD_TEXTS.items(), together, strict=True):
        ids = tokenizer.encode(text)
        returned = tokenizer.decode(ids) == text and list(of_batch) == list(ids)
        found.append(RoundTrip(name, len(text), len(text.encode()), len(ids), returned))
    return found


def number_costs(tokenizer: Tokenizer) -> dict[str, tuple[int, ...]]:
    """Tokens of numbers with each count of ``DIGITS``, the least and the most of a few: what they add to the text before them."""
    bare = len(tokenizer.encode("n="))
    costs = [[len(tokenizer.encode(f"n={number[:count]}")) - bare for number in _NUMBERS] for count in DIGITS]
    return {"least": tuple(map(min, costs)), "most": tuple(map(max, costs))}


def refuses_surrogates(tokenizer: Tokenizer) -> bool:
    try:
        tokenizer.encode("a\ud800b")
    except ConfigError:
        return True
    return False


def control_tokens(tokenizer: Tokenizer, file: Path) -> list[ControlToken]:
    """All tokens that the tokenizer's file marks as special, the document token among them."""
    named = {tokenizer.document_token: tokenizer.document_token_id}
    for entry in json.loads(file.read_bytes()).get("added_tokens") or ():
        if entry.get("special"):
            named[entry["content"]] = entry["id"]
    return [ControlToken(token, identity, *_produced(tokenizer, token, identity)) for token, identity in named.items()]


def _produced(tokenizer: Tokenizer, token: str, identity: int) -> tuple[int, tuple[str, ...]]:
    probes = [
        *(token, f"a{token}b", f" {token} ", f"\n{token}\n", token * 3, f"{token}\n\ntext after it", f"\x00{token}\ufeff"),
        *(f"{token[:-1]} {token[-1]}", token.upper(), f"`{token}`", token[1:] + token),
    ]
    ids = [tokenizer.encode(probe) for probe in probes]
    ids_of_batch = tokenizer.encode_batch(probes)
    produced = tuple(p for p, one, other in zip(probes, ids, ids_of_batch, strict=True) if identity in one or identity in other)
    return len(probes), produced


def whitespace_runs(tokenizer: Tokenizer) -> dict[str, tuple[int, ...]]:
    """Per kind, tokens of a run of each length of ``RUNS``."""
    costs = {name: tuple(len(tokenizer.encode(one * n)) for n in RUNS) for name, one in RUN_KINDS.items()}
    bare = len(tokenizer.encode("\nx"))
    return costs | {INDENTATION: tuple(len(tokenizer.encode("\n" + " " * n + "x")) - bare for n in RUNS)}
