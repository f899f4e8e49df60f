"""Risks as rules: each fires on the recipe that breaks it, with its number, and on no other."""

from __future__ import annotations

import pytest

from headway.plan.plan import make_plan
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
