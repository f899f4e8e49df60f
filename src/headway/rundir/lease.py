"""The lease: who owns a run directory. Epoch files decide, a counter shows life, no wall clocks are compared.

    lease/epoch-000001.json   {owner, since, token}   created once by O_EXCL, never changed
    lease/epoch-000001.beat   {counter, state, boot_id, boot_ns} the holder's counter and its own clock, written anew every
                              ttl / 10; "released" at the end
    lease/epoch-000002.json   ...              the next owner

A newcomer looks at the newest epoch. Released: it creates the next one (the file system lets only one succeed). Counter
seen moving: in use, refused at once. Counter unchanged for a whole ttl *of the newcomer's own clock*: expired.
A holder that could not renew for ttl / 2 stops itself, for good: so it is silent before anybody takes over. So does one whose
own epoch file is gone or no longer holds its token.

A next epoch exceeds every one that left a trace, in the lease, the events or the segments: a lost lease directory brings no
number back. An epoch file that cannot be read names no owner, but its counter is watched like any other.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from headway.base.clocks import Clock
from headway.base.digests import canonical_json
from headway.base.errors import EnvironmentFault, HeadwayError, from_os_error
from headway.base.files import create_exclusive, make_directory, read_json, write_all
from headway.base.records import decode_record, encode_record
from headway.rundir.layout import RunDirectory, epoch_of

BEATS_PER_TTL = 10
_UNKNOWN_TTL_SECONDS = 15.0
"""Of an owner whose epoch file cannot be read: the default of a deployment."""
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

    def __init__(self, run: RunDirectory, epoch: int, content: dict, clock: Clock):
        self.run, self.epoch, self.ttl_seconds, self._clock = run, epoch, content["ttl_seconds"], clock
        self._content = canonical_json(content)
        self._lock = threading.Lock()
        self._counter, self._lost = 0, False
        self._renewed_ns = clock.stamp().boot_ns

    @staticmethod
    def acquire(
        run: RunDirectory, owner: dict, ttl_seconds: float, clock: Clock, on_wait: Callable[[LeaseView], None] | None = None
    ) -> Lease:
        """Take the run over, or refuse naming its owner. Waits at most ``ttl_seconds`` for a silent owner to expire."""
        make_directory(run.lease, "lease directory")
        traces = _newest_trace(run)  # before the look: one that appears meanwhile is a rival's, and must not be passed over
        view = observe(run, ttl_seconds, clock, on_wait)
        if view.state == _HELD:
            raise _in_use(run, view)
        epoch = max(view.epoch, traces) + 1
        content = {"kind": "lease", "schema_version": 1, "epoch": epoch, "owner": owner, "ttl_seconds": ttl_seconds}
        content |= {"since": clock.stamp().to_json(), "token": secrets.token_hex(8)}
        if not create_exclusive(_epoch_file(run, epoch), canonical_json(content)):
            raise _in_use(run, _view(run, epoch, _HELD))
        lease = Lease(run, epoch, content, clock)
        lease.renew()
        return lease

    def renew(self) -> bool:
        """Move the counter. False when the lease is lost, or when the storage refused this time."""
        with self._lock:
            before_ns = self._clock.stamp().boot_ns  # a write that hangs must not count as fresh when it returns
            try:
                if self._overdue(before_ns) or not self._is_mine():
                    self._lost = True
                    return False
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
            with contextlib.suppress(OSError):  # the next owner then waits for the expiry
                if not self._lost and self._is_mine():
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

    def _is_mine(self) -> bool:
        """No newer epoch, and the own file as it was created. OSError: the storage cannot tell this time."""
        if newest_epoch(self.run) > self.epoch:
            return False
        try:
            return _epoch_file(self.run, self.epoch).read_bytes() == self._content
        except FileNotFoundError:
            return False

    def _write(self, state: str) -> None:
        """Over the old bytes, without truncating: it works on a full disk, and closing publishes it on network storage."""
        self._counter += 1
        descriptor = os.open(_beat_file(self.run, self.epoch), os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            stamp = self._clock.stamp()
            sign = {"counter": self._counter, "state": state, "boot_id": stamp.boot_id, "boot_ns": stamp.boot_ns}
            write_all(descriptor, encode_record(sign))
        finally:
            os.close(descriptor)


def observe(
    run: RunDirectory, patience_seconds: float, clock: Clock, on_wait: Callable[[LeaseView], None] | None = None
) -> LeaseView:
    """Look at the newest epoch until its counter moves, it is found released, or ``patience_seconds`` have passed.

    ``on_wait``: told once the owner is silent for longer than one that lives."""
    epoch = newest_epoch(run)
    if epoch == 0:
        return LeaseView("free", 0, {}, 0)
    first = _beat(run, epoch)
    if _is_released(first):
        return _view(run, epoch, _RELEASED)
    began_ns = clock.stamp().boot_ns
    deadline_ns, told_ns = (began_ns + round(seconds * 1e9) for seconds in (patience_seconds, glance_seconds(run)))
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
        if on_wait is not None and clock.stamp().boot_ns >= told_ns:
            on_wait(_view(run, epoch, "silent"))
            on_wait = None
    return _view(run, epoch, "silent")


def newest_epoch(run: RunDirectory) -> int:
    """0 when nobody ever owned the run."""
    return _newest(run.lease, "json")


def _newest(directory: Path, ending: str) -> int:
    paths = directory.glob(f"epoch-*.{ending}") if directory.is_dir() else ()
    return max(map(epoch_of, paths), default=0)


def _newest_trace(run: RunDirectory) -> int:
    """The newest epoch that wrote anything: a lease, events, a segment. What cannot be read is no trace."""
    epochs = [_newest(run.lease, "json"), _newest(run.events, "jsonl")]
    for path in run.segments.glob("[0-9]*/segment.json"):
        content = _read_object(path, "segment")
        epochs.append(content["epoch"] if type(content.get("epoch")) is int else 0)
    return max(epochs)


@dataclass(frozen=True)
class SignOfLife:
    """The newest renewal of a lease, by the clock of its holder: to be compared with other stamps of that boot alone."""

    boot_id: str
    boot_ns: int


def last_sign(run: RunDirectory, epoch: int) -> SignOfLife | None:
    """None: there is none that can be read."""
    try:
        sign = decode_record(_beat(run, epoch).rstrip(b"\n")) or {}
    except HeadwayError:
        return None
    boot_id, boot_ns = sign.get("boot_id"), sign.get("boot_ns")
    return SignOfLife(boot_id, boot_ns) if isinstance(boot_id, str) and type(boot_ns) is int else None


def glance_seconds(run: RunDirectory) -> float:
    """How long a reader watches a silent owner before calling it dead; only a new owner waits for the whole ttl."""
    return 2.5 * beat_seconds(run)


def beat_seconds(run: RunDirectory) -> float:
    """How often the newest owner moves its counter."""
    epoch = newest_epoch(run)
    ttl_seconds = _read_object(_epoch_file(run, epoch), "lease").get("ttl_seconds") if epoch else 0.0
    return (ttl_seconds if isinstance(ttl_seconds, int | float) else _UNKNOWN_TTL_SECONDS) / BEATS_PER_TTL


def _epoch_file(run: RunDirectory, epoch: int) -> Path:
    return run.lease / f"epoch-{epoch:06d}.json"


def _beat_file(run: RunDirectory, epoch: int) -> Path:
    return run.lease / f"epoch-{epoch:06d}.beat"


def _beat(run: RunDirectory, epoch: int) -> bytes:
    try:
        return _beat_file(run, epoch).read_bytes()
    except FileNotFoundError:
        return b""  # an owner that died between its two files
    except OSError as error:
        raise from_os_error(error, _beat_file(run, epoch), "cannot read lease") from error


def _is_released(beat: bytes) -> bool:
    value = decode_record(beat.rstrip(b"\n"))
    return value is not None and value.get("state") == _RELEASED


def _read_object(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in ``path``; an empty one where it cannot be read."""
    try:
        content = read_json(path, what)
    except HeadwayError:
        return {}
    return content if isinstance(content, dict) else {}


def _view(run: RunDirectory, epoch: int, state: str) -> LeaseView:
    """An epoch file that cannot be read has an owner all the same: {} is unknown."""
    content = _read_object(_epoch_file(run, epoch), "lease")
    owner, since = content.get("owner"), content.get("since")
    real_ns = since.get("real_ns") if isinstance(since, dict) else None
    return LeaseView(state, epoch, owner if isinstance(owner, dict) else {}, real_ns if type(real_ns) is int else 0)


def _in_use(run: RunDirectory, view: LeaseView) -> EnvironmentFault:
    if not view.owner:
        return EnvironmentFault(
            f"run directory in use: {run.root} is owned by an unknown process: {_epoch_file(run, view.epoch)} cannot be read",
            "one run directory has one owner at a time, and the counter beside that file moves",
            "find the process that runs this directory (headway run or resume), stop it (SIGTERM) and start again",
        )
    since = datetime.fromtimestamp(view.since_real_ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    host, pid = view.owner.get("host", "?"), view.owner.get("pid", "?")
    return EnvironmentFault(
        f"run directory in use: {run.root} is owned by process {pid} on {host} since {since}",
        "one run directory has one owner at a time, and this one lives",
        f"it is running; watch it with: headway status {run.root}; to stop it: headway stop {run.root}",
    )
