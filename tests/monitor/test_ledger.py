"""G1: the categories of time add up to the wall clock, exactly, whatever happened."""

from __future__ import annotations

from dataclasses import replace

import pytest
from histories import MS, TOKENS, History
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_run import TOKENS_PER_STEP, tiny_spec

from headway.monitor.ledger import Ledger, build_ledger, merged
from headway.monitor.progress import Progress
from headway.recipe.schedules import Schedule


def fold(history: History) -> Ledger:
    return build_ledger(history.events, history.steps, history.chain)


def start(history: History, parent: int | None, restored: int) -> None:
    history.launch(parent, restored)
    history.row("start", [("init", 50 * MS)], pid=1)
    history.row("restored", [("restore", 5 * MS)], step=restored)


def recovery_trace() -> History:
    """Worked by hand: save at 3, fail after 5, restore, run 4-6, commit 6."""
    history = History()
    history.open()
    start(history, None, 0)
    for number in range(1, 6):
        history.step(number, 1 * MS, 9 * MS)
        if number == 3:
            history.row("save", [("blocking_save", 4 * MS)], step=3, checkpoint="g0001-s00000003")
    history.exit(20 * MS)
    start(history, 1, 3)
    for number in range(4, 7):
        history.step(number, 1 * MS, 9 * MS)
    history.row("save", [("blocking_save", 4 * MS)], step=6, checkpoint="g0002-s00000006")
    history.row("end", [("reconfigure", 1 * MS)], step=6, state="complete")
    history.exit(2 * MS)
    history.advance(MS)
    history.account("reconfigure")
    history.event("finish", state="complete", reason="", closes="reconfigure")
    return history


def test_recovery_trace_by_hand():
    ledger = fold(recovery_trace())
    assert ledger.attempted == Progress(8, 8 * TOKENS)
    assert ledger.committed == Progress(6, 6 * TOKENS)
    assert {name: ns // MS for name, ns in ledger.categories.items()} == {
        "provision": 3,
        "init": 100,
        "restore": 10,
        "productive": 54,
        "data_stall": 6,
        "rolled_back": 20,
        "blocking_save": 8,
        "detection_to_stop": 22,
        "reconfigure": 5,
    }
    assert ledger.total_ns == 228 * MS
    assert ledger.goodput == 54 / 228
    assert ledger.committed_tokens_per_second == pytest.approx(6 * TOKENS / 0.228)
    assert ledger.drift_ns == 0
    assert ledger.flags == ()


def test_G1_clean_restart_at_the_next_step_shows_its_downtime():
    history = recovery_trace()
    history.advance(7 * MS)
    history.open(closes="planned_pause")
    start(history, 2, 6)
    history.step(7, 0, 10 * MS)
    ledger = fold(history)
    assert ledger.categories["planned_pause"] == 7 * MS
    assert ledger.categories == pytest.approx(history.expected())


def test_G4_replayed_steps_are_not_progress():
    ledger = fold(recovery_trace())
    gone = [interval for interval in ledger.intervals if interval.category == "rolled_back"]
    assert {interval.was for interval in gone} == {"productive", "data_stall"}
    assert {interval.segment for interval in gone} == {1}


def test_G1_one_dropped_interval_is_caught():
    ledger = fold(recovery_trace())
    for index in range(len(ledger.intervals)):
        broken = replace(ledger, intervals=ledger.intervals[:index] + ledger.intervals[index + 1 :])
        with pytest.raises(AssertionError, match="ledger:"):
            broken.check()


def test_one_longer_interval_is_caught():
    ledger = fold(recovery_trace())
    first, *rest = ledger.intervals
    with pytest.raises(AssertionError, match="ledger:"):
        replace(ledger, intervals=(replace(first, ns=first.ns + 1), *rest)).check()


def test_running_trainer_counts_up_to_its_last_row():
    history = History()
    history.open()
    start(history, None, 0)
    history.step(1, 1, 2)
    history.advance(99 * MS)
    ledger = fold(history)
    assert ledger.total_ns == 58 * MS + 3
    assert ledger.committed == Progress(0, 0)


def test_hang_is_counted_from_the_last_progress_to_its_declaration():
    history = History()
    history.open()
    start(history, None, 0)
    history.step(1, 0, 10 * MS)
    history.hang(300 * MS)
    history.exit(5 * MS)
    categories = fold(history).categories
    assert (categories["hang"], categories["detection_to_stop"]) == (300 * MS, 5 * MS)


def test_row_after_the_declaration_of_a_hang_is_not_time():
    history = History()
    history.open()
    start(history, None, 0)
    history.hang(300 * MS)
    history.step(1, 0, 4 * MS)
    history.exit(0)
    ledger = fold(history)
    assert ledger.categories["detection_to_stop"] == 4 * MS
    assert any("not counted" in flag for flag in ledger.flags)
    assert ledger.attempted.steps == 1


def test_gap_of_a_dead_owner_is_unknown_flagged_and_subdivided():
    history = History()
    history.open()
    start(history, None, 0)
    history.step(1, 0, 10 * MS)  # the owner dies; the trainer goes on a little
    history.step(2, 0, 10 * MS)
    history.advance(500 * MS)
    history.open()
    history.exit(1 * MS)
    ledger = fold(history)
    assert (ledger.categories["productive"], ledger.categories["unknown"]) == (20 * MS, 500 * MS)
    assert any("unknown" in flag for flag in ledger.flags)


def test_trainer_of_another_boot_is_detail():
    history = History()
    history.open()
    history.remote = True
    start(history, None, 0)
    history.step(1, 2 * MS, 10 * MS)
    history.exit(30 * MS, progress_ns=history.clock.real_ns)
    ledger = fold(history)
    assert ledger.categories == {"unknown": 67 * MS, "detection_to_stop": 30 * MS, "provision": 3 * MS}
    assert ledger.details == {1: {"restore": 5 * MS, "data_stall": 2 * MS, "productive": 10 * MS}}
    assert any("another boot" in flag for flag in ledger.flags)


def test_altered_link_between_epochs_is_flagged():
    history = recovery_trace()
    history.open(closes="planned_pause")
    history.events[-2]["reason"] = "altered"
    assert any("missing or altered" in flag for flag in fold(history).flags)


def test_gap_over_a_boot_is_the_recorded_one():
    history = History()
    history.open()
    history.reboot(10 * MS)
    history.open()
    history.events[-1]["previous"]["gap_ns"] = 9 * MS  # as its writer judged: the two wall clocks are not compared again
    ledger = fold(history)
    assert (ledger.total_ns, ledger.drift_ns) == (9 * MS, 1 * MS)
    assert len(ledger.flags) == 1


def test_boot_that_changed_without_an_open_record_is_flagged():
    history = History()
    history.open()
    history.reboot(10 * MS)
    history.event("finish", state="failed", reason="", closes="reconfigure")
    ledger = fold(history)
    assert ledger.total_ns == 10 * MS
    assert any("without an open record" in flag for flag in ledger.flags)


def test_row_that_claims_more_time_than_passed_is_cut_and_flagged():
    history = History()
    history.open()
    start(history, None, 0)
    history.step(1, 0, 10 * MS)
    history.steps[1][-1]["split"]["productive"] += 5 * MS
    ledger = fold(history)
    assert ledger.categories["productive"] == 10 * MS
    assert any("claims more time" in flag for flag in ledger.flags)


def test_open_record_amid_a_row_that_is_the_last_of_all():
    history = History()
    history.open()
    start(history, None, 0)
    history.advance(10 * MS)
    history.open(amid_rows=True)
    amid(history, 10 * MS, 5 * MS)
    ledger = fold(history)
    assert ledger.categories["evaluation"] == 15 * MS
    assert (ledger.total_ns, ledger.drift_ns) == (73 * MS, 0)


def test_nothing_has_happened():
    ledger = build_ledger([], {}, [])
    assert (ledger.total_ns, ledger.categories, ledger.goodput) == (0, {}, 0.0)


def test_merged_keeps_the_time():
    ledger = fold(recovery_trace())
    bars = merged(ledger.intervals, shortest_ns=5 * MS)
    assert sum(bar.ns for bar in bars) == ledger.total_ns
    assert len(bars) < len(ledger.intervals)


def lost_row(torn: int) -> History:
    """Steps 1-4 with a save at 4; the row of step ``torn`` and the save's own neighbour rows may be missing."""
    history = History()
    history.open()
    start(history, None, 0)
    for number in range(1, 5):
        history.step(number, 0, 10 * MS, torn=number == torn)
    history.row("save", [("blocking_save", MS)], step=4, checkpoint="c")
    return history


def test_committed_tokens_where_the_row_of_the_step_is_torn():
    history = lost_row(torn=4)
    ledger = fold(history)
    assert ledger.committed == Progress(4, 3 * TOKENS, lacks_tokens=True), "of the nearest row before it, never 0"
    assert any("committed step 4 is lost" in flag for flag in ledger.flags)
    assert not any("is lost" in flag for flag in fold(lost_row(torn=2)).flags if "committed" in flag)
    schedule = Schedule(tiny_spec(steps=20))
    exact = build_ledger(history.events, history.steps, history.chain, schedule)
    assert exact.committed == Progress(4, 4 * TOKENS_PER_STEP)
    assert not any("committed" in flag for flag in exact.flags)


def test_stall_of_a_step_that_was_undone_is_rolled_back():
    """Saved 3, stalled before 4 and within 4 and 5; the next attempt restores 3. The wait before 3 was done is kept."""
    history = History()
    history.open()
    start(history, None, 0)
    history.row("stall", [("data_stall", 10 * MS)], step=2, waited_ns=10 * MS, shard="a")
    history.step(3, 1 * MS, 2 * MS)
    history.row("save", [("blocking_save", 4 * MS)], step=3, checkpoint="c")
    history.row("retention_failed", [("blocking_save", 1 * MS)], step=3, error="full")
    for number in (4, 5):
        history.row("stall", [("data_stall", 20 * MS)], step=number - 1, waited_ns=20 * MS, shard="a")
        history.step(number, 1 * MS, 2 * MS)
    history.row("evaluation", [("evaluation", 7 * MS)], step=5, loss={})
    history.exit(MS)
    start(history, 1, 3)
    ledger = fold(history)
    categories = ledger.categories
    assert categories["data_stall"] == 11 * MS
    assert categories["rolled_back"] == 2 * (20 + 1 + 2) * MS
    assert categories["evaluation"] == 7 * MS, "it was never counted as progress: nothing is taken back"
    assert categories["blocking_save"] == 5 * MS
    assert ledger.attempted.steps == 3
    assert categories == history.expected()


def test_gap_before_an_owner_says_what_was_before_it():
    died, failed = History(), History()
    for history in (died, failed):
        history.open()
        start(history, None, 0)
        history.exit(MS)
    failed.event("finish", state="failed", reason="", closes="reconfigure")
    flags = []
    for history in (died, failed):
        history.advance(MS)
        history.open()
        flags += [flag.partition(": ")[2] for flag in fold(history).flags]
    assert flags == ["the owner before it died; the gap before it is unknown", "the run had failed; the gap before it is unknown"]


durations = st.integers(0, 10**11)
steps = st.lists(st.tuples(durations, durations, st.booleans()), max_size=6)
stalls = st.lists(durations, max_size=2)
endings = ("crash", "hang", "complete", "owner_died", "owner_died_amid_row", "rebooted", "stopped")
attempts = st.lists(
    st.fixed_dictionaries(
        {
            "steps": steps,
            "stalls": stalls,
            "save_after": st.integers(0, 6),
            "ending": st.sampled_from(endings),
            "remote": st.booleans(),
            "rest": durations,
            "gap": durations,
            "torn_last": st.booleans(),
        }
    ),
    min_size=1,
    max_size=5,
)


def tell(plan: list[dict]) -> History:
    """One history after the plan; every attempt restores the newest save of the one it goes on from."""
    history = History()
    history.open()
    saved: tuple[int | None, int] = (None, 0)
    for attempt in plan:
        history.remote = attempt["remote"] and attempt["ending"] in ("crash", "hang")
        start(history, *saved)
        saved = tell_steps(history, attempt, saved)
        progress_ns = history.clock.real_ns
        tell_ending(history, attempt, progress_ns)
    return history


def tell_steps(history: History, attempt: dict, saved: tuple[int | None, int]) -> tuple[int | None, int]:
    first, segment = saved[1] + 1, len(history.segments)
    for index, (stall_ns, work_ns, torn) in enumerate(attempt["steps"]):
        for ns in attempt["stalls"]:
            history.row("stall", [("data_stall", ns)], step=first + index - 1, waited_ns=ns, shard="a")
        history.step(first + index, stall_ns, work_ns, torn)
        if index + 1 == attempt["save_after"] and not history.remote:
            saved = (segment, first + index)
            history.row("save", [("blocking_save", attempt["rest"])], step=first + index, checkpoint="c")
    if attempt["torn_last"]:
        history.step(first + len(attempt["steps"]), 5, 6, torn=True)
    return saved


def tell_ending(history: History, attempt: dict, progress_ns: int) -> None:
    ending, rest_ns, gap_ns = attempt["ending"], attempt["rest"], attempt["gap"]
    if ending == "hang":
        history.lost = False
        if history.remote:
            history.truth["unknown"] += progress_ns - history.accounted_ns
            history.accounted_ns = progress_ns
            rest_ns += history.clock.real_ns - progress_ns
        history.hang(rest_ns)
        progress_ns = history.accounted_ns
    if ending == "owner_died":
        history.advance(gap_ns)
        history.open()
    if ending == "owner_died_amid_row":
        history.advance(gap_ns)
        history.open(amid_rows=True)
        if history.lost:
            history.account("unknown")
        history.lost = False
        elapsed_ns = history.clock.real_ns - history.accounted_ns
        amid(history, elapsed_ns, rest_ns)
    if ending == "rebooted":
        history.reboot(gap_ns)
        history.open()
    history.exit(rest_ns, progress_ns=progress_ns if history.remote else None)
    if ending in ("complete", "stopped"):
        history.event("finish", state=ending, reason="", closes="reconfigure")
        history.advance(gap_ns)
        history.open(closes="planned_pause")


def amid(history: History, before_ns: int, after_ns: int) -> None:
    """A row whose interval holds the open record."""
    history.advance(after_ns)
    history.account("evaluation")
    row = {
        "kind": "evaluation",
        "stamp": history.clock.stamp().to_json(),
        "split": {"evaluation": before_ns + after_ns},
        "loss": {},
        "step": 0,
    }
    history.steps[len(history.segments)].append(row)


@settings(max_examples=300, deadline=None)
@given(plan=attempts)
@example(
    plan=[
        {
            "steps": [(1, 2, False)],
            "stalls": [],
            "save_after": 1,
            "ending": "rebooted",
            "remote": False,
            "rest": 3,
            "gap": 4,
            "torn_last": True,
        }
    ]
    * 2
)
def test_G1_categories_sum_to_the_chain_over_any_history(plan):
    history = tell(plan)
    ledger = fold(history)
    assert ledger.total_ns == history.clock.real_ns - history.first_ns
    assert sum(ledger.categories.values()) == ledger.total_ns
    assert ledger.categories == {k: v for k, v in history.expected().items() if v}
    assert ledger.drift_ns == 0
    if ledger.intervals:
        with pytest.raises(AssertionError, match="ledger:"):
            replace(ledger, intervals=ledger.intervals[1:]).check()


def numbered(history: History) -> list[dict]:
    """Events as the log writes them: each with its number, links to what was really written."""
    return [{**event, "n": number} for number, event in enumerate(history.events)]


def test_a_lost_launch_line_is_flagged_and_its_time_is_unknown():
    history = recovery_trace()
    events = numbered(history)
    assert build_ledger(events, history.steps, history.chain).flags == ()
    second = next(index for index, event in enumerate(events) if event["kind"] == "launch" and event["segment"] == 2)
    ledger = build_ledger(events[:second] + events[second + 1 :], history.steps, history.chain)
    whole = fold(history)
    assert ledger.total_ns == whole.total_ns
    assert ledger.categories["detection_to_stop"] == 20 * MS, "that of segment 1 alone"
    exits = [event["stamp"]["boot_ns"] for event in events if event["kind"] == "exit"]
    assert ledger.categories["unknown"] == exits[1] - exits[0]
    assert any("segment 2: its launch is not recorded" in flag for flag in ledger.flags)
    assert any("exit (record 4): the record it follows is missing" in flag for flag in ledger.flags)


def test_a_lost_exit_line_makes_the_time_up_to_the_next_launch_unknown():
    history = recovery_trace()
    events = [event for event in numbered(history) if event["kind"] != "exit" or event["segment"] != 1]
    ledger = build_ledger(events, history.steps, history.chain)
    assert ledger.categories["unknown"] == 23 * MS, "20 to the exit, 3 to the launch"
    assert ledger.categories["rolled_back"] == 20 * MS, "rows still divide what they saw"


def test_a_lost_finish_line_makes_the_gap_unknown():
    history = recovery_trace()
    history.advance(7 * MS)
    history.open(closes="planned_pause")
    ledger = build_ledger([event for event in numbered(history) if event["kind"] != "finish"], history.steps, history.chain)
    assert ledger.categories["unknown"] == 8 * MS
    assert "planned_pause" not in ledger.categories


def test_what_the_readers_left_out_is_a_flag():
    history = recovery_trace()
    assert build_ledger(history.events, history.steps, history.chain, damaged=["2 lines"]).flags == ("2 lines",)


def test_an_owner_that_gave_up_its_lease_did_not_die():
    history = recovery_trace()
    history.event("note", text="", state="lost")
    history.open()
    assert fold(history).flags == (
        f"epoch {len(history.events)}: the owner before it gave up the lease; the gap before it is unknown",
    )
