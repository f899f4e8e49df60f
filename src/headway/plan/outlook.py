"""What the run will need: memory of a process, data, checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.formulas.activations import Pass
from headway.formulas.memory import memory_quantities
from headway.formulas.quantity import Input, Quantity, unknown
from headway.plan.facts import PlanFacts
from headway.plan.failure.section import checkpoint_interval
from headway.plan.plan import Cell, Column, Section, Table
from headway.recipe.spec import SourceSpec, Spec, StageSpec

if TYPE_CHECKING:
    from headway.data.stream import Coverage


def memory_section(facts: PlanFacts) -> Section:
    """Of one process, in the stage that needs most; on a chip of the table the states alone, ``rank_memory`` has the rest."""
    if facts.cluster is not None:
        return Section("Training state", _state_share(facts, _state(facts), facts.spec.stages[0].name))
    by_stage = {stage.name: memory_quantities(largest_pass(facts, stage)) for stage in facts.spec.stages}
    name = max(by_stage, key=lambda name: by_stage[name]["total"].number())
    parts = by_stage[name]
    layout = facts.layouts[name]
    if layout.world == layout.dp_replicate:
        return Section("Memory", tuple(parts.values()))
    return Section("Memory", _state_share(facts, parts["state"], name))


def _state(facts: PlanFacts) -> Quantity:
    """Weights, gradients, master copy and moments of the whole model."""
    stored = facts.parameters["stored"]
    inputs: dict[str, Input] = {"N": stored}
    words = "bf16 weights and gradients, fp32 master copy and two moments: 2 + 2 + 12 bytes (arXiv 1910.02054)"
    return Quantity("state_bytes", 16 * int(stored.number()), "bytes", "16 N", inputs, words)


def _state_share(facts: PlanFacts, state: Quantity, stage: str) -> tuple[Quantity, Quantity]:
    """Of the whole model, and of one process were everything that can be shared out shared out."""
    layout = facts.layouts[stage]
    shards = layout.pp * layout.dp_shard * layout.cp * layout.tp
    inputs: dict[str, Input] = {"state_bytes": state, "shards": shards}
    formula = "state_bytes / shards; shards: pp x dp_shard x cp x tp"
    return state, Quantity("state_bytes_per_process", state.number() / shards, "bytes", formula, inputs, "the layout")


def largest_pass(facts: PlanFacts, stage: StageSpec) -> Pass:
    """A micro-batch as the trainer cuts it: whole sequences, at least one, never more than a batch."""
    rows = max(1, facts.deployment.micro_batch_tokens // stage.sequence_length)
    rows = min(rows, max(phase.batch_sequences for phase in stage.phases))
    model, compute = facts.spec.model, facts.spec.precision.compute
    return Pass(model=model, compute=compute, sequence_length=stage.sequence_length, rows=rows)


def data_section(facts: PlanFacts) -> Section:
    """Per source: what there is, what is taken, how often it is read."""
    spec = facts.spec
    coverage: dict[str, Coverage] = {}
    if not spec.is_draft:
        from headway.data.stream import source_coverage

        coverage = {entry.source: entry for entry in source_coverage(spec)}
    columns = [Column("source"), Column("tokens"), Column("target share", "share"), Column("licence")]
    columns += [Column("target tokens taken"), Column("passes"), Column("cap")]
    rows = tuple(_source_row(facts, place, source, coverage.get(source.name)) for place, source in enumerate(spec.sources))
    tables = [Table("Sources", tuple(columns), rows), mixture_table(facts)]
    if spec.is_draft:
        return Section("Data", (unknown("passes", "times", "the data is not built"),), tuple(tables))
    most = max(entry.epochs for entry in coverage.values())
    passes = Quantity("passes", most, "times", "of the source read most: chunks begun / chunks there are", {}, "data.stream")
    return Section("Data", (passes,), (*tables, *_unread_tables(spec)))


def mixture_table(facts: PlanFacts) -> Table:
    """Weights as shares of target tokens, as they were asked: a row per stage."""
    sources = facts.spec.sources
    rows: list[tuple[Cell, ...]] = []
    for stage in facts.spec.stages:
        weights = [quanta * source.target_share for quanta, source in zip(stage.quanta, sources, strict=True)]
        rows.append((stage.name, *(weight / sum(weights) for weight in weights)))
    columns = (Column("stage"), *(Column(source.name, "share") for source in sources))
    return Table("Mixture", columns, tuple(rows))


def _unread_tables(spec: Spec) -> list[Table]:
    """What a change of sequence length leaves behind: at most one chunk per source and change (CONTRACTS section 1)."""
    from headway.data.stream import Stream

    rows = tuple((spec.stages[c.stage].name, c.source, c.slot, c.tokens) for c in Stream(spec).unread_chunks())
    columns = tuple(map(Column, ("stage that begins", "source", "chunk", "target tokens left unread")))
    return [Table("Left unread where the sequence length changes", columns, rows)] if rows else []


def _source_row(facts: PlanFacts, place: int, source: SourceSpec, coverage: Coverage | None) -> tuple[Cell, ...]:
    built = (None, None) if facts.spec.is_draft else (source.tokens, source.target_share)
    taken: Cell = coverage.target_tokens if coverage else None
    passes: Cell = round(coverage.epochs, 2) if coverage else None
    if coverage is None:
        from headway.data.mixture import counts

        seed, stages = facts.spec.data_seed, facts.spec.stages
        taken = sum(counts(s.sequences, s.quanta, seed)[place] * s.sequence_length for s in stages)
    return (source.name, *built, source.licence, taken, passes, source.cap_epochs)


def checkpoints_section(facts: PlanFacts) -> Section:
    """Size, count, what stays, how far apart, what one costs. What failures make of it stands in ``failures_section``."""
    policy = facts.deployment.checkpoints
    size, saves = facts.checkpoint_size, facts.saves
    permanent = int(saves.number()) // policy.permanent_every if policy.permanent_every else 0
    kept = min(int(saves.number()), policy.keep_last + permanent)
    inputs: dict[str, Input] = {"checkpoint_bytes": size, "kept": kept, "keep_last": policy.keep_last, "permanent": permanent}
    formula = "checkpoint_bytes kept; kept: the last ones and those that stay for good"
    stored = Quantity("checkpoint_storage", kept * size.number(), "bytes", formula, inputs, "")
    every = facts.steps_per_checkpoint
    quantities = [size, every, saves, stored, checkpoint_interval(facts), facts.save_seconds]
    return Section("Checkpoints", tuple(quantities))
