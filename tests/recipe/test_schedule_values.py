"""Schedule values worked by hand: places, batches, rates. The trainer, the planner and the plots all use this code (L8)."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.recipe.load import load_recipe
from headway.recipe.resolve import resolve
from headway.recipe.schedules import BATCH_POWERS, SHAPES, Schedule, StepTokens, rate_factor, shape_value, spans, whole_batches
from headway.recipe.spec import BatchPhase, RateSpec

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


@pytest.mark.parametrize("shape", SHAPES)
def test_a_curve_with_warm_up_and_tail_at_its_corners(shape: str):
    """1,000 tokens: 200 of warm-up to .5, 600 of the shape from .5 to .1, 200 at .1. Every shape has its x = 1/2 at 500."""
    end = 0.5 if shape == "constant" else 0.1
    rate = RateSpec(warmup_tokens=200, shape=shape, start=0.5, end=end, tail_tokens=200)
    values = [rate_factor(rate, tokens, 1000) for tokens in (0, 100, 200, 500, 800, 900, 1000)]
    middle = {
        "constant": 0.5,
        "linear": 0.3,
        "cosine": 0.3,
        "one_minus_sqrt": 0.1 + 0.4 * (1 - math.sqrt(0.5)),
        "inverse_sqrt": 0.5 / math.sqrt(13),  # 1 + (5^2 - 1) / 2
    }
    assert values == pytest.approx([0, 0.25, 0.5, middle[shape], end, end, end])


def test_a_warm_up_in_steps_counts_the_tokens_of_the_ramp(schedule):
    """Seven steps: five of 20 tokens, two of 40. The Spec has tokens, so nothing else knows of it."""
    steps, tokens = schedule("stages.0.rate.warmup=7 steps"), schedule("stages.0.rate.warmup=180")
    assert steps.spec.stages[0].rate.warmup_tokens == 180
    assert steps.spec.stages == tokens.spec.stages
    assert steps.spec.recipe_digest != tokens.spec.recipe_digest
    assert [steps.rate(step) for step in range(8)] == pytest.approx([0.8 * t / 180 for t in (10, 30, 50, 70, 90, 120, 160, 180)])
    assert schedule("stages.0.rate.warmup=1 step").spec.stages[0].rate.warmup_tokens == 20
    assert schedule("stages.0.rate.warmup=0 steps").rate(0) == 0.8


def test_a_tail_stays_at_the_end_of_the_curve(schedule):
    """A line from .8 to .4 over 740 of 820 tokens, and two steps of 40 at .4."""
    line = "stages.0.rate={shape='linear', start=1, end=0.5, tail='2 steps'}"
    s = schedule(line)
    assert s.spec.stages[0].rate.tail_tokens == 80
    assert [s.rate(step) for step in (0, 4, 5, 20)] == pytest.approx([0.8 - 0.4 * t / 740 for t in (10, 90, 120, 720)])
    assert [s.rate(step) for step in (21, 22)] == pytest.approx([0.4, 0.4])
    long = schedule(line.replace("2 steps", "20 steps"))
    assert long.spec.stages[0].rate.tail_tokens == 18 * 40 + 2 * 20
    assert [long.rate(step) for step in (3, 4, 22)] == pytest.approx([0.4] * 3)


@pytest.mark.parametrize(("rule", "factor"), [("none", 1.0), ("sqrt", math.sqrt(0.5)), ("linear", 0.5)])
def test_the_batch_rule_lowers_the_rate_of_small_batches(schedule, rule: str, factor: float):
    """Batches of 2 and then 4 sequences. The largest batch of the stage has the stage's rate; other stages feel nothing."""
    s, plain = schedule(f"stages.0.rate.batch_rule={rule}"), schedule()
    small = [s.rate(step) / plain.rate(step) for step in range(5)]
    assert small == pytest.approx([factor] * 5)
    assert [s.rate(step) for step in range(5, 26)] == [plain.rate(step) for step in range(5, 26)]
    assert [s.rate_at_tokens(tokens) for tokens in (80, 99, 100)] == pytest.approx([0.8 * factor, 0.8 * factor, 0.8])


def test_the_batch_rule_counts_from_the_largest_batch_wherever_it_stands(schedule):
    """A ramp that falls: 8 sequences, then 2."""
    s = schedule("stages.0.ramp=[{from=0, batch=80}, {from=160, batch=20}]", "stages.0.rate={batch_rule='linear'}")
    assert [s.rate(0), s.rate(1), s.rate(2)] == pytest.approx([0.8, 0.8, 0.2])


@settings(deadline=None)
@given(
    st.sampled_from(SHAPES),
    st.sampled_from(sorted(BATCH_POWERS)),
    st.integers(0, 400),
    st.integers(0, 400),
    st.lists(st.tuples(st.integers(1, 9), st.integers(1, 12)), min_size=1, max_size=4),
)
def test_the_curve_of_plots_is_that_of_the_steps(shape, rule, warmup, tail, phases):
    """Under any shape, rule and ramp (steps, batch): equal in the middle of each step, and never zero there."""
    firsts = [sum(steps * batch for steps, batch in phases[:place]) for place in range(len(phases))]
    demo = resolve(load_recipe("demo"), None)
    rate = RateSpec(warmup, shape, 1.0, 1.0 if shape == "constant" else 0.1, tail, rule)
    made = tuple(BatchPhase(first, batch) for first, (_, batch) in zip(firsts, phases, strict=True))
    sequences = sum(steps * batch for steps, batch in phases)
    first = replace(demo.stages[0], phases=made, sequences=sequences, sequence_length=4, rate=rate)
    s = Schedule(replace(demo, stages=(first, demo.stages[-1])))
    for step in range(s.stage_steps(0) + 1):
        place = s.place(step)
        length = s.spec.stages[place.stage].sequence_length
        middle = s.tokens_before(step) + place.batch_sequences * length / 2
        assert s.rate_at_tokens(middle) == pytest.approx(s.rate(step), rel=1e-12)
        assert s.rate(step) > 0


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 50)), min_size=1, max_size=5), st.data())
def test_first_and_last_steps_make_the_whole(phases, data):
    firsts = [sum(steps * batch for steps, batch in phases[:place]) for place in range(len(phases))]
    made = tuple(BatchPhase(first, batch) for first, (_, batch) in zip(firsts, phases, strict=True))
    sequences, steps = sum(steps * batch for steps, batch in phases), sum(steps for steps, _ in phases)
    of = StepTokens(made, sequences, 16)
    cut = data.draw(st.integers(0, steps))
    assert of.first(cut) + of.last(steps - cut) == 16 * sequences
    assert of.first(steps + 2) == 16 * (sequences + 2 * phases[-1][1])  # too long, and refused for it


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("stages.0.rate={warmup='24 steps'}", "the warm-up of 860 tokens is longer than stage 'main' with 800"),
        ("stages.0.rate={shape='linear', tail='24 steps'}", "the tail of 840 tokens is longer than stage 'main' with 800"),
        ("stages.0.rate={warmup=801}", "the warm-up of 801 tokens is longer"),
        ("stages.0.rate={shape='linear', warmup='20 steps', tail='4 steps'}", "a warm-up of 700 and a tail of 160 tokens"),
        ("stages.0.rate={shape='linear', warmup=500, tail=301}", "a warm-up of 500 and a tail of 301 tokens"),
    ],
)
def test_a_warm_up_and_a_tail_fit_into_their_stage(schedule, override: str, said: str):
    with pytest.raises(ConfigError) as error:
        schedule(override)
    assert said in str(error.value)
    assert len(error.value.problems) == 1


@pytest.mark.parametrize(
    "rate",
    ["{warmup='23 steps'}", "{shape='linear', warmup='20 steps', tail='3 steps'}", "{shape='linear', warmup=500, tail=300}"],
)
def test_a_stage_may_be_all_warm_up_and_tail(schedule, rate: str):
    """The stage's 23 steps are 820 tokens, more than the 800 that were asked for."""
    s = schedule(f"stages.0.rate={rate}")
    assert 0 < s.rate(0) < s.rate(5)
    if "tail" in rate:  # its end is 0, and a warm-up that ends where it begins leaves no curve between
        assert s.rate(22) == 0.0, "the last step stands in the tail"


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
