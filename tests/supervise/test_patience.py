"""F2: silence that is a hang, and silence that is not."""

from __future__ import annotations

import pytest

from headway.supervise.patience import Patience

S = 10**9


def patience(**changes: float) -> Patience:
    watch = Patience(**{"floor_seconds": 10.0, "factor": 5.0, "generous_seconds": 1000.0, **changes})
    watch.begin(0)
    return watch


def row(kind: str, seconds: float = 1.0) -> dict:
    return {"kind": kind, "split": {"productive": round(seconds * S)}}


def ready(watch: Patience, seconds: float = 1.0) -> Patience:
    for kind in ("step", "save", "evaluation"):
        watch.progress(row(kind, seconds), 0)
    return watch


def test_F2_slow_start_is_not_a_hang():
    watch = patience()
    for kind in ("start", "restored"):
        watch.progress({"kind": kind}, 0)
    assert not watch.is_over(999 * S)
    assert watch.is_over(1001 * S)


def test_F2_first_save_and_evaluation_may_take_their_time():
    watch = patience()
    for _ in range(50):
        watch.progress(row("step", 0.1), 0)
    assert not watch.is_over(999 * S)
    watch.progress(row("save", 3.0), 0)
    assert not watch.is_over(999 * S), "an evaluation may still come for the first time"
    watch.progress(row("evaluation", 1.0), 0)
    assert watch.is_over(16 * S)


def test_F8_silence_beyond_the_learned_limit_is_a_hang():
    watch = ready(patience())
    assert not watch.is_over(10 * S)
    assert watch.is_over(10 * S + 1)


@pytest.mark.parametrize("kind", ["step", "save", "evaluation", "sample"])
def test_F2_limit_grows_with_the_longest_row_of_any_kind(kind):
    watch = ready(patience())
    watch.progress(row(kind, 60.0), 0)
    assert watch.limit_seconds == 300.0


def test_progress_starts_the_count_anew():
    watch = ready(patience())
    watch.progress(row("step"), 100 * S)
    assert not watch.is_over(109 * S)


def test_restart_is_generous_again_and_remembers_the_run():
    watch = ready(patience(), 4.0)
    watch.begin(0)
    assert watch.limit_seconds == 1000.0
    watch.progress(row("step"), 0)
    assert watch.limit_seconds == 20.0


def test_rows_of_earlier_owners_are_learned_from():
    watch = patience()
    watch.learn([{"kind": "start"}, row("restored", 500.0), row("step"), row("save", 7.0), row("evaluation")])
    watch.begin(0)
    watch.progress(row("step"), 0)
    assert watch.limit_seconds == 35.0, "a long restore is no measure for a step"


def test_D12_stall_is_no_progress_but_a_cause_that_may_pass():
    watch = ready(patience())
    for second in range(10, 1000, 10):
        watch.progress({"kind": "stall", "split": {"data_stall": 10 * S}}, second * S)
        assert not watch.is_over(second * S)
    assert watch.last_row_ns == 990 * S
    assert watch.is_over(1001 * S), "a reader that never returns is a hang all the same"
    watch.progress(row("step"), 995 * S)
    assert watch.limit_seconds == 10.0, "and its length is no measure for a step"


def test_F5_grace_is_twice_the_longest_step_and_save():
    watch = patience()
    assert watch.grace_seconds(30.0) == 30.0
    watch.learn([row("step", 20.0), row("step", 7.0), row("save", 5.0), row("evaluation", 500.0)])
    assert watch.grace_seconds(30.0) == 50.0
