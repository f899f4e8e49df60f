"""What is watched while it runs: the alarms with their thresholds, as the monitor itself has them."""

from __future__ import annotations

from headway.base.units import format_seconds
from headway.formulas.quantity import Quantity
from headway.monitor.alarms import (
    GRADIENT_FACTOR,
    GRADIENT_WINDOW_STEPS,
    IDLE_SHARE,
    IDLE_STEPS,
    RISES,
    THROUGHPUT_SHARE,
    THROUGHPUT_WINDOW_NS,
)
from headway.plan.declared import spike_words
from headway.plan.facts import PlanFacts
from headway.plan.plan import Column, Section, Table
from headway.recipe.spike_rules import SpikeRules


def monitoring_section(facts: PlanFacts) -> Section:
    """Evaluations and alarms."""
    every, spec = facts.spec.evaluation.every_tokens, facts.spec
    mean = facts.tokens.number() / facts.steps.number()
    per = Quantity(
        "steps_per_evaluation",
        every / mean,
        "steps",
        "every / mean batch",
        {"every": every, "mean batch": mean},
        "recipe: evaluation",
    )
    held_out = spec.evaluation.tokens_per_source * len(spec.sources)
    inputs = {"tokens_per_source": spec.evaluation.tokens_per_source, "sources": len(spec.sources)}
    scored = Quantity("held_out_tokens", held_out, "tokens", "tokens_per_source sources, at most", inputs, "recipe: evaluation")
    return Section("Monitoring", (per, scored), (alarms_table(SpikeRules.of(spec)),))


def alarms_table(spikes: SpikeRules) -> Table:
    window = format_seconds(THROUGHPUT_WINDOW_NS / 1e9)
    rows = (
        ("gradient norm", f"above {GRADIENT_FACTOR:g} x its mean of the last {GRADIENT_WINDOW_STEPS} healthy steps"),
        ("spike", f"loss or norm {spikes.threshold:g} robust deviations above the recent median: {spike_words(spikes)}"),
        ("loss or gradient", "not finite, or a norm above stability.skip_above: the update is left out"),
        ("experts", f"more than {100 * IDLE_SHARE:g} % of a layer's without a token, {IDLE_STEPS} steps in a row"),
        ("throughput", f"below {100 * THROUGHPUT_SHARE:g} % of the run's usual for {window}"),
        ("held-out loss of a source", f"rises {RISES} evaluations in a row"),
        ("checkpoint", "a save fails, or what was read back is not what was written"),
    )
    return Table("Alarms", (Column("what"), Column("calls for somebody when it is")), rows)
