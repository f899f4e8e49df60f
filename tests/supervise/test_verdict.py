"""Who is behind: from heartbeats and facts that exist only here."""

from __future__ import annotations

from headway.rundir.heartbeats import Beat
from headway.supervise.facts import Facts
from headway.supervise.verdict import judge

S = 10**9
WAIT = ["wait (parallel/waits.py:47)", "all_reduce (distributed/distributed_c10d.py:3252)", "over_batch (parallel/sums.py:24)"]
WORK = ["forward (model/decoder.py:88)", "run (model/passes.py:20)"]


def beat(rank: int, step: int = 40, phase: str = "step", *, waits: int | None = None, at: float = 100, done: int = 500, boot="b"):
    """``waits``: seconds in a collective; None: it works."""
    since = 0 if waits is None else round((at - waits) * S)
    pulse = {"at_ns": round(at * S), "waits": done, "wait_since_ns": since, "frames": WORK if waits is None else WAIT}
    who = {"rank": rank, "host": f"node-{rank // 2}", "pid": 100 + rank, "boot_id": boot}
    return Beat(rank, who, {"phase": phase, "step": step, "moves": 9, "since_ns": 1}, pulse)


def verdict(*beats: Beat, facts: dict[int, Facts] | None = None, world: int | None = None):
    return judge({beat.rank: beat for beat in beats}, facts or {}, world or len(beats))


def test_F8_who_works_while_the_others_wait_is_behind():
    found = verdict(beat(0, waits=9), beat(1, waits=9), beat(2), beat(3, waits=9))
    assert (found.rank, found.behind[0].where, found.behind[0].host) == (2, "in Python", "node-1")
    assert found.words().startswith("rank 2 on node-1 is in Python, step 41 (step): forward (model/decoder.py:88)")
    assert found.words().endswith("; ranks 0, 1, 3 wait for it in a collective")


def test_F2_a_stopped_process_is_behind_whatever_it_last_said():
    found = verdict(beat(0, waits=9), beat(1, waits=9, at=91), facts={0: Facts(state="S"), 1: Facts(state="T")})
    assert (found.rank, found.behind[0].where) == (1, "stopped")


def test_F8_behind_in_steps_or_phases():
    assert verdict(beat(0, waits=9), beat(1, step=39, waits=9)).rank == 1
    assert verdict(beat(0, waits=9), beat(1, phase="data")).rank == 1
    found = verdict(beat(0, waits=9), beat(1, phase="save"))
    assert found.behind[0].words.startswith("forward")
    assert "step 40 (save)" in found.words()


def test_F8_all_wait_the_one_with_fewer_finished_waits_is_behind():
    assert verdict(beat(0, waits=9), beat(1, waits=9, done=498), beat(2, waits=9)).rank == 1


def test_F8_all_wait_alike_and_nobody_is_blamed():
    found = verdict(beat(0, waits=9), beat(1, waits=9))
    assert found.rank is None
    assert "rank" not in found.fields()
    assert "all ranks in a collective of step 41 (step): for 9 s in all_reduce" in found.words()


def test_a_rank_that_never_came_is_named():
    found = verdict(beat(0, phase="init", step=0), beat(2, phase="init", step=0), world=3)
    assert (found.rank, found.behind[0].where) == (1, "not started")


def test_no_python_runs_on_a_rank_whose_pulse_stands():
    found = verdict(beat(0, waits=30), beat(1, at=70), facts={1: Facts(state="R")})
    assert found.behind[0].where == "outside Python"
    assert "no Python has run there for 30 s" in found.words()
    assert verdict(beat(0, waits=30), beat(1, at=70), facts={1: Facts(state="D")}).behind[0].where == "in I/O"


def test_what_was_seen_before_the_phase_is_said_to_be():
    """The state is of the main thread and always fresh; a pulse is of a thread that may run no more."""
    stands = beat(1, phase="save", at=70)
    stands.state["since_ns"] = round(70.4 * S)
    words = verdict(beat(0, waits=30), stands).words()
    assert "last seen in forward (model/decoder.py:88), 0.4 s before save began" in words


def test_F3_clocks_of_other_boots_are_not_compared():
    found = verdict(beat(0, waits=9), beat(1, at=5, boot="another"))
    assert found.behind[0].where == "in Python", "its pulse is 95 s behind a clock that is not its own"


def test_io_by_phase_and_by_the_kernels_word():
    assert verdict(beat(0, waits=9), beat(1, phase="data")).behind[0].where == "in I/O"
    facts = {1: Facts(state="S", call="in read of /data/code-0003.bin", kernel="folio_wait_bit")}
    found = verdict(beat(0, waits=9), beat(1), facts=facts)
    assert found.behind[0].where == "in I/O"
    assert "in read of /data/code-0003.bin, waits in folio_wait_bit" in found.words()


def test_a_rank_that_ended_well_is_not_behind():
    found = verdict(beat(0, phase="end"), beat(1, phase="end"), facts={0: Facts(state="S"), 1: Facts(state="")})
    assert found.rank == 0
    assert verdict(beat(0, waits=9), beat(1), facts={1: Facts(state="")}).behind[0].where == "gone"


def test_evidence_of_all_the_rank_behind_first():
    found = verdict(beat(0, waits=9), beat(1, waits=9), beat(2)).fields()
    assert [told["rank"] for told in found["ranks"]] == [2, 0, 1]
    assert found["ranks"][1]["words"] == "for 9 s in all_reduce (distributed/distributed_c10d.py:3252)"
    assert (found["rank"], found["host"], found["where"], found["phase"], found["step"]) == (2, "node-1", "in Python", "step", 40)


def test_of_thousands_the_first_are_told():
    beats = [beat(rank, waits=9) for rank in range(2000) if rank != 1500] + [beat(1500)]
    found = verdict(*beats)
    assert (found.rank, len(found.fields()["ranks"])) == (1500, 64)
    assert "ranks 0, 1, 2, 3 and 1995 more wait for it" in found.words()


def test_without_heartbeats_nothing_is_said():
    assert (verdict(world=2).rank, verdict(world=2).fields()) == (None, {})
