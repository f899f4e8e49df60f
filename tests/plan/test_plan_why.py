"""Why a number is what it is: found by what people call it, explained with the numbers put in."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import CHIP, GPT, draft, preset, where

from headway.base.errors import ConfigError
from headway.formulas.quantity import Quantity, estimate, unknown
from headway.plan.plan import make_plan
from headway.plan.show.meanings import MEANINGS, meaning_of
from headway.plan.show.summary import LINES
from headway.plan.show.why import WIDTH, candidates, explain, find_quantity, range_in_words, why
from headway.plan.show.with_numbers import contradicts, read_formula, with_numbers
from headway.recipe.load import load_deployment, preset_names

NAMES = ["step_seconds", "step_seconds_main", "save_seconds", "mfu_causal", "mfu_full", "tokens_per_second", "checkpoint_bytes"]


# --- numbers put in


@pytest.mark.parametrize(
    ("formula", "inputs", "value", "text"),
    [
        ("6 N D", {"N": 4e11, "D": 1.5e13}, 3.6e25, "6 x 4e11 x 1.5e13"),
        ("sqrt(2 c M)", {"c": 30, "M": 21_600}, 1138.42, "sqrt(2 x 30 x 21,600)"),
        ("L (2 D H E + 2 D K E)", {"L": 2, "D": 3, "H": 4, "E": 5, "K": 1}, 300, "2 x (2 x 3 x 4 x 5 + 2 x 3 x 1 x 5)"),
        ("e^(R/M) - 1", {"R": 360, "M": 10_800}, math.exp(1 / 30) - 1, "e^(360 / 10,800) - 1"),
        ("tokens / tokens per second", {"tokens": 400, "tokens_per_second": 10.0}, 40.0, "400 / 10"),
        ("ceil(steps / every), and one at the end", {"steps": 10, "every": 4}, 3, "ceil(10 / 4)"),
        ("max(a, b) - 1", {"a": 3, "b": 5}, 4, "max(3, 5) - 1"),
        ("3 L D F (gate, up, down)", {"L": 2, "D": 3, "F": 4}, 72, "3 x 2 x 3 x 4"),
    ],
)
def test_a_formula_is_shown_with_its_numbers(formula, inputs, value, text):
    assert with_numbers(Quantity("q", value, "", formula, inputs)) == text


@pytest.mark.parametrize("formula", ["sum over stages of whole batches", "measured", "6 N", "N x", "(N", "sqrt(N, D)", "N^(", ""])
def test_what_is_no_arithmetic_stays_words(formula):
    assert with_numbers(Quantity("q", 1.0, "", formula, {"N": 4, "D": 2})) is None


def test_numbers_that_do_not_give_the_value_are_not_shown_but_can_be_found():
    wrong = Quantity("q", 7.0, "", "2 N", {"N": 3})
    assert with_numbers(wrong) is None
    assert contradicts(wrong) == "2 x 3 = 6, not 7"
    assert contradicts(Quantity("q", 6.0, "", "2 N", {"N": 3})) is None
    assert contradicts(Quantity("q", 6.0, "", "about twice that", {"N": 3})) is None


@given(st.floats(1e-3, 1e6), st.floats(1e-3, 1e6), st.floats(1e-3, 1e6))
def test_reading_a_formula_is_arithmetic(a, b, c):
    inputs = {"a": a, "b": b, "the_c": c}
    for formula, value in (
        ("a b / the c", a * b / c),
        ("a - b - the c", a - b - c),
        ("a / b / the c", a / b / c),
        ("2 a + b the c", 2 * a + b * c),
        ("(a + b) x the c", (a + b) * c),
        ("a^2 / b", a**2 / b),
        ("-a + b", b - a),
    ):
        read = read_formula(Quantity("q", 0.0, "", formula, inputs))
        assert read is not None, formula
        assert read.value == pytest.approx(value, rel=1e-9), formula


@given(st.text(alphabet="abN +-*/^(),;0123456789.e x", max_size=40))
def test_no_formula_breaks_the_reader(text):
    quantity = Quantity("q", 1.0, "", text, {"a": 2.0, "b": 3.0, "N": 1e300})
    with_numbers(quantity)
    contradicts(quantity)


@pytest.mark.parametrize("name", preset_names())
def test_no_formula_of_a_preset_contradicts_its_value(name):
    assert [said for q in preset(name).known().values() if (said := contradicts(q))] == []


@pytest.mark.parametrize("name", preset_names())
def test_every_number_of_a_preset_has_a_meaning(name):
    assert [known for known in preset(name).known() if meaning_of(known) is None] == []


def test_the_longest_pattern_gives_the_meaning():
    assert meaning_of("step_seconds_main_bubble") == MEANINGS["step_seconds_*_bubble"]
    assert meaning_of("predicted_step_seconds_main_bubble") == MEANINGS["step_seconds_*_bubble"]
    assert meaning_of("step_seconds_main") == MEANINGS["step_seconds_*"]
    assert meaning_of("nothing of the kind") is None


# --- names


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("step_seconds", ["step_seconds"]),
        ("step time", ["step_seconds"]),
        ("Step Time", ["step_seconds"]),
        ("step-seconds", ["step_seconds"]),
        ("save", ["save_seconds"]),
        ("checkpoint size", ["checkpoint_bytes"]),
        ("throughput", ["tokens_per_second"]),
        ("step time main", ["step_seconds_main"]),
        ("causal", ["mfu_causal"]),
        ("seconds", ["save_seconds", "step_seconds", "step_seconds_main"]),
        ("mfu", ["mfu_causal"]),
        ("nonsense", []),
    ],
)
def test_names_as_people_say_them(asked, found):
    assert sorted(candidates(asked, NAMES)) == sorted(found)


@pytest.mark.parametrize(
    ("asked", "on_chips", "on_a_laptop"),
    [
        ("memory", "rank_memory", "memory_bytes"),
        ("time", "training_seconds", "training_seconds"),
        ("wall time", "wall_seconds", "predicted_seconds"),
        ("days", "wall_seconds", "predicted_seconds"),
        ("cost", "cost", None),
        ("mfu", "mfu_causal", None),
        ("utilisation", "mfu_causal", None),
        ("checkpoint", "checkpoint_bytes", "checkpoint_bytes"),
        ("checkpoints", "checkpoints", "checkpoints"),
        ("loss", "forecast_loss", "forecast_loss"),
        ("layout", "layout_main", "processes"),
        ("batch", "main_batch", "main_batch"),
        ("batch size", "main_batch", "main_batch"),
        ("failures", "expected_failures", None),
        ("failure", "expected_failures", None),
        ("rate", "tokens_per_second", "tokens_per_second"),
        ("learning rate", "peak_rate", "peak_rate"),
        ("lr", "peak_rate", "peak_rate"),
        ("throughput", "tokens_per_second", "tokens_per_second"),
        ("flops", "flops_6n", "flops_6n"),
        ("devices", "processes", "processes"),
        ("device time", "gpu_hours", None),
        ("data", "tokens", "tokens"),
    ],
)
def test_everyday_words_lead_somewhere(asked, on_chips, on_a_laptop):
    assert find_quantity(preset("beacon"), asked).name == on_chips
    if on_a_laptop is not None:
        assert find_quantity(preset("demo"), asked).name == on_a_laptop


@pytest.mark.parametrize("name", preset_names())
def test_memory_of_a_preset_is_that_of_its_fullest_rank(name):
    assert find_quantity(preset(name), "memory").name in ("rank_memory", "memory_bytes")


@pytest.mark.parametrize("label", [label for label, _ in LINES])
def test_the_labels_of_the_summary_can_be_asked(label):
    plan = preset("beacon")
    line = next(line for line in plan.summary if line.label == label)
    assert find_quantity(plan, label).name in line.names


def test_ambiguous_names_are_listed_with_their_values():
    with pytest.raises(ConfigError) as error:
        find_quantity(preset("beacon"), "warmup at largest batch")
    text = str(error.value)
    assert "warmup_tokens_at_largest_batch = " in text
    assert "warmup_seconds_at_largest_batch = " in text


def test_unknown_names_list_near_ones():
    with pytest.raises(ConfigError, match="checkpoint_storage") as error:
        find_quantity(preset("beacon"), "chekpoint_storag")
    assert error.value.exit_code == 2


# --- explanations


def test_an_explanation_has_everything():
    lines = list(explain(find_quantity(preset("beacon"), "flops 6n")))
    assert lines[0] == "flops_6n = 3.6e+25 FLOP"
    text = "\n".join(lines)
    assert "meaning: operations of the whole run by the rule of thumb" in text
    assert "formula: 6 N D" in text
    assert "= 6 x 4e11 x 1.50001e13 = 3.6e+25 FLOP" in text
    assert "source: Kaplan et al. 2020" in text
    assert "    N: nominal_parameters = 400B parameters" in text


def test_a_range_says_where_it_comes_from():
    text = " ".join(why(preset("beacon"), "training time").split())
    assert "because tokens_per_second is known only to within -20 to +20 %" in text
    assert "nobody measured it here" in text
    predicted = make_plan(draft(*GPT), where(*CHIP))
    assert "that its fit never saw" in " ".join(why(predicted, "step_seconds_main").split())


def test_range_in_words_names_the_widest_input():
    sure, vague = (estimate(name, 10.0, "", "", {}, "", spread) for name, spread in (("sure", (0.9, 1.1)), ("vague", (0.5, 2.0))))
    total = Quantity("total", 20.0, "", "sure + vague", {"sure": sure, "vague": vague}, "", 14.0, 31.0)
    assert "vague is known only to within -50 to +100 %" in range_in_words(total)


def test_what_is_missing_is_said_instead_of_a_guess():
    plan = make_plan(draft(), load_deployment())
    text = why(plan, "predicted time")
    assert "predicted_seconds = unknown" in text
    assert "missing: needs a calibration" in text
    assert "formula: " not in text


def test_cells_of_tables_can_be_asked():
    plan = make_plan(draft(*GPT), where(*CHIP))
    text = why(plan, "step time main")
    assert text.startswith("step_seconds_main = ")
    assert "compute: step_seconds_main_compute = " in text


def test_long_explanations_stay_readable():
    for quantity in preset("beacon").known().values():
        for line in explain(quantity):
            assert len(line) <= WIDTH or len(line) - len(line.lstrip()) > WIDTH - 48 or " " not in line.strip()[60:], line


def test_a_cycle_free_tree_ends_and_repeats_nothing():
    base = Quantity("base", 2, "", "chosen")
    tree = list(explain(Quantity("top", 4, "", "a + b", {"a": base, "b": base})))
    assert tree.count("        (as above)") == 1


def test_a_deep_tree_is_cut_where_it_says_how_to_go_on():
    quantity = unknown("q0", "", "nothing")
    for depth in range(1, 12):
        quantity = Quantity(f"q{depth}", depth, "", "one more", {"x": quantity})
    text = "\n".join(explain(quantity))
    assert "(see --why q6)" in text
    assert "q5 = " not in text
