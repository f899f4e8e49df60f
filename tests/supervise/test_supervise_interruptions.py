"""What the supervisor writes about the ends of attempts is read as interruptions, or as none, by ``monitor.interruptions``."""

from __future__ import annotations

import os
import signal

import pytest
from test_supervise_fakes import choices as choices
from test_supervise_fakes import perform

from headway.monitor.interruptions import read_interruptions
from headway.rundir.events import read_events
from headway.rundir.metrics import read_all_steps

CRASH = ["step", "step", -9]
WEDGE = ["step", "evaluation", "save", "step"]
LAST = ["step", "end", 0]


@pytest.mark.parametrize(
    ("scripts", "interruptions"),
    [
        ([LAST], 0),
        ([CRASH, LAST], 1),
        ([WEDGE, LAST], 1),
        ([["step", 0], LAST], 1),  # it ended without a record of its end
        ([CRASH, [3], CRASH, LAST], 2),
        ([["step", 2]], 0),
        ([["step", "stopped", 0]], 0),
    ],
)
def test_interruptions_of_a_supervised_run(run, choices, scripts, interruptions):
    perform(run, scripts, max_fruitless_attempts=10)
    assert len(read_interruptions(read_events(run), read_all_steps(run)).gaps) == interruptions


@pytest.mark.parametrize("script", [["step", "silence", "stopped", 0], ["step"]], ids=["saves", "is killed"])
def test_a_stop_is_none(run, choices, script):
    def ask(record: dict) -> None:
        if record["kind"] == "step":
            os.kill(os.getpid(), signal.SIGTERM)

    outcome, _ = perform(run, [script], on_record=ask)
    assert outcome.state == "stopped"
    assert read_interruptions(read_events(run), read_all_steps(run)).gaps == ()
