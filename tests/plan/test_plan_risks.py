"""Risks as rules: each fires on the recipe that breaks it, with its number, and on no other."""

from __future__ import annotations

from dataclasses import replace

import pytest
from plan_cases import CHIP, GPT, draft, preset, where

from headway.base.errors import ConfigError
from headway.plan.device_risks import BEST_PUBLISHED
from headway.plan.plan import make_plan
from headway.plan.show.why import find_quantity
from headway.recipe.load import load_deployment, load_recipe
from headway.recipe.resolve import DataFacts, SourceFacts, resolve

CALIBRATION = {"tokens_per_second": 1_000.0, "low": 800.0, "high": 1_250.0}


def risks(recipe: tuple[str, ...] = (), deployment: tuple[str, ...] = (), calibration: dict | None = None) -> dict[str, str]:
    plan = make_plan(resolve(load_recipe("demo", recipe), None), load_deployment(None, deployment), calibration)
    return {risk.rule: f"{risk.number}; {risk.consequence}" for risk in plan.risks}


def test_the_presets_have_none():
    assert risks() == {}
    assert make_plan(resolve(load_recipe("small"), None), load_deployment()).risks == ()


@pytest.mark.parametrize(
    ("recipe", "rule", "number"),
    [
        (("stages.0.rate.warmup=0",), "no warm-up", "step 1 has 100 % of the peak rate"),
        (("optimizer.beta2=0.999",), "beta2 is high", "remembers 1,000 steps"),
        (("stages.1.rate={shape='constant'}",), "the learning rate does not decay", "100 % of the peak rate"),
        (("optimizer.clip_norm=0",), "no gradient clipping", "clip_norm is 0"),
        (
            ("stages.0.sequence=131072", "stages.0.ramp=[{from=0,batch=131072}]"),
            "long context from step one",
            "of the compute is attention",
        ),
    ],
)
def test_rules_of_the_recipe(recipe, rule, number):
    found = risks(recipe)
    assert list(found) == [rule]
    assert number in found[rule]


@pytest.mark.parametrize(
    ("recipe", "line"),
    [
        (("optimizer.beta2=0.999",), "the line is drawn at 0.99 (assumed)"),
        (("stages.1.rate={shape='constant'}",), "the line is drawn at 20 % (assumed)"),
        (("stages.0.sequence=131072", "stages.0.ramp=[{from=0,batch=131072}]"), "the line is drawn at 16,384 tokens (assumed)"),
    ],
)
def test_lines_that_no_source_draws_are_said_to_be_assumed(recipe, line):
    assert line in next(iter(risks(recipe).values()))


def test_announced_chips_are_promises():
    plan = make_plan(draft(*GPT), where("accelerator.kind=Rubin", *CHIP[1:]))
    said = {risk.rule: risk.number for risk in plan.risks}
    assert "Rubin is announced, not on sale: its figures are promises" in said["the chip is announced, not on sale"]
    assert not any("announced" in note or "verified" in note for note in plan.notes)
    plan = make_plan(draft(*GPT), where("accelerator.kind=H800", *CHIP[1:]))
    assert any("figures of H800-SXM are not verified" in note for note in plan.notes)
    assert "announced" not in " ".join(risk.rule for risk in plan.risks)


def test_checkpoints_that_cost_more_than_they_save_are_too_close():
    close = risks(
        deployment=("failures.every=30days", "checkpoints.every_steps=1"),
        calibration=CALIBRATION | {"seconds_per_save": 5.0},
    )
    assert "checkpoints are close together for what a save costs" in close
    assert "checkpoints are far apart for this failure rate" not in close


def test_rare_checkpoints_for_the_failure_rate():
    often = risks(
        deployment=("failures.every=10min", "checkpoints.every_steps=10", "failures.restart=10s"), calibration=CALIBRATION
    )
    assert often == {}
    rare = risks(deployment=("failures.every=10min", "checkpoints.every_steps=150"), calibration=CALIBRATION)
    assert "% of the wall time is lost" in rare["checkpoints are far apart for this failure rate"]


def test_memory_that_is_too_small():
    assert "MiB" in risks(deployment=("accelerator.memory=64MiB",))["memory"]


def test_G2_more_than_the_peak_is_an_alarm():
    assert "MFU" in risks(deployment=("accelerator.peak_flops=1M",), calibration=CALIBRATION)["more than the peak"]


def test_repeated_sources():
    sources = tuple(SourceFacts(name, 60_000, 1024, 1.0, f"sha256:{name}", "") for name in ("code", "prose"))
    facts = DataFacts("sha256:m", "sha256:t", 4096, "<|document|>", sources)
    plan = make_plan(resolve(load_recipe("demo"), facts), load_deployment())
    assert [risk.rule for risk in plan.risks] == ["source code is read beyond its cap", "source prose is read beyond its cap"]
    uncapped = [f"data.sources.{place}.cap_epochs=100.0" for place in (0, 1)]
    plan = make_plan(resolve(load_recipe("demo", uncapped), facts), load_deployment())
    assert [risk.rule for risk in plan.risks] == ["source code is repeated"]  # 17 passes; prose stays below 3


def test_policies_that_are_only_recorded_are_listed_and_contradictions_are_risks():
    gate = "{name='retrieval', metric='needle accuracy', comparison='>=', threshold=0.9}"
    sets = (
        f"stages.1.entry_gates=[{gate}]",
        "interventions.permissions=[{what='restart', by='nobody'}, {what='skip batches', by='automatic'},"
        " {what='lower rate', by='person'}]",
    )
    plan = make_plan(resolve(load_recipe("demo", sets), None), load_deployment())
    (table,) = next(section for section in plan.sections if section.title == "Declared only").tables
    assert [row[0] for row in table.rows] == [
        "entry gate retrieval of anneal",
        "loss spikes",
        "permission: restart",
        "permission: skip batches",
    ]
    assert table.rows[0][1] == "needle accuracy >= 0.9"
    assert [risk.rule for risk in plan.risks] == [
        "gates are not checked",
        "permission: restart is not obeyed",
        "permission: skip batches is not obeyed",
    ]


# --- on devices


def rules(spec, deployment, calibration=None) -> dict[str, str]:
    return {risk.rule: f"{risk.number}; {risk.consequence}" for risk in make_plan(spec, deployment, calibration).risks}


def test_a_sound_plan_on_chips_has_none():
    sound = (*GPT, "stages.0.ramp=[{from=0, batch='131072'}]", "stages.1.batch='131072'")
    assert rules(draft(*sound), where(*CHIP)) == {}


@pytest.mark.parametrize(
    ("recipe", "rule", "number"),
    [
        (
            ("stages.0.rate={warmup='64k', shape='linear'}",),
            "the learning rate reaches zero twice",
            "main ends at 0 % of the peak, anneal starts at 100 %",
        ),
        (
            ("stages.1.rate={start=0.0005, shape='linear'}",),
            "stage anneal trains at almost no rate",
            "at 0.05 % of the peak rate",
        ),
        (("model.window=64", "model.full_attention_every=0"), "sequences are longer than the window", "256 tokens, window 64"),
        (("objective.context=4096",), "no stage is as long as the context that users need", "256 tokens trained, 4,096 asked"),
    ],
)
def test_more_rules_of_the_recipe(recipe, rule, number):
    found = risks(recipe)
    assert number in found[rule]
    assert rule not in risks()


def test_a_rate_that_is_zero_only_once_is_not_zero_twice():
    changes = ("stages.0.rate={warmup='64k', shape='linear'}", "stages.1.rate={shape='constant'}")
    assert "the learning rate reaches zero twice" not in risks(changes)


def test_unguarded_logits_only_of_large_models():
    bare = ("model.qk_norm=false", "stability.z_loss=0.0")
    assert "neither QK-norm nor z-loss" not in risks(bare)
    large = (*bare, "model.layers=40", "model.width=2048", "model.heads=16", "model.head_width=128", "model.ffn_width=8192")
    assert "z_loss = 0" in rules(draft(*large), where())["neither QK-norm nor z-loss"]
    guarded = (*large, "stability.z_loss=1e-4")
    assert "neither QK-norm nor z-loss" not in rules(draft(*guarded), where())


def test_long_context_names_the_factor():
    found = risks(("stages.0.sequence=131072", "stages.0.ramp=[{from=0,batch=131072}]"))
    assert "16 x the attention per token of 8,192 tokens" in found["long context from step one"]


def test_daily_checkpoints_name_what_each_failure_discards():
    spec, deployment = draft(recipe="beacon"), where("checkpoints.every=24h", preset="beacon")
    text = rules(spec, deployment)["checkpoints are far apart for this failure rate"]
    assert "every 24 h 0 min with an interruption every 3 h 0 min" in text
    assert "a failure discards 12 h 0 min on average" in text
    best = where("checkpoints.every=270s", preset="beacon")
    assert "checkpoints are far apart for this failure rate" not in rules(spec, best)


def test_checkpoints_rarer_than_wished():
    spec = draft("objective.checkpoint_every=10s")
    found = rules(spec, where("checkpoints.every_steps=100"), CALIBRATION)
    assert "wished 10 s" in found["checkpoints are rarer than the objective allows"]
    assert "checkpoints are rarer than the objective allows" not in rules(spec, where("checkpoints.every_steps=1"), CALIBRATION)


def test_storage_that_fills_up():
    assert "of 60 MiB" in risks(deployment=("storage.capacity=60MiB",))["checkpoints outgrow the storage"]
    assert "checkpoints outgrow the storage" not in risks(deployment=("storage.capacity=90MiB",))


def test_offload_where_the_device_is_the_host():
    moved = ("layouts.default={offload='all'}",)
    assert "stage main: offload all" in risks(deployment=moved)["offload on a CPU"]
    on_chips = where(*CHIP, "layouts.default={dp_shard=8, offload='all'}")
    assert "offload on a CPU" not in rules(draft(*GPT), on_chips)


def test_memory_of_ranks():
    spec = draft(*GPT, "stages.0.sequence=8192")
    small = where("accelerator.kind=L4", *CHIP[1:3], "layouts.default={dp_shard=8, zero=0, micro_batch=8}")
    assert "of 24 GiB" in rules(spec, small).get("memory", "")
    assert "memory" not in rules(draft(*GPT), where(*CHIP))


def test_memory_that_nearly_fits():
    peak = make_plan(draft(*GPT), where(*CHIP)).quantity("rank_memory")
    assert peak.low < peak.number() < peak.high
    rooms = {0.9 * peak.number(): "memory", (peak.number() + peak.high) / 2: "memory is close", 1.05 * peak.high: None}
    for room, expected in rooms.items():
        found = {"memory", "memory is close"} & set(rules(draft(*GPT), where(*CHIP, f"accelerator.memory={int(room)}")))
        assert found == ({expected} if expected else set())


def test_a_batch_that_does_not_divide_is_priced_once():
    spec = draft(*GPT, "stages.0.ramp=[{from=0, batch='521216'}]")  # 509 sequences over 8 replicas: 512
    assert "the batch does not divide over the replicas" not in rules(spec, where(*CHIP)), "0.6 %: nobody would change it"
    uneven = draft(*GPT, "stages.0.ramp=[{from=0, batch='66560'}]")  # 65 sequences over 8 replicas: 72
    text = rules(uneven, where(*CHIP))["the batch does not divide over the replicas"]
    assert "65 sequences over 8 replicas cost 10.8 % extra; 72 sequences cost none: " in text
    batch = text.split('batch = "')[1].split('"')[0]
    mended = draft(*GPT, f"stages.0.ramp=[{{from=0, batch='{batch}'}}]")
    assert "the batch does not divide over the replicas" not in rules(mended, where(*CHIP))


def test_utilisation_beyond_anything_published():
    best = BEST_PUBLISHED["H100"][0]
    stated = ("accelerator.utilisation_convention='full'", *CHIP)
    above, below = (where(*stated, f"accelerator.utilisation={best + change}") for change in (0.02, -0.02))
    rule = "the assumed utilisation was never published for this chip"
    assert rule in rules(draft(*GPT), above)
    assert rule not in rules(draft(*GPT), below)


def test_a_utilisation_without_its_convention():
    rule = "the utilisation does not say what it counts"
    assert rule in rules(draft(*GPT), where(*CHIP, "accelerator.utilisation=0.4"))
    assert rule not in rules(draft(*GPT), where(*CHIP, "accelerator.utilisation=0.4", "accelerator.utilisation_convention='6N'"))
    short = draft(*GPT, "stages.0.sequence=64", "stages.1.sequence=64")
    assert rule not in rules(short, where(*CHIP, "accelerator.utilisation=0.4")), "short sequences: all count alike"


def test_G2_more_than_the_peak_whatever_says_so():
    found = rules(draft(*GPT), where(*CHIP), {"tokens_per_second": 1e9})
    assert "MFU" in found["more than the peak"]


def test_the_worked_plan_is_told_what_it_provokes():
    found = {risk.rule for risk in preset("beacon").risks}
    assert found >= {"checkpoints are far apart for this failure rate", "the batch does not divide over the replicas"}


# --- what devices do beside training, and runs that end nowhere


def test_a_run_that_never_finishes_is_named():
    made = make_plan(draft(recipe="llama3-8b"), where("failures.per_device=0.01h", preset="llama3-8b"))
    found = {risk.rule: risk.number for risk in made.risks}
    assert "an interruption every 70" in found["the run never finishes"]
    assert "the run never finishes" not in {risk.rule for risk in preset("llama3-8b").risks}
    often = rules(draft(recipe="llama3-8b"), where("failures.per_device=150h", preset="llama3-8b"))
    assert "of the wall time is no training" in often["failures take most of the time"]


def test_checkpoints_that_are_too_close_have_words_of_their_own():
    found = rules(draft(recipe="beacon"), where("checkpoints.every=2s", preset="beacon"))
    assert not any("far apart" in rule for rule in found)
    text = found["checkpoints are close together for what a save costs"]
    assert "spent on saving" in text
    assert "discards" not in text
    assert "every 5.9" in text  # a step, which is longer than what was asked


@pytest.mark.parametrize("recipe", [(), ("evaluation.tokens_per_source=1e15",)])
def test_saves_and_evaluations_that_eat_the_run(recipe):
    rule = "saves and evaluations take a large part of the run"
    slow = () if recipe else ("storage.write_speed=1",)
    sets = [text.replace("1e15", '"1T"') for text in recipe]
    found = rules(draft(*sets, recipe="llama3-8b"), where(*slow, preset="llama3-8b"))
    assert "on top of training: saving" in found[rule]
    assert "(assumed)" in found[rule]
    assert rule not in {risk.rule for risk in preset("llama3-8b").risks}


def test_G2_every_convention_above_the_peak_is_an_alarm():
    spec = draft(*GPT)
    named = replace(spec, model=replace(spec.model, nominal_parameters=10**9))
    assert "more than the peak" not in rules(spec, where(*CHIP, "accelerator.utilisation=0.5"))
    text = rules(named, where(*CHIP, "accelerator.utilisation=0.5", "accelerator.utilisation_convention=causal"))[
        "more than the peak"
    ]
    assert "by 6 N" in text
    assert "counts operations that nobody carries out" in text


def test_saves_are_counted_by_steps_where_steps_are_longer_than_the_interval():
    plan = make_plan(draft(recipe="beacon"), where("checkpoints.every=1s", preset="beacon"))
    assert 0 < plan.quantity("checkpoints").number() <= plan.quantity("steps").number()
    assert plan.quantity("napkin_checkpoint_interval").number() == plan.quantity("napkin_step_seconds").number()
    assert any("is shorter than a step" in note for note in plan.notes)


def test_chips_without_known_links_are_not_planned_as_if_they_had_infinite_ones():
    with pytest.raises(ConfigError) as error:
        make_plan(draft(*GPT), where("accelerator.kind=MI455X", *CHIP[1:]))
    assert "no links of MI455X" in str(error.value)
    assert "accelerator.network" in str(error.value)
    stated = make_plan(draft(*GPT), where("accelerator.kind=MI455X", *CHIP[1:], "accelerator.network=50GB"))
    assert stated.quantity("step_seconds").number() > 0
    alone = where("accelerator.kind=MI455X", "nodes=1", "processes_per_node=1")
    assert make_plan(draft(*GPT), alone).quantity("step_seconds").number() > 0


@pytest.mark.parametrize(
    "asked", ["step time", "mfu", "utilisation", "cost", "energy", "device time", "failures", "mtbf", "goodput", "carbon"]
)
def test_everyday_quantities_exist_as_unknown_and_say_what_is_missing(asked):
    quantity = find_quantity(preset("demo"), asked)
    assert quantity.value is None
    assert "needs" in quantity.formula
