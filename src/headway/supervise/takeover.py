"""Taking over from an owner that died: first make sure that its trainer is gone (F6).

A trainer whose owner dies reads end of file, saves and ends. The newcomer gives it that time (as learned from the run's
records), then ends it, if it is a process of this boot. On another host nobody can look: there the newcomer waits until the
trainer has written nothing for that time; should it wake up later, its commits are inadmissible (CONTRACTS section 2).
"""

from __future__ import annotations

import socket

from headway.base.errors import EnvironmentFault
from headway.rundir.events import read_events, unfinished_launch
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import read_all_steps, read_steps
from headway.rundir.processes import is_alive, was_running_at
from headway.rundir.segments import deployment_of, read_segments
from headway.supervise.attempt import Watch
from headway.supervise.launcher import kill_session
from headway.supervise.options import SuperviseOptions
from headway.supervise.patience import Patience

UNKILLABLE_SECONDS = 10.0
"""After SIGKILL: what still runs then is another account's, or stands in the kernel for storage that does not answer."""


def take_over(watch: Watch) -> bool:
    """Returns when no trainer of an earlier owner runs any more, and records its exit; False: this owner is to end before that,
    and the next one finds what is left. EnvironmentFault: that trainer cannot be ended."""
    events = read_events(watch.run)
    launch = unfinished_launch(events) or _unrecorded_launch(watch)
    if launch is None:
        return True
    launch = with_groups(launch, events)
    if _is_of_this_boot(launch, watch.clock.stamp().boot_id):
        reason = _end_here(watch, launch)
    elif launch.get("host") == socket.gethostname() and not _is_elsewhere(launch):
        reason = "this host was booted again since"
    else:
        reason = _wait_for_silence(watch, launch["segment"])
    if reason is None:
        return False
    watch.record("exit", segment=launch["segment"], code=None, signal=None, reason=f"its owner had died; {reason}")
    return True


def seconds_alone(run: RunDirectory) -> float:
    """How long ranks without an owner may take to save and end: who takes the run over waits for them as long."""
    options = SuperviseOptions.of(deployment_of(run))
    patience = Patience.of(options)
    for rows in read_all_steps(run).values():
        patience.learn(rows)
    return patience.grace_seconds(options.orphan_seconds)


def with_groups(launch: dict, events: list[dict]) -> dict:
    """With the ranks of replica groups that were started again in that attempt."""
    groups = [event for event in events if event["kind"] == "group" and event["segment"] == launch["segment"]]
    again = [rank for event in groups for rank in event.get("ranks", ())]
    return launch | {"ranks": [*launch.get("ranks", ()), *again]} if again else launch


def _unrecorded_launch(watch: Watch) -> dict | None:
    """An owner may die between starting a trainer and recording it: the trainer's first row names its pid."""
    segments = read_segments(watch.run)
    newest = max((segment.id for segment in segments), default=0)
    recorded = {event.get("segment") for event in read_events(watch.run) if event["kind"] == "launch"}
    rows = read_steps(watch.run, newest) if newest and newest not in recorded else []
    start = next((row for row in rows if row["kind"] == "start"), None)
    return {"segment": newest, "pid": start["pid"], "stamp": start["stamp"]} if start else None


def _is_of_this_boot(launch: dict, boot_id: str) -> bool:
    """All of it: ranks on other nodes cannot be looked at from here."""
    return launch["stamp"]["boot_id"] == boot_id and all(rank.get("boot_id", boot_id) == boot_id for rank in _ranks(launch))


def _is_elsewhere(launch: dict) -> bool:
    return any(rank.get("host", socket.gethostname()) != socket.gethostname() for rank in _ranks(launch))


def _is_running(launch: dict) -> bool:
    return any(_runs(launch | rank) for rank in _ranks(launch))


def _ranks(launch: dict) -> list[dict]:
    """Every process that was launched: {pid, start_ticks}."""
    ranks = launch.get("ranks")
    return [rank for rank in ranks if isinstance(rank, dict) and "pid" in rank] if isinstance(ranks, list) else [{}]


def _runs(launch: dict) -> bool:
    if launch.get("start_ticks") is None:
        return was_running_at(launch["pid"], launch["stamp"]["boot_ns"])
    return is_alive(launch["pid"], launch["start_ticks"])


def _end_here(watch: Watch, launch: dict) -> str | None:
    """In words; None: this owner is to end first."""
    if not _is_running(launch):
        return "its trainer was gone too, and nobody saw how it ended"
    deadline_ns = watch.now_ns() + round(_orphan_seconds(watch) * 1e9)
    while _is_running(launch) and watch.now_ns() < deadline_ns:
        if watch.is_asked_to_end():
            return None
        watch.pause()
    if not _is_running(launch):
        return "its trainer ended by itself"
    deadline_ns = watch.now_ns() + round(UNKILLABLE_SECONDS * 1e9)
    while left := [(launch | rank)["pid"] for rank in _ranks(launch) if _runs(launch | rank)]:
        if watch.now_ns() >= deadline_ns:
            raise EnvironmentFault(
                f"process {left[0]}, which an earlier owner started, cannot be ended",
                "one trainer works at a run: a new one starts when all others are gone",
                "end that process (its account, or an administrator), then: headway resume",
            )
        for pid in left:
            kill_session(pid)
        watch.pause()
    return "its trainer was killed"


def _orphan_seconds(watch: Watch) -> float:
    return watch.patience.grace_seconds(watch.options.orphan_seconds)


def _wait_for_silence(watch: Watch, segment: int) -> str | None:
    """In words; None: this owner is to end first."""
    rows, since_ns, silence_seconds = -1, watch.now_ns(), _orphan_seconds(watch)
    while watch.now_ns() - since_ns < silence_seconds * 1e9:
        if watch.is_asked_to_end():
            return None
        count = len(read_steps(watch.run, segment))
        if count != rows:
            rows, since_ns = count, watch.now_ns()
        watch.pause()
    return f"its trainer is on another host and was silent for {silence_seconds:.0f} s"
