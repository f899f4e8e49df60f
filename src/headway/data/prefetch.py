"""One thread that fetches ahead through a bounded queue. (Worker processes made fast loaders 3-8 times slower.)

    fetch(first), fetch(first + 1), ...  ->  [ queue of depth ]  ->  get(step): the item, and how long the step waited

A failure of ``fetch`` surfaces at the ``get`` of that step, with the original exception. A fetch that stalls is visible
from outside: ``get`` calls ``on_stall`` every ``stall_seconds``, so the caller can say what it waits for and for how long,
long before a collective of other ranks times out.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Generic, NamedTuple, TypeVar

from headway.base.clocks import Clock, SystemClock

Item = TypeVar("Item")
_JOIN_SECONDS = 30.0


class Fetched(NamedTuple, Generic[Item]):
    """``wait_ns``: boot-time nanoseconds that ``get`` was blocked."""

    item: Item
    wait_ns: int


@dataclass
class LoaderCounts:
    """Since the thread started. ``ready``: items in the queue at each ``get``, summed; ``empty``: gets that found none."""

    depth: int  # of the queue
    steps: int = 0
    wait_ns: int = 0  # boot time that gets were blocked
    ready: int = 0
    empty: int = 0
    busy_ns: int = 0  # boot time inside fetches
    cpu_ns: int = 0  # of the thread, inside fetches
    span_ns: int = 0  # boot time


class _Failure(NamedTuple):
    error: BaseException


class Prefetcher(Generic[Item]):
    """Items of steps ``first``, ``first + 1``, ... in order, up to ``depth`` ahead and before step ``end`` (None: for ever)."""

    def __init__(
        self,
        fetch: Callable[[int], Item],
        first: int,
        depth: int,
        *,
        end: int | None = None,
        on_stall: Callable[[int], None] | None = None,
        stall_seconds: float = 10.0,
        clock: Clock | None = None,
    ):
        assert depth >= 1, depth
        self.ready = 0
        """Items that the last ``get`` found in the queue."""
        self._fetch, self._next, self._end = fetch, first, end
        self._on_stall, self._stall_seconds = on_stall, stall_seconds
        self._clock = clock or SystemClock()
        self._queue: queue.Queue = queue.Queue(maxsize=depth)
        self._counts, self._began_ns = LoaderCounts(depth), self._clock.stamp().boot_ns
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._work, args=(first,), name="headway-prefetch", daemon=True)
        self._thread.start()

    def _work(self, step: int) -> None:
        while not self._stopped.is_set() and (self._end is None or step < self._end):
            item = self._measured(step)
            self._put((step, item))
            if isinstance(item, _Failure):
                return
            step += 1

    def _measured(self, step: int) -> object:
        """The item, or why there is none; the time is of this thread alone, which alone counts it."""
        boot_ns, cpu_ns = self._clock.stamp().boot_ns, time.thread_time_ns()
        try:
            return self._fetch(step)
        except BaseException as error:
            return _Failure(error)
        finally:
            self._counts.busy_ns += self._clock.stamp().boot_ns - boot_ns
            self._counts.cpu_ns += time.thread_time_ns() - cpu_ns

    def _put(self, entry: tuple[int, object]) -> None:
        while not self._stopped.is_set():
            try:
                return self._queue.put(entry, timeout=0.1)
            except queue.Full:
                continue

    def get(self, step: int) -> Fetched[Item]:
        """The item of ``step``, which must be the next in order, and the time this call was blocked."""
        assert step == self._next, (step, self._next)
        assert self._end is None or step < self._end, (step, self._end)
        assert not self._stopped.is_set(), "get after close"
        before, ready = self._clock.stamp().boot_ns, self._queue.qsize()
        item = self._take(before)
        if isinstance(item, _Failure):
            raise item.error  # the next stays: asking again raises again
        self._next += 1
        waited_ns = self._clock.stamp().boot_ns - before
        self.ready = ready
        self._counts.steps += 1
        self._counts.wait_ns += waited_ns
        self._counts.ready += ready
        self._counts.empty += not ready
        return Fetched(item, waited_ns)

    def counts(self) -> dict[str, int]:
        """How the queue and its thread fared so far."""
        return asdict(self._counts) | {"span_ns": self._clock.stamp().boot_ns - self._began_ns}

    def _take(self, before: int):
        while True:
            try:
                step, item = self._queue.get(timeout=self._stall_seconds)
            except queue.Empty:
                if self._on_stall is not None:
                    self._on_stall(self._clock.stamp().boot_ns - before)
                continue
            assert step == self._next, (step, self._next)
            if isinstance(item, _Failure):
                self._queue.put((step, item))
            return item

    def close(self) -> None:
        """Stop and join the thread; what was fetched ahead is dropped. A fetch in progress is waited for, but not for ever."""
        self._stopped.set()
        while not self._queue.empty():
            self._queue.get_nowait()
        self._thread.join(_JOIN_SECONDS)

    def __enter__(self) -> Prefetcher[Item]:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
