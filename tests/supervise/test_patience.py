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


def test_F2_a_phase_that_was_never_ended_has_its_hard_limit():
    watch = patience(hard_seconds={"compile": 5000.0})
    watch.learn([row("step", 1.0)])
    limits = {phase: watch.phase_seconds(phase) for phase in ("init", "compile", "step", "save", "evaluation", "end")}
    assert limits == {"init": 1000, "compile": 5000, "step": 10, "save": 1000, "evaluation": 1000, "end": 1000}
    watch.learn([row("evaluation", 7.0), {**row("save", 0.1), "flush_ns": 60 * S}])
    assert (watch.phase_seconds("evaluation"), watch.phase_seconds("save")) == (35.0, 10.0)


def test_F8_heartbeats_tell_a_step_from_an_evaluation():
    """Without them nothing announces an evaluation, and a step that hangs is given the time of one."""
    watch = patience()
    watch.progress(row("step", 1.0), 0)
    assert watch.limit_seconds == 1000.0
    watch.moved({"step", "data"}, 0)
    assert watch.is_over(11 * S)
    watch.moved({"step", "evaluation"}, 0)
    assert not watch.is_over(999 * S), "who waits for a rank that evaluates has its patience"


def test_F2_a_rank_that_moves_is_progress_without_a_row():
    watch = patience()
    watch.progress(row("step", 1.0), 0)
    for second in range(0, 900, 5):
        watch.moved({"evaluation"}, second * S)
    assert watch.last_progress_ns == 895 * S
    assert watch.last_row_ns == 0


def test_a_start_that_was_seen_teaches_the_next_with_more_patience():
    watch = patience()
    watch.learn([{"kind": "restored", "phases_ns": {"import": 3 * S, "model": 2 * S, "restore": 20 * S}}])
    assert (watch.phase_seconds("init"), watch.phase_seconds("restore")) == (100.0, 400.0)
    watch.started("compile", 60 * S)
    assert watch.phase_seconds("compile") == 1000.0, "never more than the hard limit"


def test_a_phase_that_took_longer_than_its_hard_limit_and_ended_well_is_not_killed_for_it():
    watch = patience(hard_seconds={"step": 20.0})
    watch.learn([row("step", 18.0)])
    assert watch.phase_seconds("step") == 36.0


def test_D12_a_stall_has_the_hard_limit_of_the_data():
    watch = patience(hard_seconds={"data": 300.0})
    watch.learn([row("step", 1.0)])
    watch.moved({"data", "step"}, 0)
    watch.progress({"kind": "stall", "split": {}}, 5 * S)
    assert watch.limit_seconds == 1000.0, "the ranks that wait for it, too"
    watch.moved({"step"}, 6 * S)
    assert watch.limit_seconds == 10.0
