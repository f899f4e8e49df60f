"""A data directory read again from the storage, every byte of it, against the digests of its manifest.

    manifest.json   its seal, its sources' digests, and that its bytes are as ``write_json`` writes them
    tokenizer.json  sha256
    shard-*.bin     xxh3_64 of every 1 MiB block, so that a damage has a place; then xxh3_128 of the whole file
    documents.ends, .facts, .origins, .index, packing-*   as shards; few document ends as a whole
    *.blocks        xxh3_128: digests of the blocks of other files, where they are too many for the manifest

All damages are found, not the first one. Without its manifest nothing of a directory can be judged: then that is the one
damage that is told.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import xxhash

from headway.base.clocks import Clock, SystemClock
from headway.base.digests import is_sealed
from headway.base.errors import ConfigError, HeadwayError
from headway.base.files import indented_json, read_json
from headway.data.block_digests import BlockDigests, with_blocks
from headway.data.ends import END_BYTES
from headway.data.manifest import (
    BLOCK_BYTES,
    DTYPES,
    MANIFEST_FILE,
    REPORT_FILE,
    DataManifest,
    DigestsFile,
    DocumentFacts,
    TableFile,
    TokenSet,
)
from headway.data.remote import Remote
from headway.data.tokenizer import TOKENIZER_FILE

FACTS, PACKING, ENDS, DIGESTS = "document facts", "packing", "document ends", "digests of blocks"
LABELS = (FACTS, PACKING)

Progress = Callable[[int], None]
"""Is told the bytes of each block that was read."""


@dataclass(frozen=True)
class Damage:
    """``file`` is relative to the directory. ``block``: which 1 MiB of a shard, from 0; None: the whole file."""

    file: str
    seen: str
    block: int | None = None
    blocks: int | None = None  # that the file has


@dataclass(frozen=True)
class Checked:
    """One file as it was found."""

    file: str
    what: str  # manifest, tokenizer, shard, document ends, document facts, packing, digests of blocks
    part: str  # the source it belongs to, with "held out" where it is; empty: all of them
    bytes: int  # that were read
    damages: tuple[Damage, ...]


@dataclass(frozen=True)
class Verified:
    """``digest`` is the manifest's; empty where there is none to trust. ``unlisted``: files that the manifest does not name."""

    directory: Path | str
    digest: str
    files: tuple[Checked, ...]
    unlisted: tuple[str, ...]
    seconds: float

    @property
    def damages(self) -> tuple[Damage, ...]:
        return tuple(damage for file in self.files for damage in file.damages)

    @property
    def bytes_read(self) -> int:
        return sum(file.bytes for file in self.files)


def verify_remote(remote: Remote, manifest: DataManifest, progress: Progress | None = None) -> Verified:
    """Read everything that a manifest at a URL names, from there and past every cache. What else lies there is not listed."""
    clock, tell = SystemClock(), progress or (lambda nbytes: None)
    began_ns = clock.stamp().boot_ns
    size = remote.size(MANIFEST_FILE)  # the manifest was proven by its seal when it was read
    items = _items(manifest, lambda file: np.frombuffer(remote.get(file), np.uint8))
    files = [Checked(MANIFEST_FILE, "manifest", "", size, ()), *(_check_remote(remote, item, tell) for item in items)]
    seconds = (clock.stamp().boot_ns - began_ns) / 1e9
    return Verified(remote.url, manifest.digest(), tuple(files), (), seconds)


def verify(directory: Path, progress: Progress | None = None, clock: Clock | None = None) -> Verified:
    """Read everything. ConfigError where ``directory`` never was a data directory."""
    clock, tell = clock or SystemClock(), progress or (lambda nbytes: None)
    directory = Path(directory)
    _refuse_other(directory)
    began_ns = clock.stamp().boot_ns
    manifest, files = _manifest(directory)
    if manifest is not None:
        items = list(_items(manifest, lambda file: np.fromfile(directory / file, np.uint8)))
        labels = {
            item.file for item in items if item.what in LABELS and files[0].damages
        }  # what they are judged by is no content
        files += [_check(directory, item, tell) for item in items if item.file not in labels]
        if any(source.preparation for source in manifest.sources):
            files.append(_report(directory))
    unlisted = _unlisted(directory, {file.file for file in files} | labels) if manifest is not None else ()
    seconds = (clock.stamp().boot_ns - began_ns) / 1e9
    return Verified(directory, manifest.digest() if manifest else "", tuple(files), unlisted, seconds)


def total_bytes(directory: Path) -> int:
    """What will be read, for a meter; 0 where the manifest cannot be read."""
    try:
        manifest = DataManifest.load(directory)
    except HeadwayError:
        return 0
    return sum(item.bytes for item in _items(manifest, lambda file: np.empty(0, np.uint8)) if item.bytes is not None)


def is_of_a_build(directory: Path) -> bool:
    """Whether ``directory`` has anything that a build writes."""
    return any(next(directory.glob(name), None) for name in (MANIFEST_FILE, TOKENIZER_FILE, "*/documents.ends"))


def _refuse_other(directory: Path) -> None:
    """A directory that lost its manifest is damaged; one that has nothing of a build is a mistake of the caller."""
    if not directory.is_dir():
        seen = "is a file" if directory.exists() else "does not exist"
        raise ConfigError(f"{directory} {seen}", "built data is a directory", "name what headway data build wrote, or build it")
    if not is_of_a_build(directory):
        raise ConfigError(
            f"{directory} is no data directory", f"built data has a {MANIFEST_FILE} in it", "name what headway data build wrote"
        )


# --- the manifest ---------------------------------------------------------------------------------------------------------


def _manifest(directory: Path) -> tuple[DataManifest | None, list[Checked]]:
    """What the other files are judged by, if anything of it can be trusted."""
    path = directory / MANIFEST_FILE
    seen = _manifest_damage(path)
    try:
        manifest = DataManifest.read_content(path) if path.is_file() else None
    except HeadwayError:
        manifest = None
    if manifest is None:
        seen += "; nothing else can be judged without it"
    size = path.stat().st_size if path.is_file() else 0
    damages = (Damage(MANIFEST_FILE, seen),) if seen else ()
    return manifest, [Checked(MANIFEST_FILE, "manifest", "", size, damages)]


def _manifest_damage(path: Path) -> str:
    """Empty: there is none."""
    if path.exists() and not path.is_file():  # a pipe would be waited for
        return "is no regular file"
    try:
        DataManifest.read(path)
        data = path.read_bytes()
        is_as_written = data == indented_json(json.loads(data))  # an end that is cut off, a space more: JSON that says the same
        return "" if is_as_written else "not byte for byte as it was written, though it says the same"
    except HeadwayError as error:
        return "; ".join(f"{p.seen} ({p.rule})" if p.rule else p.seen for p in error.problems).replace(f"{path} is ", "")
    except (OSError, ValueError) as error:  # it changed between the two reads
        return f"cannot be read: {error}"


def _report(directory: Path) -> Checked:
    """Of the preparation: it carries its own seal."""
    path, seen, size = directory / REPORT_FILE, "", 0
    try:
        size = path.stat().st_size
        content = read_json(path, "report of the preparation") if path.is_file() else None
        if not isinstance(content, dict) or not is_sealed(content):
            seen = "its seal is not the digest of what it says"
    except HeadwayError as error:
        seen = error.problems[0].seen
    except OSError as error:
        seen = f"cannot be read: {error.strerror or error}"
    return Checked(REPORT_FILE, "preparation", "", size, (Damage(REPORT_FILE, seen),) if seen else ())


# --- files ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Item:
    """One file that the manifest names, and how it is recognised. ``bytes`` None: only its digest says."""

    file: str
    what: str
    part: str
    bytes: int | None
    digest: str
    blocks: tuple[str, ...] = ()


Fetch = Callable[[str], np.ndarray]
"""The bytes of a file that the manifest names."""


def _items(manifest: DataManifest, fetch: Fetch) -> Iterator[_Item]:
    """``fetch``: of files with digests of blocks; those that are damaged judge nothing, and whole files are judged."""
    width = 2 if DTYPES[manifest.dtype] == "<u2" else 4
    yield _Item(manifest.tokenizer.file, "tokenizer", "", None, manifest.tokenizer.digest)
    for source in manifest.sources:
        yield from _of_set(source.training, source.name, width, fetch)
        if source.held_out is not None:
            yield from _of_set(source.held_out, f"{source.name}, held out", width, fetch)
        for plan in source.packings:
            for file in (plan.rows, plan.pieces):
                yield from _of_table(file, PACKING, source.name, fetch)
        if source.document_facts is not None:
            yield from _of_facts(source.document_facts, source.name, fetch)


def _of_set(tokens: TokenSet, part: str, width: int, fetch: Fetch) -> Iterator[_Item]:
    digests = BlockDigests(())
    if tokens.block_digests is not None:
        yield _of_digests(tokens.block_digests, part)
        digests = _digests(tokens.block_digests, fetch)
    for entry in tokens.shards:
        shard = with_blocks(entry, digests, width) if len(digests) else entry
        yield _Item(shard.file, "shard", part, shard.tokens * width, shard.xxh3_128, shard.blocks)
    ends = tokens.ends
    size = tokens.documents * END_BYTES
    yield from _of_table(TableFile(ends.file, size, ends.xxh3_128, ends.blocks, ends.block_digests), ENDS, part, fetch)


def _of_table(table: TableFile, what: str, part: str, fetch: Fetch) -> Iterator[_Item]:
    blocks = table.blocks
    if table.block_digests is not None:
        yield _of_digests(table.block_digests, part)
        digests = _digests(table.block_digests, fetch)
        blocks = tuple(digests[block] for block in range(len(digests)))
    yield _Item(table.file, what, part, table.bytes, table.xxh3_128, blocks)


def _of_digests(file: DigestsFile, part: str) -> _Item:
    return _Item(file.file, DIGESTS, part, file.bytes, file.xxh3_128)


def _digests(file: DigestsFile, fetch: Fetch) -> BlockDigests:
    """None of a file that is not whole."""
    with contextlib.suppress(OSError):
        data = fetch(file.file)
        if xxhash.xxh3_128_hexdigest(data.data) == file.xxh3_128:
            return BlockDigests((), data)
    return BlockDigests(())


def _of_facts(facts: DocumentFacts, part: str, fetch: Fetch) -> Iterator[_Item]:
    sets = ((part, facts.training), (f"{part}, held out", facts.held_out))
    tables = [(part, facts.facts), *((name, table) for name, of in sets if of for table in (of.origins, of.index))]
    for name, table in tables:
        yield from _of_table(table, FACTS, name, fetch)


def _check(root: Path, item: _Item, tell: Progress) -> Checked:
    reading = _Reading(item)
    try:
        reading.read(root / item.file, tell)
    except (OSError, ValueError) as error:  # ValueError: a name that no file can have
        reading.found(f"cannot be read: {getattr(error, 'strerror', None) or error}")
    return Checked(item.file, item.what, item.part, reading.bytes, tuple(reading.damages))


def _check_remote(remote: Remote, item: _Item, tell: Progress) -> Checked:
    """EnvironmentFault where the storage cannot be read: that is no damage."""
    reading = _Reading(item)
    try:
        size = remote.size(item.file)
        for piece in remote.pieces(item.file, size):
            for at in range(0, len(piece), BLOCK_BYTES):
                reading.block(piece[at : at + BLOCK_BYTES])
            tell(len(piece))
        reading.judge_whole()
    except FileNotFoundError:
        reading.found("is not there")
    return Checked(item.file, item.what, item.part, reading.bytes, tuple(reading.damages))


class _Reading:
    """One file, block by block."""

    def __init__(self, item: _Item):
        self.item, self.bytes = item, 0
        self.damages: list[Damage] = []
        self._whole = hashlib.sha256() if item.digest.startswith("sha256:") else xxhash.xxh3_128()

    def found(self, seen: str, block: int | None = None) -> None:
        self.damages.append(Damage(self.item.file, seen, block, len(self.item.blocks) or None))

    def read(self, path: Path, tell: Progress) -> None:
        if not stat.S_ISREG(path.stat().st_mode):  # a pipe would be waited for
            self.found("is no regular file")
            return
        with path.open("rb", buffering=0) as file:
            with contextlib.suppress(OSError):  # so that it is the storage that answers
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            while data := _whole_block(file):
                self.block(data)
                tell(len(data))
        self.judge_whole()

    def block(self, data: bytes) -> None:
        number = self.bytes // BLOCK_BYTES
        self.bytes += len(data)
        self._whole.update(data)
        wanted, expected = self.item.blocks, self.item.bytes
        is_short = expected is not None and len(data) < min(BLOCK_BYTES, expected - number * BLOCK_BYTES)
        if number < len(wanted) and not is_short and xxhash.xxh3_64_hexdigest(data[: self._length(number)]) != wanted[number]:
            self.found("other content than the manifest's digest says", number)

    def _length(self, number: int) -> int:
        """Bytes of a block: what stands behind the end of a file that grew is another damage."""
        assert self.item.bytes is not None
        return min(BLOCK_BYTES, self.item.bytes - number * BLOCK_BYTES)

    def judge_whole(self) -> None:
        expected = self.item.bytes
        if expected is not None and self.bytes != expected:
            change = f"cut off, {expected - self.bytes:,} bytes are missing" if self.bytes < expected else "longer than written"
            place = self.bytes // BLOCK_BYTES if self.item.blocks and self.bytes < expected else None
            self.found(f"{self.bytes:,} bytes instead of {expected:,}: {change}", place)
        elif not self.damages and self._digest() != self.item.digest:
            self.found("other content than the manifest's digest says")

    def _digest(self) -> str:
        prefix = "sha256:" if self.item.digest.startswith("sha256:") else ""
        return prefix + self._whole.hexdigest()


def _whole_block(file) -> bytes:
    """Up to 1 MiB; a read may return less than it was asked for before the end."""
    parts, missing = [], BLOCK_BYTES
    while missing and (part := file.read(missing)):
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


def _unlisted(directory: Path, listed: set[str]) -> tuple[str, ...]:
    found = (path.relative_to(directory).as_posix() for path in sorted(directory.rglob("*")) if not path.is_dir())
    return tuple(name for name in found if name not in listed)
