"""Pages as one self-contained HTML file: inline style, inline SVG, no script, nothing fetched from anywhere."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

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
    spans,
)
from headway.report.plots import NAMES
from headway.report.stylesheet import stylesheet

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"


def inline(text: Inline) -> str:
    return "".join(_span(piece) for piece in spans(text))


def _span(piece: str | Span) -> str:
    if isinstance(piece, str):
        return escape(piece)
    if piece.style is Style.SWATCH:
        return _swatch(piece.text)
    tag = {Style.CODE: "code", Style.STRONG: "strong", Style.FAINT: "span"}[piece.style]
    start = '<span class="faint">' if piece.style is Style.FAINT else f"<{tag}>"
    return f"{start}{escape(piece.text)}</{tag}>"


def _swatch(text: str) -> str:
    name, _, hatch = text.partition("/")
    assert name in NAMES, name
    fill = f"var(--{name})"
    if hatch:
        fill = f"repeating-linear-gradient(135deg,var(--{name}) 0 2px,var(--paper) 2px 4px)"
    return f'<span class="swatch" style="background:{fill}"></span>'


def _cell(tag: str, content: str, number: bool) -> str:
    return f'<{tag} class="n">{content}</{tag}>' if number else f"<{tag}>{content}</{tag}>"


def table(block: Table) -> str:
    numeric = [column.startswith(">") for column in block.columns]
    head = "".join(_cell("th", escape(column.lstrip(">")), number) for column, number in zip(block.columns, numeric, strict=True))
    lines = []
    for index, row in enumerate(block.rows):
        cells = "".join(_cell("td", inline(cell), number) for cell, number in zip(row, numeric, strict=True))
        total = block.total and index == len(block.rows) - 1
        lines.append(f'<tr class="total">{cells}</tr>' if total else f"<tr>{cells}</tr>")
    caption = f'<p class="caption">{inline(block.caption)}</p>' if block.caption else ""
    body = "\n".join(lines)
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>{caption}'


def comparison(block: Comparison) -> str:
    halves = []
    for label, text in zip(block.labels, block.texts, strict=True):
        shown = '<p class="faint">not recorded</p>' if text is None else f'<pre class="text">{escape(text)}</pre>'
        halves.append(f"<div><h4>{escape(label)}</h4>{shown}</div>")
    prompt = f"<p>Prompt <code>{escape(block.prompt)}</code></p>"
    return f'<div class="comparison">{prompt}<div class="pair">{"".join(halves)}</div></div>'


def render_block(block: Block, plots: Mapping[str, str]) -> str:
    """``plots``: name -> SVG element."""
    if isinstance(block, Prose):
        return f"<p>{inline(block.text)}</p>"
    if isinstance(block, Notice):
        return f'<p class="notice {block.tone.value}">{inline(block.text)}</p>'
    if isinstance(block, Table):
        return table(block)
    if isinstance(block, Figure):
        picture = plots[block.name].replace("<svg ", f'<svg role="img" aria-label="{escape(block.alt)}" ', 1)
        return f'<figure><div class="scroll">{picture}</div><figcaption>{inline(block.caption)}</figcaption></figure>'
    return f"<pre>{escape(block.text)}</pre>" if isinstance(block, Code) else comparison(block)


def render_section(section: Section, plots: Mapping[str, str]) -> str:
    blocks = "\n".join(render_block(block, plots) for block in section.blocks)
    return f'<section id="{escape(section.anchor)}">\n<h2>{escape(section.title)}</h2>\n{blocks}\n</section>'


def _tile(tile: Tile) -> str:
    return (
        f'<div class="tile {tile.tone.value}"><div class="label">{escape(tile.label)}</div>'
        f'<div class="value">{escape(tile.value)}</div><div class="detail">{escape(tile.detail)}</div></div>'
    )


def render(page: Page, plots: Mapping[str, str]) -> str:
    """The whole page; ``plots``: name -> SVG element."""
    links = "".join(f'<a href="#{escape(section.anchor)}">{escape(section.title)}</a>' for section in page.sections)
    sections = "\n".join(render_section(section, plots) for section in page.sections)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{escape(_POLICY)}">
<meta name="color-scheme" content="light dark">
<title>{escape(page.title)}</title>
<style>{stylesheet()}</style>
</head>
<body>
<header>
<h1>{escape(page.title)}</h1>
<p class="subtitle">{inline(page.subtitle)}</p>
<p class="verdict {page.tone.value}">{inline(page.verdict)}</p>
<div class="tiles">{"".join(_tile(tile) for tile in page.tiles)}</div>
</header>
<nav aria-label="Sections">{links}</nav>
<main>
{sections}
</main>
<footer><p>{inline(page.footer)}</p></footer>
</body>
</html>
"""
