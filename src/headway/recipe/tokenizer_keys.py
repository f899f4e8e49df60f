"""The recipe's [tokenizer]: how text becomes tokens, trained on the run's documents or brought as a file."""

from __future__ import annotations

from typing import Literal

from headway.recipe.fields import Bytes, Entries, Listed, Section, WholeOrZero, said


class Tokenizer(Section):
    """How text becomes tokens: trained on the run's own sources when the data is built, or brought as a file."""

    kind: Literal["bpe", "file"] = said(
        "bpe: byte-level byte pair encoding, trained; file: as in path, converted once when the data is built", "bpe"
    )
    vocabulary: Entries = said(
        "entries, special tokens included; 257 (256 bytes and the document token) to 2^31. Of a file: as many or more"
    )
    document_token: str = said("special token that stands at the head of every document", "<|document|>", min_length=1)
    fim_tokens: Listed[str] = said(
        "three control tokens for fill-in-the-middle: before prefix, suffix and middle; empty: none. No text produces them", ()
    )
    reserved: Listed[str] = said("further control tokens, for later use; no text produces them", ())
    reserved_count: WholeOrZero = said(
        "so many control tokens besides, named <|reserved-0|> and on, at most 65,536; 0: none", 0, le=65_536
    )

    digits: Literal["any", "single", "groups-of-3"] = said(
        "digits that a token may hold: any number; one; up to three, grouped from a number's right end (of more than 63, the "
        "first ones from the left)",
        "any",
    )
    whitespace: Literal["runs", "lines", "indentation", "single"] = said(
        "white space that a token may hold. runs: of any kind, without the last one before a word, as GPT-2; lines: line ends "
        "and blank lines, apart from the indentation after them; indentation: a line's, whole, apart from line ends; single: one",
        "runs",
    )
    sample: Bytes | None = said(
        "most text that bpe is trained on, bytes: the first documents of each source's shuffled order, in proportion to the "
        "sources' sizes; None: 256 MiB",
        None,
    )
    path: str | None = said(
        "of kind file: tokenizer.json (byte pairs, unigram), .tiktoken, tekken.json or SentencePiece model, known by its content",
        None,
    )
    pattern: str | None = said(
        "of a .tiktoken file, which does not say how text is split: gpt2, cl100k, o200k, qwen2, qwen3.5, or a regular expression",
        None,
    )
    special: dict[str, WholeOrZero] = said(
        "of a .tiktoken file: control token -> id, where it does not simply follow the ranks", {}
    )
    lossy: bool = said(
        "of kind file: text may come back changed, as from a SentencePiece model that normalises; else such a file is refused",
        False,
    )

    @property
    def reserved_tokens(self) -> tuple[str, ...]:
        """All reserved ones by name."""
        return (*self.reserved, *(f"<|reserved-{number}|>" for number in range(self.reserved_count)))

    @property
    def control_tokens(self) -> tuple[str, ...]:
        """The document token and all others that only a build places."""
        return (self.document_token, *self.fim_tokens, *self.reserved_tokens)
