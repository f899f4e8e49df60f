"""Risks of devices, layouts and checkpoints: what is wrong with where and how a recipe is carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headway.base.units import format_bytes, format_seconds
from headway.formulas.failures import Interruptions, wall_seconds_daly
from headway.formulas.flops import Convention, convert_mfu
from headway.plan.compute_section import beside, utilisations
from headway.plan.facts import PlanFacts
from headway.plan.layout.feasible import batch_warning
from headway.plan.outlook import memory_section
from headway.plan.plan import Risk
from headway.plan.rates import Predicted

MOST_LOST_SHARE = 0.1
LEAST_PADDING = 0.01
"""Share of a batch that replicas compute for nothing: below it nobody would change a batch."""
CONVENTIONS_APART = 1.1
"""Between the smallest and the largest count of the same utilisation."""

BEST_PUBLISHED = {
    "A100": (0.653, "MegaScale 175B on 256, arXiv 2402.15627"),
    "H100": (0.505, "Nemotron-4 340B on 256, counted exactly"),
    "TPU-v4": (0.462, "PaLM 540B, arXiv 2204.02311"),
    "MI250X": (0.384, "22B on Frontier, arXiv 2312.12705"),
}
"""Chip family -> highest MFU of a published training step, full attention counted. Not there: none was found."""


# --- checkpoints ----------------------------------------------------------------------------------------------------------


def rare_checkpoints(facts: PlanFacts) -> Iterator[Risk]:
    """Only where failures are stated and the rate is known."""
    every, rate = facts.deployment.between_failures, facts.tokens_per_second
    if every is None or rate.value is None:
        return
    failures, interval = facts.deployment.failures, interval_seconds(facts)
    useful = facts.tokens.number() / rate.number()
    restart = failures.restart + failures.detection
    wall = wall_seconds_daly(useful, Interruptions(every, restart, interval, facts.save_seconds.number()))
    lost = 1.0 if wall is None else 1 - useful / wall
    best = facts.best_interval.number()
    least = wall_seconds_daly(useful, Interruptions(every, restart, best, facts.save_seconds.number()))
    avoidable = lost - (1 - useful / least if least else 1.0)
    if lost <= MOST_LOST_SHARE or avoidable < MOST_LOST_SHARE / 10:
        return
    each = f"each discards {format_seconds(interval / 2)} on average"
    yield Risk(
        "checkpoints are far apart for this failure rate",
        f"{100 * lost:.0f} % of the wall time is lost; {each}" if wall else f"the run practically never ends; {each}",
        f"every {format_seconds(interval)} with an interruption every {format_seconds(every)}; "
        f"least is lost at {format_seconds(best)}",
    )


def interval_seconds(facts: PlanFacts) -> float:
    """Between two checkpoints."""
    policy = facts.deployment.checkpoints
    return policy.every if policy.every is not None else policy.every_steps * facts.step_seconds.number()


def rarer_than_wished(facts: PlanFacts) -> Iterator[Risk]:
    """The objective says how much work may be lost at most."""
    wished = facts.spec.objective.get("checkpoint_every")
    if not isinstance(wished, int | float) or facts.step_seconds.value is None:
        return
    interval = interval_seconds(facts)
    if interval > wished * 1.01:
        yield Risk(
            "checkpoints are rarer than the objective allows",
            "more work can be lost than was said may be",
            f"every {format_seconds(interval)}, wished {format_seconds(wished)}",
        )


def storage_too_small(facts: PlanFacts) -> Iterator[Risk]:
    capacity = facts.deployment.storage.capacity
    if capacity is None:
        return
    policy, saves = facts.deployment.checkpoints, int(facts.saves.number())
    permanent = saves // policy.permanent_every if policy.permanent_every else 0
    # one more than is kept: the next is written before the oldest may go
    need = (min(saves, policy.keep_last + permanent) + 1) * facts.checkpoint_size.number()
    if need > capacity:
        yield Risk(
            "checkpoints outgrow the storage",
            "saves fail once it is full, and the run goes on without a fresh checkpoint",
            f"{format_bytes(need)} of {format_bytes(capacity)}",
        )


# --- memory ---------------------------------------------------------------------------------------------------------------


def memory_too_small(facts: PlanFacts) -> Iterator[Risk]:
    if facts.cluster is not None:
        yield from _ranks_too_small(facts)
        return
    memory = facts.deployment.accelerator.memory
    if memory is None:
        return
    for quantity in memory_section(facts).quantities:
        if quantity.name in ("memory_bytes", "state_bytes_per_process") and quantity.number() > memory:
            yield Risk(
                "memory", "the process runs out of memory in its first step", f"{quantity.shown()} of {memory / 2**30:.3g} GiB"
            )


def _ranks_too_small(facts: PlanFacts) -> Iterator[Risk]:
    """The fullest rank of every stage; one risk for those that do not fit, one for those that may not."""
    from headway.plan.memory.rank_memory import peak_memory

    over: list[tuple[str, float, float]] = []
    close: list[tuple[str, float, float]] = []
    for one in _last_phases(facts):
        peak, have = peak_memory(one.work, one.layout, one.cluster), float(one.cluster.chip.memory_bytes)
        high = peak.band()[1]
        if peak.total > have:
            over.append((one.phase.stage.name, peak.total, have))
        elif high > have:
            close.append((one.phase.stage.name, high, have))
    for rule, found, consequence in (
        ("memory", over, "the fullest rank runs out of memory in its first step"),
        ("memory is close", close, "it fits by the middle of the estimate, not by its upper end: rehearse the longest stage"),
    ):
        if found:
            name, need, have = max(found, key=lambda item: item[1])
            others = f", and {len(found) - 1} more" if len(found) > 1 else ""
            yield Risk(rule, consequence, f"stage {name}{others}: {format_bytes(need)} of {format_bytes(have)}")


def _last_phases(facts: PlanFacts) -> list[Predicted]:
    """Of each stage the phase with the largest batch: a ramp ends with it."""
    return list({one.phase.stage.name: one for one in facts.predicted}.values())


# --- batch ----------------------------------------------------------------------------------------------------------------


def uneven_batch(facts: PlanFacts) -> Iterator[Risk]:
    """Sequences that do not divide over replicas, priced over the run."""
    padded = [(one, warning) for one in facts.predicted if (warning := batch_warning(one.work, one.layout)) is not None]
    total = facts.tokens.number()
    shares = [(one.phase.steps * one.work.tokens / total, one, warning.number()) for one, warning in padded]
    cost = sum(share * padding for share, _, padding in shares)
    if cost < LEAST_PADDING:
        return
    _, worst, padding = max(shares, key=lambda entry: entry[0] * entry[2])
    unit = worst.layout.dp * worst.layout.micro_batch
    fits = -(-worst.work.batch // unit) * unit
    yield Risk(
        "the batch does not divide over the replicas",
        f"replicas with fewer sequences wait for the others: {100 * cost:.1f} % of the whole run",
        f"stage {worst.phase.stage.name}: {worst.work.batch:,} sequences over {worst.layout.dp:,} replicas cost "
        f"{100 * padding:.1f} % extra; {fits:,} sequences cost none",
    )


# --- utilisation ----------------------------------------------------------------------------------------------------------


def impossible_utilisation(facts: PlanFacts) -> Iterator[Risk]:
    """A share of the peak above one is a wrong peak or a wrong measurement, never an achievement."""
    if facts.tokens_per_second.value is None:
        return
    for quantity in utilisations(facts):
        if quantity.name == "mfu_causal" and quantity.number() > 1:
            yield Risk(
                "more than the peak",
                "the stated peak, utilisation or the measurement is wrong: do not trust any of them",
                f"MFU {100 * quantity.number():.0f} %",
            )


def beyond_published(facts: PlanFacts) -> Iterator[Risk]:
    """An assumed utilisation that nobody has published on such a chip."""
    if not _is_assumed(facts) or facts.cluster is None:
        return
    name = facts.cluster.chip.name
    best = next((entry for family, entry in BEST_PUBLISHED.items() if name.startswith(family)), None)
    full = next(quantity for quantity in utilisations(facts) if quantity.name == "mfu_full").number()
    if best is not None and full > best[0]:
        yield Risk(
            "the assumed utilisation was never published for this chip",
            "the run takes longer than planned by as much",
            f"{100 * full:.1f} % with full attention; the best found is {100 * best[0]:.1f} % ({best[1]})",
        )


def far_from_prediction(facts: PlanFacts) -> Iterator[Risk]:
    """The assumption lies outside the band of the model of a step."""
    predicted = next((q for q in beside(facts) if q.name == "predicted_mfu_causal"), None)
    if predicted is None or not _is_assumed(facts):
        return
    assumed = next(quantity for quantity in utilisations(facts) if quantity.name == "mfu_causal").number()
    low, high = predicted.low or predicted.number(), predicted.high or predicted.number()
    if not low <= assumed <= high:
        side = "longer" if assumed > high else "shorter"
        yield Risk(
            "the assumed utilisation is not what this layout is predicted to reach",
            f"the run would take {assumed / predicted.number():.2f} times the planned time: {side}, by the model of a step",
            f"assumed {100 * assumed:.3g} %, predicted {predicted.shown()}, causal attention counted",
        )


def unnamed_convention(facts: PlanFacts) -> Iterator[Risk]:
    """A utilisation is a share of what? At long sequences the counts differ by as much as two published runs."""
    accelerator = facts.deployment.accelerator
    if not _is_assumed(facts) or "utilisation_convention" in accelerator.model_fields_set:
        return
    stated, model = accelerator.utilisation or 0.0, facts.spec.model
    as_full = convert_mfu(stated, model, facts.mean_context, of=Convention.SIX_N, to=Convention.FULL)
    if stated and as_full / stated > CONVENTIONS_APART:
        yield Risk(
            "the utilisation does not say what it counts",
            "6 N is assumed; published figures mostly count full attention, and then the run is planned too short",
            f"{100 * stated:.3g} % by 6 N is {100 * as_full:.3g} % with full attention: state utilisation_convention",
        )


def _is_assumed(facts: PlanFacts) -> bool:
    return facts.assumed_flops_per_second.value is not None and not (facts.calibrated and facts.calibrated.rates)


DEVICE_RULES: tuple[Callable[[PlanFacts], Iterator[Risk]], ...] = (
    rare_checkpoints,
    rarer_than_wished,
    storage_too_small,
    memory_too_small,
    uneven_batch,
    impossible_utilisation,
    beyond_published,
    far_from_prediction,
    unnamed_convention,
)
