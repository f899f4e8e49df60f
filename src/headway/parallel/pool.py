"""Several processes of this machine as the ranks of small process groups, one after the other: for proofs, not for training.

Processes are started when a task first needs them, from one that has imported torch already (which takes seconds), and form a
new group for each task, so that a task of two ranks can follow one of eight, and nothing of one is left in the next. A rank that
fails ends the task: its error is the task's.

Tasks and answers go through pipes between a process and its own children; nobody else can write there.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from headway.base.errors import HeadwayError, RunError
from headway.parallel.group import use_loopback

TIMEOUT_SECONDS = 120.0
"""Of a collective: a rank that has failed leaves the others waiting no longer than this, and mostly ends them at once."""


class Pool:
    """At most ``size`` processes; use it as a context."""

    def __init__(self, size: int, threads: int = 1):
        self.size = size
        self._threads = threads
        self._directory = tempfile.TemporaryDirectory(prefix="headway-pool-")
        self._tasks = 0
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["headway.parallel.pool", "headway.parallel.model"])

    def _start(self, size: int) -> None:
        while len(self._processes) < size:
            ours, theirs = self._context.Pipe()
            process = self._context.Process(target=_serve, args=(theirs, self._threads), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, task: Callable[..., Any], world: int, *arguments: Any) -> list[Any]:
        """``task(*arguments)`` on ``world`` ranks -> their answers, by rank. RunError with the words of the rank that failed."""
        assert 1 <= world <= self.size, (world, self.size)
        self._start(world)
        self._tasks += 1
        store = os.path.join(self._directory.name, f"store-{self._tasks}")
        for rank in range(world):
            self._pipes[rank].send((task, arguments, rank, world, store))
        answers: dict[int, Any] = {}
        while len(answers) < world:
            waiting = {self._pipes[rank]: rank for rank in range(world) if rank not in answers}
            for pipe in wait(list(waiting)):
                rank = waiting[pipe]  # type: ignore[index]
                answers[rank] = self._answer(rank)
                if isinstance(answers[rank], _Failed):
                    self._end()  # the others may wait for this rank, in a collective that cannot be left
                    raise RunError(f"rank {rank} of {world}: {answers[rank].words}", "", answers[rank].trace)
        return [answers[rank] for rank in range(world)]

    def _answer(self, rank: int) -> Any:
        try:
            return self._pipes[rank].recv()
        except (EOFError, ConnectionError):
            self._processes[rank].join(5)
            return _Failed(f"the process ended with exit code {self._processes[rank].exitcode}", "")

    def _end(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.kill()
            process.join()
        self._pipes, self._processes = [], []

    def close(self) -> None:
        self._end()
        self._directory.cleanup()

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class _Failed:
    def __init__(self, words: str, trace: str):
        self.words, self.trace = words, trace


def _serve(pipe: Connection, threads: int) -> None:
    torch.set_num_threads(threads)
    use_loopback()
    with contextlib.suppress(EOFError, ConnectionError, KeyboardInterrupt):
        while True:
            task, arguments, rank, world, store = pipe.recv()
            pipe.send(_answer(task, arguments, rank, world, store))


def _answer(task: Callable[..., Any], arguments: tuple[Any, ...], rank: int, world: int, store: str) -> Any:
    try:
        timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
        dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=timeout)
        answer = task(*arguments)
        dist.barrier()  # nobody takes its group down while others still talk
        dist.destroy_process_group()
        _forget_meshes()
        return answer
    except HeadwayError as error:
        return _Failed(str(error), "")
    except Exception as error:
        return _Failed(f"{type(error).__name__}: {error}", traceback.format_exc())


def _forget_meshes() -> None:
    """DTensor remembers results by meshes, and a mesh equals one of an earlier task whose groups are gone."""
    from torch.distributed.tensor import _redistribute, debug

    debug._clear_sharding_prop_cache()
    _redistribute.clear_redistribute_planner_cache()
    _redistribute._gen_transform_infos.cache_clear()
