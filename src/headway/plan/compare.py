"""Two plans side by side: every quantity of either, what differs and by which factor, and risks that only one has.

quantity           A           B        B / A
parameters     8.03B       70.6B         8.79
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from headway.formulas.quantity import Quantity
from headway.plan.plan import Plan, Risk, label
from headway.plan.show.fitting import fit_table
from headway.plan.show.render import escape, markdown_table
from headway.plan.show.summary import LINES, without_range

SAME = 1e-9
"""Relative: what the same formula gives for the same inputs may differ in the last bit."""


@dataclass(frozen=True)
class Row:
    """One quantity on both sides; None: that side does not have it."""

    name: str
    chapter: str
    left: Quantity | None
    right: Quantity | None

    @property
    def ratio(self) -> float | None:
        """Right over left."""
        left, right = (side.value if side else None for side in (self.left, self.right))
        if not isinstance(left, int | float) or not isinstance(right, int | float) or not left:
            return None
        return right / left

    @property
    def differs(self) -> bool:
        ratio = self.ratio
        if ratio is not None:
            return abs(ratio - 1) > SAME
        left, right = (side.value if side else None for side in (self.left, self.right))
        return left != right

    @property
    def is_clear(self) -> bool:
        """Whether the difference is larger than the ranges of both: they do not overlap."""
        bounds = []
        for side in (self.left, self.right):
            if side is None or not isinstance(side.value, int | float):
                return False
            value = float(side.value)
            bounds.append((side.low if side.low is not None else value, side.high if side.high is not None else value))
        (low, high), (other_low, other_high) = bounds
        return high < other_low or other_high < low


@dataclass(frozen=True)
class Comparison:
    """``rows`` in the order of the plans; ``only``: risks of one side alone."""

    labels: tuple[str, str]
    rows: tuple[Row, ...]
    shared: tuple[str, ...]  # rules of risks that both have
    only: tuple[tuple[Risk, ...], tuple[Risk, ...]]

    def to_json(self) -> dict[str, Any]:
        def side(quantity: Quantity | None) -> Any:
            return None if quantity is None else {key: getattr(quantity, key) for key in ("value", "low", "high", "unit")}

        rows = [
            {
                "name": row.name,
                "chapter": row.chapter,
                "left": side(row.left),
                "right": side(row.right),
                "ratio": row.ratio,
                "differs": row.differs,
                "beyond_ranges": row.is_clear,
            }
            for row in self.rows
        ]
        risks = [[{"rule": r.rule, "consequence": r.consequence, "number": r.number} for r in found] for found in self.only]
        return {
            "kind": "comparison",
            "schema_version": 1,
            "plans": list(self.labels),
            "rows": rows,
            "risks_of_both": list(self.shared),
            "risks_of_one": dict(zip(("left", "right"), risks, strict=True)),
        }


def compare_plans(labels: tuple[str, str], plans: Sequence[Plan]) -> Comparison:
    """Every shown quantity of either plan, those in tables included."""
    left, right = plans
    known = [plan.known() for plan in plans]
    rows = tuple(Row(name, chapter, known[0].get(name), known[1].get(name)) for name, chapter in _names(plans).items())
    rules = [{risk.rule for risk in plan.risks} for plan in plans]
    shared = tuple(risk.rule for risk in left.risks if risk.rule in rules[1])
    only = (
        tuple(risk for risk in left.risks if risk.rule not in rules[1]),
        tuple(risk for risk in right.risks if risk.rule not in rules[0]),
    )
    return Comparison(labels, rows, shared, only)


def _names(plans: Sequence[Plan]) -> dict[str, str]:
    """Name -> chapter, in the order of the first plan, what only the second has at the end of its chapter."""
    chapters: dict[str, dict[str, None]] = {}
    for plan in plans:
        for section in plan.sections:
            names = chapters.setdefault(section.chapter or section.title, {})
            names.update(dict.fromkeys(quantity.name for quantity in section.quantities))
            names.update(dict.fromkeys(quantity.name for table in section.tables for quantity in table.quantities()))
    found: dict[str, str] = {}
    for chapter, names in chapters.items():
        for name in names:
            found.setdefault(name, chapter)
    return found


# --- shown ----------------------------------------------------------------------------------------------------------------


def headline_rows(comparison: Comparison) -> list[Row]:
    """Those of the summary's quantities that either plan knows."""
    names = [name for _, parts in LINES for name, _ in parts]
    by_name = {row.name: row for row in comparison.rows}
    return [by_name[name] for name in names if name in by_name and _has_value(by_name[name])]


def _has_value(row: Row) -> bool:
    return any(side is not None and side.value is not None for side in (row.left, row.right))


def comparison_lines(comparison: Comparison, width: int, *, everything: bool = False) -> Iterator[str]:
    """For a terminal."""
    left, right = comparison.labels
    yield f"{left}  against  {right}"
    yield ""
    yield from _block(headline_rows(comparison), comparison.labels, width)
    for chapter, rows in _by_chapter(comparison, everything):
        yield ""
        yield chapter
        yield from _block(rows, comparison.labels, width)
    equal = sum(not row.differs for row in comparison.rows)
    yield ""
    yield f"{equal} of {len(comparison.rows)} quantities are equal" + ("" if everything else "; --all shows them")
    yield "~: the ranges of both overlap, so that the difference is not certain"
    yield from _risk_lines(comparison)


def _by_chapter(comparison: Comparison, everything: bool) -> Iterator[tuple[str, list[Row]]]:
    said = set() if everything else {row.name for row in headline_rows(comparison)}
    for chapter in dict.fromkeys(row.chapter for row in comparison.rows):
        rows = [row for row in comparison.rows if row.chapter == chapter and row.name not in said and _has_value(row)]
        rows = [row for row in rows if everything or row.differs]
        if rows:
            yield chapter, rows


def _block(rows: Sequence[Row], labels: tuple[str, str], width: int) -> list[str]:
    fitted = fit_table(("quantity", *labels, "ratio"), [_cells(row) for row in rows], numbers={3}, width=width - 2)
    return [f"  {line}".rstrip() for line in (*fitted.lines, *fitted.notes)]


def _cells(row: Row) -> list[str]:
    return [label(row.name), _side(row.left), _side(row.right), _ratio(row)]


def _side(quantity: Quantity | None) -> str:
    """Without its range, which ``~`` stands for."""
    if quantity is None:
        return "-"
    return "unknown" if quantity.value is None else without_range(quantity)


def _ratio(row: Row) -> str:
    if not row.differs:
        return "="
    ratio = row.ratio
    if ratio is None:
        return ""
    ranged = any(side is not None and side.is_estimate for side in (row.left, row.right))
    return f"{'~' if ranged and not row.is_clear else ''}{ratio:.3g}"


def _risk_lines(comparison: Comparison) -> Iterator[str]:
    if comparison.shared:
        yield f"risks of both: {'; '.join(comparison.shared)}"
    for name, found in zip(comparison.labels, comparison.only, strict=True):
        for risk in found:
            yield f"risk of {name} alone: {risk.rule}: {risk.number}"


def comparison_markdown(comparison: Comparison, *, everything: bool = False) -> str:
    titles = ["quantity", *comparison.labels, "ratio"]
    blocks = [f"# {escape(comparison.labels[0])} against {escape(comparison.labels[1])}"]
    blocks.append(markdown_table(titles, [_cells(row) for row in headline_rows(comparison)], numbers={3}))
    for chapter, rows in _by_chapter(comparison, everything):
        blocks += [f"## {escape(chapter)}", markdown_table(titles, [_cells(row) for row in rows], numbers={3})]
    risks = [f"- {escape(line)}" for line in _risk_lines(comparison)]
    return "\n\n".join([*blocks, "## Risks", "\n".join(risks) or "None of the known ones."]) + "\n"
