"""What a step reads: every sequence of it with its place in the stream, its documents, its targets and its text.

    step --schedule--> stage, u --skips--> n --mixture, chunks--> source, epoch, token --shards--> T + 1 tokens

Nothing is computed anew here: place, share of a replica, positions and windows come from the code that training uses. Only
the shards that the windows lie in are opened, and of those only the blocks that they touch are read and verified; of their
sources the document ends too, whose digest is of the whole file.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from headway.base.errors import ConfigError
from headway.data.facts import Table, lacking
from headway.data.manifest import BLOCK_BYTES, DTYPES, DataManifest, SourceEntry
from headway.data.place import DataPlace
from headway.data.plans import Plan
from headway.data.reader import TokenReader
from headway.data.stream import Positions, Share, Stream
from headway.data.tokenizer import Tokenizer
from headway.recipe.schedules import Schedule, StepPlace
from headway.recipe.spec import StageSpec


@dataclass(frozen=True)
class Piece:
    """A document, or as much of it as stands in the window: columns [column, column + tokens)."""

    document: int  # in its source, from 0, as they were shuffled at build
    column: int
    tokens: int
    offset: int  # of the piece in the document, in tokens; 0: it begins here, with the document token
    document_tokens: int
    text: str  # without the document token
    origin: str | None  # where it was found; None: a build that did not keep it
    facts: dict[str, str]  # what its source knew of it
    filled_in: bool = False  # prefix, suffix, middle in place of the text as it is stored

    @property
    def begins(self) -> bool:
        return self.offset == 0

    @property
    def ends(self) -> bool:
        return self.offset + self.tokens == self.document_tokens


@dataclass(frozen=True)
class BytesRead:
    """Where tokens lie: bytes [first_byte, end_byte) of a shard, in blocks ``first_block`` to ``last_block`` of it."""

    file: str
    first_byte: int
    end_byte: int
    first_block: int
    last_block: int


@dataclass(frozen=True)
class WindowPlace:
    """Where a window lies in its source. ``chunks``: of an epoch, the tail included; ``windows``: of this chunk. ``first_token``
    is that of its first piece."""

    epoch: int
    chunk: int
    chunks: int
    window: int
    windows: int
    first_token: int


@dataclass(frozen=True, kw_only=True)
class Sequence:
    """One window. ``tokens`` and ``targets`` have T ids each; ``counted`` are the columns whose targets count, as ranges."""

    row: int  # in the step's batch, from 0
    u: int  # trained index of the stage
    n: int  # stream index: u and what skip records leave out
    source: SourceEntry
    place: WindowPlace
    reads: tuple[BytesRead, ...]
    tokens: tuple[int, ...]
    targets: tuple[int, ...]
    counted: tuple[tuple[int, int], ...]
    pieces: tuple[Piece, ...]

    @property
    def padding(self) -> bool:
        """It only fills a replica's share."""
        return not self.counted


class Show:
    """Sequences of a stream over a data directory. ``lacking``: files without which it is not known where documents are from."""

    def __init__(self, stream: Stream, place: DataPlace | Path, manifest: DataManifest):
        self.stream, self.spec, self.schedule = stream, stream.spec, Schedule(stream.spec)
        self.place, self.manifest = DataPlace.of(place), manifest.of(source.name for source in stream.spec.sources)
        self.directory = self.place.directory
        self.lacking = tuple(file for source in self.manifest.sources if (file := lacking(self.place, source)))

    # --- places -----------------------------------------------------------------------------------------------------------

    def stage(self, name: str) -> int:
        names = [stage.name for stage in self.spec.stages]
        if name not in names:
            raise ConfigError(
                f"there is no stage {name!r}", "stages are named as in the recipe", f"there are: {', '.join(names)}", "--stage"
            )
        return names.index(name)

    def step(self, number: int, stage: int | None = None) -> StepPlace:
        """Step ``number`` as records of a run count them, from 1; with ``stage``: of that stage."""
        first = 0 if stage is None else self.schedule.first_step(stage)
        steps = self.schedule.total_steps if stage is None else self.schedule.stage_steps(stage)
        what = "the run" if stage is None else f"stage {self.spec.stages[stage].name}"
        if not 1 <= number <= steps:
            raise ConfigError(f"there is no step {number:,}", f"{what} has steps 1 to {steps:,}, as its records count them")
        return self.schedule.place(first + number - 1)

    def step_of(self, stage: int, u: int) -> StepPlace:
        """The step that trains on index ``u`` of ``stage``."""
        sequences, name = self.spec.stages[stage].sequences, self.spec.stages[stage].name
        if not 0 <= u < sequences:
            raise ConfigError(
                f"there is no index {u:,}", f"stage {name} trains on indices 0 to {sequences - 1:,}", where="--index"
            )
        low, high = 0, self.schedule.stage_steps(stage) - 1
        while low < high:
            middle = (low + high + 1) // 2
            is_before = self.schedule.place(self.schedule.first_step(stage) + middle).first_sequence <= u
            low, high = (middle, high) if is_before else (low, middle - 1)
        return self.schedule.place(self.schedule.first_step(stage) + low)

    def batch(self, place: StepPlace) -> Share:
        """All sequences of a step, in the order of the batch."""
        return Share(np.arange(place.first_sequence, place.end_sequence), 0)

    def replica(self, place: StepPlace, index: int, count: int) -> Share:
        """Those that one of ``count`` replicas takes, in its order."""
        return self.stream.share(place.stage, place.first_sequence, place.batch_sequences, index, count)

    # --- sequences --------------------------------------------------------------------------------------------------------

    def sequences(self, place: StepPlace, share: Share) -> list[Sequence]:
        """Read them."""
        stage = self.spec.stages[place.stage]
        positions = self.stream.locate(place.stage, share.u)
        used = np.unique(positions.source)
        tables = {k: Table.of(self.place, self.manifest.sources[k]) for k in used.tolist()}
        spans = self._spans(stage, positions)
        manifest = narrowed(self.manifest, positions.source, spans)
        reader, entry = TokenReader(self.place, manifest), manifest.tokenizer
        tokenizer = Tokenizer.load(self.directory / entry.file, entry.document_token)
        renumbered = Positions(np.searchsorted(used, positions.source), positions.epoch, positions.token)
        batch = reader.stage_batch(renumbered, stage)
        n = self.stream.stream_index(place.stage, share.u).tolist()
        found = []
        for at, u in enumerate(share.u.tolist()):
            k, counts = int(positions.source[at]), at < len(share.u) - share.padded
            found.append(
                Sequence(
                    row=u - place.first_sequence,
                    u=u,
                    n=n[at],
                    source=self.manifest.sources[k],
                    place=self._window_place(place.stage, positions, at, spans[at][0].token),
                    reads=_reads(self.manifest, k, spans[at]),
                    tokens=tuple(batch.tokens_BT[at].tolist()),
                    targets=tuple(batch.targets_BT[at].tolist()),
                    counted=((0, sum(span.tokens for span in spans[at])),) if counts else (),
                    pieces=_pieces(
                        reader, tokenizer, int(renumbered.source[at]), spans[at], batch.tokens_BT[at], tables[k], stage
                    ),
                )
            )
        return found

    def _spans(self, stage: StageSpec, positions: Positions) -> list[tuple[Span, ...]]:
        """Of each window: one where windows are cut, one per piece where they are packed."""
        T = stage.sequence_length
        if not stage.packed:
            return [(Span(token, T, 0),) for token in positions.token.tolist()]
        plans = {k: self._plan(k, T) for k in np.unique(positions.source).tolist()}
        found = []
        for source, bin in zip(positions.source.tolist(), positions.token.tolist()):
            pieces = plans[source].pieces(np.array([bin]))
            columns = np.cumsum(pieces.tokens) - pieces.tokens
            rows = zip(pieces.start.tolist(), pieces.tokens.tolist(), columns.tolist())
            found.append(tuple(Span(*row) for row in rows))
        return found

    def _plan(self, source: int, T: int) -> Plan:
        packing = self.manifest.sources[source].packing(T)
        assert packing is not None, (source, T)
        return Plan(self.place, packing)

    def _window_place(self, stage: int, positions: Positions, at: int, first_token: int) -> WindowPlace:
        T, source, epoch = self.spec.stages[stage].sequence_length, int(positions.source[at]), int(positions.epoch[at])
        shape, number = self.stream.shapes_of(stage)[source], int(positions.token[at])
        chunk = first_token // shape.chunk_tokens
        window = number - sum(shape.bins[:chunk]) if shape.bins else number % shape.chunk_tokens // T
        return WindowPlace(epoch, chunk, shape.slots, window, shape.windows_of(chunk, T), first_token)


@dataclass(frozen=True)
class Span:
    """``tokens`` inputs of a window from token ``token`` of its source on, in the window from ``column`` on. The token behind
    them is read too, as the last target."""

    token: int
    tokens: int
    column: int


def narrowed(manifest: DataManifest, source: np.ndarray, spans: list[tuple[Span, ...]]) -> DataManifest:
    """The manifest with only the sources and shards that windows lie in, of which ``source`` and ``spans`` are told; held-out
    sets left out."""
    sources = []
    for k in np.unique(source).tolist():
        own = [span for at in np.flatnonzero(source == k).tolist() for span in spans[at]]
        start, size = np.array([[span.token, span.tokens] for span in own]).T
        shards = tuple(
            shard
            for shard in manifest.sources[k].shards
            if ((start < shard.first_token + shard.tokens) & (start + size >= shard.first_token)).any()
        )
        sources.append(dataclasses.replace(manifest.sources[k], shards=shards, held_out=None))
    return dataclasses.replace(manifest, sources=tuple(sources))


def _reads(manifest: DataManifest, source: int, spans: tuple[Span, ...]) -> tuple[BytesRead, ...]:
    size, found = np.dtype(DTYPES[manifest.dtype]).itemsize, []
    for span in spans:
        for shard in manifest.sources[source].shards:
            end = min(span.token + span.tokens + 1, shard.first_token + shard.tokens)
            first = max(span.token, shard.first_token)
            if first < end:
                a, b = (first - shard.first_token) * size, (end - shard.first_token) * size
                found.append(BytesRead(shard.file, a, b, a // BLOCK_BYTES, (b - 1) // BLOCK_BYTES))
    return tuple(found)


def _pieces(
    reader: TokenReader,
    tokenizer: Tokenizer,
    source: int,
    spans: tuple[Span, ...],
    tokens_T: np.ndarray,
    table: Table | None,
    stage: StageSpec,
) -> tuple[Piece, ...]:
    """Documents and parts of them, as attention sees them; padding is none."""
    pieces = []
    for span in spans:
        for document in reader.documents(source, span.token, span.token + span.tokens):
            begins, end = max(document.first_token, span.token), min(document.end_token, span.token + span.tokens)
            column, offset = span.column + begins - span.token, begins - document.first_token
            text = tokenizer.decode(tokens_T[column + (offset == 0) : column + end - begins])
            whole = document.end_token - document.first_token
            known = table[document.number] if table is not None else None
            origin, facts = (known.origin, dict(known.facts)) if known else (None, {})
            # no text produces a control token: where the first one stands, the document was put into another order
            head = column + (offset == 0)
            filled_in = stage.infill is not None and head < len(tokens_T) and int(tokens_T[head]) == stage.infill.tokens[0]
            pieces.append(Piece(document.number, column, end - begins, offset, whole, text, origin, facts, filled_in))
    return tuple(pieces)
