"""Names inside RUN/checkpoints.

g0001-s00000040/          segment 1, state after 40 updates
  rank00000.safetensors   the data of one rank
  receipt-00000.json      what that rank wrote, block by block
  failed-00001.json       why a rank could not; the save will be discarded
  MANIFEST.json           only this makes it a checkpoint
  MANIFEST.deleted        what retention leaves of a manifest while it removes the rest
g0001-s00000040-a1/       the same step saved again: files of two saves never share a directory
deleted.jsonl             what retention removed, so that deletion is told from loss
rejected.jsonl            what retention found damaged when it read it back: kept as evidence
g0001-s00000040.damaged-1/ what the mirror's copy took the place of; .g0001-s00000040.fetch/ one that is being fetched
kept.jsonl                what a person keeps by name, and released again: the last word per name counts
"""

from __future__ import annotations

import re
from dataclasses import dataclass

MANIFEST = "MANIFEST.json"
TOMBSTONE = "MANIFEST.deleted"
DELETED = "deleted.jsonl"
REJECTED = "rejected.jsonl"
KEPT = "kept.jsonl"
_NAME = re.compile(r"g(\d{4,})-s(\d{8,})(?:-a([1-9]\d*))?", re.ASCII)


@dataclass(frozen=True, order=True)
class CheckpointName:
    """Ordered along a chain: ids of segments grow from parent to child, so this is the chain's own order."""

    segment: int
    step: int
    attempt: int = 0

    def __str__(self) -> str:
        tail = f"-a{self.attempt}" if self.attempt else ""
        return f"g{self.segment:04d}-s{self.step:08d}{tail}"


def parse_name(name: str) -> CheckpointName | None:
    """The parts of a checkpoint's directory name, or None when it is none (or is not written the one way)."""
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    parsed = CheckpointName(int(match[1]), int(match[2]), int(match[3] or 0))
    return parsed if str(parsed) == name else None


def data_file(rank: int) -> str:
    return f"rank{rank:05d}.safetensors"


def receipt_file(rank: int) -> str:
    return f"receipt-{rank:05d}.json"
