"""Canonical JSON and the digests of descriptions (bulk data is hashed by xxh3 in ``store`` and ``data``).

Identity is content: two descriptions are the same when their canonical bytes are.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def canonical_json(value: Any) -> bytes:
    """Sorted keys, no spaces, shortest round-trip floats, no NaN: the same value gives the same bytes anywhere.

    A lone surrogate, as names of files hold that are no UTF-8, becomes its escape: the same value, which UTF-8 can hold.
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def digest_bytes(data: bytes) -> str:
    """sha256 as ``"sha256:<hex>"``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def digest_json(value: Any) -> str:
    """Digest of the canonical JSON of ``value``."""
    return digest_bytes(canonical_json(value))


def digest_file(path: Path) -> str:
    """sha256 of a (small) file's bytes."""
    return digest_bytes(path.read_bytes())


def sealed(content: dict[str, Any]) -> dict[str, Any]:
    """``content`` with the digest of all of it under "digest": what was altered afterwards shows."""
    return content | {"digest": digest_json(content)}


def is_sealed(content: dict[str, Any]) -> bool:
    """Whether ``content`` is as ``sealed`` left it."""
    return content.get("digest") == digest_json({key: value for key, value in content.items() if key != "digest"})


def short(digest: str) -> str:
    """The first 12 hex digits, for people."""
    return digest.rpartition(":")[2][:12]
