"""What follows from a spike, decided from records alone: where to go back to, what is skipped, how slow, and when to ask."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rundir"))

from tiny_run import tiny_spec

from headway.data.stream import Skip, Stream
from headway.recipe.schedules import Schedule
from headway.recipe.spec import BatchPhase, RateSpec, Spec
from headway.recipe.spike_rules import OnSpike, SpikeRules
from headway.rundir.segments import ROLLED_BACK, Segment, is_admissible
from headway.supervise.spikes import before, rates_after, recurrence_of, skips_after


def spec_of(back: int = 5, skip: int = 9) -> Spec:
    """Two stages of 30 and 20 steps, the first with a ramp from 2 to 4 sequences."""
    spec = tiny_spec(30)
    first = dataclasses.replace(spec.stages[0], sequences=100, phases=(BatchPhase(0, 2), BatchPhase(20, 4)))
    second = dataclasses.replace(first, name="second", sequences=60, phases=(BatchPhase(0, 3),))
    spikes = {"policy": "roll_back", "rewind_steps": back, "skip_batches": skip}
    return dataclasses.replace(spec, stages=(first, second), interventions={"spikes": spikes})


def segment(number: int, restored: int, skips=()) -> Segment:
    parent = number - 1 or None
    return Segment(number, parent, restored, f"g{restored}" if restored else None, "", "", 1, {}, skips=tuple(skips))


def skips_of(records) -> tuple[Skip, ...]:
    return tuple(Skip(**record) for record in records)


# --- which state


@pytest.mark.parametrize("step", range(0, 30))
def test_nothing_later_than_the_step_is_admissible(step):
    """In every segment, also in one that went back itself."""
    chain = [segment(1, 0), segment(2, 10), segment(3, 20)]
    cut = before(chain, step)
    for number, last in ((1, 10), (2, 20), (3, 30)):
        for saved in range(1, 31):
            was = is_admissible(chain, number, saved)
            assert is_admissible(cut, number, saved) == (was and saved <= step), (number, saved, last)


# --- which batches


def test_the_skip_begins_a_third_before_the_spike_and_takes_so_many_batches():
    spec = spec_of(back=5, skip=9)
    schedule = Schedule(spec)
    (record,) = skips_after(spec, segment(1, 0), 20, 10)
    assert record["first"] == schedule.place(16).first_sequence, "three batches before that of step 20"
    assert record["count"] == 4 * (30 - 16 - 5)


@pytest.mark.parametrize(
    ("step", "restored", "begin"),
    [(20, 18, 18), (32, 25, 30), (40, 35, 36)],
    ids=["not before the restored step", "not before the spike's stage", "in the second stage"],
)
def test_where_the_skip_begins(step, restored, begin):
    spec = spec_of(back=5, skip=9)
    place = Schedule(spec).place(begin)
    (record,) = skips_after(spec, segment(1, 0), step, restored)
    assert (record["stage"], record["first"]) == (place.stage, place.first_sequence)


def test_a_skip_at_the_end_of_a_stage_is_as_long_as_any():
    """The stage goes on behind it: a skip shortens none."""
    spec = spec_of(skip=9)
    (record,) = skips_after(spec, segment(1, 0), 30, 10)
    assert record["count"] == 9 * 4


@settings(deadline=None)
@given(
    spikes=st.lists(st.tuples(st.integers(6, 50), st.integers(0, 12)), min_size=1, max_size=4),
    skip=st.integers(1, 12),
)
def test_skips_equal_deletion_whatever_came_before(spikes, skip):
    """Each leaves out the next ``skip`` batches of the stream as it stood, and moves nothing before them."""
    spec = spec_of(skip=skip)
    schedule, records = Schedule(spec), ()
    for step, distance in spikes:
        newest, restored = segment(1, 0, records), max(0, step - 1 - distance)
        old, records = Stream(spec, skips_of(records)), skips_after(spec, newest, step, restored)
        new = Stream(spec, skips_of(records))
        place = schedule.place(step - 1)
        begin = max(step - 1 - SpikeRules.of(spec).margin_batches, restored, schedule.first_step(place.stage))
        u0, stage = schedule.place(begin).first_sequence, place.stage
        stood = old.stream_index(stage, np.arange(1_000))
        batches, u1, at = skip, u0, begin
        while batches:
            at_end = at >= schedule.first_step(stage) + schedule.stage_steps(stage)
            u1 += spec.stages[stage].phases[-1].batch_sequences if at_end else schedule.place(at).batch_sequences
            batches, at = batches - 1, at + 1
        expected = np.concatenate([stood[:u0], stood[u1:]])
        found = new.stream_index(stage, np.arange(expected.size))
        assert found.tolist() == expected.tolist()
        assert place.first_sequence < u0 or int(old.stream_index(stage, np.array([place.first_sequence]))[0]) not in found
        firsts = [(one["stage"], one["first"]) for one in records]
        assert firsts == sorted(firsts)


def test_nothing_is_skipped_in_other_stages():
    spec = spec_of()
    earlier = ({"stage": 0, "first": 8, "count": 4},)
    assert skips_after(spec, segment(2, 5, earlier), 40, 35)[0] == earlier[0]


# --- how slow


def test_the_rate_is_lowered_from_the_restored_step_by_what_was_in_force_at_the_spike():
    first = rates_after((), 120, 100, 0.8)
    assert first == ({"first": 100, "factor": 0.8},)
    assert rates_after(first, 150, 130, 0.5) == ({"first": 100, "factor": 0.8}, {"first": 130, "factor": 0.4})
    assert rates_after(first, 110, 90, 0.5) == ({"first": 90, "factor": 0.4},), "never faster behind it"


def test_the_schedule_honours_it():
    spec = dataclasses.replace(spec_of(), stages=(dataclasses.replace(spec_of().stages[0], rate=RateSpec(64, "linear", 1, 0)),))
    plain, slow = Schedule(spec), Schedule(spec, ({"first": 10, "factor": 0.5}, {"first": 20, "factor": 0.25}))
    for step in range(30):
        factor = 1.0 if step < 10 else 0.5 if step < 20 else 0.25
        assert slow.rate(step) == plain.rate(step) * factor
        middle = (plain.tokens_before(step) + plain.tokens_before(step + 1)) / 2
        assert slow.rate_at_tokens(middle) == plain.rate_at_tokens(middle) * factor


# --- when to ask


def test_a_series_of_spikes_is_counted_and_a_new_one_begins_later():
    rules = SpikeRules(policy=OnSpike.ROLL_BACK, rewind_steps=100, skip_batches=300)
    assert recurrence_of(rules, (), {"step": 500}) == 0
    spikes = [{"action": "accepted", "step": 1}, {"action": ROLLED_BACK, "step": 500, "restored": 400, "recurrence": 0}]
    for step, recurrence in ((400, 0), (401, 1), (500, 1), (900, 1), (901, 0)):
        assert recurrence_of(rules, spikes, {"step": step}) == recurrence, step
    spikes.append({"action": ROLLED_BACK, "step": 700, "restored": 600, "recurrence": 1})
    assert [recurrence_of(rules, spikes, {"step": step}) for step in (601, 1_100, 1_101)] == [2, 2, 0]


def test_the_margin_is_that_of_the_field():
    assert SpikeRules().margin_batches == 100
    assert SpikeRules(skip_batches=1).margin_batches == 0, "the batch of the spike itself"
    assert SpikeRules(rewind_steps=10).margin_batches == 10
