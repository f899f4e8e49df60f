"""A table that fits: as wide as its cells, or made narrower without becoming unreadable.

In this order, until it fits: titles break at spaces; columns that say the same in every row are said once, below; columns of
words break at spaces, the widest first; columns are left out from the right, and named below.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

GAP = 2
NARROW_WORDS = 20
"""A column of words is never made narrower than this: below it every line holds one word."""


@dataclass(frozen=True)
class Fitted:
    """``notes``: what stands for all rows, and what was left out."""

    lines: list[str]
    notes: list[str]


@dataclass
class _Columns:
    """The columns that are still there, by their place in the table."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    places: list[int]
    limits: dict[int, int]  # place -> width that its words are broken to

    def width(self, place: int) -> int:
        cells = [_widest(row[place], self.limits.get(place)) for row in self.rows]
        return max([_longest_word(self.titles[place]), *cells])

    @property
    def total(self) -> int:
        return sum(map(self.width, self.places)) + GAP * (len(self.places) - 1)


def fit_table(titles: Sequence[str], rows: Sequence[Sequence[str]], *, numbers: set[int], width: int) -> Fitted:
    """Aligned text of at most ``width`` columns; ``numbers`` names the columns that are set to the right."""
    columns = _Columns(titles, rows, list(range(len(titles))), {})
    notes = [*_say_once(columns, width), *_break_words(columns, numbers, width), *_leave_out(columns, width)]
    return Fitted(_lines(columns, numbers), notes)


def _say_once(columns: _Columns, width: int) -> list[str]:
    same = [place for place in columns.places[1:] if len({row[place] for row in columns.rows}) == 1 and len(columns.rows) > 1]
    said = []
    for place in reversed(same):
        if columns.total <= width:
            break
        columns.places.remove(place)
        said.append(f"{columns.titles[place]} {columns.rows[0][place]}")
    return [f"in every row: {', '.join(reversed(said))}"] if said else []


def _break_words(columns: _Columns, numbers: set[int], width: int) -> list[str]:
    while columns.total > width:
        wide = [place for place in columns.places if place not in numbers and columns.width(place) > NARROW_WORDS]
        if not wide:
            break
        widest = max(wide, key=columns.width)
        now = columns.width(widest)
        target = max(NARROW_WORDS, now - (columns.total - width))
        others = sorted((columns.width(place) for place in wide if place != widest), reverse=True)
        columns.limits[widest] = max(target, others[0]) if others and others[0] < now else target
        if columns.width(widest) >= now:  # one word that cannot be broken
            numbers = numbers | {widest}
    return []


def _leave_out(columns: _Columns, width: int) -> list[str]:
    gone = []
    while columns.total > width and len(columns.places) > 1:
        gone.append(columns.titles[columns.places.pop()])
    return [f"not shown for want of width: {', '.join(reversed(gone))} (all of it: --markdown, --json)"] if gone else []


def _lines(columns: _Columns, numbers: set[int]) -> list[str]:
    widths = {place: columns.width(place) for place in columns.places}
    heads = {place: _wrap(columns.titles[place], widths[place]) for place in columns.places}
    head = _block(heads, widths, numbers, bottom=True)
    rule = (" " * GAP).join("-" * widths[place] for place in columns.places)
    body = []
    for row in columns.rows:
        body += _block({place: _wrap(row[place], widths[place]) for place in columns.places}, widths, numbers)
    return [*head, rule, *body]


def _block(cells: dict[int, list[str]], widths: dict[int, int], numbers: set[int], bottom: bool = False) -> list[str]:
    """One row, as many lines as its longest cell has."""
    height = max(map(len, cells.values()))
    lines = []
    for at in range(height):
        parts = []
        for place, texts in cells.items():
            place_in_cell = at - (height - len(texts)) if bottom else at
            text = texts[place_in_cell] if 0 <= place_in_cell < len(texts) else ""
            parts.append(text.rjust(widths[place]) if place in numbers else text.ljust(widths[place]))
        lines.append((" " * GAP).join(parts).rstrip())
    return lines


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, max(1, width), break_long_words=False, break_on_hyphens=False) or [""]


def _widest(text: str, limit: int | None) -> int:
    return len(text) if limit is None else max(map(len, _wrap(text, limit)))


def _longest_word(title: str) -> int:
    """Titles are broken to two lines where that saves room."""
    words = title.split() or [""]
    return max(max(map(len, words)), -(-len(title) // 3))
