"""Help texts in two aligned columns, without colours: the same in a terminal, a pipe and the generated reference."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from typing import Any

WIDTH = 100
NAME_COLUMN = 26  # names longer than this stand on a line of their own


def columns(name: str, text: str, indent: int = 2) -> Iterator[str]:
    """``name`` and its wrapped description side by side."""
    left = " " * indent + name
    lines = textwrap.wrap(text, WIDTH - NAME_COLUMN - indent) or [""]
    start = indent + NAME_COLUMN
    if len(left) > start - 2:
        yield left
        left = ""
    yield (left.ljust(start) + lines[0]).rstrip()
    for line in lines[1:]:
        yield " " * start + line


def plain(value: Any) -> str:
    """The text of what the parser hands over: a string, a rich text, or one with parts appended."""
    if value is None:
        return ""
    if hasattr(value, "primary_renderable"):
        return " ".join(filter(None, map(plain, [value.primary_renderable, *value.texts])))
    return str(getattr(value, "plain", value)).strip()


def entry_lines(entry: Any) -> Iterator[str]:
    """One option or verb. A positional argument is shown by its label alone, a flag without its negative."""
    names = [entry.positional_label] if entry.positional_label else [*entry.positive_shorts, *entry.positive_names]
    name = ", ".join(names)
    if entry.metavar and not entry.positional_label:
        name += f" {entry.metavar.removesuffix('...')}"
    text = plain(entry.description)
    if entry.default is not None and plain(entry.default) not in ("", "False", "None"):
        text += f" (default: {plain(entry.default)})"
    yield from columns(name, text)


TITLES = {"Parameters": "Options"}


class HelpFormatter:
    """What the parser calls for each part of a help text. Every part but the first begins with an empty line."""

    def __call__(self, console: Any, options: Any, panel: Any) -> None:
        if not panel.entries:
            return
        title = plain(panel.title)
        print(f"\n{TITLES.get(title, title)}:")
        for entry in panel.entries:
            print("\n".join(entry_lines(entry)))

    def render_usage(self, console: Any, options: Any, usage: Any) -> None:
        text = plain(usage)
        print(text if text.startswith("Usage:") else f"Usage: {text}")

    def render_description(self, console: Any, options: Any, description: Any) -> None:
        for paragraph in plain(description).split("\n\n"):
            if paragraph.strip():
                print("\n" + textwrap.fill(" ".join(paragraph.split()), WIDTH))


def house_style() -> dict[str, Any]:
    """What every command group is made with, so that help texts look alike."""
    from headway import __version__

    return {"help_format": "plaintext", "help_formatter": HelpFormatter(), "version": __version__}
