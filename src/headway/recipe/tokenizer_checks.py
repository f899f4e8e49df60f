"""Rules across the keys of the tokenizer, of the recipe alone: what a file that is brought says of itself, only a build knows."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from headway.recipe.findings import Finding, found
from headway.recipe.idle_keys import check_idle

if TYPE_CHECKING:
    from headway.recipe.schema import Tokenizer

BYTES = 256


def check_tokenizer(tokenizer: Tokenizer) -> Iterator[Finding]:
    yield from check_idle(("tokenizer",), tokenizer)
    yield from _controls(tokenizer)
    if tokenizer.kind == "file" and tokenizer.path is None:
        yield found(
            ("tokenizer", "path"),
            'kind = "file" without a path',
            "a tokenizer that is brought lies in a file",
            'write path = "tokenizer.json", or kind = "bpe" to train one',
        )


def _controls(tokenizer: Tokenizer) -> Iterator[Finding]:
    if len(tokenizer.fim_tokens) not in (0, 3):
        yield found(
            ("tokenizer", "fim_tokens"),
            f"{len(tokenizer.fim_tokens)} tokens for fill-in-the-middle",
            "there are three, before prefix, suffix and middle, or none",
            'such as fim_tokens = ["<|fim-prefix|>", "<|fim-suffix|>", "<|fim-middle|>"]',
        )
    repeated = [token for token, count in Counter(tokenizer.control_tokens).items() if count > 1]
    if repeated or "" in tokenizer.control_tokens:
        seen = f"{repeated[0]!r} is named {tokenizer.control_tokens.count(repeated[0])} times" if repeated else "one is empty"
        yield found(
            ("tokenizer", "fim_tokens" if set(repeated) & set(tokenizer.fim_tokens) else "reserved"),
            f"control tokens: {seen}",
            "each has a name of its own, document_token's among them",
            "rename or remove it",
        )
    least = BYTES + len(tokenizer.control_tokens)
    if tokenizer.kind == "bpe" and tokenizer.vocabulary < least:
        yield found(
            ("tokenizer", "vocabulary"),
            f"a vocabulary of {tokenizer.vocabulary:,} does not hold 256 bytes and {least - BYTES:,} control tokens",
            f"with these control tokens it has at least {least:,} entries",
            f"write vocabulary = {least} or more, or reserve fewer",
        )
