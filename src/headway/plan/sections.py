"""The sections of a plan, in the order in which a reader asks: what, how large, in what steps; ``outlook`` has the rest."""

from __future__ import annotations

from collections.abc import Callable

from headway.base.units import format_count
from headway.formulas.flops import Convention, convert_mfu, flops_quantity
from headway.formulas.quantity import Input, Quantity
from headway.plan.declared import declared_section
from headway.plan.facts import PlanFacts
from headway.plan.outlook import checkpoints_section, data_section, memory_section, time_section
from headway.plan.plan import Cell, Column, Section, Table
from headway.recipe.schedules import Schedule

SHARES = (0.0, 0.01, 0.1, 0.5, 0.9, 1.0)
"""Where the schedule table looks: shares of the run's tokens."""


PARTS = ("embedding", "attention", "ffn", "gains", "head")


def inputs_section(facts: PlanFacts) -> Section:
    """What was chosen; everything else follows."""
    spec, deployment = facts.spec, facts.deployment
    model = spec.model
    shape = f"{model.layers} layers, width {model.width}, {model.heads} heads / {model.kv_heads} kv, ffn {model.ffn_width}"
    lengths = ", ".join(dict.fromkeys(f"{stage.sequence_length:,}" for stage in spec.stages))
    device = deployment.accelerator
    peak = f"{format_count(device.peak_flops, 'FLOP/s')} peak each" if device.peak_flops else "peak unknown"
    data = "not built yet: a draft" if spec.is_draft else f"{format_count(sum(s.tokens for s in spec.sources), 'tokens')} built"
    return Section(
        "Inputs",
        (
            Quantity("model", shape, "", "chosen", {}, "recipe: model"),
            Quantity("vocabulary", model.vocabulary, "", "chosen", {}, "recipe: tokenizer"),
            Quantity("tokens_asked", sum(stage.tokens for stage in spec.stages), "tokens", "sum of stages", {}, "recipe: stages"),
            Quantity("sequence_lengths", lengths, "tokens", "chosen", {}, "recipe: stages"),
            Quantity("sources", ", ".join(s.name for s in spec.sources) + f" ({data})", "", "chosen", {}, "recipe: data"),
            Quantity("processes", deployment.world, "", "nodes x processes per node", {}, "deployment"),
            Quantity("accelerator", f"{device.kind}, {peak}", "", "chosen", {}, "deployment: accelerator"),
        ),
    )


def parameters_section(facts: PlanFacts) -> Section:
    parameters = facts.parameters
    total = parameters["total"].number()
    rows = tuple(
        (part, int(parameters[part].number()), parameters[part].number() / total, parameters[part].formula) for part in PARTS
    )
    columns = (Column("component"), Column("parameters"), Column("share", "share"), Column("formula"))
    return Section(
        "Parameters",
        (parameters["total"], parameters["non_embedding"], parameters["products"]),
        (Table("Parameters by component", columns, rows),),
    )


def compute_section(facts: PlanFacts) -> Section:
    first = facts.spec.stages[0].sequence_length
    per_token = [flops_quantity(facts.spec.model, first, convention) for convention in Convention]
    totals = [facts.total_flops(convention) for convention in Convention]
    ratio = facts.tokens.number() / facts.parameters["total"].number()
    inputs: dict[str, Input] = {"tokens": facts.tokens, "parameters": facts.parameters["total"]}
    quantities = [Quantity("tokens_per_parameter", ratio, "", "tokens / parameters", inputs, ""), *per_token, *totals]
    if facts.assumed_flops_per_second.value is not None:
        quantities.append(facts.assumed_flops_per_second)
    quantities += [facts.tokens_per_second, *_utilisation(facts)]
    return Section("Compute", tuple(quantities))


def _utilisation(facts: PlanFacts) -> list[Quantity]:
    """MFU of a measured rate, by convention; only where the peak is known."""
    peak, rate = facts.deployment.accelerator.peak_flops, facts.tokens_per_second
    if peak is None or not facts.calibration:
        return []
    made = []
    per_token = facts.total_flops(Convention.CAUSAL).number() / facts.tokens.number()
    causal = per_token * rate.number() / (peak * facts.deployment.world)
    for convention in (Convention.CAUSAL, Convention.FULL):
        flops = facts.total_flops(convention)
        value = convert_mfu(causal, facts.spec.model, facts.mean_context, of=Convention.CAUSAL, to=convention)
        inputs: dict[str, Input] = {
            "rate": rate,
            "flops": flops,
            "tokens": facts.tokens,
            "peak": peak,
            "world": facts.deployment.world,
        }
        formula = f"rate x FLOP per token ({convention.value} attention) / (world x peak)"
        made.append(Quantity(f"mfu_{convention.value}", value, "share", formula, inputs, "calibration"))
    return made


def batch_section(facts: PlanFacts) -> Section:
    columns = ("stage", "sequence", "batch (sequences)", "batch (tokens)", "from token", "steps", "tokens")
    rows: list[tuple[Cell, ...]] = []
    overshoot: list[tuple[Cell, ...]] = []
    for index, stage in enumerate(facts.spec.stages):
        ends = [phase.first_sequence for phase in stage.phases[1:]] + [stage.sequences]
        T = stage.sequence_length
        for phase, end in zip(stage.phases, ends, strict=True):
            count, size = end - phase.first_sequence, phase.batch_sequences
            rows.append((stage.name, T, size, size * T, phase.first_sequence * T, count // size, count * T))
        trained = stage.sequences * T
        overshoot.append((stage.name, stage.tokens, trained, trained - stage.tokens, facts.schedule.stage_steps(index)))
    return Section(
        "Batch and steps",
        (facts.tokens, facts.steps),
        (
            Table("Batches", tuple(map(Column, columns)), tuple(rows)),
            Table(
                "Stages: whole batches up to the tokens asked",
                tuple(map(Column, ("stage", "tokens asked", "tokens trained", "overshoot", "steps"))),
                tuple(overshoot),
            ),
        ),
    )


def schedule_section(facts: PlanFacts) -> Section:
    spec = facts.spec
    optimizer = spec.optimizer
    memory = Quantity("moment_memory", 1 / (1 - optimizer.beta2), "steps", "1 / (1 - beta2)", {"beta2": optimizer.beta2}, "")
    words = f"AdamW, beta {optimizer.beta1:g} / {optimizer.beta2:g}, decay {optimizer.weight_decay:g}"
    clip = f"global norm {optimizer.clip_norm:g}" if optimizer.clip_norm else "none"
    warmup = Quantity("warmup_tokens", spec.stages[0].rate.warmup_tokens, "tokens", "chosen", {}, "recipe: stages.0.rate")
    return Section(
        "Optimiser and schedule",
        (
            Quantity("optimizer", words, "", "chosen", {}, "recipe: optimizer"),
            Quantity("peak_rate", optimizer.peak_rate, "rate", "chosen", {}, "recipe: optimizer"),
            Quantity("clipping", clip, "", "chosen", {}, "recipe: optimizer"),
            memory,
            warmup,
        ),
        (schedule_table(facts),),
    )


def schedule_table(facts: PlanFacts) -> Table:
    """Rate, batch and step time at shares of the tokens: of the step that trains that token, exactly as it will run."""
    schedule, rate = facts.schedule, facts.tokens_per_second
    rows: list[tuple[Cell, ...]] = []
    for share in SHARES:
        step = step_at_tokens(schedule, share * schedule.total_tokens)
        place = schedule.place(step)
        stage = facts.spec.stages[place.stage]
        batch = place.batch_sequences * stage.sequence_length
        seconds = batch / rate.number() if rate.value is not None else None
        rows.append((share, schedule.tokens_before(step), stage.name, step + 1, schedule.rate(step), batch, seconds))
    columns = (
        Column("of the tokens", "share"),
        Column("tokens before"),
        Column("stage"),
        Column("step"),
        Column("learning rate", "rate"),
        Column("batch (tokens)"),
        Column("step time", "seconds"),
    )
    return Table("Schedule", columns, tuple(rows))


def step_at_tokens(schedule: Schedule, tokens: float) -> int:
    """The step (from 0) that trains token ``tokens``; the last one at the end."""
    low, high = 0, schedule.total_steps - 1
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if schedule.tokens_before(middle) <= tokens else (low, middle - 1)
    return low


SECTIONS: tuple[Callable[[PlanFacts], Section | None], ...] = (
    inputs_section,
    parameters_section,
    compute_section,
    batch_section,
    schedule_section,
    memory_section,
    data_section,
    checkpoints_section,
    time_section,
    declared_section,
)
