"""Quantities that come once per stage as a table: a row per stage, a column per quantity. Their names stay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from headway.formulas.quantity import Quantity
from headway.plan.plan import Cell, Column, Section, Table, label
from headway.plan.rates import phases_of
from headway.recipe.spec import Spec

LEAST = 3
"""Members of a family that are still lines of their own below this."""


def stage_names(spec: Spec) -> dict[str, str]:
    """How a stage or phase ends a quantity's name -> how it is shown."""
    return {phase.name: phase.name.replace("_", " ") for phase in phases_of(spec)}


def folded(section: Section, stages: dict[str, str]) -> Section:
    """``section`` with its families as one table, behind the lines that are left."""
    families = _families(section.quantities, stages)
    if not families:
        return section
    inside = {quantity.name for members in families.values() for quantity in members.values()}
    rest = tuple(quantity for quantity in section.quantities if quantity.name not in inside)
    return replace(section, quantities=rest, tables=(_table(families, stages), *section.tables))


def _families(quantities: Sequence[Quantity], stages: dict[str, str]) -> dict[str, dict[str, Quantity]]:
    """Stem -> stage -> quantity, of stems with enough members; words come last, where there is room for them to break."""
    found: dict[str, dict[str, Quantity]] = {}
    for quantity in quantities:
        endings = [name for name in stages if quantity.name.endswith(f"_{name}")]
        if endings:
            stage = max(endings, key=len)
            found.setdefault(quantity.name.removesuffix(f"_{stage}"), {})[stage] = quantity
    for stem, members in list(found.items()):
        first = next((quantity for quantity in quantities if quantity.name == stem), None)
        missing = [name for name in stages if name not in members]
        if first is not None and missing:  # the first stage may go without a name
            members[next((name for name in missing if not re.search(r"_phase_\d+$", name)), missing[0])] = first
    kept = {stem: members for stem, members in found.items() if len(members) >= LEAST}
    return dict(sorted(kept.items(), key=lambda item: any(isinstance(q.value, str) for q in item[1].values())))


def _table(families: dict[str, dict[str, Quantity]], stages: dict[str, str]) -> Table:
    used = [name for name in stages if any(name in members for members in families.values())]
    rows: list[tuple[Cell, ...]] = [(stages[name], *(members.get(name) for members in families.values())) for name in used]
    return Table("By stage (why: NAME_STAGE)", (Column("stage"), *_columns(families)), tuple(rows))


def _columns(families: dict[str, dict[str, Quantity]]) -> list[Column]:
    return [Column(label(stem), next(iter(members.values())).unit) for stem, members in families.items()]
