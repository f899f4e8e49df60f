"""From all time down to what was committed, one category after the other, and the same device time by capacity."""

from __future__ import annotations

import io
from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headway.base.units import format_seconds
from headway.monitor.capacity import AT_GOOD_PACE, MISSING, SLOWER, Capacity, device_time
from headway.monitor.goodput import PENDING, Fall
from headway.report import plots
from headway.report.plots import LIGHT, category_colour, colour
from headway.report.words import percent

DOTS_PER_INCH = 150
_ALL, _COMMITTED, _OTHER = "all time", "committed", "all else above"
_COLOURS = {_OTHER: "rose", PENDING: "sky", MISSING: "silver/hatched", SLOWER: "orange/hatched", _ALL: "slate"}


def waterfall_figure(total_ns: int, falls: Sequence[Fall], capacity: Capacity | None = None) -> Figure:
    """``capacity``: a second panel, where devices were missing or slow."""
    parts = _capacity_parts(capacity) if capacity else []
    rows = len(falls) + 2
    heights = (rows, max(2.0, 0.62 * len(parts) + 1.2)) if parts else (rows,)
    figure, axes = plots.new_figure(0.75 + 0.31 * sum(heights), heights, share=False)
    _time_panel(axes[0], total_ns, falls)
    if parts and capacity is not None:
        _capacity_panel(axes[1], capacity, parts)
    space = 0.45 / figure.get_figheight()
    figure.subplots_adjust(left=0.19, right=0.985, top=1 - space, bottom=0.3 * space, hspace=1.0 / figure.get_figheight())
    return figure


def png(figure: Figure) -> bytes:
    """For a file beside the facts."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, facecolor=figure.get_facecolor(), metadata={"Software": None})
    return buffer.getvalue()


def _time_panel(axis: Axes, total_ns: int, falls: Sequence[Fall]) -> None:
    plots.title(axis, "where all time went, down to what is committed")
    committed = falls[-1].left_ns if falls else total_ns
    names = [_ALL, *(fall.name for fall in falls), _COMMITTED]
    starts = [0, *(fall.left_ns for fall in falls), 0]
    lengths = [total_ns, *(fall.ns for fall in falls), committed]
    for row, (name, start, length) in enumerate(zip(names, starts, lengths, strict=True)):
        _bar(axis, name, row, (start / total_ns, length / total_ns))
        share = percent(length / total_ns, 1 if length / total_ns >= 0.01 else 2)
        _text(axis, row, (start + length) / total_ns, start / total_ns, f"{format_seconds(length / 1e9)}  {share}")
        if 0 < row < len(names):
            axis.plot([starts[row - 1] / total_ns if row > 1 else 1.0] * 2, [row - 1, row], color=LIGHT["silver"], linewidth=0.8)
    _finish(axis, names)


def _capacity_panel(axis: Axes, capacity: Capacity, parts: list[tuple[str, int]]) -> None:
    plots.title(axis, "device time: all that was asked for, down to what ran at the good pace")
    left = capacity.total
    for row, (name, amount) in enumerate(parts):
        is_loss = name != AT_GOOD_PACE
        start = left - amount if is_loss else 0
        left -= amount if is_loss else 0
        _bar(axis, name, row, (start / capacity.total, amount / capacity.total))
        words = f"{device_time(amount)}  {percent(amount / capacity.total, 1)}"
        _text(axis, row, (start + amount) / capacity.total, start / capacity.total, words)
    _finish(axis, [name for name, _ in parts])


def _capacity_parts(capacity: Capacity) -> list[tuple[str, int]]:
    """Nothing where every device was there and every step was quick: it would be the panel above once more."""
    lost = [(name, capacity.categories[name]) for name in (MISSING, SLOWER) if name in capacity.categories]
    productive = capacity.categories.get("productive", 0)
    other = capacity.total - productive - sum(amount for _, amount in lost)
    return [*lost, (_OTHER, other), (AT_GOOD_PACE, productive)] if lost else []


def _bar(axis: Axes, name: str, row: int, span: tuple[float, float]) -> None:
    paint = _COLOURS.get(name) or category_colour("productive" if name in (_COMMITTED, AT_GOOD_PACE) else name)
    hatched = paint.endswith("/hatched")
    axis.broken_barh(
        [span], (row - 0.34, 0.68), facecolor=LIGHT["paper"] if hatched else colour(paint),
        edgecolor=colour(paint), hatch="/////" if hatched else None, linewidth=0.6, zorder=3,
    )  # fmt: skip


def _text(axis: Axes, row: int, end: float, start: float, words: str) -> None:
    """Beside the bar: to its right where there is room, to its left where there is none, inside a bar that fills the width."""
    room = 0.0095 * len(words)
    if end + room < 1.0:
        plots.label(axis, end + 0.006, row, words, va="center", zorder=5)
    elif start > room:
        plots.label(axis, start - 0.006, row, words, va="center", ha="right", zorder=5)
    else:
        plots.label(axis, start + 0.008, row, words, "paper", va="center", fontweight="bold", zorder=5)


def _finish(axis: Axes, names: Sequence[str]) -> None:
    axis.grid(False)
    axis.set_xlim(0, 1)
    axis.set_ylim(len(names) - 0.4, -0.6)
    axis.set_yticks(range(len(names)), [name.replace("_", " ") for name in names])
    axis.set_xticks([])
    axis.spines["bottom"].set_visible(False)
