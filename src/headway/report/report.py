"""One run on one page: ``write_report`` reads the run directory and writes HTML, Markdown and the plots beside it.

    facts (reading) -> material (what follows) -> sections (content) -> html, markdown (two renderers)
                                              \\-> figures (plots) --/

The same run gives the same bytes: nothing of the clock, the machine or the order of a set goes into the files.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from headway import __version__
from headway.base.files import make_directory, write_atomic
from headway.base.units import format_count
from headway.report import html, markdown, plots
from headway.report.facts import gather
from headway.report.figures import figures
from headway.report.material import Material
from headway.report.page import Inline, Page, code
from headway.report.sections import build_sections
from headway.report.sections.outcome import tiles, verdict
from headway.report.words import plural
from headway.rundir.layout import RunDirectory

PLOTS = "plots"


@dataclass(frozen=True)
class ReportPaths:
    """What was written; iterating gives every file."""

    html: Path
    markdown: Path
    plots: tuple[Path, ...]

    def __iter__(self) -> Iterator[Path]:
        return iter((self.html, self.markdown, *self.plots))


def write_report(run: RunDirectory, out: Path | None = None) -> ReportPaths:
    """Write the report of ``run`` into ``out`` (default: RUN/report). A run that is incomplete gives a page that says so."""
    material = Material.of(gather(run))
    page = build_page(material)
    drawn = {name: plots.draw(function) for name, function in figures(material).items()}
    directory = make_directory(run.report if out is None else Path(out), "report directory")
    files = _write_plots(directory / PLOTS, drawn)
    paths = ReportPaths(html=directory / "report.html", markdown=directory / "report.md", plots=tuple(files.values()))
    write_atomic(paths.html, html.render(page, {name: plots.inline_svg(svg, name) for name, svg in drawn.items()}).encode())
    write_atomic(paths.markdown, markdown.render(page, {name: f"{PLOTS}/{path.name}" for name, path in files.items()}).encode())
    return paths


def build_page(material: Material) -> Page:
    """The content of the page, before any rendering."""
    facts = material.facts
    sentence, tone = verdict(material)
    return Page(
        title=f"{facts.name}: one run on one page",
        subtitle=_subtitle(material),
        verdict=sentence,
        tone=tone,
        tiles=tiles(material),
        sections=build_sections(material),
        footer=(
            f"Headway {__version__}. Every number on this page follows from the files of the run directory and "
            "can be worked out again from them."
        ),
    )


def _subtitle(material: Material) -> Inline:
    facts, spec = material.facts, material.facts.spec
    head = ("run ", code(facts.info.get("run_id") or facts.root.name))
    if spec is None:
        return head
    model = spec.model
    shape = (
        f" · {plural(model.layers, 'layer')}, width {model.width}, {plural(model.heads, 'head')} ({model.kv_heads} kv), "
        f"vocabulary {format_count(model.vocabulary)}"
    )
    rest = f" · {spec.precision.compute} · seed {spec.seed}" + (" · drill" if facts.info.get("drill") else "")
    return (*head, shape, rest)


def _write_plots(directory: Path, drawn: dict[str, str]) -> dict[str, Path]:
    """One SVG file per plot; those of an earlier report that no longer belong are removed."""
    make_directory(directory, "directory of plots")
    files = {name: directory / f"{name}.svg" for name in drawn}
    for stale in set(directory.glob("*.svg")) - set(files.values()):
        stale.unlink()
    for name, path in files.items():
        write_atomic(path, drawn[name].encode())
    return files
