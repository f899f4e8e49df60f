"""The data manifest: what a data directory holds, down to the digest of every 1 MiB block (of large sets, in files beside it).

    DATA/
      manifest.json
      tokenizer.json
      00-code/           shard-00000.bin ...   flat little-endian tokens        documents.ends   uint64, one per document
                         shards.blocks         digests of their blocks, where there are too many to list (``block_digests.py``)
                         documents.facts .origins .index                        where each document is from (``facts.py``)
                         packing-1024.bins .pieces                              windows by best fit (``packing.py``)
      00-code/held-out/  the same, never trained on

Identity is content: ``digest()`` covers tokens, tokenizer and document ends, and leaves out names of people, licences,
provenance, registration, versions and time, so the same text gives the same digest on any machine and day. The file's ``seal``
covers those too: a licence that changes on the disk must not go unseen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from headway.base.digests import digest_json
from headway.base.errors import EnvironmentFault
from headway.base.files import read_json, write_json
from headway.base.plain import from_plain

MANIFEST_FILE = "manifest.json"
REPORT_FILE = "preparation.json"
"""Of the steps that documents went through, where there were any; beside the manifest."""
BLOCK_BYTES = 2**20
"""Unit of verification on first touch."""

DTYPES = {"uint16": "<u2", "uint32": "<u4"}
_SEAL = "seal"
_FIRST = ("file", "digest", "vocabulary", "document_token", "document_token_id")
_NOT_CONTENT = (
    *("licence", "provenance", "dropped", "digest", "preparation", "registered", "document_facts", "packings", "quality"),
    "synthetic",
)
_CONTENT_IF_THERE = ("held_out_rule", "block_digests")
"""Left out at None, so that digests of earlier manifests stay."""
_IF_THERE = {"if_there": True}
"""Of fields of parts: left out at their default, for the same reason."""


@dataclass(frozen=True)
class TokenizerEntry:
    """``file`` is relative to the data directory; ``digest`` is of its bytes."""

    file: str
    digest: str
    vocabulary: int
    document_token: str
    document_token_id: int
    reserved: dict[str, int] = field(default_factory=dict)  # further control tokens -> id
    fim: tuple[int, ...] = ()  # ids of the control tokens before prefix, suffix and middle; empty: none
    lossy: bool = False  # text may come back changed
    trained_on: dict[str, int] = field(default_factory=dict)  # source -> bytes of text, of one that was trained here
    brought: str = ""  # digest of the file that it was converted from
    digits: str = ""  # how text was split, of one that was trained here; empty: written before it was recorded
    whitespace: str = ""
    left_out: dict[str, int] = field(default_factory=dict)  # source -> characters of it in pieces too long to train on
    fim_tokens: tuple[str, ...] = ()  # names of ``fim``; empty beside ids: written before they were recorded

    def content(self) -> dict:
        """What later versions added is left out at its default, so that digests of earlier data stay; how it came about too."""
        plain = dataclasses.asdict(self)
        return {key: value for key, value in plain.items() if key in _FIRST or (value and key in ("reserved", "fim"))}


@dataclass(frozen=True)
class DigestsFile:
    """xxh3_64 of the 1 MiB blocks of other files, 8 bytes each, where they are too many to be listed (``block_digests.py``)."""

    file: str
    bytes: int
    xxh3_128: str


@dataclass(frozen=True)
class ShardEntry:
    """Tokens [first_token, first_token + tokens) of their set. ``blocks``: xxh3_64 per 1 MiB, the last may be shorter."""

    file: str
    first_token: int
    tokens: int
    xxh3_128: str
    blocks: tuple[str, ...]
    first_block: int | None = field(default=None, metadata=_IF_THERE)  # in the set's file of digests; ``blocks`` is empty then


@dataclass(frozen=True)
class EndsEntry:
    """uint64 per document: the token after its last one, where the next document token stands. No blocks: hashed whole."""

    file: str
    xxh3_128: str
    blocks: tuple[str, ...] = field(default=(), metadata=_IF_THERE)
    block_digests: DigestsFile | None = field(default=None, metadata=_IF_THERE)


@dataclass(frozen=True)
class TokenSet:
    """A run of documents as tokens. ``bytes`` is their UTF-8 text, document tokens not counted."""

    tokens: int
    documents: int
    bytes: int
    shards: tuple[ShardEntry, ...]
    ends: EndsEntry
    block_digests: DigestsFile | None = field(default=None, metadata=_IF_THERE)  # of the shards; None: each lists its own


@dataclass(frozen=True)
class TableFile:
    """``blocks``: xxh3_64 per 1 MiB, the last may be shorter."""

    file: str
    bytes: int
    xxh3_128: str
    blocks: tuple[str, ...]
    block_digests: DigestsFile | None = field(default=None, metadata=_IF_THERE)  # None: they are listed


@dataclass(frozen=True)
class Packing:
    """Windows of ``sequence_length`` tokens by best fit (``packing.py``): a plan over a source's documents, and no content."""

    sequence_length: int
    version: int
    bins: tuple[int, ...]  # of every chunk, the tail last
    target_share: float  # targets per token of a window: the rest is padding
    rows: TableFile  # two uint64 per bin
    pieces: TableFile  # two uint64 per piece of a document


@dataclass(frozen=True)
class OriginsEntry:
    """What documents of one token set do not share."""

    origins: TableFile
    index: TableFile


@dataclass(frozen=True)
class DocumentFacts:
    """Where a source's documents are from. ``found``: digest of all of it in the order found, whatever the shuffle."""

    facts: TableFile
    training: OriginsEntry
    held_out: OriginsEntry | None
    found: str


@dataclass(frozen=True)
class HeldOutRule:
    """How a source's held-out documents are told from the others, where they are not the first of its shuffled order.

    content, repository: a document is held out iff the keyed hash of its text, of its repository's name, is below ``at``;
    time: iff its time is ``at`` or later. Documents without that fact are trained on.
    """

    by: str  # content, repository, time
    at: str  # hexadecimal, or a time in UTC
    groups: int  # held out: different texts, repositories, times
    unknown: int  # training documents without the fact


@dataclass(frozen=True)
class PreparationStep:
    """What a step of the preparation did to a source. Bytes are UTF-8 text.

    documents_after = documents_before - left out - ``joined`` to others; ``found``: what was changed in texts, by kind.
    """

    step: str
    version: int
    documents_before: int
    bytes_before: int
    documents_after: int
    bytes_after: int
    dropped: dict[str, int]  # documents left out, by reason; they are also in the source's own count
    changed: int  # times that a document's text was changed
    joined: int
    found: dict[str, int]


@dataclass(frozen=True)
class Registration:
    """Where a source came from. ``snapshot`` is the digest of its documents as they were read, before any step, those that could
    not be read by their reason."""

    where: str  # path, URL or data set with its commit
    snapshot: str
    found: int  # documents, those that were left out included
    read_at: str  # realtime, ISO 8601, when reading began
    bytes: int | None = None  # UTF-8 text as read; None: written before it was counted


@dataclass(frozen=True)
class Synthetic:
    """Who wrote a source that no person wrote, and who checked it: as the recipe's sections generator and verifier say it."""

    generator: dict[str, str]
    verifier: dict[str, str]  # empty: nobody


@dataclass(frozen=True)
class SourceEntry:
    """One source: its training tokens, and apart from them its held-out tokens (None: none asked for)."""

    name: str
    kind: str
    licence: str
    provenance: str
    tokens: int
    documents: int
    bytes: int  # UTF-8 text of the training documents
    target_share: float  # target tokens per token; 1.0 for plain text
    chunk_tokens: int
    shards: tuple[ShardEntry, ...]
    ends: EndsEntry
    held_out: TokenSet | None
    dropped: dict[str, int]  # documents left out, by reason
    digest: str  # of the content-defining parts of this entry
    preparation: tuple[PreparationStep, ...] = ()  # inventory of what was read, step by step; none: taken as it was
    registered: Registration | None = None  # None: written before sources were registered
    held_out_rule: HeldOutRule | None = None  # None: the first documents of the shuffled order
    document_facts: DocumentFacts | None = None  # None: written before they were kept
    packings: tuple[Packing, ...] = ()  # by sequence length, each once
    quality: dict[str, float] = field(default_factory=dict)  # axis -> mean score over what the steps kept, by bytes, 0 to 1
    synthetic: Synthetic | None = None  # None: written by people
    block_digests: DigestsFile | None = field(default=None, metadata=_IF_THERE)  # of the shards; None: each lists its own

    @property
    def training(self) -> TokenSet:
        return TokenSet(self.tokens, self.documents, self.bytes, self.shards, self.ends, self.block_digests)

    def packing(self, sequence_length: int) -> Packing | None:
        return next((plan for plan in self.packings if plan.sequence_length == sequence_length), None)

    @cached_property
    def content(self) -> dict:
        """Worked out once: a large source has a thousand shards."""
        names = [name for name in self.__dataclass_fields__ if name not in _NOT_CONTENT]
        return {
            name: _plain(value) for name in names if (value := getattr(self, name)) is not None or name not in _CONTENT_IF_THERE
        }

    def sealed(self) -> SourceEntry:
        """The same entry with its digest filled in."""
        return dataclasses.replace(self, digest=digest_json(self.content))


@dataclass(frozen=True)
class DataManifest:
    """``inputs_digest`` is of the settings and documents the build started from: a matching build is reused."""

    name: str
    tokenizer: TokenizerEntry
    dtype: str
    sources: tuple[SourceEntry, ...]
    inputs_digest: str
    created: str  # realtime, ISO 8601, for people
    versions: dict[str, str]
    kind: str = field(default="data-manifest")
    schema_version: int = field(default=1)
    settings: dict[str, Any] = field(default_factory=dict)  # of the recipe, as far as they choose and change documents

    def to_json(self) -> dict:
        return _plain(self)

    def digest(self) -> str:
        """sha256 of what defines the bytes a run can read."""
        return self._digest

    @cached_property
    def _digest(self) -> str:
        """Worked out once: it is asked for often."""
        return digest_json(
            {
                "kind": self.kind,
                "schema_version": self.schema_version,
                "tokenizer": self.tokenizer.content(),
                "dtype": self.dtype,
                "sources": [source.content for source in self.sources],
            }
        )

    def source(self, name: str) -> SourceEntry:
        return next(source for source in self.sources if source.name == name)

    def of(self, names: Iterable[str]) -> DataManifest:
        """Only these sources, in this order: a recipe may leave some out, or list them otherwise, than the build did."""
        return dataclasses.replace(self, sources=tuple(self.source(name) for name in names))

    def save(self, directory: Path) -> None:
        content = self.to_json()
        write_json(directory / MANIFEST_FILE, content | {_SEAL: digest_json(content)})

    @staticmethod
    def load(directory: Path) -> DataManifest:
        return DataManifest.read(Path(directory) / MANIFEST_FILE)

    @staticmethod
    def read(path: Path) -> DataManifest:
        """The manifest in a file of any name; what does not match its digests is refused."""
        value = _read(path)
        seal = value.pop(_SEAL, None)  # files of older versions have none
        manifest = _content_of(value, path)
        if seal is not None and not _agrees(seal, value):
            raise EnvironmentFault(
                f"{path} is not as it was written: names, licences, provenance, counts or versions have changed",
                "its seal is the digest of all that it says",
                "restore the file, or build the data again in another directory",
            )
        return manifest

    @staticmethod
    def read_content(path: Path) -> DataManifest:
        """The same where only what is no content may have changed: enough to judge the other files by."""
        return _content_of({key: part for key, part in _read(path).items() if key != _SEAL}, path)


def _plain(value: Any) -> Any:
    """As ``dataclasses.asdict``, but what is plain already is not copied: there may be millions of digests."""
    if value is None or type(value) in (str, int, float):
        return value
    if dataclasses.is_dataclass(value):
        parts = ((part, getattr(value, name)) for name, part in value.__dataclass_fields__.items())
        return {part.name: _plain(found) for part, found in parts if not part.metadata or found != part.default}
    if isinstance(value, tuple):
        return value if not value or type(value[0]) in (str, int) else tuple(map(_plain, value))
    return {key: _plain(part) for key, part in value.items()} if isinstance(value, dict) else value


def _read(path: Path) -> dict:
    value = read_json(path, "data manifest")
    if not isinstance(value, dict) or value.get("kind") != "data-manifest" or value.get("schema_version") != 1:
        raise EnvironmentFault(
            f"{path} is not a data manifest of schema 1", way_out="build the data again: headway data build RECIPE"
        )
    return value


def _content_of(value: dict, path: Path) -> DataManifest:
    """Proven by the digests of the sources."""
    manifest: DataManifest = from_plain(DataManifest, value)
    damaged = [s.name for s in manifest.sources if not _agrees(s.digest, s.content)]
    if damaged or manifest.dtype not in DTYPES:
        raise EnvironmentFault(
            f"{path} is damaged: sources {damaged or '-'} do not match their digests, dtype {manifest.dtype}",
            "every source entry carries the digest of its own content",
            "restore the file, or build the data again in another directory",
        )
    return manifest


def _agrees(digest: object, content: dict) -> bool:
    """False too where ``content`` has no digest: numbers that are not finite, text that no UTF-8 can hold."""
    try:
        return digest_json(content) == digest
    except ValueError:
        return False
