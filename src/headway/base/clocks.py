"""Clocks. Intervals come from CLOCK_BOOTTIME of one boot; realtime stands beside, never compared across hosts."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Stamp:
    """An instant: nanoseconds since boot, the boot it belongs to, and the realtime shown to people."""

    boot_ns: int
    boot_id: str
    real_ns: int

    def to_json(self) -> dict:
        return {"boot_ns": self.boot_ns, "boot_id": self.boot_id, "real_ns": self.real_ns}

    @staticmethod
    def from_json(value: dict) -> Stamp:
        return Stamp(boot_ns=value["boot_ns"], boot_id=value["boot_id"], real_ns=value["real_ns"])


def is_stamp(value: Any) -> bool:
    """Whether ``value`` is a stamp as records hold it."""
    kinds = {"boot_ns": int, "boot_id": str, "real_ns": int}
    return isinstance(value, dict) and all(type(value.get(name)) is kind for name, kind in kinds.items())


class Clock(Protocol):
    """What code that waits or stamps asks for; tests inject ``FakeClock``."""

    def stamp(self) -> Stamp: ...
    def sleep(self, seconds: float) -> None: ...


@cache
def _boot_id() -> str:
    path = Path("/proc/sys/kernel/random/boot_id")
    return path.read_text().strip() if path.exists() else "unknown-boot"


class SystemClock:
    """The machine's clock."""

    def stamp(self) -> Stamp:
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        return Stamp(time.clock_gettime_ns(clock), _boot_id(), time.time_ns())

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@dataclass
class FakeClock:
    """A clock that moves only when told to (or when something sleeps on it)."""

    boot_ns: int = 1_000_000_000
    boot_id: str = "boot-a"
    real_ns: int = 1_800_000_000_000_000_000
    slept: list[float] = field(default_factory=list)

    def stamp(self) -> Stamp:
        return Stamp(self.boot_ns, self.boot_id, self.real_ns)

    def advance(self, seconds: float) -> None:
        self.boot_ns += round(seconds * 1e9)
        self.real_ns += round(seconds * 1e9)

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)
