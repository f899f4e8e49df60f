"""How the input came, from rows: totals over segments, and who made the run stand still."""

from __future__ import annotations

from headway.cli.status import input_lines
from headway.monitor.delivery import delivery

TRAFFIC = {"hits": 0, "misses": 0, "ahead": 0, "fetched_bytes": 0, "evictions": 0, "refetches": 0, "blocks": 1, "wait_ns": 5}


def row(segment: int, steps: int, **source: int) -> dict:
    loader = {"depth": 4, "steps": steps, "wait_ns": 10, "ready": 3 * steps, "empty": 1, "busy_ns": 50, "cpu_ns": 40}
    return {
        "kind": "delivery",
        "segment": segment,
        "step": steps,
        "loader": loader | {"span_ns": 100},
        "sources": {"a": TRAFFIC | source},
    }


def test_the_last_row_of_each_segment_counts_from_its_start():
    step = {"kind": "step", "segment": 1, "step": 1, "split": {"productive": 180, "data_stall": 20}}
    found = delivery([step, row(1, 5, misses=1), row(1, 10, misses=2, fetched_bytes=7), row(2, 30, misses=4)])
    assert (found.steps, found.wait_ns, found.empty, found.depth) == (40, 20, 2, 4)
    assert (found.mean_ready, found.saturation, found.wait_share) == (3.0, 0.4, 0.1)
    (source,) = found.sources
    assert (source.misses, source.fetched_bytes, source.wait_ns) == (6, 7, 10)
    assert found.is_remote
    assert any("evicted" in line for line in input_lines(found))


def test_D12_a_shard_that_made_the_run_stand_still_is_named_once_with_all_its_time():
    stalls = [
        {"kind": "stall", "segment": 1, "step": 3, "shard": "00/shard-00007.bin", "waited_ns": waited}
        for waited in (10_000_000_000, 20_000_000_000)
    ]
    found = delivery([*stalls, row(1, 5)])
    assert found.stalls == {"00/shard-00007.bin": 20_000_000_000}
    text = "\n".join(input_lines(found))
    assert "stood still 20 s while 00/shard-00007.bin was read" in text
    assert "evicted" not in text, "nothing came from a distance"


def test_runs_that_did_not_record_it_show_nothing():
    assert delivery([{"kind": "step", "segment": 1, "step": 1}]) is None
    assert list(input_lines(None)) == []


def test_rows_with_other_things_in_them_are_no_traceback():
    odd = row(1, 5) | {"sources": {"a": 3, "b": {"hits": "many", "wait_ns": -4}}}
    assert [s.hits for s in delivery([odd]).sources] == [0, 0]
