"""Plots over tokens and steps: loss, and health (rate, gradient, throughput, input wait)."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headway.base.units import format_count
from headway.report import plots
from headway.report.facts import RunFacts
from headway.report.plots import LIGHT, SOURCE_STYLES, colour
from headway.report.replay import Interruption
from headway.report.rows import Steps
from headway.report.words import percent

POINTS = 1600
"""Most points drawn for one raw series; each bucket keeps its minimum and maximum."""

LOG_FROM = 2.5
"""A loss that falls by more than this factor is shown on a logarithmic axis: its end matters as much as its beginning."""

FEW = 40
"""So few steps are marked one by one: a thin line alone would hardly show."""

SMOOTH_FROM = 4
"""Fewer steps than this have no mean worth drawing."""

SMOOTHING = 0.05
"""Half-width of the smoothing window, as a share of the tokens so far (a constant width on a log axis)."""


def loss_figure(facts: RunFacts, breaks: tuple[Interruption, ...]) -> Figure:
    """Training loss (raw, smoothed, rolled back) and held-out loss by source over log tokens."""
    figure, (axis,) = plots.new_figure(4.6)
    kept, lost = facts.kept, facts.discarded
    low = max(1, int(kept.tokens[0])) * 0.9
    high = max(int(facts.steps.tokens.max()), *(e.tokens for e in facts.evaluations), 2)
    plots.log_ticks(axis, low, high * 1.02)
    _training(axis, kept)
    _rolled_back(axis, lost, facts)
    ends = _held_out(axis, facts)
    _window(axis, facts, ends)
    _stages(axis, facts, log=True)
    _breaks(axis, breaks, low)
    _end_labels(axis, ends, high)
    plots.title(axis, "Loss, nats per target token" + (" (log scale)" if axis.get_yscale() == "log" else ""))
    axis.set_xlabel("tokens trained (log scale)", color=LIGHT["muted"])
    figure.subplots_adjust(left=0.045, right=0.865, top=0.93, bottom=0.115)
    return figure


def _training(axis: Axes, kept: Steps) -> None:
    position = np.log(np.maximum(kept.tokens, 1))
    x, y = plots.thin(position, kept.loss, POINTS)
    axis.plot(np.exp(x), y, color=colour("sky"), linewidth=0.7, alpha=0.75, zorder=2, **_marks(len(kept)))
    if len(kept) >= SMOOTH_FROM:
        x, y = plots.thin(position, plots.smooth(position, kept.loss, SMOOTHING), POINTS)
        axis.plot(np.exp(x), y, color=colour("blue"), linewidth=1.7, zorder=4)
    gone = kept.where(~np.isfinite(kept.loss))
    if len(gone):
        axis.plot(
            gone.tokens, np.full(len(gone), 0.985), "x", color=colour("bad"), transform=axis.get_xaxis_transform(), zorder=6
        )


def _marks(count: int) -> dict[str, Any]:
    return {"marker": "o", "markersize": 2.4} if count <= FEW else {}


def _rolled_back(axis: Axes, lost: Steps, facts: RunFacts) -> None:
    """Each discarded stretch as its own faint, open-ended line: visible, and never joined to the history (E5)."""
    for attempt in facts.segments:
        own = lost.where(lost.segment == attempt.segment.id)
        if len(own):
            style = {"marker": "o", "markersize": 2.6, "markerfacecolor": "none"} if len(own) <= 60 else {}
            axis.plot(own.tokens, own.loss, color=colour("slate"), linewidth=0.6, alpha=0.8, zorder=3, **style)  # type: ignore[arg-type]


def _held_out(axis: Axes, facts: RunFacts) -> list[tuple[str, float, str]]:
    """Draws each source; returns what stands at the right end: (label, value, colour)."""
    kept = [evaluation for evaluation in facts.evaluations if evaluation.kept and evaluation.tokens > 0]
    names = list(dict.fromkeys(name for evaluation in kept for name in evaluation.loss))
    ends = []
    for index, name in enumerate(names):
        points = [(e.tokens, e.loss[name]) for e in kept if name in e.loss]
        shade, marker, line = SOURCE_STYLES[index % len(SOURCE_STYLES)]
        x, y = zip(*points, strict=True)
        size = 4.5 if len(points) <= 60 else 2.0
        axis.plot(x, y, color=colour(shade), marker=marker, markersize=size, linestyle=line, linewidth=1.1, zorder=5)
        ends.append((f"{name} {y[-1]:.3f}", float(y[-1]), shade))
    kept_rows = facts.kept
    tail = plots.smooth(np.log(np.maximum(kept_rows.tokens, 1)), kept_rows.loss, SMOOTHING)
    if len(tail) >= SMOOTH_FROM and np.isfinite(tail[-1]):
        ends.append((f"training {tail[-1]:.3f}", float(tail[-1]), "blue"))
    return ends


def _window(axis: Axes, facts: RunFacts, ends: list[tuple[str, float, str]]) -> None:
    """Limits around every finite loss but the wildest 0.1 %; logarithmic where the loss falls by more than LOG_FROM."""
    loss = facts.steps.loss[np.isfinite(facts.steps.loss)]
    spread = np.quantile(loss, [0.0005, 0.9995]) if len(loss) else []
    fixed = [value for _, value, _ in ends] + [v for e in facts.evaluations for v in e.loss.values()] + list(facts.kept.loss[:1])
    seen = np.array([value for value in (*spread, *fixed) if np.isfinite(value)])
    if not len(seen):
        return
    low, high = float(seen.min()), float(seen.max())
    if low > 0 and high / low > LOG_FROM:
        plots.log_values(axis, low / (high / low) ** 0.06, high * (high / low) ** 0.06)
        return
    room = max(high - low, 0.05)
    axis.set_ylim(low - 0.06 * room, high + 0.06 * room)


def _end_labels(axis: Axes, ends: list[tuple[str, float, str]], at: float) -> None:
    to_axis = axis.transLimits.transform  # of scaled values
    heights = [float(to_axis(axis.transScale.transform((at, value)))[1]) for _, value, _ in ends]
    for (text, _, shade), height in zip(ends, plots.spread(heights, 0.052), strict=True):
        axis.annotate(
            text,
            (at, height),
            xycoords=axis.get_xaxis_transform(),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=colour(shade),
            fontsize=8.5,
            annotation_clip=False,
        )


def _stages(axis: Axes, facts: RunFacts, log: bool, names: bool = True) -> None:
    """A thin line where each stage begins, with its name above the axis."""
    if facts.spec is None:
        return
    start = 0
    reached = int(facts.steps.tokens.max()) if len(facts.steps) else 0
    for stage in facts.spec.stages:
        if start <= reached and len(facts.spec.stages) > 1:
            left = max(start, axis.get_xlim()[0]) if log else start
            if start:
                axis.axvline(start, color=LIGHT["muted"], linewidth=0.8, zorder=1)
            if names:
                axis.annotate(
                    stage.name, (left, 1), xycoords=axis.get_xaxis_transform(), xytext=(4, -9), textcoords="offset points",
                    color=LIGHT["muted"], fontsize=8.5, style="italic",
                )  # fmt: skip
        start += stage.sequences * stage.sequence_length


def _breaks(axis: Axes, breaks: tuple[Interruption, ...], low: float, names: bool = True) -> None:
    """Each interruption: a line where the segment ended, and the stretch that was done again."""
    for index, item in enumerate(breaks):
        end, start = max(item.last_tokens, low), max(item.last_tokens - item.lost_tokens, low)
        if item.lost_tokens:
            axis.axvspan(start, end, color=colour("rose"), alpha=0.22, linewidth=0, zorder=0)
        axis.axvline(end, color=colour("bad"), linewidth=0.9, linestyle=(0, (4, 2)), zorder=3)
        if names and index < 6:
            axis.annotate(
                f"{item.word} after step {item.last_step:,}, again from {item.restored_step:,}", (end, 1),
                xycoords=axis.get_xaxis_transform(), xytext=(-4, -22 - 11 * (index % 3)), textcoords="offset points",
                ha="right", color=colour("bad"), fontsize=8.5,
            )  # fmt: skip


def health_figure(facts: RunFacts, breaks: tuple[Interruption, ...]) -> Figure:
    """Learning rate, gradient norm, throughput and input wait over tokens, one below the other."""
    figure, axes = plots.new_figure(7.6, ratios=(1.1, 1, 1, 0.7))
    kept = facts.kept
    axes[0].set_xlim(0, max(int(kept.tokens.max()), 1) * 1.01)
    _rate(axes[0], facts)
    _gradient(axes[1], facts)
    _throughput(axes[2], kept)
    _wait(axes[3], kept)
    for index, axis in enumerate(axes):
        _stages(axis, facts, log=False, names=index == 0)
        _breaks(axis, breaks, 0, names=False)
    plots.token_ticks(axes[-1])
    axes[-1].set_xlabel("tokens trained", color=LIGHT["muted"])
    figure.subplots_adjust(left=0.065, right=0.985, top=0.955, bottom=0.07, hspace=0.42)
    return figure


def _rate(axis: Axes, facts: RunFacts) -> None:
    kept, schedule = facts.kept, facts.schedule
    plots.title(axis, "Learning rate: planned (line) and used (dots)")
    planned = [0.0]
    if schedule is not None:
        x = np.linspace(0, int(kept.tokens.max()), 700)
        planned = [schedule.rate_at_tokens(float(t)) for t in x]
        axis.plot(x, planned, color=colour("orange"), linewidth=1.8, zorder=2)
    middle = kept.tokens - _step_tokens(kept) / 2
    chosen = np.unique(np.linspace(0, len(kept) - 1, 90).round().astype(int))
    axis.plot(middle[chosen], kept.rate[chosen], "o", color=colour("ink"), markersize=2.2, zorder=3)
    axis.set_ylim(0, 1.12 * max(float(np.nanmax(kept.rate, initial=0.0)), *planned, 1e-12))
    axis.yaxis.set_major_locator(MaxNLocator(4, steps=[1, 2, 2.5, 5, 10]))
    axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _step_tokens(steps: Steps) -> np.ndarray:
    """Tokens of each kept step (the first counts from zero)."""
    return np.diff(steps.tokens, prepend=0)


def _gradient(axis: Axes, facts: RunFacts) -> None:
    kept = facts.kept
    share = float(kept.clipped.mean())
    plots.title(axis, f"Gradient norm before clipping; {percent(share)} of the steps were clipped")
    _raw_and_smooth(axis, kept.tokens, kept.grad_norm)
    if np.nanmax(kept.grad_norm, initial=0) > 8 * np.nanmedian(kept.grad_norm) > 0:
        axis.set_yscale("log")
    clip = facts.spec.optimizer.clip_norm if facts.spec else None
    if clip is not None:
        axis.axhline(clip, color=colour("brick"), linewidth=0.9, linestyle=(0, (1, 1.5)))
        axis.annotate(
            f"clip at {clip:g}",
            (1, clip),
            xycoords=axis.get_yaxis_transform(),
            xytext=(0, 3),
            textcoords="offset points",
            ha="right",
            color=colour("brick"),
            fontsize=8.5,
        )


def _raw_and_smooth(axis: Axes, x: np.ndarray, y: np.ndarray) -> None:
    """Raw values thin, and a running mean over 2 % of the axis."""
    x = x.astype(float)
    axis.plot(*plots.thin(x, y, POINTS), color=colour("sky"), linewidth=0.7, alpha=0.8, zorder=2, **_marks(len(x)))
    if len(x) >= 8:
        mean = plots.smooth(x, y, 0.01 * float(x[-1]))
        axis.plot(*plots.thin(x, mean, POINTS), color=colour("blue"), linewidth=1.5, zorder=3)


def _throughput(axis: Axes, kept: Steps) -> None:
    rate = _step_tokens(kept) / np.where(kept.total_ns > 0, kept.total_ns / 1e9, np.nan)
    plots.title(axis, "Throughput of each step, tokens/s (waiting for input included, saves and evaluations not)")
    _raw_and_smooth(axis, kept.tokens, rate)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_locator(MaxNLocator(4))
    axis.yaxis.set_major_formatter(lambda value, _: format_count(round(value)))


def _wait(axis: Axes, kept: Steps) -> None:
    share = 100 * kept.stall_ns / np.where(kept.total_ns > 0, kept.total_ns, np.nan)
    whole = 100 * int(kept.stall_ns.sum()) / max(1, int(kept.total_ns.sum()))
    plots.title(axis, f"Waiting for input, % of each step; {whole:.2f} % over all")
    _raw_and_smooth(axis, kept.tokens, share)
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_locator(MaxNLocator(3))
