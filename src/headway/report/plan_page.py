"""A plan as one HTML page: summary, risks, the schedule as a picture, every chapter with its numbers and tables.

The page needs nothing else: no script, nothing fetched, one style element that its own policy admits. It prints well.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from headway import __version__
from headway.base.units import format_count
from headway.formulas.quantity import Quantity
from headway.plan.plan import Plan, chapters_of, label
from headway.plan.plan import Section as PlanSection
from headway.plan.plan import Table as PlanTable
from headway.plan.show.meanings import meaning_of
from headway.plan.show.render import headline, how
from headway.plan.show.summary import without_range
from headway.plan.show.with_numbers import with_numbers
from headway.report import html, plots
from headway.report.page import Block, Inline, Notice, Page, Prose, Section, Table, Tile, Tone, faint, strong
from headway.report.page import Figure as Picture

SCHEDULE = "schedule"
TILES = (
    ("parameters", "parameters"),
    ("tokens", "tokens"),
    ("compute, 6 N D", "flops_6n"),
    ("step time", "step_seconds"),
    ("MFU, causal", "mfu_causal"),
    ("training", "training_seconds"),
    ("with failures", "wall_seconds"),
    ("fullest rank", "rank_memory"),
    ("process memory", "memory_bytes"),
    ("final loss", "forecast_loss"),
    ("cost", "cost"),
)
"""Label and quantity; what a plan does not have, or does not know, has no tile."""


def plan_html(plan: Plan) -> str:
    """The whole page."""
    page = plan_page(plan)
    drawn = {SCHEDULE: plots.inline_svg(plots.draw(lambda: schedule_figure(plan)), SCHEDULE)} if plan.curve else {}
    return html.render(page, drawn)


def plan_page(plan: Plan) -> Page:
    """The content, before any rendering."""
    count = len(plan.risks)
    sentence = f"{count} risk{'s' if count != 1 else ''} named" if count else "None of the known risks"
    return Page(
        title=f"Plan of {plan.name}",
        subtitle=(headline(plan).removeprefix(f"Plan of {plan.name} "),),
        verdict=f"{sentence}. Every number below says how it is made; estimates carry the range in which they are expected.",
        tone=Tone.WARN if count else Tone.GOOD,
        tiles=tuple(_tiles(plan)),
        sections=(_summary(plan), *_risks(plan), *_chapters(plan)),
        footer=f"Headway {__version__}. headway plan RECIPE --why QUANTITY explains any number of this page.",
    )


def _tiles(plan: Plan) -> Iterator[Tile]:
    known = plan.known()
    for title, name in TILES:
        quantity = known.get(name)
        if quantity is not None and isinstance(quantity.value, int | float):
            detail = quantity.shown().removeprefix(without_range(quantity)).strip(" ()")
            yield Tile(label=title, value=_without_unit(quantity), detail=detail)


def _without_unit(quantity: Quantity) -> str:
    """Units that the label says already are left out."""
    return without_range(quantity).removesuffix(f" {quantity.unit}")


def _summary(plan: Plan) -> Section:
    blocks: list[Block] = (
        [Table(("", ""), tuple((faint(line.label), line.text) for line in plan.summary))] if plan.summary else []
    )
    blocks += [Notice(note) for note in plan.notes]
    if plan.curve:
        words = "Learning rate and batch over the tokens of the run, as the trainer will take them."
        blocks.append(Picture(SCHEDULE, "learning rate and batch size against trained tokens", words))
    return Section("summary", "Summary", tuple(blocks))


def _risks(plan: Plan) -> Iterator[Section]:
    if plan.risks:
        rows = tuple(((strong(risk.rule),), risk.number, risk.consequence) for risk in plan.risks)
        yield Section("risks", "Risks", (Table(("rule", "by how much", "what follows"), rows),))


def _chapters(plan: Plan) -> Iterator[Section]:
    for number, (chapter, sections) in enumerate(chapters_of(plan.sections), start=1):
        blocks = [block for section in sections for block in _blocks(section, titled=section.title != chapter)]
        yield Section(anchor(chapter), f"{number}  {chapter}", tuple(blocks))


def anchor(title: str) -> str:
    return re.sub(r"\W+", "-", title.casefold()).strip("-")


def _blocks(section: PlanSection, *, titled: bool) -> Iterator[Block]:
    if titled:
        yield Prose((strong(section.title),))
    if section.quantities:
        yield _quantities(section.quantities)
    for note in section.notes:
        yield Notice(note)
    for table in section.tables:
        yield _table(table)


def _quantities(quantities: Sequence[Quantity]) -> Table:
    """Name, value, range where there is one, how it is made."""
    rows = [(*_named(quantity), how_inline(quantity)) for quantity in quantities]
    if any(row[2] for row in rows):
        return Table(("quantity", "value", "range", "how"), tuple(rows))
    return Table(("quantity", "value", "how"), tuple((name, value, made) for name, value, _, made in rows))


def _named(quantity: Quantity) -> tuple[Inline, Inline, Inline]:
    if quantity.value is None:
        return label(quantity.name), (faint("unknown"),), ""
    value = without_range(quantity)
    return label(quantity.name), value, quantity.shown().removeprefix(value).strip(" ()")


def how_inline(quantity: Quantity) -> Inline:
    """Formula, the numbers in it, and what the quantity means."""
    numbers, meaning = with_numbers(quantity), meaning_of(quantity.name)
    formula = how(quantity) + (f" = {numbers}" if numbers else "")
    return (formula, faint(f" · {meaning}")) if meaning else formula


def _table(table: PlanTable) -> Table:
    numeric = {
        place
        for place in range(len(table.columns))
        if any(isinstance(c.value if isinstance(c, Quantity) else c, int | float) for c in (row[place] for row in table.rows))
    }
    columns = tuple(f">{column.title}" if place in numeric else column.title for place, column in enumerate(table.columns))
    rows: tuple[tuple[Inline, ...], ...] = tuple(tuple(row) for row in table.shown())
    return Table(columns, rows, table.title)


# --- the picture ----------------------------------------------------------------------------------------------------------


def schedule_figure(plan: Plan) -> Figure:
    """Learning rate above, batch below, over trained tokens."""
    figure, axes = plots.new_figure(3.6, (3, 2))
    tokens = [point.tokens for point in plan.curve]
    _panel(axes[0], tokens, [point.rate for point in plan.curve], "learning rate", "blue")
    _panel(axes[1], tokens, [point.batch_tokens for point in plan.curve], "tokens per step", "teal")
    plots.token_ticks(axes[1])
    figure.tight_layout()
    return figure


def _panel(axis: Axes, x: Sequence[float], y: Sequence[float], words: str, name: str) -> None:
    axis.plot(x, y, color=plots.colour(name), linewidth=1.6, drawstyle="steps-post" if name == "teal" else "default")
    axis.set_ylim(0, max(y) * 1.08)
    axis.set_xlim(0, x[-1])
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value) if value >= 1 else f"{value:.3g}"))
    plots.title(axis, words)
