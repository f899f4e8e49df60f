"""What a person sees of a spike, and how one is answered."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "rundir"))

from tiny_run import tiny_run, tiny_spec

from headway.base.clocks import FakeClock
from headway.base.errors import EXIT_FINDINGS, ConfigError
from headway.cli.progress import Progress
from headway.cli.run import follow, spike_answer
from headway.cli.status import intervention_lines
from headway.monitor.alarms import find_alarms
from headway.recipe.schedules import Schedule
from headway.rundir.metrics import StepLog, read_steps
from headway.rundir.segments import Segment, write_segment
from headway.supervise.options import Outcome
from headway.supervise.spikes import Answer

READING = {"loss": 31.0, "grad_norm": 2.0, "usual_loss": 2.5, "usual_grad_norm": 1.0}
SPIKE = {"step": 15, "loss": 8.0, "grad_norm": 1.3, "threshold": 10.0, "reading": READING}
BACK = {"segment": 1, "action": "rolled_back", "restored": 8, "recurrence": 1, "skipped_batches": 6, "rate_factor": 0.8}


@pytest.fixture
def run(tmp_path):
    run = tiny_run(tmp_path / "run")
    write_segment(run, Segment(1, None, 0, None, "start", "", 1, {}))
    return run


def test_an_answer_needs_a_spike(run):
    assert spike_answer(run, None) is None
    with pytest.raises(ConfigError, match="--spike accept, and the run did not end at a spike"):
        spike_answer(run, "accept")
    log = StepLog(run, 1, FakeClock())
    log.write("start", pid=1)
    log.write("end", step=15, state="spike", spike=SPIKE)
    assert spike_answer(run, "accept") is Answer.ACCEPT
    write_segment(run, Segment(2, 1, 8, None, "", "", 1, {}))
    with pytest.raises(ConfigError, match="did not end at a spike"):
        spike_answer(run, "roll-back")


def test_status_tells_what_was_done_and_what_is_in_force(run):
    accepted = {"step": 5, "action": "accepted"}
    rates = ({"first": 8, "factor": 0.8},)
    write_segment(run, Segment(2, 1, 8, None, "", "", 1, {}, spikes=(accepted, SPIKE | BACK), rates=rates))
    assert list(intervention_lines(run)) == [
        "spike       at step 5: accepted",
        "spike       at step 15: back to step 8, 6 batches skipped",
        "rate        0.8 times the recipe's from step 9 on, after spikes",
    ]


def test_the_line_while_it_runs():
    (line,) = Progress(Schedule(tiny_spec()), ("code",), steps_per_row=5).feed({"kind": "spike", **SPIKE, **BACK})
    assert line == (
        "- ALARM: step 15 is a spike: loss 8.000 is 31.0 deviations above the usual 2.500, gradient norm 1.3 is 2.0 above 1 "
        "(threshold 10); the run goes back to step 8 and skips 6 batches, its rate times 0.8 from there on"
    )


def test_a_run_that_asks_a_person_has_not_failed_and_says_what_each_answer_does(run, monkeypatch, capsys):
    asks = "step 15 is a spike, and interventions.spikes asks for a person"
    outcome = Outcome(state="stopped", reason=asks, attempts=1, exit_code=EXIT_FINDINGS)
    monkeypatch.setattr("headway.supervise.supervisor.supervise", lambda run, **how: outcome)
    assert follow(run, json=False) == EXIT_FINDINGS
    told = capsys.readouterr().out
    assert f"headway resume {run.root} --spike roll-back   go back at least 100 steps before it and leave out 300 batches" in told
    assert f"headway resume {run.root} --spike accept " in told
    assert "do the same steps once more" in told


def test_a_marked_step_is_a_finding_and_says_why_it_was_left_out(run):
    log = StepLog(run, 1, FakeClock())
    log.write("start", pid=1)
    log.write("step", step=15, tokens=64, targets=64, loss=8.0, grad_norm=1.3, applied=False, spike=READING)
    found = {finding.rule: finding.message for finding in find_alarms(read_steps(run, 1))}
    assert found == {
        "spike": "a spike: loss 8.000 is 31.0 deviations above the usual 2.500, gradient norm 1.3 is 2.0 above 1",
        "not_applied": "the update was not applied: it is a spike, and the recipe says skip_update",
    }
