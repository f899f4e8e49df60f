"""``headway data verify WHAT``: built data, a run or a recipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from headway.base.errors import EXIT_FINDINGS, EXIT_OK
from headway.cli.data_named import DataArgument, built, named
from headway.cli.options import Json, Overrides


def verify(what: DataArgument, /, *, overrides: Overrides = None, json: Json = False) -> int:
    """Read built data again from the storage, every byte of it, and compare all digests.

    Every block of every shard, the document ends, the tokenizer and the manifest itself. The files are dropped from the page
    cache first, so that it is the storage that answers. All damages are told, with file and block; then the exit code is 1.
    """
    from headway.cli.output import print_json, say

    found = measured(built(named(what, overrides)).where, show_progress=sys.stderr.isatty())
    if json:
        print_json(facts(found))
    else:
        for line in lines(found):
            say(line)
    return EXIT_FINDINGS if found.damages else EXIT_OK


def measured(where: Path | str, *, show_progress: bool) -> Any:
    """``show_progress``: a line on standard error."""
    from headway.cli.checkpoint_verify import Meter
    from headway.data.inspect.verify import total_bytes, verify

    if isinstance(where, str):
        return measured_remote(where, show_progress=show_progress)
    meter = Meter(where.name, total_bytes(where)) if show_progress else None
    try:
        return verify(where, meter)
    finally:
        if meter is not None:
            meter.clear()


def measured_remote(url: str, *, show_progress: bool) -> Any:
    """Past the cache: it is the storage that answers."""
    from headway.cli.checkpoint_verify import Meter
    from headway.data.inspect.verify import verify_remote
    from headway.data.place import manifest_at
    from headway.data.remote import Remote

    remote = Remote.open(url)
    manifest = manifest_at(url, remote=remote)
    width = 2 if manifest.dtype == "uint16" else 4
    meter = Meter(url, sum(source.tokens for source in manifest.sources) * width) if show_progress else None
    try:
        return verify_remote(remote, manifest, meter)
    finally:
        if meter is not None:
            meter.clear()


def facts(found: Any) -> dict[str, Any]:
    """Plain values."""
    from dataclasses import asdict

    return {
        "kind": "data_verification",
        "schema_version": 1,
        "directory": str(found.directory),
        "digest": found.digest or None,
        "damaged": sum(bool(file.damages) for file in found.files),
        "files": [{**asdict(file), "damages": [asdict(damage) for damage in file.damages]} for file in found.files],
        "unlisted": list(found.unlisted),
        "bytes": found.bytes_read,
        "seconds": found.seconds,
    }


def lines(found: Any) -> Iterator[str]:
    """A table by source and kind of file, every damage on a line of its own, and the verdict."""
    from headway.base.digests import short
    from headway.base.terminal import one_line
    from headway.base.units import format_bytes
    from headway.cli.output import table

    groups: dict[tuple[str, str], list[Any]] = {}
    for file in found.files:
        groups.setdefault((file.part, file.what), []).append(file)
    rows = [
        [
            what,
            one_line(part),
            f"{len(files):,}",
            format_bytes(sum(file.bytes for file in files)),
            f"{bad:,} DAMAGED" if (bad := sum(bool(file.damages) for file in files)) else "whole",
        ]
        for (part, what), files in groups.items()
    ]
    yield from table(["what", "source", "files", "read", ""], rows, left=(0, 1, 4))
    yield ""
    for file in found.files:
        yield from damage_lines(file.damages)
    yield from (f"{one_line(name, 200)}: the manifest does not name it; no run reads it" for name in found.unlisted)
    damaged = sum(bool(file.damages) for file in found.files)
    if damaged:
        yield f"{damaged:,} of {len(found.files):,} files damaged: restore them from a copy, or build the data again elsewhere"
        if any(file.damages and file.what == "shard" and not file.part.endswith(", held out") for file in found.files):
            yield 'a run goes on without the damaged blocks of training tokens by interventions.damaged_data = "quarantine"'
    else:
        speed = f" in {found.seconds:.2f} s" if found.seconds >= 0.005 else ""
        yield f"it is whole: {format_bytes(found.bytes_read)}{speed}, digest {short(found.digest)}"


def damage_lines(damages: Any) -> Iterator[str]:
    """Of one file; neighbouring blocks with the same damage share a line."""
    runs: list[list[Any]] = []
    for damage in damages:
        if runs and follows(runs[-1][-1], damage):
            runs[-1].append(damage)
        else:
            runs.append([damage])
    for run in runs:
        first, last = run[0], run[-1]
        if first.block is None:
            yield f"{first.file}: {first.seen}"
            continue
        numbers = f"block {first.block}" if first is last else f"blocks {first.block} to {last.block}"
        yield f"{first.file}, {numbers} (of 0 to {first.blocks - 1}): {first.seen}"


def follows(before: Any, damage: Any) -> bool:
    return None not in (before.block, damage.block) and damage.block == before.block + 1 and damage.seen == before.seen
