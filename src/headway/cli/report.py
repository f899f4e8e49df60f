"""``headway report RUN``."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from headway.cli.options import Json, RunArgument


def report(
    run: RunArgument,
    /,
    *,
    out: Annotated[Path | None, Parameter(metavar="DIR", help="Where to write. Default: RUN/report.")] = None,
    json: Json = False,
) -> None:
    """Write the report of a run: HTML, Markdown and plots.

    The report is one self-contained page: plan against actual, losses, interruptions, where every second went, digests.
    It can be written at any time, also while the run is going.
    """
    from headway.cli.output import print_json, say
    from headway.report.report import write_report
    from headway.rundir.layout import RunDirectory

    directory = RunDirectory.open(run)
    paths = write_report(directory, out or directory.report)
    if json:
        print_json({"kind": "report", "schema_version": 1, "files": [str(path) for path in paths]})
    else:
        for path in pages(paths):
            say(path)


def pages(paths: Iterable[Path]) -> list[str]:
    """What a person opens: the pages, without the plots that they hold."""
    return [str(path) for path in paths if path.suffix in (".html", ".md")]
