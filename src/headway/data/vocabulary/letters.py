"""The byte-level alphabet of tokenizer.json: a printable letter for every byte, as GPT-2 chose them."""

from __future__ import annotations

_PRINTABLE = [*range(ord("!"), ord("~") + 1), *range(ord("\u00a1"), ord("\u00ac") + 1), *range(ord("\u00ae"), ord("\u00ff") + 1)]
_OTHERS = [byte for byte in range(256) if byte not in _PRINTABLE]
BYTE_OF = {chr(byte): byte for byte in _PRINTABLE} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
LETTER_OF = {byte: letter for letter, byte in BYTE_OF.items()}


def bytes_of(token: str) -> bytes:
    return bytes(BYTE_OF[letter] for letter in token)


def letters_of(data: bytes) -> str:
    return "".join(LETTER_OF[byte] for byte in data)
