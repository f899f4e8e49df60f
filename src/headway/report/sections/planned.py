"""What was predicted before the start against what happened."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headway.formulas.quantity import EXACT_UNITS, show_number
from headway.report.material import Material
from headway.report.page import Block, Inline, Notice, Prose, Section, Table, Tone, faint
from headway.report.planned_values import COMPARED, Compared, plan_quantities, planned_for
from headway.report.words import NONE, plural


@dataclass(frozen=True)
class Line:
    """A compared quantity. ``inside``: whether the actual value lies in the predicted band; None: no band, or not comparable."""

    entry: Compared
    planned: dict | None
    actual: float | int | None
    comparable: bool

    @property
    def has_something_to_say(self) -> bool:
        """Predicted, or at least known by now; a sum over an incomplete run that nobody predicted is neither."""
        predicted = self.planned is not None and self.planned.get("value") is not None
        return predicted or (self.comparable and self.actual is not None)

    @property
    def ratio(self) -> float | None:
        value = self.planned.get("value") if self.planned else None
        if not self.comparable or self.actual is None or not isinstance(value, int | float) or not value:
            return None
        return self.actual / value

    @property
    def band(self) -> tuple[float, float] | None:
        low, high = (self.planned or {}).get("low"), (self.planned or {}).get("high")
        return (low, high) if isinstance(low, int | float) and isinstance(high, int | float) else None

    @property
    def inside(self) -> bool | None:
        if self.band is None or self.ratio is None or self.actual is None:
            return None
        return self.band[0] <= self.actual <= self.band[1]


def lines(material: Material) -> list[Line]:
    """Every comparison for which the plan or the run has something to say."""
    quantities = plan_quantities(material.facts.plan)
    complete = material.facts.state == "complete"
    found = []
    for entry in COMPARED:
        planned = planned_for(entry, quantities)
        line = Line(entry, planned, entry.actual(material), complete or not entry.whole_run)
        if line.has_something_to_say:
            found.append(line)
    return found


def planned(material: Material) -> Section:
    found = lines(material)
    columns = ("quantity", ">planned", ">predicted band", ">actual", ">ratio", "", "predicted from")
    rows = tuple(_row(line) for line in found)
    blocks: list[Block] = []
    if material.facts.plan is None:
        blocks.append(Notice("No plan was stored with this run, so only the actual side is known.", Tone.WARN))
    blocks += [Table(columns, rows, _caption(material)), *_summary(found), *_risks(material)]
    return Section("plan", "Plan against actual", tuple(blocks))


def _row(line: Line) -> tuple[Inline, ...]:
    value = line.planned.get("value") if line.planned else None
    unit = str((line.planned or {}).get("unit") or line.entry.unit)
    band = (
        f"{_shown(line.band[0], unit)} to {_shown(line.band[1], unit)}"
        if line.band
        else "exact"
        if _is_exact(line.planned)
        else NONE
    )
    ratio = NONE if line.ratio is None else f"{line.ratio:.3f}"
    formula = faint((line.planned or {}).get("formula") or "")
    return (line.entry.label, _shown(value, unit), band, _shown(line.actual, line.entry.unit), ratio, _mark(line), formula)


def _is_exact(quantity: dict | None) -> bool:
    return quantity is not None and isinstance(quantity.get("value"), int) and quantity.get("unit") in EXACT_UNITS


def _mark(line: Line) -> str:
    if not line.comparable:
        return "run not complete"
    if line.inside is not None:
        return "inside" if line.inside else "outside"
    if _is_exact(line.planned) and isinstance(line.actual, int) and line.planned:
        return "equal" if line.actual == line.planned["value"] else "differs"
    return "" if line.actual is not None else "not recorded"


def _shown(value: Any, unit: str) -> str:
    if isinstance(value, str):
        return value
    if not isinstance(value, int | float) or isinstance(value, bool):
        return NONE
    if unit == "seconds" and not value:
        return "0 s"
    return show_number(value, unit).removesuffix(f" {unit}")  # counts are named by their line; times and sizes keep units


def _caption(material: Material) -> str:
    if material.facts.plan is None:
        return ""
    digests = " Steps include the digest of the state that this deployment asks for." if _digests_states(material) else ""
    return (
        "The plan was stored before the start and never changed. Parameters are counted in the newest stored "
        f"checkpoint, not in the recipe. The times of saves and evaluations include repeated ones.{digests}"
    )


def _digests_states(material: Material) -> bool:
    deployment = material.facts.info.get("deployment")
    return isinstance(deployment, dict) and bool(deployment.get("state_digest_every"))


def _risks(material: Material) -> list[Block]:
    risks = [risk for risk in (material.facts.plan or {}).get("risks") or () if isinstance(risk, dict)]
    if not risks:
        return []
    rows = tuple((str(risk.get("rule", "")), str(risk.get("consequence", "")), str(risk.get("number", ""))) for risk in risks)
    return [Table(("risk named before the start", "consequence", "by how much"), rows)]


def _summary(found: list[Line]) -> list[Block]:
    judged = [line for line in found if line.inside is not None]
    if not judged:
        return []
    outside = [line.entry.label for line in judged if not line.inside]
    if not outside:
        every = f"All {len(judged)} predictions with a band came true within it." if len(judged) > 1 else ""
        return [Prose(every or "The one prediction with a band came true within it.")]
    return [
        Notice(f"{len(outside)} of {plural(len(judged), 'prediction')} with a band missed it: {'; '.join(outside)}.", Tone.WARN)
    ]
