r"""Watching one attempt: from a launched trainer to the moment when all of it is dead.

follow --> rows arrive ------------------> it exits ----------------------------------------> exit record
       \_ asked to stop | hang | lease lost --> terminate --> grace passes --> kill --> it exits _/
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Any

from headway.base.clocks import Clock
from headway.base.records import RecordTail
from headway.rundir.events import EventLog
from headway.rundir.layout import RunDirectory
from headway.rundir.lease import Lease
from headway.rundir.metrics import as_row
from headway.rundir.requests import Inbox, Request
from headway.supervise.causes import cause, status_words
from headway.supervise.corruption import of_exit, record_location
from headway.supervise.groups import GroupedRanks
from headway.supervise.launcher import LocalRanks, TrainerProcess, world_of
from headway.supervise.options import SuperviseOptions
from headway.supervise.patience import Patience
from headway.supervise.ranks import RankWatch

PAUSE = "pause"
"""An attempt is ended, after a save, because somebody asked the run to rest."""
REGROUP = "regroup"
"""An attempt on fewer nodes is ended, after a save, because others are there again."""


class StopSignals:
    """Counts requests to stop. The first asks for a save, the second does not wait for it.

    Signals within a moment of each other are one request: ``timeout`` and batch systems send one to the process and to its group.
    """

    MOMENT_SECONDS = 0.3

    def __init__(self) -> None:
        self.count, self.name, self.by_signal = 0, "", False
        self._last = -math.inf
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopSignals:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1):  # the last: a batch system's warning
                if signal.getsignal(number) is not signal.SIG_IGN:  # nohup asked to ignore it
                    self._before[number] = signal.signal(number, self._on_signal)
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def ask(self, name: str) -> None:
        """As a signal does."""
        self.count, self.name = self.count + 1, name

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now, before = time.monotonic(), self._last
        self._last = now
        if now - before > self.MOMENT_SECONDS:
            self.by_signal = self.by_signal or number in (signal.SIGTERM, signal.SIGUSR1)
            self.ask(signal.Signals(number).name)


@dataclass(frozen=True, kw_only=True)
class Watch:
    """What every part of the supervisor needs."""

    run: RunDirectory
    options: SuperviseOptions
    clock: Clock
    lease: Lease
    events: EventLog
    stop: StopSignals
    patience: Patience
    show: Callable[[dict], None]
    inbox: Inbox
    pauses: list[Request] = field(default_factory=list)  # what was asked and not answered yet; empty: the run goes on

    def record(self, kind: str, **fields: Any) -> None:
        self.show(self.events.append(kind, **fields))

    def now_ns(self) -> int:
        return self.clock.stamp().boot_ns

    def pause(self) -> None:
        """One beat of any waiting loop."""
        self.lease.renew_if_due()
        for request in self.inbox.take():
            self._obey(request)
        self.clock.sleep(self.options.poll_seconds)

    def is_asked_to_end(self) -> bool:
        """This owner, not the attempt alone."""
        return bool(self.stop.count) or self.lease.must_stop()

    def _obey(self, request: Request) -> None:
        if request.verb == "stop" and not self.stop.count:  # asked twice is no more urgent: a second signal is
            self.stop.ask(request.words)
        elif request.verb == "pause" and not self.pauses:
            self.pauses.append(request)
        elif request.verb == "resume":
            self.pauses.clear()


@dataclass(frozen=True, kw_only=True)
class AttemptEnd:
    """How an attempt ended. ``end_state``: complete, stopped or relaid, as the trainer recorded; None: it did not get there.
    ``rank``: of several, the one that failed first."""

    segment: int
    code: int | None
    signal: int | None
    end_state: str | None
    forced: str  # why the supervisor ended it: "", "stop", "hang", "lease lost", "pause", "regroup"
    reason: str  # for people
    rank: int | None = None


class Attempt:
    """One trainer under watch."""

    def __init__(self, watch: Watch, segment: int, process: TrainerProcess, more_nodes: Callable[[], bool] = lambda: False):
        """``more_nodes``: whether nodes that this attempt lacks are there again."""
        self._watch, self._segment, self._process, self._more_nodes = watch, segment, process, more_nodes
        self._saved = False
        self._tails = [RecordTail(watch.run.steps_file(segment))]
        world = self._world = world_of(watch.run, segment)
        self._tails += [RecordTail(watch.run.stalls_file(segment, rank)) for rank in range(1, world)]
        self._ranks, self._verdict = RankWatch(watch, segment, world), dict[str, Any]()
        self._end_state: str | None = None
        self._forced, self._deadline_ns, self._killed = "", 0, False
        self._silent_seconds = 0.0
        watch.patience.begin(watch.now_ns())

    def follow(self) -> AttemptEnd:
        """Until everything is dead; whatever goes wrong here, no trainer is left behind."""
        try:
            while (status := self._process.poll()) is None:
                self._take_rows()
                self._tell_of_groups()
                self._ranks.look()
                self._decide()
                self._watch.pause()
            self._take_rows()
            self._tell_of_groups()
        except BaseException:
            self._process.kill()
            raise
        finally:
            self._process.close()
            self._ranks.close()
        return self._ended(status)

    def _take_rows(self) -> None:
        for record in (record for tail in self._tails for record in tail.poll()):
            row = as_row(record)
            if row is None:  # its checksum holds, but it says nothing that can be relied on: no progress either
                continue
            self._watch.patience.progress(row, self._watch.now_ns())
            if row["kind"] == "end":
                self._end_state = row["state"]
            self._saved = self._saved or row["kind"] == "save"
            self._watch.show(row)
            if row["kind"] == "located":
                record_location(self._watch.run, row, self._watch.record)
            if isinstance(self._process, GroupedRanks):
                self._process.heard(row)

    def _tell_of_groups(self) -> None:
        for fields in self._process.news() if isinstance(self._process, GroupedRanks) else ():
            self._watch.record("group", **fields)

    def _decide(self) -> None:
        watch, options = self._watch, self._watch.options
        if watch.lease.must_stop() and self._forced != "lease lost":
            self._end("lease lost", min(options.grace_seconds, options.ttl_seconds / 4))
        elif watch.stop.count and not self._forced:
            self._end("stop", watch.patience.grace_seconds(options.grace_seconds))
        elif watch.pauses and not self._forced:
            self._end(PAUSE, watch.patience.grace_seconds(options.grace_seconds))
        elif not self._forced and (watch.patience.is_over(watch.now_ns()) or self._ranks.is_stopped()):
            silent_ns = watch.now_ns() - watch.patience.last_progress_ns
            self._silent_seconds, self._verdict = silent_ns / 1e9, self._ranks.why()
            watch.record("hang", segment=self._segment, last_progress_boot_ns=watch.patience.last_progress_ns, **self._verdict)
            self._end("hang", min(options.grace_seconds, options.hang_grace_seconds))
        elif not self._forced and self._more_nodes() and self._saved:  # asked before the save: asking starts their agents
            self._end(REGROUP, watch.patience.grace_seconds(options.grace_seconds))
        elif self._forced and not self._killed and (watch.now_ns() >= self._deadline_ns or watch.stop.count > 1):
            self._killed = True
            self._process.kill()

    def _end(self, why: str, grace_seconds: float) -> None:
        self._forced, self._deadline_ns = why, self._watch.now_ns() + round(grace_seconds * 1e9)
        self._process.terminate()

    def _ended(self, status: int) -> AttemptEnd:
        code, number = (status, None) if status >= 0 else (None, -status)
        end = AttemptEnd(
            segment=self._segment,
            code=code,
            signal=number,
            end_state=self._end_state,
            forced=self._forced,
            reason=self._words(code, number),
            rank=self._rank,
        )
        fields = {"segment": end.segment, "code": code, "signal": number, "reason": end.reason}
        fields |= {"rank": end.rank} if end.rank is not None else {}
        fields |= {"forced": end.forced} if end.forced else {}
        fields |= {"lost_node": node.host} if (node := self._lost_node(number)) is not None else {}
        fields |= of_exit(self._watch.run, end.segment)
        self._watch.record("exit", **fields, last_progress_boot_ns=self._watch.patience.last_row_ns)
        return end

    @property
    def _rank(self) -> int | None:
        if self._forced == "hang":  # who was killed first says nothing, nor does a verdict that fits all
            return self._verdict.get("rank") if self._verdict.get("behind", 0) < self._world else None
        return self._process.failed if isinstance(self._process, LocalRanks) else None

    def _lost_node(self, number: int | None) -> Any:
        """The node whose loss ended the attempt; None: something else did."""
        if number != signal.SIGKILL or self._forced or not isinstance(self._process, LocalRanks):
            return None
        return self._process.lost_node(self._rank)

    def _words(self, code: int | None, number: int | None) -> str:
        status = status_words(code, number)
        status = status if self._rank is None else f"rank {self._rank} {status}"
        words = {
            "": status,
            "stop": f"asked to stop by {self._watch.stop.name}, {status}",
            "hang": f"no progress for {self._silent_seconds:.0f} s, {self._verdict.get('verdict') or status}",
            "lease lost": f"the lease was lost, {status}",
            PAUSE: f"{self._watch.pauses[0].words if self._watch.pauses else 'a pause'}, {status}",
            REGROUP: f"nodes are there again, {status}",
        }[self._forced]
        if code == 0 and self._end_state is None:
            words += " without a record of its end"
        if self._killed and self._forced == "stop":
            words += " (it did not end within the grace time: the last committed checkpoint stands)"
        detail = cause(self._watch.run, self._segment, self._rank or 0) if code else ""
        if (node := self._lost_node(number)) is not None:  # the status is none that anybody saw
            return f"node {node.host} was lost with rank {self._rank or 0}: {node.lost}"
        if number == signal.SIGKILL and not self._forced:
            detail = self._ranks.memory_words(self._rank or 0)
        return f"{words}: {detail}" if detail else words
