"""The plots of ``headway data audit``, in the style of the report."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from headway.base.terminal import one_line
from headway.base.units import format_count
from headway.data.inspect.probes import DIGITS, RUNS
from headway.report.plots import SOURCE_STYLES, colour, label, new_figure, title

if TYPE_CHECKING:
    from headway.data.inspect.audit import Audit, SourceAudit

DOTS_PER_INCH = 150
_SETTINGS: Any = {"font.family": "DejaVu Sans", "font.size": 9.0, "axes.linewidth": 0.8}
_NAME = 28  # characters of a source's name


def plots(found: Audit) -> dict[str, bytes]:
    """Name -> PNG."""
    drawn = {
        "bytes-per-token": bytes_per_token,
        "fertility": fertility,
        "vocabulary": vocabulary,
        "whitespace": whitespace,
        "digits": digits,
    }
    with matplotlib.rc_context(_SETTINGS):
        return {name: _png(draw(found)) for name, draw in drawn.items()}


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=DOTS_PER_INCH, bbox_inches="tight", pad_inches=0.15, metadata={"Software": None})
    return buffer.getvalue()


def _style(number: int) -> tuple[str, str]:
    """Colour and line; they repeat beyond the styles that there are."""
    name, _, line = SOURCE_STYLES[number % len(SOURCE_STYLES)]
    return colour(name), line


def _name(source: SourceAudit) -> str:
    return one_line(source.name, _NAME)


def bytes_per_token(found: Audit) -> Figure:
    """A bar per source over all its tokens, and the spread of its sampled documents."""
    figure, (axis,) = new_figure(0.8 + 0.5 * len(found.sources))
    title(axis, "bytes per token: all training tokens (bar), 5 to 95 % of sampled documents (line), their median (dot)")
    rows = np.arange(len(found.sources))[::-1]
    values = [source.bytes_per_token for source in found.sources]
    axis.barh(rows, values, height=0.55, color=colour("sky"))
    for row, source, value in zip(rows, found.sources, values, strict=True):
        if len(source.document_bytes_per_token):
            low, middle, high = np.percentile(source.document_bytes_per_token, (5, 50, 95))
            axis.plot([low, high], [row, row], color=colour("ink"), linewidth=1.2)
            axis.plot([middle], [row], "o", color=colour("ink"), markersize=4)
        label(axis, 0, row, f"  {value:.3f}", va="center", fontweight="bold")  # at the foot: at its end the spread is in the way
    axis.set_yticks(rows, [_name(source) for source in found.sources])
    axis.grid(False, axis="y")
    axis.grid(True, axis="x", color=colour("line"), linewidth=0.7)
    axis.set_xlim(left=0)
    return figure


def fertility(found: Audit) -> Figure:
    """Share of sampled documents below each fertility: a long tail is text that the tokenizer serves badly."""
    figure, (axis,) = new_figure(3.2)
    title(axis, "share of sampled documents with at most so many tokens per word (to the 99th percentile)")
    ends = [1.0]
    for number, source in enumerate(found.sources):
        values = np.sort(source.document_tokens_per_word)
        if len(values):
            tone, line = _style(number)
            axis.step(
                values, np.arange(1, len(values) + 1) / len(values), where="post", color=tone, linestyle=line, label=_name(source)
            )
            ends.append(float(np.percentile(values, 99)))
    axis.set_xlim(0, max(ends) * 1.05)
    axis.set_ylim(0, 1.02)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.0%}"))
    axis.set_xlabel("tokens per word", color=colour("ink"))
    _legend(axis, "lower right")
    return figure


def vocabulary(found: Audit) -> Figure:
    """Uses of each entry over its rank, per source: where a curve ends, the rest of the vocabulary was never used."""
    figure, (axis,) = new_figure(3.6)
    coverage = found.coverage
    title(
        axis, f"uses of a vocabulary entry, from the most used one on; of {coverage.entries:,}, {coverage.never:,} are never used"
    )
    controls = [control.id for control in found.controls]
    for number, source in enumerate(found.sources):
        counts = np.delete(source.counts, controls)
        ranked = np.sort(counts[counts > 0])[::-1]
        if len(ranked):
            tone, line = _style(number)
            axis.plot(
                np.arange(1, len(ranked) + 1), ranked, color=tone, linestyle=line, label=f"{_name(source)}: {len(ranked):,} used"
            )
    axis.axvline(coverage.entries, color=colour("muted"), linewidth=1, linestyle=":")
    axis.set_xscale("log")
    axis.set_yscale("log")
    for side in (axis.xaxis, axis.yaxis):
        side.set_major_formatter(FuncFormatter(lambda value, _: format_count(value)))
    axis.set_xlabel("rank", color=colour("ink"))
    _legend(axis, "lower left")
    return figure


def whitespace(found: Audit) -> Figure:
    """Tokens that runs of white space cost."""
    figure, (axis,) = new_figure(3.2)
    title(axis, "tokens for a run of so many characters; indented line: what so many spaces before a letter add to it")
    for number, (name, costs) in enumerate(found.whitespace.items()):
        tone, line = _style(number)
        marker = SOURCE_STYLES[number % len(SOURCE_STYLES)][1]
        axis.plot(RUNS, costs, color=tone, linestyle=line, marker=marker, markersize=3.5, label=name)
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0f}"))
    axis.set_yscale("symlog", base=2, linthresh=1)  # an indented line may cost nothing more
    most = max(map(max, found.whitespace.values()))
    ticks = [0, *(2**n for n in range(int(np.log2(max(1, most))) + 1))]
    axis.set_yticks(ticks, [f"{tick:,}" for tick in ticks])
    axis.set_ylim(0, 1.3 * max(1, most))
    axis.set_xlabel("characters", color=colour("ink"))
    _legend(axis, "upper left")
    return figure


def digits(found: Audit) -> Figure:
    """Tokens that numbers cost: steps of three are groups, a straight line single digits, a band numbers that were learned."""
    figure, (axis,) = new_figure(3.0)
    title(axis, "tokens for a number of so many digits: the least and the most of a few numbers")
    for number, (name, costs) in enumerate(found.numbers.items()):
        tone, line = _style(number)
        marker = SOURCE_STYLES[number % len(SOURCE_STYLES)][1]
        axis.plot(DIGITS, costs, color=tone, linestyle=line, marker=marker, markersize=3.5, label=name)
    axis.fill_between(DIGITS, found.numbers["least"], found.numbers["most"], color=colour("sky"), alpha=0.25, linewidth=0)
    axis.set_xticks(DIGITS)
    axis.set_yticks(range(0, max(found.numbers["most"]) + 2, max(1, max(found.numbers["most"]) // 6)))
    axis.set_ylim(0, max(found.numbers["most"]) + 1)
    axis.set_xlabel("digits", color=colour("ink"))
    _legend(axis, "upper left")
    return figure


def _legend(axis: Axes, place: Any) -> None:
    if axis.get_legend_handles_labels()[0]:
        axis.legend(loc=place, frameon=False, fontsize=8.5, labelcolor=colour("ink"), handlelength=2.6)
