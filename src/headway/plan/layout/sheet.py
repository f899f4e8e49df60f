"""The communication sheet of a layout: for each collective who takes part, bytes, how often, over which links, what hides it.

A view of plan/step/communication.py (volumes) and plan/step/network.py (seconds); nothing is computed here but sums.
"""

from __future__ import annotations

from headway.plan.plan import Cell, Column, Table
from headway.plan.step.communication import Collective, Phase, collectives
from headway.plan.step.network import collective_seconds
from headway.plan.work import Cluster, Layout, Work

COLUMNS = (
    Column("collective"),
    Column("ranks"),
    Column("message", "bytes"),
    Column("calls per step"),
    Column("seconds per step", "seconds"),
    Column("hides behind"),
    Column("links"),
    Column("sent per rank and step", "bytes"),
    Column("axis"),
    Column("kind"),
    Column("when"),
    Column("waits for"),
)
"""What is asked for most comes first: narrow terminals leave out the last ones."""


def communication_sheet(work: Work, layout: Layout, cluster: Cluster) -> Table:
    """What one rank of the busiest stage takes part in, the longest first."""
    found = sorted(collectives(work, layout), key=lambda one: -step_seconds(one, cluster))
    return Table(f"communication of a step: {layout.shown()}", COLUMNS, tuple(_row(one, cluster) for one in found))


def step_seconds(one: Collective, cluster: Cluster) -> float:
    """Of all its calls in a step, one after the other, hidden or not."""
    return one.calls * collective_seconds(one, cluster)


def links(one: Collective, cluster: Cluster) -> str:
    """``fast links`` within one domain, else ``network, 16 domains of 8``."""
    spans = cluster.spans(one.group, one.stride)
    if spans == 1:
        return "fast links"
    inside = -(-one.group // spans)
    return f"network, {spans:,} domains" + (f", {inside} ranks in each" if inside > 1 else "")


_ONCE = {
    Phase.FORWARD: "before the first micro-batch's forward",
    Phase.BACKWARD: "after the last micro-batch's backward",
    Phase.STEP: "once a step",
}


def _row(one: Collective, cluster: Cluster) -> tuple[Cell, ...]:
    return (
        f"{one.name} ({one.stage} stage)" if one.stage and one.stage != "ends" else one.name,
        f"{one.group:,}" + (f", {one.stride:,} apart" if one.stride > 1 else ""),
        one.payload_bytes,
        f"{one.calls:,.0f}",
        step_seconds(one, cluster),
        one.overlaps or "nothing",
        links(one, cluster),
        one.step_bytes_per_rank,
        one.axis.value,
        one.kind.value,
        f"{one.phase.value} of each micro-batch" if one.every_pass else _ONCE[one.phase],
        one.waits_for,
    )
