"""``headway checkpoint verify``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Annotated, Any

from cyclopts import Parameter

from headway.base.errors import EXIT_FINDINGS, EXIT_OK
from headway.cli.options import Json


def verify(
    run: Annotated[str, Parameter(help="A run directory; or a checkpoint by its path or as RUN:NAME, such as a copy elsewhere.")],
    /,
    *names: Annotated[
        str, Parameter(help="Checkpoints of the run by name, or others by path. Default: all of the run that were committed.")
    ],
    json: Json = False,
) -> int:
    """Read checkpoints again from the storage, every byte of them, and compare all digests.

    The files are dropped from the page cache first, so that it is the storage that answers. A checkpoint of a run must also be
    that run's own. The exit code is 1 when one is damaged; the file and the block are named.
    """
    from headway.cli.output import print_json, say

    places = places_of(run, names)
    found = [item for place in places if (item := audited(place, show_progress=sys.stderr.isatty())) is not None]
    if json:
        print_json(facts(found))
    else:
        for line in lines(found):
            say(line)
    return EXIT_OK if all(item.ok for item in found) else EXIT_FINDINGS


def places_of(run: str, names: tuple[str, ...]) -> list[Any]:
    """What is to be read, in the order in which it was named."""
    from pathlib import Path

    from headway.cli.checkpoint_places import Place, in_run, is_run, looks_like_checkpoint, place_of
    from headway.rundir.layout import RunDirectory
    from headway.rundir.segments import current_chain, read_segments
    from headway.store.admissible import deleted_names, list_checkpoints, recorded_names

    if not is_run(run) and (names or looks_like_checkpoint(Path(run)) or ":" in run):
        return [place_of(reference) for reference in (run, *names)]
    directory = RunDirectory.open(Path(run))
    if not names:
        chain = current_chain(read_segments(directory))
        present = {info.name for info in list_checkpoints(directory, chain) if info.committed}
        missing = recorded_names(directory, chain) - deleted_names(directory)  # gone, and nobody deleted them: damage too
        return [Place(directory.checkpoints / name, directory) for name in sorted(present | missing)]
    return [place_of(name) if "/" in name else in_run(directory, name) for name in names]


def audited(place: Any, *, show_progress: bool) -> Any:
    """One checkpoint, read again; None where retention deleted it meanwhile. ``show_progress``: a line on standard error."""
    from headway.rundir.segments import current_chain, read_segments
    from headway.store.audit import audit, audit_own
    from headway.store.stock import directory_bytes

    meter = Meter(place.name, directory_bytes(place.directory)) if show_progress else None
    try:
        if place.run is None:
            return audit(place.directory, meter)
        return audit_own(place.run, current_chain(read_segments(place.run)), place.name, meter)
    finally:
        if meter is not None:
            meter.clear()


class Meter:
    """A line that is rewritten: how far, how fast."""

    def __init__(self, name: str, total_bytes: int):
        from headway.base.clocks import SystemClock

        self._name, self._total_bytes, self._done_bytes, self._shown = name, total_bytes, 0, -1
        self._clock = SystemClock()
        self._began_ns = self._clock.stamp().boot_ns

    def __call__(self, nbytes: int) -> None:
        from headway.cli.output import rewrite

        self._done_bytes += nbytes
        percent = 100 * self._done_bytes // max(1, self._total_bytes)
        if percent > self._shown:
            self._shown = percent
            speed = self._done_bytes / max(1, self._clock.stamp().boot_ns - self._began_ns)
            rewrite(f"{self._name}  {percent} %  {speed:.2f} GB/s", sys.stderr)

    def clear(self) -> None:
        from headway.cli.output import rewrite

        rewrite(stream=sys.stderr)


def facts(found: list[Any]) -> dict[str, Any]:
    """Plain values."""
    checkpoints = [
        {
            "name": item.directory.name,
            "directory": str(item.directory),
            "ok": item.ok,
            "reasons": list(item.reasons),
            "bytes": item.bytes_read,
            "seconds": item.seconds,
            "bytes_per_second": item.bytes_per_second,
        }
        for item in found
    ]
    damaged = sum(not item.ok for item in found)
    return {"kind": "checkpoint_verification", "schema_version": 1, "damaged": damaged, "checkpoints": checkpoints}


def lines(found: list[Any]) -> Iterator[str]:
    """A table, then every reason on a line of its own."""
    from headway.base.units import format_bytes
    from headway.cli.output import table

    if not found:
        yield "no committed checkpoints: nothing to verify"
        return
    rows = [
        [
            item.directory.name,
            format_bytes(item.bytes_read),
            f"{item.seconds:.2f}",
            f"{item.bytes_per_second / 1e9:.2f}",
            "whole" if item.ok else "DAMAGED",
        ]
        for item in found
    ]
    yield from table(["checkpoint", "read", "seconds", "GB/s", ""], rows, left=(0, 4))
    yield ""
    yield from (f"{item.directory.name}: {reason}" for item in found for reason in item.reasons)
    damaged = sum(not item.ok for item in found)
    yield f"{damaged} of {len(found)} damaged" if damaged else f"all {len(found)} are whole" if len(found) > 1 else "it is whole"
