"""Byte-level BPE: trained on the run's own documents, stored as tokenizer.json, identified by the digest of its bytes.

Every text can be encoded (the alphabet is all 256 bytes) and decoding gives the text back. Control tokens (the document token,
those for fill-in-the-middle, reserved ones) are placed by the build or the reader, and no text can produce them: a text that
spells "<|document|>" becomes ordinary tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from headway.base.digests import digest_bytes
from headway.base.errors import ConfigError, EnvironmentFault, from_os_error
from headway.base.files import write_atomic

TOKENIZER_FILE = "tokenizer.json"
SMALLEST_VOCABULARY = 257
"""256 bytes and the document token."""


class Tokenizer:
    """Text <-> token ids. ``encode`` never returns a control token."""

    def __init__(self, serialized: bytes, document_token: str):
        inner = tokenizers.Tokenizer.from_str(serialized.decode())
        inner.encode_special_tokens = True  # read special tokens in text as text
        self._inner, self._serialized, self.document_token = inner, serialized, document_token
        identity = inner.token_to_id(document_token)
        if identity is None:
            raise ConfigError(f"the tokenizer does not know the document token {document_token!r}")
        self.document_token_id: int = identity
        plain = json.loads(serialized)
        self.controls: dict[str, int] = {entry["content"]: entry["id"] for entry in plain["added_tokens"] if entry["special"]}
        _check_unreachable(plain, self.controls)

    @staticmethod
    def load(path: Path, document_token: str) -> Tokenizer:
        try:
            data = Path(path).read_bytes()
        except OSError as error:
            raise from_os_error(error, path, "cannot read tokenizer") from error
        try:
            return Tokenizer(data, document_token)
        except ConfigError:
            raise
        except Exception as error:  # the library raises bare Exception for a damaged file
            raise EnvironmentFault(
                f"tokenizer is damaged: {error}", f"path: {path}", "restore the file or build the data again"
            ) from error

    def save(self, path: Path) -> None:
        write_atomic(path, self._serialized)

    @property
    def vocabulary(self) -> int:
        """Entries, the document token included."""
        return self._inner.get_vocab_size(with_added_tokens=True)

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
        return self._inner.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: list[str]) -> list[list[int]]:
        return [encoding.ids for encoding in self._inner.encode_batch_fast(texts, add_special_tokens=False)]

    def token_bytes(self) -> np.ndarray:
        """int64 by id: bytes of text that a token stands for, complete characters or not; control tokens: 0."""
        added = {
            id: 0 if token.special else len(token.content.encode())
            for id, token in self._inner.get_added_tokens_decoder().items()
        }
        sizes = np.zeros(self.vocabulary, np.int64)
        for token, id in self._inner.get_vocab(with_added_tokens=True).items():
            sizes[id] = added.get(id, len(token))  # a character of the byte-level alphabet is a byte
        return sizes

    def decode(self, ids: Iterable[int]) -> str:
        """Text of ``ids``; the document token is shown as it is spelled. Incomplete UTF-8 becomes U+FFFD."""
        return self._inner.decode([int(i) for i in ids], skip_special_tokens=False)


def _check_unreachable(serialized: dict, controls: Iterable[str]) -> None:
    """No merge may spell a control token, or plain text would produce it."""
    merges = serialized["model"]["merges"]  # pairs; "left right" in files of older versions
    spelled = {"".join(merge.split(" ") if isinstance(merge, str) else merge) for merge in merges}
    for token in controls:
        if token in spelled or token in pre_tokenizers.ByteLevel.alphabet():
            raise ConfigError(
                f"control token {token!r} also arises from plain text",
                "a control token must not be a piece of ordinary text",
                'choose another one, such as tokenizer.document_token = "<|document|>"',
            )


def train_tokenizer(texts: Iterable[str], *, vocabulary: int, document_token: str, controls: Sequence[str] = ()) -> Tokenizer:
    """Train on ``texts``. The same texts in the same order give the same bytes. A small corpus may give fewer entries.

    ``controls``: further control tokens. Ids: the document token, these, the 256 bytes, then merges in their order.
    """
    least = SMALLEST_VOCABULARY + len(controls)
    if vocabulary < least:
        raise ConfigError(
            f"tokenizer.vocabulary = {vocabulary} is too small",
            f"this vocabulary has at least {least} entries: 256 bytes and {1 + len(controls)} control tokens",
        )
    inner = tokenizers.Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    inner.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=[document_token, *controls],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    inner.train_from_iterator(texts, trainer)
    return Tokenizer(inner.to_str().encode(), document_token)
