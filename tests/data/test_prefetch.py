"""The prefetch thread: order, waiting time, failures, stalls, and nothing left behind."""

from __future__ import annotations

import threading
import tracemalloc

import numpy as np
import pytest

from headway.base.clocks import FakeClock
from headway.data.prefetch import Prefetcher


def test_items_in_order_from_any_first_step_and_at_most_depth_ahead():
    fetched, release = [], threading.Semaphore(0)

    def fetch(step: int) -> int:
        fetched.append(step)
        if len(fetched) == 4:
            release.release()
        return step * 10

    with Prefetcher(fetch, first=5, depth=2) as prefetcher:
        assert prefetcher.get(5).item == 50
        assert release.acquire(timeout=5)  # 5 was taken, 6 and 7 are queued, 8 is in the hands of the thread
        assert fetched == [5, 6, 7, 8]
        assert [prefetcher.get(step).item for step in range(6, 20)] == [step * 10 for step in range(6, 20)]


def test_steps_out_of_order_are_our_own_bug():
    with Prefetcher(lambda step: step, first=0, depth=1) as prefetcher, pytest.raises(AssertionError):
        prefetcher.get(3)


def test_waiting_time_is_measured_by_the_clock():
    clock, asked = FakeClock(), threading.Event()

    def fetch(step: int) -> int:
        assert asked.wait(5)
        clock.advance(1.5)
        return step

    with Prefetcher(fetch, first=0, depth=1, clock=clock, on_stall=lambda ns: asked.set(), stall_seconds=0.01) as prefetcher:
        item, wait_ns = prefetcher.get(0)
    assert item == 0
    assert wait_ns >= 1_500_000_000


def test_an_exception_is_raised_at_the_get_of_its_step_and_again():
    def fetch(step: int) -> int:
        if step == 2:
            raise OSError("the disk is gone")
        return step

    with Prefetcher(fetch, first=0, depth=3) as prefetcher:
        assert [prefetcher.get(0).item, prefetcher.get(1).item] == [0, 1]
        for _ in range(2):
            with pytest.raises(OSError, match="the disk is gone"):
                prefetcher.get(2)


def test_D12_a_stalled_reader_is_reported_while_it_stalls():
    gate, reports = threading.Event(), []

    def report(waited_ns: int) -> None:
        reports.append(waited_ns)
        if len(reports) == 3:
            gate.set()

    with Prefetcher(lambda step: gate.wait(10), first=0, depth=1, on_stall=report, stall_seconds=0.01) as prefetcher:
        assert prefetcher.get(0).item is True
    assert len(reports) >= 3
    assert reports == sorted(reports)
    assert reports[0] >= 5_000_000


def test_close_joins_the_thread_also_when_the_queue_is_full():
    before = threading.active_count()
    prefetcher = Prefetcher(lambda step: step, first=0, depth=2)
    prefetcher.get(0)
    prefetcher.close()
    prefetcher.close()
    assert threading.active_count() == before


def test_D13_nothing_accumulates_over_many_thousand_batches():
    with Prefetcher(lambda step: np.empty(1_000), first=0, depth=4) as prefetcher:
        for step in range(500):
            prefetcher.get(step)
        tracemalloc.start()
        for step in range(500, 10_000):
            prefetcher.get(step)
        grown, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    assert grown < 200_000  # a dozen items in flight; 9,500 batches would be 76 MB


def test_queue_waiting_and_thread_are_counted():
    release = threading.Event()

    def fetch(step: int) -> int:
        if step == 3:
            release.wait(10)
        return step

    with Prefetcher(fetch, first=0, depth=2, on_stall=lambda waited: release.set(), stall_seconds=0.01) as prefetcher:
        while prefetcher._queue.qsize() < 2:
            pass
        assert prefetcher.get(0).item == 0
        assert prefetcher.ready == 2
        for step in (1, 2, 3):
            prefetcher.get(step)
        counts = prefetcher.counts()
    assert (counts["steps"], counts["depth"]) == (4, 2)
    assert counts["empty"] >= 1, "step 3 was not there"
    assert counts["wait_ns"] > 0
    assert counts["span_ns"] >= counts["busy_ns"] > 5_000_000
    assert counts["cpu_ns"] < counts["busy_ns"], "it waited for the event"
