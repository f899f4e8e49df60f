"""The stream against its prototype and against what CONTRACTS section 1 promises; small streams, checked at every position."""

from __future__ import annotations

import dataclasses
import tracemalloc

import numpy as np
import pytest
from data_helpers import small_spec
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from headway.base.errors import ConfigError, RunError
from headway.data.mixture import counts
from headway.data.positions import Entry, SourceShape
from headway.data.stream import BLOCK, Skip, Stream, source_coverage, stream_digests
from headway.recipe.spec import Spec

SOURCES = [("a", 100_003, 4_096), ("b", 30_007, 1_024), ("c", 7_777, 1_024)]
STAGES = [
    (900, 64, (32_768, 19_661, 13_107)),
    (400, 64, (10_000, 5_536, 50_000)),
    (150, 256, (40_000, 20_000, 5_536)),
    (500, 128, (30_000, 30_000, 5_536)),
]


def located(spec: Spec, skips: tuple[Skip, ...] = ()) -> list[np.ndarray]:
    """Per stage a (3, M) array of source, epoch, token."""
    stream = Stream(spec, skips)
    found = [stream.locate(s, np.arange(stage.sequences)) for s, stage in enumerate(spec.stages)]
    return [np.stack([p.source, p.epoch, p.token]) for p in found]


def audit(spec: Spec, skips: tuple[Skip, ...] = ()) -> None:
    """No token is a target twice per source and epoch; epochs never go back; windows lie inside their source and chunk."""
    found = located(spec, skips)
    for k, source in enumerate(spec.sources):
        targets, last_epoch = {}, -1
        for (of, epoch, token), stage in zip(found, spec.stages):
            T = stage.sequence_length
            for e, start in zip(epoch[of == k].tolist(), token[of == k].tolist()):
                assert e >= last_epoch
                assert start // source.chunk_tokens == (start + T - 1) // source.chunk_tokens
                seen = targets.setdefault(e, np.zeros(source.tokens, np.int8))
                seen[start + 1 : start + T + 1] += 1
                assert start + T < source.tokens
                last_epoch = e
        assert all(seen.max() <= 1 for seen in targets.values()), source.name


# --- generated small streams --------------------------------------------------------------------------------------------

LENGTHS = (16, 32, 48, 64)


@st.composite
def specs(draw, stages: int = 3) -> Spec:
    count = draw(st.integers(1, 3))
    sources = [(f"s{k}", draw(st.integers(66, 4_000)), draw(st.sampled_from([64, 100, 256, 1_024]))) for k in range(count)]
    drawn = []
    for _ in range(draw(st.integers(1, stages))):
        weights = draw(st.lists(st.integers(0, 8), min_size=count, max_size=count).filter(any))
        parts = [w * 65_536 // sum(weights) for w in weights]
        parts[weights.index(max(weights))] += 65_536 - sum(parts)
        drawn.append((draw(st.integers(1, 200)), draw(st.sampled_from(LENGTHS)), tuple(parts)))
    spec = small_spec(sources, drawn, data_seed=draw(st.integers(0, 1_000)))
    shapes = [SourceShape("", s.tokens, s.chunk_tokens) for s in spec.sources]
    assume(all(shape.windows(length).epoch for shape in shapes for length in LENGTHS))
    return spec


@st.composite
def skip_records(draw, spec: Spec) -> tuple[Skip, ...]:
    stage = st.integers(0, len(spec.stages) - 1)
    return tuple(draw(st.lists(st.builds(Skip, stage, st.integers(0, 250), st.integers(0, 40)), max_size=3)))


@given(specs(), st.data())
@settings(max_examples=60, deadline=None)
def test_positions_and_entry_states_equal_the_prototype(oracle, oracle_stream, spec, data):
    skips = data.draw(skip_records(spec))
    stream, prototype = Stream(spec, skips), oracle_stream(spec, skips)
    for s, stage in enumerate(spec.stages):
        assert [(e.slot, e.ordinals) for e in stream.entry_state(s)] == list(zip(prototype.h[s], prototype.o[s]))
        assert np.array_equal(located(spec, skips)[s], np.stack(prototype.at(s, np.arange(stage.sequences))))


@given(specs(stages=4), st.data())
@settings(max_examples=60, deadline=None)
def test_D1_D3_D6_D7_no_token_is_a_target_twice_in_an_epoch(spec, data):
    audit(spec, data.draw(skip_records(spec)))


def test_D6_D7_four_stages_of_changing_length_and_mixture():
    audit(small_spec(SOURCES, STAGES))
    audit(small_spec(SOURCES, STAGES), (Skip(0, 300, 64), Skip(2, 10, 8), Skip(2, 100, 30)))


@given(specs(), st.integers(1, 300))
@settings(max_examples=30, deadline=None)
def test_D8_lengthening_the_last_stage_changes_nothing_earlier(spec, more):
    last = dataclasses.replace(spec.stages[-1], sequences=spec.stages[-1].sequences + more)
    longer = dataclasses.replace(spec, stages=(*spec.stages[:-1], last))
    for before, after in zip(located(spec), located(longer)):
        assert np.array_equal(before, after[:, : before.shape[1]])
    assert stream_digests(spec) == stream_digests(longer)


@given(specs(stages=1), st.integers(0, 150), st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_a_skip_equals_deletion(spec, first, count):
    sequences = spec.stages[0].sequences
    longer = dataclasses.replace(spec, stages=(dataclasses.replace(spec.stages[0], sequences=sequences + count),))
    deleted = np.delete(located(longer)[0], np.s_[first : first + count], axis=1)[:, :sequences]
    assert np.array_equal(located(spec, (Skip(0, first, count),))[0], deleted)


def test_skips_of_any_order_delete_their_union():
    spec = small_spec(SOURCES, [(900, 64, STAGES[0][2])])
    whole = located(small_spec(SOURCES, [(984, 64, STAGES[0][2])]))[0]
    later_lies_earlier = (Skip(0, 500, 64), Skip(0, 480, 20))
    assert np.array_equal(located(spec, later_lies_earlier)[0], np.delete(whole, np.s_[480:564], axis=1))


def test_D1_D4_resume_at_every_position_of_a_small_stream():
    spec = small_spec(SOURCES, STAGES[2:])
    for s, stage in enumerate(spec.stages):
        whole = located(spec)[s]
        for u in range(stage.sequences):
            rest = Stream(spec).locate(s, np.arange(u, min(u + 7, stage.sequences)))
            assert np.array_equal(np.stack([rest.source, rest.epoch, rest.token]), whole[:, u : u + 7])


def test_blocks_and_whole_computation_agree():
    spec = small_spec(SOURCES, [(3 * BLOCK, 64, STAGES[0][2])])
    whole, stream = located(spec)[0], Stream(spec)
    for first in (0, BLOCK - 3, 2 * BLOCK - 1, 5, 3 * BLOCK - 9, BLOCK - 3):
        u = first + np.array([8, 3, 5, 0])
        few = stream.locate(0, u)
        assert np.array_equal(np.stack([few.source, few.epoch, few.token]), whole[:, u])
    assert stream.locate(0, np.empty(0, np.int64)).token.size == 0


def test_D13_memory_does_not_grow_with_positions():
    stream = Stream(small_spec([("a", 10**12, 2**20)], [(10**9, 512, (65_536,))]))
    for first in range(0, 6 * BLOCK, BLOCK):
        stream.locate(0, np.arange(first, first + 8))
    tracemalloc.start()
    for first in range(10**6, 10**6 + 60 * BLOCK, BLOCK):
        stream.locate(0, np.arange(first, first + 8))
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert grown < 10 * 3 * 8 * BLOCK  # a few blocks of three columns, not 60


# --- epochs -------------------------------------------------------------------------------------------------------------


def epochs_of(spec: Spec, start: int) -> dict[int, list[int]]:
    """Tokens per epoch in the order of the stream, as a run that resumes at ``start`` sees them."""
    positions = Stream(spec).locate(0, np.arange(start, spec.stages[0].sequences))
    return {int(e): positions.token[positions.epoch == e].tolist() for e in np.unique(positions.epoch)}


def test_D3_every_epoch_is_whole_with_its_own_order_after_a_resume():
    shape = SourceShape("", 7_777, 1_024)
    per_epoch = shape.windows(64).epoch
    spec = small_spec([("c", 7_777, 1_024)], [(per_epoch * 4, 64, (65_536,))])
    epochs = epochs_of(spec, start=per_epoch // 2)
    full = {e: tokens for e, tokens in epochs.items() if e > 0}
    assert sorted(full) == [1, 2, 3]
    assert all(sorted(tokens) == sorted(full[1]) and len(set(tokens)) == per_epoch for tokens in full.values())
    assert full[1] != full[2] != full[3] != full[1]
    assert epochs[0] == epochs_of(spec, start=0)[0][per_epoch // 2 :]


def test_D10_neighbouring_windows_come_from_distant_chunks():
    spec = small_spec([("big", 4_000_000, 8_192)], [(15_000, 256, (65_536,))])
    chunk = Stream(spec).locate(0, np.arange(15_000)).token // 8_192
    changes = np.abs(np.diff(chunk[np.flatnonzero(np.diff(chunk))]))
    assert abs(changes.mean() / (4_000_000 / 8_192) - 1 / 3) < 0.03
    assert (changes == 1).mean() < 0.02


@pytest.mark.parametrize("tokens", [10**12, 10**13])
def test_positions_of_huge_sources_equal_the_prototype_and_do_not_overflow(oracle, oracle_stream, tokens):
    spec = small_spec(
        [(f"s{k}", tokens + k, 2**30) for k in range(8)], [(10**10, 4_096, (8_192,) * 8), (10**9, 8_192, (8_192,) * 8)]
    )
    stream, prototype = Stream(spec), oracle_stream(spec)
    for stage, u in ((0, np.arange(987_654_321, 987_654_400)), (1, 10**9 - np.arange(1, 50))):
        found = stream.locate(stage, u)
        assert np.array_equal(np.stack([found.source, found.epoch, found.token]), np.stack(prototype.at(stage, u)))
        assert found.token.min() >= 0
        assert found.token.max() < tokens


# --- ranks --------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 70), st.integers(1, 20), st.integers(0, 900))
@settings(max_examples=40, deadline=None)
def test_D1_any_world_size_trains_the_same_sequences(batch, world, first):
    stream = Stream(small_spec(SOURCES, [(1_000, 64, STAGES[0][2])]))
    parts = [stream.rank_sequences(0, first, batch, rank, world) for rank in range(world)]
    assert sorted(np.concatenate(parts).tolist()) == list(range(first, first + batch))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    assert np.array_equal(np.concatenate(parts), stream.rank_sequences(0, first, batch, 0, 1))


def test_ranks_are_not_tied_to_sources():
    """Two equal sources alternate, so plain striding over two ranks would give each rank one source only."""
    spec = small_spec([("a", 100_003, 4_096), ("b", 100_003, 4_096)], [(4_096, 64, (32_768, 32_768))])
    stream = Stream(spec)
    own = np.concatenate([stream.rank_sequences(0, first, 16, 0, 2) for first in range(0, 4_096, 16)])
    assert abs((stream.locate(0, own).source == 0).mean() - 0.5) < 0.05


# --- reports, caps, digests ---------------------------------------------------------------------------------------------


def test_D7_what_a_change_of_length_leaves_unread_is_reported():
    spec = small_spec([("a", 10_001, 1_000)], [(13, 100, (65_536,)), (5, 200, (65_536,))])
    (unread,) = Stream(spec).unread_chunks()
    assert (unread.stage, unread.source, unread.slot, unread.tokens) == (1, "a", 1, 700)
    assert Stream(spec).entry_state(1) == (Entry(slot=2, ordinals=0),)
    assert Stream(small_spec([("a", 10_001, 1_000)], [(20, 100, (65_536,)), (5, 200, (65_536,))])).unread_chunks() == []


def test_a_source_that_a_stage_does_not_use_may_have_chunks_shorter_than_its_windows():
    spec = small_spec([("a", 10_001, 1_000), ("b", 5_001, 64)], [(13, 100, (65_536, 0)), (5, 32, (32_768, 32_768))])
    assert [(u.source, u.tokens) for u in Stream(spec).unread_chunks()] == [("a", 700)]


@given(specs(stages=2))
@settings(max_examples=30, deadline=None)
def test_unread_tokens_are_the_windows_no_position_named(spec):
    assume(len(spec.stages) == 2 and spec.stages[0].sequence_length != spec.stages[1].sequence_length)
    stream, (of, epoch, token) = Stream(spec), located(spec)[0]
    T, found = spec.stages[0].sequence_length, {u.source: u.tokens for u in stream.unread_chunks()}
    for k, (source, shape) in enumerate(zip(spec.sources, stream.shapes)):
        chunk = np.minimum(token[of == k] // source.chunk_tokens, shape.full_chunks)
        if not chunk.size:
            assert source.name not in found
            continue
        read = ((chunk == chunk[-1]) & (epoch[of == k] == epoch[of == k][-1])).sum()
        whole = shape.windows(T).tail if chunk[-1] == shape.full_chunks else shape.windows(T).per_chunk
        assert found.get(source.name, 0) == (whole - read) * T


def test_coverage_counts_tokens_epochs_and_slots():
    spec = small_spec([("a", 10_001, 1_000, 2.0), ("b", 5_001, 1_000)], [(100, 100, (32_768, 32_768))])
    a, b = source_coverage(spec)
    taken = counts(100, (32_768, 32_768), spec.data_seed)
    assert (a.target_tokens, b.target_tokens) == (taken[0] * 100, taken[1] * 100)
    assert (a.slots, a.final_slot, a.epochs, a.allowed_slots, a.within_cap) == (10, 5, 0.5, 20, True)
    assert (b.slots, b.final_slot, b.epochs, b.allowed_slots, b.within_cap) == (5, 5, 1.0, None, True)


def test_cap_in_slots_is_exact_for_decimals():
    assert SourceShape("", 10_001, 100).allowed_slots(2.3) == 230  # in floats 2.3 * 100 is 229.99...


def test_D11_beyond_the_cap_at_run_time_is_an_error_and_without_cap_the_next_epoch():
    stages, skip = [(100, 100, (65_536,))], (Skip(0, 50, 1),)
    capped = small_spec([("a", 10_001, 1_000, 1.0)], stages)
    assert Stream(capped).locate(0, np.arange(100)).epoch.max() == 0
    stream = Stream(capped, skip)
    stream.locate(0, np.arange(99))
    with pytest.raises(RunError, match=r"source a: sequence 99 .* beyond its cap"):
        stream.locate(0, np.array([99]))
    assert Stream(small_spec([("a", 10_001, 1_000)], stages), skip).locate(0, np.array([99])).epoch[0] == 1


def test_sequence_longer_than_a_chunk_or_a_source_is_refused():
    with pytest.raises(ConfigError, match="sequence length 128 exceeds the chunks of source a"):
        Stream(small_spec([("a", 10_001, 64)], [(1, 128, (65_536,))]))
    with pytest.raises(ConfigError, match="source a has no whole window of 128"):
        Stream(small_spec([("a", 128, 1_024)], [(1, 128, (65_536,))]))
    Stream(small_spec([("a", 129, 1_024)], [(1, 128, (65_536,))]))


def test_skip_outside_the_run_is_refused():
    with pytest.raises(RunError, match="does not fit"):
        Stream(small_spec(SOURCES, STAGES), (Skip(9, 0, 1),))


def test_stream_digest_covers_what_decides_the_tokens():
    spec = small_spec(SOURCES, STAGES)
    base = stream_digests(spec)
    assert len(set(base)) == len(base) == len(STAGES)
    other_content = dataclasses.replace(spec.sources[0], digest="sha256:other")
    other_tokenizer = dataclasses.replace(spec.tokenizer, digest="sha256:other")
    for changed in (
        dataclasses.replace(spec, data_seed=8),
        dataclasses.replace(spec, sources=(other_content, *spec.sources[1:])),
        dataclasses.replace(spec, tokenizer=other_tokenizer),
    ):
        assert not set(base) & set(stream_digests(changed))
    renamed = dataclasses.replace(spec, name="other", seed=99, manifest_digest="sha256:other")
    assert stream_digests(renamed) == base


def test_literal_positions():
    """Change knowingly: another output is another data order for every run."""
    found = Stream(small_spec(SOURCES, STAGES)).locate(3, np.arange(495, 500))
    assert found.source.tolist() == [1, 0, 1, 0, 1]
    assert found.epoch.tolist() == [2, 0, 2, 0, 2]
    assert found.token.tolist() == [22400, 57984, 22016, 60288, 21504]
