"""The interval between saves: priors and costs worked by hand, bounds, hysteresis, and what the trainer asks and tells."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from histories import MS, History
from hypothesis import given
from hypothesis import strategies as st
from interval_histories import SECOND, policy

from headway.base.clocks import FakeClock
from headway.base.files import make_directory
from headway.formulas.checkpoint_interval import daly_interval_seconds
from headway.formulas.failure_estimate import FailureRate
from headway.monitor.interval import ASSUMED, Costs, Interval, IntervalPolicy, decide, first_decision, is_due
from headway.recipe.load import load_deployment
from headway.rundir.metrics import StepLog, read_step_rows

HOUR = 3600.0
ADAPTIVE = "checkpoints.adaptive={}"
NO_FLUSH = Costs(save_seconds=2.0, flush_seconds=0.0, restart_seconds=60.0)


def rate(between: float, interruptions: float = 1) -> FailureRate:
    return FailureRate(interruptions=interruptions, at_risk_seconds=between * interruptions)


# --- the deployment's part


def of(*settings: str) -> IntervalPolicy | None:
    return IntervalPolicy.of(load_deployment(None, [*settings], runnable=False))


def test_a_deployment_without_it_keeps_its_steps():
    assert of() is None


def test_the_prior_is_once_a_day_where_nobody_states_a_rate():
    assert of(ADAPTIVE, "checkpoints.every_steps=40", "failures.restart=90s") == IntervalPolicy(
        least_seconds=60.0, most_seconds=3600.0, every_steps=40, restart_seconds=90.0, prior=ASSUMED
    )
    assert (ASSUMED.interruptions, ASSUMED.between_seconds) == (1, 24 * HOUR)


def test_a_stated_prior_weighs_three_interruptions():
    """50,000 device hours over 32 devices: 1,562.5 h."""
    cluster = ("nodes=4", "processes_per_node=8", "layouts.default.dp_shard=32", ADAPTIVE)
    assert of(*cluster, "failures.per_device=50000h").prior == rate(1562.5 * HOUR, 3)
    assert of(ADAPTIVE, "failures.every=8h").prior == rate(8 * HOUR, 3)
    assert of(ADAPTIVE, "failures.every=0s").prior == rate(1.0, 3), "as good as always"


# --- decisions


def test_daly_by_hand():
    """c = 2 s, M = 10,000 s: sqrt(40,000) = 200; 200 (1 + 0.01 / 3 + 2 / 180,000) - 2 = 198.67 s."""
    decision = decide(policy(), rate=rate(10_000.0, 4), costs=NO_FLUSH)
    assert decision.interval_seconds == pytest.approx(198.67, abs=0.01)
    assert (decision.between_failures_seconds, decision.save_seconds, decision.restart_seconds) == (10_000.0, 2.0, 60.0)
    assert decision.bound == ""
    assert decision.between_failures_range == rate(10_000.0, 4).between_range_seconds
    assert decision.reason == "a save costs 2 s, an interruption comes every 2 h 47 min (80 %: 1 h 40 min to 6 h 22 min)"


@pytest.mark.parametrize(
    ("least", "most", "flush", "seconds", "bound"),
    [
        (300.0, 900.0, 0.0, 300.0, "least"),
        (10.0, 150.0, 0.0, 150.0, "most"),
        (10.0, 900.0, 99.0, 198.67, ""),
        (10.0, 900.0, 120.0, 240.0, "flush"),
        (300.0, 900.0, 120.0, 300.0, "least"),
        (10.0, 200.0, 120.0, 200.0, "most"),  # what a person bounds stays bounded; checkpoints.when_busy says what then
    ],
)
def test_bounds_and_room_for_the_writer(least, most, flush, seconds, bound):
    costs = replace(NO_FLUSH, flush_seconds=flush)
    decision = decide(policy(least, most), rate=rate(10_000.0), costs=costs)
    assert decision.interval_seconds == pytest.approx(seconds, abs=0.01)
    assert decision.bound == bound
    assert ("would be best" in decision.reason) is bool(bound)


def test_a_decision_stands_until_another_differs_by_more_than_a_tenth():
    """The interval grows as the root of the time between failures: by less than 10 % up to 1.21 times."""
    before = decide(policy(), rate=rate(10_000.0), costs=NO_FLUSH)
    for between in (8_200.0, 12_000.0):
        assert decide(policy(), rate=rate(between), costs=NO_FLUSH, before=before) is before
    for between in (8_000.0, 12_300.0):
        changed = decide(policy(), rate=rate(between), costs=NO_FLUSH, before=before)
        assert changed.interval_seconds == daly_interval_seconds(2.0, between)


def test_a_decision_that_lets_saves_pile_up_does_not_stand():
    before = decide(policy(), rate=rate(10_000.0), costs=NO_FLUSH)
    costs = replace(NO_FLUSH, flush_seconds=100.0)  # 200 s is not even 1 % more
    assert decide(policy(), rate=rate(10_000.0), costs=costs, before=before).interval_seconds == 200.0


seconds = st.floats(1e-3, 1e6)


@given(least=seconds, width=st.floats(0, 1e6), save=st.floats(0, 1e5), flush=st.floats(0, 1e5), between=seconds, later=seconds)
def test_bounds_are_always_respected(least, width, save, flush, between, later):
    bounds = policy(least, least + width)
    costs = Costs(save_seconds=save, flush_seconds=flush, restart_seconds=60.0)
    first = decide(bounds, rate=rate(between), costs=costs)
    for decision in (first, decide(bounds, rate=rate(later), costs=costs, before=first)):
        assert bounds.least_seconds <= decision.interval_seconds <= bounds.most_seconds
        assert decision.interval_seconds >= min(2 * flush, bounds.most_seconds)


def test_before_a_save_was_measured_steps_count():
    decision = first_decision(policy(60, 3600, 100), rate=rate(HOUR), step_seconds=2.5, restart_seconds=60.0)
    assert (decision.interval_seconds, decision.bound, decision.save_seconds) == (250.0, "", None)
    assert decision.reason == "no save has been measured yet, so every 100 steps"
    short = first_decision(policy(60, 3600, 1), rate=rate(HOUR), step_seconds=2.5, restart_seconds=60.0)
    assert (short.interval_seconds, short.bound) == (60.0, "least")
    assert short.reason.endswith("so every 1 step, but not sooner than checkpoints.adaptive.least")


# --- due


def due(since: float, step: float, interval: float = 100.0, least: float = 10.0, most: float = 1000.0) -> bool:
    decision = replace(decide(policy(), rate=rate(HOUR), costs=NO_FLUSH), interval_seconds=interval)
    return is_due(policy(least, most), decision, since_save_seconds=since, step_seconds=step)


@pytest.mark.parametrize(
    ("since", "step", "expected"),
    [
        (94.9, 10.0, False),  # 5.1 s before, or 4.9 s after
        (95.1, 10.0, True),
        (100.0, 10.0, True),
        (60.0, 79.0, False),
        (60.0, 81.0, True),  # a step later is further from it than this
        (9.9, 500.0, False),  # nearer, but below the lower bound
    ],
)
def test_a_save_falls_on_the_nearest_boundary(since, step, expected):
    assert due(since, step) is expected


def test_the_last_boundary_before_the_upper_bound():
    assert due(994.0, 5.0, interval=1000.0) is False
    assert due(994.0, 7.0, interval=1000.0) is True, "the nearest to 1,000 s would be 1,001 s: later than allowed"


@given(least=st.floats(0.1, 100), width=st.floats(0, 100), where=st.floats(0, 1), steps=st.lists(st.floats(1e-3, 50), min_size=2))
def test_saves_are_never_too_soon_and_never_too_late_where_a_boundary_is_between_the_bounds(least, width, where, steps):
    """Steps of any length that are foreseen."""
    most, since = least + width, 0.0
    for length, following in pairwise(steps):
        since += length
        if due(since, following, interval=least + where * width, least=least, most=most):
            assert since >= least
            assert since <= most or since - length < least
            since = 0.0
        else:
            assert since < least or since + following <= most


# --- the trainer's side


def start(bounds: IntervalPolicy | None = None, steps: dict[int, list[dict]] | None = None, now_ns: int = 0) -> Interval:
    return Interval.start(bounds or policy(60, 3600, 10), events=[], steps=steps or {}, now_ns=now_ns)


def take(interval: Interval, clock: FakeClock, seconds: float, at_most: int = 10_000) -> int:
    """Steps of so many seconds until a save is due."""
    for count in range(1, at_most + 1):
        clock.advance(seconds)
        if interval.after_step(clock.boot_ns):
            return count
    return at_most + 1


def test_the_first_save_comes_after_every_steps_and_the_next_by_daly():
    clock = FakeClock()
    interval = start(now_ns=clock.boot_ns)
    assert interval.change() is None
    assert take(interval, clock, 30.0) == 10
    first = interval.change()
    assert (first["seconds"], first["save_seconds"], first["bound"]) == (300.0, None, "")
    clock.advance(5.0)
    interval.saved(clock.boot_ns, blocking_ns=5 * SECOND)
    change = interval.change()
    assert change["seconds"] == pytest.approx(daly_interval_seconds(5.0, 24 * HOUR + 305))
    assert interval.change() is None, "it is told once"
    assert take(interval, clock, 30.0) == round(change["seconds"] / 30) == 31


def test_the_first_save_too_comes_between_the_bounds():
    clock = FakeClock()
    assert take(start(now_ns=clock.boot_ns), clock, 1.0) == 60, "ten steps are less than the least interval"
    assert take(start(policy(60, 100, 10), now_ns=clock.boot_ns), clock, 30.0) == 3, "a fourth step would be too late"


def test_a_first_step_that_is_long_does_not_count_as_usual():
    clock = FakeClock()
    interval = start(now_ns=clock.boot_ns)
    clock.advance(300.0)
    assert interval.after_step(clock.boot_ns) is False
    assert interval.change() is None
    clock.advance(30.0)
    interval.after_step(clock.boot_ns)
    assert interval.change()["seconds"] == 300.0


def saves(*blocking_ms: int, **fields: int) -> list[dict]:
    return [{"kind": "save", "step": 1, "blocking_ns": ms * MS, **fields} for ms in blocking_ms]


def test_the_cost_is_the_median_of_the_newest_eight_saves_of_the_run():
    """Of 1,000 x 9, 100, 200, ..., 800: those before the newest eight count no more."""
    rows = {1: saves(*[1000] * 9), 2: saves(100, 200, 300, 400, 500), 4: saves(600, 700, 800)}
    assert start(steps=rows).decision.save_seconds == 0.45


def test_the_cost_is_all_that_training_lost():
    """A synchronous save deletes old ones while training waits; a writer slows the steps beside it down."""
    rows = {1: saves(40, 40, retention_ns=20 * MS), 2: saves(40, flush_ns=9 * SECOND, slowed_ns=300 * MS)}
    decision = start(policy(1.0, 1e9), steps=rows).decision
    assert decision.save_seconds == pytest.approx(0.360)
    assert start(steps={1: [{"kind": "save", "step": 1}]}).decision is None, "rows of an older version tell no cost"


def test_the_writer_has_twice_the_time_that_it_needs():
    clock = FakeClock()
    interval = start(policy(1, 3600, 1), now_ns=clock.boot_ns)
    take(interval, clock, 2.0)
    interval.saved(clock.boot_ns, blocking_ns=1 * MS)
    assert interval.change()["bound"] == ""
    interval.durable(clock.boot_ns, flush_ns=40 * SECOND)
    change = interval.change()
    assert (change["seconds"], change["bound"]) == (80.0, "flush")
    assert take(interval, clock, 2.0) == 40
    interval.saved(clock.boot_ns, blocking_ns=1 * MS, flush_ns=60 * SECOND)
    assert interval.change()["seconds"] == 100.0, "of two, the median is their mean"


def test_quiet_time_lengthens_the_interval_row_by_row():
    clock = FakeClock()
    interval = start(policy(1, 1e9, 1), now_ns=clock.boot_ns)
    told = []
    for _ in range(300):
        take(interval, clock, 100.0)
        interval.saved(clock.boot_ns, blocking_ns=2 * SECOND)
        told += [change["seconds"] for change in [interval.change()] if change]
    assert len(told) == 2 + 6, "of 100 s (one step) and Daly's, then 10 % more each"
    assert all(new > 1.1 * old for old, new in pairwise(told[1:]))
    assert told[-1] == pytest.approx(daly_interval_seconds(2.0, 24 * HOUR + (clock.boot_ns - 10**9) / 1e9), rel=0.1)


def test_a_save_that_fails_is_tried_again_after_the_least_interval():
    clock = FakeClock()
    interval = start(steps={1: saves(5000)}, now_ns=clock.boot_ns)
    take(interval, clock, 10.0)
    interval.left_out(clock.boot_ns)
    assert take(interval, clock, 10.0) == 6
    interval.left_out(clock.boot_ns)
    clock.advance(7.0)  # its read-back took a while
    assert take(interval, clock, 10.0) == 6
    interval.saved(clock.boot_ns, blocking_ns=5 * SECOND)
    assert take(interval, clock, 10.0) == round(interval.decision.interval_seconds / 10)


def test_time_in_a_save_is_no_step():
    """Else every boundary after a save of a minute would look like the last before the interval."""
    clock = FakeClock()
    interval = start(policy(1, 3600, 3), now_ns=clock.boot_ns)
    for _ in range(12):
        take(interval, clock, 1.0)
        clock.advance(600.0)
        interval.saved(clock.boot_ns, blocking_ns=600 * SECOND)
    clock.advance(1.0)
    interval.after_step(clock.boot_ns)
    assert set(interval._step_ns) == {SECOND}


def resumed() -> History:
    """Four saves of 2 s; killed twice; back after 90 s and 30 s."""
    history = History()
    history.open()
    for number in (1, 2):
        history.launch(None, 0, ns=(0, 0, 60)[number] * SECOND)
        history.row("start", [("init", 10 * SECOND)], pid=1)
        history.row("restored", [("restore", 10 * SECOND)], step=0)
        for step in range(1, 6):
            history.step(step, 0, 10 * SECOND)
        for step in (4, 5):
            history.row("save", [("blocking_save", 2 * SECOND)], step=step, blocking_ns=2 * SECOND)
        history.advance(SECOND)
        history.event("exit", segment=number, code=None, signal=9, reason="ended by SIGKILL")
    history.launch(None, 0, ns=5 * SECOND)
    history.row("start", [("init", 5 * SECOND)], pid=1)
    history.row("restored", [("restore", 10 * SECOND)], step=0)
    return history


def test_a_resumed_run_knows_what_the_one_before_learned():
    """Twice 54 s at risk, after a prior of 1 in 300 s: 3 in 408 s. One restart of 90 s is known, the other has no step yet."""
    history = resumed()
    bounds = policy(1.0, 3600.0, prior=rate(300.0))
    interval = Interval.start(bounds, events=history.events, steps=history.steps, now_ns=history.clock.boot_ns)
    change = interval.change()
    assert change["between_failures_seconds"] == 408 / 3
    assert change["restart_seconds"] == 90.0
    assert change["save_seconds"] == 2.0
    assert change["seconds"] == daly_interval_seconds(2.0, 408 / 3)


def test_only_differences_of_the_boot_clock_count():
    """Another boot, and another day: the same decisions."""
    changes = []
    for boot_ns, real_ns in ((7, 0), (10**17, 10**18)):
        clock = FakeClock(boot_ns=boot_ns, real_ns=real_ns)
        interval = start(now_ns=clock.boot_ns)
        steps = take(interval, clock, 30.0)
        interval.saved(clock.boot_ns, blocking_ns=5 * SECOND)
        changes.append((steps, interval.change(), take(interval, clock, 30.0)))
    assert changes[0] == changes[1]


def test_a_change_is_a_row(run):
    clock = FakeClock()
    make_directory(run.segment(1))
    log = StepLog(run, 1, clock)
    log.write("start", pid=1)
    change = start(policy(600, 3600), steps={1: saves(5)}).change()
    log.write("interval", step=40, **change)
    log.write("interval", step=41, seconds="soon")
    log.close()
    read = read_step_rows(run, 1)
    assert (len(read.rows), read.damaged_lines) == (2, 1)
    row = read.rows[-1]
    assert {name: row[name] for name in change} == change
    assert (row["seconds"], row["bound"]) == (600.0, "least")
