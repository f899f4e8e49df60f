"""Byte pairs as ranks, which is how .tiktoken and tekken.json have them, and the merges that they stand for.

bytes of a token -> rank        a rank is priority and id at once: of two neighbours, the pair of the lowest rank is merged first
(left, right) -> token          the last merge of a token: the two parts that its own bytes end in before it is made. No other
                                neighbours that make it up ever meet (``fast.py`` says why)
"""

from __future__ import annotations

import base64
import binascii
from typing import Any

import tokenizers
from tokenizers import decoders, models, pre_tokenizers

from headway.base.errors import ConfigError
from headway.data.vocabulary.letters import letters_of
from headway.data.vocabulary.splits import KNOWN, split_by


def read_tiktoken(data: bytes, name: str) -> dict[bytes, int]:
    """Lines of base64 and a rank."""
    ranks: dict[bytes, int] = {}
    for number, line in enumerate(data.splitlines(), 1):
        if not line.strip():
            continue
        try:
            token, rank = line.split()
            if token != b"=":  # an empty one, as a Whisper file has: no text gives it
                ranks[base64.b64decode(token, validate=True)] = int(rank)
        except (ValueError, binascii.Error):
            raise ConfigError(
                f"{name}, line {number}: {line[:40]!r}",
                "a .tiktoken file has a token in base64 and its rank in every line",
                "check that the file is whole",
            ) from None
    return ranks


def from_ranks(
    ranks: dict[bytes, int], pattern: str, controls: dict[str, int], name: str, *, most: int, first_id: int = 0
) -> tokenizers.Tokenizer:
    """``controls``: control token -> id; ids of tokens are their ranks from ``first_id`` on. All are below ``most``."""
    _check(ranks, name)
    vocabulary = {letters_of(token): rank + first_id for token, rank in ranks.items()}
    _check_ids(vocabulary, controls, name, most)
    merges, unmade = _merges(ranks)
    vocabulary |= controls
    taken = set(vocabulary.values())
    vocabulary |= {f"<|unused-{hole}|>": hole for hole in range(max(taken) + 1) if hole not in taken}
    pairs = [(letters_of(left), letters_of(right)) for left, right in merges]
    # a token that no merge makes is still one where it stands alone
    inner = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs, ignore_merges=bool(unmade)))
    inner.pre_tokenizer = pre_tokenizer(pattern, name)
    inner.decoder = decoders.ByteLevel()
    inner.add_special_tokens([tokenizers.AddedToken(token, special=True, normalized=False) for token in controls])
    return inner


def pre_tokenizer(pattern: str, name: str) -> pre_tokenizers.PreTokenizer:
    if pattern == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    try:
        return split_by(KNOWN.get(pattern, pattern))
    except Exception as error:  # the library's own, of its regex engine
        raise ConfigError(
            f"{name}: tokenizer.pattern {pattern[:60]!r} is no regular expression: {error}",
            f"it is one, or one of {', '.join(KNOWN)}",
            "check brackets and escapes; TOML takes backslashes as they are in single quotes",
        ) from None


_NONE = 2**63
MOST_HOLES = 100_000


def _check(ranks: dict[bytes, int], name: str) -> None:
    missing = [byte for byte in range(256) if bytes([byte]) not in ranks]
    if missing or len(set(ranks.values())) != len(ranks) or min(ranks.values()) < 0:
        seen = f"{len(missing)} of the 256 bytes are missing" if missing else "two tokens have one rank, or one is below 0"
        raise ConfigError(f"{name}: {seen}", "every byte is a token, and every rank stands once", "check that the file is whole")


def _check_ids(vocabulary: dict[str, int], controls: dict[str, int], name: str, most: int) -> None:
    """Before anything is made that is as large as the largest id."""
    taken = set(vocabulary.values())
    for token, identity in controls.items():
        if token in vocabulary or identity in taken:
            raise ConfigError(
                f"{name}: control token {token!r} with id {identity} is also ordinary, or another's",
                "a control token has a name and an id of its own",
                f"choose an id from {max(taken) + 1} on",
            )
        taken.add(identity)
    if min(taken) < 0:
        raise ConfigError(f"{name}: the id {min(taken)}", "ids count from 0", "check that the file is whole")
    refuse_beyond(max(taken) + 1, name, most)
    _refuse_holes(max(taken) + 1, len(taken), name)


def _refuse_holes(entries: int, tokens: int, name: str) -> None:
    if entries - tokens > MOST_HOLES:
        raise ConfigError(
            f"{name}: {entries:,} ids for {tokens:,} tokens",
            f"at most {MOST_HOLES:,} ids have no token: each becomes one that is never used",
            "check that the file is whole",
        )


def refuse_beyond(entries: int, name: str, most: int) -> None:
    """ConfigError: so many do not fit the recipe's vocabulary."""
    if entries > most:
        raise ConfigError(
            f"{name} has {entries:,} entries, control tokens included; tokenizer.vocabulary = {most:,}",
            "every id is below the vocabulary; it may be larger than the file's, as a multiple of 64 or 128 is",
            f"set tokenizer.vocabulary = {entries} or more",
        )


def _merges(ranks: dict[bytes, int]) -> tuple[list[tuple[bytes, bytes]], int]:
    """In the order of ranks, and how many tokens no merge makes."""
    merges, unmade = [], 0
    for token, _ in sorted(ranks.items(), key=lambda item: item[1]):
        if len(token) > 1:
            parts = _parts(token, ranks)
            if len(parts) == 2:
                merges.append((parts[0], parts[1]))
            else:
                unmade += 1
    return merges, unmade


def _parts(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The two parts, or the three or more, that the bytes of ``token`` end in."""
    parts = [token[i : i + 1] for i in range(len(token))]
    while len(parts) > 2:
        best, place = _NONE, -1
        for i in range(len(parts) - 1):
            rank = ranks.get(parts[i] + parts[i + 1], _NONE)
            if rank < best:
                best, place = rank, i
        if place < 0:
            break
        parts[place : place + 2] = [parts[place] + parts[place + 1]]
    return parts


# --- tekken -----------------------------------------------------------------------------------------------------------------

_FIRST_SPECIAL = ("<unk>", "<s>", "</s>")
"""Of files that do not list their control tokens."""


def read_tekken(plain: dict[str, Any], name: str, most: int) -> tuple[dict[bytes, int], str, dict[str, int]]:
    """Ranks, pattern and control tokens (id = place). The vocabulary is cut to the size that the file says."""
    try:
        config = plain["config"]
        size, special = int(config["default_vocab_size"]), int(config["default_num_special_tokens"])
        entries = sorted(plain["vocab"], key=lambda entry: entry["rank"])[: size - special]
        ranks = {base64.b64decode(entry["token_bytes"], validate=True): int(entry["rank"]) for entry in entries}
        listed = {str(entry["token_str"]): int(entry["rank"]) for entry in plain.get("special_tokens") or ()}
        pattern = str(config["pattern"])
        if not 0 <= special < size:
            raise ValueError(f"sizes: default_vocab_size = {size}, default_num_special_tokens = {special}")
    except (KeyError, TypeError, ValueError, OverflowError, binascii.Error) as error:
        raise ConfigError(
            f"{name} is not as tekken.json is: {type(error).__name__} {error}",
            "it has config (pattern, sizes) and vocab (rank, token_bytes)",
            "check that the file is whole",
        ) from None
    refuse_beyond(special + len(ranks), name, most)
    _refuse_holes(special, len(listed), name)
    named = listed or dict(zip(_FIRST_SPECIAL, range(special), strict=False))
    taken = set(named.values())
    named |= {f"<SPECIAL_{number}>": number for number in range(special) if number not in taken}
    return ranks, pattern, named
