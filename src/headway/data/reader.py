"""Tokens of the windows that the stream names, from memory-mapped shards that are verified block by block.

    window of T at token s:   tokens  s .. s + T - 1         targets  s + 1 .. s + T         (views of one array)
    documents                 ends [.. 40 | 97 | 130 ..],  s = 90, T = 64  ->  document 0 0 0 0 0 0 0 1 1 ... 1 2 2 ...
                                                                                position 0 1 2 3 4 5 6 0 1 ... 32 0 1 ...

A 1 MiB block is hashed when a window first touches it and never again; document ends are hashed when a set is opened. What
does not match its digest is refused, naming the file: identity is content, never name, size or time.

Shapes: B windows, T time.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import xxhash

from headway.base.digests import digest_file
from headway.base.errors import ConfigError, DamagedData, EnvironmentFault, from_os_error
from headway.data.manifest import BLOCK_BYTES, DTYPES, DataManifest, ShardEntry, TokenSet
from headway.data.stream import Positions
from headway.recipe.spec import Spec


@dataclass(frozen=True)
class WindowBatch:
    """``tokens_BT`` and ``targets_BT`` are int64 views of one array. ``document_BT`` counts documents within the window,
    ``position_BT`` restarts at each document token (a document that began before the window starts at 0 too)."""

    tokens_BT: np.ndarray
    targets_BT: np.ndarray
    document_BT: np.ndarray
    position_BT: np.ndarray
    source_B: np.ndarray


@dataclass(frozen=True)
class DocumentSpan:
    """Document ``number`` of its source: tokens [first_token, end_token) of it, document token first."""

    number: int
    first_token: int
    end_token: int


class _Shard:
    """One mapped file and which of its blocks have been verified."""

    def __init__(self, root: Path, entry: ShardEntry, dtype: np.dtype, verify: bool, source: str | None):
        self.entry, self.path, self.source = entry, root / entry.file, source
        self.bytes = _map(self.path, entry.tokens * dtype.itemsize)
        self.tokens = self.bytes.view(dtype)
        self._unverified = np.full(len(entry.blocks), verify)
        self._left = int(self._unverified.sum())

    def touch(self, first: int, last: int) -> None:
        """Verify the blocks that hold tokens [first, last) of this shard."""
        if not self._left:
            return
        size = self.tokens.itemsize
        for block in range(first * size // BLOCK_BYTES, (last * size - 1) // BLOCK_BYTES + 1):
            if self._unverified[block]:
                self._verify(block)

    def _verify(self, block: int) -> None:
        at, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self.bytes.size)
        _read_plainly(self.path, at, end)
        if xxhash.xxh3_64_hexdigest(self.bytes[at:end].data) != self.entry.blocks[block]:
            raise self._damaged(block, at, end)
        self._unverified[block] = False
        self._left -= 1

    def _damaged(self, block: int, at: int, end: int) -> EnvironmentFault:
        """Training tokens can be named, so that a run may go on without them."""
        fault = _damaged(self.path, f"block {block}, bytes {at} to {end}")
        if self.source is None:
            return fault
        size = self.tokens.itemsize
        first, last = at // size, end // size
        where = {"source": self.source, "token": self.entry.first_token + first, "tokens": last - first}
        return DamagedData({**where, "shard": self.entry.file, "block": block}, fault)

    def verify_all(self) -> None:
        if xxhash.xxh3_128_hexdigest(self.bytes.data) != self.entry.xxh3_128:
            raise _damaged(self.path, "the whole file")


def _read_plainly(path: Path, at: int, end: int) -> None:
    """Bring bytes into memory by a read before the mapping is touched: a failing or cut file then gives an error that names it
    (through a mapping it would kill the process), and a slow one blocks without holding the interpreter."""
    try:
        with path.open("rb", buffering=0) as file:
            file.seek(at)
            found = len(file.read(end - at))
    except OSError as error:
        raise from_os_error(error, path, "cannot read data file") from error
    if found != end - at:
        raise _damaged(path, f"ends {end - at - found} bytes early")


def _damaged(path: Path, part: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"data file {path} is not what the run was frozen with ({part})",
        "its bytes do not have the digest that stands in the data manifest",
        "restore that file from a copy, or build the data again in another directory",
    )


def _map(path: Path, size: int) -> np.ndarray:
    """The file's bytes, mapped; a file of another size is refused here, other content at first touch."""
    try:
        found = path.stat().st_size
        if found != size:
            raise _damaged(path, f"{found} bytes instead of {size}")
        return np.asarray(np.memmap(path, np.uint8, "r")) if size else np.empty(0, np.uint8)
    except OSError as error:
        raise from_os_error(error, path, "cannot read data file") from error


class _Tokens:
    """One token set: its shards as one run of tokens, and its document ends."""

    def __init__(self, root: Path, entry: TokenSet, dtype: np.dtype, verify: bool, source: str | None = None):
        """``source``: whose training tokens these are; None: tokens that are held out."""
        self.entry = entry
        self.shards = [_Shard(root, shard, dtype, verify, source) for shard in entry.shards]
        self._first = np.array([shard.entry.first_token for shard in self.shards], np.int64)
        path = root / entry.ends.file
        ends = _map(path, entry.documents * 8)
        if verify and xxhash.xxh3_128_hexdigest(ends.data) != entry.ends.xxh3_128:
            raise _damaged(path, "the whole file")
        self.ends = ends.view("<u8").view("<i8")  # signed, so that searchsorted with int64 copies nothing
        self.reading = ""

    def copy(self, start: int, out: np.ndarray) -> None:
        """Tokens [start, start + len(out)) into ``out``, over shard borders."""
        number = int(self._first.searchsorted(start, "right")) - 1
        done = 0
        while done < out.size:
            shard = self.shards[number]
            first = start + done - shard.entry.first_token
            last = min(first + out.size - done, shard.entry.tokens)
            self.reading = shard.entry.file
            shard.touch(first, last)
            out[done : done + last - first] = shard.tokens[first:last]
            done, number = done + last - first, number + 1
        self.reading = ""

    def borders(self, start: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """(row, column) of every document token inside the windows at ``start``, their first column left out, sorted."""
        first = self.ends.searchsorted(start, "right")
        count = self.ends.searchsorted(start + length, "left") - first
        row = np.repeat(np.arange(start.size), count)
        within = np.arange(row.size) - np.repeat(np.cumsum(count) - count, count)
        return row, self.ends[first[row] + within] - start[row]

    def spans(self, start: int, end: int) -> list[DocumentSpan]:
        """The documents that have a token in [start, end)."""
        first, last = self.ends.searchsorted([start, end - 1], "right").tolist()
        borders = [0 if first == 0 else int(self.ends[first - 1]), *self.ends[first : last + 1].tolist()]
        return [DocumentSpan(first + i, a, b) for i, (a, b) in enumerate(pairwise(borders))]

    def verify_all(self) -> None:
        for shard in self.shards:
            shard.verify_all()


class TokenReader:
    """Windows of a data directory. Opening maps files and checks sizes, ends and tokenizer; tokens are checked on touch."""

    def __init__(self, directory: Path, manifest: DataManifest, verify: bool = True):
        self.directory, self.manifest = Path(directory), manifest
        dtype = np.dtype(DTYPES[manifest.dtype])
        self._training = [_Tokens(self.directory, s.training, dtype, verify, s.name) for s in manifest.sources]
        self._held_out = {
            s.name: _Tokens(self.directory, s.held_out, dtype, verify) for s in manifest.sources if s.held_out is not None
        }
        if verify:
            self._verify_tokenizer()

    @staticmethod
    def open(directory: Path, spec: Spec) -> TokenReader:
        """The data that ``spec`` was frozen with; other data is refused, whatever its name."""
        return TokenReader(directory, frozen_manifest(directory, spec))

    @property
    def reading(self) -> str:
        """The shard that is being read at this moment, empty when none: names the culprit of a stall."""
        return next((t.reading for t in [*self._training, *self._held_out.values()] if t.reading), "")

    def _verify_tokenizer(self) -> None:
        path = self.directory / self.manifest.tokenizer.file
        try:
            found = digest_file(path)
        except OSError as error:
            raise from_os_error(error, path, "cannot read tokenizer") from error
        if found != self.manifest.tokenizer.digest:
            raise _damaged(path, "the whole file")

    def verify_all(self) -> None:
        """Every byte of every shard against its digest."""
        for tokens in [*self._training, *self._held_out.values()]:
            tokens.verify_all()

    def window_batch(self, positions: Positions, sequence_length: int) -> WindowBatch:
        """The windows at ``positions``, in that order."""
        return _batch(self._training, positions.source, positions.token, sequence_length)

    def training_blocks(self, source: int) -> Iterator[np.ndarray]:
        """All training tokens of a source in order, a verified block at a time."""
        for shard in self._training[source].shards:
            step = BLOCK_BYTES // shard.tokens.itemsize
            for first in range(0, shard.entry.tokens, step):
                last = min(first + step, shard.entry.tokens)
                shard.touch(first, last)
                yield shard.tokens[first:last]

    def documents(self, source: int, start: int, end: int) -> list[DocumentSpan]:
        """The documents of a source's training tokens that have a token in [start, end)."""
        return self._training[source].spans(start, end)

    def document_ends(self) -> list[np.ndarray]:
        """Per source, of its training tokens: the token after each document's last one."""
        return [tokens.ends for tokens in self._training]

    def held_out_windows(self, source: str, sequence_length: int, tokens: int) -> int:
        """How many held-out windows are scored: whole ones, in order, of at most ``tokens`` targets, at least one."""
        held_out = self._held_out.get(source)
        available = (held_out.entry.tokens - 1) // sequence_length if held_out else 0
        if not available:
            raise ConfigError(
                f"source {source} has no held-out window of {sequence_length} tokens",
                f"a window of T needs T + 1 tokens; held out: {held_out.entry.tokens if held_out else 0}",
                "raise data.held_out and build the data again, or shorten the sequence",
            )
        return min(available, max(1, tokens // sequence_length))

    def held_out_batches(self, source: str, sequence_length: int, batch_windows: int, tokens: int) -> Iterator[WindowBatch]:
        """The first ``tokens`` held-out tokens of ``source`` in whole windows; the last batch may be smaller."""
        windows = self.held_out_windows(source, sequence_length, tokens)
        number = next(i for i, s in enumerate(self.manifest.sources) if s.name == source)
        for first in range(0, windows, batch_windows):
            start = np.arange(first, min(first + batch_windows, windows), dtype=np.int64) * sequence_length
            batch = _batch([self._held_out[source]], np.zeros_like(start), start, sequence_length)
            yield WindowBatch(
                batch.tokens_BT, batch.targets_BT, batch.document_BT, batch.position_BT, np.full_like(start, number)
            )


def frozen_manifest(directory: Path, spec: Spec) -> DataManifest:
    """The manifest that ``spec`` was frozen with."""
    manifest = DataManifest.load(directory)
    if manifest.digest() != spec.manifest_digest:
        raise EnvironmentFault(
            f"{directory} holds other data than the run was frozen with",
            f"manifest digest: found {manifest.digest()}, frozen {spec.manifest_digest}; differs: {_differing(manifest, spec)}",
            "put its own data back in that place (a symbolic link will do), or build it again from the same documents",
        )
    return manifest


def _differing(manifest: DataManifest, spec: Spec) -> str:
    """The parts of the data that are not as frozen, by name."""
    found, frozen = {s.name: s.digest for s in manifest.sources}, {s.name: s.digest for s in spec.sources}
    parts = [f"source {name}" for name in sorted(found.keys() | frozen.keys()) if found.get(name) != frozen.get(name)]
    parts += ["tokenizer"] if manifest.tokenizer.digest != spec.tokenizer.digest else []
    return ", ".join(parts) or "order of sources or stored type"


def _batch(sets: list[_Tokens], source_B: np.ndarray, start_B: np.ndarray, T: int) -> WindowBatch:
    B = len(source_B)
    tokens_BT1 = np.empty((B, T + 1), np.int64)
    for row, source, start in zip(tokens_BT1, source_B.tolist(), start_B.tolist()):
        sets[source].copy(start, row)
    opens = np.zeros(B, np.int64)  # flat index at which each segment (document within a window) begins
    rows, columns = [np.arange(B)], [opens]
    for k in np.unique(source_B):
        at = np.flatnonzero(source_B == k)
        row, column = sets[k].borders(start_B[at], T)
        rows.append(at[row])
        columns.append(column)
    document_BT, position_BT = _documents(np.concatenate(rows), np.concatenate(columns), B, T)
    return WindowBatch(tokens_BT1[:, :-1], tokens_BT1[:, 1:], document_BT, position_BT, source_B)


@lru_cache(maxsize=4)
def _flat_index(size: int) -> np.ndarray:
    index = np.arange(size)
    index.flags.writeable = False
    return index


def _documents(row: np.ndarray, column: np.ndarray, B: int, T: int) -> tuple[np.ndarray, np.ndarray]:
    """Document number and position, from the (row, column) at which segments open; every row opens one at column 0."""
    opens = np.sort(row * T + column)
    lengths = np.diff(opens, append=B * T)
    per_row = np.bincount(row, minlength=B)
    number = np.arange(opens.size) - np.repeat(np.cumsum(per_row) - per_row, per_row)
    document = np.repeat(number.astype(np.int32), lengths)
    position = np.repeat(opens, lengths)
    np.subtract(_flat_index(B * T), position, out=position)  # in place: fresh memory costs more than the arithmetic
    return document.reshape(B, T), position.reshape(B, T)
