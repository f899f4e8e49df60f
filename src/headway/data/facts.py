"""What is known of every document beside its tokens: where it was found, and the facts that its source had of it.

    documents.facts     a line of JSON per set of facts that documents share: repository, language, licence
    documents.origins   a line of JSON per document, in the order of its tokens: origin, and its own path, url, time
    documents.index     two uint64 per document: the byte after its line of origins; where its line of facts begins

A source has one file of shared facts for its training and its held-out documents: files of one repository are found together,
so a set of facts is written again only after 65,536 others, and memory stays bounded. A path that is the origin is not repeated.
Values are as they were found, cut at 2,000 characters; what is not known is not there.

Facts are labels: they change no digest of content. Each file carries digests of its 1 MiB blocks, checked whenever one is read.
"""

from __future__ import annotations

import json
import os
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from headway.base.errors import EnvironmentFault, from_os_error
from headway.data.block_digests import BlockDigests
from headway.data.manifest import BLOCK_BYTES, DocumentFacts, OriginsEntry, SourceEntry, TableFile
from headway.data.place import DataPlace
from headway.data.remote import missing
from headway.data.tables import TableWriter

FACTS_FILE, ORIGINS_FILE, INDEX_FILE = "documents.facts", "documents.origins", "documents.index"
SHARED = ("repository", "language", "licence")
"""Facts that many documents have in common, of ``sources.FACTS``."""
INDEX_BYTES = 16
_LONGEST_VALUE = 2_000
_SETS_KEPT = 2**16
_BLOCKS_KEPT = 8
_WRITE_BYTES = 2**17
_AT_ONCE = 2**10
_WAY_OUT = (
    "find all damage with headway data verify, and restore the file from a copy; or build the data again in another directory"
)


@dataclass(frozen=True)
class Provenance:
    """Of one document. ``facts``: by the names in ``sources.FACTS``."""

    origin: str
    facts: Mapping[str, str]


class FactLines:
    """Facts of documents in the order they are found, as bytes for the three files of the table."""

    def __init__(self) -> None:
        self._places: OrderedDict[bytes, int] = OrderedDict()  # of the sets of facts written last
        self._facts_bytes = self._origins_bytes = 0

    def lines(self, origin: str, facts: Mapping[str, str]) -> tuple[bytes, bytes, bytes]:
        """What a document adds to facts (nothing where its set stands there), origins and index."""
        own = {"origin": origin} | {name: value for name, value in facts.items() if name not in SHARED}
        if own.get("path") == origin:
            del own["path"]
        shared = _line({name: value for name, value in facts.items() if name in SHARED})
        place, added = self._places.pop(shared, None), b""
        if place is None:
            place, added = self._facts_bytes, shared
            self._facts_bytes += len(shared)
        self._places[shared] = place
        if len(self._places) > _SETS_KEPT:
            self._places.popitem(last=False)
        line = _line(own)
        self._origins_bytes += len(line)
        return added, line, self._origins_bytes.to_bytes(8, "little") + place.to_bytes(8, "little")


def _line(values: Mapping[str, str]) -> bytes:
    """ASCII: a lone surrogate in a name is an escape."""
    cut = {name: value[:_LONGEST_VALUE] for name, value in sorted(values.items())}
    return json.dumps(cut, separators=(",", ":")).encode() + b"\n"


# --- written beside the tokens --------------------------------------------------------------------------------------------


class Found:
    """The table of a spool, mapped: documents in the order they were found."""

    def __init__(self, facts: Path, origins: Path, index: Path, documents: int):
        self.facts, self._documents = facts, documents
        self._index = np.memmap(index, "<u8", "r", shape=(documents, 2)) if documents else np.zeros((0, 2), "<u8")
        self._origins = np.memmap(origins, np.uint8, "r") if documents else np.zeros(0, np.uint8)

    def rows(self, documents: np.ndarray) -> Iterator[tuple[bytes, np.ndarray, np.ndarray]]:
        """Some thousand documents at a time: their lines of origins, the lengths of these, the places of their shared facts."""
        for at in range(0, len(documents), _AT_ONCE):
            some = documents[at : at + _AT_ONCE]
            ends = self._index[some, 0].astype(np.int64)
            starts = np.where(some > 0, self._index[np.maximum(some, 1) - 1, 0], 0).astype(np.int64)
            view = self._origins.data
            lines = b"".join([view[start:end] for start, end in zip(starts.tolist(), ends.tolist(), strict=True)])
            yield lines, ends - starts, self._index[some, 1]


class OriginsWriter:
    """Origins and index of a token set, beside its document ends."""

    def __init__(self, root: Path, relative: str):
        self._origins = TableWriter(root, f"{relative}/{ORIGINS_FILE}")
        self._index = TableWriter(root, f"{relative}/{INDEX_FILE}")
        self._bytes = 0

    def extend(self, found: Found, documents: np.ndarray) -> None:
        """Documents of a spool, in this order."""
        for lines, lengths, places in found.rows(documents):
            ends = self._bytes + np.cumsum(lengths)
            self._origins.append(lines)
            self._index.append(np.stack([ends.astype("<u8"), places.astype("<u8")], axis=1).tobytes())
            self._bytes += len(lines)

    def finish(self) -> OriginsEntry:
        return OriginsEntry(self._origins.finish(), self._index.finish())


def copy_facts(found: Found, root: Path, relative: str) -> TableFile:
    """The shared facts of a source, as they lie in its spool."""
    writer = TableWriter(root, f"{relative}/{FACTS_FILE}")
    with open(found.facts, "rb") as file:
        while piece := file.read(_WRITE_BYTES):
            writer.append(piece)
    return writer.finish()


# --- read from a data directory -------------------------------------------------------------------------------------------


class Table:
    """Documents of a token set by their number. Memory is a few blocks, whatever the number of documents."""

    def __init__(self, place: DataPlace | Path, entry: DocumentFacts, held_out: bool = False):
        origins = entry.held_out if held_out else entry.training
        assert origins is not None, "asked for only where there are held-out documents"
        place = DataPlace.of(place)
        self._facts = _Blocks(place, entry.facts)
        self._origins, self._index = _Blocks(place, origins.origins), _Blocks(place, origins.index)

    @staticmethod
    def of(place: DataPlace | Path, entry: SourceEntry, held_out: bool = False) -> Table | None:
        """Of training or held-out documents; None: a build that did not keep it, or a directory that was copied without it."""
        facts, place = entry.document_facts, DataPlace.of(place)
        if facts is None or (held_out and facts.held_out is None):
            return None
        return None if lacking(place, entry) else Table(place, facts, held_out)

    def verify(self) -> None:
        """Read all of it. EnvironmentFault for what does not have its digest."""
        for blocks in (self._facts, self._origins, self._index):
            blocks.verify()

    def __len__(self) -> int:
        return self._index.entry.bytes // INDEX_BYTES

    def __getitem__(self, number: int) -> Provenance:
        """EnvironmentFault for what does not have its digest."""
        first = max(0, number - 1)
        rows = self.index(first, number + 1)
        start = int(rows[0, 0]) if number else 0
        own = self._parsed(self._origins, start, int(rows[-1, 0]))
        origin = own.pop("origin", "")
        return Provenance(origin, MappingProxyType({"path": origin} | own | self.shared(int(rows[-1, 1]))))

    def index(self, start: int, stop: int) -> np.ndarray:
        """Rows [start, stop) of the index: end of the line of origins, place of the shared facts."""
        return np.frombuffer(self._index.read(start * INDEX_BYTES, stop * INDEX_BYTES), "<u8").reshape(-1, 2)

    def shared(self, place: int) -> dict[str, str]:
        """The shared facts that stand at ``place``."""
        return self._parsed(self._facts, place, self._facts.line_end(place))

    def _parsed(self, blocks: _Blocks, start: int, end: int) -> dict[str, str]:
        try:
            value = json.loads(blocks.read(start, end))
        except ValueError:
            value = None
        if not isinstance(value, dict) or not all(isinstance(part, str) for part in value.values()):
            raise _damaged(blocks.where, f"bytes {start} to {end} are no line of facts")
        return value


def lacking(place: DataPlace | Path, entry: SourceEntry) -> str:
    """The file of ``entry`` without which nothing is known of its documents, where a copy was made without it; empty: none is.

    For readers that do without, and say so.
    """
    facts, place = entry.document_facts, DataPlace.of(place)
    if facts is None or place.shards is not None or (place.directory / facts.facts.file).exists():
        return ""
    return facts.facts.file


def verify(place: DataPlace | Path, entry: SourceEntry) -> None:
    """All that is known of documents, training and held out, against the manifest. EnvironmentFault for damage, and for a file
    that is not there."""
    if entry.document_facts is not None:
        Table(place, entry.document_facts).verify()
        if entry.document_facts.held_out is not None:
            Table(place, entry.document_facts, held_out=True).verify()


class _Blocks:
    """One file, read in blocks that are verified; the last few are kept."""

    def __init__(self, place: DataPlace, entry: TableFile):
        self.path, self.entry = place.directory / entry.file, entry
        self._remote = place.shards.remote if place.shards is not None else None
        self.where = self._remote.where(entry.file) if self._remote is not None else self.path
        apart = [entry.block_digests] if entry.block_digests else []
        self._digests = BlockDigests.open(place.having(*apart), entry.blocks, entry.block_digests)
        self._kept: OrderedDict[int, bytes] = OrderedDict()

    def read(self, start: int, end: int) -> bytes:
        if not 0 <= start <= end <= self.entry.bytes:
            raise _damaged(self.where, f"bytes {start} to {end} are asked for, it has {self.entry.bytes}")
        blocks = range(start // BLOCK_BYTES, (end + BLOCK_BYTES - 1) // BLOCK_BYTES)
        data = b"".join(map(self._block, blocks))
        offset = start - blocks.start * BLOCK_BYTES
        return data[offset : offset + end - start]

    def line_end(self, start: int) -> int:
        """The byte after the line that begins at ``start``."""
        block = start // BLOCK_BYTES
        while block < len(self._digests):
            at = max(0, start - block * BLOCK_BYTES)
            found = self._block(block).find(b"\n", at)
            if found >= 0:
                return block * BLOCK_BYTES + found + 1
            block += 1
        raise _damaged(self.where, f"no line begins at byte {start}")

    def verify(self) -> None:
        if self._remote is None and not self.path.is_file():
            raise EnvironmentFault(f"what is known of documents is missing: {self.path}", "the data manifest names it", _WAY_OUT)
        if self._remote is None and (size := self.path.stat().st_size) != self.entry.bytes:
            raise _damaged(self.where, f"{size:,} bytes instead of {self.entry.bytes:,}")
        for number in range(len(self._digests)):
            self._block(number)

    def _block(self, number: int) -> bytes:
        if number in self._kept:
            self._kept.move_to_end(number)
            return self._kept[number]
        try:
            if self._remote is not None:
                data = self._remote.range(self.entry.file, number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES)
            else:
                with self.path.open("rb", buffering=0) as file:
                    data = os.pread(file.fileno(), BLOCK_BYTES, number * BLOCK_BYTES)
        except OSError as error:
            if self._remote is not None and isinstance(error, FileNotFoundError):
                raise missing(self._remote.where(self.entry.file)) from error
            raise from_os_error(error, self.where, "cannot read facts of documents") from error
        wanted = min(BLOCK_BYTES, self.entry.bytes - number * BLOCK_BYTES)
        if len(data) < wanted or not self._digests.agrees(number, data[:wanted]):
            raise _damaged(self.where, f"block {number}")
        self._kept[number] = data[:wanted]
        if len(self._kept) > _BLOCKS_KEPT:
            self._kept.popitem(last=False)
        return self._kept[number]


def _damaged(path: Path | str, part: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"facts of documents are damaged: {path} ({part})",
        "their bytes have the digests that stand in the data manifest",
        _WAY_OUT,
    )
