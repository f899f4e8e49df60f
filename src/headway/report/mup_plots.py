"""Plots of muP: what the coordinate check measured, the loss curves of a sweep, and its optima against width; as PNG files."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, LogLocator, NullLocator

from headway.base.files import write_atomic
from headway.base.units import format_count
from headway.experiment.coordinates import ARMS, QUANTITIES, Check, Line
from headway.experiment.grid import ARM_WORDS
from headway.experiment.optimum import Optimum, Point, levels
from headway.experiment.outcome import WORDS, Finding, Outcome
from headway.report import plots

PIXELS_PER_INCH = 110
_SETTINGS: Any = {"font.family": "DejaVu Sans", "font.size": 9.0, "axes.linewidth": 0.8}
ARM_STYLES: dict[str, tuple[str, Any, str]] = {"mup": ("blue", "-", "o"), "standard": ("orange", "--", "s")}
WIDTH_COLOURS = ("sky", "teal", "gold", "orange", "violet", "brick", "blue")
QUANTITY_WORDS = {
    "activation_change": "change of activations",
    "gradient": "gradients",
    "update": "updates",
}


def save_png(draw: Callable[[], Figure], path: Path) -> None:
    """Whole or not at all."""
    buffer = io.BytesIO()
    with matplotlib.rc_context(_SETTINGS):
        figure = draw()
        figure.savefig(buffer, format="png", dpi=PIXELS_PER_INCH, facecolor=figure.get_facecolor(), metadata={"Software": None})
    write_atomic(path, buffer.getvalue())


# --- the coordinate check -----------------------------------------------------------------------------------------------


def coordinates_figure(check: Check) -> Figure:
    """One panel per quantity, at the last step: a line per module over widths, in both arms. Flat is what muP should be."""
    quantities = [q for q in QUANTITIES if any(line.quantity == q for lines in check.lines.values() for line in lines)]
    figure, axes = plots.new_figure(2.6 * len(quantities) + 0.4, [1] * len(quantities))
    for axis, quantity in zip(axes, quantities, strict=True):
        for arm in ARMS:
            _coordinate_lines(axis, _at_last_step(check.lines[arm], quantity), arm)
        _log_scale(axis, f"{QUANTITY_WORDS[quantity]}: RMS, scaled to be of order one, at the last step")
    widths = sorted({width for lines in check.lines.values() for line in lines for width in line.widths})
    _width_axis(axes[-1], widths)
    _arm_legend(axes[0], ARMS)
    figure.tight_layout(h_pad=1.2)
    return figure


def _at_last_step(lines: Sequence[Line], quantity: str) -> list[Line]:
    mine = [line for line in lines if line.quantity == quantity]
    last = max((line.step for line in mine), default=0)
    return [line for line in mine if line.step == last]


def _coordinate_lines(axis: Axes, lines: Iterable[Line], arm: str) -> None:
    name, dash, marker = ARM_STYLES[arm]
    for line in lines:
        values = [np.nan if value is None else 2.0**value for value in line.log2_values]
        axis.plot(line.widths, values, dash, color=plots.colour(name), marker=marker, markersize=3.5, linewidth=1.1, alpha=0.75)


# --- a sweep ------------------------------------------------------------------------------------------------------------


def sweep_figures(outcome: Outcome) -> dict[str, Callable[[], Figure]]:
    """Name -> what draws it."""
    names = list(dict.fromkeys(finding.hyperparameter for finding in outcome.findings))
    found: dict[str, Callable[[], Figure]] = {}
    for name in names:
        findings = [f for f in outcome.findings if f.hyperparameter == name]
        found[f"{name.replace('_', '-')}-curves"] = lambda findings=findings: curves_figure(findings)  # type: ignore[misc]
        found[f"{name.replace('_', '-')}-optima"] = lambda findings=findings: optima_figure(findings)  # type: ignore[misc]
    return found


def curves_figure(findings: Sequence[Finding]) -> Figure:
    """Loss against one hyperparameter, a curve per width and a panel per parametrisation; optima marked with their intervals."""
    figure, axes = plots.new_figure(3.3 * len(findings) + 0.3, [1] * len(findings))
    for axis, finding in zip(axes, findings, strict=True):
        for place, (width, points, found) in enumerate(_curves(finding)):
            _curve(axis, width, points, found, place)
        _clip_high(axis, finding)
        plots.title(axis, f"{ARM_WORDS[finding.parametrization]}: held-out loss, nats per token")
        axis.legend(frameon=False, fontsize=8, title="width", loc="upper left", bbox_to_anchor=(1.0, 1.0))
        axis.set_xscale("log", base=2)
    _value_axis(axes[-1].xaxis, findings)
    axes[-1].set_xlabel(f"{WORDS[findings[0].hyperparameter]}   (crosses at the top: diverged)", color=plots.LIGHT["ink"])
    figure.tight_layout(h_pad=1.2)
    return figure


def _curves(finding: Finding) -> list[tuple[str, list[Point], Optimum]]:
    found = [(str(width), points, finding.optima[width]) for width, points in finding.curves.items()]
    if finding.held_out_curve is not None and finding.held_out_optimum is not None:
        width, points = finding.held_out_curve
        found.append((f"{width}, held out", points, finding.held_out_optimum))
    return found


def _curve(axis: Axes, width: str, points: Sequence[Point], found: Optimum, place: int) -> None:
    shade = plots.colour(WIDTH_COLOURS[place % len(WIDTH_COLOURS)])
    dash = ":" if "held out" in width else "-"
    by_value = levels(points)
    axis.plot(
        list(by_value), [np.nan if x is None else x for x in by_value.values()], dash, color=shade, linewidth=1.3, label=width
    )
    finite = [p for p in points if p.loss is not None]
    axis.plot([p.value for p in finite], [p.loss or 0.0 for p in finite], "o", color=shade, markersize=3, alpha=0.6)
    gone = [p.value for p in points if p.loss is None]
    axis.plot(gone, [0.98 - 0.035 * place] * len(gone), "x", color=shade, markersize=5, transform=axis.get_xaxis_transform())
    if found.value is not None and found.loss is not None:
        axis.plot([found.value], [found.loss], "D", color=shade, markersize=6, markeredgecolor=plots.LIGHT["ink"])
        if found.low is not None and found.high is not None:
            axis.plot([found.low, found.high], [found.loss] * 2, "-", color=plots.LIGHT["ink"], linewidth=2.2, alpha=0.8)


def _clip_high(axis: Axes, finding: Finding) -> None:
    """Losses that are far above the optimum would flatten what is of interest."""
    losses = [p.loss for _, points, _ in _curves(finding) for p in points if p.loss is not None]
    if losses:
        low, high = min(losses), max(losses)
        lowest = [min(q) for _, points, _ in _curves(finding) if (q := [p.loss for p in points if p.loss is not None])]
        top = min(high, max(lowest) + max(0.5, max(lowest) - low))
        axis.set_ylim(low - 0.05 * (top - low + 0.01), top + 0.12 * (top - low + 0.01))


def optima_figure(findings: Sequence[Finding]) -> Figure:
    """The optimum against width with its interval, an arm each; held-out widths hollow, with what was predicted for them."""
    figure, (axis,) = plots.new_figure(3.8)
    widths: set[int] = set()
    for finding in findings:
        _optima(axis, finding)
        widths |= set(finding.optima) | ({finding.held_out_curve[0]} if finding.held_out_curve else set())
    plots.title(axis, f"best {WORDS[findings[0].hyperparameter]}, with its interval")
    _width_axis(axis, sorted(widths))
    axis.set_yscale("log", base=2)
    _value_axis(axis.yaxis, findings)
    swept = [p.value for finding in findings for points in finding.curves.values() for p in points]
    axis.set_ylim(min(swept) / 1.2, max(swept) * 1.2)
    _arm_legend(axis, [finding.parametrization for finding in findings], held_out=any(f.held_out for f in findings))
    figure.tight_layout()
    return figure


def _optima(axis: Axes, finding: Finding) -> None:
    name, dash, marker = ARM_STYLES[finding.parametrization]
    shade = plots.colour(name)
    known = {w: o for w, o in finding.optima.items() if o.value is not None}
    axis.plot(
        list(known), [o.value or 0.0 for o in known.values()], dash, color=shade, marker=marker, markersize=6, linewidth=1.3
    )
    for width, found in known.items():
        _interval(axis, width, found, finding, shade)
    if finding.held_out_curve is None or finding.held_out_optimum is None or finding.held_out_optimum.value is None:
        return
    width, found = finding.held_out_curve[0], finding.held_out_optimum
    axis.plot([width], [found.value or 0.0], marker, color=shade, markersize=8, markerfacecolor="none")
    _interval(axis, width, found, finding, shade)
    if finding.held_out is not None:
        axis.plot([width], [finding.held_out.predicted], "_", color=shade, markersize=18, markeredgewidth=2.4)


def _interval(axis: Axes, width: int, found: Optimum, finding: Finding, shade: str) -> None:
    """An open end is drawn as an arrow to the end of what was swept."""
    values = [p.value for points in finding.curves.values() for p in points]
    low, high = found.low or min(values), found.high or max(values)
    axis.plot([width, width], [low, high], "-", color=shade, linewidth=1.6, alpha=0.7)
    for end, mark in ((low, "v" if found.low is None else "_"), (high, "^" if found.high is None else "_")):
        axis.plot([width], [end], mark, color=shade, markersize=6, alpha=0.8)


# --- axes ---------------------------------------------------------------------------------------------------------------


def _width_axis(axis: Axes, widths: Sequence[int]) -> None:
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_locator(FixedLocator(list(widths)))
    axis.xaxis.set_minor_locator(NullLocator())
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axis.set_xlabel("width", color=plots.LIGHT["ink"])


def _log_scale(axis: Axes, text: str) -> None:
    axis.set_yscale("log", base=2)
    axis.yaxis.set_major_locator(LogLocator(base=2, numticks=7))
    axis.yaxis.set_minor_locator(NullLocator())
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.3g}"))
    plots.title(axis, text)


def _value_axis(axis: Any, findings: Sequence[Finding]) -> None:
    """Ticks at the values that were swept."""
    values = sorted({p.value for finding in findings for points in finding.curves.values() for p in points})
    tokens = findings[0].hyperparameter == "warmup_tokens"
    axis.set_major_locator(FixedLocator(values))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: format_count(value) if tokens else f"{value:.3g}"))


def _arm_legend(axis: Axes, arms: Sequence[str], held_out: bool = False) -> None:
    handles = []
    for arm in arms:
        name, dash, marker = ARM_STYLES[arm]
        handles.append(
            Line2D([], [], color=plots.colour(name), linestyle=dash, marker=marker, markersize=4, label=ARM_WORDS[arm])
        )
    if held_out:
        ink = plots.LIGHT["ink"]
        hollow = Line2D([], [], color=ink, linestyle="", marker="o", markerfacecolor="none", label="found at the held-out width")
        handles += [hollow, Line2D([], [], color=ink, linestyle="", marker="_", markersize=12, label="carried to it unchanged")]
    axis.legend(handles=handles, frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(1.0, 1.0))
