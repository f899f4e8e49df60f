"""Two builds side by side, from their manifests alone: what differs, and what follows from it for runs.

    content   what the digest covers: tokenizer, stored type, tokens, documents, chunks, held-out sets. A run frozen on one
              build reads another only if all of it is the same
    labels    licence, provenance, facts of documents, counts of what was left out: told and counted as differences, no reason
              to refuse
    history   name, time, versions, digest of the inputs: told only

Shards are compared by content, wherever and under whatever name they lie.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from headway.base.errors import ConfigError
from headway.data.manifest import BLOCK_BYTES, DTYPES, MANIFEST_FILE, DataManifest, SourceEntry, TokenSet


class Verdict(StrEnum):
    """What became of a source."""

    SAME = "same"
    LABELS = "same content, other labels"
    RULE = "same tokens, other rule for held-out documents"
    HELD_OUT = "same training tokens, other held-out set"
    MOVED = "same content under other file names"
    RECUT = "same tokens in other shards"
    SETTINGS = "same tokens, other settings"
    OTHER = "other tokens"
    ONLY_A = "only in A"
    ONLY_B = "only in B"


@dataclass(frozen=True)
class Change:
    """``what`` differs; ``part`` is the source it belongs to, empty: the whole build."""

    what: str
    a: Any
    b: Any
    part: str = ""


@dataclass(frozen=True)
class SharedShards:
    """Training shards of a source by content: how many both have, and each side alone."""

    both: int
    only_a: int
    only_b: int
    shared_bytes: int


@dataclass(frozen=True)
class SourceDifference:
    name: str
    verdict: Verdict
    a: SourceEntry | None
    b: SourceEntry | None
    changes: tuple[Change, ...]
    shards: SharedShards


@dataclass(frozen=True)
class Side:
    path: Path
    manifest: DataManifest


@dataclass(frozen=True)
class Difference:
    """``content`` and ``labels`` of the whole build; those of its sources stand with them."""

    a: Side
    b: Side
    content: tuple[Change, ...]
    history: tuple[Change, ...]
    sources: tuple[SourceDifference, ...]
    order_differs: bool  # of the sources that both have

    @property
    def same_content(self) -> bool:
        """Exactly when a run frozen on one build reads the other."""
        return self.a.manifest.digest() == self.b.manifest.digest()

    @property
    def equal(self) -> bool:
        return self.same_content and all(source.verdict is Verdict.SAME for source in self.sources)


def open_side(path: Path) -> Side:
    """A data directory, or a manifest in a file of any name."""
    path = Path(path)
    file = path / MANIFEST_FILE if path.is_dir() else path
    if not file.is_file():
        raise ConfigError(
            f"{path} is no data directory and no manifest",
            f"built data has a {MANIFEST_FILE} in it",
            "name what headway data build wrote, or the manifest of it",
        )
    return Side(path, DataManifest.read(file))


def compare(a: Side, b: Side) -> Difference:
    left, right = a.manifest, b.manifest
    names = list(dict.fromkeys([s.name for s in left.sources] + [s.name for s in right.sources]))
    common = {s.name for s in left.sources} & {s.name for s in right.sources}
    orders = [[s.name for s in side.sources if s.name in common] for side in (left, right)]
    width = int(DTYPES[left.dtype][-1]) if left.dtype == right.dtype else None
    stored = [{"dtype": side.dtype, "tokenizer": side.tokenizer} for side in (left, right)]
    told = [{key: getattr(side, key) for key in ("name", "created", "versions", "inputs_digest")} for side in (left, right)]
    return Difference(
        a=a,
        b=b,
        content=tuple(_changes(stored[0], stored[1])),
        history=tuple(_changes(told[0], told[1])),
        sources=tuple(_source(name, _find(left, name), _find(right, name), width) for name in names),
        order_differs=orders[0] != orders[1],
    )


def _find(manifest: DataManifest, name: str) -> SourceEntry | None:
    return next((source for source in manifest.sources if source.name == name), None)


# --- sources --------------------------------------------------------------------------------------------------------------


def _source(name: str, a: SourceEntry | None, b: SourceEntry | None, width: int | None) -> SourceDifference:
    shards = _shared(a, b, width)
    if a is None or b is None:
        return SourceDifference(name, Verdict.ONLY_B if a is None else Verdict.ONLY_A, a, b, (), shards)
    changes = tuple(_changes(_told(a), _told(b), name))
    if a.digest == b.digest:
        return SourceDifference(name, Verdict.LABELS if changes else Verdict.SAME, a, b, changes, shards)
    return SourceDifference(name, _verdict(a, b, width), a, b, changes, shards)


def _verdict(a: SourceEntry, b: SourceEntry, width: int | None) -> Verdict:
    if not same_tokens(a.training, b.training, width):
        return Verdict.OTHER
    if (a.chunk_tokens, a.target_share) != (b.chunk_tokens, b.target_share):
        return Verdict.SETTINGS
    if [shard.xxh3_128 for shard in a.shards] != [shard.xxh3_128 for shard in b.shards]:
        return Verdict.RECUT
    if _held_out_differs(a, b):
        return Verdict.HELD_OUT
    return Verdict.RULE if a.held_out_rule != b.held_out_rule else Verdict.MOVED


def same_tokens(a: TokenSet, b: TokenSet, width: int | None) -> bool:
    """Whether both are the same documents as the same tokens. Cut into other shards they are recognised by their blocks, where
    every shard but the last is whole blocks; stored in another type they are not recognised."""
    if (a.tokens, a.documents, a.ends.xxh3_128) != (b.tokens, b.documents, b.ends.xxh3_128) or width is None:
        return False
    if [s.xxh3_128 for s in a.shards] == [s.xxh3_128 for s in b.shards]:
        return True
    whole = all(shard.tokens * width % BLOCK_BYTES == 0 for side in (a, b) for shard in side.shards[:-1])
    return whole and _blocks(a) == _blocks(b)


def _blocks(tokens: TokenSet) -> list[str]:
    """Equal where the blocks are: as many are listed, or kept apart, on either side."""
    if tokens.block_digests is not None:
        return [tokens.block_digests.xxh3_128]
    return [block for shard in tokens.shards for block in shard.blocks]


def _shared(a: SourceEntry | None, b: SourceEntry | None, width: int | None) -> SharedShards:
    left, right = (Counter((s.xxh3_128, s.tokens) for s in side.shards) if side else Counter() for side in (a, b))
    both = left & right
    size = width or 0
    return SharedShards(
        both.total(), (left - both).total(), (right - both).total(), sum(n * tokens * size for (_, tokens), n in both.items())
    )


# --- plain differences ----------------------------------------------------------------------------------------------------


_LISTS = {"shards", "ends", "digest", "name", "document_facts"}
"""Of an entry: told by content, not line by line."""


def _told(entry: SourceEntry) -> dict[str, Any]:
    plain = dataclasses.asdict(entry)
    held_out = plain.pop("held_out") or {"tokens": 0, "documents": 0, "bytes": 0}
    if plain["registered"]:
        del plain["registered"]["read_at"]  # when it was read says nothing about it
    facts = entry.document_facts
    packed = {f"T {p.sequence_length}": f"{sum(p.bins):,} windows, {1 - p.target_share:.3%} padding" for p in entry.packings}
    prepared = {f"{s.step} {s.version}": f"{s.documents_before:,} to {s.documents_after:,} documents" for s in entry.preparation}
    return {key: value for key, value in plain.items() if key not in _LISTS} | {
        "packings": packed,
        "preparation": prepared,
        "held_out": {key: value for key, value in held_out.items() if key not in _LISTS},
        "facts_of_documents": facts.found if facts else None,
    }


def _changes(a: Any, b: Any, part: str = "") -> Iterator[Change]:
    """Leaves that differ, by dotted name; one that a side does not have is None there."""
    left, right = dict(_leaves(a)), dict(_leaves(b))
    for key in dict.fromkeys([*left, *right]):
        if left.get(key) != right.get(key):
            yield Change(key, left.get(key), right.get(key), part)


def _leaves(value: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = dataclasses.asdict(value)
    if not isinstance(value, dict):
        yield before, value
        return
    for key in sorted(value):
        yield from _leaves(value[key], f"{before}.{key}" if before else key)


# --- what follows ---------------------------------------------------------------------------------------------------------


_KEEPS_ITS_WINDOWS = {Verdict.SAME, Verdict.LABELS, Verdict.HELD_OUT, Verdict.RULE, Verdict.MOVED, Verdict.RECUT}


_OF_NEW_RUNS = {
    Verdict.OTHER: "a new run reads other tokens from",
    Verdict.SETTINGS: "a new run reads the same tokens in another order, since chunks or target shares differ",
    Verdict.ONLY_A: "sources only in A",
    Verdict.ONLY_B: "sources only in B",
}


def consequences(found: Difference) -> list[str]:
    """For runs, in sentences: those frozen on one of the two, then new ones of one recipe on either."""
    if found.same_content:
        told = [] if found.equal else ["what differs is said about the text, and no part of a run's identity"]
        return ["the same stream: a run frozen on one build reads the other, to the bit", *told]
    frozen = "another content: a run frozen on one build refuses the other, and no checkpoint goes on there"
    changed = [s for s in found.sources if s.verdict not in _KEEPS_ITS_WINDOWS]
    if any(change.what.startswith("tokenizer.") for change in found.content):
        return [frozen, "another tokenizer: ids mean other text, and losses per token are not comparable (bits per byte are)"]
    held_out = [s.name for s in found.sources if s.a and s.b and _held_out_differs(s.a, s.b)]
    notes = [frozen, *_of_new_runs(found, changed)]
    if held_out:
        notes.append(f"held-out losses are not of the same text for {', '.join(held_out)}")
    return notes


def _of_new_runs(found: Difference, changed: list[SourceDifference]) -> Iterator[str]:
    kept = [s.name for s in found.sources if s.verdict in _KEEPS_ITS_WINDOWS]
    is_dealt_alike = not found.order_differs and not any(s.a is None or s.b is None for s in found.sources)
    if not changed and is_dealt_alike:
        yield "a new run of one recipe would read the same tokens in the same order on either"
        return
    for verdict in dict.fromkeys(s.verdict for s in changed):
        yield f"{_OF_NEW_RUNS[verdict]}: {', '.join(s.name for s in changed if s.verdict is verdict)}"
    if kept:
        yield f"windows in the same order, whenever their source's turn comes: {', '.join(kept)}"
    if not is_dealt_alike:
        yield "other sources, or another order of them: the mixture deals its turns out in another way"


def _held_out_differs(left: SourceEntry, right: SourceEntry) -> bool:
    a, b = left.held_out, right.held_out
    if a is None or b is None:
        return a is not b
    return a.ends.xxh3_128 != b.ends.xxh3_128 or _blocks(a) != _blocks(b)
