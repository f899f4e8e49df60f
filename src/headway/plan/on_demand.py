"""Sections that take longer than the rest, so they are made when they are asked for: search, communication, simulation."""

from __future__ import annotations

from headway.plan.facts import PlanFacts
from headway.plan.plan import Section

SEARCH, SHEET, SIMULATE = "search", "sheet", "simulate"


def search_section(facts: PlanFacts) -> Section | None:
    """All layouts that can be, ranked for every stage. Without a stated layout the layout section says it already."""
    from headway.plan.layout.search import search_stage
    from headway.plan.layout.section import is_searched, ranking_table, reasons_table

    if SEARCH not in facts.extras or is_searched(facts):
        return None
    tables = []
    cluster = facts.cluster
    for stage in facts.spec.stages if cluster is not None else ():
        assert cluster is not None
        result = search_stage(facts.spec, stage, facts.deployment, cluster)
        tables += [ranking_table(result, stage.name), reasons_table(result, stage.name)]
    return Section("Layouts that can be", (), tuple(tables), () if tables else (NEEDS_CHIP,))


def sheet_section(facts: PlanFacts) -> Section | None:
    """Who talks to whom, how much, how often."""
    if SHEET not in facts.extras:
        return None
    from headway.plan.layout.section import communication_section

    return communication_section(facts) or Section("Communication", notes=(NEEDS_CHIP if not facts.predicted else NO_NEIGHBOUR,))


def simulated_section(facts: PlanFacts) -> Section | None:
    """The run with its failures, many times."""
    if SIMULATE not in facts.extras:
        return None
    from headway.plan.failure.simulation_section import simulation_section

    return simulation_section(facts) or Section("Simulation", notes=(NEEDS_FAILURES,))


NEEDS_CHIP = "needs accelerator.kind with a chip of the table: links and memory of other devices are not known"
NO_NEIGHBOUR = "one device: nothing is communicated"
NEEDS_FAILURES = "needs a rate and failures.every or failures.per_device"
