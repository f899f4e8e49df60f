"""The style of every plot, and how a figure becomes SVG. What is drawn stands in ``curves`` and ``timelines``.

Two schemes share one set of colour names. Figures are drawn in the light one; ``inline_svg`` turns each colour into a CSS
variable of the page, so that plots follow the reader's scheme, while the files beside the Markdown keep fixed colours.
The colours differ in lightness as well as in hue: they stay apart in greyscale and for colour-blind readers.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, NullFormatter, NullLocator

from headway.base.units import format_count

LIGHT = {
    "paper": "#ffffff",
    "wash": "#f4f5f7",
    "ink": "#1a1d21",
    "muted": "#667080",
    "line": "#dfe2e7",
    "link": "#1f5a9e",
    "good": "#1d7044",
    "warn": "#a4600a",
    "bad": "#b02418",
    "blue": "#1f5aa0",
    "sky": "#7fb2dd",
    "orange": "#d98324",
    "teal": "#2f8f80",
    "violet": "#7a5aa6",
    "gold": "#c7a02c",
    "rose": "#d38f86",
    "brick": "#a8301f",
    "slate": "#8791a1",
    "silver": "#bcc3cd",
}
DARK = {
    "paper": "#14171b",
    "wash": "#1d2126",
    "ink": "#e6e8eb",
    "muted": "#98a2b0",
    "line": "#31363d",
    "link": "#86b6ec",
    "good": "#63c58e",
    "warn": "#e3a750",
    "bad": "#f0857a",
    "blue": "#5c9ce0",
    "sky": "#3f6f9c",
    "orange": "#eda452",
    "teal": "#5cc2b1",
    "violet": "#b096dd",
    "gold": "#dcbf5d",
    "rose": "#b3736b",
    "brick": "#e2604e",
    "slate": "#8b95a5",
    "silver": "#59626e",
}
NAMES = frozenset(LIGHT)

CATEGORY_COLOURS = {
    "productive": "blue",
    "rolled_back": "blue/hatched",
    "skipped": "teal/hatched",
    "validation_replay": "sky",
    "evaluation": "teal",
    "blocking_save": "gold",
    "data_stall": "orange",
    "restore": "violet",
    "init": "slate",
    "compile": "rose",
    "provision": "silver",
    "queue": "silver/hatched",
    "detection_to_stop": "brick",
    "hang": "brick/hatched",
    "reconfigure": "rose/hatched",
    "planned_pause": "line",
    "unknown": "muted/hatched",
}
"""Colour of each category of time; ``/hatched`` where the time bought nothing that was kept, or is not known."""

SOURCE_STYLES = (
    ("orange", "o", "-"),
    ("teal", "s", "--"),
    ("violet", "^", "-."),
    ("brick", "D", ":"),
    ("gold", "v", "-"),
    ("sky", "P", "--"),
)
"""Colour, marker and line of the held-out sources, in order; they repeat beyond six."""

WIDTH = 10.4  # inches: 749 units wide, shown at about 1,000 pixels
_FONTS = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif"
_SETTINGS: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "headway",
    "font.family": "DejaVu Sans",
    "font.size": 9.0,
    "axes.unicode_minus": True,
    "axes.linewidth": 0.8,
    "hatch.linewidth": 1.1,
    "path.simplify": False,
}


def colour(name: str) -> str:
    """Light-scheme colour of a palette name; a ``/hatched`` mark is ignored."""
    return LIGHT[name.partition("/")[0]]


def category_colour(category: str) -> str:
    return CATEGORY_COLOURS.get(category, "muted/hatched")


def new_figure(height: float, ratios: Sequence[float] = (1,), share: bool = True) -> tuple[Figure, list[Axes]]:
    """A figure of the page's width with panels below each other, styled."""
    with matplotlib.rc_context(_SETTINGS):
        figure = Figure(figsize=(WIDTH, height), facecolor=LIGHT["paper"])
        FigureCanvasSVG(figure)
        grid = figure.subplots(len(ratios), 1, sharex=share, squeeze=False, gridspec_kw={"height_ratios": list(ratios)})
        axes = [row[0] for row in grid]
        for axis in axes:
            style_axis(axis)
    return figure, axes


def style_axis(axis: Axes) -> None:
    """Quiet axes: no box, a faint horizontal grid, muted ticks."""
    axis.set_facecolor("none")
    for side in ("top", "right", "left"):
        axis.spines[side].set_visible(False)
    axis.spines["bottom"].set_color(LIGHT["muted"])
    axis.grid(True, axis="y", color=LIGHT["line"], linewidth=0.7)
    axis.set_axisbelow(True)
    axis.tick_params(axis="both", which="both", colors=LIGHT["muted"], labelcolor=LIGHT["ink"], length=3, width=0.8)
    axis.tick_params(axis="y", which="both", length=0)


def title(axis: Axes, text: str) -> None:
    """What the vertical axis is, with its unit, written above it (easier to read than a turned label)."""
    axis.set_title(text, loc="left", fontsize=9, color=LIGHT["ink"], fontweight="bold", pad=7)


def label(axis: Axes, x: float, y: float, text: str, name: str = "ink", **how: Any) -> Any:
    """Text at data coordinates."""
    return axis.text(x, y, text, color=colour(name), fontsize=how.pop("fontsize", 8.5), **how)


def draw(function: Callable[[], Figure]) -> str:
    """Run ``function`` under the page's settings and return its figure as a standalone SVG."""
    with matplotlib.rc_context(_SETTINGS):
        return to_svg(function())


def to_svg(figure: Figure) -> str:
    """Deterministic, standalone SVG with fixed (light) colours."""
    buffer = io.StringIO()
    with matplotlib.rc_context(_SETTINGS):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None}, facecolor=figure.get_facecolor())
    text = re.sub(r"\s*<metadata>.*?</metadata>", "", buffer.getvalue(), flags=re.DOTALL)
    text = re.sub(r"<!DOCTYPE[^>]*>\s*", "", text)
    text = re.sub(r"(font: [^'\";]*px) [^;\"]*", rf"\1 {_FONTS}", text)
    return re.sub(r'\b(?:d|x|y|transform)="[^"]*"', _shorten, text)


def _shorten(attribute: re.Match[str]) -> str:
    """A thousandth of a point is below any pixel."""
    return re.sub(r"(\d+\.\d{3})\d+", r"\1", attribute[0])


def inline_svg(svg: str, name: str) -> str:
    """The ``<svg>`` element for a page: no prologue, colours as CSS variables, ids prefixed with the plot's name."""
    element = svg[svg.index("<svg") :].strip()
    element = re.sub(r'^<svg[^>]*viewBox="([^"]*)"[^>]*>', r'<svg viewBox="\1" class="plot">', element)
    element = element.replace("xlink:href", "href")
    element = re.sub(r'\bid="', f'id="{name}-', element)
    element = re.sub(r'href="#', f'href="#{name}-', element)
    element = re.sub(r"url\(#", f"url(#{name}-", element)
    for key, value in LIGHT.items():
        element = element.replace(value, f"var(--{key})")
    return element


def log_ticks(axis: Axes, low: float, high: float) -> None:
    """A logarithmic token axis with 1-2-5 ticks, labelled as people write counts."""
    axis.set_xscale("log")
    axis.set_xlim(low, high)
    decades = range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high))) + 1)
    steps = (1, 2, 5) if np.log10(high / low) < 3.5 else (1,)
    ticks = [m * 10.0**d for d in decades for m in steps if low <= m * 10.0**d <= high]
    axis.xaxis.set_major_locator(FixedLocator(ticks))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_minor_formatter(NullFormatter())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))


def log_values(axis: Axes, low: float, high: float) -> None:
    """A logarithmic value axis over less than two decades, with plain numbers at round places."""
    axis.set_yscale("log")
    axis.set_ylim(low, high)
    round_places = np.array([1, 1.5, 2, 2.5, 3, 4, 5, 6, 8])
    ticks = [float(m * 10.0**d) for d in range(int(np.floor(np.log10(low))), int(np.ceil(np.log10(high)))) for m in round_places]
    axis.yaxis.set_major_locator(FixedLocator([tick for tick in ticks if low <= tick <= high]))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def token_ticks(axis: Axes) -> None:
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))


def spread(values: Sequence[float], gap: float) -> list[float]:
    """Positions near ``values`` that are at least ``gap`` apart, for labels that would collide."""
    order = sorted(range(len(values)), key=lambda i: values[i])
    placed = [values[i] for i in order]
    for _ in range(60):  # push apart pair by pair; a handful of labels settles in a few rounds
        for i in range(1, len(placed)):
            missing = gap - (placed[i] - placed[i - 1])
            if missing > 1e-12:
                placed[i - 1] -= missing / 2
                placed[i] += missing / 2
    result = [0.0] * len(values)
    for place, i in zip(placed, order, strict=True):
        result[i] = place
    return result


def thin(x: np.ndarray, y: np.ndarray, limit: int) -> tuple[np.ndarray, np.ndarray]:
    """At most ``limit`` points that keep every bucket's minimum and maximum, so that a one-step spike still shows.

    Buckets are equal in ``x`` as it will be drawn: pass log(x) for a logarithmic axis and index the result.
    """
    if len(x) <= limit:
        return x, y
    edges = np.linspace(x[0], x[-1], max(2, limit // 2) + 1)
    bucket = np.clip(np.searchsorted(edges, x, side="right") - 1, 0, len(edges) - 2)
    chosen = []
    for start, end in zip(*_runs(bucket), strict=True):
        part = np.where(np.isfinite(y[start:end]), y[start:end], np.nan)
        if not np.isnan(part).all():
            chosen += sorted({start + int(np.nanargmin(part)), start + int(np.nanargmax(part))})
    return x[chosen], y[chosen]


def _runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Starts and ends of the runs of equal values."""
    cuts = np.flatnonzero(np.diff(values)) + 1
    return np.concatenate([[0], cuts]), np.concatenate([cuts, [len(values)]])


def smooth(position: np.ndarray, values: np.ndarray, width: float) -> np.ndarray:
    """Mean of the finite ``values`` whose ``position`` lies within ``width`` on either side (and of 1 neighbour at least)."""
    finite = np.isfinite(values)
    sums = np.concatenate([[0.0], np.cumsum(np.where(finite, values, 0.0))])
    counts = np.concatenate([[0], np.cumsum(finite)])
    index = np.arange(len(values))
    low = np.minimum(np.searchsorted(position, position - width, side="left"), np.maximum(index - 1, 0))
    high = np.maximum(np.searchsorted(position, position + width, side="right"), np.minimum(index + 2, len(values)))
    seen = counts[high] - counts[low]
    return np.where(seen > 0, (sums[high] - sums[low]) / np.maximum(seen, 1), np.nan)
