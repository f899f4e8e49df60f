"""The coordinator's wait: every rank leaves a receipt or says why it cannot, and nobody sends a message.

receipt-00000.json  receipt-00001.json  ...  all there      -> commit
failed-00002.json                                           -> discard at once, with that rank's reason
receipt-00003.json missing when the time is up              -> discard, and name it
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import dataclass
from pathlib import Path

from headway.base.clocks import Clock
from headway.base.errors import EnvironmentFault, HeadwayError, RunError
from headway.base.files import read_json, write_json
from headway.store.manifest import Manifest
from headway.store.names import receipt_file
from headway.store.save import ManifestFields, commit

_POLL_SECONDS, _LONGEST_POLL_SECONDS = 0.005, 0.5
_NAMED = 8


@dataclass(frozen=True, kw_only=True)
class Patience:
    """``seconds``: how long the slowest rank may take after the coordinator's own receipt."""

    seconds: float
    clock: Clock


def failure_file(rank: int) -> str:
    return f"failed-{rank:05d}.json"


def leave_failure(directory: Path, rank: int, error: HeadwayError) -> None:
    """Tell the coordinator that no receipt will come. On a full disk this may fail too: then it waits its time out."""
    with contextlib.suppress(HeadwayError):
        write_json(directory / failure_file(rank), {"kind": "failure", "rank": rank, "error": str(error)})


def commit_when_complete(directory: Path, fields: ManifestFields, patience: Patience) -> Manifest:
    """Wait for the receipts of all ranks, then commit. RunError or EnvironmentFault with the ranks that kept it from that."""
    wanted = {receipt_file(rank): rank for rank in range(fields.world)}
    deadline_ns = patience.clock.stamp().boot_ns + round(patience.seconds * 1e9)
    pause = _POLL_SECONDS
    while True:
        present = _names(directory)
        if failed := sorted(name for name in present if name.startswith("failed-")):
            raise EnvironmentFault(_reason(directory / failed[0]), "a checkpoint is written by all ranks or not at all")
        missing = [rank for name, rank in wanted.items() if name not in present]
        if not missing:
            return commit(directory, fields)
        if patience.clock.stamp().boot_ns >= deadline_ns:
            raise _nothing_came(directory, missing, patience.seconds)
        patience.clock.sleep(pause)
        pause = min(2 * pause, _LONGEST_POLL_SECONDS)


def _names(directory: Path) -> set[str]:
    try:
        return set(os.listdir(directory))
    except OSError as error:
        raise RunError(f"{directory.name} vanished while it was written", f"path: {directory}", "save again") from error


def _reason(path: Path) -> str:
    try:
        told = read_json(path, "failure")
        return f"rank {told['rank']} could not write: {told['error']}"
    except (HeadwayError, KeyError, TypeError):
        return f"a rank could not write, as {path.name} tells"


def _nothing_came(directory: Path, missing: list[int], seconds: float) -> RunError:
    ranks = ", ".join(map(str, missing[:_NAMED])) + (f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else "")
    return RunError(
        f"no receipt of rank {ranks} after {seconds:.0f} s", f"each rank leaves one; path: {directory}", "see that rank's log"
    )
