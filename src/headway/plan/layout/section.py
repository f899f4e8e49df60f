"""How each training stage is laid out: what the deployment declares, or what the search found; step time, MFU, waste.

--layout "tp=8,pp=16"    parse_layout: fields of a Layout, dp_shard fills the cluster unless it is given
no layout at all         the search's choice, with the runner-ups and why the others lose
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

from headway.base.errors import ConfigError
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
from headway.plan.work import Layout, Work
from headway.recipe.checks import nearest_hint

if TYPE_CHECKING:
    from headway.plan.facts import PlanFacts

RUNNER_UPS = 5
"""Rows of the table of ranked layouts."""
SHORT = {"dp": "dp_shard", "shard": "dp_shard", "replicate": "dp_replicate", "vp": "virtual", "mb": "micro_batch"}
"""Other names that people use on the command line."""
ORDER = f"simplest within {WITHIN} first, the rest by time"
"""Of that table."""
LONGEST_SIZE = 12  # digits


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


# --- the command line ------------------------------------------------------------------------------------------------------


def parse_layout(text: str, base: Layout, chips: int | None = None) -> Layout:
    """``base`` with the fields named in ``text``, such as "tp=8,pp=16,recompute=full".

    With ``chips`` and no dp_shard in the text, replicas that share states fill the cluster.
    """
    stated = stated_fields(text)
    layout = replace(base, **stated)
    if chips is None or "dp_shard" in stated:
        return layout
    others = layout.world // layout.dp_shard
    if others > chips or chips % others:
        rule = f"the other axes multiply to {others:,}: {chips:,} chips are no multiple of that"
        raise ConfigError(f"layout {text!r} on {chips:,} chips", rule, "choose divisors of the number of chips")
    return replace(layout, dp_shard=chips // others)


def stated_fields(text: str) -> dict[str, Any]:
    """Fields of a Layout that ``text`` names, with their values."""
    stated: dict[str, Any] = {}
    for part in text.split(","):
        name, equals, value = (piece.strip() for piece in part.partition("="))
        name = name.replace("-", "_").casefold()
        name = SHORT.get(name, name)
        _check_name(part.strip(), name, bool(equals and value), stated)
        stated[name] = _value(name, value)
    return stated


def _check_name(part: str, name: str, complete: bool, stated: dict[str, Any]) -> None:
    known = [field.name for field in fields(Layout)]
    if name not in known:
        hint = nearest_hint(name, known) or f"fields: {', '.join(known)}"
        raise ConfigError(f"{part!r} names no field of a layout", "a layout is written as tp=8,pp=16", hint)
    if not complete:
        raise ConfigError(f"{part!r} has no value", "a layout is written as tp=8,pp=16", f"{name}=1")
    if name in stated:
        raise ConfigError(f"{name} is given twice", "each field of a layout once", f"leave out {part!r}")


def _value(name: str, value: str) -> Any:
    kind = type(getattr(Layout(), name))
    if kind is bool:
        if value.casefold() in ("true", "false"):
            return value.casefold() == "true"
        raise ConfigError(f"{name}={value}", f"{name} is true or false", f"{name}=true")
    if kind is int:
        least = 0 if name == "zero" else 1
        if value.isdecimal() and len(value) <= LONGEST_SIZE and int(value) >= least:
            return int(value)
        rule = f"{name} is a whole number, at least {least}, of at most {LONGEST_SIZE} digits"
        raise ConfigError(f"{name}={value[:40]}", rule, f"{name}={least}")
    if value.casefold() in [member.value for member in kind]:
        return kind(value.casefold())
    choices = [member.value for member in kind]
    hint = nearest_hint(value, choices) or f"{name}={choices[0]}"
    raise ConfigError(f"{name}={value}", f"{name} is one of {', '.join(choices)}", hint)
