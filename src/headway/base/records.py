"""Append-only records: one line each, with its length and checksum.

    000000a7 1c291ca3 {"kind":"step",...}\\n
    length   crc32    canonical JSON

One writer per file, many readers. A torn tail (a crash in the middle of a write) loses at most that line: the reader
skips any line that does not prove itself, and a writer that reopens the file starts on a fresh line.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from headway.base.clocks import SystemClock
from headway.base.digests import canonical_json
from headway.base.errors import from_os_error
from headway.base.files import fsync_directory, write_all


def encode_record(value: Any) -> bytes:
    body = canonical_json(value)
    return b"%08x %08x %s\n" % (len(body), zlib.crc32(body), body)


def decode_record(line: bytes) -> dict[str, Any] | None:
    """The record, or None for a line that is torn, altered, or no JSON object. ``line`` without its newline."""
    if len(line) < 18 or line[8:9] != b" " or line[17:18] != b" ":
        return None
    body = line[18:]
    try:
        if int(line[:8], 16) != len(body) or int(line[9:17], 16) != zlib.crc32(body):
            return None
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class RecordWriter:
    """Appends records to one file. ``durable=True`` fsyncs each, and the file's own name (events); steps do without.

    ``fresh=True`` refuses a file that exists: whoever made it, it has its one writer.
    """

    def __init__(self, path: Path, durable: bool = False, fresh: bool = False):
        self.path, self.durable = path, durable
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | (os.O_EXCL if fresh else 0)
            self._fd = os.open(path, flags, 0o644)
            size = os.fstat(self._fd).st_size
            if size and os.pread(self._fd, 1, size - 1) != b"\n":
                write_all(self._fd, b"\n")  # a torn tail of an earlier writer: leave it, start on a fresh line
            if durable:
                fsync_directory(path.parent)
        except OSError as error:
            raise from_os_error(error, path, "cannot open record file") from error

    def append(self, value: Any) -> None:
        try:
            write_all(self._fd, encode_record(value))
            if self.durable:
                os.fsync(self._fd)
        except OSError as error:
            raise from_os_error(error, self.path, "cannot append record") from error

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def append_stamped(path: Path, record: dict[str, Any]) -> None:
    """One durable line, with the time: for files that are written seldom, by whoever has something to say."""
    writer = RecordWriter(path, durable=True)
    try:
        writer.append({**record, "stamp": SystemClock().stamp().to_json()})
    finally:
        writer.close()


@dataclass(frozen=True)
class RecordFile:
    """All whole records of a file, and how many lines were torn or altered."""

    records: list[dict[str, Any]]
    damaged_lines: int


def read_records(path: Path) -> RecordFile:
    """Read ``path``; an absent file has no records."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return RecordFile([], 0)
    except OSError as error:
        raise from_os_error(error, path, "cannot read records") from error
    values = [decode_record(line) for line in data.split(b"\n") if line]
    whole = [value for value in values if value is not None]
    return RecordFile(whole, len(values) - len(whole))


class RecordTail:
    """Follows a growing file: each ``poll`` returns the whole records that were appended since the last one."""

    def __init__(self, path: Path):
        self.path, self._offset = path, 0

    def poll(self) -> Iterator[dict[str, Any]]:
        try:
            with open(self.path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except OSError:  # it is not there yet, or a shared file system does not answer for a moment: the next poll sees it
            return
        end = data.rfind(b"\n") + 1
        self._offset += end
        for line in data[:end].split(b"\n"):
            value = decode_record(line)
            if value is not None:
                yield value
