"""What a page says, apart from how it looks: sections of blocks, rendered by ``html`` and by ``markdown``.

    Page
      verdict    one sentence (inline text) and its tone
      tiles      the few numbers that everybody looks for
      sections   anchor, title, blocks: Prose | Notice | Table | Figure | Code | Comparison

Inline text is a ``str``, a ``Span`` or a tuple of both. Nothing here is escaped: each renderer escapes everything, so that
no text of a run directory can become markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Tone(StrEnum):
    """How a statement should strike the reader."""

    GOOD = "good"
    PLAIN = "plain"
    WARN = "warn"
    BAD = "bad"


class Style(StrEnum):
    """Inline styles that both renderers know."""

    CODE = "code"
    STRONG = "strong"
    FAINT = "faint"
    SWATCH = "swatch"  # a coloured square; the text is the palette's name of the colour, and optionally "/hatched"


@dataclass(frozen=True)
class Span:
    """A piece of text with one style."""

    text: str
    style: Style


Inline = str | Span | tuple["str | Span", ...]


def code(text: object) -> Span:
    return Span(str(text), Style.CODE)


def strong(text: object) -> Span:
    return Span(str(text), Style.STRONG)


def faint(text: object) -> Span:
    return Span(str(text), Style.FAINT)


def swatch(colour: str) -> Span:
    return Span(colour, Style.SWATCH)


def spans(inline: Inline) -> tuple[str | Span, ...]:
    """Inline text as a tuple of its pieces."""
    return inline if isinstance(inline, tuple) else (inline,)


@dataclass(frozen=True)
class Prose:
    """A paragraph."""

    text: Inline


@dataclass(frozen=True)
class Notice:
    """A paragraph that must not be overlooked."""

    text: Inline
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class Table:
    """``columns``: titles; one that starts with ``>`` is right-aligned (numbers). ``total``: the last row is a sum."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Inline, ...], ...]
    caption: Inline = ""
    total: bool = False


@dataclass(frozen=True)
class Figure:
    """A plot by its name; ``alt`` says in words what it shows, ``caption`` how to read it."""

    name: str
    alt: str
    caption: Inline


@dataclass(frozen=True)
class Code:
    """Lines to copy into a shell, or text to show verbatim."""

    text: str


@dataclass(frozen=True)
class Comparison:
    """The same prompt continued by two states of the model. None: that state said nothing."""

    prompt: str
    labels: tuple[str, str]
    texts: tuple[str | None, str | None]


Block = Prose | Notice | Table | Figure | Code | Comparison


@dataclass(frozen=True)
class Section:
    """``anchor`` is the fragment of its links."""

    anchor: str
    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Tile:
    """One number of the head of the page."""

    label: str
    value: str
    detail: str = ""
    tone: Tone = Tone.PLAIN


@dataclass(frozen=True)
class Page:
    """The whole report."""

    title: str
    subtitle: Inline
    verdict: Inline
    tone: Tone
    tiles: tuple[Tile, ...]
    sections: tuple[Section, ...]
    footer: Inline
