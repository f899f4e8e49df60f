"""Which code this is: the version and a digest of its sources. A change of code is an event of a run, not a refusal."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from headway import __version__

ROOMS = ("base", "recipe", "data", "model", "optim", "parallel", "checkpoint", "evaluate", "train")
"""The rooms whose code decides what a step computes."""


@cache
def code_digest() -> str:
    """sha256 over the names and bytes of every source file of those rooms."""
    root = Path(__file__).resolve().parent.parent
    total = hashlib.sha256()
    for path in sorted(p for room in ROOMS for p in (root / room).rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()}\0".encode() + hashlib.sha256(path.read_bytes()).digest())
    return "sha256:" + total.hexdigest()


def code_version() -> str:
    """``0.1.0+3f9a...``, as recorded with every segment."""
    return f"{__version__}+{code_digest()[7:19]}"
