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
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from headway.base.digests import digest_file
from headway.base.errors import ConfigError, DamagedData, EnvironmentFault, from_os_error
from headway.base.urls import is_url
from headway.data.ahead import Ahead, Wish
from headway.data.ends import Ends
from headway.data.infill import infilled
from headway.data.manifest import BLOCK_BYTES, DTYPES, DataManifest
from headway.data.mapped import damaged
from headway.data.packing import packing_digest
from headway.data.place import CacheOptions, DataPlace, tokenizer_directory
from headway.data.plans import Plan
from headway.data.stream import ChunkSpan, Positions
from headway.data.token_sets import DocumentSpan, Tokens
from headway.data.windows import HeldOutBatch, Spans, WindowBatch, cut_batch, document_numbers, held_out_batch, parts_of
from headway.recipe.spec import Spec, StageSpec

if TYPE_CHECKING:
    from headway.data.tokenizer import Tokenizer


class TokenReader:
    """Windows of built data. Opening checks sizes, ends and tokenizer; shards are mapped and their tokens checked on touch."""

    def __init__(self, place: DataPlace | Path, manifest: DataManifest, verify: bool = True):
        self.place, self.manifest = DataPlace.of(place), manifest
        self.directory = self.place.directory
        self._verify = verify
        self._plans: dict[tuple[int, int], Plan] = {}
        dtype = np.dtype(DTYPES[manifest.dtype])
        self._training = [Tokens(self.place, s.training, dtype, verify, s.name) for s in manifest.sources]
        for tokens in self._training:
            tokens.siblings = self._training
        self._held_out = {
            s.name: Tokens(self.place, s.held_out, dtype, verify) for s in manifest.sources if s.held_out is not None
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
        """Of the windows that best fit packs: its files are fetched and mapped when it is first asked for."""
        found = self._plans.get((source, sequence_length))
        if found is None:
            packing = self.manifest.sources[source].packing(sequence_length)
            assert packing is not None, (source, sequence_length)
            found = self._plans[source, sequence_length] = Plan(self.place, packing, self._verify)
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
        """Every byte of every shard, and of every best-fit plan, against its digest."""
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
        spans = self._pieces(positions, T) if stage.packed else parts_of(batch.document_BT, positions)
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

    def _pieces(self, positions: Positions, T: int) -> Spans:
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
        return Spans(row, column, source, start, tokens)

    def _packed_batch(self, positions: Positions, T: int) -> WindowBatch:
        B, pad = len(positions.source), self.manifest.tokenizer.document_token_id
        tokens_BT, targets_BT = np.full((B, T), pad), np.full((B, T), pad)
        spans = self._pieces(positions, T)
        for k in np.unique(positions.source).tolist():
            own = spans.source == k
            at = spans.row[own] * T + spans.column[own]
            self._training[k].scatter(spans.start[own], spans.tokens[own], at, tokens_BT.reshape(-1), targets_BT.reshape(-1))
            self._keep(k, spans.start[own])
        filled_B = np.bincount(spans.row, spans.tokens, minlength=B).astype(np.int64)
        padded = np.flatnonzero(filled_B < T)
        rows, columns = np.concatenate([spans.row, padded]), np.concatenate([spans.column, filled_B[padded]])
        document_BT, position_BT = document_numbers(rows, columns, B, T)
        scored_BT = np.arange(T) < filled_B[:, None]
        return WindowBatch(tokens_BT, targets_BT, document_BT, position_BT, positions.source, scored_BT)

    def _keep(self, source: int, token: np.ndarray) -> None:
        """Of a source's shards those of the chunks that ``token`` lie in."""
        chunk = self.manifest.sources[source].chunk_tokens
        low = np.unique(token // chunk) * chunk
        self._training[source].keep(low, low + chunk + 1)

    def window_batch(self, positions: Positions, sequence_length: int) -> WindowBatch:
        """The windows at ``positions``, in that order."""
        batch = cut_batch(self._training, positions.source, positions.token, sequence_length)
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
            shards = (tokens.shard_entry(number) for number in tokens.numbers(chunk.first_token, chunk.end_token))
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

    def document_ends(self, source: int) -> Ends:
        """The token after each of a source's training documents."""
        return self._training[source].ends

    def documents_begun(self, source: int, token: np.ndarray, stage: StageSpec) -> int:
        """How many documents begin in the windows of ``stage`` at ``token`` (bins, where it is packed)."""
        ends, start = self._training[source].ends, token
        tokens = np.full_like(token, stage.sequence_length)
        if stage.packed:
            pieces = self._plan(source, stage.sequence_length).pieces(token)
            start, tokens = pieces.start, pieces.tokens
        heads = len(ends) - 1  # the last end is no head
        within = np.minimum(ends.searchsorted(start + tokens, "left"), heads) - np.minimum(
            ends.searchsorted(start, "left"), heads
        )
        return int(within.sum()) + int((start == 0).sum())  # the first document begins where no other ends

    def held_out_documents(self, source: str) -> Iterator[np.ndarray]:
        """The tokens of each held-out document, document token first, verified."""
        held_out = self._held_out[source]
        start = 0
        for end in held_out.ends.each():
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
            yield held_out_batch(self._held_out[source], number, start, T, targets)


def frozen_tokenizer(where: str | Path, spec: Spec, cache: CacheOptions | None = None) -> Tokenizer:
    """The tokenizer that ``spec`` was frozen with: of data at a URL only that and the manifest are fetched. EnvironmentFault."""
    from headway.data.tokenizer import Tokenizer  # who reads tokens needs none of its library, which holds 50 MB

    refuse_moved(where)
    directory = tokenizer_directory(where, cache)
    entry = DataManifest.load(directory).tokenizer
    found = Tokenizer.load(directory / entry.file, entry.document_token)
    if found.digest != spec.tokenizer.digest:
        raise EnvironmentFault(
            f"{where} holds another tokenizer than the run was frozen with",
            f"tokenizer digest: found {found.digest}, frozen {spec.tokenizer.digest}",
            "put the run's own data back in that place (a symbolic link will do)",
        )
    return found


def refuse_moved(where: str | Path) -> None:
    """EnvironmentFault where a run's data directory is not there; of a URL, opening it tells."""
    if not is_url(where) and not Path(where).is_dir():
        raise EnvironmentFault(
            f"the data of this run is not at {where}",
            "a run reads its data where it was when the run was created",
            "move it back, or put a symbolic link to it in that place: it is recognised by its content",
        )


def frozen_manifest(directory: Path, spec: Spec) -> DataManifest:
    """The manifest that ``spec`` was frozen with, its sources numbered as those of ``spec`` are."""
    return as_frozen(DataManifest.load(directory), spec, directory)


def as_frozen(manifest: DataManifest, spec: Spec, where: Path | str) -> DataManifest:
    """``manifest``, of ``where``, if ``spec`` was frozen with it, its sources numbered as those of ``spec`` are."""
    if manifest.digest() != spec.manifest_digest:
        raise EnvironmentFault(
            f"{where} holds other data than the run was frozen with",
            f"manifest digest: found {manifest.digest()}, frozen {spec.manifest_digest}; differs: {_differing(manifest, spec)}",
            "put its own data back in that place (a symbolic link will do), or build it again from the same documents",
        )
    _check_plans(manifest, spec, where)
    return manifest.of(source.name for source in spec.sources)


def _check_plans(manifest: DataManifest, spec: Spec, where: Path | str) -> None:
    """They are no content of the data: a directory may have lost them, or have others."""
    for stage in spec.stages:
        for source, frozen in zip(spec.sources, stage.packed):
            plan = manifest.source(source.name).packing(stage.sequence_length)
            if frozen.bins and (plan is None or packing_digest(plan) != frozen.digest):
                raise EnvironmentFault(
                    f"{where} has {'no' if plan is None else 'another'} plan that packs {source.name} for stage {stage.name}",
                    "a run reads the windows that it was frozen with",
                    "build the data again with the run's recipe into the same directory: that adds its plans",
                )


def _differing(manifest: DataManifest, spec: Spec) -> str:
    """The parts of the data that are not as frozen, by name."""
    found, frozen = {s.name: s.digest for s in manifest.sources}, {s.name: s.digest for s in spec.sources}
    parts = [f"source {name}" for name in sorted(found.keys() | frozen.keys()) if found.get(name) != frozen.get(name)]
    parts += ["tokenizer"] if manifest.tokenizer.digest != spec.tokenizer.digest else []
    return ", ".join(parts) or "order of sources or stored type"
