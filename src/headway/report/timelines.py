"""Plots over wall-clock time: the segments of the run, and where every second went."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from headway.base.units import format_seconds
from headway.monitor.ledger import Interval, Ledger, merged
from headway.report import plots
from headway.report.attempts import SegmentFacts
from headway.report.facts import RunFacts
from headway.report.plots import LIGHT, category_colour, colour
from headway.report.words import percent
from headway.rundir.categories import Category

ROWS = 14
"""Most segments drawn; the newest are shown."""

BINS = 1500
"""Shorter pieces than this share of the run cannot be seen on the page: they would only blur their neighbours."""

_UNITS = ((2 * 86_400.0, 86_400.0, "days"), (2 * 3_600.0, 3_600.0, "h"), (300.0, 60.0, "min"), (0.0, 1.0, "s"))


def _time_axis(axis: Axes, total_seconds: float) -> None:
    """Ticks in the unit that suits the length of the run."""
    _, size, unit = next(entry for entry in _UNITS if total_seconds >= entry[0])
    axis.set_xlim(0, total_seconds)
    axis.xaxis.set_major_locator(MaxNLocator(9, steps=[1, 2, 2.5, 5, 10]) if size == 1 else _Multiple(size))
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value / size:g}"))
    axis.set_xlabel(f"{unit} since the first record", color=LIGHT["muted"])


class _Multiple(MaxNLocator):
    """Round ticks in units of ``size`` seconds."""

    def __init__(self, size: float):
        super().__init__(9, steps=[1, 2, 2.5, 5, 10])
        self._size = size

    def tick_values(self, vmin: float, vmax: float) -> Any:
        return np.asarray(super().tick_values(vmin / self._size, vmax / self._size)) * self._size


def _paint(axis: Axes, spans: Sequence[tuple[float, float]], category: str, place: tuple[float, float]) -> None:
    """Bars of one category: (start, length) in axis units, ``place`` = (bottom, height)."""
    name = category_colour(category)
    hatched = name.endswith("/hatched")
    axis.broken_barh(
        list(spans), place, facecolor=LIGHT["paper"] if hatched else colour(name), edgecolor=colour(name) if hatched else "none",
        hatch="/////" if hatched else None, linewidth=0.5 if hatched else 0, zorder=3,
    )  # fmt: skip


def segments_figure(facts: RunFacts, ledger: Ledger) -> Figure:
    """One row per segment over wall-clock time, coloured by category; restored checkpoints as arrows, ends as marks."""
    shown = facts.segments[-ROWS:]
    total = ledger.total_ns / 1e9
    figure, (axis,) = plots.new_figure(1.0 + 0.62 * len(shown))
    axis.grid(False)
    rows = {attempt.segment.id: len(shown) - 1 - index for index, attempt in enumerate(shown)}
    pieces = drawable(ledger)
    for segment, row in rows.items():
        own = [piece for piece in pieces if piece.segment == segment]
        for category in dict.fromkeys(piece.category for piece in own):
            spans = [(piece.start_ns / 1e9, piece.ns / 1e9) for piece in own if piece.category is category]
            _paint(axis, spans, category.value, (row - 0.21, 0.42))
    for attempt in shown:
        _row_text(axis, attempt, rows[attempt.segment.id], pieces, total)
    _saves(axis, facts, rows)
    _restores(axis, facts, rows)
    axis.set_yticks(list(rows.values()), [f"segment {segment}" for segment in rows])
    axis.set_ylim(-0.55, len(shown) - 0.35)
    _time_axis(axis, total)
    figure.subplots_adjust(left=0.085, right=0.985, top=0.97, bottom=0.46 / figure.get_figheight())
    return figure


def drawable(ledger: Ledger) -> list[Interval]:
    """Neighbours of one kind joined; where pieces are too short to be seen, BINS that show what filled most of each."""
    width = -(-ledger.total_ns // BINS)
    owned = _owned(ledger.intervals)
    pieces = merged(owned)
    if all(piece.ns >= width for piece in pieces):
        return pieces
    filled: list[dict[tuple[Category, int | None], int]] = [{} for _ in range(BINS)]
    for piece in owned:
        start, end = piece.start_ns, piece.start_ns + piece.ns
        for index in range(start // width, (end - 1) // width + 1):
            inside = min(end, (index + 1) * width) - max(start, index * width)
            key = piece.category, piece.segment
            filled[index][key] = filled[index].get(key, 0) + inside
    most = [max(kinds, key=lambda key: kinds[key]) for kinds in filled if kinds]
    ends = [min((index + 1) * width, ledger.total_ns) for index in range(len(most))]
    cut = [Interval(i * width, end - i * width, *kind) for i, (end, kind) in enumerate(zip(ends, most, strict=True))]
    return merged(tuple(cut))


def _owned(intervals: tuple[Interval, ...]) -> tuple[Interval, ...]:
    """Time between segments (pauses, gaps, the orderly end) belongs to the row of the segment before it."""
    owner = next((interval.segment for interval in intervals if interval.segment is not None), None)
    result = []
    for interval in intervals:
        owner = owner if interval.segment is None else interval.segment
        result.append(replace(interval, segment=owner))
    return tuple(result)


def _row_text(axis: Axes, attempt: SegmentFacts, row: int, pieces: Sequence[Interval], total: float) -> None:
    """Above the bar: its steps and, where the trainer did not end by itself, how it ended, with a cross at that end."""
    own = [piece for piece in pieces if piece.segment == attempt.segment.id]
    if not own:
        return
    start, end = own[0].start_ns / 1e9, (own[-1].start_ns + own[-1].ns) / 1e9
    steps = [record["step"] for record in attempt.records if record.get("kind") == "step"]
    text = f"steps {steps[0]:,} to {steps[-1]:,}" if steps else "no step"
    if attempt.killed:
        text += f", {end_text(attempt)}"
        axis.plot(
            [end], [row], marker="X", markersize=8, color=colour("bad"), markeredgecolor=LIGHT["paper"], zorder=6, clip_on=False
        )
    late = start > 0.6 * total
    place, side = (end, "right") if late else (start, "left")
    axis.text(place, row + 0.27, text, ha=side, va="bottom", fontsize=8.5, color=LIGHT["ink"], zorder=5)


def end_text(attempt: SegmentFacts) -> str:
    """How the trainer ended, as short as possible."""
    ended = attempt.exit or {}
    if ended.get("signal") is not None:
        return f"signal {ended['signal']}"
    if ended.get("code") is not None:
        return f"exit {ended['code']}"
    return "exit status not known" if ended else "no exit recorded"


def offset_seconds(facts: RunFacts, record: dict) -> float | None:
    """When ``record`` was written, in seconds since the first event; None on another boot."""
    if not facts.events or not isinstance(record.get("stamp"), dict):
        return None
    first = facts.events[0]["stamp"]
    return (record["stamp"]["boot_ns"] - first["boot_ns"]) / 1e9 if record["stamp"]["boot_id"] == first["boot_id"] else None


def _save_places(facts: RunFacts, rows: dict[int, int]) -> dict[str, tuple[float, int]]:
    places = {}
    for attempt in facts.segments:
        for record in attempt.records if attempt.segment.id in rows else ():
            at = offset_seconds(facts, record) if record.get("kind") == "save" else None
            if at is not None:
                places[str(record.get("checkpoint"))] = (at, rows[attempt.segment.id])
    return places


def _saves(axis: Axes, facts: RunFacts, rows: dict[int, int]) -> None:
    """A tick below the bar for each committed checkpoint."""
    places = list(_save_places(facts, rows).values())
    if 0 < len(places) <= 400:
        axis.plot(
            [x for x, _ in places],
            [y - 0.28 for _, y in places],
            linestyle="none",
            marker="^",
            markersize=3.6,
            color=colour("gold"),
            zorder=5,
        )


def _restores(axis: Axes, facts: RunFacts, rows: dict[int, int]) -> None:
    """An arrow from the checkpoint to the segment that started from it."""
    places = _save_places(facts, rows)
    for attempt in facts.segments:
        restored = attempt.last("restored")
        to = offset_seconds(facts, restored) if restored else None
        origin = places.get(str(attempt.segment.checkpoint))
        if to is not None and origin is not None and attempt.segment.id in rows:
            x, y = origin
            axis.annotate(
                "", (to, rows[attempt.segment.id] + 0.22), xytext=(x, y - 0.3), zorder=6,
                arrowprops={"arrowstyle": "-|>", "color": colour("violet"), "linewidth": 1.0, "connectionstyle": "arc3,rad=0.12"},
            )  # fmt: skip
            axis.annotate(
                f"step {attempt.segment.restored_step:,} restored", (x, y - 0.3), xytext=(-6, -4), textcoords="offset points",
                fontsize=8.5, color=colour("violet"), va="top", ha="right", zorder=6,
            )  # fmt: skip


def time_figure(categories: dict[str, int]) -> Figure:
    """All time as one bar, and below it everything that was not productive, enlarged."""
    figure, (axis,) = plots.new_figure(2.35)
    axis.grid(False)
    axis.set_axis_off()
    productive = {name: ns for name, ns in categories.items() if name == "productive"}
    rest = {name: ns for name, ns in categories.items() if name != "productive"}
    total, other = sum(categories.values()), sum(rest.values())
    _bar(axis, productive | rest, total, (2.0, 0.62), f"all {format_seconds(total / 1e9)}")
    if rest and productive:
        left = productive["productive"] / total
        for top, bottom in ((left, 0.0), (1.0, 1.0)):
            axis.plot([top, bottom], [2.0, 1.06], color=LIGHT["silver"], linewidth=0.8, zorder=1)
        _bar(axis, rest, other, (0.44, 0.62), f"not productive: {format_seconds(other / 1e9)}")
    axis.set_xlim(0, 1)
    axis.set_ylim(0 if rest and productive else 1.5, 3.2)
    figure.subplots_adjust(left=0.004, right=0.996, top=0.99, bottom=0.0)
    return figure


def _bar(axis: Axes, parts: dict[str, int], total: int, place: tuple[float, float], title: str) -> None:
    """A stacked bar over [0, 1]; what is wide enough for its name is named below it."""
    bottom, height = place
    start, free_from = 0.0, 0.0
    box = {"facecolor": LIGHT["paper"], "edgecolor": "none", "pad": 1.5}
    axis.text(
        0, bottom + height + 0.09, title, fontsize=9, fontweight="bold", color=LIGHT["ink"], va="bottom", bbox=box, zorder=2
    )
    for name, ns in parts.items():
        share = ns / total if total else 0.0
        _paint(axis, [(start, share)], name, (bottom, height))
        text = f"{name.replace('_', ' ')} {percent(share)}"
        room = len(text) * 0.0082  # of the bar's width, at this font size
        if share >= room * 0.5 and start >= free_from and start + room <= 1.02:
            axis.text(start, bottom - 0.07, text, fontsize=8.5, color=LIGHT["ink"], va="top")
            free_from = start + room
        start += share
