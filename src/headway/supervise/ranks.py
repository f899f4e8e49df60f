"""The ranks of one attempt as their heartbeats tell: followed while it runs, judged when nothing moves.

look --> steps done since: blocks of steps -> rules -> events straggler, memory_growth, slow_data   (supervise/sentinel.py)
     \\-> phases of all ranks, whether any moved                                 -> patience
why  --> facts of the kernel, verdict, the Python stacks of those concerned      -> the event of a hang
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from typing import TYPE_CHECKING, Any

from headway.base.units import format_bytes
from headway.rundir.heartbeats import Beat, BeatReader, beat_file
from headway.rundir.processes import is_alive
from headway.supervise.facts import STOPPED, Facts, facts_of, memory_kills, state_of
from headway.supervise.launcher import log_of
from headway.supervise.sentinel import Sentinel
from headway.supervise.verdict import Verdict, judge

if TYPE_CHECKING:
    from headway.supervise.attempt import Watch

MOST_STACKS, STACK_LINES, STACK_BYTES = 8, 16, 32768
LOOK_FACTOR = 20.0
_THIS_HOST = socket.gethostname()


class RankWatch:
    """Of ``segment``, with ``world`` ranks."""

    def __init__(self, watch: Watch, segment: int, world: int, sentinel: Sentinel | None = None):
        self._watch, self._segment, self._world = watch, segment, world
        self._readers = [BeatReader(beat_file(watch.run, segment, rank), rank) for rank in range(world)]
        self._sentinel = sentinel or Sentinel(watch, segment, world)
        self._moves: dict[int, int] = {}
        self._stopped_since_ns: dict[int, int] = {}
        self._next_ns, self._memory_kills = 0, memory_kills()

    @property
    def beats(self) -> dict[int, Beat]:
        return {reader.beat.rank: reader.beat for reader in self._readers if reader.beat.who}

    def look(self) -> None:
        """As often as ``beat_seconds`` says, whatever calls it; of very many ranks less often: a look may take a twentieth."""
        now = self._watch.now_ns()
        if now < self._next_ns:
            return
        began = time.monotonic()
        self._look(now)
        took = time.monotonic() - began
        self._next_ns = now + round(max(self._watch.options.beat_seconds, LOOK_FACTOR * took) * 1e9)

    def _look(self, now: int) -> None:
        steps = {reader.beat.rank: reader.poll() for reader in self._readers}
        beats = self.beats
        moves = {rank: beat.state.get("moves", 0) for rank, beat in beats.items()}
        if moves != self._moves:
            self._moves = moves
            self._watch.patience.moved({beat.phase for beat in beats.values()}, now)
        for row in (row for rows in steps.values() for row in rows if row.get("first")):
            self._watch.patience.started("compile", row["work_ns"] + row["wait_ns"])
        self._sentinel.take(steps, beats)
        self._look_for_stopped(beats, now)

    def _look_for_stopped(self, beats: dict[int, Beat], now: int) -> None:
        stopped = {rank for rank, (pid, ticks) in self._local(beats).items() if state_of(pid, ticks) == STOPPED}
        self._stopped_since_ns = {rank: self._stopped_since_ns.get(rank, now) for rank in stopped}

    def is_stopped(self) -> bool:
        """Whether a process stands stopped for longer than the floor of a hang: no phase makes that healthy."""
        longest = self._watch.now_ns() - min(self._stopped_since_ns.values(), default=self._watch.now_ns())
        return longest > self._watch.options.hang_floor_seconds * 1e9

    def why(self) -> dict[str, Any]:
        """Fields of a hang's event: verdict and evidence. Asks the ranks for their stacks, and waits a moment for them."""
        for reader in self._readers:
            reader.poll()
        verdict = judge(self.beats, self._facts(), self._world)
        stacks = self._stacks(verdict)
        return verdict.fields() | ({"stacks": stacks} if stacks else {})

    def memory_words(self, rank: int) -> str:
        """Why a SIGKILL that nobody here sent may have come; empty: the kernel ended no process for memory meanwhile."""
        killed = memory_kills() - self._memory_kills
        if killed <= 0:
            return ""
        held = self.beats[rank].pulse.get("rss", 0) if rank in self.beats else 0
        last = f", that rank last held {format_bytes(held)}" if held else ""
        return (
            f"the kernel ran out of memory and ended {killed} process{'es' if killed > 1 else ''} on this machine meanwhile{last}"
        )

    def _local(self, beats: dict[int, Beat]) -> dict[int, tuple[int, int | None]]:
        """Processes of this machine, and of this boot of it."""
        boot_id = self._watch.clock.stamp().boot_id
        here = {rank: beat.who for rank, beat in beats.items() if beat.who.get("host") == _THIS_HOST}
        return {rank: (who["pid"], who.get("start_ticks")) for rank, who in here.items() if who["boot_id"] == boot_id}

    def _facts(self) -> dict[int, Facts]:
        return {rank: facts_of(pid, ticks) for rank, (pid, ticks) in self._local(self.beats).items()}

    def _stacks(self, verdict: Verdict) -> dict[str, list[str]]:
        """Of the training threads: of the ranks behind, and of some others. A stopped process cannot answer."""
        behind, beats = [at.rank for at in verdict.behind], self.beats
        order = sorted(self._local(beats).items(), key=lambda item: (item[0] not in behind, item[0]))
        asked: dict[int, tuple[int, int]] = {}
        for rank, (pid, ticks) in order[:MOST_STACKS]:
            number, log = beats[rank].who.get("dumps"), log_of(self._watch.run, self._segment, rank)
            if number == int(signal.SIGUSR2) and is_alive(pid, ticks) and state_of(pid, ticks) != STOPPED:
                with contextlib.suppress(OSError):  # it may end at this moment, and its log may be gone
                    size = log.stat().st_size
                    os.kill(pid, number)
                    asked[rank] = (size, pid)
        deadline = self._watch.now_ns() + round(self._watch.options.stacks_seconds * 1e9)
        found: dict[str, list[str]] = {}
        while asked and self._watch.now_ns() < deadline:
            self._watch.pause()
            found = {str(rank): lines for rank, (size, _) in asked.items() if (lines := self._dumped(rank, size))}
            if len(found) == len(asked):
                break
        return found

    def _dumped(self, rank: int, size: int) -> list[str]:
        """What the rank has written since its log had ``size`` bytes, of its training thread."""
        try:
            with open(log_of(self._watch.run, self._segment, rank), "rb") as file:
                file.seek(size)
                lines = file.read(STACK_BYTES).decode(errors="replace").splitlines()
        except OSError:  # evidence is worth having, and no reason to fail
            return []
        start = next((at for at, line in enumerate(lines) if line.startswith("Current thread")), None)
        if start is None:
            return []
        stack = lines[start + 1 :]
        end = next((at for at, line in enumerate(stack) if not line.startswith("  ")), len(stack))
        return [line.strip() for line in stack[: min(end, STACK_LINES)]]

    def close(self) -> None:
        for reader in self._readers:
            reader.close()
        self._sentinel.close()
