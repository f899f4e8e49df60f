"""Which process is meant: a pid alone is not an identity, since pids are used again.

A process is named by {host, pid, start_ticks}: its start time in clock ticks since boot, as the kernel gives it. Only
equal on the same boot of the same host; elsewhere the answer is "cannot know" (None), never a guess.
"""

from __future__ import annotations

import contextlib
import os
import resource
import socket
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class ProcessStat:
    """The few fields of /proc/PID/stat that identify a process."""

    pid: int
    state: str
    session: int
    start_ticks: int

    @property
    def alive(self) -> bool:
        """A zombie is dead: it only waits for its parent to notice."""
        return self.state not in ("Z", "X")


def process_stat(pid: int) -> ProcessStat | None:
    """None when there is no such process (or no /proc to ask)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except (OSError, ValueError):
        return None
    fields = text[text.rindex(")") + 2 :].split()  # the name before may hold spaces and brackets
    return ProcessStat(pid, fields[0], int(fields[3]), int(fields[19]))


def start_ticks(pid: int) -> int | None:
    stat = process_stat(pid)
    return stat.start_ticks if stat else None


def is_alive(pid: int, ticks: int | None) -> bool:
    """Whether that very process still runs on this host. Without ``ticks`` a process that took over the pid passes too."""
    stat = process_stat(pid)
    return stat is not None and stat.alive and ticks in (None, stat.start_ticks)


def was_running_at(pid: int, boot_ns: int) -> bool:
    """Whether the live process with that pid had started by ``boot_ns`` (of this boot): a pid used again started later."""
    stat = process_stat(pid)
    return stat is not None and stat.alive and stat.start_ticks * 1e9 / os.sysconf("SC_CLK_TCK") <= boot_ns


def session_members(session: int) -> list[int]:
    """Live processes of a session, whatever groups they made for themselves."""
    stats = (process_stat(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return [stat.pid for stat in stats if stat is not None and stat.session == session and stat.alive]


def this_process(author: str = "automatic") -> dict:
    """How an owner signs: {host, pid, start_ticks, author}."""
    return {"host": socket.gethostname(), "pid": os.getpid(), "start_ticks": start_ticks(os.getpid()), "author": author}


def resident_bytes() -> int:
    """Of this process; 0 where nobody tells."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def peak_bytes() -> int:
    """The most memory that this process has held (resident)."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def machine_bytes() -> int:
    """Memory that the processes of this machine (or of this control group) may hold together; 0: unknown."""
    limits = []
    with contextlib.suppress(OSError, ValueError):
        limits.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):
        with contextlib.suppress(OSError, ValueError):
            limits.append(int(Path(name).read_text()))
    return min(limits, default=0)
