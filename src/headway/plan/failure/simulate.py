"""Monte Carlo of a whole run: many runs side by side in numpy, each jumping from event to event.

    piece   |--restart--|------ running: progress, replay, writes ------| event
    event   finish | a fault strikes | a silent or slow fault is found | a planned pause | a node comes back

Faults come at a constant rate while a job trains, writes or restarts, not while it waits or is being diagnosed. After a fault
that stops the job: detection, then waiting for nodes (or shrinking), then a restart from the newest checkpoint that
outlived the fault. Where the last event of a run would be its end but wrong arithmetic is still undiscovered, the final
evaluation finds it. Saves of stragglers and pauses lose nothing. The same seed gives the same runs.

    one tier, no detection, no nodes   Restarts.STRUCK: the mean is Daly's exact formula
                                       Restarts.SAFE: formulas.failures.wall_seconds_safe_restarts

Time and memory are bounded: a run with very many events is put together from parts that are simulated side by side, and
fewer such runs are simulated; where so much happens, runs differ little.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from headway.formulas.failures import Interruptions, wall_seconds_daly
from headway.plan.failure.checkpoints import Flags, Floats, Ints, Piece, Shelf, Writes
from headway.plan.failure.faults import Kind, Restarts, SimulatedRun, Tier
from headway.plan.failure.nodes import TICK, NodePool
from headway.plan.failure.outcome import CATEGORIES, Outcome

FINISH, STRIKE, PAUSE, FOUND, EVICT, RETURN = range(6)


MOST_EVENTS = 1_200_000
"""Of all runs together: a second or two of one core."""
PART_EVENTS = 2_000
"""A run with twice as many is simulated in parts. Each begins with all nodes and a fresh checkpoint: that is wrong once in so
many events."""
LEAST_RUNS = 20


def simulate(run: SimulatedRun, *, runs: int = 1000, seed: int = 0) -> Outcome:
    """``runs`` independent histories of ``run``; fewer where more than ``MOST_EVENTS`` would happen in them."""
    events = likely_events(run)
    runs = min(runs, max(LEAST_RUNS, int(MOST_EVENTS / max(events, 1.0))))
    parts = max(1, int(events / PART_EVENTS))
    part = replace(run, useful_seconds=run.useful_seconds / parts)
    many = _Runs(part, runs * parts, seed)
    while many.advance():
        pass
    return joined(many.outcome(), run, parts)


def likely_events(run: SimulatedRun) -> float:
    """Of one history: faults over the wall time that is likely, nodes that a shrunken run takes back, and planned pauses."""
    wall = min(likely_seconds(run, run.tiers[-1]), run.give_up_after * run.useful_seconds)
    per_fault = 1 if run.nodes.shrunken_pace is None else 2
    return per_fault * wall / run.between_seconds + sum(wall / pause.every_seconds for pause in run.pauses)


def likely_seconds(run: SimulatedRun, tier: Tier) -> float:
    """Daly's exact formula with checkpoints in ``tier`` alone, and every fault found at once; inf: practically never."""
    if np.isinf(run.between_seconds):
        return run.useful_seconds
    restart = run.restart_seconds + tier.restore_seconds
    at = Interruptions(run.between_seconds, restart, tier.every_seconds, tier.save_seconds)
    return wall_seconds_daly(run.useful_seconds, at) or np.inf


def is_hopeless(run: SimulatedRun) -> bool:
    """Whether by Daly's formula the run is given up, if every fault left the checkpoints of the best tier and a restart were as
    short as any: no history need be simulated to know."""
    restart = run.restart_seconds if run.nodes.shrunken_pace is None else 0.0
    best = replace(run, restart_seconds=restart)
    return min(likely_seconds(best, tier) for tier in run.tiers) > run.give_up_after * run.useful_seconds


def joined(outcome: Outcome, run: SimulatedRun, parts: int) -> Outcome:
    """Runs that consist of ``parts`` runs of ``outcome`` each: times and counts add up, and all parts have to end."""
    if parts == 1:
        return outcome

    def add(values: np.ndarray) -> np.ndarray:
        return values.reshape(*values.shape[:-1], -1, parts).sum(axis=-1)

    return Outcome(
        run=run,
        wall_seconds=add(outcome.wall_seconds),
        finished=np.logical_and.reduce(outcome.finished.reshape(-1, parts), axis=-1),
        spent={name: add(seconds) for name, seconds in outcome.spent.items()},
        stops={name: add(count) for name, count in outcome.stops.items()},
        restores=add(outcome.restores),
        shrinks=add(outcome.shrinks),
        parts=parts,
    )


class _Runs:
    """State of all simulated runs: one entry per run in every array."""

    def __init__(self, run: SimulatedRun, runs: int, seed: int):
        self.run = run
        self.random = np.random.Generator(np.random.Philox(seed))
        self.writes, self.shelf, self.nodes = Writes(run), Shelf(run, runs), NodePool(run, runs)
        self.now: Floats = np.zeros(runs)
        self.position: Floats = np.zeros(runs)  # useful seconds that the state in memory holds
        self.reached: Floats = np.zeros(runs)  # furthest position ever: what lies below is replay
        self.restarting: Floats = np.zeros(runs)  # seconds of restart still to come
        self.pause_every: Floats = np.array([[pause.every_seconds] for pause in run.pauses]).reshape(-1, 1)
        self.pause_seconds: Floats = np.array([[pause.seconds] for pause in run.pauses]).reshape(-1, 1)
        self.next_pause: Floats = np.tile(self.pause_every, runs)  # rows are kinds of pauses
        self.wrong_from: Floats = np.full(runs, np.inf)  # position of undiscovered corruption
        self.found_at: Floats = np.full(runs, np.inf)
        self.slow_pace: Floats = np.ones(runs)
        self.evict_at: Floats = np.full(runs, np.inf)
        self.pending = np.zeros((2, runs), dtype=np.int64)  # classes of the silent and the slow fault under way
        self.finished: Flags = np.zeros(runs, dtype=bool)
        self.live: Ints = np.arange(runs)
        self.spent = {name: np.zeros(runs) for name in CATEGORIES}
        self.stops = np.zeros((len(run.faults), runs), dtype=np.int64)
        self.restores = np.zeros((len(run.tiers) + 1, runs), dtype=np.int64)
        self.shrinks = np.zeros(runs, dtype=np.int64)
        self._read_classes()

    def _read_classes(self) -> None:
        faults, tiers = self.run.faults, self.run.tiers
        self.shares = np.cumsum([fault.share for fault in faults])
        self.kinds = np.array([list(Kind).index(fault.kind) for fault in faults])
        self.taken = np.array([fault.nodes for fault in faults])
        self.detection = np.array([fault.detection_seconds for fault in faults])
        self.paces = np.array([fault.pace for fault in faults])
        self.survival = np.array([[tier.survives.get(fault.name, 1.0) for fault in faults] for tier in tiers])

    # --- one event of every run ---------------------------------------------------------------------------------------

    def advance(self) -> bool:
        """One piece and its event in every run that is not done; False when all are."""
        rows = self.live
        if not len(rows):
            return False
        kinds = self._classes(len(rows))
        pace = self.slow_pace[rows] * self.nodes.pace(rows)
        times = self._deadlines(rows, pace)
        event = np.argmin(times, axis=0)
        seconds = times[event, np.arange(len(rows))]
        stops = (event == STRIKE) & (self.kinds[kinds] == STOP)
        self._run(rows, pace, seconds, event, stops)
        self._react(rows, event, kinds, stops)
        late = self.now[rows] > self.run.give_up_after * self.run.useful_seconds
        self.live = rows[~(self.finished[rows] | late)]
        return True

    def _classes(self, count: int) -> Ints:
        """The class of the next fault of each run."""
        return np.minimum(np.searchsorted(self.shares, self.random.random(count), side="right"), len(self.shares) - 1)

    def _deadlines(self, rows: Ints, pace: Floats) -> Floats:
        """Seconds from now to each kind of event; all but a strike wait for the restart to end."""
        restart, now = self.restarting[rows], self.now[rows]
        strike = self.random.exponential(size=len(rows)) * self.run.between_seconds
        if self.run.restarts is Restarts.SAFE:
            strike += restart
        done = self.writes.done_at(self.position[rows])
        finish = restart + self.writes.seconds_to_end(self.position[rows], done, pace)
        returns = self.nodes.next_fill(rows) if self.nodes.step else np.full(len(rows), np.inf)
        pause = self.next_pause[:, rows].min(axis=0, initial=np.inf)
        due = (pause, self.found_at[rows], self.evict_at[rows], returns)
        return np.stack([finish, strike, *(np.maximum(restart, at - now) for at in due)])

    def _run(self, rows: Ints, pace: Floats, seconds: Floats, event: Ints, stops: Flags) -> None:
        """Restart and run up to the event, and account for the time."""
        restart = np.minimum(seconds, self.restarting[rows])
        before = self.writes.done_at(self.position[rows])
        piece = self.writes.advance(self.position[rows], pace, seconds - restart, ~stops)
        ends = np.flatnonzero(event == FINISH)
        _put(piece, ends, self.writes.finish(self.position[rows[ends]], before[ends], pace[ends]))
        idle = seconds <= self.restarting[rows]  # still restarting, or just done: nothing moves
        _put(piece, np.flatnonzero(idle & (event != FINISH)), self._nothing(rows, before, idle & (event != FINISH)))
        self._shelve(rows, before, piece.done)
        self.restarting[rows] -= restart
        self._account(rows, restart, pace, piece)

    def _nothing(self, rows: Ints, before: Ints, idle: Flags) -> Piece:
        zeros = np.zeros(int(idle.sum()))
        return Piece(self.position[rows[idle]], before[idle], zeros, zeros)

    def _shelve(self, rows: Ints, before: Ints, after: Ints) -> None:
        counts = self.writes.counts
        self.shelf.written(rows, counts[:, before], counts[:, after])

    def _account(self, rows: Ints, restart: Floats, pace: Floats, piece: Piece) -> None:
        start, end, reached = self.position[rows], piece.position, self.reached[rows]
        replayed = np.clip(np.minimum(end, reached) - start, 0.0, None)
        self.spent["restart"][rows] += restart
        self.spent["writes"][rows] += piece.writing
        self.spent["replay"][rows] += replayed
        self.spent["productive"][rows] += (end - start) - replayed
        extra = np.maximum(piece.elapsed - piece.writing - (end - start), 0.0)
        self.spent["degraded"][rows] += np.where(pace < 1, extra, 0.0)  # at full pace it is rounding
        self.now[rows] += restart + piece.elapsed
        self.position[rows] = end
        self.reached[rows] = np.maximum(reached, end)

    # --- what follows from an event -----------------------------------------------------------------------------------

    def _react(self, rows: Ints, event: Ints, kinds: Ints, stops: Flags) -> None:
        wrong_at_end = (event == FINISH) & np.isfinite(self.wrong_from[rows])
        self.finished[rows[(event == FINISH) & ~wrong_at_end]] = True
        found, evict = (event == FOUND) | wrong_at_end, event == EVICT
        struck = event == STRIKE
        self._lurk(rows[struck & ~stops], kinds[struck & ~stops])
        self._pause(rows[event == PAUSE])
        self._grow(rows[event == RETURN])
        self._save_now(rows[evict])
        classes = np.where(found, self.pending[0, rows], np.where(evict, self.pending[1, rows], kinds))
        down = stops | found | evict
        self._stop(rows[down], classes[down], found[down], stops[down])

    def _lurk(self, rows: Ints, classes: Ints) -> None:
        """A silent or a slow fault begins; a second of its kind changes nothing before the first is found."""
        for kind, until in ((SILENT, self.found_at), (SLOW, self.evict_at)):
            new = (self.kinds[classes] == kind) & np.isinf(until[rows])
            hit, of = rows[new], classes[new]
            until[hit] = self.now[hit] + self.detection[of]
            self.pending[kind - 1, hit] = of
            if kind == SILENT:
                self.wrong_from[hit] = self.position[hit]
            else:
                self.slow_pace[hit] = self.paces[of]

    def _pause(self, rows: Ints) -> None:
        """Save, stand still, restart. Pauses that are due together are one, as long as the longest."""
        if not len(rows):
            return
        planned = self.next_pause[:, rows]
        due = planned <= np.maximum(self.now[rows], planned.min(axis=0)) + TICK
        self._save_now(rows)
        self._spend("planned", rows, np.max(np.where(due, self.pause_seconds, 0.0), axis=0))
        self.nodes.fill(rows, self.now[rows])
        self.next_pause[:, rows] += np.where(due, self.pause_every, 0.0)
        self.restarting[rows] = self.run.restart_seconds + self.run.tiers[-1].restore_seconds

    def _save_now(self, rows: Ints) -> None:
        """A planned save at the present position, in the last tier."""
        self._spend("writes", rows, np.full(len(rows), self.run.tiers[-1].save_seconds))
        self.shelf.extra[rows] = self.position[rows]

    def _grow(self, rows: Ints) -> None:
        """A shrunken run takes back what has been repaired."""
        self._spend("reconfiguration", rows, np.full(len(rows), self.run.nodes.reconfigure_seconds))
        self.nodes.fill(rows, self.now[rows])

    def _stop(self, rows: Ints, classes: Ints, found: Flags, struck: Flags) -> None:
        """Detection, nodes, restore: the job stands until ``restarting`` has passed."""
        self.stops[classes, rows] += 1
        self.nodes.break_nodes(rows, self.taken[classes], self.now[rows])
        self._spend("detection", rows, np.where(struck, self.detection[classes], 0.0))
        shrunk = self._find_nodes(rows, self.taken[classes] > 0)
        survives = self.random.random((len(self.run.tiers), len(rows))) < self.survival[:, classes]
        sound = np.where(found, self.wrong_from[rows], np.inf)
        restored = self.shelf.restore_from(rows, survives, sound)
        self.restores[restored.tier, rows] += 1
        self.shrinks[rows] += shrunk
        self.position[rows] = restored.position
        self.restarting[rows] = np.where(shrunk, 0.0, self.run.restart_seconds) + restored.seconds
        healed = rows[found | (restored.position <= self.wrong_from[rows])]
        self.wrong_from[healed] = self.found_at[healed] = np.inf
        replaced = rows[~found & ~struck]
        self.slow_pace[replaced], self.evict_at[replaced] = 1.0, np.inf

    def _find_nodes(self, rows: Ints, lost: Flags) -> Flags:
        """Wait for nodes, or go on with fewer where that is faster; True where the job shrank."""
        nodes, now = self.nodes, self.now[rows]
        nodes.fill(rows, now)
        whole = nodes.ready_for(rows, 0)
        shrinks = lost & (whole - now > self.run.nodes.reconfigure_seconds) & bool(nodes.step)
        stays = ~lost & bool(nodes.step)  # a process died in a shrunken job: nothing to wait for
        ready = np.where(shrinks | stays, nodes.ready_for(rows, nodes.most_missing), whole)
        self._spend("waiting", rows, np.maximum(ready - now, 0.0))
        nodes.fill(rows, self.now[rows])
        self._spend("reconfiguration", rows, np.where(shrinks, self.run.nodes.reconfigure_seconds, 0.0))
        return shrinks

    def _spend(self, category: str, rows: Ints, seconds: Floats) -> None:
        self.spent[category][rows] += seconds
        self.now[rows] += seconds

    def outcome(self) -> Outcome:
        names = tuple(fault.name for fault in self.run.faults)
        stops = dict(zip(names, self.stops, strict=True))
        return Outcome(
            run=self.run,
            wall_seconds=self.now,
            finished=self.finished,
            spent=self.spent,
            stops=stops,
            restores=self.restores,
            shrinks=self.shrinks,
        )


STOP, SILENT, SLOW = (list(Kind).index(kind) for kind in (Kind.STOP, Kind.SILENT, Kind.SLOW))


def _put(piece: Piece, places: Ints, part: Piece) -> None:
    """Overwrite some entries of ``piece``."""
    piece.position[places], piece.done[places] = part.position, part.done
    piece.writing[places], piece.elapsed[places] = part.writing, part.elapsed
