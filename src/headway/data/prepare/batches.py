"""Documents on their way to a process and back, in two files per batch.

    000017.in     a line of JSON: what is known of each piece, and the bytes of its text   then the texts
    000017.out    a line of JSON: what became of each                                      then changed texts, and measures

Files and not pipes: neither side waits for the other to read. They are removed as soon as they were read.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from headway.data.prepare.settle import Event, Settled
from headway.data.prepare.steps import Measured, Piece, Verdict


@dataclass(frozen=True)
class Batch:
    """``without``: steps that its source does without. ``stem``: of its two files."""

    stem: str
    without: tuple[str, ...]


def write_pieces(stem: Path, pieces: Sequence[Piece]) -> None:
    texts = [piece.text.encode() for piece in pieces]
    known = [_known(piece) | {"bytes": len(text)} for piece, text in zip(pieces, texts, strict=True)]
    _write(stem.with_suffix(".in"), known, texts)


def read_pieces(stem: Path) -> list[Piece]:
    known, data = _read(stem.with_suffix(".in"))
    pieces, start = [], 0
    for facts in known:
        size = facts.pop("bytes")
        pieces.append(Piece(text=data[start : start + size].decode(), **facts))
        start += size
    return pieces


def _known(piece: Piece) -> dict[str, Any]:
    """All but the text. Numbers, texts and their lists and mappings: it becomes JSON."""
    values = ((field.name, getattr(piece, field.name)) for field in dataclasses.fields(piece) if field.name != "text")
    return {name: dict(value) if isinstance(value, Mapping) else value for name, value in values}


def write_settled(stem: Path, found: Sequence[tuple[Piece, Settled]]) -> None:
    """``found``: each with the piece that it came from."""
    known, parts = [], []
    for piece, settled in found:
        is_same = settled.piece.text == piece.text
        text = b"" if is_same else settled.piece.text.encode()
        measured = [array for of_step in settled.measured for array in of_step]
        known.append(
            {
                "bytes": None if is_same else len(text),
                "dropped": settled.dropped,
                "passes": settled.passes,
                "events": [
                    [e.step, e.verdict.dropped, e.verdict.detail, dict(e.verdict.found), e.before, e.after]
                    for e in settled.events
                ],
                "measured": [[[array.dtype.str, array.size] for array in of_step] for of_step in settled.measured],
            }
        )
        parts += [text, *(array.tobytes() for array in measured)]
    _write(stem.with_suffix(".out"), known, parts)


def read_settled(stem: Path, pieces: Sequence[Piece]) -> list[Settled]:
    """What became of ``pieces``; both files are removed."""
    known, data = _read(stem.with_suffix(".out"))
    found, start = [], 0
    for piece, facts in zip(pieces, known, strict=True):
        if facts["bytes"] is not None:
            piece = dataclasses.replace(piece, text=data[start : start + facts["bytes"]].decode())
            start += facts["bytes"]
        measured: list[Measured] = []
        for arrays in facts["measured"]:
            taken = []
            for dtype, size in arrays:
                taken.append(np.frombuffer(data, dtype, size, start))
                start += taken[-1].nbytes
            measured.append(tuple(taken))
        events = tuple(
            Event(step, Verdict("", dropped, detail, what), before, after)
            for step, dropped, detail, what, before, after in facts["events"]
        )
        found.append(Settled(piece, facts["dropped"], events, facts["passes"], tuple(measured)))
    for suffix in (".in", ".out"):
        stem.with_suffix(suffix).unlink()
    return found


def _write(path: Path, known: list[dict[str, Any]], parts: Sequence[bytes]) -> None:
    with open(path, "wb") as file:
        file.write(json.dumps(known).encode() + b"\n")
        file.writelines(parts)


def _read(path: Path) -> tuple[list[dict[str, Any]], bytes]:
    with open(path, "rb") as file:
        return json.loads(file.readline()), file.read()
