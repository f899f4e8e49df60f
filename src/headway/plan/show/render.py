"""A plan as text for a terminal, and as Markdown. Views only: no number is computed here.

headline
summary        a line each: what everybody looks for
section        name      value           how it is made       one line each
               table     as wide as the terminal, never wider (``fitting.py``)
risks
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

from headway.formulas.quantity import Quantity
from headway.plan.plan import Plan, Section, Table, chapters_of, label
from headway.plan.show.fitting import fit_table

if TYPE_CHECKING:
    from rich.console import Console

NARROWEST = 60
"""Columns: below this a table cannot be read anyway."""
LABEL, VALUE = 34, 46  # columns of a quantity's line, at most; what is longer takes what it needs


class Styled(NamedTuple):
    """A line and how it strikes the reader."""

    text: str
    style: str = ""


def print_plan(plan: Plan, console: Console | None = None, *, brief: bool = False) -> None:
    """Print ``plan`` to ``console`` (default: standard output); ``brief``: what fits one screen, and the risks."""
    from rich.console import Console as RealConsole
    from rich.text import Text

    console = console or RealConsole(highlight=False)
    for line in (brief_lines if brief else lines)(plan, console.width):
        console.print(Text(line.text, style=line.style), soft_wrap=True)


def lines(plan: Plan, width: int) -> Iterator[Styled]:
    """The whole plan, no line longer than ``width`` where that can be helped."""
    width = max(NARROWEST, width)
    yield Styled(headline(plan), "bold")
    yield from _summary(plan, width)
    for number, (chapter, sections) in enumerate(chapters_of(plan.sections), start=1):
        yield Styled("")
        yield Styled(f"{number}  {chapter}", "bold cyan")
        for section in sections:
            yield from _section(section, width, titled=section.title != chapter)
    yield from _risks(plan, width)


def brief_lines(plan: Plan, width: int) -> Iterator[Styled]:
    """Headline, summary and risks."""
    width = max(NARROWEST, width)
    yield Styled(headline(plan), "bold")
    yield from _summary(plan, width)
    yield from _risks(plan, width)


def headline(plan: Plan) -> str:
    kind = plan.standing or ("a draft, its data is not built" if plan.draft else "frozen")
    return f"Plan of {plan.name} ({kind}), spec {plan.spec_digest.rpartition(':')[2][:12]}"


def how(quantity: Quantity) -> str:
    """In a word where it comes from: a choice by its place, anything else by its formula."""
    return quantity.source if quantity.formula == "chosen" and quantity.source else quantity.formula


def _summary(plan: Plan, width: int) -> Iterator[Styled]:
    if not plan.summary:
        return
    yield Styled("")
    left = max(len(line.label) for line in plan.summary)
    for line in plan.summary:
        yield from map(Styled, _hanging(f"  {line.label.ljust(left)}  ", line.text, width))
    counted = f"{len(plan.risks)} named at the end" if plan.risks else "none of the known ones"
    yield Styled(f"  {'risks'.ljust(left)}  {counted}", "yellow" if plan.risks else "")
    for note in plan.notes:
        yield from (Styled(text, "dim") for text in _hanging("  note: ", note, width))


def _section(section: Section, width: int, *, titled: bool) -> Iterator[Styled]:
    if titled:
        yield Styled("")
        yield Styled(f"  {section.title}", "bold")
    yield from _quantities(section, width)
    for note in section.notes:
        yield from (Styled(text, "dim") for text in _hanging("  ", note, width))
    for table in section.tables:
        yield from _table(table, width)


def _quantities(section: Section, width: int) -> Iterator[Styled]:
    rows = [(label(quantity.name), quantity.shown(), how(quantity)) for quantity in section.quantities]
    first = min(LABEL, max((len(row[0]) for row in rows), default=0))
    second = min(VALUE, max((len(row[1]) for row in rows), default=0))
    for name, value, formula in rows:
        text = f"  {name.ljust(first)}  {value.ljust(second)}"
        room = width - len(text) - 2
        if value == "unknown":
            yield from map(Styled, _hanging(f"  {name.ljust(first)}  ", f"unknown: {formula}", width))
        elif len(text.rstrip()) > width:
            yield from map(Styled, _hanging(f"  {name.ljust(first)}  ", value, width))
        else:
            yield Styled(f"{text}  {shorten(formula, room)}".rstrip())


def _table(data: Table, width: int) -> Iterator[Styled]:
    fitted = fit_table([column.title for column in data.columns], data.shown(), numbers=_number_columns(data), width=width - 2)
    yield Styled("")
    yield from (Styled(text, "dim") for text in _hanging("  ", data.title, width))
    yield from (Styled(f"  {line}".rstrip()) for line in fitted.lines)
    for note in fitted.notes:
        yield from (Styled(text, "dim") for text in _hanging("  ", note, width))


def _number_columns(data: Table) -> set[int]:
    def is_number(cell: object) -> bool:
        value = cell.value if isinstance(cell, Quantity) else cell
        return isinstance(value, int | float)

    return {place for place in range(len(data.columns)) if any(is_number(row[place]) for row in data.rows)}


def _risks(plan: Plan, width: int) -> Iterator[Styled]:
    yield Styled("")
    if not plan.risks:
        yield Styled("Risks: none of the known ones.")
        return
    yield Styled("Risks", "bold yellow")
    for risk in plan.risks:
        yield from map(Styled, _hanging("  ", f"{risk.rule}: {risk.number}", width, hang=6))
        yield from (Styled(text, "dim") for text in _hanging("      ", risk.consequence, width))


def _hanging(head: str, text: str, width: int, hang: int | None = None) -> list[str]:
    """Lines of ``text`` behind ``head``, the further ones indented by as much."""
    indent = " " * (len(head) if hang is None else hang)
    return textwrap.wrap(text, width, initial_indent=head, subsequent_indent=indent, break_on_hyphens=False) or [head.rstrip()]


def shorten(text: str, room: int) -> str:
    """Cut at a word, so that it fits; nothing where there is no room for a few words."""
    if len(text) <= room:
        return text
    return "" if room < 12 else textwrap.shorten(text, room, placeholder=" ...")


# --- Markdown -----------------------------------------------------------------------------------------------------------


def to_markdown(plan: Plan) -> str:
    """The plan as Markdown, sections as second-level headings."""
    blocks = [f"# {escape(headline(plan))}"]
    if plan.summary:
        blocks.append(markdown_table(["", ""], [[line.label, line.text] for line in plan.summary]))
    blocks += [f"> {escape(note)}" for note in plan.notes]
    for chapter, sections in chapters_of(plan.sections):
        blocks.append(f"## {escape(chapter)}")
        for section in sections:
            blocks += _markdown_section(section, titled=section.title != chapter)
    blocks.append("## Risks")
    risks = [f"- **{escape(risk.rule)}** ({escape(risk.number)}): {escape(risk.consequence)}." for risk in plan.risks]
    blocks.append("\n".join(risks) or "None of the known ones.")
    return "\n\n".join(blocks) + "\n"


def _markdown_section(section: Section, *, titled: bool) -> Iterator[str]:
    if titled:
        yield f"### {escape(section.title)}"
    if section.quantities:
        rows = [[label(quantity.name), quantity.shown(), how(quantity)] for quantity in section.quantities]
        yield markdown_table(["quantity", "value", "how"], rows)
    yield from map(escape, section.notes)
    for table in section.tables:
        yield f"**{escape(table.title)}**"
        yield markdown_table([column.title for column in table.columns], table.shown(), numbers=_number_columns(table))


def markdown_table(header: list[str], rows: list[list[str]], numbers: set[int] = frozenset()) -> str:  # type: ignore[assignment]
    rule = "| " + " | ".join("---:" if place in numbers else "---" for place in range(len(header))) + " |"
    text = ["| " + " | ".join(map(escape, line)) + " |" for line in [header, *rows]]
    return "\n".join([text[0], rule, *text[1:]])


def escape(text: str) -> str:
    """A cell stays one cell, and names from recipes stay text."""
    return " ".join(text.replace("&", "&amp;").replace("<", "&lt;").splitlines()).translate(_MARKS)


_MARKS = str.maketrans({mark: f"\\{mark}" for mark in "\\|*[]`"})
