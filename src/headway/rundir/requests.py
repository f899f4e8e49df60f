"""What people ask of a run's owner, wherever it runs: a file each, in RUN/requests; the owner answers by what it records.

    requests/000001.json    {verb: stop, author, reason, epoch, stamp}      written once, under the next free number

A request is for the owner of the epoch that it names: it outlives nobody, and the next owner does not find it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from headway.base.clocks import Clock
from headway.base.digests import canonical_json
from headway.base.errors import HeadwayError
from headway.base.files import create_exclusive, make_directory, read_json
from headway.base.plain import from_plain
from headway.rundir.layout import RunDirectory

Verb = Literal["stop", "pause", "resume"]
_DIGITS = 6
LOOK_SECONDS = 0.5
"""Between two looks: run directories lie on file systems that many share."""


@dataclass(frozen=True)
class Request:
    """``epoch``: of the lease whose holder is asked."""

    verb: str
    author: str
    reason: str
    epoch: int

    @property
    def words(self) -> str:
        return f"headway {self.verb} by {self.author}" + (f": {self.reason}" if self.reason else "")


def ask(run: RunDirectory, request: Request, clock: Clock) -> None:
    """Durably, under a number of its own."""
    make_directory(run.requests, "directory of requests")
    content = canonical_json({**request.__dict__, "stamp": clock.stamp().to_json()})
    number = max(_numbers(run), default=0) + 1
    while not create_exclusive(run.requests / f"{number:06d}.json", content):
        number += 1


class Inbox:
    """The requests to one owner, each once, in order. What cannot be read is left lying."""

    def __init__(self, run: RunDirectory, epoch: int, clock: Clock):
        self._run, self._epoch, self._clock = run, epoch, clock
        self._taken, self._looked_ns = 0, 0

    def take(self) -> list[Request]:
        """The new ones, looked for now and then."""
        now = self._clock.stamp().boot_ns
        if now - self._looked_ns < LOOK_SECONDS * 1e9:
            return []
        self._looked_ns = now
        try:
            new = [number for number in _numbers(self._run) if number > self._taken]
        except OSError:  # of a shared file system, for a moment: it is looked again
            return []
        found = [self._read(number) for number in new]
        self._taken = max([self._taken, *new])
        return [request for request in found if request is not None and request.epoch == self._epoch]

    def _read(self, number: int) -> Request | None:
        try:
            value = read_json(self._run.requests / f"{number:06d}.json", "request")
            return from_plain(Request, {key: value[key] for key in Request.__dataclass_fields__})
        except (HeadwayError, OSError, KeyError, TypeError):
            return None


def _numbers(run: RunDirectory) -> list[int]:
    """Those that are there, in order; names of other kinds are none."""
    names = (path.stem for path in run.requests.glob("*.json")) if run.requests.is_dir() else ()
    return sorted(int(name) for name in names if name.isdecimal() and len(name) <= _DIGITS)
