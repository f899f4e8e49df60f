"""The end of a run: stages that decay, that lengthen the context, that shift the mixture; and what is then handed over."""

from __future__ import annotations

from collections.abc import Iterator

from headway.formulas.parameters import count_parameters
from headway.formulas.quantity import Input, Quantity
from headway.plan.facts import PlanFacts
from headway.plan.laws.forecast import forecast_quantities, forecast_table
from headway.plan.plan import Cell, Column, Section, Table
from headway.recipe.spec import QUANTA, StageSpec

FALLS_TO_ZERO = 0.02
"""Share of the peak: a rate that ends below it has been annealed."""
BF16 = 2  # bytes per parameter of exported weights


def falls(stage: StageSpec) -> bool:
    return stage.rate.shape != "constant" and stage.rate.end < stage.rate.start


def is_annealing(stage: StageSpec) -> bool:
    return falls(stage) and stage.rate.end <= FALLS_TO_ZERO


def trained(stage: StageSpec) -> int:
    return stage.sequences * stage.sequence_length


def final_section(facts: PlanFacts) -> Section | None:
    """None for a run of one stage at a constant rate: it has no end of its own kind."""
    stages = facts.spec.stages
    if len(stages) == 1 and not falls(stages[0]):
        return None
    quantities = [*_decay(facts), *_annealing(facts), *_context(facts)]
    tables = (_stages_table(facts),) if len(stages) > 1 else ()
    return Section("Final phases", tuple(quantities), tables)


def _decay(facts: PlanFacts) -> Iterator[Quantity]:
    """Tokens on which the rate falls, over all stages."""
    falling = {stage.name: trained(stage) for stage in facts.spec.stages if falls(stage)}
    if not falling:
        return
    inputs: dict[str, Input] = dict(falling)
    tokens = Quantity(
        "decay_tokens", sum(falling.values()), "tokens", "sum over stages whose rate falls", inputs, "recipe: stages"
    )
    yield tokens
    share = tokens.number() / facts.tokens.number()
    yield Quantity("decay_share", share, "share", "decay_tokens / tokens", {"decay_tokens": tokens, "tokens": facts.tokens}, "")


def _annealing(facts: PlanFacts) -> Iterator[Quantity]:
    """The stage in which the rate reaches (nearly) zero."""
    last = facts.spec.stages[-1]
    if len(facts.spec.stages) == 1 or not is_annealing(last):
        return
    tokens = Quantity("annealing_tokens", trained(last), "tokens", "the last stage", {}, f"recipe: stages, {last.name}")
    yield tokens
    steps = facts.schedule.stage_steps(len(facts.spec.stages) - 1)
    inputs: dict[str, Input] = {"annealing_tokens": tokens, "batch": tokens.number() / steps}
    yield Quantity("annealing_steps", steps, "steps", "annealing_tokens / batch", inputs, "the schedule")
    seconds = facts.stage_seconds(last.name, "annealing_seconds")
    if seconds is not None:
        yield seconds


def _context(facts: PlanFacts) -> Iterator[Quantity]:
    """Stages that are longer than the first."""
    first = facts.spec.stages[0].sequence_length
    longer = {stage.name: trained(stage) for stage in facts.spec.stages if stage.sequence_length > first}
    if not longer:
        return
    inputs: dict[str, Input] = dict(longer)
    formula = f"sum over stages longer than {first:,}"
    yield Quantity("context_stage_tokens", sum(longer.values()), "tokens", formula, inputs, "recipe: stages")
    longest = max(stage.sequence_length for stage in facts.spec.stages)
    yield Quantity("longest_sequence", longest, "tokens", "longest of the stages", {"first": first}, "recipe: stages")


def _stages_table(facts: PlanFacts) -> Table:
    rows: list[tuple[Cell, ...]] = []
    before: StageSpec | None = None
    for stage in facts.spec.stages:
        rate = f"{stage.rate.start:.3g} to {stage.rate.end:.3g}" if falls(stage) else f"{stage.rate.start:.3g}"
        cells = (stage.sequence_length, trained(stage), rate, stage.rope_base, _shift(facts, before, stage))
        rows.append((stage.name, *cells, facts.stage_seconds(stage.name)))
        before = stage
    titles = (Column("stage"), Column("sequence"), Column("tokens"), Column("rate, of the peak"), Column("RoPE base"))
    return Table("Stages", (*titles, Column("mixture"), Column("time", "seconds")), tuple(rows))


def _shift(facts: PlanFacts, before: StageSpec | None, stage: StageSpec) -> str:
    """The source whose share changes most."""
    if before is None:
        return "-"
    sources = facts.spec.sources
    moves = [(stage.quanta[k] - before.quanta[k], k) for k in range(len(sources))]
    move, place = max(moves, key=lambda pair: abs(pair[0]))
    if abs(move) < QUANTA / 1000:
        return "unchanged"
    old, new = (100 * quanta[place] / QUANTA for quanta in (before.quanta, stage.quanta))
    return f"{sources[place].name} {old:.0f} -> {new:.0f} %"


# --- what is handed over --------------------------------------------------------------------------------------------------


def deliverable_section(facts: PlanFacts) -> Section:
    """Weights to export, the loss to expect, checkpoints that stay, and what users asked for."""
    count = count_parameters(facts.spec.model)
    inputs: dict[str, Input] = {"N": facts.parameters["total"], "bytes": BF16}
    weights = Quantity("export_weights_bytes", BF16 * count.total, "bytes", "bytes N, bfloat16", inputs, "base model")
    table = forecast_table(facts)
    quantities = (weights, *forecast_quantities(facts), *_asked(facts))
    return Section("Deliverable", quantities, (table,) if table is not None else ())


def _asked(facts: PlanFacts) -> Iterator[Quantity]:
    """Of the objective: what can be compared with the plan."""
    objective = facts.spec.objective
    for key, name, unit in (("context", "context_asked", "tokens"), ("licence", "licence", ""), ("deadline", "deadline", "")):
        if objective.get(key):
            yield Quantity(name, objective[key], unit, "chosen", {}, "recipe: objective")
