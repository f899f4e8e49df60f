"""Changes and what was said about them: patches, and threads of issues with their events in order.

    .patch .diff   one document; several where git format-patch or a mailbox put several into it, at every "From " line
    .mbox          one document per message
    .jsonl         one thread per line: {"title": ..., "events": [{"kind", "author", "time", "text"}, ...]}; also .gz and .zst

A message keeps its author, date and subject; the rest of its head, and how its body was encoded for the mail, are of no use. Who
wrote what stands in lines of a shape that the step personal finds (kind author): names are its business.
"""

from __future__ import annotations

import email
import email.policy
import json
import re
from email.message import EmailMessage
from email.utils import parsedate_to_datetime
from typing import Any

from headway.base.errors import ConfigError
from headway.data.sources.document import LARGEST_DOCUMENT_BYTES, TOO_LARGE, Document, Documents, SourceRecipe
from headway.data.sources.jsonl import JSONL_FILES, facts_of, lines_of, numbers_of
from headway.data.sources.places import Opened, SourceFile, files, need_path, read

PATCH_FILES = ("*.patch", "*.diff", "*.mbox", *JSONL_FILES)
_HEAD = ("From", "Date", "Subject")
_MESSAGE = re.compile(rb"^From \S+ .*\d{2}:\d{2}:\d{2}.*\n(?=[A-Za-z-]+: )", re.MULTILINE)
"""Where a message of a mailbox begins; git writes the commit and a fixed date."""


def open_patches(source: SourceRecipe) -> Opened:
    return Opened(need_path(source), lambda: files(source, PATCH_FILES), _read)


def _read(file: SourceFile) -> Documents:
    if any(file.where.endswith(pattern[1:]) for pattern in JSONL_FILES):
        yield from _threads(file)
    elif file.size > LARGEST_DOCUMENT_BYTES:
        yield Document(None, file.relative, TOO_LARGE)
    else:
        yield from _patches(read(file), file.relative)


# --- patches ------------------------------------------------------------------------------------------------------------


def _patches(data: bytes, relative: str) -> Documents:
    starts = [match.start() for match in _MESSAGE.finditer(data)]
    if not starts:
        yield _plain(data, relative)
        return
    for number, (start, stop) in enumerate(zip(starts, [*starts[1:], len(data)], strict=True), 1):
        yield _message(data[start:stop].partition(b"\n")[2], f"{relative}:{number}")


def _plain(data: bytes, relative: str) -> Document:
    try:
        return Document(data.decode("utf-8-sig"), relative, facts={"path": relative})
    except UnicodeDecodeError:
        return Document(None, relative, "undecodable", {"path": relative})


def _message(data: bytes, origin: str) -> Document:
    message = email.message_from_bytes(data, policy=email.policy.default)
    assert isinstance(message, EmailMessage)
    try:
        head = [f"{name}: {_one_line(message[name])}" for name in _HEAD if message[name]]
        body = _body(message)
    except (LookupError, ValueError):  # a charset that nobody has, a head that is no head
        return Document(None, origin, "undecodable")
    text = "\n".join([*head, "", re.sub(r"^>(>*From )", r"\1", body, flags=re.MULTILINE)])
    return Document(text, origin, facts={"path": origin, "time": _time_of(message)})


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
