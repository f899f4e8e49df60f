"""Held-out loss by where a target stands: how much of a long context, and of a long document, the model uses."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from headway.base.units import format_count
from headway.report import plots
from headway.report.facts import RunFacts
from headway.report.plots import LIGHT, SOURCE_STYLES, colour
from headway.report.rows import Buckets, Evaluation

FEWEST = 30
"""Targets of a bucket that is drawn: the mean of fewer says little."""

KINDS = {"window": "position in the window", "document": "position in the document (0: the document token)"}


def last_by_position(facts: RunFacts) -> Evaluation | None:
    """The newest evaluation of the history that knows positions."""
    return next((e for e in reversed(facts.evaluations) if e.kept and any(e.by_position.values())), None)


def bucket_name(bucket: int) -> str:
    """The positions of a bucket."""
    if bucket < 2:
        return str(bucket)
    first, last = 2 ** (bucket - 1), 2**bucket - 1
    return f"{first:,} to {last:,}" if last < 10_000 else f"{format_count(first)} to {format_count(last + 1)}"


def position_figure(facts: RunFacts) -> Figure:
    """One panel for the window, one for the document; a line per source."""
    evaluation = last_by_position(facts)
    assert evaluation is not None, "asked for only where there is one"
    figure, axes = plots.new_figure(5.2, (1, 1), share=False)
    for axis, (kind, what) in zip(axes, KINDS.items(), strict=True):
        _panel(axis, {name: parts[kind] for name, parts in evaluation.by_position.items() if kind in parts})
        plots.title(axis, f"Held-out loss by {what}, nats per target token")
    axes[-1].set_xlabel("position, powers of two", color=LIGHT["muted"])
    figure.subplots_adjust(left=0.045, right=0.865, top=0.94, bottom=0.1, hspace=0.45)
    return figure


def _panel(axis: Axes, sources: dict[str, Buckets]) -> None:
    ends, last = [], 1
    for index, (name, buckets) in enumerate(sources.items()):
        drawn = [(b, float(loss)) for b, loss in enumerate(buckets.loss) if buckets.targets[b] >= FEWEST]
        if not drawn:
            continue
        shade, marker, line = SOURCE_STYLES[index % len(SOURCE_STYLES)]
        x, y = zip(*drawn, strict=True)
        axis.plot(x, y, color=colour(shade), marker=marker, markersize=4.5, linestyle=line, linewidth=1.2)
        ends.append((name, y[-1], shade))
        last = max(last, x[-1])
    axis.set_xlim(-0.3, last + 0.3)
    axis.set_xticks(range(last + 1), [str(2 ** (b - 1)) if b else "0" for b in range(last + 1)])
    low, high = axis.get_ylim()
    heights = [(value - low) / (high - low) for _, value, _ in ends]
    for (name, value, shade), height in zip(ends, plots.spread(heights, 0.11), strict=True):
        axis.annotate(
            f"{name} {value:.3f}",
            (1.0, height),
            xycoords="axes fraction",
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            color=colour(shade),
            fontsize=8.5,
            annotation_clip=False,
        )
