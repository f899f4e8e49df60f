"""Records in, lines out: what a person sees of a run."""

from __future__ import annotations

import pytest

from headway.cli.progress import Progress, Row, Screen, header, nice_interval, row_line
from headway.recipe.schedules import Schedule
from headway.recipe.spec import BatchPhase, RateSpec, StageSpec

SECOND = 10**9


class FakeSpec:
    """As much of a Spec as a Schedule reads: two stages of 40 and 20 steps of 4 x 256 tokens, evaluated every 10 steps."""

    class evaluation:
        every_tokens = 10 * 1024

    class optimizer:
        peak_rate = 1e-3

    stages = tuple(
        StageSpec(name, steps * 1024, 256, steps * 4, (BatchPhase(0, 4),), RateSpec(0, "constant", 1.0, 1.0), (65536,), 1e4)
        for name, steps in (("main", 40), ("anneal", 20))
    )


@pytest.fixture
def progress() -> Progress:
    return Progress(Schedule(FakeSpec()), ("code", "prose"), steps_per_row=5)


def step(number: int, seconds: float = 1.0, **more: object) -> dict:
    nanoseconds = round(seconds * SECOND)
    row = {"kind": "step", "step": number, "stage": "main" if number <= 40 else "anneal", "tokens": number * 1024, "loss": 5.0}
    row |= {
        "grad_norm": 1.0,
        "clipped": False,
        "rate": 1e-3,
        "split": {"data_stall": nanoseconds // 100, "productive": nanoseconds * 99 // 100},
    }
    return row | more


def restored(number: int, checkpoint: str | None) -> dict:
    return {"kind": "restored", "step": number, "checkpoint": checkpoint, "split": {"restore": SECOND, "init": 5 * SECOND}}


def run_steps(progress: Progress, first: int, last: int) -> list[str]:
    return [line for number in range(first, last + 1) for line in progress.feed(step(number))]


def test_one_row_in_full():
    row = Row(
        step=40, total_steps=480, tokens=327_680, loss=6.1316, held_out={"code": 6.2009}, grad_norm=1.206, clipped=True,
        rate=9.88e-4, tokens_per_second=14_100.0, wait_share=0.0012, seconds_left=272.0,
    )  # fmt: skip
    titles, line = header(("code", "prose"), 480)[-1], row_line(row, ("code", "prose"))
    assert titles == "   step    tokens    loss     code   prose    grad       rate  tokens/s    wait  time left"
    assert line == " 40/480      328k   6.132    6.201       -    1.21c  9.88e-04     14.1k    0.1%  4 min 32 s"


def test_rows_align_with_their_header():
    """Columns are right-aligned: each title ends where its values end, whatever the source is called."""
    sources = ("code", "a-source-with-a-long-name")
    row = Row(
        step=7,
        total_steps=1200,
        tokens=12_345_678,
        loss=12.5,
        held_out=dict.fromkeys(sources, 11.25),
        grad_norm=103.5,
        clipped=False,
        rate=1e-5,
        tokens_per_second=1.0,
        wait_share=1.0,
        seconds_left=None,
    )
    titles, line = header(sources, 1200)[-1], row_line(row, sources)
    for title, value in (
        ("tokens", "12.3M"),
        ("loss", "12.500"),
        (sources[1], "11.250"),
        ("grad", "103.50"),
        ("rate", "1.00e-05"),
        ("wait", "100.0%"),
    ):
        assert titles.index(title) + len(title) == line.rindex(value) + len(value), title


@pytest.mark.parametrize(
    ("steps", "interval"), [(1, 1), (40, 1), (60, 1), (90, 2), (480, 20), (799, 20), (840, 50), (10_000, 500), (500_000, 20_000)]
)
def test_rows_come_at_round_steps(steps, interval):
    assert nice_interval(steps) == interval
    assert steps // interval <= 60


def test_speed_is_new_tokens_over_the_time_since_the_last_row(progress):
    progress.feed({"kind": "launch", "segment": 1, "pid": 7})
    progress.feed(restored(0, None))
    lines = run_steps(progress, 1, 5)
    assert lines[-1].startswith(" 5/60")
    assert " 1,024 " in lines[-1]
    assert "1.0%" in lines[-1]
    assert lines[-1].endswith("  55 s"), "55 steps of a second are left"


def test_G4_replayed_steps_are_not_progress(progress):
    progress.feed({"kind": "launch", "segment": 1, "pid": 7})
    progress.feed(restored(0, None))
    run_steps(progress, 1, 19)
    killed = progress.feed({"kind": "exit", "segment": 1, "code": None, "signal": 9, "reason": "ended by SIGKILL"})
    assert killed == ["- killed: the trainer of segment 1 ended by SIGKILL after step 19"]
    progress.feed({"kind": "launch", "segment": 2, "pid": 8})
    assert progress.feed(restored(10, "g0001-s00000010")) == [
        "- segment 2 goes on from checkpoint g0001-s00000010: steps 11 to 19 are done again"
    ]
    assert "again" in run_steps(progress, 11, 15)[-1]
    progress.feed({"kind": "evaluation", "step": 15, "tokens": 15 * 1024, "loss": {"code": 4.0, "prose": 4.5}, "split": {}})
    line = [
        *run_steps(progress, 16, 20),
        *progress.feed({"kind": "evaluation", "step": 20, "loss": {"code": 4.0, "prose": 4.5}}),
    ][-1]
    assert " 205 " in line, "one new step of 1,024 tokens in five seconds"


def test_a_row_waits_for_the_evaluation_of_its_step(progress):
    progress.feed(restored(0, None))
    assert [line for line in run_steps(progress, 6, 10) if line.startswith("10/60")] == []
    line = progress.feed(
        {"kind": "evaluation", "step": 10, "loss": {"code": 4.123, "prose": 4.567}, "split": {"evaluation": SECOND}}
    )[-1]
    assert line.startswith("10/60")
    assert "4.123   4.567" in line


def test_stages_are_announced_once(progress):
    progress.feed(restored(0, None))
    lines = run_steps(progress, 1, 45)
    progress.feed(restored(40, "g0001-s00000040"))
    lines += run_steps(progress, 41, 60)
    assert [line for line in lines if line.startswith("- stage")] == [
        "- stage main: steps 1 to 40",
        "- stage anneal: steps 41 to 60",
    ]


def test_saves_faults_and_the_end_have_lines_of_their_own(progress):
    progress.feed({"kind": "launch", "segment": 1, "pid": 7})
    run_steps(progress, 1, 20)
    save = {"kind": "save", "step": 20, "checkpoint": "g0001-s00000020", "bytes": 24_234_567, "blocking_ns": 41_000_000}
    assert progress.feed(save) == ["- saved step 20 (g0001-s00000020, 23.1 MiB; training waited 41 ms)"]
    assert progress.feed({"kind": "save_failed", "step": 30, "error": "disk full"}) == [
        "- ALARM: saving step 30 failed, training goes on: disk full"
    ]
    rejected = {
        "kind": "checkpoint_rejected",
        "checkpoint": "g0001-s00000020",
        "reason": "block 3 of data.safetensors is damaged",
    }
    assert progress.feed(rejected) == ["- checkpoint g0001-s00000020 is refused: block 3 of data.safetensors is damaged"]
    assert progress.feed({"kind": "finish", "state": "stopped", "reason": "asked to"}) == [
        "- run stopped at step 20/60: asked to"
    ]


def test_an_interval_that_changes_has_a_line(progress):
    change = {
        "kind": "interval",
        "step": 20,
        "seconds": 250.0,
        "reason": "a save costs 2 s, an interruption comes every 4 h 0 min",
    }
    assert progress.feed(change) == ["- saves every 4 min 10 s: a save costs 2 s, an interruption comes every 4 h 0 min"]
    assert progress.feed({"kind": "interval", "step": 20, "seconds": 250}) == ["- saves every 4 min 10 s"]


def test_numbers_that_are_not_finite_are_shown(progress):
    lines = progress.feed(step(5, loss="nan", grad_norm="inf", applied=False))
    assert "- ALARM: the update of step 5 was not applied: its gradient was not finite" in lines
    assert "nan" in lines[-1]
    assert "inf" in lines[-1]


def test_a_kill_by_the_supervisor_says_why(progress):
    run_steps(progress, 1, 7)
    killed = {"kind": "exit", "segment": 1, "code": None, "signal": 9}
    alone = "- killed: the trainer of segment 1 ended by SIGKILL after step 7"
    assert progress.feed(killed | {"reason": "ended by SIGKILL"}) == [alone]
    assert progress.feed(killed) == [alone]
    assert progress.feed(killed | {"reason": "no progress for 120 s"}) == [f"{alone}: no progress for 120 s"]


@pytest.mark.parametrize(
    ("forced", "number", "words"),
    [
        ("stop", 15, "stopped by request"),
        ("pause", 9, "stopped for a pause"),
        ("hang", 9, "ended by the supervisor, a hang"),
    ],
)
def test_what_the_run_did_itself_is_no_kill(progress, forced, number, words):
    run_steps(progress, 1, 7)
    ended = {"kind": "exit", "segment": 1, "code": None, "signal": number, "forced": forced, "reason": "so it was"}
    assert progress.feed(ended) == [f"- {words}: the trainer of segment 1, after step 7: so it was"]


def test_an_end_in_start_up_is_after_no_step(progress):
    run_steps(progress, 1, 7)
    progress.feed({"kind": "launch", "segment": 2, "pid": 8})
    ended = {"kind": "exit", "segment": 2, "code": None, "signal": 15, "reason": "asked to stop by SIGINT", "forced": "stop"}
    words = "- stopped by request: the trainer of segment 2, before its first step: asked to stop by SIGINT"
    assert progress.feed(ended) == [words]
    progress.feed({"kind": "launch", "segment": 3, "pid": 9})
    failed = {"kind": "exit", "segment": 3, "code": 3, "signal": None, "reason": "exit code 3"}
    assert progress.feed(failed) == ["- the trainer of segment 3 failed with exit code 3 before its first step: exit code 3"]


def test_a_lost_node_is_one_line_and_its_return_another(progress):
    run_steps(progress, 1, 7)
    why = "its agent was ended by SIGKILL"
    ended = {"kind": "exit", "segment": 1, "code": None, "signal": 9, "rank": 1, "lost_node": "n1"}
    words = f"node n1 was lost with rank 1: {why}"
    assert progress.feed(ended | {"reason": words}) == [f"- ALARM: segment 1 ended after step 7: {words}"]
    lost = {"kind": "node", "host": "n1", "state": "lost", "reason": why}
    assert progress.feed(lost) == []
    assert progress.feed(lost | {"host": "n0"}) == [f"- ALARM: node n0 is lost: {why}"]
    assert progress.feed(lost | {"reason": "cannot start node n1"}) == ["- ALARM: node n1 is lost: cannot start node n1"]
    assert progress.feed(lost | {"state": "back", "reason": "its agent answers"}) == ["- node n1 is back: its agent answers"]


def test_a_resume_that_has_nothing_to_do(progress):
    finish = {"kind": "finish", "state": "complete", "reason": "nothing is left to train"}
    assert progress.feed(finish) == ["- run complete: nothing is left to train"]


def test_the_screen_rewrites_its_last_line_on_a_terminal_only(progress, capsys):
    for live in (True, False):
        screen = Screen(Progress(progress.schedule, progress.sources, steps_per_row=5), live=live)
        for number in range(1, 8):
            screen.show(step(number))
        shown = capsys.readouterr().out
        assert ("\r" in shown) is live
        assert " 7/60" in shown.rpartition("\r")[2] if live else " 7/60" not in shown
        assert shown.endswith("\n") is not live


def test_unknown_records_say_nothing(progress):
    assert progress.feed({"kind": "something-newer", "split": {"productive": 5}}) == []


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"blocking_ns": 40_000_000, "flush_ns": 600_000_000}, "; training waited 40 ms, written in 600 ms)"),
        ({"blocking_ns": 40_000_000}, "; training waited 40 ms)"),
        ({}, "1 KiB)"),
    ],
)
def test_a_save_shows_all_the_time_that_training_waited(progress, fields, words):
    (line,) = progress.feed({"kind": "save", "step": 5, "checkpoint": "g0001-s00000005", "bytes": 1024} | fields)
    assert line.startswith("- saved step 5 (g0001-s00000005, 1 KiB")
    assert line.endswith(words)
