"""CONTRACTS section 1, sentence by sentence: what the stream promises, held against the plainest reading of it.

counters    M_s, b, overshoot      test_a_stage_has_whole_batches_up_to_its_tokens, tests of schedules
            n = u + skips          test_the_stream_index_is_what_skips_leave
            M' = M + skips         test_a_skip_does_not_shorten_its_stage
mixture     tree, L(n), rho        test_the_tree_deals_by_the_integer_line, test_mixture
            quanta ~ w / tau       test_quanta_are_weights_over_target_shares, test_resolve
            error of any 10,000    test_D14_any_ten_thousand_sequences_of_any_mixture
            no length in it        test_D8_...
positions   chunks, tail, epochs   test_positions_follow_the_formula, test_D3_..., test_the_tail_comes_last_...
            entry state, T         test_D7_another_length_begins_at_the_first_untouched_chunk
            one unread chunk       test_D7_at_most_one_chunk_per_source_and_change_is_left
            read amplification     test_one_chunk_per_source_is_open_at_a_time
Feistel     bijection, statistics  test_feistel; keys: test_positions_are_the_same_in_every_process
caps        slots                  test_freeze, test_mixture_caps, test_D11_...
quarantine                         test_quarantine
ranks       keyed permutation      test_D1_D5_..., test_ranks_are_not_tied_to_sources
packing     document ends          test_token_reader
            best-fit bins          test_packing, test_packed_stream
state       u and records          test_D1_D2_D4_..., test_nothing_but_position_and_records_matters
"""

from __future__ import annotations

import dataclasses
import os
import random
import subprocess
import sys
from fractions import Fraction

import numpy as np
import pytest
from data_helpers import small_spec, write_token_data
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stream_positions import located, skip_records, specs

from headway.base.errors import RunError
from headway.data.feistel import derive_key, permute
from headway.data.mixture import assign, counts
from headway.data.reader import TokenReader
from headway.data.shares import worst_share_error
from headway.data.stream import Positions, Quarantine, Skip, Stream
from headway.recipe.mixture_rules import mixture_quanta
from headway.recipe.schedules import Schedule, whole_batches
from headway.recipe.spec import QUANTA, BatchPhase, Spec

WORLDS = (1, 2, 3, 4, 8, 16)


# --- counters -----------------------------------------------------------------------------------------------------------


@given(
    st.integers(1, 10**7), st.sampled_from([16, 64, 1_000]), st.lists(st.integers(1, 10**5), min_size=1, max_size=3), st.data()
)
def test_a_stage_has_whole_batches_up_to_its_tokens(tokens, length, batches, data):
    starts = [0, *sorted(data.draw(st.sets(st.integers(1, 10**7), min_size=len(batches) - 1, max_size=len(batches) - 1)))]
    sequences, phases = whole_batches(tokens, length, list(zip(starts, batches)))
    ends = [*(phase.first_sequence for phase in phases[1:]), sequences]
    for phase, end in zip(phases, ends):
        assert (end - phase.first_sequence) % phase.batch_sequences == 0, "no batch is cut"
    assert {p.batch_sequences for p in phases} <= {max(1, round(b / length)) for b in batches}
    last = next(p for p in reversed(phases) if p.first_sequence < sequences)
    assert tokens <= sequences * length < tokens + last.batch_sequences * length, "overshoot: less than a batch"


def plain_stream_index(u: int, skips: tuple[Skip, ...], stage: int) -> int:
    """n = u + the counts of all skip records with first <= n so far, applied in order."""
    n = u
    for skip in sorted((s for s in skips if s.stage == stage), key=lambda s: (s.first, s.count)):
        if skip.first <= n:
            n += skip.count
    return n


@given(specs(), st.data())
@settings(max_examples=40, deadline=None)
def test_the_stream_index_is_what_skips_leave(spec, data):
    skips = data.draw(skip_records(spec))
    stream = Stream(spec, skips)
    for number, stage in enumerate(spec.stages):
        u = np.arange(stage.sequences + 1)
        wanted = [plain_stream_index(int(one), skips, number) for one in u]
        assert stream.stream_index(number, u).tolist() == wanted
        left_out = {n for first, end in stream.gaps(number) for n in range(first, end)}
        assert not left_out & set(wanted)
        assert set(range(wanted[-1] + 1)) - left_out == set(wanted), "everything else is trained"
        for one in u.tolist()[1:]:
            assert stream.reached(number, one) == wanted[one - 1] + 1


@given(specs(), st.data())
@settings(max_examples=30, deadline=None)
def test_a_skip_does_not_shorten_its_stage(spec, data):
    skips = data.draw(skip_records(spec))
    stream = Stream(spec, skips)
    for number, stage in enumerate(spec.stages):
        assert stream.used(number) == stage.sequences + sum(s.count for s in skips if s.stage == number)
        assert stream.locate(number, np.arange(stage.sequences)).token.size == stage.sequences
        assert Stream(spec).spec.stages[number].phases == stage.phases


# --- the mixture --------------------------------------------------------------------------------------------------------


def plain_source(n: int, quanta: tuple[int, ...], seed: int) -> tuple[int, int]:
    """One item through the tree, by the words of the contract."""
    low, high = 0, len(quanta)
    while high - low > 1:
        middle, total = (low + high) // 2, sum(quanta[low:high])
        if total == 0:
            raise AssertionError("an item at a node without weight")
        left, rho = sum(quanta[low:middle]), int(derive_key(seed, "mix", low, high)[0]) % total
        line = lambda m: (m * left + rho) // total  # noqa: B023, E731
        low, high, n = (low, middle, line(n)) if line(n + 1) > line(n) else (middle, high, n - line(n))
    return low, n


@given(st.lists(st.integers(0, 40), min_size=1, max_size=12).filter(any), st.integers(0, 2**40), st.integers(0, 99))
@settings(max_examples=80, deadline=None)
def test_the_tree_deals_by_the_integer_line(weights, start, seed):
    quanta = mixture_quanta(weights, [1.0] * len(weights))
    assert sum(quanta) == QUANTA
    n = np.arange(start, start + 20)
    found = assign(n, quanta, seed)
    assert list(zip(found.source.tolist(), found.count.tolist())) == [plain_source(int(one), quanta, seed) for one in n]
    taken = np.subtract(counts(start + 20, quanta, seed), counts(start, quanta, seed))
    assert taken.tolist() == np.bincount(found.source, minlength=len(quanta)).tolist()


@given(st.lists(st.tuples(st.integers(1, 1_000), st.sampled_from([1.0, 0.996, 0.5, 0.25])), min_size=1, max_size=8))
def test_quanta_are_weights_over_target_shares(pairs):
    """So that the shares of target tokens are the weights, whatever is padded or masked."""
    weights, shares = zip(*pairs)
    quanta = mixture_quanta(weights, shares)
    each = [Fraction(w) / Fraction(tau) for w, tau in pairs]
    for q, value in zip(quanta, each):
        assert abs(q - value * QUANTA / sum(each)) < 1 or q == 1


@given(st.lists(st.integers(0, 1_000), min_size=1, max_size=8).filter(any), st.integers(0, 9))
@settings(max_examples=60, deadline=None)
def test_D14_any_ten_thousand_sequences_of_any_mixture(weights, seed):
    """Eight sources are three nodes deep, each node is off by less than one sequence: at most 0.03 %, whatever the weights."""
    quanta = mixture_quanta(weights, [1.0] * len(weights))
    assert worst_share_error(quanta, seed, (1.0,) * len(quanta)) <= 0.0003


def test_D14_the_worst_error_is_found_by_one_period():
    """A mixture repeats itself every 65,536 sequences: no window further on is worse."""
    quanta = mixture_quanta(list(np.random.default_rng(2).dirichlet(np.ones(16))), [1.0] * 16)
    one = assign(np.arange(QUANTA), quanta, 5).source
    assert np.array_equal(assign(np.arange(7 * QUANTA, 8 * QUANTA), quanta, 5).source, one)
    source = assign(np.arange(3 * QUANTA), quanta, 5).source
    worst = 0.0
    for k, q in enumerate(quanta):
        running = np.concatenate([[0], np.cumsum(source == k)])
        worst = max(worst, np.abs((running[10_000:] - running[:-10_000]) / 10_000 - q / QUANTA).max())
    assert worst_share_error(quanta, 5, (1.0,) * 16) == pytest.approx(worst, abs=1e-12)
    assert worst <= 0.0003


# --- positions ----------------------------------------------------------------------------------------------------------


@dataclasses.dataclass
class PlainSource:
    """One source by the words of the contract, one ordinal at a time."""

    key: tuple
    tokens: int
    chunk: int

    @property
    def chunks(self) -> int:
        return (self.tokens - 1) // self.chunk

    @property
    def tail(self) -> int:
        return self.tokens - 1 - self.chunks * self.chunk

    def order(self, T: int) -> list[int]:
        """Windows of the chunk in each slot of an epoch; the tail last."""
        return [self.chunk // T] * self.chunks + ([self.tail // T] if self.tail else [])

    def walk(self, slot: int, T: int):
        """(epoch, first token, slot) of every window from chunk slot ``slot`` on, for ever."""
        slots, sizes = self.chunks + (self.tail > 0), self.order(T)
        assert sum(sizes)
        while True:
            epoch, place = divmod(slot, slots)
            chunk = place
            if place < self.chunks:
                chunk = int(permute(np.array([place]), self.chunks, derive_key("chunks", self.key, epoch))[0])
            for index in range(sizes[place]):
                window = index
                if sizes[place] > 1:
                    key = derive_key("win", self.key, epoch, chunk, T)
                    window = int(permute(np.array([index]), sizes[place], key)[0])
                yield epoch, chunk * self.chunk + window * T, slot
            slot += 1

    def untouched(self, slot: int, began: int, T: int) -> int:
        """The first slot that nothing touched, once ``slot`` was read by a walk that began at ``began``.

        A tail too short for a window of T is passed by with its epoch, but for the epoch in which the walk began: what the
        prototype does, and no position depends on which, other than that of a shorter length later on.
        """
        slots = self.chunks + (self.tail > 0)
        ends_epoch = not any(self.order(T)[slot % slots + 1 :])
        return (slot // slots + 1) * slots if ends_epoch and slot // slots > began // slots else slot + 1


def plain_walk(spec: Spec, skips: tuple[Skip, ...] = ()) -> list[list[tuple[int, int, int]]]:
    """Per stage: (source, epoch, token) of every trained index. State: where each source's walk stands."""
    walks: list = [None] * len(spec.sources)
    began = [0] * len(spec.sources)
    untouched, length, found = [0] * len(spec.sources), None, []
    for number, stage in enumerate(spec.stages):
        if stage.sequence_length != length:
            length = stage.sequence_length
            sources = [PlainSource((spec.data_seed, s.name), s.tokens, s.chunk_tokens) for s in spec.sources]
            walks = [source.walk(slot, length) for source, slot in zip(sources, untouched)]
            began = list(untouched)
        trained = {plain_stream_index(u, skips, number) for u in range(stage.sequences)}
        rows = []
        for n in range(stage.sequences + sum(s.count for s in skips if s.stage == number)):
            k, _ = plain_source(n, stage.quanta, spec.data_seed)
            epoch, token, slot = next(walks[k])
            untouched[k] = sources[k].untouched(slot, began[k], length)
            if n in trained:
                rows.append((k, epoch, token))
        found.append(rows)
    return found


@given(specs(), st.data())
@settings(max_examples=50, deadline=None)
def test_positions_follow_the_formula(spec, data):
    """D3, D6, D7 at once: walking every source chunk by chunk gives what the arithmetic gives."""
    skips = data.draw(skip_records(spec))
    for found, wanted in zip(located(spec, skips), plain_walk(spec, skips)):
        assert list(zip(*found.tolist())) == wanted


@given(specs(stages=1))
@settings(max_examples=40, deadline=None)
def test_one_chunk_per_source_is_open_at_a_time(spec):
    """What bounds reads and makes a bounded cache possible: a chunk is read through before the next one begins."""
    (of, epoch, token), T = located(spec)[0], spec.stages[0].sequence_length
    for k, source in enumerate(spec.sources):
        own = list(zip(epoch[of == k].tolist(), (token[of == k] // source.chunk_tokens).tolist()))
        visits = [visit for at, visit in enumerate(own) if at == 0 or own[at - 1] != visit]
        assert len(visits) == len(set(visits)), "no chunk is begun twice in an epoch"
        chunks = (source.tokens - 1) // source.chunk_tokens
        for one in {e for e, _ in visits[:-1]}:
            order = [c for e, c in visits if e == one]
            assert chunks not in order[:-1], "the tail comes last"
            if one + 1 in {e for e, _ in visits} and (source.tokens - 1 - chunks * source.chunk_tokens) >= T:
                assert order[-1] == chunks


@given(specs(stages=3), st.data())
@settings(max_examples=40, deadline=None)
def test_D7_another_length_begins_at_the_first_untouched_chunk(spec, data):
    """And what is left behind is at most one chunk per source and change, told by ``unread_chunks``."""
    stream, found = Stream(spec), located(spec)
    for number in range(1, len(spec.stages)):
        unread = [chunk.source for chunk in stream.unread_chunks() if chunk.stage == number]
        assert len(unread) == len(set(unread)), "at most one per source"
        if spec.stages[number].sequence_length == spec.stages[number - 1].sequence_length:
            assert not unread
            continue
        for k, source in enumerate(spec.sources):
            before = {
                (int(e), int(t) // source.chunk_tokens)
                for of, epoch, token in found[:number]
                for e, t in zip(epoch[of == k], token[of == k])
            }
            of, epoch, token = found[number]
            after = {(int(e), int(t) // source.chunk_tokens) for e, t in zip(epoch[of == k], token[of == k])}
            assert not before & after, "no chunk is read at two lengths in one epoch"


def test_positions_are_the_same_in_every_process():
    """Keys come from blake2b: Python's own hash differs from process to process."""
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "import numpy as np\nfrom data_helpers import small_spec\nfrom headway.data.stream import Stream\n"
        "sources, stages = [('a', 9001, 256), ('b', 5003, 128)], [(200, 32, (40000, 25536)), (90, 64, (9, 65527))]\n"
        "s = Stream(small_spec(sources, stages))\n"
        "print([s.locate(i, np.arange(m)).token.tolist() for i, m in ((0, 200), (1, 90))])\n"
        "print(s.rank_sequences(0, 32, 16, 1, 3).tolist())"
    )
    said = [
        subprocess.run(
            [sys.executable, "-c", code, *sys.path], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        for seed in ("1", "2")
    ]
    assert said[0].returncode == 0, said[0].stderr
    assert said[0].stdout == said[1].stdout != ""


def test_nothing_but_position_and_records_matters():
    """No generator's state, no order of questions, no other stream beside it."""
    spec = small_spec([("a", 9_001, 256), ("b", 5_003, 128)], [(300, 32, (40_000, 25_536)), (90, 64, (9_000, 56_536))])
    whole = located(spec)
    random.seed(1)
    np.random.seed(1)
    stream, order = Stream(spec), [(s, u) for s in (1, 0) for u in range(spec.stages[s].sequences)]
    random.Random(0).shuffle(order)
    for stage, u in order:
        np.random.random(3)
        one = stream.locate(stage, np.array([u]))
        assert [int(one.source[0]), int(one.epoch[0]), int(one.token[0])] == whole[stage][:, u].tolist()


# --- a run: worlds, ramps, stages, resumes, skips, quarantines ----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Records:
    skips: tuple[Skip, ...] = ()
    quarantines: tuple[Quarantine, ...] = ()

    def stream(self, spec: Spec) -> Stream:
        return Stream(spec, self.skips, self.quarantines)


@dataclasses.dataclass(frozen=True)
class Attempt:
    """Steps [first, end) under a world of so many replicas; records are those in force."""

    first: int
    end: int
    world: int
    records: Records


def trained(spec: Spec, attempts: list[Attempt]) -> list[tuple[int, ...]]:
    """(step, u, source, epoch, token) in the order of steps, of the history that counts: later attempts replace what they redo.

    Every replica asks for its own share; together they must make the batch, whoever they are.
    """
    history: dict[int, list[tuple]] = {}
    for attempt in attempts:
        stream, schedule = attempt.records.stream(spec), Schedule(spec)
        for step in range(attempt.first, attempt.end):
            place = schedule.place(step)
            rows = []
            for rank in range(attempt.world):
                share = stream.share(place.stage, place.first_sequence, place.batch_sequences, rank, attempt.world)
                own = share.u[: len(share.u) - share.padded]
                found = stream.locate(place.stage, own)
                rows += zip(own.tolist(), found.source.tolist(), found.epoch.tolist(), found.token.tolist())
            assert sorted(row[0] for row in rows) == list(range(place.first_sequence, place.end_sequence))
            history[step] = sorted(rows)
    return [(step, *row) for step in sorted(history) for row in history[step]]


@st.composite
def ramped(draw) -> Spec:
    """Stages of several lengths, each with a ramp; batches need not divide by any world."""
    spec = draw(specs(stages=3))
    stages = []
    for stage in spec.stages:
        first, second = draw(st.integers(1, 20)), draw(st.integers(1, 20))
        steps = draw(st.integers(1, 5)), draw(st.integers(0, 5))
        phases = [BatchPhase(0, first)] + ([BatchPhase(first * steps[0], second)] if steps[1] else [])
        sequences = first * steps[0] + second * steps[1]
        stages.append(
            dataclasses.replace(stage, sequences=sequences, phases=tuple(phases), tokens=sequences * stage.sequence_length)
        )
    return dataclasses.replace(spec, stages=tuple(stages))


@st.composite
def histories(draw) -> tuple[Spec, list[Attempt]]:
    """Three attempts: two resumes in a row, each going back or not, each with another world, and new records from there on."""
    spec = draw(ramped())
    total, schedule, attempts, records, at = Schedule(spec).total_steps, Schedule(spec), [], Records(), 0
    for number in range(3):
        end = total if number == 2 else draw(st.integers(at, total))
        attempts.append(Attempt(at, end, draw(st.sampled_from(WORLDS)), records))
        at = draw(st.integers(at, end))
        place = schedule.place(at)
        stage = min(place.stage, len(spec.stages) - 1)
        first = int(records.stream(spec).stream_index(stage, np.array([place.first_sequence]))[0])
        if draw(st.booleans()):
            records = dataclasses.replace(records, skips=(*records.skips, Skip(stage, first, draw(st.integers(0, 30)))))
        if draw(st.booleans()):
            source = draw(st.sampled_from(spec.sources))
            tokens = draw(st.integers(1, max(1, source.tokens // 50)))
            one = Quarantine(source.name, draw(st.integers(0, source.tokens - tokens)), tokens, stage, first)
            records = dataclasses.replace(records, quarantines=(*records.quarantines, one))
    return spec, attempts


@given(histories())
@settings(max_examples=60, deadline=None)
def test_D1_D2_D4_D5_no_world_resume_ramp_or_record_moves_a_position(drawn):
    """The multiset and the order of (position -> tokens) are those of one process that nothing interrupted."""
    spec, attempts = drawn
    alone = [Attempt(0, Schedule(spec).total_steps, 1, attempts[-1].records)]
    try:
        wanted = trained(spec, alone)
    except RunError:  # a whole source may be damaged
        return
    assert trained(spec, attempts) == wanted


@pytest.mark.parametrize("world", WORLDS)
def test_a_boundary_inside_a_chunk_a_ramp_and_a_restart_at_once(world):
    """The stage ends in the middle of a chunk, at another length; its ramp has just risen; the run restarts in another world."""
    spec = small_spec([("a", 4_097, 512), ("b", 2_049, 256)], [(0, 32, (40_000, 25_536)), (0, 64, (20_000, 45_536))])
    phases = ((BatchPhase(0, 3), BatchPhase(9, 7)), (BatchPhase(0, 5), BatchPhase(10, 11)))
    sequences = (9 + 7 * 4, 10 + 11 * 2)
    stages = [dataclasses.replace(s, phases=p, sequences=m) for s, p, m in zip(spec.stages, phases, sequences)]
    spec = dataclasses.replace(spec, stages=tuple(stages))
    assert Stream(spec).unread_chunks(), "the boundary does lie inside a chunk"
    schedule = Schedule(spec)
    boundary = schedule.first_step(1)
    wanted = trained(spec, [Attempt(0, schedule.total_steps, 1, Records())])
    for stop in (boundary - 1, boundary, boundary + 1, boundary + 2):
        attempts = [
            Attempt(0, stop + 1, world, Records()),
            Attempt(stop, schedule.total_steps, WORLDS[-1 - WORLDS.index(world)], Records()),
        ]
        assert trained(spec, attempts) == wanted


def test_the_tokens_themselves_are_those_of_the_positions(tmp_path):
    """Through real shards, two resumes, three worlds and a skip: token by token."""
    numbers = np.random.default_rng(3)
    documents = [[[0, *numbers.integers(1, 200, 40).tolist()] for _ in range(count)] for count in (60, 25)]
    manifest = write_token_data(tmp_path, documents)
    spec = small_spec(
        [(s.name, s.tokens, s.chunk_tokens) for s in manifest.sources], [(60, 16, (40_000, 25_536)), (30, 32, (9, 65_527))]
    )
    spec = dataclasses.replace(spec, stages=tuple(dataclasses.replace(s, phases=(BatchPhase(0, 6),)) for s in spec.stages))
    records = Records(skips=(Skip(0, 24, 5),))
    history = trained(spec, [Attempt(0, 7, 4, Records()), Attempt(4, 12, 3, records), Attempt(9, 15, 8, records)])
    flat = [[token for document in source for token in document] for source in documents]
    reader, seen = TokenReader(tmp_path, manifest), 0
    for step, _, source, epoch, token in history:
        T = spec.stages[Schedule(spec).place(step).stage].sequence_length
        batch = reader.window_batch(Positions(np.array([source]), np.array([epoch]), np.array([token])), T)
        assert batch.tokens_BT[0].tolist() == flat[source][token : token + T]
        assert batch.targets_BT[0].tolist() == flat[source][token + 1 : token + T + 1]
        seen += 1
    assert seen == 90
