"""A SentencePiece model (byte pairs or unigram) as a tokenizer.json. The file is a protobuf message; nothing of it is executed.

    ModelProto   1 pieces {1 piece, 2 score, 3 type}   2 trainer {3 model type, 24 suffix, 35 byte fallback}
                 3 normaliser {2 table of characters, 3 blank before the text, 4 blanks in a row become one, 5 blanks as U+2581}

SentencePiece merges over a whole text. Where no piece has a blank inside, none reaches over the head of a word, and text is split
there first. Texts of control pieces and of byte pieces ("<s>", "<0x0A>") are no pieces for SentencePiece; unigram here would take
them for ones, so they are split after their first character. Symbols of the user are taken from text whole; in a model of byte
pairs that puts a blank before text they become control tokens, since tokenizers would put a blank behind each of them.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers

from headway.base.errors import ConfigError

BLANK = "\u2581"
NORMAL, UNKNOWN, CONTROL, USER, UNUSED, BYTE = range(1, 7)
UNIGRAM, PAIRS = 1, 2
Value = TypeVar("Value", int, bytes)
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


@dataclass(frozen=True)
class Piece:
    text: str
    score: float = 0.0
    type: int = NORMAL


@dataclass(frozen=True)
class Model:
    pieces: list[Piece] = field(repr=False)
    type: int = UNIGRAM
    byte_fallback: bool = False
    blank_as_suffix: bool = False
    characters: bytes = field(default=b"", repr=False)
    blank_first: bool = True
    one_blank: bool = True
    escapes_blanks: bool = True

    def of_type(self, *types: int) -> list[str]:
        return [piece.text for piece in self.pieces if piece.type in types]


def read(data: bytes, name: str) -> Model:
    """ConfigError for a file that is none, or is cut."""
    try:
        model = _model(data)
    except (IndexError, ValueError, struct.error):  # UnicodeDecodeError too
        model = Model([])
    if not {NORMAL, UNKNOWN} <= {piece.type for piece in model.pieces}:
        raise ConfigError(
            f"{name} is no tokenizer that is known",
            "it is a tokenizer.json, tekken.json, .tiktoken file or SentencePiece model, known by its content",
            "check that the file is whole",
        )
    return model


def _model(data: bytes) -> Model:
    fields: dict[str, Any] = {}
    pieces: list[Piece] = []
    for number, value in _fields(data):
        if number not in (1, 2, 3):
            continue
        found = _Message(value)
        if number == 1:
            score = struct.unpack("<f", found.get(2, bytes(4)))[0]
            pieces.append(Piece(found.get(1, b"").decode(), score, found.get(3, NORMAL)))
        elif number == 2:
            fields |= {"type": found.get(3, UNIGRAM), "byte_fallback": bool(found.get(35, 0))}
            fields |= {"blank_as_suffix": bool(found.get(24, 0))}
        else:
            fields |= {"characters": found.get(2, b""), "blank_first": bool(found.get(3, 1))}
            fields |= {"one_blank": bool(found.get(4, 1)), "escapes_blanks": bool(found.get(5, 1))}
    return Model(pieces, **fields)


class _Message:
    """A message inside the file. ValueError: a field of another type than its default."""

    def __init__(self, data: Any):
        if not isinstance(data, bytes):
            raise ValueError
        self._found = dict(_fields(data))

    def get(self, number: int, default: Value) -> Value:
        value = self._found.get(number, default)
        if not isinstance(value, type(default)):
            raise ValueError
        return value


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Number and value of each field: int, or bytes."""
    place = 0
    while place < len(data):
        key, place = _varint(data, place)
        kind = key & 7
        value: Any
        if kind == _VARINT:
            value, place = _varint(data, place)
        elif kind in (_FIXED32, _FIXED64, _BYTES):
            size = {_FIXED32: 4, _FIXED64: 8}.get(kind)
            if size is None:
                size, place = _varint(data, place)
            if place + size > len(data):
                raise ValueError
            value, place = data[place : place + size], place + size
        else:
            raise ValueError
        yield key >> 3, value


def _varint(data: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[place]
        value |= (byte & 0x7F) << shift
        place, shift = place + 1, shift + 7
        if byte < 0x80:
            return value, place
        if shift > 63:
            raise ValueError


# --- as a tokenizer.json ----------------------------------------------------------------------------------------------------


def convert(model: Model, name: str) -> tokenizers.Tokenizer:
    """ConfigError for what tokenizers cannot do."""
    _refuse(model, name)
    inner = tokenizers.Tokenizer(_pairs(model) if model.type == PAIRS else _unigram(model))
    inner.normalizer = normalizers.Sequence(_normalizers(model))
    if splits := _splits(model):
        inner.pre_tokenizer = pre_tokenizers.Sequence(splits)
    steps = [decoders.Replace(BLANK, " "), *([decoders.ByteFallback()] if model.byte_fallback else []), decoders.Fuse()]
    inner.decoder = decoders.Sequence([*steps, *([decoders.Strip(" ", 1, 0)] if model.blank_first else [])])
    controls = model.of_type(UNKNOWN, CONTROL)
    if model.type == PAIRS and model.blank_first:
        controls += model.of_type(USER)
    elif model.type == PAIRS:
        inner.add_tokens([AddedToken(text, normalized=True) for text in model.of_type(USER)])
    inner.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in controls])
    return inner


def _refuse(model: Model, name: str) -> None:
    seen = ""
    if model.type not in (UNIGRAM, PAIRS):
        seen = "splits into words or characters"
    elif model.blank_as_suffix or not model.escapes_blanks:
        seen = "has blanks at the end of words, or as they are"
    if seen:
        raise ConfigError(
            f"{name}: a SentencePiece model that {seen}",
            "of SentencePiece, byte pairs and unigram with blanks before words are taken",
            "train one with model_type bpe or unigram and the other settings at their defaults",
        )


def _pairs(model: Model) -> models.BPE:
    """All pairs of pieces that make up a piece, by its score."""
    usable = {piece.text: piece.score for piece in model.pieces if piece.type in (NORMAL, USER)}
    order = sorted((piece for piece in model.pieces if piece.type == NORMAL), key=lambda piece: -piece.score)  # equal: by id
    merges = [
        (piece.text[:i], piece.text[i:])
        for piece in order
        for i in range(1, len(piece.text))
        if piece.text[:i] in usable and piece.text[i:] in usable
    ]
    vocabulary = {piece.text: identity for identity, piece in enumerate(model.pieces)}
    unknown = model.of_type(UNKNOWN)[0]
    return models.BPE(vocab=vocabulary, merges=merges, unk_token=unknown, fuse_unk=True, byte_fallback=model.byte_fallback)


def _unigram(model: Model) -> models.Unigram:
    best = max(piece.score for piece in model.pieces if piece.type == NORMAL)
    scores = [  # symbols of the user are always taken: SentencePiece's own bonus
        (piece.text, len(piece.text) * best - 0.1 if piece.type == USER else piece.score) for piece in model.pieces
    ]
    unknown = next(identity for identity, piece in enumerate(model.pieces) if piece.type == UNKNOWN)
    return models.Unigram(scores, unk_id=unknown, byte_fallback=model.byte_fallback)


def _normalizers(model: Model) -> list[normalizers.Normalizer]:
    steps: list[normalizers.Normalizer] = []
    if model.characters:
        steps.append(normalizers.Precompiled(model.characters))
    if model.one_blank:
        steps += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    if model.blank_first:
        steps.append(normalizers.Prepend(BLANK))
    return [*steps, normalizers.Replace(" ", BLANK)]


def _splits(model: Model) -> list[pre_tokenizers.PreTokenizer]:
    splits: list[pre_tokenizers.PreTokenizer] = []
    if model.type == UNIGRAM:
        guarded = "|".join(
            f"{re.escape(t[0])}(?={re.escape(t[1:])})" for t in model.of_type(CONTROL, UNKNOWN, BYTE) if len(t) > 1
        )
        splits.append(pre_tokenizers.Split(Regex(guarded), "isolated"))
    if not any(BLANK in text.lstrip(BLANK) for text in model.of_type(NORMAL, USER)):
        splits.append(pre_tokenizers.Split(Regex(f"{BLANK}*[^{BLANK}]+|{BLANK}+"), "isolated"))
    return splits
