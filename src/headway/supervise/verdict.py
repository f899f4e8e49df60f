"""When nothing moves: which rank is behind, where it is, and who waits for whom. Pure functions of heartbeats and facts.

Ranks train in step: all but the one that stands still end up in a collective, waiting for it. So whoever is stopped, is behind
in steps or phases, or does something else than wait is the cause. Where all wait, the one that has finished fewer waits is;
where none has, the wedge lies between them (network, unmatched collectives), and nobody is blamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headway.rundir.heartbeats import COMPILE, DATA, END, INIT, PHASES, RESTORE, STEP, Beat
from headway.supervise.facts import GONE, STOPPED, Facts

SILENT_NS = 10 * 10**9
"""A pulse so much older than the newest of its machine: no Python runs there."""
MOST_TOLD = 64
"""Ranks whose last heartbeats are evidence; of more, those behind come first."""

STANDS = "stopped"
IN_IO = "in I/O"
IN_COLLECTIVE = "in a collective"
IN_PYTHON = "in Python"
FROZEN = "outside Python"
NEVER_CAME = "not started"
LOST = "gone"
DONE = "done"


@dataclass(frozen=True, kw_only=True)
class Standing:
    """Where one rank is. ``waits_ns``: how long it has waited in a collective; None: it does not."""

    rank: int
    host: str
    phase: str
    step: int
    where: str
    words: str
    waits: int = 0
    waits_ns: int | None = None

    @property
    def position(self) -> tuple[int, int]:
        return self.step, PHASES.index(self.phase) if self.phase in PHASES else 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """``behind``: the ranks that hold up the others, the first is named; empty: it cannot be told."""

    behind: tuple[Standing, ...]
    ranks: tuple[Standing, ...]
    beats: tuple[Beat, ...]

    @property
    def rank(self) -> int | None:
        return self.behind[0].rank if self.behind else None

    def words(self) -> str:
        """One line."""
        if not self.ranks:
            return "no heartbeat tells where"
        if not self.behind:
            first = min(self.ranks, key=lambda at: at.position)
            among = "all ranks" if len(self.ranks) > 1 else f"rank {first.rank}"
            return f"{among} in a collective of {_place(first)}: {first.words}"
        first = self.behind[0]
        more = f" (and {_listed([at.rank for at in self.behind[1:]])})" if len(self.behind) > 1 else ""
        names = {at.rank for at in self.behind}
        waiting = [at.rank for at in self.ranks if at.rank not in names and at.waits_ns is not None]
        verb = "wait" if len(waiting) > 1 else "waits"
        wait = f"; {_listed(waiting)} {verb} for it in a collective" if waiting else ""
        host = first.host or "an unknown host"
        return f"rank {first.rank}{more} on {host} is {first.where}, {_place(first)}: {first.words}{wait}"

    def fields(self) -> dict[str, Any]:
        """For the event."""
        if not self.ranks:
            return {}
        order = sorted(self.ranks, key=lambda at: (at not in self.behind, at.rank))[:MOST_TOLD]
        beats = {beat.rank: beat for beat in self.beats}
        told = [_evidence(at, beats[at.rank]) for at in order]
        found: dict[str, Any] = {"verdict": self.words(), "ranks": told}
        if self.behind:
            first = self.behind[0]
            found |= {
                "behind": len(self.behind),
                "rank": first.rank,
                "host": first.host,
                "where": first.where,
                "phase": first.phase,
                "step": first.step,
            }
        return found


def judge(beats: Mapping[int, Beat], facts: Mapping[int, Facts], world: int) -> Verdict:
    """``beats``: by rank, those that there are; ``facts``: of ranks whose processes can be looked at from here."""
    if not beats:
        return Verdict(behind=(), ranks=(), beats=())
    full = {rank: beats.get(rank) or Beat(rank) for rank in range(world)}
    newest = _newest_pulses(beats.values())
    ranks = tuple(_standing(beat, facts.get(rank), newest) for rank, beat in full.items())
    return Verdict(behind=_behind(ranks), ranks=ranks, beats=tuple(full.values()))


def _behind(ranks: tuple[Standing, ...]) -> tuple[Standing, ...]:
    for where in (LOST, STANDS, NEVER_CAME):
        if found := tuple(at for at in ranks if at.where == where):
            return found
    ranks = tuple(at for at in ranks if at.where != DONE) or ranks
    least = min(at.position for at in ranks)
    last = tuple(at for at in ranks if at.position == least)
    busy = tuple(at for at in last if at.waits_ns is None)
    if busy:
        frozen = tuple(at for at in busy if at.where in (FROZEN, IN_IO))
        return frozen or busy
    if len(last) < len(ranks):
        busy = tuple(at for at in ranks if at.waits_ns is None)  # ahead of others that wait: in a phase that only it is in
        return busy or last
    fewest = min(at.waits for at in ranks)
    fewer = tuple(at for at in ranks if at.waits == fewest)
    return fewer if len(fewer) < len(ranks) else ()


def _standing(beat: Beat, facts: Facts | None, newest: Mapping[str, int]) -> Standing:
    place: dict[str, Any] = {"rank": beat.rank, "host": beat.who.get("host", ""), "phase": beat.phase, "step": beat.step}
    pulse = beat.pulse
    kernel = f"; {facts.words()}" if facts is not None and facts.state not in (GONE, STOPPED) else ""
    frames = [str(frame) for frame in pulse.get("frames", [])]
    last = f"last seen in {frames[0]}{_before_the_phase(beat)}" if frames else "no pulse yet"
    if not beat.who:
        return Standing(**place, where=NEVER_CAME, words="it has no heartbeat: it has not begun, or stands at its imports")
    if facts is not None and facts.state == GONE:
        done = beat.phase == END
        return Standing(**place, where=DONE if done else LOST, words=f"its process has ended; {last}")
    if facts is not None and facts.state == STOPPED:
        return Standing(**place, where=STANDS, words=f"its process is stopped (state T, as by SIGSTOP); {last}")
    silent_ns = newest.get(beat.who["boot_id"], 0) - pulse.get("at_ns", 0)
    if not pulse or silent_ns > SILENT_NS:
        words = f"no Python has run there for {silent_ns / 1e9:.0f} s; {last}{kernel}" if pulse else last
        return Standing(**place, where=IN_IO if facts is not None and facts.in_io else FROZEN, words=words)
    if pulse.get("wait_since_ns"):
        since = pulse["at_ns"] - pulse["wait_since_ns"]
        words = f"for {since / 1e9:.0f} s in {_caller(frames)}"
        return Standing(**place, where=IN_COLLECTIVE, words=words, waits=pulse["waits"], waits_ns=since)
    reads = beat.phase == DATA or (facts is not None and facts.in_io)
    words = f"{' <- '.join(frames[:3])}{kernel}"
    return Standing(**place, where=IN_IO if reads else IN_PYTHON, words=words, waits=pulse["waits"])


def _newest_pulses(beats: Any) -> dict[str, int]:
    """By boot id: clocks of two machines are never compared (F3)."""
    newest: dict[str, int] = {}
    for beat in beats:
        boot = beat.who.get("boot_id", "")
        newest[boot] = max(newest.get(boot, 0), beat.pulse.get("at_ns", 0))
    return newest


def _before_the_phase(beat: Beat) -> str:
    """How much earlier its last pulse is than the phase that it is in: what the pulse saw is none of that phase."""
    earlier_ns = beat.state.get("since_ns", 0) - beat.pulse.get("at_ns", 0)
    return f", {earlier_ns / 1e9:.1f} s before {beat.phase} began" if earlier_ns > 0 else ""


def _caller(frames: list[str]) -> str:
    """The first that is not the wait itself."""
    inner = ("wait (parallel/waits", "wrapper (", "wait_tensor (")
    return next((frame for frame in frames if not frame.startswith(inner)), "a collective")


def _place(at: Standing) -> str:
    if at.phase in (INIT, RESTORE):
        return at.phase
    return f"step {at.step + (at.phase in (DATA, COMPILE, STEP))} ({at.phase})"


def _listed(ranks: list[int]) -> str:
    few = ", ".join(map(str, ranks[:4])) + (f" and {len(ranks) - 4} more" if len(ranks) > 4 else "")
    return f"rank{'s' if len(ranks) > 1 else ''} {few}"


def _evidence(at: Standing, beat: Beat) -> dict[str, Any]:
    """Times of that machine's own clock."""
    told: dict[str, Any] = {"rank": at.rank, "host": at.host, "pid": beat.who.get("pid"), "phase": at.phase, "step": at.step}
    told |= {"where": at.where, "words": at.words, "moves": beat.state.get("moves"), "since_ns": beat.state.get("since_ns")}
    told |= {"pulse_ns": beat.pulse.get("at_ns"), "waits": beat.pulse.get("waits"), "rss": beat.pulse.get("rss")}
    return {key: value for key, value in told.items() if value is not None}
