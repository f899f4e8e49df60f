"""What is computed and how long that takes: parameters, FLOPs by convention, rate, MFU, time."""

from __future__ import annotations

from collections.abc import Iterator

from headway.formulas.flops import Convention, flops_per_token, flops_quantity
from headway.formulas.memory import sum_of
from headway.formulas.quantity import Input, Quantity, unknown
from headway.formulas.recompute import mfu as mfu_of
from headway.plan.facts import PlanFacts
from headway.plan.hardware import hardware_utilisation
from headway.plan.laws.forecast import run_exposure
from headway.plan.plan import Cell, Column, Section, Table
from headway.plan.ranges import product
from headway.plan.rates import PREDICTED, Predicted, plain, predicted_pace
from headway.recipe.spec import StageSpec

NO_PARTS = ("in_6n", "total", "stored", "non_embedding", "active", "active_without_input_embedding", "products")
"""Sums among the parameter quantities: not rows of the table of components."""


def key_of(convention: Convention) -> str:
    return "6n" if convention is Convention.SIX_N else convention.value


# --- parameters -----------------------------------------------------------------------------------------------------------


def parameters_section(facts: PlanFacts) -> Section:
    parameters = facts.parameters
    total = parameters["total"].number()
    parts = [(part, quantity) for part, quantity in parameters.items() if part not in NO_PARTS]
    rows = tuple((part.replace("_", " "), int(q.number()), q.number() / total, q.formula) for part, q in parts)
    columns = (Column("component"), Column("parameters"), Column("share", "share"), Column("formula"))
    shown = {q.name: q for key in ("total", "active", "stored", "non_embedding", "products", "in_6n") if (q := parameters[key])}
    if parameters["active"].value == parameters["total"].value:
        del shown[parameters["active"].name]
    if parameters["stored"].value == parameters["total"].value:
        del shown[parameters["stored"].name]
    return Section("Parameters", tuple(shown.values()), (Table("Parameters by component", columns, rows),))


# --- FLOPs ----------------------------------------------------------------------------------------------------------------


def total_flops(facts: PlanFacts, convention: Convention) -> Quantity:
    """Of the whole run; every stage at its own sequence length."""
    name = f"flops_{key_of(convention)}"
    if convention is Convention.SIX_N:
        n = facts.parameters["in_6n"]
        inputs: dict[str, Input] = {"N": n, "D": facts.tokens}
        return Quantity(name, float(6 * n.number() * facts.tokens.number()), "FLOP", "6 N D", inputs, "Kaplan et al. 2020")
    stages = facts.spec.stages
    if len({stage.sequence_length for stage in stages}) == 1:
        each = flops_quantity(facts.spec.model, stages[0].sequence_length, convention)
        value = float(facts.tokens.number() * each.number())
        return Quantity(name, value, "FLOP", "D f", {"D": facts.tokens, "f": each}, each.source)
    parts = {part.name: part for part in (_stage_flops(facts, stage, convention) for stage in stages)}
    value = float(sum(part.number() for part in parts.values()))
    return Quantity(name, value, "FLOP", " + ".join(parts), parts, "every stage at its own sequence length")


def _stage_flops(facts: PlanFacts, stage: StageSpec, convention: Convention) -> Quantity:
    tokens = stage.sequences * stage.sequence_length
    each = flops_per_token(facts.spec.model, stage.sequence_length, convention)
    inputs: dict[str, Input] = {"tokens": tokens, "f": each, "sequence": stage.sequence_length}
    formula = f"tokens f; f: FLOP per token, {convention.value} attention"
    return Quantity(f"flops_{key_of(convention)}_{plain(stage.name)}", float(tokens * each), "FLOP", formula, inputs)


def compute_section(facts: PlanFacts) -> Section:
    first = facts.spec.stages[0].sequence_length
    per_token = [flops_quantity(facts.spec.model, first, convention) for convention in Convention]
    quantities = [run_exposure(facts), *per_token, *(facts.total_flops(convention) for convention in Convention)]
    if facts.assumed_flops_per_second.value is not None:
        quantities.append(facts.assumed_flops_per_second)
    return Section("Compute", tuple(quantities), notes=tuple(_notes(facts)))


def _notes(facts: PlanFacts) -> Iterator[str]:
    """Which sequence the attention is counted over."""
    stages = facts.spec.stages
    yield "Attention is counted over whole sequences: an upper bound where documents are packed that do not see each other."
    if len({stage.sequence_length for stage in stages}) > 1:
        yield f"FLOP per token are those of the first stage, {stages[0].sequence_length:,} tokens; totals take every stage's own."


# --- rates ----------------------------------------------------------------------------------------------------------------


def rates_section(facts: PlanFacts) -> Section:
    """The rate that the plan stands on, MFU by convention, and what the model of a step says beside it."""
    rate, title = facts.tokens_per_second, "Rate and step time"
    if rate.value is None:
        return Section(title, (rate, facts.step_seconds, unknown("mfu_causal", "share", "needs tokens_per_second")))
    shares = {quantity.name: quantity for quantity in utilisations(facts)}
    hardware = hardware_utilisation(facts, shares["mfu_causal"]) if shares else ()
    shown = list(shares.values()) or [
        unknown("mfu_causal", "share", "needs accelerator.peak_flops: a share of what is not known")
    ]
    quantities = (rate, facts.rate_from, facts.step_seconds, *shown, *hardware, *beside(facts))
    return Section(title, quantities, (paces_table(facts),) if facts.paces else ())


def utilisations(facts: PlanFacts) -> Iterator[Quantity]:
    """MFU of the plan's rate, by convention; only where the peak is known."""
    peak = facts.peak_flops_per_second
    if peak is None:
        return
    for convention in (Convention.CAUSAL, Convention.FULL, Convention.SIX_N):
        yield mfu(facts, f"mfu_{key_of(convention)}", facts.tokens_per_second, convention, peak)


def mfu(facts: PlanFacts, name: str, rate: Quantity, convention: Convention, peak: float) -> Quantity:
    """Share of the peak that ``rate`` is, over the whole run."""
    flops, world = facts.total_flops(convention), facts.deployment.world
    inputs: dict[str, Input] = {"flops": flops, "tokens": facts.tokens, "rate": rate, "world": world, "peak": peak}
    factor = mfu_of(1 / world, flops_per_token=flops.number() / facts.tokens.number(), peak_flops_per_second=peak)
    low, high = (None if bound is None else bound * factor for bound in (rate.low, rate.high))
    words = "no attention" if convention is Convention.SIX_N else f"{convention.value} attention"
    formula = f"flops / tokens x rate / (world x peak); {words}"
    return Quantity(name, rate.number() * factor, "share", formula, inputs, rate.source, low, high)


def beside(facts: PlanFacts) -> Iterator[Quantity]:
    """The prediction, where the plan stands on something else."""
    seconds, peak = predicted_training(facts), facts.peak_flops_per_second
    if seconds is None or peak is None:
        return
    yield seconds
    rate = predicted_rate(facts, seconds)
    stated = facts.deployment.accelerator.utilisation_convention
    for convention in dict.fromkeys((Convention.CAUSAL, Convention(stated))):
        yield mfu(facts, f"predicted_mfu_{key_of(convention)}", rate, convention, peak)


def predicted_training(facts: PlanFacts) -> Quantity | None:
    """All steps by the model of a step; None where that is what the plan stands on, or nothing is predicted."""
    if not facts.predicted or not facts.paces or facts.stands_on_prediction:
        return None
    steps = [(one.phase.steps, predicted_pace(one, "predicted_step_seconds")) for one in facts.predicted]
    value, low, high = (
        sum(count * (bound if bound is not None else each.number()) for count, each, bound in ends)
        for ends in (
            [(count, each, each.number()) for count, each in steps],
            [(count, each, each.low) for count, each in steps],
            [(count, each, each.high) for count, each in steps],
        )
    )
    inputs: dict[str, Input] = {each.name: each for _, each in steps}
    formula = "sum over phases of steps x predicted step time"
    return Quantity("predicted_training_seconds", value, "seconds", formula, inputs, PREDICTED, low, high)


def predicted_rate(facts: PlanFacts, seconds: Quantity) -> Quantity:
    tokens = facts.tokens.number()
    inputs: dict[str, Input] = {"tokens": facts.tokens, "predicted_training_seconds": seconds}
    low, high = tokens / seconds.at("high"), tokens / seconds.at("low")
    formula = "tokens / predicted_training_seconds"
    name = "predicted_tokens_per_second"
    return Quantity(name, tokens / seconds.number(), "tokens/s", formula, inputs, seconds.source, low, high)


def paces_table(facts: PlanFacts) -> Table:
    """Step time of every stage and batch: what the plan uses, and what the model of a step says where that is another."""
    predicted: dict[str, Predicted] = {} if facts.stands_on_prediction else {one.phase.name: one for one in facts.predicted}
    rows: list[tuple[Cell, ...]] = []
    for pace in facts.paces:
        other = predicted.get(pace.name)
        modelled = (predicted_pace(other, "predicted_step_seconds"),) if other else ((None,) if predicted else ())
        whole = pace.steps * pace.seconds.number()
        rows.append((pace.stage, pace.sequence_length, pace.batch_tokens, pace.steps, pace.seconds, *modelled, whole))
    columns = [Column("stage"), Column("sequence"), Column("batch (tokens)"), Column("steps"), Column("step time", "seconds")]
    columns += [Column("predicted step", "seconds")] if predicted else []
    columns.append(Column("time", "seconds"))
    return Table("Step time by stage and batch (why: step_seconds_STAGE)", tuple(columns), tuple(rows))


# --- time -----------------------------------------------------------------------------------------------------------------


def time_section(facts: PlanFacts) -> Section:
    """Training, saves, evaluations, their sum with its range; and with failures, where it is known how often there are any."""
    if facts.training_seconds.value is None:
        return Section("Predicted time", (facts.training_seconds, predicted_seconds(facts)))
    wall = [facts.wall_seconds] if facts.wall_seconds.name == "wall_seconds" else []
    return Section("Predicted time", (facts.evaluations, *work_parts(facts), predicted_seconds(facts), *wall))


def predicted_seconds(facts: PlanFacts) -> Quantity:
    """Everything that the plan knows of but failures."""
    if facts.training_seconds.value is None:
        return unknown("predicted_seconds", "seconds", facts.training_seconds.formula)
    return sum_of("predicted_seconds", {part.name: part for part in work_parts(facts)}, "seconds")


def work_parts(facts: PlanFacts) -> tuple[Quantity, ...]:
    """Training first, then what is done beside it."""
    factors: dict[str, Input] = {"checkpoints": facts.saves, "save_seconds": facts.save_seconds}
    saving = product("saving_seconds", "seconds", "checkpoints x save_seconds", factors)
    return (facts.training_seconds, saving, *_beside(facts))


def beside_training(facts: PlanFacts) -> Quantity:
    """What the devices do besides steps and saves."""
    return sum_of("beside_training_seconds", {part.name: part for part in _beside(facts)}, "seconds")


def _beside(facts: PlanFacts) -> Iterator[Quantity]:
    """Evaluations; and digests of the whole state, where the deployment asks for them and the calibration timed one."""
    factors: dict[str, Input] = {"evaluations": facts.evaluations, "evaluation_seconds": facts.evaluation_seconds}
    yield product("evaluating_seconds", "seconds", "evaluations x evaluation_seconds", factors)
    every = facts.deployment.state_digest_every
    if not every or facts.calibrated is None or facts.calibrated.digest is None:
        return
    inputs: dict[str, Input] = {"steps": facts.steps, "every": every}
    count = Quantity("state_digests", facts.schedule.total_steps // every, "times", "floor(steps / every)", inputs, "")
    factors = {"state_digests": count, "digest_seconds": facts.calibrated.digest}
    yield product("digesting_seconds", "seconds", "state_digests x digest_seconds", factors)
