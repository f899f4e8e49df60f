"""Before the next segment starts: what a dead trainer had sealed gets its chance to be committed (CONTRACTS section 2).

A snapshot that was handed over whole is finished by its writer. Going on from it instead of from the checkpoint before saves the
steps in between; waiting is bounded, and what is committed later is late: visible, and no part of the history.
"""

from __future__ import annotations

import socket

from headway.rundir.metrics import read_steps
from headway.rundir.segments import read_segments
from headway.store.writer.outcomes import pending, read_outcomes
from headway.supervise.attempt import Watch

HANDED_OVER_SECONDS = 2.0
"""A seal that the trainer has on record but its writer has not: the message is under way, or the writer is dead."""


def await_writers(watch: Watch) -> None:
    """Returns when nothing sealed lacks its outcome, or when the time is up."""
    newest = max((segment.id for segment in read_segments(watch.run)), default=None)
    if newest is None:
        return
    host, boot_id, began_ns = socket.gethostname(), watch.clock.stamp().boot_id, watch.now_ns()
    limit_seconds = watch.patience.writers_seconds(watch.options.writers_seconds)
    sealed = [row["checkpoint"] for row in read_steps(watch.run, newest) if row["kind"] == "snapshot"][-1:]
    while (passed := (watch.now_ns() - began_ns) / 1e9) < limit_seconds:
        known = {record["checkpoint"] for record in read_outcomes(watch.run, newest)}
        under_way = passed < HANDED_OVER_SECONDS and not known.issuperset(sealed)
        if watch.stop.count > 1 or not (under_way or pending(watch.run, newest, host, boot_id)):
            return
        watch.pause()
