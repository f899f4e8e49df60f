"""Stages that are packed by best fit: positions, windows, plans beside the shards, damage."""

from __future__ import annotations

import dataclasses
import shutil
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from data_helpers import small_recipe, small_spec, write_token_data, write_words
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.errors import ConfigError, DamagedData, EnvironmentFault
from headway.data.build import build_data
from headway.data.freeze import freeze
from headway.data.inspect.show import Show
from headway.data.inspect.verify import verify
from headway.data.manifest import DataManifest
from headway.data.packing import pack, packing_digest, write_packing
from headway.data.positions import SourceShape
from headway.data.reader import TokenReader
from headway.data.shares import Part, stage_shares
from headway.data.stream import Positions, Quarantine, QuarantinedBins, Stream, source_coverage, stream_digests
from headway.recipe.schedules import Schedule
from headway.recipe.spec import InfillSpec, PackedSpec, Spec
from headway.train.feed import Feed, Replica


def chunk_bins(shape: SourceShape, ends: np.ndarray, T: int) -> list:
    """The bins of every chunk."""
    borders = [c * shape.chunk_tokens for c in range(shape.slots)] + [shape.tokens - 1]
    return [pack(ends, first, last, T) for first, last in pairwise(borders)]


def packed(spec: Spec, ends: list[np.ndarray], stages: set[int]) -> Spec:
    """``spec`` with some stages packed."""
    shapes = [SourceShape("", s.tokens, s.chunk_tokens) for s in spec.sources]

    def plans(T: int) -> tuple[PackedSpec, ...]:
        found = [chunk_bins(shape, e, T) for shape, e in zip(shapes, ends)]
        return tuple(PackedSpec(tuple(len(b.first) for b in bins), 1.0, f"plan {T}") for bins in found)

    changed = [
        dataclasses.replace(stage, packing="best-fit", packed=plans(stage.sequence_length)) if at in stages else stage
        for at, stage in enumerate(spec.stages)
    ]
    return dataclasses.replace(spec, stages=tuple(changed))


@st.composite
def cases(draw) -> tuple[Spec, list[np.ndarray]]:
    """Two sources of short documents, three stages of two lengths, some packed."""
    sources, ends = [], []
    for name in "ab":
        sizes = draw(st.lists(st.integers(2, 40), min_size=20, max_size=60))  # 40 tokens or more: a window of 32 is there
        ends.append(np.cumsum(sizes))
        sources.append((name, int(ends[-1][-1]), draw(st.sampled_from([32, 64, 100]))))
    stages = [
        (draw(st.integers(1, 40)), draw(st.sampled_from([8, 16, 32])), draw(st.sampled_from([(32_768, 32_768), (65_000, 536)])))
        for _ in range(3)
    ]
    spec = small_spec(sources, stages)
    return packed(spec, ends, draw(st.sets(st.integers(0, 2)))), ends


def inputs_of(spec: Spec, ends: list[np.ndarray], stage: int, source: int, token: int) -> list[int]:
    """The tokens that a window reads as input."""
    T, of = spec.stages[stage].sequence_length, spec.sources[source]
    if not spec.stages[stage].packed:
        return list(range(token, token + T))
    for bins in chunk_bins(SourceShape("", of.tokens, of.chunk_tokens), ends[source], T):
        if token < len(bins.first):
            last = [*bins.first[1:].tolist(), len(bins.start)][token]
            rows = range(int(bins.first[token]), last)
            return [t for row in rows for t in range(int(bins.start[row]), int(bins.start[row] + bins.tokens[row]))]
        token -= len(bins.first)
    raise AssertionError(token)


@settings(max_examples=60, deadline=None)
@given(cases())
def test_no_token_is_read_twice_per_epoch_whichever_way_stages_read(case):
    """Of whole epochs of one stage all tokens are read; a change of windows leaves at most one chunk per source behind."""
    spec, ends = case
    stream, seen = Stream(spec), set()
    for number, stage in enumerate(spec.stages):
        found = stream.locate(number, np.arange(stage.sequences))
        for source, epoch, token in zip(found.source.tolist(), found.epoch.tolist(), found.token.tolist()):
            for one in inputs_of(spec, ends, number, source, token):
                assert (source, epoch, one) not in seen
                seen.add((source, epoch, one))
    assert len(stream.unread_chunks()) <= 2 * len(spec.sources)


@settings(max_examples=40, deadline=None)
@given(cases(), st.integers(1, 3))
def test_whole_epochs_read_every_token_once(case, epochs):
    spec, ends = case
    spec = packed(small_spec([("a", spec.sources[0].tokens, spec.sources[0].chunk_tokens)], [(1, 16, (65_536,))]), ends[:1], {0})
    bins = sum(spec.stages[0].packed[0].bins)
    spec = dataclasses.replace(spec, stages=(dataclasses.replace(spec.stages[0], sequences=bins * epochs),))
    found = Stream(spec).locate(0, np.arange(bins * epochs))
    for epoch in range(epochs):
        tokens = [t for one in found.token[found.epoch == epoch].tolist() for t in inputs_of(spec, ends, 0, 0, one)]
        assert sorted(tokens) == list(range(spec.sources[0].tokens - 1))
    assert source_coverage(spec)[0].epochs == epochs


@settings(max_examples=40, deadline=None)
@given(cases(), st.data())
def test_damaged_bins_are_replaced_and_nothing_else_moves(case, data):
    spec, _ = case
    spec = dataclasses.replace(spec, stages=tuple(s for s in spec.stages if s.packed))
    if not spec.stages:
        return
    source = data.draw(st.integers(0, 1))
    plans = [stage.packed[source].bins for stage in spec.stages]
    T = [stage.sequence_length for stage in spec.stages]
    bad = {t: tuple(data.draw(st.sets(st.integers(0, sum(b) - 1), max_size=sum(b) // 4 + 1))) for t, b in zip(T, plans)}
    records = tuple(QuarantinedBins(t, bins) for t, bins in bad.items())
    quarantine = Quarantine(spec.sources[source].name, 0, 1, 0, 0, records)
    if any(len(bad[t]) == sum(b) for t, b in zip(T, plans)):
        return
    before, after = Stream(spec), Stream(spec, (), (quarantine,))
    for number, stage in enumerate(spec.stages):
        u = np.arange(stage.sequences)
        old, new = before.locate(number, u), after.locate(number, u)
        hit = (old.source == source) & np.isin(old.token, bad[stage.sequence_length])
        assert np.array_equal(old.token[~hit], new.token[~hit])
        assert not np.isin(new.token[new.source == source], bad[stage.sequence_length]).any()


# --- windows


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> tuple[Path, DataManifest, object]:
    root = tmp_path_factory.mktemp("packed")
    sources = [
        {"name": name, "kind": "text-tree", "path": str(write_words(root / name, 40, seed, 12 + 30 * seed))}
        for seed, name in enumerate(("short", "long"))
    ]
    stages = [
        {"name": "cut", "tokens": 2_000, "sequence": 32, "batch": 128, "mixture": {"short": 1, "long": 1}},
        {
            "name": "packed",
            "tokens": 6_000,
            "sequence": 64,
            "batch": 320,
            "mixture": {"short": 3, "long": 1},
            "packing": "best-fit",
        },
    ]
    recipe = small_recipe(sources, stages=stages, held_out=200, chunk=512)
    return root / "data", build_data(recipe, root / "data"), recipe


def test_a_build_plans_what_its_stages_read(built):
    directory, manifest, recipe = built
    for source in manifest.sources:
        (plan,) = source.packings
        assert plan.sequence_length == 64
        assert sum(plan.bins) * 64 * plan.target_share == pytest.approx(source.tokens - 1)
    spec = freeze(recipe, manifest)
    assert spec.stages[0].packed == ()
    assert [p.digest for p in spec.stages[1].packed] == [packing_digest(s.packings[0]) for s in manifest.sources]
    assert Spec.from_json(spec.to_json()) == spec
    assert not verify(directory).damages


def test_weights_are_shares_of_targets_not_of_padding(built):
    _, manifest, recipe = built
    spec = freeze(recipe, manifest)
    stage = spec.stages[1]
    targets = [q * p.target_share for q, p in zip(stage.quanta, stage.packed)]
    assert targets[0] / sum(targets) == pytest.approx(0.75, abs=1e-4)
    assert stage.packed[0].target_share != stage.packed[1].target_share


def test_windows_hold_whole_documents_and_their_targets(built):
    directory, manifest, recipe = built
    spec = freeze(recipe, manifest)
    stream, reader = Stream(spec), TokenReader.open(directory, spec)
    stage, plain = spec.stages[1], {}
    for number, source in enumerate(manifest.sources):
        plain[number] = np.concatenate(list(reader.training_blocks(number))).astype(np.int64)
        assert len(plain[number]) == source.tokens
    positions = stream.locate(1, np.arange(stage.sequences))
    batch = reader.stage_batch(positions, stage)
    document = manifest.tokenizer.document_token_id
    for row in range(stage.sequences):
        source, bin = int(positions.source[row]), int(positions.token[row])
        column = 0
        for at, (start, size) in enumerate(reader.pieces(source, bin, 64).tolist()):
            part = slice(column, column + size)
            assert np.array_equal(batch.tokens_BT[row, part], plain[source][start : start + size])
            assert np.array_equal(batch.targets_BT[row, part], plain[source][start + 1 : start + size + 1])
            assert batch.document_BT[row, part].tolist() == [at] * size
            assert batch.position_BT[row, part].tolist() == list(range(size))
            assert not (plain[source][start + 1 : start + size] == document).any(), "one document"
            column += size
        assert batch.scored_BT[row].tolist() == [True] * column + [False] * (64 - column)
        assert (batch.tokens_BT[row, column:] == document).all()
        assert (np.diff(batch.document_BT[row, column:]) == 0).all(), "padding is one document"
    assert reader.targets(positions, stage) == batch.scored_BT.sum()
    assert not batch.scored_BT.all(), "else nothing of this was padding"


def test_the_divisor_is_of_the_whole_batch_on_every_replica(built):
    directory, manifest, recipe = built
    spec = freeze(recipe, manifest)
    reader, schedule = TokenReader.open(directory, spec), Schedule(spec)
    step = schedule.first_step(1) + 1
    alone = Feed(Stream(spec), reader, schedule, 128).fetch(step)
    counted = sum(int(alone.scored(i).sum()) for i in range(len(alone.rows)))
    assert alone.targets == counted
    for world in (2, 3, 4):
        parts = [Feed(Stream(spec), reader, schedule, 128, Replica(rank, world)).fetch(step) for rank in range(world)]
        assert {part.targets for part in parts} == {counted}
        assert sum(int(part.scored(i).sum()) for part in parts for i in range(len(part.rows))) == counted
        evened = [part.evened(len(part.rows) + 1) for part in parts]
        assert sum(int(part.scored(i).sum()) for part in evened for i in range(len(part.rows))) == counted


def test_show_reads_what_training_reads(built):
    directory, manifest, recipe = built
    spec = freeze(recipe, manifest)
    show, stream, reader = Show(Stream(spec), directory, manifest), Stream(spec), TokenReader.open(directory, spec)
    place = show.step(3, 1)
    u = np.arange(place.first_sequence, place.end_sequence)
    batch = reader.stage_batch(stream.locate(1, u), spec.stages[1])
    for row, sequence in enumerate(show.sequences(place, show.batch(place))):
        assert sequence.tokens == tuple(batch.tokens_BT[row].tolist())
        assert sequence.targets == tuple(batch.targets_BT[row].tolist())
        assert sum(end - first for first, end in sequence.counted) == batch.scored_BT[row].sum()
        assert sum(piece.tokens for piece in sequence.pieces) == batch.scored_BT[row].sum()
        assert 0 <= sequence.place.window < sequence.place.windows
        for piece in sequence.pieces:
            assert piece.begins or piece.offset % 64 == 0 or sequence.place.first_token % 512 == 0


# --- plans beside the shards


def test_another_length_is_added_and_changes_nothing_else(built, tmp_path):
    directory = tmp_path / "data"
    shutil.copytree(built[0], directory)
    _, manifest, recipe = built
    stage = recipe.stages[1].model_copy(update={"sequence": 128, "batch": 640})
    other = recipe.model_copy(update={"stages": (recipe.stages[0], stage)})
    with pytest.raises(ConfigError, match="no plan that packs short, long into 128 tokens"):
        freeze(other, manifest)
    again = build_data(other, directory)
    assert [plan.sequence_length for plan in again.sources[0].packings] == [64, 128]
    assert again.digest() == manifest.digest()
    TokenReader.open(directory, freeze(recipe, manifest))
    TokenReader.open(directory, freeze(other, again))
    assert not verify(directory).damages
    assert build_data(recipe, directory) == again, "what is there stays"


def test_a_run_is_refused_without_its_plan_or_with_another(built, tmp_path):
    shutil.copytree(built[0], tmp_path / "data")
    _, manifest, recipe = built
    spec = freeze(recipe, manifest)
    bare = dataclasses.replace(manifest, sources=tuple(dataclasses.replace(s, packings=()) for s in manifest.sources))
    bare.save(tmp_path / "data")
    with pytest.raises(EnvironmentFault, match="has no plan that packs short for stage packed"):
        TokenReader.open(tmp_path / "data", spec)
    plan = dataclasses.replace(spec.stages[1].packed[0], digest="sha256:other")
    stage = dataclasses.replace(spec.stages[1], packed=(plan, *spec.stages[1].packed[1:]))
    with pytest.raises(EnvironmentFault, match="has another plan"):
        TokenReader.open(built[0], dataclasses.replace(spec, stages=(spec.stages[0], stage)))


def test_digests_of_streams_name_plans_only_where_there_are(built):
    _, manifest, recipe = built
    spec = freeze(recipe, manifest)
    bare = dataclasses.replace(spec, stages=(spec.stages[0],))
    assert stream_digests(spec)[0] == stream_digests(bare)[0]
    other = dataclasses.replace(spec.stages[1].packed[0], digest="sha256:other")
    changed = dataclasses.replace(spec.stages[1], packed=(other, spec.stages[1].packed[1]))
    assert stream_digests(dataclasses.replace(spec, stages=(spec.stages[0], changed)))[1] != stream_digests(spec)[1]


@pytest.mark.parametrize("name", ["packing-64.bins", "packing-64.pieces"])
def test_a_damaged_plan_is_found_and_refused(built, tmp_path, name):
    shutil.copytree(built[0], tmp_path / "data")
    _, manifest, recipe = built
    path = next((tmp_path / "data").glob(f"*/{name}"))
    data = bytearray(path.read_bytes())
    data[9] ^= 4
    path.write_bytes(data)
    assert [damage.file for damage in verify(tmp_path / "data").damages] == [path.relative_to(tmp_path / "data").as_posix()]
    spec = freeze(recipe, manifest)
    reader = TokenReader.open(tmp_path / "data", spec)
    with pytest.raises(EnvironmentFault, match="is not what the run was frozen with"):
        reader.stage_batch(Stream(spec).locate(1, np.arange(40)), spec.stages[1])


def test_damaged_tokens_are_named_with_the_bins_that_read_them(tmp_path):
    random = np.random.default_rng(1)
    documents = [[0, *random.integers(1, 200, size).tolist()] for size in random.integers(1, 3_000, 2_000)]
    manifest = write_token_data(tmp_path, [documents], shard_bytes=2**24)
    source = dataclasses.replace(manifest.sources[0], chunk_tokens=2**17)
    ends = np.cumsum([len(d) for d in documents])
    source = dataclasses.replace(source, packings=(write_packing(tmp_path, source, 1_024, ends),)).sealed()
    dataclasses.replace(manifest, sources=(source,)).save(tmp_path)
    path = tmp_path / source.shards[0].file
    data = bytearray(path.read_bytes())
    data[2**20 + 5] ^= 1
    path.write_bytes(data)
    manifest = DataManifest.load(tmp_path)
    reader = TokenReader(tmp_path, manifest)
    plan = source.packings[0]
    stage = dataclasses.replace(
        small_spec([("source0", 10, 4)], [(1, 1_024, (65_536,))]).stages[0],
        packing="best-fit",
        packed=(PackedSpec(plan.bins, plan.target_share, ""),),
    )
    bins = sum(plan.bins)
    with pytest.raises(DamagedData) as caught:
        reader.stage_batch(Positions(np.zeros(bins, np.int64), np.zeros(bins, np.int64), np.arange(bins)), stage)
    (found,) = caught.value.damage["packed"]
    first, tokens = caught.value.damage["token"], caught.value.damage["tokens"]
    wanted = {
        b
        for b in range(bins)
        for start, size in reader.pieces(0, b, 1_024).tolist()
        if start < first + tokens and start + size >= first
    }
    assert set(found["bins"]) == wanted
    healthy = np.array(sorted(set(range(bins)) - wanted))
    reader.stage_batch(Positions(np.zeros_like(healthy), np.zeros_like(healthy), healthy), stage)


def test_D3_every_epoch_and_every_chunk_has_an_order_of_its_own():
    sizes = np.random.default_rng(2).integers(1, 30, 3_000)
    ends = np.cumsum(sizes)
    spec = packed(small_spec([("a", int(ends[-1]), 4_096)], [(1, 32, (65_536,))]), [ends], {0})
    bins = spec.stages[0].packed[0].bins
    stage = dataclasses.replace(spec.stages[0], sequences=2 * sum(bins))
    found = Stream(dataclasses.replace(spec, stages=(stage,))).locate(0, np.arange(2 * sum(bins)))
    first = np.cumsum((0, *bins))
    chunk = first.searchsorted(found.token, "right") - 1
    orders = {
        (e, c): tuple((found.token[(found.epoch == e) & (chunk == c)] - first[c]).tolist())
        for e in (0, 1)
        for c in range(len(bins))
    }
    whole = [key for key, order in orders.items() if len(order) > 50]
    assert len(whole) > 10
    for one in whole:
        assert orders[one] != tuple(range(len(orders[one]))), "shuffled"
        for other in whole:
            shorter = min(len(orders[one]), len(orders[other]))
            assert one == other or orders[one][:shorter] != orders[other][:shorter]
            same = np.mean(np.array(orders[one][:shorter]) == np.array(orders[other][:shorter]))
            assert one == other or same < 0.2, (one, other)
    assert [c for e, c in dict.fromkeys(zip(found.epoch.tolist(), chunk.tolist())) if e == 0] != [
        c for e, c in dict.fromkeys(zip(found.epoch.tolist(), chunk.tolist())) if e == 1
    ]


def test_documents_are_counted_in_packed_windows(built):
    directory, manifest, recipe = built
    spec = freeze(recipe, manifest)
    reader, stream = TokenReader.open(directory, spec), Stream(spec)
    found = stage_shares(stream, Part(1, 3, 40), reader.documents_begun)
    places = stream.locate(1, np.arange(3, 40))
    batch = reader.stage_batch(places, spec.stages[1])
    heads = batch.scored_BT & (batch.tokens_BT == manifest.tokenizer.document_token_id)
    assert [row.documents for row in found.sources] == [int(heads[places.source == k].sum()) for k in (0, 1)]


@settings(max_examples=60, deadline=None)
@given(cases())
def test_a_stage_of_other_windows_begins_behind_the_chunks_that_were_begun(case):
    spec, _ = case
    stream = Stream(spec)
    for number in range(1, 3):
        before, stage = spec.stages[number - 1], spec.stages[number]
        if not before.packed or before.windows == stage.windows or (number == 2 and before.windows == spec.stages[0].windows):
            continue
        found = stream.locate(number - 1, np.arange(before.sequences))
        for k, plan in enumerate(before.packed):
            own = found.source == k
            chunk = np.cumsum(plan.bins).searchsorted(found.token[own], "right")
            begun = len(set(zip(found.epoch[own].tolist(), chunk.tolist())))
            assert stream.entry_state(number)[k].slot == stream.entry_state(number - 1)[k].slot + begun


@pytest.mark.parametrize("names", [("long", "short"), ("long",)])
def test_a_recipe_may_list_sources_otherwise_than_the_build(built, names):
    """Sources of a Spec are numbered as its recipe lists them: what is read is told by name."""
    directory, manifest, recipe = built
    chosen = tuple(source for name in names for source in recipe.data.sources if source.name == name)
    stages = tuple(stage.model_copy(update={"mixture": dict.fromkeys(names, 1.0)}) for stage in recipe.stages)
    other = recipe.model_copy(update={"data": recipe.data.model_copy(update={"sources": chosen}), "stages": stages})
    spec = freeze(other, manifest)
    assert [source.name for source in spec.sources] == list(names)
    reader, stream = TokenReader.open(directory, spec), Stream(spec)
    whole = TokenReader(directory, manifest)
    show = Show(stream, directory, manifest)
    for number, stage in enumerate(spec.stages):
        positions = stream.locate(number, np.arange(stage.sequences))
        built_numbers = [[s.name for s in manifest.sources].index(names[k]) for k in positions.source.tolist()]
        wanted = whole.stage_batch(Positions(np.array(built_numbers), positions.epoch, positions.token), stage)
        assert np.array_equal(reader.stage_batch(positions, stage).tokens_BT, wanted.tokens_BT)
        place = show.step(1, number)
        for row, sequence in enumerate(show.sequences(place, show.batch(place))):
            assert sequence.source.name == names[int(positions.source[row])]
            assert sequence.tokens == tuple(wanted.tokens_BT[row].tolist())


def test_show_says_where_a_middle_was_filled_in(built):
    directory, manifest, recipe = built
    spec = freeze(recipe, manifest)
    tokens = tuple(manifest.tokenizer.vocabulary + k for k in range(3))  # ids that no text has
    infill = InfillSpec(0.5, 0.5, (), tokens, 3)
    spec = dataclasses.replace(spec, stages=tuple(dataclasses.replace(stage, infill=infill) for stage in spec.stages))
    show, found = Show(Stream(spec), directory, manifest), []
    for number in (0, 1):
        place = show.step(2, number)
        for sequence in show.sequences(place, show.batch(place)):
            for piece in sequence.pieces:
                part = sequence.tokens[piece.column : piece.column + piece.tokens]
                assert piece.filled_in == (tokens[0] in part) == (tokens[2] in part)
                found.append(piece.filled_in)
    assert any(found)
    assert not all(found)
