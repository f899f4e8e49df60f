"""The stream: (stage, trained index u) -> source, epoch, token. A pure function of the Spec and the records that intervened.

    u --skips--> n --mixture--> (source k, count c) --H_k, O_k + c--> (epoch, token) --quarantines--> a healthy one

    skip records   {stage, first n, count}: n = u + the counts of all whose first <= the n so far, lowest first. A skip does
                   not shorten its stage: stage s uses M'_s = M_s + its skips
    transitions    {stage, first n, quanta}: the rest of the stage is mixed by other weights. A source's count goes on from where
                   it stood, so nothing seen comes back early, and nothing before n moves
    entry state    per source (H, O) at the head of a stage, derived from the stages before it. Same T as before: H stays,
                   O grows; another T: H = first untouched chunk slot, O = 0

Nothing here depends on ranks, workers, batch sizes or what ran before: a resume is a call with the u of the checkpoint.
Positions are computed in blocks and the last few blocks are kept, because one small batch costs as much as 4,096 positions.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from functools import cached_property

import numpy as np

from headway.base.digests import digest_json
from headway.base.errors import ConfigError, RunError
from headway.base.plain import from_plain
from headway.data.feistel import derive_key, permute
from headway.data.legs import Legs
from headway.data.positions import Bad, Entry, SourceShape
from headway.recipe.spec import QUANTA, Spec, StageSpec
from headway.rundir.segments import Segment
from headway.rundir.skips import skip_gaps

BLOCK = 4_096
_KEPT_BLOCKS = 4


@dataclass(frozen=True)
class Skip:
    """``count`` sequences from stream index ``first`` of ``stage`` on are left out."""

    stage: int
    first: int
    count: int


@dataclass(frozen=True)
class QuarantinedBins:
    """Windows of ``sequence_length`` tokens, packed by best fit, that a quarantine takes out."""

    sequence_length: int
    bins: tuple[int, ...]


@dataclass(frozen=True)
class Quarantine:
    """``tokens`` tokens of ``source`` from ``token`` on are not read, from stream index ``first`` of ``stage`` on: what was
    trained on before is history, and comes again in a replay of it."""

    source: str
    token: int
    tokens: int
    stage: int
    first: int
    packed: tuple[QuarantinedBins, ...] = ()  # the same tokens in packed windows, of every plan of the source


@dataclass(frozen=True)
class Transition:
    """From stream index ``first`` of ``stage`` to its end, sources are mixed by ``quanta``. The rest is on record for people."""

    stage: int
    first: int
    quanta: tuple[int, ...]  # per source, sum 65,536
    weights: dict[str, float] = field(default_factory=dict)  # as they were given: shares of target tokens
    reason: str = ""
    author: str = ""
    consumed: dict[str, int] = field(default_factory=dict)  # trained tokens per source up to here


@dataclass(frozen=True)
class Positions:
    """Per sequence: index of the source in the Spec, epoch of that source, first token of the window. int64, flat.

    In a stage that is packed by best fit ``token`` is the number of the bin in its source.
    """

    source: np.ndarray
    epoch: np.ndarray
    token: np.ndarray


@dataclass(frozen=True)
class Share:
    """A replica's part of a batch: trained indices in its order. The last ``padded`` only fill it and count for nothing."""

    u: np.ndarray
    padded: int


@dataclass(frozen=True)
class UnreadChunk:
    """What a change of sequence length left behind in the last chunk a source had begun."""

    stage: int  # the stage that begins with the new length
    source: str
    slot: int
    tokens: int  # target tokens of whole windows of the old length


@dataclass(frozen=True)
class ChunkSpan:
    """Tokens [first_token, end_token) of source number ``source``: a chunk, and the last target of its last window."""

    source: int
    first_token: int
    end_token: int


@dataclass(frozen=True)
class Coverage:
    """What a Spec takes from one source over all stages."""

    source: str
    target_tokens: int
    epochs: float  # final slot / slots
    final_slot: int
    slots: int
    cap_epochs: float | None
    allowed_slots: int | None  # floor(cap * slots); None: no cap

    @property
    def within_cap(self) -> bool:
        return self.allowed_slots is None or self.final_slot <= self.allowed_slots


class Stream:
    """Positions of a Spec's sequences under the records in force."""

    def __init__(
        self,
        spec: Spec,
        skips: tuple[Skip, ...] = (),
        quarantines: tuple[Quarantine, ...] = (),
        transitions: tuple[Transition, ...] = (),
    ):
        self.quarantines, self.transitions = quarantines, transitions
        _check_quarantines(spec, quarantines)
        _check_transitions(spec, transitions)
        self.spec, self.skips = spec, tuple(sorted(skips, key=lambda s: (s.stage, s.first, s.count)))
        _check_skips(spec, self.skips)
        self.shapes = tuple(SourceShape((spec.data_seed, s.name), s.tokens, s.chunk_tokens) for s in spec.sources)
        _check_lengths(spec, self.shapes, transitions)
        self._stage_shapes = [self._packed_shapes(stage) for stage in spec.stages]
        self._legs = [self._legs_of(stage) for stage in range(len(spec.stages))]
        self._entries = self._derive_entries()
        self._blocks: dict[tuple[int, int], Positions] = {}

    @staticmethod
    def of_segment(spec: Spec, segment: Segment) -> Stream:
        """As ``segment`` of a run reads it."""
        where = f"segment {segment.id}"
        skips = tuple(from_plain(Skip, record, f"{where}: skip record") for record in segment.skips)
        quarantines = tuple(from_plain(Quarantine, record, f"{where}: quarantine record") for record in segment.quarantines)
        transitions = tuple(from_plain(Transition, record, f"{where}: transition record") for record in segment.transitions)
        return Stream(spec, skips, quarantines, transitions)

    # --- stages -------------------------------------------------------------------------------------------------------

    def used(self, stage: int) -> int:
        """M' of a stage: its sequences and its skips."""
        return self.spec.stages[stage].sequences + sum(s.count for s in self.skips if s.stage == stage)

    def entry_state(self, stage: int) -> tuple[Entry, ...]:
        """(H, O) per source at the head of ``stage``; ``len(stages)`` is the state after the last one, at its length."""
        return self._entries[stage]

    def shapes_of(self, stage: int) -> tuple[SourceShape, ...]:
        """Of the sources as ``stage`` reads them: its windows."""
        return self._stage_shapes[min(stage, len(self._stage_shapes) - 1)]

    def _packed_shapes(self, stage: StageSpec) -> tuple[SourceShape, ...]:
        if not stage.packed:
            return self.shapes
        return tuple(replace(shape, bins=plan.bins) for shape, plan in zip(self.shapes, stage.packed, strict=True))

    def _derive_entries(self) -> list[tuple[Entry, ...]]:
        stages, state = self.spec.stages, tuple(Entry() for _ in self.shapes)
        entries = []
        for index, stage in enumerate(stages):
            before = stages[max(0, index - 1)]
            if stage.windows != before.windows:
                shapes = self.shapes_of(index - 1)
                state = tuple(Entry(shape.slots_used(e, before.sequence_length)) for shape, e in zip(shapes, state))
            entries.append(state)
            taken = self.counts(index, self.used(index))
            state = tuple(Entry(e.slot, e.ordinals + c) for e, c in zip(state, taken))
        return [*entries, state]

    def _length(self, stage: int) -> int:
        return self.spec.stages[min(stage, len(self.spec.stages) - 1)].sequence_length

    def unread_chunks(self) -> list[UnreadChunk]:
        """Every chunk that a change of sequence length leaves partly unread (at most one per source and change)."""
        report = []
        for stage in range(1, len(self.spec.stages)):
            before = self._length(stage - 1)
            if self.spec.stages[stage].windows == self.spec.stages[stage - 1].windows:
                continue
            for source, shape, entry in zip(self.spec.sources, self.shapes_of(stage - 1), self._at_end(stage - 1)):
                unread = shape.unread_windows(entry, before)
                if unread:
                    slot = shape.slots_used(entry, before) - 1
                    report.append(UnreadChunk(stage, source.name, slot, unread * before))
        return report

    def _at_end(self, stage: int) -> tuple[Entry, ...]:
        """State after ``stage``, still at its own sequence length."""
        return self._after(stage, self.used(stage))

    def _after(self, stage: int, n: int) -> tuple[Entry, ...]:
        """State after the first ``n`` stream indices of ``stage``."""
        taken = self.counts(stage, n)
        return tuple(Entry(e.slot, e.ordinals + c) for e, c in zip(self._entries[stage], taken))

    def slots_at_end(self, stage: int, sequences: int | None = None) -> tuple[int, ...]:
        """First untouched chunk slot per source after ``stage``, or after its first ``sequences`` stream indices."""
        state = self._after(stage, self.used(stage) if sequences is None else sequences)
        return tuple(shape.slots_used(entry, self._length(stage)) for shape, entry in zip(self.shapes_of(stage), state))

    def chunks_at(self, stage: int, sequences: int) -> list[ChunkSpan]:
        """After the first ``sequences`` trained indices of ``stage``: the chunk that each source reads now, then the one that
        each begins next, where the run goes on to it."""
        n = int(self.stream_index(stage, np.array([sequences - 1]))[0]) + 1
        untouched, last = self.slots_at_end(stage, n), self.slots_at_end(len(self.spec.stages) - 1)
        now = [(k, slot - 1) for k, slot in enumerate(untouched) if slot > self._entries[stage][k].slot]
        coming = [(k, slot) for k, slot in enumerate(untouched) if slot < last[k]]
        return [self._span(k, slot) for k, slot in (*now, *coming)]

    def _span(self, source: int, slot: int) -> ChunkSpan:
        shape = self.shapes[source]
        first = shape.first_token_of(slot)
        return ChunkSpan(source, first, min(first + shape.chunk_tokens, shape.tokens - 1) + 1)

    # --- the mixture --------------------------------------------------------------------------------------------------

    def _legs_of(self, stage: int) -> Legs:
        changes = [(one.first, one.quanta) for one in self.transitions if one.stage == stage]
        return Legs(self.spec.stages[stage].quanta, changes, self.spec.data_seed)

    def counts(self, stage: int, n: int) -> tuple[int, ...]:
        """How many of the first ``n`` stream indices of ``stage`` come from each source: closed form, exact."""
        return self._legs[stage].counts(n)

    def mixtures(self, stage: int) -> list[tuple[int, tuple[int, ...]]]:
        """(first stream index, quanta) of every mixture that the stage has, in order."""
        return self._legs[stage].mixtures

    def gaps(self, stage: int) -> list[tuple[int, int]]:
        """The stream indices of ``stage`` that skips leave out, as [first, end), apart and in order."""
        return skip_gaps((skip.first, skip.count) for skip in self.skips if skip.stage == stage)

    def reached(self, stage: int, u: int) -> int:
        """The stream index after the first ``u`` trained indices of ``stage``: those, and what skips left out before them."""
        end = u
        for first, last in self.gaps(stage):
            end += last - first if first < end else 0
        return end

    def trained(self, stage: int, u: int) -> tuple[int, ...]:
        """How many of the first ``u`` trained indices of ``stage`` come from each source: closed form, exact."""
        end = self.reached(stage, u)
        total = np.array(self.counts(stage, end), np.int64)
        for first, last in self.gaps(stage):
            if first < end:
                total -= np.subtract(self.counts(stage, last), self.counts(stage, first))
        return tuple(total.tolist())

    # --- positions ----------------------------------------------------------------------------------------------------

    def stream_index(self, stage: int, u: np.ndarray) -> np.ndarray:
        """Trained index -> stream index."""
        n = np.array(u, np.int64)
        for skip in self.skips:
            if skip.stage == stage:
                n[n >= skip.first] += skip.count
        return n

    def locate(self, stage: int, u: np.ndarray) -> Positions:
        """Positions of the trained indices ``u`` (flat) of ``stage``. Beyond a source's cap: RunError."""
        u = np.asarray(u, np.int64)
        assert u.ndim == 1, u.shape
        if not u.size:
            return Positions(u.copy(), u.copy(), u.copy())
        low, high = int(u.min()), int(u.max())
        assert 0 <= low <= high < self.spec.stages[stage].sequences, (stage, low, high)
        self._check_caps(stage, high)
        if high - low > 2 * BLOCK:
            return self._compute(stage, u)
        blocks = [self._block(stage, b) for b in range(low // BLOCK, high // BLOCK + 1)]
        at = u - low // BLOCK * BLOCK
        columns = (np.concatenate([getattr(b, name) for b in blocks])[at] for name in ("source", "epoch", "token"))
        return Positions(*columns)

    def _block(self, stage: int, block: int) -> Positions:
        found = self._blocks.get((stage, block))
        if found is None:
            end = min((block + 1) * BLOCK, self.spec.stages[stage].sequences)
            found = self._compute(stage, np.arange(block * BLOCK, end))
            kept = list(self._blocks.items())[1 - _KEPT_BLOCKS :]
            self._blocks = dict([*kept, ((stage, block), found)])  # replaced, not changed: other threads read it
        return found

    def _compute(self, stage: int, u: np.ndarray) -> Positions:
        length, n = self._length(stage), self.stream_index(stage, u)
        assigned = self._legs[stage].assign(n)
        epoch, token = np.empty_like(u), np.empty_like(u)
        for k, (shape, entry) in enumerate(zip(self.shapes_of(stage), self._entries[stage])):
            at = np.flatnonzero(assigned.source == k)
            if at.size:
                places = shape.locate(entry, assigned.count[at], length, self._bad(k, stage, n[at], length))
                epoch[at], token[at] = places.epoch, places.token
        return Positions(assigned.source, epoch, token)

    def _bad(self, source: int, stage: int, n: np.ndarray, length: int) -> Bad | None:
        """Of source number ``source``, for stream indices ``n`` of ``stage``. A window reads its targets too: T + 1 tokens."""
        is_packed = bool(self.shapes_of(stage)[source].bins)
        name = self.spec.sources[source].name
        records = [q for q in self.quarantines if q.source == name and q.stage <= stage]
        if not records:
            return None

        def bad(token: np.ndarray, places: np.ndarray) -> np.ndarray:
            found = np.zeros(token.shape, bool)
            for q in records:
                in_force = (n[places] >= q.first) | (q.stage < stage)
                if is_packed:
                    bins = [b for p in q.packed if p.sequence_length == length for b in p.bins]
                    found |= in_force & np.isin(token, np.array(bins, np.int64))
                else:
                    found |= in_force & (token < q.token + q.tokens) & (token + length >= q.token)
            return found

        return bad

    def replaced(self, stage: int, u: np.ndarray) -> int:
        """How many of the sequences ``u`` stand in for damaged ones: they are repeats, of this epoch or another time."""
        if not self.quarantines:
            return 0
        return int((self._undamaged.locate(stage, u).token != self.locate(stage, u).token).sum())

    @cached_property
    def _undamaged(self) -> Stream:
        """Kept: its blocks serve the steps that follow."""
        return Stream(self.spec, self.skips, (), self.transitions)

    def _check_caps(self, stage: int, u: int) -> None:
        """The freeze keeps every run within its caps; skips and transitions are what can carry one beyond."""
        if not (self.skips or self.transitions):
            return
        n = int(self.stream_index(stage, np.array([u]))[0])
        for source, shape, slot in zip(self.spec.sources, self.shapes, self.slots_at_end(stage, n + 1)):
            if source.cap_epochs is not None and slot > shape.allowed_slots(source.cap_epochs):
                raise RunError(
                    f"source {source.name}: sequence {u} of stage {self.spec.stages[stage].name} lies beyond its cap",
                    f"cap: {source.cap_epochs} epochs = {shape.allowed_slots(source.cap_epochs)} chunks of {shape.slots}",
                    f"{'skips' if self.skips else 'transitions of the mixture'} used the rest of it: branch the run with a "
                    "higher cap or a lower weight for this source",
                )

    def rank_sequences(self, stage: int, first_u: int, batch_sequences: int, rank: int, world: int) -> np.ndarray:
        """The trained indices of a batch that ``rank`` of ``world`` takes: a slice of a keyed permutation of the batch.

        Plain striding would tie ranks to sources, since the mixture deals them out evenly.
        """
        assert 0 <= rank < world, (rank, world)
        start, end = batch_sequences * rank // world, batch_sequences * (rank + 1) // world
        if start == end:
            return np.empty(0, np.int64)
        key = derive_key("ranks", self.spec.data_seed, stage, first_u)
        return first_u + permute(np.arange(start, end), batch_sequences, key)

    def share(self, stage: int, first_u: int, batch_sequences: int, rank: int, world: int) -> Share:
        """As many as the largest share has: all replicas run the same number of micro-batches, of the same sizes. What is
        missing is filled with real sequences of the batch (CONTRACTS section 4)."""
        u = self.rank_sequences(stage, first_u, batch_sequences, rank, world)
        missing = -(-batch_sequences // world) - len(u)
        return Share(np.concatenate([u, first_u + np.arange(missing) % batch_sequences]), missing)


# --- reports and checks -----------------------------------------------------------------------------------------------


def _check_skips(spec: Spec, skips: tuple[Skip, ...]) -> None:
    for skip in skips:
        if not 0 <= skip.stage < len(spec.stages) or skip.first < 0 or skip.count < 0:
            raise RunError(
                f"skip record {skip} does not fit the run", f"the run has stages 0 to {len(spec.stages) - 1}, indices from 0"
            )


def _check_quarantines(spec: Spec, quarantines: tuple[Quarantine, ...]) -> None:
    sizes = {source.name: source.tokens for source in spec.sources}
    for one in quarantines:
        known = one.source in sizes and 0 <= one.token < one.token + one.tokens <= sizes[one.source]
        if not known or one.first < 0 or not 0 <= one.stage < len(spec.stages):
            raise RunError(f"quarantine record {one} does not fit the run", f"sources and their tokens: {sizes}")


def _check_transitions(spec: Spec, transitions: tuple[Transition, ...]) -> None:
    for one in transitions:
        sound = len(one.quanta) == len(spec.sources) and sum(one.quanta) == QUANTA and min(one.quanta) >= 0
        if not sound or not 0 <= one.stage < len(spec.stages) or one.first < 0:
            raise RunError(
                f"transition record of stage {one.stage}, index {one.first}, quanta {one.quanta} does not fit the run",
                f"a mixture has {QUANTA:,} parts over {len(spec.sources)} sources; there are stages 0 to {len(spec.stages) - 1}",
            )


def _check_lengths(spec: Spec, shapes: tuple[SourceShape, ...], transitions: tuple[Transition, ...] = ()) -> None:
    mixtures = [(stage, stage.quanta) for stage in spec.stages]
    for stage, mixture in [*mixtures, *((spec.stages[one.stage], one.quanta) for one in transitions)]:
        for source, shape, quanta in zip(spec.sources, shapes, mixture, strict=True):
            if quanta and stage.sequence_length > shape.chunk_tokens:
                raise ConfigError(
                    f"stage {stage.name}: sequence length {stage.sequence_length} exceeds the chunks of source {source.name}",
                    f"a window lies in one chunk; chunks have {shape.chunk_tokens} of the {shape.tokens} tokens",
                    f"shorten the sequence, or rebuild the data with data.chunk >= {stage.sequence_length}",
                )
            if quanta and not stage.packed and not shape.windows(stage.sequence_length).epoch:
                raise ConfigError(
                    f"stage {stage.name}: source {source.name} has no whole window of {stage.sequence_length} tokens",
                    f"a window of T needs T + 1 tokens; {source.name} has {shape.tokens}",
                    "shorten the sequence, or add text to that source",
                )


def stream_digests(spec: Spec) -> list[str]:
    """One per stage: what decides its bytes, lengths excluded, so that lengthening a stage refuses no resume."""
    sources = [[s.name, s.digest, s.tokens, s.chunk_tokens] for s in spec.sources]
    common = {"data_seed": spec.data_seed, "sources": sources, "tokenizer": spec.tokenizer.digest, "stream": 1}
    return [
        digest_json(common | {"sequence_length": s.sequence_length, "quanta": list(s.quanta)} | _added(s)) for s in spec.stages
    ]


def _added(stage: StageSpec) -> dict:
    """What earlier versions had not, left out where it changes nothing."""
    packed = {"packed": [plan.digest for plan in stage.packed]} if stage.packed else {}
    return packed | ({"infill": asdict(stage.infill)} if stage.infill else {})


def source_coverage(spec: Spec, skips: tuple[Skip, ...] = ()) -> list[Coverage]:
    """Tokens, epochs and chunk slots that the Spec takes from each source. Raises nothing about caps: see within_cap."""
    return stream_coverage(Stream(spec, skips))


def stream_coverage(stream: Stream) -> list[Coverage]:
    """The same under all records of a stream."""
    spec = stream.spec
    taken = [stream.counts(i, stream.used(i)) for i in range(len(spec.stages))]
    final = stream.slots_at_end(len(spec.stages) - 1)
    report = []
    for k, (source, shape) in enumerate(zip(spec.sources, stream.shapes)):
        targets = sum(c[k] * s.sequence_length * s.target_share(k, spec.sources) for c, s in zip(taken, spec.stages))
        allowed = None if source.cap_epochs is None else shape.allowed_slots(source.cap_epochs)
        report.append(
            Coverage(
                source=source.name,
                target_tokens=round(targets),
                epochs=final[k] / shape.slots,
                final_slot=final[k],
                slots=shape.slots,
                cap_epochs=source.cap_epochs,
                allowed_slots=allowed,
            )
        )
    return report
