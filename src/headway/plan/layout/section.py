"""How each training stage is laid out: what the deployment declares, or what the search found; step time, MFU, waste.

What ``--layout`` says is read in ``stated.py``; of the search's choice stand the runner-ups here, and why the others lose.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from headway.base.units import format_seconds
from headway.formulas.chips import dense_peak
from headway.formulas.flops import Convention, flops_per_token
from headway.formulas.quantity import Input, Quantity
from headway.plan.layout.feasible import warnings
from headway.plan.layout.fewer import as_fast_with_fewer, work_share
from headway.plan.layout.ranking import WITHIN, SearchResult, causal_mfu
from headway.plan.layout.search import search_stage, searched_for
from headway.plan.layout.sheet import communication_sheet
from headway.plan.plan import Column, Section, Table
from headway.plan.rates import Predicted, plain, predicted_pace
from headway.plan.work import Work

if TYPE_CHECKING:
    from headway.plan.facts import PlanFacts

RUNNER_UPS = 5
"""Rows of the table of ranked layouts."""
ORDER = f"simplest within {WITHIN} first, the rest by time"
"""Of that table."""


def layout_section(facts: PlanFacts) -> Section | None:
    """A layout per stage with its step; None where the device is no chip of the table."""
    if not facts.predicted:
        return None
    quantities: list[Quantity] = []
    for one in _largest_phases(facts):
        quantities += [_layout_quantity(facts, one), *_speed(one)]
    quantities += _wastes(facts)
    return Section("Layout", tuple(quantities), tuple(_tables(facts)), tuple(_too_many_devices(facts)))


def communication_section(facts: PlanFacts) -> Section | None:
    """The communication sheet of every layout in use."""
    sheets = {one.layout: communication_sheet(one.work, one.layout, one.cluster) for one in _largest_phases(facts)}
    used = [sheet for sheet in sheets.values() if sheet.rows]
    return Section("Communication", (), tuple(used)) if used else None


def _largest_phases(facts: PlanFacts) -> list[Predicted]:
    """The last phase of each stage: a ramp ends with its largest batch."""
    return list({one.phase.stage.name: one for one in facts.predicted}.values())


def is_searched(facts: PlanFacts) -> bool:
    """Whether nobody declared a layout."""
    return not facts.deployment.layouts and facts.deployment.world > 1


def _too_many_devices(facts: PlanFacts) -> Iterator[str]:
    """Where a search over fewer devices finds a step that is no slower."""
    for one in _largest_phases(facts) if is_searched(facts) else ():
        work, smaller = searched_for(facts.spec, one.phase.stage, facts.deployment)
        fewer = as_fast_with_fewer(work, one.cluster, smaller, one.time)
        if fewer is not None:
            share = f"{100 * work_share(one.time):.0f} % of the step of {one.cluster.chips:,} devices is work"
            steps = f"{format_seconds(fewer[1].seconds)} a step against {format_seconds(one.time.seconds)}"
            yield f"{one.phase.stage.name}: {fewer[0]:,} devices would be as fast ({steps}): only {share}, the rest is waiting."


def _layout_quantity(facts: PlanFacts, one: Predicted) -> Quantity:
    name = f"layout_{plain(one.phase.stage.name)}"
    inputs: dict[str, Input] = {
        "devices": one.layout.world,
        "micro_batches": one.layout.micro_batches(one.work.batch),
        "batch": one.work.batch,
        "sequence": one.work.sequence,
    }
    if not is_searched(facts):
        formula = "as declared; of --layout, what it leaves open is the fastest that fits"
        return Quantity(name, one.layout.shown(), "", formula, inputs, "deployment: layouts")
    result = _search(facts, one)
    formula = f"simplest within {WITHIN} of {result.fitting:,} layouts that fit; {result.too_large:,} do not fit"
    return Quantity(name, one.layout.shown(), "", formula, inputs, "search over layouts")


def _search(facts: PlanFacts, one: Predicted) -> SearchResult:
    return search_stage(facts.spec, one.phase.stage, facts.deployment, one.cluster)


def _speed(one: Predicted) -> Iterator[Quantity]:
    """Step time and MFU by the model of a step, whatever rate the rest of the plan stands on."""
    step = predicted_pace(one, "layout_step_seconds")
    yield step
    tokens, cluster = one.work.tokens, one.cluster
    per_token = flops_per_token(one.work.model, one.work.context, Convention.CAUSAL)
    peak = dense_peak(cluster.chip, one.work.precision)
    inputs: dict[str, Input] = {"tokens": tokens, "f": per_token, "seconds": step, "chips": cluster.chips, "peak": peak}
    ends = (step.number(), step.at("high"), step.at("low"))
    value, low, high = (causal_mfu(one.work, cluster, seconds) for seconds in ends)
    formula = "tokens x f / (seconds x chips x peak); f: FLOP per token, causal"
    yield Quantity(f"layout_mfu_{one.phase.name}", value, "share", formula, inputs, "causal convention", low, high)


def _wastes(facts: PlanFacts) -> Iterator[Quantity]:
    """What batches leave empty in every phase, and once per layout what else it wastes."""
    seen = set()
    for one in facts.predicted:
        for quantity in warnings(one.work, one.layout, one.cluster):
            what = (quantity.name, one.layout, quantity.inputs.get("batch"))
            if what not in seen:
                seen.add(what)
                yield replace(quantity, name=f"{quantity.name}_{one.phase.name}")


# --- the search ------------------------------------------------------------------------------------------------------------


def _tables(facts: PlanFacts) -> Iterator[Table]:
    """Ranking and reasons, once for stages that are alike."""
    if not is_searched(facts):
        return
    alike: dict[tuple[Work, tuple[int, ...]], list[Predicted]] = {}
    for one in _largest_phases(facts):
        alike.setdefault(searched_for(facts.spec, one.phase.stage, facts.deployment), []).append(one)
    for ones in alike.values():
        result, names = _search(facts, ones[0]), ", ".join(one.phase.stage.name for one in ones)
        yield ranking_table(result, names)
        yield reasons_table(result, names)


def ranking_table(result: SearchResult, stage: str) -> Table:
    """What is chosen and the fastest of the others, with how far they are behind."""
    columns = (
        Column("layout"),
        Column("step", "seconds"),
        Column("times the first"),
        Column("MFU (causal)", "share"),
        Column("memory", "bytes"),
    )
    rows = tuple(
        (c.layout.shown(), c.seconds, f"{c.seconds / result.ranked[0].seconds:.2f}", c.mfu, c.memory_bytes)
        for c in result.ranked[:RUNNER_UPS]
    )
    return Table(f"layouts of stage {stage}: the {ORDER}", columns, rows)


def reasons_table(result: SearchResult, stage: str) -> Table:
    rows = tuple((reason,) for reason in result.reasons())
    return Table(f"why other layouts of stage {stage} lose", (Column("reason"),), rows)
