"""Meanings of numbers: every sentence belongs to a number that some plan shows, and every number of those plans has one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache

import pytest
from plan_cases import CHIP, GPT, draft, preset, where

from headway.formulas.quantity import Quantity
from headway.plan.plan import Plan, make_plan
from headway.plan.published.schedule_plan import make_schedule_plan
from headway.plan.show.meanings import MEANINGS, meaning_of, pattern_of
from headway.plan.step.step_time import PARTS
from headway.plan.worksheet.worksheet import worksheet_plan
from headway.recipe.load import preset_names
from headway.recipe.schedule_file import load_schedule

SURVIVING = (
    "failures.per_device=50700h",
    "failures.repair=4h",
    "failures.elastic={reconfigure='2min'}",
    "checkpoints.permanent_every=8",
    "power.price_per_kwh=0.1",
    "power.carbon_per_kwh=0.4",
    "price_per_hour=2.0",
    "storage.price_per_tb_month=20.0",
)
MEASURED = {"tokens_per_second": 1_000.0, "seconds_per_save": 0.5, "digest_seconds": 0.01}


def plans() -> Iterator[Plan]:
    """Of everything that can be planned, and of what only some deployments state."""
    yield from map(preset, preset_names())
    yield from (make_schedule_plan(load_schedule(name)) for name in ("mai", "deepseek-v4.1"))
    yield worksheet_plan("example", ())
    whole = where(*SURVIVING, preset="llama3-405b")
    yield make_plan(draft(recipe="llama3-405b"), whole, extras=frozenset({"simulate"}))
    yield make_plan(
        draft(*GPT, "model.heads=16", "model.width=1024"),
        where(*CHIP[:1], "nodes=2", "processes_per_node=8", "layouts.default.tp=16"),
    )
    yield make_plan(draft(*GPT), where(*CHIP, "layouts.default={dp_shard=8, offload='all'}"))
    yield make_plan(draft(recipe="llama3-8b"), where("failures.per_device=0.01h", preset="llama3-8b"))  # it never ends
    yield make_plan(draft("model.mup={base_width=128}", "model.experts={experts=4, top_k=2, width=256}"), where())
    yield make_plan(draft(), where("processes_per_node=2", "layouts.default.dp_shard=2"))
    few = [f"data.sources.{k}.{key}" for k in range(2) for key in ("inventory=20k", "cap_epochs=100")]
    yield make_plan(draft(*few), where())  # too little text for its parameters
    yield make_plan(draft("objective.deadline=2027-01-01"), where("state_digest_every=50"), MEASURED)


@cache
def known() -> dict[str, Quantity]:
    return {name: quantity for plan in plans() for name, quantity in plan.known().items()}


def test_every_number_has_a_meaning():
    assert [name for name in known() if meaning_of(name) is None] == []


@cache
def patterns_in_use() -> set[str | None]:
    parts = {f"step_seconds_main_{part}" for part in PARTS}  # a part of no length is not shown
    return {pattern_of(name) for name in known().keys() | parts}


@pytest.mark.parametrize("pattern", MEANINGS)
def test_every_meaning_is_of_a_number_that_some_plan_shows(pattern):
    assert pattern in patterns_in_use()


def test_sources_and_formulas_are_words_and_no_modules():
    """Nobody outside can look up ``recipe.roles``."""
    shown = {f"{quantity.name}: {text}" for quantity in known().values() for text in (quantity.source, quantity.formula)}
    assert [text for text in shown if re.search(r"\b(plan|recipe|formulas|data|headway)\.[a-z_]+", text.partition(": ")[2])] == []
