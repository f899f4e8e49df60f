"""A tokenizer that is brought as a file: converted once to tokenizer.json, with the recipe's control tokens, tried on documents.

    tokenizer.json      byte pairs or unigram: as it is, truncation, padding and dropout taken off
    .tiktoken           ranks; the recipe says how text is split, and ids of control tokens
    tekken.json         ranks, pattern and control tokens
    SentencePiece       a protobuf message: byte pairs or unigram

Which one it is follows from the content. Whatever it was, from here on it is one tokenizer.json in the data directory. Documents
of the build are encoded with it and with the file's own library, where that is installed: other ids are refused, and so is text
that does not come back, unless the recipe lets it.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenizers

from headway.base.digests import digest_bytes
from headway.base.errors import ConfigError, from_os_error
from headway.data.tokenizer import Tokenizer, lost
from headway.data.vocabulary import ranks, sentencepiece_model
from headway.data.vocabulary.foreign import foreign
from headway.data.vocabulary.splits import KNOWN

if TYPE_CHECKING:
    from headway.recipe.schema import Tokenizer as Wanted

Encode = Callable[[str], list[int]]
_RANK_LINE = re.compile(rb"[A-Za-z0-9+/]+={0,2} \d+\s*\n")


@dataclass(frozen=True)
class Brought:
    """``original``: ids by the file's own library; None: it has none beside tokenizers, or it is not installed."""

    tokenizer: Tokenizer
    form: str
    digest: str  # of the file as it was brought
    original: Encode | None


def bring(wanted: Wanted) -> Brought:
    """``wanted.path``, converted. ConfigError: no such tokenizer, one that cannot be, a vocabulary that does not fit."""
    assert wanted.path is not None
    data, name = read(Path(wanted.path)), Path(wanted.path).name
    with foreign(f"{name} is damaged", "it is read by the library of its kind", "check that the file is whole"):
        form, inner, original = _convert(data.removeprefix(codecs.BOM_UTF8), name, wanted)
        _add_controls(inner, wanted)
        ranks.refuse_beyond(max(inner.get_vocab(with_added_tokens=True).values()) + 1, name, wanted.vocabulary)
        tokenizer = Tokenizer(_plain_bytes(inner), wanted.document_token, name)
        _refuse_produced(tokenizer, name, wanted)
    return Brought(tokenizer, form, digest_bytes(data), original)


def read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise from_os_error(error, path, "cannot read tokenizer") from error


def _convert(data: bytes, name: str, wanted: Wanted) -> tuple[str, tokenizers.Tokenizer, Encode | None]:
    if _RANK_LINE.match(data):
        return "tiktoken", *_tiktoken(data, name, wanted)
    if wanted.pattern is not None or wanted.special:
        raise ConfigError(
            f"{name} is no .tiktoken file, and tokenizer.{'pattern' if wanted.pattern else 'special'} is set",
            "other files say themselves how text is split, and name their control tokens",
            "remove pattern and special",
        )
    if data.lstrip()[:1] == b"{":
        plain = _json(data, name)
        if "vocab" in plain and "config" in plain:
            of_ranks, pattern, controls = ranks.read_tekken(plain, name, wanted.vocabulary)
            first = int(plain["config"]["default_num_special_tokens"])
            inner = ranks.from_ranks(of_ranks, pattern, controls, name, most=wanted.vocabulary, first_id=first)
            return "tekken", inner, _by_tiktoken(of_ranks, pattern, first)
        return "tokenizer.json", _tokenizer_json(plain, name), None
    model = sentencepiece_model.read(data, name)
    return "sentencepiece", sentencepiece_model.convert(model, name), _by_sentencepiece(data)


def _json(data: bytes, name: str) -> dict[str, Any]:
    try:
        plain = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{name} is no JSON: {error}", "a tokenizer.json is", "check that the file is whole") from None
    if not isinstance(plain, dict):
        raise ConfigError(f"{name} is not an object of JSON", "a tokenizer.json is one", "name another file")
    return plain


def _tiktoken(data: bytes, name: str, wanted: Wanted) -> tuple[tokenizers.Tokenizer, Encode | None]:
    if wanted.pattern is None:
        raise ConfigError(
            f"{name}: no tokenizer.pattern",
            "a .tiktoken file has ranks alone, and with another split the same ranks give other ids",
            f"write its split: {', '.join(KNOWN)}, or a regular expression",
        )
    of_ranks = ranks.read_tiktoken(data, name)
    pattern = KNOWN.get(wanted.pattern, wanted.pattern)
    inner = ranks.from_ranks(of_ranks, wanted.pattern, dict(wanted.special), name, most=wanted.vocabulary)
    return inner, _by_tiktoken(of_ranks, pattern, 0)


def _tokenizer_json(plain: dict[str, Any], name: str) -> tokenizers.Tokenizer:
    for key in ("model", "normalizer", "pre_tokenizer", "decoder"):
        if plain.get(key) is not None and not isinstance(plain[key], dict):
            raise ConfigError(
                f"{name}: {key} is not an object of JSON", "a tokenizer.json has one", "check that the file is whole"
            )
    kind = (plain.get("model") or {}).get("type")
    if kind not in ("BPE", "Unigram"):
        raise ConfigError(
            f"{name}: the model is {kind or 'missing'}",
            "byte pairs (BPE) and Unigram are taken: others lose text that they do not know",
            "bring another tokenizer, or train one",
        )
    if not plain["model"].get("vocab"):
        raise ConfigError(f"{name} is damaged: its vocabulary is empty", "it has entries", "check that the file is whole")
    plain = plain | {"truncation": None, "padding": None, "post_processor": None}
    if kind == "BPE":  # merges left out at random: a document would have other ids every time
        plain["model"] = plain["model"] | {"dropout": None}
    for key, steps in (("normalizer", "normalizers"), ("pre_tokenizer", "pretokenizers")):
        if (plain.get(key) or {}).get(steps) == []:
            plain[key] = None
    return tokenizers.Tokenizer.from_str(json.dumps(plain))


def _add_controls(inner: tokenizers.Tokenizer, wanted: Wanted) -> None:
    """The recipe's control tokens, those that are not there yet behind all others.

    The library numbers by count, so where ids have holes it would give one twice.
    """
    ids = set(inner.get_vocab(with_added_tokens=True).values())
    new = [token for token in wanted.control_tokens if inner.token_to_id(token) is None]
    if new and max(ids) + 1 != len(ids):
        raise ConfigError(
            f"{wanted.path}: ids have {max(ids) + 1 - len(ids):,} holes, and {new[0]!r} is not among its tokens",
            "new control tokens are put behind the others, in a vocabulary without holes",
            "name control tokens that it has: document_token, fim_tokens, reserved",
        )
    for token in wanted.control_tokens:
        inner.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False)])


def _plain_bytes(inner: tokenizers.Tokenizer) -> bytes:
    inner.no_truncation()
    inner.no_padding()
    return inner.to_str().encode()


def _refuse_produced(tokenizer: Tokenizer, name: str, wanted: Wanted) -> None:
    for token, identity in tokenizer.controls.items():
        is_unknown = identity == tokenizer.unknown_id
        is_placed = token in wanted.control_tokens
        for text in (token, f"a{token}b", f" {token} ", f"\n{token}", *(["\U0010fffd"] if is_unknown and is_placed else [])):
            if identity in tokenizer.encode(text) and not (is_unknown and wanted.lossy and not is_placed):
                if is_unknown and not is_placed:
                    raise ConfigError(
                        f"{name}: characters that it does not know become {token!r} and are lost, as in {text!r}",
                        "tokens decode to the documents that they were made of",
                        "bring a tokenizer that keeps all bytes, or set tokenizer.lossy = true to train on text as it leaves it",
                    )
                raise ConfigError(
                    f"{name}: the text {text!r} produces the control token {token!r}",
                    "no text may produce a control token",
                    "bring a tokenizer whose control tokens are no pieces of text, or choose other names for them",
                )


# --- the file's own library -------------------------------------------------------------------------------------------------


def _by_tiktoken(of_ranks: dict[bytes, int], pattern: str, first_id: int) -> Encode | None:
    try:
        import tiktoken
    except ImportError:
        return None
    try:
        encoding = tiktoken.Encoding("brought", pat_str=pattern, mergeable_ranks=of_ranks, special_tokens={})
    except ValueError:  # a pattern that only the other engine reads
        return None
    return lambda text: [rank + first_id for rank in encoding.encode_ordinary(text)]


def _by_sentencepiece(data: bytes) -> Encode | None:
    try:
        import sentencepiece
    except ImportError:
        return None
    processor = sentencepiece.SentencePieceProcessor(model_proto=data)
    return lambda text: processor.encode(text)


def try_on(brought: Brought, texts: Iterable[str], *, lossy: bool) -> int:
    """How many of ``texts`` come back changed. ConfigError: the file's library gives other ids; text is lost and may not be."""
    changed = 0
    for text in texts:
        ids = brought.tokenizer.encode(text)
        if brought.original and not any(token in text for token in brought.tokenizer.controls):
            with foreign(f"the library of {brought.form} fails on a text", "it reads every text", "check that the file is whole"):
                theirs = brought.original(text)
            _compare(ids, theirs, text, brought)
        back = brought.tokenizer.decode(ids)
        changed += back != text
        if back != text and not lossy:
            raise lost(text, back)
    return changed


def _compare(ids: list[int], theirs: list[int], text: str, brought: Brought) -> None:
    if ids == theirs:
        return
    place = next((i for i, (a, b) in enumerate(zip(ids, theirs, strict=False)) if a != b), min(len(ids), len(theirs)))
    near = brought.tokenizer.decode(ids[max(0, place - 8) : place + 8])
    raise ConfigError(
        f"the converted tokenizer gives other ids than the library of {brought.form}, near {near[:80]!r}",
        "a tokenizer that is brought is the one that it was",
        "bring it as tokenizer.json, converted by those who made it",
    )
