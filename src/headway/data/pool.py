"""Tasks over processes: results come in the order of the tasks, whoever is done first.

Each process is given its next task while it is busy with one, so that none waits for the build to look up from its own work.
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
from collections.abc import Callable, Generator, Iterator
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
    yield from _here(tasks, setup, told) if workers <= 1 else _Pool(tasks, setup, workers, told).run()


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
class _Worker:
    process: subprocess.Popen[bytes]
    given: collections.deque[int] = dataclasses.field(default_factory=collections.deque)  # places in the list of tasks
    heard: bytes = b""


class _Pool:
    def __init__(self, tasks: list[PartTask], setup: Setup, workers: int, told: Told):
        self._tasks, self._setup, self._told = tasks, setup, told
        self._next, self._done = 0, [False] * len(tasks)
        self._workers: list[_Worker] = []
        self._count = workers

    def run(self) -> Iterator[PartTask]:
        with selectors.DefaultSelector() as selector:
            try:
                for _ in range(self._count):
                    worker = self._start()
                    selector.register(worker.process.stdout, selectors.EVENT_READ, worker)  # type: ignore[arg-type]
                for place in range(len(self._tasks)):
                    while not self._done[place]:
                        for key, _ in selector.select():
                            self._hear(key.data)
                    yield self._tasks[place]
            finally:
                self._stop()

    def _start(self) -> _Worker:
        command = [sys.executable, "-m", "headway.data.worker", str(os.getpid())]
        environment = os.environ | {"TOKENIZERS_PARALLELISM": "false"}  # one core each: processes share them better than threads
        process = subprocess.Popen(  # a session of its own: Ctrl-C is the build's to answer, which ends its processes
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment, start_new_session=True
        )
        worker = _Worker(process)
        self._workers.append(worker)
        self._tell(worker, dataclasses.asdict(self._setup))
        self._give(worker)
        return worker

    def _give(self, worker: _Worker) -> None:
        while len(worker.given) < _AHEAD and self._next < len(self._tasks):
            worker.given.append(self._next)
            self._tell(worker, dataclasses.asdict(self._tasks[self._next]))
            self._next += 1

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
            self._told(self._tasks[worker.given[0]], *answer["told"])
        else:
            self._done[worker.given.popleft()] = True
            self._give(worker)

    def _gone(self, worker: _Worker) -> None:
        status = worker.process.wait()
        said = f"signal {-status}" if status < 0 else f"exit code {status}"
        raise EnvironmentFault(
            f"a process that tokenises ended by {said}",
            "each holds a batch of documents in memory, and the largest document at least",
            "build again, with fewer --workers if memory ran out: finished parts are kept",
        )

    def _stop(self) -> None:
        """Unfinished work is dropped; only processes of this pool are ended."""
        for worker in self._workers:
            worker.process.kill()
        for worker in self._workers:
            worker.process.wait()
            for pipe in (worker.process.stdin, worker.process.stdout):
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()  # type: ignore[union-attr]
