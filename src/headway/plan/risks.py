"""Risks as rules: each looks at the facts and says what follows, with a number, or nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from headway.base.units import format_seconds
from headway.formulas.failures import Interruptions, wall_seconds_daly
from headway.formulas.flops import Convention, attention_flops_per_token, flops_per_token
from headway.plan.declared import not_acted_upon
from headway.plan.facts import PlanFacts
from headway.plan.plan import Risk
from headway.recipe.schedules import rate_factor

LONG_FIRST_CONTEXT_TOKENS = 16_384
MOST_BETA2 = 0.99
DECAYED_SHARE = 0.2
MOST_PASSES = 4.0
MOST_LOST_SHARE = 0.1


def no_warmup(facts: PlanFacts) -> Iterator[Risk]:
    if facts.spec.stages[0].rate.warmup_tokens == 0:
        share = facts.schedule.rate(0) / facts.spec.optimizer.peak_rate
        yield Risk(
            "no warm-up",
            "the first updates are full-sized where the loss surface is roughest: the loss diverges or settles higher for good",
            f"step 1 has {100 * share:.0f} % of the peak rate",
        )


def slow_second_moment(facts: PlanFacts) -> Iterator[Risk]:
    beta2 = facts.spec.optimizer.beta2
    if beta2 > MOST_BETA2:
        yield Risk(
            "beta2 is high",
            "after one freak gradient, or when gradients grow, the denominator lags behind and updates are oversized: spikes",
            f"beta2 {beta2:g} remembers {1 / (1 - beta2):,.0f} steps, .95 remembers 20",
        )


def no_decay(facts: PlanFacts) -> Iterator[Risk]:
    stage = facts.spec.stages[-1]
    total = stage.sequences * stage.sequence_length
    end = rate_factor(stage.rate, total, total)
    if end > DECAYED_SHARE:
        yield Risk(
            "the learning rate does not decay",
            "weights keep bouncing at that step size: held-out loss ends some hundredths of a nat above a decayed run",
            f"the run ends at {100 * end:.0f} % of the peak rate",
        )


def long_context_first(facts: PlanFacts) -> Iterator[Risk]:
    length = facts.spec.stages[0].sequence_length
    if length > LONG_FIRST_CONTEXT_TOKENS:
        model = facts.spec.model
        attention = attention_flops_per_token(model, length, Convention.CAUSAL)
        whole = flops_per_token(model, length, Convention.CAUSAL)
        slower = whole / flops_per_token(model, 8192, Convention.CAUSAL)
        yield Risk(
            "long context from step one",
            "attention is paid for at every token although long range needs few tokens to learn: extend the context at the end",
            f"{100 * attention / whole:.0f} % of the compute is attention; {slower:.2f} x the compute of 8,192 tokens",
        )


def no_clipping(facts: PlanFacts) -> Iterator[Risk]:
    if facts.spec.optimizer.clip_norm is None:
        yield Risk("no gradient clipping", "one freak batch moves the weights at full size", "clip_norm is 0")


def many_passes(facts: PlanFacts) -> Iterator[Risk]:
    if facts.spec.is_draft:
        return
    from headway.data.stream import source_coverage

    for entry in source_coverage(facts.spec):
        if entry.epochs > MOST_PASSES:
            yield Risk(
                f"source {entry.source} is repeated",
                "beyond about four passes repeated text is worth clearly less than new text",
                f"{entry.epochs:.1f} passes",
            )


def rare_checkpoints(facts: PlanFacts) -> Iterator[Risk]:
    """Only where failures are stated and the rate is known."""
    failures, rate = facts.deployment.failures, facts.tokens_per_second
    if failures.every is None or rate.value is None:
        return
    interval = facts.deployment.checkpoints.every_steps * facts.step_seconds.number()
    useful = facts.tokens.number() / rate.number()
    wall = wall_seconds_daly(useful, Interruptions(failures.every, failures.restart, interval, facts.save_seconds.number()))
    lost = 1.0 if wall is None else 1 - useful / wall
    if lost > MOST_LOST_SHARE:
        yield Risk(
            "checkpoints are far apart for this failure rate",
            f"{100 * lost:.0f} % of the wall time is lost" if wall else "the run practically never ends",
            f"every {format_seconds(interval)}; least is lost at {facts.best_interval.shown()}",
        )


def memory_too_small(facts: PlanFacts) -> Iterator[Risk]:
    memory = facts.deployment.accelerator.memory
    if memory is None:
        return
    from headway.plan.outlook import memory_section

    for quantity in memory_section(facts).quantities:
        if quantity.name in ("memory_bytes", "state_bytes_per_process") and quantity.number() > memory:
            yield Risk(
                "memory", "the process runs out of memory in its first step", f"{quantity.shown()} of {memory / 2**30:.3g} GiB"
            )


def impossible_utilisation(facts: PlanFacts) -> Iterator[Risk]:
    """A share of the peak above one is a wrong peak or a wrong measurement, never an achievement."""
    peak = facts.deployment.accelerator.peak_flops
    if peak is None or not facts.calibration:
        return
    flops = facts.total_flops(Convention.CAUSAL).number() / facts.tokens.number()
    mfu = facts.tokens_per_second.number() * flops / (peak * facts.deployment.world)
    if mfu > 1:
        yield Risk(
            "more than the peak", "the stated peak or the measurement is wrong: do not trust either", f"MFU {100 * mfu:.0f} %"
        )


RULES: tuple[Callable[[PlanFacts], Iterator[Risk]], ...] = (
    no_warmup,
    slow_second_moment,
    no_decay,
    long_context_first,
    no_clipping,
    many_passes,
    rare_checkpoints,
    memory_too_small,
    impossible_utilisation,
    not_acted_upon,
)


def find_risks(facts: PlanFacts) -> list[Risk]:
    """All that apply, in the order of ``RULES``."""
    return [risk for rule in RULES for risk in rule(facts)]
