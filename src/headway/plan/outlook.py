"""What the run will need: memory of a process, data, checkpoints and how many of them are kept."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headway.formulas.activations import Pass
from headway.formulas.memory import memory_quantities
from headway.formulas.quantity import Input, Quantity, unknown
from headway.formulas.rank_memory import Share, rank_quantities
from headway.formulas.recompute import Recompute
from headway.plan.cluster import work_of
from headway.plan.facts import PlanFacts
from headway.plan.failure.section import checkpoint_interval
from headway.plan.memory.state import state_quantities
from headway.plan.plan import Cell, Column, Section, Table
from headway.plan.ranges import product, rising
from headway.recipe.mixture_rules import rule_words
from headway.recipe.offload import Offload
from headway.recipe.spec import SourceSpec, Spec, StageSpec

if TYPE_CHECKING:
    from headway.data.stream import Coverage


def memory_section(facts: PlanFacts) -> Section:
    """Of one process, in the stage that needs most; on a chip of the table the states alone, ``rank_memory`` has the rest."""
    if facts.cluster is not None:
        return Section("Training state", _states(facts, facts.spec.stages[0]))
    by_stage = [(stage, _process_memory(facts, stage)) for stage in facts.spec.stages]
    counted = [parts for _, parts in by_stage if parts is not None]
    if len(counted) < len(by_stage):
        return Section("Memory", _states(facts, next(stage for stage, parts in by_stage if parts is None)))
    return Section("Memory", tuple(max(counted, key=lambda parts: parts["total"].number()).values()))


def _process_memory(facts: PlanFacts, stage: StageSpec) -> dict[str, Quantity] | None:
    """Of this engine on CPUs; None for layouts whose ranks are not counted tensor by tensor."""
    one, layout, optimizer = largest_pass(facts, stage), facts.layouts[stage.name], facts.spec.optimizer
    if layout.offload is not Offload.NONE:
        return None
    if layout.world == 1:
        return memory_quantities(one, optimizer)
    batch = max(phase.batch_sequences for phase in stage.phases)
    one = replace(one, rows=min(one.rows, -(-batch // layout.dp)))
    passes = -(-batch // (layout.dp * one.rows))
    share = Share(tp=layout.tp, cp=layout.cp, shards=layout.shards, zero=layout.zero, passes=passes)
    plain = layout.pp == layout.ep == 1 and layout.recompute == Recompute.NONE
    return rank_quantities(one, share, optimizer) if plain and share.takes(one.model) else None


def _states(facts: PlanFacts, stage: StageSpec) -> tuple[Quantity, Quantity]:
    """Of the whole model by the deployment's own bytes, and of one process as zero shards it."""
    work = work_of(facts.spec, stage, facts.deployment)
    return state_quantities(work, facts.layouts[stage.name], facts.parameters["stored"])


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
    tables = [Table("Sources", tuple(columns), rows), mixture_table(facts), *_rules_tables(spec)]
    if spec.is_draft:
        return Section("Data", (unknown("passes", "times", "the data is not built"),), tuple(tables))
    most = max(entry.epochs for entry in coverage.values())
    passes = Quantity("passes", most, "times", "of the source read most: chunks begun / chunks there are", {}, "the data stream")
    return Section("Data", (passes,), (*tables, *_unread_tables(spec)))


def mixture_table(facts: PlanFacts) -> Table:
    """Weights as shares of target tokens: a row per stage, and one of what was asked where caps moved them."""
    sources = facts.spec.sources
    rows: list[tuple[Cell, ...]] = []
    for stage in facts.spec.stages:
        for name, mixture in ((stage.name, stage.quanta), (f"{stage.name}, as asked", stage.asked_quanta)):
            weights = [quanta * stage.target_share(k, sources) for k, quanta in enumerate(mixture)]
            rows += [(name, *(weight / sum(weights) for weight in weights))] if mixture else []
    columns = (Column("stage"), *(Column(source.name, "share") for source in sources))
    return Table("Mixture", columns, tuple(rows))


def _rules_tables(spec: Spec) -> list[Table]:
    """Where weights were not given as they are."""
    sizes = "declared inventory" if spec.is_draft else "built data"
    rows = tuple(
        (stage.name, rule_words(stage), sizes if stage.mixture_rule or stage.asked_quanta else "")
        for stage in spec.stages
        if stage.mixture_rule or stage.asked_quanta
    )
    return [Table("Weights that follow", tuple(map(Column, ("stage", "weights", "by the sizes of"))), rows)] if rows else []


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
    stored = stored_checkpoints(facts)
    factors: dict[str, Input] = {"checkpoint_bytes": facts.checkpoint_size, "stored_checkpoints": stored}
    storage = product("checkpoint_storage", "bytes", "checkpoint_bytes x stored_checkpoints", factors)
    every, interval = facts.steps_per_checkpoint, checkpoint_interval(facts)
    quantities = (facts.checkpoint_size, every, facts.saves, stored, storage, interval, facts.save_seconds)
    return Section("Checkpoints", quantities)


def stored_checkpoints(facts: PlanFacts) -> Quantity:
    """On the storage at the end: the newest, and those that stay for good."""
    name, saves, kept, newest = "stored_checkpoints", facts.saves, kept_checkpoints(facts), facts.deployment.checkpoints.keep_last
    if saves.value is None or kept.value is None:
        return unknown(name, "times", (saves if saves.value is None else kept).formula)
    inputs: dict[str, Input] = {"checkpoints": saves, "keep_last": newest, "kept_checkpoints": kept}
    value, low, high = rising(lambda count, stay: int(min(count, newest + stay)), saves, kept)
    if low == high:  # however many are written, so many stay
        low = high = None
    return Quantity(name, value, "times", "min(checkpoints, keep_last + kept_checkpoints)", inputs, "", low, high)


def kept_checkpoints(facts: PlanFacts) -> Quantity:
    """Those that stay for good. By the clock they are counted over the time that passes: work done again is saved again."""
    policy, saves, name = facts.deployment.checkpoints, facts.saves, "kept_checkpoints"
    if not policy.permanent_every:
        return Quantity(name, 0, "times", "none: permanent_every is 0", {}, "deployment: checkpoints")
    if policy.every is not None:
        interval = checkpoint_interval(facts)
        every = policy.every if interval.value is None else interval.number()
        return kept_quantity(facts.wall_seconds, every, policy.permanent_every)
    inputs: dict[str, Input] = {"checkpoints": saves, "permanent_every": policy.permanent_every}
    value = int(saves.number()) // policy.permanent_every
    return Quantity(name, value, "times", "floor(checkpoints / permanent_every)", inputs)


def kept_quantity(seconds: Quantity, every: float, permanent_every: int) -> Quantity:
    """Checkpoints kept of so much time, saved by the clock."""
    name, unit = "kept_checkpoints", "times"
    if seconds.value is None:
        return unknown(name, unit, seconds.formula)
    inputs: dict[str, Input] = {seconds.name: seconds, "every": every, "permanent_every": permanent_every}
    formula = f"floor(floor({seconds.name} / every) / permanent_every)"
    value, low, high = rising(lambda bound: int(bound // every // permanent_every), seconds)
    return Quantity(name, value, unit, formula, inputs, "", low, high)
