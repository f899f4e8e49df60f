"""What a recipe declares and this version records (it is part of the run's identity) but does not act upon."""

from __future__ import annotations

from collections.abc import Iterator

from headway.formulas.quantity import Quantity
from headway.plan.facts import PlanFacts
from headway.plan.plan import Column, Risk, Section, Table
from headway.recipe.spike_rules import OnSpike, SpikeRules

ACTED_UPON = ("restart",)
"""Interventions that this version carries out by itself, whatever the permissions say."""

Row = tuple[str, str, str]


def declared_section(facts: PlanFacts) -> Section | None:
    """A row per policy: where it stands, what was declared, what happens instead."""
    rows = (*_gate_rows(facts), *_spike_rows(facts), *_permission_rows(facts))
    if not rows:
        return None
    columns = (Column("policy"), Column("declared"), Column("in this version"))
    words = "declared and recorded with the run; this version does not act upon them"
    count = Quantity("policies_not_acted_upon", len(rows), "", words, {}, "recipe: stages, interventions")
    return Section("Declared only", (count,), (Table("Policies that are recorded but not acted upon", columns, rows),))


def not_acted_upon(facts: PlanFacts) -> Iterator[Risk]:
    """Where that contradicts what was asked for; a policy for spikes that is off is only noted."""
    gates = [row[0] for row in _gate_rows(facts)]
    if gates:
        yield Risk(
            "gates are not checked",
            "the run passes the boundary whatever is measured: judge the metrics yourself before you go on",
            f"{len(gates)} declared: {', '.join(gates)}",
        )
    for policy, declared, instead in _permission_rows(facts):
        yield Risk(f"{policy} is not obeyed", instead, f"declared: {declared}")


def _gate_rows(facts: PlanFacts) -> Iterator[Row]:
    for stage in facts.spec.stages:
        for side, gates in (("entry", stage.entry_gates), ("exit", stage.exit_gates)):
            for gate in gates:
                declared = f"{gate['metric']} {gate['comparison']} {gate['threshold']:g}"
                yield f"{side} gate {gate['name']} of {stage.name}", declared, "not measured, never holds the run"


def _spike_rows(facts: PlanFacts) -> Iterator[Row]:
    rules = SpikeRules.of(facts.spec)
    if facts.spec.interventions.get("spikes") and rules.policy is OnSpike.OFF:
        yield "loss spikes", _roll_back_words(rules), "policy is off: a spike is marked, and nothing is done about it"


def _roll_back_words(rules: SpikeRules) -> str:
    return (
        f"rewind {rules.rewind_steps} steps, skip {rules.skip_batches} batches, "
        f"on recurrence rate x {rules.recurrence_rate_factor:g}"
    )


def spike_words(rules: SpikeRules) -> str:
    """What happens by itself."""
    words = {
        OnSpike.OFF: "it is marked",
        OnSpike.SKIP_UPDATE: "its update is left out",
        OnSpike.ROLL_BACK: f"{_roll_back_words(rules)}; stop at {rules.most_roll_backs + 1} in a row",
        OnSpike.STOP: "the run stops, and a person decides",
    }
    return words[rules.policy]


def _permission_rows(facts: PlanFacts) -> Iterator[Row]:
    acted_upon = (*ACTED_UPON, *_by_policy(SpikeRules.of(facts.spec)))
    for permission in facts.spec.interventions.get("permissions", ()):
        what, by = permission["what"], permission["by"]
        if what in acted_upon and by != "automatic":
            yield f"permission: {what}", by, "the supervisor restarts a trainer that died without asking"
        if what not in acted_upon and by == "automatic":
            yield f"permission: {what}", by, "nothing does it by itself"


def _by_policy(rules: SpikeRules) -> tuple[str, ...]:
    return ("roll back", "skip batches", "lower rate") if rules.policy is OnSpike.ROLL_BACK else ()
