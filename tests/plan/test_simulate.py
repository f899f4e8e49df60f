"""The simulated run: against the closed forms, against hand-worked histories, and what must hold for any run."""

from __future__ import annotations

import csv
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.base.errors import ConfigError
from headway.formulas.failures import Interruptions, wall_seconds_daly, wall_seconds_safe_restarts, wall_seconds_self_consistent
from headway.plan.failure.checkpoints import Shelf, Writes
from headway.plan.failure.faults import (
    PUBLISHED_COUNTS,
    FaultClass,
    Kind,
    Nodes,
    Pauses,
    Restarts,
    SimulatedRun,
    Tier,
    contradictions,
    published_faults,
    shares_source,
)
from headway.plan.failure.nodes import NodePool
from headway.plan.failure.outcome import CATEGORIES, Distribution, Outcome
from headway.plan.failure.simulate import LEAST_RUNS, MOST_EVENTS, is_hopeless, simulate

DAY, HOUR = 86_400.0, 3_600.0
STANDARD_ERRORS = 4.0
"""A mean lies further off once in 16,000 seeds; the seeds are fixed, so a test that passes goes on passing."""
ROUNDING_SECONDS = 1e-6
"""Sums of some thousand times of up to 1e8 s, in double precision."""


def disk(every: float = 1_800.0, save: float = 0.0, **other) -> Tier:
    return Tier(name="disk", every_seconds=every, save_seconds=save, **other)


def plain(**changes) -> SimulatedRun:
    base = SimulatedRun(useful_seconds=20 * DAY, between_seconds=3 * HOUR, restart_seconds=360.0, tiers=(disk(save=30.0),))
    return replace(base, **changes)


def never(**changes) -> SimulatedRun:
    return plain(between_seconds=np.inf, **changes)


def assert_times_add_up(outcome: Outcome) -> None:
    assert set(outcome.spent) == set(CATEGORIES)
    total = sum(outcome.spent.values())
    np.testing.assert_allclose(total, outcome.wall_seconds, rtol=0, atol=ROUNDING_SECONDS)
    assert min(float(spent.min()) for spent in outcome.spent.values()) >= 0
    done = outcome.finished
    useful = outcome.run.useful_seconds
    np.testing.assert_allclose(outcome.spent["productive"][done], useful, rtol=0, atol=ROUNDING_SECONDS)


# --- against the closed forms -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("interval", "save", "between"), [(1_800, 30, 3 * HOUR), (7_200, 60, 6 * HOUR), (900, 5, 1_200)])
@pytest.mark.parametrize(
    ("restarts", "closed_form"), [(Restarts.STRUCK, wall_seconds_daly), (Restarts.SAFE, wall_seconds_safe_restarts)]
)
def test_the_mean_is_the_exact_formula(restarts, closed_form, interval, save, between):
    """Struck restarts: Daly. Safe restarts: (M + R) (e^((tau + c) / M) - 1) T0 / tau."""
    run = plain(between_seconds=between, tiers=(disk(interval, save),), restarts=restarts)
    outcome = simulate(run, runs=1_000, seed=1)
    expected = closed_form(run.useful_seconds, Interruptions(between, 360, interval, save))
    assert outcome.finish.mean == pytest.approx(expected, abs=STANDARD_ERRORS * outcome.standard_error_seconds)
    assert outcome.standard_error_seconds < 0.01 * expected
    assert_times_add_up(outcome)


def test_detection_is_paid_at_every_interruption():
    """T_daly / M interruptions, each D longer: nothing strikes while nobody knows that the job stands."""
    blind = (FaultClass(name="any", share=1.0, detection_seconds=900.0),)
    outcome = simulate(plain(faults=blind), runs=1_000, seed=12)
    daly = wall_seconds_daly(20 * DAY, Interruptions(3 * HOUR, 360, 1_800, 30))
    expected = daly * (1 + 900 / (3 * HOUR))
    assert outcome.finish.mean == pytest.approx(expected, abs=STANDARD_ERRORS * outcome.standard_error_seconds)
    assert outcome.spent["detection"].tolist() == (sum(outcome.stops.values()) * 900.0).tolist()


def test_the_self_consistent_form_is_an_upper_estimate():
    """It charges a full price to an interruption of a replay or a restart; the simulation does not."""
    outcome = simulate(plain(tiers=(disk(),)), runs=1_000, seed=2)
    upper = wall_seconds_self_consistent(20 * DAY, Interruptions(3 * HOUR, 360, 1_800))
    assert outcome.finish.mean < upper - STANDARD_ERRORS * outcome.standard_error_seconds
    rare = simulate(plain(between_seconds=200 * HOUR), runs=2_000, seed=2)
    close = wall_seconds_self_consistent(20 * DAY, Interruptions(200 * HOUR, 360, 1_800, 30))
    assert rare.finish.mean == pytest.approx(close, abs=STANDARD_ERRORS * rare.standard_error_seconds)


def test_struck_restarts_cost_more_than_safe_ones():
    times = {kind: simulate(plain(restart_seconds=3_600.0, restarts=kind), runs=400).finish.mean for kind in Restarts}
    assert times[Restarts.STRUCK] > times[Restarts.SAFE]


def test_interruptions_come_over_the_time_that_passes():
    outcome = simulate(plain(), runs=1_000, seed=3)
    assert outcome.interruptions.mean == pytest.approx(outcome.finish.mean / (3 * HOUR), rel=0.01)


def test_the_beacon_plan():
    """64.3 days, a fault every 3 h, half-hour checkpoints of 3 s, 6 min restarts: 72.455 d by Daly."""
    useful = 3.6e25 / (16_384 * 9.89e14 * 0.4)
    run = SimulatedRun(useful_seconds=useful, between_seconds=3 * HOUR, restart_seconds=360.0, tiers=(disk(save=3.0),))
    outcome = simulate(run, runs=1_000, seed=0)
    assert outcome.finish.p50 / DAY == pytest.approx(72.455, abs=0.1)
    assert outcome.finish.p5 < outcome.finish.p50 < outcome.finish.p95
    assert (outcome.finish.p95 - outcome.finish.p5) / DAY < 2
    assert outcome.goodput.p50 == pytest.approx(64.285 / 72.455, abs=0.002)
    everything = replace(run, faults=published_faults(), tiers=(disk(every=8 * 1_800), disk(save=3.0)))
    assert simulate(everything, runs=300, seed=0).finish.p50 / DAY == pytest.approx(72.455, abs=2.0)


# --- without chance ---------------------------------------------------------------------------------------------------


def test_without_faults_the_run_takes_what_it_takes():
    """24 hours of half-hour segments: 47 writes before the end, and the one at the end."""
    outcome = simulate(never(useful_seconds=DAY), runs=3)
    assert outcome.wall_seconds.tolist() == pytest.approx([DAY + 48 * 30] * 3, abs=ROUNDING_SECONDS)
    assert outcome.interruptions.mean == 0
    assert outcome.spent["writes"].tolist() == [48 * 30] * 3
    assert simulate(never(useful_seconds=DAY + 1), runs=1).spent["writes"][0] == 49 * 30
    two = (Tier(name="memory", every_seconds=600, save_seconds=1), disk(save=30.0))
    assert simulate(never(useful_seconds=DAY, tiers=two), runs=1).spent["writes"][0] == 143 + 48 * 30


def test_pauses_without_faults():
    """Every 6 h of wall time: save 30 s, stand for 1 h, restart 6 min."""
    run = never(
        useful_seconds=20 * HOUR, tiers=(disk(every=10 * DAY, save=30.0),), pauses=(Pauses(every_seconds=6 * HOUR, seconds=HOUR),)
    )
    outcome = simulate(run, runs=1)
    assert outcome.spent["planned"][0] == 3 * HOUR  # at 6, 12 and 18 h; the run would end at 23.5 h
    assert outcome.spent["restart"][0] == 3 * 360
    assert outcome.spent["writes"][0] == 4 * 30  # three planned, one at the end
    assert outcome.spent["replay"][0] == 0
    assert_times_add_up(outcome)


def test_a_straggler_costs_its_pace_until_it_is_found():
    """Faults in plenty, half the pace for 1 h each, evicted with a save: nothing is replayed."""
    slow = FaultClass(name="slow", share=1.0, kind=Kind.SLOW, detection_seconds=HOUR, pace=0.5)
    outcome = simulate(plain(faults=(slow,), between_seconds=DAY), runs=200)
    assert outcome.spent["replay"].max() == 0
    evictions = outcome.stops["slow"]
    slowed = outcome.spent["degraded"]
    assert np.all(slowed <= (evictions + 1) * HOUR / 2 + ROUNDING_SECONDS)
    assert np.all(slowed >= evictions * (HOUR / 2 - 360))  # what falls into writes and restarts is not slowed
    np.testing.assert_allclose(outcome.spent["restart"], evictions * 360, atol=ROUNDING_SECONDS)
    assert_times_add_up(outcome)


def test_deterministic_by_seed():
    once, again, other = (simulate(plain(), runs=50, seed=seed) for seed in (7, 7, 8))
    assert np.array_equal(once.wall_seconds, again.wall_seconds)
    assert not np.array_equal(once.wall_seconds, other.wall_seconds)


# --- tiers and late discoveries ---------------------------------------------------------------------------------------

PROCESS, NODE = FaultClass(name="process", share=0.5), FaultClass(name="node", share=0.5)


def with_memory(chance: float) -> SimulatedRun:
    memory = Tier(name="memory", every_seconds=120, save_seconds=0.1, restore_seconds=10, survives={"node": chance}, keep=2)
    return plain(faults=(PROCESS, NODE), tiers=(memory, disk(save=30.0, restore_seconds=120)))


def test_a_memory_tier_saves_replay_as_far_as_it_survives():
    replay = {chance: simulate(with_memory(chance), runs=300, seed=4).time("replay").mean for chance in (0.0, 0.5, 1.0)}
    assert replay[1.0] < replay[0.5] < replay[0.0]
    exact = wall_seconds_daly(20 * DAY, Interruptions(3 * HOUR, 0, 120, 0.1))
    outcome = simulate(replace(with_memory(1.0), tiers=(with_memory(1.0).tiers[0],), restart_seconds=0.0), runs=300, seed=4)
    assert outcome.finish.mean > exact  # restoring takes 10 s
    assert replay[1.0] < 0.1 * replay[0.0] + 0.05 * DAY


def test_a_silent_fault_is_answered_from_before_it():
    """Found 6 h later: at least that much is replayed, as long as a checkpoint from before is kept."""
    silent = FaultClass(name="silent", share=1.0, kind=Kind.SILENT, detection_seconds=6 * HOUR)
    kept = simulate(plain(between_seconds=2 * DAY, faults=(silent,)), runs=200, seed=5)
    found = sum(kept.stops.values())
    assert np.all(kept.spent["replay"] >= found * 4 * HOUR * (found > 0) * 0.5)
    assert kept.time("replay").mean == pytest.approx(found.mean() * (6 * HOUR + 900), rel=0.1)
    forgotten = simulate(plain(between_seconds=20 * DAY, faults=(silent,), tiers=(disk(save=30.0, keep=3),)), runs=200, seed=5)
    hit = sum(forgotten.stops.values()) > 0
    assert np.all(forgotten.spent["replay"][~hit] == 0)
    assert forgotten.spent["replay"][hit].mean() > 3 * DAY  # nothing old enough is left: from the start
    assert_times_add_up(forgotten)


def test_a_crash_does_not_heal_what_went_wrong_before_the_last_save():
    """A silent fault every 30 h, found after 6 h; in between the process dies about twice, from saves that are wrong already."""
    silent = FaultClass(name="silent", share=0.1, kind=Kind.SILENT, detection_seconds=6 * HOUR)
    process = FaultClass(name="process", share=0.9)
    outcome = simulate(plain(faults=(silent, process)), runs=200, seed=13)
    struck = 0.1 * outcome.finish.mean / (3 * HOUR)
    assert outcome.stops["silent"].mean() > 0.65 * struck  # the others met one under way, or died before a save


def test_corruption_that_nobody_noticed_is_found_by_the_final_evaluation():
    silent = FaultClass(name="silent", share=1.0, kind=Kind.SILENT, detection_seconds=100 * DAY)
    outcome = simulate(plain(between_seconds=10 * DAY, faults=(silent,)), runs=100, seed=6)
    clean = DAY * 20 + 960 * 30
    untouched = sum(outcome.stops.values()) == 0
    assert 0.05 < untouched.mean() < 0.25  # e^-2 of them meet no fault
    np.testing.assert_allclose(outcome.wall_seconds[untouched], clean, atol=ROUNDING_SECONDS)
    assert np.all(outcome.wall_seconds[~untouched] > clean + 360)


def test_what_can_be_restored_by_hand():
    """Memory every 10 s keeps two, disk every 40 s keeps all; the state stands at 75 s."""
    tiers = (Tier(name="memory", every_seconds=10, restore_seconds=1, keep=2), disk(every=40, restore_seconds=5))
    run = never(useful_seconds=100.0, tiers=tiers)
    writes, rows = Writes(run), np.arange(4)

    def shelf() -> Shelf:
        made = Shelf(run, 4)
        at = np.full(4, 75.0)
        made.written(rows, writes.counts[:, writes.done_at(np.zeros(4))], writes.counts[:, writes.done_at(at)])
        return made

    everything, nothing = np.ones((2, 4), dtype=bool), np.zeros((2, 4), dtype=bool)
    only_disk = np.array([[False] * 4, [True] * 4])
    sound = np.array([np.inf, 70.0, 60.0, 40.0])  # wrong from there on
    restored = shelf().restore_from(rows, everything, sound)
    assert [v.tolist() for v in (restored.position, restored.seconds)] == [[70, 60, 40, 0], [1, 1, 5, 5]]
    assert restored.tier.tolist() == [0, 0, 1, 2]  # the last: from the beginning
    assert shelf().restore_from(rows, only_disk, sound).position.tolist() == [40, 40, 40, 0]
    assert shelf().restore_from(rows, nothing, sound).position.tolist() == [0, 0, 0, 0]
    wiped = shelf()
    wiped.restore_from(rows, only_disk, np.full(4, np.inf))
    assert wiped.restore_from(rows, everything, np.full(4, np.inf)).position.tolist() == [40] * 4  # memory is empty now
    rolled_back, always = shelf(), np.full(4, np.inf)
    rolled_back.restore_from(rows, everything, sound)
    assert rolled_back.restore_from(rows, everything, always).position.tolist() == [70, 60, 40, 0]  # what was wrong stays gone
    planned = shelf()
    planned.extra[:] = 73.0
    assert planned.restore_from(rows, everything, always).position.tolist() == [73] * 4
    planned.restore_from(rows, everything, np.full(4, 72.0))
    assert planned.restore_from(rows, everything, always).position.tolist() == [70] * 4
    planned.extra[:] = 73.0
    assert planned.restore_from(rows, nothing, always).position.tolist() == [0] * 4


@given(
    seconds=st.floats(0, 3_000),
    start=st.floats(0, 700),
    pace=st.sampled_from([1.0, 0.75, 0.3]),
    every=st.tuples(st.floats(5, 80), st.floats(20, 300)),
    costs=st.tuples(st.floats(0, 9), st.floats(0, 30)),
)
def test_position_after_any_time_is_what_stepping_through_gives(seconds, start, pace, every, costs):
    """Write by write, in Python, against the tables."""
    tiers = tuple(Tier(name=str(i), every_seconds=e, save_seconds=c) for i, (e, c) in enumerate(zip(every, costs)))
    writes = Writes(never(useful_seconds=1_000.0, tiers=tiers))
    at, left, position, writing = writes.done_at(np.array([start]))[0], seconds, start, 0.0
    while at < len(writes.positions) and left >= (reach := (writes.positions[at] - position) / pace):
        left, position = left - reach, writes.positions[at]
        if left < writes.costs[at]:
            writing, left = writing + left, 0.0
            break
        left, writing, at = left - writes.costs[at], writing + writes.costs[at], at + 1
    position = min(position + left * pace, 1_000.0)
    piece = writes.advance(np.array([start]), np.array([pace]), np.array([seconds]), np.array([False]))
    assert piece.position[0] == pytest.approx(position, abs=1e-6)
    if position < 1_000:
        assert piece.writing[0] == pytest.approx(writing, abs=1e-6)


# --- nodes ------------------------------------------------------------------------------------------------------------


def test_places_are_filled_in_order():
    """Two stand-bys, repairs of 100 s: the third break waits for the first repair, the fourth for the second."""
    pool = NodePool(never(nodes=Nodes(standby=2, repair_seconds=100)), 1)
    pool.times = np.zeros((1, 8))
    row, one = np.array([0]), np.array([1])
    for broken_at, filled_at in ((0, 0), (10, 10), (20, 100), (30, 110), (250, 250)):
        pool.break_nodes(row, one, np.array([float(broken_at)]))
        ready = pool.ready_for(row, 0)[0]
        assert ready == filled_at
        pool.fill(row, np.array([ready]))
        assert pool.missing(row)[0] == 0


def with_nodes(**changes) -> SimulatedRun:
    one = FaultClass(name="node", share=0.9, nodes=1)
    many = FaultClass(name="domain", share=0.1, nodes=8)
    nodes = Nodes(**{"repair_seconds": 8 * HOUR, **changes})
    return plain(useful_seconds=5 * DAY, between_seconds=6 * HOUR, faults=(one, many), nodes=nodes)


def test_more_stand_bys_never_make_it_longer():
    pools = (0, 1, 2, 4, 8, 16, 64)
    waits = [simulate(with_nodes(standby=count), runs=300, seed=9) for count in pools]
    means = [outcome.time("waiting").mean for outcome in waits]
    assert means == sorted(means, reverse=True)
    assert means[0] == pytest.approx(waits[0].interruptions.mean * 8 * HOUR, rel=1e-9)  # none: every fault waits a repair
    assert means[-1] == 0
    assert waits[-1].finish.mean < waits[0].finish.mean


def test_a_burst_empties_the_pool():
    single = replace(with_nodes(standby=4), faults=(FaultClass(name="node", share=1.0, nodes=1),))
    burst = replace(single, faults=(FaultClass(name="domain", share=1.0, nodes=8),))
    assert simulate(burst, runs=200).time("waiting").mean > 3 * simulate(single, runs=200).time("waiting").mean


def test_going_on_with_fewer_beats_waiting_and_is_not_free():
    waits = simulate(with_nodes(), runs=300, seed=10)
    shrinks = simulate(with_nodes(shrunken_pace=0.95, reconfigure_seconds=60.0), runs=300, seed=10)
    assert shrinks.finish.mean < waits.finish.mean
    assert shrinks.time("degraded").mean > 0
    assert shrinks.time("reconfiguration").mean > 0
    assert shrinks.time("waiting").mean < 0.01 * waits.time("waiting").mean
    slow = simulate(with_nodes(shrunken_pace=0.95, reconfigure_seconds=9 * HOUR), runs=300, seed=10)
    assert slow.time("reconfiguration").mean == 0  # slower than the repair: it waits instead
    assert_times_add_up(shrinks)


def test_a_process_that_dies_in_a_shrunken_job_waits_for_nothing():
    process, node = FaultClass(name="process", share=0.5), FaultClass(name="node", share=0.5, nodes=1)
    run = replace(with_nodes(shrunken_pace=0.95, reconfigure_seconds=60.0), faults=(process, node))
    assert simulate(run, runs=100).time("waiting").mean < 60


def test_one_repair_earns_what_the_formula_says():
    """r max(0, R - d): in one repair window the shrunken job does that much of the work that a waiting one must still do."""
    repair, reconfigure, pace = 6_000.0, 200.0, 0.75
    node = (FaultClass(name="node", share=1.0, nodes=1),)
    run = plain(useful_seconds=DAY, between_seconds=60 * DAY, restart_seconds=0.0, tiers=(disk(every=50.0),), faults=node)
    wait = Nodes(repair_seconds=repair)
    shrink = replace(wait, shrunken_pace=pace, reconfigure_seconds=reconfigure)
    waited, shrunk = (simulate(replace(run, nodes=nodes), runs=4_000, seed=11) for nodes in (wait, shrink))
    once = (sum(waited.stops.values()) == 1) & (sum(shrunk.stops.values()) == 1)
    whole = shrunk.spent["reconfiguration"] == 2 * reconfigure  # there and back before the end
    gained = waited.wall_seconds[once & whole] - shrunk.wall_seconds[once & whole]
    assert len(gained) > 20
    # coming back costs another reconfiguration, as the caveat says
    np.testing.assert_allclose(gained, pace * (repair - reconfigure) - reconfigure, atol=50.0)


# --- any run ----------------------------------------------------------------------------------------------------------

FRACTION = st.floats(0, 1)
PAUSE = st.builds(Pauses, every_seconds=st.floats(5 * HOUR, 5 * DAY), seconds=st.floats(1, HOUR))


@st.composite
def any_run(draw):
    kinds = draw(st.lists(st.sampled_from(list(Kind)), min_size=1, max_size=4))
    nodes, detection = st.integers(0, 5), st.floats(0, 2 * HOUR)
    faults = tuple(
        FaultClass(
            name=str(place),
            share=1 / len(kinds),
            kind=kind,
            nodes=draw(nodes),
            detection_seconds=draw(detection),
            pace=draw(st.floats(0.2, 1)),
        )
        for place, kind in enumerate(kinds)
    )
    tiers = tuple(
        Tier(
            name=str(place),
            every_seconds=draw(st.floats(60, DAY)),
            save_seconds=draw(st.floats(0, 60)),
            restore_seconds=draw(st.floats(0, 600)),
            survives={fault.name: draw(FRACTION) for fault in faults},
            keep=draw(st.none() | st.integers(1, 5)),
        )
        for place in range(draw(st.integers(1, 3)))
    )
    return SimulatedRun(
        useful_seconds=draw(st.floats(60, 3 * DAY)),
        between_seconds=draw(st.floats(HOUR, 10 * DAY)),
        tiers=tiers,
        restart_seconds=draw(st.floats(0, HOUR)),
        faults=faults,
        nodes=Nodes(
            standby=draw(st.integers(0, 6)),
            repair_seconds=draw(st.floats(0, DAY)),
            shrunken_pace=draw(st.none() | st.floats(0.05, 0.999)),
            reconfigure_seconds=draw(st.floats(0, 600)),
        ),
        pauses=tuple(draw(st.lists(PAUSE, max_size=3))),
        restarts=draw(st.sampled_from(list(Restarts))),
        tokens_per_second=draw(st.floats(0, 1e7)),
        give_up_after=draw(st.floats(2, 20)),
    )


@given(run=any_run(), seed=st.integers(0, 2**32))
@settings(max_examples=60)
def test_G1_categories_add_up_to_the_wall_clock_in_any_run(run, seed):
    outcome = simulate(run, runs=8, seed=seed)
    assert_times_add_up(outcome)
    writes = Writes(run).spent[-1]
    least = run.useful_seconds + writes
    assert np.all(outcome.wall_seconds[outcome.finished] >= least - ROUNDING_SECONDS)
    assert np.all(outcome.wall_seconds[~outcome.finished] > run.give_up_after * run.useful_seconds)
    assert outcome.lost_tokens.mean == pytest.approx(outcome.time("replay").mean * run.tokens_per_second)


def test_a_run_that_cannot_end_is_given_up_and_says_so():
    daily = simulate(plain(useful_seconds=64 * DAY, tiers=(disk(every=DAY),), give_up_after=3.0), runs=20)
    assert daily.unfinished_share == 1.0
    assert daily.finish == Distribution(p5=np.inf, p50=np.inf, p95=np.inf, mean=np.inf)
    assert_times_add_up(daily)


# --- published faults, bad input --------------------------------------------------------------------------------------


def test_published_classes_hold_the_whole_log(reference):
    with open(reference / "faults/failures.csv") as file:
        rows = [row for row in csv.DictReader(file) if row["run"].startswith("Llama-3.1-405B 54-day")]
    counts = {cause: count for causes in PUBLISHED_COUNTS.values() for cause, count in causes.items()}
    assert counts == {row["component"]: int(row["count"]) for row in rows}
    classes = {fault.name: fault for fault in published_faults(detection_seconds=60)}
    assert sum(fault.share for fault in classes.values()) == pytest.approx(1)
    assert classes["silent"].share == pytest.approx(6 / 419)
    assert classes["network"].nodes > 1
    assert classes["process"].nodes == 0


def test_the_contradiction_in_the_published_log_is_reported(reference):
    assert "assumed" not in shares_source("H100-SXM")
    assert shares_source("A100-SXM-80GB").endswith("assumed to hold for A100-SXM-80GB")
    text = "".join(contradictions())
    assert "148 of 419 is 35.3 %" in text
    assert "printed as 30.1 %" in text
    assert "30.1" in (reference / "faults/failures.csv").read_text()


@pytest.mark.parametrize(
    "changes",
    [
        {"useful_seconds": 0},
        {"between_seconds": 0},
        {"between_seconds": 1.0},
        {"tiers": ()},
        {"tiers": (disk(every=0),)},
        {"tiers": (disk(every=0.01),)},
        {"tiers": (disk(save=-1.0),)},
        {"tiers": (disk(survives={"fire": 0.5}),)},
        {"tiers": (disk(survives={"any": 1.5}),)},
        {"tiers": (disk(keep=0),)},
        {"faults": (FaultClass(name="half", share=0.5),)},
        {"faults": (FaultClass(name="fast", share=1.0, pace=1.5),)},
        {"faults": (FaultClass(name="less", share=1.0, nodes=-1),)},
        {"nodes": Nodes(standby=-1)},
        {"nodes": Nodes(shrunken_pace=1.0)},
        {"pauses": (Pauses(every_seconds=60, seconds=60),)},
        {"pauses": (Pauses(every_seconds=60, seconds=40), Pauses(every_seconds=90, seconds=40))},
        {"pauses": (Pauses(every_seconds=20, seconds=5),)},
        {"restart_seconds": -1.0},
        {"give_up_after": 1.0},
    ],
    ids=str,
)
def test_what_cannot_be_simulated_is_refused(changes):
    with pytest.raises(ConfigError):
        plain(**changes)


# --- bounded time -----------------------------------------------------------------------------------------------------


def test_a_run_with_very_many_faults_is_put_together_from_parts():
    """The mean is still Daly's, the spread that of a whole run; fewer runs are simulated."""
    run = plain(between_seconds=150.0, tiers=(disk(20.0, 1.0),), restart_seconds=10.0)
    outcome = simulate(run, seed=3)
    assert outcome.parts > 3
    assert LEAST_RUNS <= outcome.runs < 1_000
    assert outcome.runs * outcome.interruptions.mean < 1.1 * MOST_EVENTS
    daly = wall_seconds_daly(run.useful_seconds, Interruptions(150.0, 10.0, 20.0, 1.0))
    assert outcome.finish.mean == pytest.approx(daly, abs=STANDARD_ERRORS * outcome.standard_error_seconds + 1e-4 * daly)
    faults = outcome.interruptions
    assert faults.p95 - faults.p5 == pytest.approx(2 * 1.645 * np.sqrt(faults.mean), rel=0.4)
    assert outcome.finished.all()
    assert_times_add_up(outcome)


def test_ordinary_runs_are_simulated_whole():
    outcome = simulate(plain(), runs=50)
    assert (outcome.parts, outcome.runs) == (1, 50)


def test_a_run_that_never_ends_is_known_without_simulating():
    assert is_hopeless(plain(between_seconds=300.0))
    assert not is_hopeless(plain())
    assert not is_hopeless(never())
    in_memory = Tier(name="memory", every_seconds=30.0, save_seconds=0.1)
    assert not is_hopeless(plain(between_seconds=300.0, tiers=(in_memory, disk(save=30.0))))  # what it saves may be enough
