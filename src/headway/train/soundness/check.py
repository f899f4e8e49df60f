"""The loop's part of soundness: which check is due, what is on record of it, and the error that ends the segment.

    step        repeated every so many steps (``repeat``); the time is validation replay
    after       what this rank computed is kept until copies were found equal; copies compared every so many steps
    compare     before a save too: what is saved has been found sound

After a finding the next attempt compares copies after each step that it repeats, and says where the difference began (``trail``).
"""

from __future__ import annotations

import json
import socket
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from headway.base.digests import canonical_json
from headway.base.errors import SilentCorruption
from headway.checkpoint.agreement import Disagreement, disagreement, has_copies
from headway.checkpoint.checksum import checksums
from headway.parallel.replica_groups import GroupPlace, ReplicaGroups
from headway.rundir.layout import RunDirectory
from headway.rundir.metrics import StepLog
from headway.rundir.segments import Segment
from headway.train.crew import Crew
from headway.train.feed import StepBatch
from headway.train.soundness.culprit import Difference, culprits, difference, first_parameter
from headway.train.soundness.finding import REPEAT, REPLICAS, who, who_words
from headway.train.soundness.repeat import AskedOnce, Kept, NotedStep, noted_step
from headway.train.soundness.trail import Search, leave_trail, locate, trail_file
from headway.train.step import StepResult, train_step
from headway.train.trainee import Trainee

MOST_TENSORS = 8
"""Of those that differ, in the evidence."""
WAY_OUT = (
    "training goes on from before that; have memory and processor of that machine checked, and leave it out if it happens again"
)


@dataclass(frozen=True, kw_only=True)
class CheckPolicy:
    """Steps between two checks; 0: none."""

    compare_every: int = 0
    repeat_every: int = 0

    @staticmethod
    def of(deployment: dict[str, Any]) -> CheckPolicy:
        """From a resolved deployment; runs that were created before the section existed have no checks."""
        section = deployment.get("supervise", {}).get("corruption", {})
        return CheckPolicy(compare_every=section.get("compare_every", 0), repeat_every=section.get("repeat_every", 0))


class Soundness:
    """``checked``: by kind of check, the last step after which it found all sound."""

    def __init__(self, policy: CheckPolicy, trainee: Trainee, crew: Crew, log: StepLog):
        self._policy, self._trainee, self._crew, self._log = policy, trainee, crew, log
        self.checked = {REPLICAS: 0, REPEAT: 0}
        self._losses: dict[int, float] = {}
        self._compared, self._copies = 0, False
        self._groups_agreed = 0  # the last step after which all replica groups held the same
        self._search: Search | None = None

    def begin(self, run: RunDirectory, segment: Segment, step: int, checked: dict[str, int]) -> None:
        """Once the state of ``step`` is restored; ``checked``: as its checkpoint says."""
        self._run, self._segment = run, segment
        self.checked[REPEAT] = checked.get(REPEAT, step)  # where no step was repeated yet, nothing speaks against this state
        self.checked[REPLICAS] = self._compared = step  # it was read once, and sent to all that hold it
        self._groups_agreed = step
        if self._policy.compare_every and self._crew.together:
            self._copies = self._crew.anybody(has_copies(self._trainee.state()))
        if self._copies:
            search = Search.begin(run, segment, self._crew.rank)
            self._search = None if self._crew.anybody(search is None) else search

    def stated(self) -> dict[str, int]:
        """For a checkpoint: of the checks that are made."""
        made = {REPLICAS: self._copies, REPEAT: bool(self._policy.repeat_every)}
        return {kind: step for kind, step in self.checked.items() if made[kind]}

    # --- copies

    def after(self, step: int, own_loss: float) -> None:
        """A step is done and on record."""
        if self.checked[REPEAT] == step:
            self._log.write("check", step=step, by=REPEAT)
        if self._policy.compare_every and step % self._policy.compare_every == 0 and self._trainee.groups is not None:
            self._compare_groups(step, self._trainee.groups)
        if not self._copies:
            return
        self._losses[step] = own_loss
        search = self._search
        if search is not None:
            search.see(step, own_loss)
        if step % self._policy.compare_every == 0 or search is not None:
            self.compare(step)
        if search is not None and step >= search.last:
            self._tell_where(search, step)
            self._search = None

    def compare(self, step: int) -> None:
        """SilentCorruption on all ranks where copies differ."""
        if not self._copies or step == self._compared:
            return
        found = disagreement(self._trainee.state())
        if found is not None:
            raise self._copies_differ(step, found)
        self.checked[REPLICAS] = self._compared = step
        self._losses.clear()
        self._log.write("check", step=step, by=REPLICAS)

    def _compare_groups(self, step: int, groups: ReplicaGroups) -> None:
        """Rank i of all replica groups holds the same. SilentCorruption in the leading one, whose end is that of all."""
        own = checksums(self._trainee.own_state())
        told = groups.gathered(np.array([own[name] for name in sorted(own)], dtype=np.int64).tobytes())
        rows = [np.frombuffer(one, dtype=np.int64) for one in told]  # none where a group was lost this moment
        differing = [name for name, *numbers in zip(sorted(own), *rows, strict=False) if len(set(numbers)) > 1]
        said = {"names": differing[:MOST_TENSORS], "odd": [groups.members[at] for at in minority(told)]}
        found = [json.loads(words) for words in self._crew.told_by_all(canonical_json(said))]
        names = sorted({name for one in found for name in one["names"]}, key=lambda name: (not name.startswith("param/"), name))
        if not names:
            self._groups_agreed = step if told else self._groups_agreed
        elif groups.leads:
            suspects = sorted({group for one in found for group in one["odd"]}) or groups.members
            raise self._groups_differ(step, names, suspects, groups.place)

    def _groups_differ(self, step: int, names: list[str], suspects: list[int], place: GroupPlace) -> SilentCorruption:
        ranks = [group * place.world + rank for group in suspects for rank in range(place.world)]
        hosts = [socket.gethostname()] * (place.groups * place.world)  # groups are of one machine
        parameter, agreed = names[0].partition("/")[2], self._groups_agreed
        words = (
            f"after step {step} the replica groups' copies of {parameter} are not equal: {who_words(ranks, hosts)} has other bits"
        )
        facts = {"by": REPLICAS, "step": step, "agreed": agreed, "parameter": parameter, "tensors": names[:MOST_TENSORS]}
        rule = f"replica groups hold the same bits; after step {agreed} they did"
        return SilentCorruption(facts | who(ranks, hosts) | {"words": words}, rule, WAY_OUT)

    def _copies_differ(self, step: int, found: Disagreement) -> SilentCorruption:
        hosts, agreed = self._hosts(), self.checked[REPLICAS]
        ranks, tensors = found.odd or found.holders, sorted(found.names, key=lambda name: not name.startswith("param/"))
        parameter, others = tensors[0].partition("/")[2], len(tensors) - 1
        mine = {name: t for name, t in self._trainee.own_state().items() if name in tensors[:MOST_TENSORS]}
        leave_trail(trail_file(self._run, self._segment.id, self._crew.rank), self._losses, checksums(mine))
        self._crew.anybody(False)  # all have left theirs before the first error ends everybody
        more = f", nor those of {others} other tensors" if others else ""
        words = f"after step {step} the copies of {parameter} are not equal{more}: {who_words(ranks, hosts)} has other bits"
        facts = {"by": REPLICAS, "step": step, "agreed": agreed, "parameter": parameter, "tensors": tensors[:MOST_TENSORS]}
        rule = f"ranks that hold the same values hold the same bits; after step {agreed} they did"
        return SilentCorruption(facts | who(ranks, hosts) | {"words": words}, rule, WAY_OUT)

    def _tell_where(self, search: Search, step: int) -> None:
        """The leader writes what the repetition has shown."""
        own = self._trainee.own_state()
        now = checksums({name: own[name] for name in search.checksums})
        said = {"first": search.first, "same": now == search.checksums and step == search.last}
        told = [json.loads(words) for words in self._crew.told_by_all(canonical_json(said))]
        where, hosts = locate(search, [one["first"] for one in told], [one["same"] for one in told]), self._hosts()
        host = None if where.rank is None else hosts[where.rank]
        found: dict[str, Any] = {"of_segment": search.segment, "parameter": search.parameter, "first_step": where.first_step}
        self._log.write("located", step=step, rank=where.rank, host=host, **found)

    # --- repetition

    def step(self, batch: StepBatch, rate: float, wish: Callable[[], bool]) -> StepResult:
        """As ``train_step``; where it is due, carried out again and compared. SilentCorruption on all ranks where it differs."""
        step, every = batch.place.step + 1, self._policy.repeat_every
        if not every or step % every:
            return train_step(self._trainee, batch, rate, wish)
        asked = AskedOnce(wish)
        kept = Kept(self._trainee)
        self._trainee.compute.refresh()  # nothing is left gathered of what came before: all runs exchange the same
        self._log.mark("validation_replay")
        first = noted_step(self._trainee, batch, rate, asked)
        self._log.mark("productive")
        kept.restore(self._trainee)
        again = noted_step(self._trainee, batch, rate, asked)
        differs = self._crew.anybody(differ(first, again))
        if differs:
            kept.restore(self._trainee)
            raise self._results_differ(step, first, again, noted_step(self._trainee, batch, rate, asked))
        self.checked[REPEAT] = step
        self._log.mark("validation_replay")  # its row comes after that of the step
        return first.result

    def _results_differ(self, step: int, first: NotedStep, again: NotedStep, third: NotedStep) -> SilentCorruption:
        own = difference(first.notes, again.notes)
        said = {"difference": vars(own), "first": not differ(first, third), "again": not differ(again, third)}
        told = [json.loads(words) for words in self._crew.told_by_all(canonical_json(said))]
        found = {rank: Difference(**one["difference"]) for rank, one in enumerate(told)}
        ranks, hosts, agreed = culprits(found), self._hosts(), self.checked[REPEAT]
        tensors = [name for rank in ranks for name in found[rank].names]
        parameter = first_parameter(tensors)
        wrong = "no two of three runs agree"
        if all(one["again"] for one in told):
            wrong = "a third run agrees with the repetition: the step was wrong"
        elif all(one["first"] for one in told):
            wrong = "a third run agrees with the step: the repetition was wrong"
        where = f" in {parameter}" if parameter else ""
        words = f"step {step} gave other bits when it was repeated, first{where} on {who_words(ranks, hosts)}; {wrong}"
        facts = {"by": REPEAT, "step": step, "agreed": agreed, "parameter": parameter, "tensors": tensors[:MOST_TENSORS]}
        since = f"the last that was repeated alike is step {agreed}" if agreed else "none was repeated before"
        rule = f"a step is a function of the state before it, and its bits repeat; {since}"
        return SilentCorruption(facts | who(ranks, hosts) | {"words": words}, rule, WAY_OUT)

    def _hosts(self) -> list[str]:
        return [name.decode(errors="replace") for name in self._crew.told_by_all(socket.gethostname().encode())]


def minority(copies: Sequence[bytes]) -> list[int]:
    """Places of those that differ from what more than half of them have; empty: all agree, or no more than half do."""
    (most, count), *_ = Counter(copies).most_common(1) or [(b"", 0)]
    return [at for at, copy in enumerate(copies) if copy != most] if 2 * count > len(copies) else []


def differ(one: NotedStep, other: NotedStep) -> bool:
    return difference(one.notes, other.notes).first is not None
