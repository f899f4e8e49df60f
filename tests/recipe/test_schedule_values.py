"""Schedule values worked by hand: places, batches, rates. The trainer, the planner and the plots all use this code (L8)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve
from headway.recipe.schedules import Schedule, shape_value, spans, whole_batches
from headway.recipe.spec import BatchPhase

RECIPE = """\
kind = "recipe"
name = "s"
[tokenizer]
vocabulary = 300
[model]
layers = 1
width = 8
heads = 2
[data]
[[data.sources]]
name = "a"
kind = "python-stdlib"
[[stages]]
name = "main"
tokens = 800
sequence = 10
ramp = [{ from = 0, batch = 20 }, { from = 100, batch = 40 }]
rate = { warmup = 80, shape = "constant" }
mixture = { a = 1 }
[[stages]]
name = "anneal"
tokens = 95
sequence = 10
batch = 40
rate = { shape = "linear" }
mixture = { a = 1 }
[optimizer]
peak_rate = 0.8
[evaluation]
every = 150
"""


@pytest.fixture
def schedule(tmp_path: Path):
    def make(*overrides: str) -> Schedule:
        (tmp_path / "r.toml").write_text(RECIPE)
        return Schedule(resolve(load_recipe(tmp_path / "r.toml", overrides), None))

    return make


def test_places_under_a_ramp(schedule):
    """Main: 5 steps of 2 sequences (100 tokens), then 18 of 4 (700 -> 720). Anneal: 3 steps of 4 (95 -> 120)."""
    s = schedule()
    assert s.spec.stages[0].phases == (BatchPhase(0, 2), BatchPhase(10, 4))
    assert (s.stage_steps(0), s.stage_steps(1), s.total_steps) == (23, 3, 26)
    assert s.total_tokens == 100 + 720 + 120
    places = [s.place(step) for step in (0, 4, 5, 22, 23, 25, 26)]
    assert [(p.stage, p.first_sequence, p.batch_sequences) for p in places] == [
        (0, 0, 2),
        (0, 8, 2),
        (0, 10, 4),
        (0, 78, 4),
        (1, 0, 4),
        (1, 8, 4),
        (1, 12, 0),
    ]
    assert [s.tokens_before(step) for step in (0, 5, 23, 26)] == [0, 100, 820, 940]


def test_L4_first_step_has_a_rate_and_so_has_the_last(schedule):
    """Warm-up over 80 tokens in steps of 20: the middle of step 1 is at 10 of 80 tokens, an eighth of the peak .8."""
    s = schedule()
    assert [s.rate(step) for step in range(5)] == pytest.approx([0.1, 0.3, 0.5, 0.7, 0.8])
    assert s.rate(22) == 0.8
    assert [s.rate(step) for step in (23, 24, 25)] == pytest.approx([0.8 * 5 / 6, 0.8 / 2, 0.8 / 6])


def test_L4_a_debug_run_cut_short_keeps_the_schedule(schedule):
    """The rate depends on the position alone: stopping after any step changes none before it."""
    whole = schedule()
    again = [whole.rate(step) for step in range(3)]  # asked for by a trainer that stops after 3 steps
    assert again == pytest.approx([0.1, 0.3, 0.5])


def test_L5_rate_of_a_resumed_run_is_that_of_the_uninterrupted_one(schedule):
    """A new object asked only for later steps, as after a restart in the middle of a ramp."""
    whole = [schedule().rate(step) for step in range(26)]
    for start in range(26):
        assert [schedule().rate(step) for step in range(start, 26)] == whole[start:]


def test_warmup_is_exact_in_its_integral_under_a_ramp(schedule):
    """A warm-up across a change of batch: sum of rate x tokens equals the area under the curve."""
    s = schedule("stages.0.rate.warmup=180")  # 100 tokens in steps of 20, 80 in steps of 40
    tokens = [s.tokens_before(step + 1) - s.tokens_before(step) for step in range(7)]
    assert sum(tokens) == 180
    assert sum(s.rate(step) * t for step, t in enumerate(tokens)) == pytest.approx(0.8 * 180 / 2)


@pytest.mark.parametrize(
    ("shape", "start", "end", "values"),
    [
        ("constant", 1.0, 1.0, [1, 1, 1]),
        ("linear", 1.0, 0.2, [1, 0.6, 0.2]),
        ("cosine", 1.0, 0.0, [1, 0.5, 0]),
        ("cosine", 0.5, 0.1, [0.5, 0.3, 0.1]),
        ("one_minus_sqrt", 1.0, 0.0, [1, 1 - math.sqrt(0.5), 0]),
        ("inverse_sqrt", 1.0, 0.5, [1, 1 / math.sqrt(2.5), 0.5]),
    ],
)
def test_shapes_at_start_middle_and_end(shape, start, end, values):
    assert [shape_value(shape, x, start, end) for x in (0, 0.5, 1)] == pytest.approx(values)


def test_D8_lengthening_a_stage_changes_nothing_before(schedule):
    """More tokens in the constant stage: same places, batches and rates for every step that existed."""
    short, long = schedule(), schedule("stages.0.tokens=1600")
    for step in range(short.stage_steps(0)):
        assert long.place(step) == short.place(step)
        assert long.rate(step) == short.rate(step)
    assert long.spec.stages[0].phases == short.spec.stages[0].phases
    assert long.spec.stages[0].quanta == short.spec.stages[0].quanta


def test_ramp_of_the_published_plan():
    """4 M to 250 B, 8 M to 3 T, 16 M to 15 T tokens; with sequences that divide the batches: 1,156,250 steps."""
    sequences, phases = whole_batches(15 * 10**12, 8_000, [(0, 4_000_000), (250 * 10**9, 8_000_000), (3 * 10**12, 16_000_000)])
    ends = [phase.first_sequence for phase in phases[1:]] + [sequences]
    steps = [(end - phase.first_sequence) // phase.batch_sequences for phase, end in zip(phases, ends)]
    assert steps == [62_500, 343_750, 750_000]
    assert sequences * 8_000 == 15 * 10**12


@settings(deadline=None)
@given(
    st.integers(1, 5_000),
    st.integers(2, 40),
    st.lists(st.tuples(st.integers(1, 900), st.integers(1, 400)), max_size=4),
    st.integers(1, 400),
)
def test_whole_batches_property(tokens, length, later, first_batch):
    """Tokens are reached, by less than one batch too many; every phase holds whole batches; starts are not early."""
    starts = sorted({start for start, _ in later})
    ramp = [(0, first_batch), *((start, batch) for start, (_, batch) in zip(starts, later))]
    sequences, phases = whole_batches(tokens, length, ramp)
    ends = [phase.first_sequence for phase in phases[1:]] + [sequences]
    assert tokens <= sequences * length < tokens + max(p.batch_sequences for p in phases) * length
    for phase, end in zip(phases, ends):
        assert (end - phase.first_sequence) % phase.batch_sequences == 0
        assert end > phase.first_sequence
    known = {max(1, round(batch / length)) for _, batch in ramp}
    assert {phase.batch_sequences for phase in phases} <= known


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), min_size=1, max_size=5))
def test_spans_lie_end_to_end(phases):
    """(steps, batch) of each phase: also those that a short stage leaves without a step."""
    firsts = [sum(steps * batch for steps, batch in phases[:place]) for place in range(len(phases))]
    made = tuple(BatchPhase(first, batch) for first, (_, batch) in zip(firsts, phases, strict=True))
    sequences = sum(steps * batch for steps, batch in phases)
    stage = replace(resolve(load_recipe("demo"), None).stages[0], phases=made, sequences=sequences)
    found = spans(stage)
    assert [(span.steps, span.batch_sequences) for span in found] == phases
    assert [found[0].first_sequence, *(span.end_sequence for span in found)] == [*firsts, sequences]
    assert sum(span.sequences for span in found) == sequences


def test_evaluations_are_due_once_per_multiple(schedule):
    """Every 150 tokens of 940: 150, 300, 450, 600, 750, 900, and the end."""
    s = schedule()
    due = [step for step in range(s.total_steps + 1) if s.evaluation_due(step)]
    assert [s.tokens_before(step) for step in due] == [180, 300, 460, 620, 780, 900, 940]


def test_rate_curve_for_plots_passes_through_the_steps(schedule):
    s = schedule()
    for step in range(s.total_steps):
        middle = (s.tokens_before(step) + s.tokens_before(step + 1)) / 2
        assert s.rate_at_tokens(middle) == pytest.approx(s.rate(step))
