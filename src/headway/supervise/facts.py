"""What the kernel says of a process of this machine: its state, and which system call it is in.

As much of it as this user may read: /proc/PID/stat always, /proc/PID/syscall for children, /proc/PID/stack for root alone.
"""

from __future__ import annotations

import contextlib
import os
import platform
from dataclasses import dataclass

from headway.rundir.processes import is_alive, process_stat

STOPPED, GONE, DISK_SLEEP = "T", "", "D"
_READS_AND_WRITES = {
    "x86_64": {0: "read", 1: "write", 17: "pread64", 18: "pwrite64", 19: "readv", 20: "writev", 74: "fsync", 75: "fdatasync"},
    "aarch64": {63: "read", 64: "write", 67: "pread64", 68: "pwrite64", 65: "readv", 66: "writev", 82: "fsync", 83: "fdatasync"},
}
"""By machine and number: calls whose first argument is the descriptor that is waited for."""
_OPENS = {"x86_64": {2: "open", 257: "openat"}, "aarch64": {56: "openat"}}


@dataclass(frozen=True, kw_only=True)
class Facts:
    """``state``: the kernel's letter; empty: no such process. ``call``: the system call of its main thread and the file it is
    about, where both can be told."""

    state: str
    call: str = ""
    kernel: str = ""  # where in the kernel it waits

    @property
    def in_io(self) -> bool:
        return self.state == DISK_SLEEP or bool(self.call)

    def words(self) -> str:
        told = [f"state {self.state}", self.call, self.kernel and f"waits in {self.kernel}"]
        return ", ".join(part for part in told if part)


def facts_of(pid: int, ticks: int | None) -> Facts:
    """Of that very process."""
    stat = process_stat(pid)
    if stat is None or not is_alive(pid, ticks):
        return Facts(state=GONE)
    kernel = _text(f"/proc/{pid}/stack").partition("\n")[0].rpartition(" ")[2] or _text(f"/proc/{pid}/wchan").strip("0")
    return Facts(state=stat.state, call=_call(pid), kernel=kernel.partition("+")[0])


def state_of(pid: int, ticks: int | None) -> str:
    """Its state alone: cheap."""
    stat = process_stat(pid)
    return GONE if stat is None or ticks not in (None, stat.start_ticks) else stat.state


def memory_kills() -> int:
    """How many processes the kernel of this machine has ended since boot because memory ran out; 0 where nobody counts."""
    line = next((line for line in _text("/proc/vmstat").splitlines() if line.startswith("oom_kill ")), "oom_kill 0")
    return int(line.split()[1])


def _call(pid: int) -> str:
    words, machine = _text(f"/proc/{pid}/syscall").split(), platform.machine()
    with contextlib.suppress(ValueError, IndexError, OSError):
        number = int(words[0])
        if name := _OPENS.get(machine, {}).get(number):
            return f"in {name} of a file"
        if name := _READS_AND_WRITES.get(machine, {}).get(number):
            return f"in {name} of {os.readlink(f'/proc/{pid}/fd/{int(words[1], 16)}')}"
    return ""


def _text(path: str) -> str:
    try:
        with open(path) as file:
            return file.read()
    except OSError:
        return ""
