"""Where a restart goes on from when there is a mirror: the newest admissible checkpoint, here or there, that is whole.

    newest first   here               there
    g4-s00080      flipped bit        whole      chosen: fetched; the damaged one is kept beside it as g4-s00080.damaged-1
    g4-s00060      missing            damaged    refused for both reasons
    g2-s00040      whole                         chosen if nothing above was; there is not even asked

A mirror that cannot be reached costs what only it has, with a note, while something here is whole. With nothing whole here it
is an EnvironmentFault: what the mirror may hold is no reason to begin anew. Names there come from this run's own records
too, since listings may be old, and count by the same rule of the chain.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count

from headway.base.errors import EnvironmentFault, RunError, from_os_error
from headway.base.files import fsync_directory
from headway.base.records import append_stamped
from headway.rundir.layout import RunDirectory
from headway.rundir.segments import Segment, is_admissible
from headway.store.admissible import Choice, choose, deleted_names, list_checkpoints, reason_against, recorded_names
from headway.store.mirror.fetch import clear_downloads, settle
from headway.store.mirror.mirror import Mirror, MirrorFault
from headway.store.names import REJECTED, CheckpointName, parse_name
from headway.store.suspects import all_suspect, suspicion

NOT_THERE, OUT_OF_REACH = "not there", "out of reach"
DELETED_HERE = "deleted by retention"


@dataclass(frozen=True, kw_only=True)
class ChoiceAnywhere(Choice):
    """``checkpoint`` lies under checkpoints/ now, wherever it was. ``notes``: for people, such as a mirror out of reach."""

    fetched: bool = False
    notes: tuple[str, ...] = ()


def choose_with_mirror(
    run: RunDirectory, chain: list[Segment], mirror: Mirror, explicit: str | None = None, refused: Mapping[str, str] | None = None
) -> ChoiceAnywhere:
    """As ``choose``, over both places; a checkpoint that only the mirror has whole is fetched. What is ``refused`` is in neither.

    RunError as there; EnvironmentFault when nothing here can be used and the mirror cannot be asked, or this disk is full.
    """
    search = _Search(run, chain, mirror, dict(refused or {}))
    choice = search.exactly(explicit) if explicit is not None else search.newest()
    clear_downloads(run.checkpoints)
    return choice


@dataclass(frozen=True)
class _Refusal:
    """Why neither copy can be used."""

    here: str
    there: str

    @property
    def explained(self) -> bool:
        """Nobody misses what retention deleted here, unless a bad copy of it lies there."""
        return self.here == DELETED_HERE and self.there in (NOT_THERE, OUT_OF_REACH)

    def __str__(self) -> str:
        return f"{self.here}; on the mirror: {self.there}"


@dataclass
class _Search:
    """One search, and what it has found out so far."""

    run: RunDirectory
    chain: list[Segment]
    mirror: Mirror
    refused: dict[str, str] = field(default_factory=dict)
    rejected: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    fetched: bool = False
    fault: MirrorFault | None = None  # once it failed, the mirror is not asked again: each time would cost its retries

    def newest(self) -> ChoiceAnywhere:
        names = self._listed()
        if not self.chain:
            return self._without_segments(names)
        present = {info.name for info in list_checkpoints(self.run, self.chain) if info.committed}
        recorded = recorded_names(self.run, self.chain)
        deleted = deleted_names(self.run) - present
        for name in self._on_chain(present | recorded | set(names)):
            refusal = self._refuse(str(name), DELETED_HERE if str(name) in deleted else None)
            if refusal is None:
                return self._choice(name)
            if not refusal.explained:
                self.rejected.append({"checkpoint": str(name), "reason": str(refusal)})
        if all_suspect(self.run, self._on_chain(present | recorded | set(names))):
            return self._choice(None)
        return self._nothing(bool(self._on_chain(recorded)))

    def exactly(self, explicit: str) -> ChoiceAnywhere:
        name, here = parse_name(explicit), (self.run.checkpoints / explicit).is_dir()
        admissible = name is not None and is_admissible(self.chain, name.segment, name.step)
        if name is not None and not admissible and not here:
            raise RunError(
                f"checkpoint {explicit} is not on the current chain",
                "a checkpoint counts when its segment is on the chain and the next segment went on at or after its step",
            )
        if name is not None and admissible:
            refusal = self._refuse(explicit, None)
            if refusal is None:
                return self._choice(name)
            if self.fault is not None:
                raise self._unreachable(f"checkpoint {explicit} cannot be used here: {refusal.here}")
            if refusal.there != NOT_THERE:
                raise RunError(f"checkpoint {explicit} cannot be used: {refusal}", f"mirror: {self.mirror.url}")
        return ChoiceAnywhere(**vars(choose(self.run, self.chain, explicit)))  # raises, and lists what could be used

    def _listed(self) -> list[str]:
        try:
            return self.mirror.list()
        except MirrorFault as fault:
            self._note(fault)
            return []

    def _on_chain(self, names: set[str]) -> list[CheckpointName]:
        """Admissible, newest first."""
        parsed = filter(None, map(parse_name, names))
        return sorted((name for name in parsed if is_admissible(self.chain, name.segment, name.step)), reverse=True)

    def _refuse(self, name: str, absent_here: str | None) -> _Refusal | None:
        """None when it is here and whole now, fetched if need be. ``absent_here``: why it is known not to be."""
        parsed = parse_name(name)
        if reason := self.refused.get(name) or (suspicion(self.run)(parsed) if parsed is not None else ""):
            return _Refusal(reason, "not asked")
        here = absent_here or reason_against(self.run, self.chain, name)
        there = self._fetch(name, here) if here else ""
        return _Refusal(here, there) if there else None

    def _choice(self, name: CheckpointName | None) -> ChoiceAnywhere:
        return ChoiceAnywhere(
            checkpoint=str(name) if name else None,
            segment=name.segment if name else None,
            step=name.step if name else 0,
            rejected=self.rejected,
            fetched=self.fetched,
            notes=tuple(self.notes),
        )

    def _fetch(self, name: str, reason: str) -> str:
        """Bring the mirror's copy here, in the place of one that is no good; empty when it is here and whole."""
        if self.fault is not None:
            return OUT_OF_REACH
        try:
            if not self.mirror.has(name):
                return NOT_THERE
            hidden = self.mirror.download(name, self.run.checkpoints)
        except MirrorFault as fault:
            self._note(fault)
            return OUT_OF_REACH
        except RunError as error:
            return error.problems[0].seen
        aside = _move_aside(self.run, name, reason)
        settle(hidden, self.run.checkpoints)
        if wrong := reason_against(self.run, self.chain, name):  # of another run, or damaged again by this disk
            _move_aside(self.run, name, f"from the mirror: {wrong}")
            return wrong
        self.notes.append(f"{name} was fetched from {self.mirror.url}; here: {reason}")
        self.fetched = True
        if aside is not None:
            self.rejected.append({"checkpoint": aside, "reason": f"{reason}; {name} was fetched from the mirror"})
        return ""

    def _note(self, fault: MirrorFault) -> None:
        self.fault = fault
        self.notes.append(f"the mirror {self.mirror.url} is out of reach: {fault.problems[0].seen}")

    def _nothing(self, recorded: bool) -> ChoiceAnywhere:
        lines = [f"{entry['checkpoint']}: {entry['reason']}" for entry in self.rejected]
        if self.fault is not None:
            raise self._unreachable("no checkpoint can be used here" + (": " + "; ".join(lines) if lines else ""))
        if lines or recorded:
            raise RunError(
                "no checkpoint of this run can be used: " + ("; ".join(lines) or "all that were recorded are gone"),
                "a run with committed checkpoints is never started again from scratch, nor goes on from those of another",
                f"restore one of them under {self.run.checkpoints} from a copy, or start a new run; mirror: {self.mirror.url}",
            )
        return self._choice(None)

    def _without_segments(self, names: list[str]) -> ChoiceAnywhere:
        """Nothing is admissible without a chain; ``choose`` refuses where checkpoints lie here all the same."""
        choose(self.run, self.chain)
        if self.fault is not None:
            problem = self.fault.problems[0]
            raise EnvironmentFault(
                f"the mirror {self.mirror.url} is out of reach: {problem.seen}",
                "a run starts when it is known that none of its checkpoints lies there",
                f"{problem.way_out}; or run without checkpoints.mirror",
            )
        if names:
            rule = f"mirror: {self.mirror.url}; path: {self.run.segments}"
            raise RunError("the mirror holds checkpoints of this run, but it has no segments", rule, "restore their directories")
        return self._choice(None)

    def _unreachable(self, seen: str) -> EnvironmentFault:
        assert self.fault is not None
        problem = self.fault.problems[0]
        rule = f"the mirror may hold one, but is out of reach: {problem.seen}; {problem.rule}"
        return EnvironmentFault(seen, rule, f"{problem.way_out}; a run never begins anew because of that")


def _move_aside(run: RunDirectory, name: str, reason: str) -> str | None:
    """Keep what lies under ``name`` as evidence, under a name that is no checkpoint's; that name, None where nothing lay there.

    Not under its own: refusals name what retention never deletes nor counts, and ``name`` is about to be whole again.
    """
    path = run.checkpoints / name
    if not path.exists() and not path.is_symlink():
        return None
    aside = next(place for n in count(1) if not (place := path.with_name(f"{name}.damaged-{n}")).exists())
    with contextlib.suppress(EnvironmentFault):  # the record explains; a full disk must not keep the run from going on
        append_stamped(run.checkpoints / REJECTED, {"kind": "checkpoint_rejected", "checkpoint": aside.name, "reason": reason})
    try:
        os.rename(path, aside)
        fsync_directory(run.checkpoints)
    except OSError as error:
        raise from_os_error(error, path, "cannot move a damaged checkpoint aside") from error
    return aside.name
