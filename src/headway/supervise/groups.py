"""Replica groups on this machine: one that is lost is started again alone, while the others go on in the same segment.

    group 0, leads   its end is the end of all, as that of ranks without groups
    group 1, 2, ..   ended --> what is left of it is killed, it is started again; MOST_DEATHS without a step between end all
    store, lighthouse    beside the supervisor, for one attempt

Each group is a set of ranks that live and die together (``launcher.LocalRanks``). Ranks count through all groups, in logs,
heartbeats and events.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import time
from collections.abc import Callable
from typing import Any

from headway.base.errors import EXIT_CONFIG, EXIT_ENVIRONMENT, ConfigError, HeadwayError
from headway.rundir.layout import RunDirectory
from headway.supervise.causes import error_of, error_words, own_error, status_words
from headway.supervise.launcher import (
    LocalRanks,
    ProcessLauncher,
    TrainerProcess,
    engine_command,
    first_error_of,
    recorded_layout,
    start_ranks,
)
from headway.supervise.meeting import Meeting

TORCHFT = "torchft"
MOST_DEATHS = 3
"""Of a group, without a step that it took part in between."""
FAREWELL_SECONDS = 20.0
"""That the others may take to end when the leading group has."""

Start = Callable[[int, int], LocalRanks]
"""Group, how often it was started before."""


def replica_groups(deployment: dict[str, Any], axes: dict[str, Any]) -> int:
    """How many there are that may be lost one by one; 1: all ranks live and die together. ConfigError without torchft."""
    if deployment.get("supervise", {}).get("per_step", "off") != TORCHFT:
        return 1
    if importlib.util.find_spec(TORCHFT) is None:
        raise ConfigError(
            "torchft is not installed",
            'per_step = "torchft" needs it',
            'pip install "headway[ft]", or per_step = "off"',
        )
    return int(axes.get("dp_replicate", 1))


class GroupLauncher(ProcessLauncher):
    """As ``ProcessLauncher``; a segment of several groups by group."""

    def __init__(self, command: Callable[[RunDirectory, int], list[str]] = engine_command, address: str = "127.0.0.1"):
        super().__init__(command)
        self._address = address

    def launch(self, run: RunDirectory, segment: int) -> TrainerProcess:
        layout = recorded_layout(run, segment)
        groups, world = int(layout.get("groups", 1)), int(layout.get("world", 1))
        if groups == 1:
            return super().launch(run, segment)
        meeting, own = Meeting(self._address, "lighthouse"), world // groups
        store = meeting.store()

        def start(group: int, before: int) -> LocalRanks:
            place = ["--group", group, "--groups", groups, "--start", before, "--store", store]
            place += ["--meeting", f"tcp://{store}/group-{group}-{before}"]
            ranks = range(group * own, (group + 1) * own)
            started = start_ranks(self.command(run, segment), [str(word) for word in place], run, segment, ranks)
            return LocalRanks(started, lambda: _own_error(run, segment, ranks))

        try:
            return GroupedRanks(run, segment, groups, start, meeting)
        except BaseException:
            meeting.close()
            raise


class GroupedRanks(LocalRanks):
    """All groups of an attempt. ``news``: what happened to groups since it was asked last, as fields of events."""

    def __init__(self, run: RunDirectory, segment: int, groups: int, start: Start, meeting: Meeting):
        self._run, self._segment, self._start, self._served_by = run, segment, start, meeting
        self._groups: list[LocalRanks] = []
        try:
            for group in range(groups):
                self._groups.append(start(group, 0))
        except BaseException:
            self.kill()
            for started in self._groups:
                started.close()
            raise
        self._starts, self._deaths = [0] * groups, [0] * groups
        self._there = set(range(groups))  # took part in the newest quorum that is known
        self._news: list[dict[str, Any]] = []
        self._asked_to_end, self._deadline = False, 0.0
        super().__init__([rank for group in self._groups for rank in group.ranks])

    @property
    def _own(self) -> int:
        """Ranks of a group."""
        return len(self._groups[0].ranks)

    def poll(self) -> int | None:
        statuses = [group.poll() for group in self._groups]
        if self.failed is None and statuses[0]:
            self._end_with(0, statuses[0])
        if self.failed is None and statuses[0] is None and self._served_by.has_died:
            self._tell("lost", 0, "the lighthouse of the replica groups has died, and no group can go on without it")
            self._end_with(0, EXIT_ENVIRONMENT)
        if self.failed is None and statuses[0] is None:
            for group, status in enumerate(statuses):
                if status:  # with 0 it has heard that the leading group is done
                    self._lost(group, status)
            return None
        if self.failed is None and any(status is None for status in statuses):
            self._deadline = self._deadline or time.monotonic() + FAREWELL_SECONDS
            if time.monotonic() > self._deadline:
                self.kill()  # was being started, or did not hear of the end
            return None
        if any(group.poll() is None for group in self._groups):
            return None
        return 0 if self.failed is None else self._cause_status

    def _end_with(self, group: int, status: int) -> None:
        self.failed, self._cause_status = group * self._own + (self._groups[group].failed or 0), status
        self.kill()

    def _lost(self, group: int, status: int) -> None:
        """While the leading group goes on."""
        if self._asked_to_end:
            return
        rank = group * self._own + (self._groups[group].failed or 0)
        code, number = (status, None) if status >= 0 else (None, -status)
        words = f"rank {rank} {status_words(code, number)}"
        error = own_error(self._run, self._segment, rank) if code else None
        detail = error_words(error) if error else ""
        self._deaths[group] += 1
        self._there.discard(group)
        self._tell("lost", group, f"{words}: {detail}" if detail else words, rank=rank, code=code, signal=number)
        if self._deaths[group] >= MOST_DEATHS or status == EXIT_CONFIG or (error and "corruption" in error):
            return self._end_with(group, status)  # what was wrong on it went into the sums of all
        self._set_error_aside(group)
        self._groups[group].close()
        self._starts[group] += 1
        try:
            self._groups[group] = self._start(group, self._starts[group])
        except HeadwayError as fault:  # no room for its log, say: an attempt that ends is tried again
            self._tell("lost", group, f"it cannot be started again: {fault}", rank=rank)
            return self._end_with(group, fault.exit_code)
        self.ranks = tuple(rank for each in self._groups for rank in each.ranks)
        ranks = [{"pid": one.pid, "start_ticks": one.start_ticks} for one in self._groups[group].ranks]
        self._tell("started", group, "its replica goes on from the state of the others", ranks=ranks)

    def _set_error_aside(self, group: int) -> None:
        """The next error is of another process."""
        error = error_of(self._run, self._segment)
        if error is not None and error.get("rank", 0) // self._own == group:
            path = self._run.segment(self._segment) / "error.json"
            with contextlib.suppress(OSError):
                os.replace(path, path.with_name(f"error-group-{group}-{self._starts[group]}.json"))

    def _tell(self, state: str, group: int, reason: str, **fields: Any) -> None:
        self._news.append({"segment": self._segment, "group": group, "state": state, "reason": reason, **fields})

    def heard(self, row: dict[str, Any]) -> None:
        """A row of the leading group."""
        if row["kind"] == "groups":
            self._there = set(row["groups"])
            for group in row["back"]:
                self._tell("back", group, f"it takes part again after step {row['step']}", step=row["step"])
        elif row["kind"] == "step":
            for group in self._there:
                self._deaths[group] = 0

    def news(self) -> list[dict[str, Any]]:
        found, self._news = self._news, []
        return found

    def terminate(self) -> None:
        """The leading group decides after which step all end."""
        self._asked_to_end = True
        for group in self._groups:
            group.terminate()

    def kill(self) -> None:
        self._asked_to_end = True
        for group in self._groups:
            group.kill()

    def close(self) -> None:
        for group in self._groups:
            group.close()
        self._served_by.close()


def _own_error(run: RunDirectory, segment: int, ranks: range) -> int | None:
    """The rank of these that left word of its failure first, counted within its group."""
    rank = first_error_of(run, segment)
    return rank - ranks.start if rank is not None and rank in ranks else None
