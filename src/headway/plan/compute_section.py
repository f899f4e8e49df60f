"""What is computed and how long that takes: parameters, FLOPs by convention, rate, MFU, time."""

from __future__ import annotations

from collections.abc import Iterator

from headway.formulas.flops import Convention, flops_per_token, flops_quantity
from headway.formulas.memory import sum_of
from headway.formulas.quantity import Input, Quantity, estimate, unknown
from headway.plan.facts import PlanFacts
from headway.plan.plan import Cell, Column, Section, Table
from headway.plan.rates import Predicted, plain, predicted_pace
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
    ratio = facts.tokens.number() / facts.parameters["in_6n"].number()
    inputs: dict[str, Input] = {"tokens": facts.tokens, "N": facts.parameters["in_6n"]}
    exposure = Quantity("tokens_per_parameter", ratio, "", "tokens / N", inputs, "N as in 6 N D")
    quantities = [exposure, *per_token, *(facts.total_flops(convention) for convention in Convention)]
    if facts.assumed_flops_per_second.value is not None:
        quantities.append(facts.assumed_flops_per_second)
    return Section("Compute", tuple(quantities), notes=_length_note(facts))


def _length_note(facts: PlanFacts) -> tuple[str, ...]:
    stages = facts.spec.stages
    if len({stage.sequence_length for stage in stages}) == 1:
        return ()
    return (f"FLOP per token are those of the first stage, {stages[0].sequence_length:,} tokens; totals take every stage's own.",)


# --- rates ----------------------------------------------------------------------------------------------------------------


def rates_section(facts: PlanFacts) -> Section:
    """The rate that the plan stands on, MFU by convention, and what the model of a step says beside it."""
    quantities = [facts.tokens_per_second]
    if facts.tokens_per_second.value is not None:
        quantities += [facts.rate_from, facts.step_seconds, *utilisations(facts), *beside(facts)]
    tables = (paces_table(facts),) if facts.paces else ()
    return Section("Rate and step time", tuple(quantities), tables)


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
    factor = flops.number() / facts.tokens.number() / (world * peak)
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
    return Quantity("predicted_training_seconds", value, "seconds", formula, inputs, "plan.step_time", low, high)


def predicted_rate(facts: PlanFacts, seconds: Quantity) -> Quantity:
    tokens = facts.tokens.number()
    inputs: dict[str, Input] = {"tokens": facts.tokens, "predicted_training_seconds": seconds}
    low, high = tokens / (seconds.high or seconds.number()), tokens / (seconds.low or seconds.number())
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
    """Training, saves, evaluations, and their sum with its range."""
    train = facts.training_seconds
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
    quantities = [facts.evaluations, *parts.values(), total]
    price = facts.deployment.price_per_hour
    if price is not None and facts.cluster is None and facts.deployment.between_failures is None:
        quantities.append(_cost(facts, total, price))
    return Section("Predicted time", tuple(quantities))


def _digest_time(facts: PlanFacts) -> Quantity | None:
    """Digests of the whole state, where the deployment asks for them and the calibration timed one."""
    every = facts.deployment.state_digest_every
    if not every or facts.calibrated is None or facts.calibrated.digest is None:
        return None
    inputs: dict[str, Input] = {"steps": facts.steps, "every": every}
    count = Quantity("state_digests", facts.schedule.total_steps // every, "times", "floor(steps / every)", inputs, "")
    return times(count, facts.calibrated.digest, "digesting_seconds")


def times(count: Quantity, each: Quantity, name: str) -> Quantity:
    """``count`` times ``each``, with its range."""
    number = count.number()
    low = None if each.low is None else number * each.low
    high = None if each.high is None else number * each.high
    formula = f"{count.name} x {each.name}"
    return Quantity(name, number * each.number(), each.unit, formula, {count.name: count, each.name: each}, "", low, high)


def _cost(facts: PlanFacts, total: Quantity, price: float) -> Quantity:
    """On a device of which nothing but its price is known; ``costs`` has the rest."""
    spread = (1.0, 1.0) if total.low is None or total.high is None else (total.low / total.number(), total.high / total.number())
    inputs: dict[str, Input] = {"predicted_seconds": total, "processes": facts.deployment.world, "price_per_hour": price}
    formula, unit = "predicted_seconds / 3600 x processes x price_per_hour", facts.deployment.currency
    return estimate("cost", total.number() / 3600 * facts.deployment.world * price, unit, formula, inputs, "deployment", spread)
