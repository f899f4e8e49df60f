"""What is printed: fits the terminal, shows every number once, starts with what everybody looks for."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plan_cases import CHIP, GPT, draft, preset, where

from headway.formulas.quantity import Quantity
from headway.plan.plan import Column, Plan, Section, Table, label, make_plan
from headway.plan.sections import CHAPTERS
from headway.plan.show.families import folded
from headway.plan.show.fitting import fit_table
from headway.plan.show.render import escape, lines, shorten, to_markdown
from headway.recipe.load import preset_names

CHAPTER_TITLES = [title for title, _ in CHAPTERS]


def text_of(plan: Plan, width: int = 100) -> str:
    return "\n".join(line.text for line in lines(plan, width))


@pytest.mark.parametrize("name", preset_names())
@pytest.mark.parametrize("width", [100, 140])
def test_presets_fit_their_terminal(name, width):
    too_long = [line for line in text_of(preset(name), width).splitlines() if len(line) > width]
    assert too_long == []


def test_the_first_screen_says_what_everybody_looks_for():
    first = text_of(preset("beacon")).split("\n1  Inputs")[0]
    assert len(first.splitlines()) <= 24
    for expected in (
        "405.9B parameters",
        "15T tokens",
        "3.6e+25 FLOP",
        "64.3 days",
        "MFU",
        "of 80 GiB",
        "6.49 TB",
        "nats/token",
        "risks",
    ):
        assert expected in first, expected


def test_chapters_stand_in_the_readers_order():
    titles = re.findall(r"^\d+  (.+)$", text_of(preset("beacon")), re.MULTILINE)
    assert titles == CHAPTER_TITLES
    assert titles[0] == "Inputs"


def test_no_count_is_shown_twice():
    text = text_of(preset("demo")) + text_of(preset("beacon"))
    assert not re.search(r"\d,\d{3} \(\d+(\.\d+)?[kMBT]\)", text)


def test_labels_have_no_units():
    assert label("step_seconds_main") == "step time main"
    assert label("checkpoint_interval_seconds") == "checkpoint interval"
    assert label("state_bytes_per_process") == "state per process"
    assert label("tokens_per_second") == "tokens per second"
    assert label("seconds") == "time"


def test_unknown_numbers_say_what_is_missing():
    text = text_of(preset("demo"))
    assert re.search(r"training time +unknown: needs a calibration", text)


def test_shorten_cuts_at_words():
    assert shorten("a formula that is long", 16) == "a formula ..."
    assert shorten("a formula", 16) == "a formula"
    assert shorten("a formula that is long", 5) == ""


def test_markdown_has_chapters_and_numbers_to_the_right():
    text = to_markdown(preset("beacon"))
    assert "## Compute and time" in text
    assert "### Rate and step time" in text
    assert "| --- | ---: | ---: |" in text


def test_markdown_keeps_names_text():
    assert escape("[l](javascript:1) <b> a|b `c` *d* \\ &lt;\r\ne") == (
        "\\[l\\](javascript:1) &lt;b> a\\|b \\`c\\` \\*d\\* \\\\ &amp;lt; e"
    )
    plan = replace(preset("beacon"), name="<script>[l](javascript:1)")
    assert to_markdown(plan).startswith("# Plan of &lt;script>\\[l\\](javascript:1) ")


# --- tables that fit

cells = st.text(alphabet="abc de", min_size=0, max_size=30)


@given(st.data(), st.integers(1, 7), st.integers(1, 5), st.integers(40, 140))
def test_fitted_tables_are_never_wider_than_they_may_be(data, columns, rows, width):
    titles = [data.draw(cells) for _ in range(columns)]
    body = [[data.draw(cells) for _ in range(columns)] for _ in range(rows)]
    numbers = data.draw(st.sets(st.integers(0, columns - 1)))
    fitted = fit_table(titles, body, numbers=numbers, width=width)
    assert len(fitted.lines) >= 2 + rows
    assert max(map(len, fitted.lines)) <= width


def test_nothing_is_lost_where_there_is_room():
    fitted = fit_table(["a", "b"], [["1", "two"], ["22", "three"]], numbers={0}, width=40)
    assert fitted.lines == [" a  b", "--  -----", " 1  two", "22  three"]
    assert fitted.notes == []


def test_columns_that_say_the_same_are_said_once_before_words_are_broken():
    rows = [["x" * 10, "same words", "y" * 10], ["z" * 10, "same words", "w" * 10]]
    fitted = fit_table(["first", "second", "third"], rows, numbers=set(), width=25)
    assert fitted.notes == ["in every row: second same words"]
    assert all("same" not in line for line in fitted.lines)


def test_columns_that_do_not_fit_are_named():
    rows = [[str(10**11 + place + row) for place in range(6)] for row in range(2)]
    fitted = fit_table([f"c{place}" for place in range(6)], rows, numbers=set(range(6)), width=45)
    assert fitted.notes == ["not shown for want of width: c3, c4, c5 (all of it: --markdown, --json)"]


# --- families


def section_of(*names: str) -> Section:
    return Section("S", tuple(Quantity(name, 1.0 + place, "seconds", "f") for place, name in enumerate(names)))


def test_quantities_of_many_stages_become_a_table_that_can_still_be_asked():
    stages = {"main": "main", "long": "long", "anneal": "anneal"}
    whole = folded(section_of("other", "t_main", "t_long", "t_anneal"), stages)
    assert [quantity.name for quantity in whole.quantities] == ["other"]
    (table,) = whole.tables
    assert [row[0] for row in table.rows] == ["main", "long", "anneal"]
    assert {quantity.name for quantity in table.quantities()} == {"t_main", "t_long", "t_anneal"}
    few = section_of("t_main", "t_long")
    assert folded(few, stages) is few


def test_a_first_stage_without_its_name_is_part_of_its_family():
    stages = {"main": "main", "long": "long", "anneal": "anneal"}
    (table,) = folded(section_of("memory", "memory_long", "memory_anneal"), stages).tables
    assert [row[0] for row in table.rows] == ["main", "long", "anneal"]
    assert table.rows[0][1].name == "memory"


def test_the_stage_without_its_name_is_no_phase_of_a_ramp():
    stages = {"main_phase_1": "main phase 1", "main": "main", "long": "long", "anneal": "anneal"}
    (table,) = folded(section_of("memory", "memory_long", "memory_anneal"), stages).tables
    assert [row[0] for row in table.rows] == ["main", "long", "anneal"]


def test_the_longest_name_of_a_stage_counts():
    stages = {"main": "main", "main_phase_1": "1", "main_phase_2": "2"}
    (table,) = folded(section_of("t_main_phase_1", "t_main_phase_2", "t_main"), stages).tables
    assert [row[0] for row in table.rows] == ["main", "1", "2"]
    assert len(table.columns) == 2


# --- the plan as data


def test_names_are_unique_and_the_same_number_everywhere():
    """One name, one value: a quantity that two sections show is the same in both."""
    for name in preset_names():
        plan, seen = preset(name), {}
        for section in plan.sections:
            for quantity in (*section.quantities, *(q for table in section.tables for q in table.quantities())):
                first = seen.setdefault(quantity.name, quantity)
                assert first.value == quantity.value, f"{name}: {quantity.name}"


def test_json_has_values_of_tables_and_the_curve():
    plan = make_plan(draft(*GPT), where(*CHIP))
    plain = plan.to_json()
    assert plain["values"]["step_seconds_main"]["value"] > 0
    assert plain["curve"][0][0] == 0
    assert plain["curve"][-1][1] > 0
    assert plain["summary"][0]["label"] == "model"
    table = Table("T", (Column("q", "seconds"),), ((Quantity("a", 2.0, "seconds", ""),),))
    assert table.to_json()["rows"] == [[2.0]]
    assert table.shown() == [["2 s"]]
