"""Tokens of the windows that the stream names, from memory-mapped shards that are verified block by block.

    window of T at token s:   tokens  s .. s + T - 1         targets  s + 1 .. s + T         (views of one array)
    documents                 ends [.. 40 | 97 | 130 ..],  s = 90, T = 64  ->  document 0 0 0 0 0 0 0 1 1 ... 1 2 2 ...
                                                                                position 0 1 2 3 4 5 6 0 1 ... 32 0 1 ...

A 1 MiB block is hashed when a window first touches it and never again; document ends are hashed when a set is opened. What
does not match its digest is refused, naming the file: identity is content, never name, size or time.

Shapes: B windows, T time.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

from headway.base.digests import digest_file
from headway.base.errors import ConfigError, DamagedData, EnvironmentFault, from_os_error
from headway.data.ahead import Ahead, Wish
from headway.data.cache import Held, Traffic
from headway.data.infill import infilled
from headway.data.manifest import BLOCK_BYTES, DTYPES, DataManifest, ShardEntry, TokenSet
from headway.data.mapped import check_size, damaged, map_file, read_plainly
from headway.data.packing import packing_digest
from headway.data.place import DataPlace
from headway.data.plans import Plan
from headway.data.stream import ChunkSpan, Positions
from headway.recipe.spec import Spec, StageSpec

_GATHERED_TOKENS = 2**17
"""Copied at once: what stays in a core's cache between reading and widening."""


@dataclass(frozen=True)
class WindowBatch:
    """int64. ``document_BT`` counts documents within the window, ``position_BT`` restarts at each document token (a document that
    began before the window starts at 0 too). Padding is a document of its own."""

    tokens_BT: np.ndarray
    targets_BT: np.ndarray
    document_BT: np.ndarray
    position_BT: np.ndarray
    source_B: np.ndarray
    scored_BT: np.ndarray | None = None  # bool: which targets count; None: all


@dataclass(frozen=True, kw_only=True)
class HeldOutBatch(WindowBatch):
    """``in_document_BT``: where each target stands in its document, 0: the document token. A target of -1 is none: the last
    window is filled up behind the last held-out token that is scored."""

    in_document_BT: np.ndarray | None = None


@dataclass(frozen=True)
class DocumentSpan:
    """Document ``number`` of its source: tokens [first_token, end_token) of it, document token first."""

    number: int
    first_token: int
    end_token: int


class _Shard:
    """One file and which of its blocks have been verified. It is mapped when a window first touches it, until ``release``."""

    __slots__ = (
        "_give_up",
        "_held",
        "_itemsize",
        "_left",
        "_unverified",
        "entry",
        "path",
        "remote",
        "size",
        "source",
        "tokens",
        "traffic",
    )

    def __init__(self, of: _Tokens, entry: ShardEntry):
        self.entry, self.path, self.source = entry, of.place.directory / entry.file, of.source
        self.size, self._itemsize = entry.tokens * of.itemsize, of.itemsize
        self.tokens = np.empty(0, of.dtype)
        self.remote, self.traffic, self._give_up = of.place.shards, of.traffic, of.give_up
        self._held: Held | None = None
        self._unverified: np.ndarray | None = None
        self._left = len(entry.blocks) if of.verify else 0

    @property
    def bytes(self) -> np.ndarray:
        return self._attached().view(np.uint8)

    def _attached(self) -> np.ndarray:
        """The tokens, mapped."""
        if not self.tokens.size and self.size:
            began_ns = time.monotonic_ns()
            if self.remote is None:
                data = map_file(self.path, self.size)
            else:
                self._held = self.remote.cache.hold(self.remote.remote, self.entry, self.size, self.traffic, self._give_up)
                data = self._held.bytes
            self.tokens = data.view(self.tokens.dtype)
            self.traffic.wait_ns += time.monotonic_ns() - began_ns
        return self.tokens

    def release(self) -> None:
        """No window is expected to touch it soon: it may be taken out of the cache, and is verified again when it is back."""
        if not self.tokens.size:
            return
        self.tokens = self.tokens[:0].copy()
        if self.remote is not None:
            self._held = None
            self.remote.cache.release(self.entry, self.size)
            if self._unverified is not None:
                self._unverified[:] = True
                self._left = self._unverified.size

    def touch(self, first: int, last: int) -> np.ndarray:
        """The tokens of this shard, of which those in [first, last) are verified."""
        tokens = self._attached()
        if not self._left:
            return tokens
        if self._unverified is None:
            self._unverified = np.ones(len(self.entry.blocks), bool)
        for block in range(first * self._itemsize // BLOCK_BYTES, (last * self._itemsize - 1) // BLOCK_BYTES + 1):
            if self._unverified[block]:
                began_ns = time.monotonic_ns()
                self._verify(block)
                self.traffic.blocks += 1
                self.traffic.wait_ns += time.monotonic_ns() - began_ns
                self._unverified[block] = False
                self._left -= 1
        return self.tokens

    def touch_all(self, first: np.ndarray, length: int) -> np.ndarray:
        """As ``touch``, for windows of ``length`` that begin at each of ``first``."""
        tokens = self._attached()
        if not self._left:
            return tokens
        for one in first.tolist():
            tokens = self.touch(one, one + length)
        return tokens

    def _verify(self, block: int) -> None:
        at, end = block * BLOCK_BYTES, min((block + 1) * BLOCK_BYTES, self.size)
        if self.remote is None:
            read_plainly(self.path, at, end)
            if not self._is_whole(block, at, end):
                raise self._damaged(block, at, end)
        elif not self._is_whole_here(block, at, end):
            assert self._held is not None
            self._held = self.remote.cache.again(self.remote.remote, self.entry, self._held, self.traffic)
            self.tokens = self._held.bytes.view(self.tokens.dtype)
            if not self._is_whole_here(block, at, end):
                raise self._damaged(block, at, end)

    def _is_whole(self, block: int, at: int, end: int) -> bool:
        return xxhash.xxh3_64_hexdigest(self.bytes[at:end].data) == self.entry.blocks[block]

    def _is_whole_here(self, block: int, at: int, end: int) -> bool:
        """In the cache: a file that cannot be read is one that is damaged, and another's file says nothing of what is mapped."""
        assert self._held is not None
        try:
            is_mapped = os.stat(self._held.path).st_ino == self._held.inode
            read_plainly(self._held.path, at, end)
        except (OSError, EnvironmentFault):
            return False
        if not is_mapped:
            return False
        return self._is_whole(block, at, end)

    def _damaged(self, block: int, at: int, end: int) -> EnvironmentFault:
        """Training tokens can be named, so that a run may go on without them."""
        fault = damaged(self.where, f"block {block}, bytes {at} to {end}")
        if self.source is None:
            return fault
        first, last = at // self._itemsize, end // self._itemsize
        where = {"source": self.source, "token": self.entry.first_token + first, "tokens": last - first}
        return DamagedData({**where, "shard": self.entry.file, "block": block}, fault)

    @property
    def where(self) -> Path | str:
        return self.path if self.remote is None else self.remote.remote.where(self.entry.file)

    @property
    def is_open(self) -> bool:
        return self.tokens.size > 0

    def verify_all(self) -> None:
        if xxhash.xxh3_128_hexdigest(self.bytes.data) != self.entry.xxh3_128:
            raise damaged(self.where, "the whole file")


class _Tokens:
    """One token set: its shards as one run of tokens, and its document ends."""

    def __init__(self, place: DataPlace, entry: TokenSet, dtype: np.dtype, verify: bool, source: str | None = None):
        """``source``: whose training tokens these are; None: tokens that are held out."""
        self.entry, self.traffic = entry, Traffic()
        self.place, self.dtype, self.verify, self.source = place, dtype, verify, source
        self.siblings: list[_Tokens] = [self]
        self._first = np.array([shard.first_token for shard in entry.shards], np.int64)
        self._open: dict[int, _Shard] = {}
        self._opened = False
        if place.shards is None:
            for shard in entry.shards:
                check_size(f"{place.directory}/{shard.file}", shard.tokens * dtype.itemsize)
        path = place.directory / entry.ends.file
        ends = map_file(path, entry.documents * 8)
        if verify and xxhash.xxh3_128_hexdigest(ends.data) != entry.ends.xxh3_128:
            raise damaged(path, "the whole file")
        self.ends = ends.view("<u8").view("<i8")  # signed, so that searchsorted with int64 copies nothing
        self.reading = ""

    def shard(self, number: int) -> _Shard:
        """It stays open until ``keep`` releases it: open files are few, however many there are."""
        found = self._open.get(number)
        if found is None:
            found = _Shard(self, self.entry.shards[number])
            self._open[number] = found
        self._opened |= not found.is_open
        return found

    def give_up(self) -> bool:
        """Release one shard of those that the same thread reads; False: none is open. Another window may want it back."""
        shard = next((s for tokens in self.siblings for s in tokens._open.values() if s.is_open), None)
        if shard is not None:
            shard.release()
        return shard is not None

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize

    def keep(self, low: np.ndarray, high: np.ndarray) -> None:
        """Release every shard that has no token in any [low, high): the chunks that are being read."""
        if not self._opened:
            return
        self._opened = False
        for shard in self._open.values():
            first, end = shard.entry.first_token, shard.entry.first_token + shard.entry.tokens
            if shard.is_open and not ((low < end) & (high > first)).any():
                shard.release()

    def numbers(self, low: int, high: int) -> range:
        """The shards that have a token in [low, high)."""
        first, last = self._first.searchsorted([low, high - 1], "right").tolist()
        return range(max(0, first - 1), last)

    def copy(self, start: int, out: np.ndarray) -> None:
        """Tokens [start, start + len(out)) into ``out``, over shard borders."""
        number = int(self._first.searchsorted(start, "right")) - 1
        done = 0
        while done < out.size:
            shard = self.shard(number)
            first = start + done - shard.entry.first_token
            last = min(first + out.size - done, shard.entry.tokens)
            self.reading = shard.entry.file
            out[done : done + last - first] = shard.touch(first, last)[first:last]
            done, number = done + last - first, number + 1
        self.reading = ""

    def gather(self, start_N: np.ndarray, out_BL: np.ndarray, rows_N: np.ndarray) -> None:
        """Tokens [start, start + L) into rows of ``out_BL``: all windows of a shard at once, those over borders one by one."""
        L = out_BL.shape[1]
        shard_N = self._first.searchsorted(start_N, "right") - 1
        whole_N = self._first.searchsorted(start_N + L - 1, "right") - 1 == shard_N
        for number in np.unique(shard_N[whole_N]).tolist():
            here = np.flatnonzero(whole_N & (shard_N == number))
            shard = self.shard(number)
            self.reading = shard.entry.file
            first = start_N[here] - shard.entry.first_token
            windows = _every_window(shard.touch_all(first, L), L)
            for at in range(0, here.size, step := max(1, _GATHERED_TOKENS // L)):
                out_BL[rows_N[here[at : at + step]]] = windows[first[at : at + step]]
        self.reading = ""
        for place in np.flatnonzero(~whole_N).tolist():
            self.copy(int(start_N[place]), out_BL[rows_N[place]])

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
        for number in range(len(self.entry.shards)):
            shard = self.shard(number)
            shard.verify_all()
            shard.release()


@dataclass(frozen=True)
class _Spans:
    """Of each part of a document in some windows, in their order: row and column it begins at, source, first token and tokens."""

    row: np.ndarray
    column: np.ndarray
    source: np.ndarray
    start: np.ndarray
    tokens: np.ndarray

    def each(self) -> Iterator[tuple[int, int, int, int, int]]:
        return zip(*(part.tolist() for part in (self.row, self.column, self.source, self.start, self.tokens)), strict=True)


class TokenReader:
    """Windows of built data. Opening checks sizes, ends and tokenizer; shards are mapped and their tokens checked on touch."""

    def __init__(self, place: DataPlace | Path, manifest: DataManifest, verify: bool = True):
        self.place, self.manifest = DataPlace.of(place), manifest
        self.directory = self.place.directory
        self._verify = verify
        self._plans: dict[tuple[int, int], Plan] = {}
        dtype = np.dtype(DTYPES[manifest.dtype])
        self._training = [_Tokens(self.place, s.training, dtype, verify, s.name) for s in manifest.sources]
        for tokens in self._training:
            tokens.siblings = self._training
        self._held_out = {
            s.name: _Tokens(self.place, s.held_out, dtype, verify) for s in manifest.sources if s.held_out is not None
        }
        self._ahead = Ahead(self.place.shards) if self.place.shards is not None else None
        if verify:
            self._verify_tokenizer()

    @staticmethod
    def open(place: DataPlace | Path, spec: Spec) -> TokenReader:
        """The data that ``spec`` was frozen with; other data is refused, whatever its name."""
        return TokenReader(place, frozen_manifest(DataPlace.of(place).directory, spec))

    @property
    def reading(self) -> str:
        """The shard that is being read at this moment, empty when none: names the culprit of a stall."""
        return next((t.reading for t in [*self._training, *self._held_out.values()] if t.reading), "")

    def _plan(self, source: int, sequence_length: int) -> Plan:
        """Of the windows that best fit packs: its files are mapped when it is first asked for."""
        found = self._plans.get((source, sequence_length))
        if found is None:
            packing = self.manifest.sources[source].packing(sequence_length)
            assert packing is not None, (source, sequence_length)
            found = self._plans[source, sequence_length] = Plan(self.directory, packing, self._verify)
        return found

    def _verify_tokenizer(self) -> None:
        path = self.directory / self.manifest.tokenizer.file
        try:
            found = digest_file(path)
        except OSError as error:
            raise from_os_error(error, path, "cannot read tokenizer") from error
        if found != self.manifest.tokenizer.digest:
            raise damaged(path, "the whole file")

    def verify_all(self) -> None:
        """Every byte of every shard against its digest."""
        for tokens in [*self._training, *self._held_out.values()]:
            tokens.verify_all()
        for number, source in enumerate(self.manifest.sources):
            for packing in source.packings:
                self._plan(number, packing.sequence_length).verify_all()

    def stage_batch(self, positions: Positions, stage: StageSpec) -> WindowBatch:
        """The windows at ``positions`` as ``stage`` trains on them: cut or packed, some documents with their middle last."""
        T = stage.sequence_length
        try:
            batch = self._packed_batch(positions, T) if stage.packed else self.window_batch(positions, T)
        except DamagedData as fault:
            raise DamagedData(fault.damage | self._damaged_bins(fault.damage), fault) from None
        if stage.infill is not None:
            self._infill(batch, positions, stage)
        return batch

    def _damaged_bins(self, damage: dict[str, Any]) -> dict[str, Any]:
        """The bins that read the damaged tokens, under every plan of the source: a stream does not know where bins lie."""
        number = next(k for k, source in enumerate(self.manifest.sources) if source.name == damage["source"])
        first, last = damage["token"], damage["token"] + damage["tokens"]
        packed = [
            {"sequence_length": T, "bins": self._plan(number, T).touching(first, last)}
            for T in (plan.sequence_length for plan in self.manifest.sources[number].packings)
        ]
        return {"packed": packed} if packed else {}

    def _infill(self, batch: WindowBatch, positions: Positions, stage: StageSpec) -> None:
        """In place, document by document."""
        assert stage.infill is not None
        T, names = stage.sequence_length, [source.name for source in self.manifest.sources]
        spans = self._pieces(positions, T) if stage.packed else _parts(batch.document_BT, positions)
        for row, column, source, start, tokens in spans.each():
            if stage.infill.sources and names[source] not in stage.infill.sources:
                continue
            infilled(
                batch.tokens_BT[row],
                batch.targets_BT[row],
                (column, column + tokens),
                document_token=self.manifest.tokenizer.document_token_id,
                spec=stage.infill,
                key=(names[source], int(positions.epoch[row]), start),
            )

    def targets(self, positions: Positions, stage: StageSpec) -> int:
        """How many targets of the windows at ``positions`` count."""
        if not stage.packed:
            return len(positions.token) * stage.sequence_length
        own = ((k, positions.token[positions.source == k]) for k in np.unique(positions.source).tolist())
        return sum(int(self._plan(k, stage.sequence_length).filled(bins).sum()) for k, bins in own)

    def pieces(self, source: int, bin: int, sequence_length: int) -> np.ndarray:
        """First token and tokens of each piece in a bin of a packed source, in its order: int64 (pieces, 2)."""
        found = self._plan(source, sequence_length).pieces(np.array([bin]))
        return np.stack([found.start, found.tokens], axis=1)

    def _pieces(self, positions: Positions, T: int) -> _Spans:
        """Of packed windows."""
        found = []
        for k in np.unique(positions.source).tolist():
            rows = np.flatnonzero(positions.source == k)
            pieces = self._plan(k, T).pieces(positions.token[rows])
            found.append(np.stack([rows[pieces.place], np.full_like(pieces.place, k), pieces.start, pieces.tokens]))
        every = np.concatenate(found, axis=1)
        row, source, start, tokens = every[:, np.argsort(every[0], kind="stable")]
        before = np.cumsum(tokens) - tokens
        column = before - before[row.searchsorted(row)]
        return _Spans(row, column, source, start, tokens)

    def _packed_batch(self, positions: Positions, T: int) -> WindowBatch:
        B, pad = len(positions.source), self.manifest.tokenizer.document_token_id
        tokens_BT, targets_BT, buffer = np.full((B, T), pad), np.full((B, T), pad), np.empty(T + 1, np.int64)
        spans = self._pieces(positions, T)
        for row, column, source, start, size in spans.each():
            self._training[source].copy(start, buffer[: size + 1])
            tokens_BT[row, column : column + size] = buffer[:size]
            targets_BT[row, column : column + size] = buffer[1 : size + 1]
        for k in np.unique(positions.source).tolist():
            self._keep(k, spans.start[spans.source == k])
        filled_B = np.bincount(spans.row, spans.tokens, minlength=B).astype(np.int64)
        padded = np.flatnonzero(filled_B < T)
        rows, columns = np.concatenate([spans.row, padded]), np.concatenate([spans.column, filled_B[padded]])
        document_BT, position_BT = _documents(rows, columns, B, T)
        scored_BT = np.arange(T) < filled_B[:, None]
        return WindowBatch(tokens_BT, targets_BT, document_BT, position_BT, positions.source, scored_BT)

    def _keep(self, source: int, token: np.ndarray) -> None:
        """Of a source's shards those of the chunks that ``token`` lie in."""
        chunk = self.manifest.sources[source].chunk_tokens
        low = np.unique(token // chunk) * chunk
        self._training[source].keep(low, low + chunk + 1)

    def window_batch(self, positions: Positions, sequence_length: int) -> WindowBatch:
        """The windows at ``positions``, in that order."""
        batch = _batch(self._training, positions.source, positions.token, sequence_length)
        for k in np.unique(positions.source).tolist():
            self._keep(k, positions.token[positions.source == k])
        return batch

    def training_blocks(self, source: int) -> Iterator[np.ndarray]:
        """All training tokens of a source in order, a verified block at a time."""
        tokens = self._training[source]
        for number in range(len(tokens.entry.shards)):
            shard = tokens.shard(number)
            step = BLOCK_BYTES // shard.tokens.itemsize
            for first in range(0, shard.entry.tokens, step):
                last = min(first + step, shard.entry.tokens)
                yield shard.touch(first, last)[first:last]
            shard.release()

    def expect(self, chunks: list[ChunkSpan]) -> None:
        """Training will read these: what lies elsewhere is fetched meanwhile."""
        if self._ahead is None:
            return
        wishes = []
        for chunk in chunks:
            tokens = self._training[chunk.source]
            shards = (tokens.entry.shards[number] for number in tokens.numbers(chunk.first_token, chunk.end_token))
            wishes += [Wish(shard, shard.tokens * tokens.itemsize, tokens.traffic) for shard in shards]
        self._ahead.want(wishes)

    @property
    def is_remote(self) -> bool:
        return self.place.shards is not None

    def traffic(self) -> dict[str, dict[str, int]]:
        """What reading took so far, by source."""
        sets = [(s.name, t) for s, t in zip(self.manifest.sources, self._training)]
        sets += [(f"{name}, held out", t) for name, t in self._held_out.items()]
        return {name: tokens.traffic.to_json() for name, tokens in sets}

    def close(self) -> None:
        """Nothing more is fetched ahead."""
        if self._ahead is not None:
            self._ahead.close()

    def documents(self, source: int, start: int, end: int) -> list[DocumentSpan]:
        """The documents of a source's training tokens that have a token in [start, end)."""
        return self._training[source].spans(start, end)

    def document_ends(self, source: int) -> np.ndarray:
        """int64, mapped: the token after each of a source's training documents."""
        return self._training[source].ends

    def documents_begun(self, source: int, token: np.ndarray, stage: StageSpec) -> int:
        """How many documents begin in the windows of ``stage`` at ``token`` (bins, where it is packed)."""
        heads, start = self._training[source].ends[:-1], token
        tokens = np.full_like(token, stage.sequence_length)
        if stage.packed:
            pieces = self._plan(source, stage.sequence_length).pieces(token)
            start, tokens = pieces.start, pieces.tokens
        within = heads.searchsorted(start + tokens, "left") - heads.searchsorted(start, "left")
        return int(within.sum()) + int((start == 0).sum())  # the first document begins where no other ends

    def held_out_documents(self, source: str) -> Iterator[np.ndarray]:
        """The tokens of each held-out document, document token first, verified."""
        held_out = self._held_out[source]
        start = 0
        for end in held_out.ends.tolist():
            tokens = np.empty(end - start, np.int64)
            held_out.copy(start, tokens)
            yield tokens
            start = end

    def held_out_targets(self, source: str, sequence_length: int, tokens: int) -> int:
        """How many held-out tokens are scored: at most ``tokens``, of all but the first. ConfigError: not one whole window is
        there, and what a model does with long context would not be seen."""
        held_out = self._held_out.get(source)
        available = held_out.entry.tokens - 1 if held_out else 0
        if available < sequence_length:
            raise ConfigError(
                f"source {source} has no held-out window of {sequence_length} tokens",
                f"a window of T needs T + 1 tokens; held out: {held_out.entry.tokens if held_out else 0}",
                "raise data.held_out and build the data again, or shorten the sequence",
            )
        return min(available, max(1, tokens))

    def held_out_batches(self, source: str, sequence_length: int, batch_windows: int, tokens: int) -> Iterator[HeldOutBatch]:
        """The first ``tokens`` held-out tokens of ``source`` as targets, each once, whatever the length of a window."""
        T, targets = sequence_length, self.held_out_targets(source, sequence_length, tokens)
        number = next(i for i, s in enumerate(self.manifest.sources) if s.name == source)
        for first in range(0, targets, batch_windows * T):
            start = np.arange(first, min(first + batch_windows * T, targets), T, dtype=np.int64)
            yield _held_out_batch(self._held_out[source], number, start, T, targets)


def frozen_manifest(directory: Path, spec: Spec) -> DataManifest:
    """The manifest that ``spec`` was frozen with."""
    manifest = DataManifest.load(directory)
    if manifest.digest() != spec.manifest_digest:
        raise EnvironmentFault(
            f"{directory} holds other data than the run was frozen with",
            f"manifest digest: found {manifest.digest()}, frozen {spec.manifest_digest}; differs: {_differing(manifest, spec)}",
            "put its own data back in that place (a symbolic link will do), or build it again from the same documents",
        )
    _check_plans(manifest, spec, directory)
    return manifest


def _check_plans(manifest: DataManifest, spec: Spec, directory: Path) -> None:
    """They are no content of the data: a directory may have lost them, or have others."""
    for stage in spec.stages:
        for source, frozen in zip(spec.sources, stage.packed):
            plan = manifest.source(source.name).packing(stage.sequence_length)
            if frozen.bins and (plan is None or packing_digest(plan) != frozen.digest):
                raise EnvironmentFault(
                    f"{directory} has {'no' if plan is None else 'another'} plan that packs {source.name} for stage {stage.name}",
                    "a run reads the windows that it was frozen with",
                    "build the data again with the run's recipe into the same directory: that adds its plans",
                )


def _differing(manifest: DataManifest, spec: Spec) -> str:
    """The parts of the data that are not as frozen, by name."""
    found, frozen = {s.name: s.digest for s in manifest.sources}, {s.name: s.digest for s in spec.sources}
    parts = [f"source {name}" for name in sorted(found.keys() | frozen.keys()) if found.get(name) != frozen.get(name)]
    parts += ["tokenizer"] if manifest.tokenizer.digest != spec.tokenizer.digest else []
    return ", ".join(parts) or "order of sources or stored type"


def _parts(document_BT: np.ndarray, positions: Positions) -> _Spans:
    """Of windows that were cut: a new document begins where the number changes."""
    (B, T), opens = document_BT.shape, np.ones(document_BT.shape, bool)
    np.not_equal(document_BT[:, 1:], document_BT[:, :-1], out=opens[:, 1:])
    row, column = np.nonzero(opens)
    tokens = np.diff(row * T + column, append=B * T)
    return _Spans(row, column, positions.source[row], positions.token[row] + column, tokens)


def _batch(sets: list[_Tokens], source_B: np.ndarray, start_B: np.ndarray, T: int) -> WindowBatch:
    B = len(source_B)
    tokens_BT1 = np.empty((B, T + 1), np.int64)
    opens = np.zeros(B, np.int64)  # flat index at which each segment (document within a window) begins
    rows, columns = [np.arange(B)], [opens]
    for k in np.unique(source_B):
        at = np.flatnonzero(source_B == k)
        sets[k].gather(start_B[at], tokens_BT1, at)
        row, column = sets[k].borders(start_B[at], T)
        rows.append(at[row])
        columns.append(column)
    document_BT, position_BT = _documents(np.concatenate(rows), np.concatenate(columns), B, T)
    return WindowBatch(tokens_BT1[:, :-1], tokens_BT1[:, 1:], document_BT, position_BT, source_B)


def _every_window(tokens: np.ndarray, L: int) -> np.ndarray:
    """Row i is a view of tokens [i, i + L). (numpy's sliding_window_view leaves cycles, which would hold a shard open.)"""
    return np.ndarray((tokens.size - L + 1, L), tokens.dtype, tokens.data, strides=tokens.strides * 2)


def _held_out_batch(held_out: _Tokens, number: int, start_B: np.ndarray, T: int, targets: int) -> HeldOutBatch:
    """Windows at ``start_B``, of which the last may end early: at target ``targets`` of the set."""
    parts = []
    for rows, length in ((start_B[start_B + T <= targets], T), (start_B[start_B + T > targets], int(targets - start_B[-1]))):
        if rows.size:
            batch = _batch([held_out], np.zeros_like(rows), rows, length)
            wide = ((0, 0), (0, T - length))
            parts.append(
                (
                    np.pad(batch.tokens_BT, wide),
                    np.pad(batch.targets_BT, wide, constant_values=-1),
                    np.pad(batch.document_BT, wide, mode="edge"),
                    np.pad(batch.position_BT, wide),
                )
            )
    tokens_BT, targets_BT, document_BT, position_BT = map(np.concatenate, zip(*parts, strict=True))
    at_BT = start_B[:, None] + np.arange(1, T + 1)
    document = held_out.ends.searchsorted(at_BT, "right")
    begins_BT = np.where(document > 0, held_out.ends[np.maximum(document, 1) - 1], 0)
    return HeldOutBatch(
        tokens_BT, targets_BT, document_BT, position_BT, np.full_like(start_B, number), in_document_BT=at_BT - begins_BT
    )


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
