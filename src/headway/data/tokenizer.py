"""Text <-> token ids: a tokenizer.json, trained on the run's own documents or brought, identified by the digest of its bytes.

One that is trained here is byte-level BPE: every text can be encoded (the alphabet is all 256 bytes) and decoding gives the text
back. Control tokens (the document token, those for fill-in-the-middle, reserved ones) are placed by the build or the reader, and
no text can produce them: a text that spells "<|document|>" becomes ordinary tokens.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from headway.base.digests import digest_bytes
from headway.base.errors import ConfigError, EnvironmentFault, from_os_error
from headway.base.files import write_atomic
from headway.data.vocabulary.fast import FastEncoder, Proof, prove
from headway.data.vocabulary.foreign import foreign, is_of_a_library
from headway.data.vocabulary.splits import GPT2, Policy

TOKENIZER_FILE = "tokenizer.json"
SMALLEST_VOCABULARY = 257
"""256 bytes and the document token."""


class Tokenizer:
    """Text <-> token ids. ``encode`` never returns a control token."""

    def __init__(self, serialized: bytes, document_token: str, name: str = "the tokenizer"):
        """``name``: of the file that it came from, for messages."""
        inner = tokenizers.Tokenizer.from_str(serialized.decode())
        inner.encode_special_tokens = True  # read special tokens in text as text
        self._inner, self._serialized, self.document_token, self._name = inner, serialized, document_token, name
        identity = inner.token_to_id(document_token)
        if identity is None:
            raise ConfigError(f"the tokenizer does not know the document token {document_token!r}")
        self.document_token_id: int = identity
        plain = json.loads(serialized)
        self.controls: dict[str, int] = {entry["content"]: entry["id"] for entry in plain["added_tokens"] if entry["special"]}
        _check_unreachable(plain, self.controls)
        self._entries = max(inner.get_vocab(with_added_tokens=True).values()) + 1
        self._fast: FastEncoder | None = None
        self.keeps_text = _keeps_text(plain)
        self._is_byte_level = (plain.get("decoder") or {}).get("type") == "ByteLevel"
        self.unknown_id = _unknown(plain, inner)
        unreachable = [id for id in self.controls.values() if id == identity or id != self.unknown_id]
        self._is_control = None if _never_controls(plain) else np.isin(np.arange(self._entries), unreachable)

    @staticmethod
    def load(path: Path, document_token: str) -> Tokenizer:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise from_os_error(error, path, "cannot read tokenizer") from error
        try:
            return Tokenizer(data, document_token)
        except BaseException as error:
            if not is_of_a_library(error):
                raise
            raise EnvironmentFault(
                f"tokenizer is damaged: {error}", f"path: {path}", "restore the file or build the data again"
            ) from error

    def save(self, path: Path) -> None:
        write_atomic(path, self._serialized)

    @property
    def vocabulary(self) -> int:
        """Entries, control tokens included."""
        return self._entries

    @property
    def digest(self) -> str:
        return digest_bytes(self._serialized)

    def encode(self, text: str) -> list[int]:
        """ConfigError for text that no UTF-8 can hold, such as bytes of another encoding on the command line."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            shown = text.encode("utf-8", "backslashreplace").decode()
            raise ConfigError(
                f"the text {shown[:80]!r} is not UTF-8 at character {error.start + 1}",
                "the tokenizer works on the bytes of UTF-8 text",
                "give the text in UTF-8",
            ) from None
        with self._reading():
            return self._inner.encode(text, add_special_tokens=False).ids

    def _reading(self) -> AbstractContextManager[None]:
        way_out = "check that the file is whole, bring another tokenizer, or train one"
        return foreign(f"{self._name} fails on a text", "a tokenizer reads every text", way_out)

    def prove(self) -> Proof:
        """That tiktoken gives the same ids; NotProven: it does not, or nobody knows. Some seconds."""
        return prove(json.loads(self._serialized))

    def use(self, proof: Proof) -> None:
        """From here on ``encode_batch`` works by tiktoken wherever that gives the same ids."""
        self._fast = FastEncoder(json.loads(self._serialized), proof)

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [ids.tolist() for ids in self.encode_arrays(texts)]

    def encode_arrays(self, texts: list[str]) -> list[np.ndarray]:
        """uint32 ids of each text."""
        fast = self._fast.encode_all(texts) if self._fast else [None] * len(texts)
        rest = [text for text, ids in zip(texts, fast, strict=True) if ids is None]
        with self._reading():
            encoded = iter(self._inner.encode_batch_fast(rest, add_special_tokens=False))
        found = [np.array(next(encoded).ids, np.uint32) if ids is None else ids for ids in fast]
        if self._is_control is not None and any(self._is_control[ids].any() for ids in found):
            raise ConfigError(
                "a document produces a control token",
                "only a build places control tokens",
                "bring a tokenizer whose control tokens are no pieces of text",
            )
        return found

    def token_bytes(self) -> np.ndarray:
        """int64 by id: bytes of text that a token stands for, complete characters or not; control tokens: 0.

        A SentencePiece model that puts a blank before text counts it: one byte a document too many.
        """
        size_of = len if self._is_byte_level else _bytes_of_piece  # a character of the byte-level alphabet is a byte
        added = {
            id: 0 if token.special else len(token.content.encode())
            for id, token in self._inner.get_added_tokens_decoder().items()
        }
        sizes = np.zeros(self.vocabulary, np.int64)
        for token, id in self._inner.get_vocab(with_added_tokens=True).items():
            sizes[id] = added.get(id, size_of(token))
        return sizes

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``; the document token is shown as it is spelled. Incomplete UTF-8 becomes U+FFFD."""
        with self._reading():
            return self._inner.decode([int(i) for i in ids], skip_special_tokens=False)

    def decode_batch(self, ids: list[np.ndarray]) -> list[str]:
        with self._reading():
            return self._inner.decode_batch([of_one.tolist() for of_one in ids], skip_special_tokens=False)


_BYTE_PIECE = re.compile("<0x[0-9A-F]{2}>")


def _bytes_of_piece(piece: str) -> int:
    """As SentencePiece spells them: blanks as U+2581, a byte beyond its characters in hexadecimal."""
    return 1 if _BYTE_PIECE.fullmatch(piece) else len(piece.replace("\u2581", " ").encode())


def _check_unreachable(plain: dict[str, Any], controls: Iterable[str]) -> None:
    """No merge may spell a control token, or plain text would produce it."""
    merges = plain["model"].get("merges") or ()  # pairs; "left right" in files of older versions
    spelled = {"".join(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges}
    for token in controls:
        if token in spelled or token in pre_tokenizers.ByteLevel.alphabet():
            raise ConfigError(
                f"control token {token!r} also arises from plain text",
                "a control token must not be a piece of ordinary text",
                'choose another one, such as tokenizer.document_token = "<|document|>"',
            )


def _unknown(plain: dict[str, Any], inner: tokenizers.Tokenizer) -> int | None:
    """Id that stands for what the vocabulary cannot spell; text may produce it, and is lost then."""
    model = plain["model"]
    if model["type"] == "Unigram":
        return model.get("unk_id")
    return None if model.get("unk_token") is None else inner.token_to_id(model["unk_token"])


def _never_controls(plain: dict[str, Any]) -> bool:
    """Whether that no merge spells a control token is enough: not where whole pieces are looked up."""
    return plain["model"]["type"] == "BPE" and not plain["model"].get("ignore_merges")


def _keeps_text(plain: dict[str, Any]) -> bool:
    """Whether decoding gives every text back, whatever it is: all bytes are tokens, and nothing is changed or left out."""
    steps = plain.get("pre_tokenizer") or {"type": "none"}
    steps = steps.get("pretokenizers", [steps])
    return (
        plain["model"]["type"] == "BPE"
        and bool(steps)
        and not plain["model"].get("dropout")
        and plain.get("normalizer") is None
        and (plain.get("decoder") or {}).get("type") == "ByteLevel"
        and all(letter in plain["model"]["vocab"] for letter in pre_tokenizers.ByteLevel.alphabet())
        and all(not step.get("add_prefix_space") and step.get("behavior") != "Removed" for step in steps)
        and {step["type"] for step in steps} <= {"ByteLevel", "Split", "Digits"}
        and steps[-1]["type"] == "ByteLevel"
        and not any(token["lstrip"] or token["rstrip"] or token["normalized"] for token in _in_text(plain))
    )


def _in_text(plain: dict[str, Any]) -> list[dict[str, Any]]:
    """Added tokens that text produces."""
    return [token for token in plain["added_tokens"] if not token["special"]]


def lost(text: str, back: str) -> ConfigError:
    """What to say of a text that came back as another."""
    place = next((i for i, (a, b) in enumerate(zip(text, back, strict=False)) if a != b), min(len(text), len(back)))
    shown = [part[max(0, place - 20) : place + 20] for part in (text, back)]
    return ConfigError(
        f"the tokenizer loses text: {shown[0]!r} comes back as {shown[1]!r}",
        "tokens decode to the documents that they were made of",
        "bring a tokenizer that keeps all bytes, or set tokenizer.lossy = true to train on text as it leaves it",
    )


def train_tokenizer(
    texts: Iterable[str], *, vocabulary: int, document_token: str, controls: Sequence[str] = (), policy: Policy = GPT2
) -> Tokenizer:
    """Train on ``texts``. The same texts in the same order give the same bytes. A small corpus may give fewer entries.

    Time is quadratic in the longest piece: give texts without long ones (``splits.ShortPieces``).
    ``controls``: further control tokens. Ids: the document token, these, the 256 bytes, then merges in their order.
    """
    least = SMALLEST_VOCABULARY + len(controls)
    if vocabulary < least:
        raise ConfigError(
            f"tokenizer.vocabulary = {vocabulary} is too small",
            f"this vocabulary has at least {least} entries: 256 bytes and {1 + len(controls)} control tokens",
        )
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = policy.pre_tokenizer()
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[document_token, *controls],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return Tokenizer(inner.to_str().encode(), document_token)
