"""Risks of devices, layouts and checkpoints: what is wrong with where and how a recipe is carried out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headway.base.units import format_bytes, format_seconds
from headway.formulas.failures import wall_seconds_daly
from headway.formulas.flops import Convention, convert_mfu
from headway.plan.compute_section import beside, utilisations, work_parts
from headway.plan.facts import PlanFacts
from headway.plan.failure.section import FailureFacts, checkpoint_interval
from headway.plan.layout.feasible import batch_warning
from headway.plan.outlook import memory_section, stored_checkpoints
from headway.plan.plan import Risk
from headway.plan.rates import Predicted
from headway.recipe.offload import Offload

MOST_LOST_SHARE = 0.1
MOST_OF_THE_TIME = 0.5
MOST_BESIDE = 0.2
"""Assumed: saves and evaluations over training; published runs spend a few hundredths on them."""
NEVER = 100
"""Times the training: nobody waits for such a run."""
LEAST_PADDING = 0.01
"""Share of a batch that replicas compute for nothing: below it nobody would change a batch."""
CONVENTIONS_APART = 1.1
"""Between the smallest and the largest count of the same utilisation."""

MFU_WORDS = {"mfu_causal": "causal attention counted", "mfu_full": "full attention counted", "mfu_6n": "by 6 N"}
BEST_PUBLISHED = {
    "A100": (0.653, "MegaScale 175B on 256, arXiv 2402.15627"),
    "H100": (0.505, "Nemotron-4 340B on 256, counted exactly"),
    "TPU-v4": (0.462, "PaLM 540B, arXiv 2204.02311"),
    "MI250X": (0.384, "22B on Frontier, arXiv 2312.12705"),
}
"""Chip family -> highest MFU of a published training step, full attention counted. Not there: none was found."""


# --- checkpoints ----------------------------------------------------------------------------------------------------------


def badly_spaced_checkpoints(facts: PlanFacts) -> Iterator[Risk]:
    """Only where failures are stated and the rate is known."""
    s = FailureFacts(facts)
    if facts.deployment.between_failures is None or not s.known:
        return
    interval, best = s.tau.number(), s.best.number()
    lost = _lost_share(s)
    if lost <= MOST_LOST_SHARE or lost - _lost_share(s, best) < MOST_LOST_SHARE / 10:
        return
    if interval > best:
        rule, each = "far apart for this failure rate", f"a failure discards {format_seconds(interval / 2)} on average"
        against = f"an interruption every {format_seconds(s.M.number())}"
    else:
        rule, each = "close together for what a save costs", "most of it is spent on saving, not on failures"
        against = f"saves of {format_seconds(s.c.number())}"
    yield Risk(
        f"checkpoints are {rule}",
        f"{100 * lost:.0f} % of the wall time is lost: {each}",
        f"every {format_seconds(interval)} with {against}; least is lost at {format_seconds(best)}",
    )


def _lost_share(s: FailureFacts, interval: float | None = None) -> float:
    """Of the wall time, at the declared interval or at another; all of it where the run never ends."""
    wall = wall_seconds_daly(s.T0.number(), s.interruptions(interval))
    return 1.0 if wall is None else 1 - s.T0.number() / wall


def never_done(facts: PlanFacts) -> Iterator[Risk]:
    """Failures take most of the time, or all of it, whatever the interval."""
    s = FailureFacts(facts)
    if not s.applies or not s.known or (lost := _lost_share(s)) <= MOST_OF_THE_TIME:
        return
    never = lost > 1 - 1 / NEVER
    yield Risk(
        "the run never finishes" if never else "failures take most of the time",
        "interruptions undo work as fast as it is saved" if never else f"{100 * lost:.0f} % of the wall time is no training",
        f"an interruption every {format_seconds(s.M.number())}, {format_seconds(s.R.number())} to recover, "
        f"a checkpoint every {format_seconds(s.tau.number())}",
    )


def little_training(facts: PlanFacts) -> Iterator[Risk]:
    """What is done beside training takes a large part of the run."""
    if facts.training_seconds.value is None:
        return
    training, *others = work_parts(facts)
    beside = sum(part.number() for part in others) / training.number()
    if beside > MOST_BESIDE:
        parts = ", ".join(f"{part.name.removesuffix('_seconds')} {format_seconds(part.number())}" for part in others)
        yield Risk(
            "saves and evaluations take a large part of the run",
            "devices wait for the storage, or score held-out text instead of training",
            f"{100 * beside:.3g} % on top of training: {parts}; the line is drawn at {100 * MOST_BESIDE:.0f} % (assumed)",
        )


def rarer_than_wished(facts: PlanFacts) -> Iterator[Risk]:
    """The objective says how much work may be lost at most."""
    wished = facts.spec.objective.get("checkpoint_every")
    tau = checkpoint_interval(facts)
    if not isinstance(wished, int | float) or tau.value is None:
        return
    interval = tau.number()
    if interval > wished * 1.01:
        yield Risk(
            "checkpoints are rarer than the objective allows",
            "more work can be lost than was said may be",
            f"every {format_seconds(interval)}, wished {format_seconds(wished)}",
        )


def storage_too_small(facts: PlanFacts) -> Iterator[Risk]:
    capacity, stored = facts.deployment.storage.capacity, stored_checkpoints(facts)
    if capacity is None or stored.value is None:
        return
    # one more than is kept: the next is written before the oldest may go
    need = (stored.number() + 1) * facts.checkpoint_size.number()
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
        f"{100 * padding:.1f} % extra; {fits:,} sequences cost none: "
        f'batch = "{fits * worst.work.sequence}" ({fits:,} x {worst.work.sequence:,} tokens)',
    )


# --- utilisation ----------------------------------------------------------------------------------------------------------


def impossible_utilisation(facts: PlanFacts) -> Iterator[Risk]:
    """A share of the peak above one is a wrong peak, measurement or count, never an achievement."""
    if facts.tokens_per_second.value is None:
        return
    above = {quantity.name: 100 * quantity.number() for quantity in utilisations(facts) if quantity.number() > 1}
    if above:
        yield Risk(
            "more than the peak",
            "the stated peak, utilisation or the measurement is wrong: do not trust any of them"
            if "mfu_causal" in above
            else "this convention counts operations that nobody carries out: do not compare it with a published share",
            ", ".join(f"MFU {share:.0f} % ({MFU_WORDS[name]})" for name, share in above.items()),
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
    low, high = predicted.at("low"), predicted.at("high")
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
    as_full = convert_mfu(stated, model, facts.mean_sequence_length, of=Convention.SIX_N, to=Convention.FULL)
    if stated and as_full / stated > CONVENTIONS_APART:
        yield Risk(
            "the utilisation does not say what it counts",
            "6 N is assumed; published figures mostly count full attention, and then the run is planned too short",
            f"{100 * stated:.3g} % by 6 N is {100 * as_full:.3g} % with full attention: state utilisation_convention",
        )


def offload_to_itself(facts: PlanFacts) -> Iterator[Risk]:
    """A CPU's memory is the host's."""
    moved = {name: layout.offload for name, layout in facts.layouts.items() if layout.offload is not Offload.NONE}
    if facts.deployment.accelerator.kind == "cpu" and moved:
        shown = ", ".join(f"stage {name}: offload {kind}" for name, kind in moved.items())
        rule = "its memory is the host's already: what is moved is copied, and nothing becomes free"
        yield Risk("offload on a CPU", rule, f"{shown}; leave offload out where no accelerator is")


def _is_assumed(facts: PlanFacts) -> bool:
    return facts.assumed_flops_per_second.value is not None and not (facts.calibrated and facts.calibrated.rates)


DEVICE_RULES: tuple[Callable[[PlanFacts], Iterator[Risk]], ...] = (
    badly_spaced_checkpoints,
    little_training,
    rarer_than_wished,
    storage_too_small,
    memory_too_small,
    uneven_batch,
    impossible_utilisation,
    beyond_published,
    far_from_prediction,
    unnamed_convention,
    offload_to_itself,
)
