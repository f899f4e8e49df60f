"""Transitions of a mixture: nothing before them moves, every source goes on where it was, nothing comes twice (D6)."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from data_helpers import small_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stream_positions import skip_records, specs

from headway.base.errors import ConfigError, RunError
from headway.data.stream import Quarantine, Skip, Stream, Transition
from headway.data.transition import MixtureChange, check_change, consumed, with_change
from headway.recipe.mixture_rules import mixture_quanta
from headway.recipe.schedules import Schedule
from headway.recipe.spec import QUANTA, BatchPhase, Spec

SOURCES = [("a", 9_001, 256), ("b", 5_003, 128), ("c", 3_001, 64)]
STAGES = [(300, 16, (40_000, 20_000, 5_536)), (120, 32, (9_000, 50_536, 6_000))]


@st.composite
def changes(draw, spec: Spec) -> tuple[Transition, ...]:
    found, count = [], len(spec.sources)
    for _ in range(draw(st.integers(1, 3))):
        weights = draw(st.lists(st.integers(0, 8), min_size=count, max_size=count).filter(any))
        stage = draw(st.integers(0, len(spec.stages) - 1))
        found.append(Transition(stage, draw(st.integers(0, 250)), mixture_quanta(weights, [1.0] * count)))
    return tuple(found)


def located(stream: Stream) -> list[np.ndarray]:
    found = [stream.locate(s, np.arange(stage.sequences)) for s, stage in enumerate(stream.spec.stages)]
    return [np.stack([p.source, p.epoch, p.token]) for p in found]


def by_source(rows: list[np.ndarray], stage: int, k: int) -> list[tuple[int, int]]:
    """(epoch, token) of a source's sequences in a stage, in their order."""
    of, epoch, token = rows[stage]
    return list(zip(epoch[of == k].tolist(), token[of == k].tolist()))


@given(specs(stages=2), st.data())
@settings(max_examples=40, deadline=None)
def test_D6_nothing_before_a_transition_moves(spec, data):
    skips = data.draw(skip_records(spec))
    transitions = data.draw(changes(spec))
    one, plain = Stream(spec, skips, (), transitions), Stream(spec, skips)
    for number, stage in enumerate(spec.stages):
        first = min((t.first for t in transitions if (t.stage, 0) <= (number, 0)), default=10**9)
        if any(t.stage < number for t in transitions):
            continue  # the source's own position may differ from here on
        before = plain.stream_index(number, np.arange(stage.sequences)) < first
        for a, b in zip(located(one)[number], located(plain)[number]):
            assert np.array_equal(a[before], b[before])


@given(specs(stages=1), st.data())
@settings(max_examples=40, deadline=None)
def test_D6_every_source_goes_on_where_it_was(spec, data):
    """A source's j-th sequence of a stage is the same whatever the mixture: only how soon it is due changes."""
    rows = located(Stream(spec, (), (), data.draw(changes(spec))))
    for k in range(len(spec.sources)):
        alone = tuple(QUANTA if j == k else 0 for j in range(len(spec.sources)))
        only = dataclasses.replace(spec, stages=(dataclasses.replace(spec.stages[0], quanta=alone),))
        own = by_source(rows, 0, k)
        assert own == by_source(located(Stream(only)), 0, k)[: len(own)]


@given(specs(stages=3), st.data())
@settings(max_examples=40, deadline=None)
def test_D6_no_token_is_a_target_twice_in_an_epoch_across_transitions(spec, data):
    rows = located(Stream(spec, data.draw(skip_records(spec)), (), data.draw(changes(spec))))
    for k, source in enumerate(spec.sources):
        seen: dict[int, np.ndarray] = {}
        for stage, found in zip(spec.stages, range(len(rows))):
            for epoch, token in by_source(rows, found, k):
                targets = seen.setdefault(epoch, np.zeros(source.tokens, np.int8))
                targets[token + 1 : token + stage.sequence_length + 1] += 1
        assert all(targets.max() <= 1 for targets in seen.values())


@given(specs(stages=2), st.data(), st.integers(1, 200))
@settings(max_examples=30, deadline=None)
def test_D8_lengthening_a_stage_with_transitions_changes_nothing_earlier(spec, data, more):
    transitions = data.draw(changes(spec))
    longer = dataclasses.replace(spec.stages[-1], sequences=spec.stages[-1].sequences + more)
    other = dataclasses.replace(spec, stages=(*spec.stages[:-1], longer))
    for a, b in zip(located(Stream(spec, (), (), transitions)), located(Stream(other, (), (), transitions))):
        assert np.array_equal(a, b[:, : a.shape[1]])


@given(specs(stages=1), st.data(), st.integers(0, 150), st.integers(0, 60))
@settings(max_examples=30, deadline=None)
def test_a_skip_equals_deletion_under_transitions_too(spec, data, first, count):
    transitions = data.draw(changes(spec))
    longer = dataclasses.replace(spec.stages[0], sequences=spec.stages[0].sequences + count)
    whole = located(Stream(dataclasses.replace(spec, stages=(longer,)), (), (), transitions))[0]
    deleted = np.delete(whole, np.s_[first : first + count], axis=1)[:, : spec.stages[0].sequences]
    assert np.array_equal(located(Stream(spec, (Skip(0, first, count),), (), transitions))[0], deleted)


@given(specs(stages=2), st.data())
@settings(max_examples=30, deadline=None)
def test_a_place_is_the_same_whoever_asks_for_it(spec, data):
    stream = Stream(spec, (Skip(0, 7, 5),), (), data.draw(changes(spec)))
    for number, stage in enumerate(spec.stages):
        some = np.array(data.draw(st.lists(st.integers(0, stage.sequences - 1), min_size=1, max_size=8)))
        one = stream.locate(number, some)
        assert np.array_equal(np.stack([one.source, one.epoch, one.token]), located(stream)[number][:, some])


def test_after_a_transition_ten_thousand_sequences_have_the_new_shares():
    spec = small_spec([("a", 10**9, 2**20), ("b", 10**9, 2**20)], [(40_000, 512, (50_000, 15_536))])
    source = Stream(spec, (), (), (Transition(0, 12_345, (20_000, 45_536)),)).locate(0, np.arange(40_000)).source
    for first, share in ((0, 50_000), (2_345, 50_000), (12_345, 20_000), (25_000, 20_000)):
        assert abs((source[first : first + 10_000] == 0).mean() - share / QUANTA) <= 0.0003


def test_the_later_record_at_one_place_holds():
    spec = small_spec(SOURCES, STAGES)
    a, b = Transition(0, 50, (QUANTA, 0, 0)), Transition(0, 50, (0, QUANTA, 0))
    assert set(located(Stream(spec, (), (), (a, b)))[0][0][50:]) == {1}
    assert set(located(Stream(spec, (), (), (b, a)))[0][0][50:]) == {0}


@pytest.mark.parametrize("quanta", [(QUANTA,), (QUANTA, 1, 0), (QUANTA, -1, 1)])
def test_records_that_do_not_fit_are_refused(quanta):
    with pytest.raises(RunError, match="does not fit the run"):
        Stream(small_spec(SOURCES, STAGES), (), (), (Transition(0, 0, quanta),))


# --- asking for one -----------------------------------------------------------------------------------------------------


def adaptive(caps: dict[int, float] | None = None) -> Spec:
    spec = small_spec(SOURCES, STAGES)
    stages = [dataclasses.replace(s, phases=(BatchPhase(0, b), BatchPhase(60, 2 * b))) for s, b in zip(spec.stages, (10, 5))]
    sources = [dataclasses.replace(s, cap_epochs=(caps or {}).get(k)) for k, s in enumerate(spec.sources)]
    return dataclasses.replace(spec, stages=tuple(stages), sources=tuple(sources), interventions={"mixture": "adaptive"})


def change(**weights: float) -> MixtureChange:
    return MixtureChange(weights=weights, reason="b lags behind")


def test_a_change_begins_at_its_step_with_what_was_consumed():
    spec = adaptive()
    stream = Stream(spec, (Skip(0, 20, 7),), (Quarantine("a", 0, 10, 0, 0),))
    (record,) = with_change(stream, 8, change(a=1, b=3), "ada")
    assert Schedule(spec).place(8).first_sequence == 100
    assert (record.stage, record.first, record.quanta) == (0, 107, (16_384, 49_152, 0))
    assert (record.weights, record.reason, record.author) == ({"a": 1, "b": 3}, "b lags behind", "ada")
    read = stream.locate(0, np.arange(100)).source
    assert record.consumed == {name: int((read == k).sum()) * 16 for k, name in enumerate("abc")}
    after = Stream(spec, stream.skips, stream.quarantines, (record,))
    assert np.array_equal(after.locate(0, np.arange(100)).token, stream.locate(0, np.arange(100)).token)
    later = consumed(after, Schedule(spec).total_steps)
    assert sum(later.values()) == 300 * 16 + 120 * 32


def test_a_later_change_that_comes_earlier_replaces_what_was_to_come():
    spec = adaptive()
    first = with_change(Stream(spec), 12, change(a=1), "ada")
    both = with_change(Stream(spec, (), (), first), 8, change(b=1), "ada")
    assert [(t.first, t.weights) for t in both] == [(100, {"b": 1})]
    following = with_change(Stream(spec, (), (), first), 14, change(b=1), "ada")
    assert [t.first for t in following] == [180, 220]


def test_at_the_boundary_of_stages_the_next_one_changes():
    spec = adaptive()
    (record,) = with_change(Stream(spec), Schedule(spec).first_step(1), change(c=1), "ada")
    assert (record.stage, record.first) == (1, 0)


@pytest.mark.parametrize(
    ("spec", "asked", "said"),
    [
        (small_spec(SOURCES, STAGES), change(a=1), "this run's mixture is fixed"),
        (adaptive(), change(a=1, bb=1), "'bb' is no source of this run"),
        (adaptive(), change(a=0), "no source has a weight"),
        (adaptive(), change(a=-1.0, b=2), "the weight of a is -1"),
        (adaptive(), change(a=float("nan")), "the weight of a is nan"),
        (adaptive(), MixtureChange(weights={"a": 1.0}, reason=" "), "changes without a reason"),
        (adaptive({2: 1.0}), change(c=1), r"source c is read for 1\.\d+ epochs, its cap is 1"),
    ],
)
def test_what_cannot_be_is_refused_before_it_begins(spec, asked, said):
    with pytest.raises(ConfigError, match=said):
        with_change(Stream(spec), 3, asked, "ada")


def test_nothing_is_left_to_change_at_the_end():
    spec = adaptive()
    check_change(spec, change(a=1))
    with pytest.raises(ConfigError, match="nothing is left to train"):
        with_change(Stream(spec), Schedule(spec).total_steps, change(a=1), "ada")


def test_beyond_the_cap_by_a_transition_is_an_error_at_run_time_too():
    spec = small_spec([("a", 3_201, 64, 1.0), ("b", 90_001, 64)], [(400, 16, (10_000, 55_536))])
    stream = Stream(spec, (), (), (Transition(0, 10, (QUANTA, 0)),))
    with pytest.raises(RunError, match="transitions of the mixture used the rest of it"):
        stream.locate(0, np.arange(400))
