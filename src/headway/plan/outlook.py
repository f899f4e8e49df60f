"""What the run will need and how long it will take: memory, data, checkpoints and failures, time and cost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from headway.formulas.activations import Pass
from headway.formulas.failures import (
    Interruptions,
    expected_failures,
    lost_seconds_first_order,
    wall_seconds_daly,
    wall_seconds_self_consistent,
)
from headway.formulas.memory import memory_quantities, sum_of
from headway.formulas.quantity import Input, Quantity, estimate, unknown
from headway.plan.facts import MEASURED, PlanFacts
from headway.plan.plan import Cell, Column, Section, Table
from headway.recipe.spec import SourceSpec, Spec, StageSpec

if TYPE_CHECKING:
    from headway.data.stream import Coverage


def memory_section(facts: PlanFacts) -> Section:
    """Of one process, in the stage that needs most."""
    spec, deployment = facts.spec, facts.deployment
    by_stage = {stage.name: memory_quantities(largest_pass(facts, stage)) for stage in spec.stages}
    name = max(by_stage, key=lambda name: by_stage[name]["total"].number())
    parts, layout = by_stage[name], deployment.layout(name)
    shards = layout.pp * layout.dp_shard * layout.tp
    if shards == 1:
        return Section("Memory", tuple(parts.values()))
    state = parts["state"]
    inputs: dict[str, Input] = {"state_bytes": state, "shards": shards}
    share = Quantity(
        "state_bytes_per_process", state.number() / shards, "bytes", "16 N / (pp x dp_shard x tp)", inputs, "the layout"
    )
    return Section("Memory", (state, share))


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
    columns += [Column(stage.name, "share") for stage in spec.stages]
    columns += [Column("target tokens taken"), Column("passes"), Column("cap")]
    rows = tuple(_source_row(facts, place, source, coverage.get(source.name)) for place, source in enumerate(spec.sources))
    table = Table("Sources", tuple(columns), rows)
    if spec.is_draft:
        return Section("Data", (unknown("passes", "times", "the data is not built"),), (table,))
    most = max(entry.epochs for entry in coverage.values())
    passes = Quantity("passes", most, "times", "of the source read most: chunks begun / chunks there are", {}, "data.stream")
    return Section("Data", (passes,), (table, *_unread_tables(spec)))


def _unread_tables(spec: Spec) -> list[Table]:
    """What a change of sequence length leaves behind: at most one chunk per source and change (CONTRACTS section 1)."""
    from headway.data.stream import Stream

    rows = tuple((spec.stages[c.stage].name, c.source, c.slot, c.tokens) for c in Stream(spec).unread_chunks())
    columns = tuple(map(Column, ("stage that begins", "source", "chunk", "target tokens left unread")))
    return [Table("Left unread where the sequence length changes", columns, rows)] if rows else []


def _source_row(facts: PlanFacts, place: int, source: SourceSpec, coverage: Coverage | None) -> tuple[Cell, ...]:
    """Mixture weights are shown as shares of target tokens, as they were asked."""
    shares: list[Cell] = []
    for stage in facts.spec.stages:
        weights = [quanta * other.target_share for quanta, other in zip(stage.quanta, facts.spec.sources, strict=True)]
        shares.append(weights[place] / sum(weights))
    built = (None, None) if facts.spec.is_draft else (source.tokens, source.target_share)
    taken: Cell = coverage.target_tokens if coverage else None
    passes: Cell = round(coverage.epochs, 2) if coverage else None
    if coverage is None:
        from headway.data.mixture import counts

        seed, stages = facts.spec.data_seed, facts.spec.stages
        taken = sum(counts(s.sequences, s.quanta, seed)[place] * s.sequence_length for s in stages)
    return (source.name, *built, source.licence, *shares, taken, passes, source.cap_epochs)


def checkpoints_section(facts: PlanFacts) -> Section:
    policy = facts.deployment.checkpoints
    size, saves = facts.checkpoint_size, facts.saves
    permanent = int(saves.number()) // policy.permanent_every if policy.permanent_every else 0
    kept = min(int(saves.number()), policy.keep_last + permanent)
    inputs: dict[str, Input] = {"checkpoint_bytes": size, "keep_last": policy.keep_last, "permanent": permanent}
    stored = Quantity("checkpoint_storage", kept * size.number(), "bytes", "bytes x (kept + permanent)", inputs, "")
    interval = facts.spent(
        "checkpoint_interval", policy.every_steps * facts.tokens.number() / facts.steps.number(), "steps x step time"
    )
    quantities = [size, saves, stored, interval, facts.save_seconds]
    if facts.deployment.failures.every is not None:
        quantities += [facts.young_interval, facts.best_interval, *_failure_quantities(facts, interval)]
    return Section("Checkpoints and failures", tuple(quantities))


def _failure_quantities(facts: PlanFacts, interval: Quantity) -> list[Quantity]:
    """Expected interruptions and the wall time with them, by two formulas."""
    failures = facts.deployment.failures
    useful = facts.spent("useful_seconds", facts.tokens.number(), "tokens / tokens per second", {"tokens": facts.tokens})
    if failures.every is None or useful.value is None:
        return [unknown("expected_failures", "times", useful.formula)]
    rate = Interruptions(failures.every, failures.restart, interval.number(), facts.save_seconds.number())
    inputs: dict[str, Input] = {
        "T0": useful,
        "M": failures.every,
        "R": failures.restart,
        "tau": interval,
        "c": facts.save_seconds,
    }
    count = expected_failures(useful.number(), failures.every)
    made = [Quantity("expected_failures", count, "", "T0 / M", {"T0": useful, "M": failures.every}, "first order")]
    made.append(_lost_first_order(useful, interval, rate, inputs))
    consistent, daly = wall_seconds_self_consistent(useful.number(), rate), wall_seconds_daly(useful.number(), rate)
    if daly is None or consistent is None:
        return [*made, unknown("wall_seconds_with_failures", "seconds", "failures come faster than work is saved")]
    formula = "M e^(R/M) (e^((tau+c)/M) - 1) T0 / tau; range: to the self-consistent formula"
    low, high = sorted((daly, consistent))
    return [*made, Quantity("wall_seconds_with_failures", daly, "seconds", formula, inputs, "Daly 2006", low, high)]


def _lost_first_order(useful: Quantity, interval: Quantity, rate: Interruptions, inputs: dict[str, Input]) -> Quantity:
    """What can be checked in one's head; the range is that of the step time, which is in T0 and in tau."""
    at = [(q or useful.number(), t or interval.number()) for q, t in ((useful.low, interval.low), (useful.high, interval.high))]
    low, high = (lost_seconds_first_order(t0, replace(rate, interval=tau)) for t0, tau in at)
    value = lost_seconds_first_order(useful.number(), rate)
    used = {name: inputs[name] for name in ("T0", "M", "R", "tau")}
    return Quantity("lost_to_failures_seconds", value, "seconds", "T0 / M x (tau / 2 + R)", used, "first order", low, high)


def time_section(facts: PlanFacts) -> Section:
    """Training, saves, evaluations, and their sum with its range."""
    train = facts.spent("training_seconds", facts.tokens.number(), "tokens / tokens per second", {"tokens": facts.tokens})
    if train.value is None:
        missing = unknown("predicted_seconds", "seconds", train.formula)
        return Section("Predicted time", (train, missing))
    parts = {
        "training": train,
        "saves": times(facts.saves, facts.save_seconds, "saving_seconds"),
        "evaluations": times(facts.evaluations, facts.evaluation_seconds, "evaluating_seconds"),
    }
    digests = _digest_time(facts)
    if digests is not None:
        parts["digests"] = digests
    total = sum_of("predicted_seconds", parts, "seconds")
    quantities = [facts.step_seconds, facts.evaluations, *parts.values(), total]
    price = facts.deployment.price_per_hour
    if price is not None:
        quantities.append(_cost(facts, total, price))
    return Section("Predicted time", tuple(quantities))


def _digest_time(facts: PlanFacts) -> Quantity | None:
    """Digests of the whole state, where the deployment asks for them and the calibration timed one."""
    every = facts.deployment.state_digest_every
    if not every or not facts.calibration or "digest_seconds" not in facts.calibration:
        return None
    count = Quantity("state_digests", facts.schedule.total_steps // every, "times", "steps / every", {"steps": facts.steps}, "")
    one = float(facts.calibration["digest_seconds"])
    each = estimate("digest_seconds", one, "seconds", "measured", {}, MEASURED, (0.7, 2.0))
    return times(count, each, "digesting_seconds")


def times(count: Quantity, each: Quantity, name: str) -> Quantity:
    """``count`` times ``each``, with its range."""
    number = count.number()
    low = None if each.low is None else number * each.low
    high = None if each.high is None else number * each.high
    formula = f"{count.name} x {each.name}"
    return Quantity(name, number * each.number(), each.unit, formula, {count.name: count, each.name: each}, "", low, high)


def _cost(facts: PlanFacts, total: Quantity, price: float) -> Quantity:
    factor = facts.deployment.world * price / 3600
    low = None if total.low is None else total.low * factor
    high = None if total.high is None else total.high * factor
    inputs: dict[str, Input] = {"predicted_seconds": total, "processes": facts.deployment.world, "price_per_hour": price}
    unit = facts.deployment.currency
    return Quantity("cost", total.number() * factor, unit, "hours x processes x price", inputs, "deployment", low, high)
