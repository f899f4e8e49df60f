"""The plan: what a Spec on a deployment will do, before it does it. Every number can say why.

    Spec + Deployment (+ calibration) --sections.py--> sections of quantities and tables
                                      --risks.py-----> rules that the recipe breaks, with consequence and number

A calibration is a short measurement of the real step on the real machine: {tokens_per_second, low, high, ...}. Without it
nothing is said about time unless the deployment names a peak and a utilisation to assume.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from headway.base.digests import digest_json
from headway.base.errors import ConfigError
from headway.formulas.quantity import Quantity, show_number
from headway.plan.facts import PlanFacts
from headway.recipe.checks import nearest_hint
from headway.recipe.spec import Spec

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment

Cell = str | int | float | None


@dataclass(frozen=True)
class Column:
    """``unit`` as in quantities; empty for words and plain numbers."""

    title: str
    unit: str = ""


@dataclass(frozen=True)
class Table:
    """Rows of plain values; the columns say how they are shown."""

    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]

    def shown(self) -> list[list[str]]:
        return [[_show(cell, column.unit) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows]

    def to_json(self) -> dict[str, Any]:
        columns = [{"title": column.title, "unit": column.unit} for column in self.columns]
        return {"title": self.title, "columns": columns, "rows": [list(row) for row in self.rows], "shown": self.shown()}


@dataclass(frozen=True)
class Section:
    """A titled part of the plan."""

    title: str
    quantities: tuple[Quantity, ...] = ()
    tables: tuple[Table, ...] = ()

    def to_json(self) -> dict[str, Any]:
        tables = [table.to_json() for table in self.tables]
        return {"title": self.title, "quantities": [q.to_json() for q in self.quantities], "tables": tables}


@dataclass(frozen=True)
class Risk:
    """A rule that the recipe breaks, what follows, and the number that says how far."""

    rule: str
    consequence: str
    number: str


@dataclass(frozen=True)
class Plan:
    """What is known before the start. ``draft``: the data is not built yet."""

    name: str
    spec_digest: str
    draft: bool
    sections: tuple[Section, ...]
    risks: tuple[Risk, ...]
    calibration: dict[str, Any] | None = None

    def quantities(self) -> Iterator[Quantity]:
        """Every quantity that is shown, in order."""
        for section in self.sections:
            yield from section.quantities

    def quantity(self, name: str) -> Quantity:
        """The quantity ``name``, shown or only used by others; ConfigError with the nearest name."""
        known = _by_name(self.quantities())
        if name not in known:
            hint = nearest_hint(name, list(known)) or f"known: {', '.join(sorted(known))}"
            raise ConfigError(f"the plan has no quantity {name!r}", "headway plan --json lists all of them", hint)
        return known[name]

    def to_json(self) -> dict[str, Any]:
        return {
            "kind": "plan",
            "schema_version": 1,
            "name": self.name,
            "spec_digest": self.spec_digest,
            "draft": self.draft,
            "calibration": self.calibration,
            "calibration_digest": digest_json(self.calibration) if self.calibration else None,
            "values": {q.name: {"value": q.value, "low": q.low, "high": q.high, "unit": q.unit} for q in self.quantities()},
            "sections": [section.to_json() for section in self.sections],
            "risks": [{"rule": r.rule, "consequence": r.consequence, "number": r.number} for r in self.risks],
        }


def make_plan(spec: Spec, deployment: Deployment, calibration: dict[str, Any] | None = None) -> Plan:
    """Derive everything that follows from ``spec`` on ``deployment``."""
    from headway.plan.risks import find_risks
    from headway.plan.sections import SECTIONS

    facts = PlanFacts(spec, deployment, calibration)
    sections = tuple(section for build in SECTIONS if (section := build(facts)) is not None)
    return Plan(spec.name, spec.digest(), spec.is_draft, sections, tuple(find_risks(facts)), calibration)


def why(plan: Plan, name: str) -> str:
    """The tree under one number: value, formula, source, and the same for everything it was computed from."""
    return "\n".join(_tree(plan.quantity(name), indent="", seen=set()))


def _tree(quantity: Quantity, indent: str, seen: set[str]) -> Iterator[str]:
    yield f"{indent}{quantity.name} = {quantity.shown()}"
    inner = indent + "    "
    if quantity.name in seen:
        yield f"{inner}(as above)"
        return
    seen.add(quantity.name)
    yield f"{inner}formula: {quantity.formula}"
    if quantity.source:
        yield f"{inner}source: {quantity.source}"
    for name, value in quantity.inputs.items():
        if isinstance(value, Quantity):
            yield from _tree(value, inner, seen)
        else:
            yield f"{inner}{name} = {_show(value, '')}"


def _by_name(quantities: Iterator[Quantity]) -> dict[str, Quantity]:
    """Shown quantities and everything they stand on."""
    known: dict[str, Quantity] = {}
    waiting = list(quantities)
    while waiting:
        quantity = waiting.pop(0)
        if quantity.name not in known:
            known[quantity.name] = quantity
            waiting += [value for value in quantity.inputs.values() if isinstance(value, Quantity)]
    return known


def _show(cell: Cell, unit: str) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, str):
        return cell
    if not unit and isinstance(cell, int):
        return f"{cell:,}"
    return show_number(cell, unit).removesuffix(f" {unit}")
