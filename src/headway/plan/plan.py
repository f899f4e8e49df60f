"""The plan: what a Spec on a deployment will do, before it does it. Every number can say why.

    Spec + Deployment (+ calibration) --sections.py--> sections of quantities and tables
                                      --summary.py---> the lines that everybody looks for
                                      --risks.py-----> rules that the recipe breaks, with consequence and number

A calibration is what was measured of the real step: a few seconds on this machine, or a whole run (``calibration.py``). Rates
come from it, else from the model of a step on a known chip, else from an assumed utilisation; without any of these nothing
is said about time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from headway.base.digests import digest_json
from headway.base.errors import ConfigError
from headway.formulas.quantity import Quantity, show_number, show_whole
from headway.plan.facts import PlanFacts
from headway.recipe.schedules import Schedule
from headway.recipe.spec import Spec

if TYPE_CHECKING:
    from headway.recipe.deployment import Deployment

Cell = str | int | float | None | Quantity
"""A quantity in a table shows its value there, and can be asked why by its name."""


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
        return [[show_cell(cell, column.unit) for cell, column in zip(row, self.columns, strict=True)] for row in self.rows]

    def quantities(self) -> Iterator[Quantity]:
        yield from (cell for row in self.rows for cell in row if isinstance(cell, Quantity))

    def to_json(self) -> dict[str, Any]:
        columns = [{"title": column.title, "unit": column.unit} for column in self.columns]
        rows = [[cell.value if isinstance(cell, Quantity) else cell for cell in row] for row in self.rows]
        return {"title": self.title, "columns": columns, "rows": rows, "shown": self.shown()}


@dataclass(frozen=True)
class Section:
    """A titled part of the plan. ``notes``: sentences that belong to it and are no numbers. ``chapter``: what it is part of."""

    title: str
    quantities: tuple[Quantity, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()
    chapter: str = ""

    def to_json(self) -> dict[str, Any]:
        tables = [table.to_json() for table in self.tables]
        plain = {
            "title": self.title,
            "chapter": self.chapter,
            "quantities": [q.to_json() for q in self.quantities],
            "tables": tables,
        }
        return plain | ({"notes": list(self.notes)} if self.notes else {})


@dataclass(frozen=True)
class Risk:
    """A rule that the recipe breaks, what follows, and the number that says how far."""

    rule: str
    consequence: str
    number: str


@dataclass(frozen=True)
class Line:
    """One line of the summary: ``text`` is made of the shown values of ``names``."""

    label: str
    text: str
    names: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """The schedule at one step, for plots: tokens trained before it, its learning rate, its batch."""

    tokens: int
    rate: float
    batch_tokens: int


@dataclass(frozen=True)
class Plan:
    """What is known before the start. ``draft``: the data is not built yet. ``notes``: what is neither number nor risk."""

    name: str
    spec_digest: str
    draft: bool
    sections: tuple[Section, ...]
    risks: tuple[Risk, ...]
    calibration: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    summary: tuple[Line, ...] = ()
    curve: tuple[Point, ...] = ()
    standing: str = ""  # what kind of plan it is, where that is neither a draft nor frozen

    def quantities(self) -> Iterator[Quantity]:
        """Every quantity that is shown on a line of its own, in order."""
        for section in self.sections:
            yield from section.quantities

    def known(self) -> Mapping[str, Quantity]:
        """Every quantity by name: those shown, those in tables, and all that they stand on."""
        return by_name([*self.quantities(), *(q for s in self.sections for table in s.tables for q in table.quantities())])

    def quantity(self, name: str) -> Quantity:
        """The quantity of exactly that name, shown or only used by others; ConfigError with the nearest names."""
        known = self.known()
        if name not in known:
            raise unknown_name(name, list(known))
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
            "summary": [{"label": line.label, "text": line.text, "quantities": list(line.names)} for line in self.summary],
            "values": {q.name: {"value": q.value, "low": q.low, "high": q.high, "unit": q.unit} for q in self.known().values()},
            "sections": [section.to_json() for section in self.sections],
            "risks": [{"rule": r.rule, "consequence": r.consequence, "number": r.number} for r in self.risks],
            "notes": list(self.notes),
            "curve": [[point.tokens, point.rate, point.batch_tokens] for point in self.curve],
        }


def make_plan(
    spec: Spec,
    deployment: Deployment,
    calibration: dict[str, Any] | None = None,
    *,
    extras: frozenset[str] = frozenset(),
    notes: tuple[str, ...] = (),
) -> Plan:
    """Derive everything that follows from ``spec`` on ``deployment``. ``extras``: search, sheet, simulate take longer."""
    from headway.plan.risks import find_risks
    from headway.plan.sections import build_sections
    from headway.plan.show.summary import summary_of

    _refuse_one_name_for_two(spec)
    facts = PlanFacts(spec, deployment, calibration, extras, notes)
    sections = build_sections(facts)
    made = Plan(spec.name, spec.digest(), spec.is_draft, sections, tuple(find_risks(facts)), calibration, facts.notes)
    return replace(made, summary=tuple(summary_of(made)), curve=schedule_curve(facts.schedule))


def _refuse_one_name_for_two(spec: Spec) -> None:
    """Quantities go by the names of stages in small letters, with _ for everything that is no letter or digit."""
    from headway.plan.rates import phases_of

    stages: dict[str, str] = {}
    for phase in phases_of(spec):
        first = stages.setdefault(phase.name, phase.stage.name)
        if first != phase.stage.name:
            seen = f"stages {first!r} and {phase.stage.name!r} both go by {phase.name!r} in a plan"
            raise ConfigError(seen, "names of stages differ in more than capitals, spaces and hyphens", "rename one")


CURVE_POINTS = 160


def schedule_curve(schedule: Schedule) -> tuple[Point, ...]:
    """Steps at even distances, and on both sides of every change of batch or stage."""
    from headway.plan.rates import phases_of

    total = schedule.total_steps
    steps = {round(place * (total - 1) / (CURVE_POINTS - 1)) for place in range(CURVE_POINTS)}
    edge = 0
    for phase in phases_of(schedule.spec):
        edge += phase.steps
        steps |= {edge - 1, min(edge, total - 1)}
    return tuple(_point(schedule, step) for step in sorted(step for step in steps if 0 <= step < total))


def _point(schedule: Schedule, step: int) -> Point:
    place = schedule.place(step)
    batch = place.batch_sequences * schedule.spec.stages[place.stage].sequence_length
    return Point(schedule.tokens_before(step), schedule.rate(step), batch)


def by_name(quantities: Iterable[Quantity]) -> dict[str, Quantity]:
    """These and everything that they stand on. One name with two answers is a bug of this package, and no plan is made of it."""
    known: dict[str, Quantity] = {}
    seen: set[int] = set()
    waiting = list(quantities)
    for quantity in waiting:  # grows while it is walked, and keeps all alive, so that an id stands for one object
        if id(quantity) in seen:
            continue
        seen.add(id(quantity))
        first = known.setdefault(quantity.name, quantity)
        if first is not quantity and not _same_answer(first, quantity):
            raise AssertionError(f"two quantities are named {quantity.name!r}: {first.shown()} and {quantity.shown()}")
        waiting += [value for value in quantity.inputs.values() if isinstance(value, Quantity)]
    return known


def _same_answer(one: Quantity, other: Quantity) -> bool:
    """Value, range and unit, but for rounding."""
    pairs = ((one.value, other.value), (one.low, other.low), (one.high, other.high))
    return one.unit == other.unit and all(_same(left, right) for left, right in pairs)


def _same(one: float | int | str | None, other: float | int | str | None) -> bool:
    if isinstance(one, int | float) and isinstance(other, int | float):
        return math.isclose(one, other, rel_tol=1e-9)
    return one == other


def label(name: str) -> str:
    """``tokens_per_second`` -> ``tokens per second``, ``step_seconds_main`` -> ``step time main``; units stand with the value."""
    words = [{"seconds": "time", "bytes": ""}.get(word, word) for word in name.split("_")]
    kept = [
        word
        for place, word in enumerate(words)
        if word and not (place and word == "time" and words[place - 1] in ("interval", "time"))
    ]
    return " ".join(kept) or name


def unknown_name(asked: str, known: Sequence[str]) -> ConfigError:
    """No quantity is called that; the nearest names are."""
    import difflib

    if asked.startswith("simulated_") and not any(name.startswith("simulated_") for name in known):
        return ConfigError(f"the plan has no quantity {asked!r}", "simulated runs take longer than a plan", "add --simulate")
    near = difflib.get_close_matches(asked, known, n=5, cutoff=0.5)
    way_out = f"did you mean {', '.join(near)}?" if near else f"some of them: {', '.join(sorted(known)[:12])}, ..."
    return ConfigError(f"the plan has no quantity {asked!r}", "headway plan --json lists all of them", way_out)


def chapters_of(sections: Sequence[Section]) -> list[tuple[str, list[Section]]]:
    """Consecutive sections by chapter; one without is its own."""
    found: list[tuple[str, list[Section]]] = []
    for section in sections:
        chapter = section.chapter or section.title
        if not found or found[-1][0] != chapter:
            found.append((chapter, []))
        found[-1][1].append(section)
    return found


def show_cell(cell: Cell, unit: str) -> str:
    """Without its unit, which the column names."""
    if cell is None:
        return "-"
    if isinstance(cell, Quantity):
        return show_cell(cell.value, unit or cell.unit) if cell.value is not None else "unknown"
    if isinstance(cell, str):
        return cell
    if not unit and isinstance(cell, int):
        return show_whole(cell)
    return show_number(cell, unit).removesuffix(f" {unit}")
