"""More devices than the step can use: how few would be as fast, where what devices wait for outweighs their work.

step        work / devices + messages      messages take their time however many devices share the work, or more
looked for  a half, a quarter, ... of the devices, each with the layout that is best for it
"""

from __future__ import annotations

from dataclasses import replace

from headway.plan.layout.ranking import TIE, Candidate
from headway.plan.layout.search import searched
from headway.plan.step.step_time import StepTime
from headway.plan.work import Cluster, Work

WORK = ("compute", "recompute", "head", "update")
"""Parts of a step that more devices share; the others are messages, bubbles and stragglers."""
MOST_WORK = 0.5
"""Share of the step: where more of it is work, half of the devices take clearly longer, and nothing is looked for."""


def work_share(time: StepTime) -> float:
    """Of the step."""
    return sum(time.parts.get(part, 0.0) for part in WORK) / time.seconds


def as_fast_with_fewer(work: Work, cluster: Cluster, batches: tuple[int, ...], time: StepTime) -> tuple[int, Candidate] | None:
    """The fewest devices, halved again and again, whose best step is as fast; None where half are clearly slower."""
    found, chips = None, cluster.chips
    while work_share(time) < MOST_WORK and chips % 2 == 0:
        chips //= 2
        best = searched(work, replace(cluster, chips=chips), batches).best
        if best is None or best.seconds > TIE * time.seconds:
            break
        found = chips, best
    return found
