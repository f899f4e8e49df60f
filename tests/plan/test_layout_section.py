"""A stage's layout in the plan: declared, found, or written on the command line."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from headway.base.errors import ConfigError
from headway.formulas.flops import Convention, flops_per_token
from headway.plan.facts import PlanFacts
from headway.plan.layout.feasible import is_feasible
from headway.plan.layout.fewer import as_fast_with_fewer, work_share
from headway.plan.layout.ranking import TIE
from headway.plan.layout.search import search_stage, searched, searched_for
from headway.plan.layout.section import communication_section, layout_section
from headway.plan.layout.stated import parse_layout
from headway.plan.work import Layout, Pipeline, Recompute
from headway.recipe.cluster import with_cluster
from headway.recipe.load import load_deployment, load_recipe
from headway.recipe.resolve import resolve

# --- the section -----------------------------------------------------------------------------------------------------------

RECIPE = """\
kind = "recipe"
name = "eight"
[tokenizer]
vocabulary = 128_256
[model]
layers = 32
width = 4096
heads = 32
kv_heads = 8
ffn_width = 14_336
qk_norm = false
tied_embeddings = false
[data]
[[data.sources]]
name = "web"
kind = "text-tree"
path = "web"
[[stages]]
name = "main"
tokens = "1T"
sequence = 8192
ramp = [{ from = "0", batch = "1M" }, { from = "10B", batch = "4M" }]
rate = { warmup = "8B" }
mixture = { web = 1 }
[[stages]]
name = "long"
tokens = "20B"
sequence = 131_072
batch = "4M"
mixture = { web = 1 }
[optimizer]
peak_rate = 3e-4
[evaluation]
every = "8B"
tokens_per_source = "1M"
"""
CHIPS = ["nodes=8", "processes_per_node=8", "accelerator.kind=H100-SXM"]
LAYOUTS = ["layouts.default={tp=2, dp_shard=32}", "layouts.long={tp=8, cp=8}"]


def facts_of(tmp_path: Path, *sets: str) -> PlanFacts:
    (tmp_path / "eight.toml").write_text(RECIPE)
    spec = resolve(load_recipe(tmp_path / "eight.toml"), None)
    return PlanFacts(spec, load_deployment(None, [*CHIPS, *LAYOUTS, *sets], runnable=False), None)


def test_declared_layouts_are_shown_per_stage_with_their_speed_and_waste(tmp_path: Path) -> None:
    facts = facts_of(tmp_path)
    section = layout_section(facts)
    assert section is not None
    quantities = {q.name: q for q in section.quantities}
    assert len(quantities) == len(section.quantities)
    assert quantities["layout_main"].value == "tp 2, dp_shard 32, micro-batch 1, zero 3, recompute none"
    assert quantities["layout_main"].formula.startswith("as declared")
    assert str(quantities["layout_long"].value).startswith("tp 8, cp 8, micro-batch 1")
    mfu, step = quantities["layout_mfu_main"], quantities["layout_step_seconds_main"]
    assert mfu.low is not None
    assert mfu.high is not None
    assert 0.2 < mfu.low < mfu.number() < mfu.high < 0.8
    rate = mfu.number() * step.number() * 64 * 989e12
    assert rate == pytest.approx(flops_per_token(facts.spec.model, 8192, Convention.CAUSAL) * 488 * 8192)
    assert quantities["batch_padding_main"].shown() == "4.92 %"  # 488 sequences over 32 replicas: 512 slots
    assert section.tables == ()
    sheets = communication_section(facts)
    assert sheets is not None
    assert len(sheets.tables) == 2


def test_what_a_layout_wastes_is_said_once_and_batches_in_every_phase(tmp_path: Path) -> None:
    section = layout_section(facts_of(tmp_path, "layouts.default={tp=16, dp_shard=4, micro_batch=3}"))
    assert section is not None
    wastes = [q.name for q in section.quantities if not q.name.startswith("layout_")]
    assert wastes == [
        "batch_padding_main_phase_1",
        "kv_copies_main_phase_1",
        "tp_across_domains_main_phase_1",
        "batch_padding_main",
    ]


def test_without_layouts_the_search_chooses_and_says_why(tmp_path: Path) -> None:
    declared = facts_of(tmp_path)
    facts = PlanFacts(declared.spec, with_cluster(declared.deployment, "64xH100"), None)
    section = layout_section(facts)
    assert section is not None
    quantities = {q.name: q for q in section.quantities}
    assert quantities["layout_main"].source == "search over layouts"
    assert quantities["layout_main"].formula.startswith("simplest within 3 % of the fastest of ")
    assert facts.layouts["main"].cp < facts.layouts["long"].cp
    assert [table.title for table in section.tables] == [
        "layouts of stage main: the simplest within 3 % of the fastest first, the rest by time",
        "why other layouts of stage main lose",
        "layouts of stage long: the simplest within 3 % of the fastest first, the rest by time",
        "why other layouts of stage long lose",
    ]
    for one in facts.predicted:  # the small batch of the ramp too
        assert is_feasible(one.work, one.layout, one.cluster)
    assert facts.predicted[1].time.seconds < declared.predicted[1].time.seconds


def test_stages_of_one_length_and_batch_share_a_search(tmp_path: Path) -> None:
    """The second stage has no ramp of its own: its layout serves the first one's small batch too."""
    (tmp_path / "eight.toml").write_text(RECIPE.replace("sequence = 131_072", "sequence = 8192"))
    spec = resolve(load_recipe(tmp_path / "eight.toml"), None)
    facts = PlanFacts(spec, with_cluster(load_deployment(), "64xH100"), None)
    assert searched_for(spec, spec.stages[1], facts.deployment) == searched_for(spec, spec.stages[0], facts.deployment)
    assert searched_for(spec, spec.stages[1], facts.deployment)[1] == (122,)
    before = searched.cache_info().misses
    assert facts.layouts["main"] == facts.layouts["long"]
    assert searched.cache_info().misses <= before + 1
    section = layout_section(facts)
    assert section is not None
    assert [table.title for table in section.tables] == [
        "layouts of stage main, long: the simplest within 3 % of the fastest first, the rest by time",
        "why other layouts of stage main, long lose",
    ]


def test_a_device_that_no_table_knows_has_no_layout_section(tmp_path: Path) -> None:
    (tmp_path / "eight.toml").write_text(RECIPE)
    facts = PlanFacts(resolve(load_recipe(tmp_path / "eight.toml"), None), load_deployment(), None)
    assert layout_section(facts) is None
    assert communication_section(facts) is None


def test_more_devices_than_the_step_can_use_are_said(tmp_path: Path) -> None:
    """Where little of the step is work, fewer devices are looked at; where most is, none."""
    declared = facts_of(tmp_path)
    small = declared.spec.model
    tiny = replace(declared.spec, model=replace(small, layers=2, width=256, heads=2, kv_heads=2, ffn_width=512))
    many = PlanFacts(tiny, with_cluster(declared.deployment, "1024xH100"), None)
    section = layout_section(many)
    assert section is not None
    assert "devices would be as fast (" in section.notes[0]
    one = many.predicted[-1]
    assert work_share(one.time) < 0.5
    fewer = as_fast_with_fewer(one.work, one.cluster, (), one.time)
    assert fewer is not None
    assert fewer[1].layout.world == fewer[0] < 1024
    assert fewer[1].seconds <= TIE * one.time.seconds
    enough = layout_section(PlanFacts(declared.spec, with_cluster(declared.deployment, "64xH100"), None))
    assert enough is not None
    assert enough.notes == ()


def test_stages_of_other_lengths_choose_among_the_shapes_of_the_main_stage(tmp_path: Path) -> None:
    declared = facts_of(tmp_path)
    facts = PlanFacts(declared.spec, with_cluster(declared.deployment, "64xH100"), None)
    main, long = (search_stage(facts.spec, stage, facts.deployment, facts.predicted[0].cluster) for stage in facts.spec.stages)
    assert main.shapes == 0 < long.shapes
    work, smaller = searched_for(facts.spec, facts.spec.stages[1], facts.deployment)
    everything = searched(work, facts.predicted[0].cluster, smaller)
    assert long.best is not None
    assert everything.best is not None
    assert long.fitting < everything.fitting
    assert long.best.seconds <= TIE * everything.best.seconds


def test_a_chip_without_the_precision_is_told_before_any_layout(tmp_path: Path) -> None:
    declared = facts_of(tmp_path)
    facts = PlanFacts(declared.spec, with_cluster(declared.deployment, "8xV100-SXM2-16GB"), None)
    with pytest.raises(ConfigError, match="V100-SXM2-16GB has no rate in bfloat16"):
        _ = facts.layouts


def test_the_way_out_of_a_search_in_vain_belongs_to_its_cause(tmp_path: Path) -> None:
    declared = facts_of(tmp_path)
    facts = PlanFacts(declared.spec, with_cluster(declared.deployment, "1048576xH100"), None)
    with pytest.raises(ConfigError, match=r"(?s)replicas for a batch of .*fewer chips, or a larger batch") as caught:
        _ = facts.layouts
    assert "shorter sequence" not in str(caught.value)


# --- the command line ------------------------------------------------------------------------------------------------------


def test_a_layout_is_read_and_replicas_fill_the_cluster() -> None:
    made = parse_layout("tp=8, pp=16,recompute=full, sequence-parallel=false", Layout(micro_batch=2), chips=16384)
    expected = Layout(tp=8, pp=16, dp_shard=128, micro_batch=2, recompute=Recompute.FULL, sequence_parallel=False)
    assert made == expected
    assert parse_layout("tp=8,dp=4", Layout(), chips=16384) == Layout(tp=8, dp_shard=4)
    assert parse_layout("vp=2,pipeline=interleaved,pp=2", Layout()) == Layout(pp=2, virtual=2, pipeline=Pipeline.INTERLEAVED)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("tq=8", "'tq=8' names no field"),
        ("tp", "'tp' has no value"),
        ("tp=", "has no value"),
        ("", "names no field"),
        ("tp=8,tp=4", "tp is given twice"),
        ("dp=8,dp_shard=4", "dp_shard is given twice"),
        ("tp=eight", "a whole number, at least 1"),
        ("tp=0", "a whole number, at least 1"),
        ("tp=-2", "a whole number, at least 1"),
        ("recompute=some", "recompute is one of none, selective, "),
        ("sequence_parallel=yes", "sequence_parallel is true or false"),
        ("offload=yes", "offload is one of none, optimizer, activations, all"),
        ("tp=3", "16,384 chips are no multiple of that"),
    ],
)
def test_what_cannot_be_read_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_layout(text, Layout(), chips=16384)
    assert said in str(caught.value)
