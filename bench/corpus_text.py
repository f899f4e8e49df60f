"""Text out of what Debian packages hold: HTML, manual pages, dictionaries, fortunes. For bench/corpus.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

# --- HTML ---------------------------------------------------------------------------------------------------------------

_SILENT = {"script", "style", "head", "nav", "noscript", "svg", "button", "template"}
_BLOCKS = {
    *("p", "div", "section", "article", "main", "header", "footer", "h1", "h2", "h3", "h4", "h5", "h6", "ul", "ol", "li", "dl"),
    *("dt", "dd", "table", "tr", "pre", "blockquote", "figure", "details", "summary", "br", "hr"),
}
_MENU = re.compile(r"\b(?:docnav|sidebar|nav-chapters|nav-wrapper|menu-bar|breadcrumb|skip-link|sphinxsidebar)\b")
"""Classes of what surrounds the text on every page; a page repeats it as often as there are pages."""


class _Text(HTMLParser):
    """Everything a reader sees between the tags: blocks on lines of their own, <pre> as it stands."""

    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.parts: list[str] = []
        self._silent: list[str] = []  # the element that is left out and those inside it
        self._pre = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if self._silent:
            if tag == self._silent[0]:
                self._silent.append(tag)
            return
        if tag in _SILENT or any(name in ("class", "id") and _MENU.search(value or "") for name, value in attrs):
            if tag not in ("br", "hr", "img", "input", "meta", "link", "col"):
                self._silent.append(tag)
            return
        if tag in _BLOCKS:
            self.parts.append("\n")
        self._pre += tag == "pre"

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in _BLOCKS and not self._silent:
            self.parts.append("\n")

    def handle_endtag(self, tag: str) -> None:
        if self._silent:
            if tag == self._silent[0]:
                self._silent.pop()
            return
        if tag in _BLOCKS:
            self.parts.append("\n")
        self._pre -= tag == "pre" and self._pre > 0

    def handle_data(self, data: str) -> None:
        if self._silent:
            return
        if not self._pre:
            data = re.sub(r"\s+", " ", data)
            data = data.lstrip() if not self.parts or self.parts[-1].endswith("\n") else data
        if data:
            self.parts.append(data)


def text_of_html(page: str) -> str:
    reader = _Text()
    reader.feed(page)
    reader.close()
    text = re.sub(r"[ \t]+\n", "\n", "".join(reader.parts))
    return re.sub(r"\n{3,}", "\n\n", text).strip() + "\n"


# --- manual pages -------------------------------------------------------------------------------------------------------

_ESCAPES = {r"\-": "-", r"\(aq": "'", r"\(bu": "*", r"\(co": "©", r"\(em": "—", r"\(en": "–", r"\e": "\\", r"\ ": " ", r"\~": " "}
_ESCAPE = re.compile(r"\\f(?:\(..|\[[^\]]*\]|.)|\\s[-+]?\d|\\\([a-z]{2}|\\\*?\[[^\]]*\]|\\\*\(..|\\.")
_ALTERNATING = {"BR", "BI", "IR", "IB", "RB", "RI"}
_ARGUMENT = re.compile(r'"((?:[^"]|"")*)"|(\S+)')


def text_of_manual(page: str) -> str | None:
    """The words of a page in roff's man macros; None for one that only names another."""
    lines: list[str] = []
    for line in page.split("\n"):
        if line.startswith(('.\\"', "'\\\"", "'''")) or line in (".", "'"):
            continue
        if not line.startswith("."):
            lines.append(_unescaped(line))
            continue
        macro, _, rest = line[1:].lstrip().partition(" ")
        if macro == "so":
            return None
        arguments = [_unescaped(quoted or plain) for quoted, plain in _ARGUMENT.findall(rest)]
        lines += _macro(macro, arguments)
    text = re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()
    return f"{text}\n" if text else None


def _macro(macro: str, arguments: list[str]) -> list[str]:
    if macro in ("SH", "SS", "Sh", "Ss"):
        return ["", " ".join(arguments), ""]
    if macro == "TH":
        return [f"{arguments[0]}({arguments[1]})", ""] if len(arguments) > 1 else []
    if macro in ("PP", "P", "LP", "sp", "Pp", "TP", "HP"):
        return [""]
    if macro == "IP":
        return ["", *arguments[:1]]
    if macro in ("B", "I", "SM", "SB"):
        return [" ".join(arguments)]
    return ["".join(arguments)] if macro in _ALTERNATING else []


def _unescaped(line: str) -> str:
    return _ESCAPE.sub(lambda match: _ESCAPES.get(match[0], ""), line.partition('\\"')[0])


# --- others -------------------------------------------------------------------------------------------------------------

_DIGITS = {digit: at for at, digit in enumerate("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/")}


def pages_of_dictionary(index: str, text: bytes, most: int = 4_096) -> Iterator[tuple[str, str]]:
    """(first headword, entries that follow each other) of a dictionary of dictd, about ``most`` bytes each."""
    entries: dict[int, tuple[int, str]] = {}
    for line in index.splitlines():
        word, start, size = line.split("\t")[:3]
        if not word.startswith("00-database"):
            entries.setdefault(_number(start), (_number(size), word))
    page, head = b"", ""
    for start in sorted(entries):
        size, word = entries[start]
        head = head or word
        page += text[start : start + size]
        if len(page) >= most:
            yield head, page.decode("utf-8", "replace")
            page, head = b"", ""
    if page:
        yield head, page.decode("utf-8", "replace")


def _number(digits: str) -> int:
    value = 0
    for digit in digits:
        value = value * 64 + _DIGITS[digit]
    return value


def fortunes_of(text: str) -> Iterator[str]:
    yield from (f"{part.strip()}\n" for part in re.split(r"^%$", text, flags=re.MULTILINE) if part.strip())


# --- licences, times ----------------------------------------------------------------------------------------------------


def licence_of(copyright_file: str) -> str:
    """Of a machine-readable debian/copyright: that of ``Files: *``, else that of the first paragraph of files; else empty."""
    found = ""
    if not copyright_file.startswith("Format"):
        return found
    for paragraph in re.split(r"\n\s*\n", copyright_file):
        files, licence = (re.search(rf"^{key}:[ \t]*(.+)$", paragraph, re.MULTILINE) for key in ("Files", "License"))
        if files and licence:
            if files[1].strip() == "*":
                return licence[1].strip()
            found = found or licence[1].strip()
    return found
