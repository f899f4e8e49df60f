"""What verbs print: facts on stdout, the course of things on stderr only where stdout is JSON.

All text for people passes here, or through ``errors.py``: names, reasons and values are whatever somebody wrote, so what a
terminal would obey stands as an escape (``base/terminal.py``).
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import Any, TextIO

from headway.base.terminal import printable_json, printable_text

_CLEAR_LINE = "\r\x1b[K"
PIPE_WIDTH = 120


def print_json(value: Any) -> None:
    """One document, indented; numbers that are not finite are refused, since JSON has none."""
    print(printable_json(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False)))


def print_json_line(value: Any) -> None:
    """One record on one line, at once: for readers that follow a run."""
    print(printable_json(json.dumps(value, ensure_ascii=False)), flush=True)


def say(text: str = "") -> None:
    """One line for people, at once (a run's output is often piped)."""
    print(printable_text(text), flush=True)


def say_aside(text: str) -> None:
    """One line on stderr, where stdout is JSON."""
    print(printable_text(text), file=sys.stderr, flush=True)


def rewrite(text: str = "", stream: TextIO | None = None) -> None:
    """``text`` in place of the line that the terminal's cursor stands in; empty: that line goes. None: stdout."""
    stream = stream or sys.stdout
    stream.write(_CLEAR_LINE + printable_text(text)[: shutil.get_terminal_size().columns - 1])
    stream.flush()


def heading(text: str) -> None:
    """A titled section of a longer output."""
    say()
    say(text)
    say("-" * len(text))


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Aligned columns, numbers to the right; ``left`` names the columns of words."""
    titles, *rows = [[_cell(text) for text in row] for row in [titles, *rows]]
    widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(len(titles))]

    def line(cells: Sequence[str]) -> str:
        placed = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(placed).rstrip()

    return [line(titles), "  ".join("-" * width for width in widths), *map(line, rows)]


def _cell(text: str) -> str:
    """On one line, as wide as it is shown."""
    return printable_text(text).replace("\n", "\\n").replace("\t", "\\t")


def console() -> Any:
    """A rich console on stdout: as wide as the terminal, and wide enough for tables where there is none."""
    from rich.console import Console

    class PipeConsole(Console):
        """Leaves a closed pipe to the command line's own guard, so that the exit code is not that of findings."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

        def render(self, *given: Any, **named: Any) -> Iterator[Any]:
            """Rich's own colours are added behind this."""
            for segment in super().render(*given, **named):
                yield segment if segment.control else segment._replace(text=printable_text(segment.text))

    return PipeConsole(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
