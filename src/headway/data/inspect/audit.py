"""How well the tokenizer serves the data: bytes per token, fertility, whitespace, vocabulary, and whether text is safe from it.

    counted   over all training tokens: bytes per token (by language and licence too), use of the vocabulary, control tokens
    sampled   over the first documents of each source, a random sample, since documents were shuffled at build: characters,
              words, lines, writing systems, and whether a document's text is encoded to the same ids again
    asked     of the tokenizer alone: ``probes``

Documents are grouped by the language and licence that their source knew, over all training tokens, and by the writing system of
most of their letters, which needs no one's word.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import numpy as np

from headway.data.facts import Table
from headway.data.inspect.groups import Group, GroupSums
from headway.data.inspect.probes import (
    ControlToken,
    RoundTrip,
    control_tokens,
    number_costs,
    refuses_surrogates,
    round_trips,
    whitespace_runs,
)
from headway.data.manifest import DataManifest
from headway.data.place import DataPlace
from headway.data.reader import TokenReader
from headway.data.tokenizer import Tokenizer

SAMPLE_TOKENS = 400_000
"""Of each source: a few seconds of encoding."""

NO_LETTERS = "no letters"
RARE = 10
"""Entries of the vocabulary used less often have hardly been learned from."""

Progress = Callable[[int], None]


@dataclass(frozen=True)
class Measured:
    """Sums over documents, of their text without document tokens."""

    documents: int = 0
    tokens: int = 0
    bytes: int = 0
    characters: int = 0
    words: int = 0  # runs of other than white space
    lines: int = 0
    indentation_bytes: int = 0  # white space at the head of a line

    def __add__(self, other: Measured) -> Measured:
        return Measured(*(getattr(self, name) + getattr(other, name) for name in Measured.__dataclass_fields__))

    @property
    def bytes_per_token(self) -> float:
        return _ratio(self.bytes, self.tokens)

    @property
    def characters_per_token(self) -> float:
        return _ratio(self.characters, self.tokens)

    @property
    def tokens_per_word(self) -> float:
        """Fertility."""
        return _ratio(self.tokens, self.words)

    @property
    def tokens_per_line(self) -> float:
        return _ratio(self.tokens, self.lines)

    @property
    def indentation_share(self) -> float:
        return _ratio(self.indentation_bytes, self.bytes)


@dataclass(frozen=True)
class SourceAudit:
    """``counts`` per vocabulary entry, over all training tokens; ``sample`` and what follows over the sampled documents."""

    name: str
    documents: int
    bytes: int
    tokens: int  # document tokens left out
    counts: np.ndarray
    beyond_vocabulary: int  # tokens whose id the tokenizer does not have
    whitespace_share: float  # of tokens that are white space alone
    digit_share: float  # of tokens that are digits, with or without a blank before them
    sample: Measured
    by_script: dict[str, Measured]
    document_bytes_per_token: np.ndarray  # of each sampled document
    document_tokens_per_word: np.ndarray
    encoded_otherwise: int  # sampled documents whose text does not give their ids again
    groups: tuple[Group, ...] | None  # by language and licence; None: a build that did not keep them

    @property
    def bytes_per_token(self) -> float:
        return _ratio(self.bytes, self.tokens)


@dataclass(frozen=True)
class Coverage:
    """Use of the vocabulary over all sources; control tokens and what pads it are no part of it."""

    entries: int
    used: int
    rare: int  # used, less than RARE times
    rarest_half_share: float  # of all tokens, that the less used half of the entries makes up
    entries_for: dict[int, int]  # percent of all tokens -> how many of the most used entries make it up
    unused: tuple[int, ...]  # ids

    @property
    def never(self) -> int:
        return self.entries - self.used


@dataclass(frozen=True)
class Audit:
    directory: Path | str
    manifest: DataManifest
    sources: tuple[SourceAudit, ...]
    coverage: Coverage
    whitespace: dict[str, tuple[int, ...]]
    longest_runs: dict[str, int]  # by kind of white space, and of digits: the longest run that is one token
    numbers: dict[str, tuple[int, ...]]  # tokens by count of digits
    round_trips: tuple[RoundTrip, ...]
    surrogates_refused: bool
    controls: tuple[ControlToken, ...]
    pieces: dict[int, str] = field(repr=False)  # text of unused entries, a few

    @property
    def padding(self) -> int:
        """Entries of the vocabulary behind the tokenizer's own: no text gives them."""
        return self.manifest.tokenizer.vocabulary - self.coverage.entries - len(self.controls)

    @property
    def control_counts(self) -> dict[str, int]:
        """How often each control token stands in the training tokens."""
        return {c.token: sum(int(s.counts[c.id]) for s in self.sources if c.id < len(s.counts)) for c in self.controls}

    def findings(self) -> list[str]:
        """What is wrong, in sentences; empty: nothing is."""
        return [*self._of_text(), *self._of_controls(), *self._of_sources()]

    def _of_text(self) -> Iterator[str]:
        if not self.manifest.tokenizer.lossy:  # the recipe lets it
            yield from (f"round trip: {trip.name}: the text does not come back" for trip in self.round_trips if not trip.returned)
        if not self.surrogates_refused:
            yield "lone surrogates are encoded, though they are no text"

    def _of_controls(self) -> Iterator[str]:
        for control in self.controls:
            if control.produced_by:
                yield f"control token {control.token}: {len(control.produced_by)} of {control.probes} texts produce it"
        documents = sum(source.documents for source in self.sources)
        found = self.control_counts[self.manifest.tokenizer.document_token]
        if found != documents:
            yield f"document token: {found:,} in the training tokens, and {documents:,} documents"
        for token, count in self.control_counts.items():
            if count and token != self.manifest.tokenizer.document_token:
                yield f"control token {token}: {count:,} in the training tokens, where a build places none"

    def _of_sources(self) -> Iterator[str]:
        for source in self.sources:
            if source.beyond_vocabulary:
                yield f"{source.name}: {source.beyond_vocabulary:,} tokens are beyond the vocabulary"
            if source.encoded_otherwise and not self.manifest.tokenizer.lossy:
                documents = f"{source.encoded_otherwise:,} of {source.sample.documents:,} sampled documents"
                yield f"{source.name}: {documents} are encoded to other ids than those that are stored"


def audit(place: DataPlace | Path, sample_tokens: int = SAMPLE_TOKENS, progress: Progress | None = None) -> Audit:
    """Read all training tokens, verified; decode and encode ``sample_tokens`` of each source. ``progress``: tokens read."""
    place, tell = DataPlace.of(place), progress or (lambda tokens: None)
    directory = place.directory
    manifest = DataManifest.load(directory)
    reader, entry = TokenReader(place, manifest), manifest.tokenizer
    tokenizer = Tokenizer.load(directory / entry.file, entry.document_token)
    vocabulary = max(entry.vocabulary, tokenizer.vocabulary)
    texts = [tokenizer.decode([i]) for i in range(vocabulary)]
    controls = control_tokens(tokenizer, directory / entry.file)
    auditing = _Auditing(reader, tokenizer, texts, {control.id for control in controls})
    sources = tuple(auditing.source(number, sample_tokens, tell) for number in range(len(manifest.sources)))
    no_text = {control.id for control in controls} | set(range(tokenizer.vocabulary, vocabulary))
    cover = coverage(np.sum([source.counts for source in sources], axis=0), no_text)
    return Audit(
        directory=Path(place.where) if place.shards is None else place.where,
        manifest=manifest,
        sources=sources,
        coverage=cover,
        whitespace=whitespace_runs(tokenizer),
        longest_runs=longest_runs(texts),
        numbers=number_costs(tokenizer),
        round_trips=tuple(round_trips(tokenizer)),
        surrogates_refused=refuses_surrogates(tokenizer),
        controls=tuple(controls),
        pieces={i: texts[i] for i in sorted(cover.unused, key=lambda i: -len(texts[i]))[:24]},
    )


class _Auditing:
    """What all sources share."""

    def __init__(self, reader: TokenReader, tokenizer: Tokenizer, texts: list[str], controls: set[int]):
        self.reader, self.tokenizer, self.vocabulary = reader, tokenizer, len(texts)
        self._is_digits = np.array([i not in controls and t.strip(" ").isdecimal() for i, t in enumerate(texts)])
        self._token_bytes = tokenizer.token_bytes()
        self._is_whitespace = np.array([i not in controls and bool(t) and t.isspace() for i, t in enumerate(texts)])

    def source(self, number: int, sample_tokens: int, tell: Progress) -> SourceAudit:
        entry = self.reader.manifest.sources[number]
        counts, beyond = np.zeros(self.vocabulary, np.int64), 0
        table = Table.of(self.reader.place, entry)
        sums = GroupSums(table, self.reader.document_ends(number), self._token_bytes) if table is not None else None
        for block in self.reader.training_blocks(number):
            known = block[block < self.vocabulary]
            beyond += block.size - known.size
            counts += np.bincount(known, minlength=self.vocabulary)
            if sums is not None:
                sums.add(block)
            tell(block.size)
        documents = list(self._documents(number, sample_tokens))
        measured = [document.measured for document in documents]
        scripts: dict[str, Measured] = {}
        for document in documents:
            scripts[document.script] = scripts.get(document.script, Measured()) + document.measured
        return SourceAudit(
            name=entry.name,
            documents=entry.documents,
            bytes=entry.bytes,
            tokens=entry.tokens - entry.documents,
            counts=counts,
            beyond_vocabulary=beyond,
            whitespace_share=_ratio(int(counts[self._is_whitespace].sum()), int(counts.sum())),
            digit_share=_ratio(int(counts[self._is_digits].sum()), int(counts.sum())),
            sample=sum(measured, Measured()),
            by_script=dict(sorted(scripts.items(), key=lambda item: -item[1].tokens)),
            document_bytes_per_token=np.array([m.bytes_per_token for m in measured if m.tokens]),
            document_tokens_per_word=np.array([m.tokens_per_word for m in measured if m.words]),
            encoded_otherwise=sum(document.encoded_otherwise for document in documents),
            groups=sums.groups() if sums is not None else None,
        )

    def _documents(self, number: int, sample_tokens: int) -> Iterator[_Document]:
        """The first documents, whole, as many as end within the sample; if none does, as much of the first one as fits."""
        end = min(sample_tokens, self.reader.manifest.sources[number].tokens)
        spans = self.reader.documents(number, 0, end)
        whole = [span for span in spans if span.end_token <= end]
        tokens = np.concatenate(list(_until(self.reader.training_blocks(number), end)))
        for first in range(0, max(1, len(whole)), 256):
            ids = [tokens[s.first_token + 1 : s.end_token].tolist() for s in (whole or spans[:1])[first : first + 256]]
            texts = [self.tokenizer.decode(i for i in one if i < self.vocabulary) for one in ids]
            again = self.tokenizer.encode_batch(texts)
            for text, one, other in zip(texts, ids, again, strict=True):
                yield _document(text, one, not whole or one == list(other))  # what is cut may end within a word


@dataclass(frozen=True)
class _Document:
    measured: Measured
    script: str
    encoded_otherwise: bool


_INDENTATION = re.compile(r"^[ \t]+", re.MULTILINE)


def _document(text: str, ids: list[int], same: bool) -> _Document:
    measured = Measured(
        documents=1,
        tokens=len(ids),
        bytes=len(text.encode()),
        characters=len(text),
        words=len(text.split()),
        lines=text.count("\n") + (not text.endswith("\n")),
        indentation_bytes=sum(map(len, _INDENTATION.findall(text))),
    )
    return _Document(measured, script_of(text), not same)


def _until(blocks: Iterator[np.ndarray], tokens: int) -> Iterator[np.ndarray]:
    found = 0
    while found < tokens:
        block = next(blocks)
        found += block.size
        yield block


def script_of(text: str) -> str:
    """The writing system of most letters, as Unicode names it: Latin, Cyrillic, Han, ..."""
    letters: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if script := _script(character):
            letters[script] += count
    return letters.most_common(1)[0][0] if letters else NO_LETTERS


@lru_cache(maxsize=2**16)
def _script(character: str) -> str:
    """Empty for what is no letter."""
    if not character.isalpha():
        return ""
    word = unicodedata.name(character, "OTHER").split()[0].partition("-")[0]
    return {"CJK": "Han"}.get(word, word.capitalize())


# --- the vocabulary -------------------------------------------------------------------------------------------------------


def coverage(counts: np.ndarray, controls: set[int]) -> Coverage:
    """Of ``counts`` per entry."""
    ids = np.array([i for i in range(len(counts)) if i not in controls])
    own = counts[ids]
    ranked = np.sort(own)[::-1]
    total, reached = max(1, int(own.sum())), np.cumsum(ranked)
    return Coverage(
        entries=len(own),
        used=int((own > 0).sum()),
        rare=int(((own > 0) & (own < RARE)).sum()),
        rarest_half_share=int(ranked[(len(ranked) + 1) // 2 :].sum()) / total,
        entries_for={percent: int(np.searchsorted(reached, total * percent / 100)) + 1 for percent in (50, 90, 99)},
        unused=tuple(ids[own == 0].tolist()),
    )


def longest_runs(texts: list[str]) -> dict[str, int]:
    kinds = {"spaces": " ", "tabs": "\t", "line ends": "\n"}
    longest = {name: max((len(text) for text in texts if text and not text.strip(one)), default=0) for name, one in kinds.items()}
    return longest | {"digits": max((len(text) for text in map(str.strip, texts) if text.isdecimal()), default=0)}


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
