"""Published schedules without a model: read strictly, planned with the one implementation of schedules, printed as any plan."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from headway.base.errors import ConfigError
from headway.plan.plan import Plan
from headway.plan.published.schedule_plan import make_schedule_plan
from headway.plan.show.render import print_plan, to_markdown
from headway.recipe.load import LoadedRecipe, find_recipe, preset_names
from headway.recipe.schedule_file import ScheduleFile, load_plannable, load_schedule, timetable


def planned(name: str) -> Plan:
    return make_schedule_plan(load_schedule(name))


def printed(plan: Plan) -> str:
    out = io.StringIO()
    print_plan(plan, Console(file=out, width=160))
    return out.getvalue()


def rows(plan: Plan, title: str) -> list[tuple]:
    return [row for section in plan.sections for table in section.tables if table.title == title for row in table.rows]


# --- DeepSeek-V4.1 --------------------------------------------------------------------------------------------------------


def test_deepseek_v4_1_makes_447316_updates():
    plan = planned("deepseek-v4.1")
    assert plan.quantity("updates").value == 447_316
    assert plan.quantity("tokens").value == 45e12
    assert plan.quantity("warmup_steps").value == pytest.approx(2000)
    assert 0 <= plan.quantity("steps").number() - 447_316 <= 3  # whole batches, stage by stage


def test_deepseek_v4_1_rates_at_the_published_tokens():
    schedule = timetable(load_schedule("deepseek-v4.1"))
    assert schedule is not None
    wanted = {100.6e9: 1.3e-4, 201.2e9: 2.6e-4, 28e12: 2.6e-4, 34e12: 1.43e-4, 40e12: 2.6e-5, 45e12: 2.6e-5}
    for tokens, rate in wanted.items():
        assert schedule.rate_at_tokens(tokens) == pytest.approx(rate, rel=1e-4), tokens


def test_the_schedule_table_has_every_boundary_and_share():
    table = rows(planned("deepseek-v4.1"), "Schedule")
    assert [row[2] for row in table] == ["stable", "stable", "stable", "stable", "decay", "tail", "tail", "tail"]
    assert table[0][3] == 1
    assert table[0][4] > 0
    assert table[-1][4] == pytest.approx(2.6e-5)


# --- MAI ------------------------------------------------------------------------------------------------------------------


def test_mai_sees_857_tokens_per_active_parameter():
    plan = planned("mai")
    assert plan.quantity("tokens_per_active_parameter").value == pytest.approx(857, abs=0.2)
    assert plan.quantity("tokens_per_stored_parameter").value is None
    for unknown in ("updates", "peak_rate", "stored_parameters"):
        assert plan.quantity(unknown).value is None, unknown
    assert not rows(plan, "Schedule")


def test_mai_keeps_both_values_of_its_extension():
    told = rows(planned("mai"), "Said in two ways")
    extension = {row[1] for row in told if row[0] == "tokens of the context extension"}
    assert extension == {150_000_000_000, 140_000_000_000}
    assert {row[3] for row in told if row[1] in extension} == {
        "main phase table, at a length of 262,144",
        "appendix B, final recipe, at 256K",
    }
    text = printed(planned("mai"))
    assert "150B" in text
    assert "140B" in text


def test_a_total_that_its_stages_do_not_make_is_reported():
    told = [row for row in rows(planned("mai"), "Said in two ways") if row[0] == "tokens in all"]
    assert [row[1] for row in told] == [30_000_000_000_000, 30_150_000_000_000]
    assert not rows(planned("deepseek-v4.1"), "Said in two ways")


# --- finding, printing ----------------------------------------------------------------------------------------------------


def test_names_are_found_also_with_a_dot():
    assert find_recipe("deepseek-v4.1").name == "deepseek-v4.1.toml"
    assert preset_names("schedule") == ["deepseek-v4.1", "mai"]
    assert not set(preset_names()) & set(preset_names("schedule"))


def test_load_plannable_tells_recipe_and_schedule_apart(tmp_path: Path):
    assert isinstance(load_plannable("deepseek-v4.1"), ScheduleFile)
    assert isinstance(load_plannable("demo"), LoadedRecipe)
    copy = tmp_path / "mine.toml"
    copy.write_text(find_recipe("mai").read_text("utf-8"), "utf-8")
    assert isinstance(load_plannable(copy), ScheduleFile)
    assert load_plannable("mai", ["tokens=31T"]).tokens == 31_000_000_000_000


def test_an_unknown_name_lists_schedules_too():
    with pytest.raises(ConfigError, match=r"deepseek-v4\.1"):
        find_recipe("deepseek-v5")


@pytest.mark.parametrize("name", ["deepseek-v4.1", "mai"])
def test_it_prints_and_saves_as_any_plan(name: str):
    plan = planned(name)
    text = printed(plan)
    assert name in text.splitlines()[0]
    assert "without a model" in text.splitlines()[0]
    assert "draft" not in text.splitlines()[0]
    assert to_markdown(plan).startswith("# Plan of")
    saved = json.loads(json.dumps(plan.to_json()))
    assert saved["kind"] == "schedule plan"
    assert saved["spec_digest"] == plan.spec_digest


def test_another_schedule_has_another_digest():
    changed = load_schedule("mai", ["tokens=31T"])
    assert make_schedule_plan(changed).spec_digest != planned("mai").spec_digest


# --- strict reading -------------------------------------------------------------------------------------------------------

HEAD = 'kind = "schedule"\nname = "x"\nsource = "a page"\n'


def refused(tmp_path: Path, text: str) -> str:
    path = tmp_path / "x.toml"
    path.write_text(HEAD + text, "utf-8")
    with pytest.raises(ConfigError) as error:
        load_plannable(path)
    return str(error.value)


def test_all_problems_at_once(tmp_path: Path):
    stages = '[[stages]]\nname = "a"\ntokens = -1\n[[stages]]\nname = "b"\ntokens = "1T"\nbatch = "0"\n'
    text = refused(tmp_path, 'peak_rat = 1e-4\ntokens = "15 lightyears"\n' + stages)
    for said in ("peak_rat", "did you mean peak_rate", "lightyears", "stages.0.tokens", "stages.1.batch"):
        assert said in text, said
    assert "x.toml:4" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[stages]]\nname = "a"\ntokens = "1T"\nrate = { shape = "constant" }\n', "there is no peak_rate"),
        (
            'peak_rate = 1e-4\n[[stages]]\nname = "a"\ntokens = "1T"\nbatch = "1M"\nrate = { warmup = "2T" }\n',
            "longer than stage",
        ),
        ('[[stages]]\nname = "a"\ntokens = "1T"\nbatch = "1M"\nramp = [{ from = "0", batch = "1M" }]\n', "both batch and ramp"),
        ('[[stages]]\nname = "a"\ntokens = "1T"\nramp = [{ from = "1M", batch = "1M" }]\n', "begins at"),
        ('[[stages]]\nname = "a"\ntokens = "1T"\nsequence = 4096\nbatch = "1k"\n', "smaller than one sequence"),
        ('[[stages]]\nname = "a"\ntokens = "1T"\n[[stages]]\nname = "a"\ntokens = "1T"\n', "two stages are named"),
        ('[[stages]]\nname = "a"\ntokens = "1T"\n[parameters]\nstored = "1B"\nactive = "2B"\n', "active parameters of"),
        (
            '[[stages]]\nname = "a"\ntokens = "1T"\n[[contradictions]]\nwhat = "w"\nvalues = [{ value = 1, source = "s" }]\n',
            "it takes two",
        ),
        ("stages = []\n", "a list of at least one"),
    ],
)
def test_rules_across_fields(tmp_path: Path, text: str, said: str):
    assert said in refused(tmp_path, text)


@given(
    tokens=st.lists(st.integers(10**6, 10**9), min_size=1, max_size=4),
    batch=st.integers(1_000, 10**6),
    sequence=st.sampled_from([None, 2, 7]),
)
def test_whole_batches_never_part_from_tokens_over_batch(tokens: list[int], batch: int, sequence: int | None):
    """A run adds at most one batch a stage; with a length, batches are whole sequences, half of one off at most."""
    stages = [{"name": f"s{i}", "tokens": t, "batch": batch, "sequence": sequence} for i, t in enumerate(tokens)]
    file = ScheduleFile.model_validate({"kind": "schedule", "name": "x", "source": "s", "stages": stages})
    plan = make_schedule_plan(file)
    updates, steps = plan.quantity("updates").number(), plan.quantity("steps").number()
    off = 0 if sequence is None else updates * sequence / (2 * batch - sequence) + 1
    assert updates - off <= steps <= updates + len(tokens) + off


def test_a_total_that_the_stages_contradict_is_a_risk():
    plan = make_schedule_plan(load_schedule("deepseek-v4.1", ["tokens=1T"]))
    (risk,) = plan.risks
    assert risk.number == "1T tokens in all as stated, 45T tokens in the stages"
    assert {row[1] for row in rows(plan, "Said in two ways")} == {10**12, 45 * 10**12}
    assert planned("deepseek-v4.1").risks == ()
    assert planned("mai").risks == ()  # 30T of 30.1T is rounded
