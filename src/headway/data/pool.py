"""Tasks over processes: results come in the order of the tasks, whoever is done first.

Each process is given its next task while it is busy with one, so that none waits for the build to look up from its own work.
Processes are modules of this package that read tasks from stdin, a line of JSON each, and answer in the same way (``worker``).
With one worker the build does the tasks itself: the tokenizer's own threads then use the cores that there are.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import json
import os
import selectors
import subprocess
import sys
from collections.abc import Callable, Generator, Iterable, Iterator
from typing import Any

from headway.base.errors import ConfigError, EnvironmentFault, HeadwayError, Problem, RunError
from headway.data.parts import PartTask
from headway.data.worker import Setup, Workshop

_AHEAD = 2
"""Tasks that a process holds."""
_KINDS: dict[str, type[HeadwayError]] = {kind.__name__: kind for kind in (ConfigError, EnvironmentFault, RunError)}
Told = Callable[[PartTask, int, int, int], None]


def usable_cores() -> int:
    return len(os.sched_getaffinity(0))


def in_order(tasks: list[PartTask], setup: Setup, workers: int, told: Told) -> Generator[PartTask]:
    """Make every part of ``tasks``; yields each task, in their order, when its part is there."""
    workers = min(workers, len(tasks))
    if workers <= 1:
        yield from _here(tasks, setup, told)
        return
    pool = Pool("headway.data.worker", dataclasses.asdict(setup), workers, "tokenises")
    try:
        yield from pool.run(tasks, told=told)
    finally:
        pool.close()


def _here(tasks: list[PartTask], setup: Setup, told: Told) -> Iterator[PartTask]:
    if not tasks:
        return
    workshop = Workshop(setup)
    try:
        for task in tasks:
            workshop.make(task, lambda *what, task=task: told(task, *what))
            yield task
    finally:
        workshop.close()


@dataclasses.dataclass
class _Entry:
    task: Any
    done: bool = False


@dataclasses.dataclass
class _Worker:
    process: subprocess.Popen[bytes]
    given: collections.deque[_Entry] = dataclasses.field(default_factory=collections.deque)
    heard: bytes = b""


class Pool:
    """Processes of one module. ``setup`` is what all their tasks share; ``what`` they do is for errors."""

    def __init__(self, module: str, setup: dict[str, Any], count: int, what: str):
        self._module, self._setup, self._what = module, setup, what
        self._selector = selectors.DefaultSelector()
        self._workers: list[_Worker] = []
        self._told: Callable[..., None] = lambda *facts: None
        for _ in range(count):
            self._start()

    def run(self, tasks: Iterable[Any], *, told: Callable[..., None] | None = None, most: int | None = None) -> Generator[Any]:
        """Yields each task, a dataclass, when it is done. ``most``: tasks that are taken before the first of them is yielded."""
        self._told = told or self._told
        coming, waiting = iter(tasks), collections.deque[_Entry]()
        while True:
            self._feed(coming, waiting, most)
            if not waiting:
                return
            while not waiting[0].done:
                for key, _ in self._selector.select():
                    self._hear(key.data)
                self._feed(coming, waiting, most)
            yield waiting.popleft().task

    def _feed(self, coming: Iterator[Any], waiting: collections.deque[_Entry], most: int | None) -> None:
        for held in range(_AHEAD):
            for worker in self._workers:
                if len(worker.given) > held or (most is not None and len(waiting) >= most):
                    continue
                task = next(coming, None)
                if task is None:
                    return
                entry = _Entry(task)
                waiting.append(entry)
                worker.given.append(entry)
                self._tell(worker, dataclasses.asdict(task))

    def _start(self) -> None:
        command = [sys.executable, "-m", self._module, str(os.getpid())]
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}  # one core each: processes share them better than threads
        process = subprocess.Popen(  # a session of its own: Ctrl-C is the build's to answer, which ends its processes
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        worker = _Worker(process)
        self._workers.append(worker)
        self._selector.register(process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
        self._tell(worker, self._setup)

    def _tell(self, worker: _Worker, what: dict[str, Any]) -> None:
        assert worker.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended: what it said last says why
            worker.process.stdin.write(json.dumps(what).encode() + b"\n")
            worker.process.stdin.flush()

    def _hear(self, worker: _Worker) -> None:
        assert worker.process.stdout is not None
        data = os.read(worker.process.stdout.fileno(), 2**16)
        if not data:
            self._gone(worker)
        *lines, worker.heard = (worker.heard + data).split(b"\n")
        for line in lines:
            self._answer(worker, json.loads(line))

    def _answer(self, worker: _Worker, answer: dict[str, Any]) -> None:
        if "failed" in answer:
            raise _KINDS.get(answer["kind"], RunError)([Problem(**problem) for problem in answer["failed"]])
        if "told" in answer:
            self._told(worker.given[0].task, *answer["told"])
        else:
            worker.given.popleft().done = True

    def _gone(self, worker: _Worker) -> None:
        status = worker.process.wait()
        said = f"signal {-status}" if status < 0 else f"exit code {status}"
        raise EnvironmentFault(
            f"a process that {self._what} ended by {said}",
            "each holds a batch of documents in memory, and the largest document at least",
            "build again, with fewer --workers if memory ran out: finished parts are kept",
        )

    def close(self) -> None:
        """Unfinished work is dropped; only processes of this pool are ended."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            for pipe in (worker.process.stdin, worker.process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()  # type: ignore[union-attr]
        self._selector.close()
