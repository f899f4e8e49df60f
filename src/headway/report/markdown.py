"""Pages as Markdown (GitHub's flavour); plots are files beside it."""

from __future__ import annotations

import re
from collections.abc import Mapping

from headway.report.page import (
    Block,
    Code,
    Comparison,
    Figure,
    Inline,
    Notice,
    Page,
    Prose,
    Section,
    Span,
    Style,
    Table,
    Tile,
    Tone,
    spans,
)

_SPECIAL = re.compile(r"([\\`*\[\]<>|#~$])|(?<![0-9A-Za-z])_|_(?![0-9A-Za-z])")
_BLOCK_HEAD = re.compile(r"^(\s*)([-+](?=[\s-]|$)|=(?==*\s*$)|\d+[.)](?=\s|$))")
_TONES = {Tone.GOOD: "✓", Tone.PLAIN: "·", Tone.WARN: "⚠", Tone.BAD: "✗"}


def escape(text: str) -> str:
    """Text that Markdown shows as it is, on one line."""
    text = " ".join(text.split("\n")).replace("\r", " ").replace("&", "&amp;")
    text = _SPECIAL.sub(lambda match: "\\" + match[0], text)
    return _BLOCK_HEAD.sub(lambda match: match[1] + match[2][:-1] + "\\" + match[2][-1], text)


def code_span(text: str) -> str:
    """A code span whose fence is longer than any run of backticks inside; pipes are escaped for tables."""
    text = " ".join(text.split("\n")).replace("\r", " ").replace("|", "\\|")
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", text)), default=0))
    pad = " " if text.startswith("`") or text.endswith("`") or not text.strip() else ""
    return f"{fence}{pad}{text}{pad}{fence}"


def code_block(text: str) -> str:
    """A fenced block that its own text cannot close."""
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}text\n{text}\n{fence}"


def inline(text: Inline) -> str:
    return "".join(_span(piece) for piece in spans(text))


def _span(piece: str | Span) -> str:
    if isinstance(piece, str):
        return escape(piece)
    if piece.style is Style.CODE:
        return code_span(piece.text)
    if piece.style is Style.STRONG:
        inner = piece.text.strip()  # a space inside the marks would make them plain asterisks
        before, _, after = piece.text.partition(inner) if inner else (piece.text, "", "")
        return f"{before}**{escape(inner)}**{after}" if inner else escape(piece.text)
    return "" if piece.style is Style.SWATCH else escape(piece.text)


def table(block: Table) -> str:
    titles = [column.lstrip(">") for column in block.columns]
    rule = ["---:" if column.startswith(">") else "---" for column in block.columns]
    rows = [[inline(cell) for cell in row] for row in block.rows]
    if block.total and rows:
        rows[-1] = [f"**{cell}**" if cell else "" for cell in rows[-1]]
    lines = [[escape(title) for title in titles], rule, *rows]
    text = "\n".join("| " + " | ".join(cells) + " |" for cells in lines)
    return f"{text}\n\n{inline(block.caption)}" if block.caption else text


def comparison(block: Comparison) -> str:
    parts = [f"**Prompt** {code_span(block.prompt)}"]
    for label, text in zip(block.labels, block.texts, strict=True):
        parts.append(f"{escape(label)}:")
        parts.append("not recorded" if text is None else code_block(text))
    return "\n\n".join(parts)


def render_block(block: Block, plots: Mapping[str, str]) -> str:
    """``plots``: name -> relative path of the file."""
    if isinstance(block, Prose):
        return inline(block.text)
    if isinstance(block, Notice):
        return f"> {_TONES[block.tone]} {inline(block.text)}"
    if isinstance(block, Table):
        return table(block)
    if isinstance(block, Figure):
        return f"![{escape(block.alt)}]({plots[block.name]})\n\n{inline(block.caption)}"
    return code_block(block.text) if isinstance(block, Code) else comparison(block)


def tiles(items: tuple[Tile, ...]) -> str:
    rows = tuple((tile.label, (Span(tile.value, Style.STRONG),), tile.detail) for tile in items)
    return table(Table(columns=("", ">value", ""), rows=rows))


def render_section(section: Section, plots: Mapping[str, str]) -> str:
    return "\n\n".join([f"## {escape(section.title)}", *(render_block(block, plots) for block in section.blocks)])


def render(page: Page, plots: Mapping[str, str]) -> str:
    """The whole page; ``plots``: name -> relative path of the file."""
    head = [f"# {escape(page.title)}", inline(page.subtitle), f"> {_TONES[page.tone]} {inline(page.verdict)}", tiles(page.tiles)]
    body = [render_section(section, plots) for section in page.sections]
    return "\n\n".join([*(part for part in head if part), *body, "---", inline(page.footer)]) + "\n"
