"""The close-up of one interruption: both executions of the steps around it, and whether they left the same state."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from headway.report import plots
from headway.report.facts import RunFacts
from headway.report.plots import LIGHT, colour
from headway.report.replay import Interruption, Replay

MARKED = 60
"""Most replayed steps that get a mark each; more are counted."""


def closeup_figure(facts: RunFacts, item: Interruption, proof: Replay) -> Figure:
    """Loss around one interruption: the first execution as open circles, the second as dots, their verdicts below."""
    figure, (axis, strip) = plots.new_figure(3.6, ratios=(5, 0.55))
    margin = max(4, round(0.6 * (item.last_step - item.restored_step)))
    low, high = item.restored_step - margin, item.last_step + margin
    rows = facts.steps.where((facts.steps.step >= low) & (facts.steps.step <= high))
    first = rows.where(rows.segment == item.before.segment.id)
    second = rows.where(rows.segment == item.after.segment.id)
    size = 6.5 if high - low < 90 else 3.0
    axis.plot(second.step, second.loss, color=colour("blue"), marker="o", markersize=size * 0.45, linewidth=1.1, zorder=3)
    axis.plot(
        first.step,
        first.loss,
        color=colour("orange"),
        marker="o",
        markersize=size,
        markerfacecolor="none",
        linewidth=0.8,
        zorder=4,
    )
    axis.axvspan(item.restored_step + 0.5, item.last_step + 0.5, color=colour("rose"), alpha=0.22, linewidth=0, zorder=0)
    axis.axvline(item.last_step + 0.5, color=colour("bad"), linewidth=0.9, linestyle=(0, (4, 2)))
    axis.set_xlim(low - 0.5, high + 0.5)
    _closeup_labels(axis, item)
    _verdicts(strip, item, proof)
    plots.title(axis, "Loss, nats per target token")
    strip.set_xlabel("step", color=LIGHT["muted"])
    strip.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=14))
    figure.subplots_adjust(left=0.055, right=0.985, top=0.9, bottom=0.135, hspace=0.12)
    return figure


def _closeup_labels(axis: Axes, item: Interruption) -> None:
    """Two lines of text above the curves: on the left the first execution up to the restored state, on the right the second."""
    bottom, top = axis.get_ylim()
    axis.set_ylim(bottom, top + 0.28 * (top - bottom))
    axis.axvline(item.restored_step + 0.5, color=colour("violet"), linewidth=0.9, linestyle=(0, (4, 2)))
    first, second = item.before.segment.id, item.after.segment.id
    lines = (
        (item.restored_step, "right", 0, f"state of step {item.restored_step:,} restored", "violet"),
        (item.restored_step, "right", 1, f"open circles: segment {first}", "orange"),
        (item.last_step, "left", 0, f"{item.word} after step {item.last_step:,}", "bad"),
        (item.last_step, "left", 1, f"dots: segment {second}", "blue"),
    )
    for step, side, line, text, shade in lines:
        axis.annotate(
            text, (step + 0.5, 1), xycoords=axis.get_xaxis_transform(), xytext=(6 if side == "left" else -6, -2 - 13 * line),
            textcoords="offset points", fontsize=8.5, va="top", ha=side, color=colour(shade),
        )  # fmt: skip


def _verdicts(strip: Axes, item: Interruption, proof: Replay) -> None:
    """One mark per replayed step: = where both executions left the same state, a cross where not."""
    pair = item.before.segment.id, item.after.segment.id
    compared = [step for step in proof.steps if step.segments == pair]
    for spine in strip.spines.values():
        spine.set_visible(False)
    strip.grid(False)
    strip.set_yticks([])
    strip.set_ylim(0, 1)
    for step in compared if len(compared) <= MARKED else []:
        strip.text(
            step.step,
            0.5,
            "=" if step.match.equal else "≠",
            ha="center",
            va="center",
            fontsize=10,
            color=colour("good" if step.match.equal else "bad"),
        )
    if len(compared) > MARKED:
        equal = sum(step.match.equal for step in compared)
        strip.text(
            (compared[0].step + compared[-1].step) / 2,
            0.5,
            f"{equal:,} of {len(compared):,} equal",
            ha="center",
            va="center",
            fontsize=9,
            color=colour("good" if equal == len(compared) else "bad"),
        )
