"""Replica groups as the loop sees them: who takes part in the next step, and what a group does that does not lead.

    OneGroup     all ranks live and die together: every question is answered at once
    Groups       of several, one leads: it saves, evaluates, writes the records, and says when the run ends

    gather --> same groups as before ----------------------------------------------> step --> counts: all have updated
       |       others: the batch is divided anew among those that are there           `-----> does not: nobody has, gather again
       `-----> one is behind: handed parameters, moments and the numbers that go with them

Each group holds the whole state. The batch, the stream and the loss's one divisor never change: a group that is lost leaves its
sequences to the others, in the same step.
"""

from __future__ import annotations

import os
import threading
import time
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from torch import Tensor

from headway.base.errors import EXIT_OK, EnvironmentFault, HeadwayError, RunError
from headway.checkpoint.hand_over import Move, receive_state, send_state
from headway.checkpoint.saver import Saver
from headway.parallel.mesh import Axes
from headway.parallel.replica_groups import GroupPlace, Quorum, ReplicaGroups, group_of
from headway.rundir.heartbeats import COMPILE, DATA, END, STEP
from headway.train.feed import Replica, StepBatch
from headway.train.step import StepLost, StepResult

if TYPE_CHECKING:
    from headway.train.setup import TrainRun

NO_STEP = -1
"""Less than any group has done."""
GO_ON, IS_DONE = 0, 1
"""What the leading group says before a step."""
FAREWELL_SECONDS = 30.0
"""That the leading group waits for the others when the run ends."""
ASKED_SECONDS = 90.0
"""That another group which was asked to end waits for the leading one to say so. It has nothing to save."""


class OneGroup:
    """All ranks live and die together."""

    leads, is_behind = True, False  # behind: it takes over the state of another group, and restores none

    def gather(self, run: TrainRun) -> bool:
        """Before a step; False: there is none, since the leading group is done, or was asked to stop and is alone."""
        return True

    def step(self, run: TrainRun, batch: StepBatch) -> StepResult | None:
        """None: it does not count, and is done again by the groups that are left."""
        return run.sound.step(batch, run.schedule.rate(run.step), lambda: bool(run.stop.own))

    def end(self, run: TrainRun, digest: str) -> dict[str, Any]:
        """The leading group is done; what its last record tells of the others."""
        return {}

    def close(self) -> None:
        pass


class Groups(OneGroup):
    """This process's group among several."""

    def __init__(self, place: GroupPlace):
        self.place = place
        self.is_behind = place.start > 0  # the checkpoint that the segment began with may be gone by now
        self._exchange: ReplicaGroups | None = None
        self._quorum: Quorum | None = None
        self._repeats = False  # the newest step did not count
        self.waits_since: float | None = None  # monotonic, for the others; None: it computes

    @property
    def leads(self) -> bool:  # type: ignore[override]
        return self.place.group == 0

    def gather(self, run: TrainRun) -> bool:
        self.waits_since = time.monotonic()
        goes_on = self._gather(run)
        self.waits_since = None
        return goes_on

    def _gather(self, run: TrainRun) -> bool:
        before = self._quorum
        try:
            exchange = self._open(run)
            quorum = exchange.quorum(NO_STEP if self.is_behind else run.step)
        except EnvironmentFault:
            if run.stop.agree():  # the supervisor has died, and the lighthouse with it
                return False
            raise
        self._hand_over(run, exchange, quorum)
        if run.crew.anybody(exchange.told(GO_ON) == IS_DONE):
            self._all_digests(run, exchange, None)
            return False
        if self._repeats or quorum.heals_from is not None or before is None or before.names != quorum.names:
            self._divide(run, quorum)
        known = before.names if before is not None else self.place.all_names()
        if known != quorum.names:
            lost, back = set(known) - set(quorum.names), set(quorum.names) - set(known)
            gone, came = sorted(map(group_of, lost)), sorted(map(group_of, back))
            run.log.write("groups", step=run.step, groups=quorum.groups, lost=gone, back=came)
        run.log.mark("productive" if before is not None else "reconfigure")
        self._quorum, self._repeats = quorum, False
        return True

    def step(self, run: TrainRun, batch: StepBatch) -> StepResult | None:
        try:
            return super().step(run, batch)
        except StepLost as lost:
            self._repeats = True
            run.log.write("repeated", step=run.step + 1, reason=str(lost))
            return None

    def end(self, run: TrainRun, digest: str) -> dict[str, Any]:
        """Groups that cannot be told are ended with the attempt."""
        try:
            exchange = self._open(run)
            quorum = exchange.quorum(run.step, FAREWELL_SECONDS)
            self._hand_over(run, exchange, quorum)
            exchange.told(IS_DONE)
            found = self._all_digests(run, exchange, digest)
        except HeadwayError:
            return {}
        return {"groups": {str(group): one for group, one in zip(quorum.groups, found, strict=True)}} if found else {}

    def close(self) -> None:
        if self._exchange is not None:
            self._exchange.close()

    def _open(self, run: TrainRun) -> ReplicaGroups:
        """Once the state is there: from now on the others wait for this group."""
        if self._exchange is None:
            self._exchange = run.trainee.groups = ReplicaGroups(self.place, given_up=lambda: run.stop.own)
        return self._exchange

    def _divide(self, run: TrainRun, quorum: Quorum) -> None:
        """The batches from here on, among the ranks of these groups."""
        own = run.crew.replica
        run.refetch(Replica(quorum.index * own.count + own.index, len(quorum.groups) * own.count))

    def _hand_over(self, run: TrainRun, exchange: ReplicaGroups, quorum: Quorum) -> None:
        for to in quorum.hands_to:
            told = {"step": run.step, "updates": run.trainee.updates, "spikes": run.spikes.state()}
            send_state(_ticking(run, partial(exchange.send, to=to)), run.trainee.own_state(), told)
        if quorum.heals_from is None:
            assert not self.is_behind, "the leading group has a state"
            return
        move = _ticking(run, partial(exchange.receive, source=quorum.heals_from))
        facts = receive_state(move, run.trainee.own_state())
        run.step = run.first_step = facts["step"]
        run.trainee.updates = facts["updates"]
        run.trainee.optimizer.restore_step(run.trainee.updates)
        run.spikes.restore(facts["spikes"])
        run.trainee.compute.refresh()
        self.is_behind = False

    def _all_digests(self, run: TrainRun, exchange: ReplicaGroups, digest: str | None) -> list[str]:
        """Of the state, by group."""
        assert run.place is not None
        own = digest or run.crew.digest(run.trainee.saved_state(), run.place)
        return [one.decode() for one in exchange.gathered(own.encode())]


def _ticking(run: TrainRun, move: Move) -> Move:
    """A large state that is under way is no hang."""

    def moved(data: Tensor) -> None:
        run.heart.tick()
        move(data)

    return moved


class Unsaved(Saver):
    """Of a group that does not lead: the leading one's state is the same."""

    def __init__(self) -> None:
        self.on_wait = lambda: None

    def images(self, checkpoint: str | None) -> dict[str, memoryview]:
        return {}

    def attach(self, tensors: dict[str, Any]) -> None:
        pass

    def prepare(self) -> None:
        pass

    def close(self, *, stays: bool) -> None:
        pass


def follow(run: TrainRun) -> None:
    """What a group does that does not lead: it computes, adds and obeys. No records, no saves, no evaluations."""
    assert isinstance(run.groups, Groups), "another group than the leading one"
    threading.Thread(target=_leave_in_the_end, args=(run, run.groups), daemon=True, name="farewell").start()
    run.heart.enter(DATA, run.step)
    while run.groups.gather(run):
        batch, waited_ns = run.batches().get(run.step)
        run.heart.enter(COMPILE if run.is_new_shape else STEP, run.step)
        result = run.groups.step(run, batch)
        if result is None:
            continue
        run.step += 1
        run.heart.stepped(run.step, waited_ns)
        run.spikes.look(run.step, result)
        run.sound.after(run.step, result.own)
        run.heart.enter(DATA, run.step)
    run.heart.enter(END, run.step)
    run.crew.leave()


def _leave_in_the_end(run: TrainRun, groups: Groups) -> None:
    """A quorum that nobody serves any more cannot be left."""
    while not run.stop.own:
        time.sleep(1.0)
    asked = time.monotonic()
    while (since := groups.waits_since) is None or time.monotonic() - max(since, asked) < ASKED_SECONDS:
        time.sleep(1.0)
    os._exit(EXIT_OK)


def inner_axes(axes: Axes, place: GroupPlace | None) -> Axes:
    """Of one group. RunError where the segment's groups are others than the layout's replicas (our own bug)."""
    if place is None:
        return axes
    if axes.dp_replicate != place.groups:
        raise RunError(f"{place.groups} replica groups were started for the layout {axes}")
    return replace(axes, dp_replicate=1)
