"""What verbs print: facts on stdout, the course of things on stderr only where stdout is JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

PIPE_WIDTH = 120


def print_json(value: Any) -> None:
    """One document, indented; numbers that are not finite are refused, since JSON has none."""
    print(json.dumps(value, indent=1, ensure_ascii=False, allow_nan=False))


def print_json_line(value: Any) -> None:
    """One record on one line, at once: for readers that follow a run."""
    print(json.dumps(value, ensure_ascii=False), flush=True)


def say(text: str = "") -> None:
    """One line for people, at once (a run's output is often piped)."""
    print(text, flush=True)


def heading(text: str) -> None:
    """A titled section of a longer output."""
    say()
    say(text)
    say("-" * len(text))


def table(titles: Sequence[str], rows: Sequence[Sequence[str]], left: Collection[int] = (0,)) -> list[str]:
    """Aligned columns, numbers to the right; ``left`` names the columns of words."""
    widths = [max(len(row[column]) for row in [titles, *rows]) for column in range(len(titles))]

    def line(cells: Sequence[str]) -> str:
        placed = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(cells, widths, strict=True))
        ]
        return "  ".join(placed).rstrip()

    return [line(titles), "  ".join("-" * width for width in widths), *map(line, rows)]


def console() -> Any:
    """A rich console on stdout: as wide as the terminal, and wide enough for tables where there is none."""
    import sys

    from rich.console import Console

    class PipeConsole(Console):
        """Leaves a closed pipe to the command line's own guard, so that the exit code is not that of findings."""

        def on_broken_pipe(self) -> None:
            raise BrokenPipeError

    return PipeConsole(highlight=False, width=None if sys.stdout.isatty() else PIPE_WIDTH)
