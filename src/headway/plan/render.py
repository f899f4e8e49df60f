"""A plan as tables for a terminal, and as Markdown. Views only: no number is computed here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headway.plan.plan import Plan, Section, Table

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.table import Table as RichTable


def print_plan(plan: Plan, console: Console | None = None) -> None:
    """Print ``plan`` to ``console`` (default: standard output)."""
    from rich.console import Console as RealConsole

    console = console or RealConsole(highlight=False)
    for renderable in renderables(plan):
        console.print(renderable)


def renderables(plan: Plan) -> list[RenderableType]:
    """What ``print_plan`` prints, in order."""
    from rich.text import Text

    parts: list[RenderableType] = [Text(headline(plan), style="bold")]
    for section in plan.sections:
        parts.append(Text())
        parts.append(_quantities(section))
        parts += [_rich_table(table) for table in section.tables]
    parts.append(Text())
    parts.append(_risks(plan))
    return parts


def headline(plan: Plan) -> str:
    kind = "a draft, its data is not built" if plan.draft else "frozen"
    return f"Plan of {plan.name} ({kind}), spec {plan.spec_digest.rpartition(':')[2][:12]}"


def label(name: str) -> str:
    """``tokens_per_second`` -> ``tokens per second``."""
    return name.removesuffix("_seconds").removesuffix("_bytes").replace("_", " ")


def _quantities(section: Section) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(
        title=section.title, title_justify="left", title_style="bold cyan", box=None, show_header=False, padding=(0, 2)
    )
    for _ in range(3):
        table.add_column(overflow="fold")
    for quantity in section.quantities:
        how = quantity.formula if quantity.formula != "chosen" else quantity.source
        table.add_row(Text(label(quantity.name)), Text(quantity.shown()), Text(how, style="dim"))
    return table


def _rich_table(data: Table) -> RichTable:
    from rich.table import Table as RichTable
    from rich.text import Text

    table = RichTable(title=data.title, title_justify="left", title_style="dim", padding=(0, 1))
    for position, column in enumerate(data.columns):
        table.add_column(Text(column.title), justify="right" if _is_number(data, position) else "left", overflow="fold")
    for row in data.shown():
        table.add_row(*map(Text, row))
    return table


def _is_number(data: Table, position: int) -> bool:
    return any(isinstance(row[position], int | float) for row in data.rows)


def _risks(plan: Plan) -> RenderableType:
    from rich.text import Text

    if not plan.risks:
        return Text("Risks: none of the known ones.")
    text = Text("Risks\n", style="bold yellow")
    for risk in plan.risks:
        text.append(f"  {risk.rule}: {risk.number}\n", style="not bold")
        text.append(f"      {risk.consequence}\n", style="not bold dim")
    return text


# --- Markdown -----------------------------------------------------------------------------------------------------------


def to_markdown(plan: Plan) -> str:
    """The plan as Markdown, sections as second-level headings."""
    blocks = [f"# {headline(plan)}"]
    for section in plan.sections:
        blocks.append(f"## {section.title}")
        rows = [[label(q.name), q.shown(), q.formula if q.formula != "chosen" else q.source] for q in section.quantities]
        blocks.append(markdown_table(["quantity", "value", "how"], rows))
        for table in section.tables:
            blocks.append(f"**{table.title}**")
            blocks.append(markdown_table([column.title for column in table.columns], table.shown()))
    blocks.append("## Risks")
    risks = [f"- **{escape(risk.rule)}** ({escape(risk.number)}): {escape(risk.consequence)}." for risk in plan.risks]
    blocks.append("\n".join(risks) or "None of the known ones.")
    return "\n\n".join(blocks) + "\n"


def markdown_table(header: list[str], rows: list[list[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(escape, line)) + " |" for line in lines)


def escape(text: str) -> str:
    """A cell stays one cell, and names from recipes stay text."""
    return text.replace("\\", "\\\\").replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("*", "\\*")
