"""Quarantines: damaged tokens are never read, nothing else moves, and the place of a window does not depend on who asks when."""

from __future__ import annotations

import numpy as np
import pytest
from data_helpers import small_spec
from hypothesis import given, settings
from hypothesis import strategies as st
from test_stream_positions import specs

from headway.base.errors import RunError
from headway.data.stream import Quarantine, Skip, Stream


@st.composite
def records(draw, spec) -> tuple[Quarantine, ...]:
    """Of at most a third of a source each, so that something is left."""
    found = []
    for _ in range(draw(st.integers(1, 3))):
        source = draw(st.sampled_from(spec.sources))
        tokens = draw(st.integers(1, max(1, source.tokens // 8)))
        token = draw(st.integers(0, source.tokens - tokens))
        stage = draw(st.integers(0, len(spec.stages) - 1))
        found.append(Quarantine(source.name, token, tokens, stage, draw(st.integers(0, spec.stages[stage].sequences))))
    return tuple(found)


def reads(spec, stage: int, position: int, source: int, token: int, record: Quarantine) -> bool:
    """Whether the sequence at stream index ``position`` reads what ``record`` forbids."""
    in_force = (stage, position) >= (record.stage, record.first)
    length = spec.stages[stage].sequence_length
    touches = set(range(token, token + length + 1)) & set(range(record.token, record.token + record.tokens))
    return bool(in_force and spec.sources[source].name == record.source and touches)


@settings(max_examples=60, deadline=None)
@given(specs(), st.data())
def test_damaged_tokens_are_not_read_and_nothing_else_moves(spec, data):
    quarantines = data.draw(records(spec))
    plain, stream = Stream(spec), Stream(spec, (), quarantines)
    for number, stage in enumerate(spec.stages):
        u = np.arange(stage.sequences)
        try:
            found = stream.locate(number, u)
        except RunError:  # all of a source may be hit
            continue
        before, moved = plain.locate(number, u), 0
        for at in range(len(u)):
            place = (number, at, int(before.source[at]))
            was_bad = any(reads(spec, *place, int(before.token[at]), record) for record in quarantines)
            assert not any(reads(spec, *place, int(found.token[at]), record) for record in quarantines)
            assert (found.source[at], found.epoch[at]) == (before.source[at], before.epoch[at])
            assert (found.token[at] == before.token[at]) is not was_bad
            moved += was_bad
        assert stream.replaced(number, u) == moved


@settings(max_examples=30, deadline=None)
@given(specs(), st.data())
def test_a_place_does_not_depend_on_what_else_is_asked(spec, data):
    quarantines = data.draw(records(spec))
    skips = (Skip(0, 3, 2),)
    for number, stage in enumerate(spec.stages):
        u = np.arange(stage.sequences)
        try:
            whole = Stream(spec, skips, quarantines).locate(number, u).token
        except RunError:
            continue
        some = np.array(data.draw(st.lists(st.integers(0, stage.sequences - 1), min_size=1, max_size=8)))
        assert np.array_equal(Stream(spec, skips, quarantines).locate(number, some).token, whole[some])
        assert np.array_equal(Stream(spec, skips, quarantines[::-1]).locate(number, u).token, whole)


def test_what_came_before_the_record_is_history():
    spec = small_spec([("a", 4_001, 1_024)], [(200, 32, (65_536,))])
    stream = Stream(spec, (), (Quarantine("a", 0, 2_000, 0, 50),))
    u = np.arange(200)
    same = stream.locate(0, u).token == Stream(spec).locate(0, u).token
    assert same[:50].all()
    assert not same[50:].all()
    assert stream.replaced(0, u) == int((~same).sum())


def test_a_replacement_stays_in_its_chunk_while_that_has_a_healthy_window():
    spec = small_spec([("a", 4_001, 1_024)], [(120, 32, (65_536,))])
    u = np.arange(120)
    before, after = Stream(spec).locate(0, u).token, Stream(spec, (), (Quarantine("a", 1_100, 40, 0, 0),)).locate(0, u).token
    moved = before != after
    assert moved.any()
    assert (before[moved] // 1_024 == after[moved] // 1_024).mean() > 0.9, "but for the last places of the chunk"


def test_records_that_do_not_fit_are_refused():
    spec = small_spec([("a", 4_001, 1_024)], [(10, 32, (65_536,))])
    for record in (("b", 0, 1, 0, 0), ("a", 4_000, 2, 0, 0), ("a", 0, 1, 1, 0), ("a", 0, 0, 0, 0), ("a", 0, 1, 0, -1)):
        with pytest.raises(RunError, match="does not fit the run"):
            Stream(spec, (), (Quarantine(*record),))


def test_a_source_that_is_damaged_as_a_whole_is_an_error():
    spec = small_spec([("a", 4_001, 1_024)], [(10, 32, (65_536,))])
    with pytest.raises(RunError, match="every window of source"):
        Stream(spec, (), (Quarantine("a", 0, 4_001, 0, 0),)).locate(0, np.arange(10))
