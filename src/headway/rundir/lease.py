"""The lease: who owns a run directory. Epoch files decide, a counter shows life, no wall clocks are compared.

    lease/epoch-000001.json   {owner, since}   created once by O_EXCL, never changed
    lease/epoch-000001.beat   {counter, state} the holder's counter, written anew every ttl / 10; "released" at the end
    lease/epoch-000002.json   ...              the next owner

A newcomer looks at the newest epoch. Released: it creates the next one (the file system lets only one succeed). Counter
seen moving: in use, refused at once. Counter unchanged for a whole ttl *of the newcomer's own clock*: expired.
A holder that could not renew for ttl / 2 stops itself, for good: so it is silent before anybody takes over.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headway.base.clocks import Clock
from headway.base.digests import canonical_json
from headway.base.errors import EnvironmentFault
from headway.base.files import create_exclusive, make_directory, read_json, write_all
from headway.base.records import decode_record, encode_record
from headway.rundir.layout import RunDirectory

BEATS_PER_TTL = 10
_HELD, _RELEASED = "held", "released"


@dataclass(frozen=True)
class LeaseView:
    """What a watcher sees. State: free (no epoch yet), released, held (counter moves), silent (it did not while watched)."""

    state: str
    epoch: int
    owner: dict[str, Any]
    since_real_ns: int


class Lease:
    """A held lease. Create it with ``acquire``; renew it more often than every ttl / 2."""

    def __init__(self, run: RunDirectory, epoch: int, ttl_seconds: float, clock: Clock):
        self.run, self.epoch, self.ttl_seconds, self._clock = run, epoch, ttl_seconds, clock
        self._lock = threading.Lock()
        self._counter, self._lost = 0, False
        self._renewed_ns = clock.stamp().boot_ns

    @staticmethod
    def acquire(
        run: RunDirectory, owner: dict, ttl_seconds: float, clock: Clock, on_wait: Callable[[LeaseView], None] | None = None
    ) -> Lease:
        """Take the run over, or refuse naming its owner. Waits at most ``ttl_seconds`` for a silent owner to expire."""
        make_directory(run.lease, "lease directory")
        view = observe(run, ttl_seconds, clock, on_wait)
        if view.state == _HELD:
            raise _in_use(run, view)
        epoch = view.epoch + 1
        content = {"kind": "lease", "schema_version": 1, "epoch": epoch, "owner": owner, "ttl_seconds": ttl_seconds}
        content["since"] = clock.stamp().to_json()
        if not create_exclusive(_epoch_file(run, epoch), canonical_json(content)):
            raise _in_use(run, _view(run, epoch, _HELD))
        lease = Lease(run, epoch, ttl_seconds, clock)
        lease.renew()
        return lease

    def renew(self) -> bool:
        """Move the counter. False when the lease is lost, or when the storage refused this time."""
        with self._lock:
            before_ns = self._clock.stamp().boot_ns  # a write that hangs must not count as fresh when it returns
            if self._overdue(before_ns) or _epoch_file(self.run, self.epoch + 1).exists():
                self._lost = True
                return False
            try:
                self._write(_HELD)
            except OSError:
                return False
            self._renewed_ns = before_ns
            return True

    def renew_if_due(self) -> None:
        if self._clock.stamp().boot_ns - self._renewed_ns >= self.ttl_seconds * 1e9 / BEATS_PER_TTL:
            self.renew()

    def must_stop(self) -> bool:
        """True once the lease could not be renewed for half its time to live; it never becomes false again."""
        self._lost = self._lost or self._overdue(self._clock.stamp().boot_ns)
        return self._lost

    def release(self) -> None:
        """Let the next owner in at once. A lost lease has nothing to release."""
        with self._lock:
            if not self._lost and not _epoch_file(self.run, self.epoch + 1).exists():
                with contextlib.suppress(OSError):  # the next owner then waits for the expiry
                    self._write(_RELEASED)
            self._lost = True

    @contextlib.contextmanager
    def renewed_in_background(self) -> Iterator[Lease]:
        """Renew from a thread while the caller is busy (verifying a large checkpoint, say)."""
        done = threading.Event()

        def beat() -> None:
            while not done.wait(self.ttl_seconds / BEATS_PER_TTL):
                self.renew()

        thread = threading.Thread(target=beat, name="lease", daemon=True)
        thread.start()
        try:
            yield self
        finally:
            done.set()
            thread.join()

    def _overdue(self, now_ns: int) -> bool:
        return self._lost or now_ns - self._renewed_ns > self.ttl_seconds * 1e9 / 2

    def _write(self, state: str) -> None:
        """Over the old bytes, without truncating: it works on a full disk, and closing publishes it on network storage."""
        self._counter += 1
        descriptor = os.open(_beat_file(self.run, self.epoch), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            write_all(descriptor, encode_record({"counter": self._counter, "state": state}))
        finally:
            os.close(descriptor)


def observe(
    run: RunDirectory, patience_seconds: float, clock: Clock, on_wait: Callable[[LeaseView], None] | None = None
) -> LeaseView:
    """Look at the newest epoch until its counter moves, it is found released, or ``patience_seconds`` have passed."""
    epoch = newest_epoch(run)
    if epoch == 0:
        return LeaseView("free", 0, {}, 0)
    first = _beat(run, epoch)
    if _is_released(first):
        return _view(run, epoch, _RELEASED)
    if on_wait is not None:
        on_wait(_view(run, epoch, "silent"))
    deadline_ns = clock.stamp().boot_ns + round(patience_seconds * 1e9)
    pause_seconds = min(0.25, max(0.01, patience_seconds / 100))
    while clock.stamp().boot_ns < deadline_ns:
        clock.sleep(pause_seconds)
        newest, beat = newest_epoch(run), _beat(run, epoch)
        if newest != epoch:
            return _view(run, newest, _HELD)  # somebody took it over while we watched
        if _is_released(beat):
            return _view(run, epoch, _RELEASED)
        if beat != first:
            return _view(run, epoch, _HELD)
    return _view(run, epoch, "silent")


def newest_epoch(run: RunDirectory) -> int:
    """0 when nobody ever owned the run."""
    names = [path.name for path in run.lease.glob("epoch-*.json")] if run.lease.is_dir() else []
    return max((int(name[6:-5]) for name in names), default=0)


def beat_seconds(run: RunDirectory) -> float:
    """How often the newest owner moves its counter."""
    epoch = newest_epoch(run)
    return read_json(_epoch_file(run, epoch), "lease")["ttl_seconds"] / BEATS_PER_TTL if epoch else 0.0


def _epoch_file(run: RunDirectory, epoch: int) -> Path:
    return run.lease / f"epoch-{epoch:06d}.json"


def _beat_file(run: RunDirectory, epoch: int) -> Path:
    return run.lease / f"epoch-{epoch:06d}.beat"


def _beat(run: RunDirectory, epoch: int) -> bytes:
    try:
        return _beat_file(run, epoch).read_bytes()
    except FileNotFoundError:
        return b""  # an owner that died between its two files


def _is_released(beat: bytes) -> bool:
    value = decode_record(beat.rstrip(b"\n"))
    return value is not None and value["state"] == _RELEASED


def _view(run: RunDirectory, epoch: int, state: str) -> LeaseView:
    content = read_json(_epoch_file(run, epoch), "lease")
    return LeaseView(state, epoch, content["owner"], content["since"]["real_ns"])


def _in_use(run: RunDirectory, view: LeaseView) -> EnvironmentFault:
    since = datetime.fromtimestamp(view.since_real_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    host, pid = view.owner.get("host", "?"), view.owner.get("pid", "?")
    return EnvironmentFault(
        f"run directory in use: {run.root} is owned by process {pid} on {host} since {since}",
        "one run directory has one owner at a time",
        f"watch it with: headway status {run.root}, or stop that process (SIGTERM) and start again",
    )
