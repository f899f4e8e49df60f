"""Which line of a TOML text a key stands on.

``tomllib`` keeps no positions, so this walks the text once more and notes the line of every key and list element:

    1  [data]                     ("data",) -> 1
    2  held_out = "20k"           ("data", "held_out") -> 2
    3  [[data.sources]]           ("data", "sources") -> 3, ("data", "sources", 0) -> 3
    4  ramp = [{from = "0"}]      ("data", "sources", 0, "ramp") -> 4, (..., "ramp", 0) -> 4, (..., 0, "from") -> 4

It is only asked about texts that ``tomllib`` has accepted, so it may be lax about everything but structure.
"""

from __future__ import annotations

import tomllib

KeyPath = tuple[str | int, ...]


def key_lines(text: str) -> dict[KeyPath, int]:
    """Line (from 1) of every key path in ``text``."""
    return _Scanner(text).scan()


def line_of(lines: dict[KeyPath, int], path: KeyPath) -> int | None:
    """The line of ``path`` or of the nearest table around it that has one; None: nowhere in the text."""
    for length in range(len(path), 0, -1):
        if path[:length] in lines:
            return lines[path[:length]]
    return None


class _Scanner:
    def __init__(self, text: str):
        self.text = text.replace("\r\n", "\n")
        self.at = 0
        self.lines: dict[KeyPath, int] = {}
        self.counts: dict[KeyPath, int] = {}  # elements of each array of tables so far

    def scan(self) -> dict[KeyPath, int]:
        table: KeyPath = ()
        while self._skip(" \t\n"):
            if self._peek("[["):
                table = self._header(2)
            elif self._peek("["):
                table = self._header(1)
            else:
                self._pair(table)
        return self.lines

    def _header(self, brackets: int) -> KeyPath:
        start = self.at
        self.at += brackets
        path = self._resolve(self._key())
        self.at += brackets
        self._note(path, start)
        if brackets == 2:
            index = self.counts.get(path, 0)
            self.counts[path] = index + 1
            path = (*path, index)
            self._note(path, start)
        return path

    def _resolve(self, key: list[str]) -> KeyPath:
        """A header names the newest element of every array of tables on its way."""
        path: KeyPath = ()
        for position, part in enumerate(key):
            path = (*path, part)
            if position + 1 < len(key) and path in self.counts:
                path = (*path, self.counts[path] - 1)
        return path

    def _pair(self, table: KeyPath) -> None:
        start = self.at
        path = table
        for part in self._key():
            path = (*path, part)
            self._note(path, start)
        self._skip(" \t")
        self.at += 1  # the equals sign
        self._value(path)

    def _value(self, path: KeyPath) -> None:
        self._skip(" \t")
        if self._peek("["):
            self._array(path)
        elif self._peek("{"):
            self._inline_table(path)
        elif self._peek('"') or self._peek("'"):
            self._string()
        else:
            while self.at < len(self.text) and self.text[self.at] not in ",]}\n#":
                self.at += 1

    def _array(self, path: KeyPath) -> None:
        self.at += 1
        index = 0
        while self._skip(" \t\n,") and not self._peek("]"):
            self._note((*path, index), self.at)
            self._value((*path, index))
            index += 1
        self.at += 1

    def _inline_table(self, path: KeyPath) -> None:
        self.at += 1
        while self._skip(" \t\n,") and not self._peek("}"):
            self._pair(path)
        self.at += 1

    def _key(self) -> list[str]:
        parts = []
        while True:
            self._skip(" \t")
            start = self.at
            if self._peek('"') or self._peek("'"):
                self._string()
            else:
                while self.at < len(self.text) and self.text[self.at] not in " \t.=]":
                    self.at += 1
            parts.append(_plain(self.text[start : self.at]))
            self._skip(" \t")
            if not self._peek("."):
                return parts
            self.at += 1

    def _string(self) -> None:
        quote = self.text[self.at]
        mark = quote * 3 if self._peek(quote * 3) else quote
        self.at += len(mark)
        while self.at < len(self.text) and not self._peek(mark):
            self.at += 2 if quote == '"' and self._peek("\\") else 1
        self.at += len(mark)
        while len(mark) == 3 and self._peek(quote):  # a text may end in quotes of its own: """a"" """
            self.at += 1

    def _skip(self, characters: str) -> bool:
        """Pass over ``characters`` and, where lines may end, comments. False at the end of the text."""
        while self.at < len(self.text):
            if self.text[self.at] in characters:
                self.at += 1
            elif self.text[self.at] == "#":
                end = self.text.find("\n", self.at)
                self.at = len(self.text) if end < 0 else end
            else:
                return True
        return False

    def _peek(self, mark: str) -> bool:
        return self.text.startswith(mark, self.at)

    def _note(self, path: KeyPath, at: int) -> None:
        self.lines.setdefault(path, self.text.count("\n", 0, at) + 1)


def _plain(key: str) -> str:
    return tomllib.loads(f"v = {key}")["v"] if key[:1] in ("'", '"') else key
