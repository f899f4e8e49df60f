"""The group of verbs around plans: options that exclude each other, clusters, layouts, comparisons, calibrations, pages."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from headway.cli.main import PLAN_VERBS, build_app, import_verbs, run_guarded
from headway.recipe.load import preset_directory, preset_names


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = run_guarded(list(arguments))
    shown = capsys.readouterr()
    return code, shown.out, shown.err


# --- what is not a recipe, a data directory, a value


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("beacon.deployment", "this file is a deployment(?s:.*)--deployment .*beacon.deployment.toml plans on it"),
        ("beacon.published", "this file is a list of published figures(?s:.*)beside the plan of the recipe of that name"),
        ("256-gpu", "256-gpu is a worksheet(?s:.*)headway plan worksheet 256-gpu"),
        ("example", "headway plan worksheet example"),
        (str(preset_directory() / "256-gpu.worksheet.toml"), "this file is a worksheet"),
        ("nosuch", "beacon, .*mai"),
    ],
)
def test_files_of_another_kind_say_which_command_reads_them(capsys, name, said):
    code, _, err = run(capsys, "plan", name)
    assert code == 2
    assert re.search(said, err)
    assert err.count("rule:") == 1


def test_a_schedule_is_planned_and_never_run(capsys):
    code, _, err = run(capsys, "run", "mai")
    assert code == 2
    assert "this file is a published schedule" in err


@pytest.mark.parametrize("data", [".", "file"])
def test_a_directory_without_a_manifest_is_no_data(capsys, data):
    Path("file").write_text("")
    code, _, err = run(capsys, "plan", "demo", "--data", data)
    assert code == 2
    assert "built data has a manifest.json in it" in err


@pytest.mark.parametrize("override", ["deployment.nope=3", "deployment.=3", "deployment.nodes=0", "deployment.nodes.x.y=1"])
def test_overrides_of_the_deployment_are_named_as_they_were_given(capsys, override):
    code, _, err = run(capsys, "plan", "demo", "--set", override)
    assert code == 2
    assert f"--set {override}: " in err


def test_fast_links_of_the_cluster_in_the_end_count(capsys):
    wide = ("--set", "deployment.accelerator.domain=16")
    code, _, err = run(capsys, "plan", "demo", *wide)
    assert (code, "fast links join at most 1:" in err) == (2, True)
    code, _, err = run(capsys, "plan", "llama3-8b", "--cluster", "64xH100", *wide)
    assert (code, "fast links join at most 8:" in err) == (2, True)
    assert run(capsys, "plan", "llama3-8b", "--cluster", "144xGB200", *wide)[0] in (0, 1)


@pytest.mark.parametrize(("share", "code"), [("0", 2), ("1e-308", 2), ("0.001", 1)])
def test_a_share_of_the_peak_is_one_that_can_be(capsys, share, code):
    assert run(capsys, "plan", "llama3-8b", "--set", f"deployment.accelerator.utilisation={share}")[0] == code


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("plan",), "such as headway plan demo;"),
        (("plan", "worksheet"), "such as headway plan worksheet example;"),
        (("plan", "demo", "--cluster", "-8xH100"), "write --cluster=VALUE where the value begins with a hyphen"),
    ],
)
def test_what_is_missing_comes_with_an_example(capsys, arguments, said):
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert said in err


def test_the_help_of_plan_says_what_its_verbs_do():
    done = subprocess.run(
        [sys.executable, "-m", "headway.cli.main", "plan", "--help"], capture_output=True, text=True, timeout=60
    )
    assert "Set two plans side by side" in done.stdout
    assert "COUNTxCHIP, such as 1024xH100-SXM" in " ".join(done.stdout.split())


# --- names


def test_no_preset_is_called_like_a_verb():
    taken = {path.name.partition(".")[0] for path in preset_directory().iterdir()}
    assert not taken & set(PLAN_VERBS)


def test_a_recipe_called_compare_is_reached_by_its_file(capsys):
    Path("compare.toml").write_text((preset_directory() / "demo.toml").read_text().replace('name = "demo"', 'name = "compare"'))
    code, shown, _ = run(capsys, "plan", "compare.toml")
    assert code == 0
    assert shown.startswith("Plan of compare")
    code, _, said = run(capsys, "plan", "compare")
    assert code == 2
    assert "headway plan ./compare.toml" in said


def test_every_verb_of_the_group_is_there():
    app = build_app()
    import_verbs(app, "plan")
    assert set(PLAN_VERBS) <= set(app["plan"].resolved_commands())


# --- forms


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--json", "--html"), "--json and --html"),
        (("--markdown", "--html"), "--markdown and --html"),
        (("--why", "tokens", "--html"), "--why with --html"),
        (("--calibrate", "--calibration", "c.json"), "--calibrate and --calibration"),
    ],
)
def test_one_form_at_a_time(capsys, options, said):
    code, out, err = run(capsys, "plan", "demo", *options)
    assert code == 2
    assert said in out + err


def test_why_of_a_simulated_quantity_asks_for_the_simulation(capsys):
    code, _, err = run(capsys, "plan", "beacon", "--why", "simulated goodput")
    assert code == 2
    assert "way out: add --simulate" in err


def test_why_takes_words(capsys):
    code, shown, _ = run(capsys, "plan", "beacon", "--why", "step time")
    assert code == 0
    assert shown.startswith("step_seconds = ")
    code, shown, _ = run(capsys, "plan", "beacon", "--why", "step_seconds_main", "--json")
    assert code == 0
    assert json.loads(shown)["meaning"]
    code, shown, _ = run(capsys, "plan", "beacon", "--why", "memory")
    assert code == 0
    assert shown.startswith("rank_memory = ")
    code, _, said = run(capsys, "plan", "beacon", "--why", "warmup at largest batch")
    assert code == 2
    assert "warmup_tokens_at_largest_batch = " in said


def test_exit_code_is_1_where_risks_are_named(capsys):
    assert run(capsys, "plan", "demo")[0] == 0
    assert run(capsys, "plan", "beacon")[0] == 1
    assert run(capsys, "plan", "demo", "--set", "optimizer.beta2=0.999")[0] == 1


def test_every_preset_is_planned_and_fits_the_width_of_a_pipe(capsys):
    for name in [*preset_names(), *preset_names("schedule")]:
        code, shown, said = run(capsys, "plan", name)
        assert code in (0, 1), said
        assert max(map(len, shown.splitlines())) <= 120, name


def test_the_summary_says_how_to_learn_the_time_where_no_rate_is_known(capsys):
    words = " ".join(run(capsys, "plan", "demo", "--summary")[1].split())
    assert "time unknown: --calibrate measures this machine, or state accelerator.peak_flops and utilisation" in words
    assert "time unknown" not in " ".join(run(capsys, "plan", "beacon", "--summary")[1].split())


def test_the_summary_is_one_screen(capsys):
    code, shown, _ = run(capsys, "plan", "beacon", "--summary")
    assert code == 1
    assert len(shown.splitlines()) < 32
    assert "64.3 days" in shown
    assert "Risks" in shown
    assert "1  Inputs" not in shown


def test_sources_that_do_not_exist_are_a_note(capsys):
    text = (preset_directory() / "demo.toml").read_text()
    text = text.replace('kind = "pydoc-topics"', 'kind = "text-tree"\npath = "texts/not-here"')
    Path("mine.toml").write_text(text)
    code, shown, _ = run(capsys, "plan", "mine.toml")
    assert code == 0
    assert "note: does not exist yet under this directory: prose (texts/not-here)" in " ".join(shown.split())
    Path("texts/not-here").mkdir(parents=True)
    assert "note:" not in run(capsys, "plan", "mine.toml")[1]


# --- clusters and layouts


def test_a_cluster_replaces_devices_and_layouts(capsys):
    code, shown, said = run(capsys, "plan", "llama3-8b", "--cluster", "64xH100-SXM", "--json")
    assert code in (0, 1), said
    plan = json.loads(shown)
    assert plan["values"]["processes"]["value"] == 64
    assert any("no layout is stated" in note for note in plan["notes"])


def test_totals_of_the_cluster_are_scaled_and_said(capsys):
    """A sixteenth of the devices takes as many device hours, and meets as many failures."""
    whole = json.loads(run(capsys, "plan", "beacon", "--json")[1])
    plan = json.loads(run(capsys, "plan", "beacon", "--cluster", "1024xH100-SXM", "--json")[1])
    failures = [made["values"]["expected_failures"]["value"] for made in (whole, plan)]
    assert failures[1] == pytest.approx(failures[0], rel=1e-3)
    assert plan["values"]["save_seconds"]["value"] == pytest.approx(16 * whole["values"]["save_seconds"]["value"])
    notes = " ".join(plan["notes"])
    assert "the job every 2 days, not every 3 h 0 min" in notes
    assert "write_speed grows with the machines (assumed): 125 GB/s here" in notes
    assert whole["notes"] == []


def test_what_stands_beside_the_cluster_is_of_it(capsys):
    sets = ("--set", "deployment.failures.every=90h", "--set", "deployment.accelerator.network=100GB")
    plan = json.loads(run(capsys, "plan", "beacon", "--cluster", "144xRubin", *sets, "--json")[1])
    assert plan["values"]["mean_time_between_interruptions"]["value"] == 90 * 3600
    assert not any(note.startswith("failures") for note in plan["notes"])


def test_announced_chips_are_a_risk_and_unverified_ones_a_note(capsys):
    plan = json.loads(run(capsys, "plan", "llama3-8b", "--cluster", "72xRubin", "--json")[1])
    assert "the chip is announced, not on sale" in [risk["rule"] for risk in plan["risks"]]
    plan = json.loads(run(capsys, "plan", "llama3-8b", "--cluster", "64xH800", "--json")[1])
    assert any("figures of H800-SXM are not verified" in note for note in plan["notes"])
    plan = json.loads(run(capsys, "plan", "llama3-8b", "--cluster", "64xH100", "--json")[1])
    assert not any("verified" in note or "announced" in note for note in plan["notes"])


def test_layouts_of_the_command_line(capsys):
    code, shown, said = run(capsys, "plan", "llama3-8b", "--layout", "tp=8", "--json")
    assert code in (0, 1), said
    values = json.loads(shown)["values"]
    world = values["processes"]["value"]
    assert f"tp 8, dp_shard {world // 8}" in values["layout_main"]["value"]


@pytest.mark.parametrize(
    ("layout", "said"),
    [
        ("tp=7", "no multiple"),
        ("tpp=8", "did you mean tp"),
        ("tp", "has no value"),
        ("tp=8,dp=3", "a layout of 24 for 512 devices(?s:.*)it fills the rest, 64"),
        ("dp=64", "leave out dp_shard \\(dp\\): it fills the rest, 512"),
        ("dp_replicate=3", "512 chips are no multiple"),
        ("zero=4", "zero is at most 3(?s:.*)way out: give a value of at most 3"),
        (f"ep={'9' * 5000}", "of at most 12 digits"),
        ("nowhere:tp=8", "layouts.nowhere is for no stage of the recipe"),
        ("tp=-1", "tp"),
        ("", ""),
    ],
)
def test_layouts_that_cannot_be_are_refused_with_the_way_out(capsys, layout, said):
    code, _, err = run(capsys, "plan", "llama3-8b", "--layout", layout)
    assert code == 2
    assert re.search(said, err)
    assert "Traceback" not in err


def test_what_a_layout_leaves_open_is_the_fastest_that_fits(capsys):
    """Fields that are named stay, and no plan is slower for those that are not."""
    steps = {}
    for layout in ("tp=8", "tp=8,micro_batch=1,zero=3,recompute=full"):
        code, shown, said = run(capsys, "plan", "llama3-8b", "--cluster", "512xH100-SXM", "--layout", layout, "--json")
        assert code in (0, 1), said
        values = json.loads(shown)["values"]
        steps[layout] = values["layout_step_seconds_main"]["value"]
    assert "micro-batch 1, zero 3, recompute full" in values["layout_main"]["value"]
    open_, named = steps.values()
    assert open_ < 0.8 * named


def test_what_a_layout_leaves_over_goes_to_dp_shard(capsys):
    _, shown, _ = run(capsys, "plan", "llama3-8b", "--cluster", "512xH100", "--layout", "dp_replicate=4", "--json")
    layout = json.loads(shown)["values"]["layout_main"]["value"]
    assert "dp_replicate 4, dp_shard 128" in layout


@pytest.mark.parametrize("cluster", ["12xH100-SXM", "0xH100-SXM", "8xZ9000", "8", "-8xH100-SXM", "1.5xH100-SXM"])
def test_clusters_that_cannot_be_are_refused(capsys, cluster):
    code, _, err = run(capsys, "plan", "llama3-8b", f"--cluster={cluster}")
    assert code == 2
    assert "way out" in err


def test_schedules_have_no_devices(capsys):
    assert run(capsys, "plan", "mai")[0] in (0, 1)
    devices = (("--deployment", "demo"), ("--data", "."), ("--set", "deployment.nodes=3"))
    for option in (("--cluster", "8xH100-SXM"), ("--search",), ("--layout", "tp=8"), ("--simulate",), *devices):
        code, _, err = run(capsys, "plan", "mai", *option)
        assert code == 2
        assert option[0] in err


def test_a_run_that_never_ends_says_so_on_the_first_screen(capsys):
    shown = run(capsys, "plan", "llama3-8b", "--summary", "--set", 'deployment.failures.per_device="0.01h"')[1]
    assert "with failures: never" in shown
    assert shown.split("Risks")[1].split()[:4] == ["the", "run", "never", "finishes:"]
    assert "never" not in run(capsys, "plan", "llama3-8b", "--summary")[1]


@pytest.mark.parametrize(
    ("recipe", "held_out", "said"), [("llama3-8b", 10**5, True), ("llama3-8b", 10**6, False), ("demo", 10**5, False)]
)
def test_a_long_run_that_holds_out_little_is_told(capsys, recipe, held_out, said):
    shown = " ".join(run(capsys, "plan", recipe, "--summary", "--set", f"data.held_out={held_out}")[1].split())
    assert shown
    assert ("data.held_out, 100,000 tokens per source, is less than the 1,000,000" in shown) is said


def test_more_scored_than_held_out_is_said(capsys):
    said = "evaluation.tokens_per_source, 20,000, is more than data.held_out, 1: at most that is scored"
    assert said in " ".join(run(capsys, "plan", "llama3-8b", "--summary", "--set", "data.held_out=1")[1].split())


@pytest.mark.parametrize("key", ["price_per_hour", "power.watts", "power.price_per_kwh", "storage.price_per_tb_month"])
def test_prices_and_watts_have_bounds(capsys, key):
    code, _, err = run(capsys, "plan", "llama3-8b", "--set", f"deployment.{key}=1e308")
    assert code == 2
    assert key in err
    assert "internal" not in err


def test_sections_on_demand(capsys):
    plain = run(capsys, "plan", "llama3-8b")[1]
    for option, title in (("--sheet", "Communication"), ("--search", "Layouts that can be"), ("--simulate", "imulat")):
        assert title in run(capsys, "plan", "llama3-8b", option)[1], option
        assert option == "--simulate" or title not in plain


# --- compare


def test_compare_two_recipes(capsys):
    code, shown, said = run(capsys, "plan", "compare", "llama3-8b", "llama3-70b")
    assert code == 0, said
    assert shown.startswith("llama3-8b  against  llama3-70b")
    assert re.search(r"parameters +8.03B parameters +70.55B parameters +8.79", shown)


def test_compare_one_recipe_on_two_clusters(capsys):
    arguments = ("llama3-8b", "--cluster", "8xH100-SXM", "--cluster", "16xH100-SXM")
    code, shown, said = run(capsys, "plan", "compare", *arguments, "--json")
    assert code == 0, said
    plain = json.loads(shown)
    assert plain["plans"] == ["8xH100-SXM", "16xH100-SXM"]
    at = ("llama3-8b@8xH100-SXM", "llama3-8b@16xH100-SXM")
    again = json.loads(run(capsys, "plan", "compare", *at, "--json")[1])
    assert again["rows"] == plain["rows"]


def test_compare_two_layouts(capsys):
    code, shown, said = run(capsys, "plan", "compare", "llama3-8b", "--layout", "tp=1", "--layout", "tp=8", "--json")
    assert code == 0, said
    step = next(row for row in json.loads(shown)["rows"] if row["name"] == "step_seconds_main")
    assert step["differs"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no recipe to compare"),
        (("demo",), "demo alone"),
        (("demo", "demo", "demo"), "3 recipes"),
        (("beacon@8xH100-SXM", "demo", "--cluster", "8xH100-SXM"), "a side has one cluster"),
        (("demo@8xH100-SXM", "demo@"), "'demo@' names no cluster"),
        (("demo@8xH100-SXM", "@8xH100-SXM"), "names no recipe"),
        (("demo", "nonsense"), "there is no preset named 'nonsense'"),
    ],
)
def test_what_cannot_be_compared_is_refused(capsys, arguments, said):
    code, _, err = run(capsys, "plan", "compare", *arguments)
    assert code == 2
    assert said in err


# --- worksheet, page


def test_worksheet(capsys):
    code, shown, said = run(capsys, "plan", "worksheet", "example")
    assert code in (0, 1), said
    assert "Reservation" in shown
    code, shown, _ = run(capsys, "plan", "worksheet", "example", "--why", "reserved hours")
    assert code == 0
    assert shown.startswith("reserved_hours = ")
    assert run(capsys, "plan", "worksheet", "nothing")[0] == 2


def test_html_is_one_page(capsys):
    code, shown, _ = run(capsys, "plan", "demo", "--html")
    assert code == 0
    assert shown.startswith("<!doctype html>")
    assert shown.rstrip().endswith("</html>")


# --- calibrate


def test_calibrate_refuses_what_is_no_run(capsys, tmp_path):
    code, _, err = run(capsys, "plan", "calibrate", str(tmp_path))
    assert code == 2
    assert "is not a run directory" in err


def test_calibrate_names_the_run_inside_the_directory_of_the_demo(capsys, tmp_path):
    (tmp_path / "headway-demo" / "run").mkdir(parents=True)
    (tmp_path / "headway-demo" / "run" / "run.json").write_text("{}")
    code, _, err = run(capsys, "plan", "calibrate", "headway-demo")
    assert code == 2
    assert "way out: use headway-demo/run" in err


def test_calibrate_writes_a_file_that_plan_takes(capsys, tmp_path, monkeypatch):
    from headway.base.digests import digest_json
    from headway.plan import calibration

    content = {"kind": "calibration", "schema_version": 1, "tokens_per_second": 1000.0, "seconds_per_save": 0.5}
    content |= {
        "stages": {"main": {"tokens_per_second": 1000.0, "low": 900.0, "high": 1100.0, "step_seconds": 4.0, "steps_timed": 9}}
    }
    measured = {**content, "measured_on": {"name": "mine"}}
    measured["digest"] = digest_json(measured)
    monkeypatch.setattr(calibration, "calibration_of_run", lambda _: measured)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{}")
    code, shown, said = run(capsys, "plan", "calibrate", "run")
    assert code == 0, said
    assert "headway plan RECIPE --calibration mine.calibration.json" in shown
    assert json.loads(Path("mine.calibration.json").read_text()) == measured
    assert run(capsys, "plan", "calibrate", "run", "--out", ".")[0] == 2


def test_a_calibration_file_that_was_edited_is_refused(capsys):
    Path("c.json").write_text('{"kind": "calibration", "schema_version": 1, "digest": "sha256:0"}')
    code, _, err = run(capsys, "plan", "demo", "--calibration", "c.json")
    assert code == 2
    assert "['measured_on', 'stages'] are missing" in err
    assert "way out: write it anew" in err
