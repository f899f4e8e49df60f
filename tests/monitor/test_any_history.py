"""G1 over any history: deaths, reboots, hosts whose clocks disagree, queues, torn lines, spikes with skips; and any rubbish."""

from __future__ import annotations

from any_history import SEQUENCES, STAGE, Teller, stream_index
from hypothesis import given
from hypothesis import strategies as st
from tiny_run import tiny_spec

from headway.monitor.account import account_of
from headway.monitor.ledger import Ledger, build_ledger
from headway.recipe.schedules import Schedule
from headway.rundir.categories import Category
from headway.rundir.segments import Segment

SCHEDULE = Schedule(tiny_spec(steps=400))


def fold(told: Teller) -> Ledger:
    return build_ledger(told.events, told.rows, told.chain, SCHEDULE, segments=told.segments)


durations = st.integers(0, 10**11)
ENDINGS = ("crash", "hang", "spike", "owner_died", "host_died", "stopped", "requeued", "fruitless")
attempts = st.lists(
    st.fixed_dictionaries(
        {
            "steps": st.lists(st.tuples(durations, durations, st.sampled_from([*["kept"] * 6, "torn", "bad"])), max_size=6),
            "save_after": st.integers(0, 6),
            "ending": st.sampled_from(ENDINGS),
            "rest": durations,
            "gap": durations,
            "queued": durations,
            "skew": st.integers(-(10**12), 10**12),
            "skip": st.integers(1, 40),
        }
    ),
    min_size=1,
    max_size=6,
)


def tell(plan: list[dict]) -> Teller:
    told = Teller()
    told.event("open", epoch=1, previous=None)
    saved: tuple[int | None, int] = (None, 0)
    skips: tuple[dict, ...] = ()
    for number, attempt in enumerate(plan):
        segment = told.launches(*saved, skips, attempt["rest"])
        told.row("start", {"init": 7}, pid=1)
        told.row("restored", {"restore": attempt["rest"]}, step=saved[1])
        first = saved[1] + 1
        saved = tell_steps(told, attempt, segment, saved)
        if attempt["ending"] == "spike":  # what comes after the save is left out
            end = stream_index(skips, saved[1] * SEQUENCES)
            skips = (*skips, {"stage": 0, "first": end, "count": attempt["skip"]})
        end_attempt(told, attempt, number)
        assert saved[1] >= first - 1
    return told


def tell_steps(told: Teller, attempt: dict, segment: int, saved: tuple[int | None, int]) -> tuple[int | None, int]:
    first = saved[1] + 1
    for index, (stall_ns, work_ns, what) in enumerate(attempt["steps"]):
        told.row("stall", {"data_stall": stall_ns // 2}, step=first + index - 1, waited_ns=1, shard="a")
        told.step(first + index, stall_ns, work_ns, applied=what != "bad", torn=what == "torn")
        if index + 1 == attempt["save_after"] and attempt["ending"] != "fruitless":
            saved = (segment, first + index)
            told.row("save", {"blocking_save": attempt["rest"]}, step=first + index, checkpoint="c")
    return saved


def end_attempt(told: Teller, attempt: dict, number: int) -> None:
    ending, gap_ns, rest_ns = attempt["ending"], attempt["gap"], attempt["rest"]
    if ending == "hang":
        told.closes("hang", "hang", gap_ns)
    if ending in ("owner_died", "host_died"):
        last = told.events[-1]["stamp"]
        rows_ns = told.boot_ns - last["boot_ns"]
        if ending == "host_died":  # nobody can say what the trainer did after the last event: the rows were of another boot
            boot = f"boot {number}"
        else:
            boot = told.boot
        before = dict(told.truth)
        told.opens("unknown", gap_ns, boot=boot, skew_ns=attempt["skew"])
        gap_judged = told.truth["unknown"] - before.get("unknown", 0)
        told.truth["unknown"] = before.get("unknown", 0) + max(0, gap_judged - (rows_ns - told.lost_ns))
        told.lost_ns = 0
    told.closes("exit", "detection_to_stop", rest_ns)
    if ending in ("stopped", "requeued"):
        told.event("finish", state=ending, reason="", closes="reconfigure")
        queued_ns = attempt["queued"] if ending == "stopped" else 0
        closes = "queue" if ending == "requeued" else "planned_pause"
        told.opens(closes, gap_ns, boot=f"boot {number}", skew_ns=attempt["skew"], queued_ns=queued_ns)


def clocks_agree(plan: list[dict]) -> list[dict]:
    """A host that died amid rows, found by another whose clock is behind: its rows outlast the gap, and are cut."""
    return [attempt | ({"skew": 0} if attempt["ending"] == "host_died" else {}) for attempt in plan]


@given(plan=attempts)
def test_G1_time_of_any_history(plan):
    told = tell(clocks_agree(plan))
    ledger = fold(told)
    assert sum(ledger.categories.values()) == ledger.total_ns
    assert ledger.categories == told.expected()


@given(plan=attempts)
def test_F3_clocks_that_disagree_never_break_the_sums(plan):
    ledger = fold(tell(plan))
    assert sum(ledger.categories.values()) == ledger.total_ns


def test_work_that_was_skipped_is_not_rolled_back():
    """Saved 2, spike at 5; 12 sequences after the save are left out: step 3 and half of step 4. Steps 4 and 5 come again."""
    told = Teller()
    told.event("open", epoch=1, previous=None)
    first = told.launches(None, 0, (), 1)
    for number in range(1, 6):
        told.step(number, 10, 1000)
        if number == 2:
            told.row("save", {"blocking_save": 5}, step=2, checkpoint="c")
    told.closes("exit", "detection_to_stop", 1)
    told.launches(first, 2, ({"stage": 0, "first": 16, "count": 12},), 1)
    ledger = fold(told)
    assert ledger.categories["skipped"] == 1010 + 505
    assert ledger.categories["rolled_back"] == 505 + 1010
    assert ledger.categories == told.expected()
    assert {one.was for one in ledger.intervals if one.category is Category.SKIPPED} == {"productive", "data_stall"}


def test_an_update_that_was_never_applied_is_skipped():
    told = Teller()
    told.event("open", epoch=1, previous=None)
    told.launches(None, 0, (), 1)
    told.step(1, 0, 1000)
    told.step(2, 1, 1000, applied=False)
    assert fold(told).categories == {"productive": 1000, "skipped": 1001, "provision": 1}


def test_what_a_lost_attempt_trained_under_a_skip_is_rolled_back():
    """Its segment left the chain, so only its own record says that it had already skipped those sequences."""
    told = Teller()
    told.event("open", epoch=1, previous=None)
    skips = ({"stage": 0, "first": 0, "count": 8},)
    told.launches(None, 0, skips, 1)
    told.step(1, 0, 1000)
    told.closes("exit", "detection_to_stop", 1)
    told.launches(None, 0, skips, 1)
    assert fold(told).categories["rolled_back"] == 1000
    unknown = build_ledger(told.events, told.rows, told.chain, SCHEDULE)
    assert unknown.categories["rolled_back"] == 1000, "without that record nothing is called skipped"


def test_the_queue_before_the_first_record_counts():
    told = Teller()
    told.event("open", epoch=1, previous=None, queued_ns=500)
    told.truth["queue"] += 500
    told.launches(None, 0, (), 3)
    ledger = fold(told)
    assert ledger.categories == {"queue": 500, "provision": 3} == told.expected()
    assert ledger.drift_ns == 0


# --- any rubbish whose records are records

stamps = st.builds(
    lambda boot, ns, real: {"boot_ns": ns, "boot_id": boot, "real_ns": real},
    st.sampled_from("ab"),
    st.integers(-(10**15), 10**15),
    st.integers(-(10**15), 10**15),
)
names = [category.value for category in Category]
events = st.lists(
    st.fixed_dictionaries(
        {"kind": st.sampled_from(["open", "launch", "hang", "exit", "finish", "note"]), "stamp": stamps},
        optional={
            "closes": st.sampled_from(names),
            "previous": st.just({"digest": "x", "gap_ns": 5}),
            "queued_ns": st.integers(-5, 10**13),
        },
    ),
    max_size=12,
)
rows = st.lists(
    st.fixed_dictionaries(
        {
            "kind": st.sampled_from(["start", "step", "save", "stall", "evaluation"]),
            "stamp": stamps,
            "step": st.integers(0, 9),
            "split": st.dictionaries(st.sampled_from(names), st.integers(0, 10**13), max_size=4),
        },
        optional={
            "u": st.integers(-5, 200),
            "sequences": st.integers(-2, 20),
            "applied": st.booleans(),
            "stage": st.sampled_from([STAGE, "?"]),
        },
    ),
    max_size=8,
)


@given(events=events, rows=st.dictionaries(st.integers(1, 3), rows, max_size=3), skip=st.integers(0, 30), data=st.data())
def test_G1_rubbish_is_a_flag_never_a_wrong_sum(events, rows, skip, data):
    for number, event in enumerate(events):
        event |= {"segment": data.draw(st.integers(1, 3)), "epoch": 1, "n": data.draw(st.sampled_from([number, 7])), "state": "x"}
    for of_segment in rows.values():
        for row in of_segment:
            row |= {"tokens": row["step"] * 64, "targets": 64}
    chain = [
        Segment(1, None, 0, None, "", "automatic", 1, {}),
        Segment(2, 1, 2, None, "", "automatic", 1, {}, skips=({"stage": 0, "first": 2, "count": skip},)),
    ]
    ledger = build_ledger(events, rows, chain, SCHEDULE, segments=chain)
    assert sum(ledger.categories.values()) == ledger.total_ns
    deployment = {"accelerator": {"kind": "x", "peak_flops": 1e9}, "nodes": 3, "checkpoints": {"every_steps": 5}}
    facts = {"events": events, "steps": rows, "segments": chain, "spec": SCHEDULE.spec}
    account = account_of(ledger, name="x", **facts, stated=deployment, in_force=deployment)
    assert account.capacity.total == 3 * ledger.total_ns
    assert all(view.value is None or view.value >= 0 for view in account.views)
