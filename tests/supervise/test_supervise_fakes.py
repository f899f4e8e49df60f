"""The supervisor's decisions, with a clock and trainers that exist only here."""

from __future__ import annotations

import dataclasses
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from bench import plan, quick, read_ledger, standin_launcher
from tiny_run import tiny_spec

from headway.base.clocks import FakeClock
from headway.base.errors import ConfigError, EnvironmentFault, RunError
from headway.base.files import write_json
from headway.rundir.create import RunInfo, create_run
from headway.rundir.events import EventLog, read_events
from headway.rundir.lease import Lease
from headway.rundir.metrics import StepLog
from headway.rundir.segments import Segment, is_admissible, read_segments
from headway.store.admissible import Choice
from headway.supervise.launcher import trainer_environment
from headway.supervise.options import SuperviseOptions
from headway.supervise.supervisor import supervise

STEP_SECONDS = 1.0


@dataclass
class ScriptedTrainer:
    """Does one word of its script per look: "step", "save", "evaluation", "end", "silence", or an exit status."""

    log: StepLog
    clock: FakeClock
    script: Iterator[object]
    step: int = 0
    step_seconds: float = STEP_SECONDS
    pid: int = 1
    start_ticks: int | None = 1
    calls: list[str] = field(default_factory=list)
    status: int | None = None

    def poll(self) -> int | None:
        if self.status is None:
            word = next(self.script, "silence")
            if isinstance(word, int):
                self.status = word
            elif word != "silence":
                self.write(str(word))
        return self.status

    def write(self, kind: str) -> None:
        if kind == "step":
            self.clock.advance(self.step_seconds)
            self.step += 1
            self.log.write("step", step=self.step, stage="main", tokens=self.step * 64, targets=64, loss=2.0, grad_norm=1.0)
        elif kind == "nonsense":  # whole lines that are no row
            for value in (5, {"kind": "step"}, {"kind": "end"}):
                self.log._writer.append(value)
        elif kind.startswith("spike"):  # in the step that it names
            self.log.write("end", step=int(kind[5:]), state="spike", spike=spike_at(int(kind[5:])))
        elif kind in ("end", "stopped"):
            self.log.write("end", step=self.step, state="complete" if kind == "end" else "stopped")
        else:
            self.log.write(kind, step=self.step, checkpoint="c", loss={})

    def terminate(self) -> None:
        self.calls.append("terminate")

    def kill(self) -> None:
        self.calls.append("kill")
        self.status = -signal.SIGKILL

    def close(self) -> None:
        self.calls.append("close")


def spike_at(step: int) -> dict:
    """As a trainer tells it: steps of 4 sequences."""
    batch = {"stage": 0, "first": 4 * step - 4, "sequences": 4}
    return {"step": step, "loss": 9.0, "grad_norm": 1.0, "threshold": 10.0, "reading": {"loss": 50.0}, "batch": batch}


@dataclass
class Stage:
    """Launches one script per attempt."""

    clock: FakeClock
    scripts: list[list[object]]
    step_seconds: float = STEP_SECONDS
    trainers: list[ScriptedTrainer] = field(default_factory=list)

    def launch(self, run, segment: int) -> ScriptedTrainer:
        log = StepLog(run, segment, self.clock)
        log.write("start", pid=1)
        restored = read_segments(run)[-1].restored_step
        self.trainers.append(
            ScriptedTrainer(log, self.clock, iter(self.scripts[len(self.trainers)]), restored, self.step_seconds)
        )
        return self.trainers[-1]


def perform(run, scripts: list[list[object]], on_record=None, step_seconds: float = STEP_SECONDS, **options):
    clock = FakeClock()
    stage = Stage(clock, scripts, step_seconds)
    values = {
        "ttl_seconds": 1000.0,
        "poll_seconds": 0.5,
        "backoff_seconds": 0.0,
        "hang_floor_seconds": 30.0,
        "startup_seconds": 600.0,
        **options,
    }
    outcome = supervise(run, options=SuperviseOptions(**values), launcher=stage, clock=clock, on_record=on_record)
    read_ledger(run)
    return outcome, stage


asked: list[dict[str, str]] = []
"""What each choice was told to pass over."""
chains: list[list[Segment]] = []
"""What each choice was made in."""


@pytest.fixture
def choices(monkeypatch) -> list[Choice | Exception]:
    """What ``choose`` answers, in turn; the last answer stays."""
    answers: list[Choice | Exception] = [Choice(checkpoint=None, segment=None, step=0, rejected=[])]
    asked.clear()
    chains.clear()

    def answer(run, chain, refused=None):
        asked.append(dict(refused or {}))
        chains.append(chain)
        value = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(value, Exception):
            raise value
        return value

    monkeypatch.setattr("headway.supervise.supervisor.choose", answer)
    return answers


def at(segment: int, step: int, rejected: list[dict] | None = None) -> Choice:
    return Choice(checkpoint=f"g{segment:04d}-s{step:08d}", segment=segment, step=step, rejected=rejected or [])


def test_F8_wedge_without_an_error_is_found_by_lack_of_progress(run, choices):
    wedge = ["step", "evaluation", "save", "step"]
    outcome, stage = perform(run, [wedge, ["step", "end", 0]])
    assert (outcome.state, outcome.attempts) == ("complete", 2)
    assert stage.trainers[0].calls == ["terminate", "kill", "close"]
    categories = read_ledger(run).categories
    assert categories["hang"] == pytest.approx(30e9, abs=1e9)
    assert categories["detection_to_stop"] == pytest.approx(5e9, abs=1e9), "the grace time of a hang"


def test_F2_slow_start_up_is_left_alone(run, choices):
    outcome, stage = perform(run, [["silence"] * 1000 + ["step", "end", 0]])
    assert (outcome.state, outcome.attempts) == ("complete", 1)
    assert "terminate" not in stage.trainers[0].calls


def test_end_that_was_recorded_counts_although_the_exit_failed(run, choices):
    assert perform(run, [["step", "end", -11]])[0].state == "complete"


def test_F4_counts_committed_progress_as_a_fresh_choice_proves_it(run, choices):
    """Every attempt claims a save, but none of the saves can be read back: the loop must end."""
    choices[:] = [at(1, 30), *[at(1, 30, [{"checkpoint": f"g000{n}-s00000040", "reason": "flipped bit"}]) for n in (1, 2, 3)]]
    write_first_segment(run)
    outcome, _ = perform(run, [["step", "save", -9]] * 3)
    assert (outcome.state, outcome.attempts, outcome.exit_code) == ("failed", 3, 4)
    assert "checkpoint g0001-s00000030 (step 30) stands" in outcome.reason
    rejected = [event["checkpoint"] for event in read_events(run) if event["kind"] == "checkpoint_rejected"]
    assert rejected == ["g0001-s00000040", "g0002-s00000040", "g0003-s00000040"], "each is said once"


def test_C2_what_a_trainer_could_not_load_is_passed_over(run, choices):
    """Whole for the supervisor, damaged for one of the ranks: the next attempt goes on from an older one, with the reason."""
    write_first_segment(run)
    choices[:] = [at(1, 30), at(1, 20)]

    class Refusing(Stage):
        def launch(self, run, segment):
            if not self.trainers:
                problem = {"seen": "rank 1: block 3 differs", "rule": "", "way_out": "", "where": ""}
                error = {"label": "run failed", "problems": [problem], "exit_code": 4, "refused": "g0001-s00000030"}
                write_json(run.segment(segment) / "error.json", error)
            return super().launch(run, segment)

    clock = FakeClock()
    options = SuperviseOptions(ttl_seconds=1000.0, poll_seconds=0.5, backoff_seconds=0.0)
    outcome = supervise(run, options=options, launcher=Refusing(clock, [[4], ["step", "end", 0]]), clock=clock)
    assert outcome.state == "complete"
    assert asked[0] == {}
    assert list(asked[1]) == ["g0001-s00000030"]
    assert "rank 1: block 3 differs" in asked[1]["g0001-s00000030"]


def test_F4_storage_that_keeps_damaging_the_newest_does_not_go_on_for_ever(run, choices):
    """12, 13, 12, 13, ...: each 13 is new to the last choice, none is new to the run."""
    write_first_segment(run)
    choices[:] = [at(1, step) for step in [12, 13] * 20]
    outcome, _ = perform(run, [["step", "save", -9]] * 40)
    assert (outcome.state, outcome.exit_code) == ("failed", 4)
    assert outcome.attempts == 6, "three times 13 was lost; the first 13 was progress, the others only won back"


def test_F4_lost_ground_may_be_won_back_in_many_attempts(run, choices):
    """The newest was damaged and the next good one is far back: crashes on the way are no loop as long as they commit."""
    write_first_segment(run)
    choices[:] = [at(1, step) for step in (100, 50, 60, 70, 80, 90, 100, 110, 110, 110)]
    outcome, _ = perform(run, [["step", -9]] * 9 + [["end", 0]])
    assert (outcome.state, outcome.attempts) == ("complete", 10), "110 cleared the run: two fruitless attempts are allowed again"


def write_first_segment(run) -> None:
    from headway.rundir.segments import write_segment

    write_segment(run, Segment(1, None, 0, None, "start", "a person", 1, {}, skips=({"stage": 0, "first": 5, "count": 8},)))


def test_parent_is_the_segment_whose_state_goes_on(run, choices):
    """2 and 3 committed nothing; 4 passes over a damaged checkpoint of 1: what they did leaves the chain."""
    write_first_segment(run)
    choices[:] = [at(1, 40), at(1, 40), at(1, 30, [{"checkpoint": "g0001-s00000040", "reason": "gone"}]), at(4, 50)]
    perform(run, [["step", -9], ["step", -9], ["step", -9], ["step", "end", 0]], max_fruitless_attempts=9)
    assert [(s.id, s.parent, s.restored_step) for s in read_segments(run)] == [
        (1, None, 0),
        (2, 1, 40),
        (3, 1, 40),
        (4, 1, 30),
        (5, 4, 50),
    ]
    assert read_segments(run)[3].rejected == ({"checkpoint": "g0001-s00000040", "reason": "gone"},)
    assert all(s.skips == ({"stage": 0, "first": 5, "count": 8},) for s in read_segments(run)), "skips in force travel along"


def test_C5_id_of_a_segment_that_is_lost_is_not_given_again(run, choices):
    """Its checkpoints are still there, and would be admissible as those of the new segment."""
    (run.checkpoints / "g0003-s00000040").mkdir()
    perform(run, [["step", "end", 0]])
    assert [segment.id for segment in read_segments(run)] == [4]


def test_F5_grace_time_is_learned_from_steps_and_saves(run, choices):
    """A trainer that needs a long step and a long save to end is not killed at the end of a short grace time."""

    def at_two(record: dict) -> None:
        if record["kind"] == "step" and record["step"] == 2:
            os.kill(os.getpid(), signal.SIGTERM)

    slow = ["step", "save", "step", *["silence"] * 10, "step", "save", "stopped", 0]
    outcome, stage = perform(run, [slow], on_record=at_two, grace_seconds=1.0, step_seconds=10.0)
    assert (outcome.state, stage.trainers[0].calls) == ("stopped", ["terminate", "close"])


def test_F6_trainer_of_a_dead_owner_gets_the_learned_time_too(run, choices):
    """It runs on another host, with steps of 10 s and saves of 5 s: it may need that long to end."""
    elsewhere = FakeClock(boot_id="boot-b")
    write_first_segment(run)
    events = EventLog(run, 1, elsewhere)
    events.append("launch", segment=1, pid=1, start_ticks=1, host="beta")
    events.close()
    log = StepLog(run, 1, elsewhere)
    log.write("start", pid=1)
    for kind, seconds in (("step", 10.0), ("save", 5.0)):
        elsewhere.advance(seconds)
        log.write(kind, step=1, tokens=64, targets=64, loss=2.0, grad_norm=1.0, checkpoint="c")
    perform(run, [["step", "end", 0]], orphan_seconds=1.0)
    exits = [event["reason"] for event in read_events(run) if event["kind"] == "exit"]
    assert exits[0].endswith("silent for 30 s")


def test_nothing_usable_is_a_clear_error_and_never_a_fresh_start(run, choices):
    choices[:] = [RunError("no checkpoint of this run can be used: a; b")]
    outcome, stage = perform(run, [])
    assert (outcome.state, outcome.exit_code) == ("failed", 4)
    assert "no checkpoint of this run can be used" in outcome.reason
    assert stage.trainers == []
    assert read_events(run)[-1]["kind"] == "finish"


def test_trainer_that_cannot_be_started(run, choices):
    class Broken:
        def launch(self, run, segment):
            raise EnvironmentFault("cannot start the trainer: No such file or directory")

    outcome = supervise(run, options=quick(), launcher=Broken(), clock=FakeClock())
    assert (outcome.state, outcome.exit_code) == ("failed", 3)


def test_lease_lost_ends_the_trainer_and_leaves_the_run_to_its_new_owner(run, choices):
    clock = FakeClock()
    stage = Stage(clock, [["step"] * 5])

    def taken_over(record: dict) -> None:
        if record["kind"] == "step" and record["step"] == 3:
            Lease.acquire(run, {"host": "beta", "pid": 1}, 1000.0, FakeClock())

    options = SuperviseOptions(ttl_seconds=100.0, poll_seconds=0.5, grace_seconds=4.0)
    outcome = supervise(run, options=options, launcher=stage, clock=clock, on_record=taken_over)
    assert (outcome.state, outcome.exit_code) == ("lost", 3)
    assert stage.trainers[0].calls == ["terminate", "kill", "close"]
    assert [event["kind"] for event in read_events(run)] == ["open", "launch", "exit", "note"], "no finish"
    assert read_events(run)[-1]["state"] == "lost"


def test_second_signal_does_not_wait_for_the_save(run, choices, monkeypatch):
    monkeypatch.setattr("headway.supervise.attempt.StopSignals.MOMENT_SECONDS", 0.0)

    def twice(record: dict) -> None:
        if record["kind"] == "step":
            os.kill(os.getpid(), signal.SIGTERM)

    outcome, stage = perform(run, [["step", "step", "silence"]], on_record=twice, grace_seconds=10_000.0)
    assert outcome.state == "stopped"
    assert stage.trainers[0].calls == ["terminate", "kill", "close"]
    assert read_ledger(run).total_ns < 60e9, "long before the grace time"


def test_view_that_breaks_does_not_end_the_run(run, choices):
    def broken(record: dict) -> None:
        if record["kind"] == "step":
            raise BrokenPipeError

    assert perform(run, [["step", "step", "end", 0]], on_record=broken)[0].state == "complete"


def test_error_of_the_supervisor_itself_leaves_no_trainer(run, choices, monkeypatch):
    def fail(self, row, now_ns):
        raise RuntimeError("a bug")

    monkeypatch.setattr("headway.supervise.patience.Patience.progress", fail)
    clock = FakeClock()
    stage = Stage(clock, [["step"]])
    with pytest.raises(RuntimeError, match="a bug"):
        supervise(run, options=quick(), launcher=stage, clock=clock)
    assert "kill" in stage.trainers[0].calls
    later = FakeClock()
    assert Lease.acquire(run, {}, 10.0, later).epoch == 2
    assert later.slept == [], "the lease is released"


def test_back_off_grows_with_fruitless_attempts(run, choices):
    perform(run, [[-9], [-9], ["step", "end", 0]], backoff_seconds=10.0)
    launches = [event["stamp"]["boot_ns"] for event in read_events(run) if event["kind"] == "launch"]
    gaps = [round((b - a) / 1e9) for a, b in zip(launches, launches[1:])]  # noqa: RUF007
    assert gaps == [10, 20]


def test_faults_are_refused_in_a_production_run(run):
    write_json(run.root / "drill.json", {"faults": []})
    with pytest.raises(ConfigError, match="not a drill"):
        supervise(run, launcher=standin_launcher(), clock=FakeClock())
    assert read_events(run) == []


def test_real_choice_before_the_first_commit(run):
    plan(run, steps=8, save_every=1000, faults={"1": {"at": 3, "how": "kill"}})
    outcome = supervise(run, options=quick(), launcher=standin_launcher())
    assert (outcome.state, outcome.attempts) == ("complete", 2)
    assert [(s.parent, s.restored_step, s.checkpoint) for s in read_segments(run)] == [(None, 0, None)] * 2
    ledger = read_ledger(run)
    assert (ledger.committed.steps, ledger.attempted.steps) == (8, 11)


def test_environment_of_the_trainer_passes_threads_and_keeps_what_was_set():
    environment = trainer_environment({"OMP_NUM_THREADS": "3", "PYTHONHASHSEED": "7"})
    assert (environment["OMP_NUM_THREADS"], environment["PYTHONHASHSEED"]) == ("3", "7")
    assert trainer_environment({})["PYTHONHASHSEED"] == "0"


def test_options_of_a_deployment():
    section = {"max_fruitless_attempts": 5, "lease_ttl": 7.0, "hang_floor": 60.0, "grace": 9.0}
    options = SuperviseOptions.of({"supervise": section}, author="a person")
    assert (options.max_fruitless_attempts, options.ttl_seconds, options.hang_floor_seconds, options.grace_seconds) == (
        5,
        7.0,
        60.0,
        9.0,
    )
    assert SuperviseOptions.of({}) == SuperviseOptions()


def test_lines_that_are_no_row_do_not_end_the_supervisor(run, choices):
    outcome, stage = perform(run, [["step", "nonsense", "step", "end", 0]])
    assert (outcome.state, len(stage.trainers)) == ("complete", 1)


# --- spikes


@pytest.fixture
def spiky(tmp_path):
    """A run of 400 steps that rolls back 10 steps and skips 6 batches."""
    spikes = {"policy": "roll_back", "rewind_steps": 10, "skip_batches": 6, "most_roll_backs": 2}
    spec = dataclasses.replace(tiny_spec(400), interventions={"spikes": spikes})
    info = RunInfo(data=str(tmp_path / "data"), deployment={}, author="a person")
    return create_run(tmp_path / "spiky", spec=spec, recipe_text="", info=info)


def newest_admissible(step: int) -> int:
    """In the chain of the choice that was made last."""
    return max((saved for saved in range(step + 1) if is_admissible(chains[-1], chains[-1][-2].id, saved)), default=0)


def test_R54_a_trainer_that_dies_over_its_spike_is_rolled_back_all_the_same(spiky, choices):
    """Its last row is what counts, not its exit."""
    choices[:] = [Choice(checkpoint=None, segment=None, step=0, rejected=[]), at(1, 80)]
    outcome, _ = perform(spiky, [["step", "spike100", -9], ["step", "end", 0]])
    assert (outcome.state, outcome.attempts) == ("complete", 2)
    assert newest_admissible(100) == 90, "ten steps before the spike, and no later"
    second = read_segments(spiky)[1]
    assert second.skips == ({"stage": 0, "first": 4 * 97, "count": 4 * 6},)
    assert second.reason == "spike in step 100: back to step 80, 6 batches skipped"


def test_R54_what_is_in_force_stays_when_an_older_state_is_restored(spiky, choices):
    """The segment that rolled back committed nothing: its parent's checkpoint is restored again, with the same skips."""
    choices[:] = [Choice(checkpoint=None, segment=None, step=0, rejected=[]), at(1, 80), at(1, 80), at(1, 70)]
    perform(spiky, [["spike100", 0], ["step", -9], ["spike98", 0], ["step", "end", 0]])
    _, second, third, fourth = read_segments(spiky)
    assert [s.parent for s in (second, third, fourth)] == [1, 1, 1]
    assert (third.skips, third.spikes) == (second.skips, second.spikes)
    assert fourth.skips == ({"stage": 0, "first": 4 * 95, "count": 4 * 12},), "two more, and four behind what was skipped already"
    assert fourth.rates == ({"first": 70, "factor": 0.8},)
    assert [one["recurrence"] for one in fourth.spikes] == [0, 1]


def test_R54_a_roll_back_is_no_fruitless_attempt_and_too_many_ask(spiky, choices):
    write_first_segment(spiky)
    choices[:] = [at(1, 95), at(1, 80), at(1, 70)]
    outcome, _ = perform(spiky, [["spike100", 0], ["spike102", 0], ["spike104", 0]], max_fruitless_attempts=1)
    assert (outcome.state, outcome.attempts, outcome.exit_code) == ("stopped", 3, 1)
    assert "step 104 is a spike, and 2 roll-backs in a row did not help" in outcome.reason
    assert [event["action"] for event in read_events(spiky) if event["kind"] == "spike"] == ["rolled_back", "rolled_back", "stop"]


def test_R54_nothing_old_enough_is_whole(spiky, choices):
    """It was there once: what lies before the spike serves, with a note; a run never begins anew because of that."""
    choices[:] = [
        Choice(checkpoint=None, segment=None, step=0, rejected=[]),
        RunError("all that were recorded are gone"),
        at(1, 95),
    ]
    outcome, _ = perform(spiky, [["spike100", 0], ["step", "end", 0]])
    assert outcome.state == "complete"
    assert newest_admissible(100) == 99
    assert any("10 steps before the spike" in event["text"] for event in read_events(spiky) if event["kind"] == "note")
    assert read_segments(spiky)[1].skips == ({"stage": 0, "first": 4 * 97, "count": 4 * 6},)


def test_R54_a_skip_that_would_carry_a_source_beyond_its_cap_asks(tmp_path, choices):
    """One pass over the source is allowed, of 624 windows; the run takes 612 of them, and the skip 24 more."""
    spikes = {"policy": "roll_back", "rewind_steps": 10, "skip_batches": 6}
    spec = dataclasses.replace(tiny_spec(153), interventions={"spikes": spikes})
    source = dataclasses.replace(spec.sources[0], cap_epochs=1.0)
    info = RunInfo(data=str(tmp_path / "data"), deployment={}, author="a person")
    run = create_run(tmp_path / "capped", spec=dataclasses.replace(spec, sources=(source,)), recipe_text="", info=info)
    choices[:] = [Choice(checkpoint=None, segment=None, step=0, rejected=[]), at(1, 80)]
    outcome, _ = perform(run, [["spike100", 0]])
    assert (outcome.state, outcome.attempts) == ("failed", 1)
    assert "would carry source code beyond its cap" in outcome.reason
    assert len(read_segments(run)) == 1


def test_limits_of_phases_come_from_the_deployment():
    from headway.recipe.deployment import Deployment

    stated = Deployment.model_validate({"supervise": {"limits": {"evaluation": "2h", "init": "90s"}}})
    options = SuperviseOptions.of(stated.resolved())
    assert options.hard_seconds == {"evaluation": 7200.0, "init": 90.0}
    with pytest.raises(ValueError, match="breakfast"):
        Deployment.model_validate({"supervise": {"limits": {"breakfast": "2h"}}})


def test_phases_of_limits_are_those_of_heartbeats():
    from typing import get_args

    from headway.recipe.deployment import Phase
    from headway.rundir.heartbeats import PHASES

    assert set(get_args(Phase)) == set(PHASES)
