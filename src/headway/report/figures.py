"""Which plots a run has, by name."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from matplotlib.figure import Figure

from headway.report.closeup import closeup_figure
from headway.report.curves import health_figure, loss_figure
from headway.report.material import Material
from headway.report.positions import last_by_position, position_figure
from headway.report.sections.recovery import closeups
from headway.report.timelines import segments_figure, time_figure
from headway.report.waterfall import waterfall_figure


def figures(material: Material) -> dict[str, Callable[[], Figure]]:
    """Name -> function that draws it; a plot without anything to show is left out, as the sections leave it out."""
    facts, result = material.facts, dict[str, Callable[[], Figure]]()
    if len(facts.kept):
        result["loss"] = partial(loss_figure, facts, material.breaks)
        result["health"] = partial(health_figure, facts, material.breaks)
        if last_by_position(facts) is not None:
            result["positions"] = partial(position_figure, facts)
    if facts.ledger is not None and facts.ledger.total_ns:
        result["time"] = partial(time_figure, facts.categories)
        if facts.account is not None:
            result["goodput"] = partial(waterfall_figure, facts.ledger.total_ns, facts.account.waterfall, facts.account.capacity)
        if facts.segments:
            result["segments"] = partial(segments_figure, facts, facts.ledger)
    for name, item in closeups(material):
        result[name] = partial(closeup_figure, facts, item, material.proof)
    return result
