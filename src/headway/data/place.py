"""Where built data lies: a directory of this machine, or a URL with a cache on this machine.

    open_place("data/mine", ...)      directory: that one                        shards: mapped where they are
    open_place("s3://b/mine", ...)    directory: CACHE/sets/DIGEST, filled at    shards: through the cache, on first touch
                                      opening: manifest, tokenizer, ends         plans: into the directory, when first asked for

The manifest is read anew at every opening, so that data that was replaced is noticed; what it names is taken by content. The
bound is checked against it: the cache holds the current chunk of every source, one coming chunk, and what evaluations read. The
bound is of shards alone: CACHE/sets has, of every manifest that was opened, 8 bytes a document, and 16 a bin and a piece of the
plans that were read; what nobody used for 30 days goes when other data is opened (``kept_sets.py``).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import xxhash

from headway.base.digests import digest_bytes
from headway.base.errors import ConfigError, EnvironmentFault, from_os_error
from headway.base.files import make_directory, unique_sibling, write_atomic
from headway.base.units import format_bytes
from headway.base.urls import is_url
from headway.data.cache import ShardCache
from headway.data.ends import END_BYTES
from headway.data.kept_sets import KeptSet, sweep
from headway.data.manifest import (
    DTYPES,
    MANIFEST_FILE,
    REPORT_FILE,
    DataManifest,
    DigestsFile,
    ShardEntry,
    SourceEntry,
    TableFile,
)
from headway.data.remote import Remote, missing

DEFAULT_BOUND_BYTES = 16 * 2**30


@dataclass(frozen=True)
class CacheOptions:
    """``directory`` None: ``default_cache()``. ``bound_bytes`` None: 16 GiB, or two chunks of every source if that is more."""

    directory: Path | None = None
    bound_bytes: int | None = None

    @property
    def root(self) -> Path:
        return (self.directory or default_cache()).expanduser()

    @staticmethod
    def of(deployment: dict[str, Any]) -> CacheOptions:
        """Of a resolved deployment; older ones say nothing of a cache."""
        given = deployment.get("cache") or {}
        return CacheOptions(Path(given["directory"]) if given.get("directory") else None, given.get("size"))


@dataclass(frozen=True)
class RemoteShards:
    """Shards at a URL, and the cache that they come through."""

    remote: Remote
    cache: ShardCache
    kept: KeptSet  # for as long as the place is used


@dataclass(frozen=True)
class DataPlace:
    """``where`` as it was given; ``directory`` of this machine has manifest, tokenizer and ends. ``shards`` None: all of it."""

    where: str
    directory: Path
    shards: RemoteShards | None = None

    @staticmethod
    def of(place: DataPlace | Path | str) -> DataPlace:
        """A directory stands for itself."""
        return place if isinstance(place, DataPlace) else DataPlace(str(place), Path(place))

    def having(self, *files: TableFile | DigestsFile) -> Path:
        """``directory``, with ``files`` and the digests of their blocks in it: of data at a URL those that are not there whole
        are fetched. EnvironmentFault."""
        if self.shards is not None:
            digests = [file.block_digests for file in files if isinstance(file, TableFile) and file.block_digests]
            named = [_Named(file.file, file.xxh3_128, file.bytes) for file in (*files, *digests)]
            _small_files(self.shards.remote, self.directory, named)
        return self.directory


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "headway" / "data"


def manifest_at(where: str | Path, options: CacheOptions | None = None, remote: Remote | None = None) -> DataManifest:
    """The manifest alone; a bound that is too small for it is refused here already."""
    if not is_url(where):
        return DataManifest.load(Path(where))
    options = options or CacheOptions()
    kept = _manifest(remote or Remote.open(str(where)), options.root / "sets")
    manifest = DataManifest.load(kept.path)
    _bound(manifest, options.bound_bytes)
    return manifest


def tokenizer_directory(where: str | Path, options: CacheOptions | None = None, remote: Remote | None = None) -> Path:
    """A directory of this machine with manifest and tokenizer: all that text and ids need. Of a URL nothing else is fetched."""
    if not is_url(where):
        return Path(where)
    remote = remote or Remote.open(str(where))
    kept = _manifest(remote, (options or CacheOptions()).root / "sets")
    _small_files(remote, kept.path, [_tokenizer(DataManifest.load(kept.path))])
    return kept.path


def open_place(where: str | Path, options: CacheOptions | None = None, remote: Remote | None = None) -> DataPlace:
    """Errors: ConfigError for a URL or a bound that cannot work, EnvironmentFault for a place that cannot be read."""
    if not is_url(where):
        return DataPlace(str(where), Path(where))
    options, remote = options or CacheOptions(), remote or Remote.open(str(where))
    kept = _manifest(remote, options.root / "sets")
    manifest = DataManifest.load(kept.path)
    bound_bytes = _bound(manifest, options.bound_bytes)
    sweep(options.root / "sets")
    _small_files(remote, kept.path, list(_named(manifest)))
    cache = ShardCache(options.root, bound_bytes)
    return DataPlace(str(where), kept.path, RemoteShards(remote, cache, kept))


def _manifest(remote: Remote, sets: Path) -> KeptSet:
    """The directory, named by the manifest's bytes, that holds it."""
    try:
        written = remote.get(MANIFEST_FILE)
    except FileNotFoundError as error:
        raise ConfigError(
            f"{remote.url} is no data directory: there is no {MANIFEST_FILE}",
            f"built data has a {MANIFEST_FILE} in it",
            "name the place that holds what headway data build wrote",
        ) from error
    kept = KeptSet(sets / digest_bytes(written).rpartition(":")[2][:32])
    if not _is_whole(kept.path / MANIFEST_FILE, digest_bytes(written)):
        write_atomic(kept.path / MANIFEST_FILE, written)
    return kept


def _small_files(remote: Remote, directory: Path, files: list[_Named]) -> None:
    """Beside the manifest, those that are not there whole."""
    for named in files:
        path = directory / _inside(named.file)
        if not _is_whole(path, named.digest):
            make_directory(path.parent, "cache for data")
            _fetch(remote, named, path)


@dataclass(frozen=True)
class _Named:
    """A small file. ``digest`` empty: its own seal says; ``bytes`` None: as many as there are."""

    file: str
    digest: str
    bytes: int | None = None


def _fetch(remote: Remote, named: _Named, path: Path) -> None:
    """Document ends may be more than memory holds."""
    try:
        if named.bytes is None:
            return write_atomic(path, remote.get(named.file))
        temporary = unique_sibling(path)
        try:
            with temporary.open("xb") as file:
                for piece in remote.pieces(named.file, named.bytes):
                    file.write(piece)
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except FileNotFoundError as error:
        raise missing(remote.where(named.file)) from error
    except OSError as error:
        raise from_os_error(error, path, "cannot write the cache for data") from error


def _tokenizer(manifest: DataManifest) -> _Named:
    return _Named(manifest.tokenizer.file, manifest.tokenizer.digest)


def _named(manifest: DataManifest) -> Iterator[_Named]:
    """What opening takes: tokenizer, ends and report."""
    yield _tokenizer(manifest)
    for source in manifest.sources:
        for tokens in (source.training, *([source.held_out] if source.held_out else [])):
            yield _Named(tokens.ends.file, tokens.ends.xxh3_128, tokens.documents * END_BYTES)
            for digests in (tokens.block_digests, tokens.ends.block_digests):
                if digests is not None:
                    yield _Named(digests.file, digests.xxh3_128, digests.bytes)
    if any(source.preparation for source in manifest.sources):
        yield _Named(REPORT_FILE, "")


def _is_whole(path: Path, digest: str) -> bool:
    """What is here is taken by its content; a file that is damaged here is fetched again."""
    try:
        if not path.stat().st_size or not digest:
            return path.is_file() and not digest
        data = np.memmap(path, np.uint8, "r").data
    except OSError:
        return False
    return digest == (digest_bytes(data) if digest.startswith("sha256:") else xxhash.xxh3_128_hexdigest(data))  # type: ignore[arg-type]


def _inside(file: str) -> str:
    """A manifest comes from elsewhere: it names files under its own directory only."""
    parts = PurePosixPath(file)
    if parts.is_absolute() or ".." in parts.parts or not parts.parts or "\0" in file or "\\" in file:
        raise EnvironmentFault(f"the data manifest names the file {file!r}", "files of built data lie under its own directory")
    return file


# --- the bound --------------------------------------------------------------------------------------------------------------


def _bound(manifest: DataManifest, asked: int | None) -> int:
    chunks = chunk_bytes(manifest)
    evaluated = sum(_largest(s.held_out.shards[:1], manifest) for s in manifest.sources if s.held_out is not None)
    needed = sum(chunks) + max(chunks, default=0) + evaluated
    if asked is None:
        return max(DEFAULT_BOUND_BYTES, 2 * sum(chunks) + evaluated)
    if asked < needed:
        raise ConfigError(
            f"a cache of {format_bytes(asked)} is too small for this data",
            "it holds the shards of the current chunk of every source, of one coming chunk, and of the evaluation: "
            f"{needed:,} bytes; with less, shards would be fetched over and over",
            f"cache.size = {needed} works, {2 * sum(chunks) + evaluated} has room for every coming chunk",
        )
    return asked


def chunk_bytes(manifest: DataManifest) -> list[int]:
    """Per source: the shards that one of its chunks touches, at most, in bytes."""
    return [_span(source, np.dtype(DTYPES[manifest.dtype]).itemsize) for source in manifest.sources]


def _span(source: SourceEntry, itemsize: int) -> int:
    if not source.shards:
        return 0
    ends = np.cumsum([shard.tokens for shard in source.shards])
    starts = np.arange(0, max(1, source.tokens - 1), source.chunk_tokens)
    lasts = np.minimum(starts + source.chunk_tokens, source.tokens - 1)  # windows read their last target too
    first, last = ends.searchsorted(starts, "right"), ends.searchsorted(lasts, "right")
    before = np.concatenate([[0], ends])
    return int((before[last + 1] - before[first]).max()) * itemsize


def _largest(shards: tuple[ShardEntry, ...], manifest: DataManifest) -> int:
    return max((shard.tokens for shard in shards), default=0) * np.dtype(DTYPES[manifest.dtype]).itemsize
