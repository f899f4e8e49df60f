"""The chapters of a plan and the sections in them, in the order in which a reader asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from headway.base.units import format_count
from headway.formulas.quantity import Quantity
from headway.plan.compute_section import compute_section, parameters_section, rates_section, time_section
from headway.plan.declared import declared_section
from headway.plan.facts import PlanFacts
from headway.plan.failure.section import failures_section
from headway.plan.final_sections import deliverable_section, final_section
from headway.plan.laws.capacity import capacity_section
from headway.plan.laws.context import context_section
from headway.plan.laws.hyperparameters import hyperparameters_section
from headway.plan.layout.section import layout_section
from headway.plan.memory.rank_memory import rank_memory_section
from headway.plan.monitoring import monitoring_section
from headway.plan.on_demand import search_section, sheet_section, simulated_section
from headway.plan.outlook import checkpoints_section, data_section, memory_section
from headway.plan.parametrisation import parametrisation_section
from headway.plan.plan import Cell, Column, Section, Table
from headway.plan.published.napkin import napkin_section
from headway.plan.published.section import published_section
from headway.plan.ramp import ramp_table, schedule_table, warmup_quantities
from headway.plan.show.families import folded, stage_names
from headway.plan.worksheet.costs import worksheet_section
from headway.recipe.schedules import spans
from headway.recipe.spec import Spec

MANY = 3  # values that a line still lists
Builder = Callable[[PlanFacts], Section | None]


def inputs_section(facts: PlanFacts) -> Section:
    """What was chosen; everything else follows."""
    spec, model = facts.spec, facts.spec.model
    shape = f"{model.layers} layers, width {model.width}, {model.heads} heads / {model.kv_heads} kv, ffn {model.ffn_width}"
    if model.experts:
        shape += f", {model.experts.experts} experts of {model.experts.width}, top {model.experts.top_k}"
    lengths = _lengths(spec)
    data = "not built yet: a draft" if spec.is_draft else f"{format_count(sum(s.tokens for s in spec.sources), 'tokens')} built"
    asked = sum(stage.tokens for stage in spec.stages)
    return Section(
        "Inputs",
        (
            Quantity("model", shape, "", "chosen", {}, "recipe: model"),
            Quantity("vocabulary", model.vocabulary, "", "chosen", {}, "recipe: tokenizer"),
            Quantity("tokens_asked", asked, "tokens", "sum of stages", {s.name: s.tokens for s in spec.stages}, "recipe: stages"),
            Quantity("sequence_lengths", lengths, "tokens", "chosen", {}, "recipe: stages"),
            Quantity("sources", ", ".join(s.name for s in spec.sources) + f" ({data})", "", "chosen", {}, "recipe: data"),
            *_devices(facts),
        ),
    )


def _lengths(spec: Spec) -> str:
    lengths = list(dict.fromkeys(stage.sequence_length for stage in spec.stages))
    if len(lengths) <= MANY:
        return ", ".join(f"{length:,}" for length in lengths)
    return f"{lengths[0]:,} to {max(lengths):,} ({len(lengths)} lengths)"


def _devices(facts: PlanFacts) -> tuple[Quantity, ...]:
    """How many of what, with what of it is known."""
    deployment, peak = facts.deployment, facts.peak_flops_per_second
    device = deployment.accelerator
    rate = f"{format_count(peak, 'FLOP/s')} dense peak each in {facts.spec.precision.compute}" if peak else "peak unknown"
    source = facts.cluster.chip.source if facts.cluster else "deployment: accelerator"
    inputs = {"nodes": deployment.nodes, "processes_per_node": deployment.processes_per_node}
    made = [
        Quantity("processes", deployment.world, "", "nodes x processes_per_node", inputs, "deployment"),
        Quantity("accelerator", f"{device.kind}, {rate}", "", "chosen", {}, source),
    ]
    if facts.cluster:
        memory = facts.cluster.chip.memory_bytes
        made.append(Quantity("device_memory_bytes", memory, "bytes", "as frameworks see it", {}, facts.cluster.chip.source))
    return tuple(made)


def batch_section(facts: PlanFacts) -> Section:
    rows: list[tuple[Cell, ...]] = []
    overshoot: list[tuple[Cell, ...]] = []
    for index, stage in enumerate(facts.spec.stages):
        T = stage.sequence_length
        for span in spans(stage):
            size, first = span.batch_sequences, span.first_sequence
            rows.append((stage.name, T, size, size * T, first * T, span.steps, span.sequences * T))
        trained = stage.sequences * T
        overshoot.append((stage.name, stage.tokens, trained, trained - stage.tokens, facts.schedule.stage_steps(index)))
    columns = ("stage", "sequence", "batch (sequences)", "batch (tokens)", "from token", "steps", "tokens")
    tables = [
        Table("Batches", tuple(map(Column, columns)), tuple(rows)),
        Table(
            "Stages: whole batches up to the tokens asked",
            tuple(map(Column, ("stage", "tokens asked", "tokens trained", "overshoot", "steps"))),
            tuple(overshoot),
        ),
    ]
    ramped = any(len(stage.phases) > 1 for stage in facts.spec.stages)
    return Section("Batch and steps", (facts.tokens, facts.steps), (*tables, *([ramp_table(facts)] if ramped else [])))


def schedule_section(facts: PlanFacts) -> Section:
    optimizer = facts.spec.optimizer
    memory = Quantity("moment_memory", 1 / (1 - optimizer.beta2), "steps", "1 / (1 - beta2)", {"beta2": optimizer.beta2}, "")
    words = f"AdamW, beta {optimizer.beta1:g} / {optimizer.beta2:g}, decay {optimizer.weight_decay:g}"
    if optimizer.kind == "muon":
        words = f"Muon ({optimizer.muon_scale}) on matrices, momentum {optimizer.momentum:g}; on the rest {words}"
    clip = f"global norm {optimizer.clip_norm:g}" if optimizer.clip_norm else "none"
    return Section(
        "Optimiser and schedule",
        (
            Quantity("optimizer", words, "", "chosen", {}, "recipe: optimizer"),
            Quantity("peak_rate", optimizer.peak_rate, "rate", "chosen", {}, "recipe: optimizer"),
            Quantity("clipping", clip, "", "chosen", {}, "recipe: optimizer"),
            memory,
            *warmup_quantities(facts),
        ),
        (schedule_table(facts),),
    )


PUBLISHED = "Published"
CHAPTERS: tuple[tuple[str, tuple[Builder, ...]], ...] = (
    ("Inputs", (inputs_section,)),
    ("Compute and time", (parameters_section, compute_section, rates_section, time_section, worksheet_section)),
    ("Batch and steps", (batch_section,)),
    ("Optimiser and schedule", (schedule_section, parametrisation_section, hyperparameters_section)),
    ("Memory and layout", (layout_section, search_section, sheet_section, memory_section, rank_memory_section)),
    ("Data", (data_section,)),
    (
        "Checkpoints, failures and monitoring",
        (checkpoints_section, failures_section, simulated_section, monitoring_section, declared_section),
    ),
    ("Final phases", (final_section, context_section)),
    ("Capacity and exposure", (capacity_section,)),
    ("Deliverable", (deliverable_section,)),
    (PUBLISHED, (napkin_section,)),
)
"""Title of a chapter and its sections. ``published_section`` looks at all of these and comes last."""


def build_sections(facts: PlanFacts) -> tuple[Section, ...]:
    """All that have something to say, each with the title of its chapter."""
    built: list[Section] = []
    stages = stage_names(facts.spec)
    for chapter, builders in CHAPTERS:
        for build in builders:
            section = build(facts)
            if section is not None:
                built.append(replace(folded(section, stages), chapter=chapter))
    published = published_section(facts, built)
    return tuple(built) if published is None else (*built, replace(folded(published, stages), chapter=PUBLISHED))
