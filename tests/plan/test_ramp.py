"""The schedule over tokens: ramp coupled to steps, warm-up in three units, cosine and WSD over the same batches."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scaling_cases import RECIPE, demo_facts, facts_of, named, stage_of, worked_spec

from headway.plan.laws.hyperparameters import critical_batch_tokens
from headway.plan.laws.scaling_sets import REFIT
from headway.plan.ramp import SHARES, ramp_table, schedule_table, step_at_tokens, warmup_quantities, with_cosine, with_wsd
from headway.recipe.schedules import Schedule
from headway.recipe.spec import RateSpec

COLUMNS = ("share", "before", "stage", "step", "rate", "batch", "seconds", "cosine", "wsd")


@pytest.fixture
def worked(tmp_path):
    return worked_spec(tmp_path)


def rows_of(table):
    return [dict(zip(COLUMNS, row, strict=True)) for row in table.rows]


def batches(spec) -> list[int]:
    """Tokens of every batch, run-length coded by stage and phase: (batch tokens, steps) with equal neighbours joined."""
    joined: list[list[int]] = []
    for stage in spec.stages:
        ends = [phase.first_sequence for phase in stage.phases[1:]] + [stage.sequences]
        for phase, end in zip(stage.phases, ends, strict=True):
            assert (end - phase.first_sequence) % phase.batch_sequences == 0
            size, steps = phase.batch_sequences * stage.sequence_length, (end - phase.first_sequence) // phase.batch_sequences
            if joined and joined[-1][0] == size:
                joined[-1][1] += steps
            else:
                joined.append([size, steps])
    return joined


# --- the exercise -----------------------------------------------------------------------------------------------------------


def test_steps_of_the_ramp(worked, reference):
    golden = json.loads((reference / "plan/golden_beacon.json").read_text())["ramp"]
    rows = ramp_table(facts_of(worked)).rows
    assert [row[3] for row in rows] == golden["steps"] == [62_500, 343_750, 750_000]
    assert sum(row[3] for row in rows) == golden["total_steps"] == Schedule(worked).total_steps == 1_156_250
    assert [[row[1], row[2], row[2] + row[4]] for row in rows] == golden["phases_tokens"]


def test_with_sequences_of_8192_batches_are_whole_and_the_steps_nearly_the_same(tmp_path):
    spec = worked_spec(tmp_path, recipe=RECIPE.replace("8000", "8192"))
    assert Schedule(spec).total_steps == pytest.approx(1_156_250, rel=1e-3)
    assert Schedule(spec).total_steps != 1_156_250


def test_schedule_table_of_the_worked_plan(worked):
    """By hand: rates at the middle of each step, cosine from 8e-5 to 8e-7 after 32 B tokens, WSD held to 90 %."""
    rows = rows_of(schedule_table(facts_of(worked)))
    assert [row["share"] for row in rows] == list(SHARES) == [0, 0.01, 0.1, 0.5, 0.9, 1]
    assert [row["batch"] for row in rows] == [4e6, 4e6, 8e6, 16e6, 16e6, 16e6]
    assert [row["seconds"] for row in rows] == [pytest.approx(s, rel=1e-3) for s in (1.481, 1.481, 2.962, 5.925, 5.925, 5.925)]
    assert rows[0]["rate"] == rows[0]["cosine"] == rows[0]["wsd"] == pytest.approx(8e-5 * 2e6 / 32e9)
    assert [row["wsd"] for row in rows[1:4]] == [8e-5] * 3
    x = (7.5e12 + 8e6 - 32e9) / (15e12 - 32e9)
    assert rows[3]["cosine"] == pytest.approx(8e-7 + (8e-5 - 8e-7) * (1 + math.cos(math.pi * x)) / 2)
    assert rows[4]["wsd"] == pytest.approx(8e-5, rel=1e-5)
    assert rows[5]["wsd"] == pytest.approx(8e-5 * 8e6 / 1.5e12)
    assert rows[5]["cosine"] == pytest.approx(8e-7, rel=1e-3)
    assert rows[5]["step"] == 1_156_250


def test_L8_the_recipes_own_column_is_the_trainers_schedule(worked):
    facts = demo_facts()
    schedule = Schedule(facts.spec)
    for row in rows_of(schedule_table(facts)):
        assert row["rate"] == schedule.rate(row["step"] - 1)
        assert row["before"] == schedule.tokens_before(row["step"] - 1)
        assert row["seconds"] is None  # nobody said how fast


def test_a_recipe_that_is_wsd_or_cosine_itself_finds_itself_in_the_column(worked):
    for other, column in ((with_cosine(worked), "cosine"), (with_wsd(worked), "wsd")):
        for row in rows_of(schedule_table(facts_of(other))):
            assert row["rate"] == pytest.approx(row[column], rel=1e-12)


# --- warm-up ------------------------------------------------------------------------------------------------------------------


def test_warmup_in_steps_tokens_and_hours(worked, reference):
    golden = json.loads((reference / "plan/golden_beacon.json").read_text())
    known = named(warmup_quantities(facts_of(worked)))
    under = golden["corrected"]["warmup_under_ramp"]
    assert known["warmup_steps"].value == golden["plan"]["warmup_steps"] == 8_000
    assert known["warmup_tokens"].value == under["tokens"] == 32e9
    assert known["warmup_seconds"].value / 3600 == pytest.approx(under["hours"], abs=0.005)
    assert known["warmup_tokens_at_largest_batch"].value == golden["plan"]["warmup_tokens"] == 128e9
    assert known["warmup_seconds_at_largest_batch"].value / 3600 == pytest.approx(golden["plan"]["warmup_hours"], abs=0.05)
    assert known["warmup_seconds"].low < known["warmup_seconds"].value < known["warmup_seconds"].high
    assert "ramp" in known["warmup_steps"].formula
    assert "every batch" in known["warmup_tokens_at_largest_batch"].formula


def test_a_warmup_across_a_change_of_batch(worked):
    """300 B tokens: 62,500 steps of 4 M and then 6,250 of 8 M, in time as well."""
    stage = replace(worked.stages[0], rate=replace(worked.stages[0].rate, warmup_tokens=300_000_000_000))
    facts = facts_of(replace(worked, stages=(stage,)))
    known = named(warmup_quantities(facts))
    assert known["warmup_steps"].value == 62_500 + 6_250
    assert known["warmup_seconds"].value == pytest.approx(300e9 / facts.tokens_per_second.value)


def test_no_warmup_and_no_rate(worked):
    stage = replace(worked.stages[0], rate=replace(worked.stages[0].rate, warmup_tokens=0))
    assert [q.value for q in warmup_quantities(facts_of(replace(worked, stages=(stage,))))] == [0]
    unknown = named(warmup_quantities(demo_facts()))
    assert unknown["warmup_seconds"].value is None
    assert unknown["warmup_steps"].value > 0


# --- efficiency -----------------------------------------------------------------------------------------------------------------


def test_gradient_efficiency_falls_with_the_batch(worked):
    rows = ramp_table(facts_of(worked)).rows
    middle, end = [row[-2] for row in rows], [row[-1] for row in rows]
    assert middle == sorted(middle, reverse=True)
    assert all(a < b for a, b in zip(middle, end, strict=True))
    critical = critical_batch_tokens(REFIT.loss(4e11, 15e12))
    assert end[-1] == pytest.approx(1 / (1 + 16e6 / critical))
    assert math.fsum(row[7] for row in rows) == pytest.approx(facts_of(worked).training_seconds.value)


# --- the same batches under another curve ---------------------------------------------------------------------------------

STAGES = st.lists(
    st.tuples(
        st.integers(1, 40), st.integers(1, 40), st.sampled_from([128, 256, 384, 1024]), st.integers(1, 9), st.integers(1, 9)
    ),
    min_size=1,
    max_size=4,
)


@settings(max_examples=60)
@given(STAGES, st.integers(0, 5_000))
def test_other_curves_keep_every_batch(worked_once, stages, warmup):
    made = []
    for index, (first, second, length, small, large) in enumerate(stages):
        rate = RateSpec(warmup if index == 0 else 0, "constant", 1.0, 1.0)
        ramp = [(0, small * length), (first * small * length, large * length)]
        made.append(stage_of(f"s{index}", (first * small + second * large) * length, length, ramp, rate))
    spec = replace(worked_once, stages=tuple(made))
    own = Schedule(spec)
    for other in (with_cosine(spec), with_wsd(spec)):
        schedule = Schedule(other)
        assert schedule.total_tokens == own.total_tokens
        assert batches(other) == batches(spec)
        last = own.total_steps - 1
        assert schedule.tokens_before(last) == own.tokens_before(last)
        assert 0 < schedule.rate(0) <= spec.optimizer.peak_rate


@pytest.fixture(scope="module")
def worked_once(tmp_path_factory):
    return worked_spec(tmp_path_factory.mktemp("ramp"))


def test_wsd_holds_to_nine_tenths(worked):
    schedule = Schedule(with_wsd(worked))
    step = step_at_tokens(schedule, 0.9 * schedule.total_tokens)
    assert schedule.rate(step - 1) == 8e-5
    assert schedule.rate(step + 1) < 8e-5
