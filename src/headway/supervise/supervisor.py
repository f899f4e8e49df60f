"""The supervisor: one owner, one trainer at a time, restarted from the last committed checkpoint until the run is done.

    lease -> open events -> take over -> [ choose checkpoint -> write segment -> launch -> follow ]* -> finish -> release

It knows nothing of tensors: it reads records and manifests. What ends the loop: the trainer completed; somebody asked to
stop; the trainer refused its configuration (exit 2: trying again cannot help); attempts without committed progress, whatever
ended them (a fault of the environment, exit 3, may pass, and is tried again like a crash); no usable checkpoint; the lease is
lost.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import asdict, replace
from typing import Any

import numpy as np

from headway.base.clocks import Clock, SystemClock
from headway.base.errors import EXIT_CONFIG, EXIT_ENVIRONMENT, EXIT_FINDINGS, EXIT_OK, EXIT_RUN, HeadwayError, from_os_error
from headway.base.failpoints import guard
from headway.data.stream import Stream
from headway.data.transition import MixtureChange, with_change
from headway.recipe.schedules import Schedule
from headway.rundir.events import REQUEUED, EventLog, read_events
from headway.rundir.layout import RunDirectory
from headway.rundir.lease import Lease, LeaseView
from headway.rundir.metrics import read_all_steps
from headway.rundir.processes import this_process
from headway.rundir.requests import Inbox
from headway.rundir.segments import (
    Segment,
    current_chain,
    deployment_of,
    layout_of,
    layout_words,
    newest_id,
    read_segments,
    write_segment,
)
from headway.store.admissible import Choice, choose, saving_segments
from headway.store.mirror.choice import choose_with_mirror
from headway.store.mirror.mirror import Mirror
from headway.store.writer.client import end_writers
from headway.supervise.attempt import PAUSE, REGROUP, Attempt, AttemptEnd, StopSignals, Watch
from headway.supervise.causes import error_of, error_words, log_tail, own_error
from headway.supervise.commands import refuse_foreign
from headway.supervise.corruption import record_finding
from headway.supervise.fleet import Fleet, FleetOptions, described
from headway.supervise.groups import GroupLauncher, replica_groups
from headway.supervise.launcher import Launcher, ProcessLauncher, engine_command
from headway.supervise.options import Outcome, SuperviseOptions
from headway.supervise.patience import Patience
from headway.supervise.requeue import requeue
from headway.supervise.spikes import Answer, Spikes
from headway.supervise.takeover import take_over
from headway.supervise.writers import await_writers

RELAID = "relaid"
"""The end of a trainer whose last step is committed, and whose next stage another layout trains."""
MOST_LEFT_OUT = 0.1
"""Of a source, that a run goes on without where it is damaged; more is a matter for a person."""


def supervise(
    run: RunDirectory,
    *,
    options: SuperviseOptions | None = None,
    launcher: Launcher | None = None,
    clock: Clock | None = None,
    on_record: Callable[[dict], None] | None = None,
    deployment: dict[str, Any] | None = None,
    change: MixtureChange | None = None,
    spike: Answer | None = None,
) -> Outcome:
    """Own ``run`` until it is complete, stopped or failed.

    ``deployment``: resolved; the run goes on under it from here on (None: under the one in force). ``change``: of the mixture,
    from the restored step on (None: as it is). ``spike``: what to do about the one at which it stopped.

    ``on_record`` gets every row of the trainer, every event, and {kind: "waiting", owner, seconds} while an earlier owner's
    lease runs out. EnvironmentFault when somebody else owns the run.
    """
    options, clock = options or SuperviseOptions(), clock or SystemClock()
    show = Viewer(on_record)
    guard(run.root)
    if _is_complete(run):  # nothing is written: asking about a finished run leaves its books alone
        return Outcome(state="complete", reason="nothing is left to train", attempts=0, exit_code=EXIT_OK)
    if deployment is None:
        refuse_foreign(run, deployment_of(run))
    lease = Lease.acquire(
        run, this_process(options.author), options.ttl_seconds, clock, lambda view: show(_waiting(view, options))
    )
    try:
        with StopSignals() as stop, lease.renewed_in_background():
            events = EventLog(run, lease.epoch, clock)
            show(events.opened)
            watch = Watch(
                run=run,
                options=options,
                clock=clock,
                lease=lease,
                events=events,
                stop=stop,
                patience=Patience.of(options),
                show=show,
                inbox=Inbox(run, lease.epoch, clock),
            )
            return _Supervisor(watch, launcher or GroupLauncher(), deployment, change, Spikes(watch, spike)).run()
    finally:
        lease.release()


def _is_complete(run: RunDirectory) -> bool:
    """Its end is the last thing on record, and its last checkpoint is whole."""
    events = read_events(run)
    if not events or (events[-1].get("kind"), events[-1].get("state")) != ("finish", "complete"):
        return False
    try:
        return choose(run, current_chain(read_segments(run))).step >= Schedule(run.spec()).total_steps
    except HeadwayError:
        return False  # the supervisor proper will say what is wrong, and keep it on record


def _waiting(view: LeaseView, options: SuperviseOptions) -> dict:
    return {"kind": "waiting", "owner": view.owner, "seconds": options.ttl_seconds}


class Viewer:
    """Hands records to whoever looks on. A view that breaks (a closed pipe, say) is dropped; it never ends a run."""

    def __init__(self, on_record: Callable[[dict], None] | None):
        self._on_record = on_record

    def __call__(self, record: dict) -> None:
        if self._on_record is not None:
            try:
                self._on_record(record)
            except Exception:
                self._on_record = None


class _Supervisor:
    """The loop over attempts, once the lease is held."""

    def __init__(
        self,
        watch: Watch,
        launcher: Launcher,
        deployment: dict[str, Any] | None,
        change: MixtureChange | None,
        spikes: Spikes,
    ):
        self._watch, self._launcher, self._deployment, self._change = watch, launcher, deployment, change
        self._spikes = spikes
        self._attempts, self._fruitless = 0, 0
        self._last_choice: Choice | None = None
        self._best_step = 0  # the newest step that a choice of this supervisor could prove
        self._last_end: AttemptEnd | None = None
        self._reported: set[tuple[str, str]] = set()
        self._refused: dict[str, str] = {}  # checkpoints that a trainer could not load, with its words
        self._damage: dict[str, Any] | None = None  # training tokens that the last attempt found damaged, to be left out
        self._fleet: Fleet | None = None  # None: all processes are on this machine
        self._excused = False  # the last attempt ended with its node, which says nothing of the run

    def run(self) -> Outcome:
        watch = self._watch
        for rows in read_all_steps(watch.run).values():
            watch.patience.learn(rows)
        try:
            if not take_over(watch):  # whose trainer may still save: its writers are left alone
                return self._lost() if watch.lease.must_stop() else self._stopped(self._end)
            options = FleetOptions.of(self._deployment or deployment_of(watch.run))
            if options is not None:
                command = self._launcher.command if isinstance(self._launcher, ProcessLauncher) else engine_command
                before = read_events(watch.run)
                self._launcher = self._fleet = Fleet(watch.run, options, watch.record, watch.pause, before, command)
                self._fleet.weigh_corruption(before)
            while True:
                outcome = self._attempt()
                if outcome is not None:
                    return outcome
        except HeadwayError as error:
            return self._finish("failed", str(error), error.exit_code)
        except OSError as error:  # what a file system or the kernel says, wherever it was met
            fault = from_os_error(error, error.filename or watch.run.root, "the run cannot be supervised")
            return self._finish("failed", str(fault), fault.exit_code)
        finally:
            if self._fleet is not None:
                self._fleet.close()

    def _attempt(self) -> Outcome | None:
        """One turn of the loop; None: go on with another attempt."""
        watch = self._watch
        if watch.lease.must_stop():
            return self._lost()
        if watch.stop.count:
            return self._stopped(self._finish)
        if watch.pauses:
            self._rest()
            return None
        if question := self._spikes.consider():
            return self._finish("stopped", question, EXIT_FINDINGS)
        choice = self._choose()
        if self._fruitless >= watch.options.max_fruitless_attempts:
            return self._give_up(choice)
        self._back_off()
        hosts = self._fleet.gather(self._is_asked_to_end) if self._fleet is not None else ()
        if self._is_asked_to_end():
            return None
        segment = self._write_segment(choice, hosts)
        if watch.lease.must_stop():  # while it was written, perhaps on storage that stood still
            return self._lost()
        self._last_end = self._launch_and_follow(segment)
        return self._judge(self._last_end)

    def _rest(self) -> None:
        """Until somebody asks to go on or to stop; nodes stay, and so does the lease."""
        watch = self._watch
        watch.record("pause", reason=watch.pauses[0].words)
        while watch.pauses and not watch.is_asked_to_end():
            watch.pause()
        watch.record("resume", reason="" if watch.pauses else "asked to go on")

    def _is_asked_to_end(self) -> bool:
        watch = self._watch
        return bool(watch.pauses) or watch.is_asked_to_end()

    def _choose(self) -> Choice:
        """Where to go on from. Progress is what a fresh choice can prove, not what the trainer said."""
        await_writers(self._watch)
        choice = self._spikes.choose(self._find, current_chain(read_segments(self._watch.run)))
        for entry in choice.rejected:
            key = (entry["checkpoint"], entry["reason"])
            if key not in self._reported:
                self._reported.add(key)
                self._watch.record("checkpoint_rejected", **entry)
        self._count(choice)
        return choice

    def _find(self, chain: list[Segment]) -> Choice:
        """The newest of ``chain`` that is whole: here, or on the mirror, from where it is fetched."""
        run = self._watch.run
        url = run.info()["deployment"].get("checkpoints", {}).get("mirror")
        if url is None:
            return choose(run, chain, refused=self._refused)
        mirror = Mirror.open(url, run.info()["run_id"], self._watch.clock)
        found = choose_with_mirror(run, chain, mirror, refused=self._refused)
        for text in found.notes:
            self._watch.record("note", text=text)
        return Choice(**{name: getattr(found, name) for name in ("checkpoint", "segment", "step", "rejected")})

    def _count(self, choice: Choice) -> None:
        """Only what lies beyond the best step so far is progress: else storage that damages each newest could go on for ever.

        Ground that is regained below it neither counts against the run nor clears it of anything.
        """
        if self._last_choice is None or choice.step > self._best_step or self._spikes.goes_back:
            self._fruitless, self._best_step = 0, choice.step
        elif choice.step <= self._last_choice.step and not self._excused:
            self._fruitless += 1
        self._last_choice = choice

    def _back_off(self) -> None:
        """A cause that passes (storage, memory) gets a moment to pass."""
        until_ns = self._watch.now_ns() + round(self._fruitless * self._watch.options.backoff_seconds * 1e9)
        while self._watch.now_ns() < until_ns and not self._is_asked_to_end():
            self._watch.pause()

    def _write_segment(self, choice: Choice, hosts: tuple[str, ...]) -> Segment:
        """The parent is the segment whose state goes on, so a checkpoint that was passed over leaves the chain with its tail."""
        run = self._watch.run
        segments = {segment.id: segment for segment in read_segments(run)}
        parent = segments.get(choice.segment) if choice.segment is not None else None
        stated = run.info()["deployment"]
        deployment = self._deployment or deployment_of(run, list(segments.values()))
        layout = self._layout(deployment, choice.step, hosts)
        saving = layout["world"] // layout.get("groups", 1)
        end_writers(run, _most_ranks(run), first=saving)  # nobody comes back for what the others hold
        reason, transitions = self._reason(bool(segments)), self._transitions(segments, parent, choice.step)
        segment = Segment(
            id=max({newest_id(run), *saving_segments(run)}) + 1,
            parent=parent.id if parent else None,
            restored_step=choice.step,
            checkpoint=choice.checkpoint,
            reason=reason,
            author=self._watch.options.author if self._last_end is None else "automatic",
            epoch=self._watch.lease.epoch,
            layout=layout,
            quarantines=self._quarantines(segments, parent, choice.step),
            transitions=transitions,
            rejected=tuple(choice.rejected),
            deployment=None if deployment == stated else deployment,
        )
        segment = self._spikes.applied(segment, list(segments.values()))
        write_segment(run, segment)
        return segment

    def _layout(self, deployment: dict[str, Any], step: int, hosts: tuple[str, ...]) -> dict[str, Any]:
        """What goes on after ``step``: processes, the stage, its axes; of several machines, which they are."""
        spec = self._watch.run.spec()
        schedule = Schedule(spec)
        stage = spec.stages[schedule.place(min(step, schedule.total_steps)).stage].name
        if self._fleet is not None:
            return self._fleet.place(deployment, stage, hosts)
        world, axes = deployment.get("nodes", 1) * deployment.get("processes_per_node", 1), layout_of(deployment, stage)
        groups = replica_groups(deployment, axes)
        return {"world": world, "stage": stage, "axes": axes} | ({"groups": groups} if groups > 1 else {})

    def _quarantines(self, segments: dict[int, Segment], parent: Segment | None, step: int) -> tuple[dict, ...]:
        """Those in force, also where no checkpoint was written under them yet; and what was found last, from here on."""
        before = segments[max(segments)].quarantines if segments else ()
        damage, self._damage = self._damage, None
        if damage is None:
            return before
        spec = self._watch.run.spec()
        place = Schedule(spec).place(step)
        stream = Stream.of_segment(spec, parent) if parent else Stream(spec)
        first = int(stream.stream_index(place.stage, np.array([place.first_sequence]))[0])
        found = {key: damage[key] for key in ("source", "token", "tokens", "packed") if key in damage}
        record = found | {"stage": place.stage, "first": first}
        told = {key: value for key, value in damage.items() if key != "packed"}
        self._watch.record("quarantine", **told, stage=place.stage, first=first)
        self._fruitless = 0  # the next attempt reads other tokens
        return (*before, record)

    def _transitions(self, segments: dict[int, Segment], parent: Segment | None, step: int) -> tuple[dict, ...]:
        """Those of the newest segment, also where no checkpoint was written under them yet; and what was asked for, from here."""
        newest = segments[max(segments)] if segments else None
        before, change = newest.transitions if newest else (), self._change
        if change is None:
            return before
        spec = self._watch.run.spec()
        stream = Stream.of_segment(spec, replace(parent, transitions=before)) if parent else Stream(spec)
        self._change = None
        made = tuple(asdict(one) for one in with_change(stream, step, change, self._watch.options.author))
        self._watch.record("mixture", **made[-1])
        return tuple(record | {"quanta": list(record["quanta"])} for record in made)

    def _reason(self, has_history: bool) -> str:
        if self._change is not None:
            weights = ", ".join(f"{name} {weight:g}" for name, weight in self._change.weights.items())
            return f"mixture: {weights}: {self._change.reason}"
        if self._damage is not None:
            damage = self._damage
            return f"quarantine: {damage['tokens']:,} tokens of {damage['source']} ({damage['shard']}, block {damage['block']})"
        if self._last_end is not None:
            if self._last_end.forced in (PAUSE, REGROUP):
                return f"{self._last_end.forced}: {self._last_end.reason}"
            relaid = self._last_end.end_state == RELAID and self._last_end.code == EXIT_OK
            return "the next stage trains under another layout" if relaid else f"restart: {self._last_end.reason}"
        return "resume" if has_history else "start"

    def _launch_and_follow(self, segment: Segment) -> AttemptEnd:
        self._attempts += 1
        process = self._launcher.launch(self._watch.run, segment.id)
        host = this_process()["host"]
        ranks = [described(rank) for rank in getattr(process, "ranks", ())]
        fields: dict[str, Any] = {"ranks": ranks, "layout": layout_words(segment.layout)} if ranks else {}
        fields |= {"store": self._fleet.store} if self._fleet is not None else {}
        try:
            self._watch.record(
                "launch", segment=segment.id, pid=process.pid, start_ticks=process.start_ticks, host=host, **fields
            )
        except BaseException:
            process.kill()
            process.close()
            raise
        more_nodes = self._fleet.is_back if self._fleet is not None else lambda: False
        return Attempt(self._watch, segment.id, process, more_nodes).follow()

    def _judge(self, end: AttemptEnd) -> Outcome | None:
        error = error_of(self._watch.run, end.segment) or {}
        record_finding(self._watch.run, end.segment, self._watch.record)
        if isinstance(error.get("refused"), str):
            self._refused[error["refused"]] = f"the trainer could not load it: {error_words(error)}"
        too_much = ""
        if isinstance(error.get("damage"), dict) and self._quarantines_damage():
            too_much = self._too_much(error["damage"])
            self._damage = None if too_much else error["damage"]
        self._excused = end.forced in (PAUSE, REGROUP)
        if self._fleet is not None:
            began = end.rank if end.forced in ("", "hang") else None  # else somebody asked for it
            self._excused |= self._fleet.judge(began, end.code if not end.forced else None, end.reason)
            self._excused |= self._fleet.weigh_corruption(read_events(self._watch.run))
        if end.forced == "lease lost":
            return self._lost()
        if end.end_state == "complete":
            return self._finish("complete", "all steps are trained", EXIT_OK)
        if end.forced in (PAUSE, REGROUP):
            return None
        if end.forced == "stop" or (end.end_state == "stopped" and end.code == 0):
            return self._finish("stopped", end.reason, EXIT_OK)
        if end.end_state == RELAID and end.code == EXIT_OK:
            return None
        if end.code == EXIT_CONFIG:
            return self._finish("failed", f"the trainer cannot run: {end.reason}", end.code, self._cause(end))
        if too_much:
            return self._finish("failed", f"{end.reason}; {too_much}", EXIT_ENVIRONMENT, self._cause(end))
        return None

    def _quarantines_damage(self) -> bool:
        return self._watch.run.spec().interventions.get("damaged_data") == "quarantine"

    def _too_much(self, damage: dict[str, Any]) -> str:
        """Why ``damage`` is not left out; empty: it is.

        A record stays for good, also when the data has been restored: so only a small part of a source is left out.
        """
        spec, segments = self._watch.run.spec(), read_segments(self._watch.run)
        before = [record for record in (segments[-1].quarantines if segments else ()) if record["source"] == damage["source"]]
        tokens = damage["tokens"] + sum(record["tokens"] for record in before)
        has = next(source.tokens for source in spec.sources if source.name == damage["source"])
        if tokens <= MOST_LEFT_OUT * has:
            return ""
        return (
            f"it is not left out, though interventions.damaged_data is quarantine: {tokens:,} of the {has:,} tokens of source "
            f"{damage['source']} would be, and at most {MOST_LEFT_OUT:.0%} of a source may; restore the file from a copy"
        )

    def _give_up(self, choice: Choice) -> Outcome:
        end = self._last_end
        assert end is not None
        stands = f"checkpoint {choice.checkpoint} (step {choice.step}) stands" if choice.checkpoint else "nothing was committed"
        reason = f"{self._fruitless} attempts in a row committed no new step ({stands}); the last: {end.reason}"
        code = EXIT_ENVIRONMENT if end.code == EXIT_ENVIRONMENT else EXIT_RUN
        return self._finish("failed", reason, code, self._cause(end))

    def _cause(self, end: AttemptEnd) -> dict[str, Any]:
        run = self._watch.run
        return {
            "segment": end.segment,
            "error": own_error(run, end.segment, end.rank),
            "log_tail": log_tail(run, end.segment, end.rank or 0),
        }

    def _stopped(self, finish: Callable[[str, str, int], Outcome]) -> Outcome:
        """Before anything was started."""
        return finish("stopped", f"asked to stop by {self._watch.stop.name}", EXIT_OK)

    def _finish(self, state: str, reason: str, exit_code: int, cause: dict[str, Any] | None = None) -> Outcome:
        end_writers(self._watch.run, _most_ranks(self._watch.run))
        return self._end(state, reason, exit_code, cause)

    def _end(self, state: str, reason: str, exit_code: int, cause: dict[str, Any] | None = None) -> Outcome:
        fields = {"cause": cause} if cause else {}
        command = self._watch.options.requeue if state == "stopped" and self._watch.stop.by_signal else ()
        told = REQUEUED if command and requeue(command, self._watch.record) else state
        self._watch.record("finish", state=told, reason=reason, exit_code=exit_code, **fields)
        self._watch.events.close()
        return Outcome(state=state, reason=reason, attempts=self._attempts, exit_code=exit_code)

    def _lost(self) -> Outcome:
        """No finish record: the run is not finished, it is somebody else's. The events file of this epoch is still ours."""
        rule = (
            "the lease could not be renewed for half its time to live, its file was removed, or another owner took the run over"
        )
        with contextlib.suppress(HeadwayError):  # the storage that refused the lease may refuse this too
            self._watch.record("note", text=rule, state="lost")
        self._watch.events.close()
        return Outcome(state="lost", reason=rule, attempts=self._attempts, exit_code=EXIT_ENVIRONMENT)


def _most_ranks(run: RunDirectory) -> int:
    """Of any segment so far, each with a writer."""
    return max((int(segment.layout.get("world", 1)) for segment in read_segments(run)), default=1)
