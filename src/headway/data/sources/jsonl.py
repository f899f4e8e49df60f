"""One document per line: JSON objects, their text in ``field``; .gz and .zst are read as they are.

Lines are read one at a time and a line beyond the largest document is left out in pieces, so memory stays bounded whatever the
file holds. Other fields of the usual names become the document's facts.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterator
from typing import Any, BinaryIO

from headway.base.errors import ConfigError, EnvironmentFault
from headway.data.sources.document import LARGEST_DOCUMENT_BYTES, TOO_LARGE, Document, Documents, SourceRecipe
from headway.data.sources.places import Opened, SourceFile, buffered, files, need_path, optional, reading
from headway.recipe.plain_values import printable

JSONL_FILES = ("*.jsonl", "*.jsonl.gz", "*.jsonl.zst")
FIELDS_OF_FACTS = {
    "path": ("path", "file_path"),
    "repository": ("repository", "repo", "repo_name"),
    "language": ("language", "lang"),
    "url": ("url",),
    "time": ("time", "timestamp", "date", "created"),
    "licence": ("licence", "license"),
}
"""Fact -> the fields that hold it, the first that is there."""
_LONGEST_LINE = 2 * LARGEST_DOCUMENT_BYTES  # JSON may write a byte of text in up to six; text that does so is rare
_PIECE = 2**20
_LARGEST_WINDOW = 2**31
"""What zstd --long=31 needs to be read back, as large published archives were written."""


def open_jsonl(source: SourceRecipe) -> Opened:
    return Opened(need_path(source), lambda: files(source, JSONL_FILES), lambda file: read_lines(file, source.field))


def read_lines(file: SourceFile, field: str) -> Documents:
    for number, line in enumerate(lines_of(file), 1):
        origin = f"{file.relative}:{number}"
        if line is None:
            yield Document(None, origin, TOO_LARGE)
        elif line.strip():
            yield _document(line, field, origin, f"{file.where}:{number}")


def _document(line: bytes, field: str, origin: str, where: str) -> Document:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        seen = "nested too deep" if isinstance(error, RecursionError) else f"not JSON: {error}"
        raise ConfigError(seen, "a .jsonl file holds one JSON object a line", "mend or remove that line", where) from None
    text = value.get(field) if isinstance(value, dict) else None
    if not isinstance(text, str):
        known = printable(", ".join(sorted(value)), 300) if isinstance(value, dict) else type(value).__name__
        raise ConfigError(
            f"no text in field {field!r}", f"the line holds: {known}", "set field of that source to the key of the text", where
        )
    return Document(text, origin, facts=facts_of(value), numbers=numbers_of(value))


def numbers_of(fields: dict[str, Any]) -> dict[str, float]:
    """Every number, true and false as 1 and 0, at the top or one level below it ("scores.clarity")."""
    found = {}
    for name, value in fields.items():
        inner = {f"{name}.{key}": one for key, one in value.items()} if isinstance(value, dict) else {name: value}
        found.update({key: float(one) for key, one in inner.items() if isinstance(one, float | bool) or _is_small_whole(one)})
    return {key: value for key, value in found.items() if math.isfinite(value)}


def _is_small_whole(value: Any) -> bool:
    return isinstance(value, int) and abs(value) < 2**53


def facts_of(fields: dict[str, Any]) -> dict[str, str]:
    """What is a text or a number among the fields of the usual names."""
    found = {}
    for fact, names in FIELDS_OF_FACTS.items():
        values = [fields[name] for name in names if isinstance(fields.get(name), str | int | float)]
        if values:
            found[fact] = str(values[0])
    return found


# --- lines of a file, packed or not -------------------------------------------------------------------------------------


def lines_of(file: SourceFile) -> Iterator[bytes | None]:
    """Every line; None stands for one that is longer than any document."""
    with reading(file.where), file.open() as packed:
        unpacked = _unpacked(packed, file)
        try:
            while line := unpacked.readline(_LONGEST_LINE):
                if len(line) < _LONGEST_LINE or line.endswith(b"\n"):
                    yield line
                    continue
                while (piece := unpacked.readline(_PIECE)) and not piece.endswith(b"\n"):
                    pass
                yield None
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise _damaged(file, error) from error


def _unpacked(packed: BinaryIO, file: SourceFile) -> Any:
    if file.where.endswith(".gz"):
        return gzip.GzipFile(fileobj=packed)
    if file.where.endswith(".zst"):
        return io.BufferedReader(_Zstandard(packed, file), _PIECE)
    return buffered(packed)


def _damaged(file: SourceFile, error: object) -> EnvironmentFault:
    return EnvironmentFault(f"compressed file is damaged: {error}", f"path: {file.where}", "fetch the file again")


class _Zstandard(io.RawIOBase):
    """Frames of zstd, one after the other. The library's own reader takes a file that was cut off for one that has ended."""

    def __init__(self, packed: BinaryIO, file: SourceFile):
        self._library = optional("zstandard", "zstandard", f"reading {file.where}")
        self._packed, self._file = packed, file
        self._frame: Any = None
        self._input, self._ready = b"", memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._ready and self._unpack():
            pass
        count = min(len(target), len(self._ready))
        target[:count], self._ready = self._ready[:count], self._ready[count:]
        return count

    def _unpack(self) -> bool:
        """One more piece of the file; False: it has ended, and so has its last frame."""
        self._input = self._input or self._packed.read(_PACKED_PIECE)
        if not self._input:
            if self._frame is not None:
                raise _damaged(self._file, "it ends in the middle of a frame")
            return False
        if self._frame is None:
            self._frame = self._library.ZstdDecompressor(max_window_size=_LARGEST_WINDOW).decompressobj()
        try:
            self._ready = memoryview(self._frame.decompress(self._input))
        except self._library.ZstdError as error:
            raise _damaged(self._file, error) from error
        self._input = self._frame.unused_data if self._frame.eof else b""
        self._frame = None if self._frame.eof else self._frame
        return True


_PACKED_PIECE = 16 * 2**10
"""What is unpacked at a time: the most repetitive text grows some ten thousand times, and has to fit in memory."""
