"""Which documents are held out, by what they are instead of where the shuffle put them.

    order        the first documents of the shuffled order: another seed, or a document more, gives other ones
    content      key = keyed hash of the text without case and white space
    repository   key = keyed hash of the repository's name: whole repositories
    time         key = how old the document is: the newest

    held out iff key < threshold        [ 0 ......... threshold | ........................ 2^63 ]    2^64 - 1: without the fact

Keys depend on nothing but the document as it is kept: the same threshold puts it on the same side in every build, whatever the
seed and whatever else a source holds. So equal texts (but for case and white space) and documents of a repository never straddle
the sides of a source. Texts that are merely alike can: data.prepare.near_duplicates removes what MinHash finds alike in one
build, and data.prepare.contamination what repeats registered held-out text (``registry.py``).

The threshold is recorded in the manifest. Where the recipe names none it is the lowest that holds out ``held_out`` tokens: a
token is known to the tokenizer only, which must not have seen what is held out; so documents with the lowest keys are set apart
first, 8 bytes a token, and those that were not needed go back (as ``build.py`` does for order).
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from headway.base.times import iso_time, seconds_of
from headway.data.manifest import HeldOutRule
from headway.recipe.held_out_checks import threshold_number

KeyOf = Callable[[str, Mapping[str, str]], int]
"""Text and facts of a document -> its key."""

UNKNOWN = 2**64 - 1
"""Key of a document without the fact: never below a threshold."""

_NOW = 2**62
"""Key of 1970, for times: one less per second since."""
_BLOCK = 2**16


def _hashed(what: str, text: str) -> int:
    """Below 2^63. The hash's key is fixed: another would move documents to the other side. Change knowingly."""
    data = text.encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=f"headway held out: {what}".encode()).digest()) >> 1


def content_key(text: str, facts: Mapping[str, str]) -> int:
    return _hashed("content", "".join(text.casefold().split()))


def repository_key(text: str, facts: Mapping[str, str]) -> int:
    name = facts.get("repository", "").strip().strip("/").casefold()
    return _hashed("repository", name) if name else UNKNOWN


def time_key(text: str, facts: Mapping[str, str]) -> int:
    seconds = seconds_of(facts.get("time", ""))
    return UNKNOWN if seconds is None else _NOW - seconds


KEYS: dict[str, KeyOf | None] = {"order": None, "content": content_key, "repository": repository_key, "time": time_key}
FACT = {"repository": "repository", "time": "time"}
"""What a document must have to be held out."""


def threshold_of(by: str, at: str) -> int:
    """From how it is written, which the recipe's checks have seen."""
    number = threshold_number(by, at)
    assert number is not None, at
    return _NOW - number + 1 if by == "time" else number


def written(by: str, threshold: int) -> str:
    return iso_time(_NOW - threshold + 1) if by == "time" else f"0x{threshold:016x}"


def rule(by: str, threshold: int, keys: np.ndarray) -> HeldOutRule:
    """For the manifest."""
    below, unknown = set[int](), 0
    for at in range(0, len(keys), _BLOCK):
        block = np.asarray(keys[at : at + _BLOCK])
        below.update(np.unique(block[block < threshold]).tolist())
        unknown += int((block == UNKNOWN).sum())
    return HeldOutRule(by=by, at=written(by, threshold), groups=len(below), unknown=unknown)


@dataclass(frozen=True)
class Lowest:
    """Documents with the lowest keys, in the order of keys; ``limit``: all with a key below it and no others."""

    documents: np.ndarray
    keys: np.ndarray
    limit: int


def lowest(keys: np.ndarray, sizes: Callable[[np.ndarray], np.ndarray], wanted_bytes: int) -> Lowest:
    """Documents with the lowest keys that hold ``wanted_bytes``; all with the last of these keys.

    Memory is that of some such sets: whenever more than twice as much is held, what is not needed goes.
    """
    held, limit = np.zeros(0, np.int64), UNKNOWN
    for at in range(0, len(keys), _BLOCK):
        block = np.asarray(keys[at : at + _BLOCK])
        held = np.concatenate([held, at + np.flatnonzero(block < np.uint64(limit))])
        if int(sizes(held).sum()) > 2 * wanted_bytes:
            held, limit = _cut(keys, sizes, held, wanted_bytes, limit)
    held, _ = _cut(keys, sizes, held, wanted_bytes, limit)
    own = np.asarray(keys[held])
    return Lowest(held, own, int(own[-1]) + 1 if len(own) else 0)


def _cut(
    keys: np.ndarray, sizes: Callable[[np.ndarray], np.ndarray], held: np.ndarray, wanted_bytes: int, limit: int
) -> tuple[np.ndarray, int]:
    held = held[np.lexsort((held, keys[held]))]
    enough = int(np.searchsorted(np.cumsum(sizes(held)), wanted_bytes))
    if enough < len(held):
        limit = int(keys[held[enough]]) + 1
        held = held[keys[held] < np.uint64(limit)]
    return held, limit


def reaching(found: Lowest, counts: Iterator[np.ndarray], wanted_tokens: int) -> int:
    """The lowest threshold that holds out ``wanted_tokens``, or all of ``found``; ``counts``: tokens of its documents."""
    total, at = 0, 0
    for some in counts:
        reached = total + np.cumsum(some)
        enough = int(np.searchsorted(reached, wanted_tokens))
        if enough < len(some):
            return int(found.keys[at + enough]) + 1
        total, at = int(reached[-1]), at + len(some)
    return found.limit


class Order(Protocol):
    """Position in the order of a source -> document of its spool."""

    def block(self, start: int, stop: int) -> np.ndarray: ...
    def blocks(self, start: int, stop: int) -> Iterator[np.ndarray]: ...


class Arranged:
    """The documents of a spool with those below a threshold first, each side in its shuffled order: position -> document."""

    def __init__(self, path: Path):
        self._documents = np.memmap(path, "<u8", "r")

    @staticmethod
    def write(path: Path, blocks: Callable[[], Iterator[np.ndarray]], keys: np.ndarray, threshold: int) -> int:
        """``blocks``: the shuffled order. Returns how many are below the threshold."""
        first = 0
        with open(path, "wb") as file:
            for below in (True, False):
                for block in blocks():
                    own = block[(keys[block] < np.uint64(threshold)) == below]
                    file.write(own.astype("<u8").tobytes())
                    first += len(own) if below else 0
        return first

    def block(self, start: int, stop: int) -> np.ndarray:
        return self._documents[start:stop].astype(np.int64)

    def blocks(self, start: int, stop: int) -> Iterator[np.ndarray]:
        for at in range(start, stop, _BLOCK):
            yield self.block(at, min(at + _BLOCK, stop))
