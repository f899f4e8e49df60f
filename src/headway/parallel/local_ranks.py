"""New processes of this machine as the ranks of a small group, for one task: for proofs and measurements, not for training.

    on_ranks(task, 4, x) --> 4 processes, forked from one that has imported torch --> task(x) on each --> 4 answers

No process serves twice. What torch remembers of a group (names, meshes, results by meshes, in Python and in C++) outlives the
group, and is taken for the next one's where that is of the same shape: the wrong ranks are asked then, or freed memory is. A fork
takes milliseconds; the process that is forked imports torch once.

Tasks and answers go through pipes between a process and its own children; nobody else can write there. A rank that fails ends
the task: its error is the task's.
"""

from __future__ import annotations

import contextlib
import datetime
import multiprocessing
import os
import tempfile
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

import torch
import torch.distributed as dist

from headway.base.errors import HeadwayError, RunError
from headway.base.owner import end_with_starter
from headway.parallel.group import use_loopback

TIMEOUT_SECONDS = 120.0
"""Of a collective: a rank that has failed leaves the others waiting no longer than this, and mostly ends them at once."""
_MOMENT_SECONDS = 0.5
"""Between the death of a rank and what others say of it."""

_PROCESSES = multiprocessing.get_context("forkserver")


def on_ranks(task: Callable[..., Any], world: int, *arguments: Any, threads: int = 1) -> list[Any]:
    """``task(*arguments)`` on ``world`` ranks of a gloo group -> their answers, by rank. RunError: what a failed rank says.

    ``task``, its arguments and answers are pickled; ``threads``: of torch, in each process.
    """
    with tempfile.TemporaryDirectory(prefix="headway-ranks-") as directory:
        store = os.path.join(directory, "store")
        return _answers([_Call(task, arguments, threads, (rank, world, store)) for rank in range(world)])


def in_new_process(task: Callable[..., Any], *arguments: Any) -> Any:
    """``task(*arguments)`` where no group has ever been. RunError: what it says when it fails."""
    return _answers([_Call(task, arguments, 1, None)])[0]


@dataclass(frozen=True)
class _Call:
    task: Callable[..., Any]
    arguments: tuple[Any, ...]
    threads: int
    member: tuple[int, int, str] | None
    """Rank, world, file of the group's store."""


@dataclass(frozen=True)
class _Failed:
    words: str
    trace: str = ""


def _answers(calls: list[_Call]) -> list[Any]:
    _PROCESSES.set_forkserver_preload(["headway.parallel.local_ranks", "headway.parallel.model"])
    pipes: dict[Connection, int] = {}
    processes = []
    answers: dict[int, Any] = {}
    try:
        for rank, call in enumerate(calls):
            ours, theirs = _PROCESSES.Pipe()
            processes.append(_PROCESSES.Process(target=_serve, args=(theirs, call), daemon=True))
            pipes[ours] = rank
            processes[-1].start()
            theirs.close()
        while len(answers) < len(calls):
            for pipe in wait([pipe for pipe, rank in pipes.items() if rank not in answers]):
                rank = pipes[pipe]  # type: ignore[index]
                answer = answers[rank] = _received(pipe, processes[rank])  # type: ignore[arg-type]
                if isinstance(answer, _Failed):
                    rank, answer = _cause(rank, answer, processes)
                    who = f"rank {rank} of {len(calls)}: " if calls[rank].member else ""
                    raise RunError(f"{who}{answer.words}", "", answer.trace)
        return [answers[rank] for rank in range(len(calls))]
    finally:
        for pipe in pipes:
            pipe.close()
        for process in processes:  # after a failure the others may wait for that rank, in a collective that cannot be left
            process.kill()
            process.join()


def _cause(rank: int, answer: _Failed, processes: list[Any]) -> tuple[int, _Failed]:
    """A rank that was killed leaves no word, and the others lose their connection to it: they may be faster to say so."""
    wait([process.sentinel for process in processes], timeout=_MOMENT_SECONDS)
    killed = next((other for other, process in enumerate(processes) if (process.exitcode or 0) < 0), None)
    if killed is None:
        return rank, answer
    return killed, _Failed(f"the process ended with exit code {processes[killed].exitcode}")


def _received(pipe: Connection, process: Any) -> Any:
    try:
        return pipe.recv()
    except (EOFError, ConnectionError):
        process.join(5)
        return _Failed(f"the process ended with exit code {process.exitcode}")


def _serve(pipe: Connection, call: _Call) -> None:
    end_with_starter()
    torch.set_num_threads(call.threads)
    try:
        answer = call.task(*call.arguments) if call.member is None else _as_member(call, *call.member)
    except HeadwayError as error:
        answer = _Failed(str(error))
    except Exception as error:
        answer = _Failed(f"{type(error).__name__}: {error}", traceback.format_exc())
    with contextlib.suppress(EOFError, ConnectionError):
        pipe.send(answer)
        pipe.recv()  # never comes: tensors of the answer are in this process's memory until they have been read


def _as_member(call: _Call, rank: int, world: int, store: str) -> Any:
    use_loopback()
    timeout = datetime.timedelta(seconds=TIMEOUT_SECONDS)
    dist.init_process_group("gloo", store=dist.FileStore(store, world), rank=rank, world_size=world, timeout=timeout)
    answer = call.task(*call.arguments)
    dist.barrier()  # nobody takes its group down while others still talk
    dist.destroy_process_group()
    return answer
