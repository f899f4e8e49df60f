"""Changes and what was said about them: patches, and threads of issues with their events in order.

    .patch .diff   one document; several where git format-patch or a mailbox put several into it, at every "From " line
    .mbox          one document per message; what stands before the first one, as notes of a package do, is one too
    .jsonl         one thread per line: {"title": ..., "events": [{"kind", "author", "time", "text"}, ...]}; also .gz and .zst

A message keeps its author, date and subject; the rest of its head, and how its body was encoded for the mail, are of no use. Who
wrote what stands in lines of a shape that the step personal finds (kind author): names are its business.
"""

from __future__ import annotations

import email
import email.errors
import email.policy
import json
import re
from collections.abc import Callable, Iterator
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from functools import partial
from itertools import chain
from typing import Any

from headway.base.errors import ConfigError
from headway.data.sources.document import LARGEST_DOCUMENT_BYTES, TOO_LARGE, Document, Documents, SourceRecipe
from headway.data.sources.jsonl import JSONL_FILES, facts_of, lines_of, numbers_of
from headway.data.sources.places import Opened, SourceFile, buffered, files, need_path, reading

PATCH_FILES = ("*.patch", "*.diff", "*.mbox", *JSONL_FILES)
_HEAD = ("From", "Date", "Subject")
_FROM, _TIME, _FIELD = re.compile(rb"From \S+ "), re.compile(rb"\d{2}:\d{2}:\d{2}"), re.compile(rb"[A-Za-z-]+: ")
"""The two lines with which a message of a mailbox begins; git writes the commit and a fixed date into the first."""

_PIECE = 2**20
_DAMAGED = (
    *(ValueError, OverflowError, TypeError, AttributeError, LookupError, AssertionError, RecursionError),
    email.errors.MessageError,
)
"""What the library raises for mail that is none: dates beyond all numbers, charsets that nobody has, heads that are no heads."""


def open_patches(source: SourceRecipe) -> Opened:
    return Opened(need_path(source), lambda: files(source, PATCH_FILES), _read)


def _read(file: SourceFile) -> Documents:
    if any(file.where.endswith(pattern[1:]) for pattern in JSONL_FILES):
        yield from _threads(file)
    else:
        yield from _patches(file)


# --- patches ------------------------------------------------------------------------------------------------------------


def _patches(file: SourceFile) -> Documents:
    """A file without messages is one document, whose origin is the file; else its messages have numbers from 1 on."""
    parts = _split(file)
    head, first = next(parts), next(parts, None)
    if first is None or head is None or head.strip():
        yield _of(_plain, head, file.relative if first is None else f"{file.relative}:0")
    messages = parts if first is None else chain([first], parts)
    for number, part in enumerate(messages, 1):
        yield _of(_message, part, f"{file.relative}:{number}")


def _split(file: SourceFile) -> Iterator[bytes | None]:
    """What stands before the first message, then each message; None: longer than a document may be, and not held."""
    held, size, begin, last = bytearray(), 0, b"", b"\n"
    with reading(file.where), file.open() as opened:
        for piece in iter(partial(buffered(opened).readline, _PIECE), b""):
            if begin and _FIELD.match(piece):
                yield bytes(held) if size <= LARGEST_DOCUMENT_BYTES else None
                held, size = bytearray(), 0
            may_begin = last.endswith(b"\n") and _is_from(piece)
            more, begin, last = (begin, piece, piece) if may_begin else (begin + piece, b"", piece)
            size += len(more)
            if size <= LARGEST_DOCUMENT_BYTES:
                held += more
    yield bytes(held + begin) if size + len(begin) <= LARGEST_DOCUMENT_BYTES else None


def _is_from(line: bytes) -> bool:
    """Two searches of a whole line, in its length: one expression for both would be quadratic in its times."""
    begin = _FROM.match(line) if line.endswith(b"\n") else None
    return begin is not None and _TIME.search(line, begin.end()) is not None


def _of(read: Callable[[bytes, str], Document], part: bytes | None, origin: str) -> Document:
    return Document(None, origin, TOO_LARGE) if part is None else read(part, origin)


def _plain(data: bytes, relative: str) -> Document:
    try:
        return Document(data.decode("utf-8-sig"), relative, facts={"path": relative})
    except UnicodeDecodeError:
        return Document(None, relative, "undecodable", {"path": relative})


def _message(data: bytes, origin: str) -> Document:
    """``data`` with its "From " line."""
    try:
        message = email.message_from_bytes(data.partition(b"\n")[2], policy=email.policy.default)
        assert isinstance(message, EmailMessage)
        head = [f"{name}: {_one_line(message[name])}" for name in _HEAD if message[name]]
        body, time = _body(message), _time_of(message)
    except _DAMAGED:
        return Document(None, origin, "undecodable")
    text = "\n".join([*head, "", re.sub(r"^>(>*From )", r"\1", body, flags=re.MULTILINE)])
    return Document(text, origin, facts={"path": origin, "time": time})


def _body(message: EmailMessage) -> str:
    parts = [part for part in message.walk() if part.get_content_maintype() == "text" and not part.is_multipart()]
    return "\n".join(_text_of(part) for part in parts)


def _text_of(part: Any) -> str:
    """As it says it is encoded; else as UTF-8, in which patches are written that say nothing."""
    charset = part.get_content_charset() or "utf-8"
    return part.get_payload(decode=True).decode("utf-8" if charset == "us-ascii" else charset)


def _one_line(value: Any) -> str:
    return " ".join(str(value).split())


def _time_of(message: EmailMessage) -> str:
    try:
        return parsedate_to_datetime(str(message["Date"])).isoformat() if message["Date"] else ""
    except ValueError:
        return ""


# --- threads ------------------------------------------------------------------------------------------------------------


def _threads(file: SourceFile) -> Documents:
    for number, line in enumerate(lines_of(file), 1):
        origin = f"{file.relative}:{number}"
        if line is None:
            yield Document(None, origin, TOO_LARGE)
        elif line.strip():
            yield _thread(line, origin, f"{file.where}:{number}")


def _thread(line: bytes, origin: str, where: str) -> Document:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        seen = "nested too deep" if isinstance(error, RecursionError) else f"not JSON: {error}"
        raise ConfigError(seen, "a .jsonl file holds one JSON object a line", "mend or remove that line", where) from None
    events = value.get("events") if isinstance(value, dict) else None
    if not isinstance(events, list) or not all(
        isinstance(event, dict) and isinstance(event.get("text"), str) for event in events
    ):
        raise ConfigError(
            "no thread of events",
            'a thread is {"title": "...", "events": [{"kind": "...", "author": "...", "time": "...", "text": "..."}, ...]}',
            "write it so, or use the kind jsonl for plain text",
            where,
        )
    text = "\n\n".join([str(value.get("title") or ""), *map(_event, events)]).strip() + "\n"
    return Document(text, origin, facts=facts_of(value), numbers=numbers_of(value))


def _event(event: dict[str, Any]) -> str:
    names = (("Author", "author"), ("Date", "time"), ("Event", "kind"))
    return "\n".join([*(f"{name}: {_one_line(event[key])}" for name, key in names if event.get(key)), "", event["text"].strip()])
